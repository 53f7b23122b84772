"""Cart-pole with continuous actions: cartpole's rules with a push from -1 (full force to the left) to 1.

Source: Gymnasium's CartPole-v1, as in `operant.envs.cartpole`. The accelerations are those of `operant.envs.swingup`,
which solve the same equations of motion.
"""

from numpy import float32

from operant.envs import Box, Env, device
from operant.envs.cartpole import ENV as CARTPOLE
from operant.envs.cartpole import FIELDS, THETA, THETA_DOT, X_DOT, Params, X, observe, pixel_shader, reset
from operant.envs.swingup import accelerations


@device
def step(s, action, p, key, tally):
    x, x_dot, theta, theta_dot = s[X], s[X_DOT], s[THETA], s[THETA_DOT]
    x_acceleration, theta_acceleration = accelerations(theta, theta_dot, p.force * action[0], p)
    # Explicit Euler: positions move by the old velocities.
    x += p.tau * x_dot
    x_dot += p.tau * x_acceleration
    theta += p.tau * theta_dot
    theta_dot += p.tau * theta_acceleration
    s[X], s[X_DOT], s[THETA], s[THETA_DOT] = x, x_dot, theta, theta_dot
    return float32(1.0), abs(x) > p.x_limit or abs(theta) > p.theta_limit


ENV = Env(
    Params,
    FIELDS,
    observation=CARTPOLE.observation,
    action=Box(1, low=-1.0, high=1.0),
    time_limit=CARTPOLE.time_limit,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    ranges=CARTPOLE.ranges,
)
