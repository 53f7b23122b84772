"""Epsilon-greedy exploration with Q values."""

from __future__ import annotations

import torch
from torch import Tensor


def epsilon_greedy(values: Tensor, noise: Tensor, epsilon: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return epsilon-greedy actions (1, N) int32 for Q values (A, N).

    Where noise[0] < epsilon (a scalar, or (N)) the action is random among those that `legal` (A, N) allows, chosen by
    noise[1]; `noise` is (2, N), uniform in [0, 1).
    """
    greedy = values.argmax(dim=0)
    if legal is None:
        random = (noise[1] * len(values)).long()
    else:
        # The k-th legal action, k drawn uniformly.
        legal_count = (legal != 0).cumsum(dim=0)
        random = (legal_count <= (noise[1] * legal_count[-1]).long()).sum(dim=0)
    return torch.where(noise[0] < epsilon, random, greedy).int()[None]


def decayed(first: float, last: float, share: Tensor) -> Tensor:
    """Interpolate linearly from `first` to `last` as `share` goes from 0 to 1; constant outside."""
    return first + (last - first) * share.clamp(0.0, 1.0)
