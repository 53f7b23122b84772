"""The numbers of DQN's iteration, by name: what every backend writes. Knows no tensor's device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Terms(NamedTuple):
    """Of one update; an iteration's are means over its updates."""

    q_loss: Tensor
    td_error: Tensor  # mean |Q(s, a) - y|; of a distribution, of its mean
    q_mean: Tensor  # of the actions that were taken
    gradient_norm: Tensor  # before clipping


class Stats(NamedTuple):
    """Of an iteration; `metrics` says what each means."""

    q_loss: Tensor
    td_error: Tensor
    q_mean: Tensor
    gradient_norm: Tensor
    epsilon: Tensor  # mean over the lanes
    replay_fill: Tensor  # share of the replay's capacity
    updates: Tensor  # made in the iteration
    not_finite: Tensor  # parameters and losses that are NaN or infinite
