"""Launches of PQN's Triton kernels, and the arguments of those that `operant.kernels.dense` launches."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.algos.pqn.config import PQNConfig
from operant.algos.pqn.fused.kernels import Q_LOSS, STAT, Samples, Update, begin, finish, record
from operant.data.on_policy import Buffers
from operant.kernels import moments
from operant.kernels.dense.learner import Learner
from operant.kernels.q_values import QActing, act_epsilon_greedily, largest_value


class PQNWork:
    """PQN's part of a dense learner: arguments of its Triton functions, and its launches before and after an update. An
    `operant.kernels.dense.Work`.
    """

    loss, sample, value_of, record = Q_LOSS, act_epsilon_greedily, largest_value, record

    def __init__(self, learner: Learner[Buffers, PQNConfig], anneal_iterations: int | None) -> None:
        self._learner, self._buffers, self._config = learner, learner.buffers, learner.coefficients
        self._epsilon: Tensor = learner.policy.epsilon  # type: ignore[attr-defined]  # of a QPolicy
        self._steps, self._lanes = self._buffers.rollout.reward.shape
        self._anneal_iterations = anneal_iterations
        self._parts = torch.zeros(moments.PARTS, 5, device=learner.policy.device)

    def _returns(self) -> Tensor:
        return self._buffers.samples[self._steps * self._lanes :]

    # ARGUMENTS OF KERNELS

    def acting(self) -> QActing:
        """Return the buffers that the kernel `sample` reads and writes."""
        buffers = self._buffers
        return QActing(buffers.noise, self._epsilon, 0, buffers.rollout.action, self.values())

    def values(self) -> Tensor:
        """Return max_a Q, (T + 1, N), as an address for kernels."""
        return self._buffers.samples[2 * self._steps * self._lanes :]

    def samples(self) -> Samples:
        """Return the pointers that the loss reads."""
        return Samples(self._returns(), self._buffers.rollout.action)

    def update(self) -> Update:
        """Return the pointers that `record` writes."""
        learner = self._learner
        return Update(learner.totals, self._buffers.skip, learner.adam["step"], learner.corrections)

    def norm_sum(self) -> Tensor:
        """Return the sum of gradient norms in the totals, as an address for kernels."""
        return self._learner.totals[STAT.gradient_norm :]

    # BEFORE AND AFTER AN UPDATE

    def begin(self) -> None:
        """Write the explained variance and the learning rate, before an update."""
        buffers, learner, shards = self._buffers, self._learner, self._learner.layout.shards
        parts = min(moments.PARTS // shards, -(-self._steps * self._lanes // (shards * moments.TILE)))
        learner.launch(
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
        learner.launch(
            begin,
            (1,),
            self._parts,
            parts * shards,
            learner.totals,
            buffers.learning_rate,
            float(self._config.learning_rate),
            buffers.iteration,
            float(self._anneal_iterations or 1),
            ANNEAL=self._anneal_iterations is not None,
            PARTS=moments.PARTS,
        )

    def finish(self, minibatches: int) -> None:
        """Write `stats`, means over `minibatches`, and count the iteration."""
        learner, buffers = self._learner, self._buffers
        values = learner.policy.flat.values.data
        learner.launch(
            finish,
            (1,),
            learner.totals,
            self._epsilon,
            buffers.learning_rate,
            values,
            values.numel(),
            buffers.iteration,
            buffers.stats,
            float(minibatches),
            **learner.over_parameters(),
        )
