'''The environment contract: `Env`, its spaces, and the signature of each function of an environment. Independent of
lanes, devices and training.

An environment is one file that exports `ENV`. A complete example:

    """A point on a line, moved by a push; the reward is highest at zero."""
    import math
    from typing import NamedTuple
    from numpy import float32
    from operant.envs import Box, Discrete, Env, device, uniform

    X, X_DOT, FIELDS = range(3)                      # rows of the float32 state (F, N)

    class Params(NamedTuple):
        push: float = 0.1                            # m/s^2

    @device
    def reset(s, p, key):                            # writes the lane's F state fields
        s[X] = uniform(key, 0) - float32(0.5)
        s[X_DOT] = float32(0.0)

    @device
    def step(s, action, p, key, tally):              # updates s; returns reward, terminated
        s[X_DOT] += p.push * float32(action - 1)
        s[X] += s[X_DOT]
        return -abs(s[X]), abs(s[X]) > float32(2.0)

    @device
    def observe(s, obs, p):                          # writes O observation values
        obs[0] = s[X]
        obs[1] = s[X_DOT]

    ENV = Env(Params, FIELDS, observation=Box(2), action=Discrete(3), time_limit=100, reset=reset, step=step,
              observe=observe)

Rules
- `s` is the lane's column of the field-major state (F, N). `p` is `Params` with its floats as float32 and its ints as
  int32.
- Write every literal as `float32(...)`: a bare 0.5 is a float64 and promotes the arithmetic, as does float32 + int.
  `operant check` refuses float64.
- Load the fields of `s` into locals first and store afterwards: the compiler cannot prove that two arrays do not
  overlap, and a GPU would wait for each load in turn.
- `action` is an integer for `Discrete`, and a column of A integers or floats for `MultiDiscrete` and `Box`. A `Box`
  action is clipped to its bounds before `step`.
- `key` identifies the lane's random numbers of this step: `uniform(key, draw)` in [0, 1) gives the same value on every
  device (also `uniform4` and `integer`; see `operant.compute.rng`).
- `tally[k] += x` sums a metric of the environment over an episode: `Env(..., tally=("score",))`. Add unconditionally, 0
  where there is nothing to add: a branch around a sum prevents vectorization across lanes on a CPU. A tally that ought
  to be 0 names its sentence of advice: `Env(..., warnings={"overflows": "the board was full: ..."})`.
- Time limits, automatic resets, episode statistics, seeding, memory layout and the device belong to
  `operant.worlds.device_world`. `step` never resets and never counts steps.

Optional features
- **Grids and boards**: `Env(..., int_state=IntState(n, "int8"), workspace=m)`. Each function then takes the lane's
  columns `ints` (n of that type) and `workspace` (m int32) right after `s`: `step(s, ints, workspace, action, p, key,
  tally)`. A game names `ints` after its content, such as board or cells. Local arrays do not exist on both backends;
  the workspace replaces them, and its content is lost between calls.
- **Pixels**: `pixel_shader(s, p, x, y) -> (r, g, b)`, each in [0, 1], returns the colour of the point (x, y) in [0,
  1)^2, x to the right, y down. It runs once per pixel, for a viewer or for an agent that learns from pixels
  (`env.pixels = 64`). With int state the signature is `pixel_shader(s, ints, p, x, y)`. It has no workspace and changes
  nothing, because the pixels of a lane are shaded in parallel. What all pixels of a lane share, such as the places of a
  body's limbs: `Env(..., picture=k, arrange=arrange)` with `arrange(s, p, picture)`, which writes k float32 once per
  picture; the signature is then `pixel_shader(s, picture, p, x, y)`. (Not with int state.)
- **Byte observations**: `observation=Box(n, dtype="uint8")`; `observe` then writes integers, which stay bytes until the
  network reads them. Bytes that are categorical features with k categories (such as pieces on a board): `Box(n,
  dtype="uint8", high=k - 1, categories=k)`, read one-hot. A mix of categorical and numeric features: `categories=(31,
  28, 0, ...)`, one per byte, 0 for a numeric feature.
- **Illegal actions**: `Env(..., legal=legal)` with `legal(s, mask, p)` (with int state `legal(s, ints, workspace, mask,
  p)`) writes 1 for each legal action and 0 for each other: n bytes for `Discrete`, one block after the other for
  `MultiDiscrete`, at least one 1 per block. The policy never samples a 0. A person, or a policy without masks, still
  may: `step` must handle it.
- **Ranges of parameters**: `Env(..., ranges={"gravity": (0.0, None), "steps": (1, 10_000)})` gives the least and
  greatest value, both inclusive, None for unbounded. Other values are refused before anything runs. Declare a range
  wherever `step` would fail: division by zero, an index out of bounds, bytes out of range, or a loop long enough to
  hang a GPU. Values are always finite and fit into int32 and float32.
- **Playing**: `actions=("stay", "left", "right")` names the actions of a `Discrete` in order; "left+jump" is two at
  once. A player finds them on the keys, and a viewer displays them. `turns=True` marks a game that waits for its
  player. `step_s` is the duration of a step for a viewer; by default it is `Params.tau`, s, times `Params.frames` where
  these exist (`frames` alone are sixtieths of a second).
- **Sharded observations**: `Env(..., observation_shards=k)` for long observations. `observe(s, obs, p, shard)` (with
  int state `observe(s, ints, obs, p, shard)`) then runs for each shard 0 ... k - 1, possibly in parallel and in any
  order, and writes that shard's rows. Together the shards write all rows; no shard reads another's rows. There is no
  workspace, and only `obs` changes. Likewise `legal(s, mask, p, shard)`, with int state `legal(s, ints, mask, p,
  shard)`. `shard` is uint32. Ten to forty rows make a good shard.
- **Several frames per step, or a scripted opponent**: a loop, or the opponent's move, inside `step`.
- **Recurrent policies and several GPUs** require nothing of an environment: lanes are numbered globally, so a lane's
  random numbers do not depend on the device that runs it.
- **Robots**: `operant.envs.physics.physics_env` makes an environment from an MJCF file and functions over its named
  fields.
- **Parameters per lane** (later): `p` is already passed to every call; no function may assume that two lanes share it.
'''

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from operant.errors import OperantError
from operant.old_names import KEYWORDS


