"""Pictures as terminal cells: two pixels per cell, in colour or, without colours, by brightness. Standard library only.

Pure functions; they know no terminal. (The monitor has a separate renderer: monitor/charts/agent_picture.py.)
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import NamedTuple

Cell = tuple[str, bytes | None, bytes | None]
"""Character, foreground and background, each colour as three bytes; None is the terminal's default."""
Rows = list[list[Cell]]

_PLAIN = {
    "ascii": (" ", "'", ".", ":+*#"),
    "unicode": (" ", "▀", "▄", "░▒▓█"),
}  # empty, upper pixel, lower pixel, both by brightness


class Style(NamedTuple):
    """Capabilities of a terminal: whether it shows colours, and characters beyond ASCII."""

    colours: bool
    unicode: bool


def background_of(pixels: bytes, width: int, height: int) -> bytes:
    """Most frequent colour along the border of a picture, as 3 bytes."""
    row, last = 3 * width, 3 * width * (height - 1)
    offsets = [*range(0, row, 3), *range(last, last + row, 3), *range(0, last, row), *range(row - 3, last, row)]
    return Counter(pixels[offset : offset + 3] for offset in offsets).most_common(1)[0][0]


@functools.lru_cache(16384)
def _make_cell(upper: bytes, lower: bytes, style: Style, background: bytes) -> Cell:
    """Make the terminal cell that shows two pixels, one above the other. `background` is the picture's background
    colour.
    """
    if style.colours:
        # Without half blocks a cell shows one pixel: the one that differs from the background.
        if upper == lower or not style.unicode:
            return " ", None, lower if upper == background else upper
        return "▀", upper, lower
    nothing, above, below, both = _PLAIN["unicode" if style.unicode else "ascii"]
    if upper == background or lower == background:
        return nothing if upper == lower else below if upper == background else above, None, None
    brightness = sum(3 * pixel[0] + 6 * pixel[1] + pixel[2] for pixel in (upper, lower)) / 5100
    return both[min(len(both) - 1, int(brightness * len(both)))], None, None


def cells_of(pixels: bytes, width: int, height: int, style: Style) -> Rows:
    """Convert a picture, (height, width, 3) bytes, to rows of terminal cells with two pixels each. An odd height is
    padded with background.

    Raises ValueError for a wrong number of bytes.
    """
    if len(pixels) != 3 * width * height or not pixels:
        raise ValueError(
            f"a picture of {width} x {height} has {3 * width * height} bytes, at least 3, not {len(pixels)}"
        )
    background = background_of(pixels, width, height)
    row = 3 * width
    pixels += background * (width if height % 2 else 0)
    known: dict[bytes, list[Cell]] = {}  # many rows of a picture are equal
    rows = []
    for first in range(0, len(pixels), 2 * row):
        pair = pixels[first : first + 2 * row]
        if pair not in known:
            known[pair] = [
                _make_cell(pair[k : k + 3], pair[row + k : row + k + 3], style, background) for k in range(0, row, 3)
            ]
        rows.append(known[pair])
    return rows
