"""Action distributions on a CPU without autograd: log-probability, entropy and their gradients, over memory allocated
once. Knows no network and no loss.

Shape letters: H parameters of the distribution, A actions, n samples.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from operant.nn.distributions import Categorical, Gaussian


class ManualCategorical:
    """Independent choices: log p(a), the entropy, and the loss's gradient by the logits x.

    d log p_a / d x_j = 1[j = a] - p_j;  d H / d x_j = -p_j (log p_j + H)
    """

    def __init__(self, distribution: Categorical, log_std: Tensor, n: int) -> None:
        ends = list(itertools.accumulate(distribution.sizes))
        rows = [slice(end - size, end) for end, size in zip(ends, distribution.sizes, strict=True)]
        self._log_p, self._p, self._taken, self._row = torch.empty(4, distribution.parameter_rows, n)  # (H, n) each
        self._negative_entropy = torch.empty(distribution.action_rows, n)
        self._blocks = [
            (row, self._log_p[row], self._taken[row], self._row[row], distribution.row_values[row]) for row in rows
        ]

    def forward(self, logits: Tensor, action: Tensor, log_probability: Tensor, entropy: Tensor) -> None:
        """Write log p(a) and H, (n) each, of actions (A, n)."""
        for k, (rows, log_p, taken, _, row_values) in enumerate(self._blocks):
            torch.log_softmax(logits[rows], dim=0, out=log_p)
            torch.eq(action[k], row_values, out=taken)
        torch.mul(self._log_p, self._taken, out=self._row)
        torch.sum(self._row, dim=0, out=log_probability)
        torch.exp(self._log_p, out=self._p)
        torch.mul(self._p, self._log_p, out=self._row)
        for k, (_, _, _, row, _) in enumerate(self._blocks):
            torch.sum(row, dim=0, out=self._negative_entropy[k])
        torch.sum(self._negative_entropy, dim=0, out=entropy).neg_()

    def backward(
        self, surrogate_gradient: Tensor, entropy_gradient: float, gradient: Tensor, log_std_gradient: Tensor
    ) -> None:
        """Write the gradient by the logits (H, n), from those by -log p(a), (n), and by -H, the same for
        every sample.
        """
        torch.sub(self._p, self._taken, out=gradient).mul_(surrogate_gradient)
        for k, (_, log_p, _, _, _) in enumerate(self._blocks):
            log_p.sub_(self._negative_entropy[k])
        gradient.addcmul_(self._log_p, self._p, value=entropy_gradient)


class ManualGaussian:
    """A diagonal normal: log p(a), the entropy, and the loss's gradient by mean mu and logarithm of the standard
    deviation s; z = (a - mu) exp(-s).

    d log p / d mu = z exp(-s);  d log p / d s = z^2 - 1;  d H / d s = 1
    """

    def __init__(self, distribution: Gaussian, log_std: Tensor, n: int) -> None:
        self._squash, self._log_std = distribution.squash, log_std
        self._standard, self._square, self._row = torch.empty(3, distribution.action_rows, n)  # (A, n) each
        self._minus_inverse_std = torch.empty_like(self._log_std)

    def forward(self, mean: Tensor, action: Tensor, log_probability: Tensor, entropy: Tensor) -> None:
        """Write log p(a) and H, (n) each, of raw actions (A, n)."""
        torch.neg(self._log_std, out=self._minus_inverse_std).exp_().neg_()
        torch.sub(mean, action, out=self._standard).mul_(self._minus_inverse_std)
        torch.mul(self._standard, self._standard, out=self._square)
        torch.mul(self._square, -0.5, out=self._row).sub_(self._log_std + 0.5 * math.log(2.0 * math.pi))
        if self._squash:  # - log(1 - tanh^2 a) = 2 (a + softplus(-2 a) - log 2)
            self._row.add_(torch.nn.functional.softplus(-2.0 * action).add_(action).sub_(math.log(2.0)), alpha=2.0)
        torch.sum(self._row, dim=0, out=log_probability)
        entropy.copy_((self._log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum())

    def backward(
        self, surrogate_gradient: Tensor, entropy_gradient: float, gradient: Tensor, log_std_gradient: Tensor
    ) -> None:
        """Write the gradient by the mean (A, n) and add that by s, from those by -log p(a), (n), and by -H, the same
        for every sample.
        """
        torch.mul(self._standard, self._minus_inverse_std, out=gradient).mul_(surrogate_gradient)
        self._square.sub_(1.0).mul_(surrogate_gradient)
        log_std_gradient.sub_(self._square.sum(dim=1, keepdim=True)).sub_(entropy_gradient * len(surrogate_gradient))


def manual(distribution: Categorical | Gaussian, log_std: Tensor, n: int) -> ManualCategorical | ManualGaussian:
    """The distribution on chunks of n samples."""
    return (
        ManualCategorical(distribution, log_std, n)
        if isinstance(distribution, Categorical)
        else ManualGaussian(distribution, log_std, n)
    )
