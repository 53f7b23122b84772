"""Gradient kernel of the resident engine: forward pass, loss and backward pass over tiles of a minibatch.

A minibatch consists of *blocks*, BLOCK neighbouring lanes of one step each, in shuffled order. It is divided into
*chunks* of whole blocks. A program takes one chunk and one tower (the network of the actor, 0, or of the critic, 1; a
shared trunk has tower 0 alone) and writes one row of partial sums. It goes through the chunk in tiles of BLOCK_M
samples and accumulates gradients in registers. A row depends on its chunk alone, so it has the same bits on every
device. Loads run ahead: a tile's samples are loaded during the previous tile, and its block indices during the one
before.

`LOSS` is an `operant.kernels.dense.task.Loss`. Tiles are sample-major: (rows, units), where `rows` is BLOCK_M, and
units are padded to powers of two or multiples of 64 (`..._pad`). `SPEC` is an `operant.kernels.spec.Spec`: sizes of the
network, and offsets in the flat vectors of parameters and gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.kernels.network import column_mask, forward, hidden_backward, load_log_std, load_network
from operant.kernels.observations import feature_of, first_operand, normalize, one_hot
from operant.kernels.ops.categorical import load_legal_mask, mask_illegal
from operant.kernels.ops.linear import add_product, compensated, operand, product, store_matrix, zeros

TERM_COLUMNS = tl.constexpr(32)
"""Columns after the gradient in a row of partial sums: the loss terms, then zeros. One block of the reduction."""

# SAMPLES


class Minibatch(NamedTuple):
    """Order of blocks, and the part of it that is one minibatch: equally many blocks from each shard, an aligned range
    of lanes, shard after shard. A shard's blocks are divided into chunks of `chunk_blocks`; its last chunks may be
    shorter.
    """

    order: Any  # (E, M) int32 block indices
    first_block: int  # offset of the minibatch in `order`
    shard_blocks: int  # blocks of one shard in the minibatch
    shard_chunks: int  # chunks of one shard
    chunk_blocks: int  # blocks of a chunk
    samples: int  # of the whole minibatch, all shards


@triton.jit
def chunk_begin(minibatch, chunk):
    """Return the offset of chunk number `chunk`'s first block in `minibatch.order`, and its number of blocks.

    A chunk lies inside one shard. The last chunks of a shard may be short or empty.
    """
    shard, within = chunk // minibatch.shard_chunks, chunk % minibatch.shard_chunks
    first = tl.minimum(within * minibatch.chunk_blocks, minibatch.shard_blocks)
    blocks = tl.minimum(minibatch.chunk_blocks, minibatch.shard_blocks - first)
    return minibatch.first_block + shard * minibatch.shard_blocks + first, blocks


@triton.jit
def _load_blocks(order_ptr, tile, count, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    """Load the block index of each sample of a tile, (rows); 0 beyond the chunk's last sample.

    `order_ptr` points to the chunk's first block index, `count` is the number of samples in the chunk.
    """
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    return tl.load(order_ptr + row // BLOCK, mask=row < count, other=0)


@triton.jit
def _load_samples(
    block,
    tile,
    inputs,
    samples,
    tower,
    count,
    lanes,
    SPEC: tl.constexpr,
    LOSS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Load a tile's raw observations (rows, columns_pad), the tuple of its loss targets, and its legal-action mask
    (rows, out_pad), a placeholder without SPEC.legal.

    | parameter | shape  | meaning                                           |
    |-----------|--------|---------------------------------------------------|
    | block     | (rows) | block index of each sample, from `_load_blocks`   |
    | tile      | scalar | number of the tile in its chunk                   |
    | inputs    | struct | `Inputs`: observations, normalizer, legal actions |
    | samples   | struct | buffers that LOSS reads                           |
    | count     | scalar | samples in the chunk                              |
    | lanes     | scalar | N                                                 |
    """
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = row < count
    sample = block * BLOCK + row % BLOCK  # t N + n
    t = block // (lanes // BLOCK)  # blocks are numbered step by step
    feature = feature_of(tl.arange(0, SPEC.columns_pad), inputs.normalizer, SPEC)
    offset = (sample + t * (SPEC.observation - 1) * lanes)[:, None] + feature[None, :] * lanes
    observation = tl.load(
        inputs.observation + offset, mask=in_bounds[:, None] & (feature < SPEC.observation)[None, :], other=0
    )
    targets = LOSS.load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC)
    legal_mask = in_bounds
    if SPEC.legal:
        legal_mask = load_legal_mask(
            inputs.legal_mask, sample, t, in_bounds if SPEC.shared else in_bounds & (tower == 0), lanes, SPEC
        )
    return observation, targets, legal_mask


