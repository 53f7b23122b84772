"""dm_control's suite: parity of ours with dm_control's own step, from its states, over random episodes; its rewards,
spaces and starts.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from numpy import float32
from toys import PHYSICS, by_name

from operant import envs
from operant.envs.declaration import declaration_problems
from operant.envs.language import language_problems, prints
from operant.envs.tolerance import SIGMOIDS, tolerance
from operant.errors import MachineError, OperantError
from operant.worlds.device_world import DeviceWorld

mujoco = pytest.importorskip("mujoco")
suite = pytest.importorskip("dm_control.suite")
sizes = pytest.importorskip("dm_control.mujoco.wrapper.mjbindings.sizes")
rewards = pytest.importorskip("dm_control.utils.rewards")

STEPS, EPISODE = 600, 150
NAMES = [name for name in PHYSICS if name.startswith("dmc_")]
SMALL = {"dmc_pendulum_swingup"}


@pytest.fixture(autouse=True, scope="module")
def only_arrays_that_mujoco_has():
    """Let dm_control 1.0.50 run on MuJoCo 4, which has lost some of the arrays that it lists."""
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    for struct, has in (("mjmodel", model), ("mjdata", mujoco.MjData(model))):
        for name in [name for name in sizes.array_sizes[struct] if not hasattr(has, name)]:
            del sizes.array_sizes[struct][name]


def _made(name: str, seed: int) -> Any:
    """dm_control's environment of a task, with a flat observation."""
    domain = next(one for one in suite.TASKS_BY_DOMAIN if name.startswith(f"dmc_{one}_"))
    task = name.removeprefix(f"dmc_{domain}_")
    return suite.load(domain, task, {"random": seed}, {"flat_observation": True})


def _own(physics: Any, name: str, count: int) -> np.ndarray:
    """Numbers of a field of the task's own: place of a target, directions of controls, which dm_control writes into its
    model.
    """
    if name == "directions":
        return physics.model.wrap_prm[:count]
    assert name == "target" and count == 3
    site = mujoco.mj_name2id(physics.model.ptr, mujoco.mjtObj.mjOBJ_SITE, name)
    kind = "site" if site >= 0 else "geom"
    return getattr(physics.named.model, f"{kind}_pos")["target"]


def _place_near_the_goal(physics: Any) -> None:
    """Set the model's own initial pose: upright, or in the middle; a target that an arm is to reach comes near, a ball
    is in its cup.
    """
    with physics.reset_context():
        physics.data.qpos[:] = physics.model.ptr.qpos0
        if physics.model.ptr.nq == 2 and mujoco.mj_name2id(physics.model.ptr, mujoco.mjtObj.mjOBJ_GEOM, "finger") >= 0:
            physics.named.model.geom_pos["target", :2] = 0.235, 0.0
        if mujoco.mj_name2id(physics.model.ptr, mujoco.mjtObj.mjOBJ_BODY, "spinner") >= 0:
            physics.named.model.site_pos["target"] = 0.2, 0.0, 0.53
        if mujoco.mj_name2id(physics.model.ptr, mujoco.mjtObj.mjOBJ_BODY, "cup") >= 0:
            physics.named.data.qpos["ball_z"] = 0.35


