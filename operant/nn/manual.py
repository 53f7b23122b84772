"""Hand-written forward and backward pass of the MLP on a CPU, over preallocated buffers.

Autograd allocates every intermediate tensor, and on a CPU page faults of fresh memory cost more than the arithmetic.
Here the derivatives of activations and layer normalization are written out, and layers are products that accumulate
into a given gradient.

Shape letters: O observation, K features, G towers, M widths of layers, H rows of the head, A actions, n samples of a
chunk.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant.nn import first_layer, mlp
from operant.nn.distributions import Categorical, Gaussian
from operant.nn.policy import Policy

_aten = torch.ops.aten


log = logging.getLogger("operant.nn.manual")


def applies(policy: Policy, kernels: str) -> bool:
    """Whether the manual backward pass computes a policy's gradient: on a CPU, with `algo.kernels` (`kernels`) = "auto"
    and a supported network. Logs the reason if the network is not supported.
    """
    if kernels != "auto" or policy.device.type != "cpu":
        return False
    reason = unsupported_reason(policy)
    if reason is not None:
        log.info("kernels: torch and autograd instead of the manual backward pass: %s", reason)
    return reason is None


def unsupported_reason(policy: Policy) -> str | None:
    """Return why the manual backward pass does not support a policy, in a few words, or None if it does."""
    if policy.device.type != "cpu":
        return "it is not on the CPU"
    if not isinstance(policy.net, mlp.MLP):
        return "its network is not a built-in MLP"
    return None


# ACTIVATIONS, elementwise: h = f(z), and in place dL/dh to dL/dz = f'(z) dL/dh.

SAVES_PRE_ACTIVATION = frozenset(("gelu", "silu"))
"""Activations whose derivative needs z; those of tanh and relu follow from h."""

_FORWARD: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tanh": lambda z, h: torch.tanh(z, out=h),
    "relu": lambda z, h: torch.clamp_min(z, 0.0, out=h),
    "gelu": lambda z, h: _aten.gelu.out(z, out=h),
    "silu": lambda z, h: _aten.silu.out(z, out=h),
}
_BACKWARD: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tanh": lambda g, h: _aten.tanh_backward.grad_input(g, h, grad_input=g),
    "relu": lambda g, h: _aten.threshold_backward.grad_input(g, h, 0.0, grad_input=g),
    "gelu": lambda g, z: _aten.gelu_backward.grad_input(g, z, grad_input=g),
    "silu": lambda g, z: _aten.silu_backward.grad_input(g, z, grad_input=g),
}


# WEIGHTS


class Weights(NamedTuple):
    """Weights of the MLP in the layout of its products, or their gradient. Actor and critic share the last product:
    rows of the head read the first tower, the value's row the last.
    """

    first: Tensor  # (G M, K); its gradient is transposed, (K, G M), a product three times as fast
    first_bias: Tensor  # (G M, 1)
    layers: list[Tensor]  # (G, M, K)
    biases: list[Tensor]  # (G, M, 1)
    norm_gains: list[Tensor]  # (G, M, 1) for each hidden layer; empty without layer normalization
    norm_biases: list[Tensor]  # (G, M, 1), likewise
    last: Tensor  # (H + 1, G M), zero where a row does not read a tower
    last_bias: Tensor  # (H + 1, 1)
    log_std: Tensor  # (A, 1), or empty

    def views(self, vector: Tensor) -> Weights:
        """Return views of a flat `vector` in the shapes of a gradient of these weights. The vector may be longer."""
        offset = 0

        def view(like: Tensor) -> Tensor:
            nonlocal offset
            begin, offset = offset, offset + like.numel()
            return vector[begin:offset].view(like.shape)

        first, first_bias = view(self.first.t()), view(self.first_bias)
        layers, biases, gains, norm_biases = (
            [view(part) for part in parts] for parts in (self.layers, self.biases, self.norm_gains, self.norm_biases)
        )
        return Weights(
            first,
            first_bias,
            layers,
            biases,
            gains,
            norm_biases,
            view(self.last),
            view(self.last_bias),
            view(self.log_std),
        )

    def numel(self) -> int:
        """Return the number of elements in a gradient of these weights."""
        listed = (*self.layers, *self.biases, *self.norm_gains, *self.norm_biases)
        return sum(
            part.numel() for part in (self.first, self.first_bias, *listed, self.last, self.last_bias, self.log_std)
        )


class Parameters:
    """Weights of a policy in the layout that the manual products read. Copies gradients from that layout to the
    policy's flat gradient vector.
    """

    def __init__(self, policy: Policy) -> None:
        net, flat = policy.net, policy.flat
        assert isinstance(net, mlp.MLP)
        self._towers = 1 if net.config.shared else 2
        value = {name: parameter.detach() for name, parameter in zip(flat.names, flat.parameters, strict=True)}
        self._head, self._value, self._head_bias, self._value_bias = (
            value[name] for name in ("head_weight", "value_weight", "head_bias", "value_bias")
        )
        H, K = self._head.shape

        def listed(field: str) -> list[Tensor]:
            return [part for name, part in value.items() if name.startswith(f"{field}.")]

        self.weights = Weights(
            value["first_weight"],
            value["first_bias"],
            listed("weights"),
            listed("biases"),
            listed("norm_gains"),
            listed("norm_biases"),
            torch.zeros(H + 1, self._towers * K),
            torch.zeros(H + 1, 1),
            value.get("log_std", torch.empty(0)),
        )
        self._gradients = {
            name: flat.gradient[start : start + parameter.numel()].view(parameter.shape)
            for name, parameter, start in zip(flat.names, flat.parameters, flat.offsets, strict=True)
        }

    def refresh(self) -> None:
        """Copy the output layers' current weights from the policy. The other weights are views of the policy's and need
        no copy.
        """
        H, K = self._head.shape
        last, bias = self.weights.last, self.weights.last_bias
        last[:H, :K] = self._head
        last[H:, -K:] = self._value
        bias[:H] = self._head_bias
        bias[H:] = self._value_bias

    def write(self, gradient: Weights) -> None:
        """Copy `gradient` into the policy's flat gradient vector."""
        H, K = self._head.shape
        into = self._gradients
        into["first_weight"].copy_(gradient.first.t())
        into["first_bias"].copy_(gradient.first_bias)
        fields = {
            "weights": gradient.layers,
            "biases": gradient.biases,
            "norm_gains": gradient.norm_gains,
            "norm_biases": gradient.norm_biases,
        }
        for name, parts in fields.items():
            for k, part in enumerate(parts):
                into[f"{name}.{k}"].copy_(part)
        into["head_weight"].copy_(gradient.last[:H, :K])
        into["value_weight"].copy_(gradient.last[H:, -K:])
        into["head_bias"].copy_(gradient.last_bias[:H])
        into["value_bias"].copy_(gradient.last_bias[H:])
        if "log_std" in into:
            into["log_std"].copy_(gradient.log_std)


