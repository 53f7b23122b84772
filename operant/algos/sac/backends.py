"""How SAC acts and learns: by torch and autograd, or by other kernels. One way is chosen when a run begins.

All work on the same buffers, with the same samples and the same noise; torch and autograd are the specification. Knows no cycle of ticks and updates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from operant.algos.sac import discrete, loss
from operant.algos.sac.parts import Parts as Parts  # the algorithm's, too
from operant.algos.sac.stats import Terms
from operant.data import Backend, Batch, Fused
from operant.kernels import actor_critic
from operant.nn import Judged, clip_gradient


def choose(parts: Parts) -> Backend:
    """The fastest backend that this machine supports and `algo.kernels` allows. Raises ConfigError for unsupported fused kernels."""
    torch_backend = DiscreteBackend(parts) if parts.discrete else TorchBackend(parts)
    task = actor_critic.Task(
        parts.config, parts.cycle, parts.actor, parts.critic_flat, parts.target_flat, parts.actor_adam, parts.critic_adam,
        actor_critic.Stochastic(parts.log_temperature, parts.temperature_adam, parts.target_entropy, parts.reward_factor, parts.head.support),
        torch_backend.totals,
    )  # fmt: skip
    learner = actor_critic.build(task) if parts.cycle.exchange.ranks == 1 else None
    return torch_backend if learner is None else Fused(torch_backend, learner)


class TorchBackend:
    """Torch's kernels, and autograd: what other backends are checked against."""

    name = "torch"

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config, self.cycle, self.chosen = parts, parts.config, parts.cycle, dict[str, str]()
        self.totals = torch.zeros(len(Terms._fields), device=parts.actor.device)  # sums over the iteration's updates

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """Of small products one thread computes all."""
        return self.cycle.alone(work)

    def prepare(self) -> None:
        """Begin an iteration."""
        self.totals.zero_()

    # ACT

    @torch.no_grad()
    def act(self, t: int) -> None:
        """Actions of tick t by the actor, or uniform ones while `warming` is 1."""
        actor, cycle = self.parts.squashed, self.cycle
        noise = cycle.collector.noise[t]
        drawn = actor.distribution.sample(self.parameters(cycle.rollout.observation[t]), noise)
        uniform = torch.sub(2.0 * noise[: len(drawn)], 1.0)
        action = torch.where(cycle.warming > 0, uniform, drawn)
        cycle.action[t] = action
        cycle.rollout.action[t] = actor.to_env(action)

    def parameters(self, observation: Tensor) -> Tensor:
        """The actor's parameters (2 A, N) for observations (O, N)."""
        return self.parts.actor.forward(self.parts.actor.features(observation))

    # LEARN

    def store(self, t: int) -> None:
        """Store tick t in the replay."""
        self.cycle.replay.store(t)

    def critic_loss(
        self, batch: Batch, features: Tensor, temperature: Tensor, weight: Tensor | None
    ) -> tuple[Judged, Tensor]:
        """The critics' loss, and log pi of the actions at the next observations."""
        target, log_probability = loss.targets(self.parts, temperature, batch)
        return loss.critic_loss(self.parts, features, batch, target, weight), log_probability

    def actor_loss(self, batch: Batch, features: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's loss, and the mean of log pi."""
        return loss.actor_loss(self.parts, temperature, features, batch)

    def update(self, ticks: int, number: int) -> None:
        """Sample, and learn: the critics, their targets, where it is due the actor by the new critics, and the temperature.

        The temperature learns from log pi of the actor's actions now; where the actor is not due, from that of the actions at the next observations.
        """
        parts, config, skip = self.parts, self.config, self.cycle.skip
        batch, weight = self.cycle.sampler.sample(ticks, number)
        temperature = parts.log_temperature.exp()
        features = parts.actor.features(batch.observation)

        # The critics, and their targets after them.
        found, next_log_probability = self.critic_loss(batch, features, temperature, weight)
        parts.critic_flat.backward(found.loss)
        self.cycle.sampler.learned(found.each, skip)
        norm = clip_gradient(parts.critic_flat.gradient, config.max_gradient_norm, self.cycle.exchange)
        parts.critic_adam.step(skip)
        with torch.no_grad():
            parts.target_flat.values.lerp_(parts.critic_flat.values, config.tau * (1.0 - skip))

        # The actor: gradients flow through the critics, into the actor alone.
        if config.actor_learns(number):
            actor_loss, log_probability = self.actor_loss(batch, features, temperature)
            parts.actor.flat.backward(actor_loss)
            clip_gradient(parts.actor.flat.gradient, config.max_gradient_norm, self.cycle.exchange)
            parts.actor_adam.step(skip)
        else:
            actor_loss, log_probability = torch.zeros_like(found.loss), next_log_probability.mean()

        with torch.no_grad():
            # J(log alpha) = -log alpha (mean log pi + target entropy)
            if parts.temperature_adam is not None:
                everywhere = self.cycle.exchange.gather(log_probability[None]).mean()
                torch.neg(everywhere + parts.target_entropy, out=parts.temperature_gradient[0])
                parts.temperature_adam.step(skip)
            # In units of reward.
            q_mean, td_error = found.q_mean / parts.reward_factor, found.td_error / parts.reward_factor
            terms = Terms(found.loss, actor_loss, q_mean, td_error, -log_probability, norm)
            self.totals.add_(torch.where(skip > 0, 0.0, torch.stack(terms)))

    @torch.no_grad()
    def finish(self) -> None:
        """Means over the iteration's updates, and what is counted once."""
        parts, cycle, updates = self.parts, self.cycle, self.config.updates
        means = cycle.exchange.gather(self.totals[None]).mean(0) / updates
        means[Terms._fields.index("actor_loss")] *= (
            self.config.actor_delay
        )  # which only the updates have that the actor learns in
        vectors = (parts.actor.flat.values, parts.critic_flat.values, means)
        not_finite = torch.stack([(~torch.isfinite(vector)).sum() for vector in vectors]).sum()
        fill = cycle.replay.fill(0) / cycle.replay.capacity
        once = (parts.log_temperature.exp(), fill, (updates * (1.0 - cycle.skip))[None], not_finite[None].float())
        parts.stats.copy_(torch.cat([means, *once]))


class DiscreteBackend(TorchBackend):
    """The same with one choice among n actions: see `operant.algos.sac.discrete`."""

    @torch.no_grad()
    def act(self, t: int) -> None:
        """Actions of tick t by the actor, or any legal ones while `warming` is 1."""
        cycle, collector = self.cycle, self.cycle.collector
        cycle.rollout.action[t] = discrete.draw(
            self.parts, cycle.rollout.observation[t], collector.noise[t], collector.legal(t), cycle.warming
        )

    def critic_loss(
        self, batch: Batch, features: Tensor, temperature: Tensor, weight: Tensor | None
    ) -> tuple[Judged, Tensor]:
        """The critics' loss, and minus the entropies at the next observations."""
        target, negative_entropy = discrete.targets(self.parts, temperature, batch)
        return discrete.critic_loss(self.parts, features, batch, target, weight), negative_entropy

    def actor_loss(self, batch: Batch, features: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's loss, and minus the mean entropy."""
        return discrete.actor_loss(self.parts, temperature, features, batch)
