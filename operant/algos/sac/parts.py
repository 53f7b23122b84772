"""What SAC is made of: what every backend works on. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from operant.algos.sac.config import SACConfig
from operant.data import Cycle
from operant.nn import Adam, CriticHead, FlatVector, SquashedActor, Towers


@dataclass(frozen=True)
class Parts:
    """What a backend works on."""

    config: SACConfig
    cycle: Cycle  # rollout, actions, replay; `warming` and `skip`
    actor: SquashedActor
    critic: Towers
    critic_flat: FlatVector
    target: Towers
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
