"""The errors a user can cause or meet, each with the exit code the command line ends with. Knows nothing of what raises
them.

OperantError                 1   failed in training
├── ConfigError              2   anything wrong in a configuration
├── UsageError               2   anything wrong on the command line
├── UntrustedError           2   a run would have code imported that is not known to be this user's
├── NotFoundError            3   a named run, checkpoint or file does not exist, or the name is ambiguous
├── MachineError             4   the machine does not fit: no CUDA where asked for, disk full, read-only folder
├── DivergedError            5   a loss or a parameter is not finite
├── BusyError                6   the run folder has a living trainer
├── DeviceError              7   GPU fault or out of memory
├── EnvironmentFailedError   1   an outside environment raised, hangs, died, or showed a number that is not finite
├── BadFileError             3   a named run, checkpoint or file is there, but damaged or of another version
└── StoppedError           130   stopped with a checkpoint
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class OperantError(Exception):
    """An error with a sentence for the user. `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 1


class ConfigError(OperantError):
    """One or more problems of a configuration, all reported at once. `problems` holds a line each, `advice` one that
    closes the message.
    """

    exit_code = 2

    def __init__(self, source: str, problems: Sequence[str], *, advice: str | None = None) -> None:
        self.source, self.problems, self.advice = source, tuple(problems), advice
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        super().__init__(
            f"{source} has {count}\n"
            + "\n".join(f"  {line}" for line in (*self.problems, *((advice,) if advice else ())))
        )


class UsageError(OperantError):
    """Something wrong on the command line."""

    exit_code = 2


class UntrustedError(OperantError):
    """A run's configuration names code that is not known to be this user's."""

    exit_code = 2


class NotFoundError(OperantError):
    """A named run, checkpoint or file does not exist, or the name fits several."""

    exit_code = 3


class MachineError(OperantError):
    """The machine does not fit: no CUDA where asked for, no room on the disk, a folder that cannot be written."""

    exit_code = 4


class DivergedError(OperantError):
    """A loss or a parameter is not finite."""

    exit_code = 5


class BusyError(OperantError):
    """The run folder has a living trainer."""

    exit_code = 6


class DeviceError(OperantError):
    """A GPU fault, or out of memory on the device."""

    exit_code = 7


class EnvironmentFailedError(OperantError):
    """An outside environment raised, hangs, died, or showed a number that is not finite. `detail` is its traceback, for
    the log.
    """

    def __init__(self, sentence: str, *, detail: str = "") -> None:
        super().__init__(sentence)
        self.detail = detail


class BadFileError(OperantError):
    """A metrics file, a checkpoint or an archive that cannot be used: damaged, truncated, or of an incompatible
    version.
    """

    exit_code = 3


class StoppedError(OperantError):
    """Training was stopped by request, after a checkpoint."""

    exit_code = 130