# ACCUMULATION
#
# `sums` is a tuple of accumulators. L hidden layers, padded widths H_k. Vectors are column 0 of a (H, 16) tile, the
# product with a column of ones.
#
# | element                  | shape                     | gradient of                         |
# |--------------------------|---------------------------|-------------------------------------|
# | 0                        | (H_0, columns_pad)        | first weight, its bias in column K  |
# | 1 + 2 k, 2 + 2 k         | (H_k+1, H_k), (H_k+1, 16) | weight and bias of layer k + 1      |
# | 2 L - 1                  | (H_L-1, out_pad)          | last weight, transposed             |
# | 2 L + 2 k, 2 L + 1 + 2 k | (H_k, 16) each            | layer normalization's gain and bias |


@triton.jit
def _zero_gradients(SPEC: tl.constexpr):
    """Return accumulators (`sums`) of all parameters' gradients, at zero."""
    sums = (zeros(SPEC.hidden_pad[0], SPEC.columns_pad),)
    for k in tl.static_range(len(SPEC.weights)):
        sums = sums + (zeros(SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k]), zeros(SPEC.hidden_pad[k + 1], 16))
    sums = sums + (zeros(SPEC.hidden_pad[-1], SPEC.out_pad),)
    if SPEC.layer_norm:
        for k in tl.static_range(len(SPEC.hidden)):
            sums = sums + (zeros(SPEC.hidden_pad[k], 16), zeros(SPEC.hidden_pad[k], 16))
    return sums


@triton.jit
def _add_gradients(sums, grad_out, x, ones, network, hidden, saved, SPEC: tl.constexpr):
    """Return `sums` with a tile's gradients added: dW = g^T h and db = g^T 1 of each layer, from the last to the first,
    where g is the gradient of the loss in the layer's pre-activations.

    | parameter     | shape               | meaning                             |
    |---------------|---------------------|-------------------------------------|
    | grad_out      | (rows, out_pad)     | gradient of the loss in the outputs |
    | x             | (rows, columns_pad) | first layer's input                 |
    | ones          | (rows, 16)          | 1 in column 0, otherwise 0          |
    | hidden, saved | tuples              | as returned by `forward`            |
    """
    _first, weights, _biases, last, _last_bias, _gains, _norm_biases = network
    LAST: tl.constexpr = 1 + 2 * len(SPEC.weights)
    g = operand(grad_out, SPEC)
    added = (add_product(tl.trans(hidden[-1]), g, sums[LAST], SPEC),)
    norms = ()
    grad_h = product(g, last, SPEC)
    for k in tl.static_range(len(SPEC.weights) - 1, -1, -1):
        grad_z, grad_gain, grad_norm_bias = hidden_backward(grad_h, saved[k + 1], network, SPEC, k + 1)
        norms = _add_norm(sums, grad_gain, grad_norm_bias, ones, SPEC, k + 1) + norms
        g = operand(grad_z, SPEC)
        transposed = tl.trans(g)
        added = (
            add_product(transposed, hidden[k], sums[1 + 2 * k], SPEC),
            add_product(transposed, ones, sums[2 + 2 * k], SPEC),
        ) + added
        grad_h = product(g, weights[k], SPEC)
    grad_z, grad_gain, grad_norm_bias = hidden_backward(grad_h, saved[0], network, SPEC, 0)
    norms = _add_norm(sums, grad_gain, grad_norm_bias, ones, SPEC, 0) + norms
    g = operand(grad_z, SPEC)
    return (add_product(tl.trans(g), operand(x, SPEC), sums[0], SPEC),) + added + norms


