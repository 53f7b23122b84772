"""Rows of the run list: runs, groups and sweeps. Standard library only.

The description of an ended run is cached by the times and sizes of its files; only live runs are read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from monitor.data.snapshot import RunRow
from operant import runs
from operant.runs import Run, groups, membership, sweeps
from operant.text import age, count, number, safe

_FILES: Final = ("run.json", "exit.json", "metrics.mm")
_SETTLED: Final = runs.ENDED | {"unreadable"}


_Described = tuple[Run, dict[str, Any]]
"""Run and its description (`operant.runs.describe`)."""


class RunListing:
    """Rows of the run list for everything in `scope`. Caches the descriptions of ended runs and reads only live ones
    again.
    """

    def __init__(self, scope: runs.Scope) -> None:
        self._scope = scope
        self._cache: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {}

    def rows(self) -> list[RunRow]:
        """Return the current row of each run, newest first; above the newest run of a group or sweep the row of the
        whole.
        """
        described = self._described()
        above: dict[Path, list[RunRow]] = {}
        first: list[RunRow] = []  # groups and sweeps without a run
        for members, whole in [*self._groups(described), *self._sweeps(described)]:
            (above.setdefault(members[0][0].path, []) if members else first).append(whole)
        return [*first, *(line for run, one in described for line in (*above.get(run.path, ()), row(run, one)))]

    def _described(self) -> list[_Described]:
        """Return all runs in scope with their descriptions, newest first."""
        described, cache = [], {}
        for run in runs.list_runs(*self._scope):
            path = str(run.path)
            signature = _signature(run)
            entry = self._cache.get(path)
            if entry is None or entry[0] != signature or entry[1]["state"] not in _SETTLED or runs.probe(run.path):
                entry = (signature, runs.describe(run))
            cache[path] = entry
            described.append((run, entry[1]))
        self._cache = cache
        return described

    def _groups(self, described: Sequence[_Described]) -> Iterator[tuple[list[_Described], RunRow]]:
        """Yield (runs, newest first; row) for each group in scope. The row's score is the mean over the runs that were
        not resumed with other values.
        """
        by_path = {run.path: (run, one) for run, one in described}
        for group in groups.list_groups(*self._scope):
            seeds = {group.path.parent / id_: seed for seed, id_ in group.members.items()}
            members = [
                by_path[path]
                for path in by_path
                if path in seeds
                and membership.is_member(by_path[path][0], group.uuid, seeds[path], 0, group.request(seeds[path]))
            ]
            counted = [
                one
                for run, one in members
                if membership.is_unchanged(run, group.request(seeds[run.path])) and one["eval_return"] is not None
            ]
            finished = sum(one["state"] == "finished" for _, one in members)
            mean = groups.band([one["eval_return"] for one in counted])
            yield (
                members,
                _whole(
                    group.path,
                    members,
                    live=group.live,
                    finished=finished == len(seeds),
                    score="-" if mean is None else number(mean.mean),
                    progress=f"{finished} of {len(seeds)} seeds",
                ),
            )

    def _sweeps(self, described: Sequence[_Described]) -> Iterator[tuple[list[_Described], RunRow]]:
        """Yield (runs, newest first; row) for each sweep in scope. The row has no score, since the objective may be
        another figure.
        """
        for folder in sweeps.list_sweeps(*self._scope):
            own = sweeps.uuid(folder)
            members = [
                (run, one)
                for run, one in described
                if run.path.parent == folder.parent and membership.belongs_to(run, own)
            ]
            yield (
                members,
                _whole(
                    folder,
                    members,
                    live=bool(sweeps.working(folder)),
                    finished=sweeps.is_finished(folder),
                    score="-",
                    progress=f"{len(members)} trial{'s' * (len(members) != 1)}",
                ),
            )


def _whole(
    path: Path, members: Sequence[_Described], *, live: bool, finished: bool, score: str, progress: str
) -> RunRow:
    """Build the row of a group or sweep in the folder `path`."""
    newest = members[0][1] if members else {}
    live = live or any(one["state"] in runs.LIVE for _, one in members)
    since_s = newest.get("age_s")
    return RunRow(
        id=safe(path.name, 80),
        path=str(path),
        state="running" if live else "finished" if finished else "stopped",
        env=newest.get("env") or "-",
        algo=newest.get("algo") or "-",
        score=score,
        sps="-",
        progress=progress,
        age="-" if since_s is None else age(since_s),
    )


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
