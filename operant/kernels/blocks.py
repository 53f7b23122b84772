"""Building blocks of the Triton kernels: products, activations, what the first layer reads, the network forward,
distributions.

Tiles are sample-major, (rows, features): a product's result then is the next one's left operand without leaving its
registers. Rows are samples; columns beyond a layer's width are zero, and stay zero through every activation. Everything
about a network is known when a kernel is compiled: `SPEC` is a `operant.kernels.spec.Spec`. Knows no rollout and no
loss.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LOG_2 = tl.constexpr(0.6931471805599453)
LOG_2_PI = tl.constexpr(1.8378770664093453)
TWO_PI = tl.constexpr(6.283185307179586)
ILLEGAL = tl.constexpr(-1e9)
CUT = tl.constexpr(3.5e-4)
"""The share that a number loses on average where a tf32 product cuts off its last 13 bits: 2^-11 times the mean of 1 /
mantissa, 0.72.
"""
INVERSE_SQRT_2 = tl.constexpr(0.7071067811865476)
INVERSE_SQRT_2_PI = tl.constexpr(0.3989422804014327)


class Places(tl.constexpr):
    """A named tuple of numbers that kernels read by name, as in PLACES.second."""

    def __getattr__(
        self, name: str
    ) -> Any:  # Triton's compiler looks into the value by itself, its interpreter does not
        if "value" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.value, name)


@triton.jit
def zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile of zeros in float32."""
    return tl.zeros((BLOCK_M, BLOCK_N), tl.float32)


@triton.jit
def operand(x, SPEC: tl.constexpr):
    """A tile as products take it."""
    return x.to(tl.bfloat16) if SPEC.precision == "bf16" else x


@triton.jit
def round_to_tf32(x):
    """The nearest number that tf32 has; NaN stays."""
    # ptxas 12.8 drops a wgmma in a loop whose result only integer operations and comparisons read, and takes zeros: so
    # a float addition reads it first.
    x += 0.0
    nearest = ((x.to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True)
    return tl.where(x == x, nearest, x)


@triton.jit
def weight_operand(w, SPEC: tl.constexpr):
    """A weight as products take it: in tf32 as much larger as the activations that it will meet are made smaller."""
    return round_to_tf32(w * (1.0 + CUT)) if SPEC.precision == "tf32" and SPEC.approximate else operand(w, SPEC)


@triton.jit
def compensated(total, TIMES: tl.constexpr, SPEC: tl.constexpr):
    """A sum of products of activations, `TIMES` of whose operands were cut off rather than rounded."""
    return total * (1.0 + TIMES * CUT) if SPEC.precision == "tf32" and SPEC.approximate else total


@triton.jit
def product(a, b, SPEC: tl.constexpr):
    """A b, in float32."""
    return tl.dot(a, b) if SPEC.precision == "bf16" else tl.dot(a, b, input_precision=SPEC.precision)


@triton.jit
def add_product(a, b, total, SPEC: tl.constexpr):
    """Total + a b, in float32."""
    return tl.dot(a, b, total) if SPEC.precision == "bf16" else tl.dot(a, b, total, input_precision=SPEC.precision)


# ACTIVATIONS


@triton.jit
def sigmoid(x, APPROXIMATE: tl.constexpr = False):
    """1 / (1 + e^-x), to rounding or by the GPU's own tanh."""
    return 0.5 * tanh(0.5 * x, True) + 0.5 if APPROXIMATE else 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x, APPROXIMATE: tl.constexpr):
    """Tanh x: to rounding, as 2 sigmoid(2x) - 1; or by the GPU's own instruction, to 2^-11."""
    if APPROXIMATE:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 2.0 * sigmoid(2.0 * x) - 1.0


@triton.jit
def activate(z, SPEC: tl.constexpr):
    """f(z)."""
    if SPEC.activation == "tanh":
        return tanh(z, SPEC.approximate)
    elif SPEC.activation == "relu":
        return tl.where(z < 0.0, 0.0, z)
    elif SPEC.activation == "silu":
        return z * sigmoid(z, SPEC.approximate)
    else:
        return 0.5 * z * (1.0 + tl.erf(z * INVERSE_SQRT_2))


