"""Replay: a ring of the last steps of every lane, and random batches of n-step transitions from it.

A *tick* is one step of all N lanes. Tick s is in row s mod C of the ring, and each observation is stored once: the next
observation is that of the next tick, except after a truncation, where it is the true final observation, in a side
buffer. A lane is truncated at most once in L ticks, its time limit, so tick s has row (s // L) mod F of the side
buffer, F = ceil(C / L) + 1 (a single unread row without a limit). An observation of a lane is one contiguous row,
padded to 16 bytes.

A batch takes equally many transitions from each shard of lanes (8 aligned ranges, fewer if lanes or batch do not
divide). The k-th of a shard is a function of (seed, update, shard, k). The newest n ticks are excluded, since their
n-step returns are not complete. n-step returns (Sutton 1988) are computed when they are sampled: cut at a termination,
and bootstrapped with the true final observation at a truncation.

Observations may be in page-locked host memory, which a GPU's kernels read and write in place: a batch crosses the bus
once; a tick is transposed on the device and crosses in whole rows. The other fields (about ten bytes a transition, and
legal actions) stay on the device. Both have the same bits.

Nothing is read back to the host, and all buffers are fixed: `store`, `sample` and `advance` may be captured in a CUDA
graph.

Shape letters: C ticks of the ring, T ticks of an iteration, N lanes, O observation, P the same padded, W its 32-bit
words, A action, H legal actions, B batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import psutil
import torch
from numpy import float32
from torch import Tensor

from operant.compute.exchange import SOLO, Exchange
from operant.compute.kernel import bind, host_zeros, kernel
from operant.data import transitions
from operant.data.transitions import PIECE, TICK_BIT, Host, Part, Ring, Rows, Sample, Source, Staged
from operant.errors import MachineError
from operant.worlds import Slot, World, seed_words

MOST_SHARDS = 8
"""Maximum shards of the lanes, and so of devices."""

_ROW_BYTES = 16

DEVICE_SHARE = 0.5
"""With place "auto", observations above this share of a GPU's free memory are stored in host memory."""

Place = Literal["auto", "device", "host"]

EARLY_BLOCKS, EARLY_THREADS, LATE_THREADS = 32, 512, 65_536
"""Threads that gather a batch one update early: enough reads in flight to fill the bus, on so few multiprocessors that
the others can learn meanwhile. And threads that gather the remaining transitions.
"""


class Batch(NamedTuple):
    """B sampled transitions, in fixed buffers that the next `Replay.sample` overwrites."""

    observation: Tensor  # (O, B)
    action: Tensor  # (A, B)
    reward: Tensor  # (B) float32, the n-step return: r_t + gamma r_{t+1} + ...
    # (B) float32, of the value of `next_observation`: gamma^m after m <= n steps, 0 where the episode terminated
    discount: Tensor
    next_observation: Tensor  # (O, B)
    legal: Tensor | None  # (H, B) uint8, of `observation`; None: the environment has no legal actions
    # (H, B) uint8, of `next_observation`; all legal at the final observation of a truncated episode
    next_legal: Tensor | None
    noise: Tensor  # (R, B) float32, uniform in [0, 1), keyed like the samples


def shard_count(lanes: int, batch: int) -> int:
    """Return the number of shards (equal ranges of the lanes) from which a batch takes equally many samples: the
    largest power of two up to 8 that divides lanes and batch.
    """
    shards = MOST_SHARDS
    while lanes % shards or batch % shards:
        shards //= 2
    return shards


