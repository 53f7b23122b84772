"""Triton kernels of a network a layer at a time, for weights that no single program can hold: tiles of BLOCK_M x
BLOCK_N, summed over steps of BLOCK_K.

Samples go through in microbatches. A microbatch's activations lie in buffers (towers, capacity, padded width),
sample-major, as products take them, and weights are packed likewise before they are used: so no product needs a mask,
and the backward one is the forward one of other operands. In an update a microbatch holds whole chunks, each in a slot
of as many rows; rows of a slot beyond its chunk's end have zero gradients. Every sum's order comes from places alone:
rows within a tile, tiles within a chunk. Know no algorithm and no optimizer: the loss is handed over as
`operant.kernels.loss.Loss`.

Layers are numbered from 0; layer L is the distribution's and the value's. `tile_sums` (towers, tiles,
SPEC.tile_sums.width) holds of each tile of rows the gradients of the biases of layers 1 to L and of log_std, and the
terms of the loss; layer L's tiles may have fewer rows than the other layers'.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.backward import TERM_COLUMNS
from operant.kernels.blocks import (
    activate,
    activation_gradient,
    column_mask,
    load_legal_mask,
    load_log_std,
    mask_illegal,
    operand,
    out_bias,
    saved_activation,
    zeros,
)
from operant.kernels.operands import add_dot, chunk_begin, needed, read, read_tile, stored, tile_of, weight_place

# FORWARD


@triton.jit(do_not_specialize=["first", "count", "first_tower"])
def forward_layer(
    buffers,
    parameters,
    normalizer,
    truncated,
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
    """A layer's activations, and with SAVE what their gradients need beside them. Program 0 counts tiles, one row of
    them after the other.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    IN: tl.constexpr = SPEC.inputs[LAYER]
    tower = first_tower + tl.program_id(1)
    row = tl.program_id(0) // (OUT // BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % (OUT // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    if needed(truncated, first + row, row < count, TRUNCATED_ONLY):
        # z = W x + b; layer 0's bias is a column of its weight.
        weights, z = buffers.weights + tower * OUT * IN, zeros(BLOCK_M, BLOCK_N)
        if LAYER > 0:
            bias = parameters + SPEC.biases[LAYER - 1] + tower * SPEC.hidden[LAYER] + column
            z += tl.load(bias, mask=column < SPEC.hidden[LAYER], other=0.0)[None, :]
        if LAYER == 0 and SPEC.bytes:
            z = read_tile(buffers.source, normalizer, weights, row, column, z, SPEC, IN, BLOCK_K)
        else:
            source = buffers.source
            if LAYER > 0:
                source += tower * capacity * IN
            z = tile_of(source, weights, row, column, z, SPEC, IN, BLOCK_K)
        # The activation f(z), which layer normalization leaves to `normalize_layer`.
        place = (tower * capacity + row)[:, None] * OUT + column[None, :]
        if SPEC.layer_norm:
            tl.store(buffers.saved + place, operand(z, SPEC))
        else:
            h = stored(activate(z, SPEC), SPEC)
            tl.store(buffers.hidden + place, h)
            if SAVE:
                tl.store(buffers.saved + place, saved_activation(z, h, SPEC))


