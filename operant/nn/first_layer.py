"""First layers over byte observations: linear and convolutional, in chunks of samples.

The float copy of a whole batch is never stored: a chunk is encoded as floats, multiplied and dropped, and encoded again
in the backward pass. The number of chunks follows from shapes alone and partial sums are added in a fixed order:
results are reproducible, and a CUDA graph can capture them. A byte is a numeric feature, or a categorical one with k
categories, encoded one-hot.

Shape letters: O bytes of an observation, K features, M outputs, B samples, n samples of a chunk, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from operant.nn import linear as dense

if TYPE_CHECKING:
    from operant.nn.normalization import RunningNormalizer

CPU_CHUNK_VALUES, GPU_CHUNK_VALUES = 2**18, 2**23
"""Largest float copy of a chunk, in values: the size of a core's cache, and about that of a large GPU's L2."""

MIN_CHUNK_SAMPLES = 128
"""Least samples of a chunk. Smaller products are bound by loading the weights."""


Encoder = Callable[[Tensor], Tensor]
"""Encoder of bytes (O, n) as features (K, n)."""


def numeric(observation: Tensor, normalizer: RunningNormalizer | None = None) -> Tensor:
    """Convert bytes of numeric features (O, n) to floats (O, n), normalized by `normalizer` if given."""
    if normalizer is None:
        return observation.float()
    # byte - float is a float: no separate conversion is needed.
    return (observation - normalizer.mean).mul_(normalizer.inv_std).clamp_(-normalizer.CLIP, normalizer.CLIP)


def one_hot(observation: Tensor, categories: int) -> Tensor:
    """Encode bytes with k categories one-hot, (O, n) to (O k, n): row o k + c is 1 where byte o is c. A byte of k or
    more has rows of 0.
    """
    category = torch.arange(categories, dtype=torch.uint8, device=observation.device)
    rows, samples = observation.shape
    if torch.compiler.is_exporting():
        return torch.eq(observation[:, None], category[:, None]).float().flatten(0, 1)
    if observation.stride(0) == 1 and samples > 1:  # samples are contiguous: keep that layout
        features = torch.empty(samples, rows, categories, device=observation.device)
        return torch.eq(observation.t()[:, :, None], category, out=features).flatten(1).t()
    features = torch.empty(rows, categories, samples, device=observation.device)
    return torch.eq(observation[:, None], category[:, None], out=features).flatten(0, 1)


class PartialOneHot(nn.Module):
    """Encoder of bytes of which some are categorical: k columns, one-hot, for a byte with k categories, one column for
    a numeric byte, in the order of the bytes. No parameters.

    `categories`: number of categories of each byte, 0 for a numeric feature, (O).
    """

    feature: Tensor  # byte index of each column, (K)
    category: Tensor  # category of each column, (K, 1)
    numeric_columns: Tensor  # indices of the numeric columns, (A)
    numeric_features: Tensor  # their byte indices, (A)

    def __init__(self, categories: Sequence[int]) -> None:
        super().__init__()
        widths = torch.tensor([max(k, 1) for k in categories])
        feature = torch.repeat_interleave(torch.arange(len(categories)), widths)
        category = torch.arange(len(feature)) - (widths.cumsum(0) - widths)[feature]
        columns = (torch.tensor(categories)[feature] == 0).nonzero()[:, 0]
        tables = {
            "feature": feature,
            "category": category.to(torch.uint8)[:, None],
            "numeric_columns": columns,
            "numeric_features": feature[columns],
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, observation: Tensor, normalizer: RunningNormalizer | None = None) -> Tensor:
        """Encode bytes (O, n) as features (K, n). A byte outside its categories has columns of 0. Numeric features are
        normalized by `normalizer` if given.
        """
        encoded = torch.eq(observation.index_select(0, self.feature), self.category).float()
        values = observation.index_select(0, self.numeric_features).float()
        if normalizer is not None:
            mean, inv_std = normalizer.mean[self.numeric_features], normalizer.inv_std[self.numeric_features]
            values = values.sub_(mean).mul_(inv_std).clamp_(-normalizer.CLIP, normalizer.CLIP)
        return encoded.index_copy_(0, self.numeric_columns, values)


def chunk_size(samples: int, width: int, *, cuda: bool) -> int:
    """Return the number of samples in a chunk, for a batch of `samples` of `width` values each: the batch divided by a
    power of two. `cuda`: a GPU computes the chunks.
    """
    limit = max(MIN_CHUNK_SAMPLES, (GPU_CHUNK_VALUES if cuda else CPU_CHUNK_VALUES) // width)
    parts = 1
    while -(-samples // parts) > limit:
        parts *= 2
    return -(-samples // parts)


class _LinearBytes(torch.autograd.Function):
    """Autograd function W encode(x) + b, over bytes x that are encoded in chunks."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, observation: Tensor, encode: Encoder) -> Tensor:
        ctx.save_for_backward(observation)
        ctx.encode = encode
        out = weight.new_empty(len(weight), observation.shape[1])
        ctx.size = chunk_size(observation.shape[1], weight.shape[1], cuda=observation.is_cuda)
        for chunk, into in zip(observation.split(ctx.size, dim=1), out.split(ctx.size, dim=1), strict=True):
            torch.addmm(bias, weight, encode(chunk).to(weight.dtype), out=into)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (observation,) = ctx.saved_tensors
        chunks = zip(gradient.split(ctx.size, dim=1), observation.split(ctx.size, dim=1), strict=True)
        grad_weight = _sum_on_gpu(chunks, ctx.encode) if gradient.is_cuda else _sum_on_cpu(chunks, ctx.encode)
        return grad_weight, gradient.sum(dim=1, keepdim=True), None, None


