"""Equality constraints of a model, row by row: connect, weld, joint and tendon.

Source: MuJoCo's documentation, "Computation: constraint model", "Equality", and `mj_instantiateEquality`.
"""

from __future__ import annotations

from dataclasses import dataclass

from operant.physics import constants as c
from operant.physics.model import Model
from operant.physics.pairs import safe_solimp, safe_solref
from operant.physics.smooth import (
    State,
    Vector,
    add,
    constants,
    cross,
    dot,
    moving_dofs,
    placed,
    quaternion_product,
    rotate,
    scale,
    subtract,
    tendon_dofs,
)
from operant.physics.trace import Number, sqrt


@dataclass(frozen=True)
class Tie:
    """One row of an equality constraint; `weight` approximates the diagonal of J M^-1 J'."""

    equality: int
    row: int
    dofs: tuple[int, ...]
    weight: float
    solref: tuple[float, ...]  # 2
    solimp: tuple[float, ...]  # 5


def find_ties(m: Model) -> list[Tie]:
    """Return one `Tie` for each row of the equality constraints that are active, in the order of the model."""
    found = []
    off = m.opt_disableflags & (c.NO_EQUALITY | c.NO_CONSTRAINT)
    # A file that an earlier version saved has no such field.
    for k in range(0 if off else int(m.arrays.get("neq", 0))):
        if not m.eq_active0[k]:
            continue
        if m.eq_type[k] in (c.CONNECT, c.WELD):
            bodies = _bodies(m, k)
            dofs = {dof for body in bodies for dof in moving_dofs(m, body)}
            weights = [float(sum(m.body_invweight0[body, i] for body in bodies)) for i in range(2)]
            rows = [weights[0]] * 3 + ([weights[1]] * 3 if m.eq_type[k] == c.WELD else [])
        else:
            numbers = [int(x) for x in (m.eq_obj1id[k], m.eq_obj2id[k]) if x >= 0]
            if m.eq_type[k] == c.EQUAL_JOINT:
                dofs = {int(m.jnt_dofadr[j]) for j in numbers}
                rows = [float(sum(m.dof_invweight0[m.jnt_dofadr[j]] for j in numbers))]
            else:
                dofs = {dof for tendon in numbers for dof in tendon_dofs(m, tendon)}
                rows = [float(sum(m.tendon_invweight0[tendon] for tendon in numbers))]
        reference, impedance = safe_solref(m, m.eq_solref[k]), safe_solimp(m.eq_solimp[k])
        for row, weight in enumerate(rows if dofs else ()):
            found.append(Tie(k, row, tuple(sorted(dofs)), weight, reference, impedance))
    return found


def has_weld(m: Model) -> bool:
    """Whether the orientations of two bodies are tied."""
    return any(m.eq_type[tie.equality] == c.WELD for tie in find_ties(m))


def tie_numbers(m: Model, state: State, q: Vector, v: Vector, tie: Tie) -> tuple[Number, Number, Number, Vector]:
    """Violation of a row, that of its whole constraint, the row's acceleration without that of the dofs, and its
    Jacobian by the dofs of the tie.
    """
    k = tie.equality
    posed = m.eq_type[k] in (c.CONNECT, c.WELD)
    errors, drift, columns = _pose(m, state, v, k) if posed else _coordinate(m, state, q, k)
    violation = errors[0] if len(errors) == 1 else sqrt(dot(errors, errors))
    return errors[tie.row], violation, drift[tie.row], [columns[dof][tie.row] for dof in tie.dofs]


def _bodies(m: Model, k: int) -> list[int]:
    """Numbers of the two bodies that a constraint ties."""
    objects = [int(m.eq_obj1id[k]), int(m.eq_obj2id[k])]
    return [int(m.site_bodyid[x]) for x in objects] if m.eq_objtype[k] == c.OBJ_SITE else objects