# NETWORK


class _LayerNorm:
    """In-place layer normalization of one layer over M units, on chunks (G, M, n): y = gain u + bias, u = (x - mean) /
    std.

    Backward pass (Ba, Kiros & Hinton 2016), with g = dL/dy and h = gain g, means over the units M: dx = (h - mean(h) -
    u mean(h u)) / std.
    """

    def __init__(self, gain: Tensor, bias: Tensor, n: int) -> None:
        G, M, _ = gain.shape
        self._gain, self._bias = gain, bias
        self._u, self._buffer = torch.empty(2, G, M, n)
        self._mean, self._inv_std = torch.empty(2, G, 1, n)

    def forward(self, features: Tensor) -> None:
        """Overwrite pre-activations x (G, M, n) with the normalized y."""
        u = self._u
        # u = (x - mean) / sqrt(variance + epsilon), variance = mean((x - mean)^2)
        torch.mean(features, dim=1, keepdim=True, out=self._mean)
        torch.sub(features, self._mean, out=u)
        torch.mul(u, u, out=self._buffer)
        torch.mean(self._buffer, dim=1, keepdim=True, out=self._inv_std).add_(mlp.LAYER_NORM_EPSILON).rsqrt_()
        u.mul_(self._inv_std)
        # y = gain u + bias
        torch.addcmul(self._bias, u, self._gain, out=features)

    def backward(self, gradient: Tensor, grad_gain: Tensor, grad_bias: Tensor) -> None:
        """Overwrite dL/dy with dL/dx, and add the gradients of gain and bias, (G, M, 1) each."""
        u, buffer = self._u, self._buffer
        # dgain = sum over samples of g u, dbias = sum of g
        torch.mul(gradient, u, out=buffer)
        grad_gain.add_(buffer.sum(dim=2, keepdim=True))
        grad_bias.add_(gradient.sum(dim=2, keepdim=True))

        # h = gain g, buffer = u mean(h u)
        gradient.mul_(self._gain)
        buffer.mul_(self._gain)
        torch.mean(buffer, dim=1, keepdim=True, out=self._mean)
        torch.mul(u, self._mean, out=buffer)

        # dx = (h - mean(h) - u mean(h u)) / std
        torch.mean(gradient, dim=1, keepdim=True, out=self._mean)
        gradient.sub_(self._mean).sub_(buffer).mul_(self._inv_std)


