"""Convolutional networks for byte images and boards: one trunk for actor and critic.

- nature: Mnih et al. 2015, "Human-level control through deep reinforcement learning": 8 x 8 with stride 4, 4 x 4 with
  stride 2, 3 x 3, a dense layer.
- impala: Espeholt et al. 2018, "IMPALA", figure 3, the larger network: stacks of a convolution, a max pooling with
  stride 2 and two residual blocks; a dense layer.
- board: 3 x 3 convolutions that keep the size, for boards of a few cells, and a dense layer.
- minatar: one 3 x 3 convolution without padding and a dense layer (Young & Tian 2019, "MinAtar"). With `layer_norm`
  both are normalized, as in the PQN paper.

Bytes are read by `operant.nn.first_layer`, as values in [0, 1] (byte / 255) or one-hot, each category a channel, and
never normalized. On a GPU with bf16 all but the output layers computes in bf16, from float32 parameters that receive
the gradients; otherwise in the parameters' dtype. Memory is channels-last throughout: images are read in place, weights
are (M, k, k, C), and the dense layer's columns are ordered (h, w, C).

Call `settle` first for reproducible results on a GPU. Every convolution must be called once before a CUDA graph is
captured, since cuDNN loads its kernels then; `operant.compute.graphs` does so.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from operant.envs import Box
from operant.nn import first_layer, linear
from operant.nn.mlp import LAYER_NORM_EPSILON, Config, orthogonal

if TYPE_CHECKING:
    from operant.nn.normalization import RunningNormalizer

CHANNELS = {"nature": (32, 64, 64), "impala": (16, 32, 32), "board": (64, 64, 64), "minatar": (16,)}
SMALLEST_NATURE = 36  # least pixels of a side: its feature maps are then 1 x 1

MAX_LAYER_VALUES = 2**28
"""Largest widest layer of one pass without gradients, in values. Larger batches are split, so that memory is bounded.
"""

NATURE_KERNELS = ((8, 4), (4, 2), (3, 1))  # kernel size and stride


def unsupported_reason(observation: Box, config: Config) -> str | None:
    """Return why a convolutional network cannot read an observation space, as a sentence, or None if it can."""
    shape = observation.shape
    if observation.dtype != "uint8" or len(shape) not in (2, 3) or math.prod(shape) != observation.size:
        what = f"{observation.size} values of {observation.dtype}" + (f" of the shape {shape}" if shape else "")
        instead = 'use "mlp", or images: env.pixels = 64'
        return (
            'net.kind = "cnn" reads images and boards: bytes of a shape (H, W, C) or (H, W); this environment\'s '
            f"observation is {what} ({instead})"
        )
    if isinstance(observation.categories, tuple):
        return (
            'net.kind = "cnn" reads bytes that are all numeric or all have k categories; this observation mixes them '
            '(use "mlp", or images: env.pixels = 64)'
        )
    height, width = shape[:2]
    if config.cnn == "nature" and min(height, width) < SMALLEST_NATURE:
        side = f"{SMALLEST_NATURE} x {SMALLEST_NATURE}"
        return (
            f'net.cnn = "nature" needs images of at least {side}, and these are {height} x {width} (use "board" '
            'or "impala")'
        )
    layers = len(config.channels or CHANNELS["minatar"])
    if config.cnn == "minatar" and min(height, width) <= 2 * layers:
        return (
            f'net.cnn = "minatar" with {layers} convolutions needs more than {2 * layers} cells a side, and these '
            f'boards are {height} x {width} (use "board")'
        )
    return None


def settle(precision: str) -> None:
    """Make cuDNN deterministic for this process, with float32 computed in tf32 unless `precision` is "fp32"."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


