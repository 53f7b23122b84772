"""The products of layers, feature-major, with gradients whose sums have a fixed order. Knows neither networks nor what
the numbers mean.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

PART_SAMPLES, MOST_PARTS = 256, 128
"""On a GPU a weight gradient is summed in up to so many parts, none smaller than so many samples."""


class _Linear(torch.autograd.Function):
    """W x + b for G towers at once: a batched product whose weight gradient is summed in parts on a GPU.

    dW = g x^T reduces over B to a few small matrices: one product a tower would keep a handful of multiprocessors busy
    and leave the others idle. The parts are summed in a fixed order.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, features: Tensor) -> Tensor:
        ctx.save_for_backward(weight, features)
        return torch.baddbmm(bias, weight, features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, features = ctx.saved_tensors
        back = torch.bmm(weight.transpose(1, 2), gradient) if ctx.needs_input_grad[2] else None
        return weight_gradient(gradient, features), gradient.sum(dim=2, keepdim=True), back


def linear(weight: Tensor, bias: Tensor, features: Tensor) -> Tensor:
    """W x + b of G towers, (G, M, K) x (G, K, B) + (G, M, 1) -> (G, M, B)."""
    return _Linear.apply(weight, bias, features)


def weight_gradient(gradient: Tensor, features: Tensor) -> Tensor:
    """The weights' gradient g x^T, (G, M, B) x (G, B, K) -> (G, M, K), of features (G, K, B)."""
    samples = gradient.shape[2]
    parts = (
        min(math.gcd(samples, MOST_PARTS), 1 << max(samples // PART_SAMPLES, 1).bit_length() - 1)
        if gradient.is_cuda
        else 1
    )
    if parts == 1:
        return torch.bmm(gradient, features.transpose(1, 2))

    def split(rows: Tensor) -> Tensor:
        """(M, B) -> (parts, M, B / parts), without a copy."""
        return rows.unflatten(1, (parts, -1)).transpose(0, 1)

    # Each tower's B samples in `parts` parts: (parts, M, B / parts) (parts, B / parts, K) -> (parts, M, K), and their
    # sum.
    towers = zip(gradient.contiguous(), features.contiguous(), strict=True)
    return torch.stack([torch.bmm(split(g), split(x).transpose(1, 2)).sum(dim=0) for g, x in towers])
