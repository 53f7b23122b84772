"""Triton kernels of the matrix products around recurrent cells, over rows: input projections, gradients of inputs,
gradients of weights and biases.

Weights are *packed* first: each gate's matrix is copied, zero-padded to (P, P), in the type of a product's operand. A
chunk is the part of a minibatch whose gradients are added to one row of partial sums. Rows of a chunk are contiguous
and tiles divide them, so only the edges of weights are masked.

| parameter  | shape           | meaning                                                              |
|------------|-----------------|----------------------------------------------------------------------|
| params_ptr | flat            | parameter vector of the policy                                       |
| packed_ptr | (L, 2, K P, P)  | packed weights of all layers: input's, then recurrent ones           |
| weight_ptr | (K P, P)        | packed weights of one layer                                          |
| x_ptr      | (rows, P)       | input of the layer                                                   |
| gates_ptr  | (rows, columns) | input projections; in the backward pass gradients of pre-activations |
| bias_ptr   | (K, M)          | biases of the input weights                                          |
| grad_x_ptr | (rows, P)       | gradient of the input                                                |
| saved_ptr  | (rows, P)       | saved tensor of the activation below                                 |

Shape letters: L layers, K gates, M units, P padded units.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.activation import activation_gradient
from operant.kernels.ops.linear import add_product, add_tile_product, rounded_operand, zeros
from operant.kernels.packing import needed


@triton.jit
def pack_weights(params_ptr, packed_ptr, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """Pack the weights of all layers. Program axes: BLOCK rows, layer, input's (0) or recurrent (1) weight."""
    row, column = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None], tl.arange(0, SHAPE.pad)[None, :]
    gate, unit = row // SHAPE.pad, row % SHAPE.pad
    source = (gate * SHAPE.units + unit) * SHAPE.units + column
    mask = (unit < SHAPE.units) & (column < SHAPE.units)
    target = (
        packed_ptr + (tl.program_id(1) * SHAPE.matrices + tl.program_id(2)) * SHAPE.matrix + row * SHAPE.pad + column
    )
    LAYERS: tl.constexpr = SHAPE.layers
    for k in tl.static_range(LAYERS):
        if tl.program_id(1) == k:
            if tl.program_id(2) == 0:
                weight = tl.load(params_ptr + SHAPE.input_weights[k] + source, mask=mask, other=0.0)
                tl.store(target, rounded_operand(weight, SHAPE))
            elif SHAPE.matrices > 1:
                weight = tl.load(params_ptr + SHAPE.state_weights[k] + source, mask=mask, other=0.0)
                tl.store(target, rounded_operand(weight, SHAPE))


