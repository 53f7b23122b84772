"""What watching costs, measured as a person has it: a monitor in a pseudo-terminal of 160x48 beside a run that writes 100 records a second. Linux.

    python benches/monitor.py [--repeats 5] [--seconds 20] [--only first,cost,idle,keys] [--leet]

Prints one Markdown table for benches/LOG.md: time to first data, CPU of one core, bytes a second to the terminal, resident memory, key to paint.
`--leet` measures `wandb leet` (pip install wandb) in the same run, on a run that logs 8 metrics ten times a second. The run is a stand-in process of
this file that publishes 30 made-up metrics: what watching costs a trainer is benches/watch.py's matter.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from terminal import Terminal

COLUMNS, ROWS = 160, 48
NAMES = (
    "return", "length", "episodes", "iterations", "sps", "eval/return", "eval/best_return", "loss/policy", "loss/value", "entropy", "approx_kl",
    "clip_fraction", "gradient_norm", "explained_variance", "learning_rate", "seconds/collect", "seconds/update", "seconds/evaluate", "seconds/checkpoint",
    "memory/allocated_bytes", "memory/reserved_bytes", *(f"tally/score_{k}" for k in range(9)),
)  # fmt: skip


# THE RUNS THAT ARE WATCHED


def train(folder: Path, hz: float, records: int) -> None:
    """A stand-in trainer: `records` records of 30 metrics at `hz`, then the last word `finished`; 0 records: until it is killed."""
    from operant import runs
    from operant.metricsfile import Metric, Writer

    lock = runs.acquire(folder)
    total = 10_000_000_000 if not records else records * 16384
    document = runs.update_document(
        folder, **runs.identity(), phase="training", env="cartpole", algo="ppo", steps=total, target=475.0, device="cpu", device_name="CPU", seed=1, lanes=1024
    )
    writer = Writer(folder / "metrics.mm", [Metric(name) for name in NAMES], run_uuid=bytes.fromhex(document["uuid"]), version="bench")
    beating = threading.Event()

    def beat() -> None:
        while not beating.wait(0.25):
            writer.heartbeat()

    writer.heartbeat()
    threading.Thread(target=beat, daemon=True).start()
    writer.set_state("running")
    draw, began, n = random.Random(1), time.perf_counter(), 0
    while not records or n < records:
        n += 1
        climb = 500.0 * (1.0 - math.exp(-n / 3000.0))
        values = {"return": climb + draw.gauss(0, 15), "length": climb, "episodes": 40.0, "iterations": 1.0, "sps": 4.7e6 + draw.gauss(0, 5e4)}
        values |= {"eval/return": climb, "eval/best_return": climb, "seconds/collect": 0.003, "seconds/update": 0.006, "seconds/evaluate": 0.0}
        values |= {"approx_kl": 0.01 + draw.gauss(0, 0.001), "entropy": 0.69 * math.exp(-n / 5000.0), "explained_variance": 0.8, "clip_fraction": 0.1}
        writer.publish(n * 16384, [values.get(name, draw.gauss(1, 0.1)) for name in NAMES])
        writer.tick()
        if n % 500 == 0:
            writer.set_checkpoint(n * 16384)
        if hz:
            time.sleep(max(0.0, began + n / hz - time.perf_counter()))
    writer.set_state("finished")
    beating.set()
    lock.release()


def log_to_wandb(folder: Path) -> None:
    """A run of W&B's, offline: 8 metrics ten times a second until it is killed."""
    import wandb

    run = wandb.init(project="bench", mode="offline", dir=str(folder))
    n = 0
    while True:
        n += 1
        run.log({name: 500.0 * (1.0 - math.exp(-n / 300.0)) + random.gauss(0, 15) for name in NAMES[:8]})
        time.sleep(0.1)


# WHAT IS MEASURED


