"""Triton kernels of a replay: sample a batch of n-step transitions, and store a tick.

Transitions, returns and noise equal those of `operant.data.replay`, whose kernels are the specification. Each function
runs as a kernel alone or as a part of another kernel.

A *tick* is one step of all lanes. The side buffer holds true final observations of truncated episodes, with fewer rows
than the ring. Shape letters: C ticks of the ring, F rows of the side buffer, N lanes, P stored values of an
observation, O its values, A values of an action, B samples of a batch, T ticks of an iteration, R rows of noise.
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
class ReplaySpec:
    """Compile-time constants of the kernels that sample and store."""

    batch: int  # B
    shards: int
    n_step: int
    noise: int  # R
    truncates: bool  # a time limit may end an episode
    observation: int  # O
    row: int  # P
    action: int  # A
    columns: int  # columns of a batch's inputs: observation, action, zeros
    normalize: bool


class ReplayBuffers(NamedTuple):
    """Ring buffers of the replay, its counters at the start of the iteration, and the iteration's rollout."""

    observation: Any  # (C, N, P)
    final: Any  # (F, N, P)
    action: Any  # (C, N, A)
    reward: Any  # (C, N)
    terminated: Any  # (C, N) uint8
    truncated: Any  # (C, N) uint8
    ticks: Any  # (1) int64, stored ticks
    updates: Any  # (1) int64
    seed: Any  # (2) int32
    normalizer: Any  # (2, O): mean, inv_std
    rollout: Any  # `RolloutBuffers`


