"""Rows of cells from text. Standard library only. Knows nothing of what the text says."""

from __future__ import annotations

from collections.abc import Iterable

from monitor.palette import Cell, Ink, Row, Rows
from operant.text import cells as cells_of

Piece = tuple[str, Ink]

EMPTY = Cell(" ", Ink())


def blank(width: int, height: int) -> Rows:
    """Nothing, in that size."""
    return [(EMPTY,) * width] * height


def inked(text: str, ink: Ink) -> Row:
    """One cell a character; what is not printable or not one cell wide becomes a question mark, so that columns stay where they are."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(character if character.isprintable() and cells_of(character) == 1 else "?" for character in text)
    return tuple(Cell(character, ink) for character in text)


def line(pieces: Iterable[Piece], width: int, rest: Cell = EMPTY) -> Row:
    """Pieces one after the other; the first is cut if it must be, any other that does not fit whole is left out with all after it. `rest` fills the line."""
    row: Row = ()
    for index, (text, ink) in enumerate(pieces):
        if len(row) + len(text) > width:
            if not index:
                row = inked(text[:width], ink)
            break
        row += inked(text, ink)
    return row + (rest,) * (width - len(row))


def beside(left: Iterable[Piece], right: Iterable[Piece], width: int) -> Row:
    """`left` at the left edge and `right` at the right one; the left has the first say."""
    left, right = list(left), list(right)
    used = sum(len(text) for text, _ in left)
    room = width - used - 1
    length = sum(len(text) for text, _ in right)
    if used >= width or length > room:
        return line(left, width)
    return line([*left, (" " * (width - used - length), Ink()), *right], width)


def text_of(rows: Rows) -> list[str]:
    """What rows say, without colour."""
    return ["".join([cell.character for cell in row]) for row in rows]
