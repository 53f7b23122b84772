"""TD3's configuration: the keys of `[algo]`, their defaults and ranges. Knows no tensor."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from operant.data import OffPolicyConfig
from operant.nn import CriticConfig
from operant.settings import Count, Real


class TD3Config(OffPolicyConfig, CriticConfig):
    """`[algo]`, when its name is "td3"."""

    learning_rate: Real = Field(3e-4, gt=0, le=1, description="learning rate of Adam, of the actor")
    critic_learning_rate: Real = Field(1e-3, gt=0, le=1, description="learning rate of Adam, of the critics")
    critics: Annotated[Count, Field(ge=1, le=2)] = Field(2, description="2: twin critics, whose smaller value counts; 1: a single one")
    tau: Real = Field(0.005, gt=0, le=1, description="Polyak averaging: target <- (1 - tau) target + tau network, with each update of the actor")
    actor_delay: Count = Field(2, ge=1, le=1024, description="the actor and all targets learn with every so many updates of the critics")
    target_noise: Real = Field(0.2, ge=0, description="target smoothing: standard deviation of the noise on the target's actions, which lie in [-1, 1]")
    target_noise_clip: Real = Field(0.5, ge=0, description="target smoothing: the noise is clipped to +- this")
    exploration_noise: Real = Field(0.1, ge=0, description="standard deviation of the noise on actions in [-1, 1]: of the first lane")
    exploration_noise_max: Real | None = Field(
        None, ge=0, description="of the last lane; lanes between are spread evenly. Not set: all lanes have exploration_noise"
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
        found = super().problems(lanes) + self.support_problems()
        if not found and self.updates % self.actor_delay:
            found.append(("actor_delay", f"it should divide the {self.updates} updates of an iteration (got {self.actor_delay}; or change algo.horizon)"))
        return found

    @property
    def actor_updates(self) -> int:
        """Updates of an iteration that the actor has a part in."""
        return self.updates // self.actor_delay

    def actor_learns(self, number: int) -> bool:
        """Whether update `number` of an iteration is one of those."""
        return number % self.actor_delay == self.actor_delay - 1
