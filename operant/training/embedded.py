"""Training within a user's own process, as runs with callbacks need it. The process continues afterwards: its threads,
signal handlers, logging and memory are as before.

A run trained here differs from another in its process alone: the same files, monitor, requests and resume. The end of
the process, or a crash of it, ends the run, which then resumes from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator

from operant.errors import CallbackError, OperantError, StoppedError
from operant.runs import Run, launch
from operant.training import worker
from operant.training.callbacks import Hook
from operant.training.requests import KILLED_CODE


def train(run: Run, *, resume: str | None, hook: Hook, trusted: bool = False) -> int:
    """Train a run here until its end, and return the exit code that its own process would have: 0, or 130 for a
    requested stop. `resume` names a checkpoint ("last", "best" or a step), None: a new run; `trusted`: code in the run
    folder may run.

    Raises the exception of a callback, OperantError for a failure, KeyboardInterrupt after a stop by Ctrl-C.
    """
    record, raised, received, code = launch.ExitRecord(), None, 0, 1
    try:
        with worker.keeping_log(run.path, alone=True), _same_threads():
            worker.train(run.path, resume=resume, trusted=trusted, hook=hook)
        code = 0
    except CallbackError as error:
        code, raised = error.exit_code, error.__cause__
    except StoppedError as error:
        code, received = error.exit_code, error.signal
    except OperantError as error:
        code = error.exit_code
        raise
    except KeyboardInterrupt:
        code = KILLED_CODE
        raise
    finally:
        if os.path.isdir(run.path):
            record.write_ending(run.path, code, os.getpid())
        _release_memory()
    if raised is not None:
        raise raised
    if received == signal.SIGINT:
        raise KeyboardInterrupt
    if received:
        signal.raise_signal(received)  # for the user's own handler, or the end of the process
    return code


@contextlib.contextmanager
def _same_threads() -> Iterator[None]:
    """Restore the numbers of threads of torch and numba after the block, where the process had imported them."""
    torch, numba = sys.modules.get("torch"), sys.modules.get("numba")
    before = None if torch is None else torch.get_num_threads(), None if numba is None else numba.get_num_threads()
    try:
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(before[0])
        if numba is not None:
            numba.set_num_threads(before[1])


def _release_memory() -> None:
    """Release the run's tensors, graphs and files, which are in reference cycles."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
