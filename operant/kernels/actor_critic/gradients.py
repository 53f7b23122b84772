"""The Triton kernels that run actors and critics over a batch: `evaluate`, `judge` and `improve`. They step nothing.

`evaluate` has a program a tile of samples and a part: each target's value of the next observation, each critic's value
and its gradients, and the actor's action. A critic has one output, so the gradients of its layers are those of its
value, times the error of each sample, which may come later: programs of all parts run side by side.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.networks import (
    clipped,
    is_action,
    load_mean_head,
    load_policy_head,
    load_trunk,
    load_value_head,
    mean_of,
    normal,
    policy_of,
    run_trunk,
    squashed,
    times_transposed_at,
    value_gradients,
    value_of,
)
from operant.kernels.actor_critic.steps import count_step
from operant.kernels.blocks import activation_gradient, operand, product
from operant.kernels.replay import store_tick


@triton.jit
def _load_tile(start, row, SPEC: tl.constexpr):
    return tl.load(start + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :])


@triton.jit
def _store_tile(start, row, x, SPEC: tl.constexpr):
    tl.store(start + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :], x)


@triton.jit
def _store_layers(layers, row, hidden, gradients, tower, SPEC: tl.constexpr, NET: tl.constexpr):
    """Activations of each hidden layer, as the next one reads them, and the gradients of its sums."""
    for k in tl.static_range(len(NET.layers) - 1):
        unit = tl.arange(0, NET.layers[k].rows_pad)[None, :]
        place = (tower * SPEC.batch + row)[:, None] * NET.layers[k].rows_pad + unit
        tl.store(layers.hidden + NET.layers[k + 1].source + place, operand(hidden[k], SPEC))
        if len(gradients) > 0:
            tl.store(layers.gradient + NET.layers[k].gradient + place, operand(gradients[k], SPEC))


@triton.jit
def _next_action(batch, actor, work, critic_update, x, row, SPEC: tl.constexpr):
    """An action at the next observation, drawn by the actor; or the target actor's, with clipped noise (Fujimoto, van
    Hoof & Meger 2018). Zero elsewhere.
    """
    ACTOR: tl.constexpr = SPEC.actor
    noise = normal(batch.noise, row, 0, SPEC.batch, is_action(SPEC), SPEC)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    if SPEC.stochastic:
        policy_head = load_policy_head(actor.single, actor.packed, SPEC, ACTOR)
        mean, raw = policy_of(run_trunk(x, trunk, SPEC, ACTOR)[-1], policy_head, SPEC)
        action, log_p, _spread, _slope = squashed(mean, raw, noise, SPEC)
        tl.store(work.next_log_p + row, log_p)  # each critic's program the same
    else:
        mean_head = load_mean_head(actor.single, actor.packed, SPEC, ACTOR)
        error = clipped(tl.load(critic_update.scalars + 3) * noise, tl.load(critic_update.scalars + 4))
        action = clipped(mean_of(run_trunk(x, trunk, SPEC, ACTOR)[-1], mean_head, SPEC) + error, 1.0)
    return tl.where(is_action(SPEC), action, 0.0)


@triton.jit
def _next_value(batch, actor, target, work, critic_update, row, tower, SPEC: tl.constexpr):
    """A target's value of the next observation and an action there."""
    CRITIC: tl.constexpr = SPEC.critic
    x = _load_tile(batch.next, row, SPEC)
    single, packed = target.single + tower * SPEC.critic.single, target.packed + tower * SPEC.critic.packed
    trunk = load_trunk(single, packed, SPEC, CRITIC)
    head = load_value_head(single, CRITIC)
    action = _next_action(batch, actor, work, critic_update, x, row, SPEC)
    hidden = run_trunk(tl.where(is_action(SPEC), action, x), trunk, SPEC, CRITIC)
    tl.store(work.next_value + tower * SPEC.batch + row, value_of(hidden[-1], head))


