"""Triton kernels of recurrent cells over segments: forward pass and backpropagation through time.

A program owns BLOCK_B sequences for all their steps and keeps the recurrent state in registers.

- MinGRU: the gates do not depend on the state. They are computed before by `projections.project_inputs`, or here with
  SHAPE.fused, in the backward pass again.
- GRU and LSTM: a program holds the recurrent weights (SHAPE.resident), or streams them from memory at every step in
  blocks of SHAPE.block_k units.

Parameters of all kernels; a *row* is a step of a lane (see `cells`), P the padded units:

| parameter       | shape           | meaning                                                                      |
|-----------------|-----------------|------------------------------------------------------------------------------|
| seq             | Sequences       | lanes, steps and initial states of the sequences                             |
| x_ptr           | (rows, P)       | input of the layer                                                           |
| gates_ptr       | (rows, columns) | input projections; then gates (saved); then, in the backward pass, gradients |
| weight_ptr      | (gates, P, P)   | packed weights: MinGRU's of the input, otherwise the recurrent ones          |
| bias_ptr        | (gates, M)      | biases of MinGRU's input weights; of a GRU b_n of the recurrent ones, (M)    |
| output_ptr      | (rows, P)       | outputs of the layer                                                         |
| previous_ptr    | (rows, P)       | h_{t-1} (of an LSTM's backward pass c_{t-1}), 0 where an episode begins      |
| grad_output_ptr | (rows, P)       | gradient of the outputs                                                      |
| grad_x_ptr      | (rows, P)       | gradient of the inputs                                                       |
| saved_ptr       | (rows, P)       | saved tensor of the activation below                                         |
| count           |                 | sequences                                                                    |
| lanes           |                 | N                                                                            |
| layer           |                 | index of the layer in the recurrent state                                    |

ACT: one step of all lanes with the current states, nothing saved. WRITE: store the final states. FINALS: truncated
lanes only. The outputs h and c of a step are recomputed in the backward pass from what is saved.

Loops over steps are not pipelined by the compiler (`num_stages=1`): every step loads the operands of the next one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.activation import activation_gradient, sigmoid, tanh
from operant.kernels.ops.linear import add_product, rounded_operand, zeros
from operant.kernels.recurrent.cells import (
    gru_step,
    load_gate_bias,
    load_gate_weight,
    load_gate_weight_transposed,
    load_keep,
    lstm_gates,
    lstm_step,
    lstm_step_backward,
    mingru_gates,
    mingru_step,
    sequence_index,
    sequence_mask,
    state_offset,
)

# SEQUENCES AND GATES


@triton.jit
def _sequences(seq, count, lanes, SHAPE: tl.constexpr, ACT: tl.constexpr, FINALS: tl.constexpr, BLOCK_B: tl.constexpr):
    """Return what locates a program's sequences: units (P), validity (BLOCK_B), mask (BLOCK_B, P), lanes, first steps
    and first rows (BLOCK_B). `count` is the number of sequences.
    """
    s, unit = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, SHAPE.pad)
    valid = sequence_mask(seq, s, count, FINALS)
    mask = valid[:, None] & (unit < SHAPE.pad)[None, :]
    lane, t, row = sequence_index(seq, s, valid, lanes, SHAPE, ACT)
    return unit, valid, mask, lane, t, row


@triton.jit
def _offsets(row, unit, SHAPE: tl.constexpr):
    """Return offsets of the rows `row` (BLOCK_B) in buffers (rows, P) and in buffers (rows, columns) of gates,
    (BLOCK_B, P) each.
    """
    return row[:, None] * SHAPE.pad + unit[None, :], row[:, None] * SHAPE.columns + unit[None, :]


@triton.jit
def _load_weights(weight_ptr, SHAPE: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Load the weights of all gates as right operands, a tuple of (P, P); TRANSPOSED for the backward pass."""
    GATES: tl.constexpr = SHAPE.gates
    weights = ()
    for k in tl.static_range(GATES):
        weights = weights + (
            load_gate_weight_transposed(weight_ptr, k, SHAPE) if TRANSPOSED else load_gate_weight(weight_ptr, k, SHAPE),
        )
    return weights


