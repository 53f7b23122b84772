"""Triton kernels of Q networks for boards: a 3 x 3 convolution without padding, a dense layer, both normalised, and a
head. Acting, values, and gradients.

A dense layer's program takes one row of the convolution's places and 32 samples, so that a small minibatch keeps many
multiprocessors busy; the rows' sums meet in the head. Behind the head a program takes a few places and all samples: it
works their convolution out again, has their part of the dense weight's gradient to itself, and leaves sums of the
filters'. Sums go in a fixed order. Tiles are sample-major; rows of a convolution are (place, sample), and `SPEC` is a
`operant.kernels.dense.board.BoardSpec`. Know no rollout's length and no optimizer; the loss is handed over as
`operant.kernels.loss.Loss`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import add_product, product, zeros
from operant.kernels.operands import stored
from operant.kernels.ops.reduce import REDUCE_COLUMNS, add_shards, sum_of_squares

BLOCK = tl.constexpr(32)
"""Neighbouring lanes of a step, and samples of a program of the forward pass."""

# THE NETWORK


@triton.jit
def _standardized(z, WIDTH: tl.constexpr, SPEC: tl.constexpr):
    """Rows with mean 0 and variance 1, and 1 / std (rows)."""
    x = z - (tl.sum(z, axis=1) / WIDTH)[:, None]
    inv_std = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / WIDTH + SPEC.norm_epsilon)
    return x * inv_std[:, None], inv_std


@triton.jit
def _behind_norm(gradient, y, x_hat, inv_std, gain, WIDTH: tl.constexpr):
    """From the gradient in relu(y), y = gain x_hat + shift: that in what was normalised, and that in y."""
    gradient_y = tl.where(y > 0.0, gradient, 0.0)
    # dL / dz = (g - mean(g) - x_hat mean(g x_hat)) / std, g = dL / dx_hat
    g = gradient_y * gain[None, :]
    mean, projection = tl.sum(g, axis=1) / WIDTH, tl.sum(g * x_hat, axis=1) / WIDTH
    return (g - mean[:, None] - x_hat * projection[:, None]) * inv_std[:, None], gradient_y


@triton.jit
def _load_vector(parameters, place, WIDTH: tl.constexpr):
    return tl.load(parameters + place + tl.arange(0, WIDTH))


@triton.jit
def _load_filters(parameters, SPEC: tl.constexpr):
    """The filters (taps_pad, filters) as bytes are multiplied with them, their biases, gains and shifts."""
    tap, channel = tl.arange(0, SPEC.taps_pad)[:, None], tl.arange(0, SPEC.filters)[None, :]
    weight = tl.load(parameters + SPEC.filter_weight + channel * SPEC.taps + tap, mask=tap < SPEC.taps, other=0.0)
    return (
        stored(weight * (1.0 / 255.0), SPEC),
        _load_vector(parameters, SPEC.filter_bias, SPEC.filters),
        _load_vector(parameters, SPEC.filter_gain, SPEC.filters),
        _load_vector(parameters, SPEC.filter_shift, SPEC.filters),
    )


@triton.jit
def _patches(observation, start, first_place, place, lanes, SPEC: tl.constexpr):
    """The bytes under the filters, (rows, taps_pad), as a product takes them. `start` (rows): where an observation
    begins; `place`: beside the first.
    """
    tap = tl.arange(0, SPEC.taps_pad)
    offset = tap // (3 * SPEC.planes) * (SPEC.width * SPEC.planes) + tap % (3 * SPEC.planes)
    corner = start + (first_place + place) * SPEC.planes * lanes
    corner = tl.max_contiguous(tl.multiple_of(corner, 32), 32)  # a block's lanes
    seen = tl.load(observation + corner[:, None] + offset[None, :] * lanes, mask=(tap < SPEC.taps)[None, :], other=0)
    return seen.to(tl.bfloat16) if SPEC.precision == "bf16" else seen.to(tl.float32)


@triton.jit
def _convolve(patches, filters, SPEC: tl.constexpr):
    """Of patches (rows, taps_pad): y (rows, filters), whose relu the dense layer reads, x_hat and 1 / std."""
    weight, bias, gain, shift = filters
    x_hat, inv_std = _standardized(product(patches, weight, SPEC) + bias[None, :], SPEC.filters, SPEC)
    return x_hat * gain[None, :] + shift[None, :], x_hat, inv_std


@triton.jit
def _by_sample(rows, PLACES: tl.constexpr, SAMPLES: tl.constexpr, SPEC: tl.constexpr):
    """(place sample, filters) -> (sample, place filters)."""
    return tl.reshape(
        tl.permute(tl.reshape(rows, (PLACES, SAMPLES, SPEC.filters)), (1, 0, 2)), (SAMPLES, PLACES * SPEC.filters)
    )


@triton.jit
def _by_place(rows, PLACES: tl.constexpr, SAMPLES: tl.constexpr, SPEC: tl.constexpr):
    """(sample, place filters) -> (place sample, filters)."""
    return tl.reshape(
        tl.permute(tl.reshape(rows, (SAMPLES, PLACES, SPEC.filters)), (1, 0, 2)), (PLACES * SAMPLES, SPEC.filters)
    )


@triton.jit
def _load_weight(parameters, first_place, PLACES: tl.constexpr, SPEC: tl.constexpr):
    """Columns of the dense weight that read some places, (hidden, places filters), as a product takes them."""
    unit, column = tl.arange(0, SPEC.hidden)[:, None], tl.arange(0, PLACES * SPEC.filters)[None, :]
    return stored(tl.load(parameters + SPEC.weight + unit * SPEC.columns + first_place * SPEC.filters + column), SPEC)


@triton.jit
def _dense_row(observation, parameters, filters, start, y, lanes, SPEC: tl.constexpr):
    """What row y of the places adds to the dense layer of BLOCK samples that begin at `start`, (BLOCK, hidden)."""
    row = tl.arange(0, SPEC.across * BLOCK)
    patches = _patches(observation, start + row % BLOCK, y * SPEC.width, row // BLOCK, lanes, SPEC)
    h, _x_hat, _inv_std = _convolve(patches, filters, SPEC)
    h = _by_sample(tl.maximum(h, 0.0), SPEC.across, BLOCK, SPEC)
    return product(stored(h, SPEC), tl.trans(_load_weight(parameters, y * SPEC.across, SPEC.across, SPEC)), SPEC)


@triton.jit
def _load_head(parameters, SPEC: tl.constexpr):
    """The head's weight (out_pad, hidden), as a product takes it, and its bias (out_pad)."""
    row, unit = tl.arange(0, SPEC.out_pad), tl.arange(0, SPEC.hidden)
    inside = row < SPEC.head_rows
    weight = tl.load(
        parameters + SPEC.head_weight + row[:, None] * SPEC.hidden + unit[None, :], mask=inside[:, None], other=0.0
    )
    return stored(weight, SPEC), tl.load(parameters + SPEC.head_bias + row, mask=inside, other=0.0)


