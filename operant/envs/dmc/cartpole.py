"""Balance a pole on a cart, or swing it up: dm_control's `cartpole`.

    reward = (1 + cos) / 2 x small control x small angular velocity x near the middle       (smooth)
    reward = 1 where |x| <= 0.25 m and cos >= 0.995, else 0                                  (sparse)

Observation: x, cos, sin, velocities of cart and pole.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device, uniform
from operant.envs.dmc.suite import View, controls, dmc_env
from operant.envs.physics import normal2
from operant.envs.tolerance import tolerance

CENTRED = tolerance(margin=2.0)
SLOW = tolerance(margin=5.0)
IN_BOUNDS = tolerance(-0.25, 0.25)
UPRIGHT = tolerance(0.995, math.inf)


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 1  # steps of the model, 0.01 s each


@device
def nearly_upright(d, p, key):
    d.qpos[0] = float32(0.2) * uniform(key, 0) - float32(0.1)
    d.qpos[1] = float32(0.068) * uniform(key, 1) - float32(0.034)
    v0, v1 = normal2(key, 2)
    d.qvel[0], d.qvel[1] = float32(0.01) * v0, float32(0.01) * v1


@device
def hanging(d, p, key):
    x, angle = normal2(key, 0)
    d.qpos[0], d.qpos[1] = float32(0.01) * x, float32(math.pi) + float32(0.01) * angle
    v0, v1 = normal2(key, 1)
    d.qvel[0], d.qvel[1] = float32(0.01) * v0, float32(0.01) * v1


@device
def smooth(d, past, action, p, tally):
    upright = (d.pole[8] + float32(1.0)) / float32(2.0)
    centred = (float32(1.0) + CENTRED(d.qpos[0])) / float32(2.0)
    small_control = (float32(4.0) + controls(action)) / float32(5.0)
    slow = (float32(1.0) + SLOW(d.qvel[1])) / float32(2.0)
    return upright * small_control * slow * centred


@device
def sparse(d, past, action, p, tally):
    return IN_BOUNDS(d.qpos[0]) * UPRIGHT(d.pole[8])


@device
def observe(d, obs, p):
    obs[0], obs[1], obs[2] = d.qpos[0], d.pole[8], d.pole[2]
    obs[3], obs[4] = d.qvel[0], d.qvel[1]


def task(reset, reward):
    return dmc_env(
        Params,
        "cartpole",
        observation=5,
        action=1,
        reset=reset,
        reward=reward,
        observe=observe,
        reads={"pole": "xmat pole_1"},
        view=View(width=4.0, height=1.0, follow=False),
        step_s=0.01,
    )


ENV_BALANCE = task(nearly_upright, smooth)
ENV_BALANCE_SPARSE = task(nearly_upright, sparse)
ENV_SWINGUP = task(hanging, smooth)
ENV_SWINGUP_SPARSE = task(hanging, sparse)
