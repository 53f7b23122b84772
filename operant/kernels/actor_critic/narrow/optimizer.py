"""Triton kernels of the optimizer steps of narrow networks: each program computes the gradient of one weight block and
steps it, from the samples to Adam, the target and the packed copies.

Weights are *packed* for the passes: copied, zero-padded, in the type of the matrix products' operands. A *block* is a
rectangle of a layer's packed weight. Sums over the batch run in one order inside one program, so equal batches give
equal bits.

Common parameters, structs as in `step`'s table: `SPEC`: `NarrowSpec`; `NET`: `Net` of the network; `LAYER`: index of
the layer; `IS_ACTOR`: the network is the actor; `TARGET`: it has a target to move; `tower`: index of the critic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.optimizer import (
    SATURATED,
    SCALAR,
    add_statistic,
    min_over_critics,
    td_targets,
    temperature_step,
)
from operant.kernels.ops.adam import adam
from operant.kernels.ops.linear import add_product, compensated, operand, round_to_tf32, weight_operand


@triton.jit
def td_errors(batch, scratch, row, critic, alpha, SPEC: tl.constexpr):
    """Return the error Q - y of a critic at samples `row`, (rows), with y of `td_targets`; `alpha` is the
    temperature.
    """
    y = td_targets(batch, scratch, row, alpha, SPEC)
    return tl.load(scratch.q + critic * SPEC.batch + row) - y


# WEIGHT BLOCKS


@triton.jit
def _load_parameters(offset, mask, parameters, target, TARGET: tl.constexpr):
    """Load the parameters at `offset` with Adam's running averages and, with TARGET, the target's parameters: a tuple
    (x, m, v, x').
    """
    x = tl.load(parameters.vector + offset, mask=mask, other=0.0)
    m = tl.load(parameters.exp_avg + offset, mask=mask, other=0.0)
    v = tl.load(parameters.exp_avg_sq + offset, mask=mask, other=0.0)
    x_target = tl.load(target.vector + offset, mask=mask, other=0.0) if TARGET else x
    return x, m, v, x_target


@triton.jit
def _adam_block(offset, mask, grad, parameters, target, scalars, loaded, TARGET: tl.constexpr):
    """Take Adam's step of the parameters at `offset` and move their targets; return both as stored. `loaded` is as
    `_load_parameters` returns it; `scalars`: skipped, learning rate, both bias corrections, epsilon, tau.
    """
    x, m, v, x_target = loaded
    skipped, learning_rate, correction, root_correction, epsilon, tau = scalars
    stepped, m, v = adam(x, grad, m, v, learning_rate / correction, root_correction, epsilon)
    write = mask & (skipped + tl.zeros_like(x) < 0.5)
    tl.store(parameters.exp_avg + offset, m, mask=write)
    tl.store(parameters.exp_avg_sq + offset, v, mask=write)
    tl.store(parameters.vector + offset, stepped, mask=write)
    x = tl.where(skipped < 0.5, stepped, x)
    if TARGET:  # x' <- x' + tau (x - x')
        x_target = tl.where(skipped < 0.5, x_target + tau * (x - x_target), x_target)
        tl.store(target.vector + offset, x_target, mask=mask)
    return x, x_target


@triton.jit
def _row_of(row, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr, IS_ACTOR: tl.constexpr):
    """Return the rows of layer LAYER's weight in the flat vector for rows `row` of its packed copy, and the mask of
    those that exist. A Gaussian actor's packed output layer has SPEC.columns rows of means, then as many of standard
    deviations, each at its action's index in (observation, action).
    """
    SHAPE: tl.constexpr = NET.layers[LAYER]
    if IS_ACTOR and SHAPE.last:
        index = row % SPEC.columns - SPEC.observation
        return index + row // SPEC.columns * SPEC.action, (index >= 0) & (index < SPEC.action)
    else:
        return row, row < SHAPE.rows


@triton.jit
def _rows_and_columns(block, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr, IS_ACTOR: tl.constexpr):
    """Return the rows and columns of a block of a layer's packed weight, and as `_row_of` its rows in the flat vector's
    weight and the mask of those that exist. `block`: index in the layer, row by row of blocks.
    """
    SHAPE: tl.constexpr = NET.layers[LAYER]
    BLOCKS_N: tl.constexpr = SHAPE.columns_pad // SHAPE.block_columns
    row = block // BLOCKS_N * SHAPE.block_rows + tl.arange(0, SHAPE.block_rows)
    column = block % BLOCKS_N * SHAPE.block_columns + tl.arange(0, SHAPE.block_columns)
    flat_row, row_mask = _row_of(row, SPEC, NET, LAYER, IS_ACTOR)
    return row, column, flat_row, row_mask


@triton.jit
def _bias_mask(block, row_mask, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return the mask of a block's rows whose bias it has, as only the first block of each row of blocks does."""
    BLOCKS_N: tl.constexpr = NET.layers[LAYER].columns_pad // NET.layers[LAYER].block_columns
    return row_mask & (block % BLOCKS_N == 0)


@triton.jit
def _step_block(
    block,
    tower,
    batch,
    scratch,
    layers,
    parameters,
    target,
    pack,
    target_pack,
    temperature,
    scalars,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    IS_ACTOR: tl.constexpr,
    TARGET: tl.constexpr,
):
    """Compute the gradient of one block of layer LAYER's weight over the batch, and take its Adam step. `block`: index
    in the layer; other parameters as in `step`.
    """
    SHAPE: tl.constexpr = NET.layers[LAYER]
    row, column, flat_row, row_mask = _rows_and_columns(block, SPEC, NET, LAYER, IS_ACTOR)
    offset = SHAPE.weight + (tower * SHAPE.rows + flat_row)[:, None] * SHAPE.columns + column[None, :]
    mask = row_mask[:, None] & (column < SHAPE.columns)[None, :]
    bias_offset = SHAPE.bias + tower * SHAPE.rows + flat_row
    bias_mask = _bias_mask(block, row_mask, NET, LAYER)
    loaded = _load_parameters(offset, mask, parameters, target, TARGET)
    loaded_bias = _load_parameters(bias_offset, bias_mask, parameters, target, TARGET)

    # dW = g^T h and db = g^T 1
    ROWS: tl.constexpr = SHAPE.block_rows
    COLUMNS: tl.constexpr = SHAPE.block_columns
    grad_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    grad_bias = tl.zeros((ROWS,), tl.float32)
    alpha = tl.exp(tl.load(temperature.log_alpha)) if SPEC.stochastic else 0.0
    for chunk in range(SPEC.batch // SPEC.chunk):
        sample = chunk * SPEC.chunk + tl.arange(0, SPEC.chunk)
        layer_row = tower * SPEC.batch + sample
        g = tl.load(layers.grad_z + SHAPE.grad_z + layer_row[:, None] * SHAPE.rows_pad + row[None, :])
        if SHAPE.first:
            h = operand(tl.load(batch.inputs + sample[:, None] * SPEC.columns + column[None, :]), SPEC)
        else:
            h = tl.load(layers.hidden + SHAPE.source + layer_row[:, None] * SHAPE.columns_pad + column[None, :])
        if not IS_ACTOR:
            # dL / dz = 2 (Q - y) / B dQ / dz
            g = operand(
                g.to(tl.float32)
                * (td_errors(batch, scratch, sample, tower, alpha, SPEC) * (2.0 / SPEC.batch))[:, None],
                SPEC,
            )
        grad_weight = add_product(tl.trans(g), h, grad_weight, SPEC)
        grad_bias += tl.sum(g.to(tl.float32), axis=0)
    grad_weight = compensated(grad_weight, 2, SPEC)

    weight, target_weight = _adam_block(offset, mask, grad_weight, parameters, target, scalars, loaded, TARGET)
    bias, target_bias = _adam_block(bias_offset, bias_mask, grad_bias, parameters, target, scalars, loaded_bias, TARGET)
    packed = SHAPE.packed + row[:, None] * SHAPE.columns_pad + column[None, :]
    packed_bias = SHAPE.packed_bias + row
    _store_packed(pack, tower, packed, mask, weight, packed_bias, bias_mask, bias, SPEC, NET, LAYER, IS_ACTOR)
    if TARGET:
        _store_packed(
            target_pack,
            tower,
            packed,
            mask,
            target_weight,
            packed_bias,
            bias_mask,
            target_bias,
            SPEC,
            NET,
            LAYER,
            IS_ACTOR,
        )
    if not IS_ACTOR:
        squares = tl.sum(
            tl.sum(grad_weight * grad_weight, axis=1) + tl.where(bias_mask, grad_bias * grad_bias, 0.0), axis=0
        )
        tl.store(temperature.squares + tower * NET.programs + SHAPE.program + block, squares)


@triton.jit
def _store_packed(
    pack,
    tower,
    offset,
    mask,
    weight,
    bias_offset,
    bias_mask,
    bias,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    IS_ACTOR: tl.constexpr,
):
    """Store a block's packed copies of weight and bias: a first weight in float32, a critic's output layer unrounded,
    others as operands.
    """
    SHAPE: tl.constexpr = NET.layers[LAYER]
    single_ptr = pack.single + tower * NET.single
    if SHAPE.first:
        tl.store(single_ptr + offset, weight if SPEC.precision == "ieee" else round_to_tf32(weight), mask=mask)
    elif SHAPE.last and not IS_ACTOR:
        tl.store(single_ptr + offset, weight, mask=mask)
    else:
        tl.store(pack.packed + tower * NET.packed + offset, weight_operand(weight, SPEC), mask=mask)
    tl.store(single_ptr + bias_offset, bias, mask=bias_mask)


@triton.jit
def step(
    batch,
    scratch,
    layers,
    parameters,
    target,
    pack,
    target_pack,
    temperature,
    optimizer,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    IS_ACTOR: tl.constexpr,
    TARGET: tl.constexpr,
):
    """Compute the gradient of one network and take its Adam step. Grid: (NET.programs, NET.towers), a weight block a
    program; a stochastic actor's launch has one more program, which records the statistics and steps the temperature.

    | parameter          | shape  | meaning                                                     |
    |--------------------|--------|-------------------------------------------------------------|
    | batch              | struct | `BatchBuffers`                                              |
    | scratch            | struct | `Scratch` of this update                                    |
    | layers             | struct | `SavedLayers` of the network                                |
    | parameters, target | struct | `Parameters` of the network and, with TARGET, of its target |
    | pack, target_pack  | struct | `PackedWeights` of both, written                            |
    | temperature        | struct | `Temperature`                                               |
    | optimizer          | struct | `OptimizerState` of the network                             |
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    scalars = (
        tl.load(optimizer.skip),
        tl.load(optimizer.learning_rate),
        tl.load(optimizer.corrections),
        tl.load(optimizer.corrections + 1),
        tl.load(optimizer.scalars + SCALAR.epsilon),
        tl.load(optimizer.scalars + SCALAR.tau),
    )
    for k in tl.static_range(len(NET.layers)):
        if (program >= NET.layers[k].program) & (program < NET.layers[k].program + NET.layers[k].programs):
            _step_block(
                program - NET.layers[k].program,
                tower,
                batch,
                scratch,
                layers,
                parameters,
                target,
                pack,
                target_pack,
                temperature,
                scalars,
                SPEC,
                NET,
                k,
                IS_ACTOR,
                TARGET,
            )
    WITH_TEMPERATURE: tl.constexpr = SPEC.stochastic and IS_ACTOR
    if WITH_TEMPERATURE and program == NET.programs:
        _finish_stochastic(batch, scratch, temperature, optimizer, SPEC, True)


# STATISTICS AND TEMPERATURE


@triton.jit
def _critic_statistics(batch, scratch, temperature, alpha, SPEC: tl.constexpr):
    """Return the critics' loss, mean Q, mean |Q - y|, and the norm of the critics' gradient, over the batch; `alpha` is
    the temperature.
    """
    CHUNK: tl.constexpr = SPEC.chunk
    TOWERS: tl.constexpr = SPEC.critic.towers
    SQUARES: tl.constexpr = SPEC.squares
    squared = tl.zeros((CHUNK,), tl.float32)
    absolute, q = squared, squared
    for chunk in range(SPEC.batch // SPEC.chunk):
        row = chunk * CHUNK + tl.arange(0, CHUNK)
        for tower in tl.static_range(TOWERS):
            error = td_errors(batch, scratch, row, tower, alpha, SPEC)
            squared += error * error
            absolute += tl.abs(error)
            q += tl.load(scratch.q + tower * SPEC.batch + row)
    program = tl.arange(0, SQUARES)
    norm = tl.sqrt(
        tl.sum(
            tl.load(temperature.squares + program, mask=program < SPEC.critic.towers * SPEC.critic.programs, other=0.0),
            axis=0,
        )
    )
    samples = SPEC.critic.towers * SPEC.batch
    return tl.sum(squared, axis=0) / SPEC.batch, tl.sum(q, axis=0) / samples, tl.sum(absolute, axis=0) / samples, norm


@triton.jit
def _finish_stochastic(batch, scratch, temperature, optimizer, SPEC: tl.constexpr, UPDATE_ACTOR: tl.constexpr):
    """Add an update's statistics to the totals and step the temperature, for SAC. Without UPDATE_ACTOR log pi is that
    of the actions at the next observations.
    """
    CHUNK: tl.constexpr = SPEC.chunk
    entropy = tl.zeros((CHUNK,), tl.float32)
    actor_loss = entropy
    alpha = tl.exp(tl.load(temperature.log_alpha))
    for chunk in range(SPEC.batch // SPEC.chunk):
        row = chunk * CHUNK + tl.arange(0, CHUNK)
        log_prob = tl.load((scratch.log_prob if UPDATE_ACTOR else scratch.next_log_prob) + row)
        entropy -= log_prob
        if UPDATE_ACTOR:
            actor_loss += alpha * log_prob - min_over_critics(scratch.actor_q, row, SPEC)
    mean_entropy = tl.sum(entropy, axis=0) / SPEC.batch
    critic_loss, q_mean, td_error, norm = _critic_statistics(batch, scratch, temperature, alpha, SPEC)
    counted = tl.load(optimizer.skip) < 0.5
    totals_ptr = temperature.totals
    add_statistic(totals_ptr + SPEC.stat.critic_loss, critic_loss, counted)
    if UPDATE_ACTOR:
        add_statistic(totals_ptr + SPEC.stat.actor_loss, tl.sum(actor_loss, axis=0) / SPEC.batch, counted)
    add_statistic(totals_ptr + SPEC.stat.q_mean, q_mean, counted)
    add_statistic(totals_ptr + SPEC.stat.td_error, td_error, counted)
    add_statistic(totals_ptr + SPEC.stat.entropy, mean_entropy, counted)
    add_statistic(totals_ptr + SPEC.stat.gradient_norm, norm, counted)
    if SPEC.automatic:
        temperature_step(temperature, optimizer, mean_entropy, counted)


@triton.jit
def _finish_deterministic(batch, scratch, temperature, SPEC: tl.constexpr, UPDATE_ACTOR: tl.constexpr):
    """Add an update's statistics to the totals, for TD3."""
    critic_loss, q_mean, td_error, norm = _critic_statistics(batch, scratch, temperature, 0.0, SPEC)
    counted = tl.load(temperature.skip) < 0.5
    totals_ptr = temperature.totals
    add_statistic(totals_ptr + SPEC.stat.critic_loss, critic_loss, counted)
    add_statistic(totals_ptr + SPEC.stat.q_mean, q_mean, counted)
    add_statistic(totals_ptr + SPEC.stat.td_error, td_error, counted)
    add_statistic(totals_ptr + SPEC.stat.gradient_norm, norm, counted)
    if UPDATE_ACTOR:
        CHUNK: tl.constexpr = SPEC.chunk
        actor_loss = tl.zeros((CHUNK,), tl.float32)
        saturated = actor_loss
        column = tl.arange(0, SPEC.columns)
        for chunk in range(SPEC.batch // SPEC.chunk):
            row = chunk * CHUNK + tl.arange(0, CHUNK)
            actor_loss -= tl.load(scratch.actor_q + row)
            action = tl.load(scratch.action + row[:, None] * SPEC.columns + column[None, :])
            saturated += tl.sum(tl.where(tl.abs(action) > SATURATED, 1.0, 0.0), axis=1)
        add_statistic(totals_ptr + SPEC.stat.actor_loss, tl.sum(actor_loss, axis=0) / SPEC.batch, counted)
        add_statistic(totals_ptr + SPEC.stat.saturated, tl.sum(saturated, axis=0) / (SPEC.batch * SPEC.action), counted)


@triton.jit
def finish(batch, scratch, temperature, optimizer, SPEC: tl.constexpr, UPDATE_ACTOR: tl.constexpr):
    """Add an update's statistics to the totals, and step SAC's temperature, if the last `step` launch had no program
    for it. One program.

    Parameters as `step`'s; `optimizer`: the actor's. UPDATE_ACTOR: the actor learned in this update.
    """
    if SPEC.stochastic:
        _finish_stochastic(batch, scratch, temperature, optimizer, SPEC, UPDATE_ACTOR)
    else:
        _finish_deterministic(batch, scratch, temperature, SPEC, UPDATE_ACTOR)


# PACKED WEIGHTS


@triton.jit
def _pack_block(
    block,
    tower,
    parameters,
    pack,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    IS_ACTOR: tl.constexpr,
):
    """Store the packed copy of block number `block` of layer LAYER's weight."""
    SHAPE: tl.constexpr = NET.layers[LAYER]
    row, column, flat_row, row_mask = _rows_and_columns(block, SPEC, NET, LAYER, IS_ACTOR)
    mask = row_mask[:, None] & (column < SHAPE.columns)[None, :]
    weight = tl.load(
        parameters.vector + SHAPE.weight + (tower * SHAPE.rows + flat_row)[:, None] * SHAPE.columns + column[None, :],
        mask=mask,
        other=0.0,
    )
    bias_mask = _bias_mask(block, row_mask, NET, LAYER)
    bias = tl.load(parameters.vector + SHAPE.bias + tower * SHAPE.rows + flat_row, mask=bias_mask, other=0.0)
    offset = SHAPE.packed + row[:, None] * SHAPE.columns_pad + column[None, :]
    _store_packed(
        pack, tower, offset, mask, weight, SHAPE.packed_bias + row, bias_mask, bias, SPEC, NET, LAYER, IS_ACTOR
    )


@triton.jit
def pack_network(parameters, pack, SPEC: tl.constexpr, NET: tl.constexpr, IS_ACTOR: tl.constexpr):
    """Copy a network's parameters to their packed form. Grid: (NET.programs, NET.towers). `parameters`: `Parameters`;
    `pack`: `PackedWeights`.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    for k in tl.static_range(len(NET.layers)):
        if (program >= NET.layers[k].program) & (program < NET.layers[k].program + NET.layers[k].programs):
            _pack_block(program - NET.layers[k].program, tower, parameters, pack, SPEC, NET, k, IS_ACTOR)
