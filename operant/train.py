"""The worker: `python -m operant.train RUN_DIR`. Trains one run from its folder, headless, and ends with the exit code of how it went.

Knows the run folder, the clock of the loop, and what a stop, a checkpoint or a broken number asks for; knows no algorithm's parts and never draws.
Everything heavy is imported after the run's lock is held, so that a viewer sees a living run from the first moment.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from operant import __version__, runs
from operant.errors import ConfigError, DeviceError, DivergedError, MachineError, OperantError, StoppedError
from operant.runtime import find_device, quiet_threads, set_threads

if TYPE_CHECKING:
    import torch

    from operant.checkpoint import Checkpoint
    from operant.config import Config

STOP_DEADLINE_S = 20.0
"""How long a stop may take, checkpoint included, before the process leaves without one: below the grace of Slurm and Kubernetes."""

log = logging.getLogger("operant")


class Requests:
    """What signals ask of the loop. Once training has begun a handler only sets a flag, at which the loop looks once an iteration.

    Before that there is nothing to save, and a stop interrupts: leaving the `with` turns it into a StoppedError.
    """

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        self.checkpoint = False
        self._starting = True
        self._before: dict[signal.Signals, Any] = {}
        self._deadline = threading.Timer(STOP_DEADLINE_S, os._exit, (StoppedError.exit_code,))
        self._deadline.daemon = True

    def __enter__(self) -> Requests:
        """SIGTERM, SIGINT: stop with a checkpoint. SIGUSR1: checkpoint. SIGUSR2: stacks into the log. SIGHUP: nothing."""
        handlers: dict[signal.Signals, Any] = {
            signal.SIGTERM: self._on_stop, signal.SIGINT: self._on_stop, signal.SIGUSR1: self._on_checkpoint, signal.SIGHUP: signal.SIG_IGN,
        }  # fmt: skip
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # a stderr without a file descriptor
            faulthandler.register(signal.SIGUSR2, all_threads=True)
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        # Interrupted imports of C extensions make an ImportError of it, and worse.
        if self.stop is not None and error is not None and (self._starting or isinstance(error, SystemExit)):
            raise StoppedError(f"stopped by {self.stop.name} before the first update, with nothing to save") from None

    def begin(self) -> None:
        """Training begins: from here on a stop waits for the loop."""
        self._starting = False
        if self.stop is not None:  # the interruption was lost in a callback from C
            sys.exit(StoppedError.exit_code)

    def restore(self) -> None:
        """Give the signals back, in a process that goes on."""
        self._deadline.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        faulthandler.unregister(signal.SIGUSR2)

    def _on_stop(self, number: int, frame: object) -> None:
        if self.stop is not None:
            return
        self.stop = signal.Signals(number)
        self._deadline.start()
        if self._starting:
            sys.exit(StoppedError.exit_code)  # no library takes a SystemExit for an error of its own

    def _on_checkpoint(self, number: int, frame: object) -> None:
        self.checkpoint = True


class Heartbeat:
    """A thread that says four times a second that the process lives."""

    def __init__(self, beat: Any) -> None:
        self._beat, self._over = beat, threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.25):
            self._beat()


class Trainer:
    """One run, from its resolved configuration to its end."""

    def __init__(self, folder: Path, document: dict[str, Any], config: Config, device: torch.device, checkpoint: Checkpoint | None, requests: Requests) -> None:
        from operant import algos
        from operant.checkpoint import Store
        from operant.evaluate import Evaluator
        from operant.meters import metrics_for
        from operant.metricsfile import Writer
        from operant.world import World

        self.folder, self.config = folder, config
        self.session = document["session"]
        world = World(config.environment, config.env.lanes, seed=config.run.seed, device=device, params=config.params)
        self.algo = algos.load(config.algo_name)(world, config.algo, config.net, seed=config.run.seed, steps=config.run.steps)
        self.iteration, self.step = 0, 0
        self.total_iterations = -(-config.run.steps // self.algo.steps_per_iteration)
        self.best_mean, self.last_evaluation, self._evaluation = float("-inf"), -1, float("nan")
        self._unconfirmed: int | None = None  # the step of a checkpoint that a thread is still writing
        self.store = Store(folder / "checkpoints", run_uuid=document["uuid"], keep=config.checkpoint.keep, report=log.warning)
        if checkpoint is not None:
            self._restore(checkpoint)
        self.evaluator = None
        if config.eval.every:
            self.evaluator = Evaluator(
                self.algo.policy, config.environment, config.params, episodes=config.eval.episodes, seed=config.run.seed
            )
        self.requests = requests
        requests.begin()
        self.writer = Writer(
            folder / "metrics.mm", metrics_for(self.algo), run_uuid=bytes.fromhex(document["uuid"]), session=self.session, version=__version__
        )
        self._looked_s, self._told_write_errors = time.monotonic(), False

    # LOOP

    def run(self) -> None:
        """Train until the steps are done, the target is reached, or somebody stops it. Leaves the last checkpoint and a terminal state."""
        with Heartbeat(self.writer.heartbeat):
            try:
                self._loop()
            except OperantError as error:
                states = {DivergedError: "diverged", StoppedError: "stopped", DeviceError: "gpu_fault"}
                self._end(states.get(type(error), "failed"), error.exit_code)
                raise
            except Exception as error:
                told = _device_error(error)
                self._end(("oom" if "memory" in str(told) else "gpu_fault") if told else "failed", told.exit_code if told else 1)
                if told is not None:
                    raise told from error
                raise
            self._end("finished", 0)

    def _loop(self) -> None:
        from operant.meters import Meters

        algo, config = self.algo, self.config
        self.meters = meters = Meters(algo, self.writer, record_hz=config.run.record_hz, iteration=self.iteration, step=self.step)
        if self.best_mean > float("-inf"):  # of the session before
            meters.evaluated(self._evaluation, self.best_mean)
        if self.iteration == 0:
            algo.start()
        self.writer.set_state("running")
        solved = False
        while self.iteration < self.total_iterations and not solved:
            self.writer.set_phase("rollout")
            meters.measure("collect", algo.collect)
            self.writer.set_phase("update")
            meters.measure("update", algo.update)
            self.iteration += 1
            self.step += algo.steps_per_iteration
            self.writer.tick()
            if not_finite := meters.after(self.step):
                self._diverged(not_finite)
            if self.evaluator is not None and self.iteration % config.eval.every == 0:
                solved = self._evaluate()
            if self.iteration % config.checkpoint.every == 0 or self.requests.checkpoint:
                self.requests.checkpoint = False
                self._save()
            self._confirm(wait=False)
            self._look_after_the_file()
            if self.requests.stop is not None and not solved:
                self._stop(self.requests.stop)
        if self.evaluator is not None and self.last_evaluation != self.iteration:
            solved = self._evaluate()
        self._finish()
        reached = f"target {config.run.target:g} reached" if solved and config.run.target is not None else "all steps done"
        log.info("finished: %s after %s steps", reached, f"{self.step:,}")

    def _finish(self) -> None:
        """The last record and the last checkpoint, both complete."""
        if not_finite := self.meters.flush(self.step):
            self._diverged(not_finite)
        self._save(wait=True)

    def _stop(self, number: signal.Signals) -> None:
        self.writer.set_state("stopping", reason=int(number))
        self._finish()
        raise StoppedError(f"stopped by {number.name} at step {self.step:,}, with a checkpoint")

    def _end(self, state: str, exit_code: int) -> None:
        """The last word, once a checkpoint that is still being written is complete."""
        self._confirm(wait=True)
        self._tell_write_errors()
        reason = int(self.requests.stop or 0) if state == "stopped" else 0
        self.writer.set_state(state, reason=reason, exit_code=exit_code)

    def _look_after_the_file(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s > 5.0:
            self._looked_s = now_s
            self._tell_write_errors()
            with contextlib.suppress(MachineError):
                if self.writer.restore():
                    log.warning("metrics.mm had been deleted or replaced, and was put back")

    def _tell_write_errors(self) -> None:
        if self.writer.write_errors and not self._told_write_errors:
            self._told_write_errors = True
            log.warning("metrics.mm could not be written (is the disk full?): training goes on, what it shows is incomplete")

    # EVALUATION, CHECKPOINTS

    def _evaluate(self) -> bool:
        """Play greedy episodes; True where the target is reached. A new best is saved as such."""
        evaluator = self.evaluator
        assert evaluator is not None
        self.writer.set_phase("eval")
        result = self.meters.measure("evaluate", lambda: evaluator.run(self.iteration))
        self.last_evaluation = self.iteration
        best = result.mean > self.best_mean
        self.best_mean = max(self.best_mean, result.mean)
        self.meters.evaluated(result.mean, self.best_mean)
        log.info("eval %.1f ±%.1f (n=%d) at step %s%s", result.mean, result.ci95, result.episodes, f"{self.step:,}", ", best" if best else "")
        self._note({"schema": 1, "step": self.step, "iteration": self.iteration, "session": self.session, **result._asdict()})
        self._evaluation = result.mean
        target = self.config.run.target
        solved = target is not None and result.mean >= target
        if best:
            self._save(best=True, wait=solved)
        return solved

    def _note(self, evaluation: dict[str, Any]) -> None:
        """A line in eval/evaluations.jsonl; a full disk costs the line, not the run."""
        try:
            (self.folder / "eval").mkdir(mode=0o700, exist_ok=True)
            with open(self.folder / "eval" / "evaluations.jsonl", "a", encoding="utf-8") as lines:
                lines.write(json.dumps(evaluation) + "\n")
        except OSError as error:
            log.warning("eval/evaluations.jsonl could not be written: %s", error.strerror)

    def _document(self) -> dict[str, Any]:
        """What a resumed run needs beside the tensors."""
        return {
            "step": self.step,
            "iteration": self.iteration,
            "evaluation": self._evaluation,
            "best_value": self.best_mean,
            "last_evaluation": self.last_evaluation,
        }

    def _save(self, *, best: bool = False, wait: bool = False) -> None:
        self.writer.set_phase("checkpoint")
        self.meters.measure("checkpoint", lambda: self._snapshot(best=best, wait=wait))

    def _snapshot(self, *, best: bool, wait: bool) -> None:
        tensors = {name: value.detach().to("cpu", copy=True) for name, value in self.algo.tensors().items()}  # sync: a checkpoint
        self._confirm(wait=True)
        self.store.save_async(self.step, tensors, self._document(), session=self.session, best=best, must_be_finite=["policy/parameters"])
        self._unconfirmed = self.step
        self._confirm(wait=wait)

    def _confirm(self, *, wait: bool) -> None:
        """Say in the metrics file that a checkpoint is safe, once it is."""
        if self._unconfirmed is None or (self.store.saving and not wait):
            return
        if self.store.wait() is not None:
            self.writer.set_checkpoint(self._unconfirmed)
        self._unconfirmed = None

    def _restore(self, checkpoint: Checkpoint) -> None:
        import torch

        own = self.algo.tensors()
        odd = [
            f"{name}: the checkpoint has {tuple(there.shape) if there is not None else 'nothing'}, this configuration {tuple(here.shape)}"
            for name, here in own.items()
            if (there := checkpoint.tensors.get(name)) is None or there.shape != here.shape
        ]
        if odd:
            raise ConfigError(str(self.folder / "config.toml"), [f"does not fit checkpoint {checkpoint.path.name}: {line}" for line in odd])
        with torch.no_grad():
            for name, here in own.items():
                here.copy_(checkpoint.tensors[name])
        document = checkpoint.document
        self.step, self.iteration = document["step"], document["iteration"]
        self.best_mean, self.last_evaluation, self._evaluation = document["best_value"], document["last_evaluation"], document["evaluation"]
        log.info("resumed from %s", checkpoint.path.name)

    def _diverged(self, not_finite: Any) -> None:
        """Name what broke, keep the broken state for a post-mortem, and end: the checkpoints before it stay."""
        parameters = self.algo.policy.flat.not_finite()
        names = ", ".join([*parameters[:6], *not_finite.columns[:6]]) or "a loss"
        self.store.wait()
        tensors = {name: value.detach().to("cpu", copy=True) for name, value in self.algo.tensors().items()}  # sync: the run is over
        self.store.quarantine(self.step, tensors, self._document(), session=self.session)
        steps = self.store.steps()
        kept = f"the last finite checkpoint is that of step {steps[-1]:,}" if steps else "there is no checkpoint yet"
        raise DivergedError(
            f"diverged in iteration {not_finite.iteration:,}: {names} not finite; {kept}. "
            "Try a lower algo.learning_rate or algo.max_gradient_norm, or algo.normalize_rewards=true"
        )


# FROM A RUN FOLDER TO A TRAINER


def _device_error(error: Exception) -> DeviceError | None:
    """The error of a device, in a sentence: out of memory, or a fault after which nothing works. None for all others."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "AcceleratorError"):  # its import is what failed
        return None
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error) or isinstance(error, MemoryError):
        return DeviceError(f"out of memory: {str(error).splitlines()[0]}. Use fewer env.lanes or a shorter algo.horizon")
    if isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error) or type(error).__name__ == "CudaAPIError":
        return DeviceError(f"the GPU failed: {str(error).splitlines()[0]}")
    return None


