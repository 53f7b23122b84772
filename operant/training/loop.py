"""Training loop of one run, and everything that happens between two iterations: evaluations, checkpoints, requests.

operant/training/worker.py builds a trainer from a folder, operant/training/requests.py receives signals and requests.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from operant import __version__, runs, text
from operant.compute.runtime import device_error, out_of_memory
from operant.config import load, resuming
from operant.config.load import Config
from operant.errors import (
    CallbackError,
    DeviceError,
    DivergedError,
    EnvironmentFailedError,
    MachineError,
    OperantError,
    StoppedError,
)
from operant.runs import TERMINAL, History, Writer, salvage
from operant.runs.checkpoints import Checkpoint, Store
from operant.runs.control import Inbox, Request
from operant.runs.metrics.layout import BOOTTIME
from operant.training.build import build, set_scheduled
from operant.training.callbacks import Controls, Hook, log_specs
from operant.training.live_agent import FRAME_BYTES, Watcher
from operant.training.meters import Meters, NotFinite, metrics_for, specs_for
from operant.training.requests import KILLED_CODE, Heartbeat, Requests, RequestThread, Stop
from operant.training.state import SAVE_SHARE, Snapshots
from operant.training.target import TargetEvaluator, describe

if TYPE_CHECKING:
    from operant.training.team import Team

_PAUSE_LOOK_S = 0.05
_TIMED = 3  # iterations whose ends are timed for `_announce_duration`
_LONG_S = 600.0  # a longer run on a CPU is announced with its duration
_SHOWN = {"collect": "rollout"}  # name of an algorithm's phase in the metrics file; others are "update"
_FILE_LOOK_S = 5.0
_LEVELS = {"info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}

log = logging.getLogger("operant")
Start = tuple[Checkpoint, Config] | None


class _Save(NamedTuple):
    """Checkpoint that is being saved, and the requests that wait for it."""

    step: int
    boottime_ns: int  # work done until then is in it
    best: bool
    requests: list[Request]


class Trainer:
    """Trainer of one session of a run: the constructor builds world, algorithm, metrics file and checkpoints, and `run`
    trains until the run's terminal state.
    """

    def __init__(
        self,
        folder: Path,
        document: dict[str, Any],
        config: Config,
        device: torch.device,
        start: Start,
        requests: Requests,
        team: Team,
        hook: Hook | None = None,
    ) -> None:
        """Build everything up to the first iteration in the run folder `folder`, whose document is `document`. `start`
        is the checkpoint of a resumed session with the configuration it was made with, None for a new run. `team` is
        the group of all ranks. `hook` is a user's callback, for a run of one rank.
        """
        self.folder, self.config, self.requests, self.team = folder, config, requests, team
        self.session, run_uuid = document["session"], bytes.fromhex(document["uuid"])
        self.algo = build(config, device, chosen=document.get("chosen"), exchange=team.exchange)

        # Progress, replaced by that of a checkpoint on a resume.
        self.iteration, self.step = 0, 0
        self._hook, self._called = hook, 0  # records when the callback was last called
        self._timed_s: list[float] | None = [] if device.type == "cpu" else None  # ends of the first iterations
        self.best_mean, self.last_evaluation, self._evaluation = float("-inf"), -1, float("nan")
        # Newest scheduled evaluation, the input of schedules; the one at the end of the run may be unscheduled.
        self._score = self._evaluation

        # Checkpoints.
        self.store = Store(
            folder / "checkpoints", run_uuid=document["uuid"], keep=config.checkpoint.keep, report=self._report_store
        )
        self._failures, self._problem = 0, ""
        self._saved_s = time.monotonic()  # start of the last save
        carried = load.to_toml(config, **load.copies(config, "../../source"))
        code = resuming.environment_code(config)
        self.snapshots = Snapshots(
            self.algo,
            self.store,
            self.session,
            team,
            config=carried,
            environment_code=code,
            saves=config.checkpoint.replay,
        )
        incomparable = None if start is None else self._load_checkpoint(*start)

        # Evaluation. From `begin` on, a stop waits for the end of an iteration.
        self.evaluator = TargetEvaluator(self.algo.actor, config) if config.eval.every else None
        requests.begin()

        # Metrics file, history and live view.
        metrics_path, history_path = folder / "metrics.mm", folder / "history"
        if start is not None:
            salvage(history_path, metrics_path)
        # The specs are written before the metrics file, whose readers need them.
        due = min(config.eval.every * self.algo.steps_per_iteration, config.run.steps)
        awaited = f"the first evaluation comes after {due:,} steps" if due else "no evaluations: eval.every = 0"
        logs = None
        if hook is not None:
            logs = log_specs(hook, {spec.name for spec in specs_for(self.algo, team.exchange)})
        self._specs = specs_for(self.algo, team.exchange, first_evaluation=awaited, logs=logs)
        runs.write_specs(folder, self._specs)
        self.writer = Writer(
            metrics_path,
            metrics_for(self.algo, team.exchange, logs),
            run_uuid=run_uuid,
            session=self.session,
            version=__version__,
            frame_bytes=FRAME_BYTES if config.environment.draws else 0,
            iteration=self.iteration,
        )
        if start is not None:
            self.writer.set_checkpoint(self.step)
        rewind_to = self.step if start is not None else None
        self.history = History(
            history_path, metrics_path, writer=self.writer, run_uuid=run_uuid, session=self.session, rewind_to=rewind_to
        )
        self.watcher = Watcher(
            self.algo.actor, config.environment, config.params, seed=config.run.seed, device=device, writer=self.writer
        )

        # Requests and state.
        self.inbox = Inbox(folder, run_uuid, report=lambda line: self.say(line, level="warn", code="control"))
        self._state_lock, self._ended = threading.Lock(), False
        self._files_checked_s, self._reported = time.monotonic(), set[str]()  # problems reported once

        # Announce the session.
        where = (
            f"{config.environment.name}, {config.algo_label}, {config.lanes:,} lanes on "
            f"{document.get('device_name', device)}"
        )
        resumed = f"resumed from {start[0].path.name} (session {self.session})" if start is not None else "started"
        self.say(f"{resumed}: {where}{team.sentence(self.algo)}", code="resume" if start is not None else "note")
        if self.snapshots.replay_size is not None:
            self.say(f"replay: {self.snapshots.replay_size}")
        self.evaluations = runs.Evaluations(folder, lambda line: self.say(line, level="warn", code="file"))
        if start is not None:
            self.evaluations.rewind(self.step)
        for line in filter(None, (*self.snapshots.notes, incomparable, resuming.schedule_note(config))):
            self.say(line, level="warn")

    # LOG, EVENTS AND STATE

    def say(self, line: str, *, level: str = "info", code: str = "note") -> None:
        """Write a line to the run's log and to its events, with a `level` ("info", "warn" or "error") and a `code` that
        names the kind of event. Thread-safe.
        """
        log.log(_LEVELS[level], "%s", line)
        self._write_event(line, level=level, code=code)

    def _write_event(self, line: str, *, level: str = "info", code: str = "note") -> None:
        """Write a line to the run's events but not to the log, which already has it in other words or does not
        need it.
        """
        self.writer.event(line, level=level, code=code, step=self.step)

    def _set_state(self, state: str, *, reason: int = 0, exit_code: int = 0) -> None:
        """Set the run's state in the metrics file, unless that is already terminal. Thread-safe."""
        with self._state_lock:
            if not self._ended:
                self._ended = state in TERMINAL
                self.writer.set_state(state, reason=reason, exit_code=exit_code)

    def _update_document(self, **fields: Any) -> None:
        """Update fields of the run's document (run.json). On a full disk the fields are lost and the run continues."""
        try:
            runs.update_document(self.folder, **fields)
        except MachineError as error:
            log.warning("%s", error)

    # REQUESTS (called by the request thread)

    def announce_stop(self) -> None:
        """Set the run's state to "stopping", because the run stops after its current iteration."""
        self._set_state("stopping", reason=0 if self.requests.stop is None else self.requests.stop.number)

    def announce_exit(self, exit_code: int) -> None:
        """Announce that the process exits immediately with this code, without a checkpoint."""
        self._set_state("stopped", reason=signal.SIGINT, exit_code=exit_code)
        self.say("a second Ctrl-C: exited at once without a checkpoint", level="warn", code="stop")

    def acknowledge(self, sequence: int, result: int) -> None:
        """Publish the outcome of request number `sequence` in the metrics file; `result` is an index into
        `control.RESULTS`.
        """
        self.writer.acknowledge(sequence, result)

    def watch(self, mode: str, size: int, until_s: float) -> None:
        """Ask for live frames of the agent until `until_s` (`time.monotonic`), for a viewer: `mode` is "greedy" or
        "sampled", `size` the side in pixels.
        """
        self.watcher.request("sampled" if mode == "sampled" else "greedy", size, until_s)
        if self.watcher.unavailable_reason and "live view" not in self._reported:
            self._reported.add("live view")
            self._write_event(f"the agent cannot be watched: {self.watcher.unavailable_reason}")

    # LOOP

    def run(self, lock: runs.Lock) -> None:
        """Train until all steps are done, the target is reached or a stop is requested; then write a last checkpoint
        and a terminal state. `lock` is the run folder's lock, held by the caller. Raises DivergedError for non-finite
        values, and any error of training.
        """
        self._lock, first = lock, self.iteration
        self.requests.reporter = self.team.reporter = self
        self._controls = Controls(self)
        self.history.start()
        with Heartbeat(self.writer.heartbeat), RequestThread(self.inbox, self.requests, self):
            try:
                self._loop()
            except KeyboardInterrupt:  # a second Ctrl-C, in a process that continues
                self.announce_exit(KILLED_CODE)
                self.watcher.close()
                self.history.close(timeout_s=1.0)
                raise
            except OperantError as error:
                if isinstance(error, EnvironmentFailedError) and self.iteration and self.team.single:
                    if self.algo.device.type == "cuda":
                        torch.cuda.synchronize(
                            self.algo.device
                        )  # sync: overlapped updates of the failed step must not tear the checkpoint
                    self._save(wait=True)
                states = {DivergedError: "diverged", StoppedError: "stopped", DeviceError: "gpu_fault"}
                self._end_run(states.get(type(error), "failed"), error)
                raise
            except Exception as error:
                if (stop := self.requests.stop) is not None and self.iteration == first:
                    # A signal to the whole process group also ends compilers, which fails the compilation.
                    stopped = StoppedError(f"stopped by {stop.by} in the first iteration, with nothing to save")
                    self._end_run("stopped", stopped)
                    raise stopped from error
                fault = device_error(error)
                self._end_run(("oom" if out_of_memory(error) else "gpu_fault") if fault else "failed", fault or error)
                if fault is not None:
                    raise fault from error
                raise
            self._end_run("finished", None)

    def _loop(self) -> None:
        """Run training iterations until the run is complete, and write the last record however they end."""
        self.meters = Meters(
            self.algo,
            self.writer,
            self.team,
            record_hz=self.config.run.record_hz,
            iteration=self.iteration,
            step=self.step,
            logs=None if self._hook is None else self._hook.logs,
        )
        try:
            self._iterate()
        finally:
            self.meters.release()

    def _iterate(self) -> None:
        """Run training iterations, with evaluations, checkpoints and requests between them, until the run is
        complete.
        """
        algo, config, meters = self.algo, self.config, self.meters
        if self.best_mean > float("-inf"):  # of the previous session
            meters.set_evaluation(self._evaluation, self.best_mean)
        if self.iteration == 0:
            algo.start()
        self._set_state("running" if self.requests.stop is None else "stopping")
        self._saved_s = time.monotonic()
        # An evaluation that a stop interrupted in the previous session.
        lacking = (
            self.evaluator is not None
            and 0 < self.iteration != self.last_evaluation
            and self.iteration % config.eval.every == 0
        )
        solved = lacking and self._evaluate()
        if lacking and self.requests.pending and not solved:
            self._serve_requests()
        while self.step < config.run.steps and not solved:
            self.team.command("iterate", step=self.step, score=self._score)
            set_scheduled(algo, self.step, self._score)
            for phase in algo.phases:
                self.writer.set_phase(_SHOWN.get(phase.name, "update"))
                meters.measure(phase.name, phase.run)
            self.iteration += 1
            self.step += algo.steps_per_iteration
            self.writer.tick()
            self._announce_duration()
            evaluates = self.evaluator is not None and self.iteration % config.eval.every == 0
            last = self.evaluator is not None and self.step >= config.run.steps  # evaluated below
            if not_finite := meters.after(self.step, evaluation_follows=evaluates or last):
                self._end_diverged(not_finite)
            if evaluates:
                solved = self._evaluate()
            self._call_back()
            if self.iteration % config.checkpoint.every == 0 or self._is_save_due():
                self._save()
            self._restore_files()
            self.watcher.after(self.step)
            if self.requests.pending and not solved:
                self._serve_requests()
        if self.evaluator is not None and self.last_evaluation != self.iteration:
            solved = self._evaluate()
        self._flush()
        self._call_back()
        self._save_last()
        reached = (
            f"target {config.run.target:g} reached" if solved and config.run.target is not None else "all steps done"
        )
        self.say(f"finished: {reached} after {self.step:,} steps")

    def _announce_duration(self) -> None:
        """Report once how long a long run will take, if it trains on a CPU, from the speed of its first iterations
        after compilation (off-policy: after those that only collect).
        """
        if self._timed_s is None or self.step <= getattr(self.config.algo, "learning_starts", 0):
            return
        now_s = time.monotonic()
        self._timed_s.append(now_s)
        if len(self._timed_s) < _TIMED:
            return
        each_s, self._timed_s = (now_s - self._timed_s[0]) / (_TIMED - 1), None
        left_s = (self.config.run.steps - self.step) / self.algo.steps_per_iteration * each_s
        if left_s > _LONG_S:
            self.say(
                f"{self.config.run.steps:,} steps take about {text.duration(left_s)} on this CPU, at the speed of the "
                "first iterations: a GPU is many times faster, run.steps trains for fewer"
            )

    def _serve_requests(self) -> None:
        """Serve pending requests (checkpoint, pause, stop) between two iterations. Blocks while paused."""
        if self.requests.checkpoint:
            self._save()
        if self.requests.paused_by is not None and self.requests.stop is None:
            self._pause(self.requests.paused_by)
        if self.requests.stop is not None:
            self._stop_run(self.requests.stop)

    def _pause(self, by: str) -> None:
        """Wait until the run is resumed or stopped; `by` is the name of the person who paused it. Training state does
        not change; checkpoints and the live view stay available.
        """
        requests, began_s, saving_s = self.requests, time.monotonic(), 0.0
        requests.waiting = True
        self._update_document(paused_by=by, paused_boottime_ns=time.clock_gettime_ns(BOOTTIME))
        self._set_state("paused")
        self.writer.set_phase("idle")
        self.say(f"paused by {by} at step {self.step:,}", code="pause")
        while requests.paused_by is not None and requests.stop is None:
            requests.answer("pause", "done", f"paused at step {self.step:,}")
            if requests.checkpoint:
                saved_s = time.monotonic()
                self._save()
                self.writer.set_phase("idle")
                saving_s += time.monotonic() - saved_s
            self._restore_files()
            self.watcher.after(self.step)
            time.sleep(_PAUSE_LOOK_S)  # polled: a signal handler that sets an Event can deadlock
        requests.waiting = False
        waited_s = time.monotonic() - began_s
        self.meters.paused(waited_s - saving_s)
        if requests.stop is None:
            self._set_state("running")
            self.say(f"resumed after {text.duration(waited_s)}", code="unpause")
        requests.answer("unpause", "done", f"training resumed at step {self.step:,}")

    def _flush(self) -> None:
        """Publish the last record."""
        if not_finite := self.meters.flush(self.step):
            self._end_diverged(not_finite)

    def _save_last(self) -> None:
        """Publish the last record and write the last checkpoint."""
        self._flush()
        self.meters.release()
        self._save(wait=True)

    # CALLBACK

    @property
    def score(self) -> float:
        """Mean return of the newest scheduled evaluation, the input of schedules; NaN before the first."""
        return self._score

    def reschedule(self, config: Config) -> None:
        """Use the schedules of `config`, which is this run's with other ones, from the next iteration on. Checkpoints
        and the run's configuration have them too. Raises MachineError.
        """
        self.config = config
        for key, (_, scalar) in self.algo.scheduled.items():
            self.algo.scheduled[key] = config.scheduled[key], scalar
        self.snapshots.config = load.to_toml(config, **load.copies(config, "../../source"))
        runs.write_file(self.folder / "config.toml", load.to_toml(config, **load.copies(config, "source")).encode())

    def _call_back(self) -> None:
        """Call the user's callback if there is a record that it has not seen. Raises CallbackError after a checkpoint
        if the callback raises.
        """
        hook = self._hook
        if hook is None or self.meters.records == self._called:
            return
        self._called = self.meters.records
        controls, values = self._controls, dict(self.meters.values)
        try:
            self.meters.measure("callback", lambda: hook.call(controls, self.step, values))
        except (Exception, SystemExit) as error:
            self._save_last()
            raised = f"{type(error).__name__}: {error}"
            raise CallbackError(f"a callback raised {raised} (step {self.step:,}, saved)") from error
        self.meters.release()

    def _stop_run(self, stop: Stop) -> None:
        self.announce_stop()
        if not stop.number:
            self._update_document(stopped_by=stop.by)
        self._save_last()
        saved = (
            "with a checkpoint"
            if not self._failures
            else f"without a checkpoint: {self._problem.removesuffix('; training continues')}"
        )
        raise StoppedError(f"stopped by {stop.by} at step {self.step:,}, {saved}", signal=stop.number)

    def _end_run(self, state: str, error: Exception | None) -> None:
        """Write the run's last event and terminal `state`, once the pending checkpoint is complete and the metrics
        history is on disk. `error` is the cause, None if the run is complete.
        """
        self.store.wait()
        self._report_write_errors()
        if error is not None:  # the log has the full text
            line = (
                str(error).split("\n", 1)[0] if isinstance(error, OperantError) else f"{type(error).__name__}: {error}"
            )
            about = {"stopped": "stop", "diverged": "diverged"}.get(state, "fault")
            self._write_event(line, level="info" if state == "stopped" else "error", code=about)
        for verb in ("stop", "pause", "unpause", "checkpoint"):
            self.requests.answer(verb, "done" if verb == "stop" else "failed", f"{state} at step {self.step:,}")
        self.watcher.close()
        self.history.close(timeout_s=1.0 if state in ("gpu_fault", "oom") else 5.0)
        stop = self.requests.stop
        code = 0 if error is None else error.exit_code if isinstance(error, OperantError) else 1
        self._set_state(state, reason=stop.number if stop is not None and state == "stopped" else 0, exit_code=code)

    def _restore_files(self) -> None:
        """Restore files of the run folder that were deleted or replaced from outside. Raises BusyError if another
        trainer holds the folder, MachineError if it cannot be locked.
        """
        now_s = time.monotonic()
        if now_s - self._files_checked_s > _FILE_LOOK_S:
            self._files_checked_s = now_s
            if self._lock.restore():
                self.say("run.lock had been deleted or replaced and was restored", level="warn", code="file")
            self._report_write_errors()
            with contextlib.suppress(MachineError):
                if self.writer.restore():
                    self.say("metrics.mm had been deleted or replaced and was restored", level="warn", code="file")
                if runs.write_specs(self.folder, self._specs, again=True):
                    self.say("metrics.json had been deleted and was restored", level="warn", code="file")

    def _report_write_errors(self) -> None:
        """Warn once if the metrics file could not be written."""
        if self.writer.write_errors and "write errors" not in self._reported:
            self._reported.add("write errors")
            self.say(
                "metrics.mm could not be written (is the disk full?): training continues, its metrics are incomplete",
                level="warn",
                code="file",
            )

    # EVALUATION

    def _evaluate(self) -> bool:
        """Evaluate the policy, publish the mean return, and save a checkpoint if it is the best so far. Returns True if
        the run's target is reached.
        """
        evaluator, target = self.evaluator, self.config.run.target
        assert evaluator is not None
        self.writer.set_phase("eval")
        outcome = self.meters.measure(
            "evaluate", lambda: evaluator.run(self.iteration, interrupted=lambda: self.requests.stop is not None)
        )
        if outcome is None:
            self.say(f"the evaluation of step {self.step:,} was interrupted by a stop request", code="stop")
            return False
        result = outcome.evaluation
        self.last_evaluation = self.iteration
        best = result.mean > self.best_mean
        self.best_mean = max(self.best_mean, result.mean)
        if not_finite := self.meters.evaluated(self.step, result.mean, self.best_mean):
            self._end_diverged(not_finite)
        if target is not None and outcome.first is not None:
            self.say(describe(outcome, target))
        interval = "" if result.ci95 is None else f" ±{text.number(result.ci95)}"
        self.say(
            f"eval {text.number(result.mean)}{interval} (n={result.episodes}) at step "
            f"{self.step:,}{', best' if best else ''}",
            code="eval",
        )
        self.evaluations.append(
            {
                "schema": 1,
                "step": self.step,
                "iteration": self.iteration,
                "session": self.session,
                **outcome.document(target),
            }
        )
        if result.unfinished and "unfinished" not in self._reported:
            self._reported.add("unfinished")
            episodes = f"{result.unfinished:,} of {result.episodes:,} episodes of the evaluation"
            line = (
                f"{episodes} did not end within {evaluator.max_steps:,} steps and count with what they had: an Env can "
                "set a time_limit"
            )
            self.say(line, level="warn")
        self._evaluation = result.mean
        self._score = result.mean if self.iteration % self.config.eval.every == 0 else self._score
        if outcome.reached:
            self._update_document(target_reached=True)
        if best:
            self._save(best=True, wait=outcome.reached)
        return outcome.reached

    # CHECKPOINTS

    def _checkpoint_scalars(self) -> dict[str, Any]:
        """Make the scalars that a checkpoint stores in addition to its tensors: progress and evaluations."""
        progress = {
            "step": self.step,
            "iteration": self.iteration,
            "evaluation": self._evaluation,
            "score": self._score,
        }
        return {**progress, "best_value": self.best_mean, "last_evaluation": self.last_evaluation}

    def _is_save_due(self) -> bool:
        """Whether the last save is `checkpoint.seconds` ago, or longer if saving would otherwise take too large a share
        of the time.
        """
        seconds, waited_s = self.config.checkpoint.seconds, time.monotonic() - self._saved_s
        if not 0 < seconds <= waited_s or self.store.saving:
            return False
        return waited_s >= self.snapshots.cost_s / SAVE_SHARE

    def _save(self, *, best: bool = False, wait: bool = False) -> None:
        """Save a checkpoint and answer the requests for one. `best` marks the best evaluated checkpoint; with `wait`
        return once it is on disk.
        """
        last, self.requests.checkpoint = wait or self.requests.checkpoint, False
        save = _Save(self.step, time.clock_gettime_ns(BOOTTIME), best, self.requests.take("checkpoint"))
        self.writer.set_phase("checkpoint")
        self.meters.measure("checkpoint", lambda: self._snapshot(save, last=last, wait=wait))

    def _snapshot(self, save: _Save, *, last: bool, wait: bool) -> None:
        """Start saving a checkpoint. `last`: it may be the session's last; with `wait` return once it is on disk."""
        self._saved_s = time.monotonic()
        self.snapshots.save(
            self.step,
            self._checkpoint_scalars(),
            best=save.best,
            last=last,
            done=functools.partial(self._confirm_save, save),
        )
        if wait:
            self.store.wait()

    def _confirm_save(self, save: _Save, path: Path | None, replay_s: float | None) -> None:
        """Report that a checkpoint is saved, or with `path` None that saving failed. The thread that wrote it calls
        this. `replay_s` is the time spent on the replay, None if it was not saved.
        """
        if path is None:
            self._failures += 1
            self.requests.answer_all(save.requests, "failed", self._problem)
        else:
            self._failures = 0
            self.writer.set_checkpoint(save.step, save.boottime_ns)
            self.meters.checkpointed()
            self.history.sync()
            replay = (
                ""
                if replay_s is None
                else f", with its replay ({text.size(self.snapshots.replay_bytes)} in {replay_s:.2g} s)"
            )
            self._write_event(
                f"checkpoint of step {save.step:,}{', best' if save.best else ''}{replay}", code="checkpoint"
            )
            self.requests.answer_all(save.requests, "done", f"checkpoints/{path.name}")
        self.writer.set_checkpoint_failures(self._failures)

    def _report_store(self, line: str) -> None:
        """Log a message of the checkpoint store: about a failed save, a checkpoint skipped on load, or a file that
        could not be deleted. Thread-safe.
        """
        self._problem = line
        self.say(line, level="warn", code="checkpoint")

    def _load_checkpoint(self, checkpoint: Checkpoint, before: Config) -> str | None:
        """Load a checkpoint that was made with configuration `before`. Returns None, or the reason why returns before
        and after it are not comparable.
        """
        changes = resuming.task_changes(before, self.config, checkpoint.document.get("environment_code"))
        document, incomparable = self.snapshots.restore(checkpoint, changes)
        self.step, self.iteration = document["step"], document["iteration"]
        self.best_mean, self.last_evaluation, self._evaluation = (
            document["best_value"],
            document["last_evaluation"],
            document["evaluation"],
        )
        self._score = document.get("score", self._score)
        if incomparable is not None:
            self.best_mean = float("-inf")
        return incomparable

    def _end_diverged(self, not_finite: NotFinite) -> None:
        """End a diverged run: save its non-finite state apart from the checkpoints, for a post-mortem, and raise
        DivergedError. Earlier checkpoints stay.
        """
        parameters = self.algo.actor.not_finite()
        names = ", ".join([*parameters[:6], *not_finite.columns[:6]]) or "a loss"
        self.store.wait()
        self.store.quarantine(
            self.step, self.team.state(self.algo, "train"), self._checkpoint_scalars(), session=self.session
        )
        last, first = self.store.newest(), not_finite.first
        last_checkpoint = (
            f"the last finite checkpoint is that of step {last.manifest.step:,}"
            if last is not None
            else "there is no checkpoint yet"
        )
        where = ""
        if first is not None:
            began = self.step - (self.iteration - not_finite.iteration + 1) * self.algo.steps_per_iteration
            where = f"{first.sentence(began, self.config.lanes)}; "
        raise DivergedError(
            f"diverged in iteration {not_finite.iteration:,}: {where}{names} not finite; {last_checkpoint}. "
            f"{not_finite.advice(self.config)}"
        )
