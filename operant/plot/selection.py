"""Grouping of runs: runs that differ only in their seed form a group. Reads run folders; knows no figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from operant import runs
from operant.config import resolved
from operant.errors import NotFoundError
from operant.runs import EVALUATION, RETURN, Columns, Run
from operant.text import safe

_NOT_COMPARED = ("run.seed", "run.name", "run.device", "run.threads")
"""Keys that may differ within a group: they do not affect what is learned."""


class Entry(NamedTuple):
    """Run with its records and its configuration by key."""

    run: Run
    columns: Columns
    config: dict[str, Any]

    @property
    def environment(self) -> str:
        """Name of the environment."""
        return runs.text_of(self.run.document, "env") or str(self.config.get("env.name", "?"))

    def values(self, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, seconds and values of the records in which a metric has a value. Evaluations have exact steps."""
        columns = self.columns
        if metric == EVALUATION and (evaluations := runs.evaluated(self.run.path)):
            steps, seconds = np.asarray(columns.step, np.float64), np.asarray(columns.seconds)
            at = np.array([one["step"] for one in evaluations], np.float64)
            return at, np.interp(at, steps, seconds), np.array([one["mean"] for one in evaluations])
        values = np.asarray(columns.metrics.get(metric, ()), np.float64)
        has = np.isfinite(values)
        return (
            np.asarray(columns.step, np.float64)[: len(has)][has],
            np.asarray(columns.seconds)[: len(has)][has],
            values[has],
        )

    @property
    def score(self) -> float:
        """Mean return of the last evaluation, or without one of the last tenth of the records; NaN if
        there is neither.
        """
        evaluations = self.values(EVALUATION)[2]
        if len(evaluations):
            return float(evaluations[-1])
        steps, _, returns = self.values(RETURN)
        return float(returns[steps >= 0.9 * steps[-1]].mean()) if len(steps) else float("nan")


class Group(NamedTuple):
    """Runs that differ only in their seed, with a label; or the runs of one method on several environments (see
    `methods`).
    """

    label: str
    entries: tuple[Entry, ...]
    method: str  # the label without the environment


def load_entries(listed: Sequence[Run]) -> list[Entry]:
    """Runs with their records, without duplicates. Raises NotFoundError for a run without records."""
    entries = []
    for run in {run.path: run for run in listed}.values():
        columns = runs.columns(run)
        if not len(columns.n):
            raise NotFoundError(f"{safe(run.id)} has no records to draw or compare")
        entries.append(Entry(run, columns, resolved.flat(resolved.tables(run.config_path))))
    return entries


def groups(entries: Sequence[Entry]) -> list[Group]:
    """Group runs, in the order in which they were first named."""
    members_of: dict[str, list[Entry]] = {}
    for entry in entries:
        rules = {key: value for key, value in entry.config.items() if key not in _NOT_COMPARED}
        key = json.dumps(rules, sort_keys=True, default=str) if rules else entry.run.id
        members_of.setdefault(key, []).append(entry)
    labels = _labels([members[0] for members in members_of.values()])
    return [
        Group(label, tuple(members), method)
        for (label, method), members in zip(labels, members_of.values(), strict=True)
    ]


def methods(grouped: Sequence[Group]) -> list[Group]:
    """Join groups over environments: one method per algorithm and set of differing values."""
    joined: dict[str, list[Entry]] = {}
    for group in grouped:
        joined.setdefault(group.method, []).extend(group.entries)
    return [Group(method, tuple(entries), method) for method, entries in joined.items()]


def differences(grouped: Sequence[Group]) -> dict[str, list[Any]]:
    """Keys in which groups differ, with the value of each group; None if a group lacks the key."""
    configs = [group.entries[0].config for group in grouped]
    keys = sorted({key for config in configs for key in config if key not in _NOT_COMPARED})
    values = {key: [config.get(key) for config in configs] for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


def _labels(firsts: Sequence[Entry]) -> list[tuple[str, str]]:
    """Short labels of groups, with and without the environment: the algorithm, and if needed the keys that differ."""
    algorithms = [
        str(entry.config.get("algo.name") or runs.text_of(entry.run.document, "algo") or "?") for entry in firsts
    ]
    kinds = [(algorithm, entry.environment) for algorithm, entry in zip(algorithms, firsts, strict=True)]
    several = len({environment for _, environment in kinds}) > 1
    result: list[tuple[str, str]] = []
    for (algorithm, environment), entry in zip(kinds, firsts, strict=True):
        alike = [other.config for other, kind in zip(firsts, kinds, strict=True) if kind == (algorithm, environment)]
        keys = [
            key
            for key in sorted(entry.config)
            if key not in _NOT_COMPARED and any(config.get(key) != entry.config[key] for config in alike)
        ]
        words = [f"{key.rpartition('.')[2]}={_short(entry.config[key])}" for key in keys[:3]]
        result.append(
            (
                safe(" ".join([algorithm, *([environment] if several else []), *words]), 60),
                safe(" ".join([algorithm, *words]), 60),
            )
        )
    labels = [label for label, _ in result]
    return [
        (label, method)
        if labels.count(label) == 1
        else (f"{label} ({safe(entry.run.id)})", f"{method} ({safe(entry.run.id)})")
        for (label, method), entry in zip(result, firsts, strict=True)
    ]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
