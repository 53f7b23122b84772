"""Time from a command to its first frame in a terminal, as after an installation: nothing compiled before.

    python benches/first_frame.py [POLICY ...] [--repeats 5] [--tree PATH]

Runs `operant eval zoo:POLICY --render term` in a pseudo-terminal of 140x45 with an empty cache of compiled kernels and
waits for the first cell of the agent's picture. Prints a Markdown table for benches/log: median, least and greatest
seconds, and those of an empty interpreter, as a measure of the machine's speed. `--tree` is the checkout to measure.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from terminal import Terminal

_CELL = "▀".encode()
_MOST_S = 120.0


def first_frame_s(policy: str, tree: Path) -> float:
    """Seconds from the start of the process to the first cell of a picture."""
    command = [sys.executable, "-m", "operant.cli", "eval", f"zoo:{policy}", "--render", "term"]
    with tempfile.TemporaryDirectory() as empty:
        places = {name: empty for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "NUMBA_CACHE_DIR")}
        terminal = Terminal(command, Path(empty), 140, 45, {**places, "PYTHONPATH": str(tree), "LC_ALL": "C.UTF-8"})
        with terminal:
            if not terminal.read(_MOST_S, until=lambda: _CELL in terminal.output):
                raise SystemExit(f"no picture: {bytes(terminal.output[-400:])!r}")
            return time.perf_counter() - terminal.began


def interpreter_s() -> float:
    """Seconds of an empty Python program."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure the policies in rotation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", default=["breakout", "cartpole", "snake"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    for _ in range(arguments.repeats):
        for policy in arguments.policies:
            seconds.setdefault(f"eval zoo:{policy} --render term", []).append(first_frame_s(policy, arguments.tree))
        seconds.setdefault("python -c pass", []).append(interpreter_s())
    print("| command | first frame, median s | least | greatest |\n|---|---|---|---|")
    for name, values in seconds.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |")


if __name__ == "__main__":
    main()
