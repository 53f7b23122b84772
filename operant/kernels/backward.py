"""The Triton kernel of a loss's gradient: forward, loss and backward over tiles of a minibatch, each program into a row
of partial sums of its own.

A program takes one tower and one chunk of the minibatch, and keeps its sums of gradients in registers from the chunk's
first tile to its last. A row depends on its chunk alone, so it has the same bits whichever device computes it. While a
tile is computed the next one's samples are on their way, and the block numbers of the one after it. Knows no algorithm
and no optimizer: the loss is handed over as `operant.kernels.loss.Loss`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import (
    add_product,
    column_mask,
    compensated,
    feature_of,
    first_operand,
    forward,
    hidden_gradient,
    load_legal_mask,
    load_log_std,
    load_network,
    mask_illegal,
    normalize,
    one_hot,
    operand,
    product,
    zeros,
)
from operant.kernels.operands import chunk_begin

TERM_COLUMNS = tl.constexpr(32)
"""Columns behind the gradient's in a row of partial sums: the loss's terms, then zeros. A whole block of the reduction.
"""

# SAMPLES


@triton.jit
def _load_blocks(order, tile, count, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    """Which block of neighbouring lanes each row of a tile lies in, (rows). `order`: where the chunk's blocks begin;
    `count`: its samples.
    """
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    return tl.load(order + row // BLOCK, mask=row < count, other=0)


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
    """A tile's observations (rows, columns_pad), what the loss asks for, and which actions are legal (where all are:
    anything).
    """
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = row < count
    sample = block * BLOCK + row % BLOCK  # t N + n
    t = block // (lanes // BLOCK)
    feature = feature_of(tl.arange(0, SPEC.columns_pad), inputs.normalizer, SPEC)
    place = (sample + t * (SPEC.observation - 1) * lanes)[:, None] + feature[None, :] * lanes
    observed = tl.load(
        inputs.observation + place, mask=in_bounds[:, None] & (feature < SPEC.observation)[None, :], other=0
    )
    targets = LOSS.load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC)
    legal_mask = in_bounds
    if SPEC.legal:
        legal_mask = load_legal_mask(
            inputs.legal_mask, sample, t, in_bounds if SPEC.shared else in_bounds & (tower == 0), lanes, SPEC
        )
    return observed, targets, legal_mask


# GRADIENT


@triton.jit
def _zero_gradients(SPEC: tl.constexpr):
    """Sums to begin with: the first weight's, then of each later layer the weight's and the bias's, then the last
    weight's (H, out_pad), and of layer normalization each layer's gain's and bias's.
    """
    sums = (zeros(SPEC.hidden_pad[0], SPEC.columns_pad),)
    for k in tl.static_range(len(SPEC.weights)):
        sums = sums + (zeros(SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k]), zeros(SPEC.hidden_pad[k + 1], 16))
    sums = sums + (zeros(SPEC.hidden_pad[-1], SPEC.out_pad),)
    if SPEC.layer_norm:
        for k in tl.static_range(len(SPEC.hidden)):
            sums = sums + (zeros(SPEC.hidden_pad[k], 16), zeros(SPEC.hidden_pad[k], 16))
    return sums


@triton.jit
def _add_gradients(sums, gradient_out, x, ones, network, hidden, saved, SPEC: tl.constexpr):
    """Add a tile's gradients to the sums: dW = g^T h and db = g^T 1 of each layer, from the last to the first."""
    _first, weights, _biases, last, _last_bias, _gains, _shifts = network
    LAST: tl.constexpr = 1 + 2 * len(SPEC.weights)
    g = operand(gradient_out, SPEC)
    added = (add_product(tl.trans(hidden[-1]), g, sums[LAST], SPEC),)
    norms = ()
    gradient_hidden = product(g, last, SPEC)
    for k in tl.static_range(len(SPEC.weights) - 1, -1, -1):
        gradient_z, scaled, gradient_y = hidden_gradient(gradient_hidden, saved[k + 1], network, SPEC, k + 1)
        norms = _add_norm(sums, scaled, gradient_y, ones, SPEC, k + 1) + norms
        g = operand(gradient_z, SPEC)
        transposed = tl.trans(g)
        added = (
            add_product(transposed, hidden[k], sums[1 + 2 * k], SPEC),
            add_product(transposed, ones, sums[2 + 2 * k], SPEC),
        ) + added
        gradient_hidden = product(g, weights[k], SPEC)
    gradient_z, scaled, gradient_y = hidden_gradient(gradient_hidden, saved[0], network, SPEC, 0)
    norms = _add_norm(sums, scaled, gradient_y, ones, SPEC, 0) + norms
    g = operand(gradient_z, SPEC)
    return (add_product(tl.trans(g), operand(x, SPEC), sums[0], SPEC),) + added + norms