@triton.jit
def saved_activation(z, h, SPEC: tl.constexpr):
    """What the activation's gradient needs: the activation where that is enough, or its argument."""
    return h if SPEC.activation == "tanh" or SPEC.activation == "relu" else operand(z, SPEC)


@triton.jit
def activation_gradient(saved, SPEC: tl.constexpr):
    """f'(z), from what `saved_activation` has saved."""
    x = saved.to(tl.float32)
    if SPEC.activation == "tanh":
        return 1.0 - x * x
    elif SPEC.activation == "relu":
        return tl.where(x > 0.0, 1.0, 0.0)
    elif SPEC.activation == "silu":
        s = sigmoid(x, SPEC.approximate)
        return s * (1.0 + x * (1.0 - s))
    else:
        return 0.5 * (1.0 + tl.erf(x * INVERSE_SQRT_2)) + x * INVERSE_SQRT_2_PI * tl.exp(-0.5 * x * x)


# OBSERVATIONS


@triton.jit
def feature_of(column, normalizer, SPEC: tl.constexpr):
    """Which number of an observation a column of the first layer reads, (columns); beyond the last column an index past
    the end, which loads mask.
    """
    if SPEC.partial_one_hot:
        return tl.load(normalizer + column, mask=column < SPEC.columns, other=SPEC.observation).to(tl.int32)
    else:
        return column // SPEC.categories if SPEC.categories > 0 else column


@triton.jit
def one_hot(observed, column, normalizer, SPEC: tl.constexpr):
    """An observation's numbers (rows, columns) as the columns read them: 1 or 0 for a category, numeric features as
    they are.

    A value that is not one of the k categories has 0 in all of their columns.
    """
    if SPEC.partial_one_hot:
        category = tl.load(normalizer + SPEC.columns + column, mask=column < SPEC.columns, other=-1.0)[None, :]
        return tl.where(
            category < 0.0, observed, tl.where(observed.to(tl.float32) == category, 1, 0).to(observed.dtype)
        )
    elif SPEC.categories > 0:
        equal = (observed.to(tl.int32) == (column % SPEC.categories)[None, :]) & (column < SPEC.columns)[None, :]
        return tl.where(equal, 1, 0).to(observed.dtype)
    else:
        return observed


@triton.jit
def normalize(features, column, normalizer, SPEC: tl.constexpr):
    """What columns of the first layer read (rows, columns), from what `one_hot` returns: normalized where asked for; 1
    in the column behind the last.

    `normalizer`: mean (O), inv_std (O). With a table for each feature (4, K): the feature that each column reads, its
    category (-1: numeric), mean, inv_std.
    """
    x = features.to(tl.float32)
    if SPEC.normalize:
        in_bounds = column < SPEC.columns
        if SPEC.partial_one_hot:
            normalizer += 2 * SPEC.columns
        mean = tl.load(normalizer + column, mask=in_bounds, other=0.0)
        inv_std = tl.load(normalizer + SPEC.columns + column, mask=in_bounds, other=0.0)
        x = (x - mean[None, :]) * inv_std[None, :]
        x = tl.where(x > 10.0, 10.0, tl.where(x < -10.0, -10.0, x))
    # The column of ones multiplies the bias, which is the last column of the first weight.
    return tl.where((column == SPEC.columns)[None, :], 1.0, x)


@triton.jit
def first_operand(x, SPEC: tl.constexpr):
    """What the first layer reads, as its product takes it where that never has fewer bits than tf32. Bytes have no more
    than those.
    """
    return x if SPEC.precision == "ieee" or (SPEC.bytes and not SPEC.normalize) else round_to_tf32(x)


# THE NETWORK


