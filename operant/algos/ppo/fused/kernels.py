"""PPO's own part of its fused kernels: the loss with a hand-written gradient, the kernels around an update, and the
buffers that all launches of an iteration read and write (`PPOHooks`).

The formulas are those of `operant.algos.ppo.ppo.ppo_loss`; read them side by side. The device functions take the
outputs of a network, whatever the network: `operant.kernels.backward` calls `PPO_LOSS` between its forward and its
backward pass. The rollout is read where it lies, field-major.

Shapes: T steps, N lanes, A rows of an action, P parameters. A program computes a tile of `rows` samples, in which
`out_pad` columns hold the network's outputs: H logits or means of the distribution, then the value, then padding. With
two towers (separate networks), tower 0 has the former and tower 1 the latter; a shared trunk has tower 0 alone.

| buffer                 | shape        | meaning                                                                   |
|------------------------|--------------|---------------------------------------------------------------------------|
| samples.rows_ptr       | (rows, T, N) | rows `SampleRows` of sample t N + n                                       |
| samples.raw_ptr        | (T, A, N)    | actions before squashing                                                  |
| scalars_ptr            | (9)          | `Scalars`: coefficients of the loss, moments of the advantages            |
| update.totals_ptr      | (8)          | sums over minibatches of the loss terms and the gradient norm, as `Stats` |
| update.steps_ptr       | ()           | optimizer steps                                                           |
| update.corrections_ptr | (2)          | Adam's bias corrections of the next step                                  |
| stats_ptr              | (`Stats`)    | statistics of the iteration                                               |
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.ppo import TERMS, SampleRows, Stats
from operant.data.on_policy import Buffers
from operant.kernels.act import Acting, sample_and_store, state_value
from operant.kernels.dense.learner import Learner
from operant.kernels.dense.task import Loss
from operant.kernels.network import load_log_std
from operant.kernels.ops.adam import count_step
from operant.kernels.ops.categorical import categorical
from operant.kernels.ops.gaussian import LOG_2_PI, gaussian_log_density
from operant.kernels.ops.linear import select_column
from operant.kernels.statistics import PARTS, linear_decay, offsets, rollout_moments
from operant.nn import Gaussian

# BUFFERS


class Scalars(NamedTuple):
    """Coefficients and moments as floats in device memory, so that a captured graph sees them change."""

    clip: Any
    value_clip: Any
    entropy_coefficient: Any
    value_coefficient: Any
    target_kl: Any  # infinite: none
    start_rate: Any  # learning rate of the first iteration
    advantage_mean: Any
    advantage_inv_std: Any
    explained_variance: Any


class Samples(NamedTuple):
    """Pointers that the loss reads: rows of the samples, raw actions, scalars."""

    rows_ptr: Any  # (rows, T, N), see `SampleRows`
    raw_ptr: Any  # (T, A, N)
    scalars_ptr: Any  # `Scalars`
    stride: Any  # between rows: T N


class Update(NamedTuple):
    """Pointers that `record` reads and writes: totals, scalars, and the counters of the optimizer."""

    totals_ptr: Any
    scalars_ptr: Any
    skip_ptr: Any
    steps_ptr: Any
    corrections_ptr: Any


SCALAR, STAT = offsets(Scalars), offsets(Stats)
"""Positions by name: in `scalars_ptr`, and in `totals_ptr`, `stats_ptr` and the loss terms."""
ADVANTAGE, LOG_PROBABILITY, RETURN, VALUE = (
    tl.constexpr(SampleRows._fields.index(name)) for name in ("advantage", "log_probability", "returns", "value")
)
"""Rows of a sample, of which `samples.rows_ptr` has four."""
TERM_COUNT = tl.constexpr(len(TERMS))


# SAMPLES


@triton.jit
def load_scalars(samples):
    """Load the loss's scalars: mean and 1 / std of the advantages, clip range, coefficient of the entropy, clip range
    and coefficient of the value loss.
    """
    mean = tl.load(samples.scalars_ptr + SCALAR.advantage_mean)
    inv_std = tl.load(samples.scalars_ptr + SCALAR.advantage_inv_std)
    clip = tl.load(samples.scalars_ptr + SCALAR.clip)
    entropy_coefficient = tl.load(samples.scalars_ptr + SCALAR.entropy_coefficient)
    value_clip = tl.load(samples.scalars_ptr + SCALAR.value_clip)
    value_coefficient = tl.load(samples.scalars_ptr + SCALAR.value_coefficient)
    return mean, inv_std, clip, entropy_coefficient, value_clip, value_coefficient


@triton.jit
def _load_row(samples, sample, in_bounds, INDEX: tl.constexpr):
    """Load row INDEX of the samples t N + n, (rows); 0 out of bounds."""
    return tl.load(samples.rows_ptr + INDEX * samples.stride + sample, mask=in_bounds, other=0.0)


@triton.jit
def load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC: tl.constexpr):
    """Load a tile's actions, (rows) or (rows, out_pad), and the sample rows that a tower's half of the loss reads,
    (rows) each: advantage and old log-probability for the actor, return and old value for the critic, all four with a
    shared trunk.

    | parameter | shape  | meaning                       |
    |-----------|--------|-------------------------------|
    | sample    | (rows) | index t N + n of each sample  |
    | t         | (rows) | its step                      |
    | in_bounds | (rows) | samples to load; others are 0 |
    | tower     | scalar | 0 the actor, 1 the critic     |
    | lanes     | scalar | N                             |
    """
    if SPEC.shared:
        fields = (
            _load_row(samples, sample, in_bounds, ADVANTAGE),
            _load_row(samples, sample, in_bounds, LOG_PROBABILITY),
            _load_row(samples, sample, in_bounds, RETURN),
            _load_row(samples, sample, in_bounds, VALUE),
        )
    else:
        # Two neighbouring rows per tower, so that both towers run the same instructions.
        tl.static_assert((ADVANTAGE == 0) & (LOG_PROBABILITY == 1) & (RETURN == 2) & (VALUE == 3))
        first_ptr = samples.rows_ptr + tower * 2 * samples.stride
        fields = (
            tl.load(first_ptr + sample, mask=in_bounds, other=0.0),
            tl.load(first_ptr + samples.stride + sample, mask=in_bounds, other=0.0),
        )

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
    """Return, for each column of logits, the index of the choice (of a MultiDiscrete) that it belongs to; the last for
    padding.
    """
    choice = tl.zeros_like(column)
    for k in tl.static_range(1, len(SPEC.sizes)):
        choice += (column >= SPEC.starts[k]).to(tl.int32)
    return choice


@triton.jit
def _value_of(column, SPEC: tl.constexpr):
    """Return the action, within its choice, whose logit each column holds, (out_pad)."""
    value = column
    for k in tl.static_range(1, len(SPEC.sizes)):
        value = tl.where(column >= SPEC.starts[k], column - SPEC.starts[k], value)
    return value


# LOSS


@triton.jit
def _surrogate(log_p, old_log_p, advantage, clip):
    """Return the gradient of the surrogate objective in log p, the objective, the estimate (r - 1) - log r of the KL
    divergence, and 1.0 where the ratio r was clipped; (rows) each.

    `log_p`, `old_log_p` and `advantage` are (rows); `clip` is epsilon.
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
    """Return gradients of B times the policy's loss in the outputs and in log_std, (rows, out_pad) each, and the terms
    surrogate, entropy, KL and clipped, (rows) each.

    | parameter | shape                     | meaning                                |
    |-----------|---------------------------|----------------------------------------|
    | out       | (rows, out_pad)           | logits or means in the first H columns |
    | column    | (out_pad)                 | tl.arange(0, out_pad)                  |
    | action    | (rows) or (rows, out_pad) | as `load_targets` returns it           |
    | advantage | (rows)                    | normalized                             |
    | old_log_p | (rows)                    | log-probability when acting            |
    | log_std   | (out_pad)                 | of a Gaussian                          |
    """
    inside = (column < SPEC.head_rows)[None, :]
    if len(SPEC.sizes) > 0:
        # d log p(a) / d logits = 1{a} - p; dH / d logits = -p (log p + H)
        # log p = log softmax(logits), p, and H = -sum p log p of the column's choice, (rows, out_pad) each.
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
        grad_log_std = grad_out  # not read
    else:
        # d log p / d mean = z / std; d log p / d log_std = z^2 - 1, z = (a - mean) / std; dH / d log_std = 1
        # log p = sum of -z^2 / 2 - log_std - log(2 pi) / 2 (with SPEC.squash also - log |d tanh a / da|), and z.
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
    """Return the gradient of B times the value loss in V, and the squared error, (rows) each; with VALUE_CLIPPED V may
    move by at most `value_clip` from the old value.
    """
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
    """Return gradients of B times the loss in the outputs and in log_std, (rows, out_pad) each, and the loss terms, a
    tuple of (rows) as `record` takes them; all zero out of bounds. B is the minibatch's size.

    | parameter  | shape           | meaning                                                           |
    |------------|-----------------|-------------------------------------------------------------------|
    | out        | (rows, out_pad) | outputs; with two towers those of one tower, the rest meaningless |
    | targets    | tuple           | as `load_targets` returns it                                      |
    | legal_mask | (rows, out_pad) | 0 for illegal actions, whose gradient is 0; read if SPEC.legal    |
    | in_bounds  | (rows)          | rows that are samples                                             |
    | tower      | scalar          | 0 the actor, 1 the critic                                         |
    | log_std    | (out_pad)       | of a Gaussian                                                     |
    | scalars    | tuple           | as `load_scalars` returns it                                      |
    """
    column = tl.arange(0, SPEC.out_pad)
    # fields: (advantage, old log p) of the actor, (return, old value) of the critic, all four with a shared trunk
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
        value = select_column(out, column, SPEC.head_rows)  # V is the column after the distribution's parameters
        grad_value, squared = _value_loss(value, fields[-2], fields[-1], value_clip, value_coefficient, VALUE_CLIPPED)
        grad_out = tl.where((column == SPEC.head_rows)[None, :], grad_value[:, None], grad_out)
    grad_out = tl.where(in_bounds[:, None], grad_out, 0.0)
    grad_log_std = tl.where(in_bounds[:, None], grad_log_std, 0.0)
    # In the order of `TERMS`, but the objective, and the squared error without 1/2: `record` has the factors -1 and
    # 1/2.
    terms = (surrogate, squared, entropy, kl, clipped)
    tl.static_assert(len(terms) == TERM_COUNT)
    tl.static_assert((STAT.policy_loss == 0) & (STAT.value_loss == 1) & (STAT.entropy == 2))
    tl.static_assert((STAT.approx_kl == 3) & (STAT.clip_fraction == 4))
    masked = ()
    for k in tl.static_range(len(terms)):
        masked = masked + (tl.where(in_bounds, terms[k], 0.0),)
    return grad_out, grad_log_std, masked


