"""Triton kernels of PPO's numbers around the gradient: moments of the advantages before an update, the loss's terms in it, and its statistics behind it.

The moments are summed in parts, each of one shard of lanes, and the parts in one program of fixed shape: the same floats whichever device has which shard.
Know no network.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.algos.ppo.fused.buffers import Terms
from operant.algos.ppo.fused.loss import SCALAR
from operant.algos.ppo.stats import Stats
from operant.kernels.blocks import LOG_2_PI, Places, load_log_std
from operant.kernels.reduce import count_step

STAT = Places(Stats(*range(len(Stats._fields))))  # type: ignore[arg-type]  # places instead of tensors
TERM = Places(Terms(*range(len(Terms._fields))))
"""Places of the statistics and of the loss's terms, by name."""

# MOMENTS OF THE ADVANTAGES


@triton.jit
def _tile_moments(x, in_bounds, count):
    """Mean and sum of squared deviations of a tile (rows) with `count` numbers in bounds."""
    mean = tl.sum(tl.where(in_bounds, x, 0.0), axis=0) / tl.maximum(count, 1.0)
    deviation = tl.where(in_bounds, x - mean, 0.0)
    return mean, tl.sum(deviation * deviation, axis=0)


@triton.jit
def _merged(count, mean, squares, more, more_mean, more_squares):
    """Moments of two batches as one (Chan, Golub & LeVeque 1983, equation 1.5)."""
    total = tl.maximum(count + more, 1.0)
    delta = more_mean - mean
    return mean + delta * (more / total), squares + more_squares + delta * delta * (count * (more / total))


@triton.jit
def part_moments(numbers, parts, steps, lanes, stride, PARTS: tl.constexpr, TILE: tl.constexpr):
    """Moments of a shard's advantages and returns over every P-th tile: a column of `parts` (5, PARTS), namely number, then mean and squares of each.

    Program 0 counts the parts of a shard, 1 the shards. `numbers`: advantages (T, N), and returns 2 `stride` behind them.
    """
    part, shard = tl.program_id(0), tl.program_id(1)
    shard_lanes = lanes // tl.num_programs(1)
    n, mean_a, squares_a, mean_r, squares_r = 0.0, 0.0, 0.0, 0.0, 0.0
    for tile in range(part, tl.cdiv(steps * shard_lanes, TILE), tl.num_programs(0)):
        # Samples of the shard's lanes, tick after tick.
        index = tile * TILE + tl.arange(0, TILE)
        in_bounds = index < steps * shard_lanes
        sample = index // shard_lanes * lanes + shard * shard_lanes + index % shard_lanes
        advantage = tl.load(numbers + sample, mask=in_bounds, other=0.0)
        target = tl.load(numbers + 2 * stride + sample, mask=in_bounds, other=0.0)
        more = tl.sum(in_bounds.to(tl.float32), axis=0)
        more_mean, more_squares = _tile_moments(advantage, in_bounds, more)
        mean_a, squares_a = _merged(n, mean_a, squares_a, more, more_mean, more_squares)
        more_mean, more_squares = _tile_moments(target, in_bounds, more)
        mean_r, squares_r = _merged(n, mean_r, squares_r, more, more_mean, more_squares)
        n += more
    moments = (n, mean_a, squares_a, mean_r, squares_r)
    for k in tl.static_range(5):
        tl.store(parts + k * PARTS + shard * tl.num_programs(0) + part, moments[k])


@triton.jit
def _all_moments(n, mean, squares, total):
    """Mean and variance of all parts."""
    overall = tl.sum(n * mean, axis=0) / total
    return overall, (tl.sum(squares, axis=0) + tl.sum(n * (mean - overall) * (mean - overall), axis=0)) / (total - 1.0)


@triton.jit(do_not_specialize=["iterations"])
def begin(
    parts, programs, scalars, totals, skip, learning_rate, iteration, iterations, NORMALIZE: tl.constexpr, ANNEAL: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Before an update: the advantages' mean and 1 / std, the explained variance, the learning rate; totals and `skip` to zero. One program.

    Returns less values are advantages, so both variances are at hand.
    """
    part = tl.arange(0, PARTS)
    in_bounds = part < programs
    # The parts' moments: number, mean and squared deviations.
    n = tl.load(parts + part, mask=in_bounds, other=0.0)
    total = tl.sum(n, axis=0)
    squares_a, squares_r = tl.load(parts + 2 * PARTS + part, mask=in_bounds, other=0.0), tl.load(parts + 4 * PARTS + part, mask=in_bounds, other=0.0)
    mean, variance = _all_moments(n, tl.load(parts + PARTS + part, mask=in_bounds, other=0.0), squares_a, total)
    _mean, return_variance = _all_moments(n, tl.load(parts + 3 * PARTS + part, mask=in_bounds, other=0.0), squares_r, total)
    tl.store(scalars + SCALAR.advantage_mean, mean if NORMALIZE else 0.0)
    tl.store(scalars + SCALAR.advantage_inv_std, 1.0 / (tl.sqrt(variance) + 1e-8) if NORMALIZE else 1.0)
    tl.store(scalars + SCALAR.explained_variance, 1.0 - variance / tl.maximum(return_variance, 1e-12))
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
    """Take a minibatch's terms (32), means over its samples, into the totals, and count Adam's step unless the KL divergence has ended the update."""
    entropy = _pick(terms, column, TERM.entropy)
    if SPEC.log_std >= 0:
        # A Gaussian's entropy is that of its log_std.
        action = tl.arange(0, SPEC.out_pad)
        entropy += tl.sum(tl.where(action < SPEC.head_rows, load_log_std(parameters, action, SPEC) + 0.5 * LOG_2_PI + 0.5, 0.0), axis=0)
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
    broken = tl.zeros((TILE,), tl.float32)
    for start in range(0, size, TILE):
        place = start + tl.arange(0, TILE)
        x = tl.load(parameters + place, mask=place < size, other=0.0)
        broken += tl.where(tl.abs(x) < float("inf"), 0.0, 1.0)
    count = tl.sum(broken, axis=0)
    for k in tl.static_range(STAT.gradient_norm + 1):
        mean = tl.load(totals + k) / minibatches
        count += tl.where(tl.abs(mean) < float("inf"), 0.0, 1.0)
        tl.store(stats + k, mean)
    tl.store(stats + STAT.explained_variance, tl.load(scalars + SCALAR.explained_variance))
    tl.store(stats + STAT.learning_rate, tl.load(learning_rate))
    tl.store(stats + STAT.not_finite, count)
    tl.store(iteration, tl.load(iteration) + 1)
