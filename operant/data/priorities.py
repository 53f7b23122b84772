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
from typing import Any, NamedTuple, Protocol

import torch
from numpy import float32, int32, int64, uint32
from torch import Tensor

from operant.compute import rng
from operant.compute.device import device
from operant.compute.kernel import bind, kernel
from operant.data.replay import Batch, Replay
from operant.data.transitions import TICK_BIT

_DRAW = 1024  # the draw of a sample's own random numbers: those of `Replay.sample` begin at 0
_SHARD_BIT = 24
_LOW_32 = 0xFFFFFFFF
_LEAST = 1e-6  # added to an error: what was learned perfectly is drawn again


class Sampler(Protocol):
    """One way to choose. In an iteration `store` each tick t after the replay did; then for each update `sample`, and `learned` with what came of it."""

    def store(self, t: int) -> None:
        """Take note of tick t of the iteration, which the replay has stored."""

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """A batch for update number `update`, with so many ticks stored; and the weight of each sample in the loss, (B), None: all alike."""

    def learned(self, error: Tensor, skip: Tensor) -> None:
        """How wrong the network was about each sample, (B), 0 and more; nothing is noted where `skip`, a scalar, is 1."""

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


class _Lots(NamedTuple):
    """What samples are chosen by. Tensors outside the kernels, arrays inside."""

    index: Any  # (B) int32, written: row of the ring x N + lane
    ticks: Any  # (1) int64, ticks stored when the iteration began
    updates: Any  # (1) int64
    seed: Any  # (2) uint32, as int32
    rows: int  # C
    lanes: int  # N
    shards: int  # S
    n_step: int


class _Ages(NamedTuple):
    """How much newer transitions are preferred."""

    power: int


class _Priorities(NamedTuple):
    """Priorities. Tensors outside the kernels, arrays inside."""

    value: Any  # (M r, N) float32: those of rows 0 ... C - 1; 0 where nothing can be sampled
    sums: Any  # (M, S) float32, of the blocks of each shard
    share: Any  # (B) float32, written: probability x transitions that can be sampled
    fresh: Any  # (B) float32, the priorities that the samples get
    largest: Any  # (1) float32, the largest priority so far
    skip: Any  # (1) float32, 1: nothing is written
    block: int  # r


@device
def _uniform_pair(k, lots, offset):
    """Two uniform numbers of sample k, keyed as the replay's own samples are, its shard, and its number there."""
    update = lots.updates[0] + (int64(offset) & _LOW_32)
    samples = lots.index.shape[0] // lots.shards
    shard, number = int64(k) // samples, int64(k) % samples
    key = (
        uint32(lots.seed[0]), uint32(lots.seed[1]), uint32((shard << _SHARD_BIT) | number),
        uint32(update & _LOW_32), uint32(update >> 32), uint32(rng.REPLAY),
    )  # fmt: skip
    words = rng.uniform4(key, _DRAW)
    return words[0], words[1], shard, number


@device
def _choices(lots, offset):
    """How many ticks can be sampled; 1 at least."""
    stored = min(lots.ticks[0] + (int64(offset) >> TICK_BIT), int64(lots.rows))
    return max(stored - lots.n_step, int64(1))


@device
def age_body(k, lots, ages, offset):
    """Sample k where newer ticks are preferred: its age is u^power of what can be sampled."""
    first, second, shard, _ = _uniform_pair(k, lots, offset)
    age = float32(1.0)
    for _ in range(ages.power):
        age *= first
    choices = _choices(lots, offset)
    newest = lots.ticks[0] + (int64(offset) >> TICK_BIT) - 1 - lots.n_step
    tick = max(newest - min(int64(age * float32(choices)), choices - 1), int64(0))
    lanes = lots.lanes // lots.shards
    lane = shard * lanes + min(int64(second * float32(lanes)), int64(lanes - 1))
    lots.index[k] = int32(tick % lots.rows * lots.lanes + lane)


@device
def arrival_body(lane, lots, priorities, offset):
    """Tick `offset` of the iteration replaces the oldest one; the tick n before it can be sampled now."""
    tick = lots.ticks[0] + offset
    priorities.value[tick % lots.rows, lane] = float32(0.0)
    if tick >= lots.n_step:
        priorities.value[(tick - lots.n_step) % lots.rows, lane] = priorities.largest[0]


