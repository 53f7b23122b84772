"""Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford & Klimov 2017), on N lanes of T steps an iteration.
Read it from top to bottom.

One iteration is two functions without arguments, `collect` and `update`. They touch fixed buffers and never read back
to the host, so on a GPU each is captured in a CUDA graph and replayed; on a CPU they are called plainly. Networks and
gradients are a backend's (see operant/algos/ppo/backends.py). Knows nothing of files, processes or the loop that calls
it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from numpy import float32
from torch import Tensor

from operant.algos.base import Estimate, Phase, Tier, policy_state
from operant.algos.ppo import backends, metrics, sequences
from operant.algos.ppo.ahead import Ahead
from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.loss import Experience
from operant.algos.ppo.stats import Stats
from operant.compute.graphs import Graphed
from operant.compute.kernel import bind, kernel
from operant.data import (
    Accrual,
    Collector,
    Discount,
    Minibatches,
    Trace,
    accrual_body,
    advantage_body,
    layout,
    segments_layout,
)
from operant.envs import Env
from operant.nn import (
    SOLO,
    Adam,
    Exchange,
    Muon,
    NetConfig,
    Policy,
    RunningNormalizer,
    on_policy_work,
    scalar,
    statistics,
)
from operant.worlds import World

COLUMNS = (*(spec.name for spec in metrics.specs()), "not_finite")
"""The names of the numbers in the metrics file, in the order of `Stats`."""


class PPO:
    """PPO on a world. `collect` then `update` is one iteration; `stats` holds the update's numbers, in the order of
    `Stats`, on the device.
    """

    Config = PPOConfig
    sequences = True
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment",
        "acting.forward": "network",
        "acting.after": "network",
        "acting.bootstrap": "network",
        "estimate_advantages": "advantages",
        "backend.gather": "shuffle",
        "backend.gradient": "gradient",
        "optimizer.step": "optimiser",
        "update_normalizers": "normalizers",
        "acting.learner.act": "network",
        "acting.learner.bootstrap": "network",
        "backend.learner.begin": "advantages",
        "backend.learner.backward": "gradient",
        "backend.learner.reduce": "gradient",
        "backend.learner.step": "optimiser",
    }
    """What a profile calls the time of which part."""

    def __init__(
        self,
        world: World,
        config: PPOConfig,
        net: NetConfig,
        *,
        seed: int,
        steps: int,
        eager: bool = False,
        exchange: Exchange = SOLO,
    ) -> None:
        """`world` holds this rank's part of the lanes, where an exchange joins several."""
        T, N, W, device = config.horizon, world.count, exchange.ranks, world.device
        self.world, self.config, self.device, self.exchange = world, config, device, exchange
        self.steps_per_iteration = T * N * W
        self.policy = _policy(world.spec, config, net, device, seed)
        self.actor = _acting(self.policy, config)
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"

        # The rollout, what acting adds to it, and the order in which it is learned from. Where the next is collected
        # beside an update, learning has its own.
        self.collector = Collector(world, T, self.policy.distribution.noise_rows, eager=eager)
        self.rollout, found, learned = self.collector.rollout, Experience(self.policy, self.collector), self.collector
        self._ahead = (
            Ahead(self.collector, found, _policy(world.spec, config, net, device, seed), self.policy)
            if config.overlap
            else None
        )
        acted = found
        if self._ahead is not None:
            learned, found = self._ahead.learned, self._ahead.experience
        self._learned, self.experience = learned.rollout, found
        self._iteration = torch.zeros(1, dtype=torch.int64, device=device)
        recurrent, chunks = self.policy.recurrent, config.chunks
        cut = (
            segments_layout(T, N * W, config.minibatches, config.bptt or T, chunks)
            if recurrent
            else layout(T, N * W, config.minibatches, chunks)
        )
        epochs = -(-config.updates // config.minibatches)  # the last may be left early
        self.minibatches = Minibatches(cut.share(W), epochs, seed, self._iteration, exchange.rank)

        # Rewards, advantages and returns; float32, or the kernels would compute in float64.
        self.return_normalizer = RunningNormalizer(1, device) if config.normalize_rewards else None
        self._carried, self._accrued = torch.zeros(N, device=device), torch.zeros(T, N, device=device)
        self._estimate, self._accrue = kernel(advantage_body, device), kernel(accrual_body, device)
        self._discount = Discount(float32(config.gamma), float32(config.gamma * config.gae_lambda))  # type: ignore[arg-type]
        rollout = self._learned
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
        self._accrual = bind(
            Accrual(rollout.reward, rollout.terminated, rollout.truncated, self._carried, self._accrued)
        )

        # The optimizer: one vector, a learning rate that a captured graph can see change, and no step at all where
        # `skip` is one.
        learning_rate, skip = scalar(config.learning_rate, device), torch.zeros((), device=device)
        flat = self.policy.flat
        vectors = (flat.values.data, flat.gradient, learning_rate, config.adam_epsilon)
        self.optimizer = (
            Muon(*vectors, flat.matrices(2 - net.shared, net.memory_size or net.hidden[-1]))
            if config.optimizer == "muon"
            else Adam(*vectors)
        )
        anneal_iterations = (
            max(1, -(-(config.anneal_steps or steps) // self.steps_per_iteration)) if config.anneal else None
        )
        self.metrics, self.stats = (
            metrics.specs(getattr(self.policy.distribution, "sizes", ())),
            torch.zeros(len(Stats._fields), device=device),
        )
        parts = backends.Parts(
            config,
            self.policy,
            learned,
            found,
            self.minibatches,
            self.optimizer,
            learning_rate,
            anneal_iterations,
            skip,
            self._iteration,
            self.stats,
            exchange,
        )
        self.backend: backends.Backend = sequences.choose(parts) if recurrent else backends.choose(parts)
        self.chosen, self.bits_by_ranks = self.backend.chosen, self.backend.bits_by_ranks
        self.kernels = self.backend.name
        self.acting = self.backend
        if self._ahead is not None:
            self.acting = self.backend.beside(
                replace(parts, policy=self._ahead.policy, collector=self.collector, experience=acted)
            )

        # On a GPU an iteration is two graphs, or where its halves run side by side, one; of lanes on the host only
        # learning can be captured.
        whole = self._ahead is not None and world.capturable
        self.collect = Graphed(self.backend.alone(self._collect), device, eager=eager or whole or not world.capturable)
        self.update = Graphed(self.backend.alone(self._update), device, eager=eager or whole)
        self.phases: tuple[Phase, ...] = (Phase("collect", self.collect), Phase("update", self.update))
        if self._ahead is not None:
            self._hand_over = Graphed(self.backend.alone(self._ahead.hand_over), device, eager=eager or whole)
            self._both = Graphed(self.backend.alone(self._collect_beside_update), device, eager=eager or not whole)
            # Collecting is many short launches: each goes before what waits of an update's long ones.
            self._beside = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
            self.phases = (Phase("train", self._train),)

    @classmethod
    def make_actor(cls, spec: Env, config: PPOConfig, net: NetConfig, device: torch.device, *, seed: int = 0) -> Policy:
        """The policy alone, without what training needs."""
        return _acting(_policy(spec, config, net, device, seed), config)

    @classmethod
    def estimate(cls, spec: Env, config: PPOConfig, net: NetConfig, lanes: int) -> Estimate:
        """What an iteration takes. In memory all epochs are like the first, and whole minibatches take the most."""
        samples = config.horizon * lanes
        flops, moved = on_policy_work(
            _policy(spec, config, net, torch.device("cpu")), samples, lanes, config.updates / config.minibatches
        )
        return Estimate(
            samples,
            flops,
            moved,
            config.model_copy(update={"kernels": "torch", "microbatch": None, "epochs": 1, "replay_ratio": None}),
        )

    def start(self) -> None:
        """Begin every lane anew. A resumed run copies into `state` instead."""
        self._carried.zero_()  # what running episodes had returned, for the scale of rewards
        self.collector.start()
        self.backend.start()
        if self._ahead is not None:
            self._ahead.collected = False
            self._ahead.note()

    # AN ITERATION

    @torch.no_grad()
    def _collect(self) -> None:
        """T steps of every lane by the policy as it is, and the values that the advantages need beyond them."""
        self.acting.prepare()
        self.collector.collect(self.acting.act, self.acting.after, apart=self.acting.acts_on_some)
        self.acting.bootstrap()

    def _update(self) -> None:
        """Learn from the rollout, then take it into the normalizers: during an iteration they stand still."""
        if self._ahead is not None:
            self.backend.prepare()
        self.estimate_advantages()
        self.minibatches.shuffle()
        self.backend.update()
        self.update_normalizers()
        if self._ahead is None:
            self.collector.carry_on()

    def _train(self) -> None:
        """An iteration where both run side by side: learn from what the last one collected, and collect what the next
        one learns from.
        """
        assert self._ahead is not None
        if not self._ahead.collected:
            self._collect_first(self._ahead)
        self._both()

    def _collect_first(self, ahead: Ahead) -> None:
        """What the first iteration learns from, or the first of a resumed run: no metric counts its episodes, or they
        are counted already.
        """
        ahead.exchange_changing()
        self.collect()
        ahead.exchange_changing()
        self.world.episode_sums(self.rollout)
        ahead.collected = True

    def _collect_beside_update(self) -> None:
        """Both share no memory that one of them writes: so their order makes no difference."""
        assert self._ahead is not None
        self._hand_over()
        if self._beside is None:
            self.update()
            self._ahead.go_on()
            self.collect()
            return
        current = torch.cuda.current_stream(self.device)
        self._beside.wait_stream(current)
        self.update()
        with torch.cuda.stream(self._beside):  # behind it, since the host may wait in here
            self._ahead.go_on()
            self.collect()
        current.wait_stream(self._beside)

    @torch.no_grad()
    def estimate_advantages(self) -> None:
        """Rewards (scaled), advantages (normalized over the whole iteration, unless the backend does that where it
        reads them) and returns.
        """
        reward, advantage = self.experience.reward, self.experience.advantage
        reward.copy_(self._learned.reward)
        if self.return_normalizer is not None:
            reward.mul_(self.return_normalizer.inv_std).clamp_(-RunningNormalizer.CLIP, RunningNormalizer.CLIP)
        self._estimate(self.world.count, self._discount, self._trace)
        if self.config.normalize_advantages and not self.backend.normalizes_advantages:
            cut = self.config.chunks is not None
            mean, variance, count = statistics(advantage[None], self.minibatches.layout.shards, self.exchange, cut=cut)
            advantage.sub_(mean.float()).div_((variance * count / (count - 1)).sqrt().float() + 1e-8)

    @torch.no_grad()
    def update_normalizers(self) -> None:
        """Take the iteration into the running means and variances of observations and of discounted returns."""
        shards, exchange = self.minibatches.layout.shards, self.exchange
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(self._learned.observation[:-1].transpose(0, 1), shards, exchange)
        if self.return_normalizer is not None:
            self._accrue(self.world.count, self._discount, self._accrual)
            # float64: the square of a return of 1e20 is no float32, and a variance that overflows would scale all
            # rewards to zero for good.
            self.return_normalizer.update(self._accrued[None].double(), shards, exchange)

    # STATE

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """The tensors of a tier by name: with those of "train" a resumed run goes on to the bit. Copy into these to
        load.
        """
        named = policy_state(self.policy)
        if tier == "policy":
            return named
        world = self.world.state() if self._ahead is None else self._ahead.world
        groups = {
            "world": world,
            "adam": self.optimizer.tensors(),
            "algo": self.collector.tensors() | self.backend.tensors(),
        }
        groups["return"] = self.return_normalizer.tensors() if self.return_normalizer is not None else {}
        named |= {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        named |= self._ahead.state() if self._ahead is not None else {}
        return named | {"algo/iteration": self._iteration, "algo/carried": self._carried}


def _policy(spec: Env, config: PPOConfig, net: NetConfig, device: torch.device, seed: int = 0) -> Policy:
    """The policy as it learns."""
    return Policy(
        spec, net, seed=seed, device=device, normalize=config.normalize_observations, precision=config.precision
    )


def _acting(policy: Policy, config: PPOConfig) -> Policy:
    """The policy as it plays: where it was trained to forget with each iteration, it forgets after as many steps."""
    return policy.forgetting(config.horizon) if policy.recurrent and not config.carry_state else policy
