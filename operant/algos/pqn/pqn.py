"""Parallelised Q-learning, PQN (Gallici, Fellows, Ellis, Pou, Masmitja, Foerster & Martin 2024, arXiv 2407.04811), on N
lanes of T steps an iteration.

Q-learning without a replay, many lanes instead, and without a target network, a network with layer normalization
instead. Targets are Q(lambda) returns of the rollout, by the network that collected it:

    G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1}),  G_T = max_a Q(s_T, a),

cut where an episode ends: r_t after termination, r_t + gamma max_a Q of the true final observation after truncation.
This is the return of generalised advantage estimation with V = max_a Q. Only legal actions count in a maximum, and only
they are explored.

This file is the specification, in torch and autograd, and reads from top to bottom. `cpu.py` replaces the backward pass
by a hand-written one on a CPU, and `fused/` acting and learning by Triton kernels on a GPU; both are tested against it.

Shape letters: T steps, N lanes, A actions, O rows of an observation, M blocks of a rollout, B samples of a minibatch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from operant.algos.base import NOT_FINITE, Estimate, Phase, Threshold, Tier, metric, metric_specs, policy_state
from operant.algos.pqn.config import PQNConfig
from operant.compute.graphs import Graphed
from operant.data import Collector, Experience, OnPolicyBackend, OnPolicyCycle, layout
from operant.envs import Env
from operant.nn import Adam, NetConfig, QPolicy, clip_gradient, decayed, epsilon_greedy, on_policy_work
from operant.worlds import World

_NOT_FINITE: Final = (
    "lower algo.learning_rate or algo.max_gradient_norm, set net.layer_norm=true, or scale large "
    "rewards down by algo.reward_scale"
)
_DIVERGES: Final = "Q values run away: set net.layer_norm=true, lower algo.learning_rate or algo.q_lambda"

log = logging.getLogger("operant.pqn")


class Stats(NamedTuple):
    """Metrics of an iteration. Those before `gradient_norm` are terms of the loss, means over all samples."""

    q_loss: Tensor = metric("loss/q", "Q loss", order=80, advice=_NOT_FINITE)
    td_error: Tensor = metric(
        "td_error",
        "TD error",
        figure="TD error",
        order=50,
        advice=_NOT_FINITE,
        explanation="The mean distance of Q values from the Q(lambda) returns they learn from, in units of the "
        "(scaled) reward. It grows with the returns; what matters is that it stays a small part of the Q values.",
    )
    q_mean: Tensor = metric(
        "q_mean",
        "Q mean",
        figure="Q",
        order=40,
        advice=_NOT_FINITE,
        thresholds=(Threshold("bad", at_least=1e6, advice=_DIVERGES), Threshold("bad", below=-1e6, advice=_DIVERGES)),
        explanation="The mean Q value of the actions that were taken: the discounted return expected from here on. "
        "It should follow the returns, never run ahead of them.",
    )
    gradient_norm: Tensor = metric(
        "gradient_norm",
        "gradient norm",
        order=110,
        advice=_NOT_FINITE,
        thresholds=(
            Threshold(
                "warn",
                at_least=10.0,
                relative_to="minute",
                records=0.0,
                advice="ten times the last minute's median: if it stays, lower algo.learning_rate or "
                "algo.max_gradient_norm",
            ),
        ),
        explanation="The norm of the loss's gradient before it is clipped to algo.max_gradient_norm. Its size depends "
        "on the task; a jump is what matters.",
    )
    explained_variance: Tensor = metric(
        "explained_variance",
        "explained variance",
        figure="expl. var.",
        order=60,
        advice=_NOT_FINITE,
        thresholds=(
            Threshold(
                "bad",
                below=0.0,
                after=0.2,
                unless="best",
                advice=f"Q values predict worse than a constant would: {_NOT_FINITE}",
            ),
            Threshold(
                "bad",
                below=0.02,
                after=0.2,
                unless="best",
                advice="Q values say no more than a constant: lower algo.learning_rate (too large a step kills "
                "units), or the reward says too little",
            ),
            Threshold(
                "warn",
                below=0.3,
                after=0.5,
                unless="best",
                advice="Q values lag: raise algo.learning_rate or algo.epochs, or widen net.hidden",
            ),
        ),
        explanation="How much of the variance of the Q(lambda) returns the greedy Q values explain: 1 all of it, 0 "
        "no more than a constant, less than 0 worse than that. Low values are usual while most actions are random.",
    )
    epsilon: Tensor = metric(
        "epsilon",
        "epsilon",
        figure="epsilon",
        order=70,
        explanation="The probability of a random action. It goes from algo.epsilon_start to algo.epsilon_end over "
        "algo.epsilon_steps.",
    )
    learning_rate: Tensor = metric("learning_rate", "learning rate", order=120)
    not_finite: Tensor = NOT_FINITE


TERMS = Stats._fields[: Stats._fields.index("gradient_norm")]
"""Names of the loss's terms, in the order in which every backend adds them up."""


# LOSS


