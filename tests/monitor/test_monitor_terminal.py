"""The monitor as users run it: the real command in a pseudo-terminal, with a stand-in trainer that publishes a hundred
records a second.

A trainer killed at any moment is shown as crashed at once, with the cause; a monitor that is killed, resized or
multiplied does not affect the trainer. Other states of trainers (another namespace, a forked child) are tested in
test_launch.py, the end of a monitor with its terminal in test_monitor_command.py. Under soak a real trainer is killed,
resumed and stopped.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S

from monitor.data.feed import LiveFeed
from operant import runs
from operant.runs import control, launch
from operant.runs.folder import Run, integer_of
from operant.runs.metrics import Reader

BENCHES = Path(__file__).resolve().parents[2] / "benches"
sys.path.insert(0, str(BENCHES))
from terminal import Terminal  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals and /proc as Linux has them")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("OPERANT_RUNS", str(tmp_path / "runs"))
    yield tmp_path
    for run in runs.list_runs(tmp_path / "runs", everywhere=False):
        if pid := runs.holder(run.path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def start(place: Path, name: str = "run-0001", hz: float = 100.0) -> Run:
    """Start a stand-in trainer under the real waiter, which writes exit.json; returns after its first record."""
    run = runs.create(place / "runs", name, name, {"config": None, "overrides": [], "directory": str(place)})
    launch.start(run, [sys.executable, str(BENCHES / "standin.py"), str(run.path), str(hz), "0"])
    end = time.monotonic() + DEADLINE_S
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
    """Kill the trainer `delay_s` after its monitor shows it, and return the seconds until the screen
    shows the crash.
    """
    run = start(place, name)
    with monitor(run, place, columns=120, rows=36) as terminal:
        assert terminal.read(DEADLINE_S, until=lambda: b"unning" in terminal.text() or b"RUNNING" in terminal.text()), (
            terminal.screen()
        )
        terminal.read(delay_s)
        before = len(terminal.output)
        kill(run)
        killed_s = time.perf_counter()
        assert terminal.read(DEADLINE_S, until=lambda: b"crashed" in terminal.text(before).lower()), "\n".join(
            terminal.screen()
        )
        shown_s = time.perf_counter() - killed_s
        # The cause comes with exit.json, and the way on with it.
        assert terminal.read(DEADLINE_S, until=lambda: b"SIGKILL" in terminal.text(before)), "\n".join(
            terminal.screen()
        )
        terminal.press("q")
        assert terminal.wait(DEADLINE_S) == 0
    with Reader(run.metrics_path) as reader:
        last = reader.latest()
    assert last is not None and last.n > 0
    return shown_s


def test_a_killed_trainer_is_shown_as_crashed_with_its_cause(place):
    assert crash_shown_after_s(place, "run-0001", 0.3) < DEADLINE_S


@pytest.mark.soak
def test_a_hundred_killed_trainers_are_shown_within_a_second(place, record_property):
    draw = random.Random(1)
    times = sorted(crash_shown_after_s(place, f"run-{k:04d}", draw.uniform(0.0, 1.0)) for k in range(100))
    record_property("seconds until crashed, median and worst", (times[50], times[-1]))
    sys.stderr.write(f"\ncrash shown after: median {times[50]:.3f} s, worst {times[-1]:.3f} s\n")
    assert times[-1] <= 1.0


# STATES THAT ARE EASILY TAKEN FOR OTHERS


def until(feed: LiveFeed, holds: Callable[[Any], bool]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not holds(snapshot := feed.snapshot()):
        assert time.monotonic() < end, snapshot[:4]
        time.sleep(0.01)
    return snapshot


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_trainer_that_is_a_zombie_has_crashed(place):
    """Its waiter is stopped, so its exit code is not collected: the PID exists, and its parent is alive."""
    run = start(place)
    pid = worker(run)
    waiter = parent_of(pid)
    feed = LiveFeed(run)
    try:
        until(feed, lambda one: one.state == "running")
        os.kill(waiter, signal.SIGSTOP)
        until(feed, lambda _: process_state(waiter) == "T")  # before that it may still take the exit code
        os.kill(pid, signal.SIGKILL)
        crashed = until(feed, lambda one: one.state not in ("running", "stalled", "suspended"))
        assert process_state(pid) == "Z" and (crashed.state, crashed.cause) == ("crashed", "unknown")
        os.kill(waiter, signal.SIGCONT)
        assert until(feed, lambda one: one.cause != "unknown")[2:4] == ("crashed", "killed by SIGKILL")
    finally:
        os.kill(waiter, signal.SIGCONT)
        feed.close()


@pytest.mark.slow
def test_a_wall_clock_moved_by_a_day_changes_no_screen(place, monkeypatch):
    run = start(place)
    now, now_ns = time.time, time.time_ns
    feed = LiveFeed(run)
    try:
        until(feed, lambda one: one.state == "running")
        for moved_s in (86_400, -86_400):
            monkeypatch.setattr(time, "time", lambda moved_s=moved_s: now() + moved_s)
            monkeypatch.setattr(time, "time_ns", lambda moved_s=moved_s: now_ns() + moved_s * 10**9)
            step, seen = feed.snapshot().progress.step, []
            until(feed, lambda one, step=step, seen=seen: seen.append(one) or one.progress.step > step + 50 * 16384)
            assert {one.state for one in seen} == {"running"} and max(one.progress.up_s for one in seen) < 3600
        os.kill(worker(run), signal.SIGSTOP)
        until(feed, lambda one: one.state == "suspended")
        os.kill(worker(run), signal.SIGCONT)
        until(feed, lambda one: one.state == "running")
        kill(run)
        assert until(feed, lambda one: one.state not in ("running", "stalled"))[2:4] == ("crashed", "killed by SIGKILL")
    finally:
        feed.close()


# MONITORS ARE NOTHING TO THE TRAINER


class Watch:
    """Reads every record of a run as it arrives; counts missing ones and the longest interval in seconds."""

    def __init__(self, run: Run) -> None:
        self.count, self.missing, self.longest_s = 0, 0, 0.0
        self._run, self._over = run, threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        last = None
        with Reader(self._run.metrics_path) as reader:
            while not self._over.wait(0.2):
                for record in reader.since(0 if last is None else last.n + 1):
                    if last is not None:
                        self.missing += record.n - last.n - 1
                        self.longest_s = max(self.longest_s, (record.boottime_ns - last.boottime_ns) / 1e9)
                    self.count, last = self.count + 1, record

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def touches_nothing(pid: int, run: Run) -> None:
    """Whether a process has a run's files open only for reading and holds no lock on them."""
    modes = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        name = os.readlink(entry)
        if name.startswith(f"{run.path}/"):
            (flags,) = (
                line.split()[1]
                for line in Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().splitlines()
                if line.startswith("flags:")
            )
            modes[name] = int(flags, 8) & os.O_ACCMODE
    assert str(run.metrics_path) in modes and set(modes.values()) == {os.O_RDONLY}, modes
    assert not [line for line in Path("/proc/locks").read_text().splitlines() if line.split()[4] == str(pid)]
    assert not [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if str(run.path) in line]