class _Filter(nn.Module):
    """Convolution with a k x k filter: orthogonal weights (M, k, k, C) scaled by `gain`, and bias (M). `side` is k."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        side: int,
        generator: torch.Generator,
        *,
        gain: float = math.sqrt(2.0),
        stride: int = 1,
        padding: int = 0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            orthogonal(outputs, side * side * inputs, gain, generator).view(outputs, side, side, inputs)
        )
        self.bias = nn.Parameter(torch.zeros(outputs))
        self._side, self._stride, self._padding = side, stride, padding

    def forward(self, features: Tensor) -> Tensor:
        """Convolve features, (B, C, h, w) to (B, M, h', w')."""
        weight, bias = self.weight.to(features.dtype).permute(0, 3, 1, 2), self.bias.to(features.dtype)
        return torch.conv2d(features, weight, bias, stride=self._stride, padding=self._padding)

    def read(self, picture: Tensor, categories: int, dtype: torch.dtype) -> Tensor:
        """Convolve bytes (B, H, W, C) to (B, M, h', w') of `dtype`. Bytes are values in [0, 1], byte / 255, or one-hot
        if `categories` is not 0.
        """
        scale = 1.0 if categories else 1.0 / 255.0
        if self._stride == 1:
            return first_layer.convolve(
                self.weight, self.bias, picture, categories=categories, scale=scale, padding=self._padding, dtype=dtype
            )
        # A filter of size k = times x stride with that stride is one of size `times` with stride 1 after
        # space-to-depth: blocks of stride x stride pixels become channels.
        times = self._side // self._stride
        rows, columns = (self.size(length) + times - 1 for length in picture.shape[1:3])
        parts = self.weight.unflatten(1, (times, self._stride)).unflatten(3, (times, self._stride)).transpose(2, 3)
        blocks = first_layer.space_to_depth(picture, self._stride, rows, columns)
        return first_layer.convolve(
            parts.flatten(3), self.bias, blocks, categories=categories, scale=scale, dtype=dtype
        )

    def size(self, length: int) -> int:
        """Return the output length of a side of `length` pixels."""
        return (length + 2 * self._padding - self._side) // self._stride + 1


class _Plain(nn.Module):
    """Convolutions in sequence, each followed by relu. With `normed` the channels are layer-normalized before each
    relu.
    """

    def __init__(self, filters: list[_Filter], *, normed: bool = False) -> None:
        super().__init__()
        self.filters, self._ordered = nn.ModuleList(filters), filters
        channels = [len(layer.bias) for layer in filters] if normed else []
        self.norm_gains = nn.ParameterList([nn.Parameter(torch.ones(count)) for count in channels])
        self.norm_biases = nn.ParameterList([nn.Parameter(torch.zeros(count)) for count in channels])

    def forward(self, picture: Tensor, categories: int, dtype: torch.dtype) -> Tensor:
        """Map bytes (B, H, W, C) to features (B, M, h, w) of `dtype`. Bytes are one-hot if `categories` is not 0."""
        first, *others = self._ordered
        features = torch.relu(self._normalized(0, first.read(picture, categories, dtype)))
        for k, layer in enumerate(others):
            features = torch.relu(self._normalized(k + 1, layer(features)))
        return features

    def _normalized(self, k: int, features: Tensor) -> Tensor:
        """Layer-normalize the output of convolution k, (B, M, h, w), over its M channels; return it unchanged if the
        network has no normalization.
        """
        if not self.norm_gains:
            return features
        gain, shift = self.norm_gains[k].to(features.dtype), self.norm_biases[k].to(features.dtype)
        return nn.functional.layer_norm(
            features.permute(0, 2, 3, 1), gain.shape, gain, shift, LAYER_NORM_EPSILON
        ).permute(0, 3, 1, 2)


class _Residual(nn.Module):
    """Stacks of a convolution, a max pooling by 2 and two residual blocks x + f(relu(f(relu(x)))), for IMPALA's
    network.
    """

    def __init__(self, channels: tuple[int, ...], inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        # Last gain of each block: the sum of all residual branches has about the variance of the features.
        last = 1.0 / math.sqrt(2 * len(channels))
        self._stacks: list[tuple[_Filter, ...]] = []  # an entry convolution, and two blocks of two
        for before, after in itertools.pairwise((inputs, *channels)):
            blocks = [_Filter(after, after, 3, generator, gain=gain, padding=1) for gain in (math.sqrt(2.0), last) * 2]
            self._stacks.append((_Filter(before, after, 3, generator, gain=1.0, padding=1), *blocks))
        self.filters = nn.ModuleList([layer for stack in self._stacks for layer in stack])

    def forward(self, picture: Tensor, categories: int, dtype: torch.dtype) -> Tensor:
        """Map bytes (B, H, W, C) to features (B, M, h, w) of `dtype`. Bytes are one-hot if `categories` is not 0."""
        features: Tensor | None = None
        for entry, *blocks in self._stacks:
            features = entry.read(picture, categories, dtype) if features is None else entry(features)
            features = torch.max_pool2d(features, 3, stride=2, padding=1)
            for inner, outer in zip(blocks[::2], blocks[1::2], strict=True):
                features = features + outer(torch.relu(inner(torch.relu(features))))
        assert features is not None
        return torch.relu(features)


class Convolutions(nn.Module):
    """Convolutional trunk for images or boards, given as bytes (O, B) of a shape (H, W, C) or (H, W). Computes in
    `dtype`, by default that of the parameters.
    """

    def __init__(
        self, observation: Box, config: Config, generator: torch.Generator, *, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        assert isinstance(observation.categories, int)
        self.config, self.categories, self.dtype = config, observation.categories, dtype
        height, width, planes = (*observation.shape, 1)[:3]
        self._shape, inputs = (height, width, planes), planes * max(self.categories, 1)
        channels = config.channels or CHANNELS[config.cnn]

        # The convolutions, height and width of their output, and values of the widest layer.
        self.body: _Plain | _Residual
        if config.cnn == "impala":
            self.body = _Residual(channels, inputs, generator)
            for _ in channels:
                height, width = -(-height // 2), -(-width // 2)
            widest = math.prod(observation.shape[:2]) * channels[0]
        else:
            between = list(itertools.pairwise((inputs, *channels)))
            if config.cnn == "nature":
                sides = zip(between, NATURE_KERNELS, strict=True)
                filters = [
                    _Filter(before, after, side, generator, stride=stride) for (before, after), (side, stride) in sides
                ]
            else:
                filters = [
                    _Filter(before, after, 3, generator, padding=int(config.cnn == "board"))
                    for before, after in between
                ]
            self.body, widest = _Plain(filters, normed=config.layer_norm and config.cnn == "minatar"), 0
            for layer, filtered in zip(filters, channels, strict=True):
                height, width = layer.size(height), layer.size(width)
                widest = max(widest, height * width * filtered)
        self._batch = max(1, MAX_LAYER_VALUES // widest)  # largest batch of a pass without gradients
        self.columns = height * width * channels[-1]  # features of a sample

    def _in_one_pass(self, observation: Tensor) -> bool:
        """Whether a batch of observations, bytes (O, B), is computed as a whole and not in parts that bound the memory.
        It is with gradients, whose batches are small; in an export, which allows any B; and if it is small enough.
        """
        small = observation.shape[1] <= self._batch
        return torch.is_grad_enabled() or torch.compiler.is_exporting() or small

    def convolved(self, observation: Tensor, dtype: torch.dtype) -> Tensor:
        """Map bytes (O, B) to features (B, h w M) of `dtype`."""
        features = self.body(first_layer.as_images(observation, self._shape), self.categories, dtype)  # (B, M, h, w)
        return features.permute(0, 2, 3, 1).flatten(1)

    def forward(self, observation: Tensor) -> Any:
        """Map bytes (O, B) to features (h w M, B) in the parameters' dtype."""
        own = next(self.parameters()).dtype
        if self._in_one_pass(observation):
            return self.convolved(observation, self.dtype or own).to(own).t()
        return torch.cat(
            [self.convolved(part, self.dtype or own).to(own).t() for part in observation.split(self._batch, dim=1)],
            dim=1,
        )


