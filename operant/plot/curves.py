"""Learning curves on a common grid: smoothed, and over the seeds of a group their mean with a band. Pure; knows no run
and no figure.

Shape letters: R runs of a group, G places of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Axis = Literal["steps", "seconds"]
Floats = NDArray[np.float64]

PLACES: Final = 200
RESAMPLES: Final = 2000
FEW: Final = 40  # places that are marked


class Band(NamedTuple):
    """The curve of a group: its mean, and the 95 % bootstrap interval of that, (G) each; without an interval for a
    single run. `marked`: where values are.
    """

    x: Floats
    mean: Floats
    low: Floats | None
    high: Floats | None
    marked: Floats | None = None


def grid(xs: Sequence[Floats]) -> tuple[Floats, Floats | None]:
    """The places of a group's curve, (G): from where its last run begins to where its first one ends; where values are,
    if those are few.
    """
    first, last = max(x.min() for x in xs), min(x.max() for x in xs)
    places, own = np.linspace(first, max(first, last), PLACES), np.unique(np.concatenate(xs))
    own = own[(own >= first) & (own <= last)]
    return (np.union1d(places, own), own) if len(own) <= FEW else (places, None)


def curve(x: Floats, values: Floats, places: Floats, smooth: float) -> Floats:
    """Values at the places: each the mean of what lies in a window of `smooth` of the whole range up to it; (G).

    A window without a value, and smoothing of 0, give the straight line between neighbours.
    """
    order = np.argsort(x, kind="stable")
    x, values = x[order], values[order]
    line = np.interp(places, x, values)
    if smooth <= 0.0:
        return line
    sums = np.concatenate([[0.0], np.cumsum(values)])
    width = smooth * (places[-1] - places[0])
    begin, end = np.searchsorted(x, places - width, "right"), np.searchsorted(x, places, "right")
    count = end - begin
    return np.where(count > 0, (sums[end] - sums[begin]) / np.maximum(count, 1), line)


def band(places: Floats, curves: Sequence[Floats], marked: Floats | None = None) -> Band:
    """The mean of runs (R of (G)) and its interval: percentiles of the means of runs drawn with replacement."""
    rows = np.stack(curves)
    if len(rows) < 2:
        return Band(places, rows[0], None, None, marked)
    from scipy import stats

    found = stats.bootstrap(
        (rows,), np.mean, axis=0, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    )
    return Band(places, rows.mean(axis=0), found.confidence_interval.low, found.confidence_interval.high, marked)