@triton.jit
def _add_norm(sums, scaled, gradient_y, ones, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """The sums of a layer's gain and bias with a tile's added; nothing without layer normalization."""
    if SPEC.layer_norm:
        GAIN: tl.constexpr = 2 + 2 * len(SPEC.weights) + 2 * LAYER
        gain = add_product(tl.trans(operand(scaled, SPEC)), ones, sums[GAIN], SPEC)
        return gain, add_product(tl.trans(operand(gradient_y, SPEC)), ones, sums[GAIN + 1], SPEC)
    else:
        return ()


# STORING


@triton.jit
def store_matrix(
    start, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROWS_PAD: tl.constexpr, COLUMNS_PAD: tl.constexpr
):
    """A matrix from a tile."""
    row, column = tl.arange(0, ROWS_PAD)[:, None], tl.arange(0, COLUMNS_PAD)[None, :]
    tl.store(start + row * COLUMNS + column, total, mask=(row < ROWS) & (column < COLUMNS))


@triton.jit
def store_first(target, total, tower, column, SPEC: tl.constexpr):
    """Columns (columns) of the first layer's gradient, (H, columns): the one behind the last is the bias's."""
    WIDTH: tl.constexpr = SPEC.hidden[0]
    row, column = tl.arange(0, SPEC.hidden_pad[0])[:, None], column[None, :]
    # Two stores, as `load_first` has two loads.
    tl.store(
        target + SPEC.first_weight + (tower * WIDTH + row) * SPEC.columns + column,
        total,
        mask=(row < WIDTH) & (column < SPEC.columns),
    )
    tl.store(
        target + SPEC.first_bias + tower * WIDTH + row + 0 * column,
        total,
        mask=(row < WIDTH) & (column == SPEC.columns),
    )


@triton.jit
def store_last(target, total, total_bias, tower, SPEC: tl.constexpr):
    """The last layer's gradient, (H, out_pad), and its bias's, (out_pad): the columns that this tower computes."""
    WIDTH: tl.constexpr = SPEC.hidden[-1]
    unit, column = tl.arange(0, SPEC.hidden_pad[-1])[:, None], tl.arange(0, SPEC.out_pad)
    mask = column_mask(column, tower, SPEC)
    is_head = column < SPEC.head_rows
    head = target + SPEC.head_weight + column[None, :] * WIDTH + unit
    value = target + SPEC.value_weight + 0 * column[None, :] + unit
    tl.store(tl.where(is_head[None, :], head, value), total, mask=mask[None, :] & (unit < WIDTH))
    tl.store(
        tl.where(is_head, target + SPEC.head_bias + column, target + SPEC.value_bias + 0 * column),
        total_bias,
        mask=mask,
    )


@triton.jit
def _store_hidden(target, sums, tower, SPEC: tl.constexpr):
    """The gradients of the first layer and of the layers behind it."""
    store_first(target, compensated(sums[0], 1, SPEC), tower, tl.arange(0, SPEC.columns_pad), SPEC)
    for k in tl.static_range(len(SPEC.weights)):
        place = target + SPEC.weights[k] + tower * (SPEC.hidden[k + 1] * SPEC.hidden[k])
        store_matrix(
            place,
            compensated(sums[1 + 2 * k], 2, SPEC),
            SPEC.hidden[k + 1],
            SPEC.hidden[k],
            SPEC.hidden_pad[k + 1],
            SPEC.hidden_pad[k],
        )
        bias = compensated(sums[2 + 2 * k], 1, SPEC)
        store_matrix(
            target + SPEC.biases[k] + tower * SPEC.hidden[k + 1],
            bias,
            SPEC.hidden[k + 1],
            1,
            SPEC.hidden_pad[k + 1],
            16,
        )
    if SPEC.layer_norm:
        for k in tl.static_range(len(SPEC.hidden)):
            gains, shifts = (
                target + SPEC.norm_gains[k] + tower * SPEC.hidden[k],
                target + SPEC.norm_biases[k] + tower * SPEC.hidden[k],
            )
            gain, shift = sums[2 + 2 * len(SPEC.weights) + 2 * k], sums[3 + 2 * len(SPEC.weights) + 2 * k]
            store_matrix(gains, compensated(gain, 1, SPEC), SPEC.hidden[k], 1, SPEC.hidden_pad[k], 16)
            store_matrix(shifts, compensated(shift, 1, SPEC), SPEC.hidden[k], 1, SPEC.hidden_pad[k], 16)


# THE KERNEL


@triton.jit(do_not_specialize=["minibatch"])
def backward(
    minibatch,
    inputs,
    samples,
    parameters,
    partial,
    lanes,
    width,
    SPEC: tl.constexpr,
    LOSS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A minibatch's gradient as rows of partial sums (chunks, width), each with sums of the loss's terms behind it:
    program 0 is the chunk, 1 the tower.
    """
    chunk, tower = tl.program_id(0), tl.program_id(1)
    begin, blocks = chunk_begin(minibatch, chunk)
    order, count = minibatch.order + begin, blocks * BLOCK
    network = load_network(parameters, tower, SPEC)
    read, column = tl.arange(0, SPEC.columns_pad), tl.arange(0, SPEC.out_pad)
    scalars = LOSS.load_scalars(samples)
    log_std = load_log_std(parameters, column, SPEC)
    ones = operand(tl.where(tl.arange(0, 16)[None, :] + 0 * tl.arange(0, BLOCK_M)[:, None] == 0, 1.0, 0.0), SPEC)
    scale = 1.0 / minibatch.samples

    # Sums over the chunk's tiles, in registers.
    sums = _zero_gradients(SPEC)
    bias_sums = zeros(BLOCK_M, SPEC.out_pad)
    log_std_sums = zeros(BLOCK_M, SPEC.out_pad)
    term_sums = ()
    for _ in tl.static_range(len(LOSS.towers)):
        term_sums = term_sums + (tl.sum(bias_sums, axis=1),)

    # The first tile's samples, and the block numbers of the second.
    tiles = tl.cdiv(count, BLOCK_M)
    block = _load_blocks(order, 0, count, BLOCK_M, BLOCK)
    observed, targets, legal_mask = _load_samples(
        block, 0, inputs, samples, tower, count, lanes, SPEC, LOSS, BLOCK_M, BLOCK
    )
    block = _load_blocks(order, 1, count, BLOCK_M, BLOCK)
    for tile in range(0, tiles):
        following = _load_samples(block, tile + 1, inputs, samples, tower, count, lanes, SPEC, LOSS, BLOCK_M, BLOCK)
        block = _load_blocks(order, tile + 2, count, BLOCK_M, BLOCK)

        x = first_operand(
            normalize(one_hot(observed, read, inputs.normalizer, SPEC), read, inputs.normalizer, SPEC), SPEC
        )
        out, hidden, saved = forward(x, network, SPEC)
        in_bounds = tile * BLOCK_M + tl.arange(0, BLOCK_M) < count
        out = mask_illegal(out, legal_mask, SPEC)
        gradient_out, gradient_log_std, terms = LOSS.gradient(
            out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC
        )
        gradient_out *= scale
        sums = _add_gradients(sums, gradient_out, x, ones, network, hidden, saved, SPEC)
        bias_sums += gradient_out
        if SPEC.log_std >= 0:
            log_std_sums += gradient_log_std
        added = ()
        for k in tl.static_range(len(LOSS.towers)):
            added = added + (term_sums[k] + terms[k],)
        term_sums = added
        observed, targets, legal_mask = following

    # Into the chunk's row: each tower its own columns.
    target = partial + chunk * width
    _store_hidden(target, sums, tower, SPEC)
    store_last(target, compensated(sums[1 + 2 * len(SPEC.weights)], 2, SPEC), tl.sum(bias_sums, axis=0), tower, SPEC)
    if SPEC.log_std >= 0:
        tl.store(
            target + SPEC.log_std + column,
            scale * tl.sum(log_std_sums, axis=0),
            mask=(column < SPEC.head_rows) & (tower == 0),
        )
    for k in tl.static_range(len(LOSS.towers)):
        if SPEC.shared or tower == LOSS.towers[k]:
            tl.store(target + width - TERM_COLUMNS + k, scale * tl.sum(term_sums[k], axis=0))
