"""Triton kernels of the products around recurrent cells, over rows: into gates, back out of them, and the weights'
gradients. Know no cell and no loss.

Weights are packed before they are used: zero beyond their width, and as products take them. Rows of a chunk lie one
after the other, and tiles divide them, so nothing is masked but what is outside of a weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.packing import needed
from operant.kernels.recurrent import cells

add_dot, stored, activation_gradient, zeros = cells.add_dot, cells.stored, cells.activation_gradient, cells.zeros


@triton.jit
def pack_weights(parameters, packed, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """All weights of the memory, (K P, P) each, a layer's recurrent ones behind its input's: program 0 takes BLOCK
    rows, 1 is the layer, 2 which of the two.
    """
    row, column = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None], tl.arange(0, SHAPE.pad)[None, :]
    gate, unit = row // SHAPE.pad, row % SHAPE.pad
    place = (gate * SHAPE.units + unit) * SHAPE.units + column
    mask = (unit < SHAPE.units) & (column < SHAPE.units)
    target = packed + (tl.program_id(1) * SHAPE.matrices + tl.program_id(2)) * SHAPE.matrix + row * SHAPE.pad + column
    LAYERS: tl.constexpr = SHAPE.layers
    for k in tl.static_range(LAYERS):
        if tl.program_id(1) == k:
            if tl.program_id(2) == 0:
                tl.store(
                    target, stored(tl.load(parameters + SHAPE.input_weights[k] + place, mask=mask, other=0.0), SHAPE)
                )
            elif SHAPE.matrices > 1:
                tl.store(
                    target, stored(tl.load(parameters + SHAPE.state_weights[k] + place, mask=mask, other=0.0), SHAPE)
                )


@triton.jit
def _row_tiles(
    left,
    weights,
    row,
    column,
    total,
    LEFT: tl.constexpr,
    DEEP: tl.constexpr,
    ACROSS: tl.constexpr,
    DOWN: tl.constexpr,
    SHAPE: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Total + a tile of rows (., DEEP), LEFT numbers apart, times weights whose columns and depths are ACROSS and DOWN
    numbers apart.
    """
    depth = tl.arange(0, BLOCK_K)
    a, b = left + row[:, None] * LEFT + depth[None, :], weights + column[None, :] * ACROSS + depth[:, None] * DOWN
    for start in range(0, DEEP, BLOCK_K):
        total = add_dot(tl.load(a + start), tl.load(b + start * DOWN), total, SHAPE)
    return total


@triton.jit(do_not_specialize=["count"])
def into_gates(
    where,
    x,
    packed,
    biases,
    gates,
    count,
    SHAPE: tl.constexpr,
    FINALS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """What a layer's input (rows, P) adds to its gates (rows, columns), biases included; with FINALS only where tiles
    hold a truncated lane.

    Program 0 counts tiles of outputs, 1 of rows.
    """
    row, column = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if needed(where.truncated, where.sample + row, row < count, FINALS):
        unit = column % SHAPE.pad
        bias = tl.load(biases + column // SHAPE.pad * SHAPE.units + unit, mask=unit < SHAPE.units, other=0.0)
        total = _row_tiles(
            x,
            packed,
            row,
            column,
            zeros(BLOCK_M, BLOCK_N) + bias[None, :],
            SHAPE.pad,
            SHAPE.pad,
            SHAPE.pad,
            1,
            SHAPE,
            BLOCK_K,
        )
        tl.store(gates + row[:, None] * SHAPE.columns + column[None, :], stored(total, SHAPE))


@triton.jit
def out_of_gates(
    gates,
    packed,
    added,
    saved,
    by_features,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    ADD: tl.constexpr,
    SLOPE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The gradient in a layer's input (rows, P) from those in what it adds to the gates; with ADD more of it, with
    SLOPE through the activation below.
    """
    row, column = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = _row_tiles(
        gates,
        packed,
        row,
        column,
        zeros(BLOCK_M, BLOCK_N),
        SHAPE.columns,
        SHAPE.gates * SHAPE.pad,
        1,
        SHAPE.pad,
        SHAPE,
        BLOCK_K,
    )
    place = row[:, None] * SHAPE.pad + column[None, :]
    if ADD:
        total += tl.load(added + place).to(tl.float32)
    if SLOPE:
        total *= activation_gradient(tl.load(saved + place), SPEC)
    tl.store(by_features + place, stored(total, SHAPE))


@triton.jit(do_not_specialize=["slot"])
def gate_weight_gradient(
    gates,
    right,
    weights,
    biases,
    slot,
    width,
    SHAPE: tl.constexpr,
    BIASES: tl.constexpr,
    RECURRENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The gradient of a layer's weight (K M, M) of each chunk, into `weights`, and with BIASES of its biases into
    `biases`, chunks `width` numbers apart.

    `right` (rows, P) is what the weight was multiplied with: the layer's input or, with RECURRENT, its states. Program
    1 counts chunks.
    """
    PAD: tl.constexpr = SHAPE.pad
    program = tl.program_id(1)
    row, column = (
        tl.program_id(0) // (PAD // BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M),
        tl.program_id(0) % (PAD // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N),
    )
    gate, unit = row // PAD, row % PAD
    # A GRU's n has two gradients: of its input, and of W h + b.
    shifted = row + tl.where(gate == 2, PAD, 0) if RECURRENT and SHAPE.kind == "gru" else row
    depth = tl.arange(0, BLOCK_K)
    first = program.to(tl.int64) * slot + depth
    a, b = gates + shifted[:, None] + first[None, :] * SHAPE.columns, right + column[None, :] + first[:, None] * PAD
    ones = stored(zeros(BLOCK_K, 16) + 1.0, SHAPE)
    total, bias_total = zeros(BLOCK_M, BLOCK_N), zeros(BLOCK_M, 16)
    for step in range(0, slot // BLOCK_K):
        gradient = tl.load(a + step * BLOCK_K * SHAPE.columns)
        total = add_dot(gradient, tl.load(b + step * BLOCK_K * PAD), total, SHAPE)
        if BIASES:
            bias_total = add_dot(gradient, ones, bias_total, SHAPE)
    inside, place = unit < SHAPE.units, ((gate * SHAPE.units + unit) * SHAPE.units)[:, None] + column[None, :]
    tl.store(weights + program * width + place, total, mask=inside[:, None] & (column < SHAPE.units)[None, :])
    if BIASES:
        biases += program * width
        bias = tl.max(tl.where((tl.arange(0, 16) == 0)[None, :], bias_total, -float("inf")), axis=1)
        if RECURRENT:  # of a GRU's n alone
            tl.store(biases + unit, bias, mask=inside & (gate == 2))
        else:
            tl.store(biases + gate * SHAPE.units + unit, bias, mask=inside)


@triton.jit(do_not_specialize=["slot"])
def sum_rows(gradient, biases, slot, width, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient of the bias of the layer below, (rows, P), summed over each chunk's rows into `biases`, chunks
    `width` numbers apart.
    """
    program, unit = tl.program_id(0), tl.arange(0, SHAPE.pad)
    place = (program.to(tl.int64) * slot + tl.arange(0, BLOCK))[:, None] * SHAPE.pad + unit[None, :]
    total = zeros(BLOCK, SHAPE.pad)
    for step in range(0, slot // BLOCK):
        total += tl.load(gradient + place + step * BLOCK * SHAPE.pad).to(tl.float32)
    tl.store(biases + program * width + unit, tl.sum(total, axis=0), mask=unit < SHAPE.units)
