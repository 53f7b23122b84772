"""Stand, walk or run with a humanoid of 21 motors: dm_control's `humanoid`.

    stand = tall x upright x small control, tall: head at 1.4 m or higher
    reward = stand x slow (stand), or stand (5 fast + 1) / 6 for 1 m/s (walk) or 10 m/s (run)

An episode starts with random joint angles and a random rotation, in which nothing touches. Observation: joint angles,
height of the head, hands and feet in the frame of the torso, the vertical in it, velocity of the centre of mass,
velocities; for `run_pure_state` positions and velocities.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device
from operant.envs.dmc.suite import View, controls, dmc_env
from operant.envs.physics import write
from operant.envs.tolerance import tolerance

TALL = tolerance(1.4, math.inf, 0.35)
UPRIGHT = tolerance(0.9, math.inf, 1.9, "linear", 0.0)
SLOW = tolerance(margin=2.0)


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 5  # steps of the model, 0.005 s each


@device
def reset(d, p, key):
    pass


@device
def posture(d, action):
    return TALL(d.head[2]) * UPRIGHT(d.frame[8]) * ((float32(4.0) + controls(action)) / float32(5.0))


@device
def stand(d, past, action, p, tally):
    return posture(d, action) * ((SLOW(d.velocity[0]) + SLOW(d.velocity[1])) / float32(2.0))


def moving(speed):
    fast = tolerance(speed, math.inf, speed, "linear", 0.0)

    @device
    def reward(d, past, action, p, tally):
        now = math.sqrt(d.velocity[0] * d.velocity[0] + d.velocity[1] * d.velocity[1])
        return posture(d, action) * ((float32(5.0) * fast(now) + float32(1.0)) / float32(6.0))

    return reward


@device
def write_local(obs, at, d, limb):
    """Write the position of a limb in the frame of the torso. Returns the next place."""
    x, y, z = limb[0] - d.torso[0], limb[1] - d.torso[1], limb[2] - d.torso[2]
    for k in range(3):
        obs[at + k] = x * d.frame[k] + y * d.frame[3 + k] + z * d.frame[6 + k]
    return at + 3


@device
def observe(d, obs, p):
    at = write(obs, 0, d.qpos, 7)
    obs[at] = d.head[2]
    at = write_local(obs, at + 1, d, d.left_hand)
    at = write_local(obs, at, d, d.left_foot)
    at = write_local(obs, at, d, d.right_hand)
    at = write_local(obs, at, d, d.right_foot)
    at = write(obs, write(obs, at, d.frame, 6), d.velocity, 0)
    write(obs, at, d.qvel, 0)


@device
def observe_state(d, obs, p):
    write(obs, write(obs, 0, d.qpos, 0), d.qvel, 0)


def task(reward, observe, size):
    return dmc_env(
        Params,
        "humanoid",
        observation=size,
        action=21,
        reset=reset,
        reward=reward,
        observe=observe,
        random_joints=True,
        tries=100,
        reads={
            "frame": "xmat torso",
            "torso": "xpos torso",
            "head": "xpos head",
            "left_hand": "xpos left_hand",
            "left_foot": "xpos left_foot",
            "right_hand": "xpos right_hand",
            "right_foot": "xpos right_foot",
            "velocity": "sensor torso_subtreelinvel",
        },
        view=View(width=4.0, azimuth=135.0, height=0.9),
        step_s=0.025,
    )


ENV_STAND = task(stand, observe, 67)
ENV_WALK = task(moving(1.0), observe, 67)
ENV_RUN = task(moving(10.0), observe, 67)
ENV_RUN_PURE_STATE = task(moving(10.0), observe_state, 55)
