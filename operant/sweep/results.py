"""What a trial's runs came to: their evaluations, the objective's value, the time they took. Reads run folders,
standard library only; knows no engine.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from operant import runs
from operant.errors import BadFileError
from operant.runs import Run

_MISSED = 10
"""What the seconds of a run that missed its target count: as in tables of solvers (PAR10), so that it loses against any
that did not by being quick to end.
"""


class Point(NamedTuple):
    """An evaluation."""

    step: int
    mean: float
    ci95: float | None


class Result(NamedTuple):
    """What one run came to."""

    points: tuple[Point, ...]
    steps: int  # environment steps
    seconds: float  # of training, in its last session
    reached: bool  # its target


def points(run: Run) -> tuple[Point, ...]:
    """The evaluations of a run so far, by step."""
    return tuple(Point(one["step"], one["mean"], runs.number_of(one, "ci95")) for one in runs.evaluated(run.path))


def of_run(run: Run) -> Result:
    """What a run came to, as far as it has come."""
    document = runs.read_json(run.path / "run.json")
    steps, seconds = 0, 0.0
    with contextlib.suppress(BadFileError), runs.Reader(run.metrics_path) as reader:
        if (record := reader.latest()) is not None:
            steps, seconds = record.step, max(0.0, (record.boottime_ns - reader.header.start_boottime_ns) / 1e9)
    return Result(points(run), steps, seconds, document.get("target_reached") is True)


def value(result: Result, objective: str, planned: int) -> float | None:
    """The objective's value for one run; None where it was never evaluated."""
    if not result.points:
        return None
    if objective == "time_to_target":
        return result.seconds if result.reached else _MISSED * result.seconds
    return result.points[-1].mean if objective == "score" else area(result.points, max(planned, result.steps))


def area(found: Sequence[Point], steps: int) -> float:
    """The mean of the evaluations over `steps` environment steps: straight between two, level before the first and
    after the last.
    """
    first, last = found[0], found[-1]
    total = first.mean * first.step + last.mean * max(0, steps - last.step)
    total += sum(
        (later.step - earlier.step) * (later.mean + earlier.mean) / 2 for earlier, later in itertools.pairwise(found)
    )
    return total / max(steps, last.step, 1)


def percent(step: int, steps: int) -> int:
    """How far a run is, in whole percent from 1: what evaluations of trials with other horizons and lanes are compared
    by.
    """
    return max(1, min(100, round(100 * step / max(1, steps))))
