"""Incremental reader of a run's folder. Standard library only. For use in one thread.

All files are opened for reading and may vanish at any time. A replaced file (after a resume) is reopened; a truncated
or unreadable one leaves the last values in place with a notice, as does a deleted folder. No file content makes it
raise.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monitor.data.summary import RunData
from monitor.data.timeline import Timeline
from operant import runs, text
from operant.runs import (
    LIVE,
    Assessment,
    Event,
    Follower,
    Header,
    Metric,
    Observation,
    RawFrame,
    Reader,
    Run,
    State,
    Tail,
    history,
    read_specs,
)
from operant.runs.metrics.layout import BOOTTIME

_EXIT_GRACE_S = 0.3  # how long to wait for exit.json after the lock is free
_PACE_S = 3.0
_CONFIG_BYTES = 1 << 17
_CHECKPOINT = re.compile(r"step-(\d{1,18})")


class LoadedHistory(NamedTuple):
    """Timeline read from a run's history, and the session and number of its last record."""

    timeline: Timeline
    session: int
    n: int


def load_history(run: Run, metrics: Sequence[Metric] | None) -> LoadedHistory | None:
    """Read all records of a run's history into a timeline; None without a history. `metrics`: those of the metrics
    file, or None to take them from the history.

    Takes one second per several hundred thousand records. Never raises because of file contents.
    """
    folder = run.path / "history"
    if metrics is None:
        metrics = next((chunk.metrics for chunk in history.read(folder)), None)
        if metrics is None:
            return None
    timeline = Timeline(metrics, read_specs(run))
    session, n = timeline.add_chunks(history.read(folder))
    return LoadedHistory(timeline, session, n) if n >= 0 else None


