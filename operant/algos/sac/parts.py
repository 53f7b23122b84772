"""What SAC is made of: what every backend works on. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from operant.algos.sac.config import SACConfig
from operant.data import Cycle
from operant.nn import Adam, CategoricalActor, CriticHead, FlatVector, SquashedActor


@dataclass(frozen=True)
class Parts:
    """What a backend works on."""

    config: SACConfig
    cycle: Cycle  # rollout, actions, replay; `warming` and `skip`
    actor: SquashedActor | CategoricalActor
    critic: nn.Module  # see `operant.nn.network`
    critic_flat: FlatVector
    target: nn.Module
    target_flat: FlatVector
    head: CriticHead
    reward_factor: Tensor  # ()
    log_temperature: Tensor  # (1)
    temperature_gradient: Tensor  # (1)
    target_entropy: float
    actor_adam: Adam
    critic_adam: Adam
    temperature_adam: Adam | None  # None: the temperature is fixed
    stats: Tensor  # in the order of `Stats`

    @property
    def discrete(self) -> bool:
        """Whether an action is one choice among n."""
        return isinstance(self.actor, CategoricalActor)

    @property
    def categorical(self) -> CategoricalActor:
        """The actor of discrete actions."""
        assert isinstance(self.actor, CategoricalActor)
        return self.actor

    @property
    def squashed(self) -> SquashedActor:
        """The actor of continuous actions."""
        assert isinstance(self.actor, SquashedActor)
        return self.actor
