"""DQN's Triton kernels: gradient of a batch, optimizer step, acting, and storing a tick.

An update is two launches. `act_and_learn` computes the gradient of the batch, a tile of samples a program, and in other
programs the actions of the tick: the newest tick is never sampled, so acting depends on no update of its tick.
`reduce_and_step` sums the tiles' gradients, steps Adam and moves the target network, and in other programs stores the
tick that the world has made meanwhile. The kernels read and write the replay in the layout of `operant.data.replay`.

Common constants: SPEC: the network's `operant.kernels.Spec`; DQN: `DQNSpec`. Groups of buffers and scalars are named
tuples: of tensors on the host, of pointers and numbers inside a kernel.

Shape letters: C ticks of the ring, F rows of the side buffer, N lanes, P stored values of an observation, O its values,
A actions, T ticks of an iteration, U updates of an iteration, B samples of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.kernels.backward import TERM_COLUMNS
from operant.kernels.ops.adam import adam, count_step
from operant.kernels.ops.linear import select_column
from operant.kernels.ops.replay import choose_transitions, n_step_returns
from operant.kernels.q_values import all_legal, best, explore
from operant.kernels.single_tile import forward_rows, store_gradient

# BUFFERS


@dataclass(frozen=True)
class DQNSpec:
    """Compile-time constants of DQN's kernels, in addition to the network's spec."""

    actions: int
    duelling: bool
    double: bool
    n_step: int
    truncates: bool  # a time limit may end an episode
    gathered: bool  # a batch's observations are gathered from host memory before the update
    stat: Any  # index of each statistic by name


class RingBuffers(NamedTuple):
    """Ring buffer of the replay, as `operant.data.replay.Ring`: C ticks (vectorised steps) of N lanes, final
    observations, counters and sizes.
    """

    observation: Any  # (C, N, P)
    final: Any  # (F, N, P); unused where no episode is truncated
    action: Any  # (C, N, 1)
    reward: Any  # (C, N)
    terminated: Any  # (C, N)
    truncated: Any  # (C, N)
    legal: Any  # (C, N, A); unused where all actions are legal
    ticks: Any  # (1) int64, stored ticks
    updates: Any  # (1) int64
    seed: Any  # (2) int32
    lanes: Any  # N
    width: Any  # P
    capacity: Any  # C
    finals: Any  # F
    window: Any  # ticks that share a row of the side buffer


class TickBuffers(NamedTuple):
    """Rollout of T ticks (vectorised steps) as a world writes them."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T, O, N); unused where no episode is truncated
    action: Any  # (T, 1, N)
    reward: Any  # (T, N)
    terminated: Any  # (T, N)
    truncated: Any  # (T, N)
    legal: Any  # (T + 1, A, N); unused where all actions are legal


class SampleBuffers(NamedTuple):
    """Indices of all batches of an iteration, and gathered observations of one."""

    index: Any  # (U, B) int32: row of the ring x N + lane
    gamma: Any
    count: Any  # B
    observation: Any  # (B, P), gathered
    next_observation: Any  # (B, P), gathered


class OptimizerBuffers(NamedTuple):
    """State and constants of the optimizer step, and the sums of the statistics."""

    squares: Any  # (programs), sums of squares of the gradient
    totals: Any  # sums of the statistics over updates, indexed by DQNSpec.stat
    steps: Any  # of Adam
    corrections: Any  # (2), bias corrections of Adam's next step
    arrivals: Any  # (1) int64, arrivals at the grid barrier, over all launches
    skip: Any  # 1: no step
    learning_rate: Any
    max_norm: Any  # infinite: not clipped
    epsilon: Any  # of Adam
    tau: Any
    target_every: Any


# SAMPLES


