"""Triton kernels between the products of wide networks: layers before and after their activation, and the functions that heads share with them.

Rows are samples, (rows, units), a tower's behind another's. Products of whole batches are the library's: what is here passes over their results once each.
Sums over the batch have a fixed order: each program adds up its tiles into a row of
`partial` (programs, towers, vectors, pad), and `wide_steps.reduce` the rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import activate, activation_gradient, operand, saved_activation, zeros

# LAYERS

STAGES = tl.constexpr(3)
"""Tiles that are on their way while one is worked on."""


@triton.jit
def dot(a, b, SPEC: tl.constexpr):
    """A b of operands, in float32; of float32 with the bits of tf32 at least."""
    return tl.dot(a, b, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def vector(flat, begin, tower, NET: tl.constexpr, AT: tl.constexpr):
    """A vector of a layer's parameters (pad), zero outside."""
    WIDTH: tl.constexpr = NET.layers[AT].width
    unit = tl.arange(0, NET.layers[AT].pad)
    return tl.load(flat + begin + tower * WIDTH + unit, mask=unit < WIDTH, other=0.0)


@triton.jit
def sums(z, place, flat, tower, NET: tl.constexpr, AT: tl.constexpr):
    """What a layer sums up, its bias included, (rows, pad): rows `place` of `z`."""
    return load_units(z, place, NET, AT) + vector(flat, NET.layers[AT].bias, tower, NET, AT)[None, :]


@triton.jit
def load_units(start, row, NET: tl.constexpr, AT: tl.constexpr):
    """Numbers of a layer's units (rows, pad) as float32, zero outside."""
    WIDTH: tl.constexpr = NET.layers[AT].width
    unit = tl.arange(0, NET.layers[AT].pad)[None, :]
    return tl.load(start + row[:, None] * WIDTH + unit, mask=(unit < WIDTH) & (row >= 0)[:, None], other=0.0).to(tl.float32)