class Replay:
    """Replay buffer: a ring of ticks (steps of all lanes), which are copied from the rollout of an iteration, and the
    buffers of one batch.

    In an iteration call `store` for each tick t after the world wrote it, `sample` for each update, and `advance` once
    at the end.
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
        place: Place = "auto",
        exchange: Exchange = SOLO,
    ) -> None:
        """Allocate a ring for `capacity` transitions from `rollout`, an unbound slot of T ticks. Raises MachineError if
        host memory does not suffice.

        `action` (T, A, N) is stored instead of the rollout's actions; `place` is the memory of observations. With an
        exchange of several ranks this is one rank's part of lanes and batch.
        """
        N, O = world.count, world.spec.observation.size
        action = rollout.action if action is None else action
        A, kind, where = action.shape[1], rollout.observation.dtype, world.device
        P, C = padded(O, kind), ring_ticks(capacity, N, n_step)
        self.world, self.rollout, self.ticks_stored, self.capacity = world, rollout, C, C * N
        self.n_step, self.gamma = n_step, gamma
        self.shards = shard_count(N * exchange.ranks, batch * exchange.ranks) // exchange.ranks
        self.first_shard = exchange.rank * self.shards
        L = world.truncation_gap if world.can_truncate else None

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=where)

        H, F = world.spec.mask_size, -(-C // L) + 1 if L is not None else 1
        self.on_host = _on_host(place, (C + F) * N * P * kind.itemsize, where)
        self.ring = Ring(
            observation=host_zeros((C, N, P), kind, where) if self.on_host else zeros(C, N, P, dtype=kind),
            final=host_zeros((F, N, P), kind, where) if self.on_host else zeros(F, N, P, dtype=kind),
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
        self._action, self._noise_rows = action, noise_rows
        self._window = torch.full((1,), self.ring.window, dtype=torch.int64, device=where)
        self._bind()
        self._first = self.allocate_batch(batch)
        self.batch, self.index, self.next_index = self._first.batch, self._first.index, self._first.next_index
        self._prefetched: Prefetch | None = None
        self._bind_store()

    def allocate_batch(self, batch: int) -> BatchBuffers:
        """Allocate the buffers of a batch of `batch` samples."""
        ring, where, (_C, _N, P) = self.ring, self.world.device, self.ring.observation.shape
        O, H, kind = self.rollout.observation.shape[1], self.world.spec.mask_size, ring.observation.dtype

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=where)

        index, next_index = zeros(batch, dtype=torch.int32), zeros(batch, dtype=torch.int32)
        action = zeros(ring.action.shape[2], batch, dtype=ring.action.dtype)
        sample = Sample(
            index,
            next_index,
            action,
            zeros(batch),
            zeros(batch),
            zeros(self._noise_rows, batch),
            self.shards,
            self.n_step,
            float32(self.gamma),  # type: ignore[arg-type]
            self.first_shard,
        )
        observation, next_observation = zeros(batch, P, dtype=kind), zeros(batch, P, dtype=kind)
        legal, next_legal = (zeros(H, batch, dtype=torch.uint8) if H else None for _ in range(2))
        span = P * kind.itemsize // 4 if where.type == "cpu" else 1

        def words(rows: Tensor) -> Tensor:
            return rows.flatten(0, -2).view(torch.int32)

        rows = Rows(
            words(ring.observation),
            words(ring.final),
            ring.legal,
            index,
            next_index,
            words(observation),
            words(next_observation),
            legal,
            next_legal,
            span,
        )
        tensors = Batch(
            observation[:, :O].t(),
            action,
            sample.reward,
            sample.discount,
            next_observation[:, :O].t(),
            legal,
            next_legal,
            sample.noise,
        )
        copies = batch * P * kind.itemsize // 4 // span
        return BatchBuffers(tensors, index, next_index, bind(sample), bind(rows, where), copies)

    def _bind_store(self) -> None:
        """Prepare the store kernel: it writes into the replay's ring, or, with observations in host memory, into one
        staging tick that a second kernel moves there.
        """
        ring, where = self.ring, self.world.device
        self._stored = self._ring
        if not self.on_host:
            return
        observation, final = (
            torch.zeros(1, *rows.shape[1:], dtype=rows.dtype, device=where) for rows in (ring.observation, ring.final)
        )
        self._stored = bind(ring._replace(observation=observation, final=final))
        self._move = kernel(transitions.move_body, where)
        self._words = observation.numel() * observation.element_size() // 4
        self._staged = bind(
            Staged(
                observation.view(torch.int32).flatten(),
                final.view(torch.int32).flatten(),
                self.rollout.truncated,
                self.world.count,
            )
        )
        self._host = bind(
            Host(
                ring.observation.view(torch.int32).flatten(1),
                ring.final.view(torch.int32).flatten(1),
                ring.ticks,
                ring.window,
            ),
            where,
        )

    def _bind(self) -> None:
        """Prepare the kernels with the replay's ring and the rollout."""
        ring, rollout, where = self.ring, self.rollout, self.world.device
        N, O = self.world.count, rollout.observation.shape[1]
        self._store = kernel(transitions.store_body, where)
        self._store_legal = kernel(transitions.store_legal_body, where)
        self._draw, self._returns = kernel(transitions.draw_body, where), kernel(transitions.returns_body, where)
        self._rows, self._legal = kernel(transitions.rows_body, where), kernel(transitions.legal_body, where)
        self._pieces, self._ring = -(-O // PIECE) * N, bind(ring, where)
        # unread without truncations
        final = rollout.observation if rollout.final_observation is None else rollout.final_observation
        self._source = bind(
            Source(
                rollout.observation,
                final,
                self._action,
                rollout.reward,
                rollout.terminated,
                rollout.truncated,
                rollout.legal,
                N,
                self.world.final_window,
            )
        )

    @property
    def bytes(self) -> int:
        """Size of the replay's ring in bytes, in device and host memory together."""
        return sum(value.numel() * value.element_size() for value in self.ring if isinstance(value, Tensor))

    def fill(self, t: int) -> Tensor:
        """Return the number of stored transitions when t ticks of the iteration are stored, (1) int64 on the device."""
        transitions: Tensor = (self.ring.ticks + t) * self.world.count
        return transitions.clamp_max(self.capacity)

    def store(self, t: int) -> None:
        """Copy tick t (step of all lanes) of the iteration from the rollout into the replay's ring."""
        self._store(self._pieces, self._source, self._stored, t)
        if self.on_host:
            self._move(self._words, self._staged, self._host, t)
        if self.ring.legal is not None:
            self._store_legal(self.world.count, self._source, self._ring, t)

    def sample(self, ticks: int, update: int) -> Batch:
        """Draw a batch uniformly for update number `update` of the iteration, when `ticks` of its ticks are stored."""
        if self._prefetched is not None:
            return self._prefetched.batch(update, ticks, self.draw)
        self.draw(ticks, update)
        return self.gather(ticks)

    def draw(self, ticks: int, update: int, buffers: BatchBuffers | None = None) -> None:
        """Draw the indices of a batch's transitions (B) and its noise into `buffers`, by default the replay's own,
        without copying the transitions. `ticks` and `update` as for `sample`.
        """
        buffers = buffers or self._first
        self._draw(len(buffers.index), self._ring, buffers.sample, self._offset(ticks, update))

    def gather(self, ticks: int, buffers: BatchBuffers | None = None) -> Batch:
        """Return the transitions whose indices are in `buffers`, by default the replay's own `index` (B), when `ticks`
        ticks of the iteration are stored. The caller may have written the indices.
        """
        buffers = buffers or self._first
        self.compute_returns(ticks, buffers)
        self._rows(buffers.copies, buffers.rows, buffers.rows)
        return self.gather_legal(buffers)

    def compute_returns(self, ticks: int, buffers: BatchBuffers) -> None:
        """Write the drawn transitions' n-step returns, and the ring's rows of their next observations, to `buffers`,
        when `ticks` ticks of the iteration are stored.
        """
        self._returns(len(buffers.index), self._ring, buffers.sample, self._offset(ticks, 0))

    def gather_legal(self, buffers: BatchBuffers) -> Batch:
        """Copy the legal actions of the drawn transitions to `buffers`, if the environment has any.
        Returns the batch.
        """
        if self.ring.legal is not None:
            self._legal(len(buffers.index), buffers.rows, buffers.rows)
        return buffers.batch

    def prefetch(self, stored: Sequence[int], *, sampling: bool = True) -> Prefetch | None:
        """From now on gather batches from host memory one update early. Returns the prefetcher, or None if observations
        are in device memory.

        `stored` (U) are the ticks stored before each update of an iteration. Without `sampling` only the caller takes
        batches from the result; `sample` does not.
        """
        if not self.on_host:
            return None
        prefetched = Prefetch(self, stored)
        self._prefetched = prefetched if sampling else None
        return prefetched

    def _offset(self, ticks: int, update: int) -> int:
        return ticks << TICK_BIT | update

    def advance(self, ticks: int, updates: int) -> None:
        """Count `ticks` stored ticks and `updates` updates of a finished iteration, on the device."""
        self.ring.ticks.add_(ticks)
        self.ring.updates.add_(updates)

    def cut(self, observation: Tensor) -> None:
        """Truncate the running episodes of all lanes at the last stored tick, since the lanes are about to be reset.
        `observation` (O, N) are their final observations.

        Only for a world whose lanes may be truncated in every tick, such as an outside environment: where ticks share a
        row of the side buffer, the cut would overwrite a final observation that is still in use.
        """
        ring, last = self.ring, int(self.ring.ticks) - 1  # sync: a resume
        if last < 0:
            return
        assert ring.window == 1 and self.world.can_truncate, "the replay of another world starts empty instead"
        row, final_row = last % self.ticks_stored, last % len(ring.final)
        under_way = (ring.terminated[row] | ring.truncated[row]) == 0  # (N)
        lanes, where = under_way.to(ring.final.device), ring.final.device  # may be in host memory
        ring.final[final_row, lanes, : len(observation)] = observation.t().to(where)[lanes]
        ring.truncated[row] |= under_way

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint that has the replay, by name.

        Among them is the constant `window`, the number of ticks that share a row of final observations: a replay with
        another window could not read the saved rows.
        """
        ring = {
            name: value
            for name, value in self.ring._asdict().items()
            if isinstance(value, Tensor) and name not in ("seed", "updates")
        }
        return {**ring, "window": self._window}


class BatchBuffers(NamedTuple):
    """Buffers of a batch: as tensors, and bound for kernels."""

    batch: Batch
    index: Any  # (B) int32; a Tensor, but tuples have a method of this name
    next_index: Tensor  # (B) int32
    sample: Sample
    rows: Rows
    copies: int  # indices of `rows_body`


class Prefetch:
    """Gathering of batches from host memory one update early: while the GPU learns from one, a few of its
    multiprocessors read the next over the bus.

    Transitions of ticks that are not stored yet are gathered once they are. Batches are the same to the bit.
    """

    def __init__(self, replay: Replay, stored: Sequence[int]) -> None:
        self._replay, self._stored, where = replay, tuple(stored), replay.world.device
        self.buffers = (replay.allocate_batch(len(replay.index)), replay.allocate_batch(len(replay.index)))
        self._begun = -1  # update whose batch is being gathered
        self._side = torch.cuda.Stream(where) if where.type == "cuda" else None
        self._part = kernel(transitions.part_body, where)
        ring, lanes = replay.ring, replay.world.count
        self._early, self._late = (
            bind(Part(ring.ticks, replay.ticks_stored, lanes, replay.n_step, threads))
            for threads in (EARLY_BLOCKS * EARLY_THREADS, LATE_THREADS)
        )

    def batch(self, update: int, settled: int, draw: Callable[[int, int, BatchBuffers], object]) -> Batch:
        """Return the batch of update number `update` of the iteration, in one of two alternating buffers, and begin to
        gather the next.

        `settled` ticks of the iteration are stored completely. `draw(ticks, update, buffers)` draws samples.
        """
        buffers, ticks, current = self.buffers[update % 2], self._stored[update], self._current()
        if self._begun == update:
            if self._side is not None and current is not None:
                current.wait_stream(self._side)
            self._replay.compute_returns(ticks, buffers)
            self._part(LATE_THREADS, buffers.rows, self._late, ticks << TICK_BIT | self._settled << 1 | 1)
            self._replay.gather_legal(buffers)
        else:
            draw(ticks, update, buffers)
            self._replay.gather(ticks, buffers)
        if update + 1 < len(self._stored):
            self._begin(update + 1, settled, draw)
        return buffers.batch

    def _begin(self, update: int, settled: int, draw: Callable[[int, int, BatchBuffers], object]) -> None:
        """Begin to gather the batch of update number `update`, on the side stream: the samples whose transitions lie
        within the first `settled` ticks of the iteration. `batch` gathers the others.
        """
        buffers, ticks, current = self.buffers[update % 2], self._stored[update], self._current()
        self._begun, self._settled = update, settled
        with contextlib.nullcontext() if self._side is None else torch.cuda.stream(self._side):
            if self._side is not None and current is not None:
                self._side.wait_stream(current)
            draw(ticks, update, buffers)
            self._replay.compute_returns(ticks, buffers)
            self._part(
                EARLY_BLOCKS * EARLY_THREADS,
                buffers.rows,
                self._early,
                ticks << TICK_BIT | settled << 1,
                threads=EARLY_THREADS,
            )

    def _current(self) -> torch.cuda.Stream | None:
        return None if self._side is None else torch.cuda.current_stream(self._side.device)


def padded(observation: int, dtype: torch.dtype) -> int:
    """Return P, the number of features of a stored observation, padded so that its row is a multiple of 16 bytes."""
    multiple = _ROW_BYTES // dtype.itemsize
    return -(-observation // multiple) * multiple


def ring_ticks(capacity: int, lanes: int, n_step: int) -> int:
    """Return the number of ticks (steps of all lanes) in a ring for `capacity` transitions, at least n_step + 1."""
    return max(capacity // lanes, n_step + 1)


def _on_host(place: Place, needed: int, device: torch.device) -> bool:
    """Whether the replay's observations, `needed` bytes, are stored in host memory rather than the GPU's, given `place`
    and the free memory. Raises MachineError if host memory does not suffice.
    """
    on_gpu = device.type == "cuda"
    on_host = place == "host" or (
        place == "auto" and on_gpu and needed > DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]
    )
    if on_host or (place == "auto" and not on_gpu):
        free = psutil.virtual_memory().available
        if needed > free:
            raise MachineError(
                f"the replay would take {needed / 2**30:,.1f} GiB of the host's memory, and {free / 2**30:,.1f} GiB is "
                "free: lower algo.replay_capacity"
            )
    return on_host
