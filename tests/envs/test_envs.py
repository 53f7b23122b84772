"""All shipped environments: parity with Gymnasium, start distributions, finite values, and deterministic bits."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import ORDINARY, PHYSICS, by_name

import operant.compute.kernel
from operant import envs
from operant.envs import Box, Discrete, Env
from operant.envs.drawing import RED, in_box, in_disc, in_rod
from operant.errors import OperantError
from operant.worlds.base import Slot
from operant.worlds.bounds import rollout_actions
from operant.worlds.device_world import DeviceWorld

NAMES = envs.names()
GYMNASIUM_NAMES = [name for name in ORDINARY if envs.find(name).gymnasium is not None]

COMPARED_TO_THE_END = tuple(envs.find(name) for name in ("breakout", "pong", "swingup", "cartpole_continuous"))
"""Environments whose own tests compare final observations."""

LANES, STEPS = 256, 1000
TOLERANCE = 1e-4


def actions(env: Env, generator: np.random.Generator, t: int, lanes: int) -> np.ndarray:
    """Actions of step t, (A, N): random for even lanes; alternating extremes for odd lanes, which swing things up."""
    return rollout_actions(env, generator, t, lanes).numpy()


class Trainer:
    """World with one slot, stepped by the test."""

    def __init__(self, env: Env, lanes: int, *, seed: int = 1, lane0: int = 0) -> None:
        # Gymnasium has an observation at every end. Other environments are stepped as their own tests do, by kernels
        # that exist already.
        finals = env.gymnasium is not None or env in COMPARED_TO_THE_END
        self.world = DeviceWorld(env, lanes, seed=seed, lane0=lane0, every_final=finals)
        self.slot: Slot = self.world.slot()
        self._bound = self.world.bind(self.slot)
        self.world.reset(self._bound)

    def step(self, action: np.ndarray) -> None:
        self.slot.action.copy_(torch.from_numpy(np.ascontiguousarray(action)))
        self.world.step(self._bound)
        self.world.advance(1)

    def bits(self) -> bytes:
        """All outputs of a step."""
        return b"".join(
            tensor.numpy().tobytes() for tensor in [*self.world.state().values(), *self.slot] if tensor is not None
        )


class Reference:
    """Gymnasium environment that steps from any state."""

    def __init__(self, env: Env) -> None:
        gymnasium = pytest.importorskip("gymnasium")
        made = gymnasium.make(env.gymnasium)
        assert made.spec is not None
        self.time_limit = made.spec.max_episode_steps
        self.env = made.unwrapped
        self.discrete = isinstance(env.action, Discrete)

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, bool]:
        """Next state, observation, reward, terminated from a state (F), in float64, and an action (A)."""
        self.env.state = np.array(state, np.float64)
        self.env.steps_beyond_terminated = None
        observation, reward, terminated, truncated, _ = self.env.step(int(action[0]) if self.discrete else action)
        assert not truncated
        return np.array(self.env.state, np.float64), observation, float(reward), terminated


def difference(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Absolute errors, in float64."""
    return np.abs(ours.astype(np.float64) - theirs)


