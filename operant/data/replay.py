"""Replay: the last steps of every lane in a ring on the device, and random batches of n-step transitions from it. Knows no network and no loss.

A *tick* is one step of all N lanes. Tick s lies in row s mod C of the ring, each observation once: the next observation is the next tick's, but where a time
limit ended the episode it is the true final one, kept in a side buffer. A lane is truncated at most once in L ticks, L its time limit: tick s has its
place in row (s // L) mod F of the side buffer, F = ceil(C / L) + 1 (a single row, never read, where there is no limit). An observation of a lane is one
contiguous row, padded to 16 bytes.

A batch takes as many transitions from each shard of lanes (8 aligned ranges, fewer where lanes or batch do not divide): which ones is a function of
(seed, update, shard, k). The newest n ticks are left out, since their n-step returns are not known yet. n-step returns (Sutton 1988) are made when they are
sampled: cut where the episode terminated, and bootstrapped with its true final observation where it was truncated.

Nothing is read back to the host, and all buffers are fixed: `store`, `sample` and `advance` may be captured in a CUDA graph.

Shape letters: C ticks of the ring, T ticks of an iteration, N lanes, O observation, P the same padded, W its 32-bit words, A action, H legal actions, B batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy import float32, int32, int64, uint32
from torch import Tensor

from operant.compute import rng
from operant.compute.device import device
from operant.compute.kernel import bind, kernel
from operant.worlds import Slot, World, seed_words

MOST_SHARDS = 8
"""Shards of the lanes, at most, and so devices."""

PIECE = 32
"""Numbers of an observation that one thread stores."""

_ROW_BYTES = 16
_SHARD_BIT = 24  # a shard's number stands above so many bits of the counter's first word: samples of a shard in a batch, at most
_LOW_32 = 0xFFFFFFFF
_TICK_BIT = 32  # in the offset of a launch: ticks stored in this iteration above, its updates below


class Batch(NamedTuple):
    """B sampled transitions; `Replay.sample` overwrites them."""

    observation: Tensor  # (O, B)
    action: Tensor  # (A, B)
    reward: Tensor  # (B) float32, the n-step return: r_t + gamma r_{t+1} + ...
    discount: Tensor  # (B) float32, of the value of `next_observation`: gamma^m after m <= n steps, 0 where the episode terminated
    next_observation: Tensor  # (O, B)
    legal: Tensor | None  # (H, B) uint8, of `observation`; None where the environment judges no actions
    next_legal: Tensor | None  # (H, B) uint8, of `next_observation`; all legal where that is the final one of a truncated episode
    noise: Tensor  # (R, B) float32, uniform in [0, 1): keyed as the samples are


class Ring(NamedTuple):
    """What is stored. Tensors outside the kernels, arrays inside."""

    observation: Any  # (C, N, P) float32 or uint8, before the step
    final: Any  # (F, N, P), true final observations of truncated episodes
    action: Any  # (C, N, A) float32 or int32
    reward: Any  # (C, N) float32
    terminated: Any  # (C, N) uint8
    truncated: Any  # (C, N) uint8
    legal: Any  # (C, N, H) uint8; None where the environment judges none
    ticks: Any  # (1) int64, ticks stored when the iteration began
    updates: Any  # (1) int64, updates made when the iteration began, which name random numbers
    seed: Any  # (2) uint32, as int32
    window: int  # L


class _Source(NamedTuple):
    """T ticks as a world writes them, from which they are stored."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T / V, O, N)
    action: Any  # (T, A, N)
    reward: Any  # (T, N)
    terminated: Any  # (T, N)
    truncated: Any  # (T, N)
    legal: Any  # (T + 1, H, N)
    lanes: int  # N
    final_window: int  # V, steps that share one final observation a lane


class Sample(NamedTuple):
    """Which transitions a batch takes, and what they are. Tensors outside the kernels, arrays inside."""

    index: Any  # (B) int32: row of the ring x N + lane
    next_index: Any  # (B) int32, of the next observation, likewise; -1 - (row of the side buffer x N + lane) of a true final one
    action: Any  # (A, B)
    reward: Any  # (B) float32
    discount: Any  # (B) float32
    noise: Any  # (R, B) float32
    shards: int
    n_step: int
    gamma: float


