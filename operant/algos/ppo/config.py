"""Configuration of PPO: the keys of `[algo]`, their defaults and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from operant.data import minibatches
from operant.settings import Count, Real, Section

if TYPE_CHECKING:
    from typing import Self


class PPOConfig(Section):
    """Section `[algo]` with name = "ppo"."""

    schedulable: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "clip",
        "value_clip",
        "entropy_coefficient",
        "value_coefficient",
        "target_kl",
    )
    fixed_on_resume: ClassVar[Mapping[str, str]] = {
        "optimizer": "checkpoints hold the moments of that optimizer",
        "overlap": "checkpoints hold the acting policy only if it is on",
    }

    horizon: Count = Field(16, ge=1, le=65536, description="rollout length T: steps of each lane per iteration")
    bptt: Count | None = Field(
        None,
        ge=1,
        description="policies with a memory only: steps of backpropagation through time, and of the segments in a "
        "minibatch; a divisor of horizon; not set: horizon",
    )
    carry_state: bool = Field(
        True,
        description="policies with a memory only: states persist from one iteration to the next; false: each "
        "iteration begins with zeros, and evaluation resets states after every horizon steps of an episode",
    )
    epochs: Count = Field(4, ge=1, le=1024, description="passes over the samples of an iteration")
    minibatches: Count = Field(4, ge=1, description="minibatches per epoch, one optimizer step each")
    replay_ratio: Real | None = Field(
        None,
        gt=0,
        le=1024,
        description="samples learned from per sample collected, in whole minibatches, such as 1.42: a fractional "
        "number of epochs; not set: epochs",
    )
    noise_hold: Count = Field(
        1,
        ge=1,
        le=1024,
        description="steps for which the noise of a lane's sampled actions stays the same; 1: new noise in each step. "
        "Longer noise finds rewards that take a sustained action, such as those of swing-ups",
    )
    overlap: bool = Field(
        False,
        description="collect the next rollout while learning from the last one; the acting policy then lags by one "
        "iteration; takes the memory of a second rollout",
    )
    learning_rate: Real = Field(2.5e-3, gt=0, le=1, description="initial learning rate of Adam")
    anneal: bool = Field(True, description="decay the learning rate linearly to zero over anneal_steps")
    anneal_steps: Count | None = Field(
        None,
        ge=1,
        description="environment step at which the decay ends; not set: run.steps of the first start (a resume to "
        "more steps keeps it)",
    )
    gamma: Real = Field(0.99, ge=0, le=1, description="discount factor")
    gae_lambda: Real = Field(
        0.95,
        ge=0,
        le=1,
        description="lambda of generalized advantage estimation: 0: one-step TD errors; 1: Monte Carlo returns",
    )
    clip: Real = Field(0.2, gt=0, description="epsilon: clip range of the probability ratio")
    value_clip: Real | None = Field(
        None,
        gt=0,
        description="clip range of the value around its old estimate; not set: the value loss is not clipped",
    )
    entropy_coefficient: Real = Field(0.01, ge=0, description="weight of the entropy bonus in the loss")
    value_coefficient: Real = Field(0.5, ge=0, description="weight of the value loss")
    max_gradient_norm: Real = Field(0.5, gt=0, description="the gradient is clipped to this global norm")
    normalize_advantages: bool = Field(
        True, description="to mean 0 and standard deviation 1, over all samples of an iteration"
    )
    normalize_observations: bool = Field(False, description="by their running mean and standard deviation")
    normalize_rewards: bool = Field(
        False, description="divide by the running standard deviation of the discounted return, and clip to +-10"
    )
    target_kl: Real | None = Field(
        None, gt=0, description="skip the rest of an update once approx_kl exceeds 1.5 times this; not set: never"
    )
    optimizer: Literal["adam", "muon"] = Field(
        "adam", description="muon: Muon for the weights of hidden layers, Adam for the others, at one learning rate"
    )
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
    chunks: Count | None = Field(
        None,
        ge=1,
        le=1024,
        description="C: parts of a minibatch whose gradients are added in a fixed binary tree: a power of two and a "
        "multiple of the shards of lanes. The same C gives the same bits on any number of devices. Not set: chosen by "
        "the sizes of minibatch and network; on a GPU saved in kernel_config",
    )
    microbatch: Count | None = Field(
        None,
        ge=1,
        description="gradient accumulation: at most this many samples per backward pass of autograd, to save memory; "
        "the result is equal up to rounding. Ignored by fused kernels and the manual backward pass",
    )

    def completed(self, steps: int) -> Self:
        """Return a copy of this configuration in which `anneal_steps`, if needed and not set, is the run's `steps`."""
        return self.model_copy(update={"anneal_steps": self.anneal_steps or steps}) if self.anneal else self

    @property
    def updates(self) -> int:
        """Number of optimizer steps in an iteration, one per minibatch of each epoch."""
        return (
            self.epochs * self.minibatches
            if self.replay_ratio is None
            else max(1, round(self.replay_ratio * self.minibatches))
        )

    def shards(self, lanes: int, *, memory: bool = False) -> int:
        """Return the number of shards of the lanes, equal ranges that every minibatch samples equally: the maximum
        number of devices that can share a run. `memory`: the policy is recurrent.
        """
        if memory:
            return minibatches.segments_layout(self.horizon, lanes, self.minibatches, self.bptt or self.horizon).shards
        return minibatches.layout(self.horizon, lanes, self.minibatches).shards

    def problems(self, lanes: int, *, memory: bool = False) -> list[tuple[str, str]]:
        """Return what is wrong with these values for a run with `lanes` lanes, as (key, message). `memory`: the policy
        is recurrent.
        """
        if self.horizon * lanes < 2:
            return [
                (
                    "horizon",
                    "one lane x 1 step is a single sample, which has no variance: an iteration needs 2 or more (raise "
                    "algo.horizon or env.lanes)",
                )
            ]
        if memory and self.overlap:
            return [
                ("overlap", "a policy with a memory (net.memory) is not supported; remove algo.overlap or set false")
            ]
        if memory:
            return minibatches.segment_problems(self.horizon, lanes, self.minibatches, self.bptt, self.chunks)
        return minibatches.problems(self.horizon, lanes, self.minibatches, self.chunks)
