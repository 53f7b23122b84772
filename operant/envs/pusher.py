"""Push a cylinder to a goal with a seven-jointed arm, as Gymnasium's Pusher-v5 (`gymnasium/envs/mujoco/pusher_v5.py`,
version 1.4).

    reward = -reward_near_weight |object - tip| - reward_dist_weight |object - goal| - reward_control_weight |action|^2

The object starts at random, at least 0.17 m from the goal. The episode ends by its time limit only.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.compute.rng import uniform4
from operant.envs import Box, device
from operant.envs.physics import View, add_uniform, gymnasium_model, physics_env, sum_of_squares

DISTANCE, CONTROL, NEAR = range(3)  # tallies: parts of the reward

TRIES = 64  # for an object far enough from the goal


class Params(NamedTuple):
    """Arguments of Gymnasium's Pusher."""

    frame_skip: int = 5  # steps of the model, 0.01 s each
    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 0.1


@device
def reset(d, p, key):
    add_uniform(d.qvel, float32(0.005), key, 16)
    x, y, k = float32(0.0), float32(0.0), 0
    while x * x + y * y <= float32(0.17 * 0.17) and k < TRIES:
        u0, u1, _, _ = uniform4(key, 32 + k)
        x, y, k = float32(0.3) * u0 - float32(0.3), float32(0.4) * u1 - float32(0.2), k + 1
    d.qpos[7], d.qpos[8], d.qpos[9], d.qpos[10] = x, y, float32(0.0), float32(0.0)
    for k in range(7, 11):
        d.qvel[k] = float32(0.0)


@device
def distance(a, b):
    x, y, z = a[0] - b[0], a[1] - b[1], a[2] - b[2]
    return math.sqrt(x * x + y * y + z * z)


@device
def reward(d, past, action, p, tally):
    near = p.reward_near_weight * distance(d.object, d.tips_arm)
    far = p.reward_dist_weight * distance(d.object, d.goal)
    control = p.reward_control_weight * sum_of_squares(action)
    tally[DISTANCE] -= far
    tally[CONTROL] -= control
    tally[NEAR] -= near
    return -far - control - near


@device
def observe(d, obs, p):
    for k in range(7):
        obs[k], obs[7 + k] = d.qpos[k], d.qvel[k]
    for k in range(3):
        obs[14 + k], obs[17 + k], obs[20 + k] = d.tips_arm[k], d.object[k], d.goal[k]


ENV = physics_env(
    Params,
    gymnasium_model("pusher_v5.xml"),
    observation=Box(23),
    action=Box(7, low=-2.0, high=2.0),
    time_limit=100,
    reset=reset,
    reward=reward,
    observe=observe,
    reads={"tips_arm": "xpos tips_arm", "object": "xpos object", "goal": "xpos goal"},
    view=View(width=2.2, azimuth=0.0, elevation=40.0, height=0.0, follow=False, grid=0.25),
    tally=("reward_dist", "reward_ctrl", "reward_near"),
    ranges={"frame_skip": (1, 1000)},
    step_s=0.05,
    gymnasium="Pusher-v5",
)
