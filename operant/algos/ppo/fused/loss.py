"""PPO's loss in Triton: `operant.algos.ppo.loss.ppo_loss` with its gradient written out by hand. Knows outputs, no
network.

The samples lie where a rollout left them, field-major. The backward kernels of `operant.kernels` call these functions:
`PPO_LOSS`, or with value clipping `PPO_LOSS_VALUE_CLIPPED`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.algos.ppo.fused.buffers import Scalars, Terms
from operant.kernels.blocks import Places, categorical, gaussian_log_density, select_column
from operant.kernels.loss import Loss

SCALAR = Places(Scalars(*range(len(Scalars._fields))))
"""Places in the buffer of scalars, by name."""

# SAMPLES


@triton.jit
def load_scalars(samples):
    """The advantages' mean and 1 / standard deviation, and the loss's coefficients."""
    mean, inv_std = (
        tl.load(samples.scalars + SCALAR.advantage_mean),
        tl.load(samples.scalars + SCALAR.advantage_inv_std),
    )
    clip, entropy_coefficient = (
        tl.load(samples.scalars + SCALAR.clip),
        tl.load(samples.scalars + SCALAR.entropy_coefficient),
    )
    value_clip, value_coefficient = (
        tl.load(samples.scalars + SCALAR.value_clip),
        tl.load(samples.scalars + SCALAR.value_coefficient),
    )
    return mean, inv_std, clip, entropy_coefficient, value_clip, value_coefficient


@triton.jit
def load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC: tl.constexpr):
    """Of samples t N + n: actions (rows) or (rows, out_pad), and two numbers each (rows), which the tower's half of the
    loss asks for.

    Those are the advantage and the old log-probability of the actor, the return and the old value of the critic; all
    four with a shared trunk.
    """
    first = samples.numbers if SPEC.shared else samples.numbers + tower * 2 * samples.stride
    numbers = (
        tl.load(first + sample, mask=in_bounds, other=0.0),
        tl.load(first + samples.stride + sample, mask=in_bounds, other=0.0),
    )
    if SPEC.shared:
        for k in tl.static_range(2, 4):
            numbers = numbers + (tl.load(samples.numbers + k * samples.stride + sample, mask=in_bounds, other=0.0),)

    # Actions: one of them as it is, several each in the columns of its choice, continuous ones in their columns.
    mask = in_bounds if SPEC.shared else in_bounds & (tower == 0)
    if len(SPEC.sizes) == 1:
        action = tl.load(samples.raw + sample, mask=mask, other=0)
    else:
        column = tl.arange(0, SPEC.out_pad)
        row = column
        rows = SPEC.head_rows
        if len(SPEC.sizes) > 1:
            rows = len(SPEC.sizes)
            row = _choice_of(column, SPEC)
        place = (sample + t * (rows - 1) * lanes)[:, None] + row[None, :] * lanes
        action = tl.load(samples.raw + place, mask=mask[:, None] & (column < SPEC.head_rows)[None, :], other=0)
    return action, numbers


@triton.jit
def _choice_of(column, SPEC: tl.constexpr):
    """Which choice a column of logits belongs to."""
    choice = tl.zeros_like(column)
    for k in tl.static_range(1, len(SPEC.sizes)):
        choice += (column >= SPEC.starts[k]).to(tl.int32)
    return choice


@triton.jit
def _value_of(column, SPEC: tl.constexpr):
    """Which value of its choice a column of logits stands for."""
    value = column
    for k in tl.static_range(1, len(SPEC.sizes)):
        value = tl.where(column >= SPEC.starts[k], column - SPEC.starts[k], value)
    return value


# LOSS


@triton.jit
def _surrogate(log_p, old_log_p, advantage, clip):
    """The surrogate's gradient in log p, and the terms surrogate, KL and clipped, all (rows)."""
    # min(r A, clip(r, 1 - epsilon, 1 + epsilon) A), r = p / p_old
    log_ratio = log_p - old_log_p
    ratio = tl.exp(log_ratio)
    free = ratio * advantage
    limited = tl.where(ratio > 1.0 + clip, 1.0 + clip, tl.where(ratio < 1.0 - clip, 1.0 - clip, ratio)) * advantage
    # Asked so that NaN, which is neither, stays in the gradient and in the loss.
    past = free > limited
    return (
        tl.where(past, 0.0, free),
        tl.where(past, limited, free),
        ratio - 1.0 - log_ratio,
        tl.where(tl.abs(ratio - 1.0) > clip, 1.0, 0.0),
    )


