"""Configuration of PQN: the keys of `[algo]`, their defaults and ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from operant.data import minibatches
from operant.settings import Count, Real, Section

if TYPE_CHECKING:
    from typing import Self


class PQNConfig(Section):
    """Section `[algo]` with name = "pqn"."""

    schedulable: ClassVar[tuple[str, ...]] = ("learning_rate",)

    horizon: Count = Field(32, ge=1, le=65536, description="rollout length T: steps of each lane per iteration")
    epochs: Count = Field(2, ge=1, le=1024, description="passes over the samples of an iteration")
    minibatches: Count = Field(8, ge=1, description="minibatches per epoch, one optimizer step each")
    learning_rate: Real = Field(1e-3, gt=0, le=1, description="initial learning rate of Adam")
    anneal: bool = Field(True, description="decay the learning rate linearly to zero over anneal_steps")
    anneal_steps: Count | None = Field(
        None, ge=1, description="environment step at which the decay ends; not set: run.steps of the first start"
    )
    gamma: Real = Field(0.99, ge=0, le=1, description="discount factor")
    q_lambda: Real = Field(
        0.65, ge=0, le=1, description="lambda of the Q(lambda) returns: 0: one-step targets; 1: Monte Carlo returns"
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
    max_gradient_norm: Real = Field(10.0, gt=0, description="the gradient is clipped to this global norm")
    reward_scale: Real = Field(1.0, gt=0, description="factor of the rewards that Q values are learned from")
    normalize_observations: bool = Field(False, description="by their running mean and standard deviation")
    adam_epsilon: Real = Field(1e-5, gt=0, description="epsilon in the denominator of Adam")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "tf32",
        description="of matrix products on a GPU; bf16 needs fused kernels or a cnn, otherwise tf32 is used; a CPU "
        "always computes in fp32",
    )
    kernels: Literal["auto", "torch", "fused"] = Field(
        "auto",
        description="torch: torch operations and autograd, the reference; fused: Triton kernels; "
        "auto: fused on a GPU, a manual backward pass on a CPU, where the network is supported; otherwise torch",
    )
    kernel_config: str = Field(
        "",
        description="tile config of the fused kernels, which affects the last bits; empty: the fastest on this GPU, "
        'measured once and saved with the run; "first": not measured',
    )

    def completed(self, steps: int) -> Self:
        """Return a copy of this configuration in which the ends of its two schedules, if not set, follow from the run's
        `steps`.
        """
        ends = {"anneal_steps": self.anneal_steps or steps} if self.anneal else {}
        return self.model_copy(update={**ends, "epsilon_steps": self.epsilon_steps or max(1, steps // 10)})

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Return what is wrong with these values for a run with `lanes` lanes, as (key, message)."""
        if self.horizon * lanes < 2:
            return [
                (
                    "horizon",
                    "one lane x 1 step is a single sample, which has no variance: an iteration needs 2 or more (raise "
                    "algo.horizon or env.lanes)",
                )
            ]
        return minibatches.problems(self.horizon, lanes, self.minibatches, None)