@triton.jit
def _values(z, parameters, head, SPEC: tl.constexpr):
    """From the rows' sum (rows, hidden): Q (rows, out_pad), the dense layer's activations as an operand, y, x_hat, 1 /
    std and its gain.
    """
    gain, shift = _load_vector(parameters, SPEC.gain, SPEC.hidden), _load_vector(parameters, SPEC.shift, SPEC.hidden)
    x_hat, inv_std = _standardized(z + _load_vector(parameters, SPEC.bias, SPEC.hidden)[None, :], SPEC.hidden, SPEC)
    y = x_hat * gain[None, :] + shift[None, :]
    h = stored(tl.maximum(y, 0.0), SPEC)
    return product(h, tl.trans(head[0]), SPEC) + head[1][None, :], h, y, x_hat, inv_std, gain


@triton.jit
def _load_sums(sums, index, samples, SPEC: tl.constexpr):
    """The sum over the rows of places of what `forward_rows` has left, (rows, hidden)."""
    place = sums + index[:, None] * SPEC.hidden + tl.arange(0, SPEC.hidden)[None, :]
    z = tl.load(place)
    DOWN: tl.constexpr = SPEC.down
    for y in tl.static_range(1, DOWN):
        z += tl.load(place + y * samples * SPEC.hidden)
    return z


# FORWARD


@triton.jit(do_not_specialize=["first"])
def forward_rows(observation, order, first, parameters, sums, samples, lanes, SPEC: tl.constexpr, ACT: tl.constexpr):
    """Program (tile, y): what row y adds to the dense layer of BLOCK samples, into `sums` (down, samples, hidden).

    They are block `first` + tile of `order`, or with ACT the lanes of step `first`.
    """
    tile, y = tl.program_id(0), tl.program_id(1)
    if ACT:
        start = first * SPEC.observation * lanes + tile * BLOCK
    else:
        block = tl.load(order + first + tile)
        start = block * BLOCK + block // (lanes // BLOCK) * (SPEC.observation - 1) * lanes
    z = _dense_row(observation, parameters, _load_filters(parameters, SPEC), start, y, lanes, SPEC)
    row, unit = tl.arange(0, BLOCK)[:, None], tl.arange(0, SPEC.hidden)[None, :]
    tl.store(sums + (y * samples + tile * BLOCK + row) * SPEC.hidden + unit, z)


