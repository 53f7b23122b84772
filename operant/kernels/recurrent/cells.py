"""Triton building blocks of recurrent cells (MinGRU, GRU, LSTM): indexing of sequences and one step of each cell.

A *row* is a step of a lane; a *block* is SHAPE.block neighbouring lanes, which are shuffled together; an *operand* is a
factor of a matrix product, in the type that it multiplies. Rows of a minibatch are ordered block of lanes, step, lane:
step l of lane j of block b is row (b L + l) BLOCK + j. When acting, every lane is a row. States are stored as in the
rollout, (R, N): layer, unit; an LSTM's c after all h.

Acting and learning must compute the same bits. Choices that a compiler could make are therefore explicit: sums start
with the bias or the input projection, and `tl.fma` determines which product is not rounded.

| parameter    | shape           | meaning                                                         |
|--------------|-----------------|-----------------------------------------------------------------|
| seq          | Sequences       | order of blocks, states, ends of episodes                       |
| s            | (BLOCK_B)       | sequence index                                                  |
| lane, t, row | (BLOCK_B)       | lane, step of the rollout, row of a sequence's first step       |
| unit         | (P)             | unit of the state                                               |
| keep         | (BLOCK_B)       | 0 where an episode begins, else 1                               |
| x, h, c      | (BLOCK_B, P)    | input, state and cell state of a layer                          |
| weight_ptr   | (L, 2, K, P, P) | packed weights: input's, then recurrent, of each layer and gate |
| params_ptr   | flat            | parameter vector of the policy, for biases                      |

`SHAPE` is an `operant.kernels.recurrent.shape.Shape`.

Shape letters: P padded units, K gates, L steps of a segment, N lanes, R rows of a lane's state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.activation import sigmoid, tanh
from operant.kernels.ops.linear import add_product, rounded_operand

# SEQUENCES


@triton.jit
def sequence_index(seq, s, in_bounds, lanes, SHAPE: tl.constexpr, ACT: tl.constexpr):
    """Return lane, first step and first row in the buffers of sequences number `s`, (BLOCK_B) each."""
    if ACT:
        return seq.first + s, seq.step + 0 * s, s
    else:
        block = tl.load(seq.order + seq.first + s // SHAPE.block * SHAPE.length, mask=in_bounds, other=0)
        groups = lanes // SHAPE.block
        return (
            block % groups * SHAPE.block + s % SHAPE.block,
            block // groups,
            s // SHAPE.block * (SHAPE.length * SHAPE.block) + s % SHAPE.block,
        )


@triton.jit
def sequence_mask(seq, s, count, FINALS: tl.constexpr):
    """Return the mask of valid sequences among `s`, (BLOCK_B): the first `count`; with FINALS only lanes whose episode
    was truncated.
    """
    present = s < count
    if FINALS:
        return present & (tl.load(seq.truncated + seq.sample + s, mask=present, other=0) != 0)
    else:
        return present


@triton.jit
def load_keep(seq, lane, t, in_bounds, lanes):
    """Load `keep` at step t, (BLOCK_B): 0 where an episode begins, else 1. The previous recurrent state is multiplied
    by it.
    """
    offset, mask = (t - 1) * lanes + lane, in_bounds & (t > 0)
    ended = tl.load(seq.terminated + offset, mask=mask, other=0) | tl.load(seq.truncated + offset, mask=mask, other=0)
    return tl.where(ended != 0, 0.0, 1.0)


@triton.jit
def state_offset(lane, t, unit, lanes, SHAPE: tl.constexpr, layer, CELL: tl.constexpr, ACT: tl.constexpr):
    """Return offsets of a layer's recurrent state, (BLOCK_B, P): with ACT in the current states (R, N), else in the
    initial states (K, R, N) of segments that begin at steps t. CELL: 0 for h, 1 for an LSTM's c.
    """
    offset = ((layer + CELL * SHAPE.layers) * SHAPE.units + unit[None, :]) * lanes + lane[:, None]
    return offset if ACT else offset + (t // SHAPE.length * SHAPE.rows * lanes)[:, None]


@triton.jit
def load_gate_bias(bias_ptr, gate, unit, SHAPE: tl.constexpr):
    """Load the bias of a gate, (1, P)."""
    return tl.load(bias_ptr + gate * SHAPE.units + unit, mask=unit < SHAPE.units, other=0.0)[None, :]


@triton.jit
def load_gate_weight(weight_ptr, gate, SHAPE: tl.constexpr):
    """Load a gate's packed weight as the right operand of a product, (inputs, units)."""
    unit = tl.arange(0, SHAPE.pad)
    return tl.load(weight_ptr + (gate * SHAPE.pad + unit[None, :]) * SHAPE.pad + unit[:, None])


