"""Kernels that sample a replay by age or by priority, and that write priorities: each does one index. Knows no network, and no owner of its buffers.

See `operant.data.priorities` for what is computed, and for the shape letters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import float32, int32, int64, uint32

from operant.compute import rng
from operant.compute.device import device
from operant.data.transitions import LOW_32, SHARD_BIT, TICK_BIT

_DRAW = 1024  # the draw of a sample's own random numbers: those of `Replay.sample` begin at 0


class Sampling(NamedTuple):
    """The replay ring and the indices sampled from it. Tensors outside the kernels, arrays inside."""

    place: Any  # (B) int32, written: row of the ring x N + lane
    ticks: Any  # (1) int64, ticks stored when the iteration began
    updates: Any  # (1) int64
    seed: Any  # (2) uint32, as int32
    rows: int  # C
    lanes: int  # N
    shards: int  # S
    n_step: int
    first_shard: int


class Ages(NamedTuple):
    """Age-weighted sampling: the exponent of u^power."""

    power: int


class Priorities(NamedTuple):
    """Priorities. Tensors outside the kernels, arrays inside."""

    value: Any  # (M r, N) float32: those of rows 0 ... C - 1; 0 where nothing can be sampled
    sums: Any  # (M, S) float32, of the blocks of each shard
    share: Any  # (B) float32, written: probability x transitions that can be sampled
    fresh: Any  # (B) float32, the priorities that the samples get
    largest: Any  # (1) float32, the largest priority so far
    skip: Any  # (1) float32, 1: nothing is written
    block: int  # r


@device
def _uniform_pair(k, sampling, offset):
    """Two uniform numbers of sample k, keyed as the replay's own samples are, its shard, and its number there."""
    update = sampling.updates[0] + (int64(offset) & LOW_32)
    samples = sampling.place.shape[0] // sampling.shards
    shard, number = int64(k) // samples, int64(k) % samples
    key = (
        uint32(sampling.seed[0]), uint32(sampling.seed[1]), uint32(((sampling.first_shard + shard) << SHARD_BIT) | number),
        uint32(update & LOW_32), uint32(update >> 32), uint32(rng.REPLAY),
    )  # fmt: skip
    words = rng.uniform4(key, _DRAW)
    return words[0], words[1], shard, number


@device
def _choices(sampling, offset):
    """The number of ticks that can be sampled, 1 or more."""
    stored = min(sampling.ticks[0] + (int64(offset) >> TICK_BIT), int64(sampling.rows))
    return max(stored - sampling.n_step, int64(1))


@device
def age_body(k, sampling, ages, offset):
    """Sample k where newer ticks are preferred: its age is u^power of what can be sampled."""
    first, second, shard, _ = _uniform_pair(k, sampling, offset)
    age = float32(1.0)
    for _ in range(ages.power):
        age *= first
    choices = _choices(sampling, offset)
    newest = sampling.ticks[0] + (int64(offset) >> TICK_BIT) - 1 - sampling.n_step
    tick = max(newest - min(int64(age * float32(choices)), choices - 1), int64(0))
    lanes = sampling.lanes // sampling.shards
    lane = shard * lanes + min(int64(second * float32(lanes)), int64(lanes - 1))
    sampling.place[k] = int32(tick % sampling.rows * sampling.lanes + lane)


@device
def arrival_body(lane, sampling, priorities, offset):
    """Tick `offset` of the iteration overwrites the oldest tick: priority 0. The tick n before it, now complete, gets the largest priority."""
    tick = sampling.ticks[0] + offset
    priorities.value[tick % sampling.rows, lane] = float32(0.0)
    if tick >= sampling.n_step:
        priorities.value[(tick - sampling.n_step) % sampling.rows, lane] = priorities.largest[0]


@device
def priority_body(k, sampling, priorities, offset):
    """Sample k by priority, stratified: the transition where the prefix sum of priorities reaches a uniform number of range k; and its share."""
    first, _, shard, number = _uniform_pair(k, sampling, offset)
    samples, lanes = sampling.place.shape[0] // sampling.shards, sampling.lanes // sampling.shards
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
    sampling.place[k] = int32(found_row * sampling.lanes + found_lane)
    count = float32(_choices(sampling, offset) * lanes)
    priorities.share[k] = value * count / total if total > float32(0.0) else float32(1.0)


@device
def learned_body(k, sampling, priorities, offset):
    """Write sample k's new priority, unless a later sample of its shard is the same transition."""
    samples = sampling.place.shape[0] // sampling.shards
    last = True
    for other in range(int64(k) + 1, (int64(k) // samples + 1) * samples):
        if sampling.place[other] == sampling.place[k]:
            last = False
    if last and priorities.skip[0] == float32(0.0):
        priorities.value[int64(sampling.place[k]) // sampling.lanes, int64(sampling.place[k]) % sampling.lanes] = (
            priorities.fresh[k]
        )
