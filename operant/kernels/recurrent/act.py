"""Triton kernels that read observations for a memory. To act, a tile of lanes goes through encoder, cells and heads in
one launch, the state updated in place; to learn, a minibatch's rows through the first layer, straight from where the
rollout has them. Know no loss.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.network import column_mask, hidden_forward, load_last, load_network, out_bias
from operant.kernels.observations import feature_of, first_operand, load_normalized, normalize, one_hot
from operant.kernels.ops.activation import activate, saved_activation
from operant.kernels.ops.linear import load_matrix, operand, select_column
from operant.kernels.recurrent import cells

kept = cells.kept
held_weights, load_states, network_step, tile_step = (
    cells.held_weights,
    cells.load_states,
    cells.network_step,
    cells.tile_step,
)
add_dot, stored, zeros = cells.add_dot, cells.stored, cells.zeros


@triton.jit
def _load_packed_first(first, column, SPEC: tl.constexpr):
    """The first layer's packed weight as its product's right operand, (columns, H)."""
    unit = tl.arange(0, SPEC.hidden_pad[0])
    return tl.load(first + unit[None, :] * SPEC.columns_pad + column[:, None])


@triton.jit
def _load_first_operand(observation, normalizer, lane, in_bounds, t, lanes, SPEC: tl.constexpr):
    """What the first layer reads at step t, (rows, columns_pad), as its product takes it in learning, too: of bytes in
    the precision of all others.
    """
    x = load_normalized(observation, normalizer, lane, in_bounds, t, lanes, SPEC)
    if SPEC.bytes:  # which would order the product's terms: see `act`
        x = tl.max(tl.join(x, x), axis=2)
    return stored(x, SPEC) if SPEC.bytes and SPEC.precision == "bf16" else first_operand(x, SPEC)


@triton.jit
def _first_product(x, weight, SPEC: tl.constexpr):
    """The first layer before its activation: of other than bytes never with fewer bits than tf32."""
    return tl.dot(x, weight, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def _later_weights(parameters, SPEC: tl.constexpr):
    """The encoder's later weights, as right operands, rounded as those that training packs."""
    weights = ()
    for k in tl.static_range(len(SPEC.weights)):
        weight = load_matrix(
            parameters + SPEC.weights[k], SPEC.hidden[k + 1], SPEC.hidden[k], SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k]
        )
        weights = weights + (tl.trans(stored(weight, SPEC)),)
    return weights


@triton.jit
def _encoded(z, weights, network, SPEC: tl.constexpr, BLOCK_M: tl.constexpr):
    """What the last hidden layer puts out, as an operand, from what the first one has computed: to the bit of
    `operant.kernels.layers.forward_layer`.
    """
    h = _activations(z, network, SPEC, 0)
    for k in tl.static_range(len(SPEC.weights)):
        z = add_dot(h, weights[k], zeros(BLOCK_M, SPEC.hidden_pad[k + 1]) + network[2][k][None, :], SPEC)
        h = _activations(z, network, SPEC, k + 1)
    return h


@triton.jit
def _activations(z, network, SPEC: tl.constexpr, LAYER: tl.constexpr):
    if SPEC.layer_norm:  # which reads what a product has stored
        z = operand(z, SPEC).to(tl.float32)
    return stored(hidden_forward(z, network, SPEC, LAYER)[0].to(tl.float32), SPEC)


@triton.jit
def _outputs_in_tiles(
    x,
    h,
    total,
    packed,
    parameters,
    where,
    lane,
    keep,
    in_bounds,
    lanes,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    WRITE,
    UNITS: tl.constexpr,
):
    """Total + the head's product (rows, out_pad) from what the memory's only layer reads and its state (rows, P), some
    units after the other.
    """
    row = tl.arange(0, SPEC.out_pad)[None, :]
    mask = column_mask(row, 0, SPEC)
    operand = stored(h * keep[:, None], SHAPE)
    for start in tl.range(0, SHAPE.pad, UNITS, num_stages=2):
        unit = start + tl.arange(0, UNITS)
        out = tile_step(x, operand, packed, parameters, where, lane, unit, keep, in_bounds, lanes, SHAPE, WRITE)
        place = row * SHAPE.units + unit[:, None]
        head = tl.where(
            row < SPEC.head_rows,
            parameters + SPEC.head_weight + place,
            parameters + SPEC.value_weight + 0 * row + unit[:, None],
        )
        total = add_dot(
            out, stored(tl.load(head, mask=mask & (unit < SHAPE.units)[:, None], other=0.0), SHAPE), total, SHAPE
        )
    return total