@triton.jit
def load_gate_weight_transposed(weight_ptr, gate, SHAPE: tl.constexpr):
    """Load a gate's packed weight as the right operand of a backward product, (units, inputs)."""
    unit = tl.arange(0, SHAPE.pad)
    return tl.load(weight_ptr + (gate * SHAPE.pad + unit[:, None]) * SHAPE.pad + unit[None, :])


# ONE STEP OF A CELL


@triton.jit
def mingru_gates(c, z, p, SHAPE: tl.constexpr):
    """Return MinGRU's candidate c, its derivative, and the gates z and p, from their pre-activations. c = x + 1/2 where
    x >= 0, else sigmoid(x).
    """
    sigmoid_c = sigmoid(c, SHAPE.approximate)
    candidate = tl.where(c >= 0.0, c + 0.5, sigmoid_c)
    return (
        candidate,
        tl.where(c >= 0.0, 1.0, sigmoid_c * (1.0 - sigmoid_c)),
        sigmoid(z, SHAPE.approximate),
        sigmoid(p, SHAPE.approximate),
    )


@triton.jit
def mingru_step(c, z, p, x, h, SHAPE: tl.constexpr):
    """Return output x + p (h' - x) and next state h' = h + z (c - h) of MinGRU, from the pre-activations of c, z and
    p.
    """
    c, _derivative, z, p = mingru_gates(c, z, p, SHAPE)
    h = tl.fma(z, c - h, h)
    return tl.fma(p, h - x, x), h


@triton.jit
def lstm_gates(i, f, o, g, SHAPE: tl.constexpr):
    """Return an LSTM's gates i, f, o and candidate g from their pre-activations: sigmoids, and tanh."""
    return (
        sigmoid(i, SHAPE.approximate),
        sigmoid(f, SHAPE.approximate),
        sigmoid(o, SHAPE.approximate),
        tanh(g, SHAPE.approximate),
    )


@triton.jit
def lstm_step(i, f, o, g, c, APPROXIMATE: tl.constexpr):
    """Return an LSTM's next c' = f c + i g and h' = o tanh(c')."""
    c = tl.fma(f, c, i * g)
    return c, o * tanh(c, APPROXIMATE)


@triton.jit
def lstm_step_backward(i, f, o, g, c, tanh_c, grad_h, grad_c):
    """Return gradients of the pre-activations of an LSTM's i, f, o and g, and the whole gradient of c', from those of
    h' (`grad_h`) and c' (`grad_c`).

    `c`: previous cell state; `tanh_c`: tanh(c'); `grad_h`, `grad_c`: gradients of h' = o tanh(c') and c' = f c + i g.
    """
    grad_c += grad_h * o * (1.0 - tanh_c * tanh_c)
    grad_i, grad_f = grad_c * g * i * (1.0 - i), grad_c * c * f * (1.0 - f)
    return (grad_i, grad_f, grad_h * tanh_c * o * (1.0 - o), grad_c * i * (1.0 - g * g)), grad_c


@triton.jit
def gru_step(projected, recurrent, r, z, h, SHAPE: tl.constexpr):
    """Return a GRU's next state h' = n + z (h - n) and n = tanh(projected + r recurrent), where `recurrent` = W_n h +
    b_n and `projected` is the input's part.
    """
    n = tanh(tl.fma(r, recurrent, projected), SHAPE.approximate)
    return tl.fma(z, h - n, n), n


# ONE STEP OF ALL LAYERS, TO ACT


