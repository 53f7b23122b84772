"""Checks of an environment against the contract (`operant check FILE.py`).

An author's mistake must be reported as a sentence that names the line, never as a traceback or a wrong number in
training. Each kind of mistake therefore has its own finding, and a failed finding ends the list if later ones depend on
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np
import torch
from numba import get_num_threads

from operant.compute.numba_errors import summary
from operant.compute.ptx import ARCHITECTURES, compile_ptx, float64_lines, undefined_calls
from operant.envs import Env
from operant.text import count
from operant.tools.rollouts import (
    DEVICE_TOLERANCE,
    Harness,
    RolloutResult,
    compare_devices,
    long_rollout,
    same_bits,
    shards_apart,
)
from operant.worlds import quick_check
from operant.worlds.bounds import PICTURE_SIDE, STEPS, BoundsChecked, rollout_actions, shade_index_error
from operant.worlds.quick_check import Finding

SHARD_STEPS = 20

_LAST = ("keeps to its columns", "runs")  # if one of these fails, later findings would only repeat it


def compiles_for_cuda(checked: BoundsChecked) -> list[Finding]:
    """Check that every function of the environment compiles to PTX and contains no float64 instructions; one finding
    each. It needs numba-cuda but no GPU. Without numba-cuda: a warning on a machine with a GPU, else a note.
    """
    if find_spec("numba_cuda") is None:
        has_gpu, detail = torch.cuda.is_available(), "not checked: it needs numba-cuda, pip install 'operant[gpu]'"
        detail += "" if has_gpu else " (no GPU needed)"
        return [Finding("compiles for CUDA", True, detail, warning=has_gpu, note=not has_gpu)]
    name, names = "compiles for CUDA", ", ".join(f"sm_{major}{minor}" for major, minor in ARCHITECTURES)
    instructions: list[str] = []
    for capability in ARCHITECTURES:
        for call in checked.calls_on_gpu():
            try:
                ptx = compile_ptx(*call, capability)
            except Exception as error:
                return [Finding(name, False, summary(error))]
            if calls := undefined_calls(ptx):
                return [Finding(name, False, f"calls functions that are not available on a GPU: {', '.join(calls)}")]
            instructions += float64_lines(ptx)
    compiled = Finding(name, True, names)
    if not instructions:
        return [compiled, Finding("float32 only", True, "no float64 instructions")]
    locations = checked.float64_places()
    detail = "; ".join(locations) if locations else f"the instruction `{instructions[0]}`"
    return [
        compiled,
        Finding("float32 only", False, f"float64 arithmetic; write every literal as float32(...): {detail}"),
    ]


def _writes_what_it_declares(env: Env, lanes: int, steps: int) -> Finding:
    """Check that the functions of an environment write all of their outputs. Two rollouts differ only in the previous
    contents of the buffers, so values that differ afterwards were not written, or were read before they were written.
    """
    name, generator = "writes what it declares", np.random.default_rng(1)
    harnesses = Harness(env, lanes, 1), Harness(env, lanes, 1)
    for t in range(steps + 1):
        action = rollout_actions(env, generator, t, lanes, harnesses[0].slot.legal)
        for harness, fill in zip(harnesses, (85, 42), strict=True):
            left_over = [
                harness.slot.observation,
                harness.slot.final_observation,
                harness.slot.legal,
                harness.world.lanes.workspace,
            ]
            for tensor in left_over + ([] if t else [harness.world.lanes.state, harness.world.lanes.int_state]):
                if tensor is not None:
                    tensor.fill_(fill)
            harness.step(action) if t else harness.reset()
        one, other = (harness.outcome() for harness in harnesses)
        who = "reset" if t == 0 else "step"
        if env.fields and (rows := _differing_rows(one["state"], other["state"])):
            what = "the previous episode" if t == 0 else "the workspace"
            return Finding(
                name, False, f"after `{who}`, s{rows} depends on values left by {what}: `{who}` must write it"
            )
        if env.int_state and (rows := _differing_rows(one["int_state"], other["int_state"])):
            return Finding(
                name,
                False,
                f"after `{who}`, int_state{rows[:8]} depend on earlier contents of int_state or workspace: `{who}` "
                "must write them",
            )
        for which in ("observation", "final observation"):
            if rows := _differing_rows(one[which], other[which]):
                return Finding(
                    name,
                    False,
                    f"`observe` leaves obs{rows} unwritten (the observation's declared size is {env.observation.size})",
                )
        if env.mask_size and (rows := _differing_rows(one["legal"], other["legal"])):
            return Finding(
                name,
                False,
                f"`legal` leaves mask{rows[:8]} unwritten (the action has {env.mask_size} choices), or reads the "
                "workspace",
            )
    if env.observation_shards and (wrong := shards_apart(env, lanes, min(steps, SHARD_STEPS))):
        return Finding(name, False, wrong)
    masks = ", legal the whole mask" if env.mask_size else ""
    masks += f", in {env.observation_shards} independent shards" if env.observation_shards else ""
    return Finding(name, True, f"reset writes the whole state, observe the whole observation{masks}")


def _differing_rows(one: torch.Tensor, other: torch.Tensor) -> list[int]:
    """Indices of the rows that are not bitwise equal in two tensors."""
    return [row for row in range(one.shape[0]) if not same_bits(one[row], other[row])]


def picture(checked: BoundsChecked) -> Finding:
    """Check the pixel shader by drawing small pictures of the lanes: it must stay within its buffers, change nothing,
    and return colours in [0, 1].
    """
    name, env, lanes = "picture", checked.env, checked.lanes
    assert env.pixel_shader is not None
    before = [None if tensor is None else tensor.clone() for tensor in (lanes.state, lanes.int_state)]
    try:
        colours = checked.draw()
    except IndexError:
        return Finding(name, False, shade_index_error(checked))
    for what, old, new in zip(("s", "int_state"), before, (lanes.state, lanes.int_state), strict=True):
        if old is not None and not same_bits(old, new):
            return Finding(
                name, False, f"`pixel_shader` writes into {what}, which belongs to training: it may only read"
            )
    if buffer := checked.overwritten_buffer():
        return Finding(name, False, f"`pixel_shader` writes outside {buffer}: it may only read")
    wrong = (~((colours >= 0.0) & (colours <= 1.0))).any(dim=-1)
    if bool(wrong.any()):
        lane, row, column = wrong.nonzero()[0].tolist()
        colour = ", ".join(f"{part:g}" for part in colours[lane, row, column].tolist())
        x, y = ((index + 0.5) / PICTURE_SIDE for index in (column, row))
        return Finding(
            name,
            False,
            f"`pixel_shader` returned ({colour}) at x = {x:g}, y = {y:g}: red, green and blue must be within 0 to 1",
        )
    return Finding(
        name,
        True,
        f"{len(colours)} pictures of {PICTURE_SIDE} x {PICTURE_SIDE} pixels: every index valid, colours within 0 to 1",
    )


def _check_devices(env: Env, lanes: int) -> Finding:
    """Check that an environment's CPU and CUDA kernels agree on free rollouts; if these diverge, as chaotic dynamics
    do, compare step by step.
    """
    name, steps = "CPU = CUDA", STEPS
    share, worst = compare_devices(env, lanes, steps)
    if share >= 0.99:
        return Finding(
            name,
            True,
            f"{share:.1%} of lanes agree over {steps} free steps, largest error {worst:.1e} (tolerance "
            f"{DEVICE_TOLERANCE:g})",
        )
    each, worst = compare_devices(env, lanes, steps, resynchronise=True)
    detail = (
        f"{each:.1%} of lanes agree step by step over {steps} steps, largest error {worst:.1e} (tolerance "
        f"{DEVICE_TOLERANCE:g}); "
    )
    return Finding(name, each >= 0.99, detail + f"in free rollouts {share:.1%}")


def _measure_speed(env: Env) -> Finding:
    """Measure the environment's steps per second on the CPU and, if there is one, on a GPU."""
    parts = []
    for device, lanes in [("cpu", 65_536)] + ([("cuda", 1 << 20)] if torch.cuda.is_available() else []):
        harness, generator = Harness(env, lanes, 1, device), np.random.default_rng(1)
        harness.reset()
        action = rollout_actions(env, generator, 0, lanes).to(device)
        best = math.inf
        for _ in range(4):  # the first call compiles
            start_s = time.perf_counter()
            for _ in range(20):
                harness.step(action)
            if device == "cuda":
                torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - start_s) / 20)
        what = f"the CPU ({get_num_threads()} threads)" if device == "cpu" else torch.cuda.get_device_name()
        parts.append(f"{count(lanes / best)} steps/s on {what} with {lanes:,} lanes")
    return Finding("speed", True, "; ".join(parts))


