"""Feed of several runs, a group or the trials of a sweep, as one source: the mean over seeds with its 95 % confidence
interval, each run's curve, and a table.

One thread reads all runs: those that train four times a second, so that a killed trainer shows within a second, the
others about once a second. At each x the mean covers the runs that have reached it (linear interpolation between two of
their values); it has a band if there are at least two. A sweep's bold line is that of its best trial.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from monitor.data import summary
from monitor.data.run_reader import RunReader
from monitor.data.snapshot import (
    Axis,
    Collected,
    Figure,
    Member,
    Point,
    Progress,
    RunFacts,
    SearchAxis,
    Series,
    Snapshot,
)
from operant import runs
from operant.runs import EVALUATION, LIVE, RETURN, Run, groups, membership, results, sweeps
from operant.runs.groups import Group
from operant.text import count, number, safe

_LIVE_S: Final = 0.25
_ENDED_S: Final = 1.0
_JOIN_S: Final = 1.0
_MOST_BYTES: Final = 1 << 20
_SPECIAL: Final = frozenset(("failed", "diverged", "crashed", "gpu_fault", "oom", "unreadable"))


def find(text: str, root: Path, everywhere: bool = True) -> Path | None:
    """Return the folder of the group or sweep that `text` names; None if it names neither. `root`, `everywhere`: the
    folders searched.
    """
    if (group := groups.find(text, root, everywhere)) is not None:
        return group.path
    return sweeps.find(text, root, everywhere)


def open_collection(path: Path) -> CollectionFeed | None:
    """Return a feed of the group or sweep in the folder `path`; None if the folder holds neither."""
    if groups.load(path) is not None:
        return CollectionFeed(_GroupRuns(path))
    return CollectionFeed(_SweepRuns(path)) if (path / sweeps.FILE).is_file() else None


# ----------------------------------------------------------------------------------------------------------------------
# curves


class MemberCurve:
    """Curve of one run of a collection, with the last resampled points kept: most runs do not change between two
    frames (implements `monitor.data.snapshot.Series`).
    """

    members: Mapping[str, Series] = {}

    def __init__(self, curve: Series, version: int) -> None:
        self.curve, self._version = curve, version
        self.name, self.label, self.unit, self.kind, self.absent = (
            curve.name,
            curve.label,
            curve.unit,
            curve.kind,
            curve.absent,
        )
        self.higher_better, self.log_axis = curve.higher_better, curve.log_axis
        self.latest, self.not_finite = curve.latest, curve.not_finite
        self._views: dict[tuple[Any, ...], Sequence[Point | None]] = {}

    def update(self, version: int) -> None:
        """Take over what has changed if the run's records are no longer those of `version`."""
        if version != self._version:
            self._version, self._views = version, {}
            self.latest, self.not_finite = self.curve.latest, self.curve.not_finite

    @property
    def best(self) -> float | None:
        """Largest value of the run so far."""
        return self.curve.best

    @property
    def trend_per_min(self) -> float | None:
        """Slope of the run's metric over the last minute."""
        return self.curve.trend_per_min

    def extent(self, axis: Axis) -> tuple[float, float] | None:
        """Return the range in which the run has values on `axis`; None without values."""
        return self.curve.extent(axis)

    def view(
        self, axis: Axis, first: float, last: float, columns: int, smoothing: float = 0.0
    ) -> Sequence[Point | None]:
        """Resample the run's metric to `columns` points that cover [first, last] of `axis`."""
        key = axis, first, last, columns, smoothing
        if (points := self._views.get(key)) is None:
            if len(self._views) > 3:  # the window has moved
                self._views = {}
            points = self._views[key] = self.curve.view(axis, first, last, columns, smoothing)
        return points

    def nearest(self, axis: Axis, x: float) -> tuple[float, Point] | None:
        """Return (x, point) of the run's value nearest to `x` on `axis`; None without values."""
        return self.curve.nearest(axis, x)


class MeanCurve:
    """Mean of one metric over the runs of a group, with its 95 % confidence interval (implements
    `monitor.data.snapshot.Series`). Created again for each snapshot. `members`: curves drawn as thin lines.
    """

    def __init__(self, curves: Sequence[Series], members: Mapping[str, Series] | None = None) -> None:
        self.members = members or {}
        first = next(iter(curves), None) or next(iter(self.members.values()))
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
        curves = [*self._curves, *self.members.values()]
        extents = [extent for one in curves if (extent := one.extent(axis)) is not None]
        return (min(begin for begin, _ in extents), max(end for _, end in extents)) if extents else None

    def view(
        self, axis: Axis, first: float, last: float, columns: int, smoothing: float = 0.0
    ) -> Sequence[Point | None]:
        """Resample to `columns` points that cover [first, last] of `axis`: means over the runs, with the ends of the
        confidence interval as low and high.
        """
        if not self._curves:
            return [None] * max(0, columns)
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


