"""Contents of a chart from a metric's series and the view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from monitor.charts import metric_text
from monitor.charts.chart import ChartData, ChartMark
from monitor.charts.line import clean, cut
from monitor.charts.palette import UNICODE, Glyphs
from monitor.charts.scale import GUTTER, gutter
from monitor.data.snapshot import Axis, Mark, Point, Series
from monitor.screen.view import TitleValues, View
from operant.text import count

_NEAR, _NEAR_SHARE = 8, 16  # the cursor reads the nearest value within 8 points or 1/16 of the chart
_LEAST_TITLE = 6


class ChartContext(NamedTuple):
    """State that all charts of the screen share: the view, the window of x, marks, the overlay, and values that differ
    from the series' while the screen is frozen.
    """

    view: View
    window: tuple[float, float] | None  # range of x; None: no record yet
    marks: Sequence[Mark] = ()
    target: float | None = None
    until: float | None = None  # last x shown while the screen is frozen
    newest: float = 0.0  # x of the newest record
    at: float | None = None  # x of the step shown of an ended run
    held: Mapping[str, TitleValues] | None = None
    figures: Mapping[str, float | None] = {}  # values in the header, repeated in titles
    overlay: Mapping[str, Series] | None = None
    overlay_name: str = ""
    overlay_band: bool = False  # its points are means with a confidence interval
    picked: str = ""  # folder of the member whose curve is drawn as the overlay, if there is no other
    empty: str = "no value yet"
    glyphs: Glyphs = UNICODE


def chart_data(series: Series, context: ChartContext, columns: int) -> ChartData:
    """Compute what the chart of one metric shows. `columns`: number of points in its plot."""
    view, held = (
        context.view,
        (context.held or {}).get(series.name) or TitleValues(series.latest, series.trend_per_min, series.best),
    )
    held = held._replace(latest=context.figures.get(series.name, held.latest))
    better = True if series.higher_better else None
    unit = "" if series.unit == "reward" else series.unit
    text = metric_text.metric_text(
        held.latest, unit, held.trend_per_min, held.best if better else None, better, context.glyphs
    )
    if series.kind == "rate":  # shown as a count, without slope
        best = f"best {count(held.best)}" if held.best is not None else ""
        text = text._replace(value=count(held.latest) if held.latest is not None else "-", rate="", best=best)
    value = f"{text.value:<6}"  # fixed width, so that the trend next to it does not move
    head = ChartData(
        title=clean(
            _cut_title(series.label or series.name, len(value), columns), ascii_only=not context.glyphs.braille
        ),
        value=value,
        log_y=view.log_axis(series.name, series.log_axis),
        chosen=view.chosen == series.name,
        empty=(series.absent or context.empty) if series.extent(view.axis) is None else "no value in this window",
    )
    if context.window is None or columns < 1:
        return head
    first, last = context.window
    points = _hide_after_frozen(series.view(view.axis, first, last, columns, view.smooth), context)
    other = (context.overlay or {}).get(series.name) or series.members.get(context.picked)
    strands = [
        _hide_after_frozen(one.view(view.axis, first, last, columns, view.smooth), context)
        for one in series.members.values()
        if one is not other
    ]
    cursor = _cursor(series.name, context, columns)
    if context.at is not None and cursor is not None and view.inspected != series.name:
        # At an earlier step the title shows that step's value: the header's if it has one.
        point = _nearest(points, cursor)
        value_then = context.figures.get(series.name, None if point is None else point.mean)
        then = (
            "-"
            if value_then is None
            else count(value_then)
            if series.kind == "rate"
            else metric_text.with_unit(value_then, unit)
        )
        head, text = head._replace(value=f"{then:<6}"), text._replace(trend="", rate="", level=None)
    second = () if other is None else other.view(view.axis, first, last, columns, view.smooth)
    return head._replace(
        trend=text.trend,
        rate=text.rate,
        # With an overlay the other run's value replaces the best.
        best=text.best
        if other is None
        else f"{'┄' if context.glyphs.braille else ':'} {_latest(other, unit)} {context.overlay_name}",
        trend_level=text.level,
        points=points,
        overlay=second,
        overlay_band=context.overlay_band,
        strands=strands,
        marks=_marks(context.marks, view.axis, first, last, context.until),
        x_left=metric_text.axis_text(view.axis, first),
        x_right=metric_text.axis_text(view.axis, last),
        x_unit=metric_text.axis_unit(view.axis),
        cursor=cursor,
        reading="" if cursor is None or view.inspected != series.name else _reading(points, cursor, context, second),
        target=context.target if series.unit == "reward" else None,
    )


def _latest(series: Series, unit: str) -> str:
    """Format the newest value of a metric with `unit`; rates as a count."""
    return (
        count(series.latest)
        if series.kind == "rate" and series.latest is not None
        else metric_text.with_unit(series.latest, unit)
    )


def _cut_title(title: str, value_cells: int, columns: int) -> str:
    """Cut a chart's title to the cells that its newest value, `value_cells` wide, leaves in the title line. `columns`
    is the number of plot points, two per cell; 0: do not cut.
    """
    width = columns // 2 + gutter(columns // 2 + GUTTER) - 3
    return cut(title, max(_LEAST_TITLE, width - value_cells - 2)) if columns else title


def mark_x(mark: Mark, axis: Axis) -> float:
    """Return the position of a mark on an x axis: its step, wall seconds or iteration."""
    return mark.step if axis == "step" else mark.wall_s if axis == "wall" else mark.iteration


def _marks(marks: Iterable[Mark], axis: Axis, first: float, last: float, until: float | None) -> tuple[ChartMark, ...]:
    """Return the marks in [first, last] of an axis with their relative positions, none later than `until`."""
    if not last > first:
        return ()
    positions = ((mark.kind, mark_x(mark, axis)) for mark in marks)
    return tuple(
        ChartMark(kind, (x - first) / (last - first))
        for kind, x in positions
        if first <= x <= last and (until is None or x <= until)
    )


def _hide_after_frozen(points: Sequence[Point | None], context: ChartContext) -> Sequence[Point | None]:
    """Replace the points later than the moment at which the screen was frozen (`context.until`) by None."""
    if context.until is None or context.window is None:
        return points
    keep = index_of(context.until, context.window, len(points)) + 1
    return [*points[:keep], *([None] * (len(points) - keep))] if keep < len(points) else points


def index_of(x: float, window: tuple[float, float], columns: int) -> int:
    """Return the index of the plot point, of `columns` over `window` (first, last), in which x lies."""
    first, last = window
    return min(max(int((x - first) / (last - first) * columns), 0), columns - 1) if last > first else 0


def _cursor(name: str, context: ChartContext, columns: int) -> int | None:
    """Return the index of the plot point, of `columns`, under the cursor in the chart of metric `name`. None without a
    cursor or a window, or if the cursor of another chart lies outside the window.
    """
    view = context.view
    x = context.at if view.inspected != name else context.newest if view.cursor is None else view.cursor
    if (
        x is None
        or context.window is None
        or (view.inspected != name and not context.window[0] <= x <= context.window[1])
    ):
        return None
    return index_of(x, context.window, columns)


def _reading(points: Sequence[Point | None], cursor: int, context: ChartContext, second: Sequence[Point | None]) -> str:
    """Format the value at the cursor, and the overlay's (`second`: its points). An empty point is read from the nearest
    one within a few points; with none there the text says "no value".
    """
    first, last = context.window or (0.0, 0.0)
    text = metric_text.cursor_text(
        context.view.axis, first + (cursor + 0.5) / len(points) * (last - first), _nearest(points, cursor)
    )
    other = _nearest(second, cursor) if second else None
    return (
        text
        if other is None
        else f"{text}  {'┄' if context.glyphs.braille else ':'} {metric_text.with_unit(other.mean)}"
    )


def _nearest(points: Sequence[Point | None], cursor: int) -> Point | None:
    """Return the point nearest to index `cursor`, at most 8 points or 1/16 of the chart away; None if all are empty."""
    radius = max(_NEAR, len(points) // _NEAR_SHARE)
    near = sorted(
        range(max(0, cursor - radius), min(len(points), cursor + radius + 1)), key=lambda index: abs(index - cursor)
    )
    return next((points[index] for index in near if points[index] is not None), None)
