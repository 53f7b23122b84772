"""The Triton kernels that run SAC's networks over a batch: `evaluate` and `improve`. They step nothing.

`evaluate` has a program a tile of samples and a part: each target's value of the next observation, each critic's value and its gradients, and the actor's
action. A critic has one output, so the gradients of its layers are those of its value, times the error of each sample, which may come later: programs of all
parts run side by side.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.algos.sac.fused.networks import (
    is_action,
    load_policy_head,
    load_trunk,
    load_value_head,
    normal,
    policy_of,
    run_trunk,
    squashed,
    times_transposed_at,
    value_gradients,
    value_of,
)
from operant.algos.sac.fused.steps import count_step
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
def _next_value(batch, actor, target, work, row, tower, SPEC: tl.constexpr):
    """A target's value of the next observation and an action that the actor draws there, and that action's log-probability."""
    ACTOR: tl.constexpr = SPEC.actor
    CRITIC: tl.constexpr = SPEC.critic
    x = _load_tile(batch.next, row, SPEC)
    noise = normal(batch.noise, row, 0, SPEC.batch, is_action(SPEC), SPEC)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    policy_head = load_policy_head(actor.single, actor.packed, SPEC, ACTOR)
    single, packed = target.single + tower * SPEC.critic.single, target.packed + tower * SPEC.critic.packed
    target_trunk = load_trunk(single, packed, SPEC, CRITIC)
    head = load_value_head(single, CRITIC)
    mean, raw = policy_of(run_trunk(x, trunk, SPEC, ACTOR)[-1], policy_head, SPEC)
    action, log_p, _spread, _slope = squashed(mean, raw, noise, SPEC)
    hidden = run_trunk(tl.where(is_action(SPEC), action, x), target_trunk, SPEC, CRITIC)
    tl.store(work.next_value + tower * SPEC.batch + row, value_of(hidden[-1], head))
    if tower == 0:
        tl.store(work.next_log_p + row, log_p)


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
    """An action that the actor draws for each observation of the batch, and what its gradient needs."""
    ACTOR: tl.constexpr = SPEC.actor
    x = _load_tile(batch.seen, row, SPEC)
    noise = normal(batch.noise, row, 2 * SPEC.action, SPEC.batch, is_action(SPEC), SPEC)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    policy_head = load_policy_head(actor.single, actor.packed, SPEC, ACTOR)
    hidden = run_trunk(x, trunk, SPEC, ACTOR)
    mean, raw = policy_of(hidden[-1], policy_head, SPEC)
    action, log_p, spread, slope = squashed(mean, raw, noise, SPEC)
    _store_tile(work.action, row, action, SPEC)
    _store_tile(work.spread, row, spread, SPEC)
    _store_tile(work.slope, row, slope, SPEC)
    tl.store(work.log_p + row, log_p)
    _store_layers(actor_layers, row, hidden, (), 0, SPEC, ACTOR)


@triton.jit(do_not_specialize=["numbers"])
def evaluate(
    batch, actor, critic, target, work, actor_layers, critic_layers, critic_update, actor_update, temperature, stored, numbers,
    SPEC: tl.constexpr, DRAW: tl.constexpr, STORE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """All that an update needs of the networks as they are: program 0 is a tile of samples, 1 the part. With STORE a last part stores a tick beside that."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    if part < SPEC.critic.towers:
        _next_value(batch, actor, target, work, row, part, SPEC)
    elif part < 2 * SPEC.critic.towers:
        _value(batch, critic, work, critic_layers, row, part - SPEC.critic.towers, SPEC)
    elif part > 2 * SPEC.critic.towers:
        if STORE:
            store_tick(tl.program_id(0), tl.num_programs(0), stored, numbers, DRAW, ROWS)
    else:
        _action(batch, actor, work, actor_layers, row, SPEC)
        if tl.program_id(0) == 0:
            count_step(critic_update)
            count_step(actor_update)
            if SPEC.automatic:
                count_step(temperature)


