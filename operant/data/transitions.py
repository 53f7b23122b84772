"""Kernels of the replay, one call per index: store a tick, draw a sample, compute its n-step return, copy its rows.

`operant.data.replay` documents the layout. Tuples hold tensors outside the kernels and arrays inside. Kernels of a
batch take as `offset` ticks << TICK_BIT | update: the stored ticks of this iteration, and the update's number in it.

Shape letters: C ticks of the ring, F rows of the side buffer, T ticks of an iteration, N lanes, O features of an
observation, P padded features, W their 32-bit words, A rows of an action, H legal actions, B samples of a batch, R rows
of noise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import float32, int32, int64, uint32

from operant.compute import rng
from operant.compute.device import device

PIECE = 32
"""Features of an observation that one thread stores."""

TICK_BIT = 32
"""Bits of a launch's offset below the ticks stored in this iteration; they hold the update."""

SHARD_BIT = 24
"""Bits of the counter's first word below the index of the shard; they hold the sample's index in the shard."""

LOW_32 = 0xFFFFFFFF


class Ring(NamedTuple):
    """Replay ring as kernels take it: fields of C ticks, final observations, counters and sizes."""

    # (C, N, P) float32 or uint8, before the step; (1, N, P), the staging tick, where observations are in host memory
    observation: Any
    final: Any  # (F, N, P), true final observations of truncated episodes; (1, N, P) likewise
    action: Any  # (C, N, A) float32 or int32
    reward: Any  # (C, N) float32
    terminated: Any  # (C, N) uint8
    truncated: Any  # (C, N) uint8
    legal: Any  # (C, N, H) uint8; None: the environment has no legal actions
    ticks: Any  # (1) int64, ticks stored when the iteration began
    updates: Any  # (1) int64, updates when the iteration began; a key of the random numbers
    seed: Any  # (2) uint32, as int32
    window: int  # L


class Source(NamedTuple):
    """Rollout of T ticks as a world writes it, which `store_body` reads."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T / V, O, N)
    action: Any  # (T, A, N)
    reward: Any  # (T, N)
    terminated: Any  # (T, N)
    truncated: Any  # (T, N)
    legal: Any  # (T + 1, H, N)
    lanes: int  # N
    final_window: int  # V, steps that share one final observation per lane


class Staged(NamedTuple):
    """One tick of observations on the device, as 32-bit words, which `move_body` copies to host memory."""

    observation: Any  # (N W) int32
    final: Any  # (N W) int32, read where the lane is truncated
    truncated: Any  # (T, N)
    lanes: int  # N


class Host(NamedTuple):
    """Observations of the replay ring in host memory, as 32-bit words."""

    observation: Any  # (C, N W) int32, written
    final: Any  # (F, N W) int32, written
    ticks: Any  # (1) int64
    window: int  # L


class Sample(NamedTuple):
    """Indices of a batch's samples, their noise and n-step returns, as kernels take them."""

    indices: Any  # (B) int32: row of the ring x N + lane
    # (B) int32, of the next observation, likewise; -1 - (row of the side buffer x N + lane) of a true final one
    next_index: Any
    action: Any  # (A, B)
    reward: Any  # (B) float32
    discount: Any  # (B) float32
    noise: Any  # (R, B) float32
    shards: int
    n_step: int
    gamma: float
    first_shard: int  # global index of the first shard


class Rows(NamedTuple):
    """Observations of the replay ring, and those of a batch, as 32-bit words: `rows_body` copies from
    one to the other.
    """

    observation: Any  # (C N, W) int32
    final: Any  # (F N, W) int32
    legal: Any  # (C, N, H) uint8, or None
    indices: Any  # (B) int32
    next_index: Any  # (B) int32
    out: Any  # (B, W) int32, written
    next_out: Any  # (B, W) int32, written
    out_legal: Any  # (H, B) uint8, written
    next_legal: Any  # (H, B) uint8, written
    span: int = 1  # words per thread: whole rows on a CPU, one word on a GPU


class Part(NamedTuple):
    """Constants of `part_body`, which copies the observations of some of a batch's samples."""

    ticks: Any  # (1) int64
    capacity: int  # C
    lanes: int  # N
    n_step: int
    threads: int


