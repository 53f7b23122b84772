"""Train each shipped configuration with several seeds, then play 1,024 fresh greedy episodes with each best checkpoint.

    python benches/configs.py [NAME ...] [--seeds 1,2,3] [--episodes 1024] [--at-once 1]

Prints Markdown for benches/LOG.md. Wall seconds are those of the whole command, imports and compilation included.
Training seconds are those of collecting and updating, by the device's clock, without the first iteration, which loads
kernels. With `--at-once` above 1, runs share the machine and their seconds are not meaningful.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from operant.runs.history import read

MARKS = {
    "cartpole": 475,
    "cartpole_continuous": 475,
    "mountaincar": -110,
    "mountaincar_continuous": 90,
    "acrobot": -80,
    "pendulum": -170,
    "breakout": 860,
    "pong": 20,
    "snake": 26,
    "swingup": 3300,
}
"""Thresholds of success in greedy return, by environment: those of the field where they exist, otherwise this
project's. For snake, a return of 26 is a mean length of 30: three cells at the start, minus one for the death.
"""


def operant(*words: str, folder: Path) -> str:
    """Run a command; returns its standard output."""
    program = [sys.executable, "-c", "from operant.cli import main; main()", *words]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"operant {' '.join(words)}: {done.stderr}")
    return done.stdout


def trained_s(run: Path) -> float:
    """Seconds of collecting and updating after the first record; each record holds those since the previous one."""
    spent = [
        a + b
        for chunk in read(run / "history")
        for a, b in zip(chunk.columns["seconds/collect"], chunk.columns["seconds/update"], strict=True)
    ]
    return sum(spent[1:])


def row(name: str, seed: str, episodes: str) -> str:
    """Table row of one run and its games."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        operant("train", "--config", name, "--seed", seed, "--runs", folder, folder=Path(folder))
        wall_s = time.perf_counter() - began
        (run,) = (path for path in Path(folder).iterdir() if path.is_dir())
        steps = json.loads(operant("show", str(run), "--json", folder=Path(folder)))["step"]
        played = json.loads(
            operant("eval", str(run), "--episodes", episodes, "--greedy", "--json", folder=Path(folder))
        )
        seconds = trained_s(run)
    mark, mean = MARKS[name], played["mean"]
    verdict = "ok" if mean >= mark else "MISSED"
    return (
        f"| {name} | {seed} | {wall_s:.1f} | {seconds:.3f} | {steps / 1e6:.2f} | {mean:.1f} ±{played['ci95']:.1f} "
        f"| {mark} | {verdict} |"
    )


def main() -> None:
    """Train, play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MARKS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--episodes", default="1024")
    parser.add_argument("--at-once", type=int, default=1)
    arguments = parser.parse_args()
    print(
        "| configuration | seed | wall s | training s | M steps | greedy return, fresh episodes | mark | "
        "|\n|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    runs = [
        (name, seed, arguments.episodes) for name in arguments.names or MARKS for seed in arguments.seeds.split(",")
    ]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for line in pool.map(lambda run: row(*run), runs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
