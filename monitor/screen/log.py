"""The log as lines: its end below the charts, all of it on the log page. Standard library only. The functions are
pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.charts import Line, Piece, broken, clean, fit, width_of
from monitor.data.snapshot import LogLine
from monitor.screen.model import Model


def log(model: Model, width: int, height: int) -> list[Line]:
    """Draw the log's newest lines at the bottom, or on the log page the part to which the user has scrolled. Long lines
    wrap on the log page and are cut elsewhere.
    """
    shown = _matching(model)
    if not shown:
        words = (
            "no line matches the filter (esc clears it)"
            if model.view.filter and model.snapshot.log
            else "the log is empty"
        )
        return [(Piece(words, "dim"),)]
    if model.view.page != "log":
        return [fit(_log_lines(line, width)[0], width) for line in shown[-height:]]
    lines: list[Line] = []
    for one in reversed(shown):
        lines[:0] = _log_lines(one, width, wrap=True)
        if len(lines) >= height + model.view.scroll:
            break
    up = min(model.view.scroll, max(0, len(lines) - height))
    return lines[max(0, len(lines) - height - up) : len(lines) - up]


def log_length(model: Model, width: int) -> int:
    """Return the number of screen lines, `width` cells wide, of the log lines that match the log page's filter."""
    return sum(len(_log_lines(line, width, wrap=True)) for line in _matching(model))


def _matching(model: Model) -> Sequence[LogLine]:
    """Return the log lines that match the filter on the log page; on other pages all."""
    wanted = model.view.filter.lower() if model.view.page == "log" else ""
    return [line for line in model.snapshot.log if wanted in line.text.lower()] if wanted else model.snapshot.log


def _log_lines(line: LogLine, width: int, *, wrap: bool = False) -> list[Line]:
    """Format a log line for a panel of `width` cells; with `wrap` as several lines if it is wider."""
    style = {"warn": "warn", "bad": "bad"}.get(line.level, "text" if line.is_event else "dim")
    clock = f"{line.clock} " if line.clock else ""
    text = clean(line.text)
    indent = width_of(clock) if width >= 3 * width_of(clock) else 0
    parts = broken(text, width - width_of(clock)) if wrap and width_of(clock) + width_of(text) > width else [text]
    if len(parts) > 1:
        parts = [parts[0], *broken(text[len(parts[0]) :], width - indent)]
    return [
        (Piece(clock, "dim"), Piece(parts[0], style)),
        *((Piece(" " * indent), Piece(part, style)) for part in parts[1:]),
    ]
