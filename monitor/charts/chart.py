"""A chart: a titled frame with the newest value in it, axes, marks, and the plot of `monitor.charts.braille`.

`draw_chart` is pure; `Chart` is the widget around it. Knows nothing of runs and of where points come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from monitor.charts.braille import Memory, Plot, draw_plot
from monitor.charts.canvas import Canvas
from monitor.charts.cells import Piece, framed, line, sentence, styled
from monitor.charts.palette import Cell, Glyphs, Palette, Rows, Style
from monitor.charts.scale import Range, gutter, tick_text, tick_value, ticks, y_range
from monitor.data.snapshot import Level, Point

# in order of priority: of two marks in one cell the later kind is drawn
_KINDS = "checkpoint", "eval", "resume", "not_finite"
_ROUTINE = ("checkpoint", "eval")
_CROWDED = 6  # cells: of routine marks that are on average nearer than this only the newest is drawn


class ChartMark(NamedTuple):
    """An event at a place on the x axis: 0 at its beginning, 1 at its end."""

    kind: str  # checkpoint, eval, resume, not_finite
    place: float


class ChartData(NamedTuple):
    """The contents of a chart. Texts are printable already; `points` are two a cell of the plot
    (`Chart.plot_columns`).
    """

    title: str = ""
    value: str = ""  # newest, with its unit
    trend: str = ""  # an arrow
    rate: str = ""  # how fast: "+1.2/min"
    best: str = ""  # "best 495"
    trend_level: Level | None = None  # whether the trend is a good one; None: neither
    points: Sequence[Point | None] = ()
    overlay: Sequence[Point | None] = ()
    overlay_band: bool = False  # whether the overlay's band is drawn
    marks: Sequence[ChartMark] = ()
    x_left: str = ""
    x_right: str = ""
    log_y: bool = False
    cursor: int | None = None  # index into points
    reading: str = ""  # the value at the cursor; it takes the place of trend and best
    target: float | None = None
    empty: str = ""  # the sentence for no data
    colour: int = 0  # of the palette's series
    overlay_colour: int = 1
    chosen: bool = False  # keys apply to this chart: its frame says so


class ChartMemory:
    """The state of a chart between two frames: its y range, its labels, and columns already drawn."""

    def __init__(self) -> None:
        self.shown: Range | None = None
        self.plot = Memory()
        self.gutter: tuple[tuple[object, ...], Rows] = ((), [])

    def forget_range(self) -> None:
        """Choose the y range again: another window, axis or smoothing is shown."""
        self.shown = None


class Layout(NamedTuple):
    """Where a chart's parts lie, in cells."""

    framed: bool
    titled: bool
    gutter: int
    plot_width: int
    plot_height: int

    @classmethod
    def of(cls, width: int, height: int) -> Layout:
        """The layout for a size (both >= 1): frame and gutter only where there is room."""
        framed = width >= 10 and height >= 4
        titled = framed or height >= 2
        inner = width - 2 * framed
        labels = gutter(inner)
        return cls(framed, titled, labels, inner - labels, height - (2 if framed else titled))


def draw_chart(
    data: ChartData, width: int, height: int, palette: Palette, memory: ChartMemory, focused: bool = False
) -> Rows:
    """`height` rows of `width` cells (both >= 1)."""
    layout = Layout.of(width, height)
    inner = _inside(data, layout, palette.glyphs, memory)
    title = _title_pieces(data, width - 6 if layout.framed else width)
    if not layout.framed:
        return [*([line(title, width)] if layout.titled else []), *inner]
    return framed(inner, title, width, palette, focused=focused, bottom=_x_axis(data, layout, palette.glyphs))


def _inside(data: ChartData, layout: Layout, glyphs: Glyphs, memory: ChartMemory) -> Rows:
    width, height = layout.gutter + layout.plot_width, layout.plot_height
    shown = y_range([*data.points, *data.overlay], data.log_y, memory.shown)
    if shown is None:
        # A log axis without anything above zero says so, rather than that there is no data.
        return sentence(
            "nothing above zero: no log axis" if data.log_y and any(data.points) else data.empty, width, height
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
    )
    rows = draw_plot(plot, layout.plot_width, height, glyphs, memory.plot)
    if not layout.gutter:
        return rows
    key = (shown, height, layout.gutter)
    if memory.gutter[0] != key:
        memory.gutter = (key, _gutter(*key))
    return [label + row for label, row in zip(memory.gutter[1], rows, strict=True)]


