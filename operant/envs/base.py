'''The environment contract: `Env`, its spaces, and what each function of an environment takes. Knows nothing of lanes,
devices or training.

An environment is one file that exports `ENV`. This is a complete one:

    """A point on a line that a push moves; it pays to stand at zero."""
    import math
    from typing import NamedTuple
    from numpy import float32
    from operant.envs import Box, Discrete, Env, device, uniform

    X, X_DOT, FIELDS = range(3)                      # rows of the float32 state (F, N)

    class Params(NamedTuple):
        push: float = 0.1                            # m/s^2

    @device
    def reset(s, p, key):                            # writes the lane's F numbers
        s[X] = uniform(key, 0) - float32(0.5)
        s[X_DOT] = float32(0.0)

    @device
    def step(s, action, p, key, tally):              # changes s; returns reward, terminated
        s[X_DOT] += p.push * float32(action - 1)
        s[X] += s[X_DOT]
        return -abs(s[X]), abs(s[X]) > float32(2.0)

    @device
    def observe(s, obs, p):                          # writes O numbers
        obs[0] = s[X]
        obs[1] = s[X_DOT]

    ENV = Env(Params, FIELDS, observation=Box(2), action=Discrete(3), time_limit=100, reset=reset, step=step,
    observe=observe)

The rules
- `s` is the lane's column of the field-major state (F, N). `p` is `Params` with its floats as float32 and its ints as
  int32.
- Every literal is written `float32(...)`: a bare 0.5 is a float64 and drags the arithmetic with it, and so does float32
  + int (`operant check` refuses it).
- Read what you need of `s` into names first and write afterwards: a compiler cannot know that two arrays lie apart, and
  a GPU would wait for each in turn.
- `action` is an integer for `Discrete`; for `MultiDiscrete` and `Box` a column of A integers or floats. A `Box` action
  is clipped to its bounds before `step`
  sees it.
- `key` names this lane's random numbers for this step: `uniform(key, draw)` in [0, 1), the same on every device (also
  `uniform4`, `integer`;
  see `operant.compute.rng`).
- `tally[k] += x` sums a metric of your own over an episode: `Env(..., tally=("score",))`. Add unconditionally, 0 where
  there is nothing to add: a branch
  around a sum makes a CPU step lanes one by one.
- Time limits, automatic resets, episode sums, seeding, layout and the device belong to `operant.worlds.device_world`.
  `step` never resets and never counts.

What else it carries, without a change of shape
- **Grids and boards**: `Env(..., int_state=IntState(n, "int8"), workspace=m)`. Each function then takes the lane's
  columns `ints` (n of that type) and
  `workspace` (m int32) right after `s`: `step(s, ints, workspace, action, p, key, tally)`; a game calls `ints` what it
  is, a board or cells. There is no local
  array that both backends know; the workspace is that, and what it holds is lost between calls.
- **Pixels**: `pixel_shader(s, p, x, y) -> (r, g, b)`, each in [0, 1], is the colour of the point (x, y) in [0, 1)^2, x
  to the right, y down. It is called
  once per pixel of a picture: for a viewer, or for an agent that learns from pictures (`env.pixels = 64`). With int
  state it is
  `pixel_shader(s, ints, p, x, y)`: it has no workspace, since a lane's pixels are shaded at the same time, and changes
  nothing.
- **Byte observations**: `observation=Box(n, dtype="uint8")`; `observe` then writes integers, and nothing widens them
  before the network reads them. Bytes
  that are categorical features with k categories (a board's pieces): `Box(n, dtype="uint8", high=k - 1, categories=k)`,
  read one-hot. Where only
  some are (the row and the column of a player): `categories=(31, 28, 0, ...)`, one for each byte, 0 for a numeric
  feature.
- **Illegal actions**: `Env(..., legal=legal)` with `legal(s, mask, p)` (with int state `legal(s, ints, workspace, mask,
  p)`), which writes 1 for each
  action that may be taken now and 0 for each other: n bytes for `Discrete`, one block after the other for
  `MultiDiscrete`, at least one 1 in each block. The
  policy never takes a 0. A person, or a policy that looks at no mask, still may: `step` has to survive that.
- **Ranges of parameters**: `Env(..., ranges={"gravity": (0.0, None), "steps": (1, 10_000)})`: least and greatest value,
  both allowed, None for no bound.
  Another value is refused with a sentence, before anything runs. Name what `step` could not bear: what divides by zero,
  counts beyond the cells, leads
  bytes out of their bounds, or turns a loop so often that a GPU hangs. Values are finite and fit into int32 and float32
  in any case.
- **How it is played**: `actions=("stay", "left", "right")` names the actions of a `Discrete`, in the order of their
  numbers, "left+jump" two at once: a
  player finds them on the keys, and a viewer shows them. `turns=True` is a game that waits for its player. `step_s` is
  how long a step lasts for a
  viewer, where `Params` does not say it: by `tau`, s, times `frames`, if it has such (frames alone are sixtieths of a
  second).
- **Observations written by several threads**: `Env(..., observation_shards=k)` where they are many numbers. `observe(s,
  obs, p, shard)` (with int state
  `observe(s, ints, obs, p, shard)`) is then called for each shard 0 ... k - 1 and writes that shard of the rows;
  together they write all rows, and none
  reads what another wrote, in whatever order. As with `pixel_shader`, there is no workspace, and nothing is changed but
  `obs`. `legal` likewise is
  `legal(s, mask, p, shard)`, with int state `legal(s, ints, mask, p, shard)`. `shard` has no sign (uint32). Ten to
  forty rows make a good shard.
- **Several frames a step, or a scripted opponent**: a loop, or the opponent's move, inside `step`.
- **Recurrent policies and several GPUs** ask nothing of an environment: lanes are numbered globally, so a lane's random
  numbers do not depend on which device
  runs it.
- **Parameters that differ by lane** (later): `p` is already handed to every call, and nothing may assume that two lanes
  share it.
'''

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from operant.errors import OperantError
from operant.old_names import KEYWORDS


