"""Triton functions of rows of a wide layer: load and store, activation and layer normalization forward and backward,
and sums over the batch. Know no network's order of work.

A *tower* is one of several networks of the same shape, the critics. Rows are samples, (rows, units), one tower after
another. A row is held as a tuple of parts, (rows, part) each, whose
widths are powers of two ("rows" below). Sums over the batch have a fixed order: each program sums its tiles into a row
of `partials` (programs, towers, vectors, pad), and `layers.reduce` sums those rows.

Common parameters: `SPEC`: `WideSpec`; `NET`: `WideNet`; `LAYER`: index of the layer; `layer`: bias, gain and shift as
`load_layer` returns them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.activation import activate, activation_gradient
from operant.kernels.ops.linear import operand, zeros

# LOAD AND STORE


@triton.jit
def dot(a, b, SPEC: tl.constexpr):
    """Return a b in float32; float32 operands are multiplied in tf32 at least."""
    return tl.dot(a, b, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def units(p, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return the indices of the units of part p of a row, (part), and their mask: the last part may exceed the
    layer.
    """
    unit = NET.layers[LAYER].starts[p] + tl.arange(0, NET.layers[LAYER].parts[p])
    return unit, unit < NET.layers[LAYER].width


@triton.jit
def load_vector(params_ptr, offset, tower, NET: tl.constexpr, LAYER: tl.constexpr):
    """Load a vector (towers, width) of a layer's parameters, at `offset` of the flat vector, for one tower: a tuple of
    parts (1, part).
    """
    vector = ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        vector = vector + (load_part(params_ptr, offset, tower, p, NET, LAYER),)
    return vector


@triton.jit
def load_part(params_ptr, offset, tower, p, NET: tl.constexpr, LAYER: tl.constexpr):
    """Load part p of a vector of a layer's parameters, at `offset` of the flat vector, for one tower, (1, part)."""
    unit, mask = units(p, NET, LAYER)
    return tl.load(params_ptr + offset + tower * NET.layers[LAYER].width + unit, mask=mask, other=0.0)[None, :]


