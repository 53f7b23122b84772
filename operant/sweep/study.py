"""Search engine: Optuna's samplers, pruners, and its journal file of trials, which several machines may share. Imports
Optuna when a study is opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from operant import runs
from operant.errors import BadFileError, MachineError

if TYPE_CHECKING:
    import optuna

    from operant.sweep.plan import Outline, Plan

_FEWEST_PERCENT, _REDUCTION = 10, 3
_MOST_BYTES: Final = 256 << 20  # of a journal that is read


class Trials:
    """Reader of a sweep's trials as the search engine (Optuna) stores them."""

    def __init__(self, plan: Outline, study: optuna.Study) -> None:
        self._outline, self._study = plan, study

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """Return all trials by number. They are not copied: do not change them."""
        return self._study.get_trials(deepcopy=False)

    @property
    def pruner(self) -> str:
        """Name of the pruner that the sweep uses; "none" with two objectives."""
        return "none" if self._outline.settings.pareto else self._outline.settings.pruner

    def best(self) -> list[optuna.trial.FrozenTrial]:
        """Return the sweep's best trial in a list, or with two objectives the Pareto front; [] if no trial is
        complete.
        """
        if not any(trial.state.name == "COMPLETE" for trial in self.trials()):
            return []
        return self._study.best_trials if self._outline.settings.pareto else [self._study.best_trial]

    def importances(self) -> dict[str, float]:
        """Compute the importance of each searched key (PED-ANOVA), most important first; {} with too few trials."""
        import optuna

        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        with contextlib.suppress(ValueError, RuntimeError):
            return optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        return {}


class Study(Trials):
    """Trials of a sweep for a process that works on it: it creates trials, records results, and locks the sweep. Raises
    MachineError if Optuna is not installed.
    """

    def __init__(self, plan: Plan) -> None:
        optuna = _import_optuna()
        from optuna.storages.journal import JournalFileBackend

        self._plan, self._lock = plan, plan.folder / "sweep.lock"
        with self.turn():
            path = plan.folder / "journal.log"
            journal = _JournalFile(path, JournalFileBackend(str(path)))
            storage = optuna.storages.JournalStorage(cast("Any", journal))
            super().__init__(plan, _open_study(plan, plan.name, storage, _make_sampler(plan), _make_pruner(plan)))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Context that holds the lock of the sweep, so that no other process creates or takes over a trial."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # trials

    def ask(self, ids: Callable[[int], list[str]]) -> tuple[optuna.Trial, dict[str, Any]]:
        """Create a trial; returns the search engine's trial and its values. `ids` maps its number to the ids of its
        runs. Call it within `turn`.

        The first trial has the values of the configuration if they are in the space: the baseline of the search.
        """
        if not self.trials() and (own := self._plan.own_values):
            self._study.enqueue_trial(own)
        trial = self._study.ask()
        self.claim(trial, ids(trial.number))
        return trial, self._plan.values(trial)

    def take_over(self, trial: optuna.trial.FrozenTrial, ids: list[str]) -> tuple[optuna.Trial, dict[str, Any]]:
        """Claim a trial of a process that has ended; returns the search engine's trial and its values. `ids` are its
        runs. Call it within `turn`.
        """
        import optuna

        own = optuna.Trial(self._study, trial._trial_id)
        self.claim(own, ids)
        return own, self._plan.values(own)

    @staticmethod
    def claim(trial: optuna.Trial, ids: list[str]) -> None:
        """Record this process as the owner of a trial, and the ids of its runs."""
        trial.set_user_attr("claim", {"owner": runs.identity(), "runs": ids})

    def abandoned(self) -> list[optuna.trial.FrozenTrial]:
        """Find running trials of the sweep whose process is known to have ended."""
        return [trial for trial in self.trials() if trial.state.name == "RUNNING" and is_gone(trial)]

    def tell(self, number: int, values: list[float] | None, state: str) -> None:
        """Record the outcome of trial number `number` in the search engine: `state` is "complete" (with the trial's
        `values`), "pruned" or "fail".
        """
        import optuna

        self._study.tell(number, values, state=optuna.trial.TrialState[state.upper()], skip_if_finished=True)

    # budget

    def exhausted(self) -> str | None:
        """Name the budget of the sweep that is spent, such as "100 trials"; None while another trial may start. Call it
        within `turn`.
        """
        plan, trials = self._plan, self.trials()
        if plan.trials is not None and len(trials) >= plan.trials:
            return f"{plan.trials:,} trials"
        if (
            plan.settings.steps is not None
            and sum(result(trial).get("steps", 0) for trial in trials) >= plan.settings.steps
        ):
            return f"{plan.settings.steps:,} steps"
        if plan.settings.minutes is not None and busy_s(trials) >= 60 * plan.settings.minutes:
            return f"{plan.settings.minutes:g} minutes"
        return None


def read(plan: Outline) -> Trials:
    """Read the trials of a sweep from its folder. Raises BadFileError if the journal is damaged, and MachineError if
    Optuna is not installed.
    """
    optuna = _import_optuna()
    path = plan.folder / "journal.log"
    damaged = f"{runs.display_path(path)} is damaged"
    journal = _JournalCopy(path)
    try:
        storage = optuna.storages.JournalStorage(cast("Any", journal))
        names = [study.study_name for study in storage.get_all_studies()]
        # A sweep that was moved has another name than its study.
        trials = Trials(plan, _open_study(plan, names[0] if len(names) == 1 else plan.name, storage))
        objectives = len(trials._study.directions)
        sound = objectives == 1 + plan.settings.pareto and all(
            _is_sound(trial, objectives) for trial in trials.trials()
        )
    except Exception as error:  # the engine trusts its journal
        raise BadFileError(f"{damaged} ({type(error).__name__})") from error
    if not sound:
        raise BadFileError(f"{damaged}: its trials have other values than the sweep")
    return trials


