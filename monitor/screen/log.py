"""The log as lines: its end beside charts, all of it on a page of its own. Standard library only. Pure; knows neither
widgets nor files nor clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.charts import Line, Piece, broken, clean, fit, width_of
from monitor.data.snapshot import LogLine
from monitor.screen.model import Model


def log(model: Model, width: int, height: int) -> list[Line]:
    """The log's end, or as far up as the person has scrolled; the newest line at the bottom. On its own page lines
    wrap, beside charts they are cut.
    """
    shown = _fitting(model)
    if not shown:
        words = (
            "no line fits the filter (esc clears)"
            if model.view.filter and model.snapshot.log
            else "nothing in the log yet"
        )
        return [(Piece(words, "dim"),)]
    if model.view.page != "log":
        return [fit(_said(line, width)[0], width) for line in shown[-height:]]
    lines: list[Line] = []
    for one in reversed(shown):
        lines[:0] = _said(one, width, whole=True)
        if len(lines) >= height + model.view.scroll:
            break
    up = min(model.view.scroll, max(0, len(lines) - height))
    return lines[max(0, len(lines) - height - up) : len(lines) - up]


def log_length(model: Model, width: int) -> int:
    """How many lines all of the log takes on its page."""
    return sum(len(_said(line, width, whole=True)) for line in _fitting(model))


def _fitting(model: Model) -> Sequence[LogLine]:
    """The lines that the filter lets through, on the log's own page."""
    wanted = model.view.filter.lower() if model.view.page == "log" else ""
    return [line for line in model.snapshot.log if wanted in line.text.lower()] if wanted else model.snapshot.log


def _said(line: LogLine, width: int, *, whole: bool = False) -> list[Line]:
    """A line of the log; whole, it goes on below its beginning where it is longer than the panel is wide."""
    style = {"warn": "warn", "bad": "bad"}.get(line.level, "text" if line.is_event else "dim")
    clock = f"{line.clock} " if line.clock else ""
    text = clean(line.text)
    indent = width_of(clock) if width >= 3 * width_of(clock) else 0
    parts = broken(text, width - width_of(clock)) if whole and width_of(clock) + width_of(text) > width else [text]
    if len(parts) > 1:
        parts = [parts[0], *broken(text[len(parts[0]) :], width - indent)]
    return [
        (Piece(clock, "dim"), Piece(parts[0], style)),
        *((Piece(" " * indent), Piece(part, style)) for part in parts[1:]),
    ]
