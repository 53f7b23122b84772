"""What DQN's backends work on. Knows no backend."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from operant.algos.dqn.config import DQNConfig
from operant.data import Cycle
from operant.nn import Adam, QPolicy


@dataclass(frozen=True)
class Parts:
    """What a backend works on."""

    config: DQNConfig
    cycle: Cycle  # rollout, replay; `warming` and `skip`
    policy: QPolicy
    target: QPolicy  # with the policy's normalizer
    optimizer: Adam
    epsilon: Tensor  # (N), each lane's probability of a random action
    totals: Tensor  # in the order of `Terms`: sums over the iteration's updates
    stats: Tensor  # in the order of `Stats`
