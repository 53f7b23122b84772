"""Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford & Klimov 2017), on N lanes of T steps an iteration. Read it from top to bottom.

One iteration is two functions without arguments, `collect` and `update`. They touch fixed buffers and never read back to the host, so on a GPU each is
captured in a CUDA graph and replayed; on a CPU they are called plainly. What stands here in torch is the reference; in its place `operant.algos.ppo.fused`
may do the
whole work on a GPU, and `operant.algos.ppo.manual_backward` the network's and the gradient's on a CPU. Knows nothing of files, processes or the loop that
calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from numpy import float32
from pydantic import Field
from torch import Tensor

from operant.algos.base import Estimate, Phase, Tier, policy_state
from operant.algos.ppo import fused, manual_backward, metrics
from operant.algos.ppo.stats import Stats
from operant.compute import threads
from operant.compute.graphs import Graphed
from operant.compute.kernel import bind, kernel
from operant.data import minibatches, returns
from operant.envs import Env
from operant.nn import manual, mlp, work
from operant.nn.distributions import masked
from operant.nn.normalization import RunningNormalizer, statistics
from operant.nn.optimizer import Adam
from operant.nn.policy import Policy
from operant.settings import Count, Real, Section
from operant.worlds.base import World

BOOTSTRAP_SAMPLES = 2**19
"""On a GPU, values of final observations are computed for so many samples at a time: fewer launches, and memory that stays small."""

log = logging.getLogger("operant.ppo")


# CONFIGURATION


class PPOConfig(Section):
    """`[algo]`, when its name is "ppo"."""

    horizon: Count = Field(16, ge=1, le=65536, description="rollout length T: steps of each lane per iteration")
    epochs: Count = Field(4, ge=1, le=1024, description="passes over the samples of an iteration")
    minibatches: Count = Field(4, ge=1, description="minibatches per epoch, one optimizer step each")
    learning_rate: Real = Field(2.5e-3, gt=0, le=1, description="initial learning rate of Adam")
    anneal: bool = Field(True, description="decay the learning rate linearly to zero over anneal_steps")
    anneal_steps: Count | None = Field(None, ge=1, description="environment steps of the learning-rate decay; not set: run.steps")
    gamma: Real = Field(0.99, ge=0, le=1, description="discount factor")
    gae_lambda: Real = Field(0.95, ge=0, le=1, description="lambda of generalized advantage estimation: 0: one-step TD errors; 1: whole returns")
    clip: Real = Field(0.2, gt=0, description="epsilon: clip range of the probability ratio")
    value_clip: Real | None = Field(None, gt=0, description="clip range of the value around its old estimate; not set: the value loss is not clipped")
    entropy_coefficient: Real = Field(0.01, ge=0, description="weight of the entropy bonus in the loss")
    value_coefficient: Real = Field(0.5, ge=0, description="weight of the value loss")
    max_gradient_norm: Real = Field(0.5, gt=0, description="the gradient is clipped to this global norm")
    normalize_advantages: bool = Field(True, description="to mean 0 and standard deviation 1, over all samples of an iteration")
    normalize_observations: bool = Field(False, description="by their running mean and standard deviation")
    normalize_rewards: bool = Field(False, description="divide by the running standard deviation of the discounted return, and clip to +-10")
    target_kl: Real | None = Field(None, gt=0, description="skip the rest of an update once approx_kl exceeds 1.5 times this; not set: never")
    adam_epsilon: Real = Field(1e-5, gt=0, description="epsilon in the denominator of Adam")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "tf32",
        description="of matrix products on a GPU; bf16 needs fused kernels or a cnn, otherwise tf32 is used; a CPU always computes in fp32",
    )
    kernels: Literal["auto", "torch", "fused"] = Field(
        "auto",
        description="torch: torch operations and autograd, the reference; fused: Triton kernels; "
        "auto: fused on a GPU, a manual backward pass on a CPU, each where the network allows it, else torch",
    )
    kernel_config: str = Field(
        "",
        description='tile config of the fused kernels, which affects the last bits; empty: the fastest on this GPU, measured once and kept by the run; '
        '"first": not measured',
    )
    chunks: Count | None = Field(
        None,
        ge=1,
        le=1024,
        description="C: parts of a minibatch whose gradients are summed one by one, then in a fixed tree: a power of two, a multiple of the shards of lanes. "
        "The same C gives the same bits on any number of devices. By default chosen by the sizes of minibatch and network; on a GPU kept in kernel_config",
    )
    microbatch: Count | None = Field(
        None,
        ge=1,
        description="gradient accumulation: at most this many samples per backward pass of autograd, to save memory; the result is equal up to rounding. "
        "Fused kernels and the manual backward pass ignore it",
    )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Values that do not fit together, as (key, message)."""
        if self.horizon * lanes < 2:
            return [("horizon", "one lane x 1 step is a single sample, which has no variance: an iteration needs 2 or more (raise algo.horizon or env.lanes)")]
        return minibatches.problems(self.horizon, lanes, self.minibatches, self.chunks)


