"""Triton building blocks of recurrent cells: where a lane's sequence lies, when it begins anew, and what a step
computes. Know no network and no loss.

A *row* is a step of a lane. Rows of a minibatch lie block of lanes after block, step after step, lane after lane: step
l of lane j of block b is row (b L + l) BLOCK + j. Acting has a row a lane. States lie as the rollout has them, (R, N):
layer after layer, unit after unit; an LSTM's c behind all h.

Acting and learning are to compute the same bits, so what a compiler may choose is written out: a sum begins with its
bias, or with what the input adds, and `tl.fma` says which product is not rounded.

Shape letters: P padded units, K gates, L steps of a segment, N lanes, R numbers of a lane's state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops import activation, linear

add_dot, stored, zeros = linear.add_product, linear.rounded_operand, linear.zeros
activation_gradient, sigmoid, tanh = activation.activation_gradient, activation.sigmoid, activation.tanh

# PLACES


@triton.jit
def lanes_of(where, s, in_bounds, lanes, SHAPE: tl.constexpr, ACT: tl.constexpr):
    """Of sequences `s`: the lane, the first step's number in the rollout, and its row."""
    if ACT:
        return where.first + s, where.step + 0 * s, s
    else:
        block = tl.load(where.order + where.first + s // SHAPE.block * SHAPE.length, mask=in_bounds, other=0)
        groups = lanes // SHAPE.block
        return (
            block % groups * SHAPE.block + s % SHAPE.block,
            block // groups,
            s // SHAPE.block * (SHAPE.length * SHAPE.block) + s % SHAPE.block,
        )


@triton.jit
def present_of(where, s, count, FINALS: tl.constexpr):
    """Which of sequences `s` there are, (rows): `count`, with FINALS of acting lanes those alone that were
    truncated.
    """
    present = s < count
    if FINALS:
        return present & (tl.load(where.truncated + where.sample + s, mask=present, other=0) != 0)
    else:
        return present


@triton.jit
def kept(where, lane, t, in_bounds, lanes):
    """0 where an episode begins at step t, 1 elsewhere, (rows): the state before is multiplied by it."""
    place, mask = (t - 1) * lanes + lane, in_bounds & (t > 0)
    ended = tl.load(where.terminated + place, mask=mask, other=0) | tl.load(where.truncated + place, mask=mask, other=0)
    return tl.where(ended != 0, 0.0, 1.0)


@triton.jit
def state_place(lane, t, unit, lanes, SHAPE: tl.constexpr, layer, CELL: tl.constexpr, ACT: tl.constexpr):
    """Where a layer's state lies, (lanes, units): of lanes as they are, or (K, R, N) of segments that begin
    at steps t.
    """
    place = ((layer + CELL * SHAPE.layers) * SHAPE.units + unit[None, :]) * lanes + lane[:, None]
    return place if ACT else place + (t // SHAPE.length * SHAPE.rows * lanes)[:, None]


@triton.jit
def gate_bias(biases, gate, unit, SHAPE: tl.constexpr):
    """A gate's bias, (1, units), of a layer's."""
    return tl.load(biases + gate * SHAPE.units + unit, mask=unit < SHAPE.units, other=0.0)[None, :]


@triton.jit
def gate_weight(packed, gate, SHAPE: tl.constexpr):
    """A gate's packed weight as a right operand, (inputs, units)."""
    unit = tl.arange(0, SHAPE.pad)
    return tl.load(packed + (gate * SHAPE.pad + unit[None, :]) * SHAPE.pad + unit[:, None])


@triton.jit
def gate_transposed(packed, gate, SHAPE: tl.constexpr):
    """The same for the way back, (units, inputs)."""
    unit = tl.arange(0, SHAPE.pad)
    return tl.load(packed + (gate * SHAPE.pad + unit[:, None]) * SHAPE.pad + unit[None, :])


# STEPS


@triton.jit
def mingru_gates(hidden, gate, highway, SHAPE: tl.constexpr):
    """The candidate, its slope, z and p."""
    squashed = sigmoid(hidden, SHAPE.approximate)
    candidate = tl.where(hidden >= 0.0, hidden + 0.5, squashed)
    return (
        candidate,
        tl.where(hidden >= 0.0, 1.0, squashed * (1.0 - squashed)),
        sigmoid(gate, SHAPE.approximate),
        sigmoid(highway, SHAPE.approximate),
    )


@triton.jit
def mingru_step(hidden, gate, highway, x, h, SHAPE: tl.constexpr):
    """The output and the state after: h + z (c - h), and x + p (h - x)."""
    candidate, _slope, z, p = mingru_gates(hidden, gate, highway, SHAPE)
    h = tl.fma(z, candidate - h, h)
    return tl.fma(p, h - x, x), h


@triton.jit
def lstm_gates(i, f, o, g, SHAPE: tl.constexpr):
    """The gates, and the candidate."""
    return (
        sigmoid(i, SHAPE.approximate),
        sigmoid(f, SHAPE.approximate),
        sigmoid(o, SHAPE.approximate),
        tanh(g, SHAPE.approximate),
    )


@triton.jit
def lstm_step(i, f, o, g, c, SHAPE: tl.constexpr):
    """C and h after: f c + i g, and o tanh(c)."""
    c = tl.fma(f, c, i * g)
    return c, o * tanh(c, SHAPE.approximate)


@triton.jit
def gru_step(share, recurrent, r, z, h, SHAPE: tl.constexpr):
    """H after, from what the input adds to n, and W h + b of it: n + z (h - n), n = tanh(share + r (W h +
    b)); and n.
    """
    n = tanh(tl.fma(r, recurrent, share), SHAPE.approximate)
    return tl.fma(z, h - n, n), n


# A STEP OF THE WHOLE MEMORY, TO ACT


@triton.jit
def held_weights(packed, SHAPE: tl.constexpr):
    """All weights, as right operands, where they are few: layer after layer, the input's before the layer's own, gate
    after gate. Otherwise none.
    """
    COUNT: tl.constexpr = SHAPE.layers * SHAPE.matrices * SHAPE.gates if SHAPE.held else 0
    held = ()
    for k in tl.static_range(COUNT):
        held = held + (gate_weight(packed, k, SHAPE),)
    return held


@triton.jit
def _weight(held, packed, SHAPE: tl.constexpr, LAYER: tl.constexpr, WHICH: tl.constexpr, GATE: tl.constexpr):
    """A layer's weight of a gate: 0 its input's, 1 its own."""
    PLACE: tl.constexpr = (LAYER * SHAPE.matrices + WHICH) * SHAPE.gates + GATE
    if SHAPE.held:
        return held[PLACE]
    else:
        return gate_weight(packed, PLACE, SHAPE)


@triton.jit
def load_states(where, lane, in_bounds, lanes, SHAPE: tl.constexpr):
    """Of each layer h, and of an LSTM c, (lanes, P) each."""
    unit = tl.arange(0, SHAPE.pad)
    mask = in_bounds[:, None] & (unit < SHAPE.units)[None, :]
    COUNT: tl.constexpr = SHAPE.layers
    states = ()
    for k in tl.static_range(COUNT):
        h = tl.load(where.state + state_place(lane, 0, unit, lanes, SHAPE, k, 0, True), mask=mask, other=0.0)
        if SHAPE.kind == "lstm":
            states = states + (
                h,
                tl.load(where.state + state_place(lane, 0, unit, lanes, SHAPE, k, 1, True), mask=mask, other=0.0),
            )
        else:
            states = states + (h,)
    return states


@triton.jit
def network_step(x, states, held, packed, parameters, where, lane, keep, in_bounds, lanes, SHAPE: tl.constexpr, WRITE):
    """All layers' step from what the first reads (rows, P), as an operand; where WRITE the state after is kept. The
    last output, as an operand.
    """
    unit = tl.arange(0, SHAPE.pad)
    mask = in_bounds[:, None] & (unit < SHAPE.units)[None, :]
    LAYERS: tl.constexpr = SHAPE.layers
    for k in tl.static_range(LAYERS):
        place = where.state + state_place(lane, 0, unit, lanes, SHAPE, k, 0, True)
        if SHAPE.kind == "lstm":
            out, c = _lstm_step(
                x,
                states[2 * k] * keep[:, None],
                states[2 * k + 1] * keep[:, None],
                held,
                packed,
                parameters,
                unit,
                SHAPE,
                k,
            )
            h = out
            tl.store(where.state + state_place(lane, 0, unit, lanes, SHAPE, k, 1, True), c, mask=mask & WRITE)
        elif SHAPE.kind == "gru":
            out = _gru_step(x, states[k] * keep[:, None], held, packed, parameters, unit, SHAPE, k)
            h = out
        else:
            out, h = _mingru_step(x, states[k] * keep[:, None], held, packed, parameters, unit, SHAPE, k)
        tl.store(place, h, mask=mask & WRITE)
        x = stored(out, SHAPE)
    return x


@triton.jit
def _share(x, h, weight, parameters, unit, SHAPE: tl.constexpr, LAYER: tl.constexpr, GATE: tl.constexpr):
    """What a layer's input (rows, P) adds to a gate, in the shape of its state `h`: rounded where it lies in memory in
    training.
    """
    total = add_dot(
        x, weight, tl.zeros_like(h) + gate_bias(parameters + SHAPE.input_biases[LAYER], GATE, unit, SHAPE), SHAPE
    )
    return total if SHAPE.fused else stored(total, SHAPE).to(tl.float32)


@triton.jit
def _mingru_step(x, h, held, packed, parameters, unit, SHAPE: tl.constexpr, LAYER: tl.constexpr):
    first, second = _weight(held, packed, SHAPE, LAYER, 0, 0), _weight(held, packed, SHAPE, LAYER, 0, 1)
    hidden = _share(x, h, first, parameters, unit, SHAPE, LAYER, 0)
    third = _weight(held, packed, SHAPE, LAYER, 0, 2)
    gate = _share(x, h, second, parameters, unit, SHAPE, LAYER, 1)
    return mingru_step(hidden, gate, _share(x, h, third, parameters, unit, SHAPE, LAYER, 2), x.to(tl.float32), h, SHAPE)


@triton.jit
def _gate(
    x,
    h,
    weight,
    held,
    packed,
    parameters,
    unit,
    SHAPE: tl.constexpr,
    LAYER: tl.constexpr,
    GATE: tl.constexpr,
    NEXT: tl.constexpr,
):
    """A gate before it is squashed, from its input's share on; and the input's weight of gate NEXT. Weights are asked
    for a product ahead.
    """
    own = _weight(held, packed, SHAPE, LAYER, 1, GATE)
    share = _share(x, h, weight, parameters, unit, SHAPE, LAYER, GATE)
    following = _weight(held, packed, SHAPE, LAYER, 0, NEXT)
    return add_dot(stored(h, SHAPE), own, share, SHAPE), following


@triton.jit
def _lstm_step(x, h, c, held, packed, parameters, unit, SHAPE: tl.constexpr, LAYER: tl.constexpr):
    weight = _weight(held, packed, SHAPE, LAYER, 0, 0)
    i, weight = _gate(x, h, weight, held, packed, parameters, unit, SHAPE, LAYER, 0, 3)
    g, weight = _gate(x, h, weight, held, packed, parameters, unit, SHAPE, LAYER, 3, 1)
    f, weight = _gate(x, h, weight, held, packed, parameters, unit, SHAPE, LAYER, 1, 2)
    o, _last = _gate(x, h, weight, held, packed, parameters, unit, SHAPE, LAYER, 2, 2)
    i, f, o, g = lstm_gates(i, f, o, g, SHAPE)
    c, h = lstm_step(i, f, o, g, c, SHAPE)
    return h, c


@triton.jit
def _gru_step(x, h, held, packed, parameters, unit, SHAPE: tl.constexpr, LAYER: tl.constexpr):
    weight = _weight(held, packed, SHAPE, LAYER, 0, 0)
    r, weight = _gate(x, h, weight, held, packed, parameters, unit, SHAPE, LAYER, 0, 1)
    z, weight = _gate(x, h, weight, held, packed, parameters, unit, SHAPE, LAYER, 1, 2)
    own = _weight(held, packed, SHAPE, LAYER, 1, 2)
    share = _share(x, h, weight, parameters, unit, SHAPE, LAYER, 2)
    recurrent = add_dot(
        stored(h, SHAPE),
        own,
        tl.zeros_like(h) + gate_bias(parameters + SHAPE.state_biases[LAYER], 0, unit, SHAPE),
        SHAPE,
    )
    return gru_step(share, recurrent, sigmoid(r, SHAPE.approximate), sigmoid(z, SHAPE.approximate), h, SHAPE)[0]


@triton.jit
def _tile_product(x, packed, WHICH: tl.constexpr, GATE: tl.constexpr, unit, total, SHAPE: tl.constexpr):
    """Total + what a layer's input or state (rows, P) adds to a gate of some units, in a network of one layer."""
    place = (
        packed
        + ((WHICH * SHAPE.gates + GATE) * SHAPE.pad + unit[None, :]) * SHAPE.pad
        + tl.arange(0, SHAPE.pad)[:, None]
    )
    return add_dot(x, tl.load(place), total, SHAPE)


@triton.jit
def _tile_share(x, packed, parameters, GATE: tl.constexpr, unit, zero, SHAPE: tl.constexpr):
    """What a layer's input adds to a gate of some units, rounded as where it lies in memory in training."""
    total = _tile_product(
        x, packed, 0, GATE, unit, zero + gate_bias(parameters + SHAPE.input_biases[0], GATE, unit, SHAPE), SHAPE
    )
    return stored(total, SHAPE).to(tl.float32)


@triton.jit
def _tile_gate(x, h, packed, parameters, GATE: tl.constexpr, unit, zero, SHAPE: tl.constexpr):
    """A gate of some units before it is squashed."""
    return _tile_product(h, packed, 1, GATE, unit, _tile_share(x, packed, parameters, GATE, unit, zero, SHAPE), SHAPE)


@triton.jit
def tile_step(x, h, packed, parameters, where, lane, unit, keep, in_bounds, lanes, SHAPE: tl.constexpr, WRITE):
    """Some units' step of a GRU or an LSTM of one layer, from what it reads and all units' state, operands (rows, P)
    both; where WRITE the state after is kept.

    Their output (rows, units), as an operand.
    """
    mask = in_bounds[:, None] & (unit < SHAPE.units)[None, :]
    place = where.state + state_place(lane, 0, unit, lanes, SHAPE, 0, 0, True)
    last = where.state + state_place(lane, 0, unit, lanes, SHAPE, 0, SHAPE.kind == "lstm", True)
    own = tl.load(last, mask=mask, other=0.0) * keep[:, None]  # of an LSTM c
    zero = tl.zeros_like(own)
    first = sigmoid(_tile_gate(x, h, packed, parameters, 0, unit, zero, SHAPE), SHAPE.approximate)
    second = sigmoid(_tile_gate(x, h, packed, parameters, 1, unit, zero, SHAPE), SHAPE.approximate)
    if SHAPE.kind == "lstm":
        third = sigmoid(_tile_gate(x, h, packed, parameters, 2, unit, zero, SHAPE), SHAPE.approximate)
        c, out = lstm_step(
            first,
            second,
            third,
            tanh(_tile_gate(x, h, packed, parameters, 3, unit, zero, SHAPE), SHAPE.approximate),
            own,
            SHAPE,
        )
        tl.store(last, c, mask=mask & WRITE)
    else:
        share = _tile_share(x, packed, parameters, 2, unit, zero, SHAPE)
        recurrent = _tile_product(
            h, packed, 1, 2, unit, zero + gate_bias(parameters + SHAPE.state_biases[0], 0, unit, SHAPE), SHAPE
        )
        out, _n = gru_step(share, recurrent, first, second, own, SHAPE)
    tl.store(place, out, mask=mask & WRITE)
    return stored(out, SHAPE)