@triton.jit
def choose(index_ptr, stored_ptr, ring, samples, shards, n_step, BLOCK_SIZE: tl.constexpr):
    """Choose the samples of all U updates of an iteration, with the random numbers of
    `operant.data.transitions.draw_body`. Grid: (cdiv(B, BLOCK_SIZE), U).

    | parameter  | shape  | meaning                                                        |
    |------------|--------|----------------------------------------------------------------|
    | index_ptr  | (U, B) | written: row of the ring x N + lane                            |
    | stored_ptr | (U)    | ticks of the iteration that are stored when the update samples |
    | ring       | struct | `RingBuffers`                                                  |
    | samples    | scalar | B                                                              |
    | shards     | scalar | shards of the lanes                                            |
    """
    update, k = tl.program_id(1), tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    ticks, number = tl.load(ring.ticks) + tl.load(stored_ptr + update), tl.load(ring.updates) + update
    shard_samples = samples // shards
    row, lane = choose_transitions(
        k // shard_samples,
        k % shard_samples,
        ticks,
        number,
        ring.lanes,
        ring.capacity,
        ring.seed,
        n_step,
        shards,
    )
    tl.store(index_ptr + update * samples + k, (row * ring.lanes + lane).to(tl.int32), mask=k < samples)


@triton.jit
def load_transitions(index, ring, ticks, gamma, in_bounds, N_STEP: tl.constexpr, TRUNCATES: tl.constexpr):
    """Return action, n-step return and discount of samples, (rows) each; pointers to both observations; and the next
    observation's location: row of the ring x N + lane, or if it is final -1 - (row of the side buffer x N + lane).

    | parameter | shape  | meaning                                             |
    |-----------|--------|-----------------------------------------------------|
    | index     | (rows) | row of the ring x N + lane; of rows out of bounds 0 |
    | ring      | struct | `RingBuffers`                                       |
    | ticks     | scalar | stored ticks                                        |
    """
    lane, row = index % ring.lanes, index // ring.lanes
    action = tl.load(ring.action + index, mask=in_bounds, other=0)
    total, discount, next_row, final = n_step_returns(ring, ring, gamma, ticks, row, lane, N_STEP, TRUNCATES)
    next_place = (next_row * ring.lanes + lane).to(tl.int64)
    observation_ptr = ring.observation + index.to(tl.int64) * ring.width
    next_ptr = ring.observation + next_place * ring.width
    if TRUNCATES:
        next_ptr = tl.where(final >= 0, ring.final + final * ring.width, next_ptr)
        next_place = tl.where(final >= 0, -1 - final, next_place)
    return action, total, discount, observation_ptr, next_ptr, next_place


@triton.jit
def q_values(out, column, ACTIONS: tl.constexpr, DUELLING: tl.constexpr):
    """Return Q(s, a) in column a of a tile (rows, out_pad), from the outputs; with DUELLING V + A(a) - mean A. Columns
    from ACTIONS on are undefined.
    """
    if DUELLING:
        mask = (column < ACTIONS)[None, :]
        mean = tl.sum(tl.where(mask, out, 0.0), axis=1) / ACTIONS
        return out + (select_column(out, column, ACTIONS) - mean)[:, None]
    else:
        return out


# GRADIENT


