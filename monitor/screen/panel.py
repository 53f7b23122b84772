"""A widget of text lines, which repaints only the cells that changed.

Knows nothing of what it says: it is given a function from (model, width, height) to lines. Everything shown goes through `line.clean`; nothing is markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from monitor.charts.line import Line, Piece, clean, cut, fit, length, width_of
from monitor.charts.palette import Palette
from operant.text import cells

Draw = Callable[[Any, int, int], Sequence[Line]]
_NEAR = 4  # cells: runs of changes this near to each other are one, as moving the cursor costs more than writing them


class Panel(Widget):
    """Lines that a function makes out of a model. With a title the panel has a frame.

    `sees` gives the part of a model that the lines are made of: while that is equal, they are not made again.
    """

    DEFAULT_CSS = "Panel { width: 1fr; height: 1fr; }"

    def __init__(
        self, draw: Draw, *, title: str | Callable[[Any], str] = "", sees: Callable[[Any], object] | None = None, id: str | None = None,
        classes: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(id=id, classes=classes)
        self._draw_lines, self._title, self._sees = draw, title, sees
        self._seen: object = None
        self._model: Any = None
        self._lines: list[Line] = []
        self._drawn_for: tuple[object, ...] = ()
        self._palette: Palette | None = None
        self._styles: dict[Piece, RichStyle] = {}

    @property
    def palette(self) -> Palette:
        """Colours and glyphs of the app's theme on this panel's ground."""
        if self._palette is None:
            self._palette = Palette(self.app.current_theme.dark, self.background_colors[1].hex6, bool(getattr(self.app, "ascii_only", False)))
            self._styles = {}
        return self._palette

    def notify_style_update(self) -> None:
        """The theme or a style changed: all colours may have."""
        super().notify_style_update()
        self._palette = None
        self._drawn_for = ()

    def show(self, model: Any) -> None:
        """Draw a model; only cells that changed are repainted, nothing where none did."""
        self._model = model
        if not self.is_mounted or not self.size or not self.display:
            return
        before, drawn_for = self._lines, self._drawn_for
        if self._sees is not None:
            seen, self._seen = self._seen, self._sees(model)
            if seen == self._seen and drawn_for == (*self.size, self.palette.key):
                return
        lines = self._make()
        if drawn_for != self._drawn_for:
            self.refresh()
            return
        regions = [Region(x, y, cells, 1) for y, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new for x, cells in _changes(old, new)]
        if regions:
            self.refresh(*regions)

    @property
    def inside(self) -> tuple[int, int]:
        """Width and height left for lines, in cells."""
        width, height = self.size
        return (width - 4, height - 2) if self._has_frame(width, height) else (width, height)

    def _has_frame(self, width: int, height: int) -> bool:
        return bool(self._title) and width > 8 and height > 2

    def _make(self) -> list[Line]:
        width, height = self.size
        palette = self.palette
        self._lines = self._framed(width, height) if self._has_frame(width, height) else self._filled(width, height)
        self._drawn_for = (width, height, palette.key)
        return self._lines

    def _filled(self, width: int, height: int) -> list[Line]:
        """Exactly `height` lines of `width` cells."""
        ascii_only = not self.palette.glyphs.braille
        made = [] if self._model is None or width < 1 else self._draw_lines(self._model, width, height)
        lines = [fit([piece._replace(text=clean(piece.text)) for piece in line], width) for line in made[:height]]
        if ascii_only:  # last, as cutting leaves an ellipsis
            lines = [tuple(piece._replace(text=clean(piece.text, ascii_only=True)) for piece in line) for line in lines]
        return lines + [(Piece(" " * width),)] * (height - len(lines))

    def _framed(self, width: int, height: int) -> list[Line]:
        top_left, across, top_right, upright, bottom_right, bottom_left = (Piece(c, "border") for c in self.palette.glyphs.box)
        told = self._title if isinstance(self._title, str) else "" if self._model is None else self._title(self._model)
        title = clean(cut(clean(f" {told} "), width - 4), ascii_only=not self.palette.glyphs.braille)
        rest = across.text * (width - 3 - width_of(title)) + top_right.text
        top = (Piece(top_left.text + across.text, "border"), Piece(title, "text"), Piece(rest, "border"))
        inside = self._filled(width - 4, height - 2)
        sides = [(upright, Piece(" "), *line, Piece(" "), upright) for line in inside]
        return [top, *sides, (Piece(bottom_left.text + across.text * (width - 2) + bottom_right.text, "border"),)]

    def render_line(self, y: int) -> Strip:
        """One line, out of those made last; made anew where size or colours are no longer those."""
        if self._drawn_for != (*self.size, self.palette.key):
            self._make()
        if not 0 <= y < len(self._lines):
            return Strip.blank(self.size.width)
        return Strip([Segment(piece.text, self._style_of(piece)) for piece in self._lines[y]], self.size.width)

    def _style_of(self, piece: Piece) -> RichStyle:
        key = piece._replace(text="")
        found = self._styles.get(key)
        if found is None:
            meta = {"@click": piece.action} if piece.action else None
            found = RichStyle(color=self.palette.hex(piece.fore), bgcolor=self.palette.hex(piece.back), bold=piece.bold or None, meta=meta)
            self._styles[key] = found
        return found


def _changes(before: Line, after: Line) -> list[tuple[int, int]]:
    """(start, cells) of the stretches in which two lines of one width differ; the whole line where a character is not one cell wide."""
    old, new = _cells(before), _cells(after)
    if old is None or new is None or len(old) != len(new):
        return [(0, length(after))]
    runs: list[tuple[int, int]] = []
    for x, (one, other) in enumerate(zip(old, new, strict=True)):
        if one != other:
            if runs and x - sum(runs[-1]) < _NEAR:
                runs[-1] = (runs[-1][0], x + 1 - runs[-1][0])
            else:
                runs.append((x, 1))
    return runs


def _cells(line: Line) -> list[tuple[str, Piece]] | None:
    """A line cell by cell, each a character and its style; None where a character is not one cell wide."""
    found: list[tuple[str, Piece]] = []
    for piece in line:
        if not piece.text.isascii() and any(map(_uneven, piece.text)):
            return None
        style = piece._replace(text="")
        found += [(character, style) for character in piece.text]
    return found


def _uneven(character: str) -> bool:
    return cells(character) != 1
