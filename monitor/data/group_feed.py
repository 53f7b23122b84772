"""Group feed: a group of runs as one source, with each metric's mean over seeds and its 95 % confidence interval.
Standard library only. Knows no widget.

At each x the mean covers the runs that have reached it (linear interpolation between two of their values); it has a
band if there are at least two.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from monitor.data.feed import LiveFeed
from monitor.data.snapshot import Axis, Point, RunFacts, RunRow, Series, Snapshot
from operant.runs import groups
from operant.runs.groups import Group

_JOIN_S: Final = 1.0
find = groups.find


def rows(root: Path, everywhere: bool = True) -> list[RunRow]:
    """Return the run list's rows for all groups in the folder `root`, newest first; with `everywhere` also for groups
    next to the runs of the user's index.
    """
    result = []
    for group in groups.list_groups(root, everywhere):
        described = groups.describe(group)
        score, first = (
            described["bands"]["eval_return"],
            next((row for row in described["runs"] if "env" in row), dict[str, Any]()),
        )
        state = (
            "running" if described["live"] else "finished" if described["finished"] == described["seeds"] else "stopped"
        )
        mean = "-" if score is None else f"{score['mean']:.4g}"
        progress = f"{described['finished']} of {described['seeds']} seeds"
        result.append(
            RunRow(
                group.id,
                str(group.path),
                state,
                first.get("env") or "-",
                first.get("algo") or "-",
                mean,
                "mean",
                progress,
                "-",
            )
        )
    return result


def open_group(path: str) -> GroupFeed | None:
    """Return a feed of the group in the folder `path`; None if the folder holds no group."""
    group = groups.load(Path(path))
    return None if group is None else GroupFeed(group)


class MeanCurve:
    """Mean of one metric over the runs of a group, with its 95 % confidence interval (implements
    `monitor.data.snapshot.Series`). Created again for each snapshot.
    """

    def __init__(self, curves: Sequence[Series]) -> None:
        first = curves[0]
        self.name, self.label, self.unit, self.kind, self.absent = (
            first.name,
            first.label,
            first.unit,
            first.kind,
            first.absent,
        )
        self.higher_better, self.log_axis = first.higher_better, first.log_axis
        self.best: float | None = None  # not meaningful for a mean
        self.trend_per_min: float | None = None
        newest = groups.band([one.latest for one in curves if one.latest is not None])
        self.latest = None if newest is None else newest.mean
        self.not_finite = sum(one.not_finite for one in curves)
        self._curves = curves

    def extent(self, axis: Axis) -> tuple[float, float] | None:
        """Return the range on `axis` from the first value of any run to the last of any; None without values."""
        extents = [extent for one in self._curves if (extent := one.extent(axis)) is not None]
        return (min(begin for begin, _ in extents), max(end for _, end in extents)) if extents else None

    def view(
        self, axis: Axis, first: float, last: float, columns: int, smoothing: float = 0.0
    ) -> Sequence[Point | None]:
        """Resample to `columns` points that cover [first, last] of `axis`: means over the runs, with the ends of the
        confidence interval as low and high.
        """
        return [
            _mean(values)
            for values in zip(
                *(_filled(one.view(axis, first, last, columns, smoothing)) for one in self._curves), strict=True
            )
        ]

    def nearest(self, axis: Axis, x: float) -> tuple[float, Point] | None:
        """Return (x, point): the mean of the runs' values nearest to `x` on `axis`, with the x of the first run's
        value. None without values.
        """
        nearby = [near for one in self._curves if (near := one.nearest(axis, x)) is not None]
        point = _mean([point.mean for _, point in nearby])
        return (nearby[0][0], point) if point is not None else None


def _mean(values: Iterable[float | None]) -> Point | None:
    """Return the mean of the values with its 95 % confidence interval as low and high; None if all are None."""
    band = groups.band([value for value in values if value is not None])
    if band is None:
        return None
    half = band.half or 0.0
    return Point(band.mean - half, band.mean, band.mean + half)


def _filled(points: Sequence[Point | None]) -> list[float | None]:
    """Return the points' means with gaps interpolated linearly, since evaluations of different seeds may lie in
    different columns. None before the first and after the last point.
    """
    values: list[float | None] = [None if point is None else point.mean for point in points]
    for before, after in pairwise([index for index, value in enumerate(values) if value is not None]):
        begin, end = values[before] or 0.0, values[after] or 0.0
        values[before + 1 : after] = [begin + (end - begin) * k / (after - before) for k in range(1, after - before)]
    return values


class GroupFeed:
    """Source of a group's mean curves, to be drawn over a run's (`monitor.data.snapshot.Source`). Sends no requests."""

    readonly = True

    def __init__(self, group: Group) -> None:
        self._group, self._feeds = group, dict[int, LiveFeed]()
        self._interval_s, self._joined_s = 1.0, float("-inf")
        self._snapshots: tuple[Snapshot, ...] = ()
        self._published = Snapshot(0, RunFacts(group.id, group.id.rpartition("-")[2], str(group.path)), "finished")

    def snapshot(self) -> Snapshot:
        """Return the group's newest snapshot; the same object as long as no run changes."""
        if time.monotonic() - self._joined_s >= _JOIN_S:
            self._join()
        snapshots = tuple(feed.snapshot() for feed in self._feeds.values())
        if len(snapshots) != len(self._snapshots) or any(
            new is not old for new, old in zip(snapshots, self._snapshots, strict=True)
        ):
            self._snapshots = snapshots
            names = dict.fromkeys(name for one in snapshots for name in one.series)
            series: dict[str, Series] = {
                name: MeanCurve([one.series[name] for one in snapshots if name in one.series]) for name in names
            }
            state = "running" if any(one.live for one in snapshots) else "finished"
            self._published = self._published._replace(
                version=self._published.version + 1,
                state=state,
                series=series,
                members=tuple(one.run.path for one in snapshots),
            )
        return self._published

    def _join(self) -> None:
        """Start feeds for those runs of the group that have begun since the last call."""
        self._joined_s = time.monotonic()
        if len(self._feeds) < len(self._group.members):
            self._group = groups.load(self._group.path) or self._group
            for seed, run in self._group.unchanged.items():
                if seed not in self._feeds:
                    self._feeds[seed] = LiveFeed(run, readonly=True)
                    self._feeds[seed].set_poll_interval(self._interval_s)

    def set_poll_interval(self, interval_s: float) -> None:
        """Ignore the interval (seconds): a group is read once a second, which is enough for an overlay."""

    def request(self, verb: Any) -> None:
        """Ignore a request: several runs have no common trainer."""

    def watch(self, wanted: bool, **options: Any) -> None:
        """Ignore a request for frames (`wanted` and its options): several runs have no common agent to show."""

    def seek(self, step: float | None) -> None:
        """Ignore the step: an overlay shows complete curves."""

    def close(self) -> None:
        """Stop reading the runs of the group."""
        for feed in self._feeds.values():
            feed.close()
