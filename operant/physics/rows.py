"""Constraint rows of a lane: active limits of joints and tendons, equality constraints, and contacts, as device
functions for one model.

Source: MuJoCo's documentation, "Computation: constraint model", and `engine_core_constraint.c`. A row has a Jacobian J,
an inverse regularisation D = 1 / R, and a reference acceleration a*. What is stored of it is D, J and the residual
r = J a - a* at two accelerations: the one of the last step (in "r") and the unconstrained one (in "v"), from which the
solver begins. A contact is stored in its frame: one row along the normal, and one per dimension of friction; the edges
of its pyramid are normal +- mu friction, and share one D. An elliptic cone's D is that of the normal.

The list of contacts holds first the rows of equality constraints, which push and pull, in the order of the model; then
the tendons at a limit, which push as contacts without friction do; then the contacts of geoms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import int32

from operant.compute.device import device, device_call
from operant.physics import constants as c
from operant.physics.factors import entries, factor
from operant.physics.layout import Layout
from operant.physics.model import Model
from operant.physics.pairs import Pair, Tether, safe_solimp, safe_solref, stiffness_damping
from operant.physics.tables import table
from operant.physics.ties import Tie

PLACES, NUMBERS = 7, 18  # columns of the tables of pairs


def impedance_numbers(solimp: tuple[float, ...]) -> tuple[float, ...]:
    """Compute the constants of `impedance` from a `solimp` (MuJoCo's `getimpedance`): low, high - low, 1 / width,
    midpoint, power p, a = midpoint^(1 - p), b = (1 - midpoint)^(1 - p).
    """
    low, high, width, middle, power = solimp
    if low == high or width <= c.MINVAL:
        low = high = 0.5 * (low + high)
        width = 1.0
    a = 1.0 / middle ** (power - 1.0)
    b = 1.0 / (1.0 - middle) ** (power - 1.0)
    return low, high - low, 1.0 / width, middle, power, a, b


def impedance(real: Any, powers: Sequence[float], numbers: Any) -> Any:
    """Make the device function (r, at) that returns the impedance at a violation r for constants from entry `at` of the
    table `numbers`.
    """
    zero, one = real(0.0), real(1.0)
    square, linear = all(p == 2.0 for p in powers), all(p == 1.0 for p in powers)

    @device
    def raised(x, power):
        return x * x if square else (x if linear else x**power)

    @device
    def curve(r, at):
        # d = low + y (high - low), y = a x^p up to the midpoint, 1 - b (1 - x)^p beyond it, x = |r| / width
        x = min(abs(r) * numbers(at + 2), one)
        power = numbers(at + 4)
        y = (
            numbers(at + 5) * raised(x, power)
            if x <= numbers(at + 3)
            else one - numbers(at + 6) * raised(one - x, power)
        )
        y = zero if x <= zero else y
        return numbers(at) + y * numbers(at + 1)

    return curve


def limit_rows(m: Model, lay: Layout, real: Any) -> Any:
    """Make the device function (w) that writes the rows of the active joint limits and returns their number."""
    joints = [] if lay.limits == 0 else [j for j in range(m.njnt) if m.jnt_limited[j]]
    width = 14
    numbers, places = np.zeros((len(joints) or 1, width), real), np.zeros((len(joints) or 1, 2), int32)
    powers = []
    for k, j in enumerate(joints):
        solimp = safe_solimp(m.jnt_solimp[j])
        powers.append(solimp[4])
        dof = int(m.jnt_dofadr[j])
        stiffness, damping = stiffness_damping(safe_solref(m, m.jnt_solref[j]), solimp)
        places[k] = m.jnt_qposadr[j], dof
        numbers[k, :12] = (
            *m.jnt_range[j], m.jnt_margin[j], stiffness, damping, *impedance_numbers(solimp)
        )  # fmt: skip
        numbers[k, 12] = m.dof_invweight0[dof]
    get, place, count = table(numbers), table(places), len(joints)
    curve, stretch = impedance(real, powers, get), factor(lay, "range", real)
    weight_change = entries(lay, "weight change dof", real)
    one, least = real(1.0), real(c.MINVAL)
    QPOS, QVEL, WARM, SMOOTH = (lay.at[name] for name in ("qpos", "qvel", "warm", "qacc_smooth"))
    DOF, D, R, V = (lay.at[f"limit {name}"] for name in ("dof", "D", "r", "v"))

    @device_call
    def limits(w):
        found = 0
        for k in range(count):
            at, dof = k * width, place(2 * k + 1)
            q = w[QPOS + place(2 * k)]
            for side in range(2):
                distance = q - stretch(w) * get(at) if side == 0 else stretch(w) * get(at + 1) - q
                if distance < get(at + 2):
                    # J = +1 at the lower limit, -1 at the upper;  a* = -B v - K d r
                    sign = one if side == 0 else -one
                    r = distance - get(at + 2)
                    d = curve(r, at + 5)
                    w[DOF + found] = sign * real(dof + 1)
                    w[D + found] = one / max(least, (one - d) / d * (get(at + 12) + weight_change(w, dof)))
                    reference = -get(at + 4) * sign * w[QVEL + dof] - get(at + 3) * d * r
                    w[R + found] = sign * w[WARM + dof] - reference
                    w[V + found] = sign * w[SMOOTH + dof] - reference
                    found += 1
        return found

    return limits


def dispatch(kinds: Sequence[tuple[int, Any]]) -> Any:
    """Make the device function that calls, of the (kind, collision function) in `kinds`, the one of a pair's kind."""
    collide = _last(kinds[-1][1])
    for kind, function in reversed(kinds[:-1]):
        collide = _branch(kind, function, collide)
    return collide


def _last(function: Any) -> Any:
    @device
    def collide(which, p, a, b, size, ga, gb, margin, out, first):
        return function(p, a, b, size, ga, gb, margin, out, first)

    return collide


def _branch(kind: int, function: Any, rest: Any) -> Any:
    @device
    def collide(which, p, a, b, size, ga, gb, margin, out, first):
        if which == kind:
            return function(p, a, b, size, ga, gb, margin, out, first)
        return rest(which, p, a, b, size, ga, gb, margin, out, first)

    return collide


class Contacts:
    """Tables of a model's pairs, and the device function that finds contacts and writes their rows."""

    def __init__(
        self,
        m: Model,
        pairs: Sequence[Pair],
        tethers: Sequence[Tether],
        ties: Sequence[Tie],
        lay: Layout,
        functions: dict[Any, Any],
        real: Any,
    ) -> None:
        self.room, self.rows, self.chain = lay.room, lay.rows, lay.chain
        self.pairs, self.tethers, count = len(pairs), len(tethers), max(len(pairs) + len(tethers) + len(ties), 1)
        kinds = sorted({pair.types(m) for pair in pairs})
        # Columns: pose of each geom, geom, kind, dimensions, dofs
        places = np.zeros((count, PLACES), int32)
        dofs, signs = np.zeros((count, max(lay.chain, 1)), int32), np.zeros((count, max(lay.chain, 1)), real)
        # Columns: margin, margin + gap, friction 5, K, B, impedance 7, diagonal, factor of R
        numbers = np.zeros((count, NUMBERS), real)
        for k, pair in enumerate(pairs):
            a, b = pair.geoms
            places[k] = (
                lay.at[f"pose {a}"], lay.at[f"pose {b}"], a, b, kinds.index(pair.types(m)), pair.condim, len(pair.dofs)
            )  # fmt: skip
            dofs[k, : len(pair.dofs)] = [dof for dof, _ in pair.dofs]
            signs[k, : len(pair.dofs)] = [sign for _, sign in pair.dofs]
            # The diagonal of A is approximated by the bodies' inverse weights (`mj_diagApprox`).
            weight = float(sum(m.body_invweight0[body, 0] for body in pair.bodies))
            mu, of_normal = max(c.MINMU, pair.friction[0]), 1.0
            if pair.condim > 1 and m.opt_cone == c.PYRAMIDAL:
                weight, of_normal = weight * (1.0 + mu * mu), 2.0 * mu * mu / max(c.MINVAL, float(m.opt_impratio))
            numbers[k] = (
                pair.margin, pair.margin + pair.gap, *pair.friction, *stiffness_damping(pair.solref, pair.solimp),
                *impedance_numbers(pair.solimp), weight, of_normal,
            )  # fmt: skip
            if "scale friction" not in lay.at:
                numbers[k, 2:7] = np.maximum(numbers[k, 2:7], c.MINMU)
        # A limited tendon is entered as a pair without friction. Its range stands in place of friction.
        for k, entry in enumerate(tethers, len(pairs)):
            places[k, 5], places[k, 6] = 1, len(entry.dofs)
            dofs[k, : len(entry.dofs)] = entry.dofs
            numbers[k] = (
                m.tendon_margin[entry.tendon], 0.0, *m.tendon_range[entry.tendon], 0.0, 0.0, 0.0,
                *stiffness_damping(entry.solref, entry.solimp), *impedance_numbers(entry.solimp),
                m.tendon_invweight0[entry.tendon], 1.0,
            )  # fmt: skip
        # So is a row of an equality constraint.
        for k, tie in enumerate(ties, len(pairs) + len(tethers)):
            places[k, 5], places[k, 6] = 1, len(tie.dofs)
            dofs[k, : len(tie.dofs)] = tie.dofs
            numbers[k, 7:17] = *stiffness_damping(tie.solref, tie.solimp), *impedance_numbers(tie.solimp), tie.weight
            numbers[k, 17] = 1.0
        # Tables by entry: PLACES k + column, NUMBERS k + column, chain k + dof
        self.places, self.dofs, self.signs, self.numbers = table(places), table(dofs), table(signs), table(numbers)
        self.friction = self._friction(lay, real)
        self.regularisation = self._regularisation(m, pairs, lay, real)
        self.ties, self.free = len(ties), self._free(len(pairs) + len(tethers), bool(ties))
        write = self._writer(lay, real)
        tie_rows, tether_rows = self._tie_rows(ties, write, lay, real), self._tether_rows(tethers, write, lay, real)
        kinds_of_pairs = [(k, functions[pair]) for k, pair in enumerate(kinds)]
        self.find = self._finder(m, pairs, lay, kinds_of_pairs, tie_rows, tether_rows, real)

    def _friction(self, lay: Layout, real: Any) -> Any:
        """Make the device function (w, pair, i) that returns the coefficient of friction of a pair along dimension i,
        from 1: two sliding ones, which a lane scales, a torsional and two rolling ones.
        """
        numbers, least, scale = self.numbers, real(c.MINMU), factor(lay, "friction", real)

        @device
        def constant(w, pair, i):
            return numbers(NUMBERS * pair + 1 + i)

        @device
        def scaled(w, pair, i):
            mu = numbers(NUMBERS * pair + 1 + i)
            return max(mu * scale(w) if i < 3 else mu, least)

        return scaled if "scale friction" in lay.at else constant

    def _regularisation(self, m: Model, pairs: Sequence[Pair], lay: Layout, real: Any) -> Any:
        """Make the device function (w, pair, impedance) that returns R of the rows of a pair's contact."""
        places, numbers, friction = self.places, self.numbers, self.friction
        one, least = real(1.0), real(c.MINVAL)
        pyramidal, smooth = bool(m.opt_cone == c.PYRAMIDAL), real(c.MINMU)
        weight_change = entries(lay, "weight change body", real)
        body = table(np.array([pair.bodies for pair in pairs] or [(0, 0)], int32))

        @device
        def constant(w, pair, d):
            return max(least, (one - d) / d * numbers(NUMBERS * pair + 16)) * numbers(NUMBERS * pair + 17)

        @device
        def scaled(w, pair, d):
            weight, of_normal = numbers(NUMBERS * pair + 16), numbers(NUMBERS * pair + 17)
            change = weight_change(w, body(2 * pair)) + weight_change(w, body(2 * pair + 1))
            if pyramidal and places(PLACES * pair + 5) > 1:
                # The diagonal is the inverse weight times 1 + mu^2, and R that times 2 mu^2 / impratio.
                mu, before = friction(w, pair, 1), max(numbers(NUMBERS * pair + 2), smooth)
                change *= one + mu * mu
                weight *= (one + mu * mu) / (one + before * before)
                of_normal *= (mu / before) * (mu / before)
            return max(least, (one - d) / d * (weight + change)) * of_normal

        return scaled if "scale friction" in lay.at or "weight change body" in lay.at else constant

    def _free(self, first: int, some: bool) -> Any:
        """Make the device function (pair) that returns whether the row of an entry of the tables pushes and pulls, as
        that of an equality constraint does: `first` is the first such entry, if there are `some`.
        """

        @device
        def free(pair):
            return some and pair >= first

        return free

    def _writer(self, lay: Layout, real: Any) -> Any:
        """Make the device function (w, n, entry, at, sign, weight, d, push) that writes row n, one without friction, of
        an entry of the tables: J = sign (w[at], w[at + 1], ...) by the entry's dofs; D = 1 / R for the impedance d,
        where `weight` approximates the diagonal of J M^-1 J'; and the residuals J a - a* for a* = -B J v - push, with B
        the entry's damping, at the last acceleration and at the unconstrained one.
        """
        places, dofs, numbers, rows, chain = self.places, self.dofs, self.numbers, lay.rows, lay.chain
        zero, one, least = real(0.0), real(1.0), real(c.MINVAL)
        QVEL, WARM, SMOOTH = (lay.at[name] for name in ("qvel", "warm", "qacc_smooth"))
        PAIR, D, R, V, J = (lay.at[f"contact {name}"] for name in ("pair", "D", "r", "v", "J"))

        @device
        def write(w, n, entry, at, sign, weight, d, push):
            w[PAIR + n] = real(entry)
            w[D + n] = one / max(least, (one - d) / d * weight)
            speed, warm, smooth = zero, zero, zero
            for i in range(places(PLACES * entry + 6)):
                j, dof = sign * w[at + i], dofs(chain * entry + i)
                w[J + n * rows * chain + i] = j
                speed += j * w[QVEL + dof]
                warm += j * w[WARM + dof]
                smooth += j * w[SMOOTH + dof]
            reference = -numbers(NUMBERS * entry + 8) * speed - push
            w[R + n * rows], w[V + n * rows] = warm - reference, smooth - reference

        return write

    def _tie_rows(self, ties: Sequence[Tie], write: Any, lay: Layout, real: Any) -> Any:
        """Make the device function (w) that writes one row for each of `ties`, the first rows of the list, and returns
        their number. a* = -B J v - K d r - dJ/dt v (MuJoCo's documentation, "Computation: constraint model",
        "Equality"; `mj_instantiateEquality`).

        Reads the part "tie" of the scratch, 3 + chain numbers for each: residual r (m, or rad), the violation of the
        whole constraint, from which the impedance d follows, dJ/dt v, and J.
        """
        if not ties:

            @device
            def none(w):
                return 0

            return none
        numbers = self.numbers
        curve = impedance(real, [tie.solimp[4] for tie in ties], numbers)
        count, first, width = len(ties), self.pairs + self.tethers, 3 + lay.chain
        one, TIE = real(1.0), lay.at["tie"]

        @device
        def tie_rows(w):
            for k in range(count):
                at, entry = TIE + width * k, first + k
                d = curve(w[at + 1], NUMBERS * entry + 9)
                push = numbers(NUMBERS * entry + 7) * d * w[at] + w[at + 2]
                write(w, k, entry, at + 3, one, numbers(NUMBERS * entry + 16), d, push)
            return count

        return tie_rows

    def _tether_rows(self, tethers: Sequence[Tether], write: Any, lay: Layout, real: Any) -> Any:
        """Make the device function (w, n) that writes, from row n on, a row for each side of a limited tendon that is
        within its margin (m) of the limit, and returns the number of rows so far. J is that of the length at the lower
        limit, its negative at the upper (`mj_instantiateLimit`).

        Reads the part "tether" of the scratch, 1 + chain numbers for each: length (m, or rad) and J.
        """
        if not tethers:

            @device
            def none(w, n):
                return n

            return none
        numbers = self.numbers
        curve = impedance(real, [entry.solimp[4] for entry in tethers], numbers)
        count, first, width = len(tethers), self.pairs, 1 + lay.chain
        one, weight_change, TETHER = real(1.0), entries(lay, "weight change tether", real), lay.at["tether"]

        @device
        def tether_rows(w, n):
            for k in range(count):
                at, entry = TETHER + width * k, first + k
                for side in range(2):
                    low, high = numbers(NUMBERS * entry + 2), numbers(NUMBERS * entry + 3)
                    distance = w[at] - low if side == 0 else high - w[at]
                    if distance < numbers(NUMBERS * entry):
                        r = distance - numbers(NUMBERS * entry)
                        d = curve(r, NUMBERS * entry + 9)
                        weight = numbers(NUMBERS * entry + 16) + weight_change(w, k)
                        push = numbers(NUMBERS * entry + 7) * d * r
                        write(w, n, entry, at + 1, one if side == 0 else -one, weight, d, push)
                        n += 1
            return n

        return tether_rows

    def _finder(
        self,
        m: Model,
        pairs: Sequence[Pair],
        lay: Layout,
        kinds: Sequence[Any],
        tie_rows: Any,
        tether_rows: Any,
        real: Any,
    ) -> Any:
        """Make the device function (w) that writes the rows of the list of contacts and returns their number."""

        @device_call
        def without_geoms(w):
            return tether_rows(w, tie_rows(w))

        if not pairs:
            return without_geoms
        places, dofs, signs, numbers = self.places, self.dofs, self.signs, self.numbers
        regularisation = self.regularisation
        sizes, bounds = m.geom_size.ravel().astype(real), table(m.geom_rbound.astype(real))
        collide = dispatch(kinds)
        curve = impedance(real, [pair.solimp[4] for pair in pairs], numbers)
        count, room, rows, chain = len(pairs), lay.room, lay.rows, lay.chain
        turns, rolls = rows > 3, rows > 4
        zero, half, quarter, one, least = real(0.0), real(0.5), real(0.25), real(1.0), real(c.MINVAL)
        FOUND, CDOF, COM, LOST = (lay.at[name] for name in ("found", "cdof", "com", "lost"))
        QVEL, WARM, SMOOTH = (lay.at[name] for name in ("qvel", "warm", "qacc_smooth"))
        PAIR, D, R, V, J = (lay.at[f"contact {name}"] for name in ("pair", "D", "r", "v", "J"))
        PLACE = lay.at.get("contact place", -1)
        kept = PLACE >= 0
        # Place of the centre of mass about which a dof's motion is written
        centre = table((COM + 3 * m.body_rootid[m.dof_bodyid]).astype(int32))

        @device
        def near(w, k):
            # Bounding spheres, or one and a plane, within the margin
            a, b, reach = places(PLACES * k + 0), places(PLACES * k + 1), numbers(NUMBERS * k + 1)
            x, y, z = w[b] - w[a], w[b + 1] - w[a + 1], w[b + 2] - w[a + 2]
            first, second = bounds(places(PLACES * k + 2)), bounds(places(PLACES * k + 3))
            if first > zero:
                together = first + second + reach
                return x * x + y * y + z * z <= together * together
            return x * w[a + 5] + y * w[a + 8] + z * w[a + 11] <= reach + second

        @device
        def residual(w, row, minus_reference, warm, smooth):
            """Write the residuals J a - a* of a contact's row at the last acceleration and the unconstrained one."""
            w[R + row] = warm + minus_reference
            w[V + row] = smooth + minus_reference

        @device_call
        def write(w, k, at, n):
            """Write contact n of pair k, found at `at`."""
            # Frame: normal, then the preferred tangent made orthogonal to it (`mju_makeFrame`)
            x0, x1, x2 = w[at + 4], w[at + 5], w[at + 6]
            scale = one / math.sqrt(x0 * x0 + x1 * x1 + x2 * x2)
            x0, x1, x2 = x0 * scale, x1 * scale, x2 * scale
            y0, y1, y2 = w[at + 7], w[at + 8], w[at + 9]
            if y0 * y0 + y1 * y1 + y2 * y2 < quarter:
                sideways = x1 < half and x1 > -half
                y0, y1, y2 = zero, (one if sideways else zero), (zero if sideways else one)
            along = x0 * y0 + x1 * y1 + x2 * y2
            y0, y1, y2 = y0 - along * x0, y1 - along * x1, y2 - along * x2
            # A tangent along the normal (a capsule upright on a plane) leaves nothing: then the x axis, as MuJoCo's.
            length = math.sqrt(y0 * y0 + y1 * y1 + y2 * y2)
            upright = length < least
            scale = one / (one if upright else length)
            y0, y1, y2 = (
                (one if upright else y0 * scale),
                (zero if upright else y1 * scale),
                (zero if upright else y2 * scale),
            )
            z0, z1, z2 = x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0
            if kept:
                place = PLACE + 12 * n
                w[place], w[place + 1], w[place + 2] = w[at + 1], w[at + 2], w[at + 3]
                w[place + 3], w[place + 4], w[place + 5] = x0, x1, x2
                w[place + 6], w[place + 7], w[place + 8] = y0, y1, y2
                w[place + 9], w[place + 10], w[place + 11] = z0, z1, z2

            # a* = -B v - K d r along the normal, -B v along the rest
            r = w[at] - numbers(NUMBERS * k + 0)
            d = curve(r, NUMBERS * k + 9)
            stiffness, damping = numbers(NUMBERS * k + 7), numbers(NUMBERS * k + 8)
            w[D + n] = one / regularisation(w, k, d)
            dims, moving = places(PLACES * k + 5), places(PLACES * k + 6)
            p0, p1, p2 = w[at + 1], w[at + 2], w[at + 3]
            first = J + n * rows * chain
            speed0, speed1, speed2, speed3, speed4, speed5 = zero, zero, zero, zero, zero, zero
            warm0, warm1, warm2, warm3, warm4, warm5 = zero, zero, zero, zero, zero, zero
            smooth0, smooth1, smooth2, smooth3, smooth4, smooth5 = zero, zero, zero, zero, zero, zero
            for i in range(moving):
                # Velocity of the point: translation + rotation x (point - centre)
                dof, sign = dofs(chain * k + i), signs(chain * k + i)
                at_dof, com = CDOF + 6 * dof, centre(dof)
                a0, a1, a2 = sign * w[at_dof], sign * w[at_dof + 1], sign * w[at_dof + 2]
                o0, o1, o2 = p0 - w[com], p1 - w[com + 1], p2 - w[com + 2]
                v0 = sign * w[at_dof + 3] + a1 * o2 - a2 * o1
                v1 = sign * w[at_dof + 4] + a2 * o0 - a0 * o2
                v2 = sign * w[at_dof + 5] + a0 * o1 - a1 * o0
                qvel, qwarm, qsmooth = w[QVEL + dof], w[WARM + dof], w[SMOOTH + dof]

                # Row of J: velocity along the normal and the tangents, rotation about them
                j = x0 * v0 + x1 * v1 + x2 * v2
                w[first + i] = j
                speed0, warm0, smooth0 = speed0 + j * qvel, warm0 + j * qwarm, smooth0 + j * qsmooth
                if dims > 1:
                    j = y0 * v0 + y1 * v1 + y2 * v2
                    w[first + chain + i] = j
                    speed1, warm1, smooth1 = speed1 + j * qvel, warm1 + j * qwarm, smooth1 + j * qsmooth
                    j = z0 * v0 + z1 * v1 + z2 * v2
                    w[first + 2 * chain + i] = j
                    speed2, warm2, smooth2 = speed2 + j * qvel, warm2 + j * qwarm, smooth2 + j * qsmooth
                if turns and dims > 3:
                    j = x0 * a0 + x1 * a1 + x2 * a2
                    w[first + 3 * chain + i] = j
                    speed3, warm3, smooth3 = speed3 + j * qvel, warm3 + j * qwarm, smooth3 + j * qsmooth
                if rolls and dims > 4:
                    j = y0 * a0 + y1 * a1 + y2 * a2
                    w[first + 4 * chain + i] = j
                    speed4, warm4, smooth4 = speed4 + j * qvel, warm4 + j * qwarm, smooth4 + j * qsmooth
                    j = z0 * a0 + z1 * a1 + z2 * a2
                    w[first + 5 * chain + i] = j
                    speed5, warm5, smooth5 = speed5 + j * qvel, warm5 + j * qwarm, smooth5 + j * qsmooth
            push = stiffness * d * r
            residual(w, n * rows, damping * speed0 + push, warm0, smooth0)
            if dims > 1:
                residual(w, n * rows + 1, damping * speed1, warm1, smooth1)
                residual(w, n * rows + 2, damping * speed2, warm2, smooth2)
            if turns and dims > 3:
                residual(w, n * rows + 3, damping * speed3, warm3, smooth3)
            if rolls and dims > 4:
                residual(w, n * rows + 4, damping * speed4, warm4, smooth4)
                residual(w, n * rows + 5, damping * speed5, warm5, smooth5)

        @device_call
        def find(w):
            # All contacts before their rows: on a GPU, lanes then write the rows of their n-th contact together.
            others = without_geoms(w)
            n = others
            for k in range(count):
                if near(w, k):
                    at, reach, margin = PLACES * k, numbers(NUMBERS * k + 1), numbers(NUMBERS * k + 0)
                    a, b, first, second = places(at), places(at + 1), places(at + 2), places(at + 3)
                    start = FOUND + 10 * n
                    some = collide(places(at + 4), w, a, b, sizes, first, second, reach, w, start)
                    for i in range(some):
                        if w[start + 10 * i] < margin:
                            if n < room:
                                w[PAIR + n] = real(k)
                                for number in range(10):
                                    w[FOUND + 10 * n + number] = w[start + 10 * i + number]
                                n += 1
                            else:
                                w[LOST] += one
            for k in range(others, n):
                write(w, int(w[PAIR + k]), FOUND + 10 * k, k)
            return n

        return find
