"""Triton kernel of Muon's step of small matrices, one program a matrix: `operant.nn.Muon` in one launch. Knows no network and no algorithm."""

from __future__ import annotations

import triton
import triton.language as tl

MOST_SIDE = 128
"""Rows and columns of a matrix, at most: a program holds all of it."""

MOMENTUM, PER_ADAM_STEP = tl.constexpr(0.95), tl.constexpr(0.2)
A, B, C = tl.constexpr(3.4445), tl.constexpr(-4.7750), tl.constexpr(2.0315)
"""Of the polynomial a s + b s^3 + c s^5 that an iteration takes of singular values."""


@triton.jit(do_not_specialize=["max_norm"])
def muon_step(
    parameters, gradient, momentum, matrices, squares, blocks, skip, learning_rate, max_norm,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    """Clip by the gradient's norm, step the matrices by U V^T of their momentum U S V^T, and set their gradients to zero.

    `matrices` (programs, 3): where each lies in the vectors, its rows and its columns. `squares` (blocks): sums of squares of the whole gradient.
    """
    # g <- g min(1, max_norm / |g|)
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(tl.sum(tl.load(squares + block, mask=block < blocks, other=0.0), axis=0))
    shrink = max_norm / (norm + 1e-6)
    shrink = tl.where(shrink > 1.0, 1.0, shrink)
    # m <- momentum m + g; x <- u / |u| with u = g + momentum m, (ROWS, COLUMNS), zero outside of the matrix.
    at, inside = _places(matrices, ROWS, COLUMNS)
    g = tl.load(gradient + at, mask=inside, other=0.0) * shrink
    before = tl.load(momentum + at, mask=inside, other=0.0)
    held = MOMENTUM * before + g
    skipped = tl.load(skip) > 0.0
    tl.store(momentum + at, tl.where(skipped, before, held), mask=inside)
    tl.store(gradient + at, tl.zeros((ROWS, COLUMNS), tl.float32), mask=inside)
    x = g + MOMENTUM * held
    x = _low(x / (tl.sqrt(tl.sum(tl.ravel(x * x, can_reorder=True), axis=0)) + 1e-7), BF16)
    # Newton and Schulz's iteration, x <- a x + (b x x^T + c (x x^T)^2) x.
    for _ in range(5):
        square = tl.dot(x, tl.trans(x), input_precision="ieee")
        half = _low(square, BF16)
        polynomial = C * tl.dot(half, half, B / C * square, input_precision="ieee")
        x = _low(tl.dot(_low(polynomial, BF16), x, A * x.to(tl.float32), input_precision="ieee"), BF16)
    # Places once more, so that no register held them meanwhile.
    at, inside = _places(matrices, ROWS, COLUMNS)
    longer = tl.maximum(tl.load(matrices + 3 * tl.program_id(0) + 1), tl.load(matrices + 3 * tl.program_id(0) + 2)).to(tl.float32)
    rate = tl.where(skipped, 0.0, tl.load(learning_rate) * PER_ADAM_STEP * tl.sqrt(longer))
    tl.store(parameters + at, tl.load(parameters + at, mask=inside, other=0.0) - rate * x.to(tl.float32), mask=inside)


@triton.jit
def _places(matrices, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the numbers of this program's matrix lie, and which there are, (ROWS, COLUMNS)."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    entry = matrices + 3 * tl.program_id(0)
    place, m, n = tl.load(entry, volatile=True), tl.load(entry + 1, volatile=True), tl.load(entry + 2, volatile=True)
    return place + row * n + column, (row < m) & (column < n)


@triton.jit
def _low(x, BF16: tl.constexpr):
    return x.to(tl.bfloat16) if BF16 else x