@triton.jit(do_not_specialize=["count"])
def project_inputs(
    seq,
    x_ptr,
    weight_ptr,
    bias_ptr,
    gates_ptr,
    count,
    SHAPE: tl.constexpr,
    FINALS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute input projections W x + b: x (rows, P) to (rows, columns). With FINALS only tiles with a truncated lane.

    Program axes: tile of outputs, tile of rows.
    """
    row, column = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if needed(seq.truncated, seq.sample + row, row < count, FINALS):
        unit = column % SHAPE.pad
        bias = tl.load(bias_ptr + column // SHAPE.pad * SHAPE.units + unit, mask=unit < SHAPE.units, other=0.0)
        start = zeros(BLOCK_M, BLOCK_N) + bias[None, :]
        total = add_tile_product(x_ptr, weight_ptr, row, column, start, SHAPE, SHAPE.pad, BLOCK_K)
        tl.store(gates_ptr + row[:, None] * SHAPE.columns + column[None, :], rounded_operand(total, SHAPE))


@triton.jit
def input_gradient(
    gates_ptr,
    weight_ptr,
    added_ptr,
    saved_ptr,
    grad_x_ptr,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    ADD: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute the gradient of the input grad_x = W^T g (rows, P), g the gradients of the pre-activations in
    `gates_ptr`.

    ADD: plus `added_ptr` (rows, P). ACTIVATION: times the activation's derivative below. Program axes: tile of units,
    tile of rows.
    """
    row, column = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total, k = zeros(BLOCK_M, BLOCK_N), tl.arange(0, BLOCK_K)
    g = gates_ptr + row[:, None] * SHAPE.columns + k[None, :]
    weight = weight_ptr + column[None, :] + k[:, None] * SHAPE.pad
    for start in range(0, SHAPE.gates * SHAPE.pad, BLOCK_K):
        total = add_product(tl.load(g + start), tl.load(weight + start * SHAPE.pad), total, SHAPE)
    offset = row[:, None] * SHAPE.pad + column[None, :]
    if ADD:
        total += tl.load(added_ptr + offset).to(tl.float32)
    if ACTIVATION:
        total *= activation_gradient(tl.load(saved_ptr + offset), SPEC)
    tl.store(grad_x_ptr + offset, rounded_operand(total, SHAPE))


@triton.jit(do_not_specialize=["slot"])
def weight_gradient(
    gates_ptr,
    right_ptr,
    grad_weight_ptr,
    grad_bias_ptr,
    slot,
    width,
    SHAPE: tl.constexpr,
    BIASES: tl.constexpr,
    RECURRENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sum the weight gradient g^T x of a recurrent layer, (K M, M), over each chunk of `slot` rows: one row of partial
    sums for each, `width` apart. g are the gates' gradients, x the layer's inputs or states at `right_ptr`.

    `right_ptr` (rows, P): x, the layer's input, or with RECURRENT its previous states. BIASES: also the bias gradient,
    the sum of g; with RECURRENT that of a GRU's b_n. Program axes: tile of the weight, chunk.
    """
    PAD: tl.constexpr = SHAPE.pad
    chunk = tl.program_id(1)
    row, column = (
        tl.program_id(0) // (PAD // BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M),
        tl.program_id(0) % (PAD // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N),
    )
    gate, unit = row // PAD, row % PAD
    # A GRU's n has two gradients: of its input projection (column 2), and of W_n h + b_n (column 3).
    gate_column = row + tl.where(gate == 2, PAD, 0) if RECURRENT and SHAPE.kind == "gru" else row
    k = tl.arange(0, BLOCK_K)
    sample = chunk.to(tl.int64) * slot + k
    g = gates_ptr + gate_column[:, None] + sample[None, :] * SHAPE.columns
    x = right_ptr + column[None, :] + sample[:, None] * PAD
    ones = rounded_operand(zeros(BLOCK_K, 16) + 1.0, SHAPE)
    total, bias_total = zeros(BLOCK_M, BLOCK_N), zeros(BLOCK_M, 16)
    for step in range(0, slot // BLOCK_K):
        gradient = tl.load(g + step * BLOCK_K * SHAPE.columns)
        total = add_product(gradient, tl.load(x + step * BLOCK_K * PAD), total, SHAPE)
        if BIASES:
            bias_total = add_product(gradient, ones, bias_total, SHAPE)
    in_bounds, offset = unit < SHAPE.units, ((gate * SHAPE.units + unit) * SHAPE.units)[:, None] + column[None, :]
    tl.store(grad_weight_ptr + chunk * width + offset, total, mask=in_bounds[:, None] & (column < SHAPE.units)[None, :])
    if BIASES:
        grad_bias_ptr += chunk * width
        bias = tl.max(tl.where((tl.arange(0, 16) == 0)[None, :], bias_total, -float("inf")), axis=1)
        if RECURRENT:  # b_n of a GRU
            tl.store(grad_bias_ptr + unit, bias, mask=in_bounds & (gate == 2))
        else:
            tl.store(grad_bias_ptr + gate * SHAPE.units + unit, bias, mask=in_bounds)


@triton.jit(do_not_specialize=["slot"])
def bias_gradient(gradient_ptr, grad_bias_ptr, slot, width, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """Sum the gradient (rows, P) of the layer below over each chunk of `slot` rows, `width` apart, to its bias
    gradient.

    Program axis: chunk.
    """
    chunk, unit = tl.program_id(0), tl.arange(0, SHAPE.pad)
    offset = (chunk.to(tl.int64) * slot + tl.arange(0, BLOCK))[:, None] * SHAPE.pad + unit[None, :]
    total = zeros(BLOCK, SHAPE.pad)
    for step in range(0, slot // BLOCK):
        total += tl.load(gradient_ptr + offset + step * BLOCK * SHAPE.pad).to(tl.float32)
    tl.store(grad_bias_ptr + chunk * width + unit, tl.sum(total, axis=0), mask=unit < SHAPE.units)
