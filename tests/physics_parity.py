"""Steps of the engine and of MuJoCo from the same states."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numba import njit
from random_mjcf import random_model

from operant.compute.device import FASTMATH
from operant.physics import Engine, Model, build

FAST = 1e3
"""Speed beyond which a state is not compared: explicit drag diverges there."""

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


@dataclass
class Errors:
    """Relative errors of qpos, qvel and qacc, (states, 3); most rows and contacts of a state; states that lost
    contacts; and the partitions into islands that occurred, as the island of each tree, or -1.
    """

    values: np.ndarray
    rows: int
    contacts: int
    lost: int
    islands: set[tuple[int, ...]]


def source(name: str) -> Path:
    """MJCF file of one of Gymnasium's models."""
    return ASSETS / f"{name}.xml"


def quadruped(joints: int = 3, integrator: str = "implicitfast") -> str:
    """MJCF text of a robot that is made up: a trunk with four legs of `joints` hinges each, driven to positions with
    damping, on a plane.
    """
    axes, legs, actuators = ("1 0 0", "0 1 0", "0 1 0"), "", ""
    for leg in range(4):
        x, y, name = (0.2, -0.2)[leg // 2], (0.12, -0.12)[leg % 2], f"leg{leg}"
        inner = '<geom type="sphere" size="0.025" pos="0 0 -0.02" friction="0.8 0.02 0.01"/>'
        for k in reversed(range(joints)):
            inner = (
                f'<body pos="{f"{x} {y} 0" if k == 0 else "0 0 -0.14"}"><joint name="{name}_{k}" axis="{axes[k % 3]}" '
                f'range="-80 80" damping="{0.2 + 0.1 * k}" armature="0.01" frictionloss="{0.1 * (k == 1)}"/>'
                f'<geom type="capsule" fromto="0 0 0 0 0 -0.12" size="0.02"/>{inner}</body>'
            )
            actuators += (
                f'<position joint="{name}_{k}" kp="{25 + 5 * k}" kv="{0.8 + 0.3 * k}" ctrlrange="-1 1" '
                f'forcerange="-{15 - 5 * k} {15 - 5 * k}"/>'
            )
        legs += inner
    return f"""
<mujoco>
  <option timestep="0.004" integrator="{integrator}"/>
  <default><geom contype="0" conaffinity="1"/></default>
  <worldbody>
    <geom type="plane" size="5 5 1" contype="1" conaffinity="0"/>
    <body pos="0 0 0.5"><freejoint/><geom type="box" size="0.25 0.1 0.06" mass="6"/>{legs}</body>
  </worldbody>
  <tendon>
    <fixed name="knees" damping="0.3" stiffness="2"><joint joint="leg0_1" coef="1"/><joint joint="leg1_1" coef="-1"/>
    <joint joint="leg0_2" coef="0.5"/></fixed>
  </tendon>
  <actuator>
    {actuators}
    <velocity joint="leg0_0" kv="0.5"/>
    <general tendon="knees" gaintype="affine" gainprm="1 0.3 -0.4" biastype="affine" biasprm="0 -1 -0.2"/>
    <general joint="leg3_1" dyntype="filter" dynprm="0.03" gaintype="affine" gainprm="2 0 -0.3"/>
  </actuator>
</mujoco>
"""


def robot30() -> str:
    """MJCF text of a robot that is made up, of a humanoid's size: 30 hinges (a leg has 6, an arm 7, waist 3, head 1),
    driven to positions with damping, on a plane; hands collide with thighs and trunk, a foot with the other.
    """
    x, y, z = "1 0 0", "0 1 0", "0 0 1"
    actuators = []

    def limb(name: str, at: str, axes: list[str], lengths: list[float], size: float, gain: float, tip: str) -> str:
        """Bodies along -z, one for each hinge; a link without a length has a sphere."""
        inner = tip
        for k in reversed(range(len(axes))):
            length = lengths[k]
            shape = f'type="capsule" fromto="0 0 0 0 0 {-length}"' if length else 'type="sphere"'
            inner = (
                f'<body pos="{at if k == 0 else f"0 0 {-lengths[k - 1]}"}">'
                f'<joint name="{name}{k}" axis="{axes[k]}" range="-{70 if axes[k] == y else 40} 100"/>'
                f'<geom {shape} size="{size}" conaffinity="3"/>{inner}</body>'
            )
            actuators.append(
                f'<position joint="{name}{k}" kp="{gain}" kv="{gain / 25}" forcerange="-{gain} {gain}" '
                'ctrlrange="-1 1" ctrllimited="true"/>'
            )
        return inner

    legs, arms = "", ""
    for side, sign in (("left", 1), ("right", -1)):
        foot = "".join(
            f'<geom type="capsule" fromto="-0.07 {y0} -0.03 0.13 {y0} -0.03" size="0.02" contype="4" conaffinity="5"/>'
            for y0 in (-0.03, 0.03)
        )
        legs += limb(
            f"{side} leg ", f"0 {sign * 0.1} -0.05", [x, z, y, y, y, x], [0, 0, 0.35, 0.35, 0, 0], 0.05, 120, foot
        )
        hand = '<geom type="sphere" size="0.04" pos="0 0 -0.05" contype="2"/>'
        arms += limb(
            f"{side} arm ", f"0 {sign * 0.2} 0.25", [y, x, z, y, z, y, x], [0, 0, 0.2, 0.2, 0, 0, 0], 0.03, 40, hand
        )
    head = limb("head", "0 0 0.35", [z], [0], 0.09, 10, "")
    chest = f'<geom type="box" size="0.08 0.14 0.15" pos="0 0 0.2" mass="10" conaffinity="3"/>{arms}{head}'
    waist = limb("waist", "0 0 0.08", [z, x, y], [0, 0, 0], 0.06, 150, chest)
    return f"""
<mujoco>
  <option timestep="0.004" integrator="implicitfast"/>
  <default><joint damping="0.5" armature="0.02" frictionloss="0.1"/><geom contype="0" conaffinity="1"/></default>
  <worldbody>
    <geom type="plane" size="5 5 1" contype="1" conaffinity="0"/>
    <body pos="0 0 0.9"><freejoint/><geom type="box" size="0.08 0.1 0.06" mass="6" conaffinity="3"/>{legs}{waist}</body>
  </worldbody>
  <actuator>{"".join(actuators)}</actuator>
</mujoco>
"""


def compiled(name: str) -> Any:
    """MuJoCo's model of one of Gymnasium's names, of `robot30`, of `dm_control/DOMAIN`, of `random/SEED`, or of the
    text of an MJCF file.
    """
    name = robot30() if name == "robot30" else name
    if name.startswith("random/"):
        name = random_model(np.random.default_rng(int(name.removeprefix("random/"))))
    if "<" in name:
        return mujoco.MjModel.from_xml_string(name)
    if not name.startswith("dm_control/"):
        return mujoco.MjModel.from_xml_path(str(source(name)))
    domain = name.removeprefix("dm_control/")
    read = importlib.import_module(f"dm_control.suite.{domain}").get_model_and_assets
    text, assets = read(6) if domain == "swimmer" else read()
    return mujoco.MjModel.from_xml_string(text.decode() if isinstance(text, bytes) else text, assets)


def stepper(engine: Engine) -> Any:
    """Function (state column, control, steps) compiled for the CPU."""
    work, steps = engine.work, engine.steps

    @njit(fastmath=set(FASTMATH), error_model="numpy", _nrt=False)
    def run(s, ctrl, n):
        steps(s, ctrl, work(), n)

    return run


def put(engine: Engine, s: np.ndarray, d: Any) -> None:
    """Copy MuJoCo's state to the lane's column."""
    m = engine.model
    s[:] = 0
    s[engine.QPOS : engine.QPOS + m.nq] = d.qpos
    s[engine.QVEL : engine.QVEL + m.nv] = d.qvel
    s[engine.WARM : engine.WARM + m.nv] = d.qacc_warmstart
    s[engine.ACT : engine.ACT + m.na] = d.act


def states(m: Any, d: Any, count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Set `d` to states along random episodes that begin near to, and far from, the initial pose; yields controls."""
    for k in range(count):
        if k % 50 == 0 or d.warning.number.any() or np.abs(d.qvel).max() > FAST:
            mujoco.mj_resetData(m, d)
            size = k // 50 % 4
            d.qpos[:] += rng.normal(size=m.nq) * (0.01, 0.1, 0.5, 1.0)[size]
            d.qvel[:] = rng.normal(size=m.nv) * (0.1, 1.0, 5.0, 10.0)[size]
            if size == 3:
                d.qacc_warmstart[:] = rng.normal(size=m.nv) * 10.0
        bound = np.where(m.actuator_ctrllimited, np.abs(m.actuator_ctrlrange).max(axis=1), 1.0)
        yield rng.uniform(-1.2, 1.2, m.nu) * bound


def step_errors(name: str, real: Any, count: int, seed: int = 0, integrator: int | None = None) -> Errors:
    """Errors of single steps of a model (as `compiled` names it) from `count` states, each set from MuJoCo's. Another
    integrator takes the place of the model's.
    """
    m = compiled(name)
    m.opt.integrator = m.opt.integrator if integrator is None else integrator
    d = mujoco.MjData(m)
    engine = build(Model.from_compiled(m), real)
    run, s = stepper(engine), np.zeros(engine.fields, real)
    found, rows, contacts, lost, islands = [], 0, 0, 0, set()
    for ctrl in states(m, d, count, np.random.default_rng(seed)):
        put(engine, s, d)
        # MuJoCo starts from the same rounded state.
        d.qpos[:], d.qvel[:] = s[: m.nq], s[m.nq : m.nq + m.nv]
        d.qacc_warmstart[:], d.ctrl[:] = s[engine.WARM : engine.WARM + m.nv], ctrl.astype(real)
        run(s, ctrl.astype(real), 1)
        mujoco.mj_step(m, d)
        rows, contacts = max(rows, d.nefc), max(contacts, d.ncon)
        islands.add(tuple(d.tree_island.tolist()))
        if s[engine.LOST] > 0:
            lost += 1
            continue
        if d.warning.number.any() or np.abs(d.qvel).max() > FAST:  # MuJoCo diverges, or has just started again
            continue
        found.append(
            [
                np.abs(s[at : at + len(x)] - x).max() / max(1.0, np.abs(x).max())
                for at, x in ((engine.QPOS, d.qpos), (engine.QVEL, d.qvel), (engine.WARM, d.qacc_warmstart))
            ]
        )
    return Errors(np.array(found), rows, contacts, lost, islands)
