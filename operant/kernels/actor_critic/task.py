"""Description of an actor-critic algorithm for the fused kernels: networks, optimizers and buffers. The module works
without Triton.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from operant.nn import Adam, CategoricalActor, FlatVector, SquashedActor


class StochasticActor(NamedTuple):
    """Temperature and entropy target of an actor that samples its actions (SAC)."""

    log_temperature: Tensor  # (1)
    adam: Adam | None  # None: the temperature is fixed
    target_entropy: float


class DeterministicActor(NamedTuple):
    """Target actor, exploration noise and target smoothing of a deterministic actor (TD3)."""

    target: FlatVector  # parameters of the target actor
    exploration: Tensor  # (N), standard deviation of each lane's exploration noise
    noise: float  # standard deviation of target smoothing
    noise_clip: float


class ActorCriticTask(NamedTuple):
    """Networks, optimizers and buffers of an actor-critic algorithm. `config` has the keys of
    `operant.data.DelayedActorConfig`, of critics and of Adam; `cycle` is an `operant.data.Cycle`.
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
        """Actor of continuous actions, the only kind that fused kernels support."""
        assert isinstance(self.actor, SquashedActor)
        return self.actor
