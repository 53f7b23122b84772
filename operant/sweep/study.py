"""Search engine: Optuna's samplers, pruners, and its journal file of trials, which several machines may share. Knows no
run folder. Imports Optuna when a study is opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from operant import runs
from operant.errors import MachineError

if TYPE_CHECKING:
    import optuna

    from operant.sweep.plan import Plan

_FEWEST_PERCENT, _REDUCTION = 10, 3


class Study:
    """Trials of a sweep. Raises MachineError if Optuna is not installed."""

    def __init__(self, plan: Plan) -> None:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise MachineError("a sweep needs Optuna: run pip install 'operant[sweep]'") from None
        self._plan, self._lock = plan, plan.folder / "sweep.lock"
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(plan.folder / "journal.log")))
        better, cheaper = (
            optuna.study.StudyDirection[word] for word in ("MAXIMIZE" if plan.maximize else "MINIMIZE", "MINIMIZE")
        )
        with self.turn():
            self._study = optuna.create_study(
                study_name=plan.name,
                storage=storage,
                sampler=_sampler(plan),
                pruner=_pruner(plan),
                load_if_exists=True,
                directions=[better, cheaper] if plan.settings.pareto else [better],
            )

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock of the sweep: no other command takes a trial meanwhile."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # trials

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """All trials by number, not copied: read only."""
        return self._study.get_trials(deepcopy=False)

    def ask(self, ids: Callable[[int], list[str]]) -> tuple[optuna.Trial, dict[str, Any]]:
        """Take a new trial: the engine's trial and its values. `ids` maps its number to the ids of its runs. Within
        `turn`.

        The first trial has the values of the configuration if they are in the space: the baseline of the search.
        """
        if not self.trials() and (own := self._plan.own_values):
            self._study.enqueue_trial(own)
        trial = self._study.ask()
        self.claim(trial, ids(trial.number))
        return trial, self._plan.values(trial)

    def take_over(self, trial: optuna.trial.FrozenTrial, ids: list[str]) -> tuple[optuna.Trial, dict[str, Any]]:
        """Take a trial of a process that is gone: the engine's trial and its values. Within `turn`."""
        import optuna

        own = optuna.Trial(self._study, trial._trial_id)
        self.claim(own, ids)
        return own, self._plan.values(own)

    @staticmethod
    def claim(trial: optuna.Trial, ids: list[str]) -> None:
        """Record the process that works on a trial, and the ids of its runs."""
        trial.set_user_attr("claim", {"owner": runs.identity(), "runs": ids})

    def abandoned(self) -> list[optuna.trial.FrozenTrial]:
        """Trials in state RUNNING whose process is known to be gone."""
        return [trial for trial in self.trials() if trial.state.name == "RUNNING" and _is_gone(trial)]

    def tell(self, number: int, values: list[float] | None, state: str) -> None:
        """Record the state of a trial: "complete" with its values, "pruned" or "fail"."""
        import optuna

        self._study.tell(number, values, state=optuna.trial.TrialState[state.upper()], skip_if_finished=True)

    @property
    def pruner(self) -> str:
        """Name of the pruner; "none" with two objectives."""
        return "none" if self._plan.settings.pareto else self._plan.settings.pruner

    # budget

    def exhausted(self) -> str | None:
        """Spent budget in words; None while another trial may start. Within `turn`."""
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

    # results

    def best(self) -> list[optuna.trial.FrozenTrial]:
        """Best trial, or with two objectives the Pareto front; empty before a trial is complete."""
        if not any(trial.state.name == "COMPLETE" for trial in self.trials()):
            return []
        return self._study.best_trials if self._plan.settings.pareto else [self._study.best_trial]

    def importances(self) -> dict[str, float]:
        """Importance of each key for the best trials (PED-ANOVA); {} with too few trials."""
        import optuna

        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        with contextlib.suppress(ValueError, RuntimeError):
            return optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        return {}


def busy_s(trials: list[optuna.trial.FrozenTrial]) -> float:
    """Seconds in which at least one trial ran; a running trial counts until now."""
    now = time.time()
    spans = sorted(
        (
            trial.datetime_start.timestamp(),
            now if trial.datetime_complete is None else trial.datetime_complete.timestamp(),
        )
        for trial in trials
        if trial.datetime_start is not None and (trial.datetime_complete is not None or not _is_gone(trial))
    )
    total, until = 0.0, 0.0
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def claim(trial: Any) -> dict[str, Any]:
    """Process that works on a trial ("owner") and the ids of its runs ("runs")."""
    attribute = trial.user_attrs.get("claim")
    return attribute if isinstance(attribute, dict) else {}


def result(trial: Any) -> dict[str, Any]:
    """Result of a trial that has ended: steps, seconds, values of its runs, reason."""
    attribute = trial.user_attrs.get("result")
    return attribute if isinstance(attribute, dict) else {}


def _is_gone(trial: Any) -> bool:
    """Whether the process of a trial is known to have ended; False for one of another machine."""
    return runs.is_alive(claim(trial).get("owner") or {}) is False


def _sampler(plan: Plan) -> Any:
    import optuna

    seed, name = plan.settings.seed, plan.settings.sampler
    # Every command samples with another seed: equal seeds would try equal values.
    own = (seed + 1_000_003 * (os.getpid() if (plan.folder / "journal.log").exists() else 0)) % 2**32
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=own, multivariate=True, group=True, constant_liar=True)
    if name == "gp":
        return optuna.samplers.GPSampler(seed=own)
    return optuna.samplers.CmaEsSampler(seed=own) if name == "cma_es" else optuna.samplers.RandomSampler(seed=own)


def _pruner(plan: Plan) -> Any:
    import optuna

    name = "none" if plan.settings.pareto else plan.settings.pruner
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=_FEWEST_PERCENT, max_resource=100, reduction_factor=_REDUCTION
        )
    return optuna.pruners.WilcoxonPruner() if name == "wilcoxon" else optuna.pruners.NopPruner()
