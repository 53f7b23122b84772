"""Swing a ball on a string into the cup that it hangs from: dm_control's `ball_in_cup`.

    reward = 1 where the ball is in the cup, else 0

An episode starts with the ball at a random place in which nothing touches. Observation: positions of cup and ball (x, z
each), velocities.
"""

from typing import NamedTuple

from numpy import float32

from operant.envs import device, uniform
from operant.envs.dmc.suite import View, dmc_env

INSIDE = float32(0.025)  # m, largest offset of the ball from the cup's middle: half side of the zone less the radius


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 10  # steps of the model, 0.002 s each


@device
def reset(d, p, key):
    d.qpos[2] = float32(0.4) * uniform(key, 0) - float32(0.2)
    d.qpos[3] = float32(0.2) + float32(0.3) * uniform(key, 1)


@device
def reward(d, past, action, p, tally):
    x, z = abs(d.cup[0] - d.ball[0]), abs(d.cup[2] - d.ball[2])
    return float32(1.0) if x < INSIDE and z < INSIDE else float32(0.0)


@device
def observe(d, obs, p):
    for k in range(4):
        obs[k], obs[4 + k] = d.qpos[k], d.qvel[k]


ENV_CATCH = dmc_env(
    Params,
    "ball_in_cup",
    observation=8,
    action=2,
    reset=reset,
    reward=reward,
    observe=observe,
    tries=100,
    reads={"cup": "site_xpos target", "ball": "xpos ball"},
    view=View(width=1.2, height=0.5, follow=False, grid=0.1),
    step_s=0.02,
)
