"""Trains each shipped configuration with several seeds, as a user would, and plays 1,024 fresh greedy episodes with the best checkpoint of each run.

    python benches/configs.py [NAME ...] [--seeds 1,2,3] [--episodes 1024]

Prints Markdown for benches/LOG.md. Seconds are of wall time from the command's start to its end, imports and compilation included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARKS = {"ppo": 475, "mountaincar": -110, "mountaincar_continuous": 90, "acrobot": -80, "pendulum": -170}
"""What counts as learnt: the thresholds of the field, for the configurations that ship."""


def operant(*words: str, folder: Path) -> str:
    """Run a command; its standard output."""
    program = [sys.executable, "-c", "from operant.cli import main; main()", *words]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Train, play, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MARKS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--episodes", default="1024")
    arguments = parser.parse_args()
    print("| configuration | seed | wall s | M steps | greedy return, fresh episodes | mark | |\n|---|---|---|---|---|---|---|", flush=True)
    for name in arguments.names or MARKS:
        for seed in arguments.seeds.split(","):
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                operant("train", "--config", name, "--seed", seed, "--runs", folder, folder=Path(folder))
                wall_s = time.perf_counter() - began
                (run,) = (str(path) for path in Path(folder).iterdir() if path.is_dir())
                steps = json.loads(operant("show", run, "--json", folder=Path(folder)))["step"]
                played = json.loads(operant("eval", run, "--episodes", arguments.episodes, "--greedy", "--json", folder=Path(folder)))
            mark, mean = MARKS[name], played["mean"]
            verdict = "ok" if mean >= mark else "MISSED"
            print(f"| {name} | {seed} | {wall_s:.0f} | {steps / 1e6:.2f} | {mean:.1f} ±{played['ci95']:.1f} | {mark} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
