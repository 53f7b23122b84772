"""Sensors of a model: those of positions and velocities as formulas for `trace`, touch as a device function of the
contacts.

Source: MuJoCo's documentation, "XML reference: sensor", and `engine_sensor.c`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy import int32

from operant.compute.device import device_call
from operant.errors import ModelError
from operant.physics import constants as c
from operant.physics.layout import Layout
from operant.physics.model import Model
from operant.physics.rows import PLACES, Contacts
from operant.physics.smooth import (
    State,
    Vector,
    add,
    cross,
    placed,
    rotate_back,
    scale,
    subtract,
)
from operant.physics.tables import table


def subtree_velocities(m: Model, state: State) -> list[Vector]:
    """Velocity of the centre of mass of each body's subtree, m/s (`mj_subtreeVel`)."""
    moments = []
    for body in range(m.nbody):
        # v = v_com + w x (p - com): spatial velocities are about the centre of mass of the tree.
        spin, slide = state.cvel[body][:3], state.cvel[body][3:]
        offset = subtract(state.xipos[body], state.subtree_com[m.body_rootid[body]])
        moments.append(scale(add(slide, cross(spin, offset)), float(m.body_mass[body])))
    for body in range(m.nbody - 1, 0, -1):
        parent = int(m.body_parentid[body])
        moments[parent] = add(moments[parent], moments[body])
    return [scale(moment, 1.0 / max(c.MINVAL, float(m.body_subtreemass[body]))) for body, moment in enumerate(moments)]


def is_covered(m: Model, k: int) -> bool:
    """Whether the engine computes sensor k."""
    kind, of = int(m.sensor_type[k]), int(m.sensor_objtype[k])
    of_pose = (
        (kind == c.FRAMEPOS or c.FRAMEXAXIS <= kind <= c.FRAMEZAXIS)
        and of in (c.OBJ_BODY, c.OBJ_XBODY, c.OBJ_GEOM, c.OBJ_SITE)
        and m.sensor_refid[k] < 0
    )
    simple = kind in (c.JOINTPOS, c.JOINTVEL, c.SUBTREECOM, c.SUBTREELINVEL, c.VELOCIMETER, c.GYRO)
    return bool(not m.sensor_cutoff[k] and (simple or of_pose or is_touch(m, k)))


def sensor(m: Model, state: State, q: Vector, v: Vector, k: int) -> Vector:
    """Formulas of the values of sensor k, which depend on positions and velocities. Raises ModelError for a sensor that
    is not covered.
    """
    kind, of, number = int(m.sensor_type[k]), int(m.sensor_objtype[k]), int(m.sensor_objid[k])
    if not is_covered(m, k):
        verb = "cut off" if m.sensor_cutoff[k] else "compute"
        raise ModelError(f"the physics engine does not {verb} the sensor {m.names('sensor')[k] or str(k)!r}")
    if kind == c.JOINTPOS:
        return [q[m.jnt_qposadr[number]]]
    if kind == c.JOINTVEL:
        return [v[m.jnt_dofadr[number]]]
    if kind == c.SUBTREECOM:
        return state.subtree_com[number]
    if kind == c.SUBTREELINVEL:
        return subtree_velocities(m, state)[number]
    if kind in (c.VELOCIMETER, c.GYRO):
        place, turn = _pose(m, state, c.OBJ_SITE, number)
        body = int(m.site_bodyid[number])
        spin, slide = state.cvel[body][:3], state.cvel[body][3:]
        offset = subtract(place, state.subtree_com[m.body_rootid[body]])
        return rotate_back(turn, spin if kind == c.GYRO else add(slide, cross(spin, offset)))
    place, turn = _pose(m, state, of, number)
    return place if kind == c.FRAMEPOS else turn[kind - c.FRAMEXAXIS :: 3]


def _pose(m: Model, state: State, of: int, number: int) -> tuple[Vector, Vector]:
    """World position and rotation matrix of a body, a geom or a site."""
    if of == c.OBJ_XBODY:
        return state.xpos[number], state.xmat[number]
    if of == c.OBJ_BODY:
        return state.xipos[number], state.ximat[number]
    name = "geom" if of == c.OBJ_GEOM else "site"
    body, position, turn = (getattr(m, f"{name}_{part}")[number] for part in ("bodyid", "pos", "quat"))
    return placed(m, state, int(body), position, turn)


def named(m: Model, read: str) -> list[int]:
    """Numbers of the sensors that a reader asks for by `sensordata` (all) or `sensor NAME`."""
    return list(range(m.nsensor)) if read == "sensordata" else [m.id("sensor", read.partition(" ")[2])]


def is_touch(m: Model, k: int) -> bool:
    """Whether sensor k is a touch sensor, whose zone is a sphere or an ellipsoid."""
    return bool(
        m.sensor_type[k] == c.TOUCH
        and m.site_type[m.sensor_objid[k]] in (c.SPHERE, c.ELLIPSOID)
        and not m.sensor_cutoff[k]
    )


def touch(m: Model, lay: Layout, contacts: Contacts, force_of: Callable[..., Any], k: int, out: int, real: Any) -> Any:
    """Make the device function (w, contacts) that writes the value of touch sensor k to place `out`: the sum of the
    normal forces, N, of the contacts of its body whose line of force meets its zone. `force_of(w, contact)` begins with
    the normal force of a contact; the site's pose is at "touch k".
    """
    site = int(m.sensor_objid[k])
    body, kind = int(m.site_bodyid[site]), int(m.site_type[site])
    r0, r1, r2 = (real(1.0 / m.site_size[site][0 if kind == c.SPHERE else axis]) for axis in range(3))
    POSE, PLACE, PAIR = lay.at[f"touch {k}"], lay.at["contact place"], lay.at["contact pair"]
    pairs, places, zero, one, of = (
        contacts.pairs,
        contacts.places,
        real(0.0),
        real(1.0),
        table(m.geom_bodyid.astype(int32)),
    )

    @device_call
    def sum_up(w, nc):
        total = zero
        for i in range(nc):
            pair, at = int(w[PAIR + i]), PLACE + 12 * i
            if pair >= pairs:  # a tendon
                continue
            first, second = of(places(PLACES * pair + 2)), of(places(PLACES * pair + 3))
            if first != body and second != body:
                continue
            force, _ = force_of(w, i)
            if force <= zero:
                continue
            sign = -one if second == body else one
            # Ray p + t n, t >= 0, in units of the zone's radii: |p + t n| = 1
            p0, p1, p2, n0, n1, n2 = zero, zero, zero, zero, zero, zero
            for row in range(3):
                offset, along = w[at + row] - w[POSE + row], sign * w[at + 3 + row]
                x, y, z = w[POSE + 3 + 3 * row], w[POSE + 4 + 3 * row], w[POSE + 5 + 3 * row]
                p0, p1, p2 = p0 + x * offset * r0, p1 + y * offset * r1, p2 + z * offset * r2
                n0, n1, n2 = n0 + x * along * r0, n1 + y * along * r1, n2 + z * along * r2
            a, b = n0 * n0 + n1 * n1 + n2 * n2, p0 * n0 + p1 * n1 + p2 * n2
            outside = p0 * p0 + p1 * p1 + p2 * p2 - one
            if outside <= zero or (b <= zero and b * b >= a * outside):
                total += force
        w[out] = total

    return sum_up
