"""How TD3 acts and learns: by torch and autograd, or by other kernels. One way is chosen when a run begins.

All work on the same buffers, with the same samples and the same noise; torch and autograd are the specification. Knows no cycle of ticks and updates.
Shape letters: B samples, A actions, K features, C critics, N lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from operant.algos.td3.config import TD3Config
from operant.algos.td3.stats import ActorTerms, CriticTerms
from operant.data import Backend, Batch, Cycle, Fused
from operant.kernels import actor_critic
from operant.nn import Adam, CriticHead, FlatVector, SquashedActor, clip_gradient, normal

SATURATED = 0.98
"""An action beyond this share of its bounds counts as one at them."""


@dataclass(frozen=True)
class Parts:
    """What a backend works on."""

    config: TD3Config
    cycle: Cycle  # rollout, actions, replay; `warming` and `skip`
    actor: SquashedActor
    target_actor: SquashedActor
    critic: nn.Module  # see `operant.nn.network`
    critic_flat: FlatVector
    target: nn.Module
    target_flat: FlatVector
    head: CriticHead
    reward_factor: Tensor  # ()
    actor_adam: Adam
    critic_adam: Adam
    exploration: Tensor  # (N), each lane's standard deviation
    stats: Tensor  # in the order of `Stats`


def choose(parts: Parts) -> Backend:
    """The fastest backend that this machine supports and `algo.kernels` allows. Raises ConfigError for unsupported fused kernels."""
    torch_backend = TorchBackend(parts)
    config = parts.config
    kind = actor_critic.Deterministic(
        parts.target_actor.flat, parts.exploration, config.target_noise, config.target_noise_clip
    )
    task = actor_critic.Task(
        config, parts.cycle, parts.actor, parts.critic_flat, parts.target_flat, parts.actor_adam, parts.critic_adam, kind, torch_backend.totals,
    )  # fmt: skip
    learner = actor_critic.build(task) if parts.cycle.exchange.ranks == 1 else None
    return torch_backend if learner is None else Fused(torch_backend, learner)


class TorchBackend:
    """Torch's kernels, and autograd: what other backends are checked against."""

    name = "torch"

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config, self.cycle, self.chosen = parts, parts.config, parts.cycle, dict[str, str]()
        # Sums over an iteration's updates: of the critics, then of the actor.
        count = len(CriticTerms._fields)
        self.totals = torch.zeros(count + len(ActorTerms._fields), device=parts.actor.device)
        self._critic_totals, self._actor_totals = self.totals[:count], self.totals[count:]

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """Of small products one thread computes all."""
        return self.cycle.alone(work)

    def prepare(self) -> None:
        """Begin an iteration."""
        self.totals.zero_()

    @torch.no_grad()
    def act(self, t: int) -> None:
        """Actions of tick t by the actor with each lane's noise, or uniform ones while `warming` is 1."""
        actor, cycle = self.parts.actor, self.cycle
        noise = cycle.collector.noise[t]
        mode = actor.distribution.mode(actor.forward(actor.features(cycle.rollout.observation[t])))
        drawn = torch.addcmul(mode, self.parts.exploration, normal(noise)).clamp_(-1.0, 1.0)
        uniform = torch.sub(2.0 * noise[: len(drawn)], 1.0)
        action = torch.where(cycle.warming > 0, uniform, drawn)
        cycle.action[t] = action
        cycle.rollout.action[t] = actor.to_env(action)

    # LEARN

    def store(self, t: int) -> None:
        """Store tick t in the replay."""
        self.cycle.replay.store(t)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The critics' targets: y = r + discount min Q'(s', a'), a' the target actor's action with clipped noise, (1, B), or its distribution (K, B)."""
        parts, config = self.parts, self.config
        features = parts.actor.features(batch.next_observation)
        error = (config.target_noise * normal(batch.noise)).clamp_(-config.target_noise_clip, config.target_noise_clip)
        action = (parts.target_actor.forward(features).tanh() + error).clamp_(-1.0, 1.0)
        return parts.head.target(parts.target(features, action), batch.reward * parts.reward_factor, batch.discount)

    def update(self, ticks: int, number: int) -> None:
        """Sample, and learn: the critics, and where it is due the actor by the new critics, then all targets."""
        batch, weight = self.cycle.sampler.sample(ticks, number)
        features = self.parts.actor.features(batch.observation)
        self._learn_critics(batch, features, weight)
        if self.config.actor_learns(number):
            self._learn_actor(features)

    def _learn_critics(self, batch: Batch, features: Tensor, weight: Tensor | None) -> None:
        """One step down the critics' loss."""
        parts, skip = self.parts, self.cycle.skip
        found = parts.head.loss(parts.critic(features, batch.action), self.targets(batch), weight)
        parts.critic_flat.backward(found.loss)
        self.cycle.sampler.learned(found.each, skip)
        norm = clip_gradient(parts.critic_flat.gradient, self.config.max_gradient_norm, self.cycle.exchange)
        parts.critic_adam.step(skip)
        with torch.no_grad():
            terms = CriticTerms(
                found.loss, found.q_mean / parts.reward_factor, found.td_error / parts.reward_factor, norm
            )
            self._critic_totals.add_(torch.where(skip > 0, 0.0, torch.stack(terms)))

    def _learn_actor(self, features: Tensor) -> None:
        """One step up the first critic's value of the actor's actions; then the targets follow."""
        parts, config, skip = self.parts, self.config, self.cycle.skip
        action = parts.actor.forward(features).tanh()
        loss = -parts.head.values(parts.critic(features, action, constant=True))[0].mean()
        parts.actor.flat.backward(loss)
        clip_gradient(parts.actor.flat.gradient, config.max_gradient_norm, self.cycle.exchange)
        parts.actor_adam.step(skip)
        with torch.no_grad():
            share = config.tau * (1.0 - skip)
            parts.target_flat.values.lerp_(parts.critic_flat.values, share)
            parts.target_actor.flat.values.lerp_(parts.actor.flat.values, share)
            terms = ActorTerms(loss, (action.abs() > SATURATED).float().mean())
            self._actor_totals.add_(torch.where(skip > 0, 0.0, torch.stack(terms)))

    @torch.no_grad()
    def finish(self) -> None:
        """Means over the iteration's updates, and what is counted once."""
        parts, cycle, config = self.parts, self.cycle, self.config
        critics, actor = (
            cycle.exchange.gather(self.totals[None]).mean(0).split([len(self._critic_totals), len(self._actor_totals)])
        )
        means = torch.cat([critics / config.updates, actor / config.actor_updates])
        vectors = (parts.actor.flat.values, parts.critic_flat.values, means)
        not_finite = torch.stack([(~torch.isfinite(vector)).sum() for vector in vectors]).sum()
        fill = cycle.replay.fill(0) / cycle.replay.capacity
        parts.stats.copy_(
            torch.cat([means, fill, (config.updates * (1.0 - cycle.skip))[None], not_finite[None].float()])
        )
