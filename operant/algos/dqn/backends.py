"""How DQN acts and learns: by torch and autograd, by a manual backward pass on the CPU, or by other kernels. One way is chosen when a run begins.

All work on the same buffers, with the same samples and the same noise; torch and autograd are the specification. Knows no cycle of ticks and updates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from operant.algos.dqn import fused, loss
from operant.algos.dqn.parts import Parts
from operant.algos.dqn.stats import Terms
from operant.data import Backend, Batch, Fused
from operant.nn import clip_gradient, epsilon_greedy, manual, masked

log = logging.getLogger("operant.dqn")


def choose(parts: Parts) -> Backend:
    """The fastest backend that this machine supports and `algo.kernels` allows. Raises ConfigError for unsupported fused kernels."""
    learner = fused.build(parts) if parts.cycle.exchange.ranks == 1 else None
    if learner is not None:
        return Fused(TorchBackend(parts), learner)
    return ManualBackend(parts) if manual.applies(parts.policy, parts.config.kernels) else TorchBackend(parts)


class TorchBackend:
    """Torch's kernels, and autograd: what other backends are checked against."""

    name = "torch"

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config, self.cycle, self.chosen = parts, parts.config, parts.cycle, dict[str, str]()
        self.policy, self.head = parts.policy, parts.policy.distribution

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """Of small products one thread computes all."""
        return self.cycle.alone(work)

    def prepare(self) -> None:
        """Begin an iteration."""
        self.parts.totals.zero_()

    def store(self, t: int) -> None:
        """Store tick t in the replay."""
        self.cycle.replay.store(t)

    # NETWORKS: the head's rows (H, n) for observations (O, n), which the next call may overwrite

    def acting(self, observation: Tensor) -> Tensor:
        """Of the network, for all lanes."""
        return self.policy.parameters(observation)

    @torch.no_grad()
    def following(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """For next observations: of the target network, and of the network that chooses the next action."""
        after = self.parts.target.parameters(batch.next_observation)
        return after, self.policy.parameters(batch.next_observation) if self.config.double else after

    def gradient(self, batch: Batch, target: Tensor, weight: Tensor | None) -> loss.Learned:
        """Write the gradient of the loss into the flat vector."""
        with torch.enable_grad():
            learned = loss.q_loss(self.head, self.policy.parameters(batch.observation), batch, target, weight)
            self.policy.flat.backward(learned.loss)
        return learned

    # ACT

    def act(self, t: int) -> None:
        """Epsilon-greedy actions of tick t, into the rollout."""
        collector = self.cycle.collector
        rollout, legal = collector.rollout, collector.legal(t)
        values = self.head.values(self.acting(rollout.observation[t]))
        if legal is not None:
            values = masked(values, legal)
        rollout.action[t] = epsilon_greedy(values, collector.noise[t], self.parts.epsilon, legal)

    # LEARN

    def update(self, ticks: int, number: int) -> None:
        """Sample a batch, take one step of the network, and of the target network where it is due; none where `skip` is 1."""
        parts, config, cycle = self.parts, self.config, self.cycle
        batch, weight = cycle.sampler.sample(ticks, number)
        target = loss.targets(self.head, *self.following(batch), batch)
        learned = self.gradient(batch, target, weight)
        cycle.sampler.learned(learned.each, cycle.skip)

        norm = clip_gradient(self.policy.flat.gradient, config.max_gradient_norm, cycle.exchange)
        parts.optimizer.step(cycle.skip)

        # Every so many updates the target network follows: all the way, or a part of it.
        share = config.tau * (1.0 - cycle.skip)
        if config.target_every > 1:
            share = share * ((cycle.replay.ring.updates[0] + (number + 1)) % config.target_every == 0)
        parts.target.flat.values.data.lerp_(self.policy.flat.values.data, share)
        terms = Terms(learned.loss.detach(), learned.error.mean(), learned.q.mean(), norm)
        parts.totals.add_(torch.where(cycle.skip > 0, 0.0, torch.stack(terms)))

    def finish(self) -> None:
        """Means over the iteration's updates, and what is counted once."""
        parts, cycle, updates = self.parts, self.cycle, self.config.updates
        means = cycle.exchange.gather(parts.totals[None]).mean(0) / updates
        not_finite = (~torch.isfinite(self.policy.flat.values.data)).sum() + (~torch.isfinite(means)).sum()
        fill = cycle.replay.fill(0) / cycle.replay.capacity
        once = (parts.policy.epsilon.reshape(1), fill, (updates * (1.0 - cycle.skip))[None], not_finite[None].float())
        parts.stats.copy_(torch.cat([means, *once]))


class ManualBackend(TorchBackend):
    """The same on the CPU, with the networks' passes written out by hand, over memory that is allocated once; autograd does the few rows of the head."""

    name = "manual_backward"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        B, N = self.config.batch_size, self.cycle.world.count
        self._parameters, self._target_parameters = manual.Parameters(parts.policy), manual.Parameters(parts.target)
        weights = self._parameters.weights
        self._learning = manual.Network(parts.policy, weights, B).with_backward()
        self._choosing, self._acting = (
            manual.Network(parts.policy, weights, B),
            manual.Network(parts.policy, weights, N),
        )
        self._following = manual.Network(parts.target, self._target_parameters.weights, B)
        self._vector = torch.zeros(weights.numel())
        self._gradient = weights.views(self._vector)
        log.info("kernels: torch's, and a manual backward pass")

    def update(self, ticks: int, number: int) -> None:
        """The same; without any work where `skip` is 1, which a CPU can look at."""
        if not bool(self.cycle.skip):
            super().update(ticks, number)

    def acting(self, observation: Tensor) -> Tensor:
        """Of the network, for all lanes."""
        self._parameters.refresh()
        self._acting.forward(observation)
        return self._acting.parameters

    def following(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """For next observations: of the target network, and of the network that chooses the next action."""
        self._parameters.refresh()
        self._target_parameters.refresh()
        self._following.forward(batch.next_observation)
        if not self.config.double:
            return self._following.parameters, self._following.parameters
        self._choosing.forward(batch.next_observation)
        return self._following.parameters, self._choosing.parameters

    def gradient(self, batch: Batch, target: Tensor, weight: Tensor | None) -> loss.Learned:
        """Write the gradient of the loss into the flat vector. `following` was called since the network's last step."""
        network = self._learning
        network.forward(batch.observation)
        with torch.enable_grad():
            rows = network.parameters.requires_grad_()
            learned = loss.q_loss(self.head, rows, batch, target, weight)
            (gradient,) = torch.autograd.grad(learned.loss, rows)
        network.parameters_gradient.copy_(gradient)
        network.value_gradient.zero_()
        self._vector.zero_()
        network.backward(self._gradient)
        self._parameters.write(self._gradient)
        return learned
