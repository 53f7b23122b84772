"""Running mean and variance of a stream of batches, kept on the device. Knows nothing of what the numbers mean.

Merging of batches: Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance", equation 1.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

CPU_NUMBERS, GPU_NUMBERS = 2**18, 2**24
"""Bytes that are made floats at a time, at most."""


class RunningNormalizer:
    """Mean and variance of D features over all samples seen. Begins as mean 0, variance 1, weight 1e-4."""

    CLIP = 10.0
    EPSILON = 1e-8

    def __init__(self, features: int, device: torch.device) -> None:
        self.running_mean = torch.zeros(features, 1, dtype=torch.float64, device=device)  # (D, 1)
        self.running_variance = torch.ones(features, 1, dtype=torch.float64, device=device)  # (D, 1)
        self.count = torch.full((1,), 1e-4, dtype=torch.float64, device=device)  # samples seen
        # What readers use, in float32: y = (x - mean) * inv_std.
        self.mean = torch.zeros(features, 1, device=device)
        self.inv_std = torch.ones(features, 1, device=device)
        self._freeze()

    def _freeze(self) -> None:
        self.mean.copy_(self.running_mean)
        self.inv_std.copy_((self.running_variance + self.EPSILON).rsqrt())

    def update(self, batch: torch.Tensor) -> None:
        """Take in a batch, features first: (D, ...) of any type. Bytes are taken in part after part, so that they are never all floats at once."""
        if batch.dtype == torch.uint8:
            for part in _parts(batch):
                self._merge(*_mean_and_variance(part), part[0].numel())
        else:
            flat = batch.flatten(1).float()
            variance, mean = torch.var_mean(flat, dim=1, correction=0, keepdim=True)
            self._merge(mean, variance, flat.shape[1])
        self._freeze()

    def _merge(self, batch_mean: torch.Tensor, batch_variance: torch.Tensor, samples: int) -> None:
        """Take in the mean and the variance (D, 1) of so many samples."""
        batch_mean, batch_variance = batch_mean.double(), batch_variance.double()
        delta = batch_mean - self.running_mean
        total = self.count + samples
        # M2 = M2_a + M2_b + delta^2 n_a n_b / (n_a + n_b)
        squares = self.running_variance * self.count + batch_variance * samples + delta.square() * self.count * samples / total
        self.running_mean.add_(delta * (samples / total))
        self.running_variance.copy_(squares / total)
        self.count.copy_(total)

    def normalize(self, features: torch.Tensor) -> torch.Tensor:
        """(x - mean) / std, clipped to +-10. Features first: (D, B) -> (D, B)."""
        return ((features - self.mean) * self.inv_std).clamp_(-self.CLIP, self.CLIP)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold. The names are those on disk: "shift" and "scale" are `mean` and `inv_std`."""
        return {"mean": self.running_mean, "variance": self.running_variance, "weight": self.count, "shift": self.mean, "scale": self.inv_std}


class FixedScale(RunningNormalizer):
    """In place of running statistics, where bytes are not normalised: y = x / high, whatever is seen. `high` are the bytes' upper bounds, (D)."""

    def __init__(self, high: Sequence[float], device: torch.device) -> None:
        super().__init__(len(high), device)
        self.mean.zero_()
        self.inv_std.copy_(torch.tensor(high, device=device)[:, None].clamp(1.0, 255.0).reciprocal())

    def update(self, batch: torch.Tensor) -> None:
        """Nothing."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Nothing that a checkpoint must hold."""
        return {}


def _parts(batch: torch.Tensor) -> Iterator[torch.Tensor]:
    """Bytes (D, ...) as floats, cut along the second axis, and where that is not enough, along the last."""
    most = GPU_NUMBERS if batch.is_cuda else CPU_NUMBERS
    for rows in batch.split(max(1, most // batch[:, :1].numel()), dim=1):
        for part in rows.split(max(1, rows.shape[-1] * most // rows.numel()), dim=-1):
            yield part.float()


def _mean_and_variance(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance, (D, 1) each, of floats (D, ...), which are overwritten."""
    axes = tuple(range(1, part.ndim))
    if part.is_cuda:
        variance, mean = torch.var_mean(part, dim=axes, correction=0)
        return mean[:, None], variance[:, None]
    # Twice over what lies in the cache is many times faster there than once with a division for each number.
    mean = part.mean(dim=axes, keepdim=True)
    return mean.flatten(1), part.sub_(mean).square_().mean(dim=axes)[:, None]
