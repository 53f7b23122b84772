"""Repeated, cheap reads of one run for viewers. Standard library only. For one thread.

Opens everything for reading, and any file may vanish at any time. A replaced metrics file (a resume) is opened again; a
deleted one is still read, because its trainer still writes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from operant.errors import BadFileError
from operant.runs import folder as runfolder
from operant.runs import states
from operant.runs.folder import Run
from operant.runs.metrics import Event, Header, MetricSpec, RawFrame, Reader, Record, spec
from operant.runs.states import Assessment, Observation, State
from operant.text import safe

# Limits of a first look, however large the rings that a file claims. A trainer's rings hold 1024 of each.
_MOST_RECORDS, _FEWEST_RECORDS, _MOST_VALUES, _MOST_EVENTS = 4096, 64, 1 << 17, 1024


def write_specs(folder: Path, specs: Sequence[MetricSpec], *, again: bool = False) -> bool:
    """Write the specifications (names, units, meaning) of a run's metrics to metrics.json. Returns whether it was
    written. `again`: only if the file is missing. Raises MachineError.
    """
    if again and os.path.lexists(folder / spec.FILE):
        return False
    runfolder.write_json(folder / spec.FILE, spec.encode(specs))
    return True


def read_specs(run: Run) -> dict[str, MetricSpec]:
    """Return the specifications of a run's metrics by name; {} if metrics.json is missing or unreadable."""
    return spec.decode(runfolder.read_json(run.path / spec.FILE, spec.LIMIT_BYTES))


def _limit(reader: Reader) -> int:
    """Return the maximum number of metrics records to read at once: 4,096, fewer if each has many values."""
    return max(_FEWEST_RECORDS, min(_MOST_RECORDS, _MOST_VALUES // len(reader.metrics)))


class Follower:
    """Incremental reader of one run for a viewer: each `poll` updates `look`, `state` and the metrics reader.
    `new_records` and `new_events` return each record and event once.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.look = run, Observation(None)
        self.assessment = Assessment(State("starting"))
        self.reader: Reader | None = None
        self.header: Header | None = None  # of the last metrics file
        self.notice = ""  # a sentence about the reading
        self.document_time_s: float | None = None  # wall clock time of a new run.json that this look found
        self.restarted = False  # this look found a metrics file of another worker
        self.next = 0  # number of the next record
        self._next_event, self._signature = 0, (0, 0)
        self._previous: Assessment | None = None

    @property
    def state(self) -> State:
        """State of the run at the last `poll`, with its cause."""
        return self.assessment.state

    def poll(self, now_s: float) -> None:
        """Read the run's documents and metrics file once. `now_s`: seconds of any monotonic clock."""
        self.notice = ""
        self._reload_document()
        self._attach()
        self.look = states.observe(self.run, self.reader)
        self.assessment = self._previous = states.assess(self.look, self._previous, now_s)

    def _reload_document(self) -> None:
        """Read run.json again if it was replaced; `document_time_s` is then the time of the new one, else None."""
        self.document_time_s = None
        with contextlib.suppress(OSError):
            stats = os.stat(self.run.path / "run.json", follow_symlinks=False)
            if (stats.st_ino, stats.st_mtime_ns) != self._signature:
                self._signature, self.document_time_s = (stats.st_ino, stats.st_mtime_ns), stats.st_mtime
                self.run = self.run._replace(
                    document=runfolder.read_json(self.run.path / "run.json") or self.run.document
                )

    def _attach(self) -> None:
        """Open the metrics file that is in the folder now, if it is another one than before; keep the former while
        there is none.
        """
        self.restarted = False
        if self.reader is not None and not self.reader.replaced():
            return
        try:
            new = Reader(self.run.metrics_path)
        except BadFileError:  # `observe` reports a damaged new one
            if self.reader is not None and os.path.lexists(self.run.metrics_path):
                self.close()
            elif self.reader is not None:
                self.notice = "metrics.mm was deleted: still reading the file that the trainer writes"
            return
        self.close()
        old, self.reader, self.header = self.header, new, new.header
        if old is None or (old.session, old.pid, old.start_boottime_ns) != (
            new.header.session,
            new.header.pid,
            new.header.start_boottime_ns,
        ):
            self.next, self._next_event, self.restarted = 0, 0, True

    def new_records(self) -> list[Record]:
        """Return the metrics records since the last call, oldest first. Records that the file's ring buffer no longer
        holds are lost; of more than 4,096 (fewer with many metrics) only the newest are returned.
        """
        records: list[Record] = []
        try:
            if self.reader is not None and self.reader.status().head > self.next:
                records = self.reader.since(self.next, _limit(self.reader))
        except BadFileError as error:
            self.notice = safe(error, 300)
        if records:
            self.next = records[-1].n + 1
        return records

    def new_events(self) -> list[Event]:
        """Return the run's events since the last call, oldest first. Events that the file's ring buffer no longer holds
        are lost; of too many only the newest are returned.
        """
        events: list[Event] = []
        try:
            if self.reader is not None and (head := self.reader.status().event_head) > self._next_event:
                events = self.reader.events(self._next_event, _MOST_EVENTS)
                self._next_event = head
        except BadFileError as error:
            self.notice = safe(error, 300)
        return events

    def frame(self, after: int) -> RawFrame | None:
        """Return the newest frame of the agent if its number is greater than `after`; else None."""
        with contextlib.suppress(BadFileError):
            return None if self.reader is None else self.reader.frame(after)
        return None

    def records_from(self, n: int) -> list[Record] | None:
        """Return the metrics records from number `n` on, whether returned before or not; None if unreadable.
        `new_records` continues after them.
        """
        records: list[Record] = []
        try:
            records = [] if self.reader is None else self.reader.since(n, _limit(self.reader))
        except BadFileError:
            return None
        self.next = max(self.next, records[-1].n + 1 if records else 0)
        return records

    def forget(self) -> None:
        """Forget the last look at the run, so that the next `poll` assesses the state afresh: the run folder was
        missing in between.
        """
        self._previous = None

    def close(self) -> None:
        """Close the run's metrics file if it is open."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None
