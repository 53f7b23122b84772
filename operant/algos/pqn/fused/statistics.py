"""Triton kernels of PQN's numbers around the gradient: the explained variance before an update, the loss's terms in it,
and its statistics behind it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.algos.pqn.stats import Stats
from operant.kernels.blocks import Places
from operant.kernels.moments import not_finite, rollout_moments
from operant.kernels.ops.adam import count_step

STAT = Places(Stats(*range(len(Stats._fields))))  # type: ignore[arg-type]  # places instead of tensors
TERMS = tl.constexpr(3)
"""Terms of the loss, which are the first of the statistics."""


@triton.jit(do_not_specialize=["iterations", "start_rate"])
def begin(
    parts, programs, totals, learning_rate, start_rate, iteration, iterations, ANNEAL: tl.constexpr, PARTS: tl.constexpr
):
    """Before an update: the explained variance, the learning rate, and all other totals to zero. One program."""
    _mean, _variance, explained = rollout_moments(parts, programs, PARTS)
    place = tl.arange(0, 8)
    tl.store(totals + place, tl.where(place == STAT.explained_variance, explained, 0.0))
    if ANNEAL:
        tl.store(learning_rate, start_rate * tl.maximum(1.0 - tl.load(iteration).to(tl.float32) / iterations, 0.0))


@triton.jit
def record(terms, column, parameters, update, SPEC: tl.constexpr):
    """Take a minibatch's terms (32), means over its samples, into the totals, and count Adam's step."""
    mask = column < TERMS
    tl.store(update.totals + column, tl.load(update.totals + column, mask=mask, other=0.0) + terms, mask=mask)
    count_step(update.steps, update.corrections, 0.0)


@triton.jit(do_not_specialize=["minibatches"])
def finish(totals, epsilon, learning_rate, parameters, size, iteration, stats, minibatches, TILE: tl.constexpr):
    """After an update: its statistics, means over so many minibatches; and one more iteration. One program."""
    count = not_finite(parameters, size, TILE)
    for k in tl.static_range(STAT.gradient_norm + 1):
        mean = tl.load(totals + k) / minibatches
        count += tl.where(tl.abs(mean) < float("inf"), 0.0, 1.0)
        tl.store(stats + k, mean)
    tl.store(stats + STAT.explained_variance, tl.load(totals + STAT.explained_variance))
    tl.store(stats + STAT.epsilon, tl.load(epsilon))
    tl.store(stats + STAT.learning_rate, tl.load(learning_rate))
    tl.store(stats + STAT.not_finite, count)
    tl.store(iteration, tl.load(iteration) + 1)
