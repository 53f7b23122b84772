"""Typer application with all commands."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import typer
import typer.core

from operant import __version__
from operant.cli import comparing, exporting, look, machine, playing, speed, steering, sweeping, training, upkeep
from operant.cli.common import TYPER, out, say

_GROUPS: Final = {
    "Train": ("train", "resume", "stop", "pause", "unpause", "checkpoint", "wait", "sweep"),
    "Watch": ("monitor", "runs", "show", "logs", "eval", "render", "play", "zoo"),
    "Keep": ("note", "du", "archive", "restore", "rm"),
    "Compare": ("compare", "plot", "report"),
    "Share": ("export",),
    "Check": ("envs", "config", "check", "doctor", "bench", "profile", "docs"),
}
"""Commands in the help, by purpose."""


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the names of commands by purpose, in the order of the help; unlisted ones come last."""
    left = list(names)
    groups = {title: [name for name in listed if name in left] for title, listed in _GROUPS.items()}
    others = [name for name in left if not any(name in group for group in groups.values())]
    return {title: group for title, group in {**groups, "Other": others}.items() if group}


class _Program(typer.core.TyperGroup):
    """Group of all commands, whose help lists them by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        shown = {name: one for name, one in self.commands.items() if not one.hidden}
        width = max(map(len, shown))
        for title, names in grouped(shown).items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), shown[name].get_short_help_str(limit)) for name in names])


app = typer.Typer(
    **TYPER,
    cls=_Program,
    add_completion=True,
    help="Train reinforcement-learning agents on a GPU or a CPU, and monitor them.",
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
"""Usage error of typer, whose class it does not export."""

_NOT_A_NUMBER: Final = re.compile(r"is not a valid (int|float)(?:eger)?(?: range)?(?=\.$)", re.MULTILINE)
"""Typer's message for a value that should be a number."""


def _version(wanted: bool) -> None:
    """Print Operant's version and exit, if the option is given."""
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


def _key_hint(error: Any) -> list[str]:
    """Return a hint for an unknown option that is a key of the configuration, such as --lr; [] for any other error."""
    option = getattr(error, "option_name", None)
    command = getattr(error.ctx, "command", None)
    if option is None or not {"words", "overrides"} & {parameter.name for parameter in getattr(command, "params", ())}:
        return []
    from operant.config import keys

    key = keys.meant_by(option)
    return [f"{option} is a key of the configuration: write {key}=VALUE, without --"] if key is not None else []


def _app_of(words: Sequence[str]) -> typer.Typer:
    """Return the application for a command line's words: with the named command alone, or with all commands if none is
    named (help, completion, a typing error). Building the options of all commands takes a sixth of a start.
    """
    for group in app.registered_groups if words else ():
        members: Any = group.typer_instance
        commands = [one for one in members.registered_commands if words[0] == (one.name or one.callback.__name__)]
        groups = [one for one in members.registered_groups if one.name == words[0]]
        if commands or groups:
            found = typer.Typer(**TYPER, add_completion=False)
            found.registered_commands, found.registered_groups = commands, groups
            found.registered_callback = app.registered_callback
            return found
    return app


def run() -> int:
    """Run the command line and return its exit code. Usage errors are printed; errors of the commands propagate."""
    words = sys.argv[1:]
    try:
        return _app_of(words)(words, prog_name="operant", standalone_mode=False) or 0
    except _UsageError as error:
        message = io.StringIO()  # quotes the typed words, so it must be sanitised by `say`
        error.show(message)
        text = _NOT_A_NUMBER.sub(
            lambda match: "is not a whole number" if match[1] == "int" else "is not a number", message.getvalue()
        )
        say(*text.splitlines(), *_key_hint(error))
        return int(error.exit_code)
    except typer.Abort:
        say("Aborted!")
        return 1
