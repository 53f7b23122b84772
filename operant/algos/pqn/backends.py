"""How PQN acts and learns: by torch and autograd, or by something faster that does the same. One of them is chosen when
a run begins.

All work on the same buffers, with the same noise and the same order of minibatches; torch and autograd are the
specification. Knows no rollout's collection and no returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from operant.algos.pqn import fused, manual_backward
from operant.algos.pqn.config import PQNConfig
from operant.algos.pqn.loss import Batch, Experience, LossTerms, q_loss
from operant.algos.pqn.stats import Stats
from operant.compute import threads
from operant.data import Collector, Minibatches
from operant.nn import Adam, QPolicy, chunked, clip_gradient, epsilon_greedy, manual, masked, statistics

log = logging.getLogger("operant.pqn")


@dataclass(frozen=True)
class Parts:
    """What a backend works on."""

    config: PQNConfig
    policy: QPolicy
    collector: Collector
    experience: Experience
    minibatches: Minibatches
    optimizer: Adam
    learning_rate: Tensor  # a scalar that a captured graph sees change
    anneal_iterations: int | None  # None: the rate stays
    iteration: Tensor  # (1) int64, how many are done
    stats: Tensor  # in the order of `Stats`


class Backend(Protocol):
    """One way to do the work."""

    name: str
    chosen: dict[str, str]  # what was left to it by the configuration
    parts: Parts

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """A phase, with the threads that this backend wants torch to use."""

    def prepare(self) -> None:
        """Take the policy as it is, for a rollout and its update."""

    @property
    def acts_on_some(self) -> bool:
        """Whether `act` takes some of the lanes, also while it acts on others in another stream."""

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Epsilon-greedy actions of step t, and the largest Q values of its observations, of all lanes or some."""

    def bootstrap(self) -> None:
        """The largest Q value of the observation after the last step, and of the true final observation of every
        truncated episode.
        """

    def update(self) -> None:
        """Epochs over the rollout in minibatches: optimizer steps, one more iteration, and `stats`."""


def choose(parts: Parts) -> Backend:
    """The fastest backend that this machine supports and `algo.kernels` allows. Raises ConfigError for unsupported
    fused kernels.
    """
    learner = _fused_learner(parts)
    if learner is not None:
        return FusedBackend(parts, learner)
    return ManualBackend(parts) if manual.applies(parts.policy, parts.config.kernels) else TorchBackend(parts)


def _fused_learner(parts: Parts) -> fused.Learner | None:
    """The fused kernels over the parts' buffers; None where torch's are to do the work."""
    config, policy, collector, experience = parts.config, parts.policy, parts.collector, parts.experience
    buffers = fused.Buffers(
        collector.rollout,
        collector.noise,
        policy.epsilon,
        experience.numbers,
        experience.final_value,
        parts.minibatches.order,
        parts.iteration,
        torch.zeros((), device=policy.device),
        parts.learning_rate,
        parts.stats,
    )
    coefficients = fused.Coefficients(
        config.max_gradient_norm, config.adam_epsilon, float(config.learning_rate), parts.anneal_iterations
    )
    task = fused.task(policy, parts.optimizer, buffers, coefficients, parts.minibatches.layout)
    return fused.build(task, kernels=config.kernels, precision=config.precision, config=config.kernel_config)