def first_data_ms(command: list[str], folder: Path, wanted: bytes) -> float:
    """From the start of the program to the first number of the run on the screen."""
    terminal = Terminal(command, folder, COLUMNS, ROWS)
    found = re.compile(wanted)
    terminal.read(20.0, until=lambda: bool(found.search(terminal.text())))
    elapsed = time.perf_counter() - terminal.began
    shown = bool(found.search(terminal.text()))
    terminal.close()
    return 1e3 * elapsed if shown else math.nan


def cost(command: list[str], folder: Path, seconds: float, settle_s: float = 4.0) -> tuple[float, float, float]:
    """Per cent of a core, kB/s to the terminal, and MB resident, over so many seconds once it has settled."""
    terminal = Terminal(command, folder, COLUMNS, ROWS)
    terminal.read(settle_s)
    before, cpu, began = len(terminal.output), terminal.cpu_s(), time.perf_counter()
    terminal.read(seconds)
    elapsed = time.perf_counter() - began
    result = 100 * (terminal.cpu_s() - cpu) / elapsed, (len(terminal.output) - before) / 1e3 / elapsed, terminal.memory_mb()
    terminal.close()
    return result


def key_to_paint_ms(command: list[str], folder: Path, key: str, presses: int = 40) -> list[float]:
    """From a key to the first bytes that come of it, each time after a quiet moment (the run must be a silent one)."""
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
    parser.add_argument("--train", nargs=3, metavar=("FOLDER", "HZ", "RECORDS"), help=argparse.SUPPRESS)
    parser.add_argument("--wandb", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(Path(arguments.train[0]), float(arguments.train[1]), int(arguments.train[2]))
    elif arguments.wandb:
        log_to_wandb(Path(arguments.wandb))
    else:
        measure(arguments, set(arguments.only.split(",")))


def measure(arguments: argparse.Namespace, wanted: set[str]) -> None:
    """All that is wanted, one row a program."""
    from operant import runs

    operant = [sys.executable, "-m", "operant.cli", "monitor"]
    children: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "runs")
        os.environ["XDG_STATE_HOME"] = temporary
        live, ended = (runs.create(root, name, name, {"config": None, "overrides": [], "directory": temporary}) for name in ("live-0001", "ended-0002"))
        for run, hz, records in ((live, "100", "0"), (ended, "0", "5000")):
            children.append(subprocess.Popen([sys.executable, __file__, "--train", str(run.path), hz, records]))
        children[1].wait()
        time.sleep(3.0)
        watch = [*operant, str(live.path)]
        print(f"load before: {os.getloadavg()[0]:.2f}; {psutil.cpu_count()} cores; terminal {COLUMNS}x{ROWS}\n")
        print("| what | first data ms | CPU % of a core | kB/s | MB | key to paint ms, median / p95 |\n|---|---|---|---|---|---|")
        try:
            row(arguments, wanted, "operant monitor, 100 records/s, 4 Hz", watch, Path(temporary), rb"return\s+[\d.]+")
            if "cost" in wanted:
                row(arguments, {"cost"}, "the same, 10 Hz", [*watch, "--fps", "10"], Path(temporary), b"")
            idle = {"cost"} & {"cost" if "idle" in wanted else ""} | {"keys"} & wanted
            row(arguments, idle, "operant monitor, a finished run", [*operant, str(ended.path)], Path(temporary), b"", key="s")
            if arguments.leet:
                children.append(subprocess.Popen([sys.executable, __file__, "--wandb", temporary], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                time.sleep(10.0)
                leet = [str(Path(sys.executable).with_name("wandb")), "leet", str(next(Path(temporary, "wandb").glob("offline-run-*")))]
                row(arguments, wanted - {"keys"}, "wandb leet, 8 metrics, 10 records/s", leet, Path(temporary), rb"eval/return|entropy|loss/policy")
        finally:
            for child in children:
                child.send_signal(signal.SIGKILL)
                child.wait()


def row(arguments: argparse.Namespace, wanted: set[str], name: str, command: list[str], folder: Path, first: bytes, key: str = "s") -> None:
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
