"""Matrix products in Triton in three precisions, and the conversions of their operands and results.

An *operand* is a factor of a matrix product, in the type that the product multiplies.

`SPEC.precision` is "ieee" (float32), "tf32" (float32 operands, of which the tensor cores read 10 mantissa bits) or
"bf16" (operands cast to bfloat16). Results are always float32. `SPEC.approximate` is true on GPUs in tf32 or bf16.

Tensor cores truncate tf32 operands instead of rounding them. `round_to_tf32` and `weight_operand` round weights before
the product. Activations stay in registers unrounded; `compensated` corrects the bias that their truncation causes.
"""

from __future__ import annotations

import triton
import triton.language as tl

TF32_TRUNCATION = tl.constexpr(3.5e-4)
"""Mean relative error of truncating float32 to tf32: 2^-11 times the mean of 1 / mantissa, 0.72."""


# OPERANDS


@triton.jit
def zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return a float32 tile of zeros, (BLOCK_M, BLOCK_N), as an accumulator."""
    return tl.zeros((BLOCK_M, BLOCK_N), tl.float32)


@triton.jit
def operand(x, SPEC: tl.constexpr):
    """Cast a tile to the type of a product's operand: bfloat16 in bf16, otherwise unchanged (float32, not rounded to
    tf32).
    """
    return x.to(tl.bfloat16) if SPEC.precision == "bf16" else x


@triton.jit
def round_to_tf32(x):
    """Round float32 to the nearest tf32 value (10 mantissa bits), elementwise; NaN stays NaN."""
    # ptxas 12.8 drops a wgmma in a loop if only integer operations and comparisons read its result. A float addition
    # that reads it first prevents this.
    x += 0.0
    nearest = ((x.to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True)
    return tl.where(x == x, nearest, x)


@triton.jit
def rounded_operand(x, SPEC: tl.constexpr):
    """Round a tile to the type of a product's operand, as buffers in global memory hold it: bfloat16, float32 rounded
    to tf32, or float32.
    """
    if SPEC.precision == "bf16":
        return x.to(tl.bfloat16)
    elif SPEC.precision == "tf32":
        return round_to_tf32(x)
    else:
        return x


@triton.jit
def weight_operand(w, SPEC: tl.constexpr):
    """Convert a weight to a product's operand. In approximate tf32 it is rounded, and scaled up by the mean relative
    error of the activations' truncation.
    """
    return (
        round_to_tf32(w * (1.0 + TF32_TRUNCATION))
        if SPEC.precision == "tf32" and SPEC.approximate
        else operand(w, SPEC)
    )


@triton.jit
def compensated(total, TIMES: tl.constexpr, SPEC: tl.constexpr):
    """Return a sum of products, scaled up by the mean relative error of truncating TIMES of its operands to tf32;
    unchanged in other precisions.
    """
    return total * (1.0 + TIMES * TF32_TRUNCATION) if SPEC.precision == "tf32" and SPEC.approximate else total


# PRODUCTS


@triton.jit
def product(a, b, SPEC: tl.constexpr):
    """Return the matrix product a b of operands (M, K) and (K, N): (M, N) float32."""
    return tl.dot(a, b) if SPEC.precision == "bf16" else tl.dot(a, b, input_precision=SPEC.precision)


@triton.jit
def add_product(a, b, total, SPEC: tl.constexpr):
    """Return `total` + a b, (M, N) float32, of operands (M, K) and (K, N); float32 operands are read as tf32 if the
    precision is bf16.
    """
    return tl.dot(a, b, total, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def add_tile_product(a_ptr, b_ptr, row, column, total, SPEC: tl.constexpr, IN: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return `total` plus one tile of the product A B^T, summed in steps of BLOCK_K.

    | parameter | shape              | meaning                                          |
    |-----------|--------------------|--------------------------------------------------|
    | a_ptr     | (., IN) row-major  | left operand, e.g. activations (samples, inputs) |
    | b_ptr     | (., IN) row-major  | right operand, e.g. weights (outputs, inputs)    |
    | row       | (BLOCK_M)          | rows of A                                        |
    | column    | (BLOCK_N)          | rows of B                                        |
    | total     | (BLOCK_M, BLOCK_N) | accumulator                                      |
    """
    k = tl.arange(0, BLOCK_K)
    a = a_ptr + row[:, None] * IN + k[None, :]
    b = b_ptr + column[None, :] * IN + k[:, None]
    for start in range(0, IN, BLOCK_K):
        total = add_product(tl.load(a + start), tl.load(b + start), total, SPEC)
    return total


# MATRICES IN MEMORY


@triton.jit
def load_matrix(w_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROWS_PAD: tl.constexpr, COLUMNS_PAD: tl.constexpr):
    """Load a row-major matrix (ROWS, COLUMNS) as a tile (ROWS_PAD, COLUMNS_PAD), zero-padded."""
    row, column = tl.arange(0, ROWS_PAD)[:, None], tl.arange(0, COLUMNS_PAD)[None, :]
    return tl.load(w_ptr + row * COLUMNS + column, mask=(row < ROWS) & (column < COLUMNS), other=0.0)


@triton.jit
def store_matrix(
    w_ptr, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROWS_PAD: tl.constexpr, COLUMNS_PAD: tl.constexpr
):
    """Store a tile (ROWS_PAD, COLUMNS_PAD) as a row-major matrix (ROWS, COLUMNS), without its padding."""
    row, column = tl.arange(0, ROWS_PAD)[:, None], tl.arange(0, COLUMNS_PAD)[None, :]
    tl.store(w_ptr + row * COLUMNS + column, tile, mask=(row < ROWS) & (column < COLUMNS))


@triton.jit
def select_column(x, column, SELECTED: tl.constexpr):
    """Return column number SELECTED of x (rows, columns), as (rows). `column` is tl.arange(0, columns)."""
    return tl.sum(tl.where((column == SELECTED)[None, :], x, 0.0), axis=1)
