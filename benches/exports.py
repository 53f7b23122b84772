"""Train and export every shipped recipe, and print the result of each file's check as a JSON line.

    python benches/exports.py [--iterations 5] [--formats onnx,pt2,numpy,safetensors] [--device auto]
                              [--only ppo/snake,...] [--lanes 64] [--seconds 60] [--kept FILE]

One worker trains all runs with few lanes, small batches and one epoch; networks, inputs and heads are the recipe's. A
check takes 200 steps of 5 lanes; recipes with a memory carry their state. With `--kept` the lines are also appended to
that file, and recipes already in it are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from operant import runs
from operant.config import recipes, request
from operant.errors import OperantError
from operant.export import policy
from operant.play import load_policy
from operant.runs.pool import Worker, wait


def say(arguments: argparse.Namespace, **row: Any) -> None:
    """Print one JSON line."""
    line = json.dumps(row)
    print(line, flush=True)
    if arguments.kept:
        with arguments.kept.open("a") as file:
            file.write(line + "\n")


def smaller(recipe: str, arguments: argparse.Namespace) -> list[str]:
    """Overrides that shorten a recipe's iterations as far as it allows."""
    words = [f"run.device={arguments.device}", "run.threads=1", "eval.every=0"]
    config = request.make(words, config=recipe, environment_file=None, settings={}).load()
    most = {
        "env.lanes": 8 if config.hosted else arguments.lanes,
        "algo.horizon": 32,
        "algo.epochs": 1,
        "algo.batch_size": 256,
        "algo.learning_starts": 512,
    }
    for key, limit in most.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(config, section), name, None)
        if isinstance(value, int) and value > limit:
            with contextlib.suppress(OperantError):
                trial = request.make(
                    [*words, f"{key}={limit}"], config=recipe, environment_file=None, settings={}
                ).load()
                words += (
                    [] if isinstance(trial.env.lanes, int) and trial.problems(trial.env.lanes) else [f"{key}={limit}"]
                )
    return words


def trained(worker: Worker, place: Path, recipe: str, arguments: argparse.Namespace) -> runs.Run:
    """Run of a recipe after a few iterations. Raises RuntimeError if it failed."""
    words = smaller(recipe, arguments)
    config = request.make(words, config=recipe, environment_file=None, settings={}).load()
    lanes = config.env.lanes if isinstance(config.env.lanes, int) else 1
    steps = lanes * getattr(config.algo, "horizon", 16) * arguments.iterations + getattr(
        config.algo, "learning_starts", 0
    )
    asked = request.make([*words, f"run.steps={steps}"], config=recipe, environment_file=None, settings={})
    run = runs.create(place / "runs", None, asked.prefix, asked.document())
    worker.begin(run)
    limits = [time.monotonic() + arguments.seconds, time.monotonic() + 3 * arguments.seconds]
    while (ended := worker.ended()) is None:
        wait([worker], 0.25)
        if limits and time.monotonic() > limits[0]:
            del limits[0]
            if limits:  # with a checkpoint
                worker.stop()
            else:
                worker.close()
                raise RuntimeError(f"an iteration took more than {2 * arguments.seconds:g} s")
    if ended.code not in (0, 130):
        raise RuntimeError(runs.log_end(run)[-400:])
    return run


def main() -> None:
    """Export all recipes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--formats", default="onnx,pt2,numpy,safetensors")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="")
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of training")
    parser.add_argument("--kept", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="exports-"))
    worker = Worker(place / "worker.log")
    before = arguments.kept.read_text().splitlines() if arguments.kept and arguments.kept.exists() else []
    done = {row["recipe"] for row in map(json.loads, before) if "error" not in row}
    for recipe in arguments.only.split(",") if arguments.only else recipes.shipped():
        if recipe in done:
            continue
        try:
            began = time.perf_counter()
            run = trained(worker, place, recipe, arguments)
            seconds = time.perf_counter() - began
            loaded = load_policy.load(
                str(run.path), runs.Scope(place / "runs"), which="last", device="cpu", report=lambda line: None
            )
        except Exception as error:
            worker.close()
            worker = Worker(place / "worker.log")
            say(
                arguments,
                recipe=recipe,
                error=f"{type(error).__name__}: {str(error)[:300]}",
                at=traceback.format_exc()[-300:],
            )
            continue
        for target in arguments.formats.split(","):
            began = time.perf_counter()
            row = {"memory": len(loaded.policy.initial_state(1)), "step": loaded.step, "training_s": round(seconds, 2)}
            try:
                found = policy.write(
                    loaded.policy, loaded.config.params, place / f"policy{policy.ENDINGS[target]}", target
                )
                row |= {
                    key: value
                    for key, value in found._asdict().items()
                    if key in ("checked", "difference", "ties", "actor_rounding", "file_rounding")
                }
            except Exception as error:
                row |= {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            say(arguments, recipe=recipe, format=target, **row, export_s=round(time.perf_counter() - began, 2))
    worker.close()


if __name__ == "__main__":
    main()
