"""Hand-written forward and backward passes of DQN's networks on a CPU, over buffers that are allocated once.

On two cores 1.2 to 1.6 times as fast as autograd (benches/log/cpu.md). Autograd still differentiates the loss by the
network's outputs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.data import Batch
from operant.nn import manual

if TYPE_CHECKING:
    from operant.algos.dqn.dqn import DQN, QLoss

log = logging.getLogger("operant.dqn")


def use_manual_backward(dqn: DQN) -> None:
    """Replace methods of `dqn` by ones with hand-written forward and backward passes, if network, device and
    `algo.kernels` allow; else do nothing.
    """
    if not manual.applies(dqn.policy, dqn.config.kernels):
        return
    passes = ManualPasses(dqn)
    dqn.outputs, dqn.next_outputs = passes.outputs, passes.next_outputs  # type: ignore[method-assign]
    dqn.gradient = passes.gradient  # type: ignore[method-assign]
    dqn.kernels = "manual_backward"
    log.info("kernels: torch's, and a manual backward pass")


class ManualPasses:
    """Hand-written forward and backward passes of a `DQN`'s networks on a CPU, in place of its methods by autograd."""

    def __init__(self, dqn: DQN) -> None:
        self._dqn = dqn
        B, N = dqn.cycle.config.batch_size, dqn.world.count
        self._online, self._target = manual.Parameters(dqn.policy), manual.Parameters(dqn.target)
        weights = self._online.weights
        self._learning = manual.Network(dqn.policy, weights, B).with_backward()
        self._choosing, self._acting = manual.Network(dqn.policy, weights, B), manual.Network(dqn.policy, weights, N)
        self._next = manual.Network(dqn.target, self._target.weights, B)
        self._vector = torch.zeros(weights.numel())
        self._gradient = weights.views(self._vector)

    def outputs(self, observation: Tensor) -> Tensor:
        """Return the network's outputs (H, N) for observations (O, N); the next call overwrites them."""
        self._online.refresh()
        self._acting.forward(observation)
        return self._acting.parameters

    def next_outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the outputs (H, B) at the next observations s' of the target network, and of the network that chooses
        a'.
        """
        self._online.refresh()
        self._target.refresh()
        self._next.forward(batch.next_observation)
        if not self._dqn.config.double:
            return self._next.parameters, self._next.parameters
        self._choosing.forward(batch.next_observation)
        return self._next.parameters, self._choosing.parameters

    def gradient(self, batch: Batch, target: Tensor, weight: Tensor | None) -> QLoss:
        """Write the gradient of the loss to the flat gradient vector; return the loss. `target` is y (B), or its
        distribution (K, B); `weight` (B) are importance-sampling weights, None: 1.

        `next_outputs` was called since the last step, so the packed weights are current.
        """
        network = self._learning
        network.forward(batch.observation)
        with torch.enable_grad():
            outputs = network.parameters.requires_grad_()
            result = self._dqn.loss(outputs, batch, target, weight)
            (gradient,) = torch.autograd.grad(result.loss, outputs)
        network.parameters_gradient.copy_(gradient)
        network.value_gradient.zero_()
        self._vector.zero_()
        network.backward(self._gradient)
        self._online.write(self._gradient)
        return result
