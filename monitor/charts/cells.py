"""Rows of cells from text. Standard library only."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from functools import lru_cache

from monitor.charts.palette import Cell, Palette, Row, Rows, Style, shared_cell
from operant.text import cells as cells_of

Piece = tuple[str, Style]

EMPTY = Cell(" ", Style())


def blank(width: int, height: int) -> Rows:
    """Return `height` rows of `width` empty cells."""
    return [(EMPTY,) * width] * height


@lru_cache(512)
def styled(text: str, style: Style) -> Row:
    """Convert text to cells, one per character. A character that is not printable or not one cell wide becomes "?", so
    that columns stay aligned.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(character if character.isprintable() and cells_of(character) == 1 else "?" for character in text)
    return tuple(shared_cell(character, style) for character in text)


def line(pieces: Iterable[Piece], width: int, rest: Cell = EMPTY) -> Row:
    """Concatenate pieces of text to a row of `width` cells, filled up with the cell `rest`. The first non-blank piece
    is cut if necessary; any other that does not fit ends the row.
    """
    row: Row = ()
    for text, style in pieces:
        if len(row) + len(text) > width:
            if not any(cell.character != " " for cell in row):
                row += styled(text[: width - len(row)], style)
            break
        row += styled(text, style)
    return row + (rest,) * (width - len(row))


def justified(left: Iterable[Piece], right: Iterable[Piece], width: int) -> Row:
    """Return a row of `width` cells with `left` at its left edge and `right` at its right edge; `right` is left out if
    both do not fit.
    """
    left, right = list(left), list(right)
    used = sum(len(text) for text, _ in left)
    free = width - used - 1
    length = sum(len(text) for text, _ in right)
    if used >= width or length > free:
        return line(left, width)
    return line([*left, (" " * (width - used - length), Style()), *right], width)


def framed(
    inside: Rows,
    title: Iterable[Piece],
    width: int,
    palette: Palette,
    *,
    focused: bool = False,
    bottom: Sequence[Cell | None] = (),
) -> Rows:
    """Draw a box around `inside` (rows of `width` - 2 cells, `width` >= 6), with the title in its upper edge and the
    cells `bottom` in the lower one. `focused`: a heavier, coloured box.
    """
    style = Style("focus" if focused else "border")
    top_left, across, top_right, upright, bottom_right, bottom_left = styled(
        palette.glyphs.box_focused if focused else palette.glyphs.box, style
    )
    words = [piece for piece in title if piece[0]]
    top = line([(" ", Style()), *words, (" ", Style())], width - 4, across) if words else (across,) * (width - 4)
    below = [cell or across for cell in bottom] + [across] * (width - 2 - len(bottom))
    return [
        (top_left, across, *top, across, top_right),
        *((upright, *row, upright) for row in inside),
        (bottom_left, *below, bottom_right),
    ]


def sentence(text: str, width: int, height: int) -> Rows:
    """Return `height` rows of `width` cells with `text` wrapped, centered and dim."""
    rows = blank(width, height)
    lines = textwrap.wrap(text, max(1, width))[:height]
    above = (height - len(lines)) // 2
    for index, words in enumerate(lines):
        rows[above + index] = line([(" " * ((width - len(words)) // 2) + words, Style("dim"))], width)
    return rows


def text_of(rows: Rows) -> list[str]:
    """Return the text of each row of cells, without styles."""
    return ["".join([cell.character for cell in row]) for row in rows]
