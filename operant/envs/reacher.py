"""Move the tip of a two-jointed arm to a target, as Gymnasium's Reacher-v5 (`gymnasium/envs/mujoco/reacher_v5.py`,
version 1.4).

    reward = -reward_dist_weight |tip - target| - reward_control_weight |action|^2

The target is uniform in a disc of 0.2 m. The episode ends by its time limit only.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.compute.rng import uniform4
from operant.envs import Box, device
from operant.envs.physics import View, add_uniform, gymnasium_model, physics_env, sum_of_squares

DISTANCE, CONTROL = range(2)  # tallies: parts of the reward

TRIES = 64  # for a target inside the disc; all fail with a probability of 1e-43


class Params(NamedTuple):
    """Arguments of Gymnasium's Reacher."""

    frame_skip: int = 2  # steps of the model, 0.01 s each
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0


@device
def reset(d, p, key):
    add_uniform(d.qpos, float32(0.1), key, 0)
    add_uniform(d.qvel, float32(0.005), key, 16)
    x, y, k = float32(0.2), float32(0.2), 0
    while x * x + y * y >= float32(0.04) and k < TRIES:
        u0, u1, _, _ = uniform4(key, 32 + k)
        x, y, k = float32(0.4) * u0 - float32(0.2), float32(0.4) * u1 - float32(0.2), k + 1
    d.qpos[2], d.qpos[3] = x, y
    d.qvel[2], d.qvel[3] = float32(0.0), float32(0.0)


@device
def reward(d, past, action, p, tally):
    x, y, z = d.tip[0] - d.target[0], d.tip[1] - d.target[1], d.tip[2] - d.target[2]
    distance = p.reward_dist_weight * math.sqrt(x * x + y * y + z * z)
    control = p.reward_control_weight * sum_of_squares(action)
    tally[DISTANCE] -= distance
    tally[CONTROL] -= control
    return -distance - control


@device
def observe(d, obs, p):
    obs[0], obs[1] = math.cos(d.qpos[0]), math.cos(d.qpos[1])
    obs[2], obs[3] = math.sin(d.qpos[0]), math.sin(d.qpos[1])
    obs[4], obs[5] = d.qpos[2], d.qpos[3]
    obs[6], obs[7] = d.qvel[0], d.qvel[1]
    obs[8], obs[9] = d.tip[0] - d.target[0], d.tip[1] - d.target[1]


ENV = physics_env(
    Params,
    gymnasium_model("reacher.xml"),
    observation=Box(10),
    action=Box(2, low=-1.0, high=1.0),
    time_limit=50,
    reset=reset,
    reward=reward,
    observe=observe,
    reads={"tip": "xpos fingertip", "target": "xpos target"},
    view=View(width=0.6, elevation=89.0, height=0.0, follow=False, grid=0.1),
    tally=("reward_dist", "reward_ctrl"),
    ranges={"frame_skip": (1, 1000)},
    step_s=0.02,
    gymnasium="Reacher-v5",
)
