"""Zoo: each recipe trained with several seeds, and the table of its results for the documentation.

    python benches/zoo.py [RECIPE ...] [--seeds 5] [--episodes 1024] [--device cpu] [--out benches/zoo.toml]

Trains with the command that a user types, in one process, and evaluates the last checkpoint greedily in fresh episodes.
A recipe's entry has: `mean_return` over seeds and `ci95`, half its 95 % interval (Student's t over seeds); `solved`,
the number of seeds that reach `target`; and means over seeds of environment `steps`, `wall_s` (the whole command) and
`cpu_s` (user and system time of all threads). `cpu_s` depends less than `wall_s` on other programs of the machine;
`load` is the machine's mean number of runnable threads during the runs, these included. Recipes that are not named keep
their entries. docs/hooks.py makes the page's table from the file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli
import tomli_w
from scipy.stats import t as student

from operant import __version__
from operant.config import recipes
from operant.config.load import load

_FAST = (
    "ppo/cartpole",
    "pqn/cartpole",
    "dqn/cartpole",
    "ppo/cartpole_continuous",
    "ppo/cartpole_positions",
    "ppo/memory_chain",
    "ppo/tmaze",
    "ppo/repeat_first",
    "ppo/repeat_previous",
    "ppo/mountaincar_continuous",
    "ppo/mountaincar",
    "ppo/pendulum",
    "ppo/acrobot",
)
"""Recipes that two CPU cores finish in a minute, the fastest first."""
_EVALUATION_SEED = 1_000_003


def trained(recipe: str, seed: int, device: str, episodes: int, place: Path) -> dict[str, float]:
    """Train one seed and evaluate it: mean return, steps, wall and CPU seconds."""
    name = f"{recipe.replace('/', '-')}-{seed}"
    operant = [sys.executable, "-m", "operant.cli"]
    words = ["train", "--config", recipe, "--seed", str(seed), "--device", device, "--name", name, "--inline"]
    began = time.monotonic()
    with (place / f"{name}.txt").open("w") as log:
        process = subprocess.Popen([*operant, *words, "--runs", str(place)], stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"{recipe}, seed {seed}: exit code {process.returncode}; see {log.name}")
    asked = ["eval", name, "--episodes", str(episodes), "--seed", str(_EVALUATION_SEED), "--json", "--runs", str(place)]
    done = subprocess.run([*operant, *asked, "--device", device], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return {
        "mean": found["greedy"]["mean"],
        "steps": found["step"],
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "load": os.getloadavg()[0],
    }


def entry(recipe: str, seeds: int, device: str, episodes: int, place: Path) -> dict[str, Any]:
    """Row of the table: all seeds of a recipe."""
    results = [trained(recipe, seed, device, episodes, place) for seed in range(1, seeds + 1)]
    returns = [result["mean"] for result in results]
    spread = statistics.stdev(returns) / seeds**0.5 * float(student.ppf(0.975, seeds - 1)) if seeds > 1 else None
    target = load(recipes.find_source(recipe)).run.target
    means = {key: statistics.mean(result[key] for result in results) for key in ("steps", "wall_s", "cpu_s", "load")}
    return {
        "mean_return": round(statistics.mean(returns), 3),
        **({} if spread is None else {"ci95": round(spread, 3)}),
        "seeds": seeds,
        "episodes": episodes,
        **({} if target is None else {"target": target, "solved": sum(value >= target for value in returns)}),
        "steps": round(means["steps"]),
        **{key: round(means[key], 1) for key in ("wall_s", "cpu_s", "load")},
        "device": f"{os.cpu_count()} CPU cores" if device == "cpu" else device,
        "version": __version__,
        "date": datetime.date.today().isoformat(),
        "command": f"operant train --config {recipe} --seeds {seeds}",
    }


def main() -> None:
    """Train, and write the table after each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=_FAST)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("zoo.toml"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for recipe in arguments.recipes:
            row = entry(recipe, arguments.seeds, arguments.device, arguments.episodes, Path(place))
            table = tomli.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.is_file() else {}
            arguments.out.write_text(tomli_w.dumps({**table, recipe: row}), encoding="utf-8")
            print(recipe, row, flush=True)


if __name__ == "__main__":
    main()