class TorchBackend:
    """Torch's kernels, and autograd: what the other backends are checked against."""

    name = "torch"

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config, self.policy, self.experience = parts, parts.config, parts.policy, parts.experience
        self.collector, self.device, self.chosen = parts.collector, parts.policy.device, dict[str, str]()

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """As it is: all of torch's threads share the work."""
        return work

    # ACT

    def prepare(self) -> None:
        """Nothing: torch reads the policy's own numbers."""

    def values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Q (A, n) of observations (O, n) and legal actions (A, n), until it is called again."""
        return self.policy.values(observation, legal)

    @property
    def acts_on_some(self) -> bool:
        """On a GPU."""
        return self.device.type == "cuda"

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Epsilon-greedy actions of step t, and the largest Q values of its observations, of all lanes or some."""
        collector, here = self.collector, (..., lanes or slice(None))
        found = collector.legal(t)
        legal = None if found is None else found[here]
        values = self.values(collector.rollout.observation[t][here], legal)
        self.experience.value[t][here] = values.amax(dim=0)
        collector.rollout.action[t][here] = epsilon_greedy(values, collector.noise[t][here], self.policy.epsilon, legal)

    def bootstrap(self) -> None:
        """The largest Q value of the observation after the last step, and of the true final observation of every
        truncated episode.

        At a final observation no environment judges which actions are legal, so all count.
        """
        collector, final_value, shards = (
            self.collector,
            self.experience.final_value,
            self.parts.minibatches.layout.shards,
        )
        captured = self.device.type == "cuda" and collector.world.capturable
        self.experience.value[-1] = self.values(collector.rollout.observation[-1], collector.legal(-1)).amax(dim=0)
        collector.final_values(
            lambda observation: self.policy.values(observation).amax(dim=0),
            final_value,
            shards=shards,
            captured=captured,
        )

    # LEARN

    def update(self) -> None:
        """Epochs over the rollout in minibatches: optimizer steps, one more iteration, and `stats`."""
        parts, config, experience = self.parts, self.config, self.experience
        targets = torch.stack([experience.returns, experience.advantage])
        variance, residual = statistics(targets, parts.minibatches.layout.shards).variance[:, 0].float()
        explained = 1.0 - residual / variance.clamp_min(1e-12)
        if parts.anneal_iterations is not None:
            remaining = 1.0 - parts.iteration.float() / parts.anneal_iterations
            parts.learning_rate.copy_((config.learning_rate * remaining.clamp_min(0.0))[0])

        # Sums over minibatches: the loss's terms, then the gradient's norm.
        totals = torch.zeros(len(LossTerms._fields) + 1, device=self.policy.device)
        for epoch in range(config.epochs):
            for batch in self.batches(parts.minibatches.order[epoch].long()):
                totals += self.step(batch)
        totals /= config.epochs * config.minibatches

        parts.iteration.add_(1)
        not_finite = (~torch.isfinite(self.policy.flat.values.data)).sum() + (~torch.isfinite(totals)).sum()
        *terms, norm = totals
        named = LossTerms(*terms)._asdict()
        stats = Stats(
            **named,
            gradient_norm=norm,
            explained_variance=explained,
            epsilon=self.policy.epsilon,
            learning_rate=parts.learning_rate,
            not_finite=not_finite.float(),
        )
        parts.stats.copy_(torch.stack(stats))

    def batches(self, order: Tensor) -> Iterator[Batch]:
        """The samples of an epoch's blocks (M), a minibatch at a time."""
        for blocks in order.chunk(self.config.minibatches):
            yield self.gather(blocks)

    def gather(self, blocks: Tensor) -> Batch:
        """The samples of some blocks (m), in this order."""
        gather, rollout = self.parts.minibatches.gather, self.collector.rollout
        gather_observation = self.parts.minibatches.gather_pictures if self.policy.env.pixels else gather
        observation = gather_observation(rollout.observation[:-1], blocks)
        return Batch(observation, gather(rollout.action, blocks), gather(self.experience.returns, blocks))

    def step(self, batch: Batch) -> Tensor:
        """One optimizer step. Returns the loss's terms and the gradient's norm, (4)."""
        terms = self.gradient(batch)
        with torch.no_grad():
            norm = clip_gradient(self.policy.flat.gradient, self.config.max_gradient_norm)
            self.parts.optimizer.step()
            return torch.stack([*terms, norm])

    def gradient(self, batch: Batch) -> LossTerms:
        """Write the gradient of the minibatch's loss into the flat vector."""
        loss, terms = q_loss(self.policy, batch)
        self.policy.flat.backward(loss)
        return terms


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
        layout = parts.minibatches.layout
        self._gradient = manual_backward.Gradient(parts.policy, layout.chunk_sizes(), pool)
        self._forward = chunked.Forward(parts.policy, layout.lane_sizes(), pool)

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """On this thread alone, but for the pool."""
        return threads.alone()(work)

    def prepare(self) -> None:
        """Take the policy's weights as they are."""
        self._forward.refresh()

    def values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Q (A, N) of observations (O, N) and legal actions (A, N), until it is called again."""
        values, _ = self._forward(observation)
        return values if legal is None else masked(values, legal)

    def gradient(self, batch: Batch) -> LossTerms:
        """Write the gradient of the minibatch's loss into the flat vector."""
        return LossTerms(*self._gradient(batch))


class FusedBackend(TorchBackend):
    """A few Triton kernels for all of it: see `operant.algos.pqn.fused`."""

    name = "fused"

    def __init__(self, parts: Parts, learner: fused.Learner) -> None:
        super().__init__(parts)
        self.learner: fused.Learner = learner
        self.chosen = {"kernel_config": line} if (line := str(learner.config)) else {}

    def prepare(self) -> None:
        """Take the normalizer as it is."""
        self.learner.prepare()

    @property
    def acts_on_some(self) -> bool:
        """Where one kernel acts."""
        return self.learner.acts_on_some

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Epsilon-greedy actions of step t, and the largest Q values of its observations, of all lanes or some."""
        self.learner.act(t, lanes)

    def bootstrap(self) -> None:
        """The largest Q value of the observation after the last step, and of the true final observation of every
        truncated episode.
        """
        self.learner.bootstrap(self.collector.world.can_truncate)

    def update(self) -> None:
        """Epochs over the rollout in minibatches: optimizer steps, one more iteration, and `stats`."""
        self.learner.update(self.config.epochs * self.config.minibatches)
