"""Gymnasium's MuJoCo environments: parity of ours with Gymnasium's own step, from its states, over random episodes."""

from __future__ import annotations

import importlib.util
import textwrap
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from toys import PHYSICS, by_name, soak

from operant import envs
from operant.envs.declaration import declaration_problems
from operant.envs.language import language_problems, prints
from operant.envs.physics import PhysicsEnv
from operant.errors import BadFileError, MachineError, OperantError
from operant.physics import Model
from operant.worlds import Painter
from operant.worlds.device_world import DeviceWorld

gymnasium = pytest.importorskip("gymnasium")
mujoco = pytest.importorskip("mujoco")

STEPS = 2000
NAMES = [name for name in PHYSICS if envs.find(name).gymnasium is not None]


class Steps(NamedTuple):
    """Steps of Gymnasium's environment: what it held before each, and what came of it."""

    before: list[dict[str, np.ndarray]]
    age: list[int]
    action: list[np.ndarray]
    observation: list[np.ndarray]
    reward: list[float]
    terminated: list[bool]
    truncated: list[bool]
    info: list[dict[str, float]]


def _held(data: Any, env: PhysicsEnv) -> dict[str, np.ndarray]:
    """State of MuJoCo's data, and what `env` reads of it."""
    held = {"qpos": data.qpos.copy(), "qvel": data.qvel.copy(), "warm": data.qacc_warmstart.copy()}
    for name, text in env.reads:
        array, _, element = text.partition(" ")
        values = getattr(data, array)
        if element:
            kind = {"s": mujoco.mjtObj.mjOBJ_SITE, "g": mujoco.mjtObj.mjOBJ_GEOM}.get(
                array[0], mujoco.mjtObj.mjOBJ_BODY
            )
            kind = mujoco.mjtObj.mjOBJ_BODY if array == "subtree_com" else kind
            values = values[mujoco.mj_name2id(data.model, kind, element)]
        held[name] = values.ravel().copy()
    return held


def _rollout(env: PhysicsEnv, steps: int, **arguments: Any) -> Steps:
    """Random episodes: uniform actions, and in every other episode actions held for ten steps."""
    assert env.gymnasium is not None
    made = gymnasium.make(env.gymnasium, **arguments)
    generator, found = np.random.default_rng(1), Steps([], [], [], [], [], [], [], [])
    made.reset(seed=1)
    age, episode = 0, 0
    low, high = made.action_space.low, made.action_space.high
    action = generator.uniform(low, high).astype(np.float32)
    for _ in range(steps):
        if episode % 2 == 0 or age % 10 == 0:
            action = generator.uniform(low, high).astype(np.float32)
        found.before.append(_held(made.unwrapped.data, env))
        found.age.append(age)
        found.action.append(action)
        observation, reward, terminated, truncated, info = made.step(action.astype(np.float64))
        for values, value in zip(found[3:], (observation, reward, terminated, truncated, info), strict=True):
            values.append(value)
        age += 1
        if terminated or truncated:
            made.reset()
            age, episode = 0, episode + 1
    made.close()
    return found


def _ours(env: PhysicsEnv, steps: Steps, **params: Any) -> tuple[DeviceWorld, Any]:
    """World with a lane for each step, in Gymnasium's state before it, after our step."""
    world = DeviceWorld(env, len(steps.age), seed=1, params=params, every_final=True)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    model = world.spec.model
    rows = np.concatenate([_column(held, model, world.spec.fields) for held in steps.before], axis=1)
    world.lanes.state.copy_(torch.from_numpy(rows.astype(np.float32)))
    world.lanes.age.copy_(torch.tensor(steps.age, dtype=torch.int32))
    slot.action.copy_(torch.from_numpy(np.stack(steps.action, axis=1)))
    world.step(bound)
    return world, slot


def _column(held: dict[str, np.ndarray], model: Any, fields: int) -> np.ndarray:
    """State column, (F, 1): the engine's rows, then what is read."""
    engine = [held["qpos"], held["qvel"], held["warm"], np.zeros(model.na)]
    read = [values for name, values in held.items() if name not in ("qpos", "qvel", "warm")]
    counters = np.zeros(fields - sum(map(len, engine + read)))
    return np.concatenate([*engine, counters, *read])[:, None]


