"""Speed of Operant on this machine (`operant bench`): stepping alone, PPO end to end, and time to solve CartPole.

Writes no run and prints nothing. Every figure is a median after a warm-up. Comparisons with other libraries: benches/.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from operant import __version__, envs, similar
from operant.compute.graphs import Graphed
from operant.compute.runtime import find_device, set_threads
from operant.config import load as config
from operant.config import recipes
from operant.envs import Box, Env
from operant.envs.physics import PhysicsEnv
from operant.errors import UsageError
from operant.nn import step_bytes
from operant.tools import profile
from operant.training import build as building
from operant.training.evaluate import Evaluator
from operant.worlds import DeviceWorld

SECTIONS = ("stepping", "ppo", "solve")
REPEATS = 5
RECIPE = "ppo/cartpole"
"""Shipped configuration that solves CartPole."""


class Stepping(NamedTuple):
    """Measured speed of stepping one environment with random actions, without learning."""

    environment: str
    lanes: int
    sps: float
    bytes_per_s: float  # lower bound: the bytes a step must read and write


class Training(NamedTuple):
    """Measured speed of PPO on CartPole (two 4-64-64 tanh networks, 4 epochs x 4 minibatches): the complete iteration
    and its phases.
    """

    lanes: int
    horizon: int
    precision: str
    kernels: str
    sps: float
    iteration_s: float
    collect_s: float
    update_s: float


class Solved(NamedTuple):
    """Measured time in which the shipped CartPole configuration reached its target, by the greedy mean return of 128
    episodes.
    """

    seed: int
    reached: bool
    training_s: float  # without the first two iterations (compilation and capture)
    whole_s: float  # with compilation, capture and evaluations, without imports
    steps: int
    mean_return: float


class Bench(NamedTuple):
    """Results of all measurements; a section that was not requested is []."""

    device: str
    threads: int
    load: float | None  # of the machine's last minute, before it starts
    versions: dict[str, str]
    repeats: int
    stepping: list[Stepping]
    ppo: list[Training]
    solve: list[Solved]

    def document(self) -> dict[str, Any]:
        """Convert the benchmark's results to a JSON-serialisable dict."""
        parts = {name: [row._asdict() for row in getattr(self, name)] for name in SECTIONS}
        return {"schema": 1, **self._asdict(), **parts}


# TIME


def seconds(work: Callable[[], object], device: torch.device, *, repeats: int = REPEATS, least_s: float = 0.2) -> float:
    """Measure one call of `work`: the median seconds over `repeats` timed regions, after a warm-up. Each region
    contains enough calls to last about `least_s`.

    On a GPU, regions are timed by CUDA events.
    """
    for _ in range(3):
        work()
    inner = max(1, round(least_s / max(_region_s(work, device, 1), 1e-7)))
    return statistics.median(_region_s(work, device, inner) / inner for _ in range(repeats))


def _region_s(work: Callable[[], object], device: torch.device, calls: int) -> float:
    """Time `calls` calls of `work` in seconds, on a GPU by CUDA events."""
    if device.type != "cuda":
        start_s = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - start_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


# MEASUREMENTS


def default_lanes(device: torch.device) -> tuple[int, ...]:
    """Numbers of lanes (parallel environments) that a benchmark of stepping uses on a device by default."""
    return (8192, 65_536, 1 << 20, 1 << 24) if device.type == "cuda" else (1024, 65_536)


def default_sizes(device: torch.device) -> tuple[tuple[int, int], ...]:
    """Sizes (lanes, horizon) that a benchmark of training uses on a device by default."""
    return ((2048, 16), (8192, 64), (65_536, 64)) if device.type == "cuda" else ((1024, 16),)


def stepping(env: Env, lanes: int, device: torch.device, *, repeats: int = REPEATS, least_s: float = 0.2) -> Stepping:
    """Measure how many steps per second an environment takes with random actions, precomputed in eight buffers (two
    above a million lanes). On a GPU many steps are one graph.
    """
    world = DeviceWorld(env, lanes, seed=1, device=device)
    slot = world.slot()
    world.reset(world.bind(slot))
    slots = [
        (action, world.bind(slot._replace(action=action)))
        for action in random_actions(env, slot.action, 8 if lanes <= 1 << 20 else 2)
    ]
    steps = 1 if device.type != "cuda" else 256 if lanes <= 1 << 17 else 64 if lanes <= 1 << 20 else 4
    calls_made = 0

    def work() -> None:
        nonlocal calls_made
        for t in range(steps):
            world.step(slots[calls_made % len(slots)][1], t)
            calls_made += 1
        world.advance(steps)

    rate = lanes * steps / seconds(Graphed(work, device), device, repeats=repeats, least_s=least_s)
    return Stepping(env.name, lanes, rate, rate * step_bytes(env))


