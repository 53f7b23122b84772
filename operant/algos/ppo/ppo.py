"""Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford & Klimov 2017, arXiv 1707.06347) on N lanes of T
steps an iteration.

This file is the specification, in torch and autograd: first the loss, then `TorchBackend`, from top to bottom in the
order of an iteration:

    collect   for t in 0 ... T - 1: `act` on the observations (O, N), step the world; then `bootstrap` values
    update    `learn`: `estimate_advantages`; a new random order of the blocks; the method `update`, for each epoch, for
              each minibatch: `step` = `loss`, gradient, clip, Adam; then `update_normalizers`

`PPO`, below, allocates what it works on and makes the two halves phases, each one CUDA graph on a GPU: buffers are
fixed, and nothing is read back to the host. The last part of the file is what a monitor says about the metrics.

Neighbours override parts of `TorchBackend` and are tested against it: `cpu.py` (hand-written backward pass), `fused/`
(Triton kernels), `memory.py` (recurrent policies) and `overlap.py` (collection of the next rollout during the update).
`operant.algos.ppo` chooses among them. `operant.algos.simple` has base classes of an algorithm in one file.

Shape letters: T steps, N lanes, A rows of an action, U rows of noise, O rows of an observation, H action parameters
(logits, or means), M blocks of a rollout, B samples of a minibatch, E terms of the loss.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from operant.algos.base import (
    NOT_FINITE,
    Estimate,
    MetricSpec,
    RolloutAlgorithm,
    Threshold,
    jumps,
    metric,
    metric_specs,
)
from operant.algos.ppo.config import PPOConfig
from operant.data import AccruedReturns, Collector, Experience, OnPolicyBackend, layout, segments_layout
from operant.envs import Env
from operant.nn import (
    SOLO,
    Adam,
    Exchange,
    Muon,
    NetConfig,
    Policy,
    RunningNormalizer,
    clip_gradient,
    on_policy_work,
    statistics,
)
from operant.worlds import World


class Stats(NamedTuple):
    """Metrics of an iteration. Those before `gradient_norm` are terms of the loss, means over all samples. `DETAILS`
    has their thresholds and explanations.
    """

    policy_loss: Tensor = metric("loss/policy", "policy loss", order=80)
    value_loss: Tensor = metric("loss/value", "value loss", order=70)
    entropy: Tensor = metric("entropy", "entropy", figure="entropy", order=40)
    approx_kl: Tensor = metric("approx_kl", "approx KL", figure="KL", order=50)
    clip_fraction: Tensor = metric("clip_fraction", "clip fraction", order=90)
    gradient_norm: Tensor = metric("gradient_norm", "gradient norm", order=110)
    explained_variance: Tensor = metric("explained_variance", "explained variance", figure="expl. var.", order=60)
    learning_rate: Tensor = metric("learning_rate", "learning rate", order=120)
    not_finite: Tensor = NOT_FINITE


TERMS = Stats._fields[: Stats._fields.index("gradient_norm")]
"""Names of the loss's terms, in the order in which every backend adds them up."""


class SampleRows(NamedTuple):
    """Numbers that PPO stores with every sample, a row (T, N) each, in their order in `Experience.samples`. The fused
    kernels take their offsets from here.
    """

    advantage: Tensor
    log_probability: Tensor  # of the action by the policy that acted
    returns: Tensor  # targets of the values
    value: Tensor  # (T + 1, N), of the observation before each step, and of the last one


class Batch(NamedTuple):
    """Samples of a minibatch, the last axis: observations, actions, advantages and other inputs of the loss."""

    observation: Tensor  # (O, B)
    action: Tensor  # (A, B), raw: as sampled, before squashing or clipping to the environment's bounds
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


# THE LOSS


def ppo_loss(policy: Policy, batch: Batch, config: PPOConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a minibatch, clipped surrogate plus value error minus entropy bonus, and its terms by the
    names in `TERMS`.
    """
    parameters, value = policy.forward(batch.observation, batch.legal)  # (H, B), (B)
    return loss_of_outputs(policy, parameters, value, batch, config)


def loss_of_outputs(
    policy: Policy, parameters: Tensor, value: Tensor, batch: Batch, config: PPOConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a minibatch and its terms, given the network's outputs on it: `parameters` of the action
    distribution (H, B) and `value` (B).

    To experiment with the loss, change this function and set `algo.kernels = "torch"`. With "auto" neither a CPU nor a
    GPU runs it, except for networks that the other backends do not support. `cpu.py` and `fused/kernels.py` write out
    the gradient of this loss by hand, and their tests compare them with this function.
    """
    # Gaussian: std is a parameter, not a function of the state; with squash log p of tanh, the entropy without it.
    log_probability, entropy = policy.distribution.log_probability_and_entropy(parameters, batch.action)  # (B) each

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
            # E[(r - 1) - log r] (Schulman 2020, "Approximating KL divergence")
            "approx_kl": ((ratio - 1.0) - log_ratio).mean(),
            "clip_fraction": ((ratio - 1.0).abs() > config.clip).float().mean(),
        }


