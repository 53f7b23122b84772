"""Cost of a monitor for the run it watches: a real `operant train` and a real `operant monitor`. Linux.

    python benches/attached.py [--pairs 12] [--seconds 5] [--device auto] [key=value ...]

The monitor runs in a pseudo-terminal. Regions with and without it alternate, as does their order within a pair; each
region skips its first second, in which the monitor starts. Steps per second are computed from the records. Three
comparisons: the overview with the agent's picture (the default: the trainer steps and shades it), a page without the
agent, and no monitor twice, which measures the noise. Prints Markdown for benches/LOG.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from terminal import Terminal

OPERANT = [sys.executable, "-c", "from operant.cli import main; main()"]


def records_of(run: Path, seconds: float) -> list[tuple[int, int]]:
    """(boottime ns, step) of the records published in the next `seconds`."""
    from operant.runs.metrics import Reader

    with Reader(run / "metrics.mm") as reader:
        head = reader.status().head
        time.sleep(seconds)
        return [(record.boottime_ns, record.step) for record in reader.since(head)]


def rate(records: list[tuple[int, int]]) -> float:
    """Steps per second from the first to the last record."""
    (begin_ns, begin), (end_ns, end) = records[0], records[-1]
    return (end - begin) * 1e9 / (end_ns - begin_ns)


class Attached:
    """Monitor attached to a run; its output is drained like a terminal's."""

    def __init__(self, run: Path, keys: str) -> None:
        self.terminal = Terminal([*OPERANT, "monitor", str(run)], run.parent, 160, 48)
        self.terminal.read(0.9)
        if keys:
            self.terminal.press(keys)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._drain)
        self._thread.start()

    def _drain(self) -> None:
        while not self._over.is_set():
            self.terminal.read(0.1)

    def close(self) -> int:
        """Stop the monitor; returns the number of bytes it has written."""
        self._over.set()
        self._thread.join()
        written = len(self.terminal.output)
        self.terminal.close()
        return written


def region(run: Path, keys: str | None, seconds: float) -> float:
    """Steps per second with the given monitor command, or without a monitor (None)."""
    monitor = Attached(run, keys) if keys is not None else None
    if monitor is None:
        time.sleep(0.9)
    time.sleep(0.6)
    result = rate(records_of(run, seconds))
    if monitor is not None:
        monitor.close()
        time.sleep(0.3)
    return result


def compare(run: Path, name: str, keys: str | None, pairs: int, seconds: float) -> None:
    """One line of the table."""
    differences, plain = [], []
    for pair in range(pairs):
        order = (None, keys) if pair % 2 == 0 else (keys, None)
        rates = [region(run, one, seconds) for one in order]
        without, with_one = rates if pair % 2 == 0 else rates[::-1]
        plain.append(without)
        differences.append(100 * (with_one / without - 1))
    error = statistics.stdev(differences) / pairs**0.5
    print(
        f"| {name} | {pairs} | {statistics.median(plain) / 1e6:.2f} | {statistics.mean(differences):+.2f} ± "
        f"{error:.2f} "
        f"| {statistics.median(differences):+.2f} | {min(differences):+.2f} to {max(differences):+.2f} |",
        flush=True,
    )


def main() -> None:
    """Train, watch and compare."""
    parser = argparse.ArgumentParser(description="What a monitor costs the run it watches")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ |= {"OPERANT_RUNS": f"{temporary}/runs", "XDG_STATE_HOME": temporary}
        words = [
            "run.steps=100G",
            "eval.every=0",
            "checkpoint.every=1000000",
            "checkpoint.seconds=0",
            "algo.anneal=false",
            "algo.learning_rate=2.5e-4",
            *arguments.overrides,
        ]
        subprocess.run(
            [*OPERANT, "train", "--detach", "--name", "watched", "--device", arguments.device, *words], check=True
        )
        run = Path(temporary, "runs", "watched")
        try:
            region(run, "", 2.0)  # the first picture compiles its kernels
            print(
                "| monitor | pairs | M SPS without | difference %, mean ± standard error | median | range "
                "|\n|---|---|---|---|---|---|",
                flush=True,
            )
            compare(run, "none, twice", None, arguments.pairs, arguments.seconds)
            compare(run, "overview, with the agent", "", arguments.pairs, arguments.seconds)
            compare(run, "charts page", "2", arguments.pairs, arguments.seconds)
        finally:
            subprocess.run([*OPERANT, "stop", "watched"], check=False)


if __name__ == "__main__":
    main()
