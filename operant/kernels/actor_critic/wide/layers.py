"""Triton kernels of the hidden layers of wide networks. Each passes once over its inputs and outputs; rows as in
`parts`. Products that these kernels do not contain are the library's.

Common constants: SPEC: `WideSpec`; NET: `WideNet`; LAYER: index of the layer; BLOCK_M: samples of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.wide import parts as wide
from operant.kernels.ops.linear import operand

STAGES = tl.constexpr(3)
"""Tiles in flight: loaded while another is worked on."""


@triton.jit(do_not_specialize=["rows"])
def activate_layer(
    z_ptr,
    hidden_ptr,
    moments_ptr,
    params_ptr,
    rows,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Apply bias, layer normalization and activation to a hidden layer's product, which the library computed. Grid:
    (programs, towers); each program takes every programs-th tile.

    | parameter   | shape                 | meaning                                                          |
    |-------------|-----------------------|------------------------------------------------------------------|
    | z_ptr       | (towers, rows, width) | product without bias; with layer normalization replaced by x_hat |
    | hidden_ptr  | (towers, rows, width) | written: activations                                             |
    | moments_ptr | (towers, rows, 2)     | written with layer normalization: mean, 1 / std                  |
    | params_ptr  | (P)                   | the network's parameters                                         |
    """
    tower = tl.program_id(1)
    layer = wide.load_layer(params_ptr, tower, SPEC, NET, LAYER)
    for first in tl.range(tl.program_id(0) * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M, num_stages=STAGES):
        row = tower * rows + first + tl.arange(0, BLOCK_M)
        z = wide.add_bias(wide.load_rows(z_ptr, row, NET, LAYER), layer, NET, LAYER)
        mean, inv_std = wide.mean_and_inv_std(z, SPEC, NET, LAYER)
        h, _y, x_hat, _inv_std = wide.activate_rows(z, mean, inv_std, layer, SPEC, NET, LAYER)
        if SPEC.layer_norm:
            wide.store_moments(moments_ptr, row, mean, inv_std, SPEC)
            wide.store_rows(z_ptr, row, x_hat, SPEC, NET, LAYER)
        wide.store_rows(hidden_ptr, row, h, SPEC, NET, LAYER)


