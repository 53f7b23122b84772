"""Reader of a history, complete or damaged, while it is being written or after. Standard library only.

Uses only `pread`. Nothing in the files is trusted: invalid parts are skipped and counted.
"""

from __future__ import annotations

import operator
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from operant.runs.history import segment as segments
from operant.runs.history.segment import DEFLATED_KIND, FIXED, PLAIN_KIND
from operant.runs.metrics.layout import CODES, Metric

if TYPE_CHECKING:
    from typing import Self

_CHUNK_ROWS, _CHUNK_BYTES = 4096, 1 << 24


class Chunk(NamedTuple):
    """Consecutive records of one session as columns of equal length. `every`: number of original records that thinning
    merged into each.
    """

    session: int
    metrics: tuple[Metric, ...]
    every: int  # 1, or the number of published records merged into each one
    n: array[int]  # "Q", ascending
    step: array[int]  # "Q"
    boottime_ns: array[int]  # "Q"
    realtime_ns: array[int]  # "Q"
    flags: array[int]  # "I", of FLAG_NONFINITE, FLAG_CHECKPOINT, ...
    columns: dict[str, array[float]]  # "d", by metric name, in the order of `metrics`; integers beyond 2^53 are rounded

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics in this chunk."""
        return tuple(self.columns)


class Reading:
    """Iterator over the chunks of a run's history, oldest first, for a single pass.

    `damaged` counts the frames and byte ranges skipped so far because they are unreadable, `torn` the segments so far
    with an incomplete end (left by a kill; no synced record is lost by that).
    """

    def __init__(self, folder: Path) -> None:
        self.damaged = self.torn = 0
        self._chunks = self._read(folder)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def _read(self, folder: Path) -> Iterator[Chunk]:
        """Yield the chunks of the history in `folder`, oldest first, without records that a later session trained
        again.
        """
        paths = [path for _, path in segments.segments(folder)]
        heads = [segments.describe(path) for path in paths]
        schemas = {head.schema_crc: head.metrics for head in heads if head is not None}
        rewinds = [(head.session, head.rewind_to) for head in heads if head is not None and head.rewind_to is not None]
        last: dict[int, int] = {}  # highest record number of each session
        for path, head in zip(paths, heads, strict=True):
            builder: _ChunkBuilder | None = None
            for session, schema, rows in self._rows(path, schemas):
                limit = min((step for later, step in rewinds if later > session), default=None)
                selected = _select(rows, last.get(session, -1), limit)
                if selected is None:
                    self.damaged += 1
                    continue
                if not len(selected[0]):
                    continue
                last[session] = selected[0][-1]
                every = head.every if head is not None else 1
                if builder is not None and (builder.key != (session, schema, every) or builder.full):
                    yield builder.chunk()
                    builder = None
                builder = builder or _ChunkBuilder(session, schema, schemas[schema], every)
                builder.add(selected)
            if builder is not None:
                yield builder.chunk()

    def _rows(self, path: Path, schemas: dict[int, tuple[Metric, ...]]) -> Iterator[tuple[int, int, list[array[int]]]]:
        """Yield (session, schema checksum, columns of words) of each frame of records in a segment file."""
        try:
            descriptor = segments.open_segment(path)
        except (OSError, ValueError):
            self.damaged += 1
            return
        try:
            scan = segments.Scan(descriptor)
            for kind, payload in scan:
                if kind not in (PLAIN_KIND, DEFLATED_KIND):
                    continue
                schema = segments.schema_of(payload)
                unpacked = (
                    segments.unpack_rows(kind, payload, FIXED + len(schemas[schema])) if schema in schemas else None
                )
                if unpacked is None:
                    self.damaged += 1
                    continue
                words = columns_of(*unpacked)
                yield words[segments.FLAGS][0] & 0xFFFFFFFF, schema, words
            self.damaged += scan.damaged
            self.torn += scan.torn
        finally:
            os.close(descriptor)


def read(folder: Path) -> Reading:
    """Open the history in `folder` for reading: an iterator over its records, oldest first, without those that a later
    session trained again from an earlier step. Never raises for the content of files; `Reading.damaged` and
    `Reading.torn` count what was skipped.
    """
    return Reading(folder)


def columns_of(rows: int, words: bytes | bytearray | memoryview) -> list[array[int]]:
    """Split a frame's 8-byte `words` into columns of `rows` words, as arrays of "Q"."""
    view = memoryview(words)
    columns = []
    for offset in range(0, len(view), 8 * rows):
        column = array("Q")
        column.frombytes(view[offset : offset + 8 * rows])
        columns.append(column)
    return columns


def _select(rows: list[array[int]], after: int, limit: int | None) -> list[array[int]] | None:
    """Return the rows with numbers greater than `after` and steps up to `limit` (None: all), as columns; None if the
    numbers do not ascend, which no writer produces.
    """
    numbers, steps = rows[segments.N], rows[segments.STEP]
    if not all(map(operator.lt, numbers, numbers[1:])):
        return None
    if numbers[0] <= after:
        rows = [column[bisect_right(numbers, after) :] for column in rows]
        steps = rows[segments.STEP]
    if limit is not None and len(steps) and max(steps) > limit:
        indices = [index for index, step in enumerate(steps) if step <= limit]
        rows = [array("Q", map(column.__getitem__, indices)) for column in rows]
    return rows


class _ChunkBuilder:
    """Collector of consecutive rows of one session and schema for one `Chunk`."""

    def __init__(self, session: int, schema: int, metrics: tuple[Metric, ...], every: int) -> None:
        self.key, self.rows = (session, schema, every), 0
        self._metrics = metrics
        self._words: list[array[int]] = [array("Q") for _ in range(FIXED + len(metrics))]

    def add(self, rows: Iterable[array[int]]) -> None:
        """Append rows to the chunk, given as columns of words."""
        for words, column in zip(self._words, rows, strict=True):
            words.extend(column)
        self.rows = len(self._words[0])

    @property
    def full(self) -> bool:
        """Whether the chunk has enough rows or bytes to be yielded."""
        return self.rows >= _CHUNK_ROWS or 8 * self.rows * len(self._words) >= _CHUNK_BYTES

    def chunk(self) -> Chunk:
        """Build the chunk from the collected rows."""
        words = self._words
        session, _, every = self.key
        flags = array("I", words[segments.FLAGS].tobytes())[1::2]
        columns = {
            metric.name: _values(words[FIXED + index], metric.dtype) for index, metric in enumerate(self._metrics)
        }
        fixed = (words[segments.N], words[segments.STEP], words[segments.BOOTTIME], words[segments.REALTIME])
        return Chunk(session, self._metrics, every, *fixed, flags, columns)


def _values(words: array[int], dtype: str) -> array[float]:
    """Convert a metric's column of 8-byte words of `dtype` to floats."""
    if dtype == "f64":
        return array("d", words.tobytes())
    return array("d", array(CODES[dtype], words.tobytes()))
