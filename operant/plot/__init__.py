"""Compares and draws runs: `operant compare` and `operant plot`. Reads runs; the trainer does not know it. matplotlib
and scipy are imported when they draw.
"""

from operant.plot.comparison import bands, compare, named, summary
from operant.plot.curves import Axis, Band, band, curve, grid
from operant.plot.selection import Entry, Group, differences, groups, usable

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
    "named",
    "summary",
    "usable",
]
