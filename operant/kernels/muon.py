"""Muon's optimizer step in Triton, equal to `operant.nn.Muon`: orthogonalized momentum by Newton-Schulz iteration.

Small matrices take one launch, with a program per matrix. Larger ones take several launches of tiled products.

The larger products do not use cuBLAS: on an H200 shared by several processes, its batched product of twelve matrices of
512 x 512 in bf16 (a cluster kernel) repeatedly failed with an illegal instruction (benches/LOG.md, 2026-11-23). With
`algo.kernels=torch`, torch still calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from operant.kernels.spec import padded

MAX_SIDE = 128
"""Largest number of rows and columns of a small matrix."""

SIDE, TILE = tl.constexpr(64), tl.constexpr(4096)
"""Multiple to which the sides of large matrices are padded, and elements per program of elementwise kernels."""

OFFSET, ROWS, COLUMNS, SHORT, LONG, X_OFFSET, SQUARE_OFFSET = (tl.constexpr(k) for k in range(7))
"""Columns of the table of large matrices: offset in the flat vectors, rows, columns, shorter and longer side (padded),
and offsets in the scratch buffers of X (short, long) and of X X^T (short, short).
"""

MOMENTUM, PER_ADAM_STEP = tl.constexpr(0.95), tl.constexpr(0.2)
A, B, C = tl.constexpr(3.4445), tl.constexpr(-4.7750), tl.constexpr(2.0315)
"""Coefficients of Newton-Schulz: an iteration maps each singular value s to a s + b s^3 + c s^5."""

ITERATIONS = 5


class Matrices:
    """Muon's optimizer step for the weight matrices in a flat vector of parameters: their table, the buffers of a step,
    and its launches.
    """

    def __init__(
        self, matrices: Sequence[tuple[int, tuple[int, int, int]]], device: torch.device, *, half: bool
    ) -> None:
        """`matrices` are those of `operant.nn.Muon`: (offset, (G, m, n)) for G consecutive matrices of m x n. `half`:
        products in bf16, otherwise in float32.
        """
        single = [(offset + k * m * n, m, n) for offset, (G, m, n) in matrices for k in range(G)]
        small = [matrix for matrix in single if max(matrix[1:]) <= MAX_SIDE]
        self._half = half
        self._small = torch.tensor(small, dtype=torch.int32, device=device)
        self._tile = tuple(padded(max((matrix[axis] for matrix in small), default=0)) for axis in (1, 2))
        # Large matrices are transposed to (short, long) in the scratch buffers, zero-padded to whole tiles.
        rows, x_size, square_size = [], 0, 0
        for offset, m, n in (matrix for matrix in single if max(matrix[1:]) > MAX_SIDE):
            short, long = (-(-side // SIDE.value) * SIDE.value for side in sorted((m, n)))
            rows.append((offset, m, n, short, long, x_size, square_size))
            x_size, square_size = x_size + short * long, square_size + short * short
        self._large = torch.tensor(rows, dtype=torch.int32, device=device)
        sides = [(short, long) for *_, short, long, _, _ in rows]
        self._tiles: dict[str, Any] = {
            "BLOCK_M": SIDE.value,
            "BLOCK_N": SIDE.value,
            "BLOCK_K": 64 if half else 32,
            "num_warps": 4,
            "num_stages": 3,
        }
        self._max_tiles = max((-(-short * long // TILE.value) for short, long in sides), default=0)
        self._sides = sides
        dtype = torch.bfloat16 if half else torch.float32
        self._x, self._next = (torch.zeros(x_size, dtype=dtype, device=device) for _ in range(2))
        self._squared, self._polynomial = (torch.zeros(square_size, dtype=dtype, device=device) for _ in range(2))
        self._sums = torch.zeros(len(rows) * self._max_tiles, device=device)

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
        """Take one step of Muon for all matrices, and set their gradients to zero, so that Adam leaves them alone.
        `parameters`, `gradient`, `momentum` (P) are flat vectors; `squares` are partial sums of the gradient's squares;
        `launch` launches a kernel.

        `launch`: as `operant.kernels.warmup.Launcher.launch`. `squares`: partial sums of squares of the whole gradient,
        which is clipped to the norm `max_norm`. `skip`: (1), where above 0 nothing changes but the gradient.
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
                BLOCK_M=rows,
                BLOCK_N=columns,
                BF16=half,
                num_warps=8 if rows * columns > 64 * 64 else 4,
            )
        if not len(self._large):
            return
        table, count, scale = self._large, len(self._large), (max_norm / (squares.sum().sqrt() + 1e-6)).clamp_max(1.0)
        grid = (self._max_tiles, count)
        launch(update_momentum, grid, gradient, momentum, table, scale, skip, self._sums, num_warps=4)
        launch(
            to_unit_norm,
            grid,
            gradient,
            table,
            self._sums,
            self._x,
            PROGRAMS=self._max_tiles,
            BLOCKS=padded(self._max_tiles),
            num_warps=4,
        )
        area = self._tiles["BLOCK_M"] * self._tiles["BLOCK_N"]
        square_grid, x_grid = (
            (max(short * side // area for short, side in sides), count)
            for sides in ([(s, s) for s, _ in self._sides], self._sides)
        )
        x, other = self._x, self._next
        for _ in range(ITERATIONS):  # X <- a X + (b X X^T + c (X X^T)^2) X
            arguments = (x, x, x, self._squared)
            launch(product, square_grid, *arguments, table, 1.0, 0.0, SQUARED=True, DEEP=True, **self._tiles)
            arguments = (self._squared, self._squared, self._squared, self._polynomial)
            launch(product, square_grid, *arguments, table, C.value, B.value, SQUARED=True, DEEP=False, **self._tiles)
            launch(
                product,
                x_grid,
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
        launch(apply, grid, parameters, table, x, skip, learning_rate, num_warps=4)


# SMALL MATRICES


@triton.jit(do_not_specialize=["max_norm"])
def muon_step(
    params_ptr,
    grad_ptr,
    momentum_ptr,
    matrices_ptr,
    squares_ptr,
    blocks,
    skip_ptr,
    learning_rate_ptr,
    max_norm,
    BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BF16: tl.constexpr,
):
    """Step small matrices, one a program: clip by the gradient's norm, then w <- w - 0.2 lr sqrt(max(m, n)) U V^T,
    where U S V^T is the matrix's momentum. Grid: (matrices,).

    | parameter    | shape         | meaning                                       |
    |--------------|---------------|-----------------------------------------------|
    | params_ptr   | (P)           | parameters, updated                           |
    | grad_ptr     | (P)           | gradient; that of the matrices is set to zero |
    | momentum_ptr | (P)           | momentum, updated                             |
    | matrices_ptr | (matrices, 3) | offset in the flat vectors, rows, columns     |
    | squares_ptr  | (blocks)      | partial sums of squares of the whole gradient |
    | skip_ptr     | (1)           | above 0: momentum and parameters stay         |
    """
    # g <- g min(1, max_norm / |g|)
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(tl.sum(tl.load(squares_ptr + block, mask=block < blocks, other=0.0), axis=0))
    scale = max_norm / (norm + 1e-6)
    scale = tl.where(scale > 1.0, 1.0, scale)
    # m <- momentum m + g; x <- u / |u| with u = g + momentum m, (BLOCK_M, BLOCK_N), zero-padded.
    offset, mask = _matrix_offsets(matrices_ptr, BLOCK_M, BLOCK_N)
    g = tl.load(grad_ptr + offset, mask=mask, other=0.0) * scale
    old_momentum = tl.load(momentum_ptr + offset, mask=mask, other=0.0)
    new_momentum = MOMENTUM * old_momentum + g
    skipped = tl.load(skip_ptr) > 0.0
    tl.store(momentum_ptr + offset, tl.where(skipped, old_momentum, new_momentum), mask=mask)
    tl.store(grad_ptr + offset, tl.zeros((BLOCK_M, BLOCK_N), tl.float32), mask=mask)
    x = g + MOMENTUM * new_momentum
    x = _cast(x / (tl.sqrt(tl.sum(tl.ravel(x * x, can_reorder=True), axis=0)) + 1e-7), BF16)
    # Newton-Schulz: x <- a x + (b x x^T + c (x x^T)^2) x
    for _ in range(5):
        square = tl.dot(x, tl.trans(x), input_precision="ieee")
        low = _cast(square, BF16)
        polynomial = C * tl.dot(low, low, B / C * square, input_precision="ieee")
        x = _cast(tl.dot(_cast(polynomial, BF16), x, A * x.to(tl.float32), input_precision="ieee"), BF16)
    # Recompute the offsets, which then need no registers during the iteration.
    offset, mask = _matrix_offsets(matrices_ptr, BLOCK_M, BLOCK_N)
    entry_ptr = matrices_ptr + 3 * tl.program_id(0)
    longer = tl.maximum(tl.load(entry_ptr + 1), tl.load(entry_ptr + 2)).to(tl.float32)
    # w <- w - 0.2 lr sqrt(max(m, n)) x
    rate, w = (
        tl.load(learning_rate_ptr) * PER_ADAM_STEP * tl.sqrt(longer),
        tl.load(params_ptr + offset, mask=mask, other=0.0),
    )
    tl.store(params_ptr + offset, tl.where(skipped, w, w - rate * x.to(tl.float32)), mask=mask)


@triton.jit
def _matrix_offsets(matrices_ptr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the offsets of the program's matrix in the flat vectors, as a tile (BLOCK_M, BLOCK_N), and the mask of
    elements that exist. `matrices_ptr` is the table of matrices.
    """
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    entry_ptr = matrices_ptr + 3 * tl.program_id(0)
    start, m, n = (
        tl.load(entry_ptr, volatile=True),
        tl.load(entry_ptr + 1, volatile=True),
        tl.load(entry_ptr + 2, volatile=True),
    )
    return start + row * n + column, (row < m) & (column < n)


@triton.jit
def _cast(x, BF16: tl.constexpr):
    """Cast x to bfloat16 if BF16, otherwise return it unchanged."""
    return x.to(tl.bfloat16) if BF16 else x


# LARGE MATRICES
#
# Program 1 is the matrix, program 0 its tile. Matrices with fewer tiles than the grid has do nothing for the rest.
#
# | parameter                | shape           | meaning                                                    |
# |--------------------------|-----------------|------------------------------------------------------------|
# | table_ptr                | (matrices, 7)   | OFFSET ... SQUARE_OFFSET of each matrix                    |
# | grad_ptr, momentum_ptr   | (P)             | flat gradient and momentum                                 |
# | scale_ptr                | (1)             | min(1, max_norm / |g|)                                     |
# | sums_ptr                 | (matrices, tiles) | sum of squares of u in each tile                         |
# | x_ptr                    |                 | scratch: X of each matrix, (short, long), padded           |


@triton.jit
def update_momentum(grad_ptr, momentum_ptr, table_ptr, scale_ptr, skip_ptr, sums_ptr):
    """Update momentum m <- 0.95 m + g, and overwrite the gradient by u = g + 0.95 m, with the sum of u's squares per
    tile.

    g is the gradient times `scale_ptr`. Grid: (tiles, matrices).
    """
    entry_ptr, index = table_ptr + 7 * tl.program_id(1), tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = index < tl.load(entry_ptr + ROWS) * tl.load(entry_ptr + COLUMNS)
    offset = tl.load(entry_ptr + OFFSET) + index
    g = tl.load(grad_ptr + offset, mask=mask, other=0.0) * tl.load(scale_ptr)
    old_momentum = tl.load(momentum_ptr + offset, mask=mask, other=0.0)
    new_momentum = MOMENTUM * old_momentum + g
    tl.store(momentum_ptr + offset, tl.where(tl.load(skip_ptr) > 0.0, old_momentum, new_momentum), mask=mask)
    u = g + MOMENTUM * new_momentum
    tl.store(grad_ptr + offset, u, mask=mask)
    tl.store(sums_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(u * u, axis=0))


@triton.jit
def _tile_offsets(entry_ptr):
    """Return the offsets (TILE) of a tile of a matrix in the flat vectors with their mask, and in the scratch buffer
    with theirs. `entry_ptr`: the tile's entry in the table.

    X is the matrix, transposed if it has more rows than columns.
    """
    index, long = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.load(entry_ptr + LONG)
    m, n = tl.load(entry_ptr + ROWS), tl.load(entry_ptr + COLUMNS)
    i, j = index // long, index % long
    mask = (i < tl.minimum(m, n)) & (j < tl.maximum(m, n))
    offset = tl.load(entry_ptr + OFFSET) + tl.where(m > n, j * n + i, i * n + j)
    return offset, mask, tl.load(entry_ptr + X_OFFSET) + index, index < tl.load(entry_ptr + SHORT) * long


@triton.jit
def to_unit_norm(grad_ptr, table_ptr, sums_ptr, x_ptr, PROGRAMS: tl.constexpr, BLOCKS: tl.constexpr):
    """Write the first iterate X = u / |u|, (short, long), from u in the gradient's buffer, which is set to zero."""
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(
        tl.sum(tl.load(sums_ptr + tl.program_id(1) * PROGRAMS + block, mask=block < PROGRAMS, other=0.0), axis=0)
    )
    offset, mask, x_offset, x_mask = _tile_offsets(table_ptr + 7 * tl.program_id(1))
    u = tl.load(grad_ptr + offset, mask=mask, other=0.0)
    tl.store(grad_ptr + offset, tl.zeros_like(u), mask=mask)
    tl.store(x_ptr + x_offset, (u / (norm + 1e-7)).to(x_ptr.dtype.element_ty), mask=x_mask)


@triton.jit(do_not_specialize=["alpha", "beta"])
def product(
    a_ptr,
    b_ptr,
    added_ptr,
    out_ptr,
    table_ptr,
    alpha,
    beta,
    SQUARED: tl.constexpr,
    DEEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of out = alpha A B + beta C of each matrix, C at `added_ptr`; out is (short, short) if SQUARED,
    otherwise (short, long), short and long being the matrix's sides.

    With DEEP the result is A A^T of A = X (short, long), and alpha, beta and added are unused. Otherwise A is (short,
    short), and B and added have the shape of the result.
    """
    entry_ptr = table_ptr + 7 * tl.program_id(1)
    short, long = tl.multiple_of(tl.load(entry_ptr + SHORT), 64), tl.multiple_of(tl.load(entry_ptr + LONG), 64)
    x_offset = tl.multiple_of(tl.load(entry_ptr + X_OFFSET), 64)
    square_offset = tl.multiple_of(tl.load(entry_ptr + SQUARE_OFFSET), 64)
    columns = short if SQUARED else long
    tile, tiles = tl.program_id(0), columns // BLOCK_N
    if tile < short // BLOCK_M * tiles:
        row, column = tile // tiles * BLOCK_M + tl.arange(0, BLOCK_M), tile % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        depth = long if DEEP else short
        a = a_ptr + (x_offset if DEEP else square_offset) + row[:, None] * depth + k[None, :]
        if DEEP:
            b, b_step = b_ptr + x_offset + column[None, :] * long + k[:, None], BLOCK_K
        else:
            b, b_step = (
                b_ptr + (square_offset if SQUARED else x_offset) + k[:, None] * columns + column[None, :],
                BLOCK_K * columns,
            )
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(0, depth // BLOCK_K):
            total = tl.dot(tl.load(a + step * BLOCK_K), tl.load(b + step * b_step), total, input_precision="ieee")
        target = row[:, None] * columns + column[None, :]
        if not DEEP:
            total = alpha * total + beta * tl.load(added_ptr + (square_offset if SQUARED else x_offset) + target).to(
                tl.float32
            )
        tl.store(out_ptr + (square_offset if SQUARED else x_offset) + target, total.to(out_ptr.dtype.element_ty))


@triton.jit
def apply(params_ptr, table_ptr, x_ptr, skip_ptr, learning_rate_ptr):
    """Step parameters w <- w - 0.2 lr sqrt(max(m, n)) X of matrices (m, n) by their orthogonalized momentum X. Grid:
    (tiles, matrices).
    """
    entry_ptr = table_ptr + 7 * tl.program_id(1)
    offset, mask, x_offset, _ = _tile_offsets(entry_ptr)
    longer = tl.maximum(tl.load(entry_ptr + ROWS), tl.load(entry_ptr + COLUMNS)).to(tl.float32)
    rate = tl.load(learning_rate_ptr) * PER_ADAM_STEP * tl.sqrt(longer)
    w, step = (
        tl.load(params_ptr + offset, mask=mask, other=0.0),
        tl.load(x_ptr + x_offset, mask=mask, other=0.0).to(tl.float32),
    )
    tl.store(params_ptr + offset, tl.where(tl.load(skip_ptr) > 0.0, w, w - rate * step), mask=mask)