# ----------------------------------------------------------------------------------------------------------------------
# members


class _Wanted(NamedTuple):
    """Run that belongs to a collection: its names, the run (None: not begun), whether it counts in the mean, and the
    values of its searched keys.
    """

    name: str
    id: str
    run: Run | None
    counts: bool = True
    settings: tuple[str, ...] = ()
    positions: tuple[float | None, ...] = ()


class _GroupRuns:
    """Runs of a group, found again at each `find`."""

    kind: Final = "group"
    axes: tuple[SearchAxis, ...] = ()
    objective, maximize, planned, seeds = "score", True, None, 1
    is_finished = False  # decided by the states of the runs

    def __init__(self, path: Path) -> None:
        self.path = path
        self._group = groups.load(path) or Group(path.name, path, {})

    @property
    def live(self) -> bool:
        """Whether a process trains the group."""
        return self._group.live

    def find(self) -> list[_Wanted]:
        """Return the runs of the group by seed, as its folder says now."""
        self._group = groups.load(self.path) or self._group
        made, unchanged = self._group.runs, self._group.unchanged
        return [
            _Wanted(f"seed {seed}", id_, made.get(seed), seed in unchanged or seed not in made)
            for seed, id_ in self._group.members.items()
        ]

    def value(self, run: Run, score: float | None) -> float | None:
        """Return the score of a finished run."""
        return score


class _SweepRuns:
    """Runs of the trials of a sweep, found again at each `find`. Reads sweep.toml as data and imports nothing."""

    kind: Final = "sweep"

    def __init__(self, path: Path) -> None:
        import tomli

        self.path = path
        try:
            with open(path / sweeps.FILE, "rb") as file:
                table = tomli.loads(file.read(_MOST_BYTES).decode()).get("sweep")
        except (OSError, ValueError, RecursionError):
            table = None
        table = table if isinstance(table, dict) else {}
        self.objective = safe(table.get("objective", "score"), 40)
        self.maximize = self.objective != "time_to_target"
        trials, self.seeds = runs.integer_of(table, "trials"), max(1, runs.integer_of(table, "seeds") or 1)
        self.planned = None if trials is None else trials * self.seeds
        self._space = dict(_searched(table))
        self.axes = tuple(SearchAxis(safe(key, 60), *_ends(space)) for key, space in self._space.items())

    @property
    def live(self) -> bool:
        """Whether a process works on the sweep."""
        return bool(sweeps.working(self.path))

    @property
    def is_finished(self) -> bool:
        """Whether the sweep has trained all its trials: some of them may have been ended early."""
        return sweeps.is_finished(self.path)

    def find(self) -> list[_Wanted]:
        """Return the runs of the sweep's trials in the order of the trials, as the folder says now."""
        wanted = []
        for run in sweeps.trials(self.path):
            own = run.document.get(membership.KEY)
            own = own if isinstance(own, dict) else {}
            trial, index = own.get("trial"), own.get("index")
            if not isinstance(trial, int):
                trial = next((int(word) for word in run.id.split(".")[-2:] if word.isdecimal()), 0)
            words = membership.request_of(run).get("overrides")
            values = dict(str(word).partition("=")[::2] for word in words) if isinstance(words, list) else {}
            settings = tuple(safe(_short(values.get(key, "")), 40) for key in self._space)
            positions = tuple(_position(space, values.get(key)) for key, space in self._space.items())
            name = f"trial {trial}" + (f".{index}" if index else "")
            order = (trial, index if isinstance(index, int) else 0)
            wanted.append((order, _Wanted(name, run.id, run, settings=settings, positions=positions)))
        return [one for _, one in sorted(wanted, key=lambda pair: pair[0])]

    def value(self, run: Run, score: float | None) -> float | None:
        """Return the objective of a finished run."""
        if self.objective == "score":
            return score
        planned = runs.integer_of(run.document, "steps") or 0
        return results.value(results.of_run(run), self.objective, planned)


