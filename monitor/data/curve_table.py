"""Bounded-memory history of all metrics of a run, resampled at any zoom. Standard library only.

All metrics share the same records, so a CurveTable stores the three x axes (step, wall, iteration) once, and each Curve
its values. Records are aggregated in levels: buckets of 1, 4, 16, 64 ... records, each with minimum, maximum, sum,
count, and number of non-finite values. The coarsest level covers the whole run; every finer one keeps its newest
`BUCKETS` buckets. A window near the newest record is shown exactly, one that begins 1/4^k of the run before it with at
least `BUCKETS` / 4 buckets, the whole run with `BUCKETS` / 4 to `BUCKETS`.

Memory: 3 x 8 + 2 x 4 bytes per bucket and metric, at most 1.25 `BUCKETS` buckets a level, log4(records / `BUCKETS`)
levels: 24 metrics of a run of 10^6 records take 6 MB, of 10^9 records 11 MB. Above 64 metrics the levels are shortened
in proportion, so that a run stays below 32 MB.

Threads: one writes, any number read. `Levels.lock` is held for each `extend`, `rewind` and `view`; readers wait one
millisecond at most for the records of a poll. Load a history of millions of records into a new table before it is
shown.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from monitor.data.buckets import BucketPlan, CurveBuckets, Level, Levels
from monitor.data.curve import Column, Curve

__all__ = ["BUCKETS", "Column", "CurveTable", "Window"]

BUCKETS: Final = 1024
_FACTOR, _FEWEST_BUCKETS, _FEW_METRICS = 4, 64, 64


class Window(NamedTuple):
    """Consecutive records or buckets of a run: x (step, wall seconds, iteration) at the start of the first (`begin`)
    and at the end of each, record counts, and mean values by metric (NaN: no value).
    """

    begin: tuple[float, ...]
    steps: list[float]
    walls: list[float]
    iterations: list[float]
    records: list[int]
    values: dict[str, list[float]]


class CurveTable:
    """Curves of all metrics of a run, in bounded memory. `extend` appends records; `rewind` removes those that a
    resumed session repeats.
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        self.columns = tuple(columns)
        buckets = BUCKETS * _FEW_METRICS // max(_FEW_METRICS, len(self.columns))
        self.buckets = max(_FEWEST_BUCKETS, buckets)
        self.levels = Levels()
        self.records = 0  # records still represented
        self.curves: Mapping[str, Curve] = {column.name: Curve(self.levels, column) for column in self.columns}
        self._parts = [curve.parts for curve in self.curves.values()]

    @property
    def version(self) -> int:
        """Number that increases with every change of the curves."""
        return self.levels.version

    @property
    def last(self) -> tuple[float, float, float] | None:
        """Step, wall seconds and iteration of the newest record; None without records."""
        return self.levels.last

    def extent(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Start of the first and end of the last record, each (step, wall seconds, iteration); None without records."""
        with self.levels.lock:
            last, begins = self.last, self.levels.all[-1].begins
            return None if last is None else (tuple(begins), last)

    # ------------------------------------------------------------------------------------------------------------------
    # writing

    def extend(
        self,
        steps: Sequence[float],
        walls: Sequence[float],
        iterations: Sequence[float],
        columns: Sequence[Sequence[float]],
        *,
        begin: tuple[float, float, float] | None = None,
    ) -> None:
        """Append records, given by column: their steps, wall seconds and iterations, and in `columns` the values of
        each metric in the table's order. All sequences have equal length.

        `begin` is the start of the very first record (every other one starts at the end of its predecessor); by default
        its end. A decreasing x is replaced by its predecessor. Arrays of doubles are fastest.
        """
        if not len(steps):
            return
        with self.levels.lock:
            last = self.last
            edges = tuple(
                array(
                    "d", accumulate(axis, max) if last is None else list(accumulate(axis, max, initial=last[index]))[1:]
                )
                for index, axis in enumerate((steps, walls, iterations))
            )
            origin = last or tuple(
                min(start, axis[0]) for start, axis in zip(begin or (math.inf,) * 3, edges, strict=True)
            )
            self._grow(len(steps))
            for index, level in enumerate(self.levels.all):
                plan = self._plan(level, edges, origin, top=index == len(self.levels.all) - 1)
                for curve, values in zip(self.curves.values(), columns, strict=True):
                    curve.add(index, plan, values)
            for curve, values in zip(self.curves.values(), columns, strict=True):
                curve.update_latest(values)
            self.levels.version += 1
            self.records += len(steps)
            self._trim()

    def _grow(self, count: int) -> None:
        """Add coarser bucket levels until the coarsest can hold `count` more records."""
        while len(self.levels.all[-1].filled) + -(-count // self.levels.all[-1].size) > self.buckets:
            below = self.levels.all[-1]
            above = Level(below.size * _FACTOR)
            above.begins = below.begins
            groups = range(0, len(below.filled), _FACTOR)
            for new, old in zip(above.ends, below.ends, strict=True):
                new.extend(old[_FACTOR - 1 :: _FACTOR])
                if len(new) < len(groups):
                    new.append(old[-1])
            above.filled.extend(sum(below.filled[first : first + _FACTOR]) for first in groups)
            for parts in self._parts:
                part = CurveBuckets()
                for first in groups:
                    part.append(*parts[-1].merged(first, first + _FACTOR))
                parts.append(part)
            self.levels.all.append(above)

    def _plan(self, level: Level, edges: Sequence[array[float]], origin: Sequence[float], *, top: bool) -> BucketPlan:
        """Append the x values of new records to a bucket level; return how the records' values map to its buckets.
        `edges`: end of each record per axis; `origin`: start of the first; `top`: the level is the coarsest, from which
        no bucket is removed.
        """
        count, size = len(edges[0]), level.size
        joined = min(count, size - level.filled[-1]) if level.filled and level.filled[-1] < size else 0
        starts = range(joined, count, size)
        emptied = not top and len(starts) > self.buckets
        if emptied:
            starts = starts[-self.buckets :]
            level.keep_range(0, 0)
            level.begins = [axis[starts[0] - 1] for axis in edges]
            joined = 0
        elif joined:
            level.filled[-1] += joined
            for ends, axis in zip(level.ends, edges, strict=True):
                ends[-1] = axis[joined - 1]
        if not level.begins:
            level.begins = list(origin)
        for ends, axis in zip(level.ends, edges, strict=True):
            ends.extend(axis[start + size - 1] if start + size <= count else axis[-1] for start in starts)
        level.filled.extend(min(size, count - start) for start in starts)
        return BucketPlan(joined, starts, emptied)

    def _trim(self) -> None:
        """Delete the oldest buckets of all levels but the coarsest once they exceed the limit by a quarter."""
        for index, level in enumerate(self.levels.all[:-1]):
            surplus = len(level.filled) - self.buckets
            if surplus > self.buckets // 4:
                level.keep_range(surplus, len(level.filled))
                for parts in self._parts:
                    parts[index].keep_range(surplus, surplus + self.buckets)

    def rewind(self, step: float) -> None:
        """Remove all records after `step`, from which a resumed session repeats them. A bucket across `step` is rebuilt
        from finer levels as far as they reach back.
        """
        with self.levels.lock:
            for index, level in enumerate(self.levels.all):
                length = bisect_right(level.ends[0], step)
                reached = level.ends[0][length - 1] if length else (level.begins[0] if level.begins else -math.inf)
                level.keep_range(0, length)
                if not length:
                    level.begins = []
                for parts in self._parts:
                    parts[index].keep_range(0, length)
                if index:
                    self._rebuild_last(
                        index, bisect_right(self.levels.all[index - 1].ends[0], reached) if length else 0
                    )
            while len(self.levels.all) > 1 and not self.levels.all[-1].filled:
                self.levels.all.pop()
                for parts in self._parts:
                    parts.pop()
            self.records = sum(self.levels.all[-1].filled)
            self.levels.version += 1
            for curve in self.curves.values():
                curve.recompute_latest()

    def _rebuild_last(self, index: int, first: int) -> None:
        """Append an incomplete bucket to level `index`, merged from the next finer level's buckets from index `first`
        on.
        """
        level, finer = self.levels.all[index], self.levels.all[index - 1]
        end = len(finer.filled)
        if first >= end:
            return
        if not level.filled:
            level.begins = list(finer.begins)
        for ends, others in zip(level.ends, finer.ends, strict=True):
            ends.append(others[-1])
        level.filled.append(sum(finer.filled[first:end]))
        for parts in self._parts:
            parts[index].append(*parts[index - 1].merged(first, end))

    # ------------------------------------------------------------------------------------------------------------------
    # reading

    def window(self, seconds: float, fewest: int, names: Iterable[str], *, step: float | None = None) -> Window:
        """Return the records, with the curves `names`, of the last `seconds` before `step` (None: the newest record),
        at least `fewest` if there are as many. More than twice `fewest` are aggregated to buckets.

        Unknown names are left out. The cost is independent of the record rate.
        """
        with self.levels.lock:
            held = [bisect_right(level.ends[0], math.inf if step is None else step) for level in self.levels.all]
            enough = min(fewest, max(held))
            index = next(index for index, end in enumerate(held) if end >= enough)  # finest level with enough records
            last_s = self.levels.all[index].ends[1][held[index] - 1] if held[index] else 0.0
            for coarser in range(len(self.levels.all) - 1, index, -1):
                if held[coarser] - bisect_right(self.levels.all[coarser].ends[1], last_s - seconds) >= fewest:
                    index = coarser
                    break
            level, end = self.levels.all[index], held[index]
            first = max(0, min(bisect_right(level.ends[1], last_s - seconds, 0, end), end - fewest))
            starts = range(first, end, max(1, (end - first) // fewest))
            begin = tuple(axis[first - 1] for axis in level.ends) if first else tuple(level.begins) or (0.0, 0.0, 0.0)
            steps, wall_s, iterations = (
                [axis[min(start + starts.step, end) - 1] for start in starts] for axis in level.ends
            )
            records = [sum(level.filled[start : min(start + starts.step, end)]) for start in starts]
            values = {
                name: curve.means(index, starts, end) for name in names if (curve := self.curves.get(name)) is not None
            }
            return Window(begin, steps, wall_s, iterations, records, values)

    def position(self, step: float) -> tuple[float, float, float] | None:
        """Return (step, wall seconds, iteration) at the end of the newest record or bucket up to `step`, or of the
        first one if all are later. None without records.
        """
        with self.levels.lock:
            index = self.levels.choose_level(0, step, step, 1)
            ends = self.levels.all[index].ends
            if not ends[0]:
                return None
            last = max(0, bisect_right(ends[0], step) - 1)
            return ends[0][last], ends[1][last], ends[2][last]