@triton.jit
def load_weights(weight_ptr, SHAPE: tl.constexpr):
    """Load all gates' weights as right operands, a tuple ordered by layer, input's or recurrent, gate; empty unless
    SHAPE.act_resident.
    """
    COUNT: tl.constexpr = SHAPE.layers * SHAPE.matrices * SHAPE.gates if SHAPE.act_resident else 0
    weights = ()
    for k in tl.static_range(COUNT):
        weights = weights + (load_gate_weight(weight_ptr, k, SHAPE),)
    return weights


@triton.jit
def _weight(weights, weight_ptr, SHAPE: tl.constexpr, LAYER: tl.constexpr, WHICH: tl.constexpr, GATE: tl.constexpr):
    """Return the weight of gate GATE of layer LAYER from `weights`, or load it. WHICH: 0 the input's, 1 the
    recurrent.
    """
    INDEX: tl.constexpr = (LAYER * SHAPE.matrices + WHICH) * SHAPE.gates + GATE
    if SHAPE.act_resident:
        return weights[INDEX]
    else:
        return load_gate_weight(weight_ptr, INDEX, SHAPE)


@triton.jit
def load_states(seq, lane, in_bounds, lanes, SHAPE: tl.constexpr):
    """Load the recurrent states of all layers, a tuple: h, and an LSTM's c, (BLOCK_B, P) each."""
    unit = tl.arange(0, SHAPE.pad)
    mask = in_bounds[:, None] & (unit < SHAPE.units)[None, :]
    COUNT: tl.constexpr = SHAPE.layers
    states = ()
    for k in tl.static_range(COUNT):
        h = tl.load(seq.state + state_offset(lane, 0, unit, lanes, SHAPE, k, 0, True), mask=mask, other=0.0)
        if SHAPE.kind == "lstm":
            states = states + (
                h,
                tl.load(seq.state + state_offset(lane, 0, unit, lanes, SHAPE, k, 1, True), mask=mask, other=0.0),
            )
        else:
            states = states + (h,)
    return states


@triton.jit
def step_layers(
    x, states, weights, weight_ptr, params_ptr, seq, lane, keep, in_bounds, lanes, SHAPE: tl.constexpr, WRITE
):
    """Step all recurrent layers from input x (BLOCK_B, P), an operand; store the next states where the mask WRITE is
    set, and return the last layer's output, an operand.
    """
    unit = tl.arange(0, SHAPE.pad)
    mask = in_bounds[:, None] & (unit < SHAPE.units)[None, :]
    LAYERS: tl.constexpr = SHAPE.layers
    for k in tl.static_range(LAYERS):
        offset = seq.state + state_offset(lane, 0, unit, lanes, SHAPE, k, 0, True)
        if SHAPE.kind == "lstm":
            out, c = _lstm_step(
                x,
                states[2 * k] * keep[:, None],
                states[2 * k + 1] * keep[:, None],
                weights,
                weight_ptr,
                params_ptr,
                unit,
                SHAPE,
                k,
            )
            h = out
            tl.store(seq.state + state_offset(lane, 0, unit, lanes, SHAPE, k, 1, True), c, mask=mask & WRITE)
        elif SHAPE.kind == "gru":
            out = _gru_step(x, states[k] * keep[:, None], weights, weight_ptr, params_ptr, unit, SHAPE, k)
            h = out
        else:
            out, h = _mingru_step(x, states[k] * keep[:, None], weights, weight_ptr, params_ptr, unit, SHAPE, k)
        tl.store(offset, h, mask=mask & WRITE)
        x = rounded_operand(out, SHAPE)
    return x


@triton.jit
def _input_projection(x, h, weight, params_ptr, unit, SHAPE: tl.constexpr, LAYER: tl.constexpr, GATE: tl.constexpr):
    """Return the input projection W x + b of gate GATE, (BLOCK_B, P), rounded as in training, where it is stored."""
    total = add_product(
        x,
        weight,
        tl.zeros_like(h) + load_gate_bias(params_ptr + SHAPE.input_biases[LAYER], GATE, unit, SHAPE),
        SHAPE,
    )
    return total if SHAPE.fused else rounded_operand(total, SHAPE).to(tl.float32)


