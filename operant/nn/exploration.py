"""Exploration with Q values: epsilon-greedy actions, and what epsilon is when and where. Knows no network and no algorithm."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def epsilon_greedy(values: Tensor, noise: Tensor, epsilon: Tensor, legal: Tensor | None = None) -> Tensor:
    """Actions (1, N) int32: of the largest of the values (A, N), or where noise[0] < epsilon (a scalar, or (N)) any that `legal` (A, N) allows, by noise[1]."""
    greedy = values.argmax(dim=0)
    if legal is None:
        random = (noise[1] * len(values)).long()
    else:
        # The action before which as many are legal as the number drawn says.
        seen = (legal != 0).cumsum(dim=0)
        random = (seen <= (noise[1] * seen[-1]).long()).sum(dim=0)
    return torch.where(noise[0] < epsilon, random, greedy).int()[None]


def decayed(first: float, last: float, share: Tensor) -> Tensor:
    """A number that goes from `first` to `last` in a line as `share` goes from 0 to 1, and stays there."""
    return first + (last - first) * share.clamp(0.0, 1.0)


def ladder(lanes: int, base: float, exponent: float, device: torch.device) -> Tensor:
    """An epsilon for each lane, base^(1 + exponent i / (N - 1)), (N): Horgan et al. 2018, "Distributed prioritized experience replay"."""
    share = torch.arange(lanes, dtype=torch.float64, device=device) / max(1, lanes - 1)
    return torch.exp(math.log(base) * (1.0 + exponent * share)).float()
