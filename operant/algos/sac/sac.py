"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) on N lanes: an off-policy actor-critic that maximises
return plus entropy.

One iteration is T ticks, steps of all N lanes (`ReplayAlgorithm` in operant/algos/base.py):

    for t in 0 ... T - 1: `act`, step the world, store N transitions in the replay, then each update that is
                              due, `algo.updates_per_step` of them a tick
    after T ticks: the running mean and variance of the normalizers

Actions are random for the first `algo.learning_starts` steps (`cycle.warming` is 1). Updates change nothing while the
replay holds fewer transitions (`cycle.skip` is 1). Both are decided at the start of an iteration: on a GPU it is one
CUDA graph, which cannot branch.

This file is the specification, in torch and autograd, and reads from top to bottom. Its last part is for the monitor:
thresholds and explanations of the metrics. On a GPU the same updates run in fused Triton kernels
(`operant.kernels.actor_critic`), which are tested against it and replace `update`, unless `algo.kernels = "torch"`.

Shape letters: T ticks, N lanes, B samples of a batch, O observation, K features (of a normalized or one-hot encoded
observation), A actions, C critics.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from operant.algos.base import (
    NOT_FINITE,
    REPLAY_FILL,
    UPDATES,
    Estimate,
    ReplayAlgorithm,
    Threshold,
    jumps,
    metric,
    metric_specs,
    runs_away,
)
from operant.algos.sac.config import SACConfig
from operant.data import Batch
from operant.envs import Discrete, Env
from operant.kernels import actor_critic
from operant.nn import (
    SOLO,
    Adam,
    CategoricalActor,
    CriticHead,
    CriticLoss,
    Exchange,
    FlatVector,
    NetConfig,
    SquashedActor,
    clip_gradient,
    critic_loss,
    critic_outputs,
    network,
    observation_bytes,
    products,
    scalar,
    step_bytes,
)
from operant.worlds import World


class Stats(NamedTuple):
    """Metrics of an iteration. The first six are means over its updates. `DETAILS` has their thresholds and
    explanations.
    """

    critic_loss: Tensor = metric("loss/critic", "critic loss", order=70)
    actor_loss: Tensor = metric("loss/actor", "actor loss", order=80)
    q_mean: Tensor = metric("q_mean", "mean Q value", figure="Q", order=45)
    td_error: Tensor = metric("td_error", "TD error", figure="TD error", order=50)
    # -E[log pi] of actions sampled now; in updates without the actor, of those at the next observations
    entropy: Tensor = metric("entropy", "entropy", figure="entropy", order=40)
    gradient_norm: Tensor = metric("gradient_norm", "gradient norm", order=110)
    temperature: Tensor = metric("temperature", "temperature", figure="temperature", order=60)
    replay_fill: Tensor = REPLAY_FILL
    updates: Tensor = UPDATES
    not_finite: Tensor = NOT_FINITE


