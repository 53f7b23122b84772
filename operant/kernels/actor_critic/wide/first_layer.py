"""Triton kernels of a first layer of few input columns (`spec.own_first_layer`) of wide networks, forward and, without
layer normalization, backward. Its pre-activations are computed again rather than saved. Rows as in `parts`.

Common parameters: `x_ptr` (rows, columns): inputs; `first_ptr` (towers, width, columns): the first weight with padded
columns; `params_ptr` (P): the network's parameters; `SPEC`: `WideSpec`; `NET`: `WideNet`. Parameters named `*_desc`
are descriptors of matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.wide import parts as wide
from operant.kernels.ops.activation import activate, activation_gradient
from operant.kernels.ops.linear import operand, zeros

STAGES = tl.constexpr(3)
"""Tiles in flight: loaded while another is worked on."""

# FORWARD


@triton.jit
def _load_units(vector_ptr, unit, NET: tl.constexpr, BLOCK_N: tl.constexpr):
    """Load the units `unit` of a vector of the first layer at `vector_ptr`, (1, BLOCK_N)."""
    if NET.layers[0].width % BLOCK_N == 0:
        return tl.load(vector_ptr + unit)[None, :]
    else:
        return tl.load(vector_ptr + unit, mask=unit < NET.layers[0].width, other=0.0)[None, :]


@triton.jit
def _first_product(x, first_ptr, params_ptr, tower, unit, SPEC: tl.constexpr, NET: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return W x and W x + b of the first layer's units `unit`, (rows, BLOCK_N) each; zero beyond the layer's width.
    `first_ptr`: its packed weight.
    """
    column = tl.arange(0, SPEC.columns)
    weight_ptr = first_ptr + (tower * NET.layers[0].width + unit)[None, :] * SPEC.columns + column[:, None]
    if NET.layers[0].width % BLOCK_N == 0:
        weight = tl.load(weight_ptr)
    else:
        weight = tl.load(weight_ptr, mask=(unit < NET.layers[0].width)[None, :] & (column >= 0)[:, None], other=0.0)
    z = wide.dot(x, weight, SPEC)
    bias_ptr = params_ptr + NET.layers[0].bias + tower * NET.layers[0].width
    return z, z + _load_units(bias_ptr, unit, NET, BLOCK_N)


@triton.jit
def _welford(mean, squares, z, inv_count):
    """Return mean and sum of squared deviations with one more value z, elementwise (Welford's algorithm); `inv_count`:
    1 / number of values, z included.
    """
    deviation = z - mean
    new_mean = mean + deviation * inv_count
    return new_mean, squares + deviation * (z - new_mean)


