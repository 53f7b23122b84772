"""Triton kernels of running normalizers: partial moments of features over shards of the lanes, and their merge into the
running moments.

    partial_moments_kernel   batch (D, T, N) to moments (S P, D, 3): count, mean and sum of squared deviations
    merge_kernel             moments of all ranks (R, D, 3) into running mean and variance (D)

A part belongs to one shard of lanes and is computed alike on whichever GPU owns the shard. One program adds all parts
of a feature. Results therefore do not depend on how many GPUs share the lanes. Moments are merged by Chan, Golub &
LeVeque 1983, equation 1.5.

Shape letters: D features, T steps, N lanes, S shards of the lanes, P parts of a shard.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 4096
"""Samples of a program's tile."""

PROGRAMS = 2048
"""Target number of programs of a launch."""


@triton.jit(do_not_specialize=["steps", "lanes", "feature_stride", "step_stride"])
def partial_moments_kernel(batch, moments, steps, lanes, feature_stride, step_stride, TILE: tl.constexpr):
    """Count, mean and sum of squared deviations of a feature over every P-th tile of a shard, (S, P, D, 3) float64, of
    a batch (D, T, N).

    Program axes: feature, part, shard. Sizes are not specialized: the order of a sum must not depend on them.
    """
    feature, part, shard = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shard_lanes = lanes // tl.num_programs(2)
    n = tl.zeros((), tl.float64)
    mean, squares = n, n
    for tile in range(part, tl.cdiv(steps * shard_lanes, TILE), tl.num_programs(1)):
        index = tile * TILE + tl.arange(0, TILE)
        in_bounds = index < steps * shard_lanes
        offset = (index // shard_lanes).to(tl.int64) * step_stride + (shard * shard_lanes + index % shard_lanes)
        x = tl.load(batch + feature.to(tl.int64) * feature_stride + offset, mask=in_bounds, other=0)
        x = x if batch.dtype.element_ty == tl.float64 else x.to(tl.float32)
        # Mean and squared deviations of the tile.
        count = tl.sum(in_bounds.to(tl.int32), axis=0)
        tile_mean = tl.sum(x, axis=0) / count.to(x.dtype)
        deviation = tl.where(in_bounds, x - tile_mean, 0.0)
        tile_squares = tl.sum(deviation * deviation, axis=0)
        # Merge with the previous tiles: M2 = M2_a + M2_b + delta^2 n_a n_b / (n_a + n_b).
        tile_n, delta = count.to(tl.float64), tile_mean.to(tl.float64) - mean
        mean += delta * (tile_n / (n + tile_n))
        squares += tile_squares.to(tl.float64) + delta * delta * (n * (tile_n / (n + tile_n)))
        n += tile_n
    row = moments + (((shard * tl.num_programs(1) + part) * tl.num_programs(0)).to(tl.int64) + feature) * 3
    tl.store(row, n)
    tl.store(row + 1, mean)
    tl.store(row + 2, squares)


@triton.jit
def merge_kernel(moments, rows, count, running_mean, running_variance, mean, inv_std, epsilon, ROWS: tl.constexpr):
    """Merge all parts of a feature (rows, D, 3) into its running mean and variance (D) over `count` samples, and write
    mean and inv_std (D) in float32.
    """
    feature, features = tl.program_id(0), tl.num_programs(0)
    row = tl.arange(0, ROWS)
    moment = moments + (row.to(tl.int64) * features + feature) * 3
    n = tl.load(moment, mask=row < rows, other=0.0)
    part_mean, squares = (
        tl.load(moment + 1, mask=row < rows, other=0.0),
        tl.load(moment + 2, mask=row < rows, other=0.0),
    )
    # Merge all parts into one batch.
    batch_n = tl.sum(n, axis=0)
    batch_mean = tl.sum(n * part_mean, axis=0) / batch_n
    batch_squares = tl.sum(squares, axis=0) + tl.sum(n * (part_mean - batch_mean) * (part_mean - batch_mean), axis=0)
    # Merge the batch into the running moments.
    running_n, old_mean = tl.load(count), tl.load(running_mean + feature)
    delta, total = batch_mean - old_mean, running_n + batch_n
    new_mean = old_mean + delta * (batch_n / total)
    new_variance = (
        tl.load(running_variance + feature) * running_n
        + batch_squares
        + delta * delta * (running_n * (batch_n / total))
    ) / total
    tl.store(running_mean + feature, new_mean)
    tl.store(running_variance + feature, new_variance)
    tl.store(mean + feature, new_mean.to(tl.float32))
    tl.store(inv_std + feature, (1.0 / tl.sqrt(new_variance + epsilon)).to(tl.float32))


def partial_moments(batch: torch.Tensor, shards: int, ranks: int) -> torch.Tensor:
    """Moments of the parts of this rank's shards, (S P, D, 3) float64, of a batch (D, T, N) whose last stride is 1."""
    features, steps, lanes = batch.shape
    tiles = -(-steps * (lanes // shards) // TILE)
    parts = min(tiles, max(1, PROGRAMS // (features * shards * ranks)))  # equal for any number of ranks
    moments = torch.empty(shards * parts, features, 3, dtype=torch.float64, device=batch.device)
    partial_moments_kernel[(features, parts, shards)](
        batch, moments, steps, lanes, batch.stride(0), batch.stride(1), TILE=TILE, num_warps=8
    )
    return moments


Pair = tuple[torch.Tensor, torch.Tensor]


def merge(moments: torch.Tensor, count: torch.Tensor, running: Pair, read: Pair, epsilon: float) -> None:
    """Merge the parts (R, D, 3) of all ranks into the running mean and variance, and update mean and inv_std. The
    caller updates `count`.
    """
    rows, features, _ = moments.shape
    merge_kernel[(features,)](
        moments,
        rows,
        count,
        *running,
        *read,
        epsilon,
        ROWS=triton.next_power_of_2(rows),
        num_warps=4 if rows > 32 else 1,
    )
