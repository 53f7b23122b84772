"""Charts and pictures as rows of terminal cells. Knows no file and no widget."""

from monitor.charts.cells import EMPTY, blank, framed
from monitor.charts.figures import of_figure
from monitor.charts.line import (
    Line,
    Piece,
    broken,
    characters,
    clean,
    cut,
    fit,
    flow,
    length,
    of_cells,
    padded,
    row_of,
    spread,
    width_of,
    wrapped,
)
from monitor.charts.palette import Palette, Row, Rows, Style
from monitor.charts.scale import gutter

__all__ = [
    "EMPTY",
    "Line",
    "Palette",
    "Piece",
    "Row",
    "Rows",
    "Style",
    "blank",
    "broken",
    "characters",
    "clean",
    "cut",
    "fit",
    "flow",
    "framed",
    "gutter",
    "length",
    "of_cells",
    "of_figure",
    "padded",
    "row_of",
    "spread",
    "width_of",
    "wrapped",
]
