"""PQN's Triton functions: its loss with a hand-written gradient (`operant.algos.pqn.pqn.q_loss`), and the kernels
around an update. They take outputs of a network, whatever the network.

Shapes: T steps, N lanes; `rows` samples of a program's tile, `out_pad` columns of outputs.

    samples.returns_ptr    (T, N)          Q(lambda) returns
    samples.action_ptr     (T, 1, N)       int32
    update.totals_ptr      (8)             sums over minibatches, in the order of `Stats`
    update.steps_ptr       ()              optimizer steps
    update.corrections_ptr (2)             bias corrections of the next step of Adam
    out                    (rows, out_pad) Q of every action
    terms                  (32)            means of the loss's terms over a minibatch, in the order of `TERMS`
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.algos.pqn.pqn import TERMS, Stats
from operant.kernels.constants import NamedConstants
from operant.kernels.loss import Loss
from operant.kernels.moments import not_finite, rollout_moments
from operant.kernels.ops.adam import count_step


class Samples(NamedTuple):
    """Pointers that the loss reads: Q(lambda) returns and actions."""

    returns_ptr: Any
    action_ptr: Any


class Update(NamedTuple):
    """Pointers that `record` writes: totals, and the counters of the optimizer."""

    totals_ptr: Any
    skip_ptr: Any
    steps_ptr: Any
    corrections_ptr: Any


STAT = NamedConstants(Stats(*range(len(Stats._fields))))  # offsets instead of tensors
"""Offsets in `totals_ptr` and `stats_ptr`, by name. The loss's terms have those of `Stats`."""
TERM_COUNT = tl.constexpr(len(TERMS))


# LOSS


@triton.jit
def load_scalars(samples):
    """Return one unused scalar: the loss has no coefficients."""
    return (0.0,)


@triton.jit
def load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC: tl.constexpr):
    """Load actions and Q(lambda) returns of samples t N + n, (rows) each."""
    return tl.load(samples.action_ptr + sample, mask=in_bounds, other=0), tl.load(
        samples.returns_ptr + sample, mask=in_bounds, other=0.0
    )


@triton.jit
def gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """Compute the gradient of 1/2 (Q(s, a) - G)^2 in the outputs (rows, out_pad), times B, and its terms (rows); all
    zero out of bounds.
    """
    column = tl.arange(0, SPEC.out_pad)
    action, returns = targets
    chosen = tl.where((column[None, :] == action[:, None]) & in_bounds[:, None], 1.0, 0.0)
    value = tl.sum(tl.where(chosen > 0.0, out, 0.0), axis=1)
    error = tl.where(in_bounds, value - returns, 0.0)
    grad_out = error[:, None] * chosen
    terms = (0.5 * error * error, tl.abs(error), value)  # in the order of `TERMS`
    tl.static_assert(len(terms) == TERM_COUNT)
    return grad_out, tl.zeros_like(out), terms


Q_LOSS = Loss(load_scalars, load_targets, gradient, (0,) * len(TERMS))


# UPDATE


@triton.jit(do_not_specialize=["iterations", "start_rate"])
def begin(
    parts_ptr,
    programs,
    totals_ptr,
    learning_rate_ptr,
    start_rate,
    iteration_ptr,
    iterations,
    ANNEAL: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Begin an update: store explained variance and learning rate, and clear the other totals. One program.

    `parts_ptr` (programs, 5) holds partial moments of advantages and returns; the rate reaches 0 after `iterations`.
    """
    _mean, _variance, explained = rollout_moments(parts_ptr, programs, PARTS)
    statistic = tl.arange(0, 8)
    tl.store(totals_ptr + statistic, tl.where(statistic == STAT.explained_variance, explained, 0.0))
    if ANNEAL:
        remaining = tl.maximum(1.0 - tl.load(iteration_ptr).to(tl.float32) / iterations, 0.0)
        tl.store(learning_rate_ptr, start_rate * remaining)


@triton.jit
def record(terms, column, parameters, update, SPEC: tl.constexpr):
    """Add a minibatch's terms (32), means over its samples, to the totals, and count a step of Adam."""
    mask = column < TERM_COUNT
    tl.store(update.totals_ptr + column, tl.load(update.totals_ptr + column, mask=mask, other=0.0) + terms, mask=mask)
    count_step(update.steps_ptr, update.corrections_ptr, 0.0)


@triton.jit(do_not_specialize=["minibatches"])
def finish(
    totals_ptr,
    epsilon_ptr,
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
    tl.store(stats_ptr + STAT.explained_variance, tl.load(totals_ptr + STAT.explained_variance))
    tl.store(stats_ptr + STAT.epsilon, tl.load(epsilon_ptr))
    tl.store(stats_ptr + STAT.learning_rate, tl.load(learning_rate_ptr))
    tl.store(stats_ptr + STAT.not_finite, count)
    tl.store(iteration_ptr, tl.load(iteration_ptr) + 1)
