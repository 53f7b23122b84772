"""PPO's acting and learning as launches of the fused kernels, over the buffers that the algorithm owns. Knows what is launched when, and how widely.

Nothing here allocates or reads back once it is made, so that a CUDA graph can hold it. Kernels compile at their first launch, which must be before a capture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

from operant.fused.act import act, leftover_values
from operant.fused.descend import STATS, gradient
from operant.fused.spec import Buffers, Loss, Shape, Spec, padded
from operant.fused.step import adam, add_parts, begin, finish, part_moments
from operant.heads import Gaussian
from operant.optimizer import Adam
from operant.policy import Policy

MOMENT_PARTS, MOMENT_TILE = 512, 4096
"""The advantages' moments are summed in up to so many parts, of tiles of so many samples."""


class Learner:
    """One policy's fused kernels."""

    def __init__(self, spec: Spec, policy: Policy, optimizer: Adam, buffers: Buffers, loss: Loss, shape: Shape, block: int) -> None:
        self.spec, self.shape = spec, shape
        self._policy, self._optimizer, self._buffers, self._loss, self._block = policy, optimizer, buffers, loss, block
        self._steps, self._lanes = buffers.rollout.reward.shape
        self._stride = self._steps * self._lanes
        self._adam = optimizer.tensors()
        device, size = policy.device, policy.flat.values.numel()
        self._width = size + STATS.value
        self._partial = torch.zeros(shape.programs, self._width, device=device)
        self._squares = torch.zeros(size // 32, device=device)
        self._totals, self._scalars = torch.zeros(8, device=device), torch.zeros(8, device=device)
        self._parts = torch.zeros(5, MOMENT_PARTS, device=device)
        head, moments = policy.head, policy.moments
        self._bounds = torch.cat([head.centre, head.reach, head.limit]).flatten() if isinstance(head, Gaussian) else self._totals
        # Shift and scale side by side: copied before a rollout, since the moments stand still until the next.
        self._moments = torch.zeros(2, moments.shift.shape[0], device=device) if moments is not None else self._totals

    def cut(self, shape: Shape) -> Learner:
        """The same work over the same buffers in another shape."""
        return Learner(self.spec, self._policy, self._optimizer, self._buffers, self._loss, shape, self._block)

    def _place(self, name: str) -> Tensor:
        """A row of the samples: an address, not a copy."""
        row = ("advantage", "log_probability", "returns", "value").index(name)
        return self._buffers.samples[row * self._stride :]

    def prepare(self) -> None:
        """Take the moments as they are for a rollout and its update."""
        moments = self._policy.moments
        if moments is not None:
            torch.cat([moments.shift.t(), moments.scale.t()], out=self._moments)

    def act(self, t: int) -> None:
        """Actions, log-probabilities and values of step t."""
        buffers, shape = self._buffers, self.shape
        act[(-(-self._lanes // shape.act_rows), self.spec.towers)](
            buffers.rollout.observation, buffers.uniform, buffers.raw, buffers.rollout.action, self._place("log_probability"), self._place("value"),
            self._policy.flat.values.data, self._moments, self._bounds, t, self._lanes,
            SPEC=self.spec, ROWS=shape.act_rows, num_warps=shape.act_warps, num_stages=0,
        )  # fmt: skip

    def leftovers(self, finals: bool) -> None:
        """V of the observation after the last step, and with `finals` of the true final observations of truncated episodes."""
        buffers, shape, rollout = self._buffers, self.shape, self._buffers.rollout
        first = 0 if finals else self._steps
        leftover_values[(-(-self._lanes // shape.act_rows), self._steps + 1 - first)](
            rollout.observation, rollout.final_observation, rollout.truncated, self._place("value"), buffers.final_value,
            self._policy.flat.values.data, self._moments, first, self._steps, self._lanes,
            SPEC=self.spec, ROWS=shape.act_rows, num_warps=shape.act_warps, num_stages=0,
        )  # fmt: skip

    def update(self, epochs: int, minibatches: int) -> None:
        """Epochs over the rollout in the buffers' order, and the update's numbers."""
        buffers = self._buffers
        self.begin()
        blocks = buffers.order.shape[1] // minibatches
        for first in range(0, epochs * minibatches * blocks, blocks):
            self.gradient(first, blocks)
            self.add_parts()
            self.descend()
        values = self._policy.flat.values.data
        finish[(1,)](
            self._totals, self._scalars, buffers.learning_rate, values, values.numel(), buffers.iteration, buffers.stats,
            float(epochs * minibatches), TILE=1024,
        )  # fmt: skip

    def begin(self) -> None:
        """What an update needs to know of the whole rollout, and its learning rate."""
        buffers, loss = self._buffers, self._loss
        parts = min(MOMENT_PARTS, -(-self._stride // MOMENT_TILE))
        part_moments[(parts,)](buffers.samples, self._parts, self._stride, self._stride, PARTS=MOMENT_PARTS, TILE=MOMENT_TILE, num_warps=8)
        begin[(1,)](
            self._parts, parts, self._scalars, self._totals, buffers.skip, buffers.learning_rate, buffers.iteration,
            loss.start_rate, float(loss.anneal_iterations or 1),
            NORMALIZE=loss.normalize_advantages, ANNEAL=loss.anneal_iterations is not None, PARTS=MOMENT_PARTS,
        )  # fmt: skip

    def gradient(self, first: int, blocks: int) -> None:
        """The gradient of the loss over blocks order[first : first + blocks], in parts."""
        arguments, options = self._gradient_call(first, blocks)
        gradient[(self.shape.programs, self.spec.towers)](*arguments, **options)

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that a program of the largest kernel asks for. Compiles it, and launches nothing."""
        arguments, options = self._gradient_call(0, 1)
        with torch.cuda.device(self._policy.device):
            wanted = gradient.warmup(*arguments, grid=(1,), **options).metadata.shared
            return wanted <= driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"]

    def _gradient_call(self, first: int, blocks: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        buffers, shape, loss = self._buffers, self.shape, self._loss
        arguments = (
            buffers.order, buffers.rollout.observation, buffers.raw, buffers.samples, self._policy.flat.values.data, self._moments, self._scalars,
            self._partial, first, blocks * self._block, self._lanes, self._stride, self._width,
            loss.clip, loss.value_clip or 0.0, loss.entropy_coefficient, loss.value_coefficient,
        )  # fmt: skip
        # No software pipeline: the next tile's loads are ahead of it by hand, and Triton 3.6 fails on this loop with one.
        compiled = {"num_warps": shape.warps, "num_stages": 0, "maxnreg": shape.most_registers}
        return arguments, {"SPEC": self.spec, "VALUE_CLIPPED": loss.value_clip is not None, "ROWS": shape.rows, "BLOCK": self._block, **compiled}

    def add_parts(self) -> None:
        """The gradient from its parts, and the update's numbers."""
        buffers, loss, flat, programs = self._buffers, self._loss, self._policy.flat, self.shape.programs
        add_parts[(self._width // 32,)](
            self._partial, programs, self._width, flat.gradient, self._squares, self._totals, self._scalars, buffers.skip, self._adam["step"],
            flat.values.data, loss.target_kl or 0.0,
            SPEC=self.spec, TARGETED=loss.target_kl is not None, CHUNK=min(128, padded(programs)), num_warps=4,
        )  # fmt: skip

    def descend(self) -> None:
        """One step of Adam down the gradient, shortened where it is too long."""
        buffers, loss, flat = self._buffers, self._loss, self._policy.flat
        values, size = flat.values.data, flat.values.numel()
        adam[(-(-size // 256),)](
            values, flat.gradient, self._adam["exp_avg"], self._adam["exp_avg_sq"], self._squares, size // 32, size, self._totals, self._scalars,
            buffers.skip, buffers.learning_rate, loss.max_gradient_norm, loss.adam_epsilon,
            BLOCKS=padded(size // 32), TILE=256, num_warps=4,
        )  # fmt: skip
