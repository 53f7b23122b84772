"""Triton kernels of the heads of wide networks: actions and their log-probabilities, Q values, the losses' gradients,
and acting. A head is the output layer of an actor or a critic. Rows and parts as in `parts`.

Common constants: SPEC: `WideSpec`; NET: `WideNet`; LAYER: index of the last hidden layer; HAS_OUTPUTS: a forward kernel
has computed the head's outputs; BLOCK_M: samples of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.gaussian import (
    action_columns,
    clip,
    is_action,
    load_observation,
    load_uniform,
    normal,
    squashed_gaussian,
    store_action,
)
from operant.kernels.actor_critic.optimizer import SATURATED, SCALAR, min_over_critics, td_targets
from operant.kernels.actor_critic.wide import parts as wide
from operant.kernels.ops.activation import tanh
from operant.kernels.ops.replay import normalize_observation

# ACTORS


@triton.jit
def _load_actor_head(params_ptr, first, p, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Load part p (of the last hidden layer's units) of A rows of the actor's output weight, from row `first` on,
    (part, columns), in the action's columns.
    """
    unit, unit_mask = wide.units(p, NET, LAYER)
    index = (action_columns(SPEC) - SPEC.observation)[None, :]
    mask = unit_mask[:, None] & (index >= 0) & (index < SPEC.action)
    return tl.load(
        params_ptr + NET.head_weight + (first + index) * NET.layers[LAYER].width + unit[:, None],
        mask=mask,
        other=0.0,
    )


@triton.jit
def _gaussian_outputs(
    hidden_ptr,
    row,
    params_ptr,
    HAS_OUTPUTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
):
    """Return means and raw standard deviations, (rows, columns), from the last hidden activations `hidden_ptr` at rows
    `row`; with HAS_OUTPUTS `hidden_ptr` (rows, outputs) holds the outputs already.
    """
    if HAS_OUTPUTS:
        offset = hidden_ptr + row[:, None] * NET.outputs + (action_columns(SPEC) - SPEC.observation)[None, :]
        mask = is_action(SPEC) & (row >= 0)[:, None]
        return tl.load(offset, mask=mask, other=0.0), tl.load(offset + SPEC.action, mask=mask, other=0.0)
    else:
        h = wide.load_rows(hidden_ptr, row, NET, LAYER)
        index = action_columns(SPEC) - SPEC.observation
        index_mask = (index >= 0) & (index < SPEC.action)
        bias_ptr = params_ptr + NET.head_bias + index
        COLUMNS: tl.constexpr = SPEC.action_columns
        mean, raw = tl.zeros((BLOCK_M, COLUMNS), tl.float32), tl.zeros((BLOCK_M, COLUMNS), tl.float32)
        for p in tl.static_range(len(NET.layers[LAYER].parts)):
            mean += wide.dot(h[p], _load_actor_head(params_ptr, 0, p, SPEC, NET, LAYER), SPEC)
            raw += wide.dot(h[p], _load_actor_head(params_ptr, SPEC.action, p, SPEC, NET, LAYER), SPEC)
        mean += tl.load(bias_ptr, mask=index_mask, other=0.0)[None, :]
        return mean, raw + tl.load(bias_ptr + SPEC.action, mask=index_mask, other=0.0)[None, :]


@triton.jit
def _deterministic_action(
    hidden_ptr,
    row,
    params_ptr,
    HAS_OUTPUTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
):
    """Return tanh of a deterministic actor's outputs, (rows, columns), zero outside the action's columns; the
    parameters are those of `_gaussian_outputs`.
    """
    if HAS_OUTPUTS:
        offset = hidden_ptr + row[:, None] * NET.outputs + (action_columns(SPEC) - SPEC.observation)[None, :]
        mean = tl.load(offset, mask=is_action(SPEC) & (row >= 0)[:, None], other=0.0)
    else:
        h = wide.load_rows(hidden_ptr, row, NET, LAYER)
        index = action_columns(SPEC) - SPEC.observation
        COLUMNS: tl.constexpr = SPEC.action_columns
        mean = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
        for p in tl.static_range(len(NET.layers[LAYER].parts)):
            mean += wide.dot(h[p], _load_actor_head(params_ptr, 0, p, SPEC, NET, LAYER), SPEC)
        index_mask = (index >= 0) & (index < SPEC.action)
        mean += tl.load(params_ptr + NET.head_bias + index, mask=index_mask, other=0.0)[None, :]
    return tl.where(is_action(SPEC), tanh(mean, False), 0.0)