@triton.jit
def gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """Return the gradient of PPO's loss without value clipping, see `_gradient`."""
    return _gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC, False)


@triton.jit
def gradient_value_clipped(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """Return the gradient of PPO's loss with value clipping, see `_gradient`."""
    return _gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC, True)


TOWERS = tuple(int(name == "value_loss") for name in TERMS)
"""Tower that computes each loss term: 0 the actor, 1 the critic."""
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

    | parameter         | shape         | meaning                                                        |
    |-------------------|---------------|----------------------------------------------------------------|
    | parts_ptr         | (programs, 5) | moments of advantages and returns by parts, see `part_moments` |
    | scalars_ptr       | (9)           | `Scalars`, three of them written                               |
    | totals_ptr        | (8)           | cleared                                                        |
    | skip_ptr          | ()            | cleared: optimizer steps take effect                           |
    | learning_rate_ptr | ()            | written if ANNEAL                                              |
    | iteration_ptr     | (1)           | finished iterations                                            |
    | iterations        | float         | iterations after which the learning rate is 0                  |
    """
    # E[A], Var[A] and 1 - Var[A] / Var[R], merged from the parts' counts, means and squared deviations.
    mean, variance, explained = rollout_moments(parts_ptr, programs, PARTS)
    tl.store(scalars_ptr + SCALAR.advantage_mean, mean if NORMALIZE else 0.0)
    tl.store(scalars_ptr + SCALAR.advantage_inv_std, 1.0 / (tl.sqrt(variance) + 1e-8) if NORMALIZE else 1.0)
    tl.store(scalars_ptr + SCALAR.explained_variance, explained)
    tl.static_assert(STAT.gradient_norm < 8)
    tl.store(totals_ptr + tl.arange(0, 8), tl.zeros((8,), tl.float32))
    tl.store(skip_ptr, 0.0)
    if ANNEAL:
        remaining = linear_decay(iteration_ptr, iterations)
        tl.store(learning_rate_ptr, tl.load(scalars_ptr + SCALAR.start_rate) * remaining)


@triton.jit
def _pick(terms, column, TERM: tl.constexpr):
    """Return element TERM of a vector of loss terms (32), whose indices are `column`."""
    return tl.sum(tl.where(column == TERM, terms, 0.0), axis=0)


@triton.jit
def _add(totals_ptr, STATISTIC: tl.constexpr, term):
    """Add a scalar to element STATISTIC of the totals."""
    tl.store(totals_ptr + STATISTIC, tl.load(totals_ptr + STATISTIC) + term)


@triton.jit
def record(terms, column, params_ptr, update, SPEC: tl.constexpr):
    """Add a minibatch's loss terms to the totals; set `skip` if the KL divergence exceeds 1.5 times its target, else
    count a step of Adam. Called by one program of `operant.kernels.ops.reduce`.

    `terms` are in the order of `TERMS`, but the objective, and the squared error without 1/2: the factors -1 and 1/2
    are applied here.

    | parameter  | shape | meaning                                   |
    |------------|-------|-------------------------------------------|
    | terms      | (32)  | means of the terms over the minibatch     |
    | column     | (32)  | tl.arange(0, 32)                          |
    | params_ptr | (P)   | parameters, for log_std                   |
    | update     |       | `Update`                                  |
    """
    entropy = _pick(terms, column, STAT.entropy)
    if SPEC.log_std >= 0:
        # H of a normal distribution: the sum of log_std + log(2 pi) / 2 + 1/2 over the actions
        action = tl.arange(0, SPEC.out_pad)
        entropy += tl.sum(
            tl.where(action < SPEC.head_rows, load_log_std(params_ptr, action, SPEC) + 0.5 * LOG_2_PI + 0.5, 0.0),
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
    # t <- t + 1 unless skipped; bias corrections 1 - b1^t and sqrt(1 - b2^t)
    count_step(update.steps_ptr, update.corrections_ptr, skipped)


# LAUNCHES


class PPOHooks:
    """PPO's hooks of a dense learner: the Triton functions that the learner's kernels call, the buffers that they read
    and write, and PPO's launches before and after an update. An `operant.kernels.dense.Hooks`.
    """

    sample = sample_and_store  # of `act`: sample actions from the outputs
    value_of = state_value  # of `bootstrap_values`
    record = record  # of `reduce_partials`: add up the loss terms of a minibatch

    def __init__(self, learner: Learner[Buffers, PPOConfig], anneal_iterations: int | None) -> None:
        self._learner, self._buffers, self._config = learner, learner.buffers, learner.coefficients
        self._anneal_iterations = anneal_iterations
        config, device, distribution = self._config, learner.policy.device, learner.policy.distribution
        self.loss = PPO_LOSS if config.value_clip is None else PPO_LOSS_VALUE_CLIPPED  # of `backward`
        # Coefficients of the configuration; those with a schedule are tensors, copied before every update.
        scalars = Scalars(
            clip=config.clip,
            value_clip=0.0 if config.value_clip is None else config.value_clip,
            entropy_coefficient=config.entropy_coefficient,
            value_coefficient=config.value_coefficient,
            target_kl=math.inf if config.target_kl is None else config.target_kl,
            start_rate=float(config.learning_rate),
            advantage_mean=0.0,
            advantage_inv_std=1.0,
            explained_variance=0.0,
        )
        self._scalars = torch.tensor([*map(float, scalars)], device=device)
        self._scheduled = [(self._scalars[k], value) for k, value in enumerate(scalars) if isinstance(value, Tensor)]
        self._bounds = learner.totals  # not read for discrete actions
        if isinstance(distribution, Gaussian):
            self._bounds = torch.cat(
                [distribution.action_center, distribution.action_scale, distribution.limit]
            ).flatten()

    # BUFFERS OF THE KERNELS

    def _row(self, name: str) -> Tensor:
        """Return a view of the samples from row `name` on, (T, N) or for the value (T + 1, N), as an address."""
        steps, lanes = self._buffers.rollout.reward.shape
        return self._buffers.samples[SampleRows._fields.index(name) * steps * lanes :]

    def acting(self) -> Acting:
        """Return noise and bounds for sampling, and the buffers of actions, log-probabilities and values."""
        buffers, log_probability = self._buffers, self._row("log_probability")
        return Acting(buffers.noise, self._bounds, buffers.raw, buffers.rollout.action, log_probability, self.values())

    def values(self) -> Tensor:
        """Return the values V, (T + 1, N), as an address."""
        return self._row("value")

    def samples(self) -> Samples:
        """Return the pointers that the loss reads."""
        steps, lanes = self._buffers.rollout.reward.shape
        return Samples(self._buffers.samples, self._buffers.raw, self._scalars, steps * lanes)

    def update(self) -> Update:
        """Return the pointers that `record` reads and writes."""
        learner = self._learner
        return Update(learner.totals, self._scalars, self._buffers.skip, learner.adam["step"], learner.corrections)

    def norm_sum(self) -> Tensor:
        """Return the total to whose first element each optimizer step adds the gradient norm before clipping."""
        return self._learner.totals[STAT.gradient_norm :]

    # BEFORE AND AFTER AN UPDATE

    def begin(self) -> None:
        """Write moments of the advantages, explained variance and learning rate, and clear the totals."""
        for scalar, value in self._scheduled:
            scalar.copy_(value)
        buffers, learner = self._buffers, self._learner
        parts = learner.part_moments(self._row("advantage"), self._row("returns"))
        learner.launch(
            begin,
            (1,),
            parts,
            len(parts),
            self._scalars,
            learner.totals,
            buffers.skip,
            buffers.learning_rate,
            buffers.iteration,
            float(self._anneal_iterations or 1),
            NORMALIZE=self._config.normalize_advantages,
            ANNEAL=self._anneal_iterations is not None,
            PARTS=PARTS,
        )

    def finish(self, minibatches: int) -> None:
        """Write `stats`, means over `minibatches`, and count the iteration."""
        buffers = self._buffers
        self._learner.finish(
            Stats,
            minibatches,
            buffers.iteration,
            buffers.stats,
            explained_variance=self._scalars[SCALAR.explained_variance :],
            learning_rate=buffers.learning_rate,
        )
