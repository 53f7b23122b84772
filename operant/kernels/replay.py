"""Triton kernels of a replay: they store a tick, and make a batch, both observations as a network's first layer reads
them.

The same transitions, returns and noise as those of `operant.data.replay`, whose kernels are the specification, in one
launch or as a part of another's. Know no network and no loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language.random import philox_impl

from operant.compute import rng

_SHARD_BIT = tl.constexpr(24)
_PURPOSE = tl.constexpr(rng.REPLAY << 16)
_UNIT = tl.constexpr(2.0**-24)


@dataclass(frozen=True)
class Draw:
    """What is known of batches when a kernel is compiled."""

    batch: int  # B
    shards: int
    n_step: int
    noise: int  # R
    ends: bool  # a time limit may end an episode
    observation: int  # numbers of an observation
    row: int  # P, of a stored one
    action: int  # A
    columns: int  # C of a batch
    normalize: bool


class Stored(NamedTuple):
    """A replay's buffers, and how far it has come when the iteration begins."""

    observation: Any  # (C, N, P)
    final: Any  # (F, N, P)
    action: Any  # (C, N, A)
    reward: Any  # (C, N)
    terminated: Any  # (C, N) uint8
    truncated: Any  # (C, N) uint8
    ticks: Any  # (1) int64
    updates: Any  # (1) int64
    seed: Any  # (2) int32
    normalizer: Any  # mean (O), inv_std (O)
    ticked: Any  # `Ticked`