class Network:
    """Forward and backward pass of the policy's MLP for n samples, without autograd. All buffers, and the views that
    products read, are allocated once.
    """

    def __init__(self, policy: Policy, weights: Weights, n: int) -> None:
        assert isinstance(policy.net, mlp.MLP)
        config = policy.net.config
        G = 1 if config.shared else 2
        self._normalizer, self._weights = policy.normalizer, weights
        self._activate, self._activation_backward = _FORWARD[config.activation], _BACKWARD[config.activation]
        self._features = torch.empty(weights.first.shape[1], n)  # encoded observations x, (K, n)
        self._partial_one_hot, categories = policy.net.partial_one_hot, policy.net.categories
        self._categories = torch.arange(categories if isinstance(categories, int) else 0, dtype=torch.uint8)[:, None]
        if self._partial_one_hot is not None:
            self._column_bytes = torch.empty(len(self._partial_one_hot.feature), n, dtype=torch.uint8)
            self._numeric = torch.empty(len(self._partial_one_hot.numeric_features), n)
        # Activations h of each hidden layer, (G, M, n), and pre-activations z. One tensor holds both where the
        # activation's derivative follows from h.
        self._h = [torch.empty(G, width, n) for width in config.hidden]
        saves_z = config.activation in SAVES_PRE_ACTIVATION
        self._z = [torch.empty(G, width, n) for width in config.hidden] if saves_z else self._h
        self._norms = [
            _LayerNorm(gain, bias, n) for gain, bias in zip(weights.norm_gains, weights.norm_biases, strict=True)
        ]
        self._first_z, self._last_h = self._z[0].view(-1, n), self._h[-1].view(-1, n)
        self._h_t, self._last_h_t = [h.transpose(1, 2) for h in self._h], self._last_h.t()
        self._layers_t, self._last_t = [layer.transpose(1, 2) for layer in weights.layers], weights.last.t()
        self._out = torch.empty(len(weights.last), n)
        self.parameters, self.value = self._out[:-1], self._out[-1]

    def with_backward(self) -> Network:
        """Allocate the buffers of `backward`. Returns this network."""
        n, h = self._out.shape[1], self._h
        # dL/dh of each hidden layer. The activations of a layer are last read before the gradient of the layer below
        # is written: where shapes agree, it overwrites them.
        self._grad_h = [
            above if above.shape == own.shape and self._z is h else torch.empty_like(own)
            for own, above in itertools.pairwise(h)
        ]
        self._grad_h.append(torch.empty_like(h[-1]))
        self._first_grad, self._last_grad = self._grad_h[0].view(-1, n), self._grad_h[-1].view(-1, n)
        self._first_grad_t = self._first_grad.t()
        self._grad_out = torch.empty_like(self._out)
        self.parameters_gradient, self.value_gradient = self._grad_out[:-1], self._grad_out[-1]
        return self

    def forward(self, observation: Tensor) -> None:
        """Compute `parameters` of the action distribution (H, n) and `value` (n) for observations (O, n). The next call
        overwrites them.
        """
        weights, z, h = self._weights, self._z, self._h
        # z_0 = W_0 x + b_0, h_0 = f(norm(z_0))
        torch.addmm(weights.first_bias, weights.first, self._encode(observation), out=self._first_z)
        self._activate_layer(0)
        # z_k = W_k h_{k-1} + b_k, h_k = f(norm(z_k))
        for k, (layer, bias) in enumerate(zip(weights.layers, weights.biases, strict=True)):
            torch.baddbmm(bias, layer, h[k], out=z[k + 1])
            self._activate_layer(k + 1)
        # Heads.
        torch.addmm(weights.last_bias, weights.last, self._last_h, out=self._out)

    def _activate_layer(self, k: int) -> None:
        """Compute h = f(norm(z)) of layer k in place; without normalization f(z)."""
        if self._norms:
            self._norms[k].forward(self._z[k])
        self._activate(self._z[k], self._h[k])

    def _encode(self, observation: Tensor) -> Tensor:
        """Return the first layer's input features (K, n) for observations (O, n), one-hot or normalized, without
        allocations.
        """
        out = self._features
        if len(self._categories):
            torch.eq(observation[:, None], self._categories, out=out.view(len(observation), len(self._categories), -1))
            return out
        if self._partial_one_hot is not None:
            return self._encode_partially(observation, self._partial_one_hot)
        if self._normalizer is not None:
            torch.sub(observation, self._normalizer.mean, out=out)
            return out.mul_(self._normalizer.inv_std).clamp_(-self._normalizer.CLIP, self._normalizer.CLIP)
        return out.copy_(observation)

    def _encode_partially(self, observation: Tensor, encoder: first_layer.PartialOneHot) -> Tensor:
        """Return the first layer's input features (K, n) for observations (O, n) of which some are categorical and some
        numeric.
        """
        torch.index_select(observation, 0, encoder.feature, out=self._column_bytes)
        out = torch.eq(self._column_bytes, encoder.category, out=self._features)
        numeric = self._numeric.copy_(
            torch.index_select(
                observation, 0, encoder.numeric_features, out=self._column_bytes[: len(encoder.numeric_features)]
            )
        )
        normalizer = self._normalizer
        if normalizer is not None:
            mean, inv_std = normalizer.mean[encoder.numeric_features], normalizer.inv_std[encoder.numeric_features]
            numeric.sub_(mean).mul_(inv_std).clamp_(-normalizer.CLIP, normalizer.CLIP)
        return out.index_copy_(0, encoder.numeric_columns, numeric)

    def backward(self, gradient: Weights) -> None:
        """Add the gradient of all weights to `gradient`. The caller has written the gradients of the outputs to
        `parameters_gradient` (H, n) and `value_gradient` (n).

        For every layer z = W x + b with g = dL/dz: dW = g x^T, db = sum of g, dx = W^T g.
        """
        grad_h = self._grad_h
        # Heads.
        gradient.last.addmm_(self._grad_out, self._last_h_t)
        gradient.last_bias.add_(self._grad_out.sum(dim=1, keepdim=True))
        torch.mm(self._last_t, self._grad_out, out=self._last_grad)
        # Hidden layers, from the last to the second.
        for k in reversed(range(len(self._layers_t))):
            self._backward_activation(k + 1, gradient)
            gradient.layers[k].baddbmm_(grad_h[k + 1], self._h_t[k])
            gradient.biases[k].add_(grad_h[k + 1].sum(dim=2, keepdim=True))
            torch.bmm(self._layers_t[k], grad_h[k + 1], out=grad_h[k])
        # First layer, transposed: (x g^T) = dW^T.
        self._backward_activation(0, gradient)
        gradient.first.addmm_(self._features, self._first_grad_t)
        gradient.first_bias.add_(self._first_grad.sum(dim=1, keepdim=True))

    def _backward_activation(self, k: int, gradient: Weights) -> None:
        """Overwrite dL/dh of layer k with dL/dz, through the activation and the normalization, whose gradients are
        added to `gradient`.
        """
        g = self._grad_h[k]
        self._activation_backward(g, self._z[k])
        if self._norms:
            self._norms[k].backward(g, gradient.norm_gains[k], gradient.norm_biases[k])


