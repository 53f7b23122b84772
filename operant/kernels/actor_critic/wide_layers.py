"""Triton kernels of the layers of wide networks. Products of whole batches are the library's, but for short ones and those that carry what lies around them.

Each kernel passes once over what it reads and writes; rows are samples, as `wide_parts` has them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.wide_parts import (
    activated,
    add,
    add_products,
    dot,
    gradient_of_sums,
    load_layer,
    load_rows,
    load_vector,
    no_sums,
    row_products,
    store_rows,
    store_sum,
    units,
)
from operant.kernels.blocks import activate, operand

STAGES = tl.constexpr(3)
"""Tiles that are on their way while one is worked on."""


@triton.jit(do_not_specialize=["rows"])
def first_layer(x, first, z, hidden, flat, rows, SPEC: tl.constexpr, NET: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr):
    """The first layer's activations `hidden` (towers, rows, width), of what it reads; with KEEP what it sums up, too. Program 0 takes every so many tiles."""
    tower, column = tl.program_id(1), tl.arange(0, SPEC.columns)
    layer = load_layer(flat, tower, SPEC, NET, 0)
    weights = ()
    for p in tl.static_range(len(NET.layers[0].parts)):
        unit, inside = units(p, NET, 0)
        place = first + (tower * NET.layers[0].width + unit)[None, :] * SPEC.columns + column[:, None]
        weights = weights + (tl.load(place, mask=inside[None, :] & (column >= 0)[:, None], other=0.0),)
    for begin in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = begin + tl.arange(0, ROWS)
        seen = tl.load(x + row[:, None] * SPEC.columns + column[None, :])
        sums = ()
        for p in tl.static_range(len(NET.layers[0].parts)):
            sums = sums + (dot(seen, weights[p], SPEC),)
        h, _y, _x_hat, _inv_std = activated(sums, layer, SPEC, NET, 0)
        if KEEP:
            store_rows(z, tower * rows + row, sums, SPEC, NET, 0)
        store_rows(hidden, tower * rows + row, h, SPEC, NET, 0)


