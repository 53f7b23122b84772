"""Places of a lane's numbers: in its state column and in its scratch. Plain integers, known before compilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from operant.errors import ModelError
from operant.physics import constants as c
from operant.physics.implicit import free_bodies
from operant.physics.local import BLOCK
from operant.physics.model import Model
from operant.physics.pairs import Pair, Tether
from operant.physics.smooth import turning_dofs
from operant.physics.sparse import Pattern
from operant.physics.ties import Tie

ROOM, AMONG = 16, 8
"""Contacts that a lane has room for, where the model allows more: at least `ROOM`, and where Newton's method needs no
dense matrix, all with planes and `AMONG` between bodies.

Most contacts in 2,000 random states, poses below the floor among them (possible ones, with planes and in all): ant 24
(25, 25), half_cheetah 16 (16, 16), walker2d 13 (14, 14), hopper 8 (8, 14), pusher 9 (10, 13), humanoid 19 (29, 190).
"""

DUALS, CONTACT_DUALS, MOST_DUALS = 64, 32, 256
"""Rows that a lane has room for under PGS: `DUALS`, or more where dry friction, limits and equality constraints leave
fewer than `CONTACT_DUALS` of them for contacts; at most `MOST_DUALS`, as the orders of rows are bytes.
"""

LINE = 32
"""Numbers in a line of a GPU's cache. The rows of PGS apart from the scratch are a line longer than they need be, so
that those of the lanes do not begin in the same sets of the cache.
"""

SCALES = ("gravity", "damping", "gear", "friction", "range", "mass", "armature")
"""Parameters of the model that a lane can scale: gravity, damping of all joints, gear of all actuators, sliding
friction of all contacts, both ends of the ranges of all joints, mass and inertia of all bodies, armature of all joints.
"""

READS = {
    "xpos": ("nbody", 3), "xquat": ("nbody", 4), "xmat": ("nbody", 9), "xipos": ("nbody", 3),
    "geom_xpos": ("ngeom", 3), "geom_xmat": ("ngeom", 9), "site_xpos": ("nsite", 3), "site_xmat": ("nsite", 9),
    "subtree_com": ("nbody", 3), "cinert": ("nbody", 10), "cvel": ("nbody", 6), "qfrc_actuator": ("nv", 1),
    "actuator_force": ("nactuator", 1), "ten_length": ("ntendon", 1), "cfrc_ext": ("nbody", 6), "qacc": ("nv", 1),
    "sensordata": ("nsensordata", 1),
}  # fmt: skip
"""Quantities that an environment may read after a step: number of elements and numbers of each, as in `mjData`. One
sensor is `sensor NAME`.
"""


@dataclass
class Block:
    """Consecutive numbers handed out in order."""

    size: int = 0
    at: dict[str, int] = field(default_factory=dict)

    def take(self, name: str, count: int) -> None:
        """Hand out the next `count` numbers under a name."""
        self.at[name] = self.size
        self.size += count


@dataclass(frozen=True)
class Layout:
    """Offsets by name: `state` within the lane's column, `at` within the scratch; sizes of the parts of a contact."""

    state: dict[str, int]
    fields: int
    at: dict[str, int]
    size: int
    room: int  # contacts
    rows: int  # most dimensions of a contact
    chain: int  # most dofs of a contact
    limits: int  # most active joint limits
    duals: int  # rows that PGS has room for
    apart: int  # numbers of the rows of PGS, if they are apart from the scratch


def read_size(m: Model, name: str) -> int:
    """Count of the numbers of a quantity that is read after a step."""
    if name.startswith("sensor "):
        return int(m.sensor_dim[m.id("sensor", name.partition(" ")[2])])
    count, width = READS[name]
    return int(getattr(m, count) * width)


