"""Worker process: `python -m operant.training.worker RUN_DIR` trains the run of a folder and exits with its result
code.

With several ranks this process is one of them: rank 0 starts the others, unless a launcher (torchrun, srun) has started
all. Builds a trainer (operant/training/loop.py) from a folder and maps its ending to an exit code. Heavy imports follow
the run's lock, so that a viewer sees a live run from the first moment.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from operant import runs
from operant.compute.runtime import (
    device_error,
    find_device,
    importing,
    processor_name,
    quiet_threads,
    set_threads,
    usable_cores,
    wake_gpu,
)
from operant.errors import CallbackError, DeviceError, EnvironmentFailedError, MachineError, OperantError, StoppedError
from operant.runs import launch
from operant.text import safe
from operant.training import ranks
from operant.training.requests import Requests, Stop

if TYPE_CHECKING:
    import torch

    from operant.config.load import Config
    from operant.config.request import Request
    from operant.training.callbacks import Hook
    from operant.training.loop import Start, Trainer
    from operant.training.team import Team

log = logging.getLogger("operant")
_LOG_CELLS = 4000  # longest line of the log


def _device_error(error: Exception) -> DeviceError | None:
    """Convert an error of the GPU, or exhausted memory, to a DeviceError; None for any other error, and before torch is
    imported.
    """
    return device_error(error) if "torch" in sys.modules else None


def _copy_sources(folder: Path, config: Config) -> dict[str, str]:
    """Copy the user's own source files into the run folder, for later evaluations and resumes. Returns the copies'
    names by configuration key. Raises MachineError.
    """
    from operant.config.load import copies

    names = copies(config, "source")
    contents = {
        folder / name: getattr(config, key).read_bytes() for key, name in names.items()
    }  # read all before writing: a copy may replace a source
    for copied, content in contents.items():
        if copied.parent.is_symlink():
            raise MachineError(
                f"{copied.parent} is a symbolic link: the user's own files are kept in the run folder itself"
            )
        copied.parent.mkdir(mode=0o700, exist_ok=True)
        if copied.is_symlink() or not copied.is_file() or copied.read_bytes() != content:
            runs.write_file(copied, content)
    built = getattr(config.environment.ready(config.params), "model", None)
    if built is not None:
        stored = folder / "source" / config.environment.source.name
        if not stored.is_file():
            stored.parent.mkdir(mode=0o700, exist_ok=True)
            runs.write_file(stored, built.save())
    return names


@functools.cache
def _git_commit(folder: Path) -> str | None:
    """Hash of the commit checked out in a folder; None if it is not in a git repository."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=5, check=True
        )
        return done.stdout.strip()
    return None


def prepare(
    folder: Path,
    *,
    resume: str | None,
    requests: Requests,
    trusted: bool = False,
    placement: ranks.Placement = ranks.SINGLE,
    hook: Hook | None = None,
) -> tuple[Trainer, Team]:
    """Set up a run up to its first iteration; return the trainer and all ranks. Raises OperantError for every expected
    failure.

    `resume` names a checkpoint ("last", "best" or a step), None: a new run. `trusted`: code in the run folder may run.
    `hook`: a user's callback.
    """
    document = runs.read_json(folder / "run.json")
    flags = [*(["--resume", resume] if resume is not None else []), *["--trust"] * trusted]
    command = [*launch.module_command("operant.training.worker"), str(folder), *flags]
    with contextlib.ExitStack() as undo:
        request = _read_request(folder, document, resume)
        local_ranks = ranks.LocalRanks(command, folder, request.ranks() if placement.launcher is None else 1)
        undo.callback(local_ranks.close, 0.0)
        config = load_config(
            request,
            trusted,
            placement.local_rank,
            lambda phase: runs.update_document(folder, phase=phase),
            requests.deferring_stops(),
        )
        from operant.training import team as teams

        placement, named, note = ranks.resolve_device(config.run, placement, resume=resume is not None)
        device = find_device(named)
        team = teams.Team(folder, lambda name: requests.ask_stop(Stop(signal.SIGTERM, name)), local_ranks)
        undo.pop_all()
    try:
        team.open(placement, command, config.run.peer_timeout)
        # Recorded, so that a resume uses the same values and gives the same bits.
        chosen = {
            "threads": set_threads(config.run.threads, placement.local_ranks),
            **ranks.resume_keys(config.run, placement, device),
        }
        config = replace(config, run=config.run.model_copy(update=chosen))
        trainer = _build_trainer(
            folder, document, request, config, (device, team, placement), resume, requests, trusted, hook
        )
        for line in filter(None, [note]):
            trainer.say(line, level="warn")
    except BaseException as error:
        team.end(error)
        raise
    return trainer, team


