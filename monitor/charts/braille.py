"""Plot area of a chart as cells: mean line in braille over a dim band from minimum to maximum, and thin lines of single
runs beneath. Standard library only.

Pure: points and a range in, rows of cells out. A cell has 2 x 4 dots, so a plot of W cells draws 2 W points, one per
dot column. A column of cells depends only on its two points and their two neighbours; `ColumnCache` keeps drawn
columns, so that only changed ones are drawn again.

Gaps: a span without points wider than twice the median distance between points (and than two dot columns) stays a gap.
A narrower one results from buckets wider than a column, and the line crosses it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from monitor.charts.palette import Cell, Glyphs, Row, Rows, Style
from monitor.charts.scale import Range
from monitor.data.snapshot import Point

Dots = tuple[int, int]  # topmost and bottommost dot row of a span, 0 at the top
_NOTHING: Dots = (1 << 30, -1)  # empty span
_KEEP = 4096  # columns

_LEFT = (0x01, 0x02, 0x04, 0x40)
_RIGHT = (0x08, 0x10, 0x20, 0x80)


def _masks(bits: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the bits of each vertical run of dots in a cell's column, indexed [top][bottom]; `bits` are those of its
    four dots.
    """
    return tuple(tuple(sum(bits[top : bottom + 1]) for bottom in range(4)) for top in range(4))


_LEFT_MASKS, _RIGHT_MASKS = _masks(_LEFT), _masks(_RIGHT)


class Plot(NamedTuple):
    """Input of `draw_plot`: points of the line and of an overlay, two per cell, and the y range `shown`."""

    points: Sequence[Point | None]
    shown: Range
    overlay: Sequence[Point | None] = ()
    target: float | None = None
    verticals: Mapping[int, str] = {}  # cell column -> a character of a dim vertical line
    cursor: int | None = None  # cell column
    colour: int = 0
    overlay_colour: int = 1
    overlay_band: bool = False  # the overlay is a mean: draw its band, and its line over the run's
    strands: Sequence[Sequence[Point | None]] = ()  # thin lines beneath, such as the runs of a group


class ColumnCache:
    """Cache of drawn plot columns between frames, keyed by the dots and marks in them. It empties itself when the
    height, a colour or the glyphs change, and beyond 4,096 columns.
    """

    def __init__(self) -> None:
        self._valid_for: tuple[object, ...] = ()
        self._columns: dict[tuple[object, ...], Row] = {}

    def columns(self, *valid_for: object) -> dict[tuple[object, ...], Row]:
        """Return the dictionary of cached plot columns. Empties it first if `valid_for` (height, colours, glyphs) has
        changed or if it has grown too large.
        """
        if self._valid_for != valid_for or len(self._columns) > _KEEP:
            self._valid_for, self._columns = valid_for, {}
        return self._columns


def dot_rows(points: Sequence[Point | None], shown: Range, dots: int) -> tuple[list[int | None], list[Dots]]:
    """Map points to dot rows, from 0 at the top of range `shown` to `dots` - 1: return the row of each mean and the
    span of rows of each band. A missing point gives None and an empty span.

    A mean outside the range is clipped to the edge.
    """
    if shown.log:
        points = [None if point is None or point.mean <= 0 else _logarithms(point) for point in points]
    means: list[int | None] = []
    bands: list[Dots] = []
    last = dots - 1
    top, scale = shown.high, last / shown.span
    for point in points:
        if point is None:
            means.append(None)
            bands.append(_NOTHING)
            continue
        # Plain comparisons: this loop dominates the cost of a chart.
        at = (top - point[1]) * scale
        mean = 0 if at < 0 else last if at > last else int(at + 0.5)
        at = (top - point[2]) * scale
        above = 0 if at < 0 else mean if at > mean else int(at + 0.5)
        at = (top - point[0]) * scale
        below = last if at > last else mean if at < mean else int(at + 0.5)
        means.append(mean)
        bands.append((above, below))
    return means, bands


