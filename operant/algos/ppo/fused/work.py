"""Launches of PPO's Triton kernels, and the arguments of those that `operant.kernels.dense` launches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.fused.kernels import (
    PPO_LOSS,
    PPO_LOSS_VALUE_CLIPPED,
    STAT,
    Samples,
    Scalars,
    Update,
    begin,
    finish,
    record,
)
from operant.data.on_policy import Buffers
from operant.kernels import moments
from operant.kernels.act import sample_and_store, state_value
from operant.kernels.arguments import Acting
from operant.kernels.dense.learner import Learner
from operant.nn import Gaussian

ROWS = ("advantage", "log_probability", "returns", "value")
"""Rows of `Experience.samples`, in their order."""


class PPOWork:
    """PPO's part of a dense learner: arguments of its Triton functions, and its launches before and after an update. An
    `operant.kernels.dense.Work`.
    """

    sample, value_of, record = sample_and_store, state_value, record

    def __init__(self, learner: Learner[Buffers, PPOConfig], anneal_iterations: int | None) -> None:
        self._learner, self._buffers, self._config = learner, learner.buffers, learner.coefficients
        self._steps, self._lanes = self._buffers.rollout.reward.shape
        self._anneal_iterations, device = anneal_iterations, learner.policy.device
        config = self._config
        # Coefficients are keys of the configuration, those that are scheduled scalars on the device.
        initial = {
            "start_rate": float(config.learning_rate),
            "advantage_mean": 0.0,
            "advantage_inv_std": 1.0,
            "explained_variance": 0.0,
        }
        not_set = {"value_clip": 0.0, "target_kl": math.inf}
        given = {name: getattr(config, name) for name in Scalars._fields if name not in initial}
        initial |= {name: not_set[name] if value is None else value for name, value in given.items()}
        scalars = Scalars(**initial)
        self._scalars = torch.tensor([*map(float, scalars)], device=device)
        self._scheduled = [(self._scalars[k], value) for k, value in enumerate(scalars) if isinstance(value, Tensor)]
        self._parts = torch.zeros(moments.PARTS, 5, device=device)
        self.loss = PPO_LOSS if config.value_clip is None else PPO_LOSS_VALUE_CLIPPED
        gaussian = learner.policy.distribution
        self._bounds = (
            torch.cat([gaussian.action_center, gaussian.action_scale, gaussian.limit]).flatten()
            if isinstance(gaussian, Gaussian)
            else learner.totals
        )

    def _row(self, name: str) -> Tensor:
        """Return a view of the experience's samples from row `name` on, as an address for kernels."""
        return self._buffers.samples[ROWS.index(name) * self._steps * self._lanes :]

    # ARGUMENTS OF KERNELS

    def acting(self) -> Acting:
        """Return the buffers that the kernel `sample` reads and writes."""
        buffers, log_probability = self._buffers, self._row("log_probability")
        action = buffers.rollout.action
        return Acting(buffers.noise, self._bounds, buffers.raw, action, log_probability, self.values())

    def values(self) -> Tensor:
        """Return V, (T + 1, N), as an address for kernels."""
        return self._row("value")

    def samples(self) -> Samples:
        """Return the pointers that the loss reads."""
        return Samples(self._buffers.samples, self._buffers.raw, self._scalars, self._steps * self._lanes)

    def update(self) -> Update:
        """Return the pointers that `record` writes."""
        learner = self._learner
        return Update(learner.totals, self._scalars, self._buffers.skip, learner.adam["step"], learner.corrections)

    def norm_sum(self) -> Tensor:
        """Return the sum of gradient norms in the totals, as an address for kernels."""
        return self._learner.totals[STAT.gradient_norm :]

    # BEFORE AND AFTER AN UPDATE

    def begin(self) -> None:
        """Write the moments of the advantages, the explained variance and the learning rate, before an update."""
        for scalar, value in self._scheduled:
            scalar.copy_(value)
        buffers, learner, samples = self._buffers, self._learner, self._steps * self._lanes
        shards, exchange = learner.layout.shards, learner.task.exchange
        parts = min(moments.PARTS // (shards * exchange.ranks), -(-samples // (shards * moments.TILE)))
        learner.launch(
            moments.part_moments,
            (parts, shards),
            buffers.samples,
            self._row("returns"),
            self._parts,
            self._steps,
            self._lanes,
            TILE=moments.TILE,
            num_warps=8,
        )
        every = exchange.gather(self._parts[: parts * shards])  # of all ranks in their order
        learner.launch(
            begin,
            (1,),
            every,
            len(every),
            self._scalars,
            learner.totals,
            buffers.skip,
            buffers.learning_rate,
            buffers.iteration,
            float(self._anneal_iterations or 1),
            NORMALIZE=self._config.normalize_advantages,
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
            self._scalars,
            buffers.learning_rate,
            values,
            values.numel(),
            buffers.iteration,
            buffers.stats,
            float(minibatches),
            **learner.over_parameters(),
        )
