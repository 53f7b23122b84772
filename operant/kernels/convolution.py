"""Q-network with one convolution, in Triton: 3 x 3 filters without padding, a dense layer, and a head.

Both layers are layer-normalized and followed by relu. Acting, bootstrap values and gradients.

Shapes: a board has `planes` byte planes of (down + 2) x (across + 2) cells. The convolution has down x across positions
and `filters` channels, and reads 9 planes = `taps` bytes per position. The dense layer has `hidden` units. Tiles are
sample-major; rows of a convolution are (position, sample). `SPEC` is a
`operant.kernels.dense.convolution.ConvolutionSpec`.

Forward: a program of the dense layer takes one row of positions and 32 samples, so that a small minibatch occupies many
multiprocessors. The head adds the rows' sums. Backward: a program takes a few positions and all samples. It recomputes
their convolution, holds their part of the dense weight's gradient, and writes partial sums of the filters' gradients.
The order of sums is fixed. `LOSS` is an `operant.kernels.dense.task.Loss`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.layer_norm import layer_norm_backward, standardize
from operant.kernels.ops.linear import add_product, product, rounded_operand, zeros
from operant.kernels.ops.reduce import REDUCE_COLUMNS, add_shards, sum_of_squares

BLOCK = tl.constexpr(32)
"""Neighbouring lanes of a block, and samples per program of the forward pass."""

# NETWORK


@triton.jit
def _relu_norm_backward(grad_h, y, x_hat, inv_std, gain, WIDTH: tl.constexpr):
    """Backward pass of h = relu(y), y = gain x_hat + bias: return the gradients in the normalized layer's input z and
    in y, (rows, WIDTH) each, from that in h.
    """
    grad_y = tl.where(y > 0.0, grad_h, 0.0)
    return layer_norm_backward(grad_y, x_hat, inv_std, gain[None, :], WIDTH, False), grad_y


@triton.jit
def _load_vector(params_ptr, offset, WIDTH: tl.constexpr):
    """Load WIDTH parameters from `offset` of the flat vector `params_ptr` on."""
    return tl.load(params_ptr + offset + tl.arange(0, WIDTH))


@triton.jit
def _load_filters(params_ptr, SPEC: tl.constexpr):
    """Load the filters' weight (taps_pad, filters) as a product's operand, divided by 255 since observations are bytes;
    and their biases, gains and norm biases, (filters) each.
    """
    tap, channel = tl.arange(0, SPEC.taps_pad)[:, None], tl.arange(0, SPEC.filters)[None, :]
    weight = tl.load(params_ptr + SPEC.filter_weight + channel * SPEC.taps + tap, mask=tap < SPEC.taps, other=0.0)
    return (
        rounded_operand(weight * (1.0 / 255.0), SPEC),
        _load_vector(params_ptr, SPEC.filter_bias, SPEC.filters),
        _load_vector(params_ptr, SPEC.filter_gain, SPEC.filters),
        _load_vector(params_ptr, SPEC.filter_norm_bias, SPEC.filters),
    )


@triton.jit
def _load_patches(observation_ptr, start, first_cell, cell, lanes, SPEC: tl.constexpr):
    """Load the bytes under the filters as a product's operand (rows, taps_pad). `start`: offset of each row's
    observation; `first_cell`, `cell`: cells of the board under a filter at the row's position.

    | parameter       | shape     | meaning                                                        |
    |-----------------|-----------|----------------------------------------------------------------|
    | observation_ptr | (., O, N) | bytes                                                          |
    | start           | (rows)    | offset of each row's observation                               |
    | first_cell      | scalar    | upper left cell of the program's first position                |
    | cell            | (rows)    | upper left cell of each row's position, relative to first_cell |
    """
    tap = tl.arange(0, SPEC.taps_pad)
    offset = tap // (3 * SPEC.planes) * (SPEC.width * SPEC.planes) + tap % (3 * SPEC.planes)
    corner = start + (first_cell + cell) * SPEC.planes * lanes
    corner = tl.max_contiguous(tl.multiple_of(corner, 32), 32)  # a block's lanes
    patches = tl.load(
        observation_ptr + corner[:, None] + offset[None, :] * lanes, mask=(tap < SPEC.taps)[None, :], other=0
    )
    return patches.to(tl.bfloat16) if SPEC.precision == "bf16" else patches.to(tl.float32)


@triton.jit
def _convolve(patches, filters, SPEC: tl.constexpr):
    """Convolve patches (rows, taps_pad) and normalize: return y = gain x_hat + bias (rows, filters), x_hat, and 1 / std
    (rows). `filters` is as `_load_filters` returns it.
    """
    weight, bias, gain, norm_bias = filters
    z = product(patches, weight, SPEC) + bias[None, :]
    x_hat, inv_std = standardize(z, None, SPEC.norm_epsilon, SPEC.filters, False)
    return x_hat * gain[None, :] + norm_bias[None, :], x_hat, inv_std


@triton.jit
def _by_sample(rows, POSITIONS: tl.constexpr, SAMPLES: tl.constexpr, SPEC: tl.constexpr):
    """Reorder a convolution's rows, (position sample, filters), to rows of samples, (sample, position filters)."""
    return tl.reshape(
        tl.permute(tl.reshape(rows, (POSITIONS, SAMPLES, SPEC.filters)), (1, 0, 2)), (SAMPLES, POSITIONS * SPEC.filters)
    )


