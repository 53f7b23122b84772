"""Small environments whose every number can be worked out by hand, and what the learner's tests share."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from numpy import float32

from operant import envs
from operant.algos.ppo import PPO
from operant.compute.rng import integer, uniform
from operant.envs import Box, Discrete, Env, IntState, MultiDiscrete, device, with_pixels
from operant.envs.physics import PhysicsEnv
from operant.nn import mlp
from operant.worlds.device_world import DeviceWorld

RARELY = {
    "autoencode",
    "cartpole_positions",
    "concentration",
    "count_recall",
    "higher_lower",
    "memory_chain",
    "pendulum_positions",
    "repeat_first",
    "tmaze",
}
"""Environments that are built as others are, by the same helpers: what is compiled for every environment is compiled
for these in the long versions alone.
"""


PHYSICS = [name for name in envs.names() if isinstance(envs.find(name), PhysicsEnv)]
"""Environments on a robot's model, which take ten seconds and more to compile each, and need `mujoco`."""

ORDINARY = [name for name in envs.names() if name not in PHYSICS]

ROBOTS = {"half_cheetah", "ant", "humanoid", "dmc_finger_spin", "dmc_fish_swim"}
"""Robots of the slow tests: together they have most of what a model can have. Tests of the others are soak tests, as
each robot takes half a minute to two minutes to compile.
"""


def by_name(names: Any, plain: Any = None) -> list[Any]:
    """Names of environments as the parameters of a test: the plain suite takes all but the rare ones or, of those, the
    ones in `plain`. Of the robots outside `plain`, the slow tests take those of `ROBOTS`.
    """

    def marks(name: str) -> Any:
        if plain is None or name in plain:
            return pytest.mark.soak if name in RARELY else ()
        return pytest.mark.soak if name in RARELY or (name in PHYSICS and name not in ROBOTS) else pytest.mark.slow

    return [pytest.param(name, marks=marks(name)) for name in names]


def soak(*cases: Any) -> list[Any]:
    """Cases of a slow test that run with the soak tests only."""
    return [pytest.param(case, marks=pytest.mark.soak) for case in cases]


class NoParams(NamedTuple):
    """Nothing to choose."""


# COUNT: the observation counts the steps of the episode, the reward is the count after the step. Lane k > 0 terminates
# when the count reaches k, lane 0 never; the time limit of 3 truncates. So lane 3 terminates and is truncated at once.

COUNTED, LAST, COUNT_FIELDS = range(3)


@device
def _count_reset(s, p, key):
    s[COUNTED] = float32(0.0)
    s[LAST] = float32(key[2]) if key[2] > 0 else float32(1e6)


@device
def _count_step(s, action, p, key, tally):
    s[COUNTED] += float32(1.0)
    return s[COUNTED], s[COUNTED] >= s[LAST]


@device
def _count_observe(s, obs, p):
    obs[0] = s[COUNTED]


COUNT = Env(
    NoParams,
    COUNT_FIELDS,
    observation=Box(1),
    action=Discrete(2),
    time_limit=3,
    reset=_count_reset,
    step=_count_step,
    observe=_count_observe,
)


# PUSH: two places in [-1, 1], two pushes of different bounds; it pays to stand at zero. Terminates outside, truncates
# after 10 steps.


@device
def _push_reset(s, p, key):
    s[0] = uniform(key, 0) - float32(0.5)
    s[1] = uniform(key, 1) - float32(0.5)


@device
def _push_step(s, action, p, key, tally):
    s[0] += float32(0.2) * action[0] + float32(0.1) * (uniform(key, 0) - float32(0.5))
    s[1] += float32(0.4) * (action[1] - float32(0.5))
    return -(s[0] * s[0] + s[1] * s[1]), abs(s[0]) > float32(1.0) or abs(s[1]) > float32(1.0)


@device
def _push_observe(s, obs, p):
    obs[0] = s[0]
    obs[1] = s[1]
    obs[2] = s[0] * s[1]


PUSH = Env(
    NoParams,
    2,
    observation=Box(3),
    action=Box(2, low=(-1.0, 0.0), high=(1.0, 1.0)),
    time_limit=10,
    reset=_push_reset,
    step=_push_step,
    observe=_push_observe,
)


