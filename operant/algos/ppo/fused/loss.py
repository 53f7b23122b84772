"""PPO's loss in Triton, and the samples it is of: `operant.algos.ppo.algorithm.ppo_loss` with its gradient written out by hand. Knows outputs, no network.

Samples lie where a rollout left them, field-major; a minibatch is blocks of neighbouring lanes in the order that the algorithm drew.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import categorical, gaussian_log_density

STATS = tl.constexpr(32)
"""Columns behind the gradient's in a program's row: sums of surrogate, squared error, entropy, KL and clipped samples, then nothing."""


# SAMPLES


@triton.jit
def targets(place, t, here, raw, samples, tower, lanes, stride, SPEC: tl.constexpr):
    """Of samples at `place` t N + n: actions, and two numbers each (rows), which the tower's half of the loss asks for.

    Those are the advantage and the old log-probability of the actor, the return and the old value of the critic; all four with a shared trunk.
    """
    # `samples` holds four rows of `stride`: advantage, log-probability, return, value.
    first = samples if SPEC.shared else samples + tower * 2 * stride
    numbers = (tl.load(first + place, mask=here, other=0.0), tl.load(first + stride + place, mask=here, other=0.0))
    if SPEC.shared:
        for k in tl.static_range(2, 4):
            numbers = numbers + (tl.load(samples + k * stride + place, mask=here, other=0.0),)

    acting = here if SPEC.shared else here & (tower == 0)
    if len(SPEC.sizes) == 1:
        action = tl.load(raw + place, mask=acting, other=0)
    else:
        column = tl.arange(0, SPEC.out_pad)
        choice = column
        rows = SPEC.head_rows
        if len(SPEC.sizes) > 1:
            rows = len(SPEC.sizes)
            choice = _choice_of(column, SPEC)
        begin = place + t * (rows - 1) * lanes
        action = tl.load(raw + begin[:, None] + choice[None, :] * lanes, mask=acting[:, None] & (column < SPEC.head_rows)[None, :], other=0)
    return action, numbers


@triton.jit
def normalised(numbers, mean, inverse, tower, SPEC: tl.constexpr):
    """The numbers with the advantage less the iteration's mean, times 1 / deviation."""
    told = numbers
    if SPEC.shared:
        told = ((numbers[0] - mean) * inverse, numbers[1], numbers[2], numbers[3])
    else:
        if tower == 0:
            told = ((numbers[0] - mean) * inverse, numbers[1])
    return told


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
def _ratio_slope(log_p, old, advantage, clip):
    """Of the surrogate: its slope in log p, and the sums' terms (surrogate, KL, clipped), all (rows)."""
    log_ratio = log_p - old
    ratio = tl.exp(log_ratio)
    free = ratio * advantage
    limited = tl.where(ratio > 1.0 + clip, 1.0 + clip, tl.where(ratio < 1.0 - clip, 1.0 - clip, ratio)) * advantage
    # Asked so that NaN, which is neither, stays in the gradient and in the loss.
    past = free > limited
    return tl.where(past, 0.0, free), tl.where(past, limited, free), ratio - 1.0 - log_ratio, tl.where(tl.abs(ratio - 1.0) > clip, 1.0, 0.0)


@triton.jit
def _policy_loss(out, column, action, advantage, old, log_std, clip, entropy_coefficient, SPEC: tl.constexpr):
    """Slope of the loss in the outputs and in log_std (rows, out_pad), times the batch; terms of the sums (rows)."""
    inside = (column < SPEC.head_rows)[None, :]
    if len(SPEC.sizes) > 0:
        log_p, p, entropy = categorical(out, column, SPEC)
        taken = (action[:, None] == column[None, :]) if len(SPEC.sizes) == 1 else (action == _value_of(column, SPEC)[None, :])
        taken = tl.where(taken & inside, 1.0, 0.0)
        of_action, of_choices = tl.sum(log_p * taken, axis=1), -tl.sum(p * log_p, axis=1)
        pull, surrogate, kl, clipped = _ratio_slope(of_action, old, advantage, clip)
        slope_out = entropy_coefficient * p * (log_p + entropy) - pull[:, None] * (taken - p)
        slope_spread = slope_out
    else:
        of_action, standard = gaussian_log_density(out, action, log_std, inside, SPEC)
        pull, surrogate, kl, clipped = _ratio_slope(of_action, old, advantage, clip)
        slope_out = -pull[:, None] * standard * tl.exp(-log_std)[None, :]
        slope_spread = tl.where(inside, -pull[:, None] * (standard * standard - 1.0) - entropy_coefficient, 0.0)
        of_choices = tl.zeros_like(of_action)  # the entropy is the same for every sample: added up at the end
    return slope_out, slope_spread, surrogate, of_choices, kl, clipped


@triton.jit
def _value_loss(value, target, old, value_clip, value_coefficient, VALUE_CLIPPED: tl.constexpr):
    """Slope of the loss in the value, times the batch, and the squared error, both (rows)."""
    error = value - target
    squared = error * error
    if VALUE_CLIPPED:
        moved = value - old
        near = old + tl.where(moved > value_clip, value_clip, tl.where(moved < -value_clip, -value_clip, moved)) - target
        clipped = near * near > squared
        error = tl.where(clipped, tl.where(tl.abs(moved) > value_clip, 0.0, near), error)
        squared = tl.where(clipped, near * near, squared)
    return value_coefficient * error, squared


@triton.jit
def loss(
    out, column, may, here, tower, action, numbers, log_std, clip, value_clip, entropy_coefficient, value_coefficient,
    SPEC: tl.constexpr, VALUE_CLIPPED: tl.constexpr,
):  # fmt: skip
    """Slopes (rows, out_pad) in the outputs and in log_std, times the batch, and five terms of the sums (rows), zero in rows that are no samples.

    Of outputs as `parts.masked` leaves them; those that it has set hand nothing on.
    """
    slope_out = tl.zeros_like(out)
    slope_spread = tl.zeros_like(out)
    none = tl.sum(slope_out, axis=1)
    surrogate, squared, entropy, kl, clipped = none, none, none, none, none
    if SPEC.shared or tower == 0:
        slope_out, slope_spread, surrogate, entropy, kl, clipped = _policy_loss(
            out, column, action, numbers[0], numbers[1], log_std, clip, entropy_coefficient, SPEC
        )
        if SPEC.legal:
            slope_out = tl.where(may != 0, slope_out, 0.0)
    if SPEC.shared or tower == 1:
        value = tl.sum(tl.where((column == SPEC.head_rows)[None, :], out, 0.0), axis=1)
        slope_value, squared = _value_loss(value, numbers[-2], numbers[-1], value_clip, value_coefficient, VALUE_CLIPPED)
        slope_out = tl.where((column == SPEC.head_rows)[None, :], slope_value[:, None], slope_out)
    slope_out = tl.where(here[:, None], slope_out, 0.0)
    slope_spread = tl.where(here[:, None], slope_spread, 0.0)
    terms = (surrogate, squared, entropy, kl, clipped)
    counted = ()
    for k in tl.static_range(5):
        counted = counted + (tl.where(here, terms[k], 0.0),)
    return slope_out, slope_spread, counted
