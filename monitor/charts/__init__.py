"""Charts and pictures as rows of terminal cells."""

from monitor.charts.cells import EMPTY, blank, framed
from monitor.charts.line import (
    Line,
    Piece,
    broken,
    characters,
    clean,
    cut,
    fit,
    flow,
    justified,
    length,
    of_cells,
    padded,
    row_of,
    width_of,
    wrapped,
)
from monitor.charts.metric_text import figure_text
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
    "figure_text",
    "fit",
    "flow",
    "framed",
    "gutter",
    "justified",
    "length",
    "of_cells",
    "padded",
    "row_of",
    "width_of",
    "wrapped",
]
