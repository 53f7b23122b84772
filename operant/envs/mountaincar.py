"""Mountain car (Moore 1990; Sutton 1996), as Gymnasium's MountainCar-v0
(`gymnasium/envs/classic_control/mountain_car.py`, version 1.3).
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import GREEN, GREY, GROUND, RED, YELLOW, Box, Discrete, Env, device, in_box, in_disc, uniform

POSITION, VELOCITY, FIELDS = range(3)  # rows of the state: m, m/step


class Params(NamedTuple):
    """Parameters of mountain car: constants of the car and the valley. A step is the unit of time, as in the source."""

    force: float = 0.001  # m/step^2, acceleration of the engine
    gravity: float = 0.0025  # m/step^2
    min_position: float = -1.2  # m, a wall that stops the car
    max_position: float = 0.6  # m
    max_speed: float = 0.07  # m/step
    goal_position: float = 0.5  # m
    goal_velocity: float = 0.0  # m/step, minimum at the goal


@device
def reset(s, p, key):
    s[POSITION] = float32(0.2) * uniform(key, 0) - float32(0.6)
    s[VELOCITY] = float32(0.0)


@device
def step(s, action, p, key, tally):
    position, velocity = s[POSITION], s[VELOCITY]
    velocity += float32(action - 1) * p.force - p.gravity * math.cos(float32(3.0) * position)
    velocity = min(max(velocity, -p.max_speed), p.max_speed)
    position = min(max(position + velocity, p.min_position), p.max_position)
    if position == p.min_position and velocity < float32(0.0):
        velocity = float32(0.0)
    s[POSITION], s[VELOCITY] = position, velocity
    return float32(-1.0), position >= p.goal_position and velocity >= p.goal_velocity


@device
def observe(s, obs, p):
    obs[0] = s[POSITION]
    obs[1] = s[VELOCITY]


@device
def hill(position):
    """Height of the valley's ground at a position, m, for pictures only: the rules use its slope."""
    return float32(0.45) * math.sin(float32(3.0) * position) + float32(0.55)


@device
def incline(position):
    """Slope of the valley's ground at a position, m/m."""
    return float32(1.35) * math.cos(float32(3.0) * position)


@device
def pixel_shader(s, p, x, y):
    # The view extends past the walls, so that the whole car is visible there.
    width = p.max_position - p.min_position + float32(0.2)
    right, up = p.min_position - float32(0.1) + x * width, (float32(0.88) - y) * width
    flag_foot = hill(p.goal_position)
    # Centre of the car: at a fixed distance from the ground, along its normal.
    slope = incline(s[POSITION])
    away = float32(0.13) / math.sqrt(float32(1.0) + slope * slope)
    if in_disc(right, up, s[POSITION] - slope * away, hill(s[POSITION]) + away, float32(0.1)):
        return RED
    if in_box(right, up, p.goal_position - float32(0.08), flag_foot + float32(0.36), float32(0.1), float32(0.07)):
        return YELLOW
    if in_box(right, up, p.goal_position, flag_foot + float32(0.21), float32(0.032), float32(0.22)):
        return GREY
    slope = incline(right)
    if abs(up - hill(right)) < float32(0.03) * math.sqrt(float32(1.0) + slope * slope):
        return GREEN
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(2, low=(-1.2, -0.07), high=(0.6, 0.07)),
    action=Discrete(3),
    time_limit=200,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    actions=("left", "coast", "right"),
    step_s=1 / 30,
    ranges={
        # Episodes start at positions from -0.6 to -0.4.
        "min_position": (-100.0, -0.6),
        "max_position": (-0.4, 100.0),
        "max_speed": (0.0, 100.0),
        "goal_position": (-100.0, 100.0),
    },
    gymnasium="MountainCar-v0",
)
