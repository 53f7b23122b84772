"""Triton kernels behind the gradient: rows of partial sums to one gradient, its norm, and Adam. Sums go in a fixed order. Know no network and no algorithm.

Rows are added in a binary tree: first the rows of each shard of lanes, then the shards. Each addition is of two numbers whose places in the tree are fixed, so
the sum is the same float whichever device has computed which shard's rows, and however a GPU spreads the work over threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

REDUCE_COLUMNS = tl.constexpr(32)
"""Columns of the rows that a program adds up."""

LOG_BETA_1 = tl.constexpr(-0.10536051565782628)  # log 0.9 and log 0.999
LOG_BETA_2 = tl.constexpr(-0.0010005003335835335)


@triton.jit
def add_halves(rows, COUNT: tl.constexpr, LEFT: tl.constexpr):
    """Levels of a binary tree: row k and row k + n / 2 of (COUNT, 32), until LEFT rows are left. Both are powers of two.

    Of two numbers the order of an addition does not matter, so no layout over threads can change the bits.
    """
    for level in tl.static_range(COUNT.bit_length() - LEFT.bit_length()):
        rows = tl.sum(tl.reshape(rows, (2, COUNT >> (level + 1), REDUCE_COLUMNS)), axis=0)
    return rows


@triton.jit
def reduce_partials(
    partial, width, gradient, squares, parameters, update, SPEC: tl.constexpr, RECORD: tl.constexpr, SHARDS: tl.constexpr, SHARD_ROWS: tl.constexpr
):  # fmt: skip
    """The gradient from rows of partial sums (SHARDS SHARD_ROWS, width), 32 columns a program, with each program's sum of squares.

    The last program has the sums of the loss's terms: `RECORD(terms, column, parameters, update, SPEC)`, the algorithm's, does with them what it likes.
    """
    block = tl.program_id(0)
    column = tl.arange(0, REDUCE_COLUMNS)
    # All rows in one load, (SHARD_ROWS SHARDS, 32), the first rows of all shards first: then a thread has the rows that it adds.
    row = tl.arange(0, SHARDS * SHARD_ROWS)
    place = (row % SHARDS * SHARD_ROWS + row // SHARDS)[:, None] * width + (block * REDUCE_COLUMNS + column)[None, :]
    shard_sums = add_halves(tl.load(partial + place), SHARDS * SHARD_ROWS, SHARDS)
    # Several ranks exchange their shards' sums here, (SHARDS, 32), before the tree over all shards: see `exchange_partials`.
    total = tl.reshape(add_halves(shard_sums, SHARDS, 1), (REDUCE_COLUMNS,))
    if (block + 1) * REDUCE_COLUMNS < width:
        tl.store(gradient + block * REDUCE_COLUMNS + column, total)
        tl.store(squares + block, tl.sum(total * total, axis=0))
    else:
        RECORD(total, column, parameters, update, SPEC)


@triton.jit
def sum_shards(partial, width, sums, SHARDS: tl.constexpr, SHARD_ROWS: tl.constexpr):
    """Each shard's rows of partial sums added up, (SHARDS SHARD_ROWS, width) -> (SHARDS, width), 32 columns a program: what ranks exchange."""
    column = tl.program_id(0) * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    row = tl.arange(0, SHARDS * SHARD_ROWS)
    place = (row % SHARDS * SHARD_ROWS + row // SHARDS)[:, None] * width + column[None, :]
    shard_sums = add_halves(tl.load(partial + place), SHARDS * SHARD_ROWS, SHARDS)
    tl.store(sums + tl.arange(0, SHARDS)[:, None] * width + column[None, :], shard_sums)


@triton.jit
def exchange_partials(
    partial, width, gradient, squares, parameters, update, link, SPEC: tl.constexpr, RECORD: tl.constexpr, SHARDS: tl.constexpr, SHARD_ROWS: tl.constexpr,
    RANKS: tl.constexpr,
):  # fmt: skip
    """`reduce_partials` over the rows of all ranks, each of which has SHARDS of the shards: the exchange costs no launch of its own.

    A program writes its shards' sums where the other ranks can read them, says so by a flag, waits for the same program of the other ranks, and reads theirs
    in the order of the ranks. Two halves take turns: who writes a half has seen that all have read what was in it. Nothing here ends the wait for a rank that
    is gone: the process that watches the ranks ends, and its kernels with it.
    """
    block = tl.program_id(0)
    column = block * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    row = tl.arange(0, SHARDS * SHARD_ROWS)
    place = (row % SHARDS * SHARD_ROWS + row // SHARDS)[:, None] * width + column[None, :]
    own = add_halves(tl.load(partial + place), SHARDS * SHARD_ROWS, SHARDS)
    # Ours, and the flag behind them.
    turn = tl.load(link.turns + block) + 1
    half = (turn % 2) * SHARDS * width
    tl.store(link.sums + half + tl.arange(0, SHARDS)[:, None] * width + column[None, :], own)
    tl.debug_barrier()
    tl.atomic_xchg(link.flags + block, turn, sem="release", scope="sys")
    # All ranks' flags.
    flags = tl.load(link.flag_addresses + tl.arange(0, RANKS)).to(tl.pointer_type(tl.int32)) + block
    seen = tl.min(tl.atomic_add(flags, tl.zeros((RANKS,), tl.int32), sem="acquire", scope="sys"), axis=0)
    while seen < turn:
        seen = tl.min(tl.atomic_add(flags, tl.zeros((RANKS,), tl.int32), sem="acquire", scope="sys"), axis=0)
    tl.debug_barrier()
    tl.store(link.turns + block, turn)
    # All ranks' shards, (RANKS SHARDS, 32), and the tree over them.
    shard = tl.arange(0, RANKS * SHARDS)
    sums = tl.load(link.sum_addresses + shard // SHARDS).to(tl.pointer_type(tl.float32))
    rows = tl.load(sums[:, None] + (half + (shard % SHARDS) * width)[:, None] + column[None, :], volatile=True)
    total = tl.reshape(add_halves(rows, RANKS * SHARDS, 1), (REDUCE_COLUMNS,))
    if (block + 1) * REDUCE_COLUMNS < width:
        tl.store(gradient + column, total)
        tl.store(squares + block, tl.sum(total * total, axis=0))
    else:
        RECORD(total, tl.arange(0, REDUCE_COLUMNS), parameters, update, SPEC)


@triton.jit
def count_step(steps, corrections, skipped):
    """Count one step of Adam unless it is skipped, and work out its corrections 1 - b1^t and sqrt(1 - b2^t)."""
    step = tl.load(steps) + (1.0 - skipped)
    tl.store(steps, step)
    # 1 - b^t, which float32 would make of two numbers that are nearly the same.
    exact = step.to(tl.float64)
    tl.store(corrections, (1.0 - tl.exp(exact * LOG_BETA_1)).to(tl.float32))
    tl.store(corrections + 1, tl.sqrt(1.0 - tl.exp(exact * LOG_BETA_2)).to(tl.float32))


@triton.jit(do_not_specialize=["max_norm", "epsilon"])
def adam_step(
    parameters, gradient, moments, squares, blocks, size, skip, learning_rate, norm_sum, max_norm, epsilon, BLOCKS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Clip by the gradient's norm and step: m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; x <- x - lr (m / c1) / (sqrt(v) / c2 + epsilon).

    `squares` (blocks): sums of squares of 32 numbers of the gradient each. The norm before clipping is added to `norm_sum`.
    """
    program = tl.program_id(0)
    # g <- g min(1, max_norm / |g|)
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(tl.sum(tl.load(squares + block, mask=block < blocks, other=0.0), axis=0))
    shrink = max_norm / (norm + 1e-6)
    shrink = tl.where(shrink > 1.0, 1.0, shrink)
    place = program * TILE + tl.arange(0, TILE)
    in_bounds = place < tl.where(tl.load(skip) > 0.0, 0, size)
    g = tl.load(gradient + place, mask=in_bounds, other=0.0) * shrink
    # The running averages, and the step by them.
    m = 0.9 * tl.load(moments.first + place, mask=in_bounds, other=0.0) + (1.0 - 0.9) * g
    v = 0.999 * tl.load(moments.second + place, mask=in_bounds, other=0.0) + (1.0 - 0.999) * g * g
    x = tl.load(parameters + place, mask=in_bounds, other=0.0)
    rate = tl.load(learning_rate) / tl.load(moments.corrections)
    x -= rate * m / (tl.sqrt(v) / tl.load(moments.corrections + 1) + epsilon)
    tl.store(moments.first + place, m, mask=in_bounds)
    tl.store(moments.second + place, v, mask=in_bounds)
    tl.store(parameters + place, x, mask=in_bounds)
    if program == 0:
        tl.store(norm_sum, tl.load(norm_sum) + norm)
