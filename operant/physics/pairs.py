"""Pairs of geoms that can touch, in MuJoCo's order, and the constants of their contacts. NumPy only.

Source: MuJoCo's documentation, "Computation: collision detection" and "Constraint model"; order and mixing as in
`engine_collision_driver.c`, impedance and regularisation as in `engine_core_constraint.c`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from operant.errors import ModelError
from operant.physics import constants as c
from operant.physics.model import Model
from operant.physics.smooth import matrix_of, moving_dofs, tendon_dofs


@dataclass(frozen=True)
class Pair:
    """Two geoms that can touch; types in MuJoCo's order."""

    geoms: tuple[int, int]
    bodies: tuple[int, int]
    condim: int
    margin: float  # m, within which a contact pushes
    gap: float  # m, beyond the margin: detected only
    friction: tuple[float, ...]  # 5: two sliding, one torsional, two rolling; a contact's are at least MINMU
    solref: tuple[float, ...]  # 2
    solimp: tuple[float, ...]  # 5
    dofs: tuple[tuple[int, float], ...]  # dofs that move one against the other, with the side's sign

    def types(self, m: Model) -> tuple[int, int]:
        """Types of the two geoms, as MuJoCo numbers them."""
        return int(m.geom_type[self.geoms[0]]), int(m.geom_type[self.geoms[1]])


@dataclass(frozen=True)
class Tether:
    """Tendon of limited length."""

    tendon: int
    dofs: tuple[int, ...]
    solref: tuple[float, ...]  # 2
    solimp: tuple[float, ...]  # 5


def find_tethers(m: Model) -> list[Tether]:
    """Return the tendons whose length has a limit, in the order of the model."""
    if m.opt_disableflags & (c.NO_LIMIT | c.NO_CONSTRAINT):
        return []
    return [
        Tether(k, tuple(tendon_dofs(m, k)), safe_solref(m, m.tendon_solref_lim[k]), safe_solimp(m.tendon_solimp_lim[k]))
        for k in range(m.ntendon)
        if m.tendon_limited[k] and tendon_dofs(m, k)
    ]


def find_pairs(m: Model) -> list[Pair]:
    """All pairs of geoms that may touch, in the order in which MuJoCo numbers their contacts. Raises ModelError for
    geoms that cannot collide here.
    """
    if m.opt_disableflags & (c.NO_CONTACT | c.NO_CONSTRAINT):
        return []
    found: list[tuple[tuple[int, ...], Pair]] = []
    named = {}
    for k in range(m.npair):
        g1, g2 = int(m.pair_geom1[k]), int(m.pair_geom2[k])
        named[frozenset((g1, g2))] = k
        b1, b2 = sorted((int(m.geom_bodyid[g1]), int(m.geom_bodyid[g2])))
        found.append(((b1, b2, 0, k), _named_pair(m, k)))
    excluded = {int(signature) for signature in m.exclude_signature}
    for b1 in range(m.nbody):
        for b2 in range(b1 + 1, m.nbody):
            if not _bodies_collide(m, b1, b2) or (b1 << 16) + b2 in excluded:
                continue
            several = m.body_geomnum[b1] > 1 or m.body_geomnum[b2] > 1
            for g1 in _geoms(m, b1):
                for g2 in _geoms(m, b2):
                    if not _masks_meet(m, g1, g2) or frozenset((g1, g2)) in named:
                        continue
                    pair = _mixed_pair(m, g1, g2)
                    # Bodies of several geoms: the tree search sorts its contacts by the geoms of the contact.
                    place = pair.geoms if several and not m.opt_disableflags & c.NO_MIDPHASE else (g1, g2)
                    found.append(((b1, b2, 1, *place), pair))
    found.sort(key=lambda entry: entry[0])
    return [pair for _, pair in found if pair.dofs]


def stay_apart(m: Model, pair: Pair) -> bool:
    """Whether two geoms never come within their margin, whatever their hinges and balls do."""
    (centre1, reach1), (centre2, reach2) = (_ball(m, int(m.geom_bodyid[g]), m.geom_pos[g]) for g in pair.geoms)
    reach = reach1 + reach2 + float(m.geom_rbound[list(pair.geoms)].sum()) + pair.margin + pair.gap
    return all(m.geom_rbound[g] > 0 for g in pair.geoms) and float(np.linalg.norm(centre1 - centre2)) > reach


def _ball(m: Model, body: int, point: np.ndarray) -> tuple[np.ndarray, float]:
    """Centre and radius of a ball in the world that holds a point of a body in all poses."""
    reach = 0.0
    while body:
        for joint in reversed(range(m.body_jntadr[body], m.body_jntadr[body] + m.body_jntnum[body])):
            anchor, axis = m.jnt_pos[joint], m.jnt_axis[joint]
            if m.jnt_type[joint] in (c.FREE, c.SLIDE):
                return point, np.inf
            # A hinge turns the point about its axis, a ball about its anchor.
            centre = anchor + (axis * (axis @ (point - anchor)) if m.jnt_type[joint] == c.HINGE else 0.0)
            reach, point = reach + float(np.linalg.norm(point - centre)), centre
        turn = np.array(matrix_of([float(x) for x in m.body_quat[body]])).reshape(3, 3)
        point, body = m.body_pos[body] + turn @ point, int(m.body_parentid[body])
    return point, reach


def _geoms(m: Model, body: int) -> range:
    return range(int(m.body_geomadr[body]), int(m.body_geomadr[body] + m.body_geomnum[body]))


