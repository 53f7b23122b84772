"""What the commands share: the options that mean the same everywhere, and how results and words are printed. Knows no command.

Data goes to stdout, words to a person to stderr.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from operant.commands import completion

TYPER: Final[dict[str, Any]] = {"no_args_is_help": True, "rich_markup_mode": None, "pretty_exceptions_enable": False}
"""Plain help: the rich one costs 100 ms at every `--help` and is hard on screen readers."""

_RUN = "an id, a unique part of one, a path, latest or live"
RunName = Annotated[str, typer.Argument(metavar="RUN", help=_RUN, autocompletion=completion.runs)]
MaybeRunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help=_RUN, autocompletion=completion.runs)]
RunNames = Annotated[list[str] | None, typer.Argument(metavar="RUN...", help=_RUN, autocompletion=completion.runs)]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ENV] [key=value]...", help="an environment, its Gymnasium id or FILE.py; and values", autocompletion=completion.environments),
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="values to change, such as run.steps=4M")]
ConfigOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="a TOML file, or the name of one that ships", autocompletion=completion.configurations)
]
EnvOption = Annotated[str | None, typer.Option("--env", metavar="FILE.py", help="a file of your own that exports ENV", autocompletion=completion.python_files)]
RootOption = Annotated[str | None, typer.Option("--runs", metavar="FOLDER", help="where runs lie  [default: $OPERANT_RUNS or ./runs]")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="print a JSON document a line")]


def say(line: str) -> None:
    """A line for the person, beside the data."""
    print(line, file=sys.stderr, flush=True)


def red(text: str) -> str:
    """`text` in red, where stderr is a terminal that wants colours."""
    return f"\x1b[31m{text}\x1b[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" else text


def print_json(value: Any) -> None:
    """JSON without the NaN and Infinity that it does not have: they become null."""
    print(json.dumps(_finite(value), indent=2))


def print_json_line(value: Any, *, flush: bool = False) -> None:
    """The same in one line."""
    print(json.dumps(_finite(value)), flush=flush)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """The lines of a table, its head first; the columns in `right` are set to the right."""
    from operant.text import safe

    rights = set(right)
    lines = [tuple(heads), *(tuple(safe(cell, 80) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    padded = (
        [cell.rjust(width) if column in rights else cell.ljust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True))] for line in lines
    )
    return ["  ".join(cells).rstrip() for cells in padded]


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> None:
    """Print a table: see `table`."""
    for line in table(heads, rows, right):
        print(line)