# ACTION DISTRIBUTIONS: log-probabilities, entropies and their gradients, over preallocated buffers.


class ManualCategorical:
    """Categorical distributions without autograd: log p(a), entropy H, and the loss gradient with respect to the logits
    x.

    d log p_a / d x_j = 1[j = a] - p_j;  d H / d x_j = -p_j (log p_j + H)
    """

    def __init__(self, distribution: Categorical, log_std: Tensor, n: int) -> None:
        ends = list(itertools.accumulate(distribution.sizes))
        rows = [slice(end - size, end) for end, size in zip(ends, distribution.sizes, strict=True)]
        self._log_p, self._p, self._one_hot, self._buffer = torch.empty(4, distribution.parameter_rows, n)  # (H, n)
        self._negative_entropy = torch.empty(distribution.action_rows, n)
        self._blocks = [
            (row, self._log_p[row], self._one_hot[row], self._buffer[row], distribution.row_values[row]) for row in rows
        ]

    def forward(self, logits: Tensor, action: Tensor, log_probability: Tensor, entropy: Tensor) -> None:
        """Write log p(a) of actions (A, n) to `log_probability` (n), and H to `entropy` (n)."""
        # log p(a) = sum over choices of the log-softmax at a
        for k, (rows, log_p, one_hot, _, row_values) in enumerate(self._blocks):
            torch.log_softmax(logits[rows], dim=0, out=log_p)
            torch.eq(action[k], row_values, out=one_hot)
        torch.mul(self._log_p, self._one_hot, out=self._buffer)
        torch.sum(self._buffer, dim=0, out=log_probability)
        # -H = sum of p log p, of each choice
        torch.exp(self._log_p, out=self._p)
        torch.mul(self._p, self._log_p, out=self._buffer)
        for k, (_, _, _, p_log_p, _) in enumerate(self._blocks):
            torch.sum(p_log_p, dim=0, out=self._negative_entropy[k])
        torch.sum(self._negative_entropy, dim=0, out=entropy).neg_()

    def backward(
        self, surrogate_gradient: Tensor, entropy_gradient: float, gradient: Tensor, log_std_gradient: Tensor
    ) -> None:
        """Write the loss gradient of the logits (H, n) to `gradient`. `surrogate_gradient` (n) is dL / d(-log p(a)),
        `entropy_gradient` dL / d(-H), one number for all samples. Ignores `log_std_gradient`.
        """
        # (p - 1[j = a]) d(-log p) + p (log p + H) d(-H)
        torch.sub(self._p, self._one_hot, out=gradient).mul_(surrogate_gradient)
        for k, (_, log_p, _, _, _) in enumerate(self._blocks):
            log_p.sub_(self._negative_entropy[k])
        gradient.addcmul_(self._log_p, self._p, value=entropy_gradient)


