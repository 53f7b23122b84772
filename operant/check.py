"""Is an environment sound? What `operant check FILE.py` runs. Knows no policy and no algorithm.

An author's mistake must come back as a sentence that names the line, never as a traceback and never as a wrong number in a training: so each way
in which a file can be broken has a finding of its own, and a finding that later ones rest on stops the list when it fails.
"""

from __future__ import annotations

import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import get_num_threads, njit, types
from numba.core import ir
from numba.core.dispatcher import Dispatcher
from numba.core.types.functions import NumberClass

from operant.envs import Box, Cells, Discrete, Env, MultiDiscrete
from operant.kernel import bind
from operant.ptx import ARCHITECTURES, compile_ptx, essence, float64_lines, quoted, signature, undefined_calls
from operant.trials import DEVICE_TOLERANCE, Seen, Trial, compare_devices, long_trial, same_bits, trial_actions
from operant.world import Lanes, Slot, World, device_params, reset_body, step_body

GUARD_ROWS = 16
GUARD_BYTE = 0x5A
FREE_STEPS = 200


@dataclass(frozen=True)
class Finding:
    """One thing looked at: its name, whether it is as it should be, and what was seen."""

    name: str
    passed: bool
    detail: str


def _plain(function: Any) -> Any:
    """The Python under a device function."""
    return function.py_func


def _source(env: Env) -> str:
    return _plain(env.step).__code__.co_filename


def declaration_problems(env: Env) -> list[str]:
    """Everything wrong with what an environment says of itself, a sentence each."""
    problems = [*_space_problems(env), *_function_problems(env)]
    try:
        params = env.Params()
        if not isinstance(params, tuple) or not all(isinstance(value, (bool, int, float)) for value in params):
            problems.append("Params must be a NamedTuple of numbers")
    except TypeError as error:
        problems.append(f"every field of Params needs a default ({error})")
    if not isinstance(env.fields, int) or env.fields < 0 or (env.fields == 0 and env.cells is None):
        problems.append(f"fields is {env.fields!r}: the number of rows of the state, at least 1 (or 0 beside cells)")
    if env.time_limit is not None and (not isinstance(env.time_limit, int) or env.time_limit < 1):
        problems.append(f"time_limit is {env.time_limit!r}: a whole number of steps, at least 1, or None")
    if env.cells is not None and (not isinstance(env.cells, Cells) or env.cells.n < 1 or env.cells.dtype not in ("int8", "uint8", "int16", "int32")):
        problems.append(f"cells is {env.cells!r}: Cells(n, dtype), n at least 1, of int8, uint8, int16 or int32")
    if not isinstance(env.scratch, int) or env.scratch < 0:
        problems.append(f"scratch is {env.scratch!r}: a whole number, 0 or more")
    if not isinstance(env.tally, tuple) or not all(isinstance(name, str) for name in env.tally):
        problems.append(f'tally is {env.tally!r}: a tuple of names, such as ("score",)')
    try:
        hash(env)
    except TypeError as error:
        problems.append(f"bounds must be numbers or tuples, not lists or arrays ({error})")
    return problems


def _space_problems(env: Env) -> Iterator[str]:
    for name, space in (("observation", env.observation), ("action", env.action)):
        if name == "action" and isinstance(space, (Discrete, MultiDiscrete)):
            sizes = (space.n,) if isinstance(space, Discrete) else tuple(space.n)
            if not sizes or not all(isinstance(n, int) and n >= 1 for n in sizes):
                yield f"action is {space!r}: each n must be a whole number, at least 1"
        elif not isinstance(space, Box):
            yield f"{name} is {space!r}: it must be {'a Box' if name == 'observation' else 'Discrete, MultiDiscrete or a Box'}"
        elif not isinstance(space.size, int) or space.size < 1:
            yield f"{name} has size {space.size!r}: at least 1"
        elif any(len(bound) != space.size for bound in space.bounds()):
            yield f"{name} has {space.size} numbers, but bounds for {[len(bound) for bound in space.bounds()]}"
        elif not all(low <= high for low, high in zip(*space.bounds(), strict=True)):
            yield f"{name} has a lower bound above its upper bound"
        elif space.dtype not in (("float32", "uint8") if name == "observation" else ("float32",)):
            yield f"{name} has dtype {space.dtype!r}: float32{' or uint8' if name == 'observation' else ''}"
        elif space.shape and math.prod(space.shape) != space.size:
            yield f"{name} has shape {space.shape}, which is not {space.size} numbers"


