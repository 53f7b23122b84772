"""Triton kernels of a network a layer at a time, for weights that no single program can hold: tiles of rows x columns, summed over steps of DEPTH.

Samples go through in chunks. A chunk's activations lie in buffers (towers, capacity, padded width), sample-major, as products take them, and weights are
packed likewise before they are used: so no product needs a mask, and the backward one is the forward one of other operands. Every sum's order comes from
places alone: rows within a tile, tiles of a program, programs by number. Knows no optimiser.

Layers are numbered from 0; layer L is the head's and the value's. `sums` (towers, tiles, SPEC.sums[-1]) holds of each tile of rows the gradients of the biases
of layers 1 to L and of log_std, and the terms of the loss; the head's tiles may have fewer rows than the other layers'.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.algos.ppo.fused.loss import STATS, loss, normalised, targets
from operant.kernels.act import answer
from operant.kernels.blocks import activate, allowed, column_of, has_column, kept, masked, out_bias, slope, zeros
from operant.kernels.operands import add_dot, read, read_tile, stored, tile_of, wanted

# FORWARD


@triton.jit(do_not_specialize=["first", "count", "first_tower"])
def layer(
    source, weights, parameters, moments, truncated, hidden, memory, first_tower, first, count, capacity,
    SPEC: tl.constexpr, LAYER: tl.constexpr, KEEP: tl.constexpr, SOME: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A layer's activations, and with KEEP what their slopes need beside them. Program 0 counts tiles, row by row of them."""
    WIDE: tl.constexpr = SPEC.widths[LAYER]
    DEEP: tl.constexpr = SPEC.inputs[LAYER]
    tower = first_tower + tl.program_id(1)
    row = tl.program_id(0) // (WIDE // COLUMNS) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % (WIDE // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    if wanted(truncated, first + row, row < count, SOME):
        weights += tower * WIDE * DEEP
        if LAYER == 0 and SPEC.bytes:
            z = read_tile(source, moments, weights, row, column, zeros(ROWS, COLUMNS), SPEC, DEEP, DEPTH)
        else:
            if LAYER > 0:
                source += tower * capacity * DEEP
            z = tile_of(source, weights, row, column, zeros(ROWS, COLUMNS), SPEC, DEEP, DEPTH)
        if LAYER > 0:
            bias = parameters + SPEC.biases[LAYER - 1] + tower * SPEC.hidden[LAYER] + column
            z += tl.load(bias, mask=column < SPEC.hidden[LAYER], other=0.0)[None, :]
        place = (tower * capacity + row)[:, None] * WIDE + column[None, :]
        h = stored(activate(z, SPEC), SPEC)
        tl.store(hidden + place, h)
        if KEEP:
            tl.store(memory + place, kept(z, h, SPEC))