class SAC(ReplayAlgorithm):
    """Soft actor-critic for continuous actions; with Discrete actions an instance is a `DiscreteSAC`."""

    Config, Stats = SACConfig, Stats
    TERMS = Stats._fields[: Stats._fields.index("temperature")]
    ACTOR_TERMS = ("actor_loss",)

    config: SACConfig
    actor: SquashedActor

    def __new__(cls, world: World, *_: Any, **__: Any) -> SAC:
        """Return an instance of `SAC`, or of `DiscreteSAC` if the world's actions are Discrete."""
        return super().__new__(DiscreteSAC if isinstance(world.spec.action, Discrete) else cls)

    def __init__(
        self,
        world: World,
        config: SACConfig,
        net: NetConfig,
        *,
        seed: int,
        steps: int,
        eager: bool = False,
        exchange: Exchange = SOLO,
    ) -> None:
        """Create networks, optimizers and the cycle; `eager`: without CUDA graphs. With an exchange of several ranks
        `world` holds this rank's lanes; `steps` is `run.steps`.
        """
        spec, device = world.spec, world.device
        actor = self.make_actor(spec, config, net, device, seed=seed)
        noise = self.noise(actor)
        super().__init__(world, config, actor, seed=seed, steps=steps, **noise, exchange=exchange)
        discrete, A, outputs = isinstance(spec.action, Discrete), spec.action_size, critic_outputs(spec, config.outputs)
        self.metrics = metric_specs(Stats, DETAILS, entropy=_entropy_threshold(0.0 if discrete else -4.0 * A))

        self.normalizer = actor.features.normalizer

        # The critics, C MLPs of (features, action) side by side, and their targets, which start as copies.
        generator = torch.Generator().manual_seed(seed ^ 0x5AC)
        action = 0 if discrete else A
        self.critic = network(
            spec,
            net.of_critics,
            action,
            outputs,
            generator,
            device,
            towers=config.critics,
            precision=config.precision,
        )
        self.target = copy.deepcopy(self.critic)
        self.critic_flat, self.target_flat = FlatVector((self.critic,), device), FlatVector((self.target,), device)
        self.head = CriticHead(config, device)

        # The temperature, learned through its logarithm.
        automatic = config.temperature == "auto"
        initial = config.initial_temperature if config.temperature == "auto" else config.temperature
        self.log_temperature = torch.full((1,), math.log(initial) if initial > 0.0 else -math.inf, device=device)
        self.temperature_gradient = torch.zeros(1, device=device)
        default_entropy = 0.5 * math.log(outputs) if discrete else -float(A)
        self.target_entropy = default_entropy if config.target_entropy is None else config.target_entropy

        # Optimizers of actor, critics and temperature.
        rate, critic_rate = scalar(config.learning_rate, device), scalar(config.critic_learning_rate, device)
        actor_flat, critic_flat, epsilon = self.actor.flat, self.critic_flat, config.adam_epsilon
        self.actor_adam = Adam(actor_flat.values.data, actor_flat.gradient, rate, epsilon)
        self.critic_adam = Adam(critic_flat.values.data, critic_flat.gradient, critic_rate, epsilon)
        self.temperature_adam = (
            Adam(self.log_temperature, self.temperature_gradient, rate, epsilon) if automatic else None
        )

        self.scale_rewards(config.support_radius, active=config.scales_rewards)  # so that returns fit C51's support
        self.engine = actor_critic.build(self.fused_task()) if exchange.ranks == 1 else None
        self.capture(eager=eager)

    @classmethod
    def make_actor(cls, spec: Env, config: SACConfig, net: NetConfig, device: torch.device, *, seed: int = 0) -> Any:
        """Create the actor for the environment `spec`, without buffers for training: a squashed Gaussian, or for
        Discrete actions a categorical policy.
        """
        kind = CategoricalActor if isinstance(spec.action, Discrete) else SquashedActor
        return kind(
            spec, net, seed=seed, device=device, normalize=config.normalize_observations, precision=config.precision
        )

    @staticmethod
    def noise(actor: Any) -> dict[str, Any]:
        """Return the rows of uniform noise as arguments of `ReplayAlgorithm`: 2 A per lane for acting; per sample 2 A
        for the next action and 2 A for the current one.
        """
        rows = actor.noise_rows
        return {"acting_noise": rows, "update_noise": 2 * rows, "stored_action": torch.float32}

    # ACT

    @torch.no_grad()
    def act(self, t: int) -> None:
        """Sample the actions of tick t (step of all lanes) from the actor, or uniformly while `cycle.warming` is 1."""
        cycle, actor = self.cycle, self.actor
        noise = cycle.collector.noise[t]  # (2 A, N)
        # log std = -5 + 3.5 (tanh(output) + 1), in [-5, 2]
        parameters = actor.forward(actor.features(cycle.rollout.observation[t]))  # means and log stds, (2 A, N)
        sampled = actor.distribution.sample(parameters, noise)  # tanh(mean + std e), (A, N), in [-1, 1]
        uniform = torch.sub(2.0 * noise[: len(sampled)], 1.0)
        action = torch.where(cycle.warming > 0, uniform, sampled)
        cycle.action[t] = action  # is stored in the replay
        cycle.rollout.action[t] = actor.to_env(action)  # is scaled to the environment's bounds

    # LEARN

    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch, update `number` of the iteration after `ticks` stored ticks: step the critics and their
        targets, the actor if it is due, and the temperature. Where `skip` is 1 nothing changes.
        """
        config, skip = self.config, self.cycle.skip
        # B transitions: observation (O, B), action (A, B), n-step reward (B), discount (B), next_observation (O, B).
        # `weight` (B): importance-sampling weights of prioritised replay; None: all are 1. Of the iteration's ticks the
        # first `ticks` are stored. The newest n (`n_step`) stored ticks are not sampled; each shard of lanes has
        # equally many samples.
        batch, weight = self.cycle.sampler.sample(ticks, number)
        temperature = self.log_temperature.exp()
        features = self.actor.features(batch.observation)  # (K, B)

        # Critics: minimise the sum over critics of E[w (Q(s, a) - y)^2]. Their gradient is clipped to a norm, if
        # `max_gradient_norm` is not 0; the targets follow by Polyak averaging: Q' <- (1 - tau) Q' + tau Q.
        critic, next_log_prob = self.critic_loss(batch, features, temperature, weight)
        self.critic_flat.backward(critic.loss)
        # priority: |Q - y|, mean over critics; with C51 and continuous actions the cross-entropy
        self.cycle.sampler.set_priorities(critic.priority, skip)
        # The gradient is averaged over the ranks first, then clipped.
        gradient_norm = clip_gradient(self.critic_flat.gradient, config.max_gradient_norm, self.exchange)
        self.critic_adam.step(skip)
        with torch.no_grad():
            self.target_flat.values.lerp_(self.critic_flat.values, config.tau * (1.0 - skip))

        # Actor, in every `actor_delay`-th update: minimise E[alpha log pi(a|s) - min_c Q_c(s, a)]. Gradients flow
        # through the critics, into the actor alone. The last of every d = `actor_delay` updates steps the actor once;
        # CleanRL takes d steps there to compensate.
        if config.actor_learns(number):
            actor_loss, log_prob = self.actor_loss(batch, features, temperature)
            self.actor.flat.backward(actor_loss)
            clip_gradient(self.actor.flat.gradient, config.max_gradient_norm, self.exchange)
            self.actor_adam.step(skip)
        else:
            actor_loss, log_prob = torch.zeros_like(critic.loss), next_log_prob.mean()

        # Temperature: J(log alpha) = -log alpha (E[log pi] + target entropy), by log pi of the actor's current actions;
        # if the actor is not due, of its actions at the next observations.
        with torch.no_grad():
            if self.temperature_adam is not None:
                mean_log_prob = self.exchange.gather(log_prob[None]).mean()  # over the ranks
                torch.neg(mean_log_prob + self.target_entropy, out=self.temperature_gradient[0])
                self.temperature_adam.step(skip)
            reward_scale = self.reward_scale.factor
            self.record(
                critic_loss=critic.loss,
                actor_loss=actor_loss,
                q_mean=critic.q_mean / reward_scale,
                td_error=critic.td_error / reward_scale,
                entropy=-log_prob,
                gradient_norm=gradient_norm,
            )

    def critic_loss(
        self, batch: Batch, features: Tensor, temperature: Tensor, weight: Tensor | None
    ) -> tuple[CriticLoss, Tensor]:
        """Return the critics' loss on a batch, and log pi(a'|s') of the next actions, (B). `temperature` is alpha;
        `features` (K, B) are those of the observations; `weight` (B) are importance-sampling weights, None: 1.

        y = r + discount (min_c Q'_c(s', a') - alpha log pi(a'|s')), a' sampled from the actor at s'. With C51 y is the
        distribution of that on the support, and the loss the cross-entropy.
        """
        with torch.no_grad():
            next_features = self.actor.features(batch.next_observation)
            noise = batch.noise[: len(batch.noise) // 2]  # (2 A, B), uniform
            # a' = tanh(u), u = mean + std e, e ~ N(0, 1); log pi = sum over A of log N(u; mean, std) - log(1 - a'^2).
            next_action, next_log_prob = self.actor.sample_with_log_probability(next_features, noise)
            # `reward` is r_t + gamma r_{t+1} + ... over n steps, `discount` gamma^n, or 0 where the episode terminated;
            # a truncated episode has fewer steps, and s' is its true final observation. `factor` is 1 unless rewards
            # are scaled. The entropy is part of the reward: with C51 it shifts the atoms.
            soft_reward = batch.reward * self.reward_scale.factor - batch.discount * temperature * next_log_prob
            # y = soft_reward + discount min_c Q'_c(s', a'), (1, B)
            target = self.head.td_target(self.target(next_features, next_action), soft_reward, batch.discount)
        # sum over critics of mean(w (Q_c(s, a) - y)^2)
        return self.head.loss(self.critic(features, batch.action), target, weight), next_log_prob

    def actor_loss(self, batch: Batch, features: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actor's loss E[alpha log pi(a|s) - min_c Q_c(s, a)], a sampled from the actor at s (`features`),
        and E[log pi]. `temperature` is alpha.
        """
        noise = batch.noise[len(batch.noise) // 2 :]  # (2 A, B)
        action, log_prob = self.actor.sample_with_log_probability(features, noise)
        # `constant`: no gradient in the critics' weights
        q = self.head.values(self.critic(features, action, constant=True)).amin(dim=0)  # (B)
        return (temperature * log_prob - q).mean(), log_prob.mean()

    def iteration_stats(self) -> tuple[Tensor, ...]:
        """Return the temperature alpha, (1)."""
        return (self.log_temperature.exp(),)

    # STATE

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the parameter vectors of actor and critics."""
        return self.actor.flat.values, self.critic_flat.values

    def tensors(self) -> dict[str, Tensor]:
        """Return optimizer states, critics, targets and temperature by their names in a checkpoint."""
        adams = {"actor": self.actor_adam, "critic": self.critic_adam, "temperature": self.temperature_adam}
        named = {
            f"adam/{name}/{key}": tensor
            for name, adam in adams.items()
            if adam is not None
            for key, tensor in adam.tensors().items()
        }
        named |= {"algo/critic": self.critic_flat.values.data, "algo/target": self.target_flat.values.data}
        named |= {"algo/log_temperature": self.log_temperature}
        return named

    # COST, FUSED KERNELS

    @classmethod
    def estimate(cls, spec: Env, config: SACConfig, net: NetConfig, lanes: int) -> Estimate:
        """Estimate environment steps, FLOPs and bytes of an iteration of `lanes` lanes: acting, and the updates'
        forward and backward passes.
        """
        steps, samples, A = config.horizon * lanes, config.updates * config.batch_size, spec.action_size
        discrete, outputs = isinstance(spec.action, Discrete), critic_outputs(spec, config.outputs)
        actor = products(spec, net, 0, outputs if discrete else 2 * A)
        critics = products(spec, net.of_critics, 0 if discrete else A, outputs, towers=config.critics)
        # Of a batch: next actions and their targets; critics forward and backward; where due the actor, through the
        # critics, forward and backward.
        flops = 2.0 * (
            steps * actor + samples * ((actor + critics) + 3 * critics + (3 * actor + 2 * critics) / config.actor_delay)
        )
        row = observation_bytes(spec) + 4 * A + 4 + 1 + 1
        moved = float(steps * (step_bytes(spec) + 2 * row) + samples * (2 * row + observation_bytes(spec)))
        return Estimate(steps, flops, moved, config.trial())

    def fused_task(self) -> actor_critic.ActorCriticTask:
        """Return what the fused kernels of `operant.kernels.actor_critic` need: networks, optimizers and buffers."""
        return actor_critic.ActorCriticTask(
            self.config,
            self.cycle,
            self.actor,
            self.critic_flat,
            self.target_flat,
            self.actor_adam,
            self.critic_adam,
            actor_critic.StochasticActor(self.log_temperature, self.temperature_adam, self.target_entropy),
            self.reward_scale.factor,
            self.head.support,
            self.TERMS,
            self.totals,
        )


class DiscreteSAC(SAC):
    """SAC with one choice among n actions (Christodoulou 2019, arXiv 1910.07207): expectations over the actions replace
    samples. Critics return Q of every action, (C, A, B), A = n.
    """

    actor: CategoricalActor  # type: ignore[assignment]

    @staticmethod
    def noise(actor: Any) -> dict[str, Any]:
        """Return the rows of uniform noise as arguments of `ReplayAlgorithm`: one per lane, none for an update."""
        return {"acting_noise": actor.noise_rows}

    @torch.no_grad()
    def act(self, t: int) -> None:
        """Sample the actions of tick t (step of all lanes) from the actor, or uniformly among the legal ones while
        `cycle.warming` is 1.
        """
        cycle, collector, actor = self.cycle, self.cycle.collector, self.actor
        legal = collector.legal(t)
        logits = actor.logits(actor.features(cycle.rollout.observation[t]), None) * (1.0 - cycle.warming)
        if legal is not None:
            logits = torch.where(legal != 0, logits, -1e9)
        cycle.rollout.action[t] = actor.distribution.sample(logits, collector.noise[t][:1])

    def policy(self, features: Tensor, legal: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return pi(a|s) and log pi(a|s), (A, B) each, for features (K, B); illegal actions have probability 0."""
        log_prob = self.actor.logits(features, legal).log_softmax(dim=0)
        return log_prob.exp(), log_prob

    def critic_loss(
        self, batch: Batch, features: Tensor, temperature: Tensor, weight: Tensor | None
    ) -> tuple[CriticLoss, Tensor]:
        """Return the critics' loss on a batch, and minus the entropy at the next observations, (B). `temperature` is
        alpha; `features` (K, B) are those of the observations; `weight` (B) are importance-sampling weights, None: 1.

        y = r + discount sum_a' pi(a'|s') (min_c Q'_c(s', a') - alpha log pi(a'|s')).
        """
        with torch.no_grad():
            next_features = self.actor.features(batch.next_observation)
            prob, log_prob = self.policy(next_features, batch.next_legal)
            value = (prob * (self.target(next_features).amin(dim=0) - temperature * log_prob)).sum(dim=0)
            target = batch.reward * self.reward_scale.factor + batch.discount * value
        outputs = self.critic(features)
        q = outputs.gather(1, batch.action.long()[None].expand(len(outputs), 1, -1))[:, 0]  # (C, B)
        error = q - target
        return critic_loss(error.square(), q, error.abs(), weight), (prob * log_prob).sum(dim=0)

    def actor_loss(self, batch: Batch, features: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actor's loss E[sum_a pi(a|s) (alpha log pi(a|s) - min_c Q_c(s, a))], and minus the mean entropy.
        `temperature` is alpha.
        """
        prob, log_prob = self.policy(features, batch.legal)
        with torch.no_grad():
            q = self.critic(features).amin(dim=0)  # (A, B)
        negative_entropy = (prob * log_prob).sum(dim=0)  # (B)
        return (temperature * negative_entropy - (prob * q).sum(dim=0)).mean(), negative_entropy.mean()


# THE METRICS IN A MONITOR

_NOT_FINITE: Final = "lower algo.critic_learning_rate, or set algo.max_gradient_norm=10"
_DIVERGES: Final = (
    "the critics diverge: lower algo.critic_learning_rate or algo.tau, set net.layer_norm=true, or algo.critics=2"
)

DETAILS: Final[dict[str, dict[str, Any]]] = {
    "critic_loss": {"advice": _NOT_FINITE},
    "actor_loss": {"advice": _NOT_FINITE},
    "q_mean": {
        "advice": _NOT_FINITE,
        "thresholds": runs_away(_DIVERGES),
        "explanation": "The critics' mean value of the sampled actions: the discounted return to come, with the "
        "entropy's share. A value that grows without bound while the return does not is the usual way in which "
        "off-policy learning fails.",
    },
    "td_error": {
        "advice": _NOT_FINITE,
        "thresholds": jumps("ten times the last minute's: if it stays, the critics diverge"),
        "explanation": "The mean distance of the critics from their targets, in units of return. It should stay a "
        "small share of the Q values.",
    },
    "entropy": {
        "advice": _NOT_FINITE,
        "explanation": "Minus the mean log-probability of the actor's actions, scaled to [-1, 1] where they are "
        "continuous, in nats. An automatic temperature holds it near algo.target_entropy, by default -1 per "
        "continuous action, or half of the most that n choices can have.",
    },
    "gradient_norm": {
        "advice": _NOT_FINITE,
        "explanation": "The norm of the critics' gradient before it is clipped.",
    },
    "temperature": {
        "advice": _NOT_FINITE,
        "thresholds": (
            Threshold(
                "warn",
                at_least=100.0,
                advice="the entropy outweighs the reward: lower algo.target_entropy or algo.initial_temperature, or "
                "scale the reward up",
            ),
        ),
        "explanation": "Alpha, the weight of the entropy next to the reward. Automatic: it falls while the entropy is "
        "above its target, and rises below.",
    },
    "updates": {
        "explanation": "Optimizer steps a second, of all networks together; 0 until algo.learning_starts environment "
        "steps.",
    },
}


def _entropy_threshold(minimum: float) -> dict[str, Any]:
    """Return attributes of the entropy's metric: a warning below `minimum`, where the policy hardly explores."""
    advice = "the policy hardly explores: raise algo.target_entropy, or leave algo.temperature on auto"
    return {"thresholds": (Threshold("warn", below=minimum, records=0.75, unless="target", advice=advice),)}
