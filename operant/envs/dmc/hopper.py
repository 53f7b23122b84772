"""Stand or hop on one leg: dm_control's `hopper`.

    tall: torso 0.6 to 2 m above the foot
    reward = tall x small control (stand), or tall x fast, 2 m/s or more (hop)

Observation: positions without x, velocities, log(1 + N) of the forces at toe and heel.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device
from operant.envs.dmc.suite import View, controls, dmc_env
from operant.envs.physics import write
from operant.envs.tolerance import tolerance

TALL = tolerance(0.6, 2.0)
FAST = tolerance(2.0, math.inf, 1.0, "linear", 0.5)


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 4  # steps of the model, 0.005 s each


@device
def reset(d, p, key):
    pass


@device
def stand(d, past, action, p, tally):
    return TALL(d.torso[2] - d.foot[2]) * ((controls(action) + float32(4.0)) / float32(5.0))


@device
def hop(d, past, action, p, tally):
    return TALL(d.torso[2] - d.foot[2]) * FAST(d.velocity[0])


@device
def observe(d, obs, p):
    at = write(obs, write(obs, 0, d.qpos, 1), d.qvel, 0)
    obs[at], obs[at + 1] = math.log(float32(1.0) + d.toe[0]), math.log(float32(1.0) + d.heel[0])


def task(reward):
    return dmc_env(
        Params,
        "hopper",
        observation=15,
        action=4,
        reset=reset,
        reward=reward,
        observe=observe,
        random_joints=True,
        reads={
            "torso": "xipos torso",
            "foot": "xipos foot",
            "velocity": "sensor torso_subtreelinvel",
            "toe": "sensor touch_toe",
            "heel": "sensor touch_heel",
        },
        view=View(width=3.0, height=0.8),
        step_s=0.02,
    )


ENV_STAND = task(stand)
ENV_HOP = task(hop)