@triton.jit
def _add_norm(sums, grad_gain, grad_norm_bias, ones, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Return two of the accumulators `sums` (a tuple of all), of layer LAYER's gain and normalization bias, with a
    tile's gradients added; an empty tuple without layer normalization. `grad_gain` and `grad_norm_bias` are (rows, H);
    `ones` (rows, 16) holds ones, so that a product sums over the rows.
    """
    if SPEC.layer_norm:
        GAIN: tl.constexpr = 2 + 2 * len(SPEC.weights) + 2 * LAYER
        gain = add_product(tl.trans(operand(grad_gain, SPEC)), ones, sums[GAIN], SPEC)
        return gain, add_product(tl.trans(operand(grad_norm_bias, SPEC)), ones, sums[GAIN + 1], SPEC)
    else:
        return ()


# STORES


@triton.jit
def store_first(grad_ptr, tile, tower, column, SPEC: tl.constexpr):
    """Store columns `column` of the first layer's gradient, `tile` (H_0, columns), at the tower's place in the flat
    vector `grad_ptr` (P). Column K = SPEC.columns is the gradient of the bias.
    """
    WIDTH: tl.constexpr = SPEC.hidden[0]
    row, column = tl.arange(0, SPEC.hidden_pad[0])[:, None], column[None, :]
    # Two stores, as `load_first` has two loads.
    tl.store(
        grad_ptr + SPEC.first_weight + (tower * WIDTH + row) * SPEC.columns + column,
        tile,
        mask=(row < WIDTH) & (column < SPEC.columns),
    )
    tl.store(
        grad_ptr + SPEC.first_bias + tower * WIDTH + row + 0 * column,
        tile,
        mask=(row < WIDTH) & (column == SPEC.columns),
    )


@triton.jit
def store_last(grad_ptr, tile, tile_bias, tower, SPEC: tl.constexpr):
    """Store the gradients of the head's weight, `tile` (H_L-1, out_pad), which is transposed, and of its bias,
    `tile_bias` (out_pad), into the flat vector `grad_ptr` (P): the columns that this tower computes.
    """
    WIDTH: tl.constexpr = SPEC.hidden[-1]
    unit, column = tl.arange(0, SPEC.hidden_pad[-1])[:, None], tl.arange(0, SPEC.out_pad)
    mask = column_mask(column, tower, SPEC)
    is_head = column < SPEC.head_rows
    head = grad_ptr + SPEC.head_weight + column[None, :] * WIDTH + unit
    value = grad_ptr + SPEC.value_weight + 0 * column[None, :] + unit
    tl.store(tl.where(is_head[None, :], head, value), tile, mask=mask[None, :] & (unit < WIDTH))
    tl.store(
        tl.where(is_head, grad_ptr + SPEC.head_bias + column, grad_ptr + SPEC.value_bias + 0 * column),
        tile_bias,
        mask=mask,
    )


@triton.jit
def _store_hidden(grad_ptr, sums, tower, SPEC: tl.constexpr):
    """Store the accumulated gradients of all layers but the last (see `sums` above) into the flat vector `grad_ptr`
    (P).
    """
    # `compensated(sum, n)`: the tensor cores truncate tf32 operands. n of the two factors are truncated, so the sum is
    # scaled by 1 + n 3.5e-4. In fp32 and bf16 it is unchanged, see kernels/ops/linear.py.
    store_first(grad_ptr, compensated(sums[0], 1, SPEC), tower, tl.arange(0, SPEC.columns_pad), SPEC)
    for k in tl.static_range(len(SPEC.weights)):
        weight_ptr = grad_ptr + SPEC.weights[k] + tower * (SPEC.hidden[k + 1] * SPEC.hidden[k])
        store_matrix(
            weight_ptr,
            compensated(sums[1 + 2 * k], 2, SPEC),
            SPEC.hidden[k + 1],
            SPEC.hidden[k],
            SPEC.hidden_pad[k + 1],
            SPEC.hidden_pad[k],
        )
        bias = compensated(sums[2 + 2 * k], 1, SPEC)
        bias_ptr = grad_ptr + SPEC.biases[k] + tower * SPEC.hidden[k + 1]
        store_matrix(bias_ptr, bias, SPEC.hidden[k + 1], 1, SPEC.hidden_pad[k + 1], 16)
    if SPEC.layer_norm:
        for k in tl.static_range(len(SPEC.hidden)):
            gain_ptr = grad_ptr + SPEC.norm_gains[k] + tower * SPEC.hidden[k]
            norm_bias_ptr = grad_ptr + SPEC.norm_biases[k] + tower * SPEC.hidden[k]
            gain, norm_bias = sums[2 + 2 * len(SPEC.weights) + 2 * k], sums[3 + 2 * len(SPEC.weights) + 2 * k]
            store_matrix(gain_ptr, compensated(gain, 1, SPEC), SPEC.hidden[k], 1, SPEC.hidden_pad[k], 16)
            store_matrix(norm_bias_ptr, compensated(norm_bias, 1, SPEC), SPEC.hidden[k], 1, SPEC.hidden_pad[k], 16)


# KERNEL


@triton.jit(do_not_specialize=["minibatch"])
def backward(
    minibatch,
    inputs,
    samples,
    params_ptr,
    partial_ptr,
    lanes,
    width,
    SPEC: tl.constexpr,
    LOSS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write partial sums of the gradient of a minibatch's mean loss, and of the loss terms, one row per chunk. Grid:
    (chunks, towers).

    | parameter   | shape           | meaning                                             |
    |-------------|-----------------|-----------------------------------------------------|
    | minibatch   | struct          | `Minibatch`: block indices and chunks               |
    | inputs      | struct          | `Inputs`: observations, normalizer, legal actions   |
    | samples     | struct          | what LOSS reads of the rollout                      |
    | params_ptr  | (P)             | parameters                                          |
    | partial_ptr | (chunks, width) | written: gradient (P), then TERM_COLUMNS loss terms |
    | lanes       | int             | N                                                   |
    | width       | int             | P + TERM_COLUMNS                                    |
    | LOSS        |                 | `Loss`                                              |
    | BLOCK_M     | int             | samples of a tile                                   |
    | BLOCK       | int             | neighbouring lanes of a block                       |
    """
    chunk, tower = tl.program_id(0), tl.program_id(1)
    begin, blocks = chunk_begin(minibatch, chunk)
    order_ptr, count = minibatch.order + begin, blocks * BLOCK
    # The tower's weights and biases, in registers and shared memory for the whole chunk.
    network = load_network(params_ptr, tower, SPEC)
    feature_column, column = tl.arange(0, SPEC.columns_pad), tl.arange(0, SPEC.out_pad)
    scalars = LOSS.load_scalars(samples)
    log_std = load_log_std(params_ptr, column, SPEC)  # (out_pad) of a Gaussian, else zeros
    # (BLOCK_M, 16), ones in column 0: a product with it sums over rows.
    ones = operand(tl.where(tl.arange(0, 16)[None, :] + 0 * tl.arange(0, BLOCK_M)[:, None] == 0, 1.0, 0.0), SPEC)
    scale = 1.0 / minibatch.samples

    # Accumulators over the chunk's tiles, in registers.
    sums = _zero_gradients(SPEC)
    bias_sums = zeros(BLOCK_M, SPEC.out_pad)
    log_std_sums = zeros(BLOCK_M, SPEC.out_pad)
    term_sums = ()
    for _ in tl.static_range(len(LOSS.towers)):
        term_sums = term_sums + (tl.sum(bias_sums, axis=1),)

    # Prefetch the first tile's samples and the second tile's block indices.
    tiles = tl.cdiv(count, BLOCK_M)
    block = _load_blocks(order_ptr, 0, count, BLOCK_M, BLOCK)
    observation, targets, legal_mask = _load_samples(
        block, 0, inputs, samples, tower, count, lanes, SPEC, LOSS, BLOCK_M, BLOCK
    )
    block = _load_blocks(order_ptr, 1, count, BLOCK_M, BLOCK)
    for tile in range(0, tiles):
        following = _load_samples(block, tile + 1, inputs, samples, tower, count, lanes, SPEC, LOSS, BLOCK_M, BLOCK)
        block = _load_blocks(order_ptr, tile + 2, count, BLOCK_M, BLOCK)

        # Forward pass. Features: one-hot encoded, (x - mean) / std clipped to +-10, column K constant 1 for the bias.
        # Then z = W h + b, h = f(z) for each hidden layer; out (BLOCK_M, out_pad) are logits or means, and the value.
        features = one_hot(observation, feature_column, inputs.normalizer, SPEC)
        x = first_operand(normalize(features, feature_column, inputs.normalizer, SPEC), SPEC)
        out, hidden, saved = forward(x, network, SPEC)

        # Loss: dL/d out and dL/d log_std, and the loss terms of each sample, zero beyond the chunk's last sample.
        # `scale` makes the sum over the minibatch's samples a mean.
        in_bounds = tile * BLOCK_M + tl.arange(0, BLOCK_M) < count
        out = mask_illegal(out, legal_mask, SPEC)
        grad_out, grad_log_std, terms = LOSS.gradient(
            out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC
        )
        grad_out *= scale

        # Backward pass: g = W^T g f'(z), from the last layer to the first; dW += g^T h, db += g^T 1.
        sums = _add_gradients(sums, grad_out, x, ones, network, hidden, saved, SPEC)
        bias_sums += grad_out
        if SPEC.log_std >= 0:
            log_std_sums += grad_log_std
        added = ()
        for k in tl.static_range(len(LOSS.towers)):
            added = added + (term_sums[k] + terms[k],)
        term_sums = added
        observation, targets, legal_mask = following

    # Store the chunk's row: P gradients, then the loss terms. Each tower has the columns of its own parameters.
    row_ptr = partial_ptr + chunk * width
    _store_hidden(row_ptr, sums, tower, SPEC)
    store_last(row_ptr, compensated(sums[1 + 2 * len(SPEC.weights)], 2, SPEC), tl.sum(bias_sums, axis=0), tower, SPEC)
    if SPEC.log_std >= 0:
        tl.store(
            row_ptr + SPEC.log_std + column,
            scale * tl.sum(log_std_sums, axis=0),
            mask=(column < SPEC.head_rows) & (tower == 0),
        )
    for k in tl.static_range(len(LOSS.towers)):
        if SPEC.shared or tower == LOSS.towers[k]:
            tl.store(row_ptr + width - TERM_COLUMNS + k, scale * tl.sum(term_sums[k], axis=0))
