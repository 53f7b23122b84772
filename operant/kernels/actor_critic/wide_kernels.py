"""Triton kernels between the products of wide networks: layers before and after their activation, the squashed Gaussian, values, gradients, Adam.

Rows are samples, (rows, units), a tower's behind another's. Products of whole batches are the library's: what is here passes over their results once each.
A first layer has so few columns that its product is made here, forward and again backward, and stored nowhere. Sums over the batch have a fixed order: each
program adds up its tiles into a row of `partial` (programs, towers, vectors, pad), and `reduce` the rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.networks import is_action, normal, squashed
from operant.kernels.actor_critic.steps import count_step
from operant.kernels.blocks import activate, activation_gradient, operand, saved_activation
from operant.kernels.replay import features

# LAYERS


@triton.jit
def _dot(a, b, SPEC: tl.constexpr):
    """A b of operands, in float32; of float32 with the bits of tf32 at least."""
    return tl.dot(a, b, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def _first_weight(packed, tower, SPEC: tl.constexpr, NET: tl.constexpr):
    """The first layer's weight as an operand (pad, columns), zero outside."""
    WIDTH: tl.constexpr = NET.layers[0].width
    INPUTS: tl.constexpr = NET.layers[0].inputs
    unit, column = tl.arange(0, NET.layers[0].pad)[:, None], tl.arange(0, SPEC.columns)[None, :]
    place = packed + NET.layers[0].weight + (tower * WIDTH + unit) * INPUTS + column
    return tl.load(place, mask=(unit < WIDTH) & (column < INPUTS), other=0.0)


@triton.jit
def _load_rows(x, row, SPEC: tl.constexpr):
    """What first layers read, (rows, columns)."""
    return tl.load(x + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :])


@triton.jit
def _vector(flat, begin, tower, NET: tl.constexpr, AT: tl.constexpr):
    """A vector of a layer's parameters (pad), zero outside."""
    WIDTH: tl.constexpr = NET.layers[AT].width
    unit = tl.arange(0, NET.layers[AT].pad)
    return tl.load(flat + begin + tower * WIDTH + unit, mask=unit < WIDTH, other=0.0)


@triton.jit
def _sums(z, place, flat, tower, NET: tl.constexpr, AT: tl.constexpr):
    """What a layer sums up, its bias included, (rows, pad): rows `place` of `z`."""
    return _load_units(z, place, NET, AT) + _vector(flat, NET.layers[AT].bias, tower, NET, AT)[None, :]


