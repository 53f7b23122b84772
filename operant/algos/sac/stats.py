"""The numbers of SAC's iteration, by name: what every backend writes. Knows no tensor's device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Terms(NamedTuple):
    """Of one update; an iteration's are means over its updates."""

    critic_loss: Tensor
    actor_loss: Tensor
    q_mean: Tensor  # of all critics, of what was sampled
    td_error: Tensor  # mean |Q - y|
    entropy: (
        Tensor  # mean -log pi, of actions drawn now; in updates without the actor of those at the next observations
    )
    gradient_norm: Tensor  # of the critics, before clipping


class Stats(NamedTuple):
    """Of an iteration; `metrics` says what each means."""

    critic_loss: Tensor
    actor_loss: Tensor
    q_mean: Tensor
    td_error: Tensor
    entropy: Tensor
    gradient_norm: Tensor
    temperature: Tensor
    replay_fill: Tensor  # share of the replay's capacity
    updates: Tensor  # made in the iteration
    not_finite: Tensor  # parameters and losses that are NaN or infinite
