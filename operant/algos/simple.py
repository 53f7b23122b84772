"""Base classes of an algorithm in one file, everything but its loss: `from operant.algos import OnPolicy, OffPolicy`.

The shipped algorithms share the base classes of `operant.algos.base` instead, which have several devices and backends
with kernels of their own.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from operant.algos import base
from operant.algos.base import Estimate, Phase, Tier, policy_state
from operant.compute.graphs import Graphed
from operant.data import Collector, OffPolicyConfig
from operant.data.replay import Batch as Transitions
from operant.envs import Env
from operant.errors import UsageError
from operant.nn import (
    Adam,
    Policy,
    QPolicy,
    clip_gradient,
    decayed,
    epsilon_greedy,
    network_flops,
    observation_bytes,
    on_policy_work,
    scalar,
    step_bytes,
)
from operant.runs.metrics import MetricSpec
from operant.settings import Count, Real, Section
from operant.worlds import World

if TYPE_CHECKING:
    from typing import Self


class Batch(NamedTuple):
    """Samples of a rollout, B = T x N of them, a column each."""

    observation: Tensor  # (O, B)
    action: Tensor  # (A, B), as it was sampled
    legal: Tensor | None  # (H, B) uint8: legal actions; None if all are
    returns: Tensor  # (B): lambda-returns
    advantage: Tensor  # (B): returns - V(s) of the policy that acted


def _require_loss(algorithm: object, loss: object) -> None:
    """Check that the loss that an algorithm's `learn` gave `step` is one number with a gradient. Raises UsageError."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        given = type(loss).__name__
        if isinstance(loss, Tensor):
            given = f"a tensor of shape {tuple(loss.shape)}{'' if loss.requires_grad else ' without a gradient'}"
        raise UsageError(
            f"{type(algorithm).__name__}.learn gives `step` {given}; it must be one number that depends on the "
            "policy's parameters, such as the mean of `evaluate`'s log-probabilities times advantages"
        )


def _require_values(algorithm: object, values: tuple[object, ...], count: int) -> None:
    """Check that an algorithm's `learn` gave `record` one tensor for each of its `count` metrics. Raises UsageError."""
    if len(values) != count or not all(isinstance(value, Tensor) for value in values):
        given = ", ".join(type(value).__name__ for value in values) or "nothing"
        raise UsageError(
            f"{type(algorithm).__name__}.learn gives `record` {given}; it must be a tensor for each of its {count} "
            "metrics"
        )


def _require_tensors(algorithm: OnPolicy | OffPolicy, inherited: Collection[str] = ()) -> None:
    """Check that an algorithm's `tensors`, which a checkpoint stores, returns tensors by name, with those of its base
    class (`inherited`). Raises UsageError.
    """
    name, named = f"{type(algorithm).__name__}.tensors", algorithm.tensors()
    if not isinstance(named, dict):
        raise UsageError(f"{name} returns {type(named).__name__}; it must return a dictionary of tensors by name")
    if wrong := [key for key, value in named.items() if not isinstance(value, Tensor)]:
        kind = type(named[wrong[0]]).__name__
        raise UsageError(f"{name} returns {kind} as {wrong[0]!r}; it must return tensors, which a resume copies into")
    if not named.keys() >= set(inherited):
        raise UsageError(f"{name} lacks the tensors of its base class: return `super().tensors() | {{...}}`")


