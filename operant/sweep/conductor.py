"""Runs a sweep: takes trials from the engine, gives their runs to workers, ends the hopeless ones, and tells the engine
what came of each.

What is on the disk is enough to go on from at any moment: a trial has its values and its runs' ids before a run starts.
A trial whose process is gone is taken over: what its runs came to is told, or they are resumed, or begun anew. Knows no
terminal; draws nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from operant import runs
from operant.errors import BusyError, ConfigError, OperantError
from operant.runs import Run, pool
from operant.sweep import results
from operant.sweep.study import Study, claim

if TYPE_CHECKING:
    from operant.sweep.plan import Plan

_LOOK_S = 0.25
_SHORT_S = 5.0
_FAILURES = 5  # so many at the beginning, and no success: something is wrong with all


@dataclass
class Trial:
    """A trial that this process works on."""

    number: int
    engine: Any  # the engine's trial
    values: dict[str, Any]
    names: dict[int, str]  # ids of its runs, by the place of their seed
    waiting: list[int]  # places that have no run yet, or one to be resumed
    begun: bool = False
    # by place; None: a run that lives without this process
    active: dict[int, pool.Worker | None] = field(default_factory=dict)
    done: dict[int, results.Result] = field(default_factory=dict)
    finished: int = 0  # of those that are done
    reported: set[int] = field(default_factory=set)
    verdict: str = ""  # "pruned" or "fail": its runs are being ended
    reason: str = ""


def places(plan: Plan, workers: int | None) -> tuple[int, int]:
    """How many runs of a sweep train side by side here, and on how many GPUs."""
    import torch

    device, wanted = plan.config.run.device, workers or plan.settings.workers
    on_gpu = device != "cpu" and torch.cuda.is_available()
    devices = torch.cuda.device_count() if on_gpu and device in ("auto", "cuda") else 1
    return wanted or (devices if on_gpu else max(1, pool.cores() // max(1, plan.config.run.threads))), devices


class Conductor:
    """One command's part in a sweep. `wanted` says whether to go on: 0, stop and save: 1, at once: 2. `say` takes a
    sentence about a trial that has ended.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        workers: int,
        devices: int,
        wanted: Callable[[], int],
        say: Callable[[str], None],
        trusted: bool,
    ) -> None:
        self.plan, self.study = plan, Study(plan)
        self._root, self._devices, self._wanted, self._say, self._trusted = (
            plan.folder.parent,
            devices,
            wanted,
            say,
            trusted,
        )
        self._workers = [pool.Worker(plan.folder / f"worker-{k}.log") for k in range(workers)]
        self.trials: list[Trial] = []
        self.spent: str | None = None  # why no trial begins any more
        self._stopping = False
        self._failures, self._usual_s = 0, math.inf

    def run(self, look: Callable[[], None]) -> bool:
        """Work until the budget is spent or it is stopped; `look` is called after each turn. False where it was
        stopped.

        Raises OperantError where the first trials fail one after another.
        """
        try:
            with self.study.turn():
                for abandoned in self.study.abandoned():
                    self._take_over(abandoned)
            while True:
                if self._wanted() and not self._stopping:
                    self._stop()
                self._collect()
                if not self._stopping:
                    self._fill(ahead=True)  # what has been asked for ahead; the engine is told while it trains
                for trial in list(self.trials):
                    self._observe(trial)
                if not self._stopping:
                    self._fill()
                    self._ask_ahead()
                look()
                if self._stopping and not any(worker.run for worker in self._workers):
                    return False
                if not self.trials and self.spent is not None:
                    return True
                if self._wanted() > 1:
                    return False
                pool.wait(self._workers, _LOOK_S)
        finally:
            for worker in self._workers:
                worker.close()

    # BEGINNING

    def _fill(self, *, ahead: bool = False) -> None:
        """Give each free worker a run; with `ahead` only those of trials that there are."""
        for index, worker in enumerate(self._workers):
            while worker.run is None:
                trial = next((one for one in self.trials if one.waiting and not one.verdict), None) or (
                    None if ahead else self._new()
                )
                if trial is None:
                    return
                trial.begun = True
                self._begin(trial, trial.waiting.pop(0), worker, index)

    def _ask_ahead(self) -> None:
        """Have one trial more than are under way where they are short: the engine's time is hidden, and it knows one
        result less.
        """
        if (
            self._usual_s < _SHORT_S
            and all(trial.begun for trial in self.trials)
            and not any(trial.waiting for trial in self.trials)
        ):
            self._new()

    def _new(self) -> Trial | None:
        """The next trial, or None where the budget is spent."""
        with self.study.turn():
            self.spent = self.study.exhausted()
            if self.spent is not None:
                return None
            engine, values = self.study.ask(self._names)
        trial = Trial(
            engine.number,
            engine,
            values,
            dict(enumerate(self._names(engine.number))),
            [*range(self.plan.settings.seeds)],
        )
        self.trials.append(trial)
        return trial

    def _names(self, number: int) -> list[str]:
        """What the runs of a trial are called."""
        seeds = [f".{self.plan.config.run.seed + place}" for place in range(self.plan.settings.seeds)]
        return [f"{self.plan.name}.{number}{seed if len(seeds) > 1 else ''}" for seed in seeds]

    def _begin(self, trial: Trial, place: int, worker: pool.Worker, index: int) -> None:
        """Start a run of a trial, or go on with the one that there is."""
        run, resume = runs.load(self._root / trial.names[place]), None
        if run is not None and not runs.taken(run.path):
            if self._resumable(run):
                resume = "last"
                asked = run.document.get("request")
                asked = {
                    **(asked if isinstance(asked, dict) else {}),
                    "resume_overrides": [],
                    "resume_directory": str(self._root),
                }
                runs.update_document(run.path, request=asked)
            else:
                runs.remove(run)
                run = None
        if run is None:
            request = self._request(trial, place, index)
            run = runs.create(self._root, trial.names[place], "", request.document())
            if run.id != trial.names[place]:  # another run has the name
                trial.names[place] = run.id
                self.study.claim(trial.engine, list(trial.names.values()))
        try:
            worker.begin(run, resume=resume, trusted=self._trusted)
            trial.active[place] = worker
        except BusyError:
            trial.active[place] = None

    def _request(self, trial: Trial, place: int, index: int) -> Any:
        """What the run of a trial is asked for."""
        device = self.plan.config.run.device
        words = self.plan.overrides(trial.values)
        words += [f"run.seed={self.plan.config.run.seed + place}", "run.seeds=1", f"run.name={trial.names[place]}"]
        words += (
            [f"run.device=cuda:{index % self._devices}"] if self._devices > 1 and device in ("auto", "cuda") else []
        )
        return replace(self.plan.request, overrides=tuple(words))

    def _resumable(self, run: Run) -> bool:
        # Seconds are those of a run's last session: what is measured by them is done in one.
        timed = self.plan.settings.pareto or self.plan.settings.objective == "time_to_target"
        return not timed and any(run.checkpoints_path.glob("step-*")) and (run.path / "config.toml").is_file()

    def _take_over(self, abandoned: Any) -> None:
        """Go on with a trial whose process is gone, from what its runs came to."""
        names = claim(abandoned).get("runs") or self._names(abandoned.number)
        engine, values = self.study.take_over(abandoned, names)
        trial = Trial(
            abandoned.number,
            engine,
            values,
            dict(enumerate(names)),
            [],
            begun=True,
            reported=set(abandoned.intermediate_values),
        )
        for place in trial.names:
            run = runs.load(self._root / trial.names[place])
            state = None if run is None else runs.state(run)
            if run is not None and runs.taken(run.path):
                trial.active[place] = None
            elif (
                run is not None
                and state is not None
                and state.word in ("finished", "failed", "diverged", "oom", "gpu_fault")
            ):
                self._ended(trial, place, run, 0 if state.word == "finished" else 1, state.word)
            else:
                trial.waiting.append(place)
        self.trials.append(trial)

    # ENDING

    def _collect(self) -> None:
        """Take what workers have ended."""
        for worker in self._workers:
            ended = worker.ended()
            if ended is None:
                continue
            trial, place = next(
                (one, place) for one in self.trials for place, its in one.active.items() if its is worker
            )
            del trial.active[place]
            state = runs.state(runs.load(ended.run.path) or ended.run)
            if self._stopping and ended.code == 130 and not trial.verdict:
                trial.waiting.append(place)  # the trial goes on when the sweep does
            else:
                self._ended(
                    trial, place, ended.run, ended.code, f"{state.word}{f': {state.cause}' if state.cause else ''}"
                )

    def _ended(self, trial: Trial, place: int, run: Run, code: int, word: str) -> None:
        """A run of a trial has ended, by itself, by the pruner, by a request, or by a fault."""
        trial.done[place] = results.of_run(run)
        trial.finished += code == 0
        if code == 130 and not trial.verdict:
            self._condemn(trial, "pruned", word)
        elif code not in (0, 130) and trial.verdict != "fail":
            said = runs.log_end(run).splitlines() if code == ConfigError.exit_code else []
            self._condemn(
                trial, "fail", " ".join(line.strip() for line in said[:3]) or f"{word} (operant logs {run.id})"
            )

    def _observe(self, trial: Trial) -> None:
        """Look at the evaluations of a trial's runs, and settle it once all have ended."""
        for place, worker in list(trial.active.items()):
            run = runs.load(self._root / trial.names[place])
            # it went on without its supervisor, and has ended
            if worker is None and (run is None or not runs.taken(run.path)):
                del trial.active[place]
                state = None if run is None else runs.state(run)
                if run is not None and state is not None and state.word == "finished":
                    self._ended(trial, place, run, 0, state.word)
                else:
                    trial.waiting.append(place)
        if not trial.verdict:
            self._report(trial)
        if not trial.active and (trial.verdict or not trial.waiting) and trial in self.trials:
            self._settle(trial)

    def _report(self, trial: Trial) -> None:
        """Tell the engine of new evaluations, and ask whether the trial is worth going on."""
        if self.plan.settings.pareto:
            return
        sign, seeds, steps = 1 if self.plan.maximize else -1, self.plan.settings.seeds, self.plan.config.run.steps
        steps = trial.values.get("run.steps", steps)
        found = {
            place: {results.percent(point.step, steps): point.mean for point in self._points(trial, place)}
            for place in trial.names
        }
        if self.plan.settings.pruner == "wilcoxon":  # each seed's evaluation is a comparison of its own
            told = {
                seeds * percent + place: mean for place, points in found.items() for percent, mean in points.items()
            }
        else:
            common = set.intersection(*(set(points) for points in found.values()))
            told = {percent: statistics.fmean(points[percent] for points in found.values()) for percent in common}
        new = sorted(told.keys() - trial.reported)
        for step in new:
            trial.engine.report(sign * told[step], step)
        trial.reported.update(new)
        last = new[-1] // (seeds if self.plan.settings.pruner == "wilcoxon" else 1) if new else 100
        if last < 100 and trial.active and trial.engine.should_prune():
            self._condemn(trial, "pruned", f"{told[new[-1]]:.6g} at {last} % was not enough")

    def _points(self, trial: Trial, place: int) -> tuple[results.Point, ...]:
        if place in trial.done:
            return trial.done[place].points
        run = runs.load(self._root / trial.names[place]) if place in trial.active else None
        return () if run is None else results.points(run)

    def _condemn(self, trial: Trial, verdict: str, reason: str) -> None:
        """End a trial: those of its runs that train are asked to stop."""
        trial.verdict, trial.reason = verdict, reason
        for worker in trial.active.values():
            if worker is not None:
                worker.stop()

    def _settle(self, trial: Trial) -> None:
        """Tell the engine what a trial came to."""
        own, steps = self.plan.settings, self.plan.config.run.steps
        if trial.verdict == "pruned" and trial.finished == own.seeds:  # they were faster than the word that ended them
            trial.verdict = trial.reason = ""
        if not trial.verdict:
            self._report(trial)
        found = [trial.done[place] for place in sorted(trial.done)]
        values = [results.value(result, own.objective, steps) for result in found]
        known = [value for value in values if value is not None]
        seconds = sum(result.seconds for result in found)
        self.trials.remove(trial)
        if not trial.verdict and len(known) < own.seeds:
            trial.verdict, trial.reason = "fail", "it was never evaluated"
        kept = {
            "steps": sum(result.steps for result in found),
            "seconds": seconds,
            "values": values,
            "reason": trial.reason,
        }
        trial.engine.set_user_attr("result", kept)
        self._usual_s = seconds / max(1, len(found))
        if trial.verdict:
            self.study.tell(trial.number, None, trial.verdict)
            self._say(f"trial {trial.number} {'pruned' if trial.verdict == 'pruned' else 'failed'}: {trial.reason}")
        else:
            mean = statistics.fmean(known)
            self.study.tell(trial.number, [mean, seconds / own.seeds] if own.pareto else [mean], "complete")
            self._say(f"trial {trial.number} finished: {mean:.6g} in {seconds:.3g} s")
        self._failures = self._failures + 1 if trial.verdict == "fail" and self._failures >= 0 else -1
        if self._failures >= _FAILURES:
            self._stop()
            raise OperantError(f"the first {_FAILURES} trials failed, the last one: {trial.reason}")

    def _stop(self) -> None:
        """Ask all runs to end with a checkpoint. Their trials stay open: the same command goes on with them."""
        self._stopping = True
        for worker in self._workers:
            worker.stop()
