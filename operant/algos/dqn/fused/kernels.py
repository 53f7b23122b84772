"""DQN's Triton kernels: a tile of sampled transitions to a row of its gradient, the step that follows from all rows,
acting, and storing a tick.

An update is two launches. `act_and_learn` takes the batch a tile a program, through the target network and through the
network and back, and beside that acts: the newest tick is never sampled, so what it does depends on no update of its
own tick. `reduce_and_step` adds the rows up, steps Adam and moves the target network, and beside that stores the tick
that the world has made in between. Knows the layout of `operant.data.replay`; knows no world.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl

from operant.compute import rng
from operant.kernels.backward import TERM_COLUMNS
from operant.kernels.ops.adam import LOG_BETA_1, LOG_BETA_2
from operant.kernels.ops.linear import select_column
from operant.kernels.q_values import all_legal, best, explore
from operant.kernels.single_tile import forward_rows, store_gradient

REPLAY = tl.constexpr(rng.REPLAY << 16)
"""The last word of the counter of a sample's random numbers, at draw 0."""

# SAMPLES


@triton.jit
def choose(index, stored, ring, samples, shards, n_step, BLOCK: tl.constexpr):
    """Samples of every update of an iteration, as `operant.data.replay.choose_body`: program 0 counts parts of a batch,
    1 the updates.

    `stored` (U): how many ticks of the iteration are stored when the update samples.
    """
    update, k = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ticks, number = tl.load(ring.ticks) + tl.load(stored + update), tl.load(ring.updates) + update
    shard_samples, shard_lanes = samples // shards, ring.lanes // shards
    shard = k // shard_samples
    c0 = ((shard << 24) | (k % shard_samples)).to(tl.uint32)
    c1 = (number & 0xFFFFFFFF).to(tl.uint32) + tl.zeros_like(c0)
    c2 = (number >> 32).to(tl.uint32) + tl.zeros_like(c0)
    seed0, seed1 = tl.load(ring.seed).to(tl.uint32, bitcast=True), tl.load(ring.seed + 1).to(tl.uint32, bitcast=True)
    first, second, _c, _d = philox_impl(
        c0, c1, c2, tl.full((BLOCK,), REPLAY, tl.uint32), seed0 + tl.zeros_like(c0), seed1 + tl.zeros_like(c0)
    )
    held = tl.minimum(ticks, ring.capacity)
    choices = tl.maximum(held - n_step, 1)
    tick = ticks - held + ((first.to(tl.int64) * choices) >> 32)
    lane = shard * shard_lanes + ((second.to(tl.int64) * shard_lanes) >> 32)
    tl.store(index + update * samples + k, (tick % ring.capacity * ring.lanes + lane).to(tl.int32), mask=k < samples)


@triton.jit
def load_transitions(index, ring, ticks, gamma, in_bounds, N_STEP: tl.constexpr, ENDS: tl.constexpr):
    """Of samples `index` (row of the ring x N + lane): action, n-step return and discount (rows), pointers to both
    observations, and where the next one lies.

    As `operant.data.replay.returns_body`. `ticks` are stored; with ENDS an episode may be truncated.
    """
    lane, row = index % ring.lanes, index // ring.lanes
    action = tl.load(ring.action + index, mask=in_bounds, other=0)
    total, discount = tl.zeros_like(gamma * row), 1.0 + tl.zeros_like(gamma * row)
    running = in_bounds
    following = index.to(tl.int64)
    for _ in tl.static_range(N_STEP):
        place = row * ring.lanes + lane
        terminated = tl.load(ring.terminated + place, mask=running, other=0) != 0
        total += discount * tl.load(ring.reward + place, mask=running, other=0.0)
        discount = tl.where(running, tl.where(terminated, 0.0, discount * gamma), discount)
        after = (row + 1) % ring.capacity
        following = tl.where(running, (after * ring.lanes + lane).to(tl.int64), following)
        if ENDS:
            truncated = (tl.load(ring.truncated + place, mask=running, other=0) != 0) & running & (terminated == 0)
            # Which tick lies in this row: the newest but so many.
            back = (ticks - 1 - row) % ring.capacity
            final = (ticks - 1 - back) // ring.window % ring.finals * ring.lanes + lane
            following = tl.where(truncated, -1 - final, following)
            running = running & (truncated == 0)
        running = running & (terminated == 0)
        row = after
    rows = ring.observation + index.to(tl.int64) * ring.width
    if ENDS:
        next_rows = tl.where(
            following >= 0, ring.observation + following * ring.width, ring.final + (-1 - following) * ring.width
        )
    else:
        next_rows = ring.observation + following * ring.width
    return action, total, discount, rows, next_rows, following


