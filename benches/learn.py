"""Training time of the games' shipped configurations on this machine's GPU to a given mark. Prints Markdown for
benches/LOG.md.

    python benches/learn.py [NAME ...] [--seeds 1,2,3] [--limit 30] [--override section.key=value ...]

Seconds are those of collecting and updating, host and device together, without evaluations and without the first three
iterations, which compile and capture kernels. 512 greedy games are played after each half second, or tenth of the
elapsed time if that is longer. The first evaluation at the mark ends the run, and 1,024 fresh games with another seed
measure the policy. `--limit` counts the same seconds: a run that has not reached the mark by then is a miss, reported
with the curve of its evaluations.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from operant import algos
from operant.compute.runtime import find_device
from operant.config import load as configuration
from operant.config.load import Config
from operant.config.recipes import find_source
from operant.nn.policy import Policy
from operant.training.evaluate import Evaluation, Evaluator
from operant.worlds.device_world import DeviceWorld

WATCHED, FRESH = 512, 1024
"""Games of an evaluation during training, and at the end."""

FRESH_SEED = 10_007
LONGEST = 12_000  # steps of a game
SWING_S = 500
"""Steps after which the pole is up in a solved episode."""


class Mark(NamedTuple):
    """Criterion of success: the mean of a tally or of the return, and its minimum."""

    what: str
    least: float


MARKS = {
    "breakout": Mark("return", 860),
    "snake": Mark("length", 30),
    "platformer": Mark("goal", 0.9),
    "platformer_pixels": Mark("goal", 0.7),
    "pong": Mark("return", 20),
    "swingup": Mark("a step, once up", 3.5),
    "pacman": Mark("pickups", 200),
    "g2048": Mark("reached_2048", 0.5),
    "go": Mark("won", 0.95),
}


def settled(policy: Policy, config: Config) -> float:
    """Mean greedy reward per step from step `SWING_S` on, over 512 lanes (an ended lane counts with the reward after
    its next start).
    """
    world = DeviceWorld(
        config.environment, WATCHED, seed=FRESH_SEED, device=policy.device, params=config.params, stream=1
    )
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    total = torch.zeros((), dtype=torch.float64, device=policy.device)
    for t in range(2 * SWING_S - 1):
        slot.action.copy_(policy.act(slot.observation, ())[0])
        world.step(bound)
        world.advance(1)
        if t >= SWING_S:
            total += slot.reward.double().mean()
    return float(total) / (SWING_S - 1)


def found(mark: Mark, result: Evaluation, policy: Policy, config: Config) -> float:
    """Value of the mark's metric."""
    if mark.what == "return":
        return result.mean
    return result.tally[mark.what] if mark.what in result.tally else settled(policy, config)


def row(name: str, seed: int, limit_s: float, overrides: list[str], say: Callable[[str], None]) -> None:
    """Train one configuration with one seed; returns a line of the table."""
    mark, device = MARKS[name], find_device("auto")
    config = configuration.load(find_source(name), overrides)
    world = DeviceWorld(config.environment, config.lanes, seed=seed, device=device, params=config.params)
    algo: Any = algos.load(config.algo_name)(world, config.algo, config.net, seed=seed, steps=config.run.steps)
    evaluator = Evaluator(
        algo.policy, config.environment, config.params, episodes=WATCHED, seed=seed, max_steps=LONGEST
    )
    synchronise = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    algo.start()
    iterations, spent, looked, curve, value = 0, 0.0, 0.0, [], float("nan")
    while iterations * algo.steps_per_iteration < config.run.steps and spent < limit_s and not value >= mark.least:
        synchronise()
        began = time.perf_counter()
        while True:
            algo.collect()
            algo.update()
            iterations += 1
            if iterations <= 3 or iterations % 4 == 0:
                synchronise()  # synchronize, so that the clock measures completed work
                gone = time.perf_counter() - began
                if (
                    iterations <= 3
                    or spent + gone - looked >= max(0.5, looked / 10)
                    or iterations * algo.steps_per_iteration >= config.run.steps
                ):
                    break
        if iterations > 3:
            spent += gone
            looked = spent
            value = found(mark, evaluator.run(iterations), algo.policy, config)
            curve.append(f"{value:.3g}")
    fresh = Evaluator(
        algo.policy, config.environment, config.params, episodes=FRESH, seed=FRESH_SEED, max_steps=LONGEST
    ).run(0)
    steps, last = iterations * algo.steps_per_iteration, found(mark, fresh, algo.policy, config)
    reached = "ok" if value >= mark.least else f"MISSED: {', '.join(curve[-12:])}"
    kernels = algo.kernels
    say(
        f"| {name} | {seed} | {spent:.2f} | {steps / 1e6:.1f} | {steps / max(spent, 1e-9) / 1e6:.1f} | {kernels}, "
        f"{config.algo.precision} "
        f"| {mark.what} {value:.4g}, fresh {last:.4g} (return {fresh.mean:.4g}) | {mark.least:g} | {reached} |"
    )


def main() -> None:
    """Train, play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--limit", type=float, default=30.0)
    parser.add_argument("--override", nargs="*", default=[])
    arguments = parser.parse_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{where}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}\n", flush=True)
    print(
        "| configuration | seed | training s | M steps | M SPS | kernels | greedy games | mark | "
        "|\n|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in arguments.names or list(MARKS):
        for seed in (int(seed) for seed in arguments.seeds.split(",")):
            row(name, seed, arguments.limit, arguments.override, lambda line: print(line, flush=True))
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
