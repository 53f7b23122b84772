"""Reads one run again and again, cheaply, for whatever shows it while it trains. Standard library only. For one thread;
knows no screen.

Everything is opened for reading and may vanish at any time: a metrics file that was replaced (a resume) is attached to
anew, and one that was deleted goes on being read, as its trainer still writes it.
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
from operant.runs.states import Judgement, Observation, State
from operant.text import safe

# However large the rings a file claims: a first look reads so much of their newest end and no more. A trainer's own
# rings hold 1024 of each.
_MOST_RECORDS, _FEWEST_RECORDS, _MOST_VALUES, _MOST_EVENTS = 4096, 64, 1 << 17, 1024


def write_specs(folder: Path, specs: Sequence[MetricSpec], *, again: bool = False) -> bool:
    """Say what the metrics of a run mean, beside its metrics file; `again`, only where that is gone. Whether it was
    written. Raises MachineError.
    """
    if again and os.path.lexists(folder / spec.FILE):
        return False
    runfolder.write_json(folder / spec.FILE, spec.encode(specs))
    return True


def read_specs(run: Run) -> dict[str, MetricSpec]:
    """What a run says its metrics mean, by name; {} for a run without metrics.json, or with one that cannot be read."""
    return spec.decode(runfolder.read_json(run.path / spec.FILE, spec.LIMIT_BYTES))


def _limit(reader: Reader) -> int:
    """The most records to read at once: fewer where each has many values."""
    return max(_FEWEST_RECORDS, min(_MOST_RECORDS, _MOST_VALUES // len(reader.metrics)))


class Follower:
    """`poll` looks once; the fields are what it found. Records and events are handed out once each."""

    def __init__(self, run: Run) -> None:
        self.run, self.look = run, Observation(None)
        self.judgement = Judgement(State("starting"))
        self.reader: Reader | None = None
        self.header: Header | None = None  # of the last metrics file there was
        self.notice = ""  # one sentence about the reading itself
        self.document_time_s: float | None = (
            None  # when run.json was replaced, by the wall clock, where this look found a new one
        )
        self.restarted = False  # this look found the metrics file of another worker
        self.next = 0  # number of the next record
        self._next_event, self._signature = 0, (0, 0)
        self._judged: Judgement | None = None

    @property
    def state(self) -> State:
        """The run's state, as of the last look."""
        return self.judgement.state

    def poll(self, now_s: float) -> None:
        """Look once; `now_s` is any monotonic clock of this viewer."""
        self.notice = ""
        self._reload_document()
        self._attach()
        self.look = states.observe(self.run, self.reader)
        self.judgement = self._judged = states.judge(self.look, self._judged, now_s)

    def _reload_document(self) -> None:
        self.document_time_s = None
        with contextlib.suppress(OSError):
            found = os.stat(self.run.path / "run.json", follow_symlinks=False)
            if (found.st_ino, found.st_mtime_ns) != self._signature:
                self._signature, self.document_time_s = (found.st_ino, found.st_mtime_ns), found.st_mtime
                self.run = self.run._replace(
                    document=runfolder.read_json(self.run.path / "run.json") or self.run.document
                )

    def _attach(self) -> None:
        """Read the metrics file that lies in the folder now; keep the old one while there is none."""
        self.restarted = False
        if self.reader is not None and not self.reader.replaced():
            return
        try:
            new = Reader(self.run.metrics_path)
        except BadFileError:  # `observe` says what is wrong with a new one
            if self.reader is not None and os.path.lexists(self.run.metrics_path):
                self.close()
            elif self.reader is not None:
                self.notice = "metrics.mm was deleted: what the trainer still writes into it is shown"
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
        """The records since the last call, as far back as the ring reaches; of very many, the newest."""
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
        """The events since the last call, as far back as the ring reaches; of very many, the newest."""
        events: list[Event] = []
        try:
            if self.reader is not None and (head := self.reader.status().event_head) > self._next_event:
                events = self.reader.events(self._next_event, _MOST_EVENTS)
                self._next_event = head
        except BadFileError as error:
            self.notice = safe(error, 300)
        return events

    def frame(self, after: int) -> RawFrame | None:
        """The newest picture of the agent, if it is newer than number `after`."""
        with contextlib.suppress(BadFileError):
            return None if self.reader is None else self.reader.frame(after)
        return None

    def records_from(self, n: int) -> list[Record] | None:
        """Records from number `n` on, as `new_records` has them, whether handed out or not; None where they cannot be
        read. The next ones follow them.
        """
        records: list[Record] = []
        try:
            records = [] if self.reader is None else self.reader.since(n, _limit(self.reader))
        except BadFileError:
            return None
        self.next = max(self.next, records[-1].n + 1 if records else 0)
        return records

    def forget(self) -> None:
        """Judge the next look without the ones before it: the folder was gone in between."""
        self._judged = None

    def close(self) -> None:
        """Let go of the metrics file."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None
