"""Errors reported to users, each with the exit code of the command line.

OperantError                 1   failed in training
├── ConfigError              2   anything wrong in a configuration
├── ModelError               2   a robot's model, or a task on it, cannot be built
├── UsageError               2   anything wrong on the command line
├── UntrustedError           2   a run's configuration would import code that is not known to be this user's
├── NotFoundError            3   a named run, checkpoint or file does not exist, or the name is ambiguous
├── MachineError             4   the machine lacks something: CUDA, disk space, a writable folder
├── DivergedError            5   a loss or a parameter is not finite
├── BusyError                6   the run folder has a running trainer
├── DeviceError              7   GPU fault or out of memory
├── CallbackError            1   a callback of the library raised, which its caller gets
├── EnvironmentFailedError   1   an outside environment raised, hung, died, or returned a wrong value
├── BadFileError             3   a named run, checkpoint or file is damaged or of an incompatible version
└── StoppedError           130   stopped with a checkpoint
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class OperantError(Exception):
    """Base class of the errors that are reported to the user by their message. `exit_code`: exit code of the command
    line.
    """

    exit_code: ClassVar[int] = 1

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython and notebooks show for this error: its message, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(OperantError):
    """Raised for one or more problems of a configuration, reported together: one line each, followed by `advice`."""

    exit_code = 2

    def __init__(self, source: str, problems: Sequence[str], *, advice: str | None = None) -> None:
        self.source, self.problems, self.advice = source, tuple(problems), advice
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        super().__init__(
            f"{source} has {count}\n"
            + "\n".join(f"  {line}" for line in (*self.problems, *((advice,) if advice else ())))
        )


class ModelError(OperantError):
    """Raised for a robot's model that cannot be read or is not covered, and for a task that does not fit its model."""

    exit_code = 2


class UsageError(OperantError):
    """Raised for an invalid command line, or an invalid argument of the library."""

    exit_code = 2


class UntrustedError(OperantError):
    """Raised if a run's configuration names code that is not known to be this user's."""

    exit_code = 2


class NotFoundError(OperantError):
    """Raised if a run, checkpoint or file does not exist, or if a name is ambiguous."""

    exit_code = 3


class MachineError(OperantError):
    """Raised if the machine cannot do what is asked: no CUDA although requested, a full disk, a folder that is not
    writable.
    """

    exit_code = 4


class DivergedError(OperantError):
    """Raised if a loss or a parameter is not finite."""

    exit_code = 5


class BusyError(OperantError):
    """Raised if a trainer is working on the run already."""

    exit_code = 6


class DeviceError(OperantError):
    """Raised if the GPU failed, or its memory is exhausted."""

    exit_code = 7


class CallbackError(OperantError):
    """A user's callback raised an exception, which is the cause (`__cause__`) of this one."""


class EnvironmentFailedError(OperantError):
    """Raised if an outside environment raised an error, hung, died, or returned a value that is not finite.

    `detail` is its traceback, for the log.
    """

    def __init__(self, sentence: str, *, detail: str = "") -> None:
        super().__init__(sentence)
        self.detail = detail


class BadFileError(OperantError):
    """Raised if a metrics file, checkpoint or archive is unusable: damaged, truncated, or of an incompatible
    version.
    """

    exit_code = 3


class StoppedError(OperantError):
    """Training was stopped by request, after a checkpoint. `signal`: number of the signal, 0 for a request."""

    exit_code = 130

    def __init__(self, sentence: str, *, signal: int = 0) -> None:
        super().__init__(sentence)
        self.signal = signal
