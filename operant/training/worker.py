"""The worker: `python -m operant.training.worker RUN_DIR`. Trains one run from its folder, headless, and ends with the exit code of how it went.

Turns a folder into a trainer (operant/training/loop.py) and its ending into an exit code; knows nothing of the loop.
Everything heavy is imported after the run's lock is held, so that a viewer sees a living run from the first moment.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from operant import runs
from operant.compute.runtime import device_error, find_device, importing, quiet_threads, set_threads, wake_gpu
from operant.errors import DeviceError, EnvironmentFailedError, MachineError, OperantError, StoppedError
from operant.text import safe
from operant.training.requests import Requests

if TYPE_CHECKING:
    from operant.config.load import Config
    from operant.training.loop import Trainer

log = logging.getLogger("operant")
_LOG_CELLS = 4000  # of a line


def _device_error(error: Exception) -> DeviceError | None:
    """The error of a device, in a sentence; None for all others, such as that of an import."""
    return device_error(error) if "torch" in sys.modules else None


def _keep_sources(folder: Path, config: Config) -> dict[str, str]:
    """Copy the user's own files into the run folder, so that an evaluation or a resume uses what was trained with; their names there."""
    from operant.config.load import copies

    names = copies(config, "source")
    contents = {folder / name: getattr(config, key).read_bytes() for key, name in names.items()}  # all of them first: a copy may take another one's place
    for kept, content in contents.items():
        if kept.parent.is_symlink():
            raise MachineError(f"{kept.parent} is a symbolic link: the user's own files are kept in the run folder itself")
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        if kept.is_symlink() or not kept.is_file() or kept.read_bytes() != content:
            _replace(kept, content)
    return names


@functools.cache
def _git_commit(folder: Path) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()
    return None


def prepare(folder: Path, *, resume: str | None, requests: Requests, trusted: bool = False) -> Trainer:
    """Everything up to the first iteration. Raises OperantError for all that can be wrong before it."""

    def phase(text: str, **fields: Any) -> None:
        runs.update_document(folder, durable=False, phase=text, **fields)

    from operant.config import request

    document = runs.read_json(folder / "run.json")
    asked = request.of_run(folder, document.get("request"), resume=resume is not None)
    wake_gpu(asked.device())
    with importing():
        import numba
        import torch

        from operant.config import load as configuration
        from operant.config import resuming, trust
        from operant.runs.checkpoints import Store
        from operant.training import auto_lanes, memory
        from operant.training.loop import Trainer
        from operant.worlds import quick_check

        phase("reading the configuration")
        config = asked.load(trusted)
    device = find_device(config.run.device)
    # What was chosen here is written down, so that a resume chooses the same and ends in the same bits.
    config = replace(config, run=config.run.model_copy(update={"threads": set_threads(config.run.threads), "device": str(device)}))
    warnings: list[str] = []
    if (file := config.environment_file) is not None and not config.hosted:
        phase(f"checking {file.name}")
        warnings = quick_check.require_sound(config.environment, file, config.params, device)
    if config.env.lanes == "auto":
        phase("trying how many lanes fit")
        config = auto_lanes.resolved(config, device, report=log.info)
    else:
        memory.require_room(config, device)
    start, before = None, None
    if resume is not None:
        which = int(resume) if resume.isdecimal() else resume
        checkpoint = Store(folder / "checkpoints", run_uuid=document["uuid"], report=log.warning).load(which)
        before = resuming.of_checkpoint(asked, checkpoint.config, trusted)
        resuming.check_fits(before, config, asked.source)
        start = (checkpoint, before)
    config = resuming.completed(config, before)
    document = runs.update_document(
        folder,
        phase="compiling kernels",
        env=config.environment.name,
        algo=config.algo_label,
        lanes=config.lanes,
        steps=config.run.steps,
        target=config.run.target,
        target_reached=None if config.run.target is None else False,
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        seed=config.run.seed,
        draws=config.environment.draws,
        resume="warm: an outside environment begins its episodes anew" if config.hosted else None,
        session=document.get("session", 0) + 1,
        git_commit=_git_commit(asked.directory),
        python=sys.version.split()[0],
        torch=torch.__version__,
        numba=numba.__version__,
    )

    def write(config: Config) -> None:
        kept = _keep_sources(folder, config)
        _replace(folder / "config.toml", configuration.to_toml(config, **kept).encode())
        runs.update_document(folder, sources=trust.hashes(folder, kept.values()))

    if start is None:
        write(config)
    trainer = Trainer(folder, document, config, device, start, requests)  # which refuses a checkpoint that does not fit: until then nothing is overwritten
    for line in warnings:
        trainer.say(line, level="warn")
    if start is not None:
        write(config)
    # What was chosen, which a resume is given again; and for the monitor.
    runs.update_document(folder, chosen=trainer.algo.chosen, replay=trainer.snapshots.replay_size)
    return trainer


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises MachineError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(content)
        os.replace(new, path)
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        new.unlink(missing_ok=True)