class Convolutional(Convolutions):
    """Policy and value network: convolutions, dense layers, and two output layers ("heads"). Maps bytes (O, B) to
    parameters of the action distribution (H, B) and values (B).
    """

    towers = 1

    def __init__(
        self,
        observation: Box,
        head: int,
        config: Config,
        generator: torch.Generator,
        *,
        dtype: torch.dtype | None = None,
        last: int | None = None,
    ) -> None:
        """Create the network. `head` is H. `last` is the number of inputs of the output layers if they read a recurrent
        layer instead of the last dense layer. `dtype` of the computation is by default that of the parameters.
        """
        super().__init__(observation, config, generator, dtype=dtype)
        # Dense layers, and the two output layers.
        widths = (self.columns, *config.hidden)
        gain = math.sqrt(2.0)
        self.weights = nn.ParameterList(
            [nn.Parameter(orthogonal(after, before, gain, generator)) for before, after in itertools.pairwise(widths)]
        )
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(after)) for after in config.hidden])
        normed = config.hidden if config.layer_norm else ()
        self.norm_gains = nn.ParameterList([nn.Parameter(torch.ones(width)) for width in normed])
        self.norm_biases = nn.ParameterList([nn.Parameter(torch.zeros(width)) for width in normed])
        self.head_weight = nn.Parameter(orthogonal(head, last or widths[-1], 0.01, generator))
        self.head_bias = nn.Parameter(torch.zeros(head, 1))
        self.value_weight = nn.Parameter(orthogonal(1, last or widths[-1], 1.0, generator))
        self.value_bias = nn.Parameter(torch.zeros(1, 1))

    def forward(self, observation: Tensor, normalizer: RunningNormalizer | None = None) -> tuple[Tensor, Tensor]:
        """Map bytes (O, B) to head parameters (H, B) and values (B) in the parameters' dtype. Ignores `normalizer`:
        bytes are never normalized.
        """
        if self._in_one_pass(observation):
            return self.heads(self._features(observation))
        heads, values = zip(
            *(self.heads(self._features(part)) for part in observation.split(self._batch, dim=1)), strict=True
        )
        return torch.cat(heads, dim=1), torch.cat(values)

    def features(self, observation: Tensor, normalizer: RunningNormalizer | None = None) -> Tensor:
        """Return the activations of the last dense layer (1, M, B) for bytes (O, B). Ignores `normalizer`."""
        if self._in_one_pass(observation):
            return self._features(observation)
        return torch.cat([self._features(part) for part in observation.split(self._batch, dim=1)], dim=2)

    def _features(self, observation: Tensor) -> Tensor:
        own = self.head_weight.dtype
        dtype = self.dtype or own
        features = self.convolved(observation, dtype)
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            features = nn.functional.linear(features, weight.to(dtype), bias.to(dtype))
            if self.config.layer_norm:
                gain, shift = self.norm_gains[k].to(dtype), self.norm_biases[k].to(dtype)
                features = nn.functional.layer_norm(features, gain.shape, gain, shift, LAYER_NORM_EPSILON)
            features = torch.relu(features)
        return features.to(own).t()[None]

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map features (1, M, B) to the parameters of the action distribution (H, B) and values (B) by the output
        layers.
        """
        head = linear.linear(self.head_weight[None], self.head_bias[None], features)
        value = linear.linear(self.value_weight[None], self.value_bias[None], features)
        return head[0], value[0, 0]
