"""Kinematics and smooth dynamics of a model, as formulas for `trace`.

Follows MuJoCo's documentation, "Computation: forward dynamics", and its order (`engine_core_smooth.c`,
`engine_passive.c`, `engine_forward.c`): kinematics, inertias about the centre of mass of each kinematic tree, composite
rigid bodies (Featherstone 2008, chapter 6), recursive Newton-Euler (chapter 5), passive and actuator forces. A spatial
vector is (rotation 3, translation 3) about the tree's centre of mass; a rotation matrix has 9 numbers, row by row; an
inertia has 10: xx, yy, zz, xy, xz, yz of the rotational part, mass times offset, mass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from operant.physics import constants as c
from operant.physics.model import Model
from operant.physics.trace import Number, cos, greatest, least, less, select, sin, sqrt

Vector = list[Number]


def add(a: Vector, b: Vector) -> Vector:
    """Sum a + b."""
    return [x + y for x, y in zip(a, b, strict=True)]


def subtract(a: Vector, b: Vector) -> Vector:
    """Difference a - b."""
    return [x - y for x, y in zip(a, b, strict=True)]


def scale(a: Vector, factor: Number) -> Vector:
    """Multiple of a vector."""
    return [x * factor for x in a]


def dot(a: Vector, b: Vector) -> Number:
    """Inner product a . b."""
    found: Number = 0.0
    for x, y in zip(a, b, strict=True):
        found = found + x * y
    return found


def cross(a: Vector, b: Vector) -> Vector:
    """Cross product a x b."""
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def rotate(m: Vector, v: Vector) -> Vector:
    """Product of a matrix (9) and a vector."""
    return [dot(m[3 * k : 3 * k + 3], v) for k in range(3)]


def rotate_back(m: Vector, v: Vector) -> Vector:
    """Product of the transpose of a matrix (9) and a vector."""
    return [dot(m[k::3], v) for k in range(3)]


def product(a: Vector, b: Vector) -> Vector:
    """Product of two matrices (9)."""
    return [dot(a[3 * i : 3 * i + 3], b[j::3]) for i in range(3) for j in range(3)]


def quaternion_product(a: Vector, b: Vector) -> Vector:
    """Product of two quaternions (w, x, y, z)."""
    return [
        a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
        a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
        a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
        a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
    ]


def matrix_of(q: Vector) -> Vector:
    """Rotation matrix (9) of a unit quaternion."""
    w, x, y, z = q
    return [
        w * w + x * x - y * y - z * z, 2.0 * (x * y - w * z), 2.0 * (x * z + w * y),
        2.0 * (x * y + w * z), w * w - x * x + y * y - z * z, 2.0 * (y * z - w * x),
        2.0 * (x * z - w * y), 2.0 * (y * z + w * x), w * w - x * x - y * y + z * z,
    ]  # fmt: skip


def normalized(v: Vector) -> tuple[Vector, Number]:
    """Unit vector and length; (1, 0, 0) or the unit quaternion for a vector too short (`mju_normalize3`, `4`)."""
    length = sqrt(dot(v, v))
    short = less(length, c.MINVAL)
    factor = 1.0 / select(short, 1.0, length)
    return [select(short, float(k == 0), x * factor) for k, x in enumerate(v)], length


def constants(values: np.ndarray) -> Vector:
    """Model constants as floats, residues of the compiler's rounding (below 1e-15) as zeros."""
    return [0.0 if abs(x) < 1e-15 else float(x) for x in np.ravel(values)]


def constant_matrix(quaternion: np.ndarray) -> Vector:
    """Rotation matrix (9) of a constant quaternion."""
    return constants(np.array(matrix_of([float(x) for x in quaternion])))


