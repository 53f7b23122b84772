"""Sampling of a replay: uniform, or prioritised.

Prioritised sampling (Schaul, Quan, Antonoglou & Silver 2016, "Prioritized experience replay"): a transition's priority
is (error + 1e-6)^alpha of its last update, that of a new transition the largest so far. Each shard of lanes gives the
same number of samples; within a shard the sum of its priorities is cut into as many equal ranges, and each range draws
one sample (the paper's stratified, proportional form). A sample's probability is p / (S sum of its shard's p), and its
importance-sampling weight (count x probability)^-beta, divided by the largest of the batch.

Prefix sums have two levels. Sums of blocks (some whole rows of the ring x a shard's lanes) are computed for every
batch; each sample walks over the blocks of its shard, then over one block, always in the same order. Of duplicates in a
batch the last writes the priority. So there are no atomics, and the same seed gives the same bits. A tick whose n-step
return is not known yet has priority 0.

Shape letters: C ticks of the ring, N lanes, S shards, L = N / S lanes of a shard, r rows of a block, M blocks of a
shard, B batch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from numpy import float32, int32, int64, uint32
from torch import Tensor

from operant.compute import rng
from operant.compute.device import device
from operant.compute.kernel import bind, kernel
from operant.data.replay import Batch, Replay
from operant.data.transitions import LOW_32, SHARD_BIT, TICK_BIT

_SMALLEST_ERROR = 1e-6  # added to every error, so that a transition without error is drawn again


class Uniform:
    """Uniform sampling of batches from a replay, and base class of prioritised sampling. Call `store` for each tick
    (step of all lanes) after the replay stored it, and for each update `sample`, then `set_priorities`.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def store(self, t: int) -> None:
        """Set the first priorities of the transitions of tick t of the iteration; uniform sampling has none."""

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """Draw a batch for update number `update` of the iteration, when `ticks` of its ticks are stored. Returns the
        batch and the samples' weights in the loss (B), or None if all are 1.
        """
        return self.replay.sample(ticks, update), None

    def set_priorities(self, error: Tensor, skip: Tensor) -> None:
        """Set the priorities of the last batch from its errors (B), |TD error| or cross-entropy; uniform sampling has
        none. Changes nothing where `skip`, a scalar on the device, is 1.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint that has the replay, by name; {} for uniform sampling."""
        return {}


