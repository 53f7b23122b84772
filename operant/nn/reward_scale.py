"""The scale of rewards that makes returns fit a support of fixed size. Knows no critic and no rollout."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.compute.exchange import SOLO, Exchange


class RewardScale:
    """A factor on rewards, so that returns have a standard deviation of 1 at most and stay within the support, which
    then never has to be tuned.

    1 / max(std(G), max |G| / reach), G the discounted returns as they accrue: Lee et al. 2025, "Hyperspherical
    normalization for scalable deep RL".
    """

    def __init__(self, reach: float, device: torch.device, *, active: bool) -> None:
        """The support goes from -reach to reach; one that is not `active` stays 1."""
        self.active, self.reach = active, reach
        self.factor = torch.ones((), device=device)
        # Sums over all returns seen, in float64: their number, themselves, their squares; and the largest.
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), device=device)

    @torch.no_grad()
    def update(self, accrued: Tensor, exchange: Exchange = SOLO) -> None:
        """Take in the accrued returns of an iteration, (T, N), those of all ranks."""
        seen = accrued.double()
        found = torch.stack(
            [torch.full_like(seen[0, 0], seen.numel()), seen.sum(), seen.square().sum(), seen.abs().amax()]
        )
        found = exchange.gather(found[None])
        self._sums.add_(found[:, :3].sum(0))
        torch.maximum(self._largest, found[:, 3].amax().float(), out=self._largest)
        mean = self._sums[1] / self._sums[0]
        std = (self._sums[2] / self._sums[0] - mean.square()).clamp_min(0.0).sqrt().float()
        self.factor.copy_(1.0 / torch.maximum(std, self._largest / self.reach).clamp_min(1e-8))

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        return {} if not self.active else {"factor": self.factor, "sums": self._sums, "largest": self._largest}
