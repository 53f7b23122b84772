"""Gaussian and tanh-squashed Gaussian distributions in Triton: sampling and log densities."""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.activation import softplus

LOG_2 = tl.constexpr(0.6931471805599453)
LOG_2_PI = tl.constexpr(1.8378770664093453)
TWO_PI = tl.constexpr(6.283185307179586)


@triton.jit
def box_muller(u1, u2):
    """Return standard normal noise from two uniforms in [0, 1), elementwise (Box & Muller 1958). 1 - u1 is exact
    and above 0, so that its logarithm is finite.
    """
    return tl.sqrt(-2.0 * tl.log(1.0 - u1)) * tl.cos(TWO_PI * u2)


@triton.jit
def gaussian_log_density(mean, action, log_std, mask, SPEC: tl.constexpr):
    """Return the log density of raw actions, summed over their components, and the standardized actions (a - mean) /
    std.

    | parameter    | shape           | meaning                                       |
    |--------------|-----------------|-----------------------------------------------|
    | mean, action | (rows, out_pad) | means, raw actions (before tanh)              |
    | log_std      | (out_pad)       | log standard deviations                       |
    | mask         | (1, out_pad)    | true for the columns that are means           |
    | returns      | (rows)          | log density; with SPEC.squash that of tanh(a) |
    |              | (rows, out_pad) | (a - mean) / std, zero outside of the mask    |
    """
    standardized = tl.where(mask, (action - mean) * tl.exp(-log_std)[None, :], 0.0)
    # log p = -1/2 ((a - mean) / std)^2 - log std - 1/2 log 2 pi
    density = -0.5 * standardized * standardized - log_std[None, :] - 0.5 * LOG_2_PI
    if SPEC.squash:
        # - log |d tanh a / da| = -2 (log 2 - a - softplus(-2 a))
        density = density - 2.0 * (LOG_2 - action - softplus(-2.0 * action))
    return tl.sum(tl.where(mask, density, 0.0), axis=1), standardized
