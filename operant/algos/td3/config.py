"""TD3's configuration: the keys of `[algo]`, their defaults and ranges."""

from __future__ import annotations

from pydantic import Field

from operant.data import DelayedActorConfig
from operant.nn import ActorCriticConfig
from operant.settings import Count, Real


class TD3Config(DelayedActorConfig, ActorCriticConfig):
    """Section `[algo]` with name = "td3"."""

    actor_delay: Count = Field(
        2, ge=1, le=1024, description="the actor and all targets learn in every n-th update of the critics"
    )
    target_noise: Real = Field(
        0.2,
        ge=0,
        description="target smoothing: standard deviation of the noise on the target's actions, which lie in [-1, 1]",
    )
    target_noise_clip: Real = Field(0.5, ge=0, description="target smoothing: bound of the noise")
    exploration_noise: Real = Field(
        0.1, ge=0, description="standard deviation of the first lane's noise on actions in [-1, 1]"
    )
    exploration_noise_max: Real | None = Field(
        None,
        ge=0,
        description="standard deviation of the last lane's noise; lanes in between are evenly spaced. Not set: all "
        "lanes have exploration_noise",
    )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Return what is wrong with these values for a run with `lanes` lanes, as (key, message)."""
        return super().problems(lanes) + self.support_problems()
