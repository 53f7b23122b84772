"""Triton kernels of recurrent cells over segments: forward, and back through time. A program owns its lanes for all
steps. Know no network and no loss.

MinGRU's gates do not depend on the state: they are worked out before, for all rows at once, or where they are used
(SHAPE.fused), forward and back alike. Those of GRU and LSTM do: a program holds the recurrent weights, or goes through
them in parts at each step. Its gates' buffer holds first what the input adds, then the gates, and on the way back their
gradients. What a step begins with is stored, 0 where an episode begins, as are outputs; c and h after a step are worked
out again.

The loop over steps is not pipelined (`num_stages=1`): what a step needs of memory is asked for a step ahead, by hand.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.recurrent import cells

add_dot, stored, activation_gradient, tanh = cells.add_dot, cells.stored, cells.activation_gradient, cells.tanh
gate_bias, gate_transposed, gate_weight = cells.gate_bias, cells.gate_transposed, cells.gate_weight
gru_step, kept = cells.gru_step, cells.kept
lanes_of, lstm_gates, lstm_step, mingru_gates = cells.lanes_of, cells.lstm_gates, cells.lstm_step, cells.mingru_gates
present_of = cells.present_of
sigmoid, state_place = cells.sigmoid, cells.state_place


@triton.jit
def _held(packed, SHAPE: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Weights of all gates, as a tuple of operands."""
    GATES: tl.constexpr = SHAPE.gates
    held = ()
    for k in tl.static_range(GATES):
        held = held + (gate_transposed(packed, k, SHAPE) if TRANSPOSED else gate_weight(packed, k, SHAPE),)
    return held


@triton.jit
def _biases(biases, unit, SHAPE: tl.constexpr):
    """An input's biases of all gates."""
    GATES: tl.constexpr = SHAPE.gates
    held = ()
    for k in tl.static_range(GATES):
        held = held + (gate_bias(biases, k, unit, SHAPE),)
    return held


