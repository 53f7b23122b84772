"""Triton functions around the optimizer steps that both engines share: step counter, temperature, statistics."""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.buffers import Scalars
from operant.kernels.ops.adam import adam, store_corrections
from operant.kernels.statistics import offsets

SCALAR = offsets(Scalars)
"""Index of each constant in `OptimizerState.scalars`, by name."""

SATURATED = tl.constexpr(0.98)
"""Absolute value beyond which an action in [-1, 1] counts as saturated."""


@triton.jit
def count_step(optimizer):
    """Increment Adam's step counter, unless the step is skipped, and store its bias corrections. `optimizer`: an
    `OptimizerState`.
    """
    steps = tl.load(optimizer.steps) + tl.where(tl.load(optimizer.skip) < 0.5, 1.0, 0.0)
    tl.store(optimizer.steps, steps)
    store_corrections(optimizer.corrections, tl.maximum(steps, 1.0), False)


@triton.jit
def min_over_critics(q_ptr, row, SPEC: tl.constexpr):
    """Return the minimum over the critics of `q_ptr` (G, B) at samples `row`, (rows)."""
    q = tl.load(q_ptr + row)
    for k in tl.static_range(SPEC.critic.towers - 1):
        q = tl.minimum(q, tl.load(q_ptr + (k + 1) * SPEC.batch + row))
    return q


@triton.jit
def td_targets(batch, scratch, row, alpha, SPEC: tl.constexpr):
    """Return targets y = r + discount (min_c Q'_c - alpha log pi) of samples `row`, (rows); without the last term for
    TD3.

    `batch` is a `BatchBuffers`; `scratch`, a `Scratch`, has Q' and log pi at the next observation; `alpha` is the
    temperature.
    """
    next_value = min_over_critics(scratch.next_q, row, SPEC)
    if SPEC.stochastic:
        next_value = next_value - alpha * tl.load(scratch.next_log_prob + row)
    return tl.load(batch.reward + row) + tl.load(batch.discount + row) * next_value


@triton.jit
def add_statistic(total_ptr, value, counted):
    """Add a statistic of one update to its total at `total_ptr`, unless the update is skipped (`counted` false)."""
    tl.store(total_ptr, tl.load(total_ptr) + tl.where(counted, value, 0.0))


@triton.jit
def temperature_step(temperature, optimizer, entropy, counted):
    """Take one step of Adam on log alpha, of the loss -log alpha (E[log pi] + target entropy); `entropy` is -E[log pi];
    nothing if `counted` is false.
    """
    step_size = tl.load(optimizer.learning_rate) / tl.load(temperature.corrections)
    x, m, v = adam(
        tl.load(temperature.log_alpha),
        entropy - tl.load(optimizer.scalars + SCALAR.target_entropy),
        tl.load(temperature.exp_avg),
        tl.load(temperature.exp_avg_sq),
        step_size,
        tl.load(temperature.corrections + 1),
        tl.load(optimizer.scalars + SCALAR.epsilon),
    )
    tl.store(temperature.exp_avg, m, mask=counted)
    tl.store(temperature.exp_avg_sq, v, mask=counted)
    tl.store(temperature.log_alpha, x, mask=counted)
