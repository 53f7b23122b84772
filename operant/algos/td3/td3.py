"""Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018, arXiv 1802.09477) on N lanes,
with a standard deviation of exploration noise per lane.

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
from operant.algos.td3.config import TD3Config
from operant.data import Batch
from operant.envs import Env
from operant.kernels import actor_critic
from operant.nn import (
    SOLO,
    Adam,
    CriticHead,
    Exchange,
    FlatVector,
    NetConfig,
    SquashedActor,
    clip_gradient,
    network,
    normal,
    observation_bytes,
    products,
    scalar,
    step_bytes,
)
from operant.worlds import World

SATURATED = 0.98
"""Absolute value beyond which an action in [-1, 1] counts as saturated."""


class Stats(NamedTuple):
    """Metrics of an iteration. The first four are means over its updates, the next two over the actor's updates.
    `DETAILS` has their thresholds and explanations.
    """

    critic_loss: Tensor = metric("loss/critic", "critic loss", order=70)
    q_mean: Tensor = metric("q_mean", "mean Q value", figure="Q", order=45)
    td_error: Tensor = metric("td_error", "TD error", figure="TD error", order=50)
    gradient_norm: Tensor = metric("gradient_norm", "gradient norm", order=110)
    actor_loss: Tensor = metric("loss/actor", "actor loss", order=80)
    saturated: Tensor = metric("saturated", "saturated", figure="saturated", order=60)
    replay_fill: Tensor = REPLAY_FILL
    updates: Tensor = UPDATES
    not_finite: Tensor = NOT_FINITE


class TD3(ReplayAlgorithm):
    """Twin delayed deterministic policy gradient for continuous actions."""

    Config, Stats = TD3Config, Stats
    TERMS = Stats._fields[: Stats._fields.index("replay_fill")]
    ACTOR_TERMS = ("actor_loss", "saturated")

    config: TD3Config
    actor: SquashedActor

    def __init__(
        self,
        world: World,
        config: TD3Config,
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
        spec, device, A, N = world.spec, world.device, world.spec.action_size, world.count
        actor = self.make_actor(spec, config, net, device, seed=seed)
        # Uniform noise: 2 A rows per lane to act, and per sample for target smoothing.
        super().__init__(
            world,
            config,
            actor,
            seed=seed,
            steps=steps,
            acting_noise=2 * A,
            update_noise=2 * A,
            stored_action=torch.float32,
            exchange=exchange,
        )
        self.metrics = metric_specs(Stats, DETAILS)

        self.normalizer = actor.features.normalizer

        # Target actor, critics (C MLPs of (features, action) side by side) and target critics. Targets start as copies
        # and share the observation normalizer.
        self.target_actor = self.make_actor(spec, config, net, device, seed=seed)
        self.target_actor.features = actor.features
        generator = torch.Generator().manual_seed(seed ^ 0x7D3)
        self.critic = network(
            spec,
            net.of_critics,
            A,
            config.outputs,
            generator,
            device,
            towers=config.critics,
            precision=config.precision,
        )
        self.target = copy.deepcopy(self.critic)
        self.critic_flat, self.target_flat = FlatVector((self.critic,), device), FlatVector((self.target,), device)
        self.head = CriticHead(config, device)

        rate, critic_rate = scalar(config.learning_rate, device), scalar(config.critic_learning_rate, device)
        critic_flat, epsilon = self.critic_flat, config.adam_epsilon
        self.actor_adam = Adam(actor.flat.values.data, actor.flat.gradient, rate, epsilon)
        self.critic_adam = Adam(critic_flat.values.data, critic_flat.gradient, critic_rate, epsilon)

        # Standard deviation of each lane's exploration noise, (N): evenly spaced over the lanes of all ranks.
        max_noise = config.exploration_noise if config.exploration_noise_max is None else config.exploration_noise_max
        stds = torch.linspace(config.exploration_noise, max_noise, N * exchange.ranks, dtype=torch.float64).float()
        self.exploration = stds.to(device)[exchange.rank * N :][:N]

        self.scale_rewards(config.support_radius, active=config.scales_rewards)  # so that returns fit C51's support
        self.engine = actor_critic.build(self.fused_task()) if exchange.ranks == 1 else None
        self.capture(eager=eager)

    @classmethod
    def make_actor(
        cls, spec: Env, config: TD3Config, net: NetConfig, device: torch.device, *, seed: int = 0
    ) -> SquashedActor:
        """Create the actor for the environment `spec`, without buffers for training. Sampling adds noise of standard
        deviation `exploration_noise` to its actions.
        """
        return SquashedActor(
            spec,
            net,
            seed=seed,
            device=device,
            normalize=config.normalize_observations,
            precision=config.precision,
            std=config.exploration_noise,
        )

    # ACT

    @torch.no_grad()
    def act(self, t: int) -> None:
        """Write the actions of tick t (step of all lanes): the actor's plus each lane's noise, or uniform ones while
        `cycle.warming` is 1.
        """
        cycle, actor = self.cycle, self.actor
        noise = cycle.collector.noise[t]  # (2 A, N)
        mean = actor.distribution.mode(actor.forward(actor.features(cycle.rollout.observation[t])))  # tanh
        explored = torch.addcmul(mean, self.exploration, normal(noise)).clamp_(-1.0, 1.0)  # (A, N)
        uniform = torch.sub(2.0 * noise[: len(explored)], 1.0)
        action = torch.where(cycle.warming > 0, uniform, explored)
        cycle.action[t] = action  # is stored in the replay
        cycle.rollout.action[t] = actor.to_env(action)  # is scaled to the environment's bounds

    # LEARN

    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch, update `number` of the iteration after `ticks` stored ticks: step the critics; if the
        actor is due, step it and move all targets. Where `skip` is 1 nothing changes.
        """
        config, skip = self.config, self.cycle.skip
        # B transitions: observation (O, B), action (A, B), n-step reward (B), discount (B), next_observation (O, B).
        # `weight` (B): importance-sampling weights of prioritised replay; None: all are 1. Of the iteration's ticks the
        # first `ticks` are stored. The newest n (`n_step`) stored ticks are not sampled; each shard of lanes has
        # equally many samples.
        batch, weight = self.cycle.sampler.sample(ticks, number)
        features = self.actor.features(batch.observation)  # (K, B)

        # Critics: minimise the sum over critics of E[w (Q(s, a) - y)^2]. Their gradient is clipped to a norm, if
        # `max_gradient_norm` is not 0.
        critic = self.head.loss(self.critic(features, batch.action), self.critic_target(batch), weight)
        self.critic_flat.backward(critic.loss)
        # priority: |Q - y|, mean over critics; with C51 the cross-entropy
        self.cycle.sampler.set_priorities(critic.priority, skip)
        # The gradient is averaged over the ranks first, then clipped.
        gradient_norm = clip_gradient(self.critic_flat.gradient, config.max_gradient_norm, self.exchange)
        self.critic_adam.step(skip)
        reward_scale = self.reward_scale.factor
        with torch.no_grad():
            self.record(
                critic_loss=critic.loss,
                q_mean=critic.q_mean / reward_scale,
                td_error=critic.td_error / reward_scale,
                gradient_norm=gradient_norm,
            )
        if not config.actor_learns(number):
            return

        # Actor, in the last of every `actor_delay` updates, one step: maximise the first critic's value of its actions.
        # `constant`: no gradient in the critic's weights.
        action = self.actor.forward(features).tanh()
        actor_loss = -self.head.values(self.critic(features, action, constant=True))[0].mean()
        self.actor.flat.backward(actor_loss)
        clip_gradient(self.actor.flat.gradient, config.max_gradient_norm, self.exchange)
        self.actor_adam.step(skip)

        # Targets follow by Polyak averaging: theta' <- (1 - tau) theta' + tau theta.
        with torch.no_grad():
            tau = config.tau * (1.0 - skip)
            self.target_flat.values.lerp_(self.critic_flat.values, tau)
            self.target_actor.flat.values.lerp_(self.actor.flat.values, tau)
            self.record(actor_loss=actor_loss, saturated=(action.abs() > SATURATED).float().mean())

    @torch.no_grad()
    def critic_target(self, batch: Batch) -> Tensor:
        """Return y = r + discount min_c Q'_c(s', a'), a' = clip(mu'(s') + clipped noise, -1, 1), (1, B); with C51 its
        distribution on the support, (K, B).
        """
        config = self.config
        features = self.actor.features(batch.next_observation)
        # Target policy smoothing: clipped Gaussian noise, from uniform noise (2 A, B).
        noise = (config.target_noise * normal(batch.noise)).clamp_(-config.target_noise_clip, config.target_noise_clip)
        action = (self.target_actor.forward(features).tanh() + noise).clamp_(-1.0, 1.0)
        # `reward` is r_t + gamma r_{t+1} + ... over n steps, `discount` gamma^n, or 0 where the episode terminated; a
        # truncated episode has fewer steps, and s' is its true final observation. `factor` is 1 unless rewards are
        # scaled.
        reward = batch.reward * self.reward_scale.factor
        return self.head.td_target(self.target(features, action), reward, batch.discount)

    # STATE

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the parameter vectors of actor and critics."""
        return self.actor.flat.values, self.critic_flat.values

    def tensors(self) -> dict[str, Tensor]:
        """Return optimizer states, critics and targets by their names in a checkpoint."""
        adams = {"actor": self.actor_adam, "critic": self.critic_adam}
        named = {f"adam/{name}/{key}": tensor for name, adam in adams.items() for key, tensor in adam.tensors().items()}
        named |= {"algo/critic": self.critic_flat.values.data, "algo/target": self.target_flat.values.data}
        named |= {"algo/target_actor": self.target_actor.flat.values.data}
        return named

    # COST, FUSED KERNELS

    @classmethod
    def estimate(cls, spec: Env, config: TD3Config, net: NetConfig, lanes: int) -> Estimate:
        """Estimate environment steps, FLOPs and bytes of an iteration of `lanes` lanes: acting, and the updates'
        forward and backward passes.
        """
        steps, samples, A = config.horizon * lanes, config.updates * config.batch_size, spec.action_size
        actor = products(spec, net, 0, A)
        critics = products(spec, net.of_critics, A, config.outputs, towers=config.critics)
        # Of a batch: targets, critics forward and backward; where due the actor, through the first critic, forward and
        # backward.
        learning = (actor + critics) + 3 * critics + (3 * actor + 2 * critics / config.critics) / config.actor_delay
        row = observation_bytes(spec) + 4 * A + 4 + 1 + 1
        moved = float(steps * (step_bytes(spec) + 2 * row) + samples * (2 * row + observation_bytes(spec)))
        return Estimate(steps, 2.0 * (steps * actor + samples * learning), moved, config.trial())

    def fused_task(self) -> actor_critic.ActorCriticTask:
        """Return what the fused kernels of `operant.kernels.actor_critic` need: networks, optimizers and buffers."""
        config = self.config
        return actor_critic.ActorCriticTask(
            config,
            self.cycle,
            self.actor,
            self.critic_flat,
            self.target_flat,
            self.actor_adam,
            self.critic_adam,
            actor_critic.DeterministicActor(
                self.target_actor.flat, self.exploration, config.target_noise, config.target_noise_clip
            ),
            self.reward_scale.factor,
            self.head.support,
            self.TERMS,
            self.totals,
        )


# THE METRICS IN A MONITOR

_NOT_FINITE: Final = "lower algo.critic_learning_rate, or set algo.max_gradient_norm=10"
_DIVERGES: Final = (
    "the critics diverge: lower algo.critic_learning_rate or algo.tau, set net.layer_norm=true, or algo.critics=2"
)
_SATURATED: Final = (
    "the actor takes extreme actions only, where tanh has no gradient: lower algo.learning_rate, or "
    "set algo.normalize_observations=true"
)

DETAILS: Final[dict[str, dict[str, Any]]] = {
    "critic_loss": {"advice": _NOT_FINITE},
    "q_mean": {
        "advice": _NOT_FINITE,
        "thresholds": runs_away(_DIVERGES),
        "explanation": "The critics' mean value of the sampled actions: the discounted return to come. A value that "
        "grows without bound while the return does not is the usual way in which off-policy learning fails.",
    },
    "td_error": {
        "advice": _NOT_FINITE,
        "thresholds": jumps("ten times the last minute's: if it stays, the critics diverge"),
        "explanation": "The mean distance of the critics from their targets, in units of return. It should stay a "
        "small share of the Q values.",
    },
    "gradient_norm": {
        "advice": _NOT_FINITE,
        "explanation": "The norm of the critics' gradient before it is clipped.",
    },
    "actor_loss": {
        "advice": _NOT_FINITE,
        "explanation": "Minus the critic's value of the actor's own actions.",
    },
    "saturated": {
        "advice": _NOT_FINITE,
        "thresholds": (
            Threshold("bad", at_least=0.98, records=0.75, unless="best", advice=_SATURATED),
            Threshold("warn", at_least=0.95, records=0.75, unless="best", advice=_SATURATED),
        ),
        "explanation": "The share of the actor's own actions beyond 0.98 of their bounds. Some tasks are solved so; "
        "where the return stays low, the actor is stuck.",
    },
    "updates": {
        "explanation": "Optimizer steps a second of the critics; 0 until algo.learning_starts environment steps.",
    },
}
