'''Environments on a robot's model: `physics_env` makes an `Env` from an MJCF file and functions over named fields.

The model's equations of motion are compiled like any environment (operant/physics). A complete example:

    """A ball that is to be pushed to the right."""
    from pathlib import Path
    from typing import NamedTuple
    from numpy import float32
    from operant.envs import Box, device, uniform
    from operant.envs.physics import MJCF, physics_env

    class Params(NamedTuple):
        frame_skip: int = 5                          # steps of the model in a step of the environment

    @device
    def reset(d, p, key):                            # changes the initial state of the model
        d.qpos[0] += uniform(key, 0) - float32(0.5)

    @device
    def before(d, p):                                # values that `reward` needs of the state before the step
        return d.qpos[0]

    @device
    def reward(d, past, action, p, tally):
        return (d.qpos[0] - past) / d.dt

    @device
    def observe(d, obs, p):
        obs[0], obs[1] = d.qpos[0], d.qvel[0]

    ENV = physics_env(Params, MJCF.beside(__file__, "ball.xml"), observation=Box(2), action=Box(1, -1, 1),
                      time_limit=200, reset=reset, before=before, reward=reward, observe=observe)

Rules
- `d` holds `d.qpos` (nq), `d.qvel` (nv), `d.dt` (seconds of a step of the environment) and what `reads` and `state`
  name. Its fields are views of the lane's state: an assignment to `d.qpos[0]` in `reset` moves the model.
- `reads={"cfrc_ext": "cfrc_ext", "torso": "xpos torso", "speed": "sensor speed"}`: a whole array of MuJoCo's data, or
  one row of it, by the name of its body, site, geom or sensor. After a step a field has the value that MuJoCo's data
  holds then: derived quantities lag the state by one step of the model. With `fresh=True` those of positions and
  velocities are computed again, of the new state, as dm_control does (`mj_step1`).
- `state={"target": 3}`: rows of the lane's state that only these functions write, such as the place of a target; 0 at
  the start of `reset`.
- `reset` starts from the model's `qpos0` at rest. `d`'s other fields have no value in it.
- `random_joints=True`: every joint is drawn before `reset`, as `randomize_limited_and_rotational_joints` of dm_control
  does: uniform in its range, an unlimited hinge in [-pi, pi), the rotation of a free joint as four uniform numbers in
  [0, 1), made a unit quaternion. `reset` uses draws below 4,096 then.
- `settle=200`: steps of the model without control after `reset`.
- `tries=100`: an initial state in which bodies touch is drawn again, up to 100 draws in all; the last draw is used.
- The action is the control of the model. A step of the environment takes `p.frame_skip` steps of the model.
- `control(d, action, ctrl, p)` is optional: it writes the controls `ctrl` (nu) of the model, constant during a step of
  the environment, for an action that is not the control itself, such as an offset from a pose.
- `terminated(d, p)` is optional: without it only the time limit ends an episode. `before` is optional.
- `observation` may be a function of `Params`, for parameters that change the observation's size.
- `modified(model, params)` returns a changed copy of the model (`model.replace(geom_friction=...)`), for parameters of
  the robot: friction, gear, damping, ranges, gravity. They hold for a run. What MuJoCo derives from masses and lengths
  is not derived again.
- `scales=("friction", "mass")` draws parameters of the robot per lane (domain randomisation): `d` then holds
  `d.friction_scale` and `d.mass_scale`, one number each, by which the model's are multiplied. Each is 1 at the start of
  `reset`, which draws it from a range in `Params`: `d.mass_scale[0] = p.mass_min + (p.mass_max - p.mass_min) *
  uniform(key, 100)`. It holds for the episode, and `observe` may show it. There are `gravity`; `damping` of all joints;
  `gear` of all actuators; sliding `friction` of all contacts; `range`, both ends of the limits of all joints; `mass`,
  mass and inertia of all bodies; `armature` of all joints. What MuJoCo derives from masses and armature follows.
  `random_joints` draws from the model's own ranges.
- `tally`: as in operant/envs/base.py. Two are added: `lost_contacts`, contacts for which a lane had no room, and
  `bad_states`, states that were not finite or too large, after which the model starts again as in MuJoCo.
- `view`: camera of the pictures, see `View`.
- `MJCF(..., edit=function)`: a function that changes the `mujoco.MjSpec` that is read, before it is compiled.

The model is read on first use (`PhysicsEnv.ready`), so that a file is listed and imported without `mujoco`. A run keeps
the compiled model in its folder and needs `mujoco` no more.
'''