def _function_problems(env: Env) -> Iterator[str]:
    grid = "cells, scratch, " if env.cells is not None or env.scratch else ""
    wanted = {"reset": f"s, {grid}p, key", "step": f"s, {grid}action, p, key, tally", "observe": f"s, {grid}obs, p"}
    wanted["shade"] = f"s, {'cells, ' if env.cells is not None else ''}p, x, y"
    for name, arguments in wanted.items():
        function = getattr(env, name)
        if function is None and name == "shade":
            continue
        if not isinstance(function, Dispatcher):
            yield f"`{name}` is not a device function: write @device above it"
            continue
        given = len(inspect.signature(function.py_func).parameters)
        if given != arguments.count(",") + 1:
            yield f"`{name}` takes {given} arguments: it must be {name}({arguments})"


class _Guarded:
    """Step and reset with every index checked, on buffers between guard rows. Compiles when asked to."""

    def __init__(self, env: Env, lanes: int) -> None:
        world, self.env, self.count = World(env, lanes, seed=1, every_final=True), env, lanes
        self._whole: dict[str, torch.Tensor] = {}
        exact = {"state": env.fields, "cells": env.cells.n if env.cells else 0, "scratch": env.scratch, "running": 1 + len(env.tally)}
        self.lanes: Lanes = self._between_guards(world.lanes, exact)
        O, A = env.observation.size, env.action_size
        self.slot: Slot = self._between_guards(world.slot(), {"observation": O, "final_observation": O, "action": A})
        self.bodies = {"step": step_body(env, world.params), "reset": reset_body(env, world.params)}
        self.shells = {name: _checked_shell(body) for name, body in self.bodies.items()}

    def _between_guards(self, group: Any, rows: dict[str, int]) -> Any:
        for name, count in rows.items():
            if getattr(group, name) is None:
                continue
            whole = torch.zeros((count + 2 * GUARD_ROWS, self.count), dtype=getattr(group, name).dtype)
            whole.view(torch.uint8).fill_(GUARD_BYTE)
            self._whole[name] = whole
            inner = whole[GUARD_ROWS : GUARD_ROWS + count]
            inner.zero_()
            group = group._replace(**{name: inner})
        return group

    def compile(self) -> None:
        for shell in self.shells.values():
            shell.compile(signature(self.lanes, self.slot))

    def run(self, name: str) -> None:
        self.shells[name](self.count, bind(self.lanes), bind(self.slot), 0)
        self.lanes.tick.add_(1)

    def trespass(self) -> str | None:
        """The buffer beside which something was written, if any."""
        for name, whole in self._whole.items():
            guards = torch.cat([whole[:GUARD_ROWS], whole[-GUARD_ROWS:]]).view(torch.uint8)
            if not bool((guards == GUARD_BYTE).all()):
                return name
        return None

    def prints(self) -> list[str]:
        """Lines that print."""
        notes = [next(iter(shell.overloads.values())).type_annotation for shell in self.shells.values()]
        statements = [statement for note in notes for block in note.blocks.values() for statement in block.body]
        return sorted({quoted(statement.loc.filename, statement.loc.line) for statement in statements if isinstance(statement, ir.Print)})

    def float64_places(self) -> list[str]:
        """Lines of the author's file that compute in float64, as the compiled step and reset tell."""
        found = set()
        for shell in self.shells.values():
            notes = next(iter(shell.overloads.values())).type_annotation
            for statement in (statement for block in notes.blocks.values() for statement in block.body):
                expression = getattr(statement, "value", None)
                if not isinstance(statement, ir.Assign) or not isinstance(expression, ir.Expr) or statement.loc.filename != _source(self.env):
                    continue
                if expression.op == "call" and isinstance(notes.typemap[expression.func.name], NumberClass):
                    continue  # float32(0.5): the literal is folded
                called = notes.calltypes.get(expression)
                if notes.typemap[statement.target.name] == types.float64 or (called is not None and types.float64 in called.args):
                    found.add(statement.loc.line)
        return [quoted(_source(self.env), line) for line in sorted(found)]


