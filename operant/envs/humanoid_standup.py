"""Stand up from lying on the back, as Gymnasium's HumanoidStandup-v5 (`gymnasium/envs/mujoco/humanoidstandup_v5.py`,
version 1.4; Tassa, Erez & Todorov 2012).

With the torso's height z and the model's time step h:

    reward = z / h - ctrl_cost_weight |action|^2 - min(impact_cost_weight |cfrc_ext|^2, impact_cost_max) + 1

The episode ends by its time limit only.
"""

from typing import NamedTuple

from numpy import float32

from operant.envs import Box, device
from operant.envs.humanoid import READS, observation, observe, reset
from operant.envs.physics import View, gymnasium_model, physics_env, sum_of_squares

UP, CONTROL, IMPACT = range(3)  # tallies: parts of the reward


class Params(NamedTuple):
    """Arguments of Gymnasium's HumanoidStandup, except `uph_cost_weight`, which it does not use."""

    frame_skip: int = 5  # steps of the model, 0.003 s each
    ctrl_cost_weight: float = 0.1
    impact_cost_weight: float = 0.5e-6
    impact_cost_max: float = 10.0
    reset_noise_scale: float = 1e-2
    exclude_current_positions_from_observation: bool = True
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


@device
def reward(d, past, action, p, tally):
    up = d.qpos[2] * float32(p.frame_skip) / d.dt
    control = p.ctrl_cost_weight * sum_of_squares(action)
    impact = min(p.impact_cost_weight * sum_of_squares(d.cfrc_ext), p.impact_cost_max)
    tally[UP] += up
    tally[CONTROL] -= control
    tally[IMPACT] -= impact
    return up - control - impact + float32(1.0)


ENV = physics_env(
    Params,
    gymnasium_model("humanoidstandup.xml"),
    observation=observation,
    action=Box(17, low=-0.4, high=0.4),
    time_limit=1000,
    reset=reset,
    reward=reward,
    observe=observe,
    reads=READS,
    view=View(width=3.5, azimuth=110.0, elevation=15.0, height=0.7),
    tally=("reward_linup", "reward_quadctrl", "reward_impact"),
    ranges={"frame_skip": (1, 1000), "reset_noise_scale": (0, None)},
    step_s=0.015,
    gymnasium="HumanoidStandup-v5",
)
