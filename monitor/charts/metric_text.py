"""Metrics as text: newest value with its unit, trend and best, and labels of an axis. Standard library only.

Uses the number formats of `operant.text`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from monitor.charts.palette import UNICODE, Glyphs
from monitor.data.snapshot import Axis, Figure, Level, Point
from operant.text import count, duration, number, safe

_FLAT = 0.005  # relative change per minute below which there is no arrow, since one that flickers distracts
_MARKED = 0.05  # relative change per minute for the worse above which the arrow is coloured


class MetricText(NamedTuple):
    """Texts for a metric's value, trend, rate and best value; "" where unknown."""

    value: str = ""
    trend: str = ""  # an arrow
    rate: str = ""  # "+1.2/min"
    best: str = ""  # "best 495"
    level: Level | None = None  # ok: improving, warn: clearly worsening, None: neither


def with_unit(value: float | None, unit: str = "") -> str:
    """Format a value with its unit: 487.3, 4.71 M, 12.5 %, 0.123 s, 512 MB; "-" for None."""
    text = number(value)
    if unit == "bytes" and text[-1].isalpha():
        return f"{text}B"
    return f"{text} {safe(unit, 12)}" if unit and text != "-" else text


def signed(value: float) -> str:
    """Format a change with its sign: +1.2, -0.03."""
    return number(value) if value < 0 else f"+{number(value)}"


def metric_text(
    value: float | None,
    unit: str = "",
    trend_per_min: float | None = None,
    best: float | None = None,
    higher_better: bool | None = None,
    glyphs: Glyphs = UNICODE,
) -> MetricText:
    """Format a metric's value, trend and best value. `higher_better`: None if neither direction is better. A trend
    below half a percent per minute has no arrow.
    """
    best_text = "" if best is None or not math.isfinite(best) else f"best {with_unit(best, unit)}"
    if value is None:
        return MetricText("-", best=best_text)
    text = with_unit(value, unit)
    if trend_per_min is None or not (math.isfinite(trend_per_min) and math.isfinite(value)):
        return MetricText(text, best=best_text)
    size = max(abs(value), abs(best) if best is not None and math.isfinite(best) else 0.0)
    if abs(trend_per_min) <= _FLAT * size:
        return MetricText(text, best=best_text)
    up = trend_per_min > 0
    level: Level | None = None
    if higher_better is not None:
        level = "ok" if up == higher_better else "warn" if abs(trend_per_min) > _MARKED * size else None
    return MetricText(text, glyphs.up if up else glyphs.down, f"{signed(trend_per_min)}/min", best_text, level)


def figure_text(figure: Figure, glyphs: Glyphs = UNICODE) -> MetricText:
    """Format a key figure of the header: value, trend and best value."""
    return metric_text(figure.value, figure.unit, figure.trend_per_min, figure.best, figure.higher_better, glyphs)


def axis_text(axis: Axis, x: float) -> str:
    """Format an x of an axis: "341 M" (step), "0:02:41" (wall seconds), "1.3 k" (iteration)."""
    return duration(x) if axis == "wall" else count(x)


def axis_unit(axis: Axis) -> str:
    """Return the unit of an x axis, "steps" or "iterations"; "" for wall time."""
    return {"step": "steps", "iteration": "iterations"}.get(axis, "")


def cursor_text(axis: Axis, x: float, point: Point | None, unit: str = "") -> str:
    """Format the value at the inspection cursor, such as `at 212 M  0.44 (0.41 to 0.47)`, with a remark if some values
    were not finite.
    """
    if point is None:
        return f"at {axis_text(axis, x)}  no value"
    range_text = "" if point.low == point.high else f" ({number(point.low)} to {number(point.high)})"
    not_finite = "  not finite: !" if point.not_finite else ""
    return f"at {axis_text(axis, x)}  {with_unit(point.mean, unit)}{range_text}{not_finite}"
