"""Newton's method with exact line search for the constraint problem, as device functions for one model.

Minimises 1/2 (a - a_smooth)' M (a - a_smooth) + s(J a - a*) over accelerations a, where s is 1/2 D r^2 for a row that
pushes (r < 0), the cost of `cones` for a contact with an elliptic cone, and for dry friction a Huber function (MuJoCo's
documentation, "Computation: solver parameters", "Newton"). Warm start, stopping rules and line search are those of
`engine_solver.c` (`mj_solPrimal`, `PrimalSearch`), so that a result in float64 is MuJoCo's to rounding. In float32 two
rules stop where rounding hides further progress: the line search at a slope below 3e-6 of the first, the iteration
where a full step changes no row's state (the problem is quadratic there, and solved).

The step length and the end of the iteration are separate for each island of constraints. The islands that have not
converged iterate together: one factorisation of the Hessian, which is block-diagonal by islands, serves all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import float32, int32

from operant.compute.device import device, device_call
from operant.physics import constants as c
from operant.physics.cones import MIDDLE, cones
from operant.physics.islands import Islands
from operant.physics.layout import Layout
from operant.physics.model import Model
from operant.physics.pairs import safe_solimp, safe_solref, stiffness_damping
from operant.physics.rows import PLACES, Contacts, impedance_numbers
from operant.physics.sparse import Pattern
from operant.physics.tables import table


def loss_numbers(m: Model) -> np.ndarray:
    """Rows of dry friction, in order: dof, D, R floss, floss, damping B. Their violation is 0, so D is constant."""
    found = []
    for dof in range(m.nv):
        floss = float(m.dof_frictionloss[dof])
        if floss > 0 and not m.opt_disableflags & (c.NO_FRICTIONLOSS | c.NO_CONSTRAINT):
            solimp = safe_solimp(m.dof_solimp[dof])
            d = impedance_numbers(solimp)[0]
            r = max(c.MINVAL, (1.0 - d) / d * float(m.dof_invweight0[dof]))
            _, damping = stiffness_damping(safe_solref(m, m.dof_solref[dof]), solimp)
            found.append((dof, 1.0 / r, r * floss, floss, damping))
    return np.array(found).reshape(-1, 5)


class DryFriction:
    """Rows of dry friction, as device functions of their number k; D and bound are the lane's where it scales masses or
    armature.
    """

    def __init__(self, m: Model, lay: Layout, real: Any) -> None:
        loss = loss_numbers(m)
        self.count = len(loss)
        dof = table(loss[:, 0].astype(int32) if len(loss) else np.zeros(1, int32))
        numbers = table(loss[:, 1:].astype(real) if len(loss) else np.zeros(4, real))
        D, BOUND = lay.at.get("loss D", -1), lay.at.get("loss bound", -1)

        @device
        def constant_d(w, k):
            return numbers(4 * k)

        @device
        def lane_d(w, k):
            return w[D + k]

        @device
        def constant_bound(w, k):
            return numbers(4 * k + 1)

        @device
        def lane_bound(w, k):
            return w[BOUND + k]

        @device
        def floss(k):
            return numbers(4 * k + 2)

        @device
        def damping(k):
            return numbers(4 * k + 3)

        self.dof, self.floss, self.damping = dof, floss, damping
        self.d, self.bound = (lane_d, lane_bound) if "loss D" in lay.at else (constant_d, constant_bound)


class Programs:
    """Straight-line programs that the solver calls, each over the scratch w."""

    def __init__(self, times: Callable[[str, str], Any], factor: Any, solve: Any, solve_mass: Any) -> None:
        self.times = times  # (to, of): w[to] = M w[of]
        self.factor = factor  # H = L' D L in place
        self.solve = solve  # search = H^-1 grad
        self.solve_mass = solve_mass  # search = M^-1 grad


def newton(m: Model, lay: Layout, hessian: Pattern, contacts: Contacts, programs: Programs, real: Any) -> Any:
    """Device function (w, limits, contacts) that writes the accelerations and the constraint forces."""
    at = lay.at
    X, QS, AS, FC = (at[name] for name in ("qacc", "qfrc_smooth", "qacc_smooth", "qfrc_constraint"))
    WARM, QVEL, M = (at[name] for name in ("warm", "qvel", "M"))
    H, GRAD, SEARCH, MV, MA = (at[name] for name in ("H", "grad", "search", "Mv", "Ma"))
    LDOF, LD, LR, LV = (at[f"limit {name}"] for name in ("dof", "D", "r", "v"))
    FR, FV = at["loss r"], at["loss v"]
    CPAIR, CD, CR, CV, CJ = (at[f"contact {name}"] for name in ("pair", "D", "r", "v", "J"))
    nv, rows, chain = m.nv, lay.rows, lay.chain
    places, dofs, friction, free = contacts.places, contacts.dofs, contacts.friction, contacts.free
    zero, half, one, two = real(0.0), real(0.5), real(1.0), real(2.0)
    least = real(c.MINVAL)
    tolerance, iterations = real(m.opt_tolerance), int(m.opt_iterations)
    search_tolerance, searches = real(m.opt_tolerance * m.opt_ls_tolerance), int(m.opt_ls_iterations)
    single = real is float32
    noise = real(3e-6)
    cold = bool(m.opt_disableflags & c.NO_WARMSTART)

    loss = DryFriction(m, lay, real)
    nf, loss_dof, loss_d, loss_bound = loss.count, loss.dof, loss.d, loss.bound
    loss_force, loss_damping = loss.floss, loss.damping
    islands = Islands(m, lay, hessian, contacts, loss_dof, nf, real)
    most, find_islands, scale_of = islands.most, islands.find, islands.scale
    holds, holds_contact = islands.holds, islands.holds_contact

    # Places of pairs of dofs in H, places of M's entries in H
    pairs_of_dofs = np.zeros((nv, nv), int32)
    for (i, j), place in hessian.places.items():
        pairs_of_dofs[i, j] = place
    entries = np.full(len(hessian.places), -1, int32)
    for key, place in hessian.mass.items():
        entries[hessian.places[key]] = place
    in_hessian, of_mass = table(pairs_of_dofs), table(entries)
    nh = len(hessian.places)
    hessian_diagonal = table(np.array([hessian.places[i, i] for i in range(nv)], int32))
    times_x, times_search = programs.times("Ma", "qacc"), programs.times("Mv", "search")
    factor, solve, solve_mass = programs.factor, programs.solve, programs.solve_mass
    elliptic = bool(m.opt_cone == c.ELLIPTIC)
    cone = cones(m, lay, contacts, in_hessian, real)
    cone_cost, cone_force, cone_hessian, cone_along = cone.cost, cone.force, cone.add_hessian, cone.along

    @device
    def huber(x, d, bound, floss):
        """Cost, a number, of one row of dry friction at residual x: quadratic within +- bound, linear beyond."""
        if x <= -bound:
            return floss * (-half * bound - x)
        if x >= bound:
            return floss * (-half * bound + x)
        return half * d * x * x

    @device_call
    def cost_at(w, nl, nc, loss_at, limit_at, contact_at):
        """Cost of all constraints together, a number, for the residuals at the given places of the scratch."""
        cost = zero
        for k in range(nf):
            cost += huber(w[loss_at + k], loss_d(w, k), loss_bound(w, k), loss_force(k))
        for k in range(nl):
            x = min(w[limit_at + k], zero)
            cost += half * w[LD + k] * x * x
        for k in range(nc):
            pair = int(w[CPAIR + k])
            r = contact_at + k * rows
            normal, d = w[r], w[CD + k]
            if elliptic and places(PLACES * pair + 5) > 1:
                cost += cone_cost(w, k, pair, r)
                continue
            if places(PLACES * pair + 5) == 1:
                x = normal if free(pair) else min(normal, zero)
                cost += half * d * x * x
            for i in range(1, places(PLACES * pair + 5)):
                slip = friction(w, pair, i) * w[r + i]
                x, y = min(normal + slip, zero), min(normal - slip, zero)
                cost += half * d * (x * x + y * y)
        return cost

    @device_call
    def forces(w, nl, nc):
        """Write the constraint forces J' f (nv) in the joints for the residuals r. Returns a number that identifies the
        state of all rows.
        """
        states, curved = 1, 0
        for i in range(nv):
            w[FC + i] = zero
        for k in range(nf):
            x, bound = w[FR + k], loss_bound(w, k)
            state = 1 if x <= -bound else (2 if x >= bound else 0)
            force = loss_force(k) if state == 1 else (-loss_force(k) if state == 2 else -loss_d(w, k) * x)
            w[FC + loss_dof(k)] += force
            states = states * 3 + state
        for k in range(nl):
            signed = w[LDOF + k]
            dof = int(abs(signed)) - 1
            force = -w[LD + k] * min(w[LR + k], zero)
            w[FC + dof] += force if signed > zero else -force
            states = states * 3 + (1 if w[LR + k] < zero else 0)
        for k in range(nc):
            pair = int(w[CPAIR + k])
            dims, moving = places(PLACES * pair + 5), places(PLACES * pair + 6)
            r = CR + k * rows
            normal, d = w[r], w[CD + k]
            push = zero
            if elliptic and dims > 1:
                zone, push, factor_of_slip = cone_force(w, k, pair, r)
                states, curved = states * 3 + zone, (1 if zone == MIDDLE else curved)
                for i in range(1, dims):
                    mu = friction(w, pair, i)
                    pull, row = factor_of_slip * mu * mu * w[r + i], CJ + (k * rows + i) * chain
                    for a in range(moving):
                        w[FC + dofs(chain * pair + a)] += pull * w[row + a]
                dims = 0
            if dims == 1:
                active = free(pair) or normal < zero
                push = -d * normal if active else zero
                states = states * 3 + (1 if active else 0)
            for i in range(1, dims):
                mu = friction(w, pair, i)
                slip = mu * w[r + i]
                plus, minus = normal + slip, normal - slip
                first, second = -d * min(plus, zero), -d * min(minus, zero)
                states = states * 5 + (1 if plus < zero else 0) + (2 if minus < zero else 0)
                push += first + second
                pull = mu * (first - second)
                if pull != zero:
                    row = CJ + (k * rows + i) * chain
                    for a in range(moving):
                        w[FC + dofs(chain * pair + a)] += pull * w[row + a]
            if push != zero:
                row = CJ + k * rows * chain
                for a in range(moving):
                    w[FC + dofs(chain * pair + a)] += push * w[row + a]
        # The last bit says whether the Hessian changes within the state.
        return states * 2 + curved if elliptic else states

    @device_call
    def gradient(w, island):
        """Write the gradient, M a - f_smooth - f_constraint, of the dofs of an island. Returns its length, scaled."""
        total = zero
        for i in range(nv):
            if holds(w, island, i):
                g = w[MA + i] - w[QS + i] - w[FC + i]
                w[GRAD + i] = g
                total += g * g
        return scale_of(w, island) * math.sqrt(total)

    @device
    def decrement(w, island):
        """1/2 grad . search over the dofs of an island, at least 0, scaled."""
        total = zero
        for i in range(nv):
            if holds(w, island, i):
                total += w[GRAD + i] * w[SEARCH + i]
        return scale_of(w, island) * max(half * total, zero)

    @device_call
    def build_hessian(w, nl, nc):
        """Write the Hessian H = M + J' D J over the rows that push."""
        for k in range(nh):
            w[H + k] = w[M + of_mass(k)] if of_mass(k) >= 0 else zero
        for k in range(nf):
            if abs(w[FR + k]) < loss_bound(w, k):
                w[H + hessian_diagonal(loss_dof(k))] += loss_d(w, k)
        for k in range(nl):
            if w[LR + k] < zero:
                w[H + hessian_diagonal(int(abs(w[LDOF + k])) - 1)] += w[LD + k]
        for k in range(nc):
            pair = int(w[CPAIR + k])
            dims, moving = places(PLACES * pair + 5), places(PLACES * pair + 6)
            r, row = CR + k * rows, CJ + k * rows * chain
            normal, d = w[r], w[CD + k]
            if elliptic and dims > 1:
                cone_hessian(w, k, pair)
                continue
            # Edges n + mu t and n - mu t, each active or not: J' C J with C of an arrow's shape.
            both = zero
            if dims == 1:
                both = d if free(pair) or normal < zero else zero
            for i in range(1, dims):
                mu = friction(w, pair, i)
                slip = mu * w[r + i]
                plus = d if normal + slip < zero else zero
                minus = d if normal - slip < zero else zero
                both += plus + minus
                mixed, square = mu * (plus - minus), mu * mu * (plus + minus)
                if square > zero:
                    tangent = row + i * chain
                    for a in range(moving):
                        n, t = w[row + a], w[tangent + a]
                        on_n, on_t = mixed * t, mixed * n + square * t
                        dof = dofs(chain * pair + a)
                        for b in range(a + 1):
                            w[H + in_hessian(nv * dof + dofs(chain * pair + b))] += (
                                on_n * w[row + b] + on_t * w[tangent + b]
                            )
            if both > zero:
                for a in range(moving):
                    n = both * w[row + a]
                    dof = dofs(chain * pair + a)
                    for b in range(a + 1):
                        w[H + in_hessian(nv * dof + dofs(chain * pair + b))] += n * w[row + b]

    @device_call
    def along_search(w, nl, nc):
        """Write the change of every row's residual along the search direction, v = J search."""
        for k in range(nf):
            w[FV + k] = w[SEARCH + loss_dof(k)]
        for k in range(nl):
            signed = w[LDOF + k]
            v = w[SEARCH + int(abs(signed)) - 1]
            w[LV + k] = v if signed > zero else -v
        for k in range(nc):
            pair = int(w[CPAIR + k])
            for i in range(places(PLACES * pair + 5)):
                row, v = CJ + (k * rows + i) * chain, zero
                for a in range(places(PLACES * pair + 6)):
                    v += w[row + a] * w[SEARCH + dofs(chain * pair + a)]
                w[CV + k * rows + i] = v

    @device
    def add_row(x0, v, d, both, alpha, cost, slope, curvature):
        """Add one constraint row's cost, slope and curvature at step alpha to the line search's sums, and return these.
        The row pushes where its residual x0 + alpha v < 0, and with `both` pulls elsewhere.
        """
        x = x0 + alpha * v
        # cost relative to alpha = 0, as 1/2 d (x^2 - x0^2) without cancellation
        if both or x < zero:
            slope += d * x * v
            curvature += d * v * v
            cost += half * d * (x - x0) * (x + x0) if both or x0 < zero else half * d * x * x
        elif x0 < zero:
            cost -= half * d * x0 * x0
        return cost, slope, curvature

    @device_call
    def evaluate(w, nl, nc, island, alpha, linear, quadratic):
        """Return (cost relative to alpha = 0, slope, curvature) at step alpha along the search direction, three
        numbers, for the rows of an island.
        """
        cost = alpha * (alpha * quadratic + linear)
        slope = two * alpha * quadratic + linear
        curvature = two * quadratic
        for k in range(nf):
            if not holds(w, island, loss_dof(k)):
                continue
            x0, v, d, bound, floss = (
                w[FR + k], w[FV + k], loss_d(w, k), loss_bound(w, k), loss_force(k)
            )  # fmt: skip
            x = x0 + alpha * v
            if abs(x) < bound and abs(x0) < bound:
                cost += half * d * (x - x0) * (x + x0)
            else:
                cost += huber(x, d, bound, floss) - huber(x0, d, bound, floss)
            if abs(x) < bound:
                slope += d * x * v
                curvature += d * v * v
            else:
                slope += -floss * v if x < zero else floss * v
        for k in range(nl):
            if not holds(w, island, int(abs(w[LDOF + k])) - 1):
                continue
            cost, slope, curvature = add_row(w[LR + k], w[LV + k], w[LD + k], False, alpha, cost, slope, curvature)
        for k in range(nc):
            pair = int(w[CPAIR + k])
            if not holds_contact(w, island, pair):
                continue
            r, v, d = CR + k * rows, CV + k * rows, w[CD + k]
            if elliptic and places(PLACES * pair + 5) > 1:
                more, steeper, bend = cone_along(w, k, pair, alpha)
                cost, slope, curvature = cost + more, slope + steeper, curvature + bend
                continue
            if places(PLACES * pair + 5) == 1:
                cost, slope, curvature = add_row(w[r], w[v], d, free(pair), alpha, cost, slope, curvature)
            for i in range(1, places(PLACES * pair + 5)):
                mu = friction(w, pair, i)
                x, y = mu * w[r + i], mu * w[v + i]
                cost, slope, curvature = add_row(w[r] + x, w[v] + y, d, False, alpha, cost, slope, curvature)
                cost, slope, curvature = add_row(w[r] - x, w[v] - y, d, False, alpha, cost, slope, curvature)
        return cost, slope, curvature if curvature > zero else least

    @device_call
    def line_search(w, nl, nc, island):
        """Return (step alpha of an island along the search direction, decrease of the cost by it), both 0 without one
        (`PrimalSearch`).
        """
        length = zero
        linear = zero
        quadratic = zero
        for i in range(nv):
            if holds(w, island, i):
                s = w[SEARCH + i]
                length += s * s
                linear += s * (w[MA + i] - w[QS + i])
                quadratic += s * w[MV + i]
        length = math.sqrt(length)
        if length < least:
            return zero, zero
        quadratic = half * quadratic

        # One Newton step from 0
        _, slope, curvature = evaluate(w, nl, nc, island, zero, linear, quadratic)
        flat = search_tolerance * length / scale_of(w, island)
        if single:
            flat = max(flat, noise * abs(slope))
        a1 = -slope / curvature
        c1, s1, k1 = evaluate(w, nl, nc, island, a1, linear, quadratic)
        if abs(s1) < flat and (a1 == zero or c1 < zero):
            return a1, -c1
        evaluations = 2

        # Newton steps in one direction until the slope changes its sign
        direction = one if s1 < zero else -one
        a2, c2, s2, k2 = zero, zero, slope, curvature
        while s1 * direction <= -flat and evaluations < searches:
            a2, c2, s2, k2 = a1, c1, s1, k1
            a1 -= s1 / k1
            c1, s1, k1 = evaluate(w, nl, nc, island, a1, linear, quadratic)
            evaluations += 1
            if abs(s1) < flat and c1 < zero:
                return a1, -c1
        if evaluations >= searches:
            return a1, -c1

        # Between the two: Newton steps from both ends and the midpoint
        n2, nc2, ns2, nk2 = a1, c1, s1, k1
        n1 = a1 - s1 / k1
        nc1, ns1, nk1 = evaluate(w, nl, nc, island, n1, linear, quadratic)
        evaluations += 1
        while evaluations < searches:
            middle = half * (a1 + a2)
            cm, sm, km = evaluate(w, nl, nc, island, middle, linear, quadratic)
            evaluations += 1
            best, best_cost = -1, zero
            if abs(ns1) < flat:
                best, best_cost = 0, nc1
            if abs(ns2) < flat and (best < 0 or nc2 < best_cost):
                best, best_cost = 1, nc2
            if abs(sm) < flat and (best < 0 or cm < best_cost):
                best, best_cost = 2, cm
            if best >= 0:
                return (n1 if best == 0 else (n2 if best == 1 else middle)), -best_cost

            # Each end moves to the candidates of its sign that are nearer to a slope of 0.
            q1, qc1, qs1, qk1, q2, qc2, qs2, qk2 = n1, nc1, ns1, nk1, n2, nc2, ns2, nk2
            moved1, moved2 = False, False
            for i in range(3):
                a = q1 if i == 0 else (q2 if i == 1 else middle)
                e = qc1 if i == 0 else (qc2 if i == 1 else cm)
                s = qs1 if i == 0 else (qs2 if i == 1 else sm)
                k = qk1 if i == 0 else (qk2 if i == 1 else km)
                if (s1 < zero and s < zero and s1 < s) or (s1 > zero and s > zero and s1 > s):
                    a1, c1, s1, k1, moved1 = a, e, s, k, True
                if (s2 < zero and s < zero and s2 < s) or (s2 > zero and s > zero and s2 > s):
                    a2, c2, s2, k2, moved2 = a, e, s, k, True
            if moved1:
                n1 = a1 - s1 / k1
                nc1, ns1, nk1 = evaluate(w, nl, nc, island, n1, linear, quadratic)
                evaluations += 1
            if moved2:
                n2 = a2 - s2 / k2
                nc2, ns2, nk2 = evaluate(w, nl, nc, island, n2, linear, quadratic)
                evaluations += 1
            if not moved1 and not moved2:
                return middle, -cm
        if c1 <= c2 and c1 < zero:
            return a1, -c1
        if c2 <= c1 and c2 < zero:
            return a2, -c2
        return zero, zero

    @device_call
    def advance(w, nl, nc, island, alpha):
        """Move an island by step alpha along the search direction: its accelerations a, M a and residuals, in place."""
        for i in range(nv):
            if holds(w, island, i):
                w[X + i] += alpha * w[SEARCH + i]
                w[MA + i] += alpha * w[MV + i]
        for k in range(nf):
            if holds(w, island, loss_dof(k)):
                w[FR + k] += alpha * w[FV + k]
        for k in range(nl):
            if holds(w, island, int(abs(w[LDOF + k])) - 1):
                w[LR + k] += alpha * w[LV + k]
        for k in range(nc):
            pair = int(w[CPAIR + k])
            if holds_contact(w, island, pair):
                for i in range(places(PLACES * pair + 5)):
                    w[CR + k * rows + i] += alpha * w[CV + k * rows + i]

    @device_call
    def begin(w, nl, nc):
        """Write the acceleration to start from, with its M a and residuals: the last one or the unconstrained one,
        whichever costs less.
        """
        for k in range(nf):
            dof = loss_dof(k)
            reference = -loss_damping(k) * w[QVEL + dof]
            w[FR + k] = w[WARM + dof] - reference
            w[FV + k] = w[AS + dof] - reference
        for i in range(nv):
            w[X + i] = w[WARM + i]
        times_x(w)
        gauss = zero
        for i in range(nv):
            gauss += half * (w[MA + i] - w[QS + i]) * (w[X + i] - w[AS + i])
        warm = cost_at(w, nl, nc, FR, LR, CR) + gauss
        if cold or warm > cost_at(w, nl, nc, FV, LV, CV):
            for i in range(nv):
                w[X + i], w[MA + i] = w[AS + i], w[QS + i]
            for k in range(nf):
                w[FR + k] = w[FV + k]
            for k in range(nl):
                w[LR + k] = w[LV + k]
            for k in range(nc * rows):
                w[CR + k] = w[CV + k]

    @device_call
    def minimise(w, nl, nc):
        """Iterate from the warm start until every island has converged. Sets of islands are bits of an integer."""
        begin(w, nl, nc)
        found, steep = find_islands(w, nl, nc), 0
        if most > 1:
            times_x(w)
            for i in range(nv):
                w[GRAD + i] = zero
        states = forces(w, nl, nc)
        for island in range(most):
            if found >> island & 1 and gradient(w, island) >= tolerance:
                steep |= 1 << island
        active = found
        if steep != found:
            solve_mass(w)
            for island in range(most):
                if (found & ~steep) >> island & 1 and decrement(w, island) < tolerance:
                    active ^= 1 << island
        if active == 0:
            return
        build_hessian(w, nl, nc)
        factor(w)
        solve(w)
        for island in range(most):
            if (active & ~steep) >> island & 1 and decrement(w, island) < tolerance:
                active ^= 1 << island
        for _ in range(iterations):
            if active == 0:
                return
            for i in range(nv):
                w[SEARCH + i] = -w[SEARCH + i]
            times_search(w)
            along_search(w, nl, nc)
            # One step of each active island; an island without a step, or with little improvement, has converged.
            moved, full = 0, 0
            for island in range(most):
                if active >> island & 1:
                    alpha, improvement = line_search(w, nl, nc, island)
                    improvement = scale_of(w, island) * improvement
                    if alpha != zero:
                        advance(w, nl, nc, island, alpha)
                        moved |= 1 << island
                        full |= (1 if abs(alpha - one) < real(1e-3) else 0) << island
                    if alpha == zero or (improvement > zero and improvement < tolerance):
                        active ^= 1 << island
            if moved == 0:
                return
            before, states = states, forces(w, nl, nc)
            for island in range(most):
                if active >> island & 1 and gradient(w, island) < tolerance:
                    active ^= 1 << island
            curved = elliptic and states % 2 == 1
            if single and states == before and not curved:
                active &= ~full
            if active == 0:
                return
            if states != before or curved:
                build_hessian(w, nl, nc)
                factor(w)
            solve(w)
            for island in range(most):
                if active >> island & 1 and decrement(w, island) < tolerance:
                    active ^= 1 << island

    @device
    def constrain(w, nl, nc):
        """Minimise where there is a row; returns the number of contacts, as `pgs` does."""
        if nf + nl + nc > 0:
            minimise(w, nl, nc)
        else:
            for i in range(nv):
                w[X + i] = w[AS + i]
                w[FC + i] = zero
        return nc

    return constrain
