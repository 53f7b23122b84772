"""All commands in one application. Knows only where they are."""

from __future__ import annotations

from typing import Annotated

import typer

from operant import __version__
from operant.commands import look, machine, playing, speed, steering, training
from operant.commands.words import TYPER

app = typer.Typer(**TYPER, add_completion=True, help="Train reinforcement-learning agents on one GPU, or on a CPU, and watch them from outside.")
app.add_typer(training.app)
app.add_typer(look.app)
app.add_typer(playing.app)
app.add_typer(steering.app)
app.add_typer(speed.app)
app.add_typer(machine.app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"operant {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False) -> None:
    pass