@triton.jit
def load_matrix(start, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROWS_PAD: tl.constexpr, COLUMNS_PAD: tl.constexpr):
    """A row-major matrix as a tile, zero outside."""
    row, column = tl.arange(0, ROWS_PAD)[:, None], tl.arange(0, COLUMNS_PAD)[None, :]
    return tl.load(start + row * COLUMNS + column, mask=(row < ROWS) & (column < COLUMNS), other=0.0)


@triton.jit
def load_first(parameters, tower, column, SPEC: tl.constexpr):
    """Columns (columns) of the first layer's weight, (H, columns): the one behind the last is the bias."""
    WIDTH: tl.constexpr = SPEC.hidden[0]
    row, column = tl.arange(0, SPEC.hidden_pad[0]), column[None, :]
    # Two loads: a choice between addresses would hide which lie side by side.
    place = parameters + SPEC.first_weight + (tower * WIDTH + row)[:, None] * SPEC.columns + column
    weight = tl.load(place, mask=(row < WIDTH)[:, None] & (column < SPEC.columns), other=0.0)
    bias = tl.load(parameters + SPEC.first_bias + tower * WIDTH + row, mask=row < WIDTH, other=0.0)[:, None]
    return tl.where(column == SPEC.columns, bias, weight)


@triton.jit
def load_last(parameters, tower, SPEC: tl.constexpr):
    """The last weight, (out_pad, H): the distribution's rows, then the value's; only those that this tower has."""
    WIDTH: tl.constexpr = SPEC.hidden[-1]
    row, column = tl.arange(0, SPEC.out_pad)[:, None], tl.arange(0, SPEC.hidden_pad[-1])[None, :]
    head = parameters + SPEC.head_weight + row * WIDTH + column
    value = parameters + SPEC.value_weight + 0 * row + column
    return tl.load(
        tl.where(row < SPEC.head_rows, head, value), mask=column_mask(row, tower, SPEC) & (column < WIDTH), other=0.0
    )


@triton.jit
def out_bias(parameters, tower, SPEC: tl.constexpr):
    """The last bias, (out_pad)."""
    column = tl.arange(0, SPEC.out_pad)
    place = tl.where(
        column < SPEC.head_rows, parameters + SPEC.head_bias + column, parameters + SPEC.value_bias + 0 * column
    )
    return tl.load(place, mask=column_mask(column, tower, SPEC), other=0.0)


@triton.jit
def column_mask(column, tower, SPEC: tl.constexpr):
    """Which columns of the last product this tower computes: the actor the distribution's, the critic the value's, a
    shared trunk both.
    """
    if SPEC.shared:
        return column <= SPEC.head_rows
    else:
        return ((column < SPEC.head_rows) & (tower == 0)) | ((column == SPEC.head_rows) & (tower == 1))


@triton.jit
def load_log_std(parameters, column, SPEC: tl.constexpr):
    """A Gaussian's log_std in its columns, zero elsewhere, (columns)."""
    return tl.load(
        parameters + SPEC.log_std + column, mask=column < (SPEC.head_rows if SPEC.log_std >= 0 else 0), other=0.0
    )


@triton.jit
def first_weight_operand(first, SPEC: tl.constexpr):
    """The first layer's weight as its product takes it."""
    return first if SPEC.precision == "ieee" else round_to_tf32(first)


@triton.jit
def load_norms(parameters, tower, SPEC: tl.constexpr):
    """Layer normalization's gains and biases, (units) of each hidden layer."""
    gains = ()
    shifts = ()
    if SPEC.layer_norm:
        for k in tl.static_range(len(SPEC.hidden)):
            unit = tl.arange(0, SPEC.hidden_pad[k])
            place, mask = tower * SPEC.hidden[k] + unit, unit < SPEC.hidden[k]
            gains = gains + (tl.load(parameters + SPEC.norm_gains[k] + place, mask=mask, other=0.0),)
            shifts = shifts + (tl.load(parameters + SPEC.norm_biases[k] + place, mask=mask, other=0.0),)
    return gains, shifts


