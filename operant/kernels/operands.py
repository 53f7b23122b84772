"""What the products of `layers` take: samples gathered from a rollout, and packed weights. In Triton; knows no
activation and no loss.

`x` (capacity, inputs[0]) is what layer 0 reads: numbers as its product takes them, or bytes, which become numbers in
the product's own loop and are stored nowhere as such.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import column_mask, feature_of, first_operand, normalize, one_hot, round_to_tf32

# PRODUCTS


@triton.jit
def stored(x, SPEC: tl.constexpr):
    """A tile as buffers hold it: the nearest numbers that a product takes (left to itself, it would cut tf32's off)."""
    if SPEC.precision == "bf16":
        return x.to(tl.bfloat16)
    elif SPEC.precision == "tf32":
        return round_to_tf32(x)
    else:
        return x


@triton.jit
def add_dot(a, b, total, SPEC: tl.constexpr):
    """Total + a b. Operands in float32 keep tf32's bits where the others are bf16."""
    return tl.dot(a, b, total, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def tile_of(left, right, row, column, total, SPEC: tl.constexpr, IN: tl.constexpr, BLOCK_K: tl.constexpr):
    """Total + rows of `left` (., IN) times rows of `right` (., IN)."""
    depth = tl.arange(0, BLOCK_K)
    a = left + row[:, None] * IN + depth[None, :]
    b = right + column[None, :] * IN + depth[:, None]
    for start in range(0, IN, BLOCK_K):
        total = add_dot(tl.load(a + start), tl.load(b + start), total, SPEC)
    return total


@triton.jit
def read(x, row, column, normalizer, SPEC: tl.constexpr):
    """What layer 0 reads of gathered bytes (rows, columns), as its product takes it."""
    gathered = tl.load(
        x + row[:, None] * SPEC.inputs[0] + column[None, :], mask=(column < SPEC.inputs[0])[None, :], other=0
    )
    features = normalize(gathered, column, normalizer, SPEC)
    return features.to(tl.bfloat16) if SPEC.precision == "bf16" else first_operand(features, SPEC)


@triton.jit
def read_tile(x, normalizer, right, row, column, total, SPEC: tl.constexpr, IN: tl.constexpr, BLOCK_K: tl.constexpr):
    """Total + what layer 0 reads of gathered bytes (., IN) times rows of `right` (., IN)."""
    depth = tl.arange(0, BLOCK_K)
    b = right + column[None, :] * IN + depth[:, None]
    for start in range(0, IN, BLOCK_K):
        total = add_dot(read(x, row, start + depth, normalizer, SPEC), tl.load(b + start), total, SPEC)
    return total


# WEIGHTS


@triton.jit
def weight_place(row, column, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Where a layer's weights (outputs, inputs) lie in the flat vector, and which there are: layer 0's bias is a column
    behind them.
    """
    if LAYER == 0:
        unit = tower * SPEC.hidden[0] + row
        place = tl.where(
            column < SPEC.columns, SPEC.first_weight + unit * SPEC.columns + column, SPEC.first_bias + unit
        )
        mask = (row < SPEC.hidden[0]) & (column <= SPEC.columns)
    elif len(SPEC.hidden) > LAYER:
        place = SPEC.weights[LAYER - 1] + (tower * SPEC.hidden[LAYER] + row) * SPEC.hidden[LAYER - 1] + column
        mask = (row < SPEC.hidden[LAYER]) & (column < SPEC.hidden[LAYER - 1])
    else:
        place = tl.where(row < SPEC.head_rows, SPEC.head_weight + row * SPEC.hidden[-1], SPEC.value_weight) + column
        mask = column_mask(row, tower, SPEC) & (column < SPEC.hidden[-1])
    return place, mask


@triton.jit
def _pack_layer(parameters, first, packed, row, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    OUT: tl.constexpr = SPEC.widths[LAYER]
    IN: tl.constexpr = SPEC.inputs[LAYER]
    STEP: tl.constexpr = IN if IN < 64 else 64
    for start in range(0, IN, STEP):
        column = start + tl.arange(0, STEP)[None, :]
        place, mask = weight_place(row, column, tower, SPEC, LAYER)
        weights = tl.load(parameters + place, mask=mask, other=0.0)
        if LAYER == 0:
            target = first + (tower * OUT + row) * IN + column
            if SPEC.bytes:
                tl.store(target, stored(weights, SPEC))
            else:
                tl.store(target, weights if SPEC.precision == "ieee" else round_to_tf32(weights))
        else:
            tl.store(packed + SPEC.packed[2 * LAYER - 2] + (tower * OUT + row) * IN + column, stored(weights, SPEC))
            tl.store(packed + SPEC.packed[2 * LAYER - 1] + (tower * IN + column) * OUT + row, stored(weights, SPEC))


@triton.jit
def pack(parameters, first, packed, SPEC: tl.constexpr):
    """Weights as products take them, zero beyond their width: layer 0's in `first`, the others' and their transposes in
    `packed`.

    Where layer 0 reads numbers, not bytes, its weights stay in float32. A program takes 16 outputs (program 0) of one
    layer (1) and tower (2).
    """
    start, layer, tower = tl.program_id(0) * 16, tl.program_id(1), tl.program_id(2)
    row = (start + tl.arange(0, 16))[:, None]
    for k in tl.static_range(len(SPEC.widths)):
        if (layer == k) & (start < SPEC.widths[k]):
            _pack_layer(parameters, first, packed, row, tower, SPEC, k)


# SAMPLES


@triton.jit
def chunk_begin(minibatch, chunk):
    """Where a chunk's blocks begin in the order, and how many there are: a chunk lies inside one shard, and the last
    ones of a shard may be short or empty.
    """
    shard, within = chunk // minibatch.shard_chunks, chunk % minibatch.shard_chunks
    first = tl.minimum(within * minibatch.chunk_blocks, minibatch.shard_blocks)
    blocks = tl.minimum(minibatch.chunk_blocks, minibatch.shard_blocks - first)
    return minibatch.first_block + shard * minibatch.shard_blocks + first, blocks


@triton.jit
def needed(truncated, place, in_bounds, TRUNCATED_ONLY: tl.constexpr):
    """Whether a tile is to be computed: always, or with TRUNCATED_ONLY where a lane of it was truncated."""
    if TRUNCATED_ONLY:
        return tl.sum(tl.load(truncated + place, mask=in_bounds, other=0).to(tl.int32), axis=0) > 0
    else:
        return True


@triton.jit
def _store_features(inputs, x, rounded, sample, t, in_bounds, row, lanes, SPEC: tl.constexpr, BLOCK_N: tl.constexpr):
    """What layer 0 reads of samples t N + n, into rows of `x`, and in bf16 into `rounded` as products take them.
    Program 1 takes BLOCK_N columns.
    """
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    feature = feature_of(column, inputs.normalizer, SPEC)
    place = (sample + t * (SPEC.observation - 1) * lanes)[:, None] + feature[None, :] * lanes
    observed = tl.load(
        inputs.observation + place, mask=in_bounds[:, None] & (feature < SPEC.observation)[None, :], other=0
    )
    target = row[:, None] * SPEC.inputs[0] + column[None, :]
    if SPEC.bytes:  # which stay bytes: numeric features as they are, and of categories ones and zeros
        tl.store(x + target, one_hot(observed, column, inputs.normalizer, SPEC))
    else:
        features = first_operand(normalize(observed, column, inputs.normalizer, SPEC), SPEC)
        tl.store(x + target, features)
        if SPEC.precision == "bf16":
            tl.store(rounded + target, stored(features, SPEC))


@triton.jit(do_not_specialize=["first", "count"])
def gather(
    inputs,
    truncated,
    x,
    rounded,
    first,
    count,
    lanes,
    SPEC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    TRUNCATED_ONLY: tl.constexpr,
):
    """What layer 0 reads of `count` samples, in whole blocks from block `first` of the rollout on."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    # Asked of blocks, not of rows, since then the compiler sees that all rows of one are loaded or none, and loads many
    # bytes at once.
    in_bounds = row // BLOCK < count // BLOCK
    block = first + row // BLOCK
    sample = block * BLOCK + row % BLOCK  # t N + n
    if needed(truncated, sample, in_bounds, TRUNCATED_ONLY):
        _store_features(inputs, x, rounded, sample, block // (lanes // BLOCK), in_bounds, row, lanes, SPEC, BLOCK_N)


@triton.jit(do_not_specialize=["minibatch", "first_chunk", "slot"])
def gather_chunks(
    minibatch,
    inputs,
    x,
    rounded,
    first_chunk,
    slot,
    lanes,
    SPEC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What layer 0 reads of a minibatch's chunks from `first_chunk` on, `slot` rows of `x` for each; rows beyond a
    chunk's end read an empty observation.
    """
    start = tl.program_id(0) * BLOCK_M
    begin, blocks = chunk_begin(minibatch, first_chunk + start // slot)
    # Told that a slot has whole tiles, the compiler sees which rows lie in one block, and loads many bytes at once.
    offset = tl.multiple_of(start % slot, BLOCK_M) + tl.arange(0, BLOCK_M)
    in_bounds = offset // BLOCK < blocks
    block = tl.load(minibatch.order + begin + offset // BLOCK, mask=in_bounds, other=0)
    sample = block * BLOCK + offset % BLOCK  # t N + n
    _store_features(
        inputs,
        x,
        rounded,
        sample,
        block // (lanes // BLOCK),
        in_bounds,
        start + tl.arange(0, BLOCK_M),
        lanes,
        SPEC,
        BLOCK_N,
    )
