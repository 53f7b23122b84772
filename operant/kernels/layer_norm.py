"""Triton kernels of layer normalization, for networks that run a layer at a time: between a layer's product and its
activation, and back. Know no loss.

x_hat = (z - mean) / sqrt(variance + epsilon) over a layer's units, y = gain x_hat + bias, h = f(y): Ba, Kiros & Hinton
2016. A program takes whole rows. Units beyond a layer's width are zero in z, and stay zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import activate, activation_gradient, saved_activation
from operant.kernels.operands import needed, stored


@triton.jit
def _standardized(z, place, unit, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """What a layer has computed (rows, units), with mean 0 and variance 1 a row; and 1 / std (rows)."""
    WIDTH: tl.constexpr = SPEC.hidden[LAYER]
    inside = (unit < WIDTH)[None, :]
    x = tl.load(z + place).to(tl.float32)
    x = tl.where(inside, x - (tl.sum(x, axis=1) / WIDTH)[:, None], 0.0)
    inv_std = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / WIDTH + SPEC.norm_epsilon)
    return x * inv_std[:, None], inv_std


@triton.jit
def _load_gain_and_bias(parameters, unit, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Gain and bias of a tower's layer, (units) each."""
    place, mask = tower * SPEC.hidden[LAYER] + unit, unit < SPEC.hidden[LAYER]
    gain = tl.load(parameters + SPEC.norm_gains[LAYER] + place, mask=mask, other=0.0)
    return gain, tl.load(parameters + SPEC.norm_biases[LAYER] + place, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["first", "count", "first_tower"])
def normalize_layer(
    z,
    hidden,
    parameters,
    truncated,
    first_tower,
    first,
    count,
    capacity,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    TRUNCATED_ONLY: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """A layer's activations `hidden` (towers, capacity, units) from what its product has computed, `z` of the same
    shape.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    tower = first_tower + tl.program_id(1)
    row, unit = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, OUT)
    if needed(truncated, first + row, row < count, TRUNCATED_ONLY):
        place = (tower * capacity + row)[:, None] * OUT + unit[None, :]
        x_hat, _inv_std = _standardized(z, place, unit, SPEC, LAYER)
        gain, bias = _load_gain_and_bias(parameters, unit, tower, SPEC, LAYER)
        tl.store(hidden + place, stored(activate(x_hat * gain[None, :] + bias[None, :], SPEC), SPEC))


@triton.jit(do_not_specialize=["tiles"])
def normalize_layer_backward(
    z, gradient, parameters, tile_sums, capacity, tiles, SPEC: tl.constexpr, LAYER: tl.constexpr, BLOCK_M: tl.constexpr
):
    """In place, from the gradient in a layer's activations (towers, capacity, units) to that in what its product has
    computed, `z` of the same shape.

    The gradients of gain and bias, and of the product's own bias, go into the tile's sums; `tiles`: of a tower in
    `tile_sums`.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    WIDTH: tl.constexpr = SPEC.hidden[LAYER]
    tile, tower = tl.program_id(0), tl.program_id(1)
    row, unit = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, OUT)
    place = (tower * capacity + row)[:, None] * OUT + unit[None, :]
    # y and f'(y), worked out again.
    x_hat, inv_std = _standardized(z, place, unit, SPEC, LAYER)
    gain, bias = _load_gain_and_bias(parameters, unit, tower, SPEC, LAYER)
    y = x_hat * gain[None, :] + bias[None, :]
    saved = saved_activation(y, stored(activate(y, SPEC), SPEC), SPEC)
    gradient_y = tl.load(gradient + place).to(tl.float32) * activation_gradient(saved, SPEC)
    # dL / dz = (g - mean(g) - x_hat mean(g x_hat)) / std, g = dL / dx_hat
    g = gradient_y * gain[None, :]
    mean, projection = tl.sum(g, axis=1) / WIDTH, tl.sum(g * x_hat, axis=1) / WIDTH
    gradient_z = tl.where(
        (unit < WIDTH)[None, :], (g - mean[:, None] - x_hat * projection[:, None]) * inv_std[:, None], 0.0
    )
    tl.store(gradient + place, stored(gradient_z, SPEC))
    # Sums over the tile's rows.
    tile_sums += (tower * tiles + tile) * SPEC.tile_sums.width + unit
    tl.store(tile_sums + SPEC.tile_sums.norm_gains[LAYER], tl.sum(gradient_y * x_hat, axis=0))
    tl.store(tile_sums + SPEC.tile_sums.norm_biases[LAYER], tl.sum(gradient_y, axis=0))
    if LAYER > 0:
        tl.store(tile_sums + SPEC.tile_sums.biases[LAYER - 1], tl.sum(gradient_z, axis=0))
