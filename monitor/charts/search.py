"""Search picture: parallel coordinates of a sweep's trials, and the best objective so far.

Each searched key is an upright axis, the objective the last one; a trial is a line through its values. The best trial
is bright, the selected one in a second colour, the others are thin. Categorical values are evenly spaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from monitor.charts.canvas import Canvas
from monitor.charts.cells import EMPTY, framed, sentence
from monitor.charts.chart import ChartData, ChartState, draw_chart
from monitor.charts.line import cut
from monitor.charts.palette import Cell, Palette, Rows, Style
from monitor.data.snapshot import Collected, Member, Point, SearchAxis
from operant.text import number

_LEAST_CHART, _LEAST = 7, 6  # lines
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class SearchPicture(Canvas):
    """Widget that shows the search of a sweep: parallel coordinates, below them the best so far if there is space."""

    DEFAULT_CSS = "SearchPicture { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._collected: Collected | None = None
        self._picked: Member | None = None
        self._chart = ChartState()

    def show(self, collected: Collected, picked: Member | None) -> None:
        """Draw the trials of a sweep, repainting only cells that changed; `picked`: the selected one."""
        if (collected, picked) != (self._collected, self._picked):
            self._collected, self._picked = collected, picked
            self.redraw()

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """Draw the picture as `height` rows of `width` cells."""
        if self._collected is None or width < 12 or height < _LEAST:
            return [(EMPTY,) * width] * height
        chart = height * 2 // 5 if height >= _LEAST_CHART + 9 else 0
        inside = draw_parallel(self._collected, self._picked, width - 2, height - chart - 2, palette)
        rows = framed(inside, [("Search", Style())], width, palette)
        if chart:
            data = best_so_far(self._collected, 2 * (width - 8))
            rows += draw_chart(data, width, chart, palette, self._chart)
        return rows


def draw_parallel(collected: Collected, picked: Member | None, width: int, height: int, palette: Palette) -> Rows:
    """Draw parallel coordinates as `height` rows of `width` cells: names, upper ends, lines, lower ends."""
    values = [one.value for one in collected.members if one.value is not None]
    trials = [one for one in collected.members if one.path and any(at is not None for at in one.positions)]
    if not trials or height < 4:
        return sentence("no trial has begun yet", width, height)
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    axes = [*collected.axes, SearchAxis(collected.objective.replace("_", " "), number(low), number(high))]
    margin = min(8, width // (2 * len(axes)))
    places = [margin + k * (width - 1 - 2 * margin) // max(1, len(axes) - 1) for k in range(len(axes))]
    best = collected.best
    layers = [
        ([one for one in trials if one is not best and one is not picked], "faint"),
        ([one for one in trials if one is picked and one is not best], "series.1"),
        ([one for one in trials if one is best], "series.0"),
    ]
    rows = height - 3
    cells = [[EMPTY] * width for _ in range(rows)]
    for members, token in layers:
        masks: dict[tuple[int, int], int] = {}
        for one in members:
            last = None if one.value is None else (one.value - low) / (high - low) if high > low else 0.5
            _trace(masks, places, [*one.positions, last], rows)
        for (y, x), mask in masks.items():
            character = (
                chr(0x2800 + mask) if palette.glyphs.braille else {"faint": ".", "series.1": "+"}.get(token, "*")
            )
            cells[y][x] = Cell(character, Style(token))
    upright = Cell(palette.glyphs.box[3], Style("dim"))
    for row in cells:
        for x in places:
            row[x] = upright if row[x] is EMPTY or row[x].style.fore == "faint" else row[x]
    room = max(4, (width - 2 * margin) // max(1, len(axes) - 1) - 1)
    names = [cut(axis.name.rpartition(".")[2], room) for axis in axes]
    return [
        tuple(_labels(names, places, width, "bright")),
        tuple(_labels([axis.high for axis in axes], places, width, "dim")),
        *map(tuple, cells),
        tuple(_labels([axis.low for axis in axes], places, width, "dim")),
    ]


def _trace(masks: dict[tuple[int, int], int], places: Sequence[int], at: Sequence[float | None], rows: int) -> None:
    """Add the dots of one trial's line to `masks`, by (row, column) of cells. `places`: columns of the axes; `at`: the
    trial's positions on them, 0 to 1 (None: the key has no value, so that the line goes past its axis).
    """
    known = [(2 * x, (1.0 - y) * (4 * rows - 1)) for x, y in zip(places, at, strict=True) if y is not None]
    for (x0, y0), (x1, y1) in pairwise(known):
        count = max(1, x1 - x0, round(abs(y1 - y0)))
        for k in range(count + 1):
            x, y = round(x0 + (x1 - x0) * k / count), round(y0 + (y1 - y0) * k / count)
            key = y // 4, x // 2
            masks[key] = masks.get(key, 0) | _BRAILLE[x % 2][y % 4]


def _labels(texts: Sequence[str], places: Sequence[int], width: int, token: str) -> list[Cell]:
    """Draw texts in one row of `width` cells, each centered at its place; one that would overlap is cut."""
    row, free = [EMPTY] * width, 0
    for text, place in zip(texts, places, strict=True):
        start = max(free, min(place - len(text) // 2, width - len(text)))
        for k, character in enumerate(text[: max(0, width - start)]):
            row[start + k] = Cell(
                character if character.isprintable() and ord(character) < 0x2500 else "?", Style(token)
            )
        free = start + len(text) + 1
    return row


def best_so_far(collected: Collected, columns: int) -> ChartData:
    """Compute the chart of the best objective after each finished trial; the trials' own are dots. `columns`: number of
    points.
    """
    done = [one.value for one in collected.members if one.value is not None]
    best: list[float] = []
    for value in done:
        best.append((max if collected.maximize else min)([value, *best[-1:]]))
    points: list[Point | None] = [None] * columns
    dots: list[list[Point | None]] = []  # one line for each dot, so that no two are connected
    for k in range(columns if done else 0):
        index = k * len(done) // columns
        points[k] = Point(best[index], best[index], best[index])
        if k * len(done) % columns < len(done):  # the first column of a trial
            dots.append([*[None] * k, Point(done[index], done[index], done[index])])
    return ChartData(
        title=f"best {collected.objective.replace('_', ' ')} so far",
        value=number(best[-1]) if best else "",
        points=points,
        strands=dots,
        x_left="finished trial 1" if done else "",
        x_right=str(len(done)) if done else "",
        empty="no trial has finished yet",
    )