def _logarithms(point: Point) -> Point:
    """Return a point with base-10 logarithms; values of 0 and below become -400, below any range."""
    low, mean, high = (math.log10(value) if value > 0 else -400.0 for value in point[:3])
    return Point(low, mean, high)


def bridged(rows: Sequence[int | None]) -> list[int | None]:
    """Fill short gaps (None) between the line's dot rows, one per dot column, by linear interpolation. Longer gaps stay
    None: more than 3 dot columns and twice the median distance between points. Two points are always connected.
    """
    filled_rows = [index for index, row in enumerate(rows) if row is not None]
    filled = list(rows)
    if len(filled_rows) < 3:
        # Two points have no typical distance: connect them.
        widest = len(rows)
    else:
        steps = sorted(after - before for before, after in pairwise(filled_rows))
        widest = max(3, 2 * steps[len(steps) // 2])
    for before, after in pairwise(filled_rows):
        if 1 < after - before <= widest:
            start, end = rows[before] or 0, rows[after] or 0
            for index in range(before + 1, after):
                filled[index] = start + round((end - start) * (index - before) / (after - before))
    return filled


def dot_spans(rows: Sequence[int | None]) -> list[Dots]:
    """Return the vertical span of dots in each dot column, extended half way to the neighbours' rows so that the line
    is connected. `rows`: dot row of the line in each column, None in a gap, which has no dots.
    """
    dots: list[Dots] = []
    count = len(rows)
    for index, row in enumerate(rows):
        if row is None:
            dots.append(_NOTHING)
            continue
        top = bottom = row
        before = rows[index - 1] if index else None
        after = rows[index + 1] if index + 1 < count else None
        if before is not None and before != row:
            # The two halves of the connecting segment meet and do not overlap.
            if before < row:
                top = min(top, (before + row) // 2 + 1)
            else:
                bottom = max(bottom, (before + row) // 2)
        if after is not None and after != row:
            if after < row:
                top = min(top, (after + row) // 2 + 1)
            else:
                bottom = max(bottom, (after + row) // 2)
        if before is None and after is None:
            # A single dot is easily missed.
            top, bottom = max(row - 1, 0), row + (row == 0)
        dots.append((top, bottom))
    return dots


def _mask(left: Dots, right: Dots, top: int) -> int:
    """Return the braille bits of the cell whose first dot row is `top`, from the dot spans of its left and
    right half.
    """
    mask = 0
    low, high = left[0] - top, left[1] - top
    if low <= high and low < 4 and high >= 0:
        mask = _LEFT_MASKS[low if low > 0 else 0][high if high < 3 else 3]
    low, high = right[0] - top, right[1] - top
    if low <= high and low < 4 and high >= 0:
        mask |= _RIGHT_MASKS[low if low > 0 else 0][high if high < 3 else 3]
    return mask


def _strand_bits(strands: Sequence[Sequence[Point | None]], shown: Range, dots: int, wanted: int) -> list[int]:
    """Return the dots of all thin lines together as bits by dot row, for each of the `wanted` dot columns."""
    bits = [0] * wanted
    for points in strands:
        rows, _ = dot_rows([*points[:wanted], *[None] * (wanted - len(points))], shown, dots)
        for index, (top, bottom) in enumerate(dot_spans(bridged(rows))):
            if bottom >= top:
                bits[index] |= ((1 << (bottom - top + 1)) - 1) << top
    return bits


def _strand_mask(left: int, right: int, top: int) -> int:
    """Return the braille bits of the cell whose first dot row is `top`, from the bits of its two dot columns."""
    left, right = left >> top & 15, right >> top & 15
    return sum(bit for k, bit in enumerate(_LEFT) if left >> k & 1) | sum(
        bit for k, bit in enumerate(_RIGHT) if right >> k & 1
    )


def _covered(band: Dots, top: int) -> int:
    """Return how many of the four dot rows from `top` on a band covers."""
    return max(0, min(band[1], top + 3) - max(band[0], top) + 1)


class Styles(NamedTuple):
    """Styles of a plot's line, overlay, marks and empty cells, each on no background, on the band, and on the overlay's
    band.
    """

    line: tuple[Style, ...]
    overlay: tuple[Style, ...]
    quiet: tuple[Style, ...]  # empty cells and vertical lines
    target: tuple[Style, ...]


class CellTables(NamedTuple):
    """Precomputed cells of a plot, indexed by background (0 none, 1 the line's band, 2 the overlay's band) and braille
    bits.
    """

    styles: Styles
    line: tuple[tuple[Cell, ...], ...]
    overlay: tuple[tuple[Cell, ...], ...]
    target: tuple[tuple[Cell, ...], ...]
    empty: tuple[Cell, ...]


@functools.lru_cache(64)
def cell_tables(colour: int, overlay_colour: int) -> CellTables:
    """Precompute all cells that a plot can need, for the colours of its line and its overlay. `colour`,
    `overlay_colour`: indices into the palette's series colours.
    """
    backs = ("", f"band.{colour}", f"band.{overlay_colour}")
    line, overlay, quiet, target = (
        tuple(Style(token, back) for back in backs)
        for token in (f"series.{colour}", f"series.{overlay_colour}", "faint", "dim")
    )
    tables = [
        tuple(tuple(Cell(chr(0x2800 + mask), style) for mask in range(256)) for style in styles)
        for styles in (line, overlay, target)
    ]
    return CellTables(
        Styles(line, overlay, quiet, target),
        tables[0],
        tables[1],
        tables[2],
        tuple(Cell(" ", style) for style in quiet),
    )


def _braille_column(
    height: int,
    line: tuple[Dots, Dots],
    bands: tuple[Dots, ...],
    over: tuple[Dots, Dots],
    target: int | None,
    vertical: str,
    tables: CellTables,
    overlay_first: bool,
    strands: tuple[int, int] = (0, 0),
) -> Row:
    """Draw one column of `height` braille cells, two dot columns wide. Vertical dot spans of its left and right half:
    `line`, `over` (the overlay's line), and `bands` (the line's two, then the overlay's). `target`: dot row of the
    target line; `vertical`: character of a vertical line, ""; `overlay_first`: the overlay covers the line; `strands`:
    bits of the thin lines' dots.
    """
    empty = tables.empty
    backgrounds = [0] * height
    # A cell belongs to a band that covers at least half of its eight dots. The run's band covers the overlay's.
    for which, (left, right) in ((2, bands[2:]), (1, bands[:2])):
        for row in range(min(left[0], right[0]) // 4, min(max(left[1], right[1]) // 4 + 1, height)):
            if _covered(left, 4 * row) + _covered(right, 4 * row) >= 4:
                backgrounds[row] = which
    cells = [empty[band] for band in backgrounds]
    if target is not None:
        cells[target // 4] = tables.target[backgrounds[target // 4]][_LEFT[target % 4]]
    if vertical:
        cells = [Cell(vertical, tables.styles.quiet[band]) for band in backgrounds]
    if strands != (0, 0):
        for row in range(height):
            if mask := _strand_mask(*strands, 4 * row):
                cells[row] = Cell(chr(0x2800 + mask), tables.styles.target[backgrounds[row]])
    layers = [(over, tables.overlay, line), (line, tables.line, over)]
    for dots, table, others in reversed(layers) if overlay_first else layers:
        left, right = dots
        if left is _NOTHING and right is _NOTHING:
            continue
        for row in range(min(left[0], right[0]) // 4, min(max(left[1], right[1]) // 4 + 1, height)):
            if mask := _mask(left, right, 4 * row):
                if overlay_first:
                    mask |= _mask(*others, 4 * row)
                cells[row] = table[backgrounds[row]][mask]
    return tuple(cells)


def _ascii_column(
    height: int,
    line: tuple[Dots, Dots],
    bands: tuple[Dots, ...],
    over: tuple[Dots, Dots],
    target: int | None,
    vertical: str,
    tables: CellTables,
    overlay_first: bool,
    strands: tuple[int, int] = (0, 0),
) -> Row:
    r"""Draw one column of `height` ASCII cells, with the arguments of `_braille_column`; one dot row is one row of
    cells. Characters: `-` level, `/` and `\\` steep, `|` vertical, `:` band, `+` overlay, `,` the overlay's band, `'`
    a thin line.
    """
    cells: list[Cell] = []
    left, right = line
    styles = tables.styles
    for row in range(height):
        inside = [span for span in line if span[0] <= row <= span[1]]
        is_over = any(span[0] <= row <= span[1] for span in over)
        if inside and not (is_over and overlay_first):
            if any(span[1] - span[0] > 1 for span in inside):
                character = "|"
            elif left[0] <= left[1] and right[0] <= right[1] and left != right:
                character = "/" if left[0] + left[1] > right[0] + right[1] else "\\"
            else:
                character = "-" if len(inside) == 2 else "*"
            cells.append(Cell(character, styles.line[0]))
        elif is_over:
            cells.append(Cell("+", styles.overlay[0]))
        elif (strands[0] | strands[1]) >> row & 1:
            cells.append(Cell("'", styles.target[0]))
        elif vertical:
            cells.append(Cell(vertical, styles.quiet[0]))
        elif any(span[0] <= row <= span[1] for span in bands):
            cells.append(Cell(":" if any(span[0] <= row <= span[1] for span in bands[:2]) else ",", Style("faint")))
        elif row == target:
            cells.append(Cell(".", styles.target[0]))
        else:
            cells.append(Cell(" ", styles.quiet[0]))
    return tuple(cells)


def _dotted(span: Dots, index: int) -> Dots:
    """Return the dot span of an overlay's dot column `index`, empty for every other one: a dotted line differs from the
    run's without colour.
    """
    return span if index % 2 == 0 else _NOTHING


def _with_background(column: Row, token: str) -> Row:
    """Return a column of cells with the background colour `token`."""
    return tuple(Cell(cell.character, cell.style._replace(back=token)) for cell in column)


def draw_plot(plot: Plot, width: int, height: int, glyphs: Glyphs, memory: ColumnCache) -> Rows:
    """Draw a plot as `height` rows of `width` cells (both >= 1). Points beyond 2 * width are ignored, missing ones are
    empty. `memory` caches columns between frames.
    """
    scale, draw_column = (4, _braille_column) if glyphs.braille else (1, _ascii_column)
    dots = scale * height
    wanted = 2 * width
    means, bands = dot_rows([*plot.points[:wanted], *[None] * (wanted - len(plot.points))], plot.shown, dots)
    line = dot_spans(bridged(means))
    over, around = [_NOTHING] * wanted, [_NOTHING] * wanted
    if plot.overlay:
        rows, spans = dot_rows([*plot.overlay[:wanted], *[None] * (wanted - len(plot.overlay))], plot.shown, dots)
        over = [_dotted(span, index) for index, span in enumerate(dot_spans(bridged(rows)))]
        around = spans if plot.overlay_band else around
    strands = _strand_bits(plot.strands, plot.shown, dots, wanted) if plot.strands else [0] * wanted
    at = None if plot.target is None else plot.shown.position(plot.target)
    target = round((1 - at) * (dots - 1)) if at is not None and 0 <= at <= 1 else None
    tables = cell_tables(plot.colour, plot.overlay_colour)
    store = memory.columns(height, plot.colour, plot.overlay_colour, glyphs, plot.overlay_band)
    columns: list[Row] = []
    for column in range(width):
        left = 2 * column
        own, other, vertical = (
            (line[left], line[left + 1]),
            (over[left], over[left + 1]),
            plot.verticals.get(column, ""),
        )
        backgrounds = (*bands[left : left + 2], *around[left : left + 2])
        thin = strands[left], strands[left + 1]
        key = (own, backgrounds, other, target, vertical, thin)
        cells = store.get(key)
        if cells is None:
            cells = store[key] = draw_column(
                height, own, backgrounds, other, target, vertical, tables, plot.overlay_band, thin
            )
        columns.append(_with_background(cells, "cursor") if column == plot.cursor else cells)
    return list(zip(*columns, strict=True))
