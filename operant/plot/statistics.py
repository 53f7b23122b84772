"""Statistics of few runs, after Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical
precipice". Pure; knows no run.

The scores of a group are one array per task (an environment) with one value per run. Intervals are 95 % percentile
intervals of a stratified bootstrap: scipy.stats.bootstrap resamples the runs of each task with replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
RESAMPLES = 2000


class Estimate(NamedTuple):
    """Statistic with the ends of its 95 % interval, which are None if a task has a single run."""

    value: float
    low: float | None
    high: float | None


def interquartile_mean(tasks: Sequence[Floats]) -> Estimate:
    """Estimate the mean of the middle half of all scores of a group, one array per task. The lowest and highest
    quarters, rounded down to whole runs, are left out.
    """
    return _estimate(list(tasks), lambda *rows, axis: stats.trim_mean(np.concatenate(rows, axis=axis), 0.25, axis=axis))


def mean(tasks: Sequence[Floats]) -> Estimate:
    """Estimate the mean of all scores of a group, one array per task."""
    return _estimate(list(tasks), lambda *rows, axis: np.mean(np.concatenate(rows, axis=axis), axis=axis))


def probability_of_improvement(tasks: Sequence[Floats], others: Sequence[Floats]) -> Estimate:
    """Estimate the probability that a run of the first group (`tasks`) scores higher than one of the second (`others`)
    on the same task, averaged over tasks. Ties count half.
    """
    count = len(tasks)

    def statistic(*rows: Floats, axis: int) -> Floats:
        parts = []
        for own_scores, other in zip(rows[:count], rows[count:], strict=True):
            difference = np.expand_dims(own_scores, -1) - np.expand_dims(other, -2)  # (..., R, R')
            parts.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1)))
        return np.mean(parts, axis=0)

    return _estimate([*tasks, *others], statistic)


def performance_profile(tasks: Sequence[Floats], thresholds: Floats) -> tuple[Floats, Floats | None, Floats | None]:
    """Compute the share of a group's runs that score above each of T thresholds, averaged over tasks, and the ends of
    its 95 % interval (None with a single run); (T) each.
    """

    def statistic(*rows: Floats, axis: int) -> Floats:
        shares = [
            (np.expand_dims(row, 0) > thresholds.reshape(-1, *[1] * row.ndim)).mean(axis=-1) for row in rows
        ]  # (T, ...)
        return np.mean(shares, axis=0)

    value = statistic(*tasks, axis=-1)
    if min(map(len, tasks)) < 2:
        return value, None, None
    generator = np.random.default_rng(0)
    drawn = [row[generator.integers(0, len(row), (RESAMPLES, len(row)))] for row in tasks]
    low, high = np.percentile(statistic(*drawn, axis=-1), [2.5, 97.5], axis=-1)
    return value, low, high


def _estimate(samples: list[Floats], statistic: Callable[..., Floats]) -> Estimate:
    """Compute a statistic of samples and its 95 % bootstrap interval."""
    value = float(statistic(*samples, axis=-1))
    if min(map(len, samples)) < 2:
        return Estimate(value, None, None)
    # without variance scipy would warn; the interval is the value
    if all(np.ptp(sample) == 0.0 for sample in samples):
        return Estimate(value, value, value)
    bootstrap = stats.bootstrap(
        samples, statistic, n_resamples=RESAMPLES, vectorized=True, method="percentile", rng=np.random.default_rng(0)
    )
    return Estimate(value, float(bootstrap.confidence_interval.low), float(bootstrap.confidence_interval.high))
