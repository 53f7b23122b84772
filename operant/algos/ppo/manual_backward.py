"""PPO's gradient on a CPU by a manual forward and backward pass.

The loss's derivatives are written out here, those of network and distributions in `operant.nn`. Equal to autograd of
`ppo_loss` to rounding. Knows no rollout and no optimizer.

Shape letters: O observation, H parameters of the distribution, n samples of a chunk, B of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.nn import ILLEGAL, SOLO, Exchange, Policy, chunked, manual, manual_distributions

if TYPE_CHECKING:
    from operant.algos.ppo.config import PPOConfig
    from operant.algos.ppo.loss import Batch

SURROGATE, ERROR, ENTROPY, KL, CLIPPED, TERMS = range(6)  # what a sample adds to the numbers of the loss


class _Chunk:
    """The loss and its gradient on chunks of n samples, as sums over them: what adds the chunks up divides by B."""

    def __init__(self, policy: Policy, weights: manual.Weights, config: PPOConfig, n: int) -> None:
        self._config = config
        self._network = manual.Network(policy, weights, n).with_backward()
        self._distribution = manual_distributions.manual(policy.distribution, weights.log_std, n)
        self._terms = torch.empty(TERMS, n)
        self._surrogate, self._error, self._entropy, self._kl, self._clipped = self._terms
        self._log_ratio, self._ratio_gradient, self._unclipped, self._near, self._moved, self._sign = torch.empty(6, n)
        self._illegal = torch.empty(policy.env.mask_size, n, dtype=torch.bool)

    def add(self, samples: Batch, gradient: manual.Weights, totals: Tensor) -> None:
        """Add to the gradient, and to the sums of the samples' terms (TERMS)."""
        network = self._network
        network.forward(samples.observation)
        # whose logits are set by hand get no gradient: p - 1[taken] and p log p are exactly 0
        if samples.legal is not None:
            network.parameters.masked_fill_(torch.eq(samples.legal, 0, out=self._illegal), ILLEGAL)
        self._distribution.forward(network.parameters, samples.action, self._log_ratio, self._entropy)
        surrogate_gradient = self._surrogate_gradient(samples)
        self._distribution.backward(
            surrogate_gradient, float(self._config.entropy_coefficient), network.parameters_gradient, gradient.log_std
        )
        self._value_gradient(samples, network.value, network.value_gradient)
        network.backward(gradient)
        totals.add_(self._terms.sum(dim=1))

    def _surrogate_gradient(self, samples: Batch) -> Tensor:
        """B times the gradient of L_CLIP by log pi(a|s), (n).

        L_CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)] and d r / d log pi = r: so r A where the first is the
        smaller, 0 elsewhere.
        """
        clip, unclipped, gradient = self._config.clip, self._unclipped, self._ratio_gradient
        # r = pi / pi_old, and the numbers that are reported: (r - 1) - log r, and whether |r - 1| > epsilon.
        log_ratio = self._log_ratio.sub_(samples.log_probability)
        ratio = torch.exp(log_ratio, out=gradient)
        torch.sub(ratio, 1.0, out=unclipped)
        torch.sub(unclipped, log_ratio, out=self._kl)
        torch.gt(unclipped.abs_(), clip, out=self._clipped)
        # The smaller of r A and clip(r) A.
        torch.mul(ratio, samples.advantage, out=unclipped)
        ratio.clamp_(1.0 - clip, 1.0 + clip).mul_(samples.advantage)
        torch.minimum(unclipped, ratio, out=self._surrogate)
        # A product, not a choice: 0 * NaN stays NaN, and a broken number is not hidden.
        return torch.eq(unclipped, self._surrogate, out=gradient).mul_(unclipped)

    def _value_gradient(self, samples: Batch, value: Tensor, gradient: Tensor) -> None:
        """Write B c1 times the gradient of L_VF by V, (n): V - R; of the larger error where value_clip is set, half of
        each where they are equal.
        """
        reach = self._config.value_clip
        # V - R, and its square.
        torch.sub(value, samples.returns, out=gradient)
        torch.mul(gradient, gradient, out=self._error)
        if reach is not None:
            # The same of the clipped value, V_old + clip(V - V_old); and which error is the larger: sign is 1, 0 or -1.
            moved, near, sign = self._moved, self._near, self._sign
            torch.sub(value, samples.value, out=moved)
            torch.clamp(moved, -reach, reach, out=near)
            torch.eq(moved, near, out=moved)  # 1 where it is near
            near.add_(samples.value).sub_(samples.returns)
            moved.mul_(near)
            near.mul_(near)
            torch.sub(self._error, near, out=sign).sign_()
            gradient.addcmul_(gradient, sign).add_(moved).addcmul_(moved, sign, value=-1.0).mul_(0.5)
            torch.maximum(self._error, near, out=self._error)
        gradient.mul_(self._config.value_coefficient)


class Gradient(chunked.Gradient):
    """The gradient of `ppo_loss` on minibatches of B samples, in C chunks of given sizes; C is a power of two. With an
    exchange see `chunked.Gradient`.
    """

    def __init__(
        self,
        policy: Policy,
        config: PPOConfig,
        sizes: Sequence[int],
        pool: chunked.ThreadPool,
        exchange: Exchange = SOLO,
    ) -> None:
        super().__init__(policy, lambda weights, n: _Chunk(policy, weights, config, n), TERMS, sizes, pool, exchange)
        self._factors = torch.tensor([-1.0, 0.5, 1.0, 1.0, 1.0]) / (sum(sizes) * exchange.ranks)

    def __call__(self, batch: Batch) -> Tensor:
        """Write it into the policy's gradient vector; [policy loss, value loss, entropy, approximate KL, clip
        fraction], (5).
        """
        return super().__call__(batch) * self._factors