class RunReader:
    """Incremental reader of one run's files. Each `poll` updates the attributes; `collect` returns them as RunData."""

    def __init__(self, run: Run) -> None:
        self.notice, self.config = "", ""
        self.state, self.observation = State("starting"), Observation(None)
        self.timeline: Timeline | None = None
        self.log = Tail(run.log_path)
        self.has_checkpoint = False
        self.wants_history = True  # older records exist: call `load_history`, then `adopt_history`
        self.events: list[Event] = []  # new in the last poll
        self._follower, self._observed = Follower(run), False
        self._phase: tuple[str | None, float] = (None, 0.0)  # and its start, by this process's clock
        self._state_since: tuple[str, float] = ("", 0.0)
        self._free_since_s: float | None = None
        self._pace: deque[tuple[float, int]] = deque()
        self._checkpoint_step: int | None = None
        self._checkpoints_seen = False

    @property
    def run(self) -> Run:
        """The run, with run.json as it was last read."""
        return self._follower.run

    @property
    def header(self) -> Header | None:
        """Header of the metrics file that was read last; None before one could be read."""
        return self._follower.header

    @property
    def reader(self) -> Reader | None:
        """Reader of the metrics file; None while it is unreadable."""
        return self._follower.reader

    # ------------------------------------------------------------------------------------------------------------------
    # polling

    def poll(self, now_s: float) -> None:
        """Read what is new in the run's files. `now_s`: seconds of a monotonic clock."""
        follower = self._follower
        if not os.path.isdir(self.run.path):
            self._report_lost("the run's folder was deleted")
            return
        self.events = []
        follower.poll(now_s)
        self.notice = follower.notice
        if follower.document_time_s is not None:
            self._update_from_document(follower.document_time_s, now_s)
        if follower.restarted:
            self._checkpoint_step, self.wants_history = None, True
            self._pace.clear()
        if self.timeline is not None and self.reader is not None and self.timeline.metrics != self.reader.metrics:
            self.timeline = None
        if self._awaits_exit_record(follower.assessment, follower.look, now_s):
            return
        self.observation, self.state, self._observed = follower.look, follower.state, True
        if self.state.word != self._state_since[0]:
            self._state_since = (self.state.word, now_s)
        if self.state.word == "unreadable" and self.timeline is not None:
            self.notice = "the metrics file can no longer be read; showing the last values read"
        self._append_new_records()
        self._update_from_status(now_s)

    def _awaits_exit_record(self, assessment: Assessment, look: Observation, now_s: float) -> bool:
        """Whether to postpone the state "crashed" in `assessment`: the trainer has just ended, and its parent process
        writes the cause (exit.json) within milliseconds. `look`: newest observation; `now_s`: monotonic clock.
        """
        if assessment.state.word != "crashed" or look.exit is not None:
            self._free_since_s = None
            return False
        if self.state.word not in LIVE or not self._observed:
            return False
        self._free_since_s = now_s if self._free_since_s is None else self._free_since_s
        return now_s - self._free_since_s < _EXIT_GRACE_S

    @property
    def awaits_exit(self) -> bool:
        """Whether to poll the run again at once, since the cause of its end is about to be written."""
        return self._free_since_s is not None and self.state.word in LIVE

    def _report_lost(self, why: str) -> None:
        """Set the run's state to "unreadable" with reason `why`, and a notice that the last values read are shown."""
        self.state, self.notice = (
            State("unreadable", why),
            f"{why}; showing the last values read" if self.timeline is not None else "",
        )
        self._follower.forget()

    def _update_from_document(self, replaced_s: float, now_s: float) -> None:
        """Update startup phase and configuration after run.json was replaced at `replaced_s` (wall clock); `now_s` is
        the monotonic clock.
        """
        phase = runs.text_of(self.run.document, "phase")
        if phase != self._phase[0]:
            self._phase = (phase, now_s - min(max(time.time() - replaced_s, 0.0), 3600.0))
        self.config = _read_text(self.run.config_path)

    def _append_new_records(self) -> None:
        """Append new records of the metrics file to the timeline, and collect its new events."""
        expected, records = self._follower.next, self._follower.new_records()
        self.events = self._follower.new_events()
        self.notice = self._follower.notice or self.notice
        if records and self.reader is not None:
            # Records that were overwritten in the ring buffer before they were read are in the history.
            self.wants_history = self.wants_history or (
                self.timeline is not None and expected > 0 and records[0].n > expected
            )
            if self.timeline is None:
                self.timeline = Timeline(self.reader.metrics, read_specs(self.run))
            self.timeline.add(records)

    def history_loader(self) -> Callable[[], LoadedHistory | None]:
        """Return a function that loads the run's history, to be called in another thread; its result is for
        `adopt_history`.
        """
        return functools.partial(load_history, self.run, None if self.reader is None else self.reader.metrics)

    def adopt_history(self, past: LoadedHistory) -> None:
        """Replace the timeline by one loaded from the run's history, and append the later records of the metrics file's
        ring buffer.
        """
        if self.reader is not None and past.timeline.metrics != self.reader.metrics:
            self.wants_history = True  # the file was replaced meanwhile
            return
        if self.reader is not None and past.session <= (session := self.reader.header.session):
            newer = self._follower.records_from(past.n + 1 if past.session == session else 0)
            if newer is None:
                return
            past.timeline.add(newer)
        self.timeline = past.timeline
        self._checkpoint_step, self._checkpoints_seen = None, False

    def frame(self, after: int) -> RawFrame | None:
        """Return the newest frame of the agent if its number is greater than `after`; else None."""
        return self._follower.frame(after)

    def _update_from_status(self, now_s: float) -> None:
        """Update checkpoints and the iteration count from the status block of the metrics file."""
        status = self.observation.status
        if not self._checkpoints_seen and self.timeline is not None and self.timeline.table.last is not None:
            self._checkpoints_seen = True
            for checkpoint in _checkpoint_steps(self.run.checkpoints_path):
                self.has_checkpoint = True
                self.timeline.add_checkpoint(checkpoint)
        if status is None:
            return
        step = status.last_checkpoint_step
        if step is not None and step != self._checkpoint_step and self.timeline is not None:
            self.timeline.add_checkpoint(step)
            self._checkpoint_step, self.has_checkpoint = step, True
        if not self._pace or self._pace[-1][1] != status.main_count:
            self._pace.append((now_s, status.main_count))
        while len(self._pace) > 2 and now_s - self._pace[1][0] > _PACE_S:
            self._pace.popleft()

    # ------------------------------------------------------------------------------------------------------------------
    # results

    def collect(self, now_s: float) -> RunData:
        """Assemble the results of the last `poll` for `monitor.data.summary`. `now_s`: monotonic clock, for ages and
        rates.
        """
        header, look = self.header, self.observation
        boot_ns: int = time.clock_gettime_ns(BOOTTIME)
        same_boot = (
            header is not None and bool(runs.boot_id()) and header.boot_id.hex() == runs.boot_id().replace("-", "")
        )
        up_s = None
        if header is not None and look.status is not None:
            live = self.state.word in LIVE
            record_ns = None if look.record is None else look.record.boottime_ns
            until_ns = boot_ns if live and same_boot else record_ns
            up_s = None if until_ns is None else max(0.0, (until_ns - header.start_boottime_ns) / 1e9)
        word, since_s = self._state_since
        return RunData(
            run=self.run,
            state=self.state,
            look=look,
            timeline=self.timeline,
            header=header,
            iterations_per_s=self._iterations_per_s(now_s),
            up_s=up_s,
            phase_age_s=max(0.0, now_s - self._phase[1]) if self._phase[0] else None,
            state_age_s=max(0.0, now_s - since_s) if word else None,
            process_state=process_state(self.run.document) if self.state.word in ("stalled", "suspended") else None,
            has_checkpoint=self.has_checkpoint,
            log_end=self.log.last_words()
            if self.state.ended and self.state.word not in ("finished", "stopped")
            else (),
            now_s=time.time(),
        )

    def _iterations_per_s(self, now_s: float) -> float | None:
        """Return iterations per second over the last three seconds; None if too little is known."""
        if len(self._pace) < 2:
            return None
        (first_s, first), (last_s, last) = self._pace[0], self._pace[-1]
        until_s = max(last_s, now_s - _PACE_S)
        return (last - first) / (until_s - first_s) if until_s - first_s > 0.2 and last >= first else None

    def close(self) -> None:
        """Close all files of the run."""
        self._follower.close()


def process_state(document: Mapping[str, Any]) -> str | None:
    """Return the state letter of the trainer's process in /proc (R, S, D, T, Z ...); None if it is not visible or the
    PID belongs to another process.
    """
    pid, ticks = runs.integer_of(document, "pid"), runs.integer_of(document, "pid_start_ticks")
    if not pid or ticks is None or not runs.is_local(document):
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = runs.process_fields(pid)
        if int(fields[19]) == ticks:
            return fields[0].decode("ascii", "replace")[:1]
    return None


def _checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, in ascending order; [] if it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(int(match[1]) for name in os.listdir(folder) if (match := _CHECKPOINT.fullmatch(name)))
    return []


def _read_text(path: Path) -> str:
    """Return the printable text of a file, at most 128 KiB, without following links; "" if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        raw = os.pread(descriptor, _CONFIG_BYTES, 0)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return text.safe(raw.decode("utf-8", "replace").rstrip("\n"), 400, lines=True)