from __future__ import annotations

import collections
import functools
import importlib.util
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import float32, uint32

from operant.compute.device import device
from operant.compute.rng import uniform, uniform4
from operant.envs.base import Box, Env, with_pixels
from operant.envs.figure import READS, View, figure
from operant.errors import BadFileError, MachineError, ModelError, NotFoundError
from operant.text import safe

if TYPE_CHECKING:
    from operant.physics import Engine, Model

__all__ = [
    "MJCF",
    "PhysicsEnv",
    "View",
    "add_normal",
    "add_uniform",
    "gymnasium_model",
    "normal2",
    "physics_env",
    "sum_of_squares",
    "write",
    "write_clipped",
]

MODELS_VARIABLE = "OPERANT_MODELS"
"""Environment variable: folder of compiled models, named like their MJCF files, for a machine without `mujoco` 4."""

COUNTERS = ("lost_contacts", "bad_states")
"""Tallies of every environment on a model, after its own."""

WARNINGS = {
    "lost_contacts": "contacts beyond the lane's room were left out, so that bodies may sink into each other: let "
    "fewer geoms collide (contype, conaffinity, <exclude>); where it is rare and only in falls, go on",
    "bad_states": "a state was not finite or above 1e10, and its lane went on from the model's initial pose, as in "
    "MuJoCo: take a smaller timestep, more damping or armature, or narrower ranges of parameters",
}
"""Sentences of advice for `COUNTERS`."""

ALWAYS = ("qfrc_constraint",)
"""Arrays that the scratch of a step holds without being asked."""

JOINT_DRAWS = 4096
"""First random number for the positions of joints."""

_TWO_PI = float32(2.0 * math.pi)
_TINY = float32(2.0**-25)  # least argument of a logarithm


@device
def normal2(key, draw):
    """Return two independent standard normal float32: number `draw` (below 65,536) of the key of a lane and step
    (Box & Muller 1958).
    """
    u0, u1, _, _ = uniform4(key, draw)
    radius = math.sqrt(float32(-2.0) * math.log(u0 + _TINY))
    return radius * math.cos(_TWO_PI * u1), radius * math.sin(_TWO_PI * u1)


@device
def add_uniform(values, scale, key, draw):
    """Add an independent uniform number in [-scale, scale) to each entry of an array, in place: numbers `draw` and on
    of the key.
    """
    for k in range(len(values)):
        values[k] += scale * (float32(2.0) * uniform(key, draw + k) - float32(1.0))


@device
def add_normal(values, scale, key, draw):
    """Add an independent normal number of standard deviation `scale` to each entry of an array, in place: numbers
    `draw` and on of the key.
    """
    for k in range(len(values)):
        values[k] += scale * normal2(key, draw + k)[0]


@device
def sum_of_squares(values):
    """Sum of the squares of all numbers of an array, one number."""
    total = float32(0.0)
    for k in range(len(values)):
        total += values[k] * values[k]
    return total


@device
def write(out, at, values, skip):
    """Write an array without its first `skip` numbers to `out` from place `at`. Returns the next place."""
    for k in range(len(values) - skip):
        out[at + k] = values[skip + k]
    return at + len(values) - skip


@device
def write_clipped(out, at, values, skip, low, high):
    """Write an array without its first `skip` numbers, clipped to [low, high], to `out` from place `at`. Returns the
    next place.
    """
    for k in range(len(values) - skip):
        out[at + k] = min(max(values[skip + k], low), high)
    return at + len(values) - skip


