"""Comparison of groups of runs: curves, scores, statistics and differences, as plain data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from operant.errors import UsageError
from operant.plot import curves
from operant.plot.selection import Entry, Group, differences
from operant.runs import EVALUATION, RETURN
from operant.text import safe

_ENOUGH: Final = 4  # evaluations that make a curve
_MOST_COLUMNS: Final = 4  # groups in the columns of the table of settings


def default_metrics(groups: Sequence[Group]) -> dict[str, str]:
    """Choose the metric of the learning curves for each environment: evaluations if each of its groups has a run with
    enough of them, else training returns.
    """
    evaluated: dict[str, bool] = {}
    for group in groups:
        has_enough = any(len(entry.values(EVALUATION)[2]) >= _ENOUGH for entry in group.entries)
        name = group.entries[0].environment
        evaluated[name] = evaluated.get(name, True) and has_enough
    return {name: EVALUATION if has_enough else RETURN for name, has_enough in evaluated.items()}


def too_short(group: Group, metric: str) -> list[Entry]:
    """Runs of a group with fewer than two values of a metric, too few for a curve; [] if that is true of all of
    them.
    """
    short = [entry for entry in group.entries if len(entry.values(metric)[2]) < 2]
    return short if len(short) < len(group.entries) else []


def bands(
    groups: Sequence[Group], metrics: Mapping[str, str], axis: curves.Axis, smooth: float | None
) -> dict[str, list[tuple[str, Any]]]:
    """Compute the mean learning curves with bands of groups of runs, as (label, band) by environment. `metrics` names
    the metric of each environment. `smooth` is the share of the x axis to average over (None: 0 for evaluations, else
    0.02). Raises UsageError if no run of a group has enough values.
    """
    result: dict[str, list[tuple[str, Any]]] = {}
    several = len({group.entries[0].environment for group in groups}) > 1
    for group in groups:
        metric = metrics[group.entries[0].environment]
        short = too_short(group, metric)
        lines = []
        for entry in group.entries:
            steps, seconds, values = entry.values(metric)
            if entry in short:
                continue
            if len(steps) < 2:
                raise UsageError(_no_curve_message(entry, metric, len(steps)))
            lines.append((steps if axis == "steps" else seconds, values))
        share = smoothing(metric, smooth)
        x_grid, positions = curves.grid([x for x, _ in lines])
        marked = positions if share <= 0.0 and metric.startswith("eval/") else None
        band = curves.band(x_grid, [curves.curve(x, values, x_grid, share) for x, values in lines], marked)
        tails = tuple(tail for x, values in lines if (tail := curves.tail(x, values, x_grid, share)) is not None)
        label = group.method if several else legend_label(group)
        result.setdefault(group.entries[0].environment, []).append((label, band._replace(tails=tails)))
    return result


def _no_curve_message(entry: Entry, metric: str, count: int) -> str:
    """Message for a run that has only `count` values of a metric, with the metrics that could be drawn."""
    available = ", ".join(name for name in entry.columns.metrics if len(entry.values(name)[2]) > 1)
    if not available:
        return f"{safe(entry.run.id)} has too few records for a curve: {len(entry.columns.n)}, at least 2 are needed"
    of = f"one value of {safe(metric, 80)!r}, but a curve needs two" if count else f"no curve of {safe(metric, 80)!r}"
    return f"{safe(entry.run.id)} has {of}; available: {safe(available, 400)}"


def smoothing(metric: str, smooth: float | None) -> float:
    """Window of the moving mean of a metric as a share of the x axis: `smooth`, or if that is None 0 for evaluations
    and 0.02 for other metrics.
    """
    return (0.0 if metric.startswith("eval/") else 0.02) if smooth is None else smooth


def legend_label(group: Group) -> str:
    """Label of a group in a legend; it includes the number of seeds if there are several."""
    return f"{group.label} ({len(group.entries)} seeds)" if len(group.entries) > 1 else group.label


def scores(group: Group) -> Any:
    """Scores of a group's runs, (R), without runs that have none. Raises UsageError if no run has one."""
    found = np.array([entry.score for entry in group.entries if not math.isnan(entry.score)])
    if not len(found):
        raise UsageError(f"{safe(group.label)} has no score: no episode has ended yet")
    return found


def compare(groups: Sequence[Group]) -> dict[str, Any]:
    """Compare groups of runs, as a JSON-serialisable dict for `--json`: a row for each group, and the probability that
    a method scores higher than another.
    """
    from operant.plot import statistics

    group_scores = [scores(group) for group in groups]
    rows: list[dict[str, Any]] = []
    for group, own_scores in zip(groups, group_scores, strict=True):
        columns = [entry.columns for entry in group.entries]
        runs = {"runs": [entry.run.id for entry in group.entries], "scores": [entry.score for entry in group.entries]}
        took = {
            "steps": max(column.step[-1] for column in columns),
            "seconds": sum(column.seconds[-1] for column in columns) / len(columns),
        }
        estimates = {
            "iqm": statistics.interquartile_mean([own_scores])._asdict(),
            "mean": statistics.mean([own_scores])._asdict(),
        }
        rows.append({"group": group.label, "env": group.entries[0].environment, **runs, **estimates, **took})
    tasks = [{row["env"]: own_scores} for row, own_scores in zip(rows, group_scores, strict=True)]
    document = {
        "schema": 1,
        "groups": rows,
        "improvement": _improvements([group.label for group in groups], tasks),
        "differences": differences(groups),
    }
    if len({row["env"] for row in rows}) == 1:
        return document
    methods: dict[str, dict[str, list[Any]]] = {}
    for group, row, own_scores in zip(groups, rows, group_scores, strict=True):
        methods.setdefault(group.method, {}).setdefault(row["env"], []).extend(own_scores)
    joined = {
        label: {name: np.array(values) for name, values in method.items()}
        for label, method in methods.items()
        if len(method) > 1
    }
    return {**document, "overall_improvement": _improvements([*joined], [*joined.values()])}