@triton.jit
def sample_actions(
    hidden_ptr,
    params_ptr,
    next_params_ptr,
    noise_ptr,
    scalars_ptr,
    inputs_ptr,
    scratch,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    HAS_OUTPUTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write actions at the next observations (program 0 of axis 1) and at the batch's own (program 1). Grid: (B /
    BLOCK_M, 1 or 2).

    | parameter       | shape           | meaning                                                                  |
    |-----------------|-----------------|--------------------------------------------------------------------------|
    | hidden_ptr      | (2 B, width)    | last activations, or outputs: at next observations, at the batch's       |
    | params_ptr      | (P)             | the actor's                                                              |
    | next_params_ptr | (P)             | of the actor at next observations (TD3: the target actor)                |
    | noise_ptr       | (R, B)          | uniform noise                                                            |
    | scalars_ptr     |                 | `Scalars`                                                                |
    | inputs_ptr      | (3, B, columns) | critics' inputs; actions are written to 0 (next), all of 2 (actor's own) |
    | scratch         | struct          | `Scratch`, written                                                       |
    """
    row, index = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(1)
    NET: tl.constexpr = SPEC.actor
    offset = row[:, None] * SPEC.columns + action_columns(SPEC)[None, :]
    mask = is_action(SPEC) & (row >= 0)[:, None]
    if index == 1:
        # the observation of the critics' input at the actor's own action
        column = tl.arange(0, SPEC.columns)[None, :]
        own = (column < SPEC.observation) | (column >= SPEC.observation + SPEC.action)
        observation_ptr = inputs_ptr + SPEC.batch * SPEC.columns + row[:, None] * SPEC.columns + column
        tl.store(observation_ptr + SPEC.batch * SPEC.columns, tl.load(observation_ptr), mask=own & (row >= 0)[:, None])
    if SPEC.stochastic:
        mean, raw = _gaussian_outputs(
            hidden_ptr, index * SPEC.batch + row, params_ptr, HAS_OUTPUTS, BLOCK_M, SPEC, NET, LAYER
        )
        noise = normal(noise_ptr, row, index * 2 * SPEC.action, SPEC.batch, is_action(SPEC), SPEC)
        action, log_prob, std_noise, log_std_grad = squashed_gaussian(mean, raw, noise, SPEC)
        if index == 0:
            tl.store(inputs_ptr + offset, action, mask=mask)
            tl.store(scratch.next_log_prob + row, log_prob)
        else:
            tl.store(inputs_ptr + 2 * SPEC.batch * SPEC.columns + offset, action, mask=mask)
            tl.store(scratch.action + offset, action)
            tl.store(scratch.std_noise + offset, std_noise)
            tl.store(scratch.log_std_grad + offset, log_std_grad)
            tl.store(scratch.log_prob + row, log_prob)
    else:
        if index == 0:
            # a' = clip(mu'(s') + clip(std noise)), Fujimoto, van Hoof & Meger 2018
            action = _deterministic_action(hidden_ptr, row, next_params_ptr, HAS_OUTPUTS, BLOCK_M, SPEC, NET, LAYER)
            noise = normal(noise_ptr, row, 0, SPEC.batch, is_action(SPEC), SPEC)
            noise = clip(tl.load(scalars_ptr + SCALAR.noise_std) * noise, tl.load(scalars_ptr + SCALAR.noise_clip))
            tl.store(inputs_ptr + offset, clip(action + noise, 1.0), mask=mask)
        else:
            action = _deterministic_action(
                hidden_ptr, SPEC.batch + row, params_ptr, HAS_OUTPUTS, BLOCK_M, SPEC, NET, LAYER
            )
            tl.store(inputs_ptr + 2 * SPEC.batch * SPEC.columns + offset, action, mask=mask)
            tl.store(scratch.action + offset, action)


@triton.jit
def _saturated(action):
    """Return 1.0 where an action's absolute value is above 0.98, else 0.0, elementwise."""
    return tl.where(tl.abs(action) > SATURATED, 1.0, 0.0)