def _keep_sources(folder: Path, config: Config) -> dict[str, str]:
    """Copy the user's own files into the run folder, so that an evaluation or a resume uses what was trained with; their names there."""
    names: dict[str, str] = {}
    for key, source in (("environment_file", config.environment_file), ("network_file", config.network_file)):
        if source is None:
            continue
        kept = folder / "source" / source.name
        if source.resolve() != kept.resolve():
            kept.parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copyfile(source, kept)
        names[key] = f"source/{source.name}"
    return names


def _git_commit(folder: Path) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()
    return None


def _configuration(folder: Path, document: dict[str, Any], resume: bool) -> Config:
    """The run's configuration: of its request when it is new, of its own folder when it goes on."""
    from operant import config as configuration

    request = document["request"]
    directory = Path(request["directory"])
    if resume:
        return configuration.load(folder / "config.toml", request.get("resume_overrides", ()), folder=directory)
    source = configuration.find_source(request["config"]) if request["config"] else None
    overrides = list(request["overrides"])
    if request.get("environment_file"):
        overrides.append(f"env.name={request['environment_file']}")
    return configuration.load(source, overrides, folder=directory)


def prepare(folder: Path, *, resume: str | None, requests: Requests) -> Trainer:
    """Everything up to the first iteration. Raises OperantError for all that can be wrong before it."""

    def phase(text: str, **fields: Any) -> None:
        runs.update_document(folder, phase=text, **fields)

    import numba
    import torch

    from operant import config as configuration
    from operant.checkpoint import Store

    document = runs.read_json(folder / "run.json")
    phase("reading the configuration")
    config = _configuration(folder, document, resume is not None)
    device = find_device(config.run.device)
    # What was chosen here is written down, so that a resume chooses the same and ends in the same bits.
    config = replace(config, run=config.run.model_copy(update={"threads": set_threads(config.run.threads), "device": str(device)}))
    checkpoint = None
    if resume is not None:
        which = int(resume) if resume.isdecimal() else resume
        checkpoint = Store(folder / "checkpoints", run_uuid=document["uuid"], report=log.warning).load(which)
    document = runs.update_document(
        folder,
        phase="compiling kernels",
        env=config.environment.name,
        algo=config.algo_name,
        lanes=config.env.lanes,
        steps=config.run.steps,
        target=config.run.target,
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        seed=config.run.seed,
        session=document.get("session", 0) + 1,
        git_commit=_git_commit(Path(document["request"]["directory"])),
        python=sys.version.split()[0],
        torch=torch.__version__,
        numba=numba.__version__,
    )
    _replace(folder / "config.toml", configuration.to_toml(config, **_keep_sources(folder, config)))
    return Trainer(folder, document, config, device, checkpoint, requests)


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises MachineError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        new.unlink(missing_ok=True)


