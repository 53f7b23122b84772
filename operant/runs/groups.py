"""Groups: one configuration trained with several seeds, as ordinary runs in one root. Standard library only; knows
nothing of what is trained.

    runs/cartpole-ppo-4f2a/      group.json: what is asked for, its seeds and the ids of its runs, who trains them
    worker-*.log, group.log runs/cartpole-ppo-4f2a.1/    the run of seed 1, made when its turn comes; ... .5/

`python -m operant.runs.groups FOLDER` trains those that have not finished, one after another or some side by side, on
workers that stay warm, and outlives the command that started it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from operant import runs
from operant.errors import BusyError, MachineError, OperantError, UsageError
from operant.runs import Run, launch, pool

FILE: Final = "group.json"
_LOOK_S = 0.25
_T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
)
"""Quantiles 0.975 of Student's t for 1, 2, ... degrees of freedom."""


class Group(NamedTuple):
    """A group as it was found: its id (the folder's name), where it lies, its document."""

    id: str
    path: Path
    document: dict[str, Any]

    @property
    def members(self) -> dict[int, str]:
        """The ids of its runs by seed, those included that have not been made yet."""
        found = self.document.get("members")
        named = found.items() if isinstance(found, dict) else ()
        return {
            int(seed): id_
            for seed, id_ in named
            if seed.isdecimal() and isinstance(id_, str) and runs.ID.fullmatch(id_)
        }

    @property
    def runs(self) -> dict[int, Run]:
        """Those of its runs that there are, by seed."""
        found = {seed: runs.load(self.path.parent / id_) for seed, id_ in self.members.items()}
        return {seed: run for seed, run in found.items() if run is not None}

    @property
    def live(self) -> bool:
        """Whether a process trains them, run after run."""
        found = self.document.get("supervisor")
        return isinstance(found, dict) and runs.lives(found) is True


class Band(NamedTuple):
    """A mean over seeds."""

    seeds: int
    mean: float
    half: float | None  # half the width of the mean's 95 % interval (Student's t); None of one


def band(values: Sequence[float]) -> Band | None:
    """The mean of some values and its 95 % interval; None of none."""
    if not values:
        return None
    freedom = len(values) - 1
    quantile = _T95[freedom - 1] if 0 < freedom <= len(_T95) else 1.96 + 2.4 / max(1, freedom)
    return Band(
        len(values),
        statistics.fmean(values),
        quantile * statistics.stdev(values) / math.sqrt(len(values)) if freedom else None,
    )


# ----------------------------------------------------------------------------------------------------------------------
# finding, making


