"""Parallelised Q-learning, PQN (Gallici, Fellows, Ellis, Pou, Masmitja, Foerster & Martin 2024, arXiv 2407.04811), on N
lanes of T steps an iteration.

Q-learning without a replay, many lanes instead, and without a target network, a network with layer normalization
instead. Targets are Q(lambda) returns of the rollout, by the network that collected it:

    G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1}),  G_T = max_a Q(s_T, a),

cut where an episode ends: r_t after termination, r_t + gamma max_a Q of the true final observation after truncation.
This is the return of generalised advantage estimation with V = max_a Q. Only legal actions count in a maximum, and only
they are explored.

This file is the specification, in torch and autograd: first the loss, then `TorchBackend`, from top to bottom in the
order of an iteration:

    collect   for t in 0 ... T - 1: `act` on the observations (O, N), step the world; then `bootstrap` values
    update    `estimate_advantages`; for each epoch, for each minibatch: `step` = `loss`, gradient, clip, Adam; then
              `update_normalizers`

`PQN`, below, allocates what it works on and makes the halves phases, each one CUDA graph on a GPU. `cpu.py` replaces
the backward pass by a hand-written one on a CPU, and `fused/` acting and learning by Triton kernels on a GPU; both are
tested against this file.

Shape letters: T steps, N lanes, A actions, O rows of an observation, M blocks of a rollout, B samples of a minibatch, E
terms of the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from operant.algos.base import NOT_FINITE, Estimate, RolloutAlgorithm, Threshold, jumps, metric, metric_specs, runs_away
from operant.algos.pqn.config import PQNConfig
from operant.data import Collector, Experience, OnPolicyBackend, layout
from operant.envs import Env
from operant.nn import Adam, NetConfig, QPolicy, clip_gradient, decayed, epsilon_greedy, on_policy_work
from operant.worlds import World

log = logging.getLogger("operant.pqn")


class Stats(NamedTuple):
    """Metrics of an iteration. Those before `gradient_norm` are terms of the loss, means over all samples. `DETAILS`
    has their thresholds and explanations.
    """

    q_loss: Tensor = metric("loss/q", "Q loss", order=80)
    td_error: Tensor = metric("td_error", "TD error", figure="TD error", order=50)
    q_mean: Tensor = metric("q_mean", "Q mean", figure="Q", order=40)
    gradient_norm: Tensor = metric("gradient_norm", "gradient norm", order=110)
    explained_variance: Tensor = metric("explained_variance", "explained variance", figure="expl. var.", order=60)
    epsilon: Tensor = metric("epsilon", "epsilon", figure="epsilon", order=70)
    learning_rate: Tensor = metric("learning_rate", "learning rate", order=120)
    not_finite: Tensor = NOT_FINITE


TERMS = Stats._fields[: Stats._fields.index("gradient_norm")]
"""Names of the loss's terms, in the order in which every backend adds them up."""


class SampleRows(NamedTuple):
    """Numbers that PQN stores with every sample, a row (T, N) each, in their order in `Experience.samples`. The fused
    kernels take their offsets from here.
    """

    advantage: Tensor  # return minus value
    returns: Tensor  # Q(lambda) returns
    value: Tensor  # (T + 1, N), max_a Q of the observation before each step, and of the last one


# LOSS


class Batch(NamedTuple):
    """Samples of a minibatch: observations, actions and returns. Samples are the last axis."""

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


# AN ITERATION


