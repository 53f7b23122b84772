"""Triton functions of narrow networks: forward passes, and the gradient of Q in a network's pre-activations.

A program holds a tile of samples, (rows, features), and runs a whole network over it, from *packed* weights: copies of
each layer's weight, zero-padded, in the type of the matrix products' operands. A *tower* is one of several networks of
the same shape, the critics; the *trunk* is a tower's hidden layers, the *head* its output layer.

Common parameters: `SPEC`: `NarrowSpec`; `NET`: `Net` of the network; `single_ptr`, `packed_ptr`: one tower of its
`PackedWeights`; `PRELOAD`: load weights before the inputs are known; `trunk` as `load_trunk` returns it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.gaussian import is_action
from operant.kernels.ops.activation import activate, activation_gradient, tanh
from operant.kernels.ops.linear import operand, product, round_to_tf32

# PRODUCTS


@triton.jit
def load_weight(weight_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRELOAD: tl.constexpr):
    """Load a packed weight (ROWS, COLUMNS) as a right operand, transposed to (COLUMNS, ROWS); without PRELOAD return
    its pointer, and later functions load it where they multiply.
    """
    if PRELOAD:
        return tl.load(weight_ptr + tl.arange(0, ROWS)[None, :] * COLUMNS + tl.arange(0, COLUMNS)[:, None])
    else:
        return weight_ptr


@triton.jit
def _halves(x):
    """Return the first and the second half of a tile's columns."""
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(x, (M, 2, N)), (0, 2, 1)))


@triton.jit
def matmul_transposed(x, weight, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPEC: tl.constexpr):
    """Return x W^T for a weight W (ROWS, COLUMNS), as in a forward pass; `weight` is as `load_weight` returned it."""
    if SPEC.preload:
        return product(x, weight, SPEC)
    else:
        return _matmul_ptr(x, weight, ROWS, COLUMNS, 1, COLUMNS, SPEC)


@triton.jit
def matmul(x, weight, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPEC: tl.constexpr):
    """Return x W for a weight W (ROWS, COLUMNS), as in a backward pass; `weight` is as `load_weight` returned it."""
    if SPEC.preload:
        return product(x, tl.trans(weight), SPEC)
    else:
        return matmul_ptr(x, weight, ROWS, COLUMNS, SPEC)


@triton.jit
def matmul_ptr(x, weight_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPEC: tl.constexpr):
    """Return x W for the packed weight W (ROWS, COLUMNS) at a pointer, loading it here."""
    return _matmul_ptr(x, weight_ptr, COLUMNS, ROWS, COLUMNS, 1, SPEC)


@triton.jit
def _matmul_slice(x, weight_ptr, N: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_N: tl.constexpr, SPEC: tl.constexpr):
    """Return the product of x (rows, K) and the matrix (K, N) at a pointer, with strides STRIDE_K and STRIDE_N, in one
    product.
    """
    K: tl.constexpr = x.shape[1]
    return product(
        x, tl.load(weight_ptr + tl.arange(0, K)[:, None] * STRIDE_K + tl.arange(0, N)[None, :] * STRIDE_N), SPEC
    )


@triton.jit
def _matmul_ptr(
    x,
    weight_ptr,
    N: tl.constexpr,
    K: tl.constexpr,
    STRIDE_K: tl.constexpr,
    STRIDE_N: tl.constexpr,
    SPEC: tl.constexpr,
):
    """Return the product of x (rows, K) and the matrix (K, N) at a pointer, in one, two or four products of depth up to
    SPEC.max_depth.
    """
    if SPEC.max_depth >= K:
        return _matmul_slice(x, weight_ptr, N, STRIDE_K, STRIDE_N, SPEC)
    else:
        HALF: tl.constexpr = K // 2
        low, high = _halves(x)
        if SPEC.max_depth >= HALF:
            return _matmul_slice(low, weight_ptr, N, STRIDE_K, STRIDE_N, SPEC) + _matmul_slice(
                high, weight_ptr + HALF * STRIDE_K, N, STRIDE_K, STRIDE_N, SPEC
            )
        else:
            QUARTER: tl.constexpr = K // 4
            x0, x1 = _halves(low)
            x2, x3 = _halves(high)
            below = _matmul_slice(x0, weight_ptr, N, STRIDE_K, STRIDE_N, SPEC) + _matmul_slice(
                x1, weight_ptr + QUARTER * STRIDE_K, N, STRIDE_K, STRIDE_N, SPEC
            )
            above = _matmul_slice(x2, weight_ptr + HALF * STRIDE_K, N, STRIDE_K, STRIDE_N, SPEC) + _matmul_slice(
                x3, weight_ptr + (HALF + QUARTER) * STRIDE_K, N, STRIDE_K, STRIDE_N, SPEC
            )
            return below + above


@triton.jit
def first_layer_product(x, weight, SPEC: tl.constexpr):
    """Return the first layer's product x W^T, in tf32 at least: raw observations may be large and differ little."""
    return tl.dot(x, weight, input_precision="ieee" if SPEC.precision == "ieee" else "tf32")


@triton.jit
def first_layer_operand(x, SPEC: tl.constexpr):
    """Cast the first layer's input x to the type of its product."""
    return x if SPEC.precision == "ieee" else round_to_tf32(x)


# TRUNKS


