"""The Triton kernels that step actors and critics: each program one block of one weight, from the samples to Adam, the
target and the packed copies.

Sums over the batch go in one order, inside one program, so that the same batch always makes the same bits. Knows no
network's forward pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import add_product, compensated, operand, round_to_tf32, weight_operand
from operant.kernels.ops.adam import LOG_BETA_1, LOG_BETA_2

SATURATED = tl.constexpr(0.98)
"""An action beyond this share of its bounds counts as one at them."""


@triton.jit
def errors(batch, work, row, tower, alpha, SPEC: tl.constexpr):
    """Q - y of each sample, (rows); y = r + discount (min of the targets' values - alpha log pi, the latter of a
    stochastic actor).
    """
    value = tl.load(work.next_value + row)
    for k in tl.static_range(SPEC.critic.towers - 1):
        value = tl.minimum(value, tl.load(work.next_value + (k + 1) * SPEC.batch + row))
    if SPEC.stochastic:
        value -= alpha * tl.load(work.next_log_p + row)
    y = tl.load(batch.reward + row) + tl.load(batch.discount + row) * value
    return tl.load(work.value + tower * SPEC.batch + row) - y


@triton.jit
def _adam(place, mask, gradient, flat, target, scalars, old, TARGET: tl.constexpr):
    """One step of Adam for the parameters at these places; returns them, and those of their targets."""
    x, m, v, t = old
    skipped, rate, correction, root, epsilon, tau = scalars
    m = 0.9 * m + (1.0 - 0.9) * gradient
    v = 0.999 * v + (1.0 - 0.999) * gradient * gradient
    stepped = x - rate / correction * m / (tl.sqrt(v) / root + epsilon)
    write = mask & (skipped + tl.zeros_like(x) < 0.5)
    tl.store(flat.first + place, m, mask=write)
    tl.store(flat.second + place, v, mask=write)
    tl.store(flat.parameters + place, stepped, mask=write)
    x = tl.where(skipped < 0.5, stepped, x)
    if TARGET:  # t <- t + tau (x - t)
        t = tl.where(skipped < 0.5, t + tau * (x - t), t)
        tl.store(target.parameters + place, t, mask=mask)
    return x, t


@triton.jit
def _load_old(place, mask, flat, target, TARGET: tl.constexpr):
    x = tl.load(flat.parameters + place, mask=mask, other=0.0)
    m = tl.load(flat.first + place, mask=mask, other=0.0)
    v = tl.load(flat.second + place, mask=mask, other=0.0)
    t = tl.load(target.parameters + place, mask=mask, other=0.0) if TARGET else x
    return x, m, v, t


@triton.jit
def _row_of(row, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, POLICY: tl.constexpr):
    """The row of the flat vector's weight that a packed row is, and whether there is one: a policy's head has means and
    deviations in the action's columns.
    """
    LAYER: tl.constexpr = NET.layers[AT]
    if POLICY and LAYER.last:
        within = row % SPEC.columns - SPEC.observation
        return within + row // SPEC.columns * SPEC.action, (within >= 0) & (within < SPEC.action)
    else:
        return row, row < LAYER.rows


@triton.jit
def _step_block(
    program,
    tower,
    batch,
    work,
    own,
    flat,
    target,
    pack,
    target_pack,
    temperature,
    scalars,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    AT: tl.constexpr,
    POLICY: tl.constexpr,
    TARGET: tl.constexpr,
):
    """One block of one weight: its gradient, and its step."""
    LAYER: tl.constexpr = NET.layers[AT]
    ACROSS: tl.constexpr = LAYER.columns_pad // LAYER.block_columns
    row = program // ACROSS * LAYER.block_rows + tl.arange(0, LAYER.block_rows)
    column = program % ACROSS * LAYER.block_columns + tl.arange(0, LAYER.block_columns)
    own_row, real = _row_of(row, SPEC, NET, AT, POLICY)
    place = LAYER.weight + (tower * LAYER.rows + own_row)[:, None] * LAYER.columns + column[None, :]
    mask = real[:, None] & (column < LAYER.columns)[None, :]
    bias_place = LAYER.bias + tower * LAYER.rows + own_row
    bias_mask = real & (program % ACROSS == 0)
    old = _load_old(place, mask, flat, target, TARGET)
    old_bias = _load_old(bias_place, bias_mask, flat, target, TARGET)

    # The gradient, dW = g^T h and db = g^T 1.
    ROWS: tl.constexpr = LAYER.block_rows
    COLUMNS: tl.constexpr = LAYER.block_columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    bias = tl.zeros((ROWS,), tl.float32)
    alpha = tl.exp(tl.load(temperature.log)) if SPEC.stochastic else 0.0
    for chunk in range(SPEC.batch // SPEC.chunk):
        sample = chunk * SPEC.chunk + tl.arange(0, SPEC.chunk)
        at = tower * SPEC.batch + sample
        g = tl.load(own.gradient + LAYER.gradient + at[:, None] * LAYER.rows_pad + row[None, :])
        if LAYER.first:
            h = operand(tl.load(batch.seen + sample[:, None] * SPEC.columns + column[None, :]), SPEC)
        else:
            h = tl.load(own.hidden + LAYER.source + at[:, None] * LAYER.columns_pad + column[None, :])
        if not POLICY:
            g = operand(
                g.to(tl.float32) * (errors(batch, work, sample, tower, alpha, SPEC) * (2.0 / SPEC.batch))[:, None], SPEC
            )
        total = add_product(tl.trans(g), h, total, SPEC)
        bias += tl.sum(g.to(tl.float32), axis=0)
    total = compensated(total, 2, SPEC)

    x, t = _adam(place, mask, total, flat, target, scalars, old, TARGET)
    b, tb = _adam(bias_place, bias_mask, bias, flat, target, scalars, old_bias, TARGET)
    packed = LAYER.packed + row[:, None] * LAYER.columns_pad + column[None, :]
    _store_packed(pack, tower, packed, mask, x, LAYER.packed_bias + row, bias_mask, b, SPEC, NET, AT, POLICY)
    if TARGET:
        _store_packed(
            target_pack, tower, packed, mask, t, LAYER.packed_bias + row, bias_mask, tb, SPEC, NET, AT, POLICY
        )
    if not POLICY:
        squares = tl.sum(tl.sum(total * total, axis=1) + tl.where(bias_mask, bias * bias, 0.0), axis=0)
        tl.store(temperature.squares + tower * NET.programs + LAYER.program + program, squares)


@triton.jit
def _store_packed(
    pack,
    tower,
    place,
    mask,
    x,
    bias_place,
    bias_mask,
    bias,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    AT: tl.constexpr,
    POLICY: tl.constexpr,
):
    """A block as products take it: a first weight in float32, a critic's head as it is."""
    LAYER: tl.constexpr = NET.layers[AT]
    single = pack.single + tower * NET.single
    if LAYER.first:
        tl.store(single + place, x if SPEC.precision == "ieee" else round_to_tf32(x), mask=mask)
    elif LAYER.last and not POLICY:
        tl.store(single + place, x, mask=mask)
    else:
        tl.store(pack.packed + tower * NET.packed + place, weight_operand(x, SPEC), mask=mask)
    tl.store(single + bias_place, bias, mask=bias_mask)


