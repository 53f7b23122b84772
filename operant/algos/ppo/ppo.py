"""Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford & Klimov 2017, arXiv 1707.06347) on N lanes of T
steps an iteration.

This file is the specification, in torch and autograd, and reads from top to bottom: statistics, loss, one iteration
(rollout, advantages, epochs of minibatches), and the torch backend that acts and steps. Its neighbours replace parts of
it and are tested against it: `cpu.py` (hand-written backward pass), `fused/` (Triton kernels), `memory.py` (recurrent
policies) and `overlap.py` (collection beside the update). `operant.algos.ppo` chooses among them.

`collect` and `update` use fixed buffers and never read back to the host, so on a GPU each is one CUDA graph.

Shape letters: T steps, N lanes, A rows of an action, O rows of an observation, H action parameters (logits, or means),
M blocks of a rollout, B samples of a minibatch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from operant.algos.base import NOT_FINITE, Estimate, Phase, Threshold, Tier, metric, metric_specs, policy_state
from operant.algos.ppo.config import PPOConfig
from operant.compute.graphs import Graphed
from operant.data import (
    AccruedReturns,
    Collector,
    Experience,
    OnPolicyBackend,
    OnPolicyCycle,
    layout,
    segments_layout,
)
from operant.envs import Env
from operant.nn import (
    SOLO,
    Adam,
    Exchange,
    Muon,
    NetConfig,
    Policy,
    RunningNormalizer,
    chunked,
    clip_gradient,
    on_policy_work,
    statistics,
)
from operant.worlds import World

_SMALLER_STEPS: Final = "lower algo.learning_rate, or fewer algo.epochs"
_COLLAPSED: Final = "the policy no longer explores: raise algo.entropy_coefficient, or lower algo.learning_rate"
_TOO_SMALL: Final = "the policy hardly changes: raise algo.learning_rate, unless its entropy is near 0"
_NOT_FINITE: Final = "lower algo.learning_rate or algo.max_gradient_norm, or set algo.normalize_rewards=true"
_SCHEDULED: Final = 0.2
"""Share of the largest learning rate below which small updates are expected: the rate has been annealed."""


class Stats(NamedTuple):
    """Metrics of an iteration. Those before `gradient_norm` are terms of the loss, means over all samples.

    Thresholds were set on the shipped configurations, which must show no "bad", and on runs broken on purpose (learning
    rates of 1, 0.1, 0.05 and 1e-6), which must.
    """

    policy_loss: Tensor = metric("loss/policy", "policy loss", order=80, advice=_NOT_FINITE)
    value_loss: Tensor = metric("loss/value", "value loss", order=70, advice=_NOT_FINITE)
    entropy: Tensor = metric(
        "entropy",
        "entropy",
        figure="entropy",
        order=40,
        advice=_NOT_FINITE,
        explanation="The policy's entropy in nats: ln n where all n actions are equally likely, 0 where one is "
        "certain, any number for a normal distribution. It falls as the policy learns. Near 0 while the goal is far, "
        "exploration ended too early; near ln n after a fifth of the run, nothing was learned.",
    )
    # E[(r - 1) - log r], r the probability ratio (Schulman 2020, "Approximating KL divergence")
    approx_kl: Tensor = metric(
        "approx_kl",
        "approx KL",
        figure="KL",
        order=50,
        advice=_NOT_FINITE,
        thresholds=(
            Threshold("bad", at_least=0.15, advice=f"updates change the policy too much: {_SMALLER_STEPS}"),
            Threshold("warn", at_least=0.05, advice=f"updates change the policy too much: {_SMALLER_STEPS}"),
            Threshold("bad", below=1e-6, advice=_TOO_SMALL, while_metric="learning_rate", while_share=_SCHEDULED),
            Threshold("warn", below=3e-5, advice=_TOO_SMALL, while_metric="learning_rate", while_share=_SCHEDULED),
        ),
        explanation="How far an iteration's updates move the policy: the mean of (ratio - 1) - log ratio (Schulman "
        "2020). Runs that learn have 0.0003 to 0.04, most at the start, and less as the learning rate is annealed. "
        "Beyond 0.05 the samples no longer fit the policy that learns from them.",
    )
    clip_fraction: Tensor = metric(
        "clip_fraction",
        "clip fraction",
        order=90,
        advice=_NOT_FINITE,
        thresholds=(
            Threshold("bad", at_least=0.7, advice=f"most samples are clipped: {_SMALLER_STEPS}"),
            Threshold("warn", at_least=0.4, advice=f"most samples are clipped: {_SMALLER_STEPS}"),
        ),
        explanation="The share of samples whose probability ratio left 1 ± algo.clip, so that PPO no longer learns "
        "from them. 0.01 to 0.35 is usual.",
    )
    gradient_norm: Tensor = metric(
        "gradient_norm",
        "gradient norm",
        order=110,
        advice=_NOT_FINITE,
        thresholds=(
            Threshold(
                "warn",
                at_least=10.0,
                relative_to="minute",
                records=0.0,
                advice="ten times the last minute's median: if it stays, lower algo.learning_rate or "
                "algo.max_gradient_norm",
            ),
        ),
        explanation="The norm of the loss's gradient before it is clipped to algo.max_gradient_norm. Its size depends "
        "on the task; a jump is what matters.",
    )
    explained_variance: Tensor = metric(
        "explained_variance",
        "explained variance",
        figure="expl. var.",
        order=60,
        advice=_NOT_FINITE,
        thresholds=(
            Threshold(
                "bad",
                below=0.0,
                after=0.2,
                unless="best",
                advice="the critic predicts worse than a constant would: lower algo.learning_rate, or set "
                "algo.normalize_rewards=true",
            ),
            Threshold(
                "warn",
                below=0.5,
                after=0.5,
                unless="best",
                advice="the critic lags: raise algo.value_coefficient or algo.epochs, or widen net.hidden",
            ),
        ),
        explanation="How much of the variance of the returns the critic explains: 1 all of it, 0 no more than a "
        "constant, less than 0 worse than that. Low values are usual in the first tenth of a run, where returns are "
        "rare, and of a policy at its best, whose returns are all alike.",
    )
    learning_rate: Tensor = metric("learning_rate", "learning rate", order=120, advice=_NOT_FINITE)
    not_finite: Tensor = NOT_FINITE


TERMS = Stats._fields[: Stats._fields.index("gradient_norm")]
"""Names of the loss's terms, in the order in which every backend adds them up."""


