"""Scheduler: trains the runs of a list of trials on worker processes. Standard library only.

A group of seeds and a sweep differ in their journal alone: where trials come from, what their runs are asked for, what
is recorded at their end. The journal is on disk before a run starts, so that a scheduler that was killed at any moment
is continued by another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from operant import runs
from operant.errors import BusyError, StoppedError
from operant.runs import Run, membership, notes, pool

_LOOK_S: Final = 0.25


@dataclass(eq=False, kw_only=True)
class Trial:
    """One or more runs with a common result, by index from 0 (one for each seed). The scheduler moves indices from
    `waiting` to `active` and removes them at the end; `verdict` is set once the trial is decided.
    """

    number: int  # of a sweep's trial; the seed of a group's
    ids: dict[int, str]  # run ids by index
    waiting: list[int]  # indices of runs to start or to resume
    active: dict[int, pool.Worker | None] = field(default_factory=dict)  # None: a run with a worker of another process
    started: bool = False
    verdict: str = ""  # "pruned" or "fail": its runs are asked to end
    reason: str = ""

    def end(self, verdict: str, reason: str) -> None:
        """Decide the trial ("pruned" or "fail", with a reason): ask its runs to stop, and start no other."""
        self.verdict, self.reason = verdict, reason
        for worker in self.active.values():
            if worker is not None:
                worker.stop()


AnyTrial = TypeVar("AnyTrial", bound=Trial)


class Journal(ABC, Generic[AnyTrial]):
    """Trials of a group or a sweep on disk, as the scheduler takes and records them. `root` is the folder of the
    trials' runs, `uuid` the identity that the runs record.
    """

    root: Path
    uuid: str
    trusted: bool  # code from run folders may be imported

    def unfinished(self) -> list[AnyTrial]:
        """Return the trials taken over from a process that has ended."""
        return []

    @abstractmethod
    def next_trial(self) -> AnyTrial | None:
        """Create and return the next trial; None if there is none."""

    @property
    def asks_ahead(self) -> bool:
        """Whether the scheduler creates the next trial before a worker is free for it."""
        return False

    @abstractmethod
    def request(self, trial: AnyTrial, index: int, worker: int) -> Mapping[str, Any]:
        """Return the request for run `index` of a trial, as run.json stores it, if worker number `worker` trains it."""

    def load(self, trial: AnyTrial, index: int) -> Run | None:
        """Load run `index` of a trial; None before the run is made, or if another run has its id."""
        run = runs.load(self.root / trial.ids[index])
        request = self.request(trial, index, 0)
        is_own = (
            run is not None
            and membership.is_member(run, self.uuid, trial.number, index, request)
            and membership.is_unchanged(run, request)
        )
        return run if is_own else None

    def is_resumable(self, run: Run) -> bool:
        """Whether a run that has ended is resumed instead of trained from its beginning: it has a checkpoint."""
        return any(run.checkpoints_path.glob("step-*"))

    @abstractmethod
    def save_ids(self, trial: AnyTrial) -> None:
        """Record the run ids of a trial on disk after one has changed."""

    @abstractmethod
    def run_ended(self, trial: AnyTrial, index: int, run: Run, code: int) -> None:
        """Record that run `index` of a trial has ended with an exit code."""

    def observe(self, trial: AnyTrial) -> None:
        """Examine a trial that is not decided, and `end` it if its results so far call for that. By default nothing."""
        return

    def trial_ended(self, trial: AnyTrial) -> None:
        """Record the result of a trial. Raises OperantError if no other trial shall start. By default nothing."""
        return


class Scheduler(Generic[AnyTrial]):
    """Loop that trains the trials of a journal on worker processes. `wanted` is polled: 0 continue, 1 stop with
    checkpoints, 2 end now.
    """

    def __init__(self, journal: Journal[AnyTrial], workers: Sequence[pool.Worker], wanted: Callable[[], int]) -> None:
        self.trials: list[AnyTrial] = []
        self._journal, self._workers, self._wanted = journal, workers, wanted
        self._exhausted = self._stopping = False

    def run(self, after_turn: Callable[[], None] = lambda: None) -> bool:
        """Train until no trial is left. Returns whether all were trained; after a stop, unfinished trials stay open in
        the journal. `after_turn` is called after each look at the workers.
        """
        try:
            self.trials.extend(self._journal.unfinished())
            while True:
                if self._wanted() and not self._stopping:
                    self._stop()
                self._collect()
                self._fill(take_new=False)  # workers train on while results are recorded below
                for trial in list(self.trials):
                    self._observe(trial)
                self._fill(take_new=True)
                self._ask_ahead()
                after_turn()
                if self._stopping and not any(worker.run for worker in self._workers):
                    return False
                if not self.trials and self._exhausted:
                    return True
                if self._wanted() > 1:
                    return False
                pool.wait(self._workers, _LOOK_S)
        finally:
            for worker in self._workers:
                worker.close()

    def _stop(self) -> None:
        """Ask all workers' runs to end with a checkpoint, and start no other."""
        self._stopping = True
        for worker in self._workers:
            worker.stop()

    # starting

    def _fill(self, *, take_new: bool) -> None:
        """Give each free worker a waiting run of a trial that has begun; with `take_new` also of a new trial."""
        if self._stopping:
            return
        for number, worker in enumerate(self._workers):
            while worker.run is None:
                trial = next((one for one in self.trials if one.waiting and not one.verdict), None)
                if trial is None and take_new:
                    trial = self._take()
                if trial is None:
                    return
                trial.started = True
                self._start(trial, trial.waiting.pop(0), number)

    def _ask_ahead(self) -> None:
        """Create one trial for the next free worker, which hides the time in which the journal chooses it."""
        if (
            not self._stopping
            and self._journal.asks_ahead
            and all(trial.started and not trial.waiting for trial in self.trials)
        ):
            self._take()

    def _take(self) -> AnyTrial | None:
        """Create the next trial and add it to the open ones; None if there is none."""
        trial = self._journal.next_trial()
        self._exhausted = trial is None
        if trial is not None:
            self.trials.append(trial)
        return trial

    def _start(self, trial: AnyTrial, index: int, number: int) -> None:
        """Train or resume run `index` of a trial on worker number `number`."""
        worker, run, resume = self._workers[number], self._journal.load(trial, index), None
        if run is not None and not runs.has_trainer(run.path):
            if self._journal.is_resumable(run):
                resume = "last"
                own = {"resume_overrides": [], "resume_directory": str(self._journal.root)}
                runs.update_document(run.path, request={**membership.request_of(run), **own})
            else:
                if not notes.exist(run.path):  # a run with a note or a tag is not removed without a question
                    runs.remove(run)
                run = None
        if run is None:
            run = runs.create(
                self._journal.root,
                trial.ids[index],
                "",
                self._journal.request(trial, index, number),
                **membership.identity(self._journal.uuid, trial.number, index),
            )
            if run.id != trial.ids[index]:  # another run has the id
                trial.ids[index] = run.id
                self._journal.save_ids(trial)
        try:
            worker.begin(run, resume=resume, trusted=self._journal.trusted)
            trial.active[index] = worker
        except BusyError:
            trial.active[index] = None

    # ending

    def _collect(self) -> None:
        """Record the runs that the workers have ended; a stopped one waits to be resumed."""
        for worker in self._workers:
            ended = worker.ended()
            if ended is None:
                continue
            trial, index = next(
                (trial, index) for trial in self.trials for index, its in trial.active.items() if its is worker
            )
            del trial.active[index]
            if self._stopping and ended.code == StoppedError.exit_code and not trial.verdict:
                trial.waiting.append(index)  # resumed by the next scheduler of this journal
            else:
                self._journal.run_ended(trial, index, ended.run, ended.code)

    def _observe(self, trial: AnyTrial) -> None:
        """Record a trial's result if all of its runs have ended, including those that other processes train; otherwise
        let the journal examine it.
        """
        for index in [index for index, worker in trial.active.items() if worker is None]:
            run = self._journal.load(trial, index)
            if run is not None and runs.has_trainer(run.path):
                continue
            del trial.active[index]
            if run is not None and runs.state(run).word == "finished":
                self._journal.run_ended(trial, index, run, 0)
            else:
                trial.waiting.append(index)
        if not trial.verdict:
            self._journal.observe(trial)
        if not trial.active and (trial.verdict or not trial.waiting):
            self.trials.remove(trial)
            self._journal.trial_ended(trial)
