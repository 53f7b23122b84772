"""Walk forward on two legs, as Gymnasium's Humanoid-v5 (`gymnasium/envs/mujoco/humanoid_v5.py`, version 1.4; Tassa,
Erez & Todorov 2012).

    reward = healthy_reward [healthy] + forward_reward_weight x_velocity - ctrl_cost_weight |action|^2
             - min(contact_cost_weight |cfrc_ext|^2, contact_cost_max)

x_velocity is that of the centre of mass. Healthy: the torso's height lies within its range. The episode ends when the
humanoid is not.
"""

from typing import NamedTuple

from numpy import float32

from operant.envs import Box, device
from operant.envs.physics import View, add_uniform, gymnasium_model, physics_env, sum_of_squares, write

SURVIVE, FORWARD, CONTROL, CONTACT = range(4)  # tallies: parts of the reward


class Params(NamedTuple):
    """Arguments of Gymnasium's Humanoid."""

    frame_skip: int = 5  # steps of the model, 0.003 s each
    forward_reward_weight: float = 1.25
    ctrl_cost_weight: float = 0.1
    contact_cost_weight: float = 5e-7
    contact_cost_max: float = 10.0
    healthy_reward: float = 5.0
    terminate_when_unhealthy: bool = True
    healthy_z_min: float = 1.0  # m
    healthy_z_max: float = 2.0
    reset_noise_scale: float = 1e-2
    exclude_current_positions_from_observation: bool = True
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


@device
def reset(d, p, key):
    add_uniform(d.qpos, p.reset_noise_scale, key, 0)
    add_uniform(d.qvel, p.reset_noise_scale, key, 32)


@device
def healthy(d, p):
    return p.healthy_z_min < d.qpos[2] < p.healthy_z_max


@device
def before(d, p):
    return d.mass_centre[0]


@device
def reward(d, x_before, action, p, tally):
    forward = p.forward_reward_weight * ((d.mass_centre[0] - x_before) / d.dt)
    survive = p.healthy_reward if healthy(d, p) else float32(0.0)
    control = p.ctrl_cost_weight * sum_of_squares(action)
    contact = min(p.contact_cost_weight * sum_of_squares(d.cfrc_ext), p.contact_cost_max)
    tally[SURVIVE] += survive
    tally[FORWARD] += forward
    tally[CONTROL] -= control
    tally[CONTACT] -= contact
    return forward + survive - (control + contact)


@device
def terminated(d, p):
    return p.terminate_when_unhealthy and not healthy(d, p)


@device
def observe(d, obs, p):
    """Positions, velocities, and without the world's and the root's: inertia, velocity, actuators, contacts."""
    at = write(obs, 0, d.qpos, 2 if p.exclude_current_positions_from_observation else 0)
    at = write(obs, at, d.qvel, 0)
    if p.include_cinert_in_observation:
        at = write(obs, at, d.cinert, 10)
    if p.include_cvel_in_observation:
        at = write(obs, at, d.cvel, 6)
    if p.include_qfrc_actuator_in_observation:
        at = write(obs, at, d.qfrc_actuator, 6)
    if p.include_cfrc_ext_in_observation:
        at = write(obs, at, d.cfrc_ext, 6)


def observation(params):
    size = 47 - 2 * params.exclude_current_positions_from_observation
    size += 130 * params.include_cinert_in_observation + 78 * params.include_cvel_in_observation
    return Box(size + 17 * params.include_qfrc_actuator_in_observation + 78 * params.include_cfrc_ext_in_observation)


READS = {
    "mass_centre": "subtree_com torso",
    "cinert": "cinert",
    "cvel": "cvel",
    "qfrc_actuator": "qfrc_actuator",
    "cfrc_ext": "cfrc_ext",
}

ENV = physics_env(
    Params,
    gymnasium_model("humanoid.xml"),
    observation=observation,
    action=Box(17, low=-0.4, high=0.4),
    time_limit=1000,
    reset=reset,
    before=before,
    reward=reward,
    terminated=terminated,
    observe=observe,
    reads=READS,
    view=View(width=3.5, azimuth=110.0, elevation=15.0, height=1.0),
    tally=("reward_survive", "reward_forward", "reward_ctrl", "reward_contact"),
    ranges={"frame_skip": (1, 1000), "reset_noise_scale": (0, None)},
    step_s=0.015,
    gymnasium="Humanoid-v5",
)
