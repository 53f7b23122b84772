"""SAC's losses on a batch: Haarnoja, Zhou, Hartikainen, Tucker, Ha, Tan, Kumar, Zhu, Gupta, Abbeel & Levine 2018, "Soft Actor-Critic Algorithms and
Applications". Reads top to bottom; knows no optimizer and no replay.

Shape letters: B samples, A actions, K features, C critics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.algos.sac.parts import Parts
from operant.data import Batch

if TYPE_CHECKING:
    from operant.nn import Judged


def next_noise(batch: Batch) -> Tensor:
    """(2 A, B) of the noise (4 A, B): that of the actions at the next observations."""
    return batch.noise[: len(batch.noise) // 2]


def own_noise(batch: Batch) -> Tensor:
    """The rest: that of the actor's actions at the observations."""
    return batch.noise[len(batch.noise) // 2 :]


@torch.no_grad()
def targets(parts: Parts, temperature: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The critics' targets: y = r + discount (min over target critics of Q(s', a') - alpha log pi(a'|s')), a' drawn from the actor at s'.

    (1, B), or with C51 the distribution of that on the support; and log pi(a'|s'), (B).
    """
    features = parts.actor.features(batch.next_observation)
    action, log_probability = parts.squashed.sample_with_log_probability(features, next_noise(batch))
    reward = batch.reward * parts.reward_factor - batch.discount * temperature * log_probability
    return parts.head.target(parts.target(features, action), reward, batch.discount), log_probability


def critic_loss(parts: Parts, features: Tensor, batch: Batch, target: Tensor, weight: Tensor | None) -> Judged:
    """The critics' loss at features (K, B) of the observations and the actions that were taken there."""
    return parts.head.loss(parts.critic(features, batch.action), target, weight)


def actor_loss(parts: Parts, temperature: Tensor, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The mean of alpha log pi(a|s) - min over critics of Q(s, a), a drawn from the actor at s; and the mean of log pi."""
    action, log_probability = parts.squashed.sample_with_log_probability(features, own_noise(batch))
    value = parts.head.values(parts.critic(features, action, constant=True)).amin(dim=0)
    return (temperature * log_probability - value).mean(), log_probability.mean()