@triton.jit
def load_trunk(single_ptr, packed_ptr, SPEC: tl.constexpr, NET: tl.constexpr):
    """Load a tower's hidden layers: the first weight, the later weights (or their pointers), and all biases, as one
    tuple. `single_ptr` and `packed_ptr`: the tower's `PackedWeights`.
    """
    FIRST: tl.constexpr = NET.layers[0]
    first = tl.load(
        single_ptr
        + FIRST.packed
        + tl.arange(0, FIRST.rows_pad)[None, :] * FIRST.columns_pad
        + tl.arange(0, FIRST.columns_pad)[:, None]
    )
    biases = (tl.load(single_ptr + FIRST.packed_bias + tl.arange(0, FIRST.rows_pad)),)
    weights = ()
    for k in tl.static_range(1, len(NET.layers) - 1):
        weights = weights + (
            load_weight(
                packed_ptr + NET.layers[k].packed, NET.layers[k].rows_pad, NET.layers[k].columns_pad, SPEC.preload
            ),
        )
        biases = biases + (tl.load(single_ptr + NET.layers[k].packed_bias + tl.arange(0, NET.layers[k].rows_pad)),)
    return first, weights, biases


@triton.jit
def forward_trunk(x, trunk, SPEC: tl.constexpr, NET: tl.constexpr):
    """Return the activations of each hidden layer, a tuple of (rows, H) float32, for inputs x (rows, columns). `trunk`
    is as `load_trunk` returns it.
    """
    first, weights, biases = trunk
    h = activate(first_layer_product(first_layer_operand(x, SPEC), first, SPEC) + biases[0][None, :], SPEC)
    hidden = (h,)
    for k in tl.static_range(len(NET.layers) - 2):
        z = (
            matmul_transposed(
                operand(h, SPEC), weights[k], NET.layers[k + 1].rows_pad, NET.layers[k + 1].columns_pad, SPEC
            )
            + biases[k + 1][None, :]
        )
        h = activate(z, SPEC)
        hidden = hidden + (h,)
    return hidden


# CRITICS


@triton.jit
def load_value_head(single_ptr, NET: tl.constexpr):
    """Load weight (H) and bias of a critic's output layer."""
    HEAD: tl.constexpr = NET.layers[-1]
    return tl.load(single_ptr + HEAD.packed + tl.arange(0, HEAD.columns_pad)), tl.load(single_ptr + HEAD.packed_bias)


@triton.jit
def q_value(h, head):
    """Return Q (rows) from the last hidden activations h (rows, H); `head` is as `load_value_head` returns it."""
    weight, bias = head
    return tl.sum(h * weight[None, :], axis=1) + bias


@triton.jit
def q_backward(hidden, trunk, head, SPEC: tl.constexpr, NET: tl.constexpr):
    """Return the gradients of Q in each hidden layer's pre-activations, a tuple of (rows, H), first layer first.
    `hidden` are the layers' activations.
    """
    _first, weights, _biases = trunk
    weight, _bias = head
    grad_z = weight[None, :] * activation_gradient(hidden[len(NET.layers) - 2], SPEC)
    gradients = (grad_z,)
    for k in tl.static_range(len(NET.layers) - 3, -1, -1):
        grad_h = matmul(
            operand(grad_z, SPEC), weights[k], NET.layers[k + 1].rows_pad, NET.layers[k + 1].columns_pad, SPEC
        )
        grad_z = grad_h * activation_gradient(hidden[k], SPEC)
        gradients = (grad_z,) + gradients
    return gradients


# ACTORS


@triton.jit
def load_gaussian_head(single_ptr, packed_ptr, SPEC: tl.constexpr, NET: tl.constexpr):
    """Load a Gaussian actor's output layer: weights of means and of raw standard deviations, (H, columns) each, and
    their biases, in the action's columns.
    """
    HEAD: tl.constexpr = NET.layers[-1]
    column, unit = tl.arange(0, SPEC.columns), tl.arange(0, HEAD.columns_pad)
    weight_ptr = packed_ptr + HEAD.packed + column[None, :] * HEAD.columns_pad + unit[:, None]
    bias_ptr = single_ptr + HEAD.packed_bias + column
    return (
        tl.load(weight_ptr),
        tl.load(weight_ptr + SPEC.columns * HEAD.columns_pad),
        tl.load(bias_ptr),
        tl.load(bias_ptr + SPEC.columns),
    )


@triton.jit
def gaussian_outputs(h, head, SPEC: tl.constexpr):
    """Return means and raw standard deviations, (rows, columns), from the last hidden activations h; `head` is as
    `load_gaussian_head` returns it.
    """
    mean, raw, mean_bias, raw_bias = head
    x = operand(h, SPEC)
    return product(x, mean, SPEC) + mean_bias[None, :], product(x, raw, SPEC) + raw_bias[None, :]


@triton.jit
def load_mean_head(single_ptr, packed_ptr, SPEC: tl.constexpr, NET: tl.constexpr):
    """Load weight (H, columns) and bias of a deterministic actor's output layer."""
    HEAD: tl.constexpr = NET.layers[-1]
    column, unit = tl.arange(0, SPEC.columns), tl.arange(0, HEAD.columns_pad)
    return tl.load(packed_ptr + HEAD.packed + column[None, :] * HEAD.columns_pad + unit[:, None]), tl.load(
        single_ptr + HEAD.packed_bias + column
    )


@triton.jit
def deterministic_action(h, head, SPEC: tl.constexpr):
    """Return tanh of a deterministic actor's outputs, (rows, columns), zero outside the action's columns; `head` is as
    `load_mean_head` returns it.
    """
    weight, bias = head
    return tl.where(is_action(SPEC), tanh(product(operand(h, SPEC), weight, SPEC) + bias[None, :], False), 0.0)