@triton.jit
def step(
    batch,
    work,
    own,
    flat,
    target,
    pack,
    target_pack,
    temperature,
    update,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    POLICY: tl.constexpr,
    TARGET: tl.constexpr,
):
    """The gradient of one network's loss in all its parameters and Adam's step down it: program 0 is a block of a
    weight, 1 the tower.

    With TARGET the network's target follows. A stochastic actor's launch has one program more, for the temperature.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    scalars = (
        tl.load(update.skip),
        tl.load(update.learning_rate),
        tl.load(update.corrections),
        tl.load(update.corrections + 1),
        tl.load(update.scalars),
        tl.load(update.scalars + 1),
    )
    for k in tl.static_range(len(NET.layers)):
        if (program >= NET.layers[k].program) & (program < NET.layers[k].program + NET.layers[k].programs):
            _step_block(
                program - NET.layers[k].program,
                tower,
                batch,
                work,
                own,
                flat,
                target,
                pack,
                target_pack,
                temperature,
                scalars,
                SPEC,
                NET,
                k,
                POLICY,
                TARGET,
            )
    FINISH: tl.constexpr = SPEC.stochastic and POLICY
    if FINISH and program == NET.programs:
        _finish(batch, work, temperature, update, SPEC, True)


@triton.jit
def least_value(work, row, SPEC: tl.constexpr):
    """The least of the critics' values of the actor's action, (rows)."""
    value = tl.load(work.policy_value + row)
    for k in tl.static_range(SPEC.critic.towers - 1):
        value = tl.minimum(value, tl.load(work.policy_value + (k + 1) * SPEC.batch + row))
    return value


@triton.jit
def _critic_terms(batch, work, temperature, alpha, SPEC: tl.constexpr):
    """The critics' loss, their mean value, the mean of |Q - y|, and the norm of their gradient."""
    CHUNK: tl.constexpr = SPEC.chunk
    TOWERS: tl.constexpr = SPEC.critic.towers
    SQUARES: tl.constexpr = SPEC.squares
    squared = tl.zeros((CHUNK,), tl.float32)
    absolute, value = squared, squared
    for chunk in range(SPEC.batch // SPEC.chunk):
        row = chunk * CHUNK + tl.arange(0, CHUNK)
        for tower in tl.static_range(TOWERS):
            error = errors(batch, work, row, tower, alpha, SPEC)
            squared += error * error
            absolute += tl.abs(error)
            value += tl.load(work.value + tower * SPEC.batch + row)
    place = tl.arange(0, SQUARES)
    norm = tl.sqrt(
        tl.sum(
            tl.load(temperature.squares + place, mask=place < SPEC.critic.towers * SPEC.critic.programs, other=0.0),
            axis=0,
        )
    )
    both = SPEC.critic.towers * SPEC.batch
    return tl.sum(squared, axis=0) / SPEC.batch, tl.sum(value, axis=0) / both, tl.sum(absolute, axis=0) / both, norm


@triton.jit
def _finish(batch, work, temperature, update, SPEC: tl.constexpr, DUE: tl.constexpr):
    """What an update says of itself, added to the iteration's totals; then the step of the temperature: down -log alpha
    (mean log pi + target entropy).

    DUE: the actor learned, too; else log pi is that of the actions at the next observations.
    """
    CHUNK: tl.constexpr = SPEC.chunk
    entropy = tl.zeros((CHUNK,), tl.float32)
    loss = entropy
    alpha = tl.exp(tl.load(temperature.log))
    for chunk in range(SPEC.batch // SPEC.chunk):
        row = chunk * CHUNK + tl.arange(0, CHUNK)
        log_p = tl.load((work.log_p if DUE else work.next_log_p) + row)
        entropy -= log_p
        if DUE:
            loss += alpha * log_p - least_value(work, row, SPEC)
    mean_entropy = tl.sum(entropy, axis=0) / SPEC.batch
    critic_loss, q_mean, td_error, norm = _critic_terms(batch, work, temperature, alpha, SPEC)
    skipped = tl.load(update.skip)
    counts = tl.where(skipped < 0.5, 1.0, 0.0)
    _add(temperature.totals, critic_loss, counts)
    if DUE:
        _add(temperature.totals + 1, tl.sum(loss, axis=0) / SPEC.batch, counts)
    _add(temperature.totals + 2, q_mean, counts)
    _add(temperature.totals + 3, td_error, counts)
    _add(temperature.totals + 4, mean_entropy, counts)
    _add(temperature.totals + 5, norm, counts)

    if SPEC.automatic:
        rate, epsilon = tl.load(update.learning_rate), tl.load(update.scalars)
        correction, root = tl.load(temperature.corrections), tl.load(temperature.corrections + 1)
        gradient = mean_entropy - tl.load(update.scalars + 2)
        m = 0.9 * tl.load(temperature.first) + (1.0 - 0.9) * gradient
        v = 0.999 * tl.load(temperature.second) + (1.0 - 0.999) * gradient * gradient
        x = tl.load(temperature.log) - rate / correction * m / (tl.sqrt(v) / root + epsilon)
        write = skipped < 0.5
        tl.store(temperature.first, m, mask=write)
        tl.store(temperature.second, v, mask=write)
        tl.store(temperature.log, x, mask=write)


@triton.jit
def account(batch, work, temperature, update, SPEC: tl.constexpr, DUE: tl.constexpr):
    """What remains of an update whose last launch steps no temperature: what it says of itself; one program. DUE: the
    actor learned, too.
    """
    if SPEC.stochastic:
        _finish(batch, work, temperature, update, SPEC, DUE)
    else:
        _account_means(batch, work, temperature, SPEC, DUE)


@triton.jit
def _account_means(batch, work, temperature, SPEC: tl.constexpr, DUE: tl.constexpr):
    """The same with an actor that has means alone, added to the iteration's totals."""
    critic_loss, q_mean, td_error, norm = _critic_terms(batch, work, temperature, 0.0, SPEC)
    counts = tl.where(tl.load(temperature.skip) < 0.5, 1.0, 0.0)
    _add(temperature.totals, critic_loss, counts)
    _add(temperature.totals + 1, q_mean, counts)
    _add(temperature.totals + 2, td_error, counts)
    _add(temperature.totals + 3, norm, counts)
    if DUE:
        CHUNK: tl.constexpr = SPEC.chunk
        loss = tl.zeros((CHUNK,), tl.float32)
        saturated = loss
        column = tl.arange(0, SPEC.columns)
        for chunk in range(SPEC.batch // SPEC.chunk):
            row = chunk * CHUNK + tl.arange(0, CHUNK)
            loss -= tl.load(work.policy_value + row)
            action = tl.load(work.action + row[:, None] * SPEC.columns + column[None, :])
            saturated += tl.sum(tl.where(tl.abs(action) > SATURATED, 1.0, 0.0), axis=1)
        _add(temperature.totals + 4, tl.sum(loss, axis=0) / SPEC.batch, counts)
        _add(temperature.totals + 5, tl.sum(saturated, axis=0) / (SPEC.batch * SPEC.action), counts)


@triton.jit
def _add(place, number, counts):
    tl.store(place, tl.load(place) + tl.where(counts > 0.5, number, 0.0))


@triton.jit
def count_step(update):
    """Count one step of Adam unless it is skipped, and work out its corrections 1 - b1^t and sqrt(1 - b2^t)."""
    steps = tl.load(update.steps) + tl.where(tl.load(update.skip) < 0.5, 1.0, 0.0)
    tl.store(update.steps, steps)
    counted = tl.maximum(steps, 1.0)
    tl.store(update.corrections, _one_minus_exp(counted * LOG_BETA_1))
    tl.store(update.corrections + 1, tl.sqrt(_one_minus_exp(counted * LOG_BETA_2)))


@triton.jit
def _one_minus_exp(x):
    """1 - e^x for x <= 0; near 0 by its series, since float32 would take the difference of two numbers that are nearly
    the same, and float64 is slow.
    """
    series = -x * (
        1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0 * (1.0 + x / 7.0)))))
    )
    return tl.where(x > -0.5, series, 1.0 - tl.exp(x))