EXTRAS = {"gymnasium": "mujoco", "dm_control": "dmc"}
"""Extra that installs a package of models."""


class MJCF(NamedTuple):
    """Location of a model's MJCF file: inside an installed package, or a path."""

    package: str  # "" for a path
    path: str
    label: str = ""  # name of the compiled model; by default the file's
    edit: Callable[[Any], None] | None = None  # changes the `mujoco.MjSpec` of the file

    @classmethod
    def beside(cls, file: str, name: str) -> MJCF:
        """Location of the file `name` in the folder of `file`, an environment's `__file__`."""
        return cls("", str(Path(file).with_name(name)))

    @property
    def name(self) -> str:
        """File name of the compiled model in the folder of a run."""
        return f"{self.label or Path(self.path).stem}.model"

    @property
    def extra(self) -> str:
        """Extra that installs what compiles the model."""
        return EXTRAS.get(self.package, "mujoco")

    def file(self) -> Path:
        """Path of the MJCF file. Raises MachineError if its package is not installed, NotFoundError without the
        file.
        """
        if self.package:
            found = importlib.util.find_spec(self.package)
            if found is None or not found.submodule_search_locations:
                raise MachineError(
                    f"{Path(self.path).name} is part of the package {self.package}, which is not installed: "
                    f"pip install 'operant[{self.extra}]'"
                )
            path = Path(next(iter(found.submodule_search_locations))) / self.path
        else:
            path = Path(self.path)
        if not path.is_file():
            raise NotFoundError(f"there is no model file {str(path)!r}")
        return path


def gymnasium_model(name: str) -> MJCF:
    """Location of one of Gymnasium's models, such as half_cheetah.xml."""
    return MJCF("gymnasium", f"envs/mujoco/assets/{name}")


class _Rules(NamedTuple):
    """Author's device functions over the named fields `d`."""

    reset: Any  # (d, p, key)
    before: Any  # (d, p) -> any value
    reward: Any  # (d, past, action, p, tally) -> reward
    terminated: Any  # (d, p) -> flag
    observe: Any  # (d, obs, p)
    control: Any  # (d, action, ctrl, p)


_ARGUMENTS = _Rules(
    ("d", "p", "key"),
    ("d", "p"),
    ("d", "past", "action", "p", "tally"),
    ("d", "p"),
    ("d", "obs", "p"),
    ("d", "action", "ctrl", "p"),
)


class _Start(NamedTuple):
    """Treatment of the initial state around the author's `reset`."""

    random_joints: bool = False
    settle: int = 0  # steps of the model
    tries: int = 1


def _unbuilt(*arguments: Any) -> None:
    """Placeholder for the functions of an environment whose model is not read yet, never called."""