def hinge_matrix(axis: Vector, angle: Number) -> Vector:
    """Rotation matrix (9) about a unit axis (Rodrigues): cos I + sin [a] + (1 - cos) a a'."""
    s, k = sin(angle), cos(angle)
    x, y, z = axis
    rest = 1.0 - k

    def diagonal(a: float) -> Number:
        return 1.0 if abs(a * a - 1.0) < 1e-15 else k + rest * (a * a)

    return [
        diagonal(x), rest * (x * y) - s * z, rest * (x * z) + s * y,
        rest * (x * y) + s * z, diagonal(y), rest * (y * z) - s * x,
        rest * (x * z) - s * y, rest * (y * z) + s * x, diagonal(z),
    ]  # fmt: skip


def inertia_about(inertia: Vector, m: Vector, offset: Vector, mass: float) -> Vector:
    """Inertia (10) of a body about a point: rotation matrix `m` of its principal axes, offset of its centre of mass
    (`mju_inertCom`).
    """

    def rotational(i: int, j: int) -> Number:
        return dot([m[3 * i + k] * inertia[k] for k in range(3)], m[3 * j : 3 * j + 3])

    x, y, z = offset
    return [
        rotational(0, 0) + mass * (y * y + z * z),
        rotational(1, 1) + mass * (x * x + z * z),
        rotational(2, 2) + mass * (x * x + y * y),
        rotational(0, 1) - mass * (x * y),
        rotational(0, 2) - mass * (x * z),
        rotational(1, 2) - mass * (y * z),
        mass * x, mass * y, mass * z, mass,
    ]  # fmt: skip


def inertia_times(i: Vector, v: Vector) -> Vector:
    """Product of an inertia (10) and a motion vector: a force vector (`mju_mulInertVec`)."""
    return [
        i[0] * v[0] + i[3] * v[1] + i[4] * v[2] - i[8] * v[4] + i[7] * v[5],
        i[3] * v[0] + i[1] * v[1] + i[5] * v[2] + i[8] * v[3] - i[6] * v[5],
        i[4] * v[0] + i[5] * v[1] + i[2] * v[2] - i[7] * v[3] + i[6] * v[4],
        i[8] * v[1] - i[7] * v[2] + i[9] * v[3],
        i[6] * v[2] - i[8] * v[0] + i[9] * v[4],
        i[7] * v[0] - i[6] * v[1] + i[9] * v[5],
    ]


def cross_motion(v: Vector, u: Vector) -> Vector:
    """Spatial cross product of two motions, v x u (`mju_crossMotion`)."""
    return cross(v[:3], u[:3]) + add(cross(v[:3], u[3:]), cross(v[3:], u[:3]))


def cross_force(v: Vector, f: Vector) -> Vector:
    """Spatial cross product of a motion and a force, v x* f (`mju_crossForce`)."""
    return add(cross(v[:3], f[:3]), cross(v[3:], f[3:])) + cross(v[:3], f[3:])


@dataclass
class State:
    """Quantities of one state, by the names of `mjData`, per body, joint, dof, geom or site."""

    xpos: list[Vector] = field(default_factory=list)
    xmat: list[Vector] = field(default_factory=list)
    xquat: list[Vector] = field(default_factory=list)
    xipos: list[Vector] = field(default_factory=list)
    ximat: list[Vector] = field(default_factory=list)
    xanchor: dict[int, Vector] = field(default_factory=dict)
    xaxis: dict[int, Vector] = field(default_factory=dict)
    subtree_com: list[Vector] = field(default_factory=list)
    cinert: list[Vector] = field(default_factory=list)
    cdof: list[Vector] = field(default_factory=list)
    cdof_dot: list[Vector] = field(default_factory=list)
    cvel: list[Vector] = field(default_factory=list)
    M: dict[tuple[int, int], Number] = field(default_factory=dict)
    qfrc_bias: Vector = field(default_factory=list)
    qfrc_passive: Vector = field(default_factory=list)
    qfrc_actuator: Vector = field(default_factory=list)
    actuator_force: Vector = field(default_factory=list)
    actuator_moment: list[dict[int, Number]] = field(default_factory=list)  # by dof
    actuator_slope: Vector = field(default_factory=list)  # d force / d velocity, only for implicitfast
    act_dot: Vector = field(default_factory=list)
    ten_length: Vector = field(default_factory=list)
    ten_moment: list[dict[int, Number]] = field(default_factory=list)  # by dof
    ten_velocity: Vector = field(default_factory=list)