@triton.jit
def _pack_block(
    program, tower, flat, pack, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, POLICY: tl.constexpr
):
    LAYER: tl.constexpr = NET.layers[AT]
    ACROSS: tl.constexpr = LAYER.columns_pad // LAYER.block_columns
    row = program // ACROSS * LAYER.block_rows + tl.arange(0, LAYER.block_rows)
    column = program % ACROSS * LAYER.block_columns + tl.arange(0, LAYER.block_columns)
    own_row, real = _row_of(row, SPEC, NET, AT, POLICY)
    mask = real[:, None] & (column < LAYER.columns)[None, :]
    x = tl.load(
        flat.parameters + LAYER.weight + (tower * LAYER.rows + own_row)[:, None] * LAYER.columns + column[None, :],
        mask=mask,
        other=0.0,
    )
    bias_mask = real & (program % ACROSS == 0)
    bias = tl.load(flat.parameters + LAYER.bias + tower * LAYER.rows + own_row, mask=bias_mask, other=0.0)
    place = LAYER.packed + row[:, None] * LAYER.columns_pad + column[None, :]
    _store_packed(pack, tower, place, mask, x, LAYER.packed_bias + row, bias_mask, bias, SPEC, NET, AT, POLICY)


@triton.jit
def pack_network(flat, pack, SPEC: tl.constexpr, NET: tl.constexpr, POLICY: tl.constexpr):
    """The packed copies of a network's parameters: program 0 is a block of a weight, 1 the tower."""
    program, tower = tl.program_id(0), tl.program_id(1)
    for k in tl.static_range(len(NET.layers)):
        if (program >= NET.layers[k].program) & (program < NET.layers[k].program + NET.layers[k].programs):
            _pack_block(program - NET.layers[k].program, tower, flat, pack, SPEC, NET, k, POLICY)
