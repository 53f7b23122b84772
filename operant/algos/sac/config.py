"""SAC's configuration: the keys of `[algo]`, their defaults and ranges."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from operant.data import DelayedActorConfig
from operant.nn import ActorCriticConfig
from operant.settings import Real


class SACConfig(DelayedActorConfig, ActorCriticConfig):
    """Section `[algo]` with name = "sac"."""

    temperature: Annotated[Real, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description='weight of the entropy; "auto": learned, so that the entropy stays near target_entropy'
    )
    initial_temperature: Real = Field(1.0, gt=0, description='initial value with temperature = "auto"')
    target_entropy: Real | None = Field(
        None,
        description="target of an automatic temperature, in nats; not set: -1 per continuous action, (ln n) / 2 for n "
        "choices",
    )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Return what is wrong with these values for a run with `lanes` lanes, as (key, message)."""
        return super().problems(lanes) + self.support_problems()