def _searched(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (key, space) for each searched key in the nested tables of `[sweep]`; `above` is the prefix of keys."""
    for name, value in table.items():
        if isinstance(value, Mapping) and above.count(".") < 4:
            if above and value.keys() & {"choice", "log", "uniform"}:
                yield f"{above}{name}", value
            else:
                yield from _searched(value, f"{above}{name}.")


def _numbers(space: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the ends of a numeric space, logarithms for a logarithmic one; None for choices or damaged ends."""
    kind = next((word for word in ("log", "uniform") if word in space), "")
    ends = space.get(kind)
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, (int, float)) for end in ends):
        return None
    if kind == "log":
        return (math.log(ends[0]), math.log(ends[1])) if min(ends) > 0 else None
    return float(ends[0]), float(ends[1])


def _choices(space: Mapping[str, Any]) -> list[str]:
    """Return the choices of a space as texts, as an override on the command line names them."""
    choices = space.get("choice")
    return [json.dumps(one, default=str) for one in choices] if isinstance(choices, list) else []


def _ends(space: Mapping[str, Any]) -> tuple[str, str]:
    """Return the texts at the lower and upper end of a searched key's axis."""
    if choices := _choices(space):
        return safe(_short(choices[0]), 16), safe(_short(choices[-1]), 16)
    ends = space.get("log", space.get("uniform"))
    return (f"{ends[0]:g}", f"{ends[1]:g}") if _numbers(space) is not None and ends else ("", "")


