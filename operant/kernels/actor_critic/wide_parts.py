"""Triton functions of rows of a wide layer: loaded and stored in parts, activated, on the way back, and summed up. Know
no network's order of work.

Rows are samples, (rows, units), a tower's behind another's; a row is held as a tuple of parts, (rows, part) each, whose
widths are powers of two. Sums over the batch have a fixed order: each program adds up its tiles into a row of `partial`
(programs, towers, vectors, pad), and `wide_layers.reduce` the rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import activate, activation_gradient, operand, zeros

# PARTS OF A LAYER


@triton.jit
def dot(a, b, SPEC: tl.constexpr):
    """A b of operands, in float32; of float32 with the bits of tf32 at least."""
    return tl.dot(a, b, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def units(p, NET: tl.constexpr, AT: tl.constexpr):
    """The units of a part, and which of them the layer has: the last part may have more."""
    unit = NET.layers[AT].starts[p] + tl.arange(0, NET.layers[AT].parts[p])
    return unit, unit < NET.layers[AT].width


@triton.jit
def load_vector(flat, begin, tower, NET: tl.constexpr, AT: tl.constexpr):
    """A vector of a layer's parameters, (1, part) each."""
    vector = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        vector = vector + (load_part(flat, begin, tower, p, NET, AT),)
    return vector


@triton.jit
def load_part(flat, begin, tower, p, NET: tl.constexpr, AT: tl.constexpr):
    """A part of such a vector."""
    unit, inside = units(p, NET, AT)
    return tl.load(flat + begin + tower * NET.layers[AT].width + unit, mask=inside, other=0.0)[None, :]


