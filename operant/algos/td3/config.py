"""TD3's configuration: the keys of `[algo]`, their defaults and ranges. Knows no tensor."""

from __future__ import annotations

from pydantic import Field

from operant.data import DelayedActorConfig
from operant.nn import ActorCriticConfig
from operant.settings import Count, Real


class TD3Config(DelayedActorConfig, ActorCriticConfig):
    """`[algo]`, when its name is "td3"."""

    actor_delay: Count = Field(
        2, ge=1, le=1024, description="the actor and all targets learn with every so many updates of the critics"
    )
    target_noise: Real = Field(
        0.2,
        ge=0,
        description="target smoothing: standard deviation of the noise on the target's actions, which lie in [-1, 1]",
    )
    target_noise_clip: Real = Field(0.5, ge=0, description="target smoothing: the noise is clipped to +- this")
    exploration_noise: Real = Field(
        0.1, ge=0, description="standard deviation of the noise on actions in [-1, 1]: of the first lane"
    )
    exploration_noise_max: Real | None = Field(
        None,
        ge=0,
        description="of the last lane; lanes between are spread evenly. Not set: all lanes have exploration_noise",
    )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Values that do not fit together, as (key, message)."""
        return super().problems(lanes) + self.support_problems()
