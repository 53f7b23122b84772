"""Run forward with a planar, two-legged robot, as Gymnasium's HalfCheetah-v5
(`gymnasium/envs/mujoco/half_cheetah_v5.py`, version 1.4; Wawrzynski 2009).

    reward = forward_reward_weight x_velocity - ctrl_cost_weight |action|^2

x_velocity, m/s, is the mean over the step. The episode ends by its time limit only.
"""

from typing import NamedTuple

from operant.envs import Box, device
from operant.envs.physics import View, add_normal, add_uniform, gymnasium_model, physics_env, sum_of_squares, write

FORWARD, CONTROL = range(2)  # tallies: parts of the reward


class Params(NamedTuple):
    """Arguments of Gymnasium's HalfCheetah."""

    frame_skip: int = 5  # steps of the model, 0.01 s each
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True


@device
def reset(d, p, key):
    add_uniform(d.qpos, p.reset_noise_scale, key, 0)
    add_normal(d.qvel, p.reset_noise_scale, key, 16)


@device
def before(d, p):
    return d.qpos[0]


@device
def reward(d, x_before, action, p, tally):
    forward = p.forward_reward_weight * ((d.qpos[0] - x_before) / d.dt)
    control = p.ctrl_cost_weight * sum_of_squares(action)
    tally[FORWARD] += forward
    tally[CONTROL] -= control
    return forward - control


@device
def observe(d, obs, p):
    write(obs, write(obs, 0, d.qpos, 1 if p.exclude_current_positions_from_observation else 0), d.qvel, 0)


def observation(params):
    return Box(18 - params.exclude_current_positions_from_observation)


ENV = physics_env(
    Params,
    gymnasium_model("half_cheetah.xml"),
    observation=observation,
    action=Box(6, low=-1.0, high=1.0),
    time_limit=1000,
    reset=reset,
    before=before,
    reward=reward,
    observe=observe,
    view=View(width=4.0, height=0.8),
    tally=("reward_forward", "reward_ctrl"),
    ranges={"frame_skip": (1, 1000), "reset_noise_scale": (0, None)},
    step_s=0.05,
    gymnasium="HalfCheetah-v5",
)