def check_parity(name: str, stride: int) -> None:
    """Compare every `stride`-th lane of each step, in rotation, with Gymnasium from the same state and action.

    Flags must be equal. A state within float32 rounding of a threshold would fail here; this seed has none.
    """
    env = envs.find(name)
    reference = Reference(env)
    assert reference.time_limit == env.time_limit
    trainer, generator = Trainer(env, LANES), np.random.default_rng(7)
    world, slot = trainer.world, Slot(*(tensor.numpy() if tensor is not None else None for tensor in trainer.slot))
    state, age = world.lanes.state.numpy(), world.lanes.age.numpy()
    ends = np.zeros(2, int)
    for t in range(STEPS):
        # ages at random: every environment then meets its time limit, also where no policy here would live that long
        if t % 50 == 0:
            age[:] = generator.integers(0, env.time_limit, LANES)
        before, age_before, action = state.copy(), age.copy(), actions(env, generator, t, LANES)
        trainer.step(action)
        terminated, truncated = slot.terminated.astype(bool), slot.truncated.astype(bool)
        ended = terminated | truncated
        ends += terminated.sum(), truncated.sum()

        compared = np.arange(t % stride, LANES, stride)
        expected = [reference.step(before[:, i], action[:, i]) for i in compared]
        going_on = ~ended[compared]
        observation = np.where(ended, slot.final_observation, slot.observation)
        assert np.array_equal(truncated, age_before + 1 >= reference.time_limit), t
        assert np.array_equal(terminated[compared], [outcome[3] for outcome in expected]), t
        assert difference(slot.reward[compared], np.array([outcome[2] for outcome in expected])).max() <= TOLERANCE, t
        assert (
            difference(observation[:, compared], np.array([outcome[1] for outcome in expected]).T).max() <= TOLERANCE
        ), t
        # An angle at the seam may be wrapped to either side: ignore whole turns.
        error = difference(state[:, compared], np.array([outcome[0] for outcome in expected]).T)[:, going_on]
        assert np.minimum(error, np.abs(error - 2 * math.pi)).max(initial=0.0) <= TOLERANCE, t
        assert np.array_equal(age, np.where(ended, 0, age_before + 1)), t
    assert ends[1] > 0
    print(f"{name}: {ends[0]} steps terminated, {ends[1]} truncated")


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("cartpole", "pendulum") else pytest.param(name, marks=pytest.mark.slow)
        for name in GYMNASIUM_NAMES
    ],
)
def test_parity_with_gymnasium(name):
    check_parity(name, stride=16)


@pytest.mark.soak
@pytest.mark.parametrize("name", GYMNASIUM_NAMES)
def test_parity_with_gymnasium_in_every_lane(name):
    check_parity(name, stride=1)


def test_parity_rollouts_reach_every_end_of_an_episode():
    """Precondition of flag parity: the swinging lanes reach every kind of end of an episode."""
    reached = {}
    for name in GYMNASIUM_NAMES:
        env = envs.find(name)
        trainer, generator = Trainer(env, 128), np.random.default_rng(7)
        for t in range(400):
            trainer.step(actions(env, generator, t, 128))
            reached[name] = reached.get(name, 0) + int(trainer.slot.terminated.sum())
    assert all(reached[name] > 0 for name in ("acrobot", "cartpole", "mountaincar", "mountaincar_continuous")), reached
    assert reached["pendulum"] == 0


START = {  # lowest, highest first state of each row, from Gymnasium's reset
    "acrobot": ([-0.1] * 4, [0.1] * 4),
    "cartpole": ([-0.05] * 4, [0.05] * 4),
    "mountaincar": ([-0.6, 0.0], [-0.4, 0.0]),
    "mountaincar_continuous": ([-0.6, 0.0], [-0.4, 0.0]),
    "pendulum": ([-math.pi, -1.0], [math.pi, 1.0]),
}


@pytest.mark.parametrize("name", START)
def test_starts_fill_gymnasiums_range(name, serial_worlds):
    low, high = (np.array(bound)[:, None] for bound in START[name])
    state = Trainer(envs.find(name), 100_000, seed=3).world.lanes.state.numpy().astype(np.float64)
    width = high - low

    assert np.all(state >= low - 1e-6) and np.all(state <= high + 1e-6)
    assert np.all(state.min(axis=1, keepdims=True) <= low + 1e-3 * width)
    assert np.all(state.max(axis=1, keepdims=True) >= high - 1e-3 * width)
    # Five standard errors of the mean and the variance of a uniform variable.
    assert np.all(
        np.abs(state.mean(axis=1, keepdims=True) - (low + high) / 2) <= 5 * width / math.sqrt(12 * 100_000) + 1e-7
    )
    assert np.all(
        np.abs(state.var(axis=1, keepdims=True) - width**2 / 12) <= 5 * width**2 / math.sqrt(180 * 100_000) + 1e-12
    )


def test_rows_of_a_start_are_independent(serial_worlds):
    state = Trainer(envs.find("cartpole"), 100_000, seed=3).world.lanes.state.numpy()
    correlation = np.corrcoef(state) - np.eye(4)
    assert np.abs(correlation).max() < 0.02


LARGE = {
    "g2048",
    "go",
    "minatar_asterix",
    "minatar_freeway",
    "minatar_seaquest",
    "minatar_space_invaders",
    "pacman",
    "platformer",
    "pong",
    "snake",
    *PHYSICS,
}  # seconds to compile, each