def _relative(ours: torch.Tensor, theirs: Any) -> np.ndarray:
    theirs = np.array(theirs, np.float64)
    return np.abs(ours.numpy().astype(np.float64) - theirs) / (1.0 + np.abs(theirs))


@pytest.mark.parametrize("name", by_name(NAMES, plain={"inverted_pendulum"}))
def test_steps_equal_gymnasiums(name):
    env = envs.find(name)
    steps = _rollout(env, STEPS)
    world, slot = _ours(env, steps)
    ended = (slot.terminated | slot.truncated).bool()
    observation = torch.where(ended, slot.final_observation, slot.observation)
    error = _relative(observation.T, steps.observation).max(axis=1)
    reward = _relative(slot.reward, steps.reward)
    print(
        f"{name}: observation median {np.median(error):.1e} 99% {np.quantile(error, 0.99):.1e} most {error.max():.1e}; "
        f"reward most {reward.max():.1e}; ends {sum(steps.terminated)} {sum(steps.truncated)}"
    )
    assert np.array_equal(slot.terminated.numpy(), steps.terminated)
    assert np.array_equal(slot.truncated.numpy(), steps.truncated)
    # A contact that begins or ends within rounding of touching may be met by one of both: at most 3 steps in 1,000.
    assert np.median(error) <= 1e-5 and np.mean(error > 1e-2) <= 0.003
    assert np.median(reward) <= 1e-5 and np.mean(reward > 1e-2) <= 0.003
    # Parts of the reward, in the tallies of episodes that go on.
    going = ~ended
    for k, part in enumerate(env.tally[:-2]):
        theirs = [info[part] for info in steps.info]
        assert np.mean(_relative(world.lanes.running[1 + k], theirs)[going.numpy()] > 1e-2) <= 0.003, part
    assert not world.lanes.running[len(env.tally) - 1 :].any()


