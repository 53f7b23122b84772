"""A show on a terminal: one lane's picture in half blocks, as large as fits, with lines of words below it. Knows no policy and no key.

An environment that draws no picture is shown by its observation, in numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch

from operant import text
from operant.play import console
from operant.play.halfblocks import Drawing, cells_of, style_of
from operant.play.stage import Show

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Around what a terminal that knows them shows at once."""

_MOST_SIDE = 240  # pixels: no more is worth sending
_LINES = 2  # of words


class View:
    """Draws a show's first lane. `largest` bounds the picture's side, in pixels."""

    def __init__(self, show: Show, terminal: console.Console, *, largest: int | None = None) -> None:
        self._show, self._terminal, self._largest = show, terminal, largest or _MOST_SIDE
        self._style = style_of(os.environ, terminal.encoding)
        self._drawing, self._words = Drawing(), [""] * _LINES
        self._layout: tuple[tuple[int, int], tuple[str, ...]] = ((0, 0), ())
        self._shown = ""  # numbers
        self._canvas: torch.Tensor | None = None

    def prepare(self) -> None:
        """Do what takes long the first time, compiling the picture, and show nothing yet."""
        if self._show.env.shade is not None:
            columns, lines = console.size()
            self._picture(columns, lines - _LINES, None)

    def draw(self, words: Sequence[str], *, over: Sequence[str] = (), mark: tuple[float, float, float] | None = None) -> None:
        """Show the lane as it is, words below it, and lines `over` it in a box. `mark`: x, y and half a side, as shares of the picture."""
        parts = []
        layout = (console.size(), tuple(over))
        if layout != self._layout:
            self._layout, self._words, self._shown = layout, [""] * _LINES, ""
            self._drawing.forget()
            parts.append("\x1b[0m\x1b[2J")
        (columns, lines), _ = layout
        seen = self._picture(columns, lines - _LINES, mark) if self._show.env.shade is not None else self._numbers(columns, lines - _LINES)
        if over and (seen or parts):
            seen += _box(over, columns, lines - _LINES)
        parts.append(seen)
        for k, line in enumerate(words[:_LINES]):
            shown = text.safe(line, max(1, columns - 1))
            if shown != self._words[k]:
                self._words[k] = shown
                parts.append(f"\x1b[{lines - _LINES + 1 + k};1H\x1b[0m{shown}\x1b[K")
        if any(parts):
            self._terminal.write("".join([_BEGIN, *parts, _END]))

    def _picture(self, columns: int, lines: int, mark: tuple[float, float, float] | None) -> str:
        side = max(2, min(columns, 2 * lines, self._largest)) // 2 * 2
        if self._canvas is None or self._canvas.shape[1] != side:
            self._canvas = self._show.canvas(side)
        pixels = self._show.picture(self._canvas)[0]
        if mark is not None:
            pixels = _marked(pixels, *mark)
        rows = cells_of(pixels.tobytes(), side, side, self._style)
        return self._drawing.show(rows, 1 + (lines - len(rows)) // 2, 1 + (columns - side) // 2)

    def _numbers(self, columns: int, lines: int) -> str:
        values = [f"{value:9.4g}" for value in self._show.observation[:, 0].tolist()]
        per_line = max(1, columns // 10)
        rows = [" ".join(values[k : k + per_line]) for k in range(0, len(values), per_line)]
        if len(rows) > lines:
            rows = [*rows[: lines - 1], f"... and {len(values) - (lines - 1) * per_line} more numbers"]
        shown = "".join(f"\x1b[{1 + k};1H\x1b[0m{row[:columns]}\x1b[K" for k, row in enumerate(rows))
        before, self._shown = self._shown, shown
        return shown if shown != before else ""


def _box(over: Sequence[str], columns: int, lines: int) -> str:
    """Lines in the middle of what is shown."""
    shown = [text.safe(line, max(1, columns - 4)) for line in over[: max(1, lines)]]
    width = max(map(len, shown))
    top, left = 1 + max(0, (lines - len(shown)) // 2), 1 + max(0, (columns - width - 2) // 2)
    return "".join(f"\x1b[{top + k};{left}H\x1b[0;7m {line.ljust(width)} \x1b[0m" for k, line in enumerate(shown))


def _marked(pixels: np.ndarray, x: float, y: float, reach: float) -> np.ndarray:
    """The corners of a square around a point, in the colour that stands out."""
    marked = pixels.copy()
    side = len(pixels)
    first = [min(max(math.floor((place - reach) * side), 0), side - 1) for place in (y, x)]
    last = [min(max(math.ceil((place + reach) * side) - 1, 0), side - 1) for place in (y, x)]
    for row in (first[0], last[0]):
        for column in (first[1], last[1]):
            marked[row, column] = (255, 0, 255)
    return marked