def _sum_on_gpu(chunks: Any, encode: Encoder) -> Tensor:
    """Return the weight gradient (M, K), summed over `chunks`, pairs of output gradient (M, n) and bytes (O, n)."""
    total: Tensor | None = None
    for gradient, chunk in chunks:
        part = dense.weight_gradient(gradient[None], encode(chunk).to(gradient.dtype)[None])[0]
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _sum_on_cpu(chunks: Any, encode: Encoder) -> Tensor:
    """Return the weight gradient (M, K), summed over `chunks`, as the transpose of x g^T, which a CPU computes faster
    than g x^T.
    """
    total: Tensor | None = None
    for gradient, chunk in chunks:
        features = encode(chunk).to(gradient.dtype)
        total = torch.mm(features, gradient.t()) if total is None else total.addmm_(features, gradient.t())
    assert total is not None
    return total.t()


def linear(weight: Tensor, bias: Tensor, observation: Tensor, encode: Encoder) -> Tensor:
    """Return W encode(x) + b (M, B) for bytes x (O, B) in either memory layout, weight (M, K) and bias (M, 1)."""
    if torch.compiler.is_exporting():  # chunks would fix B
        return torch.addmm(bias, weight, encode(observation).to(weight.dtype))
    return _LinearBytes.apply(weight, bias, observation, encode)


# IMAGES


class _ConvolveBytes(torch.autograd.Function):
    """Autograd function of `convolve`, which encodes bytes in chunks, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor,
        images: Tensor,
        categories: int,
        scale: float,
        padding: int,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(weight, images)
        ctx.categories, ctx.scale, ctx.padding, ctx.dtype = categories, scale, padding, dtype
        ctx.size = chunk_size(len(images), images[0].numel() * max(categories, 1), cuda=images.is_cuda)
        filters, offset = _filters(weight, scale, dtype), bias.to(dtype)
        parts = [
            torch.conv2d(_planes(chunk, categories, dtype), filters, offset, padding=padding)
            for chunk in images.split(ctx.size)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, images = ctx.saved_tensors
        filters, ones, padding = _filters(weight, ctx.scale, ctx.dtype), [1, 1], [ctx.padding, ctx.padding]
        grad_weight, grad_bias = torch.zeros_like(weight), weight.new_zeros(len(weight))
        for g, chunk in zip(gradient.split(ctx.size), images.split(ctx.size), strict=True):
            _, part_weight, part_bias = torch.ops.aten.convolution_backward(
                g,
                _planes(chunk, ctx.categories, ctx.dtype),
                filters,
                [len(weight)],
                ones,
                padding,
                ones,
                False,
                [0, 0],
                1,
                [False, True, True],
            )
            grad_weight.add_(part_weight.permute(0, 2, 3, 1))
            grad_bias.add_(part_bias)
        return grad_weight.mul_(ctx.scale), grad_bias, None, None, None, None, None


def _filters(weight: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Scale filter weights (M, k, k, C) by `scale` and return them as (M, C, k, k) in channels-last memory."""
    return (weight * scale).to(dtype).permute(0, 3, 1, 2)


def _planes(images: Tensor, categories: int, dtype: torch.dtype) -> Tensor:
    """Convert bytes (n, h, w, ...) to floats (n, C, h, w) in channels-last memory, numeric (`categories` 0)
    or one-hot.
    """
    if categories:
        images = torch.eq(images[..., None], torch.arange(categories, dtype=torch.uint8, device=images.device))
    return images.to(dtype, memory_format=torch.contiguous_format).flatten(3).permute(0, 3, 1, 2)


def space_to_depth(images: Tensor, fold: int, rows: int, columns: int) -> Tensor:
    """Move blocks of fold x fold pixels to the channels: (B, H, W, C) to (B, rows, columns, fold, fold, C), a view.
    Pixels beyond the last whole block are dropped.

    A convolution with stride `fold` is then one with stride 1 over more channels, which suits a matrix unit better than
    three.
    """
    cut = images[:, : rows * fold, : columns * fold]
    return cut.unflatten(1, (rows, fold)).unflatten(3, (columns, fold)).transpose(2, 3)


def convolve(
    weight: Tensor,
    bias: Tensor,
    images: Tensor,
    *,
    categories: int = 0,
    scale: float = 1.0,
    padding: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Convolve bytes `images` (B, h, w, ...), zero-padded by `padding`, with weight (M, k, k, C) and bias (M) to (B, M,
    h', w') of `dtype`.

    Bytes are multiplied by `scale`, or encoded one-hot with `categories`. Axes from the fourth on, then the categories,
    are the channels. Weights and gradients keep their dtype. The scale is applied to the weights, which are fewer.
    """
    if torch.compiler.is_exporting():  # chunks would fix B
        return torch.conv2d(
            _planes(images, categories, dtype), _filters(weight, scale, dtype), bias.to(dtype), padding=padding
        )
    return _ConvolveBytes.apply(weight, bias, images, categories, scale, padding, dtype)


def as_images(observation: Tensor, shape: Sequence[int]) -> Tensor:
    """View bytes (O, B) as images (B, *shape); a copy unless samples are contiguous."""
    return observation.t().contiguous().view(observation.shape[1], *shape)
