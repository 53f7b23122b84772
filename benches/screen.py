"""Cost of the monitor for its user: in a pseudo-terminal of 160x48, on a run that writes 100 records per second. Linux.

    python benches/screen.py [--repeats 5] [--seconds 20] [--only first,cost,idle,keys] [--leet]

Prints one Markdown table for benches/LOG.md: time to first data, CPU as a fraction of one core, bytes per second to the
terminal, resident memory, latency from key to paint. `--leet` measures `wandb leet` (pip install wandb) in the same
run, on a run that logs 8 metrics ten times per second. The run is a stand-in (benches/standin.py) that publishes 30
synthetic metrics; the cost for a trainer is measured by benches/watch.py.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from terminal import Terminal

COLUMNS, ROWS = 160, 48
STANDIN = str(Path(__file__).with_name("standin.py"))


# WHAT IS MEASURED


def first_data_ms(command: list[str], folder: Path, wanted: bytes) -> float:
    """Milliseconds from the start of the program to the first value of the run on the screen."""
    terminal = Terminal(command, folder, COLUMNS, ROWS)
    found = re.compile(wanted)
    terminal.read(20.0, until=lambda: bool(found.search(terminal.text())))
    elapsed = time.perf_counter() - terminal.began
    shown = bool(found.search(terminal.text()))
    terminal.close()
    return 1e3 * elapsed if shown else math.nan


def cost(command: list[str], folder: Path, seconds: float, settle_s: float = 4.0) -> tuple[float, float, float]:
    """Per cent of a core, kB/s to the terminal, and resident MB, after the program has settled."""
    terminal = Terminal(command, folder, COLUMNS, ROWS)
    terminal.read(settle_s)
    before, cpu, began = len(terminal.output), terminal.cpu_s(), time.perf_counter()
    terminal.read(seconds)
    elapsed = time.perf_counter() - began
    result = (
        100 * (terminal.cpu_s() - cpu) / elapsed,
        (len(terminal.output) - before) / 1e3 / elapsed,
        terminal.memory_mb(),
    )
    terminal.close()
    return result


def key_to_paint_ms(command: list[str], folder: Path, key: str, presses: int = 40) -> list[float]:
    """Milliseconds from a key to its first output, each after a quiet moment (the run must be silent)."""
    terminal, times = Terminal(command, folder, COLUMNS, ROWS), []
    terminal.read(4.0)
    for _ in range(presses):
        terminal.read(0.15)
        before, began = len(terminal.output), time.perf_counter()
        terminal.press(key)
        terminal.read(1.0, until=lambda before=before: len(terminal.output) > before)
        if len(terminal.output) > before:
            times.append(1e3 * (time.perf_counter() - began))
    terminal.close()
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What watching a run costs, in a pseudo-terminal")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default="first,cost,idle,keys")
    parser.add_argument("--leet", action="store_true")
    arguments = parser.parse_args()
    measure(arguments, set(arguments.only.split(",")))


def measure(arguments: argparse.Namespace, wanted: set[str]) -> None:
    """All selected measurements, one row per program."""
    from operant import runs

    operant = [sys.executable, "-m", "operant.cli", "monitor"]
    children: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "runs")
        os.environ["XDG_STATE_HOME"] = temporary
        live, ended = (
            runs.create(root, name, name, {"config": None, "overrides": [], "directory": temporary})
            for name in ("live-0001", "ended-0002")
        )
        for run, hz, records in ((live, "100", "0"), (ended, "0", "5000")):
            children.append(subprocess.Popen([sys.executable, STANDIN, str(run.path), hz, records]))
        children[1].wait()
        time.sleep(3.0)
        watch = [*operant, str(live.path)]
        print(f"load before: {os.getloadavg()[0]:.2f}; {psutil.cpu_count()} cores; terminal {COLUMNS}x{ROWS}\n")
        print(
            "| what | first data ms | CPU % of a core | kB/s | MB | key to paint ms, median / p95 "
            "|\n|---|---|---|---|---|---|"
        )
        try:
            row(arguments, wanted, "operant monitor, 100 records/s, 4 Hz", watch, Path(temporary), rb"return\s+[\d.]+")
            if "cost" in wanted:
                row(arguments, {"cost"}, "the same, 10 Hz", [*watch, "--fps", "10"], Path(temporary), b"")
            idle = {"cost"} & {"cost" if "idle" in wanted else ""} | {"keys"} & wanted
            row(
                arguments,
                idle,
                "operant monitor, a finished run",
                [*operant, str(ended.path)],
                Path(temporary),
                b"",
                key="s",
            )
            if arguments.leet:
                children.append(
                    subprocess.Popen(
                        [sys.executable, STANDIN, "--wandb", temporary],
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
                time.sleep(10.0)
                leet = [
                    str(Path(sys.executable).with_name("wandb")),
                    "leet",
                    str(next(Path(temporary, "wandb").glob("offline-run-*"))),
                ]
                row(
                    arguments,
                    wanted - {"keys"},
                    "wandb leet, 8 metrics, 10 records/s",
                    leet,
                    Path(temporary),
                    rb"eval/return|entropy|loss/policy",
                )
        finally:
            for child in children:
                child.send_signal(signal.SIGKILL)
                child.wait()


def row(
    arguments: argparse.Namespace,
    wanted: set[str],
    name: str,
    command: list[str],
    folder: Path,
    first: bytes,
    key: str = "s",
) -> None:
    """One line of the table."""
    cells = ["", "", "", "", ""]
    if "first" in wanted and first:
        cells[0] = f"{statistics.median(first_data_ms(command, folder, first) for _ in range(arguments.repeats)):.0f}"
    if "cost" in wanted:
        cpu, rate, memory = cost(command, folder, arguments.seconds)
        cells[1:4] = f"{cpu:.1f}", f"{rate:.1f}", f"{memory:.0f}"
    if "keys" in wanted and first == b"" and (times := sorted(key_to_paint_ms(command, folder, key))):
        cells[4] = f"{statistics.median(times):.1f} / {times[int(0.95 * (len(times) - 1))]:.1f}"
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
