"""What is to run fused: an actor, its critics and their optimizers, over an algorithm's buffers. Knows no Triton and no
algorithm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from operant.nn import Adam, CategoricalActor, FlatVector, SquashedActor


class Stochastic(NamedTuple):
    """What an actor has that draws its actions, as SAC's."""

    log_temperature: Tensor  # (1)
    adam: Adam | None  # None: the temperature is fixed
    target_entropy: float
    reward_factor: Tensor  # () on rewards
    support: Tensor  # of critics that learn distributions, (K)


class Deterministic(NamedTuple):
    """What an actor has that takes its means, as TD3's."""

    target: FlatVector  # the target actor's
    exploration: Tensor  # (N), each lane's standard deviation
    noise: float  # standard deviation of target smoothing
    noise_clip: float


class Task(NamedTuple):
    """The parts of an algorithm. `config` has the keys of `operant.data.DelayedActorConfig`, of critics and of Adam;
    `cycle` is an `operant.data.Cycle`.
    """

    config: Any
    cycle: Any
    actor: SquashedActor | CategoricalActor
    critic: FlatVector
    target: FlatVector
    actor_adam: Adam
    critic_adam: Adam
    kind: Stochastic | Deterministic
    totals: Tensor  # sums over an iteration's updates, in the order of the algorithm's terms, to which the kernels add

    @property
    def squashed(self) -> SquashedActor:
        """The actor of continuous actions: kernels know no other."""
        assert isinstance(self.actor, SquashedActor)
        return self.actor
