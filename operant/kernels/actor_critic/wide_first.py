"""Triton kernels of the first layer of wide networks, forward and back. It reads few columns, so what it sums up is
made again rather than kept.

Its way back without layer normalization is here too: there it needs no whole rows. See `wide_parts`.
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


@triton.jit
def _counted(mean, squares, s, share):
    """Each place's mean and its sum of squares off it, with one more number `s`; `share`: one by how many numbers there
    are then.
    """
    off = s - mean
    new = mean + off * share
    return new, squares + off * (s - new)


@triton.jit
def _moments(mean, squares, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """Mean and 1 / std of rows, (rows), of what `_counted` has found of every CHUNKth unit, (rows, CHUNK): nothing
    large is taken off something large.
    """
    count = WIDTH // CHUNK + tl.where(tl.arange(0, CHUNK) < WIDTH % CHUNK, 1.0, 0.0)[None, :]
    whole = tl.sum(mean * count, axis=1) / WIDTH
    off = mean - whole[:, None]
    return whole, 1.0 / tl.sqrt(tl.sum(squares + off * off * count, axis=1) / WIDTH + 1e-5)


@triton.jit(do_not_specialize=["rows"])
def first_layer(
    x,
    first,
    z,
    hidden,
    saved,
    flat,
    rows,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    KEEP: tl.constexpr,
    KEEP_SUMS: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The first layer's activations `hidden` (towers, rows, width), of what it reads; with KEEP its rows' moments, with
    KEEP_SUMS as `hidden_layer`'s KEEP.

    Its product is short, so it is made twice, CHUNK units at a time: for the moments, which need all units, and for
    what becomes of them.
    """
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    WIDTH: tl.constexpr = NET.layers[0].width
    seen = tl.load(x + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :])
    place = tower * rows + row
    mean, inv_std = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    if SPEC.layer_norm:
        means, squares = zeros(ROWS, CHUNK), zeros(ROWS, CHUNK)
        for k in tl.range(0, WIDTH, CHUNK, num_stages=STAGES):
            unit = k + tl.arange(0, CHUNK)
            _z, s = _first_part(seen, first, flat, tower, unit, SPEC, NET, CHUNK)
            if WIDTH % CHUNK > 0:
                s = tl.where((unit < WIDTH)[None, :], s, means)  # which changes nothing
            means, squares = _counted(means, squares, s, CHUNK * 1.0 / (k + CHUNK))
        mean, inv_std = _moments(means, squares, WIDTH, CHUNK)
        if KEEP:
            wide.store_moments(saved, place, mean, inv_std, SPEC)
    for k in tl.range(0, WIDTH, CHUNK, num_stages=STAGES):
        unit = k + tl.arange(0, CHUNK)
        kept, s = _first_part(seen, first, flat, tower, unit, SPEC, NET, CHUNK)
        if SPEC.layer_norm:
            kept = (s - mean[:, None]) * inv_std[:, None]
            vector = flat + tower * WIDTH
            s = kept * _first_vector(vector + NET.layers[0].gain, unit, NET, CHUNK) + _first_vector(
                vector + NET.layers[0].shift, unit, NET, CHUNK
            )
        out, mask = place[:, None] * WIDTH + unit[None, :], (unit < WIDTH)[None, :] & (row >= 0)[:, None]
        if WIDTH % CHUNK == 0:
            mask = None
        if KEEP_SUMS:
            tl.store(z + out, operand(kept, SPEC), mask=mask)
        tl.store(hidden + out, operand(activate(s, SPEC), SPEC), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def first_layers(
    x,
    first,
    weight,
    z,
    below,
    hidden,
    saved,
    flat,
    rows,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    DEEP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The first two hidden layers of what the first one reads, a tile of whole rows a program. All but `x`, `saved` and
    `flat` are descriptors.

    The first layer's activations are the second one's operand without leaving the program; with KEEP, without layer
    normalization alone, they go into `below`, and what the second layer sums up into `z`. The second one's activations
    go into `hidden`.
    """
    PARTS: tl.constexpr = NET.layers[1].parts
    WIDTH: tl.constexpr = NET.layers[0].width
    INPUTS: tl.constexpr = SPEC.columns
    tower = tl.program_id(1)
    begin = tower * rows + tl.program_id(0) * ROWS
    row, place, vector = tl.program_id(0) * ROWS + tl.arange(0, ROWS), begin + tl.arange(0, ROWS), flat + tower * WIDTH
    seen = tl.load(x + row[:, None] * INPUTS + tl.arange(0, INPUTS)[None, :])
    mean, inv_std = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    if SPEC.layer_norm:
        means, squares = zeros(ROWS, DEEP), zeros(ROWS, DEEP)
        for k in tl.range(0, WIDTH, DEEP, num_stages=STAGES):
            s = (
                wide.dot(seen, first.load([tower * WIDTH + k, 0]).T, SPEC)
                + tl.load(vector + NET.layers[0].bias + k + tl.arange(0, DEEP))[None, :]
            )
            means, squares = _counted(means, squares, s, DEEP * 1.0 / (k + DEEP))
        mean, inv_std = _moments(means, squares, WIDTH, DEEP)
    sums = wide.no_sums(ROWS, NET, 1)
    for k in tl.range(0, WIDTH, DEEP, num_stages=STAGES):
        unit = k + tl.arange(0, DEEP)
        s = (
            wide.dot(seen, first.load([tower * WIDTH + k, 0]).T, SPEC)
            + tl.load(vector + NET.layers[0].bias + unit)[None, :]
        )
        if SPEC.layer_norm:
            x_hat = (s - mean[:, None]) * inv_std[:, None]
            s = (
                x_hat * tl.load(vector + NET.layers[0].gain + unit)[None, :]
                + tl.load(vector + NET.layers[0].shift + unit)[None, :]
            )
        h = operand(activate(s, SPEC), SPEC)
        if KEEP:
            below.store([begin, k], h)
        summed = ()
        for p in tl.static_range(len(PARTS)):
            w = weight.load([tower * NET.layers[1].width + NET.layers[1].starts[p], k])
            summed = summed + (tl.dot(h, w.T, sums[p], input_precision="ieee" if SPEC.precision == "ieee" else "tf32"),)
        sums = summed
    wide.store_hidden(sums, z, hidden, saved, flat, flat, begin, tower, place, SPEC, NET, 1, KEEP, "hidden")


@triton.jit
def _first_sums(x, first, flat, tower, row, unit, SPEC: tl.constexpr, NET: tl.constexpr):
    """What some units of first layers sum up, (rows, units)."""
    column = tl.arange(0, SPEC.columns)
    seen = tl.load(x + row[:, None] * SPEC.columns + column[None, :])
    weight = tl.load(first + (tower * NET.layers[0].width + unit)[None, :] * SPEC.columns + column[:, None])
    return (
        wide.dot(seen, weight, SPEC) + tl.load(flat + NET.layers[0].bias + tower * NET.layers[0].width + unit)[None, :]
    )


@triton.jit
def first_slopes(
    read,
    weight,
    x,
    first,
    flat,
    out,
    shares,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    TRAIN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    DEEP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """From the gradient in what the second layer sums up, `read` (towers x B, width), to that in what the first one
    does, `out`.

    `read`, `weight` and `out` are descriptors; a tile of rows and PARTS times COLUMNS units a program. Without TRAIN,
    instead of `out`, into `shares` (towers, B, tiles of units, actions) what tiles contribute to the gradient in
    actions.
    """
    WIDTH: tl.constexpr = NET.layers[1].width
    INPUTS: tl.constexpr = NET.layers[0].width
    ACTIONS: tl.constexpr = SPEC.action
    tower, tile, number = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    row, start = tile * ROWS + tl.arange(0, ROWS), tower * SPEC.batch + tile * ROWS
    begin_unit = number * PARTS * COLUMNS
    sums = ()
    for _p in tl.static_range(PARTS):
        sums = sums + (zeros(ROWS, COLUMNS),)
    for k in tl.range(0, WIDTH, DEEP, num_stages=STAGES):
        left, summed = read.load([start, k]), ()
        for p in tl.static_range(PARTS):
            right = weight.load([tower * WIDTH + k, begin_unit + p * COLUMNS])
            summed = summed + (
                tl.dot(left, right, sums[p], input_precision="ieee" if SPEC.precision == "ieee" else "tf32"),
            )
        sums = summed
    by_action = ()
    for _k in tl.static_range(ACTIONS):
        by_action = by_action + (tl.zeros((ROWS,), tl.float32),)
    for p in tl.static_range(PARTS):
        unit = begin_unit + p * COLUMNS + tl.arange(0, COLUMNS)
        s = _first_sums(x, first, flat, tower, row, unit, SPEC, NET)
        if SPEC.activation == "tanh" or SPEC.activation == "relu":
            g = sums[p] * activation_gradient(activate(s, SPEC), SPEC)
        else:
            g = sums[p] * activation_gradient(s, SPEC)
        if TRAIN:
            out.store([start, begin_unit + p * COLUMNS], operand(g, SPEC))
        else:
            added = ()
            for k in tl.static_range(ACTIONS):
                w = tl.load(first + (tower * INPUTS + unit) * SPEC.columns + SPEC.observation + k).to(tl.float32)[
                    None, :
                ]
                added = added + (by_action[k] + tl.sum(g * w, axis=1),)
            by_action = added
    if not TRAIN:
        share = shares + ((tower * SPEC.batch + row) * tl.num_programs(0) + number) * ACTIONS
        for k in tl.static_range(ACTIONS):
            tl.store(share + k, by_action[k])


@triton.jit
def action_slopes(shares, slope, SPEC: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr):
    """The gradient in actions (towers, B, columns), of what `first_slopes` has left."""
    place = tl.program_id(1) * SPEC.batch + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ACTIONS: tl.constexpr = SPEC.action
    for k in tl.static_range(ACTIONS):
        total = tl.load(shares + place * TILES * ACTIONS + k)
        for tile in tl.static_range(1, TILES):
            total += tl.load(shares + (place * TILES + tile) * ACTIONS + k)
        tl.store(slope + place * SPEC.columns + SPEC.observation + k, total)


@triton.jit
def first_gradient(
    gradient,
    x,
    by_first,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Products of the gradient in what first layers sum up, a descriptor, and what they read, and a one where WIDE
    allows: (towers, parts, width, WIDE).

    Program 0 takes COLUMNS units, 1 a part of the batch, 2 is the tower.
    """
    number, part, tower = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHARE: tl.constexpr = SPEC.batch // SPEC.parts
    total, column = zeros(COLUMNS, WIDE), tl.arange(0, WIDE)[None, :]
    for start in tl.range(part * SHARE, (part + 1) * SHARE, ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        seen = tl.load(
            x + row[:, None] * SPEC.columns + column, mask=(column < SPEC.columns) & (row >= 0)[:, None], other=0.0
        ).to(tl.float32)
        seen = operand(tl.where(column == SPEC.columns, 1.0, seen), SPEC)
        left = gradient.load([tower * SPEC.batch + start, number * COLUMNS])
        total = tl.dot(left.T, seen, total, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    unit = number * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(by_first + ((tower * SPEC.parts + part) * NET.layers[0].width + unit)[:, None] * WIDE + column, total)


@triton.jit
def first_reduce(by_first, gradient, SPEC: tl.constexpr, NET: tl.constexpr, WIDE: tl.constexpr, UNITS: tl.constexpr):
    """The gradient of the first layer's weight, and with a one its bias's, the sums of those products."""
    tower, unit, column = tl.program_id(1), tl.program_id(0) * UNITS + tl.arange(0, UNITS), tl.arange(0, WIDE)
    WIDTH: tl.constexpr = NET.layers[0].width
    PARTS: tl.constexpr = SPEC.parts
    total = zeros(UNITS, WIDE)
    for part in tl.static_range(PARTS):
        total += tl.load(by_first + ((tower * PARTS + part) * WIDTH + unit)[:, None] * WIDE + column[None, :])
    vector = tower * WIDTH + unit
    if SPEC.columns < WIDE:
        tl.store(
            gradient + NET.layers[0].bias + vector,
            tl.sum(tl.where((column == SPEC.columns)[None, :], total, 0.0), axis=1),
        )
    place = gradient + NET.layers[0].weight + vector[:, None] * NET.layers[0].inputs + column[None, :]
    tl.store(place, total, mask=(column < NET.layers[0].inputs)[None, :] & (unit >= 0)[:, None])
