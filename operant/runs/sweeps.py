"""Sweeps as other commands see them: where they lie, which commands work on them, the word that ends them. Standard
library only; knows no trial.

In runs/NAME/ beside sweep.toml: at-HOST-PID.json, a command that works on it; stop.json, the last word to all of these,
on whichever machine.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from operant import runs
from operant.runs import Run, groups

FILE: Final = runs.SWEEP_FILE
_STOP: Final = "stop.json"


def list_sweeps(root: Path, everywhere: bool = True) -> list[Path]:
    """The folders of the sweeps in `root`, and with `everywhere` of those beside any run of the index."""
    return [path for path in groups.folders_with(FILE, root, everywhere) if runs.ID.fullmatch(path.name)]


def find(text: str, root: Path, everywhere: bool = True) -> Path | None:
    """The folder of the sweep that a person means by its name or a path; None where there is none, or several."""
    path = groups.path_of(text)
    fits = (
        [one for one in list_sweeps(root, everywhere) if one.name == text]
        if path is None
        else [path] * (path / FILE).is_file()
    )
    return fits[0] if len(fits) == 1 else None


class Sweep(NamedTuple):
    """A sweep as it was found, with the runs of its trials by their ids."""

    id: str
    path: Path
    runs: dict[str, Run]


def opened(text: str, root: Path, everywhere: bool = True) -> Sweep | None:
    """The sweep that a person means, as `find` does, with its runs."""
    folder = find(text, root, everywhere)
    return None if folder is None else Sweep(folder.name, folder, {run.id: run for run in trials(folder)})


def remove(sweep: Sweep) -> None:
    """Delete a sweep and its runs. Raises BusyError while one of them trains."""
    for run in sweep.runs.values():
        runs.remove(run)
    shutil.rmtree(sweep.path, ignore_errors=True)


def working(folder: Path) -> list[dict[str, Any]]:
    """Who works on a sweep: the identities of commands that live, or are another machine's, of which this cannot be
    told.
    """
    found = (runs.read_json(path) for path in sorted(folder.glob("at-*.json")))
    return [one for one in found if one and runs.lives(one) is not False]


@contextlib.contextmanager
def entered(folder: Path) -> Iterator[Callable[[], int]]:
    """Say that this process works on a sweep. Gives the function that tells what others want since then: 0 nothing, 1
    stop and save, 2 at once.
    """
    own = runs.identity()
    place, before = folder / f"at-{own['host']}-{own['pid']}.json", _word(folder)
    runs.write_json(place, own)
    try:
        yield lambda: 0 if (word := _word(folder)) == before else 2 if word.get("now") else 1
    finally:
        place.unlink(missing_ok=True)


def ask_stop(folder: Path, *, now: bool = False) -> None:
    """Ask all who work on a sweep to end: with a checkpoint of each trial, which the sweep goes on with later, or with
    `now` at once.
    """
    runs.write_json(
        folder / _STOP, {"asked_by": runs.identity(), "now": now, "count": _word(folder).get("count", 0) + 1}
    )


def trials(folder: Path) -> list[Run]:
    """The runs of a sweep's trials."""
    return [
        run
        for run in runs.list_runs(folder.parent, everywhere=False)
        if run.id.startswith(f"{folder.name}.") and run.id[len(folder.name) + 1].isdigit()
    ]


def _word(folder: Path) -> dict[str, Any]:
    return runs.read_json(folder / _STOP)
