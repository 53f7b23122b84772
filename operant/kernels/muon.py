"""Triton kernels of Muon's step, `operant.nn.Muon`: of small matrices in one launch, a program a matrix; of larger ones
in launches of tiled products.

Larger ones are not left to a library: on an H200 that several processes shared, cuBLAS's product of twelve matrices of
512 x 512 in bf16 (a kernel of clusters) died of an illegal instruction, again and again (benches/LOG.md, 2026-11-23).
What torch runs (`algo.kernels=torch`) still calls it. Knows no network and no algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from operant.kernels.spec import padded

MOST_SIDE = 128
"""Rows and columns of a matrix that a program holds, at most."""

SIDE, TILE = tl.constexpr(64), tl.constexpr(4096)
"""Of larger ones: what their sides are padded to a multiple of, and numbers that a program takes outside of products.
"""

PLACE, ROWS_AT, COLUMNS_AT, SHORT, LONG, X_AT, SQUARE_AT = (tl.constexpr(k) for k in range(7))
"""What is said of a larger matrix, in this order: where it lies in the vectors, its rows and columns; the shorter and
the longer of them, padded; and where x, its padded numbers, lies in the scratch, and x x^T.
"""

MOMENTUM, PER_ADAM_STEP = tl.constexpr(0.95), tl.constexpr(0.2)
A, B, C = tl.constexpr(3.4445), tl.constexpr(-4.7750), tl.constexpr(2.0315)
"""Of the polynomial a s + b s^3 + c s^5 that an iteration takes of singular values."""

ITERATIONS = 5


class Matrices:
    """The matrices of a vector of parameters, and their step by Muon. `launch` launches a kernel (see
    `operant.kernels.rehearsal`).
    """

    def __init__(
        self, matrices: Sequence[tuple[int, tuple[int, int, int]]], device: torch.device, *, half: bool
    ) -> None:
        """`matrices` as those of `operant.nn.Muon`: G of m x n one after the other, as (place, (G, m, n)). `half`:
        products in bf16, otherwise in float32.
        """
        each = [(place + k * m * n, m, n) for place, (G, m, n) in matrices for k in range(G)]
        small = [matrix for matrix in each if max(matrix[1:]) <= MOST_SIDE]
        self._half = half
        self._small = torch.tensor(small, dtype=torch.int32, device=device)
        self._tile = tuple(padded(max((matrix[axis] for matrix in small), default=0)) for axis in (1, 2))
        # Larger ones lie in the scratch as (short, long), padded by zeros to whole tiles.
        rows, spread, square = [], 0, 0
        for place, m, n in (matrix for matrix in each if max(matrix[1:]) > MOST_SIDE):
            short, long = (-(-side // SIDE.value) * SIDE.value for side in sorted((m, n)))
            rows.append((place, m, n, short, long, spread, square))
            spread, square = spread + short * long, square + short * short
        self._large = torch.tensor(rows, dtype=torch.int32, device=device)
        sides = [(short, long) for *_, short, long, _, _ in rows]
        self._tiles: dict[str, Any] = {
            "BLOCK_M": SIDE.value,
            "BLOCK_N": SIDE.value,
            "BLOCK_K": 64 if half else 32,
            "num_warps": 4,
            "num_stages": 3,
        }
        self._most_numbers = max((-(-short * long // TILE.value) for short, long in sides), default=0)
        self._sides = sides
        kind = torch.bfloat16 if half else torch.float32
        self._x, self._next = (torch.zeros(spread, dtype=kind, device=device) for _ in range(2))
        self._squared, self._polynomial = (torch.zeros(square, dtype=kind, device=device) for _ in range(2))
        self._sums = torch.zeros(len(rows) * self._most_numbers, device=device)

    def step(
        self,
        launch: Callable[..., None],
        parameters: Tensor,
        gradient: Tensor,
        momentum: Tensor,
        squares: Tensor,
        skip: Tensor,
        learning_rate: Tensor,
        max_norm: float,
    ) -> None:
        """One step of all of them; their gradient is then zero. `squares`: sums of squares of the whole gradient, which
        is shortened to `max_norm`.
        """
        blocks, half = len(squares), self._half
        if len(self._small):
            rows, columns = self._tile
            launch(
                muon_step,
                (len(self._small),),
                parameters,
                gradient,
                momentum,
                self._small,
                squares,
                blocks,
                skip,
                learning_rate,
                max_norm,
                BLOCKS=padded(blocks),
                ROWS=rows,
                COLUMNS=columns,
                BF16=half,
                num_warps=8 if rows * columns > 64 * 64 else 4,
            )
        if not len(self._large):
            return
        table, count, scale = self._large, len(self._large), (max_norm / (squares.sum().sqrt() + 1e-6)).clamp_max(1.0)
        numbers = (self._most_numbers, count)
        launch(gather_momentum, numbers, gradient, momentum, table, scale, skip, self._sums, num_warps=4)
        launch(
            to_unit_norm,
            numbers,
            gradient,
            table,
            self._sums,
            self._x,
            PROGRAMS=self._most_numbers,
            BLOCKS=padded(self._most_numbers),
            num_warps=4,
        )
        area = self._tiles["BLOCK_M"] * self._tiles["BLOCK_N"]
        square, oblong = (
            (max(short * side // area for short, side in sides), count)
            for sides in ([(s, s) for s, _ in self._sides], self._sides)
        )
        x, other = self._x, self._next
        for _ in range(ITERATIONS):  # x <- a x + (b x x^T + c (x x^T)^2) x
            launch(product, square, x, x, x, self._squared, table, 1.0, 0.0, SQUARED=True, DEEP=True, **self._tiles)
            arguments = (self._squared, self._squared, self._squared, self._polynomial)
            launch(product, square, *arguments, table, C.value, B.value, SQUARED=True, DEEP=False, **self._tiles)
            launch(
                product,
                oblong,
                self._polynomial,
                x,
                x,
                other,
                table,
                1.0,
                A.value,
                SQUARED=False,
                DEEP=False,
                **self._tiles,
            )
            x, other = other, x
        launch(apply, numbers, parameters, table, x, skip, learning_rate, num_warps=4)


@triton.jit(do_not_specialize=["max_norm"])
def muon_step(
    parameters,
    gradient,
    momentum,
    matrices,
    squares,
    blocks,
    skip,
    learning_rate,
    max_norm,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BF16: tl.constexpr,
):
    """Clip by the gradient's norm, step the matrices by U V^T of their momentum U S V^T, and set their gradients to
    zero.

    `matrices` (programs, 3): where each lies in the vectors, its rows and its columns. `squares` (blocks): sums of
    squares of the whole gradient.
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
    longer = tl.maximum(tl.load(matrices + 3 * tl.program_id(0) + 1), tl.load(matrices + 3 * tl.program_id(0) + 2)).to(
        tl.float32
    )
    rate, values = (
        tl.load(learning_rate) * PER_ADAM_STEP * tl.sqrt(longer),
        tl.load(parameters + at, mask=inside, other=0.0),
    )
    tl.store(parameters + at, tl.where(skipped, values, values - rate * x.to(tl.float32)), mask=inside)


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