class _Declared:
    """Base class of declarations that rejects field names of earlier versions. (Old files are translated:
    operant/old_names.py.)
    """

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        """Create the instance. Raises OperantError for a field name of an earlier version, with the new name."""
        for old in KEYWORDS.keys() & fields:
            raise OperantError(
                f"{cls.__name__}({old}=...) is called {KEYWORDS[old]} now: write {cls.__name__}({KEYWORDS[old]}=...)"
            )
        return super().__new__(cls)


@dataclass(frozen=True)
class Box(_Declared):
    """Space of `size` numbers of one dtype, with lower and upper bounds (one for all numbers, or one for each)."""

    size: int
    low: float | tuple[float, ...] = -math.inf
    high: float | tuple[float, ...] = math.inf
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    # per uint8 feature (one for all, or one each): number of one-hot categories, 0 for a numeric feature
    categories: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        # Lists become tuples: a space is part of the kernel cache's key and must be hashable.
        for name in ("low", "high", "shape", "categories"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.categories, tuple) and len(self.categories) == self.size and len(set(self.categories)) == 1:
            object.__setattr__(self, "categories", self.categories[0])

    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower and upper bounds of the numbers of this space, (size,) each."""
        low = self.low if isinstance(self.low, tuple) else (self.low,) * self.size
        high = self.high if isinstance(self.high, tuple) else (self.high,) * self.size
        return low, high

    def category_counts(self) -> tuple[int, ...]:
        """Number of one-hot categories of each feature of this space, (size,); 0 for a numeric feature."""
        return self.categories if isinstance(self.categories, tuple) else (self.categories,) * self.size

    @property
    def columns(self) -> int:
        """Input width of a dense layer that reads this space: 1 per numeric feature, k per categorical feature with k
        categories.
        """
        return sum(max(k, 1) for k in self.category_counts())


@dataclass(frozen=True)
class Discrete:
    """Action space: a choice among `n` actions, 0 to n - 1."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Action space: one choice in each dimension k, among `n[k]` actions."""

    n: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", tuple(self.n))


