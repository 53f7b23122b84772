"""Triton functions of actors and critics: forward, the gradient of a value in its inputs, the squashed Gaussian. They
read packed weights and know no batch.

Tiles are sample-major, (rows, features). Critics read observation and action side by side, so an actor's outputs stand
in the action's columns of that tile: nothing has to be moved from one column to another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import (
    LOG_2,
    LOG_2_PI,
    TWO_PI,
    activate,
    activation_gradient,
    operand,
    product,
    round_to_tf32,
    softplus,
    tanh,
)

LOG_STD_MIN = tl.constexpr(-5.0)
LOG_STD_MAX = tl.constexpr(2.0)


# PRODUCTS


@triton.jit
def load_weight(start, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr):
    """A packed weight (rows, columns) as the right operand (columns, rows); where that is too early, its address."""
    if EARLY:
        return tl.load(start + tl.arange(0, ROWS)[None, :] * COLUMNS + tl.arange(0, COLUMNS)[:, None])
    else:
        return start


@triton.jit
def _halves(x):
    """The first and the second half of a tile's columns."""
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(x, (M, 2, N)), (0, 2, 1)))


@triton.jit
def times(x, weight, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPEC: tl.constexpr):
    """The product x W^T with a packed weight."""
    if SPEC.early:
        return product(x, weight, SPEC)
    else:
        return _in_parts(x, weight, ROWS, COLUMNS, 1, COLUMNS, SPEC)


@triton.jit
def times_transposed(x, weight, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPEC: tl.constexpr):
    """The product x W with a packed weight."""
    if SPEC.early:
        return product(x, tl.trans(weight), SPEC)
    else:
        return times_transposed_at(x, weight, ROWS, COLUMNS, SPEC)


@triton.jit
def times_transposed_at(x, weight, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPEC: tl.constexpr):
    """The product x W with the packed weight at an address."""
    return _in_parts(x, weight, COLUMNS, ROWS, COLUMNS, 1, SPEC)


@triton.jit
def _part(x, weight, OUT: tl.constexpr, STEP: tl.constexpr, ACROSS: tl.constexpr, SPEC: tl.constexpr):
    """The product of x (rows, n) with (n, OUT) numbers: neighbours down lie STEP apart, and neighbours across
    ACROSS.
    """
    IN: tl.constexpr = x.shape[1]
    return product(x, tl.load(weight + tl.arange(0, IN)[:, None] * STEP + tl.arange(0, OUT)[None, :] * ACROSS), SPEC)


@triton.jit
def _in_parts(
    x, weight, OUT: tl.constexpr, IN: tl.constexpr, STEP: tl.constexpr, ACROSS: tl.constexpr, SPEC: tl.constexpr
):
    """The same of (IN, OUT) numbers, as many at a time as a program has room for."""
    if SPEC.deep >= IN:
        return _part(x, weight, OUT, STEP, ACROSS, SPEC)
    else:
        HALF: tl.constexpr = IN // 2
        low, high = _halves(x)
        if SPEC.deep >= HALF:
            return _part(low, weight, OUT, STEP, ACROSS, SPEC) + _part(
                high, weight + HALF * STEP, OUT, STEP, ACROSS, SPEC
            )
        else:
            QUARTER: tl.constexpr = IN // 4
            first, second = _halves(low)
            third, fourth = _halves(high)
            below = _part(first, weight, OUT, STEP, ACROSS, SPEC) + _part(
                second, weight + QUARTER * STEP, OUT, STEP, ACROSS, SPEC
            )
            above = _part(third, weight + HALF * STEP, OUT, STEP, ACROSS, SPEC) + _part(
                fourth, weight + (HALF + QUARTER) * STEP, OUT, STEP, ACROSS, SPEC
            )
            return below + above


