"""The whole history of every metric in bounded memory, ready to be drawn at any zoom. Standard library only. Knows no file and no screen.

All metrics of a run are numbered by the same records, so a `Table` keeps the three x's (step, wall, iteration) once, and each `Curve` its values. Records
are summed up in levels: buckets of 1, 4, 16, 64 ... records, each with the smallest value, the largest, the sum, how many, and how many were not finite. The
coarsest level reaches back to the first record; every finer one keeps its newest `BUCKETS`. So a window near the newest record is shown exactly, one that
begins 1/4^k back from it with at least `BUCKETS` / 4 buckets, and the whole run with `BUCKETS` / 4 to `BUCKETS`.

Memory: 3 x 8 + 2 x 4 bytes a bucket and metric, at most 1.25 `BUCKETS` buckets a level, log4(records / `BUCKETS`) levels: 24 metrics of a run of 10^6 records
take 6 MB, of 10^9 records 11 MB. With more than 64 metrics the levels are shortened in proportion, so that a run stays below 32 MB whatever its file says.

Threads: one writes, any number read. `Table.lock` is held for each `extend`, `rewind` and `view`; readers wait a millisecond at most for a poll's records. A
history of millions of records is put into a table of its own before it is shown.
"""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from monitor.data.downsampling import Level, Part, Plan, sum_up
from monitor.data.snapshot import Axis, Point

BUCKETS: Final = 1024
_FACTOR, _FEWEST_BUCKETS, _FEW_METRICS = 4, 64, 64
_AXES: Final[tuple[Axis, ...]] = ("step", "wall", "iteration")
_TREND_S, _TREND_SHORTEST_S, _TREND_POINTS, _TREND_FEWEST = 60.0, 4.0, 48, 6
_FORGOTTEN = 0.02  # the weight below which what came before a window no longer shows in its smoothed line


class Column(NamedTuple):
    """What a metric is, as far as drawing it goes."""

    name: str
    label: str
    unit: str = ""
    higher_better: bool = False
    log_axis: bool = False
    must_be_finite: bool = False
    kind: str = "gauge"


class Window(NamedTuple):
    """Some neighbouring records, or buckets of them: where the first begins (step, wall, iteration), where each ends, and its means (NaN: no value)."""

    begin: tuple[float, ...]
    steps: list[float]
    walls: list[float]
    iterations: list[float]
    records: list[int]
    values: dict[str, list[float]]


