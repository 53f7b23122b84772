"""Canvas: a widget drawn from cells that repaints only the changed ones.

A subclass returns rows of cells for a size. Text in cells is literal, never markup.
"""

from __future__ import annotations

from itertools import groupby

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from monitor.charts.cells import blank
from monitor.charts.palette import STYLE_OF, Palette, Row, Rows, Style

# runs fewer than 4 cells apart are merged: moving the cursor costs more bytes than rewriting the cells between
_NEAR = 4


def changed_runs(before: Row, after: Row) -> list[tuple[int, int]]:
    """Return the spans (start, length) in which two rows of equal width differ, nearby ones merged. If either row has a
    character that is not one cell wide, the whole row counts as changed.
    """
    runs: list[tuple[int, int]] = []
    for x, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is not new and old != new:
            if runs and x - (runs[-1][0] + runs[-1][1]) < _NEAR:
                runs[-1] = (runs[-1][0], x + 1 - runs[-1][0])
            else:
                runs.append((x, 1))
    # A region must not end within a wide character.
    return (
        [(0, len(after))]
        if runs and ("" in [cell[0] for cell in before] or "" in [cell[0] for cell in after])
        else runs
    )


class Canvas(Widget):
    """Widget drawn from rows of cells. A subclass implements `draw` and calls `redraw` after each change.

    An app with a true attribute `ascii_only` gets ASCII glyphs.
    """

    DEFAULT_CSS = "Canvas { height: 1; width: 1fr; }"

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._rows: Rows | None = None
        self._drawn_for: tuple[object, ...] = ()
        self._palette: Palette | None = None
        self._rich_styles: dict[Style, RichStyle] = {}
        self._strips: dict[int, tuple[Row, Strip]] = {}  # line -> (row, its strip)

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """Return the widget's contents as `height` rows of `width` cells (both >= 1). Subclasses replace it; blank by
        default.
        """
        return blank(width, height)

    @property
    def palette(self) -> Palette:
        """Colours and glyphs for the app's theme and this widget's background."""
        if self._palette is None:
            self._palette = Palette(
                self.app.current_theme.dark,
                self.background_colors[1].hex6,
                bool(getattr(self.app, "ascii_only", False)),
            )
            self._rich_styles = {}
        return self._palette

    def notify_style_update(self) -> None:
        """Discard the cached colours, since the theme or a style has changed."""
        super().notify_style_update()
        self._palette = None
        self._drawn_for = ()

    def redraw(self) -> None:
        """Draw the widget again and repaint the cells that changed. Nothing while it is hidden."""
        size = self.size  # evaluated once: the property is expensive in Textual
        if not self.is_mounted or not size or not self.display:
            self._drawn_for = ()
            return
        before, drawn_for = self._rows, self._drawn_for
        rows = self._draw(*size)
        if before is None or drawn_for != self._drawn_for:
            self.refresh()
            return
        self._rows = rows = [old if old == new else new for old, new in zip(before, rows, strict=True)]
        changed = [(y, old, new) for y, (old, new) in enumerate(zip(before, rows, strict=True)) if old is not new]
        regions = [Region(x, y, length, 1) for y, old, new in changed for x, length in changed_runs(old, new)]
        if regions:
            self.refresh(*regions)

    def _draw(self, width: int, height: int) -> Rows:
        """Draw all rows of the widget again and remember the size and colours for which they are valid."""
        palette = self.palette
        self._rows = self.draw(width, height, palette)
        if self._drawn_for != (width, height, palette.key):
            self._drawn_for = (width, height, palette.key)
            self._strips = {}
        return self._rows

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the Textual strips of a region of the widget, from the last drawing; drawn again first if size or
        colours have changed.

        Bypasses Textual's style rules, which take longer than the drawing: cells have complete styles, and a canvas has
        neither border nor padding. Only a line under the mouse with a click action takes Textual's path.
        """
        if "@click" in self.hover_style.meta:
            return super().render_lines(crop)
        rows, (first, last), filters = self._current(), crop.column_span, self.get_line_filters()
        strips = [self._strip(y, rows[y]) if y < len(rows) else Strip.blank(crop.right) for y in crop.line_range]
        for one in filters:
            strips = [strip.apply_filter(one, self.background_colors[1]) for strip in strips]
        return [strip if (first, last) == (0, strip.cell_length) else strip.crop(first, last) for strip in strips]

    def render_line(self, y: int) -> Strip:
        """Return the Textual strip of the complete line `y` of the widget; blank below the last."""
        rows = self._current()
        return self._strip(y, rows[y]) if 0 <= y < len(rows) else Strip.blank(self.size.width)

    def _current(self) -> Rows:
        """Return the rows of the last drawing, drawn again if size or colours have changed."""
        size = self.size
        return (
            self._rows if self._rows is not None and self._drawn_for == (*size, self.palette.key) else self._draw(*size)
        )

    def _strip(self, y: int, row: Row) -> Strip:
        """Return the Textual strip of row `y`; the cached one if `row` is the same object as at the last call."""
        known = self._strips.get(y)
        if known is not None and known[0] is row:
            return known[1]
        segments = [
            Segment("".join([cell[0] for cell in run]), self.style_of(style)) for style, run in groupby(row, STYLE_OF)
        ]
        strip = Strip(segments, len(row))
        self._strips[y] = row, strip
        return strip

    def style_of(self, style: Style) -> RichStyle:
        """Convert a cell's style to a Rich style with the palette's colours. Cached."""
        rich_style = self._rich_styles.get(style)
        if rich_style is None:
            colour, ground = self.palette.hex(style.fore), self.palette.hex(style.back)
            meta = {"@click": style.action} if style.action else None
            rich_style = self._rich_styles[style] = RichStyle(
                color=colour, bgcolor=ground, bold=style.bold or None, meta=meta
            )
        return rich_style
