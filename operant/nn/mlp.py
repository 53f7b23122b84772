"""Policy networks of fully connected layers, and the `[net]` configuration.

Tensors are feature-major: observations are (O, B), and `forward` returns head parameters (H, B) and values (B). The
actor's and the critic's tower are one batched product, W h = (G, M, K) @ (G, K, B), with G = 2 towers, or G = 1 for a
shared trunk.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import Tensor, nn

from operant.compute import threads
from operant.nn import first_layer, linear
from operant.settings import Count, Real, Section

if TYPE_CHECKING:
    from typing import Self

    from operant.nn.normalization import RunningNormalizer

KINDS = ("mlp", "cnn", "places")
"""Built-in networks."""

DENSE = {"nature": (512,), "impala": (256,), "board": (256,), "minatar": (128,)}
"""Default `hidden` of convolutional networks."""


class Config(Section):
    """Section `[net]`: architecture of the network."""

    kind: str = Field(
        "mlp",
        description='"mlp"; "cnn" for images and boards; "places" (deep sets) for N interchangeable items, one of '
        "which the action names; "
        'or "FILE.py:Class": an nn.Module, created as Class(O, H), that maps (B, O) to (B, H) and values (B); '
        "sac and td3 also use it for their critics, with O + A inputs, observation and action, and ignore the values",
    )
    cnn: Literal["nature", "impala", "board", "minatar"] = Field(
        "nature",
        description="nature: three strided convolutions, for images of 36 x 36 and more; impala: stacks of residual "
        "blocks, for images of any size; "
        "board: three 3 x 3 convolutions that keep the size of the board; minatar: one 3 x 3 convolution without "
        "padding",
    )
    channels: tuple[Count, ...] | None = Field(
        None,
        description="channels of each convolution (impala: each stack); not set: [32, 64, 64] for nature, [16, 32, 32] "
        "for impala, [64, 64, 64] for board, "
        "[16] for minatar",
        min_length=1,
        max_length=8,
    )
    hidden: tuple[Count, ...] = Field(
        (64, 64),
        description="width of each hidden layer; of a cnn: of its dense layers, by default [512] for nature, [128] for "
        "minatar, [256] for the others",
        min_length=1,
        max_length=8,
    )
    critic_hidden: tuple[Count, ...] | None = Field(
        None,
        description="sac and td3 only: width of each hidden layer of the critics; not set: net.hidden",
        min_length=1,
        max_length=8,
    )
    activation: Literal["tanh", "relu", "gelu", "silu"] = Field(
        "tanh", description="activation function of the hidden layers; a cnn always uses relu"
    )
    layer_norm: bool = Field(
        False,
        description="layer normalization after each hidden linear layer, before the activation; of a cnn, after each "
        "dense layer, and of minatar also over the "
        "channels of its convolution",
    )
    shared: bool = Field(
        False,
        description="actor and critic share one trunk instead of two towers; cnn and places always do",
    )
    squash: bool = Field(
        False, description="Box actions only: tanh-squashed normal distribution instead of clipping to the bounds"
    )
    initial_log_std: Real = Field(0.0, ge=-10, le=2, description="Box actions only: initial log standard deviation")
    memory: Literal["none", "mingru", "gru", "lstm"] = Field(
        "none",
        description="recurrent cell between the hidden layers (or the cnn) and the outputs, for memory within an "
        "episode",
    )
    memory_layers: Count = Field(1, ge=1, le=8, description="memory only: layers of the recurrent cell")
    memory_size: Count | None = Field(
        None, ge=1, le=4096, description="memory only: units of each layer; not set: the width of the last hidden layer"
    )
    memory_init: Count | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="memory only: initial time scales of the units, from 2 to this number of steps, by the biases of "
        "the gates (chrono initialisation); "
        "1, gru and lstm: open gates with orthogonal recurrent weights, a delay line, for tasks in which the order of "
        "inputs matters; not set: a few steps",
    )

    @property
    def of_critics(self) -> Self:
        """Return the configuration of the critics: this one, with `critic_hidden` as hidden layers if it is set."""
        return self if self.critic_hidden is None else self.model_copy(update={"hidden": self.critic_hidden})

    @property
    def is_recurrent(self) -> bool:
        """Whether this network has a recurrent cell: `memory` is not "none". Says nothing of a network of your own,
        which is recurrent if it has an `initial_state`.
        """
        return self.memory != "none"

    @model_validator(mode="before")
    @classmethod
    def _dense(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("kind") == "cnn" and "hidden" not in data:
            cnn = data.get("cnn", cls.model_fields["cnn"].default)
            return {**data, "hidden": DENSE[cnn]} if isinstance(cnn, str) and cnn in DENSE else data
        return data

    @field_validator("memory")
    @classmethod
    def _memory_is_supported(cls, memory: str, info: ValidationInfo) -> str:
        if memory != "none" and info.data.get("kind") not in KINDS:
            raise ValueError(
                'only "mlp", "cnn" and "places" support it: a network of your own is recurrent if it has an '
                "initial_state"
            )
        return memory

    @field_validator("memory_size")
    @classmethod
    def _mingru_size(cls, size: int | None, info: ValidationInfo) -> int | None:
        width = info.data.get("hidden", (size,))[-1]
        if info.data.get("memory") == "mingru" and size not in (None, width):
            raise ValueError(
                f"must be the last of net.hidden, {width}, or not set: mingru mixes its output with its input"
            )
        return size

    @field_validator("memory_init")
    @classmethod
    def _mingru_init(cls, longest: int | None, info: ValidationInfo) -> int | None:
        if longest == 1 and info.data.get("memory") == "mingru":
            raise ValueError(
                "must be 2 or more with mingru, whose units are independent; 1 needs the memory gru or lstm"
            )
        return longest

    @field_validator("hidden", "critic_hidden")
    @classmethod
    def _widths(cls, hidden: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if any(not 1 <= width <= 4096 for width in hidden or ()):
            raise ValueError("each width should be between 1 and 4096")
        return hidden

    @field_validator("channels")
    @classmethod
    def _channels(cls, channels: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        if channels is not None and any(not 1 <= count <= 1024 for count in channels):
            raise ValueError("each number of channels should be between 1 and 1024")
        if channels is not None and info.data.get("cnn") == "nature" and len(channels) != 3:
            raise ValueError("nature has three convolutions, so three numbers of channels")
        return channels


class _TanhBySigmoid(torch.autograd.Function):
    """Autograd function tanh x = 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is several times faster than its tanh."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        output = (features * 2.0).sigmoid_().mul_(2.0).sub_(1.0)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradient, output)


