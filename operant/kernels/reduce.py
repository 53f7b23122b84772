"""Triton kernels behind the gradient: rows of partial sums to one gradient, its norm, and Adam. Sums go in a fixed
order. Know no network and no algorithm.

Rows are added in a binary tree: first the rows of each shard of lanes, then neighbouring shards. Each addition is of
two numbers whose places in the tree are fixed, so the sum is the same float whichever device has computed which shard's
rows, and however a GPU spreads the work over threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.exchange import exchanged, reversed_bits

REDUCE_COLUMNS = tl.constexpr(32)
"""Columns of the rows that a program adds up."""

LOG_BETA_1 = tl.constexpr(-0.10536051565782628)  # log 0.9 and log 0.999
LOG_BETA_2 = tl.constexpr(-0.0010005003335835335)


@triton.jit
def add_halves(rows, COUNT: tl.constexpr, LEFT: tl.constexpr):
    """Levels of a binary tree: row k and row k + n / 2 of (COUNT, 32), until LEFT rows are left. Both are powers of
    two.

    Of two numbers the order of an addition does not matter, so no layout over threads can change the bits.
    """
    for level in tl.static_range(COUNT.bit_length() - LEFT.bit_length()):
        rows = tl.sum(tl.reshape(rows, (2, COUNT >> (level + 1), REDUCE_COLUMNS)), axis=0)
    return rows


@triton.jit
def add_shards(partial, width, column, SHARDS: tl.constexpr, SHARD_ROWS: tl.constexpr):
    """Rows of partial sums (SHARDS SHARD_ROWS, width) added up in 32 columns, (1, 32): each shard's rows, then
    neighbouring shards, then neighbours of those.

    So what a rank owns, some neighbouring shards, is one number of the tree over all shards.
    """
    # All rows in one load, the first rows of all shards first: then a thread has the rows that it adds.
    row = tl.arange(0, SHARDS * SHARD_ROWS)
    place = (reversed_bits(row % SHARDS, SHARDS) * SHARD_ROWS + row // SHARDS)[:, None] * width + column[None, :]
    return add_halves(tl.load(partial + place), SHARDS * SHARD_ROWS, 1)


@triton.jit
def sum_of_squares(x):
    """The sum of 32 squares in a binary tree, so that it does not depend on the layout that a kernel has
    given x (32).
    """
    squares = x * x
    for level in tl.static_range(5):
        squares = tl.sum(tl.reshape(squares, (2, 16 >> level)), axis=0)
    return tl.sum(squares, axis=0)


@triton.jit
def store_total(
    total, block, column, width, gradient, squares, parameters, update, SPEC: tl.constexpr, RECORD: tl.constexpr
):
    """32 numbers of the gradient, and the sum of their squares; of the last program the loss's terms, which the
    algorithm's `RECORD` takes.
    """
    if (block + 1) * REDUCE_COLUMNS < width:
        tl.store(gradient + column, total)
        tl.store(squares + block, sum_of_squares(total))
    else:
        RECORD(total, tl.arange(0, REDUCE_COLUMNS), parameters, update, SPEC)


@triton.jit
def reduce_partials(
    partial,
    width,
    gradient,
    squares,
    parameters,
    update,
    SPEC: tl.constexpr,
    RECORD: tl.constexpr,
    SHARDS: tl.constexpr,
    SHARD_ROWS: tl.constexpr,
):
    """The gradient from rows of partial sums (SHARDS SHARD_ROWS, width), 32 columns a program, with each program's sum
    of squares.

    The last program has the sums of the loss's terms: `RECORD(terms, column, parameters, update, SPEC)`.
    """
    block = tl.program_id(0)
    column = block * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    total = tl.reshape(add_shards(partial, width, column, SHARDS, SHARD_ROWS), (REDUCE_COLUMNS,))
    store_total(total, block, column, width, gradient, squares, parameters, update, SPEC, RECORD)


@triton.jit
def sum_shards(partial, width, sums, SHARDS: tl.constexpr, SHARD_ROWS: tl.constexpr):
    """One rank's rows of partial sums added up, (SHARDS SHARD_ROWS, width) -> (width), 32 columns a program: what ranks
    exchange.
    """
    column = tl.program_id(0) * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    tl.store(sums + column[None, :], add_shards(partial, width, column, SHARDS, SHARD_ROWS))


@triton.jit
def exchange_partials(
    partial,
    width,
    gradient,
    squares,
    parameters,
    update,
    link,
    SPEC: tl.constexpr,
    RECORD: tl.constexpr,
    SHARDS: tl.constexpr,
    SHARD_ROWS: tl.constexpr,
    RANKS: tl.constexpr,
):
    """`reduce_partials` over the rows of all ranks, each of which has SHARDS of the shards: the exchange costs no
    launch of its own.
    """
    block = tl.program_id(0)
    column = block * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    own = add_shards(partial, width, column, SHARDS, SHARD_ROWS)
    rows = exchanged(own.to(tl.int32, bitcast=True), column, width, link, RANKS, REDUCE_COLUMNS).to(
        tl.float32, bitcast=True
    )
    total = tl.reshape(add_halves(rows, RANKS, 1), (REDUCE_COLUMNS,))
    store_total(total, block, column, width, gradient, squares, parameters, update, SPEC, RECORD)


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
    parameters,
    gradient,
    moments,
    squares,
    blocks,
    size,
    skip,
    learning_rate,
    norm_sum,
    max_norm,
    epsilon,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Clip by the gradient's norm and step: m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; x <- x - lr (m / c1) /
    (sqrt(v) / c2 + epsilon).

    `squares` (blocks): sums of squares of 32 numbers of the gradient each. The norm before clipping is added to
    `norm_sum`.
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