@triton.jit
def first_product(x, w, SPEC: tl.constexpr):
    """What the first layer does: raw observations may be large numbers that differ little, so it never has fewer bits
    than tf32.
    """
    return tl.dot(x, w, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def as_read(x, SPEC: tl.constexpr):
    """What the first layer reads, as its product takes it."""
    return x if SPEC.precision == "ieee" else round_to_tf32(x)


# NETWORKS


@triton.jit
def load_trunk(single, packed, SPEC: tl.constexpr, NET: tl.constexpr):
    """The hidden layers of a tower: the first weight, the later ones (or addresses), and all biases."""
    L: tl.constexpr = NET.layers[0]
    first = tl.load(
        single + L.packed + tl.arange(0, L.rows_pad)[None, :] * L.columns_pad + tl.arange(0, L.columns_pad)[:, None]
    )
    biases = (tl.load(single + L.packed_bias + tl.arange(0, L.rows_pad)),)
    weights = ()
    for k in tl.static_range(1, len(NET.layers) - 1):
        weights = weights + (
            load_weight(packed + NET.layers[k].packed, NET.layers[k].rows_pad, NET.layers[k].columns_pad, SPEC.early),
        )
        biases = biases + (tl.load(single + NET.layers[k].packed_bias + tl.arange(0, NET.layers[k].rows_pad)),)
    return first, weights, biases


@triton.jit
def run_trunk(x, trunk, SPEC: tl.constexpr, NET: tl.constexpr):
    """The activations of each hidden layer, (rows, H) float32."""
    first, weights, biases = trunk
    h = activate(first_product(as_read(x, SPEC), first, SPEC) + biases[0][None, :], SPEC)
    hidden = (h,)
    for k in tl.static_range(len(NET.layers) - 2):
        z = (
            times(operand(h, SPEC), weights[k], NET.layers[k + 1].rows_pad, NET.layers[k + 1].columns_pad, SPEC)
            + biases[k + 1][None, :]
        )
        h = activate(z, SPEC)
        hidden = hidden + (h,)
    return hidden


@triton.jit
def load_value_head(single, NET: tl.constexpr):
    """A critic's last weight (H) and bias."""
    L: tl.constexpr = NET.layers[-1]
    return tl.load(single + L.packed + tl.arange(0, L.columns_pad)), tl.load(single + L.packed_bias)


@triton.jit
def value_of(h, head):
    """Q, (rows), of the last hidden layer."""
    weight, bias = head
    return tl.sum(h * weight[None, :], axis=1) + bias


@triton.jit
def value_gradients(hidden, trunk, head, SPEC: tl.constexpr, NET: tl.constexpr):
    """The gradients of Q in each hidden layer's sums before its activation, from the first on, (rows, H)."""
    _first, weights, _biases = trunk
    weight, _bias = head
    g = weight[None, :] * activation_gradient(hidden[len(NET.layers) - 2], SPEC)
    found = (g,)
    for k in tl.static_range(len(NET.layers) - 3, -1, -1):
        g = times_transposed(
            operand(g, SPEC), weights[k], NET.layers[k + 1].rows_pad, NET.layers[k + 1].columns_pad, SPEC
        )
        g = g * activation_gradient(hidden[k], SPEC)
        found = (g,) + found
    return found


# THE POLICY


@triton.jit
def load_policy_head(single, packed, SPEC: tl.constexpr, NET: tl.constexpr):
    """An actor's last weights, of means and of raw deviations, (H, columns) each, and their biases: in the columns of
    the action.
    """
    L: tl.constexpr = NET.layers[-1]
    column, unit = tl.arange(0, SPEC.columns), tl.arange(0, L.columns_pad)
    place = packed + L.packed + column[None, :] * L.columns_pad + unit[:, None]
    bias = single + L.packed_bias + column
    return tl.load(place), tl.load(place + SPEC.columns * L.columns_pad), tl.load(bias), tl.load(bias + SPEC.columns)


@triton.jit
def policy_of(h, head, SPEC: tl.constexpr):
    """Means and raw deviations, (rows, columns)."""
    mean, raw, mean_bias, raw_bias = head
    x = operand(h, SPEC)
    return product(x, mean, SPEC) + mean_bias[None, :], product(x, raw, SPEC) + raw_bias[None, :]


@triton.jit
def load_mean_head(single, packed, SPEC: tl.constexpr, NET: tl.constexpr):
    """The last weight of an actor that has means alone, (H, columns), and its bias."""
    L: tl.constexpr = NET.layers[-1]
    column, unit = tl.arange(0, SPEC.columns), tl.arange(0, L.columns_pad)
    return tl.load(packed + L.packed + column[None, :] * L.columns_pad + unit[:, None]), tl.load(
        single + L.packed_bias + column
    )


@triton.jit
def mean_of(h, head, SPEC: tl.constexpr):
    """The actions that an actor with means alone takes, (rows, columns); zero outside the action's columns."""
    weight, bias = head
    return tl.where(is_action(SPEC), tanh(product(operand(h, SPEC), weight, SPEC) + bias[None, :], False), 0.0)


@triton.jit
def clipped(x, limit):
    """The number nearest to x in [-limit, limit]."""
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit
def is_action(SPEC: tl.constexpr):
    """Which columns are the action's, (1, columns)."""
    column = tl.arange(0, SPEC.columns)
    return ((column >= SPEC.observation) & (column < SPEC.observation + SPEC.action))[None, :]


@triton.jit
def normal(noise, row, begin, stride, mask, SPEC: tl.constexpr):
    """Standard normal numbers (rows, columns) in the action's columns, by Box & Muller 1958, from rows of uniform ones
    (2 A, stride) from `begin` on.
    """
    column = tl.arange(0, SPEC.columns) - SPEC.observation
    place = noise + (begin + column)[None, :] * stride + row[:, None]
    radius = tl.load(place, mask=mask, other=0.0)
    angle = tl.load(place + SPEC.action * stride, mask=mask, other=0.0)
    return tl.sqrt(-2.0 * tl.log(1.0 - radius)) * tl.cos(TWO_PI * angle)


@triton.jit
def squashed(mean, raw, noise, SPEC: tl.constexpr):
    """A sample: action, its log-probability (rows), deviation times noise, and d log deviation / d raw. Zero outside
    the action's columns.
    """
    mask = is_action(SPEC)
    # log std = min + (max - min) (tanh raw + 1) / 2
    bounded = tanh(raw, False)
    log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (bounded + 1.0)
    spread = tl.where(mask, tl.exp(log_std) * noise, 0.0)
    u = mean + spread
    # log N(u) - log (1 - tanh^2 u), the latter as 2 (log 2 - u - softplus(-2 u))
    density = -0.5 * noise * noise - log_std - 0.5 * LOG_2_PI - 2.0 * (LOG_2 - u - softplus(-2.0 * u))
    slope = 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (1.0 - bounded * bounded)
    return (
        tl.where(mask, tanh(u, False), 0.0),
        tl.sum(tl.where(mask, density, 0.0), axis=1),
        spread,
        tl.where(mask, slope, 0.0),
    )
