"""Running mean and variance of a stream of batches, kept on the device. Knows nothing of what the numbers mean.

Merging of batches: Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance", equation 1.5.
"""

from __future__ import annotations

import torch


class RunningMoments:
    """Mean and variance of D features over all samples seen. Begins as mean 0, variance 1, weight 1e-4."""

    CLIP = 10.0
    EPSILON = 1e-8

    def __init__(self, features: int, device: torch.device) -> None:
        self.mean = torch.zeros(features, 1, dtype=torch.float64, device=device)  # (D, 1)
        self.variance = torch.ones(features, 1, dtype=torch.float64, device=device)  # (D, 1)
        self.weight = torch.full((1,), 1e-4, dtype=torch.float64, device=device)  # samples seen
        # What readers use, in float32: y = (x - shift) * scale.
        self.shift = torch.zeros(features, 1, device=device)
        self.scale = torch.ones(features, 1, device=device)
        self._freeze()

    def _freeze(self) -> None:
        self.shift.copy_(self.mean)
        self.scale.copy_((self.variance + self.EPSILON).rsqrt())

    def update(self, batch: torch.Tensor) -> None:
        """Take in a batch, features first: (D, ...) of any type."""
        flat = batch.flatten(1).float()
        count = flat.shape[1]
        batch_variance, batch_mean = (moment.double() for moment in torch.var_mean(flat, dim=1, correction=0, keepdim=True))
        delta = batch_mean - self.mean
        total = self.weight + count
        # M2 = M2_a + M2_b + delta^2 n_a n_b / (n_a + n_b)
        squares = self.variance * self.weight + batch_variance * count + delta.square() * self.weight * count / total
        self.mean.add_(delta * (count / total))
        self.variance.copy_(squares / total)
        self.weight.copy_(total)
        self._freeze()

    def normalize(self, features: torch.Tensor) -> torch.Tensor:
        """(x - mean) / std, clipped to +-10. Features first: (D, B) -> (D, B)."""
        return ((features - self.shift) * self.scale).clamp_(-self.CLIP, self.CLIP)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold."""
        return {"mean": self.mean, "variance": self.variance, "weight": self.weight, "shift": self.shift, "scale": self.scale}
