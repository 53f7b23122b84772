"""Lines of text: styled pieces, cut and padded by cells. Standard library only.

All text for the terminal passes `clean`, which removes control characters and invisible ones. A style names tokens of
`monitor.charts.palette`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from monitor.charts.palette import STYLE_OF, Cell, Row, Style, shared_cell
from operant.text import cells, safe

_LONGEST_CELLS = 2000


class Piece(NamedTuple):
    """Text in one style. `action` is the name of the action that a click runs: a constant of this program, never
    data.
    """

    text: str
    fore: str = "text"
    bold: bool = False
    back: str = ""
    action: str = ""


Line = tuple[Piece, ...]

_ASCII = str.maketrans(
    {
        "●": "*",
        "◌": "o",
        "‖": "=",
        "◔": "~",
        "◐": "~",
        "✖": "x",
        "■": "#",
        "✔": "+",
        "⌁": "@",
        "━": "=",
        "╸": "-",
        "─": "-",
        "▲": "^",
        "▼": "v",
        "▸": ">",
        "◆": "o",
        "┊": ":",
        "·": "-",
        "…": "~",
        "−": "-",
        "×": "x",
        "≈": "~",
        "←": "<",
        "→": ">",
        "↑": "^",
        "↓": "v",
        "█": "#",
        "▓": "=",
        "▒": "+",
        "░": "-",
        "°": " ",
        "±": "~",
        "│": "|",
        "╭": "+",
        "╮": "+",
        "╰": "+",
        "╯": "+",
        "┃": "|",
        "⏎": "=",
        "–": "-",
        "—": "-",
        "›": ">",
        "’": "'",
    }
)


def clean(text: str, *, ascii_only: bool = False) -> str:
    """Return text without control and invisible characters, safe for a terminal; with `ascii_only` in ASCII, cell for
    cell.
    """
    if not text.isascii():
        if ascii_only:
            text = text.translate(_ASCII)
        if not (text.isascii() and text.isprintable()):
            text = safe(text, _LONGEST_CELLS)
            if ascii_only:
                text = "".join(c if c.isascii() else "?" * cells(c) for c in text)
        return text
    return text if text.isprintable() else safe(text, _LONGEST_CELLS)


def characters(text: str) -> list[str]:
    """Split text into cells: a character with the combining ones that follow it, and "" for the right half of a wide
    character.
    """
    if text.isascii():
        return list(text)
    cell_texts: list[str] = []
    base = 0
    for character in text:
        used_cells = cells(character)
        if used_cells or not cell_texts:
            base = len(cell_texts)
            cell_texts += [character, ""][: max(1, used_cells)]
        else:
            cell_texts[base] += character
    return cell_texts


def row_of(line: Line) -> Row:
    """Convert a line of text pieces to cells."""
    row: list[Cell] = []
    for piece in line:
        row += _cells_of(piece)
    return tuple(row)


@lru_cache(512)  # about a screen of pieces
def _cells_of(piece: Piece) -> Row:
    """Convert a text piece to cells. Cached, so that equal cells are usually the same object, which compares fast."""
    style = Style(piece.fore, piece.back, piece.bold, piece.action)
    return tuple(shared_cell(character, style) for character in characters(piece.text))


def of_cells(row: Row) -> Line:
    """Convert a row of cells to a line of text pieces."""
    return tuple(
        Piece("".join([cell.character for cell in run]), style.fore, style.bold, style.back)
        for style, run in groupby(row, STYLE_OF)
    )


def width_of(text: str) -> int:
    """Return the width of a text in terminal cells."""
    return len(text) if text.isascii() else _width_of(text)


@lru_cache(4096)
def _width_of(text: str) -> int:
    return sum(map(cells, text))


def length(line: Iterable[Piece]) -> int:
    """Return the width of a line of pieces in terminal cells."""
    return sum(width_of(piece.text) for piece in line)


def cut(text: str, limit_cells: int) -> str:
    """Return text cut to at most `limit_cells` terminal cells, with an ellipsis if it was longer."""
    if width_of(text) <= limit_cells:
        return text
    return safe(text, limit_cells) if limit_cells > 0 else ""


def padded(text: str, width: int) -> str:
    """Return text cut or padded with spaces to exactly `width` terminal cells."""
    text = cut(text, width)
    return text + " " * (width - width_of(text))


def broken(text: str, width: int) -> list[str]:
    """Break text into parts of at most `width` cells each, at any character: for text without spaces."""
    if width_of(text) <= width:
        return [text]
    parts, used = [""], 0
    for character in text:
        own = cells(character)
        if used + own > max(2, width):
            parts.append("")
            used = 0
        parts[-1] += character
        used += own
    return parts


def fit(line: Sequence[Piece], width: int) -> Line:
    """Cut a line (with an ellipsis) or pad it with spaces to exactly `width` cells."""
    used, fitted = 0, []
    for piece in line:
        used_cells = width_of(piece.text)
        if used + used_cells > width:
            text = cut(piece.text, width - used)
            if text:
                fitted.append(piece._replace(text=text))
            used += width_of(text)
            break
        if used_cells:
            fitted.append(piece)
            used += used_cells
    if used < width:
        fitted.append(Piece(" " * (width - used)))
    return tuple(fitted)


def justified(left: Sequence[Piece], right: Sequence[Piece], width: int) -> Line:
    """Return a line of `width` cells with `left` at its left edge and `right` at its right edge; `left` is cut if both
    do not fit.
    """
    left_width = width - length(right)
    if left_width <= 0:
        return fit(right, width)
    return (*fit(left, left_width), *right)


def flow(parts: Iterable[Sequence[Piece]], width: int, gap: int = 3) -> list[Line]:
    """Arrange parts in lines of at most `width` cells, `gap` cells apart, broken only between parts. A wider part has a
    line of its own, uncut.
    """
    lines: list[list[Piece]] = [[]]
    used = 0
    for part in parts:
        used_cells = length(part)
        if used and used + gap + used_cells > width:
            lines.append([])
            used = 0
        if used:
            lines[-1].append(Piece(" " * gap))
            used += gap
        lines[-1] += part
        used += used_cells
    return [tuple(line) for line in lines]


def wrapped(text: str, width: int, indent: str = "", first: str = "") -> list[str]:
    """Wrap text into lines of at most `width` characters. The first line starts with `first`, all others with `indent`.
    Wide characters are counted as one.
    """
    return textwrap.wrap(text, max(width, len(indent) + 8), initial_indent=first, subsequent_indent=indent) or [""]