def kinematics(m: Model, q: Vector, quaternions: bool = False) -> State:
    """Positions and orientations of bodies for qpos `q` (`mj_kinematics`); xquat only with `quaternions`."""
    state = State()
    state.xpos.append([0.0] * 3)
    state.xmat.append([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])
    state.xquat.append([1.0, 0.0, 0.0, 0.0])
    state.xipos.append([0.0] * 3)
    state.ximat.append(state.xmat[0])
    for body in range(1, m.nbody):
        joints = range(m.body_jntadr[body], m.body_jntadr[body] + m.body_jntnum[body])
        parent = int(m.body_parentid[body])
        quaternion: Vector = []
        if len(joints) == 1 and m.jnt_type[joints[0]] == c.FREE:
            at = int(m.jnt_qposadr[joints[0]])
            position = q[at : at + 3]
            quaternion, _ = normalized(q[at + 3 : at + 7])
            matrix = matrix_of(quaternion)
            state.xanchor[joints[0]], state.xaxis[joints[0]] = position, constants(m.jnt_axis[joints[0]])
        else:
            # Fixed placement in the parent, then one joint after the other.
            position = add(state.xpos[parent], rotate(state.xmat[parent], constants(m.body_pos[body])))
            matrix = product(state.xmat[parent], constant_matrix(m.body_quat[body]))
            if quaternions:
                quaternion = quaternion_product(state.xquat[parent], [float(x) for x in m.body_quat[body]])
            for joint in joints:
                axis, place = constants(m.jnt_axis[joint]), constants(m.jnt_pos[joint])
                at = int(m.jnt_qposadr[joint])
                anchor = add(position, rotate(matrix, place))
                state.xanchor[joint], state.xaxis[joint] = anchor, rotate(matrix, axis)
                if m.jnt_type[joint] == c.SLIDE:
                    position = add(position, scale(state.xaxis[joint], q[at] - float(m.qpos0[at])))
                    continue
                if m.jnt_type[joint] == c.BALL:
                    local, _ = normalized(q[at : at + 4])
                    turn = matrix_of(local)
                else:
                    angle = q[at] - float(m.qpos0[at])
                    turn = hinge_matrix(axis, angle)
                    if quaternions:
                        local = [cos(0.5 * angle), *scale(axis, sin(0.5 * angle))]
                matrix = product(matrix, turn)
                if quaternions:
                    quaternion = quaternion_product(quaternion, local)
                if any(place):  # a hinge off the body's origin moves the origin
                    position = subtract(anchor, rotate(matrix, place))
        state.xpos.append(position)
        state.xmat.append(matrix)
        state.xquat.append(quaternion)
        state.xipos.append(add(position, rotate(matrix, constants(m.body_ipos[body]))))
        state.ximat.append(product(matrix, constant_matrix(m.body_iquat[body])))
    return state


def placed(m: Model, state: State, body: int, position: np.ndarray, quaternion: np.ndarray) -> tuple[Vector, Vector]:
    """World position and rotation matrix of something fixed to a body."""
    place, turn = state.xmat[body], constant_matrix(quaternion)
    return add(state.xpos[body], rotate(place, constants(position))), product(place, turn)


