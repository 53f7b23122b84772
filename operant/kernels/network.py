"""A dense network that one program holds, in Triton: loading its parameters, forward pass, and gradients of a layer.

Tiles are sample-major (rows, units), so that a product's result is the next product's left operand in registers; an
*operand* is a tile in the type of the matrix products, see `operant.kernels.ops.linear`. Units beyond a layer's width
are zero before and after every activation. `SPEC` is a `operant.kernels.spec.Spec`.

Parameters lie in one flat vector, at the offsets that `SPEC` names. A tower is 0 for the actor, 1 for the critic; a
shared trunk has tower 0 alone, which computes both heads. `load_network` returns a tuple:

| element     | shape                 | meaning                                           |
|-------------|-----------------------|---------------------------------------------------|
| first       | (H_0, columns_pad)    | first weight in float32, its bias in column K     |
| weights     | L - 1 of (H_k+1, H_k) | later weights as operands                         |
| biases      | L - 1 of (H_k+1)      | later biases                                      |
| last        | (out_pad, H_L-1)      | head: rows of the distribution, then of the value |
| last_bias   | (out_pad)             | its bias                                          |
| gains       | L of (H_k), or ()     | layer normalization's gains                       |
| norm_biases | L of (H_k), or ()     | layer normalization's biases                      |

H_k are the padded widths `SPEC.hidden_pad` of the L hidden layers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.activation import activate, activation_gradient, saved_activation
from operant.kernels.ops.layer_norm import layer_norm_backward, standardize
from operant.kernels.ops.linear import load_matrix, operand, product, round_to_tf32, weight_operand

# PARAMETERS


@triton.jit
def load_first(params_ptr, tower, column, SPEC: tl.constexpr):
    """Load columns `column` of a tower's first weight as a tile (H_0, columns); column K = SPEC.columns is its bias.
    `params_ptr` (P): flat parameters.
    """
    WIDTH: tl.constexpr = SPEC.hidden[0]
    row, column = tl.arange(0, SPEC.hidden_pad[0]), column[None, :]
    # Two loads: with a select between addresses the compiler would not see contiguous ones.
    weight_ptr = params_ptr + SPEC.first_weight + (tower * WIDTH + row)[:, None] * SPEC.columns + column
    weight = tl.load(weight_ptr, mask=(row < WIDTH)[:, None] & (column < SPEC.columns), other=0.0)
    bias = tl.load(params_ptr + SPEC.first_bias + tower * WIDTH + row, mask=row < WIDTH, other=0.0)[:, None]
    return tl.where(column == SPEC.columns, bias, weight)


@triton.jit
def first_weight_operand(first, SPEC: tl.constexpr):
    """Round the first weight, `first`, to tf32 (also in bf16, see `forward`), or return it unchanged in float32
    ("ieee").
    """
    return first if SPEC.precision == "ieee" else round_to_tf32(first)


@triton.jit
def column_mask(column, tower, SPEC: tl.constexpr):
    """Return the mask of the output columns that a tower computes: those of the actor's logits or means (tower 0), of
    the critic's value (tower 1), or both with a shared trunk. Has the shape of `column`, indices of columns.
    """
    if SPEC.shared:
        return column <= SPEC.head_rows
    else:
        return ((column < SPEC.head_rows) & (tower == 0)) | ((column == SPEC.head_rows) & (tower == 1))


@triton.jit
def load_last(params_ptr, tower, SPEC: tl.constexpr):
    """Load the weight of a tower's output layer as a tile (out_pad, H_L-1); rows that this tower does not compute are
    zero.
    """
    WIDTH: tl.constexpr = SPEC.hidden[-1]
    row, column = tl.arange(0, SPEC.out_pad)[:, None], tl.arange(0, SPEC.hidden_pad[-1])[None, :]
    head = params_ptr + SPEC.head_weight + row * WIDTH + column
    value = params_ptr + SPEC.value_weight + 0 * row + column
    return tl.load(
        tl.where(row < SPEC.head_rows, head, value), mask=column_mask(row, tower, SPEC) & (column < WIDTH), other=0.0
    )


@triton.jit
def out_bias(params_ptr, tower, SPEC: tl.constexpr):
    """Load the bias of a tower's output layer, (out_pad); columns that this tower does not compute are zero."""
    column = tl.arange(0, SPEC.out_pad)
    bias_ptr = tl.where(
        column < SPEC.head_rows, params_ptr + SPEC.head_bias + column, params_ptr + SPEC.value_bias + 0 * column
    )
    return tl.load(bias_ptr, mask=column_mask(column, tower, SPEC), other=0.0)


@triton.jit
def load_log_std(params_ptr, column, SPEC: tl.constexpr):
    """Load a Gaussian's log standard deviations, (columns); zero in columns that are not means, and for a Categorical.
    `column`: indices of output columns.
    """
    return tl.load(
        params_ptr + SPEC.log_std + column, mask=column < (SPEC.head_rows if SPEC.log_std >= 0 else 0), other=0.0
    )


@triton.jit
def load_norms(params_ptr, tower, SPEC: tl.constexpr):
    """Load the gains and biases of a tower's layer normalization: two tuples with a vector (H_k) for each hidden layer,
    empty without it.
    """
    gains = ()
    norm_biases = ()
    if SPEC.layer_norm:
        for k in tl.static_range(len(SPEC.hidden)):
            unit = tl.arange(0, SPEC.hidden_pad[k])
            offset, mask = tower * SPEC.hidden[k] + unit, unit < SPEC.hidden[k]
            gains = gains + (tl.load(params_ptr + SPEC.norm_gains[k] + offset, mask=mask, other=0.0),)
            norm_biases = norm_biases + (tl.load(params_ptr + SPEC.norm_biases[k] + offset, mask=mask, other=0.0),)
    return gains, norm_biases


