"""Acrobot (Sutton 1996), as Gymnasium's Acrobot-v1 (`gymnasium/envs/classic_control/acrobot.py`, version 1.3), with the
dynamics of Sutton & Barto's book.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import (
    BLUE,
    GREY,
    GROUND,
    ORANGE,
    YELLOW,
    Box,
    Discrete,
    Env,
    device,
    in_box,
    in_disc,
    in_rod,
    uniform4,
)

# rows of the state: rad from hanging, rad relative to link 1, rad/s, rad/s
THETA_1, THETA_2, THETA_1_DOT, THETA_2_DOT, FIELDS = range(5)

PI = float32(math.pi)
TURN = float32(2.0 * math.pi)


class Params(NamedTuple):
    """Parameters of acrobot: constants of the two links."""

    gravity: float = 9.8  # m/s^2
    length_1: float = 1.0  # m
    length_2: float = 1.0  # m
    mass_1: float = 1.0  # kg
    mass_2: float = 1.0  # kg
    centre_1: float = 0.5  # m, from the joint to the link's centre of mass
    centre_2: float = 0.5  # m
    inertia: float = 1.0  # kg m^2, of each link
    torque: float = 1.0  # N m, on the joint between the links
    tau: float = 0.2  # s, between two steps
    max_speed_1: float = 4 * math.pi  # rad/s
    max_speed_2: float = 9 * math.pi  # rad/s
    target_height: float = 1.0  # m above the fixed joint


@device
def reset(s, p, key):
    u0, u1, u2, u3 = uniform4(key, 0)
    s[THETA_1] = float32(0.2) * u0 - float32(0.1)
    s[THETA_2] = float32(0.2) * u1 - float32(0.1)
    s[THETA_1_DOT] = float32(0.2) * u2 - float32(0.1)
    s[THETA_2_DOT] = float32(0.2) * u3 - float32(0.1)


@device
def accelerations(theta_1, theta_2, dot_1, dot_2, torque, p):
    """Angular accelerations of acrobot's two links, rad/s^2, from their angles, their velocities (`dot_1`, `dot_2`) and
    the torque between them (Sutton & Barto, Reinforcement Learning, acrobot example).
    """
    sin_2, cos_2 = math.sin(theta_2), math.cos(theta_2)
    coupling = p.mass_2 * p.length_1 * p.centre_2
    own_2 = p.mass_2 * p.centre_2 * p.centre_2 + p.inertia
    d_1 = (
        p.mass_1 * p.centre_1 * p.centre_1
        + p.mass_2 * p.length_1 * p.length_1
        + own_2
        + float32(2.0) * coupling * cos_2
        + p.inertia
    )
    d_2 = own_2 + coupling * cos_2
    # The source's cos(x - pi/2) is sin(x).
    phi_2 = p.mass_2 * p.centre_2 * p.gravity * math.sin(theta_1 + theta_2)
    phi_1 = (
        -coupling * dot_2 * (dot_2 + float32(2.0) * dot_1) * sin_2
        + (p.mass_1 * p.centre_1 + p.mass_2 * p.length_1) * p.gravity * math.sin(theta_1)
        + phi_2
    )
    share = d_2 / d_1
    acceleration_2 = (torque + share * phi_1 - coupling * dot_1 * dot_1 * sin_2 - phi_2) / (own_2 - share * d_2)
    return -(d_2 * acceleration_2 + phi_1) / d_1, acceleration_2


@device
def wrap(angle):
    """Wrap an angle to [-pi, pi). No loop: a non-finite angle must not hang the kernel."""
    return angle - TURN * float32(math.floor((angle + PI) / TURN))


@device
def step(s, action, p, key, tally):
    theta_1, theta_2, dot_1, dot_2 = s[THETA_1], s[THETA_2], s[THETA_1_DOT], s[THETA_2_DOT]
    torque = float32(action - 1) * p.torque

    # Classical Runge-Kutta step (RK4): y' = y + tau / 6 (k1 + 2 k2 + 2 k3 + k4).
    a, b, c, d = theta_1, theta_2, dot_1, dot_2
    sum_a, sum_b, sum_c, sum_d = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
    for stage in range(4):
        k_c, k_d = accelerations(a, b, c, d, torque, p)
        k_a, k_b = c, d
        weight = float32(1.0) if stage == 0 or stage == 3 else float32(2.0)
        sum_a += weight * k_a
        sum_b += weight * k_b
        sum_c += weight * k_c
        sum_d += weight * k_d
        step_size = p.tau if stage == 2 else float32(0.5) * p.tau
        a, b, c, d = (
            theta_1 + step_size * k_a,
            theta_2 + step_size * k_b,
            dot_1 + step_size * k_c,
            dot_2 + step_size * k_d,
        )
    sixth = p.tau / float32(6.0)
    theta_1 = wrap(theta_1 + sixth * sum_a)
    theta_2 = wrap(theta_2 + sixth * sum_b)
    s[THETA_1], s[THETA_2] = theta_1, theta_2
    s[THETA_1_DOT] = min(max(dot_1 + sixth * sum_c, -p.max_speed_1), p.max_speed_1)
    s[THETA_2_DOT] = min(max(dot_2 + sixth * sum_d, -p.max_speed_2), p.max_speed_2)

    terminated = -p.length_1 * math.cos(theta_1) - p.length_2 * math.cos(theta_1 + theta_2) > p.target_height
    return float32(0.0) if terminated else float32(-1.0), terminated


@device
def observe(s, obs, p):
    theta_1, theta_2, theta_1_dot, theta_2_dot = s[THETA_1], s[THETA_2], s[THETA_1_DOT], s[THETA_2_DOT]
    obs[0], obs[1] = math.cos(theta_1), math.sin(theta_1)
    obs[2], obs[3] = math.cos(theta_2), math.sin(theta_2)
    obs[4], obs[5] = theta_1_dot, theta_2_dot


@device
def pixel_shader(s, p, x, y):
    reach = float32(1.1) * (p.length_1 + p.length_2)
    right, up = reach * (float32(2.0) * x - float32(1.0)), reach * (float32(1.0) - float32(2.0) * y)
    both = s[THETA_1] + s[THETA_2]
    elbow_x, elbow_y = p.length_1 * math.sin(s[THETA_1]), -p.length_1 * math.cos(s[THETA_1])
    hand_x, hand_y = elbow_x + p.length_2 * math.sin(both), elbow_y - p.length_2 * math.cos(both)
    zero = float32(0.0)
    if in_disc(right, up, zero, zero, float32(0.16)) or in_disc(right, up, elbow_x, elbow_y, float32(0.16)):
        return YELLOW
    if in_rod(right, up, elbow_x, elbow_y, hand_x, hand_y, float32(0.12)):
        return ORANGE
    if in_rod(right, up, zero, zero, elbow_x, elbow_y, float32(0.12)):
        return BLUE
    if in_box(right, up, zero, p.target_height, reach, float32(0.07)):
        return GREY
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(
        6, low=(-1.0, -1.0, -1.0, -1.0, -4 * math.pi, -9 * math.pi), high=(1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)
    ),
    action=Discrete(3),
    time_limit=500,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    actions=("left", "rest", "right"),
    ranges={
        # With inertia 0 the equations of motion can be singular; heavy, long and fast links together overflow float32
        # within a step.
        "gravity": (-100.0, 100.0),
        "length_1": (0.1, 5.0),
        "length_2": (0.1, 5.0),
        "mass_1": (0.1, 10.0),
        "mass_2": (0.1, 10.0),
        "centre_1": (0.0, 2.0),
        "centre_2": (0.0, 2.0),
        "inertia": (0.5, 100.0),
        "torque": (-100.0, 100.0),
        "tau": (0.0001, 0.25),
        "max_speed_1": (0.0, 50.0),
        "max_speed_2": (0.0, 50.0),
    },
    gymnasium="Acrobot-v1",
)
