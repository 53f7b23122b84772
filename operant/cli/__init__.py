"""The `operant` command: which command is meant, and how it ends. Knows no command: they are in operant/cli/program.py.

`main` holds the one `except` for what a user can cause. Nothing is imported before it is needed: `operant monitor` has its first picture on the screen
in the time that typer and the other commands would take to be imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from operant.errors import MachineError, OperantError

_SCREENS = frozenset(("monitor", "--monitor", "play", "--render"))  # words of the command line that need the package `monitor`


def main() -> None:
    """The program: runs the command line and ends the process with its exit code."""
    try:
        if _SCREENS.intersection(sys.argv[1:]):
            _check_monitor()
        if sys.argv[1:2] == ["monitor"] and "_OPERANT_COMPLETE" not in os.environ:
            from monitor import command

            sys.exit(command.main(sys.argv[2:]))
        from operant.cli import program

        sys.exit(program.run())
    except OperantError as error:
        from operant.cli.common import fail

        fail(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _check_monitor() -> None:
    """Raise MachineError where `import monitor` would find another package of this name than the one that is installed with this one."""
    found = importlib.util.find_spec("monitor")
    own = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "monitor", "__init__.py")
    if found is None or found.origin is None or os.path.realpath(found.origin) != os.path.realpath(own):
        there = "no package" if found is None else found.origin or "a folder without an __init__.py"
        raise MachineError(
            f"Operant's screens are a package called 'monitor', at {own}, but `import monitor` finds {there}: "
            "uninstall the other one (pip uninstall monitor), or rename it if it is a file of your own"
        )