@triton.jit
def _outputs(hidden, packed, parameters, row, tower, capacity, SPEC: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Layer L's outputs, (rows, out_pad)."""
    DEEP: tl.constexpr = SPEC.inputs[-1]
    column = tl.arange(0, SPEC.out_pad)
    weights = packed + SPEC.packed[2 * len(SPEC.hidden) - 2] + tower * SPEC.out_pad * DEEP
    out = tile_of(hidden + tower * capacity * DEEP, weights, row, column, zeros(ROWS, SPEC.out_pad), SPEC, DEEP, DEPTH)
    return out + out_bias(parameters, tower, SPEC)[None, :]


@triton.jit(do_not_specialize=["t", "first", "count"])
def act_head(
    hidden, packed, parameters, bounds, legal, uniform, raw, action, log_probability, value, t, first, count, lanes, capacity,
    SPEC: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Sample, log-probability and value of lanes first, first + 1, ... at step t."""
    tower = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = _outputs(hidden, packed, parameters, row, tower, capacity, SPEC, ROWS, DEPTH)
    answer(out, first + row, row < count, legal, uniform, raw, action, log_probability, value, parameters, bounds, tower, t, lanes, SPEC)


@triton.jit(do_not_specialize=["first", "count"])
def value_head(
    hidden, packed, parameters, truncated, value, first, count, capacity, SPEC: tl.constexpr, SOME: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """V of samples first, first + 1, ..., with SOME of those alone whose lane was truncated."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    asked = row < count
    if SOME:
        asked = tl.load(truncated + first + row, mask=asked, other=0) != 0
    if tl.sum(asked.to(tl.int32), axis=0) > 0:
        out = _outputs(hidden, packed, parameters, row, 0 if SPEC.shared else 1, capacity, SPEC, ROWS, DEPTH)
        tl.store(value + first + row, column_of(out, tl.arange(0, SPEC.out_pad), SPEC.head_rows), mask=asked)


# BACKWARD


@triton.jit(do_not_specialize=["first", "count", "whole", "tiles", "clip", "value_clip", "entropy_coefficient", "value_coefficient"])
def head(
    order, legal, raw, samples, parameters, packed, scalars, hidden, memory, slopes, back, sums,
    first, count, whole, lanes, stride, capacity, tiles, clip, value_clip, entropy_coefficient, value_coefficient,
    SPEC: tl.constexpr, VALUE_CLIPPED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss of a tile of rows, its slope in layer L's outputs (`slopes`) and in what layer L - 1 computes before its activation (`back`).

    The chunk is `count` samples in blocks order[first], ... of a minibatch of `whole`.
    """
    WIDE: tl.constexpr = SPEC.inputs[-1]
    OUT: tl.constexpr = SPEC.out_pad
    tile, tower = tl.program_id(0), tl.program_id(1)
    row = tile * ROWS + tl.arange(0, ROWS)
    here = row < count
    block = tl.load(order + first + row // BLOCK, mask=here, other=0)
    sample, t = block * BLOCK + row % BLOCK, block // (lanes // BLOCK)
    action, numbers = targets(sample, t, here, raw, samples, tower, lanes, stride, SPEC)
    told = normalised(numbers, tl.load(scalars), tl.load(scalars + 1), tower, SPEC)
    out = _outputs(hidden, packed, parameters, row, tower, capacity, SPEC, ROWS, DEPTH)
    output = tl.arange(0, OUT)
    log_std = tl.load(parameters + SPEC.log_std + output, mask=output < (SPEC.head_rows if SPEC.log_std >= 0 else 0), other=0.0)
    may = here
    if SPEC.legal:
        may = allowed(legal, sample, t, here if SPEC.shared else here & (tower == 0), lanes, SPEC)
    slope_out, slope_spread, terms = loss(
        masked(out, may, SPEC), output, may, here, tower, action, told, log_std, clip, value_clip, entropy_coefficient, value_coefficient, SPEC, VALUE_CLIPPED
    )
    scale = 1.0 / whole
    slope_out *= scale
    sums += (tower * tiles + tile) * SPEC.sums[-1]
    tl.store(sums + SPEC.sums[-4] + output, tl.sum(slope_out, axis=0))
    tl.store(sums + SPEC.sums[-3] + output, scale * tl.sum(slope_spread, axis=0))
    for k in tl.static_range(5):
        tl.store(sums + SPEC.sums[-2] + k, scale * tl.sum(terms[k], axis=0))

    g = stored(slope_out, SPEC)
    tl.store(slopes + (tower * capacity + row)[:, None] * OUT + output[None, :], g)
    turned = packed + SPEC.packed[2 * len(SPEC.hidden) - 1] + tower * WIDE * OUT + output[:, None]
    for start in range(0, WIDE, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        place = (tower * capacity + row)[:, None] * WIDE + column[None, :]
        returned = add_dot(g, tl.load(turned + column[None, :] * OUT), zeros(ROWS, COLUMNS), SPEC)
        returned *= slope(tl.load(memory + place), SPEC)
        tl.store(back + place, stored(returned, SPEC))
        if len(SPEC.hidden) > 1:
            tl.store(sums + SPEC.sums[len(SPEC.hidden) - 2] + column, tl.sum(returned, axis=0))


@triton.jit(do_not_specialize=["tiles"])
def back_layer(
    source, packed, memory, back, sums, capacity, tiles,
    SPEC: tl.constexpr, LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """From a layer's slopes to those of the layer below it, both before their activations."""
    WIDE: tl.constexpr = SPEC.inputs[LAYER]
    DEEP: tl.constexpr = SPEC.widths[LAYER]
    tower = tl.program_id(1)
    tile = tl.program_id(0) // (WIDE // COLUMNS)
    row = tile * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % (WIDE // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    weights = packed + SPEC.packed[2 * LAYER - 1] + tower * WIDE * DEEP
    returned = tile_of(source + tower * capacity * DEEP, weights, row, column, zeros(ROWS, COLUMNS), SPEC, DEEP, DEPTH)
    place = (tower * capacity + row)[:, None] * WIDE + column[None, :]
    returned *= slope(tl.load(memory + place), SPEC)
    tl.store(back + place, stored(returned, SPEC))
    if LAYER > 1:
        tl.store(sums + (tower * tiles + tile) * SPEC.sums[-1] + SPEC.sums[LAYER - 2] + column, tl.sum(returned, axis=0))


# SUMS OVER SAMPLES


@triton.jit
def _add_to(place, more, mask, again):
    """Store what a chunk adds: alone the first time, then on top of what is there."""
    tl.store(place, tl.load(place, mask=mask & (again != 0), other=0.0) + more, mask=mask)


@triton.jit(do_not_specialize=["count", "again"])
def weight_gradient(
    left, right, moments, partial, count, capacity, width, again,
    SPEC: tl.constexpr, LAYER: tl.constexpr, TALL: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A layer's weight gradient: slopes (rows, outputs)^T times what it read (rows, inputs). Program 1 takes its part of the rows into its row of `partial`.

    COLUMNS need not divide the inputs of layer 0.
    """
    WIDE: tl.constexpr = SPEC.widths[LAYER]
    DEEP: tl.constexpr = SPEC.inputs[LAYER]
    program, tower = tl.program_id(1), tl.program_id(2)
    ACROSS: tl.constexpr = (DEEP + COLUMNS - 1) // COLUMNS
    unit = tl.program_id(0) // ACROSS * TALL + tl.arange(0, TALL)
    column = tl.program_id(0) % ACROSS * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    left += tower * capacity * WIDE
    if LAYER > 0:
        right += tower * capacity * DEEP
    a = left + unit[:, None] + depth[None, :] * WIDE
    b = right + column[None, :] + depth[:, None] * DEEP
    steps = tl.cdiv(count, DEPTH)
    share = tl.cdiv(steps, tl.num_programs(1))
    total = zeros(TALL, COLUMNS)
    for step in range(program * share, tl.minimum(program * share + share, steps)):
        if LAYER == 0 and SPEC.bytes:
            total = add_dot(tl.load(a + step * DEPTH * WIDE), read(right, step * DEPTH + depth, column, moments, SPEC), total, SPEC)
        elif DEEP % COLUMNS == 0:
            total = add_dot(tl.load(a + step * DEPTH * WIDE), tl.load(b + step * DEPTH * DEEP), total, SPEC)
        else:
            total = add_dot(tl.load(a + step * DEPTH * WIDE), tl.load(b + step * DEPTH * DEEP, mask=(column < DEEP)[None, :], other=0.0), total, SPEC)

    partial += program * width
    if LAYER == 0:
        mine = tower * SPEC.hidden[0] + unit[:, None]
        place = tl.where(column[None, :] < SPEC.columns, SPEC.first_weight + mine * SPEC.columns + column[None, :], SPEC.first_bias + mine)
        mask = (unit < SPEC.hidden[0])[:, None] & (column <= SPEC.columns)[None, :]
    elif len(SPEC.hidden) > LAYER:
        place = SPEC.weights[LAYER - 1] + (tower * SPEC.hidden[LAYER] + unit)[:, None] * SPEC.hidden[LAYER - 1] + column[None, :]
        mask = (unit < SPEC.hidden[LAYER])[:, None] & (column < SPEC.hidden[LAYER - 1])[None, :]
    else:
        place = tl.where(unit < SPEC.head_rows, SPEC.head_weight + unit * SPEC.hidden[-1], SPEC.value_weight)[:, None] + column[None, :]
        mask = has_column(unit, tower, SPEC)[:, None] & (column < SPEC.hidden[-1])[None, :]
    _add_to(partial + place, total, mask, again)


@triton.jit
def _part_sum(sums, program, programs, used, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    """A program's share of the tiles' sums, (COLUMNS): every P-th group of 16 tiles."""
    column = tl.arange(0, COLUMNS)
    total = zeros(16, COLUMNS)
    for group in range(program, tl.cdiv(used, 16), programs):
        tile = group * 16 + tl.arange(0, 16)
        total += tl.load(sums + tile[:, None] * STRIDE + column[None, :], mask=(tile < used)[:, None], other=0.0)
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["tiles", "used", "used_head", "again"])
def add_sums(sums, partial, tiles, used, used_head, width, again, SPEC: tl.constexpr):
    """What tiles of rows have summed, as many as were used, into the programs' rows: program 1 is the tower, 2 the section of `sums`."""
    program, tower, section, programs = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(0)
    sums += tower * tiles * SPEC.sums[-1]
    partial += program * width
    output = tl.arange(0, SPEC.out_pad)
    for k in tl.static_range(len(SPEC.hidden) - 1):
        if section == k:
            unit = tl.arange(0, SPEC.hidden_pad[k + 1])
            written = used_head if k == len(SPEC.hidden) - 2 else used  # by `head` or by `back_layer`
            bias = _part_sum(sums + SPEC.sums[k], program, programs, written, SPEC.hidden_pad[k + 1], SPEC.sums[-1])
            _add_to(partial + SPEC.biases[k] + tower * SPEC.hidden[k + 1] + unit, bias, unit < SPEC.hidden[k + 1], again)
    if section == len(SPEC.hidden) - 1:
        bias = _part_sum(sums + SPEC.sums[-4], program, programs, used_head, SPEC.out_pad, SPEC.sums[-1])
        place = tl.where(output < SPEC.head_rows, SPEC.head_bias + output, SPEC.value_bias)
        _add_to(partial + place, bias, has_column(output, tower, SPEC), again)
        if SPEC.log_std >= 0:
            spread = _part_sum(sums + SPEC.sums[-3], program, programs, used_head, SPEC.out_pad, SPEC.sums[-1])
            _add_to(partial + SPEC.log_std + output, spread, (output < SPEC.head_rows) & (tower == 0), again)
        term = tl.arange(0, 16)
        terms = _part_sum(sums + SPEC.sums[-2], program, programs, used_head, 16, SPEC.sums[-1])
        # The critic's is the second, the actor's are the others.
        mine = (term < 5) & ((tower == 1) == (term == 1))
        if SPEC.shared:
            mine = term < 5
        _add_to(partial + width - STATS + term, terms, mine, again)
