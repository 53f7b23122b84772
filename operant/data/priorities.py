"""Which transitions of a replay a batch takes: uniformly, by priority, or newer ones more often. Knows no network and no loss.

By priority (Schaul, Quan, Antonoglou & Silver 2016, "Prioritized experience replay"): a transition's priority is (error + 1e-6)^alpha of its last visit, that
of one never visited the largest so far. Each shard of lanes gives the same part of a batch; within a shard the sum of its priorities is cut into as many
equal ranges as it gives samples, and each range draws one (the paper's stratified, proportional form). A sample's probability is p / (S sum of its shard's
p), and its weight (count x probability)^-beta, divided by the largest of the batch.

Sums have two levels: those of blocks (some whole rows of the ring x a shard's lanes) are made anew for every batch, and each sample walks over the blocks of
its shard, then over one block, always in the same order. Of duplicates in a batch the last writes the priority. So there are no atomics, and the same seed
gives the same bits. A tick whose n-step return is not known yet has priority 0.

Shape letters: C ticks of the ring, N lanes, S shards, L = N / S lanes of a shard, r rows of a block, M blocks of a shard, B batch.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from operant.compute.kernel import bind, kernel
from operant.data.replay import Batch, Replay
from operant.data.sampling import (
    TICK_BIT,
    Ages,
    Priorities,
    Sampling,
    age_body,
    arrival_body,
    learned_body,
    priority_body,
)

_LEAST = 1e-6  # added to an error: what was learned perfectly is drawn again


class Sampler(Protocol):
    """One way to sample. In an iteration `store` each tick t after the replay did; then for each update `sample`, and `learned` with its TD errors."""

    def store(self, t: int) -> None:
        """Set the priorities for tick t of the iteration, which the replay has stored."""

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """A batch for update number `update`, with so many ticks stored; and the weight of each sample in the loss, (B), None: all alike."""

    def learned(self, error: Tensor, skip: Tensor) -> None:
        """Set the batch's priorities from the errors (B), 0 and more: |TD error| or cross-entropy; no change where `skip`, a scalar, is 1."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint with the replay must hold, by name."""


class Uniform:
    """All transitions alike."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def store(self, t: int) -> None:
        """Nothing."""

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """The replay's own."""
        return self.replay.sample(ticks, update), None

    def learned(self, error: Tensor, skip: Tensor) -> None:
        """Nothing."""

    def tensors(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}


class Aged(Uniform):
    """Newer transitions more often: a sample's age is u^power of the oldest one's, u uniform. 1: all alike; 2: on average a third as old as the oldest."""

    def __init__(self, replay: Replay, power: int) -> None:
        super().__init__(replay)
        self._choose = kernel(age_body, replay.world.device)
        self._sampling, self._ages = bind(_sampling_of(replay)), bind(Ages(power))

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """A batch of its own, by age."""
        if len(self.replay.batch.noise):
            self.replay.choose(ticks, update)  # for its noise: the indices are written over
        self._choose(len(self.replay.index), self._sampling, self._ages, ticks << TICK_BIT | update)
        return self.replay.gather(ticks), None


class Prioritised:
    """Prioritised replay; `importance` is beta, the exponent of the importance-sampling weights, a scalar on the device."""

    def __init__(self, replay: Replay, exponent: float) -> None:
        self.replay, self._exponent, where = replay, exponent, replay.world.device
        C, N, S, B = replay.ticks_stored, replay.world.count, replay.shards, len(replay.index)
        r, M = blocks(C, N // S)
        self._shape = (M, r, S, N // S)
        self.value, self.sums = torch.zeros(M * r, N, device=where), torch.zeros(M, S, device=where)
        self.share, self._fresh, self.largest = (
            torch.ones(B, device=where),
            torch.zeros(B, device=where),
            torch.ones(1, device=where),
        )
        self.importance, self._skip = torch.ones((), device=where), torch.zeros(1, device=where)
        self._sampling = bind(_sampling_of(replay))
        self._priorities = bind(Priorities(self.value, self.sums, self.share, self._fresh, self.largest, self._skip, r))
        self._arrive, self._choose, self._write = (
            kernel(body, where) for body in (arrival_body, priority_body, learned_body)
        )

    def store(self, t: int) -> None:
        """Set the priorities for tick t of the iteration, which the replay has stored."""
        self._arrive(self.replay.world.count, self._sampling, self._priorities, t)

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """A batch of its own, and the samples' weights (B), the largest 1."""
        torch.sum(self.value.view(self._shape), dim=(1, 3), out=self.sums)
        self._choose(len(self.share), self._sampling, self._priorities, ticks << TICK_BIT | update)
        weight = self.share.clamp_min(1e-30).pow(-self.importance)
        return self.replay.gather(ticks), weight / weight.amax()

    def learned(self, error: Tensor, skip: Tensor) -> None:
        """Set the batch's priorities from the errors (B); no change where `skip` is 1."""
        torch.add(error, _LEAST, out=self._fresh).pow_(self._exponent)
        self._skip.copy_(skip)
        self.largest.copy_(torch.where(skip > 0, self.largest, torch.maximum(self.largest, self._fresh.amax())))
        self._write(len(self._fresh), self._sampling, self._priorities)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint with the replay must hold, by name."""
        return {"priority": self.value, "largest_priority": self.largest}


def _sampling_of(replay: Replay) -> Sampling:
    ring = replay.ring
    cut = (replay.ticks_stored, replay.world.count, replay.shards, replay.n_step, replay.first_shard)
    return Sampling(replay.index, ring.ticks, ring.updates, ring.seed, *cut)


def blocks(rows: int, lanes: int) -> tuple[int, int]:
    """Rows of a block and blocks of a shard of so many lanes: about as many numbers in a block as there are blocks."""
    block = max(1, round(math.sqrt(rows * lanes) / lanes))
    return block, -(-rows // block)
