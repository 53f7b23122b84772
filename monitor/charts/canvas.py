"""A widget drawn from cells, which repaints only those that changed.

Knows nothing of the contents: a subclass gives rows of cells for a size. Text in cells is literal, never markup.
"""

from __future__ import annotations

from itertools import groupby

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from monitor.charts.cells import blank
from monitor.charts.palette import Cell, Palette, Row, Rows, Style

_NEAR = 4  # cells: changed runs at most so far apart are one run, as moving the cursor costs more than writing the cells between


def changed_runs(before: Row, after: Row) -> list[tuple[int, int]]:
    """(start, length) of the runs in which two rows of one width differ; the whole row where a character is not one cell wide."""
    runs: list[tuple[int, int]] = []
    for x, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is not new and old != new:
            if runs and x - (runs[-1][0] + runs[-1][1]) < _NEAR:
                runs[-1] = (runs[-1][0], x + 1 - runs[-1][0])
            else:
                runs.append((x, 1))
    # A region that ends within a wide character would be drawn with half of it.
    return [(0, len(after))] if runs and ("" in [cell[0] for cell in before] or "" in [cell[0] for cell in after]) else runs


class Canvas(Widget):
    """Rows of cells as a widget. A subclass implements `draw`, and calls `redraw` after each change of what it draws.

    An app that has an attribute `ascii_only` that is true gets ASCII glyphs.
    """

    DEFAULT_CSS = "Canvas { height: 1; width: 1fr; }"

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._rows: Rows | None = None
        self._drawn_for: tuple[object, ...] = ()
        self._palette: Palette | None = None
        self._rich_styles: dict[Style, RichStyle] = {}

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """`height` rows of `width` cells (both >= 1)."""
        return blank(width, height)

    @property
    def palette(self) -> Palette:
        """Colours and glyphs of the app's theme on this widget's ground."""
        if self._palette is None:
            self._palette = Palette(self.app.current_theme.dark, self.background_colors[1].hex6, bool(getattr(self.app, "ascii_only", False)))
            self._rich_styles = {}
        return self._palette

    def notify_style_update(self) -> None:
        """The theme or a style changed: every colour may be another."""
        super().notify_style_update()
        self._palette = None
        self._drawn_for = ()

    def redraw(self) -> None:
        """Draw again and repaint the cells that changed; nothing where none did."""
        if not self.is_mounted or not self.size or not self.display:
            self._drawn_for = ()
            return
        before, drawn_for = self._rows, self._drawn_for
        rows = self._draw()
        if before is None or drawn_for != self._drawn_for:
            self.refresh()
            return
        regions = [Region(x, y, length, 1) for y, (old, new) in enumerate(zip(before, rows, strict=True)) if old != new for x, length in changed_runs(old, new)]
        if regions:
            self.refresh(*regions)

    def _draw(self) -> Rows:
        palette = self.palette
        width, height = self.size
        self._rows = self.draw(width, height, palette)
        self._drawn_for = (width, height, palette.key)
        return self._rows

    def render_line(self, y: int) -> Strip:
        """One line, out of the cells drawn last; drawn anew where size or colours are no longer those."""
        width, height = self.size
        rows = self._rows
        if rows is None or self._drawn_for != (width, height, self.palette.key):
            rows = self._draw()
        if not 0 <= y < len(rows):
            return Strip.blank(width)
        segments = [Segment("".join([cell[0] for cell in run]), self.style_of(style)) for style, run in groupby(rows[y], _style)]
        return Strip(segments, width)

    def style_of(self, style: Style) -> RichStyle:
        """The Rich style of a cell style, made once."""
        found = self._rich_styles.get(style)
        if found is None:
            colour, ground = self.palette.hex(style.fore), self.palette.hex(style.back)
            meta = {"@click": style.action} if style.action else None
            found = self._rich_styles[style] = RichStyle(color=colour, bgcolor=ground, bold=style.bold or None, meta=meta)
        return found


def _style(cell: Cell) -> Style:
    return cell[1]