@dataclass(frozen=True)
class PhysicsEnv(Env):
    """Declaration of an environment on a robot's model. `ready` reads the model and makes the environment's
    functions.
    """

    source: MJCF | None = None  # set by `physics_env`, like all that follows
    rules: Any = None  # `_Rules`
    reads: tuple[tuple[str, str], ...] = ()
    state: tuple[tuple[str, int], ...] = ()
    start: _Start | None = None
    fresh: bool = False
    scales: tuple[str, ...] = ()
    observation_of: Callable[[Any], Box] | None = None
    modified: Callable[[Any, Any], Any] | None = None
    view: View | None = None
    models: tuple[Path, ...] = field(default=(), compare=False)  # folders of compiled models
    model: Any = field(default=None, compare=False)  # `operant.physics.Model` of the MJCF file, set by `ready`

    def configured(self, params: Any, models: tuple[Path, ...] = ()) -> PhysicsEnv:
        """Copy of this environment with the observation's size for `params`, which will look for a compiled model in
        the folders `models`.
        """
        observation = self.observation if self.observation_of is None else self.observation_of(params)
        return replace(self, observation=observation, models=models)

    def ready(self, params: Any = None) -> Env:
        """Copy of this environment whose functions simulate its model with `params` (None: defaults); itself if it is
        ready already. Raises MachineError without `mujoco`, ModelError for a model that is not covered or wrong
        functions.

        The compiled model is read from a folder of `models` if it is there. Otherwise the MJCF file is compiled, or
        the compiled model read from the folder that `OPERANT_MODELS` names where `mujoco` or the file is missing.
        """
        if self.model is not None or self.source is None:
            return self
        params = self.Params() if params is None else params
        for name, function, arguments in zip(_Rules._fields, self.rules, _ARGUMENTS, strict=True):
            given = list(inspect.signature(getattr(function, "py_func", function)).parameters)
            if len(given) != len(arguments) or not hasattr(function, "py_func"):
                raise ModelError(
                    f"{self.name or 'the environment'}: `{name}` must be a device function {name}"
                    f"({', '.join(arguments)})"
                )
        if not hasattr(params, "frame_skip"):
            raise ModelError(
                f"{self.name or 'the environment'}: Params needs frame_skip, the steps of the model in a step of the "
                "environment, such as frame_skip: int = 5"
            )
        model = _model(self.source, self.models)
        numbers = self.action.size if isinstance(self.action, Box) else 0
        if self.rules.control is _action and model.nu not in (0, numbers):
            raise ModelError(
                f"{self.name or 'the environment'}: the model has {model.nu} controls and `action` has {numbers} "
                f"numbers: action=Box({model.nu}, low, high), or write the controls in `control(d, action, ctrl, p)`"
            )
        changed = model if self.modified is None else self.modified(model, params)
        observation = self.observation if self.observation_of is None else self.observation_of(params)
        plain = replace(self, name="", pixels=0, observation=observation, models=())
        built = _built(plain, changed)
        built = replace(
            built,
            name=self.name,
            ranges=self.ranges,
            warnings=self.warnings,
            model=model,
            step_s=params.frame_skip * float(changed.opt_timestep),
        )
        return with_pixels(built, self.pixels) if self.pixels else built


def physics_env(
    Params: type,
    source: MJCF,
    *,
    observation: Box | Callable[[Any], Box],
    action: Box,
    time_limit: int | None,
    reset: Any,
    reward: Any,
    observe: Any,
    before: Any = None,
    terminated: Any = None,
    control: Any = None,
    reads: Mapping[str, str] | None = None,
    state: Mapping[str, int] | None = None,
    fresh: bool = False,
    scales: tuple[str, ...] = (),
    random_joints: bool = False,
    settle: int = 0,
    tries: int = 1,
    modified: Callable[[Any, Any], Any] | None = None,
    view: View | None = None,
    tally: tuple[str, ...] = (),
    ranges: Mapping[str, tuple[float | None, float | None]] | None = None,
    step_s: float | None = None,
    gymnasium: str | None = None,
) -> PhysicsEnv:
    """Declare an environment on the model of an MJCF file; see the module's docstring for each argument."""
    return PhysicsEnv(
        Params=Params,
        fields=1,
        observation=observation if isinstance(observation, Box) else observation(Params()),
        action=action,
        time_limit=time_limit,
        reset=_unbuilt,
        step=_unbuilt,
        observe=_unbuilt,
        pixel_shader=_unbuilt,
        tally=(*tally, *COUNTERS),
        step_s=step_s,
        gymnasium=gymnasium,
        ranges={} if ranges is None else ranges,
        warnings=WARNINGS,
        source=source,
        rules=_Rules(reset, before or _nothing_before, reward, terminated or _never, observe, control or _action),
        reads=tuple((reads or {}).items()),
        state=tuple((state or {}).items()),
        start=_Start(random_joints, settle, tries),
        fresh=fresh,
        scales=tuple(scales),
        observation_of=None if isinstance(observation, Box) else observation,
        modified=modified,
        view=view or View(),
    )


