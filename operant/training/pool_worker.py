"""Pool worker: trains one run after another in one process, with imports and compiled kernels kept in memory.

`python -m operant.training.pool_worker` reads one line of JSON per run from stdin, {"run": folder, "resume": null,
"trusted": false}, and answers on stdout with {"exit": code}. Each run logs to its own log.txt. The process ends with
stdin, after a fault that could affect the next run, and after a run that was stopped during its setup, when imports or
compilations may be incomplete. operant/runs/pool.py starts and supervises it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from pathlib import Path

from operant import runs
from operant.errors import DeviceError, MachineError, OperantError, StoppedError
from operant.runs import launch
from operant.training import worker

log = logging.getLogger("operant")
# unexpected error, GPU fault, out of memory: the next run gets a new process
_UNSOUND = OperantError.exit_code, DeviceError.exit_code


def _train_run(folder: Path, resume: str | None, trusted: bool, own_log: int) -> int:
    """Train the run of a folder, with its log.txt as stdout and stderr, and return the exit code. `own_log` is the
    descriptor of this process's stderr, restored afterwards; `trusted` allows code in the run folder to run.
    """
    try:
        descriptor = launch.open_log(folder)
    except (OSError, MachineError) as error:
        log.error("%s", error)
        return MachineError.exit_code
    for target in (1, 2):
        os.dup2(descriptor, target)
    os.close(descriptor)
    try:
        launch.mark_session()
        return worker.train_with_exit_code(folder, resume, trusted, reused=True)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for target in (1, 2):
            os.dup2(own_log, target)


def _was_stopped_early(folder: Path, code: int) -> bool:
    """Whether a run with exit code `code` was stopped before its first iteration: then its document (run.json) names no
    process.
    """
    return code == StoppedError.exit_code and runs.integer_of(runs.read_json(folder / "run.json"), "pid") is None


def _release_memory() -> None:
    """Free the finished run's tensors, graphs and files, which are in reference cycles: the next run may need all GPU
    memory. Surviving objects (modules, compiled kernels) are frozen, so that later collections skip them.
    """
    gc.collect()
    gc.freeze()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def main() -> None:
    """Train the runs named on stdin, one line each, until stdin ends or the process may be unsound; answer with exit
    codes on stdout.
    """
    answers, own_log = os.dup(1), os.dup(2)
    os.dup2(2, 1)
    worker.write_log()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        code = _train_run(Path(asked["run"]), asked["resume"], asked["trusted"], own_log)
        try:
            os.write(answers, json.dumps({"exit": code}).encode() + b"\n")
        except BrokenPipeError:  # the supervisor has exited
            break
        if code in _UNSOUND or _was_stopped_early(Path(asked["run"]), code):
            break
        _release_memory()
    logging.shutdown()
    os._exit(0)  # torch's teardown takes a second


if __name__ == "__main__":
    main()
