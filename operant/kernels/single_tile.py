"""Device functions for small batches: forward and backward pass of one tile of samples through a whole network.

Observations are given by pointers, for batches drawn from a replay. One program computes a tile and holds no gradient
sums. Parameters are read from the flat vector. A first layer of more than 64 columns is multiplied 64 columns at a
time.

| parameter      | shape           | meaning                                                  |
|----------------|-----------------|----------------------------------------------------------|
| rows_ptr       | (rows) pointers | first feature of each observation                        |
| stride         | int             | distance between features: 1 in a replay, N in a rollout |
| params_ptr     | (P)             | parameters                                               |
| normalizer_ptr |                 | table, see `operant.kernels.observations`                |
| in_bounds      | (rows)          | rows of the batch                                        |
| grad_ptr       | (P)             | gradient of the tile, written                            |
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.backward import store_first, store_last
from operant.kernels.network import first_weight_operand, forward_hidden, hidden_backward, load_first, load_network
from operant.kernels.observations import feature_of, first_operand, normalize, one_hot
from operant.kernels.ops.linear import compensated, operand, product, store_matrix, zeros

MAX_COLUMNS = tl.constexpr(64)
"""Columns of the first layer that are multiplied at a time."""


@triton.jit
def load_features(rows_ptr, stride, column, normalizer_ptr, in_bounds, SPEC: tl.constexpr):
    """Load columns `column` of the first layer's input, (rows, columns): observations one-hot encoded, normalized, and
    rounded as the operand of the first product.
    """
    feature = feature_of(column, normalizer_ptr, SPEC)
    x = tl.load(
        rows_ptr[:, None] + feature[None, :] * stride,
        mask=in_bounds[:, None] & (feature < SPEC.observation)[None, :],
        other=0,
    )
    return first_operand(normalize(one_hot(x, column, normalizer_ptr, SPEC), column, normalizer_ptr, SPEC), SPEC)


@triton.jit
def forward_rows(rows_ptr, stride, params_ptr, normalizer_ptr, in_bounds, SPEC: tl.constexpr, BLOCK_M: tl.constexpr):
    """Run a network on a tile of observations given by pointers: return outputs (rows, out_pad), the network's
    parameters, the activations and the tensors saved for the backward pass.

    The latter three are as `load_network` and `forward` return them.
    """
    WIDTH: tl.constexpr = MAX_COLUMNS if SPEC.columns_pad > MAX_COLUMNS else SPEC.columns_pad
    network = load_network(params_ptr, 0, SPEC, False)
    z = zeros(BLOCK_M, SPEC.hidden_pad[0])
    for start in range(0, SPEC.columns_pad, WIDTH):
        column = start + tl.arange(0, WIDTH)
        x = load_features(rows_ptr, stride, column, normalizer_ptr, in_bounds, SPEC)
        first = first_weight_operand(load_first(params_ptr, 0, column, SPEC), SPEC)
        z = tl.dot(x, tl.trans(first), z, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    out, hidden, saved = forward_hidden(z, network, SPEC)
    return out, network, hidden, saved


@triton.jit
def store_gradient(
    grad_ptr, grad_out, rows_ptr, stride, normalizer_ptr, in_bounds, network, hidden, saved, SPEC: tl.constexpr
):
    """Backward pass of a tile: from `grad_out` (rows, out_pad), the gradient in the outputs, compute the gradient of
    all parameters, summed over the tile's rows, and store it at `grad_ptr` (P). `network`, `hidden` and `saved` are as
    `forward_rows` returned them.
    """
    WIDTH: tl.constexpr = MAX_COLUMNS if SPEC.columns_pad > MAX_COLUMNS else SPEC.columns_pad
    _first, weights, _biases, last, _last_bias, _gains, _norm_biases = network
    g = operand(grad_out, SPEC)
    grad_last = compensated(product(tl.trans(hidden[-1]), g, SPEC), 2, SPEC)
    store_last(grad_ptr, grad_last, tl.sum(grad_out, axis=0), 0, SPEC)
    grad_h = product(g, last, SPEC)
    for k in tl.static_range(len(SPEC.weights) - 1, -1, -1):
        grad_z, grad_gain, grad_norm_bias = hidden_backward(grad_h, saved[k + 1], network, SPEC, k + 1)
        _store_norm(grad_ptr, grad_gain, grad_norm_bias, SPEC, k + 1)
        # dW = g^T h, db = g^T 1
        g = operand(grad_z, SPEC)
        dw = compensated(product(tl.trans(g), hidden[k], SPEC), 2, SPEC)
        weight_ptr = grad_ptr + SPEC.weights[k]
        store_matrix(weight_ptr, dw, SPEC.hidden[k + 1], SPEC.hidden[k], SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k])
        _store_column_sum(grad_ptr + SPEC.biases[k], grad_z, SPEC.hidden[k + 1], SPEC.hidden_pad[k + 1])
        grad_h = product(g, weights[k], SPEC)
    grad_z, grad_gain, grad_norm_bias = hidden_backward(grad_h, saved[0], network, SPEC, 0)
    _store_norm(grad_ptr, grad_gain, grad_norm_bias, SPEC, 0)
    transposed = tl.trans(operand(grad_z, SPEC))
    for start in range(0, SPEC.columns_pad, WIDTH):
        column = start + tl.arange(0, WIDTH)
        x = operand(load_features(rows_ptr, stride, column, normalizer_ptr, in_bounds, SPEC), SPEC)
        store_first(grad_ptr, compensated(product(transposed, x, SPEC), 1, SPEC), 0, column, SPEC)


@triton.jit
def _store_column_sum(grad_ptr, tile, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr):
    """Store the sum over rows of a tile (rows, WIDTH_PAD), its first WIDTH columns, at `grad_ptr`."""
    unit = tl.arange(0, WIDTH_PAD)
    tl.store(grad_ptr + unit, tl.sum(tile, axis=0), mask=unit < WIDTH)


@triton.jit
def _store_norm(grad_ptr, grad_gain, grad_norm_bias, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Store the gradients of hidden layer LAYER's gain and normalization bias into the flat gradient `grad_ptr` (P):
    sums over the rows of `grad_gain` and `grad_norm_bias` (rows, H). Nothing without layer normalization.
    """
    if SPEC.layer_norm:
        _store_column_sum(grad_ptr + SPEC.norm_gains[LAYER], grad_gain, SPEC.hidden[LAYER], SPEC.hidden_pad[LAYER])
        _store_column_sum(
            grad_ptr + SPEC.norm_biases[LAYER], grad_norm_bias, SPEC.hidden[LAYER], SPEC.hidden_pad[LAYER]
        )
