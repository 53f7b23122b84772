"""The `operant` command: which command is meant, and how it ends. Knows no command: they are in operant/cli/program.py.

`main` holds the one `except` for what a user can cause. Nothing is imported before it is needed: `operant monitor` has its first picture on the screen
in the time that typer and the other commands would take to be imported.
"""

from __future__ import annotations

import os
import sys

from operant.errors import OperantError


def main() -> None:
    """The program: runs the command line and ends the process with its exit code."""
    try:
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

