"""`build`: the device functions of one model.

A step is `mj_step`: forward dynamics (position, velocity, actuation, constraints), then Euler with implicit damping,
implicitfast or Runge-Kutta 4. The smooth part is a straight-line program of the model (`smooth`, recorded by `trace`);
constraints are loops over the rows that are active (`rows`, `newton`). Everything between two steps of a lane is in its
state column; everything else in a scratch array on the lane's stack, laid out by `layout`.

The same seed gives the same bits: no atomic operation, no order that depends on other lanes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy import float32, int32

from operant.compute.device import device, device_call
from operant.errors import ModelError
from operant.physics import collide, collide_convex, fluids, implicit, sensors, smooth
from operant.physics import constants as c
from operant.physics.cones import cones
from operant.physics.coverage import INSTEAD
from operant.physics.factors import inverse_weights
from operant.physics.layout import READS, SCALES, Layout, plan
from operant.physics.local import keep, local_array
from operant.physics.model import Model
from operant.physics.newton import Programs, loss_numbers, newton
from operant.physics.pairs import Pair, find_pairs, find_tethers, stay_apart
from operant.physics.pgs import pgs
from operant.physics.rows import PLACES, Contacts, limit_rows
from operant.physics.sparse import Pattern, factor, find_pattern, solve, solve_transposed, times
from operant.physics.tables import table
from operant.physics.ties import find_ties, has_weld, tie_numbers
from operant.physics.trace import Number, Tape, program

FUNCTIONS, MOST = collide.FUNCTIONS | collide_convex.FUNCTIONS, collide.MOST | collide_convex.MOST

RK4_STAGE = (0.5, 0.5, 1.0)  # of the step, where the stages 1, 2, 3 are evaluated
RK4_WEIGHT = (1.0 / 6.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 6.0)


@dataclass(frozen=True, eq=False)
class Engine:
    """Device functions of a model in one precision, and the places of a lane's numbers.

    `s` is the lane's state column, whose first `fields` rows the engine owns; `w` is the lane's scratch; `ctrl` holds
    nu numbers.
    """

    model: Model
    real: Any
    layout: Layout
    work: Any = field(repr=False)  # () -> w; (memory) -> w if the engine has memory apart from the scratch
    reset: Any = field(repr=False)  # (s): the model's initial state
    step: Any = field(repr=False)  # (s, ctrl, w): one time step
    steps: Any = field(repr=False)  # (s, ctrl, w, n): n time steps under one control
    forward: Any = field(repr=False)  # (s, ctrl, w) -> contacts: derived quantities of the state, without a step
    refresh: Any = field(repr=False)  # (w), after `steps`: what is read of positions and velocities, of the new state

    @property
    def fields(self) -> int:
        """Number of rows of the state: qpos, qvel, the acceleration to start the solver from, activations, lost
        contacts, and automatic resets.
        """
        return self.layout.fields

    QPOS = property(lambda self: self.layout.state["qpos"])
    QVEL = property(lambda self: self.layout.state["qvel"])
    WARM = property(lambda self: self.layout.state["warm"])
    ACT = property(lambda self: self.layout.state["act"])
    LOST = property(lambda self: self.layout.state["lost"])
    RESETS = property(lambda self: self.layout.state["resets"])

    def scale(self, name: str) -> int:
        """Row of the state with the factor of a parameter that `build` was told to scale, 1 after a reset."""
        return self.layout.state[f"scale {name}"]

    @property
    def work_size(self) -> int:
        """Count of the numbers in the scratch."""
        return self.layout.size

    @property
    def state_bytes(self) -> int:
        """Size of the state of a lane in bytes, without an environment's own rows."""
        return self.fields * int(np.dtype(self.real).itemsize)

    @property
    def memory_size(self) -> int:
        """Count of the numbers that a lane keeps in GPU memory for the solver PGS (its constraint rows); 0 without."""
        return self.layout.apart

    @property
    def work_bytes(self) -> int:
        """Size of the scratch of a lane in bytes."""
        return self.work_size * int(np.dtype(self.real).itemsize)

    def at(self, name: str) -> int:
        """Place in the scratch of a quantity that `build` was told to keep."""
        if f"read {name}" not in self.layout.at:
            raise ModelError(f"{name} is not kept: build(model, reads=({name!r}, ...))")
        return self.layout.at[f"read {name}"]