def _tanh(features: Tensor) -> Tensor:
    return features.tanh() if features.is_cuda else _TanhBySigmoid.apply(features)


LAYER_NORM_EPSILON = 1e-5


def layer_norm(features: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Return the layer normalization of x (G, M, B) over its M units: (x - mean) / sqrt(variance + 1e-5) gain + bias,
    gain and bias (G, M, 1). Ba, Kiros & Hinton 2016.
    """
    variance, mean = torch.var_mean(features, dim=1, correction=0, keepdim=True)  # (G, 1, B)
    return torch.addcmul(bias, (features - mean) * (variance + LAYER_NORM_EPSILON).rsqrt(), gain)


ACTIVATIONS = {"tanh": _tanh, "relu": torch.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu}


def orthogonal(rows: int, columns: int, gain: float, generator: torch.Generator) -> Tensor:
    """Return a random matrix (rows, columns) with orthonormal rows or columns, times `gain` (Saxe, McClelland & Ganguli
    2014).

    Computed by a single thread: the last bits of a factorization depend on the number of threads, which depends on the
    machine.
    """
    with threads.alone():
        return nn.init.orthogonal_(torch.empty(rows, columns), gain=gain, generator=generator)


class MLP(nn.Module):
    """MLP policy and value network, of two separate towers or one shared trunk (`net.shared`): orthogonal weights, zero
    biases (Engstrom et al. 2020). Observations are floats or bytes.

    With `categories` k every byte is categorical with k categories and is encoded one-hot, k columns of the first
    weight. A tuple gives the number of each byte, 0 for a numeric feature with one column.
    """

    def __init__(
        self,
        observation: int,
        head: int,
        config: Config,
        generator: torch.Generator,
        *,
        categories: int | tuple[int, ...] = 0,
        last: int | None = None,
    ) -> None:
        """Create the network, for observations of O = `observation` values and H = `head` distribution parameters.
        `last` is the number of inputs of the output layers if they read a recurrent layer instead of the last hidden
        layer.
        """
        super().__init__()
        self.config, self.categories = config, categories
        self.partial_one_hot = None if isinstance(categories, int) else first_layer.PartialOneHot(categories)
        columns = (
            observation * max(categories, 1) if isinstance(categories, int) else sum(max(k, 1) for k in categories)
        )
        self.towers = 1 if config.shared else 2
        self._activation = ACTIVATIONS[config.activation]
        G, widths, gain = self.towers, config.hidden, math.sqrt(2.0)

        def stacked(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.stack([orthogonal(rows, columns, gain, generator) for _ in range(G)]))

        # Hidden layers of all towers. The first is one matrix, since both towers read the same observation.
        self.first_weight = nn.Parameter(stacked(widths[0], columns).flatten(0, 1).detach())  # (G M, K)
        self.first_bias = nn.Parameter(torch.zeros(G * widths[0], 1))
        # (G, M, K) each
        self.weights = nn.ParameterList([stacked(after, before) for before, after in itertools.pairwise(widths)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(G, after, 1)) for after in widths[1:]])
        # Layer normalization of each hidden layer.
        normed = widths if config.layer_norm else ()
        self.norm_gains = nn.ParameterList([nn.Parameter(torch.ones(G, width, 1)) for width in normed])
        self.norm_biases = nn.ParameterList([nn.Parameter(torch.zeros(G, width, 1)) for width in normed])
        # A small gain of the head makes the initial policy nearly uniform (Andrychowicz et al. 2021, "What matters in
        # on-policy RL").
        self.head_weight = nn.Parameter(orthogonal(head, last or widths[-1], 0.01, generator))
        self.head_bias = nn.Parameter(torch.zeros(head, 1))
        self.value_weight = nn.Parameter(orthogonal(1, last or widths[-1], 1.0, generator))
        self.value_bias = nn.Parameter(torch.zeros(1, 1))

    def reader(self, normalizer: RunningNormalizer | None) -> first_layer.Encoder:
        """Return the encoder that converts bytes (O, n) to the first layer's features (K, n); numeric ones are
        normalized by `normalizer` if given.
        """
        if self.partial_one_hot is not None:
            return functools.partial(self.partial_one_hot, normalizer=normalizer)
        categories = self.categories if isinstance(self.categories, int) else 0
        return (
            functools.partial(first_layer.one_hot, categories=categories)
            if categories
            else functools.partial(first_layer.numeric, normalizer=normalizer)
        )

    def _first(self, observation: Tensor, normalizer: RunningNormalizer | None) -> Tensor:
        """Return the pre-activations of the first layer (G M, B) for observations (O, B)."""
        if self.categories or observation.dtype == torch.uint8:
            return first_layer.linear(self.first_weight, self.first_bias, observation, self.reader(normalizer))
        features = observation if normalizer is None else normalizer.normalize(observation)
        return linear.linear(self.first_weight[None], self.first_bias[None], features[None])

    def features(self, observation: Tensor, normalizer: RunningNormalizer | None) -> Tensor:
        """Return the activations of the last hidden layer of all towers (G, M, B) for observations (O, B)."""
        features = self._first(observation, normalizer).view(self.towers, -1, observation.shape[1])
        for k in range(len(self.config.hidden)):
            if k > 0:
                features = linear.linear(self.weights[k - 1], self.biases[k - 1], features)
            if self.config.layer_norm:
                features = layer_norm(features, self.norm_gains[k], self.norm_biases[k])
            features = self._activation(features)
        return features

    def forward(self, observation: Tensor, normalizer: RunningNormalizer | None = None) -> tuple[Tensor, Tensor]:
        """Map observations (O, B) to the parameters of the action distribution (H, B) and values (B). Numeric features
        are normalized by `normalizer`, categorical ones are not.
        """
        return self.heads(self.features(observation, normalizer))

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map features (G, M, B) to the parameters of the action distribution (H, B) and values (B) by the output
        layers.
        """
        towers = features.split(1)
        head = linear.linear(self.head_weight[None], self.head_bias[None], towers[0])
        value = linear.linear(self.value_weight[None], self.value_bias[None], towers[-1])
        return head[0], value[0, 0]


class SampleMajor(nn.Module):
    """Adapter from feature-major tensors to a user's own network, which maps (B, O) to (B, H) and (B) or (B, 1)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Map observations (O, B) to the parameters of the action distribution (H, B) and values (B)."""
        head, value = self.module(observation.t().contiguous())  # `view` in a user's network needs contiguous memory
        return head.t(), value.reshape(-1)
