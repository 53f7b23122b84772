"""What the products of `layers` take: samples gathered from a rollout, and packed weights. In Triton; knows no activation and no loss.

`x` (capacity, inputs[0]) is what layer 0 reads: numbers as its product takes them, or bytes, which become numbers in the product's own loop and are nowhere
stored as such.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import chosen, features, field_of, first_operand, has_column, rounded

# PRODUCTS


@triton.jit
def stored(x, SPEC: tl.constexpr):
    """A tile as buffers hold it: the nearest numbers that a product takes (left to itself, it would cut tf32's off)."""
    if SPEC.precision == "bf16":
        return x.to(tl.bfloat16)
    elif SPEC.precision == "tf32":
        return rounded(x)
    else:
        return x


@triton.jit
def add_dot(a, b, total, SPEC: tl.constexpr):
    """Total + a b. Operands in float32 keep tf32's bits where the others are bf16."""
    return tl.dot(a, b, total, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def tile_of(left, right, row, column, total, SPEC: tl.constexpr, DEEP: tl.constexpr, DEPTH: tl.constexpr):
    """Total + rows of `left` (., DEEP) times rows of `right` (., DEEP)."""
    depth = tl.arange(0, DEPTH)
    a = left + row[:, None] * DEEP + depth[None, :]
    b = right + column[None, :] * DEEP + depth[:, None]
    for start in range(0, DEEP, DEPTH):
        total = add_dot(tl.load(a + start), tl.load(b + start), total, SPEC)
    return total


@triton.jit
def read(x, row, column, moments, SPEC: tl.constexpr):
    """What layer 0 reads of gathered bytes (rows, columns), as its product takes it."""
    raw = tl.load(x + row[:, None] * SPEC.inputs[0] + column[None, :], mask=(column < SPEC.inputs[0])[None, :], other=0)
    seen = features(raw, column, moments, SPEC)
    return seen.to(tl.bfloat16) if SPEC.precision == "bf16" else first_operand(seen, SPEC)


@triton.jit
def read_tile(x, moments, right, row, column, total, SPEC: tl.constexpr, DEEP: tl.constexpr, DEPTH: tl.constexpr):
    """Total + what layer 0 reads of gathered bytes (., DEEP) times rows of `right` (., DEEP)."""
    depth = tl.arange(0, DEPTH)
    b = right + column[None, :] * DEEP + depth[:, None]
    for start in range(0, DEEP, DEPTH):
        total = add_dot(read(x, row, start + depth, moments, SPEC), tl.load(b + start), total, SPEC)
    return total


# WEIGHTS


@triton.jit
def _weights(parameters, row, column, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Some outputs' weights (rows, columns): in layer 0 with the bias behind them, in layer L only where the tower has that output."""
    if LAYER == 0:
        unit = tower * SPEC.hidden[0] + row
        place = tl.where(column < SPEC.columns, SPEC.first_weight + unit * SPEC.columns + column, SPEC.first_bias + unit)
        mask = (row < SPEC.hidden[0]) & (column <= SPEC.columns)
    elif len(SPEC.hidden) > LAYER:
        place = SPEC.weights[LAYER - 1] + (tower * SPEC.hidden[LAYER] + row) * SPEC.hidden[LAYER - 1] + column
        mask = (row < SPEC.hidden[LAYER]) & (column < SPEC.hidden[LAYER - 1])
    else:
        place = tl.where(row < SPEC.head_rows, SPEC.head_weight + row * SPEC.hidden[-1], SPEC.value_weight) + column
        mask = has_column(row, tower, SPEC) & (column < SPEC.hidden[-1])
    return tl.load(parameters + place, mask=mask, other=0.0)


@triton.jit
def _pack_layer(parameters, first, packed, row, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    WIDE: tl.constexpr = SPEC.widths[LAYER]
    DEEP: tl.constexpr = SPEC.inputs[LAYER]
    STEP: tl.constexpr = DEEP if DEEP < 64 else 64
    for start in range(0, DEEP, STEP):
        column = start + tl.arange(0, STEP)[None, :]
        weights = _weights(parameters, row, column, tower, SPEC, LAYER)
        if LAYER == 0:
            place = first + (tower * WIDE + row) * DEEP + column
            if SPEC.bytes:
                tl.store(place, stored(weights, SPEC))
            else:
                tl.store(place, weights if SPEC.precision == "ieee" else rounded(weights))
        else:
            tl.store(packed + SPEC.packed[2 * LAYER - 2] + (tower * WIDE + row) * DEEP + column, stored(weights, SPEC))
            tl.store(packed + SPEC.packed[2 * LAYER - 1] + (tower * DEEP + column) * WIDE + row, stored(weights, SPEC))


@triton.jit
def pack(parameters, first, packed, SPEC: tl.constexpr):
    """Weights as products take them, zero beyond their width: layer 0's in `first`, the others' and their transposes in `packed`.

    Where layer 0 reads numbers, not bytes, its weights stay in float32. A program takes 16 outputs (program 0) of one layer (1) and tower (2).
    """
    start, layer, tower = tl.program_id(0) * 16, tl.program_id(1), tl.program_id(2)
    row = (start + tl.arange(0, 16))[:, None]
    for k in tl.static_range(len(SPEC.widths)):
        if (layer == k) & (start < SPEC.widths[k]):
            _pack_layer(parameters, first, packed, row, tower, SPEC, k)


# SAMPLES


@triton.jit
def wanted(truncated, place, here, SOME: tl.constexpr):
    """Whether a tile is to be computed: always, or with SOME where a lane of it was truncated."""
    if SOME:
        return tl.sum(tl.load(truncated + place, mask=here, other=0).to(tl.int32), axis=0) > 0
    else:
        return True


@triton.jit(do_not_specialize=["first", "count"])
def gather(
    order, observation, moments, truncated, x, copy, first, count, lanes,
    SPEC: tl.constexpr, ROWS: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr, ORDERED: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """What layer 0 reads of `count` samples, whole blocks: order[first], ... or with ORDERED off first, ... Program 1 takes FIELDS of its columns.

    In bf16 `copy` has them as products take them. Bytes stay bytes: numeric ones as they are, and of categories ones and zeros.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # Asked of blocks, not of rows, since then the compiler sees that all rows of one are loaded or none, and loads many bytes at once.
    here = row // BLOCK < count // BLOCK
    block = first + row // BLOCK
    if ORDERED:
        block = tl.load(order + block, mask=here, other=0)
    place = block * BLOCK + row % BLOCK  # t N + n
    if wanted(truncated, place, here, SOME):
        column = tl.program_id(1) * FIELDS + tl.arange(0, FIELDS)
        field = field_of(column, moments, SPEC)
        t = block // (lanes // BLOCK)
        at = (place + t * (SPEC.observation - 1) * lanes)[:, None] + field[None, :] * lanes
        observed = tl.load(observation + at, mask=here[:, None] & (field < SPEC.observation)[None, :], other=0)
        to = row[:, None] * SPEC.inputs[0] + column[None, :]
        if SPEC.bytes:
            tl.store(x + to, chosen(observed, column, moments, SPEC))
        else:
            seen = first_operand(features(observed, column, moments, SPEC), SPEC)
            tl.store(x + to, seen)
            if SPEC.precision == "bf16":
                tl.store(copy + to, stored(seen, SPEC))
