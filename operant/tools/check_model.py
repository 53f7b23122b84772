"""Checks of a robot's model (`operant check FILE.xml`): contents, coverage, and everything that `check` examines, with
random actions as controls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy import float32, float64

from operant.envs import Box, device
from operant.envs.physics import MJCF, PhysicsEnv, physics_env, write
from operant.errors import ModelError
from operant.physics import Model, build, sensors
from operant.physics import constants as c
from operant.tools.check import check as check_environment
from operant.worlds.quick_check import Finding

LANES, STEPS, TIME_LIMIT = 64, 200, 500


class Params(NamedTuple):
    """Parameters of the task that a model is checked with."""

    frame_skip: int = 1


@device
def _reset(d, p, key):
    pass


@device
def _reward(d, past, action, p, tally):
    return float32(0.0)


@device
def _observe(d, obs, p):
    write(obs, write(obs, 0, d.qpos, 0), d.qvel, 0)


def check(path: Path, report: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """Run every check of a model in order and yield each finding. `report` is called with the name of the next check.
    Raises MachineError without `mujoco` 4.
    """
    report("covered")
    try:
        model = Model.from_mjcf(path)
        build(model, float32)
    except ModelError as error:
        yield Finding("covered", False, str(error))
        return
    yield Finding("model", True, _contents(model))
    if not model.nv:
        yield Finding("moves", False, "the model has no joint: nothing moves")
        return
    unread = [model.names("sensor")[k] or str(k) for k in range(model.nsensor) if not sensors.is_covered(model, k)]
    if unread:
        left_out = f"a task cannot read the sensor{'s' * (len(unread) > 1)} {', '.join(unread)}"
        yield Finding("covered", True, f"every element that moves the model; {left_out}", warning=True)
    else:
        yield Finding("covered", True, "every element")
    env = _task(model, path)
    report("float32 = float64")
    yield _precision(model)
    yield from check_environment(env, report=report)


def _task(model: Model, path: Path) -> PhysicsEnv:
    """Environment that observes positions and velocities of a model, and takes its controls as actions."""
    limited = model.actuator_ctrllimited.astype(bool)
    low, high = (np.where(limited, model.actuator_ctrlrange[:, k], bound) for k, bound in ((0, -1.0), (1, 1.0)))
    action = Box(model.nu, tuple(map(float, low)), tuple(map(float, high))) if model.nu else Box(1, -1.0, 1.0)
    return physics_env(
        Params,
        MJCF("", str(path.resolve())),
        observation=Box(model.nq + model.nv),
        action=action,
        time_limit=TIME_LIMIT,
        reset=_reset,
        reward=_reward,
        observe=_observe,
    )


def _contents(model: Model) -> str:
    """Sentence about a model: degrees of freedom, bodies, geoms, integrator and solver."""
    geoms = Counter(c.GEOM_NAMES[kind] for kind in model.geom_type)
    parts = [f"nq {model.nq}, nv {model.nv}, nu {model.nu}", f"{model.nbody - 1} bodies"]
    parts += [f"{count} {name}{'s' * (count > 1)}".replace("boxs", "boxes") for name, count in geoms.items()]
    integrator = {c.EULER: "Euler", c.RK4: "RK4"}.get(model.opt_integrator, "implicitfast")
    solver = {c.PGS: "PGS", c.NEWTON: "Newton"}.get(model.opt_solver, "CG")
    return f"{', '.join(parts)}; {integrator}, {solver}, time step {model.opt_timestep:g} s"


def _precision(model: Model) -> Finding:
    """Compare one step in float32 with one in float64, from the states of a float64 rollout with random controls."""
    name = "float32 = float64"
    generator, errors = np.random.default_rng(1), []
    engines: dict[Any, Any] = {real: build(model, real) for real in (float32, float64)}
    step = {real: _stepper(engine) for real, engine in engines.items()}
    states = np.zeros((engines[float64].fields, LANES))
    states[: model.nq] = model.qpos0[:, None]
    span = np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, [-1.0, 1.0])
    for _ in range(STEPS):
        controls = generator.uniform(span[:, :1], span[:, 1:], (model.nu, LANES)) if model.nu else np.zeros((1, LANES))
        single = states.astype(float32)
        step[float32](single, controls.astype(float32))
        step[float64](states, controls)
        moving = slice(0, model.nq + model.nv)
        errors.append(np.abs(single[moving] - states[moving]) / (1.0 + np.abs(states[moving])))
    found = np.max(errors, axis=1).ravel()
    sound = bool(np.isfinite(found).all() and np.median(found) <= 1e-4)
    errors_found = f"relative error {np.median(found):.1e} (median), {found.max():.1e} (largest)"
    return Finding(name, sound, f"one step from {found.size:,} states: {errors_found}")


def _stepper(engine: Any) -> Any:
    """Compiled function that steps each column of states (F, N) with controls (nu, N)."""
    work, steps = engine.work, engine.steps

    @njit
    def run(states: Any, controls: Any) -> None:
        for lane in range(states.shape[1]):
            steps(states[:, lane], controls[:, lane], work(), 1)

    return run
