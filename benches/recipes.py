"""Train each shipped recipe that has a target with several seeds, and test the target on fresh episodes. JSON lines.

    python benches/recipes.py [RECIPE[:KEY=VALUE[,KEY=VALUE]] ...] [--seeds 1,2,3,4,5] [--episodes 16384]
        [--seconds 170]

A run ends like a user's: when its target is confirmed, or after all its steps. `said` is its last evaluation, `refused`
counts those that fresh episodes did not confirm. Then its final policy plays greedy episodes with another seed.
`training_s` is the time of the algorithm's phases, by the device's clock, without the first iteration; `wall_s` is that
of the whole run, including compilation and evaluations, without imports except in the first run. All recipes are
trained with one seed before the next; work beyond `--seconds` is skipped and named.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from operant import runs
from operant.config import load as configuration
from operant.config import recipes, request
from operant.runs.history import read
from operant.training import worker
from operant.training.evaluate import Evaluator
from operant.training.requests import Requests

FRESH_SEED = 10_007  # of the first seed; others follow, so that the results do not depend on one draw of episodes
_BETWEEN = ("seconds/evaluate", "seconds/checkpoint")


def trained_s(folder: Path) -> float:
    """Seconds that a run spent collecting and updating, without its first iteration, which compiles kernels.

    The first iteration's seconds are in the first record that has any: on a GPU in the second record, since the
    device's clock is read one iteration late.
    """
    columns = [chunk.columns for chunk in read(folder / "history")]
    names = [name for name in columns[0] if name.startswith("seconds/") and name not in _BETWEEN] if columns else []
    totals = [sum(values) for chunk in columns for values in zip(*(chunk[name] for name in names), strict=True)]
    compiled = next((k for k, total in enumerate(totals) if total > 0), len(totals))
    return sum(totals[compiled + 1 :])


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """Lines of evaluations.jsonl."""
    return [json.loads(line) for line in (folder / "eval" / "evaluations.jsonl").read_text().splitlines()]


def row(recipe: str, seed: int, overrides: list[str], episodes: int, root: Path) -> dict[str, Any]:
    """Train one recipe with one seed and play fresh episodes with its final policy."""
    asked = request.make(
        [*overrides, "checkpoint.every=1000000"], config=recipe, environment_file=None, settings={"run.seed": seed}
    )
    run = runs.create(root, None, asked.prefix, asked.document())
    requests = Requests()
    began_s = time.perf_counter()
    with requests:
        lock = runs.acquire(run.path)
        try:
            trainer, team = worker.prepare(run.path, resume=None, requests=requests)
            trainer.run(lock)
            team.end()
        finally:
            requests.restore()
            lock.release()
    wall_s = time.perf_counter() - began_s
    config = trainer.config
    fresh = Evaluator(
        trainer.algo.actor, config.environment, config.params, episodes=episodes, seed=FRESH_SEED + seed
    ).run(0)
    said, document = evaluations(run.path), runs.read_json(run.path / "run.json")
    refused = sum(not line["confirmation"]["reached"] for line in said if "confirmation" in line)
    ci95 = fresh.ci95 or 0.0
    return {
        "training_s": round(trained_s(run.path), 3),
        "wall_s": round(wall_s, 2),
        "steps": trainer.step,
        "target": config.run.target,
        "reached": document.get("target_reached"),
        "said": round(said[-1]["mean"], 3),
        "said_ci95": said[-1]["ci95"],
        "said_episodes": said[-1]["episodes"],
        "refused": refused,
        "evaluations": len(said),
        "fresh": round(fresh.mean, 3),
        "fresh_ci95": round(ci95, 4),
        "fresh_std": fresh.std,
        "holds": config.run.target is not None and fresh.mean >= config.run.target,
        "tally": {name: round(value, 4) for name, value in fresh.tally.items()},
        "last": [round(line["mean"], 2) for line in said[-6:]],
    }


def with_target() -> Iterator[str]:
    """Shipped recipes with a target."""
    for name in recipes.shipped():
        if configuration.load(recipes.find_source(name)).run.target is not None:
            yield name


def main() -> None:
    """Train, play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--episodes", type=int, default=16_384)
    parser.add_argument("--seconds", type=float, default=170.0)
    parser.add_argument("--override", nargs="*", default=[])
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(json.dumps({"device": where, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}), flush=True)
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()  # these runs stay out of the user's list
    end_s = time.perf_counter() + arguments.seconds
    for seed in map(int, arguments.seeds.split(",")):
        for wanted in arguments.recipes or with_target():
            name, _, more = wanted.partition(":")
            line: dict[str, Any] = {"recipe": wanted, "seed": seed}
            if time.perf_counter() > end_s:
                print(json.dumps(line | {"left_out": True}), flush=True)
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    overrides = [*arguments.override, *more.split(",")] if more else arguments.override
                    line |= row(name, seed, overrides, arguments.episodes, Path(folder))
                except Exception as error:  # continue with the other recipes
                    line |= {"error": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps(line), flush=True)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
