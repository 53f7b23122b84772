"""Learning curves on a common grid: smoothed curves, and their mean over seeds with a confidence band. The functions
are pure.

Shape letters: R runs of a group, G grid points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Axis = Literal["steps", "seconds"]
Floats = NDArray[np.float64]

GRID_POINTS: Final = 200
RESAMPLES: Final = 2000
MOST_MARKED: Final = 40  # x_grid that are marked
_SHORTEST_TAIL: Final = 0.01


class Band(NamedTuple):
    """Mean learning curve of a group over G points, with its 95 % bootstrap interval (None for a single run). `marked`
    is the x of the measured values, `tails` are curves (x, values) of single runs beyond the end of the shortest run.
    """

    x: Floats
    mean: Floats
    low: Floats | None
    high: Floats | None
    marked: Floats | None = None
    tails: tuple[tuple[Floats, Floats], ...] = ()


def grid(xs: Sequence[Floats]) -> tuple[Floats, Floats | None]:
    """Make the grid of x values (G) for a group's curve, from the latest start to the earliest end of its runs. Also
    returns the x of the measured values if they are few, else None.
    """
    first, last = max(x.min() for x in xs), min(x.max() for x in xs)
    x_grid, positions = np.linspace(first, max(first, last), GRID_POINTS), np.unique(np.concatenate(xs))
    positions = positions[(positions >= first) & (positions <= last)]
    return (np.union1d(x_grid, positions), positions) if len(positions) <= MOST_MARKED else (x_grid, None)


def curve(x: Floats, values: Floats, x_grid: Floats, smooth: float) -> Floats:
    """Resample a run's values on a grid, (G), as the mean over a trailing window of `smooth` times the grid's range; 0
    interpolates linearly.

    A window without values is interpolated linearly.
    """
    order = np.argsort(x, kind="stable")
    x, values = x[order], values[order]
    line = np.interp(x_grid, x, values)
    if smooth <= 0.0:
        return line
    sums = np.concatenate([[0.0], np.cumsum(values)])
    width = smooth * (x_grid[-1] - x_grid[0])
    begin, end = np.searchsorted(x, x_grid - width, "right"), np.searchsorted(x, x_grid, "right")
    count = end - begin
    return np.where(count > 0, (sums[end] - sums[begin]) / np.maximum(count, 1), line)


def tail(x: Floats, values: Floats, x_grid: Floats, smooth: float) -> tuple[Floats, Floats] | None:
    """Resample the part of a run's values beyond the end of its group's grid, smoothed as by `curve`, as (x, values);
    None if that part is shorter than a hundredth of the grid.
    """
    end, last = x_grid[-1], float(x.max())
    if last - end < _SHORTEST_TAIL * (end - x_grid[0]):
        return None
    own = np.union1d(np.linspace(x_grid[0], last, 2 * GRID_POINTS), [end, *x[x > end][:GRID_POINTS]])
    return own[own >= end], curve(x, values, own, smooth)[own >= end]


def band(x_grid: Floats, curves: Sequence[Floats], marked: Floats | None = None) -> Band:
    """Average the curves of R runs, (G) each, and compute the mean's percentile bootstrap interval. `marked` is the x
    of the measured values.
    """
    rows = np.stack(curves)
    if len(rows) < 2:
        return Band(x_grid, rows[0], None, None, marked)
    from scipy import stats

    bootstrap = stats.bootstrap(
        (rows,), np.mean, axis=0, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    )
    return Band(
        x_grid, rows.mean(axis=0), bootstrap.confidence_interval.low, bootstrap.confidence_interval.high, marked
    )