def _read_request(folder: Path, document: dict[str, Any], resume: str | None) -> Request:
    """Read the configuration that a run requests from its `document` (run.json); for a resume the one in the run's
    folder.
    """
    from operant.config import request

    return request.of_run(folder, document.get("request"), resume=resume is not None)


def load_config(
    request: Request,
    trusted: bool,
    local_rank: int,
    phase: Callable[[str], object] = lambda phase: None,
    held: contextlib.AbstractContextManager[object] | None = None,
) -> Config:
    """Import the heavy modules within the context `held`, reporting progress to `phase`, then load the requested
    configuration. `trusted` allows code in the run folder to run. Raises ConfigError.
    """
    wake_gpu(request.device(local_rank))
    with importing():
        with held or contextlib.nullcontext():
            from operant.training import loop, team  # noqa: F401  (and torch and numba with them)

        phase("reading the configuration")
        return request.load(trusted)


def _resolve_lanes(
    config: Config, device: torch.device, count: int, phase: Callable[[str], object]
) -> tuple[Config, list[str]]:
    """Check the user's environment file, and replace `env.lanes = "auto"` by a number for `count` ranks, or check that
    memory suffices. Returns the configuration and warnings.
    """
    from operant.training import auto_lanes, memory
    from operant.worlds import quick_check

    warnings: list[str] = []
    if (file := config.environment_file) is not None and not config.hosted:
        phase(f"checking {file.name}")
        warnings = quick_check.require_sound(config.environment, file, config.params, device)
    if config.env.lanes == "auto":
        phase("trying how many lanes fit")
        config = auto_lanes.resolve(config, device, report=log.info, ranks=count)
    else:
        memory.require_memory(config, device, count)
    return config, warnings


def _load_start(folder: Path, uuid: str, request: Request, config: Config, resume: str, trusted: bool) -> Start:
    """Load the checkpoint of a resume and its configuration, and check that it is compatible with `config`. `resume` is
    "last", "best" or a step; `trusted` allows code in the run folder to run. Raises OperantError.
    """
    from operant.config import resuming
    from operant.runs.checkpoints import Store

    store = Store(folder / "checkpoints", run_uuid=uuid, report=log.warning)
    checkpoint = store.load(int(resume) if resume.isdecimal() else resume)
    before = resuming.of_checkpoint(request, checkpoint.config, trusted)
    if (info := store.newest(checkpoint.step)) is not None:
        resuming.check_order(before, info.manifest.created_realtime_ns)
    resuming.check_fits(before, config, request.source)
    return checkpoint, before


def _build_trainer(
    folder: Path,
    document: dict[str, Any],
    request: Request,
    config: Config,
    where: tuple[torch.device, Team, ranks.Placement],
    resume: str | None,
    requests: Requests,
    trusted: bool,
    hook: Hook | None,
) -> Trainer:
    """Build the trainer of a configuration once all ranks have joined. `where` is the device, the team and this rank's
    placement; `trusted`: code in the run folder may run; `hook`: a user's callback.
    """
    import numba
    import torch

    from operant.config import load as configuration
    from operant.config import resuming, trust
    from operant.training.loop import Trainer

    def phase(text: str, **fields: Any) -> dict[str, Any]:
        return runs.update_document(folder, phase=text, **fields)

    (device, team, placement), values = where, resuming.comparable(config)
    config, warnings = _resolve_lanes(config, device, placement.ranks, phase)
    if (starts := getattr(config.algo, "learning_starts", 0)) >= config.run.steps:
        warnings.append(f"algo.learning_starts is {starts:,} and run.steps is {config.run.steps:,}: nothing is learned")
    start = None if resume is None else _load_start(folder, document["uuid"], request, config, resume, trusted)
    config = resuming.completed(config, None if start is None else start[1])
    if placement.ranks > 1:
        phase(f"waiting for {placement.ranks - 1} other rank{'s' * (placement.ranks > 2)}")
        team.join(config, values, device, None if start is None else start[0].step, document)
    cores = usable_cores()
    document = phase(
        "compiling kernels",
        env=config.environment.name,
        algo=config.algo_label,
        lanes=config.lanes,
        ranks=placement.ranks,
        steps=config.run.steps,
        target=config.run.target,
        target_reached=None if config.run.target is None else False,
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        processor=f"{processor_name()}, {cores} core{'s' * (cores > 1)}",
        seed=config.run.seed,
        draws=config.environment.draws,
        resume="warm: an outside environment restarts its episodes" if config.hosted else None,
        session=document.get("session", 0) + 1,
        git_commit=_git_commit(request.directory),
        python=sys.version.split()[0],
        torch=torch.__version__,
        numba=numba.__version__,
    )

    def write(config: Config) -> None:
        copied = _copy_sources(folder, config)
        runs.write_file(folder / "config.toml", configuration.to_toml(config, **copied).encode())
        runs.update_document(folder, sources=trust.hashes(folder, copied.values()))

    if start is None:
        write(config)
    # refuses a checkpoint that does not fit, before anything is overwritten
    trainer = Trainer(folder, document, config, device, start, requests, team, hook)
    for line in warnings:
        trainer.say(line, level="warn")
    if start is not None:
        write(config)
    # For a resume and the monitor.
    runs.update_document(folder, chosen=trainer.algo.chosen, replay=trainer.snapshots.replay_size)
    return trainer