@triton.jit
def _three(buffer, place, mask, SHAPE: tl.constexpr):
    """Gates 0, 1 and 2 of rows, in float32."""
    first = tl.load(buffer + place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(buffer + place + SHAPE.pad, mask=mask, other=0.0).to(tl.float32)
    return first, second, tl.load(buffer + place + 2 * SHAPE.pad, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _four(buffer, place, mask, SHAPE: tl.constexpr):
    """All four, as they are stored."""
    first, second = (
        tl.load(buffer + place, mask=mask, other=0.0),
        tl.load(buffer + place + SHAPE.pad, mask=mask, other=0.0),
    )
    return (
        first,
        second,
        tl.load(buffer + place + 2 * SHAPE.pad, mask=mask, other=0.0),
        tl.load(buffer + place + 3 * SHAPE.pad, mask=mask, other=0.0),
    )


@triton.jit
def _store_four(buffer, place, mask, values, SHAPE: tl.constexpr):
    for k in tl.static_range(4):
        tl.store(buffer + place + k * SHAPE.pad, stored(values[k], SHAPE), mask=mask)


# MINGRU


@triton.jit
def _worked_out(x, weights, biases, SHAPE: tl.constexpr):
    """What MinGRU's gates are made of, from a layer's input (rows, P)."""
    zero = tl.zeros(x.shape, tl.float32)
    first, second = add_dot(x, weights[0], zero + biases[0], SHAPE), add_dot(x, weights[1], zero + biases[1], SHAPE)
    return first, second, add_dot(x, weights[2], zero + biases[2], SHAPE)


@triton.jit(do_not_specialize=["count", "layer"])
def mingru_forward(
    where,
    x,
    gates,
    packed,
    input_biases,
    output,
    before,
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
    """A layer's outputs (rows, P) from its inputs `x`, and what each step begins with. `gates` (rows, 3 P) are read
    where they are not worked out here.
    """
    PAD: tl.constexpr = SHAPE.pad
    s, unit = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, PAD)
    present = present_of(where, s, count, FINALS)
    mask = present[:, None] & (unit < PAD)[None, :]
    lane, t, row = lanes_of(where, s, present, lanes, SHAPE, ACT)
    weights = ()
    biases = ()
    if SHAPE.fused:
        weights = _held(packed, SHAPE, False)
        biases = _biases(input_biases, unit, SHAPE)
    own = state_place(lane, t, unit, lanes, SHAPE, layer, 0, ACT)
    own_mask = present[:, None] & (unit < SHAPE.units)[None, :]
    h = tl.load(where.state + own, mask=own_mask, other=0.0)
    place, gate_place = row[:, None] * PAD + unit[None, :], row[:, None] * SHAPE.columns + unit[None, :]
    features, keep = tl.load(x + place, mask=mask, other=0.0), kept(where, lane, t, present, lanes)
    for step in tl.range(0, STEPS, num_stages=1):
        more = mask & (step + 1 < STEPS)
        next_features = tl.load(x + place + SHAPE.block * PAD, mask=more, other=0.0)
        next_keep = kept(where, lane, t + step + 1, present & (step + 1 < STEPS), lanes)
        h *= keep[:, None]
        if not ACT:
            tl.store(before + place, stored(h, SHAPE), mask=mask)
        if SHAPE.fused:
            made = _worked_out(features, weights, biases, SHAPE)
        else:
            made = _three(gates, gate_place, mask, SHAPE)
        out, h = cells.mingru_step(made[0], made[1], made[2], features.to(tl.float32), h, SHAPE)
        tl.store(output + place, stored(out, SHAPE), mask=mask)
        features = next_features
        keep = next_keep
        place += SHAPE.block * PAD
        gate_place += SHAPE.block * SHAPE.columns
    if WRITE:
        tl.store(where.state + own, h, mask=own_mask)


@triton.jit(do_not_specialize=["count"])
def mingru_backward(
    where,
    x,
    gates,
    packed,
    input_biases,
    before,
    gradient,
    saved,
    by_features,
    count,
    lanes,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """From the gradient in a layer's outputs (rows, P): those in the gates, into `gates`; and in its inputs, with
    SHAPE.fused all of it, otherwise without what the gates pass on. With SLOPE, through the activation of the layer
    below, too, from what that has `saved`.
    """
    PAD: tl.constexpr = SHAPE.pad
    s, unit = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, PAD)
    present = s < count
    mask = present[:, None] & (unit < PAD)[None, :]
    lane, t, row = lanes_of(where, s, present, lanes, SHAPE, False)
    weights = ()
    transposed = ()
    biases = ()
    if SHAPE.fused:
        weights = _held(packed, SHAPE, False)
        transposed = _held(packed, SHAPE, True)
        biases = _biases(input_biases, unit, SHAPE)
    row += (STEPS - 1) * SHAPE.block
    place, gate_place = row[:, None] * PAD + unit[None, :], row[:, None] * SHAPE.columns + unit[None, :]
    carried = tl.zeros((BLOCK_B, PAD), tl.float32)  # dL / dh, of the steps behind
    features, own = tl.load(x + place, mask=mask, other=0.0), tl.load(before + place, mask=mask, other=0.0)
    outer, keep = tl.load(gradient + place, mask=mask, other=0.0), kept(where, lane, t + STEPS - 1, present, lanes)
    for step in tl.range(0, STEPS, num_stages=1):
        more, following = mask & (step + 1 < STEPS), place - SHAPE.block * PAD
        next_features, next_own = (
            tl.load(x + following, mask=more, other=0.0),
            tl.load(before + following, mask=more, other=0.0),
        )
        next_outer = tl.load(gradient + following, mask=more, other=0.0)
        next_keep = kept(where, lane, t + STEPS - 2 - step, present & (step + 1 < STEPS), lanes)
        if SHAPE.fused:
            made = _worked_out(features, weights, biases, SHAPE)
        else:
            made = _three(gates, gate_place, mask, SHAPE)
        candidate, slope, z, p = mingru_gates(made[0], made[1], made[2], SHAPE)
        h, g, xf = own.to(tl.float32), outer.to(tl.float32), features.to(tl.float32)
        # The output is x + p (h' - x), and h' = h + z (c - h).
        carried += g * p
        by_highway = stored(g * (h + z * (candidate - h) - xf) * p * (1.0 - p), SHAPE)
        by_gate = stored(carried * (candidate - h) * z * (1.0 - z), SHAPE)
        by_hidden = stored(carried * z * slope, SHAPE)
        tl.store(gates + gate_place, by_hidden, mask=mask)
        tl.store(gates + gate_place + PAD, by_gate, mask=mask)
        tl.store(gates + gate_place + 2 * PAD, by_highway, mask=mask)
        back = g * (1.0 - p)
        if SHAPE.fused:
            back = add_dot(
                by_highway,
                transposed[2],
                add_dot(by_gate, transposed[1], add_dot(by_hidden, transposed[0], back, SHAPE), SHAPE),
                SHAPE,
            )
        if SLOPE:
            back *= activation_gradient(tl.load(saved + place, mask=mask, other=0.0), SPEC)
        tl.store(by_features + place, stored(back, SHAPE), mask=mask)
        carried *= (1.0 - z) * keep[:, None]
        features = next_features
        own = next_own
        outer = next_outer
        keep = next_keep
        place = following
        gate_place -= SHAPE.block * SHAPE.columns


# GRU AND LSTM


@triton.jit
def _in_parts(rows, weights, ACROSS: tl.constexpr, DOWN: tl.constexpr, total, present, SHAPE: tl.constexpr):
    """Total + what lies at pointers `rows` (lanes) times a weight of a gate, whose columns and depths are ACROSS and
    DOWN numbers apart, some at a time.
    """
    depth, unit = tl.arange(0, SHAPE.part), tl.arange(0, SHAPE.pad)
    for start in tl.range(0, SHAPE.pad, SHAPE.part):
        part = tl.load(rows[:, None] + (start + depth)[None, :], mask=present[:, None], other=0.0)
        total = add_dot(part, tl.load(weights + (start + depth)[:, None] * DOWN + unit[None, :] * ACROSS), total, SHAPE)
    return total


@triton.jit
def _product(h, rows, present, held, packed, gate: tl.constexpr, total, SHAPE: tl.constexpr):
    """Total + W h of a gate (lanes, P). `rows`: pointers to where h has been stored."""
    if SHAPE.in_parts:
        return _in_parts(rows, packed + gate * SHAPE.pad * SHAPE.pad, SHAPE.pad, 1, total, present, SHAPE)
    else:
        return add_dot(h, held[gate], total, SHAPE)


@triton.jit
def _back_through(total, found, rows, present, held, packed, SHAPE: tl.constexpr):
    """Total + W^T g of all gates' gradients, (lanes, P), the last a GRU's in W h + b of n. `rows`: pointers to where
    they have been stored.
    """
    GATES: tl.constexpr = SHAPE.gates
    for k in tl.static_range(GATES):
        if SHAPE.in_parts:
            total = _in_parts(
                rows + SHAPE.own_places[k] * SHAPE.pad,
                packed + k * SHAPE.pad * SHAPE.pad,
                1,
                SHAPE.pad,
                total,
                present,
                SHAPE,
            )
        else:
            total = add_dot(stored(found[SHAPE.own_places[k]], SHAPE), held[k], total, SHAPE)
    return total


@triton.jit(do_not_specialize=["count", "layer"])
def lstm_forward(
    where,
    gates,
    packed,
    output,
    before,
    cells_before,
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
    """A layer's outputs (rows, P) from what its input adds to the gates (rows, 4 P): i, f, o and g, which take its
    place. `packed`: recurrent weights.
    """
    PAD: tl.constexpr = SHAPE.pad
    s, unit = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, PAD)
    present = present_of(where, s, count, FINALS)
    mask = present[:, None] & (unit < PAD)[None, :]
    lane, t, row = lanes_of(where, s, present, lanes, SHAPE, ACT)
    held = ()
    if SHAPE.resident:
        held = _held(packed, SHAPE, False)
    own, own_cell = (
        state_place(lane, t, unit, lanes, SHAPE, layer, 0, ACT),
        state_place(lane, t, unit, lanes, SHAPE, layer, 1, ACT),
    )
    own_mask = present[:, None] & (unit < SHAPE.units)[None, :]
    h, c = (
        tl.load(where.state + own, mask=own_mask, other=0.0),
        tl.load(where.state + own_cell, mask=own_mask, other=0.0),
    )
    place, gate_place = row[:, None] * PAD + unit[None, :], row[:, None] * SHAPE.columns + unit[None, :]
    added, keep, own_row = _four(gates, gate_place, mask, SHAPE), kept(where, lane, t, present, lanes), row * PAD
    for step in tl.range(0, STEPS, num_stages=1):
        next_added = _four(gates, gate_place + SHAPE.block * SHAPE.columns, mask & (step + 1 < STEPS), SHAPE)
        next_keep = kept(where, lane, t + step + 1, present & (step + 1 < STEPS), lanes)
        c *= keep[:, None]
        operand = stored(h * keep[:, None], SHAPE)
        if not ACT or SHAPE.in_parts:
            tl.store(before + place, operand, mask=mask)
        if not ACT:
            tl.store(cells_before + place, stored(c, SHAPE), mask=mask)
        if SHAPE.in_parts:
            tl.debug_barrier()
        i = _product(operand, before + own_row, present, held, packed, 0, added[0].to(tl.float32), SHAPE)
        f = _product(operand, before + own_row, present, held, packed, 1, added[1].to(tl.float32), SHAPE)
        o = _product(operand, before + own_row, present, held, packed, 2, added[2].to(tl.float32), SHAPE)
        g = _product(operand, before + own_row, present, held, packed, 3, added[3].to(tl.float32), SHAPE)
        i, f, o, g = lstm_gates(i, f, o, g, SHAPE)
        c, h = lstm_step(i, f, o, g, c, SHAPE)
        if not ACT:
            _store_four(gates, gate_place, mask, (i, f, o, g), SHAPE)
        tl.store(output + place, stored(h, SHAPE), mask=mask)
        added = next_added
        keep = next_keep
        own_row += SHAPE.block * PAD
        place += SHAPE.block * PAD
        gate_place += SHAPE.block * SHAPE.columns
    if WRITE:
        tl.store(where.state + own, h, mask=own_mask)
        tl.store(where.state + own_cell, c, mask=own_mask)


@triton.jit(do_not_specialize=["count", "layer"])
def gru_forward(
    where,
    gates,
    packed,
    state_bias,
    output,
    before,
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
    """A layer's outputs (rows, P) from what its input adds to r, z and n (rows, 4 P): they, and W h + b of n, take its
    place.
    """
    PAD: tl.constexpr = SHAPE.pad
    s, unit = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, PAD)
    present = present_of(where, s, count, FINALS)
    mask = present[:, None] & (unit < PAD)[None, :]
    lane, t, row = lanes_of(where, s, present, lanes, SHAPE, ACT)
    held = ()
    if SHAPE.resident:
        held = _held(packed, SHAPE, False)
    bias = gate_bias(state_bias, 0, unit, SHAPE)
    own, own_mask = (
        state_place(lane, t, unit, lanes, SHAPE, layer, 0, ACT),
        present[:, None] & (unit < SHAPE.units)[None, :],
    )
    h = tl.load(where.state + own, mask=own_mask, other=0.0)
    place, gate_place = row[:, None] * PAD + unit[None, :], row[:, None] * SHAPE.columns + unit[None, :]
    added, keep, own_row = _three(gates, gate_place, mask, SHAPE), kept(where, lane, t, present, lanes), row * PAD
    for step in tl.range(0, STEPS, num_stages=1):
        next_added = _three(gates, gate_place + SHAPE.block * SHAPE.columns, mask & (step + 1 < STEPS), SHAPE)
        next_keep = kept(where, lane, t + step + 1, present & (step + 1 < STEPS), lanes)
        h *= keep[:, None]
        operand = stored(h, SHAPE)
        if not ACT or SHAPE.in_parts:
            tl.store(before + place, operand, mask=mask)
        if SHAPE.in_parts:
            tl.debug_barrier()
        r = sigmoid(_product(operand, before + own_row, present, held, packed, 0, added[0], SHAPE), SHAPE.approximate)
        z = sigmoid(_product(operand, before + own_row, present, held, packed, 1, added[1], SHAPE), SHAPE.approximate)
        recurrent = _product(
            operand, before + own_row, present, held, packed, 2, tl.zeros(h.shape, tl.float32) + bias, SHAPE
        )
        h, n = gru_step(added[2], recurrent, r, z, h, SHAPE)
        if not ACT:
            _store_four(gates, gate_place, mask, (r, z, n, recurrent), SHAPE)
        tl.store(output + place, stored(h, SHAPE), mask=mask)
        added = next_added
        keep = next_keep
        own_row += SHAPE.block * PAD
        place += SHAPE.block * PAD
        gate_place += SHAPE.block * SHAPE.columns
    if WRITE:
        tl.store(where.state + own, h, mask=own_mask)


@triton.jit
def _lstm_back(opened, c, carried, by_cell, SHAPE: tl.constexpr):
    """From the gradients in h' and c': those in what the input adds to the gates, and in c."""
    i, f, o, g = opened[0].to(tl.float32), opened[1].to(tl.float32), opened[2].to(tl.float32), opened[3].to(tl.float32)
    # h' = o tanh(c'), c' = f c + i g
    squashed = tanh(tl.fma(f, c, i * g), SHAPE.approximate)
    by_cell += carried * o * (1.0 - squashed * squashed)
    by_i, by_f = by_cell * g * i * (1.0 - i), by_cell * c * f * (1.0 - f)
    return (by_i, by_f, carried * squashed * o * (1.0 - o), by_cell * i * (1.0 - g * g)), by_cell * f


@triton.jit
def _gru_back(opened, h, carried):
    """From the gradient in h': those in what the input adds to the gates and in W h + b of n; and in h, but for what
    goes through the gates.
    """
    r, z, n, recurrent = (
        opened[0].to(tl.float32),
        opened[1].to(tl.float32),
        opened[2].to(tl.float32),
        opened[3].to(tl.float32),
    )
    # h' = n + z (h - n), n = tanh(x + r (W h + b))
    by_n = carried * (1.0 - z) * (1.0 - n * n)
    return (by_n * recurrent * r * (1.0 - r), carried * (h - n) * z * (1.0 - z), by_n, by_n * r), carried * z


@triton.jit(do_not_specialize=["count"])
def gated_backward(
    where,
    gates,
    packed,
    before,
    gradient,
    count,
    lanes,
    SHAPE: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """From the gradient in a GRU's or an LSTM's outputs (rows, P): those in what the input adds to the gates, and in W
    h + b of a GRU's n, in place of these in `gates`. `before`: h of a GRU, c of an LSTM.
    """
    PAD: tl.constexpr = SHAPE.pad
    s, unit = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, PAD)
    present = s < count
    mask = present[:, None] & (unit < PAD)[None, :]
    lane, t, row = lanes_of(where, s, present, lanes, SHAPE, False)
    held = ()
    if SHAPE.resident:
        held = _held(packed, SHAPE, True)
    row += (STEPS - 1) * SHAPE.block
    place, gate_place = row[:, None] * PAD + unit[None, :], row[:, None] * SHAPE.columns + unit[None, :]
    carried = tl.zeros((BLOCK_B, PAD), tl.float32)  # dL / dh and dL / dc, of the steps behind
    by_cell = carried
    opened, own = _four(gates, gate_place, mask, SHAPE), tl.load(before + place, mask=mask, other=0.0)
    outer, keep, own_row = (
        tl.load(gradient + place, mask=mask, other=0.0),
        kept(where, lane, t + STEPS - 1, present, lanes),
        row * SHAPE.columns,
    )
    for step in tl.range(0, STEPS, num_stages=1):
        more, following = mask & (step + 1 < STEPS), place - SHAPE.block * PAD
        next_opened = _four(gates, gate_place - SHAPE.block * SHAPE.columns, more, SHAPE)
        next_own, next_outer = (
            tl.load(before + following, mask=more, other=0.0),
            tl.load(gradient + following, mask=more, other=0.0),
        )
        next_keep = kept(where, lane, t + STEPS - 2 - step, present & (step + 1 < STEPS), lanes)
        carried += outer.to(tl.float32)
        if SHAPE.kind == "lstm":
            found, by_cell = _lstm_back(opened, own.to(tl.float32), carried, by_cell, SHAPE)
            carried = tl.zeros((BLOCK_B, PAD), tl.float32)
            by_cell *= keep[:, None]
        else:
            found, carried = _gru_back(opened, own.to(tl.float32), carried)
        _store_four(gates, gate_place, mask, found, SHAPE)
        if SHAPE.in_parts:
            tl.debug_barrier()
        carried = keep[:, None] * _back_through(carried, found, gates + own_row, present, held, packed, SHAPE)
        opened = next_opened
        own = next_own
        outer = next_outer
        keep = next_keep
        place = following
        own_row -= SHAPE.block * SHAPE.columns
        gate_place -= SHAPE.block * SHAPE.columns