@triton.jit
def load_network(params_ptr, tower, SPEC: tl.constexpr, FIRST: tl.constexpr = True):
    """Load a tower's parameters from the flat vector `params_ptr` (P): the tuple of the table at the top of this file.
    Without FIRST its first element is 0.
    """
    weights = ()
    biases = ()
    for k in tl.static_range(len(SPEC.weights)):
        weight_ptr = params_ptr + SPEC.weights[k] + tower * (SPEC.hidden[k + 1] * SPEC.hidden[k])
        weight = load_matrix(weight_ptr, SPEC.hidden[k + 1], SPEC.hidden[k], SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k])
        # In tf32 scaled by 1 + 3.5e-4, since the activations are truncated; see kernels/ops/linear.py.
        weights = weights + (weight_operand(weight, SPEC),)
        unit = tl.arange(0, SPEC.hidden_pad[k + 1])
        bias_ptr = params_ptr + SPEC.biases[k] + tower * SPEC.hidden[k + 1] + unit
        biases = biases + (tl.load(bias_ptr, mask=unit < SPEC.hidden[k + 1], other=0.0),)
    last = weight_operand(load_last(params_ptr, tower, SPEC), SPEC)
    first = 0.0
    if FIRST:
        first = first_weight_operand(load_first(params_ptr, tower, tl.arange(0, SPEC.columns_pad), SPEC), SPEC)
    gains, norm_biases = load_norms(params_ptr, tower, SPEC)
    return first, weights, biases, last, out_bias(params_ptr, tower, SPEC), gains, norm_biases


# LAYERS


@triton.jit
def hidden_forward(z, network, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Forward pass of hidden layer LAYER after its product: return activations h = f(z), rounded as operands of the
    next product, and the tensors saved for the backward pass. z (rows, H) are pre-activations, bias included; with
    layer normalization h = f(gain x_hat + bias), x_hat = (z - mean) / std.

    Saved is `saved_activation(z, h)`; with layer normalization x_hat as an operand and 1 / std (rows).
    """
    if SPEC.layer_norm:
        _first, _weights, _biases, _last, _last_bias, gains, norm_biases = network
        WIDTH: tl.constexpr = SPEC.hidden[LAYER]
        mask = (tl.arange(0, SPEC.hidden_pad[LAYER]) < WIDTH)[None, :]
        x_hat, inv_std = standardize(z, mask, SPEC.norm_epsilon, WIDTH, True)
        y = x_hat * gains[LAYER][None, :] + norm_biases[LAYER][None, :]
        return operand(activate(y, SPEC), SPEC), (operand(x_hat, SPEC), inv_std)
    else:
        h = operand(activate(z, SPEC), SPEC)
        return h, saved_activation(z, h, SPEC)


@triton.jit
def hidden_backward(grad_h, saved, network, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """Backward pass of `hidden_forward`: return the gradients of the loss in z, in the gain and in the normalization's
    bias, (rows, H) each, from that in h, `grad_h` (rows, H). `saved`: the layer's saved tensors; `network`: as
    `load_network` returns it.

    Those in the gain and the bias are to be summed over rows, and mean nothing without layer normalization.
    """
    if SPEC.layer_norm:
        _first, _weights, _biases, _last, _last_bias, gains, norm_biases = network
        WIDTH: tl.constexpr = SPEC.hidden[LAYER]
        x_hat, inv_std = saved[0].to(tl.float32), saved[1]
        gain = gains[LAYER][None, :]
        y = x_hat * gain + norm_biases[LAYER][None, :]
        grad_y = grad_h * activation_gradient(saved_activation(y, activate(y, SPEC), SPEC), SPEC)
        return layer_norm_backward(grad_y, x_hat, inv_std, gain, WIDTH, True), grad_y * x_hat, grad_y
    else:
        grad_z = grad_h * activation_gradient(saved, SPEC)
        return grad_z, grad_z, grad_z


@triton.jit
def forward(x, network, SPEC: tl.constexpr):
    """Run a tower on features x (rows, columns_pad): return its outputs (rows, out_pad), the activations and the
    tensors saved for the backward pass. `network` is as `load_network` returns it.

    Activations and saved tensors are tuples with one entry per hidden layer, see `hidden_forward`.
    """
    # The first product has at least tf32: bf16 would round away small differences of large raw observations.
    z = tl.dot(x, tl.trans(network[0]), input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    return forward_hidden(z, network, SPEC)


@triton.jit
def forward_hidden(z, network, SPEC: tl.constexpr):
    """Run a tower from the first layer's pre-activations z (rows, H_0) on: return what `forward` returns."""
    _first, weights, biases, last, last_bias, _gains, _norm_biases = network
    h, saved_layer = hidden_forward(z, network, SPEC, 0)
    hidden = (h,)
    saved = (saved_layer,)
    for k in tl.static_range(len(SPEC.weights)):
        z = product(h, tl.trans(weights[k]), SPEC) + biases[k][None, :]
        h, saved_layer = hidden_forward(z, network, SPEC, k + 1)
        hidden = hidden + (h,)
        saved = saved + (saved_layer,)
    return product(h, tl.trans(last), SPEC) + last_bias[None, :], hidden, saved
