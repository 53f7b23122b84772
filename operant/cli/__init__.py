"""Entry point of the `operant` command: dispatch, error messages and exit codes. Commands: operant/cli/program.py.

`main` holds the only `except` for errors that a user can cause. Imports are delayed: `operant monitor` draws its first
frame in the time that importing typer and the other commands would take.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from typing import NoReturn, TextIO

from operant.errors import MachineError, OperantError

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
# words of the command line that need the package `monitor`
_SCREENS = frozenset(("monitor", "--monitor", "play", "--render"))


def main() -> None:
    """Run the `operant` command and end the process with its exit code. Errors that a user can cause are printed
    without a traceback.
    """
    _open_closed_streams()
    try:
        _check_folder()
        if _SCREENS.intersection(sys.argv[1:]):
            _check_monitor()
        if sys.argv[1:2] == ["monitor"] and "_OPERANT_COMPLETE" not in os.environ:
            from monitor import command

            code = command.main(sys.argv[2:])
        else:
            from operant.cli import program

            code = program.run()
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(code)
    except OperantError as error:
        _exit_with(error, error.exit_code)
    except OSError as error:
        if error.errno not in (errno.EPIPE, *_FULL):
            raise
        if error.filename is not None:
            _exit_with(
                f"{error.filename} cannot be written ({error.strerror}): free some disk space", MachineError.exit_code
            )
        if error.errno == errno.EPIPE:  # the reader of the output has gone
            _exit_with(None, 1)
        _exit_with(f"the output cannot be written ({error.strerror}): free some disk space", MachineError.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _exit_with(problem: object, code: int) -> NoReturn:
    """Print `problem` to stderr (None: nothing), flush the output and end the process with exit code `code`, even if
    the output cannot be written.
    """
    _flush(sys.stdout, None)
    _flush(sys.stderr, problem)
    sys.exit(code)


def _flush(stream: TextIO | None, problem: object) -> None:
    """Print `problem` (None: nothing) as an error message and flush `stream`. Errors of the stream are ignored."""
    if stream is None:
        return
    try:
        if problem is not None:
            from operant.cli.common import fail

            fail(problem)
        stream.flush()
    except OSError:
        # Otherwise the interpreter flushes again at exit and ends with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that are closed (`2>&-`). Otherwise the next opened file, such as a lock,
    would get their descriptor, and libraries would write into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _check_folder() -> None:
    """Raise MachineError if the working directory was deleted: relative paths fail then, and libraries abort."""
    try:
        os.getcwd()
    except OSError as error:
        raise MachineError(f"the working directory cannot be used ({error.strerror}): change to another one") from None


def _check_monitor() -> None:
    """Raise MachineError if `import monitor` would import another package than the one installed with Operant."""
    spec = importlib.util.find_spec("monitor")
    own = os.path.join(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "monitor", "__init__.py"
    )
    if spec is None or spec.origin is None or os.path.realpath(spec.origin) != os.path.realpath(own):
        found = "no package" if spec is None else spec.origin or "a folder without an __init__.py"
        raise MachineError(
            f"Operant's screens are in the package 'monitor' at {own}, but `import monitor` finds {found}: uninstall "
            "the other package (pip uninstall monitor), or rename it if it is your own file"
        )