# AN ITERATION


class TorchBackend(OnPolicyBackend):
    """PPO by torch operations and autograd: the specification for all other backends.

    The phase `update` is `OnPolicyBackend.learn`, which runs `estimate_advantages`, draws a new order of the blocks,
    and runs `update` and `update_normalizers`, in this order.

    `collector.rollout` holds what the world writes, T steps of N lanes: observation (T + 1, O, N), reward, terminated
    and truncated (T, N). `experience` holds what PPO adds: raw actions (T, A, N), log_probability, advantage and
    returns (T, N), value (T + 1, N). `cycle.rollout` is the rollout that is learned from: the same one, except in the
    backend that acts with `algo.overlap`.
    """

    name, terms = "torch", TERMS
    normalizes_advantages = False
    """Whether the backend normalizes advantages where it reads them."""

    config: PPOConfig
    policy: Policy

    def __init__(self, ppo: PPO) -> None:
        super().__init__(ppo)
        self.return_normalizer, self.accrued_returns = ppo.return_normalizer, ppo.accrued_returns
        self.microbatch = self.config.microbatch
        # products by shard and chunk: the same bits on any number of ranks
        self.cut = self.config.chunks is not None or self.exchange.ranks > 1
        self.acts_on_slices = self.device.type == "cuda" and not self.cut
        if self.config.chunks is None:
            self.bits_by_ranks = "one rank computes a minibatch as a whole (with algo.chunks=8 it would not)"
        elif self.device.type == "cuda" and self.policy.env.pixels:
            self.bits_by_ranks = "a library chooses how a GPU convolves pictures"

    # COLLECT

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write actions, log-probabilities and values of step t, for all lanes or a slice of `lanes`. The world then
        steps, and writes observation t + 1, reward t and the end of an episode to the rollout.
        """
        distribution, rollout, experience = self.policy.distribution, self.collector.rollout, self.experience
        selected = (..., lanes or slice(None))
        legal, raw, noise = self.collector.legal(t), experience.raw[t][selected], self.collector.noise[t][selected]
        parameters, experience.value[t][selected] = self.forward(
            rollout.observation[t][selected], None if legal is None else legal[selected]
        )
        # a ~ pi(.|s), from uniform noise (U, N): the inverse CDF of softmax(logits), or mean + std N(0, 1)
        raw.copy_(distribution.sample(parameters, noise))
        experience.log_probability[t][selected] = distribution.log_probability_and_entropy(parameters, raw)[0]
        rollout.action[t][selected] = distribution.to_env(raw)  # continuous: clipped or squashed, scaled to the bounds

    def bootstrap(self) -> None:
        """Write V of the observation after the last step, and V of the true final observation of every truncated
        episode.
        """
        self.experience.value[-1] = self.forward(self.collector.rollout.observation[-1])[1]
        self.write_final_values(lambda observation: self.policy.forward(observation)[1])

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return action parameters (H, N), logits or means, and values V (N), for observations (O, N) and legal actions
        (H, N); the next call may overwrite them.

        Observations are normalized by running mean and standard deviation if configured; the logits of illegal actions
        are -1e9.
        """
        if self.cut:
            return self.by_shards(self.policy.forward, observation, legal)
        return self.policy.forward(observation, legal)

    # ADVANTAGES

    @torch.no_grad()
    def estimate_advantages(self) -> None:
        """Write scaled rewards, advantages and returns, (T, N) each.

        Advantages are normalized over the whole iteration, unless the backend does so where it reads them.
        """
        cycle, reward, advantage = self.cycle, self.experience.reward, self.experience.advantage
        # With `normalize_rewards`: r / std(G), clipped to [-10, 10], where G are discounted returns.
        reward.copy_(cycle.rollout.reward)
        if self.return_normalizer is not None:
            reward.mul_(self.return_normalizer.inv_std).clamp_(-RunningNormalizer.CLIP, RunningNormalizer.CLIP)

        # delta_t = r_t + gamma V(s_{t+1}) - V(s_t);  A_t = delta_t + gamma lambda A_{t+1};  R_t = A_t + V(s_t)
        # V(s_{t+1}) is 0 after termination, V of the true final observation after truncation; A_{t+1} is 0 after both.
        cycle.estimate_advantages()

        # A <- (A - mean A) / std A over all T N samples, by the sample variance.
        if self.config.normalize_advantages and not self.normalizes_advantages:
            cut = self.config.chunks is not None
            mean, variance, count = statistics(advantage[None], cycle.shards, self.exchange, cut=cut)
            advantage.sub_(mean.float()).div_((variance * count / (count - 1)).sqrt().float() + 1e-8)

    # UPDATE

    def update(self) -> None:
        """Take one optimizer step per minibatch of every epoch over the rollout, and write `stats`."""
        cycle, config = self.cycle, self.config
        residual = self.experience.returns - self.experience.value[:-1]
        explained_variance = cycle.explained_variance(residual, cut=config.chunks is not None)  # 1 - Var(R - V) / Var R
        cycle.anneal()  # learning rate x max(0, 1 - iteration / iterations of anneal_steps), if algo.anneal
        cycle.skip.zero_()

        # For each epoch a random order of the rollout's blocks (M): up to 32 neighbouring lanes of one step. `learn`
        # has drawn it. Blocks are permuted within each shard of lanes (up to 8 aligned ranges), so that a minibatch has
        # equally many of each.
        totals = torch.zeros(len(TERMS) + 1, device=self.device)  # sums of the loss's terms and of the gradient's norm
        batches = (batch for order in cycle.minibatches.order for batch in self.batches(order.long()))
        for batch in itertools.islice(batches, config.updates):  # epochs x minibatches, or by algo.replay_ratio
            totals += self.step(batch)
        cycle.iteration.add_(1)

        *terms, gradient_norm = means = totals / config.updates
        stats = Stats(
            **dict(zip(TERMS, terms, strict=True)),
            gradient_norm=gradient_norm,
            explained_variance=explained_variance,
            learning_rate=cycle.learning_rate,
            not_finite=self.count_not_finite(means),
        )
        self.stats.copy_(torch.stack(stats))

    def step(self, batch: Any) -> Tensor:
        """Take one optimizer step on a minibatch. Returns the loss's terms and the gradient's norm before clipping,
        (E + 1).
        """
        config, skip = self.config, self.cycle.skip
        terms = self.gradient(batch)  # of `loss`, in one flat vector of all parameters
        with torch.no_grad():
            # g <- g min(1, max_gradient_norm / |g|)
            gradient_norm = clip_gradient(self.policy.flat.gradient, config.max_gradient_norm)
            # Beyond the target KL divergence this step and the rest of the update change nothing: the optimizer skips
            # them, so that an iteration is always the same CUDA graph.
            if config.target_kl is not None:
                approx_kl = terms[TERMS.index("approx_kl")]
                skip.copy_(torch.maximum(skip, (approx_kl > 1.5 * config.target_kl).float()))
            self.optimizer.step(skip if config.target_kl is not None else None)  # Adam, or Muon
            return torch.cat([terms, gradient_norm[None]])

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch, or of a part of it, and its terms by the names in `TERMS`."""
        return ppo_loss(self.policy, batch, self.config)

    def batches(self, order: Tensor) -> Iterator[Any]:
        """Yield the minibatches of an epoch, given its random `order` of the rollout's blocks, (M) block numbers."""
        if self.policy.env.pixels:  # a gathered epoch of pictures would not fit in memory
            yield from super().batches(order)
        else:
            samples, count = self.gather(order), self.config.minibatches
            yield from samples.split([len(samples.returns) // count] * count)

    def gather(self, blocks: Tensor) -> Any:
        """Gather the samples of blocks (up to 32 neighbouring lanes of one step) with the numbers `blocks` (m), as a
        batch of B samples.
        """
        rollout, experience, gather = self.collector.rollout, self.experience, self.gather_rows
        return Batch(
            observation=self.gather_observations(blocks),
            action=gather(experience.raw, blocks),
            log_probability=gather(experience.log_probability, blocks),
            value=gather(experience.value[:-1], blocks),
            advantage=gather(experience.advantage, blocks),
            returns=gather(experience.returns, blocks),
            legal=None if rollout.legal is None else gather(rollout.legal[:-1], blocks),
        )

    @torch.no_grad()
    def update_normalizers(self) -> None:
        """Update the running mean and variance of observations and of discounted returns by those of the iteration."""
        super().update_normalizers()
        if self.return_normalizer is not None:
            # G_t = r_t + gamma G_{t-1}, 0 after the end of an episode. float64: the square of a return of 1e20
            # overflows float32, and an infinite variance would scale all rewards to zero for good.
            returns = self.accrued_returns()[None].double()  # (1, T, N)
            self.return_normalizer.update(returns, self.cycle.shards, self.exchange)


# BUFFERS AND PHASES


class PPO(RolloutAlgorithm):
    """PPO learner on the lanes of a world. Running its phases `collect` and `update` is one iteration, after which
    `stats` holds the fields of `Stats`.
    """

    Config, Stats = PPOConfig, Stats
    sequences = True

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
        T, lanes, device = config.horizon, world.count * exchange.ranks, world.device
        policy = make_policy(world.spec, config, net, device, seed)
        # Minibatches of samples, or of segments of a recurrent policy.
        cut = (
            segments_layout(T, lanes, config.minibatches, config.bptt or T, config.chunks)
            if policy.recurrent
            else layout(T, lanes, config.minibatches, config.chunks)
        )
        super().__init__(
            world,
            config,
            policy,
            cut,
            decay=config.gamma * config.gae_lambda,
            epochs=-(-config.updates // config.minibatches),  # the last may end early
            seed=seed,
            steps=steps,
            noise_hold=config.noise_hold,
            eager=eager,
            exchange=exchange,
        )
        self.actor = _for_playing(policy, config)

        # Rewards are divided by the standard deviation of discounted returns, accrued forward.
        self.return_normalizer = RunningNormalizer(1, device) if config.normalize_rewards else None
        rollout = self.rollout
        self.accrued_returns = AccruedReturns(rollout.reward, rollout.terminated, rollout.truncated, config.gamma)

        # One optimizer over the flat vector of parameters.
        flat = policy.flat
        vectors = (flat.values.data, flat.gradient, self.cycle.learning_rate, config.adam_epsilon)
        self.optimizer = (
            Muon(*vectors, flat.matrices(2 - net.shared, net.memory_size or net.hidden[-1]))
            if config.optimizer == "muon"
            else Adam(*vectors)
        )
        self.metrics = ppo_metrics(getattr(policy.distribution, "sizes", ()))
        self.capture(self.choose_backend(), eager=eager)

    def choose_backend(self) -> TorchBackend:
        """Return the torch backend. The class that users get, `operant.algos.ppo.PPO`, chooses the fastest
        supported.
        """
        return TorchBackend(self)

    def make_experience(self, collector: Collector) -> Experience:
        """Allocate what PPO stores for each sample of a rollout; raw actions are those before squashing."""
        shape = collector.steps, self.policy.distribution.action_rows, collector.world.count
        raw = torch.zeros(shape, dtype=collector.rollout.action.dtype, device=self.device)
        return Experience(collector, SampleRows, raw)

    def start(self) -> None:
        """Reset all lanes before the first iteration of a new run. A resumed run loads `state` instead."""
        self.accrued_returns.carried.zero_()
        super().start()

    def tensors(self) -> dict[str, Tensor]:
        """Return the running statistics of returns, by their names in a checkpoint."""
        normalizer = self.return_normalizer.tensors() if self.return_normalizer is not None else {}
        named = {f"return/{name}": tensor for name, tensor in normalizer.items()}
        return named | {"algo/carried": self.accrued_returns.carried}

    @classmethod
    def make_actor(cls, spec: Env, config: PPOConfig, net: NetConfig, device: torch.device, *, seed: int = 0) -> Policy:
        """Create the policy for evaluation and play in the environment `spec`, without buffers for training."""
        return _for_playing(make_policy(spec, config, net, device, seed), config)

    @classmethod
    def estimate(cls, spec: Env, config: PPOConfig, net: NetConfig, lanes: int) -> Estimate:
        """Estimate environment steps, FLOPs and bytes of an iteration of `lanes` lanes. Its trial configuration, for
        measuring memory, has one epoch and no microbatches, which take the most.
        """
        samples = config.horizon * lanes
        policy = make_policy(spec, config, net, torch.device("cpu"))
        flops, moved = on_policy_work(policy, samples, lanes, config.updates / config.minibatches)
        trial = {"kernels": "torch", "microbatch": None, "epochs": 1, "replay_ratio": None}
        return Estimate(samples, flops, moved, config.model_copy(update=trial))


def make_policy(spec: Env, config: PPOConfig, net: NetConfig, device: torch.device, seed: int = 0) -> Policy:
    """Create the policy for learning. The one for evaluation and play may differ, see `_for_playing`."""
    normalize, precision = config.normalize_observations, config.precision
    return Policy(spec, net, seed=seed, device=device, normalize=normalize, precision=precision)


def _for_playing(policy: Policy, config: PPOConfig) -> Policy:
    """Return the policy for evaluation and play: `policy` itself, or if it was trained without `carry_state`, a copy
    that resets its recurrent state after every T steps.
    """
    return policy.forgetting(config.horizon) if policy.recurrent and not config.carry_state else policy


# THE METRICS IN A MONITOR

_SMALLER_STEPS: Final = "lower algo.learning_rate, or fewer algo.epochs"
_TOO_LARGE: Final = f"updates change the policy too much: {_SMALLER_STEPS}"
_TOO_SMALL: Final = "the policy hardly changes: raise algo.learning_rate, unless its entropy is near 0"
_CLIPPED: Final = f"most samples are clipped: {_SMALLER_STEPS}"
_COLLAPSED: Final = "the policy no longer explores: raise algo.entropy_coefficient, or lower algo.learning_rate"
_NOT_FINITE: Final = "lower algo.learning_rate or algo.max_gradient_norm, or set algo.normalize_rewards=true"

_ANNEALED: Final[dict[str, Any]] = {"while_metric": "learning_rate", "while_share": 0.2}
"""Not where the learning rate is below a fifth of its largest: small updates are expected then."""

# Thresholds were set on the shipped configurations, which must show no "bad", and on runs broken on purpose (learning
# rates of 1, 0.1, 0.05 and 1e-6), which must.
DETAILS: Final[dict[str, dict[str, Any]]] = {
    "entropy": {
        "explanation": "The policy's entropy in nats: ln n where all n actions are equally likely, 0 where one is "
        "certain, any number for a normal distribution. It falls as the policy learns. Near 0 while the goal is far, "
        "exploration ended too early; near ln n after a fifth of the run, nothing was learned.",
    },
    "approx_kl": {
        "thresholds": (
            Threshold("bad", at_least=0.15, advice=_TOO_LARGE),
            Threshold("warn", at_least=0.05, advice=_TOO_LARGE),
            Threshold("bad", below=1e-6, advice=_TOO_SMALL, **_ANNEALED),
            Threshold("warn", below=3e-5, advice=_TOO_SMALL, **_ANNEALED),
        ),
        "explanation": "How far an iteration's updates move the policy: the mean of (ratio - 1) - log ratio (Schulman "
        "2020). Runs that learn have 0.0003 to 0.04, most at the start, and less as the learning rate is annealed. "
        "Beyond 0.05 the samples no longer fit the policy that learns from them.",
    },
    "clip_fraction": {
        "thresholds": (
            Threshold("bad", at_least=0.7, advice=_CLIPPED),
            Threshold("warn", at_least=0.4, advice=_CLIPPED),
        ),
        "explanation": "The share of samples whose probability ratio left 1 ± algo.clip, so that PPO no longer learns "
        "from them. 0.01 to 0.35 is usual.",
    },
    "gradient_norm": {
        "thresholds": jumps(
            "ten times the last minute's median: if it stays, lower algo.learning_rate or algo.max_gradient_norm"
        ),
        "explanation": "The norm of the loss's gradient before it is clipped to algo.max_gradient_norm. Its size "
        "depends on the task; a jump is what matters.",
    },
    "explained_variance": {
        "thresholds": (
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
        "explanation": "How much of the variance of the returns the critic explains: 1 all of it, 0 no more than a "
        "constant, less than 0 worse than that. Low values are usual in the first tenth of a run, where returns are "
        "rare, and of a policy at its best, whose returns are all alike.",
    },
}


def ppo_metrics(choices: Sequence[int]) -> tuple[MetricSpec, ...]:
    """Return the declarations of PPO's metrics, in the order of `Stats`. `choices` are the numbers of actions, one per
    choice; empty for continuous actions.
    """
    specs = metric_specs(Stats, DETAILS, entropy={"thresholds": entropy_thresholds(choices)})
    return tuple(spec._replace(advice=_NOT_FINITE) for spec in specs)


def entropy_thresholds(choices: Sequence[int]) -> tuple[Threshold, ...]:
    """Return the thresholds of the entropy. `choices` are the numbers of actions, one per choice; empty for continuous
    actions, whose entropy may have any sign, but stays next to zero only after a collapse.
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
