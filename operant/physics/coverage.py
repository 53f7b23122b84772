"""Refusal of what the engine does not compute, by the element's name and with what to use instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from operant.errors import ModelError
from operant.physics import constants as c

if TYPE_CHECKING:
    from operant.physics.model import Model

INSTEAD = "step the model by MuJoCo itself, in a gymnasium.Env (--env FILE.py:CLASS)"


def refuse_unread(compiled: Any) -> None:
    """Check the fields of a `mujoco.MjModel` that a `Model` does not keep. Raises ModelError that names every element
    that is not covered.
    """
    _refuse(_unread(compiled))


def refuse_uncovered(model: Model) -> None:
    """Check a model. Raises ModelError that names every element that is not covered."""
    _refuse(_uncovered(model))


def _refuse(elements: Iterable[str]) -> None:
    if found := list(dict.fromkeys(elements)):
        raise ModelError(f"the physics engine does not cover {'; '.join(found)}: {INSTEAD}")


def _unread(m: Any) -> Iterator[str]:
    """Phrases that name the elements of a `mujoco.MjModel` that are not covered and that a `Model` does not keep."""
    for count, what in (
        ("nflex", "flexible bodies"), ("nplugin", "plugins"), ("nhistory", "delays"),
        ("nplastic", "plasticity"), ("nmocap", "mocap bodies"), ("ngravcomp", "gravity compensation"),
    ):  # fmt: skip
        if getattr(m, count):
            yield what
    disabled = [group for group in sorted(set(m.actuator_group)) if m.opt.disableactuator >> int(group) & 1]
    if disabled:
        yield f"the disabled actuators (actuatorgroupdisable, group {', '.join(map(str, disabled))})"
    if m.actuator_dampingpoly.any():
        yield "damping and armature of actuators and tendons"
    if m.pair_adhesion.any():
        yield "adhesion of a pair of geoms"


def _uncovered(m: Model) -> Iterator[str]:
    """Phrases that name the elements of a model that are not covered, one for each."""

    def name(kind: str, k: int) -> str:
        return f"{kind} {m.labels[kind][k] or k!r}"

    if m.opt_integrator not in (c.EULER, c.RK4, c.IMPLICITFAST):
        known = {c.IMPLICIT: "implicit", c.DISCRETE: "discrete"}.get(m.opt_integrator, m.opt_integrator)
        yield f"the integrator {known} (Euler, RK4 and implicitfast are covered)"
    if m.opt_solver not in (c.NEWTON, c.PGS):
        yield "the solver CG (Newton and PGS are covered)"
    if m.ntree > c.MOST_TREES and not m.opt_disableflags & c.NO_ISLAND:
        yield f"more than {c.MOST_TREES} kinematic trees (unless the flag island is disabled)"
    if (m.eq_type > c.EQUAL_TENDON).any():
        yield "equality constraints of flexible bodies and distances"
    if m.opt_disableflags & c.NO_SENSOR:
        yield "sensors that the flag sensor disables"
    if m.opt_noslip_iterations:
        yield "noslip iterations"
    if m.opt_enableflags & ~2:  # energy changes nothing
        yield "the enabled flags (override, fwdinv, invdiscrete, sleep ...)"
    if m.body_gravcomp.any():
        yield "gravity compensation"
    for k in range(m.njnt):
        if m.jnt_stiffnesspoly[k].any() or (m.jnt_type[k] < c.SLIDE and m.jnt_stiffness[k]):
            yield f"the spring of {name('joint', k)}"
        if m.jnt_limited[k] and m.jnt_type[k] < c.SLIDE:
            yield f"the limit of {name('joint', k)}, a ball joint"
    if m.dof_dampingpoly.any() or m.tendon_dampingpoly.any() or m.tendon_stiffnesspoly.any():
        yield "polynomial springs and dampers"
    if m.actuator_damping.any() or m.actuator_armature.any() or m.tendon_armature.any():
        yield "damping and armature of actuators and tendons"
    for k in range(m.ntendon):
        if (m.wrap_type[m.tendon_adr[k] : m.tendon_adr[k] + m.tendon_num[k]] > c.WRAP_SITE).any():
            yield f"the wrapping of {name('tendon', k)} around a geom"
        if m.tendon_frictionloss[k]:
            yield f"the frictionloss of {name('tendon', k)}"
    for k in range(m.ngeom):
        if m.geom_adhesion[k] or m.geom_surfacevel[k].any():
            yield f"adhesion and surface velocity of {name('geom', k)}"
    for k in range(m.nactuator):
        if m.actuator_trntype[k] not in (c.IN_JOINT, c.IN_PARENT, c.IN_TENDON):
            yield f"the transmission of {name('actuator', k)}"
        elif m.actuator_trntype[k] != c.IN_TENDON and m.jnt_type[m.actuator_trnid[k, 0]] < c.SLIDE:
            yield f"{name('actuator', k)} on a ball or free joint"
        if m.actuator_dyntype[k] > c.FILTER_EXACT:
            yield f"the dynamics of {name('actuator', k)}"
        if m.actuator_gaintype[k] > c.AFFINE or m.actuator_biastype[k] > c.AFFINE_BIAS or m.actuator_actearly[k]:
            yield f"the gain, bias or early activation of {name('actuator', k)}"
    if m.tendon_actfrclimited.any():
        yield "limits of the actuator force of tendons"
