"""SAC's configuration: the keys of `[algo]`, their defaults and ranges. Knows no tensor."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from operant.data import OffPolicyConfig
from operant.nn import CriticConfig
from operant.settings import Count, Real


class SACConfig(OffPolicyConfig, CriticConfig):
    """`[algo]`, when its name is "sac"."""

    learning_rate: Real = Field(3e-4, gt=0, le=1, description="learning rate of Adam, of actor and temperature")
    critic_learning_rate: Real = Field(1e-3, gt=0, le=1, description="learning rate of Adam, of the critics")
    critics: Annotated[Count, Field(ge=1, le=2)] = Field(2, description="2: twin critics, whose smaller value counts; 1: a single one")
    tau: Real = Field(0.005, gt=0, le=1, description="Polyak averaging: target <- (1 - tau) target + tau critic, with each update")
    temperature: Annotated[Real, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description='weight of the entropy; "auto": learned, so that the entropy stays near target_entropy'
    )
    initial_temperature: Real = Field(1.0, gt=0, description='where temperature = "auto" begins')
    target_entropy: Real | None = Field(
        None,
        description="entropy of the policy, in nats, that an automatic temperature aims at; not set: -1 per continuous action, (ln n) / 2 for n choices",
    )
    max_gradient_norm: Real = Field(0.0, ge=0, description="gradients of actor and critics are clipped to this global norm each; 0: not clipped")
    normalize_observations: bool = Field(False, description="by their running mean and standard deviation")
    adam_epsilon: Real = Field(1e-8, gt=0, description="epsilon in the denominator of Adam")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "tf32", description="of matrix products on a GPU, in bf16 those of all but the last layers; a CPU always computes in fp32"
    )
    kernels: Literal["auto", "torch", "fused"] = Field(
        "auto", description="torch: torch operations and autograd, the reference; fused: Triton kernels; auto: fused on a GPU where possible, else torch"
    )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Values that do not fit together, as (key, message)."""
        return super().problems(lanes) + self.support_problems()
