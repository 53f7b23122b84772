"""Pendulum swing-up, as Gymnasium's Pendulum-v1 (`gymnasium/envs/classic_control/pendulum.py`, version 1.3).

The angle is measured from upright and never wrapped in the state, as in the source; only the cost uses the wrapped
angle.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import GREY, GROUND, RED, Box, Env, device, in_disc, in_rod, uniform4

THETA, THETA_DOT, FIELDS = range(3)  # rows of the state: rad, rad/s

PI = float32(math.pi)
TURN = float32(2.0 * math.pi)


class Params(NamedTuple):
    """Parameters of the pendulum: constants of the rod."""

    gravity: float = 10.0  # m/s^2
    mass: float = 1.0  # kg
    length: float = 1.0  # m
    tau: float = 0.05  # s, between two steps
    max_speed: float = 8.0  # rad/s


@device
def reset(s, p, key):
    u0, u1, _, _ = uniform4(key, 0)
    s[THETA] = TURN * u0 - PI
    s[THETA_DOT] = float32(2.0) * u1 - float32(1.0)


@device
def step(s, action, p, key, tally):
    theta, theta_dot, torque = s[THETA], s[THETA_DOT], action[0]  # torque in N m

    # Cost of the state before the step.
    from_upright = theta - TURN * float32(math.floor((theta + PI) / TURN))
    cost = from_upright * from_upright + float32(0.1) * theta_dot * theta_dot + float32(0.001) * torque * torque

    # Semi-implicit Euler: the angle moves by the new velocity.
    acceleration = (
        float32(1.5) * p.gravity / p.length * math.sin(theta) + float32(3.0) / (p.mass * p.length * p.length) * torque
    )
    theta_dot = min(max(theta_dot + p.tau * acceleration, -p.max_speed), p.max_speed)
    s[THETA], s[THETA_DOT] = theta + p.tau * theta_dot, theta_dot
    return -cost, False


@device
def observe(s, obs, p):
    theta, theta_dot = s[THETA], s[THETA_DOT]
    obs[0], obs[1], obs[2] = math.cos(theta), math.sin(theta), theta_dot


@device
def pixel_shader(s, p, x, y):
    right, up = float32(2.6) * (x - float32(0.5)), float32(2.6) * (float32(0.5) - y)  # rod lengths
    if in_disc(right, up, float32(0.0), float32(0.0), float32(0.09)):
        return GREY
    if in_rod(right, up, float32(0.0), float32(0.0), -math.sin(s[THETA]), math.cos(s[THETA]), float32(0.13)):
        return RED
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(3, low=(-1.0, -1.0, -8.0), high=(1.0, 1.0, 8.0)),
    action=Box(1, low=-2.0, high=2.0),
    time_limit=200,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    ranges={
        "gravity": (-100.0, 100.0),
        "mass": (0.001, 1000.0),
        "length": (0.001, 1000.0),
        "tau": (0.0001, 1.0),
        "max_speed": (0.0, 1000.0),
    },
    gymnasium="Pendulum-v1",
)
