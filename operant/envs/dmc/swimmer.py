"""Swim to a target with a chain of 6 or 15 links: dm_control's `swimmer`.

    reward = 1 where the nose is within 0.1 m of the target, decreasing with a long tail beyond it

The target is within 0.3 m along x and y of the start with probability 0.2, else within 2 m. Observation: joint angles,
vector from nose to target in the frame of the head, velocity along x and y and rate of turn of each link in its frame.
"""

import functools
import math
from typing import NamedTuple

from numpy import float32

from operant.envs import device, uniform
from operant.envs.dmc.suite import View, dmc_env, dmc_model
from operant.envs.physics import write
from operant.envs.tolerance import tolerance

TARGET = 0.1  # m, radius
NEAR = tolerance(0.0, TARGET, 5.0 * TARGET, "long_tail")
HEAD_SENSORS = 12  # numbers before those of the links: places of nose and target, axes of the head


class Params(NamedTuple):
    """Duration of a step."""

    frame_skip: int = 15  # steps of the model, 0.002 s each


@device
def reset(d, p, key):
    side = float32(0.3) if uniform(key, 0) < float32(0.2) else float32(2.0)
    d.target[0] = side * (float32(2.0) * uniform(key, 1) - float32(1.0))
    d.target[1] = side * (float32(2.0) * uniform(key, 2) - float32(1.0))
    d.target[2] = float32(0.05)


@device
def to_target(d):
    """Vector from nose to target in the frame of the head: x, y."""
    x, y, z = d.target[0] - d.nose[0], d.target[1] - d.nose[1], d.target[2] - d.nose[2]
    return (
        x * d.head[0] + y * d.head[3] + z * d.head[6],
        x * d.head[1] + y * d.head[4] + z * d.head[7],
    )


@device
def reward(d, past, action, p, tally):
    x, y = to_target(d)
    return NEAR(math.sqrt(x * x + y * y))


@device
def observe(d, obs, p):
    at = write(obs, 0, d.qpos, 3)
    obs[at], obs[at + 1] = to_target(d)
    for k in range(len(d.qpos) - 2):
        i, j = at + 2 + 3 * k, HEAD_SENSORS + 6 * k
        obs[i], obs[i + 1], obs[i + 2] = d.sensordata[j], d.sensordata[j + 1], d.sensordata[j + 5]


def add_links(spec, links):
    """Append the chain of links after the head to the specification of the model."""
    import mujoco

    swimmer, parent = spec.find_default("swimmer"), spec.body("head")
    for k in range(links - 1):
        parent = parent.add_body(name=f"segment_{k}", pos=[0.0, 0.1, 0.0])
        for kind in ("visual", "inertial"):
            parent.add_geom(spec.find_default(kind), name=f"{kind}_{k}")
        site = parent.add_site(swimmer, name=f"site_{k}")
        limit = 360.0 / links
        joint = parent.add_joint(swimmer, name=f"joint_{k}", range=[-limit, limit])
        spec.add_actuator(name=f"motor_{k}", target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        for name, kind in (("velocimeter", "VELOCIMETER"), ("gyro", "GYRO")):
            spec.add_sensor(
                name=f"{name}_{k}",
                type=getattr(mujoco.mjtSensor, f"mjSENS_{kind}"),
                objtype=mujoco.mjtObj.mjOBJ_SITE,
                objname=site.name,
            )


def task(links):
    return dmc_env(
        Params,
        dmc_model("swimmer", f"swimmer{links}", functools.partial(add_links, links=links)),
        observation=4 * links + 1,
        action=links - 1,
        reset=reset,
        reward=reward,
        observe=observe,
        random_joints=True,
        reads={"head": "xmat head", "nose": "geom_xpos nose", "sensordata": "sensordata"},
        state={"target": 3},
        view=View(width=4.0, elevation=89.0, height=0.0, marks=(("target", TARGET),), hidden=("target",)),
        step_s=0.03,
    )


ENV_SWIMMER6 = task(6)
ENV_SWIMMER15 = task(15)
