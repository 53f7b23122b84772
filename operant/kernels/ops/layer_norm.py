"""Layer normalization in registers (Ba, Kiros & Hinton 2016): forward and backward over whole rows of a tile.

x_hat = (z - mean) / sqrt(variance + epsilon) over a row's units, y = gain x_hat + bias.

| parameter | shape             | meaning                                                   |
|-----------|-------------------|-----------------------------------------------------------|
| z         | (rows, units_pad) | pre-activations; zero beyond `WIDTH` units                |
| mask      | (1, units_pad)    | true for the first WIDTH units                            |
| x_hat     | (rows, units_pad) | standardized z                                            |
| inv_std   | (rows)            | 1 / sqrt(variance + epsilon)                              |
| gain      | (1, units_pad)    | learned gain                                              |
| WIDTH     | int               | units without padding                                     |
| MASKED    | bool              | units_pad may exceed WIDTH: results are zero beyond WIDTH |
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def standardize(z, mask, EPSILON: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Standardize each row of z to mean 0 and variance 1: return x_hat and 1 / std. `mask` is read only if MASKED."""
    x = z - (tl.sum(z, axis=1) / WIDTH)[:, None]
    if MASKED:
        x = tl.where(mask, x, 0.0)
    inv_std = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / WIDTH + EPSILON)
    return x * inv_std[:, None], inv_std


@triton.jit
def layer_norm_backward(grad_y, x_hat, inv_std, gain, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Return the gradient of the loss in z, (rows, units_pad), from that in y = gain x_hat + bias, `grad_y`."""
    # dL / dz = (g - mean(g) - x_hat mean(g x_hat)) / std, g = dL / dx_hat = gain dL / dy
    g = grad_y * gain
    mean, projection = tl.sum(g, axis=1) / WIDTH, tl.sum(g * x_hat, axis=1) / WIDTH
    grad_z = (g - mean[:, None] - x_hat * projection[:, None]) * inv_std[:, None]
    if MASKED:
        grad_z = tl.where((tl.arange(0, grad_y.shape[1]) < WIDTH)[None, :], grad_z, 0.0)
    return grad_z