@triton.jit(do_not_specialize=["t"])
def act(
    inputs,
    acting,
    final,
    parameters,
    first_weight,
    packed,
    where,
    t,
    lanes,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    SAMPLE: tl.constexpr,
    FINALS: tl.constexpr,
    WINDOW: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    UNITS: tl.constexpr,
):
    """Step t of every lane: what `SAMPLE`, like `operant.kernels.act.sample_and_store`, makes of the outputs, and the
    state after it; with LAST only the value.

    With FINALS a tile of which a lane was truncated by the step before goes through the network twice: first with its
    true final observations and the states before an episode's end is forgotten, for their values.
    """
    lane = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = lane < lanes
    cut = in_bounds & (lane < 0)
    if FINALS:
        cut = tl.load(where.truncated + (t - 1) * lanes + lane, mask=in_bounds & (t > 0), other=0) != 0
    # Triton orders a product's terms by the narrowest numbers that its operands are made of, here the bytes of `kept`.
    # A reduction hides them: learning's order is acting's, too.
    keep = kept(where, lane, t, in_bounds, lanes)
    keep = tl.max(tl.join(keep, keep), axis=1)
    # Weights, and what lanes remember, are asked for before anything waits.
    if not SHAPE.in_tiles:
        weight = _load_packed_first(first_weight, tl.arange(0, SPEC.columns_pad), SPEC)
    held = held_weights(packed, SHAPE)
    states = load_states(where, lane, in_bounds, lanes, SHAPE)
    network, later = load_network(parameters, 0, SPEC, False), _later_weights(parameters, SPEC)
    head_bias = out_bias(parameters, 0, SPEC)
    if not SHAPE.in_tiles:
        head = stored(load_last(parameters, 0, SPEC), SHAPE)
    begin = 1
    if FINALS:
        begin = tl.where(tl.sum(cut.to(tl.int32), axis=0) > 0, 0, 1)
    for turn in tl.range(begin, 2, num_stages=1):
        # Of turn 0 the true final observations of step t - 1, of turn 1 what is seen now.
        source, at = inputs.observation, t
        if turn == 0:
            source = final.observation
            at = (t - 1) // WINDOW
        x = _load_first_operand(source, inputs.normalizer, lane, in_bounds, at, lanes, SPEC)
        if SHAPE.in_tiles:  # which takes the room of it afterwards
            weight = _load_packed_first(first_weight, tl.arange(0, SPEC.columns_pad), SPEC)
        x = _encoded(_first_product(x, weight, SPEC), later, network, SPEC, BLOCK_M)
        remembered, write, out = (
            tl.where(turn == 0, 1.0, keep),
            (turn == 1) & (not LAST),
            zeros(BLOCK_M, SPEC.out_pad) + head_bias[None, :],
        )
        if SHAPE.in_tiles:
            out = _outputs_in_tiles(
                x,
                states[0],
                out,
                packed,
                parameters,
                where,
                lane,
                remembered,
                in_bounds,
                lanes,
                SPEC,
                SHAPE,
                write,
                UNITS,
            )
        else:
            x = network_step(
                x, states, held, packed, parameters, where, lane, remembered, in_bounds, lanes, SHAPE, write
            )
            out = add_dot(x, tl.trans(head), out, SHAPE)
        value = select_column(out, tl.arange(0, SPEC.out_pad), SPEC.head_rows)
        if turn == 0:
            tl.store(final.value + (t - 1) * lanes + lane, value, mask=cut)
        elif LAST:
            tl.store(acting.value + t * lanes + lane, value, mask=in_bounds)
        else:
            SAMPLE(out, lane, in_bounds, inputs.legal_mask, acting, parameters, 0, t, lanes, SPEC)


@triton.jit
def first_layer(
    where,
    inputs,
    first_weight,
    x,
    hidden,
    saved,
    lanes,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    SAVE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Of a minibatch's rows: what the first layer reads, as its weight's gradient takes it, its activations, and with
    SAVE what their gradients need.
    """
    row, column = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, SPEC.columns_pad)
    block = tl.load(where.order + where.first + row // SHAPE.block)
    sample, t = block * SHAPE.block + row % SHAPE.block, block // (lanes // SHAPE.block)
    feature = feature_of(column, inputs.normalizer, SPEC)
    place = (sample + t * (SPEC.observation - 1) * lanes)[:, None] + feature[None, :] * lanes
    observed = tl.load(inputs.observation + place, mask=(feature < SPEC.observation)[None, :], other=0)
    features = first_operand(
        normalize(one_hot(observed, column, inputs.normalizer, SPEC), column, inputs.normalizer, SPEC), SPEC
    )
    tl.store(x + row[:, None] * SPEC.columns_pad + column[None, :], stored(features, SPEC))
    z = _first_product(features, _load_packed_first(first_weight, column, SPEC), SPEC)
    h = stored(activate(z, SPEC), SPEC)
    target = row[:, None] * SPEC.hidden_pad[0] + tl.arange(0, SPEC.hidden_pad[0])[None, :]
    tl.store(hidden + target, h)
    if SAVE:
        tl.store(saved + target, saved_activation(z, h, SPEC))
