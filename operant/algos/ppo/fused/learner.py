"""PPO's acting and learning as launches of fused kernels, over the buffers that the algorithm owns. Knows what is launched when, not how a network runs.

Nothing here allocates or reads back once it is made, so that a CUDA graph can hold it. Kernels compile at their first launch, which must be before a capture.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

from operant.algos.ppo.fused.buffers import Coefficients, Samples, Scalars, Task, Update
from operant.algos.ppo.fused.loss import PPO_LOSS, PPO_LOSS_VALUE_CLIPPED
from operant.algos.ppo.fused.statistics import begin, finish, part_moments, record
from operant.algos.ppo.stats import Stats
from operant.kernels import Spec, TileConfig, padded
from operant.kernels.backward import TERM_COLUMNS
from operant.kernels.reduce import REDUCE_COLUMNS, adam_step, reduce_partials
from operant.kernels.structs import Acting, Bootstrap, Inputs, Minibatch, Moments
from operant.nn import Gaussian

MOMENT_PARTS, MOMENT_TILE = 512, 4096
"""The advantages' moments are summed in up to so many parts, of tiles of so many samples."""

LARGE = 2**18
"""Parameters above which what goes over all of them takes larger tiles."""


class Learner:
    """One policy's fused kernels in a tile config. Acting and the gradient are left to `resident.ResidentLearner` and `per_layer.PerLayerLearner`."""

    config: TileConfig

    def __init__(self, spec: Spec, task: Task, config: TileConfig) -> None:
        policy, buffers, coefficients = task.policy, task.buffers, task.coefficients
        self.spec, self.task, self.config, self.policy, self.buffers, self.coefficients = spec, task, config, policy, buffers, coefficients
        self.layout = task.layout._replace(chunks=config.chunks)
        self._steps, self._lanes = buffers.rollout.reward.shape
        self._stride = self._steps * self._lanes
        self._adam = task.optimizer.tensors()
        self._values, self._gradient = policy.flat.values.data, policy.flat.gradient
        device, size = policy.device, self._values.numel()
        # Rows of partial sums, one a chunk.
        self._width = size + TERM_COLUMNS.value
        self._partial = torch.zeros(config.chunks, self._width, device=device)
        self._squares = torch.zeros(size // REDUCE_COLUMNS.value, device=device)
        self._totals, self._corrections = torch.zeros(8, device=device), torch.zeros(2, device=device)
        self._scalars = torch.tensor(_scalars(coefficients), device=device)
        self._parts = torch.zeros(5, MOMENT_PARTS, device=device)
        self._loss = PPO_LOSS_VALUE_CLIPPED if coefficients.value_clip is not None else PPO_LOSS
        # What the kernels read of the policy beside its parameters.
        distribution, normalizer = policy.distribution, policy.normalizer
        gaussian = distribution if isinstance(distribution, Gaussian) else None
        self._bounds = torch.cat([gaussian.centre, gaussian.reach, gaussian.limit]).flatten() if gaussian is not None else self._totals
        # Mean and inv_std side by side: copied before a rollout, since the normalizer stands still until the next.
        self._normalizer = torch.zeros(2, normalizer.mean.shape[0], device=device) if normalizer is not None else self._totals
        self._partial_one_hot = getattr(policy.net, "partial_one_hot", None)
        if self._partial_one_hot is not None:
            encoder = self._partial_one_hot
            self._normalizer = torch.zeros(4, len(encoder.feature), device=device)
            self._normalizer[0] = encoder.feature
            self._normalizer[1] = encoder.category[:, 0].float().index_fill_(0, encoder.numeric_columns, -1.0)
            self._normalizer[3] = 1.0
            self._categorical = (self._normalizer[1] >= 0.0).float()  # whose mean is 0, and whose inv_std is 1
            self._numeric = 1.0 - self._categorical
        self._legal_mask = buffers.rollout.legal if self.spec.legal else buffers.rollout.truncated  # or bytes that nothing reads
        self._asked: int | None = None  # in a rehearsal the most shared memory that a kernel has asked for

    def spare(self) -> Learner:
        """The same learner, which from now on works on copies of the optimizer's state and the policy's gradient: to measure with."""
        self._adam = {name: value.clone() for name, value in self._adam.items()}
        self._gradient = self._gradient.clone()
        return self

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that programs of the network's kernels ask for. Compiles them, and launches nothing."""
        with torch.cuda.device(self.policy.device):
            self._asked = 0
            self.act(0)
            self.backward(0)
            asked, self._asked = self._asked, None
            return asked <= driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"]

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch a kernel, or in a rehearsal only compile it."""
        if self._asked is None:
            kernel[grid](*arguments, **options)
        else:
            self._asked = max(self._asked, kernel.warmup(*arguments, grid=grid, **options).metadata.shared)

    def _place(self, name: str) -> Tensor:
        """A row of the samples: an address, not a copy."""
        row = ("advantage", "log_probability", "returns", "value").index(name)
        return self.buffers.samples[row * self._stride :]

    # WHAT KERNELS TAKE

    def _inputs(self) -> Inputs:
        return Inputs(self.buffers.rollout.observation, self._normalizer, self._legal_mask)

    def _acting(self) -> Acting:
        buffers = self.buffers
        return Acting(buffers.noise, self._bounds, buffers.raw, buffers.rollout.action, self._place("log_probability"), self._place("value"))

    def _bootstrap(self) -> Bootstrap:
        rollout = self.buffers.rollout
        return Bootstrap(rollout.observation, rollout.final_observation, rollout.truncated, self._place("value"), self.buffers.final_value)

    def _samples(self) -> Samples:
        return Samples(self.buffers.samples, self.buffers.raw, self._scalars, self._stride)

    def _minibatch(self, k: int) -> Minibatch:
        """Minibatch k of all epochs', in its chunks."""
        layout = self.layout
        first = k * layout.shards * layout.shard_blocks
        return Minibatch(self.buffers.order, first, layout.shard_blocks, layout.chunks // layout.shards, layout.chunk_blocks, layout.samples)

    # COLLECT

    def prepare(self) -> None:
        """Take the normalizer as it is for a rollout and its update."""
        normalizer = self.policy.normalizer
        if normalizer is not None and self._partial_one_hot is not None:
            mean, inv_std = self._normalizer[2:]
            torch.index_select(normalizer.mean[:, 0], 0, self._partial_one_hot.feature, out=mean).mul_(self._numeric)
            torch.index_select(normalizer.inv_std[:, 0], 0, self._partial_one_hot.feature, out=inv_std).mul_(self._numeric).add_(self._categorical)
        elif normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self._normalizer)

    def act(self, t: int) -> None:
        """Actions, log-probabilities and values of step t."""
        raise NotImplementedError

    def bootstrap(self, finals: bool) -> None:
        """V of the observation after the last step, and with `finals` of the true final observations of truncated episodes."""
        raise NotImplementedError

    # UPDATE

    def backward(self, k: int) -> None:
        """The gradient of minibatch k's loss as rows of partial sums (chunks, width), each with the loss's terms behind it."""
        raise NotImplementedError

    def update(self, epochs: int) -> None:
        """Epochs over the rollout in the buffers' order, and the update's numbers."""
        buffers = self.buffers
        minibatches = epochs * self.layout.minibatches
        self.begin()
        for k in range(minibatches):
            self.backward(k)
            self.reduce()
            self.step()
        self._launch(
            finish, (1,),
            self._totals, self._scalars, buffers.learning_rate, self._values, self._values.numel(), buffers.iteration, buffers.stats, float(minibatches),
            **({"TILE": 1024} if self._values.numel() <= LARGE else {"TILE": 8192, "num_warps": 16}),
        )  # fmt: skip

    def begin(self) -> None:
        """What an update needs to know of the whole rollout, and its learning rate."""
        buffers, coefficients, shards = self.buffers, self.coefficients, self.layout.shards
        parts = min(MOMENT_PARTS // shards, -(-self._stride // (shards * MOMENT_TILE)))
        self._launch(
            part_moments, (parts, shards),
            buffers.samples, self._parts, self._steps, self._lanes, self._stride, PARTS=MOMENT_PARTS, TILE=MOMENT_TILE, num_warps=8,
        )  # fmt: skip
        self._launch(
            begin, (1,),
            self._parts, parts * shards, self._scalars, self._totals, buffers.skip, buffers.learning_rate, buffers.iteration,
            float(coefficients.anneal_iterations or 1),
            NORMALIZE=coefficients.normalize_advantages, ANNEAL=coefficients.anneal_iterations is not None, PARTS=MOMENT_PARTS,
        )  # fmt: skip

    def reduce(self) -> None:
        """The gradient from its rows of partial sums, and the update's numbers. The place where several devices will exchange their shards' sums."""
        update = Update(self._totals, self._scalars, self.buffers.skip, self._adam["step"], self._corrections)
        shards, chunks = self.layout.shards, self.layout.chunks
        self._launch(
            reduce_partials, (self._width // REDUCE_COLUMNS.value,),
            self._partial, self._width, self._gradient, self._squares, self._values, update,
            SPEC=self.spec, RECORD=record, SHARDS=shards, SHARD_ROWS=chunks // shards, num_warps=4,
        )  # fmt: skip

    def step(self) -> None:
        """One step of Adam down the gradient, shortened where it is too long."""
        buffers, coefficients, values, size = self.buffers, self.coefficients, self._values, self._values.numel()
        moments = Moments(self._adam["exp_avg"], self._adam["exp_avg_sq"], self._corrections)
        # Every program adds the squares up for itself: of a large network few programs do, by many threads.
        tile, warps = (256, 4) if size <= LARGE else (1024, 16)
        self._launch(
            adam_step, (-(-size // tile),),
            values, self._gradient, moments, self._squares, len(self._squares), size, buffers.skip, buffers.learning_rate,
            self._totals[Stats._fields.index("gradient_norm") :], coefficients.max_gradient_norm, coefficients.adam_epsilon,
            BLOCKS=padded(len(self._squares)), TILE=tile, num_warps=warps,
        )  # fmt: skip


def _scalars(coefficients: Coefficients) -> Scalars:
    """The device's buffer as it begins."""
    return Scalars(
        clip=coefficients.clip, value_clip=coefficients.value_clip or 0.0, entropy_coefficient=coefficients.entropy_coefficient,
        value_coefficient=coefficients.value_coefficient, target_kl=math.inf if coefficients.target_kl is None else coefficients.target_kl,
        start_rate=coefficients.start_rate, advantage_mean=0.0, advantage_inv_std=1.0, explained_variance=0.0,
    )  # fmt: skip
