"""Deep Q-learning (Mnih et al. 2015) from a replay, on N lanes. Read it from top to bottom.

Plain DQN by default; by switches double Q-learning, a duelling head, n-step returns, a distribution of returns (C51), an epsilon of its own for each lane,
prioritised replay, and hard or Polyak targets. Only legal actions count in a maximum, and only they are explored.

One iteration is T ticks: act, step, store, and the updates that are due after each tick. It touches fixed buffers and never reads back to the host, so on a
GPU it is one CUDA graph. Networks and gradients are a backend's (see operant/algos/dqn/backends.py). Knows nothing of files or of the loop that calls it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from operant.algos.base import Estimate, Phase, Tier, policy_state
from operant.algos.dqn import backends, metrics
from operant.algos.dqn.config import DQNConfig
from operant.algos.dqn.stats import Stats, Terms
from operant.compute.graphs import Graphed
from operant.data import Cycle
from operant.envs import Env
from operant.nn import (
    SOLO,
    Adam,
    Exchange,
    NetConfig,
    QPolicy,
    decayed,
    ladder,
    network_flops,
    observation_bytes,
    scalar,
    step_bytes,
)
from operant.worlds import World


class DQN:
    """DQN on a world. `stats` holds an iteration's numbers, in the order of `Stats`, on the device."""

    Config = DQNConfig
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment", "backend.acting": "network", "cycle.replay.store": "replay", "cycle.sampler.sample": "replay",
        "backend.following": "targets", "backend.gradient": "gradient", "optimizer.step": "optimiser",
        "backend.learner.act": "acting and gradient", "backend.learner.update": "optimiser", "backend.learner.store": "replay",
    }  # fmt: skip
    """What a profile calls the time of which part."""

    def __init__(
        self,
        world: World,
        config: DQNConfig,
        net: NetConfig,
        *,
        seed: int,
        steps: int,
        eager: bool = False,
        exchange: Exchange = SOLO,
    ) -> None:
        """`world` holds this rank's part of the lanes, where an exchange joins several."""
        N, device = world.count, world.device
        self.world, self.config, self.device, self.exchange = world, config, device, exchange
        own = config.share(exchange.ranks)  # this rank's part of it
        self.steps_per_iteration = config.horizon * N * exchange.ranks
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"

        # The network and the target network, which begins as it does and reads observations as it does.
        self.policy = self.actor = self.make_actor(world.spec, config, net, device, seed=seed)
        self.target = self.make_actor(world.spec, config, net, device, seed=seed)
        self.target.normalizer = self.policy.normalizer
        self.optimizer = Adam(
            self.policy.flat.values.data,
            self.policy.flat.gradient,
            scalar(config.learning_rate, device),
            config.adam_epsilon,
        )

        # Rollout and replay, and each lane's epsilon.
        self.cycle = Cycle(world, own, seed=seed, steps=steps, acting_noise=self.policy.noise_rows, exchange=exchange)
        self.rollout = self.cycle.rollout
        of_all = ladder(N * exchange.ranks, config.ladder_base, config.ladder_exponent, device)
        self._ladder = of_all[exchange.rank * N :][:N] if config.exploration == "ladder" else None
        self._epsilon_iterations = max(1.0, (config.epsilon_steps or steps / 10) / self.steps_per_iteration)
        self._epsilon = torch.ones(N, device=device)

        self.metrics, self.stats = metrics.specs(), torch.zeros(len(Stats._fields), device=device)
        totals = torch.zeros(len(Terms._fields), device=device)
        parts = backends.Parts(
            own, self.cycle, self.policy, self.target, self.optimizer, self._epsilon, totals, self.stats
        )
        self.backend = backends.choose(parts)
        self.chosen = self.backend.chosen
        self.bits_by_ranks = "each rank adds up its own part of a batch"
        self.train = Graphed(self.backend.alone(self._train), device, eager=eager or not world.capturable)
        self.phases = (Phase("train", self.train),)

    @classmethod
    def make_actor(
        cls, spec: Env, config: DQNConfig, net: NetConfig, device: torch.device, *, seed: int = 0
    ) -> QPolicy:
        """The policy alone, without what training needs."""
        return QPolicy(
            spec, net, seed=seed, device=device, normalize=config.normalize_observations, precision=config.precision,
            atoms=config.atoms if config.critic == "c51" else 1, duelling=config.duelling, support=(config.v_min, config.v_max),
        )  # fmt: skip

    @classmethod
    def estimate(cls, spec: Env, config: DQNConfig, net: NetConfig, lanes: int) -> Estimate:
        """What an iteration takes: acting, and of an update a forward pass of both networks and a backward pass."""
        steps, samples = config.horizon * lanes, config.updates * config.batch_size
        forward, backward = network_flops(cls.make_actor(spec, config, net, torch.device("cpu")))
        flops = float(steps * forward + samples * ((2 + config.double) * forward + backward))
        row = observation_bytes(spec) + spec.mask_size + 4 + 4 + 1 + 1
        moved = float(steps * (step_bytes(spec) + 2 * row) + samples * 2 * (2 * row + observation_bytes(spec)))
        return Estimate(steps, flops, moved, config.trial())

    def start(self) -> None:
        """Begin every lane anew. A resumed run copies into `state` instead."""
        self.cycle.start()

    @torch.no_grad()
    def _train(self) -> None:
        """One iteration; then update the normalizer, which is constant during an iteration."""
        self._explore()
        self.backend.prepare()
        self.cycle.run(self.backend)
        self.backend.finish()
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(
                self.rollout.observation[1:].transpose(0, 1), self.cycle.replay.shards, self.exchange
            )

    def _explore(self) -> None:
        """Each lane's epsilon in this iteration: 1 until enough steps are taken to learn from."""
        config, taken = self.config, self.cycle.iteration * self.steps_per_iteration
        share = self.cycle.iteration[0] / self._epsilon_iterations
        planned = decayed(config.epsilon_start, config.epsilon_end, share) if self._ladder is None else self._ladder
        self._epsilon.copy_(torch.where(taken < config.learning_starts, 1.0, planned))
        self.policy.epsilon.copy_(self.exchange.gather(self._epsilon.mean()[None]).mean())

    # STATE

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """The tensors of a tier by name: with those of "all" a resumed run goes on to the bit. Copy into these to load."""
        named = policy_state(self.policy)
        if tier == "policy":
            return named
        groups = {
            "world": self.world.state(),
            "adam": self.optimizer.tensors(),
            "algo": {"target": self.target.flat.values.data},
        }
        named |= {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        return named | self.cycle.state(replay=tier == "all")
