"""Groups: one configuration trained with several seeds, as ordinary runs in one root. Standard library only.

    runs/cartpole-ppo-4f2a/      group.json: the request, the id of each seed's run, the process that trains them
                                 worker-*.log, group.log
    runs/cartpole-ppo-4f2a.1/    the run of seed 1, made when it starts; ... .5/

`python -m operant.runs.groups FOLDER` trains the runs that have not finished, on one worker or several that stay warm
(operant/runs/scheduler.py). It outlives the command that started it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from operant import runs
from operant.errors import BusyError, ConfigError, MachineError, OperantError, UsageError
from operant.runs import Run, launch, membership, pool
from operant.runs.index import has_ending, is_own, names_in
from operant.runs.scheduler import Journal, Scheduler, Trial

FILE: Final = "group.json"
_MODULE: Final = "operant.runs.groups"
# fmt: off
_T95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)
# fmt: on
"""Quantiles 0.975 of Student's t for 1, 2, ... degrees of freedom."""


class Group(NamedTuple):
    """Group of runs with one configuration and several seeds: its id (the folder's name), its folder, and group.json as
    it was read.
    """

    id: str
    path: Path
    document: dict[str, Any]

    @property
    def members(self) -> dict[int, str]:
        """Run ids of the group by seed, including runs that have not been made yet."""
        members = self.document.get("members")
        named = members.items() if isinstance(members, dict) else ()
        return {
            int(seed): id_
            for seed, id_ in named
            if seed.isdecimal() and isinstance(id_, str) and runs.ID.fullmatch(id_)
        }

    @property
    def uuid(self) -> str:
        """Identity of the group, which its runs record; "" for a group of an early version."""
        return membership.uuid_in(self.document, self.path / FILE)

    @property
    def content(self) -> bytes:
        """Entries of group.json that decide which code is run, as bytes for the user's index to hash."""
        own = {key: self.document.get(key) for key in ("request", "trusted")}
        return json.dumps(own, sort_keys=True).encode()

    @property
    def runs(self) -> dict[int, Run]:
        """Existing runs of the group by seed. A run that merely has the id of a member is left out."""
        uuid = self.uuid
        loaded = {seed: runs.load(self.path.parent / id_) for seed, id_ in self.members.items()}
        return {
            seed: run
            for seed, run in loaded.items()
            if run is not None and membership.is_member(run, uuid, seed, 0, self.request(seed))
        }

    @property
    def unchanged(self) -> dict[int, Run]:
        """Existing runs of the group by seed, without those resumed with other values: the runs that means are taken
        over.
        """
        return {seed: run for seed, run in self.runs.items() if membership.is_unchanged(run, self.request(seed))}

    @property
    def taken(self) -> dict[int, str]:
        """Ids of the group by seed that cannot be used, since a run or folder of that name exists that is not one of
        `unchanged`.
        """
        own = self.unchanged
        return {
            seed: id_
            for seed, id_ in self.members.items()
            if seed not in own and os.path.lexists(self.path.parent / id_)
        }

    def request(self, seed: int) -> dict[str, Any]:
        """Return the request for the group's run with `seed`, as run.json stores it."""
        request = self.document.get("request")
        request = request if isinstance(request, dict) else {}
        own = [f"run.seed={seed}", "run.seeds=1", f"run.name={self.members.get(seed)}"]
        return request | {"overrides": [*request.get("overrides", ()), *own]}

    @property
    def live(self) -> bool:
        """Whether a process trains the group. It must be a process of groups: anybody can write a pid into a document,
        and `operant stop` signals it.
        """
        supervisor = self.document.get("supervisor")
        if not isinstance(supervisor, dict) or runs.is_alive(supervisor) is not True:
            return False
        with contextlib.suppress(OSError):
            return _MODULE.encode() in Path(f"/proc/{supervisor['pid']:d}/cmdline").read_bytes()
        return False


class Band(NamedTuple):
    """Mean over `seeds` runs, and half the width of its 95 % confidence interval (None for a single run)."""

    seeds: int
    mean: float
    half: float | None  # half the width of the 95 % interval (Student's t); None for one seed


def band(values: Sequence[float]) -> Band | None:
    """Return the mean of values with its 95 % confidence interval (Student's t); None without values."""
    if not values:
        return None
    count, freedom = len(values), len(values) - 1
    mean = math.fsum(values) / count
    if not freedom:
        return Band(1, mean, None)
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom
    # half = t * s / sqrt(n), s^2 = sum (x - mean)^2 / (n - 1); the monitor computes it for every column of a chart
    variance = math.fsum((value - mean) ** 2 for value in values) / freedom
    return Band(count, mean, quantile * math.sqrt(variance / count))


# ----------------------------------------------------------------------------------------------------------------------
# finding, making


