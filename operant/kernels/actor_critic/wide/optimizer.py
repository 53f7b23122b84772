"""Triton kernels of the optimizer steps of wide networks: Adam with targets and packed copies, temperature,
statistics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.optimizer import SCALAR, add_statistic, count_step, temperature_step
from operant.kernels.ops.adam import adam


@triton.jit
def count(actor_optimizer, critic_optimizer, temperature, SPEC: tl.constexpr, UPDATE_ACTOR: tl.constexpr):
    """Count the step of the critics' optimizer, of the temperature's if it is learned and, with UPDATE_ACTOR, of the
    actor's. One program. The optimizers are `OptimizerState`s, `temperature` a `Temperature`.
    """
    if UPDATE_ACTOR:
        count_step(actor_optimizer)
    count_step(critic_optimizer)
    if SPEC.automatic:
        count_step(temperature)


@triton.jit
def _store_first_weight(first_ptr, offset, x, mask, SPEC: tl.constexpr, NET: tl.constexpr):
    """Store those parameters `x` (at `offset` of a flat vector) that belong to the first weight into its copy with
    padded columns, `first_ptr` (towers, width, columns).
    """
    INPUTS: tl.constexpr = NET.layers[0].inputs
    index = offset - NET.layers[0].weight
    first_mask = mask & (index >= 0) & (index < NET.towers * NET.layers[0].width * INPUTS)
    tl.store(first_ptr + index // INPUTS * SPEC.columns + index % INPUTS, x, mask=first_mask)


@triton.jit
def _store_split_head(head_ptr, offset, x, mask, SPEC: tl.constexpr, NET: tl.constexpr):
    """Store those parameters `x` (at `offset` of a flat vector) that belong to the output layer's weight as the sum of
    two operands, `head_ptr` (towers, 2 atoms, width): rounded value and rest.
    """
    SIZE: tl.constexpr = NET.outputs * NET.layers[-1].width
    index = offset - NET.head_weight
    head_mask = mask & (index >= 0) & (index < NET.towers * SIZE)
    rounded, split_ptr = (
        x.to(head_ptr.dtype.element_ty),
        head_ptr + index // SIZE * (2 * SPEC.atoms * NET.layers[-1].width) + index % SIZE,
    )
    tl.store(split_ptr, rounded, mask=head_mask)
    tl.store(split_ptr + SPEC.atoms * NET.layers[-1].width, x - rounded.to(tl.float32), mask=head_mask)


@triton.jit
def step(
    parameters,
    gradient_ptr,
    target_ptr,
    packed_ptr,
    target_packed_ptr,
    first_ptr,
    target_first_ptr,
    head_ptr,
    target_head_ptr,
    optimizer,
    squares_ptr,
    size,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    TARGET: tl.constexpr,
    SPLIT_HEAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Take one step of Adam of a network, and of its target's Polyak averaging. Grid: (cdiv(P, BLOCK_SIZE),).

    | parameter    | shape                    | meaning                                      |
    |--------------|--------------------------|----------------------------------------------|
    | parameters   | struct                   | `Parameters`, updated                        |
    | gradient_ptr | (P)                      | gradient of the loss                         |
    | target_ptr   | (P)                      | target's parameters, updated with TARGET     |
    | packed_ptr   | (P)                      | copy of the parameters in the products' type |
    | first_ptr    | (towers, width, columns) | copy of the first weight with padded columns |
    | head_ptr     | (towers, 2 atoms, width) | head as two operands, with SPLIT_HEAD        |
    | target_*_ptr |                          | the same copies of the target                |
    | optimizer    | struct                   | `OptimizerState`                             |
    | squares_ptr  | (programs)               | written: sums of squares of the gradient     |
    | size         | scalar                   | P                                            |
    """
    program = tl.program_id(0)
    offset = program * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offset < size
    skipped = tl.load(optimizer.skip)
    counted = skipped < 0.5
    step_size = tl.load(optimizer.learning_rate) / tl.load(optimizer.corrections)
    root_correction = tl.load(optimizer.corrections + 1)
    epsilon, tau = tl.load(optimizer.scalars + SCALAR.epsilon), tl.load(optimizer.scalars + SCALAR.tau)
    grad = tl.load(gradient_ptr + offset, mask=mask, other=0.0)
    x = tl.load(parameters.vector + offset, mask=mask, other=0.0)
    x_target = x
    if TARGET:  # loaded before the first store, which later loads would wait for
        x_target = tl.load(target_ptr + offset, mask=mask, other=0.0)
    m = tl.load(parameters.exp_avg + offset, mask=mask, other=0.0)
    v = tl.load(parameters.exp_avg_sq + offset, mask=mask, other=0.0)
    stepped, m, v = adam(x, grad, m, v, step_size, root_correction, epsilon)
    write = mask & (skipped + tl.zeros_like(x) < 0.5)
    x = tl.where(counted, stepped, x)
    tl.store(parameters.exp_avg + offset, m, mask=write)
    tl.store(parameters.exp_avg_sq + offset, v, mask=write)
    tl.store(parameters.vector + offset, x, mask=write)
    tl.store(packed_ptr + offset, x, mask=mask)
    _store_first_weight(first_ptr, offset, x, mask, SPEC, NET)
    if SPLIT_HEAD:
        _store_split_head(head_ptr, offset, x, mask, SPEC, NET)
    tl.store(squares_ptr + program, tl.sum(grad * grad, axis=0))
    if TARGET:  # x' <- x' + tau (x - x')
        x_target = tl.where(counted, x_target + tau * (x - x_target), x_target)
        tl.store(target_ptr + offset, x_target, mask=mask)
        tl.store(target_packed_ptr + offset, x_target, mask=mask)
        _store_first_weight(target_first_ptr, offset, x_target, mask, SPEC, NET)
        if SPLIT_HEAD:
            _store_split_head(target_head_ptr, offset, x_target, mask, SPEC, NET)