@triton.jit
def _mingru_step(x, h, weights, weight_ptr, params_ptr, unit, SHAPE: tl.constexpr, LAYER: tl.constexpr):
    """Return output and next state of a MinGRU layer, (BLOCK_B, P) each, from input x, an operand, and state h."""
    first, second = _weight(weights, weight_ptr, SHAPE, LAYER, 0, 0), _weight(weights, weight_ptr, SHAPE, LAYER, 0, 1)
    c = _input_projection(x, h, first, params_ptr, unit, SHAPE, LAYER, 0)
    third = _weight(weights, weight_ptr, SHAPE, LAYER, 0, 2)
    z = _input_projection(x, h, second, params_ptr, unit, SHAPE, LAYER, 1)
    p = _input_projection(x, h, third, params_ptr, unit, SHAPE, LAYER, 2)
    return mingru_step(c, z, p, x.to(tl.float32), h, SHAPE)


@triton.jit
def _pre_activation(
    x,
    h,
    weight,
    weights,
    weight_ptr,
    params_ptr,
    unit,
    SHAPE: tl.constexpr,
    LAYER: tl.constexpr,
    GATE: tl.constexpr,
    NEXT: tl.constexpr,
):
    """Return the pre-activation W x + U h + b of gate GATE, and the loaded input weight of gate NEXT. Weights are
    loaded one product ahead.
    """
    own = _weight(weights, weight_ptr, SHAPE, LAYER, 1, GATE)
    projected = _input_projection(x, h, weight, params_ptr, unit, SHAPE, LAYER, GATE)
    following = _weight(weights, weight_ptr, SHAPE, LAYER, 0, NEXT)
    return add_product(rounded_operand(h, SHAPE), own, projected, SHAPE), following


@triton.jit
def _lstm_step(x, h, c, weights, weight_ptr, params_ptr, unit, SHAPE: tl.constexpr, LAYER: tl.constexpr):
    """Return next h' and c' of an LSTM layer, (BLOCK_B, P) each, from input x, an operand, and states h and c."""
    weight = _weight(weights, weight_ptr, SHAPE, LAYER, 0, 0)
    i, weight = _pre_activation(x, h, weight, weights, weight_ptr, params_ptr, unit, SHAPE, LAYER, 0, 3)
    g, weight = _pre_activation(x, h, weight, weights, weight_ptr, params_ptr, unit, SHAPE, LAYER, 3, 1)
    f, weight = _pre_activation(x, h, weight, weights, weight_ptr, params_ptr, unit, SHAPE, LAYER, 1, 2)
    o, _last = _pre_activation(x, h, weight, weights, weight_ptr, params_ptr, unit, SHAPE, LAYER, 2, 2)
    i, f, o, g = lstm_gates(i, f, o, g, SHAPE)
    c, h = lstm_step(i, f, o, g, c, SHAPE.approximate)
    return h, c


@triton.jit
def _gru_step(x, h, weights, weight_ptr, params_ptr, unit, SHAPE: tl.constexpr, LAYER: tl.constexpr):
    """Return the next state of a GRU layer, (BLOCK_B, P), from input x, an operand, and state h."""
    weight = _weight(weights, weight_ptr, SHAPE, LAYER, 0, 0)
    r, weight = _pre_activation(x, h, weight, weights, weight_ptr, params_ptr, unit, SHAPE, LAYER, 0, 1)
    z, weight = _pre_activation(x, h, weight, weights, weight_ptr, params_ptr, unit, SHAPE, LAYER, 1, 2)
    own = _weight(weights, weight_ptr, SHAPE, LAYER, 1, 2)
    projected = _input_projection(x, h, weight, params_ptr, unit, SHAPE, LAYER, 2)
    recurrent = add_product(
        rounded_operand(h, SHAPE),
        own,
        tl.zeros_like(h) + load_gate_bias(params_ptr + SHAPE.state_biases[LAYER], 0, unit, SHAPE),
        SHAPE,
    )
    return gru_step(projected, recurrent, sigmoid(r, SHAPE.approximate), sigmoid(z, SHAPE.approximate), h, SHAPE)[0]


