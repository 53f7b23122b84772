"""Elliptic friction cones of contacts, as device functions for one model, for Newton's method.

Source: MuJoCo's documentation, "Computation: friction cones" and "Constraint model: primal problem", and
`engine_core_constraint.c` (`mj_constraintUpdate_impl`). A contact's residuals r, scaled to U = (mu r_0, mu_i r_i) with
mu = mu_1 / sqrt(impratio), split into N = U_0 and T = |U_1, U_2, ...|. With E = D / mu^2 and Dm = E / (1 + mu^2) a
contact costs 0 in the top zone (N >= mu T), E (N^2 + T^2) / 2 in the bottom zone (mu N + T <= 0), and
Dm (N - mu T)^2 / 2 between both. The forces at the last acceleration are also the warm start of `pgs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from operant.compute.device import device, device_call
from operant.physics.layout import Layout
from operant.physics.model import Model
from operant.physics.rows import PLACES, Contacts

TOP, BOTTOM, MIDDLE = range(3)


@dataclass(frozen=True)
class Cones:
    """Cost, force and Hessian of one contact with an elliptic friction cone, as device functions.

    Arguments: the scratch w, the contact k, its geom pair `pair`, and the place r in w of its residuals (3, 4 or 6).
    """

    cost: Any  # (w, k, pair, r) -> cost
    force: Any  # (w, k, pair, r) -> (zone, force along the normal, c); along tangent i the force is c mu_i^2 r_i
    add_hessian: Any  # (w, k, pair): add J' C J
    along: Any  # (w, k, pair, alpha) -> (cost relative to alpha = 0, slope, curvature) along the search direction


def cones(m: Model, lay: Layout, contacts: Contacts, in_hessian: Any, real: Any) -> Cones:
    """Make the device functions of the elliptic cones of a model's contacts, as of `mj_constraintUpdate_impl` (zones,
    cost, force, Hessian) and `PrimalEval` (search direction).

    They read a contact's D (kg), its residuals r (dims) and J (dims, chain) by the dofs of its pair, where dims is 3, 4
    or 6: m/s^2 along the normal and two tangents, then rad/s^2 about the three. `along` reads also v, the change of r
    by a whole step along the search direction. Costs are in N m/s^2, forces in N.

    `in_hessian(nv i + j)`, i >= j, is the offset of entry (i, j) of the Hessian in the part "H" of the scratch; None
    where `add_hessian` is not called. `real` is the scalar type.
    """
    CD, CR, CV, CJ = (lay.at[f"contact {name}"] for name in ("D", "r", "v", "J"))
    H = lay.at.get("H", 0)
    nv, rows, chain = m.nv, lay.rows, lay.chain
    places, dofs, friction = contacts.places, contacts.dofs, contacts.friction
    zero, half, one, two = real(0.0), real(0.5), real(1.0), real(2.0)
    shrink = real(1.0 / math.sqrt(m.opt_impratio))

    @device
    def zone_of(normal, square, mu):
        """Zone of N and T^2, and T."""
        if square <= zero:
            return (BOTTOM if normal < zero else TOP), zero
        length = math.sqrt(square)
        if normal >= mu * length:
            return TOP, length
        return (BOTTOM if mu * normal + length <= zero else MIDDLE), length

    @device
    def squares(w, pair, a, b):
        """Inner product, a number, of the scaled tangential parts of two vectors of a contact."""
        total = zero
        for i in range(1, places(PLACES * pair + 5)):
            mu = friction(w, pair, i)
            total += (mu * w[a + i]) * (mu * w[b + i])
        return total

    @device
    def energy(zone, normal, length, mu, e):
        """Cost, a number, of a zone at N and T."""
        if zone == TOP:
            return zero
        if zone == BOTTOM:
            return half * e * (normal * normal + length * length)
        inside = normal - mu * length
        return half * e / (one + mu * mu) * inside * inside

    @device_call
    def cost(w, k, pair, r):
        mu = shrink * friction(w, pair, 1)
        normal = mu * w[r]
        zone, length = zone_of(normal, squares(w, pair, r, r), mu)
        return energy(zone, normal, length, mu, w[CD + k] / (mu * mu))

    @device_call
    def force(w, k, pair, r):
        mu = shrink * friction(w, pair, 1)
        normal, e = mu * w[r], w[CD + k] / (mu * mu)
        zone, length = zone_of(normal, squares(w, pair, r, r), mu)
        if zone == TOP:
            return zone, zero, zero
        if zone == BOTTOM:
            return zone, -w[CD + k] * w[r], -e
        push = -e / (one + mu * mu) * (normal - mu * length) * mu
        return zone, push, -push / length

    @device_call
    def add_hessian(w, k, pair):
        mu, r = shrink * friction(w, pair, 1), CR + k * rows
        normal, e = mu * w[r], w[CD + k] / (mu * mu)
        zone, length = zone_of(normal, squares(w, pair, r, r), mu)
        if zone == TOP:
            return
        # x' C y = c0 x0 y0 + c1 (x0 U.y + U.x y0) + c2 U.x U.y + c3 x.y for scaled x and y
        c0, c1, c2, c3 = e, zero, zero, e
        if zone == MIDDLE:
            c0 = e / (one + mu * mu)
            c1 = -c0 * mu / length
            c2 = c0 * mu * normal / (length * length * length)
            c3 = c0 * (mu * mu - mu * normal / length)
        dims, moving, row = places(PLACES * pair + 5), places(PLACES * pair + 6), CJ + k * rows * chain
        for a in range(moving):
            x0, along_x = mu * w[row + a], zero
            for i in range(1, dims):
                slip = friction(w, pair, i)
                along_x += (slip * w[r + i]) * (slip * w[row + i * chain + a])
            dof = dofs(chain * pair + a)
            for b in range(a + 1):
                y0, along_y, both = mu * w[row + b], zero, zero
                for i in range(1, dims):
                    slip = friction(w, pair, i)
                    y = slip * w[row + i * chain + b]
                    along_y += (slip * w[r + i]) * y
                    both += (slip * w[row + i * chain + a]) * y
                w[H + in_hessian(nv * dof + dofs(chain * pair + b))] += (
                    c0 * x0 * y0 + c1 * (x0 * along_y + along_x * y0) + c2 * along_x * along_y + c3 * both
                )

    @device_call
    def along(w, k, pair, alpha):
        mu, r, v = shrink * friction(w, pair, 1), CR + k * rows, CV + k * rows
        e = w[CD + k] / (mu * mu)
        dm = e / (one + mu * mu)
        u0, v0 = mu * w[r], mu * w[v]
        uu, uv, vv = squares(w, pair, r, r), squares(w, pair, r, v), squares(w, pair, v, v)
        growth = alpha * (two * uv + alpha * vv)
        zone0, length0 = zone_of(u0, uu, mu)
        normal = u0 + alpha * v0
        zone, length = zone_of(normal, uu + growth, mu)

        # Cost relative to alpha = 0, without cancellation where both lie in one zone
        cost = zero
        if zone0 == TOP or zone == TOP:
            cost = energy(zone, normal, length, mu, e) - energy(zone0, u0, length0, mu, e)
        elif zone0 == MIDDLE and zone == MIDDLE:
            change = alpha * v0 - mu * (growth / (length + length0))
            cost = half * dm * change * (two * (u0 - mu * length0) + change)
        else:
            # The middle zone costs less than the bottom's quadratic by Dm (mu N + T)^2 / 2.
            cost = half * e * (alpha * v0 * (two * u0 + alpha * v0) + growth)
            if zone0 == MIDDLE:
                gap = mu * u0 + length0
                cost += half * dm * gap * gap
            if zone == MIDDLE:
                gap = mu * normal + length
                cost -= half * dm * gap * gap

        slope, curvature = zero, zero
        if zone == BOTTOM:
            slope = e * (normal * v0 + (uv + alpha * vv))
            curvature = e * (v0 * v0 + vv)
        elif zone == MIDDLE:
            t1 = (uv + alpha * vv) / length
            t2 = vv / length - (uv + alpha * vv) * t1 / (length * length)
            inside, rate = normal - mu * length, v0 - mu * t1
            slope = dm * inside * rate
            curvature = dm * (rate * rate - inside * mu * t2)
        return cost, slope, curvature

    return Cones(cost, force, add_hessian, along)