def plan(
    m: Model,
    pairs: Sequence[Pair],
    most: Sequence[int],
    hessian: Pattern,
    reads: Sequence[str],
    touches: Sequence[int] = (),
    tethers: Sequence[Tether] = (),
    ties: Sequence[Tie] = (),
    scales: Sequence[str] = (),
    apart: bool = False,
) -> Layout:
    """Layout for a model, its pairs (`most` contacts of each), the pattern of its Hessian, what is read after a step,
    the touch sensors among it, tendons of limited length, rows of equality constraints, and the parameters that a lane
    scales. With `apart` the rows of PGS are not in the scratch.

    Raises ModelError where PGS has more rows than there is room for.
    """
    state = Block()
    parts = [("qpos", m.nq), ("qvel", m.nv), ("warm", m.nv), ("act", m.na), ("lost", 1), ("resets", 1)]
    parts += [(f"scale {name}", 1) for name in scales]
    for name, count in parts:
        state.take(name, count)

    # A limited tendon's sides, and an equality's row, take the place of contacts without friction.
    frictionless = 2 * len(tethers) + len(ties)
    touching = _room(m, pairs, most)
    room = touching + frictionless
    rows = max((pair.condim for pair in pairs), default=1 if tethers or ties else 0)
    chain = max(
        [len(pair.dofs) for pair in pairs] + [len(entry.dofs) for entry in tethers] + [len(tie.dofs) for tie in ties],
        default=0,
    )
    limits = _most_limits(m, scales)
    losses = int((m.dof_frictionloss > 0).sum())

    w = Block()
    for name, count in parts:
        w.take(name, count)
    if m.opt_solver == c.PGS and apart:
        w.size += w.size % 2
        w.take("roots pointer", 2)
    for name in ("qacc", "qfrc_smooth", "qacc_smooth", "qfrc_constraint"):
        w.take(name, m.nv)
    w.take("act_dot", m.na)
    w.take("M", len(hessian.mass))
    w.take("LD", len(hessian.mass))
    if m.opt_solver == c.PGS:
        w.take("root", m.nv)
    if m.opt_integrator == c.RK4:
        for name, count in (("qpos0", m.nq), ("qvel0", m.nv), ("act0", m.na)):
            w.take(name, count)
        for name, count in (("dqpos", m.nv), ("dqvel", m.nv), ("dact", m.na), ("turn", 3 * len(turning_dofs(m)))):
            w.take(name, count)
    if m.opt_integrator == c.IMPLICITFAST:
        w.take("damped M", len(hessian.mass))
        for body in free_bodies(m):
            w.take(f"damped M {body}", 36)
    for name in reads:
        w.take(f"read {name}", read_size(m, name))
    w.take("limit dof", limits)
    for name in ("limit D", "limit r", "limit v"):
        w.take(name, limits)
    for name in ("loss r", "loss v"):
        w.take(name, losses)
    if "mass" in scales or "armature" in scales:
        for name, count in (
            ("weight change body", m.nbody if pairs else 0),
            ("weight change dof", m.nv),
            ("weight change tether", len(tethers)),
        ):
            w.take(name, count)
        for name in ("loss D", "loss bound"):
            w.take(name, losses)
    w.take("contact pair", room)
    w.take("contact D", room)
    w.take("contact r", room * rows)
    w.take("contact v", room * rows)
    w.take("contact J", room * rows * chain)
    forces_read = "cfrc_ext" in reads or bool(touches)
    if forces_read:
        w.take("contact place", room * 12)
        w.take("com", 3 * m.nbody)
    for k in touches:
        w.take(f"touch {k}", 12)

    # What the rows are made of is no longer needed when the solver begins: both use the same place.
    before, solver = Block(w.size), Block(w.size)
    geoms = sorted({geom for pair in pairs for geom in pair.geoms})
    for geom in geoms:
        before.take(f"pose {geom}", 12)
    before.take("cdof", 6 * m.nv if pairs else 0)
    if not forces_read:
        before.take("com", 3 * m.nbody if pairs else 0)
    before.take("tether", len(tethers) * (1 + chain))
    before.take("tie", len(ties) * (3 + chain))
    before.take("found", 10 * (room + max(most, default=0)) if pairs else 0)
    dual = m.opt_solver == c.PGS
    cones = m.opt_cone == c.ELLIPTIC
    edges = rows if cones else max(1, 2 * (rows - 1))
    padded, width = 0, 0
    always = losses + limits + frictionless
    duals = always + min(touching * edges, max(DUALS - always, CONTACT_DUALS)) if dual else 0
    if duals > MOST_DUALS:
        raise ModelError(
            f"the model has up to {always} rows of dry friction, limits and equality constraints besides those of "
            f'contacts; the engine has room for {MOST_DUALS} under the solver PGS: use solver="Newton"'
        )
    if dual:
        # Rows are padded with zeros to whole blocks, and begin where vectors can be loaded.
        solver.size += -w.size % BLOCK
        padded = -(-duals // BLOCK) * BLOCK
        width = -(-m.nv // BLOCK) * BLOCK
        solver.take("dual Y", 0 if apart else padded * width)
        for name in ("b", "R", "diagonal", "f", "before", "momentum"):
            solver.take(f"dual {name}", padded)
        solver.take("dual member", padded if m.ntree > 1 or cones else 0)
        solver.take("dual cone", padded if cones else 0)
    for name in ("grad", "search"):
        solver.take(name, m.nv)
    solver.take("island", m.ntree if m.ntree > 1 else 0)
    solver.take("island scale", max(m.ntree, 1))
    if not dual:
        solver.take("H", len(hessian.places))
        for name in ("Mv", "Ma"):
            solver.take(name, m.nv)
    at = w.at | before.at | solver.at
    alone = padded * width + LINE if dual and apart else 0
    return Layout(state.at, state.size, at, max(before.size, solver.size), room, rows, chain, limits, duals, alone)


def _room(m: Model, pairs: Sequence[Pair], most: Sequence[int]) -> int:
    """Number of contacts that a lane has room for: a robot may lie on a plane with all its geoms at once."""
    if m.opt_solver == c.PGS:
        return min(sum(most), ROOM)
    flat = sum(count for pair, count in zip(pairs, most, strict=True) if pair.types(m)[0] == c.PLANE)
    return min(sum(most), max(ROOM, flat + AMONG))


def _most_limits(m: Model, scales: Sequence[str]) -> int:
    """Largest number of joint limits active at once: both sides of a joint only where their margins overlap, which they
    may in a range that a lane scales.
    """
    if m.opt_disableflags & (c.NO_LIMIT | c.NO_CONSTRAINT):
        return 0
    return sum(
        2 if "range" in scales or m.jnt_range[j, 1] - m.jnt_range[j, 0] < 2 * m.jnt_margin[j] else 1
        for j in range(m.njnt)
        if m.jnt_limited[j]
    )