def build(
    model: Model,
    real: Any = float32,
    reads: tuple[str, ...] = (),
    scales: tuple[str, ...] = (),
    *,
    apart: bool = False,
) -> Engine:
    """Engine of a model in float32 or float64 that keeps the quantities `reads` after a step. Compiles nothing yet.
    Raises ModelError for pairs of geoms that it cannot collide and for unknown quantities.

    With `apart` the rows of PGS are in memory that `work` is given, and not in the scratch. On a GPU this must
    be global memory, in which the numbers of a lane are contiguous. In local memory the lanes of a warp share lines of
    the cache only if they read the same row.
    """
    if unknown := sorted({*scales} - {*SCALES}):
        raise ModelError(
            f"the engine does not scale {', '.join(unknown)} of a lane; it scales {', '.join(SCALES)}. Another "
            "parameter holds for a run: `modified`, or the MJCF file"
        )
    kept, scaled = tuple(sorted(set(reads))), tuple(name for name in SCALES if name in scales)
    return _build(model, real, kept, scaled, apart)


@functools.cache
def _formulas() -> bytes:
    """Hash of the files that make programs: part of what compiled code is cached by."""
    folder = Path(__file__).parent
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).digest()


@functools.lru_cache(maxsize=64)
def _build(m: Model, real: Any, reads: tuple[str, ...], scales: tuple[str, ...], apart: bool) -> Engine:
    unknown = [name for name in reads if name not in READS and not name.startswith("sensor ")]
    if unknown:
        raise ModelError(f"the engine does not keep {', '.join(unknown)}; it keeps {', '.join(READS)}")
    pairs, tethers, ties = find_pairs(m), find_tethers(m), find_ties(m)
    if ties and {"mass", "armature"} & {*scales}:
        raise ModelError(
            "the engine does not scale masses and armature of a lane where the model has equality constraints"
        )
    if ties and "cfrc_ext" in reads and (m.eq_type < c.EQUAL_JOINT).any():
        raise ModelError(
            "the engine does not keep cfrc_ext where the model has the equality constraints connect and weld"
        )
    functions, most = {}, []
    for pair in list(pairs):
        names = tuple(c.GEOM_NAMES[kind] for kind in pair.types(m))
        if names not in FUNCTIONS and stay_apart(m, pair):
            pairs.remove(pair)
            continue
        if names not in FUNCTIONS:
            labels = [m.names("geom")[g] or str(g) for g in pair.geoms]
            raise ModelError(
                f"the physics engine does not collide {names[0]} and {names[1]} (geoms {labels[0]} and "
                f"{labels[1]}): exclude the pair by contype and conaffinity, or {INSTEAD}"
            )
        if names in collide_convex.FUNCTIONS and m.opt_disableflags & c.NO_NATIVECCD:
            raise ModelError(
                f"the physics engine collides {names[0]} and {names[1]} as MuJoCo's own convex solver does, which the "
                f"model's flag nativeccd disables: enable it, or {INSTEAD}"
            )
        once = names in collide_convex.SINGLE and m.opt_disableflags & c.NO_MULTICCD
        functions[pair.types(m)] = collide_convex.SINGLE[names] if once else FUNCTIONS[names]
        most.append(MOST[names])
    cliques = [[dof for dof, _ in pair.dofs] for pair in pairs]
    cliques += [list(entry.dofs) for entry in tethers] + [list(tie.dofs) for tie in ties]
    hessian = find_pattern(m, cliques)
    sensed = {name: sensors.named(m, name) for name in reads if name.startswith("sensor")}
    touches = sorted({k for numbers in sensed.values() for k in numbers if sensors.is_touch(m, k)})
    lay = plan(m, pairs, most, hessian, reads, touches, tethers=tethers, ties=ties, scales=scales, apart=apart)

    def make(name: str, record: Callable[[Tape], None], arrays: int = 1) -> Any:
        return program(
            record, arrays, m.digest + _formulas() + repr((name, np.dtype(real).name, reads, scales)).encode()
        )

    scratch = _Scratch(m, lay, hessian, pairs, reads, touches)
    contacts = Contacts(m, pairs, tethers, ties, lay, functions, real)
    limits = limit_rows(m, lay, real)
    solve_mass = _as_call(make("solve mass", scratch.solve_mass))
    if m.opt_solver == c.PGS:
        solve_root = make("solve root", scratch.solve_root, 2)
        constrain = pgs(m, lay, hessian, contacts, solve_mass, solve_root, real)
    else:
        programs = Programs(
            lambda to, of: _as_call(make(f"times {to} {of}", lambda tape: scratch.times(tape, to, of))),
            _as_call(make("factor", scratch.factor)),
            _as_call(make("solve", scratch.solve)),
            solve_mass,
        )
        constrain = newton(m, lay, hessian, contacts, programs, real)
    forces, find = make("forces", scratch.forces, 2), contacts.find
    force_of = _contact_force(m, lay, contacts, real)
    wrenches = _wrenches(m, lay, contacts, force_of, real) if "cfrc_ext" in reads and pairs else _nothing
    for name, numbers in sensed.items():
        for k in numbers if pairs else ():
            if k in touches:
                out = lay.at[f"read {name}"] + (int(m.sensor_adr[k]) if name == "sensordata" else 0)
                wrenches = _both(wrenches, sensors.touch(m, lay, contacts, force_of, k, out, real))

    @device_call
    def dynamics(w, ctrl):
        forces(w, ctrl)
        nl, nc = limits(w), find(w)
        return constrain(w, nl, nc)

    change_weights = _as_call(make("weights", scratch.weight_changes)) if "weight change dof" in lay.at else _no_program
    advance = _integrator(m, lay, make, scratch, dynamics, wrenches, real)
    # The state's fields lie in the scratch in their order.
    first, fields, size = lay.at["qpos"], lay.fields, lay.size
    assert all(lay.at[name] - first == place for name, place in lay.state.items())
    initial = np.zeros(fields, real)
    initial[: m.nq] = m.qpos0
    initial[lay.state["resets"] + 1 :] = 1.0
    lost = lay.state["lost"]
    # After a step by Runge-Kutta, qacc is the mean acceleration over the step.
    X, nv = lay.at["qacc"], m.nv
    MEAN = lay.at["dqvel"] if m.opt_integrator == c.RK4 else X
    kept = lay.at.get("read qacc", -1)
    PAIR, geoms, ropes = lay.at["contact pair"], len(pairs), 2 * len(tethers) + len(ties)

    ROOTS = lay.at.get("roots pointer", -1)

    @device
    def scratch_alone():
        return local_array(size, real)

    @device
    def scratch_and_memory(memory):
        w = local_array(size, real)
        keep(w, ROOTS, memory)
        return w

    work = scratch_and_memory if lay.apart else scratch_alone

    @device_call
    def reset(s):
        for k in range(fields):
            s[k] = initial[k]

    @device_call
    def steps(s, ctrl, w, n):
        for k in range(fields):
            w[first + k] = s[k]
        change_weights(w)
        for _ in range(n):
            advance(w, ctrl)
        for k in range(fields):
            s[k] = w[first + k]
        if kept >= 0:
            for k in range(nv):
                w[kept + k] = w[MEAN + k]

    @device
    def step(s, ctrl, w):
        steps(s, ctrl, w, 1)

    @device_call
    def forward(s, ctrl, w):
        for k in range(fields):
            w[first + k] = s[k]
        change_weights(w)
        found = dynamics(w, ctrl)
        wrenches(w, found)
        s[lost] = w[first + lost]
        if kept >= 0:
            for k in range(nv):
                w[kept + k] = w[X + k]
        # Rows of equality constraints and of tendons at a limit come before those of geoms.
        touching = found
        for k in range(min(found, ropes)):
            touching -= 1 if w[PAIR + k] >= geoms else 0
        return touching

    refresh = _as_call(make("refresh", scratch.refresh))
    return Engine(m, real, lay, work, reset, step, steps, forward, refresh)


