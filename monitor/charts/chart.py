"""Chart: a titled frame with the newest value, axes, marks, and the plot of `monitor.charts.braille`.

`draw_chart` is pure; `Chart` is the widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from monitor.charts.braille import ColumnCache, Plot, draw_plot
from monitor.charts.canvas import Canvas
from monitor.charts.cells import Piece, framed, line, sentence, styled
from monitor.charts.palette import Cell, Glyphs, Palette, Rows, Style
from monitor.charts.scale import Range, gutter, tick_text, tick_value, ticks, y_range
from monitor.data.snapshot import Level, Point

# in increasing priority: of two marks in a cell the later kind is drawn
_KINDS = "checkpoint", "eval", "resume", "not_finite"
_ROUTINE = ("checkpoint", "eval")
_CROWDED = 6  # cells: if routine marks are closer than this on average, only the newest is drawn


class ChartMark(NamedTuple):
    """Event on a chart's x axis; `position` is from 0 (left) to 1 (right)."""

    kind: str  # checkpoint, eval, resume, not_finite
    position: float


class ChartData(NamedTuple):
    """Everything that a chart shows. Texts are printable; `points` are two per cell (`Chart.plot_columns`)."""

    title: str = ""
    value: str = ""  # newest, with its unit
    trend: str = ""  # an arrow
    rate: str = ""  # slope: "+1.2/min"
    best: str = ""  # "best 495"
    trend_level: Level | None = None  # ok: improving, warn: worsening, None: neither
    points: Sequence[Point | None] = ()
    overlay: Sequence[Point | None] = ()
    overlay_band: bool = False  # whether the overlay's band is drawn
    strands: Sequence[Sequence[Point | None]] = ()  # thin lines of single runs; the points are then their mean
    marks: Sequence[ChartMark] = ()
    x_left: str = ""
    x_right: str = ""
    x_unit: str = ""  # after x_left where there is space
    log_y: bool = False
    cursor: int | None = None  # index into points
    reading: str = ""  # value at the cursor; replaces trend and best
    target: float | None = None
    empty: str = ""  # sentence shown without data
    colour: int = 0  # index of the palette's series
    overlay_colour: int = 1
    chosen: bool = False  # highlighted: keys apply to this chart


class ChartState:
    """Parts of a chart that last from frame to frame: its y range, y labels, and cached columns."""

    def __init__(self) -> None:
        self.shown: Range | None = None
        self.plot = ColumnCache()
        self.gutter: tuple[tuple[object, ...], Rows] = ((), [])

    def reset_range(self) -> None:
        """Discard the chart's y range, so that the next drawing fits it to the points. Call it when the window, axis or
        smoothing changes.
        """
        self.shown = None


class Layout(NamedTuple):
    """Sizes in cells of the parts of a chart: y labels (`gutter`) and plot, and whether it has a box and a title."""

    framed: bool
    titled: bool
    gutter: int
    plot_width: int
    plot_height: int

    @classmethod
    def of(cls, width: int, height: int) -> Layout:
        """Choose the layout of a chart of `width` x `height` cells (both >= 1); a small chart has neither box nor y
        labels.
        """
        framed = width >= 10 and height >= 4
        titled = framed or height >= 2
        inner = width - 2 * framed
        labels = gutter(inner)
        return cls(framed, titled, labels, inner - labels, height - (2 if framed else titled))


def draw_chart(
    data: ChartData, width: int, height: int, palette: Palette, memory: ChartState, focused: bool = False
) -> Rows:
    """Draw a chart as `height` rows of `width` cells (both >= 1). `memory` keeps the y range between frames; `focused`
    draws a heavier box.
    """
    layout = Layout.of(width, height)
    inner = _inside(data, layout, palette.glyphs, memory)
    title = _title_pieces(data, width - 6 if layout.framed else width)
    if not layout.framed:
        return [*([line(title, width)] if layout.titled else []), *inner]
    return framed(inner, title, width, palette, focused=focused, bottom=_x_axis(data, layout, palette.glyphs))


def _inside(data: ChartData, layout: Layout, glyphs: Glyphs, memory: ChartState) -> Rows:
    """Draw the part of a chart within its box: y labels and plot, or a sentence if there are no points."""
    width, height = layout.gutter + layout.plot_width, layout.plot_height
    # The interval of a mean of few runs is wider than their values, and reaches values that no run can have.
    overlay = _means(data.overlay) if data.overlay_band else data.overlay
    points = _means(data.points) if data.strands else data.points
    inside = [point for strand in data.strands for point in _means(strand)]
    shown = y_range([*points, *overlay, *inside], data.log_y, memory.shown)
    if shown is None:
        # Report separately that a log axis has no positive values.
        return sentence(
            "no positive values to show on a log axis" if data.log_y and any(data.points) else data.empty, width, height
        )
    memory.shown = shown
    verticals = {_cell_of(mark, layout): glyphs.resume for mark in data.marks if mark.kind == "resume"}
    cursor = None if data.cursor is None else data.cursor // 2
    plot = Plot(
        data.points,
        shown,
        data.overlay,
        data.target,
        verticals,
        cursor,
        data.colour,
        data.overlay_colour,
        data.overlay_band,
        data.strands,
    )
    rows = draw_plot(plot, layout.plot_width, height, glyphs, memory.plot)
    if not layout.gutter:
        return rows
    key = (shown, height, layout.gutter)
    if memory.gutter[0] != key:
        memory.gutter = (key, _gutter(*key))
    return [label + row for label, row in zip(memory.gutter[1], rows, strict=True)]


