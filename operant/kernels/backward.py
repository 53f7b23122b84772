"""The Triton kernel of PPO's gradient: forward, loss and backward over tiles of a minibatch, each program into a row of its own.

A program takes one tower and every P-th tile, and keeps its sums of gradients in registers from its first tile to its last. No two programs write to the same
place and tiles go to programs by number, so sums are the same bits every time. While a tile is computed the next one's samples are on their way, and the
block numbers of the one after it. Knows no optimiser.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.algos.ppo.fused.loss import STATS, loss, normalised, targets
from operant.kernels.blocks import (
    add_product,
    allowed,
    chosen,
    features,
    field_of,
    first_operand,
    forward,
    masked,
    network,
    operand,
    product,
    restored,
    slope,
    zeros,
)

# SAMPLES


@triton.jit
def _blocks(order, tile, count, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Which block of neighbouring lanes each row of a tile lies in, (rows)."""
    row = tile * ROWS + tl.arange(0, ROWS)
    return tl.load(order + row // BLOCK, mask=row < count, other=0)


@triton.jit
def _gather(
    block, tile, observation, moments, legal, raw, samples, tower, count, lanes, stride, SPEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """A tile's samples: observations (rows, columns_pad), actions, the numbers that the loss asks for, and which actions are legal (all: anything)."""
    row = tile * ROWS + tl.arange(0, ROWS)
    here = row < count
    place = block * BLOCK + row % BLOCK  # t N + n
    t = block // (lanes // BLOCK)
    field = field_of(tl.arange(0, SPEC.columns_pad), moments, SPEC)
    at = (place + t * (SPEC.observation - 1) * lanes)[:, None] + field[None, :] * lanes
    observed = tl.load(observation + at, mask=here[:, None] & (field < SPEC.observation)[None, :], other=0)
    action, numbers = targets(place, t, here, raw, samples, tower, lanes, stride, SPEC)
    may = here
    if SPEC.legal:
        may = allowed(legal, place, t, here if SPEC.shared else here & (tower == 0), lanes, SPEC)
    return observed, action, numbers, may


# GRADIENT


@triton.jit
def _no_gradients(SPEC: tl.constexpr):
    """Sums to begin with: the first weight's, then of each later layer the weight's and the bias's, then the last weight's (H, out_pad)."""
    sums = (zeros(SPEC.hidden_pad[0], SPEC.columns_pad),)
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
    """The first layer's gradient, (H, columns + 1): the last is the bias's."""
    WIDTH: tl.constexpr = SPEC.hidden[0]
    row, column = tl.arange(0, SPEC.hidden_pad[0])[:, None], tl.arange(0, SPEC.columns_pad)[None, :]
    weight = target + SPEC.first_weight + (tower * WIDTH + row) * SPEC.columns + column
    bias = target + SPEC.first_bias + tower * WIDTH + row + 0 * column
    tl.store(tl.where(column < SPEC.columns, weight, bias), total, mask=(row < WIDTH) & (column <= SPEC.columns))


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
    order, observation, legal, raw, samples, parameters, moments, scalars, partial,
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
    read, column = tl.arange(0, SPEC.columns_pad), tl.arange(0, SPEC.out_pad)
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
    observed, action, numbers, may = _gather(block, program, observation, moments, legal, raw, samples, tower, count, lanes, stride, SPEC, ROWS, BLOCK)
    block = _blocks(order, program + programs, count, ROWS, BLOCK)
    for tile in range(program, tiles, programs):
        following = _gather(block, tile + programs, observation, moments, legal, raw, samples, tower, count, lanes, stride, SPEC, ROWS, BLOCK)
        block = _blocks(order, tile + 2 * programs, count, ROWS, BLOCK)

        x = first_operand(features(chosen(observed, read, moments, SPEC), read, moments, SPEC), SPEC)
        out, hidden, memory = forward(x, net, SPEC)
        here = tile * ROWS + tl.arange(0, ROWS) < count
        told = normalised(numbers, mean, inverse, tower, SPEC)
        out = masked(out, may, SPEC)
        slope_out, slope_spread, terms = loss(
            out, column, may, here, tower, action, told, log_std, clip, value_clip, entropy_coefficient, value_coefficient, SPEC, VALUE_CLIPPED
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
        observed, action, numbers, may = following

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