def harass(place: Path, kills: int, monitors: int, resizes: int) -> None:
    """Kill, resize and multiply monitors of one trainer, whose records must not be affected."""
    run = start(place)
    with Watch(run) as watch:
        for _ in range(kills):
            with monitor(run, place, columns=100, rows=30) as terminal:
                assert terminal.read(DEADLINE_S, until=lambda terminal=terminal: b"return" in terminal.text())
                os.kill(terminal.pid, signal.SIGKILL)
                assert terminal.wait(DEADLINE_S) == -signal.SIGKILL
        with monitor(run, place) as terminal:
            assert terminal.read(DEADLINE_S, until=lambda: b"return" in terminal.text())
            touches_nothing(terminal.pid, run)
            draw = random.Random(1)
            for _ in range(resizes):
                terminal.resize(draw.randint(1, 200), draw.randint(1, 60))
                terminal.read(0.03)
            terminal.resize(160, 48)
            assert terminal.read(DEADLINE_S, until=lambda: b"return" in terminal.text()), "the screen did not come back"
            assert terminal.wait(0.0) is None
            terminal.press("q")
            assert terminal.wait(DEADLINE_S) == 0
        several = [monitor(run, place, columns=100, rows=30) for _ in range(monitors)]
        try:
            for terminal in several:
                assert terminal.read(DEADLINE_S, until=lambda terminal=terminal: b"return" in terminal.text())
        finally:
            for terminal in several:
                terminal.close()
        now = runs.load(run.path)
        assert now is not None and runs.state(now).word == "running"
    sys.stderr.write(
        f"\n{watch.count} records read, {watch.missing} missing, the longest wait for one {watch.longest_s:.3f} s\n"
    )
    assert watch.count > 100 and watch.missing == 0 and watch.longest_s < DEADLINE_S
    kill(run)


