"""The command `operant monitor`: select the run, check the terminal, open the screen or print text. Standard library
only until a screen is opened.

Errors are OperantError with a sentence and an exit code; the caller prints them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from monitor import text_output
from monitor.screen import theme_choice
from operant import runs
from operant.errors import BadFileError, NotFoundError, UsageError
from operant.text import safe

if TYPE_CHECKING:
    from monitor.data.listing import RunListing
    from monitor.data.snapshot import RunRow, Snapshot, Source

SMALLEST = (40, 10)
"""Minimum terminal size, (columns, lines)."""
_ONCE = (100, 30)  # of `--once` without a terminal
_FPS = (1, 20)


def main(arguments: list[str]) -> int:
    """Run `operant monitor` with `arguments` (those after the word `monitor`) and return its exit code.

    Raises OperantError for user errors, SystemExit(0) after `--help`.
    """
    options = _parser().parse_args(arguments)
    fps = _fps(options.fps)
    if options.run is not None and options.latest:
        raise UsageError(f"give a run ('{safe(options.run, 80)}') or --latest, not both")
    scope = runs.scope(options.runs)
    path = _choose("latest" if options.latest else options.run, scope)
    if options.once or not has_terminal():
        return _without_screen(path, scope, once=options.once, ascii_only=options.ascii, theme=options.theme)
    return _open(path, scope, readonly=options.readonly, ascii_only=options.ascii, fps=fps, theme=options.theme)


def open_monitor(run: runs.Run, *, readonly: bool = False, ascii_only: bool = False, fps: int | None = None) -> int:
    """Show one run until the user quits, and return 0. Without a terminal, print a line every five seconds until the
    run ends and return the run's exit code. `readonly`: send the trainer no requests; `ascii_only`: draw with ASCII
    characters; `fps`: maximum frame rate (None: $OPERANT_FPS or 4).

    Raises UsageError if the terminal is too small.
    """
    if not has_terminal():
        return _without_screen(run.path, runs.Scope(run.path.parent))
    return _open(run.path, runs.Scope(run.path.parent), readonly=readonly, ascii_only=ascii_only, fps=fps or _fps(None))


def has_terminal() -> bool:
    """Whether standard input and output are a terminal on which a screen can be drawn."""
    if os.environ.get("TERM", "") in ("", "dumb"):
        return False
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return all(stream.isatty() for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__) if stream is not None)
    return False


def _parser() -> argparse.ArgumentParser:
    """Build the argument parser of `operant monitor`."""
    parser = _Parser(
        prog="operant monitor",
        allow_abbrev=False,
        description="Show a run, a group or a sweep, live or ended. Quitting the monitor does not stop what it shows.",
        epilog="Without RUN: the run that is training; a list to choose from if several are; else the newest.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="run id, unique part of one, path, `latest` or `live`; or the name of a group or sweep",
    )
    parser.add_argument("--latest", action="store_true", help="the newest run")
    parser.add_argument("--once", action="store_true", help="print the screen once as text and exit")
    parser.add_argument("--readonly", action="store_true", help="disable the keys that stop, pause or checkpoint a run")
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    parser.add_argument(
        "--fps", metavar="N", help=f"maximum frames per second, {_FPS[0]} to {_FPS[1]}  [default: $OPERANT_FPS or 4]"
    )
    parser.add_argument(
        "--theme",
        choices=theme_choice.NAMES,
        help="colour theme  [default: the one last chosen with the key t, else dark]",
    )
    parser.add_argument(
        "--runs", metavar="FOLDER", help="folder that contains the runs  [default: $OPERANT_RUNS or ./runs]"
    )
    return parser


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError instead of printing the usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message instead of exiting."""
        raise UsageError(f"{safe(message, 400)}. All options: operant monitor --help")


