"""Axes: ranges of x and y, and tick labels. Standard library only.

Both ranges are sticky, so that a chart does not move with every record: the y range has about 15 % of hysteresis, the x
window grows in jumps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monitor.data.snapshot import Point

HYSTERESIS = 0.15
_LEAST_SHARE = 0.02  # minimum range relative to the values, so that the noise of a constant is not magnified
_FILLED = 0.4  # a range is kept while values fill this share of it
_OFF = 0.05  # relative error allowed in a label
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TINY, _HUGE, _DECADES = 1e-290, 1e290, 300.0  # smaller values count as zero, larger ones are clipped

# cells of y labels including the space, and the minimum inner width of a chart that has them
GUTTER, _GUTTER_FROM = 6, 22


def gutter(inner: int) -> int:
    """Return the number of cells for y labels in a chart with `inner` cells within its box; 0 in a narrow one."""
    return GUTTER if inner >= _GUTTER_FROM else 0


class Range(NamedTuple):
    """Range of a y axis from `low` to `high` (low < high); a log range stores exponents of ten."""

    low: float
    high: float
    log: bool = False

    @property
    def span(self) -> float:
        """Difference between the ends of the range."""
        return self.high - self.low

    def position(self, value: float) -> float | None:
        """Return the relative position of `value` on the axis: 0 at `low`, 1 at `high`, below 0 or above 1 outside;
        None if a log axis cannot show it.
        """
        if self.log:
            if value <= _TINY:
                return None
            value = math.log10(value)
        return (min(max(value, -_HUGE), _HUGE) - self.low) / (self.high - self.low)


def nice_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least` (> 0)."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((step * power for step in _STEPS if step * power >= least * (1 - 1e-9)), 10 * power)


def _extent(points: Iterable[Point | None], log: bool) -> tuple[float, float] | None:
    """Return the smallest and largest y to show: of all means, and of bands except outliers. `log`: exponents of ten of
    positive values only. None if nothing can be shown.
    """
    lows: tuple[float, ...]
    means: tuple[float, ...]
    highs: tuple[float, ...]
    shown = [point for point in points if point is not None and (not log or point.mean > _TINY)]
    if not shown:
        return None
    if log:
        means = tuple(math.log10(point.mean) for point in shown)
        lows = tuple(
            math.log10(point.low) if point.low > _TINY else mean for point, mean in zip(shown, means, strict=True)
        )
        highs = tuple(math.log10(max(point.high, point.mean)) for point in shown)
    else:
        lows, means, highs, _ = zip(*shown, strict=True)
        if min(lows) < -_HUGE or max(highs) > _HUGE:
            lows, means, highs = (
                tuple(min(max(value, -_HUGE), _HUGE) for value in values) for values in (lows, means, highs)
            )
    low, high = min(means), max(means)
    widths = sorted(b - a for a, b in zip(lows, highs, strict=True))
    slack = max(high - low, 1.5 * widths[len(widths) * 9 // 10])
    return max(min(lows), low - slack), min(max(highs), high + slack)


def _rounded(low: float, high: float, log: bool) -> Range:
    """Round a y range from `low` to `high` outwards to even steps, and widen one that is nearly a single value. `log`:
    the ends are exponents of ten.
    """
    if log:
        if high - low < 0.25:
            middle = (low + high) / 2
            low, high = middle - 0.125, middle + 0.125
        step = 1.0 if high - low > 1 else 0.25
    else:
        least = max(_LEAST_SHARE * max(abs(low), abs(high)), _TINY * 1e10)
        if high - low < least:
            if low == high == 0:
                return Range(0.0, 1.0)
            # Nearly constant: its value is the tick in the middle.
            step = nice_step(least)
            middle = round((low + high) / 2 / step) * step
            return Range(middle - step, middle + step)
        if 0 <= low <= 0.35 * high:
            low = 0.0
        if 0 >= high >= 0.35 * low:
            high = 0.0
        step = nice_step((high - low) / 5)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Range(max(low, -_DECADES), min(high, _DECADES), True) if log else Range(low, high)


def y_range(points: Iterable[Point | None], log: bool = False, previous: Range | None = None) -> Range | None:
    """Choose the y range (`log`: logarithmic) for points, or keep `previous` as long as it suits them. None if nothing
    can be shown.

    A new range is chosen when values leave the previous one or fill less than two fifths of it; it has a margin of 15
    %.
    """
    extent = _extent(points, log)
    if extent is None:
        return None
    low, high = extent
    wanted = _rounded(low, high, log)
    if previous is None or previous.log != log:
        return wanted
    slack = 1e-9 * previous.span
    inside = previous.low - slack <= low and high <= previous.high + slack
    if inside and (high - low >= _FILLED * previous.span or wanted.span >= (1 - HYSTERESIS) * previous.span):
        return previous
    margin = HYSTERESIS * (high - low)
    # Keep zero as an end if values approach it without crossing.
    with_margin = _rounded(
        low if low == 0 or 0 < low <= margin else low - margin,
        high if high == 0 or 0 > high >= -margin else high + margin,
        log,
    )
    return previous if inside and with_margin.span >= (1 - HYSTERESIS) * previous.span else with_margin


def tick_text(value: float, cells: int) -> str:
    """Format `value` as an axis label of at most `cells` (>= 4) characters: 500, 0.25, 1.5M, -12k, 1e-9; "" if no
    accurate label is that short.
    """
    if value == 0:
        return "0"
    size, sign = abs(value), "-" if value < 0 else ""
    texts: list[str] = []
    if 1e-3 <= size < 9999.5 and not (size >= 1e3 and size % 100 == 0):
        texts += [_trim(f"{size:.{digits}f}") for digits in range(4, -1, -1)]
    if 999.5 <= size < 1e15:
        for power in range(max(1, int(math.log10(size)) // 3), 5):
            texts += [
                _trim(f"{size / 1000**power:.{digits}f}") + "kMGT"[power - 1]
                for digits in (2, 1, 0)
                if size / 1000**power >= 0.9995
            ]
    texts += [f"{size:.{digits}e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e") for digits in (1, 0)]
    fitting = [text for text in texts if len(text) <= cells - len(sign) and not text.startswith("1000")]
    # Prefer another notation to an inaccurate label; show none if all are inaccurate.
    for off in (_OFF, 0.5):
        for text in fitting:
            if abs(tick_value(text) - size) <= off * size:
                return sign + text
    return ""


def _trim(text: str) -> str:
    """Remove trailing zeros after the decimal point, and a trailing point."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def tick_value(text: str) -> float:
    """Convert a label made by `tick_text` back to the number that it shows."""
    power = " kMGT".find(text[-1])
    return float(text[:-1]) * 1000.0**power if power > 0 else float(text)