def centres(m: Model, state: State) -> None:
    """Set in `state` centres of mass of subtrees, inertias and motion axes of the dofs about the centre of mass of each
    tree (`mj_comPos`).
    """
    moments = [scale(state.xipos[body], float(m.body_mass[body])) for body in range(m.nbody)]
    for body in range(m.nbody - 1, 0, -1):
        parent = int(m.body_parentid[body])
        moments[parent] = add(moments[parent], moments[body])
    for body in range(m.nbody):
        mass = float(m.body_subtreemass[body])
        state.subtree_com.append(state.xipos[body] if mass < c.MINVAL else scale(moments[body], 1.0 / mass))

    state.cinert.append([0.0] * 10)
    for body in range(1, m.nbody):
        offset = subtract(state.xipos[body], state.subtree_com[m.body_rootid[body]])
        inertia = [float(x) for x in m.body_inertia[body]]
        state.cinert.append(inertia_about(inertia, state.ximat[body], offset, float(m.body_mass[body])))

    # cdof = (axis, axis x (com - anchor)); a translation is (0, axis).
    for joint in range(m.njnt):
        body, kind = int(m.jnt_bodyid[joint]), m.jnt_type[joint]
        offset = subtract(state.subtree_com[m.body_rootid[body]], state.xanchor[joint])
        if kind == c.SLIDE:
            state.cdof.append([0.0] * 3 + state.xaxis[joint])
        elif kind == c.HINGE:
            state.cdof.append(state.xaxis[joint] + cross(state.xaxis[joint], offset))
        else:
            if kind == c.FREE:
                state.cdof += [[0.0] * 3 + [float(i == k) for i in range(3)] for k in range(3)]
            for k in range(3):
                axis = state.xmat[body][k::3]
                state.cdof.append(axis + cross(axis, offset))


def ancestors(m: Model, dof: int) -> list[int]:
    """Numbers of the dofs that move before `dof`, nearest first, without itself."""
    found, dof = [], int(m.dof_parentid[dof])
    while dof >= 0:
        found.append(dof)
        dof = int(m.dof_parentid[dof])
    return found


def moving_dofs(m: Model, body: int) -> list[int]:
    """Numbers of the dofs that move a body, the last first."""
    while body and not m.body_dofnum[body]:
        body = int(m.body_parentid[body])
    last = int(m.body_dofadr[body] + m.body_dofnum[body]) - 1 if body else -1
    return [last, *ancestors(m, last)] if last >= 0 else []


def mass_matrix(m: Model, state: State, mass_factor: Number = 1.0, armature_factor: Number = 1.0) -> None:
    """Set in `state` the joint-space inertia M by composite rigid bodies: entries (i, j <= i) that can differ from 0
    (`mj_crb`).
    """
    composite = list(state.cinert)
    for body in range(m.nbody - 1, 0, -1):
        parent = int(m.body_parentid[body])
        if parent > 0:
            composite[parent] = add(composite[parent], composite[body])
    for i in range(m.nv):
        force = inertia_times(composite[m.dof_bodyid[i]], state.cdof[i])
        armature = float(m.dof_armature[i])
        for j in [i, *ancestors(m, i)]:
            if m.dof_simplenum[i]:
                # The constant as it is, and what the factors add
                more = (float(m.dof_M0[i]) - armature) * (mass_factor - 1.0) + armature * (armature_factor - 1.0)
                state.M[i, j] = float(m.dof_M0[i]) + more if i == j else 0.0
            else:
                state.M[i, j] = dot(state.cdof[j], force) * mass_factor + (
                    armature * armature_factor if i == j else 0.0
                )


def velocities(m: Model, state: State, v: Vector) -> None:
    """Set in `state` spatial velocities of bodies and derivatives of motion axes for qvel `v` (`mj_comVel`)."""
    state.cvel.append([0.0] * 6)
    state.cdof_dot = [[0.0] * 6 for _ in range(m.nv)]
    for body in range(1, m.nbody):
        velocity = state.cvel[m.body_parentid[body]]
        for joint in range(m.body_jntadr[body], m.body_jntadr[body] + m.body_jntnum[body]):
            first = int(m.jnt_dofadr[joint])
            if m.jnt_type[joint] == c.FREE:
                for k in range(first, first + 3):
                    velocity = add(velocity, scale(state.cdof[k], v[k]))
                first += 3
            dofs = range(first, first + (1 if m.jnt_type[joint] >= c.SLIDE else 3))
            for k in dofs:
                state.cdof_dot[k] = cross_motion(velocity, state.cdof[k])
            for k in dofs:
                velocity = add(velocity, scale(state.cdof[k], v[k]))
        state.cvel.append(velocity)


