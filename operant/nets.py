"""Policy networks, and the one flat vector that holds their parameters. Knows observations and head sizes; knows no algorithm and no environment's rules.

Everything is feature-major: an observation batch is (O, B), and `forward` returns the head's parameters (H, B) and the value (B).
Actor and critic towers stand side by side in one batched product, W (G, H, H') h (G, H', B), with G = 2 towers, or 1 where they share a trunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from operant.settings import Count, Real, Section

PAD_FLOATS = 32
"""Each parameter begins at a multiple of this in the flat vector: 128 bytes."""

PART_SAMPLES, MOST_PARTS = 256, 128
"""On a GPU a weight gradient is summed in up to so many parts, none smaller than so many samples."""


class Config(Section):
    """`[net]`: the network."""

    kind: str = Field("mlp", description='"mlp", or "FILE.py:Class": an nn.Module made as Class(O, H) that maps (B, O) to (B, H) and values (B)')
    hidden: tuple[Count, ...] = Field((64, 64), description="width of each hidden layer", min_length=1, max_length=8)
    activation: Literal["tanh", "relu", "gelu", "silu"] = Field("tanh", description="between the layers")
    shared: bool = Field(False, description="one trunk for actor and critic instead of two towers")
    squash: bool = Field(False, description="Box actions only: carry the normal into the bounds by tanh instead of clipping it")
    initial_log_std: Real = Field(0.0, ge=-10, le=2, description="Box actions only: logarithm of the standard deviation at the start")

    @field_validator("hidden")
    @classmethod
    def _widths(cls, hidden: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= width <= 4096 for width in hidden):
            raise ValueError("each width should be between 1 and 4096")
        return hidden


class _TanhBySigmoid(torch.autograd.Function):
    """tanh x = 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is several times faster than its tanh."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        output = (features * 2.0).sigmoid_().mul_(2.0).sub_(1.0)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (output,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradient, output)


def _tanh(features: Tensor) -> Tensor:
    return features.tanh() if features.is_cuda else _TanhBySigmoid.apply(features)


class _Linear(torch.autograd.Function):
    """W x + b for G towers at once, (G, M, K) x (G, K, B): a batched product whose weight gradient is summed in parts on a GPU.

    dW = g x^T reduces over B to a few small matrices: one product a tower would keep a handful of multiprocessors busy and leave the others idle.
    The parts are summed in a fixed order.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, features: Tensor) -> Tensor:
        ctx.save_for_backward(weight, features)
        return torch.baddbmm(bias, weight, features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, features = ctx.saved_tensors
        back = torch.bmm(weight.transpose(1, 2), gradient) if ctx.needs_input_grad[2] else None
        return _weight_gradient(gradient, features), gradient.sum(dim=2, keepdim=True), back


def _weight_gradient(gradient: Tensor, features: Tensor) -> Tensor:
    """The weights' gradient g x^T, (G, M, B) x (G, B, K) -> (G, M, K)."""
    parts = math.gcd(gradient.shape[2] // PART_SAMPLES, MOST_PARTS) if gradient.is_cuda else 1
    if parts <= 1 or gradient.shape[2] % parts:
        return torch.bmm(gradient, features.transpose(1, 2))

    def split(rows: Tensor) -> Tensor:
        """(M, B) -> (parts, M, B / parts), without a copy."""
        return rows.unflatten(1, (parts, -1)).transpose(0, 1)

    towers = zip(gradient.contiguous(), features.contiguous(), strict=True)
    return torch.stack([torch.bmm(split(g), split(x).transpose(1, 2)).sum(dim=0) for g, x in towers])


_ACTIVATIONS = {"tanh": _tanh, "relu": torch.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu}


def _orthogonal(rows: int, columns: int, gain: float, generator: torch.Generator) -> Tensor:
    """A (rows, columns) matrix with orthonormal rows or columns, times `gain` (Saxe, McClelland & Ganguli 2014)."""
    return nn.init.orthogonal_(torch.empty(rows, columns), gain=gain, generator=generator)


class MLP(nn.Module):
    """Two towers, or one trunk, of fully connected layers; orthogonal weights, zero biases (Engstrom et al. 2020)."""

    def __init__(self, observation: int, head: int, config: Config, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self._towers = 1 if config.shared else 2
        self._activation = _ACTIVATIONS[config.activation]
        G, widths, gain = self._towers, config.hidden, math.sqrt(2.0)

        def stacked(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.stack([_orthogonal(rows, columns, gain, generator) for _ in range(G)]))

        self.first_weight = nn.Parameter(stacked(widths[0], observation).flatten(0, 1).detach())  # (G H, O)
        self.first_bias = nn.Parameter(torch.zeros(G * widths[0], 1))
        self.weights = nn.ParameterList([stacked(after, before) for before, after in itertools.pairwise(widths)])  # (G, H, H')
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(G, after, 1)) for after in widths[1:]])
        # A head near zero makes the first policy near uniform (Andrychowicz et al. 2021, "What matters in on-policy RL").
        self.head_weight = nn.Parameter(_orthogonal(head, widths[-1], 0.01, generator))
        self.head_bias = nn.Parameter(torch.zeros(head, 1))
        self.value_weight = nn.Parameter(_orthogonal(1, widths[-1], 1.0, generator))
        self.value_bias = nn.Parameter(torch.zeros(1, 1))

    def _features(self, observation: Tensor) -> Tensor:
        """Both towers' last hidden layer, (G, H, B)."""
        first = _Linear.apply(self.first_weight[None], self.first_bias[None], observation[None])
        features = self._activation(first).view(self._towers, -1, observation.shape[1])
        for weight, bias in zip(self.weights, self.biases, strict=True):
            features = self._activation(_Linear.apply(weight, bias, features))
        return features

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """(O, B) -> head parameters (H, B), value (B)."""
        towers = self._features(observation).split(1)
        head = _Linear.apply(self.head_weight[None], self.head_bias[None], towers[0])
        value = _Linear.apply(self.value_weight[None], self.value_bias[None], towers[-1])
        return head[0], value[0, 0]


