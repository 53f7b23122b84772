"""Triton kernels that read observations for a recurrent policy.

    act          encoder, cells and heads of a tile of lanes in one launch; the states are updated in place
    first_layer  first layer of a minibatch's rows, read directly from the rollout

| parameter        | shape           | meaning                                                    |
|------------------|-----------------|------------------------------------------------------------|
| inputs           | Inputs          | observations, normalizer, legal actions                    |
| acting           | Acting          | outputs of acting: actions, log-probabilities, values      |
| final            | Finals          | true final observations and their values                   |
| params_ptr       | flat            | parameter vector of the policy                             |
| first_weight_ptr | (columns, H)    | packed weight of the first layer                           |
| packed_ptr       | (L, 2, K P, P)  | packed weights of the recurrent layers                     |
| seq              | Sequences       | states and ends of episodes                                |
| x_ptr            | (rows, columns) | features of the first layer, saved for its weight gradient |
| hidden_ptr       | (rows, H)       | activations of the first layer                             |
| saved_ptr        | (rows, H)       | saved tensor of its activation                             |
| t, lanes         |                 | step of the rollout, number of lanes                       |
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.network import column_mask, hidden_forward, load_last, load_network, out_bias
from operant.kernels.observations import feature_of, first_operand, load_normalized, normalize, one_hot
from operant.kernels.ops.activation import activate, saved_activation
from operant.kernels.ops.linear import add_product, load_matrix, operand, rounded_operand, select_column, zeros
from operant.kernels.recurrent.cells import load_keep, load_states, load_weights, step_layers, step_units


@triton.jit
def _load_packed_first(first_ptr, column, SPEC: tl.constexpr):
    """Load columns `column` of the first layer's packed weight as the right operand of a product, (columns, H)."""
    unit = tl.arange(0, SPEC.hidden_pad[0])
    return tl.load(first_ptr + unit[None, :] * SPEC.columns_pad + column[:, None])


@triton.jit
def _load_first_operand(observation, normalizer, lane, in_bounds, t, lanes, SPEC: tl.constexpr):
    """Load observations of step t as the first layer's operand, (BLOCK_M, columns_pad): one-hot encoded and normalized.
    Bytes are in the precision of all products, as in training.
    """
    x = load_normalized(observation, normalizer, lane, in_bounds, t, lanes, SPEC)
    if SPEC.bytes:  # hides the bytes from the order of the product's terms, see `act`
        x = tl.max(tl.join(x, x), axis=2)
    return rounded_operand(x, SPEC) if SPEC.bytes and SPEC.precision == "bf16" else first_operand(x, SPEC)


