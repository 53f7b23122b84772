"""Run forward on four legs, as Gymnasium's Ant-v5 (`gymnasium/envs/mujoco/ant_v5.py`, version 1.4; Schulman et al.
2016).

    reward = healthy_reward [healthy] + forward_reward_weight x_velocity - ctrl_cost_weight |action|^2
             - contact_cost_weight |clip(cfrc_ext)|^2

x_velocity is that of the torso. Healthy: the torso's height lies within its range. The episode ends when the ant is
not.
"""

from typing import NamedTuple

from numpy import float32

from operant.envs import Box, device
from operant.envs.physics import (
    View,
    add_normal,
    add_uniform,
    gymnasium_model,
    physics_env,
    sum_of_squares,
    write,
    write_clipped,
)

FORWARD, CONTROL, CONTACT, SURVIVE = range(4)  # tallies: parts of the reward


class Params(NamedTuple):
    """Arguments of Gymnasium's Ant."""

    frame_skip: int = 5  # steps of the model, 0.01 s each
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_min: float = 0.2  # m
    healthy_z_max: float = 1.0
    contact_force_min: float = -1.0
    contact_force_max: float = 1.0
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


@device
def reset(d, p, key):
    add_uniform(d.qpos, p.reset_noise_scale, key, 0)
    add_normal(d.qvel, p.reset_noise_scale, key, 16)


@device
def healthy(d, p):
    total = float32(0.0)  # NaN or infinite if a number of the state is
    for k in range(15):
        total += abs(d.qpos[k])
    for k in range(14):
        total += abs(d.qvel[k])
    return p.healthy_z_min <= d.qpos[2] <= p.healthy_z_max and total < float32(1e30)


@device
def before(d, p):
    return d.torso[0]


@device
def reward(d, x_before, action, p, tally):
    forward = p.forward_reward_weight * ((d.torso[0] - x_before) / d.dt)
    survive = p.healthy_reward if healthy(d, p) else float32(0.0)
    control = p.ctrl_cost_weight * sum_of_squares(action)
    squares = float32(0.0)
    for k in range(len(d.cfrc_ext)):
        force = min(max(d.cfrc_ext[k], p.contact_force_min), p.contact_force_max)
        squares += force * force
    contact = p.contact_cost_weight * squares
    tally[FORWARD] += forward
    tally[CONTROL] -= control
    tally[CONTACT] -= contact
    tally[SURVIVE] += survive
    return forward + survive - (control + contact)


@device
def terminated(d, p):
    return p.terminate_when_unhealthy and not healthy(d, p)


@device
def observe(d, obs, p):
    at = write(obs, 0, d.qpos, 2 if p.exclude_current_positions_from_observation else 0)
    at = write(obs, at, d.qvel, 0)
    if p.include_cfrc_ext_in_observation:  # without the world's
        write_clipped(obs, at, d.cfrc_ext, 6, p.contact_force_min, p.contact_force_max)


def observation(params):
    size = 29 - 2 * params.exclude_current_positions_from_observation
    return Box(size + 78 * params.include_cfrc_ext_in_observation)


ENV = physics_env(
    Params,
    gymnasium_model("ant.xml"),
    observation=observation,
    action=Box(8, low=-1.0, high=1.0),
    time_limit=1000,
    reset=reset,
    before=before,
    reward=reward,
    terminated=terminated,
    observe=observe,
    reads={"torso": "xpos torso", "cfrc_ext": "cfrc_ext"},
    view=View(width=4.0, azimuth=110.0, elevation=30.0, height=0.4),
    tally=("reward_forward", "reward_ctrl", "reward_contact", "reward_survive"),
    ranges={"frame_skip": (1, 1000), "reset_noise_scale": (0, None)},
    step_s=0.05,
    gymnasium="Ant-v5",
)