@device
def _nothing(w, nc):
    pass


def _both(first: Any, second: Any) -> Any:
    @device
    def both(w, nc):
        first(w, nc)
        second(w, nc)

    return both


def _as_call(intrinsic: Any) -> Any:
    """Make a device function (w), called and not inlined, of a program over the scratch."""

    @device_call
    def call(w):
        intrinsic(w)

    return call


class _Scratch:
    """Programs over the scratch w (array 0) and the control (array 1), to be recorded."""

    def __init__(
        self, m: Model, lay: Layout, hessian: Pattern, pairs: list[Pair], reads: tuple[str, ...], touches: list[int]
    ) -> None:
        self.m, self.lay, self.hessian, self.pairs, self.reads, self.touches = m, lay, hessian, pairs, reads, touches

    def load(self, tape: Tape, name: str, count: int) -> list[Number]:
        return [tape.load(0, self.lay.at[name] + k) for k in range(count)]

    def scaling(self, tape: Tape, name: str) -> Number:
        """Factor of a parameter of the model: the lane's, or 1 where it is not scaled."""
        at = self.lay.at.get(f"scale {name}")
        return 1.0 if at is None else tape.load(0, at)

    def store(self, tape: Tape, name: str, values: list[Number]) -> None:
        for k, value in enumerate(values):
            tape.store(0, self.lay.at[name] + k, value)

    def matrix(self, tape: Tape, name: str, places: dict[tuple[int, int], int]) -> dict[tuple[int, int], Number]:
        return {key: tape.load(0, self.lay.at[name] + place) for key, place in places.items()}

    def forces(self, tape: Tape) -> None:
        """Record forward dynamics up to the unconstrained acceleration, and store what rows and readers need."""
        m, reads = self.m, self.reads
        q, v = self.load(tape, "qpos", m.nq), self.load(tape, "qvel", m.nv)
        ctrl = [tape.load(1, k) for k in range(m.nu)]
        act = self.load(tape, "act", m.na)
        state = smooth.kinematics(m, q, "xquat" in reads or has_weld(m))
        smooth.centres(m, state)
        mass_factor = self.scaling(tape, "mass")
        smooth.mass_matrix(m, state, mass_factor, self.scaling(tape, "armature"))
        factored = factor(state.M, m.nv)
        self.store(tape, "M", [state.M[key] for key in self.hessian.mass])
        self.store(tape, "LD", [factored[key] for key in self.hessian.mass])
        if m.opt_solver == c.PGS:
            self.store(tape, "root", [smooth.sqrt(factored[k, k]) for k in range(m.nv)])

        # Poses of the geoms that collide, motion axes and centres for the contacts' Jacobians
        for geom in sorted({geom for pair in self.pairs for geom in pair.geoms}):
            position, turn = smooth.placed(m, state, int(m.geom_bodyid[geom]), m.geom_pos[geom], m.geom_quat[geom])
            self.store(tape, f"pose {geom}", position + turn)
        if self.pairs:
            self.store(tape, "cdof", [x for axis in state.cdof for x in axis])
            for root in sorted({int(root) for root in m.body_rootid[m.dof_bodyid]}):
                for k, x in enumerate(state.subtree_com[root]):
                    tape.store(0, self.lay.at["com"] + 3 * root + k, x)

        # f_smooth = passive - bias + actuators,  a_smooth = M^-1 f_smooth
        smooth.velocities(m, state, v)
        smooth.bias_forces(m, state, v, self.scaling(tape, "gravity"), mass_factor)
        smooth.tendons(m, state, q, v)
        tethers = find_tethers(m)
        for k, entry in enumerate(tethers):
            numbers = [state.ten_length[entry.tendon], *(state.ten_moment[entry.tendon][dof] for dof in entry.dofs)]
            for i, x in enumerate(numbers):
                tape.store(0, self.lay.at["tether"] + (1 + self.lay.chain) * k + i, x)
        for k, tie in enumerate(find_ties(m)):
            error, violation, drift, moments = tie_numbers(m, state, q, v, tie)
            for i, x in enumerate((error, violation, drift, *moments)):
                tape.store(0, self.lay.at["tie"] + (3 + self.lay.chain) * k + i, x)
        smooth.passive_forces(m, state, q, v, self.scaling(tape, "damping"))
        fluids.add_fluid_forces(m, state)
        smooth.actuation(m, state, q, v, ctrl, act, self.scaling(tape, "gear"))
        force = smooth.add(smooth.subtract(state.qfrc_passive, state.qfrc_bias), state.qfrc_actuator)
        self.store(tape, "qfrc_smooth", force)
        self.store(tape, "qacc_smooth", solve(factored, m.nv, force))
        if m.opt_integrator == c.IMPLICITFAST:
            mass, blocks = implicit.damped_mass(m, state, v, self.scaling(tape, "damping"), mass_factor)
            self.store(tape, "damped M", [mass[key] for key in self.hessian.mass])
            for body, block in blocks.items():
                self.store(tape, f"damped M {body}", block)
        self.store(tape, "act_dot", state.act_dot)
        for k in self.touches:
            site = int(m.sensor_objid[k])
            position, turn = smooth.placed(m, state, int(m.site_bodyid[site]), m.site_pos[site], m.site_quat[site])
            self.store(tape, f"touch {k}", position + turn)
        for name in reads:
            if name not in ("cfrc_ext", "qacc"):
                self.keep(tape, name, state, q, v)

    def refresh(self, tape: Tape) -> None:
        """Record kinematics and velocities of the state, and store what is read of them (`mj_step1`)."""
        m = self.m
        q, v = self.load(tape, "qpos", m.nq), self.load(tape, "qvel", m.nv)
        state = smooth.kinematics(m, q, "xquat" in self.reads)
        smooth.centres(m, state)
        smooth.velocities(m, state, v)
        smooth.tendons(m, state, q, v)
        for name in self.reads:
            if name not in ("cfrc_ext", "qacc", "qfrc_actuator", "actuator_force"):
                self.keep(tape, name, state, q, v)

    def keep(self, tape: Tape, name: str, state: smooth.State, q: list[Number], v: list[Number]) -> None:
        """Store a quantity that a reader asked for, except touch sensors, which are 0 where nothing can touch."""
        if not name.startswith("sensor"):
            values = self.quantity(name, state)
            if name == "cinert":
                values = smooth.scale(values, self.scaling(tape, "mass"))
            self.store(tape, f"read {name}", values)
            return
        m, at = self.m, self.lay.at[f"read {name}"]
        for k in sensors.named(m, name):
            place = at + (int(m.sensor_adr[k]) if name == "sensordata" else 0)
            if k not in self.touches:
                for i, value in enumerate(sensors.sensor(m, state, q, v, k)):
                    tape.store(0, place + i, value)
            elif not self.pairs:
                tape.store(0, place, 0.0)

    def quantity(self, name: str, state: smooth.State) -> list[Number]:
        """Numbers of a quantity that a reader asked for, flat."""
        m = self.m
        if name.startswith(("geom", "site")):
            kind, _, what = name.partition("_")
            bodies, positions, turns = (getattr(m, f"{kind}_{part}") for part in ("bodyid", "pos", "quat"))
            placed = [smooth.placed(m, state, int(b), positions[k], turns[k]) for k, b in enumerate(bodies)]
            return [x for entry in placed for x in entry[what == "xmat"]]
        values = getattr(state, name)
        return [x for value in values for x in (value if isinstance(value, list) else [value])]

    def weight_changes(self, tape: Tape) -> None:
        """Record how a lane's scaled masses and armature change the constraint rows: inverse weights of bodies, dofs
        and tendons, and D and the bound of dry friction.
        """
        m, at = self.m, self.lay.at
        weights, mass, armature = inverse_weights(m), self.scaling(tape, "mass"), self.scaling(tape, "armature")
        for body in sorted({body for pair in self.pairs for body in pair.bodies}):
            tape.store(0, at["weight change body"] + body, weights.change(weights.body[body], mass, armature))
        for k, entry in enumerate(find_tethers(m)):
            tape.store(0, at["weight change tether"] + k, weights.change(weights.tendon[entry.tendon], mass, armature))
        loss = loss_numbers(m)
        for dof in sorted({*map(int, m.jnt_dofadr[m.jnt_limited > 0]), *map(int, loss[:, 0])}):
            tape.store(0, at["weight change dof"] + dof, weights.change(weights.dof[dof], mass, armature))
        for k, (dof, d, bound, _, _) in enumerate(loss):
            # R grows with the inverse weight.
            ratio = 1.0 + tape.load(0, at["weight change dof"] + int(dof)) * (1.0 / float(m.dof_invweight0[int(dof)]))
            tape.store(0, at["loss D"] + k, float(d) / ratio)
            tape.store(0, at["loss bound"] + k, float(bound) * ratio)

    def times(self, tape: Tape, to: str, of: str) -> None:
        """Record a product with the inertia: w[to] = M w[of]."""
        mass = self.matrix(tape, "M", self.hessian.mass)
        self.store(tape, to, times(mass, self.m.nv, self.load(tape, of, self.m.nv)))

    def factor(self, tape: Tape) -> None:
        """Record the factorisation of the Hessian in place: H = L' D L."""
        factored = factor(self.matrix(tape, "H", self.hessian.places), self.m.nv, c.MINVAL)
        self.store(tape, "H", [factored[key] for key in self.hessian.places])

    def solve(self, tape: Tape) -> None:
        """Record the Newton step: search = H^-1 grad."""
        factored = self.matrix(tape, "H", self.hessian.places)
        self.store(tape, "search", solve(factored, self.m.nv, self.load(tape, "grad", self.m.nv)))

    def solve_mass(self, tape: Tape) -> None:
        """Record the step of the preconditioned gradient: search = M^-1 grad."""
        factored = self.matrix(tape, "LD", self.hessian.mass)
        self.store(tape, "search", solve(factored, self.m.nv, self.load(tape, "grad", self.m.nv)))

    def solve_root(self, tape: Tape) -> None:
        """Record y = D^-1/2 L'^-1 y of a vector (array 1), with M = L' D L: the products of such vectors are those by
        M^-1.
        """
        nv = self.m.nv
        half = solve_transposed(self.matrix(tape, "LD", self.hessian.mass), nv, [tape.load(1, k) for k in range(nv)])
        for k, (y, root) in enumerate(zip(half, self.load(tape, "root", nv), strict=True)):
            tape.store(1, k, y * root)

    def euler(self, tape: Tape) -> None:
        """Velocity by the acceleration, with damping taken implicitly, then position by the new velocity (`mj_Euler`):
        (M + h B) a = f.
        """
        m, step = self.m, float(self.m.opt_timestep)
        q, v, a = self.load(tape, "qpos", m.nq), self.load(tape, "qvel", m.nv), self.load(tape, "qacc", m.nv)
        self.store(tape, "warm", a)
        if (m.dof_damping > 0).any() and not m.opt_disableflags & (c.NO_EULERDAMP | c.NO_DAMPER):
            mass = self.matrix(tape, "M", self.hessian.mass)
            for k in range(m.nv):
                mass[k, k] = mass[k, k] + step * float(m.dof_damping[k]) * self.scaling(tape, "damping")
            force = smooth.add(self.load(tape, "qfrc_smooth", m.nv), self.load(tape, "qfrc_constraint", m.nv))
            a = solve(factor(mass, m.nv), m.nv, force)
        self._advance(tape, q, v, a, None)

    def implicitfast(self, tape: Tape) -> None:
        """Velocity by the acceleration, with the derivatives of damping, actuators and fluids taken implicitly, then
        position by the new velocity (`mj_implicit`): (M - h D) a = f.
        """
        m = self.m
        q, v = self.load(tape, "qpos", m.nq), self.load(tape, "qvel", m.nv)
        self.store(tape, "warm", self.load(tape, "qacc", m.nv))
        force = smooth.add(self.load(tape, "qfrc_smooth", m.nv), self.load(tape, "qfrc_constraint", m.nv))
        mass, free = self.matrix(tape, "damped M", self.hessian.mass), implicit.free_bodies(m)
        alone = {int(m.body_dofadr[body]) + k for body in free for k in range(6)}
        for i, j in self.hessian.mass:
            if i in alone:
                mass[i, j] = float(i == j)
        a = solve(factor(mass, m.nv), m.nv, force)
        for body in free:
            first = int(m.body_dofadr[body])
            block = self.load(tape, f"damped M {body}", 36)
            a[first : first + 6] = implicit.solve_six(block, force[first : first + 6])
        self._advance(tape, q, v, a, None)

    def _advance(
        self, tape: Tape, q: list[Number], v: list[Number], a: list[Number], speed: list[Number] | None
    ) -> None:
        """Integrate velocity by `a`, position by `speed` (by default the new velocity), and activations."""
        m, step = self.m, float(self.m.opt_timestep)
        v = smooth.add(v, smooth.scale(a, step))
        self.store(tape, "qvel", v)
        self.store(tape, "qpos", smooth.moved(m, q, v if speed is None else speed, step))

    def euler_activations(self, tape: Tape) -> None:
        """Record the update of the activations by a step."""
        m = self.m
        act, rate = self.load(tape, "act", m.na), self.load(tape, "act_dot", m.na)
        self.store(tape, "act", smooth.next_activation(m, act, rate))

    def rk4_begin(self, tape: Tape) -> None:
        """Remember the state at which the step begins."""
        for name, count in (("qpos", self.m.nq), ("qvel", self.m.nv), ("act", self.m.na)):
            self.store(tape, f"{name}0", self.load(tape, name, count))
        turns = 3 * len(smooth.turning_dofs(self.m))
        for name, count in (("dqpos", self.m.nv), ("dqvel", self.m.nv), ("dact", self.m.na), ("turn", turns)):
            self.store(tape, name, [0.0] * count)

    def rk4_stage(self, tape: Tape) -> None:
        """Add the stage's derivatives with its weight (array 1, number 0), and move from the beginning along them by a
        part of the step (number 1).
        """
        m, step = self.m, float(self.m.opt_timestep)
        weight, part = tape.load(1, 0), tape.load(1, 1)
        v, a, rate = self.load(tape, "qvel", m.nv), self.load(tape, "qacc", m.nv), self.load(tape, "act_dot", m.na)
        # Displacement of this stage; only rotations need it.
        u: list[Number] = [0.0] * m.nv
        for k, dof in enumerate(smooth.turning_dofs(m)):
            u[dof : dof + 3] = [tape.load(0, self.lay.at["turn"] + 3 * k + i) for i in range(3)]
        moving = smooth.displacement_rate(m, u, v)
        for name, derivative in (("dqpos", moving), ("dqvel", a), ("dact", rate)):
            total = self.load(tape, name, len(derivative))
            self.store(tape, name, [x + weight * y for x, y in zip(total, derivative, strict=True)])
        q0, v0, act0 = self.load(tape, "qpos0", m.nq), self.load(tape, "qvel0", m.nv), self.load(tape, "act0", m.na)
        u = smooth.scale(moving, part * step)
        self.store(tape, "turn", [u[dof + i] for dof in smooth.turning_dofs(m) for i in range(3)])
        self.store(tape, "qpos", smooth.moved(m, q0, u, 1.0))
        self.store(tape, "qvel", smooth.add(v0, smooth.scale(a, part * step)))
        self.store(tape, "act", smooth.add(act0, smooth.scale(rate, part * step)))

    def rk4_end(self, tape: Tape) -> None:
        """Record the state after the step, by the weighted derivatives."""
        m = self.m
        self.store(tape, "warm", self.load(tape, "qacc", m.nv))
        q, v = self.load(tape, "qpos0", m.nq), self.load(tape, "qvel0", m.nv)
        self._advance(tape, q, v, self.load(tape, "dqvel", m.nv), self.load(tape, "dqpos", m.nv))
        if m.na:
            act, rate = self.load(tape, "act0", m.na), self.load(tape, "dact", m.na)
            self.store(tape, "act", smooth.next_activation(m, act, rate))


