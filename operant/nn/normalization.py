"""Running mean and variance of a stream of batches, kept on the device. Knows nothing of what the numbers mean.

Merging of batches: Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance", equation 1.5.
Shape letters: D features, N lanes, S shards of the lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from operant.compute.exchange import SOLO, Exchange

__all__ = ["SOLO", "Exchange", "FixedScale", "RunningNormalizer", "Statistics", "statistics"]

CPU_NUMBERS, GPU_NUMBERS = 2**18, 2**24
"""Bytes that are made floats at a time, at most."""


class Statistics(NamedTuple):
    """Mean and variance of some samples, and how many they are."""

    mean: torch.Tensor  # (D, 1) float64
    variance: torch.Tensor  # (D, 1) float64
    count: Any

    def merged(self, other: Statistics) -> Statistics:
        """Those of both together."""
        delta, count = other.mean - self.mean, self.count + other.count
        # M2 = M2_a + M2_b + delta^2 n_a n_b / (n_a + n_b)
        squares = (
            self.variance * self.count
            + other.variance * other.count
            + delta.square() * (self.count * other.count / count)
        )
        return Statistics(self.mean + delta * (other.count / count), squares / count, count)


def statistics(batch: torch.Tensor, shards: int = 1, exchange: Exchange = SOLO, *, cut: bool = False) -> Statistics:
    """Mean and variance of D features, (D, ..., N) of any type: on a CPU of each of S shards of the lanes by itself,
    and then of the shards of all ranks.

    float64 is reduced as such, all else as float32. A shard's numbers are reduced alone and in one layout, so the bits
    do not depend on how many devices own the shards. On a GPU one reduction takes all lanes (a reduction a shard would
    cost several per cent of a short iteration), so there they may, unless it is `cut`; running normalizers do without:
    `operant.nn.moments`.
    """
    if exchange.ranks == 1 and ((batch.is_cuda and not cut) or shards == 1):
        return _shard_statistics(batch)
    parts = [_shard_statistics(part.contiguous()) for part in batch.chunk(shards, dim=-1)]
    own = torch.stack([torch.cat([part.mean, part.variance], dim=1) for part in parts])  # (S, D, 2)
    means, variances = exchange.gather(own).permute(2, 1, 0).contiguous()  # (D, S) each
    # Of equal shards: the variance within them, and that of their means.
    between, mean = torch.var_mean(means, dim=1, correction=0, keepdim=True)
    return Statistics(
        mean, variances.mean(dim=1, keepdim=True) + between, sum(part.count for part in parts) * exchange.ranks
    )


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

    def update(self, batch: torch.Tensor, shards: int = 1, exchange: Exchange = SOLO) -> None:
        """Take in a batch, features first and lanes last: (D, ..., N) of any type; for shards and other ranks see
        `statistics`.

        On a GPU by Triton where it is there, with bits that do not depend on how many GPUs own the shards.
        """
        if batch.is_cuda and _has_triton():
            self.take_in(batch, shards, exchange)
            return
        seen = Statistics(self.running_mean, self.running_variance, self.count).merged(
            statistics(batch, shards, exchange)
        )
        self.running_mean.copy_(seen.mean)
        self.running_variance.copy_(seen.variance)
        self.count.copy_(seen.count)
        self._freeze()

    def take_in(self, batch: torch.Tensor, shards: int = 1, exchange: Exchange = SOLO) -> None:
        """`update` by Triton's kernels."""
        from operant.nn import moments

        features = (
            batch
            if batch.ndim == 3 and batch.stride(-1) == 1
            else batch.reshape(len(batch), -1, batch.shape[-1]).contiguous()
        )
        parts = exchange.gather(moments.parts_of(features, shards, exchange.ranks))
        moments.merge(
            parts, self.count, (self.running_mean, self.running_variance), (self.mean, self.inv_std), self.EPSILON
        )
        self.count += features[0].numel() * exchange.ranks

    def normalize(self, features: torch.Tensor) -> torch.Tensor:
        """(x - mean) / std, clipped to +-10. Features first: (D, B) -> (D, B)."""
        return ((features - self.mean) * self.inv_std).clamp_(-self.CLIP, self.CLIP)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold. The names are those on disk: "shift" and "scale" are `mean` and `inv_std`."""
        return {
            "mean": self.running_mean,
            "variance": self.running_variance,
            "weight": self.count,
            "shift": self.mean,
            "scale": self.inv_std,
        }


class FixedScale(RunningNormalizer):
    """In place of running statistics, where bytes are not normalised: y = x / high, whatever is seen. `high` are the
    bytes' upper bounds, (D).
    """

    def __init__(self, high: Sequence[float], device: torch.device) -> None:
        super().__init__(len(high), device)
        self.mean.zero_()
        self.inv_std.copy_(torch.tensor(high, device=device)[:, None].clamp(1.0, 255.0).reciprocal())

    def update(self, batch: torch.Tensor, shards: int = 1, exchange: Exchange = SOLO) -> None:
        """Nothing."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Nothing that a checkpoint must hold."""
        return {}


@functools.cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _shard_statistics(batch: torch.Tensor) -> Statistics:
    """Those of (D, ...). Bytes are taken in part after part, so that they are never all floats at once."""
    if batch.dtype != torch.uint8:
        flat = batch.flatten(1).to(torch.float64 if batch.dtype == torch.float64 else torch.float32)
        variance, mean = torch.var_mean(flat, dim=1, correction=0, keepdim=True)
        return Statistics(mean.double(), variance.double(), flat.shape[1])
    found: Statistics | None = None
    for part in _parts(batch):
        mean, variance = _mean_and_variance(part)
        seen = Statistics(mean.double(), variance.double(), part[0].numel())
        found = seen if found is None else found.merged(seen)
    assert found is not None
    return found


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
