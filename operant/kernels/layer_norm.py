"""Layer normalization kernels for networks that run a layer at a time: forward with activation, and backward.

x_hat = (z - mean) / sqrt(variance + epsilon) over a layer's units, y = gain x_hat + bias, h = f(y): Ba, Kiros & Hinton
2016. A program takes whole rows of one tower. Units beyond a layer's width are zero in z, and stay zero.

| parameter     | shape                      | meaning                                                             |
|---------------|----------------------------|---------------------------------------------------------------------|
| z_ptr         | (towers, capacity, units)  | pre-activations of the layer's product                              |
| h_ptr         | (towers, capacity, units)  | activations, written                                                |
| grad_ptr      | (towers, capacity, units)  | gradient in h, replaced by that in z                                |
| params_ptr    | (P)                        | parameters                                                          |
| truncated_ptr | (T, N)                     | read if TRUNCATED_ONLY: tiles without a truncated lane are skipped  |
| tile_sums_ptr | (towers, tiles, width)     | sums over a tile's rows, written; see `Spec.tile_sums`              |
| first, count  | int                        | samples first ... first + count - 1 of the rollout are rows 0 ...   |
| capacity      | int                        | rows of a tower in the buffers                                      |
| units         |                            | padded width `SPEC.widths[LAYER]`                                   |
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.activation import activate, activation_gradient, saved_activation
from operant.kernels.ops.layer_norm import layer_norm_backward, standardize
from operant.kernels.ops.linear import rounded_operand
from operant.kernels.packing import needed


@triton.jit
def _load_standardized(z_ptr, offset, unit, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Load pre-activations (rows, units) and standardize each row: x_hat and 1 / std (rows)."""
    mask = (unit < SPEC.hidden[LAYER])[None, :]
    return standardize(tl.load(z_ptr + offset).to(tl.float32), mask, SPEC.norm_epsilon, SPEC.hidden[LAYER], True)


@triton.jit
def _load_gain_and_bias(params_ptr, unit, tower, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Load gain and bias of a tower's layer, (units) each."""
    offset, mask = tower * SPEC.hidden[LAYER] + unit, unit < SPEC.hidden[LAYER]
    gain = tl.load(params_ptr + SPEC.norm_gains[LAYER] + offset, mask=mask, other=0.0)
    return gain, tl.load(params_ptr + SPEC.norm_biases[LAYER] + offset, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["first", "count", "first_tower"])
def normalize_layer(
    z_ptr,
    h_ptr,
    params_ptr,
    truncated_ptr,
    first_tower,
    first,
    count,
    capacity,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    TRUNCATED_ONLY: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Compute activations h = f(gain x_hat + bias) of one layer. Grid: (tiles of rows, towers - first_tower)."""
    OUT: tl.constexpr = SPEC.widths[LAYER]
    tower = first_tower + tl.program_id(1)
    row, unit = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, OUT)
    if needed(truncated_ptr, first + row, row < count, TRUNCATED_ONLY):
        offset = (tower * capacity + row)[:, None] * OUT + unit[None, :]
        x_hat, _inv_std = _load_standardized(z_ptr, offset, unit, SPEC, LAYER)
        gain, bias = _load_gain_and_bias(params_ptr, unit, tower, SPEC, LAYER)
        tl.store(h_ptr + offset, rounded_operand(activate(x_hat * gain[None, :] + bias[None, :], SPEC), SPEC))


@triton.jit(do_not_specialize=["tiles"])
def normalize_layer_backward(
    z_ptr,
    grad_ptr,
    params_ptr,
    tile_sums_ptr,
    capacity,
    tiles,
    SPEC: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Overwrite the gradient in h by that in z. Grid: (tiles, towers).

    The gradients of gain, bias and the product's bias are summed over the tile's rows into `tile_sums_ptr`.
    """
    OUT: tl.constexpr = SPEC.widths[LAYER]
    tile, tower = tl.program_id(0), tl.program_id(1)
    row, unit = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, OUT)
    offset = (tower * capacity + row)[:, None] * OUT + unit[None, :]
    # Recompute y and f'(y).
    x_hat, inv_std = _load_standardized(z_ptr, offset, unit, SPEC, LAYER)
    gain, bias = _load_gain_and_bias(params_ptr, unit, tower, SPEC, LAYER)
    y = x_hat * gain[None, :] + bias[None, :]
    saved = saved_activation(y, rounded_operand(activate(y, SPEC), SPEC), SPEC)
    # dL / dy = dL / dh f'(y), then through the normalization.
    grad_y = tl.load(grad_ptr + offset).to(tl.float32) * activation_gradient(saved, SPEC)
    grad_z = layer_norm_backward(grad_y, x_hat, inv_std, gain[None, :], SPEC.hidden[LAYER], True)
    tl.store(grad_ptr + offset, rounded_operand(grad_z, SPEC))
    # Sums over the tile's rows.
    tile_sums_ptr += (tower * tiles + tile) * SPEC.tile_sums.width + unit
    tl.store(tile_sums_ptr + SPEC.tile_sums.norm_gains[LAYER], tl.sum(grad_y * x_hat, axis=0))
    tl.store(tile_sums_ptr + SPEC.tile_sums.norm_biases[LAYER], tl.sum(grad_y, axis=0))
    if LAYER > 0:
        tl.store(tile_sums_ptr + SPEC.tile_sums.biases[LAYER - 1], tl.sum(grad_z, axis=0))
