"""Results of the runs of a trial: evaluations, objective, time. Standard library only."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from operant import runs
from operant.errors import BadFileError
from operant.runs import Run

_MISSED = 10
"""Penalty factor on the seconds of a run that missed its target (PAR10, as in comparisons of solvers)."""


class Point(NamedTuple):
    """Point of a run's learning curve, one evaluation: step, mean return and 95 % interval (None if unknown)."""

    step: int
    mean: float
    ci95: float | None


class Result(NamedTuple):
    """Result of one run of a trial: evaluations, steps, seconds, and whether it reached its target."""

    points: tuple[Point, ...]
    steps: int  # environment steps
    seconds: float  # of training, in its last session
    reached: bool  # run.target


def points(run: Run) -> tuple[Point, ...]:
    """Read the evaluations of a run so far, ordered by step."""
    return tuple(Point(one["step"], one["mean"], runs.number_of(one, "ci95")) for one in runs.evaluated(run.path))


def of_run(run: Run) -> Result:
    """Read the result of a run so far from its folder."""
    document = runs.read_json(run.path / "run.json")
    steps, seconds = 0, 0.0
    with contextlib.suppress(BadFileError), runs.Reader(run.metrics_path) as reader:
        if (record := reader.latest()) is not None:
            steps, seconds = record.step, max(0.0, (record.boottime_ns - reader.header.start_boottime_ns) / 1e9)
    return Result(points(run), steps, seconds, document.get("target_reached") is True)


def value(result: Result, objective: str, planned: int) -> float | None:
    """Compute the objective of one run ("score", "time_to_target" or "area"), which was planned to take `planned`
    steps; None without an evaluation.
    """
    if not result.points:
        return None
    if objective == "time_to_target":
        return result.seconds if result.reached else _MISSED * result.seconds
    return result.points[-1].mean if objective == "score" else area(result.points, max(planned, result.steps))


def area(evaluations: Sequence[Point], steps: int) -> float:
    """Mean of the evaluations over steps 0 to `steps`: linear between two evaluations, constant before the first and
    after the last.
    """
    first, last = evaluations[0], evaluations[-1]
    total = first.mean * first.step + last.mean * max(0, steps - last.step)
    total += sum(
        (later.step - earlier.step) * (later.mean + earlier.mean) / 2
        for earlier, later in itertools.pairwise(evaluations)
    )
    return total / max(steps, last.step, 1)


def percent(step: int, steps: int) -> int:
    """Progress of a run in whole percent, 1 to 100, at `step` of `steps`. It is an axis that trials with different
    horizons and lanes share.
    """
    return max(1, min(100, round(100 * step / max(1, steps))))
