"""Projected Gauss-Seidel for the dual of the constraint problem, as device functions for one model.

Minimises 1/2 f' (A + R) f + f' b over forces f, A = J M^-1 J', b = J a_smooth - a*, within f >= 0 for a row that
pushes, |f| <= floss for dry friction, and without a bound for an equality constraint (MuJoCo's documentation,
"Computation: solver parameters", "PGS"). One row after the other in shuffled order, with Nesterov momentum that
restarts where it opposes the correction, as `engine_solver.c` (`solPGS`) does from version 4.0. Rows here are, in
MuJoCo's order, those of equality constraints, dry friction, limits, and contacts: the edges of a pyramid, or the normal
and the tangents of an elliptic cone, which are updated together (`dual_cones`). The iteration is separate for each
island of constraints. It stops where a sweep lowers the cost by less than the tolerance, scaled as Newton's.

A = Y Y' with Y = J L^-1 D^-1/2 and M = L' D L. A is never formed: a sweep keeps g = Y' f (nv), so that row i of A f is
y_i' g, and a change of f_i adds its product with y_i to g. An update takes 2 nv multiplications. A dense A would take
one for each row there is, after nv / 2 times their square to form it. Before each sweep g is summed again from all
forces, so that its rounding errors do not accumulate.

Y has the rows that are active; contacts beyond its room are counted as lost. A GPU waits for memory, not for
arithmetic. A row is therefore padded with zeros to blocks of BLOCK numbers, which are loaded together, one update
before they are used; g stays in registers, and the shuffled orders are a table.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from operant.compute.device import device, device_call
from operant.physics import constants as c
from operant.physics.cones import cones
from operant.physics.dual_cones import dual_cones
from operant.physics.islands import Islands
from operant.physics.layout import Layout
from operant.physics.local import BLOCK, add_scaled, copy, inner, kept, local_array, part
from operant.physics.model import Model
from operant.physics.newton import DryFriction
from operant.physics.rows import PLACES, Contacts
from operant.physics.sparse import Pattern
from operant.physics.tables import table

PACKED = 8  # rows in an entry of the table of orders


@functools.cache
def shuffled_orders(most: int, sweeps: int) -> tuple[np.ndarray, np.ndarray]:
    """Order of the rows in each sweep, constants of the number of rows n <= `most`: entries of PACKED rows, one a byte,
    ceil(n / PACKED) for each sweep (int64); and each n's first entry (int32). Fisher-Yates by PCG32 with seed 0, as
    MuJoCo's.
    """
    state, numbers = 1, []  # the first number is dropped
    for _ in range(sweeps * (most - 1)):
        mixed, turn = ((state >> 18 ^ state) >> 27) & 0xFFFFFFFF, state >> 59
        numbers.append((mixed >> turn | mixed << (-turn & 31)) & 0xFFFFFFFF)
        state = (state * 6364136223846793005 + 1) & 0xFFFFFFFFFFFFFFFF
    entries, starts = [0], [0]
    for count in range(1, most + 1):
        starts.append(len(entries))
        order, random = list(range(count)), iter(numbers)
        for _ in range(sweeps):
            for i in range(count - 1, 0, -1):
                j = next(random) % (i + 1)
                order[i], order[j] = order[j], order[i]
            packed = [bytes(order[k : k + PACKED]).ljust(PACKED, b"\0") for k in range(0, count, PACKED)]
            entries += [int.from_bytes(entry, "little", signed=True) for entry in packed]
    return np.array(entries, np.int64), np.array(starts, np.int32)


def pgs(
    m: Model, lay: Layout, hessian: Pattern, contacts: Contacts, solve_mass: Any, solve_root: Any, real: Any
) -> Any:
    """Device function (w, limits, contacts) that writes the accelerations, the constraint forces, and in place of the
    contacts' residuals the forces in their frames. Returns the number of contacts that had room.

    `solve_mass(w)` is the program grad -> search = M^-1 grad, and `solve_root(w, y)` the one y -> D^-1/2 L'^-1 y with
    M = L' D L.
    """
    at = lay.at
    X, AS, FC, LOST = (at[name] for name in ("qacc", "qacc_smooth", "qfrc_constraint", "lost"))
    WARM, QVEL = at["warm"], at["qvel"]
    GRAD, SEARCH = at["grad"], at["search"]
    LDOF, LD, LR, LV = (at[f"limit {name}"] for name in ("dof", "D", "r", "v"))
    CPAIR, CD, CR, CV, CJ = (at[f"contact {name}"] for name in ("pair", "D", "r", "v", "J"))
    B, R, DIAGONAL, FORCE = (at[f"dual {name}"] for name in ("b", "R", "diagonal", "f"))
    BEFORE, MOMENTUM = (at[f"dual {name}"] for name in ("before", "momentum"))
    apart = lay.apart > 0
    ROOTS = at["roots pointer" if apart else "dual Y"]
    MEMBER, CONE = at["dual member"], at["dual cone"]
    nv, rows, chain, room = m.nv, lay.rows, lay.chain, lay.duals
    width = -(-nv // BLOCK) * BLOCK
    places, dofs, friction, free = contacts.places, contacts.dofs, contacts.friction, contacts.free
    ne = contacts.ties
    zero, half, one = real(0.0), real(0.5), real(1.0)
    tolerance, iterations = real(m.opt_tolerance), int(m.opt_iterations)
    worse = real(1e-10)
    cold = bool(m.opt_disableflags & c.NO_WARMSTART)
    loss = DryFriction(m, lay, real)
    nf, loss_dof, loss_d, loss_bound = loss.count, loss.dof, loss.d, loss.bound
    loss_force, loss_damping = loss.floss, loss.damping
    islands = Islands(m, lay, hessian, contacts, loss_dof, nf, real)
    most, find_islands, scale_of = islands.most, islands.find, islands.scale
    holds, holds_contact = islands.holds, islands.holds_contact
    packed_orders, first_orders = shuffled_orders(room, iterations)
    orders, starts = table(packed_orders), table(first_orders)
    elliptic = bool(m.opt_cone == c.ELLIPTIC)
    cone_force, shrink = cones(m, lay, contacts, None, real).force, real(1.0 / math.sqrt(m.opt_impratio))

    @device
    def roots_of(w):
        """Place of Y, its rows one after the other."""
        return kept(w, ROOTS) if apart else part(w, ROOTS)

    @device
    def row_count(pair):
        """Number of constraint rows of a contact of geom pair `pair`: 1 without friction, else 2 per friction
        direction, or the dimensions of an elliptic cone.
        """
        if elliptic:
            return places(PLACES * pair + 5)
        return 1 if places(PLACES * pair + 5) == 1 else 2 * (places(PLACES * pair + 5) - 1)

    @device
    def clear(x):
        for i in range(width):
            x[i] = zero

    @device_call
    def write_row(w, row, y):
        """Write a row of Y, and |y|^2 to the diagonal, from that of J (width), which is overwritten."""
        roots = roots_of(w)
        solve_root(w, y)
        for i in range(width):
            roots[row * width + i] = y[i]
        w[DIAGONAL + row] = inner(roots, row * width, y, width)

    @device_call
    def write_rows(w, nl, nc):
        """Write the rows of Y = J L^-1 D^-1/2 for all active constraints, and the diagonal of A = Y Y'."""
        y, row = local_array(width, real), ne
        for k in range(nf):
            clear(y)
            y[loss_dof(k)] = one
            write_row(w, row, y)
            row += 1
        for k in range(nl):
            clear(y)
            signed = w[LDOF + k]
            y[int(abs(signed)) - 1] = one if signed > zero else -one
            write_row(w, row, y)
            row += 1
        after, row = row, 0
        for k in range(nc):
            row = after if k == ne else row
            pair, first = int(w[CPAIR + k]), CJ + k * rows * chain
            dims = places(PLACES * pair + 5)
            for e in range(row_count(pair)):
                clear(y)
                # Row e of a cone, or edge e of a pyramid: the normal and mu times a tangent
                main, side, mu = e if elliptic else 0, 0, zero
                if not elliptic and dims > 1:
                    side = 1 + e // 2
                    mu = friction(w, pair, side) if e % 2 == 0 else -friction(w, pair, side)
                for a in range(places(PLACES * pair + 6)):
                    y[dofs(chain * pair + a)] = w[first + main * chain + a] + mu * w[first + side * chain + a]
                write_row(w, row, y)
                row += 1

    @device
    def regularise(w, row, r):
        """Write a row's R and add it to the diagonal."""
        w[R + row] = r
        w[DIAGONAL + row] += r

    @device_call
    def prepare(w, nl, nc, count):
        """Write Y (count, width), R, the diagonal of A + R, b and the forces (count) at the last acceleration."""
        write_rows(w, nl, nc)
        if elliptic:
            for k in range(count):
                w[CONE + k] = zero
        row = ne
        for k in range(nf):
            dof, d, bound, floss = loss_dof(k), loss_d(w, k), loss_bound(w, k), loss_force(k)
            reference = -loss_damping(k) * w[QVEL + dof]
            w[B + row] = w[AS + dof] - reference
            x = w[WARM + dof] - reference
            w[FORCE + row] = floss if x <= -bound else (-floss if x >= bound else -d * x)
            regularise(w, row, one / d)
            row += 1
        for k in range(nl):
            w[B + row] = w[LV + k]
            w[FORCE + row] = -w[LD + k] * min(w[LR + k], zero)
            regularise(w, row, one / w[LD + k])
            row += 1
        after, row = row, 0
        for k in range(nc):
            row = after if k == ne else row
            pair = int(w[CPAIR + k])
            r, v, d = CR + k * rows, CV + k * rows, w[CD + k]
            if elliptic and places(PLACES * pair + 5) > 1:
                _, push, factor_of_slip = cone_force(w, k, pair, r)
                regular = shrink * friction(w, pair, 1)
                w[CONE + row] = real(pair + 1)
                for i in range(places(PLACES * pair + 5)):
                    mu = regular if i == 0 else friction(w, pair, i)
                    w[B + row] = w[v + i]
                    w[FORCE + row] = push if i == 0 else factor_of_slip * mu * mu * w[r + i]
                    regularise(w, row, regular * regular / (d * mu * mu))
                    row += 1
                continue
            for e in range(row_count(pair)):
                i = 1 + e // 2
                mu = (
                    zero
                    if places(PLACES * pair + 5) == 1
                    else (friction(w, pair, i) if e % 2 == 0 else -friction(w, pair, i))
                )
                slip = zero if places(PLACES * pair + 5) == 1 else mu * w[r + i]
                drift = zero if places(PLACES * pair + 5) == 1 else mu * w[v + i]
                w[B + row] = w[v] + drift
                x = w[r] + slip
                w[FORCE + row] = -d * (x if free(pair) else min(x, zero))
                regularise(w, row, one / d)
                row += 1

    @device
    def gradient(w, roots, g, row):
        """Slope of the dual cost along one row, a number: that row of b + (A + R) f, from g = Y' f (width)."""
        return w[B + row] + w[R + row] * w[FORCE + row] + inner(roots, row * width, g, width)

    @device
    def allowed(row, force):
        """Force clipped to the bounds of a row: none for an equality constraint, +- the friction loss for dry friction,
        else at least 0.
        """
        if row < ne:
            return force
        if row < ne + nf:
            floss = loss_force(row - ne)
            return min(max(force, -floss), floss)
        return max(force, zero)

    cone = dual_cones(lay, contacts, gradient, width, real)
    update_cone, extrapolate_cone, cone_along = cone.update, cone.extrapolate, cone.along

    @device
    def pair_of_cone(w, row):
        """Geom pair of the elliptic cone whose first row is `row`, or -1 for a row by itself."""
        return int(w[CONE + row]) - 1

    @device
    def member(w, k):
        """Constraint row at place k of the solver's list, which is ordered by islands; of an elliptic cone, whose rows
        are updated together, its first row.
        """
        return k if most == 1 and not elliptic else int(w[MEMBER + k])

    @device_call
    def list_members(w, nl, nc, island, n):
        """Append the numbers of an island's constraint rows, of an elliptic cone the first, to the list of members,
        from place n on. Returns the place after them.
        """
        for k in range(ne):
            if holds_contact(w, island, int(w[CPAIR + k])):
                w[MEMBER + n] = real(k)
                n += 1
        for k in range(nf):
            if holds(w, island, loss_dof(k)):
                w[MEMBER + n] = real(ne + k)
                n += 1
        for k in range(nl):
            if holds(w, island, int(abs(w[LDOF + k])) - 1):
                w[MEMBER + n] = real(ne + nf + k)
                n += 1
        row = ne + nf + nl
        for k in range(ne, nc):
            pair = int(w[CPAIR + k])
            if elliptic:
                if holds_contact(w, island, pair):
                    w[MEMBER + n] = real(row)
                    n += 1
                row += row_count(pair)
                continue
            for _ in range(row_count(pair)):
                if holds_contact(w, island, pair):
                    w[MEMBER + n] = real(row)
                    n += 1
                row += 1
        return n

    @device
    def load_row(w, roots, row, y):
        """Load a constraint row for its update: its row of Y = J L^-1 D^-1/2 into y (width). Returns its force, b, R
        and its number on the diagonal of A + R.
        """
        copy(roots, row * width, y, width)
        return w[FORCE + row], w[B + row], w[R + row], w[DIAGONAL + row]

    @device
    def sweep(w, roots, g, first, count, order):
        """Minimise the dual cost over the force of one of `count` members, from `first` on, after the other, in place,
        in the order that begins at entry `order` of the table, and keep g = Y' f. Returns the decrease of the cost.
        """
        improvement, coming = zero, orders(order)
        y, ahead = local_array(width, real), local_array(width, real)
        next_row = member(w, first + (coming & 255))
        found = load_row(w, roots, next_row, ahead)
        for done in range(0, count, PACKED):
            packed, coming = coming, orders(order + done // PACKED + 1) if done + PACKED < count else 0
            for k in range(min(count - done, PACKED)):
                packed >>= 8
                row, next_row = next_row, member(w, first + ((packed if k < PACKED - 1 else coming) & 255))
                old, b, r, diagonal = found
                copy(ahead, 0, y, width)
                # Loaded now, used in the next turn
                found = load_row(w, roots, next_row, ahead)
                if elliptic and pair_of_cone(w, row) >= 0:
                    improvement -= update_cone(w, roots, g, row, pair_of_cone(w, row))
                    continue
                slope = b + r * old + inner(y, 0, g, width)
                force = allowed(row, old - slope / diagonal)
                delta = force - old
                change = half * delta * delta * diagonal + delta * slope
                if change > worse:
                    force, delta, change = old, zero, zero
                w[FORCE + row] = force
                add_scaled(y, 0, delta, g, width)
                improvement -= change
        return improvement

    @device_call
    def begin(w, count):
        """Keep the constraint forces of the warm start, or set all to zero if their dual cost is higher than zero's."""
        cost, g, roots = zero, local_array(width, real), roots_of(w)
        if not cold:
            clear(g)
            for row in range(count):
                add_scaled(roots, row * width, w[FORCE + row], g, width)
            for row in range(count):
                cost += w[FORCE + row] * (half * (gradient(w, roots, g, row) - w[B + row]) + w[B + row])
        if cold or cost > zero:
            for row in range(count):
                w[FORCE + row] = zero

    @device
    def extrapolate(w, roots, g, first, count, beta):
        """Add beta times their last change to the forces of `count` members, within their bounds, and write g."""
        clear(g)
        for k in range(first, first + count):
            row = member(w, k)
            if elliptic and pair_of_cone(w, row) >= 0:
                extrapolate_cone(w, roots, g, row, pair_of_cone(w, row), beta)
                continue
            before = w[FORCE + row]
            force = allowed(row, before + beta * (before - w[BEFORE + row])) if beta > zero else before
            w[FORCE + row], w[BEFORE + row], w[MOMENTUM + row] = force, before, force
            add_scaled(roots, row * width, force, g, width)

    @device_call
    def iterate(w, first, count, scale):
        """Sweep over `count` members, from `first` on, until a sweep improves little."""
        order, age, g, roots = starts(count), 0, local_array(width, real), roots_of(w)
        for iteration in range(iterations):
            beta = real(age - 1) / real(age + 2) if iteration > 0 else zero
            extrapolate(w, roots, g, first, count, beta)
            improvement = sweep(w, roots, g, first, count, order)
            order += (count + PACKED - 1) // PACKED
            along = zero
            for k in range(first, first + count):
                row = member(w, k)
                if elliptic and pair_of_cone(w, row) >= 0:
                    along += cone_along(w, row, pair_of_cone(w, row))
                    continue
                along += (w[FORCE + row] - w[MOMENTUM + row]) * (w[MOMENTUM + row] - w[BEFORE + row])
            age = 0 if iteration > 0 and along < zero else age + 1
            if improvement * scale < tolerance:
                return

    @device_call
    def finish(w, nl, nc):
        """Write constraint forces and accelerations (nv): f_constraint = J' f, a = a_smooth + M^-1 f_constraint."""
        for i in range(nv):
            w[GRAD + i] = zero
        row = ne
        for k in range(nf):
            w[GRAD + loss_dof(k)] += w[FORCE + row]
            row += 1
        for k in range(nl):
            signed = w[LDOF + k]
            w[GRAD + int(abs(signed)) - 1] += w[FORCE + row] if signed > zero else -w[FORCE + row]
            row += 1
        after, row = row, 0
        for k in range(nc):
            row = after if k == ne else row
            pair = int(w[CPAIR + k])
            r = CR + k * rows
            if places(PLACES * pair + 5) == 1:
                w[r] = w[FORCE + row]
                row += 1
            elif elliptic:
                for i in range(places(PLACES * pair + 5)):
                    w[r + i] = w[FORCE + row]
                    row += 1
            else:
                push = zero
                for i in range(1, places(PLACES * pair + 5)):
                    push += w[FORCE + row] + w[FORCE + row + 1]
                    w[r + i] = friction(w, pair, i) * (w[FORCE + row] - w[FORCE + row + 1])
                    row += 2
                w[r] = push
            for i in range(places(PLACES * pair + 5)):
                for a in range(places(PLACES * pair + 6)):
                    w[GRAD + dofs(chain * pair + a)] += w[r + i] * w[CJ + (k * rows + i) * chain + a]
        solve_mass(w)
        for i in range(nv):
            w[FC + i] = w[GRAD + i]
            w[X + i] = w[AS + i] + w[SEARCH + i]

    @device_call
    def constrain(w, nl, nc):
        count, room_for = nf + nl, 0
        for k in range(nc):
            more = row_count(int(w[CPAIR + k]))
            if count + more > room:
                break
            count += more
            room_for += 1
        w[LOST] += real(nc - room_for)
        if count > 0:
            prepare(w, nl, room_for, count)
            begin(w, count)
            found, first = find_islands(w, nl, room_for), 0
            for island in range(most):
                if found >> island & 1:
                    after = count if most == 1 and not elliptic else list_members(w, nl, room_for, island, first)
                    iterate(w, first, after - first, scale_of(w, island))
                    first = after
            finish(w, nl, room_for)
        else:
            for i in range(nv):
                w[X + i] = w[AS + i]
                w[FC + i] = zero
        return room_for

    return constrain