@pytest.mark.slow
def test_killed_monitors_do_not_affect_the_trainer(place):
    harass(place, kills=1, monitors=2, resizes=15)


@pytest.mark.soak
def test_many_killed_resized_and_concurrent_monitors_do_not_affect_the_trainer(place):
    harass(place, kills=100, monitors=10, resizes=500)


# A REAL TRAINER, AGAIN AND AGAIN

LONG = (
    "env.lanes=64",
    "algo.horizon=16",
    "run.threads=1",
    "run.device=cpu",
    "run.steps=1G",
    "checkpoint.every=5",
    "eval.every=0",
    "--name",
    "long",
)


def operant(place: Path, *words: str) -> None:
    variables = os.environ | {"PYTHONPATH": str(BENCHES.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "operant.cli", *words],
        cwd=place,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_one_run_is_killed_a_hundred_times_and_resumed_each_time_under_one_monitor(place):
    operant(place, "train", *LONG, "--detach")
    run = runs.load(place / "runs" / "long")
    draw, times = random.Random(1), []
    with monitor(run, place, columns=120, rows=36) as terminal:

        def says(word: str) -> Callable[[], bool]:
            return lambda: word in terminal.screen()[0]

        for session in range(1, 101):
            assert terminal.read(DEADLINE_S, until=says("RUNNING")), terminal.screen()
            run = runs.load(run.path)
            assert run.document["session"] == session
            before = sorted(run.checkpoints_path.glob("step-*"))
            assert terminal.read(
                DEADLINE_S,
                until=lambda run=run, before=before: sorted(run.checkpoints_path.glob("step-*"))[-1:] != before[-1:],
            )
            terminal.read(draw.uniform(0.0, 0.5))
            kill(run)
            killed_s = time.perf_counter()
            assert terminal.read(DEADLINE_S, until=says("CRASHED")), terminal.screen()
            times.append(time.perf_counter() - killed_s)
            assert terminal.read(DEADLINE_S, until=lambda: terminal.shows("killed by SIGKILL")), terminal.screen()
            with Reader(run.metrics_path) as reader:
                last = reader.latest()
            assert last is not None and last.step > 0
            operant(place, "resume", "long", "--detach")
        run = runs.load(run.path)
        assert terminal.read(DEADLINE_S, until=says("RUNNING")), terminal.screen()
        asked_s = time.perf_counter()
        ticket = control.send(run, "stop")
        assert control.answer(run, ticket, DEADLINE_S).result in ("accepted", "done")
        answered_s = time.perf_counter() - asked_s
        assert terminal.read(DEADLINE_S, until=says("STOPPED")), terminal.screen()
        terminal.press("q")
        assert terminal.wait(DEADLINE_S) == 0
    described = runs.describe(runs.load(run.path))
    assert described["state"] == "stopped" and described["last_checkpoint_step"] == described["step"]
    times.sort()
    sys.stderr.write(
        f"\ncrash shown after: median {times[50]:.3f} s, worst {times[-1]:.3f} s; stop acknowledged after "
        f"{answered_s:.3f} s\n"
    )
    assert times[-1] <= 1.0 and answered_s <= 1.0