@triton.jit
def _load_biases(bias_ptr, unit, SHAPE: tl.constexpr):
    """Load the biases of all gates, a tuple of (1, P)."""
    GATES: tl.constexpr = SHAPE.gates
    biases = ()
    for k in tl.static_range(GATES):
        biases = biases + (load_gate_bias(bias_ptr, k, unit, SHAPE),)
    return biases


@triton.jit
def _load_3_gates(gates_ptr, offset, mask, SHAPE: tl.constexpr):
    """Load gates 0, 1 and 2 of rows, at `offset` (BLOCK_B, P), in float32."""
    first = tl.load(gates_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(gates_ptr + offset + SHAPE.pad, mask=mask, other=0.0).to(tl.float32)
    return first, second, tl.load(gates_ptr + offset + 2 * SHAPE.pad, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _load_4_gates(gates_ptr, offset, mask, SHAPE: tl.constexpr):
    """Load all four gates of rows, at `offset` (BLOCK_B, P), in the dtype of their buffer."""
    first, second = (
        tl.load(gates_ptr + offset, mask=mask, other=0.0),
        tl.load(gates_ptr + offset + SHAPE.pad, mask=mask, other=0.0),
    )
    return (
        first,
        second,
        tl.load(gates_ptr + offset + 2 * SHAPE.pad, mask=mask, other=0.0),
        tl.load(gates_ptr + offset + 3 * SHAPE.pad, mask=mask, other=0.0),
    )


@triton.jit
def _to_f32(gates):
    """Convert a tuple of four gates to float32."""
    return gates[0].to(tl.float32), gates[1].to(tl.float32), gates[2].to(tl.float32), gates[3].to(tl.float32)


@triton.jit
def _store_4_gates(gates_ptr, offset, mask, gates, SHAPE: tl.constexpr):
    """Store four gates (BLOCK_B, P) of rows at `offset`, in the dtype of their buffer."""
    for k in tl.static_range(4):
        tl.store(gates_ptr + offset + k * SHAPE.pad, rounded_operand(gates[k], SHAPE), mask=mask)


# MINGRU


@triton.jit
def _mingru_projections(x, weights, biases, SHAPE: tl.constexpr):
    """Compute pre-activations W x + b of MinGRU's candidate, z and p, from inputs x (BLOCK_B, P)."""
    zero = tl.zeros(x.shape, tl.float32)
    candidate, z = (
        add_product(x, weights[0], zero + biases[0], SHAPE),
        add_product(x, weights[1], zero + biases[1], SHAPE),
    )
    return candidate, z, add_product(x, weights[2], zero + biases[2], SHAPE)


@triton.jit(do_not_specialize=["count", "layer"])
def mingru_forward(
    seq,
    x_ptr,
    gates_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    previous_ptr,
    count,
    lanes,
    layer,
    SHAPE: tl.constexpr,
    ACT: tl.constexpr,
    WRITE: tl.constexpr,
    FINALS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """MinGRU forward pass: inputs (rows, P) to outputs (rows, P), with h_{t-1} saved for the backward pass.

    h' = h + z (c - h), output x + p (h' - x). Without SHAPE.fused the pre-activations (rows, 3 P) are read from
    `gates_ptr`.
    """
    unit, valid, mask, lane, t, row = _sequences(seq, count, lanes, SHAPE, ACT, FINALS, BLOCK_B)
    weights = ()
    biases = ()
    if SHAPE.fused:
        weights = _load_weights(weight_ptr, SHAPE, False)
        biases = _load_biases(bias_ptr, unit, SHAPE)
    state = state_offset(lane, t, unit, lanes, SHAPE, layer, 0, ACT)
    state_mask = valid[:, None] & (unit < SHAPE.units)[None, :]
    h = tl.load(seq.state + state, mask=state_mask, other=0.0)
    offset, gate_offset = _offsets(row, unit, SHAPE)
    x, keep = tl.load(x_ptr + offset, mask=mask, other=0.0), load_keep(seq, lane, t, valid, lanes)
    for step in tl.range(0, STEPS, num_stages=1):
        has_next = mask & (step + 1 < STEPS)
        next_x = tl.load(x_ptr + offset + SHAPE.block * SHAPE.pad, mask=has_next, other=0.0)
        next_keep = load_keep(seq, lane, t + step + 1, valid & (step + 1 < STEPS), lanes)
        h *= keep[:, None]
        if not ACT:
            tl.store(previous_ptr + offset, rounded_operand(h, SHAPE), mask=mask)
        if SHAPE.fused:
            projected = _mingru_projections(x, weights, biases, SHAPE)
        else:
            projected = _load_3_gates(gates_ptr, gate_offset, mask, SHAPE)
        out, h = mingru_step(projected[0], projected[1], projected[2], x.to(tl.float32), h, SHAPE)
        tl.store(output_ptr + offset, rounded_operand(out, SHAPE), mask=mask)
        x = next_x
        keep = next_keep
        offset += SHAPE.block * SHAPE.pad
        gate_offset += SHAPE.block * SHAPE.columns
    if WRITE:
        tl.store(seq.state + state, h, mask=state_mask)


@triton.jit(do_not_specialize=["count"])
def mingru_backward(
    seq,
    x_ptr,
    gates_ptr,
    weight_ptr,
    bias_ptr,
    previous_ptr,
    grad_output_ptr,
    saved_ptr,
    grad_x_ptr,
    count,
    lanes,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """MinGRU backward pass: grad_output (rows, P) to the gradients of the pre-activations, in `gates_ptr`, and grad_x.

    grad_x includes the share of the gates with SHAPE.fused only; `projections.input_gradient` adds it otherwise. With
    ACTIVATION grad_x also passes through the activation of the layer below, whose saved tensor is `saved_ptr`.
    """
    unit, valid, mask, lane, t, row = _sequences(seq, count, lanes, SHAPE, False, False, BLOCK_B)
    weights = ()
    transposed = ()
    biases = ()
    if SHAPE.fused:
        weights = _load_weights(weight_ptr, SHAPE, False)
        transposed = _load_weights(weight_ptr, SHAPE, True)
        biases = _load_biases(bias_ptr, unit, SHAPE)
    row += (STEPS - 1) * SHAPE.block
    offset, gate_offset = _offsets(row, unit, SHAPE)
    grad_h = zeros(BLOCK_B, SHAPE.pad)  # of later steps
    x, previous = tl.load(x_ptr + offset, mask=mask, other=0.0), tl.load(previous_ptr + offset, mask=mask, other=0.0)
    grad_output, keep = (
        tl.load(grad_output_ptr + offset, mask=mask, other=0.0),
        load_keep(seq, lane, t + STEPS - 1, valid, lanes),
    )
    for step in tl.range(0, STEPS, num_stages=1):
        has_next, next_offset = mask & (step + 1 < STEPS), offset - SHAPE.block * SHAPE.pad
        next_x, next_previous = (
            tl.load(x_ptr + next_offset, mask=has_next, other=0.0),
            tl.load(previous_ptr + next_offset, mask=has_next, other=0.0),
        )
        next_grad_output = tl.load(grad_output_ptr + next_offset, mask=has_next, other=0.0)
        next_keep = load_keep(seq, lane, t + STEPS - 2 - step, valid & (step + 1 < STEPS), lanes)
        if SHAPE.fused:
            projected = _mingru_projections(x, weights, biases, SHAPE)
        else:
            projected = _load_3_gates(gates_ptr, gate_offset, mask, SHAPE)
        candidate, candidate_gradient, z, p = mingru_gates(projected[0], projected[1], projected[2], SHAPE)
        h, g, x_f32 = previous.to(tl.float32), grad_output.to(tl.float32), x.to(tl.float32)
        # output = x + p (h' - x), h' = h + z (c - h): dh' += p g, dp = g (h' - x), dz = dh' (c - h), dc = z dh'.
        grad_h += g * p
        grad_p = rounded_operand(g * (h + z * (candidate - h) - x_f32) * p * (1.0 - p), SHAPE)
        grad_z = rounded_operand(grad_h * (candidate - h) * z * (1.0 - z), SHAPE)
        grad_candidate = rounded_operand(grad_h * z * candidate_gradient, SHAPE)
        tl.store(gates_ptr + gate_offset, grad_candidate, mask=mask)
        tl.store(gates_ptr + gate_offset + SHAPE.pad, grad_z, mask=mask)
        tl.store(gates_ptr + gate_offset + 2 * SHAPE.pad, grad_p, mask=mask)
        # dx = (1 - p) g + W^T (dc, dz, dp)
        grad_x = g * (1.0 - p)
        if SHAPE.fused:
            grad_x = add_product(
                grad_p,
                transposed[2],
                add_product(grad_z, transposed[1], add_product(grad_candidate, transposed[0], grad_x, SHAPE), SHAPE),
                SHAPE,
            )
        if ACTIVATION:
            grad_x *= activation_gradient(tl.load(saved_ptr + offset, mask=mask, other=0.0), SPEC)
        tl.store(grad_x_ptr + offset, rounded_operand(grad_x, SHAPE), mask=mask)
        # dh = (1 - z) dh', 0 across an episode's beginning
        grad_h *= (1.0 - z) * keep[:, None]
        x = next_x
        previous = next_previous
        grad_output = next_grad_output
        keep = next_keep
        offset = next_offset
        gate_offset -= SHAPE.block * SHAPE.columns


# GRU AND LSTM


@triton.jit
def _add_streamed_product(
    row_ptr, weight_ptr, STRIDE_N: tl.constexpr, STRIDE_K: tl.constexpr, total, valid, SHAPE: tl.constexpr
):
    """Return `total` + a W, (BLOCK_B, P), loading W in blocks of SHAPE.block_k: `row_ptr` points to the rows of a; W is
    a gate's weight with strides STRIDE_N and STRIDE_K.
    """
    k, unit = tl.arange(0, SHAPE.block_k), tl.arange(0, SHAPE.pad)
    for start in tl.range(0, SHAPE.pad, SHAPE.block_k):
        a = tl.load(row_ptr[:, None] + (start + k)[None, :], mask=valid[:, None], other=0.0)
        total = add_product(
            a, tl.load(weight_ptr + (start + k)[:, None] * STRIDE_K + unit[None, :] * STRIDE_N), total, SHAPE
        )
    return total


@triton.jit
def _add_recurrent_product(h, row_ptr, valid, weights, weight_ptr, gate: tl.constexpr, total, SHAPE: tl.constexpr):
    """Return `total` + U h of a gate, (BLOCK_B, P), U its recurrent weight; `row_ptr` points to the stored rows of
    h.
    """
    if SHAPE.streams_weights:
        return _add_streamed_product(
            row_ptr, weight_ptr + gate * SHAPE.pad * SHAPE.pad, SHAPE.pad, 1, total, valid, SHAPE
        )
    else:
        return add_product(h, weights[gate], total, SHAPE)


@triton.jit
def _add_state_gradient(total, grads, row_ptr, valid, weights, weight_ptr, SHAPE: tl.constexpr):
    """Return `total` + the gradient of the previous state through all gates, sum of U^T g, (BLOCK_B, P); for a GRU's n,
    g is the gradient of U_n h + b_n. `grads` are the gates' gradients.

    `row_ptr`: pointers to the stored gradients.
    """
    GATES: tl.constexpr = SHAPE.gates
    for k in tl.static_range(GATES):
        if SHAPE.streams_weights:
            total = _add_streamed_product(
                row_ptr + SHAPE.recurrent_columns[k] * SHAPE.pad,
                weight_ptr + k * SHAPE.pad * SHAPE.pad,
                1,
                SHAPE.pad,
                total,
                valid,
                SHAPE,
            )
        else:
            total = add_product(rounded_operand(grads[SHAPE.recurrent_columns[k]], SHAPE), weights[k], total, SHAPE)
    return total


@triton.jit(do_not_specialize=["count", "layer"])
def lstm_forward(
    seq,
    gates_ptr,
    weight_ptr,
    output_ptr,
    previous_ptr,
    previous_cell_ptr,
    count,
    lanes,
    layer,
    SHAPE: tl.constexpr,
    ACT: tl.constexpr,
    WRITE: tl.constexpr,
    FINALS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """LSTM forward pass. Reads input projections (rows, 4 P) and overwrites them with the gates i, f, o, g.

    c' = f c + i g, h' = o tanh(c'). Saves h_{t-1} and c_{t-1} for the backward pass.
    """
    unit, valid, mask, lane, t, row = _sequences(seq, count, lanes, SHAPE, ACT, FINALS, BLOCK_B)
    weights = ()
    if SHAPE.resident:
        weights = _load_weights(weight_ptr, SHAPE, False)
    state, cell_state = (
        state_offset(lane, t, unit, lanes, SHAPE, layer, 0, ACT),
        state_offset(lane, t, unit, lanes, SHAPE, layer, 1, ACT),
    )
    state_mask = valid[:, None] & (unit < SHAPE.units)[None, :]
    h, c = (
        tl.load(seq.state + state, mask=state_mask, other=0.0),
        tl.load(seq.state + cell_state, mask=state_mask, other=0.0),
    )
    offset, gate_offset = _offsets(row, unit, SHAPE)
    projected, keep, h_row = (
        _load_4_gates(gates_ptr, gate_offset, mask, SHAPE),
        load_keep(seq, lane, t, valid, lanes),
        row * SHAPE.pad,
    )
    for step in tl.range(0, STEPS, num_stages=1):
        next_projected = _load_4_gates(
            gates_ptr, gate_offset + SHAPE.block * SHAPE.columns, mask & (step + 1 < STEPS), SHAPE
        )
        next_keep = load_keep(seq, lane, t + step + 1, valid & (step + 1 < STEPS), lanes)
        c *= keep[:, None]
        operand = rounded_operand(h * keep[:, None], SHAPE)
        if not ACT or SHAPE.streams_weights:
            tl.store(previous_ptr + offset, operand, mask=mask)
        if not ACT:
            tl.store(previous_cell_ptr + offset, rounded_operand(c, SHAPE), mask=mask)
        if SHAPE.streams_weights:
            tl.debug_barrier()
        h_ptr = previous_ptr + h_row
        i = _add_recurrent_product(operand, h_ptr, valid, weights, weight_ptr, 0, projected[0].to(tl.float32), SHAPE)
        f = _add_recurrent_product(operand, h_ptr, valid, weights, weight_ptr, 1, projected[1].to(tl.float32), SHAPE)
        o = _add_recurrent_product(operand, h_ptr, valid, weights, weight_ptr, 2, projected[2].to(tl.float32), SHAPE)
        g = _add_recurrent_product(operand, h_ptr, valid, weights, weight_ptr, 3, projected[3].to(tl.float32), SHAPE)
        i, f, o, g = lstm_gates(i, f, o, g, SHAPE)
        c, h = lstm_step(i, f, o, g, c, SHAPE.approximate)
        if not ACT:
            _store_4_gates(gates_ptr, gate_offset, mask, (i, f, o, g), SHAPE)
        tl.store(output_ptr + offset, rounded_operand(h, SHAPE), mask=mask)
        projected = next_projected
        keep = next_keep
        h_row += SHAPE.block * SHAPE.pad
        offset += SHAPE.block * SHAPE.pad
        gate_offset += SHAPE.block * SHAPE.columns
    if WRITE:
        tl.store(seq.state + state, h, mask=state_mask)
        tl.store(seq.state + cell_state, c, mask=state_mask)


@triton.jit(do_not_specialize=["count", "layer"])
def gru_forward(
    seq,
    gates_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    previous_ptr,
    count,
    lanes,
    layer,
    SHAPE: tl.constexpr,
    ACT: tl.constexpr,
    WRITE: tl.constexpr,
    FINALS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """GRU forward pass. Reads input projections (rows, 4 P) and overwrites them with r, z, n and W_n h + b_n.

    r, z = sigmoid(x + W h), n = tanh(x_n + r (W_n h + b_n)), h' = n + z (h - n). Saves h_{t-1} for the backward pass.
    """
    unit, valid, mask, lane, t, row = _sequences(seq, count, lanes, SHAPE, ACT, FINALS, BLOCK_B)
    weights = ()
    if SHAPE.resident:
        weights = _load_weights(weight_ptr, SHAPE, False)
    bias = load_gate_bias(bias_ptr, 0, unit, SHAPE)
    state, state_mask = (
        state_offset(lane, t, unit, lanes, SHAPE, layer, 0, ACT),
        valid[:, None] & (unit < SHAPE.units)[None, :],
    )
    h = tl.load(seq.state + state, mask=state_mask, other=0.0)
    offset, gate_offset = _offsets(row, unit, SHAPE)
    projected, keep, h_row = (
        _load_3_gates(gates_ptr, gate_offset, mask, SHAPE),
        load_keep(seq, lane, t, valid, lanes),
        row * SHAPE.pad,
    )
    for step in tl.range(0, STEPS, num_stages=1):
        next_projected = _load_3_gates(
            gates_ptr, gate_offset + SHAPE.block * SHAPE.columns, mask & (step + 1 < STEPS), SHAPE
        )
        next_keep = load_keep(seq, lane, t + step + 1, valid & (step + 1 < STEPS), lanes)
        h *= keep[:, None]
        operand = rounded_operand(h, SHAPE)
        if not ACT or SHAPE.streams_weights:
            tl.store(previous_ptr + offset, operand, mask=mask)
        if SHAPE.streams_weights:
            tl.debug_barrier()
        h_ptr = previous_ptr + h_row
        r = sigmoid(
            _add_recurrent_product(operand, h_ptr, valid, weights, weight_ptr, 0, projected[0], SHAPE),
            SHAPE.approximate,
        )
        z = sigmoid(
            _add_recurrent_product(operand, h_ptr, valid, weights, weight_ptr, 1, projected[1], SHAPE),
            SHAPE.approximate,
        )
        recurrent = _add_recurrent_product(
            operand, h_ptr, valid, weights, weight_ptr, 2, tl.zeros(h.shape, tl.float32) + bias, SHAPE
        )
        h, n = gru_step(projected[2], recurrent, r, z, h, SHAPE)
        if not ACT:
            _store_4_gates(gates_ptr, gate_offset, mask, (r, z, n, recurrent), SHAPE)
        tl.store(output_ptr + offset, rounded_operand(h, SHAPE), mask=mask)
        projected = next_projected
        keep = next_keep
        h_row += SHAPE.block * SHAPE.pad
        offset += SHAPE.block * SHAPE.pad
        gate_offset += SHAPE.block * SHAPE.columns
    if WRITE:
        tl.store(seq.state + state, h, mask=state_mask)


@triton.jit
def _gru_step_backward(gates, h, grad_h):
    """Return gradients of the pre-activations of a GRU's r, z, n and of W_n h + b_n, and of h without the gates' part,
    from that of h' (`grad_h`).

    `grad_h`: gradient of h' = n + z (h - n), n = tanh(x_n + r (W_n h + b_n)).
    """
    r, z, n, recurrent = _to_f32(gates)
    grad_n = grad_h * (1.0 - z) * (1.0 - n * n)
    return (grad_n * recurrent * r * (1.0 - r), grad_h * (h - n) * z * (1.0 - z), grad_n, grad_n * r), grad_h * z


@triton.jit(do_not_specialize=["count"])
def gated_backward(
    seq,
    gates_ptr,
    weight_ptr,
    previous_ptr,
    grad_output_ptr,
    count,
    lanes,
    SHAPE: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """GRU and LSTM backward pass: grad_output (rows, P) to the gradients of the gates' pre-activations (and of a GRU's
    W_n h + b_n), which overwrite the gates. `previous_ptr`: h_{t-1} of a GRU, c_{t-1} of an LSTM.
    """
    unit, valid, mask, lane, t, row = _sequences(seq, count, lanes, SHAPE, False, False, BLOCK_B)
    weights = ()
    if SHAPE.resident:
        weights = _load_weights(weight_ptr, SHAPE, True)
    row += (STEPS - 1) * SHAPE.block
    offset, gate_offset = _offsets(row, unit, SHAPE)
    grad_h = zeros(BLOCK_B, SHAPE.pad)  # of later steps
    grad_c = grad_h
    gates, previous = (
        _load_4_gates(gates_ptr, gate_offset, mask, SHAPE),
        tl.load(previous_ptr + offset, mask=mask, other=0.0),
    )
    grad_output, keep, gate_row = (
        tl.load(grad_output_ptr + offset, mask=mask, other=0.0),
        load_keep(seq, lane, t + STEPS - 1, valid, lanes),
        row * SHAPE.columns,
    )
    for step in tl.range(0, STEPS, num_stages=1):
        has_next, next_offset = mask & (step + 1 < STEPS), offset - SHAPE.block * SHAPE.pad
        next_gates = _load_4_gates(gates_ptr, gate_offset - SHAPE.block * SHAPE.columns, has_next, SHAPE)
        next_previous, next_grad_output = (
            tl.load(previous_ptr + next_offset, mask=has_next, other=0.0),
            tl.load(grad_output_ptr + next_offset, mask=has_next, other=0.0),
        )
        next_keep = load_keep(seq, lane, t + STEPS - 2 - step, valid & (step + 1 < STEPS), lanes)
        grad_h += grad_output.to(tl.float32)
        if SHAPE.kind == "lstm":
            c = previous.to(tl.float32)
            i, f, o, g = _to_f32(gates)
            tanh_c = tanh(tl.fma(f, c, i * g), SHAPE.approximate)
            grads, grad_c = lstm_step_backward(i, f, o, g, c, tanh_c, grad_h, grad_c)
            grad_c = grad_c * f
            # dh_{t-1} = W^T dgates only; dc_{t-1} = keep f dc'
            grad_h = zeros(BLOCK_B, SHAPE.pad)
            grad_c *= keep[:, None]
        else:
            grads, grad_h = _gru_step_backward(gates, previous.to(tl.float32), grad_h)
        _store_4_gates(gates_ptr, gate_offset, mask, grads, SHAPE)
        if SHAPE.streams_weights:
            tl.debug_barrier()
        # dh += W^T dgates, 0 across an episode's beginning
        grad_h = keep[:, None] * _add_state_gradient(
            grad_h, grads, gates_ptr + gate_row, valid, weights, weight_ptr, SHAPE
        )
        gates = next_gates
        previous = next_previous
        grad_output = next_grad_output
        keep = next_keep
        offset = next_offset
        gate_row -= SHAPE.block * SHAPE.columns
        gate_offset -= SHAPE.block * SHAPE.columns
