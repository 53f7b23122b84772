"""Rows of the run list. Standard library only. Knows no widget.

The description of an ended run is cached by the times and sizes of its files; only live runs are read again.
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


class RunListing:
    """Rows of the run list for all runs in `scope`. Caches the rows of ended runs and reads only live ones again."""

    def __init__(self, scope: runs.Scope) -> None:
        self._scope = scope
        self._cache: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {}

    def rows(self) -> list[RunRow]:
        """Return the current row of each run, newest first."""
        rows = []
        cache: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {}
        for run in runs.list_runs(*self._scope):
            path = str(run.path)
            signature = _signature(run)
            entry = self._cache.get(path)
            if entry is None or entry[0] != signature or entry[1]["state"] not in _SETTLED or runs.probe(run.path):
                entry = (signature, runs.describe(run))
            cache[path] = entry
            rows.append(row(run, entry[1]))
        self._cache = cache
        return rows


def _signature(run: Run) -> tuple[object, ...]:
    """Return the identities, times and sizes of a run's main files; any change of a file changes it."""
    return tuple(_stamp(run.path / name) for name in _FILES)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return (inode, modification time in ns, size) of a file; None if it cannot be read."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def row(run: Run, described: dict[str, Any]) -> RunRow:
    """Build a row of the run list from a run's description (`operant.runs.describe`); "-" for missing values."""
    score = described["best_return"] if described["eval_return"] is None else described["eval_return"]
    share, since_s, left_s = described["progress"], described["age_s"], described["eta_s"]
    sps, live = described["sps"], described["state"] in runs.LIVE
    return RunRow(
        id=safe(run.id, 80),
        path=str(run.path),
        state=described["state"],
        env=described["env"] or "-",
        algo=described["algo"] or "-",
        score=number(score),
        sps=count(sps) if sps is not None and live else "-",
        progress="-"
        if share is None
        else f"{100 * share:.0f} %" + (f", {age(left_s)} left" if left_s is not None and live else ""),
        age="-" if since_s is None else age(since_s),
    )
