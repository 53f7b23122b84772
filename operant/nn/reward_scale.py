"""Reward scale that keeps returns within the support of a distributional critic."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.compute.exchange import SOLO, Exchange


class RewardScale:
    """Running factor on rewards, so that returns have a standard deviation of at most 1 and lie within [-radius,
    radius].

    1 / max(std(G), max |G| / radius), G the discounted returns as they accrue (Lee et al. 2025, "Hyperspherical
    normalization for scalable deep RL").
    """

    def __init__(self, radius: float, device: torch.device, *, active: bool) -> None:
        """`radius`: the critics' support is [-radius, radius]. Without `active` the factor stays 1."""
        self.active, self.radius = active, radius
        self.factor = torch.ones((), device=device)
        # Over all returns, in float64: count, sum of G, sum of G^2; and max |G|.
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), device=device)

    @torch.no_grad()
    def update(self, accrued: Tensor, exchange: Exchange = SOLO) -> None:
        """Update the factor from the accrued returns of an iteration (T, N), of all ranks."""
        G = accrued.double()
        moments = torch.stack([torch.full_like(G[0, 0], G.numel()), G.sum(), G.square().sum(), G.abs().amax()])
        moments = exchange.gather(moments[None])  # (ranks, 4)
        self._sums.add_(moments[:, :3].sum(0))
        torch.maximum(self._largest, moments[:, 3].amax().float(), out=self._largest)
        mean = self._sums[1] / self._sums[0]
        std = (self._sums[2] / self._sums[0] - mean.square()).clamp_min(0.0).sqrt().float()
        self.factor.copy_(1.0 / torch.maximum(std, self._largest / self.radius).clamp_min(1e-8))

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint by name."""
        return {} if not self.active else {"factor": self.factor, "sums": self._sums, "largest": self._largest}