# LARGER MATRICES: program 1 is the matrix, whose row of the table says what there is of it; program 0 counts its tiles,
# and where it has fewer does nothing.


@triton.jit
def gather_momentum(gradient, momentum, table, scale, skip, sums):
    """Momentum m <- 0.95 m + g, and in the gradient's place u = g + 0.95 m, where g is the gradient times `scale`; each
    program's sum of u's squares.
    """
    entry, number = table + 7 * tl.program_id(1), tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = number < tl.load(entry + ROWS_AT) * tl.load(entry + COLUMNS_AT)
    at = tl.load(entry + PLACE) + number
    g = tl.load(gradient + at, mask=inside, other=0.0) * tl.load(scale)
    before = tl.load(momentum + at, mask=inside, other=0.0)
    held = MOMENTUM * before + g
    tl.store(momentum + at, tl.where(tl.load(skip) > 0.0, before, held), mask=inside)
    u = g + MOMENTUM * held
    tl.store(gradient + at, u, mask=inside)
    tl.store(sums + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(u * u, axis=0))


@triton.jit
def _numbers(entry):
    """Of this program's numbers of a padded matrix: where they lie in the vectors, which there are, where in the
    scratch, and which of these there are.
    """
    number, long = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.load(entry + LONG)
    m, n = tl.load(entry + ROWS_AT), tl.load(entry + COLUMNS_AT)
    i, j = number // long, number % long
    inside = (i < tl.minimum(m, n)) & (j < tl.maximum(m, n))
    place = tl.load(entry + PLACE) + tl.where(m > n, j * n + i, i * n + j)
    return place, inside, tl.load(entry + X_AT) + number, number < tl.load(entry + SHORT) * long


