"""The numbers of PQN's update, by name: what every backend writes. Knows no tensor's device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Stats(NamedTuple):
    """The numbers of one update, means over its minibatches; `metrics` says what each means."""

    q_loss: Tensor
    td_error: Tensor  # mean of |Q(s, a) - G|
    q_mean: Tensor  # of the actions that were taken
    gradient_norm: Tensor  # before clipping
    explained_variance: Tensor  # 1 - Var(G - max Q) / Var(G), as the rollout saw them
    epsilon: Tensor
    learning_rate: Tensor
    not_finite: Tensor  # parameters and losses that are NaN or infinite
