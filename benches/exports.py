"""Every shipped recipe, trained for some iterations and exported: what the files' check found. Prints a JSON line an export; what fails says so.

python benches/exports.py [--iterations 10] [--formats onnx,pt2,numpy] [--device auto] [--only ppo/snake,...] [--lanes 256] [--seconds 60]

One worker trains all runs. A check takes 200 steps of 5 lanes, those of a recipe with a memory carry its state.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from pathlib import Path

from operant import runs
from operant.config import recipes, request
from operant.export import policy
from operant.play import load_policy
from operant.runs.pool import Worker, wait


def trained(worker: Worker, place: Path, recipe: str, arguments: argparse.Namespace) -> runs.Run:
    """A run of a recipe after some iterations. Raises RuntimeError where that failed."""
    words = [f"run.device={arguments.device}", "run.threads=1", "eval.every=0"]
    config = request.make(words, config=recipe, environment_file=None, settings={}).load()
    lanes = arguments.lanes if not config.hosted and isinstance(config.env.lanes, int) and config.env.lanes > arguments.lanes else config.env.lanes
    words += [f"env.lanes={lanes}"] if not config.problems(lanes if isinstance(lanes, int) else 1) else []
    steps = (lanes if isinstance(lanes, int) else 1) * getattr(config.algo, "horizon", 16) * arguments.iterations
    asked = request.make([*words, f"run.steps={steps}"], config=recipe, environment_file=None, settings={})
    run = runs.create(place / "runs", None, asked.prefix, asked.document())
    worker.begin(run)
    until = time.monotonic() + arguments.seconds
    while (ended := worker.ended()) is None:
        wait([worker], 0.25)
        if time.monotonic() > until:  # with a checkpoint
            until = float("inf")
            worker.stop()
    if ended.code not in (0, 130):
        raise RuntimeError(runs.log_end(run)[-400:])
    return run


def main() -> None:
    """All recipes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--formats", default="onnx,pt2,numpy")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="")
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, at most")
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="exports-"))
    worker = Worker(place / "worker.log")
    for recipe in arguments.only.split(",") if arguments.only else recipes.shipped():
        try:
            began = time.perf_counter()
            run = trained(worker, place, recipe, arguments)
            seconds = time.perf_counter() - began
            loaded = load_policy.load(str(run.path), runs.Reach(place / "runs"), which="last", device="cpu", report=lambda line: None)
        except Exception as error:
            print(json.dumps({"recipe": recipe, "error": f"{type(error).__name__}: {str(error)[:300]}", "at": traceback.format_exc()[-300:]}), flush=True)
            continue
        for target in arguments.formats.split(","):
            began = time.perf_counter()
            row = {"recipe": recipe, "format": target, "memory": len(loaded.policy.initial_state(1)), "training_s": round(seconds, 2)}
            try:
                found = policy.write(loaded.policy, loaded.config.params, place / f"policy{policy.ENDINGS[target]}", target)
                row |= {key: value for key, value in found._asdict().items() if key in ("checked", "difference", "ties", "actor_rounding", "file_rounding")}
            except Exception as error:
                row |= {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            print(json.dumps(row | {"export_s": round(time.perf_counter() - began, 2)}), flush=True)
    worker.close()


if __name__ == "__main__":
    main()
