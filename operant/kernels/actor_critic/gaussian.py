"""Triton functions of squashed Gaussian and deterministic actors: noise, log-probability, and the actions of a tick.

Tiles of actions are sample-major, (rows, columns), with the columns `action_columns` of a critic's input, which is
observation, action, zeros. An actor's outputs stand in the action's columns, so nothing moves from one column to
another.

Common parameters: `SPEC`: `NarrowSpec` or `WideSpec`; `buffers`: `ActBuffers`; `t`: tick (vectorised step) of the
iteration; `lane` (lanes): lanes of the tile; `lanes`: N.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.activation import softplus, tanh
from operant.kernels.ops.gaussian import LOG_2, LOG_2_PI, box_muller

LOG_STD_MIN = tl.constexpr(-5.0)
LOG_STD_MAX = tl.constexpr(2.0)


@triton.jit
def action_columns(SPEC: tl.constexpr):
    """Return the columns of a critic's input that a tile of actions has, (columns): the action's and some beside it."""
    return SPEC.action_start + tl.arange(0, SPEC.action_columns)


@triton.jit
def is_action(SPEC: tl.constexpr):
    """Return the mask of an action tile's columns that hold values of the action, (1, columns); others hold
    observations or padding.
    """
    column = action_columns(SPEC)
    return ((column >= SPEC.observation) & (column < SPEC.observation + SPEC.action))[None, :]


@triton.jit
def clip(x, limit):
    """Clip x to [-limit, limit], elementwise."""
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit
def normal(noise_ptr, row, first_row, stride, mask, SPEC: tl.constexpr):
    """Return standard normal noise in the action's columns, (rows, columns), by Box & Muller 1958 from two rows of
    uniforms per value: `noise_ptr` (R, stride), from row `first_row` on, at columns `row`.

    | parameter | shape           | meaning                                     |
    |-----------|-----------------|---------------------------------------------|
    | noise_ptr | (R, stride)     | uniform noise in [0, 1)                     |
    | row       | (rows)          | sample or lane of each row                  |
    | first_row | scalar          | row of the noise where these 2 A rows begin |
    | mask      | (rows, columns) | action's columns of rows in bounds          |
    """
    column = action_columns(SPEC) - SPEC.observation
    offset = noise_ptr + (first_row + column)[None, :] * stride + row[:, None]
    u1 = tl.load(offset, mask=mask, other=0.0)
    u2 = tl.load(offset + SPEC.action * stride, mask=mask, other=0.0)
    return box_muller(u1, u2)


@triton.jit
def squashed_gaussian(mean, raw, noise, SPEC: tl.constexpr):
    """Sample a = tanh(u), u = mean + std noise, from a squashed Gaussian's outputs `mean` and `raw` (rows, columns).

    `mean`, `raw` and `noise` are (rows, columns). Returns a, log pi(a) (rows), std noise, and d log std / d raw; zero
    outside the action's columns.
    """
    mask = is_action(SPEC)
    # log std = min + (max - min) (tanh raw + 1) / 2
    bounded = tanh(raw, False)
    log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (bounded + 1.0)
    std_noise = tl.where(mask, tl.exp(log_std) * noise, 0.0)
    u = mean + std_noise
    # log N(u) - log (1 - tanh^2 u), the latter as 2 (log 2 - u - softplus(-2 u))
    density = -0.5 * noise * noise - log_std - 0.5 * LOG_2_PI - 2.0 * (LOG_2 - u - softplus(-2.0 * u))
    log_std_grad = 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (1.0 - bounded * bounded)
    return (
        tl.where(mask, tanh(u, False), 0.0),
        tl.sum(tl.where(mask, density, 0.0), axis=1),
        std_noise,
        tl.where(mask, log_std_grad, 0.0),
    )


# ACTIONS OF A TICK


@triton.jit
def load_observation(buffers, t, lane, lanes, SPEC: tl.constexpr):
    """Return the observations of tick t of lanes `lane`, one row per lane and one column per value, and the mask (of
    the same shape) of the values that exist.
    """
    column = tl.arange(0, SPEC.columns)
    mask = (lane < lanes)[:, None] & (column < SPEC.observation)[None, :]
    offset = (t * SPEC.observation + column)[None, :] * lanes + lane[:, None]
    return tl.load(buffers.observation + offset, mask=mask, other=0), mask


@triton.jit
def load_uniform(buffers, t, lane, lanes, SPEC: tl.constexpr):
    """Return uniform noise of tick t in the action's columns, (rows, columns), for actions while warming up; its mask;
    the actions' offsets; and the pointer to the tick's 2 A rows of noise.
    """
    column = action_columns(SPEC)
    offset = (t * SPEC.action + column - SPEC.observation)[None, :] * lanes + lane[:, None]
    noise_ptr = buffers.noise + t * 2 * SPEC.action * lanes
    mask = is_action(SPEC) & (lane < lanes)[:, None]
    uniform = tl.load(noise_ptr + (column - SPEC.observation)[None, :] * lanes + lane[:, None], mask=mask, other=0.0)
    return uniform, mask, offset, noise_ptr


@triton.jit
def store_action(buffers, action, uniform, mask, offset, SPEC: tl.constexpr):
    """Store actions (rows, columns) at `offset`, in [-1, 1] and in the environment's range; `uniform` ones in their
    place while `buffers.warming` is 1.
    """
    action = tl.where(tl.load(buffers.warming) > 0.0, 2.0 * uniform - 1.0, action)
    index = action_columns(SPEC) - SPEC.observation
    index_mask = (index >= 0) & (index < SPEC.action)
    centre = tl.load(buffers.centre + index, mask=index_mask, other=0.0)[None, :]
    half_range = tl.load(buffers.half_range + index, mask=index_mask, other=0.0)[None, :]
    tl.store(buffers.squashed_action + offset, action, mask=mask)
    tl.store(buffers.action + offset, centre + half_range * action, mask=mask)
