"""Effect of hyperparameters that no shipped recipe sets: each recipe is trained with and without the key. JSON lines.

    OUT=FOLDER python benches/keys.py [--only normalize_advantages,flicker] [--seeds 1,2,3] [--workers 8]
        [--seconds 500] [--tiny]

A row is a key with a recipe. Its two sides differ in the words given, and train the same number of steps with every
seed. After each tenth of the steps 1,024 fresh greedy games measure the policy: `final` is the mean return after the
last tenth, `mean` that over all tenths (the speed of learning). Processes train sides of rows in parallel; no process
starts a seed after `--seconds`. With `--tiny` each side takes two iterations of a few lanes on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any, NamedTuple

from records import Records, side_by_side

POINTS, GAMES, FRESH_SEED = 10, 1024, 10_007
TINY = "env.lanes=8 algo.kernels=torch"


class Row(NamedTuple):
    """Key, recipe, environment steps, overrides of the two sides and of both, and the longest measured game."""

    key: str
    recipe: str
    steps: float
    with_key: str
    without: str
    both: str = ""
    longest: int = 1000


ROWS = (
    Row("normalize_advantages", "ppo/pong", 8e6, "algo.normalize_advantages=true", "algo.normalize_advantages=false"),
    Row(
        "normalize_advantages", "ppo/swingup", 20e6, "algo.normalize_advantages=true", "algo.normalize_advantages=false"
    ),
    Row("max_gradient_norm", "ppo/repeat_previous", 4e6, "algo.max_gradient_norm=0.5", "algo.max_gradient_norm=1e9"),
    Row("max_gradient_norm", "ppo/pong", 8e6, "algo.max_gradient_norm=0.5", "algo.max_gradient_norm=1e9"),
    Row("max_gradient_norm", "dqn/minatar_breakout", 4e6, "algo.max_gradient_norm=10", "algo.max_gradient_norm=0"),
    Row("epsilon_start", "dqn/minatar_breakout", 4e6, "algo.epsilon_start=1.0", "algo.epsilon_start=0.01"),
    Row("epsilon_start", "pqn/snake", 20e6, "algo.epsilon_start=1.0", "algo.epsilon_start=0.05"),
    Row("reward_scale", "pqn/cartpole", 2e6, "algo.reward_scale=0.1", "algo.reward_scale=1"),
    Row(
        "replay_sampling, priority_*",
        "dqn/minatar_breakout",
        2e6,
        "algo.replay_sampling=prioritised",
        "algo.replay_sampling=uniform",
    ),
    Row("target_noise", "td3/swingup", 2e6, "algo.target_noise=0.2", "algo.target_noise=0"),
    Row("target_noise", "td3/pendulum", 2e5, "algo.target_noise=0.2", "algo.target_noise=0"),
    Row("normalize_returns", "td3/fast", 4e6, "algo.normalize_returns=true", "algo.normalize_returns=false"),
    Row(
        "flicker with a memory",
        "ppo/pong",
        20e6,
        "net.memory=gru net.shared=true",
        "net.memory=none",
        "env.flicker=0.5",
    ),
    Row("flicker", "ppo/pong", 20e6, "env.flicker=0.5", "env.flicker=0"),
)


def train(task: tuple[Row, str, list[int], bool, float]) -> dict[str, Any]:
    """Train one side of a row with each seed; returns lists of returns, by seed."""
    import torch

    from operant.config import load as configuration
    from operant.config.recipes import find_source
    from operant.training.build import build
    from operant.training.evaluate import Evaluator

    row, words, seeds, tiny, until_s = task
    device = "cuda" if torch.cuda.is_available() else "cpu"
    curves, kernels, began_s = [], "", time.time()
    for seed in seeds:
        if time.time() > until_s:
            break
        more = [*words.split(), *row.both.split(), *(TINY.split() if tiny else ()), f"run.seed={seed}"]
        config = configuration.load(find_source(row.recipe), [*more, f"run.steps={int(row.steps)}"])
        algo = build(config, device)
        algo.start()
        iterations = 2 if tiny else max(POINTS, int(row.steps) // algo.steps_per_iteration)
        evaluator = Evaluator(
            algo.actor,
            config.environment,
            config.params,
            episodes=8 if tiny else GAMES,
            seed=FRESH_SEED + seed,
            max_steps=64 if tiny else row.longest,
        )
        curve, done = [], 0
        for point in range(1, (1 if tiny else POINTS) + 1):
            while done < iterations * point // (1 if tiny else POINTS):
                for phase in algo.phases:
                    phase.run()
                done += 1
            curve.append(round(evaluator.run(point).mean, 3))
        curves.append(curve)
        kernels = getattr(algo, "kernels", "") or algo.backend.name
        del algo, evaluator
        gc.collect()
    return {"curves": curves, "kernels": kernels, "seconds": round(time.time() - began_s, 1)}


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Mean and spread over seeds of the final and of the mean return."""
    final = [curve[-1] for curve in found["curves"]]
    mean = [statistics.fmean(curve) for curve in found["curves"]]
    return {"final": [round(value, 2) for value in final], "mean": [round(value, 2) for value in mean]}


def main() -> None:
    """Train all selected rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    rows = [row for row in ROWS if not asked.only or any(key in row.key for key in asked.only.split(","))]
    until_s = time.time() + asked.seconds
    tasks = [(row, words, seeds, asked.tiny, until_s) for row in rows for words in (row.with_key, row.without)]
    records = Records("keys")
    for task, found in side_by_side(train, tasks, workers=asked.workers, limit_s=asked.seconds + 60):
        row, words = task[:2]
        fields = {"key": row.key, "recipe": row.recipe, "steps": row.steps, "words": f"{words} {row.both}".strip()}
        records.add("side", **fields, **(found | summary(found) if isinstance(found, dict) else {"error": str(found)}))


if __name__ == "__main__":
    main()
