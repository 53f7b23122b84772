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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant import __version__, runs
from operant.errors import ConfigError, DeviceError, DivergedError, MachineError, OperantError, StoppedError

if TYPE_CHECKING:
    import torch

    from operant.checkpoint import Checkpoint
    from operant.config import Config

STOP_DEADLINE_S = 20.0
"""How long a stop may take, checkpoint included, before the process leaves without one: below the grace of Slurm and Kubernetes."""

log = logging.getLogger("operant")


class Requests:
    """What signals ask of the loop. A handler only sets a flag; the loop looks once an iteration."""

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        self.checkpoint = False

    def install(self) -> None:
        """SIGTERM, SIGINT: stop with a checkpoint. SIGUSR1: checkpoint. SIGUSR2: stacks into the log. SIGHUP: nothing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_checkpoint)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR2, all_threads=True)

    def _on_stop(self, number: int, frame: object) -> None:
        if self.stop is None:
            deadline = threading.Timer(STOP_DEADLINE_S, os._exit, (StoppedError.exit_code,))
            deadline.daemon = True
            deadline.start()
        self.stop = signal.Signals(number)

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

    def __init__(self, folder: Path, document: dict[str, Any], config: Config, device: torch.device, checkpoint: Checkpoint | None) -> None:
        from operant import algos
        from operant.checkpoint import Store
        from operant.evaluate import Evaluator
        from operant.meters import Meters, metrics_for
        from operant.metricsfile import Writer
        from operant.world import World

        self.folder, self.config = folder, config
        self.session = document["session"]
        world = World(config.environment, config.env.lanes, seed=config.run.seed, device=device, params=config.params)
        self.algo = algos.load(config.algo_name)(world, config.algo, config.net, seed=config.run.seed, steps=config.run.steps)
        self.iteration, self.step = 0, 0
        self.total_iterations = -(-config.run.steps // self.algo.steps_per_iteration)
        self.best_mean, self.last_evaluation = float("-inf"), -1
        self.store = Store(folder / "checkpoints", run_uuid=document["uuid"], keep=config.checkpoint.keep, report=log.warning)
        if checkpoint is not None:
            self._restore(checkpoint)
        self.evaluator = None
        if config.eval.every:
            self.evaluator = Evaluator(
                self.algo.policy, config.environment, config.params, episodes=config.eval.episodes, seed=config.run.seed
            )
        self.writer = Writer(
            folder / "metrics.mm", metrics_for(self.algo), run_uuid=bytes.fromhex(document["uuid"]), session=self.session, version=__version__
        )
        self.meters = Meters(self.algo, self.writer, record_hz=config.run.record_hz, iteration=self.iteration, step=self.step)
        if checkpoint is not None and self.best_mean > float("-inf"):
            self.meters.evaluated(checkpoint.document["evaluation"], self.best_mean)
        self.requests = Requests()
        self._restored = time.monotonic()

    # LOOP

    def run(self) -> None:
        """Train until the steps are done, the target is reached, or somebody stops it. Leaves the last checkpoint and a terminal state."""
        self.requests.install()
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
        algo, meters, config = self.algo, self.meters, self.config
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
        reason = int(self.requests.stop or 0) if state == "stopped" else 0
        self.writer.set_state(state, reason=reason, exit_code=exit_code)

    def _look_after_the_file(self) -> None:
        now = time.monotonic()
        if now - self._restored > 5.0:
            self._restored = now
            with contextlib.suppress(MachineError):
                if self.writer.restore():
                    log.warning("metrics.mm had been deleted or replaced, and was put back")

    # EVALUATION, CHECKPOINTS

    def _evaluate(self) -> bool:
        """Play greedy episodes; True where the target is reached. A new best is saved as such."""
        assert self.evaluator is not None
        self.writer.set_phase("eval")
        result = self.meters.measure("evaluate", lambda: self.evaluator.run(self.iteration))
        self.last_evaluation = self.iteration
        best = result.mean > self.best_mean
        self.best_mean = max(self.best_mean, result.mean)
        self.meters.evaluated(result.mean, self.best_mean)
        log.info("eval %.1f ±%.1f (n=%d) at step %s%s", result.mean, result.ci95, result.episodes, f"{self.step:,}", ", best" if best else "")
        (self.folder / "eval").mkdir(mode=0o700, exist_ok=True)
        with open(self.folder / "eval" / "evaluations.jsonl", "a", encoding="utf-8") as lines:
            lines.write(json.dumps({"schema": 1, "step": self.step, "iteration": self.iteration, "session": self.session, **result._asdict()}) + "\n")
        self._evaluation = result.mean
        target = self.config.run.target
        solved = target is not None and result.mean >= target
        if best and not solved:
            self._save(best=True)
        elif best:
            self._save(best=True, wait=True)
        return solved

    _evaluation = float("nan")

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
        save = self.store.save if wait else self.store.save_async
        done = save(self.step, tensors, self._document(), session=self.session, best=best, must_be_finite=["policy/parameters"])
        if not wait or done is not None:
            self.writer.set_checkpoint(self.step)

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
    import torch

    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error) or isinstance(error, MemoryError):
        return DeviceError(f"out of memory: {str(error).splitlines()[0]}. Use fewer env.lanes or a shorter algo.horizon")
    if isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error) or type(error).__name__ == "CudaAPIError":
        return DeviceError(f"the GPU failed: {str(error).splitlines()[0]}")
    return None


def find_device(text: str) -> torch.device:
    """The device of `run.device`. Raises MachineError where it asks for a GPU that is not there."""
    import torch

    available = torch.cuda.is_available()
    if text == "auto":
        return torch.device("cuda", 0) if available else torch.device("cpu")
    if not text.startswith("cuda"):
        return torch.device(text)
    if not available:
        built = "is a CPU build" if torch.version.cuda is None else f"is built for CUDA {torch.version.cuda} and finds no usable GPU"
        raise MachineError(f"no CUDA device for run.device={text!r}: torch {torch.__version__} {built}. Use run.device=cpu, or see `operant doctor`")
    index = int(text.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise MachineError(f"there is no {text}: this machine has cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return torch.device("cuda", index)


def set_threads(count: int) -> int:
    """Use `count` CPU threads, or one for each core where it is 0; the number in use. It belongs to a run's configuration: reductions depend on it."""
    import numba
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = count or cores
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    return threads


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


def prepare(folder: Path, *, resume: str | None) -> Trainer:
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
    (folder / "config.toml").write_text(configuration.to_toml(config, **_keep_sources(folder, config)), encoding="utf-8")
    return Trainer(folder, document, config, device, checkpoint)


def work(folder: Path, *, resume: str | None) -> None:
    """Train the run of a folder while holding its lock. Raises OperantError."""
    lock = runs.acquire(folder)
    try:
        runs.update_document(folder, **runs.identity(), phase="importing torch")
        prepare(folder, resume=resume).run()
    finally:
        lock.release()


def main() -> int:
    """The worker's command line: the exit code of how training went, and every word of it in the log."""
    parser = argparse.ArgumentParser(prog="python -m operant.train", description="Train the run of a folder (what `operant train` starts)")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", metavar="last|best|STEP", default=None)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    try:
        work(arguments.folder, resume=arguments.resume)
    except StoppedError as error:
        log.info("%s", error)
        return error.exit_code
    except OperantError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