def _integrator(m: Model, lay: Layout, make: Any, scratch: _Scratch, dynamics: Any, wrenches: Any, real: Any) -> Any:
    """Device function (w, ctrl): one time step of the scratch's state.

    A state or an acceleration that is not finite, or beyond 1e10, starts again from the initial pose and is counted
    (`mj_checkPos`, `mj_checkVel`, `mj_checkAcc`).
    """
    bad, restore = _guard(m, lay, real)
    if m.opt_integrator != c.RK4:
        fast = m.opt_integrator == c.IMPLICITFAST
        euler = _as_call(make("implicitfast", scratch.implicitfast) if fast else make("euler", scratch.euler))
        activations = make("activations", scratch.euler_activations) if m.na else _no_program

        @device_call
        def advance(w, ctrl):
            contacts, again = 0, 1
            while again >= 0:  # one call of the dynamics in the code
                contacts = dynamics(w, ctrl)
                if again > 0 and bad(w):
                    restore(w)
                    again = 0
                else:
                    again = -1
            wrenches(w, contacts)
            euler(w)
            activations(w)

        return advance

    begin, end = _as_call(make("rk4 begin", scratch.rk4_begin)), _as_call(make("rk4 end", scratch.rk4_end))
    stage_program = make("rk4 stage", scratch.rk4_stage, 2)
    # The last part only moves the state to where it is not read.
    table = np.array([[*pair] for pair in zip(RK4_WEIGHT, (*RK4_STAGE, 0.0), strict=True)], real)

    @device_call
    def stage(w, numbers):
        stage_program(w, numbers)

    @device_call
    def advance_rk4(w, ctrl):
        numbers = local_array(2, real)
        contacts, k, again = 0, 0, True
        while k < 4:
            if k == 0:
                begin(w)
            contacts = dynamics(w, ctrl)
            if k == 0 and again and bad(w):
                restore(w)
                again = False
                continue
            numbers[0], numbers[1] = table[k, 0], table[k, 1]
            stage(w, numbers)
            k += 1
        wrenches(w, contacts)
        end(w)

    return advance_rk4


