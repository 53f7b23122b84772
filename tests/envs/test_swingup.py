"""Swing-up and continuous cart-pole against their equations in float64, from the same state at each step; starts and
pictures.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operant import envs
from operant.compute.device import device_params
from operant.envs import Env
from operant.envs import swingup as rules
from operant.envs.drawing import BLUE, GREY, ORANGE, RED
from operant.worlds.bounds import rollout_actions
from operant.worlds.device_world import DeviceWorld

LANES = 256
TOLERANCE = 1e-5
CONTINUOUS = envs.find("cartpole_continuous")


class Trial:
    """World with one slot, as arrays."""

    def __init__(self, env: Env, lanes: int, seed: int = 1) -> None:
        self.world = DeviceWorld(env, lanes, seed=seed, every_final=True)
        self.tensors = self.world.slot()
        self._bound = self.world.bind(self.tensors)
        self.slot = type(self.tensors)(*(tensor.numpy() if tensor is not None else None for tensor in self.tensors))
        self.state, self.age = self.world.lanes.state.numpy(), self.world.lanes.age.numpy()
        self.world.reset(self._bound)

    def step(self, action: np.ndarray) -> None:
        self.slot.action[:] = action
        self.world.step(self._bound)
        self.world.advance(1)


def accelerations(
    theta: np.ndarray, spin: np.ndarray, force: np.ndarray, g: float, m: float, M: float, l: float
) -> tuple[np.ndarray, np.ndarray]:
    """Accelerations of cart and pole, from the equations of motion of a cart and a uniform rod with centre at distance
    l.

    (M + m) x'' + m l theta'' cos theta = F + m l theta'^2 sin theta
    m l x'' cos theta + 4/3 m l^2 theta'' = m g l sin theta
    """
    matrix = np.array(
        [
            [np.full_like(theta, M + m), m * l * np.cos(theta)],
            [m * l * np.cos(theta), np.full_like(theta, 4 / 3 * m * l * l)],
        ]
    )
    right = np.array([force + m * l * spin**2 * np.sin(theta), m * g * l * np.sin(theta)])
    solved = np.linalg.solve(np.moveaxis(matrix, -1, 0), right.T[..., None])[..., 0]
    return solved[:, 0], solved[:, 1]


def swung(state: np.ndarray, force: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Next state (4, N), reward and end by the source's rules, in float64."""
    x, speed, theta, spin = state
    reward = (
        np.cos(theta)
        + 3 * np.exp(-(theta**2) / 0.0144)
        - 0.05 * x**2
        - 0.01 * spin**2
        - 0.01 * speed**2
        - 1e-4 * force**2
        - 2 * (np.abs(x) >= 3.5)
    )
    push, turn = accelerations(theta, spin, force, g=9.81, m=0.01, M=1.0, l=1.0)
    speed = speed + push / 60
    x = x + speed / 60
    spin = spin + turn / 60
    theta = np.mod(theta + spin / 60 + math.pi, 2 * math.pi) - math.pi
    return np.array([x, np.clip(speed, -3, 3), theta, np.clip(spin, -4, 4)]), reward, np.abs(x) >= 4