class RolloutBuffers(NamedTuple):
    """Rollout of an iteration's T ticks (vectorised steps) as the world writes them."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T, O, N); unused where no time limit ends an episode
    action: Any  # (T, A, N)
    reward: Any  # (T, N)
    terminated: Any  # (T, N) uint8
    truncated: Any  # (T, N) uint8


class BatchArguments(NamedTuple):
    """Scalars of one launch, which differ from batch to batch and from replay to replay."""

    ticks: Any  # ticks of the iteration that count as stored
    update: Any  # number of the update in the iteration
    lanes: Any  # N
    capacity: Any  # C
    finals: Any  # F
    window: Any  # ticks that share a row of the side buffer
    gamma: Any


class BatchBuffers(NamedTuple):
    """Buffers of a batch, with observations as first layers read them."""

    inputs: Any  # (B, columns) float32: observation, action, zeros
    next_inputs: Any  # (B, columns) float32: next observation, zeros
    reward: Any  # (B) float32, n-step return
    discount: Any  # (B) float32
    noise: Any  # (R, B) float32, uniform in [0, 1)


# RANDOM NUMBERS


@triton.jit
def philox(shard, sample, update, seed_ptr, draw):
    """Return four random words (uint32) for each sample, from the Philox generator: key `seed_ptr` (2), counter (shard,
    sample, update, draw).
    """
    c0 = ((shard << _SHARD_BIT) | sample).to(tl.uint32)
    c1 = tl.zeros_like(c0) + (update & 0xFFFFFFFF).to(tl.uint32)
    c2 = tl.zeros_like(c0) + (update >> 32).to(tl.uint32)
    c3 = tl.zeros_like(c0) + (_PURPOSE | draw)
    k0 = tl.zeros_like(c0) + tl.load(seed_ptr).to(tl.uint32, bitcast=True)
    k1 = tl.zeros_like(c0) + tl.load(seed_ptr + 1).to(tl.uint32, bitcast=True)
    return philox_impl(c0, c1, c2, c3, k0, k1)


@triton.jit
def uniform(word):
    """Convert a random word (uint32) to a float32 uniform in [0, 1)."""
    return (word >> 8).to(tl.float32) * _UNIT


@triton.jit
def randint(word, bound):
    """Convert a random word (uint32) to an integer uniform in 0 ... `bound` - 1, as int64."""
    return (word.to(tl.int64) * bound) >> 32


@triton.jit
def choose_transitions(shard, sample, ticks, update, lanes, capacity, seed_ptr, n_step, shards):
    """Choose the ring's row and the lane of each sample, (rows) each: uniformly over its shard's stored transitions,
    except the newest n_step ticks. A shard is an aligned range of lanes.

    | parameter | shape  | meaning                            |
    |-----------|--------|------------------------------------|
    | shard     | (rows) | shard of the lanes                 |
    | sample    | (rows) | index of the sample in its shard   |
    | ticks     | scalar | ticks stored so far                |
    | update    | scalar | updates so far, over the whole run |
    | seed_ptr  | (2)    | seed of the replay                 |
    """
    stored = tl.minimum(ticks, capacity)
    choices = tl.maximum(stored - n_step, 1)
    w0, w1, _w2, _w3 = philox(shard, sample, update, seed_ptr, 0)
    row = (ticks - stored + randint(w0, choices)) % capacity
    lane = shard * (lanes // shards) + randint(w1, lanes // shards)
    return row, lane


# SAMPLE


@triton.jit
def normalize_observation(observation, column, normalizer_ptr, OBSERVATION: tl.constexpr, NORMALIZE: tl.constexpr):
    """Convert observations (rows, columns) to float32; with NORMALIZE standardized by `normalizer_ptr` (2, O) and
    clipped to [-10, 10]. Columns from OBSERVATION on are zero.
    """
    x = observation.to(tl.float32)
    if NORMALIZE:
        mask = column < OBSERVATION
        x = (x - tl.load(normalizer_ptr + column, mask=mask, other=0.0)[None, :]) * tl.load(
            normalizer_ptr + OBSERVATION + column, mask=mask, other=0.0
        )[None, :]
        x = tl.where(x > 10.0, 10.0, tl.where(x < -10.0, -10.0, x))
    return x


@triton.jit
def n_step_returns(replay, sizes, gamma, ticks, row, lane, N_STEP: tl.constexpr, TRUNCATES: tl.constexpr):
    """Return n-step return, discount, the ring's row of the next observation, and its index in the side buffer of final
    observations (-1 if it is not final), (rows) each, of transitions at `row`, `lane`.

    | parameter | shape  | meaning                                           |
    |-----------|--------|---------------------------------------------------|
    | replay    | struct | has reward, terminated and truncated, (C, N) each |
    | sizes     | struct | has lanes, capacity, finals and window            |
    | gamma     | scalar | discount of one step                              |
    | ticks     | scalar | stored ticks                                      |
    | row, lane | (rows) | row of the ring and lane of each transition       |
    """
    capacity, lanes = sizes.capacity, sizes.lanes
    total = (row * 0).to(tl.float32)
    discount = total + 1.0
    running = discount > 0.0
    next_row = (row + 1) % capacity
    final = row * 0 - 1
    last = row
    for step in tl.static_range(N_STEP):
        transition = last * lanes + lane
        reward = tl.load(replay.reward + transition)
        terminated = tl.load(replay.terminated + transition) != 0
        if step > 0:
            next_row = tl.where(running, (last + 1) % capacity, next_row)
        total = tl.where(running, total + discount * reward, total)
        discount = tl.where(running, discount * gamma, discount)
        discount = tl.where(running & terminated, 0.0, discount)
        ended = terminated
        if TRUNCATES:
            truncated = (tl.load(replay.truncated + transition) != 0) & (terminated == 0)
            tick = ticks - 1 - (ticks - 1 - last) % capacity  # the tick that is stored in this row
            final = tl.where(running & truncated, tick // sizes.window % sizes.finals * lanes + lane, final)
            ended = terminated | truncated
        running = running & (ended == 0)
        last = (last + 1) % capacity
    return total, discount, next_row, final


@triton.jit
def sample_tile(tile, replay, batch, arguments, REPLAY: tl.constexpr, BLOCK_M: tl.constexpr):
    """Sample BLOCK_M transitions of a batch, number `tile`, into `batch`. `replay`, `batch` and `arguments` as in
    `sample`.

    Of the newest stored tick only the observation is read, from the rollout: the rest may be written later.
    """
    k = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    ticks = tl.load(replay.ticks) + arguments.ticks
    update = tl.load(replay.updates) + arguments.update
    capacity, lanes = arguments.capacity, arguments.lanes
    shard, in_shard = k // (REPLAY.batch // REPLAY.shards), k % (REPLAY.batch // REPLAY.shards)
    row, lane = choose_transitions(
        shard, in_shard, ticks, update, lanes, capacity, replay.seed, REPLAY.n_step, REPLAY.shards
    )
    total, discount, next_row, final = n_step_returns(
        replay, arguments, arguments.gamma, ticks, row, lane, REPLAY.n_step, REPLAY.truncates
    )
    tl.store(batch.reward + k, total)
    tl.store(batch.discount + k, discount)

    # Observations and actions.
    column = tl.arange(0, REPLAY.columns)
    observation_mask = (column < REPLAY.observation)[None, :]
    action_mask = ((column >= REPLAY.observation) & (column < REPLAY.observation + REPLAY.action))[None, :]
    transition = (row * lanes + lane)[:, None]
    newest = (next_row == (ticks - 1) % capacity)[:, None]
    observation = tl.load(
        replay.observation + transition * REPLAY.row + column[None, :], mask=observation_mask, other=0
    )
    action = tl.load(
        replay.action + transition * REPLAY.action + (column - REPLAY.observation)[None, :], mask=action_mask, other=0
    )
    next_observation = tl.load(
        replay.observation + (next_row * lanes + lane)[:, None] * REPLAY.row + column[None, :],
        mask=observation_mask & (newest == 0),
        other=0,
    )
    newest_ptr = (
        replay.rollout.observation
        + ((arguments.ticks - 1) * REPLAY.observation + column)[None, :] * lanes
        + lane[:, None]
    )
    next_observation = tl.where(newest, tl.load(newest_ptr, mask=observation_mask & newest, other=0), next_observation)
    if REPLAY.truncates:
        final_observation = tl.load(
            replay.final + final[:, None] * REPLAY.row + column[None, :],
            mask=observation_mask & (final >= 0)[:, None],
            other=0,
        )
        next_observation = tl.where((final >= 0)[:, None], final_observation, next_observation)
    offset = k[:, None] * REPLAY.columns + column[None, :]
    features = normalize_observation(observation, column, replay.normalizer, REPLAY.observation, REPLAY.normalize)
    tl.store(batch.inputs + offset, tl.where(action_mask, action, features))
    next_features = normalize_observation(
        next_observation, column, replay.normalizer, REPLAY.observation, REPLAY.normalize
    )
    tl.store(batch.next_inputs + offset, next_features)

    NOISE: tl.constexpr = REPLAY.noise
    for draw in tl.static_range((NOISE + 3) // 4):
        words = philox(shard, in_shard, update, replay.seed, draw + 1)
        for j in tl.static_range(4):
            if 4 * draw + j < NOISE:
                tl.store(batch.noise + (4 * draw + j) * REPLAY.batch + k, uniform(words[j]))


@triton.jit(do_not_specialize=["arguments"])
def sample(replay, batch, arguments, REPLAY: tl.constexpr, BLOCK_M: tl.constexpr):
    """Sample a batch of n-step transitions from the replay: observations, discounted returns and noise. Grid: (B /
    BLOCK_M,).

    | parameter | shape  | meaning                 |
    |-----------|--------|-------------------------|
    | replay    | struct | `ReplayBuffers`, read   |
    | batch     | struct | `BatchBuffers`, written |
    | arguments | struct | `BatchArguments`        |
    """
    sample_tile(tl.program_id(0), replay, batch, arguments, REPLAY, BLOCK_M)


# STORE


@triton.jit
def store_tick(program, programs, replay, arguments, REPLAY: tl.constexpr, BLOCK_M: tl.constexpr):
    """Copy the newest tick from the rollout to the ring, as program `program` of `programs`: BLOCK_M lanes at a time.
    The parameters are those of `store`.
    """
    t, lanes = arguments.ticks - 1, arguments.lanes
    tick = tl.load(replay.ticks) + t
    row = tick % arguments.capacity
    rollout = replay.rollout
    column = tl.arange(0, REPLAY.columns)[None, :]
    for first in range(program * BLOCK_M, lanes, programs * BLOCK_M):
        lane = first + tl.arange(0, BLOCK_M)
        lane_mask = lane < lanes
        observation_mask = lane_mask[:, None] & (column < REPLAY.observation)
        action_mask = lane_mask[:, None] & (column < REPLAY.action)
        source = (t * REPLAY.observation + column) * lanes + lane[:, None]
        observation = tl.load(rollout.observation + source, mask=observation_mask, other=0)
        action = tl.load(
            rollout.action + (t * REPLAY.action + column) * lanes + lane[:, None], mask=action_mask, other=0
        )
        reward = tl.load(rollout.reward + t * lanes + lane, mask=lane_mask, other=0.0)
        terminated = tl.load(rollout.terminated + t * lanes + lane, mask=lane_mask, other=0)
        truncated = tl.load(rollout.truncated + t * lanes + lane, mask=lane_mask, other=0)
        transition = row * lanes + lane
        tl.store(replay.observation + transition[:, None] * REPLAY.row + column, observation, mask=observation_mask)
        tl.store(replay.action + transition[:, None] * REPLAY.action + column, action, mask=action_mask)
        tl.store(replay.reward + transition, reward, mask=lane_mask)
        tl.store(replay.terminated + transition, terminated, mask=lane_mask)
        tl.store(replay.truncated + transition, truncated, mask=lane_mask)
        if REPLAY.truncates:
            final_mask = observation_mask & (truncated != 0)[:, None]
            final_row = (tick // arguments.window % arguments.finals * lanes + lane)[:, None] * REPLAY.row + column
            tl.store(
                replay.final + final_row,
                tl.load(rollout.final_observation + source, mask=final_mask, other=0),
                mask=final_mask,
            )


@triton.jit(do_not_specialize=["arguments"])
def store(replay, arguments, REPLAY: tl.constexpr, BLOCK_M: tl.constexpr):
    """Copy the newest tick (vectorised step) from the rollout, `replay.rollout`, to the replay's ring. Grid: any number
    of programs. `arguments` is a `BatchArguments`.
    """
    store_tick(tl.program_id(0), tl.num_programs(0), replay, arguments, REPLAY, BLOCK_M)
