"""Description of an actor-critic algorithm for the fused kernels: networks, optimizers and buffers. Knows no Triton and
no algorithm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from operant.nn import Adam, CategoricalActor, FlatVector, SquashedActor


class StochasticActor(NamedTuple):
    """Additions of an actor that samples its actions (SAC): temperature and entropy target."""

    log_temperature: Tensor  # (1)
    adam: Adam | None  # None: the temperature is fixed
    target_entropy: float


class DeterministicActor(NamedTuple):
    """Additions of a deterministic actor (TD3): target actor, exploration noise and target smoothing."""

    target: FlatVector  # parameters of the target actor
    exploration: Tensor  # (N), standard deviation of each lane's exploration noise
    noise: float  # standard deviation of target smoothing
    noise_clip: float


class ActorCriticTask(NamedTuple):
    """An algorithm's parts. `config` has the keys of `operant.data.DelayedActorConfig`, of critics and of Adam; `cycle`
    is an `operant.data.Cycle`.
    """

    config: Any
    cycle: Any
    actor: SquashedActor | CategoricalActor
    critic: FlatVector
    target: FlatVector
    actor_adam: Adam
    critic_adam: Adam
    kind: StochasticActor | DeterministicActor
    reward_factor: Tensor  # () on rewards
    support: Tensor  # (K), atoms of distributional critics
    terms: tuple[str, ...]  # names of the statistics in `totals`
    totals: Tensor  # sums of the statistics over an iteration's updates

    @property
    def squashed(self) -> SquashedActor:
        """The actor of continuous actions, the only one that kernels support."""
        assert isinstance(self.actor, SquashedActor)
        return self.actor
