"""Triton kernels of the layers of wide networks. Products of whole batches are the library's, but for short ones and those that carry what lies around them.

Each kernel passes once over what it reads and writes; rows are samples, as `wide_parts` has them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic import wide_parts as wide
from operant.kernels.blocks import activate, activation_gradient, operand, zeros

STAGES = tl.constexpr(3)
"""Tiles that are on their way while one is worked on."""


@triton.jit
def _first_vector(place, unit, NET: tl.constexpr, CHUNK: tl.constexpr):
    """Some numbers of a vector of the first layer, (1, CHUNK)."""
    if NET.layers[0].width % CHUNK == 0:
        return tl.load(place + unit)[None, :]
    else:
        return tl.load(place + unit, mask=unit < NET.layers[0].width, other=0.0)[None, :]


@triton.jit
def _first_part(seen, first, flat, tower, unit, SPEC: tl.constexpr, NET: tl.constexpr, CHUNK: tl.constexpr):
    """What some units of the first layer sum up, without the bias and with it (rows, CHUNK); zeros beyond its width."""
    column = tl.arange(0, SPEC.columns)
    place = first + (tower * NET.layers[0].width + unit)[None, :] * SPEC.columns + column[:, None]
    if NET.layers[0].width % CHUNK == 0:
        weight = tl.load(place)
    else:
        weight = tl.load(place, mask=(unit < NET.layers[0].width)[None, :] & (column >= 0)[:, None], other=0.0)
    s = wide.dot(seen, weight, SPEC)
    return s, s + _first_vector(flat + NET.layers[0].bias + tower * NET.layers[0].width, unit, NET, CHUNK)


@triton.jit(do_not_specialize=["rows"])
def first_layer(
    x, first, z, hidden, saved, flat, rows,
    SPEC: tl.constexpr, NET: tl.constexpr, KEEP: tl.constexpr, KEEP_SUMS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The first layer's activations `hidden` (towers, rows, width), of what it reads; with KEEP its rows' moments, with KEEP_SUMS as `hidden_layer`'s KEEP.

    Its product is short, so it is made twice, CHUNK units at a time: for the moments, which need all units, and for what becomes of them.
    """
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    WIDTH: tl.constexpr = NET.layers[0].width
    seen = tl.load(x + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :])
    place = tower * rows + row
    mean, inv_std = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    if SPEC.layer_norm:
        total, squares = zeros(ROWS, CHUNK), zeros(ROWS, CHUNK)
        for k in tl.range(0, WIDTH, CHUNK, num_stages=STAGES):
            _z, s = _first_part(seen, first, flat, tower, k + tl.arange(0, CHUNK), SPEC, NET, CHUNK)
            total += s
            squares += s * s
        mean = tl.sum(total, axis=1) / WIDTH
        inv_std = 1.0 / tl.sqrt(tl.maximum(tl.sum(squares, axis=1) / WIDTH - mean * mean, 0.0) + 1e-5)
        if KEEP:
            wide.store_moments(saved, place, mean, inv_std, SPEC)
    for k in tl.range(0, WIDTH, CHUNK, num_stages=STAGES):
        unit = k + tl.arange(0, CHUNK)
        kept, s = _first_part(seen, first, flat, tower, unit, SPEC, NET, CHUNK)
        if SPEC.layer_norm:
            kept = (s - mean[:, None]) * inv_std[:, None]
            vector = flat + tower * WIDTH
            s = kept * _first_vector(vector + NET.layers[0].gain, unit, NET, CHUNK) + _first_vector(vector + NET.layers[0].shift, unit, NET, CHUNK)
        out, mask = place[:, None] * WIDTH + unit[None, :], (unit < WIDTH)[None, :] & (row >= 0)[:, None]
        if WIDTH % CHUNK == 0:
            mask = None
        if KEEP_SUMS:
            tl.store(z + out, operand(kept, SPEC), mask=mask)
        tl.store(hidden + out, operand(activate(s, SPEC), SPEC), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def forward_layer(z, hidden, saved, flat, rows, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """A hidden layer's activations `hidden` (towers, rows, width), and its rows' moments, of what its product has summed up, `z`.

    With layer normalization `z` then has mean 0 and variance 1. Program 0 takes every so many tiles, 1 is the tower.
    """
    tower = tl.program_id(1)
    layer = wide.load_layer(flat, tower, SPEC, NET, AT)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        place = tower * rows + first + tl.arange(0, ROWS)
        s = wide.with_bias(wide.load_rows(z, place, NET, AT), layer, NET, AT)
        mean, inv_std = wide.moments(s, SPEC, NET, AT)
        h, _y, x_hat, _inv_std = wide.activated(s, mean, inv_std, layer, SPEC, NET, AT)
        if SPEC.layer_norm:
            wide.store_moments(saved, place, mean, inv_std, SPEC)
            wide.store_rows(z, place, x_hat, SPEC, NET, AT)
        wide.store_rows(hidden, place, h, SPEC, NET, AT)


@triton.jit(do_not_specialize=["rows"])
def hidden_layer(
    read, weight, z, hidden, saved, flat, end, rows, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, KEEP: tl.constexpr, END: tl.constexpr,
    ROWS: tl.constexpr, DEEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A hidden layer's product and what becomes of it, a tile of whole rows a program: `read`, `weight`, `z` and `hidden` are descriptors of matrices.

    KEEP: its rows' moments, and into `z` what it sums up, with layer normalization as it makes it: mean 0 and variance 1.
    END "hidden": its activations into `hidden`; "value": a critic's values into `end` (towers, rows); "policy": an actor's outputs (rows, outputs); or "".
    """
    PARTS: tl.constexpr = NET.layers[AT].parts
    WIDTH: tl.constexpr = NET.layers[AT].width
    tower = tl.program_id(1)
    first = tower * rows + tl.program_id(0) * ROWS
    sums = wide.no_sums(ROWS, NET, AT)
    for k in tl.range(0, NET.layers[AT].inputs, DEEP, num_stages=STAGES):
        h = read.load([first, k])
        summed = ()
        for p in tl.static_range(len(PARTS)):
            w = weight.load([tower * WIDTH + NET.layers[AT].starts[p], k])
            summed = summed + (tl.dot(h, w.T, sums[p], input_precision="ieee" if SPEC.precision == "ieee" else "tf32"),)
        sums = summed
    # A layer's vectors take a lot of registers, so each part is loaded where it is used.
    place = first + tl.arange(0, ROWS)
    s = ()
    for p in tl.static_range(len(PARTS)):
        s = s + (sums[p] + wide.load_part(flat, NET.layers[AT].bias, tower, p, NET, AT),)
    mean, inv_std = wide.moments(s, SPEC, NET, AT)
    if KEEP:
        wide.store_moments(saved, place, mean, inv_std, SPEC)
    h = ()
    for p in tl.static_range(len(PARTS)):
        gain, shift = mean, mean
        if SPEC.layer_norm:
            gain = wide.load_part(flat, NET.layers[AT].gain, tower, p, NET, AT)
            shift = wide.load_part(flat, NET.layers[AT].shift, tower, p, NET, AT)
        h_part, _y, x_hat = wide.activated_part(s[p], mean, inv_std, gain, shift, p, SPEC, NET, AT)
        if KEEP and (SPEC.needs_sums or len(NET.layers) - 1 == AT):
            z.store([first, NET.layers[AT].starts[p]], operand(x_hat if SPEC.layer_norm else sums[p], SPEC))
        if END == "hidden":
            hidden.store([first, NET.layers[AT].starts[p]], operand(h_part, SPEC))
        else:
            h = h + (h_part,)
    if END == "value" or END == "policy":
        OUTPUTS: tl.constexpr = NET.outputs
        for k in tl.static_range(OUTPUTS):
            out = wide.row_products(h, wide.load_vector(flat, NET.head_weight + k * WIDTH, tower, NET, AT), NET, AT)
            tl.store(end + place * OUTPUTS + k, out + tl.load(flat + NET.head_bias + tower * OUTPUTS + k))


@triton.jit
def _action_columns(first, tower, SPEC: tl.constexpr, NET: tl.constexpr):
    """Of each number of an action what a first layer multiplies it by."""
    ACTIONS: tl.constexpr = SPEC.action
    columns = ()
    for k in tl.static_range(ACTIONS):
        column = ()
        for p in tl.static_range(len(NET.layers[0].parts)):
            unit, inside = wide.units(p, NET, 0)
            place = first + (tower * NET.layers[0].width + unit) * SPEC.columns + SPEC.observation + k
            column = column + (tl.load(place, mask=inside, other=0.0).to(tl.float32)[None, :],)
        columns = columns + (column,)
    return columns


@triton.jit(do_not_specialize=["rows", "begin"])
def backward_layer(
    gradient, z, saved, hidden, flat, partial, first, slope, rows, begin,
    SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, TRAIN: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """In place from the gradient in a layer's activations (towers, B, width) to that in what it sums up. TRAIN: its vectors' gradients, too.

    `z` and `hidden` have `rows` rows, of which B from `begin` on count. Program 0 takes every so many tiles, 1 is the tower. SLOPES: of the first layer only
    the gradient in actions is asked for.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    layer = wide.load_layer(flat, tower, SPEC, NET, AT)
    bias = wide.no_sums(ROWS, NET, AT)
    gain, shift = bias, bias
    columns = layer
    if SLOPES:
        columns = _action_columns(first, tower, SPEC, NET)
    for start in tl.range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        g = wide.load_rows(gradient, tower * SPEC.batch + row, NET, AT)
        if SPEC.needs_sums:
            kept = wide.load_activated(z, saved, tower * rows + begin + row, layer, SPEC, NET, AT)
            g_z, g_y = wide.gradient_of_sums(g, kept, layer, SPEC, NET, AT)
            if TRAIN and SPEC.layer_norm:
                gain, shift = wide.add_products(gain, g_y, kept[2], NET, AT), wide.add(shift, g_y, NET, AT)
        else:
            h = wide.load_rows(hidden, tower * rows + begin + row, NET, AT)
            g_z, _g_y = wide.gradient_of_sums(g, (h, h, h, row), layer, SPEC, NET, AT)
        if SLOPES:
            ACTIONS: tl.constexpr = SPEC.action
            for k in tl.static_range(ACTIONS):
                tl.store(slope + (tower * SPEC.batch + row) * SPEC.columns + SPEC.observation + k, wide.row_products(g_z, columns[k], NET, 0))
        else:
            wide.store_rows(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)
        if TRAIN:
            bias = wide.add(bias, g_z, NET, AT)
    if TRAIN:
        wide.store_layer(partial, program, tower, bias, gain, shift, SPEC, NET, AT)


@triton.jit
def input_gradient(
    gradient, weight, out, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEEP: tl.constexpr
):  # fmt: skip
    """From the gradient in what a layer sums up (towers, B, width) to that in what it reads, `out` (towers, B, inputs): a tile a program."""
    WIDTH: tl.constexpr = NET.layers[AT].width
    INPUTS: tl.constexpr = NET.layers[AT].inputs
    tower, tile = tl.program_id(1), tl.program_id(0)
    place = tower * SPEC.batch + tile // (INPUTS // COLUMNS) * ROWS + tl.arange(0, ROWS)
    column = tile % (INPUTS // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    unit = tl.arange(0, DEEP)
    left, right = gradient + place[:, None] * WIDTH + unit[None, :], weight + (tower * WIDTH + unit)[:, None] * INPUTS + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in tl.range(0, WIDTH, DEEP, num_stages=4):
        total = tl.dot(tl.load(left + k), tl.load(right + k * INPUTS), total, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    tl.store(out + place[:, None] * INPUTS + column[None, :], operand(total, SPEC))


@triton.jit
def _first_again(x, first, saved, flat, tower, row, place, unit, SPEC: tl.constexpr, NET: tl.constexpr):
    """What first layers read (rows, columns); of some of their units what the activation is a function of, that before gain and shift; and rows' 1 / std."""
    column = tl.arange(0, SPEC.columns)
    vector = flat + tower * NET.layers[0].width + unit
    seen = tl.load(x + row[:, None] * SPEC.columns + column[None, :])
    weight = tl.load(first + (tower * NET.layers[0].width + unit)[None, :] * SPEC.columns + column[:, None])
    s = wide.dot(seen, weight, SPEC) + tl.load(vector + NET.layers[0].bias)[None, :]
    if SPEC.layer_norm:
        mean, inv_std = tl.load(saved + place * 2), tl.load(saved + place * 2 + 1)
        x_hat = (s - mean[:, None]) * inv_std[:, None]
        return seen, x_hat * tl.load(vector + NET.layers[0].gain)[None, :] + tl.load(vector + NET.layers[0].shift)[None, :], x_hat, inv_std
    else:
        return seen, s, s, row


@triton.jit(do_not_specialize=["rows", "begin"])
def first_slopes(
    read, weight, x, first, saved, flat, out, shares, rows, begin,
    SPEC: tl.constexpr, NET: tl.constexpr, TRAIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From the gradient in what the second layer sums up, `read` (towers x B, width), to that in what the first one's activation is a function of, `out`.

    `read`, `weight` and `out` are descriptors; a tile of rows and columns a program. Into `shares` (towers, B, tiles of columns, 2 + 3 actions) what tiles of
    columns contribute to sums over a row's units: of g = that gradient times gain, and g x^, which layer normalization takes off; without TRAIN, instead of
    `out`, for each number of an action whose weights are w those of g w, x^ w and w.
    """
    WIDTH: tl.constexpr = NET.layers[1].width
    INPUTS: tl.constexpr = NET.layers[0].width
    ACTIONS: tl.constexpr = SPEC.action
    tower, tile, part = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    row, unit = tile * ROWS + tl.arange(0, ROWS), part * COLUMNS + tl.arange(0, COLUMNS)
    start = tower * SPEC.batch + tile * ROWS
    g = zeros(ROWS, COLUMNS)
    for k in tl.range(0, WIDTH, DEEP, num_stages=STAGES):
        right = weight.load([tower * WIDTH + k, part * COLUMNS])
        g = tl.dot(read.load([start, k]), right, g, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    _seen, y, x_hat, _inv_std = _first_again(x, first, saved, flat, tower, row, tower * rows + begin + row, unit, SPEC, NET)
    if SPEC.activation == "tanh" or SPEC.activation == "relu":
        g = g * activation_gradient(activate(y, SPEC), SPEC)
    else:
        g = g * activation_gradient(y, SPEC)
    if TRAIN:
        out.store([start, part * COLUMNS], operand(g, SPEC))
    share = shares + ((tower * SPEC.batch + row) * tl.num_programs(0) + part) * (2 + 3 * ACTIONS)
    if SPEC.layer_norm:
        g = g * tl.load(flat + NET.layers[0].gain + tower * INPUTS + unit)[None, :]
        tl.store(share, tl.sum(g, axis=1))
        tl.store(share + 1, tl.sum(g * x_hat, axis=1))
    if not TRAIN:
        for k in tl.static_range(ACTIONS):
            w = tl.load(first + (tower * INPUTS + unit) * SPEC.columns + SPEC.observation + k).to(tl.float32)[None, :]
            tl.store(share + 2 + 3 * k, tl.sum(g * w, axis=1))
            if SPEC.layer_norm:
                tl.store(share + 3 + 3 * k, tl.sum(x_hat * w, axis=1))
                tl.store(share + 4 + 3 * k, tl.sum(w, axis=1) + tl.zeros((ROWS,), tl.float32))


@triton.jit
def _shared(shares, place, number, SPEC: tl.constexpr, TILES: tl.constexpr):
    """One of the sums over rows' units, (rows)."""
    total = tl.load(shares + place * TILES * (2 + 3 * SPEC.action) + number)
    for k in tl.static_range(1, TILES):
        total += tl.load(shares + (place * TILES + k) * (2 + 3 * SPEC.action) + number)
    return total


@triton.jit(do_not_specialize=["rows"])
def action_slopes(shares, saved, slope, rows, SPEC: tl.constexpr, NET: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr):
    """The gradient in actions (towers, B, columns), of the sums that `first_slopes` has left."""
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tower * SPEC.batch + row
    ACTIONS: tl.constexpr = SPEC.action
    for k in tl.static_range(ACTIONS):
        total = _shared(shares, place, 2 + 3 * k, SPEC, TILES)
        if SPEC.layer_norm:
            mean, along = _shared(shares, place, 0, SPEC, TILES) / NET.layers[0].width, _shared(shares, place, 1, SPEC, TILES) / NET.layers[0].width
            total -= mean * _shared(shares, place, 4 + 3 * k, SPEC, TILES) + along * _shared(shares, place, 3 + 3 * k, SPEC, TILES)
            total *= tl.load(saved + (tower * rows + row) * 2 + 1)
        tl.store(slope + place * SPEC.columns + SPEC.observation + k, total)


@triton.jit(do_not_specialize=["rows", "begin"])
def first_gradient(
    gradient, shares, x, first, saved, flat, by_first, partial, rows, begin,
    SPEC: tl.constexpr, NET: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What the first layer learns from, of what `first_slopes` has left: program 0 takes COLUMNS units, 1 a part of the batch, 2 is the tower.

    Its weight's into `by_first` (towers, parts, width, columns), its vectors' into rows of sums.
    """
    part, tower, unit = tl.program_id(1), tl.program_id(2), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    WIDTH: tl.constexpr = NET.layers[0].width
    ALL: tl.constexpr = SPEC.columns
    by_weight, bias = zeros(COLUMNS, ALL), zeros(ROWS, COLUMNS)
    gain, shift = bias, bias
    for start in tl.range(part * (SPEC.batch // SPEC.parts), (part + 1) * (SPEC.batch // SPEC.parts), ROWS):
        row = start + tl.arange(0, ROWS)
        place = tower * SPEC.batch + row
        g = tl.load(gradient + place[:, None] * WIDTH + unit[None, :]).to(tl.float32)
        seen, _y, x_hat, inv_std = _first_again(x, first, saved, flat, tower, row, tower * rows + begin + row, unit, SPEC, NET)
        if SPEC.layer_norm:
            gain, shift = gain + g * x_hat, shift + g
            mean, along = _shared(shares, place, 0, SPEC, TILES) / WIDTH, _shared(shares, place, 1, SPEC, TILES) / WIDTH
            g = (g * tl.load(flat + NET.layers[0].gain + tower * WIDTH + unit)[None, :] - mean[:, None] - x_hat * along[:, None]) * inv_std[:, None]
        bias += g
        by_weight = tl.dot(tl.trans(operand(g, SPEC)), seen, by_weight, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    tl.store(by_first + ((tower * SPEC.parts + part) * WIDTH + unit)[:, None] * ALL + tl.arange(0, ALL)[None, :], by_weight)
    vector = partial + ((part * NET.towers + tower) * NET.vectors + NET.layers[0].partial) * NET.pad + unit
    tl.store(vector, tl.sum(bias, axis=0))
    if SPEC.layer_norm:
        tl.store(vector + NET.pad, tl.sum(gain, axis=0))
        tl.store(vector + 2 * NET.pad, tl.sum(shift, axis=0))
