"""Cart-pole swing-up: swing a pole up and balance it by pushing its cart. The task of the project "RL entirely on GPU"
(Bertil Braun, github.com/BertilBraun/RL-entirely-on-GPU).

Source: `src/environment/cartpole.py` there, for constants, reward and order of operations. With the state before the
step and the force F:

    reward = cos theta + 3 exp(-theta^2 / 0.12^2) - 0.05 x^2 - 0.01 theta_dot^2 - 0.01 x_dot^2 - 1e-4 F^2
             - 2 [|x| >= 3.5]

The maximum is 4 per step, and swinging up takes some hundred steps. The episode ends when the cart reaches the end of
its rail. Integration is semi-implicit Euler; velocities are clipped after they have moved the positions. The angle is
measured from upright and wrapped to [-pi, pi).
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import BLUE, GREY, GROUND, ORANGE, RED, Box, Env, device, in_box, in_disc, in_rod, uniform4

X, X_DOT, THETA, THETA_DOT, FIELDS = range(5)  # rows of the state: m, m/s, rad, rad/s
(UPRIGHT_S,) = range(1)  # tallies: seconds within PEAK of upright

PI = float32(math.pi)
TURN = float32(2.0 * math.pi)
PEAK = float32(0.12)  # rad, the width of the reward's peak around upright


class Params(NamedTuple):
    """Parameters of the swing-up: constants of the cart, the pole and the rail."""

    gravity: float = 9.81  # m/s^2
    mass_cart: float = 1.0  # kg
    mass_pole: float = 0.01  # kg
    half_length: float = 1.0  # m, from the hinge to the pole's centre of mass
    tau: float = 1.0 / 60.0  # s, between two steps
    max_speed: float = 3.0  # m/s, of the cart
    max_spin: float = 4.0  # rad/s, of the pole
    x_limit: float = 4.0  # m, end of the rail and of the episode
    x_danger: float = 3.5  # m, beyond which each step costs 2


@device
def accelerations(theta, theta_dot, force, p):
    """Accelerations of cart, m/s^2, and pole, rad/s^2, under a horizontal force in N (Florian 2007, equations 23 and
    24, without friction).
    """
    sin_theta, cos_theta = math.sin(theta), math.cos(theta)
    mass = p.mass_cart + p.mass_pole
    pole_moment = p.mass_pole * p.half_length
    push = (force + pole_moment * theta_dot * theta_dot * sin_theta) / mass
    lever = p.half_length * (float32(4.0) / float32(3.0) - p.mass_pole * cos_theta * cos_theta / mass)
    theta_acceleration = (p.gravity * sin_theta - cos_theta * push) / lever
    return push - pole_moment * theta_acceleration * cos_theta / mass, theta_acceleration


@device
def reset(s, p, key):
    u0, u1, u2, u3 = uniform4(key, 0)
    # Uniform over the lower half circle: pi/2 to 3/2 pi, wrapped.
    theta = float32(0.5) * PI + PI * u2
    s[X] = float32(2.0) * u0 - float32(1.0)
    s[X_DOT] = u1 - float32(0.5)
    s[THETA] = theta if theta < PI else theta - TURN
    s[THETA_DOT] = u3 - float32(0.5)


@device
def step(s, action, p, key, tally):
    x, x_dot, theta, theta_dot, force = s[X], s[X_DOT], s[THETA], s[THETA_DOT], action[0]  # force in N

    # Reward of the state before the step.
    reward = math.cos(theta) + float32(3.0) * math.exp(-theta * theta / (PEAK * PEAK))
    reward -= (
        float32(0.05) * x * x + float32(0.01) * (theta_dot * theta_dot + x_dot * x_dot) + float32(1e-4) * force * force
    )
    if abs(x) >= p.x_danger:
        reward -= float32(2.0)
    # No branch: it would make the step five times slower on a CPU.
    tally[UPRIGHT_S] += p.tau if abs(theta) < PEAK else float32(0.0)

    x_acceleration, theta_acceleration = accelerations(theta, theta_dot, force, p)
    x_dot += p.tau * x_acceleration
    x += p.tau * x_dot
    theta_dot += p.tau * theta_acceleration
    theta += p.tau * theta_dot
    s[X], s[THETA] = x, theta - TURN * float32(math.floor((theta + PI) / TURN))
    s[X_DOT] = min(max(x_dot, -p.max_speed), p.max_speed)
    s[THETA_DOT] = min(max(theta_dot, -p.max_spin), p.max_spin)
    return reward, abs(x) >= p.x_limit


@device
def observe(s, obs, p):
    x, x_dot, theta, theta_dot = s[X], s[X_DOT], s[THETA], s[THETA_DOT]
    obs[0], obs[1] = x / p.x_limit, x_dot / p.max_speed
    obs[2], obs[3] = math.cos(theta), math.sin(theta)
    obs[4] = theta_dot / p.max_spin


@device
def pixel_shader(s, p, x, y):
    width = float32(2.0) * p.x_limit + float32(1.6)
    right, up = (x - float32(0.5)) * width, (float32(0.5) - y) * width
    # Draw the pole at 1.8 times its length; otherwise it would vanish in a small picture.
    length = float32(3.6) * p.half_length
    tip_x, tip_y = s[X] + length * math.sin(s[THETA]), length * math.cos(s[THETA])
    if in_disc(right, up, s[X], float32(0.0), float32(0.18)):
        return GREY
    if in_rod(right, up, s[X], float32(0.0), tip_x, tip_y, float32(0.2)):
        return ORANGE
    if in_box(right, up, s[X], float32(0.0), float32(0.8), float32(0.4)):
        return BLUE
    if in_box(right, up, float32(0.0), float32(-0.52), p.x_limit, float32(0.12)):
        return GREY if abs(right) < p.x_danger else RED
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    # The last step can move the cart slightly beyond the rail.
    observation=Box(5, low=(-1.25, -1.0, -1.0, -1.0, -1.0), high=(1.25, 1.0, 1.0, 1.0, 1.0)),
    action=Box(1, low=-15.0, high=15.0),
    time_limit=1000,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    ranges={
        # Episodes start within 1 m, 0.5 m/s and 0.5 rad/s; observations are fractions of the limits.
        "gravity": (-100.0, 100.0),
        "mass_cart": (0.1, 1000.0),
        "mass_pole": (0.0, 100.0),
        "half_length": (0.05, 100.0),
        "tau": (0.0001, 0.1),
        "max_speed": (0.5, 50.0),
        "max_spin": (0.5, 1000.0),
        "x_limit": (1.0, 1000.0),
    },
    tally=("upright_s",),
)
