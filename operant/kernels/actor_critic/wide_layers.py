"""Triton kernels of the layers of wide networks. Products of whole batches are the library's, but for short ones and
those that carry what lies around them.

Each kernel passes once over what it reads and writes; rows are samples, as `wide_parts` has them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic import wide_parts as wide
from operant.kernels.blocks import operand

STAGES = tl.constexpr(3)
"""Tiles that are on their way while one is worked on."""


@triton.jit(do_not_specialize=["rows"])
def forward_layer(
    z, hidden, saved, flat, rows, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr
):
    """A hidden layer's activations `hidden` (towers, rows, width), and its rows' moments, of what its product has
    summed up, `z`.

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
    read,
    weight,
    z,
    hidden,
    saved,
    flat,
    end,
    rows,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    AT: tl.constexpr,
    KEEP: tl.constexpr,
    END: tl.constexpr,
    ROWS: tl.constexpr,
    DEEP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A hidden layer's product and what becomes of it, a tile of whole rows a program: `read`, `weight`, `z` and
    `hidden` are descriptors of matrices.

    KEEP: its rows' moments, and into `z` what it sums up, with layer normalization as it makes it: mean 0 and variance
    1. END "hidden": its activations into `hidden`; "value": a critic's values into `end` (towers, rows); "policy": an
    actor's outputs (rows, outputs); or "".
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
    wide.store_hidden(
        sums, z, hidden, saved, flat, end, first, tower, first + tl.arange(0, ROWS), SPEC, NET, AT, KEEP, END
    )


@triton.jit(do_not_specialize=["rows", "begin"])
def backward_layer(
    gradient,
    z,
    saved,
    hidden,
    flat,
    partial,
    rows,
    begin,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    AT: tl.constexpr,
    TRAIN: tl.constexpr,
    ROWS: tl.constexpr,
):
    """In place from the gradient in a layer's activations (towers, B, width) to that in what it sums up. TRAIN: its
    vectors' gradients, too.

    `z` and `hidden` have `rows` rows, of which B from `begin` on count. Program 0 takes every so many tiles, 1 is the
    tower.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    layer = wide.load_layer(flat, tower, SPEC, NET, AT)
    bias = wide.no_sums(ROWS, NET, AT)
    gain, shift = bias, bias
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
        wide.store_rows(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)
        if TRAIN:
            bias = wide.add(bias, g_z, NET, AT)
    if TRAIN:
        wide.store_layer(partial, program, tower, bias, gain, shift, SPEC, NET, AT)


@triton.jit
def input_gradient(
    gradient,
    weight,
    out,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    AT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEEP: tl.constexpr,
):
    """From the gradient in what a layer sums up (towers, B, width) to that in what it reads, `out` (towers, B, inputs):
    a tile a program.
    """
    WIDTH: tl.constexpr = NET.layers[AT].width
    INPUTS: tl.constexpr = NET.layers[AT].inputs
    tower, tile = tl.program_id(1), tl.program_id(0)
    place = tower * SPEC.batch + tile // (INPUTS // COLUMNS) * ROWS + tl.arange(0, ROWS)
    column = tile % (INPUTS // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    unit = tl.arange(0, DEEP)
    left, right = (
        gradient + place[:, None] * WIDTH + unit[None, :],
        weight + (tower * WIDTH + unit)[:, None] * INPUTS + column[None, :],
    )
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in tl.range(0, WIDTH, DEEP, num_stages=4):
        total = tl.dot(
            tl.load(left + k),
            tl.load(right + k * INPUTS),
            total,
            input_precision="ieee" if SPEC.precision == "ieee" else "tf32",
        )
    tl.store(out + place[:, None] * INPUTS + column[None, :], operand(total, SPEC))


@triton.jit
def value(hidden, flat, values, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """Critics' values (towers, B), of their last hidden layers' activations."""
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    NET: tl.constexpr = SPEC.critic
    weight = wide.load_vector(flat, NET.head_weight, tower, NET, AT)
    h = wide.load_rows(hidden, tower * SPEC.batch + row, NET, AT)
    tl.store(
        values + tower * SPEC.batch + row, wide.row_products(h, weight, NET, AT) + tl.load(flat + NET.head_bias + tower)
    )


@triton.jit
def reduce(
    partial,
    gradient,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    FIRST: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradients of all vectors, from the rows of sums: program 0 is the vector, 1 the tower, 2 a part of its
    numbers.

    The first layer's have FIRST rows, and with none are found elsewhere.
    """
    vector, tower = tl.program_id(0), tl.program_id(1)
    unit = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    # How many numbers the vector has.
    size = 0
    for k in tl.static_range(len(NET.layers)):
        number = vector - NET.layers[k].partial
        used = (
            ((number >= 0) & (number < NET.layers[k].vectors))
            if SPEC.layer_norm
            else ((number == 0) | ((number > 2) & (number < NET.layers[k].vectors)))
        )
        size = tl.where(used, max(NET.layers[k].width, NET.outputs), size)
    rows = tl.where(vector < NET.layers[1].partial, FIRST, NET.programs)
    inside = (unit < size) & (rows > 0)
    total = tl.zeros((CHUNK, WIDE), tl.float32)
    for start in range(0, rows, CHUNK):
        row = start + tl.arange(0, CHUNK)
        place = (row * NET.towers + tower) * NET.vectors + vector
        total += tl.load(
            partial + place[:, None] * NET.pad + unit[None, :], mask=inside[None, :] & (row < rows)[:, None], other=0.0
        )
    g = tl.sum(total, axis=0)
    for k in tl.static_range(len(NET.layers)):
        number = vector - NET.layers[k].partial
        here = (unit < NET.layers[k].width) & (rows > 0)
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
                tl.store(
                    gradient + NET.head_weight + (tower * NET.outputs + output) * NET.layers[k].width + unit,
                    g,
                    mask=here,
                )
            if output == NET.outputs:
                tl.store(gradient + NET.head_bias + tower * NET.outputs + unit, g, mask=unit < NET.outputs)
