"""Kernels of the per-layer engine: products in tiles of BLOCK_M x BLOCK_N, accumulated in steps of BLOCK_K.

For networks too wide for one program. A *tower* is the network of the actor (0) or of the critic (1), or both with a
shared trunk. Samples go through in microbatches, as many as the buffers hold: a microbatch's activations lie in buffers
(towers, capacity, padded width), sample-major. Weights are *packed*: copied with zero padding in the type of the
products' operands (see `packing`), so that no product needs a mask. The backward products read packed transposes and
have the same form as the forward ones.

A *chunk* is the part of a minibatch whose gradients are added to one row of partial sums. In an update a microbatch
holds whole chunks, each in a *slot* of `slot` rows. Rows of a slot after its chunk's last sample have zero gradients.
The order of every sum depends on positions alone: rows within a tile, tiles within a chunk.

Layers are numbered from 0; layer L is the *head*, the output layer of distribution and value. `SPEC.tile_sums`
describes the buffer of sums over each tile of rows: gradients of the biases of layers 1 ... L and of log_std, and the
loss terms. Layer L's tiles may have fewer rows than the other layers'.

`LOSS` is an `operant.kernels.dense.task.Loss`. `SPEC` is an `operant.kernels.spec.Spec`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.kernels.backward import TERM_COLUMNS, chunk_begin
from operant.kernels.network import column_mask, load_log_std, out_bias
from operant.kernels.ops.activation import activate, activation_gradient, saved_activation
from operant.kernels.ops.categorical import load_legal_mask, mask_illegal
from operant.kernels.ops.layer_norm import layer_norm_backward, standardize
from operant.kernels.ops.linear import add_product, add_tile_product, operand, rounded_operand, zeros
from operant.kernels.packing import add_bytes_product, load_bytes, needed, weight_offset

# ARGUMENTS


class Layer(NamedTuple):
    """Buffers of one layer of the per-layer engine in the forward pass."""

    source: Any  # (towers, capacity, inputs) the layer's inputs; layer 0: (capacity, inputs), shared by the towers
    weights: Any  # (towers, outputs, inputs) packed
    hidden: Any  # (towers, capacity, outputs) activations, written
    saved: Any  # (towers, capacity, outputs) tensor saved for the backward pass, written


class Head(NamedTuple):
    """Buffers of the per-layer engine's head in the backward pass."""

    hidden: Any  # (towers, capacity, H) activations of the last hidden layer
    saved: Any  # (towers, capacity, H) its saved tensor
    packed: Any  # packed weights
    grad_out: Any  # (towers, capacity, out_pad) gradient in the outputs, written
    grad_in: Any  # (towers, capacity, H) gradient in the last hidden layer's pre-activations, written
    tile_sums: Any  # (towers, tiles, width) written


# FORWARD


