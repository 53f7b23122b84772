"""Action distributions on a CPU without autograd: log-probabilities, entropies and their gradients, over preallocated
buffers.

Shape letters: H parameters of the distribution, A actions, n samples.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from operant.nn.distributions import Categorical, Gaussian


class ManualCategorical:
    """Independent categorical distributions: log p(a), entropy H, and the loss gradient with respect to the logits x.

    d log p_a / d x_j = 1[j = a] - p_j;  d H / d x_j = -p_j (log p_j + H)
    """

    def __init__(self, distribution: Categorical, log_std: Tensor, n: int) -> None:
        ends = list(itertools.accumulate(distribution.sizes))
        rows = [slice(end - size, end) for end, size in zip(ends, distribution.sizes, strict=True)]
        self._log_p, self._p, self._one_hot, self._buffer = torch.empty(4, distribution.parameter_rows, n)  # (H, n)
        self._negative_entropy = torch.empty(distribution.action_rows, n)
        self._blocks = [
            (row, self._log_p[row], self._one_hot[row], self._buffer[row], distribution.row_values[row]) for row in rows
        ]

    def forward(self, logits: Tensor, action: Tensor, log_probability: Tensor, entropy: Tensor) -> None:
        """Write log p(a) of actions (A, n) to `log_probability` (n), and H to `entropy` (n)."""
        # log p(a) = sum over choices of the log-softmax at a
        for k, (rows, log_p, one_hot, _, row_values) in enumerate(self._blocks):
            torch.log_softmax(logits[rows], dim=0, out=log_p)
            torch.eq(action[k], row_values, out=one_hot)
        torch.mul(self._log_p, self._one_hot, out=self._buffer)
        torch.sum(self._buffer, dim=0, out=log_probability)
        # -H = sum of p log p, of each choice
        torch.exp(self._log_p, out=self._p)
        torch.mul(self._p, self._log_p, out=self._buffer)
        for k, (_, _, _, p_log_p, _) in enumerate(self._blocks):
            torch.sum(p_log_p, dim=0, out=self._negative_entropy[k])
        torch.sum(self._negative_entropy, dim=0, out=entropy).neg_()

    def backward(
        self, surrogate_gradient: Tensor, entropy_gradient: float, gradient: Tensor, log_std_gradient: Tensor
    ) -> None:
        """Write the gradient of the logits (H, n) to `gradient`, given those of -log p(a), `surrogate_gradient` (n),
        and of -H, one number for all samples. Ignores `log_std_gradient`.
        """
        # (p - 1[j = a]) d(-log p) + p (log p + H) d(-H)
        torch.sub(self._p, self._one_hot, out=gradient).mul_(surrogate_gradient)
        for k, (_, log_p, _, _, _) in enumerate(self._blocks):
            log_p.sub_(self._negative_entropy[k])
        gradient.addcmul_(self._log_p, self._p, value=entropy_gradient)


class ManualGaussian:
    """Diagonal Gaussian: log p(a), entropy H, and the loss gradient with respect to the mean mu and s = log std. With z
    = (a - mu) exp(-s):

    d log p / d mu = z exp(-s);  d log p / d s = z^2 - 1;  d H / d s = 1
    """

    def __init__(self, distribution: Gaussian, log_std: Tensor, n: int) -> None:
        self._squash, self._log_std = distribution.squash, log_std
        self._z, self._z_squared, self._log_p = torch.empty(3, distribution.action_rows, n)  # (A, n) each
        self._negative_inv_std = torch.empty_like(self._log_std)

    def forward(self, mean: Tensor, action: Tensor, log_probability: Tensor, entropy: Tensor) -> None:
        """Write log p(a) of raw actions (A, n) to `log_probability` (n), and H to `entropy` (n)."""
        # z = (a - mu) exp(-s), log p = sum of -z^2 / 2 - s - log(2 pi) / 2
        torch.neg(self._log_std, out=self._negative_inv_std).exp_().neg_()
        torch.sub(mean, action, out=self._z).mul_(self._negative_inv_std)
        torch.mul(self._z, self._z, out=self._z_squared)
        torch.mul(self._z_squared, -0.5, out=self._log_p).sub_(self._log_std + 0.5 * math.log(2.0 * math.pi))
        if self._squash:  # -log(1 - tanh^2 a) = 2 (a + softplus(-2 a) - log 2)
            self._log_p.add_(torch.nn.functional.softplus(-2.0 * action).add_(action).sub_(math.log(2.0)), alpha=2.0)
        torch.sum(self._log_p, dim=0, out=log_probability)
        # H = sum of s + log(2 pi e) / 2
        entropy.copy_((self._log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum())

    def backward(
        self, surrogate_gradient: Tensor, entropy_gradient: float, gradient: Tensor, log_std_gradient: Tensor
    ) -> None:
        """Write the gradient of the mean (A, n) to `gradient` and add that of s to `log_std_gradient`, given those of
        -log p(a), `surrogate_gradient` (n), and of -H, one number for all samples.
        """
        # dmu = -z exp(-s) d(-log p)
        torch.mul(self._z, self._negative_inv_std, out=gradient).mul_(surrogate_gradient)
        # ds = -(z^2 - 1) d(-log p) - d(-H), summed over samples
        self._z_squared.sub_(1.0).mul_(surrogate_gradient)
        log_std_gradient.sub_(self._z_squared.sum(dim=1, keepdim=True)).sub_(entropy_gradient * len(surrogate_gradient))


def manual(distribution: Categorical | Gaussian, log_std: Tensor, n: int) -> ManualCategorical | ManualGaussian:
    """Create the manual distribution for chunks of n samples."""
    return (
        ManualCategorical(distribution, log_std, n)
        if isinstance(distribution, Categorical)
        else ManualGaussian(distribution, log_std, n)
    )
