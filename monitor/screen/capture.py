"""The screen as text, without a terminal: for `operant monitor --once` and for tests."""

from __future__ import annotations

import contextlib
from typing import Any

from rich.style import Style
from textual.app import App
from textual.errors import NoWidget
from textual.widget import Widget

from monitor.charts import characters

Drawn = tuple[str, Style | None]


def screenshot(app: App[Any], size: tuple[int, int]) -> str:
    """Run an app without a terminal at `size` (columns, lines) until its first frame is complete. Returns the frame's
    text.
    """
    texts: list[str] = []

    def take() -> None:
        texts.append(text_of(app))
        app.exit()

    app.call_later(app.call_after_refresh, app.call_after_refresh, take)
    app.run(headless=True, size=size)
    return texts[0] if texts else ""


def text_of(app: App[Any]) -> str:
    """Return the text on an app's screen, one line per row."""
    return "\n".join("".join(character for character, _ in line).rstrip() for line in cells(app))


def cells(app: App[Any]) -> list[list[Drawn]]:
    """Return the character and style of every cell on an app's screen, by line. The right half of a wide character is
    "".
    """
    width, height = app.size
    lines: list[list[Drawn]] = [[(" ", None)] * width for _ in range(height)]
    for screen in app.screen_stack:
        geometries = []
        for widget in screen.query(Widget):
            with contextlib.suppress(NoWidget):
                geometries.append((screen.find_widget(widget), widget))
        for geometry, widget in sorted(
            ((geometry, widget) for geometry, widget in geometries if widget.visible), key=lambda one: one[0].order
        ):
            shown = geometry.visible_region
            for y, strip in zip(
                shown.line_range, widget.render_lines(shown.translate(-geometry.region.offset)), strict=False
            ):
                drawn = [(character, style) for text, style, _ in strip for character in characters(text)]
                lines[y][shown.x : shown.x + len(drawn)] = drawn
    return lines
