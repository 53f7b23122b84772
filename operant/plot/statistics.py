"""Statistics of few runs, after Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical
precipice". The functions are pure.

The scores of a group are one array per task (an environment) with one value per run. Intervals are 95 % percentile
intervals of a stratified bootstrap: scipy.stats.bootstrap resamples the runs of each task with replacement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
RESAMPLES = 2000
_PERMUTATIONS = 20_000  # most of a task's permutations that are enumerated; of more, as many are drawn


class Estimate(NamedTuple):
    """Statistic with the ends of its 95 % interval, which are None if a task has a single run or (probabilities) if all
    resamples agree.
    """

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
        return np.mean([_share_higher(*pair) for pair in zip(rows[:count], rows[count:], strict=True)], axis=0)

    found = _estimate([*tasks, *others], statistic)
    # Scores that do not overlap give 1 to 1 however few they are: the bootstrap cannot tell.
    return Estimate(found.value, None, None) if found.low == found.high else found


def p_value(tasks: Sequence[Floats], others: Sequence[Floats]) -> float:
    """Compute the two-sided p-value of `probability_of_improvement`: the share of all assignments of the runs of each
    task to the two groups that differ at least as much. For one task this is the exact Mann-Whitney test. Of many
    assignments a sample counts.
    """
    generator = np.random.default_rng(0)
    null = [_permuted(own, other, generator) for own, other in zip(tasks, others, strict=True)]
    observed = np.mean([_share_higher(own, other) for own, other in zip(tasks, others, strict=True)])
    if math.prod(map(len, null)) <= _PERMUTATIONS:
        sums: Floats = np.zeros(1)
        for shares in null:
            sums = np.add.outer(sums, shares).ravel()
    else:
        sums = np.sum([generator.choice(shares, _PERMUTATIONS) for shares in null], axis=0)
    distance = np.abs(sums / len(null) - 0.5)
    return float(np.mean(distance >= abs(observed - 0.5) - 1e-9))


def least_p_value(tasks: Sequence[Floats], others: Sequence[Floats]) -> float:
    """Return the smallest p-value that groups of these sizes can have, that of scores that do not overlap."""
    pairs = zip(tasks, others, strict=True)
    return min(1.0, 2.0 / math.prod(math.comb(len(own) + len(other), len(own)) for own, other in pairs))


def _share_higher(own: Floats, other: Floats) -> Floats:
    """Compute the share of pairs in which a score of `own` (..., R) is higher than one of `other` (..., R'); ties count
    half.
    """
    difference = np.expand_dims(own, -1) - np.expand_dims(other, -2)  # (..., R, R')
    share: Floats = ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1))
    return share


def _permuted(own: Floats, other: Floats, generator: np.random.Generator) -> Floats:
    """Compute `_share_higher` for all assignments of the scores to two groups of the same sizes, or for a sample."""
    scores, size = np.concatenate([own, other]), len(own)
    if math.comb(len(scores), size) <= _PERMUTATIONS:
        chosen = np.array(list(itertools.combinations(range(len(scores)), size)))
    else:
        chosen = generator.permuted(np.tile(np.arange(len(scores)), (_PERMUTATIONS, 1)), axis=1)[:, :size]
    # U = R - n (n + 1) / 2 from the rank sum R of the chosen scores, with mean ranks for ties.
    rank_sums = stats.rankdata(scores)[chosen].sum(axis=1)
    shares: Floats = (rank_sums - size * (size + 1) / 2) / (size * len(other))
    return shares


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
