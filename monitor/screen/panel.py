"""A widget of text lines. Knows nothing of their meaning: it is given a function from (model, width, height) to lines.

Everything shown goes through `line.clean`; nothing is markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monitor.charts import EMPTY, Line, Palette, Row, Rows, Style, blank, clean, cut, fit, framed, row_of
from monitor.charts.canvas import Canvas

Draw = Callable[[Any, int, int], Sequence[Line]]


class Panel(Canvas):
    """Lines that a function makes out of a model. With a title the panel has a frame.

    `sees` gives the part of a model that the lines are made of: while that is equal, they are not made again.
    """

    DEFAULT_CSS = "Panel { width: 1fr; height: 1fr; }"

    def __init__(
        self,
        lines: Draw,
        *,
        title: str | Callable[[Any], str] = "",
        sees: Callable[[Any], object] | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._lines, self._title, self._sees = lines, title, sees
        self._seen: object = None
        self._model: Any = None
        self._rows_of: dict[Line, Row] = {}  # rows drawn last, by their lines: most lines stay

    def show(self, model: Any) -> None:
        """Draw a model; only cells that changed are repainted."""
        self._model = model
        seen = None if self._sees is None else self._sees(model)
        if seen is None or seen != self._seen:
            self._seen = seen
            self.redraw()

    @property
    def inside(self) -> tuple[int, int]:
        """Width and height left for lines, in cells."""
        width, height = self.size
        return (width - 4, height - 2) if self._has_frame(width, height) else (width, height)

    def _has_frame(self, width: int, height: int) -> bool:
        return bool(self._title) and width > 8 and height > 2

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """The lines in a size, in their frame."""
        if not self._has_frame(width, height):
            return self._filled(width, height, palette)
        title = self._title if isinstance(self._title, str) else "" if self._model is None else self._title(self._model)
        shown = clean(cut(clean(title), width - 6), ascii_only=not palette.glyphs.braille)
        inside = [(EMPTY, *row, EMPTY) for row in self._filled(width - 4, height - 2, palette)]
        return framed(inside, [(shown, Style())], width, palette)

    def _filled(self, width: int, height: int, palette: Palette) -> Rows:
        """Exactly `height` rows of `width` cells."""
        ascii_only = not palette.glyphs.braille
        lines = (
            []
            if self._model is None or width < 1
            else [tuple(line) for line in self._lines(self._model, width, height)[:height]]
        )
        before = self._rows_of if self._drawn_for == (*self.size, palette.key) else {}
        self._rows_of = {line: before.get(line) or _row(line, width, ascii_only=ascii_only) for line in lines}
        return [self._rows_of[line] for line in lines] + blank(width, height - len(lines))


def _row(line: Line, width: int, *, ascii_only: bool) -> Row:
    fitted = fit([piece._replace(text=clean(piece.text)) for piece in line], width)
    # ASCII last, as cutting leaves an ellipsis.
    return row_of(
        tuple(piece._replace(text=clean(piece.text, ascii_only=True)) for piece in fitted) if ascii_only else fitted
    )
