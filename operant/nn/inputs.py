"""How the first layer of a network reads bytes: some samples at a time, so that nothing ever holds a batch of them as
floats.

A chunk of the batch is turned into numbers, multiplied, and forgotten; the backward pass turns it into numbers once
more. How many chunks there are follows from shapes alone, and they are added up in their order: the same bits every
time, and nothing that a CUDA graph could not hold. A byte is a numeric feature, or a categorical feature with k
categories, which is read one-hot. Knows no environment and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from operant.nn import linear as products

if TYPE_CHECKING:
    from operant.nn.normalization import RunningNormalizer

CPU_NUMBERS, GPU_NUMBERS = 2**18, 2**23
"""Numbers that a chunk is turned into, at most: what stays in the cache of a core, and about what stays in that of a
large GPU.
"""

FEWEST = 128
"""Samples of a chunk, at least: a product of fewer would wait for the weights more than compute."""


Reader = Callable[[Tensor], Tensor]
"""What turns bytes (O, n) into the numbers (K, n) that weights are multiplied with."""


def numeric(observation: Tensor, normalizer: RunningNormalizer | None = None) -> Tensor:
    """Numeric features as floats, bytes (O, n) -> (O, n), normalised where there is a normalizer."""
    if normalizer is None:
        return observation.float()
    # A difference of a byte and a float is a float: no copy of the bytes comes before it.
    return (observation - normalizer.mean).mul_(normalizer.inv_std).clamp_(-normalizer.CLIP, normalizer.CLIP)


def one_hot(observation: Tensor, categories: int) -> Tensor:
    """Bytes of k categories one-hot, (O, n) -> (O k, n): row o k + c is 1 where byte o is c. A byte of k or more is in
    none of them: its rows are 0.
    """
    every, (rows, samples) = torch.arange(categories, dtype=torch.uint8, device=observation.device), observation.shape
    if torch.compiler.is_exporting():
        return torch.eq(observation[:, None], every[:, None]).float().flatten(0, 1)
    if observation.stride(0) == 1 and samples > 1:  # samples lie one after the other: so shall what is read of them
        numbers = torch.empty(samples, rows, categories, device=observation.device)
        return torch.eq(observation.t()[:, :, None], every, out=numbers).flatten(1).t()
    numbers = torch.empty(rows, categories, samples, device=observation.device)
    return torch.eq(observation[:, None], every[:, None], out=numbers).flatten(0, 1)


class PartialOneHot(nn.Module):
    """Bytes of which some are categorical features and some numeric: k columns for one with k categories, one for a
    numeric one, in the order of the bytes.

    It has no parameters. `categories`: how many each byte has, 0 for a numeric feature, (O).
    """

    feature: Tensor  # the byte that each column reads, (K)
    category: Tensor  # the category that each column stands for, (K, 1)
    numeric_columns: Tensor  # which columns are numeric, (A)
    numeric_features: Tensor  # which bytes they read, (A)

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
        """(O, n) -> (K, n). A byte that is in none of its categories has columns of 0. Numeric features are normalised
        where there is a normalizer.
        """
        encoded = torch.eq(observation.index_select(0, self.feature), self.category).float()
        seen = observation.index_select(0, self.numeric_features).float()
        if normalizer is not None:
            mean, inv_std = normalizer.mean[self.numeric_features], normalizer.inv_std[self.numeric_features]
            seen = seen.sub_(mean).mul_(inv_std).clamp_(-normalizer.CLIP, normalizer.CLIP)
        return encoded.index_copy_(0, self.numeric_columns, seen)


def chunk_samples(samples: int, width: int, *, cuda: bool) -> int:
    """Samples of a chunk, of so many in all and so many numbers each: their number by a power of two, so that what it
    divides stays even.
    """
    most = max(FEWEST, (GPU_NUMBERS if cuda else CPU_NUMBERS) // width)
    parts = 1
    while -(-samples // parts) > most:
        parts *= 2
    return -(-samples // parts)


class _Read(torch.autograd.Function):
    """W x + b of what a reader makes of bytes."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, observation: Tensor, read: Reader) -> Tensor:
        ctx.save_for_backward(observation)
        ctx.read = read
        out = weight.new_empty(len(weight), observation.shape[1])
        ctx.size = chunk_samples(observation.shape[1], weight.shape[1], cuda=observation.is_cuda)
        for chunk, into in zip(observation.split(ctx.size, dim=1), out.split(ctx.size, dim=1), strict=True):
            torch.addmm(bias, weight, read(chunk).to(weight.dtype), out=into)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (observation,) = ctx.saved_tensors
        chunks = zip(gradient.split(ctx.size, dim=1), observation.split(ctx.size, dim=1), strict=True)
        back = _sum_on_gpu(chunks, ctx.read) if gradient.is_cuda else _sum_on_cpu(chunks, ctx.read)
        return back, gradient.sum(dim=1, keepdim=True), None, None


