"""Triton kernels of the passes over narrow networks: `evaluate`, `action_gradient` and `actor_gradient`.

`evaluate` runs all networks on a batch at once: target critics at the next observations, critics with their gradients,
and the actor's actions. A critic has one output, so its layers' gradients are those of Q, scaled later by each sample's
TD error; hence no part waits for another. No kernel here steps a parameter.

Common parameters, structs as in `evaluate`'s table: `row` (rows): samples of the tile; `tower`: index of the critic;
`SPEC`: `NarrowSpec`; `NET`: `Net`; `BLOCK_M`: samples of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.gaussian import clip, is_action, normal, squashed_gaussian
from operant.kernels.actor_critic.narrow.network import (
    deterministic_action,
    forward_trunk,
    gaussian_outputs,
    load_gaussian_head,
    load_mean_head,
    load_trunk,
    load_value_head,
    matmul_ptr,
    q_backward,
    q_value,
)
from operant.kernels.actor_critic.optimizer import SCALAR, count_step
from operant.kernels.ops.activation import activation_gradient
from operant.kernels.ops.linear import operand, product
from operant.kernels.ops.replay import store_tick


@triton.jit
def _load_tile(base_ptr, row, SPEC: tl.constexpr):
    """Load rows `row` of a tensor (B, columns), as a tile."""
    return tl.load(base_ptr + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :])


@triton.jit
def _store_tile(base_ptr, row, x, SPEC: tl.constexpr):
    """Store a tile x to rows `row` of a tensor (B, columns)."""
    tl.store(base_ptr + row[:, None] * SPEC.columns + tl.arange(0, SPEC.columns)[None, :], x)


@triton.jit
def _save_layers(layers, row, hidden, gradients, tower, SPEC: tl.constexpr, NET: tl.constexpr):
    """Save each hidden layer's activations and, if `gradients` is not empty, the gradients of its pre-activations, as
    operands in `layers`, a `SavedLayers`.
    """
    for k in tl.static_range(len(NET.layers) - 1):
        unit = tl.arange(0, NET.layers[k].rows_pad)[None, :]
        offset = (tower * SPEC.batch + row)[:, None] * NET.layers[k].rows_pad + unit
        tl.store(layers.hidden + NET.layers[k + 1].source + offset, operand(hidden[k], SPEC))
        if len(gradients) > 0:
            tl.store(layers.grad_z + NET.layers[k].grad_z + offset, operand(gradients[k], SPEC))


# EVALUATE


@triton.jit
def _next_action(batch, actor, scratch, critic_optimizer, x, row, SPEC: tl.constexpr):
    """Return the action at the next observation, (rows, columns), zero outside its columns: SAC samples it from the
    actor, TD3 adds clipped noise to the target actor's action (Fujimoto, van Hoof & Meger 2018). x: the actor's input.
    """
    ACTOR: tl.constexpr = SPEC.actor
    noise = normal(batch.noise, row, 0, SPEC.batch, is_action(SPEC), SPEC)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    if SPEC.stochastic:
        gaussian_head = load_gaussian_head(actor.single, actor.packed, SPEC, ACTOR)
        mean, raw = gaussian_outputs(forward_trunk(x, trunk, SPEC, ACTOR)[-1], gaussian_head, SPEC)
        action, log_prob, _std_noise, _log_std_grad = squashed_gaussian(mean, raw, noise, SPEC)
        tl.store(scratch.next_log_prob + row, log_prob)  # the programs of all critics store the same values
    else:
        mean_head = load_mean_head(actor.single, actor.packed, SPEC, ACTOR)
        noise = clip(
            tl.load(critic_optimizer.scalars + SCALAR.noise_std) * noise,
            tl.load(critic_optimizer.scalars + SCALAR.noise_clip),
        )
        action = clip(deterministic_action(forward_trunk(x, trunk, SPEC, ACTOR)[-1], mean_head, SPEC) + noise, 1.0)
    return tl.where(is_action(SPEC), action, 0.0)


@triton.jit
def _evaluate_target(batch, actor, target, scratch, critic_optimizer, row, tower, SPEC: tl.constexpr):
    """Write Q' of target critic number `tower` at the next observation and action, to `scratch.next_q`."""
    CRITIC: tl.constexpr = SPEC.critic
    x = _load_tile(batch.next_inputs, row, SPEC)
    single_ptr, packed_ptr = target.single + tower * SPEC.critic.single, target.packed + tower * SPEC.critic.packed
    trunk = load_trunk(single_ptr, packed_ptr, SPEC, CRITIC)
    head = load_value_head(single_ptr, CRITIC)
    action = _next_action(batch, actor, scratch, critic_optimizer, x, row, SPEC)
    hidden = forward_trunk(tl.where(is_action(SPEC), action, x), trunk, SPEC, CRITIC)
    tl.store(scratch.next_q + tower * SPEC.batch + row, q_value(hidden[-1], head))