@device
def _nothing_before(d, p):
    return float32(0.0)


@device
def _never(d, p):
    return False


@device
def _action(d, action, ctrl, p):
    for k in range(len(ctrl)):
        ctrl[k] = action[k]


# THE MODEL


def _model(source: MJCF, models: tuple[Path, ...]) -> Model:
    """Model of an MJCF file: compiled earlier, if one of the folders holds it, else by `mujoco`, else the one in the
    folder that `OPERANT_MODELS` names.
    """
    for folder in models:
        if (path := Path(folder, source.name)).is_file():
            return _loaded(path)
    try:
        if importlib.util.find_spec("mujoco") is None:
            raise MachineError(f"{Path(source.path).name} is compiled by mujoco: pip install 'operant[{source.extra}]'")
        path = source.file()
        return _compiled(str(path), path.stat().st_mtime_ns, source.edit)
    except MachineError:
        spare = os.environ.get(MODELS_VARIABLE)
        if spare and (path := Path(spare, source.name)).is_file():
            return _loaded(path)
        raise


def _loaded(path: Path) -> Model:
    """Model that was compiled earlier. Raises BadFileError if its file is damaged."""
    from operant.physics import Model

    try:
        return Model.load(path.read_bytes())
    except BadFileError as error:
        raise BadFileError(f"{safe(str(path), 400)}: {error}. Delete it: mujoco makes it again") from None


@functools.cache
def _compiled(path: str, modified_ns: int, edit: Callable[[Any], None] | None) -> Model:
    """Model of an MJCF file, compiled once for each version of the file."""
    from operant.physics import Model

    return Model.from_mjcf(path, edit)


# FUNCTIONS OF THE ENVIRONMENT


class _Read(NamedTuple):
    """Named field of `d` that is copied from the scratch of a step into the state."""

    row: int  # first row of the state
    array: str  # "" for a row of the task's own
    first: int  # first number of the array
    size: int


