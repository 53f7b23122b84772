"""Batched linear layers, feature-major, whose gradients are summed in a fixed order."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

PART_SAMPLES, MAX_PARTS = 256, 128
"""A weight gradient on a GPU is summed in up to MAX_PARTS parts of at least PART_SAMPLES samples."""


class _Linear(torch.autograd.Function):
    """Autograd function W x + b for G networks side by side: a batched product whose weight gradient is summed in parts
    on a GPU.

    dW = g x^T reduces over B to a few small matrices. One product for each tower would occupy few multiprocessors. The
    parts are added in a fixed order.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, features: Tensor) -> Tensor:
        ctx.save_for_backward(weight, features)
        return torch.baddbmm(bias, weight, features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, features = ctx.saved_tensors
        # dx = W^T g, dW = g x^T, db = sum of g
        grad_features = torch.bmm(weight.transpose(1, 2), gradient) if ctx.needs_input_grad[2] else None
        return weight_gradient(gradient, features), gradient.sum(dim=2, keepdim=True), grad_features


def linear(weight: Tensor, bias: Tensor, features: Tensor) -> Tensor:
    """Return W x + b (G, M, B) of G networks side by side: weight W (G, M, K), bias b (G, M, 1),
    features x (G, K, B).
    """
    return _Linear.apply(weight, bias, features)


def weight_gradient(gradient: Tensor, features: Tensor) -> Tensor:
    """Return the weight gradient g x^T (G, M, K) of a batched linear layer, for output gradient g (G, M, B) and input x
    (G, K, B).
    """
    samples = gradient.shape[2]
    parts = (
        min(math.gcd(samples, MAX_PARTS), 1 << max(samples // PART_SAMPLES, 1).bit_length() - 1)
        if gradient.is_cuda
        else 1
    )
    if parts == 1:
        return torch.bmm(gradient, features.transpose(1, 2))

    def split(rows: Tensor) -> Tensor:
        """View (M, B) as (parts, M, B / parts)."""
        return rows.unflatten(1, (parts, -1)).transpose(0, 1)

    # For each tower (parts, M, B / parts) @ (parts, B / parts, K) = (parts, M, K), summed over the parts.
    towers = zip(gradient.contiguous(), features.contiguous(), strict=True)
    return torch.stack([torch.bmm(split(g), split(x).transpose(1, 2)).sum(dim=0) for g, x in towers])
