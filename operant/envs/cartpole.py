"""Cart-pole (Barto, Sutton & Anderson 1983), as Gymnasium's CartPole-v1 (`gymnasium/envs/classic_control/cartpole.py`,
version 1.3).
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import BLUE, GREY, GROUND, ORANGE, Box, Discrete, Env, device, in_box, in_disc, in_rod, uniform4

X, X_DOT, THETA, THETA_DOT, FIELDS = range(5)  # rows of the state: m, m/s, rad, rad/s


class Params(NamedTuple):
    """Parameters of cart-pole: constants of the cart and the pole."""

    gravity: float = 9.8  # m/s^2
    mass_cart: float = 1.0  # kg
    mass_pole: float = 0.1  # kg
    half_length: float = 0.5  # m, from the hinge to the pole's centre of mass
    force: float = 10.0  # N, the size of a push
    tau: float = 0.02  # s, between two steps
    x_limit: float = 2.4  # m
    theta_limit: float = 12 * 2 * math.pi / 360  # rad


@device
def reset(s, p, key):
    u0, u1, u2, u3 = uniform4(key, 0)
    s[X] = float32(0.1) * u0 - float32(0.05)
    s[X_DOT] = float32(0.1) * u1 - float32(0.05)
    s[THETA] = float32(0.1) * u2 - float32(0.05)
    s[THETA_DOT] = float32(0.1) * u3 - float32(0.05)


@device
def step(s, action, p, key, tally):
    x, x_dot, theta, theta_dot = s[X], s[X_DOT], s[THETA], s[THETA_DOT]
    force = p.force if action == 1 else -p.force
    cos_theta = math.cos(theta)
    sin_theta = math.sin(theta)

    # Equations of motion without friction (Florian 2007, equations 23 and 24).
    mass = p.mass_cart + p.mass_pole
    pole_moment = p.mass_pole * p.half_length
    push = (force + pole_moment * theta_dot * theta_dot * sin_theta) / mass
    lever = p.half_length * (float32(4.0) / float32(3.0) - p.mass_pole * cos_theta * cos_theta / mass)
    theta_acceleration = (p.gravity * sin_theta - cos_theta * push) / lever
    x_acceleration = push - pole_moment * theta_acceleration * cos_theta / mass

    # Explicit Euler: positions move by the old velocities.
    x += p.tau * x_dot
    x_dot += p.tau * x_acceleration
    theta += p.tau * theta_dot
    theta_dot += p.tau * theta_acceleration
    s[X], s[X_DOT], s[THETA], s[THETA_DOT] = x, x_dot, theta, theta_dot
    return float32(1.0), abs(x) > p.x_limit or abs(theta) > p.theta_limit


@device
def observe(s, obs, p):
    # Load every field before the first store: s and obs might alias, and each store would delay the next load.
    x, x_dot, theta, theta_dot = s[X], s[X_DOT], s[THETA], s[THETA_DOT]
    obs[0], obs[1], obs[2], obs[3] = x, x_dot, theta, theta_dot


@device
def pixel_shader(s, p, x, y):
    # The view extends past the limits, so that the whole cart is visible when the episode fails.
    width = float32(2.0) * p.x_limit + float32(1.2)
    right, up = (x - float32(0.5)) * width, (float32(0.75) - y) * width
    # Draw the pole at three times its length; otherwise it would vanish in a small picture.
    length = float32(6.0) * p.half_length
    hinge_y = float32(0.2)
    tip_x, tip_y = s[X] + length * math.sin(s[THETA]), hinge_y + length * math.cos(s[THETA])
    if in_disc(right, up, s[X], hinge_y, float32(0.13)):
        return GREY
    if in_rod(right, up, s[X], hinge_y, tip_x, tip_y, float32(0.11)):
        return ORANGE
    if in_box(right, up, s[X], float32(0.0), float32(0.5), float32(0.25)):
        return BLUE
    # The track ends where the episode does.
    if in_box(right, up, float32(0.0), float32(-0.345), p.x_limit, float32(0.095)):
        return GREY
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(
        4, low=(-4.8, -math.inf, -24 * math.pi / 180, -math.inf), high=(4.8, math.inf, 24 * math.pi / 180, math.inf)
    ),
    action=Discrete(2),
    time_limit=500,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    actions=("left", "right"),
    ranges={
        # Episodes start within 0.05 of the centre. (The observation's bounds are those of the default limits; with
        # wider limits, observed values may exceed them.)
        "gravity": (-1000.0, 1000.0),
        "mass_cart": (0.001, 1000.0),
        "mass_pole": (0.0, 1000.0),
        "half_length": (0.001, 1000.0),
        "force": (0.0, 10_000.0),
        "tau": (0.0001, 1.0),
        "x_limit": (0.06, 1000.0),
        "theta_limit": (0.06, math.pi),
    },
    gymnasium="CartPole-v1",
)
