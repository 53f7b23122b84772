"""The rows of the run picker. Standard library only. Knows no widget.

A run that has ended is described once and then known by its files' times and sizes; only living runs are read again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from monitor.data.snapshot import RunRow
from operant import runs
from operant.runs import Run
from operant.text import age, count, number, safe

_FILES: Final = ("run.json", "exit.json", "metrics.mm")
_SETTLED: Final = runs.ENDED | {"unreadable"}


class Listing:
    """The runs in scope, row by row; remembers those that no longer change."""

    def __init__(self, scope: runs.Scope) -> None:
        self._scope = scope
        self._known: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {}

    def rows(self) -> list[RunRow]:
        """A row for each run, the newest first."""
        found = []
        kept: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {}
        for run in runs.list_runs(*self._scope):
            place = str(run.path)
            signature = _signature(run)
            known = self._known.get(place)
            if known is None or known[0] != signature or known[1]["state"] not in _SETTLED or runs.probe(run.path):
                known = (signature, runs.describe(run))
            kept[place] = known
            found.append(row(run, known[1]))
        self._known = kept
        return found


def _signature(run: Run) -> tuple[object, ...]:
    return tuple(_stamp(run.path / name) for name in _FILES)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def row(run: Run, described: dict[str, Any]) -> RunRow:
    """A description (`operant.runs.describe`) in words; a dash for what is missing."""
    score = described["best_return"] if described["eval_return"] is None else described["eval_return"]
    share, since_s, left_s = described["progress"], described["age_s"], described["eta_s"]
    sps, live = described["sps"], described["state"] in runs.LIVE
    return RunRow(
        id=safe(run.id, 80),
        path=str(run.path),
        state=described["state"],
        env=described["env"] or "-",
        algo=described["algo"] or "-",
        score=number(score if score is not None else described["return"]),
        sps=count(sps) if sps is not None and live else "-",
        progress="-"
        if share is None
        else f"{100 * share:.0f} %" + (f", {age(left_s)} left" if left_s is not None and live else ""),
        age="-" if since_s is None else age(since_s),
    )
