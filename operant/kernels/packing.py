"""Packing for the per-layer engine, in Triton: padded weights, and samples gathered from a rollout.

The kernels of `layers` read buffers without masks. Weights are therefore *packed* before use: copied to zero-padded
matrices in the type of the matrix products' operands (bfloat16, or float32 rounded to tf32). The first layer's inputs
`x` (capacity, inputs[0]) are gathered from the field-major rollout. Bytes stay bytes in `x`; `load_bytes` converts them
inside the first product. A block is some neighbouring lanes of one step, the unit in which samples are shuffled.

`SPEC` is an `operant.kernels.spec.Spec`; `inputs` are `observations.Inputs`, `minibatch` is a `backward.Minibatch`;
`lanes` is N.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.backward import chunk_begin
from operant.kernels.network import column_mask
from operant.kernels.observations import feature_of, first_operand, normalize, one_hot
from operant.kernels.ops.linear import add_product, round_to_tf32, rounded_operand

# GATHERED BYTES


@triton.jit
def load_bytes(x_ptr, row, column, normalizer_ptr, SPEC: tl.constexpr):
    """Return rows `row` and columns `column` (vectors of numbers) of the gathered bytes `x_ptr`, which has inputs[0]
    columns, as the operand of the first product, (rows, columns): normalized, then bfloat16 or tf32.
    """
    x = tl.load(
        x_ptr + row[:, None] * SPEC.inputs[0] + column[None, :], mask=(column < SPEC.inputs[0])[None, :], other=0
    )
    features = normalize(x, column, normalizer_ptr, SPEC)
    return features.to(tl.bfloat16) if SPEC.precision == "bf16" else first_operand(features, SPEC)


@triton.jit
def add_bytes_product(
    x_ptr, normalizer_ptr, w_ptr, row, column, total, SPEC: tl.constexpr, IN: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Return `total` plus a tile of the first layer's product x W^T, in steps of BLOCK_K: x are gathered bytes `x_ptr`
    (capacity, IN), W packed weights `w_ptr` (outputs, IN); `row` and `column` are the tile's rows of each.
    """
    k = tl.arange(0, BLOCK_K)
    b = w_ptr + column[None, :] * IN + k[:, None]
    for start in range(0, IN, BLOCK_K):
        a = load_bytes(x_ptr, row, start + k, normalizer_ptr, SPEC)
        total = add_product(a, tl.load(b + start), total, SPEC)
    return total


# WEIGHTS


@triton.jit
def weight_offset(row, column, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Return the offset in the flat parameter vector of each element of layer LAYER's weight (`row` outputs, `column`
    inputs), and the mask of those that exist, without padding.

    Layer 0 has its bias as the column after the inputs. Layer L is the head: rows of the distribution, then the value.
    """
    if LAYER == 0:
        unit = tower * SPEC.hidden[0] + row
        offset = tl.where(
            column < SPEC.columns, SPEC.first_weight + unit * SPEC.columns + column, SPEC.first_bias + unit
        )
        mask = (row < SPEC.hidden[0]) & (column <= SPEC.columns)
    elif len(SPEC.hidden) > LAYER:
        offset = SPEC.weights[LAYER - 1] + (tower * SPEC.hidden[LAYER] + row) * SPEC.hidden[LAYER - 1] + column
        mask = (row < SPEC.hidden[LAYER]) & (column < SPEC.hidden[LAYER - 1])
    else:
        offset = tl.where(row < SPEC.head_rows, SPEC.head_weight + row * SPEC.hidden[-1], SPEC.value_weight) + column
        mask = column_mask(row, tower, SPEC) & (column < SPEC.hidden[-1])
    return offset, mask


@triton.jit
def _pack_layer(params_ptr, first_ptr, packed_ptr, row, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Pack rows `row` (16, 1) of layer LAYER's weight, 64 columns at a time, into `first_ptr` (layer 0) or
    `packed_ptr`, see `pack`.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    IN: tl.constexpr = SPEC.inputs[LAYER]
    STEP: tl.constexpr = IN if IN < 64 else 64
    for start in range(0, IN, STEP):
        column = start + tl.arange(0, STEP)[None, :]
        offset, mask = weight_offset(row, column, tower, SPEC, LAYER)
        weights = tl.load(params_ptr + offset, mask=mask, other=0.0)
        if LAYER == 0:
            target_ptr = first_ptr + (tower * OUT + row) * IN + column
            if SPEC.bytes:
                tl.store(target_ptr, rounded_operand(weights, SPEC))
            else:
                tl.store(target_ptr, weights if SPEC.precision == "ieee" else round_to_tf32(weights))
        else:
            weight_ptr = packed_ptr + SPEC.packed[2 * LAYER - 2]
            tl.store(weight_ptr + (tower * OUT + row) * IN + column, rounded_operand(weights, SPEC))
            transpose_ptr = packed_ptr + SPEC.packed[2 * LAYER - 1]
            tl.store(transpose_ptr + (tower * IN + column) * OUT + row, rounded_operand(weights, SPEC))


@triton.jit
def pack(params_ptr, first_ptr, packed_ptr, SPEC: tl.constexpr):
    """Copy all weights, zero-padded, in the type of the matrix products: bfloat16, or float32 rounded to tf32. Grid:
    (max(widths) / 16, L + 1, towers).

    | parameter  | shape                    | meaning                                                        |
    |------------|--------------------------|----------------------------------------------------------------|
    | params_ptr | (P)                      | parameters                                                     |
    | first_ptr  | (towers, H_0, inputs[0]) | layer 0's weight, written; float32 unless the inputs are bytes |
    | packed_ptr | (SPEC.packed[-1])        | per later layer the weight (towers, outputs, inputs), then its |
    |            |                          | transpose (towers, inputs, outputs), written                   |
    """
    start, layer, tower = tl.program_id(0) * 16, tl.program_id(1), tl.program_id(2)
    row = (start + tl.arange(0, 16))[:, None]
    for k in tl.static_range(len(SPEC.widths)):
        if (layer == k) & (start < SPEC.widths[k]):
            _pack_layer(params_ptr, first_ptr, packed_ptr, row, tower, SPEC, k)


# SAMPLES


@triton.jit
def needed(truncated_ptr, offset, in_bounds, TRUNCATED_ONLY: tl.constexpr):
    """Return whether to compute a tile: always, or with TRUNCATED_ONLY only if an episode was truncated in one of its
    samples. `truncated_ptr` + `offset` (rows) are their flags.
    """
    if TRUNCATED_ONLY:
        return tl.sum(tl.load(truncated_ptr + offset, mask=in_bounds, other=0).to(tl.int32), axis=0) > 0
    else:
        return True


@triton.jit
def _store_features(
    inputs, x_ptr, rounded_ptr, sample, t, in_bounds, row, lanes, SPEC: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Write the first layer's input of samples t N + n (`sample`, (rows), of steps `t`) to rows `row` of `x_ptr`
    (capacity, inputs[0]); in bf16 also to `rounded_ptr`, in bfloat16.

    Program 1 takes BLOCK_N columns.
    """
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    feature = feature_of(column, inputs.normalizer, SPEC)
    offset = (sample + t * (SPEC.observation - 1) * lanes)[:, None] + feature[None, :] * lanes
    observation = tl.load(
        inputs.observation + offset, mask=in_bounds[:, None] & (feature < SPEC.observation)[None, :], other=0
    )
    target = row[:, None] * SPEC.inputs[0] + column[None, :]
    if SPEC.bytes:
        tl.store(x_ptr + target, one_hot(observation, column, inputs.normalizer, SPEC))
    else:
        features = first_operand(normalize(observation, column, inputs.normalizer, SPEC), SPEC)
        tl.store(x_ptr + target, features)
        if SPEC.precision == "bf16":
            tl.store(rounded_ptr + target, rounded_operand(features, SPEC))