@triton.jit(do_not_specialize=["rows"])
def hidden_layer(
    inputs_desc,
    weight_desc,
    z_desc,
    hidden_desc,
    moments_ptr,
    params_ptr,
    output_ptr,
    rows,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    SAVE: tl.constexpr,
    OUTPUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute a hidden layer's activations: product, bias, layer normalization, activation. Grid: (rows / BLOCK_M,
    towers), a tile of whole rows a program.

    | parameter   | shape                    | meaning                                                     |
    |-------------|--------------------------|-------------------------------------------------------------|
    | inputs_desc | (towers x rows, inputs)  | descriptor of the previous layer's activations              |
    | weight_desc | (towers x width, inputs) | descriptor of the weight                                    |
    | z_desc      | (towers x rows, width)   | descriptor, written with SAVE: z without bias, or x_hat     |
    | hidden_desc | (towers x rows, width)   | descriptor, written with OUTPUT "hidden": activations       |
    | moments_ptr | (towers, rows, 2)        | written with SAVE and layer normalization: mean, 1 / std    |
    | params_ptr  | (P)                      | the network's parameters                                    |
    | output_ptr  | (towers, rows, outputs)  | written with OUTPUT "value" or "policy": the head's outputs |

    OUTPUT "": neither activations nor outputs.
    """
    PARTS: tl.constexpr = NET.layers[LAYER].parts
    WIDTH: tl.constexpr = NET.layers[LAYER].width
    tower = tl.program_id(1)
    first = tower * rows + tl.program_id(0) * BLOCK_M
    accumulators = wide.zero_rows(BLOCK_M, NET, LAYER)
    for k in tl.range(0, NET.layers[LAYER].inputs, BLOCK_K, num_stages=STAGES):
        h = inputs_desc.load([first, k])
        updated = ()
        for p in tl.static_range(len(PARTS)):
            w = weight_desc.load([tower * WIDTH + NET.layers[LAYER].starts[p], k])
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
        output_ptr,
        first,
        tower,
        first + tl.arange(0, BLOCK_M),
        SPEC,
        NET,
        LAYER,
        SAVE,
        OUTPUT,
    )


@triton.jit(do_not_specialize=["rows", "first_row"])
def backward_layer(
    grad_ptr,
    z_ptr,
    moments_ptr,
    hidden_ptr,
    params_ptr,
    partials_ptr,
    rows,
    first_row,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    TRAIN: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Replace the gradient in a hidden layer's activations by that in its pre-activations. Grid: (programs, towers);
    each program takes every programs-th tile.

    | parameter    | shape                 | meaning                                                                |
    |--------------|-----------------------|------------------------------------------------------------------------|
    | grad_ptr     | (towers, B, width)    | gradient in activations, replaced by that in pre-activations           |
    | z_ptr        | (towers, rows, width) | saved by the forward pass; B rows from `first_row` on                  |
    | moments_ptr  | (towers, rows, 2)     | mean and 1 / std of those rows                                         |
    | hidden_ptr   | (towers, rows, width) | activations of those rows                                              |
    | params_ptr   | (P)                   | the network's parameters                                               |
    | partials_ptr |                       | written with TRAIN: partial sums of the gradients of bias, gain, shift |
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    layer = wide.load_layer(params_ptr, tower, SPEC, NET, LAYER)
    grad_bias, grad_gain, grad_shift = wide.zero_layer_sums(BLOCK_M, NET, LAYER)
    for start in tl.range(program * BLOCK_M, SPEC.batch, tl.num_programs(0) * BLOCK_M, num_stages=STAGES):
        row = start + tl.arange(0, BLOCK_M)
        grad_h = wide.load_rows(grad_ptr, tower * SPEC.batch + row, NET, LAYER)
        if SPEC.saves_z:
            saved = wide.load_activations(z_ptr, moments_ptr, tower * rows + first_row + row, layer, SPEC, NET, LAYER)
            grad_z, grad_y = wide.layer_backward(grad_h, saved, layer, SPEC, NET, LAYER)
            if TRAIN and SPEC.layer_norm:
                grad_gain = wide.add_product_rows(grad_gain, grad_y, saved[2], NET, LAYER)
                grad_shift = wide.add_rows(grad_shift, grad_y, NET, LAYER)
        else:
            h = wide.load_rows(hidden_ptr, tower * rows + first_row + row, NET, LAYER)
            grad_z, _grad_y = wide.layer_backward(grad_h, (h, h, h, row), layer, SPEC, NET, LAYER)
        wide.store_rows(grad_ptr, tower * SPEC.batch + row, grad_z, SPEC, NET, LAYER)
        if TRAIN:
            grad_bias = wide.add_rows(grad_bias, grad_z, NET, LAYER)
    if TRAIN:
        wide.store_layer_sums(partials_ptr, program, tower, (grad_bias, grad_gain, grad_shift), SPEC, NET, LAYER)


@triton.jit
def input_gradient(
    grad_z_ptr,
    weight_ptr,
    grad_input_ptr,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute dL / dh = dL / dz W of a hidden layer's inputs h. Grid: (B / BLOCK_M x inputs / BLOCK_N, towers).

    | parameter      | shape                   | meaning                     |
    |----------------|-------------------------|-----------------------------|
    | grad_z_ptr     | (towers, B, width)      | gradient in pre-activations |
    | weight_ptr     | (towers, width, inputs) | the layer's weight          |
    | grad_input_ptr | (towers, B, inputs)     | written                     |
    """
    WIDTH: tl.constexpr = NET.layers[LAYER].width
    INPUTS: tl.constexpr = NET.layers[LAYER].inputs
    tower, tile = tl.program_id(1), tl.program_id(0)
    row = tower * SPEC.batch + tile // (INPUTS // BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile % (INPUTS // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    unit = tl.arange(0, BLOCK_K)
    left_ptr, right_ptr = (
        grad_z_ptr + row[:, None] * WIDTH + unit[None, :],
        weight_ptr + (tower * WIDTH + unit)[:, None] * INPUTS + column[None, :],
    )
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, WIDTH, BLOCK_K, num_stages=4):
        accumulator = tl.dot(
            tl.load(left_ptr + k),
            tl.load(right_ptr + k * INPUTS),
            accumulator,
            input_precision="ieee" if SPEC.precision == "ieee" else "tf32",
        )
    tl.store(grad_input_ptr + row[:, None] * INPUTS + column[None, :], operand(accumulator, SPEC))