@functools.cache
def _built(env: PhysicsEnv, model: Model) -> PhysicsEnv:
    """Make the environment's functions. Cached, so that equal environments share one compiled kernel."""
    from operant.physics import build
    from operant.physics.local import local_array

    reads = _reads(env, model)
    kept = dict.fromkeys(array for array, _, _ in reads.values() if array not in ALWAYS)
    engine = build(model, float32, reads=tuple(kept), scales=env.scales, apart=True)
    fields, placed = engine.fields, {f"{name}_scale": _Read(engine.scale(name), "", 0, 1) for name in env.scales}
    for name, (array, first, count) in reads.items():
        placed[name], fields = _Read(fields, array, first, count), fields + count
    own = fields
    for name, count in env.state:
        placed[name], fields = _Read(fields, "", 0, count), fields + count

    reset_, before, reward, terminated, observe_, write_control = env.rules
    clear, forward, simulate = engine.reset, engine.forward, engine.steps
    update = engine.refresh if env.fresh and env.reads else _as_it_is
    view = _view(model, engine, placed)
    at = {array: engine.at(array) for array in kept} | {array: engine.layout.at[array] for array in ALWAYS}
    copied = [read for read in placed.values() if read.array]
    keep = _chain([_copy(at[read.array] + read.first, read.row, read.size) for read in copied])
    # MuJoCo computes cfrc_ext after a step, not in mj_forward: it is 0 at the start of an episode.
    clear_forces = _chain([_zero(read.row, read.size) for read in placed.values() if read.array == "cfrc_ext"])
    direct = write_control is _action
    controls, lost, bad, counters = max(model.nu, 1), engine.LOST, engine.RESETS, len(env.tally) - len(COUNTERS)
    random_joints, settle, tries = env.start or _Start()
    draw_joints = _random_joints(model, engine.QPOS) if random_joints else _no_joints
    settled = simulate if settle else _unsettled
    redrawn = tries > 1

    @device
    def begin(s, w, p, key):
        control = local_array(controls, float32)
        for k in range(controls):
            control[k] = float32(0.0)
        for k in range(tries):
            # Random numbers of another try: another purpose.
            now = (key[0], key[1], key[2], key[3], key[4], uint32(key[5] | uint32(k << 8))) if redrawn else key
            clear(s)
            for row in range(own, fields):
                s[row] = float32(0.0)
            draw_joints(s, now)
            reset_(view(s, p), p, now)
            settled(s, control, w, settle)
            if forward(s, control, w) == 0:
                break
        keep(s, w)
        clear_forces(s, w)

    @device
    def act(s, w, action, p, key, tally):
        d = view(s, p)
        past, lost_before, bad_before = before(d, p), s[lost], s[bad]
        if direct:
            simulate(s, action, w, p.frame_skip)
        else:
            control = local_array(controls, float32)
            write_control(d, action, control, p)
            simulate(s, control, w, p.frame_skip)
        update(w)
        keep(s, w)
        tally[counters] += s[lost] - lost_before
        tally[counters + 1] += s[bad] - bad_before
        return reward(d, past, action, p, tally), terminated(d, p)

    reset, step = _with_memory(begin, act, engine) if engine.memory_size else _without_memory(begin, act, engine)

    @device
    def observe(s, obs, p):
        observe_(view(s, p), obs, p)

    # Pictures: kinematics of the state, by an engine that keeps the geoms' poses.
    posed = build(model, float32, reads=READS)
    rows_of = {name: read.row for name, read in placed.items()}
    shapes = figure(model, env.view or View(), {name: posed.at(name) for name in READS}, rows_of)
    posed_work, place, arrange_, rows = posed.work, posed.forward, shapes.arrange, posed.fields

    @device
    def arrange(s, p, picture):
        w, control, copy = posed_work(), local_array(controls, float32), local_array(rows, float32)
        for k in range(controls):
            control[k] = float32(0.0)
        for k in range(rows):
            copy[k] = s[k]
        place(copy, control, w)
        arrange_(picture, w, s)

    return replace(
        env,
        fields=fields,
        reset=reset,
        step=step,
        observe=observe,
        pixel_shader=shapes.shader,
        stack_bytes=engine.work_bytes,
        memory=engine.memory_size,
        picture=shapes.picture,
        arrange=arrange,
    )


def _without_memory(begin: Any, act: Any, engine: Engine) -> tuple[Any, Any]:
    """Make `reset` and `step` of an environment from functions that take the scratch of a step."""
    work = engine.work

    @device
    def reset(s, p, key):
        begin(s, work(), p, key)

    @device
    def step(s, action, p, key, tally):
        return act(s, work(), action, p, key, tally)

    return reset, step


def _with_memory(begin: Any, act: Any, engine: Engine) -> tuple[Any, Any]:
    """Make `reset` and `step` of an environment whose solver has its rows in `memory`."""
    work = engine.work

    @device
    def reset(s, memory, p, key):
        begin(s, work(memory), p, key)

    @device
    def step(s, memory, action, p, key, tally):
        return act(s, work(memory), action, p, key, tally)

    return reset, step


def _reads(env: PhysicsEnv, model: Model) -> dict[str, tuple[str, int, int]]:
    """By name: source array, first number in it and count of numbers of each field that `env.reads` names. Raises
    ModelError for an unknown name.
    """
    from operant.physics.layout import READS as KEPT

    arrays = {**KEPT, **{array: ("nv", 1) for array in ALWAYS}}
    kinds, found = {"nbody": "body", "ngeom": "geom", "nsite": "site"}, {}
    for name, text in env.reads:
        array, _, element = text.partition(" ")
        if array == "sensor" and element:
            number = model.id("sensor", element)
            found[name] = (text, 0, int(model.sensor_dim[number]))
            continue
        if array not in arrays or (element and arrays[array][0] not in kinds):
            raise ModelError(
                f"reads of {name!r} is {text!r}: it must be an array ({', '.join(arrays)}), one of bodies, geoms or "
                "sites with the name of one of them, or `sensor` with the name of a sensor"
            )
        counted, width = arrays[array]
        found[name] = (
            (array, width * model.id(kinds[counted], element), width)
            if element
            else (array, 0, width * getattr(model, counted))
        )
    return found