@triton.jit
def _first_product(x, weight, SPEC: tl.constexpr):
    """Return pre-activations of the first layer without its bias, x W; for inputs other than bytes in tf32 at least."""
    return tl.dot(x, weight, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def _later_weights(params_ptr, SPEC: tl.constexpr):
    """Load weights of the encoder's later layers as right operands, a tuple, rounded as packed weights are."""
    weights = ()
    for k in tl.static_range(len(SPEC.weights)):
        weight = load_matrix(
            params_ptr + SPEC.weights[k],
            SPEC.hidden[k + 1],
            SPEC.hidden[k],
            SPEC.hidden_pad[k + 1],
            SPEC.hidden_pad[k],
        )
        weights = weights + (tl.trans(rounded_operand(weight, SPEC)),)
    return weights


@triton.jit
def _encoded(z, weights, network, SPEC: tl.constexpr, BLOCK_M: tl.constexpr):
    """Run the encoder from the first layer's pre-activations z (BLOCK_M, H) on; return the last hidden activations as
    an operand. Bit-identical to `operant.kernels.layers.forward_layer`, which learning uses. `weights`: its later
    weights.
    """
    h = _activations(z, network, SPEC, 0)
    for k in tl.static_range(len(SPEC.weights)):
        z = add_product(h, weights[k], zeros(BLOCK_M, SPEC.hidden_pad[k + 1]) + network[2][k][None, :], SPEC)
        h = _activations(z, network, SPEC, k + 1)
    return h


@triton.jit
def _activations(z, network, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Return activations h = f(z) of layer LAYER as an operand, from its pre-activations z (BLOCK_M, H) with bias; with
    layer normalization in between.
    """
    if SPEC.layer_norm:  # which reads what a product has rounded_operand
        z = operand(z, SPEC).to(tl.float32)
    return rounded_operand(hidden_forward(z, network, SPEC, LAYER)[0].to(tl.float32), SPEC)


@triton.jit
def _outputs_in_tiles(
    x,
    h,
    total,
    packed_ptr,
    params_ptr,
    seq,
    lane,
    keep,
    in_bounds,
    lanes,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    WRITE,
    UNITS: tl.constexpr,
):
    """Step the only recurrent layer from input x and state h, both operands, in blocks of UNITS units, and return
    `total` plus the product (BLOCK_M, out_pad) of its outputs with the output layer's weight.
    """
    row = tl.arange(0, SPEC.out_pad)[None, :]
    mask = column_mask(row, 0, SPEC)
    operand = rounded_operand(h * keep[:, None], SHAPE)
    for start in tl.range(0, SHAPE.pad, UNITS, num_stages=2):
        unit = start + tl.arange(0, UNITS)
        out = step_units(x, operand, packed_ptr, params_ptr, seq, lane, unit, keep, in_bounds, lanes, SHAPE, WRITE)
        offset = row * SHAPE.units + unit[:, None]
        head = tl.where(
            row < SPEC.head_rows,
            params_ptr + SPEC.head_weight + offset,
            params_ptr + SPEC.value_weight + 0 * row + unit[:, None],
        )
        total = add_product(
            out,
            rounded_operand(tl.load(head, mask=mask & (unit < SHAPE.units)[:, None], other=0.0), SHAPE),
            total,
            SHAPE,
        )
    return total


@triton.jit(do_not_specialize=["t"])
def act(
    inputs,
    acting,
    final,
    params_ptr,
    first_weight_ptr,
    packed_ptr,
    seq,
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
    """Act at step t on every lane: encoder, recurrent layers, output layer, then SAMPLE (see
    `operant.kernels.act.sample_and_store`). With LAST only the value is written.

    With FINALS a tile with a lane truncated by the previous step runs twice: first on its true final observations and
    its state before the episode's end, for their values.
    """
    lane = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = lane < lanes
    truncated = in_bounds & (lane < 0)
    if FINALS:
        truncated = tl.load(seq.truncated + (t - 1) * lanes + lane, mask=in_bounds & (t > 0), other=0) != 0
    # Triton orders the terms of a product by the narrowest dtype that its operands derive from, here the bytes of
    # `keep`. A reduction hides them, so that acting and learning sum in one order.
    keep = load_keep(seq, lane, t, in_bounds, lanes)
    keep = tl.max(tl.join(keep, keep), axis=1)
    # Issue the loads of weights and states first.
    if not SHAPE.act_tiled:
        weight = _load_packed_first(first_weight_ptr, tl.arange(0, SPEC.columns_pad), SPEC)
    weights = load_weights(packed_ptr, SHAPE)
    states = load_states(seq, lane, in_bounds, lanes, SHAPE)
    network, later = load_network(params_ptr, 0, SPEC, False), _later_weights(params_ptr, SPEC)
    head_bias = out_bias(params_ptr, 0, SPEC)
    if not SHAPE.act_tiled:
        head = rounded_operand(load_last(params_ptr, 0, SPEC), SHAPE)
    first_run = 1
    if FINALS:
        first_run = tl.where(tl.sum(truncated.to(tl.int32), axis=0) > 0, 0, 1)
    for run in tl.range(first_run, 2, num_stages=1):
        # Run 0: the true final observations of step t - 1. Run 1: the observations of step t.
        source, source_t = inputs.observation, t
        if run == 0:
            source = final.observation
            source_t = (t - 1) // WINDOW
        x = _load_first_operand(source, inputs.normalizer, lane, in_bounds, source_t, lanes, SPEC)
        if SHAPE.act_tiled:  # loaded late: its registers are reused afterwards
            weight = _load_packed_first(first_weight_ptr, tl.arange(0, SPEC.columns_pad), SPEC)
        x = _encoded(_first_product(x, weight, SPEC), later, network, SPEC, BLOCK_M)
        run_keep, write, out = (
            tl.where(run == 0, 1.0, keep),
            (run == 1) & (not LAST),
            zeros(BLOCK_M, SPEC.out_pad) + head_bias[None, :],
        )
        if SHAPE.act_tiled:
            out = _outputs_in_tiles(
                x,
                states[0],
                out,
                packed_ptr,
                params_ptr,
                seq,
                lane,
                run_keep,
                in_bounds,
                lanes,
                SPEC,
                SHAPE,
                write,
                UNITS,
            )
        else:
            x = step_layers(
                x, states, weights, packed_ptr, params_ptr, seq, lane, run_keep, in_bounds, lanes, SHAPE, write
            )
            out = add_product(x, tl.trans(head), out, SHAPE)
        value = select_column(out, tl.arange(0, SPEC.out_pad), SPEC.head_rows)
        if run == 0:
            tl.store(final.value + (t - 1) * lanes + lane, value, mask=truncated)
        elif LAST:
            tl.store(acting.value + t * lanes + lane, value, mask=in_bounds)
        else:
            SAMPLE(out, lane, in_bounds, inputs.legal_mask, acting, params_ptr, 0, t, lanes, SPEC)


@triton.jit
def first_layer(
    seq,
    inputs,
    first_weight_ptr,
    x_ptr,
    hidden_ptr,
    saved_ptr,
    lanes,
    SPEC: tl.constexpr,
    SHAPE: tl.constexpr,
    SAVE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write features, activations and, with SAVE, the saved tensor of the first layer for the rows of a minibatch."""
    row, column = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, SPEC.columns_pad)
    block = tl.load(seq.order + seq.first + row // SHAPE.block)
    sample, t = block * SHAPE.block + row % SHAPE.block, block // (lanes // SHAPE.block)
    feature = feature_of(column, inputs.normalizer, SPEC)
    offset = (sample + t * (SPEC.observation - 1) * lanes)[:, None] + feature[None, :] * lanes
    observed = tl.load(inputs.observation + offset, mask=(feature < SPEC.observation)[None, :], other=0)
    features = first_operand(
        normalize(one_hot(observed, column, inputs.normalizer, SPEC), column, inputs.normalizer, SPEC), SPEC
    )
    tl.store(x_ptr + row[:, None] * SPEC.columns_pad + column[None, :], rounded_operand(features, SPEC))
    z = _first_product(features, _load_packed_first(first_weight_ptr, column, SPEC), SPEC)
    h = rounded_operand(activate(z, SPEC), SPEC)
    target = row[:, None] * SPEC.hidden_pad[0] + tl.arange(0, SPEC.hidden_pad[0])[None, :]
    tl.store(hidden_ptr + target, h)
    if SAVE:
        tl.store(saved_ptr + target, saved_activation(z, h, SPEC))
