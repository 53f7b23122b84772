"""Reductions in Triton that do not depend on the device: rows of partial sums to one gradient and its squared norm.

A minibatch's gradient is summed in parts, a row of partial sums each. A *shard* is an aligned range of the world's
lanes, which one rank owns, and has equally many rows. Rows are added in a binary tree: first those of each shard, then
neighbouring shards. Each addition has two operands at fixed positions of the tree. Therefore the sum has the same bits
on any number of ranks and in any thread layout.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.exchange import exchanged, reversed_bits

REDUCE_COLUMNS = tl.constexpr(32)
"""Columns of the partial sums per program."""

# DEVICE FUNCTIONS


@triton.jit
def add_halves(rows, COUNT: tl.constexpr, LEFT: tl.constexpr):
    """Sum rows (COUNT, 32) to (LEFT, 32) in a binary tree, whose every level adds the second half of the rows to the
    first. COUNT and LEFT are powers of two.

    Addition of two operands commutes, so the thread layout does not change the bits.
    """
    for level in tl.static_range(COUNT.bit_length() - LEFT.bit_length()):
        rows = tl.sum(tl.reshape(rows, (2, COUNT >> (level + 1), REDUCE_COLUMNS)), axis=0)
    return rows


@triton.jit
def add_shards(partial_ptr, width, column, SHARDS: tl.constexpr, SHARD_ROWS: tl.constexpr):
    """Return the sum of all rows of `partial_ptr` (SHARDS * SHARD_ROWS, width) in 32 columns, (1, 32), in a fixed
    binary tree. A shard is an aligned range of the world's lanes, and has SHARD_ROWS rows.

    First the rows of each shard are added, then neighbouring shards. A rank owns neighbouring shards, so its sum is one
    node of the tree over all shards.
    """
    # One load, ordered such that each thread holds the rows it adds: the first rows of all shards come first.
    row = tl.arange(0, SHARDS * SHARD_ROWS)
    offset = (reversed_bits(row % SHARDS, SHARDS) * SHARD_ROWS + row // SHARDS)[:, None] * width + column[None, :]
    return add_halves(tl.load(partial_ptr + offset), SHARDS * SHARD_ROWS, 1)


@triton.jit
def sum_of_squares(x):
    """Return the sum of squares of x (32), added in a binary tree, so that the bits do not depend on the thread
    layout.
    """
    squares = x * x
    for level in tl.static_range(5):
        squares = tl.sum(tl.reshape(squares, (2, 16 >> level)), axis=0)
    return tl.sum(squares, axis=0)


@triton.jit
def store_total(
    total, block, column, width, grad_ptr, squares_ptr, x_ptr, update, SPEC: tl.constexpr, RECORD: tl.constexpr
):
    """Store 32 elements of the gradient, `total`, and the sum of their squares; the last block of 32 columns holds the
    loss terms instead, and calls `RECORD(terms, column, x_ptr, update, SPEC)`.
    """
    if (block + 1) * REDUCE_COLUMNS < width:
        tl.store(grad_ptr + column, total)
        tl.store(squares_ptr + block, sum_of_squares(total))
    else:
        RECORD(total, tl.arange(0, REDUCE_COLUMNS), x_ptr, update, SPEC)


# KERNELS
#
# Grid of each: (width / 32,). S = SHARDS, R = SHARD_ROWS, P parameters, 32 columns of loss terms after them.
#
# | parameter   | shape           | meaning                                                        |
# |-------------|-----------------|----------------------------------------------------------------|
# | partial_ptr | (S R, width)    | partial sums; width = P + 32                                   |
# | grad_ptr    | (P)             | gradient, written                                              |
# | squares_ptr | (P / 32)        | sum of squares of each block of 32 gradients, written          |
# | x_ptr       | (P)             | parameters, passed to RECORD                                   |
# | update      | struct          | the algorithm's statistics, passed to RECORD                   |
# | link        | struct          | memory of the other ranks, see `operant.compute.exchange.Link` |
# | RECORD      | device function | `RECORD(terms (32), column (32), x_ptr, update, SPEC)`         |


@triton.jit
def reduce_partials(
    partial_ptr,
    width,
    grad_ptr,
    squares_ptr,
    x_ptr,
    update,
    SPEC: tl.constexpr,
    RECORD: tl.constexpr,
    SHARDS: tl.constexpr,
    SHARD_ROWS: tl.constexpr,
):
    """Sum the rows of partial sums to the gradient, its squares and the loss terms, which RECORD adds up."""
    block = tl.program_id(0)
    column = block * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    total = tl.reshape(add_shards(partial_ptr, width, column, SHARDS, SHARD_ROWS), (REDUCE_COLUMNS,))
    store_total(total, block, column, width, grad_ptr, squares_ptr, x_ptr, update, SPEC, RECORD)


@triton.jit
def sum_shards(partial_ptr, width, sum_ptr, SHARDS: tl.constexpr, SHARD_ROWS: tl.constexpr):
    """Sum one rank's rows of partial sums to `sum_ptr` (width), which the ranks then exchange between two launches."""
    column = tl.program_id(0) * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    tl.store(sum_ptr + column[None, :], add_shards(partial_ptr, width, column, SHARDS, SHARD_ROWS))


@triton.jit
def exchange_partials(
    partial_ptr,
    width,
    grad_ptr,
    squares_ptr,
    x_ptr,
    update,
    link,
    SPEC: tl.constexpr,
    RECORD: tl.constexpr,
    SHARDS: tl.constexpr,
    SHARD_ROWS: tl.constexpr,
    RANKS: tl.constexpr,
):
    """Sum partial sums of all ranks as `reduce_partials` does, exchanging the ranks' sums inside the kernel. Each rank
    has SHARDS shards.
    """
    block = tl.program_id(0)
    column = block * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    own = add_shards(partial_ptr, width, column, SHARDS, SHARD_ROWS)
    rows = exchanged(own.to(tl.int32, bitcast=True), column, width, link, RANKS, REDUCE_COLUMNS).to(
        tl.float32, bitcast=True
    )
    total = tl.reshape(add_halves(rows, RANKS, 1), (REDUCE_COLUMNS,))
    store_total(total, block, column, width, grad_ptr, squares_ptr, x_ptr, update, SPEC, RECORD)