class Steps:
    """Steps of dm_control's environment over random episodes: states before, actions, and what came of them."""

    def __init__(self, name: str, model: Any, fields: int, count: int) -> None:
        env, made, generator = envs.find(name), _made(name, 1), np.random.default_rng(1)
        physics, low, high = made.physics, made.action_spec().minimum, made.action_spec().maximum
        self.column = np.zeros((fields, count), np.float32)
        self.action = np.zeros((len(low), count), np.float32)
        self.observation, self.reward = np.zeros((count, env.observation.size)), np.zeros(count)
        for k in range(count):
            if k % EPISODE == 0:
                made.reset()
                if k // EPISODE % 3 == 2:
                    _place_near_the_goal(physics)
                    if name == "dmc_finger_spin":
                        physics.data.qvel[2] = -40.0
            if k // EPISODE % 2 == 0 or k % 10 == 0:
                action = generator.uniform(low, high).astype(np.float32)
            engine = (physics.data.qpos, physics.data.qvel, physics.data.qacc_warmstart, np.zeros(model.na))
            own = [_own(physics, field, size) for field, size in env.state]
            written = np.concatenate(engine)
            self.column[: len(written), k] = written
            if own:
                self.column[-sum(map(len, own)) :, k] = np.concatenate(own)
            self.action[:, k] = action
            step = made.step(action.astype(np.float64))
            self.observation[k], self.reward[k] = step.observation["observations"], step.reward
            assert step.discount == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", by_name(NAMES, plain=SMALL))
def test_steps_equal_dm_controls(name):
    world = DeviceWorld(envs.find(name), STEPS, seed=1)
    steps = Steps(name, world.spec.model, world.spec.fields, STEPS)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    world.lanes.state.copy_(torch.from_numpy(steps.column))
    slot.action.copy_(torch.from_numpy(steps.action))
    world.step(bound)
    ours = slot.observation.numpy().T.astype(np.float64)
    error = (np.abs(ours - steps.observation) / (1.0 + np.abs(steps.observation))).max(axis=1)
    reward = np.abs(slot.reward.numpy().astype(np.float64) - steps.reward)
    print(
        f"{name}: observation median {np.median(error):.1e} 99% {np.quantile(error, 0.99):.1e} most {error.max():.1e}; "
        f"reward most {reward.max():.1e}; rewarded {np.mean(steps.reward > 0):.2f}"
    )
    assert np.any(steps.reward > 0) and not slot.terminated.any() and not slot.truncated.any()
    # A contact within rounding of touching may be met by one of both.
    assert np.median(error) <= 1e-4 and np.mean(error > 1e-2) <= 0.005
    assert np.median(reward) <= 1e-5 and np.mean(reward > 1e-2) <= 0.005


@pytest.mark.parametrize("name", by_name(NAMES, plain=SMALL))
def test_spaces_limits_and_starts_are_dm_controls(name):
    env, made, count = envs.find(name), _made(name, 3), 200
    assert env.step_s == pytest.approx(made.control_timestep()) and made._step_limit == pytest.approx(env.time_limit)
    assert [tuple(made.action_spec().minimum), tuple(made.action_spec().maximum)] == [
        tuple(bound) for bound in env.action.bounds()
    ]
    # Mean and standard deviation of the first observations agree within five standard errors; rare values, of touch at
    # the start, are left out.
    theirs = np.array([made.reset().observation["observations"] for _ in range(count)])
    world = DeviceWorld(env, 4000, seed=3)
    assert world.spec.step_s == pytest.approx(made.control_timestep())
    slot = world.slot()
    world.reset(world.bind(slot))
    low, high = np.quantile(theirs, (0.02, 0.98), axis=0)
    theirs, ours = np.clip(theirs, low, high), np.clip(slot.observation.numpy().T.astype(np.float64), low, high).T
    spread = theirs.std(axis=0)
    assert np.all(np.abs(ours.mean(axis=1) - theirs.mean(axis=0)) <= 5 * spread / np.sqrt(count) + 1e-3)
    assert np.all(np.abs(ours.std(axis=1) - spread) <= 5 * spread / np.sqrt(count) + 1e-3)
    # An episode is truncated after 1,000 steps.
    world.lanes.age.fill_(env.time_limit - 1)
    slot.action.zero_()
    world.step(world.bind(slot))
    assert slot.truncated.all() and not slot.terminated.any()