@triton.jit
def _output_gradients(scratch, offset, alpha, MASKED: tl.constexpr, SPEC: tl.constexpr):
    """Return gradients of the actor's loss in its means and raw standard deviations (a placeholder for TD3), and the
    actions; each of the shape of `offset`, an index into the (B, columns) buffers of `scratch`.

    MASKED sets the gradients to 0 outside the action's columns; `alpha` is the temperature.
    """
    grad_action = tl.load(scratch.q_gradient + offset)
    if SPEC.stochastic:
        # Of all critics but the lowest the gradient is zero. d log pi / du = 2 a, d log pi / d log std = -1.
        for k in tl.static_range(SPEC.critic.towers - 1):
            grad_action += tl.load(scratch.q_gradient + (k + 1) * SPEC.batch * SPEC.columns + offset)
        action = tl.load(scratch.action + offset)
        grad_mean = alpha * 2.0 / SPEC.batch * action + grad_action * (1.0 - action * action)
        if MASKED:
            grad_mean = tl.where(is_action(SPEC), grad_mean, 0.0)
        grad_raw = (grad_mean * tl.load(scratch.std_noise + offset) - alpha / SPEC.batch) * tl.load(
            scratch.log_std_grad + offset
        )
        if MASKED:
            grad_raw = tl.where(is_action(SPEC), grad_raw, 0.0)
        return grad_mean, grad_raw, action
    else:
        action = tl.load(scratch.action + offset)
        grad_mean = grad_action * (1.0 - action * action)
        if MASKED:
            grad_mean = tl.where(is_action(SPEC), grad_mean, 0.0)
        return grad_mean, grad_mean, action