def _position(space: Mapping[str, Any], text: str | None) -> float | None:
    """Return the position of a value, as an override names it, on the axis of its key, 0 to 1; None if unknown."""
    if text is None:
        return None
    choices = _choices(space)
    if choices:
        return choices.index(text) / max(1, len(choices) - 1) if text in choices else None
    ends = _numbers(space)
    try:
        value = float(text)
        value = math.log(value) if "log" in space else value
    except ValueError:
        return None
    if ends is None or not ends[1] > ends[0] or not math.isfinite(value):
        return None
    return min(max((value - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0)


def _short(text: str) -> str:
    """Shorten a number in a text to three digits; other texts lose their quotes."""
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return text.strip('"')


class _Reading:
    """One run of a collection while it is read: its reader, its curves, and when to look again."""

    def __init__(self, run: Run) -> None:
        self.reader = RunReader(run)
        self.curves: dict[str, MemberCurve] = {}
        self.value: float | None = None  # objective, once it has ended
        self._table: object = None
        self._next_s, self._history_s = float("-inf"), float("-inf")

    def poll(self, now_s: float, ended_s: float) -> bool:
        """Read the run if it is due, one that has ended every `ended_s` seconds. Returns whether anything changed."""
        reader = self.reader
        if now_s < self._next_s:
            return False
        before = (reader.state, reader.notice, self.version)
        reader.poll(now_s)
        if reader.wants_history and now_s - self._history_s > 10.0:
            self._history_s, reader.wants_history = now_s, False
            if (past := reader.history_loader()()) is not None:
                reader.adopt_history(past)
        timeline = reader.timeline
        if timeline is not None:
            if timeline.table is not self._table:
                self._table, self.curves = timeline.table, {}
            for name, curve in timeline.table.curves.items():
                self.curves.setdefault(name, MemberCurve(curve, self.version)).update(self.version)
        self._next_s = now_s + (ended_s if reader.state.word not in LIVE and not reader.awaits_exit else 0.0)
        return before != (reader.state, reader.notice, self.version)

    @property
    def version(self) -> int:
        """Version of the run's curves, which grows with every record."""
        return -1 if self.reader.timeline is None else self.reader.timeline.table.version

    def latest(self, name: str) -> float | None:
        """Newest finite value of a metric; None without one."""
        curve = self.curves.get(name)
        return None if curve is None else curve.latest

    @property
    def rate(self) -> float | None:
        """Environment steps per second while the run trains; None otherwise."""
        timeline = self.reader.timeline
        return timeline.steps_per_s if timeline is not None and self.reader.state.word == "running" else None


# ----------------------------------------------------------------------------------------------------------------------
# the feed


class CollectionFeed:
    """Source of snapshots of a group or sweep (`monitor.data.snapshot.Source`), read by a background thread. Sends no
    requests: several runs have no common trainer. The first snapshot is ready when the constructor returns.
    """

    readonly = True

    def __init__(self, source: _GroupRuns | _SweepRuns) -> None:
        self._source = source
        self._wanted: list[_Wanted] = []
        self._readings: dict[str, _Reading] = {}
        self._joined_s = float("-inf")
        self._live = False
        self._lock, self._wake, self._closed = threading.Lock(), threading.Event(), False
        folder = source.path
        facts = RunFacts(safe(folder.name, 80), safe(folder.name.rpartition("-")[2], 80), runs.display_path(folder))
        self._published = Snapshot(0, facts, "starting", collected=Collected(source.kind))
        self._poll()
        self._thread = threading.Thread(target=self._run, name="collection", daemon=True)
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot of the collection; the same object as long as no run changes."""
        with self._lock:
            return self._published

    def set_poll_interval(self, interval_s: float) -> None:
        """Ignore the interval (seconds): the thread has its own."""

    def request(self, verb: Any) -> None:
        """Ignore a request: several runs have no common trainer."""

    def watch(self, wanted: bool, **options: Any) -> None:
        """Ignore a request for frames (`wanted` and its options): several runs have no common agent to show."""

    def seek(self, step: float | None) -> None:
        """Ignore the step: a collection shows complete curves."""

    def close(self) -> None:
        """Stop the thread that reads the runs. Returns once it has ended, or after one second."""
        self._closed = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _run(self) -> None:
        """Read the runs until `close`, as the body of the background thread."""
        while not self._closed:
            self._wake.wait(_LIVE_S)
            if not self._closed:
                self._poll()
        for reading in self._readings.values():
            reading.reader.close()

    def _poll(self) -> None:
        """Read the runs that are due, and publish a new snapshot if anything changed."""
        now_s, changed = time.monotonic(), self._published.version == 0
        if now_s - self._joined_s >= _JOIN_S:
            self._joined_s = now_s
            changed |= self._join()
        ended_s = max(_ENDED_S, len(self._readings) / 50)  # a long sweep's ended trials cost little
        for reading in self._readings.values():
            changed |= reading.poll(now_s, ended_s)
        if changed:
            snapshot = self._assemble()
            with self._lock:
                self._published = snapshot

    def _join(self) -> bool:
        """Find the runs of the collection again and begin to read new ones. Returns whether anything changed."""
        before = self._wanted, self._live
        wanted = self._source.find()
        known = {one.id for one in wanted if one.run is not None}
        # a run whose folder has vanished stays in the table, with its last values
        kept = {one.id: one for one in before[0] if one.id in self._readings and one.id not in known}
        self._wanted = [kept.pop(one.id, one) for one in wanted] + list(kept.values())
        self._live = self._source.live
        for one in self._wanted:
            if one.run is not None and one.id not in self._readings:
                self._readings[one.id] = _Reading(one.run)
        return [one._replace(run=None) for one in before[0]] != [
            one._replace(run=None) for one in self._wanted
        ] or before[1] != self._live

    def _assemble(self) -> Snapshot:
        """Build a snapshot from what was last read of all runs."""
        pairs = [(one, self._readings.get(one.id)) for one in self._wanted]
        members = tuple(self._member(one, reading) for one, reading in pairs)
        begun = [reading for _, reading in pairs if reading is not None]
        collected = Collected(
            self._source.kind,
            members,
            axes=self._source.axes,
            objective=self._source.objective,
            maximize=self._source.maximize,
            planned=self._source.planned,
            seeds=self._source.seeds,
        )
        counted = [member for member in members if member.counts and member.step is not None]
        if self._source.kind == "sweep":
            best = collected.best
            bold = [best] if best is not None else []
            line = "" if best is None else f"bold: {best.name}, the best so far"
        else:
            bold = counted
            line = f"mean of {len(counted)} seed{'s' * (len(counted) > 1)}"
            if not self._live and any(member.state not in LIVE and member.state != "finished" for member in members):
                line += f" · continue: operant resume {self._published.run.id}"
            elif len(counted) > 1:
                line += " with its 95 % band"
        names = dict.fromkeys(name for reading in begun for name in reading.curves)
        series: dict[str, Series] = {}
        for name in names:
            every: dict[str, Series] = {
                member.path: reading.curves[name]
                for member, (_, reading) in zip(members, pairs, strict=True)
                if reading is not None and name in reading.curves
            }
            series[name] = MeanCurve([every[one.path] for one in bold if one.path in every], every)
        first = begun[0].reader if begun else None
        before = self._published
        facts = before.run
        if first is not None:
            facts = summary.facts(first.run, first.header, time.time())._replace(
                id=before.run.id, short=before.run.short, path=before.run.path, seed=None, pid=None
            )
        return Snapshot(
            before.version + 1,
            facts,
            self._state(members),
            progress=self._progress(members, begun),
            figures=_figures(bold),
            series=series,
            collected=collected._replace(figures=_texts(collected, counted, begun), line=line),
        )

    def _member(self, one: _Wanted, reading: _Reading | None) -> Member:
        """Return the table's row of one run."""
        row = Member(safe(one.name, 40), safe(one.id, 80), "", "waiting", settings=one.settings)
        if reading is None:
            return row
        reader = reading.reader
        table = None if reader.timeline is None else reader.timeline.table
        step = None if table is None or table.last is None else int(table.last[0])
        steps = runs.integer_of(reader.run.document, "steps")
        word = reader.state.word
        score = reading.latest(EVALUATION)
        if word == "finished" and one.counts:
            reading.value = self._source.value(reader.run, score) if reading.value is None else reading.value
        else:
            reading.value = None
        note = "" if one.counts else "resumed with other values: not in the mean"
        return row._replace(
            path=str(reader.run.path),
            state=word,
            cause=safe(note or reader.notice or self._cause(reader.state.cause), 200),
            score=score,
            training_return=reading.latest(RETURN),
            step=step,
            share=1.0 if word == "finished" else min(1.0, step / steps) if steps and step is not None else None,
            sps=reading.rate,
            counts=one.counts,
            value=reading.value,
            positions=one.positions,
        )

    def _cause(self, cause: str | None) -> str:
        """Return the cause of a run's state as text. A sweep ends its trials by a signal, whose name would say nothing
        to the user.
        """
        return "ended by the sweep" if cause == "by SIGTERM" and self._source.kind == "sweep" else cause or ""

    def _state(self, members: Sequence[Member]) -> str:
        """Return the state word of the whole collection."""
        words = [one.state for one in members]
        live = [word for word in words if word in LIVE]
        if live:
            return "running" if "running" in live else live[0]
        if self._live:
            return "running" if any(one.path for one in members) else "starting"
        if self._source.is_finished or (words and all(word == "finished" for word in words)):
            return "finished"
        if self._source.kind == "sweep" and "finished" in words:
            return "stopped" if "crashed" not in words else "crashed"
        return next((word for word in words if word in _SPECIAL), "stopped")

    def _progress(self, members: Sequence[Member], begun: Sequence[_Reading]) -> Progress:
        """Return the progress of the whole collection, summed over its runs; a sweep has no planned number of steps."""
        done = [one.step for one in members if one.step is not None]
        if not done:
            return Progress()
        if self._source.kind == "sweep":
            return Progress(sum(done))
        planned = [runs.integer_of(one.reader.run.document, "steps") for one in begun]
        steps = max((one for one in planned if one), default=None)
        total = None if steps is None else sum((one.step or 0) if one.state == "finished" else steps for one in members)
        rate = sum(one.rate or 0.0 for one in begun)
        left = None if total is None else total - sum(done)
        eta_s = float(math.ceil(left / rate)) if left and rate > 0 else None
        return Progress(sum(done), total, eta_s=eta_s)


def _figures(counted: Sequence[Member]) -> tuple[Figure, ...]:
    """Return the means over the runs as key figures, for chart titles and text output."""
    score = groups.band([one.score for one in counted if one.score is not None])
    training = groups.band([one.training_return for one in counted if one.training_return is not None])
    return tuple(
        Figure(metric, label, band.mean)
        for metric, label, band in ((EVALUATION, "eval", score), (RETURN, "return", training))
        if band is not None
    )


def _texts(collected: Collected, counted: Sequence[Member], begun: Sequence[_Reading]) -> tuple[tuple[str, str], ...]:
    """Return the texts of the line of key figures, as (label, text)."""
    words = [one.state for one in collected.members]
    finished, bad = words.count("finished"), sum(word in _SPECIAL for word in words)
    texts = []
    if collected.kind == "sweep":
        best = collected.best
        if best is not None:
            texts.append((f"best {collected.objective.replace('_', ' ')}", f"{number(best.value)} ({best.name})"))
        planned = "" if collected.planned is None else f" of {collected.planned:,}"
        label = "trials" if collected.seeds == 1 else "runs"
        texts.append((label, f"{finished}{planned} finished, {words.count('stopped')} stopped"))
    else:
        for label, values in (
            ("eval", [one.score for one in counted]),
            ("return", [one.training_return for one in counted]),
        ):
            band = groups.band([value for value in values if value is not None])
            if band is not None:
                half = "" if band.half is None else f" ± {number(band.half)} (95 %, n = {band.seeds})"
                texts.append((label, f"{number(band.mean)}{half}"))
        texts.append(("finished", f"{finished} of {len(words)}"))
    if bad:
        texts.append(("failed", str(bad)))
    if rate := sum(one.rate or 0.0 for one in begun):
        texts.append(("SPS", count(rate)))
    return tuple(texts)