def _fps(given: str | None) -> int:
    """Return the maximum frame rate in Hz: the option's value, else $OPERANT_FPS, else 4. Raises UsageError."""
    source, value = ("--fps", given) if given is not None else ("$OPERANT_FPS", os.environ.get("OPERANT_FPS") or "4")
    if not value.isascii() or not value.isdecimal() or not _FPS[0] <= int(value[:9]) <= _FPS[1]:
        raise UsageError(f"{source} is '{safe(value, 40)}'; must be an integer from {_FPS[0]} to {_FPS[1]}")
    return int(value)


# RUN SELECTION


def _choose(name: str | None, scope: runs.Scope) -> Path | None:
    """Find the folder of the run, group or sweep to show by `name` (None: the live run, else the newest). Returns None
    if several runs train and the user has to choose. `scope`: the runs searched. Raises NotFoundError.
    """
    if name is not None:
        from monitor.data import collection

        return collection.find(name, *scope) or runs.resolve(name, *scope).path
    listed = runs.list_runs(*scope)
    if not listed:
        raise NotFoundError(f"no runs yet in {runs.display_path(scope.root)}. Start one: operant train")
    live = [run for run in listed if runs.probe(run.path)]
    return None if len(live) > 1 else live[0].path if live else runs.resolve("latest", *scope).path


class RunFolders:
    """Catalog of the runs in `scope` (`monitor.data.snapshot.RunCatalog`). `readonly`: opened runs get no requests."""

    def __init__(self, scope: runs.Scope, *, readonly: bool) -> None:
        self._scope, self._readonly = scope, readonly
        self._listing: RunListing | None = None

    def rows(self) -> Sequence[RunRow]:
        """Return a row of the run list for every run, group and sweep in scope, newest first."""
        from monitor.data.listing import RunListing

        self._listing = self._listing or RunListing(self._scope)
        return self._listing.rows()

    def overlays(self) -> Sequence[RunRow]:
        """Return the rows of everything that can be drawn over a run's curves: runs and groups."""
        return [row for row in self.rows() if not (Path(row.path) / runs.SWEEP_FILE).is_file()]

    def open(self, path: str) -> Source:
        """Return a feed of the run, group or sweep in the folder `path`. Raises NotFoundError if the folder holds
        none.
        """
        from monitor.data import collection
        from monitor.data.feed import LiveFeed

        if (several := collection.open_collection(Path(path))) is not None:
            return several
        run = runs.load(Path(path))
        if run is None:
            raise NotFoundError(f"'{safe(path, 400)}' no longer contains a run")
        return LiveFeed(run, readonly=self._readonly)


# TEXT OUTPUT


def _without_screen(
    path: Path | None,
    scope: runs.Scope,
    *,
    once: bool = False,
    ascii_only: bool = False,
    theme: str | None = None,
) -> int:
    """Print the run, group or sweep as text: with `once` the screen, else a line every five seconds until it ends.
    Returns the command's exit code. `path`: its folder; None if several runs train (an error).
    """
    if path is None:
        path = runs.resolve("live", *scope).path  # raises the error that lists the candidates
    feed = RunFolders(scope, readonly=True).open(str(path))
    try:
        if once:
            return _print_once(feed, ascii_only=ascii_only, theme=theme)
        with _ended_by_signals(), open(os.devnull, "w", encoding="utf-8") as nowhere:
            ended = text_output.follow(feed, sys.stdout or nowhere)
    finally:
        feed.close()
    if not ended:
        return 128 + signal.SIGHUP
    collected = feed.snapshot().collected
    ended_runs = [path] if collected is None else [Path(one.path) for one in collected.members if one.path]
    codes = [_exit_code(one) for one in ended_runs]
    if collected is not None and collected.kind == "sweep" and 0 in codes:
        return 0
    return next((code for code in codes if code), 0) if codes else 1


