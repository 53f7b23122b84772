"""Progress line of a run, on a terminal or in a pipe. Standard library only.

`line` and `plain` format; `Screen` writes to the stream; `Rate` estimates the time left.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import NamedTuple, TextIO

from operant import text

_BAR_CELLS = (8, 40)
_ASCII = str.maketrans({"━": "#", "─": "-", "✔": "*", "✖": "x", "■": "#", "·": "|", "…": "..."})
_FALLBACK_COLUMNS = 80
_LINE_CELLS = 4000
_WINDOW_NS = 10 * 10**9


class ViewerGoneError(Exception):
    """Raised when the terminal or pipe to which a viewer writes was closed."""


class Progress(NamedTuple):
    """Values of the progress line; None if unknown. `note` is a noteworthy state (stalled, stopping) as
    printable text.
    """

    step: int
    steps: int | None = None
    sps: float | None = None
    mean_return: float | None = None
    eta_s: float | None = None
    note: str = ""
    evaluation: float | None = None


def line(progress: Progress, columns: int) -> str:
    """Format a run's progress as one line of at most `columns` cells. The least important parts are dropped first; a
    bar fills the remaining cells.
    """
    share = share_of(progress)
    steps = text.count(progress.step) + (f" / {text.count(progress.steps)}" if progress.steps else "") + " steps"
    percent = "" if share is None else f"{100 * share:5.1f} %"
    scores = {"return": progress.mean_return, "eval": progress.evaluation}
    return_ = "   ".join(f"{name} {text.number(score)}" for name, score in scores.items() if score is not None)
    eta = "" if progress.eta_s is None else f"ETA {text.duration(progress.eta_s)}"
    sps = "" if progress.sps is None else f"{text.count(progress.sps)} SPS"
    parts = [percent, steps, sps, return_, eta, progress.note]
    for index in (None, 2, 4, 3, 1, 5):  # order in which parts are dropped
        if index is not None:
            parts[index] = ""
        body = "   ".join(part for part in parts if part)
        free = columns - len(body) - 2
        if free >= 0 or index == 5:
            break
    if share is None or free < _BAR_CELLS[0]:
        return body[: max(0, columns)]
    cells = min(free, _BAR_CELLS[1])
    full = int(share * cells)
    return f"{'━' * full}{'─' * (cells - full)}  {body}"


def plain(progress: Progress) -> str:
    """Format the progress for a pipe or a log: all parts, without a bar."""
    return line(progress, 10_000).lstrip("━─ ") if share_of(progress) is not None else line(progress, 10_000)


def share_of(progress: Progress) -> float | None:
    """Share of the planned steps that is done; None if the plan is unknown."""
    return min(1.0, max(0.0, progress.step / progress.steps)) if progress.steps else None


class Rate:
    """Steps per second over the last ten seconds of records, evaluations and checkpoints included."""

    def __init__(self) -> None:
        self._track: deque[tuple[int, int]] = deque()  # (boottime_ns, step)

    def add(self, boottime_ns: int, step: int) -> None:
        """Add a record."""
        self._track.append((boottime_ns, step))
        while self._track[-1][0] - self._track[0][0] > _WINDOW_NS:
            self._track.popleft()

    def left_s(self, steps: int | None, step: int, sps: float | None) -> float | None:
        """Seconds until `steps`, the planned end; by `sps` before half a second of records. None if unknown."""
        if not self._track or not steps:
            return None
        (first_ns, first), (last_ns, last) = self._track[0], self._track[-1]
        rate = (last - first) * 1e9 / (last_ns - first_ns) if last_ns - first_ns > 5 * 10**8 else sps or 0.0
        return max(0.0, (steps - step) / rate) if rate > 0 else None


class Screen:
    """Writer to an output stream that keeps a progress line at its end: redrawn in place on a terminal, printed as
    further lines elsewhere.

    Control characters are removed from all text, since it may contain names and texts of a run's files. Every method
    raises ViewerGoneError once the stream is closed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._drawn = stream, ""
        self.is_terminal = False
        with contextlib.suppress(OSError, ValueError):
            self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._encoding = getattr(stream, "encoding", None) or "utf-8"  # in-memory streams have no encoding
        self._unicode = True
        try:
            "━─✔✖■·…".encode(self._encoding)
        except UnicodeError:
            self._unicode = False

    @property
    def columns(self) -> int:
        """Maximum width of a line: one cell less than the terminal, so that no line wraps."""
        with contextlib.suppress(OSError, ValueError):
            return (os.get_terminal_size(self._stream.fileno()).columns or _FALLBACK_COLUMNS) - 1
        return _FALLBACK_COLUMNS - 1

    def show(self, content: str) -> None:
        """Replace the progress line by `content`, or print it as a further line if the stream is not a terminal."""
        content = text.safe(content, _LINE_CELLS)
        if not self.is_terminal:
            self._write(content + "\n")
        elif content != self._drawn:
            self._write(f"\r{content}\x1b[K")
            self._drawn = content

    def above(self, content: str) -> None:
        """Print permanent lines above the progress line, which stays."""
        content = text.safe(content, _LINE_CELLS, lines=True)
        drawn, self._drawn = self._drawn, ""
        self._write(f"\r\x1b[K{content}\n" if drawn else content + "\n")
        if drawn:
            self.show(drawn)

    def end(self) -> None:
        """Erase the progress line, so that further output starts on an empty line."""
        if self._drawn:
            self._drawn = ""
            self._write("\r\x1b[K")

    def _write(self, content: str) -> None:
        """Write text to the stream at once, in ASCII if its encoding requires that. Raises ViewerGoneError."""
        if not self._unicode:
            content = content.translate(_ASCII).encode(self._encoding, "replace").decode(self._encoding, "replace")
        try:
            self._stream.write(content)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            raise ViewerGoneError from None