@device
def priority_body(k, lots, priorities, offset):
    """Sample k by priority: the transition at whose sum its range's number stands; and its share."""
    first, _, shard, number = _uniform_pair(k, lots, offset)
    samples, lanes = lots.index.shape[0] // lots.shards, lots.lanes // lots.shards
    total = float32(0.0)
    for block in range(priorities.sums.shape[0]):
        total += priorities.sums[block, shard]
    ahead = (float32(number) + first) / float32(samples) * total

    # The block: the first whose end lies beyond, or the last that has any.
    before, chosen, running = float32(0.0), int64(0), float32(0.0)
    for block in range(priorities.sums.shape[0]):
        part = priorities.sums[block, shard]
        if part > float32(0.0):
            before, chosen = running, int64(block)
            running += part
        if running > ahead:
            break

    # The same within the block.
    found_row, found_lane, value = chosen * priorities.block, shard * lanes, float32(0.0)
    running = before
    for row in range(chosen * priorities.block, (chosen + 1) * priorities.block):
        for lane in range(shard * lanes, (shard + 1) * lanes):
            part = priorities.value[row, lane]
            if part > float32(0.0) and running <= ahead:
                found_row, found_lane, value = int64(row), int64(lane), part
                running += part
        if running > ahead:
            break
    lots.index[k] = int32(found_row * lots.lanes + found_lane)
    count = float32(_choices(lots, offset) * lanes)
    priorities.share[k] = value * count / total if total > float32(0.0) else float32(1.0)


@device
def learned_body(k, lots, priorities, offset):
    """Sample k's new priority, unless a later sample is the same transition: these are of the same shard."""
    samples = lots.index.shape[0] // lots.shards
    last = True
    for other in range(int64(k) + 1, (int64(k) // samples + 1) * samples):
        if lots.index[other] == lots.index[k]:
            last = False
    if last and priorities.skip[0] == float32(0.0):
        priorities.value[int64(lots.index[k]) // lots.lanes, int64(lots.index[k]) % lots.lanes] = priorities.fresh[k]


class Aged(Uniform):
    """Newer transitions more often: a sample's age is u^power of the oldest one's, u uniform. 1: all alike; 2: on average a third as old as the oldest."""

    def __init__(self, replay: Replay, power: int) -> None:
        super().__init__(replay)
        self._choose = kernel(age_body, replay.world.device)
        self._lots, self._ages = bind(_lots(replay)), bind(_Ages(power))

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """A batch of its own, by age."""
        self._choose(len(self.replay.index), self._lots, self._ages, ticks << TICK_BIT | update)
        return self.replay.gather(ticks), None


class Prioritised:
    """By priority; `importance` is beta, a scalar on the device."""

    def __init__(self, replay: Replay, exponent: float) -> None:
        self.replay, self._exponent, where = replay, exponent, replay.world.device
        C, N, S, B = replay.ticks_stored, replay.world.count, replay.shards, len(replay.index)
        r, M = blocks(C, N // S)
        self._shape = (M, r, S, N // S)
        self.value, self.sums = torch.zeros(M * r, N, device=where), torch.zeros(M, S, device=where)
        self.share, self._fresh, self.largest = torch.ones(B, device=where), torch.zeros(B, device=where), torch.ones(1, device=where)
        self.importance, self._skip = torch.ones((), device=where), torch.zeros(1, device=where)
        self._lots = bind(_lots(replay))
        self._priorities = bind(_Priorities(self.value, self.sums, self.share, self._fresh, self.largest, self._skip, r))
        self._arrive, self._choose, self._write = (kernel(body, where) for body in (arrival_body, priority_body, learned_body))

    def store(self, t: int) -> None:
        """Take note of tick t of the iteration, which the replay has stored."""
        self._arrive(self.replay.world.count, self._lots, self._priorities, t)

    def sample(self, ticks: int, update: int) -> tuple[Batch, Tensor | None]:
        """A batch of its own, and the samples' weights (B), the largest 1."""
        torch.sum(self.value.view(self._shape), dim=(1, 3), out=self.sums)
        self._choose(len(self.share), self._lots, self._priorities, ticks << TICK_BIT | update)
        weight = self.share.clamp_min(1e-30).pow(-self.importance)
        return self.replay.gather(ticks), weight / weight.amax()

    def learned(self, error: Tensor, skip: Tensor) -> None:
        """How wrong the network was about each sample, (B); nothing is noted where `skip` is 1."""
        torch.add(error, _LEAST, out=self._fresh).pow_(self._exponent)
        self._skip.copy_(skip)
        self.largest.copy_(torch.where(skip > 0, self.largest, torch.maximum(self.largest, self._fresh.amax())))
        self._write(len(self._fresh), self._lots, self._priorities)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint with the replay must hold, by name."""
        return {"priority": self.value, "largest_priority": self.largest}


def _lots(replay: Replay) -> _Lots:
    ring = replay.ring
    return _Lots(replay.index, ring.ticks, ring.updates, ring.seed, replay.ticks_stored, replay.world.count, replay.shards, replay.n_step)


def blocks(rows: int, lanes: int) -> tuple[int, int]:
    """Rows of a block and blocks of a shard of so many lanes: about as many numbers in a block as there are blocks."""
    block = max(1, round(math.sqrt(rows * lanes) / lanes))
    return block, -(-rows // block)
