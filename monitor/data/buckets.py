"""Buckets of a metric's history: edges, contents, and the mapping of new records to buckets. Standard library only.

`monitor.data.curve_table` fills the buckets from records.
"""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from monitor.data.snapshot import Point


class Level:
    """One resolution of a run's history: buckets of `size` consecutive records, shared by all curves. Stores each
    bucket's end on the three axes (step, wall seconds, iteration) and its record count; the last bucket may be
    incomplete.
    """

    __slots__ = ("begins", "ends", "filled", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.begins: list[float] = []  # start of the first bucket per axis; empty without buckets
        self.ends: tuple[array[float], array[float], array[float]] = (array("d"), array("d"), array("d"))
        self.filled = array("Q")

    def keep_range(self, first: int, last: int) -> None:
        """Keep only the buckets with indices `first` to `last` - 1 of this resolution; delete all others."""
        if first:
            self.begins = [ends[first - 1] for ends in self.ends]
        for one in (*self.ends, self.filled):
            del one[last:]
            del one[:first]


class Levels:
    """All resolutions of a run's history, from single records (index 0) to the coarsest buckets, which cover the whole
    run. Hold `lock` to read or change them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all = [Level(1)]
        self.version = 0  # increases with every change

    @property
    def last(self) -> tuple[float, float, float] | None:
        """Step, wall seconds and iteration of the newest record; None without records."""
        ends = self.all[-1].ends
        return (ends[0][-1], ends[1][-1], ends[2][-1]) if ends[0] else None

    def choose_level(self, axis: int, first: float, last: float, wanted: int) -> int:
        """Return the index of the resolution to draw [first, last] of an axis (0 step, 1 wall seconds, 2 iteration):
        the coarsest with at least `wanted` buckets in it, else the finest that reaches back to `first`. Call it with
        the lock held.
        """
        reaching = [index for index, level in enumerate(self.all) if level.begins and level.begins[axis] <= first]
        finest = reaching[0] if reaching else len(self.all) - 1
        for index in range(len(self.all) - 1, finest, -1):
            ends = self.all[index].ends[axis]
            if bisect_right(ends, last) - bisect_left(ends, first) >= wanted:
                return index
        return finest


class CurveBuckets:
    """One curve's values in each bucket of one resolution: minimum, maximum, sum, count of finite values, count of
    non-finite ones (`bad`). An empty bucket has low = inf, high = -inf, so that min, max and sum need no special case.
    """

    __slots__ = ("bad", "count", "high", "low", "total")

    def __init__(self) -> None:
        self.low, self.high, self.total = array("d"), array("d"), array("d")
        self.count, self.bad = array("I"), array("I")

    def keep_range(self, first: int, last: int) -> None:
        """Keep only the buckets with indices `first` to `last` - 1 of this curve; delete all others."""
        for one in (self.low, self.high, self.total, self.count, self.bad):
            del one[last:]
            del one[:first]

    def append(self, low: float, high: float, total: float, count: int, bad: int) -> None:
        """Append a bucket: minimum, maximum, sum and count of its finite values, and its number of non-finite ones
        (`bad`).
        """
        self.low.append(low)
        self.high.append(high)
        self.total.append(total)
        self.count.append(count)
        self.bad.append(bad)

    def merge(self, low: float, high: float, total: float, count: int, bad: int) -> None:
        """Merge values, given by their minimum, maximum, sum, count and number of non-finite ones (`bad`), into the
        last bucket.
        """
        if low < self.low[-1]:
            self.low[-1] = low
        if high > self.high[-1]:
            self.high[-1] = high
        self.total[-1] += total
        self.count[-1] += count
        self.bad[-1] += bad

    def merged(self, first: int, last: int) -> tuple[float, float, float, int, int]:
        """Return the aggregate (low, high, total, count, bad) of the buckets with indices `first` to `last` - 1, at
        least one.
        """
        return (
            min(self.low[first:last]),
            max(self.high[first:last]),
            sum(self.total[first:last]),
            sum(self.count[first:last]),
            sum(self.bad[first:last]),
        )

    def chart_point(self, first: int, last: int) -> Point | None:
        """Return the chart point (minimum, mean, maximum) of the buckets with indices `first` to `last` - 1; None if
        they hold no finite value.
        """
        if last - first == 1:
            count, low, high, total, bad = (
                self.count[first],
                self.low[first],
                self.high[first],
                self.total[first],
                self.bad[first] > 0,
            )
        elif last - first == 2:  # the common case, faster than slices
            second = first + 1
            count, total = self.count[first] + self.count[second], self.total[first] + self.total[second]
            low = self.low[first] if self.low[first] <= self.low[second] else self.low[second]
            high = self.high[first] if self.high[first] >= self.high[second] else self.high[second]
            bad = self.bad[first] > 0 or self.bad[second] > 0
        else:
            count = sum(self.count[first:last])
            low, high, total = min(self.low[first:last]), max(self.high[first:last]), sum(self.total[first:last])
            bad = any(self.bad[first:last])
        return Point(low, _mean(low, high, total, count), high, bad) if count else None


def _mean(low: float, high: float, total: float, count: int) -> float:
    """Return total / count, clamped to [low, high]; the midpoint of `low` and `high` if the sum overflowed."""
    mean = total / count
    if low <= mean <= high:
        return mean
    if not math.isfinite(mean):  # the sum overflowed
        mean = low / 2 + high / 2
    return min(max(mean, low), high)


def aggregate(values: Sequence[float], must_be_finite: bool) -> tuple[float, float, float, int, int]:
    """Return (minimum, maximum, sum, count) of the finite values and the number of non-finite ones. NaN counts as
    non-finite only with `must_be_finite`; otherwise it means "no value".
    """
    total = sum(values)
    if math.isfinite(total):
        return min(values), max(values), total, len(values), 0
    finite = [value for value in values if math.isfinite(value)]
    bad = len(values) - len(finite) if must_be_finite else sum(map(math.isinf, values))
    return (min(finite), max(finite), sum(finite), len(finite), bad) if finite else (math.inf, -math.inf, 0.0, 0, bad)


class BucketPlan(NamedTuple):
    """Assignment of new records to the buckets of one resolution: the first `joined` records complete the last bucket,
    then one bucket starts at each index in `starts`. With `emptied`, earlier buckets are deleted first.
    """

    joined: int
    starts: range
    emptied: bool  # discard the level's previous buckets