@triton.jit
def _outputs(
    hidden, packed, parameters, row, tower, capacity, SPEC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Layer L's outputs, (rows, out_pad)."""
    IN: tl.constexpr = SPEC.inputs[-1]
    column = tl.arange(0, SPEC.out_pad)
    weights = packed + SPEC.packed[2 * len(SPEC.hidden) - 2] + tower * SPEC.out_pad * IN
    begin = zeros(BLOCK_M, SPEC.out_pad) + out_bias(parameters, tower, SPEC)[None, :]
    return tile_of(hidden + tower * capacity * IN, weights, row, column, begin, SPEC, IN, BLOCK_K)


@triton.jit(do_not_specialize=["t", "first", "count"])
def act_head(
    hidden,
    packed,
    parameters,
    legal_mask,
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
    """What `SAMPLE`, a function like `operant.kernels.act.sample_and_store`, makes of the outputs of lanes first, first
    + 1, ... at step t.
    """
    tower = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    out = _outputs(hidden, packed, parameters, row, tower, capacity, SPEC, BLOCK_M, BLOCK_K)
    SAMPLE(out, first + row, row < count, legal_mask, acting, parameters, tower, t, lanes, SPEC)


@triton.jit(do_not_specialize=["first", "count"])
def value_head(
    hidden,
    packed,
    parameters,
    truncated,
    legal_mask,
    value,
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
    """V of samples first, first + 1, ..., with TRUNCATED_ONLY of those alone whose lane was truncated.

    `VALUE` is a function like `operant.kernels.act.state_value`.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask = row < count
    if TRUNCATED_ONLY:
        mask = tl.load(truncated + first + row, mask=mask, other=0) != 0
    if tl.sum(mask.to(tl.int32), axis=0) > 0:
        out = _outputs(hidden, packed, parameters, row, 0 if SPEC.shared else 1, capacity, SPEC, BLOCK_M, BLOCK_K)
        sample = first + row
        judged = mask & (not TRUNCATED_ONLY)
        tl.store(value + sample, VALUE(out, legal_mask, sample, sample // lanes, judged, lanes, SPEC), mask=mask)


# BACKWARD


@triton.jit(do_not_specialize=["minibatch", "first_chunk", "slot", "tiles"])
def backward_head(
    minibatch,
    inputs,
    samples,
    parameters,
    buffers,
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
    """The loss of a tile of rows, its gradient in layer L's outputs and in what layer L - 1 computes before its
    activation.

    Each chunk from `first_chunk` on has `slot` rows; `tiles`: of a tower in `tile_sums`.
    """
    IN: tl.constexpr = SPEC.inputs[-1]
    OUT: tl.constexpr = SPEC.out_pad
    tile, tower = tl.program_id(0), tl.program_id(1)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    # The tile's samples: `offset` rows into their chunk.
    begin, blocks = chunk_begin(minibatch, first_chunk + tile * BLOCK_M // slot)
    offset = tl.multiple_of(tile * BLOCK_M % slot, BLOCK_M) + tl.arange(0, BLOCK_M)
    in_bounds = offset < blocks * BLOCK
    block = tl.load(minibatch.order + begin + offset // BLOCK, mask=in_bounds, other=0)
    sample, t = block * BLOCK + offset % BLOCK, block // (lanes // BLOCK)
    targets = LOSS.load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC)
    # The loss of the outputs, and its gradient.
    out = _outputs(buffers.hidden, buffers.packed, parameters, row, tower, capacity, SPEC, BLOCK_M, BLOCK_K)
    output = tl.arange(0, OUT)
    log_std = load_log_std(parameters, output, SPEC)
    legal_mask = in_bounds
    if SPEC.legal:
        legal_mask = load_legal_mask(
            inputs.legal_mask, sample, t, in_bounds if SPEC.shared else in_bounds & (tower == 0), lanes, SPEC
        )
    gradient_out, gradient_log_std, terms = LOSS.gradient(
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
    gradient_out *= scale
    tile_sums = buffers.tile_sums + (tower * tiles + tile) * SPEC.tile_sums.width
    tl.store(tile_sums + SPEC.tile_sums.out_bias + output, tl.sum(gradient_out, axis=0))
    tl.store(tile_sums + SPEC.tile_sums.log_std + output, scale * tl.sum(gradient_log_std, axis=0))
    for k in tl.static_range(len(LOSS.towers)):
        tl.store(tile_sums + SPEC.tile_sums.terms + k, scale * tl.sum(terms[k], axis=0))

    # Back through layer L, BLOCK_N of its inputs at a time: (g W) f'(z), or before layer normalization g W alone.
    g = stored(gradient_out, SPEC)
    tl.store(buffers.gradient_out + (tower * capacity + row)[:, None] * OUT + output[None, :], g)
    transposed = buffers.packed + SPEC.packed[2 * len(SPEC.hidden) - 1] + tower * IN * OUT + output[:, None]
    for start in range(0, IN, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        place = (tower * capacity + row)[:, None] * IN + column[None, :]
        gradient_in = add_dot(g, tl.load(transposed + column[None, :] * OUT), zeros(BLOCK_M, BLOCK_N), SPEC)
        if not SPEC.layer_norm:
            gradient_in *= activation_gradient(tl.load(buffers.saved + place), SPEC)
        tl.store(buffers.gradient_in + place, stored(gradient_in, SPEC))
        if len(SPEC.hidden) > 1 and not SPEC.layer_norm:
            tl.store(tile_sums + SPEC.tile_sums.biases[len(SPEC.hidden) - 2] + column, tl.sum(gradient_in, axis=0))


@triton.jit(do_not_specialize=["tiles"])
def backward_layer(
    gradient_out,
    packed,
    saved,
    gradient_in,
    tile_sums,
    capacity,
    tiles,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """From the gradient in what a layer computes before its activation (rows, outputs) to that of the layer below it
    (rows, inputs).
    """
    IN: tl.constexpr = SPEC.inputs[LAYER]
    OUT: tl.constexpr = SPEC.widths[LAYER]
    tower = tl.program_id(1)
    tile = tl.program_id(0) // (IN // BLOCK_N)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % (IN // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    # (g W) f'(z), or before layer normalization g W alone.
    weights = packed + SPEC.packed[2 * LAYER - 1] + tower * IN * OUT
    gradient = tile_of(
        gradient_out + tower * capacity * OUT, weights, row, column, zeros(BLOCK_M, BLOCK_N), SPEC, OUT, BLOCK_K
    )
    place = (tower * capacity + row)[:, None] * IN + column[None, :]
    if not SPEC.layer_norm:
        gradient *= activation_gradient(tl.load(saved + place), SPEC)
    tl.store(gradient_in + place, stored(gradient, SPEC))
    if LAYER > 1 and not SPEC.layer_norm:
        tl.store(
            tile_sums + (tower * tiles + tile) * SPEC.tile_sums.width + SPEC.tile_sums.biases[LAYER - 2] + column,
            tl.sum(gradient, axis=0),
        )


# SUMS OVER A CHUNK'S SAMPLES


@triton.jit(do_not_specialize=["first_chunk", "slot"])
def weight_gradient(
    left,
    right,
    normalizer,
    partial,
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
    """A layer's weight gradient of each chunk, into its row of `partial`: its gradients (rows, outputs)^T times what it
    read (rows, inputs).

    Program 1 counts chunks from `first_chunk` on, of `slot` rows each. BLOCK_M divides the outputs; BLOCK_N need not
    divide the inputs of layer 0.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    IN: tl.constexpr = SPEC.inputs[LAYER]
    program, tower = tl.program_id(1), tl.program_id(2)
    ACROSS: tl.constexpr = (IN + BLOCK_N - 1) // BLOCK_N
    unit = tl.program_id(0) // ACROSS * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % ACROSS * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    left += tower * capacity * OUT
    if LAYER > 0:
        right += tower * capacity * IN
    a = left + unit[:, None] + depth[None, :] * OUT
    b = right + column[None, :] + depth[:, None] * IN
    # dW = g^T x over the chunk's rows.
    steps = slot // BLOCK_K
    total = zeros(BLOCK_M, BLOCK_N)
    for step in range(program * steps, program * steps + steps):
        if LAYER == 0 and SPEC.bytes:
            total = add_dot(
                tl.load(a + step * BLOCK_K * OUT),
                read(right, step * BLOCK_K + depth, column, normalizer, SPEC),
                total,
                SPEC,
            )
        elif IN % BLOCK_N == 0:
            total = add_dot(tl.load(a + step * BLOCK_K * OUT), tl.load(b + step * BLOCK_K * IN), total, SPEC)
        else:
            total = add_dot(
                tl.load(a + step * BLOCK_K * OUT),
                tl.load(b + step * BLOCK_K * IN, mask=(column < IN)[None, :], other=0.0),
                total,
                SPEC,
            )
    place, mask = weight_place(unit[:, None], column[None, :], tower, SPEC, LAYER)
    tl.store(partial + (first_chunk + program) * width + place, total, mask=mask)


@triton.jit
def _sum_tiles(tile_sums, tiles, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """A chunk's tiles' sums added up, (WIDTH), 16 tiles at a time."""
    column = tl.arange(0, WIDTH)
    total = zeros(16, WIDTH)
    for first in range(0, tiles, 16):
        tile = first + tl.arange(0, 16)
        total += tl.load(tile_sums + tile[:, None] * STRIDE + column[None, :], mask=(tile < tiles)[:, None], other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _store_chunk_sum(place, tile_sums, chunk, tiles, WIDTH: tl.constexpr, PAD: tl.constexpr, STRIDE: tl.constexpr):
    """The sums (WIDTH) over a chunk's `tiles` tiles, into its row."""
    unit = tl.arange(0, PAD)
    tl.store(place + unit, _sum_tiles(tile_sums + chunk * tiles * STRIDE, tiles, PAD, STRIDE), mask=unit < WIDTH)


@triton.jit(do_not_specialize=["first_chunk", "tiles", "chunk_tiles", "chunk_head_tiles", "chunk_norm_tiles"])
def add_tile_sums(
    tile_sums,
    partial,
    first_chunk,
    tiles,
    chunk_tiles,
    chunk_head_tiles,
    chunk_norm_tiles,
    width,
    SPEC: tl.constexpr,
    LOSS: tl.constexpr,
):
    """What tiles of rows have summed, into the rows of their chunks: program 0 is the chunk, 1 the tower, 2 the section
    of `tile_sums`.

    A chunk has so many tiles: of the layers, of the head, of layer normalization.
    """
    program, tower, section = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    STRIDE: tl.constexpr = SPEC.tile_sums.width
    tile_sums += tower * tiles * STRIDE
    head_sums = tile_sums + program * chunk_head_tiles * STRIDE
    partial += (first_chunk + program) * width
    # Biases of layers 1 to L - 1, a section each; the last one's are the head's tiles' work, or all are layer
    # normalization's.
    for k in tl.static_range(len(SPEC.hidden) - 1):
        if section == k:
            count = (
                chunk_norm_tiles if SPEC.layer_norm else chunk_head_tiles if k == len(SPEC.hidden) - 2 else chunk_tiles
            )
            place = partial + SPEC.biases[k] + tower * SPEC.hidden[k + 1]
            _store_chunk_sum(
                place,
                tile_sums + SPEC.tile_sums.biases[k],
                program,
                count,
                SPEC.hidden[k + 1],
                SPEC.hidden_pad[k + 1],
                STRIDE,
            )
    # Layer normalization's gains and biases, a section a layer.
    if SPEC.layer_norm:
        for k in tl.static_range(len(SPEC.hidden)):
            if section == len(SPEC.hidden) + k:
                gains, biases = (
                    SPEC.norm_gains[k] + tower * SPEC.hidden[k],
                    SPEC.norm_biases[k] + tower * SPEC.hidden[k],
                )
                WIDTH: tl.constexpr = SPEC.hidden[k]
                PAD: tl.constexpr = SPEC.hidden_pad[k]
                _store_chunk_sum(
                    partial + gains,
                    tile_sums + SPEC.tile_sums.norm_gains[k],
                    program,
                    chunk_norm_tiles,
                    WIDTH,
                    PAD,
                    STRIDE,
                )
                _store_chunk_sum(
                    partial + biases,
                    tile_sums + SPEC.tile_sums.norm_biases[k],
                    program,
                    chunk_norm_tiles,
                    WIDTH,
                    PAD,
                    STRIDE,
                )
    # Layer L's bias, log_std and the loss's terms.
    if section == len(SPEC.hidden) - 1:
        output = tl.arange(0, SPEC.out_pad)
        bias = _sum_tiles(head_sums + SPEC.tile_sums.out_bias, chunk_head_tiles, SPEC.out_pad, STRIDE)
        place = tl.where(output < SPEC.head_rows, SPEC.head_bias + output, SPEC.value_bias)
        tl.store(partial + place, bias, mask=column_mask(output, tower, SPEC))
        if SPEC.log_std >= 0:
            log_std = _sum_tiles(head_sums + SPEC.tile_sums.log_std, chunk_head_tiles, SPEC.out_pad, STRIDE)
            tl.store(partial + SPEC.log_std + output, log_std, mask=(output < SPEC.head_rows) & (tower == 0))
        term = tl.arange(0, 16)
        terms = _sum_tiles(head_sums + SPEC.tile_sums.terms, chunk_head_tiles, 16, STRIDE)
        for k in tl.static_range(len(LOSS.towers)):
            if SPEC.shared or tower == LOSS.towers[k]:
                tl.store(partial + width - TERM_COLUMNS + term, terms, mask=term == k)
