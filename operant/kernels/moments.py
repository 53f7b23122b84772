"""Triton kernels of a rollout's numbers: moments of advantages and returns, summed in parts of one shard of lanes each,
and the parts in one program of fixed shape: the same floats whichever device has which shard. And how many parameters
are not finite. Know no network and no algorithm.
"""

from __future__ import annotations

import triton
import triton.language as tl

PARTS, TILE = 512, 4096
"""Moments are summed in up to so many parts, of tiles of so many samples."""


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


@triton.jit(do_not_specialize=["steps", "lanes"])
def part_moments(advantages, returns, parts, steps, lanes, TILE: tl.constexpr):
    """Moments of a shard's advantages and returns over every P-th tile: a row of `parts` (PARTS, 5), namely number,
    then mean and squares of each.

    Program 0 counts the parts of a shard, 1 the shards. Advantages and returns are (T, N).
    """
    part, shard = tl.program_id(0), tl.program_id(1)
    shard_lanes = lanes // tl.num_programs(1)
    n, mean_a, squares_a, mean_r, squares_r = 0.0, 0.0, 0.0, 0.0, 0.0
    for tile in range(part, tl.cdiv(steps * shard_lanes, TILE), tl.num_programs(0)):
        # Samples of the shard's lanes, tick after tick.
        index = tile * TILE + tl.arange(0, TILE)
        in_bounds = index < steps * shard_lanes
        sample = index // shard_lanes * lanes + shard * shard_lanes + index % shard_lanes
        advantage = tl.load(advantages + sample, mask=in_bounds, other=0.0)
        target = tl.load(returns + sample, mask=in_bounds, other=0.0)
        more = tl.sum(in_bounds.to(tl.float32), axis=0)
        more_mean, more_squares = _tile_moments(advantage, in_bounds, more)
        mean_a, squares_a = _merged(n, mean_a, squares_a, more, more_mean, more_squares)
        more_mean, more_squares = _tile_moments(target, in_bounds, more)
        mean_r, squares_r = _merged(n, mean_r, squares_r, more, more_mean, more_squares)
        n += more
    moments = (n, mean_a, squares_a, mean_r, squares_r)
    for k in tl.static_range(5):
        tl.store(parts + (shard * tl.num_programs(0) + part) * 5 + k, moments[k])


@triton.jit
def _all_moments(n, mean, squares, total):
    """Mean and variance of all parts."""
    overall = tl.sum(n * mean, axis=0) / total
    return overall, (tl.sum(squares, axis=0) + tl.sum(n * (mean - overall) * (mean - overall), axis=0)) / (total - 1.0)


@triton.jit
def rollout_moments(parts, programs, PARTS: tl.constexpr):
    """The advantages' mean and variance, and the explained variance, from the parts.

    Returns less values are advantages, so both variances are at hand.
    """
    part = tl.arange(0, PARTS)
    in_bounds = part < programs
    # The parts' moments: number, mean and squared deviations.
    n = tl.load(parts + 5 * part, mask=in_bounds, other=0.0)
    mean_a, squares_a = (
        tl.load(parts + 5 * part + 1, mask=in_bounds, other=0.0),
        tl.load(parts + 5 * part + 2, mask=in_bounds, other=0.0),
    )
    mean_r, squares_r = (
        tl.load(parts + 5 * part + 3, mask=in_bounds, other=0.0),
        tl.load(parts + 5 * part + 4, mask=in_bounds, other=0.0),
    )
    total = tl.sum(n, axis=0)
    mean, variance = _all_moments(n, mean_a, squares_a, total)
    _mean, return_variance = _all_moments(n, mean_r, squares_r, total)
    return mean, variance, 1.0 - variance / tl.maximum(return_variance, 1e-12)


@triton.jit
def not_finite(parameters, size, TILE: tl.constexpr):
    """How many parameters are NaN or infinite, by one program."""
    broken = tl.zeros((TILE,), tl.float32)
    for start in range(0, size, TILE):
        place = start + tl.arange(0, TILE)
        x = tl.load(parameters + place, mask=place < size, other=0.0)
        broken += tl.where(tl.abs(x) < float("inf"), 0.0, 1.0)
    return tl.sum(broken, axis=0)
