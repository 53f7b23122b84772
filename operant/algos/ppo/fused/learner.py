"""PPO's acting and learning as launches of fused kernels, over the buffers that the algorithm owns. Knows what is launched when, not how a network is cut.

Nothing here allocates or reads back once it is made, so that a CUDA graph can hold it. Kernels compile at their first launch, which must be before a capture.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from triton.runtime import driver

from operant.algos.ppo.fused.loss import STATS
from operant.kernels.reduce import adam, add_parts, begin, finish, part_moments
from operant.kernels.spec import Buffers, Loss, Spec, padded
from operant.kernels.tiles import Shape
from operant.nn import mlp
from operant.nn.distributions import Gaussian
from operant.nn.optimizer import Adam
from operant.nn.policy import Policy

MOMENT_PARTS, MOMENT_TILE = 512, 4096
"""The advantages' moments are summed in up to so many parts, of tiles of so many samples."""

LARGE = 2**18
"""Parameters above which what goes over all of them takes larger tiles."""


class Learner:
    """One policy's fused kernels, cut by `shape`. Acting and the gradient are the business of `whole.Whole` and `layered.Layered`."""

    shape: Shape

    def __init__(self, spec: Spec, policy: Policy, optimizer: Adam, buffers: Buffers, loss: Loss, shape: Shape, block: int) -> None:
        self.spec, self.shape, self.policy, self.optimizer, self.buffers, self.loss, self.block = spec, shape, policy, optimizer, buffers, loss, block
        self._steps, self._lanes = buffers.rollout.reward.shape
        self._stride = self._steps * self._lanes
        self._adam = optimizer.tensors()
        self._values, self._gradient = policy.flat.values.data, policy.flat.gradient
        device, size = policy.device, self._values.numel()
        self._width = size + STATS.value
        self._partial = torch.zeros(shape.programs, self._width, device=device)
        self._squares = torch.zeros(size // 32, device=device)
        self._totals, self._scalars = torch.zeros(8, device=device), torch.zeros(8, device=device)
        self._parts = torch.zeros(5, MOMENT_PARTS, device=device)
        distribution, normalizer = policy.distribution, policy.normalizer
        gaussian = distribution if isinstance(distribution, Gaussian) else None
        self._bounds = torch.cat([gaussian.centre, gaussian.reach, gaussian.limit]).flatten() if gaussian is not None else self._totals
        # Mean and inverse standard deviation side by side: copied before a rollout, since the normalizer stands still until the next.
        self._moments = torch.zeros(2, normalizer.mean.shape[0], device=device) if normalizer is not None else self._totals
        self._partial_one_hot = policy.net.partial_one_hot if isinstance(policy.net, mlp.MLP) else None
        if self._partial_one_hot is not None:
            encoder = self._partial_one_hot
            self._moments = torch.zeros(4, len(encoder.feature), device=device)
            self._moments[0] = encoder.feature
            self._moments[1] = encoder.category[:, 0].float().index_fill_(0, encoder.numeric_columns, -1.0)
            self._moments[3] = 1.0
            self._categorical = (self._moments[1] >= 0.0).float()  # whose mean is 0, and whose inv_std is 1
            self._numeric = 1.0 - self._categorical
        self._legal = buffers.rollout.legal if self.spec.legal else buffers.rollout.truncated  # or bytes that nobody reads
        self._asked: int | None = None  # in a rehearsal the most shared memory that a kernel has asked for

    def spare(self) -> Self:
        """The same learner, which from now on works on copies of the optimiser's state and the policy's gradient: for whoever only measures."""
        self._adam = {name: value.clone() for name, value in self._adam.items()}
        self._gradient = self._gradient.clone()
        return self

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that programs of the network's kernels ask for. Compiles them, and launches nothing."""
        with torch.cuda.device(self.policy.device):
            self._asked = 0
            self.act(0)
            self.gradient(0, 1)
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

    # COLLECT

    def prepare(self) -> None:
        """Take the normalizer as it is for a rollout and its update."""
        normalizer = self.policy.normalizer
        if normalizer is not None and self._partial_one_hot is not None:
            mean, inv_std = self._moments[2:]
            torch.index_select(normalizer.mean[:, 0], 0, self._partial_one_hot.feature, out=mean).mul_(self._numeric)
            torch.index_select(normalizer.inv_std[:, 0], 0, self._partial_one_hot.feature, out=inv_std).mul_(self._numeric).add_(self._categorical)
        elif normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self._moments)

    def act(self, t: int) -> None:
        """Actions, log-probabilities and values of step t."""
        raise NotImplementedError

    def leftovers(self, finals: bool) -> None:
        """V of the observation after the last step, and with `finals` of the true final observations of truncated episodes."""
        raise NotImplementedError

    # UPDATE

    def gradient(self, first: int, blocks: int) -> None:
        """The gradient of the loss over blocks order[first : first + blocks], in parts: (programs, width), each with the loss's numbers behind it."""
        raise NotImplementedError

    def update(self, epochs: int, minibatches: int) -> None:
        """Epochs over the rollout in the buffers' order, and the update's numbers."""
        buffers = self.buffers
        self.begin()
        blocks = buffers.order.shape[1] // minibatches
        for first in range(0, epochs * minibatches * blocks, blocks):
            self.gradient(first, blocks)
            self.add_parts()
            self.descend()
        self._launch(
            finish, (1,),
            self._totals, self._scalars, buffers.learning_rate, self._values, self._values.numel(), buffers.iteration, buffers.stats,
            float(epochs * minibatches), **({"TILE": 1024} if self._values.numel() <= LARGE else {"TILE": 8192, "num_warps": 16}),
        )  # fmt: skip

    def begin(self) -> None:
        """What an update needs to know of the whole rollout, and its learning rate."""
        buffers, loss = self.buffers, self.loss
        parts = min(MOMENT_PARTS, -(-self._stride // MOMENT_TILE))
        self._launch(part_moments, (parts,), buffers.samples, self._parts, self._stride, self._stride, PARTS=MOMENT_PARTS, TILE=MOMENT_TILE, num_warps=8)
        self._launch(
            begin, (1,),
            self._parts, parts, self._scalars, self._totals, buffers.skip, buffers.learning_rate, buffers.iteration,
            loss.start_rate, float(loss.anneal_iterations or 1),
            NORMALIZE=loss.normalize_advantages, ANNEAL=loss.anneal_iterations is not None, PARTS=MOMENT_PARTS,
        )  # fmt: skip

    def add_parts(self) -> None:
        """The gradient from its parts, and the update's numbers."""
        buffers, loss, programs = self.buffers, self.loss, self.shape.programs
        self._launch(
            add_parts, (self._width // 32,),
            self._partial, programs, self._width, self._gradient, self._squares, self._totals, self._scalars, buffers.skip, self._adam["step"],
            self._values, loss.target_kl or 0.0,
            SPEC=self.spec, TARGETED=loss.target_kl is not None, CHUNK=min(128, padded(programs)), num_warps=4,
        )  # fmt: skip

    def descend(self) -> None:
        """One step of Adam down the gradient, shortened where it is too long."""
        buffers, loss, values, size = self.buffers, self.loss, self._values, self._values.numel()
        # Every program adds the squares up for itself: of a large network few programs do, by many threads.
        tile, warps = (256, 4) if size <= LARGE else (1024, 16)
        self._launch(
            adam, (-(-size // tile),),
            values, self._gradient, self._adam["exp_avg"], self._adam["exp_avg_sq"], self._squares, size // 32, size, self._totals, self._scalars,
            buffers.skip, buffers.learning_rate, loss.max_gradient_norm, loss.adam_epsilon,
            BLOCKS=padded(size // 32), TILE=tile, num_warps=warps,
        )  # fmt: skip
