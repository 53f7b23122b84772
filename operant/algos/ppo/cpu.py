"""PPO on a CPU with hand-written forward and backward passes, over memory that is allocated once, on threads that each
compute alone. 2.3 times as fast as autograd (benches/log/cpu.md).

The loss's derivatives are here, those of networks and distributions in `operant.nn`. Equal to autograd of `ppo_loss` up
to rounding.

Shape letters: O rows of an observation, H action parameters, n samples of a chunk, B of a minibatch, E terms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.ppo import PPO, TERMS, Batch, TorchBackend
from operant.compute import threads
from operant.data import Collector, Experience
from operant.nn import ILLEGAL, SOLO, Exchange, Policy, chunked, manual, masked

FACTORS: Final = {"policy_loss": -1.0, "value_loss": 0.5}
"""Factors of the terms' means, by name; 1 for others. L_CLIP is maximised, and L_VF is half of a squared error."""

log = logging.getLogger("operant.ppo")


class ManualBackend(TorchBackend):
    """Backend of torch operations with a hand-written backward pass, for a CPU, on a pool of threads."""

    name = "manual_backward"

    def __init__(self, ppo: PPO) -> None:
        super().__init__(ppo)
        self._pool = pool = threads.ThreadPool(torch.get_num_threads())
        plural = "" if pool.threads == 1 else "s"
        log.info("kernels: torch's, and a manual backward pass, on %d thread%s", pool.threads, plural)
        layout, self.bits_by_ranks = self.cycle.minibatches.layout, None
        self._gradient = Gradient(self.policy, self.config, layout.chunk_sizes(), pool, self.exchange)
        self._forward = chunked.Forward(self.policy, layout.lane_sizes(), pool)

    def with_rollout(self, policy: Policy, collector: Collector, experience: Experience) -> ManualBackend:
        """Return a copy of this backend for another policy, rollout and experience, on the same threads."""
        other = super().with_rollout(policy, collector, experience)
        other._forward = chunked.Forward(policy, self.cycle.minibatches.layout.lane_sizes(), self._pool)
        return other

    def single_threaded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return `work`, run with torch on one thread; the backend's own thread pool is not affected."""
        return threads.alone()(work)

    def prepare(self) -> None:
        """Copy the policy's current weights into the layout that matrix products read."""
        self._forward.refresh()

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return action parameters (H, N) and values (N) for observations (O, N) and legal actions (H, N); the next
        call overwrites them.
        """
        parameters, value = self._forward(observation)
        return (parameters if legal is None else masked(parameters, legal)), value

    def gradient(self, batch: Batch) -> Tensor:
        """Write the gradient of a minibatch's loss into the policy's flat gradient vector; return the loss's
        terms (E).
        """
        return self._gradient(batch)


class Gradient(chunked.Gradient):
    """Gradient of `ppo_loss` on minibatches of B samples, computed in chunks of `sizes` samples by a thread pool. The
    number of chunks is a power of two. With several ranks in `exchange` see `chunked.Gradient`.
    """

    def __init__(
        self,
        policy: Policy,
        config: PPOConfig,
        sizes: Sequence[int],
        pool: chunked.ThreadPool,
        exchange: Exchange = SOLO,
    ) -> None:
        super().__init__(
            policy, lambda weights, n: _Chunk(policy, weights, config, n), len(TERMS), sizes, pool, exchange
        )
        factors = [FACTORS.get(name, 1.0) for name in TERMS]
        self._factors = torch.tensor(factors) / (sum(sizes) * exchange.ranks)

    def __call__(self, batch: Batch) -> Tensor:
        """Write the gradient of the minibatch's loss into the policy's flat gradient vector; return the loss's terms
        (E).
        """
        return super().__call__(batch) * self._factors


class _Chunk:
    """Loss and gradient of n samples of a minibatch, as sums over them; `Gradient` divides by B."""

    def __init__(self, policy: Policy, weights: manual.Weights, config: PPOConfig, n: int) -> None:
        self._config = config
        self._network = manual.Network(policy, weights, n).with_backward()
        self._distribution = manual.manual_distribution(policy.distribution, weights.log_std, n)
        self._terms = torch.full((len(TERMS), n), torch.nan)  # a term that is not written is reported as not finite
        term = dict(zip(TERMS, self._terms, strict=True))
        self._surrogate, self._squared_error, self._entropy = term["policy_loss"], term["value_loss"], term["entropy"]
        self._kl, self._clipped = term["approx_kl"], term["clip_fraction"]
        self._log_ratio, self._surrogate_gradient, self._unclipped = torch.empty(3, n)
        self._near, self._moved, self._sign = torch.empty(3, n)
        self._illegal = torch.empty(policy.env.mask_size, n, dtype=torch.bool)

    def add(self, samples: Batch, gradient: manual.Weights, totals: Tensor) -> None:
        """Add the gradient of `samples` to `gradient`, and the sums of its loss terms to `totals` (E)."""
        network = self._network
        network.forward(samples.observation)
        # Illegal logits get no gradient: p - 1{a} and p log p are exactly 0.
        if samples.legal is not None:
            network.parameters.masked_fill_(torch.eq(samples.legal, 0, out=self._illegal), ILLEGAL)
        self._distribution.forward(network.parameters, samples.action, self._log_ratio, self._entropy)
        self._policy_gradient(samples)
        self._distribution.backward(
            self._surrogate_gradient,
            float(self._config.entropy_coefficient),
            network.parameters_gradient,
            gradient.log_std,
        )
        self._value_gradient(samples, network.value, network.value_gradient)
        network.backward(gradient)
        totals.add_(self._terms.sum(dim=1))

    def _policy_gradient(self, samples: Batch) -> None:
        """Compute the gradient of PPO's clipped objective L_CLIP with respect to each sample's log pi(a|s), times B,
        (n); and each sample's surrogate, KL estimate and whether its ratio is clipped, (n) each.

        L_CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)] and d r / d log pi = r. The gradient is r A where r A
        is the minimum, and 0 elsewhere.
        """
        clip, unclipped = self._config.clip, self._unclipped
        # r = pi / pi_old; KL = (r - 1) - log r; clipped where |r - 1| > epsilon
        log_ratio = self._log_ratio.sub_(samples.log_probability)
        ratio = torch.exp(log_ratio, out=self._surrogate_gradient)
        torch.sub(ratio, 1.0, out=unclipped)
        torch.sub(unclipped, log_ratio, out=self._kl)
        torch.gt(unclipped.abs_(), clip, out=self._clipped)
        # min(r A, clip(r) A)
        torch.mul(ratio, samples.advantage, out=unclipped)
        ratio.clamp_(1.0 - clip, 1.0 + clip).mul_(samples.advantage)
        torch.minimum(unclipped, ratio, out=self._surrogate)
        # A product rather than a choice, so that NaN stays NaN: 0 * NaN.
        torch.eq(unclipped, self._surrogate, out=self._surrogate_gradient).mul_(unclipped)

    def _value_gradient(self, samples: Batch, value: Tensor, gradient: Tensor) -> None:
        """Write B c1 times the gradient of L_VF in V, (n), to `gradient`, and the squared error.

        The gradient is V - R; with value_clip that of the larger error, and half of each where they are equal.
        """
        value_clip = self._config.value_clip
        # V - R, and its square
        torch.sub(value, samples.returns, out=gradient)
        torch.mul(gradient, gradient, out=self._squared_error)
        if value_clip is not None:
            # V_old + clip(V - V_old, -c, c) - R, its square, and the sign of the difference between the two squares
            moved, near, sign = self._moved, self._near, self._sign
            torch.sub(value, samples.value, out=moved)
            torch.clamp(moved, -value_clip, value_clip, out=near)
            torch.eq(moved, near, out=moved)  # 1 where V is not clipped
            near.add_(samples.value).sub_(samples.returns)
            moved.mul_(near)
            near.mul_(near)
            torch.sub(self._squared_error, near, out=sign).sign_()
            gradient.addcmul_(gradient, sign).add_(moved).addcmul_(moved, sign, value=-1.0).mul_(0.5)
            torch.maximum(self._squared_error, near, out=self._squared_error)
        gradient.mul_(self._config.value_coefficient)