def gravity(m: Model, factor: Number = 1.0) -> Vector:
    """Acceleration of the world, -g times `factor`, as a spatial vector; zero where gravity is disabled."""
    off = m.opt_disableflags & c.NO_GRAVITY
    return [0.0] * 3 + ([0.0] * 3 if off else [-float(x) * factor for x in m.opt_gravity])


def bias_forces(m: Model, state: State, v: Vector, gravity_factor: Number = 1.0, mass_factor: Number = 1.0) -> None:
    """Set `state.qfrc_bias` (nv): Coriolis, centrifugal and gravitational forces by recursive Newton-Euler without
    acceleration (`mj_rne`).
    """
    accelerations = [gravity(m, gravity_factor)]
    forces: list[Vector] = [[0.0] * 6]
    for body in range(1, m.nbody):
        # a = a_parent + cdof_dot v;  f = I a + v x* (I v)
        acceleration = accelerations[m.body_parentid[body]]
        for k in range(m.body_dofadr[body], m.body_dofadr[body] + m.body_dofnum[body]):
            acceleration = add(acceleration, scale(state.cdof_dot[k], v[k]))
        accelerations.append(acceleration)
        momentum = inertia_times(state.cinert[body], state.cvel[body])
        forces.append(add(inertia_times(state.cinert[body], acceleration), cross_force(state.cvel[body], momentum)))
    for body in range(m.nbody - 1, 0, -1):
        parent = int(m.body_parentid[body])
        if parent:
            forces[parent] = add(forces[parent], forces[body])
    state.qfrc_bias = [dot(state.cdof[i], forces[m.dof_bodyid[i]]) * mass_factor for i in range(m.nv)]


def tendon_coefficients(m: Model, tendon: int) -> dict[int, float]:
    """Coefficients of a fixed tendon by the number of the joint."""
    first = int(m.tendon_adr[tendon])
    return {int(m.wrap_objid[k]): float(m.wrap_prm[k]) for k in range(first, first + int(m.tendon_num[tendon]))}


def tendon_segments(m: Model, tendon: int) -> list[tuple[int, int, float]]:
    """Straight stretches of a spatial tendon: sites at both ends, and the divisor of its pulley."""
    found, divisor, first = [], 1.0, int(m.tendon_adr[tendon])
    for k in range(first, first + int(m.tendon_num[tendon]) - 1):
        if m.wrap_type[k] == c.WRAP_PULLEY:
            divisor = float(m.wrap_prm[k])
        elif m.wrap_type[k + 1] != c.WRAP_PULLEY:
            found.append((int(m.wrap_objid[k]), int(m.wrap_objid[k + 1]), divisor))
    return found


def is_fixed(m: Model, tendon: int) -> bool:
    """Whether a tendon is linear in the joints."""
    return bool(m.wrap_type[m.tendon_adr[tendon]] == c.WRAP_JOINT)


def tendon_dofs(m: Model, tendon: int) -> list[int]:
    """Numbers of the dofs that move a tendon, in order."""
    if is_fixed(m, tendon):
        return sorted(int(m.jnt_dofadr[j]) for j in tendon_coefficients(m, tendon))
    found: set[int] = set()
    for first, second, _ in tendon_segments(m, tendon):
        bodies = int(m.site_bodyid[first]), int(m.site_bodyid[second])
        for body in bodies if bodies[0] != bodies[1] else ():
            found |= {*moving_dofs(m, body)}
    return sorted(found)