@triton.jit(do_not_specialize=["t"])
def act_on_rows(sums, acting, parameters, t, lanes, SPEC: tl.constexpr, SAMPLE: tl.constexpr, TILE: tl.constexpr):
    """Step t from the sums of `forward_rows`: what `SAMPLE` makes of the values, into its place in the rollout."""
    lane = tl.program_id(0) * TILE + tl.arange(0, TILE)
    out, _h, _y, _x_hat, _inv_std, _gain = _values(
        _load_sums(sums, lane, lanes, SPEC), parameters, _load_head(parameters, SPEC), SPEC
    )
    SAMPLE(out, lane, lane < lanes, sums, acting, parameters, 0, t, lanes, SPEC)


@triton.jit(do_not_specialize=["first"])
def bootstrap_boards(buffers, parameters, first, steps, lanes, SPEC: tl.constexpr, VALUE: tl.constexpr):
    """The value of the observation after the last step, and from step `first` on of true final ones: those only in
    blocks where a lane was truncated.
    """
    tile, t = tl.program_id(0), first + tl.program_id(1)
    lane = tile * BLOCK + tl.arange(0, BLOCK)
    needed = (lane < lanes) & (t == steps)
    source, target = buffers.observation, buffers.value
    if t < steps:
        needed = tl.load(buffers.truncated + t * lanes + lane) != 0
        source, target = buffers.final_observation, buffers.final_value
    if tl.sum(needed.to(tl.int32), axis=0) > 0:
        filters, start = _load_filters(parameters, SPEC), t * SPEC.observation * lanes + tile * BLOCK
        z = zeros(BLOCK, SPEC.hidden)
        for y in range(SPEC.down):
            z += _dense_row(source, parameters, filters, start, y, lanes, SPEC)
        out, _h, _y, _x_hat, _inv_std, _gain = _values(z, parameters, _load_head(parameters, SPEC), SPEC)
        tl.store(
            target + t * lanes + lane,
            VALUE(out, buffers.legal_mask, t * lanes + lane, t, needed, lanes, SPEC),
            mask=needed,
        )


# BACKWARD