def _train(
    folder: Path,
    resume: str | None,
    requests: Requests,
    lock: runs.Lock,
    trusted: bool,
    placement: ranks.Placement = ranks.SINGLE,
    hook: Hook | None = None,
) -> None:
    """Train the run of a folder whose lock this process holds. `resume` names a checkpoint, None: a new run; `trusted`:
    code in the run folder may run; `hook`: a user's callback. Raises OperantError.
    """
    fresh = {"phase": "importing torch", "paused_by": None, "stopped_by": None, "lost": None}
    runs.update_document(folder, **runs.identity(), folder_inode=folder.stat().st_ino, **fresh)
    quiet_threads()
    try:
        trainer, team = prepare(
            folder, resume=resume, requests=requests, trusted=trusted, placement=placement, hook=hook
        )
    except OperantError:
        raise
    except Exception as error:
        if (fault := _device_error(error)) is not None:
            raise fault from error
        raise
    try:
        trainer.run(lock)
    except StoppedError:
        team.end()
        raise
    except BaseException as error:
        team.end(error)
        raise
    team.end()


def train(folder: Path, *, resume: str | None, trusted: bool = False, hook: Hook | None = None) -> None:
    """Train the run of a folder in a process that continues afterwards: lock and signal handlers are released. Raises
    OperantError.

    `resume` names a checkpoint ("last", "best" or a step), None: a new run. `trusted`: code in the run folder may run.
    `hook`: a user's callback, in the user's process.
    """
    if (run := runs.load(folder)) is not None and not runs.has_trainer(folder):
        launch.forget_ending(run)
    lock, requests, mask = runs.acquire(folder), Requests(embedded=hook is not None), os.umask(0o077)
    try:
        with requests:
            _train(folder, resume, requests, lock, trusted, hook=hook)
    finally:
        os.umask(mask)
        requests.restore()
        if runs.integer_of(runs.read_json(folder / "run.json"), "pid") == os.getpid():
            with contextlib.suppress(MachineError):
                # The process continues, the run's worker does not. Without a metrics file of this session, the
                # existing one belongs to another.
                runs.update_document(folder, pid_start_ticks=None, **({} if requests.began else {"pid": None}))
        lock.release()


def train_with_exit_code(
    folder: Path,
    resume: str | None,
    trusted: bool = False,
    *,
    reused: bool = False,
    placement: ranks.Placement = ranks.SINGLE,
) -> int:
    """Train the run of a folder, log the outcome and return the exit code. `resume` and `trusted` are those of `train`.
    With `reused` the process can train further runs afterwards.
    """
    try:
        if placement.rank > 0:
            _train_follower(folder, resume, trusted, placement)
            return 0
        if reused:
            train(folder, resume=resume, trusted=trusted)
            return 0
        with Requests() as requests:
            lock = runs.acquire(folder)  # held until the process exits
            _train(folder, resume, requests, lock, trusted, placement)
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


def _train_follower(folder: Path, resume: str | None, trusted: bool, placement: ranks.Placement) -> None:
    """Train the share of a rank other than 0, as rank 0 commands, which owns the run folder. `resume` and `trusted` are
    those of `train`. Raises OperantError.
    """
    parent = os.getppid()
    quiet_threads()
    config, problem = None, None
    try:
        config = load_config(
            _read_request(folder, runs.read_json(folder / "run.json"), resume), trusted, placement.local_rank
        )
    except OperantError as error:  # reported to rank 0 once connected
        problem = error
    from operant.config import resuming
    from operant.training import team

    member = team.Member(folder, placement, parent)
    try:
        setup = member.receive_setup()
        if problem is not None:
            raise problem
        if config is not None and setup["do"] != "end":
            placement, named, _ = ranks.resolve_device(config.run, placement, resume=resume is not None)
            set_threads(setup["threads"])
            member.train(setup, config, resuming.comparable(config), find_device(named))
    except BaseException as error:
        member.leave(error)
        raise
    member.leave()


