"""A capsule and a cylinder against MuJoCo's iterative convex solver, to its tolerance."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

import mujoco
import physics_parity as parity

from operant.errors import ModelError
from operant.physics import Model, build
from operant.physics.collide_convex import FUNCTIONS, SINGLE

BOTH = """
<mujoco>
  <option><flag {flag}/></option>
  <worldbody>
    <body><freejoint/><geom type="capsule" size="0.02 {length}" margin="{margin}"/></body>
    <body><freejoint/><geom type="cylinder" size="{radius} 0.05"/></body>
  </worldbody>
</mujoco>
"""


def both(*, length=0.1, radius=0.05, margin=0.005, flag=""):
    """A free capsule and a free cylinder."""
    return BOTH.format(length=length, radius=radius, margin=margin, flag=flag)


def compared(collide, text, poses, rng):
    """Numbers of contacts (MuJoCo's, ours) of each pose, and the errors in distance, position and normal where both
    are equal; without poses where the capsule's axis enters the cylinder, as its least way out is another.

    `poses` yields the capsule's position and axis in the cylinder's frame.
    """
    m = mujoco.MjModel.from_xml_string(text)
    d, margin, counts, errors = mujoco.MjData(m), float(m.geom_margin.max()), [], []
    for place, axis in poses:
        frame = np.zeros(9)
        d.qpos[7:10], d.qpos[10:14] = rng.normal(size=3), rng.normal(size=4)
        mujoco.mju_normalize4(d.qpos[10:14])
        mujoco.mju_quat2Mat(frame, d.qpos[10:14])
        frame = frame.reshape(3, 3)
        d.qpos[:3] = d.qpos[7:10] + frame @ place
        mujoco.mju_quatZ2Vec(d.qpos[3:7], frame @ axis / np.linalg.norm(axis))
        mujoco.mj_forward(m, d)
        if min((c.dist for c in d.contact), default=0.0) < -0.0195:
            continue
        at, out = np.concatenate([d.geom_xpos[0], d.geom_xmat[0], d.geom_xpos[1], d.geom_xmat[1]]), np.zeros(20)
        count = collide(at, 0, 12, m.geom_size.ravel().copy(), 0, 1, margin, out, 0)
        counts.append((d.ncon, count))
        if 0 < count == d.ncon:
            theirs = sorted((c.dist, *c.pos, *c.frame[:3]) for c in d.contact)
            apart = np.abs(np.array(theirs) - sorted(out.reshape(2, 10)[:count, :7].tolist()))
            errors.append([apart[:, 0].max(), apart[:, 1:4].max(), apart[:, 4:].max()])
    return counts, np.array(errors)


def anywhere(rng, count):
    for _ in range(count):
        yield 0.08 * rng.normal(size=3), rng.normal(size=3)


def lying(rng, count):
    """Poses of a capsule that touches a cap, at angles of up to 0.3."""
    for _ in range(count):
        side, angle, tilt = rng.choice([-1, 1]), rng.uniform(0, 2 * np.pi), 10 ** rng.uniform(-4, -0.5)
        height = side * (0.05 + 0.02 * rng.uniform(0.1, 1.2))
        yield np.array([*rng.uniform(-0.12, 0.12, 2), height]), np.array([np.cos(angle), np.sin(angle), tilt])


@pytest.mark.slow
@pytest.mark.parametrize("margin", [0.0, 0.005])
@pytest.mark.parametrize("poses", [anywhere, lying])
def test_a_capsule_touches_a_cylinder_where_mujocos_solver_says(poses, margin):
    rng = np.random.default_rng(0)
    counts, errors = compared(FUNCTIONS["capsule", "cylinder"], both(margin=margin), poses(rng, 3000), rng)
    assert all(theirs == ours for theirs, ours in counts)
    assert sum(ours > 0 for _, ours in counts) > 200
    assert poses is anywhere or sum(ours == 2 for _, ours in counts) > 500
    assert (np.quantile(errors, 0.95, axis=0) < [1e-6, 1e-5, 1e-3]).all()
    assert (errors.max(axis=0) < [1e-4, 1e-3, 1e-2]).all()


@pytest.mark.parametrize("length,radius", [(0.1, 0.05), (0.02, 0.1)], ids=["across the cap", "within the cap"])
def test_a_capsule_lies_on_a_cap_with_two_contacts(length, radius):
    rng = np.random.default_rng(1)
    text = both(length=length, radius=radius, margin=0.0)
    poses = [(np.array([0.0, 0.01, 0.069]), np.array([1.0, 0.4, 0.002]))]
    counts, errors = compared(FUNCTIONS["capsule", "cylinder"], text, poses, rng)
    assert counts == [(2, 2)] and errors.max() < 1e-6


def test_a_capsule_has_one_contact_with_multiccd_disabled():
    rng = np.random.default_rng(2)
    text = both(margin=0.0, flag='multiccd="disable"')
    poses = [(np.array([0.0, 0.01, 0.069]), np.array([1.0, 0.4, 0.002]))]
    counts, errors = compared(SINGLE["capsule", "cylinder"], text, poses, rng)
    assert counts == [(1, 1)] and errors[0, 0] < 1e-6


def test_a_capsule_and_a_cylinder_without_nativeccd_are_refused():
    model = Model.from_mjcf(both(flag='nativeccd="disable"'))
    with pytest.raises(ModelError, match=re.escape("the model's flag nativeccd disables: enable it")):
        build(model)


@pytest.mark.slow
def test_a_rod_comes_to_rest_on_a_drum_as_in_mujoco():
    text = """
        <mujoco>
          <worldbody>
            <geom type="plane" size="2 2 1"/>
            <body pos="0 0 0.1"><freejoint/><geom type="cylinder" size="0.1 0.1" mass="2"/></body>
            <body pos="0.01 0.02 0.235" euler="0 88 20"><freejoint/><geom type="capsule" size="0.03 0.2"/></body>
          </worldbody>
        </mujoco>"""
    m = mujoco.MjModel.from_xml_string(text)
    d, engine = mujoco.MjData(m), build(Model.from_compiled(m), np.float64)
    run, s, lying = parity.stepper(engine), np.zeros(engine.fields), 0
    parity.put(engine, s, d)
    for _ in range(500):
        run(s, np.zeros(0), 1)
        mujoco.mj_step(m, d)
        lying += sum(m.geom_type[c.geom1] == mujoco.mjtGeom.mjGEOM_CAPSULE for c in d.contact) == 2
    assert lying > 200
    assert np.abs(s[engine.QPOS : engine.QPOS + m.nq] - d.qpos).max() < 1e-4
