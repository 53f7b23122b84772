"""DQN's targets and its loss on a batch, in torch: the specification of both. Knows heads of Q policies; knows no network, no optimizer and no replay.

Shape letters: A actions, K atoms, H rows of the head, B samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from operant.data import Batch
from operant.nn import QHead, masked, projected


class Learned(NamedTuple):
    """A batch's loss, and what it says of each sample."""

    loss: Tensor  # weighted mean over the samples
    each: Tensor  # (B), of each sample: |Q - y|, or the cross-entropy of distributions
    q: Tensor  # (B), of the action that was taken
    error: Tensor  # (B), |Q - y|, of the means of distributions


@torch.no_grad()
def targets(head: QHead, following: Tensor, chooser: Tensor, batch: Batch) -> Tensor:
    """What the taken actions' numbers should be: y = R + discount Q(s', a') (B), or with atoms the probabilities (K, B) of that on the support.

    `following` (H, B) is what the target network's head says of s'; a' is the best legal action by `chooser` (H, B), which is the same (Mnih et al. 2015),
    or the network's own (van Hasselt, Guez & Silver 2016).
    """
    values = head.values(chooser)  # (A, B)
    best = (values if batch.next_legal is None else masked(values, batch.next_legal)).argmax(dim=0)[None]  # (1, B)
    if head.atoms == 1:
        return batch.reward + batch.discount * head.values(following).gather(0, best)[0]
    return projected(taken(head, following, best).softmax(dim=0), batch.reward, batch.discount, head.support[0, :, 0])


def taken(head: QHead, parameters: Tensor, action: Tensor) -> Tensor:
    """The K numbers of the actions (1, B) that were taken, of the head's rows (H, B): (K, B)."""
    return head.logits(parameters).gather(0, action.long()[:, None].expand(1, head.atoms, -1))[0]


def q_loss(head: QHead, parameters: Tensor, batch: Batch, target: Tensor, weight: Tensor | None = None) -> Learned:
    """The loss of the head's rows (H, B) for `batch.observation`: mean of w (Q - y)^2 / 2, or of w times the cross-entropy. Without a weight (B) w is 1."""
    found = taken(head, parameters, batch.action)
    if head.atoms == 1:
        q, goal = found[0], target
        each = 0.5 * (q - goal).square()
    else:
        log_probability, support = found.log_softmax(dim=0), head.support[0]
        each = -(target * log_probability).sum(dim=0)
        q, goal = (log_probability.exp() * support).sum(dim=0), (target * support).sum(dim=0)
    loss = (each if weight is None else each * weight).mean()
    error = (q - goal).detach().abs()
    return Learned(loss, error if head.atoms == 1 else each.detach(), q.detach(), error)