def ticks(shown: Range, most: int) -> Sequence[float]:
    """Choose evenly spaced values of a y range to label, at most `most` (>= 1), including both ends if two fit."""
    if most <= 1:
        values = [shown.high]
    else:
        step = (1.0 if shown.span >= 1 else 0.25) if shown.log else nice_step(shown.span / 5)
        count = max(1, round(shown.span / step))
        parts = next((parts for parts in (4, 2, 3, 1) if parts < most and count % parts == 0), 1)
        values = [shown.low + shown.span * part / parts for part in range(parts + 1)]
        values = [0.0 if abs(position) < 1e-9 * shown.span else position for position in values]
    return [10.0**position if shown.log else position for position in values]


def window(first: float, last: float, previous: tuple[float, float] | None = None) -> tuple[float, float]:
    """Choose the x range for data from `first` to `last`. It ends at the next round number, so that columns do not move
    while records arrive.

    The end is the next of 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten after `last`, measured from the
    start: on average a tenth of the width is free. `previous` is kept while the data lie in it and fill more than half
    of it.
    """
    start = 0.0 if 0 <= first <= 0.25 * last else first
    if previous is not None and previous[0] == start and start + (previous[1] - start) / 2 <= last <= previous[1]:
        return previous
    length = last - start
    if not length > 0:
        return start, start + 1.0
    power = 10.0 ** math.floor(math.log10(length))
    steps = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    return start, start + next((step * power for step in steps if step * power >= length), 10 * power)
