"""SAC with one choice among n actions (Christodoulou 2019, arXiv 1910.07207): expectations over the actions take the place of samples. Knows no cycle.

Critics put out Q of every action, (C, A, B). Shape letters: C critics, A actions, B samples, N lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.algos.sac.parts import Parts
from operant.data import Batch

if TYPE_CHECKING:
    from operant.nn import Judged


def draw(parts: Parts, observation: Tensor, noise: Tensor, legal: Tensor | None, warming: Tensor) -> Tensor:
    """Actions (1, N) of the actor, or while `warming` is 1 any that are legal, all as likely."""
    actor = parts.categorical
    free = actor.logits(actor.features(observation), None) * (1.0 - warming)
    logits = free if legal is None else torch.where(legal != 0, free, -1e9)
    return actor.distribution.sample(logits, noise[:1])


def policy(parts: Parts, features: Tensor, legal: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities and their logarithms, (A, B) each; an illegal action's probability is 0."""
    log_probability = parts.categorical.logits(features, legal).log_softmax(dim=0)
    return log_probability.exp(), log_probability


@torch.no_grad()
def targets(parts: Parts, temperature: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The critics' targets: y = r + discount sum over a' of pi(a'|s') (min over target critics of Q(s', a') - alpha log pi(a'|s')), (B).

    And minus the entropy there, (B).
    """
    features = parts.actor.features(batch.next_observation)
    probability, log_probability = policy(parts, features, batch.next_legal)
    value = (probability * (parts.target(features).amin(dim=0) - temperature * log_probability)).sum(dim=0)
    return batch.reward * parts.reward_factor + batch.discount * value, (probability * log_probability).sum(dim=0)


def critic_loss(parts: Parts, features: Tensor, batch: Batch, target: Tensor, weight: Tensor | None) -> Judged:
    """The sum over critics of the mean of (Q(s, a) - y)^2, of the actions that were taken."""
    outputs = parts.critic(features)
    q = outputs.gather(1, batch.action.long()[None].expand(len(outputs), 1, -1))[:, 0]  # (C, B)
    error = q - target
    return parts.head.judged(error.square(), q, error.abs(), weight)


def actor_loss(parts: Parts, temperature: Tensor, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The mean of sum over a of pi(a|s) (alpha log pi(a|s) - min over critics of Q(s, a)); and minus the mean entropy."""
    probability, log_probability = policy(parts, features, batch.legal)
    with torch.no_grad():
        value = parts.critic(features).amin(dim=0)
    negative_entropy = (probability * log_probability).sum(dim=0)  # (B)
    return (temperature * negative_entropy - (probability * value).sum(dim=0)).mean(), negative_entropy.mean()