def _checked_shell(body: Callable[..., Any]) -> Any:
    @njit(boundscheck=True, error_model="numpy")
    def shell(count, lanes, slot, offset):  # noqa: ANN001, ANN202
        for i in range(count):
            body(i, lanes, slot, offset)

    return shell


def _compiles_for_cuda(guarded: _Guarded) -> list[Finding]:
    name, names = "compiles for CUDA", ", ".join(f"sm_{major}{minor}" for major, minor in ARCHITECTURES)
    instructions: list[str] = []
    for capability in ARCHITECTURES:
        for body in guarded.bodies.values():
            try:
                ptx = compile_ptx(body, guarded.lanes, guarded.slot, capability)
            except Exception as error:
                return [Finding(name, False, essence(error))]
            if calls := undefined_calls(ptx):
                return [Finding(name, False, f"it calls functions that a GPU does not have: {', '.join(calls)}")]
            instructions += float64_lines(ptx)
    compiled = Finding(name, True, names)
    if not instructions:
        return [compiled, Finding("float32 only", True, "no float64 instruction in any of them")]
    places = guarded.float64_places()
    detail = "; ".join(places) if places else f"the instruction `{instructions[0]}`"
    return [compiled, Finding("float32 only", False, f"float64 arithmetic, where every literal should be float32(...): {detail}")]


def _keeps_to_its_columns(guarded: _Guarded, steps: int) -> Finding:
    name, generator = "keeps to its columns", np.random.default_rng(1)
    try:
        guarded.run("reset")
        for t in range(steps):
            guarded.slot.action.copy_(trial_actions(guarded.env, generator, t, guarded.count))
            guarded.run("step")
    except IndexError:
        return Finding(name, False, _index_error(guarded.env) or "an index is outside s, cells, scratch, obs, action or tally")
    if buffer := guarded.trespass():
        return Finding(name, False, f"something was written beside {buffer}, outside this lane's column: look at the indices in the helpers")
    return Finding(name, True, f"{steps} steps with every index checked")


def _index_error(env: Env) -> str | None:
    """Where an index is out of range, found by running the functions as the plain Python they are; None where that does not show it."""
    cells = [np.zeros(env.cells.n if env.cells else 0, env.cells.dtype if env.cells else "int8"), np.zeros(env.scratch, np.int32)]
    grid = cells if env.cells is not None or env.scratch else []
    s, obs = np.zeros(env.fields, np.float32), np.zeros(env.observation.size, env.observation.dtype)
    p, tally, generator = device_params(env.Params()), np.zeros(len(env.tally), np.float32), np.random.default_rng(1)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for t in range(FREE_STEPS):
                key = tuple(np.uint32(word) for word in (1, 0, 0, t, 0, 0))
                if t == 0:
                    _plain(env.reset)(s, *grid, p, key)
                column = trial_actions(env, generator, t, 2)[:, t % 2].numpy()
                _, terminated = _plain(env.step)(s, *grid, column[0] if isinstance(env.action, Discrete) else column, p, key, tally)
                _plain(env.observe)(s, *grid, obs, p)
                if terminated:
                    _plain(env.reset)(s, *grid, p, key)
    except IndexError as error:
        trace = error.__traceback__
        line = 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == _source(env) else line
            trace = trace.tb_next
        return f"{quoted(_source(env), line)}: {error}" if line else None
    except Exception:
        return None
    return None