def create(
    root: Path, name: str | None, prefix: str, request: Mapping[str, Any], seeds: Sequence[int], **fields: Any
) -> Group:
    """Make a group's folder; its runs are made when their turn comes. Raises UsageError for a name that is taken, and
    MachineError.
    """
    if name is not None and (not runs.ID.fullmatch(name) or len(name) > 56):
        raise UsageError(
            f"{name!r} cannot be the name of a group: 1 to 56 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name or prefix).lstrip("._-")[:51] or "run"
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            path = root / (name or f"{stem}-{os.urandom(2).hex()}")
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                break
            if name is not None:
                raise UsageError(f"{runs.shown(path)} is there already: give the group another name")
    except OSError as error:
        raise MachineError(
            f"no group can be made in {runs.shown(root)} ({error.strerror}): choose another place with --runs or "
            "$OPERANT_RUNS"
        ) from None
    members = {str(seed): f"{path.name}.{seed}" for seed in seeds}
    document = {
        "schema": 1,
        "id": path.name,
        "created_realtime_ns": time.time_ns(),
        "request": dict(request),
        "members": members,
        **fields,
    }
    runs.write_json(path / FILE, document)
    return Group(path.name, path, document)


def load(path: Path) -> Group | None:
    """The group of a folder, or None."""
    document = runs.read_json(path / FILE) if runs.ID.fullmatch(path.name) else {}
    return Group(path.name, path, document) if document else None


def list_groups(root: Path, everywhere: bool = True) -> list[Group]:
    """The groups in `root`, and with `everywhere` those beside any run of the index, the newest first."""
    found = [group for path in folders(FILE, root, everywhere) if (group := load(path)) is not None]
    return sorted(found, key=lambda group: -(runs.integer_of(group.document, "created_realtime_ns") or 0))


def find(text: str, root: Path, everywhere: bool = True) -> Group | None:
    """The group that a person means by an id, the end of one, or a path; None where there is none, or several."""
    if (path := typed(text)) is not None:
        return load(path)
    groups = list_groups(root, everywhere) if text else []
    fits = [group for group in groups if group.id == text] or [
        group for group in groups if group.id.endswith(f"-{text}")
    ]
    return fits[0] if len(fits) == 1 else None


def folders(file: str, root: Path, everywhere: bool) -> list[Path]:
    """The folders in `root` that hold a file, and with `everywhere` those beside any run of the index."""
    roots = dict.fromkeys([root, *(runs.parents() if everywhere else ())])
    return [place / name for place in roots for name in _names(place) if os.path.lexists(place / name / file)]


def typed(text: str) -> Path | None:
    """The path that a person has typed; None for what is no path but a name."""
    return Path(os.path.abspath(os.path.expanduser(text))) if os.sep in text else None


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def remove(group: Group) -> None:
    """Delete a group and its runs. Raises BusyError while one of them trains."""
    busy = [run for run in group.runs.values() if runs.taken(run.path)]
    if busy or group.live:
        raise BusyError(f"{group.id} is still training.  stop: operant stop {group.id}")
    for run in group.runs.values():
        runs.remove(run)
    shutil.rmtree(group.path, ignore_errors=True)


def describe(group: Group) -> dict[str, Any]:
    """What `operant show --json` prints of a group: its runs as `states.describe` has them, and means over seeds."""
    made = group.runs
    bands: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for seed, id_ in group.members.items():
        rows.append({"seed": seed, "id": id_, "state": "waiting"} | (runs.describe(made[seed]) if seed in made else {}))
    for key in ("eval_return", "best_return", "return", "step"):
        found = band([row[key] for row in rows if row.get(key) is not None])
        bands[key] = None if found is None else found._asdict()
    finished = sum(row["state"] == "finished" for row in rows)
    own = {"schema": 1, "id": group.id, "path": str(group.path), "live": group.live}
    return {**own, "seeds": len(rows), "finished": finished, "bands": bands, "runs": rows}


# ----------------------------------------------------------------------------------------------------------------------
# training


def start(group: Group) -> None:
    """Train those of a group's runs that have not finished, in a process of its own that holds no terminal. Raises
    BusyError and MachineError.
    """
    if group.live:
        raise BusyError(f"{group.id} is still training.  stop: operant stop {group.id}")
    command = [*launch.module_command("operant.runs.groups"), str(group.path)]
    try:
        with open(group.path / "group.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=launch.environment(),
                start_new_session=True,
            )
    except OSError as error:
        raise MachineError(f"the group cannot be trained ({error.strerror}): {runs.shown(group.path)}") from None
    while (loaded := load(group.path)) is not None and not loaded.live and process.poll() is None:
        time.sleep(0.01)


def ask_stop(group: Group) -> bool:
    """Ask the process that trains a group to end, with a checkpoint of each run; whether there was one."""
    found = group.document.get("supervisor")
    if not group.live or not isinstance(found, dict):
        return False
    with contextlib.suppress(OSError):
        os.kill(found["pid"], signal.SIGTERM)
        return True
    return False


def kill(group: Group) -> None:
    """End those of a group's runs that train at once, without a checkpoint."""
    for run in group.runs.values():
        runs.signal_worker(run, signal.SIGKILL)


class Supervisor:
    """Trains a group's runs."""

    def __init__(self, group: Group) -> None:
        self._group, self._stopping = group, False
        self._workers = [
            pool.Worker(group.path / f"worker-{k}.log")
            for k in range(max(1, runs.integer_of(group.document, "side_by_side") or 1))
        ]
        self._waiting = list(group.members)

    def run(self) -> None:
        """Until all have ended, or a stop is asked for."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._write(supervisor=runs.identity(), problem=None, code=None)
        told = False
        try:
            while True:
                for worker in self._workers:
                    if (ended := worker.ended()) is not None:
                        self._note(ended)
                    if worker.run is None and self._waiting and not self._stopping:
                        self._begin(worker, self._waiting.pop(0))
                if self._stopping and not told:
                    told = True
                    for worker in self._workers:
                        worker.stop()
                if not any(worker.run for worker in self._workers) and (self._stopping or not self._waiting):
                    return
                pool.wait(self._workers, _LOOK_S)
        except OperantError as error:
            self._write(problem=str(error), code=error.exit_code)
        finally:
            for worker in self._workers:
                worker.close()

    def _note(self, ended: pool.Ended) -> None:
        """What keeps one run from beginning keeps the others: say it in their place."""
        said = runs.log_end(ended.run)
        if runs.discard_unstarted(ended.run, ended.code):
            self._waiting.clear()
            self._write(problem=said, code=ended.code)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _write(self, **fields: Any) -> None:
        document = runs.read_json(self._group.path / FILE) | fields
        runs.write_json(self._group.path / FILE, document)

    def _begin(self, worker: pool.Worker, seed: int) -> None:
        """Train the run of a seed, or train it on; nothing where it has finished or another process trains it."""
        group, trusted = self._group, self._group.document.get("trusted") is True
        run = group.runs.get(seed)
        if run is not None and (runs.taken(run.path) or runs.state(run).word == "finished"):
            return
        if run is not None and any(run.checkpoints_path.glob("step-*")):
            before = run.document.get("request")
            asked = {
                **(before if isinstance(before, dict) else {}),
                "resume_overrides": [],
                "resume_directory": str(group.path.parent),
            }
            runs.update_document(run.path, request=asked)
            worker.begin(run, resume="last", trusted=trusted)
            return
        if run is not None:
            runs.remove(run)
        request = group.document["request"]
        own = [f"run.seed={seed}", "run.seeds=1", f"run.name={group.members[seed]}"]
        run = runs.create(
            group.path.parent, group.members[seed], "", request | {"overrides": [*request["overrides"], *own]}
        )
        if run.id != group.members[seed]:
            self._group = group._replace(
                document=group.document | {"members": {**group.document["members"], str(seed): run.id}}
            )
            self._write(members=self._group.document["members"])
        worker.begin(run, trusted=trusted)


def main(arguments: Sequence[str]) -> int:
    """The supervisor's program: FOLDER."""
    group = load(Path(arguments[0])) if len(arguments) == 1 else None
    if group is None:
        return UsageError.exit_code
    os.umask(0o077)
    Supervisor(group).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
