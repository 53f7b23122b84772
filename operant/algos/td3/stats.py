"""The numbers of TD3's iteration, by name: what every backend writes. Knows no tensor's device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CriticTerms(NamedTuple):
    """Of an update of the critics; an iteration's are means."""

    critic_loss: Tensor
    q_mean: Tensor
    td_error: Tensor  # mean |Q - y|
    gradient_norm: Tensor  # before clipping


class ActorTerms(NamedTuple):
    """Of an update of the actor; an iteration's are means."""

    actor_loss: Tensor
    saturated: Tensor  # share of its actions that lie at their bounds


class Stats(NamedTuple):
    """Of an iteration; `metrics` says what each means."""

    critic_loss: Tensor
    q_mean: Tensor
    td_error: Tensor
    gradient_norm: Tensor
    actor_loss: Tensor
    saturated: Tensor
    replay_fill: Tensor  # share of the replay's capacity
    updates: Tensor  # made in the iteration
    not_finite: Tensor  # parameters and losses that are NaN or infinite