@triton.jit
def _policy_loss(out, column, action, advantage, old_log_p, log_std, clip, entropy_coefficient, SPEC: tl.constexpr):
    """Gradients of the loss in the outputs and in log_std (rows, out_pad), times the batch; the terms surrogate,
    entropy, KL and clipped (rows).
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
        surrogate_gradient, surrogate, kl, clipped = _surrogate(action_log_p, old_log_p, advantage, clip)
        gradient_out = entropy_coefficient * p * (log_p + entropy) - surrogate_gradient[:, None] * (selected - p)
        gradient_log_std = gradient_out
    else:
        # d log p / d mean = z / std; d log p / d log_std = z^2 - 1, z = (a - mean) / std; dH / d log_std = 1
        action_log_p, standardized = gaussian_log_density(out, action, log_std, inside, SPEC)
        surrogate_gradient, surrogate, kl, clipped = _surrogate(action_log_p, old_log_p, advantage, clip)
        gradient_out = -surrogate_gradient[:, None] * standardized * tl.exp(-log_std)[None, :]
        gradient_log_std = tl.where(
            inside, -surrogate_gradient[:, None] * (standardized * standardized - 1.0) - entropy_coefficient, 0.0
        )
        # the entropy is the same for every sample: `statistics.record` adds it
        sample_entropy = tl.zeros_like(action_log_p)
    return gradient_out, gradient_log_std, surrogate, sample_entropy, kl, clipped


@triton.jit
def _value_loss(value, target, old_value, value_clip, value_coefficient, VALUE_CLIPPED: tl.constexpr):
    """Gradient of the loss in the value, times the batch, and the squared error, both (rows)."""
    error = value - target
    squared = error * error
    if VALUE_CLIPPED:
        # the loss is max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)
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
    """Gradients (rows, out_pad) in the outputs and in log_std, times the batch, and the loss's terms (rows): all zero
    out of bounds.

    Outputs that `mask_illegal` has set have no gradient.
    """
    column = tl.arange(0, SPEC.out_pad)
    action, numbers = targets
    mean, inv_std, clip, entropy_coefficient, value_clip, value_coefficient = scalars
    gradient_out = tl.zeros_like(out)
    gradient_log_std = tl.zeros_like(out)
    none = tl.sum(gradient_out, axis=1)
    surrogate, squared, entropy, kl, clipped = none, none, none, none, none
    if SPEC.shared or tower == 0:
        advantage = (numbers[0] - mean) * inv_std
        gradient_out, gradient_log_std, surrogate, entropy, kl, clipped = _policy_loss(
            out, column, action, advantage, numbers[1], log_std, clip, entropy_coefficient, SPEC
        )
        if SPEC.legal:
            gradient_out = tl.where(legal_mask != 0, gradient_out, 0.0)
    if SPEC.shared or tower == 1:
        value = select_column(out, column, SPEC.head_rows)
        gradient_value, squared = _value_loss(
            value, numbers[-2], numbers[-1], value_clip, value_coefficient, VALUE_CLIPPED
        )
        gradient_out = tl.where((column == SPEC.head_rows)[None, :], gradient_value[:, None], gradient_out)
    # Rows out of bounds count nothing.
    gradient_out = tl.where(in_bounds[:, None], gradient_out, 0.0)
    gradient_log_std = tl.where(in_bounds[:, None], gradient_log_std, 0.0)
    terms = (surrogate, squared, entropy, kl, clipped)  # in the order of `Terms`
    counted = ()
    for k in tl.static_range(len(terms)):
        counted = counted + (tl.where(in_bounds, terms[k], 0.0),)
    return gradient_out, gradient_log_std, counted


@triton.jit
def gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """The gradient of PPO's loss."""
    return _gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC, False)


@triton.jit
def gradient_value_clipped(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """The same where a value may move by no more than `value_clip`."""
    return _gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC, True)


PPO_LOSS = Loss(load_scalars, load_targets, gradient, tuple(Terms()))
PPO_LOSS_VALUE_CLIPPED = Loss(load_scalars, load_targets, gradient_value_clipped, tuple(Terms()))