def _is_sound(trial: optuna.trial.FrozenTrial, objectives: int) -> bool:
    """Whether a trial read from a file is plausible: its parameters are plain values, and a complete trial has a number
    for each of `objectives` objectives.
    """
    values = trial.values or ()
    complete = len(values) == objectives and all(isinstance(value, float) for value in values)
    plain = all(isinstance(value, str | int | float | None) for value in trial.params.values())
    return plain and (complete or trial.state.name != "COMPLETE")


class _JournalFile:
    """Journal file of the search engine on disk, written by `backend`."""

    def __init__(self, path: Path, backend: Any) -> None:
        self._path, self._backend = path, backend
        self.read_logs = backend.read_logs

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records to the search engine's journal file. Raises MachineError if they cannot be written; the file
        then ends with its last whole line.
        """
        try:
            self._backend.append_logs(logs)
        except OSError as error:
            with contextlib.suppress(OSError), open(self._path, "rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
            raise MachineError(
                f"{runs.display_path(self._path)} cannot be written ({error.strerror}): free some disk space, then "
                f"continue: operant sweep --join {runs.display_path(self._path.parent)}"
            ) from None


class _JournalCopy:
    """Copy of the search engine's journal file in memory, up to the first damaged line. What the engine appends is not
    written to the file.
    """

    def __init__(self, path: Path) -> None:
        self._records: list[dict[str, Any]] = []
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise BadFileError(f"{runs.display_path(path)} cannot be read ({error.strerror})") from None
        with open(descriptor, "rb") as file:
            stats = os.fstat(descriptor)
            if not stat.S_ISREG(stats.st_mode) or stats.st_size > _MOST_BYTES:
                raise BadFileError(f"{runs.display_path(path)} is no regular file of at most 256 MiB")
            with contextlib.suppress(ValueError, RecursionError):
                self._records.extend(map(json.loads, itertools.takewhile(lambda line: line.endswith(b"\n"), file)))

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Return an iterator over the journal's records from number `log_number_from` on."""
        return iter(self._records[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records to the journal's copy in memory."""
        self._records.extend(logs)


def _import_optuna() -> Any:
    """Import Optuna with its messages silenced. Raises MachineError if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise MachineError("a sweep needs Optuna: run pip install 'operant[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", module="optuna")
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _open_study(plan: Outline, name: str, storage: Any, sampler: Any = None, pruner: Any = None) -> optuna.Study:
    """Open the study `name` of a sweep in an Optuna storage, or create it, with a sampler and a pruner (None: Optuna's
    defaults).
    """
    import optuna

    better, cheaper = (
        optuna.study.StudyDirection[word] for word in ("MAXIMIZE" if plan.maximize else "MINIMIZE", "MINIMIZE")
    )
    return optuna.create_study(
        study_name=name,
        storage=storage,
        sampler=sampler,
        pruner=pruner,
        load_if_exists=True,
        directions=[better, cheaper] if plan.settings.pareto else [better],
    )


def busy_s(trials: list[optuna.trial.FrozenTrial]) -> float:
    """Seconds in which at least one trial was running; a running trial counts until now."""
    now = time.time()
    spans = sorted(
        (
            trial.datetime_start.timestamp(),
            now if trial.datetime_complete is None else trial.datetime_complete.timestamp(),
        )
        for trial in trials
        if trial.datetime_start is not None and (trial.datetime_complete is not None or not is_gone(trial))
    )
    total, until = 0.0, 0.0
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def claim(trial: Any) -> dict[str, Any]:
    """Read the owner of a trial ("owner": identity of the process) and the ids of its runs ("runs"); {} if unknown."""
    attribute = trial.user_attrs.get("claim")
    claimed = attribute if isinstance(attribute, dict) else {}
    owner, ids = claimed.get("owner"), claimed.get("runs")
    valid = isinstance(ids, list) and all(isinstance(id_, str) and runs.ID.fullmatch(id_) for id_ in ids)
    return {**({"owner": owner} if isinstance(owner, dict) else {}), **({"runs": ids} if valid else {})}


def result(trial: Any) -> dict[str, Any]:
    """Read what was recorded about a trial that has ended: steps, seconds, values of its runs, and the reason of its
    end; {} before.
    """
    attribute = trial.user_attrs.get("result")
    return attribute if isinstance(attribute, dict) else {}


def is_gone(trial: Any) -> bool:
    """Whether the process that owns a trial is known to have ended. False if it runs on another machine, where this
    cannot be known.
    """
    return runs.is_alive(claim(trial).get("owner") or {}) is False


def _make_sampler(plan: Plan) -> Any:
    """Make the sampler of a plan. Processes that join an existing sweep get other seeds."""
    import optuna

    seed, name = plan.settings.seed, plan.settings.sampler
    # Every command samples with another seed: equal seeds would try equal values.
    own = (seed + 1_000_003 * (os.getpid() if (plan.folder / "journal.log").exists() else 0)) % 2**32
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=own, multivariate=True, group=True, constant_liar=True)
    if name == "gp":
        return optuna.samplers.GPSampler(seed=own)
    return optuna.samplers.CmaEsSampler(seed=own) if name == "cma_es" else optuna.samplers.RandomSampler(seed=own)


def _make_pruner(plan: Plan) -> Any:
    """Make the pruner of a plan; with two objectives one that never prunes."""
    import optuna

    name = "none" if plan.settings.pareto else plan.settings.pruner
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=_FEWEST_PERCENT, max_resource=100, reduction_factor=_REDUCTION
        )
    return optuna.pruners.WilcoxonPruner() if name == "wilcoxon" else optuna.pruners.NopPruner()
