"""What PQN adds to the fused kernels: its loss, how it acts, and what it works out before and behind an update.
Launches over the algorithm's buffers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from operant.algos.pqn.fused.buffers import Samples, Update
from operant.algos.pqn.fused.loss import Q_LOSS
from operant.algos.pqn.fused.statistics import STAT, begin, finish, record
from operant.kernels import moments
from operant.kernels.dense.learner import Learner
from operant.kernels.q_values import QActing, act_epsilon_greedily, largest_value


class PQNWork:
    """PQN's part of a learner."""

    loss, sample, value_of, record = Q_LOSS, act_epsilon_greedily, largest_value, record

    def __init__(self, learner: Learner) -> None:
        self._learner, self._buffers, self._coefficients = learner, learner.buffers, learner.coefficients
        self._steps, self._lanes = self._buffers.rollout.reward.shape
        self._parts = torch.zeros(moments.PARTS, 5, device=learner.policy.device)

    def _returns(self) -> Tensor:
        return self._buffers.samples[self._steps * self._lanes :]

    # WHAT KERNELS TAKE

    def acting(self) -> QActing:
        """What acting draws with, and what it writes."""
        buffers = self._buffers
        return QActing(buffers.noise, buffers.epsilon, 0, buffers.rollout.action, self.values())

    def values(self) -> Tensor:
        """Where max Q lies."""
        return self._buffers.samples[2 * self._steps * self._lanes :]

    def samples(self) -> Samples:
        """What the loss reads."""
        return Samples(self._returns(), self._buffers.rollout.action)

    def update(self) -> Update:
        """What an update counts."""
        learner = self._learner
        return Update(learner.totals, self._buffers.skip, learner.adam["step"], learner.corrections)

    def norm_sum(self) -> Tensor:
        """Where the gradient's norms are added up."""
        return self._learner.totals[STAT.gradient_norm :]

    # BEFORE AND BEHIND AN UPDATE

    def begin(self) -> None:
        """The explained variance, and the learning rate."""
        buffers, coefficients, shards = self._buffers, self._coefficients, self._learner.layout.shards
        parts = min(moments.PARTS // shards, -(-self._steps * self._lanes // (shards * moments.TILE)))
        self._learner.launch(
            moments.part_moments,
            (parts, shards),
            buffers.samples,
            self._returns(),
            self._parts,
            self._steps,
            self._lanes,
            TILE=moments.TILE,
            num_warps=8,
        )
        self._learner.launch(
            begin,
            (1,),
            self._parts,
            parts * shards,
            self._learner.totals,
            buffers.learning_rate,
            coefficients.start_rate,
            buffers.iteration,
            float(coefficients.anneal_iterations or 1),
            ANNEAL=coefficients.anneal_iterations is not None,
            PARTS=moments.PARTS,
        )

    def finish(self, minibatches: int) -> None:
        """The update's numbers, and one more iteration."""
        learner, buffers = self._learner, self._buffers
        values = learner.policy.flat.values.data
        learner.launch(
            finish,
            (1,),
            learner.totals,
            buffers.epsilon,
            buffers.learning_rate,
            values,
            values.numel(),
            buffers.iteration,
            buffers.stats,
            float(minibatches),
            **learner.over_parameters(),
        )