def create(
    root: Path,
    name: str | None,
    prefix: str,
    request: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    files: Iterable[Path] = (),
    **fields: Any,
) -> Group:
    """Make the folder of a group named `name` (None: `prefix` with a random suffix) in the folder `root`, with
    group.json; `fields` are further entries. Its runs are made when they start. `request` is that of
    `Request.document`. Raises UsageError if the name exists already, and MachineError.
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
                raise UsageError(f"{runs.display_path(path)} exists already: give the group another name")
    except OSError as error:
        raise MachineError(
            f"cannot make a group in {runs.display_path(root)} ({error.strerror}): choose another folder with --runs "
            "or $OPERANT_RUNS"
        ) from None
    members = {str(seed): f"{path.name}.{seed}" for seed in seeds}
    document = {
        "schema": 1,
        "id": path.name,
        "uuid": membership.new_uuid(),
        "created_realtime_ns": time.time_ns(),
        "request": dict(request),
        "members": members,
        "files": membership.hashes(files),
        **fields,
    }
    runs.write_json(path / FILE, document)
    group = Group(path.name, path, document)
    runs.add_to_index(path, group.content)
    return group


def load(path: Path) -> Group | None:
    """Load the group in the folder `path`; None if the folder holds none."""
    document = runs.read_json(path / FILE) if runs.ID.fullmatch(path.name) else {}
    return Group(path.name, path, document) if document else None


def _changed_message(group: Group, named: str, seeds: Sequence[int]) -> str:
    """Return the message that the files `named` have changed since the group began, so that `seeds` are not started."""
    left = ", ".join(map(str, seeds))
    return (
        f"{named} has changed since the group began. Not started: seed {left}, because its results would not be "
        f"comparable. Restore the file and continue (operant resume {group.id}), or start a new group"
    )


def list_groups(root: Path, everywhere: bool = True) -> list[Group]:
    """Return the groups in the folder `root`, newest first; with `everywhere` also those next to the runs of the user's
    index.
    """
    groups = [group for path in folders_with(FILE, root, everywhere) if (group := load(path)) is not None]
    return sorted(groups, key=lambda group: -(runs.integer_of(group.document, "created_realtime_ns") or 0))


def find(text: str, root: Path, everywhere: bool = True) -> Group | None:
    """Find the group that `text` names: by a path, by its id, or by the end of an id if no run has that end; in the
    folder `root`, and with `everywhere` also next to the runs of the user's index, by the whole id or its random end,
    unless a run in `root` has that name. None if no group or several match.
    """
    if (path := path_of(text)) is not None:
        return load(path)
    groups = list_groups(root, everywhere) if text else []
    own = [group for group in groups if group.path.parent == root]
    groups = [] if is_own(text, root) else groups
    kinds = (
        [group for group in own if group.id == text],
        [group for group in own if group.id.endswith(f"-{text}")],
        [group for group in groups if group.id == text],
        [group for group in groups if has_ending(group.id, text)],
    )
    fits = next((kind for kind in kinds if kind), [])
    if fits and fits[0].id != text:
        is_run = any(id_ == text or id_.endswith(f"-{text}") for id_ in runs.list_ids(root, everywhere))
        fits = [] if is_run else fits
    return fits[0] if len(fits) == 1 else None


def folders_with(file: str, root: Path, everywhere: bool) -> list[Path]:
    """Return the folders in `root` that hold a file named `file`; with `everywhere` also those next to the runs of the
    user's index.
    """
    roots = dict.fromkeys([root, *(runs.index_roots() if everywhere else ())])
    return [parent / name for parent in roots for name in names_in(parent) if os.path.lexists(parent / name / file)]


def path_of(text: str) -> Path | None:
    """Return the absolute path that the user's text names if it holds a path separator; None for a name."""
    return Path(os.path.abspath(os.path.expanduser(text))) if os.sep in text else None


def remove(group: Group) -> None:
    """Delete a group and its runs. Raises BusyError while one of the runs trains."""
    busy = [run for run in group.runs.values() if runs.has_trainer(run.path)]
    if busy or group.live:
        raise BusyError(f"{group.id} is still training.  stop: operant stop {group.id}")
    for run in group.runs.values():
        runs.remove(run)
    shutil.rmtree(group.path, ignore_errors=True)


