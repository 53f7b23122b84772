"""Game screen, a Textual app: the picture, two lines of text below it and a box over it.

A `Playable` provides the contents and handles the keys: a person's game (operant/play/game.py) or the policy viewer
(operant/play/viewer.py).
"""

from __future__ import annotations

import functools
import os
import sys
import time
from itertools import groupby
from typing import ClassVar

from rich.color import Color
from rich.segment import Segment
from rich.style import Style as TextStyle
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from operant.errors import UsageError
from operant.play.halfblocks import Cell, Rows, Style
from operant.play.view import Playable, ScreenText, View
from operant.text import safe

SMALLEST = (24, 8)
"""Minimum terminal size, (columns, lines)."""
_NAMES = {
    "escape": "esc",
    "up": "up",
    "down": "down",
    "left": "left",
    "right": "right",
    "enter": "enter",
    "tab": "tab",
    "backspace": "backspace",
}


def require(what: str) -> None:
    """Check that the standard streams are a terminal large enough for `what` (such as "--render term"). Raises
    UsageError.
    """
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if not all(stream is not None and not stream.closed and stream.isatty() for stream in streams) or os.environ.get(
        "TERM", ""
    ) in ("", "dumb"):
        raise UsageError(f"{what} needs a terminal as input and output")
    columns, lines = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    if columns and lines and (columns < SMALLEST[0] or lines < SMALLEST[1]):
        raise UsageError(f"terminal is {columns}×{lines}; {what} needs {SMALLEST[0]}×{SMALLEST[1]}")


@functools.lru_cache(8192)
def _style(fore: bytes | None, back: bytes | None) -> TextStyle:
    """Make the style of terminal text with a foreground and a background colour, 3 bytes each; None is the terminal's
    default.
    """
    front, background = (Color.from_rgb(*colour) if colour is not None else None for colour in (fore, back))
    return TextStyle(color=front, bgcolor=background)


def _cell_colours(cell: Cell) -> tuple[bytes | None, bytes | None]:
    """Foreground and background colours of a cell."""
    return cell[1:]


class Picture(Widget):
    """Widget that shows rows of coloured cells. Only changed rows are sent, which suits SSH."""

    class Resized(Message):
        """Message that the size of the picture's widget has changed."""

    def __init__(self) -> None:
        super().__init__(id="picture")
        self._rows: Rows = []

    def show(self, rows: Rows) -> None:
        """Replace the rows of cells, repainting only those that have changed."""
        before, self._rows = self._rows, rows
        if [len(row) for row in before] != [len(row) for row in rows]:
            self.refresh()
            return
        changed = []
        for y, (old, new) in enumerate(zip(before, rows, strict=True)):
            if old is not new and old != new:
                columns = [x for x, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
                changed.append(Region(columns[0], y, columns[-1] + 1 - columns[0], 1))
        if changed:
            self.refresh(*changed)

    def on_resize(self) -> None:
        """Post the message `Resized`, so that the screen draws the picture in the new size."""
        self.post_message(self.Resized())

    def render_line(self, y: int) -> Strip:
        """Return line `y` of the picture, padded to the widget's width."""
        row = self._rows[y] if y < len(self._rows) else []
        segments = [
            Segment("".join(cell[0] for cell in run), _style(*colours)) for colours, run in groupby(row, _cell_colours)
        ]
        return Strip(segments).adjust_cell_length(self.size.width)


class GameScreen(App[None], inherit_bindings=False):
    """Textual app that shows a game (`Playable`) until it is done, or until Ctrl-C. Ctrl-Z suspends it."""

    CSS = """
    Screen, Container, Static { background: ansi_default; color: ansi_default; }
    #field { height: 1fr; align: center middle; layers: below above; }
    #picture { layer: below; width: 100%; height: 100%; }
    #box { layer: above; width: auto; height: auto; padding: 0 1; text-style: reverse; }
    #score, #prompt { height: 1; text-wrap: nowrap; }
    """
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT: ClassVar[bool] = False

    def __init__(self, game: Playable, view: View) -> None:
        super().__init__(ansi_color=True)  # keep the terminal's background
        self._game, self._view = game, view
        encoding = (getattr(sys.__stderr__, "encoding", None) or "ascii").lower()  # Textual writes to stderr
        self._style = Style(not self.no_color, encoding.replace("-", "").replace("_", "") == "utf8")
        self._timer: Timer | None = None
        self._first_s: float | None = None  # time of the first frame

    def compose(self) -> ComposeResult:
        """Create the widgets: the picture of the game, the box over it, and the score and prompt lines."""
        with Container(id="field"):
            yield Picture()
            yield Static(id="box", markup=False)
        yield Static(id="score", markup=False)
        yield Static(id="prompt", markup=False)

    def on_picture_resized(self) -> None:
        """Draw the game in the picture's new size."""
        self._draw()

    def on_key(self, event: events.Key) -> None:
        """Pass a key to the game; Ctrl-C ends the app and Ctrl-Z suspends it. Keys typed before the first frame are
        dropped.
        """
        event.prevent_default()
        if event.key == "ctrl+c":
            self.exit()
        elif event.key == "ctrl+z":
            self._game.pause()
            self._draw()
            self.action_suspend_process()
        elif self._first_s is not None and event.time >= self._first_s:
            character = event.character or ""
            key = (
                "space"
                if character == " "
                else character
                if "!" <= character <= "~" and len(character) == 1
                else _NAMES.get(event.key)
            )
            if key is not None:
                self._game.press(key, time.monotonic())
                self._draw()

    def _tick(self) -> None:
        """Advance the game to now and draw it."""
        self._game.tick(time.monotonic())
        self._draw()

    def _draw(self) -> None:
        """Show the game's current state, and set the timer of its next step; exit the app if the game is done."""
        if self._timer is not None:
            self._timer.stop()
        if self._game.done:
            self.exit()
            return
        self._update_widgets(self._game.shown())
        if self._first_s is None:
            self._first_s = time.monotonic()
        if (due_s := self._game.due_s) is not None:
            self._timer = self.set_timer(max(0.001, due_s - time.monotonic()), self._tick)

    def _update_widgets(self, shown: ScreenText) -> None:
        """Show a game's text and picture: draw the picture, and update the box and the lines that have changed."""
        picture = self.query_one(Picture)
        width, height = picture.size
        if width > 0 and height > 0:
            picture.show(self._view.rows(width, height, self._style, shown.mark))
        box = self.query_one("#box", Static)
        lines = "\n".join(safe(line, max(1, width - 4)) for line in shown.box[: max(1, height)])
        if lines != str(box.content):
            box.update(lines)
        box.display = bool(lines)
        for name, line in (("#score", shown.score), ("#prompt", shown.prompt)):
            static, text = self.query_one(name, Static), safe(line, max(1, width - 1))
            if text != str(static.content):
                static.update(text, layout=False)
