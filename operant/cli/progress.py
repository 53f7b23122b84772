"""How a run's progress is drawn: one line, on a terminal or in a pipe. Standard library only.

`line` and `plain` are pure; `Screen` owns the stream. Knows nothing of run folders, of processes, or where the numbers
come from.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple, TextIO

from operant import text

_BAR_CELLS = (8, 40)
_ASCII = str.maketrans({"━": "#", "─": "-", "✔": "*", "✖": "x", "■": "#", "·": "|", "…": "..."})
_FALLBACK_COLUMNS = 80
_LINE_CELLS = 4000


class ViewerGoneError(Exception):
    """The stream's terminal or pipe is closed."""


class Progress(NamedTuple):
    """What the line says. `note` is a state worth a word (stalled, stopping), printable."""

    step: int
    steps: int | None = None
    sps: float | None = None
    mean_return: float | None = None
    eta_s: float | None = None
    note: str = ""


def line(progress: Progress, columns: int) -> str:
    """The progress line in at most `columns` cells: what matters least is left out first, and the bar takes what is
    left over.
    """
    share = _share(progress)
    steps = text.count(progress.step) + (f" / {text.count(progress.steps)}" if progress.steps else "") + " steps"
    percent = "" if share is None else f"{100 * share:5.1f} %"
    return_ = "" if progress.mean_return is None else f"return {text.number(progress.mean_return)}"
    eta = "" if progress.eta_s is None else f"ETA {text.duration(progress.eta_s)}"
    sps = "" if progress.sps is None else f"{text.count(progress.sps)} SPS"
    parts = [percent, steps, sps, return_, eta, progress.note]
    for index in (None, 2, 4, 3, 1, 5):  # the order in which parts are given up
        if index is not None:
            parts[index] = ""
        body = "   ".join(part for part in parts if part)
        room = columns - len(body) - 2
        if room >= 0 or index == 5:
            break
    if share is None or room < _BAR_CELLS[0]:
        return body[: max(0, columns)]
    cells = min(room, _BAR_CELLS[1])
    full = int(share * cells)
    return f"{'━' * full}{'─' * (cells - full)}  {body}"


def plain(progress: Progress) -> str:
    """The same for a pipe or a log: no bar, nothing left out, nothing aligned."""
    return line(progress, 10_000).lstrip("━─ ") if _share(progress) is not None else line(progress, 10_000)


def _share(progress: Progress) -> float | None:
    return min(1.0, max(0.0, progress.step / progress.steps)) if progress.steps else None


class Screen:
    """A stream with a line that is redrawn in place at its end, where it is a terminal; whole lines, far fewer, where
    it is none.

    What is written is plain text: it may hold names and sentences of a run's files, of which the stream gets nothing
    that a terminal would obey. Every method raises ViewerGoneError once the stream is closed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._drawn = stream, ""
        self.is_terminal = False
        with contextlib.suppress(OSError, ValueError):
            self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._encoding = getattr(stream, "encoding", None) or "utf-8"  # a stream in memory has none
        self._unicode = True
        try:
            "━─✔✖■·…".encode(self._encoding)
        except UnicodeError:
            self._unicode = False

    @property
    def columns(self) -> int:
        """How wide a line may be: one cell less than the terminal, so that it never wraps."""
        with contextlib.suppress(OSError, ValueError):
            return (os.get_terminal_size(self._stream.fileno()).columns or _FALLBACK_COLUMNS) - 1
        return _FALLBACK_COLUMNS - 1

    def show(self, content: str) -> None:
        """Draw the line at the end anew, or on a stream that is not a terminal, print one more."""
        content = text.safe(content, _LINE_CELLS)
        if not self.is_terminal:
            self._write(content + "\n")
        elif content != self._drawn:
            self._write(f"\r{content}\x1b[K")
            self._drawn = content

    def above(self, content: str) -> None:
        """Write lines that stay, above the one that is redrawn."""
        content = text.safe(content, _LINE_CELLS, lines=True)
        drawn, self._drawn = self._drawn, ""
        self._write(f"\r\x1b[K{content}\n" if drawn else content + "\n")
        if drawn:
            self.show(drawn)

    def end(self) -> None:
        """Take the redrawn line away, so that what follows begins on a line of its own."""
        if self._drawn:
            self._drawn = ""
            self._write("\r\x1b[K")

    def _write(self, content: str) -> None:
        if not self._unicode:
            content = content.translate(_ASCII).encode(self._encoding, "replace").decode(self._encoding, "replace")
        try:
            self._stream.write(content)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            raise ViewerGoneError from None