@triton.jit
def load_network(parameters, tower, SPEC: tl.constexpr, FIRST: tl.constexpr = True):
    """One tower's parameters: the first weight (float32, with its bias), later weights, later biases, the last weight,
    the last bias, and of layer normalization the gains and biases, none without it.
    """
    weights = ()
    biases = ()
    for k in tl.static_range(len(SPEC.weights)):
        place = parameters + SPEC.weights[k] + tower * (SPEC.hidden[k + 1] * SPEC.hidden[k])
        weights = weights + (
            weight_operand(
                load_matrix(place, SPEC.hidden[k + 1], SPEC.hidden[k], SPEC.hidden_pad[k + 1], SPEC.hidden_pad[k]), SPEC
            ),
        )
        unit = tl.arange(0, SPEC.hidden_pad[k + 1])
        biases = biases + (
            tl.load(
                parameters + SPEC.biases[k] + tower * SPEC.hidden[k + 1] + unit,
                mask=unit < SPEC.hidden[k + 1],
                other=0.0,
            ),
        )
    last = weight_operand(load_last(parameters, tower, SPEC), SPEC)
    first = 0.0  # with FIRST false
    if FIRST:
        first = first_weight_operand(load_first(parameters, tower, tl.arange(0, SPEC.columns_pad), SPEC), SPEC)
    gains, shifts = load_norms(parameters, tower, SPEC)
    return first, weights, biases, last, out_bias(parameters, tower, SPEC), gains, shifts


@triton.jit
def activated(z, network, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """From what a layer has computed (rows, units): its activations as operands, and what `hidden_gradient` needs.

    With layer normalization that is x_hat = (z - mean) / std, as an operand, and 1 / std (rows).
    """
    if SPEC.layer_norm:
        WIDTH: tl.constexpr = SPEC.hidden[LAYER]
        inside = (tl.arange(0, SPEC.hidden_pad[LAYER]) < WIDTH)[None, :]
        x = tl.where(inside, z - (tl.sum(z, axis=1) / WIDTH)[:, None], 0.0)
        inv_std = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / WIDTH + SPEC.norm_epsilon)
        x_hat = x * inv_std[:, None]
        y = x_hat * network[5][LAYER][None, :] + network[6][LAYER][None, :]
        return operand(activate(y, SPEC), SPEC), (operand(x_hat, SPEC), inv_std)
    else:
        h = operand(activate(z, SPEC), SPEC)
        return h, saved_activation(z, h, SPEC)


@triton.jit
def hidden_gradient(gradient, saved, network, SPEC: tl.constexpr, LAYER: tl.constexpr):
    """From the gradient in a layer's activations to that in what it has computed (rows, units); and those of layer
    normalization's y, times x_hat and alone.
    """
    if SPEC.layer_norm:
        WIDTH: tl.constexpr = SPEC.hidden[LAYER]
        x_hat, inv_std = saved[0].to(tl.float32), saved[1]
        gain = network[5][LAYER][None, :]
        y = x_hat * gain + network[6][LAYER][None, :]
        gradient_y = gradient * activation_gradient(saved_activation(y, activate(y, SPEC), SPEC), SPEC)
        # dL / dz = (g - mean(g) - x_hat mean(g x_hat)) / std, g = dL / dx_hat
        g = gradient_y * gain
        mean, projection = tl.sum(g, axis=1) / WIDTH, tl.sum(g * x_hat, axis=1) / WIDTH
        inside = (tl.arange(0, SPEC.hidden_pad[LAYER]) < WIDTH)[None, :]
        gradient_z = tl.where(inside, (g - mean[:, None] - x_hat * projection[:, None]) * inv_std[:, None], 0.0)
        return gradient_z, gradient_y * x_hat, gradient_y
    else:
        gradient_z = gradient * activation_gradient(saved, SPEC)
        return gradient_z, gradient_z, gradient_z


@triton.jit
def forward(x, network, SPEC: tl.constexpr):
    """Outputs (rows, out_pad); of each hidden layer its activations (rows, H) as operands, and what `hidden_gradient`
    needs.
    """
    # Raw observations may be large numbers that differ little: bf16 would lose what they say, so the first product
    # never has fewer bits than tf32.
    z = tl.dot(x, tl.trans(network[0]), input_precision="ieee" if SPEC.precision == "ieee" else "tf32")
    return forward_hidden(z, network, SPEC)


