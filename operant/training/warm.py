"""A worker that trains one run after another: `python -m operant.training.warm`. What it imported and compiled for one
is warm for the next.

Takes a line of JSON a run from stdin, {"run": folder, "resume": null, "trusted": false}, and answers each on stdout
with {"exit": code}. A run's output goes to its own log.txt. Ends where stdin ends, after a fault that could reach the
next run, and after a run that was stopped while it was made ready: what it imported or compiled may be half there. Who
gives it runs, and what becomes of them, is operant/runs/pool.py.
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
# an unexpected error, a GPU fault, no memory: the next run gets a fresh process
_UNSOUND = OperantError.exit_code, DeviceError.exit_code


def _trained(folder: Path, resume: str | None, trusted: bool, own_log: int) -> int:
    """Train the run of a folder, with its log for output; the exit code."""
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
        return worker.worked(folder, resume, trusted, goes_on=True)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for target in (1, 2):
            os.dup2(own_log, target)


def _broken_off(folder: Path, code: int) -> bool:
    """Whether a run was stopped before its first iteration: then its document names no process (`worker.work`)."""
    return code == StoppedError.exit_code and runs.integer_of(runs.read_json(folder / "run.json"), "pid") is None


def _tidy() -> None:
    """Give back what the run held: its tensors, graphs and files are in cycles, and on a GPU the next run may need all
    of the memory.

    What is alive then stays: modules, compiled kernels. The collector need not look through it again.
    """
    gc.collect()
    gc.freeze()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def main() -> None:
    """Train what stdin names until it ends."""
    answers, own_log = os.dup(1), os.dup(2)
    os.dup2(2, 1)
    worker.write_log()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        code = _trained(Path(asked["run"]), asked["resume"], asked["trusted"], own_log)
        try:
            os.write(answers, json.dumps({"exit": code}).encode() + b"\n")
        except BrokenPipeError:  # the supervisor is gone
            break
        if code in _UNSOUND or _broken_off(Path(asked["run"]), code):
            break
        _tidy()
    logging.shutdown()
    os._exit(0)  # taking torch apart costs a second


if __name__ == "__main__":
    main()