def _train_launched(folder: Path, resume: str | None, trusted: bool, placement: ranks.Placement) -> int:
    """Train as one of the ranks that torchrun or srun started, and return the exit code. Each rank logs to its own
    file, and rank 0 records the exit code. `resume` and `trusted` are those of `train`.
    """
    document, began = runs.read_json(folder / "run.json"), launch.ExitRecord()
    try:
        if not document:
            raise MachineError(
                f"there is no run in {folder}: make one with `operant train --prepare`, in a folder that all "
                "hosts share"
            )
        if resume is None:
            ranks.require_first_start(folder, document, os.environ)
        own_stderr = os.dup(2)
        descriptor = launch.open_log(folder, ranks.log_name(placement.rank))
    except (OperantError, OSError) as error:
        sys.stderr.write(f"error: {safe(error, _LOG_CELLS, lines=True)}\n")
        return error.exit_code if isinstance(error, OperantError) else MachineError.exit_code
    os.umask(0o077)
    os.write(
        own_stderr,
        f"operant: rank {placement.rank} of {placement.ranks} trains {folder}, and prints into "
        f"{ranks.log_name(placement.rank)} there\n".encode(),
    )
    for target in (1, 2):
        os.dup2(descriptor, target)
    launch.mark_session()
    if placement.rank == 0 and not runs.has_trainer(folder):
        launch.forget_ending(runs.Run(folder.name, folder, document))
    code = train_with_exit_code(folder, resume, trusted, placement=placement)
    if placement.rank == 0:
        began.write_ending(folder, code, os.getpid())
    os.write(own_stderr, f"operant: rank {placement.rank} ended with exit code {code}\n".encode())
    return code


class _SafeFormatter(logging.Formatter):
    """Log formatter that escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record), _LOG_CELLS, lines=True)


def write_log() -> None:
    """Configure logging to stderr: Operant's lines and other packages' warnings, with control characters escaped."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SafeFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    log.setLevel(logging.INFO)


@contextlib.contextmanager
def keeping_log(folder: Path, *, alone: bool = False) -> Iterator[None]:
    """Also write the log, and an error that ends the block, to log.txt: of a run in a process with a terminal. `alone`:
    write it nowhere else, in a user's process.
    """
    logger, level, propagates = log if alone else logging.getLogger(), log.level, log.propagate
    if alone:
        log.setLevel(logging.INFO)
        log.propagate = False
    with os.fdopen(launch.open_log(folder), "a", encoding="utf-8", errors="replace") as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(_SafeFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        file.write(f"{launch.session_line()}\n")
        try:
            yield
        except OperantError as error:
            if isinstance(error, CallbackError):
                traceback.print_exception(error.__cause__, file=file)
            file.write(f"error: {safe(error, _LOG_CELLS, lines=True)}\n")
            raise
        except Exception:
            traceback.print_exc(file=file)
            raise
        finally:
            logger.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagates


def main() -> NoReturn:
    """Parse the worker's command line, train, and exit with the code of the outcome."""
    parser = argparse.ArgumentParser(
        prog="python -m operant.training.worker", description="Train the run of a folder (what `operant train` starts)"
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", metavar="last|best|STEP", default=None)
    parser.add_argument("--trust", action="store_true")
    parser.add_argument(
        "--spawn", action="store_true", help="rank 0 starts the others, whatever a launcher's variables say"
    )
    parser.add_argument("--rank", type=int, default=0, help="of those that rank 0 has started")
    parser.add_argument("--ranks", type=int, default=1)
    arguments = parser.parse_args()
    write_log()
    # With Python 3.14's default, numba makes a named semaphore, which the exit below would leave behind with a warning.
    if multiprocessing.get_all_start_methods()[0] == "forkserver":
        multiprocessing.set_start_method("spawn", force=True)
    folder, resume, trusted, placement = arguments.folder, arguments.resume, arguments.trust, ranks.SINGLE
    try:
        if arguments.ranks > 1:
            placement = ranks.Placement(arguments.rank, arguments.ranks, arguments.rank, arguments.ranks)
        elif not arguments.spawn:
            placement = ranks.placement(os.environ)
        code = (train_with_exit_code if placement.launcher is None else _train_launched)(
            folder, resume, trusted, placement=placement
        )
    except OperantError as error:
        sys.stderr.write(f"error: {safe(error, _LOG_CELLS, lines=True)}\n")
        code = error.exit_code
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Exit at once: torch's teardown takes a second, during which the lock would be free and the run neither alive nor
    # ended.
    os._exit(code)


if __name__ == "__main__":
    main()
