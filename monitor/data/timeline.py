"""Timeline of a run: curves, marks and rates from its records. Standard library only. Reads no file and no clock.

Wall time excludes the time between sessions and idle periods of more than half a minute (paused, stopped by a signal,
machine asleep). Iterations are summed from the records; if the first records are lost, the number before them is
estimated from the steps.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import NamedTuple

from monitor.data.curve_table import Column, CurveTable
from monitor.data.snapshot import Mark
from operant.runs import (
    BOOKKEEPING,
    EVALUATION,
    FLAG_CHECKPOINT,
    FLAG_EVAL,
    FLAG_NONFINITE,
    ITERATIONS,
    RETURN,
    SECONDS,
    UNORDERED,
    Chunk,
    Metric,
    MetricSpec,
    Record,
)
from operant.text import safe

_DEFAULT_FIGURES = 4  # if the run declares no figures
_MOST_THRESHOLDED = 64
_MOST_MARKS = 512  # per kind
_RATE, _RATE_SHORTEST_S = (20.0, 8), 0.5  # (seconds, minimum number of records)
_BLOCK_RECORDS = 1 << 14
_IDLE_S = 30.0


def complete_specs(metrics: Sequence[Metric], specs: Mapping[str, MetricSpec]) -> list[MetricSpec]:
    """Return the display specification of each metric: the one in `specs`, else defaults from the metrics file's
    schema.
    """
    figures = (
        {
            metric.name
            for metric in [one for one in metrics if one.higher_better or one.kind == "rate"][:_DEFAULT_FIGURES]
        }
        if not specs
        else set()
    )
    result = []
    for metric in metrics:
        label = safe(metric.name.removeprefix("tally/").replace("_", " "), 40)
        wanted, bookkeeping = metric.name in figures, metric.kind == "counter" or metric.unit == "bytes"
        order = UNORDERED - 1 if wanted else BOOKKEEPING if bookkeeping else UNORDERED
        default = MetricSpec(
            metric.name, label, safe(metric.unit, 40), metric.higher_better, label if wanted else "", order
        )
        spec = specs.get(metric.name, default)
        result.append(spec._replace(label=spec.label or label, kind=metric.kind))
    return result


def _column(metric: Metric, spec: MetricSpec) -> Column:
    """Combine a metric's schema and specification to the properties of its curve."""
    return Column(
        metric.name,
        spec.label,
        spec.unit,
        spec.higher_better,
        metric.axis == "log",
        metric.must_be_finite,
        spec.kind,
        spec.absent,
    )


class _Block(NamedTuple):
    """Consecutive chunks of a run's history merged to one block of columns, since a table appends large blocks much
    faster.
    """

    session: int
    steps: array[int]
    boottimes_ns: array[int]
    flags: array[int]
    values: list[array[float]]


