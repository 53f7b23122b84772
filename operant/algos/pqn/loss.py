"""What PQN learns from and its loss, in torch: the specification of both. Knows Q policies; knows no world, no
optimizer and no order of samples.

Shape letters: T steps, N lanes, O observation, B samples of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from operant.data import Collector
from operant.nn import QPolicy


class Experience:
    """What acting adds to a rollout, and what is computed from it: one number for each sample."""

    def __init__(self, collector: Collector) -> None:
        T, N, device = collector.steps, collector.world.count, collector.world.device
        # One buffer, so that a kernel that gathers samples reads all their numbers at one distance from each other.
        self.numbers = torch.zeros(3 * T * N + N, device=device)
        advantage, returns, value = self.numbers.split([T * N, T * N, T * N + N])
        # G - max Q, and G: the Q(lambda) return
        self.advantage, self.returns = advantage.view(T, N), returns.view(T, N)
        self.value = value.view(T + 1, N)  # max Q of the observation before each step, and of the last one
        # max Q of the true final observation, where an episode was truncated
        self.final_value = torch.zeros(T, N, device=device)
        self.reward = torch.zeros(T, N, device=device)  # scaled


class Batch(NamedTuple):
    """Samples to learn from, feature-major."""

    observation: Tensor  # (O, B)
    action: Tensor  # (1, B) int32
    returns: Tensor  # (B)

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Its parts of so many samples each, as views."""
        return [Batch(*parts) for parts in zip(*(field.split(list(sizes), dim=-1) for field in self), strict=True)]


class LossTerms(NamedTuple):
    """The numbers of a minibatch's loss, in the order of the first of `Stats`."""

    q_loss: Tensor
    td_error: Tensor
    q_mean: Tensor


def q_loss(policy: QPolicy, batch: Batch) -> tuple[Tensor, LossTerms]:
    """The loss of a minibatch, 1/2 E[(Q(s, a) - G)^2] (Gallici et al. 2024, "Simplifying deep temporal difference
    learning", algorithm 1), and its terms.
    """
    taken = policy.values(batch.observation).gather(0, batch.action.long())[0]  # (B)
    error = taken - batch.returns
    loss = 0.5 * error.square().mean()
    return loss, LossTerms(loss.detach(), error.detach().abs().mean(), taken.detach().mean())