def _train(folder: Path, resume: str | None, requests: Requests) -> None:
    """Train the run of a folder whose lock this process holds. Raises OperantError."""
    runs.update_document(folder, **runs.identity(), phase="importing torch")
    quiet_threads()
    try:
        trainer = prepare(folder, resume=resume, requests=requests)
    except OperantError:
        raise
    except Exception as error:
        if (told := _device_error(error)) is not None:
            raise told from error
        raise
    trainer.run()


def work(folder: Path, *, resume: str | None) -> None:
    """Train the run of a folder in a process that goes on: its lock and the signals are taken, and given back. Raises OperantError."""
    lock, requests = runs.acquire(folder), Requests()
    try:
        with requests:
            _train(folder, resume, requests)
    finally:
        requests.restore()
        lock.release()


def _worked(folder: Path, resume: str | None) -> int:
    """Train, with every word of how it went in the log; the exit code."""
    try:
        with Requests() as requests:
            runs.acquire(folder)  # and kept: it goes with the process
            _train(folder, resume, requests)
    except StoppedError as error:
        log.info("%s", error)
        return error.exit_code
    except OperantError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def write_log() -> None:
    """The log goes to stderr: what Operant says, and others' warnings."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    log.setLevel(logging.INFO)


def main() -> NoReturn:
    """The worker's command line: ends the process with the exit code of how training went."""
    parser = argparse.ArgumentParser(prog="python -m operant.train", description="Train the run of a folder (what `operant train` starts)")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", metavar="last|best|STEP", default=None)
    arguments = parser.parse_args()
    write_log()
    code = _worked(arguments.folder, arguments.resume)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # At once: taking torch apart costs a second, in which the lock must not be free, or the run would be neither living nor ended.
    os._exit(code)


if __name__ == "__main__":
    main()
