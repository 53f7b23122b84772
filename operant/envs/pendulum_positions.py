"""Pendulum with hidden velocity: the observation is the rod's direction. Everything else is `operant/envs/pendulum.py`.

(POPGym's PositionOnlyPendulum hides the same value.)

Optimum: about -150, as with the velocity. Without memory: about -1040, the best result of an evolutionary search over
small networks.
"""

import math
from dataclasses import replace

from operant.envs import Box, device
from operant.envs.pendulum import ENV as PENDULUM
from operant.envs.pendulum import THETA


@device
def observe(s, obs, p):
    theta = s[THETA]
    obs[0], obs[1] = math.cos(theta), math.sin(theta)


ENV = replace(PENDULUM, observation=Box(2, low=-1.0, high=1.0), observe=observe, gymnasium=None)
