"""Learning curves of groups of runs as one figure, with the note that says how they were made. Used by `operant plot`
and by the library's `run.plot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from operant import runs
from operant.plot import comparison
from operant.plot.curves import Axis
from operant.plot.selection import Group


def label_of(metric: str) -> str:
    """Label of a metric's axis."""
    names = {"eval/return": "mean return of evaluations", "return": "mean return of training episodes"}
    return names.get(metric, metric)


def learning_curves(groups: Sequence[Group], metrics: dict[str, str], axis: Axis, smooth: float | None) -> Any:
    """Matplotlib figure of learning curves with bands, a panel for each environment."""
    from operant.plot import figure

    bands = comparison.bands(groups, metrics, axis, smooth)
    drawn = [band for lines in bands.values() for _, band in lines]
    labels = {name: label_of(metric) for name, metric in metrics.items()}
    notes = []
    for metric in dict.fromkeys(metrics.values()):
        share = comparison.smoothing(metric, smooth)
        smoothed = f"mean of a window of {100 * share:g} % of the x axis" if share else "not smoothed"
        notes.append(smoothed if len(set(metrics.values())) == 1 else f"{label_of(metric)}: {smoothed}")
    if any(len(group.entries) > 1 for group in groups):
        notes.append("line: mean over seeds until the first of them ended; band: 95 % bootstrap interval")
    if any(band.tails for band in drawn):
        notes.append("thin lines: single seeds after that")
    targets: dict[str, set[float | None]] = {}
    for entry in (entry for group in groups for entry in group.entries):
        targets.setdefault(entry.environment, set()).add(runs.number_of(entry.run.document, "target"))
    common = {
        name: next(iter(values))
        for name, values in targets.items()
        if len(values) == 1 and metrics[name] in (runs.EVALUATION, runs.RETURN)
    }
    marked = {name: value for name, value in common.items() if value is not None}
    if marked:
        notes.append("dotted line: target")
    if any(band.marked is not None for band in drawn):
        notes.append("points: evaluations")
    return figure.learning_curves(bands, metrics=labels, axis=axis, target=marked, note="; ".join(notes))
