"""Grouping of runs: runs that differ only in their seed form a group, in which each seed counts once. The module reads
run folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from operant import runs
from operant.config import resolved
from operant.errors import NotFoundError
from operant.runs import EVALUATION, RETURN, Columns, Run
from operant.text import safe

_NOT_COMPARED = ("run.seed", "run.name", "run.device", "run.threads")
"""Keys that may differ within a group: they do not affect what is learned."""
_HIGHEST = 1e100  # sums and squares of smaller values are finite


class Entry(NamedTuple):
    """Run to be compared, with its records and its configuration by dotted key."""

    run: Run
    columns: Columns
    config: dict[str, Any]

    @property
    def environment(self) -> str:
        """Name of the run's environment; "?" if unknown."""
        return runs.text_of(self.run.document, "env") or str(self.config.get("env.name", "?"))

    @property
    def seed(self) -> Any:
        """Seed of the run; None if unknown."""
        return self.config.get("run.seed", runs.integer_of(self.run.document, "seed"))

    @property
    def rules(self) -> str:
        """Text that is equal for runs of one group: their configuration and the hashes of user code, without the seed
        and keys that do not affect learning.
        """
        rules = {key: value for key, value in self.config.items() if key not in _NOT_COMPARED}
        own = {"config": rules, "sources": self.run.document.get("sources")} if rules else {"id": self.run.id}
        return json.dumps(own, sort_keys=True, default=str)

    def values(self, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, seconds and values of a metric in the records (rows of metrics) of a run, where the value is finite
        and can be drawn. Evaluations have their exact steps.
        """
        columns = self.columns
        if metric == EVALUATION and (evaluations := runs.evaluated(self.run.path)):
            steps, seconds = np.asarray(columns.step, np.float64), np.asarray(columns.seconds)
            drawn = [one for one in evaluations if abs(one["mean"]) < _HIGHEST]
            at = np.array([one["step"] for one in drawn], np.float64)
            return at, np.interp(at, steps, seconds), np.array([one["mean"] for one in drawn], np.float64)
        values = np.asarray(columns.metrics.get(metric, ()), np.float64)
        has = np.abs(values) < _HIGHEST
        return (
            np.asarray(columns.step, np.float64)[: len(has)][has],
            np.asarray(columns.seconds)[: len(has)][has],
            values[has],
        )

    @property
    def score(self) -> float:
        """Score of a run: mean return of the last evaluation, or without evaluations that of the last tenth of the
        records; NaN without either.
        """
        evaluations = self.values(EVALUATION)[2]
        if len(evaluations):
            return float(evaluations[-1])
        steps, _, returns = self.values(RETURN)
        return float(returns[steps >= 0.9 * steps[-1]].mean()) if len(steps) else float("nan")


class Group(NamedTuple):
    """Group of runs that differ only in their seed, with a label. Groups of one method on several environments have the
    same `method`.
    """

    label: str
    entries: tuple[Entry, ...]
    method: str  # the label without the environment


def load_entries(listed: Sequence[Run]) -> list[Entry]:
    """Read the metrics and configuration of runs, each run once. Raises NotFoundError for a run without metrics."""
    entries = []
    for run in {os.path.realpath(run.path): run for run in listed}.values():
        columns = runs.columns(run)
        if not len(columns.n):
            raise NotFoundError(f"{safe(run.id)} has no records to draw or compare")
        entries.append(Entry(run, columns, resolved.flat(resolved.tables(run.config_path))))
    return entries


def distinct(entries: Sequence[Entry]) -> tuple[list[Entry], list[tuple[Entry, Entry]]]:
    """Split runs into those that count, and pairs (left out, counted) of equal configuration and seed. Of equal runs
    the one with the most steps counts, else the first.
    """
    counted: dict[tuple[str, str], Entry] = {}
    keys = [(entry.rules, str(entry.run.path if entry.seed is None else entry.seed)) for entry in entries]
    for key, entry in zip(keys, entries, strict=True):
        if key not in counted or entry.columns.step[-1] > counted[key].columns.step[-1]:
            counted[key] = entry
    chosen = {entry.run.path for entry in counted.values()}
    return (
        [entry for entry in entries if entry.run.path in chosen],
        [(entry, counted[key]) for key, entry in zip(keys, entries, strict=True) if entry.run.path not in chosen],
    )


def groups(entries: Sequence[Entry], names: Mapping[Path, str] | None = None) -> list[Group]:
    """Group runs that differ only in their seed, in the order of their first runs. `names` are labels by the path of a
    run.
    """
    names = names or {}
    members_of: dict[str, list[Entry]] = {}
    for entry in entries:
        members_of.setdefault(entry.rules, []).append(entry)
    named = [
        list(dict.fromkeys(names[entry.run.path] for entry in members if entry.run.path in names))
        for members in members_of.values()
    ]
    labels = _group_labels(
        [members[0] for members in members_of.values()],
        [" + ".join(own) or None for own in named],
    )
    return [
        Group(label, tuple(members), method)
        for (label, method), members in zip(labels, members_of.values(), strict=True)
    ]


def differences(grouped: Sequence[Group]) -> dict[str, list[Any]]:
    """Find the keys in which groups differ, with the value of each group; None where a group lacks the key."""
    configs = [group.entries[0].config for group in grouped]
    keys = sorted({key for config in configs for key in config if key not in _NOT_COMPARED})
    values = {key: [config.get(key) for config in configs] for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


def _group_labels(firsts: Sequence[Entry], named: Sequence[str | None]) -> list[tuple[str, str]]:
    """Choose the (label, method) of groups, given their first runs: the name in `named`, else the algorithm and, if
    needed, the keys that differ. A label may add the environment.
    """
    algorithms = [
        str(entry.config.get("algo.name") or runs.text_of(entry.run.document, "algo") or "?") for entry in firsts
    ]
    kinds = [(algorithm, entry.environment) for algorithm, entry in zip(algorithms, firsts, strict=True)]
    several = len({environment for _, environment in kinds}) > 1
    result: list[tuple[str, str]] = []
    for (algorithm, environment), entry, name in zip(kinds, firsts, named, strict=True):
        alike = [other.config for other, kind in zip(firsts, kinds, strict=True) if kind == (algorithm, environment)]
        keys = [
            key
            for key in sorted(entry.config)
            if key not in _NOT_COMPARED and any(config.get(key) != entry.config[key] for config in alike)
        ]
        words = [f"{key.rpartition('.')[2]}={_value_text(entry.config[key])}" for key in keys[:3]]
        words = [algorithm, *words] if name is None else [name]
        result.append(
            (
                safe(" ".join([words[0], *([environment] if several else []), *words[1:]]), 60),
                safe(" ".join(words), 60),
            )
        )
    labels = [label for label, _ in result]
    return [
        (label, method)
        if labels.count(label) == 1
        else (f"{label} ({safe(entry.run.id)})", f"{method} ({safe(entry.run.id)})")
        for (label, method), entry in zip(result, firsts, strict=True)
    ]


def _value_text(value: Any) -> str:
    """Format a value for a label, floats briefly."""
    return f"{value:g}" if isinstance(value, float) else str(value)