@triton.jit
def _next_value(
    next_ptr,
    next_place,
    ring,
    params_ptr,
    target_ptr,
    normalizer_ptr,
    in_bounds,
    SPEC: tl.constexpr,
    DQN: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Return max_a Q'(s', a), or with double Q-learning Q'(s', argmax_a Q(s', a)), over legal actions, (rows).
    `next_ptr` (rows): pointers to s'; `next_place`: its location in the ring.
    """
    column = tl.arange(0, SPEC.out_pad)
    legal_mask = all_legal(BLOCK_M, SPEC.out_pad)
    if SPEC.legal:
        mask = (in_bounds & (next_place >= 0))[:, None] & (column < DQN.actions)[None, :]
        legal_mask = tl.load(ring.legal + next_place[:, None] * DQN.actions + column[None, :], mask=mask, other=1)
    out, _network, _hidden, _saved = forward_rows(next_ptr, 1, target_ptr, normalizer_ptr, in_bounds, SPEC, BLOCK_M)
    values = q_values(out, column, DQN.actions, DQN.duelling)
    choice, _masked = best(values, legal_mask, DQN.actions)
    if DQN.double:
        out, _network, _hidden, _saved = forward_rows(next_ptr, 1, params_ptr, normalizer_ptr, in_bounds, SPEC, BLOCK_M)
        choice, _masked = best(q_values(out, column, DQN.actions, DQN.duelling), legal_mask, DQN.actions)
    return tl.sum(tl.where(column[None, :] == choice[:, None], values, 0.0), axis=1)


@triton.jit
def backward_tile(
    tile,
    batch,
    update,
    ring,
    ticks,
    params_ptr,
    target_ptr,
    normalizer_ptr,
    partials_ptr,
    width,
    SPEC: tl.constexpr,
    DQN: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write the gradient of BLOCK_M samples, tile number `tile` of a batch, and its loss terms to the tile's row of
    `partials_ptr` (tiles, width). The parameters are those of `act_and_learn`.
    """
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = row < batch.count
    index = tl.load(batch.index + update * batch.count + row, mask=in_bounds, other=0)
    action, reward, discount, observation_ptr, next_ptr, next_place = load_transitions(
        index, ring, ticks, batch.gamma, in_bounds, DQN.n_step, DQN.truncates
    )
    if DQN.gathered:
        offset = row.to(tl.int64) * ring.width
        observation_ptr, next_ptr = batch.observation + offset, batch.next_observation + offset
    next_value = _next_value(
        next_ptr, next_place, ring, params_ptr, target_ptr, normalizer_ptr, in_bounds, SPEC, DQN, BLOCK_M
    )
    # y = r + gamma^n Q'; L = 1/2 (Q(s, a) - y)^2
    column = tl.arange(0, SPEC.out_pad)
    out, network, hidden, saved = forward_rows(observation_ptr, 1, params_ptr, normalizer_ptr, in_bounds, SPEC, BLOCK_M)
    chosen = tl.where(column[None, :] == action[:, None], 1.0, 0.0)
    q = tl.sum(chosen * q_values(out, column, DQN.actions, DQN.duelling), axis=1)
    error = tl.where(in_bounds, q - (reward + discount * next_value), 0.0)
    scale = 1.0 / batch.count
    grad_out = (scale * error)[:, None] * chosen
    if DQN.duelling:
        # dQ_a / dA_j = 1{j = a} - 1 / A, dQ_a / dV = 1
        mean = tl.where(column < DQN.actions, 1.0 / DQN.actions, 0.0)[None, :]
        grad_out = (scale * error)[:, None] * (chosen - mean + tl.where(column == DQN.actions, 1.0, 0.0)[None, :])
    partials_ptr += tile * width
    store_gradient(partials_ptr, grad_out, observation_ptr, 1, normalizer_ptr, in_bounds, network, hidden, saved, SPEC)
    terms_ptr = partials_ptr + width - TERM_COLUMNS
    tl.store(terms_ptr + DQN.stat.q_loss, scale * tl.sum(0.5 * error * error, axis=0))
    tl.store(terms_ptr + DQN.stat.td_error, scale * tl.sum(tl.abs(error), axis=0))
    tl.store(terms_ptr + DQN.stat.q_mean, scale * tl.sum(tl.where(in_bounds, q, 0.0), axis=0))


# ACT


@triton.jit
def act_tile(tile, acting, inputs, params_ptr, t, lanes, SPEC: tl.constexpr, DQN: tl.constexpr, BLOCK_M: tl.constexpr):
    """Write epsilon-greedy actions of BLOCK_M lanes, tile number `tile`, at tick t. The parameters are those of
    `act_and_learn`.
    """
    lane = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = lane < lanes
    column = tl.arange(0, SPEC.out_pad)
    observation_ptr = inputs.observation + t * SPEC.observation * lanes + lane  # field-major: (O, N)
    out, _network, _hidden, _saved = forward_rows(
        observation_ptr, lanes, params_ptr, inputs.normalizer, in_bounds, SPEC, BLOCK_M
    )
    legal_mask = all_legal(BLOCK_M, SPEC.out_pad)
    if SPEC.legal:
        mask = in_bounds[:, None] & (column < DQN.actions)[None, :]
        legal_mask = tl.load(
            inputs.legal_mask + (t * DQN.actions + column[None, :]) * lanes + lane[:, None], mask=mask, other=1
        )
    choice, _masked = best(q_values(out, column, DQN.actions, DQN.duelling), legal_mask, DQN.actions)
    explore(choice, legal_mask, acting, t, lane, in_bounds, lanes, DQN.actions, SPEC.legal)


@triton.jit(do_not_specialize=["t", "update", "tiles"])
def act_and_learn(
    batch,
    ring,
    acting,
    inputs,
    params_ptr,
    target_ptr,
    partials_ptr,
    width,
    t,
    update,
    lanes,
    tiles,
    SPEC: tl.constexpr,
    DQN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ACT_BLOCK_M: tl.constexpr,
):
    """Compute the gradient of a batch in the first `tiles` programs, and the actions of tick t in the others.

    | parameter    | shape          | meaning                                                               |
    |--------------|----------------|-----------------------------------------------------------------------|
    | batch        | struct         | `SampleBuffers`                                                       |
    | ring         | struct         | `RingBuffers`                                                         |
    | acting       | struct         | `operant.kernels.q_values.QActing`                                    |
    | inputs       | struct         | `Inputs` of `operant.kernels.observations`: observations, legal masks |
    | params_ptr   | (P)            | the network's parameters                                              |
    | target_ptr   | (P)            | the target network's                                                  |
    | partials_ptr | (tiles, width) | written: gradient and loss terms of each tile                         |
    | t, lanes     | scalars        | tick of the iteration; N                                              |
    | update       | scalar         | number of the update in the iteration                                 |
    """
    program = tl.program_id(0)
    if program < tiles:
        ticks = tl.load(ring.ticks) + t + 1
        backward_tile(
            program,
            batch,
            update,
            ring,
            ticks,
            params_ptr,
            target_ptr,
            inputs.normalizer,
            partials_ptr,
            width,
            SPEC,
            DQN,
            BLOCK_M,
        )
    else:
        act_tile(program - tiles, acting, inputs, params_ptr, t, lanes, SPEC, DQN, ACT_BLOCK_M)


# STEP


@triton.jit
def _grid_barrier(arrivals_ptr, programs):
    """Wait until all `programs` programs of this launch have arrived, counted at `arrivals_ptr`. All of them must be
    resident on the GPU at once.
    """
    tl.debug_barrier()
    count = programs.to(tl.int64)
    goal = (tl.atomic_add(arrivals_ptr, 1, sem="acq_rel") // count + 1) * count
    while tl.atomic_add(arrivals_ptr, 0, sem="acquire") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def _reduce(
    program,
    partials_ptr,
    width,
    size,
    optimizer,
    skipped,
    ROWS: tl.constexpr,
    DQN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return the sum of the tiles' gradients in BLOCK_N columns, program number `program`; store the sum of its squares
    and add the loss terms to the totals. Program 0 counts Adam's step.
    """
    column = program * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, ROWS, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        sums += tl.load(
            partials_ptr + row[:, None] * width + column[None, :],
            mask=(row < ROWS)[:, None] & (column < width)[None, :],
            other=0.0,
        )
    total = tl.sum(sums, axis=0)
    grad = tl.where(column < size, total, 0.0)
    tl.store(optimizer.squares + program, tl.sum(grad * grad, axis=0))
    term = column - size
    is_term = (term >= 0) & (term < DQN.stat.gradient_norm)
    previous = tl.load(optimizer.totals + term, mask=is_term, other=0.0)
    tl.store(optimizer.totals + term, previous + tl.where(skipped > 0.0, 0.0, total), mask=is_term)
    if program == 0:
        count_step(optimizer.steps, optimizer.corrections, skipped, False)
    return grad


@triton.jit
def _step(
    program,
    programs,
    grad,
    params_ptr,
    target_ptr,
    size,
    moments,
    optimizer,
    skipped,
    tau,
    DQN: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Clip BLOCK_N elements of the gradient by its norm and take Adam's step; then move the target network, x' <- x' +
    tau (x - x').
    """
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(
        tl.sum(tl.load(optimizer.squares + block, mask=block < programs, other=0.0, cache_modifier=".cg"), axis=0)
    )
    grad *= tl.minimum(optimizer.max_norm / (norm + 1e-6), 1.0)
    offset = program * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = offset < tl.where(skipped > 0.0, 0, size)
    m = tl.load(moments.first + offset, mask=mask, other=0.0)
    v = tl.load(moments.second + offset, mask=mask, other=0.0)
    x = tl.load(params_ptr + offset, mask=mask, other=0.0)
    step_size = tl.load(optimizer.learning_rate) / tl.load(moments.corrections, cache_modifier=".cg")
    root_correction = tl.load(moments.corrections + 1, cache_modifier=".cg")
    x, m, v = adam(x, grad, m, v, step_size, root_correction, optimizer.epsilon)
    tl.store(moments.first + offset, m, mask=mask)
    tl.store(moments.second + offset, v, mask=mask)
    tl.store(params_ptr + offset, x, mask=mask)
    if tau > 0.0:
        x_target = tl.load(target_ptr + offset, mask=mask, other=0.0)
        tl.store(target_ptr + offset, x_target + tau * (x - x_target), mask=mask)
    if (program == 0) & (skipped == 0.0):
        norm_ptr = optimizer.totals + DQN.stat.gradient_norm
        tl.store(norm_ptr, tl.load(norm_ptr) + norm)


@triton.jit(do_not_specialize=["update", "programs", "t"])
def reduce_and_step(
    partials_ptr,
    width,
    size,
    gradient_ptr,
    params_ptr,
    target_ptr,
    moments,
    optimizer,
    ring,
    source,
    update,
    programs,
    t,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PART: tl.constexpr,
    OBSERVATION: tl.constexpr,
    STORES: tl.constexpr,
    DQN: tl.constexpr,
    ACTIONS: tl.constexpr,
    STORE_LANES: tl.constexpr,
    STORE_COLUMNS: tl.constexpr,
):
    """Sum the tiles' gradients and take the optimizer step, in the first `programs` programs; the others store tick t
    in the replay.

    | parameter    | shape         | meaning                                          |
    |--------------|---------------|--------------------------------------------------|
    | partials_ptr | (ROWS, width) | gradient and loss terms of each tile             |
    | size         | scalar        | P                                                |
    | gradient_ptr | (P)           | the sum: written by PART 1, read by PART 2       |
    | params_ptr   | (P)           | updated                                          |
    | target_ptr   | (P)           | the target network's, updated                    |
    | moments      | struct        | `Moments` of `operant.kernels.ops.adam`          |
    | optimizer    | struct        | `OptimizerBuffers`                               |
    | ring, source | struct        | `RingBuffers` and `TickBuffers`, for storing     |
    | update, t    | scalars       | number of the update, and tick, in the iteration |

    PART 0: in one launch, whose programs wait for each other; 1: the gradient alone; 2: the step alone. Constants of
    storing as `store_tick`'s.
    """
    program = tl.program_id(0)
    if program >= programs:
        _store(
            program - programs,
            source,
            ring,
            partials_ptr,
            t,
            OBSERVATION,
            STORES,
            DQN,
            ACTIONS,
            STORE_LANES,
            STORE_COLUMNS,
            False,
        )
    else:
        skipped = tl.load(optimizer.skip)
        due = (tl.load(ring.updates) + update + 1) % optimizer.target_every == 0
        tau = tl.where(due, optimizer.tau, 0.0)
        offset = program * BLOCK_N + tl.arange(0, BLOCK_N)
        if PART == 2:
            grad = tl.load(gradient_ptr + offset, mask=offset < size, other=0.0)
        else:
            grad = _reduce(program, partials_ptr, width, size, optimizer, skipped, ROWS, DQN, BLOCK_M, BLOCK_N)
        if PART == 1:
            tl.store(gradient_ptr + offset, grad, mask=offset < size)
        if PART == 0:
            _grid_barrier(optimizer.arrivals, programs)
        if PART != 1:
            _step(
                program,
                programs,
                grad,
                params_ptr,
                target_ptr,
                size,
                moments,
                optimizer,
                skipped,
                tau,
                DQN,
                BLOCKS,
                BLOCK_N,
            )


# STORE


@triton.jit
def _store(
    program,
    source,
    ring,
    staging_ptr,
    t,
    OBSERVATION: tl.constexpr,
    STORES: tl.constexpr,
    DQN: tl.constexpr,
    ACTIONS: tl.constexpr,
    STORE_LANES: tl.constexpr,
    STORE_COLUMNS: tl.constexpr,
    STAGED: tl.constexpr,
):
    """Store a tile of lanes and columns of tick t in the replay's ring, as program number `program`. The parameters are
    those of `store_tick`.
    """
    PARTS: tl.constexpr = (OBSERVATION + STORE_COLUMNS - 1) // STORE_COLUMNS
    lane = program // PARTS * STORE_LANES + tl.arange(0, STORE_LANES)
    column = program % PARTS * STORE_COLUMNS + tl.arange(0, STORE_COLUMNS)
    in_bounds = lane < ring.lanes
    mask = in_bounds[:, None] & (column < OBSERVATION)[None, :]
    first = in_bounds & (program % PARTS == 0)
    lanes, tick = ring.lanes, tl.load(ring.ticks) + t
    if STORES != 1:
        next_observation = tl.load(
            source.observation + ((t + 1) * OBSERVATION + column[None, :]) * lanes + lane[:, None], mask=mask, other=0
        )
        next_place = (tick + 1) % ring.capacity * lanes + lane
        if STAGED:
            tl.store(staging_ptr + lane[:, None] * ring.width + column[None, :], next_observation, mask=mask)
        else:
            tl.store(ring.observation + next_place[:, None] * ring.width + column[None, :], next_observation, mask=mask)
        if ACTIONS > 0:
            action = tl.arange(0, ACTIONS)
            legal_mask = first[:, None] & (action < DQN.actions)[None, :]
            legal = tl.load(
                source.legal + ((t + 1) * DQN.actions + action[None, :]) * lanes + lane[:, None],
                mask=legal_mask,
                other=0,
            )
            tl.store(ring.legal + next_place[:, None] * DQN.actions + action[None, :], legal, mask=legal_mask)
    if STORES != 2:
        place, offset = tick % ring.capacity * lanes + lane, t * lanes + lane
        if DQN.truncates:
            truncated = tl.load(source.truncated + offset, mask=in_bounds, other=0)
            if tl.sum(truncated.to(tl.int32), axis=0) > 0:
                final_mask = mask & (truncated != 0)[:, None]
                final_observation = tl.load(
                    source.final_observation + (t * OBSERVATION + column[None, :]) * lanes + lane[:, None],
                    mask=final_mask,
                    other=0,
                )
                final = tick // ring.window % ring.finals * lanes + lane
                tl.store(ring.final + final[:, None] * ring.width + column[None, :], final_observation, mask=final_mask)
            tl.store(ring.truncated + place, truncated, mask=first)
        tl.store(ring.action + place, tl.load(source.action + offset, mask=first, other=0), mask=first)
        tl.store(ring.reward + place, tl.load(source.reward + offset, mask=first, other=0.0), mask=first)
        tl.store(ring.terminated + place, tl.load(source.terminated + offset, mask=first, other=0), mask=first)


@triton.jit(do_not_specialize=["t"])
def store_tick(
    source,
    ring,
    staging_ptr,
    t,
    OBSERVATION: tl.constexpr,
    STORES: tl.constexpr,
    DQN: tl.constexpr,
    ACTIONS: tl.constexpr,
    STORE_LANES: tl.constexpr,
    STORE_COLUMNS: tl.constexpr,
    STAGED: tl.constexpr,
):
    """Store tick t of the iteration in the replay ring. Grid: (cdiv(N, STORE_LANES) x cdiv(O, STORE_COLUMNS),).

    | parameter   | shape    | meaning                                                                              |
    |-------------|----------|--------------------------------------------------------------------------------------|
    | source      | struct   | `TickBuffers`                                                                        |
    | ring        | struct   | `RingBuffers`                                                                        |
    | staging_ptr | (N, P)   | with STAGED the observation's destination, from where `move_tick` copies it          |
    | t           | scalar   | tick of the iteration                                                                |
    | OBSERVATION | constant | O                                                                                    |
    | STORES      | constant | 1: transition of tick t; 2: observation and legal actions before tick t + 1; 0: both |
    | ACTIONS     | constant | a power of two, at least A; 0 where all actions are legal                            |
    """
    _store(
        tl.program_id(0),
        source,
        ring,
        staging_ptr,
        t,
        OBSERVATION,
        STORES,
        DQN,
        ACTIONS,
        STORE_LANES,
        STORE_COLUMNS,
        STAGED,
    )


@triton.jit(do_not_specialize=["t"])
def move_tick(staging_ptr, observation_ptr, ticks_ptr, t, capacity, size, BLOCK_SIZE: tl.constexpr):
    """Copy a staged observation of `size` 8-byte words to the row of tick t + 1 in a ring in host memory. Grid:
    (cdiv(size, BLOCK_SIZE),): writes cross the bus in whole lines.
    """
    word = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    row = (tl.load(ticks_ptr) + t + 1) % capacity
    tl.store(
        observation_ptr + row * size + word, tl.load(staging_ptr + word, mask=word < size, other=0), mask=word < size
    )