class Ticked(NamedTuple):
    """The iteration's ticks as the world writes them."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T, O, N); anything where no time limit ends an episode
    action: Any  # (T, A, N)
    reward: Any  # (T, N)
    terminated: Any  # (T, N) uint8
    truncated: Any  # (T, N) uint8


class Numbers(NamedTuple):
    """What differs from batch to batch, and from replay to replay."""

    ticks: Any  # of the iteration that count as stored
    update: Any  # number of the update in the iteration
    lanes: Any  # N
    capacity: Any  # ticks of the ring
    finals: Any  # rows of the side buffer, F
    window: Any  # ticks that share one
    gamma: Any


class Sampled(NamedTuple):
    """A batch as first layers read it."""

    seen: Any  # (B, C) float32: observation, action, zeros
    next: Any  # (B, C) float32: next observation, zeros
    reward: Any  # (B) float32, n-step
    discount: Any  # (B) float32
    noise: Any  # (R, B) float32, uniform in [0, 1)


@triton.jit
def _words(shard, number, update, seed, draw):
    """Four random words of each sample."""
    c0 = ((shard << _SHARD_BIT) | number).to(tl.uint32)
    c1 = tl.zeros_like(c0) + (update & 0xFFFFFFFF).to(tl.uint32)
    c2 = tl.zeros_like(c0) + (update >> 32).to(tl.uint32)
    c3 = tl.zeros_like(c0) + (_PURPOSE | draw)
    k0 = tl.zeros_like(c0) + tl.load(seed).to(tl.uint32, bitcast=True)
    k1 = tl.zeros_like(c0) + tl.load(seed + 1).to(tl.uint32, bitcast=True)
    return philox_impl(c0, c1, c2, c3, k0, k1)


@triton.jit
def _unit(word):
    return (word >> 8).to(tl.float32) * _UNIT


@triton.jit
def _below(word, bound):
    """A whole number from 0 to below `bound`, from a random word."""
    return (word.to(tl.int64) * bound) >> 32


@triton.jit
def features(observed, column, normalizer, OBSERVATION: tl.constexpr, NORMALIZE: tl.constexpr):
    """Numbers of observations (rows, columns) as a network reads them, zero behind the last."""
    x = observed.to(tl.float32)
    if NORMALIZE:
        inside = column < OBSERVATION
        x = (x - tl.load(normalizer + column, mask=inside, other=0.0)[None, :]) * tl.load(
            normalizer + OBSERVATION + column, mask=inside, other=0.0
        )[None, :]
        x = tl.where(x > 10.0, 10.0, tl.where(x < -10.0, -10.0, x))
    return x


@triton.jit
def _returns(stored, numbers, ticks, row, lane, DRAW: tl.constexpr):
    """Of transitions in these rows and lanes: n-step return, discount, the next observation's row, and where it is
    final its place, else -1.
    """
    capacity, lanes = numbers.capacity, numbers.lanes
    total = (row * 0).to(tl.float32)
    discount = total + 1.0
    running = discount > 0.0
    following = (row + 1) % capacity
    final = row * 0 - 1
    last = row
    N_STEP: tl.constexpr = DRAW.n_step
    for step in tl.static_range(N_STEP):
        at = last * lanes + lane
        reward = tl.load(stored.reward + at)
        terminated = tl.load(stored.terminated + at) != 0
        if step > 0:
            following = tl.where(running, (last + 1) % capacity, following)
        total = tl.where(running, total + discount * reward, total)
        discount = tl.where(running, discount * numbers.gamma, discount)
        discount = tl.where(running & terminated, 0.0, discount)
        ended = terminated
        if DRAW.ends:
            # Which tick lies in this row: the newest but so many.
            truncated = (tl.load(stored.truncated + at) != 0) & (terminated == 0)
            tick = ticks - 1 - (ticks - 1 - last) % capacity
            final = tl.where(running & truncated, tick // numbers.window % numbers.finals * lanes + lane, final)
            ended = terminated | truncated
        running = running & (ended == 0)
        last = (last + 1) % capacity
    return total, discount, following, final


@triton.jit
def make_batch(tile, stored, out, numbers, DRAW: tl.constexpr, ROWS: tl.constexpr):
    """A tile of a batch. Of the newest tick that counts as stored only the observation is read, and that in the
    rollout: the rest need not be there yet.
    """
    k = tile * ROWS + tl.arange(0, ROWS)
    ticks = tl.load(stored.ticks) + numbers.ticks
    update = tl.load(stored.updates) + numbers.update
    capacity, lanes = numbers.capacity, numbers.lanes
    shard, within = k // (DRAW.batch // DRAW.shards), k % (DRAW.batch // DRAW.shards)

    # Which transition: the oldest tick is `ticks - held`; the newest n are left out.
    held = tl.minimum(ticks, capacity)
    choices = tl.maximum(held - DRAW.n_step, 1)
    w0, w1, _w2, _w3 = _words(shard, within, update, stored.seed, 0)
    row = (ticks - held + _below(w0, choices)) % capacity
    lane = shard * (lanes // DRAW.shards) + _below(w1, lanes // DRAW.shards)
    total, discount, following, final = _returns(stored, numbers, ticks, row, lane, DRAW)
    tl.store(out.reward + k, total)
    tl.store(out.discount + k, discount)

    # Observations and actions.
    column = tl.arange(0, DRAW.columns)
    inside = (column < DRAW.observation)[None, :]
    acts = ((column >= DRAW.observation) & (column < DRAW.observation + DRAW.action))[None, :]
    at = (row * lanes + lane)[:, None]
    newest = (following == (ticks - 1) % capacity)[:, None]
    seen = tl.load(stored.observation + at * DRAW.row + column[None, :], mask=inside, other=0)
    action = tl.load(stored.action + at * DRAW.action + (column - DRAW.observation)[None, :], mask=acts, other=0)
    after = tl.load(
        stored.observation + (following * lanes + lane)[:, None] * DRAW.row + column[None, :],
        mask=inside & (newest == 0),
        other=0,
    )
    now = stored.ticked.observation + ((numbers.ticks - 1) * DRAW.observation + column)[None, :] * lanes + lane[:, None]
    after = tl.where(newest, tl.load(now, mask=inside & newest, other=0), after)
    if DRAW.ends:
        truth = tl.load(
            stored.final + final[:, None] * DRAW.row + column[None, :], mask=inside & (final >= 0)[:, None], other=0
        )
        after = tl.where((final >= 0)[:, None], truth, after)
    place = k[:, None] * DRAW.columns + column[None, :]
    tl.store(
        out.seen + place,
        tl.where(acts, action, features(seen, column, stored.normalizer, DRAW.observation, DRAW.normalize)),
    )
    tl.store(out.next + place, features(after, column, stored.normalizer, DRAW.observation, DRAW.normalize))

    NOISE: tl.constexpr = DRAW.noise
    for draw in tl.static_range((NOISE + 3) // 4):
        words = _words(shard, within, update, stored.seed, draw + 1)
        for j in tl.static_range(4):
            if 4 * draw + j < NOISE:
                tl.store(out.noise + (4 * draw + j) * DRAW.batch + k, _unit(words[j]))


@triton.jit(do_not_specialize=["numbers"])
def sample(stored, out, numbers, DRAW: tl.constexpr, ROWS: tl.constexpr):
    """A batch; a program a tile of samples."""
    make_batch(tl.program_id(0), stored, out, numbers, DRAW, ROWS)


@triton.jit
def store_tick(tile, tiles, stored, numbers, DRAW: tl.constexpr, ROWS: tl.constexpr):
    """Store the newest tick that counts as stored: tiles of lanes, each program every so many."""
    t, lanes = numbers.ticks - 1, numbers.lanes
    tick = tl.load(stored.ticks) + t
    row = tick % numbers.capacity
    ticked = stored.ticked
    column = tl.arange(0, DRAW.columns)[None, :]
    for first in range(tile * ROWS, lanes, tiles * ROWS):
        lane = first + tl.arange(0, ROWS)
        here = lane < lanes
        inside = here[:, None] & (column < DRAW.observation)
        acts = here[:, None] & (column < DRAW.action)
        from_field = (t * DRAW.observation + column) * lanes + lane[:, None]
        seen = tl.load(ticked.observation + from_field, mask=inside, other=0)
        action = tl.load(ticked.action + (t * DRAW.action + column) * lanes + lane[:, None], mask=acts, other=0)
        reward = tl.load(ticked.reward + t * lanes + lane, mask=here, other=0.0)
        terminated = tl.load(ticked.terminated + t * lanes + lane, mask=here, other=0)
        truncated = tl.load(ticked.truncated + t * lanes + lane, mask=here, other=0)
        at = row * lanes + lane
        tl.store(stored.observation + at[:, None] * DRAW.row + column, seen, mask=inside)
        tl.store(stored.action + at[:, None] * DRAW.action + column, action, mask=acts)
        tl.store(stored.reward + at, reward, mask=here)
        tl.store(stored.terminated + at, terminated, mask=here)
        tl.store(stored.truncated + at, truncated, mask=here)
        if DRAW.ends:
            cut = inside & (truncated != 0)[:, None]
            place = (tick // numbers.window % numbers.finals * lanes + lane)[:, None] * DRAW.row + column
            tl.store(stored.final + place, tl.load(ticked.final_observation + from_field, mask=cut, other=0), mask=cut)


@triton.jit(do_not_specialize=["numbers"])
def store(stored, numbers, DRAW: tl.constexpr, ROWS: tl.constexpr):
    """Store a tick."""
    store_tick(tl.program_id(0), tl.num_programs(0), stored, numbers, DRAW, ROWS)
