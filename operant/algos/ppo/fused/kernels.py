"""PPO's Triton functions: its loss with a hand-written gradient (`operant.algos.ppo.ppo.ppo_loss`), and the kernels
around an update. They take outputs of a network, whatever the network.

The backward kernels of `operant.kernels` call the loss, `PPO_LOSS` or with value clipping `PPO_LOSS_VALUE_CLIPPED`.
Samples are read where the rollout left them, field-major.

Shapes: T steps, N lanes, A rows of an action; `rows` samples of a program's tile, `out_pad` columns of outputs.

    samples.rows_ptr      (4, stride)   advantage, log-probability, return and value of sample t N + n
    samples.raw_ptr       (T, A, N)     actions before squashing
    *.scalars_ptr         (9)           see `Scalars`
    update.totals_ptr     (8)           sums over minibatches, in the order of `Stats`
    update.steps_ptr      ()            optimizer steps
    update.corrections_ptr (2)          bias corrections of the next step of Adam
    out                   (rows, out_pad)   logits or means, then V; with two towers those of one tower
    terms_ptr             (32)          means of the loss's terms over a minibatch, in the order of `TERMS`
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.algos.ppo.ppo import TERMS, Stats
from operant.kernels.constants import NamedConstants
from operant.kernels.loss import Loss
from operant.kernels.moments import not_finite, rollout_moments
from operant.kernels.network import load_log_std
from operant.kernels.ops.adam import count_step
from operant.kernels.ops.categorical import categorical
from operant.kernels.ops.gaussian import LOG_2_PI, gaussian_log_density
from operant.kernels.ops.linear import select_column


class Scalars(NamedTuple):
    """Coefficients and moments as floats in device memory, so that a captured graph sees them change."""

    clip: Any
    value_clip: Any
    entropy_coefficient: Any
    value_coefficient: Any
    target_kl: Any  # infinite: none
    start_rate: Any
    advantage_mean: Any
    advantage_inv_std: Any
    explained_variance: Any


class Samples(NamedTuple):
    """Pointers that the loss reads: rows of the samples, raw actions, scalars."""

    rows_ptr: Any
    raw_ptr: Any
    scalars_ptr: Any
    stride: Any  # T N


class Update(NamedTuple):
    """Pointers that `record` writes: totals, and the counters of the optimizer."""

    totals_ptr: Any
    scalars_ptr: Any
    skip_ptr: Any
    steps_ptr: Any
    corrections_ptr: Any


SCALAR = NamedConstants(Scalars(*range(len(Scalars._fields))))
STAT = NamedConstants(Stats(*range(len(Stats._fields))))  # offsets instead of tensors
"""Offsets in `scalars_ptr`, and in `totals_ptr` and `stats_ptr`, by name. The loss's terms have those of `Stats`."""
TERM_COUNT = tl.constexpr(len(TERMS))


# SAMPLES


@triton.jit
def load_scalars(samples):
    """Load mean and 1 / std of the advantages, and the loss's coefficients."""
    mean, inv_std = (
        tl.load(samples.scalars_ptr + SCALAR.advantage_mean),
        tl.load(samples.scalars_ptr + SCALAR.advantage_inv_std),
    )
    clip, entropy_coefficient = (
        tl.load(samples.scalars_ptr + SCALAR.clip),
        tl.load(samples.scalars_ptr + SCALAR.entropy_coefficient),
    )
    value_clip, value_coefficient = (
        tl.load(samples.scalars_ptr + SCALAR.value_clip),
        tl.load(samples.scalars_ptr + SCALAR.value_coefficient),
    )
    return mean, inv_std, clip, entropy_coefficient, value_clip, value_coefficient


