"""Journal of a sweep: its trials in the search engine, for the scheduler (operant/runs/scheduler.py).

Asks the engine for values, reports evaluations to it, ends hopeless trials, records results. A trial has its values and
the ids of its runs on disk before a run starts; a trial of a process that is gone is taken over: its runs are recorded,
resumed, or trained from their beginning.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from operant import runs
from operant.errors import ConfigError, OperantError, StoppedError
from operant.runs import Run, pool, results, sweeps
from operant.runs.scheduler import Journal, Trial
from operant.sweep.study import Study, claim

if TYPE_CHECKING:
    from operant.sweep.plan import Plan

_SHORT_S: Final = 5.0  # below this time of a run the next trial is asked for ahead
_MOST_FAILURES: Final = 5  # failed trials before the first that has not failed


@dataclass(eq=False, kw_only=True)
class SweepTrial(Trial):
    """Trial of a sweep: the search engine's trial and its values of the searched keys. Its runs differ in run.seed
    alone; `results` grows as they end.
    """

    engine: Any  # optuna.Trial
    values: dict[str, Any]
    results: dict[int, results.Result] = field(default_factory=dict)  # of ended runs by index
    finished: int = 0  # runs that ended with exit code 0
    reported: set[int] = field(default_factory=set)  # steps of the engine


def worker_count(plan: Plan, workers: int | None) -> tuple[int, int]:
    """Number of runs that train at the same time on this machine, and number of GPUs that they are spread over.
    `workers` None means the number that the plan gives.
    """
    import torch

    device, wanted = plan.config.run.device, workers or plan.settings.workers
    on_gpu = device != "cpu" and torch.cuda.is_available()
    devices = torch.cuda.device_count() if on_gpu and device in ("auto", "cuda") else 1
    return wanted or (devices if on_gpu else max(1, pool.cores() // max(1, plan.config.run.threads))), devices


class SweepJournal(Journal[SweepTrial]):
    """Journal of a sweep's trials for the scheduler, stored by the search engine. `say` receives a sentence about each
    trial that has ended. `trusted` allows code that is not known to be this user's.
    """

    def __init__(self, plan: Plan, *, devices: int, say: Callable[[str], None], trusted: bool) -> None:
        self.plan, self.study = plan, Study(plan)
        self.root, self.trusted, self.uuid = plan.folder.parent, trusted, plan.uuid
        self._devices, self._say = devices, say
        self._failures, self._any_success = 0, False
        self._usual_s = math.inf  # seconds of a run of the last trial

    # trials

    def unfinished(self) -> list[SweepTrial]:
        """Take over the trials of processes that have ended, with the results that their runs have; [] if there are
        none.
        """
        with self.study.turn():
            return [self._take_over(trial) for trial in self.study.abandoned()]

    def _take_over(self, abandoned: Any) -> SweepTrial:
        """Take over a trial of a process that has ended: record its complete runs, and let the others train."""
        ids = claim(abandoned).get("runs") or self._run_ids(abandoned.number)
        engine, values = self.study.take_over(abandoned, ids)
        trial = SweepTrial(
            number=abandoned.number,
            ids=dict(enumerate(ids)),
            waiting=[],
            started=True,
            engine=engine,
            values=values,
            reported=set(abandoned.intermediate_values),
        )
        for index in trial.ids:
            run = self.load(trial, index)
            word = "" if run is None else runs.state(run).word
            if run is not None and runs.has_trainer(run.path):
                trial.active[index] = None
            elif run is not None and word in ("finished", "failed", "diverged", "oom", "gpu_fault"):
                self.run_ended(trial, index, run, 0 if word == "finished" else 1)
            else:
                trial.waiting.append(index)
        return trial

    def next_trial(self) -> SweepTrial | None:
        """Ask the search engine for a new trial; None if the budget is spent or a file of the user has changed."""
        if changed := sweeps.changed_files(self.plan.folder):
            self._say(f"{changed} has changed since the sweep began: no further trial starts")
            return None
        with self.study.turn():
            if self.study.exhausted() is not None:
                return None
            engine, values = self.study.ask(self._run_ids)
        ids = self._run_ids(engine.number)
        return SweepTrial(
            number=engine.number,
            ids=dict(enumerate(ids)),
            waiting=[*range(len(ids))],
            engine=engine,
            values=values,
        )

    @property
    def asks_ahead(self) -> bool:
        """Whether runs are so short that the search engine's time matters, so that trials are created ahead. Such a
        trial does not know the latest results.
        """
        return self._usual_s < _SHORT_S

    def _run_ids(self, number: int) -> list[str]:
        """Make the intended ids of the runs of trial number `number`, one for each seed."""
        own = self.plan.settings.seeds
        seeds = [f".{self.plan.config.run.seed + index}" if own > 1 else "" for index in range(own)]
        return [f"{self.plan.name}.{number}{seed}" for seed in seeds]

    # runs

    def request(self, trial: SweepTrial, index: int, worker: int) -> Mapping[str, Any]:
        """Make the configuration request of run `index` of a trial: the sweep's configuration with the trial's values,
        the run's seed, and the device of worker number `worker`.
        """
        device = self.plan.config.run.device
        overrides = self.plan.overrides(trial.values)
        overrides += [f"run.seed={self.plan.config.run.seed + index}", "run.seeds=1", f"run.name={trial.ids[index]}"]
        if self._devices > 1 and device in ("auto", "cuda"):
            overrides.append(f"run.device=cuda:{worker % self._devices}")
        return replace(self.plan.request, overrides=tuple(overrides)).document()

    def is_resumable(self, run: Run) -> bool:
        """Whether a run that has ended can be resumed. Never if the objective is a time, because only that of the last
        session is known.
        """
        timed = self.plan.settings.pareto or self.plan.settings.objective == "time_to_target"
        return not timed and super().is_resumable(run) and run.config_path.is_file()

    def save_ids(self, trial: SweepTrial) -> None:
        """Record the ids of a trial's runs in the search engine, and report each intended id that is already in use."""
        self.study.claim(trial.engine, list(trial.ids.values()))
        for index, name in enumerate(self._run_ids(trial.number)):
            if trial.ids[index] != name and os.path.lexists(self.root / name):
                self._say(
                    f"{name} is not a run of this trial: it stays as it is, and the trial's is {trial.ids[index]}"
                )

    def run_ended(self, trial: SweepTrial, index: int, run: Run, code: int) -> None:
        """Record the result of run number `index` of a trial, which ended with exit code `code`. A run stopped by a
        user marks the trial as pruned, a failed run marks it as failed.
        """
        trial.results[index] = results.of_run(run)
        trial.finished += code == 0
        if code == 0 or trial.verdict == "fail" or (code == StoppedError.exit_code and trial.verdict):
            return
        state = runs.state(runs.load(run.path) or run)
        reason = f"{state.word}: {state.cause}" if state.cause else state.word
        if code == StoppedError.exit_code:
            trial.end("pruned", reason)
            return
        problem = runs.log_end(run).splitlines()[:3] if code == ConfigError.exit_code else []
        trial.end("fail", " ".join(line.strip() for line in problem) or f"{reason} (operant logs {run.id})")

    # results

    def observe(self, trial: SweepTrial) -> None:
        """Report new evaluations of a trial to the pruner, and end the trial if it is hopeless. Does nothing with two
        objectives.
        """
        settings = self.plan.settings
        if settings.pareto:
            return
        steps = trial.values.get("run.steps", self.plan.config.run.steps)
        means = {
            index: {results.percent(point.step, steps): point.mean for point in self._evaluations(trial, index)}
            for index in trial.ids
        }
        if settings.pruner == "wilcoxon":  # a comparison for each seed
            per_percent = settings.seeds
            values = {per_percent * at + index: mean for index, points in means.items() for at, mean in points.items()}
        else:
            per_percent = 1
            common = set.intersection(*map(set, means.values()))
            values = {at: statistics.fmean(points[at] for points in means.values()) for at in common}
        new = sorted(values.keys() - trial.reported)
        sign = 1 if self.plan.maximize else -1
        for step in new:
            trial.engine.report(sign * values[step], step)
        trial.reported.update(new)
        percent = new[-1] // per_percent if new else 100
        if percent < 100 and trial.active and trial.engine.should_prune():
            trial.end("pruned", f"{values[new[-1]]:.6g} at {percent} % was not enough")

    def _evaluations(self, trial: SweepTrial, index: int) -> tuple[results.Point, ...]:
        """Read the evaluations so far of run number `index` of a trial."""
        if index in trial.results:
            return trial.results[index].points
        run = self.load(trial, index) if index in trial.active else None
        return () if run is None else results.points(run)

    def trial_ended(self, trial: SweepTrial) -> None:
        """Record the result of a trial in the search engine. Raises OperantError if the first trials have all
        failed.
        """
        settings, steps = self.plan.settings, self.plan.config.run.steps
        if trial.verdict == "pruned" and trial.finished == settings.seeds:  # all had finished before the stop
            trial.verdict = trial.reason = ""
        if not trial.verdict:
            self.observe(trial)
        ended = [trial.results[index] for index in sorted(trial.results)]
        values = [results.value(result, settings.objective, steps) for result in ended]
        known = [value for value in values if value is not None]
        if not trial.verdict and len(known) < settings.seeds:
            trial.verdict, trial.reason = "fail", "no evaluation"
        seconds = sum(result.seconds for result in ended)
        self._usual_s = seconds / max(1, len(ended))
        result = {
            "steps": sum(result.steps for result in ended),
            "seconds": seconds,
            "values": values,
            "reason": trial.reason,
        }
        trial.engine.set_user_attr("result", result)
        if trial.verdict:
            self.study.tell(trial.number, None, trial.verdict)
            self._say(f"trial {trial.number} {'pruned' if trial.verdict == 'pruned' else 'failed'}: {trial.reason}")
        else:
            mean = statistics.fmean(known)
            self.study.tell(trial.number, [mean, seconds / settings.seeds] if settings.pareto else [mean], "complete")
            self._say(f"trial {trial.number} finished: {mean:.6g} in {seconds:.3g} s")
        self._any_success = self._any_success or trial.verdict != "fail"
        self._failures += not self._any_success
        if self._failures >= _MOST_FAILURES:
            raise OperantError(f"the first {_MOST_FAILURES} trials failed, the last one: {trial.reason}")
