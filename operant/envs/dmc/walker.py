"""Stand, walk or run with a planar, two-legged robot: dm_control's `walker`.

    stand = (3 tall + (1 + upright) / 2) / 4,  tall: torso at 1.2 m or higher
    reward = stand, or stand (5 fast + 1) / 6 for walking at 1 m/s or running at 8 m/s

Observation: cos and sin of each body's angle, height of the torso, velocities.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device
from operant.envs.dmc.suite import View, dmc_env
from operant.envs.physics import write
from operant.envs.tolerance import tolerance

BODIES = 7
TALL = tolerance(1.2, math.inf, 0.6)


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 10  # steps of the model, 0.0025 s each


@device
def reset(d, p, key):
    pass


@device
def stand(d, past, action, p, tally):
    upright = (float32(1.0) + d.xmat[9 + 8]) / float32(2.0)
    return (float32(3.0) * TALL(d.torso[2]) + upright) / float32(4.0)


def moving(speed):
    fast = tolerance(speed, math.inf, speed / 2.0, "linear", 0.5)

    @device
    def reward(d, past, action, p, tally):
        return stand(d, past, action, p, tally) * (float32(5.0) * fast(d.velocity[0]) + float32(1.0)) / float32(6.0)

    return reward


@device
def observe(d, obs, p):
    for k in range(BODIES):
        obs[2 * k], obs[2 * k + 1] = d.xmat[9 * k + 9], d.xmat[9 * k + 11]
    obs[2 * BODIES] = d.torso[2]
    write(obs, 2 * BODIES + 1, d.qvel, 0)


def task(reward):
    return dmc_env(
        Params,
        "walker",
        observation=24,
        action=6,
        reset=reset,
        reward=reward,
        observe=observe,
        random_joints=True,
        reads={"xmat": "xmat", "torso": "xpos torso", "velocity": "sensor torso_subtreelinvel"},
        view=View(width=4.0, height=1.0),
        step_s=0.025,
    )


ENV_STAND = task(stand)
ENV_WALK = task(moving(1.0))
ENV_RUN = task(moving(8.0))