@triton.jit
def _load_units(start, row, NET: tl.constexpr, AT: tl.constexpr):
    """Numbers of a layer's units (rows, pad) as float32, zero outside."""
    WIDTH: tl.constexpr = NET.layers[AT].width
    unit = tl.arange(0, NET.layers[AT].pad)[None, :]
    return tl.load(start + row[:, None] * WIDTH + unit, mask=(unit < WIDTH) & (row >= 0)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _store_units(start, row, x, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    WIDTH: tl.constexpr = NET.layers[AT].width
    unit = tl.arange(0, NET.layers[AT].pad)[None, :]
    tl.store(start + row[:, None] * WIDTH + unit, operand(x, SPEC), mask=(unit < WIDTH) & (row >= 0)[:, None])


@triton.jit
def _activated(s, flat, tower, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """A layer's activations; what its activation is a function of; that with mean 0 and variance 1 a row; and 1 / std (rows)."""
    if SPEC.layer_norm:
        WIDTH: tl.constexpr = NET.layers[AT].width
        inside = (tl.arange(0, NET.layers[AT].pad) < WIDTH)[None, :]
        centred = tl.where(inside, s - (tl.sum(s, axis=1) / WIDTH)[:, None], 0.0)
        inv_std = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + 1e-5)
        x_hat = centred * inv_std[:, None]
        y = x_hat * _vector(flat, NET.layers[AT].gain, tower, NET, AT)[None, :] + _vector(flat, NET.layers[AT].shift, tower, NET, AT)[None, :]
        return activate(y, SPEC), y, x_hat, inv_std
    else:
        return activate(s, SPEC), s, s, tl.sum(s, axis=1)


@triton.jit
def _gradient_of_sums(g, h, y, x_hat, inv_std, flat, tower, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """From the gradient in a layer's activations to those in what it sums up and in what its activation is a function of."""
    g_y = g * activation_gradient(saved_activation(y, h, SPEC), SPEC)
    g_z = g_y
    if SPEC.layer_norm:
        WIDTH: tl.constexpr = NET.layers[AT].width
        scaled = g_y * _vector(flat, NET.layers[AT].gain, tower, NET, AT)[None, :]
        mean, along = tl.sum(scaled, axis=1) / WIDTH, tl.sum(scaled * x_hat, axis=1) / WIDTH
        inside = (tl.arange(0, NET.layers[AT].pad) < WIDTH)[None, :]
        g_z = tl.where(inside, inv_std[:, None] * (scaled - mean[:, None] - x_hat * along[:, None]), 0.0)
    return g_z, g_y


@triton.jit
def _store_partial(partial, program, tower, vector, x, NET: tl.constexpr, AT: tl.constexpr):
    """A vector (pad) of a program's row of sums."""
    unit = tl.arange(0, NET.layers[AT].pad)
    place = ((program * NET.towers + tower) * NET.vectors + NET.layers[AT].partial + vector) * NET.pad
    tl.store(partial + place + unit, x)


@triton.jit
def _store_partials(partial, program, tower, bias, gain, shift, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    _store_partial(partial, program, tower, 0, bias, NET, AT)
    if SPEC.layer_norm:
        _store_partial(partial, program, tower, 1, gain, NET, AT)
        _store_partial(partial, program, tower, 2, shift, NET, AT)


@triton.jit(do_not_specialize=["rows"])
def forward_layer(x, z, hidden, flat, packed, rows, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr):
    """A hidden layer's activations `hidden` (towers, rows, width): program 0 is a tile of rows, 1 the tower.

    The first layer reads `x` and sums it up here, later ones `z` (towers, rows, width). KEEP: the first one's sums go into `z`, for the way back.
    """
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bias = _vector(flat, NET.layers[AT].bias, tower, NET, AT)[None, :]
    if AT == 0:
        s = _dot(_load_rows(x, row, SPEC), tl.trans(_first_weight(packed, tower, SPEC, NET)), SPEC)
        if KEEP:
            _store_units(z, tower * rows + row, s, SPEC, NET, AT)
    else:
        s = _load_units(z, tower * rows + row, NET, AT)
    h, _y, _x_hat, _inv_std = _activated(s + bias, flat, tower, SPEC, NET, AT)
    _store_units(hidden, tower * rows + row, h, SPEC, NET, AT)


@triton.jit(do_not_specialize=["rows", "begin"])
def backward_layer(
    gradient, z, hidden, flat, partial, rows, begin, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, TRAIN: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """In place from the gradient in a layer's activations (towers, B, width) to that in what it sums up. TRAIN: its vectors' gradients, too.

    `z` and `hidden` have `rows` rows, of which B from `begin` on count. Program 0 takes every so many tiles, 1 is the tower.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    PAD: tl.constexpr = NET.layers[AT].pad
    bias, gain, shift = tl.zeros((PAD,), tl.float32), tl.zeros((PAD,), tl.float32), tl.zeros((PAD,), tl.float32)
    for first in range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        place = tower * rows + begin + row
        g = _load_units(gradient, tower * SPEC.batch + row, NET, AT)
        if SPEC.needs_sums:
            h, y, x_hat, inv_std = _activated(_sums(z, place, flat, tower, NET, AT), flat, tower, SPEC, NET, AT)
            g_z, g_y = _gradient_of_sums(g, h, y, x_hat, inv_std, flat, tower, SPEC, NET, AT)
            if TRAIN and SPEC.layer_norm:
                gain += tl.sum(g_y * x_hat, axis=0)
                shift += tl.sum(g_y, axis=0)
        else:
            g_z = g * activation_gradient(_load_units(hidden, place, NET, AT), SPEC)
        _store_units(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)
        if TRAIN:
            bias += tl.sum(g_z, axis=0)
    if TRAIN:
        _store_partials(partial, program, tower, bias, gain, shift, SPEC, NET, AT)


# THE POLICY


@triton.jit
def _policy_head(flat, begin, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """The head's rows of means or of deviations, (pad, columns): in the action's columns."""
    WIDTH: tl.constexpr = NET.layers[AT].width
    unit, which = tl.arange(0, NET.layers[AT].pad)[:, None], (tl.arange(0, SPEC.columns) - SPEC.observation)[None, :]
    mask = (unit < WIDTH) & (which >= 0) & (which < SPEC.action)
    return tl.load(flat + NET.head_weight + (begin + which) * WIDTH + unit, mask=mask, other=0.0)


@triton.jit
def _policy(h, flat, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Means and raw deviations of the last hidden layer, (rows, columns)."""
    which = tl.arange(0, SPEC.columns) - SPEC.observation
    acts = (which >= 0) & (which < SPEC.action)
    bias = flat + NET.head_bias + which
    mean = _dot(h, _policy_head(flat, 0, SPEC, NET, AT), SPEC) + tl.load(bias, mask=acts, other=0.0)[None, :]
    return mean, _dot(h, _policy_head(flat, SPEC.action, SPEC, NET, AT), SPEC) + tl.load(bias + SPEC.action, mask=acts, other=0.0)[None, :]


@triton.jit
def draw(hidden, flat, noise, rows, work, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """Actions at the next observations (program 1 is 0) and at the batch's own (1), which critics read; and what the actor's gradient asks for.

    `hidden` (2 B, width): of both. `rows` (3, B, columns): next observations and actions, the batch's own, and observations with the actor's actions.
    """
    row, which = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    NET: tl.constexpr = SPEC.actor
    place = row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :]
    mean, raw = _policy(_load_units(hidden, which * SPEC.batch + row, NET, AT), flat, SPEC, NET, AT)
    action, log_p, spread, slope = squashed(mean, raw, normal(noise, row, which * 2 * SPEC.action, SPEC.batch, is_action(SPEC), SPEC), SPEC)
    if which == 0:
        tl.store(rows + place, action, mask=is_action(SPEC) & (row >= 0)[:, None])
        tl.store(work.next_log_p + row, log_p)
    else:
        seen = tl.load(rows + SPEC.batch * SPEC.columns + place)
        tl.store(rows + 2 * SPEC.batch * SPEC.columns + place, tl.where(is_action(SPEC), action, seen.to(tl.float32)))
        tl.store(work.action + place, action)
        tl.store(work.spread + place, spread)
        tl.store(work.slope + place, slope)
        tl.store(work.log_p + row, log_p)


@triton.jit
def improve(z, gradient, flat, work, temperature, partial, terms, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """From the critics' slopes to the gradients of the actor's head and of what its last hidden layer sums up. The loss: the mean of alpha log pi - min Q.

    `z` (B, width) of the batch's own observations. `terms` (programs, 2): the sums of log pi and of min Q.
    """
    program = tl.program_id(0)
    NET: tl.constexpr = SPEC.actor
    PAD: tl.constexpr = NET.layers[AT].pad
    bias, gain, shift = tl.zeros((PAD,), tl.float32), tl.zeros((PAD,), tl.float32), tl.zeros((PAD,), tl.float32)
    COLUMNS: tl.constexpr = SPEC.columns
    by_mean, by_raw = tl.zeros((COLUMNS, PAD), tl.float32), tl.zeros((COLUMNS, PAD), tl.float32)
    mean_bias, raw_bias = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    entropy, least = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    alpha = tl.exp(tl.load(temperature.log))
    for first in range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        place = row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :]
        # d log pi / du = 2 a, and of log std -1. Critics' slopes are of -min Q / B already, zero but for the least.
        d_action = tl.load(work.value_slope + place)
        for k in tl.static_range(SPEC.critic.towers - 1):
            d_action += tl.load(work.value_slope + (k + 1) * SPEC.batch * SPEC.columns + place)
        action = tl.load(work.action + place)
        d_mean = tl.where(is_action(SPEC), alpha * 2.0 / SPEC.batch * action + d_action * (1.0 - action * action), 0.0)
        d_raw = tl.where(is_action(SPEC), (d_mean * tl.load(work.spread + place) - alpha / SPEC.batch) * tl.load(work.slope + place), 0.0)
        h, y, x_hat, inv_std = _activated(_sums(z, row, flat, 0, NET, AT), flat, 0, SPEC, NET, AT)
        g = _dot(d_mean, tl.trans(_policy_head(flat, 0, SPEC, NET, AT)), SPEC) + _dot(d_raw, tl.trans(_policy_head(flat, SPEC.action, SPEC, NET, AT)), SPEC)
        g_z, g_y = _gradient_of_sums(g, h, y, x_hat, inv_std, flat, 0, SPEC, NET, AT)
        _store_units(gradient, row, g_z, SPEC, NET, AT)
        by_mean += _dot(tl.trans(d_mean), h, SPEC)
        by_raw += _dot(tl.trans(d_raw), h, SPEC)
        mean_bias += tl.sum(d_mean, axis=0)
        raw_bias += tl.sum(d_raw, axis=0)
        bias += tl.sum(g_z, axis=0)
        if SPEC.layer_norm:
            gain += tl.sum(g_y * x_hat, axis=0)
            shift += tl.sum(g_y, axis=0)
        entropy += tl.load(work.log_p + row)
        least += _least(work.policy_value, row, SPEC)
    _store_partials(partial, program, 0, bias, gain, shift, SPEC, NET, AT)
    which = tl.arange(0, SPEC.columns) - SPEC.observation
    acts = (which >= 0) & (which < SPEC.action)
    begin = partial + (program * NET.vectors + NET.layers[AT].partial + 3) * NET.pad
    matrix = begin + which[:, None] * NET.pad + tl.arange(0, PAD)[None, :]
    tl.store(matrix, by_mean, mask=acts[:, None] & (tl.arange(0, PAD) >= 0)[None, :])
    tl.store(matrix + SPEC.action * NET.pad, by_raw, mask=acts[:, None] & (tl.arange(0, PAD) >= 0)[None, :])
    tl.store(begin + NET.outputs * NET.pad + which, mean_bias, mask=acts)
    tl.store(begin + NET.outputs * NET.pad + SPEC.action + which, raw_bias, mask=acts)
    tl.store(terms + program * 2, tl.sum(entropy, axis=0))
    tl.store(terms + program * 2 + 1, tl.sum(least, axis=0))


@triton.jit(do_not_specialize=["t"])
def read_lanes(acting, rows, t, lanes, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """What is seen before tick t as first layers read it, (lanes, columns)."""
    lane, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPEC.columns)
    mask = (lane < lanes)[:, None] & (column < SPEC.observation)[None, :]
    observed = tl.load(acting.observation + (t * SPEC.observation + column)[None, :] * lanes + lane[:, None], mask=mask, other=0)
    x = features(observed, column, acting.normalizer, SPEC.observation, SPEC.normalized)
    tl.store(rows + lane[:, None] * SPEC.columns + column[None, :], tl.where(mask, x, 0.0))


@triton.jit(do_not_specialize=["t"])
def act(hidden, flat, acting, t, lanes, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """Actions of tick t, drawn by the actor, or uniform ones while `warming` is 1."""
    lane, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPEC.columns)
    acts = is_action(SPEC) & (lane < lanes)[:, None]
    at = (t * SPEC.action + column - SPEC.observation)[None, :] * lanes + lane[:, None]
    noise_at = acting.noise + t * 2 * SPEC.action * lanes
    first = tl.load(noise_at + (column - SPEC.observation)[None, :] * lanes + lane[:, None], mask=acts, other=0.0)
    NET: tl.constexpr = SPEC.actor
    mean, raw = _policy(_load_units(hidden, lane, NET, AT), flat, SPEC, NET, AT)
    drawn, _log_p, _spread, _slope = squashed(mean, raw, normal(noise_at, lane, 0, lanes, acts, SPEC), SPEC)
    drawn = tl.where(tl.load(acting.warming) > 0.0, 2.0 * first - 1.0, drawn)
    which = column - SPEC.observation
    one = (which >= 0) & (which < SPEC.action)
    centre = tl.load(acting.centre + which, mask=one, other=0.0)[None, :]
    reach = tl.load(acting.reach + which, mask=one, other=0.0)[None, :]
    tl.store(acting.raw + at, drawn, mask=acts)
    tl.store(acting.action + at, centre + reach * drawn, mask=acts)


# THE CRITICS


@triton.jit
def _value_head(flat, tower, NET: tl.constexpr, AT: tl.constexpr):
    """A critic's last weight (pad) and bias."""
    return _vector(flat, NET.head_weight, tower, NET, AT), tl.load(flat + NET.head_bias + tower)


@triton.jit
def _least(values, row, SPEC: tl.constexpr):
    """The least of critics' values (towers, B), (rows)."""
    least = tl.load(values + row)
    for k in tl.static_range(SPEC.critic.towers - 1):
        least = tl.minimum(least, tl.load(values + (k + 1) * SPEC.batch + row))
    return least


@triton.jit
def value(z, flat, values, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """Critics' values (towers, B), of what their last hidden layers sum up."""
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    NET: tl.constexpr = SPEC.critic
    h, _y, _x_hat, _inv_std = _activated(_sums(z, tower * SPEC.batch + row, flat, tower, NET, AT), flat, tower, SPEC, NET, AT)
    weight, bias = _value_head(flat, tower, NET, AT)
    tl.store(values + tower * SPEC.batch + row, tl.sum(h * weight[None, :], axis=1) + bias)


@triton.jit
def criticise(batch, z, gradient, flat, work, temperature, partial, terms, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """The gradients of the critics' heads and of what their last hidden layers sum up. The loss: the sum over critics of the mean of (Q - y)^2.

    `terms` (programs, towers, 3): the sums of (Q - y)^2, |Q - y| and Q. y = r + discount (min of the targets' values - alpha log pi).
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    NET: tl.constexpr = SPEC.critic
    PAD: tl.constexpr = NET.layers[AT].pad
    bias, gain, shift, by_weight = tl.zeros((PAD,), tl.float32), tl.zeros((PAD,), tl.float32), tl.zeros((PAD,), tl.float32), tl.zeros((PAD,), tl.float32)
    squared, absolute, total, by_bias = (
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS,), tl.float32),
    )
    alpha = tl.exp(tl.load(temperature.log))
    weight, head_bias = _value_head(flat, tower, NET, AT)
    for first in range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        y_next = _least(work.next_value, row, SPEC) - alpha * tl.load(work.next_log_p + row)
        target = tl.load(batch.reward + row) + tl.load(batch.discount + row) * y_next
        h, y, x_hat, inv_std = _activated(_sums(z, tower * SPEC.batch + row, flat, tower, NET, AT), flat, tower, SPEC, NET, AT)
        q = tl.sum(h * weight[None, :], axis=1) + head_bias
        error = q - target
        d = 2.0 / SPEC.batch * error
        g_z, g_y = _gradient_of_sums(d[:, None] * weight[None, :], h, y, x_hat, inv_std, flat, tower, SPEC, NET, AT)
        _store_units(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)
        by_weight += tl.sum(d[:, None] * h, axis=0)
        by_bias += d
        bias += tl.sum(g_z, axis=0)
        if SPEC.layer_norm:
            gain += tl.sum(g_y * x_hat, axis=0)
            shift += tl.sum(g_y, axis=0)
        squared += error * error
        absolute += tl.abs(error)
        total += q
    _store_partials(partial, program, tower, bias, gain, shift, SPEC, NET, AT)
    _store_partial(partial, program, tower, 3, by_weight, NET, AT)
    _store_partial(partial, program, tower, 4, tl.where(tl.arange(0, PAD) == 0, tl.sum(by_bias, axis=0), 0.0), NET, AT)
    place = terms + (program * NET.towers + tower) * 3
    tl.store(place, tl.sum(squared, axis=0))
    tl.store(place + 1, tl.sum(absolute, axis=0))
    tl.store(place + 2, tl.sum(total, axis=0))


@triton.jit
def judge(z, gradient, flat, work, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """The gradient of -min Q / B in what the critics' last hidden layers sum up: zero but for the critic whose value of the actor's action is the least."""
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    NET: tl.constexpr = SPEC.critic
    weight, _bias = _value_head(flat, tower, NET, AT)
    h, y, x_hat, inv_std = _activated(_sums(z, tower * SPEC.batch + row, flat, tower, NET, AT), flat, tower, SPEC, NET, AT)
    own, least = tl.load(work.policy_value + tower * SPEC.batch + row), tl.load(work.policy_value + row)
    chosen = tl.zeros((ROWS,), tl.int32)
    for k in tl.static_range(SPEC.critic.towers - 1):
        other = tl.load(work.policy_value + (k + 1) * SPEC.batch + row)
        chosen = tl.where(other < least, k + 1, chosen)
        least = tl.minimum(least, other)
    d = tl.where(chosen == tower, -1.0 / SPEC.batch, 0.0) + 0.0 * own
    g_z, _g_y = _gradient_of_sums(d[:, None] * weight[None, :], h, y, x_hat, inv_std, flat, tower, SPEC, NET, AT)
    _store_units(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)


# STEPS


@triton.jit
def reduce(partial, gradient, SPEC: tl.constexpr, NET: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr):
    """The gradients of all vectors, from the rows of sums: program 0 is the vector, 1 the tower, 2 a part of its numbers."""
    vector, tower = tl.program_id(0), tl.program_id(1)
    unit = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    inside = unit < NET.pad
    total = tl.zeros((CHUNK, WIDE), tl.float32)
    for start in range(0, SPEC.programs, CHUNK):
        place = ((start + tl.arange(0, CHUNK)) * NET.towers + tower) * NET.vectors + vector
        total += tl.load(partial + place[:, None] * NET.pad + unit[None, :], mask=inside[None, :] & (place >= 0)[:, None], other=0.0)
    g = tl.sum(total, axis=0)
    for k in tl.static_range(len(NET.layers)):
        number = vector - NET.layers[k].partial
        here = unit < NET.layers[k].width
        place = gradient + tower * NET.layers[k].width + unit
        if number == 0:
            tl.store(place + NET.layers[k].bias, g, mask=here)
        if SPEC.layer_norm:
            if number == 1:
                tl.store(place + NET.layers[k].gain, g, mask=here)
            if number == 2:
                tl.store(place + NET.layers[k].shift, g, mask=here)
        if k == len(NET.layers) - 1:
            output = number - 3
            if (output >= 0) & (output < NET.outputs):
                tl.store(gradient + NET.head_weight + (tower * NET.outputs + output) * NET.layers[k].width + unit, g, mask=here)
            if output == NET.outputs:
                tl.store(gradient + NET.head_bias + tower * NET.outputs + unit, g, mask=unit < NET.outputs)


@triton.jit
def count(actor_update, critic_update, temperature, SPEC: tl.constexpr):
    """Count the steps of all optimizers."""
    count_step(actor_update)
    count_step(critic_update)
    if SPEC.automatic:
        count_step(temperature)


@triton.jit
def step(flat, gradient, target, packed, target_packed, update, squares, size, TARGET: tl.constexpr, BLOCK: tl.constexpr):
    """One step of Adam; the target after it, x' <- x' + tau (x - x'); both as products take them; and the sum of the gradient's squares."""
    program = tl.program_id(0)
    place = program * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    skipped = tl.load(update.skip)
    kept = skipped < 0.5
    rate = tl.load(update.learning_rate) / tl.load(update.corrections)
    root, epsilon, tau = tl.load(update.corrections + 1), tl.load(update.scalars), tl.load(update.scalars + 1)
    g, x = tl.load(gradient + place, mask=mask, other=0.0), tl.load(flat.parameters + place, mask=mask, other=0.0)
    m = 0.9 * tl.load(flat.first + place, mask=mask, other=0.0) + (1.0 - 0.9) * g
    v = 0.999 * tl.load(flat.second + place, mask=mask, other=0.0) + (1.0 - 0.999) * g * g
    write = mask & (skipped + tl.zeros_like(x) < 0.5)
    x = tl.where(kept, x - rate * m / (tl.sqrt(v) / root + epsilon), x)
    tl.store(flat.first + place, m, mask=write)
    tl.store(flat.second + place, v, mask=write)
    tl.store(flat.parameters + place, x, mask=write)
    tl.store(packed + place, x, mask=mask)
    tl.store(squares + program, tl.sum(g * g, axis=0))
    if TARGET:
        old = tl.load(target + place, mask=mask, other=0.0)
        moved = tl.where(kept, old + tau * (x - old), old)
        tl.store(target + place, moved, mask=mask)
        tl.store(target_packed + place, moved, mask=mask)


@triton.jit
def _add(place, number, kept):
    tl.store(place, tl.load(place) + tl.where(kept, number, 0.0))


@triton.jit
def finish(critic_terms, actor_terms, temperature, update, squares, blocks, SPEC: tl.constexpr, BLOCKS: tl.constexpr):
    """What an update says of itself, added to the iteration's totals; then the temperature's step, down -log alpha (mean log pi + target entropy)."""
    program, block = tl.arange(0, SPEC.programs), tl.arange(0, BLOCKS)
    alpha, kept = tl.exp(tl.load(temperature.log)), tl.load(temperature.skip) < 0.5
    mean_log_p = tl.sum(tl.load(actor_terms + 2 * program), axis=0) / SPEC.batch
    least = tl.sum(tl.load(actor_terms + 2 * program + 1), axis=0) / SPEC.batch
    squared, absolute, total = 0.0, 0.0, 0.0
    TOWERS: tl.constexpr = SPEC.critic.towers
    for tower in tl.static_range(TOWERS):
        place = critic_terms + (program * SPEC.critic.towers + tower) * 3
        squared += tl.sum(tl.load(place), axis=0)
        absolute += tl.sum(tl.load(place + 1), axis=0)
        total += tl.sum(tl.load(place + 2), axis=0)
    both = SPEC.critic.towers * SPEC.batch
    norm = tl.sqrt(tl.sum(tl.load(squares + block, mask=block < blocks, other=0.0), axis=0))
    _add(temperature.totals, squared / SPEC.batch, kept)
    _add(temperature.totals + 1, alpha * mean_log_p - least, kept)
    _add(temperature.totals + 2, total / both, kept)
    _add(temperature.totals + 3, absolute / both, kept)
    _add(temperature.totals + 4, -mean_log_p, kept)
    _add(temperature.totals + 5, norm, kept)
    if SPEC.automatic:
        gradient = -mean_log_p - tl.load(update.scalars + 2)
        m = 0.9 * tl.load(temperature.first) + (1.0 - 0.9) * gradient
        v = 0.999 * tl.load(temperature.second) + (1.0 - 0.999) * gradient * gradient
        x = tl.load(temperature.log) - tl.load(update.learning_rate) / tl.load(temperature.corrections) * m / (
            tl.sqrt(v) / tl.load(temperature.corrections + 1) + tl.load(update.scalars)
        )
        tl.store(temperature.first, m, mask=kept)
        tl.store(temperature.second, v, mask=kept)
        tl.store(temperature.log, x, mask=kept)