@triton.jit
def store_units(start, row, x, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Store numbers of a layer's units (rows, pad), as operands."""
    WIDTH: tl.constexpr = NET.layers[AT].width
    unit = tl.arange(0, NET.layers[AT].pad)[None, :]
    tl.store(start + row[:, None] * WIDTH + unit, operand(x, SPEC), mask=(unit < WIDTH) & (row >= 0)[:, None])


@triton.jit
def activated(s, flat, tower, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """A layer's activations; what its activation is a function of; that with mean 0 and variance 1 a row; and 1 / std (rows)."""
    if SPEC.layer_norm:
        WIDTH: tl.constexpr = NET.layers[AT].width
        inside = (tl.arange(0, NET.layers[AT].pad) < WIDTH)[None, :]
        centred = tl.where(inside, s - (tl.sum(s, axis=1) / WIDTH)[:, None], 0.0)
        inv_std = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + 1e-5)
        x_hat = centred * inv_std[:, None]
        y = x_hat * vector(flat, NET.layers[AT].gain, tower, NET, AT)[None, :] + vector(flat, NET.layers[AT].shift, tower, NET, AT)[None, :]
        return activate(y, SPEC), y, x_hat, inv_std
    else:
        return activate(s, SPEC), s, s, tl.sum(s, axis=1)


@triton.jit
def gradient_of_sums(g, h, y, x_hat, inv_std, flat, tower, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """From the gradient in a layer's activations to those in what it sums up and in what its activation is a function of."""
    g_y = g * activation_gradient(saved_activation(y, h, SPEC), SPEC)
    g_z = g_y
    if SPEC.layer_norm:
        WIDTH: tl.constexpr = NET.layers[AT].width
        scaled = g_y * vector(flat, NET.layers[AT].gain, tower, NET, AT)[None, :]
        mean, along = tl.sum(scaled, axis=1) / WIDTH, tl.sum(scaled * x_hat, axis=1) / WIDTH
        inside = (tl.arange(0, NET.layers[AT].pad) < WIDTH)[None, :]
        g_z = tl.where(inside, inv_std[:, None] * (scaled - mean[:, None] - x_hat * along[:, None]), 0.0)
    return g_z, g_y


@triton.jit
def store_partial(partial, program, tower, number, x, NET: tl.constexpr, AT: tl.constexpr):
    """A vector (pad) of a program's row of sums."""
    unit = tl.arange(0, NET.layers[AT].pad)
    place = ((program * NET.towers + tower) * NET.vectors + NET.layers[AT].partial + number) * NET.pad
    tl.store(partial + place + unit, x)


@triton.jit
def store_partials(partial, program, tower, bias, gain, shift, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Store the sums of a layer's own vectors (pad each)."""
    store_partial(partial, program, tower, 0, bias, NET, AT)
    if SPEC.layer_norm:
        store_partial(partial, program, tower, 1, gain, NET, AT)
        store_partial(partial, program, tower, 2, shift, NET, AT)


@triton.jit(do_not_specialize=["rows"])
def forward_layer(z, hidden, flat, rows, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """A hidden layer's activations `hidden` (towers, rows, width), of what its product has summed up: program 0 takes every so many tiles, 1 is the tower."""
    tower = tl.program_id(1)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        place = tower * rows + first + tl.arange(0, ROWS)
        h, _y, _x_hat, _inv_std = activated(sums(z, place, flat, tower, NET, AT), flat, tower, SPEC, NET, AT)
        store_units(hidden, place, h, SPEC, NET, AT)


@triton.jit
def _load_part(start, row, p, NET: tl.constexpr, AT: tl.constexpr, SIZE: tl.constexpr):
    """Part `p` of rows of a layer's units, (rows, SIZE), as float32."""
    unit = NET.layers[AT].starts[p] + tl.arange(0, SIZE)
    return tl.load(start + row[:, None] * NET.layers[AT].width + unit[None, :]).to(tl.float32)


@triton.jit
def _load_vector(flat, begin, tower, NET: tl.constexpr, AT: tl.constexpr):
    """A vector of a layer's parameters, its parts (1, part) each."""
    parts = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        parts = parts + (_vector_part(flat, begin, tower, NET.layers[AT].starts[p], NET, AT, NET.layers[AT].parts[p]),)
    return parts


@triton.jit
def _row_sums(x, NET: tl.constexpr, AT: tl.constexpr):
    """Over a layer's units the sums of parts (rows, part), (rows): parts of one size together."""
    PARTS: tl.constexpr = NET.layers[AT].parts
    together = x[0]
    for p in tl.static_range(1, len(PARTS)):
        if PARTS[p] == PARTS[0]:
            together += x[p]
    total = tl.sum(together, axis=1)
    for p in tl.static_range(1, len(PARTS)):
        if PARTS[p] != PARTS[0]:
            total += tl.sum(x[p], axis=1)
    return total


@triton.jit
def _store_sum(partial, program, tower, number, sums, NET: tl.constexpr, AT: tl.constexpr):
    """Over rows the sums of parts (rows, part), a vector of a program's row of sums."""
    place = ((program * NET.towers + tower) * NET.vectors + NET.layers[AT].partial + number) * NET.pad
    for p in tl.static_range(len(NET.layers[AT].parts)):
        tl.store(partial + place + NET.layers[AT].starts[p] + tl.arange(0, NET.layers[AT].parts[p]), tl.sum(sums[p], axis=0))


@triton.jit(do_not_specialize=["rows", "begin"])
def backward_layer(
    gradient, z, hidden, flat, partial, rows, begin, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, TRAIN: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """In place from the gradient in a layer's activations (towers, B, width) to that in what it sums up. TRAIN: its vectors' gradients, too.

    `z` and `hidden` have `rows` rows, of which B from `begin` on count. Program 0 takes every so many tiles, 1 is the tower.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    WIDTH: tl.constexpr = NET.layers[AT].width
    PARTS: tl.constexpr = NET.layers[AT].parts
    zero = ()
    for p in tl.static_range(len(PARTS)):
        zero = zero + (zeros(ROWS, PARTS[p]),)
    by_bias, by_gain, by_shift = zero, zero, zero
    bias, gain, shift = zero, zero, zero
    if SPEC.needs_sums:
        bias = _load_vector(flat, NET.layers[AT].bias, tower, NET, AT)
        if SPEC.layer_norm:
            gain, shift = _load_vector(flat, NET.layers[AT].gain, tower, NET, AT), _load_vector(flat, NET.layers[AT].shift, tower, NET, AT)
    for first in tl.range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        place, own = tower * rows + begin + row, tower * SPEC.batch + row
        g, s = (), ()
        for p in tl.static_range(len(PARTS)):
            g = g + (_load_part(gradient, own, p, NET, AT, PARTS[p]),)
        if SPEC.needs_sums:
            for p in tl.static_range(len(PARTS)):
                s = s + (_load_part(z, place, p, NET, AT, PARTS[p]) + bias[p],)
        if SPEC.layer_norm:
            centre = _row_sums(s, NET, AT) / WIDTH
            x_hat, squares, normed, g_y, scaled, along = (), (), (), (), (), ()
            for p in tl.static_range(len(PARTS)):
                x_hat = x_hat + (s[p] - centre[:, None],)
                squares = squares + (x_hat[p] * x_hat[p],)
            inv_std = 1.0 / tl.sqrt(_row_sums(squares, NET, AT) / WIDTH + 1e-5)
            # dL / dz = (g - mean(g) - x_hat mean(g x_hat)) / std, g = dL / dx_hat
            for p in tl.static_range(len(PARTS)):
                normed = normed + (x_hat[p] * inv_std[:, None],)
                y = normed[p] * gain[p] + shift[p]
                g_y = g_y + (g[p] * activation_gradient(saved_activation(y, activate(y, SPEC), SPEC), SPEC),)
                scaled = scaled + (g_y[p] * gain[p],)
                along = along + (scaled[p] * normed[p],)
            mean, slope = _row_sums(scaled, NET, AT) / WIDTH * inv_std, _row_sums(along, NET, AT) / WIDTH * inv_std
            g = ()
            sum_gain, sum_shift = (), ()
            for p in tl.static_range(len(PARTS)):
                g = g + (scaled[p] * inv_std[:, None] - mean[:, None] - normed[p] * slope[:, None],)
                if TRAIN:
                    sum_gain, sum_shift = sum_gain + (by_gain[p] + g_y[p] * normed[p],), sum_shift + (by_shift[p] + g_y[p],)
            if TRAIN:
                by_gain, by_shift = sum_gain, sum_shift
        else:
            g_z = ()
            for p in tl.static_range(len(PARTS)):
                if SPEC.needs_sums:
                    saved = saved_activation(s[p], activate(s[p], SPEC), SPEC)
                else:
                    saved = _load_part(hidden, place, p, NET, AT, PARTS[p])
                g_z = g_z + (g[p] * activation_gradient(saved, SPEC),)
            g = g_z
        sum_bias = ()
        for p in tl.static_range(len(PARTS)):
            _keep(gradient, own, NET.layers[AT].starts[p], g[p], row >= 0, SPEC, NET, AT, PARTS[p])
            sum_bias = sum_bias + (by_bias[p] + g[p],)
        by_bias = sum_bias
    if TRAIN:
        _store_sum(partial, program, tower, 0, by_bias, NET, AT)
        if SPEC.layer_norm:
            _store_sum(partial, program, tower, 1, by_gain, NET, AT)
            _store_sum(partial, program, tower, 2, by_shift, NET, AT)


# WHOLE NETWORKS


@triton.jit
def _first_sums(x, first, k, tower, SPEC: tl.constexpr, NET: tl.constexpr, CHUNK: tl.constexpr):
    """What CHUNK units of the first layer from `k` on sum up, without the bias, (rows, CHUNK)."""
    row, column = tower * NET.layers[0].width + k + tl.arange(0, CHUNK), tl.arange(0, SPEC.columns)
    return dot(x, tl.load(first + row[None, :] * SPEC.columns + column[:, None]), SPEC)


@triton.jit
def _vector_part(flat, begin, tower, start, NET: tl.constexpr, AT: tl.constexpr, SIZE: tl.constexpr):
    """SIZE numbers of a vector of a layer's parameters from `start` on."""
    return tl.load(flat + begin + tower * NET.layers[AT].width + start + tl.arange(0, SIZE))[None, :]


@triton.jit
def _keep(target, row, start, x, keep, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, SIZE: tl.constexpr):
    """Store SIZE units from `start` on of rows `row` of a layer, where `keep` says so."""
    place = row[:, None] * NET.layers[AT].width + start + tl.arange(0, SIZE)[None, :]
    tl.store(target + place, operand(x, SPEC), mask=(keep & (row >= 0))[:, None])


@triton.jit
def _activated_parts(z, flat, tower, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """A layer's activations as operands, a part (rows, part) each, of what it sums up without its bias."""
    WIDTH: tl.constexpr = NET.layers[AT].width
    PARTS: tl.constexpr = NET.layers[AT].parts
    biased = ()
    for p in tl.static_range(len(PARTS)):
        biased = biased + (z[p] + _vector_part(flat, NET.layers[AT].bias, tower, NET.layers[AT].starts[p], NET, AT, PARTS[p]),)
    hidden = ()
    if SPEC.layer_norm:
        total, squares = tl.sum(biased[0], axis=1), 0.0
        for p in tl.static_range(len(PARTS) - 1):
            total += tl.sum(biased[p + 1], axis=1)
        mean = total / WIDTH
        squares = tl.zeros_like(mean)
        for p in tl.static_range(len(PARTS)):
            centred = biased[p] - mean[:, None]
            squares += tl.sum(centred * centred, axis=1)
        inv_std = 1.0 / tl.sqrt(squares / WIDTH + 1e-5)
        for p in tl.static_range(len(PARTS)):
            gain = _vector_part(flat, NET.layers[AT].gain, tower, NET.layers[AT].starts[p], NET, AT, PARTS[p])
            shift = _vector_part(flat, NET.layers[AT].shift, tower, NET.layers[AT].starts[p], NET, AT, PARTS[p])
            hidden = hidden + (operand(activate((biased[p] - mean[:, None]) * inv_std[:, None] * gain + shift, SPEC), SPEC),)
    else:
        for p in tl.static_range(len(PARTS)):
            hidden = hidden + (operand(activate(biased[p], SPEC), SPEC),)
    return hidden


@triton.jit(do_not_specialize=["rows", "begin"])
def forward_network(
    x, first, second, flat, sums_0, hidden_0, sums_1, hidden_1, last, rows, begin,
    SPEC: tl.constexpr, NET: tl.constexpr, KEEP: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """All hidden layers of rows `x` (rows, columns), a tile a program: what the last one sums up into `last` (towers, rows, width).

    KEEP 1: what the others sum up, too; 2: and their activations; of rows from `begin` on.
    """
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place, keep = tower * rows + row, row >= begin
    WIDTH: tl.constexpr = NET.layers[0].width
    PARTS: tl.constexpr = NET.layers[1].parts
    seen = tl.load(x + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :])
    # The first layer is short to compute: once for its moments, and once more for what the second one reads.
    mean, inv_std = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    if SPEC.layer_norm:
        for k in range(0, WIDTH, CHUNK):
            s = _first_sums(seen, first, k, tower, SPEC, NET, CHUNK) + _vector_part(flat, NET.layers[0].bias, tower, k, NET, 0, CHUNK)
            mean += tl.sum(s, axis=1)
            inv_std += tl.sum(s * s, axis=1)
        mean = mean / WIDTH
        inv_std = 1.0 / tl.sqrt(tl.maximum(inv_std / WIDTH - mean * mean, 0.0) + 1e-5)
    z = ()
    for p in tl.static_range(len(PARTS)):
        z = z + (zeros(ROWS, PARTS[p]),)
    for k in tl.range(0, WIDTH, CHUNK, num_stages=2):
        s = _first_sums(seen, first, k, tower, SPEC, NET, CHUNK)
        y = s + _vector_part(flat, NET.layers[0].bias, tower, k, NET, 0, CHUNK)
        if SPEC.layer_norm:
            gain, shift = (_vector_part(flat, NET.layers[0].gain, tower, k, NET, 0, CHUNK), _vector_part(flat, NET.layers[0].shift, tower, k, NET, 0, CHUNK))
            y = (y - mean[:, None]) * inv_std[:, None] * gain + shift
        h = operand(activate(y, SPEC), SPEC)
        if KEEP > 0:
            _keep(sums_0, place, k, s, keep, SPEC, NET, 0, CHUNK)
        if KEEP > 1:
            _keep(hidden_0, place, k, h, keep, SPEC, NET, 0, CHUNK)
        summed = ()
        for p in tl.static_range(len(PARTS)):
            summed = summed + (add_layer(z[p], h, second, tower, p, k, SPEC, NET, 1, CHUNK),)
        z = summed
    if len(NET.layers) == 2:
        for p in tl.static_range(len(PARTS)):
            _keep(last, place, NET.layers[1].starts[p], z[p], row >= 0, SPEC, NET, 1, PARTS[p])
    else:
        hidden = _activated_parts(z, flat, tower, SPEC, NET, 1)
        for p in tl.static_range(len(PARTS)):
            if KEEP > 0:
                _keep(sums_1, place, NET.layers[1].starts[p], z[p], keep, SPEC, NET, 1, PARTS[p])
            if KEEP > 1:
                _keep(hidden_1, place, NET.layers[1].starts[p], hidden[p], keep, SPEC, NET, 1, PARTS[p])
        OUT: tl.constexpr = NET.layers[2].parts
        for q in tl.static_range(len(OUT)):
            total = zeros(ROWS, OUT[q])
            for p in tl.static_range(len(PARTS)):
                total = add_layer(total, hidden[p], second, tower, q, NET.layers[1].starts[p], SPEC, NET, 2, PARTS[p])
            _keep(last, place, NET.layers[2].starts[q], total, row >= 0, SPEC, NET, 2, OUT[q])


@triton.jit
def add_layer(total, h, second, tower, p, k, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr, DEEP: tl.constexpr):
    """To part `p` of what a layer sums up (rows, part), what inputs h (rows, DEEP) from `k` on add. `second` is where the second layer's weight begins."""
    unit, column = tower * NET.layers[AT].width + NET.layers[AT].starts[p] + tl.arange(0, NET.layers[AT].parts[p]), k + tl.arange(0, DEEP)
    w = tl.load(second + NET.layers[AT].weight - NET.layers[1].weight + unit[None, :] * NET.layers[AT].inputs + column[:, None])
    return tl.dot(h, w, total, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
