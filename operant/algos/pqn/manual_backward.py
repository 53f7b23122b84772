"""PQN's gradient on a CPU by a manual forward and backward pass. Equal to autograd of `q_loss` to rounding. Knows no
rollout and no optimizer.

Shape letters: A actions, n samples of a chunk, B of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from operant.algos.pqn.loss import Batch, LossTerms
from operant.nn import QPolicy, chunked, manual

TERMS = len(LossTerms._fields)


class _Chunk:
    """The loss and its gradient on chunks of n samples, as sums over them: what adds the chunks up divides by B."""

    def __init__(self, policy: QPolicy, weights: manual.Weights, n: int) -> None:
        self._network = manual.Network(policy, weights, n).with_backward()
        self._terms = torch.empty(TERMS, n)

    def add(self, samples: Batch, gradient: manual.Weights, totals: Tensor) -> None:
        """Add to the gradient, and to the sums of the samples' terms."""
        network, action = self._network, samples.action.long()
        network.forward(samples.observation)

        # d/dQ(s, a) of 1/2 (Q(s, a) - G)^2 is the error; other actions, and the value that a Q network does not use,
        # have none.
        taken = network.parameters.gather(0, action)
        error = taken - samples.returns
        network.parameters_gradient.zero_().scatter_(0, action, error)
        network.value_gradient.zero_()
        network.backward(gradient)

        torch.mul(error[0], error[0], out=self._terms[0]).mul_(0.5)
        torch.abs(error[0], out=self._terms[1])
        self._terms[2] = taken[0]
        totals.add_(self._terms.sum(dim=1))


class Gradient(chunked.Gradient):
    """The gradient of `q_loss` on minibatches of B samples, in C chunks of given sizes; C is a power of two."""

    def __init__(self, policy: QPolicy, sizes: Sequence[int], pool: chunked.ThreadPool) -> None:
        super().__init__(policy, lambda weights, n: _Chunk(policy, weights, n), TERMS, sizes, pool)

    def __call__(self, batch: Batch) -> Tensor:
        """Write it into the policy's gradient vector; the means of the loss's terms."""
        return super().__call__(batch) / len(batch.returns)