def settings_table(document: Mapping[str, Any], most: int | None = None) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return titles and rows of the table of keys in which groups differ, at most the first `most`: a row for each key,
    or for each group if there are many groups and no more keys than groups. `document`: result of `compare`.
    """
    found = dict(list(document["differences"].items())[:most])
    labels = [row["group"] for row in document["groups"]]
    lines = [[_setting(value) for value in values] for values in found.values()]
    if len(labels) > _MOST_COLUMNS and len(labels) >= len(found):
        return ["group", *(key.removeprefix("algo.") for key in found)], [*zip(labels, *lines, strict=True)]
    return ["key", *labels], [(key, *line) for key, line in zip(found, lines, strict=True)]


def _setting(value: Any) -> str:
    """Format the value of a key for a table: floats with six digits, "-" for None."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


class Summary(NamedTuple):
    """Score statistics of the groups of one environment: performance `profiles` over `thresholds`, and `estimates` with
    intervals, each as (label, data).
    """

    thresholds: Any  # (T) scores
    profiles: list[tuple[str, Any]]  # share of runs above each threshold, with its interval, by label
    estimates: dict[str, list[tuple[str, Any]]]  # by name of the statistic and label


def summary(groups: Sequence[Group]) -> dict[str, Summary]:
    """Compute performance profiles, interquartile means and means of groups of runs, by environment."""
    from operant.plot import statistics

    panels: dict[str, list[Group]] = {}
    for group in groups:
        panels.setdefault(group.entries[0].environment, []).append(group)
    result: dict[str, Summary] = {}
    for environment, shown in panels.items():
        labels = [group.method if len(panels) > 1 else legend_label(group) for group in shown]
        rows = [scores(group) for group in shown]
        every = np.concatenate(rows)
        thresholds = np.linspace(every.min() - 0.05 * max(float(np.ptp(every)), 1e-9), every.max(), 200)
        result[environment] = Summary(
            thresholds,
            [
                (label, statistics.performance_profile([row], thresholds))
                for label, row in zip(labels, rows, strict=True)
            ],
            {
                name: [(label, statistic([row])) for label, row in zip(labels, rows, strict=True)]
                for name, statistic in (
                    ("interquartile mean", statistics.interquartile_mean),
                    ("mean", statistics.mean),
                )
            },
        )
    return result


def _improvements(labels: Sequence[str], tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compute the probability of improvement for each pair of groups with the same environments, and the p-value of
    their difference (None with a single run). `tasks` are each group's scores by environment.
    """
    from operant.plot import statistics

    result = []
    for (one, own_scores), (other, others) in itertools.combinations(zip(labels, tasks, strict=True), 2):
        if own_scores.keys() == others.keys():
            pair = list(own_scores.values()), [others[name] for name in own_scores]
            estimate = statistics.probability_of_improvement(*pair)
            counts = [sum(map(len, side)) for side in pair]
            testable = min(len(values) for side in pair for values in side) > 1
            test = {
                "p_value": statistics.p_value(*pair) if testable else None,
                "least_p_value": statistics.least_p_value(*pair) if testable else None,
            }
            result.append({"group": one, "over": other, **estimate._asdict(), "runs": counts, **test})
    return result


SIGNIFICANT: Final = 0.05
IMPROVEMENT_HEADS: Final = ("", "P", "95 %", "p-value")
"""Titles of the columns of `improvement_rows`."""


def improvement_rows(improvement: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Format the probabilities of improvement of a document for a table: those between groups of several runs."""
    return [
        (
            f"{row['group']} than {row['over']}",
            f"{row['value']:.2f}",
            "-" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}",
            f"{row['p_value']:.2g}" if row["p_value"] >= 0.001 else "< 0.001",
        )
        for row in improvement
        if row["p_value"] is not None
    ]


def improvement_notes(improvement: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences about the table of `improvement_rows`: the meaning of its columns, and which numbers of runs are
    too few for a significant difference.
    """
    tested = [row for row in improvement if row["p_value"] is not None]
    if not tested:
        return []
    few = {tuple(row["runs"]): row["least_p_value"] for row in tested if row["least_p_value"] > SIGNIFICANT}
    notes = ["p-value: permutation test that both groups score the same, two-sided"]
    if any(row["low"] is None for row in tested):
        notes.append("-: the bootstrap has no interval for scores that do not overlap, or are all equal")
    return notes + [
        f"{own} against {other} runs are too few to tell: even if all score higher, chance does the same with p = "
        f"{least:.2g} (4 against 4: 0.029)"
        for (own, other), least in few.items()
    ]