@triton.jit(do_not_specialize=["rows"])
def forward_layer(z, hidden, flat, rows, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """A hidden layer's activations `hidden` (towers, rows, width), of what its product has summed up: program 0 takes every so many tiles, 1 is the tower."""
    tower = tl.program_id(1)
    layer = load_layer(flat, tower, SPEC, NET, AT)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        place = tower * rows + first + tl.arange(0, ROWS)
        h, _y, _x_hat, _inv_std = activated(load_rows(z, place, NET, AT), layer, SPEC, NET, AT)
        store_rows(hidden, place, h, SPEC, NET, AT)


@triton.jit
def _action_columns(first, tower, SPEC: tl.constexpr, NET: tl.constexpr):
    """Of each number of an action what a first layer multiplies it by."""
    ACTIONS: tl.constexpr = SPEC.action
    columns = ()
    for k in tl.static_range(ACTIONS):
        column = ()
        for p in tl.static_range(len(NET.layers[0].parts)):
            unit, inside = units(p, NET, 0)
            place = first + (tower * NET.layers[0].width + unit) * SPEC.columns + SPEC.observation + k
            column = column + (tl.load(place, mask=inside, other=0.0).to(tl.float32)[None, :],)
        columns = columns + (column,)
    return columns


@triton.jit(do_not_specialize=["rows", "begin"])
def backward_layer(
    gradient, z, hidden, flat, partial, first, slope, rows, begin,
    SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, TRAIN: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """In place from the gradient in a layer's activations (towers, B, width) to that in what it sums up. TRAIN: its vectors' gradients, too.

    `z` and `hidden` have `rows` rows, of which B from `begin` on count. Program 0 takes every so many tiles, 1 is the tower. SLOPES: of the first layer only
    the gradient in actions is asked for.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    layer = load_layer(flat, tower, SPEC, NET, AT)
    bias = no_sums(ROWS, NET, AT)
    gain, shift = bias, bias
    columns = layer
    if SLOPES:
        columns = _action_columns(first, tower, SPEC, NET)
    for start in tl.range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        g = load_rows(gradient, tower * SPEC.batch + row, NET, AT)
        if SPEC.needs_sums:
            kept = activated(load_rows(z, tower * rows + begin + row, NET, AT), layer, SPEC, NET, AT)
            g_z, g_y = gradient_of_sums(g, kept, layer, SPEC, NET, AT)
            if TRAIN and SPEC.layer_norm:
                gain, shift = add_products(gain, g_y, kept[2], NET, AT), add(shift, g_y, NET, AT)
        else:
            h = load_rows(hidden, tower * rows + begin + row, NET, AT)
            g_z, _g_y = gradient_of_sums(g, (h, h, h, row), layer, SPEC, NET, AT)
        if SLOPES:
            ACTIONS: tl.constexpr = SPEC.action
            for k in tl.static_range(ACTIONS):
                tl.store(slope + (tower * SPEC.batch + row) * SPEC.columns + SPEC.observation + k, row_products(g_z, columns[k], NET, 0))
        else:
            store_rows(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)
        if TRAIN:
            bias = add(bias, g_z, NET, AT)
    if TRAIN:
        store_sum(partial, program, tower, 0, bias, NET, AT)
        if SPEC.layer_norm:
            store_sum(partial, program, tower, 1, gain, NET, AT)
            store_sum(partial, program, tower, 2, shift, NET, AT)


@triton.jit
def _normal_part(s, k, mean, inv_std, flat, tower, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, CHUNK: tl.constexpr):
    """Activations of CHUNK units of a layer from `k` on, as operands, of what they sum up, bias included (rows, CHUNK)."""
    place = flat + tower * NET.layers[AT].width + k + tl.arange(0, CHUNK)
    if SPEC.layer_norm:
        s = (s - mean[:, None]) * inv_std[:, None] * tl.load(place + NET.layers[AT].gain)[None, :] + tl.load(place + NET.layers[AT].shift)[None, :]
    return operand(activate(s, SPEC), SPEC)


@triton.jit(do_not_specialize=["rows"])
def last_layer(
    z, hidden, weight, last, flat, end, rows, SPEC: tl.constexpr, NET: tl.constexpr, KEEP: tl.constexpr, END: tl.constexpr, CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The last hidden layer's product, and what comes before and behind it: a tile of rows a program.

    From what the layer before it sums up, `z` (towers, rows, width): with KEEP that layer's activations into `hidden`, and what the last one sums up into
    `last`. END "value": a critic's values into `end` (towers, rows); "policy": an actor's outputs (rows, outputs); "hidden": the last layer's activations.
    """
    TOP: tl.constexpr = len(NET.layers) - 1
    AT: tl.constexpr = TOP - 1
    WIDTH: tl.constexpr = NET.layers[AT].width
    PARTS: tl.constexpr = NET.layers[TOP].parts
    tower = tl.program_id(1)
    place = tower * rows + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.arange(0, CHUNK)
    source, bias = z + place[:, None] * WIDTH + unit[None, :], flat + NET.layers[AT].bias + tower * WIDTH + unit
    mean, inv_std = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    if SPEC.layer_norm:
        squares = tl.zeros((ROWS,), tl.float32)
        for k in tl.range(0, WIDTH, CHUNK, num_stages=STAGES):
            s = tl.load(source + k).to(tl.float32) + tl.load(bias + k)[None, :]
            mean += tl.sum(s, axis=1)
            squares += tl.sum(s * s, axis=1)
        mean = mean / WIDTH
        inv_std = 1.0 / tl.sqrt(tl.maximum(squares / WIDTH - mean * mean, 0.0) + 1e-5)
    sums = no_sums(ROWS, NET, TOP)
    for k in tl.range(0, WIDTH, CHUNK, num_stages=STAGES):
        h = _normal_part(tl.load(source + k).to(tl.float32) + tl.load(bias + k)[None, :], k, mean, inv_std, flat, tower, SPEC, NET, AT, CHUNK)
        if KEEP:
            tl.store(hidden + place[:, None] * WIDTH + k + unit[None, :], h)
        summed = ()
        for p in tl.static_range(len(PARTS)):
            row = tower * NET.layers[TOP].width + NET.layers[TOP].starts[p] + tl.arange(0, PARTS[p])
            w = tl.load(weight + row[None, :] * WIDTH + k + unit[:, None])
            summed = summed + (tl.dot(h, w, sums[p], input_precision="ieee" if SPEC.precision == "ieee" else "tf32"),)
        sums = summed
    if KEEP:
        store_rows(last, place, sums, SPEC, NET, TOP)
    if END != "":
        h, _y, _x_hat, _inv_std = activated(sums, load_layer(flat, tower, SPEC, NET, TOP), SPEC, NET, TOP)
        if END == "hidden":
            store_rows(end, place, h, SPEC, NET, TOP)
        else:
            OUTPUTS: tl.constexpr = NET.outputs
            for k in tl.static_range(OUTPUTS):
                out = row_products(h, load_vector(flat, NET.head_weight + k * NET.layers[TOP].width, tower, NET, TOP), NET, TOP)
                tl.store(end + place * OUTPUTS + k, out + tl.load(flat + NET.head_bias + tower * OUTPUTS + k))


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
