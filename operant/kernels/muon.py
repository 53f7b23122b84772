"""Triton kernel of Muon's step of small matrices, one program a matrix: `operant.nn.Muon` in one launch. Knows no network and no algorithm."""

from __future__ import annotations

import triton
import triton.language as tl

MOST_SIDE = 128
"""Rows and columns of a matrix, at most: a program holds all of it."""

MOMENTUM, PER_ADAM_STEP = tl.constexpr(0.95), tl.constexpr(0.2)


@triton.jit(do_not_specialize=["max_norm"])
def muon_step(
    parameters, gradient, momentum, matrices, squares, blocks, skip, learning_rate, max_norm, BLOCKS: tl.constexpr, SIDE: tl.constexpr, BF16: tl.constexpr
):  # fmt: skip
    """Clip by the gradient's norm, step the matrices by U V^T of their momentum U S V^T, and set their gradients to zero.

    `matrices` (programs, 3): where each lies in the vectors, its rows and its columns. `squares` (blocks): sums of squares of the whole gradient.
    """
    program = tl.program_id(0)
    place, m, n = tl.load(matrices + 3 * program), tl.load(matrices + 3 * program + 1), tl.load(matrices + 3 * program + 2)
    # g <- g min(1, max_norm / |g|)
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(tl.sum(tl.load(squares + block, mask=block < blocks, other=0.0), axis=0))
    shrink = max_norm / (norm + 1e-6)
    shrink = tl.where(shrink > 1.0, 1.0, shrink)
    # The matrix as it is, or its transpose where it is taller than wide, (SIDE, SIDE), zero outside.
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    at = place + tl.where(m > n, column * n + row, row * n + column)
    inside = (row < tl.minimum(m, n)) & (column < tl.maximum(m, n))
    stepped = inside & (row < tl.where(tl.load(skip) > 0.0, 0, SIDE))
    g = tl.load(gradient + at, mask=inside, other=0.0) * shrink
    held = MOMENTUM * tl.load(momentum + at, mask=inside, other=0.0) + g
    tl.store(momentum + at, held, mask=stepped)
    tl.store(gradient + at, tl.zeros((SIDE, SIDE), tl.float32), mask=inside)
    # Newton and Schulz's iteration, x <- a x + (b x x^T + c (x x^T)^2) x.
    x = g + MOMENTUM * held
    x = x / (tl.sqrt(tl.sum(tl.sum(x * x, axis=1), axis=0)) + 1e-7)
    for _ in range(5):
        low = x.to(tl.bfloat16) if BF16 else x
        square = tl.dot(low, tl.trans(low), input_precision="ieee")
        low_square = square.to(tl.bfloat16) if BF16 else square
        polynomial = -4.7750 * square + 2.0315 * tl.dot(low_square, low_square, input_precision="ieee")
        low_polynomial = polynomial.to(tl.bfloat16) if BF16 else polynomial
        x = 3.4445 * x + tl.dot(low_polynomial, low, input_precision="ieee")
    rate = tl.load(learning_rate) * PER_ADAM_STEP * tl.sqrt(tl.maximum(m, n).to(tl.float32))
    tl.store(parameters + at, tl.load(parameters + at, mask=inside, other=0.0) - rate * x, mask=stepped)