@pytest.mark.parametrize("name", by_name(NAMES, plain=set(NAMES) - LARGE))
def test_numbers_stay_finite_under_extreme_actions(name):
    env = envs.find(name)
    if isinstance(env.action, Box):
        extremes = [np.array(bound, np.float32)[:, None] for bound in env.action.bounds()]
    else:
        assert isinstance(env.action, Discrete)
        extremes = [np.array([[0]], np.int32), np.array([[env.action.n - 1]], np.int32)]
    for extreme in extremes:
        trainer = Trainer(env, 64)
        # A Box action beyond its bounds is clipped by the world.
        action = np.repeat(extreme * (1000 if isinstance(env.action, Box) else 1), 64, axis=1)
        for _ in range(300):
            trainer.step(action)
            for tensor in (
                trainer.world.lanes.state,
                trainer.slot.observation,
                trainer.slot.final_observation,
                trainer.slot.reward,
            ):
                assert tensor is None or bool(torch.isfinite(tensor).all())
        if isinstance(env.action, Box):
            assert np.array_equal(trainer.slot.action.numpy(), np.repeat(extreme, 64, axis=1))


def test_throttle_cost_uses_the_clipped_action():
    env = envs.find("mountaincar_continuous")
    beyond, within = Trainer(env, 4), Trainer(env, 4)
    beyond.step(np.array([[5.0, -5.0, 1.5, -0.5]], np.float32))
    within.step(np.array([[1.0, -1.0, 1.0, -0.5]], np.float32))
    assert beyond.bits() == within.bits()
    assert beyond.slot.reward.tolist() == pytest.approx([-0.1, -0.1, -0.1, -0.025])


def test_differences_from_gymnasium_are_documented():
    described = sys.modules[envs.find("mountaincar_continuous").step.__module__].__doc__
    assert described is not None and "Differences from Gymnasium" in described and "clips Box actions" in described
    page = Path(__file__).resolve().parents[2] / "docs" / "pages" / "runs.md"
    assert not page.is_file() or "clipped to their bounds before" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", by_name(NAMES, plain=set(NAMES) - LARGE | {"g2048"}))
def test_same_seed_same_bits(name):
    env = envs.find(name)
    whole, again, other = Trainer(env, 48), Trainer(env, 48), Trainer(env, 48, seed=2)
    left, right = Trainer(env, 20), Trainer(env, 28, lane0=20)
    generator = np.random.default_rng(5)
    for t in range(210):
        action = actions(env, generator, t, 48)
        for trainer in (whole, again, other):
            trainer.step(action)
        left.step(action[:, :20])
        right.step(action[:, 20:])

    assert again.bits() == whole.bits()
    assert other.bits() != whole.bits()
    for part, lanes in ((left, slice(0, 20)), (right, slice(20, 48))):
        for ours, theirs in zip(part.slot, whole.slot, strict=True):
            assert torch.equal(ours, theirs[..., lanes]) if theirs is not None else ours is None
        for field in ("state", "age", "running", "finished"):
            theirs = getattr(whole.world.lanes, field)
            if theirs is not None:
                assert torch.equal(getattr(part.world.lanes, field), theirs[..., lanes])


@pytest.mark.parametrize(
    "name",
    [
        name
        if name == "cartpole"
        else pytest.param(name, marks=pytest.mark.slow if name == "snake" else pytest.mark.soak)
        for name in NAMES
    ],
)
def test_threads_do_not_change_bits(name, monkeypatch):
    """The multithreaded loop is the same for all environments: two represent the others, without and with int state."""
    env = envs.find(name)
    one, generator = Trainer(env, 48), np.random.default_rng(5)
    monkeypatch.setattr(operant.compute.kernel, "SERIAL_BELOW", 0)
    all_threads = Trainer(env, 48)
    for t in range(210):
        action = actions(env, generator, t, 48)
        monkeypatch.setattr(operant.compute.kernel, "SERIAL_BELOW", 8192)
        one.step(action)
        monkeypatch.setattr(operant.compute.kernel, "SERIAL_BELOW", 0)
        all_threads.step(action)
    assert all_threads.bits() == one.bits()


