"""Swing two links up by the joint between them: dm_control's `acrobot`.

    reward = 1 where the tip is within 0.2 m of the target above, decreasing beyond it (0 for the sparse task)

Observation: sines of both links' angles, cosines, velocities.
"""

import math
from typing import NamedTuple

from operant.envs import device
from operant.envs.dmc.suite import View, dmc_env
from operant.envs.tolerance import tolerance


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 1  # steps of the model, 0.01 s each


@device
def reset(d, p, key):
    pass


@device
def observe(d, obs, p):
    obs[0], obs[1], obs[2], obs[3] = d.upper[2], d.lower[2], d.upper[8], d.lower[8]
    obs[4], obs[5] = d.qvel[0], d.qvel[1]


def task(margin):
    near = tolerance(0.0, 0.2, margin)

    @device
    def reward(d, past, action, p, tally):
        x, y, z = d.target[0] - d.tip[0], d.target[1] - d.tip[1], d.target[2] - d.tip[2]
        return near(math.sqrt(x * x + y * y + z * z))

    return dmc_env(
        Params,
        "acrobot",
        observation=6,
        action=1,
        reset=reset,
        reward=reward,
        observe=observe,
        random_joints=True,
        reads={
            "upper": "xmat upper_arm",
            "lower": "xmat lower_arm",
            "target": "site_xpos target",
            "tip": "site_xpos tip",
        },
        view=View(width=5.0, height=2.0, follow=False, marks=(("target", 0.2),)),
        step_s=0.01,
    )


ENV_SWINGUP = task(1.0)
ENV_SWINGUP_SPARSE = task(0.0)