@pytest.mark.slow
def test_directions_of_point_mass_hard_are_drawn_as_dm_controls():
    made, count = _made("dmc_point_mass_hard", 3), 1000
    theirs = np.empty((4, count))
    for k in range(count):
        made.task.initialize_episode(made.physics)
        theirs[:, k] = made.physics.model.wrap_prm[:4]
    world = DeviceWorld(envs.find("dmc_point_mass_hard"), 4000, seed=3)
    world.reset(world.bind(world.slot()))
    ours = world.lanes.state[-4:].numpy().astype(np.float64)

    def summary(directions):
        (a, b, c, d), half = directions, np.sqrt(0.5)
        along, across = a * c + b * d, a * d - b * c
        parts = (a, b, c, d, along, across, abs(along), abs(across), abs(along) < 0.5, abs(a) < half, abs(c) < half)
        return np.array(parts, np.float64)

    for found in (theirs, ours):
        assert np.hypot(found[::2], found[1::2]) == pytest.approx(1.0, abs=1e-6)
        assert np.abs(found[0] * found[2] + found[1] * found[3]).max() <= 0.9 + 1e-6
    a, b = summary(theirs), summary(ours)
    assert np.all(np.abs(a.mean(axis=1) - b.mean(axis=1)) <= 5 * a.std(axis=1) / np.sqrt(count))


@pytest.mark.parametrize("name", by_name(NAMES, plain=SMALL))
def test_declarations_hold(name):
    env = envs.find(name).ready()
    assert declaration_problems(env) == [] and language_problems(env) == [] and prints(env) == []


def test_every_benchmark_task_of_the_covered_domains_is_there():
    domains = {domain for domain, _ in suite.BENCHMARKING for name in NAMES if name.startswith(f"dmc_{domain}_")}
    wanted = {f"dmc_{domain}_{task}" for domain, task in suite.BENCHMARKING if domain in domains}
    assert wanted <= set(NAMES) and len(NAMES) >= 20


def test_a_missing_package_names_its_extra(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "dm_control" else real(name, *rest)
    )
    with pytest.raises(MachineError, match=r"pip install 'operant\[dmc\]'"):
        envs.find("dmc_walker_run").ready()


BOUNDS = [(0.0, 0.0), (-0.5, 1.5), (0.6, math.inf), (-math.inf, -0.2)]


@pytest.mark.parametrize(
    "sigmoid",
    [name if name == "gaussian" else pytest.param(name, marks=pytest.mark.slow) for name in SIGMOIDS],
)
def test_tolerance_equals_dm_controls(sigmoid):
    x = np.linspace(-4.0, 4.0, 161).astype(np.float32)
    for (low, high), margin, value in ((BOUNDS[0], 1.0, 0.1), (BOUNDS[1], 0.7, 0.3), (BOUNDS[2], 2.0, 0.5)):
        function = tolerance(low, high, margin, sigmoid, value)
        theirs = rewards.tolerance(x.astype(np.float64), (low, high), margin, sigmoid, value)
        assert _applied(function, x) == pytest.approx(theirs, abs=2e-6)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_tolerance_without_a_margin_is_an_indicator(bounds):
    x = np.array([-3.0, -0.5, -0.25, 0.0, 0.25, 1.0, 1.5, 3.0], np.float32)
    assert _applied(tolerance(*bounds), x).tolist() == rewards.tolerance(x, bounds).tolist()


def _applied(function: Any, x: np.ndarray) -> np.ndarray:
    @njit
    def run(x):
        found = np.zeros(len(x), np.float32)
        for k in range(len(x)):
            found[k] = function(float32(x[k]))
        return found

    return run(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 1.0, "high": 0.0}, "low <= high"),
        ({"margin": -1.0}, "margin 0 or more"),
        ({"sigmoid": "flat"}, "no sigmoid 'flat'"),
        ({"margin": 1.0, "value_at_margin": 0.0}, "above 0"),
        ({"margin": 1.0, "value_at_margin": 1.0, "sigmoid": "linear"}, "below 1"),
    ],
)
def test_tolerance_refuses_wrong_arguments(arguments, message):
    with pytest.raises(OperantError, match=message):
        tolerance(**arguments)