def entropy_thresholds(choices: Sequence[int]) -> tuple[Threshold, ...]:
    """Thresholds of the entropy for a policy with these numbers of actions, one per choice. Empty `choices` means
    continuous actions, whose entropy may have any sign, but stays next to zero only after a collapse.
    """
    largest = sum(map(math.log, choices))
    scale = largest or math.log(2)
    collapsed = Threshold("bad", at_least=0.0, below=0.02 * scale, records=0.75, unless="target", advice=_COLLAPSED)
    rules = (collapsed._replace(below=0.001 * scale), collapsed._replace(until=0.5), collapsed._replace(level="warn"))
    undecided = (
        "the policy is still close to uniform: raise algo.learning_rate, lower algo.entropy_coefficient, or "
        "the reward says too little"
    )
    return (*rules, Threshold("warn", at_least=0.95 * largest, after=0.2, advice=undecided)) if largest else rules


# LOSS


class Batch(NamedTuple):
    """Samples of a minibatch, feature-major: observations, actions, advantages and the other inputs of the loss."""

    observation: Tensor  # (O, B)
    action: Tensor  # (A, B), raw
    log_probability: Tensor  # (B), of the policy that acted
    value: Tensor  # (B), of the critic while acting
    advantage: Tensor  # (B)
    returns: Tensor  # (B)
    legal: Tensor | None = None  # (H, B), 1 for each legal action; None: all are legal

    @property
    def size(self) -> int:
        """Length of the axis that `split` divides: number of samples, B."""
        return self.returns.shape[-1]

    @property
    def samples(self) -> int:
        """Number of samples, B."""
        return self.size

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Return parts with these numbers of samples, as views."""
        fields = ([None] * len(sizes) if field is None else field.split(list(sizes), dim=-1) for field in self)
        return [Batch(*parts) for parts in zip(*fields, strict=True)]


def ppo_loss(policy: Policy, batch: Batch, config: PPOConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a minibatch, clipped surrogate, value error and entropy bonus, and its terms by the names in
    `TERMS`.
    """
    parameters, value = policy.forward(batch.observation, batch.legal)
    return loss_of_outputs(policy, parameters, value, batch, config)