def picture(env: Env, state: list[float], side: int = 48) -> np.ndarray:
    """Picture of a lane, (side, side, 3), by the plain Python of `pixel_shader`."""
    p = DeviceWorld(env, 1, seed=1).params
    s = np.array(state, np.float32)
    centres = (np.arange(side, dtype=np.float32) + np.float32(0.5)) / np.float32(side)
    return np.array([[env.pixel_shader(s, p, x, y) for x in centres] for y in centres])


POSES = {
    "acrobot": ([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]),
    "cartpole": ([0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.2, 0.0]),
    "mountaincar": ([-0.5, 0.0], [0.4, 0.0]),
    "mountaincar_continuous": ([-0.5, 0.0], [0.4, 0.0]),
    "pendulum": ([0.0, 0.0], [1.5, 0.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POSES)
def test_pictures_show_the_state(name):
    one, other = (picture(envs.find(name), pose) for pose in POSES[name])

    assert np.isfinite(one).all() and one.min() >= 0.0 and one.max() <= 1.0
    colours = {tuple(colour) for colour in one.reshape(-1, 3).round(2)}
    assert 3 <= len(colours) <= 6
    assert 0.01 < np.mean(np.any(one != other, axis=2)) < 0.4


def test_pendulum_is_upright_at_angle_zero():
    upright = picture(envs.find("pendulum"), [0.0, 0.0])
    red = np.abs(upright - RED).max(axis=2) < 1e-3
    rows, columns = np.nonzero(red)
    assert rows.max() < 28 and abs(columns.mean() - 23.5) < 0.5


def test_points_inside_and_outside_of_shapes():
    f = np.float32
    assert in_disc(f(1), f(1), f(1), f(1.5), f(0.6)) and not in_disc(f(1), f(1), f(1), f(1.5), f(0.4))
    assert in_box(f(0.9), f(-0.4), f(0), f(0), f(1), f(0.5)) and not in_box(f(0.9), f(-0.6), f(0), f(0), f(1), f(0.5))
    # Rod from (0, 0) to (3, 4) with half width 0.5: points next to it, beyond its end, and a rod of length 0.
    assert in_rod(f(1.5 - 0.32), f(2 + 0.24), f(0), f(0), f(3), f(4), f(0.5)) and not in_rod(
        f(1.5 - 0.48), f(2 + 0.36), f(0), f(0), f(3), f(4), f(0.5)
    )
    assert in_rod(f(3.2), f(4.2), f(0), f(0), f(3), f(4), f(0.5)) and not in_rod(
        f(3.4), f(4.5), f(0), f(0), f(3), f(4), f(0.5)
    )
    assert in_rod(f(1), f(1), f(1), f(1), f(1), f(1), f(0.1))


def test_every_environment_is_found_by_name_and_by_gymnasium_id():
    for name in NAMES:
        env = envs.find(name)
        assert env.name == name
        if env.gymnasium is not None:
            assert envs.find(env.gymnasium) == env
    with pytest.raises(KeyError):
        envs.find("tetris")


OLD = """
from typing import NamedTuple
from operant import rng as numbers
from operant.envs import Box, Cells, Discrete, Env
from operant.envs.cartpole import shade as others
from operant.rng import uniform
from operant.shapes import in_box

class Params(NamedTuple):
    a: float = 1.0

def observe(s, cells, obs, p, part):
    obs[part] = part

BYTES = Box(2, dtype="uint8", high=1, kinds=2)
ENV = Env(Params, 1, BYTES, Discrete(2), 9, reset=numbers.uniform, step=uniform, observe=observe, shade=len,
          cells=Cells(4, "int16"), scratch=3, parts=2)
"""


def test_old_field_names_are_translated_in_files_and_refused_in_programs(tmp_path):
    """Files with old field names are translated; programs get an error with the new name."""
    (tmp_path / "old.py").write_text(OLD)
    env = envs.find(str(tmp_path / "old.py"))
    assert (env.pixel_shader, env.int_state, env.workspace, env.observation_shards) == (
        len,
        envs.IntState(4, "int16"),
        3,
        2,
    )
    assert env.reset is env.step is envs.uniform and env.observation.categories == 2
    assert (
        env.observe.__code__.co_varnames == ("s", "cells", "obs", "p", "shard")
        and env.observe.__code__.co_firstlineno == 12
    )
    with pytest.raises(OperantError, match=r"Env\(scratch=...\) is called workspace now: write Env\(workspace=...\)"):
        Env(scratch=3)