@triton.jit
def _tile_product(x, weight_ptr, WHICH: tl.constexpr, GATE: tl.constexpr, unit, total, SHAPE: tl.constexpr):
    """Return `total` + W x of gate GATE for the units `unit`. WHICH: 0 the input's weight, 1 the recurrent. For
    networks of one recurrent layer.
    """
    offset = (
        weight_ptr
        + ((WHICH * SHAPE.gates + GATE) * SHAPE.pad + unit[None, :]) * SHAPE.pad
        + tl.arange(0, SHAPE.pad)[:, None]
    )
    return add_product(x, tl.load(offset), total, SHAPE)


@triton.jit
def _tile_input_projection(x, weight_ptr, params_ptr, GATE: tl.constexpr, unit, zero, SHAPE: tl.constexpr):
    """Return the input projection W x + b of gate GATE for the units `unit`, rounded as in training, where it is
    stored. `zero`: an accumulator at zero.
    """
    total = _tile_product(
        x,
        weight_ptr,
        0,
        GATE,
        unit,
        zero + load_gate_bias(params_ptr + SHAPE.input_biases[0], GATE, unit, SHAPE),
        SHAPE,
    )
    return rounded_operand(total, SHAPE).to(tl.float32)


@triton.jit
def _tile_pre_activation(x, h, weight_ptr, params_ptr, GATE: tl.constexpr, unit, zero, SHAPE: tl.constexpr):
    """Return the pre-activation W x + U h + b of gate GATE for the units `unit`. `zero`: an accumulator at zero."""
    return _tile_product(
        h,
        weight_ptr,
        1,
        GATE,
        unit,
        _tile_input_projection(x, weight_ptr, params_ptr, GATE, unit, zero, SHAPE),
        SHAPE,
    )


@triton.jit
def step_units(x, h, weight_ptr, params_ptr, seq, lane, unit, keep, in_bounds, lanes, SHAPE: tl.constexpr, WRITE):
    """Step the units `unit` of a GRU or an LSTM of one layer from input x and state h of all units, operands (BLOCK_B,
    P); store their next state where the mask WRITE is set, and return their output, an operand.
    """
    mask = in_bounds[:, None] & (unit < SHAPE.units)[None, :]
    offset = seq.state + state_offset(lane, 0, unit, lanes, SHAPE, 0, 0, True)
    last = seq.state + state_offset(lane, 0, unit, lanes, SHAPE, 0, SHAPE.kind == "lstm", True)
    own = tl.load(last, mask=mask, other=0.0) * keep[:, None]  # of an LSTM c
    zero = tl.zeros_like(own)
    first = sigmoid(_tile_pre_activation(x, h, weight_ptr, params_ptr, 0, unit, zero, SHAPE), SHAPE.approximate)
    second = sigmoid(_tile_pre_activation(x, h, weight_ptr, params_ptr, 1, unit, zero, SHAPE), SHAPE.approximate)
    if SHAPE.kind == "lstm":
        third = sigmoid(_tile_pre_activation(x, h, weight_ptr, params_ptr, 2, unit, zero, SHAPE), SHAPE.approximate)
        c, out = lstm_step(
            first,
            second,
            third,
            tanh(_tile_pre_activation(x, h, weight_ptr, params_ptr, 3, unit, zero, SHAPE), SHAPE.approximate),
            own,
            SHAPE.approximate,
        )
        tl.store(last, c, mask=mask & WRITE)
    else:
        projected = _tile_input_projection(x, weight_ptr, params_ptr, 2, unit, zero, SHAPE)
        recurrent = _tile_product(
            h,
            weight_ptr,
            1,
            2,
            unit,
            zero + load_gate_bias(params_ptr + SHAPE.state_biases[0], 0, unit, SHAPE),
            SHAPE,
        )
        out, _n = gru_step(projected, recurrent, first, second, own, SHAPE)
    tl.store(offset, out, mask=mask & WRITE)
    return rounded_operand(out, SHAPE)
