"""The numbers of PPO's update, by name: what the torch path, the CPU's manual backward and the fused kernels all write.
Knows no tensor's device.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Stats(NamedTuple):
    """The numbers of one update, means over its minibatches; `metrics` says what each means."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor  # mean of (ratio - 1) - log ratio: Schulman 2020, "Approximating KL divergence"
    clip_fraction: Tensor
    gradient_norm: Tensor  # before clipping
    explained_variance: Tensor
    learning_rate: Tensor
    not_finite: Tensor  # parameters and losses that are NaN or infinite
