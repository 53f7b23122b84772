"""PQN's loss in Triton: `operant.algos.pqn.loss.q_loss` with its gradient written out by hand. Knows outputs, no
network.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.loss import Loss


@triton.jit
def load_scalars(samples):
    """Nothing: the loss has no coefficients."""
    return (0.0,)


@triton.jit
def load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC: tl.constexpr):
    """Actions and Q(lambda) returns of samples t N + n, (rows) each."""
    return tl.load(samples.action + sample, mask=in_bounds, other=0), tl.load(
        samples.returns + sample, mask=in_bounds, other=0.0
    )


@triton.jit
def gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC: tl.constexpr):
    """Gradients of 1/2 (Q(s, a) - G)^2 in the outputs (rows, out_pad), times the batch; its terms, |Q - G| and Q
    (rows). All zero out of bounds.
    """
    column = tl.arange(0, SPEC.out_pad)
    action, returns = targets
    chosen = tl.where((column[None, :] == action[:, None]) & in_bounds[:, None], 1.0, 0.0)
    value = tl.sum(tl.where(chosen > 0.0, out, 0.0), axis=1)
    error = tl.where(in_bounds, value - returns, 0.0)
    gradient_out = error[:, None] * chosen
    return gradient_out, tl.zeros_like(out), (0.5 * error * error, tl.abs(error), value)


Q_LOSS = Loss(load_scalars, load_targets, gradient, (0, 0, 0))