class Timeline:
    """Curves and marks of a run, built by appending its records in order; those of a resumed session replace the ones
    after its checkpoint.
    """

    def __init__(self, metrics: Sequence[Metric], specs: Mapping[str, MetricSpec] = MappingProxyType({})) -> None:
        self.metrics = tuple(metrics)
        specified = complete_specs(metrics, specs)
        self._shown = sorted(
            (index for index, metric in enumerate(metrics) if not metric.hidden),
            key=lambda index: specified[index].order,
        )
        self.specs = {specified[index].name: specified[index] for index in self._shown}
        self.thresholded = tuple(spec for spec in self.specs.values() if spec.thresholds)[:_MOST_THRESHOLDED]
        """Metrics that declare thresholds."""
        self.table = CurveTable(_column(metrics[index], specified[index]) for index in self._shown)
        names = [metric.name for metric in metrics]
        self._counter = names.index(ITERATIONS) if ITERATIONS in names else None
        self._marks: dict[str, list[Mark]] = {"checkpoint": [], "eval": [], "resume": [], "not_finite": []}
        self._flag_pending = False  # the last checkpoint was added by step; the record with its flag is still to come
        self._seconds = [index for index, metric in enumerate(metrics) if metric.name.startswith(SECONDS)]
        self._session: int | None = None
        self._before_s, self._zero_ns = 0.0, 0
        self._origin = (0.0, 0.0, 0.0)  # start of the next record: step, wall seconds, iteration
        self._sorted_marks: tuple[Mark, ...] | None = ()

    # ------------------------------------------------------------------------------------------------------------------
    # adding

    def add(self, records: Sequence[Record]) -> None:
        """Append records from the metrics file's ring buffer, in order."""
        for session, some in groupby(records, key=lambda record: record.session):
            part = list(some)
            self.add_columns(
                session,
                [record.step for record in part],
                [record.boottime_ns for record in part],
                [record.flags for record in part],
                list(zip(*(record.values for record in part), strict=True)),
            )

    def add_columns(
        self,
        session: int,
        steps: Sequence[int],
        boottimes_ns: Sequence[int],
        flags: Sequence[int],
        values: Sequence[Sequence[float]],
    ) -> None:
        """Append records of one session, given by column. `values` has one column for each metric; `flags` are those of
        `operant.runs.metrics`.
        """
        if not len(steps):
            return
        counts = list(map(_count, values[self._counter])) if self._counter is not None else [1.0] * len(steps)
        if session != self._session:
            self._begin_session(session, steps, boottimes_ns, counts, [values[index][0] for index in self._seconds])
        walls = self._wall_seconds(boottimes_ns, values)
        iterations = array("d", accumulate(counts, initial=self._origin[2]))[1:]
        # a record without iterations repeats the previous one after an evaluation; its phase times are already counted
        if not all(counts):
            values = list(values)
            for index in self._seconds:
                values[index] = [second if count else 0.0 for second, count in zip(values[index], counts, strict=True)]
        step_ends = array("d", steps)
        self.table.extend(step_ends, walls, iterations, [values[index] for index in self._shown], begin=self._origin)
        self._origin = (step_ends[-1], walls[-1], iterations[-1])
        self._add_flag_marks(step_ends, walls, iterations, flags, values)

    def _wall_seconds(self, boottimes_ns: Sequence[int], values: Sequence[Sequence[float]]) -> array[float]:
        """Return the wall time in seconds at the end of each record, without idle time (gaps of more than 30 s that no
        phase accounts for).
        """
        zero, before = self._zero_ns, self._before_s
        walls = array("d", [before + (time_ns - zero) / 1e9 for time_ns in boottimes_ns])
        if self._seconds and walls[-1] - self._origin[1] > _IDLE_S:
            last, left_out = self._origin[1], 0.0
            for index, wall in enumerate(walls):
                if wall - left_out - last > _IDLE_S:
                    busy_s = math.fsum(
                        second for column in self._seconds if 0.0 < (second := values[column][index]) < 1e9
                    )
                    idle_s = wall - left_out - last - busy_s
                    left_out += idle_s if idle_s > _IDLE_S else 0.0
                last = walls[index] = wall - left_out
            self._before_s -= left_out
        return walls

    def _begin_session(
        self,
        session: int,
        steps: Sequence[int],
        boottimes_ns: Sequence[int],
        counts: Sequence[float],
        seconds: Sequence[float],
    ) -> None:
        """Start a session, the first or a resumed one, at its first records: `counts` are their iterations, `seconds`
        the first record's phase times. A resumed session begins at its checkpoint, and later records are removed.
        """
        per = 0.0  # steps per iteration
        if len(steps) > 1 and counts[1] > 0:
            per = (steps[1] - steps[0]) / counts[1]
        elif counts[0] > 0 and self._session is None:
            per = steps[0] / counts[0]
        began = max(0.0, steps[0] - per * counts[0]) if per > 0 else max(0.0, steps[0] - 1.0)
        took_s = math.fsum(second for second in seconds if 0.0 < second < 1e9)
        if not took_s and len(steps) > 1:
            took_s = max(0.0, (boottimes_ns[1] - boottimes_ns[0]) / 1e9)
        if self._session is None:
            self._origin = (began, 0.0, round(began / per) if per > 0 else 0.0)
        else:
            self.rewind(began)
            self._origin = last = self.table.last or (began, 0.0, 0.0)
            self._mark("resume", last)
        # The first record has only an end time; its phase times give its start.
        self._before_s, self._zero_ns = self._origin[1] + took_s, boottimes_ns[0]
        self._session = session

    def rewind(self, step: float) -> None:
        """Remove all records and marks after `step`."""
        self.table.rewind(step)
        for kind, marks in self._marks.items():
            self._marks[kind] = [mark for mark in marks if mark.step <= step]
        self._sorted_marks = None

    def add_chunks(self, chunks: Iterable[Chunk]) -> tuple[int, int]:
        """Append the records of a run's history; NaN for metrics that it lacks. Returns (session, number) of the last
        record, (0, -1) without records.
        """
        last = (0, -1)
        block: _Block | None = None
        for chunk in chunks:
            if block is not None and (block.session != chunk.session or len(block.steps) >= _BLOCK_RECORDS):
                self.add_columns(*block)
                block = None
            if block is None:
                block = _Block(chunk.session, array("Q"), array("Q"), array("I"), [array("d") for _ in self.metrics])
            missing = array("d", [math.nan]) * len(chunk.n)
            block.steps.extend(chunk.step)
            block.boottimes_ns.extend(chunk.boottime_ns)
            block.flags.extend(chunk.flags)
            for column, metric in zip(block.values, self.metrics, strict=True):
                column.extend(chunk.columns.get(metric.name, missing))
            last = (chunk.session, chunk.n[-1])
        if block is not None:
            self.add_columns(*block)
        return last

    # ------------------------------------------------------------------------------------------------------------------
    # marks

    def _add_flag_marks(
        self,
        steps: Sequence[float],
        walls: Sequence[float],
        iterations: Sequence[float],
        flags: Sequence[int],
        values: Sequence[Sequence[float]],
    ) -> None:
        """Add marks for the records whose `flags` report an evaluation, a checkpoint or a non-finite value."""
        kinds = ((FLAG_EVAL, "eval"), (FLAG_CHECKPOINT, "checkpoint"), (FLAG_NONFINITE, "not_finite"))
        if any(flags):
            for k, bits in enumerate(flags):
                for bit, kind in kinds:
                    if bits & bit and not (kind == "checkpoint" and self._flag_pending):
                        self._mark(kind, (steps[k], walls[k], iterations[k]))
                if bits & FLAG_CHECKPOINT:
                    self._flag_pending = False

    def _mark(self, kind: str, position: tuple[float, float, float]) -> None:
        """Add a mark of `kind` at (step, wall seconds, iteration); beyond 512 of a kind every second one is removed."""
        marks = self._marks[kind]
        mark = Mark(kind, *position)  # type: ignore[arg-type]  # one of the four
        if marks and marks[-1] == mark:
            return
        marks.append(mark)
        if len(marks) > _MOST_MARKS:
            del marks[1:-1:2]
        self._sorted_marks = None

    def add_checkpoint(self, step: int) -> None:
        """Add a mark for a checkpoint that is known to exist at `step`; ignored if a mark at or after it exists."""
        marks = self._marks["checkpoint"]
        if not marks or marks[-1].step < step:
            position = self.table.position(step)
            if position is not None:
                self._mark("checkpoint", (float(step), position[1], position[2]))
                self._flag_pending = True

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All marks of the run, ordered by step; at most 512 of a kind, beyond which every second one is dropped."""
        if self._sorted_marks is None:
            self._sorted_marks = tuple(
                sorted(
                    (mark for marks in self._marks.values() for mark in marks), key=lambda mark: (mark.step, mark.kind)
                )
            )
        return self._sorted_marks

    def evaluations(self, step: float | None = None) -> tuple[float, float, float] | None:
        """Return (first, best, newest) evaluation return up to `step` (None: of the whole run); None without
        evaluations. The first is at most the first training return.
        """
        courses = [
            self.table.curves[name].first_best_newest(step)
            for name in (EVALUATION, RETURN)
            if name in self.table.curves
        ]
        if not courses or courses[0] is None or EVALUATION not in self.table.curves:
            return None
        return min(course[0] for course in courses if course is not None), courses[0][1], courses[0][2]

    # ------------------------------------------------------------------------------------------------------------------
    # rate

    @property
    def steps_per_s(self) -> float | None:
        """Environment steps per second over the last 20 seconds of records (at least 8 records), including evaluations
        and checkpoints; None with fewer.
        """
        window = self.table.window(*_RATE, ())
        if not window.steps:
            return None
        steps, seconds = window.steps[-1] - window.begin[0], window.walls[-1] - window.begin[1]
        return steps / seconds if seconds > _RATE_SHORTEST_S and steps > 0 else None


def _count(value: float) -> float:
    """Return an iteration count, or 0 for a value that cannot be one (negative, NaN or huge)."""
    return value if 0.0 <= value < 1e15 else 0.0