# GATHER KERNELS
#
# Grid of each: (tiles of BLOCK_M rows, inputs[0] / BLOCK_N).
#
# | parameter   | shape                 | meaning                                                     |
# |-------------|-----------------------|-------------------------------------------------------------|
# | inputs      | struct                | `Inputs`: observations (T + 1, O, N), normalizer            |
# | x_ptr       | (capacity, inputs[0]) | encoded samples, written: uint8, or float32 rounded to tf32 |
# | rounded_ptr | (capacity, inputs[0]) | in bf16: the same as operands, written                      |
# | lanes       | int                   | N                                                           |
# | BLOCK       | int                   | neighbouring lanes of a block                               |


@triton.jit(do_not_specialize=["first", "count"])
def gather(
    inputs,
    truncated_ptr,
    x_ptr,
    rounded_ptr,
    first,
    count,
    lanes,
    SPEC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    TRUNCATED_ONLY: tl.constexpr,
):
    """Write `count` consecutive samples of the rollout `inputs`, encoded as the first layer's input, to rows 0, 1, ...
    of `x_ptr`, in bf16 also to `rounded_ptr`, in bfloat16. They begin with block `first` (a block is BLOCK neighbouring
    lanes of one step). With TRUNCATED_ONLY only tiles with a sample that `truncated_ptr` marks are written.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    # A mask of blocks instead of rows: all rows of a block are loaded or none, so the compiler vectorizes the loads.
    in_bounds = row // BLOCK < count // BLOCK
    block = first + row // BLOCK
    sample = block * BLOCK + row % BLOCK  # t N + n
    if needed(truncated_ptr, sample, in_bounds, TRUNCATED_ONLY):
        _store_features(
            inputs, x_ptr, rounded_ptr, sample, block // (lanes // BLOCK), in_bounds, row, lanes, SPEC, BLOCK_N
        )


@triton.jit(do_not_specialize=["minibatch", "first_chunk", "slot"])
def gather_chunks(
    minibatch,
    inputs,
    x_ptr,
    rounded_ptr,
    first_chunk,
    slot,
    lanes,
    SPEC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gather the samples of a minibatch's chunks from chunk `first_chunk` on: those of each chunk into `slot`
    consecutive rows of `x_ptr`.

    Rows after a chunk's last sample hold an encoded empty observation.
    """
    start = tl.program_id(0) * BLOCK_M
    begin, blocks = chunk_begin(minibatch, first_chunk + start // slot)
    # multiple_of: a slot has whole tiles, so the compiler sees which rows lie in one block, and vectorizes the loads.
    offset = tl.multiple_of(start % slot, BLOCK_M) + tl.arange(0, BLOCK_M)
    in_bounds = offset // BLOCK < blocks
    block = tl.load(minibatch.order + begin + offset // BLOCK, mask=in_bounds, other=0)
    sample = block * BLOCK + offset % BLOCK  # t N + n
    _store_features(
        inputs,
        x_ptr,
        rounded_ptr,
        sample,
        block // (lanes // BLOCK),
        in_bounds,
        start + tl.arange(0, BLOCK_M),
        lanes,
        SPEC,
        BLOCK_N,
    )
