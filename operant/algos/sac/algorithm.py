"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) on N lanes: an off-policy actor-critic that maximises return and entropy. Read it top to bottom.

One iteration is T ticks: act, step, store, and the updates that are due after each tick. It touches fixed buffers and never reads back to the host, so on a
GPU it is one CUDA graph. Networks and gradients are a backend's (see operant/algos/sac/backends.py). Knows nothing of files or of the loop that calls it.
"""

from __future__ import annotations

import copy
import math
from typing import ClassVar

import torch
from torch import Tensor

from operant.algos.base import Estimate, Phase, Tier, policy_state
from operant.algos.sac import backends, metrics
from operant.algos.sac.config import SACConfig
from operant.compute.graphs import Graphed
from operant.data import AccruedReturns, Cycle
from operant.envs import Discrete, Env
from operant.nn import (
    SOLO,
    Adam,
    CategoricalActor,
    CriticHead,
    Exchange,
    FlatVector,
    NetConfig,
    RewardScale,
    SquashedActor,
    critic_outputs,
    network,
    observation_bytes,
    products,
    scalar,
    step_bytes,
)
from operant.worlds import World


class SAC:
    """SAC on a world. `stats` holds an iteration's numbers, in the order of `Stats`, on the device."""

    Config = SACConfig
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment", "backend.act": "network", "backend.store": "replay", "cycle.sampler.sample": "replay", "backend.update": "learning",
    }  # fmt: skip
    """What a profile calls the time of which part."""

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
        """`world` holds this rank's part of the lanes, where an exchange joins several."""
        device, A = world.device, world.spec.action_size
        self.world, self.config, self.device, self.exchange = world, config, device, exchange
        own = config.share(exchange.ranks)  # this rank's part of it
        self.steps_per_iteration = config.horizon * world.count * exchange.ranks
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"
        self.actor = self.make_actor(world.spec, config, net, device, seed=seed)

        # Acting takes 2 A uniform numbers a lane; an update as many a sample for the next action, and again for the action now. A choice takes but one.
        discrete, rows = isinstance(self.actor, CategoricalActor), self.actor.noise_rows
        noise, stored = (0, None) if discrete else (2 * rows, torch.float32)
        self.cycle = Cycle(
            world, own, seed=seed, steps=steps, acting_noise=rows, update_noise=noise, stored=stored, exchange=exchange
        )
        self.rollout = self.cycle.rollout
        self._accrued = AccruedReturns(
            self.rollout.reward, self.rollout.terminated, self.rollout.truncated, config.gamma
        )
        self._scale = RewardScale(config.reach, device, active=config.scales_rewards)

        # The critics side by side, and the targets, which begin as they do.
        outputs, generator = critic_outputs(world.spec, config.outputs), torch.Generator().manual_seed(seed ^ 0x5AC)
        action = 0 if discrete else A
        self.critic = network(
            world.spec,
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
        self._log_temperature, temperature_gradient = torch.zeros(1, device=device), torch.zeros(1, device=device)
        begin = config.initial_temperature if config.temperature == "auto" else config.temperature
        self._log_temperature.fill_(math.log(begin) if begin > 0.0 else -math.inf)

        # Optimizers: one vector each.
        rate, critic_rate = (scalar(value, device) for value in (config.learning_rate, config.critic_learning_rate))
        self._actor_adam = Adam(self.actor.flat.values.data, self.actor.flat.gradient, rate, config.adam_epsilon)
        self._critic_adam = Adam(
            self.critic_flat.values.data, self.critic_flat.gradient, critic_rate, config.adam_epsilon
        )
        automatic = config.temperature == "auto"
        self._temperature_adam = (
            Adam(self._log_temperature, temperature_gradient, rate, config.adam_epsilon) if automatic else None
        )

        self.metrics, self.stats = (
            metrics.specs(0.0 if discrete else -4.0 * A),
            torch.zeros(len(metrics.specs(0.0)) + 1, device=device),
        )
        expected = 0.5 * math.log(outputs) if discrete else -float(A)
        entropy = expected if config.target_entropy is None else config.target_entropy
        self.backend = backends.choose(
            backends.Parts(
                own, self.cycle, self.actor, self.critic, self.critic_flat, self.target, self.target_flat, CriticHead(config, device),
                self._scale.factor, self._log_temperature, temperature_gradient, entropy, self._actor_adam, self._critic_adam,
                self._temperature_adam, self.stats,
            )
        )  # fmt: skip
        self.chosen = self.backend.chosen
        self.bits_by_ranks = "each rank adds up its own part of a batch"
        self.train = Graphed(self.backend.alone(self._train), device, eager=eager or not world.capturable)
        self.phases = (Phase("train", self.train),)

    @classmethod
    def make_actor(
        cls, spec: Env, config: SACConfig, net: NetConfig, device: torch.device, *, seed: int = 0
    ) -> SquashedActor | CategoricalActor:
        """The actor alone, without what training needs."""
        kind = CategoricalActor if isinstance(spec.action, Discrete) else SquashedActor
        return kind(
            spec, net, seed=seed, device=device, normalize=config.normalize_observations, precision=config.precision
        )

    @classmethod
    def estimate(cls, spec: Env, config: SACConfig, net: NetConfig, lanes: int) -> Estimate:
        """What an iteration takes: acting, and of an update forward passes of all networks and backward passes of actor and critics."""
        steps, samples, A = config.horizon * lanes, config.updates * config.batch_size, spec.action_size
        discrete, outputs = isinstance(spec.action, Discrete), critic_outputs(spec, config.outputs)
        actor = products(spec, net, 0, outputs if discrete else 2 * A)
        critics = products(spec, net.of_critics, 0 if discrete else A, outputs, towers=config.critics)
        # Of a batch: the next actions and their targets; critics forward and backward; where due the actor, through the critics, forward and backward.
        flops = 2.0 * (
            steps * actor + samples * ((actor + critics) + 3 * critics + (3 * actor + 2 * critics) / config.actor_delay)
        )
        row = observation_bytes(spec) + 4 * A + 4 + 1 + 1
        moved = float(steps * (step_bytes(spec) + 2 * row) + samples * (2 * row + observation_bytes(spec)))
        return Estimate(steps, flops, moved, config.trial())

    def start(self) -> None:
        """Begin every lane anew. A resumed run copies into `state` instead."""
        self._accrued.carried.zero_()  # what running episodes had returned, for the scale of rewards
        self.cycle.start()

    def _train(self) -> None:
        """One iteration; then update the normalizer, which is constant during an iteration."""
        self.backend.prepare()
        self.cycle.run(self.backend)
        self.backend.finish()
        if self._scale.active:
            self._scale.update(self._accrued(), self.exchange)
        normalizer = self.actor.features.normalizer
        if normalizer is not None:
            with torch.no_grad():
                normalizer.update(self.rollout.observation[1:].transpose(0, 1), self.cycle.replay.shards, self.exchange)

    # STATE

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """The tensors of a tier by name: with those of "all" a resumed run goes on to the bit. Copy into these to load."""
        named = policy_state(self.actor)
        if tier == "policy":
            return named
        adams = {"actor": self._actor_adam, "critic": self._critic_adam, "temperature": self._temperature_adam}
        groups = {f"adam/{name}": adam.tensors() for name, adam in adams.items() if adam is not None}
        groups |= {"world": self.world.state()}
        named |= {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        own = {
            "critic": self.critic_flat.values.data,
            "target": self.target_flat.values.data,
            "log_temperature": self._log_temperature,
        }
        if self._scale.active:
            own |= {"accrued": self._accrued.carried} | {
                f"reward_{name}": tensor for name, tensor in self._scale.tensors().items()
            }
        return named | {f"algo/{name}": tensor for name, tensor in own.items()} | self.cycle.state(replay=tier == "all")