def _means(points: Sequence[Point | None]) -> list[Point | None]:
    """Return the points without their bands."""
    return [point and Point(point.mean, point.mean, point.mean) for point in points]


def _gutter(shown: Range, height: int, width: int) -> Rows:
    """Draw the y labels as `height` rows of `width` cells."""
    labels = y_labels(shown, height, width - 1)
    style = Style("dim")
    return [styled(f"{labels.get(y, ''):>{width - 1}} ", style) for y in range(height)]


def y_labels(shown: Range, height: int, cells: int) -> dict[int, str]:
    """Return the y axis labels of a plot of `height` rows, by row, each at most `cells` wide. A higher plot has more; a
    label whose rounded value is off by more than a row is left out.
    """
    labels: dict[int, str] = {}
    for value in ticks(shown, 5 if height >= 16 else 4 if height >= 7 else 2 if height >= 3 else 1):
        position, text = shown.position(value) or 0.0, tick_text(value, cells)
        rounded = shown.position(tick_value(text)) if text else None
        if rounded is not None and abs(rounded - position) * height < 1:
            labels.setdefault(min(max(round((1 - position) * (height - 1)), 0), height - 1), text)
    return labels


def _cell_of(mark: ChartMark, layout: Layout) -> int:
    """Return the cell column of a mark in the plot."""
    return min(int(mark.position * layout.plot_width), layout.plot_width - 1)


def _x_axis(data: ChartData, layout: Layout, glyphs: Glyphs) -> list[Cell | None]:
    """Return the cells of a chart's lower edge: x at both ends and marks between; None where the box's line shows."""
    width = layout.gutter + layout.plot_width
    cells: list[Cell | None] = [None] * width
    for kind in _KINDS:
        places = sorted(
            {_cell_of(mark, layout) for mark in data.marks if mark.kind == kind and 0 <= mark.position <= 1}
        )
        # Draw only the newest of crowded routine marks.
        for position in places[-1:] if kind in _ROUTINE and len(places) * _CROWDED > layout.plot_width else places:
            cells[layout.gutter + position] = _mark_cell(kind, glyphs)
    broken = [
        index for index, point in enumerate(data.points[: 2 * layout.plot_width]) if point is not None and point[3]
    ]
    for index in broken:
        cells[layout.gutter + index // 2] = _mark_cell("not_finite", glyphs)
    style = Style("dim")
    # The unit stands at the left end, where there are fewer marks.
    with_unit = f"{data.x_left} {data.x_unit}".rstrip()
    for text in (with_unit, data.x_left) if data.x_left else ():
        if len(text) + 2 <= max(layout.gutter, width // 3):
            cells[: len(text) + 2] = styled(f" {text} ", style)
            break
    if data.x_right and len(data.x_right) + 2 <= width // 2:
        cells[-len(data.x_right) - 2 :] = styled(f" {data.x_right} ", style)
    return cells


def _mark_cell(kind: str, glyphs: Glyphs) -> Cell:
    """Return the cell that represents a mark of `kind` on the x axis."""
    if kind == "not_finite":
        return Cell(glyphs.not_finite, Style("bad", bold=True))
    character = {"checkpoint": glyphs.checkpoint, "eval": glyphs.eval}.get(kind, glyphs.resume)
    return Cell(character, Style("text" if kind == "eval" else "dim"))


def _title_pieces(data: ChartData, width: int) -> list[Piece]:
    """Compose a chart's title line of at most `width` cells: name, newest value, trend, rate, best. If the width is too
    small, first the rate is left out, then the best value, then the arrow.
    """
    pieces: list[Piece] = [(data.title, Style("text"))]
    if data.value:
        pieces.append((f" {data.value}", Style("bright", bold=True)))
    trend = Style({"ok": "good", "warn": "warn", "bad": "bad"}.get(data.trend_level or "", "dim"))
    arrow, rate, best = (f" {data.trend}", trend), (f" {data.rate}", Style("dim")), (f"  {data.best}", Style("dim"))
    choices: tuple[list[Piece], ...] = ([arrow, rate, best], [arrow, best], [arrow])
    if data.reading:
        choices = ([(f"  {data.reading}", Style("focus"))],)
    free = width - sum(len(text) for text, _ in pieces)
    for choice in choices:
        chosen = [piece for piece in choice if piece[0].strip()]
        if sum(len(text) for text, _ in chosen) <= free:
            return pieces + chosen
    return pieces


class Chart(Canvas):
    """Widget that shows one chart. `show` sets its data; `plot_columns` is the number of points that fit."""

    DEFAULT_CSS = "Chart { width: 1fr; height: 1fr; }"

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.data = ChartData()
        self.memory = ChartState()

    @property
    def plot_columns(self) -> int:
        """Number of points that fit in the chart's plot, two per cell; 0 before the widget has a size."""
        return 2 * Layout.of(*self.size).plot_width if self.size else 0

    def show(self, data: ChartData, *, refit: bool = False) -> None:
        """Draw a chart's data, repainting only cells that changed. `refit` fits the y range again; pass it when the
        window, axis or smoothing changes.
        """
        if refit or data.log_y != self.data.log_y:
            self.memory.reset_range()
        if data != self.data or refit:
            self.data = data
            self.redraw()

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """Draw the chart as `height` rows of `width` cells."""
        return draw_chart(self.data, width, height, palette, self.memory, self.data.chosen)
