"""CartPole of which only positions are seen: where the cart is and how the pole leans, not how fast they move. All else
is `operant/envs/cartpole.py`.

(POPGym's PositionOnlyCartPole hides the same two numbers, and pays 1 / 200, 1 / 400 or 1 / 600 a step up to as many
steps.)

Optimum: 500. Without memory: about 47, the best that PPO and an evolutionary search over small networks came to.
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