class Batch(NamedTuple):
    """Samples of a minibatch, feature-major: observations, actions, returns and legal actions."""

    observation: Tensor  # (O, B)
    action: Tensor  # (1, B) int32
    returns: Tensor  # (B), G

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Return parts with these numbers of samples, as views."""
        return [Batch(*parts) for parts in zip(*(field.split(list(sizes), dim=-1) for field in self), strict=True)]


def q_loss(policy: QPolicy, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a minibatch, 1/2 E[(Q(s, a) - G)^2] (algorithm 1), and its terms by the names in `TERMS`."""
    q = policy.values(batch.observation).gather(0, batch.action.long())[0]  # (B)
    error = q - batch.returns
    loss = 0.5 * error.square().mean()
    return loss, {"q_loss": loss.detach(), "td_error": error.detach().abs().mean(), "q_mean": q.detach().mean()}


# ITERATION


class PQN:
    """PQN learner on the lanes of a world. Running its phases `collect` and `update` is one iteration, after which
    `stats` holds the fields of `Stats`.
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
    """Functions by their path from the algorithm, and the name under which a profile shows their time."""

    def __init__(
        self, world: World, config: PQNConfig, net: NetConfig, *, seed: int, steps: int, eager: bool = False
    ) -> None:
        """Create policy, rollout, optimizer and backend; `eager`: without CUDA graphs; `steps` is `run.steps`."""
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

        # The rollout, what acting stores with it, and minibatches. The values are max_a Q.
        self.collector = Collector(world, T, self.policy.noise_rows, eager=eager)
        self.rollout = self.collector.rollout
        self.experience = Experience(self.collector, ("advantage", "returns"))
        self.cycle = OnPolicyCycle(
            self.collector,
            self.experience,
            layout(T, N, config.minibatches),
            config,
            decay=config.gamma * config.q_lambda,
            epochs=config.epochs,
            seed=seed,
            steps=steps,
        )
        self.minibatches = self.cycle.minibatches
        self._epsilon_iterations = max(1.0, (config.epsilon_steps or steps / 10) / self.steps_per_iteration)

        flat, learning_rate = self.policy.flat, self.cycle.learning_rate
        self.optimizer = Adam(flat.values.data, flat.gradient, learning_rate, config.adam_epsilon)
        self.metrics, self.stats = metric_specs(Stats), torch.zeros(len(Stats._fields), device=device)

        self.backend = self.choose_backend()
        self.chosen, self.kernels = self.backend.chosen, self.backend.name
        # On a GPU an iteration is two CUDA graphs; with lanes on the host only the update can be captured.
        single = self.backend.single_threaded
        self.collect = Graphed(single(self._collect), device, eager=eager or not world.capturable)
        self.update = Graphed(single(self._update), device, eager=eager)
        self.phases = (Phase("collect", self.collect), Phase("update", self.update))

    def choose_backend(self) -> TorchBackend:
        """Return the torch backend. The class that users get, `operant.algos.pqn.PQN`, chooses the fastest
        supported.
        """
        return TorchBackend(self)

    @classmethod
    def make_actor(
        cls, spec: Env, config: PQNConfig, net: NetConfig, device: torch.device, *, seed: int = 0
    ) -> QPolicy:
        """Create the Q network of the environment `spec` with its greedy policy alone, without buffers for training."""
        normalize, epsilon = config.normalize_observations, config.epsilon_start
        return QPolicy(
            spec, net, seed=seed, device=device, normalize=normalize, precision=config.precision, epsilon=epsilon
        )

    @classmethod
    def estimate(cls, spec: Env, config: PQNConfig, net: NetConfig, lanes: int) -> Estimate:
        """Estimate steps, FLOPs and bytes of an iteration of `lanes` lanes. One epoch has the peak of memory."""
        samples = config.horizon * lanes
        policy = cls.make_actor(spec, config, net, torch.device("cpu"))
        flops, moved = on_policy_work(policy, samples, lanes, config.epochs)
        return Estimate(samples, flops, moved, config.model_copy(update={"kernels": "torch", "epochs": 1}))

    def start(self) -> None:
        """Reset all lanes before the first iteration. A resumed run copies into `state` instead."""
        self.collector.start()

    @torch.no_grad()
    def _collect(self) -> None:
        """Roll out T steps of every lane by the current policy, then bootstrap values."""
        config, backend = self.config, self.backend
        done = self.cycle.iteration[0] / self._epsilon_iterations
        self.policy.epsilon.copy_(decayed(config.epsilon_start, config.epsilon_end, done))
        backend.prepare()
        self.collector.collect(backend.act, sliced=backend.acts_on_slices)
        backend.bootstrap()

    def _update(self) -> None:
        """Compute returns, run all epochs of minibatches, then update the observation normalizer, which is constant
        until then.
        """
        self.compute_returns()
        self.minibatches.shuffle()
        self.backend.update()
        self.update_normalizer()
        self.collector.carry_on()

    @torch.no_grad()
    def compute_returns(self) -> None:
        """Write the Q(lambda) return of every sample, after scaling its reward."""
        torch.mul(self.rollout.reward, self.config.reward_scale, out=self.experience.reward)
        self.cycle.estimate_advantages()

    @torch.no_grad()
    def update_normalizer(self) -> None:
        """Update the running mean and variance of observations by those of the iteration."""
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(self.rollout.observation[:-1].transpose(0, 1), self.cycle.shards)

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors of a `tier` ("policy", "train" or "all") by name; copy into them to load. With those of
        "train" a resume is exact.
        """
        named = policy_state(self.policy)
        if tier == "policy":
            return named
        groups = {"world": self.world.state(), "adam": self.optimizer.tensors(), "algo": self.collector.tensors()}
        named |= {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        return named | {"algo/iteration": self.cycle.iteration}


# BACKEND


class TorchBackend(OnPolicyBackend):
    """Backend of torch operations and autograd: the specification for all others."""

    name = "torch"

    config: PQNConfig
    policy: QPolicy

    def __init__(self, pqn: PQN) -> None:
        super().__init__(pqn)
        self.acts_on_slices = self.device.type == "cuda"

    # ACT

    def values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Return Q (A, N) for observations (O, N) and legal actions (A, N); the next call may overwrite it."""
        return self.policy.values(observation, legal)

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write epsilon-greedy actions of step t and max_a Q of its observations, for all lanes or a slice of
        `lanes`.
        """
        collector, selected = self.collector, (..., lanes or slice(None))
        every_legal = collector.legal(t)
        legal = None if every_legal is None else every_legal[selected]
        q = self.values(collector.rollout.observation[t][selected], legal)
        self.experience.value[t][selected] = q.amax(dim=0)
        noise = collector.noise[t][selected]
        collector.rollout.action[t][selected] = epsilon_greedy(q, noise, self.policy.epsilon, legal)

    def bootstrap(self) -> None:
        """Write max_a Q of the observation after the last step, and of the true final observation of every truncated
        episode. There all actions count as legal, since the environment gives no mask.
        """
        collector = self.collector
        self.experience.value[-1] = self.values(collector.rollout.observation[-1], collector.legal(-1)).amax(dim=0)
        collector.final_values(
            lambda observation: self.policy.values(observation).amax(dim=0),
            self.experience.final_value,
            shards=self.cycle.shards,
            captured=self.device.type == "cuda" and collector.world.capturable,
        )

    # LEARN

    def update(self) -> None:
        """Take one optimizer step per minibatch of every epoch over the rollout, and write `stats`."""
        cycle, config = self.cycle, self.config
        explained_variance = cycle.explained_variance(self.experience.advantage)
        cycle.anneal()

        totals = torch.zeros(len(TERMS) + 1, device=self.device)  # sums of the loss's terms and of the gradient's norm
        for order in cycle.minibatches.order:
            for batch in self.batches(order.long()):
                totals += self.step(batch)
        totals /= config.epochs * config.minibatches

        cycle.iteration.add_(1)
        not_finite = (~torch.isfinite(self.policy.flat.values.data)).sum() + (~torch.isfinite(totals)).sum()
        *terms, gradient_norm = totals
        stats = Stats(
            **dict(zip(TERMS, terms, strict=True)),
            gradient_norm=gradient_norm,
            explained_variance=explained_variance,
            epsilon=self.policy.epsilon,
            learning_rate=cycle.learning_rate,
            not_finite=not_finite.float(),
        )
        self.stats.copy_(torch.stack(stats))

    def batches(self, order: Tensor) -> Iterator[Batch]:
        """Yield the minibatches of an epoch, given its order of blocks (M), the block numbers."""
        for blocks in order.chunk(self.config.minibatches):
            yield self.gather(blocks)

    def gather(self, blocks: Tensor) -> Batch:
        """Gather the samples of the blocks numbered `blocks` (m), in this order."""
        minibatches, rollout = self.cycle.minibatches, self.collector.rollout
        gather_observation = minibatches.gather_pictures if self.policy.env.pixels else minibatches.gather
        observation = gather_observation(rollout.observation[:-1], blocks)
        action, returns = (minibatches.gather(buffer, blocks) for buffer in (rollout.action, self.experience.returns))
        return Batch(observation, action, returns)

    def step(self, batch: Batch) -> Tensor:
        """Take one optimizer step on a minibatch. Returns the loss's terms and the gradient's norm before clipping, (E
        + 1).
        """
        terms = self.gradient(batch)
        with torch.no_grad():
            gradient_norm = clip_gradient(self.policy.flat.gradient, self.config.max_gradient_norm)
            self.optimizer.step()
            return torch.cat([terms, gradient_norm[None]])

    def gradient(self, batch: Batch) -> Tensor:
        """Write the gradient of a minibatch's loss into the policy's flat gradient vector; return the loss's
        terms (E).
        """
        loss, terms = q_loss(self.policy, batch)
        self.policy.flat.backward(loss)
        return torch.stack([terms[name] for name in TERMS])