@triton.jit
def judge(batch, critic, work, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """Each critic's value of the actor's action, and its gradient in that; program 0 is a tile of samples, 1 the critic."""
    CRITIC: tl.constexpr = SPEC.critic
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tower = tl.program_id(1)
    x = tl.where(is_action(SPEC), _load_tile(work.action, row, SPEC), _load_tile(batch.seen, row, SPEC))
    single, packed = critic.single + tower * SPEC.critic.single, critic.packed + tower * SPEC.critic.packed
    trunk = load_trunk(single, packed, SPEC, CRITIC)
    head = load_value_head(single, CRITIC)
    L: tl.constexpr = CRITIC.layers[0]
    first = tl.load(single + L.packed + tl.arange(0, L.rows_pad)[:, None] * L.columns_pad + tl.arange(0, L.columns_pad)[None, :])
    hidden = run_trunk(x, trunk, SPEC, CRITIC)
    tl.store(work.policy_value + tower * SPEC.batch + row, value_of(hidden[-1], head))
    gradients = value_gradients(hidden, trunk, head, SPEC, CRITIC)
    slope = product(operand(gradients[0], SPEC), operand(first, SPEC), SPEC)
    _store_tile(work.value_slope + tower * SPEC.batch * SPEC.columns, row, slope, SPEC)


@triton.jit
def improve(actor, work, actor_layers, temperature, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """The gradients of the actor's loss, mean of alpha log pi - min Q, in the sums of its layers; a program a tile of samples."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    action = _load_tile(work.action, row, SPEC)
    spread = _load_tile(work.spread, row, SPEC)
    slope = _load_tile(work.slope, row, SPEC)
    alpha = tl.exp(tl.load(temperature.log))
    value = tl.load(work.policy_value + row)
    d_action = _load_tile(work.value_slope, row, SPEC)
    for k in tl.static_range(SPEC.critic.towers - 1):
        other = tl.load(work.policy_value + (k + 1) * SPEC.batch + row)
        d_other = _load_tile(work.value_slope + (k + 1) * SPEC.batch * SPEC.columns, row, SPEC)
        d_action = tl.where((other < value)[:, None], d_other, d_action)
        value = tl.minimum(value, other)

    # d log pi / du = 2 a, and of log std -1.
    mask = is_action(SPEC)
    d_mean = tl.where(mask, (alpha * 2.0 * action - d_action * (1.0 - action * action)) / SPEC.batch, 0.0)
    d_raw = tl.where(mask, (d_mean * spread - alpha / SPEC.batch) * slope, 0.0)

    # Backward through the actor.
    NET: tl.constexpr = SPEC.actor
    H: tl.constexpr = NET.layers[-1]
    place = actor_layers.gradient + H.gradient + row[:, None] * H.rows_pad + tl.arange(0, SPEC.columns)[None, :]
    d_mean, d_raw = operand(d_mean, SPEC), operand(d_raw, SPEC)
    tl.store(place, d_mean)
    tl.store(place + SPEC.columns, d_raw)
    head = actor.packed + H.packed + tl.arange(0, SPEC.columns)[:, None] * H.columns_pad + tl.arange(0, H.columns_pad)[None, :]
    g = product(d_mean, tl.load(head), SPEC) + product(d_raw, tl.load(head + SPEC.columns * H.columns_pad), SPEC)
    for k in tl.static_range(len(NET.layers) - 2, -1, -1):
        unit = row[:, None] * NET.layers[k].rows_pad + tl.arange(0, NET.layers[k].rows_pad)[None, :]
        saved = tl.load(actor_layers.hidden + NET.layers[k + 1].source + unit)
        g = operand(g * activation_gradient(saved, SPEC), SPEC)
        tl.store(actor_layers.gradient + NET.layers[k].gradient + unit, g)
        if k > 0:
            g = times_transposed_at(g, actor.packed + NET.layers[k].packed, NET.layers[k].rows_pad, NET.layers[k].columns_pad, SPEC)