@triton.jit
def _by_position(rows, POSITIONS: tl.constexpr, SAMPLES: tl.constexpr, SPEC: tl.constexpr):
    """Reorder rows of samples, (sample, position filters), to a convolution's rows, (position sample, filters)."""
    return tl.reshape(
        tl.permute(tl.reshape(rows, (SAMPLES, POSITIONS, SPEC.filters)), (1, 0, 2)), (POSITIONS * SAMPLES, SPEC.filters)
    )


@triton.jit
def _load_weight(params_ptr, first_position, POSITIONS: tl.constexpr, SPEC: tl.constexpr):
    """Load the part of the dense layer's weight that reads POSITIONS positions from `first_position` on, (hidden,
    POSITIONS filters), as a product's operand.
    """
    unit, column = tl.arange(0, SPEC.hidden)[:, None], tl.arange(0, POSITIONS * SPEC.filters)[None, :]
    weight_ptr = params_ptr + SPEC.weight + unit * SPEC.columns + first_position * SPEC.filters + column
    return rounded_operand(tl.load(weight_ptr), SPEC)


@triton.jit
def _dense_row(observation_ptr, params_ptr, filters, start, y, lanes, SPEC: tl.constexpr):
    """Return the contribution of row y of the convolution's positions to the dense layer's pre-activations, (BLOCK,
    hidden), for BLOCK samples that begin at `start`.
    """
    row = tl.arange(0, SPEC.across * BLOCK)
    patches = _load_patches(observation_ptr, start + row % BLOCK, y * SPEC.width, row // BLOCK, lanes, SPEC)
    h, _x_hat, _inv_std = _convolve(patches, filters, SPEC)
    h = _by_sample(tl.maximum(h, 0.0), SPEC.across, BLOCK, SPEC)
    h = rounded_operand(h, SPEC)
    return product(h, tl.trans(_load_weight(params_ptr, y * SPEC.across, SPEC.across, SPEC)), SPEC)


@triton.jit
def _load_head(params_ptr, SPEC: tl.constexpr):
    """Load the output layer's weight (out_pad, hidden) as a product's operand, and its bias (out_pad)."""
    row, unit = tl.arange(0, SPEC.out_pad), tl.arange(0, SPEC.hidden)
    mask = row < SPEC.head_rows
    weight = tl.load(
        params_ptr + SPEC.head_weight + row[:, None] * SPEC.hidden + unit[None, :], mask=mask[:, None], other=0.0
    )
    return rounded_operand(weight, SPEC), tl.load(params_ptr + SPEC.head_bias + row, mask=mask, other=0.0)


@triton.jit
def _q_values(z, params_ptr, head, SPEC: tl.constexpr):
    """Return Q (rows, out_pad), and the dense layer's saved tensors, from its pre-activations z (rows, hidden) without
    bias. `head` is as `_load_head` returns it.

    Returns Q, the dense layer's activations as an operand, y, x_hat, 1 / std (rows), and the gain (hidden).
    """
    gain = _load_vector(params_ptr, SPEC.gain, SPEC.hidden)
    norm_bias = _load_vector(params_ptr, SPEC.norm_bias, SPEC.hidden)
    z = z + _load_vector(params_ptr, SPEC.bias, SPEC.hidden)[None, :]
    x_hat, inv_std = standardize(z, None, SPEC.norm_epsilon, SPEC.hidden, False)
    y = x_hat * gain[None, :] + norm_bias[None, :]
    h = rounded_operand(tl.maximum(y, 0.0), SPEC)
    return product(h, tl.trans(head[0]), SPEC) + head[1][None, :], h, y, x_hat, inv_std, gain


@triton.jit
def _load_pre_activations(sums_ptr, index, samples, SPEC: tl.constexpr):
    """Return the dense layer's pre-activations without bias, (rows, hidden), of samples `index`: the sum over the rows
    of positions of `sums_ptr` (down, samples, hidden).
    """
    row_ptr = sums_ptr + index[:, None] * SPEC.hidden + tl.arange(0, SPEC.hidden)[None, :]
    z = tl.load(row_ptr)
    DOWN: tl.constexpr = SPEC.down
    for y in tl.static_range(1, DOWN):
        z += tl.load(row_ptr + y * samples * SPEC.hidden)
    return z


# KERNELS
#
# | parameter       | shape                   | meaning                                                          |
# |-----------------|-------------------------|------------------------------------------------------------------|
# | observation_ptr | (T + 1, O, N)           | bytes                                                            |
# | order_ptr       | (E, M)                  | block indices; `first` is the minibatch's first                  |
# | params_ptr      | (P)                     | parameters                                                       |
# | sums_ptr        | (down, samples, hidden) | contributions of rows of positions to the dense pre-activations  |
# | grad_z_ptr      | (samples, hidden)       | gradient in the dense pre-activations                            |
# | grad_ptr        | (P)                     | gradient                                                         |
# | squares_ptr     | (programs)              | sum of squares of the gradients that a program wrote             |
# | partial_ptr     | (rows, width)           | partial sums of all gradients but the dense weight's, loss terms |
# | samples         | int                     | of the minibatch                                                 |
# | lanes           | int                     | N                                                                |

# FORWARD


@triton.jit(do_not_specialize=["first"])
def forward_rows(
    observation_ptr,
    order_ptr,
    first,
    params_ptr,
    sums_ptr,
    samples,
    lanes,
    SPEC: tl.constexpr,
    ACT: tl.constexpr,
):
    """Write the contribution of one row of the convolution's positions to the dense layer's pre-activations, for BLOCK
    samples, to `sums_ptr`. Grid: (samples / BLOCK, down).

    Program 0 is block `first` + tile of the order; with ACT a tile of lanes at step `first`.
    """
    tile, y = tl.program_id(0), tl.program_id(1)
    if ACT:
        start = first * SPEC.observation * lanes + tile * BLOCK
    else:
        block = tl.load(order_ptr + first + tile)
        start = block * BLOCK + block // (lanes // BLOCK) * (SPEC.observation - 1) * lanes
    z = _dense_row(observation_ptr, params_ptr, _load_filters(params_ptr, SPEC), start, y, lanes, SPEC)
    row, unit = tl.arange(0, BLOCK)[:, None], tl.arange(0, SPEC.hidden)[None, :]
    tl.store(sums_ptr + (y * samples + tile * BLOCK + row) * SPEC.hidden + unit, z)


@triton.jit(do_not_specialize=["t"])
def act_on_rows(sums_ptr, acting, params_ptr, t, lanes, SPEC: tl.constexpr, SAMPLE: tl.constexpr, TILE: tl.constexpr):
    """Act at step t: Q-values from the sums of `forward_rows`, then SAMPLE. Grid: (N / TILE,)."""
    lane = tl.program_id(0) * TILE + tl.arange(0, TILE)
    out, _h, _y, _x_hat, _inv_std, _gain = _q_values(
        _load_pre_activations(sums_ptr, lane, lanes, SPEC), params_ptr, _load_head(params_ptr, SPEC), SPEC
    )
    SAMPLE(out, lane, lane < lanes, sums_ptr, acting, params_ptr, 0, t, lanes, SPEC)


@triton.jit(do_not_specialize=["first"])
def bootstrap_boards(buffers, params_ptr, first, steps, lanes, SPEC: tl.constexpr, VALUE: tl.constexpr):
    """Write values of the observations after the last step, and of the true final observations of truncated lanes from
    step `first` on.

    Grid: (N / BLOCK, T + 1 - first). `buffers` is a `Bootstrap`. Blocks without a truncated lane compute nothing.
    """
    tile, t = tl.program_id(0), first + tl.program_id(1)
    lane = tile * BLOCK + tl.arange(0, BLOCK)
    needed = (lane < lanes) & (t == steps)
    source, target = buffers.observation, buffers.value
    if t < steps:
        needed = tl.load(buffers.truncated + t * lanes + lane) != 0
        source, target = buffers.final_observation, buffers.final_value
    if tl.sum(needed.to(tl.int32), axis=0) > 0:
        filters, start = _load_filters(params_ptr, SPEC), t * SPEC.observation * lanes + tile * BLOCK
        z = zeros(BLOCK, SPEC.hidden)
        for y in range(SPEC.down):
            z += _dense_row(source, params_ptr, filters, start, y, lanes, SPEC)
        out, _h, _y, _x_hat, _inv_std, _gain = _q_values(z, params_ptr, _load_head(params_ptr, SPEC), SPEC)
        target_ptr = target + t * lanes + lane
        value = VALUE(out, buffers.legal_mask, t * lanes + lane, t, needed, lanes, SPEC)
        tl.store(target_ptr, value, mask=needed)


# BACKWARD


@triton.jit(do_not_specialize=["first"])
def backward_rows(
    order_ptr,
    first,
    sums_ptr,
    samples,
    buffers,
    params_ptr,
    grad_z_ptr,
    partial_ptr,
    width,
    lanes,
    SPEC: tl.constexpr,
    LOSS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute Q-values, loss terms, and the loss's gradient in the dense layer's pre-activations, of TILE samples.
    Grid: (samples / TILE,).

    Writes `grad_z_ptr`, and a row of partial sums: head, dense bias, gain and norm bias, and loss terms.
    """
    program = tl.program_id(0)
    index = program * TILE + tl.arange(0, TILE)
    block = tl.load(order_ptr + first + index // BLOCK)
    sample, in_bounds = block * BLOCK + index % BLOCK, index < samples
    head = _load_head(params_ptr, SPEC)
    out, h, y, x_hat, inv_std, gain = _q_values(
        _load_pre_activations(sums_ptr, index, samples, SPEC), params_ptr, head, SPEC
    )
    targets = LOSS.load_targets(buffers, sample, block // (lanes // BLOCK), in_bounds, 0, lanes, SPEC)
    grad_out, _log_std, terms = LOSS.gradient(
        out, targets, in_bounds, in_bounds, 0, 0.0, LOSS.load_scalars(buffers), SPEC
    )
    grad_out = grad_out / samples

    # Backward through the head and the normalized layer.
    g = rounded_operand(grad_out, SPEC)
    grad_z, grad_y = _relu_norm_backward(product(g, head[0], SPEC), y, x_hat, inv_std, gain, SPEC.hidden)
    row, unit = tl.arange(0, SPEC.out_pad), tl.arange(0, SPEC.hidden)
    tl.store(grad_z_ptr + index[:, None] * SPEC.hidden + unit[None, :], grad_z)

    # Partial sums over this tile.
    partial_ptr += program * width
    grad_head = product(tl.trans(g), h, SPEC)  # (out_pad, hidden)
    tl.store(
        partial_ptr + SPEC.head_weight + row[:, None] * SPEC.hidden + unit[None, :],
        grad_head,
        mask=(row < SPEC.head_rows)[:, None],
    )
    tl.store(partial_ptr + SPEC.head_bias + row, tl.sum(grad_out, axis=0), mask=row < SPEC.head_rows)
    # A row of partial sums has no columns for the dense weight.
    after_weight_ptr = partial_ptr - SPEC.weight_size + unit
    tl.store(after_weight_ptr + SPEC.bias, tl.sum(grad_z, axis=0))
    tl.store(after_weight_ptr + SPEC.gain, tl.sum(grad_y * x_hat, axis=0))
    tl.store(after_weight_ptr + SPEC.norm_bias, tl.sum(grad_y, axis=0))
    for k in tl.static_range(len(terms)):
        tl.store(partial_ptr + SPEC.small + k, tl.sum(terms[k], axis=0) / samples)


@triton.jit(do_not_specialize=["first"])
def backward_positions(
    observation_ptr,
    order_ptr,
    first,
    params_ptr,
    grad_z_ptr,
    grad_ptr,
    squares_ptr,
    partial_ptr,
    width,
    samples,
    lanes,
    SPEC: tl.constexpr,
    POSITIONS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute the gradients of the dense weight and of the filters at POSITIONS positions of one row, over all samples.

    Grid: (across / POSITIONS, down). Writes the dense weight's columns with their sum of squares, and a row of partial
    sums of the filters' gradients.
    """
    y, group = tl.program_id(1), tl.program_id(0)
    program = y * tl.num_programs(0) + group
    first_position = y * SPEC.across + group * POSITIONS
    filters, weight = _load_filters(params_ptr, SPEC), _load_weight(params_ptr, first_position, POSITIONS, SPEC)
    row, unit, channel = tl.arange(0, POSITIONS * TILE), tl.arange(0, SPEC.hidden), tl.arange(0, SPEC.filters)
    grad_weight, grad_filters = zeros(SPEC.hidden, POSITIONS * SPEC.filters), zeros(SPEC.filters, SPEC.taps_pad)
    grad_bias, grad_gain, grad_norm_bias = (
        tl.sum(grad_filters, axis=1),
        tl.sum(grad_filters, axis=1),
        tl.sum(grad_filters, axis=1),
    )
    for begin in range(0, samples, TILE):
        # Recompute the convolution.
        index = begin + row % TILE
        block = tl.load(order_ptr + first + index // BLOCK)
        start = block * BLOCK + index % BLOCK + block // (lanes // BLOCK) * (SPEC.observation - 1) * lanes
        patches = _load_patches(observation_ptr, start, y * SPEC.width + group * POSITIONS, row // TILE, lanes, SPEC)
        activation, x_hat, inv_std = _convolve(patches, filters, SPEC)
        h = rounded_operand(_by_sample(tl.maximum(activation, 0.0), POSITIONS, TILE, SPEC), SPEC)
        # dW = g^T h of the dense layer, then backward through it: dL / dh = g W.
        sample_ptr = grad_z_ptr + (begin + tl.arange(0, TILE))[:, None] * SPEC.hidden + unit[None, :]
        g = rounded_operand(tl.load(sample_ptr), SPEC)
        grad_weight = add_product(tl.trans(g), h, grad_weight, SPEC)
        grad_h = _by_position(product(g, weight, SPEC), POSITIONS, TILE, SPEC)
        grad_z, grad_y = _relu_norm_backward(grad_h, activation, x_hat, inv_std, filters[2], SPEC.filters)
        grad_filters = add_product(tl.trans(rounded_operand(grad_z, SPEC)), patches, grad_filters, SPEC)
        grad_bias += tl.sum(grad_z, axis=0)
        grad_gain += tl.sum(grad_y * x_hat, axis=0)
        grad_norm_bias += tl.sum(grad_y, axis=0)
    column = tl.arange(0, POSITIONS * SPEC.filters)
    tl.store(
        grad_ptr + SPEC.weight + unit[:, None] * SPEC.columns + first_position * SPEC.filters + column[None, :],
        grad_weight,
    )
    tl.store(squares_ptr + program, tl.sum(tl.sum(grad_weight * grad_weight, axis=1), axis=0))
    partial_ptr += program * width
    tap = tl.arange(0, SPEC.taps_pad)[None, :]
    tl.store(
        partial_ptr + SPEC.filter_weight + channel[:, None] * SPEC.taps + tap,
        grad_filters * (1.0 / 255.0),
        mask=tap < SPEC.taps,
    )
    tl.store(partial_ptr + SPEC.filter_bias + channel, grad_bias)
    tl.store(partial_ptr + SPEC.filter_gain + channel, grad_gain)
    tl.store(partial_ptr + SPEC.filter_norm_bias + channel, grad_norm_bias)


@triton.jit
def reduce_small(
    partial_ptr,
    width,
    grad_ptr,
    squares_ptr,
    params_ptr,
    update,
    SPEC: tl.constexpr,
    RECORD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Sum partial sums (ROWS, width) to the gradient of all parameters except the dense weight, and the loss terms,
    which RECORD adds up. Grid: (width / 32,).

    As `operant.kernels.ops.reduce.reduce_partials`: also writes sums of squares, and passes the loss terms to RECORD.
    """
    program = tl.program_id(0)
    column = program * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    total = tl.reshape(add_shards(partial_ptr, width, column, 1, ROWS), (REDUCE_COLUMNS,))
    if (program + 1) * REDUCE_COLUMNS < width:
        # In the gradient the dense weight lies in between.
        skipped = tl.where(program * REDUCE_COLUMNS < SPEC.weight, 0, SPEC.weight_size)
        tl.store(grad_ptr + skipped + column, total)
        tl.store(squares_ptr + program, sum_of_squares(total))
    else:
        RECORD(total, tl.arange(0, REDUCE_COLUMNS), params_ptr, update, SPEC)
