"""Derivatives of the smooth forces by velocity, for the integrator implicitfast, as formulas for `trace`.

Source: MuJoCo's documentation, "Computation: numerical integration", and `engine_derivative.c`. The step solves
(M - h D) a = f, D = d(f_passive + f_actuator) / dv without the derivative of Coriolis forces, symmetric, and with M's
pattern. A free body without other joints in its tree has 6 x 6 equations of its own, not symmetric, with that
derivative.
"""

from __future__ import annotations

from collections.abc import Iterable

from operant.physics import constants as c
from operant.physics.fluids import Square, fluid_derivatives, symmetrised
from operant.physics.model import Model
from operant.physics.smooth import (
    State,
    Vector,
    add,
    ancestors,
    constants,
    cross,
    dot,
    rotate,
    rotate_back,
    scale,
    subtract,
)
from operant.physics.sparse import Matrix
from operant.physics.trace import Number

SIX = range(6)


def free_bodies(m: Model) -> list[int]:
    """Numbers of the bodies with a free joint whose tree has no other joint."""
    trees = [int(x) for x in m.dof_treeid]
    free = (int(m.jnt_bodyid[j]) for j in range(m.njnt) if m.jnt_type[j] == c.FREE)
    return [body for body in free if trees.count(trees[m.body_dofadr[body]]) == 6]


def damped_mass(
    m: Model, state: State, v: Vector, damping_factor: Number = 1.0, mass_factor: Number = 1.0
) -> tuple[Matrix, dict[int, list[Number]]]:
    """M - h D: its entries in M's pattern, and the 36 of each free body by its number (`mj_implicit`)."""
    step, free = float(m.opt_timestep), free_bodies(m)
    derivative = _derivative(m, state, free, damping_factor)
    found = dict(state.M)
    for (i, j), entry in derivative.items():
        # The row of a dof with a diagonal inertia stays diagonal.
        if (i, j) in found and (i == j or not m.dof_simplenum[i]):
            found[i, j] = found[i, j] - step * entry
    blocks = {}
    for body in free:
        first = int(m.body_dofadr[body])
        coriolis = _coriolis(m, state, body, v[first + 3 : first + 6])
        block = []
        for i in SIX:
            for j in SIX:
                mass = state.M[first + max(i, j), first + min(i, j)]
                entry = derivative.get((first + i, first + j), 0.0)
                block.append(mass - step * entry + step * (coriolis[i][j] * mass_factor))
        blocks[body] = block
    return found, blocks


def _derivative(m: Model, state: State, free: Iterable[int], damping_factor: Number) -> Matrix:
    """D by pairs of dofs of one chain: the lower triangle, and for free bodies both (`mjd_smooth_vel`)."""
    found: Matrix = {}
    for body in free:
        first = int(m.body_dofadr[body])
        found |= {(first + i, first + j): 0.0 for i in SIX for j in SIX}
    found |= {(i, j): 0.0 for i in range(m.nv) for j in [i, *ancestors(m, i)]}

    def add_outer(columns: dict[int, Number], factor: Number) -> None:
        """Add factor J' J of a row J; pairs of different chains are left out, as MuJoCo does."""
        for i, first in columns.items():
            for j, second in columns.items():
                if (i, j) in found:
                    found[i, j] = found[i, j] + factor * (first * second)

    # Actuators: 0 where the force is at its limit
    for moment, slope in zip(state.actuator_moment, state.actuator_slope, strict=True):
        add_outer(moment, slope)
    # Fluids: J' B J
    for element, columns, local in fluid_derivatives(m, state):
        local = local if int(m.body_rootid[element.body]) in free else symmetrised(local)
        for j, column in columns.items():
            force = [dot(row, column) for row in local]
            for i, other in columns.items():
                if (i, j) in found:
                    found[i, j] = found[i, j] + dot(other, force)
    # Dampers
    if not m.opt_disableflags & c.NO_DAMPER:
        for k in range(m.nv):
            found[k, k] = found[k, k] - float(m.dof_damping[k]) * damping_factor
        for tendon in range(m.ntendon):
            add_outer(state.ten_moment[tendon], -float(m.tendon_damping[tendon]))
    return found


def _coriolis(m: Model, state: State, root: int, speed: Vector) -> Square:
    """Derivative (6, 6) of the bias force of a free body, and of those fixed to it, by its velocities; `speed` is the
    angular velocity (3) in the frame of the free body (`mjd_freeBias_vel`).

    With s the offset of a centre of mass, w the angular velocity and I the inertia about the centre of mass:
    force m w x (w x s), torque w x I w + s x force.
    """
    turn = state.xmat[root]
    w = rotate(turn, speed)
    found: Square = [[0.0] * 6 for _ in SIX]
    for body in range(root, m.nbody):
        if m.body_rootid[body] != root:
            continue
        mass, axes, moments = float(m.body_mass[body]), state.ximat[body], constants(m.body_inertia[body])
        s = subtract(state.xipos[body], state.xpos[root])
        momentum = _inertia_times(axes, moments, w)
        for k in range(3):
            # Change of w with the k-th axis of the free body
            dw = turn[k::3]
            push = scale(add(cross(dw, cross(w, s)), cross(w, cross(dw, s))), mass)
            twist = add(cross(dw, momentum), cross(w, _inertia_times(axes, moments, dw)))
            twist = rotate_back(turn, add(twist, cross(s, push)))
            for i in range(3):
                found[i][3 + k], found[3 + i][3 + k] = found[i][3 + k] + push[i], found[3 + i][3 + k] + twist[i]
    return found


def _inertia_times(axes: Vector, moments: Vector, v: Vector) -> Vector:
    """Product of an inertia, given by its principal axes (9) and moments (3), and a vector."""
    return rotate(axes, [a * b for a, b in zip(moments, rotate_back(axes, v), strict=True)])


def solve_six(a: Vector, b: Vector) -> Vector:
    """Solution (6) of the equations of a free body, A (36) row by row: by blocks of 3, each by Cramer's rule."""

    def block(i: int, j: int) -> Square:
        return [a[6 * (3 * i + k) + 3 * j : 6 * (3 * i + k) + 3 * j + 3] for k in range(3)]

    # y = A11^-1 b1, Y = A11^-1 A12;  (A22 - A21 Y) x2 = b2 - A21 y;  x1 = y - Y x2
    inverse, below, across = _inverse(block(0, 0)), block(1, 0), block(0, 1)
    y = [dot(row, b[:3]) for row in inverse]
    columns = [[dot(row, [across[k][j] for k in range(3)]) for row in inverse] for j in range(3)]
    rest = [[block(1, 1)[i][j] - dot(below[i], columns[j]) for j in range(3)] for i in range(3)]
    right = [b[3 + i] - dot(below[i], y) for i in range(3)]
    x2 = [dot(row, right) for row in _inverse(rest)]
    return [y[i] - dot([columns[j][i] for j in range(3)], x2) for i in range(3)] + x2


def _inverse(a: Square) -> Square:
    """Inverse of a 3 x 3 matrix by cofactors."""
    columns = [cross(a[1], a[2]), cross(a[2], a[0]), cross(a[0], a[1])]
    factor = 1.0 / dot(a[0], columns[0])
    return [[columns[j][i] * factor for j in range(3)] for i in range(3)]
