"""Balance two poles, one on the other, on a cart, as Gymnasium's InvertedDoublePendulum-v5
(`gymnasium/envs/mujoco/inverted_double_pendulum_v5.py`, version 1.4).

With the tip at (x, y), m, and the poles' velocities v1 and v2, rad/s:

    reward = healthy_reward [y > 1] - 0.01 x^2 - (y - 2)^2 - 0.001 v1^2 - 0.005 v2^2

The episode ends when y <= 1.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import Box, device
from operant.envs.physics import View, add_normal, add_uniform, gymnasium_model, physics_env

SURVIVE, DISTANCE, VELOCITY = range(3)  # tallies: parts of the reward


class Params(NamedTuple):
    """Arguments of Gymnasium's InvertedDoublePendulum."""

    frame_skip: int = 5  # steps of the model, 0.01 s each
    healthy_reward: float = 10.0
    reset_noise_scale: float = 0.1


@device
def reset(d, p, key):
    add_uniform(d.qpos, p.reset_noise_scale, key, 0)
    add_normal(d.qvel, p.reset_noise_scale, key, 16)


@device
def terminated(d, p):
    return not d.tip[2] > float32(1.0)  # true for NaN


@device
def reward(d, past, action, p, tally):
    x, y, v1, v2 = d.tip[0], d.tip[2], d.qvel[1], d.qvel[2]
    survive = float32(0.0) if terminated(d, p) else p.healthy_reward
    distance = float32(0.01) * x * x + (y - float32(2.0)) * (y - float32(2.0))
    velocity = float32(1e-3) * v1 * v1 + float32(5e-3) * v2 * v2
    tally[SURVIVE] += survive
    tally[DISTANCE] -= distance
    tally[VELOCITY] -= velocity
    return survive - distance - velocity


@device
def clipped(x):
    return min(max(x, float32(-10.0)), float32(10.0))


@device
def observe(d, obs, p):
    obs[0] = d.qpos[0]
    obs[1], obs[2] = math.sin(d.qpos[1]), math.sin(d.qpos[2])
    obs[3], obs[4] = math.cos(d.qpos[1]), math.cos(d.qpos[2])
    obs[5], obs[6], obs[7] = clipped(d.qvel[0]), clipped(d.qvel[1]), clipped(d.qvel[2])
    obs[8] = clipped(d.constraint[0])


ENV = physics_env(
    Params,
    gymnasium_model("inverted_double_pendulum.xml"),
    observation=Box(9),
    action=Box(1, low=-1.0, high=1.0),
    time_limit=1000,
    reset=reset,
    reward=reward,
    terminated=terminated,
    observe=observe,
    reads={"tip": "site_xpos tip", "constraint": "qfrc_constraint"},
    view=View(width=3.0, elevation=5.0, height=0.6, follow=False),
    tally=("reward_survive", "distance_penalty", "velocity_penalty"),
    ranges={"frame_skip": (1, 1000), "reset_noise_scale": (0, None)},
    step_s=0.05,
    gymnasium="InvertedDoublePendulum-v5",
)