def random_actions(env: Env, like: torch.Tensor, draws: int) -> list[torch.Tensor]:
    """Sample uniform random actions on the CPU: a list of `draws` tensors with the shape of `like`, moved to its
    device.
    """
    generator = torch.Generator().manual_seed(1)
    uniform = [torch.rand(like.shape, generator=generator) for _ in range(draws)]
    if isinstance(env.action, Box):
        low, high = (
            torch.tensor(bound, dtype=torch.float32)[:, None].clamp(-1e3, 1e3) for bound in env.action.bounds()
        )
        return [(low + (high - low) * draw).to(like.device) for draw in uniform]
    counts = torch.tensor(env.action.n).reshape(-1, 1)
    return [(draw * counts).to(torch.int32).clamp_(max=counts - 1).to(like.device) for draw in uniform]


def training(
    lanes: int, horizon: int, precision: str, device: torch.device, *, repeats: int = REPEATS, least_s: float = 0.5
) -> Training:
    """Measure the speed of PPO on CartPole with one size (lanes, horizon) and precision."""
    sizes = [f"env.lanes={lanes}", f"algo.horizon={horizon}", f"algo.precision={precision}"]
    algo = building.build(
        config.load(None, ["env.name=cartpole", "algo.anneal=false", "algo.learning_rate=2.5e-4", *sizes]), device
    )
    algo.start()
    runs = [phase.run for phase in algo.phases]

    def iteration() -> None:
        for run in runs:
            run()

    iteration_s = seconds(iteration, device, repeats=repeats, least_s=least_s)
    collect_s, update_s = (seconds(run, device, repeats=repeats, least_s=least_s / 2) for run in runs)
    kernels = profile.kernels_of(algo)
    shown = precision if device.type == "cuda" else "fp32"
    return Training(lanes, horizon, shown, kernels, lanes * horizon / iteration_s, iteration_s, collect_s, update_s)


def solve(seed: int, device: torch.device, overrides: Sequence[str] = ()) -> Solved:
    """Train the shipped CartPole configuration with `seed` until a greedy evaluation after an iteration reaches the
    target, or to the last step, and return the measured time. `overrides` change the configuration.
    """
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
    return Solved(
        seed, mean >= target, spent_s, time.perf_counter() - started, iteration * algo.steps_per_iteration, mean
    )


# ALL SECTIONS


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
    report: Callable[[str], None] = lambda line: None,
) -> Bench:
    """Run the measurements named in `sections` for each environment, number of lanes, size (lanes, horizon), precision
    or seed given; empty arguments take defaults for the device. `report` receives a line before each part.

    `environments` are names or files (default: all shipped). The first is stepped at every number of `lanes`, the
    others only at the largest up to a million. Raises UsageError for an unknown section, environment or device,
    MachineError if the device is not available.
    """
    wanted = tuple(sections)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        more = "; a comparison with JAX: benches/compare_jax.py in a checkout" if unknown[0] == "jax" else ""
        raise UsageError(f"unknown part {unknown[0]!r}: must be one of {', '.join(SECTIONS)}{more}")
    if not wanted:
        raise UsageError(f"no part given: must be one or more of {', '.join(SECTIONS)}")
    where = find_device(device)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    count = set_threads(threads)
    stepped, trained, solved = [], [], []
    if "stepping" in wanted:
        for env, number in stepping_plan(environments, tuple(lanes) or default_lanes(where)):
            report(f"stepping {env.name}, {number:,} lanes")
            stepped.append(stepping(env, number, where, repeats=repeats, least_s=least_s))
    if "ppo" in wanted:
        for number, horizon in tuple(sizes) or default_sizes(where):
            for precision in tuple(precisions) or (("bf16", "tf32", "fp32") if where.type == "cuda" else ("fp32",)):
                report(f"PPO, {number:,} lanes x {horizon}, {precision}")
                trained.append(training(number, horizon, precision, where, repeats=repeats, least_s=2 * least_s))
    if "solve" in wanted:
        for seed in seeds:
            report(f"solving CartPole, seed {seed}")
            solved.append(solve(seed, where))
    versions = {"operant": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else f"CPU, {count} threads"
    return Bench(name, count, load, versions, repeats, stepped, trained, solved)


def ordinary_names() -> list[str]:
    """List the shipped environments without robots, which take a thousand times as long and need `mujoco`."""
    return [name for name in envs.names() if not isinstance(envs.find(name), PhysicsEnv)]


def stepping_plan(environments: Sequence[str], lanes: Sequence[int]) -> list[tuple[Env, int]]:
    """List the pairs (environment, lanes) to step: the first environment (default CartPole) at every number of lanes,
    the others at the largest number up to a million. Raises UsageError for an unknown name. Robots are
    stepped only if they are named.
    """
    names = list(environments) or sorted(ordinary_names(), key=lambda name: (name != "cartpole", name))
    try:
        listed = [envs.find(name) for name in names]
    except KeyError as error:
        raise UsageError(
            similar.unknown_environment(error.args[0], envs.names(), others="your own file (my_env.py)")
        ) from None
    one = max((number for number in lanes if number <= 1 << 20), default=max(lanes))
    return [(listed[0], number) for number in lanes] + [(env, one) for env in listed[1:]]
