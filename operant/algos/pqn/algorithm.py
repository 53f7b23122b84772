"""Parallelised Q-learning, PQN (Gallici, Fellows, Ellis, Pou, Masmitja, Foerster & Martin 2024), on N lanes of T steps
an iteration.

Q-learning without a replay and without a target network: many lanes in the place of the one, a network with layer
normalization in the place of the other. Targets are Q(lambda) returns of the rollout, by the network that collected it:

    G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1}),  G_T = max_a Q(s_T, a),

cut where an episode ends: r_t after a true end, r_t + gamma max_a Q of the true final observation after a time limit.
That is the return of generalised advantage estimation with V = max_a Q. Only legal actions count in a maximum, and only
they are explored.

One iteration is two functions without arguments, `collect` and `update`, as in PPO; networks and gradients are a
backend's. Knows nothing of files, processes or the loop that calls it.
"""

from __future__ import annotations

import logging
from typing import ClassVar

import torch
from numpy import float32
from torch import Tensor

from operant.algos.base import Estimate, Phase, Tier, policy_state
from operant.algos.pqn import backends, metrics
from operant.algos.pqn.config import PQNConfig
from operant.algos.pqn.loss import Experience
from operant.algos.pqn.stats import Stats
from operant.compute.graphs import Graphed
from operant.compute.kernel import bind, kernel
from operant.data import Collector, Discount, Minibatches, Trace, advantage_body, layout
from operant.envs import Env
from operant.nn import Adam, NetConfig, QPolicy, decayed, on_policy_work, scalar
from operant.worlds import World

log = logging.getLogger("operant.pqn")


class PQN:
    """PQN on a world. `collect` then `update` is one iteration; `stats` holds the update's numbers, in the order of
    `Stats`, on the device.
    """

    Config = PQNConfig
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment",
        "backend.values": "network",
        "backend.bootstrap": "network",
        "compute_returns": "returns",
        "backend.gather": "shuffle",
        "backend.gradient": "gradient",
        "optimizer.step": "optimiser",
        "update_normalizer": "normalizers",
        "backend.learner.act": "network",
        "backend.learner.bootstrap": "network",
        "backend.learner.backward": "gradient",
        "backend.learner.reduce": "gradient",
        "backend.learner.step": "optimiser",
    }
    """What a profile calls the time of which part."""

    def __init__(
        self, world: World, config: PQNConfig, net: NetConfig, *, seed: int, steps: int, eager: bool = False
    ) -> None:
        T, N, device = config.horizon, world.count, world.device
        self.world, self.config, self.device = world, config, device
        self.steps_per_iteration = T * N
        self.policy = self.actor = self.make_actor(world.spec, config, net, device, seed=seed)
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"
        if net.kind == "mlp" and not net.layer_norm:
            log.info(
                "net.layer_norm is false: without layer normalization, and without a target network, Q values "
                "may diverge"
            )

        # The rollout, what acting adds to it, and the order in which it is learned from.
        self.collector = Collector(world, T, self.policy.noise_rows, eager=eager)
        self.rollout, self.experience = self.collector.rollout, Experience(self.collector)
        self._iteration = torch.zeros(1, dtype=torch.int64, device=device)
        self.minibatches = Minibatches(layout(T, N, config.minibatches), config.epochs, seed, self._iteration)

        # Q(lambda) returns; float32, or the kernel would compute in float64.
        self._estimate, rollout, found = kernel(advantage_body, device), self.rollout, self.experience
        self._discount = Discount(float32(config.gamma), float32(config.gamma * config.q_lambda))  # type: ignore[arg-type]
        self._trace = bind(
            Trace(
                found.reward,
                found.value,
                found.final_value,
                rollout.terminated,
                rollout.truncated,
                found.advantage,
                found.returns,
            )
        )

        # The optimizer: one vector, and a learning rate that a captured graph can see change.
        learning_rate = scalar(config.learning_rate, device)
        self.optimizer = Adam(
            self.policy.flat.values.data, self.policy.flat.gradient, learning_rate, config.adam_epsilon
        )
        anneal_iterations = (
            max(1, -(-(config.anneal_steps or steps) // self.steps_per_iteration)) if config.anneal else None
        )
        self._epsilon_iterations = max(1.0, (config.epsilon_steps or steps / 10) / self.steps_per_iteration)
        self.metrics, self.stats = metrics.specs(), torch.zeros(len(Stats._fields), device=device)
        parts = backends.Parts(
            config,
            self.policy,
            self.collector,
            found,
            self.minibatches,
            self.optimizer,
            learning_rate,
            anneal_iterations,
            self._iteration,
            self.stats,
        )
        self.backend = backends.choose(parts)
        self.chosen, self.kernels = self.backend.chosen, self.backend.name

        self.collect = Graphed(self.backend.alone(self._collect), device, eager=eager or not world.capturable)
        self.update = Graphed(self.backend.alone(self._update), device, eager=eager)
        self.phases = (Phase("collect", self.collect), Phase("update", self.update))

    @classmethod
    def make_actor(
        cls, spec: Env, config: PQNConfig, net: NetConfig, device: torch.device, *, seed: int = 0
    ) -> QPolicy:
        """The policy alone, without what training needs."""
        normalize, epsilon = config.normalize_observations, config.epsilon_start
        return QPolicy(
            spec, net, seed=seed, device=device, normalize=normalize, precision=config.precision, epsilon=epsilon
        )

    @classmethod
    def estimate(cls, spec: Env, config: PQNConfig, net: NetConfig, lanes: int) -> Estimate:
        """What an iteration takes. In memory all epochs are like the first."""
        samples = config.horizon * lanes
        flops, moved = on_policy_work(
            cls.make_actor(spec, config, net, torch.device("cpu")), samples, lanes, config.epochs
        )
        return Estimate(samples, flops, moved, config.model_copy(update={"kernels": "torch", "epochs": 1}))

    def start(self) -> None:
        """Begin every lane anew. A resumed run copies into `state` instead."""
        self.collector.start()

    # AN ITERATION

    @torch.no_grad()
    def _collect(self) -> None:
        """T steps of every lane by the Q values as they are, and the values that the returns need beyond them."""
        config = self.config
        self.policy.epsilon.copy_(
            decayed(config.epsilon_start, config.epsilon_end, self._iteration[0] / self._epsilon_iterations)
        )
        self.backend.prepare()
        self.collector.collect(self.backend.act, apart=self.backend.acts_on_some)
        self.backend.bootstrap()

    def _update(self) -> None:
        """Learn from the rollout, then take it into the normalizer: during an iteration that stands still."""
        self.compute_returns()
        self.minibatches.shuffle()
        self.backend.update()
        self.update_normalizer()
        self.collector.carry_on()

    @torch.no_grad()
    def compute_returns(self) -> None:
        """The Q(lambda) return of every sample, of scaled rewards."""
        torch.mul(self.rollout.reward, self.config.reward_scale, out=self.experience.reward)
        self._estimate(self.world.count, self._discount, self._trace)

    @torch.no_grad()
    def update_normalizer(self) -> None:
        """Take the iteration into the running mean and variance of observations."""
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(self.rollout.observation[:-1].transpose(0, 1), self.minibatches.layout.shards)

    # STATE

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """The tensors of a tier by name: with those of "train" a resumed run goes on to the bit. Copy into these to
        load.
        """
        named = policy_state(self.policy)
        if tier == "policy":
            return named
        groups = {"world": self.world.state(), "adam": self.optimizer.tensors(), "algo": self.collector.tensors()}
        named |= {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        return named | {"algo/iteration": self._iteration}