class _Rows(NamedTuple):
    """Rows of a ring as 32-bit words, and where those of a batch go."""

    observation: Any  # (C N, W) int32
    final: Any  # (F N, W) int32
    legal: Any  # (C, N, H) uint8; None where there is none
    index: Any  # (B) int32
    next_index: Any  # (B) int32
    out: Any  # (B, W) int32, written
    next_out: Any  # (B, W) int32, written
    out_legal: Any  # (H, B) uint8, written
    next_legal: Any  # (H, B) uint8, written


@device
def store_body(i, source, ring, offset):
    """Store tick `offset` of the iteration: numbers i // N x 32 and on of the observation of lane i mod N; the first such piece brings the rest along."""
    lane, piece = int64(i) % source.lanes, int64(i) // source.lanes
    tick = ring.ticks[0] + offset
    row = tick % ring.reward.shape[0]
    O = source.observation.shape[1]
    for k in range(piece * PIECE, min(piece * PIECE + PIECE, O)):
        ring.observation[row, lane, k] = source.observation[offset, k, lane]

    # A final observation, where a time limit ended the episode.
    if source.truncated[offset, lane] != 0:
        place = tick // ring.window % ring.final.shape[0]
        for k in range(piece * PIECE, min(piece * PIECE + PIECE, O)):
            ring.final[place, lane, k] = source.final_observation[offset // source.final_window, k, lane]

    if piece == 0:
        for k in range(source.action.shape[1]):
            ring.action[row, lane, k] = source.action[offset, k, lane]
        ring.reward[row, lane] = source.reward[offset, lane]
        ring.terminated[row, lane] = source.terminated[offset, lane]
        ring.truncated[row, lane] = source.truncated[offset, lane]


@device
def store_legal_body(i, source, ring, offset):
    """Store the legal actions of tick `offset` of the iteration, lane i."""
    row = (ring.ticks[0] + offset) % ring.reward.shape[0]
    for k in range(ring.legal.shape[2]):
        ring.legal[row, i, k] = source.legal[offset, k, i]


@device
def choose_body(k, ring, out, offset):
    """Sample k of an update, uniformly among the transitions whose n steps are stored; and its random numbers."""
    ticks, update = ring.ticks[0] + (int64(offset) >> _TICK_BIT), ring.updates[0] + (int64(offset) & _LOW_32)
    B, C, N = out.index.shape[0], ring.reward.shape[0], ring.reward.shape[1]
    shard_samples, shard_lanes = B // out.shards, N // out.shards
    shard, number = int64(k) // shard_samples, int64(k) % shard_samples
    key = (
        uint32(ring.seed[0]), uint32(ring.seed[1]), uint32((shard << _SHARD_BIT) | number),
        uint32(update & _LOW_32), uint32(update >> 32), uint32(rng.REPLAY),
    )  # fmt: skip

    # The oldest tick is `ticks - stored`; before there are n + 1 ticks it is the first that is taken, whatever it holds.
    stored = min(ticks, int64(C))
    choices = max(stored - out.n_step, int64(1))
    words = rng.block(key, 0)
    tick = ticks - stored + ((int64(words[0]) * choices) >> 32)
    lane = shard * shard_lanes + ((int64(words[1]) * shard_lanes) >> 32)
    out.index[k] = int32(tick % C * N + lane)

    R = out.noise.shape[0]
    for draw in range((R + 3) // 4):
        numbers = rng.uniform4(key, draw + 1)
        for j in range(4):
            if 4 * draw + j < R:
                out.noise[4 * draw + j, k] = numbers[j]


@device
def returns_body(k, ring, out, offset):
    """Action, n-step return and discount of sample k, and where its next observation lies."""
    ticks = ring.ticks[0] + (int64(offset) >> _TICK_BIT)
    C, N = ring.reward.shape[0], ring.reward.shape[1]
    row, lane = int64(out.index[k]) // N, int64(out.index[k]) % N
    for j in range(out.action.shape[0]):
        out.action[j, k] = ring.action[row, lane, j]

    gamma = float32(out.gamma)
    total, discount, running = float32(0.0), float32(1.0), True
    following = int64(0)
    for _ in range(out.n_step):
        if running:
            total += discount * ring.reward[row, lane]
            discount *= gamma
            following = (row + 1) % C * N + lane
            if ring.terminated[row, lane] != 0:
                discount, running = float32(0.0), False
            elif ring.truncated[row, lane] != 0:
                # Which tick lies in this row: the newest but so many.
                tick = ticks - 1 - (ticks - 1 - row) % C
                following = -1 - (tick // ring.window % ring.final.shape[0] * N + lane)
                running = False
            row = (row + 1) % C
    out.reward[k] = total
    out.discount[k] = discount
    out.next_index[k] = int32(following)


@device
def rows_body(i, rows, unused, offset):
    """Word i mod W of both observations of sample i // W."""
    W = rows.out.shape[1]
    k, word = int64(i) // W, int64(i) % W
    rows.out[k, word] = rows.observation[rows.index[k], word]
    following = rows.next_index[k]
    rows.next_out[k, word] = rows.observation[following, word] if following >= 0 else rows.final[-1 - following, word]


@device
def legal_body(k, rows, unused, offset):
    """The legal actions of both observations of sample k."""
    N, H = rows.legal.shape[1], rows.legal.shape[2]
    index, following = rows.index[k], rows.next_index[k]
    for j in range(H):
        rows.out_legal[j, k] = rows.legal[index // N, index % N, j]
        rows.next_legal[j, k] = rows.legal[following // N, following % N, j] if following >= 0 else 1


def shard_count(lanes: int, batch: int) -> int:
    """Shards of the lanes from which a batch takes as many transitions each: up to 8, a power of two that divides both."""
    shards = MOST_SHARDS
    while lanes % shards or batch % shards:
        shards //= 2
    return shards


class Replay:
    """A ring of ticks over the rollout of an iteration, and the buffers of one batch.

    In an iteration `store` each tick t once the world has written it, then `sample` for each update; `advance` once at its end.
    """

    def __init__(
        self,
        world: World,
        rollout: Slot,
        *,
        capacity: int,
        batch: int,
        n_step: int,
        gamma: float,
        seed: int,
        noise_rows: int = 0,
        action: Tensor | None = None,
    ) -> None:
        """`rollout` is an unbound slot of T ticks; `action` (T, A, N) is stored in place of its own; `capacity` counts transitions."""
        N, O = world.count, world.spec.observation.size
        action = rollout.action if action is None else action
        A, kind, where = action.shape[1], rollout.observation.dtype, world.device
        P, C = padded(O, kind), ring_ticks(capacity, N, n_step)
        self.world, self.rollout, self.ticks_stored, self.capacity = world, rollout, C, C * N
        self.n_step, self.gamma, self.shards = n_step, gamma, shard_count(N, batch)
        L = world.spec.time_limit if world.can_truncate else None

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=where)

        H = world.spec.mask_size
        self.ring = Ring(
            observation=zeros(C, N, P, dtype=kind),
            final=zeros(-(-C // L) + 1 if L is not None else 1, N, P, dtype=kind),
            action=zeros(C, N, A, dtype=action.dtype),
            reward=zeros(C, N),
            terminated=zeros(C, N, dtype=torch.uint8),
            truncated=zeros(C, N, dtype=torch.uint8),
            legal=zeros(C, N, H, dtype=torch.uint8) if H else None,
            ticks=zeros(1, dtype=torch.int64),
            updates=zeros(1, dtype=torch.int64),
            seed=seed_words(seed, 0, where),
            window=L or 1,
        )
        self._sampled = Sample(
            zeros(batch, dtype=torch.int32), zeros(batch, dtype=torch.int32), zeros(A, batch, dtype=action.dtype), zeros(batch), zeros(batch),
            zeros(noise_rows, batch), self.shards, n_step, float32(gamma),  # type: ignore[arg-type]
        )  # fmt: skip
        seen, after = zeros(batch, P, dtype=kind), zeros(batch, P, dtype=kind)
        legal, next_legal = (zeros(H, batch, dtype=torch.uint8) if H else None for _ in range(2))
        sample = self._sampled
        self.index, self.next_index = sample.index, sample.next_index
        self.batch = Batch(seen[:, :O].t(), sample.action, sample.reward, sample.discount, after[:, :O].t(), legal, next_legal, sample.noise)
        self._bind(action, seen, after)

    def _bind(self, action: Tensor, seen: Tensor, after: Tensor) -> None:
        """Kernels, and what they read and write."""
        ring, rollout, batch, where = self.ring, self.rollout, self.batch, self.world.device
        N, O = self.world.count, rollout.observation.shape[1]
        self._store, self._store_legal = kernel(store_body, where), kernel(store_legal_body, where)
        self._choose, self._returns = kernel(choose_body, where), kernel(returns_body, where)
        self._rows, self._legal = kernel(rows_body, where), kernel(legal_body, where)
        self._pieces, self._words = -(-O // PIECE) * N, seen.numel() * seen.element_size() // 4
        self._ring, self._sample = bind(ring), bind(self._sampled)
        final = rollout.observation if rollout.final_observation is None else rollout.final_observation  # not read where nothing is truncated
        self._source = bind(
            _Source(
                rollout.observation, final, action, rollout.reward, rollout.terminated, rollout.truncated, rollout.legal, N, self.world.final_window,
            )
        )  # fmt: skip

        def words(rows: Tensor) -> Tensor:
            return rows.flatten(0, -2).view(torch.int32)

        self._found = bind(
            _Rows(
                words(ring.observation), words(ring.final), ring.legal, self.index, self.next_index, words(seen), words(after), batch.legal, batch.next_legal,
            )
        )  # fmt: skip

    @property
    def bytes(self) -> int:
        """What the ring takes."""
        return sum(value.numel() * value.element_size() for value in self.ring if isinstance(value, Tensor))

    def fill(self, t: int) -> Tensor:
        """How many transitions are stored once t ticks of the iteration are, (1) int64."""
        return ((self.ring.ticks + t) * self.world.count).clamp_max(self.capacity)

    def store(self, t: int) -> None:
        """Store tick t of the iteration, as the world wrote it into the rollout."""
        self._store(self._pieces, self._source, self._ring, t)
        if self.ring.legal is not None:
            self._store_legal(self.world.count, self._source, self._ring, t)

    def sample(self, ticks: int, update: int) -> Batch:
        """A batch of its own for update number `update` of the iteration, of which so many ticks are stored."""
        self._choose(len(self.index), self._ring, self._sample, self._offset(ticks, update))
        return self.gather(ticks)

    def gather(self, ticks: int) -> Batch:
        """The transitions that `index` (B) names, which the caller may have written (but not the noise). So many ticks of the iteration are stored."""
        self._returns(len(self.index), self._ring, self._sample, self._offset(ticks, 0))
        self._rows(self._words, self._found, self._found)
        if self.ring.legal is not None:
            self._legal(len(self.index), self._found, self._found)
        return self.batch

    def _offset(self, ticks: int, update: int) -> int:
        return ticks << _TICK_BIT | update

    def advance(self, ticks: int, updates: int) -> None:
        """End an iteration of so many ticks and updates."""
        self.ring.ticks.add_(ticks)
        self.ring.updates.add_(updates)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint with the ring must hold, by name; `ring.updates` is held with or without it."""
        return {name: value for name, value in self.ring._asdict().items() if isinstance(value, Tensor) and name not in ("seed", "updates")}


def padded(observation: int, dtype: torch.dtype) -> int:
    """P: numbers of a stored observation, whose row is a multiple of 16 bytes."""
    each = _ROW_BYTES // dtype.itemsize
    return -(-observation // each) * each


def ring_ticks(capacity: int, lanes: int, n_step: int) -> int:
    """C: whole ticks of so many transitions; those of one sample at least."""
    return max(capacity // lanes, n_step + 1)