@dataclass(frozen=True)
class IntState:
    """State of `n` integers per lane (copy of an environment) in addition to the float32 state, such as a board or a
    grid.
    """

    n: int
    dtype: str = "int8"


@dataclass(frozen=True)
class Env(_Declared):
    """Declaration of an environment: its parameters, state, spaces, functions and optional features (see the module
    docstring). An `Env` is immutable.
    """

    Params: type
    fields: int
    observation: Box
    action: Discrete | MultiDiscrete | Box
    time_limit: int | None
    reset: Callable[..., Any]
    step: Callable[..., Any]
    observe: Callable[..., Any]
    pixel_shader: Callable[..., Any] | None = None
    picture: int = 0  # numbers per lane that `arrange` writes before its pixels are shaded
    arrange: Callable[..., Any] | None = None
    legal: Callable[..., Any] | None = None
    int_state: IntState | None = None
    workspace: int = 0
    memory: int = 0  # contiguous float32 numbers of each lane on a GPU, for a robot's solver: see `PhysicsEnv`
    stack_bytes: int = 0  # of local arrays in a thread; a GPU reserves them for all threads that it can run
    observation_shards: int = 0  # shards of `observe` and `legal`; 0: these take no `shard`
    pixels: int = 0  # side of the observed pictures, 0 for observations by `observe`: see `with_pixels`
    tally: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()  # names of the actions of a Discrete
    turns: bool = False  # the game waits for its player
    step_s: float | None = None  # duration of a step for a viewer, unless Params implies it: see `step_seconds`
    gymnasium: str | None = None
    # least and greatest value by parameter; None: unbounded
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict, compare=False)
    # by tally that ought to be 0: one sentence that a viewer shows where it is not, with what to do
    warnings: Mapping[str, str] = field(default_factory=dict, compare=False)
    name: str = field(default="", compare=False)

    def configured(self, params: Any, models: tuple[Path, ...] = ()) -> Env:
        """Copy of this environment for `params`, whose spaces are known: this one. An environment that is built on
        first use overrides it; `models` are folders of what it may have built before.
        """
        return self

    def ready(self, params: Any = None) -> Env:
        """Copy of this environment for `params` (None: defaults) whose functions can be compiled: this one. An
        environment that is built on first use overrides it.
        """
        return self

    @property
    def draws(self) -> bool:
        """Whether this environment can be drawn, that is, declares a `pixel_shader`."""
        return self.pixel_shader is not None

    @property
    def action_size(self) -> int:
        """Number of components of an action of this environment, A; 1 for a Discrete space."""
        if isinstance(self.action, Box):
            return self.action.size
        return len(self.action.n) if isinstance(self.action, MultiDiscrete) else 1

    @property
    def mask_size(self) -> int:
        """Length of the mask of legal actions that `legal` writes, over all dimensions of the action; 0 if every action
        is always legal.
        """
        if self.legal is None or isinstance(self.action, Box):
            return 0
        return self.action.n if isinstance(self.action, Discrete) else sum(self.action.n)


def with_pixels(env: Env, side: int) -> Env:
    """Copy an environment and replace its observations by pictures of side x side pixels, (side, side, 3) bytes. Raises
    OperantError without a `pixel_shader`.
    """
    if env.pixel_shader is None:
        raise OperantError(f"{env.name or 'the environment'} draws no picture: `env.pixels` needs a `pixel_shader`")
    return replace(
        env, observation=Box(3 * side * side, low=0, high=255, dtype="uint8", shape=(side, side, 3)), pixels=side
    )


def step_seconds(env: Env, params: Any) -> float | None:
    """Duration of a step in a viewer, in seconds: `params.tau` x `params.frames`, or `env.step_s`; None if unknown."""
    tau, frames = getattr(params, "tau", None), getattr(params, "frames", None)
    if tau is None and frames is None:
        return env.step_s
    seconds = float(1 / 60 if tau is None else tau) * float(1 if frames is None else frames)
    return seconds if math.isfinite(seconds) and seconds > 0.0 else None