def describe(group: Group) -> dict[str, Any]:
    """Return a summary of a group for `operant show --json`: its runs, as `states.describe` returns them, and means
    over seeds.
    """
    existing, unchanged = group.runs, group.unchanged
    bands: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for seed, id_ in group.members.items():
        described = runs.describe(existing[seed]) if seed in existing else {}
        counts = seed in unchanged or seed not in existing
        rows.append({"id": id_, "state": "waiting", "counts": counts} | described | {"seed": seed})
    for key in ("eval_return", "best_return", "return", "step"):
        mean = band([row[key] for row in rows if row["counts"] and row.get(key) is not None])
        bands[key] = None if mean is None else mean._asdict()
    finished = sum(row["state"] == "finished" and row["counts"] for row in rows)
    own = {"schema": 1, "id": group.id, "path": str(group.path), "live": group.live}
    return {**own, "seeds": len(rows), "finished": finished, "bands": bands, "runs": rows}


# ----------------------------------------------------------------------------------------------------------------------
# training


def start(group: Group) -> None:
    """Start a process without a terminal that trains the unfinished runs of a group, and return once it has begun.
    Raises BusyError and MachineError.
    """
    if group.live:
        raise BusyError(f"{group.id} is still training.  stop: operant stop {group.id}")
    command = [*launch.module_command(_MODULE), str(group.path)]
    process = launch.spawn(command, group.path / "group.log")
    while (loaded := load(group.path)) is not None and not loaded.live and process.poll() is None:
        time.sleep(0.01)


def ask_stop(group: Group) -> bool:
    """Ask the process that trains a group to end, with a checkpoint of each run. Returns whether it was signalled."""
    supervisor = group.document.get("supervisor")
    if not group.live or not isinstance(supervisor, dict):
        return False
    with contextlib.suppress(OSError):
        os.kill(supervisor["pid"], signal.SIGTERM)
        return True
    return False


def kill(group: Group) -> None:
    """Kill the trainers of all runs of a group, without checkpoints."""
    for run in group.runs.values():
        runs.signal_worker(run, signal.SIGKILL)


class SeedJournal(Journal[Trial]):
    """Journal of a group for the scheduler, kept in group.json. Each trial is the run of one seed."""

    def __init__(self, group: Group) -> None:
        self.root, self.trusted, self.uuid = group.path.parent, group.document.get("trusted") is True, group.uuid
        self._group, self._seeds = group, list(group.members)

    def next_trial(self) -> Trial | None:
        """Return the trial of the next seed whose run has not finished and is not trained by another process; None if
        there is none.
        """
        while self._seeds:
            seed = self._seeds.pop(0)
            trial = Trial(number=seed, ids={0: self._group.members[seed]}, waiting=[0])
            run = self.load(trial, 0)
            if run is not None and (runs.has_trainer(run.path) or runs.state(run).word == "finished"):
                continue
            begins = run is None or not self.is_resumable(run)
            if begins and (changed := membership.changed_files(self._group.document)):
                self.write(
                    problem=_changed_message(self._group, changed, [seed, *self._seeds]), code=ConfigError.exit_code
                )
                self._seeds.clear()
                return None
            return trial
        return None

    def request(self, trial: Trial, index: int, worker: int) -> Mapping[str, Any]:
        """Return the group's request for the seed of `trial`, as run.json stores it; `index` and `worker` make no
        difference.
        """
        return self._group.request(trial.number)

    def save_ids(self, trial: Trial) -> None:
        """Record the id of the trial's run in group.json."""
        members = {**self._group.document["members"], str(trial.number): trial.ids[0]}
        self._group = self._group._replace(document=self._group.document | {"members": members})
        self.write(members=members)

    def run_ended(self, trial: Trial, index: int, run: Run, code: int) -> None:
        """Handle the end of a seed's run: if it could not even begin, delete it, record its problem, and start no other
        seed, since all would fail alike. `code`: exit code of the run.
        """
        problem = runs.log_end(run)
        if runs.discard_unstarted(run, code):
            self._seeds.clear()
            self.write(problem=problem, code=code)

    def write(self, **fields: Any) -> None:
        """Set `fields` of group.json. Raises MachineError."""
        path = self._group.path / FILE
        runs.write_json(path, runs.read_json(path) | fields)


def train(group: Group) -> None:
    """Train the runs of a group in this process until all have ended. SIGTERM and SIGINT end each with a checkpoint."""
    stops: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stops.append(number))
    journal = SeedJournal(group)
    journal.write(supervisor=runs.identity(), problem=None, code=None)
    count = max(1, runs.integer_of(group.document, "side_by_side") or 1)
    workers = [pool.Worker(group.path / f"worker-{k}.log") for k in range(count)]
    try:
        Scheduler(journal, workers, wanted=lambda: 1 if stops else 0).run()
    except OperantError as error:
        journal.write(problem=str(error), code=error.exit_code)


def main(arguments: Sequence[str]) -> int:
    """Run the process that trains a group. `arguments`: the group's folder. Returns the exit code."""
    group = load(Path(arguments[0])) if len(arguments) == 1 else None
    if group is None:
        return UsageError.exit_code
    os.umask(0o077)
    train(group)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