@device
def store_body(i, source, ring, offset):
    """Store a piece of tick `offset` of the iteration in the ring: the PIECE features of lane i mod N from PIECE (i //
    N) on. The thread of a lane's first piece also stores its other fields.
    """
    lane, piece = int64(i) % source.lanes, int64(i) // source.lanes
    tick = ring.ticks[0] + offset
    row = tick % ring.reward.shape[0]
    O, observation_row = source.observation.shape[1], min(row, ring.observation.shape[0] - 1)
    for k in range(piece * PIECE, min(piece * PIECE + PIECE, O)):
        ring.observation[observation_row, lane, k] = source.observation[offset, k, lane]

    # The true final observation of a truncated episode.
    if source.truncated[offset, lane] != 0:
        final_row = tick // ring.window % ring.final.shape[0]
        for k in range(piece * PIECE, min(piece * PIECE + PIECE, O)):
            ring.final[final_row, lane, k] = source.final_observation[offset // source.final_window, k, lane]

    if piece == 0:
        for k in range(source.action.shape[1]):
            ring.action[row, lane, k] = source.action[offset, k, lane]
        ring.reward[row, lane] = source.reward[offset, lane]
        ring.terminated[row, lane] = source.terminated[offset, lane]
        ring.truncated[row, lane] = source.truncated[offset, lane]


@device
def move_body(i, staged, host, offset):
    """Copy word i of the observations of tick `offset` of the iteration to host memory; neighbouring threads write
    neighbouring words.
    """
    word = int64(i)
    tick = host.ticks[0] + offset
    host.observation[tick % host.observation.shape[0], word] = staged.observation[word]
    if staged.truncated[offset, word * staged.lanes // staged.observation.shape[0]] != 0:
        host.final[tick // host.window % host.final.shape[0], word] = staged.final[word]


@device
def store_legal_body(i, source, ring, offset):
    """Store the legal actions of lane i at tick `offset` of the iteration in the ring."""
    row = (ring.ticks[0] + offset) % ring.reward.shape[0]
    for k in range(ring.legal.shape[2]):
        ring.legal[row, i, k] = source.legal[offset, k, i]


@device
def draw_body(k, ring, out, offset):
    """Draw sample k of an update, uniformly among the transitions whose n steps are stored, and its noise."""
    ticks, update = ring.ticks[0] + (int64(offset) >> TICK_BIT), ring.updates[0] + (int64(offset) & LOW_32)
    B, C, N = out.indices.shape[0], ring.reward.shape[0], ring.reward.shape[1]
    shard_samples, shard_lanes = B // out.shards, N // out.shards
    shard, number = int64(k) // shard_samples, int64(k) % shard_samples
    key = (
        uint32(ring.seed[0]),
        uint32(ring.seed[1]),
        uint32(((out.first_shard + shard) << SHARD_BIT) | number),
        uint32(update & LOW_32),
        uint32(update >> 32),
        uint32(rng.REPLAY),
    )

    # The oldest tick is `ticks - stored`; with fewer than n + 1 ticks it is sampled whatever it holds.
    stored = min(ticks, int64(C))
    candidates = max(stored - out.n_step, int64(1))
    words = rng.block(key, 0)
    tick = ticks - stored + ((int64(words[0]) * candidates) >> 32)
    lane = shard * shard_lanes + ((int64(words[1]) * shard_lanes) >> 32)
    out.indices[k] = int32(tick % C * N + lane)

    R = out.noise.shape[0]
    for draw in range((R + 3) // 4):
        numbers = rng.uniform4(key, draw + 1)
        for j in range(4):
            if 4 * draw + j < R:
                out.noise[4 * draw + j, k] = numbers[j]


@device
def returns_body(k, ring, out, offset):
    """Write action, n-step return and discount of sample k, and the ring's row that holds its next observation."""
    ticks = ring.ticks[0] + (int64(offset) >> TICK_BIT)
    C, N = ring.reward.shape[0], ring.reward.shape[1]
    row, lane = int64(out.indices[k]) // N, int64(out.indices[k]) % N
    for j in range(out.action.shape[0]):
        out.action[j, k] = ring.action[row, lane, j]

    gamma = float32(out.gamma)
    total, discount, running = float32(0.0), float32(1.0), True
    next_index = int64(0)
    for _ in range(out.n_step):
        if running:
            total += discount * ring.reward[row, lane]
            discount *= gamma
            next_index = (row + 1) % C * N + lane
            if ring.terminated[row, lane] != 0:
                discount, running = float32(0.0), False
            elif ring.truncated[row, lane] != 0:
                # The tick in this row.
                tick = ticks - 1 - (ticks - 1 - row) % C
                next_index = -1 - (tick // ring.window % ring.final.shape[0] * N + lane)
                running = False
            row = (row + 1) % C
    out.reward[k] = total
    out.discount[k] = discount
    out.next_index[k] = int32(next_index)


@device
def rows_body(i, rows, unused, offset):
    """Copy words i span ... (i + 1) span - 1 of a batch's observations, and of its next observations, from the ring."""
    W = rows.out.shape[1]
    k, first = int64(i) * rows.span // W, int64(i) * rows.span % W
    index, next_index = rows.indices[k], rows.next_index[k]
    for word in range(first, first + rows.span):
        rows.out[k, word] = rows.observation[index, word]
    if next_index >= 0:
        for word in range(first, first + rows.span):
            rows.next_out[k, word] = rows.observation[next_index, word]
    else:
        for word in range(first, first + rows.span):
            rows.next_out[k, word] = rows.final[-1 - next_index, word]


@device
def part_body(i, rows, part, offset):
    """Copy words i, i + threads, ... of the observations of those samples of a batch that need only the first `settled`
    ticks of the iteration, or, if `late`, of the others.
    """
    ticks, settled = part.ticks[0] + (int64(offset) >> TICK_BIT), part.ticks[0] + ((int64(offset) & LOW_32) >> 1)
    late, W, N = (int64(offset) & 1) == 1, rows.out.shape[1], part.lanes
    for number in range(int64(i), rows.out.shape[0] * W, part.threads):
        k, word = number // W, number % W
        index = rows.indices[k]
        tick = ticks - 1 - (ticks - 1 - index // N) % part.capacity
        if (tick + part.n_step >= settled) == late:
            next_index = rows.next_index[k]
            rows.out[k, word] = rows.observation[index, word]
            rows.next_out[k, word] = (
                rows.observation[next_index, word] if next_index >= 0 else rows.final[-1 - next_index, word]
            )


@device
def legal_body(k, rows, unused, offset):
    """Copy the legal actions of sample k at its observation and at its next observation."""
    N, H = rows.legal.shape[1], rows.legal.shape[2]
    index, next_index = rows.indices[k], rows.next_index[k]
    for j in range(H):
        rows.out_legal[j, k] = rows.legal[index // N, index % N, j]
        rows.next_legal[j, k] = rows.legal[next_index // N, next_index % N, j] if next_index >= 0 else 1