def _sum_on_gpu(chunks: Any, read: Reader) -> Tensor:
    """The weights' gradient (M, K) of chunks (gradient (M, n), bytes (O, n))."""
    total: Tensor | None = None
    for gradient, chunk in chunks:
        part = products.weight_gradient(gradient[None], read(chunk).to(gradient.dtype)[None])[0]
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _sum_on_cpu(chunks: Any, read: Reader) -> Tensor:
    """The same as x g^T, a product that a CPU is faster at, transposed without a copy."""
    total: Tensor | None = None
    for gradient, chunk in chunks:
        features = read(chunk).to(gradient.dtype)
        total = torch.mm(features, gradient.t()) if total is None else total.addmm_(features, gradient.t())
    assert total is not None
    return total.t()


def linear(weight: Tensor, bias: Tensor, observation: Tensor, read: Reader) -> Tensor:
    """W x + b, (M, K) x (K, B) + (M, 1) -> (M, B), of what `read` makes of bytes (O, B), in either layout of their
    memory.
    """
    if torch.compiler.is_exporting():  # for any B: chunks would fix it
        return torch.addmm(bias, weight, read(observation).to(weight.dtype))
    return _Read.apply(weight, bias, observation, read)


# PICTURES


class _ReadPicture(torch.autograd.Function):
    """The convolution of bytes: see `convolve`."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor,
        picture: Tensor,
        categories: int,
        scale: float,
        padding: int,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(weight, picture)
        ctx.categories, ctx.scale, ctx.padding, ctx.dtype = categories, scale, padding, dtype
        ctx.size = chunk_samples(len(picture), picture[0].numel() * max(categories, 1), cuda=picture.is_cuda)
        filters, offset = _filters(weight, scale, dtype), bias.to(dtype)
        parts = [
            torch.conv2d(_planes(chunk, categories, dtype), filters, offset, padding=padding)
            for chunk in picture.split(ctx.size)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, picture = ctx.saved_tensors
        filters, ones, padding = _filters(weight, ctx.scale, ctx.dtype), [1, 1], [ctx.padding, ctx.padding]
        weight_sum, bias_sum = torch.zeros_like(weight), weight.new_zeros(len(weight))
        for g, chunk in zip(gradient.split(ctx.size), picture.split(ctx.size), strict=True):
            _, by_weight, by_bias = torch.ops.aten.convolution_backward(
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
            weight_sum.add_(by_weight.permute(0, 2, 3, 1))
            bias_sum.add_(by_bias)
        return weight_sum.mul_(ctx.scale), bias_sum, None, None, None, None, None


def _filters(weight: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Weights (M, k, k, C) as a convolution takes them, (M, C, k, k) with channels last in memory."""
    return (weight * scale).to(dtype).permute(0, 3, 1, 2)


def _planes(picture: Tensor, categories: int, dtype: torch.dtype) -> Tensor:
    """Bytes (n, h, w, ...) as numbers (n, C, h, w), with channels last in memory: numeric, or categories one-hot."""
    if categories:
        picture = torch.eq(picture[..., None], torch.arange(categories, dtype=torch.uint8, device=picture.device))
    return picture.to(dtype, memory_format=torch.contiguous_format).flatten(3).permute(0, 3, 1, 2)


def folded(picture: Tensor, fold: int, rows: int, columns: int) -> Tensor:
    """Squares of fold x fold pixels as the channels of one: (B, H, W, C) -> (B, rows, columns, fold, fold, C), a view.
    What is left over is left out.

    A convolution with a stride of `fold` is one without over those, and a matrix unit takes many channels rather than
    three.
    """
    cut = picture[:, : rows * fold, : columns * fold]
    return cut.unflatten(1, (rows, fold)).unflatten(3, (columns, fold)).transpose(2, 3)


def convolve(
    weight: Tensor,
    bias: Tensor,
    picture: Tensor,
    *,
    categories: int = 0,
    scale: float = 1.0,
    padding: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The convolution of bytes (B, h, w, ...) times `scale`, or of categories one-hot: (M, k, k, C) over (B, C, h, w)
    plus (M) -> (B, M, h', w') of `dtype`.

    All axes of the bytes from the fourth on, and then the categories, are channels, in that order. Weights and their
    gradients keep their own type; the scale goes to the weights, since there are fewer of them.
    """
    if torch.compiler.is_exporting():  # for any B: chunks would fix it
        return torch.conv2d(
            _planes(picture, categories, dtype), _filters(weight, scale, dtype), bias.to(dtype), padding=padding
        )
    return _ReadPicture.apply(weight, bias, picture, categories, scale, padding, dtype)


def picture_of(observation: Tensor, shape: Sequence[int]) -> Tensor:
    """Bytes (O, B) as pictures (B, *shape): as they lie in memory where samples lie one after the other, otherwise a
    copy of the bytes.
    """
    return observation.t().contiguous().view(observation.shape[1], *shape)