class OnPolicy:
    """Base class of an algorithm that learns from a rollout. A subclass declares `Config` and `metrics`, and writes
    `learn`: from `self.batch()`, by `self.step(loss)`, with `self.record(...)`.

    One iteration is two phases: `collect` takes T steps of each of N lanes (copies of the environment) with sampled
    actions, `learn` learns from them. Each is one CUDA graph on a GPU: it may use tensors only, without `.item()`,
    `.cpu()` or branches on values. Metrics, checkpoints, exact resume, evaluation, films, profile and the choice of
    `env.lanes` follow.

    Shape letters: T steps, N lanes, B = T x N samples, O rows of an observation, A of an action, H parameters of the
    action distribution.
    """

    class Config(Section):
        """Keys of `[algo]`: a subclass adds its own, and may replace defaults."""

        schedulable: ClassVar[tuple[str, ...]] = ("learning_rate",)

        horizon: Count = Field(16, ge=1, le=65536, description="rollout length T: steps of each lane per iteration")
        learning_rate: Real = Field(3e-3, gt=0, le=1, description="learning rate of Adam")
        gamma: Real = Field(0.99, ge=0, le=1, description="discount")
        gae_lambda: Real = Field(
            1.0, ge=0, le=1, description="lambda of the returns; 1: rewards until the end of the rollout"
        )
        max_gradient_norm: Real = Field(0.5, gt=0, description="maximum norm of the gradient")
        normalize_observations: bool = Field(False, description="normalize by running mean and standard deviation")

        def problems(self, lanes: int) -> list[tuple[str, str]]:
            """Return what is wrong with these values for `lanes` lanes, as (key, message)."""
            return []

    metrics: ClassVar[tuple[MetricSpec, ...]] = ()
    """Metrics of the algorithm, each a `metric("loss/actor", "actor loss")`, in the order of `record`."""
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment",
        "actor.forward": "network",
        "optimizer.step": "optimiser",
    }
    """Functions by their path from the algorithm, and the name under which a profile shows their time."""
    scheduled: dict[str, tuple[Any, Tensor]]

    def __init__(self, world: World, config: Any, net: Any, *, seed: int, steps: int, eager: bool = False) -> None:
        """Create policy, optimizer and buffers for the lanes of `world`. `steps` is `run.steps`; `eager`: without CUDA
        graphs.
        """
        T, N, device = config.horizon, world.count, world.device
        self.world, self.config, self.device, self.chosen = world, config, device, dict[str, Any]()
        self.steps_per_iteration = T * N
        self.actor = self.make_actor(world.spec, config, net, device, seed=seed)
        self.collector = Collector(world, T, self.actor.noise_rows, eager=eager)
        self.rollout = self.collector.rollout
        rows, action = self.actor.distribution.action_rows, self.rollout.action
        self.action = torch.zeros(T, rows, N, dtype=action.dtype, device=device)
        self.value = torch.zeros(T + 1, N, device=device)  # V(s_t); the last of the observation after the rollout
        self.final_value = torch.zeros(T, N, device=device)  # V of the true final observation, where truncated
        self.optimizer = Adam(
            self.actor.flat.values.data, self.actor.flat.gradient, scalar(config.learning_rate, device), 1e-5
        )
        self.iteration = torch.zeros(1, dtype=torch.int64, device=device)
        self.stats = torch.zeros(len(self.metrics) + 1, device=device)
        self._captured = device.type == "cuda" and not eager
        self.phases = (
            Phase("collect", Graphed(self._collect, device, eager=eager or not world.capturable)),
            Phase("learn", Graphed(self._learn, device, eager=eager)),
        )

    # TO BE WRITTEN

    def learn(self) -> None:
        """Learn from the rollout."""
        raise NotImplementedError

    # FOR `learn`

    @torch.no_grad()
    def batch(self) -> Batch:
        """Return all samples of the rollout with their returns.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t);  A_t = delta_t + gamma lambda A_{t+1};  R_t = A_t + V(s_t). The sum
        ends with the episode: without V where it terminated, with V of its true final observation where it was cut off.
        """
        rollout, config, T = self.rollout, self.config, self.config.horizon
        forward = self.actor.forward
        self.collector.final_values(
            lambda observation: forward(observation)[1], self.final_value, shards=1, captured=self._captured
        )
        self.value[T] = forward(rollout.observation[T])[1]
        advantage, following = torch.zeros_like(rollout.reward), torch.zeros_like(rollout.reward[0])
        for t in reversed(range(T)):
            terminated, truncated = rollout.terminated[t] > 0, rollout.truncated[t] > 0
            after = torch.where(truncated, self.final_value[t], self.value[t + 1])
            after = torch.where(terminated, 0.0, after)
            following = torch.where(terminated | truncated, 0.0, following)
            delta = rollout.reward[t] + config.gamma * after - self.value[t]
            following = advantage[t] = delta + config.gamma * config.gae_lambda * following

        def columns(rows: Tensor) -> Tensor:
            return rows.transpose(0, 1).flatten(1)  # (T, R, N) to (R, T N)

        legal = None if rollout.legal is None else columns(rollout.legal[:-1])
        returns = advantage + self.value[:-1]
        observation = columns(rollout.observation[:-1])
        return Batch(observation, columns(self.action), legal, returns.flatten(), advantage.flatten())

    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return log pi(a|s), the entropy of pi(.|s) and V(s) of the policy as it is now, (B) each."""
        parameters, value = self.actor.forward(batch.observation, batch.legal)
        return (*self.actor.distribution.log_probability_and_entropy(parameters, batch.action), value)

    def step(self, loss: Tensor) -> None:
        """Take one step of Adam along the gradient of `loss`, clipped to the norm `max_gradient_norm`. Raises
        UsageError if `loss` is not one number that depends on the policy's parameters.
        """
        _require_loss(self, loss)
        self.actor.flat.backward(loss)
        clip_gradient(self.actor.flat.gradient, self.config.max_gradient_norm)
        self.optimizer.step()

    @torch.no_grad()
    def record(self, *values: Tensor) -> None:
        """Set the metrics of the iteration, in the order of `metrics`. Raises UsageError for values that are not one
        tensor for each.
        """
        _require_values(self, values, len(self.metrics))
        means = torch.stack([value.detach().float().mean() for value in values])
        not_finite = (~torch.isfinite(means)).sum() + (~torch.isfinite(self.actor.flat.values)).sum()
        self.stats.copy_(torch.cat([means, not_finite[None].float()]))

    # AN ITERATION

    def act(self, t: int) -> None:
        """Sample the actions of step t, (A, N), and write them to the rollout as the environment takes them."""
        distribution = self.actor.distribution
        parameters, self.value[t] = self.actor.forward(self.rollout.observation[t], self.collector.legal(t))
        self.action[t] = distribution.sample(parameters, self.collector.noise[t])
        self.rollout.action[t] = distribution.to_env(self.action[t])

    @torch.no_grad()
    def _collect(self) -> None:
        self.collector.collect(self.act)

    def _learn(self) -> None:
        """Learn, then update the normalizer, which is constant during an iteration."""
        self.learn()
        if self.config.normalize_observations and self.actor.normalizer is not None:
            with torch.no_grad():
                self.actor.normalizer.update(self.rollout.observation[1:].transpose(0, 1), 1)
        self.collector.carry_on()
        self.iteration += 1

    def start(self) -> None:
        """Reset all lanes before the first iteration of a new run."""
        self.collector.start()

    # WHAT THE LOOP AND THE TOOLS ASK

    @classmethod
    def make_actor(cls, spec: Env, config: Any, net: Any, device: torch.device, *, seed: int = 0) -> Policy:
        """Create the policy: network, action distribution and, if configured, normalizer."""
        return Policy(spec, net, seed=seed, device=device, normalize=config.normalize_observations)

    @classmethod
    def estimate(cls, spec: Env, config: Any, net: Any, lanes: int) -> Estimate:
        """Estimate the cost of an iteration with `lanes` lanes from shapes, for one pass over the samples."""
        steps = config.horizon * lanes
        actor = cls.make_actor(spec, config, net, torch.device("cpu"))
        return Estimate(steps, *on_policy_work(actor, steps, lanes, 1), config)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a resumed run needs beyond policy, optimizer, lanes and counter, by name. By default nothing."""
        return {}

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint of a `tier` ("policy", "train" or "all"), by name; a load copies
        into them. Raises UsageError for unusable `tensors`.
        """
        if tier == "policy":
            return policy_state(self.actor)
        _require_tensors(self)
        groups = {
            "world": self.world.state(),
            "adam": self.optimizer.tensors(),
            "algo": self.collector.tensors() | {"iteration": self.iteration} | self.tensors(),
        }
        named = {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        return policy_state(self.actor) | named


class OffPolicy(base.ReplayAlgorithm):
    """Base class of an algorithm that learns Q values of n actions (Discrete) from a replay. A subclass declares
    `Config` and `metrics`, and writes `learn(batch)`: by `self.q(...)` and `self.step(loss)`, with `self.record(...)`.

    One iteration is T ticks: epsilon-greedy actions of all N lanes, their transitions into the replay, then the updates
    that are due, each with one `learn`. It is one CUDA graph on a GPU: `learn` may use tensors only. Until the replay
    holds `learning_starts` transitions actions are random, and neither `step` nor `record` has an effect.

    Shape letters: T ticks, N lanes, B samples of a batch, O rows of an observation, A actions.
    """

    class Config(OffPolicyConfig):
        """Keys of `[algo]`: a subclass adds its own, and may replace defaults."""

        schedulable: ClassVar[tuple[str, ...]] = ("learning_rate",)

        learning_rate: Real = Field(5e-4, gt=0, le=1, description="learning rate of Adam")
        tau: Real = Field(1.0, gt=0, le=1, description="target <- (1 - tau) target + tau network")
        target_every: Count = Field(200, ge=1, lt=2**31, description="updates per update of the target network")
        epsilon_start: Real = Field(1.0, ge=0, le=1, description="probability of a random action at the start")
        epsilon_end: Real = Field(0.05, ge=0, le=1, description="probability of a random action after epsilon_steps")
        epsilon_steps: Count | None = Field(
            None, ge=1, description="environment steps from start to end; not set: a tenth of run.steps"
        )
        max_gradient_norm: Real = Field(10.0, ge=0, description="maximum norm of the gradient; 0: not clipped")
        normalize_observations: bool = Field(False, description="normalize by running mean and standard deviation")
        precision: Literal["fp32", "tf32"] = Field("tf32", description="of matrix products on a GPU")

        def completed(self, steps: int) -> Self:
            """Fill in `epsilon_steps`, if it is not set, as a tenth of the run's `steps`. Returns a copy."""
            end = self.epsilon_steps or max(1, steps // 10)
            return super().completed(steps).model_copy(update={"epsilon_steps": end})

        def trial(self) -> OffPolicy.Config:
            """Return a copy of this configuration for measuring memory on a CPU, with one update."""
            updates = min(self.updates_per_step, 1 / self.horizon)
            return self.model_copy(update={"replay_place": "device", "updates_per_step": updates})

        def problems(self, lanes: int) -> list[tuple[str, str]]:
            """Return what is wrong with these values for `lanes` lanes, as (key, message)."""
            uniform = self.replay_sampling == "uniform"
            found = [] if uniform else [("replay_sampling", 'this algorithm samples uniformly (use "uniform")')]
            return found + super().problems(lanes)

    metrics: tuple[MetricSpec, ...] = ()
    """Metrics of the algorithm, each a `metric("loss/q", "Q loss")`, in the order of `record`."""
    parts: ClassVar[dict[str, str]] = base.ReplayAlgorithm.parts | {"q": "network", "optimizer.step": "optimiser"}
    actor: QPolicy

    def __init_subclass__(cls) -> None:
        cls.TERMS = tuple(f"term_{k}" for k in range(len(cls.metrics)))
        epsilon = base.metric("epsilon", "epsilon", figure="epsilon", order=70)
        defaults = (*cls.metrics, epsilon, base.REPLAY_FILL, base.UPDATES, base.NOT_FINITE)
        fields = (*cls.TERMS, "epsilon", "replay_fill", "updates", "not_finite")
        cls.Stats = namedtuple("Stats", fields, defaults=defaults)  # type: ignore[misc]

    def __init__(self, world: World, config: Any, net: Any, *, seed: int, steps: int, eager: bool = False) -> None:
        """Create network, target network, optimizer and the cycle for the lanes of `world`. `steps` is `run.steps`;
        `eager`: without CUDA graphs.
        """
        device, make = world.device, self.make_actor
        actor = make(world.spec, config, net, device, seed=seed)
        super().__init__(world, config, actor, seed=seed, steps=steps, acting_noise=actor.noise_rows)
        self.normalizer = actor.normalizer
        self.target = make(world.spec, config, net, device, seed=seed)
        self.target.normalizer = actor.normalizer
        flat = actor.flat
        self.optimizer = Adam(flat.values.data, flat.gradient, scalar(config.learning_rate, device), 1e-5)
        self._epsilon_iterations = max(1.0, (config.epsilon_steps or steps / 10) / self.steps_per_iteration)
        self.capture(eager=eager)

    # TO BE WRITTEN

    def learn(self, batch: Transitions) -> None:
        """Learn from a batch."""
        raise NotImplementedError

    # FOR `learn`

    def q(self, observation: Tensor, legal: Tensor | None = None, *, target: bool = False) -> Tensor:
        """Return Q values (A, B) of observations (O, B), -1e9 where `legal` (A, B) is 0: of the network, or of the
        target network.
        """
        return (self.target if target else self.actor).values(observation, legal)

    def step(self, loss: Tensor) -> None:
        """Take one step of Adam along the gradient of `loss`, clipped to the norm `max_gradient_norm`. Raises
        UsageError if `loss` is not one number that depends on the policy's parameters.
        """
        _require_loss(self, loss)
        self.actor.flat.backward(loss)
        clip_gradient(self.actor.flat.gradient, self.config.max_gradient_norm)
        self.optimizer.step(self.cycle.skip)

    def record(self, *values: Tensor) -> None:  # type: ignore[override]
        """Add the metrics of an update, in the order of `metrics`; records have their means. Raises UsageError for
        values that are not one tensor for each.
        """
        _require_values(self, values, len(self.TERMS))
        with torch.no_grad():
            means = [value.detach().float().mean() for value in values]
            super().record(**dict(zip(self.TERMS, means, strict=True)))

    # AN ITERATION

    @torch.no_grad()
    def prepare(self) -> None:
        """Set epsilon: 1 until `learning_starts` environment steps, then its decay."""
        config, iteration = self.config, self.cycle.iteration[0]
        scheduled = decayed(config.epsilon_start, config.epsilon_end, iteration / self._epsilon_iterations)
        warming = iteration * self.steps_per_iteration < config.learning_starts
        self.actor.epsilon.copy_(torch.where(warming, 1.0, scheduled))

    @torch.no_grad()
    def act(self, t: int) -> None:
        """Write epsilon-greedy actions (1, N) of tick t to the rollout."""
        collector = self.cycle.collector
        legal = collector.legal(t)
        values = self.q(self.rollout.observation[t], legal)
        self.rollout.action[t] = epsilon_greedy(values, collector.noise[t], self.actor.epsilon, legal)

    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch, then move the target network if it is due."""
        cycle, config = self.cycle, self.config
        batch, _ = cycle.sampler.sample(ticks, number)
        with torch.enable_grad():
            self.learn(batch)
        with torch.no_grad():
            due = (cycle.replay.ring.updates[0] + (number + 1)) % config.target_every == 0
            tau = config.tau * (1.0 - cycle.skip) * due
            self.target.flat.values.data.lerp_(self.actor.flat.values.data, tau)

    def iteration_stats(self) -> tuple[Tensor, ...]:
        """Return epsilon, (1)."""
        return (self.actor.epsilon.reshape(1),)

    # WHAT THE LOOP AND THE TOOLS ASK

    @classmethod
    def make_actor(cls, spec: Env, config: Any, net: Any, device: torch.device, *, seed: int = 0) -> QPolicy:
        """Create the Q network with its greedy policy."""
        return QPolicy(spec, net, seed=seed, device=device, normalize=config.normalize_observations)

    @classmethod
    def estimate(cls, spec: Env, config: Any, net: Any, lanes: int) -> Estimate:
        """Estimate the cost of an iteration with `lanes` lanes from shapes: acting, and updates with one pass of the
        target network.
        """
        steps, samples = config.horizon * lanes, config.updates * config.batch_size
        forward, backward = network_flops(cls.make_actor(spec, config, net, torch.device("cpu")))
        row = observation_bytes(spec) + spec.mask_size + 4 + 4 + 1 + 1
        moved = steps * (step_bytes(spec) + 2 * row) + samples * 2 * (2 * row + observation_bytes(spec))
        return Estimate(
            steps, float(steps * forward + samples * (2 * forward + backward)), float(moved), config.trial()
        )

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the parameter vector of the network."""
        return (self.actor.flat.values.data,)

    def tensors(self) -> dict[str, Tensor]:
        """Return optimizer state and target network, by name."""
        adam = {f"adam/{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        return adam | {"algo/target": self.target.flat.values.data}

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint of a `tier` ("policy", "train" or "all"), by name; a load copies
        into them. Raises UsageError for unusable `tensors`.
        """
        _require_tensors(self, OffPolicy.tensors(self).keys())
        return super().state(tier)