@triton.jit
def q_values(out, column, ACTIONS: tl.constexpr, DUELLING: tl.constexpr):
    """Q of each action in its column (rows, out_pad), from the head's outputs; columns behind the actions hold
    anything.
    """
    if DUELLING:
        inside = (column < ACTIONS)[None, :]
        mean = tl.sum(tl.where(inside, out, 0.0), axis=1) / ACTIONS
        return out + (select_column(out, column, ACTIONS) - mean)[:, None]
    else:
        return out


@triton.jit
def _next_value(
    next_rows,
    following,
    ring,
    learned,
    target,
    normalizer,
    in_bounds,
    SPEC: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """max_a Q_target(s', a), or where it is double Q_target(s', argmax_a Q(s', a)): (rows)."""
    column = tl.arange(0, SPEC.out_pad)
    legal_mask = all_legal(BLOCK_M, SPEC.out_pad)
    if SPEC.legal:
        mask = (in_bounds & (following >= 0))[:, None] & (column < KIND.actions)[None, :]
        legal_mask = tl.load(ring.legal + following[:, None] * KIND.actions + column[None, :], mask=mask, other=1)
    out, _network, _hidden, _saved = forward_rows(next_rows, 1, target, normalizer, in_bounds, SPEC, BLOCK_M)
    values = q_values(out, column, KIND.actions, KIND.duelling)
    choice, _allowed = best(values, legal_mask, KIND.actions)
    if KIND.double:
        out, _network, _hidden, _saved = forward_rows(next_rows, 1, learned, normalizer, in_bounds, SPEC, BLOCK_M)
        choice, _allowed = best(q_values(out, column, KIND.actions, KIND.duelling), legal_mask, KIND.actions)
    return tl.sum(tl.where(column[None, :] == choice[:, None], values, 0.0), axis=1)


@triton.jit
def learn_tile(
    tile,
    batch,
    update,
    ring,
    ticks,
    learned,
    target,
    normalizer,
    partial,
    width,
    SPEC: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The gradient of a tile of samples, and the loss's terms behind it, into the tile's row of `partial` (tiles,
    width).
    """
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = row < batch.count
    index = tl.load(batch.index + update * batch.count + row, mask=in_bounds, other=0)
    action, reward, discount, rows, next_rows, following = load_transitions(
        index, ring, ticks, batch.gamma, in_bounds, KIND.n_step, KIND.ends
    )
    if KIND.gathered:
        place = row.to(tl.int64) * ring.width
        rows, next_rows = batch.seen + place, batch.after + place
    following_value = _next_value(
        next_rows, following, ring, learned, target, normalizer, in_bounds, SPEC, KIND, BLOCK_M
    )
    # y = r + gamma^n Q'; L = 1/2 (Q(s, a) - y)^2
    column = tl.arange(0, SPEC.out_pad)
    out, network, hidden, saved = forward_rows(rows, 1, learned, normalizer, in_bounds, SPEC, BLOCK_M)
    chosen = tl.where(column[None, :] == action[:, None], 1.0, 0.0)
    value = tl.sum(chosen * q_values(out, column, KIND.actions, KIND.duelling), axis=1)
    error = tl.where(in_bounds, value - (reward + discount * following_value), 0.0)
    scale = 1.0 / batch.count
    gradient = (scale * error)[:, None] * chosen
    if KIND.duelling:
        # dQ_a / dA_j = 1{j = a} - 1 / A, dQ_a / dV = 1
        inside = tl.where(column < KIND.actions, 1.0 / KIND.actions, 0.0)[None, :]
        gradient = (scale * error)[:, None] * (chosen - inside + tl.where(column == KIND.actions, 1.0, 0.0)[None, :])
    partial += tile * width
    store_gradient(partial, gradient, rows, 1, normalizer, in_bounds, network, hidden, saved, SPEC)
    terms = partial + width - TERM_COLUMNS
    tl.store(terms, scale * tl.sum(0.5 * error * error, axis=0))
    tl.store(terms + 1, scale * tl.sum(tl.abs(error), axis=0))
    tl.store(terms + 2, scale * tl.sum(tl.where(in_bounds, value, 0.0), axis=0))


# ACT


@triton.jit
def act_tile(tile, acting, inputs, parameters, t, lanes, SPEC: tl.constexpr, KIND: tl.constexpr, BLOCK_M: tl.constexpr):
    """Epsilon-greedy actions of a tile of lanes at step t, as `operant.nn.exploration.epsilon_greedy`."""
    lane = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = lane < lanes
    column = tl.arange(0, SPEC.out_pad)
    observation = inputs.observation + t * SPEC.observation * lanes + lane  # field-major: (O, N)
    out, _network, _hidden, _saved = forward_rows(
        observation, lanes, parameters, inputs.normalizer, in_bounds, SPEC, BLOCK_M
    )
    legal_mask = all_legal(BLOCK_M, SPEC.out_pad)
    if SPEC.legal:
        mask = in_bounds[:, None] & (column < KIND.actions)[None, :]
        legal_mask = tl.load(
            inputs.legal_mask + (t * KIND.actions + column[None, :]) * lanes + lane[:, None], mask=mask, other=1
        )
    choice, _allowed = best(q_values(out, column, KIND.actions, KIND.duelling), legal_mask, KIND.actions)
    explore(choice, legal_mask, acting, t, lane, in_bounds, lanes, KIND.actions, SPEC.legal)


@triton.jit(do_not_specialize=["t", "update", "tiles"])
def act_and_learn(
    batch,
    ring,
    acting,
    inputs,
    learned,
    target,
    partial,
    width,
    t,
    update,
    lanes,
    tiles,
    SPEC: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ACT_BLOCK_M: tl.constexpr,
):
    """The gradient of batch `update` as rows of partial sums, by the first `tiles` programs; actions of step t by the
    others.
    """
    program = tl.program_id(0)
    if program < tiles:
        ticks = tl.load(ring.ticks) + t + 1
        learn_tile(
            program, batch, update, ring, ticks, learned, target, inputs.normalizer, partial, width, SPEC, KIND, BLOCK_M
        )
    else:
        act_tile(program - tiles, acting, inputs, learned, t, lanes, SPEC, KIND, ACT_BLOCK_M)


# STEP


@triton.jit
def _grid_barrier(arrived, programs):
    """Grid-wide barrier: wait until `programs` programs of this launch have arrived. All of them must be resident on
    the GPU at once.
    """
    tl.debug_barrier()
    number = programs.to(tl.int64)
    goal = (tl.atomic_add(arrived, 1, sem="acq_rel") // number + 1) * number
    while tl.atomic_add(arrived, 0, sem="acquire") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def _one_minus_exp(x):
    """1 - e^x for x <= 0, near 0 by its series: float32 would take the difference of nearly the same numbers, and
    float64 keeps every program waiting.
    """
    series = -x * (
        1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0 * (1.0 + x / 7.0)))))
    )
    return tl.where(x > -0.5, series, 1.0 - tl.exp(x))


@triton.jit
def _count_step(stepping, skipped):
    """Count one step of Adam unless it is skipped, and work out its corrections, as
    `operant.kernels.ops.adam.count_step`.
    """
    step = tl.load(stepping.steps) + (1.0 - skipped)
    tl.store(stepping.steps, step)
    tl.store(stepping.corrections, _one_minus_exp(step * LOG_BETA_1))
    tl.store(stepping.corrections + 1, tl.sqrt(_one_minus_exp(step * LOG_BETA_2)))


@triton.jit
def _reduce(
    program, partial, width, size, stepping, skipped, ROWS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr
):
    """TILE columns of the gradient, from the rows of partial sums, CHUNK at a time; their squares and the loss's terms
    are taken down.
    """
    place = program * TILE + tl.arange(0, TILE)
    sums = tl.zeros((CHUNK, TILE), tl.float32)
    for start in range(0, ROWS, CHUNK):
        row = start + tl.arange(0, CHUNK)
        sums += tl.load(
            partial + row[:, None] * width + place[None, :],
            mask=(row < ROWS)[:, None] & (place < width)[None, :],
            other=0.0,
        )
    total = tl.sum(sums, axis=0)
    g = tl.where(place < size, total, 0.0)
    tl.store(stepping.squares + program, tl.sum(g * g, axis=0))
    term = place - size
    is_term = (term >= 0) & (term < 3)
    counted = tl.load(stepping.totals + term, mask=is_term, other=0.0)
    tl.store(stepping.totals + term, counted + tl.where(skipped > 0.0, 0.0, total), mask=is_term)
    if program == 0:
        _count_step(stepping, skipped)
    return g


@triton.jit
def _step(
    program,
    programs,
    g,
    parameters,
    target,
    size,
    moments,
    stepping,
    skipped,
    share,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Clip the gradient by its norm and step, as `operant.kernels.ops.adam.adam_step`; then move the target network:
    x' <- x' + share (x - x').
    """
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(
        tl.sum(tl.load(stepping.squares + block, mask=block < programs, other=0.0, cache_modifier=".cg"), axis=0)
    )
    g *= tl.minimum(stepping.max_norm / (norm + 1e-6), 1.0)
    place = program * TILE + tl.arange(0, TILE)
    in_bounds = place < tl.where(skipped > 0.0, 0, size)
    m = 0.9 * tl.load(moments.first + place, mask=in_bounds, other=0.0) + (1.0 - 0.9) * g
    v = 0.999 * tl.load(moments.second + place, mask=in_bounds, other=0.0) + (1.0 - 0.999) * g * g
    x = tl.load(parameters + place, mask=in_bounds, other=0.0)
    rate = tl.load(stepping.learning_rate) / tl.load(moments.corrections, cache_modifier=".cg")
    x -= rate * m / (tl.sqrt(v) / tl.load(moments.corrections + 1, cache_modifier=".cg") + stepping.epsilon)
    tl.store(moments.first + place, m, mask=in_bounds)
    tl.store(moments.second + place, v, mask=in_bounds)
    tl.store(parameters + place, x, mask=in_bounds)
    if share > 0.0:
        old = tl.load(target + place, mask=in_bounds, other=0.0)
        tl.store(target + place, old + share * (x - old), mask=in_bounds)
    if (program == 0) & (skipped == 0.0):
        tl.store(stepping.totals + 3, tl.load(stepping.totals + 3) + norm)


@triton.jit(do_not_specialize=["update", "programs", "t"])
def reduce_and_step(
    partial,
    width,
    size,
    gradient,
    parameters,
    target,
    moments,
    stepping,
    ring,
    source,
    update,
    programs,
    t,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
    PART: tl.constexpr,
    OBSERVATION: tl.constexpr,
    WHAT: tl.constexpr,
    KIND: tl.constexpr,
    ACTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """From rows of partial sums to the next parameters, by `programs` programs; the others store tick t.

    PART 0: in one launch, whose programs wait for each other; 1: the gradient alone; 2: the step alone.
    """
    program = tl.program_id(0)
    if program >= programs:
        _store(program - programs, source, ring, partial, t, OBSERVATION, WHAT, KIND, ACTIONS, BLOCK, WIDTH, False)
    else:
        skipped = tl.load(stepping.skip)
        due = (tl.load(ring.updates) + update + 1) % stepping.target_every == 0
        share = tl.where(due, stepping.tau, 0.0)
        place = program * TILE + tl.arange(0, TILE)
        if PART == 2:
            g = tl.load(gradient + place, mask=place < size, other=0.0)
        else:
            g = _reduce(program, partial, width, size, stepping, skipped, ROWS, CHUNK, TILE)
        if PART == 1:
            tl.store(gradient + place, g, mask=place < size)
        if PART == 0:
            _grid_barrier(stepping.arrived, programs)
        if PART != 1:
            _step(program, programs, g, parameters, target, size, moments, stepping, skipped, share, BLOCKS, TILE)


# STORE


@triton.jit
def _store(
    program,
    source,
    ring,
    seen,
    t,
    OBSERVATION: tl.constexpr,
    WHAT: tl.constexpr,
    KIND: tl.constexpr,
    ACTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGED: tl.constexpr,
):
    """Store what came of step t of an iteration (WHAT 1), and what is seen and legal before step t + 1 (2), or both
    (0).

    A program takes BLOCK lanes and WIDTH numbers of an observation. ACTIONS: a power of two that holds them; 0 where
    the environment judges none. STAGED: what is seen goes to `seen` (N, P), from where `move_tick` takes it.
    """
    PARTS: tl.constexpr = (OBSERVATION + WIDTH - 1) // WIDTH
    lane = program // PARTS * BLOCK + tl.arange(0, BLOCK)
    column = program % PARTS * WIDTH + tl.arange(0, WIDTH)
    in_bounds = lane < ring.lanes
    mask = in_bounds[:, None] & (column < OBSERVATION)[None, :]
    first = in_bounds & (program % PARTS == 0)
    lanes, tick = ring.lanes, tl.load(ring.ticks) + t
    if WHAT != 1:
        after = tl.load(
            source.observation + ((t + 1) * OBSERVATION + column[None, :]) * lanes + lane[:, None], mask=mask, other=0
        )
        place = (tick + 1) % ring.capacity * lanes + lane
        if STAGED:
            tl.store(seen + lane[:, None] * ring.width + column[None, :], after, mask=mask)
        else:
            tl.store(ring.observation + place[:, None] * ring.width + column[None, :], after, mask=mask)
        if ACTIONS > 0:
            action = tl.arange(0, ACTIONS)
            judged = first[:, None] & (action < KIND.actions)[None, :]
            legal = tl.load(
                source.legal + ((t + 1) * KIND.actions + action[None, :]) * lanes + lane[:, None], mask=judged, other=0
            )
            tl.store(ring.legal + place[:, None] * KIND.actions + action[None, :], legal, mask=judged)
    if WHAT != 2:
        row, step = tick % ring.capacity * lanes + lane, t * lanes + lane
        if KIND.ends:
            truncated = tl.load(source.truncated + step, mask=in_bounds, other=0)
            if tl.sum(truncated.to(tl.int32), axis=0) > 0:
                seen_last = mask & (truncated != 0)[:, None]
                last = tl.load(
                    source.final_observation + (t * OBSERVATION + column[None, :]) * lanes + lane[:, None],
                    mask=seen_last,
                    other=0,
                )
                final = tick // ring.window % ring.finals * lanes + lane
                tl.store(ring.final + final[:, None] * ring.width + column[None, :], last, mask=seen_last)
            tl.store(ring.truncated + row, truncated, mask=first)
        tl.store(ring.action + row, tl.load(source.action + step, mask=first, other=0), mask=first)
        tl.store(ring.reward + row, tl.load(source.reward + step, mask=first, other=0.0), mask=first)
        tl.store(ring.terminated + row, tl.load(source.terminated + step, mask=first, other=0), mask=first)


@triton.jit(do_not_specialize=["t"])
def store_tick(
    source,
    ring,
    seen,
    t,
    OBSERVATION: tl.constexpr,
    WHAT: tl.constexpr,
    KIND: tl.constexpr,
    ACTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGED: tl.constexpr,
):
    """The same alone."""
    _store(tl.program_id(0), source, ring, seen, t, OBSERVATION, WHAT, KIND, ACTIONS, BLOCK, WIDTH, STAGED)


@triton.jit(do_not_specialize=["t"])
def move_tick(seen, observation, ticks, t, capacity, size, BLOCK: tl.constexpr):
    """Move what is seen before step t + 1, `size` words, to its row of the ring: over the bus in whole lines."""
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = (tl.load(ticks) + t + 1) % capacity
    tl.store(observation + row * size + word, tl.load(seen + word, mask=word < size, other=0), mask=word < size)
