"""DQN's configuration: the keys of `[algo]`, their defaults and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from operant.data import OffPolicyConfig
from operant.settings import Count, Real

if TYPE_CHECKING:
    from typing import Self


class DQNConfig(OffPolicyConfig):
    """Section `[algo]` with name = "dqn"."""

    schedulable: ClassVar[tuple[str, ...]] = ("learning_rate",)

    learning_rate: Real = Field(5e-4, gt=0, le=1, description="learning rate of Adam")
    double: bool = Field(
        False, description="double Q-learning: the network chooses the next action, the target network evaluates it"
    )
    duelling: bool = Field(
        False, description="the head is a state value and advantages, which are added up to Q values"
    )
    critic: Literal["scalar", "c51"] = Field(
        "scalar", description="scalar: Q itself; c51: a distribution of returns over fixed atoms, whose mean is Q"
    )
    atoms: Annotated[Count, Field(ge=2, le=1024)] = Field(51, description="c51 only: atoms of the distribution")
    v_min: Real = Field(-10.0, description="c51 only: the least return of the distribution's support")
    v_max: Real = Field(10.0, description="c51 only: the greatest return of the distribution's support")
    tau: Real = Field(
        1.0, gt=0, le=1, description="target <- (1 - tau) target + tau network, every target_every updates; 1: a copy"
    )
    target_every: Count = Field(
        200,
        ge=1,
        lt=2**31,
        description="updates of the network per update of the target network; 1 and a small tau: Polyak averaging",
    )
    epsilon_start: Real = Field(1.0, ge=0, le=1, description="probability of a random action at the start")
    epsilon_end: Real = Field(
        0.05, ge=0, le=1, description="probability of a random action once epsilon_steps are done"
    )
    epsilon_steps: Count | None = Field(
        None,
        ge=1,
        description="environment steps over which epsilon goes from start to end; not set: a tenth of run.steps",
    )
    max_gradient_norm: Real = Field(
        10.0, ge=0, description="the gradient is clipped to this global norm; 0: not clipped"
    )
    normalize_observations: bool = Field(False, description="by their running mean and standard deviation")
    adam_epsilon: Real = Field(1e-5, gt=0, description="epsilon in Adam's denominator")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "tf32",
        description="of matrix products on a GPU; bf16 needs fused kernels or a cnn, otherwise tf32 is used; a CPU "
        "always computes in fp32",
    )
    kernels: Literal["auto", "torch", "fused"] = Field(
        "auto",
        description="torch: torch operations and autograd, the reference; fused: Triton kernels; "
        "auto: fused on a GPU, a manual backward pass on a CPU, each where the network allows it, else torch",
    )

    fixed_on_resume: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("v_min", "v_max"), "its checkpoints hold probabilities of the returns in between"
    )

    def completed(self, steps: int) -> Self:
        """Return a copy of this configuration in which `epsilon_steps`, if not set, is a tenth of the run's `steps`."""
        return super().completed(steps).model_copy(update={"epsilon_steps": self.epsilon_steps or max(1, steps // 10)})

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Return what is wrong with these values for a run with `lanes` lanes, as (key, message)."""
        problems = super().problems(lanes)
        if self.critic == "c51" and self.v_min >= self.v_max:
            problems.append(
                (
                    "v_min",
                    f"it should be less than algo.v_max ({self.v_max:g}), the upper end of the support (got "
                    f"{self.v_min:g})",
                )
            )
        return problems