@triton.jit
def _evaluate_critic(batch, critic, scratch, layers, row, tower, SPEC: tl.constexpr):
    """Write Q of critic number `tower` on the batch, its activations, and the gradients of Q in its pre-activations."""
    CRITIC: tl.constexpr = SPEC.critic
    x = _load_tile(batch.inputs, row, SPEC)
    single_ptr, packed_ptr = critic.single + tower * SPEC.critic.single, critic.packed + tower * SPEC.critic.packed
    trunk = load_trunk(single_ptr, packed_ptr, SPEC, CRITIC)
    head = load_value_head(single_ptr, CRITIC)
    hidden = forward_trunk(x, trunk, SPEC, CRITIC)
    tl.store(scratch.q + tower * SPEC.batch + row, q_value(hidden[-1], head))
    _save_layers(layers, row, hidden, q_backward(hidden, trunk, head, SPEC, CRITIC), tower, SPEC, CRITIC)


@triton.jit
def _evaluate_actor(batch, actor, scratch, layers, row, SPEC: tl.constexpr):
    """Write the actor's actions at the batch's observations, and the tensors that its backward pass reads."""
    ACTOR: tl.constexpr = SPEC.actor
    x = _load_tile(batch.inputs, row, SPEC)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    if SPEC.stochastic:
        noise = normal(batch.noise, row, 2 * SPEC.action, SPEC.batch, is_action(SPEC), SPEC)
        gaussian_head = load_gaussian_head(actor.single, actor.packed, SPEC, ACTOR)
        hidden = forward_trunk(x, trunk, SPEC, ACTOR)
        mean, raw = gaussian_outputs(hidden[-1], gaussian_head, SPEC)
        action, log_prob, std_noise, log_std_grad = squashed_gaussian(mean, raw, noise, SPEC)
        _store_tile(scratch.std_noise, row, std_noise, SPEC)
        _store_tile(scratch.log_std_grad, row, log_std_grad, SPEC)
        tl.store(scratch.log_prob + row, log_prob)
    else:
        mean_head = load_mean_head(actor.single, actor.packed, SPEC, ACTOR)
        hidden = forward_trunk(x, trunk, SPEC, ACTOR)
        action = deterministic_action(hidden[-1], mean_head, SPEC)
    _store_tile(scratch.action, row, action, SPEC)
    _save_layers(layers, row, hidden, (), 0, SPEC, ACTOR)


