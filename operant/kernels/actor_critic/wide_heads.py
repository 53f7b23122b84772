"""Triton kernels at the ends of wide networks: the squashed Gaussian and values, their gradients, and acting. See
`wide_parts`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic import wide_parts as wide
from operant.kernels.actor_critic.networks import is_action, normal, squashed
from operant.kernels.replay import features

# THE POLICY


@triton.jit
def _policy_head(flat, begin, p, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Part `p` of the head's rows of means or of deviations, (part, columns): in the action's columns."""
    unit, inside = wide.units(p, NET, AT)
    which = (tl.arange(0, SPEC.columns) - SPEC.observation)[None, :]
    mask = inside[:, None] & (which >= 0) & (which < SPEC.action)
    return tl.load(
        flat + NET.head_weight + (begin + which) * NET.layers[AT].width + unit[:, None], mask=mask, other=0.0
    )


@triton.jit
def _policy(
    hidden, row, flat, READY: tl.constexpr, ROWS: tl.constexpr, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr
):
    """Means and raw deviations of rows of the last hidden layer, (rows, columns). READY: `hidden` holds them
    already.
    """
    if READY:
        place = hidden + row[:, None] * NET.outputs + (tl.arange(0, SPEC.columns) - SPEC.observation)[None, :]
        mask = is_action(SPEC) & (row >= 0)[:, None]
        return tl.load(place, mask=mask, other=0.0), tl.load(place + SPEC.action, mask=mask, other=0.0)
    else:
        return _policy_of(wide.load_rows(hidden, row, NET, AT), flat, ROWS, SPEC, NET, AT)