def spatial_tendon(m: Model, state: State, tendon: int) -> tuple[Number, dict[int, Number]]:
    """Length of a tendon through sites, and its derivative by each dof."""
    length: Number = 0.0
    moments: dict[int, Number] = {dof: 0.0 for dof in tendon_dofs(m, tendon)}
    for first, second, divisor in tendon_segments(m, tendon):
        bodies = [int(m.site_bodyid[site]) for site in (first, second)]
        ends = [placed(m, state, int(m.site_bodyid[s]), m.site_pos[s], m.site_quat[s])[0] for s in (first, second)]
        direction, distance = normalized(subtract(ends[1], ends[0]))
        length = length + distance * (1.0 / divisor)
        if bodies[0] == bodies[1]:
            continue
        for body, point, sign in zip(bodies, ends, (-1.0, 1.0), strict=True):
            for dof in moving_dofs(m, body):
                # Velocity of the point: translation + rotation x (point - centre)
                arm = subtract(point, state.subtree_com[m.body_rootid[m.dof_bodyid[dof]]])
                axis = state.cdof[dof]
                moment = dot(direction, add(axis[3:], cross(axis[:3], arm)))
                moments[dof] = moments[dof] + moment * (sign / divisor)
    return length, moments


def tendons(m: Model, state: State, q: Vector, v: Vector) -> None:
    """Set in `state` length, its derivatives by the dofs, and velocity of each tendon (`mj_tendon`)."""
    for tendon in range(m.ntendon):
        if is_fixed(m, tendon):
            parts = tendon_coefficients(m, tendon).items()
            length = dot([q[m.jnt_qposadr[j]] for j, _ in parts], [k for _, k in parts])
            moments: dict[int, Number] = {int(m.jnt_dofadr[j]): k for j, k in parts}
        else:
            length, moments = spatial_tendon(m, state, tendon)
        state.ten_length.append(length)
        state.ten_moment.append(moments)
        state.ten_velocity.append(dot([v[dof] for dof in moments], list(moments.values())))


def passive_forces(m: Model, state: State, q: Vector, v: Vector, damping_factor: Number = 1.0) -> None:
    """Set `state.qfrc_passive` (nv): sum of spring and damper forces in the joints (`mj_springdamper`)."""
    springs, dampers = not m.opt_disableflags & c.NO_SPRING, not m.opt_disableflags & c.NO_DAMPER
    forces: Vector = [0.0] * m.nv
    for joint in range(m.njnt):
        at, dof = int(m.jnt_qposadr[joint]), int(m.jnt_dofadr[joint])
        if springs and m.jnt_stiffness[joint]:
            forces[dof] = forces[dof] - float(m.jnt_stiffness[joint]) * (q[at] - float(m.qpos_spring[at]))
    if dampers:
        forces = [force - float(m.dof_damping[k]) * damping_factor * v[k] for k, force in enumerate(forces)]
    for tendon in range(m.ntendon):
        low, high = (float(x) for x in m.tendon_lengthspring[tendon])
        length = state.ten_length[tendon]
        stretch = select(less(high, length), length - high, select(less(length, low), length - low, 0.0))
        force = (-float(m.tendon_stiffness[tendon]) * stretch if springs else 0.0) - (
            float(m.tendon_damping[tendon]) * state.ten_velocity[tendon] if dampers else 0.0
        )
        for dof, part in state.ten_moment[tendon].items():
            forces[dof] = forces[dof] + part * force
    state.qfrc_passive = forces if springs or dampers else [0.0] * m.nv


def clipped(x: Number, bounds: np.ndarray) -> Number:
    """Number x clipped to `bounds`, [low, high]."""
    return greatest(least(x, float(bounds[1])), float(bounds[0]))