def _guard(m: Model, lay: Layout, real: Any) -> tuple[Any, Any]:
    """Make two device functions (w): whether the state or acceleration in the scratch is bad, and one that puts it back
    to the initial state.
    """
    QPOS, QVEL, X, RESETS = (lay.at[name] for name in ("qpos", "qvel", "qacc", "resets"))
    nq, nv, most = m.nq, m.nv, real(c.MAXVAL)
    checked = not m.opt_disableflags & c.NO_AUTORESET
    initial, fields = m.qpos0.astype(real), lay.state["lost"]

    @device
    def bad(w):
        # A comparison with a number that is not one is false.
        fine = True
        if checked:
            for k in range(nq + nv):
                fine = fine and abs(w[QPOS + k]) < most
            for k in range(nv):
                fine = fine and abs(w[X + k]) < most
        return not fine

    @device
    def restore(w):
        for k in range(fields):
            w[QPOS + k] = initial[k] if k < nq else real(0.0)
        w[RESETS] += real(1.0)

    assert QPOS + nq == QVEL
    return bad, restore


@device
def _no_program(w):
    pass


def _contact_force(m: Model, lay: Layout, contacts: Contacts, real: Any) -> Any:
    """Make the device function (w, contact) that returns the normal force of a contact, N, and, of an elliptic cone
    under Newton, c: the force along tangent i is c mu_i^2 r_i.
    """
    PAIR, D, R = (lay.at[f"contact {name}"] for name in ("pair", "D", "r"))
    rows, zero, dual = lay.rows, real(0.0), m.opt_solver == c.PGS
    places, friction = contacts.places, contacts.friction
    elliptic = bool(m.opt_cone == c.ELLIPTIC) and not dual
    cone_force = cones(m, lay, contacts, None, real).force

    @device
    def contact_force(w, k):
        pair, r, d = int(w[PAIR + k]), R + k * rows, w[D + k]
        dims = places(PLACES * pair + 5)
        normal = w[r] if dual else (-d * min(w[r], zero) if dims == 1 else zero)
        if elliptic and dims > 1:
            _, normal, factor_of_slip = cone_force(w, k, pair, r)
            return normal, factor_of_slip
        for i in range(1, dims):
            # Edges of the pyramid: normal +- mu friction
            slip = friction(w, pair, i) * w[r + i]
            normal += zero if dual else -d * min(w[r] + slip, zero) - d * min(w[r] - slip, zero)
        return normal, zero

    return contact_force