class TorchBackend(OnPolicyBackend):
    """PQN by torch operations and autograd: the specification for all other backends.

    `collector.rollout` holds what the world writes, T steps of N lanes: observation (T + 1, O, N), reward, terminated
    and truncated (T, N). `experience` holds what PQN adds: value, max_a Q, (T + 1, N), and returns (T, N).
    """

    name, terms = "torch", TERMS

    config: PQNConfig
    policy: QPolicy

    def __init__(self, pqn: PQN) -> None:
        super().__init__(pqn)
        self.acts_on_slices = self.device.type == "cuda"
        steps_per_iteration = pqn.steps_per_iteration
        self._epsilon_iterations = max(1.0, pqn.epsilon_steps / steps_per_iteration)

    # COLLECT

    @torch.no_grad()
    def collect(self) -> None:
        """Set the iteration's epsilon, roll out T steps of every lane by the current policy, then bootstrap values."""
        config, done = self.config, self.cycle.iteration[0] / self._epsilon_iterations
        self.policy.epsilon.copy_(decayed(config.epsilon_start, config.epsilon_end, done))  # linear in `done`
        super().collect()

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write epsilon-greedy actions of step t and max_a Q of its observations, for all lanes or a slice of `lanes`.
        The world then steps, and writes observation t + 1, reward t and the end of an episode to the rollout.
        """
        collector, selected = self.collector, (..., lanes or slice(None))
        every_legal = collector.legal(t)
        legal = None if every_legal is None else every_legal[selected]
        q = self.values(collector.rollout.observation[t][selected], legal)  # (A, N)
        self.experience.value[t][selected] = q.amax(dim=0)
        # A random legal action with probability epsilon, else argmax_a Q; noise (2, N) is uniform in [0, 1).
        noise = collector.noise[t][selected]
        collector.rollout.action[t][selected] = epsilon_greedy(q, noise, self.policy.epsilon, legal)

    def bootstrap(self) -> None:
        """Write max_a Q of the observation after the last step, and of the true final observation of every truncated
        episode. There all actions count as legal, since the environment gives no mask.
        """
        collector = self.collector
        self.experience.value[-1] = self.values(collector.rollout.observation[-1], collector.legal(-1)).amax(dim=0)
        self.write_final_values(lambda observation: self.policy.values(observation).amax(dim=0), by_shards=True)

    def values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Return Q (A, N), -1e9 for illegal actions, for observations (O, N) and legal actions (A, N); the next call
        may overwrite it.
        """
        return self.policy.values(observation, legal)

    # RETURNS

    @torch.no_grad()
    def estimate_advantages(self) -> None:
        """Write the Q(lambda) return of every sample, after scaling its reward.

        With V = max_a Q it is V plus the generalized advantage estimate:
        delta_t = r_t + gamma V(s_{t+1}) - V(s_t);  A_t = delta_t + gamma lambda A_{t+1};  G_t = A_t + V(s_t).
        """
        torch.mul(self.cycle.rollout.reward, self.config.reward_scale, out=self.experience.reward)
        self.cycle.estimate_advantages()

    # UPDATE

    def update(self) -> None:
        """Take one optimizer step per minibatch of every epoch over the rollout, and write `stats`."""
        cycle, config = self.cycle, self.config
        explained_variance = cycle.explained_variance(self.experience.advantage)  # 1 - Var(G - V) / Var G
        cycle.anneal()

        # For each epoch a random order of the rollout's blocks (M): up to 32 neighbouring lanes of one step.
        totals = torch.zeros(len(TERMS) + 1, device=self.device)  # sums of the loss's terms and of the gradient's norm
        for order in cycle.minibatches.order:
            for batch in self.batches(order.long()):
                totals += self.step(batch)
        cycle.iteration.add_(1)

        *terms, gradient_norm = means = totals / (config.epochs * config.minibatches)
        stats = Stats(
            **dict(zip(TERMS, terms, strict=True)),
            gradient_norm=gradient_norm,
            explained_variance=explained_variance,
            epsilon=self.policy.epsilon,
            learning_rate=cycle.learning_rate,
            not_finite=self.count_not_finite(means),
        )
        self.stats.copy_(torch.stack(stats))

    def step(self, batch: Batch) -> Tensor:
        """Take one optimizer step on a minibatch. Returns the loss's terms and the gradient's norm before clipping,
        (E + 1).
        """
        terms = self.gradient(batch)  # of `loss`, in one flat vector of all parameters
        with torch.no_grad():
            # g <- g min(1, max_gradient_norm / |g|)
            gradient_norm = clip_gradient(self.policy.flat.gradient, self.config.max_gradient_norm)
            self.optimizer.step()
            return torch.cat([terms, gradient_norm[None]])

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and its terms by the names in `TERMS`."""
        return q_loss(self.policy, batch)

    def gather(self, blocks: Tensor) -> Batch:
        """Gather the samples of blocks (up to 32 neighbouring lanes of one step) with the numbers `blocks` (m), as a
        batch of B samples.
        """
        return Batch(
            observation=self.gather_observations(blocks),
            action=self.gather_rows(self.collector.rollout.action, blocks),
            returns=self.gather_rows(self.experience.returns, blocks),
        )


# BUFFERS AND PHASES


class PQN(RolloutAlgorithm):
    """PQN learner on the lanes of a world. Running its phases `collect` and `update` is one iteration, after which
    `stats` holds the fields of `Stats`.
    """

    Config, Stats = PQNConfig, Stats
    parts = RolloutAlgorithm.parts | {"backend.values": "network", "backend.estimate_advantages": "returns"}

    def __init__(
        self, world: World, config: PQNConfig, net: NetConfig, *, seed: int, steps: int, eager: bool = False
    ) -> None:
        """Create policy, rollout, optimizer and backend; `eager`: without CUDA graphs; `steps` is `run.steps`."""
        if net.kind == "mlp" and not net.layer_norm:
            log.info(
                "net.layer_norm is false: without layer normalization, and without a target network, Q values "
                "may diverge"
            )
        policy = self.make_actor(world.spec, config, net, world.device, seed=seed)
        super().__init__(
            world,
            config,
            policy,
            layout(config.horizon, world.count, config.minibatches),
            decay=config.gamma * config.q_lambda,
            epochs=config.epochs,
            seed=seed,
            steps=steps,
            eager=eager,
        )
        self.epsilon_steps = config.epsilon_steps or steps / 10
        flat, learning_rate = policy.flat, self.cycle.learning_rate
        self.optimizer = Adam(flat.values.data, flat.gradient, learning_rate, config.adam_epsilon)
        self.metrics = metric_specs(Stats, DETAILS)
        self.capture(self.choose_backend(), eager=eager)

    def choose_backend(self) -> TorchBackend:
        """Return the torch backend. The class that users get, `operant.algos.pqn.PQN`, chooses the fastest
        supported.
        """
        return TorchBackend(self)

    def make_experience(self, collector: Collector) -> Experience:
        """Allocate what PQN stores for each sample of a rollout. The values are max_a Q."""
        return Experience(collector, SampleRows)

    @classmethod
    def make_actor(
        cls, spec: Env, config: PQNConfig, net: NetConfig, device: torch.device, *, seed: int = 0
    ) -> QPolicy:
        """Create the Q network for the environment `spec` with its greedy policy, without buffers for training."""
        normalize, epsilon = config.normalize_observations, config.epsilon_start
        return QPolicy(
            spec, net, seed=seed, device=device, normalize=normalize, precision=config.precision, epsilon=epsilon
        )

    @classmethod
    def estimate(cls, spec: Env, config: PQNConfig, net: NetConfig, lanes: int) -> Estimate:
        """Estimate environment steps, FLOPs and bytes of an iteration of `lanes` lanes. Its trial configuration, for
        measuring memory, has one epoch, which takes the most.
        """
        samples = config.horizon * lanes
        policy = cls.make_actor(spec, config, net, torch.device("cpu"))
        flops, moved = on_policy_work(policy, samples, lanes, config.epochs)
        return Estimate(samples, flops, moved, config.model_copy(update={"kernels": "torch", "epochs": 1}))


# THE METRICS IN A MONITOR

_NOT_FINITE: Final = (
    "lower algo.learning_rate or algo.max_gradient_norm, set net.layer_norm=true, or scale large "
    "rewards down by algo.reward_scale"
)
_DIVERGES: Final = "Q values run away: set net.layer_norm=true, lower algo.learning_rate or algo.q_lambda"

DETAILS: Final[dict[str, dict[str, Any]]] = {
    "q_loss": {"advice": _NOT_FINITE},
    "td_error": {
        "advice": _NOT_FINITE,
        "explanation": "The mean distance of Q values from the Q(lambda) returns they learn from, in units of the "
        "(scaled) reward. It grows with the returns; what matters is that it stays a small part of the Q values.",
    },
    "q_mean": {
        "advice": _NOT_FINITE,
        "thresholds": runs_away(_DIVERGES),
        "explanation": "The mean Q value of the actions that were taken: the discounted return expected from here on. "
        "It should follow the returns, never run ahead of them.",
    },
    "gradient_norm": {
        "advice": _NOT_FINITE,
        "thresholds": jumps(
            "ten times the last minute's median: if it stays, lower algo.learning_rate or algo.max_gradient_norm"
        ),
        "explanation": "The norm of the loss's gradient before it is clipped to algo.max_gradient_norm. Its size "
        "depends on the task; a jump is what matters.",
    },
    "explained_variance": {
        "advice": _NOT_FINITE,
        "thresholds": (
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
        "explanation": "How much of the variance of the Q(lambda) returns the greedy Q values explain: 1 all of it, 0 "
        "no more than a constant, less than 0 worse than that. Low values are usual while most actions are random.",
    },
    "epsilon": {
        "explanation": "The probability of a random action. It goes from algo.epsilon_start to algo.epsilon_end over "
        "algo.epsilon_steps.",
    },
}
