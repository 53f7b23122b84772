"""Comparison and plots of runs: `operant compare` and `operant plot`. Reads runs; the trainer does not import it.
matplotlib and scipy are imported only for drawing.
"""

from operant.plot.comparison import bands, compare, default_metrics, legend_label, scores, summary, too_short
from operant.plot.curves import Axis, Band, band, curve, grid
from operant.plot.selection import Entry, Group, differences, distinct, groups, load_entries

__all__ = [
    "Axis",
    "Band",
    "Entry",
    "Group",
    "band",
    "bands",
    "compare",
    "curve",
    "default_metrics",
    "differences",
    "distinct",
    "grid",
    "groups",
    "legend_label",
    "load_entries",
    "scores",
    "summary",
    "too_short",
]
