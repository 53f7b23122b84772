"""How fast Operant is here: stepping alone, PPO end to end, and the time until CartPole is solved; beside a PPO in JAX where that is installed.

What `operant bench` does. Knows environments, PPO and the clock; writes no run and prints nothing. Every figure is a median after a warm-up.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from operant import __version__, envs
from operant.algos.ppo.algorithm import PPO, PPOConfig
from operant.compute.graphs import Graphed
from operant.compute.runtime import find_device, set_threads
from operant.config import load as config
from operant.config import recipes
from operant.envs import Box, Env
from operant.errors import UsageError
from operant.nn import mlp
from operant.nn.work import step_bytes
from operant.training import build as building
from operant.training.evaluate import Evaluator
from operant.worlds.device_world import World

SECTIONS = ("stepping", "ppo", "solve", "jax")
REPEATS = 5
RECIPE = "ppo/cartpole"
"""The shipped configuration that solves CartPole."""
JAX_PROGRAM = Path(__file__).resolve().parents[2] / "benches" / "jax_ppo.py"
_JAX_LIMIT_S = 900.0


class Stepping(NamedTuple):
    """Steps a second of one environment under random actions."""

    environment: str
    lanes: int
    sps: float
    bytes_per_s: float  # by what a step must touch at least


class Training(NamedTuple):
    """PPO on CartPole, two 4-64-64 tanh towers, 4 epochs x 4 minibatches: the whole of it, and its halves."""

    lanes: int
    horizon: int
    precision: str
    kernels: str
    sps: float
    iteration_s: float
    collect_s: float
    update_s: float


class Solved(NamedTuple):
    """The shipped configuration for CartPole, from nothing to its target: the greedy mean return of 128 episodes."""

    seed: int
    reached: bool
    training_s: float  # without the first two iterations, which compile and capture
    whole_s: float  # compilation, capture and evaluations included; imports are not
    steps: int
    mean_return: float


class Jax(NamedTuple):
    """The same PPO in JAX, and how much faster Operant was."""

    lanes: int
    horizon: int
    sps: float
    iteration_s: float
    ratio: float


class Bench(NamedTuple):
    """Everything that was measured; a part that was not asked for is empty."""

    device: str
    threads: int
    load: float | None  # of the machine's last minute, before it began
    versions: dict[str, str]
    repeats: int
    stepping: list[Stepping]
    ppo: list[Training]
    solve: list[Solved]
    jax: list[Jax]
    jax_said: str  # which JAX was used, or why none was

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        parts = {name: [row._asdict() for row in getattr(self, name)] for name in SECTIONS}
        return {"schema": 1, **self._asdict(), **parts}


# TIME


def seconds(work: Callable[[], object], device: torch.device, *, repeats: int = REPEATS, least_s: float = 0.2) -> float:
    """Median seconds of one call, over `repeats` regions of so many calls that each lasts about `least_s`, after a warm-up.

    On a GPU regions are timed by CUDA events.
    """
    for _ in range(3):
        work()
    inner = max(1, round(least_s / max(_region_s(work, device, 1), 1e-7)))
    return statistics.median(_region_s(work, device, inner) / inner for _ in range(repeats))


def _region_s(work: Callable[[], object], device: torch.device, calls: int) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - began
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


# WHAT IS MEASURED


def default_lanes(device: torch.device) -> tuple[int, ...]:
    """Lanes to step on a device."""
    return (8192, 65_536, 1 << 20, 1 << 24) if device.type == "cuda" else (1024, 65_536)


def default_sizes(device: torch.device) -> tuple[tuple[int, int], ...]:
    """Lanes x horizon to train with on a device."""
    return ((2048, 16), (8192, 64), (65_536, 64)) if device.type == "cuda" else ((1024, 16),)


def stepping(env: Env, lanes: int, device: torch.device, *, repeats: int = REPEATS, least_s: float = 0.2) -> Stepping:
    """Step a world under random actions (eight draws in turn; two of them beyond a million lanes), on a GPU in graphs of many steps."""
    world = World(env, lanes, seed=1, device=device)
    slot = world.slot()
    world.reset(world.bind(slot))
    slots = [(action, world.bind(slot._replace(action=action))) for action in _actions(env, slot.action, 8 if lanes <= 1 << 20 else 2)]
    steps = 1 if device.type != "cuda" else 256 if lanes <= 1 << 17 else 64 if lanes <= 1 << 20 else 4
    turn = 0

    def work() -> None:
        nonlocal turn
        for t in range(steps):
            world.step(slots[turn % len(slots)][1], t)
            turn += 1
        world.advance(steps)

    rate = lanes * steps / seconds(Graphed(work, device), device, repeats=repeats, least_s=least_s)
    return Stepping(env.name, lanes, rate, rate * step_bytes(env))


def _actions(env: Env, like: torch.Tensor, draws: int) -> list[torch.Tensor]:
    """Some buffers of uniform actions."""
    generator = torch.Generator().manual_seed(1)
    uniform = [torch.rand(like.shape, generator=generator) for _ in range(draws)]
    if isinstance(env.action, Box):
        low, high = (torch.tensor(bound, dtype=torch.float32)[:, None].clamp(-1e3, 1e3) for bound in env.action.bounds())
        return [(low + (high - low) * draw).to(like.device) for draw in uniform]
    counts = torch.tensor(env.action.n).reshape(-1, 1)
    return [(draw * counts).to(torch.int32).clamp_(max=counts - 1).to(like.device) for draw in uniform]


def training(lanes: int, horizon: int, precision: str, device: torch.device, *, repeats: int = REPEATS, least_s: float = 0.5) -> Training:
    """Train PPO on CartPole at one size."""
    settings = PPOConfig.model_validate({"horizon": horizon, "precision": precision, "anneal": False, "learning_rate": 2.5e-4})
    algo = PPO(World(envs.find("cartpole"), lanes, seed=1, device=device), settings, mlp.Config.model_validate({}), seed=1, steps=1 << 40)
    algo.start()

    def both() -> None:
        algo.collect()
        algo.update()

    iteration_s = seconds(both, device, repeats=repeats, least_s=least_s)
    collect_s, update_s = (seconds(half, device, repeats=repeats, least_s=least_s / 2) for half in (algo.collect, algo.update))
    kernels = next((name for name in ("fused", "manual_backward") if getattr(algo, name, None) is not None), "torch")
    shown = precision if device.type == "cuda" else "fp32"
    return Training(lanes, horizon, shown, kernels, lanes * horizon / iteration_s, iteration_s, collect_s, update_s)


def solve(seed: int, device: torch.device, overrides: Sequence[str] = ()) -> Solved:
    """Train by the shipped configuration until a greedy evaluation after some iteration reaches its target, or to its last step."""
    started = time.perf_counter()
    recipe = config.load(recipes.find_source(RECIPE), overrides)
    target = math.inf if recipe.run.target is None else recipe.run.target
    seeded = replace(recipe, run=recipe.run.model_copy(update={"seed": seed}))
    algo = building.build(seeded, device)
    evaluator = Evaluator(algo.actor, recipe.environment, recipe.params, episodes=128, seed=seed)
    algo.start()
    spent_s, iteration, mean = 0.0, 0, -math.inf

    def once() -> None:
        for phase in algo.phases:
            phase.run()

    while mean < target and iteration * algo.steps_per_iteration < recipe.run.steps:
        took_s = _region_s(once, device, 1)
        iteration += 1
        spent_s += took_s if iteration > 2 else 0.0
        mean = evaluator.run(iteration).mean
    return Solved(seed, mean >= target, spent_s, time.perf_counter() - started, iteration * algo.steps_per_iteration, mean)


# JAX


def jax_obstacle(python: str = sys.executable) -> str | None:
    """Why the PPO in JAX cannot be run by this Python, in a few words; None where it can."""
    if not JAX_PROGRAM.is_file():
        return "the comparison with JAX is in a checkout's benches, not in an installed package"
    try:
        asked = subprocess.run([python, "-c", "import jax"], capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return f"{python} cannot be run"
    return None if asked.returncode == 0 else f"JAX is not installed for {python}"


def jax_training(lanes: int, horizon: int, device: torch.device, *, python: str = sys.executable, repeats: int = REPEATS) -> tuple[dict[str, Any], str]:
    """The same PPO in JAX, in a process of its own: its figures, or else the reason why there are none."""
    command = [python, str(JAX_PROGRAM), "--json", "--lanes", str(lanes), "--horizon", str(horizon), "--repeats", str(repeats)]
    # A card that torch has used is not all free, and JAX would ask for three quarters of all of it.
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **({} if device.type == "cuda" else {"JAX_PLATFORMS": "cpu"})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_JAX_LIMIT_S, env=environment)
        return (json.loads(done.stdout), "") if done.returncode == 0 else ({}, (done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    except (subprocess.TimeoutExpired, ValueError, OSError) as error:
        return {}, f"{type(error).__name__} at {lanes:,} x {horizon}"


def _jax(rows: Sequence[Training], device: torch.device, python: str, repeats: int) -> tuple[list[Jax], str]:
    """JAX at the sizes that PPO was measured at (in the fastest precision), and what is to be said of it."""
    if obstacle := jax_obstacle(python):
        return [], f"no comparison with JAX: {obstacle}"
    found: list[Jax] = []
    said = ""
    fastest = {(row.lanes, row.horizon): max(other.sps for other in rows if (other.lanes, other.horizon) == (row.lanes, row.horizon)) for row in rows}
    for (lanes, horizon), sps in fastest.items():
        result, problem = jax_training(lanes, horizon, device, python=python, repeats=repeats)
        if not result:
            return found, f"JAX failed: {problem}"
        said = f"JAX {result['jax']} on {result['device']}, the same work by benches/jax_ppo.py"
        if (device.type == "cuda") != (result["platform"] in ("gpu", "cuda")):
            said += ", which is not the same device"
        found.append(Jax(lanes, horizon, result["sps"], result["iteration_s"], sps / result["sps"]))
    return found, said


# ALL OF IT


def bench(
    *,
    device: str = "auto",
    threads: int = 0,
    sections: Iterable[str] = SECTIONS,
    environments: Sequence[str] = (),
    lanes: Sequence[int] = (),
    sizes: Sequence[tuple[int, int]] = (),
    precisions: Sequence[str] = (),
    seeds: Sequence[int] = (1, 2, 3),
    repeats: int = REPEATS,
    least_s: float = 0.2,
    jax_python: str = sys.executable,
    report: Callable[[str], None] = lambda line: None,
) -> Bench:
    """Measure what is asked for; what is left empty takes on what suits the device. `report` takes a line before each part.

    `environments` are names or files (all that ship), of which all but the first are stepped at the largest of `lanes` up to a million alone.
    Raises UsageError for no section, and for a section, an environment or a device that there is not; MachineError where the device is not here.
    """
    wanted = tuple(sections)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        raise UsageError(f"unknown part {unknown[0]!r}: they are {', '.join(SECTIONS)}")
    if not wanted:
        raise UsageError(f"nothing is asked for: the parts are {', '.join(SECTIONS)}")
    where = find_device(device)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    count = set_threads(threads)
    stepped, trained, solved = [], [], []
    if "stepping" in wanted:
        for env, number in _stepping_plan(environments, tuple(lanes) or default_lanes(where)):
            report(f"stepping {env.name}, {number:,} lanes")
            stepped.append(stepping(env, number, where, repeats=repeats, least_s=least_s))
    if "ppo" in wanted or "jax" in wanted:
        for number, horizon in tuple(sizes) or default_sizes(where):
            for precision in tuple(precisions) or (("bf16", "tf32", "fp32") if where.type == "cuda" else ("fp32",)):
                report(f"PPO, {number:,} lanes x {horizon}, {precision}")
                trained.append(training(number, horizon, precision, where, repeats=repeats, least_s=2 * least_s))
    if "solve" in wanted:
        for seed in seeds:
            report(f"CartPole from nothing, seed {seed}")
            solved.append(solve(seed, where))
    compared: list[Jax] = []
    said = "no comparison with JAX: not asked for"
    if "jax" in wanted:
        report("PPO in JAX")
        if where.type == "cuda":
            torch.cuda.empty_cache()
        compared, said = _jax(trained, where, jax_python, repeats)
    versions = {"operant": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else f"CPU, {count} threads"
    return Bench(name, count, load, versions, repeats, stepped, trained, solved, compared, said)


def _stepping_plan(environments: Sequence[str], lanes: Sequence[int]) -> list[tuple[Env, int]]:
    """What to step: the first environment (CartPole, if none is named) at every number of lanes, the others at one."""
    names = list(environments) or sorted(envs.names(), key=lambda name: (name != "cartpole", name))
    try:
        found = [envs.find(name) for name in names]
    except KeyError as error:
        raise UsageError(f"unknown environment {error.args[0]!r}: name a file ending in .py, or one of {', '.join(envs.names())}") from None
    one = max((number for number in lanes if number <= 1 << 20), default=max(lanes))
    return [(found[0], number) for number in lanes] + [(env, one) for env in found[1:]]