def loss_of_outputs(
    policy: Policy, parameters: Tensor, value: Tensor, batch: Batch, config: PPOConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a minibatch and its terms from the network's outputs on it: action `parameters` (H, B) and
    `value` (B).

    `cpu.py` and `fused/kernels.py` write out the gradient of this loss by hand. Change it in all three: the tests of
    both compare them with this function.
    """
    log_probability, entropy = policy.distribution.log_probability_and_entropy(parameters, batch.action)

    # L_CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)], r = pi(a|s) / pi_old(a|s): equation 7.
    log_ratio = log_probability - batch.log_probability
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    policy_loss = -torch.minimum(ratio * batch.advantage, clipped * batch.advantage).mean()

    # L_VF = 1/2 E[(V - R)^2]; with value_clip = c, 1/2 E[max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)].
    squared_error = (value - batch.returns).square()
    if config.value_clip is not None:
        near = batch.value + (value - batch.value).clamp(-config.value_clip, config.value_clip)
        squared_error = torch.maximum(squared_error, (near - batch.returns).square())
    value_loss = 0.5 * squared_error.mean()

    # L = -L_CLIP + c1 L_VF - c2 S: equation 9.
    mean_entropy = entropy.mean()
    loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * mean_entropy
    with torch.no_grad():
        return loss, {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": mean_entropy.detach(),
            "approx_kl": ((ratio - 1.0) - log_ratio).mean(),
            "clip_fraction": ((ratio - 1.0).abs() > config.clip).float().mean(),
        }


# ITERATION


class PPO:
    """PPO learner on the lanes of a world. Running its phases `collect` and `update` is one iteration, after which
    `stats` holds the fields of `Stats`.
    """

    Config = PPOConfig
    sequences = True
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment",
        "backend.forward": "network",
        "backend.after": "network",
        "backend.bootstrap": "network",
        "estimate_advantages": "advantages",
        "backend.gather": "shuffle",
        "backend.gradient": "gradient",
        "optimizer.step": "optimiser",
        "update_normalizers": "normalizers",
        "backend.learner.act": "network",
        "backend.learner.bootstrap": "network",
        "backend.learner.begin": "advantages",
        "backend.learner.backward": "gradient",
        "backend.learner.reduce": "gradient",
        "backend.learner.step": "optimiser",
    }
    """Functions by their path from the algorithm, and the name under which a profile shows their time."""

    def __init__(
        self,
        world: World,
        config: PPOConfig,
        net: NetConfig,
        *,
        seed: int,
        steps: int,
        eager: bool = False,
        exchange: Exchange = SOLO,
    ) -> None:
        """Create policy, rollout, optimizer and backend; `eager`: without CUDA graphs. With an exchange of several
        ranks `world` holds this rank's lanes; `steps` is `run.steps`.
        """
        T, N, W, device = config.horizon, world.count, exchange.ranks, world.device
        self.world, self.config, self.device, self.exchange = world, config, device, exchange
        self.steps_per_iteration = T * N * W
        self.policy = make_policy(world.spec, config, net, device, seed)
        self.actor = _for_playing(self.policy, config)
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"

        # The rollout, what acting stores with it, and minibatches: of samples, or of segments of a recurrent policy.
        self.collector = Collector(world, T, self.policy.distribution.noise_rows, eager=eager)
        self.rollout = self.collector.rollout
        self.experience = make_experience(self.policy, self.collector)
        cut = (
            segments_layout(T, N * W, config.minibatches, config.bptt or T, config.chunks)
            if self.policy.recurrent
            else layout(T, N * W, config.minibatches, config.chunks)
        )
        self.cycle = OnPolicyCycle(
            self.collector,
            self.experience,
            cut,
            config,
            decay=config.gamma * config.gae_lambda,
            epochs=-(-config.updates // config.minibatches),  # the last may end early
            seed=seed,
            steps=steps,
            exchange=exchange,
        )
        self.minibatches = self.cycle.minibatches

        # Rewards are divided by the standard deviation of discounted returns, accrued forward.
        self.return_normalizer = RunningNormalizer(1, device) if config.normalize_rewards else None
        rollout = self.rollout
        self.accrued_returns = AccruedReturns(rollout.reward, rollout.terminated, rollout.truncated, config.gamma)

        # One optimizer over the flat vector of parameters.
        flat = self.policy.flat
        vectors = (flat.values.data, flat.gradient, self.cycle.learning_rate, config.adam_epsilon)
        self.optimizer = (
            Muon(*vectors, flat.matrices(2 - net.shared, net.memory_size or net.hidden[-1]))
            if config.optimizer == "muon"
            else Adam(*vectors)
        )
        entropy = {"thresholds": entropy_thresholds(getattr(self.policy.distribution, "sizes", ()))}
        self.metrics = metric_specs(Stats, entropy=entropy)
        self.stats = torch.zeros(len(Stats._fields), device=device)

        self.backend = self.choose_backend()
        self.chosen, self.bits_by_ranks, self.kernels = (
            self.backend.chosen,
            self.backend.bits_by_ranks,
            self.backend.name,
        )
        # On a GPU an iteration is two CUDA graphs; with lanes on the host only the update can be captured.
        single = self.backend.single_threaded
        self.collect = Graphed(single(self._collect), device, eager=eager or not world.capturable)
        self.update = Graphed(single(self._update), device, eager=eager)
        self.phases: tuple[Phase, ...] = (Phase("collect", self.collect), Phase("update", self.update))

    def choose_backend(self) -> TorchBackend:
        """Return the torch backend. The class that users get, `operant.algos.ppo.PPO`, chooses the fastest
        supported.
        """
        return TorchBackend(self)

    @classmethod
    def make_actor(cls, spec: Env, config: PPOConfig, net: NetConfig, device: torch.device, *, seed: int = 0) -> Policy:
        """Create the policy for playing in the environment `spec` alone, without buffers for training."""
        return _for_playing(make_policy(spec, config, net, device, seed), config)

    @classmethod
    def estimate(cls, spec: Env, config: PPOConfig, net: NetConfig, lanes: int) -> Estimate:
        """Estimate steps, FLOPs and bytes of an iteration of `lanes` lanes. One epoch without microbatches has the peak
        of memory.
        """
        samples = config.horizon * lanes
        policy = make_policy(spec, config, net, torch.device("cpu"))
        flops, moved = on_policy_work(policy, samples, lanes, config.updates / config.minibatches)
        trial = {"kernels": "torch", "microbatch": None, "epochs": 1, "replay_ratio": None}
        return Estimate(samples, flops, moved, config.model_copy(update=trial))

    def start(self) -> None:
        """Reset all lanes before the first iteration. A resumed run copies into `state` instead."""
        self.accrued_returns.carried.zero_()
        self.collector.start()
        self.backend.start()

    @torch.no_grad()
    def _collect(self) -> None:
        """Roll out T steps of every lane by the current policy, then bootstrap values."""
        backend = self.backend
        backend.prepare()
        self.collector.collect(backend.act, backend.after, sliced=backend.acts_on_slices)
        backend.bootstrap()

    def _update(self) -> None:
        """Learn from the rollout; its last observation becomes the first of the next."""
        self.learn()
        self.collector.carry_on()

    def learn(self) -> None:
        """Estimate advantages, run all epochs of minibatches, then update the running statistics of observations and
        returns, which are constant during those epochs.
        """
        self.estimate_advantages()
        self.minibatches.shuffle()
        self.backend.update()
        self.update_normalizers()

    @torch.no_grad()
    def estimate_advantages(self) -> None:
        """Scale rewards, and write advantages and returns by GAE.

        Advantages are normalized over the whole iteration, unless the backend does so where it reads them.
        """
        cycle, reward, advantage = self.cycle, self.experience.reward, self.experience.advantage
        reward.copy_(cycle.rollout.reward)
        if self.return_normalizer is not None:
            reward.mul_(self.return_normalizer.inv_std).clamp_(-RunningNormalizer.CLIP, RunningNormalizer.CLIP)

        # delta_t = r_t + gamma V(s_{t+1}) - V(s_t); A_t = delta_t + gamma lambda A_{t+1}; R_t = A_t + V(s_t)
        cycle.estimate_advantages()
        # Over the whole iteration, by the sample variance (the fused kernels do so themselves).
        if self.config.normalize_advantages and not self.backend.normalizes_advantages:
            cut = self.config.chunks is not None
            mean, variance, count = statistics(advantage[None], cycle.shards, self.exchange, cut=cut)
            advantage.sub_(mean.float()).div_((variance * count / (count - 1)).sqrt().float() + 1e-8)

    @torch.no_grad()
    def update_normalizers(self) -> None:
        """Update the running mean and variance of observations and of discounted returns by those of the iteration."""
        shards, exchange = self.cycle.shards, self.exchange
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(self.cycle.rollout.observation[:-1].transpose(0, 1), shards, exchange)
        if self.return_normalizer is not None:
            # float64: the square of a return of 1e20 overflows float32, and an infinite variance would scale all
            # rewards to zero for good.
            self.return_normalizer.update(self.accrued_returns()[None].double(), shards, exchange)

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors of a `tier` ("policy", "train" or "all") by name; copy into them to load. With those of
        "train" a resume is exact.
        """
        named = policy_state(self.policy)
        if tier == "policy":
            return named
        groups = {
            "world": self.world.state(),
            "adam": self.optimizer.tensors(),
            "algo": self.collector.tensors() | self.backend.tensors(),
            "return": self.return_normalizer.tensors() if self.return_normalizer is not None else {},
        }
        named |= {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        return named | {"algo/iteration": self.cycle.iteration, "algo/carried": self.accrued_returns.carried}


def make_policy(spec: Env, config: PPOConfig, net: NetConfig, device: torch.device, seed: int = 0) -> Policy:
    """Create the policy for learning, which may differ from the one for playing (`_for_playing`)."""
    normalize, precision = config.normalize_observations, config.precision
    return Policy(spec, net, seed=seed, device=device, normalize=normalize, precision=precision)


def _for_playing(policy: Policy, config: PPOConfig) -> Policy:
    """Return the policy for playing: if trained without `carry_state`, a copy that resets its recurrent state after
    every T steps.
    """
    return policy.forgetting(config.horizon) if policy.recurrent and not config.carry_state else policy


def make_experience(policy: Policy, collector: Collector) -> Experience:
    """Allocate the rows that PPO stores with a rollout; raw actions are those before squashing."""
    shape = collector.steps, policy.distribution.action_rows, collector.world.count
    raw = torch.zeros(shape, dtype=collector.rollout.action.dtype, device=policy.device)
    return Experience(collector, ("advantage", "log_probability", "returns"), raw)


# BACKEND


class TorchBackend(OnPolicyBackend):
    """Backend of torch operations and autograd: the specification for all others."""

    name = "torch"
    normalizes_advantages = False
    """Whether the backend normalizes advantages where it reads them."""

    config: PPOConfig
    policy: Policy

    def __init__(self, ppo: PPO) -> None:
        super().__init__(ppo)
        # The shape of a product decides its last bits. Cut into shards and chunks a product is the same on any number
        # of ranks; uncut it is faster.
        self._cut = self.config.chunks is not None or self.exchange.ranks > 1
        self.acts_on_slices = self.device.type == "cuda" and not self._cut
        if self.config.chunks is None:
            self.bits_by_ranks = "one rank computes a minibatch as a whole (with algo.chunks=8 it would not)"
        elif self.device.type == "cuda" and self.policy.env.pixels:
            self.bits_by_ranks = "a library chooses how a GPU convolves pictures"

    # ACT

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return action parameters (H, N) and values (N) for observations (O, N) and legal actions (H, N); the next
        call may overwrite them.
        """
        if not self._cut:
            return self.policy.forward(observation, legal)
        shards = self.cycle.shards
        legal_parts = [None] * shards if legal is None else legal.chunk(shards, dim=-1)
        outputs = [
            self.policy.forward(part.contiguous(), legal_part)
            for part, legal_part in zip(observation.chunk(shards, dim=-1), legal_parts, strict=True)
        ]
        return torch.cat([parameters for parameters, _ in outputs], dim=1), torch.cat([value for _, value in outputs])

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write actions, log-probabilities and values of step t, for all lanes or a slice of `lanes`."""
        distribution, rollout, experience = self.policy.distribution, self.collector.rollout, self.experience
        selected = (..., lanes or slice(None))
        legal, raw = self.collector.legal(t), experience.raw[t][selected]
        parameters, experience.value[t][selected] = self.forward(
            rollout.observation[t][selected], None if legal is None else legal[selected]
        )
        raw.copy_(distribution.sample(parameters, self.collector.noise[t][selected]))
        experience.log_probability[t][selected] = distribution.log_probability_and_entropy(parameters, raw)[0]
        rollout.action[t][selected] = distribution.to_env(raw)

    def bootstrap(self) -> None:
        """Write V of the observation after the last step, and V of the true final observation of every truncated
        episode.
        """
        collector = self.collector
        captured = self.device.type == "cuda" and collector.world.capturable
        self.experience.value[-1] = self.forward(collector.rollout.observation[-1])[1]
        collector.final_values(
            lambda observation: self.policy.forward(observation)[1],
            self.experience.final_value,
            shards=self.cycle.shards if self._cut or not captured else 1,
            captured=captured,
        )

    # LEARN

    def update(self) -> None:
        """Take one optimizer step per minibatch of every epoch over the rollout, and write `stats`."""
        cycle, config, experience = self.cycle, self.config, self.experience
        residual = experience.returns - experience.value[:-1]
        explained_variance = cycle.explained_variance(residual, cut=config.chunks is not None)
        cycle.anneal()
        cycle.skip.zero_()

        totals = torch.zeros(len(TERMS) + 1, device=self.device)  # sums of the loss's terms and of the gradient's norm
        batches = (batch for order in cycle.minibatches.order for batch in self.batches(order.long()))
        for batch in itertools.islice(batches, config.updates):
            totals += self.step(batch)
        totals /= config.updates

        cycle.iteration.add_(1)
        not_finite = (~torch.isfinite(self.policy.flat.values.data)).sum() + (~torch.isfinite(totals)).sum()
        *terms, gradient_norm = totals
        stats = Stats(
            **dict(zip(TERMS, terms, strict=True)),
            gradient_norm=gradient_norm,
            explained_variance=explained_variance,
            learning_rate=cycle.learning_rate,
            not_finite=not_finite.float(),
        )
        self.stats.copy_(torch.stack(stats))

    def step(self, batch: Any) -> Tensor:
        """Take one optimizer step on a minibatch. Returns the loss's terms and the gradient's norm before clipping, (E
        + 1).
        """
        config, skip = self.config, self.cycle.skip
        terms = self.gradient(batch)
        with torch.no_grad():
            gradient_norm = clip_gradient(self.policy.flat.gradient, config.max_gradient_norm)
            # Beyond the target KL divergence this step and the rest of the update change nothing: the optimizer skips
            # them, so that an iteration is always the same CUDA graph.
            if config.target_kl is not None:
                approx_kl = terms[TERMS.index("approx_kl")]
                skip.copy_(torch.maximum(skip, (approx_kl > 1.5 * config.target_kl).float()))
            self.optimizer.step(skip if config.target_kl is not None else None)
            return torch.cat([terms, gradient_norm[None]])

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch, or of a part of it, and its terms by the names in `TERMS`."""
        return ppo_loss(self.policy, batch, self.config)

    def gradient(self, batch: Any) -> Tensor:
        """Write the gradient of a minibatch's loss into the policy's flat gradient vector; return the loss's
        terms (E).
        """
        flat, size = self.policy.flat, batch.size
        if self._cut:
            return self._chunked_gradient(batch)
        count = min(size, -(-batch.samples // (self.config.microbatch or batch.samples)))
        if count == 1:
            loss, terms = self.loss(batch)
            flat.backward(loss)
            return stacked(terms)
        # Gradient accumulation: the mean over the minibatch is the sum of the parts' means, weighted by their samples.
        total = torch.zeros(len(TERMS), device=self.device)
        sizes = [size // count + (k < size % count) for k in range(count)]
        for k, part in enumerate(batch.split(sizes)):
            share = part.size / size
            loss, terms = self.loss(part)
            flat.backward(share * loss, add=k > 0)
            total += share * stacked(terms)
        return total

    def _chunked_gradient(self, batch: Any) -> Tensor:
        """Write the gradient as the sum over the layout's chunks in a fixed binary tree, over all ranks; return the
        loss's terms (E).
        """
        layout, flat = self.cycle.minibatches.layout, self.policy.flat
        sizes, length = layout.chunk_sizes(), len(flat.gradient)

        def rows() -> Iterator[Tensor]:
            for size, part in zip(sizes, batch.split(sizes), strict=True):
                row = torch.zeros(length + len(TERMS), device=self.device)  # the gradient, then the terms
                if size > 0:
                    share = part.samples / layout.all_samples
                    loss, terms = self.loss(part)
                    flat.backward(share * loss)
                    torch.cat([flat.gradient, share * stacked(terms)], out=row)
                yield row

        total = chunked.tree_sum(self.exchange.gather(chunked.tree_sum_of(rows())[None]))
        flat.gradient.copy_(total[:length])
        return total[length:]

    # MINIBATCHES

    def batches(self, order: Tensor) -> Iterator[Any]:
        """Yield the minibatches of an epoch, given its order of blocks (M), the block numbers."""
        count = self.config.minibatches
        if self.policy.env.pixels:  # a gathered epoch of pictures would not fit in memory
            for blocks in order.chunk(count):
                yield self.gather(blocks)
        else:
            samples = self.gather(order)
            yield from samples.split([len(samples.returns) // count] * count)

    def gather(self, blocks: Tensor) -> Any:
        """Gather the samples of the blocks numbered `blocks` (m), in this order."""
        minibatches = self.cycle.minibatches
        return self.gather_with(
            minibatches.gather, minibatches.gather_pictures if self.policy.env.pixels else minibatches.gather, blocks
        )

    def gather_with(self, gather: Gather, gather_observation: Gather, blocks: Tensor) -> Batch:
        """Gather the samples of blocks (m) from every buffer of the rollout: observations by `gather_observation`, all
        else by `gather`.
        """
        rollout, experience = self.collector.rollout, self.experience
        return Batch(
            observation=gather_observation(rollout.observation[:-1], blocks),
            action=gather(experience.raw, blocks),
            log_probability=gather(experience.log_probability, blocks),
            value=gather(experience.value[:-1], blocks),
            advantage=gather(experience.advantage, blocks),
            returns=gather(experience.returns, blocks),
            legal=None if rollout.legal is None else gather(rollout.legal[:-1], blocks),
        )


Gather = Callable[[Tensor, Tensor], Tensor]
"""Function that gathers blocks (m) of a buffer (T, ..., N)."""


def stacked(terms: dict[str, Tensor]) -> Tensor:
    """Stack the loss's terms into a vector, in the order of `TERMS`."""
    return torch.stack([terms[name] for name in TERMS])