@triton.jit
def load_layer(flat, tower, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """A layer's bias, and its gain and shift, which without layer normalization stand for nothing."""
    bias = load_vector(flat, NET.layers[AT].bias, tower, NET, AT)
    if SPEC.layer_norm:
        return (
            bias,
            load_vector(flat, NET.layers[AT].gain, tower, NET, AT),
            load_vector(flat, NET.layers[AT].shift, tower, NET, AT),
        )
    else:
        return bias, bias, bias


@triton.jit
def load_rows(start, row, NET: tl.constexpr, AT: tl.constexpr):
    """Rows of a layer's units as float32."""
    x = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        unit, inside = units(p, NET, AT)
        place = start + row[:, None] * NET.layers[AT].width + unit[None, :]
        if NET.layers[AT].width % 16 == 0:
            x = x + (tl.load(place).to(tl.float32),)
        else:
            x = x + (tl.load(place, mask=inside[None, :] & (row >= 0)[:, None], other=0.0).to(tl.float32),)
    return x


@triton.jit
def store_rows(start, row, x, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Store rows of a layer's units, as operands."""
    for p in tl.static_range(len(NET.layers[AT].parts)):
        unit, inside = units(p, NET, AT)
        place = start + row[:, None] * NET.layers[AT].width + unit[None, :]
        if NET.layers[AT].width % 16 == 0:
            tl.store(place, operand(x[p], SPEC))
        else:
            tl.store(place, operand(x[p], SPEC), mask=inside[None, :] & (row >= 0)[:, None])


@triton.jit
def row_sums(x, NET: tl.constexpr, AT: tl.constexpr):
    """Over a layer's units the sums of rows, (rows): parts of one size together."""
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
def row_products(x, vector, NET: tl.constexpr, AT: tl.constexpr):
    """The products of rows with a vector, (rows)."""
    products = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        products = products + (x[p] * vector[p],)
    return row_sums(products, NET, AT)


# ACTIVATIONS


@triton.jit
def with_bias(z, layer, NET: tl.constexpr, AT: tl.constexpr):
    """What a layer's product has summed up, bias included."""
    s = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        s = s + (z[p] + layer[0][p],)
    return s


@triton.jit
def moments(s, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Mean and 1 / std of rows of a layer's sums; without layer normalization they stand for nothing."""
    mean = row_sums(s, NET, AT) / NET.layers[AT].width
    if SPEC.layer_norm:
        squares = ()
        for p in tl.static_range(len(NET.layers[AT].parts)):
            centred = _centred(s[p], mean, p, NET, AT)
            squares = squares + (centred * centred,)
        return mean, 1.0 / tl.sqrt(row_sums(squares, NET, AT) / NET.layers[AT].width + 1e-5)
    else:
        return mean, mean


@triton.jit
def _centred(s, mean, p, NET: tl.constexpr, AT: tl.constexpr):
    return (
        s - mean[:, None]
        if NET.layers[AT].width % 16 == 0
        else tl.where(units(p, NET, AT)[1][None, :], s - mean[:, None], 0.0)
    )


@triton.jit
def activated_part(s, mean, inv_std, gain, shift, p, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """From a part of a layer's sums and their rows' moments: its activations; what those are a function of; and that
    with mean 0 and variance 1.
    """
    if SPEC.layer_norm:
        x_hat = _centred(s, mean, p, NET, AT) * inv_std[:, None]
        y = x_hat * gain + shift
        return activate(y, SPEC), y, x_hat
    else:
        return activate(s, SPEC), s, s


@triton.jit
def activated(s, mean, inv_std, layer, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """The same of all parts; and 1 / std (rows)."""
    h, y, x_hat = (), (), ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        part = activated_part(s[p], mean, inv_std, layer[1][p], layer[2][p], p, SPEC, NET, AT)
        h, y, x_hat = h + (part[0],), y + (part[1],), x_hat + (part[2],)
    return h, y, x_hat, inv_std


@triton.jit
def load_activated(kept, saved, row, layer, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """The same of rows that a pass forward has left: what `keep` stores, and moments `saved` (rows, 2)."""
    x = load_rows(kept, row, NET, AT)
    h, y = (), ()
    if SPEC.layer_norm:
        for p in tl.static_range(len(NET.layers[AT].parts)):
            y = y + (x[p] * layer[1][p] + layer[2][p],)
            h = h + (activate(y[p], SPEC),)
        return h, y, x, tl.load(saved + row * 2 + 1)
    else:
        return activated(with_bias(x, layer, NET, AT), row, row, layer, SPEC, NET, AT)


@triton.jit
def store_moments(saved, row, mean, inv_std, SPEC: tl.constexpr):
    """Store rows' moments, where there are any."""
    if SPEC.layer_norm:
        tl.store(saved + row * 2, mean)
        tl.store(saved + row * 2 + 1, inv_std)


@triton.jit
def gradient_of_sums(g, kept, layer, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """From the gradient in a layer's activations, and what `activated` returns: those in what it sums up, and in what
    its activation is a function of.
    """
    PARTS: tl.constexpr = NET.layers[AT].parts
    h, y, x_hat, inv_std = kept
    g_y = ()
    for p in tl.static_range(len(PARTS)):
        # Of what `saved_activation` asks for, but not rounded to an operand and back.
        if SPEC.activation == "tanh" or SPEC.activation == "relu":
            g_y = g_y + (g[p] * activation_gradient(h[p], SPEC),)
        else:
            g_y = g_y + (g[p] * activation_gradient(y[p], SPEC),)
    if SPEC.layer_norm:
        scaled = ()
        along = ()
        for p in tl.static_range(len(PARTS)):
            scaled = scaled + (g_y[p] * layer[1][p],)
            along = along + (scaled[p] * x_hat[p],)
        # dL / dz = (g - mean(g) - x_hat mean(g x_hat)) / std, g = dL / dx_hat
        share = inv_std / NET.layers[AT].width
        mean, slope = row_sums(scaled, NET, AT) * share, row_sums(along, NET, AT) * share
        g_z = ()
        for p in tl.static_range(len(PARTS)):
            g_z = g_z + (scaled[p] * inv_std[:, None] - mean[:, None] - x_hat[p] * slope[:, None],)
        return g_z, g_y
    else:
        return g_y, g_y


# SUMS OVER ROWS


@triton.jit
def no_sums(ROWS: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Zeros, (rows, part) each."""
    sums = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        sums = sums + (zeros(ROWS, NET.layers[AT].parts[p]),)
    return sums


@triton.jit
def add(sums, x, NET: tl.constexpr, AT: tl.constexpr):
    """Sums + x."""
    total = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        total = total + (sums[p] + x[p],)
    return total


@triton.jit
def add_products(sums, x, y, NET: tl.constexpr, AT: tl.constexpr):
    """Sums + x y."""
    total = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        total = total + (sums[p] + x[p] * y[p],)
    return total


@triton.jit
def store_sum(partial, program, tower, number, sums, NET: tl.constexpr, AT: tl.constexpr):
    """Over rows what was summed up, as a vector of a program's row of sums."""
    place = ((program * NET.towers + tower) * NET.vectors + NET.layers[AT].partial + number) * NET.pad
    for p in tl.static_range(len(NET.layers[AT].parts)):
        tl.store(
            partial + place + NET.layers[AT].starts[p] + tl.arange(0, NET.layers[AT].parts[p]), tl.sum(sums[p], axis=0)
        )


@triton.jit
def store_layer(partial, program, tower, bias, gain, shift, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Store the sums of a layer's own vectors."""
    store_sum(partial, program, tower, 0, bias, NET, AT)
    if SPEC.layer_norm:
        store_sum(partial, program, tower, 1, gain, NET, AT)
        store_sum(partial, program, tower, 2, shift, NET, AT)


@triton.jit
def store_hidden(
    sums,
    z,
    hidden,
    saved,
    flat,
    end,
    begin,
    tower,
    place,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    AT: tl.constexpr,
    KEEP: tl.constexpr,
    END: tl.constexpr,
):
    """What becomes of what a hidden layer's product has summed up, for rows `place` from `begin` on; see
    `wide_layers.hidden_layer`.
    """
    PARTS: tl.constexpr = NET.layers[AT].parts
    WIDTH: tl.constexpr = NET.layers[AT].width
    # A layer's vectors take a lot of registers, so each part is loaded where it is used.
    s = ()
    for p in tl.static_range(len(PARTS)):
        s = s + (sums[p] + load_part(flat, NET.layers[AT].bias, tower, p, NET, AT),)
    mean, inv_std = moments(s, SPEC, NET, AT)
    if KEEP:
        store_moments(saved, place, mean, inv_std, SPEC)
    h = ()
    for p in tl.static_range(len(PARTS)):
        gain, shift = mean, mean
        if SPEC.layer_norm:
            gain = load_part(flat, NET.layers[AT].gain, tower, p, NET, AT)
            shift = load_part(flat, NET.layers[AT].shift, tower, p, NET, AT)
        h_part, _y, x_hat = activated_part(s[p], mean, inv_std, gain, shift, p, SPEC, NET, AT)
        if KEEP and (SPEC.needs_sums or len(NET.layers) - 1 == AT):
            z.store([begin, NET.layers[AT].starts[p]], operand(x_hat if SPEC.layer_norm else sums[p], SPEC))
        if END == "hidden":
            hidden.store([begin, NET.layers[AT].starts[p]], operand(h_part, SPEC))
        else:
            h = h + (h_part,)
    if END == "value" or END == "policy":
        OUTPUTS: tl.constexpr = NET.outputs
        for k in tl.static_range(OUTPUTS):
            out = row_products(h, load_vector(flat, NET.head_weight + k * WIDTH, tower, NET, AT), NET, AT)
            tl.store(end + place * OUTPUTS + k, out + tl.load(flat + NET.head_bias + tower * OUTPUTS + k))
