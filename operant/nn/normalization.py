"""Running mean and variance of observations or returns, kept on the device.

Batches are merged by Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance", equation 1.5. Shape
letters: D features, N lanes, S shards of the lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from operant.compute.exchange import SOLO, Exchange

__all__ = ["SOLO", "Exchange", "FixedScale", "RewardScale", "RunningNormalizer", "Statistics", "statistics"]

CPU_CHUNK_VALUES, GPU_CHUNK_VALUES = 2**18, 2**24
"""Largest float copy of a byte batch, in values."""


class Statistics(NamedTuple):
    """Mean and population variance (n in the denominator) of each of D features over `count` samples."""

    mean: torch.Tensor  # (D, 1) float64
    variance: torch.Tensor  # (D, 1) float64
    count: Any

    def merged(self, other: Statistics) -> Statistics:
        """Return the statistics of both sets of samples together."""
        delta, count = other.mean - self.mean, self.count + other.count
        # M2 = M2_a + M2_b + delta^2 n_a n_b / (n_a + n_b)
        squares = (
            self.variance * self.count
            + other.variance * other.count
            + delta.square() * (self.count * other.count / count)
        )
        return Statistics(self.mean + delta * (other.count / count), squares / count, count)


def statistics(batch: torch.Tensor, shards: int = 1, exchange: Exchange = SOLO, *, cut: bool = False) -> Statistics:
    """Return mean and variance of D features over a batch (D, ..., N) of any dtype and, with an exchange, over the
    batches of all ranks. float64 is reduced in float64, other dtypes in float32.

    A CPU reduces each of S shards of the lanes in the same layout and merges the shards of all ranks, so results do not
    depend on how many devices own the shards. A GPU reduces all lanes at once unless `cut` (a reduction for each shard
    would cost several per cent of a short iteration); running normalizers use `operant.nn.normalization_kernels` there.
    """
    if exchange.ranks == 1 and ((batch.is_cuda and not cut) or shards == 1):
        return _shard_statistics(batch)
    parts = [_shard_statistics(part.contiguous()) for part in batch.chunk(shards, dim=-1)]
    own = torch.stack([torch.cat([part.mean, part.variance], dim=1) for part in parts])  # (S, D, 2)
    means, variances = exchange.gather(own).permute(2, 1, 0).contiguous()  # (D, S) each
    # Equal shards: mean of their variances plus variance of their means.
    between, mean = torch.var_mean(means, dim=1, correction=0, keepdim=True)
    return Statistics(
        mean, variances.mean(dim=1, keepdim=True) + between, sum(part.count for part in parts) * exchange.ranks
    )


class RunningNormalizer:
    """Normalizer of D features by their running mean and variance, which start as 0 and 1 with the weight of 1e-4
    samples.
    """

    CLIP = 10.0
    EPSILON = 1e-8

    def __init__(self, features: int, device: torch.device) -> None:
        self.running_mean = torch.zeros(features, 1, dtype=torch.float64, device=device)  # (D, 1)
        self.running_variance = torch.ones(features, 1, dtype=torch.float64, device=device)  # (D, 1)
        self.count = torch.full((1,), 1e-4, dtype=torch.float64, device=device)  # samples
        # float32 copies for normalization: y = (x - mean) * inv_std.
        self.mean = torch.zeros(features, 1, device=device)
        self.inv_std = torch.ones(features, 1, device=device)
        self._freeze()

    def _freeze(self) -> None:
        self.mean.copy_(self.running_mean)
        self.inv_std.copy_((self.running_variance + self.EPSILON).rsqrt())

    def update(self, batch: torch.Tensor, shards: int = 1, exchange: Exchange = SOLO) -> None:
        """Merge a batch (D, ..., N) of any dtype into the running mean and variance. `shards` and `exchange` as for
        `statistics`.

        On a GPU with Triton the result does not depend on how many GPUs own the shards.
        """
        if batch.is_cuda and _has_triton():
            self.update_by_triton(batch, shards, exchange)
            return
        merged = Statistics(self.running_mean, self.running_variance, self.count).merged(
            statistics(batch, shards, exchange)
        )
        self.running_mean.copy_(merged.mean)
        self.running_variance.copy_(merged.variance)
        self.count.copy_(merged.count)
        self._freeze()

    def update_by_triton(self, batch: torch.Tensor, shards: int = 1, exchange: Exchange = SOLO) -> None:
        """Merge a batch (D, ..., N) into the running mean and variance by Triton kernels. Arguments as for `update`."""
        from operant.nn import normalization_kernels as kernels

        features = (
            batch
            if batch.ndim == 3 and batch.stride(-1) == 1
            else batch.reshape(len(batch), -1, batch.shape[-1]).contiguous()
        )
        parts = exchange.gather(kernels.partial_moments(features, shards, exchange.ranks))
        kernels.merge(
            parts, self.count, (self.running_mean, self.running_variance), (self.mean, self.inv_std), self.EPSILON
        )
        self.count += features[0].numel() * exchange.ranks

    def normalize(self, features: torch.Tensor) -> torch.Tensor:
        """Normalize features (D, B): (x - mean) / std, clipped to [-10, 10]."""
        return ((features - self.mean) * self.inv_std).clamp_(-self.CLIP, self.CLIP)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save in a checkpoint, by name. On disk `mean` is called "shift" and
        `inv_std` "scale".
        """
        return {
            "mean": self.running_mean,
            "variance": self.running_variance,
            "weight": self.count,
            "shift": self.mean,
            "scale": self.inv_std,
        }


