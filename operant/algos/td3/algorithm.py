"""Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018, arXiv 1802.09477) on N lanes, each with exploration noise of its own.

One iteration is T ticks: act, step, store, and the updates that are due after each tick. It touches fixed buffers and never reads back to the host, so on a
GPU it is one CUDA graph. Networks and gradients are a backend's (see operant/algos/td3/backends.py). Knows nothing of files or of the loop that calls it.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor

from operant.algos.base import Estimate, Phase, Tier, policy_state
from operant.algos.td3 import backends, metrics
from operant.algos.td3.config import TD3Config
from operant.compute.graphs import Graphed
from operant.data import AccruedReturns, Cycle
from operant.envs import Env
from operant.nn import (
    SOLO,
    Adam,
    CriticHead,
    Exchange,
    FlatVector,
    NetConfig,
    RewardScale,
    SquashedActor,
    network,
    observation_bytes,
    products,
    scalar,
    step_bytes,
)
from operant.worlds import World


class TD3:
    """TD3 on a world. `stats` holds an iteration's numbers, in the order of `Stats`, on the device."""

    Config = TD3Config
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment", "backend.act": "network", "backend.store": "replay", "cycle.sampler.sample": "replay",
        "backend.targets": "targets", "backend.update": "learning",
    }  # fmt: skip
    """What a profile calls the time of which part."""

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
        """`world` holds this rank's part of the lanes, where an exchange joins several."""
        device, A, N = world.device, world.spec.action_size, world.count
        self.world, self.config, self.device, self.exchange = world, config, device, exchange
        own = config.share(exchange.ranks)  # this rank's part of it
        self.steps_per_iteration = config.horizon * N * exchange.ranks
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"

        # Actor and critics side by side, and their targets, which begin as they do and read observations as they do.
        self.actor = self.make_actor(world.spec, config, net, device, seed=seed)
        self.target_actor = self.make_actor(world.spec, config, net, device, seed=seed)
        self.target_actor.features = self.actor.features
        generator = torch.Generator().manual_seed(seed ^ 0x7D3)
        self.critic = network(
            world.spec,
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

        # Acting takes 2 A uniform numbers a lane, an update as many a sample for target smoothing.
        self.cycle = Cycle(
            world,
            own,
            seed=seed,
            steps=steps,
            acting_noise=2 * A,
            update_noise=2 * A,
            stored=torch.float32,
            exchange=exchange,
        )
        self.rollout = self.cycle.rollout
        self._accrued = AccruedReturns(
            self.rollout.reward, self.rollout.terminated, self.rollout.truncated, config.gamma
        )
        self._scale = RewardScale(config.reach, device, active=config.scales_rewards)
        last = config.exploration_noise if config.exploration_noise_max is None else config.exploration_noise_max
        exploration = (
            torch.linspace(config.exploration_noise, last, N * exchange.ranks, dtype=torch.float64)
            .float()
            .to(device)[exchange.rank * N :][:N]
        )

        rate, critic_rate = (scalar(value, device) for value in (config.learning_rate, config.critic_learning_rate))
        self._actor_adam = Adam(self.actor.flat.values.data, self.actor.flat.gradient, rate, config.adam_epsilon)
        self._critic_adam = Adam(
            self.critic_flat.values.data, self.critic_flat.gradient, critic_rate, config.adam_epsilon
        )
        self.metrics = metrics.specs()
        self.stats = torch.zeros(len(self.metrics) + 1, device=device)
        self.backend = backends.choose(
            backends.Parts(
                own, self.cycle, self.actor, self.target_actor, self.critic, self.critic_flat, self.target, self.target_flat, CriticHead(config, device),
                self._scale.factor, self._actor_adam,
                self._critic_adam, exploration, self.stats,
            )
        )  # fmt: skip
        self.chosen = self.backend.chosen
        self.bits_by_ranks = "each rank adds up its own part of a batch"
        self.train = Graphed(self.backend.alone(self._train), device, eager=eager or not world.capturable)
        self.phases = (Phase("train", self.train),)

    @classmethod
    def make_actor(
        cls, spec: Env, config: TD3Config, net: NetConfig, device: torch.device, *, seed: int = 0
    ) -> SquashedActor:
        """The actor alone, without what training needs."""
        normalize, std = config.normalize_observations, config.exploration_noise
        return SquashedActor(
            spec, net, seed=seed, device=device, normalize=normalize, precision=config.precision, std=std
        )

    @classmethod
    def estimate(cls, spec: Env, config: TD3Config, net: NetConfig, lanes: int) -> Estimate:
        """What an iteration takes: acting, and of an update forward passes of all networks and backward passes of those that learn."""
        steps, samples, A = config.horizon * lanes, config.updates * config.batch_size, spec.action_size
        actor, critics = (
            products(spec, net, 0, A),
            products(spec, net.of_critics, A, config.outputs, towers=config.critics),
        )
        # Of a batch: targets, critics forward and backward; where due the actor, through the first critic, forward and backward.
        learning = (actor + critics) + 3 * critics + (3 * actor + 2 * critics / config.critics) / config.actor_delay
        row = observation_bytes(spec) + 4 * A + 4 + 1 + 1
        moved = float(steps * (step_bytes(spec) + 2 * row) + samples * (2 * row + observation_bytes(spec)))
        return Estimate(steps, 2.0 * (steps * actor + samples * learning), moved, config.trial())

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
        groups = {
            "adam/actor": self._actor_adam.tensors(),
            "adam/critic": self._critic_adam.tensors(),
            "world": self.world.state(),
        }
        named |= {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        own = {
            "critic": self.critic_flat.values.data,
            "target": self.target_flat.values.data,
            "target_actor": self.target_actor.flat.values.data,
        }
        if self._scale.active:
            own |= {"accrued": self._accrued.carried} | {
                f"reward_{name}": tensor for name, tensor in self._scale.tensors().items()
            }
        return named | {f"algo/{name}": tensor for name, tensor in own.items()} | self.cycle.state(replay=tier == "all")
