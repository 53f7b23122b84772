"""Spin a body with a finger, or turn it to a target: dm_control's `finger`.

    reward = 1 where the body turns at -15 rad/s or faster      (spin)
    reward = 1 where the tip of the body is in the target       (turn), of radius 0.07 m (easy) or 0.03 m (hard)

An episode starts with random joint angles in which nothing touches. Observation: angles of the finger, place of the tip
relative to the hinge (x, z), velocities, log(1 + N) of the forces at both sides of the fingertip; for `turn` also the
place of the target relative to the hinge and the distance of the tip from its surface.
"""

import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device, uniform
from operant.envs.dmc.suite import View, dmc_env

HINGE_X, HINGE_Z = float32(0.2), float32(0.4)  # m
CAP = float32(0.13)  # m, from the hinge to the end of the body: radius and half length of its capsules
SPIN_DAMPING = 0.03  # N m s, of the hinge


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 2  # steps of the model, 0.01 s each


@device
def reset_spin(d, p, key):
    pass


@device
def reset_turn(d, p, key):
    angle = float32(2.0 * math.pi) * uniform(key, 0) - float32(math.pi)
    d.target[0], d.target[2] = HINGE_X + CAP * math.sin(angle), HINGE_Z + CAP * math.cos(angle)


@device
def spin(d, past, action, p, tally):
    return float32(1.0) if d.qvel[2] <= float32(-15.0) else float32(0.0)


@device
def write_joints(d, obs):
    obs[0], obs[1] = d.qpos[0], d.qpos[1]
    obs[2], obs[3] = d.tip[0] - d.spinner[0], d.tip[2] - d.spinner[2]
    obs[4], obs[5], obs[6] = d.qvel[0], d.qvel[1], d.qvel[2]
    obs[7], obs[8] = math.log(float32(1.0) + d.top[0]), math.log(float32(1.0) + d.bottom[0])


@device
def observe_spin(d, obs, p):
    write_joints(d, obs)


READS = {
    "tip": "site_xpos tip",
    "spinner": "xpos spinner",
    "top": "sensor touchtop",
    "bottom": "sensor touchbottom",
}
VIEW = View(width=1.2, height=0.4, follow=False, grid=0.1)


def freer(model, params):
    """Copy of the model with less damping of the hinge."""
    damping = model.dof_damping.copy()
    damping[2] = SPIN_DAMPING
    return model.replace(dof_damping=damping)


ENV_SPIN = dmc_env(
    Params,
    "finger",
    observation=9,
    action=2,
    reset=reset_spin,
    reward=spin,
    observe=observe_spin,
    random_joints=True,
    tries=100,
    reads=READS,
    modified=freer,
    view=VIEW,
    step_s=0.02,
)


def task(radius):
    size = float32(radius)

    @device
    def distance(d):
        x, z = d.target[0] - d.tip[0], d.target[2] - d.tip[2]
        return math.sqrt(x * x + z * z) - size

    @device
    def turn(d, past, action, p, tally):
        return float32(1.0) if distance(d) <= float32(0.0) else float32(0.0)

    @device
    def observe(d, obs, p):
        write_joints(d, obs)
        obs[9], obs[10] = d.target[0] - d.spinner[0], d.target[2] - d.spinner[2]
        obs[11] = distance(d)

    return dmc_env(
        Params,
        "finger",
        observation=12,
        action=2,
        reset=reset_turn,
        reward=turn,
        observe=observe,
        random_joints=True,
        tries=100,
        reads=READS,
        state={"target": 3},
        view=VIEW._replace(marks=(("target", radius),)),
        step_s=0.02,
    )


ENV_TURN_EASY = task(0.07)
ENV_TURN_HARD = task(0.03)