class FixedScale(RunningNormalizer):
    """Normalizer y = x / high with a fixed scale, for bytes without running statistics. `high` are the bytes' upper
    bounds, (D).
    """

    def __init__(self, high: Sequence[float], device: torch.device) -> None:
        super().__init__(len(high), device)
        self.mean.zero_()
        self.inv_std.copy_(torch.tensor(high, device=device)[:, None].clamp(1.0, 255.0).reciprocal())

    def update(self, batch: torch.Tensor, shards: int = 1, exchange: Exchange = SOLO) -> None:
        """Ignore the batch and its arguments: the scale is fixed."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return {}: the scale is not saved in checkpoints."""
        return {}


class RewardScale:
    """Running factor by which rewards are multiplied, so that returns have a standard deviation of at most 1 and lie
    within [-radius, radius], the support of a distributional critic.

    1 / max(std(G), max |G| / radius), G the discounted returns as they accrue (Lee et al. 2025, "Hyperspherical
    normalization for scalable deep RL").
    """

    def __init__(self, radius: float, device: torch.device, *, active: bool) -> None:
        """Start with factor 1. The critics' support is [-`radius`, `radius`]. Without `active` the factor stays 1."""
        self.active, self.radius = active, radius
        self.factor = torch.ones((), device=device)
        # Over all returns, in float64: count, sum of G, sum of G^2; and max |G|.
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), device=device)

    @torch.no_grad()
    def update(self, accrued: torch.Tensor, exchange: Exchange = SOLO) -> None:
        """Update the factor from the returns of an iteration, accrued forward in time, (T, N), of all ranks."""
        G = accrued.double()
        moments = torch.stack([torch.full_like(G[0, 0], G.numel()), G.sum(), G.square().sum(), G.abs().amax()])
        moments = exchange.gather(moments[None])  # (ranks, 4)
        self._sums.add_(moments[:, :3].sum(0))
        torch.maximum(self._largest, moments[:, 3].amax().float(), out=self._largest)
        mean = self._sums[1] / self._sums[0]
        std = (self._sums[2] / self._sums[0] - mean.square()).clamp_min(0.0).sqrt().float()
        self.factor.copy_(1.0 / torch.maximum(std, self._largest / self.radius).clamp_min(1e-8))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save in a checkpoint, by name; {} without `active`."""
        return {} if not self.active else {"factor": self.factor, "sums": self._sums, "largest": self._largest}


@functools.cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _shard_statistics(batch: torch.Tensor) -> Statistics:
    """Return mean and variance of D features over one shard of the lanes, (D, ...). Bytes are converted to floats part
    by part.
    """
    if batch.dtype != torch.uint8:
        flat = batch.flatten(1).to(torch.float64 if batch.dtype == torch.float64 else torch.float32)
        variance, mean = torch.var_mean(flat, dim=1, correction=0, keepdim=True)
        return Statistics(mean.double(), variance.double(), flat.shape[1])
    total: Statistics | None = None
    for part in _parts(batch):
        mean, variance = _mean_and_variance(part)
        own = Statistics(mean.double(), variance.double(), part[0].numel())
        total = own if total is None else total.merged(own)
    assert total is not None
    return total


def _parts(batch: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield float copies of parts of a byte batch (D, ...), split along the second axis, and along the last where
    needed.
    """
    limit = GPU_CHUNK_VALUES if batch.is_cuda else CPU_CHUNK_VALUES
    for rows in batch.split(max(1, limit // batch[:, :1].numel()), dim=1):
        for part in rows.split(max(1, rows.shape[-1] * limit // rows.numel()), dim=-1):
            yield part.float()


def _mean_and_variance(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance, (D, 1) each, of floats (D, ...), which are overwritten."""
    axes = tuple(range(1, part.ndim))
    if part.is_cuda:
        variance, mean = torch.var_mean(part, dim=axes, correction=0)
        return mean[:, None], variance[:, None]
    # Two passes over cached data are many times faster than one pass with a division for each value.
    mean = part.mean(dim=axes, keepdim=True)
    return mean.flatten(1), part.sub_(mean).square_().mean(dim=axes)[:, None]