def _train(folder: Path, resume: str | None, requests: Requests, lock: runs.Lock, trusted: bool) -> None:
    """Train the run of a folder whose lock this process holds. Raises OperantError."""
    runs.update_document(folder, durable=False, **runs.identity(), folder_inode=folder.stat().st_ino, phase="importing torch", paused_by=None, stopped_by=None)
    quiet_threads()
    try:
        trainer = prepare(folder, resume=resume, requests=requests, trusted=trusted)
    except OperantError:
        raise
    except Exception as error:
        if (told := _device_error(error)) is not None:
            raise told from error
        raise
    trainer.run(lock)


def work(folder: Path, *, resume: str | None, trusted: bool = False) -> None:
    """Train the run of a folder in a process that goes on: its lock and the signals are taken, and given back. Raises OperantError.

    `trusted`: see `config.load`.
    """
    lock, requests, mask = runs.acquire(folder), Requests(), os.umask(0o077)
    try:
        with requests:
            _train(folder, resume, requests, lock, trusted)
    finally:
        os.umask(mask)
        requests.restore()
        if runs.integer_of(runs.read_json(folder / "run.json"), "pid") == os.getpid():
            with contextlib.suppress(MachineError):
                # This process lives on, the run's worker does not; where it had no metrics file yet, the one that lies there is another's.
                runs.update_document(folder, durable=False, pid_start_ticks=None, **({} if requests.began else {"pid": None}))
        lock.release()


def worked(folder: Path, resume: str | None, trusted: bool = False, *, goes_on: bool = False) -> int:
    """Train, with every word of how it went in the log; the exit code. `goes_on`: this process trains other runs after it, and gives the lock back."""
    try:
        if goes_on:
            work(folder, resume=resume, trusted=trusted)
            return 0
        with Requests() as requests:
            lock = runs.acquire(folder)  # and kept: it goes with the process
            _train(folder, resume, requests, lock, trusted)
    except StoppedError as error:
        log.info("%s", error)
        return error.exit_code
    except OperantError as error:
        if isinstance(error, EnvironmentFailedError) and error.detail:
            sys.stderr.write(safe(error.detail, _LOG_CELLS, lines=True))
        sys.stderr.write(f"error: {safe(error, _LOG_CELLS, lines=True)}\n")
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record), _LOG_CELLS, lines=True)


def write_log() -> None:
    """The log goes to stderr: what Operant says, and others' warnings, as plain text, since it may be a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    log.setLevel(logging.INFO)


def main() -> NoReturn:
    """The worker's command line: ends the process with the exit code of how training went."""
    parser = argparse.ArgumentParser(prog="python -m operant.training.worker", description="Train the run of a folder (what `operant train` starts)")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", metavar="last|best|STEP", default=None)
    parser.add_argument("--trust", action="store_true")
    arguments = parser.parse_args()
    write_log()
    code = worked(arguments.folder, arguments.resume, arguments.trust)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # At once: taking torch apart costs a second, in which the lock must not be free, or the run would be neither living nor ended.
    os._exit(code)


if __name__ == "__main__":
    main()