@triton.jit(do_not_specialize=["first", "count", "first_tower"])
def forward_layer(
    layer,
    params_ptr,
    normalizer_ptr,
    truncated_ptr,
    first_tower,
    first,
    count,
    capacity,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    SAVE: tl.constexpr,
    TRUNCATED_ONLY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute activations h = f(W x + b) of hidden layer LAYER for `count` samples. Grid: (tiles, row by row; towers -
    first_tower).

    | parameter      | shape  | meaning                                                                     |
    |----------------|--------|-----------------------------------------------------------------------------|
    | layer          | struct | `Layer`: source, weights, hidden and saved                                  |
    | params_ptr     | (P)    | parameters, for the biases                                                  |
    | normalizer_ptr |        | read by layer 0 if its inputs are bytes                                     |
    | truncated_ptr  | (T, N) | read if TRUNCATED_ONLY: tiles without a truncated lane are skipped          |
    | first, count   | int    | samples first ... first + count - 1 of the rollout are rows 0 ... count - 1 |
    | capacity       | int    | rows of a tower in the buffers                                              |
    | SAVE           | bool   | also store the tensor saved for the backward pass                           |

    With layer normalization the pre-activations go to `layer.saved`, and `normalize_layer` follows.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    IN: tl.constexpr = SPEC.inputs[LAYER]
    tower = first_tower + tl.program_id(1)
    row = tl.program_id(0) // (OUT // BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % (OUT // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    if needed(truncated_ptr, first + row, row < count, TRUNCATED_ONLY):
        # z = W x + b; layer 0's bias is a column of its weight.
        w_ptr, z = layer.weights + tower * OUT * IN, zeros(BLOCK_M, BLOCK_N)
        if LAYER > 0:
            bias_ptr = params_ptr + SPEC.biases[LAYER - 1] + tower * SPEC.hidden[LAYER] + column
            z += tl.load(bias_ptr, mask=column < SPEC.hidden[LAYER], other=0.0)[None, :]
        if LAYER == 0 and SPEC.bytes:
            z = add_bytes_product(layer.source, normalizer_ptr, w_ptr, row, column, z, SPEC, IN, BLOCK_K)
        else:
            x_ptr = layer.source
            if LAYER > 0:
                x_ptr += tower * capacity * IN
            z = add_tile_product(x_ptr, w_ptr, row, column, z, SPEC, IN, BLOCK_K)
        # Activation: h = f(z).
        offset = (tower * capacity + row)[:, None] * OUT + column[None, :]
        if SPEC.layer_norm:
            tl.store(layer.saved + offset, operand(z, SPEC))
        else:
            h = rounded_operand(activate(z, SPEC), SPEC)
            tl.store(layer.hidden + offset, h)
            if SAVE:
                tl.store(layer.saved + offset, saved_activation(z, h, SPEC))


@triton.jit
def _outputs(
    h_ptr,
    packed_ptr,
    params_ptr,
    row,
    tower,
    capacity,
    SPEC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the network's outputs (BLOCK_M, out_pad) for rows `row` of the last activations `h_ptr` (towers, capacity,
    H), by steps of BLOCK_K.
    """
    IN: tl.constexpr = SPEC.inputs[-1]
    column = tl.arange(0, SPEC.out_pad)
    w_ptr = packed_ptr + SPEC.packed[2 * len(SPEC.hidden) - 2] + tower * SPEC.out_pad * IN
    bias = zeros(BLOCK_M, SPEC.out_pad) + out_bias(params_ptr, tower, SPEC)[None, :]
    return add_tile_product(h_ptr + tower * capacity * IN, w_ptr, row, column, bias, SPEC, IN, BLOCK_K)


# HEAD
#
# | parameter      | shape                 | meaning                                                       |
# |----------------|-----------------------|---------------------------------------------------------------|
# | h_ptr          | (towers, capacity, H) | activations of the last hidden layer                          |
# | packed_ptr     |                       | packed weights, see `packing.pack`                            |
# | params_ptr     | (P)                   | parameters, for biases and log_std                            |
# | truncated_ptr  | (T, N)                | truncated lanes                                               |
# | legal_mask_ptr | (T + 1, H, N)         | legal actions                                                 |
# | acting         | struct                | what SAMPLE reads and writes                                  |
# | value_ptr      | (T + 1, N) or (T, N)  | values, written                                               |
# | first, count   | int                   | rows 0 ... count - 1 are lanes (act) or samples from first on |


@triton.jit(do_not_specialize=["t", "first", "count"])
def act_head(
    h_ptr,
    packed_ptr,
    params_ptr,
    legal_mask_ptr,
    acting,
    t,
    first,
    count,
    lanes,
    capacity,
    SPEC: tl.constexpr,
    SAMPLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Act at step t on `count` lanes from lane `first` on: outputs from the last activations, then SAMPLE (as
    `operant.kernels.act.sample_and_store`). Grid: (tiles, towers).
    """
    tower = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    out = _outputs(h_ptr, packed_ptr, params_ptr, row, tower, capacity, SPEC, BLOCK_M, BLOCK_K)
    SAMPLE(out, first + row, row < count, legal_mask_ptr, acting, params_ptr, tower, t, lanes, SPEC)


@triton.jit(do_not_specialize=["first", "count"])
def value_head(
    h_ptr,
    packed_ptr,
    params_ptr,
    truncated_ptr,
    legal_mask_ptr,
    value_ptr,
    first,
    count,
    lanes,
    capacity,
    SPEC: tl.constexpr,
    VALUE: tl.constexpr,
    TRUNCATED_ONLY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write values of `count` samples from sample `first` on to `value_ptr` (T, N): outputs from the last activations,
    then VALUE (as `operant.kernels.act.state_value`). With TRUNCATED_ONLY only tiles with a truncated sample.

    With TRUNCATED_ONLY only samples of truncated lanes are computed.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask = row < count
    if TRUNCATED_ONLY:
        mask = tl.load(truncated_ptr + first + row, mask=mask, other=0) != 0
    if tl.sum(mask.to(tl.int32), axis=0) > 0:
        out = _outputs(h_ptr, packed_ptr, params_ptr, row, 0 if SPEC.shared else 1, capacity, SPEC, BLOCK_M, BLOCK_K)
        sample = first + row
        has_mask = mask & (not TRUNCATED_ONLY)
        target_ptr = value_ptr + sample
        value = VALUE(out, legal_mask_ptr, sample, sample // lanes, has_mask, lanes, SPEC)
        tl.store(target_ptr, value, mask=mask)


# BACKWARD


@triton.jit(do_not_specialize=["minibatch", "first_chunk", "slot", "tiles"])
def backward_head(
    minibatch,
    inputs,
    samples,
    params_ptr,
    head,
    first_chunk,
    slot,
    lanes,
    capacity,
    tiles,
    SPEC: tl.constexpr,
    LOSS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute outputs, loss terms and the loss's gradient in the outputs for a tile of samples, and from it the
    gradient in the last hidden layer's pre-activations. Grid: (tiles, towers).

    Grid: (tiles, towers).

    | parameter   | shape  | meaning                                                                    |
    |-------------|--------|----------------------------------------------------------------------------|
    | minibatch   | struct | `Minibatch`                                                                |
    | inputs      | struct | `Inputs`, for legal actions                                                |
    | samples     | struct | what LOSS reads of the rollout                                             |
    | head        | struct | `Head`: hidden, saved, packed; grad_out, grad_in and tile_sums are written |
    | first_chunk | int    | chunk of the first slot                                                    |
    | slot        | int    | rows of a chunk                                                            |
    | tiles       | int    | tiles of a tower in `head.tile_sums`                                       |

    With layer normalization `head.grad_in` is the gradient in layer L - 1's activations.
    """
    IN: tl.constexpr = SPEC.inputs[-1]
    OUT: tl.constexpr = SPEC.out_pad
    tile, tower = tl.program_id(0), tl.program_id(1)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    # The tile's samples, `offset` rows into their chunk.
    begin, blocks = chunk_begin(minibatch, first_chunk + tile * BLOCK_M // slot)
    offset = tl.multiple_of(tile * BLOCK_M % slot, BLOCK_M) + tl.arange(0, BLOCK_M)
    in_bounds = offset < blocks * BLOCK
    block = tl.load(minibatch.order + begin + offset // BLOCK, mask=in_bounds, other=0)
    sample, t = block * BLOCK + offset % BLOCK, block // (lanes // BLOCK)
    targets = LOSS.load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC)
    # Loss of the outputs, and its gradient.
    out = _outputs(head.hidden, head.packed, params_ptr, row, tower, capacity, SPEC, BLOCK_M, BLOCK_K)
    output = tl.arange(0, OUT)
    log_std = load_log_std(params_ptr, output, SPEC)
    legal_mask = in_bounds
    if SPEC.legal:
        legal_mask = load_legal_mask(
            inputs.legal_mask, sample, t, in_bounds if SPEC.shared else in_bounds & (tower == 0), lanes, SPEC
        )
    grad_out, grad_log_std, terms = LOSS.gradient(
        mask_illegal(out, legal_mask, SPEC),
        targets,
        legal_mask,
        in_bounds,
        tower,
        log_std,
        LOSS.load_scalars(samples),
        SPEC,
    )
    scale = 1.0 / minibatch.samples
    grad_out *= scale
    tile_sums_ptr = head.tile_sums + (tower * tiles + tile) * SPEC.tile_sums.width
    tl.store(tile_sums_ptr + SPEC.tile_sums.out_bias + output, tl.sum(grad_out, axis=0))
    tl.store(tile_sums_ptr + SPEC.tile_sums.log_std + output, scale * tl.sum(grad_log_std, axis=0))
    for k in tl.static_range(len(LOSS.towers)):
        tl.store(tile_sums_ptr + SPEC.tile_sums.terms + k, scale * tl.sum(terms[k], axis=0))

    # dL / dz = (g W) f'(z) of layer L - 1, BLOCK_N units at a time; before layer normalization dL / dh = g W.
    g = rounded_operand(grad_out, SPEC)
    tl.store(head.grad_out + (tower * capacity + row)[:, None] * OUT + output[None, :], g)
    transpose_ptr = head.packed + SPEC.packed[2 * len(SPEC.hidden) - 1] + tower * IN * OUT + output[:, None]
    for start in range(0, IN, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        hidden_offset = (tower * capacity + row)[:, None] * IN + column[None, :]
        grad_in = add_product(g, tl.load(transpose_ptr + column[None, :] * OUT), zeros(BLOCK_M, BLOCK_N), SPEC)
        if not SPEC.layer_norm:
            grad_in *= activation_gradient(tl.load(head.saved + hidden_offset), SPEC)
        tl.store(head.grad_in + hidden_offset, rounded_operand(grad_in, SPEC))
        if len(SPEC.hidden) > 1 and not SPEC.layer_norm:
            tl.store(tile_sums_ptr + SPEC.tile_sums.biases[len(SPEC.hidden) - 2] + column, tl.sum(grad_in, axis=0))


@triton.jit(do_not_specialize=["tiles"])
def backward_layer(
    grad_out_ptr,
    packed_ptr,
    saved_ptr,
    grad_in_ptr,
    tile_sums_ptr,
    capacity,
    tiles,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute the gradient in layer LAYER - 1's pre-activations, `grad_in`, from that in layer LAYER's, `grad_out`:
    grad_in = (grad_out W) f'(z). Grid: (tiles, row by row; towers).

    | parameter     | shape                       | meaning                                                       |
    |---------------|-----------------------------|---------------------------------------------------------------|
    | grad_out_ptr  | (towers, capacity, outputs) | gradient in layer LAYER's pre-activations                     |
    | packed_ptr    |                             | packed weights, see `packing.pack`                            |
    | saved_ptr     | (towers, capacity, inputs)  | saved tensor of layer LAYER - 1, for f'(z)                    |
    | grad_in_ptr   | (towers, capacity, inputs)  | written; with layer normalization the gradient in activations |
    | tile_sums_ptr | (towers, tiles, width)      | written: the bias's gradient of each tile                     |
    """
    IN: tl.constexpr = SPEC.inputs[LAYER]
    OUT: tl.constexpr = SPEC.widths[LAYER]
    tower = tl.program_id(1)
    tile = tl.program_id(0) // (IN // BLOCK_N)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % (IN // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    # dL / dz = (g W) f'(z); before layer normalization dL / dh = g W.
    w_ptr = packed_ptr + SPEC.packed[2 * LAYER - 1] + tower * IN * OUT
    grad_in = add_tile_product(
        grad_out_ptr + tower * capacity * OUT, w_ptr, row, column, zeros(BLOCK_M, BLOCK_N), SPEC, OUT, BLOCK_K
    )
    offset = (tower * capacity + row)[:, None] * IN + column[None, :]
    if not SPEC.layer_norm:
        grad_in *= activation_gradient(tl.load(saved_ptr + offset), SPEC)
    tl.store(grad_in_ptr + offset, rounded_operand(grad_in, SPEC))
    if LAYER > 1 and not SPEC.layer_norm:
        tl.store(
            tile_sums_ptr + (tower * tiles + tile) * SPEC.tile_sums.width + SPEC.tile_sums.biases[LAYER - 2] + column,
            tl.sum(grad_in, axis=0),
        )


# SUMS OVER THE SAMPLES OF A CHUNK


@triton.jit(do_not_specialize=["first_chunk", "slot"])
def weight_gradient(
    grad_ptr,
    x_ptr,
    normalizer_ptr,
    partial_ptr,
    first_chunk,
    slot,
    capacity,
    width,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sum the weight gradient dW = g^T x of layer LAYER over the rows of each chunk. Grid: (tiles of W, row by row;
    chunks; towers).

    | parameter   | shape                       | meaning                                         |
    |-------------|-----------------------------|-------------------------------------------------|
    | grad_ptr    | (towers, capacity, outputs) | gradient in the layer's pre-activations         |
    | x_ptr       | (towers, capacity, inputs)  | the layer's inputs; layer 0: (capacity, inputs) |
    | partial_ptr | (chunks, width)             | written: row first_chunk + slot index           |
    | slot        | int                         | rows of a chunk                                 |

    BLOCK_M divides the outputs; BLOCK_N need not divide the inputs of layer 0.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    IN: tl.constexpr = SPEC.inputs[LAYER]
    program, tower = tl.program_id(1), tl.program_id(2)
    COLUMN_TILES: tl.constexpr = (IN + BLOCK_N - 1) // BLOCK_N
    unit = tl.program_id(0) // COLUMN_TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % COLUMN_TILES * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    grad_ptr += tower * capacity * OUT
    if LAYER > 0:
        x_ptr += tower * capacity * IN
    a = grad_ptr + unit[:, None] + k[None, :] * OUT
    b = x_ptr + column[None, :] + k[:, None] * IN
    steps = slot // BLOCK_K
    total = zeros(BLOCK_M, BLOCK_N)
    for step in range(program * steps, program * steps + steps):
        if LAYER == 0 and SPEC.bytes:
            total = add_product(
                tl.load(a + step * BLOCK_K * OUT),
                load_bytes(x_ptr, step * BLOCK_K + k, column, normalizer_ptr, SPEC),
                total,
                SPEC,
            )
        elif IN % BLOCK_N == 0:
            total = add_product(tl.load(a + step * BLOCK_K * OUT), tl.load(b + step * BLOCK_K * IN), total, SPEC)
        else:
            total = add_product(
                tl.load(a + step * BLOCK_K * OUT),
                tl.load(b + step * BLOCK_K * IN, mask=(column < IN)[None, :], other=0.0),
                total,
                SPEC,
            )
    offset, mask = weight_offset(unit[:, None], column[None, :], tower, SPEC, LAYER)
    tl.store(partial_ptr + (first_chunk + program) * width + offset, total, mask=mask)


@triton.jit
def _sum_tiles(tile_sums_ptr, tiles, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """Return the sum (WIDTH) over `tiles` rows of `tile_sums_ptr`, STRIDE numbers apart, 16 at a time."""
    column = tl.arange(0, WIDTH)
    total = zeros(16, WIDTH)
    for first in range(0, tiles, 16):
        tile = first + tl.arange(0, 16)
        total += tl.load(
            tile_sums_ptr + tile[:, None] * STRIDE + column[None, :], mask=(tile < tiles)[:, None], other=0.0
        )
    return tl.sum(total, axis=0)


@triton.jit
def _store_chunk_sum(
    target_ptr, tile_sums_ptr, chunk, tiles, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, STRIDE: tl.constexpr
):
    """Store the sum (WIDTH) over the `tiles` tiles of chunk number `chunk` at `target_ptr`. Tiles are STRIDE numbers
    apart at `tile_sums_ptr`.
    """
    unit = tl.arange(0, WIDTH_PAD)
    mask = unit < WIDTH
    target_ptr += unit
    total = _sum_tiles(tile_sums_ptr + chunk * tiles * STRIDE, tiles, WIDTH_PAD, STRIDE)
    tl.store(target_ptr, total, mask=mask)


@triton.jit(do_not_specialize=["first_chunk", "tiles", "chunk_tiles", "chunk_head_tiles", "chunk_norm_tiles"])
def add_tile_sums(
    tile_sums_ptr,
    partial_ptr,
    first_chunk,
    tiles,
    chunk_tiles,
    chunk_head_tiles,
    chunk_norm_tiles,
    width,
    SPEC: tl.constexpr,
    LOSS: tl.constexpr,
):
    """Sum biases' gradients and loss terms, which other kernels stored per tile of rows, over each chunk's tiles into
    its row of partial sums. Grid: (chunks, towers, sections of a row).

    | parameter                      | shape                  | meaning                                       |
    |--------------------------------|------------------------|-----------------------------------------------|
    | tile_sums_ptr                  | (towers, tiles, width) | sums over the rows of each tile               |
    | partial_ptr                    | (chunks, width)        | written: row first_chunk + program 0          |
    | chunk_tiles, chunk_head_tiles, | int                    | tiles of a chunk: of the layers, of the head, |
    | chunk_norm_tiles               |                        | of layer normalization                        |

    Sections 0 ... L - 2 are biases of layers 1 ... L - 1, section L - 1 the head's bias, log_std and the loss terms,
    sections L ... 2 L - 1 gains and biases of layer normalization.
    """
    program, tower, section = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    STRIDE: tl.constexpr = SPEC.tile_sums.width
    tile_sums_ptr += tower * tiles * STRIDE
    head_sums_ptr = tile_sums_ptr + program * chunk_head_tiles * STRIDE
    partial_ptr += (first_chunk + program) * width
    # Biases of layers 1 ... L - 1. The head's tiles summed the last one, or layer normalization's tiles all of them.
    for k in tl.static_range(len(SPEC.hidden) - 1):
        if section == k:
            count = (
                chunk_norm_tiles if SPEC.layer_norm else chunk_head_tiles if k == len(SPEC.hidden) - 2 else chunk_tiles
            )
            _store_chunk_sum(
                partial_ptr + SPEC.biases[k] + tower * SPEC.hidden[k + 1],
                tile_sums_ptr + SPEC.tile_sums.biases[k],
                program,
                count,
                SPEC.hidden[k + 1],
                SPEC.hidden_pad[k + 1],
                STRIDE,
            )
    # Gains and biases of layer normalization.
    if SPEC.layer_norm:
        for k in tl.static_range(len(SPEC.hidden)):
            if section == len(SPEC.hidden) + k:
                gains, norm_biases = (
                    SPEC.norm_gains[k] + tower * SPEC.hidden[k],
                    SPEC.norm_biases[k] + tower * SPEC.hidden[k],
                )
                WIDTH: tl.constexpr = SPEC.hidden[k]
                WIDTH_PAD: tl.constexpr = SPEC.hidden_pad[k]
                _store_chunk_sum(
                    partial_ptr + gains,
                    tile_sums_ptr + SPEC.tile_sums.norm_gains[k],
                    program,
                    chunk_norm_tiles,
                    WIDTH,
                    WIDTH_PAD,
                    STRIDE,
                )
                _store_chunk_sum(
                    partial_ptr + norm_biases,
                    tile_sums_ptr + SPEC.tile_sums.norm_biases[k],
                    program,
                    chunk_norm_tiles,
                    WIDTH,
                    WIDTH_PAD,
                    STRIDE,
                )
    # The head's bias, log_std and the loss terms.
    if section == len(SPEC.hidden) - 1:
        output = tl.arange(0, SPEC.out_pad)
        bias = _sum_tiles(head_sums_ptr + SPEC.tile_sums.out_bias, chunk_head_tiles, SPEC.out_pad, STRIDE)
        offset = tl.where(output < SPEC.head_rows, SPEC.head_bias + output, SPEC.value_bias)
        tl.store(partial_ptr + offset, bias, mask=column_mask(output, tower, SPEC))
        if SPEC.log_std >= 0:
            log_std = _sum_tiles(head_sums_ptr + SPEC.tile_sums.log_std, chunk_head_tiles, SPEC.out_pad, STRIDE)
            tl.store(partial_ptr + SPEC.log_std + output, log_std, mask=(output < SPEC.head_rows) & (tower == 0))
        term = tl.arange(0, 16)
        terms = _sum_tiles(head_sums_ptr + SPEC.tile_sums.terms, chunk_head_tiles, 16, STRIDE)
        for k in tl.static_range(len(LOSS.towers)):
            if SPEC.shared or tower == LOSS.towers[k]:
                tl.store(partial_ptr + width - TERM_COLUMNS + term, terms, mask=term == k)


# LAYER NORMALIZATION
#
# x_hat = (z - mean) / sqrt(variance + epsilon) over a layer's units, y = gain x_hat + bias, h = f(y): Ba, Kiros &
# Hinton
# 2016. A program takes whole rows of one tower. Units beyond a layer's width are zero in z, and stay zero.
#
# | parameter     | shape                     | meaning                                                            |
# |---------------|---------------------------|--------------------------------------------------------------------|
# | z_ptr         | (towers, capacity, units) | pre-activations of the layer's product                             |
# | h_ptr         | (towers, capacity, units) | activations, written                                               |
# | grad_ptr      | (towers, capacity, units) | gradient in h, replaced by that in z                               |
# | params_ptr    | (P)                       | parameters                                                         |
# | truncated_ptr | (T, N)                    | read if TRUNCATED_ONLY: tiles without a truncated lane are skipped |
# | tile_sums_ptr | (towers, tiles, width)    | sums over a tile's rows, written; see `Spec.tile_sums`             |
# | first, count  | int                       | samples first ... first + count - 1 of the rollout are rows 0 ...  |
# | capacity      | int                       | rows of a tower in the buffers                                     |
# | units         |                           | padded width `SPEC.widths[LAYER]`                                  |


@triton.jit
def _load_standardized(z_ptr, offset, unit, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Load pre-activations of layer LAYER at `z_ptr` + `offset` (rows, units) and standardize each row; return x_hat
    (rows, units) and 1 / std (rows).
    """
    mask = (unit < SPEC.hidden[LAYER])[None, :]
    return standardize(tl.load(z_ptr + offset).to(tl.float32), mask, SPEC.norm_epsilon, SPEC.hidden[LAYER], True)


@triton.jit
def _load_gain_and_bias(params_ptr, unit, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Load gain and bias of a tower's layer normalization in layer LAYER, (units) each."""
    offset, mask = tower * SPEC.hidden[LAYER] + unit, unit < SPEC.hidden[LAYER]
    gain = tl.load(params_ptr + SPEC.norm_gains[LAYER] + offset, mask=mask, other=0.0)
    return gain, tl.load(params_ptr + SPEC.norm_biases[LAYER] + offset, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["first", "count", "first_tower"])
def normalize_layer(
    z_ptr,
    h_ptr,
    params_ptr,
    truncated_ptr,
    first_tower,
    first,
    count,
    capacity,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    TRUNCATED_ONLY: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write activations h = f(gain x_hat + bias) of layer LAYER, from its pre-activations z. Grid: (tiles of rows,
    towers - first_tower).
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    tower = first_tower + tl.program_id(1)
    row, unit = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, OUT)
    if needed(truncated_ptr, first + row, row < count, TRUNCATED_ONLY):
        offset = (tower * capacity + row)[:, None] * OUT + unit[None, :]
        x_hat, _inv_std = _load_standardized(z_ptr, offset, unit, SPEC, LAYER)
        gain, bias = _load_gain_and_bias(params_ptr, unit, tower, SPEC, LAYER)
        tl.store(h_ptr + offset, rounded_operand(activate(x_hat * gain[None, :] + bias[None, :], SPEC), SPEC))


@triton.jit(do_not_specialize=["tiles"])
def normalize_layer_backward(
    z_ptr,
    grad_ptr,
    params_ptr,
    tile_sums_ptr,
    capacity,
    tiles,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Replace the gradient in layer LAYER's activations h by that in its pre-activations z. Grid: (tiles of rows,
    towers).

    The gradients of gain, bias and the product's bias are summed over the tile's rows into `tile_sums_ptr`.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    tile, tower = tl.program_id(0), tl.program_id(1)
    row, unit = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, OUT)
    offset = (tower * capacity + row)[:, None] * OUT + unit[None, :]
    # Recompute y and f'(y).
    x_hat, inv_std = _load_standardized(z_ptr, offset, unit, SPEC, LAYER)
    gain, bias = _load_gain_and_bias(params_ptr, unit, tower, SPEC, LAYER)
    y = x_hat * gain[None, :] + bias[None, :]
    saved = saved_activation(y, rounded_operand(activate(y, SPEC), SPEC), SPEC)
    # dL / dy = dL / dh f'(y), then through the normalization.
    grad_y = tl.load(grad_ptr + offset).to(tl.float32) * activation_gradient(saved, SPEC)
    grad_z = layer_norm_backward(grad_y, x_hat, inv_std, gain[None, :], SPEC.hidden[LAYER], True)
    tl.store(grad_ptr + offset, rounded_operand(grad_z, SPEC))
    # Sums over the tile's rows.
    tile_sums_ptr += (tower * tiles + tile) * SPEC.tile_sums.width + unit
    tl.store(tile_sums_ptr + SPEC.tile_sums.norm_gains[LAYER], tl.sum(grad_y * x_hat, axis=0))
    tl.store(tile_sums_ptr + SPEC.tile_sums.norm_biases[LAYER], tl.sum(grad_y, axis=0))
    if LAYER > 0:
        tl.store(tile_sums_ptr + SPEC.tile_sums.biases[LAYER - 1], tl.sum(grad_z, axis=0))