def _gutter(shown: Range, height: int, width: int) -> Rows:
    labels = y_labels(shown, height, width - 1)
    style = Style("dim")
    return [styled(f"{labels.get(y, ''):>{width - 1}} ", style) for y in range(height)]


def y_labels(shown: Range, height: int, cells: int) -> dict[int, str]:
    """The y labels by row; a higher plot has more of them. A label whose rounded value lies more than a row off is left
    out.
    """
    labels: dict[int, str] = {}
    for value in ticks(shown, 5 if height >= 16 else 4 if height >= 7 else 2 if height >= 3 else 1):
        place, text = shown.place(value) or 0.0, tick_text(value, cells)
        said = shown.place(tick_value(text)) if text else None
        if said is not None and abs(said - place) * height < 1:
            labels.setdefault(min(max(round((1 - place) * (height - 1)), 0), height - 1), text)
    return labels


def _cell_of(mark: ChartMark, layout: Layout) -> int:
    return min(int(mark.place * layout.plot_width), layout.plot_width - 1)


def _x_axis(data: ChartData, layout: Layout, glyphs: Glyphs) -> list[Cell | None]:
    """The lower edge: x at both ends, and marks between; None where the frame shows."""
    width = layout.gutter + layout.plot_width
    cells: list[Cell | None] = [None] * width
    for kind in _KINDS:
        places = sorted({_cell_of(mark, layout) for mark in data.marks if mark.kind == kind and 0 <= mark.place <= 1})
        # Of routine marks that would crowd the edge only the newest is drawn.
        for place in places[-1:] if kind in _ROUTINE and len(places) * _CROWDED > layout.plot_width else places:
            cells[layout.gutter + place] = _mark_cell(kind, glyphs)
    broken = [
        index for index, point in enumerate(data.points[: 2 * layout.plot_width]) if point is not None and point[3]
    ]
    for index in broken:
        cells[layout.gutter + index // 2] = _mark_cell("not_finite", glyphs)
    style = Style("dim")
    if data.x_left and len(data.x_left) + 2 <= max(layout.gutter, width // 3):
        cells[: len(data.x_left) + 2] = styled(f" {data.x_left} ", style)
    if data.x_right and len(data.x_right) + 2 <= width // 2:
        cells[-len(data.x_right) - 2 :] = styled(f" {data.x_right} ", style)
    return cells


def _mark_cell(kind: str, glyphs: Glyphs) -> Cell:
    if kind == "not_finite":
        return Cell(glyphs.not_finite, Style("bad", bold=True))
    character = {"checkpoint": glyphs.checkpoint, "eval": glyphs.eval}.get(kind, glyphs.resume)
    return Cell(character, Style("text" if kind == "eval" else "dim"))


def _title_pieces(data: ChartData, width: int) -> list[Piece]:
    """Name, newest value, trend, best. Where there is no room for all, the rate is left out first, then the best, then
    the arrow.
    """
    pieces: list[Piece] = [(data.title, Style("text"))]
    if data.value:
        pieces.append((f" {data.value}", Style("bright", bold=True)))
    trend = Style({"ok": "good", "warn": "warn", "bad": "bad"}.get(data.trend_level or "", "dim"))
    arrow, rate, best = (f" {data.trend}", trend), (f" {data.rate}", Style("dim")), (f"  {data.best}", Style("dim"))
    choices: tuple[list[Piece], ...] = ([arrow, rate, best], [arrow, best], [arrow])
    if data.reading:
        choices = ([(f"  {data.reading}", Style("focus"))],)
    room = width - sum(len(text) for text, _ in pieces)
    for choice in choices:
        chosen = [piece for piece in choice if piece[0].strip()]
        if sum(len(text) for text, _ in chosen) <= room:
            return pieces + chosen
    return pieces


class Chart(Canvas):
    """The widget. `show` sets its contents; `plot_columns` is the number of points that fit."""

    DEFAULT_CSS = "Chart { width: 1fr; height: 1fr; }"

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.data = ChartData()
        self.memory = ChartMemory()

    @property
    def plot_columns(self) -> int:
        """The number of points that fit: two a cell of the plot; 0 before there is a size."""
        return 2 * Layout.of(*self.size).plot_width if self.size else 0

    def show(self, data: ChartData, *, refit: bool = False) -> None:
        """Draw `data`; only cells that changed are repainted. `refit`: choose the y range anew, as another window, axis
        or smoothing is shown.
        """
        if refit or data.log_y != self.data.log_y:
            self.memory.forget_range()
        if data != self.data or refit:
            self.data = data
            self.redraw()

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """The chart in a size."""
        return draw_chart(self.data, width, height, palette, self.memory, self.data.chosen)