def actuation(
    m: Model, state: State, q: Vector, v: Vector, ctrl: Vector, act: Vector, gear_factor: Number = 1.0
) -> None:
    """Set in `state` force and activation rate of the actuators, and the sum of forces in the joints: gain (control or
    activation) + bias, along each transmission (`mj_fwdActuation`).
    """
    forces: Vector = [0.0] * m.nv
    state.act_dot = [0.0] * m.na
    if m.opt_disableflags & c.NO_ACTUATION:
        state.qfrc_actuator, state.actuator_force = forces, [0.0] * m.nactuator
        return
    if not m.opt_disableflags & c.NO_CLAMPCTRL:
        ctrl = [clipped(x, m.actuator_ctrlrange[k]) if m.actuator_ctrllimited[k] else x for k, x in enumerate(ctrl)]
    # All controls are 0 where one is bad.
    fine: Number = 1.0
    for x in ctrl:
        fine = select(less(abs(x), c.MAXVAL), fine, 0.0)
    ctrl = [select(less(0.5, fine), x, 0.0) for x in ctrl]
    for k in range(m.nactuator):
        gear, target = float(m.actuator_gear[k, 0]) * gear_factor, int(m.actuator_trnid[k, 0])
        if m.actuator_trntype[k] == c.IN_TENDON:
            moment = {dof: gear * part for dof, part in state.ten_moment[target].items()}
            length, speed = gear * state.ten_length[target], gear * state.ten_velocity[target]
        else:
            dof = int(m.jnt_dofadr[target])
            moment, length, speed = {dof: gear}, gear * q[m.jnt_qposadr[target]], gear * v[dof]
        drive = ctrl[m.actuator_ctrladr[k]]
        if m.actuator_dyntype[k] != c.NO_DYNAMICS:
            at = int(m.actuator_actadr[k] + m.actuator_actnum[k]) - 1
            tau = max(c.MINVAL, float(m.actuator_dynprm[k, 0]))
            state.act_dot[at] = drive if m.actuator_dyntype[k] == c.INTEGRATOR else (drive - act[at]) / tau
            drive = act[at]
        gain, bias = (float(x) for x in m.actuator_gainprm[k, :1]), [float(x) for x in m.actuator_biasprm[k, :3]]
        factor: Number = next(gain)
        if m.actuator_gaintype[k] == c.AFFINE:
            factor = factor + float(m.actuator_gainprm[k, 1]) * length + float(m.actuator_gainprm[k, 2]) * speed
        force = factor * drive
        if m.actuator_biastype[k] == c.AFFINE_BIAS:
            force = force + (bias[0] + bias[1] * length + bias[2] * speed)
        if m.actuator_forcelimited[k]:
            force = clipped(force, m.actuator_forcerange[k])
        if m.opt_integrator == c.IMPLICITFAST:
            state.actuator_slope.append(_actuator_slope(m, k, drive, force))
        state.actuator_moment.append(moment)
        state.actuator_force.append(force)
        for dof, part in moment.items():
            forces[dof] = forces[dof] + part * force
    for joint in range(m.njnt):
        if m.jnt_actfrclimited[joint] and m.jnt_type[joint] >= c.SLIDE:
            dof = int(m.jnt_dofadr[joint])
            forces[dof] = clipped(forces[dof], m.jnt_actfrcrange[joint])
    state.qfrc_actuator = forces
    # Slopes of the actuators on a joint are 0 where the sum of its forces is at its limit.
    for k in range(len(state.actuator_slope)):
        joint = int(m.actuator_trnid[k, 0])
        if m.actuator_trntype[k] != c.IN_TENDON and m.jnt_actfrclimited[joint]:
            force = forces[int(m.jnt_dofadr[joint])]
            state.actuator_slope[k] = _within(m.jnt_actfrcrange[joint], force, state.actuator_slope[k])