class Prioritised(Uniform):
    """Prioritised sampling of batches from a replay. `importance` is beta, the exponent of the importance-sampling
    weights, a scalar on the device.
    """

    def __init__(self, replay: Replay, exponent: float) -> None:
        """Allocate priorities for all transitions of `replay`. `exponent` is alpha, the exponent of the priorities."""
        super().__init__(replay)
        self._exponent, device = exponent, replay.world.device
        C, N, S, B = replay.ticks_stored, replay.world.count, replay.shards, len(replay.index)
        r, M = block_shape(C, N // S)
        self._shape = (M, r, S, N // S)
        self.value, self.sums = torch.zeros(M * r, N, device=device), torch.zeros(M, S, device=device)
        self.probability, self._new = torch.ones(B, device=device), torch.zeros(B, device=device)
        self.largest = torch.ones(1, device=device)
        self._n_step = torch.full((1,), replay.n_step, dtype=torch.int64, device=device)
        self.importance, self._skip = torch.ones((), device=device), torch.zeros(1, device=device)
        ring = replay.ring
        layout = (C, N, S, replay.n_step, replay.first_shard)
        self._sampling = bind(Sampling(replay.index, ring.ticks, ring.updates, ring.seed, *layout))
        self._priorities = bind(
            Priorities(self.value, self.sums, self.probability, self._new, self.largest, self._skip, r)
        )
        self._mark, self._sample, self._write = (
            kernel(body, device) for body in (mark_tick_body, sample_by_priority_body, write_priority_body)
        )

    def store(self, t: int) -> None:
        """Set the priorities of tick t of the iteration to 0, and those of tick t - n, whose n-step returns are now
        complete, to the largest so far.
        """
        self._mark(self.replay.world.count, self._sampling, self._priorities, t)

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """Draw a batch by priority, arguments as for `Uniform.sample`. Returns it and the samples' weights (B), of
        which the largest is 1.
        """
        torch.sum(self.value.view(self._shape), dim=(1, 3), out=self.sums)
        self._sample(len(self.probability), self._sampling, self._priorities, ticks << TICK_BIT | update)
        weight = self.probability.clamp_min(1e-30).pow(-self.importance)
        return self.replay.gather(ticks), weight / weight.amax()

    def set_priorities(self, error: Tensor, skip: Tensor) -> None:
        """Set the priorities of the last batch from its errors (B): (error + 1e-6)^alpha. Changes nothing where `skip`
        is 1.
        """
        torch.add(error, _SMALLEST_ERROR, out=self._new).pow_(self._exponent)
        self._skip.copy_(skip)
        self.largest.copy_(torch.where(skip > 0, self.largest, torch.maximum(self.largest, self._new.amax())))
        self._write(len(self._new), self._sampling, self._priorities)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint that has the replay, by name.

        `n_step` is constant: the newest n ticks have priority 0.
        """
        return {"priority": self.value, "largest_priority": self.largest, "n_step": self._n_step}


def block_shape(rows: int, lanes: int) -> tuple[int, int]:
    """Return (rows of a block, blocks of a shard) of the prefix sums, for a ring buffer of `rows` ticks and shards of
    `lanes` lanes.

    A block holds about as many priorities as there are blocks, which makes the walk over both levels shortest.
    """
    block = max(1, round(math.sqrt(rows * lanes) / lanes))
    return block, -(-rows // block)


# KERNELS: one call per sample or lane. `offset` is ticks << TICK_BIT | update: the ticks (vectorised steps) of this
# iteration that are stored, and the update's number in it.

_DRAW = 1024  # the draw of a sample's own random numbers: those of `Replay.sample` begin at 0


class Sampling(NamedTuple):
    """Indices of a batch, and the replay's counters and sizes, as kernels take them."""

    indices: Any  # (B) int32, written: row of the ring x N + lane
    ticks: Any  # (1) int64, ticks stored when the iteration began
    updates: Any  # (1) int64
    seed: Any  # (2) uint32, as int32
    rows: int  # C
    lanes: int  # N
    shards: int  # S
    n_step: int
    first_shard: int


class Priorities(NamedTuple):
    """Priorities of the replay's transitions, their prefix sums, and the new priorities of a batch, as kernels take
    them.
    """

    value: Any  # (M r, N) float32: those of rows 0 ... C - 1; 0 where nothing can be sampled
    sums: Any  # (M, S) float32, of the blocks of each shard
    probability: Any  # (B) float32, written: probability x transitions that can be sampled
    new: Any  # (B) float32, new priorities of the samples
    largest: Any  # (1) float32, the largest priority so far
    skip: Any  # (1) float32, 1: nothing is written
    block: int  # r


@device
def _uniform_pair(k, sampling, offset):
    """Return two uniform random numbers of sample k, its shard, and its number within the shard.

    They are keyed like the samples of `Replay.sample`.
    """
    update = sampling.updates[0] + (int64(offset) & LOW_32)
    samples = sampling.indices.shape[0] // sampling.shards
    shard, number = int64(k) // samples, int64(k) % samples
    key = (
        uint32(sampling.seed[0]),
        uint32(sampling.seed[1]),
        uint32(((sampling.first_shard + shard) << SHARD_BIT) | number),
        uint32(update & LOW_32),
        uint32(update >> 32),
        uint32(rng.REPLAY),
    )
    words = rng.uniform4(key, _DRAW)
    return words[0], words[1], shard, number


@device
def _ticks_to_sample(sampling, offset):
    """Return the number of ticks whose transitions can be sampled, at least 1."""
    stored = min(sampling.ticks[0] + (int64(offset) >> TICK_BIT), int64(sampling.rows))
    return max(stored - sampling.n_step, int64(1))


@device
def mark_tick_body(lane, sampling, priorities, offset):
    """Set `lane`'s priority in tick `offset` of the iteration to 0, and n ticks earlier to the largest so far.

    The newest tick overwrote the oldest and has no n-step return yet; the tick n before it now has one.
    """
    tick = sampling.ticks[0] + offset
    priorities.value[tick % sampling.rows, lane] = float32(0.0)
    if tick >= sampling.n_step:
        priorities.value[(tick - sampling.n_step) % sampling.rows, lane] = priorities.largest[0]


@device
def sample_by_priority_body(k, sampling, priorities, offset):
    """Draw sample k: the transition where the prefix sum of priorities reaches a uniform number of range k. Writes its
    index and its probability.
    """
    first, _, shard, number = _uniform_pair(k, sampling, offset)
    samples, lanes = sampling.indices.shape[0] // sampling.shards, sampling.lanes // sampling.shards
    total = float32(0.0)
    for block in range(priorities.sums.shape[0]):
        total += priorities.sums[block, shard]
    threshold = (float32(number) + first) / float32(samples) * total

    # The block: the first whose end lies beyond, or the last that has any.
    before, chosen, running = float32(0.0), int64(0), float32(0.0)
    for block in range(priorities.sums.shape[0]):
        part = priorities.sums[block, shard]
        if part > float32(0.0):
            before, chosen = running, int64(block)
            running += part
        if running > threshold:
            break

    # The same within the block.
    row_drawn, lane_drawn, value = chosen * priorities.block, shard * lanes, float32(0.0)
    running = before
    for row in range(chosen * priorities.block, (chosen + 1) * priorities.block):
        for lane in range(shard * lanes, (shard + 1) * lanes):
            part = priorities.value[row, lane]
            if part > float32(0.0) and running <= threshold:
                row_drawn, lane_drawn, value = int64(row), int64(lane), part
                running += part
        if running > threshold:
            break
    sampling.indices[k] = int32(row_drawn * sampling.lanes + lane_drawn)
    count = float32(_ticks_to_sample(sampling, offset) * lanes)
    priorities.probability[k] = value * count / total if total > float32(0.0) else float32(1.0)


@device
def write_priority_body(k, sampling, priorities, offset):
    """Write the new priority of sample k, unless a later sample of its shard is the same transition."""
    samples = sampling.indices.shape[0] // sampling.shards
    last = True
    for other in range(int64(k) + 1, (int64(k) // samples + 1) * samples):
        if sampling.indices[other] == sampling.indices[k]:
            last = False
    if last and priorities.skip[0] == float32(0.0):
        priorities.value[int64(sampling.indices[k]) // sampling.lanes, int64(sampling.indices[k]) % sampling.lanes] = (
            priorities.new[k]
        )