@triton.jit
def q_values(hidden_ptr, params_ptr, q_ptr, SPEC: tl.constexpr, LAYER: tl.constexpr, BLOCK_M: tl.constexpr):
    """Write Q of each critic from its last hidden activations. Grid: (B / BLOCK_M, towers).

    | parameter  | shape              | meaning                 |
    |------------|--------------------|-------------------------|
    | hidden_ptr | (towers, B, width) | activations             |
    | params_ptr | (P)                | the critics' parameters |
    | q_ptr      | (towers, B)        | written                 |
    """
    tower, row = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    NET: tl.constexpr = SPEC.critic
    head = wide.load_vector(params_ptr, NET.head_weight, tower, NET, LAYER)
    h = wide.load_rows(hidden_ptr, tower * SPEC.batch + row, NET, LAYER)
    tl.store(
        q_ptr + tower * SPEC.batch + row,
        wide.row_dot(h, head, NET, LAYER) + tl.load(params_ptr + NET.head_bias + tower),
    )


@triton.jit
def reduce(
    partials_ptr,
    gradient_ptr,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    FIRST_PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sum partial sums to the gradients of all vectors (biases, gains, shifts, the output layer). Grid: (vectors,
    towers, cdiv(pad, BLOCK_N)).

    | parameter    | shape                            | meaning                                                |
    |--------------|----------------------------------|--------------------------------------------------------|
    | partials_ptr | (programs, towers, vectors, pad) | partial sums; of the first layer FIRST_PROGRAMS rows   |
    | gradient_ptr | (P)                              | written; not of the first layer if FIRST_PROGRAMS is 0 |
    """
    vector, tower = tl.program_id(0), tl.program_id(1)
    unit = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Length of the vector.
    size = 0
    for k in tl.static_range(len(NET.layers)):
        index = vector - NET.layers[k].partial
        used = (
            ((index >= 0) & (index < NET.layers[k].vectors))
            if SPEC.layer_norm
            else ((index == 0) | ((index > 2) & (index < NET.layers[k].vectors)))
        )
        size = tl.where(used, max(NET.layers[k].width, NET.outputs), size)
    programs = tl.where(vector < NET.layers[1].partial, FIRST_PROGRAMS, NET.programs)
    mask = (unit < size) & (programs > 0)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, programs, BLOCK_M):
        program = start + tl.arange(0, BLOCK_M)
        offset = (program * NET.towers + tower) * NET.vectors + vector
        accumulator += tl.load(
            partials_ptr + offset[:, None] * NET.pad + unit[None, :],
            mask=mask[None, :] & (program < programs)[:, None],
            other=0.0,
        )
    total = tl.sum(accumulator, axis=0)
    for k in tl.static_range(len(NET.layers)):
        index = vector - NET.layers[k].partial
        unit_mask = (unit < NET.layers[k].width) & (programs > 0)
        vector_ptr = gradient_ptr + tower * NET.layers[k].width + unit
        if index == 0:
            tl.store(vector_ptr + NET.layers[k].bias, total, mask=unit_mask)
        if SPEC.layer_norm:
            if index == 1:
                tl.store(vector_ptr + NET.layers[k].gain, total, mask=unit_mask)
            if index == 2:
                tl.store(vector_ptr + NET.layers[k].shift, total, mask=unit_mask)
        if k == len(NET.layers) - 1:
            output = index - 3
            if (output >= 0) & (output < NET.outputs):
                tl.store(
                    gradient_ptr + NET.head_weight + (tower * NET.outputs + output) * NET.layers[k].width + unit,
                    total,
                    mask=unit_mask,
                )
            if output == NET.outputs:
                tl.store(gradient_ptr + NET.head_bias + tower * NET.outputs + unit, total, mask=unit < NET.outputs)