def _run_check(name: str, run: Callable[[], Finding], report: Callable[[str], None]) -> Finding:
    """Run one check, passing its name to `report` before. If the author's code raises, return a failed finding."""
    report(name)
    try:
        with quick_check.muted():
            return run()
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {summary(error)}")


def check(
    env: Env, *, lanes: int = 256, steps: int = 1000, report: Callable[[str], None] = lambda name: None
) -> Iterator[Finding]:
    """Run every check of an environment, with `lanes` lanes for `steps` steps, and yield each finding. An author's
    mistake is a finding and raises nothing. `report` is called with the name of the next check, which may take minutes.

    Ends early at a failure that later findings would only repeat.
    """
    env = env.ready()
    yield (finding := quick_check.check_declaration(env))
    if not finding.passed:
        return
    report("compiles for the CPU")
    checked = BoundsChecked(env, min(lanes, quick_check.LANES))
    yield (finding := quick_check.check_compilation(checked))
    if not finding.passed:
        return
    yield from quick_check.check_prints(env)
    sound = True
    for finding in _compiled_findings(env, checked, lanes, steps, report):
        sound &= finding.passed
        yield finding
        if finding.name in _LAST and not finding.passed:
            return
    if torch.cuda.is_available() and sound:
        yield _run_check("CPU = CUDA", lambda: _check_devices(env, lanes), report)
    yield _run_check("speed", lambda: _measure_speed(env), report)