class ManualGaussian:
    """Diagonal Gaussian without autograd: log p(a), entropy H, and the loss gradient with respect to the mean mu and s
    = log std. With z = (a - mu) exp(-s):

    d log p / d mu = z exp(-s);  d log p / d s = z^2 - 1;  d H / d s = 1
    """

    def __init__(self, distribution: Gaussian, log_std: Tensor, n: int) -> None:
        self._squash, self._log_std = distribution.squash, log_std
        self._z, self._z_squared, self._log_p = torch.empty(3, distribution.action_rows, n)  # (A, n) each
        self._negative_inv_std = torch.empty_like(self._log_std)

    def forward(self, mean: Tensor, action: Tensor, log_probability: Tensor, entropy: Tensor) -> None:
        """Write log p(a) of actions (A, n), as sampled, to `log_probability` (n), and H to `entropy` (n)."""
        # z = (a - mu) exp(-s), log p = sum of -z^2 / 2 - s - log(2 pi) / 2
        torch.neg(self._log_std, out=self._negative_inv_std).exp_().neg_()
        torch.sub(mean, action, out=self._z).mul_(self._negative_inv_std)
        torch.mul(self._z, self._z, out=self._z_squared)
        torch.mul(self._z_squared, -0.5, out=self._log_p).sub_(self._log_std + 0.5 * math.log(2.0 * math.pi))
        if self._squash:  # -log(1 - tanh^2 a) = 2 (a + softplus(-2 a) - log 2)
            self._log_p.add_(torch.nn.functional.softplus(-2.0 * action).add_(action).sub_(math.log(2.0)), alpha=2.0)
        torch.sum(self._log_p, dim=0, out=log_probability)
        # H = sum of s + log(2 pi e) / 2
        entropy.copy_((self._log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum())

    def backward(
        self, surrogate_gradient: Tensor, entropy_gradient: float, gradient: Tensor, log_std_gradient: Tensor
    ) -> None:
        """Write the loss gradient of the mean (A, n) to `gradient`, and add that of s to `log_std_gradient` (A, 1).
        `surrogate_gradient` (n) is dL / d(-log p(a)), `entropy_gradient` dL / d(-H), one number for all samples.
        """
        # dmu = -z exp(-s) d(-log p)
        torch.mul(self._z, self._negative_inv_std, out=gradient).mul_(surrogate_gradient)
        # ds = -(z^2 - 1) d(-log p) - d(-H), summed over samples
        self._z_squared.sub_(1.0).mul_(surrogate_gradient)
        log_std_gradient.sub_(self._z_squared.sum(dim=1, keepdim=True)).sub_(entropy_gradient * len(surrogate_gradient))


def manual_distribution(
    distribution: Categorical | Gaussian, log_std: Tensor, n: int
) -> ManualCategorical | ManualGaussian:
    """Create the distribution without autograd for chunks of n samples. `log_std` (A, 1) is read by a
    Gaussian alone.
    """
    return (
        ManualCategorical(distribution, log_std, n)
        if isinstance(distribution, Categorical)
        else ManualGaussian(distribution, log_std, n)
    )
