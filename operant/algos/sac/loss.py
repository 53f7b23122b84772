"""SAC's losses on a batch: Haarnoja, Zhou, Hartikainen, Tucker, Ha, Tan, Kumar, Zhu, Gupta, Abbeel & Levine 2018, "Soft Actor-Critic Algorithms and
Applications". Reads top to bottom; knows no optimizer and no replay.

Shape letters: B samples, A actions, K features, C critics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from operant.data.replay import Batch
from operant.nn import SquashedActor, Towers


class CriticTerms(NamedTuple):
    """Of the critics' loss."""

    loss: Tensor  # sum over critics of the mean of (Q - y)^2
    q_mean: Tensor
    td_error: Tensor  # mean |Q - y|


def next_noise(batch: Batch) -> Tensor:
    """(2 A, B) of the noise (4 A, B): that of the actions at the next observations."""
    return batch.noise[: len(batch.noise) // 2]


def own_noise(batch: Batch) -> Tensor:
    """The rest: that of the actor's actions at the observations."""
    return batch.noise[len(batch.noise) // 2 :]


@torch.no_grad()
def targets(actor: SquashedActor, target: Towers, temperature: Tensor, batch: Batch) -> Tensor:
    """The critics' targets: y = r + discount (min over target critics of Q(s', a') - alpha log pi(a'|s')), a' drawn from the actor at s': (B)."""
    features = actor.features(batch.next_observation)
    action, log_probability = actor.sample_with_log_probability(features, next_noise(batch))
    value = target(torch.cat([features, action]))[:, 0].amin(dim=0)
    return batch.reward + batch.discount * (value - temperature * log_probability)


def critic_loss(critic: Towers, features: Tensor, batch: Batch, target: Tensor) -> CriticTerms:
    """The critics' loss at features (K, B) of the observations and the actions that were taken there."""
    q = critic(torch.cat([features, batch.action]))[:, 0]  # (C, B)
    error = q - target
    return CriticTerms(error.square().mean(dim=1).sum(), q.mean(), error.abs().mean())


def actor_loss(actor: SquashedActor, critic: Towers, temperature: Tensor, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of alpha log pi(a|s) - min over critics of Q(s, a), a drawn from the actor at s; and the mean of log pi."""
    action, log_probability = actor.sample_with_log_probability(features, noise)
    value = critic(torch.cat([features, action]))[:, 0].amin(dim=0)
    return (temperature * log_probability - value).mean(), log_probability.mean()