def balanced(state: np.ndarray, force: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Next state, reward and end by Gymnasium's CartPole-v1."""
    x, speed, theta, spin = state
    push, turn = accelerations(theta, spin, force, g=9.8, m=0.1, M=1.0, l=0.5)
    after = np.array([x + 0.02 * speed, speed + 0.02 * push, theta + 0.02 * spin, spin + 0.02 * turn])
    return after, np.ones_like(x), (np.abs(after[0]) > 2.4) | (np.abs(after[2]) > math.radians(12))


def apart(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Absolute errors of states (4, N), modulo whole turns of the angle."""
    error = np.abs(ours.astype(np.float64) - theirs)
    error[rules.THETA] = np.minimum(error[rules.THETA], np.abs(error[rules.THETA] - 2 * math.pi))
    return error


def forces(env: Env, state: np.ndarray, generator: np.random.Generator, t: int) -> np.ndarray:
    """Forces of step t, (1, N): random, alternating, and in every fourth lane a feedback controller that balances the
    pole.
    """
    chosen = rollout_actions(env, generator, t, state.shape[1]).numpy()
    x, speed, theta, spin = state[:, ::4]
    high = env.action.bounds()[1][0]
    chosen[0, ::4] = np.clip(high / 15 * (60 * theta + 15 * spin + 1.0 * x + 2.0 * speed), -high, high)
    return chosen.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swingup", "cartpole_continuous"])
def test_steps_equal_the_equations(name):
    env = envs.find(name)
    trial, generator = Trial(env, LANES), np.random.default_rng(7)
    scale, rule = (1.0, swung) if name == "swingup" else (10.0, balanced)
    ends, best = np.zeros(2, int), -math.inf
    for t in range(1000):
        if t % 100 == 0:
            trial.age[:] = generator.integers(0, env.time_limit, LANES)  # so that lanes reach the time limit
            if name == "swingup":  # and some poles are upright
                trial.state[:, :32] = generator.normal(0.0, 0.05, (4, 32)).astype(np.float32)
        before, age, action = trial.state.astype(np.float64), trial.age.copy(), forces(env, trial.state, generator, t)
        trial.step(action)
        state, reward, ended = rule(before, scale * action[0].astype(np.float64))
        # A cart within a rounding of the limit may be on either side of it.
        clear = np.abs(np.abs(state[0]) - 4) > TOLERANCE if name == "swingup" else np.full(LANES, True)
        assert np.array_equal(trial.slot.terminated[clear], ended[clear]), t
        assert np.array_equal(trial.slot.truncated, age + 1 >= env.time_limit), t
        # The peak of the reward is 0.12 rad wide: a rounding of the angle shows.
        assert np.abs(trial.slot.reward - reward).max() <= 3 * TOLERANCE, t
        going_on = ~(trial.slot.terminated | trial.slot.truncated).astype(bool)
        assert apart(trial.state, state)[:, going_on].max() <= TOLERANCE, t
        observed = np.where(going_on, trial.slot.observation, trial.slot.final_observation)
        x, speed, theta, spin = state
        expected = np.array([x / 4, speed / 3, np.cos(theta), np.sin(theta), spin / 4]) if name == "swingup" else state
        assert np.abs(observed - expected).max() <= TOLERANCE, t
        ends += trial.slot.terminated.sum(dtype=int), trial.slot.truncated.sum(dtype=int)
        best = max(best, float(reward.max()))
    assert ends.min() > 20, ends
    assert best > 3.9 if name == "swingup" else best == 1.0


def test_episodes_start_hanging_and_slow(serial_worlds):
    state = Trial(envs.find("swingup"), 100_000, seed=3).state.astype(np.float64)
    from_below = np.mod(state[rules.THETA], 2 * math.pi) - math.pi  # both arcs, joined where the pole hangs
    for row, reach in (
        (state[rules.X], 1.0),
        (state[rules.X_DOT], 0.5),
        (from_below, math.pi / 2),
        (state[rules.THETA_DOT], 0.5),
    ):
        assert np.abs(row).max() <= reach + 1e-6 and row.min() < -0.999 * reach and row.max() > 0.999 * reach
        # Five standard errors of the mean and the variance of a uniform variable.
        assert abs(row.mean()) < 5 * 2 * reach / math.sqrt(12 * 100_000)
        assert abs(row.var() - reach**2 / 3) < 5 * 4 * reach**2 / math.sqrt(180 * 100_000)
    assert np.all(state[rules.THETA] >= -math.pi - 1e-6) and np.all(state[rules.THETA] < math.pi + 1e-6)
    assert (
        np.abs(np.corrcoef([state[rules.X], state[rules.X_DOT], from_below, state[rules.THETA_DOT]]) - np.eye(4)).max()
        < 0.02
    )


def test_seconds_upright_are_counted():
    trial = Trial(envs.find("swingup"), 3)
    for _ in range(30):
        trial.state[:] = np.array([[0.0, 3.99, 0.0], [0.0, 3.0, 0.0], [0.119, 0.0, 0.121], [0.0, 0.0, 0.0]])
        trial.age[:] = 999
        trial.step(np.zeros((1, 3), np.float32))
    episodes, length, _, upright_s = trial.world.episode_sums(trial.tensors).tolist()
    assert trial.slot.terminated.tolist() == [0, 1, 0] and trial.slot.truncated.tolist() == [1, 1, 1]
    assert episodes == 3 and length > 0
    assert upright_s == pytest.approx(30 * 2 / 60)


def test_full_pushes_equal_cartpole():
    """Equal up to rounding: the order of operations differs."""
    plain, shared, generator = (
        Trial(envs.find("cartpole"), 64, seed=5),
        Trial(CONTINUOUS, 64, seed=5),
        np.random.default_rng(3),
    )
    for _ in range(200):
        action = generator.integers(0, 2, (1, 64))
        plain.step(action)
        shared.step(2 * action - 1)
        assert np.abs(plain.state - shared.state).max() <= TOLERANCE
        assert np.array_equal(plain.slot.terminated, shared.slot.terminated)
        plain.state[:] = shared.state


@settings(max_examples=30, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**63 - 1), st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=80))
def test_invariants_of_every_episode(seed, pushes):
    trial = Trial(envs.find("swingup"), 4, seed=seed)
    for push in pushes:
        trial.step(np.full((1, 4), push, np.float32))
        x, speed, theta, spin = trial.state
        assert np.all(np.abs(x) < 4) and np.all(np.abs(speed) <= 3) and np.all(np.abs(spin) <= 4)
        assert np.all(np.abs(theta) <= math.pi + 1e-6)
        assert np.all(trial.slot.reward <= 4) and np.all(
            trial.slot.reward >= -1 - 0.05 * 16 - 0.01 * 25 - 1e-4 * 225 - 2 - 1e-5
        )
        assert np.abs(trial.slot.observation[2] ** 2 + trial.slot.observation[3] ** 2 - 1).max() < 1e-5


def test_picture_shows_pole_cart_and_rail():
    env = envs.find("swingup")
    p = device_params(env.Params())

    def at(theta: float, right: float, up: float) -> tuple[float, ...]:
        s = np.array([1.0, 0.0, theta, 0.0], np.float32)
        return env.pixel_shader.py_func(s, p, np.float32(0.5 + right / 9.6), np.float32(0.5 - up / 9.6))

    assert at(0.0, 1.0, 3.5) == ORANGE and at(math.pi, 1.0, -3.5) == ORANGE and at(math.pi / 2, 4.5, 0.0) == ORANGE
    assert at(0.0, 1.5, 0.3) == BLUE and at(0.0, 1.0, 0.0) == GREY
    assert at(0.0, -3.0, -0.52) == GREY and at(0.0, -3.8, -0.52) == RED
    pixels = torch.tensor([[at(0.0, 0.1 * column - 4.8, 0.1 * row - 4.8) for column in range(96)] for row in range(96)])
    assert len(pixels.reshape(-1, 3).unique(dim=0)) == 5
