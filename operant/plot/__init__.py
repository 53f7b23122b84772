"""Compares and draws runs: `operant compare` and `operant plot`. Reads runs; the trainer does not know it. matplotlib and scipy are imported when they draw."""

from operant.plot.curves import Axis, Band, band, curve, grid
from operant.plot.selection import Entry, Group, differences, groups, methods, usable

__all__ = ["Axis", "Band", "Entry", "Group", "band", "curve", "differences", "grid", "groups", "methods", "usable"]