def _exit_code(path: Path) -> int:
    """Return the exit code of the ended run in the folder `path`."""
    run = runs.load(path)
    if run is None:
        return NotFoundError.exit_code
    look = runs.observe(run)
    code = runs.exit_code(look)
    if look.broken is not None:
        return code or BadFileError.exit_code
    return 1 if code is None else code


def _print_once(feed: Source, *, ascii_only: bool, theme: str | None) -> int:
    """Print the screen as text and return the exit code 0."""
    from monitor.screen.app import MonitorApp
    from monitor.screen.capture import screenshot

    if sys.stdout is None:  # stdout was closed
        return 0
    columns, lines = shutil.get_terminal_size(_ONCE) if sys.stdout.isatty() else _ONCE
    app = MonitorApp(feed, ascii_only=ascii_only, theme=theme)
    text = screenshot(app, (max(SMALLEST[0], columns), max(SMALLEST[1], lines - (1 if sys.stdout.isatty() else 0))))
    sys.stdout.write(text + "\n")
    return 0


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Context manager with the default SIGHUP handler, so that a closed terminal ends this process even if the parent
    ignores SIGHUP. Ctrl-C ends the output, never the run.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before if before is not None else signal.SIG_DFL)


# SCREEN


def _open(
    path: Path | None,
    scope: runs.Scope,
    *,
    readonly: bool,
    ascii_only: bool,
    fps: int,
    theme: str | None = None,
) -> int:
    """Open the screen and return the exit code once the user quits. Raises UsageError if the terminal is too small.
    `path`: folder of the run, group or sweep; None: the user chooses.
    """
    columns, lines = shutil.get_terminal_size()
    if columns < SMALLEST[0] or lines < SMALLEST[1]:
        raise UsageError(
            f"terminal is {columns}×{lines}; the monitor needs {SMALLEST[0]}×{SMALLEST[1]}. `operant runs --watch` "
            "works here."
        )
    library = RunFolders(scope, readonly=readonly)
    feed = library.open(str(path)) if path is not None else None
    try:
        # Textual's maximum frame rate bounds the delay between a key and its effect; redraws stay limited by `fps`.
        os.environ.setdefault("TEXTUAL_FPS", "120")
        from monitor.screen.app import MonitorApp
        from monitor.screen.keys import keymap
        from monitor.screen.terminal import QuietDriver, tied_to_terminal

        app = MonitorApp(
            feed,
            library,
            fps=fps,
            ascii_only=ascii_only or not _draws_unicode(),
            theme=theme or theme_choice.load(),
            keep_theme=theme_choice.save,
            own_keys=keymap(),
            readonly=readonly,
            driver_class=QuietDriver,
        )
        with tied_to_terminal(app):
            app.run()
    finally:
        if feed is not None:
            feed.close()
    if app.model is not None and not app.return_code:
        sys.stderr.write(parting(app.model.newest) + "\n")
    return app.return_code or 0


def _draws_unicode() -> bool:
    """Whether the terminal can show braille and blocks: UTF-8, and not the Linux console."""
    encoding = (getattr(sys.__stdout__, "encoding", None) or "ascii").lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") != "linux"


def parting(last: Snapshot) -> str:
    """Return the line printed after the screen closes: the run's state and the command that shows it again."""
    run, word = last.run, last.state
    if last.collected is not None:
        status = "Still training" if last.live else f"The {last.collected.kind} is {word}"
        again = f"reattach `operant monitor {run.id}`" + (f" · stop `operant stop {run.id}`" if last.live else "")
        return safe(f"Detached. {status}: {again}", 1000)
    if word in runs.LIVE:
        status = "Still training" if word in ("running", "starting") else f"The run is {word}"
        return safe(
            f"Detached. {status}: reattach `operant monitor {run.short}` · stop `operant stop {run.short}` · log "
            f"{run.path}/log.txt",
            1000,
        )
    command = f"  next: {last.ending.commands[0]}" if last.ending is not None and last.ending.commands else ""
    return safe(f"{run.id}: {word}{command}", 1000)