@triton.jit
def _value(batch, critic, work, layers, row, tower, SPEC: tl.constexpr):
    """A critic's value of the batch, its activations, and its gradients in them."""
    CRITIC: tl.constexpr = SPEC.critic
    x = _load_tile(batch.seen, row, SPEC)
    single, packed = critic.single + tower * SPEC.critic.single, critic.packed + tower * SPEC.critic.packed
    trunk = load_trunk(single, packed, SPEC, CRITIC)
    head = load_value_head(single, CRITIC)
    hidden = run_trunk(x, trunk, SPEC, CRITIC)
    tl.store(work.value + tower * SPEC.batch + row, value_of(hidden[-1], head))
    _store_layers(layers, row, hidden, value_gradients(hidden, trunk, head, SPEC, CRITIC), tower, SPEC, CRITIC)


@triton.jit
def _action(batch, actor, work, actor_layers, row, SPEC: tl.constexpr):
    """The actor's action for each observation of the batch, and what its gradient needs."""
    ACTOR: tl.constexpr = SPEC.actor
    x = _load_tile(batch.seen, row, SPEC)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    if SPEC.stochastic:
        noise = normal(batch.noise, row, 2 * SPEC.action, SPEC.batch, is_action(SPEC), SPEC)
        policy_head = load_policy_head(actor.single, actor.packed, SPEC, ACTOR)
        hidden = run_trunk(x, trunk, SPEC, ACTOR)
        mean, raw = policy_of(hidden[-1], policy_head, SPEC)
        action, log_p, spread, slope = squashed(mean, raw, noise, SPEC)
        _store_tile(work.spread, row, spread, SPEC)
        _store_tile(work.slope, row, slope, SPEC)
        tl.store(work.log_p + row, log_p)
    else:
        mean_head = load_mean_head(actor.single, actor.packed, SPEC, ACTOR)
        hidden = run_trunk(x, trunk, SPEC, ACTOR)
        action = mean_of(hidden[-1], mean_head, SPEC)
    _store_tile(work.action, row, action, SPEC)
    _store_layers(actor_layers, row, hidden, (), 0, SPEC, ACTOR)


