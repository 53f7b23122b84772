"""Right a fish, or swim with it to a target: dm_control's `fish`.

    reward = upright                              (upright)
    reward = (7 near + (1 + upright) / 2) / 8     (swim), near: mouth within 0.045 m of the target, decreasing beyond it

Observation: joint angles, uprightness, (swim: vector from mouth to target in the frame of the mouth), velocities.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device, uniform
from operant.envs.dmc.suite import View, dmc_env
from operant.envs.physics import normal2, write
from operant.envs.tolerance import tolerance

UPRIGHT = tolerance(1.0, 1.0, 1.0)
RADIUS = 0.04  # m, of the target
REACH = RADIUS + 0.005  # m, with the mouth's radius
NEAR = tolerance(0.0, REACH, 2.0 * REACH)


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 10  # steps of the model, 0.004 s each


@device
def turned(d, key):
    """Draw a rotation, uniform over all, and joint angles within 0.2 rad."""
    a, b = normal2(key, 0)
    c, e = normal2(key, 1)
    scale = float32(1.0) / math.sqrt(a * a + b * b + c * c + e * e)
    d.qpos[3], d.qpos[4], d.qpos[5], d.qpos[6] = a * scale, b * scale, c * scale, e * scale
    for k in range(7, len(d.qpos)):
        d.qpos[k] = float32(0.4) * uniform(key, k) - float32(0.2)


@device
def reset_upright(d, p, key):
    turned(d, key)


@device
def reset_swim(d, p, key):
    turned(d, key)
    d.target[0] = float32(0.8) * uniform(key, 32) - float32(0.4)
    d.target[1] = float32(0.8) * uniform(key, 33) - float32(0.4)
    d.target[2] = float32(0.2) * uniform(key, 34) + float32(0.1)


@device
def upright(d, past, action, p, tally):
    return UPRIGHT(d.torso[8])


@device
def swim(d, past, action, p, tally):
    x, y, z = d.target[0] - d.mouth[0], d.target[1] - d.mouth[1], d.target[2] - d.mouth[2]
    near = NEAR(math.sqrt(x * x + y * y + z * z))
    return (float32(7.0) * near + float32(0.5) * (d.torso[8] + float32(1.0))) / float32(8.0)


@device
def observe_upright(d, obs, p):
    at = write(obs, 0, d.qpos, 7)
    obs[at] = d.torso[8]
    write(obs, at + 1, d.qvel, 0)


@device
def observe_swim(d, obs, p):
    at = write(obs, 0, d.qpos, 7)
    obs[at] = d.torso[8]
    x, y, z = d.target[0] - d.mouth[0], d.target[1] - d.mouth[1], d.target[2] - d.mouth[2]
    for k in range(3):
        obs[at + 1 + k] = x * d.frame[k] + y * d.frame[3 + k] + z * d.frame[6 + k]
    write(obs, at + 4, d.qvel, 0)


VIEW = View(width=1.2, azimuth=135.0, elevation=30.0, height=0.15, grid=0.1, hidden=("target",))

ENV_UPRIGHT = dmc_env(
    Params,
    "fish",
    observation=21,
    action=5,
    reset=reset_upright,
    reward=upright,
    observe=observe_upright,
    reads={"torso": "xmat torso"},
    view=VIEW,
    step_s=0.04,
)
ENV_SWIM = dmc_env(
    Params,
    "fish",
    observation=24,
    action=5,
    reset=reset_swim,
    reward=swim,
    observe=observe_swim,
    reads={"torso": "xmat torso", "mouth": "geom_xpos mouth", "frame": "geom_xmat mouth"},
    state={"target": 3},
    view=VIEW._replace(marks=(("target", RADIUS),)),
    step_s=0.04,
)
