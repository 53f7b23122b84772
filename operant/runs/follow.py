"""Repeated, cheap reads of one run for viewers. Standard library only. For one thread; knows no screen.

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
    """Write the meaning of a run's metrics to metrics.json; with `again` only if the file is gone. True if written.
    Raises MachineError.
    """
    if again and os.path.lexists(folder / spec.FILE):
        return False
    runfolder.write_json(folder / spec.FILE, spec.encode(specs))
    return True


def read_specs(run: Run) -> dict[str, MetricSpec]:
    """Meaning of a run's metrics by name; {} if metrics.json is missing or unreadable."""
    return spec.decode(runfolder.read_json(run.path / spec.FILE, spec.LIMIT_BYTES))


def _limit(reader: Reader) -> int:
    """Most records to read at once: fewer if each has many values."""
    return max(_FEWEST_RECORDS, min(_MOST_RECORDS, _MOST_VALUES // len(reader.metrics)))


class Follower:
    """Repeated look at a run: `poll` looks, the fields hold the result. Records and events are returned once each."""

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
        """State of the run at the last look."""
        return self.assessment.state

    def poll(self, now_s: float) -> None:
        """Look once; `now_s` is any monotonic clock of this viewer."""
        self.notice = ""
        self._reload_document()
        self._attach()
        self.look = states.observe(self.run, self.reader)
        self.assessment = self._previous = states.assess(self.look, self._previous, now_s)

    def _reload_document(self) -> None:
        self.document_time_s = None
        with contextlib.suppress(OSError):
            stats = os.stat(self.run.path / "run.json", follow_symlinks=False)
            if (stats.st_ino, stats.st_mtime_ns) != self._signature:
                self._signature, self.document_time_s = (stats.st_ino, stats.st_mtime_ns), stats.st_mtime
                self.run = self.run._replace(
                    document=runfolder.read_json(self.run.path / "run.json") or self.run.document
                )

    def _attach(self) -> None:
        """Open the metrics file that is in the folder now; keep the old one while there is none."""
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
        """Records since the last call, as far back as the ring reaches; limited to the newest."""
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
        """Events since the last call, as far back as the ring reaches; limited to the newest."""
        events: list[Event] = []
        try:
            if self.reader is not None and (head := self.reader.status().event_head) > self._next_event:
                events = self.reader.events(self._next_event, _MOST_EVENTS)
                self._next_event = head
        except BadFileError as error:
            self.notice = safe(error, 300)
        return events

    def frame(self, after: int) -> RawFrame | None:
        """Newest picture of the agent if its number is above `after`."""
        with contextlib.suppress(BadFileError):
            return None if self.reader is None else self.reader.frame(after)
        return None

    def records_from(self, n: int) -> list[Record] | None:
        """Records from number `n` on, returned before or not; None if unreadable. `new_records` continues there."""
        records: list[Record] = []
        try:
            records = [] if self.reader is None else self.reader.since(n, _limit(self.reader))
        except BadFileError:
            return None
        self.next = max(self.next, records[-1].n + 1 if records else 0)
        return records

    def forget(self) -> None:
        """Judge the next look without the previous ones: the folder was gone in between."""
        self._previous = None

    def close(self) -> None:
        """Close the metrics file."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None