def _writes_what_it_declares(env: Env, lanes: int, steps: int) -> Finding:
    """Two trials alike but for what lay in their buffers before: whatever then differs was left unwritten, or read before it was written."""
    name, generator = "writes what it declares", np.random.default_rng(1)
    trials = Trial(env, lanes, 1), Trial(env, lanes, 1)
    for t in range(steps + 1):
        action = trial_actions(env, generator, t, lanes)
        for trial, fill in zip(trials, (85, 42), strict=True):
            left_over = [trial.slot.observation, trial.slot.final_observation, trial.world.lanes.scratch]
            for tensor in left_over + ([] if t else [trial.world.lanes.state, trial.world.lanes.cells]):
                if tensor is not None:
                    tensor.fill_(fill)
            trial.step(action) if t else trial.reset()
        one, other = (trial.outcome() for trial in trials)
        who = "reset" if t == 0 else "step"
        if env.fields and (rows := _rows_apart(one["state"], other["state"])):
            what = "the episode before" if t == 0 else "the scratch memory"
            return Finding(name, False, f"after `{who}`, s{rows} depends on what {what} left there: `{who}` must write it")
        if env.cells and (rows := _rows_apart(one["cells"], other["cells"])):
            return Finding(name, False, f"after `{who}`, cells{rows[:8]} depend on what lay in cells or scratch before: `{who}` must write them")
        for which in ("observation", "final observation"):
            if rows := _rows_apart(one[which], other[which]):
                return Finding(name, False, f"`observe` leaves obs{rows} unwritten (the observation is declared with {env.observation.size} numbers)")
    return Finding(name, True, "reset writes the whole state, observe the whole observation")


def _rows_apart(one: torch.Tensor, other: torch.Tensor) -> list[int]:
    return [row for row in range(one.shape[0]) if not same_bits(one[row], other[row])]


def _picture(env: Env) -> Finding:
    trial = Trial(env, 4, 1)
    trial.reset()
    lanes, p = trial.world.lanes, device_params(trial.world.params)
    grid = (lanes.cells[:, 0].numpy(),) if env.cells is not None else ()
    points = [np.float32((k + 0.5) / 16) for k in range(16)]
    assert env.shade is not None
    colours = np.array([env.shade(lanes.state[:, 0].numpy(), *grid, p, x, y) for x in points for y in points], np.float64)
    good = colours.shape == (256, 3) and bool(np.isfinite(colours).all()) and colours.min() >= 0.0 and colours.max() <= 1.0
    return Finding("picture", good, "16 x 16 points" if good else "`shade` must return (r, g, b), each from 0 to 1")


def _devices(env: Env, lanes: int) -> Finding:
    """A free run where the dynamics allow it; a chaotic system pulls any two roundings apart, so it is judged step by step."""
    name, steps = "CPU = CUDA", FREE_STEPS
    share, worst = compare_devices(env, lanes, steps)
    if share >= 0.99:
        return Finding(name, True, f"{share:.1%} of lanes agree over {steps} free steps, largest error {worst:.1e} (tolerance {DEVICE_TOLERANCE:g})")
    each, worst = compare_devices(env, lanes, steps, resynchronise=True)
    detail = f"{each:.1%} of lanes agree step by step over {steps} steps, largest error {worst:.1e} (tolerance {DEVICE_TOLERANCE:g}); "
    return Finding(name, each >= 0.99, detail + f"left alone, {share:.1%} stay together")


