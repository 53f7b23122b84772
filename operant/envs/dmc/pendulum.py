"""Swing a pendulum up with a weak motor: dm_control's `pendulum`.

    reward = 1 within 8 degrees of upright, else 0

Observation: cosine, sine, velocity.
"""

import math
from typing import NamedTuple

from operant.envs import device
from operant.envs.dmc.suite import View, dmc_env
from operant.envs.tolerance import tolerance

UPRIGHT = tolerance(math.cos(math.radians(8.0)), math.inf)


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 1  # steps of the model, 0.02 s each


@device
def reset(d, p, key):
    pass


@device
def reward(d, past, action, p, tally):
    return UPRIGHT(d.pole[8])


@device
def observe(d, obs, p):
    obs[0], obs[1], obs[2] = d.pole[8], d.pole[2], d.qvel[0]


ENV_SWINGUP = dmc_env(
    Params,
    "pendulum",
    observation=3,
    action=1,
    reset=reset,
    reward=reward,
    observe=observe,
    random_joints=True,
    reads={"pole": "xmat pole"},
    view=View(width=2.0, height=0.6, follow=False),
    step_s=0.02,
)