def _pose(m: Model, state: State, v: Vector, k: int) -> tuple[Vector, Vector, dict[int, Vector]]:
    """Violation (3, or 6 of a weld) of a connect or a weld, dJ/dt v, and J by dof (`mj_instantiateEquality`,
    `mj_Jdotv`).
    """
    bodies, sites, weld = _bodies(m, k), m.eq_objtype[k] == c.OBJ_SITE, m.eq_type[k] == c.WELD
    objects, data = (int(m.eq_obj1id[k]), int(m.eq_obj2id[k])), [float(x) for x in m.eq_data[k]]
    anchors, quaternions = [], []
    for i, body in enumerate(bodies):
        if sites:
            site = objects[i]
            anchors.append(placed(m, state, body, m.site_pos[site], m.site_quat[site])[0])
            local = [float(x) for x in m.site_quat[site]]
        else:
            # A weld's data begins with the anchor of the second body.
            at = 3 * (1 - i if weld else i)
            anchors.append(add(state.xpos[body], rotate(state.xmat[body], constants(m.eq_data[k, at : at + 3]))))
            local = data[6:10] if i == 0 else [1.0, 0.0, 0.0, 0.0]
        if weld:
            quaternions.append(quaternion_product(state.xquat[body], local))
    error = subtract(anchors[0], anchors[1])

    columns: dict[int, Vector] = {dof: [0.0] * 6 for body in bodies for dof in moving_dofs(m, body)}
    drift: Vector = [0.0] * 6
    for body, anchor, sign in zip(bodies, anchors, (1.0, -1.0), strict=True):
        for dof in moving_dofs(m, body):
            # Velocity of the anchor: translation + rotation x (anchor - centre)
            axis, arm = state.cdof[dof], subtract(anchor, state.subtree_com[m.body_rootid[m.dof_bodyid[dof]]])
            moving = add(axis[3:], cross(axis[:3], arm)) + axis[:3]
            columns[dof] = add(columns[dof], scale(moving, sign))
        # dJ/dt v: a + alpha x r + w x (velocity of the anchor), and alpha
        turning: Vector = [0.0] * 6
        for dof in moving_dofs(m, body):
            turning = add(turning, scale(state.cdof_dot[dof], v[dof]))
        arm = subtract(anchor, state.subtree_com[m.body_rootid[body]])
        spin = state.cvel[body][:3]
        speed = add(state.cvel[body][3:], cross(spin, arm))
        moving = add(add(turning[3:], cross(turning[:3], arm)), cross(spin, speed)) + turning[:3]
        drift = add(drift, scale(moving, sign))
    if weld:
        # Torque scale times the axis of q = conj(q2) q1;  dq = conj(q2) (w1 - w2) q1 / 2
        stretch, back = data[10], [quaternions[1][0], *scale(quaternions[1][1:], -1.0)]
        error = error + scale(quaternion_product(back, quaternions[0])[1:], stretch)
        for dof, column in columns.items():
            turned = quaternion_product(quaternion_product(back, [0.0, *column[3:]]), quaternions[0])
            columns[dof] = column[:3] + scale(turned[1:], 0.5 * stretch)
        # d/dt of conj(q2) (w1 - w2) q1 / 2, with dq/dt = w q / 2
        spins = [state.cvel[body][:3] for body in bodies]
        between: Vector = [0.0, *subtract(*spins)]
        rates = [scale(quaternion_product([0.0, *w], x), 0.5) for w, x in zip(spins, quaternions, strict=True)]
        back_rate = [rates[1][0], *scale(rates[1][1:], -1.0)]
        terms = (
            (back_rate, between, quaternions[0]), (back, [0.0, *drift[3:]], quaternions[0]), (back, between, rates[0])
        )  # fmt: skip
        total: Vector = [0.0] * 4
        for first, second, third in terms:
            total = add(total, quaternion_product(quaternion_product(first, second), third))
        drift = drift[:3] + scale(total[1:], 0.5 * stretch)
    return error, drift, columns


def _coordinate(m: Model, state: State, q: Vector, k: int) -> tuple[Vector, Vector, dict[int, Vector]]:
    """Violation (1) of a joint or tendon that follows a polynomial of another, or a constant, 0, and J by dof. MuJoCo
    leaves out dJ/dt v here.
    """
    data, values, moments = [float(x) for x in m.eq_data[k, :5]], [], []
    for number in (int(x) for x in (m.eq_obj1id[k], m.eq_obj2id[k]) if x >= 0):
        if m.eq_type[k] == c.EQUAL_JOINT:
            at = int(m.jnt_qposadr[number])
            values.append(q[at] - float(m.qpos0[at]))
            moments.append({int(m.jnt_dofadr[number]): 1.0})
        else:
            values.append(state.ten_length[number] - float(m.tendon_length0[number]))
            moments.append(state.ten_moment[number])
    target, slope = data[0], 0.0
    if len(values) > 1:
        # y = a0 + a1 x + ... + a4 x^4
        x = values[1]
        target = data[0] + (data[1] + (data[2] + (data[3] + data[4] * x) * x) * x) * x
        slope = data[1] + (2.0 * data[2] + (3.0 * data[3] + 4.0 * data[4] * x) * x) * x
    columns: dict[int, Vector] = {dof: [part] for dof, part in moments[0].items()}
    for dof, part in moments[1].items() if len(values) > 1 else ():
        columns[dof] = [columns.get(dof, [0.0])[0] - slope * part]
    return [values[0] - target], [0.0], columns
