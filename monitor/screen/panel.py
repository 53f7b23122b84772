"""Panel: a widget of text lines, computed by a function from (model, width, height) to lines.

All text passes `line.clean`; nothing is markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monitor.charts import EMPTY, Line, Palette, Row, Rows, Style, blank, clean, cut, fit, framed, row_of
from monitor.charts.canvas import Canvas

Draw = Callable[[Any, int, int], Sequence[Line]]


class Panel(Canvas):
    """Widget whose lines of text a function computes from the model. With a title it is drawn in a box.

    `depends_on` selects the part of the model that the lines depend on; while it is unchanged, they are not computed
    again.
    """

    DEFAULT_CSS = "Panel { width: 1fr; height: 1fr; }"

    def __init__(
        self,
        lines: Draw,
        *,
        title: str | Callable[[Any], str] = "",
        depends_on: Callable[[Any], object] | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._lines, self._title, self._depends_on = lines, title, depends_on
        self._last_input: object = None
        self._model: Any = None
        self._rows_of: dict[Line, Row] = {}  # line -> row of the last drawing

    def show(self, model: Any) -> None:
        """Draw the panel for `model`, repainting only cells that changed."""
        self._model = model
        panel_input = None if self._depends_on is None else self._depends_on(model)
        if panel_input is None or panel_input != self._last_input:
            self._last_input = panel_input
            self.redraw()

    @property
    def inside(self) -> tuple[int, int]:
        """Width and height in cells of the panel's area for lines, without its box."""
        width, height = self.size
        return (width - 4, height - 2) if self._has_frame(width, height) else (width, height)

    def _has_frame(self, width: int, height: int) -> bool:
        """Whether the panel is drawn in a box: it has a title and enough cells."""
        return bool(self._title) and width > 8 and height > 2

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """Draw the panel's lines, in its box, as `height` rows of `width` cells."""
        if not self._has_frame(width, height):
            return self._filled(width, height, palette)
        title = self._title if isinstance(self._title, str) else "" if self._model is None else self._title(self._model)
        shown = clean(cut(clean(title), width - 6), ascii_only=not palette.glyphs.braille)
        inside = [(EMPTY, *row, EMPTY) for row in self._filled(width - 4, height - 2, palette)]
        return framed(inside, [(shown, Style())], width, palette)

    def _filled(self, width: int, height: int, palette: Palette) -> Rows:
        """Compute the panel's lines and return them as exactly `height` rows of `width` cells."""
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
    """Convert a line to a row of `width` cells, cut or padded, without control characters; with `ascii_only` in
    ASCII.
    """
    fitted = fit([piece._replace(text=clean(piece.text)) for piece in line], width)
    # Convert to ASCII last: cutting adds an ellipsis.
    return row_of(
        tuple(piece._replace(text=clean(piece.text, ascii_only=True)) for piece in fitted) if ascii_only else fitted
    )
