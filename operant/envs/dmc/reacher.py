"""Move the finger of a two-jointed arm into a target: dm_control's `reacher`.

    reward = 1 where finger and target touch, else 0

The target has a radius of 0.05 m (easy) or 0.015 m (hard); it is 0.05 to 0.2 m from the shoulder. Observation: angles,
vector from finger to target, velocities.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device, uniform
from operant.envs.dmc.suite import View, dmc_env
from operant.envs.tolerance import tolerance

FINGER = 0.01  # m, radius


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 1  # steps of the model, 0.02 s each


@device
def reset(d, p, key):
    angle = float32(2.0 * math.pi) * uniform(key, 0)
    radius = float32(0.05) + float32(0.15) * uniform(key, 1)
    d.target[0], d.target[1], d.target[2] = radius * math.sin(angle), radius * math.cos(angle), float32(0.01)


@device
def observe(d, obs, p):
    obs[0], obs[1] = d.qpos[0], d.qpos[1]
    obs[2], obs[3] = d.target[0] - d.finger[0], d.target[1] - d.finger[1]
    obs[4], obs[5] = d.qvel[0], d.qvel[1]


def task(radius):
    near = tolerance(0.0, radius + FINGER)

    @device
    def reward(d, past, action, p, tally):
        x, y = d.target[0] - d.finger[0], d.target[1] - d.finger[1]
        return near(math.sqrt(x * x + y * y))

    return dmc_env(
        Params,
        "reacher",
        observation=6,
        action=2,
        reset=reset,
        reward=reward,
        observe=observe,
        random_joints=True,
        reads={"finger": "geom_xpos finger"},
        state={"target": 3},
        view=View(
            width=0.7,
            elevation=89.0,
            height=0.0,
            follow=False,
            grid=0.1,
            marks=(("target", radius),),
            hidden=("target",),
        ),
        step_s=0.02,
    )


ENV_EASY = task(0.05)
ENV_HARD = task(0.015)