class SampleMajor(nn.Module):
    """A user's own network, which maps (B, O) to (B, H) and (B) or (B, 1), turned feature-major."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """(O, B) -> head parameters (H, B), value (B)."""
        head, value = self.module(observation.t().contiguous())  # whoever reshapes with `view` expects it so
        return head.t(), value.reshape(-1)


class FlatVector:
    """All parameters of some modules as views of one vector, and their gradients as views of another.

    One vector makes the optimiser, the norm, a checkpoint and a copy one call each. Load by `values.copy_`; never move the modules afterwards.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        named = [(name, parameter) for module in modules for name, parameter in module.named_parameters()]
        sizes = [-(-parameter.numel() // PAD_FLOATS) * PAD_FLOATS for _, parameter in named]
        self.values = nn.Parameter(torch.zeros(sum(sizes), device=device))
        self.gradient = torch.zeros_like(self.values)
        self.values.grad = self.gradient
        self.parameters = [parameter for _, parameter in named]
        self.names = [name for name, _ in named]
        self._trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        self._gradient_views = []  # of those
        self.offsets: list[int] = []  # where each parameter begins
        offset = 0
        for (_, parameter), size in zip(named, sizes, strict=True):
            window = slice(offset, offset + parameter.numel())
            self.offsets.append(offset)
            self.values.data[window].view(parameter.shape).copy_(parameter.data)
            parameter.data = self.values.data[window].view(parameter.shape)
            if parameter.requires_grad:
                self._gradient_views.append(self.gradient[window].view(parameter.shape))
            offset += size

    def backward(self, loss: Tensor, *, add: bool = False) -> None:
        """Write the gradient of a loss into the gradient vector, in place of what was there or added to it. Frozen and unused parameters get none."""
        gradients = torch.autograd.grad(loss, self._trained, materialize_grads=True)
        if add:
            torch._foreach_add_(self._gradient_views, list(gradients))
        else:
            torch._foreach_copy_(self._gradient_views, list(gradients))

    def not_finite(self) -> list[str]:
        """Names of the parameters that hold a NaN or an infinity. Reads back from the device."""
        return [name for name, parameter in zip(self.names, self.parameters, strict=True) if not bool(torch.isfinite(parameter).all())]  # sync: the run is over
