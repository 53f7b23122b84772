"""What PPO adds to the fused kernels: its loss, how it acts, and what it works out before and behind an update.
Launches over the algorithm's buffers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from operant.algos.ppo.fused.buffers import Coefficients, Samples, Scalars, Update
from operant.algos.ppo.fused.loss import PPO_LOSS, PPO_LOSS_VALUE_CLIPPED
from operant.algos.ppo.fused.statistics import STAT, begin, finish, record
from operant.kernels import moments
from operant.kernels.act import sample_and_store, state_value
from operant.kernels.dense.learner import Learner
from operant.kernels.structs import Acting
from operant.nn import Gaussian


class PPOWork:
    """PPO's part of a learner."""

    sample, value_of, record = sample_and_store, state_value, record

    def __init__(self, learner: Learner) -> None:
        self._learner, self._buffers, self._coefficients = learner, learner.buffers, learner.coefficients
        self._steps, self._lanes = self._buffers.rollout.reward.shape
        device = learner.policy.device
        begins = _scalars(self._coefficients)
        self._scalars = torch.tensor([*map(float, begins)], device=device)
        self._scheduled = [
            (self._scalars[place], value) for place, value in enumerate(begins) if isinstance(value, Tensor)
        ]
        self._parts = torch.zeros(moments.PARTS, 5, device=device)
        self.loss = PPO_LOSS_VALUE_CLIPPED if self._coefficients.value_clip is not None else PPO_LOSS
        gaussian = learner.policy.distribution
        self._bounds = (
            torch.cat([gaussian.action_center, gaussian.action_scale, gaussian.limit]).flatten()
            if isinstance(gaussian, Gaussian)
            else learner.totals
        )

    def _place(self, name: str) -> Tensor:
        """A row of the samples: an address, not a copy."""
        row = ("advantage", "log_probability", "returns", "value").index(name)
        return self._buffers.samples[row * self._steps * self._lanes :]

    # WHAT KERNELS TAKE

    def acting(self) -> Acting:
        """What acting draws with, and what it writes."""
        buffers = self._buffers
        return Acting(
            buffers.noise,
            self._bounds,
            buffers.raw,
            buffers.rollout.action,
            self._place("log_probability"),
            self.values(),
        )

    def values(self) -> Tensor:
        """Where V lies."""
        return self._place("value")

    def samples(self) -> Samples:
        """What the loss reads."""
        return Samples(self._buffers.samples, self._buffers.raw, self._scalars, self._steps * self._lanes)

    def update(self) -> Update:
        """What an update counts."""
        learner = self._learner
        return Update(learner.totals, self._scalars, self._buffers.skip, learner.adam["step"], learner.corrections)

    def norm_sum(self) -> Tensor:
        """Where the gradient's norms are added up."""
        return self._learner.totals[STAT.gradient_norm :]

    # BEFORE AND BEHIND AN UPDATE

    def begin(self) -> None:
        """The advantages' moments, the explained variance, and the learning rate."""
        for place, value in self._scheduled:
            place.copy_(value)
        buffers, coefficients, shards, exchange = (
            self._buffers,
            self._coefficients,
            self._learner.layout.shards,
            self._learner.task.exchange,
        )
        parts = min(
            moments.PARTS // (shards * exchange.ranks), -(-self._steps * self._lanes // (shards * moments.TILE))
        )
        self._learner.launch(
            moments.part_moments,
            (parts, shards),
            buffers.samples,
            self._place("returns"),
            self._parts,
            self._steps,
            self._lanes,
            TILE=moments.TILE,
            num_warps=8,
        )
        every = exchange.gather(self._parts[: parts * shards])  # of all ranks in their order
        self._learner.launch(
            begin,
            (1,),
            every,
            len(every),
            self._scalars,
            self._learner.totals,
            buffers.skip,
            buffers.learning_rate,
            buffers.iteration,
            float(coefficients.anneal_iterations or 1),
            NORMALIZE=coefficients.normalize_advantages,
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
            self._scalars,
            buffers.learning_rate,
            values,
            values.numel(),
            buffers.iteration,
            buffers.stats,
            float(minibatches),
            **learner.over_parameters(),
        )


def _scalars(coefficients: Coefficients) -> Scalars:
    """The device's buffer as it begins."""
    reach, most_kl = coefficients.value_clip, coefficients.target_kl
    return Scalars(
        clip=coefficients.clip,
        value_clip=0.0 if reach is None else reach,
        entropy_coefficient=coefficients.entropy_coefficient,
        value_coefficient=coefficients.value_coefficient,
        target_kl=math.inf if most_kl is None else most_kl,
        start_rate=coefficients.start_rate,
        advantage_mean=0.0,
        advantage_inv_std=1.0,
        explained_variance=0.0,
    )
