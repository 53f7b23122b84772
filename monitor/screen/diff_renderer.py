"""Minimal terminal output: of everything Textual draws, write only the cells that differ from what the terminal shows.

Textual 8.2.8 writes more than a changed region: it crops a line at the region's right edge but starts at the widget's
left edge, and every segment has its complete style and a reset. On a slow connection that dominates the traffic.
`DiffRenderer` parses the escape sequences on their way to the terminal (monitor/screen/terminal.py), tracks the cells
that the terminal shows, and writes only changed cells and style differences. The module does not import Textual.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from monitor.charts import characters
from operant.text import cells

_NEAR = 4  # cells: rewriting up to 4 unchanged ones costs no more than moving the cursor over them
_DRAWN = re.compile(r"([\d;]*)([mH])([^\x00-\x1f\x7f]*)\n?")  # a style or a cursor position, and the text that follows
# text of characters that are one cell wide: ASCII, boxes, braille
_NARROW = re.compile("[ -~\u2500-\u259f\u2800-\u28ff]*")
_SYNCHRONIZED = ("\x1b[?2026h", "\x1b[?2026l")  # start and end of a synchronized update; changes no cell

Codes = tuple[str, str, str]  # SGR parameters of attributes, foreground, background; empty for the terminal's default


class DiffRenderer:
    """Filter for terminal output that drops whatever would change nothing. It records what the terminal shows, cell by
    cell as far as known.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}

    def forget(self) -> None:
        """Treat the terminal's contents as unknown, so that every cell is written again."""
        self._lines.clear()

    def shorten(self, data: str) -> str:
        """Return shorter output with the same effect on the terminal as `data`. Data with unknown control sequences are
        returned unchanged, and the terminal's contents are then unknown.
        """
        if data in _SYNCHRONIZED:
            return data
        before, *rest = data.split("\x1b[")
        parts = [_parsed(part) for part in rest]
        if before or None in parts:
            self.forget()
            return data
        pen, sgr = _Pen(), ""
        x = y = 0
        moved = False
        for part in parts:
            assert part is not None
            parameters, command, text = part
            if command == "H":
                line, _, column = parameters.partition(";")
                y, x = int(line or 1) - 1, int(column or 1) - 1
            else:
                sgr = "" if parameters in ("", "0") else f"{sgr};{parameters}" if sgr else parameters
            moved = command == "H" and not text
            if text:
                x = self._lines.setdefault(y, _Line()).write(x, y, text, sgr, pen)
        return pen.text(y, x, moved=moved)


@functools.lru_cache(512)  # the parts of a screen; each has about 1 kB
def _parsed(part: str) -> tuple[str, str, list[str]] | None:
    """Parse the part of the output after an escape character: return parameters and command of the control sequence,
    and the text after it as one string per cell; None for an unknown sequence. Cached, since most repeat.
    """
    match = _DRAWN.fullmatch(part)
    if match is None:
        return None
    parameters, command, text = match.groups()
    return parameters, command, list(text) if _NARROW.fullmatch(text) else characters(text)


class _Line:
    """Contents of one line of the terminal: character and style of each cell, None where unknown."""

    def __init__(self) -> None:
        self.characters: list[str | None] = []
        self.styles: list[str] = []

    def write(self, x: int, y: int, new: list[str], sgr: str, pen: _Pen) -> int:
        """Store characters with the style `sgr` (parameters of a style sequence) at (x, y), and pass only changed cells
        to the pen. Returns the column after the text.
        """
        end = x + len(new)
        if (missing := end - len(self.styles)) > 0:
            self.characters += [None] * missing
            self.styles += [""] * missing
        if self.characters[x:end] != new or self.styles[x:end] != [sgr] * len(new):
            for column, character in enumerate(new, x):
                if self.characters[column] != character or self.styles[column] != sgr:
                    self.characters[column], self.styles[column] = character, sgr
                    pen.put(column, y, self)
        return end

    def between(self, first: int, last: int, sgr: str) -> str | None:
        """Return the text of cells `first` to `last` - 1 if it is known, ASCII, and in the style `sgr`; else None."""
        known = self.characters[first:last]
        same = all(character and character.isascii() for character in known) and self.styles[first:last] == [sgr] * (
            last - first
        )
        return "".join(character or "" for character in known) if same else None


class _Pen:
    """Builder of the output that draws single cells with as few control sequences as possible: it tracks the cursor's
    position and style.
    """

    def __init__(self) -> None:
        self._out: list[str] = []
        self._x = self._y = -1
        self._sgr = ""

    def put(self, x: int, y: int, line: _Line) -> None:
        """Add the cell at (x, y) of `line` to the output. The right half of a wide character is drawn with its left
        half.
        """
        character, sgr = line.characters[x], line.styles[x]
        if not character:
            return
        if y != self._y or x < self._x:
            self._out.append(f"\x1b[{y + 1};{x + 1}H")
        elif x > self._x:
            again = line.between(self._x, x, self._sgr) if x - self._x <= _NEAR else None
            self._out.append(f"\x1b[{x - self._x}C" if again is None else again)
        if sgr != self._sgr:
            self._out.append(_style_change(self._sgr, sgr))
            self._sgr = sgr
        self._out.append(character)
        # Terminals disagree about characters that are not one cell wide: write the position again after one.
        self._x, self._y = (x + 1, y) if len(character) == 1 and cells(character) == 1 else (-1, -1)

    def text(self, y: int, x: int, *, moved: bool) -> str:
        """Return the output so far, ending with the default style and, if the cursor has to be `moved`, with a move of
        it to (x, y); "" without output.
        """
        if not self._out:
            return ""
        if self._sgr:
            self._out.append("\x1b[0m")
        if moved:
            self._out.append(f"\x1b[{y + 1};{x + 1}H")
        return "".join(self._out)


@functools.lru_cache(4096)
def _style_change(before: str, after: str) -> str:
    """Return the shortest control sequence that changes style `before` to `after`, both given as SGR parameters."""
    (old_attributes, old_fore, old_back), (attributes, fore, back) = _codes(before), _codes(after)
    parts: list[str] = []
    if attributes != old_attributes:
        if old_attributes:
            parts.append("0")
            old_fore = old_back = ""
        if attributes:
            parts.append(attributes)
    if fore != old_fore:
        parts.append(fore or "39")
    if back != old_back:
        parts.append(back or "49")
    return f"\x1b[{';'.join(parts)}m" if parts else ""


def _codes(sgr: str) -> Codes:
    """Split the SGR parameters of a style into attributes, foreground and background; of several colours the last
    counts.
    """
    attributes: list[str] = []
    fore = back = ""
    parameters: Sequence[str] = sgr.split(";") if sgr else ()
    at = 0
    while at < len(parameters):
        parameter = parameters[at]
        size = 1 if parameter not in ("38", "48") else 5 if parameters[at + 1] == "2" else 3
        code = ";".join(parameters[at : at + size])
        at += size
        if parameter == "38" or (len(parameter) == 2 and parameter[0] in "39"):
            fore = "" if parameter == "39" else code
        elif parameter == "48" or len(parameter) == 3 or (len(parameter) == 2 and parameter[0] == "4"):
            back = "" if parameter == "49" else code
        else:
            attributes.append(code)
    return ";".join(attributes), fore, back
