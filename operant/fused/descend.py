"""The Triton kernel of PPO's gradient: forward, loss and backward over tiles of a minibatch, each program into a row of its own.

A program takes one tower and every P-th tile, and keeps its sums of gradients in registers from its first tile to its last. No two programs write to the same
place and tiles go to programs by number, so sums are the same bits every time. While a tile is computed the next one's samples are on their way, and the
block numbers of the one after it. The loss is `operant.algos.ppo.ppo_loss`, its gradient written out by hand. Knows no optimiser.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.fused.parts import add_product, categorical, features, forward, gaussian_log_density, network, operand, product, restored, slope, zeros

STATS = tl.constexpr(32)
"""Columns behind the gradient's in a program's row: sums of surrogate, squared error, entropy, KL and clipped samples, then nothing."""


# SAMPLES


@triton.jit
def _blocks(order, tile, count, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Which block of neighbouring lanes each row of a tile lies in, (rows)."""
    row = tile * ROWS + tl.arange(0, ROWS)
    return tl.load(order + row // BLOCK, mask=row < count, other=0)


@triton.jit
def _gather(block, tile, observation, raw, samples, tower, count, lanes, stride, SPEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile's samples: observations (rows, observation_pad), actions, and two numbers each (rows), which the tower's half of the loss asks for.

    Those are the advantage and the old log-probability of the actor, the return and the old value of the critic; all four with a shared trunk.
    """
    row = tile * ROWS + tl.arange(0, ROWS)
    here = row < count
    place = block * BLOCK + row % BLOCK  # t N + n
    t = block // (lanes // BLOCK)
    field = tl.arange(0, SPEC.observation_pad)
    at = (place + t * (SPEC.observation - 1) * lanes)[:, None] + field[None, :] * lanes
    observed = tl.load(observation + at, mask=here[:, None] & (field < SPEC.observation)[None, :], other=0.0)

    # `samples` holds four rows of `stride`: advantage, log-probability, return, value.
    first = samples if SPEC.shared else samples + tower * 2 * stride
    numbers = (tl.load(first + place, mask=here, other=0.0), tl.load(first + stride + place, mask=here, other=0.0))
    if SPEC.shared:
        for k in tl.static_range(2, 4):
            numbers = numbers + (tl.load(samples + k * stride + place, mask=here, other=0.0),)

    acting = here if SPEC.shared else here & (tower == 0)
    if len(SPEC.sizes) == 1:
        action = tl.load(raw + place, mask=acting, other=0)
    else:
        column = tl.arange(0, SPEC.out_pad)
        choice = column
        rows = SPEC.head_rows
        if len(SPEC.sizes) > 1:
            rows = len(SPEC.sizes)
            choice = _choice_of(column, SPEC)
        begin = place + t * (rows - 1) * lanes
        action = tl.load(raw + begin[:, None] + choice[None, :] * lanes, mask=acting[:, None] & (column < SPEC.head_rows)[None, :], other=0)
    return observed, action, numbers


@triton.jit
def _choice_of(column, SPEC: tl.constexpr):
    """Which choice a column of logits belongs to."""
    choice = tl.zeros_like(column)
    for k in tl.static_range(1, len(SPEC.sizes)):
        choice += (column >= SPEC.starts[k]).to(tl.int32)
    return choice


@triton.jit
def _value_of(column, SPEC: tl.constexpr):
    """Which value of its choice a column of logits stands for."""
    value = column
    for k in tl.static_range(1, len(SPEC.sizes)):
        value = tl.where(column >= SPEC.starts[k], column - SPEC.starts[k], value)
    return value


# LOSS


@triton.jit
def _ratio_slope(log_p, old, advantage, clip):
    """Of the surrogate: its slope in log p, and the sums' terms (surrogate, KL, clipped), all (rows)."""
    log_ratio = log_p - old
    ratio = tl.exp(log_ratio)
    free = ratio * advantage
    limited = tl.where(ratio > 1.0 + clip, 1.0 + clip, tl.where(ratio < 1.0 - clip, 1.0 - clip, ratio)) * advantage
    # Asked so that NaN, which is neither, stays in the gradient and in the loss.
    past = free > limited
    return tl.where(past, 0.0, free), tl.where(past, limited, free), ratio - 1.0 - log_ratio, tl.where(tl.abs(ratio - 1.0) > clip, 1.0, 0.0)


@triton.jit
def _policy_loss(out, column, action, advantage, old, log_std, clip, entropy_coefficient, SPEC: tl.constexpr):
    """Slope of the loss in the outputs and in log_std (rows, out_pad), times the batch; terms of the sums (rows)."""
    inside = (column < SPEC.head_rows)[None, :]
    if len(SPEC.sizes) > 0:
        log_p, p, entropy = categorical(out, column, SPEC)
        taken = (action[:, None] == column[None, :]) if len(SPEC.sizes) == 1 else (action == _value_of(column, SPEC)[None, :])
        taken = tl.where(taken & inside, 1.0, 0.0)
        of_action, of_choices = tl.sum(log_p * taken, axis=1), -tl.sum(p * log_p, axis=1)
        pull, surrogate, kl, clipped = _ratio_slope(of_action, old, advantage, clip)
        slope_out = entropy_coefficient * p * (log_p + entropy) - pull[:, None] * (taken - p)
        slope_spread = slope_out
    else:
        of_action, standard = gaussian_log_density(out, action, log_std, inside, SPEC)
        pull, surrogate, kl, clipped = _ratio_slope(of_action, old, advantage, clip)
        slope_out = -pull[:, None] * standard * tl.exp(-log_std)[None, :]
        slope_spread = tl.where(inside, -pull[:, None] * (standard * standard - 1.0) - entropy_coefficient, 0.0)
        of_choices = tl.zeros_like(of_action)  # the entropy is the same for every sample: added up at the end
    return slope_out, slope_spread, surrogate, of_choices, kl, clipped


@triton.jit
def _value_loss(value, target, old, value_clip, value_coefficient, VALUE_CLIPPED: tl.constexpr):
    """Slope of the loss in the value, times the batch, and the squared error, both (rows)."""
    error = value - target
    squared = error * error
    if VALUE_CLIPPED:
        moved = value - old
        near = old + tl.where(moved > value_clip, value_clip, tl.where(moved < -value_clip, -value_clip, moved)) - target
        clipped = near * near > squared
        error = tl.where(clipped, tl.where(tl.abs(moved) > value_clip, 0.0, near), error)
        squared = tl.where(clipped, near * near, squared)
    return value_coefficient * error, squared


@triton.jit
def _loss(
    out, column, here, tower, action, numbers, log_std, clip, value_clip, entropy_coefficient, value_coefficient,
    SPEC: tl.constexpr, VALUE_CLIPPED: tl.constexpr,
):  # fmt: skip
    """Slopes (rows, out_pad) in the outputs and in log_std, times the batch, and five terms of the sums (rows), zero in rows that are no samples."""
    slope_out = tl.zeros_like(out)
    slope_spread = tl.zeros_like(out)
    none = tl.sum(slope_out, axis=1)
    surrogate, squared, entropy, kl, clipped = none, none, none, none, none
    if SPEC.shared or tower == 0:
        slope_out, slope_spread, surrogate, entropy, kl, clipped = _policy_loss(
            out, column, action, numbers[0], numbers[1], log_std, clip, entropy_coefficient, SPEC
        )
    if SPEC.shared or tower == 1:
        value = tl.sum(tl.where((column == SPEC.head_rows)[None, :], out, 0.0), axis=1)
        slope_value, squared = _value_loss(value, numbers[-2], numbers[-1], value_clip, value_coefficient, VALUE_CLIPPED)
        slope_out = tl.where((column == SPEC.head_rows)[None, :], slope_value[:, None], slope_out)
    slope_out = tl.where(here[:, None], slope_out, 0.0)
    slope_spread = tl.where(here[:, None], slope_spread, 0.0)
    terms = (surrogate, squared, entropy, kl, clipped)
    counted = ()
    for k in tl.static_range(5):
        counted = counted + (tl.where(here, terms[k], 0.0),)
    return slope_out, slope_spread, counted


# GRADIENT


@triton.jit
def _no_gradients(SPEC: tl.constexpr):
    """Sums to begin with: the first weight's, then of each later layer the weight's and the bias's, then the last weight's (H, out_pad)."""
    sums = (zeros(SPEC.hidden_pad[0], SPEC.observation_pad),)
    for k in tl.static_range(len(SPEC.weights)):
        sums = sums + (zeros(SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k]), zeros(SPEC.hidden_pad[k + 1], 16))
    return sums + (zeros(SPEC.hidden_pad[-1], SPEC.out_pad),)


@triton.jit
def _backward(sums, slope_out, x, ones, net, hidden, memory, SPEC: tl.constexpr):
    """Add a tile's gradients to the sums."""
    _first, weights, _biases, last, _last_bias = net
    g = operand(slope_out, SPEC)
    added = (add_product(tl.trans(hidden[-1]), g, sums[-1], SPEC),)
    back = product(g, last, SPEC)
    for k in tl.static_range(len(SPEC.weights) - 1, -1, -1):
        g = operand(back * slope(memory[k + 1], SPEC), SPEC)
        turned = tl.trans(g)
        added = (add_product(turned, hidden[k], sums[1 + 2 * k], SPEC), add_product(turned, ones, sums[2 + 2 * k], SPEC)) + added
        back = product(g, weights[k], SPEC)
    g = operand(back * slope(memory[0], SPEC), SPEC)
    return (add_product(tl.trans(g), operand(x, SPEC), sums[0], SPEC),) + added


@triton.jit
def _store_matrix(start, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROWS_PAD: tl.constexpr, COLUMNS_PAD: tl.constexpr):
    row, column = tl.arange(0, ROWS_PAD)[:, None], tl.arange(0, COLUMNS_PAD)[None, :]
    tl.store(start + row * COLUMNS + column, total, mask=(row < ROWS) & (column < COLUMNS))


@triton.jit
def _store_first(target, total, tower, SPEC: tl.constexpr):
    """The first layer's gradient, (H, O + 1) with the bias's in column O."""
    WIDTH: tl.constexpr = SPEC.hidden[0]
    row, column = tl.arange(0, SPEC.hidden_pad[0])[:, None], tl.arange(0, SPEC.observation_pad)[None, :]
    weight = target + SPEC.first_weight + (tower * WIDTH + row) * SPEC.observation + column
    bias = target + SPEC.first_bias + tower * WIDTH + row + 0 * column
    tl.store(tl.where(column < SPEC.observation, weight, bias), total, mask=(row < WIDTH) & (column <= SPEC.observation))


@triton.jit
def _store_last(target, total, total_bias, tower, SPEC: tl.constexpr):
    """The last layer's gradient, (H, out_pad), and its bias's, (out_pad): each column where its tower has it."""
    WIDTH: tl.constexpr = SPEC.hidden[-1]
    unit, column = tl.arange(0, SPEC.hidden_pad[-1])[:, None], tl.arange(0, SPEC.out_pad)
    if SPEC.shared:
        mine = column <= SPEC.head_rows
    else:
        mine = ((column < SPEC.head_rows) & (tower == 0)) | ((column == SPEC.head_rows) & (tower == 1))
    is_head = column < SPEC.head_rows
    head = target + SPEC.head_weight + column[None, :] * WIDTH + unit
    value = target + SPEC.value_weight + 0 * column[None, :] + unit
    tl.store(tl.where(is_head[None, :], head, value), total, mask=mine[None, :] & (unit < WIDTH))
    tl.store(tl.where(is_head, target + SPEC.head_bias + column, target + SPEC.value_bias + 0 * column), total_bias, mask=mine)


@triton.jit(do_not_specialize=["first_block", "clip", "value_clip", "entropy_coefficient", "value_coefficient"])
def gradient(
    order, observation, raw, samples, parameters, moments, scalars, partial,
    first_block, count, lanes, stride, width, clip, value_clip, entropy_coefficient, value_coefficient,
    SPEC: tl.constexpr, VALUE_CLIPPED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the loss of a minibatch, in parts: (programs, width), each program one row, each tower its own columns.

    The minibatch is `count` samples in blocks order[first_block], ...; `scalars` holds the advantages' mean and 1 / deviation; `stride` is between
    the rows of `samples`.
    """
    program, tower, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    order += first_block
    net = network(parameters, tower, SPEC)
    field, column = tl.arange(0, SPEC.observation_pad), tl.arange(0, SPEC.out_pad)
    mean, inverse = tl.load(scalars), tl.load(scalars + 1)
    log_std = tl.load(parameters + SPEC.log_std + column, mask=column < (SPEC.head_rows if SPEC.log_std >= 0 else 0), other=0.0)
    ones = operand(tl.where(tl.arange(0, 16)[None, :] + 0 * tl.arange(0, ROWS)[:, None] == 0, 1.0, 0.0), SPEC)
    scale = 1.0 / count

    sums = _no_gradients(SPEC)
    bias_terms = zeros(ROWS, SPEC.out_pad)
    spread_terms = zeros(ROWS, SPEC.out_pad)
    totals = ()
    for _ in tl.static_range(5):
        totals = totals + (tl.sum(bias_terms, axis=1),)

    tiles = tl.cdiv(count, ROWS)
    block = _blocks(order, program, count, ROWS, BLOCK)
    observed, action, numbers = _gather(block, program, observation, raw, samples, tower, count, lanes, stride, SPEC, ROWS, BLOCK)
    block = _blocks(order, program + programs, count, ROWS, BLOCK)
    for tile in range(program, tiles, programs):
        following = _gather(block, tile + programs, observation, raw, samples, tower, count, lanes, stride, SPEC, ROWS, BLOCK)
        block = _blocks(order, tile + 2 * programs, count, ROWS, BLOCK)

        x = features(observed, field, moments, SPEC)
        out, hidden, memory = forward(x, net, SPEC)
        here = tile * ROWS + tl.arange(0, ROWS) < count
        told = numbers
        if SPEC.shared:
            told = ((numbers[0] - mean) * inverse, numbers[1], numbers[2], numbers[3])
        else:
            if tower == 0:
                told = ((numbers[0] - mean) * inverse, numbers[1])
        slope_out, slope_spread, terms = _loss(
            out, column, here, tower, action, told, log_std, clip, value_clip, entropy_coefficient, value_coefficient, SPEC, VALUE_CLIPPED
        )
        slope_out *= scale
        sums = _backward(sums, slope_out, x, ones, net, hidden, memory, SPEC)
        bias_terms += slope_out
        if SPEC.log_std >= 0:
            spread_terms += slope_spread
        counted = ()
        for k in tl.static_range(5):
            counted = counted + (totals[k] + terms[k],)
        totals = counted
        observed, action, numbers = following

    target = partial + program * width
    _store_first(target, restored(sums[0], 1, SPEC), tower, SPEC)
    for k in tl.static_range(len(SPEC.weights)):
        place = target + SPEC.weights[k] + tower * (SPEC.hidden[k + 1] * SPEC.hidden[k])
        _store_matrix(place, restored(sums[1 + 2 * k], 2, SPEC), SPEC.hidden[k + 1], SPEC.hidden[k], SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k])
        bias = restored(sums[2 + 2 * k], 1, SPEC)
        _store_matrix(target + SPEC.biases[k] + tower * SPEC.hidden[k + 1], bias, SPEC.hidden[k + 1], 1, SPEC.hidden_pad[k + 1], 16)
    _store_last(target, restored(sums[-1], 2, SPEC), tl.sum(bias_terms, axis=0), tower, SPEC)
    if SPEC.log_std >= 0:
        tl.store(target + SPEC.log_std + column, scale * tl.sum(spread_terms, axis=0), mask=(column < SPEC.head_rows) & (tower == 0))
    for k in tl.static_range(5):
        # The critic's is the second sum, the actor's are the others.
        if SPEC.shared or tower == (1 if k == 1 else 0):
            tl.store(target + width - STATS + k, scale * tl.sum(totals[k], axis=0))