@triton.jit
def load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC: tl.constexpr):
    """Load actions (rows) or (rows, out_pad) of samples t N + n, and the rows that the tower's half of the loss reads.

    Those rows are advantage and old log-probability for the actor, return and old value for the critic, all four with a
    shared trunk; (rows) each.
    """
    first = samples.rows_ptr if SPEC.shared else samples.rows_ptr + tower * 2 * samples.stride
    fields = (
        tl.load(first + sample, mask=in_bounds, other=0.0),
        tl.load(first + samples.stride + sample, mask=in_bounds, other=0.0),
    )
    if SPEC.shared:
        for k in tl.static_range(2, 4):
            fields = fields + (tl.load(samples.rows_ptr + k * samples.stride + sample, mask=in_bounds, other=0.0),)

    # A single choice is (rows); of several choices each is repeated in the columns of its logits; continuous actions
    # are in their columns.
    mask = in_bounds if SPEC.shared else in_bounds & (tower == 0)
    if len(SPEC.sizes) == 1:
        action = tl.load(samples.raw_ptr + sample, mask=mask, other=0)
    else:
        column = tl.arange(0, SPEC.out_pad)
        row = column
        rows = SPEC.head_rows
        if len(SPEC.sizes) > 1:
            rows = len(SPEC.sizes)
            row = _choice_of(column, SPEC)
        offset = (sample + t * (rows - 1) * lanes)[:, None] + row[None, :] * lanes
        action = tl.load(samples.raw_ptr + offset, mask=mask[:, None] & (column < SPEC.head_rows)[None, :], other=0)
    return action, fields


@triton.jit
def _choice_of(column, SPEC: tl.constexpr):
    """Index of the choice (of a MultiDiscrete) that each column of logits belongs to."""
    choice = tl.zeros_like(column)
    for k in tl.static_range(1, len(SPEC.sizes)):
        choice += (column >= SPEC.starts[k]).to(tl.int32)
    return choice


@triton.jit
def _value_of(column, SPEC: tl.constexpr):
    """Action, within its choice, that each column of logits belongs to."""
    value = column
    for k in tl.static_range(1, len(SPEC.sizes)):
        value = tl.where(column >= SPEC.starts[k], column - SPEC.starts[k], value)
    return value


# LOSS


@triton.jit
def _surrogate(log_p, old_log_p, advantage, clip):
    """Compute the gradient of the surrogate objective in log p, and the terms surrogate, KL and clipped,
    (rows) each.
    """
    # min(r A, clip(r, 1 - epsilon, 1 + epsilon) A), r = p / p_old
    log_ratio = log_p - old_log_p
    ratio = tl.exp(log_ratio)
    free = ratio * advantage
    limited = tl.where(ratio > 1.0 + clip, 1.0 + clip, tl.where(ratio < 1.0 - clip, 1.0 - clip, ratio)) * advantage
    # This comparison is false for NaN, which so stays in the gradient and in the loss.
    past = free > limited
    return (
        tl.where(past, 0.0, free),
        tl.where(past, limited, free),
        ratio - 1.0 - log_ratio,
        tl.where(tl.abs(ratio - 1.0) > clip, 1.0, 0.0),
    )


@triton.jit
def _policy_loss(out, column, action, advantage, old_log_p, log_std, clip, entropy_coefficient, SPEC: tl.constexpr):
    """Compute gradients of the policy's loss in the outputs and in log_std (rows, out_pad), times B, and its terms
    surrogate, entropy, KL and clipped (rows).
    """
    inside = (column < SPEC.head_rows)[None, :]
    if len(SPEC.sizes) > 0:
        # d log p(a) / d logits = 1{a} - p; dH / d logits = -p (log p + H)
        log_p, p, entropy = categorical(out, column, SPEC)
        selected = (
            (action[:, None] == column[None, :])
            if len(SPEC.sizes) == 1
            else (action == _value_of(column, SPEC)[None, :])
        )
        selected = tl.where(selected & inside, 1.0, 0.0)
        action_log_p, sample_entropy = tl.sum(log_p * selected, axis=1), -tl.sum(p * log_p, axis=1)
        grad_log_p, surrogate, kl, clipped = _surrogate(action_log_p, old_log_p, advantage, clip)
        grad_out = entropy_coefficient * p * (log_p + entropy) - grad_log_p[:, None] * (selected - p)
        grad_log_std = grad_out
    else:
        # d log p / d mean = z / std; d log p / d log_std = z^2 - 1, z = (a - mean) / std; dH / d log_std = 1
        action_log_p, standardized = gaussian_log_density(out, action, log_std, inside, SPEC)
        grad_log_p, surrogate, kl, clipped = _surrogate(action_log_p, old_log_p, advantage, clip)
        grad_out = -grad_log_p[:, None] * standardized * tl.exp(-log_std)[None, :]
        grad_log_std = tl.where(
            inside, -grad_log_p[:, None] * (standardized * standardized - 1.0) - entropy_coefficient, 0.0
        )
        # All samples have the same entropy, which `record` adds.
        sample_entropy = tl.zeros_like(action_log_p)
    return grad_out, grad_log_std, surrogate, sample_entropy, kl, clipped


