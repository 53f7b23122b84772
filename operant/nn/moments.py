"""Triton kernels of running normalizers: moments of features over shards of the lanes, in parts of fixed shape, and
their merging into what was seen before.

A part is of one shard of lanes and is computed alike whichever GPU owns the shard; one program adds all parts of a
feature. So the bits do not depend on how many GPUs share the lanes. Merging of moments: Chan, Golub & LeVeque 1983,
equation 1.5. Knows no exchange and no algorithm.

Shape letters: D features, T steps, N lanes, S shards of them, P parts of a shard.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 4096
"""Samples that a program takes at a time."""

PROGRAMS = 2048
"""About so many share the work, where there is enough of it."""


@triton.jit(do_not_specialize=["steps", "lanes", "feature_stride", "step_stride"])
def part_moments(batch, moments, steps, lanes, feature_stride, step_stride, TILE: tl.constexpr):
    """Number, mean and squared deviations of a feature in every P-th tile of a shard, (S, P, D, 3) float64, of a batch
    (D, T, N).

    Program 0 counts the features, 1 the parts of a shard, 2 the shards. Not compiled for certain shapes, or the order
    of a sum would depend on them.
    """
    feature, part, shard = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shard_lanes = lanes // tl.num_programs(2)
    n = tl.zeros((), tl.float64)
    mean, squares = n, n
    for tile in range(part, tl.cdiv(steps * shard_lanes, TILE), tl.num_programs(1)):
        index = tile * TILE + tl.arange(0, TILE)
        in_bounds = index < steps * shard_lanes
        place = (index // shard_lanes).to(tl.int64) * step_stride + (shard * shard_lanes + index % shard_lanes)
        x = tl.load(batch + feature.to(tl.int64) * feature_stride + place, mask=in_bounds, other=0)
        x = x if batch.dtype.element_ty == tl.float64 else x.to(tl.float32)
        # Of the tile: its mean, then the squares of what is left.
        count = tl.sum(in_bounds.to(tl.int32), axis=0)
        more_mean = tl.sum(x, axis=0) / count.to(x.dtype)
        deviation = tl.where(in_bounds, x - more_mean, 0.0)
        more_squares = tl.sum(deviation * deviation, axis=0)
        # Together with the tiles before it.
        more, delta = count.to(tl.float64), more_mean.to(tl.float64) - mean
        mean += delta * (more / (n + more))
        squares += more_squares.to(tl.float64) + delta * delta * (n * (more / (n + more)))
        n += more
    row = moments + (((shard * tl.num_programs(1) + part) * tl.num_programs(0)).to(tl.int64) + feature) * 3
    tl.store(row, n)
    tl.store(row + 1, mean)
    tl.store(row + 2, squares)


@triton.jit
def take_in(moments, rows, count, running_mean, running_variance, mean, inv_std, epsilon, ROWS: tl.constexpr):
    """Merge all parts of a feature, (rows, D, 3), into its running mean and variance (D), of `count` samples until now;
    and what readers use.
    """
    feature, features = tl.program_id(0), tl.num_programs(0)
    row = tl.arange(0, ROWS)
    place = moments + (row.to(tl.int64) * features + feature) * 3
    n = tl.load(place, mask=row < rows, other=0.0)
    part_mean, squares = tl.load(place + 1, mask=row < rows, other=0.0), tl.load(place + 2, mask=row < rows, other=0.0)
    # All parts as one batch.
    more = tl.sum(n, axis=0)
    batch_mean = tl.sum(n * part_mean, axis=0) / more
    batch_squares = tl.sum(squares, axis=0) + tl.sum(n * (part_mean - batch_mean) * (part_mean - batch_mean), axis=0)
    # What was seen before, and the batch.
    seen, seen_mean = tl.load(count), tl.load(running_mean + feature)
    delta, total = batch_mean - seen_mean, seen + more
    new_mean = seen_mean + delta * (more / total)
    new_variance = (
        tl.load(running_variance + feature) * seen + batch_squares + delta * delta * (seen * (more / total))
    ) / total
    tl.store(running_mean + feature, new_mean)
    tl.store(running_variance + feature, new_variance)
    tl.store(mean + feature, new_mean.to(tl.float32))
    tl.store(inv_std + feature, (1.0 / tl.sqrt(new_variance + epsilon)).to(tl.float32))


def parts_of(batch: torch.Tensor, shards: int, ranks: int) -> torch.Tensor:
    """Moments of the parts of this rank's shards, (S P, D, 3) float64, of a batch (D, T, N) whose last stride is 1."""
    features, steps, lanes = batch.shape
    tiles = -(-steps * (lanes // shards) // TILE)
    parts = min(tiles, max(1, PROGRAMS // (features * shards * ranks)))  # the same on any number of ranks
    moments = torch.empty(shards * parts, features, 3, dtype=torch.float64, device=batch.device)
    part_moments[(features, parts, shards)](
        batch, moments, steps, lanes, batch.stride(0), batch.stride(1), TILE=TILE, num_warps=8
    )
    return moments


Pair = tuple[torch.Tensor, torch.Tensor]


def merge(moments: torch.Tensor, count: torch.Tensor, running: Pair, read: Pair, epsilon: float) -> None:
    """Merge parts (R, D, 3) of all ranks into running mean and variance, and renew what readers use. `count` is left to
    be raised.
    """
    rows, features, _ = moments.shape
    take_in[(features,)](
        moments,
        rows,
        count,
        *running,
        *read,
        epsilon,
        ROWS=triton.next_power_of_2(rows),
        num_warps=4 if rows > 32 else 1,
    )