def _actuator_slope(m: Model, k: int, drive: Number, force: Number) -> Number:
    """Derivative of an actuator's force by its velocity; 0 at the limit of the force (`mjd_actuator_vel`). `drive` is
    the clipped control, or the activation.
    """
    slope: Number = float(m.actuator_biasprm[k, 2]) if m.actuator_biastype[k] == c.AFFINE_BIAS else 0.0
    if m.actuator_gaintype[k] == c.AFFINE:
        slope = slope + float(m.actuator_gainprm[k, 2]) * drive
    return _within(m.actuator_forcerange[k], force, slope) if m.actuator_forcelimited[k] else slope


def _within(bounds: np.ndarray, force: Number, slope: Number) -> Number:
    """`slope` where a force lies between `bounds`, [low, high], else 0."""
    return select(less(float(bounds[0]), force), select(less(force, float(bounds[1])), slope, 0.0), 0.0)


def next_activation(m: Model, act: Vector, act_dot: Vector) -> Vector:
    """Activations (na) of all actuators after one time step (`mj_nextActivation`)."""
    step, found = float(m.opt_timestep), list(act)
    for k in range(m.nactuator):
        for at in range(int(m.actuator_actadr[k]), int(m.actuator_actadr[k] + m.actuator_actnum[k])):
            factor = step
            if m.actuator_dyntype[k] == c.FILTER_EXACT:
                tau = max(c.MINVAL, float(m.actuator_dynprm[k, 0]))
                factor = tau * (1.0 - math.exp(-step / tau))
            found[at] = act[at] + act_dot[at] * factor
            if m.actuator_actlimited[k]:
                found[at] = clipped(found[at], m.actuator_actrange[k])
    return found


def moved(m: Model, q: Vector, v: Vector, step: float) -> Vector:
    """Joint positions (nq) after moving from `q` with qvel `v` for `step` seconds (`mj_integratePos`)."""
    found = list(q)
    for joint in range(m.njnt):
        at, dof, kind = int(m.jnt_qposadr[joint]), int(m.jnt_dofadr[joint]), m.jnt_type[joint]
        if kind >= c.SLIDE:
            found[at] = q[at] + step * v[dof]
            continue
        if kind == c.FREE:
            found[at : at + 3] = [q[at + k] + step * v[dof + k] for k in range(3)]
            at, dof = at + 3, dof + 3
        # q <- q * (cos(a / 2), sin(a / 2) w / |w|) with a = |w| h
        axis, speed = normalized(v[dof : dof + 3])
        half = (0.5 * step) * speed
        turn = [cos(half), *scale(axis, sin(half))]
        found[at : at + 4] = quaternion_product(normalized(q[at : at + 4])[0], turn)
    return found


def turning_dofs(m: Model) -> list[int]:
    """Numbers of the first of the three dofs of each rotation by a quaternion."""
    first = {c.FREE: 3, c.BALL: 0}
    return [int(dof) + first[kind] for dof, kind in zip(m.jnt_dofadr, m.jnt_type, strict=True) if kind in first]


def displacement_rate(m: Model, u: Vector, v: Vector) -> Vector:
    """Rate of a displacement `u` from the beginning of a step, at velocity `v`: v itself, but for rotations, whose u is
    a rotation vector, the inverse of the derivative of the exponential (Munthe-Kaas 1998):
    w + u x w / 2 + (1 - (t / 2) cot(t / 2)) / t^2 u x (u x w), t = |u|.
    """
    rate = list(v)
    for dof in turning_dofs(m):
        turn, speed = u[dof : dof + 3], v[dof : dof + 3]
        square = dot(turn, turn)
        small = less(square, 0.09)
        angle = sqrt(select(small, 1.0, square))
        half = 0.5 * angle
        large = (1.0 - half * cos(half) / sin(half)) / select(small, 1.0, square)
        # Its series up to t = 0.3, where the quotient cancels
        series = 1.0 / 12.0 + square * (1.0 / 720.0 + square * (1.0 / 30240.0 + square * (1.0 / 1209600.0)))
        once = cross(turn, speed)
        rate[dof : dof + 3] = add(add(speed, scale(once, 0.5)), scale(cross(turn, once), select(small, series, large)))
    return rate
