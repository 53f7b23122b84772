"""Cart-pole with hidden velocities: the observation is the cart's position and the pole's angle. Everything else is
`operant/envs/cartpole.py`.

(POPGym's PositionOnlyCartPole hides the same two values, and pays 1 / 200, 1 / 400 or 1 / 600 per step with that number
of steps as the limit.)

Optimum: 500. Without memory: about 47, the best result of PPO and of an evolutionary search over small networks.
"""

import math
from dataclasses import replace

from operant.envs import Box, device
from operant.envs.cartpole import ENV as CARTPOLE
from operant.envs.cartpole import THETA, X


@device
def observe(s, obs, p):
    x, theta = s[X], s[THETA]
    obs[0], obs[1] = x, theta


ENV = replace(
    CARTPOLE,
    observation=Box(2, low=(-4.8, -24 * math.pi / 180), high=(4.8, 24 * math.pi / 180)),
    observe=observe,
    gymnasium=None,
)