def _masks_meet(m: Model, g1: int, g2: int) -> bool:
    return bool(m.geom_contype[g1] & m.geom_conaffinity[g2] or m.geom_contype[g2] & m.geom_conaffinity[g1])


def _bodies_collide(m: Model, b1: int, b2: int) -> bool:
    """Whether two bodies are not welded together, nor both fixed, nor parent and child (`filterBodyPair`)."""
    w1, w2 = int(m.body_weldid[b1]), int(m.body_weldid[b2])
    if w1 == w2 or (m.body_dofnum[w1] == 0 and m.body_dofnum[w2] == 0):
        return False
    if m.opt_disableflags & c.NO_FILTERPARENT or not w1 or not w2:
        return True
    return w1 != m.body_weldid[m.body_parentid[w2]] and w2 != m.body_weldid[m.body_parentid[w1]]


def _ordered(m: Model, g1: int, g2: int) -> tuple[int, int]:
    return (g2, g1) if m.geom_type[g1] > m.geom_type[g2] else (g1, g2)


def _mixed_pair(m: Model, a: int, b: int) -> Pair:
    """Pair with parameters of the geom of higher priority, or mixed (`mj_contactParam`)."""
    a, b = _ordered(m, a, b)
    if m.geom_priority[a] != m.geom_priority[b]:
        g = a if m.geom_priority[a] > m.geom_priority[b] else b
        condim, solref, solimp, friction = m.geom_condim[g], m.geom_solref[g], m.geom_solimp[g], m.geom_friction[g]
    else:
        condim = max(m.geom_condim[a], m.geom_condim[b])
        first, second = float(m.geom_solmix[a]), float(m.geom_solmix[b])
        if first >= c.MINVAL and second >= c.MINVAL:
            mix = first / (first + second)
        else:
            mix = 0.5 if first < c.MINVAL and second < c.MINVAL else float(first >= c.MINVAL)
        if m.geom_solref[a, 0] > 0 and m.geom_solref[b, 0] > 0:
            solref = mix * m.geom_solref[a] + (1 - mix) * m.geom_solref[b]
        else:
            solref = np.minimum(m.geom_solref[a], m.geom_solref[b])
        solimp = mix * m.geom_solimp[a] + (1 - mix) * m.geom_solimp[b]
        friction = np.maximum(m.geom_friction[a], m.geom_friction[b])
    margin = float(m.geom_margin[a] + m.geom_margin[b])
    gap = float(m.geom_gap[a] + m.geom_gap[b])
    return _pair(m, a, b, int(condim), margin, gap, friction[[0, 0, 1, 2, 2]], solref, solimp)


def _named_pair(m: Model, k: int) -> Pair:
    """Pair that the model declares."""
    if m.pair_solreffriction[k].any():
        raise ModelError("the physics engine does not cover solreffriction of contact pairs")
    a, b = _ordered(m, int(m.pair_geom1[k]), int(m.pair_geom2[k]))
    return _pair(
        m, a, b, int(m.pair_dim[k]), float(m.pair_margin[k]), float(m.pair_gap[k]), m.pair_friction[k],
        m.pair_solref[k], m.pair_solimp[k],
    )  # fmt: skip


def _pair(
    m: Model, a: int, b: int, condim: int, margin: float, gap: float, friction: np.ndarray, solref: np.ndarray,
    solimp: np.ndarray,
) -> Pair:  # fmt: skip
    bodies = int(m.geom_bodyid[a]), int(m.geom_bodyid[b])
    chains = [set(moving_dofs(m, body)) for body in bodies]
    dofs = [(dof, -1.0) for dof in chains[0] - chains[1]] + [(dof, 1.0) for dof in chains[1] - chains[0]]
    return Pair(
        (a, b), bodies, condim, margin, gap, tuple(float(mu) for mu in friction), safe_solref(m, solref),
        safe_solimp(solimp), tuple(sorted(dofs)),
    )  # fmt: skip


def safe_solref(m: Model, solref: np.ndarray) -> tuple[float, ...]:
    """Reference parameters as the constraint uses them: a time constant of at least two steps (`getsolparam`)."""
    first, second = float(solref[0]), float(solref[1])
    if (first > 0) != (second > 0):
        first, second = 0.02, 1.0
    if first > 0 and not m.opt_disableflags & c.NO_REFSAFE:
        first = max(first, 2.0 * float(m.opt_timestep))
    return first, second


def safe_solimp(solimp: np.ndarray) -> tuple[float, ...]:
    """Impedance parameters within their bounds (`getsolparam`)."""
    low, high, width, middle, power = (float(x) for x in solimp)

    def bounded(x: float) -> float:
        return min(c.MAXIMP, max(c.MINIMP, x))

    return bounded(low), bounded(high), max(0.0, width), bounded(middle), max(1.0, power)


def stiffness_damping(solref: tuple[float, ...], solimp: tuple[float, ...]) -> tuple[float, float]:
    """K and B of the reference acceleration a = -B v - K d r (MuJoCo's documentation, "Computation: reference")."""
    (first, second), high = solref, solimp[1]
    if first > 0:
        k = 1.0 / max(c.MINVAL, high * high * first * first * second * second)
    else:
        k = -first / max(c.MINVAL, high * high)
    b = 2.0 / max(c.MINVAL, high * first) if second > 0 else -second / max(c.MINVAL, high)
    return k, b
