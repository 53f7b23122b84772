"""Colours and glyphs by meaning, for dark and light themes, with and without UTF-8. Standard library only.

A drawing assigns each cell a meaning (`Style`: tokens); a `Palette` maps it to this terminal. Every meaning with a
colour also has a glyph or a word, so that nothing is lost under NO_COLOR or with colour blindness.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

OKABE_ITO = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#0072B2", "#BBBBBB")
"""Colours that remain distinguishable with any common colour vision (Okabe & Ito 2008), in the order in which series
use them.
"""

_ON_LIGHT = {"#F0E442": "#8C7A00"}
_LINE_CONTRAST = 3.0  # WCAG minimum for graphics
_TEXT_CONTRAST = 4.5  # WCAG minimum for text


class Style(NamedTuple):
    """Style of a cell: colours as tokens of a `Palette` or `#rrggbb`. An empty `back` is the theme's background.

    `action` is the name of the action that a click runs: a constant of this program, never data.
    """

    fore: str = "text"
    back: str = ""
    bold: bool = False
    action: str = ""


class Cell(NamedTuple):
    """One terminal cell: a character and its style. A wide character is followed by a cell with an empty character, for
    its right half.
    """

    character: str
    style: Style


@functools.lru_cache(4096)
def shared_cell(character: str, style: Style) -> Cell:
    """Return a cell with the character and style, usually the same object for equal arguments: many texts take little
    memory, and cells compare fast.
    """
    return Cell(character, style)


STYLE_OF: Callable[[Cell], Style] = operator.itemgetter(1)
"""Key for grouping cells by style."""
Row = tuple[Cell, ...]
Rows = list[Row]


class Glyphs(NamedTuple):
    """Characters that charts and bars are drawn with, each one cell wide."""

    braille: bool = True
    box: str = "╭─╮│╯╰"  # top left, horizontal, top right, vertical, bottom right, bottom left
    box_focused: str = "┏━┓┃┛┗"
    up: str = "▲"
    down: str = "▼"
    checkpoint: str = "▲"
    eval: str = "◆"
    resume: str = "┊"
    not_finite: str = "!"
    bar_full: str = "━"
    bar_half: str = "╾"
    bar_rest: str = "─"
    shades: tuple[str, ...] = ("█",)  # parts of a stacked bar, in the order of its legend
    upper_half: str = "▀"


UNICODE = Glyphs()
ASCII = Glyphs(
    braille=False,
    box="+-+|++",
    box_focused="#=#H##",
    up="^",
    down="v",
    checkpoint="^",
    eval="o",
    resume=":",
    bar_full="=",
    bar_half="-",
    bar_rest=".",
    shades=("#", "=", "+", "-"),
    upper_half="#",
)


def channels(colour: str) -> tuple[int, int, int]:
    """Convert a colour `#rrggbb` to (red, green, blue), each 0 to 255."""
    value = int(colour[1:7], 16)
    return value >> 16, value >> 8 & 255, value & 255


def hexadecimal(red: float, green: float, blue: float) -> str:
    """Convert red, green and blue, each 0 to 255, to a colour `#rrggbb`."""
    return f"#{round(red):02X}{round(green):02X}{round(blue):02X}"


def mix(colour: str, ground: str, share: float) -> str:
    """Blend two colours `#rrggbb`: `share` (0 to 1) of `colour`, the rest of `ground`."""
    return hexadecimal(*(share * a + (1 - share) * b for a, b in zip(channels(colour), channels(ground), strict=True)))


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour `#rrggbb`, 0 to 1 (WCAG 2)."""
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours `#rrggbb`, 1 to 21 (WCAG 2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def readable(colour: str, ground: str, least: float = _LINE_CONTRAST) -> str:
    """Move a colour towards white on a dark background `ground`, or black on a light one, until its contrast ratio is
    at least `least`.
    """
    pole = "#FFFFFF" if luminance(ground) < 0.18 else "#000000"
    for tenth in range(11):
        moved = mix(pole, colour, tenth / 10)
        if contrast(moved, ground) >= least:
            return moved
    return pole


class Palette:
    """Colours by token, and glyphs, for one theme and background. Palettes with equal `key` draw equally."""

    def __init__(self, dark: bool = True, ground: str | None = None, ascii_only: bool = False) -> None:
        self.dark = dark
        self.ground = ground or ("#121212" if dark else "#FAFAFA")
        self.glyphs = ASCII if ascii_only else UNICODE
        self.key = (dark, self.ground, ascii_only)
        self._colours = self._tokens()

    def _tokens(self) -> dict[str, str]:
        """Compute the colour #rrggbb of each token that a Style may name ("text", "warn", "series.0", ...), for the
        theme and background.
        """
        ground = self.ground
        series = (
            OKABE_ITO if self.dark else tuple(readable(_ON_LIGHT.get(colour, colour), ground) for colour in OKABE_ITO)
        )
        opposite = "#FFFFFF" if self.dark else "#000000"
        colours = {
            "text": mix(opposite, ground, 0.80),
            "bright": mix(opposite, ground, 0.96),
            "dim": mix(opposite, ground, 0.48 if self.dark else 0.56),
            "faint": mix(opposite, ground, 0.24 if self.dark else 0.30),
            "border": mix(opposite, ground, 0.22 if self.dark else 0.28),
            "focus": readable(series[0], ground, _TEXT_CONTRAST),
            "cursor": mix(opposite, ground, 0.20),
            "ground": ground,
            "good": readable("#009E73", ground, _TEXT_CONTRAST),
            "warn": readable("#E69F00", ground, _TEXT_CONTRAST),
            "bad": readable("#D55E00", ground, _TEXT_CONTRAST),
        }
        for index, colour in enumerate(series):
            colours[f"series.{index}"] = colour
            colours[f"band.{index}"] = mix(colour, ground, 0.24 if self.dark else 0.22)
        return colours

    def hex(self, token: str) -> str:
        """Return the colour `#rrggbb` of a token; a colour is returned unchanged, "" is the background. Raises KeyError
        for an unknown token.
        """
        return token if token.startswith("#") else self._colours[token] if token else self.ground
