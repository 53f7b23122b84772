"""A picture of pixels as text for a terminal: two pixels a cell, in true colour, 256 colours or none. Standard library only.

What is sent is only what has changed since the last picture, which is what makes it fit for SSH. Knows nothing of what is on the picture, and no terminal:
it makes text. (The monitor's pictures are cells of its own screen: see monitor/charts/picture.py.)
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

Colours = Literal["true", "256", "none"]
Cell = tuple[str, str]
"""A character, and the numbers of the SGR sequence that colours it."""

_CUBE = (0, 95, 135, 175, 215, 255)  # the levels of xterm's 6 x 6 x 6 colours, from number 16 on; 24 greys from 232 on
_PLAIN = {"ascii": (" ", "'", ".", ":+*#"), "unicode": (" ", "▀", "▄", "░▒▓█")}  # nothing, the upper pixel, the lower, both by brightness


class Style(NamedTuple):
    """What a terminal can show."""

    colours: Colours
    unicode: bool


def style_of(variables: Mapping[str, str], encoding: str | None) -> Style:
    """What a terminal says of itself, in the environment's variables and by the encoding of its stream."""
    term = variables.get("TERM", "")
    unicode = (encoding or "ascii").lower().replace("-", "").replace("_", "") == "utf8"
    if variables.get("NO_COLOR") or term in ("", "dumb", "linux") or term.startswith("vt"):
        return Style("none", unicode)
    full = variables.get("COLORTERM", "").lower() in ("truecolor", "24bit") or term.endswith("-direct")
    return Style("true" if full else "256", unicode)


def ground_of(pixels: bytes, width: int, height: int) -> bytes:
    """The colour that is most frequent along the border of a picture."""
    row, last = 3 * width, 3 * width * (height - 1)
    places = [*range(0, row, 3), *range(last, last + row, 3), *range(0, last, row), *range(row - 3, last, row)]
    return Counter(pixels[place : place + 3] for place in places).most_common(1)[0][0]


def indexed(red: int, green: int, blue: int) -> int:
    """The nearest of the 240 fixed colours of a terminal that has 256."""

    def distance(other: tuple[int, int, int]) -> int:
        return sum((a - b) ** 2 for a, b in zip((red, green, blue), other, strict=True))

    steps = [min(range(6), key=lambda k: abs(_CUBE[k] - part)) for part in (red, green, blue)]
    grey = min(23, max(0, round((red + green + blue - 24) / 30)))
    in_cube = distance((_CUBE[steps[0]], _CUBE[steps[1]], _CUBE[steps[2]])) <= distance((8 + 10 * grey,) * 3)
    return 16 + 36 * steps[0] + 6 * steps[1] + steps[2] if in_cube else 232 + grey


@functools.lru_cache(8192)
def _code(pixel: bytes, layer: int, colours: Colours) -> str:
    """A colour as SGR numbers, in front (`layer` 38) or behind (48)."""
    red, green, blue = pixel
    return f"{layer};2;{red};{green};{blue}" if colours == "true" else f"{layer};5;{indexed(red, green, blue)}"


@functools.lru_cache(16384)
def _cell(upper: bytes, lower: bytes, style: Style, ground: bytes) -> Cell:
    """Two pixels, one above the other."""
    if style.colours != "none":
        # Without half blocks a cell is one pixel: that which is not ground.
        if upper == lower or not style.unicode:
            return " ", _code(lower if upper == ground else upper, 48, style.colours)
        return "▀", f"{_code(upper, 38, style.colours)};{_code(lower, 48, style.colours)}"
    nothing, above, below, both = _PLAIN["unicode" if style.unicode else "ascii"]
    if upper == ground or lower == ground:
        return (nothing if upper == lower else below if upper == ground else above), ""
    brightness = sum(3 * pixel[0] + 6 * pixel[1] + pixel[2] for pixel in (upper, lower)) / 5100
    return both[min(len(both) - 1, int(brightness * len(both)))], ""


def cells_of(pixels: bytes, width: int, height: int, style: Style) -> list[list[Cell]]:
    """A picture, (height, width, 3) bytes, as rows of cells; an odd height ends in ground. Raises ValueError where the bytes are not as many."""
    if len(pixels) != 3 * width * height or not pixels:
        raise ValueError(f"a picture of {width} x {height} has {3 * width * height} bytes, at least 3, not {len(pixels)}")
    ground = ground_of(pixels, width, height)
    row = 3 * width
    pixels += ground * (width if height % 2 else 0)
    known: dict[bytes, list[Cell]] = {}  # pictures have many rows alike
    rows = []
    for first in range(0, len(pixels), 2 * row):
        pair = pixels[first : first + 2 * row]
        if pair not in known:
            known[pair] = [_cell(pair[k : k + 3], pair[row + k : row + k + 3], style, ground) for k in range(0, row, 3)]
        rows.append(known[pair])
    return rows


class Drawing:
    """What stands in a part of a terminal, and the text that turns it into something else."""

    def __init__(self) -> None:
        self._rows: list[list[Cell]] = []
        self._place = (0, 0)

    def forget(self) -> None:
        """The terminal was cleared, or something else was written there."""
        self._rows = []

    def show(self, rows: list[list[Cell]], top: int, left: int) -> str:
        """The text that shows rows of cells, with their first at line `top`, column `left` (from 1): only what changed, if they stand there already."""
        same = self._place == (top, left) and [len(row) for row in rows] == [len(row) for row in self._rows]
        before: list[list[Cell]] = self._rows if same else [[] for _ in rows]
        self._rows, self._place = rows, (top, left)
        parts: list[str] = []
        colour = ""
        for y, (old, new) in enumerate(zip(before, rows, strict=True)):
            if old is new or old == new:
                continue
            at = -1
            for x, cell in enumerate(new):
                if old and old[x] == cell:
                    continue
                if at != x:
                    parts.append(f"\x1b[{top + y};{left + x}H")
                if cell[1] != colour:
                    colour = cell[1]
                    parts.append(f"\x1b[{colour}m" if colour else "\x1b[0m")
                parts.append(cell[0])
                at = x + 1
        return "".join([*parts, "\x1b[0m"]) if parts else ""
