"""PQN's own part of its fused kernels: the loss with a hand-written gradient, the kernels around an update, and the
buffers that all launches of an iteration read and write (`PQNHooks`).

The formula is that of `operant.algos.pqn.pqn.q_loss`. The device functions take the outputs of a network, whatever the
network: `operant.kernels.backward` calls `Q_LOSS` between its forward and its backward pass.

Shapes: T steps, N lanes, P parameters. A program computes a tile of `rows` samples, whose Q-values are the first
columns of outputs (rows, out_pad).

| buffer                 | shape     | meaning                                                                   |
|------------------------|-----------|---------------------------------------------------------------------------|
| samples.returns_ptr    | (T, N)    | Q(lambda) returns                                                         |
| samples.action_ptr     | (T, 1, N) | int32                                                                     |
| update.totals_ptr      | (8)       | sums over minibatches of the loss terms and the gradient norm, as `Stats` |
| update.steps_ptr       | ()        | optimizer steps                                                           |
| update.corrections_ptr | (2)       | Adam's bias corrections of the next step                                  |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from operant.algos.pqn.config import PQNConfig
from operant.algos.pqn.pqn import TERMS, SampleRows, Stats
from operant.data.on_policy import Buffers
from operant.kernels.dense.learner import Learner
from operant.kernels.dense.task import Loss
from operant.kernels.ops.adam import count_step
from operant.kernels.q_values import QActing, act_epsilon_greedily, largest_value
from operant.kernels.statistics import PARTS, linear_decay, offsets, rollout_moments

# BUFFERS


class Samples(NamedTuple):
    """Pointers that the loss reads."""

    returns_ptr: Any  # (T, N)
    action_ptr: Any  # (T, 1, N)


class Update(NamedTuple):
    """Pointers that `record` reads and writes: totals, and the counters of the optimizer."""

    totals_ptr: Any
    skip_ptr: Any
    steps_ptr: Any
    corrections_ptr: Any


STAT = offsets(Stats)
"""Positions by name in `totals_ptr`, `stats_ptr` and the loss terms."""
TERM_COUNT = tl.constexpr(len(TERMS))


# LOSS


@triton.jit
def load_scalars(samples):
    """Return one number that is not used: the loss has no coefficients."""
    return (0.0,)


@triton.jit
def load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC: tl.constexpr):
    """Load actions and Q(lambda) returns of samples t N + n, (rows) each; 0 out of bounds."""
    action = tl.load(samples.action_ptr + sample, mask=in_bounds, other=0)
    return action, tl.load(samples.returns_ptr + sample, mask=in_bounds, other=0.0)


@triton.jit
def gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """Return the gradient of B times the loss 1/2 E[(Q(s, a) - G)^2] in the outputs (rows, out_pad), a placeholder for
    that in log_std, and the loss terms, (rows) each in the order of `TERMS`. Zero out of bounds; B is the minibatch's
    size.

    `out` holds Q(s, .) in its first columns; `targets` are actions a and returns G, as `load_targets` returns them.
    """
    column = tl.arange(0, SPEC.out_pad)
    action, returns = targets
    chosen = tl.where((column[None, :] == action[:, None]) & in_bounds[:, None], 1.0, 0.0)
    value = tl.sum(tl.where(chosen > 0.0, out, 0.0), axis=1)
    error = tl.where(in_bounds, value - returns, 0.0)
    grad_out = error[:, None] * chosen
    terms = (0.5 * error * error, tl.abs(error), value)  # in the order of `TERMS`
    tl.static_assert(len(terms) == TERM_COUNT)
    tl.static_assert((STAT.q_loss == 0) & (STAT.td_error == 1) & (STAT.q_mean == 2))
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

    | parameter         | shape         | meaning                                                        |
    |-------------------|---------------|----------------------------------------------------------------|
    | parts_ptr         | (programs, 5) | moments of advantages and returns by parts, see `part_moments` |
    | totals_ptr        | (8)           | written                                                        |
    | learning_rate_ptr | ()            | written if ANNEAL: falls from `start_rate` to 0                |
    | iteration_ptr     | (1)           | finished iterations                                            |
    | iterations        | float         | iterations after which the learning rate is 0                  |
    """
    _mean, _variance, explained = rollout_moments(parts_ptr, programs, PARTS)
    statistic = tl.arange(0, 8)
    tl.store(totals_ptr + statistic, tl.where(statistic == STAT.explained_variance, explained, 0.0))
    if ANNEAL:
        tl.store(learning_rate_ptr, start_rate * linear_decay(iteration_ptr, iterations))


