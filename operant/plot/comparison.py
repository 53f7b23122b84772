"""Comparison of groups of runs: curves, scores, statistics and differences, as plain data. Knows no figure and no
terminal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from operant.errors import UsageError
from operant.plot import curves
from operant.plot.selection import Group, differences, methods
from operant.text import safe


def bands(groups: Sequence[Group], metric: str, axis: curves.Axis, smooth: float) -> dict[str, list[tuple[str, Any]]]:
    """Curves of the groups, by environment. Raises UsageError if a run has too few values of the metric."""
    result: dict[str, list[tuple[str, Any]]] = {}
    several = len({group.entries[0].environment for group in groups}) > 1
    for group in groups:
        lines = [
            (entry.values(metric)[0 if axis == "steps" else 1], entry.values(metric)[2]) for entry in group.entries
        ]
        for entry, (x, _) in zip(group.entries, lines, strict=True):
            if len(x) < 2:
                available = ", ".join(name for name in entry.columns.metrics if len(entry.values(name)[2]) > 1)
                if not available:
                    raise UsageError(
                        f"{safe(entry.run.id)} has too few records for a curve: {len(entry.columns.n)}, at least 2 are "
                        "needed"
                    )
                of = (
                    f"one value of {safe(metric, 80)!r}, but a curve needs two"
                    if len(x)
                    else f"no curve of {safe(metric, 80)!r}"
                )
                raise UsageError(f"{safe(entry.run.id)} has {of}; available: {safe(available, 400)}")
        x_grid, positions = curves.grid([x for x, _ in lines])
        marked = positions if smooth <= 0.0 and metric.startswith("eval/") else None
        result.setdefault(group.entries[0].environment, []).append(
            (
                group.method if several else legend_label(group),
                curves.band(x_grid, [curves.curve(x, values, x_grid, smooth) for x, values in lines], marked),
            )
        )
    return result


def legend_label(group: Group) -> str:
    """Label of a group in a legend."""
    return f"{group.label} ({len(group.entries)} seeds)" if len(group.entries) > 1 else group.label


def scores(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Scores of each group, by environment. Raises UsageError for a group without any."""
    result: list[dict[str, Any]] = []
    for group in groups:
        tasks: dict[str, list[float]] = {}
        for entry in group.entries:
            if not math.isnan(entry.score):
                tasks.setdefault(entry.environment, []).append(entry.score)
        if not tasks:
            raise UsageError(f"{safe(group.label)} has no score: no episode has ended yet")
        result.append({name: np.asarray(row) for name, row in tasks.items()})
    return result


def normalised(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Scale the scores of each environment to [0, 1], from the lowest to the highest score of all groups."""
    names = {name for group in groups for name in group}
    ranges = {name: np.concatenate([group[name] for group in groups if name in group]) for name in names}
    return [
        {name: (row - ranges[name].min()) / max(float(np.ptp(ranges[name])), 1e-12) for name, row in group.items()}
        for group in groups
    ]


def compare(groups: Sequence[Group]) -> dict[str, Any]:
    """Comparison document for `--json`: each group, and if there are several environments, each method over all of
    them.
    """
    group_scores = scores(groups)
    rows: list[dict[str, Any]] = []
    for group, own_scores in zip(groups, group_scores, strict=True):
        columns = [entry.columns for entry in group.entries]
        runs = {"runs": [entry.run.id for entry in group.entries], "scores": [entry.score for entry in group.entries]}
        took = {
            "steps": max(column.step[-1] for column in columns),
            "seconds": sum(column.seconds[-1] for column in columns) / len(columns),
        }
        rows.append(
            {"group": group.label, "env": group.entries[0].environment, **runs, **_statistics(own_scores), **took}
        )
    document = {
        "schema": 1,
        "groups": rows,
        "improvement": _improvements(groups, group_scores),
        "differences": differences(groups),
    }
    if len({row["env"] for row in rows}) == 1:
        return document
    joined = methods(groups)
    scaled = normalised(scores(joined))
    overall = [
        {"method": method.label, "envs": list(own_scores), "runs": len(method.entries), **_statistics(own_scores)}
        for method, own_scores in zip(joined, scaled, strict=True)
    ]
    return {**document, "overall": overall, "overall_improvement": _improvements(joined, scaled)}


class Summary(NamedTuple):
    """Data of score figures, for each group, or for each method if there are several environments."""

    unit: str
    note: str
    thresholds: Any  # (T) scores
    profiles: list[tuple[str, Any]]  # share of runs above each threshold, with its interval
    estimates: dict[str, list[tuple[str, Any]]]  # by name of the statistic


def summary(groups: Sequence[Group]) -> Summary:
    """Performance profiles, interquartile means and means."""
    from operant.plot import statistics

    several = len({group.entries[0].environment for group in groups}) > 1
    shown = methods(groups) if several else groups
    group_scores = scores(shown)
    unit, group_scores = ("normalised score", normalised(group_scores)) if several else ("score", group_scores)
    labels = [group.label if several else legend_label(group) for group in shown]
    note = "95 % stratified bootstrap intervals, 2,000 resamples" + (
        "; 0 and 1: lowest and highest score of each environment" if several else ""
    )
    rows, every = (
        [list(own_scores.values()) for own_scores in group_scores],
        np.concatenate([row for group in group_scores for row in group.values()]),
    )
    thresholds = np.linspace(every.min() - 0.05 * max(float(np.ptp(every)), 1e-9), every.max(), 200)
    profiles = [
        (label, statistics.performance_profile(own_scores, thresholds))
        for label, own_scores in zip(labels, rows, strict=True)
    ]
    estimates = {
        f"interquartile mean of the {unit}": list(zip(labels, map(statistics.interquartile_mean, rows), strict=True)),
        f"mean of the {unit}": list(zip(labels, map(statistics.mean, rows), strict=True)),
    }
    return Summary(unit, note, thresholds, profiles, estimates)


def _statistics(tasks: dict[str, Any]) -> dict[str, Any]:
    from operant.plot import statistics

    rows = list(tasks.values())
    return {"iqm": statistics.interquartile_mean(rows)._asdict(), "mean": statistics.mean(rows)._asdict()}


def _improvements(groups: Sequence[Group], tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Probability of improvement for each pair with the same environments."""
    from operant.plot import statistics

    result = []
    for (one, own_scores), (other, others) in itertools.combinations(zip(groups, tasks, strict=True), 2):
        if own_scores.keys() == others.keys():
            estimate = statistics.probability_of_improvement(
                list(own_scores.values()), [others[name] for name in own_scores]
            )
            result.append({"group": one.label, "over": other.label, **estimate._asdict()})
    return result