def _wrenches(m: Model, lay: Layout, contacts: Contacts, contact_force: Any, real: Any) -> Any:
    """Device function (w, contacts) that sums the contact forces on each body as `cfrc_ext`: torque and force about the
    centre of mass of its tree (`mj_rnePostConstraint`).
    """
    OUT, COM, PLACE = lay.at["read cfrc_ext"], lay.at["com"], lay.at["contact place"]
    PAIR, D, R = (lay.at[f"contact {name}"] for name in ("pair", "D", "r"))
    rows, nbody, zero = lay.rows, m.nbody, real(0.0)
    elliptic = bool(m.opt_cone == c.ELLIPTIC)
    places, friction, dual = contacts.places, contacts.friction, m.opt_solver == c.PGS
    body, root, pairs = table(m.geom_bodyid.astype(int32)), table(m.body_rootid.astype(int32)), contacts.pairs

    @device_call
    def add(w, k):
        """Add the force of contact k on its two bodies."""
        pair, r, d, at = int(w[PAIR + k]), R + k * rows, w[D + k], PLACE + 12 * k
        dims = places(PLACES * pair + 5)
        normal, factor_of_slip = contact_force(w, k)
        t0, t1, t2, f0, f1, f2 = zero, zero, zero, zero, zero, zero
        for i in range(1, dims):
            mu = friction(w, pair, i)
            slip = mu * w[r + i]
            first, second = -d * min(w[r] + slip, zero), -d * min(w[r] - slip, zero)
            pull = w[r + i] if dual else (factor_of_slip * mu * slip if elliptic else mu * (first - second))
            axis = at + 3 + 3 * (i % 3)
            if i < 3:
                f0, f1, f2 = f0 + pull * w[axis], f1 + pull * w[axis + 1], f2 + pull * w[axis + 2]
            else:
                t0, t1, t2 = t0 + pull * w[axis], t1 + pull * w[axis + 1], t2 + pull * w[axis + 2]
        f0, f1, f2 = f0 + normal * w[at + 3], f1 + normal * w[at + 4], f2 + normal * w[at + 5]
        for side in range(2):
            b = body(places(PLACES * pair + 2 + side))
            if b > 0:
                com, to = COM + 3 * root(b), OUT + 6 * b
                x, y, z = w[at] - w[com], w[at + 1] - w[com + 1], w[at + 2] - w[com + 2]
                sign = real(1.0) if side == 1 else real(-1.0)
                w[to] += sign * (t0 + y * f2 - z * f1)
                w[to + 1] += sign * (t1 + z * f0 - x * f2)
                w[to + 2] += sign * (t2 + x * f1 - y * f0)
                w[to + 3] += sign * f0
                w[to + 4] += sign * f1
                w[to + 5] += sign * f2

    @device_call
    def wrenches(w, nc):
        for k in range(6 * nbody):
            w[OUT + k] = zero
        for k in range(nc):
            if int(w[PAIR + k]) < pairs:  # not a tendon
                add(w, k)

    return wrenches