@triton.jit(do_not_specialize=["arguments"])
def evaluate(
    batch,
    actor,
    next_actor,
    critic,
    target,
    scratch,
    actor_layers,
    critic_layers,
    critic_optimizer,
    actor_optimizer,
    temperature,
    replay,
    arguments,
    SPEC: tl.constexpr,
    REPLAY: tl.constexpr,
    UPDATE_ACTOR: tl.constexpr,
    STORE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Run all networks on a batch. Grid: (B / BLOCK_M, parts); parts: G target critics, G critics, the actor with the
    step counters and, with STORE, the storing of the deferred tick.

    | parameter         | shape  | meaning                                                             |
    |-------------------|--------|---------------------------------------------------------------------|
    | batch             | struct | `BatchBuffers`                                                      |
    | actor, critic     | struct | `PackedWeights`                                                     |
    | next_actor        | struct | `PackedWeights` of the actor at next observations (TD3: its target) |
    | target            | struct | `PackedWeights` of the target critics                               |
    | scratch           | struct | `Scratch`, written                                                  |
    | *_layers          | struct | `SavedLayers`, written                                              |
    | *_optimizer       | struct | `OptimizerState`; step counters and corrections are written         |
    | temperature       | struct | `Temperature`; likewise                                             |
    | replay, arguments | struct | `ReplayBuffers` and `BatchArguments` of the tick to store           |

    UPDATE_ACTOR: the actor learns in this update.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = tl.program_id(1)
    if part < SPEC.critic.towers:
        _evaluate_target(batch, next_actor, target, scratch, critic_optimizer, row, part, SPEC)
    elif part < 2 * SPEC.critic.towers:
        _evaluate_critic(batch, critic, scratch, critic_layers, row, part - SPEC.critic.towers, SPEC)
    elif part > 2 * SPEC.critic.towers:
        if STORE:
            store_tick(tl.program_id(0), tl.num_programs(0), replay, arguments, REPLAY, BLOCK_M)
    else:
        if UPDATE_ACTOR:
            _evaluate_actor(batch, actor, scratch, actor_layers, row, SPEC)
        if tl.program_id(0) == 0:
            count_step(critic_optimizer)
            if UPDATE_ACTOR:
                count_step(actor_optimizer)
            if SPEC.automatic:
                count_step(temperature)


# ACTOR


@triton.jit
def action_gradient(batch, critic, scratch, SPEC: tl.constexpr, BLOCK_M: tl.constexpr):
    """Write Q of each critic at the actor's action, and dQ / da. Grid: (B / BLOCK_M, critics).

    | parameter | shape  | meaning                                              |
    |-----------|--------|------------------------------------------------------|
    | batch     | struct | `BatchBuffers`                                       |
    | critic    | struct | `PackedWeights`                                      |
    | scratch   | struct | `Scratch`: action in; `actor_q` and `q_gradient` out |
    """
    CRITIC: tl.constexpr = SPEC.critic
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tower = tl.program_id(1)
    x = tl.where(is_action(SPEC), _load_tile(scratch.action, row, SPEC), _load_tile(batch.inputs, row, SPEC))
    single_ptr, packed_ptr = critic.single + tower * SPEC.critic.single, critic.packed + tower * SPEC.critic.packed
    trunk = load_trunk(single_ptr, packed_ptr, SPEC, CRITIC)
    head = load_value_head(single_ptr, CRITIC)
    FIRST: tl.constexpr = CRITIC.layers[0]
    first = tl.load(
        single_ptr
        + FIRST.packed
        + tl.arange(0, FIRST.rows_pad)[:, None] * FIRST.columns_pad
        + tl.arange(0, FIRST.columns_pad)[None, :]
    )
    hidden = forward_trunk(x, trunk, SPEC, CRITIC)
    tl.store(scratch.actor_q + tower * SPEC.batch + row, q_value(hidden[-1], head))
    gradients = q_backward(hidden, trunk, head, SPEC, CRITIC)
    q_gradient = product(operand(gradients[0], SPEC), operand(first, SPEC), SPEC)
    _store_tile(scratch.q_gradient + tower * SPEC.batch * SPEC.columns, row, q_gradient, SPEC)


@triton.jit
def _min_q_gradient(scratch, row, SPEC: tl.constexpr):
    """Return d min_c Q_c / da, (rows, columns): the gradient of the critic whose Q is lowest for a sample."""
    q = tl.load(scratch.actor_q + row)
    gradient = _load_tile(scratch.q_gradient, row, SPEC)
    for k in tl.static_range(SPEC.critic.towers - 1):
        other_q = tl.load(scratch.actor_q + (k + 1) * SPEC.batch + row)
        other_gradient = _load_tile(scratch.q_gradient + (k + 1) * SPEC.batch * SPEC.columns, row, SPEC)
        gradient = tl.where((other_q < q)[:, None], other_gradient, gradient)
        q = tl.minimum(q, other_q)
    return gradient


@triton.jit
def actor_gradient(actor, scratch, layers, temperature, SPEC: tl.constexpr, BLOCK_M: tl.constexpr):
    """Write the gradients of the actor's loss in its pre-activations. Grid: (B / BLOCK_M,).

    The loss is E[alpha log pi - min_c Q_c] for SAC, and E[-Q_1] for TD3.

    | parameter   | shape  | meaning                                           |
    |-------------|--------|---------------------------------------------------|
    | actor       | struct | `PackedWeights`                                   |
    | scratch     | struct | `Scratch` of `evaluate` and `action_gradient`     |
    | layers      | struct | `SavedLayers` of the actor: hidden in, grad_z out |
    | temperature | struct | `Temperature`                                     |
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    action = _load_tile(scratch.action, row, SPEC)
    mask = is_action(SPEC)
    NET: tl.constexpr = SPEC.actor
    HEAD: tl.constexpr = NET.layers[-1]
    grad_ptr = layers.grad_z + HEAD.grad_z + row[:, None] * HEAD.rows_pad + tl.arange(0, SPEC.columns)[None, :]
    weight_ptr = (
        actor.packed
        + HEAD.packed
        + tl.arange(0, SPEC.columns)[:, None] * HEAD.columns_pad
        + tl.arange(0, HEAD.columns_pad)[None, :]
    )
    if SPEC.stochastic:
        # u = mean + std noise, a = tanh(u): d log pi / du = 2 a, d log pi / d log std = -1 besides
        alpha = tl.exp(tl.load(temperature.log_alpha))
        log_std_grad = _load_tile(scratch.log_std_grad, row, SPEC)
        grad_mean = tl.where(
            mask,
            (alpha * 2.0 * action - _min_q_gradient(scratch, row, SPEC) * (1.0 - action * action)) / SPEC.batch,
            0.0,
        )
        grad_raw = operand(
            tl.where(
                mask,
                (grad_mean * _load_tile(scratch.std_noise, row, SPEC) - alpha / SPEC.batch) * log_std_grad,
                0.0,
            ),
            SPEC,
        )
        grad_mean = operand(grad_mean, SPEC)
        tl.store(grad_ptr + SPEC.columns, grad_raw)
        g = product(grad_mean, tl.load(weight_ptr), SPEC) + product(
            grad_raw, tl.load(weight_ptr + SPEC.columns * HEAD.columns_pad), SPEC
        )
    else:
        grad_mean = operand(
            tl.where(mask, -_load_tile(scratch.q_gradient, row, SPEC) * (1.0 - action * action) / SPEC.batch, 0.0),
            SPEC,
        )
        g = product(grad_mean, tl.load(weight_ptr), SPEC)
    tl.store(grad_ptr, grad_mean)

    # Backward through the hidden layers.
    for k in tl.static_range(len(NET.layers) - 2, -1, -1):
        offset = row[:, None] * NET.layers[k].rows_pad + tl.arange(0, NET.layers[k].rows_pad)[None, :]
        h = tl.load(layers.hidden + NET.layers[k + 1].source + offset)
        g = operand(g * activation_gradient(h, SPEC), SPEC)
        tl.store(layers.grad_z + NET.layers[k].grad_z + offset, g)
        if k > 0:
            g = matmul_ptr(
                g, actor.packed + NET.layers[k].packed, NET.layers[k].rows_pad, NET.layers[k].columns_pad, SPEC
            )