@triton.jit
def _combine_moments(mean, squares, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return mean and 1 / std of each row, (rows), from Welford's moments of every BLOCK_N-th unit, (rows, BLOCK_N)
    (Chan, Golub & LeVeque 1983): no large values are subtracted from each other.
    """
    count = WIDTH // BLOCK_N + tl.where(tl.arange(0, BLOCK_N) < WIDTH % BLOCK_N, 1.0, 0.0)[None, :]
    row_mean = tl.sum(mean * count, axis=1) / WIDTH
    deviation = mean - row_mean[:, None]
    return row_mean, 1.0 / tl.sqrt(tl.sum(squares + deviation * deviation * count, axis=1) / WIDTH + 1e-5)


@triton.jit(do_not_specialize=["rows"])
def first_layer(
    x_ptr,
    first_ptr,
    z_ptr,
    hidden_ptr,
    moments_ptr,
    params_ptr,
    rows,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    SAVE: tl.constexpr,
    SAVE_Z: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Compute the first hidden layer. Grid: (rows / BLOCK_M, towers).

    | parameter   | shape                 | meaning                                                  |
    |-------------|-----------------------|----------------------------------------------------------|
    | z_ptr       | (towers, rows, width) | written with SAVE_Z: z without bias, or x_hat            |
    | hidden_ptr  | (towers, rows, width) | written: activations                                     |
    | moments_ptr | (towers, rows, 2)     | written with SAVE and layer normalization: mean, 1 / std |

    With layer normalization its short product is computed twice, BLOCK_N units at a time: for the moments, which need
    all units, and for the activations.
    """
    tower, row = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    WIDTH: tl.constexpr = NET.layers[0].width
    x = tl.load(x_ptr + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :])
    tower_row = tower * rows + row
    mean, inv_std = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    if SPEC.layer_norm:
        means, squares = zeros(BLOCK_M, BLOCK_N), zeros(BLOCK_M, BLOCK_N)
        for k in tl.range(0, WIDTH, BLOCK_N, num_stages=STAGES):
            unit = k + tl.arange(0, BLOCK_N)
            _z, z = _first_product(x, first_ptr, params_ptr, tower, unit, SPEC, NET, BLOCK_N)
            if WIDTH % BLOCK_N > 0:
                z = tl.where((unit < WIDTH)[None, :], z, means)  # leaves the moments unchanged
            means, squares = _welford(means, squares, z, BLOCK_N * 1.0 / (k + BLOCK_N))
        mean, inv_std = _combine_moments(means, squares, WIDTH, BLOCK_N)
        if SAVE:
            wide.store_moments(moments_ptr, tower_row, mean, inv_std, SPEC)
    for k in tl.range(0, WIDTH, BLOCK_N, num_stages=STAGES):
        unit = k + tl.arange(0, BLOCK_N)
        saved, y = _first_product(x, first_ptr, params_ptr, tower, unit, SPEC, NET, BLOCK_N)
        if SPEC.layer_norm:
            saved = (y - mean[:, None]) * inv_std[:, None]
            vector_ptr = params_ptr + tower * WIDTH
            y = saved * _load_units(vector_ptr + NET.layers[0].gain, unit, NET, BLOCK_N) + _load_units(
                vector_ptr + NET.layers[0].shift, unit, NET, BLOCK_N
            )
        offset, mask = tower_row[:, None] * WIDTH + unit[None, :], (unit < WIDTH)[None, :] & (row >= 0)[:, None]
        if WIDTH % BLOCK_N == 0:
            mask = None
        if SAVE_Z:
            tl.store(z_ptr + offset, operand(saved, SPEC), mask=mask)
        tl.store(hidden_ptr + offset, operand(activate(y, SPEC), SPEC), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def first_layers(
    x_ptr,
    first_desc,
    weight_desc,
    z_desc,
    first_hidden_desc,
    hidden_desc,
    moments_ptr,
    params_ptr,
    rows,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    SAVE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute the first two hidden layers. Grid: (rows / BLOCK_M, towers), a tile of whole rows a program. The first
    layer's activations stay in the program as the second layer's operand.

    | parameter         | shape                     | meaning                                                       |
    |-------------------|---------------------------|---------------------------------------------------------------|
    | first_desc        | (towers x width, columns) | the first weight                                              |
    | weight_desc       | (towers x width, inputs)  | the second weight                                             |
    | z_desc            | (towers x rows, width)    | written with SAVE: the second layer's z, or x_hat             |
    | first_hidden_desc | (towers x rows, inputs)   | written with SAVE: the first layer's activations              |
    | hidden_desc       | (towers x rows, width)    | written: the second layer's activations                       |
    | moments_ptr       | (towers, rows, 2)         | written with SAVE and layer normalization: the second layer's |
    """
    PARTS: tl.constexpr = NET.layers[1].parts
    WIDTH: tl.constexpr = NET.layers[0].width
    INPUTS: tl.constexpr = SPEC.columns
    tower = tl.program_id(1)
    first_row = tower * rows + tl.program_id(0) * BLOCK_M
    row, tower_row, vector_ptr = (
        tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M),
        first_row + tl.arange(0, BLOCK_M),
        params_ptr + tower * WIDTH,
    )
    x = tl.load(x_ptr + row[:, None] * INPUTS + tl.arange(0, INPUTS)[None, :])
    mean, inv_std = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    if SPEC.layer_norm:
        means, squares = zeros(BLOCK_M, BLOCK_K), zeros(BLOCK_M, BLOCK_K)
        for k in tl.range(0, WIDTH, BLOCK_K, num_stages=STAGES):
            z = (
                wide.dot(x, first_desc.load([tower * WIDTH + k, 0]).T, SPEC)
                + tl.load(vector_ptr + NET.layers[0].bias + k + tl.arange(0, BLOCK_K))[None, :]
            )
            means, squares = _welford(means, squares, z, BLOCK_K * 1.0 / (k + BLOCK_K))
        mean, inv_std = _combine_moments(means, squares, WIDTH, BLOCK_K)
    accumulators = wide.zero_rows(BLOCK_M, NET, 1)
    for k in tl.range(0, WIDTH, BLOCK_K, num_stages=STAGES):
        unit = k + tl.arange(0, BLOCK_K)
        y = (
            wide.dot(x, first_desc.load([tower * WIDTH + k, 0]).T, SPEC)
            + tl.load(vector_ptr + NET.layers[0].bias + unit)[None, :]
        )
        if SPEC.layer_norm:
            x_hat = (y - mean[:, None]) * inv_std[:, None]
            y = (
                x_hat * tl.load(vector_ptr + NET.layers[0].gain + unit)[None, :]
                + tl.load(vector_ptr + NET.layers[0].shift + unit)[None, :]
            )
        h = operand(activate(y, SPEC), SPEC)
        if SAVE:
            first_hidden_desc.store([first_row, k], h)
        updated = ()
        for p in tl.static_range(len(PARTS)):
            w = weight_desc.load([tower * NET.layers[1].width + NET.layers[1].starts[p], k])
            updated = updated + (
                tl.dot(h, w.T, accumulators[p], input_precision="ieee" if SPEC.precision == "ieee" else "tf32"),
            )
        accumulators = updated
    wide.store_hidden_layer(
        accumulators,
        z_desc,
        hidden_desc,
        moments_ptr,
        params_ptr,
        params_ptr,
        first_row,
        tower,
        tower_row,
        SPEC,
        NET,
        1,
        SAVE,
        "hidden",
    )


# BACKWARD


@triton.jit
def _first_pre_activations(x_ptr, first_ptr, params_ptr, tower, row, unit, SPEC: tl.constexpr, NET: tl.constexpr):
    """Return pre-activations z = W x + b of the first layer's units `unit` at samples `row`, (rows, units)."""
    column = tl.arange(0, SPEC.columns)
    x = tl.load(x_ptr + row[:, None] * SPEC.columns + column[None, :])
    weight = tl.load(first_ptr + (tower * NET.layers[0].width + unit)[None, :] * SPEC.columns + column[:, None])
    return (
        wide.dot(x, weight, SPEC)
        + tl.load(params_ptr + NET.layers[0].bias + tower * NET.layers[0].width + unit)[None, :]
    )


@triton.jit
def first_backward(
    grad_desc,
    weight_desc,
    x_ptr,
    first_ptr,
    params_ptr,
    grad_z_desc,
    shares_ptr,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    TRAIN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILES_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Backward pass from the second layer's pre-activations to the first layer's, or on to the actions. Grid: (tiles of
    units, B / BLOCK_M, towers), TILES_N x BLOCK_N units a program.

    | parameter   | shape                       | meaning                                                             |
    |-------------|-----------------------------|---------------------------------------------------------------------|
    | grad_desc   | (towers x B, second width)  | descriptor: gradient in the second layer's pre-activations          |
    | weight_desc | (towers x second width, w.) | the second weight                                                   |
    | grad_z_desc | (towers x B, first width)   | descriptor, written with TRAIN: gradient in the first layer's       |
    | shares_ptr  | (towers, B, tiles, A)       | written without TRAIN: each tile's share of the gradient in actions |
    """
    WIDTH: tl.constexpr = NET.layers[1].width
    INPUTS: tl.constexpr = NET.layers[0].width
    ACTIONS: tl.constexpr = SPEC.action
    tower, tile, unit_tile = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    row, first_row = tile * BLOCK_M + tl.arange(0, BLOCK_M), tower * SPEC.batch + tile * BLOCK_M
    first_unit = unit_tile * TILES_N * BLOCK_N
    accumulators = ()
    for _p in tl.static_range(TILES_N):
        accumulators = accumulators + (zeros(BLOCK_M, BLOCK_N),)
    for k in tl.range(0, WIDTH, BLOCK_K, num_stages=STAGES):
        left, updated = grad_desc.load([first_row, k]), ()
        for p in tl.static_range(TILES_N):
            right = weight_desc.load([tower * WIDTH + k, first_unit + p * BLOCK_N])
            updated = updated + (
                tl.dot(left, right, accumulators[p], input_precision="ieee" if SPEC.precision == "ieee" else "tf32"),
            )
        accumulators = updated
    grad_action = ()
    for _k in tl.static_range(ACTIONS):
        grad_action = grad_action + (tl.zeros((BLOCK_M,), tl.float32),)
    for p in tl.static_range(TILES_N):
        unit = first_unit + p * BLOCK_N + tl.arange(0, BLOCK_N)
        z = _first_pre_activations(x_ptr, first_ptr, params_ptr, tower, row, unit, SPEC, NET)
        if SPEC.activation == "tanh" or SPEC.activation == "relu":
            grad_z = accumulators[p] * activation_gradient(activate(z, SPEC), SPEC)
        else:
            grad_z = accumulators[p] * activation_gradient(z, SPEC)
        if TRAIN:
            grad_z_desc.store([first_row, first_unit + p * BLOCK_N], operand(grad_z, SPEC))
        else:
            updated = ()
            for k in tl.static_range(ACTIONS):
                weight = tl.load(first_ptr + (tower * INPUTS + unit) * SPEC.columns + SPEC.observation + k)
                updated = updated + (grad_action[k] + tl.sum(grad_z * weight.to(tl.float32)[None, :], axis=1),)
            grad_action = updated
    if not TRAIN:
        share_ptr = shares_ptr + ((tower * SPEC.batch + row) * tl.num_programs(0) + unit_tile) * ACTIONS
        for k in tl.static_range(ACTIONS):
            tl.store(share_ptr + k, grad_action[k])


@triton.jit
def reduce_action_gradient(shares_ptr, q_gradient_ptr, SPEC: tl.constexpr, TILES: tl.constexpr, BLOCK_M: tl.constexpr):
    """Sum the shares (towers, B, TILES, A) of `first_backward` to the gradient in actions, `q_gradient_ptr` (towers, B,
    columns). Grid: (B / BLOCK_M, towers).
    """
    row = tl.program_id(1) * SPEC.batch + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ACTIONS: tl.constexpr = SPEC.action
    for k in tl.static_range(ACTIONS):
        total = tl.load(shares_ptr + row * TILES * ACTIONS + k)
        for tile in tl.static_range(1, TILES):
            total += tl.load(shares_ptr + (row * TILES + tile) * ACTIONS + k)
        tl.store(q_gradient_ptr + row * SPEC.columns + SPEC.observation + k, total)


@triton.jit
def first_gradient(
    grad_z_desc,
    x_ptr,
    partials_ptr,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute the gradient of the first weight, g^T x, of each part of the batch; with WIDTH_PAD > columns a column of
    ones next to x gives the bias. Grid: (width / BLOCK_N, parts, towers).

    | parameter    | shape                             | meaning                                                   |
    |--------------|-----------------------------------|-----------------------------------------------------------|
    | grad_z_desc  | (towers x B, width)               | descriptor: gradient in the first layer's pre-activations |
    | partials_ptr | (towers, parts, width, WIDTH_PAD) | written                                                   |
    """
    unit_tile, part, tower = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    PART: tl.constexpr = SPEC.batch // SPEC.parts
    accumulator, column = zeros(BLOCK_N, WIDTH_PAD), tl.arange(0, WIDTH_PAD)[None, :]
    for start in tl.range(part * PART, (part + 1) * PART, BLOCK_M, num_stages=STAGES):
        row = start + tl.arange(0, BLOCK_M)
        x = tl.load(
            x_ptr + row[:, None] * SPEC.columns + column, mask=(column < SPEC.columns) & (row >= 0)[:, None], other=0.0
        ).to(tl.float32)
        x = operand(tl.where(column == SPEC.columns, 1.0, x), SPEC)
        grad_z = grad_z_desc.load([tower * SPEC.batch + start, unit_tile * BLOCK_N])
        accumulator = tl.dot(grad_z.T, x, accumulator, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    unit = unit_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(
        partials_ptr + ((tower * SPEC.parts + part) * NET.layers[0].width + unit)[:, None] * WIDTH_PAD + column,
        accumulator,
    )


@triton.jit
def first_reduce(
    partials_ptr, gradient_ptr, SPEC: tl.constexpr, NET: tl.constexpr, WIDTH_PAD: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Sum the partial gradients of `first_gradient` over the parts, into the flat gradient (P). Grid: (width / BLOCK_N,
    towers).
    """
    tower, unit, column = tl.program_id(1), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, WIDTH_PAD)
    WIDTH: tl.constexpr = NET.layers[0].width
    PARTS: tl.constexpr = SPEC.parts
    total = zeros(BLOCK_N, WIDTH_PAD)
    for part in tl.static_range(PARTS):
        total += tl.load(partials_ptr + ((tower * PARTS + part) * WIDTH + unit)[:, None] * WIDTH_PAD + column[None, :])
    tower_unit = tower * WIDTH + unit
    if SPEC.columns < WIDTH_PAD:
        tl.store(
            gradient_ptr + NET.layers[0].bias + tower_unit,
            tl.sum(tl.where((column == SPEC.columns)[None, :], total, 0.0), axis=1),
        )
    weight_ptr = gradient_ptr + NET.layers[0].weight + tower_unit[:, None] * NET.layers[0].inputs + column[None, :]
    tl.store(weight_ptr, total, mask=(column < NET.layers[0].inputs)[None, :] & (unit >= 0)[:, None])
