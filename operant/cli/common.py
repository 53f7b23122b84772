"""Shared parts of the commands: common options, and printing of results and messages.

Data goes to stdout, messages to stderr. All output of commands passes through this module (progress lines:
operant/display/progress.py), which removes control characters from names and texts that come from files.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from operant.cli import completion
from operant.errors import UntrustedError, UsageError
from operant.text import safe

Result = TypeVar("Result")
TYPER: Final[dict[str, Any]] = {"no_args_is_help": True, "rich_markup_mode": None, "pretty_exceptions_enable": False}
"""Plain help texts: rich ones add 100 ms to every `--help` and suit screen readers less."""

_RUN = "an id, a unique part of one, a path, latest or live"
RunName = Annotated[str, typer.Argument(metavar="RUN", help=_RUN, autocompletion=completion.run_ids)]
MaybeRunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help=_RUN, autocompletion=completion.run_ids)]
RunNames = Annotated[list[str] | None, typer.Argument(metavar="RUN...", help=_RUN, autocompletion=completion.run_ids)]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ENV] [key=value]...",
        help="an environment or FILE.py, and overrides",
        autocompletion=completion.environments,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value]...", help="overrides, such as run.steps=4M", autocompletion=completion.keys),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="a TOML file, or a shipped recipe's name",
        autocompletion=completion.configurations,
    ),
]
EnvOption = Annotated[
    str | None,
    typer.Option(
        "--env", metavar="FILE.py", help="a file that exports your own ENV", autocompletion=completion.python_files
    ),
]
RootOption = Annotated[
    str | None, typer.Option("--runs", metavar="FOLDER", help="folder of the runs  [default: $OPERANT_RUNS or ./runs]")
]
TrustOption = Annotated[bool, typer.Option("--trust", help="run code of a run folder that is not known to be yours")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="print JSON Lines")]


_LINE_CELLS = 4000


def out(*lines: object, flush: bool = False) -> None:
    """Print lines of data to stdout as plain text; line breaks within a line are removed. `flush`: write them
    immediately.
    """
    for line in lines:
        print(safe(line, _LINE_CELLS), flush=flush)


def say(*lines: object) -> None:
    """Print messages to stderr as plain text, one line each."""
    for line in lines if sys.stderr is not None else ():  # None if closed: `print` would fall back to stdout
        print(safe(line, _LINE_CELLS), file=sys.stderr, flush=True)


def fail(problem: object) -> None:
    """Print `problem` to stderr after `error:`, which is red on a terminal with colours."""
    if sys.stderr is None:
        return
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    mark = "\x1b[31merror:\x1b[0m" if coloured else "error:"
    print(f"{mark} {safe(problem, _LINE_CELLS, lines=True)}", file=sys.stderr, flush=True)


def consented(trust: bool, action: Callable[[bool], Result]) -> Result:
    """Return `action(trust)`. If that raises UntrustedError on a terminal, ask the user whether to run the code: after
    a yes return `action(True)`, after a no raise UntrustedError.
    """
    try:
        return action(trust)
    except UntrustedError as error:
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
            raise
        if not confirmed(f"{error}\nRun it?"):
            raise UntrustedError("the code was not run") from None
    return action(True)


def confirmed(question: str) -> bool:
    """Ask a yes-no question on the terminal and return whether the answer is yes."""
    print(f"{safe(question, _LINE_CELLS, lines=True)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_json(value: Any) -> None:
    """Print a value as indented JSON; NaN and infinities become null."""
    print(json.dumps(_finite(value), indent=2))


def print_json_line(value: Any, *, flush: bool = False) -> None:
    """Print a value as JSON in one line; NaN and infinities become null. `flush` writes it immediately."""
    print(json.dumps(_finite(value)), flush=flush)


def _finite(value: Any) -> Any:
    """Return a value ready for JSON: NaN and infinities become None, paths strings, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Format a table as lines, the column titles `heads` first. Columns with an index in `right` are right-aligned."""
    rights = set(right)
    lines = [tuple(heads), *(tuple(safe(cell, 80) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    padded = (
        [
            cell.rjust(width) if column in rights else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    )
    return ["  ".join(cells).rstrip() for cells in padded]


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> None:
    """Print a table to stdout, the column titles `heads` first. Columns with an index in `right` are right-aligned."""
    out(*table(heads, rows, right))


def check_free(path: Path, force: bool, *, in_place: bool = False) -> None:
    """Raise UsageError if an output file exists at `path`, unless `force` allows replacing it.

    Folders, devices and pipes are never replaced; devices and pipes may be written `in_place`.
    """
    # /dev/stdout may be a link to a plain file
    system = path.parent.resolve().parts[:2] == ("/", "proc") or path.parent.resolve() == Path("/dev")
    special = path.is_dir() or (path.exists() and (system or not path.is_file()) and not in_place)
    if special or (path.exists() and not force):
        raise UsageError(
            f"{safe(path, 400)} already exists: "
            + ("name a file with --out" if special else "choose another --out, or give --force")
        )
