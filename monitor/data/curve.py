"""Curve: one metric's values over the levels of a CurveTable, with its newest value, best, trend, and points for a
chart. Standard library only.

One thread writes (through `monitor.data.curve_table.CurveTable`), any number read: each method that reads buckets holds
the levels' lock.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from monitor.data.buckets import BucketPlan, CurveBuckets, Levels, aggregate
from monitor.data.snapshot import Axis, Point, Series

_AXES: Final[tuple[Axis, ...]] = ("step", "wall", "iteration")
_TREND_S, _TREND_SHORTEST_S, _TREND_POINTS, _TREND_FEWEST = 60.0, 4.0, 48, 6
_NEGLIGIBLE = 0.02  # weight below which values before the window no longer affect the smoothed line


class Column(NamedTuple):
    """Static properties of one metric: name, label, unit, default axis, kind, and whether higher is better or
    non-finite values are errors.
    """

    name: str
    label: str
    unit: str = ""
    higher_better: bool = False
    log_axis: bool = False
    must_be_finite: bool = False
    kind: str = "gauge"
    absent: str = ""


class Curve:
    """Values of one metric of a run at all resolutions (implements `monitor.data.snapshot.Series`). Results always
    include the newest records.
    """

    def __init__(self, levels: Levels, column: Column) -> None:
        (
            self.name,
            self.label,
            self.unit,
            self.higher_better,
            self.log_axis,
            self._must_be_finite,
            self.kind,
            self.absent,
        ) = column
        self.latest: float | None = None  # the newest finite value
        self.not_finite = 0
        self.parts: list[CurveBuckets] = [CurveBuckets()]  # one per level
        self._levels = levels
        self._best: tuple[int, float | None] = (-1, None)
        self._trend: tuple[float, float | None] = (-math.inf, None)  # with its wall time in seconds

    # ------------------------------------------------------------------------------------------------------------------
    # writing

    def add(self, index: int, plan: BucketPlan, values: Sequence[float]) -> None:
        """Add the values of new records to bucket level `index` as `plan` assigns them to buckets. Call it with the
        lock held.
        """
        part, size, strict = self.parts[index], self._levels.all[index].size, self._must_be_finite
        if plan.emptied:
            part.keep_range(0, 0)
        if plan.joined:
            part.merge(*aggregate(values[: plan.joined], strict))
        if size == 1 and math.isfinite(sum(values)):
            new = values[plan.starts.start :] if plan.starts.start else values
            for one in (part.low, part.high, part.total):
                one.extend(new)
            part.count.extend([1] * len(new))
            part.bad.extend([0] * len(new))
            return
        for start in plan.starts:
            part.append(*aggregate(values[start : start + size], strict))

    def update_latest(self, values: Sequence[float]) -> None:
        """Update `latest` (newest finite value) and `not_finite` (number of non-finite values) by the values of new
        records.
        """
        self.latest = next((float(value) for value in reversed(values) if math.isfinite(value)), self.latest)
        if not math.isfinite(sum(values)):
            self.not_finite += aggregate(values, self._must_be_finite)[4]

    def recompute_latest(self) -> None:
        """Recompute `latest` (newest finite value) and `not_finite` (number of non-finite values) from the buckets,
        after records were removed.
        """
        self.not_finite, self.latest = sum(self.parts[-1].bad), None
        for part in self.parts:
            filled = next((k for k in range(len(part.count) - 1, -1, -1) if part.count[k]), None)
            if filled is not None:
                self.latest = part.total[filled] / part.count[filled]
                return

    # ------------------------------------------------------------------------------------------------------------------
    # reading

    @property
    def members(self) -> Mapping[str, Series]:
        """Return {}: the curve of a single run."""
        return {}

    @property
    def best(self) -> float | None:
        """Largest value of the metric so far; None without values, or if higher is not better."""
        if not self.higher_better:
            return None
        if self._best[0] != self._levels.version:
            self._best = (self._levels.version, self.maximum())
        return self._best[1]

    @property
    def trend_per_min(self) -> float | None:
        """Slope per minute over the last minute of wall time: Tukey's resistant line (through the medians of the first
        and the last third), which outliers do not change. None with fewer than 6 points or over less than 4 s.

        Recomputed when the newest record has moved by a second in either direction.
        """
        last = self._levels.last
        if last is not None and abs(last[1] - self._trend[0]) >= 1.0:
            with self._levels.lock:
                self._trend = (last[1], self._slope())
        return self._trend[1]

    def _slope(self) -> float | None:
        """Compute the metric's slope per minute of wall time from up to 48 points of the last minute, as
        `trend_per_min` describes; None if there are too few.
        """
        last = self._levels.last
        if last is None:
            return None
        index = self._levels.choose_level(1, last[1] - _TREND_S, last[1], _TREND_POINTS)
        ends = self._levels.all[index].ends[1]
        first = bisect_left(ends, last[1] - _TREND_S)
        starts = range(first, len(ends), max(1, (len(ends) - first) // _TREND_POINTS))
        means = self.means(index, starts, len(ends))
        points = [
            (ends[min(start + starts.step, len(ends)) - 1], mean)
            for start, mean in zip(starts, means, strict=True)
            if not math.isnan(mean)
        ]
        third = len(points) // 3
        if len(points) < _TREND_FEWEST or points[-1][0] - points[0][0] < _TREND_SHORTEST_S:
            return None
        (early_s, early), (late_s, late) = (
            (upper_median([x for x, _ in some]), upper_median([y for _, y in some]))
            for some in (points[:third], points[-third:])
        )
        slope = (late - early) / (late_s - early_s) * 60.0 if late_s > early_s else math.nan
        return slope if math.isfinite(slope) else None

    def maximum(self, step: float | None = None) -> float | None:
        """Largest finite value of the metric up to `step` (None: of the whole run); None without values."""
        with self._levels.lock:
            high = self.parts[-1].high
            largest = max(
                high if step is None else high[: bisect_left(self._levels.all[-1].ends[0], step) + 1], default=-math.inf
            )
        return largest if math.isfinite(largest) else None

    def first_best_newest(self, step: float | None = None) -> tuple[float, float, float] | None:
        """Return (first, largest, newest) value of the metric up to `step` (None: of the whole run); None without
        values. The first is the mean of its bucket.
        """
        with self._levels.lock:
            part, end = self.parts[-1], len(self.parts[-1].count)
            if step is not None:
                end = min(end, bisect_left(self._levels.all[-1].ends[0], step) + 1)
            first = next((k for k in range(end) if part.count[k]), None)
            last = next((k for k in range(end - 1, -1, -1) if part.count[k]), None)
            if first is None or last is None:
                return None
            newest = self.latest if step is None and self.latest is not None else part.total[last] / part.count[last]
            return part.total[first] / part.count[first], max(part.high[:end]), newest

    def means(self, index: int, starts: range, end: int) -> list[float]:
        """Return the mean of each group of `starts.step` consecutive buckets of level `index`, up to bucket `end`; NaN
        for a group without values. Call it with the lock held.
        """
        part, size = self.parts[index], starts.step
        if size == 1:
            pairs = zip(part.total[starts.start : end], part.count[starts.start : end], strict=True)
            return [total / count if count else math.nan for total, count in pairs]
        limits = [(start, min(start + size, end)) for start in starts]
        return [
            sum(part.total[start:stop]) / count if (count := sum(part.count[start:stop])) else math.nan
            for start, stop in limits
        ]

    def extent(self, axis: Axis) -> tuple[float, float] | None:
        """Return the range (first x, last x) in which the metric has values on `axis`; None without values. The first x
        is the start of its bucket.
        """
        which = _AXES.index(axis)
        with self._levels.lock:
            level, part = self._levels.all[-1], self.parts[-1]
            buckets = range(len(part.count))
            first = next((k for k in buckets if part.count[k] or part.bad[k]), None)
            last = next((k for k in reversed(buckets) if part.count[k] or part.bad[k]), None)
            if first is None or last is None:
                return None
            return (level.ends[which][first - 1] if first else level.begins[which]), level.ends[which][last]

    def view(
        self, axis: Axis, first: float, last: float, columns: int, smoothing: float = 0.0
    ) -> Sequence[Point | None]:
        """Resample the metric to `columns` chart points that cover [first, last] of `axis`; None for a column without
        values.

        A record covers the interval from its predecessor's x to its x. One wider than a column fills all columns it
        covers, so a column is None only before the first record, after the last, or where records hold no value (no
        episode ended). A column with only non-finite values is marked and repeats the previous value.

        `smoothing` in [0, 1) is the weight of an exponential moving average over the means; minimum and maximum stay.
        It starts before the window, so that scrolling does not move the line.
        """
        width = (last - first) / columns if columns > 0 else 0.0
        if not (width > 0.0 and math.isfinite(width)):
            return [None] * max(0, columns)
        smoothing = min(max(smoothing, 0.0), 0.999)
        lead = min(2 * columns, math.ceil(math.log(_NEGLIGIBLE) / math.log(smoothing))) if smoothing > 0.0 else 0
        which = _AXES.index(axis)
        with self._levels.lock:
            index = self._levels.choose_level(which, first, last, columns)
            level, part = self._levels.all[index], self.parts[index]
            ends = level.ends[which]
            if not ends:
                return [None] * columns
            lead = min(lead, max(0, math.ceil((first - level.begins[which]) / width)))
            points = self._columns(part, ends, level.begins[which], first - lead * width, width, columns + lead)
        return _smoothed(points, smoothing)[lead:] if smoothing > 0.0 else points

    @staticmethod
    def _columns(
        part: CurveBuckets, ends: array[float], begin: float, first: float, width: float, columns: int
    ) -> list[Point | None]:
        """Return one chart point (or None) for each of `columns` columns of `width` from x = `first`. `ends`: right
        edge of each bucket in `part`; `begin`: left edge of the first one.
        """
        points: list[Point | None] = []
        known: Point | None = None
        filled, point = (-1, -1), known
        left = bisect_left(ends, first)
        for column in range(columns):
            # Buckets that end in (left edge, right edge], else the one that spans the column.
            edge = first + (column + 1) * width
            right = bisect_right(ends, edge, left)
            if column == columns - 1 and right < len(ends) and ends[right] - edge < 1e-9 * max(abs(edge), 1.0):
                right += 1
            span = (left, right) if right > left else (left, left + 1)
            outside = span[1] > len(ends) or (edge < begin if left == 0 else False)
            if outside:
                point, filled = None, (-1, -1)
            elif span != filled:
                point, filled = part.chart_point(*span), span
                if point is None and any(part.bad[slice(*span)]):
                    before = known.mean if known is not None else 0.0
                    point = Point(before, before, before, True)
                elif point is not None:
                    known = point
            points.append(point)
            left = right
        return points

    def nearest(self, axis: Axis, x: float) -> tuple[float, Point] | None:
        """Return (x, point) of the recorded value nearest to `x` on `axis`; None without values. Recent values are
        single records, older ones the finest remaining bucket.
        """
        which = _AXES.index(axis)
        with self._levels.lock:
            for index in range(self._levels.choose_level(which, x, x, 1 << 30), len(self.parts)):
                ends, part = self._levels.all[index].ends[which], self.parts[index]
                at = bisect_left(ends, x)
                right = next((k for k in range(at, len(ends)) if part.count[k]), None)
                left = next((k for k in range(min(at, len(ends)) - 1, -1, -1) if part.count[k]), None)
                candidates = [k for k in (left, right) if k is not None]
                if candidates:
                    best = min(candidates, key=lambda k: abs(ends[k] - x))
                    point = part.chart_point(best, best + 1)
                    assert point is not None
                    return ends[best], point
        return None


def _smoothed(points: list[Point | None], weight: float) -> list[Point | None]:
    """Smooth the points' means by an exponential moving average with bias correction (Kingma & Ba, 2015); None stays
    None. `weight`: share of the past, 0 to 1.
    """
    smooth = mass = 0.0
    result: list[Point | None] = []
    for point in points:
        if point is None:
            result.append(None)
            continue
        smooth, mass = weight * smooth + (1.0 - weight) * point.mean, weight * mass + (1.0 - weight)
        result.append(point._replace(mean=smooth / mass))
    return result


def upper_median(values: Sequence[float]) -> float:
    """Return the upper median, an element of `values` (at least one)."""
    return sorted(values)[len(values) // 2]