@triton.jit
def to_unit_norm(gradient, table, sums, x, PROGRAMS: tl.constexpr, BLOCKS: tl.constexpr):
    """The first x = u / |u|, (short, long), of what lies in the gradient's place, which is zero then."""
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(
        tl.sum(tl.load(sums + tl.program_id(1) * PROGRAMS + block, mask=block < PROGRAMS, other=0.0), axis=0)
    )
    place, inside, at, held = _numbers(table + 7 * tl.program_id(1))
    u = tl.load(gradient + place, mask=inside, other=0.0)
    tl.store(gradient + place, tl.zeros_like(u), mask=inside)
    tl.store(x + at, (u / (norm + 1e-7)).to(x.dtype.element_ty), mask=held)


@triton.jit(do_not_specialize=["alpha", "beta"])
def product(
    left,
    right,
    added,
    out,
    table,
    alpha,
    beta,
    SQUARED: tl.constexpr,
    DEEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A tile of alpha left right + beta added, (short, short) where SQUARED, otherwise (short, long).

    With DEEP left is x (short, long), and right its transpose; otherwise left is (short, short).
    """
    entry = table + 7 * tl.program_id(1)
    short, long = tl.multiple_of(tl.load(entry + SHORT), 64), tl.multiple_of(tl.load(entry + LONG), 64)
    wide, place = tl.multiple_of(tl.load(entry + X_AT), 64), tl.multiple_of(tl.load(entry + SQUARE_AT), 64)
    columns = short if SQUARED else long
    tile, tiles = tl.program_id(0), columns // BLOCK_N
    if tile < short // BLOCK_M * tiles:
        row, column = tile // tiles * BLOCK_M + tl.arange(0, BLOCK_M), tile % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
        depth = tl.arange(0, BLOCK_K)
        steps = long if DEEP else short
        a = left + (wide if DEEP else place) + row[:, None] * steps + depth[None, :]
        if DEEP:
            b, step = right + wide + column[None, :] * long + depth[:, None], BLOCK_K
        else:
            b, step = (
                right + (place if SQUARED else wide) + depth[:, None] * columns + column[None, :],
                BLOCK_K * columns,
            )
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, steps // BLOCK_K):
            total = tl.dot(tl.load(a + k * BLOCK_K), tl.load(b + k * step), total, input_precision="ieee")
        target = row[:, None] * columns + column[None, :]
        if not DEEP:
            total = alpha * total + beta * tl.load(added + (place if SQUARED else wide) + target).to(tl.float32)
        tl.store(out + (place if SQUARED else wide) + target, total.to(out.dtype.element_ty))


@triton.jit
def apply(parameters, table, x, skip, learning_rate):
    """Parameters w <- w - rate x, where rate is the learning rate times 0.2 sqrt(max(m, n))."""
    entry = table + 7 * tl.program_id(1)
    place, inside, at, _ = _numbers(entry)
    longer = tl.maximum(tl.load(entry + ROWS_AT), tl.load(entry + COLUMNS_AT)).to(tl.float32)
    rate = tl.load(learning_rate) * PER_ADAM_STEP * tl.sqrt(longer)
    before, step = (
        tl.load(parameters + place, mask=inside, other=0.0),
        tl.load(x + at, mask=inside, other=0.0).to(tl.float32),
    )
    tl.store(parameters + place, tl.where(tl.load(skip) > 0.0, before, before - rate * step), mask=inside)
