"""Numbers as text: a metric's newest value with its unit, trend and best, and labels of an axis. Standard library only.

`operant.text` words the numbers; here they are put together. Knows nothing of cells.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from monitor.charts.palette import UNICODE, Glyphs
from monitor.data.snapshot import Axis, Figure, Level, Point
from operant.text import count, duration, number, safe

_FLAT = 0.005  # a change a minute below this share of the value has no arrow: one that comes and goes disturbs
_MARKED = 0.05  # a change a minute for the worse above this share has a colour


class Words(NamedTuple):
    """The parts of a title; each is empty where its value is not known."""

    value: str = ""
    trend: str = ""  # an arrow
    rate: str = ""  # "+1.2/min"
    best: str = ""  # "best 495"
    level: Level | None = None  # of the trend: ok for better, warn for markedly worse, else None


def with_unit(value: float | None, unit: str = "") -> str:
    """487.3, 4.71 M, 12.5 %, 0.123 s, 512 MB; a dash for none."""
    text = number(value)
    if unit == "bytes" and text[-1].isalpha():
        return f"{text}B"
    return f"{text} {safe(unit, 12)}" if unit and text != "-" else text


def signed(value: float) -> str:
    """A change: +1.2, -0.03."""
    return number(value) if value < 0 else f"+{number(value)}"


def words(
    value: float | None,
    unit: str = "",
    trend_per_min: float | None = None,
    best: float | None = None,
    higher_better: bool | None = None,
    glyphs: Glyphs = UNICODE,
) -> Words:
    """A metric in words. A trend of less than half a percent a minute has no arrow."""
    said_best = "" if best is None or not math.isfinite(best) else f"best {with_unit(best, unit)}"
    if value is None:
        return Words("-", best=said_best)
    said = with_unit(value, unit)
    if trend_per_min is None or not (math.isfinite(trend_per_min) and math.isfinite(value)):
        return Words(said, best=said_best)
    size = max(abs(value), abs(best) if best is not None and math.isfinite(best) else 0.0)
    if abs(trend_per_min) <= _FLAT * size:
        return Words(said, best=said_best)
    up = trend_per_min > 0
    level: Level | None = None
    if higher_better is not None:
        level = "ok" if up == higher_better else "warn" if abs(trend_per_min) > _MARKED * size else None
    return Words(said, glyphs.up if up else glyphs.down, f"{signed(trend_per_min)}/min", said_best, level)


def of_figure(figure: Figure, glyphs: Glyphs = UNICODE) -> Words:
    """A key figure in words."""
    return words(figure.value, figure.unit, figure.trend_per_min, figure.best, figure.higher_better, glyphs)


def on_axis(axis: Axis, x: float) -> str:
    """A label of the x axis: 341 M, 0:02:41, 1.3 k."""
    return duration(x) if axis == "wall" else count(x)


def reading(axis: Axis, x: float, point: Point | None, unit: str = "") -> str:
    """The reading at the inspection cursor: `at 212 M  0.44 (0.41 to 0.47)`, and that some values there were not
    finite.
    """
    if point is None:
        return f"at {on_axis(axis, x)}  no value"
    spread = "" if point.low == point.high else f" ({number(point.low)} to {number(point.high)})"
    return (
        f"at {on_axis(axis, x)}  {with_unit(point.mean, unit)}{spread}{'  not finite: !' if point.not_finite else ''}"
    )