@triton.jit
def load_layer(params_ptr, tower, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Load a layer's bias, and the gain and shift of its layer normalization, each a tuple of parts (1, part). Without
    layer normalization gain and shift are placeholders (the bias).
    """
    bias = load_vector(params_ptr, NET.layers[LAYER].bias, tower, NET, LAYER)
    if SPEC.layer_norm:
        return (
            bias,
            load_vector(params_ptr, NET.layers[LAYER].gain, tower, NET, LAYER),
            load_vector(params_ptr, NET.layers[LAYER].shift, tower, NET, LAYER),
        )
    else:
        return bias, bias, bias


@triton.jit
def load_rows(base_ptr, row, NET: tl.constexpr, LAYER: tl.constexpr):
    """Load rows `row` of a tensor (rows, width) as float32: a tuple of parts (rows, part)."""
    x = ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        unit, mask = units(p, NET, LAYER)
        offset = base_ptr + row[:, None] * NET.layers[LAYER].width + unit[None, :]
        if NET.layers[LAYER].width % 16 == 0:
            x = x + (tl.load(offset).to(tl.float32),)
        else:
            x = x + (tl.load(offset, mask=mask[None, :] & (row >= 0)[:, None], other=0.0).to(tl.float32),)
    return x


@triton.jit
def store_rows(base_ptr, row, x, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Store rows x, a tuple of parts (rows, part), to rows `row` of a tensor (rows, width), as operands."""
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        unit, mask = units(p, NET, LAYER)
        offset = base_ptr + row[:, None] * NET.layers[LAYER].width + unit[None, :]
        if NET.layers[LAYER].width % 16 == 0:
            tl.store(offset, operand(x[p], SPEC))
        else:
            tl.store(offset, operand(x[p], SPEC), mask=mask[None, :] & (row >= 0)[:, None])


@triton.jit
def row_sum(x, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return the sum of each row of x over the layer's units, (rows); parts of equal size are added before they are
    summed.
    """
    PARTS: tl.constexpr = NET.layers[LAYER].parts
    equal = x[0]
    for p in tl.static_range(1, len(PARTS)):
        if PARTS[p] == PARTS[0]:
            equal += x[p]
    total = tl.sum(equal, axis=1)
    for p in tl.static_range(1, len(PARTS)):
        if PARTS[p] != PARTS[0]:
            total += tl.sum(x[p], axis=1)
    return total


@triton.jit
def row_dot(x, vector, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return the dot product of each row of x with a vector, (rows); both are tuples of parts."""
    products = ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        products = products + (x[p] * vector[p],)
    return row_sum(products, NET, LAYER)


@triton.jit
def outer(x, vector, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return the outer product of x (rows) with a vector (a tuple of parts), as a tuple of parts (rows, part)."""
    product = ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        product = product + (x[:, None] * vector[p],)
    return product


# FORWARD


@triton.jit
def add_bias(z, layer, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return pre-activations z + b as a tuple of parts (rows, part)."""
    biased = ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        biased = biased + (z[p] + layer[0][p],)
    return biased


@triton.jit
def mean_and_inv_std(z, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return mean and 1 / std of each row of pre-activations z, (rows) each; placeholders without layer
    normalization.
    """
    mean = row_sum(z, NET, LAYER) / NET.layers[LAYER].width
    if SPEC.layer_norm:
        squares = ()
        for p in tl.static_range(len(NET.layers[LAYER].parts)):
            centred = _centre(z[p], mean, p, NET, LAYER)
            squares = squares + (centred * centred,)
        return mean, 1.0 / tl.sqrt(row_sum(squares, NET, LAYER) / NET.layers[LAYER].width + 1e-5)
    else:
        return mean, mean


@triton.jit
def _centre(z, mean, p, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return z - mean for part p of the rows, zero beyond the layer's width."""
    return (
        z - mean[:, None]
        if NET.layers[LAYER].width % 16 == 0
        else tl.where(units(p, NET, LAYER)[1][None, :], z - mean[:, None], 0.0)
    )


@triton.jit
def activate_part(z, mean, inv_std, gain, shift, p, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return part p of activations h = f(y), of y = gain x_hat + shift, and of x_hat = (z - mean) / std. Without layer
    normalization y and x_hat are z.
    """
    if SPEC.layer_norm:
        x_hat = _centre(z, mean, p, NET, LAYER) * inv_std[:, None]
        y = x_hat * gain + shift
        return activate(y, SPEC), y, x_hat
    else:
        return activate(z, SPEC), z, z


@triton.jit
def activate_rows(z, mean, inv_std, layer, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return h, y and x_hat as tuples of parts, and 1 / std (rows), from pre-activations z with bias (see
    `activate_part`).
    """
    h, y, x_hat = (), (), ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        part = activate_part(z[p], mean, inv_std, layer[1][p], layer[2][p], p, SPEC, NET, LAYER)
        h, y, x_hat = h + (part[0],), y + (part[1],), x_hat + (part[2],)
    return h, y, x_hat, inv_std


@triton.jit
def load_activations(z_ptr, moments_ptr, row, layer, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return h, y, x_hat and 1 / std of rows `row` from the tensors that a forward pass saved: `z_ptr`
    (pre-activations, or x_hat with layer normalization) and `moments_ptr` (rows, 2).
    """
    x = load_rows(z_ptr, row, NET, LAYER)
    h, y = (), ()
    if SPEC.layer_norm:
        for p in tl.static_range(len(NET.layers[LAYER].parts)):
            y = y + (x[p] * layer[1][p] + layer[2][p],)
            h = h + (activate(y[p], SPEC),)
        return h, y, x, tl.load(moments_ptr + row * 2 + 1)
    else:
        return activate_rows(add_bias(x, layer, NET, LAYER), row, row, layer, SPEC, NET, LAYER)


@triton.jit
def store_moments(moments_ptr, row, mean, inv_std, SPEC: tl.constexpr):
    """Store mean and 1 / std of rows, if the network has layer normalization."""
    if SPEC.layer_norm:
        tl.store(moments_ptr + row * 2, mean)
        tl.store(moments_ptr + row * 2 + 1, inv_std)


@triton.jit
def store_hidden_layer(
    accumulators,
    z_desc,
    hidden_desc,
    moments_ptr,
    params_ptr,
    output_ptr,
    first_row,
    tower,
    row,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    SAVE: tl.constexpr,
    OUTPUT: tl.constexpr,
):
    """Finish a hidden layer's product: add the bias, apply layer normalization and activation, and store what SAVE and
    OUTPUT ask for.

    `accumulators`: the product as rows, for the consecutive rows `row` from `first_row`. Others as
    `layers.hidden_layer`'s.
    """
    PARTS: tl.constexpr = NET.layers[LAYER].parts
    WIDTH: tl.constexpr = NET.layers[LAYER].width
    # A layer's vectors take many registers, so each part is loaded where it is used.
    z = ()
    for p in tl.static_range(len(PARTS)):
        z = z + (accumulators[p] + load_part(params_ptr, NET.layers[LAYER].bias, tower, p, NET, LAYER),)
    mean, inv_std = mean_and_inv_std(z, SPEC, NET, LAYER)
    if SAVE:
        store_moments(moments_ptr, row, mean, inv_std, SPEC)
    h = ()
    for p in tl.static_range(len(PARTS)):
        gain, shift = mean, mean
        if SPEC.layer_norm:
            gain = load_part(params_ptr, NET.layers[LAYER].gain, tower, p, NET, LAYER)
            shift = load_part(params_ptr, NET.layers[LAYER].shift, tower, p, NET, LAYER)
        h_part, _y, x_hat = activate_part(z[p], mean, inv_std, gain, shift, p, SPEC, NET, LAYER)
        if SAVE and (SPEC.saves_z or len(NET.layers) - 1 == LAYER):
            z_desc.store(
                [first_row, NET.layers[LAYER].starts[p]], operand(x_hat if SPEC.layer_norm else accumulators[p], SPEC)
            )
        if OUTPUT == "hidden":
            hidden_desc.store([first_row, NET.layers[LAYER].starts[p]], operand(h_part, SPEC))
        else:
            h = h + (h_part,)
    if OUTPUT == "value" or OUTPUT == "policy":
        OUTPUTS: tl.constexpr = NET.outputs
        for k in tl.static_range(OUTPUTS):
            out = row_dot(h, load_vector(params_ptr, NET.head_weight + k * WIDTH, tower, NET, LAYER), NET, LAYER)
            tl.store(output_ptr + row * OUTPUTS + k, out + tl.load(params_ptr + NET.head_bias + tower * OUTPUTS + k))


# BACKWARD


@triton.jit
def layer_backward(grad_h, saved, layer, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return the gradients in pre-activations z and in y, as tuples of parts, from that in activations, `grad_h`;
    `saved` is as `activate_rows` returns it.
    """
    PARTS: tl.constexpr = NET.layers[LAYER].parts
    h, y, x_hat, inv_std = saved
    grad_y = ()
    for p in tl.static_range(len(PARTS)):
        # f'(y) by h or y, as `saved_activation` chooses, without rounding to an operand
        if SPEC.activation == "tanh" or SPEC.activation == "relu":
            grad_y = grad_y + (grad_h[p] * activation_gradient(h[p], SPEC),)
        else:
            grad_y = grad_y + (grad_h[p] * activation_gradient(y[p], SPEC),)
    if SPEC.layer_norm:
        g = ()
        g_x_hat = ()
        for p in tl.static_range(len(PARTS)):
            g = g + (grad_y[p] * layer[1][p],)
            g_x_hat = g_x_hat + (g[p] * x_hat[p],)
        # dL / dz = (g - mean(g) - x_hat mean(g x_hat)) / std, g = dL / dx_hat
        scale = inv_std / NET.layers[LAYER].width
        mean, projection = row_sum(g, NET, LAYER) * scale, row_sum(g_x_hat, NET, LAYER) * scale
        grad_z = ()
        for p in tl.static_range(len(PARTS)):
            grad_z = grad_z + (g[p] * inv_std[:, None] - mean[:, None] - x_hat[p] * projection[:, None],)
        return grad_z, grad_y
    else:
        return grad_y, grad_y


# SUMS OVER ROWS


@triton.jit
def zero_rows(BLOCK_M: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return BLOCK_M rows of zeros, a tuple of parts (BLOCK_M, part)."""
    x = ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        x = x + (zeros(BLOCK_M, NET.layers[LAYER].parts[p]),)
    return x


@triton.jit
def add_rows(total, x, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return total + x, elementwise; both are tuples of parts."""
    result = ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        result = result + (total[p] + x[p],)
    return result


@triton.jit
def add_product_rows(total, x, y, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return total + x y, elementwise; all are tuples of parts."""
    result = ()
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        result = result + (total[p] + x[p] * y[p],)
    return result


@triton.jit
def zero_layer_sums(BLOCK_M: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return accumulators of the gradients of a layer's bias, gain and shift at zero: three times BLOCK_M rows, which
    `store_layer_sums` adds up.
    """
    zero = zero_rows(BLOCK_M, NET, LAYER)
    return zero, zero, zero


@triton.jit
def add_layer_sums(sums, grad_z, grad_y, saved, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Return the accumulators of the gradients of bias, gain and shift with those of a tile added: grad_z, grad_y x_hat
    and grad_y. `saved` is as `load_activations` returns it; gain and shift are left alone without layer normalization.
    """
    grad_bias, grad_gain, grad_shift = sums
    grad_bias = add_rows(grad_bias, grad_z, NET, LAYER)
    if SPEC.layer_norm:
        grad_gain = add_product_rows(grad_gain, grad_y, saved[2], NET, LAYER)
        grad_shift = add_rows(grad_shift, grad_y, NET, LAYER)
    return grad_bias, grad_gain, grad_shift


@triton.jit
def store_column_sum(partials_ptr, program, tower, vector, x, NET: tl.constexpr, LAYER: tl.constexpr):
    """Store the sum over the rows of x as vector number `vector` of the layer, in a program's row of partial sums."""
    offset = ((program * NET.towers + tower) * NET.vectors + NET.layers[LAYER].partial + vector) * NET.pad
    for p in tl.static_range(len(NET.layers[LAYER].parts)):
        tl.store(
            partials_ptr + offset + NET.layers[LAYER].starts[p] + tl.arange(0, NET.layers[LAYER].parts[p]),
            tl.sum(x[p], axis=0),
        )


@triton.jit
def store_critic_terms(terms_ptr, program, tower, loss, absolute, q, NET: tl.constexpr):
    """Store a program's sums over its samples of a critic's loss, |Q - y| and Q, each (rows), into `terms_ptr`
    (programs, towers, 3).
    """
    offset = terms_ptr + (program * NET.towers + tower) * 3
    tl.store(offset, tl.sum(loss, axis=0))
    tl.store(offset + 1, tl.sum(absolute, axis=0))
    tl.store(offset + 2, tl.sum(q, axis=0))


@triton.jit
def store_layer_sums(partials_ptr, program, tower, sums, SPEC: tl.constexpr, NET: tl.constexpr, LAYER: tl.constexpr):
    """Store the sums over rows of the accumulated gradients of bias, gain and shift (`add_layer_sums`) in a program's
    row of partial sums.
    """
    grad_bias, grad_gain, grad_shift = sums
    store_column_sum(partials_ptr, program, tower, 0, grad_bias, NET, LAYER)
    if SPEC.layer_norm:
        store_column_sum(partials_ptr, program, tower, 1, grad_gain, NET, LAYER)
        store_column_sum(partials_ptr, program, tower, 2, grad_shift, NET, LAYER)
