"""Resume of a run from a checkpoint: checks before a trainer starts, and the record of what it resumes with. Used by
`operant resume` and by the library's `run.resume`. Starts nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from operant import runs
from operant.config import request
from operant.config.request import Request
from operant.errors import BusyError, ConfigError, MachineError, NotFoundError, UsageError
from operant.runs import Run
from operant.runs.checkpoints import Store
from operant.text import count, safe

POINTS = ("best", "last")
"""Checkpoints by name; any other is named by its step."""
_REFUSED = (ConfigError.exit_code, NotFoundError.exit_code, MachineError.exit_code)


def check_start(start: str, option: str = "--from") -> None:
    """Raise UsageError if `start`, the value of `option`, is not "last", "best" or a step."""
    if start not in POINTS and not start.isdecimal():
        raise UsageError(f"{option} is {start!r}; it must be last, best or a step")


def ask(
    run: Run,
    overrides: Sequence[str],
    start: str,
    *,
    consent: Callable[[Request], bool],
    report: Callable[[str], None],
) -> tuple[Request, bool]:
    """Check that a run can be resumed from the checkpoint `start` with `overrides`. Returns the request of the resumed
    run, and the answer of `consent` to it: whether code in the run folder may run. `report` gets a line for each
    damaged checkpoint. Raises BusyError, NotFoundError, UsageError, ConfigError.
    """
    if runs.has_trainer(run.path):
        raise BusyError(runs.busy_message(run.path))
    store = Store(run.checkpoints_path, run_uuid=run.uuid.hex(), report=report)
    if not store.steps():
        settings = f" --config {shlex.quote(runs.display_path(run.config_path))}" if run.config_path.is_file() else ""
        raise NotFoundError(f"{safe(run.id)} has no checkpoint to resume from. To start again: operant train{settings}")
    which: str | int = int(start) if start.isdecimal() else start
    asked, first = request.to_resume(run.config_path, overrides), store.newest(which)
    if first is None:
        store.load_files(which)  # raises with the problem of the existing checkpoints
    trusted = consent(asked)
    planned = (
        _steps_asked(asked, first and first.config, trusted) if overrides else runs.integer_of(run.document, "steps")
    )
    if planned is not None and first is not None and first.manifest.step >= planned:
        done = first.manifest.step
        more = count(2 * done).replace(" ", "")
        decay = (
            f" algo.anneal_steps={more} (without the second key the learning rate stays at 0, the end of its decay)"
            if asked.anneals()
            else ""
        )
        typed = any(word.partition("=")[0].strip() == "run.steps" for word in overrides)
        progress = f"{done:,} steps, and run.steps is {planned:,}" if typed else f"its {planned:,} steps"
        raise UsageError(
            f"{safe(run.id)} has done {progress}. To continue: operant resume {safe(run.short)} run.steps={more}{decay}"
        )
    return asked, trusted


class Recorded(NamedTuple):
    """Files of a run before its resume was recorded."""

    run: Run
    ending: dict[str, object]
    metrics_file: int | None

    def restore_if_refused(self, code: int) -> None:
        """Restore the run's documents if the worker ended with `code` before it wrote anything but its identity."""
        run = self.run
        if code in _REFUSED and runs.probe(run.path) is False and _inode(run.metrics_path) == self.metrics_file:
            runs.write_json(run.path / "run.json", run.document)
            if self.ending:
                runs.write_json(run.exit_path, self.ending)
            else:
                run.exit_path.unlink(missing_ok=True)


def record(run: Run, asked: Request) -> Recorded:
    """Write the request of a resume to the run's document, from which the worker reads it."""
    before = Recorded(run, runs.read_json(run.exit_path), _inode(run.metrics_path))
    own = run.document.get("request")
    runs.update_document(run.path, request={**(own if isinstance(own, dict) else {}), **asked.resume_document()})
    return before


def _inode(path: Path) -> int | None:
    """Inode of a file, to notice its replacement; None if it does not exist."""
    return path.stat().st_ino if path.exists() else None


def _steps_asked(asked: Request, checkpoint: Path | None, trusted: bool) -> int:
    """Planned steps of a resume with the given overrides. `trusted` allows code that is not known to be this user's.
    Raises ConfigError for overrides with which the run cannot resume from a checkpoint whose configuration file is
    `checkpoint`.
    """
    from operant.compute.runtime import quiet_threads

    quiet_threads()
    from operant.config import resuming

    return resuming.check(asked, checkpoint, trusted).run.steps