@triton.jit
def actor_gradient(
    z_ptr,
    moments_ptr,
    grad_z_ptr,
    params_ptr,
    scratch,
    temperature,
    partials_ptr,
    terms_ptr,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Compute the gradient of the actor's loss in its output layer and in its last hidden layer's pre-activations.
    Grid: (NET.programs,).

    The loss is E[alpha log pi - min_c Q_c] for SAC, and E[-Q_1] for TD3.

    | parameter    | shape         | meaning                                                                |
    |--------------|---------------|------------------------------------------------------------------------|
    | z_ptr        | (B, width)    | saved by the forward pass: z, or x_hat                                 |
    | moments_ptr  | (B, 2)        | mean and 1 / std of its rows                                           |
    | grad_z_ptr   | (B, width)    | written                                                                |
    | params_ptr   | (P)           | the actor's                                                            |
    | scratch      | struct        | `Scratch`; `q_gradient` is that of -min_c Q_c / B, or of -Q_1 / B      |
    | temperature  | struct        | `Temperature`                                                          |
    | partials_ptr |               | written: partial sums of vectors' gradients                            |
    | terms_ptr    | (programs, 2) | written: sums of log pi and min_c Q_c, or of saturated actions and Q_1 |
    """
    program = tl.program_id(0)
    NET: tl.constexpr = SPEC.actor
    PARTS: tl.constexpr = NET.layers[LAYER].parts
    COLUMNS: tl.constexpr = SPEC.action_columns
    layer = wide.load_layer(params_ptr, 0, SPEC, NET, LAYER)
    layer_sums = wide.zero_layer_sums(BLOCK_M, NET, LAYER)
    grad_mean_weight = wide.zero_rows(COLUMNS, NET, LAYER)
    if SPEC.stochastic:
        grad_raw_weight = wide.zero_rows(COLUMNS, NET, LAYER)
    grad_mean_bias = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    if SPEC.stochastic:
        grad_raw_bias = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    first_term, q_sum = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    alpha = 0.0
    if SPEC.stochastic:
        alpha = tl.exp(tl.load(temperature.log_alpha))
    for first in range(program * BLOCK_M, SPEC.batch, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        offset = row[:, None] * SPEC.columns + action_columns(SPEC)[None, :]
        grad_mean, grad_raw, action = _output_gradients(scratch, offset, alpha, True, SPEC)
        saved = wide.load_activations(z_ptr, moments_ptr, row, layer, SPEC, NET, LAYER)
        grad_h = ()
        mean_sums = ()
        raw_sums = ()
        for p in tl.static_range(len(PARTS)):
            grad_part = wide.dot(grad_mean, tl.trans(_load_actor_head(params_ptr, 0, p, SPEC, NET, LAYER)), SPEC)
            if SPEC.stochastic:
                grad_part += wide.dot(
                    grad_raw, tl.trans(_load_actor_head(params_ptr, SPEC.action, p, SPEC, NET, LAYER)), SPEC
                )
            grad_h = grad_h + (grad_part,)
            mean_sums = mean_sums + (grad_mean_weight[p] + wide.dot(tl.trans(grad_mean), saved[0][p], SPEC),)
            if SPEC.stochastic:
                raw_sums = raw_sums + (grad_raw_weight[p] + wide.dot(tl.trans(grad_raw), saved[0][p], SPEC),)
        grad_mean_weight = mean_sums
        if SPEC.stochastic:
            grad_raw_weight = raw_sums
        grad_z, grad_y = wide.layer_backward(grad_h, saved, layer, SPEC, NET, LAYER)
        wide.store_rows(grad_z_ptr, row, grad_z, SPEC, NET, LAYER)
        grad_mean_bias += grad_mean
        if SPEC.stochastic:
            grad_raw_bias += grad_raw
        layer_sums = wide.add_layer_sums(layer_sums, grad_z, grad_y, saved, SPEC, NET, LAYER)
        if SPEC.stochastic:
            first_term += tl.load(scratch.log_prob + row)
            q_sum += min_over_critics(scratch.actor_q, row, SPEC)
        else:
            first_term += tl.sum(_saturated(action), axis=1)
            q_sum += tl.load(scratch.actor_q + row)
    wide.store_layer_sums(partials_ptr, program, 0, layer_sums, SPEC, NET, LAYER)
    index = action_columns(SPEC) - SPEC.observation
    index_mask = (index >= 0) & (index < SPEC.action)
    head_ptr = partials_ptr + (program * NET.vectors + NET.layers[LAYER].partial + 3) * NET.pad
    for p in tl.static_range(len(PARTS)):
        weight_ptr = (
            head_ptr + index[:, None] * NET.pad + (NET.layers[LAYER].starts[p] + tl.arange(0, PARTS[p]))[None, :]
        )
        tl.store(weight_ptr, grad_mean_weight[p], mask=index_mask[:, None])
        if SPEC.stochastic:
            tl.store(weight_ptr + SPEC.action * NET.pad, grad_raw_weight[p], mask=index_mask[:, None])
    tl.store(head_ptr + NET.outputs * NET.pad + index, tl.sum(grad_mean_bias, axis=0), mask=index_mask)
    if SPEC.stochastic:
        raw_bias_ptr = head_ptr + NET.outputs * NET.pad + SPEC.action + index
        tl.store(raw_bias_ptr, tl.sum(grad_raw_bias, axis=0), mask=index_mask)
    tl.store(terms_ptr + program * 2, tl.sum(first_term, axis=0))
    tl.store(terms_ptr + program * 2 + 1, tl.sum(q_sum, axis=0))


@triton.jit
def actor_gradient_unrolled(
    z_ptr,
    moments_ptr,
    grad_z_ptr,
    params_ptr,
    scratch,
    temperature,
    partials_ptr,
    terms_ptr,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Compute what `actor_gradient` computes, for actions of few values: by loops over outputs instead of matrix
    products. The parameters are the same.
    """
    program = tl.program_id(0)
    NET: tl.constexpr = SPEC.actor
    OUTPUTS: tl.constexpr = NET.outputs
    ACTIONS: tl.constexpr = SPEC.action
    layer = wide.load_layer(params_ptr, 0, SPEC, NET, LAYER)
    layer_sums = wide.zero_layer_sums(BLOCK_M, NET, LAYER)
    heads, grad_head_weight, grad_head_bias = (), (), ()
    for k in tl.static_range(OUTPUTS):
        head = wide.load_vector(params_ptr, NET.head_weight + k * NET.layers[LAYER].width, 0, NET, LAYER)
        heads = heads + (head,)
        grad_head_weight = grad_head_weight + (layer_sums[0],)
        grad_head_bias = grad_head_bias + (tl.zeros((BLOCK_M,), tl.float32),)
    first_term, q_sum = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    alpha = 0.0
    if SPEC.stochastic:
        alpha = tl.exp(tl.load(temperature.log_alpha))
    for first in tl.range(program * BLOCK_M, SPEC.batch, tl.num_programs(0) * BLOCK_M, num_stages=STAGES):
        row = first + tl.arange(0, BLOCK_M)
        saved = wide.load_activations(z_ptr, moments_ptr, row, layer, SPEC, NET, LAYER)
        grad_means, grad_raws = (), ()
        for k in tl.static_range(ACTIONS):
            offset = row * SPEC.columns + SPEC.observation + k
            grad_mean, grad_raw, action = _output_gradients(scratch, offset, alpha, False, SPEC)
            grad_means = grad_means + (grad_mean,)
            if SPEC.stochastic:
                grad_raws = grad_raws + (grad_raw,)
            else:
                first_term += _saturated(action)
        grad_outputs = grad_means + grad_raws
        grad_h = wide.outer(grad_outputs[0], heads[0], NET, LAYER)
        for k in tl.static_range(1, OUTPUTS):
            grad_h = wide.add_rows(grad_h, wide.outer(grad_outputs[k], heads[k], NET, LAYER), NET, LAYER)
        grad_z, grad_y = wide.layer_backward(grad_h, saved, layer, SPEC, NET, LAYER)
        wide.store_rows(grad_z_ptr, row, grad_z, SPEC, NET, LAYER)
        weight_sums, bias_sums = (), ()
        for k in tl.static_range(OUTPUTS):
            weight_sums = weight_sums + (
                wide.add_rows(grad_head_weight[k], wide.outer(grad_outputs[k], saved[0], NET, LAYER), NET, LAYER),
            )
            bias_sums = bias_sums + (grad_head_bias[k] + grad_outputs[k],)
        grad_head_weight, grad_head_bias = weight_sums, bias_sums
        layer_sums = wide.add_layer_sums(layer_sums, grad_z, grad_y, saved, SPEC, NET, LAYER)
        if SPEC.stochastic:
            first_term += tl.load(scratch.log_prob + row)
            q_sum += min_over_critics(scratch.actor_q, row, SPEC)
        else:
            q_sum += tl.load(scratch.actor_q + row)
    wide.store_layer_sums(partials_ptr, program, 0, layer_sums, SPEC, NET, LAYER)
    bias_ptr = partials_ptr + (program * NET.vectors + NET.layers[LAYER].partial + 3 + OUTPUTS) * NET.pad
    for k in tl.static_range(OUTPUTS):
        wide.store_column_sum(partials_ptr, program, 0, 3 + k, grad_head_weight[k], NET, LAYER)
        tl.store(bias_ptr + k, tl.sum(grad_head_bias[k], axis=0))
    tl.store(terms_ptr + program * 2, tl.sum(first_term, axis=0))
    tl.store(terms_ptr + program * 2 + 1, tl.sum(q_sum, axis=0))


# ACTING


@triton.jit(do_not_specialize=["t"])
def load_lanes(buffers, inputs_ptr, t, lanes, SPEC: tl.constexpr, BLOCK_M: tl.constexpr):
    """Copy observations of tick t to the inputs of first layers. Grid: (cdiv(N, BLOCK_M),).

    | parameter  | shape            | meaning                  |
    |------------|------------------|--------------------------|
    | buffers    | struct           | `ActBuffers`             |
    | inputs_ptr | (lanes, columns) | written                  |
    | t, lanes   | scalars          | tick of the iteration; N |
    """
    lane, column = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, SPEC.columns)
    observation, mask = load_observation(buffers, t, lane, lanes, SPEC)
    x = normalize_observation(observation, column, buffers.normalizer, SPEC.observation, SPEC.normalized)
    tl.store(inputs_ptr + lane[:, None] * SPEC.columns + column[None, :], tl.where(mask, x, 0.0))


