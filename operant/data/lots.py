"""How a sample is chosen by age or by priority, and how priorities change: what the kernels do for one index. Knows no buffers' owner and no network.

See `operant.data.priorities` for what is computed, and for the shape letters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import float32, int32, int64, uint32

from operant.compute import rng
from operant.compute.device import device
from operant.data.transitions import LOW_32, SHARD_BIT, TICK_BIT

_DRAW = 1024  # the draw of a sample's own random numbers: those of `Replay.sample` begin at 0


class Lots(NamedTuple):
    """What samples are chosen by. Tensors outside the kernels, arrays inside."""

    place: Any  # (B) int32, written: row of the ring x N + lane
    ticks: Any  # (1) int64, ticks stored when the iteration began
    updates: Any  # (1) int64
    seed: Any  # (2) uint32, as int32
    rows: int  # C
    lanes: int  # N
    shards: int  # S
    n_step: int


class Ages(NamedTuple):
    """How much newer transitions are preferred."""

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
def _uniform_pair(k, lots, offset):
    """Two uniform numbers of sample k, keyed as the replay's own samples are, its shard, and its number there."""
    update = lots.updates[0] + (int64(offset) & LOW_32)
    samples = lots.place.shape[0] // lots.shards
    shard, number = int64(k) // samples, int64(k) % samples
    key = (
        uint32(lots.seed[0]), uint32(lots.seed[1]), uint32((shard << SHARD_BIT) | number),
        uint32(update & LOW_32), uint32(update >> 32), uint32(rng.REPLAY),
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
    lots.place[k] = int32(tick % lots.rows * lots.lanes + lane)


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
    samples, lanes = lots.place.shape[0] // lots.shards, lots.lanes // lots.shards
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
    lots.place[k] = int32(found_row * lots.lanes + found_lane)
    count = float32(_choices(lots, offset) * lanes)
    priorities.share[k] = value * count / total if total > float32(0.0) else float32(1.0)


@device
def learned_body(k, lots, priorities, offset):
    """Sample k's new priority, unless a later sample is the same transition: these are of the same shard."""
    samples = lots.place.shape[0] // lots.shards
    last = True
    for other in range(int64(k) + 1, (int64(k) // samples + 1) * samples):
        if lots.place[other] == lots.place[k]:
            last = False
    if last and priorities.skip[0] == float32(0.0):
        priorities.value[int64(lots.place[k]) // lots.lanes, int64(lots.place[k]) % lots.lanes] = priorities.fresh[k]
