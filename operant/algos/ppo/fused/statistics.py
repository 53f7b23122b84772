"""Triton kernels of PPO's numbers around the gradient: moments of the advantages before an update, the loss's terms in
it, and its statistics behind it.

Know no network.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.algos.ppo.fused.buffers import Terms
from operant.algos.ppo.fused.loss import SCALAR
from operant.algos.ppo.stats import Stats
from operant.kernels.blocks import LOG_2_PI, Places, load_log_std
from operant.kernels.moments import not_finite, rollout_moments
from operant.kernels.ops.adam import count_step

STAT = Places(Stats(*range(len(Stats._fields))))  # type: ignore[arg-type]  # places instead of tensors
TERM = Places(Terms(*range(len(Terms._fields))))
"""Places of the statistics and of the loss's terms, by name."""

# BEFORE IT


@triton.jit(do_not_specialize=["iterations"])
def begin(
    parts,
    programs,
    scalars,
    totals,
    skip,
    learning_rate,
    iteration,
    iterations,
    NORMALIZE: tl.constexpr,
    ANNEAL: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Before an update: the advantages' mean and 1 / std, the explained variance, the learning rate; totals and `skip`
    to zero. One program.
    """
    mean, variance, explained = rollout_moments(parts, programs, PARTS)
    tl.store(scalars + SCALAR.advantage_mean, mean if NORMALIZE else 0.0)
    tl.store(scalars + SCALAR.advantage_inv_std, 1.0 / (tl.sqrt(variance) + 1e-8) if NORMALIZE else 1.0)
    tl.store(scalars + SCALAR.explained_variance, explained)
    # The update's counters.
    tl.store(totals + tl.arange(0, 8), tl.zeros((8,), tl.float32))
    tl.store(skip, 0.0)
    if ANNEAL:
        remaining = tl.maximum(1.0 - tl.load(iteration).to(tl.float32) / iterations, 0.0)
        tl.store(learning_rate, tl.load(scalars + SCALAR.start_rate) * remaining)


# IN THE UPDATE


@triton.jit
def _pick(values, column, PICKED: tl.constexpr):
    return tl.sum(tl.where(column == PICKED, values, 0.0), axis=0)


@triton.jit
def _add(totals, STATISTIC: tl.constexpr, number):
    tl.store(totals + STATISTIC, tl.load(totals + STATISTIC) + number)


@triton.jit
def record(terms, column, parameters, update, SPEC: tl.constexpr):
    """Take a minibatch's terms (32), means over its samples, into the totals, and count Adam's step unless the KL
    divergence has ended the update.
    """
    entropy = _pick(terms, column, TERM.entropy)
    if SPEC.log_std >= 0:
        # A Gaussian's entropy is that of its log_std.
        action = tl.arange(0, SPEC.out_pad)
        entropy += tl.sum(
            tl.where(action < SPEC.head_rows, load_log_std(parameters, action, SPEC) + 0.5 * LOG_2_PI + 0.5, 0.0),
            axis=0,
        )
    kl = _pick(terms, column, TERM.kl)
    _add(update.totals, STAT.policy_loss, -_pick(terms, column, TERM.surrogate))
    _add(update.totals, STAT.value_loss, 0.5 * _pick(terms, column, TERM.squared_error))
    _add(update.totals, STAT.entropy, entropy)
    _add(update.totals, STAT.approx_kl, kl)
    _add(update.totals, STAT.clip_fraction, _pick(terms, column, TERM.clipped))
    # Without a target it is infinite, which nothing passes.
    skipped = tl.where(kl > 1.5 * tl.load(update.scalars + SCALAR.target_kl), 1.0, tl.load(update.skip))
    tl.store(update.skip, skipped)
    count_step(update.steps, update.corrections, skipped)


# BEHIND IT


@triton.jit(do_not_specialize=["minibatches"])
def finish(totals, scalars, learning_rate, parameters, size, iteration, stats, minibatches, TILE: tl.constexpr):
    """After an update: its statistics, means over so many minibatches; and one more iteration. One program."""
    # Parameters and losses that are not finite.
    count = not_finite(parameters, size, TILE)
    for k in tl.static_range(STAT.gradient_norm + 1):
        mean = tl.load(totals + k) / minibatches
        count += tl.where(tl.abs(mean) < float("inf"), 0.0, 1.0)
        tl.store(stats + k, mean)
    tl.store(stats + STAT.explained_variance, tl.load(scalars + SCALAR.explained_variance))
    tl.store(stats + STAT.learning_rate, tl.load(learning_rate))
    tl.store(stats + STAT.not_finite, count)
    tl.store(iteration, tl.load(iteration) + 1)
