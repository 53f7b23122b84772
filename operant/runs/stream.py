"""Records of a run, oldest first, from its history and then its metrics file: once, or as they come. Standard library
only. For one thread.

Opens everything for reading. Records that a resume trained again from an earlier step are left out at the first read;
if they have been yielded before the resume, the records of the later session follow them.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from operant.runs import history
from operant.runs.folder import Run
from operant.runs.follow import Follower
from operant.runs.history import Chunk
from operant.runs.metrics import SECONDS, Metric, Record

_IDLE_S = 30.0


class Stream:
    """Iterator over the records of a run, oldest first, from its history and then its metrics file. Each `poll` yields
    the new ones in chunks of one session.
    """

    def __init__(self, run: Run) -> None:
        self._follower, self._last, self._begun = Follower(run), (-1, -1), False

    @property
    def over(self) -> bool:
        """Whether no more records of the run follow: at the last `poll` it had ended or was unreadable."""
        return self._follower.state.ended or self._follower.state.word == "unreadable"

    def poll(self) -> Iterator[Chunk]:
        """Yield the run's records since the last call, oldest first, in chunks. Never raises for the content of
        files.
        """
        follower = self._follower
        follower.poll(time.monotonic())
        expected, records = follower.next, follower.new_records()
        missed = bool(records) and (records[0].n > expected or records[0].session > self._last[0])
        if not self._begun or missed:
            self._begun = True
            for chunk in history.read(follower.run.path / "history"):
                yield from self._new(chunk)
        if follower.reader is not None:
            for _, some in groupby(records, key=lambda record: record.session):
                yield from self._new(_chunk(follower.reader.metrics, list(some)))

    def _new(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the part of a chunk that has not been yielded yet; nothing if all has."""
        session, n = self._last
        first = bisect_right(chunk.n, n) if chunk.session == session else 0 if chunk.session > session else len(chunk.n)
        if first < len(chunk.n):
            self._last = (chunk.session, chunk.n[-1])
            columns = {name: column[first:] for name, column in chunk.columns.items()}
            yield chunk._replace(
                n=chunk.n[first:],
                step=chunk.step[first:],
                boottime_ns=chunk.boottime_ns[first:],
                realtime_ns=chunk.realtime_ns[first:],
                flags=chunk.flags[first:],
                columns=columns,
            )

    def close(self) -> None:
        """Close the files of the run."""
        self._follower.close()


def _chunk(metrics: tuple[Metric, ...], records: Sequence[Record]) -> Chunk:
    """Convert records of the metrics file, all of one session, to a chunk."""
    values = zip(*(record.values for record in records), strict=True)
    return Chunk(
        records[0].session,
        metrics,
        1,
        array("Q", [record.n for record in records]),
        array("Q", [record.step for record in records]),
        array("Q", [record.boottime_ns for record in records]),
        array("Q", [record.realtime_ns for record in records]),
        array("I", [record.flags for record in records]),
        {metric.name: array("d", column) for metric, column in zip(metrics, values, strict=True)},
    )


class Columns(NamedTuple):
    """Records of a run as columns of equal length. `time` is wall time in seconds, `seconds` the duration of training;
    metrics have NaN where there is no value.
    """

    session: array[int]
    n: array[int]  # counts from 0 in each session
    step: array[int]
    time: array[float]  # s since 1970
    seconds: array[float]  # of training, without pauses
    flags: array[int]
    metrics: dict[str, array[float]]


def columns(run: Run) -> Columns:
    """Return all records of a run so far, as columns. Never raises for the content of files."""
    stream = Stream(run)
    result = Columns(array("Q"), array("Q"), array("Q"), array("d"), array("d"), array("I"), {})
    clock = Clock()
    try:
        for chunk in stream.poll():
            before, rows = len(result.n), len(chunk.n)
            result.session.extend([chunk.session] * rows)
            result.n.extend(chunk.n)
            result.step.extend(chunk.step)
            result.time.extend(time_ns / 1e9 for time_ns in chunk.realtime_ns)
            result.seconds.extend(clock.seconds(chunk))
            result.flags.extend(chunk.flags)
            for name in chunk.columns.keys() - result.metrics.keys():
                result.metrics[name] = array("d", [math.nan]) * before
            for name, column in result.metrics.items():
                column.extend(chunk.columns.get(name) or array("d", [math.nan]) * rows)
    finally:
        stream.close()
    order = [metric.name for metric in chunk.metrics] if len(result.n) else []
    names = [*(name for name in order if name in result.metrics), *sorted(result.metrics.keys() - set(order))]
    return result._replace(metrics={name: result.metrics[name] for name in names})


class Clock:
    """Converter of records' times to seconds of training, without the time between sessions and gaps of more than half
    a minute within one.
    """

    def __init__(self) -> None:
        self._session, self._last_ns, self._total_s = -1, 0, 0.0

    def seconds(self, chunk: Chunk) -> Iterator[float]:
        """Yield the seconds of training at each record of `chunk`; call it with consecutive chunks."""
        busy = [column for name, column in chunk.columns.items() if name.startswith(SECONDS)]
        for row, time_ns in enumerate(chunk.boottime_ns):
            took_s = (time_ns - self._last_ns) / 1e9
            if chunk.session != self._session or took_s > _IDLE_S:
                own_s = math.fsum(second for column in busy if 0.0 < (second := column[row]) < 1e9)
                took_s = own_s if chunk.session != self._session else min(took_s, max(own_s, 0.0))
            self._session, self._last_ns = chunk.session, time_ns
            self._total_s += max(0.0, took_s)
            yield self._total_s