class Table:
    """The curves of a run over their common records. `extend` adds records, `rewind` takes back what a resume did again."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.lock = threading.Lock()
        self.columns = tuple(columns)
        room = BUCKETS * _FEW_METRICS // max(_FEW_METRICS, len(self.columns))
        self._buckets = max(_FEWEST_BUCKETS, room)
        self._levels = [Level(1)]
        self.version = 0
        self.records = 0  # that there is something left of
        self.curves: Mapping[str, Curve] = {column.name: Curve(self, column) for column in self.columns}
        self._parts = [curve._parts for curve in self.curves.values()]

    @property
    def last(self) -> tuple[float, float, float] | None:
        """Step, wall seconds and iteration of the newest record."""
        ends = self._levels[-1].ends
        return (ends[0][-1], ends[1][-1], ends[2][-1]) if ends[0] else None

    def extent(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Where the first record begins and the last one ends (step, wall seconds, iteration); None while there is none."""
        with self.lock:
            last, begins = self.last, self._levels[-1].begins
            return None if last is None else (tuple(begins), last)

    # -------------------------------------------------------------------------------------------------------------------------------- writing

    def extend(
        self, steps: Sequence[float], walls: Sequence[float], iterations: Sequence[float], columns: Sequence[Sequence[float]],
        *, begin: tuple[float, float, float] | None = None,
    ) -> None:  # fmt: skip
        """Add records: their steps, seconds and iterations, and the values of each column in the order of `columns`; all as long as `steps`.

        `begin` is where the first of all records begins (elsewhere each begins where the one before it ends); without it, where it ends.
        An x that goes back is taken for the one before it. Arrays of doubles are the fastest to add; sequences of any numbers will do.
        """
        if not len(steps):
            return
        with self.lock:
            last = self.last
            edges = tuple(
                array("d", accumulate(axis, max) if last is None else list(accumulate(axis, max, initial=last[index]))[1:])
                for index, axis in enumerate((steps, walls, iterations))
            )
            origin = last or tuple(min(place, axis[0]) for place, axis in zip(begin or (math.inf,) * 3, edges, strict=True))
            self._grow(len(steps))
            for index, level in enumerate(self._levels):
                plan = self._plan(level, edges, origin, top=index == len(self._levels) - 1)
                for curve, values in zip(self.curves.values(), columns, strict=True):
                    curve._take(index, plan, values)
            for curve, values in zip(self.curves.values(), columns, strict=True):
                curve._note(values)
            self.version += 1
            self.records += len(steps)
            self._trim()

    def _grow(self, count: int) -> None:
        """Begin coarser levels until the coarsest has room for all there is and `count` more."""
        while len(self._levels[-1].filled) + -(-count // self._levels[-1].size) > self._buckets:
            below = self._levels[-1]
            above = Level(below.size * _FACTOR)
            above.begins = below.begins
            groups = range(0, len(below.filled), _FACTOR)
            for new, old in zip(above.ends, below.ends, strict=True):
                new.extend(old[_FACTOR - 1 :: _FACTOR])
                if len(new) < len(groups):
                    new.append(old[-1])
            above.filled.extend(sum(below.filled[first : first + _FACTOR]) for first in groups)
            for parts in self._parts:
                part = Part()
                for first in groups:
                    part.append(*parts[-1].of(first, first + _FACTOR))
                parts.append(part)
            self._levels.append(above)

    def _plan(self, level: Level, edges: Sequence[array[float]], origin: Sequence[float], *, top: bool) -> Plan:
        """Enter new records into a level's x's, and say how their values fall into its buckets."""
        count, size = len(edges[0]), level.size
        joined = min(count, size - level.filled[-1]) if level.filled and level.filled[-1] < size else 0
        starts = range(joined, count, size)
        emptied = not top and len(starts) > self._buckets
        if emptied:
            starts = starts[-self._buckets :]
            level.cut(0, 0)
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
        return Plan(joined, starts, emptied)

    def _trim(self) -> None:
        for index, level in enumerate(self._levels[:-1]):
            surplus = len(level.filled) - self._buckets
            if surplus > self._buckets // 4:
                level.cut(surplus, len(level.filled))
                for parts in self._parts:
                    parts[index].cut(surplus, surplus + self._buckets)

    def rewind(self, step: float) -> None:
        """Drop all records of a later step: a resume went back to it. Of a bucket that holds both, what finer levels know is kept."""
        with self.lock:
            for index, level in enumerate(self._levels):
                kept = bisect_right(level.ends[0], step)
                reached = level.ends[0][kept - 1] if kept else (level.begins[0] if level.begins else -math.inf)
                level.cut(0, kept)
                if not kept:
                    level.begins = []
                for parts in self._parts:
                    parts[index].cut(0, kept)
                if index:
                    self._mend(index, bisect_right(self._levels[index - 1].ends[0], reached) if kept else 0)
            while len(self._levels) > 1 and not self._levels[-1].filled:
                self._levels.pop()
                for parts in self._parts:
                    parts.pop()
            self.records = sum(self._levels[-1].filled)
            self.version += 1
            for curve in self.curves.values():
                curve._recall()

    def _mend(self, index: int, first: int) -> None:
        """Put the finer level's buckets from `first` on into an open bucket at the end of a level."""
        level, finer = self._levels[index], self._levels[index - 1]
        end = len(finer.filled)
        if first >= end:
            return
        if not level.filled:
            level.begins = list(finer.begins)
        for ends, others in zip(level.ends, finer.ends, strict=True):
            ends.append(others[-1])
        level.filled.append(sum(finer.filled[first:end]))
        for parts in self._parts:
            parts[index].append(*parts[index - 1].of(first, end))

    # -------------------------------------------------------------------------------------------------------------------------------- reading

    def choose(self, axis: int, first: float, last: float, wanted: int) -> int:
        """The coarsest level that has `wanted` buckets in [first, last], or else the finest that reaches back to `first`. The lock is held."""
        reach = [index for index, level in enumerate(self._levels) if level.begins and level.begins[axis] <= first]
        finest = reach[0] if reach else len(self._levels) - 1
        for index in range(len(self._levels) - 1, finest, -1):
            ends = self._levels[index].ends[axis]
            if bisect_right(ends, last) - bisect_left(ends, first) >= wanted:
                return index
        return finest

    def window(self, seconds: float, fewest: int, names: Iterable[str], *, step: float | None = None) -> Window:
        """The records of the last `seconds` up to a step (None: the newest), at least `fewest` where there are so many, summed up to less than twice as many.

        Of the curves `names`; those that the run has not are left out. Costs the same whatever the records a second.
        """
        with self.lock:
            held = [bisect_right(level.ends[0], math.inf if step is None else step) for level in self._levels]
            enough = min(fewest, max(held))
            index = next(index for index, end in enumerate(held) if end >= enough)  # the finest that has enough
            last_s = self._levels[index].ends[1][held[index] - 1] if held[index] else 0.0
            for coarser in range(len(self._levels) - 1, index, -1):
                if held[coarser] - bisect_right(self._levels[coarser].ends[1], last_s - seconds) >= fewest:
                    index = coarser
                    break
            level, end = self._levels[index], held[index]
            first = max(0, min(bisect_right(level.ends[1], last_s - seconds, 0, end), end - fewest))
            starts = range(first, end, max(1, (end - first) // fewest))
            begin = tuple(axis[first - 1] for axis in level.ends) if first else tuple(level.begins) or (0.0, 0.0, 0.0)
            steps, wall_s, iterations = ([axis[min(start + starts.step, end) - 1] for start in starts] for axis in level.ends)
            records = [sum(level.filled[start : min(start + starts.step, end)]) for start in starts]
            values = {name: curve._means(index, starts, end) for name in names if (curve := self.curves.get(name)) is not None}
            return Window(begin, steps, wall_s, iterations, records, values)

    def place(self, step: float) -> tuple[float, float, float] | None:
        """Step, wall seconds and iteration of the newest record (or bucket) up to a step; of the first one where there is none."""
        with self.lock:
            index = self.choose(0, step, step, 1)
            ends = self._levels[index].ends
            if not ends[0]:
                return None
            found = max(0, bisect_right(ends[0], step) - 1)
            return ends[0][found], ends[1][found], ends[2][found]


class Curve:
    """One metric of a table: `monitor.data.snapshot.Series`. Alive: it shows the newest records whenever it is asked."""

    def __init__(self, table: Table, column: Column) -> None:
        self.name, self.label, self.unit, self.higher_better, self.log_axis, self._must_be_finite, self.kind = column
        self.latest: float | None = None  # the newest finite value
        self.not_finite = 0
        self._table = table
        self._parts: list[Part] = [Part()]
        self._best: tuple[int, float | None] = (-1, None)
        self._trend: tuple[float, float | None] = (-math.inf, None)  # and the wall second it was found in

    # -------------------------------------------------------------------------------------------------------------------------------- writing

    def _take(self, index: int, plan: Plan, values: Sequence[float]) -> None:
        part, size, strict = self._parts[index], self._table._levels[index].size, self._must_be_finite
        if plan.emptied:
            part.cut(0, 0)
        if plan.joined:
            part.merge(*sum_up(values[: plan.joined], strict))
        if size == 1 and math.isfinite(sum(values)):
            new = values[plan.starts.start :] if plan.starts.start else values
            for one in (part.low, part.high, part.total):
                one.extend(new)
            part.count.extend([1] * len(new))
            part.bad.extend([0] * len(new))
            return
        for start in plan.starts:
            part.append(*sum_up(values[start : start + size], strict))

    def _note(self, values: Sequence[float]) -> None:
        self.latest = next((float(value) for value in reversed(values) if math.isfinite(value)), self.latest)
        if not math.isfinite(sum(values)):
            self.not_finite += sum_up(values, self._must_be_finite)[4]

    def _recall(self) -> None:
        """What was noted, found again after a rewind."""
        self.not_finite, self.latest = sum(self._parts[-1].bad), None
        for part in self._parts:
            filled = next((k for k in range(len(part.count) - 1, -1, -1) if part.count[k]), None)
            if filled is not None:
                self.latest = part.total[filled] / part.count[filled]
                return

    # -------------------------------------------------------------------------------------------------------------------------------- reading

    @property
    def best(self) -> float | None:
        """The largest value there was, where larger is better; None elsewhere."""
        if not self.higher_better:
            return None
        if self._best[0] != self._table.version:
            self._best = (self._table.version, self.highest())
        return self._best[1]

    @property
    def trend_per_min(self) -> float | None:
        """The slope over the last minute of wall time, by Tukey's resistant line (medians of the first and the last third): outliers do not turn it.

        Found anew when the records have gone on (or back) by a second.
        """
        last = self._table.last
        if last is not None and abs(last[1] - self._trend[0]) >= 1.0:
            with self._table.lock:
                self._trend = (last[1], self._slope())
        return self._trend[1]

    def _slope(self) -> float | None:
        last = self._table.last
        if last is None:
            return None
        index = self._table.choose(1, last[1] - _TREND_S, last[1], _TREND_POINTS)
        ends = self._table._levels[index].ends[1]
        first = bisect_left(ends, last[1] - _TREND_S)
        starts = range(first, len(ends), max(1, (len(ends) - first) // _TREND_POINTS))
        means = self._means(index, starts, len(ends))
        points = [(ends[min(start + starts.step, len(ends)) - 1], mean) for start, mean in zip(starts, means, strict=True) if not math.isnan(mean)]
        third = len(points) // 3
        if len(points) < _TREND_FEWEST or points[-1][0] - points[0][0] < _TREND_SHORTEST_S:
            return None
        (early_s, early), (late_s, late) = (
            (_median([x for x, _ in some]), _median([y for _, y in some])) for some in (points[:third], points[-third:])
        )
        slope = (late - early) / (late_s - early_s) * 60.0 if late_s > early_s else math.nan
        return slope if math.isfinite(slope) else None

    def highest(self, step: float | None = None) -> float | None:
        """The largest finite value up to a step (None: of all)."""
        with self._table.lock:
            high = self._parts[-1].high
            largest = max(high if step is None else high[: bisect_left(self._table._levels[-1].ends[0], step) + 1], default=-math.inf)
        return largest if math.isfinite(largest) else None

    def course(self, step: float | None = None) -> tuple[float, float, float] | None:
        """The first value (the mean of its bucket), the highest and the newest up to a step (None: of all); None while there is none."""
        with self._table.lock:
            part, end = self._parts[-1], len(self._parts[-1].count)
            if step is not None:
                end = min(end, bisect_left(self._table._levels[-1].ends[0], step) + 1)
            first = next((k for k in range(end) if part.count[k]), None)
            last = next((k for k in range(end - 1, -1, -1) if part.count[k]), None)
            if first is None or last is None:
                return None
            newest = self.latest if step is None and self.latest is not None else part.total[last] / part.count[last]
            return part.total[first] / part.count[first], max(part.high[:end]), newest

    def _means(self, index: int, starts: range, end: int) -> list[float]:
        """The means of a level's buckets up to `end`, as many to each as `starts` is apart; NaN where there is no value. The lock is held."""
        part, size = self._parts[index], starts.step
        if size == 1:
            pairs = zip(part.total[starts.start : end], part.count[starts.start : end], strict=True)
            return [total / count if count else math.nan for total, count in pairs]
        limits = [(start, min(start + size, end)) for start in starts]
        return [sum(part.total[start:stop]) / count if (count := sum(part.count[start:stop])) else math.nan for start, stop in limits]

    def extent(self, axis: Axis) -> tuple[float, float] | None:
        """First and last x there is a value for; None while there is none. The first is where the first bucket begins."""
        which = _AXES.index(axis)
        with self._table.lock:
            level, part = self._table._levels[-1], self._parts[-1]
            buckets = range(len(part.count))
            first = next((k for k in buckets if part.count[k] or part.bad[k]), None)
            last = next((k for k in reversed(buckets) if part.count[k] or part.bad[k]), None)
            if first is None or last is None:
                return None
            return (level.ends[which][first - 1] if first else level.begins[which]), level.ends[which][last]

    def view(self, axis: Axis, first: float, last: float, columns: int, smoothing: float = 0.0) -> Sequence[Point | None]:
        """`columns` points that cover [first, last]; None where there is no value.

        A record stands for the time from the one before it to its own x, as it covers those iterations; so one wider than a column fills the columns it
        covers, and a column is None only before the first record, after the last, or where the records hold no value (no episode ended): whether to draw
        across such a gap is the chart's matter. A column whose values were all broken is marked, and repeats the value before it.
        `smoothing` in [0, 1) is the weight of an exponential mean, a column, over the means; bands stay as they are. It begins before the window, so
        that scrolling does not move the line.
        """
        width = (last - first) / columns if columns > 0 else 0.0
        if not (width > 0.0 and math.isfinite(width)):
            return [None] * max(0, columns)
        smoothing = min(max(smoothing, 0.0), 0.999)
        lead = min(2 * columns, math.ceil(math.log(_FORGOTTEN) / math.log(smoothing))) if smoothing > 0.0 else 0
        which = _AXES.index(axis)
        with self._table.lock:
            index = self._table.choose(which, first, last, columns)
            level, part = self._table._levels[index], self._parts[index]
            ends = level.ends[which]
            if not ends:
                return [None] * columns
            lead = min(lead, max(0, math.ceil((first - level.begins[which]) / width)))
            points = self._columns(part, ends, level.begins[which], first - lead * width, width, columns + lead)
        return _smoothed(points, smoothing)[lead:] if smoothing > 0.0 else points

    @staticmethod
    def _columns(part: Part, ends: array[float], begin: float, first: float, width: float, columns: int) -> list[Point | None]:
        points: list[Point | None] = []
        known: Point | None = None
        filled, point = (-1, -1), known
        left = bisect_left(ends, first)
        for column in range(columns):
            # Buckets that end in (left edge, right edge], or else the one that reaches across the column.
            edge = first + (column + 1) * width
            right = bisect_right(ends, edge, left)
            if column == columns - 1 and right < len(ends) and ends[right] - edge < 1e-9 * max(abs(edge), 1.0):
                right += 1
            span = (left, right) if right > left else (left, left + 1)
            outside = span[1] > len(ends) or (edge < begin if left == 0 else False)
            if outside:
                point, filled = None, (-1, -1)
            elif span != filled:
                point, filled = part.point(*span), span
                if point is None and any(part.bad[slice(*span)]):
                    before = known.mean if known is not None else 0.0
                    point = Point(before, before, before, True)
                elif point is not None:
                    known = point
            points.append(point)
            left = right
        return points

    def near(self, axis: Axis, x: float) -> tuple[float, Point] | None:
        """The point nearest to x and its exact x, for inspection: a single record where it is recent, else the finest bucket there is."""
        which = _AXES.index(axis)
        with self._table.lock:
            for index in range(self._table.choose(which, x, x, 1 << 30), len(self._parts)):
                ends, part = self._table._levels[index].ends[which], self._parts[index]
                at = bisect_left(ends, x)
                right = next((k for k in range(at, len(ends)) if part.count[k]), None)
                left = next((k for k in range(min(at, len(ends)) - 1, -1, -1) if part.count[k]), None)
                found = [k for k in (left, right) if k is not None]
                if found:
                    best = min(found, key=lambda k: abs(ends[k] - x))
                    point = part.point(best, best + 1)
                    assert point is not None
                    return ends[best], point
        return None


def _smoothed(points: list[Point | None], weight: float) -> list[Point | None]:
    """Exponential means, without the pull of an initial zero (Kingma & Ba's correction)."""
    smooth = mass = 0.0
    result: list[Point | None] = []
    for point in points:
        if point is None:
            result.append(None)
            continue
        smooth, mass = weight * smooth + (1.0 - weight) * point.mean, weight * mass + (1.0 - weight)
        result.append(point._replace(mean=smooth / mass))
    return result


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
