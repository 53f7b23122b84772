"""The screen as text, without a terminal: for `operant monitor --once` and for tests. Knows no run."""

from __future__ import annotations

import contextlib
from typing import Any

from rich.style import Style
from textual.app import App
from textual.errors import NoWidget
from textual.widget import Widget

from monitor.charts import characters

Drawn = tuple[str, Style | None]


def picture(app: App[Any], size: tuple[int, int]) -> str:
    """Run the app without a terminal, in so many columns and lines, until its first picture is complete."""
    found: list[str] = []

    def take() -> None:
        found.append(text_of(app))
        app.exit()

    app.call_later(app.call_after_refresh, app.call_after_refresh, take)
    app.run(headless=True, size=size)
    return found[0] if found else ""


def text_of(app: App[Any]) -> str:
    """The text on the screen, line by line."""
    return "\n".join("".join(character for character, _ in line).rstrip() for line in cells(app))


def cells(app: App[Any]) -> list[list[Drawn]]:
    """Every cell on the screen: its character and style. The right half of a wide character is an empty text."""
    width, height = app.size
    lines: list[list[Drawn]] = [[(" ", None)] * width for _ in range(height)]
    for screen in app.screen_stack:
        places = []
        for widget in screen.query(Widget):
            with contextlib.suppress(NoWidget):
                places.append((screen.find_widget(widget), widget))
        for place, widget in sorted(
            ((place, widget) for place, widget in places if widget.visible), key=lambda one: one[0].order
        ):
            shown = place.visible_region
            for y, strip in zip(
                shown.line_range, widget.render_lines(shown.translate(-place.region.offset)), strict=False
            ):
                drawn = [(character, style) for text, style, _ in strip for character in characters(text)]
                lines[y][shown.x : shown.x + len(drawn)] = drawn
    return lines
