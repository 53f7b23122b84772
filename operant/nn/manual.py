"""The MLP's forward and backward pass on a CPU without autograd, over memory allocated once. Knows the layers of
`operant.nn.mlp`; knows no loss.

Autograd allocates every intermediate anew, and on a CPU the pages of fresh memory cost more than the arithmetic. Here
the same derivatives are written out: those of activations and layer normalization by hand, those of the layers as
products that are added to a given gradient.

Shape letters: O observation, G towers, M and K widths of layers, H numbers of the head, A actions, n samples of a
chunk.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant.nn import inputs, mlp
from operant.nn.policy import Policy

_aten = torch.ops.aten


log = logging.getLogger("operant.nn.manual")


def applies(policy: Policy, kernels: str) -> bool:
    """Whether a policy's gradient is to be computed here: on a CPU, where `algo.kernels` is "auto". Where something
    keeps it from that, the log says so.
    """
    if kernels != "auto" or policy.device.type != "cpu":
        return False
    reason = unsupported_reason(policy)
    if reason is not None:
        log.info("kernels: torch's and autograd, not the manual backward pass: %s", reason)
    return reason is None


def unsupported_reason(policy: Policy) -> str | None:
    """Why this policy cannot be computed here, in a few words; None where it can."""
    if policy.device.type != "cpu":
        return "it is not on the CPU"
    if not isinstance(policy.net, mlp.MLP):
        return "its network is not a built-in MLP"
    return None


# ACTIVATIONS: y = f(x) and g <- g f'(x), elementwise, into given memory. The derivative follows from y, or where
# `KEEPS_INPUT`, from x.

KEEPS_INPUT = frozenset(("gelu", "silu"))
_FORWARD: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tanh": lambda x, y: torch.tanh(x, out=y),
    "relu": lambda x, y: torch.clamp_min(x, 0.0, out=y),
    "gelu": lambda x, y: _aten.gelu.out(x, out=y),
    "silu": lambda x, y: _aten.silu.out(x, out=y),
}
_BACKWARD: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tanh": lambda g, y: _aten.tanh_backward.grad_input(g, y, grad_input=g),
    "relu": lambda g, y: _aten.threshold_backward.grad_input(g, y, 0.0, grad_input=g),
    "gelu": lambda g, x: _aten.gelu_backward.grad_input(g, x, grad_input=g),
    "silu": lambda g, x: _aten.silu_backward.grad_input(g, x, grad_input=g),
}


# WEIGHTS


class Weights(NamedTuple):
    """The network as products want it, or its gradient. Actor and critic end in one product: the head's rows read the
    first tower, the value's the last.
    """

    first: Tensor  # (G M, O); its gradient (O, G M): that product is three times as fast
    first_bias: Tensor  # (G M, 1)
    layers: list[Tensor]  # (G, M, K)
    biases: list[Tensor]  # (G, M, 1)
    norm_gains: list[Tensor]  # (G, M, 1) of each hidden layer; empty without layer normalization
    norm_biases: list[Tensor]  # likewise
    last: Tensor  # (H + 1, G K), zero where a row does not read a tower
    last_bias: Tensor  # (H + 1, 1)
    log_std: Tensor  # (A, 1), or empty

    def views(self, vector: Tensor) -> Weights:
        """Views of one vector in the shapes of a gradient; the vector may be longer."""
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
        """Numbers of a gradient."""
        listed = (*self.layers, *self.biases, *self.norm_gains, *self.norm_biases)
        return sum(
            part.numel() for part in (self.first, self.first_bias, *listed, self.last, self.last_bias, self.log_std)
        )


class Parameters:
    """A policy's weights, and the way of gradients back into its vector."""

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
        """Copy what the last product reads from the policy's vector; the rest are views of it."""
        H, K = self._head.shape
        last, bias = self.weights.last, self.weights.last_bias
        last[:H, :K] = self._head
        last[H:, -K:] = self._value
        bias[:H] = self._head_bias
        bias[H:] = self._value_bias

    def write(self, gradient: Weights) -> None:
        """Copy a gradient into the policy's vector."""
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
    """Layer normalization of one layer, in place: y = u gain + bias with u = (x - mean) inv_std over the units M, on
    chunks (G, M, n).

    With g the gradient by y and h = g gain that by u: dx = inv_std (h - mean(h) - u mean(h u)), means over the units.
    """

    def __init__(self, gain: Tensor, bias: Tensor, n: int) -> None:
        G, M, _ = gain.shape
        self._gain, self._bias = gain, bias
        self._normal, self._product = torch.empty(2, G, M, n)  # u, and a product that is summed
        self._mean, self._inv_std = torch.empty(2, G, 1, n)

    def forward(self, features: Tensor) -> None:
        """Overwrite x with y."""
        normal = self._normal
        # x - mean, its mean square, and 1 / sqrt(variance + epsilon).
        torch.mean(features, dim=1, keepdim=True, out=self._mean)
        torch.sub(features, self._mean, out=normal)
        torch.mul(normal, normal, out=self._product)
        torch.mean(self._product, dim=1, keepdim=True, out=self._inv_std).add_(mlp.LAYER_NORM_EPSILON).rsqrt_()
        normal.mul_(self._inv_std)
        torch.addcmul(self._bias, normal, self._gain, out=features)

    def backward(self, gradient: Tensor, gain_gradient: Tensor, bias_gradient: Tensor) -> None:
        """Overwrite the gradient by y with that by x, and add those by gain and bias, (G, M, 1) each."""
        normal, product = self._normal, self._product
        # dgain = sum over samples of g u, dbias = sum of g.
        torch.mul(gradient, normal, out=product)
        gain_gradient.add_(product.sum(dim=2, keepdim=True))
        bias_gradient.add_(gradient.sum(dim=2, keepdim=True))

        # h = g gain, and u mean(h u).
        gradient.mul_(self._gain)
        product.mul_(self._gain)
        torch.mean(product, dim=1, keepdim=True, out=self._mean)
        torch.mul(normal, self._mean, out=product)

        # dx = inv_std (h - mean(h) - u mean(h u)).
        torch.mean(gradient, dim=1, keepdim=True, out=self._mean)
        gradient.sub_(self._mean).sub_(product).mul_(self._inv_std)