def _view(model: Model, engine: Any, placed: Mapping[str, _Read]) -> Any:
    """Make the function `(s, p)` that returns the named fields `d` of a lane's state."""
    make_class: Any = collections.namedtuple  # mypy wants literal names
    Data = make_class("Data", ["qpos", "qvel", *placed, "dt"])
    values: Any = _with_rows(_with_rows(_no_rows, engine.QPOS, model.nq), engine.QVEL, model.nv)
    for read in placed.values():
        values = _with_rows(values, read.row, read.size)
    timestep = float32(model.opt_timestep)

    @device
    def view(s, p):
        return Data(*values(s), timestep * float32(p.frame_skip))

    return view


@device
def _as_it_is(w):
    pass


@device
def _no_joints(s, key):
    pass


@device
def _unsettled(s, control, w, n):
    pass


def _random_joints(model: Model, first: int) -> Any:
    """Make the function `(s, key)` that draws the position of every joint (see the module's docstring): numbers
    `JOINT_DRAWS` and on of the key.
    """
    from operant.physics import constants as c
    from operant.physics.tables import table

    places, ranges, turns = [], [], []
    for j in range(model.njnt):
        place, kind = first + int(model.jnt_qposadr[j]), model.jnt_type[j]
        if kind == c.BALL:
            raise ModelError("random_joints does not draw ball joints: draw them in `reset`")
        if kind == c.FREE:
            turns.append(place + 3)
        elif model.jnt_limited[j] or kind == c.HINGE:
            low, high = model.jnt_range[j] if model.jnt_limited[j] else (-math.pi, math.pi)
            places.append(place)
            ranges.append((low, high - low))
    place_of, range_of = table(np.array(places or [0], np.int32)), table(np.array(ranges or [(0, 0)], np.float32))
    turn_of, joints, quaternions = table(np.array(turns or [0], np.int32)), len(places), len(turns)

    @device
    def draw(s, key):
        for k in range(joints):
            s[place_of(k)] = range_of(2 * k) + range_of(2 * k + 1) * uniform(key, JOINT_DRAWS + k)
        for k in range(quaternions):
            a, b, c, d = uniform4(key, JOINT_DRAWS + joints + k)
            scale, at = float32(1.0) / math.sqrt(a * a + b * b + c * c + d * d), turn_of(k)
            s[at], s[at + 1], s[at + 2], s[at + 3] = a * scale, b * scale, c * scale, d * scale

    return draw


@device
def _no_rows(s):
    return ()


def _with_rows(before: Any, first: int, count: int) -> Any:
    last = first + count

    @device
    def values(s):
        return (*before(s), s[first:last])

    return values


def _copy(at: int, row: int, count: int) -> Any:
    """Make the function `(s, w)` that copies the `count` numbers from place `at` of the scratch w into the rows from
    `row` on of the state s.
    """

    @device
    def copy(s, w):
        for k in range(count):
            s[row + k] = w[at + k]

    return copy


def _zero(row: int, count: int) -> Any:
    """Make the function `(s, w)` that sets `count` rows of the state s, from `row` on, to 0; w is not used."""

    @device
    def zero(s, w):
        for k in range(count):
            s[row + k] = float32(0.0)

    return zero


@device
def _nothing(s, w):
    pass


def _chain(functions: list[Any]) -> Any:
    """Make the function `(s, w)` that calls all functions in order."""
    chained: Any = _nothing
    for function in functions:
        chained = _pair(chained, function)
    return chained


def _pair(first: Any, second: Any) -> Any:
    @device
    def both(s, w):
        first(s, w)
        second(s, w)

    return both
