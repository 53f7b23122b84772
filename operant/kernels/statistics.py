"""Statistics of an on-policy update in Triton: offsets of statistics by name, moments of advantages and returns before
the update, means of the loss terms after it.

Moments are accumulated in parts, each over the lanes of one shard (an aligned range of lanes), and merged by one
program of fixed shape. Therefore they have the same bits on any number of ranks.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

PARTS, TILE = 512, 4096
"""Maximum number of parts, and samples of a tile, of `part_moments`."""

# NAMES


class NamedConstants(tl.constexpr):
    """Compile-time named tuple of integers that kernels read by field, as in `STAT.policy_loss`."""

    # Triton's compiler looks into the value by itself, its interpreter does not.
    def __getattr__(self, name: str) -> Any:
        if "value" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.value, name)


def offsets(fields: type[Any]) -> NamedConstants:
    """Return the offsets 0, 1, ... of a NamedTuple's fields, by name: `offsets(Stats).entropy` is a position in the
    buffers that hold one number per field.
    """
    assert "value" not in fields._fields  # taken by tl.constexpr
    return NamedConstants(fields(*range(len(fields._fields))))


# BEFORE AN UPDATE


@triton.jit
def _tile_moments(x, in_bounds, count):
    """Return mean and sum of squared deviations of x (TILE), of whose elements `count` are in bounds."""
    mean = tl.sum(tl.where(in_bounds, x, 0.0), axis=0) / tl.maximum(count, 1.0)
    deviation = tl.where(in_bounds, x - mean, 0.0)
    return mean, tl.sum(deviation * deviation, axis=0)


@triton.jit
def _merged(n_a, mean_a, squares_a, n_b, mean_b, squares_b):
    """Return mean and sum of squared deviations of two batches a and b together (Chan, Golub & LeVeque 1983, equation
    1.5); n_a and n_b are their sizes.
    """
    total = tl.maximum(n_a + n_b, 1.0)
    delta = mean_b - mean_a
    return mean_a + delta * (n_b / total), squares_a + squares_b + delta * delta * (n_a * (n_b / total))


@triton.jit(do_not_specialize=["steps", "lanes"])
def part_moments(advantages_ptr, returns_ptr, parts_ptr, steps, lanes, TILE: tl.constexpr):
    """Write count, means and sums of squared deviations of advantages and returns over a part of the samples. Grid: (K
    parts of a shard, shards); program (k, shard) takes every K-th tile of TILE samples of its shard, from tile k on.

    | parameter      | shape      | meaning                                                         |
    |----------------|------------|-----------------------------------------------------------------|
    | advantages_ptr | (T, N)     | advantages                                                      |
    | returns_ptr    | (T, N)     | returns                                                         |
    | parts_ptr      | (PARTS, 5) | written: count, then mean and sum of squared deviations of each |
    | steps, lanes   | int        | T, N                                                            |
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
    """Return mean and variance over all parts, from the parts' counts n, means and sums of squared deviations (PARTS);
    `total` is the sum of the counts.
    """
    overall = tl.sum(n * mean, axis=0) / total
    return overall, (tl.sum(squares, axis=0) + tl.sum(n * (mean - overall) * (mean - overall), axis=0)) / (total - 1.0)


@triton.jit
def rollout_moments(parts_ptr, programs, PARTS: tl.constexpr):
    """Return mean and variance of the advantages, and the explained variance of the returns, from the first `programs`
    rows of `parts_ptr` (PARTS, 5), which `part_moments` wrote.

    Advantages are returns minus values: explained variance = 1 - Var[advantage] / Var[return].
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
def linear_decay(iteration_ptr, iterations):
    """Return the factor of a learning rate that falls linearly to 0 over `iterations`, at iteration `iteration_ptr`
    (1).
    """
    return tl.maximum(1.0 - tl.load(iteration_ptr).to(tl.float32) / iterations, 0.0)


# AFTER AN UPDATE


@triton.jit
def _count_not_finite(x_ptr, size, TILE: tl.constexpr):
    """Return the number of NaN or infinite values among `x_ptr` (size), TILE at a time by one program."""
    count = tl.zeros((TILE,), tl.float32)
    for start in range(0, size, TILE):
        offset = start + tl.arange(0, TILE)
        x = tl.load(x_ptr + offset, mask=offset < size, other=0.0)
        count += tl.where(tl.abs(x) < float("inf"), 0.0, 1.0)
    return tl.sum(count, axis=0)


@triton.jit(do_not_specialize=["minibatches"])
def finish(
    totals_ptr,
    scalar_ptrs,
    params_ptr,
    size,
    iteration_ptr,
    stats_ptr,
    minibatches,
    MEANS: tl.constexpr,
    TILE: tl.constexpr,
):
    """End an update: write the iteration's statistics and count the iteration. One program.

    | parameter     | shape               | meaning                                                             |
    |---------------|---------------------|---------------------------------------------------------------------|
    | totals_ptr    | (MEANS)             | sums over minibatches of the loss terms and of the gradient norm    |
    | scalar_ptrs   | tuple of S pointers | scalars to copy, such as the learning rate                          |
    | params_ptr    | (size)              | parameters, of which NaN and infinite values are counted            |
    | iteration_ptr | (1) int64           | incremented                                                         |
    | stats_ptr     | (MEANS + S + 1)     | written: means over minibatches, the scalars, number of values that |
    |               |                     | are not finite                                                      |
    | minibatches   | float               | number of optimizer steps of the update                             |
    """
    count = _count_not_finite(params_ptr, size, TILE)
    for k in tl.static_range(MEANS):
        mean = tl.load(totals_ptr + k) / minibatches
        count += tl.where(tl.abs(mean) < float("inf"), 0.0, 1.0)
        tl.store(stats_ptr + k, mean)
    for k in tl.static_range(len(scalar_ptrs)):
        tl.store(stats_ptr + MEANS + k, tl.load(scalar_ptrs[k]))
    tl.store(stats_ptr + MEANS + len(scalar_ptrs), count)
    tl.store(iteration_ptr, tl.load(iteration_ptr) + 1)
