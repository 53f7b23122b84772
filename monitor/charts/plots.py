"""The contents of a chart, from a metric's series and the view. Knows no widget and no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from monitor.charts import figures
from monitor.charts.chart import ChartData, ChartMark
from monitor.charts.line import clean, cut
from monitor.charts.palette import UNICODE, Glyphs
from monitor.charts.scale import GUTTER, gutter
from monitor.data.snapshot import Axis, Mark, Point, Series
from monitor.screen.view import Held, View
from operant.text import count

_NEAR, _NEAR_SHARE = 8, 16  # the cursor reads a value so many points away, or this part of the chart
_LEAST_TITLE = 6


class Stage(NamedTuple):
    """What all charts of a screen share."""

    view: View
    window: tuple[float, float] | None  # of x; None: there is no record yet
    marks: Sequence[Mark] = ()
    target: float | None = None
    until: float | None = None  # x beyond which nothing is shown: the picture is frozen
    newest: float = 0.0  # x of the newest record
    at: float | None = None  # the x of the moment that is shown of an ended run
    held: Mapping[str, Held] | None = None
    figures: Mapping[str, float | None] = {}  # the values in the header, which titles of charts repeat
    overlay: Mapping[str, Series] | None = None
    overlay_name: str = ""
    overlay_band: bool = False  # its points are means between the ends of an interval
    empty: str = "no value yet"
    glyphs: Glyphs = UNICODE


def chart_data(series: Series, stage: Stage, columns: int) -> ChartData:
    """The contents of a chart with room for `columns` points."""
    view, held = (
        stage.view,
        (stage.held or {}).get(series.name) or Held(series.latest, series.trend_per_min, series.best),
    )
    held = held._replace(latest=stage.figures.get(series.name, held.latest))
    better = True if series.higher_better else None
    unit = "" if series.unit == "reward" else series.unit
    said = figures.words(held.latest, unit, held.trend_per_min, held.best if better else None, better, stage.glyphs)
    if series.kind == "rate":  # shown as a count; its change a minute is of no use
        best = f"best {count(held.best)}" if held.best is not None else ""
        said = said._replace(value=count(held.latest) if held.latest is not None else "-", rate="", best=best)
    value = f"{said.value:<6}"  # of fixed width, so that the trend beside it does not move
    head = ChartData(
        title=clean(_cut_title(series.label or series.name, len(value), columns), ascii_only=not stage.glyphs.braille),
        value=value,
        log_y=view.log_axis(series.name, series.log_axis),
        chosen=view.chosen == series.name,
        empty=(series.absent or stage.empty) if series.extent(view.axis) is None else "no value in this window",
    )
    if stage.window is None or columns < 1:
        return head
    first, last = stage.window
    points = _until(series.view(view.axis, first, last, columns, view.smooth), stage)
    other = (stage.overlay or {}).get(series.name)
    cursor = _cursor(series.name, stage, columns)
    if stage.at is not None and cursor is not None and view.inspected != series.name:
        # At an earlier moment the title has the value of that moment: the header's, where that has one.
        point = _nearest(points, cursor)
        value_then = stage.figures.get(series.name, None if point is None else point.mean)
        then = (
            "-"
            if value_then is None
            else count(value_then)
            if series.kind == "rate"
            else figures.with_unit(value_then, unit)
        )
        head, said = head._replace(value=f"{then:<6}"), said._replace(trend="", rate="", level=None)
    second = () if other is None else other.view(view.axis, first, last, columns, view.smooth)
    return head._replace(
        trend=said.trend,
        rate=said.rate,
        # With an overlay the other run's value takes the place of the best.
        best=said.best
        if other is None
        else f"{'┄' if stage.glyphs.braille else ':'} {_latest(other, unit)} {stage.overlay_name}",
        trend_level=said.level,
        points=points,
        overlay=second,
        overlay_band=stage.overlay_band,
        marks=_marks(stage.marks, view.axis, first, last, stage.until),
        x_left=figures.on_axis(view.axis, first),
        x_right=figures.on_axis(view.axis, last),
        cursor=cursor,
        reading="" if cursor is None or view.inspected != series.name else _reading(points, cursor, stage, second),
        target=stage.target if series.unit == "reward" else None,
    )


def _latest(series: Series, unit: str) -> str:
    return (
        count(series.latest)
        if series.kind == "rate" and series.latest is not None
        else figures.with_unit(series.latest, unit)
    )


def _cut_title(title: str, value_cells: int, columns: int) -> str:
    """The title, cut so that the value fits beside it; `columns` are two a cell of the plot."""
    room = columns // 2 + gutter(columns // 2 + GUTTER) - 3
    return cut(title, max(_LEAST_TITLE, room - value_cells - 2)) if columns else title


def mark_x(mark: Mark, axis: Axis) -> float:
    """Where a mark lies on an axis."""
    return mark.step if axis == "step" else mark.wall_s if axis == "wall" else mark.iteration


def _marks(marks: Iterable[Mark], axis: Axis, first: float, last: float, until: float | None) -> tuple[ChartMark, ...]:
    if not last > first:
        return ()
    places = ((mark.kind, mark_x(mark, axis)) for mark in marks)
    return tuple(
        ChartMark(kind, (x - first) / (last - first))
        for kind, x in places
        if first <= x <= last and (until is None or x <= until)
    )


def _until(points: Sequence[Point | None], stage: Stage) -> Sequence[Point | None]:
    if stage.until is None or stage.window is None:
        return points
    keep = index_of(stage.until, stage.window, len(points)) + 1
    return [*points[:keep], *([None] * (len(points) - keep))] if keep < len(points) else points


def index_of(x: float, window: tuple[float, float], columns: int) -> int:
    """The point of a window in which x lies."""
    first, last = window
    return min(max(int((x - first) / (last - first) * columns), 0), columns - 1) if last > first else 0


def _cursor(name: str, stage: Stage, columns: int) -> int | None:
    view = stage.view
    x = stage.at if view.inspected != name else stage.newest if view.cursor is None else view.cursor
    if x is None or stage.window is None or (view.inspected != name and not stage.window[0] <= x <= stage.window[1]):
        return None
    return index_of(x, stage.window, columns)


def _reading(points: Sequence[Point | None], cursor: int, stage: Stage, second: Sequence[Point | None]) -> str:
    """The value at the cursor, of the second run too: that of the nearest point that is not empty, within a few."""
    first, last = stage.window or (0.0, 0.0)
    said = figures.reading(
        stage.view.axis, first + (cursor + 0.5) / len(points) * (last - first), _nearest(points, cursor)
    )
    other = _nearest(second, cursor) if second else None
    return said if other is None else f"{said}  {'┄' if stage.glyphs.braille else ':'} {figures.with_unit(other.mean)}"


def _nearest(points: Sequence[Point | None], cursor: int) -> Point | None:
    reach = max(_NEAR, len(points) // _NEAR_SHARE)
    near = sorted(
        range(max(0, cursor - reach), min(len(points), cursor + reach + 1)), key=lambda index: abs(index - cursor)
    )
    return next((points[index] for index in near if points[index] is not None), None)
