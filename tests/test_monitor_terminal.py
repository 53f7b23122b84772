"""The monitor as a person has it: the real command in a pseudo-terminal, beside a stand-in trainer that publishes a hundred records a second.

A trainer killed at any moment is shown as crashed at once, with the cause; a monitor killed, resized or multiplied is nothing to the trainer.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from operant import launch, runs
from operant.metricsfile import Reader
from operant.runfolder import Run, integer_of

BENCHES = Path(__file__).resolve().parent.parent / "benches"
sys.path.insert(0, str(BENCHES))
from terminal import Terminal  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals and /proc as Linux has them")

PATIENCE_S = 20.0  # a machine may be busy; what is asked for is measured, and held to in the soak run


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OPERANT_RUNS", str(tmp_path / "runs"))
    return tmp_path


def start(place: Path, name: str = "run-0001", hz: float = 100.0) -> Run:
    """A stand-in trainer under the real waiter, which writes exit.json; returns once its first record is there."""
    run = runs.create(place / "runs", name, name, {"config": None, "overrides": [], "directory": str(place)})
    launch.start(run, [sys.executable, str(BENCHES / "standin.py"), str(run.path), str(hz), "0"])
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if run.metrics_path.exists():
            with Reader(run.metrics_path) as reader:
                if reader.latest() is not None:
                    return run
        time.sleep(0.02)
    raise AssertionError("the stand-in trainer did not begin")


def worker(run: Run) -> int:
    pid = integer_of(runs.read_json(run.path / "run.json"), "pid")
    assert pid
    return pid


def monitor(run: Run, place: Path, *more: str, **how: int) -> Terminal:
    return Terminal([sys.executable, "-m", "operant.cli", "monitor", str(run.path), *more], place, **how)


def kill(run: Run) -> None:
    with_pid = worker(run)
    os.kill(with_pid, signal.SIGKILL)


def crash_shown_after_s(place: Path, name: str, delay_s: float) -> float:
    """Kill the trainer `delay_s` after its monitor shows it, and wait for the screen to say so: seconds from the kill."""
    run = start(place, name)
    with monitor(run, place, columns=120, rows=36) as terminal:
        assert terminal.read(PATIENCE_S, until=lambda: b"unning" in terminal.text() or b"RUNNING" in terminal.text()), terminal.screen()
        terminal.read(delay_s)
        before = len(terminal.output)
        kill(run)
        killed_s = time.perf_counter()
        assert terminal.read(PATIENCE_S, until=lambda: b"crashed" in terminal.text(before).lower()), "\n".join(terminal.screen())
        shown_s = time.perf_counter() - killed_s
        # The cause comes with exit.json, and the way on with it.
        assert terminal.read(PATIENCE_S, until=lambda: b"SIGKILL" in terminal.text(before)), "\n".join(terminal.screen())
        terminal.press("q")
        assert terminal.wait(PATIENCE_S) == 0
    with Reader(run.metrics_path) as reader:
        last = reader.latest()
    assert last is not None and last.n > 0
    return shown_s


def test_a_killed_trainer_is_shown_as_crashed_with_its_cause(place):
    assert crash_shown_after_s(place, "run-0001", 0.3) < PATIENCE_S


@pytest.mark.soak
def test_a_hundred_killed_trainers_are_shown_within_a_second(place, record_property):
    draw = random.Random(1)
    times = sorted(crash_shown_after_s(place, f"run-{k:04d}", draw.uniform(0.0, 1.0)) for k in range(100))
    record_property("seconds until crashed, median and worst", (times[50], times[-1]))
    sys.stderr.write(f"\ncrash shown after: median {times[50]:.3f} s, worst {times[-1]:.3f} s\n")
    assert times[-1] <= 1.0


def gaps(run: Run) -> tuple[int, float]:
    """How many numbers are missing among the records of the ring, and the longest time between two, in seconds."""
    with Reader(run.metrics_path) as reader:
        records = reader.since(0)
    missing = records[-1].n - records[0].n + 1 - len(records)
    return missing, max((later.boottime_ns - earlier.boottime_ns) / 1e9 for earlier, later in itertools.pairwise(records))


def harass(place: Path, kills: int, monitors: int, resizes: int) -> None:
    """Monitors killed, resized and multiplied beside one trainer, whose records must not show it."""
    run = start(place)
    for _ in range(kills):
        with monitor(run, place, columns=100, rows=30) as terminal:
            assert terminal.read(PATIENCE_S, until=lambda terminal=terminal: b"return" in terminal.text())
            os.kill(terminal.pid, signal.SIGKILL)
            assert terminal.wait(PATIENCE_S) == -signal.SIGKILL
    with monitor(run, place) as terminal:
        assert terminal.read(PATIENCE_S, until=lambda: b"return" in terminal.text())
        draw = random.Random(1)
        for _ in range(resizes):
            terminal.resize(draw.randint(1, 200), draw.randint(1, 60))
            terminal.read(0.03)
        terminal.resize(160, 48)
        assert terminal.read(PATIENCE_S, until=lambda: b"return" in terminal.text()), "the screen did not come back"
        assert terminal.wait(0.0) is None
        terminal.press("q")
        assert terminal.wait(PATIENCE_S) == 0
    several = [monitor(run, place, columns=100, rows=30) for _ in range(monitors)]
    try:
        for terminal in several:
            assert terminal.read(PATIENCE_S, until=lambda terminal=terminal: b"return" in terminal.text())
    finally:
        for terminal in several:
            terminal.close()
    now = runs.load(run.path)
    assert now is not None and runs.state(now).word == "running"
    missing, longest_s = gaps(run)
    assert missing == 0 and longest_s < PATIENCE_S
    kill(run)


def test_what_happens_to_monitors_is_nothing_to_the_trainer(place):
    harass(place, kills=1, monitors=2, resizes=15)


@pytest.mark.soak
def test_a_hundred_killed_monitors_a_storm_of_sizes_and_ten_at_once_are_nothing_to_the_trainer(place):
    harass(place, kills=100, monitors=10, resizes=500)
