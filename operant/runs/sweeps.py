"""Sweep folders: lookup, runs, the commands that work on a sweep, stop requests to them.

Standard library only.

    runs/NAME/   sweep.json         identity of the sweep in its runs (operant/runs/membership.py); whether it finished
                 at-HOST-PID.json   a command that works on the sweep, on any machine
                 stop.json          the last stop request to all of them
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from operant import runs
from operant.runs import Run, groups, membership
from operant.runs.index import is_own

FILE: Final = runs.SWEEP_FILE
IDENTITY: Final = "sweep.json"
_STOP: Final = "stop.json"


def list_sweeps(root: Path, everywhere: bool = True) -> list[Path]:
    """Return the folders of the sweeps in the folder `root`; with `everywhere` also those next to the runs of the
    user's index.
    """
    return [path for path in groups.folders_with(FILE, root, everywhere) if runs.ID.fullmatch(path.name)]


def find(text: str, root: Path, everywhere: bool = True) -> Path | None:
    """Find the folder of the sweep that `text` names (its name or a path): in the folder `root`, with `everywhere` also
    next to the runs of the user's index, unless a run in `root` has that name. None if no sweep or several match.
    """
    if (path := groups.path_of(text)) is not None:
        return path if (path / FILE).is_file() else None
    fits = [folder for folder in list_sweeps(root, everywhere) if folder.name == text]
    own = [folder for folder in fits if folder.parent == root]
    if not own and fits and is_own(text, root):
        return None
    fits = own or fits
    return fits[0] if len(fits) == 1 else None


class Sweep(NamedTuple):
    """Sweep on disk: its name, its folder, and the runs of its trials by id."""

    id: str
    path: Path
    runs: dict[str, Run]


def load(text: str, root: Path, everywhere: bool = True) -> Sweep | None:
    """Load the sweep that `text` names (its name or a path), from the folder `root`, with `everywhere` also next to the
    runs of the user's index. None if no sweep or several match.
    """
    folder = find(text, root, everywhere)
    return None if folder is None else Sweep(folder.name, folder, {run.id: run for run in trials(folder)})


def remove(sweep: Sweep) -> None:
    """Delete a sweep and its runs. Raises BusyError while one of the runs trains."""
    for run in sweep.runs.values():
        runs.remove(run)
    shutil.rmtree(sweep.path, ignore_errors=True)


def working(folder: Path) -> list[dict[str, Any]]:
    """Return the identities of the processes that work on a sweep. Those of other machines are included, since their
    end cannot be seen here.
    """
    identities = (runs.read_json(path) for path in sorted(folder.glob("at-*.json")))
    return [one for one in identities if one and runs.is_alive(one) is not False]


@contextlib.contextmanager
def entered(folder: Path) -> Iterator[Callable[[], int]]:
    """Context manager that records that this process works on a sweep. Yields a function that returns the stop request
    since then: 0 none, 1 stop with checkpoints, 2 end now.
    """
    own = runs.identity()
    path, before = folder / f"at-{own['host']}-{own['pid']}.json", _stop_request(folder)
    runs.write_json(path, own)
    try:
        yield lambda: 0 if (request := _stop_request(folder)) == before else 2 if request.get("now") else 1
    finally:
        path.unlink(missing_ok=True)


def ask_stop(folder: Path, *, now: bool = False) -> None:
    """Ask all processes that work on a sweep to end, with a checkpoint of each trial for a resume; with `now` at once,
    without.
    """
    count = _stop_request(folder).get("count", 0) + 1
    runs.write_json(folder / _STOP, {"asked_by": runs.identity(), "now": now, "count": count})


def create_identity(folder: Path, files: Iterable[Path] = ()) -> None:
    """Give a new sweep its identity, with the user's code `files`, unless another command has just done so. Raises
    OSError and MachineError.
    """
    temporary = folder / f".{IDENTITY}-{os.getpid()}"
    fields = {"id": folder.name, "uuid": membership.new_uuid(), "created_realtime_ns": time.time_ns()}
    fields["files"] = membership.hashes(files)
    runs.write_json(temporary, {"schema": 1, **fields})
    try:
        with contextlib.suppress(FileExistsError):
            os.link(temporary, folder / IDENTITY)
    finally:
        temporary.unlink()


def set_finished(folder: Path, finished: bool) -> None:
    """Record whether a sweep has trained all trials of its budget. Raises MachineError."""
    path = folder / IDENTITY
    if is_finished(folder) != finished and path.exists():
        runs.write_json(path, runs.read_json(path) | {"finished": finished})


def is_finished(folder: Path) -> bool:
    """Whether a sweep has trained all trials of its budget. False for one of a version that did not record it."""
    return runs.read_json(folder / IDENTITY).get("finished") is True


def changed_files(folder: Path) -> str | None:
    """Return the names of the user's code files that have changed since the sweep began, joined by commas; None if none
    has.
    """
    return membership.changed_files(runs.read_json(folder / IDENTITY))


def uuid(folder: Path) -> str:
    """Return the identity of a sweep, which its runs record; "" for a sweep of an early version."""
    return membership.uuid_in(runs.read_json(folder / IDENTITY), folder / IDENTITY)


def trials(folder: Path) -> list[Run]:
    """Return the runs that were made for the trials of a sweep."""
    listed, own = runs.list_runs(folder.parent, everywhere=False), uuid(folder)
    if own:
        return [run for run in listed if membership.belongs_to(run, own)]
    if (folder / IDENTITY).exists():  # a copy of a sweep
        return []
    name = re.compile(rf"{re.escape(folder.name)}\.[0-9]+(\.[0-9]+)?(-[0-9a-f]{{4,8}})?")
    return [run for run in listed if name.fullmatch(run.id) and _was_made_by(folder, run)]


def _was_made_by(folder: Path, run: Run) -> bool:
    """Whether the sweep in `folder`, of a version before 2026-11-24, made a run: the run's request names the sweep's
    file and asks for one seed.
    """
    request = membership.request_of(run)
    words: Any = request.get("overrides")
    return (
        membership.KEY not in run.document
        and request.get("config") == str(folder / FILE)
        and isinstance(words, list)
        and "run.seeds=1" in words
    )


def _stop_request(folder: Path) -> dict[str, Any]:
    """Return the last stop request to a sweep; {} without one."""
    return runs.read_json(folder / _STOP)
