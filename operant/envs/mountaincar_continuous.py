"""Mountain car with a throttle, as Gymnasium's MountainCarContinuous-v0.

Source: `gymnasium/envs/classic_control/continuous_mountain_car.py`, version 1.3. The valley is mountaincar's; the
engine, the goal and the reward differ.

Differences from Gymnasium
- The cost of the throttle is computed from the clipped action in [-1, 1], because the world clips Box actions before a
  step. Gymnasium drives by the clipped action and charges for the raw one: -0.1 * 5^2 for an action of 5. Actions
  within the bounds cost the same.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import Box, Env, device
from operant.envs.mountaincar import FIELDS, POSITION, VELOCITY, observe, pixel_shader, reset


class Params(NamedTuple):
    """Parameters of mountain car: constants of the car and the valley. A step is the unit of time, as in the source."""

    power: float = 0.0015  # m/step^2, acceleration at full throttle
    gravity: float = 0.0025  # m/step^2
    min_position: float = -1.2  # m, a wall that stops the car
    max_position: float = 0.6  # m
    max_speed: float = 0.07  # m/step
    goal_position: float = 0.45  # m
    goal_velocity: float = 0.0  # m/step, minimum at the goal
    goal_reward: float = 100.0
    throttle_cost: float = 0.1  # per step at full throttle


@device
def step(s, action, p, key, tally):
    position, velocity, throttle = s[POSITION], s[VELOCITY], action[0]
    velocity += throttle * p.power - p.gravity * math.cos(float32(3.0) * position)
    velocity = min(max(velocity, -p.max_speed), p.max_speed)
    position = min(max(position + velocity, p.min_position), p.max_position)
    if position == p.min_position and velocity < float32(0.0):
        velocity = float32(0.0)
    s[POSITION], s[VELOCITY] = position, velocity
    reward = -p.throttle_cost * throttle * throttle
    terminated = position >= p.goal_position and velocity >= p.goal_velocity
    if terminated:
        reward += p.goal_reward
    return reward, terminated


ENV = Env(
    Params,
    FIELDS,
    observation=Box(2, low=(-1.2, -0.07), high=(0.6, 0.07)),
    action=Box(1, low=-1.0, high=1.0),
    time_limit=999,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    step_s=1 / 30,
    ranges={
        "min_position": (-100.0, -0.6),
        "max_position": (-0.4, 100.0),
        "max_speed": (0.0, 100.0),
        "goal_position": (-100.0, 100.0),
        "goal_reward": (-1e6, 1e6),
        "throttle_cost": (-1e6, 1e6),
    },
    gymnasium="MountainCarContinuous-v0",
)