@triton.jit
def _value_loss(value, target, old_value, value_clip, value_coefficient, VALUE_CLIPPED: tl.constexpr):
    """Compute the gradient of the loss in V, times B, and the squared error, (rows) each."""
    error = value - target
    squared = error * error
    if VALUE_CLIPPED:
        # The loss is max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2).
        moved = value - old_value
        near = (
            old_value
            + tl.where(moved > value_clip, value_clip, tl.where(moved < -value_clip, -value_clip, moved))
            - target
        )
        clipped = near * near > squared
        error = tl.where(clipped, tl.where(tl.abs(moved) > value_clip, 0.0, near), error)
        squared = tl.where(clipped, near * near, squared)
    return value_coefficient * error, squared


@triton.jit
def _gradient(
    out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr, VALUE_CLIPPED: tl.constexpr
):
    """Compute gradients of the loss in the outputs and in log_std (rows, out_pad), times B, and its terms (rows); all
    zero out of bounds. Outputs of illegal actions have gradient 0.
    """
    column = tl.arange(0, SPEC.out_pad)
    action, fields = targets
    mean, inv_std, clip, entropy_coefficient, value_clip, value_coefficient = scalars
    grad_out = tl.zeros_like(out)
    grad_log_std = tl.zeros_like(out)
    zero = tl.sum(grad_out, axis=1)
    surrogate, squared, entropy, kl, clipped = zero, zero, zero, zero, zero
    if SPEC.shared or tower == 0:
        advantage = (fields[0] - mean) * inv_std
        grad_out, grad_log_std, surrogate, entropy, kl, clipped = _policy_loss(
            out, column, action, advantage, fields[1], log_std, clip, entropy_coefficient, SPEC
        )
        if SPEC.legal:
            grad_out = tl.where(legal_mask != 0, grad_out, 0.0)
    if SPEC.shared or tower == 1:
        value = select_column(out, column, SPEC.head_rows)
        grad_value, squared = _value_loss(value, fields[-2], fields[-1], value_clip, value_coefficient, VALUE_CLIPPED)
        grad_out = tl.where((column == SPEC.head_rows)[None, :], grad_value[:, None], grad_out)
    grad_out = tl.where(in_bounds[:, None], grad_out, 0.0)
    grad_log_std = tl.where(in_bounds[:, None], grad_log_std, 0.0)
    terms = (surrogate, squared, entropy, kl, clipped)  # in the order of `TERMS`
    tl.static_assert(len(terms) == TERM_COUNT)
    masked = ()
    for k in tl.static_range(len(terms)):
        masked = masked + (tl.where(in_bounds, terms[k], 0.0),)
    return grad_out, grad_log_std, masked


@triton.jit
def gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """Compute the gradient of PPO's loss without value clipping, see `_gradient`."""
    return _gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC, False)


@triton.jit
def gradient_value_clipped(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """Compute the gradient of PPO's loss with value clipping, see `_gradient`."""
    return _gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC, True)


TOWERS = tuple(int(name == "value_loss") for name in TERMS)
"""Tower that computes each term: 0 the actor, 1 the critic."""
PPO_LOSS = Loss(load_scalars, load_targets, gradient, TOWERS)
PPO_LOSS_VALUE_CLIPPED = Loss(load_scalars, load_targets, gradient_value_clipped, TOWERS)


# UPDATE