@triton.jit
def record(terms, column, params_ptr, update, SPEC: tl.constexpr):
    """Add a minibatch's loss terms to the totals, and count a step of Adam. Called by one program of
    `operant.kernels.ops.reduce`.

    `terms` (32) are means over the minibatch, in the order of `TERMS`; `column` is tl.arange(0, 32); `params_ptr` is
    not read.
    """
    mask = column < TERM_COUNT
    tl.store(update.totals_ptr + column, tl.load(update.totals_ptr + column, mask=mask, other=0.0) + terms, mask=mask)
    count_step(update.steps_ptr, update.corrections_ptr, 0.0)


# LAUNCHES


class PQNHooks:
    """PQN's hooks of a dense learner: the Triton functions that the learner's kernels call, the buffers that they read
    and write, and PQN's launches before and after an update. An `operant.kernels.dense.Hooks`.
    """

    loss = Q_LOSS  # of `backward`
    sample = act_epsilon_greedily  # of `act`
    value_of = largest_value  # of `bootstrap_values`: max_a Q
    record = record  # of `reduce_partials`: add up the loss terms of a minibatch

    def __init__(self, learner: Learner[Buffers, PQNConfig], anneal_iterations: int | None) -> None:
        self._learner, self._buffers, self._config = learner, learner.buffers, learner.coefficients
        self._epsilon: Tensor = learner.policy.epsilon  # type: ignore[attr-defined]  # of a QPolicy
        self._anneal_iterations = anneal_iterations

    # BUFFERS OF THE KERNELS

    def _row(self, name: str) -> Tensor:
        """Return a view of the samples from row `name` on, (T, N) or for the value (T + 1, N), as an address."""
        steps, lanes = self._buffers.rollout.reward.shape
        return self._buffers.samples[SampleRows._fields.index(name) * steps * lanes :]

    def acting(self) -> QActing:
        """Return noise and epsilon for acting, and the buffers of actions and values."""
        buffers = self._buffers
        return QActing(buffers.noise, self._epsilon, 0, buffers.rollout.action, self.values())

    def values(self) -> Tensor:
        """Return max_a Q, (T + 1, N), as an address."""
        return self._row("value")

    def samples(self) -> Samples:
        """Return the pointers that the loss reads."""
        return Samples(self._row("returns"), self._buffers.rollout.action)

    def update(self) -> Update:
        """Return the pointers that `record` reads and writes."""
        learner = self._learner
        return Update(learner.totals, self._buffers.skip, learner.adam["step"], learner.corrections)

    def norm_sum(self) -> Tensor:
        """Return the total to whose first element each optimizer step adds the gradient norm before clipping."""
        return self._learner.totals[STAT.gradient_norm :]

    # BEFORE AND AFTER AN UPDATE

    def begin(self) -> None:
        """Write explained variance and learning rate, and clear the other totals."""
        buffers, learner = self._buffers, self._learner
        parts = learner.part_moments(self._row("advantage"), self._row("returns"))
        learner.launch(
            begin,
            (1,),
            parts,
            len(parts),
            learner.totals,
            buffers.learning_rate,
            float(self._config.learning_rate),
            buffers.iteration,
            float(self._anneal_iterations or 1),
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
            explained_variance=self._learner.totals[STAT.explained_variance :],
            epsilon=self._epsilon,
            learning_rate=buffers.learning_rate,
        )