@triton.jit
def forward_hidden(z, network, SPEC: tl.constexpr):
    """The same from what the first layer has computed."""
    _first, weights, biases, last, last_bias, _gains, _shifts = network
    h, kept = activated(z, network, SPEC, 0)
    hidden = (h,)
    saved = (kept,)
    for k in tl.static_range(len(SPEC.weights)):
        z = product(h, tl.trans(weights[k]), SPEC) + biases[k][None, :]
        h, kept = activated(z, network, SPEC, k + 1)
        hidden = hidden + (h,)
        saved = saved + (kept,)
    return product(h, tl.trans(last), SPEC) + last_bias[None, :], hidden, saved


# DISTRIBUTIONS


@triton.jit
def load_legal_mask(legal_mask, sample, t, in_bounds, lanes, SPEC: tl.constexpr):
    """The mask (rows, out_pad) of samples t N + n: 0 for actions that are not legal, 1 for all other outputs.
    `legal_mask`: (T + 1, H, N).
    """
    column = tl.arange(0, SPEC.out_pad)
    mask = in_bounds[:, None] & (column < SPEC.head_rows)[None, :]
    place = (sample + t * (SPEC.head_rows - 1) * lanes)[:, None] + column[None, :] * lanes
    return tl.load(legal_mask + place, mask=mask, other=1)


@triton.jit
def mask_illegal(out, legal_mask, SPEC: tl.constexpr):
    """The outputs with the logits of illegal actions as `operant.nn.distributions.masked` sets them."""
    return tl.where(legal_mask != 0, out, ILLEGAL) if SPEC.legal else out


@triton.jit
def select_column(out, column, SELECTED: tl.constexpr):
    """One column of (rows, columns), as (rows)."""
    return tl.sum(tl.where((column == SELECTED)[None, :], out, 0.0), axis=1)


@triton.jit
def categorical(out, column, SPEC: tl.constexpr):
    """Of logits in their columns: log p, p, and the entropy of the choice that each column belongs to, all (rows,
    out_pad), zero elsewhere.
    """
    log_p = tl.zeros_like(out)
    p = tl.zeros_like(out)
    entropy = tl.zeros_like(out)
    for k in tl.static_range(len(SPEC.sizes)):
        # log softmax: x - max - log sum exp(x - max)
        inside = ((column >= SPEC.starts[k]) & (column < SPEC.starts[k + 1]))[None, :]
        logits = tl.where(inside, out, -float("inf"))
        shifted = logits - tl.max(logits, axis=1)[:, None]
        powers = tl.exp(shifted)
        total = tl.sum(powers, axis=1)
        log_p = tl.where(inside, shifted - tl.log(total)[:, None], log_p)
        p = tl.where(inside, powers * (1.0 / total)[:, None], p)
        # H = - sum p log p
        entropy = tl.where(inside, -tl.sum(tl.where(inside, p * log_p, 0.0), axis=1)[:, None], entropy)
    return log_p, p, entropy


@triton.jit
def softplus(x):
    """log(1 + e^x), for any x."""
    return tl.where(x > 0.0, x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def gaussian_log_density(mean, action, log_std, inside, SPEC: tl.constexpr):
    """Log density of raw actions (rows, out_pad), summed over the columns that are means: (rows). And (a - mean) / std,
    (rows, out_pad).
    """
    standardized = tl.where(inside, (action - mean) * tl.exp(-log_std)[None, :], 0.0)
    density = -0.5 * standardized * standardized - log_std[None, :] - 0.5 * LOG_2_PI
    if SPEC.squash:
        # less log |d tanh a / da|: 2 (log 2 - a - softplus(-2 a))
        density = density - 2.0 * (LOG_2 - action - softplus(-2.0 * action))
    return tl.sum(tl.where(inside, density, 0.0), axis=1), standardized
