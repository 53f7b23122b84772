"""Projected Gauss-Seidel for the dual of the constraint problem, as device functions for one model.

Minimises 1/2 f' (A + R) f + f' b over forces f, A = J M^-1 J', b = J a_smooth - a*, within f >= 0 for a row that pushes
and |f| <= floss for dry friction (MuJoCo's documentation, "Computation: solver parameters", "PGS"). One row after the
other in shuffled order, with Nesterov momentum that restarts where it opposes the correction, as `engine_solver.c`
(`solPGS`) does from version 4.0. Rows here are the edges of a contact's pyramid. A + R is stored for the rows that are
active; contacts beyond its room are counted as lost. The iteration
stops where a sweep lowers the cost by less than the tolerance, scaled by 1 / sum of M's diagonal as Newton's.
"""

from __future__ import annotations

from typing import Any

from numpy import uint32, uint64

from operant.compute.device import device, device_call
from operant.physics import constants as c
from operant.physics.layout import Layout
from operant.physics.model import Model
from operant.physics.newton import DryFriction
from operant.physics.rows import PLACES, Contacts
from operant.physics.sparse import Pattern
from operant.physics.trees import scale_of_trees


def pgs(m: Model, lay: Layout, hessian: Pattern, contacts: Contacts, solve_mass: Any, real: Any) -> Any:
    """Device function (w, limits, contacts) that writes the accelerations, the constraint forces, and in place of the
    contacts' residuals the forces in their frames. Returns the number of contacts that had room.

    `solve_mass(w)` is the program grad -> search = M^-1 grad.
    """
    at = lay.at
    X, AS, FC, LOST = (at[name] for name in ("qacc", "qacc_smooth", "qfrc_constraint", "lost"))
    WARM, QVEL = at["warm"], at["qvel"]
    GRAD, SEARCH = at["grad"], at["search"]
    LDOF, LD, LR, LV = (at[f"limit {name}"] for name in ("dof", "D", "r", "v"))
    CPAIR, CD, CR, CV, CJ = (at[f"contact {name}"] for name in ("pair", "D", "r", "v", "J"))
    A, B, FORCE, BEFORE, MOMENTUM, ORDER = (
        at[f"dual {name}"] for name in ("A", "b", "f", "before", "momentum", "order")
    )
    nv, rows, chain, room = m.nv, lay.rows, lay.chain, lay.duals
    places, dofs, friction = contacts.places, contacts.dofs, contacts.friction
    zero, half, one = real(0.0), real(0.5), real(1.0)
    tolerance, iterations = real(m.opt_tolerance), int(m.opt_iterations)
    worse = real(1e-10)
    cold = bool(m.opt_disableflags & c.NO_WARMSTART)
    loss = DryFriction(m, lay, real)
    nf, loss_dof, loss_d, loss_bound = loss.count, loss.dof, loss.d, loss.bound
    loss_force, loss_damping = loss.floss, loss.damping
    scale_of = scale_of_trees(m, lay, hessian, contacts, loss_dof, nf, real)
    factor, increment = uint64(6364136223846793005), uint64(1)

    @device
    def row_count(pair):
        """Number of constraint rows of a contact of geom pair `pair`: 1 without friction, else 2 per friction
        direction.
        """
        return 1 if places(PLACES * pair + 5) == 1 else 2 * (places(PLACES * pair + 5) - 1)

    @device_call
    def spread(w, nl, nc, row):
        """Write the Jacobian (nv) of row `row` (dry friction, limits, contacts) in the place of the gradient."""
        for i in range(nv):
            w[GRAD + i] = zero
        if row < nf:
            w[GRAD + loss_dof(row)] = one
            return
        row -= nf
        if row < nl:
            signed = w[LDOF + row]
            w[GRAD + int(abs(signed)) - 1] = one if signed > zero else -one
            return
        row -= nl
        for k in range(nc):
            pair = int(w[CPAIR + k])
            if row >= row_count(pair):
                row -= row_count(pair)
                continue
            i = 1 + row // 2
            first = CJ + k * rows * chain
            mu = (
                zero
                if places(PLACES * pair + 5) == 1
                else (friction(w, pair, i) if row % 2 == 0 else -friction(w, pair, i))
            )
            second = first if places(PLACES * pair + 5) == 1 else first + i * chain
            for a in range(places(PLACES * pair + 6)):
                w[GRAD + dofs(chain * pair + a)] += w[first + a] + mu * w[second + a]
            return

    @device_call
    def project(w, nl, nc, count, row):
        """Write the entries (row, other <= row) of A (count, count): J search of the other rows."""
        to = A + row * count
        for k in range(nf):
            if k <= row:
                w[to + k] = w[SEARCH + loss_dof(k)]
        other = nf
        for k in range(nl):
            signed = w[LDOF + k]
            if other <= row:
                v = w[SEARCH + int(abs(signed)) - 1]
                w[to + other] = v if signed > zero else -v
            other += 1
        for k in range(nc):
            if other > row:
                return
            pair = int(w[CPAIR + k])
            first, normal = CJ + k * rows * chain, zero
            for a in range(places(PLACES * pair + 6)):
                normal += w[first + a] * w[SEARCH + dofs(chain * pair + a)]
            if places(PLACES * pair + 5) == 1:
                w[to + other] = normal
                other += 1
            for i in range(1, places(PLACES * pair + 5)):
                tangent = zero
                for a in range(places(PLACES * pair + 6)):
                    tangent += w[first + i * chain + a] * w[SEARCH + dofs(chain * pair + a)]
                slip = friction(w, pair, i) * tangent
                w[to + other] = normal + slip
                w[to + other + 1] = normal - slip
                other += 2

    @device_call
    def prepare(w, nl, nc, count):
        """Write A + R (count, count), b (count) and the forces (count) at the last acceleration."""
        for row in range(count):
            spread(w, nl, nc, row)
            solve_mass(w)
            # A contact's last edges may lie beyond the row itself: they are written again, alike, as rows.
            project(w, nl, nc, count, row)
        for row in range(count):
            for other in range(row):
                w[A + other * count + row] = w[A + row * count + other]
        for k in range(nf):
            dof, d, bound, floss = loss_dof(k), loss_d(w, k), loss_bound(w, k), loss_force(k)
            reference = -loss_damping(k) * w[QVEL + dof]
            w[B + k] = w[AS + dof] - reference
            x = w[WARM + dof] - reference
            w[FORCE + k] = floss if x <= -bound else (-floss if x >= bound else -d * x)
            w[A + k * count + k] += one / d
        row = nf
        for k in range(nl):
            w[B + row] = w[LV + k]
            w[FORCE + row] = -w[LD + k] * min(w[LR + k], zero)
            w[A + row * count + row] += one / w[LD + k]
            row += 1
        for k in range(nc):
            pair = int(w[CPAIR + k])
            r, v, d = CR + k * rows, CV + k * rows, w[CD + k]
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
                w[FORCE + row] = -d * min(w[r] + slip, zero)
                w[A + row * count + row] += one / d
                row += 1

    @device
    def gradient(w, count, row):
        """Slope of the dual cost along one row, a number: that row of b + (A + R) f."""
        total, at_row = w[B + row], A + row * count
        for other in range(count):
            total += w[at_row + other] * w[FORCE + other]
        return total

    @device
    def allowed(row, force):
        """Force clipped to the bounds of a row: +- the friction loss for dry friction, else at least 0."""
        if row < nf:
            floss = loss_force(row)
            return min(max(force, -floss), floss)
        return max(force, zero)

    @device
    def shuffle(w, count, state):
        """Shuffle the order of the rows in place (Fisher-Yates by PCG32). Returns the generator's next state."""
        for k in range(count - 1):
            i = count - 1 - k
            mixed = uint32(((state >> uint64(18)) ^ state) >> uint64(27))
            turn = uint32(state >> uint64(59))
            number = uint32(mixed >> turn) | uint32(mixed << (uint32(uint32(32) - turn) & uint32(31)))
            state = uint64(state * factor + increment)
            j = int(uint64(number) % uint64(uint32(i + 1)))
            kept = w[ORDER + i]
            w[ORDER + i] = w[ORDER + j]
            w[ORDER + j] = kept
        return state

    @device_call
    def sweep(w, count):
        """Minimise the dual cost over one row's force after the other, in place. Returns the decrease of the cost."""
        improvement = zero
        for k in range(count):
            row = int(w[ORDER + k])
            slope, old, diagonal = gradient(w, count, row), w[FORCE + row], w[A + row * count + row]
            force = allowed(row, old - slope / diagonal)
            delta = force - old
            change = half * delta * delta * diagonal + delta * slope
            if change > worse:
                force, change = old, zero
            w[FORCE + row] = force
            improvement -= change
        return improvement

    @device_call
    def iterate(w, count, scale):
        if cold:
            for row in range(count):
                w[FORCE + row] = zero
        else:
            # Forces of the last acceleration, unless zero is better
            cost = zero
            for row in range(count):
                cost += w[FORCE + row] * (half * (gradient(w, count, row) - w[B + row]) + w[B + row])
            if cost > zero:
                for row in range(count):
                    w[FORCE + row] = zero
        for row in range(count):
            w[ORDER + row] = real(row)
        state = increment  # PCG32 seeded with 0, first number dropped
        age = 0
        for iteration in range(iterations):
            beta = real(age - 1) / real(age + 2) if iteration > 0 else zero
            for row in range(count):
                force = w[FORCE + row]
                if beta > zero:
                    w[FORCE + row] = allowed(row, force + beta * (force - w[BEFORE + row]))
                w[BEFORE + row] = force
                w[MOMENTUM + row] = w[FORCE + row]
            state = shuffle(w, count, state)
            improvement = sweep(w, count)
            along = zero
            for row in range(count):
                along += (w[FORCE + row] - w[MOMENTUM + row]) * (w[MOMENTUM + row] - w[BEFORE + row])
            age = 0 if iteration > 0 and along < zero else age + 1
            if improvement * scale < tolerance:
                return

    @device_call
    def finish(w, nl, nc):
        """Write constraint forces and accelerations (nv): f_constraint = J' f, a = a_smooth + M^-1 f_constraint."""
        for i in range(nv):
            w[GRAD + i] = zero
        for k in range(nf):
            w[GRAD + loss_dof(k)] += w[FORCE + k]
        row = nf
        for k in range(nl):
            signed = w[LDOF + k]
            w[GRAD + int(abs(signed)) - 1] += w[FORCE + row] if signed > zero else -w[FORCE + row]
            row += 1
        for k in range(nc):
            pair = int(w[CPAIR + k])
            r = CR + k * rows
            if places(PLACES * pair + 5) == 1:
                w[r] = w[FORCE + row]
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
        count, kept = nf + nl, 0
        for k in range(nc):
            more = row_count(int(w[CPAIR + k]))
            if count + more > room:
                break
            count += more
            kept += 1
        w[LOST] += real(nc - kept)
        if count > 0:
            prepare(w, nl, kept, count)
            iterate(w, count, scale_of(w, nl, kept))
            finish(w, nl, kept)
        else:
            for i in range(nv):
                w[X + i] = w[AS + i]
                w[FC + i] = zero
        return kept

    return constrain
