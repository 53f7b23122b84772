"""Run forward with a planar, two-legged robot: dm_control's `cheetah`.

    reward = speed / 10 m/s, in [0, 1]

An episode starts with random joint angles, after 200 steps of the model without control. Observation: positions without
x, velocities.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device
from operant.envs.dmc.suite import View, dmc_env
from operant.envs.physics import write
from operant.envs.tolerance import tolerance

FAST = tolerance(10.0, math.inf, 10.0, "linear", 0.0)


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 1  # steps of the model, 0.01 s each


@device
def reset(d, p, key):
    d.qpos[2] = float32(0.0)  # only limited joints are random


@device
def reward(d, past, action, p, tally):
    return FAST(d.velocity[0])


@device
def observe(d, obs, p):
    write(obs, write(obs, 0, d.qpos, 1), d.qvel, 0)


ENV_RUN = dmc_env(
    Params,
    "cheetah",
    observation=17,
    action=6,
    reset=reset,
    reward=reward,
    observe=observe,
    random_joints=True,
    settle=200,
    reads={"velocity": "sensor torso_subtreelinvel"},
    view=View(width=4.0, height=0.8),
    step_s=0.01,
)
