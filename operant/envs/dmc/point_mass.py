"""Push a point to the middle of a plane and hold it there: dm_control's `point_mass`.

    reward = near the target (within 0.015 m, decreasing beyond it) x small control

Observation: position and velocity.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device
from operant.envs.dmc.suite import View, controls, dmc_env
from operant.envs.tolerance import tolerance

NEAR = tolerance(0.0, 0.015, 0.015)


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 1  # steps of the model, 0.02 s each


@device
def reset(d, p, key):
    pass


@device
def reward(d, past, action, p, tally):
    x, y = d.qpos[0], d.qpos[1]
    return NEAR(math.sqrt(x * x + y * y)) * ((controls(action) + float32(4.0)) / float32(5.0))


@device
def observe(d, obs, p):
    obs[0], obs[1], obs[2], obs[3] = d.qpos[0], d.qpos[1], d.qvel[0], d.qvel[1]


ENV_EASY = dmc_env(
    Params,
    "point_mass",
    observation=4,
    action=2,
    reset=reset,
    reward=reward,
    observe=observe,
    random_joints=True,
    view=View(width=0.7, elevation=89.0, height=0.0, follow=False, grid=0.1),
    step_s=0.02,
)
