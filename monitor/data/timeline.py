"""A run as its records show it: curves, marks, rate. Standard library only. Reads no file, knows no clock.

Wall time is that of the sessions: what lies between the end of one and the resume after it is left out, and so is time
in which a trainer did nothing for more than half a minute (it was paused, or stopped by a signal, or the machine
slept). Iterations are summed up from what records say they cover; where the first records are not there any more, their
number follows from the steps.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import NamedTuple

from monitor.data.series import Column, Table
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

_DEFAULT_FIGURES = 4  # of a run that declares none
_MOST_JUDGED = 64
_MOST_MARKS = 512  # of a kind
_RATE, _RATE_SHORTEST_S = (20.0, 8), 0.5  # seconds, and at least so many records
_BLOCK_RECORDS = 1 << 14
_IDLE_S = 30.0


def described(metrics: Sequence[Metric], specs: Mapping[str, MetricSpec]) -> list[MetricSpec]:
    """What each metric means: as the run declares it, and where it declares nothing, as far as the schema tells."""
    figures = (
        {
            metric.name
            for metric in [one for one in metrics if one.higher_better or one.kind == "rate"][:_DEFAULT_FIGURES]
        }
        if not specs
        else set()
    )
    found = []
    for metric in metrics:
        label = safe(metric.name.removeprefix("tally/").replace("_", " "), 40)
        wanted, bookkeeping = metric.name in figures, metric.kind == "counter" or metric.unit == "bytes"
        order = UNORDERED - 1 if wanted else BOOKKEEPING if bookkeeping else UNORDERED
        default = MetricSpec(
            metric.name, label, safe(metric.unit, 40), metric.higher_better, label if wanted else "", order
        )
        spec = specs.get(metric.name, default)
        found.append(spec._replace(label=spec.label or label, kind=metric.kind))
    return found


def _column(metric: Metric, spec: MetricSpec) -> Column:
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
    """Chunks of a history put together: large blocks go into a table much faster than small ones."""

    session: int
    steps: array[int]
    boottimes_ns: array[int]
    flags: array[int]
    values: list[array[float]]


class Timeline:
    """A run's curves and marks so far, the curves in the order its metrics declare. Records are added in their order; a
    resume's replace what they repeat.
    """

    def __init__(self, metrics: Sequence[Metric], specs: Mapping[str, MetricSpec] = MappingProxyType({})) -> None:
        self.metrics = tuple(metrics)
        found = described(metrics, specs)
        self._shown = sorted(
            (index for index, metric in enumerate(metrics) if not metric.hidden), key=lambda index: found[index].order
        )
        self.specs = {found[index].name: found[index] for index in self._shown}
        self.judged = tuple(spec for spec in self.specs.values() if spec.thresholds)[:_MOST_JUDGED]
        """The metrics that declare thresholds."""
        self.table = Table(_column(metrics[index], found[index]) for index in self._shown)
        names = [metric.name for metric in metrics]
        self._counter = names.index(ITERATIONS) if ITERATIONS in names else None
        self._marks: dict[str, list[Mark]] = {"checkpoint": [], "eval": [], "resume": [], "not_finite": []}
        self._unflagged = (
            False  # the last checkpoint is known by its step, and the record that tells of it is still to come
        )
        self._seconds = [index for index, metric in enumerate(metrics) if metric.name.startswith(SECONDS)]
        self._session: int | None = None
        self._before_s, self._zero_ns = 0.0, 0
        self._origin = (0.0, 0.0, 0.0)  # where the next record begins: step, wall seconds, iteration
        self._marked: tuple[Mark, ...] | None = ()

    # ------------------------------------------------------------------------------------------------------------------
    # adding

    def add(self, records: Sequence[Record]) -> None:
        """The next records of the run, as the metrics file's ring has them."""
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
        """The next records of one session, column by column: `values` follow the metrics, `flags` are those of
        `operant.runs.metrics`.
        """
        if not len(steps):
            return
        counts = list(map(_count, values[self._counter])) if self._counter is not None else [1.0] * len(steps)
        if session != self._session:
            self._begin(session, steps, boottimes_ns, counts, [values[index][0] for index in self._seconds])
        walls = self._walls(boottimes_ns, values)
        iterations = array("d", accumulate(counts, initial=self._origin[2]))[1:]
        # a record without an iteration repeats the one before, with an evaluation since: it took no time again
        if not all(counts):
            values = list(values)
            for index in self._seconds:
                values[index] = [second if count else 0.0 for second, count in zip(values[index], counts, strict=True)]
        places = array("d", steps)
        self.table.extend(places, walls, iterations, [values[index] for index in self._shown], begin=self._origin)
        self._origin = (places[-1], walls[-1], iterations[-1])
        self._note_marks(places, walls, iterations, flags, values)

    def _walls(self, boottimes_ns: Sequence[int], values: Sequence[Sequence[float]]) -> array[float]:
        """Wall seconds at the end of each record, pauses left out."""
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

    def _begin(
        self,
        session: int,
        steps: Sequence[int],
        boottimes_ns: Sequence[int],
        counts: Sequence[float],
        seconds: Sequence[float],
    ) -> None:
        """A worker begins: the first one seen, or one that resumed; its first record then begins at the checkpoint it
        started from.
        """
        per = 0.0  # steps an iteration
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
        # Of the first record only its end has a time; what it says it took lies before.
        self._before_s, self._zero_ns = self._origin[1] + took_s, boottimes_ns[0]
        self._session = session

    def rewind(self, step: float) -> None:
        """Drop what lies after a step."""
        self.table.rewind(step)
        for kind, marks in self._marks.items():
            self._marks[kind] = [mark for mark in marks if mark.step <= step]
        self._marked = None

    def add_chunks(self, chunks: Iterable[Chunk]) -> tuple[int, int]:
        """The records of a history; returns the session and the number of the last one (0, -1 where there are none). A
        metric it has not is without values.
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

    def _note_marks(
        self,
        steps: Sequence[float],
        walls: Sequence[float],
        iterations: Sequence[float],
        flags: Sequence[int],
        values: Sequence[Sequence[float]],
    ) -> None:
        kinds = ((FLAG_EVAL, "eval"), (FLAG_CHECKPOINT, "checkpoint"), (FLAG_NONFINITE, "not_finite"))
        if any(flags):
            for k, bits in enumerate(flags):
                for bit, kind in kinds:
                    if bits & bit and not (kind == "checkpoint" and self._unflagged):
                        self._mark(kind, (steps[k], walls[k], iterations[k]))
                if bits & FLAG_CHECKPOINT:
                    self._unflagged = False

    def _mark(self, kind: str, place: tuple[float, float, float]) -> None:
        marks = self._marks[kind]
        mark = Mark(kind, *place)  # type: ignore[arg-type]  # one of the four
        if marks and marks[-1] == mark:
            return
        marks.append(mark)
        if len(marks) > _MOST_MARKS:
            del marks[1:-1:2]
        self._marked = None

    def checkpoint(self, step: int) -> None:
        """A checkpoint of this step is known to be safe."""
        marks = self._marks["checkpoint"]
        if not marks or marks[-1].step < step:
            place = self.table.place(step)
            if place is not None:
                self._mark("checkpoint", (float(step), place[1], place[2]))
                self._unflagged = True

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All marks in the order of their steps; thinned out where there are more than 512 of a kind."""
        if self._marked is None:
            self._marked = tuple(
                sorted(
                    (mark for marks in self._marks.values() for mark in marks), key=lambda mark: (mark.step, mark.kind)
                )
            )
        return self._marked

    def evaluations(self, step: float | None = None) -> tuple[float, float, float] | None:
        """Where the run began (its first return in training or evaluation, the lower one), the best evaluation and the
        newest, up to a step (None: all).
        """
        courses = [self.table.curves[name].course(step) for name in (EVALUATION, RETURN) if name in self.table.curves]
        if not courses or courses[0] is None or EVALUATION not in self.table.curves:
            return None
        return min(course[0] for course in courses if course is not None), courses[0][1], courses[0][2]

    # ------------------------------------------------------------------------------------------------------------------
    # rate

    @property
    def steps_per_s(self) -> float | None:
        """Environment steps a second over the last 20 seconds of records (8 records at least), evaluations and
        checkpoints included; None without them.
        """
        window = self.table.window(*_RATE, ())
        if not window.steps:
            return None
        steps, seconds = window.steps[-1] - window.begin[0], window.walls[-1] - window.begin[1]
        return steps / seconds if seconds > _RATE_SHORTEST_S and steps > 0 else None


def _count(value: float) -> float:
    return value if 0.0 <= value < 1e15 else 0.0