@triton.jit(do_not_specialize=["first"])
def backward_rows(
    order,
    first,
    sums,
    samples,
    buffers,
    parameters,
    gradient_z,
    partial,
    width,
    lanes,
    SPEC: tl.constexpr,
    LOSS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Values and the loss of TILE samples of a minibatch: the gradient in the dense layer's sums (samples, hidden), and
    a row of partial sums of the rest.
    """
    program = tl.program_id(0)
    index = program * TILE + tl.arange(0, TILE)
    block = tl.load(order + first + index // BLOCK)
    sample, inside = block * BLOCK + index % BLOCK, index < samples
    head = _load_head(parameters, SPEC)
    out, h, y, x_hat, inv_std, gain = _values(_load_sums(sums, index, samples, SPEC), parameters, head, SPEC)
    targets = LOSS.load_targets(buffers, sample, block // (lanes // BLOCK), inside, 0, lanes, SPEC)
    gradient_out, _log_std, terms = LOSS.gradient(
        out, targets, inside, inside, 0, 0.0, LOSS.load_scalars(buffers), SPEC
    )
    gradient_out = gradient_out / samples

    # Back through the head and the normalised layer.
    g = stored(gradient_out, SPEC)
    gradient, gradient_y = _behind_norm(product(g, head[0], SPEC), y, x_hat, inv_std, gain, SPEC.hidden)
    row, unit = tl.arange(0, SPEC.out_pad), tl.arange(0, SPEC.hidden)
    tl.store(gradient_z + index[:, None] * SPEC.hidden + unit[None, :], gradient)

    # This tile's sums.
    partial += program * width
    weight = product(tl.trans(g), h, SPEC)  # (out_pad, hidden)
    tl.store(
        partial + SPEC.head_weight + row[:, None] * SPEC.hidden + unit[None, :],
        weight,
        mask=(row < SPEC.head_rows)[:, None],
    )
    tl.store(partial + SPEC.head_bias + row, tl.sum(gradient_out, axis=0), mask=row < SPEC.head_rows)
    behind = partial - SPEC.weight_size + unit
    tl.store(behind + SPEC.bias, tl.sum(gradient, axis=0))
    tl.store(behind + SPEC.gain, tl.sum(gradient_y * x_hat, axis=0))
    tl.store(behind + SPEC.shift, tl.sum(gradient_y, axis=0))
    for k in tl.static_range(len(terms)):
        tl.store(partial + SPEC.small + k, tl.sum(terms[k], axis=0) / samples)


@triton.jit(do_not_specialize=["first"])
def backward_places(
    observation,
    order,
    first,
    parameters,
    gradient_z,
    gradient,
    squares,
    partial,
    width,
    samples,
    lanes,
    SPEC: tl.constexpr,
    PLACES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (x, y): the gradient of what the dense layer reads of PLACES places of row y, with the sum of its
    squares; and a row of sums of the filters'.
    """
    y, group = tl.program_id(1), tl.program_id(0)
    program = y * tl.num_programs(0) + group
    first_place = y * SPEC.across + group * PLACES
    filters, weight = _load_filters(parameters, SPEC), _load_weight(parameters, first_place, PLACES, SPEC)
    row, unit, channel = tl.arange(0, PLACES * TILE), tl.arange(0, SPEC.hidden), tl.arange(0, SPEC.filters)
    of_weight, of_filters = zeros(SPEC.hidden, PLACES * SPEC.filters), zeros(SPEC.filters, SPEC.taps_pad)
    of_bias, of_gain, of_shift = tl.sum(of_filters, axis=1), tl.sum(of_filters, axis=1), tl.sum(of_filters, axis=1)
    for begin in range(0, samples, TILE):
        # The convolution once more.
        index = begin + row % TILE
        block = tl.load(order + first + index // BLOCK)
        start = block * BLOCK + index % BLOCK + block // (lanes // BLOCK) * (SPEC.observation - 1) * lanes
        patches = _patches(observation, start, y * SPEC.width + group * PLACES, row // TILE, lanes, SPEC)
        activation, x_hat, inv_std = _convolve(patches, filters, SPEC)
        h = stored(_by_sample(tl.maximum(activation, 0.0), PLACES, TILE, SPEC), SPEC)
        # The dense layer's gradient, and back through it.
        g = stored(tl.load(gradient_z + (begin + tl.arange(0, TILE))[:, None] * SPEC.hidden + unit[None, :]), SPEC)
        of_weight = add_product(tl.trans(g), h, of_weight, SPEC)
        back = _by_place(product(g, weight, SPEC), PLACES, TILE, SPEC)
        by_z, by_y = _behind_norm(back, activation, x_hat, inv_std, filters[2], SPEC.filters)
        of_filters = add_product(tl.trans(stored(by_z, SPEC)), patches, of_filters, SPEC)
        of_bias += tl.sum(by_z, axis=0)
        of_gain += tl.sum(by_y * x_hat, axis=0)
        of_shift += tl.sum(by_y, axis=0)
    column = tl.arange(0, PLACES * SPEC.filters)
    tl.store(
        gradient + SPEC.weight + unit[:, None] * SPEC.columns + first_place * SPEC.filters + column[None, :], of_weight
    )
    tl.store(squares + program, tl.sum(tl.sum(of_weight * of_weight, axis=1), axis=0))
    partial += program * width
    tap = tl.arange(0, SPEC.taps_pad)[None, :]
    tl.store(
        partial + SPEC.filter_weight + channel[:, None] * SPEC.taps + tap,
        of_filters * (1.0 / 255.0),
        mask=tap < SPEC.taps,
    )
    tl.store(partial + SPEC.filter_bias + channel, of_bias)
    tl.store(partial + SPEC.filter_gain + channel, of_gain)
    tl.store(partial + SPEC.filter_shift + channel, of_shift)


@triton.jit
def reduce_small(
    partial, width, gradient, squares, parameters, update, SPEC: tl.constexpr, RECORD: tl.constexpr, ROWS: tl.constexpr
):
    """The gradient of all but the dense weight from rows of partial sums, 32 columns a program, with sums of squares;
    the last program has the loss's terms.
    """
    program = tl.program_id(0)
    column = program * REDUCE_COLUMNS + tl.arange(0, REDUCE_COLUMNS)
    total = tl.reshape(add_shards(partial, width, column, 1, ROWS), (REDUCE_COLUMNS,))
    if (program + 1) * REDUCE_COLUMNS < width:
        # The dense weight lies between: it has no place in a row.
        behind = tl.where(program * REDUCE_COLUMNS < SPEC.weight, 0, SPEC.weight_size)
        tl.store(gradient + behind + column, total)
        tl.store(squares + program, sum_of_squares(total))
    else:
        RECORD(total, tl.arange(0, REDUCE_COLUMNS), parameters, update, SPEC)
