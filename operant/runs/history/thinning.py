"""Thinning of a history segment: four records become one, so that a long run keeps its whole past in bounded space.
Standard library only.

The caller (operant/runs/history/writer.py) chooses the segment.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
from array import array
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

from operant.runs.history import segment as segments
from operant.runs.history.reader import columns_of
from operant.runs.history.segment import DEFLATED_KIND, FIXED, PLAIN_KIND, Segment
from operant.runs.metrics.layout import CODES, Metric

FACTOR: Final = 4
_ROWS = 256  # read before they are merged and written as one frame


def thin(path: Path) -> Generator[None, None, None]:
    """Replace a history segment by one with a quarter of its records, each merged from four. Each step of the iterator
    takes about a millisecond.

    A merged record has the number, step and times of the last of its four, the flags of all, the sums of counters and
    buckets, the last value of integer gauges, and the means of all else over the records with a value. A non-finite
    value of a metric that must be finite stays visible. Damaged frames are left out.

    The old segment stays until the new one is synced. Raises OSError if the disk refuses it, ValueError for a segment
    with an unreadable head; nothing is left over then.
    """
    head = segments.describe(path)
    if head is None:
        raise ValueError(f"{path.name} has no readable head")
    temporary, descriptor = path.with_name(f".{path.name}.tmp"), segments.open_segment(path)
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=functools.partial(os.open, mode=0o600)) as out:
            out.write(segments.pack_head(head._replace(every=min(head.every * FACTOR, 2**32 - 1))))
            for merged in _merged(descriptor, head):
                out.write(merged)
                yield
            out.flush()
            os.fsync(out.fileno())
        os.rename(temporary, path)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _merged(descriptor: int, head: Segment) -> Iterator[bytes]:
    """Yield frames of merged records, and empty bytes in between, so that no step takes long. `descriptor`: open
    segment with head `head`.
    """
    columns = FIXED + len(head.metrics)
    most = FACTOR * min(_ROWS // FACTOR, segments.rows_per_frame(columns))
    gathered: list[array[int]] = [array("Q") for _ in range(columns)]
    for kind, payload in segments.Scan(descriptor):
        if kind in (PLAIN_KIND, DEFLATED_KIND) and segments.schema_of(payload) == head.schema_crc:
            unpacked = segments.unpack_rows(kind, payload, columns)
            if unpacked is not None:
                for column, words in zip(gathered, columns_of(*unpacked), strict=True):
                    column.extend(words)
        while len(gathered[0]) >= most:
            yield segments.pack_rows(head.schema_crc, merge([column[:most] for column in gathered], head.metrics))
            gathered = [column[most:] for column in gathered]
        yield b""
    if len(gathered[0]):
        yield segments.pack_rows(head.schema_crc, merge(gathered, head.metrics))


def merge(columns: list[array[int]], metrics: tuple[Metric, ...]) -> list[array[int]]:
    """Merge each four rows into one, given and returned as columns of words; the last row may be merged from fewer."""
    flags = array("Q", map(functools.partial(functools.reduce, operator.or_), _groups(columns[segments.FLAGS])))
    not_finite = array("Q", (next(filter(None, group), 0) for group in _groups(columns[segments.NONFINITE])))
    last = [_last(column) for column in columns[: segments.FLAGS]]
    return [
        *last,
        flags,
        not_finite,
        *(_merge_metric(column, metric) for column, metric in zip(columns[FIXED:], metrics, strict=True)),
    ]


def _groups(column: array[int]) -> Iterator[array[int]]:
    """Yield the column's words in groups of four; the last may be shorter."""
    return (column[place : place + FACTOR] for place in range(0, len(column), FACTOR))


def _last(column: array[int]) -> array[int]:
    """Return the last word of each group of four."""
    last = column[FACTOR - 1 :: FACTOR]
    if len(column) % FACTOR:
        last.append(column[-1])
    return last


def _merge_metric(column: array[int], metric: Metric) -> array[int]:
    """Merge a metric's column of words, each group of four to one: sums of counters and buckets, last values of integer
    gauges, means of all else.
    """
    total = metric.kind in ("counter", "bucket")
    if metric.dtype != "f64":
        if not total:
            return _last(column)
        low, high = (0, 2**64 - 1) if metric.dtype == "u64" else (-(2**63), 2**63 - 1)
        code = CODES[metric.dtype]
        sums = array(code, (min(max(sum(group), low), high) for group in _groups(array(code, column.tobytes()))))
        return array("Q", sums.tobytes())
    values = array("d", column.tobytes())
    whole = len(values) // FACTOR * FACTOR
    weight = 1.0 if total else 1.0 / FACTOR
    merged = array(
        "d",
        [
            weight * value
            for value in map(sum, zip(*(values[part:whole:FACTOR] for part in range(FACTOR)), strict=True))
        ],
    )
    if whole < len(values):
        merged.append(_merge_some(values[whole:], total, metric.must_be_finite))
    if not math.isfinite(sum(merged)):
        for index, value in enumerate(merged):
            if not math.isfinite(value):
                merged[index] = _merge_some(values[FACTOR * index : FACTOR * (index + 1)], total, metric.must_be_finite)
    return array("Q", merged.tobytes())


def _merge_some(values: array[float], total: bool, must_be_finite: bool) -> float:
    """Return the sum (`total`) or mean of the values that are not NaN; NaN without any. With `must_be_finite` the first
    non-finite value, if there is one.
    """
    present = [value for value in values if must_be_finite or not math.isnan(value)]
    nonfinite = [value for value in present if not math.isfinite(value)]
    if nonfinite or not present:
        return nonfinite[0] if nonfinite else math.nan
    return math.fsum(present) if total else math.fsum(value / len(present) for value in present)