class Network:
    """The MLP on chunks of n samples. All its memory, and every view of it that a product reads, is made once."""

    def __init__(self, policy: Policy, weights: Weights, n: int) -> None:
        assert isinstance(policy.net, mlp.MLP)
        config = policy.net.config
        G = 1 if config.shared else 2
        self._normalizer, self._weights = policy.normalizer, weights
        # Of each hidden layer its output before and after the activation, (G, M, n): one tensor where the derivative
        # follows from the output.
        self._activate, self._deactivate = _FORWARD[config.activation], _BACKWARD[config.activation]
        self._observation = torch.empty(weights.first.shape[1], n)
        self._partial_one_hot, categories = policy.net.partial_one_hot, policy.net.categories
        self._categories = torch.arange(categories if isinstance(categories, int) else 0, dtype=torch.uint8)[:, None]
        if self._partial_one_hot is not None:
            self._chosen = torch.empty(len(self._partial_one_hot.feature), n, dtype=torch.uint8)
            self._numeric = torch.empty(len(self._partial_one_hot.numeric_features), n)
        self._after = [torch.empty(G, width, n) for width in config.hidden]
        self._before = (
            [torch.empty(G, width, n) for width in config.hidden] if config.activation in KEEPS_INPUT else self._after
        )
        self._norms = [
            _LayerNorm(gain, bias, n) for gain, bias in zip(weights.norm_gains, weights.norm_biases, strict=True)
        ]
        self._first_before, self._last_after = self._before[0].view(-1, n), self._after[-1].view(-1, n)
        self._after_t, self._last_after_t = [after.transpose(1, 2) for after in self._after], self._last_after.t()
        self._layers_t, self._last_t = [layer.transpose(1, 2) for layer in weights.layers], weights.last.t()
        self._out = torch.empty(len(weights.last), n)
        self.parameters, self.value = self._out[:-1], self._out[-1]

    def with_backward(self) -> Network:
        """Itself, with the memory that `backward` needs."""
        n, after = self._out.shape[1], self._after
        # A layer's activations are read for the last time before the gradient of the layer below is written: where they
        # are alike, that takes their place.
        self._gradient = [
            above if above.shape == own.shape and self._before is after else torch.empty_like(own)
            for own, above in itertools.pairwise(after)
        ]
        self._gradient.append(torch.empty_like(after[-1]))
        self._first_gradient, self._last_gradient = self._gradient[0].view(-1, n), self._gradient[-1].view(-1, n)
        self._first_gradient_t = self._first_gradient.t()
        self._out_gradient = torch.empty_like(self._out)
        self.parameters_gradient, self.value_gradient = self._out_gradient[:-1], self._out_gradient[-1]
        return self

    def forward(self, observation: Tensor) -> None:
        """Observations (O, n) to `parameters` (H, n) and `value` (n)."""
        weights, before, after = self._weights, self._before, self._after
        torch.addmm(weights.first_bias, weights.first, self._features(observation), out=self._first_before)
        self._activated(0)
        for k, (layer, bias) in enumerate(zip(weights.layers, weights.biases, strict=True)):
            torch.baddbmm(bias, layer, after[k], out=before[k + 1])
            self._activated(k + 1)
        torch.addmm(weights.last_bias, weights.last, self._last_after, out=self._out)

    def _activated(self, k: int) -> None:
        """Layer k from its product on: normalised, where the network asks for it, and through the activation."""
        if self._norms:
            self._norms[k].forward(self._before[k])
        self._activate(self._before[k], self._after[k])

    def _features(self, observation: Tensor) -> Tensor:
        """What the first layer reads (see `reading`), without fresh memory."""
        into = self._observation
        if len(self._categories):
            torch.eq(observation[:, None], self._categories, out=into.view(len(observation), len(self._categories), -1))
            return into
        if self._partial_one_hot is not None:
            return self._partly_one_hot(observation, self._partial_one_hot)
        if self._normalizer is not None:
            torch.sub(observation, self._normalizer.mean, out=into)
            return into.mul_(self._normalizer.inv_std).clamp_(-self._normalizer.CLIP, self._normalizer.CLIP)
        return into.copy_(observation)

    def _partly_one_hot(self, observation: Tensor, encoder: inputs.PartialOneHot) -> Tensor:
        """The same where some features are categorical and others numeric."""
        torch.index_select(observation, 0, encoder.feature, out=self._chosen)
        into = torch.eq(self._chosen, encoder.category, out=self._observation)
        seen = self._numeric.copy_(
            torch.index_select(
                observation, 0, encoder.numeric_features, out=self._chosen[: len(encoder.numeric_features)]
            )
        )
        if self._normalizer is not None:
            mean, inv_std = (
                self._normalizer.mean[encoder.numeric_features],
                self._normalizer.inv_std[encoder.numeric_features],
            )
            seen.sub_(mean).mul_(inv_std).clamp_(-self._normalizer.CLIP, self._normalizer.CLIP)
        return into.index_copy_(0, encoder.numeric_columns, seen)

    def backward(self, gradient: Weights) -> None:
        """Add to the weights' gradient what follows from `parameters_gradient` (H, n) and `value_gradient` (n).

        Of y = W x + b: dW = g x^T, db = the sum of g, dx = W^T g.
        """
        g = self._gradient
        gradient.last.addmm_(self._out_gradient, self._last_after_t)
        gradient.last_bias.add_(self._out_gradient.sum(dim=1, keepdim=True))
        torch.mm(self._last_t, self._out_gradient, out=self._last_gradient)
        for k in reversed(range(len(self._layers_t))):
            self._deactivated(k + 1, gradient)
            gradient.layers[k].baddbmm_(g[k + 1], self._after_t[k])
            gradient.biases[k].add_(g[k + 1].sum(dim=2, keepdim=True))
            torch.bmm(self._layers_t[k], g[k + 1], out=g[k])
        self._deactivated(0, gradient)
        gradient.first.addmm_(self._observation, self._first_gradient_t)
        gradient.first_bias.add_(self._first_gradient.sum(dim=1, keepdim=True))

    def _deactivated(self, k: int, gradient: Weights) -> None:
        """The gradient by layer k's output made that by its product."""
        g = self._gradient[k]
        self._deactivate(g, self._before[k])
        if self._norms:
            self._norms[k].backward(g, gradient.norm_gains[k], gradient.norm_biases[k])
