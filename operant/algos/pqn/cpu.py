"""PQN on a CPU with hand-written forward and backward passes, over memory that is allocated once, on threads that each
compute alone. 1.4 to 2.2 times as fast as autograd (benches/log/cpu.md).

Equal to autograd of `q_loss` up to rounding.

Shape letters: O rows of an observation, A actions, N lanes, n samples of a chunk, B of a minibatch, E terms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from operant.algos.pqn.pqn import PQN, TERMS, Batch, TorchBackend
from operant.compute import threads
from operant.nn import QPolicy, chunked, manual, masked

log = logging.getLogger("operant.pqn")


class ManualBackend(TorchBackend):
    """Backend of torch operations with a hand-written backward pass, for a CPU, on a pool of threads."""

    name = "manual_backward"

    def __init__(self, pqn: PQN) -> None:
        super().__init__(pqn)
        pool = threads.ThreadPool(torch.get_num_threads())
        plural = "" if pool.threads == 1 else "s"
        log.info("kernels: torch's, and a manual backward pass, on %d thread%s", pool.threads, plural)
        layout = self.cycle.minibatches.layout
        self._gradient = Gradient(self.policy, layout.chunk_sizes(), pool)
        self._forward = chunked.Forward(self.policy, layout.lane_sizes(), pool)

    def single_threaded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return `work`, run with torch on one thread; the backend's own thread pool is not affected."""
        return threads.alone()(work)

    def prepare(self) -> None:
        """Copy the policy's current weights into the layout that matrix products read."""
        self._forward.refresh()

    def values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Return Q (A, N) for observations (O, N) and legal actions (A, N); the next call overwrites it."""
        values, _ = self._forward(observation)
        return values if legal is None else masked(values, legal)

    def gradient(self, batch: Batch) -> Tensor:
        """Write the gradient of a minibatch's loss into the policy's flat gradient vector; return the loss's
        terms (E).
        """
        return self._gradient(batch)


class Gradient(chunked.Gradient):
    """Gradient of `q_loss` on minibatches of B samples, computed in chunks of `sizes` samples by a thread pool. The
    number of chunks is a power of two.
    """

    def __init__(self, policy: QPolicy, sizes: Sequence[int], pool: chunked.ThreadPool) -> None:
        super().__init__(policy, lambda weights, n: _Chunk(policy, weights, n), len(TERMS), sizes, pool)

    def __call__(self, batch: Batch) -> Tensor:
        """Write the gradient of the minibatch's loss into the policy's flat gradient vector; return the loss's terms
        (E).
        """
        return super().__call__(batch) / len(batch.returns)


class _Chunk:
    """Loss and gradient of n samples of a minibatch, as sums over them; `Gradient` divides by B."""

    def __init__(self, policy: QPolicy, weights: manual.Weights, n: int) -> None:
        self._network = manual.Network(policy, weights, n).with_backward()
        self._terms = torch.full((len(TERMS), n), torch.nan)  # a term that is not written is reported as not finite
        self._term = dict(zip(TERMS, self._terms, strict=True))

    def add(self, samples: Batch, gradient: manual.Weights, totals: Tensor) -> None:
        """Add the gradient of `samples` to `gradient`, and the sums of its loss terms to `totals` (E)."""
        network, action, term = self._network, samples.action.long(), self._term
        network.forward(samples.observation)

        # d/dQ(s, a) of 1/2 (Q(s, a) - G)^2 is Q(s, a) - G; other actions have gradient 0, and so has the value, which a
        # Q network does not use.
        q = network.parameters.gather(0, action)
        error = q - samples.returns
        network.parameters_gradient.zero_().scatter_(0, action, error)
        network.value_gradient.zero_()
        network.backward(gradient)

        torch.mul(error[0], error[0], out=term["q_loss"]).mul_(0.5)
        torch.abs(error[0], out=term["td_error"])
        term["q_mean"].copy_(q[0])
        totals.add_(self._terms.sum(dim=1))