class _Declared:
    """What refuses the field names of an earlier version. (A file that has them is translated:
    operant/old_names.py.)
    """

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        """Raises OperantError that names the new one."""
        for old in KEYWORDS.keys() & fields:
            raise OperantError(
                f"{cls.__name__}({old}=...) is called {KEYWORDS[old]} now: write {cls.__name__}({KEYWORDS[old]}=...)"
            )
        return super().__new__(cls)


@dataclass(frozen=True)
class Box(_Declared):
    """`size` numbers of one type, each within its bounds (a number for all, or one for each)."""

    size: int
    low: float | tuple[float, ...] = -math.inf
    high: float | tuple[float, ...] = math.inf
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    categories: int | tuple[int, ...] = (
        0  # of uint8 features (a number for all, or one for each): read one-hot; 0: a numeric feature
    )

    def __post_init__(self) -> None:
        # An author may write lists for tuples, but they cannot be a key of the cache of kernels.
        for name in ("low", "high", "shape", "categories"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.categories, tuple) and len(self.categories) == self.size and len(set(self.categories)) == 1:
            object.__setattr__(self, "categories", self.categories[0])

    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower and upper bound of each number, (size,) and (size,)."""
        low = self.low if isinstance(self.low, tuple) else (self.low,) * self.size
        high = self.high if isinstance(self.high, tuple) else (self.high,) * self.size
        return low, high

    def category_counts(self) -> tuple[int, ...]:
        """How many categories each number has; 0 for a numeric feature, (size,)."""
        return self.categories if isinstance(self.categories, tuple) else (self.categories,) * self.size

    @property
    def columns(self) -> int:
        """The numbers that a fully connected layer reads of it: one for a numeric feature, k for a categorical one with
        k categories.
        """
        return sum(max(k, 1) for k in self.category_counts())


@dataclass(frozen=True)
class Discrete:
    """One of `n` actions."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """One of `n[k]` actions for each k."""

    n: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", tuple(self.n))


@dataclass(frozen=True)
class IntState:
    """`n` integers a lane, beside its float32 state: a board, a grid."""

    n: int
    dtype: str = "int8"


@dataclass(frozen=True)
class Env(_Declared):
    """The rules of one kind of environment: see the module's docstring."""

    Params: type
    fields: int
    observation: Box
    action: Discrete | MultiDiscrete | Box
    time_limit: int | None
    reset: Callable[..., Any]
    step: Callable[..., Any]
    observe: Callable[..., Any]
    pixel_shader: Callable[..., Any] | None = None
    legal: Callable[..., Any] | None = None
    int_state: IntState | None = None
    workspace: int = 0
    observation_shards: int = (
        0  # how many threads may share the work of `observe` and `legal`; 0: these take no `shard`
    )
    pixels: int = 0  # the side of the pictures that are observed in place of what `observe` writes: see `with_pixels`
    tally: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()  # what each action of a Discrete is called
    turns: bool = False  # whether it waits for its player
    step_s: float | None = None  # how long a step lasts for a viewer, where Params does not say it: see `step_seconds`
    gymnasium: str | None = None
    # least and greatest value by parameter, None: any
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict, compare=False)
    name: str = field(default="", compare=False)

    @property
    def draws(self) -> bool:
        """Whether there are pictures of it."""
        return self.pixel_shader is not None

    @property
    def action_size(self) -> int:
        """How many numbers an action is: A."""
        if isinstance(self.action, Box):
            return self.action.size
        return len(self.action.n) if isinstance(self.action, MultiDiscrete) else 1

    @property
    def mask_size(self) -> int:
        """How many actions `legal` judges, over all choices; 0 where every action is legal."""
        if self.legal is None or isinstance(self.action, Box):
            return 0
        return self.action.n if isinstance(self.action, Discrete) else sum(self.action.n)


def with_pixels(env: Env, side: int) -> Env:
    """The same rules, observed as pictures of `side` x `side` pixels, (side, side, 3) bytes. Raises OperantError for an
    environment that draws no picture.
    """
    if env.pixel_shader is None:
        raise OperantError(
            f"{env.name or 'the environment'} draws no picture that could be observed: it has no `pixel_shader`"
        )
    return replace(
        env, observation=Box(3 * side * side, low=0, high=255, dtype="uint8", shape=(side, side, 3)), pixels=side
    )


def step_seconds(env: Env, params: Any) -> float | None:
    """How long a step lasts for a viewer, s: `tau` x `frames` of the parameters, where there is either, else what the
    environment says.

    None where neither says.
    """
    tau, frames = getattr(params, "tau", None), getattr(params, "frames", None)
    if tau is None and frames is None:
        return env.step_s
    seconds = float(1 / 60 if tau is None else tau) * float(1 if frames is None else frames)
    return seconds if math.isfinite(seconds) and seconds > 0.0 else None
