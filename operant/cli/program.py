"""All commands in one application. Knows only where they are."""

from __future__ import annotations

import io
import re
from typing import Annotated, Any, Final

import typer

from operant import __version__
from operant.cli import comparing, exporting, look, machine, playing, speed, steering, sweeping, training, upkeep
from operant.cli.common import TYPER, out, say

app = typer.Typer(
    **TYPER, add_completion=True, help="Train reinforcement-learning agents on a GPU or a CPU, and monitor them."
)
app.add_typer(training.app)
app.add_typer(look.app)
app.add_typer(playing.app)
app.add_typer(steering.app)
app.add_typer(sweeping.app)
app.add_typer(speed.app)
app.add_typer(exporting.app)
app.add_typer(comparing.app)
app.add_typer(upkeep.app)
app.add_typer(machine.app)

_UsageError: Final[Any] = typer.BadParameter.__base__
"""What typer raises for words that it cannot make out. It has the class from a click of its own, and no name for it."""

_NO_NUMBER: Final = re.compile(r"is not a valid (int|float)(?:eger)?(?: range)?(?=\.$)", re.MULTILINE)
"""Its words for a value that should be one."""


def _version(wanted: bool) -> None:
    if wanted:
        out(f"operant {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def run() -> int:
    """Run the command line and return its exit code. Raises what the commands do."""
    try:
        return app(prog_name="operant", standalone_mode=False) or 0
    except _UsageError as error:
        told = io.StringIO()  # the words that were typed are in it: a pattern may have put the names of files there
        error.show(told)
        say(
            *_NO_NUMBER.sub(
                lambda found: "is not a whole number" if found[1] == "int" else "is not a number", told.getvalue()
            ).splitlines()
        )
        return int(error.exit_code)
    except typer.Abort:
        say("Aborted!")
        return 1