@triton.jit(do_not_specialize=["numbers"])
def evaluate(
    batch,
    actor,
    next_actor,
    critic,
    target,
    work,
    actor_layers,
    critic_layers,
    critic_update,
    actor_update,
    temperature,
    stored,
    numbers,
    SPEC: tl.constexpr,
    DRAW: tl.constexpr,
    DUE: tl.constexpr,
    STORE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """All that an update needs of the networks as they are: program 0 is a tile of samples, 1 the part. With STORE a
    last part stores a tick beside that.

    `next_actor`: who acts at the next observations. DUE: the actor learns, too.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    if part < SPEC.critic.towers:
        _next_value(batch, next_actor, target, work, critic_update, row, part, SPEC)
    elif part < 2 * SPEC.critic.towers:
        _value(batch, critic, work, critic_layers, row, part - SPEC.critic.towers, SPEC)
    elif part > 2 * SPEC.critic.towers:
        if STORE:
            store_tick(tl.program_id(0), tl.num_programs(0), stored, numbers, DRAW, ROWS)
    else:
        if DUE:
            _action(batch, actor, work, actor_layers, row, SPEC)
        if tl.program_id(0) == 0:
            count_step(critic_update)
            if DUE:
                count_step(actor_update)
            if SPEC.automatic:
                count_step(temperature)


@triton.jit
def judge(batch, critic, work, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """Each critic's value of the actor's action, and its gradient in that; program 0 is a tile of samples, 1 the
    critic.
    """
    CRITIC: tl.constexpr = SPEC.critic
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tower = tl.program_id(1)
    x = tl.where(is_action(SPEC), _load_tile(work.action, row, SPEC), _load_tile(batch.seen, row, SPEC))
    single, packed = critic.single + tower * SPEC.critic.single, critic.packed + tower * SPEC.critic.packed
    trunk = load_trunk(single, packed, SPEC, CRITIC)
    head = load_value_head(single, CRITIC)
    L: tl.constexpr = CRITIC.layers[0]
    first = tl.load(
        single + L.packed + tl.arange(0, L.rows_pad)[:, None] * L.columns_pad + tl.arange(0, L.columns_pad)[None, :]
    )
    hidden = run_trunk(x, trunk, SPEC, CRITIC)
    tl.store(work.policy_value + tower * SPEC.batch + row, value_of(hidden[-1], head))
    gradients = value_gradients(hidden, trunk, head, SPEC, CRITIC)
    slope = product(operand(gradients[0], SPEC), operand(first, SPEC), SPEC)
    _store_tile(work.value_slope + tower * SPEC.batch * SPEC.columns, row, slope, SPEC)


@triton.jit
def _least_slope(work, row, SPEC: tl.constexpr):
    """The gradient in the action of the critic whose value is the least, (rows, columns)."""
    value = tl.load(work.policy_value + row)
    d_action = _load_tile(work.value_slope, row, SPEC)
    for k in tl.static_range(SPEC.critic.towers - 1):
        other = tl.load(work.policy_value + (k + 1) * SPEC.batch + row)
        d_other = _load_tile(work.value_slope + (k + 1) * SPEC.batch * SPEC.columns, row, SPEC)
        d_action = tl.where((other < value)[:, None], d_other, d_action)
        value = tl.minimum(value, other)
    return d_action


@triton.jit
def improve(actor, work, actor_layers, temperature, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """The gradients of the actor's loss in the sums of its layers; a program a tile of samples.

    The loss is the mean of alpha log pi - min Q; or, of an actor that has means alone, of the first critic's -Q.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    action = _load_tile(work.action, row, SPEC)
    mask = is_action(SPEC)
    NET: tl.constexpr = SPEC.actor
    H: tl.constexpr = NET.layers[-1]
    place = actor_layers.gradient + H.gradient + row[:, None] * H.rows_pad + tl.arange(0, SPEC.columns)[None, :]
    head = (
        actor.packed
        + H.packed
        + tl.arange(0, SPEC.columns)[:, None] * H.columns_pad
        + tl.arange(0, H.columns_pad)[None, :]
    )
    if SPEC.stochastic:
        # d log pi / du = 2 a, and of log std -1.
        alpha = tl.exp(tl.load(temperature.log))
        slope = _load_tile(work.slope, row, SPEC)
        d_mean = tl.where(
            mask, (alpha * 2.0 * action - _least_slope(work, row, SPEC) * (1.0 - action * action)) / SPEC.batch, 0.0
        )
        d_raw = operand(
            tl.where(mask, (d_mean * _load_tile(work.spread, row, SPEC) - alpha / SPEC.batch) * slope, 0.0), SPEC
        )
        d_mean = operand(d_mean, SPEC)
        tl.store(place + SPEC.columns, d_raw)
        g = product(d_mean, tl.load(head), SPEC) + product(d_raw, tl.load(head + SPEC.columns * H.columns_pad), SPEC)
    else:
        d_mean = operand(
            tl.where(mask, -_load_tile(work.value_slope, row, SPEC) * (1.0 - action * action) / SPEC.batch, 0.0), SPEC
        )
        g = product(d_mean, tl.load(head), SPEC)
    tl.store(place, d_mean)

    # Backward through the actor.
    for k in tl.static_range(len(NET.layers) - 2, -1, -1):
        unit = row[:, None] * NET.layers[k].rows_pad + tl.arange(0, NET.layers[k].rows_pad)[None, :]
        saved = tl.load(actor_layers.hidden + NET.layers[k + 1].source + unit)
        g = operand(g * activation_gradient(saved, SPEC), SPEC)
        tl.store(actor_layers.gradient + NET.layers[k].gradient + unit, g)
        if k > 0:
            g = times_transposed_at(
                g, actor.packed + NET.layers[k].packed, NET.layers[k].rows_pad, NET.layers[k].columns_pad, SPEC
            )
