"""Elliptic friction cones of contacts in projected Gauss-Seidel, as device functions for one model.

The dual of `cones`: the forces f of a contact with friction are one block, bounded by the cone f_0 >= 0,
sum_i (f_i / mu_i)^2 <= f_0^2 (MuJoCo's documentation, "Computation: friction cones"; `solPGS` and `mju_QCQP` of MuJoCo
4.0). A block is minimised in two parts: all its forces along the ray through them, then the friction forces for that
normal force. The second is a quadratic program with one quadratic constraint, solved by Newton's method for the
constraint's multiplier. In float32 it ends where rounding hides the violation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numpy import float32

from operant.compute.device import device, device_call
from operant.physics import constants as c
from operant.physics.layout import Layout
from operant.physics.local import add_scaled, inner, local_array
from operant.physics.rows import PLACES, Contacts

MULTIPLIERS = 20  # most iterations for the multiplier
SMALL = 1e-10
"""Bound below which the constraint's violation (N^2), a step of the multiplier and a pivot count as 0, and above which
an increase of the cost is undone.
"""


@dataclass(frozen=True)
class DualCones:
    """Device functions of the forces, dims numbers from row `row` on, of a contact of geom pair `pair`."""

    update: Any  # (w, roots, g, row, pair) -> change of the cost, at most SMALL, by minimising over the forces
    extrapolate: Any  # (w, roots, g, row, pair, beta): add beta times the last change, within the cone, and all to g
    along: Any  # (w, row, pair) -> inner product of the extrapolation and the correction since


def dual_cones(lay: Layout, contacts: Contacts, gradient: Any, width: int, real: Any) -> DualCones:
    """Make the device functions by which PGS updates the forces of contacts with elliptic friction cones, for a model.
    They write its forces (N, N m) and keep g = Y' f (width), with Y (width) as `roots`. `gradient(w, roots, g, row)` is
    a row of b + (A + R) f.
    """
    FORCE, BEFORE, MOMENTUM = (lay.at[f"dual {name}"] for name in ("f", "before", "momentum"))
    DIAGONAL = lay.at["dual diagonal"]
    rows = max(lay.rows, 2)
    most = rows - 1  # friction forces
    size, square, whole = rows, most * most, rows * rows
    places, friction = contacts.places, contacts.friction
    zero, half, one, two = real(0.0), real(0.5), real(1.0), real(2.0)
    least, small, noise = real(c.MINVAL), real(SMALL), real(5e-7 if real is float32 else 0.0)

    @device
    def scaled_square(w, row, pair, dims):
        """Sum of (f_i / mu_i)^2 over the friction forces."""
        total = zero
        for i in range(1, dims):
            x, mu = w[FORCE + row + i], friction(w, pair, i)
            total += x * x / (mu * mu)
        return total

    @device
    def project(w, row, pair, dims):
        """Scale the friction forces into the cone. All forces are 0 where the normal force is negative."""
        normal = w[FORCE + row]
        if normal < zero:
            for i in range(dims):
                w[FORCE + row + i] = zero
        else:
            total = scaled_square(w, row, pair, dims)
            if total > normal * normal:
                shrink = normal / math.sqrt(max(total, least))
                for i in range(1, dims):
                    w[FORCE + row + i] *= shrink

    @device_call
    def extrapolate(w, roots, g, row, pair, beta):
        dims = places(PLACES * pair + 5)
        for i in range(row, row + dims):
            force = w[FORCE + i]
            if beta > zero:
                w[FORCE + i] = force + beta * (force - w[BEFORE + i])
            w[BEFORE + i] = force
        if beta > zero:
            project(w, row, pair, dims)
        for i in range(row, row + dims):
            w[MOMENTUM + i] = w[FORCE + i]
            add_scaled(roots, i * width, w[FORCE + i], g, width)

    @device_call
    def along(w, row, pair):
        total = zero
        for i in range(row, row + places(PLACES * pair + 5)):
            total += (w[FORCE + i] - w[MOMENTUM + i]) * (w[MOMENTUM + i] - w[BEFORE + i])
        return total

    @device
    def factor(matrix, lower, n, multiplier):
        """Factor matrix + multiplier I = L D L', into `lower` with D on its diagonal. Returns whether it is positive
        definite: for up to three rows by the determinant, else by the least pivot.
        """
        determinant, smallest = one, one
        for i in range(n):
            for j in range(i + 1):
                total = matrix[most * i + j] + (multiplier if i == j else zero)
                for k in range(j):
                    total -= lower[most * i + k] * lower[most * j + k] * lower[most * k + k]
                lower[most * i + j] = total if i == j else total / lower[most * j + j]
            pivot = lower[most * i + i]
            determinant *= pivot
            smallest = min(smallest, pivot)
            if pivot <= zero:
                break
        return smallest >= small if n > 3 else (determinant >= small and smallest > zero)

    @device
    def solve_friction(w, row, pair, n, matrix, lower, linear, x, y):
        """Friction forces, written to w, that minimise x' A x / 2 + b' x within the cone of the normal force, from the
        matrix A (n, n) and b (n) in units of friction: |x| <= normal.
        """
        normal, multiplier = w[FORCE + row], zero
        for _ in range(MULTIPLIERS):
            # x = -(A + multiplier I)^-1 b; no friction where the matrix is singular
            if not factor(matrix, lower, n, multiplier):
                for i in range(n):
                    x[i] = zero
                multiplier = zero
                break
            for i in range(n):
                y[i] = -linear[i]
                for k in range(i):
                    y[i] -= lower[most * i + k] * y[k]
            for i in range(n - 1, -1, -1):
                x[i] = y[i] / lower[most * i + i]
                for k in range(i + 1, n):
                    x[i] -= lower[most * k + i] * x[k]

            # Newton's step for |x|^2 = normal^2, whose derivative is -2 x' (A + multiplier I)^-1 x
            violation = -normal * normal
            for i in range(n):
                violation += x[i] * x[i]
            if violation < max(small, noise * normal * normal):
                break
            bent = zero
            for i in range(n):
                y[i] = x[i]
                for k in range(i):
                    y[i] -= lower[most * i + k] * y[k]
                bent += y[i] * y[i] / lower[most * i + i]
            step = violation / (two * bent)
            if step < small:
                break
            multiplier += step

        for i in range(n):
            w[FORCE + row + 1 + i] = x[i] * friction(w, pair, 1 + i)
        # On the boundary exactly, where the constraint holds
        if multiplier != zero:
            stretch = normal / math.sqrt(max(scaled_square(w, row, pair, n + 1), least))
            for i in range(n):
                w[FORCE + row + 1 + i] *= stretch

    @device_call
    def update(w, roots, g, row, pair):
        old, slope = local_array(size, real), local_array(size, real)
        friction_part, lower = local_array(square, real), local_array(square, real)
        linear, x, y = local_array(most, real), local_array(most, real), local_array(most, real)
        block, other = local_array(whole, real), local_array(width, real)
        dims = places(PLACES * pair + 5)
        for i in range(dims):
            old[i], slope[i] = w[FORCE + row + i], gradient(w, roots, g, row + i)

        # The contact's part of A + R
        for i in range(dims):
            for k in range(width):
                other[k] = zero
            add_scaled(roots, (row + i) * width, one, other, width)
            block[rows * i + i] = w[DIAGONAL + row + i]
            for j in range(i):
                block[rows * i + j] = inner(roots, (row + j) * width, other, width)
                block[rows * j + i] = block[rows * i + j]

        # The normal force alone where there is none yet, else all forces along their ray
        if old[0] < least:
            w[FORCE + row] = max(old[0] - slope[0] / block[0], zero)
        else:
            curvature, descent = zero, zero
            for i in range(dims):
                total = zero
                for j in range(dims):
                    total += block[rows * i + j] * old[j]
                curvature += old[i] * total
                descent -= old[i] * slope[i]
            if curvature >= least:
                w[FORCE + row] = old[0] + max(descent / curvature, -one) * old[0]

        # Friction forces for that normal force, with A and b in units of friction
        if w[FORCE + row] < least:
            for i in range(1, dims):
                w[FORCE + row + i] = zero
        else:
            raised = w[FORCE + row] - old[0]
            for i in range(dims - 1):
                mu, at = friction(w, pair, 1 + i), rows * (1 + i)
                total = slope[1 + i] + block[at] * raised
                for j in range(dims - 1):
                    total -= block[at + 1 + j] * old[1 + j]
                    friction_part[most * i + j] = block[at + 1 + j] * mu * friction(w, pair, 1 + j)
                linear[i] = total * mu
            solve_friction(w, row, pair, dims - 1, friction_part, lower, linear, x, y)

        # Change of the cost; an increase is undone
        change = zero
        for i in range(dims):
            total = zero
            for j in range(dims):
                total += block[rows * i + j] * (w[FORCE + row + j] - old[j])
            change += (w[FORCE + row + i] - old[i]) * (half * total + slope[i])
        if change > small:
            for i in range(dims):
                w[FORCE + row + i] = old[i]
            change = zero
        for i in range(dims):
            add_scaled(roots, (row + i) * width, w[FORCE + row + i] - old[i], g, width)
        return change

    return DualCones(update, extrapolate, along)