@functools.cache
def broad(observation: int) -> Env:
    """PUSH with this many observed values and 17 pushes, of which the first two act."""

    @device
    def observe(s, obs, p):
        for k in range(observation):
            obs[k] = s[k % 2] / (1 + k // 2)

    return replace(PUSH, observation=Box(observation), action=Box(17, low=-1.0, high=1.0), observe=observe)


# PICK: one of three and one of two; naming the number shown, and its parity, pays. Bytes for observations.


@device
def _pick_reset(s, p, key):
    s[0] = float32(int(uniform(key, 0) * float32(3.0)))
    s[1] = float32(0.0)


@device
def _pick_step(s, action, p, key, tally):
    right = float32(0.0)
    if action[0] == int(s[0]):
        right += float32(1.0)
    if action[1] == int(s[0]) % 2:
        right += float32(1.0)
    s[0] = float32(int(uniform(key, 0) * float32(3.0)))
    s[1] += float32(1.0)
    return right, s[1] > float32(4.0)


@device
def _pick_observe(s, obs, p):
    for k in range(3):
        obs[k] = 255 if int(s[0]) == k else 0


PICK = Env(
    NoParams,
    2,
    observation=Box(3, low=0, high=255, dtype="uint8"),
    action=MultiDiscrete((3, 2)),
    time_limit=8,
    reset=_pick_reset,
    step=_pick_step,
    observe=_pick_observe,
)


# GATE: one of three and one of two, of which not all are legal: never the number shown, and the second's 1 not while
# that is 1. Naming the number that follows pays, and so does the second's 1. What was illegal is counted, and changes
# nothing else.


@device
def _gate_reset(s, p, key):
    s[0] = float32(integer(key, 0, 3))


@device
def _gate_step(s, action, p, key, tally):
    shown = int(s[0])
    illegal = action[0] == shown or (action[1] == 1 and shown == 1)
    tally[0] += float32(1.0) if illegal else float32(0.0)
    reward = float32(1.0) if action[0] == (shown + 1) % 3 else float32(0.0)
    reward += float32(1.0) if action[1] == 1 else float32(0.0)
    s[0] = float32(integer(key, 0, 3))
    return float32(0.0) if illegal else reward, uniform(key, 1) < float32(0.1)


@device
def _gate_legal(s, mask, p):
    for k in range(3):
        mask[k] = 0 if int(s[0]) == k else 1
    mask[3] = 1
    mask[4] = 0 if int(s[0]) == 1 else 1


GATE = Env(
    NoParams,
    1,
    observation=Box(3, low=0, high=255, dtype="uint8"),
    action=MultiDiscrete((3, 2)),
    time_limit=8,
    reset=_gate_reset,
    step=_gate_step,
    observe=_pick_observe,
    legal=_gate_legal,
    tally=("illegal",),
)


# FILL: six squares, some full from the start; putting a stone onto an empty one is legal and pays its number. Ends when
# all are full. A board in cells, and a picture: column k is white where square k is full, grey where it is empty; the
# upper half is red while the number of stones is odd.

SQUARES = 6


@device
def _fill_reset(s, cells, workspace, p, key):
    first = integer(key, 0, SQUARES)
    for k in range(SQUARES):
        cells[k] = 1 if k == first else 0
    s[0] = float32(1.0)


@device
def _fill_step(s, cells, workspace, action, p, key, tally):
    free = cells[action] == 0
    cells[action] = 1
    s[0] += float32(1.0) if free else float32(0.0)
    tally[0] += float32(0.0) if free else float32(1.0)
    return float32(action) if free else float32(0.0), s[0] >= float32(SQUARES)


@device
def _fill_observe(s, cells, workspace, obs, p):
    for k in range(SQUARES):
        obs[k] = cells[k]


@device
def _fill_legal(s, cells, workspace, mask, p):
    for k in range(SQUARES):
        mask[k] = 1 - cells[k]


@device
def _fill_shade(s, cells, p, x, y):
    level = float32(1.0) if cells[int(x * float32(SQUARES))] == 1 else float32(0.5)
    odd = y < float32(0.5) and int(s[0]) % 2 == 1
    return level, float32(0.0) if odd else level, float32(0.0) if odd else level


FILL = Env(
    NoParams,
    1,
    observation=Box(SQUARES, low=0, high=1, dtype="uint8", categories=2),
    action=Discrete(SQUARES),
    time_limit=4,
    reset=_fill_reset,
    step=_fill_step,
    observe=_fill_observe,
    pixel_shader=_fill_shade,
    legal=_fill_legal,
    int_state=IntState(SQUARES, "int8"),
    workspace=1,
    tally=("illegal",),
)


# GATE and FILL, whose observations and masks are written in three shards.


@device
def _gate_observe_shard(s, obs, p, shard):
    obs[shard] = 255 if int(s[0]) == shard else 0


@device
def _gate_legal_shard(s, mask, p, shard):
    mask[shard] = 0 if int(s[0]) == shard else 1
    if shard > 0:
        mask[2 + shard] = 0 if shard == 2 and int(s[0]) == 1 else 1


@device
def _fill_observe_shard(s, cells, obs, p, shard):
    obs[2 * shard] = cells[2 * shard]
    obs[2 * shard + 1] = cells[2 * shard + 1]


@device
def _fill_legal_shard(s, cells, mask, p, shard):
    mask[2 * shard] = 1 - cells[2 * shard]
    mask[2 * shard + 1] = 1 - cells[2 * shard + 1]


GATE_IN_SHARDS = replace(GATE, observation_shards=3, observe=_gate_observe_shard, legal=_gate_legal_shard)
FILL_IN_SHARDS = replace(FILL, observation_shards=3, observe=_fill_observe_shard, legal=_fill_legal_shard)

SEEN = with_pixels(FILL, 16)
"""FILL, observed by its picture."""


def ppo_on(
    env: Env,
    lanes: int,
    net: mlp.Config | None = None,
    *,
    seed: int = 1,
    steps: int = 100_000,
    start: bool = True,
    **algo,
) -> PPO:
    """PPO on a fresh world, begun."""
    ppo = PPO(
        DeviceWorld(env, lanes, seed=seed), PPO.Config(**algo), net or mlp.Config(hidden=(16,)), seed=seed, steps=steps
    )
    if start:
        ppo.start()
    return ppo


def iterate(ppo: PPO, times: int) -> PPO:
    """Some whole iterations."""
    for _ in range(times):
        for phase in ppo.phases:
            phase.run()
    return ppo


def bytes_of(ppo: PPO) -> dict[str, bytes]:
    """Everything that a checkpoint would hold, as bytes."""
    return {name: tensor.numpy().tobytes() for name, tensor in ppo.state("all").items()}


def clones(ppo: PPO) -> dict[str, torch.Tensor]:
    """Everything that a checkpoint would hold, set aside."""
    return {name: tensor.clone() for name, tensor in ppo.state("all").items()}


# A USER'S OWN FILES, as texts

MY_ENV = '''
"""A line to walk on. The reward is not a number from step BREAKS on."""
from typing import NamedTuple
from numpy import float32, nan
from operant.envs import Box, Discrete, Env, device

BREAKS = 1_000_000

class Params(NamedTuple):
    bonus: float = 1.0

@device
def reset(s, p, key):
    s[0] = float32(0.0)

@device
def step(s, action, p, key, tally):
    s[0] += float32(1.0)
    reward = p.bonus
    if s[0] > float32(BREAKS):
        reward = float32(nan)
    return reward, False

@device
def observe(s, obs, p):
    obs[0] = s[0] * float32(0.01)

ENV = Env(Params, 1, observation=Box(1), action=Discrete(2), time_limit=100, reset=reset, step=step, observe=observe)
'''

MY_NET = """
from torch import nn

class MyNet(nn.Module):
    def __init__(self, observation, head):
        super().__init__()
        self.trunk = nn.Linear(observation, 8)
        self.head, self.value = nn.Linear(8, head), nn.Linear(8, 1)

    def forward(self, observation):
        features = self.trunk(observation).tanh()
        return self.head(features), self.value(features)
"""

LOTTERY = '''
"""An episode is one step that pays 1, less a random share of `luck`."""
from typing import NamedTuple
from numpy import float32
from operant.compute.rng import uniform
from operant.envs import Box, Discrete, Env, device

class Params(NamedTuple):
    luck: float = 1.0

@device
def reset(s, p, key):
    s[0] = float32(0.0)

@device
def step(s, action, p, key, tally):
    return float32(1.0) - p.luck * uniform(key, 0), True

@device
def observe(s, obs, p):
    obs[0] = s[0]

ENV = Env(Params, 1, observation=Box(1), action=Discrete(2), time_limit=1, reset=reset, step=step, observe=observe)
'''