@triton.jit
def _strided_sums(x_ptr, COUNT: tl.constexpr):
    """Return 4,096 sums of `x_ptr` (COUNT): value k is added to sum k mod 4096."""
    index = tl.arange(0, 4096)
    total = tl.zeros((4096,), tl.float32)
    for start in range(0, COUNT, 4096):
        total += tl.load(x_ptr + start + index, mask=start + index < COUNT, other=0.0)
    return total


@triton.jit
def record_gradient_norm(squares_ptr, temperature, blocks, SPEC: tl.constexpr, BLOCKS: tl.constexpr):
    """Add the norm of the critics' gradient to the totals. One program; `squares_ptr` (blocks) as `step` writes it."""
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(tl.sum(tl.load(squares_ptr + block, mask=block < blocks, other=0.0), axis=0))
    add_statistic(temperature.totals + SPEC.stat.gradient_norm, norm, tl.load(temperature.skip) < 0.5)


@triton.jit
def finish(
    critic_terms_ptr,
    actor_terms_ptr,
    temperature,
    optimizer,
    scratch,
    SPEC: tl.constexpr,
    UPDATE_ACTOR: tl.constexpr,
):
    """Add an update's statistics to the totals, except the gradient's norm; then step the temperature (SAC). One
    program.

    | parameter        | shape                 | meaning                                                       |
    |------------------|-----------------------|---------------------------------------------------------------|
    | critic_terms_ptr | (programs, towers, 3) | sums of squared errors (or cross-entropies), |Q - y| and Q    |
    | actor_terms_ptr  | (programs, 2)         | sums of log pi and min Q (SAC), or of saturated actions and Q |
    | temperature      | struct                | `Temperature`                                                 |
    | optimizer        | struct                | `OptimizerState` of the actor                                 |
    | scratch          | struct                | `Scratch`                                                     |

    Without UPDATE_ACTOR log pi is that of the actions at the next observations.
    """
    program = tl.arange(0, SPEC.critic.programs)
    totals_ptr = temperature.totals
    if SPEC.stochastic:
        alpha, counted = tl.exp(tl.load(temperature.log_alpha)), tl.load(temperature.skip) < 0.5
        if UPDATE_ACTOR:
            actor_program = tl.arange(0, SPEC.actor.programs)
            mean_log_prob = tl.sum(tl.load(actor_terms_ptr + 2 * actor_program), axis=0) / SPEC.batch
            mean_q = tl.sum(tl.load(actor_terms_ptr + 2 * actor_program + 1), axis=0) / SPEC.batch
            add_statistic(totals_ptr + SPEC.stat.actor_loss, alpha * mean_log_prob - mean_q, counted)
        else:
            mean_log_prob = tl.sum(_strided_sums(scratch.next_log_prob, SPEC.batch), axis=0) / SPEC.batch
    else:
        counted = tl.load(temperature.skip) < 0.5
        if UPDATE_ACTOR:
            actor_program = tl.arange(0, SPEC.actor.programs)
            saturated = tl.sum(tl.load(actor_terms_ptr + 2 * actor_program), axis=0) / (SPEC.batch * SPEC.action)
            mean_q = tl.sum(tl.load(actor_terms_ptr + 2 * actor_program + 1), axis=0) / SPEC.batch
            add_statistic(totals_ptr + SPEC.stat.actor_loss, -mean_q, counted)
            add_statistic(totals_ptr + SPEC.stat.saturated, saturated, counted)
    squared, absolute, q = 0.0, 0.0, 0.0
    TOWERS: tl.constexpr = SPEC.critic.towers
    for tower in tl.static_range(TOWERS):
        terms_ptr = critic_terms_ptr + (program * SPEC.critic.towers + tower) * 3
        squared += tl.sum(tl.load(terms_ptr), axis=0)
        absolute += tl.sum(tl.load(terms_ptr + 1), axis=0)
        q += tl.sum(tl.load(terms_ptr + 2), axis=0)
    samples = SPEC.critic.towers * SPEC.batch
    add_statistic(totals_ptr + SPEC.stat.critic_loss, squared / SPEC.batch, counted)
    add_statistic(totals_ptr + SPEC.stat.q_mean, q / samples, counted)
    add_statistic(totals_ptr + SPEC.stat.td_error, absolute / samples, counted)
    if SPEC.stochastic:
        add_statistic(totals_ptr + SPEC.stat.entropy, -mean_log_prob, counted)
        if SPEC.automatic:
            temperature_step(temperature, optimizer, -mean_log_prob, counted)
