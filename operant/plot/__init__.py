"""Comparison and plots of runs: `operant compare` and `operant plot`. Reads runs; the trainer does not import it.
matplotlib and scipy are imported only for drawing.
"""

from operant.plot.comparison import bands, compare, legend_label, summary
from operant.plot.curves import Axis, Band, band, curve, grid
from operant.plot.selection import Entry, Group, differences, groups, load_entries

__all__ = [
    "Axis",
    "Band",
    "Entry",
    "Group",
    "band",
    "bands",
    "compare",
    "curve",
    "differences",
    "grid",
    "groups",
    "legend_label",
    "load_entries",
    "summary",
]
