"""Latency of commands at the shell: reading commands and TAB completion, with many runs on disk.

    python benches/commands.py [--runs 200] [--repeats 15]

Creates run folders like those of training (a metrics file with 30 metrics and 1,024 records, run.json, exit.json; one
in ten crashed), then measures each command from start to end, in rotation. Prints a Markdown table for benches/LOG.md:
median, slowest tenth, and the ratio to an empty interpreter, as a measure of the machine's speed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from operant import runs
from operant.runs.metrics import Metric, Writer

METRICS = [
    Metric(name)
    for name in (
        "return",
        "length",
        "episodes",
        "iterations",
        "sps",
        "eval/return",
        "eval/best_return",
        *(f"loss/{k}" for k in range(23)),
    )
]


def make(root: Path, count: int) -> None:
    """Create `count` finished runs."""
    for k in range(count):
        run = runs.create(root, None, "cartpole-ppo", {"config": None})
        crashed = k % 10 == 0
        with Writer(run.metrics_path, METRICS, run_uuid=run.uuid, version="0.1.0") as writer:
            writer.heartbeat()
            for n in range(1024):
                writer.publish(1000 * n, [float(n)] * 30)
            if not crashed:
                writer.set_state("finished")
        runs.write_json(
            run.exit_path,
            {"exit": None if crashed else 0, "signal": 9 if crashed else None, "ended_realtime_ns": time.time_ns()},
        )
        runs.update_document(
            run.path, env="cartpole", algo="ppo", steps=1_024_000, seed=k, lanes=1024, device="cpu", pid=1, session=1
        )


def commands(last: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Measured commands: words after `operant`, and the environment variables of TAB completion."""

    def tab(line: str) -> dict[str, str]:
        return {
            "_OPERANT_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
        }

    return {
        "runs": (["runs"], {}),
        "runs --json": (["runs", "--json"], {}),
        "show RUN": (["show", last[-4:]], {}),
        "logs RUN, without one": (["logs", last], {}),
        "TAB: operant sh": ([], tab("operant sh")),
        "TAB: operant show cart": ([], tab("operant show cart")),
        "TAB: operant train pend": ([], tab("operant train pend")),
        "TAB: operant train --config ": ([], tab("operant train --config ")),
        "--help": (["--help"], {}),
    }


def measure(command: list[str], folder: Path, extra: dict[str, str]) -> float:
    """Duration of a command, ms."""
    began = time.perf_counter()
    subprocess.run(
        command, cwd=folder, env=os.environ | extra, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        os.environ.pop("OPERANT_RUNS", None)
        make(folder / "runs", arguments.runs)
        program = [sys.executable, "-c", "from operant.cli import main; main()"]
        asked = {"python -c pass": ([sys.executable, "-c", "pass"], {})}
        asked |= {
            label: ([*program, *words], extra)
            for label, (words, extra) in commands(runs.list_ids(folder / "runs")[0]).items()
        }
        found: dict[str, list[float]] = {label: [] for label in asked}
        for round_ in range(arguments.repeats + 1):
            for label, (command, extra) in asked.items():
                took = measure(command, folder, extra)
                if round_:  # the first is for the caches
                    found[label].append(took)
    bare = statistics.median(found["python -c pass"])
    print(
        f"| command, {arguments.runs} runs, n = {arguments.repeats} | median ms | slowest tenth ms | x an interpreter "
        "that does nothing |"
    )
    print("|---|---|---|---|")
    for label, times in found.items():
        print(
            f"| `{label}` | {statistics.median(times):.0f} | {sorted(times)[int(0.9 * (len(times) - 1))]:.0f} | "
            f"{statistics.median(times) / bare:.1f} |"
        )


if __name__ == "__main__":
    main()