def _speed(env: Env) -> Finding:
    parts = []
    for device, lanes in [("cpu", 65_536)] + ([("cuda", 1 << 20)] if torch.cuda.is_available() else []):
        trial, generator = Trial(env, lanes, 1, device), np.random.default_rng(1)
        trial.reset()
        action = trial_actions(env, generator, 0, lanes).to(device)
        best = math.inf
        for _ in range(4):  # the first compiles
            began = time.perf_counter()
            for _ in range(20):
                trial.step(action)
            if device == "cuda":
                torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - began) / 20)
        what = f"the CPU ({get_num_threads()} threads)" if device == "cpu" else torch.cuda.get_device_name()
        parts.append(f"{lanes / best / 1e6:,.0f} M steps/s on {what} with {lanes:,} lanes")
    return Finding("speed", True, "; ".join(parts))


def _attempt(name: str, look: Callable[[], Finding]) -> Finding:
    """A finding, or the failure of whatever the author's code raised."""
    try:
        return look()
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {essence(error)}")


def check(env: Env, *, lanes: int = 256, steps: int = 1000) -> list[Finding]:
    """Everything that can be found out about an environment here, in order. Raises nothing for what an author can get wrong.

    The list ends early at a failure that later findings would only repeat.
    """
    problems = declaration_problems(env)
    findings = [Finding("declaration", not problems, "; ".join(problems) or f"{env.fields} fields, {env.observation.size} observed")]
    if problems:
        return findings
    guarded = _Guarded(env, min(lanes, 64))
    try:
        guarded.compile()
    except Exception as error:
        return [*findings, Finding("compiles for the CPU", False, essence(error))]
    if places := guarded.prints():
        return [*findings, Finding("compiles for the CPU", False, f"it prints, once for every lane and step: {'; '.join(places)}")]
    findings += [Finding("compiles for the CPU", True, "step and reset"), *_compiles_for_cuda(guarded)]
    findings.append(_attempt("keeps to its columns", lambda: _keeps_to_its_columns(guarded, min(steps, FREE_STEPS))))
    if not findings[-1].passed:
        return findings
    try:
        seen = long_trial(env, lanes, steps)
    except Exception as error:
        return [*findings, Finding("runs", False, f"{type(error).__name__}: {essence(error)}")]
    findings += _of_thelong_trial(env, seen, lanes, steps)
    if seen.not_repeated is None:
        findings.append(_attempt("writes what it declares", lambda: _writes_what_it_declares(env, lanes, min(steps, FREE_STEPS))))
    if env.shade is not None:
        findings.append(_attempt("picture", lambda: _picture(env)))
    if torch.cuda.is_available() and all(finding.passed for finding in findings):
        findings.append(_attempt("CPU = CUDA", lambda: _devices(env, lanes)))
    return [*findings, _attempt("speed", lambda: _speed(env))]


def _of_thelong_trial(env: Env, seen: Seen, lanes: int, steps: int) -> Iterator[Finding]:
    over = f"{steps:,} steps of {lanes:,} lanes"
    if seen.not_repeated is not None:
        advice = "draw random numbers by operant.rng alone, and keep no state outside s"
        yield Finding("repeatable", False, f"the same seed gave other bits at {seen.not_repeated}; {advice}")
    else:
        other = "another seed gives others" if seen.seed_matters else "another seed gives the same: it draws no random numbers"
        yield Finding("repeatable", True, f"the same seed gives the same bits over {over}; {other}")
    yield Finding("finite", seen.not_finite is None, seen.not_finite or f"under extreme and random actions, {over}")
    yield Finding("within bounds", seen.outside is None, f"{seen.outside}, outside the declared bounds" if seen.outside else f"observations, {over}")
    limit = "no time limit" if env.time_limit is None else f"time limit {env.time_limit:,}"
    ended = f"{seen.episodes:,.0f} episodes ended, mean length {seen.length:.1f}, mean return {seen.mean_return:.4g}" if seen.episodes else "none ended"
    yield Finding("episodes end", True, f"{ended} in {over} ({limit})")
