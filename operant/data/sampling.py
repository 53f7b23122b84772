"""Kernels that sample a replay by priority and write priorities. Each call handles one sample or one lane.

`operant.data.priorities` documents the computation and the shape letters. `offset` is ticks << TICK_BIT | update: the
ticks (vectorised steps) of this iteration that are stored, and the update's number in it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import float32, int32, int64, uint32

from operant.compute import rng
from operant.compute.device import device
from operant.data.transitions import LOW_32, SHARD_BIT, TICK_BIT

_DRAW = 1024  # the draw of a sample's own random numbers: those of `Replay.sample` begin at 0


class Sampling(NamedTuple):
    """Indices of a batch and the replay ring's counters and sizes: tensors outside the kernels, arrays inside."""

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
    """Priorities of the replay's transitions, their prefix sums, and the errors of a batch: tensors outside the
    kernels, arrays inside.
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
    """Return two uniform numbers of sample k, its shard, and its number within the shard.

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
    """Return the number of ticks that can be sampled, at least 1."""
    stored = min(sampling.ticks[0] + (int64(offset) >> TICK_BIT), int64(sampling.rows))
    return max(stored - sampling.n_step, int64(1))


@device
def mark_tick_body(lane, sampling, priorities, offset):
    """Set `lane`'s priority in tick `offset` of the iteration to 0, and in the tick n before it to the largest so far.

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