COLUMNS = (*(spec.name for spec in metrics.specs()), "not_finite")
"""The names of the numbers in the metrics file, in the order of `Stats`."""


class Batch(NamedTuple):
    """Samples to learn from, feature-major."""

    observation: Tensor  # (O, B)
    action: Tensor  # (A, B), raw
    log_probability: Tensor  # (B), of the policy that acted
    value: Tensor  # (B), by the critic that watched
    advantage: Tensor  # (B)
    returns: Tensor  # (B)
    legal: Tensor | None = None  # (H, B), 1 for each action that could be taken; None where all could

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Its parts of so many samples each, as views."""
        fields = ([None] * len(sizes) if field is None else field.split(list(sizes), dim=-1) for field in self)
        return [Batch(*parts) for parts in zip(*fields, strict=True)]


# LOSS


def ppo_loss(policy: Policy, batch: Batch, config: PPOConfig) -> tuple[Tensor, list[Tensor]]:
    """The loss of a minibatch, and [policy loss, value loss, entropy, approximate KL, clip fraction]."""
    parameters, value = policy.forward(batch.observation, batch.legal)
    log_probability, entropy = policy.distribution.log_probability_and_entropy(parameters, batch.action)

    # L_CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)], r = pi(a|s) / pi_old(a|s): equation 7.
    log_ratio = log_probability - batch.log_probability
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * batch.advantage, ratio.clamp(1.0 - config.clip, 1.0 + config.clip) * batch.advantage)
    policy_loss = -surrogate.mean()

    # L_VF = 1/2 E[(V - R)^2], optionally no better off for moving further than value_clip from the old value.
    squared_error = (value - batch.returns).square()
    if config.value_clip is not None:
        near = batch.value + (value - batch.value).clamp(-config.value_clip, config.value_clip)
        squared_error = torch.maximum(squared_error, (near - batch.returns).square())
    value_loss = 0.5 * squared_error.mean()

    # L = -L_CLIP + c1 L_VF - c2 S: equation 9.
    mean_entropy = entropy.mean()
    loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * mean_entropy
    with torch.no_grad():
        approx_kl = ((ratio - 1.0) - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > config.clip).float().mean()
    return loss, [policy_loss.detach(), value_loss.detach(), mean_entropy.detach(), approx_kl, clip_fraction]


# ALGORITHM


class PPO:
    """PPO on a world. `collect` then `update` is one iteration; `stats` holds the update's numbers, in the order of `Stats`, on the device."""

    Config = PPOConfig
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment", "_forward": "network", "_bootstrap": "network", "_advantages": "advantages", "_gathered": "shuffle",
        "_gradient": "gradient", "_optimizer.step": "optimiser", "_update_normalizers": "normalizers", "fused.act": "network", "fused.bootstrap": "network",
        "fused.begin": "advantages", "fused.backward": "gradient", "fused.reduce": "gradient", "fused.step": "optimiser",
    }  # fmt: skip
    """What a profile calls the time of which part."""

    def __init__(self, world: World, config: PPOConfig, net: mlp.Config, *, seed: int, steps: int, eager: bool = False) -> None:
        T, N, device = config.horizon, world.count, world.device
        self.world, self.config, self.device = world, config, device
        self.steps_per_iteration = T * N
        self.policy = self.make_actor(world.spec, config, net, device, seed=seed)
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"

        # The rollout: the world writes its outcome straight into it, one slot a step.
        distribution = self.policy.distribution
        self.rollout = world.slot(T)
        self._slots = [world.bind(self.rollout, t) for t in range(T)]
        self._first = world.bind(self.rollout, -1)
        raw_type = torch.int32 if self.rollout.action.dtype == torch.int32 else torch.float32
        self._raw = torch.zeros(T, distribution.action_rows, N, dtype=raw_type, device=device)
        self._noise = torch.zeros(T, distribution.noise_rows, N, device=device)
        # One buffer, so that whoever gathers samples reads all their numbers at one distance from each other.
        samples = torch.zeros(4 * T * N + N, device=device)
        advantage, log_probability, target, value = samples.split([T * N, T * N, T * N, T * N + N])
        self._advantage, self._log_probability, self._returns = (flat.view(T, N) for flat in (advantage, log_probability, target))
        self._value = value.view(T + 1, N)
        self._final_value = torch.zeros(T, N, device=device)
        self._reward = torch.zeros(T, N, device=device)
        self._carried = torch.zeros(N, device=device)
        self._accrued = torch.zeros(T, N, device=device)
        self.return_normalizer = RunningNormalizer(1, device) if config.normalize_rewards else None

        # The optimiser: one vector, a learning rate that a captured graph can see change, and no step at all where `_skip` is one.
        self._learning_rate = torch.tensor(config.learning_rate, device=device)
        self._optimizer = Adam(self.policy.flat.values.data, self.policy.flat.gradient, self._learning_rate, config.adam_epsilon)
        self._skip = torch.zeros((), device=device)
        self._anneal_iterations = max(1, -(-(config.anneal_steps or steps) // self.steps_per_iteration))
        self._iteration = torch.zeros(1, dtype=torch.int64, device=device)

        # The kernels beside the world's, and what they read and write.
        cut = minibatches.layout(T, N, config.minibatches, config.chunks)
        self.minibatches = minibatches.Minibatches(cut, config.epochs, seed, self._iteration)
        self._estimate, self._accrue = kernel(returns.advantage_body, device), kernel(returns.accrual_body, device)
        # float32, or the kernels would compute in float64.
        self._discount = returns.Discount(float32(config.gamma), float32(config.gamma * config.gae_lambda))  # type: ignore[arg-type]
        rollout = self.rollout
        self._trace = bind(returns.Trace(self._reward, self._value, self._final_value, rollout.terminated, rollout.truncated, self._advantage, self._returns))
        self._accrual = bind(returns.Accrual(rollout.reward, rollout.terminated, rollout.truncated, self._carried, self._accrued))

        self.metrics = metrics.specs(getattr(distribution, "sizes", ()))
        self.stats = torch.zeros(len(Stats._fields), device=device)
        self.chosen: dict[str, Any] = {}
        self.fused = self._fused(samples)
        self.manual_backward, self._outputs = self._manual_backward()
        collect, update = self._collect, self._update
        if self.manual_backward is not None:
            collect, update = threads.alone()(collect), threads.alone()(update)
        self.collect, self.update = Graphed(collect, device, eager=eager), Graphed(update, device, eager=eager)
        self.phases, self.actor = (Phase("collect", self.collect), Phase("update", self.update)), self.policy

    @classmethod
    def make_actor(cls, spec: Env, config: PPOConfig, net: mlp.Config, device: torch.device, *, seed: int = 0) -> Policy:
        """The policy alone, without what training needs."""
        return Policy(spec, net, seed=seed, device=device, normalize=config.normalize_observations, precision=config.precision)

    @classmethod
    def estimate(cls, spec: Env, config: PPOConfig, net: mlp.Config, lanes: int) -> Estimate:
        """What an iteration takes. In memory all epochs are like the first, and whole minibatches take the most."""
        samples = config.horizon * lanes
        flops, moved = work.on_policy_work(cls.make_actor(spec, config, net, torch.device("cpu")), samples, lanes, config.epochs)
        return Estimate(samples, flops, moved, config.model_copy(update={"kernels": "torch", "microbatch": None, "epochs": 1}))

    def start(self) -> None:
        """Begin every lane anew. A resumed run copies into `state` instead."""
        self.world.reset(self._first)

    def _fused(self, samples: Tensor) -> fused.Learner | None:
        """The fused kernels over this trainer's buffers; None where torch's are to do the work."""
        config = self.config
        buffers = fused.Buffers(
            self.rollout, self._raw, self._noise, samples, self._final_value, self.minibatches.order, self._iteration, self._skip, self._learning_rate,
            self.stats,
        )
        coefficients = fused.Coefficients(
            config.clip, config.value_clip, config.entropy_coefficient, config.value_coefficient, config.max_gradient_norm, config.normalize_advantages,
            config.target_kl, config.adam_epsilon, config.learning_rate, self._anneal_iterations if config.anneal else None,
        )  # fmt: skip
        learner = fused.build(
            self.policy, self._optimizer, buffers, coefficients, self.minibatches.layout,
            kernels=config.kernels, precision=config.precision, config=config.kernel_config, chunks=config.chunks,
        )  # fmt: skip
        if learner is not None:
            self.chosen = {"kernel_config": str(learner.config)}
        return learner

    def _manual_backward(self) -> tuple[manual_backward.Gradient | None, manual_backward.Forward | None]:
        """The manual backward pass of a minibatch and forward pass of all lanes, where "auto" finds a CPU; none where autograd, or another, does the work."""
        if self.config.kernels != "auto" or self.fused is not None or self.device.type != "cpu":
            return None, None
        unsupported_reason = manual.unsupported_reason(self.policy)
        if unsupported_reason is not None:
            log.info("kernels: torch's and autograd, not the manual backward pass: %s", unsupported_reason)
            return None, None
        cut, pool = self.minibatches.layout, threads.ThreadPool(torch.get_num_threads())
        log.info("kernels: torch's, and a manual backward pass, on %d thread%s", pool.threads, "" if pool.threads == 1 else "s")
        gradient = manual_backward.Gradient(self.policy, self.config, cut.chunk_sizes(), pool)
        return gradient, manual_backward.Forward(self.policy, cut.lanes, cut.shards, pool)

    # COLLECT

    @torch.no_grad()
    def _collect(self) -> None:
        """T steps of every lane by the policy as it is."""
        distribution, rollout, T = self.policy.distribution, self.rollout, self.config.horizon
        self.world.noise(self._noise)
        if self.fused is not None:
            self.fused.prepare()
            for t in range(T):
                self.fused.act(t)
                self.world.step(self._slots[t], t)
            self.fused.bootstrap(self.world.can_truncate)
            self.world.advance(T)
            return
        if self._outputs is not None:
            self._outputs.refresh()
        for t in range(T):
            parameters, self._value[t] = self._forward(rollout.observation[t], None if rollout.legal is None else rollout.legal[t])
            self._raw[t] = distribution.sample(parameters, self._noise[t])
            self._log_probability[t] = distribution.log_probability_and_entropy(parameters, self._raw[t])[0]
            rollout.action[t] = distribution.to_env(self._raw[t])
            self.world.step(self._slots[t], t)
        self._value[T] = self._forward(rollout.observation[T])[1]
        self._bootstrap()
        self.world.advance(T)

    def _forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Head parameters (H, N) and values (N) of observations (O, N) and legal actions (H, N), until it is called again."""
        if self._outputs is None:
            return self.policy.forward(observation, legal)
        parameters, value = self._outputs(observation)
        return (parameters if legal is None else masked(parameters, legal)), value

    def _carry_on(self) -> None:
        """What the last step showed is what the next iteration begins with."""
        for seen in (self.rollout.observation, self.rollout.legal):
            if seen is not None:
                seen[0].copy_(seen[-1])

    def _bootstrap(self) -> None:
        """V of the true final observation of every truncated episode, which the advantages need in place of V of the next episode's first."""
        if not self.world.can_truncate:
            return
        rollout, T = self.rollout, self.config.horizon
        window = self.world.final_window
        if self.device.type == "cuda" and window > 1:  # pictures: one buffer holds those of as many steps, of each lane at most one
            for k, seen in enumerate(rollout.final_observation):
                self._final_value[k * window : (k + 1) * window] = self._forward(seen)[1]
            return
        if self.device.type == "cuda":
            # A graph cannot choose, so all samples are evaluated, where nothing was truncated on stale observations that nobody reads.
            together = max(1, BOOTSTRAP_SAMPLES // self.world.count)
            for t in range(0, T, together):
                ticks = rollout.final_observation[t : t + together]
                self._final_value[t : t + together] = self.policy.forward(ticks.transpose(0, 1).flatten(1))[1].view(len(ticks), -1)
            return
        step, lane = torch.nonzero(rollout.truncated, as_tuple=True)
        if len(step):
            self._final_value[step, lane] = self.policy.forward(rollout.final_observation[step // window, :, lane].t())[1]

    # ADVANTAGES

    @torch.no_grad()
    def _advantages(self) -> None:
        """Rewards (scaled), advantages (normalised over the whole iteration, unless whoever reads them does it) and returns."""
        lanes = self.world.count
        self._reward.copy_(self.rollout.reward)
        if self.return_normalizer is not None:
            self._reward.mul_(self.return_normalizer.inv_std).clamp_(-RunningNormalizer.CLIP, RunningNormalizer.CLIP)
        self._estimate(lanes, self._discount, self._trace)
        if self.config.normalize_advantages and self.fused is None:
            mean, variance, count = statistics(self._advantage[None], self.minibatches.layout.shards)
            self._advantage.sub_(mean.float()).div_((variance * count / (count - 1)).sqrt().float() + 1e-8)

    @torch.no_grad()
    def _update_normalizers(self) -> None:
        """Take the iteration into the normalizers, after the update: during an iteration they stand still."""
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(self.rollout.observation[:-1].transpose(0, 1), self.minibatches.layout.shards)
        if self.return_normalizer is not None:
            self._accrue(self.world.count, self._discount, self._accrual)
            self.return_normalizer.update(self._accrued[None], self.minibatches.layout.shards)

    # UPDATE

    def _update(self) -> None:
        """Epochs over the rollout in minibatches, then the normalizers."""
        config = self.config
        self._advantages()
        if self.fused is not None:
            self.minibatches.shuffle()
            self.fused.update(config.epochs)
            self._update_normalizers()
            self._carry_on()
            return
        variance, residual = statistics(torch.stack([self._returns, self._returns - self._value[:-1]]), self.minibatches.layout.shards).variance[:, 0].float()
        explained = 1.0 - residual / variance.clamp_min(1e-12)
        if config.anneal:
            remaining = 1.0 - self._iteration.float() / self._anneal_iterations
            self._learning_rate.copy_((config.learning_rate * remaining.clamp_min(0.0))[0])
        self.minibatches.shuffle()
        self._skip.zero_()
        totals = torch.zeros(6, device=self.device)
        for epoch in range(config.epochs):
            for batch in self._batches(self.minibatches.order[epoch].long()):
                totals += self._descend(batch)
        totals /= config.epochs * config.minibatches

        self._update_normalizers()
        self._iteration += 1
        self._carry_on()
        not_finite = (~torch.isfinite(self.policy.flat.values.data)).sum() + (~torch.isfinite(totals)).sum()
        self.stats.copy_(torch.cat([totals, torch.stack([explained, self._learning_rate, not_finite.float()])]))

    def _batches(self, order: Tensor) -> Iterator[Batch]:
        """The samples of an epoch's blocks (M), a minibatch at a time."""
        parts = self.config.minibatches
        if self.world.spec.pixels:  # which would take too much room all at once
            for blocks in order.chunk(parts):
                yield self._gathered(blocks)
        else:
            samples = self._gathered(order)
            yield from samples.split([len(samples.returns) // parts] * parts)

    def _gathered(self, blocks: Tensor) -> Batch:
        """The samples of some blocks (m), in this order."""
        gather, rollout = self.minibatches.gather, self.rollout
        gather_observation = self.minibatches.gather_pictures if self.world.spec.pixels else gather
        return Batch(
            observation=gather_observation(rollout.observation[:-1], blocks),
            action=gather(self._raw, blocks),
            log_probability=gather(self._log_probability, blocks),
            value=gather(self._value[:-1], blocks),
            advantage=gather(self._advantage, blocks),
            returns=gather(self._returns, blocks),
            legal=None if rollout.legal is None else gather(rollout.legal[:-1], blocks),
        )

    def _descend(self, batch: Batch) -> Tensor:
        """One optimiser step. Returns the loss's numbers and the gradient's norm, (6)."""
        config, gradient = self.config, self.policy.flat.gradient
        numbers = self._gradient(batch)
        with torch.no_grad():
            # g <- g min(1, max_norm / |g|): Pascanu, Mikolov & Bengio 2013.
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_((config.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0))
            if config.target_kl is not None:
                self._skip.copy_(torch.maximum(self._skip, (numbers[3] > 1.5 * config.target_kl).float()))
            self._optimizer.step(self._skip if config.target_kl is not None else None)
            return torch.cat([numbers, norm[None]])

    def _gradient(self, batch: Batch) -> Tensor:
        """Write the gradient of the minibatch's loss into the flat vector. Returns the loss's numbers, (5)."""
        if self.manual_backward is not None:
            return self.manual_backward(batch)
        samples, flat = len(batch.returns), self.policy.flat
        count = -(-samples // (self.config.microbatch or samples))
        if count == 1:
            loss, numbers = ppo_loss(self.policy, batch, self.config)
            flat.backward(loss)
            return torch.stack(numbers)
        # The mean over the minibatch is the sum of the parts' means, each by its share of the samples: in one order, so in the same bits.
        total = torch.zeros(5, device=self.device)
        sizes = [samples // count + (k < samples % count) for k in range(count)]
        for k, part in enumerate(batch.split(sizes)):
            share = len(part.returns) / samples
            loss, numbers = ppo_loss(self.policy, part, self.config)
            flat.backward(share * loss, add=k > 0)
            total += share * torch.stack(numbers)
        return total

    # STATE

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """The tensors of a tier by name: with those of "train" a resumed run goes on to the bit. Copy into these to load."""
        named = policy_state(self.policy)
        if tier == "policy":
            return named
        named |= {f"world/{name}": value for name, value in self.world.state().items()}
        named |= {f"adam/{name}": value for name, value in self._optimizer.tensors().items()}
        named |= {"algo/iteration": self._iteration, "algo/carried": self._carried, "algo/observation": self.rollout.observation[0]}
        if self.rollout.legal is not None:
            named["algo/legal"] = self.rollout.legal[0]
        if self.return_normalizer is not None:
            named |= {f"return/{name}": value for name, value in self.return_normalizer.tensors().items()}
        return named