@triton.jit(do_not_specialize=["iterations"])
def begin(
    parts_ptr,
    programs,
    scalars_ptr,
    totals_ptr,
    skip_ptr,
    learning_rate_ptr,
    iteration_ptr,
    iterations,
    NORMALIZE: tl.constexpr,
    ANNEAL: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Begin an update: store mean and 1 / std of the advantages, explained variance and learning rate; clear totals and
    `skip`. One program.

    `parts_ptr` (programs, 5) holds partial moments of advantages and returns; the rate reaches 0 after `iterations`.
    """
    mean, variance, explained = rollout_moments(parts_ptr, programs, PARTS)
    tl.store(scalars_ptr + SCALAR.advantage_mean, mean if NORMALIZE else 0.0)
    tl.store(scalars_ptr + SCALAR.advantage_inv_std, 1.0 / (tl.sqrt(variance) + 1e-8) if NORMALIZE else 1.0)
    tl.store(scalars_ptr + SCALAR.explained_variance, explained)
    tl.static_assert(STAT.gradient_norm < 8)
    tl.store(totals_ptr + tl.arange(0, 8), tl.zeros((8,), tl.float32))
    tl.store(skip_ptr, 0.0)
    if ANNEAL:
        remaining = tl.maximum(1.0 - tl.load(iteration_ptr).to(tl.float32) / iterations, 0.0)
        tl.store(learning_rate_ptr, tl.load(scalars_ptr + SCALAR.start_rate) * remaining)


@triton.jit
def _pick(terms, column, TERM: tl.constexpr):
    """Select the term with index TERM of a vector of terms (32)."""
    return tl.sum(tl.where(column == TERM, terms, 0.0), axis=0)


@triton.jit
def _add(totals_ptr, STATISTIC: tl.constexpr, term):
    tl.store(totals_ptr + STATISTIC, tl.load(totals_ptr + STATISTIC) + term)


@triton.jit
def record(terms, column, parameters, update, SPEC: tl.constexpr):
    """Add a minibatch's terms (32), means over its samples, to the totals; set `skip` if the KL divergence exceeds its
    target, else count a step of Adam.
    """
    entropy = _pick(terms, column, STAT.entropy)
    if SPEC.log_std >= 0:
        # H of a normal distribution: the sum of log_std + log(2 pi) / 2 + 1/2 over the actions
        action = tl.arange(0, SPEC.out_pad)
        entropy += tl.sum(
            tl.where(action < SPEC.head_rows, load_log_std(parameters, action, SPEC) + 0.5 * LOG_2_PI + 0.5, 0.0),
            axis=0,
        )
    kl = _pick(terms, column, STAT.approx_kl)
    _add(update.totals_ptr, STAT.policy_loss, -_pick(terms, column, STAT.policy_loss))
    _add(update.totals_ptr, STAT.value_loss, 0.5 * _pick(terms, column, STAT.value_loss))
    _add(update.totals_ptr, STAT.entropy, entropy)
    _add(update.totals_ptr, STAT.approx_kl, kl)
    _add(update.totals_ptr, STAT.clip_fraction, _pick(terms, column, STAT.clip_fraction))
    skipped = tl.where(kl > 1.5 * tl.load(update.scalars_ptr + SCALAR.target_kl), 1.0, tl.load(update.skip_ptr))
    tl.store(update.skip_ptr, skipped)
    count_step(update.steps_ptr, update.corrections_ptr, skipped)


@triton.jit(do_not_specialize=["minibatches"])
def finish(
    totals_ptr,
    scalars_ptr,
    learning_rate_ptr,
    parameters_ptr,
    size,
    iteration_ptr,
    stats_ptr,
    minibatches,
    TILE: tl.constexpr,
):
    """End an update: write `stats`, means over `minibatches`, and count the iteration. One program."""
    # Values that are NaN or infinite, of parameters (size) and of means.
    count = not_finite(parameters_ptr, size, TILE)
    for k in tl.static_range(STAT.gradient_norm + 1):
        mean = tl.load(totals_ptr + k) / minibatches
        count += tl.where(tl.abs(mean) < float("inf"), 0.0, 1.0)
        tl.store(stats_ptr + k, mean)
    tl.store(stats_ptr + STAT.explained_variance, tl.load(scalars_ptr + SCALAR.explained_variance))
    tl.store(stats_ptr + STAT.learning_rate, tl.load(learning_rate_ptr))
    tl.store(stats_ptr + STAT.not_finite, count)
    tl.store(iteration_ptr, tl.load(iteration_ptr) + 1)
