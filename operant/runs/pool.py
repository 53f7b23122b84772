"""Worker processes that train one run after another (operant/training/pool_worker.py). Standard library only.

A worker has one run at a time. At the end of the run, or of the worker within it, exit.json is written as the launcher
does for a single run; what happens to the worker later does not concern the run. A dead worker is replaced at its next
run. Workers hold no terminal, and end after their run once the process that started them is gone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from operant import runs
from operant.errors import BusyError, MachineError
from operant.runs import Run, launch, signal_worker

_WORKER = "operant.training.pool_worker"
_CLOSE_S = 5.0


class Ended(NamedTuple):
    """Outcome of a run that a worker process has ended: exit code and wall time."""

    run: Run
    code: int  # exit code of the command line: 130 stopped, 137 killed
    wall_s: float


class Worker:
    """Worker process that trains one run after another, started with its first run. `log` takes its output between
    runs.
    """

    def __init__(self, log: Path, argv: Sequence[str] | None = None) -> None:
        self._log, self._argv = log, list(argv or launch.module_command(_WORKER))
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_record = launch.ExitRecord()
        self.run: Run | None = None
        self._stopping = False  # the run is signalled once its worker can be reached

    @property
    def pid(self) -> int | None:
        """Pid of the worker process; None before its start and after its end."""
        return None if self._process is None else self._process.pid

    def warm(self) -> None:
        """Start the worker process before its first run, so that its imports are done. Raises MachineError if it cannot
        be started.
        """
        if self._process is not None:
            return
        try:
            with open(launch.open_log(self._log.parent, self._log.name), "ab") as log:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=launch.environment(),
                    start_new_session=True,
                )
        except OSError as error:
            raise MachineError(f"cannot start a worker ({error.strerror}): {runs.display_path(self._log)}") from None

    def begin(self, run: Run, *, resume: str | None = None, trusted: bool = False) -> None:
        """Train a run in the worker process, from checkpoint `resume` ("last", "best" or a step; None: from scratch).
        `trusted` allows code that is not known to be this user's. Raises BusyError if the worker has a run or the run a
        trainer, and MachineError if no process can be started.
        """
        if self.run is not None:
            raise BusyError(runs.busy_message(self.run.path))
        launch.announce(run)
        line = json.dumps({"run": str(run.path), "resume": resume, "trusted": trusted}).encode() + b"\n"
        for _ in range(2):  # a worker that died between runs is noticed at the first write
            self.warm()
            assert self._process is not None and self._process.stdin is not None
            self._exit_record = launch.ExitRecord()
            try:
                self._process.stdin.write(line)
                self._process.stdin.flush()
            except OSError:
                self.close()
            else:
                self.run = run
                return
        raise MachineError(f"workers end at their start: see {runs.display_path(self._log)}")

    def fileno(self) -> int:
        """Return a file descriptor for `select` that is readable once the worker's run has ended."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def ended(self) -> Ended | None:
        """Return the outcome of the worker's run, once after its end, with exit.json written; None while it trains.
        Raises MachineError if exit.json cannot be written.
        """
        if self.run is None:
            return None
        if not select.select([self], [], [], 0)[0]:
            self._stopping = self._stopping and not signal_worker(self.run, signal.SIGTERM)
            return None
        assert self._process is not None and self._process.stdout is not None
        line, pid, run = self._process.stdout.readline(), self._process.pid, self.run
        try:
            code = int(json.loads(line)["exit"])
        except (ValueError, KeyError):  # the worker died
            code = self._process.wait()
            self.close()
            if runs.state(run).word == "finished":  # the worker died after the end of the run
                code = 0
        self.run, self._stopping = None, False
        ending = self._exit_record.write_ending(run.path, code, pid)
        stopped = code in (-signal.SIGTERM, -signal.SIGINT) and ending["last_step"] is None
        return Ended(run, code if code >= 0 else 130 if stopped else 137, ending["wall_s"])

    def stop(self) -> None:
        """Ask the worker's current run to end with a checkpoint; if the run has not begun yet, a later call of `ended`
        does so. The next run is not affected.
        """
        self._stopping = self.run is not None and not signal_worker(self.run, signal.SIGTERM)

    def close(self) -> None:
        """End the worker process, killing its current run."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # unsent bytes to a dead process
                    continue
        if self.run is not None:
            process.kill()
        try:
            process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait(workers: Iterable[Worker], timeout_s: float, wake: Sequence[Any] = ()) -> None:
    """Sleep until the run of one of `workers` has ended, one of `wake` is readable, or `timeout_s` seconds have
    passed.
    """
    busy = [worker for worker in workers if worker.run is not None]
    if busy or wake:
        select.select([*busy, *wake], [], [], timeout_s)
    else:
        time.sleep(timeout_s)


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