@triton.jit
def _policy_of(h, flat, ROWS: tl.constexpr, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """The same of their activations."""
    which = tl.arange(0, SPEC.columns) - SPEC.observation
    acts = (which >= 0) & (which < SPEC.action)
    bias = flat + NET.head_bias + which
    COLUMNS: tl.constexpr = SPEC.columns
    mean, raw = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for p in tl.static_range(len(NET.layers[AT].parts)):
        mean += wide.dot(h[p], _policy_head(flat, 0, p, SPEC, NET, AT), SPEC)
        raw += wide.dot(h[p], _policy_head(flat, SPEC.action, p, SPEC, NET, AT), SPEC)
    mean += tl.load(bias, mask=acts, other=0.0)[None, :]
    return mean, raw + tl.load(bias + SPEC.action, mask=acts, other=0.0)[None, :]


@triton.jit
def draw(
    hidden, flat, noise, rows, work, SPEC: tl.constexpr, AT: tl.constexpr, READY: tl.constexpr, ROWS: tl.constexpr
):
    """Actions at the next observations (program 1 is 0) and at the batch's own (1), which critics read; and what the
    actor's gradient asks for.

    `hidden` (2 B, width): of both. `rows` (3, B, columns): next observations and actions, the batch's own, and
    observations with the actor's actions.
    """
    row, which = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    NET: tl.constexpr = SPEC.actor
    place = row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :]
    mean, raw = _policy(hidden, which * SPEC.batch + row, flat, READY, ROWS, SPEC, NET, AT)
    action, log_p, spread, slope = squashed(
        mean, raw, normal(noise, row, which * 2 * SPEC.action, SPEC.batch, is_action(SPEC), SPEC), SPEC
    )
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
def improve(
    z,
    saved,
    gradient,
    flat,
    work,
    temperature,
    partial,
    terms,
    SPEC: tl.constexpr,
    AT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """From the critics' slopes to the gradients of the actor's head and of what its last hidden layer sums up. The
    loss: the mean of alpha log pi - min Q.

    `z` (B, width) of the batch's own observations. `terms` (programs, 2): the sums of log pi and of min Q.
    """
    program = tl.program_id(0)
    NET: tl.constexpr = SPEC.actor
    PARTS: tl.constexpr = NET.layers[AT].parts
    COLUMNS: tl.constexpr = SPEC.columns
    layer = wide.load_layer(flat, 0, SPEC, NET, AT)
    bias = wide.no_sums(ROWS, NET, AT)
    gain, shift = bias, bias
    by_mean, by_raw = wide.no_sums(COLUMNS, NET, AT), wide.no_sums(COLUMNS, NET, AT)
    mean_bias, raw_bias = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    entropy, least = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    alpha = tl.exp(tl.load(temperature.log))
    for first in range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        place = row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        # d log pi / du = 2 a, and of log std -1. Critics' slopes are of -min Q / B already, zero but for the least.
        d_action = tl.load(work.value_slope + place)
        for k in tl.static_range(SPEC.critic.towers - 1):
            d_action += tl.load(work.value_slope + (k + 1) * SPEC.batch * COLUMNS + place)
        action = tl.load(work.action + place)
        d_mean = tl.where(is_action(SPEC), alpha * 2.0 / SPEC.batch * action + d_action * (1.0 - action * action), 0.0)
        d_raw = tl.where(
            is_action(SPEC),
            (d_mean * tl.load(work.spread + place) - alpha / SPEC.batch) * tl.load(work.slope + place),
            0.0,
        )
        kept = wide.load_activated(z, saved, row, layer, SPEC, NET, AT)
        g = ()
        mean_sums = ()
        raw_sums = ()
        for p in tl.static_range(len(PARTS)):
            by = wide.dot(d_mean, tl.trans(_policy_head(flat, 0, p, SPEC, NET, AT)), SPEC)
            g = g + (by + wide.dot(d_raw, tl.trans(_policy_head(flat, SPEC.action, p, SPEC, NET, AT)), SPEC),)
            mean_sums = mean_sums + (by_mean[p] + wide.dot(tl.trans(d_mean), kept[0][p], SPEC),)
            raw_sums = raw_sums + (by_raw[p] + wide.dot(tl.trans(d_raw), kept[0][p], SPEC),)
        by_mean, by_raw = mean_sums, raw_sums
        g_z, g_y = wide.gradient_of_sums(g, kept, layer, SPEC, NET, AT)
        wide.store_rows(gradient, row, g_z, SPEC, NET, AT)
        mean_bias += d_mean
        raw_bias += d_raw
        bias = wide.add(bias, g_z, NET, AT)
        if SPEC.layer_norm:
            gain, shift = wide.add_products(gain, g_y, kept[2], NET, AT), wide.add(shift, g_y, NET, AT)
        entropy += tl.load(work.log_p + row)
        least += _least(work.policy_value, row, SPEC)
    wide.store_layer(partial, program, 0, bias, gain, shift, SPEC, NET, AT)
    which = tl.arange(0, COLUMNS) - SPEC.observation
    acts = (which >= 0) & (which < SPEC.action)
    begin = partial + (program * NET.vectors + NET.layers[AT].partial + 3) * NET.pad
    for p in tl.static_range(len(PARTS)):
        matrix = begin + which[:, None] * NET.pad + (NET.layers[AT].starts[p] + tl.arange(0, PARTS[p]))[None, :]
        tl.store(matrix, by_mean[p], mask=acts[:, None])
        tl.store(matrix + SPEC.action * NET.pad, by_raw[p], mask=acts[:, None])
    tl.store(begin + NET.outputs * NET.pad + which, tl.sum(mean_bias, axis=0), mask=acts)
    tl.store(begin + NET.outputs * NET.pad + SPEC.action + which, tl.sum(raw_bias, axis=0), mask=acts)
    tl.store(terms + program * 2, tl.sum(entropy, axis=0))
    tl.store(terms + program * 2 + 1, tl.sum(least, axis=0))


@triton.jit
def improve_few(
    z,
    saved,
    gradient,
    flat,
    work,
    temperature,
    partial,
    terms,
    SPEC: tl.constexpr,
    AT: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """As `improve`, for few numbers of an action: without products of matrices."""
    program = tl.program_id(0)
    NET: tl.constexpr = SPEC.actor
    OUTPUTS: tl.constexpr = NET.outputs
    ACTIONS: tl.constexpr = SPEC.action
    layer = wide.load_layer(flat, 0, SPEC, NET, AT)
    bias = wide.no_sums(ROWS, NET, AT)
    gain, shift = bias, bias
    heads, by_head, by_bias = (), (), ()
    for k in tl.static_range(OUTPUTS):
        heads = heads + (wide.load_vector(flat, NET.head_weight + k * NET.layers[AT].width, 0, NET, AT),)
        by_head = by_head + (bias,)
        by_bias = by_bias + (tl.zeros((ROWS,), tl.float32),)
    entropy, least = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    alpha = tl.exp(tl.load(temperature.log))
    for first in tl.range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        kept = wide.load_activated(z, saved, row, layer, SPEC, NET, AT)
        means, raws = (), ()
        for k in tl.static_range(ACTIONS):
            place = row * SPEC.columns + SPEC.observation + k
            d_action = tl.load(work.value_slope + place)
            for tower in tl.static_range(SPEC.critic.towers - 1):
                d_action += tl.load(work.value_slope + (tower + 1) * SPEC.batch * SPEC.columns + place)
            action = tl.load(work.action + place)
            mean = alpha * 2.0 / SPEC.batch * action + d_action * (1.0 - action * action)
            means = means + (mean,)
            raws = raws + ((mean * tl.load(work.spread + place) - alpha / SPEC.batch) * tl.load(work.slope + place),)
        d = means + raws
        g = _times(d[0], heads[0], NET, AT)
        for k in tl.static_range(1, OUTPUTS):
            g = wide.add(g, _times(d[k], heads[k], NET, AT), NET, AT)
        g_z, g_y = wide.gradient_of_sums(g, kept, layer, SPEC, NET, AT)
        wide.store_rows(gradient, row, g_z, SPEC, NET, AT)
        head_sums, bias_sums = (), ()
        for k in tl.static_range(OUTPUTS):
            head_sums = head_sums + (wide.add(by_head[k], _times(d[k], kept[0], NET, AT), NET, AT),)
            bias_sums = bias_sums + (by_bias[k] + d[k],)
        by_head, by_bias = head_sums, bias_sums
        bias = wide.add(bias, g_z, NET, AT)
        if SPEC.layer_norm:
            gain, shift = wide.add_products(gain, g_y, kept[2], NET, AT), wide.add(shift, g_y, NET, AT)
        entropy += tl.load(work.log_p + row)
        least += _least(work.policy_value, row, SPEC)
    wide.store_layer(partial, program, 0, bias, gain, shift, SPEC, NET, AT)
    begin = partial + (program * NET.vectors + NET.layers[AT].partial + 3 + OUTPUTS) * NET.pad
    for k in tl.static_range(OUTPUTS):
        wide.store_sum(partial, program, 0, 3 + k, by_head[k], NET, AT)
        tl.store(begin + k, tl.sum(by_bias[k], axis=0))
    tl.store(terms + program * 2, tl.sum(entropy, axis=0))
    tl.store(terms + program * 2 + 1, tl.sum(least, axis=0))


@triton.jit(do_not_specialize=["t"])
def read_lanes(acting, rows, t, lanes, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """What is seen before tick t as first layers read it, (lanes, columns)."""
    lane, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPEC.columns)
    mask = (lane < lanes)[:, None] & (column < SPEC.observation)[None, :]
    observed = tl.load(
        acting.observation + (t * SPEC.observation + column)[None, :] * lanes + lane[:, None], mask=mask, other=0
    )
    x = features(observed, column, acting.normalizer, SPEC.observation, SPEC.normalized)
    tl.store(rows + lane[:, None] * SPEC.columns + column[None, :], tl.where(mask, x, 0.0))


@triton.jit(do_not_specialize=["t"])
def act(hidden, flat, acting, t, lanes, SPEC: tl.constexpr, AT: tl.constexpr, READY: tl.constexpr, ROWS: tl.constexpr):
    """Actions of tick t, drawn by the actor, or uniform ones while `warming` is 1."""
    lane, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPEC.columns)
    acts = is_action(SPEC) & (lane < lanes)[:, None]
    at = (t * SPEC.action + column - SPEC.observation)[None, :] * lanes + lane[:, None]
    noise_at = acting.noise + t * 2 * SPEC.action * lanes
    first = tl.load(noise_at + (column - SPEC.observation)[None, :] * lanes + lane[:, None], mask=acts, other=0.0)
    NET: tl.constexpr = SPEC.actor
    mean, raw = _policy(hidden, lane, flat, READY, ROWS, SPEC, NET, AT)
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
def _least(values, row, SPEC: tl.constexpr):
    """The least of critics' values (towers, B), (rows)."""
    least = tl.load(values + row)
    for k in tl.static_range(SPEC.critic.towers - 1):
        least = tl.minimum(least, tl.load(values + (k + 1) * SPEC.batch + row))
    return least


@triton.jit
def _times(rows, vector, NET: tl.constexpr, AT: tl.constexpr):
    """The outer product of (rows) with a vector."""
    x = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        x = x + (rows[:, None] * vector[p],)
    return x


@triton.jit
def criticise(
    batch,
    z,
    saved,
    gradient,
    flat,
    work,
    temperature,
    partial,
    terms,
    SPEC: tl.constexpr,
    AT: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The gradients of the critics' heads and of what their last hidden layers sum up. The loss: the sum over critics
    of the mean of (Q - y)^2.

    `terms` (programs, towers, 3): the sums of (Q - y)^2, |Q - y| and Q. y = r + discount (min of the targets' values -
    alpha log pi).
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    NET: tl.constexpr = SPEC.critic
    bias = wide.no_sums(ROWS, NET, AT)
    gain, shift, by_weight = bias, bias, bias
    by_bias, squared, absolute = (
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS,), tl.float32),
    )
    total = by_bias
    alpha, head_bias = tl.exp(tl.load(temperature.log)), tl.load(flat + NET.head_bias + tower)
    weight, layer = wide.load_vector(flat, NET.head_weight, tower, NET, AT), wide.load_layer(flat, tower, SPEC, NET, AT)
    for first in tl.range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        y_next = _least(work.next_value, row, SPEC) - alpha * tl.load(work.next_log_p + row)
        target = tl.load(batch.reward + row) + tl.load(batch.discount + row) * y_next
        kept = wide.load_activated(z, saved, tower * SPEC.batch + row, layer, SPEC, NET, AT)
        q = wide.row_products(kept[0], weight, NET, AT) + head_bias
        error = q - target
        d = 2.0 / SPEC.batch * error
        g_z, g_y = wide.gradient_of_sums(_times(d, weight, NET, AT), kept, layer, SPEC, NET, AT)
        wide.store_rows(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)
        by_weight = wide.add(by_weight, _times(d, kept[0], NET, AT), NET, AT)
        by_bias += d
        bias = wide.add(bias, g_z, NET, AT)
        if SPEC.layer_norm:
            gain, shift = wide.add_products(gain, g_y, kept[2], NET, AT), wide.add(shift, g_y, NET, AT)
        squared += error * error
        absolute += tl.abs(error)
        total += q
    wide.store_layer(partial, program, tower, bias, gain, shift, SPEC, NET, AT)
    wide.store_sum(partial, program, tower, 3, by_weight, NET, AT)
    tl.store(
        partial + ((program * NET.towers + tower) * NET.vectors + NET.layers[AT].partial + 4) * NET.pad,
        tl.sum(by_bias, axis=0),
    )
    place = terms + (program * NET.towers + tower) * 3
    tl.store(place, tl.sum(squared, axis=0))
    tl.store(place + 1, tl.sum(absolute, axis=0))
    tl.store(place + 2, tl.sum(total, axis=0))


@triton.jit
def judge(z, saved, gradient, flat, work, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """The gradient of -min Q / B in what the critics' last hidden layers sum up: zero but for the critic whose value of
    the actor's action is the least.
    """
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    NET: tl.constexpr = SPEC.critic
    layer = wide.load_layer(flat, tower, SPEC, NET, AT)
    kept = wide.load_activated(z, saved, tower * SPEC.batch + row, layer, SPEC, NET, AT)
    least = tl.load(work.policy_value + row)
    chosen = tl.zeros((ROWS,), tl.int32)
    for k in tl.static_range(SPEC.critic.towers - 1):
        other = tl.load(work.policy_value + (k + 1) * SPEC.batch + row)
        chosen = tl.where(other < least, k + 1, chosen)
        least = tl.minimum(least, other)
    d = tl.where(chosen == tower, -1.0 / SPEC.batch, 0.0)
    g = _times(d, wide.load_vector(flat, NET.head_weight, tower, NET, AT), NET, AT)
    g_z, _g_y = wide.gradient_of_sums(g, kept, layer, SPEC, NET, AT)
    wide.store_rows(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)