ARGUMENTS = {
    "half_cheetah": (
        {"frame_skip": 2, "ctrl_cost_weight": 0.3, "exclude_current_positions_from_observation": False},
        {"frame_skip": 2, "ctrl_cost_weight": 0.3, "exclude_current_positions_from_observation": False},
    ),
    "hopper": (
        {"healthy_z_range": (0.9, 1.4), "healthy_reward": 2.0, "terminate_when_unhealthy": False},
        {"healthy_z_min": 0.9, "healthy_z_max": 1.4, "healthy_reward": 2.0, "terminate_when_unhealthy": False},
    ),
}
"""Arguments of Gymnasium's environments and our parameters."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["half_cheetah", *soak("hopper")])
def test_parameters_are_gymnasiums_arguments(name):
    theirs, ours = ARGUMENTS[name]
    steps = _rollout(envs.find(name), 300, **theirs)
    _, slot = _ours(envs.find(name), steps, **ours)
    ended = (slot.terminated | slot.truncated).bool()
    observation = torch.where(ended, slot.final_observation, slot.observation)
    assert _relative(observation.T, steps.observation).max() <= 1e-2
    assert _relative(slot.reward, steps.reward).max() <= 1e-3
    assert np.array_equal(slot.terminated.numpy(), steps.terminated)


@pytest.mark.parametrize("name", by_name(NAMES, plain={"inverted_pendulum"}))
def test_spaces_limits_and_starts_are_gymnasiums(name):
    env = envs.find(name)
    made = gymnasium.make(env.gymnasium)
    assert made.observation_space.shape == (env.observation.size,)
    assert np.array_equal([made.action_space.low, made.action_space.high], np.array(env.action.bounds(), np.float32))
    assert made.spec.max_episode_steps == env.time_limit
    assert env.step_s == pytest.approx(made.unwrapped.dt)
    # Mean and standard deviation of the first observations agree within five standard errors.
    count = 400
    theirs = np.array([made.reset(seed=k)[0] for k in range(count)])
    world = DeviceWorld(env, 20_000, seed=3)
    slot = world.slot()
    world.reset(world.bind(slot))
    ours = slot.observation.numpy().astype(np.float64)
    spread = theirs.std(axis=0) + 1e-6
    assert np.all(np.abs(ours.mean(axis=1) - theirs.mean(axis=0)) <= 5 * spread / np.sqrt(count) + 1e-5)
    assert np.all(np.abs(ours.std(axis=1) - theirs.std(axis=0)) <= 5 * spread / np.sqrt(count) + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["half_cheetah", "ant"])
def test_a_lane_has_the_same_bits_in_a_world_of_any_size(name):
    env, steps, kept = envs.find(name), 60, 64
    generator = np.random.default_rng(5)
    actions = generator.uniform(-1.0, 1.0, (steps, env.action.size, kept)).astype(np.float32)

    def outputs(lanes: int, compared: int) -> bytes:
        """State and outputs of the first lanes after each step; the lanes beyond `kept` act at random."""
        world, found = DeviceWorld(env, lanes, seed=1, every_final=True), []
        slot = world.slot()
        bound = world.bind(slot)
        world.reset(bound)
        for t in range(steps):
            action = np.random.default_rng(t).uniform(-1.0, 1.0, (env.action.size, lanes)).astype(np.float32)
            action[:, :kept] = actions[t, :, :lanes]
            slot.action.copy_(torch.from_numpy(action))
            world.step(bound)
            world.advance(1)
            found += [x[..., :compared].numpy().tobytes() for x in (world.lanes.state, *slot) if x is not None]
        return b"".join(found)

    assert outputs(1, 1) == outputs(64, 1)
    assert outputs(64, 64) == outputs(4096, 64)


@pytest.mark.parametrize("name", by_name(NAMES, plain={"half_cheetah"}))
def test_declarations_hold(name):
    env = envs.find(name).ready()
    assert declaration_problems(env) == [] and language_problems(env) == [] and prints(env) == []
    assert env.stack_bytes > 0 and env.fields > env.observation.size // 2


def test_a_compiled_model_replaces_mujoco(tmp_path, monkeypatch):
    env = envs.find("half_cheetah")
    ready = env.ready()
    (tmp_path / "half_cheetah.model").write_bytes(ready.model.save())
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in ("mujoco", "gymnasium") else real(name, *rest)
    )
    with pytest.raises(MachineError, match=r"pip install 'operant\[mujoco\]'"):
        env.ready()
    again = env.configured(env.Params(), (tmp_path,)).ready()
    assert again == ready and again.model.digest == ready.model.digest
    monkeypatch.setenv("OPERANT_MODELS", str(tmp_path))
    assert env.ready() == ready


def test_a_compiled_model_that_is_damaged_is_named_with_what_to_do(tmp_path):
    (tmp_path / "half_cheetah.model").write_bytes(b"other")
    env = envs.find("half_cheetah")
    with pytest.raises(BadFileError, match=r"half_cheetah\.model: .* damaged.* Delete it"):
        env.configured(env.Params(), (tmp_path,)).ready()


def test_an_environment_without_a_model_is_listed_but_not_built(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    env = envs.find("HalfCheetah-v5")
    assert env.name == "half_cheetah" and env.observation.size == 17 and env.draws
    with pytest.raises(MachineError, match=r"half_cheetah\.xml"):
        DeviceWorld(env, 2, seed=1)


BALL = """
<mujoco><option timestep="0.01"/><worldbody>
  <geom name="floor" type="plane" size="5 5 1"/>
  <body name="ball" pos="0 0 0.1"><joint name="x" type="slide" axis="1 0 0"/><geom type="sphere" size="0.1"/></body>
