"""How PPO acts and learns: by torch and autograd, by a manual backward pass on the CPU, or by fused kernels on a GPU.
One of them is chosen when a run begins.

All three work on the same buffers, with the same noise and the same order of minibatches; torch and autograd are the
specification. Knows no rollout's collection and no advantage.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from operant.algos.ppo import fused, manual_backward
from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.loss import Batch, Experience, LossTerms, ppo_loss
from operant.algos.ppo.stats import Stats
from operant.compute import threads
from operant.data import Collector, Minibatches
from operant.nn import SOLO, Adam, Exchange, Policy, chunked, clip_gradient, manual, masked, statistics

log = logging.getLogger("operant.ppo")

Gather = Callable[[Tensor, Tensor], Tensor]
"""Takes blocks (m) of a buffer (T, ..., N)."""


@dataclass(frozen=True)
class Parts:
    """What a backend works on."""

    config: PPOConfig
    policy: Policy
    collector: Collector
    experience: Experience
    minibatches: Minibatches
    optimizer: Adam
    learning_rate: Tensor  # a scalar that a captured graph sees change
    anneal_iterations: int | None  # None: the rate stays
    skip: Tensor  # a scalar: 1 leaves out the rest of an iteration's optimizer steps
    iteration: Tensor  # (1) int64, how many are done
    stats: Tensor  # in the order of `Stats`
    exchange: Exchange = SOLO


class Backend(Protocol):
    """One way to do the work."""

    name: str  # "torch", "manual_backward" or "fused"
    normalizes_advantages: bool  # or wants them normalized
    chosen: dict[str, str]  # what was left to it by the configuration
    bits_by_ranks: str | None  # why the last bits depend on the number of ranks; None: they do not
    parts: Parts

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """A phase, with the threads that this backend wants torch to use."""

    def beside(self, parts: Parts) -> Backend:
        """What acts in the same way over other parts, while this one learns."""

    def start(self) -> None:
        """Begin every lane anew."""

    def prepare(self) -> None:
        """Take the policy as it is, for a rollout and its update."""

    def after(self, t: int) -> None:
        """Step t is done."""

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs of it, by name."""

    @property
    def acts_on_some(self) -> bool:
        """Whether `act` takes some of the lanes, also while it acts on others in another stream; `after` then has
        nothing to do.
        """

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions, log-probabilities and values of step t, of all lanes or some."""

    def bootstrap(self) -> None:
        """V of the observation after the last step, and of the true final observation of every truncated episode."""

    def update(self) -> None:
        """Epochs over the rollout in minibatches: optimizer steps, one more iteration, and `stats`."""


def choose(parts: Parts) -> Backend:
    """The fastest backend that can be here and that `algo.kernels` allows. Raises ConfigError where it asks for fused
    kernels that cannot be.
    """
    learner = _fused_learner(parts)
    if learner is not None:
        return FusedBackend(parts, learner)
    return ManualBackend(parts) if manual.applies(parts.policy, parts.config.kernels) else TorchBackend(parts)


def _fused_learner(parts: Parts) -> fused.Learner | None:
    """The fused kernels over the parts' buffers; None where torch's are to do the work."""
    config = parts.config
    return fused.agreed(fused_task(parts), config.kernels, config.precision, config.kernel_config)


def fused_task(parts: Parts) -> Any:
    """What is to run fused, over the parts' buffers."""
    config, experience, collector = parts.config, parts.experience, parts.collector
    buffers = fused.Buffers(
        collector.rollout,
        experience.raw,
        collector.noise,
        experience.numbers,
        experience.final_value,
        parts.minibatches.order,
        parts.iteration,
        parts.skip,
        parts.learning_rate,
        parts.stats,
    )
    coefficients = fused.Coefficients(
        config.clip,
        config.value_clip,
        config.entropy_coefficient,
        config.value_coefficient,
        config.max_gradient_norm,
        config.normalize_advantages,
        config.target_kl,
        config.adam_epsilon,
        float(config.learning_rate),
        parts.anneal_iterations,
    )
    return fused.task(
        parts.policy, parts.optimizer, buffers, coefficients, parts.minibatches.layout, config.chunks, parts.exchange
    )