@triton.jit(do_not_specialize=["t"])
def act(
    hidden_ptr,
    params_ptr,
    buffers,
    t,
    lanes,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    HAS_OUTPUTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write actions of tick t from the actor's last activations (lanes, width), or outputs; uniform ones while
    `warming` is 1. Grid: (cdiv(N, BLOCK_M),). Other parameters as `load_lanes`'s.
    """
    lane = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    uniform, mask, offset, noise_ptr = load_uniform(buffers, t, lane, lanes, SPEC)
    NET: tl.constexpr = SPEC.actor
    if SPEC.stochastic:
        mean, raw = _gaussian_outputs(hidden_ptr, lane, params_ptr, HAS_OUTPUTS, BLOCK_M, SPEC, NET, LAYER)
        noise = normal(noise_ptr, lane, 0, lanes, mask, SPEC)
        action, _log_prob, _std_noise, _log_std_grad = squashed_gaussian(mean, raw, noise, SPEC)
    else:
        action = _deterministic_action(hidden_ptr, lane, params_ptr, HAS_OUTPUTS, BLOCK_M, SPEC, NET, LAYER)
        noise = normal(noise_ptr, lane, 0, lanes, mask, SPEC)
        std = tl.load(buffers.exploration + lane, mask=lane < lanes, other=0.0)[:, None]
        action = clip(action + std * noise, 1.0)
    store_action(buffers, action, uniform, mask, offset, SPEC)


# CRITICS


@triton.jit
def critic_gradient(
    batch,
    z_ptr,
    moments_ptr,
    grad_z_ptr,
    params_ptr,
    scratch,
    temperature,
    partials_ptr,
    terms_ptr,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Compute the gradient of the critics' loss, sum_c E[(Q_c - y)^2], in their output layers and in their last hidden
    layers' pre-activations. Grid: (NET.programs, towers).

    y = r + discount (min_c Q'_c - alpha log pi), without the last term for TD3.

    | parameter      | shape                 | meaning                                     |
    |----------------|-----------------------|---------------------------------------------|
    | batch          | struct                | `BatchBuffers`                              |
    | z_ptr          | (towers, B, width)    | saved by the forward pass: z, or x_hat      |
    | moments_ptr    | (towers, B, 2)        | mean and 1 / std of its rows                |
    | grad_z_ptr     | (towers, B, width)    | written                                     |
    | params_ptr | (P)                   | the critics'                                |
    | scratch        | struct                | `Scratch`                                   |
    | temperature    | struct                | `Temperature`                               |
    | partials_ptr   |                       | written: partial sums of vectors' gradients |
    | terms_ptr      | (programs, towers, 3) | written: sums of (Q - y)^2, |Q - y| and Q   |
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    NET: tl.constexpr = SPEC.critic
    layer_sums = wide.zero_layer_sums(BLOCK_M, NET, LAYER)
    grad_weight = layer_sums[0]
    grad_head_bias = tl.zeros((BLOCK_M,), tl.float32)
    squared, absolute, q_sum = grad_head_bias, grad_head_bias, grad_head_bias
    alpha = 0.0
    if SPEC.stochastic:
        alpha = tl.exp(tl.load(temperature.log_alpha))
    head_bias = tl.load(params_ptr + NET.head_bias + tower)
    head = wide.load_vector(params_ptr, NET.head_weight, tower, NET, LAYER)
    layer = wide.load_layer(params_ptr, tower, SPEC, NET, LAYER)
    for first in tl.range(program * BLOCK_M, SPEC.batch, tl.num_programs(0) * BLOCK_M, num_stages=STAGES):
        row = first + tl.arange(0, BLOCK_M)
        y = td_targets(batch, scratch, row, alpha, SPEC)
        saved = wide.load_activations(z_ptr, moments_ptr, tower * SPEC.batch + row, layer, SPEC, NET, LAYER)
        q = wide.row_dot(saved[0], head, NET, LAYER) + head_bias
        error = q - y
        grad_q = 2.0 / SPEC.batch * error
        grad_z, grad_y = wide.layer_backward(wide.outer(grad_q, head, NET, LAYER), saved, layer, SPEC, NET, LAYER)
        wide.store_rows(grad_z_ptr, tower * SPEC.batch + row, grad_z, SPEC, NET, LAYER)
        grad_weight = wide.add_rows(grad_weight, wide.outer(grad_q, saved[0], NET, LAYER), NET, LAYER)
        grad_head_bias += grad_q
        layer_sums = wide.add_layer_sums(layer_sums, grad_z, grad_y, saved, SPEC, NET, LAYER)
        squared += error * error
        absolute += tl.abs(error)
        q_sum += q
    wide.store_layer_sums(partials_ptr, program, tower, layer_sums, SPEC, NET, LAYER)
    wide.store_column_sum(partials_ptr, program, tower, 3, grad_weight, NET, LAYER)
    tl.store(
        partials_ptr + ((program * NET.towers + tower) * NET.vectors + NET.layers[LAYER].partial + 4) * NET.pad,
        tl.sum(grad_head_bias, axis=0),
    )
    wide.store_critic_terms(terms_ptr, program, tower, squared, absolute, q_sum, NET)


@triton.jit
def min_q_gradient(
    z_ptr,
    moments_ptr,
    grad_z_ptr,
    params_ptr,
    scratch,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write the gradient of -min_c Q_c / B (TD3: -Q_1 / B) at the actor's action in the critics' last hidden layers'
    pre-activations: 0 for all but the critic with the lowest Q of a sample. Grid: (B / BLOCK_M, towers). Parameters as
    `critic_gradient`'s.
    """
    tower, row = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    NET: tl.constexpr = SPEC.critic
    layer = wide.load_layer(params_ptr, tower, SPEC, NET, LAYER)
    saved = wide.load_activations(z_ptr, moments_ptr, tower * SPEC.batch + row, layer, SPEC, NET, LAYER)
    lowest = tl.zeros((BLOCK_M,), tl.int32)
    if SPEC.stochastic:
        q = tl.load(scratch.actor_q + row)
        for k in tl.static_range(SPEC.critic.towers - 1):
            other = tl.load(scratch.actor_q + (k + 1) * SPEC.batch + row)
            lowest = tl.where(other < q, k + 1, lowest)
            q = tl.minimum(q, other)
    grad_q = tl.where(lowest == tower, -1.0 / SPEC.batch, 0.0)
    grad_h = wide.outer(grad_q, wide.load_vector(params_ptr, NET.head_weight, tower, NET, LAYER), NET, LAYER)
    grad_z, _grad_y = wide.layer_backward(grad_h, saved, layer, SPEC, NET, LAYER)
    wide.store_rows(grad_z_ptr, tower * SPEC.batch + row, grad_z, SPEC, NET, LAYER)