def _compiled_findings(
    env: Env, checked: BoundsChecked, lanes: int, steps: int, report: Callable[[str], None]
) -> Iterator[Finding]:
    """Yield the findings for an environment that compiles: CUDA, indices, a long rollout, writes and picture. If one
    named in `_LAST` fails, the caller must stop.
    """
    report("compiles for CUDA")
    yield from compiles_for_cuda(checked)
    yield _run_check("keeps to its columns", lambda: quick_check.check_indices(checked, min(steps, STEPS)), report)
    report("repeatable")
    try:
        with quick_check.muted():
            result = long_rollout(env, lanes, steps)
    except Exception as error:
        yield Finding("runs", False, f"{type(error).__name__}: {summary(error)}")
        return
    yield from _long_rollout_findings(env, result, lanes, steps)
    if result.not_repeated is None:
        yield _run_check(
            "writes what it declares", lambda: _writes_what_it_declares(env, lanes, min(steps, STEPS)), report
        )
    if env.pixel_shader is not None and result.not_finite is None:
        yield _run_check("picture", lambda: picture(checked), report)


def _long_rollout_findings(env: Env, result: RolloutResult, lanes: int, steps: int) -> Iterator[Finding]:
    """Yield the findings of a long rollout: repeatable, finite, within bounds, legal actions, ends of episodes."""
    over = f"{steps:,} steps of {lanes:,} lanes"
    if result.not_repeated is not None:
        advice = "draw random numbers only from operant.compute.rng, and keep no state outside s"
        yield Finding("repeatable", False, f"the same seed gave different bits at {result.not_repeated}; {advice}")
    else:
        other = (
            "a different seed gives different bits"
            if result.seed_matters
            else "a different seed gives the same bits: it draws no random numbers"
        )
        yield Finding("repeatable", True, f"the same seed gives the same bits over {over}; {other}")
    yield Finding("finite", result.not_finite is None, result.not_finite or f"under extreme and random actions, {over}")
    yield Finding(
        "within bounds",
        result.outside is None,
        f"{result.outside}, outside the declared bounds" if result.outside else f"observations, {over}",
    )
    if env.mask_size:
        tried = f"{result.legal_share:.0%} of actions legal; {result.illegal:,} illegal ones were also tried"
        yield Finding("legal actions", result.mask is None, result.mask or f"always at least one, {tried}, {over}")
    limit = "no time limit" if env.time_limit is None else f"time limit {env.time_limit:,}"
    ended = (
        f"{result.episodes:,.0f} episodes ended, mean length {result.length:.1f}, mean return {result.mean_return:.4g}"
        if result.episodes
        else "none ended"
    )
    warnings = () if result.episodes else quick_check.check_episodes_end(env, steps, lanes)
    yield next(iter(warnings), Finding("episodes end", True, f"{ended} in {over} ({limit})"))