class TorchBackend:
    """Torch's kernels, and autograd: what the other backends are checked against."""

    name = "torch"
    normalizes_advantages = False

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config, self.policy, self.experience = parts, parts.config, parts.policy, parts.experience
        self.collector, self.device, self.chosen = parts.collector, parts.policy.device, dict[str, str]()
        # A product's shape decides its last bits. Cut into shards and chunks it is the same on any number of ranks, but
        # whole it is faster.
        self._cut = parts.config.chunks is not None or parts.exchange.ranks > 1
        self.bits_by_ranks: str | None = None
        if parts.config.chunks is None:
            self.bits_by_ranks = "one rank computes a minibatch as a whole (with algo.chunks=8 it would not)"
        elif self.device.type == "cuda" and self.policy.env.pixels:
            self.bits_by_ranks = "a library chooses how a GPU convolves pictures"

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """As it is: all of torch's threads share the work."""
        return work

    def beside(self, parts: Parts) -> Backend:
        """What acts in the same way over other parts, while this one learns."""
        return type(self)(parts)

    # ACT

    def prepare(self) -> None:
        """Nothing: torch reads the policy's own numbers."""

    def start(self) -> None:
        """Nothing: what is acted on is in the collector."""

    def after(self, t: int) -> None:
        """Nothing."""

    def tensors(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Action parameters (H, N) and values (N) of observations (O, N) and legal actions (H, N), until it is called
        again.
        """
        if not self._cut:
            return self.policy.forward(observation, legal)
        shards = self.parts.minibatches.layout.shards
        allowed = [None] * shards if legal is None else legal.chunk(shards, dim=-1)
        parts = [
            self.policy.forward(seen.contiguous(), may)
            for seen, may in zip(observation.chunk(shards, dim=-1), allowed, strict=True)
        ]
        return torch.cat([parameters for parameters, _ in parts], dim=1), torch.cat([value for _, value in parts])

    @property
    def acts_on_some(self) -> bool:
        """On a GPU, where lanes are not cut into shards."""
        return self.device.type == "cuda" and not self._cut

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions, log-probabilities and values of step t, of all lanes or some."""
        distribution, rollout, experience, here = (
            self.policy.distribution,
            self.collector.rollout,
            self.experience,
            (..., lanes or slice(None)),
        )
        legal, raw = self.collector.legal(t), experience.raw[t][here]
        parameters, experience.value[t][here] = self.forward(
            rollout.observation[t][here], None if legal is None else legal[here]
        )
        raw.copy_(distribution.sample(parameters, self.collector.noise[t][here]))
        experience.log_probability[t][here] = distribution.log_probability_and_entropy(parameters, raw)[0]
        rollout.action[t][here] = distribution.to_env(raw)

    def bootstrap(self) -> None:
        """V of the observation after the last step, and of the true final observation of every truncated episode."""
        collector, final_value, shards = (
            self.collector,
            self.experience.final_value,
            self.parts.minibatches.layout.shards,
        )
        captured = self.device.type == "cuda" and collector.world.capturable
        shards = shards if self._cut or not captured else 1
        self.experience.value[-1] = self.forward(collector.rollout.observation[-1])[1]
        collector.final_values(
            lambda observation: self.policy.forward(observation)[1], final_value, shards=shards, captured=captured
        )

    # LEARN

    def update(self) -> None:
        """Epochs over the rollout in minibatches: optimizer steps, one more iteration, and `stats`."""
        parts, config, experience = self.parts, self.config, self.experience
        targets = torch.stack([experience.returns, experience.returns - experience.value[:-1]])
        variance, residual = (
            statistics(targets, parts.minibatches.layout.shards, parts.exchange, cut=config.chunks is not None)
            .variance[:, 0]
            .float()
        )
        explained = 1.0 - residual / variance.clamp_min(1e-12)
        if parts.anneal_iterations is not None:
            remaining = 1.0 - parts.iteration.float() / parts.anneal_iterations
            parts.learning_rate.copy_((config.learning_rate * remaining.clamp_min(0.0))[0])
        parts.skip.zero_()

        # Sums over minibatches: the loss's terms, then the gradient's norm.
        totals = torch.zeros(len(LossTerms._fields) + 1, device=self.policy.device)
        batches = (batch for order in parts.minibatches.order for batch in self.batches(order.long()))
        for batch in itertools.islice(batches, config.updates):
            totals += self.step(batch)
        totals /= config.updates

        parts.iteration.add_(1)
        not_finite = (~torch.isfinite(self.policy.flat.values.data)).sum() + (~torch.isfinite(totals)).sum()
        *terms, norm = totals
        named = LossTerms(*terms)._asdict()
        stats = Stats(
            **named,
            gradient_norm=norm,
            explained_variance=explained,
            learning_rate=parts.learning_rate,
            not_finite=not_finite.float(),
        )
        parts.stats.copy_(torch.stack(stats))

    def batches(self, order: Tensor) -> Iterator[Any]:
        """The samples of an epoch's blocks (M), a minibatch at a time."""
        count = self.config.minibatches
        if self.policy.env.pixels:  # which would take too much room all at once
            for blocks in order.chunk(count):
                yield self.gather(blocks)
        else:
            samples = self.gather(order)
            yield from samples.split([len(samples.returns) // count] * count)

    def gather(self, blocks: Tensor) -> Any:
        """The samples of some blocks (m), in this order."""
        gather = self.parts.minibatches.gather
        return self.taken(blocks, gather, self.parts.minibatches.gather_pictures if self.policy.env.pixels else gather)

    def taken(self, blocks: Tensor, gather: Gather, gather_observation: Gather) -> Batch:
        """What `gather` takes of some blocks (m) from each buffer of the rollout."""
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

    def step(self, batch: Any) -> Tensor:
        """One optimizer step. Returns the loss's terms and the gradient's norm, (6)."""
        config, skip = self.config, self.parts.skip
        terms = self.gradient(batch)
        with torch.no_grad():
            norm = clip_gradient(self.policy.flat.gradient, config.max_gradient_norm)
            if config.target_kl is not None:
                skip.copy_(torch.maximum(skip, (terms.approx_kl > 1.5 * config.target_kl).float()))
            self.parts.optimizer.step(skip if config.target_kl is not None else None)
            return torch.stack([*terms, norm])

    def loss(self, batch: Any) -> tuple[Tensor, LossTerms]:
        """The loss of a minibatch, or of a part of it, and its terms."""
        return ppo_loss(self.policy, batch, self.config)

    def gradient(self, batch: Any) -> LossTerms:
        """Write the gradient of the minibatch's loss into the flat vector."""
        flat, size, samples = self.policy.flat, batch.size, batch.samples
        if self._cut:
            return self._summed(batch)
        count = min(size, -(-samples // (self.config.microbatch or samples)))
        if count == 1:
            loss, terms = self.loss(batch)
            flat.backward(loss)
            return terms
        # The mean over the minibatch is the sum of the parts' means, each by its share of the samples: in one order, so
        # in the same bits.
        total = torch.zeros(len(LossTerms._fields), device=self.policy.device)
        sizes = [size // count + (k < size % count) for k in range(count)]
        for k, part in enumerate(batch.split(sizes)):
            share = part.size / size
            loss, terms = self.loss(part)
            flat.backward(share * loss, add=k > 0)
            total += share * torch.stack(terms)
        return LossTerms(*total)

    def _summed(self, batch: Any) -> LossTerms:
        """The same in the layout's chunks, whose gradients are added in the fixed tree, the other ranks' among them."""
        layout, flat, exchange = self.parts.minibatches.layout, self.policy.flat, self.parts.exchange
        sizes = layout.chunk_sizes()

        def rows() -> Iterator[Tensor]:
            for n, part in zip(sizes, batch.split(sizes), strict=True):
                # the gradient, then the terms
                row = torch.zeros(len(flat.gradient) + len(LossTerms._fields), device=self.policy.device)
                if n > 0:
                    share = part.samples / layout.all_samples
                    loss, terms = self.loss(part)
                    flat.backward(share * loss)
                    torch.cat([flat.gradient, share * torch.stack(terms)], out=row)
                yield row

        total = chunked.tree_sum(exchange.gather(chunked.tree_sum_of(rows())[None]))
        gradient, terms = total.split([len(flat.gradient), len(LossTerms._fields)])
        flat.gradient.copy_(gradient)
        return LossTerms(*terms)


class ManualBackend(TorchBackend):
    """The same on the CPU, with the forward and backward pass written out by hand, over memory that is allocated once,
    on threads that each compute alone.
    """

    name = "manual_backward"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        pool = threads.ThreadPool(torch.get_num_threads())
        log.info(
            "kernels: torch's, and a manual backward pass, on %d thread%s",
            pool.threads,
            "" if pool.threads == 1 else "s",
        )
        layout, self.bits_by_ranks = parts.minibatches.layout, None
        self._gradient = manual_backward.Gradient(
            parts.policy, parts.config, layout.chunk_sizes(), pool, parts.exchange
        )
        self._forward, self._pool = chunked.Forward(parts.policy, layout.lane_sizes(), pool), pool

    def beside(self, parts: Parts) -> Backend:
        """What acts in the same way over other parts, while this one learns: on the same threads."""
        other = copy.copy(self)
        TorchBackend.__init__(other, parts)
        other._forward = chunked.Forward(parts.policy, parts.minibatches.layout.lane_sizes(), self._pool)
        return other

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """On this thread alone, but for the pool."""
        return threads.alone()(work)

    def prepare(self) -> None:
        """Take the policy's weights as they are."""
        self._forward.refresh()

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Action parameters (H, N) and values (N) of observations (O, N) and legal actions (H, N), until it is called
        again.
        """
        parameters, value = self._forward(observation)
        return (parameters if legal is None else masked(parameters, legal)), value

    def gradient(self, batch: Batch) -> LossTerms:
        """Write the gradient of the minibatch's loss into the flat vector."""
        return LossTerms(*self._gradient(batch))


class FusedBackend(TorchBackend):
    """A few Triton kernels for all of it: see `operant.algos.ppo.fused`."""

    name = "fused"
    normalizes_advantages = True

    def __init__(self, parts: Parts, learner: fused.Learner) -> None:
        super().__init__(parts)
        self.learner: fused.Learner = learner
        self.chosen = {"kernel_config": fused.config_text(learner)}
        self.bits_by_ranks = None

    def beside(self, parts: Parts) -> Backend:
        """What acts in the same way over other parts, while this one learns: in the same tile config."""
        return FusedBackend(parts, type(self.learner)(self.learner.spec, fused_task(parts), self.learner.config))

    def prepare(self) -> None:
        """Take the normalizer as it is."""
        self.learner.prepare()

    @property
    def acts_on_some(self) -> bool:
        """Where one kernel acts."""
        return self.learner.acts_on_some

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions, log-probabilities and values of step t, of all lanes or some."""
        self.learner.act(t, lanes)

    def bootstrap(self) -> None:
        """V of the observation after the last step, and of the true final observation of every truncated episode."""
        self.learner.bootstrap(self.collector.world.can_truncate)

    def update(self) -> None:
        """Epochs over the rollout in minibatches: optimizer steps, one more iteration, and `stats`."""
        self.learner.update(self.config.updates)