</worldbody><actuator><motor joint="x" gear="2" ctrlrange="-1 1"/></actuator></mujoco>
"""

FILE = '''
"""A ball that is to be pushed to the right."""
from typing import NamedTuple
from numpy import float32
from operant.envs import Box, device, uniform
from operant.envs.physics import MJCF, physics_env

class Params(NamedTuple):
    frame_skip: int = 5
    gear: float = 2.0

@device
def reset(d, p, key):
    d.qpos[0] += uniform(key, 0) - float32(0.5)

@device
def before(d, p):
    return d.qpos[0]

@device
def reward(d, past, action, p, tally):
    return (d.qpos[0] - past) / d.dt

@device
def terminated(d, p):
    return d.ball[0] > float32(0.6)

@device
def observe(d, obs, p):
    obs[0], obs[1] = d.qpos[0], d.qvel[0]

def modified(model, params):
    gear = model.actuator_gear.copy()
    gear[0, 0] = params.gear
    return model.replace(actuator_gear=gear)

ENV = physics_env(Params, MJCF.beside(__file__, "ball.xml"), observation=Box(2), action=Box(1, -1, 1),
                  time_limit=200, reset=reset, before=before, reward=reward, terminated=terminated, observe=observe,
                  reads={"ball": "xpos ball"}, modified=modified)
'''


@pytest.fixture
def ball(tmp_path):
    (tmp_path / "ball.xml").write_text(BALL)
    (tmp_path / "ball.py").write_text(textwrap.dedent(FILE))
    return tmp_path / "ball.py"


def _pushed(env: PhysicsEnv, **params: Any) -> tuple[Any, DeviceWorld]:
    world = DeviceWorld(env, 4, seed=1, params=params)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    slot.action.fill_(1.0)
    world.step(bound)
    return slot, world


@pytest.mark.slow
def test_a_parameter_of_the_robot_is_drawn_per_lane(ball):
    text = ball.read_text().replace("gear: float = 2.0", "gear: float = 2.0\n    gear_min: float = 0.5")
    text = text.replace(
        "float32(0.5)\n\n@device\ndef before", "float32(0.5)\n    d.gear_scale[0] = "
        "p.gear_min + (float32(1.0) - p.gear_min) * uniform(key, 1)\n\n@device\ndef before", 1
    )  # fmt: skip
    ball.write_text(text.replace("modified=modified)", 'modified=modified, scales=("gear",))'))
    env = envs.find(str(ball))
    slot, world = _pushed(env)
    mass = 1000 * 4 / 3 * np.pi * 0.1**3
    drawn = np.unique(world.lanes.state.numpy(), axis=0)
    rows = [k for k, x in enumerate(drawn) if x.min() >= 0.5 and x.max() < 1.0 and len(np.unique(x)) == 4]
    pushes = [pytest.approx(5 * 0.01 * 2 * drawn[k] / mass, rel=1e-4) for k in rows]
    assert any(slot.observation[1].numpy() == push for push in pushes)
    fixed, _ = _pushed(env, gear_min=1.0)
    assert fixed.observation[1].numpy() == pytest.approx(5 * 0.01 * 2 / mass, rel=1e-4)


@pytest.mark.slow
def test_an_author_writes_a_task_in_one_file(ball):
    env = envs.find(str(ball))
    slot, world = _pushed(env)
    mass = 1000 * 4 / 3 * np.pi * 0.1**3
    assert slot.observation[1].numpy() == pytest.approx(5 * 0.01 * 2 / mass, rel=1e-4)
    assert slot.reward.numpy() == pytest.approx(3 * 0.01 * 2 / mass, rel=1e-3)
    # A parameter of the robot: half the gear.
    weak, _ = _pushed(env, gear=1.0)
    assert weak.observation[1].numpy() == pytest.approx(slot.observation[1].numpy() / 2, rel=1e-4)
    for _ in range(200):
        bound = world.bind(slot)
        world.step(bound)
    assert bool(slot.observation[0].max() < 0.7)  # beyond 0.6 m the episode ends
    # A disc in the middle of the picture, over the floor.
    canvas = torch.zeros(4, 32, 32, 3, dtype=torch.uint8)
    Painter(world)(Painter(world).bind(canvas))
    assert len(np.unique(canvas.numpy().reshape(-1, 3), axis=0)) >= 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("def reward(d, past, action, p, tally)", "def reward(d, action, p, tally)"), "`reward` must be a device"),
        (("xpos ball", "xpos bell"), "no body 'bell'"),
        (("xpos ball", "xposition"), "it must be an array"),
        (("ball.xml", "bell.xml"), "there is no model file"),
        (("frame_skip: int = 5", "other: int = 5"), "Params needs frame_skip"),
        (("Box(1, -1, 1)", "Box(2, -1, 1)"), r"has 1 controls and `action` has 2 numbers: action=Box\(1, low, high\)"),
    ],
)
def test_an_authors_mistake_is_named(ball, wrong, message):
    text = ball.read_text()
    assert wrong[0] in text
    ball.write_text(text.replace(*wrong))
    with pytest.raises(OperantError, match=message) as caught:
        envs.find(str(ball)).ready()
    assert caught.value.exit_code in (2, 3)


def test_the_mjcf_file_counts_where_mujoco_is_installed(ball, monkeypatch, tmp_path):
    other = Model.from_mjcf(BALL.replace("0.01", "0.02"))
    (tmp_path / "ball.model").write_bytes(other.save())
    monkeypatch.setenv("OPERANT_MODELS", str(tmp_path))
    assert envs.find(str(ball)).ready().model.opt_timestep == 0.01
