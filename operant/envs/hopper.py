"""Hop forward on one leg, as Gymnasium's Hopper-v5 (`gymnasium/envs/mujoco/hopper_v5.py`, version 1.4; Erez, Tassa &
Todorov 2011).

    reward = healthy_reward [healthy] + forward_reward_weight x_velocity - ctrl_cost_weight |action|^2

Healthy: height and angle of the torso, and all other positions and velocities, lie within their ranges. The episode
ends when the hopper is not.
"""

from typing import NamedTuple

from numpy import float32

from operant.envs import Box, device
from operant.envs.physics import View, add_uniform, gymnasium_model, physics_env, sum_of_squares, write, write_clipped

FORWARD, CONTROL, SURVIVE = range(3)  # tallies: parts of the reward


class Params(NamedTuple):
    """Arguments of Gymnasium's Hopper. A bound of 1e30 is none."""

    frame_skip: int = 4  # steps of the model, 0.002 s each
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 1e-3
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_state_min: float = -100.0
    healthy_state_max: float = 100.0
    healthy_z_min: float = 0.7  # m
    healthy_z_max: float = 1e30
    healthy_angle_min: float = -0.2  # rad
    healthy_angle_max: float = 0.2
    reset_noise_scale: float = 5e-3
    exclude_current_positions_from_observation: bool = True


@device
def reset(d, p, key):
    add_uniform(d.qpos, p.reset_noise_scale, key, 0)
    add_uniform(d.qvel, p.reset_noise_scale, key, 16)


@device
def healthy(d, p):
    inside = p.healthy_z_min < d.qpos[1] < p.healthy_z_max
    inside &= p.healthy_angle_min < d.qpos[2] < p.healthy_angle_max
    for k in range(2, 6):
        inside &= p.healthy_state_min < d.qpos[k] < p.healthy_state_max
    for k in range(6):
        inside &= p.healthy_state_min < d.qvel[k] < p.healthy_state_max
    return inside


@device
def before(d, p):
    return d.qpos[0]


@device
def reward(d, x_before, action, p, tally):
    forward = p.forward_reward_weight * ((d.qpos[0] - x_before) / d.dt)
    survive = p.healthy_reward if healthy(d, p) else float32(0.0)
    control = p.ctrl_cost_weight * sum_of_squares(action)
    tally[FORWARD] += forward
    tally[CONTROL] -= control
    tally[SURVIVE] += survive
    return forward + survive - control


@device
def terminated(d, p):
    return p.terminate_when_unhealthy and not healthy(d, p)


@device
def observe(d, obs, p):
    at = write(obs, 0, d.qpos, 1 if p.exclude_current_positions_from_observation else 0)
    write_clipped(obs, at, d.qvel, 0, float32(-10.0), float32(10.0))


def observation(params):
    return Box(12 - params.exclude_current_positions_from_observation)


ENV = physics_env(
    Params,
    gymnasium_model("hopper.xml"),
    observation=observation,
    action=Box(3, low=-1.0, high=1.0),
    time_limit=1000,
    reset=reset,
    before=before,
    reward=reward,
    terminated=terminated,
    observe=observe,
    view=View(width=3.0, height=0.8),
    tally=("reward_forward", "reward_ctrl", "reward_survive"),
    ranges={"frame_skip": (1, 1000), "reset_noise_scale": (0, None)},
    step_s=0.008,
    gymnasium="Hopper-v5",
)
