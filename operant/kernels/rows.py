"""Triton building blocks for small batches of stored rows: one tile of samples through a whole network and back, by one
program. Know no loss.

A tile is given as pointers to its observations' first numbers, and how far their numbers lie apart (1: contiguous rows
of a replay). Weights come from the flat vector as they are; a first layer that is wider than a tile is multiplied a
part of its columns at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.backward import store_first, store_last, store_matrix
from operant.kernels.blocks import (
    compensated,
    feature_of,
    first_operand,
    first_weight_operand,
    forward_hidden,
    hidden_gradient,
    load_first,
    load_network,
    normalize,
    one_hot,
    operand,
    product,
    zeros,
)

MOST_COLUMNS = tl.constexpr(64)
"""Columns of the first layer that are multiplied at a time."""


@triton.jit
def load_features(rows, stride, column, normalizer, in_bounds, SPEC: tl.constexpr):
    """What columns (columns) of the first layer read of observations at pointers `rows` (rows)."""
    feature = feature_of(column, normalizer, SPEC)
    observed = tl.load(
        rows[:, None] + feature[None, :] * stride,
        mask=in_bounds[:, None] & (feature < SPEC.observation)[None, :],
        other=0,
    )
    return first_operand(normalize(one_hot(observed, column, normalizer, SPEC), column, normalizer, SPEC), SPEC)


@triton.jit
def forward_rows(rows, stride, parameters, normalizer, in_bounds, SPEC: tl.constexpr, BLOCK_M: tl.constexpr):
    """Outputs (rows, out_pad) of observations at pointers `rows`; then the network, and its hidden layers as `forward`
    returns them.
    """
    WIDTH: tl.constexpr = MOST_COLUMNS if SPEC.columns_pad > MOST_COLUMNS else SPEC.columns_pad
    network = load_network(parameters, 0, SPEC, False)
    z = zeros(BLOCK_M, SPEC.hidden_pad[0])
    for start in range(0, SPEC.columns_pad, WIDTH):
        column = start + tl.arange(0, WIDTH)
        x = load_features(rows, stride, column, normalizer, in_bounds, SPEC)
        first = first_weight_operand(load_first(parameters, 0, column, SPEC), SPEC)
        z = tl.dot(x, tl.trans(first), z, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    out, hidden, saved = forward_hidden(z, network, SPEC)
    return out, network, hidden, saved


@triton.jit
def store_gradient(
    target, gradient_out, rows, stride, normalizer, in_bounds, network, hidden, saved, SPEC: tl.constexpr
):
    """A tile's gradient from that in its outputs (rows, out_pad), into the flat vector `target`."""
    WIDTH: tl.constexpr = MOST_COLUMNS if SPEC.columns_pad > MOST_COLUMNS else SPEC.columns_pad
    _first, weights, _biases, last, _last_bias, _gains, _shifts = network
    g = operand(gradient_out, SPEC)
    store_last(
        target, compensated(product(tl.trans(hidden[-1]), g, SPEC), 2, SPEC), tl.sum(gradient_out, axis=0), 0, SPEC
    )
    gradient_hidden = product(g, last, SPEC)
    for k in tl.static_range(len(SPEC.weights) - 1, -1, -1):
        gradient_z, scaled, gradient_y = hidden_gradient(gradient_hidden, saved[k + 1], network, SPEC, k + 1)
        _store_norm(target, scaled, gradient_y, SPEC, k + 1)
        g = operand(gradient_z, SPEC)
        dw = compensated(product(tl.trans(g), hidden[k], SPEC), 2, SPEC)
        store_matrix(
            target + SPEC.weights[k], dw, SPEC.hidden[k + 1], SPEC.hidden[k], SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k]
        )
        _store_vector(target + SPEC.biases[k], gradient_z, SPEC.hidden[k + 1], SPEC.hidden_pad[k + 1])
        gradient_hidden = product(g, weights[k], SPEC)
    gradient_z, scaled, gradient_y = hidden_gradient(gradient_hidden, saved[0], network, SPEC, 0)
    _store_norm(target, scaled, gradient_y, SPEC, 0)
    transposed = tl.trans(operand(gradient_z, SPEC))
    for start in range(0, SPEC.columns_pad, WIDTH):
        column = start + tl.arange(0, WIDTH)
        x = operand(load_features(rows, stride, column, normalizer, in_bounds, SPEC), SPEC)
        store_first(target, compensated(product(transposed, x, SPEC), 1, SPEC), 0, column, SPEC)


@triton.jit
def _store_vector(target, gradient, WIDTH: tl.constexpr, PAD: tl.constexpr):
    unit = tl.arange(0, PAD)
    tl.store(target + unit, tl.sum(gradient, axis=0), mask=unit < WIDTH)


@triton.jit
def _store_norm(target, scaled, gradient_y, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """The gradients of a layer's gain and bias, where it is normalized."""
    if SPEC.layer_norm:
        _store_vector(target + SPEC.norm_gains[LAYER], scaled, SPEC.hidden[LAYER], SPEC.hidden_pad[LAYER])
        _store_vector(target + SPEC.norm_biases[LAYER], gradient_y, SPEC.hidden[LAYER], SPEC.hidden_pad[LAYER])
