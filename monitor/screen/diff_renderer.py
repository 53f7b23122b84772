"""Fewest bytes to the terminal: of a partial update, only the cells that differ from what the terminal shows.

Textual 8.2.8 writes more than a changed region: `ChopsUpdate` cuts a line at the region's right edge, but begins at the left edge of the widget, and every
segment carries its whole style and a reset. On a slow line that is most of the traffic of a screen that changes a little at a time. `Thrift` remembers what it
wrote, writes only cells that changed, and of a style only what differs from the style before.

Use: an app's `_display(screen, update)` passes `thrift.thin(update)` on. It rests on Textual's private `CompositorUpdate` classes; any other update goes
through as it is, and afterwards nothing is taken to be known of the screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate
from textual.strip import Strip

from operant.text import cells

_NEAR = 4  # cells: to write so many unchanged ones again is no dearer than to jump over them
_KEEP_STYLES = 4096

Codes = tuple[str, str, str]  # SGR parameters of attributes, foreground, background; empty for the terminal's own
Shown = tuple[str, Codes]

_PLAIN: Codes = ("", "", "")


class Thrift:
    """What the terminal shows, as far as partial updates were written through here."""

    def __init__(self) -> None:
        self._shown: dict[int, dict[int, Shown]] = {}  # by line and column
        self._codes: dict[Style, Codes] = {}

    def forget(self) -> None:
        """The terminal may show anything: what comes next is written in full."""
        self._shown.clear()

    def thin(self, update: Any) -> Any:
        """The same update, in fewer bytes where it is a partial one."""
        if type(update) is ChopsUpdate:
            return _Thinned(update, self)
        if update is not None:
            self.forget()
        return update

    def write(self, update: ChopsUpdate, console: Console) -> str:
        """Escape sequences that bring a partial update to the terminal."""
        system = console._color_system or ColorSystem.TRUECOLOR
        pen = _Pen()
        for y, x1, x2 in update.spans:
            shown = self._shown.setdefault(y, {})
            for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if strip is not None and x < x2 and end > x1:
                    self._write_part(strip, x, max(x, x1), min(end, x2), _Line(y, shown, pen, system))
        return pen.text()

    def _write_part(self, strip: Strip, column: int, left: int, right: int, to: _Line) -> None:
        """Write the cells from `left` to `right` of a strip that begins at `column`. No `Strip.crop`: making strips costs more than all else here."""
        y, shown, pen, system = to
        for text, style, control in strip:
            if control:
                continue
            if column >= right:
                break
            codes = self._codes_of(style, system)
            if text.isascii() or len(text) == cell_len(text):
                for place in range(max(left, column), min(right, column + len(text))):
                    cell = (text[place - column], codes)
                    if shown.get(place) != cell:
                        shown[place] = cell
                        pen.put(place, y, cell, shown)
                column += len(text)
                continue
            for cluster, width in _clusters(text):
                # The right half of a wide character is no cell that could be written alone: it is known to be taken.
                for place, cell in [(column, (cluster, codes)), *((column + half, ("", codes)) for half in range(1, width))]:
                    if left <= place < right and shown.get(place) != cell:
                        shown[place] = cell
                        pen.put(place, y, cell, shown)
                column += width

    def _codes_of(self, style: Style | None, system: ColorSystem) -> Codes:
        if style is None:
            return _PLAIN
        found = self._codes.get(style)
        if found is None:
            if len(self._codes) > _KEEP_STYLES:
                self._codes.clear()
            fore = ";".join(style.color.downgrade(system).get_ansi_codes()) if style.color else ""
            back = ";".join(style.bgcolor.downgrade(system).get_ansi_codes(False)) if style.bgcolor else ""
            found = self._codes[style] = (Strip.render_ansi(style.without_color, system), fore, back)
        return found


class _Line(NamedTuple):
    """Where cells are written to."""

    y: int
    shown: dict[int, Shown]
    pen: _Pen
    system: ColorSystem


def _clusters(text: str) -> Iterator[tuple[str, int]]:
    """Characters with the combining ones that follow them, and how many cells they take."""
    cluster, width = "", 0
    for character in text:
        own = cells(character)
        if own and cluster:
            yield cluster, width
            cluster, width = "", 0
        cluster, width = cluster + character, width + own
    if cluster:
        yield cluster, width


class _Pen:
    """Writes cells, and keeps in mind where the cursor is and which style is set."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._x = self._y = -1
        self._codes: Codes = _PLAIN

    def put(self, x: int, y: int, cell: Shown, line: dict[int, Shown]) -> None:
        """Write one cell; `line` is what its line shows."""
        character, codes = cell
        if not character:
            return
        if y != self._y or x < self._x:
            self._out.append(f"\x1b[{y + 1};{x + 1}H")
        elif x > self._x:
            between = [line.get(column) for column in range(self._x, x)] if x - self._x <= _NEAR else [None]
            if all(other is not None and other[1] == self._codes and other[0].isascii() and other[0] for other in between):
                self._out.extend(other[0] for other in between if other is not None)
            else:
                self._out.append(f"\x1b[{x - self._x}C")
        if codes != self._codes:
            self._out.append(self._turn(codes))
            self._codes = codes
        self._out.append(character)
        # A character not one cell wide may be drawn otherwise than it is counted: after it the place is told anew.
        self._x, self._y = (x + 1, y) if len(character) == 1 and cells(character) == 1 else (-1, -1)

    def _turn(self, codes: Codes) -> str:
        attributes, fore, back = codes
        before_attributes, before_fore, before_back = self._codes
        parts: list[str] = []
        if attributes != before_attributes:
            if before_attributes:
                parts.append("0")
                before_fore = before_back = ""
            if attributes:
                parts.append(attributes)
        if fore != before_fore:
            parts.append(fore or "39")
        if back != before_back:
            parts.append(back or "49")
        return f"\x1b[{';'.join(parts)}m"

    def text(self) -> str:
        """All that is to be written; the terminal's own style is set at its end."""
        if self._codes != _PLAIN:
            self._out.append("\x1b[0m")
            self._codes = _PLAIN
        return "".join(self._out)


class _Thinned(CompositorUpdate):
    """A partial update that is written through a `Thrift`."""

    def __init__(self, update: ChopsUpdate, thrift: Thrift) -> None:
        self._update, self._thrift = update, thrift

    def render_segments(self, console: Console) -> str:
        return self._thrift.write(self._update, console)
