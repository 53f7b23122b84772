"""Statistics of a rollout in Triton: moments of advantages and returns, and a count of non-finite parameters.

Moments are accumulated in parts, each over the lanes of one shard, and merged by one program of fixed shape. Therefore
they have the same bits on any number of ranks. Knows no network and no algorithm.
"""

from __future__ import annotations

import triton
import triton.language as tl

PARTS, TILE = 512, 4096
"""Maximum number of parts; samples of a tile."""


@triton.jit
def _tile_moments(x, in_bounds, count):
    """Compute mean and sum of squared deviations of a tile (rows) with `count` rows in bounds."""
    mean = tl.sum(tl.where(in_bounds, x, 0.0), axis=0) / tl.maximum(count, 1.0)
    deviation = tl.where(in_bounds, x - mean, 0.0)
    return mean, tl.sum(deviation * deviation, axis=0)


@triton.jit
def _merged(n_a, mean_a, squares_a, n_b, mean_b, squares_b):
    """Merge mean and sum of squared deviations of two batches (Chan, Golub & LeVeque 1983, equation 1.5)."""
    total = tl.maximum(n_a + n_b, 1.0)
    delta = mean_b - mean_a
    return mean_a + delta * (n_b / total), squares_a + squares_b + delta * delta * (n_a * (n_b / total))


@triton.jit(do_not_specialize=["steps", "lanes"])
def part_moments(advantages_ptr, returns_ptr, parts_ptr, steps, lanes, TILE: tl.constexpr):
    """Compute moments of advantages and returns of a shard over every P-th tile. Grid: (P parts of a shard, shards).

    | parameter      | shape      | meaning                                                                     |
    |----------------|------------|-----------------------------------------------------------------------------|
    | advantages_ptr | (T, N)     | advantages                                                                  |
    | returns_ptr    | (T, N)     | returns                                                                     |
    | parts_ptr      | (PARTS, 5) | written: count, then mean and sum of squared deviations of each             |
    | steps, lanes   | int        | T, N                                                                        |
    """
    part, shard = tl.program_id(0), tl.program_id(1)
    shard_lanes = lanes // tl.num_programs(1)
    n, mean_a, squares_a, mean_r, squares_r = 0.0, 0.0, 0.0, 0.0, 0.0
    for tile in range(part, tl.cdiv(steps * shard_lanes, TILE), tl.num_programs(0)):
        # Samples of the shard's lanes, step after step.
        index = tile * TILE + tl.arange(0, TILE)
        in_bounds = index < steps * shard_lanes
        sample = index // shard_lanes * lanes + shard * shard_lanes + index % shard_lanes
        advantage = tl.load(advantages_ptr + sample, mask=in_bounds, other=0.0)
        target = tl.load(returns_ptr + sample, mask=in_bounds, other=0.0)
        tile_n = tl.sum(in_bounds.to(tl.float32), axis=0)
        tile_mean, tile_squares = _tile_moments(advantage, in_bounds, tile_n)
        mean_a, squares_a = _merged(n, mean_a, squares_a, tile_n, tile_mean, tile_squares)
        tile_mean, tile_squares = _tile_moments(target, in_bounds, tile_n)
        mean_r, squares_r = _merged(n, mean_r, squares_r, tile_n, tile_mean, tile_squares)
        n += tile_n
    moments = (n, mean_a, squares_a, mean_r, squares_r)
    for k in tl.static_range(5):
        tl.store(parts_ptr + (shard * tl.num_programs(0) + part) * 5 + k, moments[k])


@triton.jit
def _all_moments(n, mean, squares, total):
    """Compute mean and variance over all parts from their counts, means and sums of squared deviations (PARTS)."""
    overall = tl.sum(n * mean, axis=0) / total
    return overall, (tl.sum(squares, axis=0) + tl.sum(n * (mean - overall) * (mean - overall), axis=0)) / (total - 1.0)


@triton.jit
def rollout_moments(parts_ptr, programs, PARTS: tl.constexpr):
    """Compute mean and variance of the advantages, and the explained variance, from the first `programs` parts.

    Returns minus values are advantages: explained variance = 1 - Var[advantage] / Var[return].
    """
    part = tl.arange(0, PARTS)
    in_bounds = part < programs
    n = tl.load(parts_ptr + 5 * part, mask=in_bounds, other=0.0)
    mean_a, squares_a = (
        tl.load(parts_ptr + 5 * part + 1, mask=in_bounds, other=0.0),
        tl.load(parts_ptr + 5 * part + 2, mask=in_bounds, other=0.0),
    )
    mean_r, squares_r = (
        tl.load(parts_ptr + 5 * part + 3, mask=in_bounds, other=0.0),
        tl.load(parts_ptr + 5 * part + 4, mask=in_bounds, other=0.0),
    )
    total = tl.sum(n, axis=0)
    mean, variance = _all_moments(n, mean_a, squares_a, total)
    _mean, return_variance = _all_moments(n, mean_r, squares_r, total)
    return mean, variance, 1.0 - variance / tl.maximum(return_variance, 1e-12)


@triton.jit
def not_finite(params_ptr, size, TILE: tl.constexpr):
    """Count the NaN or infinite values in `params_ptr` (size), by one program."""
    count = tl.zeros((TILE,), tl.float32)
    for start in range(0, size, TILE):
        offset = start + tl.arange(0, TILE)
        x = tl.load(params_ptr + offset, mask=offset < size, other=0.0)
        count += tl.where(tl.abs(x) < float("inf"), 0.0, 1.0)
    return tl.sum(count, axis=0)
