"""What PPO learns from and its loss, in torch: the specification of both. Knows policies; knows no world, no optimizer
and no order of samples.

Shape letters: T steps, N lanes, A actions, O observation, H action parameters, B samples of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from operant.algos.ppo.config import PPOConfig
from operant.data import Collector
from operant.nn import Policy


class Experience:
    """What acting adds to a rollout, and what is estimated from it: one number for each sample, and the raw actions."""

    def __init__(self, policy: Policy, collector: Collector) -> None:
        T, N, device = collector.steps, collector.world.count, policy.device
        # (T, A, N), before squashing
        self.raw = torch.zeros(
            T, policy.distribution.action_rows, N, dtype=collector.rollout.action.dtype, device=device
        )
        # One buffer, so that a kernel that gathers samples reads all their numbers at one distance from each other.
        self.numbers = torch.zeros(4 * T * N + N, device=device)
        advantage, log_probability, returns, value = self.numbers.split([T * N, T * N, T * N, T * N + N])
        self.advantage, self.log_probability, self.returns = (
            flat.view(T, N) for flat in (advantage, log_probability, returns)
        )
        self.value = value.view(T + 1, N)  # V of the observation before each step, and of the last one
        # V of the true final observation, where an episode was truncated
        self.final_value = torch.zeros(T, N, device=device)
        self.reward = torch.zeros(T, N, device=device)  # scaled


class Batch(NamedTuple):
    """Samples to learn from, feature-major."""

    observation: Tensor  # (O, B)
    action: Tensor  # (A, B), raw
    log_probability: Tensor  # (B), of the policy that acted
    value: Tensor  # (B), by the critic that watched
    advantage: Tensor  # (B)
    returns: Tensor  # (B)
    legal: Tensor | None = None  # (H, B), 1 for each action that could be taken; None where all could

    @property
    def size(self) -> int:
        """What `split` cuts: B."""
        return self.returns.shape[-1]

    @property
    def samples(self) -> int:
        """B."""
        return self.size

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Its parts of so many samples each, as views."""
        fields = ([None] * len(sizes) if field is None else field.split(list(sizes), dim=-1) for field in self)
        return [Batch(*parts) for parts in zip(*fields, strict=True)]


class LossTerms(NamedTuple):
    """The numbers of a minibatch's loss, in the order of the first of `Stats`."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor  # mean of (ratio - 1) - log ratio: Schulman 2020, "Approximating KL divergence"
    clip_fraction: Tensor


def ppo_loss(policy: Policy, batch: Batch, config: PPOConfig) -> tuple[Tensor, LossTerms]:
    """The loss of a minibatch, and its terms."""
    parameters, value = policy.forward(batch.observation, batch.legal)
    return loss_of_outputs(policy, parameters, value, batch, config)


def loss_of_outputs(
    policy: Policy, parameters: Tensor, value: Tensor, batch: Batch, config: PPOConfig
) -> tuple[Tensor, LossTerms]:
    """The same, from what the network makes of the minibatch: parameters of the distribution (H, B) and values (B)."""
    log_probability, entropy = policy.distribution.log_probability_and_entropy(parameters, batch.action)

    # L_CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)], r = pi(a|s) / pi_old(a|s): equation 7.
    log_ratio = log_probability - batch.log_probability
    ratio = log_ratio.exp()
    surrogate = torch.minimum(
        ratio * batch.advantage, ratio.clamp(1.0 - config.clip, 1.0 + config.clip) * batch.advantage
    )
    policy_loss = -surrogate.mean()

    # L_VF = 1/2 E[(V - R)^2], optionally no better off for moving further than value_clip from the old value.
    squared_error = (value - batch.returns).square()
    if config.value_clip is not None:
        near = batch.value + (value - batch.value).clamp(-config.value_clip, config.value_clip)
        squared_error = torch.maximum(squared_error, (near - batch.returns).square())
    value_loss = 0.5 * squared_error.mean()

    # L = -L_CLIP + c1 L_VF - c2 S: equation 9.
    mean_entropy = entropy.mean()
    loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * mean_entropy
    with torch.no_grad():
        approx_kl = ((ratio - 1.0) - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > config.clip).float().mean()
    return loss, LossTerms(policy_loss.detach(), value_loss.detach(), mean_entropy.detach(), approx_kl, clip_fraction)
