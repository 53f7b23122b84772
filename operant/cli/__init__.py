"""The `operant` command: which command is meant, and how it ends. Knows no command: they are in operant/cli/program.py.

`main` holds the one `except` for what a user can cause. Nothing is imported before it is needed: `operant monitor` has
its first picture on the screen in the time that typer and the other commands would take to be imported.
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
    """The program: runs the command line and ends the process with its exit code."""
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
        _end(error, error.exit_code)
    except OSError as error:
        if error.errno not in (errno.EPIPE, *_FULL):
            raise
        if error.filename is not None:
            _end(f"{error.filename} cannot be written ({error.strerror}): make room", MachineError.exit_code)
        if error.errno == errno.EPIPE:  # who was told has gone
            _end(None, 1)
        _end(f"the output cannot be written ({error.strerror}): make room", MachineError.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _end(problem: object, code: int) -> NoReturn:
    """End the process with `code`, after telling the problem where there is one; an output that cannot be written
    changes nothing of it.
    """
    _flush(sys.stdout, None)
    _flush(sys.stderr, problem)
    sys.exit(code)


def _flush(stream: TextIO | None, problem: object) -> None:
    """Write what a stream holds, and a problem where there is one, if it can be."""
    if stream is None:
        return
    try:
        if problem is not None:
            from operant.cli.common import fail

            fail(problem)
        stream.flush()
    except OSError:
        # or the interpreter would try once more at its end, and end with 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _check_folder() -> None:
    """Raise MachineError where the working directory is gone: names of files mean nothing then, and libraries end the
    process.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise MachineError(f"the working directory cannot be used ({error.strerror}): change to another one") from None


def _check_monitor() -> None:
    """Raise MachineError where `import monitor` would find another package of this name than the one that is installed
    with this one.
    """
    found = importlib.util.find_spec("monitor")
    own = os.path.join(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "monitor", "__init__.py"
    )
    if found is None or found.origin is None or os.path.realpath(found.origin) != os.path.realpath(own):
        there = "no package" if found is None else found.origin or "a folder without an __init__.py"
        raise MachineError(
            f"Operant's screens are a package called 'monitor', at {own}, but `import monitor` finds {there}: "
            "uninstall the other one (pip uninstall monitor), or rename it if it is a file of your own"
        )
