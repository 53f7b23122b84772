"""The protocol of an algorithm, the declaration of its metrics, and the base classes of the shipped algorithms:
`RolloutAlgorithm` for PPO and PQN, `ReplayAlgorithm` for SAC, TD3 and DQN.

The training loop, evaluation, play and the tools use an algorithm through `Algorithm`. An algorithm is a file, or a
package if it has kernels: in `operant/algos/` it ends in `ALGO = ItsClass`; a user's is `algo.name = "a2c.py:A2C"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from operant.compute.graphs import Graphed
from operant.data import AccruedReturns, Collector, Cycle, Experience, Layout, OnPolicyBackend, OnPolicyCycle
from operant.envs import Env
from operant.errors import EnvironmentFailedError
from operant.nn import SOLO, Actor, Adam, Exchange, RewardScale, RunningNormalizer
from operant.runs.metrics import MetricSpec as MetricSpec
from operant.runs.metrics import Threshold as Threshold  # re-exported with MetricSpec, for algorithms
from operant.settings import Section
from operant.worlds import Slot, World

Tier = Literal["policy", "train", "all"]
"""Tensors of a checkpoint: "policy", those of the actor; "train", all that a resumed run needs except a replay; "all",
with the replay.
"""


class Phase(NamedTuple):
    """Part of an iteration; an algorithm's phases run in order. A phase uses fixed buffers and copies nothing back to
    the host, so that it can be a CUDA graph.
    """

    name: str  # its time is the column seconds/NAME of the metrics file
    run: Callable[[], None]


class Estimate(NamedTuple):
    """Cost of an iteration: for choosing `env.lanes = "auto"`, and for the roofline of a profile."""

    steps: int  # environment steps
    flops: float  # lower bound: products of the networks
    bytes: float  # lower bound: moved to and from memory
    trial: Section  # configuration for measuring memory per lane on the CPU, in the least time


class Algorithm(Protocol):
    """Learner on a world, created as `Class(world, config, net, seed=, steps=, eager=)`. Running its `phases` in order
    is one iteration.
    """

    Config: ClassVar[type[Section]]
    """Keys of `[algo]` except `name`, with their defaults. Its method `problems(lanes)` returns what is wrong with the
    values for a run with `lanes` lanes, as a list of (key, message).
    """
    parts: ClassVar[dict[str, str]]
    """Functions by their path from the algorithm, and the name under which a profile shows their time; optional."""
    sequences: ClassVar[bool]
    """Whether it trains recurrent policies (`net.memory`); optional, default False. If True, `Config.problems` takes
    the keyword `memory`: whether the policy is recurrent.
    """

    world: World
    device: torch.device
    config: Any
    phases: tuple[Phase, ...]
    actor: Actor
    rollout: Slot  # steps of the last iteration
    metrics: tuple[MetricSpec, ...]
    stats: Tensor  # (M + 1) float32: the M metrics of the iteration, then the count of NaN and infinite values
    steps_per_iteration: int
    scheduled: dict[str, tuple[Any, Tensor]]
    """Scheduled keys: their schedule, and the scalar that replaces the value in `config`. Set by the builder."""
    chosen: dict[str, Any]
    """Values chosen for keys that were left open, JSON. A resumed run is given them again."""

    @classmethod
    def make_actor(cls, spec: Env, config: Any, net: Any, device: torch.device, *, seed: int = 0) -> Actor:
        """Create the actor, the policy for evaluation and play, for the environment `spec`, without buffers for
        training. Its initial parameters depend on `seed` alone.
        """

    @classmethod
    def estimate(cls, spec: Env, config: Any, net: Any, lanes: int) -> Estimate:
        """Estimate the cost of an iteration of `lanes` lanes of the environment `spec`, from shapes alone."""

    def start(self) -> None:
        """Reset all lanes before the first iteration of a new run. A resumed run loads `state` instead."""

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint of a `tier` ("policy", "train" or "all"), by name; a load copies
        into them. The names of tier "policy" are `policy/` and the actor's.

        `algo/iteration` (1) int64 counts finished iterations. Schedules count environment steps, `algo/iteration` times
        `steps_per_iteration`; a resume with another horizon sets it to match.
        """


NOT_FINITE: Any = None
"""Default of the last field of a `Stats` class: see `metric`."""


def metric(name: str, label: str = "", **fields: Any) -> Any:
    """Declare one metric as the default of a `Stats` field; the arguments are those of `MetricSpec`.

    `Stats` is a NamedTuple: its fields are the columns of `stats`, in order, and every other list of them (terms of a
    loss, offsets in kernels, metrics of the run) is derived from it. The last field is
    `not_finite: Tensor = NOT_FINITE`, the count of values that are NaN or infinite, which is not a metric.
    """
    return MetricSpec(name, label, **fields)


def metric_specs(
    stats: type, details: Mapping[str, Mapping[str, Any]] = MappingProxyType({}), **changed: Mapping[str, Any]
) -> tuple[MetricSpec, ...]:
    """Return the MetricSpec of each metric of a `Stats` class, in the order of its fields.

    `details` gives more attributes of some specs by the field's name, such as thresholds and explanation, which an
    algorithm's file keeps below the algorithm. `changed` does so for those that depend on the environment:
    `metric_specs(Stats, DETAILS, entropy={"thresholds": (...)})`.
    """
    defaults: dict[str, MetricSpec] = stats._field_defaults  # type: ignore[attr-defined]
    assert {*details, *changed} <= set(defaults), f"no fields of Stats: { ({*details, *changed} - set(defaults)) }"
    return tuple(
        spec._replace(**details.get(name, {}))._replace(**changed.get(name, {}))
        for name, spec in defaults.items()
        if spec is not NOT_FINITE
    )


def jumps(advice: str) -> tuple[Threshold, ...]:
    """Return thresholds that warn, with `advice`, when a metric is ten times the median of its last minute."""
    return (Threshold("warn", at_least=10.0, relative_to="minute", records=0.0, advice=advice),)


def runs_away(advice: str) -> tuple[Threshold, ...]:
    """Return thresholds that report a mean Q value above 1e6 or below -1e6 as bad, with `advice`."""
    return (Threshold("bad", at_least=1e6, advice=advice), Threshold("bad", below=-1e6, advice=advice))


def policy_state(actor: Actor) -> dict[str, Tensor]:
    """Return the actor's tensors by their names in a checkpoint, `policy/` and the actor's name: those of tier
    "policy".
    """
    return {f"policy/{name}": tensor for name, tensor in actor.tensors().items()}


REPLAY_FILL: Any = metric(
    "replay_fill",
    "replay fill",
    figure="replay fill",
    order=120,
    thresholds=(
        Threshold(
            "warn",
            below=0.02,
            after=0.5,
            advice="most of the replay stays empty: a smaller algo.replay_capacity would take less memory",
        ),
    ),
    explanation="The share of the replay's capacity that is filled; once it is 1 the oldest transitions are "
    "overwritten. The memory it takes is among the facts about the run.",
)
"""Default of the field `replay_fill` of an off-policy algorithm's `Stats`."""

UPDATES: Any = metric(
    "updates_per_second",
    "updates/s",
    unit="1/s",
    higher_better=True,
    figure="updates/s",
    order=25,
    kind="rate",
    explanation="Optimizer steps a second; 0 until algo.learning_starts environment steps.",
)
"""Default of the field `updates`, after `replay_fill`."""


class RolloutAlgorithm:
    """Base class of algorithms that learn from a rollout: PPO and PQN. One iteration is two phases: `collect` takes T
    steps of every lane, `update` learns from them.

    Each touches fixed buffers and never reads back to the host, so on a GPU each is one CUDA graph. How to act and to
    learn is written in a subclass of `OnPolicyBackend`; this class owns what its backends work on.

    A subclass declares `Config` and `Stats`. Its `__init__` calls `super().__init__`, creates `optimizer` and
    `metrics`, and ends with `self.capture(backend, eager=eager)`. It writes `make_actor`, `estimate` and
    `make_experience`.
    """

    Config: ClassVar[type[Section]]
    Stats: ClassVar[Any]
    """NamedTuple of metrics: terms of the loss, then `gradient_norm` and others, then `not_finite`."""
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment",
        "backend.forward": "network",
        "backend.after": "network",
        "backend.bootstrap": "network",
        "backend.estimate_advantages": "advantages",
        "backend.gather": "shuffle",
        "backend.gradient": "gradient",
        "optimizer.step": "optimiser",
        "backend.update_normalizers": "normalizers",
        "backend.learner.act": "network",
        "backend.learner.bootstrap": "network",
        "backend.learner.begin": "advantages",
        "backend.learner.backward": "gradient",
        "backend.learner.reduce": "gradient",
        "backend.learner.step": "optimiser",
    }
    """Functions by their path from the algorithm, and the name under which a profile shows their time."""
    metrics: tuple[MetricSpec, ...]
    optimizer: Adam
    scheduled: dict[str, tuple[Any, Tensor]]

    def __init__(
        self,
        world: World,
        config: Any,
        policy: Any,
        layout: Layout,
        *,
        decay: float,
        epochs: int,
        seed: int,
        steps: int,
        noise_hold: int = 1,
        eager: bool = False,
        exchange: Exchange = SOLO,
    ) -> None:
        """Create the rollout of T steps, the experience stored with it, and the cycle of an iteration, for `policy`.

        `layout` partitions the rollout of all ranks into minibatches; `decay` is gamma lambda; `epochs` is rounded up;
        `steps` is `run.steps`; a lane's noise stays the same for `noise_hold` steps; `eager`: without CUDA graphs. With
        an exchange of several ranks `world` holds this rank's lanes.
        """
        T, N = config.horizon, world.count
        self.world, self.config, self.device, self.exchange = world, config, world.device, exchange
        self.policy = self.actor = policy
        self.steps_per_iteration = T * N * exchange.ranks
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"
        self.collector = Collector(world, T, policy.distribution.noise_rows, hold=noise_hold, eager=eager)
        self.rollout = self.collector.rollout
        self.experience = self.make_experience(self.collector)
        self.cycle = OnPolicyCycle(
            self.collector,
            self.experience,
            layout,
            config,
            decay=decay,
            epochs=epochs,
            seed=seed,
            steps=steps,
            exchange=exchange,
        )
        self.minibatches = self.cycle.minibatches
        self.stats = torch.zeros(len(self.Stats._fields), device=self.device)

    def make_experience(self, collector: Collector) -> Experience:
        """Allocate what the algorithm stores for each sample of a rollout. Written by a subclass."""
        raise NotImplementedError

    def capture(self, backend: OnPolicyBackend, *, eager: bool) -> None:
        """Let `backend` act and learn in the phases `collect` and `update`, each a CUDA graph unless `eager`; with
        lanes on the host only the update. Called at the end of a subclass's `__init__`.
        """
        self.backend, single = backend, backend.single_threaded
        self.chosen, self.bits_by_ranks, self.kernels = backend.chosen, backend.bits_by_ranks, backend.name
        self.collect = Graphed(single(self._collect), self.device, eager=eager or not self.world.capturable)
        self.update = Graphed(single(self._update), self.device, eager=eager)
        self.phases: tuple[Phase, ...] = (Phase("collect", self.collect), Phase("update", self.update))

    def start(self) -> None:
        """Reset all lanes before the first iteration of a new run. A resumed run loads `state` instead."""
        self.collector.start()
        self.backend.start()

    def _collect(self) -> None:
        """Roll out T steps of every lane by the current policy, then bootstrap values."""
        self.backend.collect()

    def _update(self) -> None:
        """Learn from the rollout, then copy its last observation to the beginning of the next."""
        self.backend.learn()
        self.collector.carry_on()

    def tensors(self) -> dict[str, Tensor]:
        """Return what a resumed run needs beyond world, optimizer, collector and backend, by the names in a checkpoint.
        By default nothing.
        """
        return {}

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint of a `tier` ("policy", "train" or "all"), by name; a load copies
        into them. With those of "train" a resume is exact.
        """
        named = policy_state(self.policy)
        if tier == "policy":
            return named
        groups = {
            "world": self.world.state(),
            "adam": self.optimizer.tensors(),
            "algo": self.collector.tensors() | self.backend.tensors() | {"iteration": self.cycle.iteration},
        }
        named |= {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        return named | self.tensors()


class Engine(Protocol):
    """Fused kernels that act, store and learn in place of a `ReplayAlgorithm`'s own methods, over the same buffers."""

    def prepare(self) -> None:
        """Prepare an iteration, before its first tick (step of all lanes)."""

    def act(self, t: int) -> None:
        """Choose the actions of tick t (step of all lanes); they are random while `cycle.warming` is 1."""

    def store(self, t: int) -> None:
        """Store the transitions of tick t in the replay, at the latest with the first update after it."""

    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch: update `number` of the iteration, when `ticks` of its ticks are stored."""

    def complete_update(self, ticks: int) -> int:
        """Complete an update that `act` began, after an environment step that failed, so that a checkpoint holds no
        part of an update. Returns the number of completed updates, 0 or 1. `ticks` includes the failed one.
        """


class ReplayAlgorithm:
    """Base class of algorithms that learn from a replay. One iteration is T ticks (steps of all lanes): act, step the
    world, store its transitions, then the updates that are due.

    It touches fixed buffers and never reads back to the host, so on a GPU it is one CUDA graph.

    A subclass declares `Config`, `Stats` and `TERMS`. Its `__init__` calls `super().__init__`, creates networks and
    optimizers, and ends with `self.capture(...)`. It writes `make_actor`, `estimate`, `act`, `update` and `tensors`,
    and where needed `iteration_stats` and `start`.

    Shape letters: T ticks, N lanes, A rows of an action, B samples of a batch.
    """

    Config: ClassVar[type[Section]]
    Stats: ClassVar[Any]
    """NamedTuple of metrics: terms of an update, `iteration_stats`, replay_fill, updates and not_finite."""
    TERMS: ClassVar[tuple[str, ...]]
    """The first fields of `Stats`: means over the updates of an iteration, which `record` adds up."""
    ACTOR_TERMS: ClassVar[tuple[str, ...]] = ()
    """Those of `TERMS` that only updates of the actor have (`algo.actor_delay`)."""
    parts: ClassVar[dict[str, str]] = {
        "world.step": "environment",
        "act": "network",
        "store": "replay",
        "cycle.sampler.sample": "replay",
        "update": "learning",
        "engine.act": "network",
        "engine.store": "replay",
        "engine.update": "learning",
    }
    """Functions by their path from the algorithm, and the name under which a profile shows their time."""
    engine: Engine | None = None
    """The fused kernels in use, if any."""
    kernels = "torch"
    """Name of the kernels in use: "torch", "manual_backward" or "fused"."""
    normalizer: RunningNormalizer | None = None
    """Running mean and variance of observations, set by a subclass that normalizes them."""
    bits_by_ranks = "each rank adds up its own part of a batch"
    accrued_returns: AccruedReturns | None
    """Discounted returns, accrued forward in time, that the reward scale learns from; None: rewards are not scaled."""
    scheduled: dict[str, tuple[Any, Tensor]]

    def __init__(
        self,
        world: World,
        config: Any,
        actor: Actor,
        *,
        seed: int,
        steps: int,
        acting_noise: int,
        update_noise: int = 0,
        stored_action: torch.dtype | None = None,
        exchange: Exchange = SOLO,
    ) -> None:
        """Create the cycle, which owns rollout and replay, and the buffers of the statistics.

        With an exchange of several ranks `world` holds this rank's lanes. `acting_noise` and `update_noise` are the
        rows of uniform numbers that acting takes per lane and an update per sample; `stored_action` is the type of
        `cycle.action` where the replay stores other actions than the environment takes; `steps` is `run.steps`.
        """
        self.world, self.config, self.device, self.exchange, self.actor = world, config, world.device, exchange, actor
        self.steps_per_iteration = config.horizon * world.count * exchange.ranks
        self.chosen = dict[str, str]()
        torch.backends.cuda.matmul.allow_tf32 = config.precision != "fp32"
        self.cycle = Cycle(
            world,
            config.share(exchange.ranks),
            seed=seed,
            steps=steps,
            acting_noise=acting_noise,
            update_noise=update_noise,
            stored=stored_action,
            exchange=exchange,
        )
        self.rollout = self.cycle.rollout
        self.scale_rewards(1.0, active=False)
        self.metrics = metric_specs(self.Stats)
        self.stats = torch.zeros(len(self.Stats._fields), device=self.device)
        self.totals = torch.zeros(len(self.TERMS), device=self.device)  # sums over an iteration's updates
        counts = [config.actor_updates if term in self.ACTOR_TERMS else config.updates for term in self.TERMS]
        self._counts = torch.tensor(counts, dtype=torch.float32, device=self.device)

    def scale_rewards(self, radius: float, *, active: bool) -> None:
        """Create `reward_scale`, whose `factor` an update multiplies rewards with, so that returns fit [-radius,
        radius], the support of a distributional critic. Unless `active` the factor is 1.
        """
        rollout, gamma = self.rollout, self.config.gamma
        self.reward_scale, self.accrued_returns = RewardScale(radius, self.device, active=active), None
        if active:
            self.accrued_returns = AccruedReturns(rollout.reward, rollout.terminated, rollout.truncated, gamma)

    def capture(self, *, eager: bool) -> None:
        """Make the iteration the phase "train", a CUDA graph unless `eager` or the world cannot be captured. Called at
        the end of a subclass's `__init__`.
        """
        if self.engine is not None:
            self.kernels = "fused"
        work = self.cycle.single_threaded(self._train)
        self.train = Graphed(work, self.device, eager=eager or not self.world.capturable)
        self.phases = (Phase("train", self.train),)

    # TO BE WRITTEN

    def act(self, t: int) -> None:
        """Write the actions of tick t (step of all lanes) to `cycle.action[t]`, which is stored, and as the environment
        takes them to `rollout.action[t]`. While `cycle.warming` is 1 they are random.
        """
        raise NotImplementedError

    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch, `cycle.sampler.sample(ticks, number)`; change nothing while `cycle.skip` is 1.

        `ticks` of the iteration are stored; `number` counts the updates of the iteration.
        """
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save other than those of actor, world and replay, by their names in a checkpoint."""
        raise NotImplementedError

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the vectors of learned parameters. Their NaN and infinite values are counted in every iteration."""
        raise NotImplementedError

    def iteration_stats(self) -> tuple[Tensor, ...]:
        """Return the values of the fields of `Stats` between the terms and `replay_fill`, (1) each."""
        return ()

    def prepare(self) -> None:
        """Hook before the first tick of an iteration: set values that change between iterations, such as epsilon."""

    # AN ITERATION

    def start(self) -> None:
        """Reset all lanes before the first iteration of a new run. A resumed run loads `state` instead."""
        if self.accrued_returns is not None:
            self.accrued_returns.carried.zero_()
        self.cycle.start()

    def store(self, t: int) -> None:
        """Store the transitions of tick t in the replay."""
        self.cycle.replay.store(t)

    def complete_update(self, ticks: int) -> int:
        """Return 0, the number of updates completed after a failed environment step: `act` begins none."""
        return 0

    def record(self, **terms: Tensor) -> None:
        """Add the terms of an update, scalars by the names in `TERMS` and in their order, to the iteration's totals;
        nothing while `skip` is 1.
        """
        first = self.TERMS.index(next(iter(terms)))
        assert self.TERMS[first : first + len(terms)] == tuple(terms), f"in the order of TERMS: {tuple(terms)}"
        skip = self.cycle.skip
        self.totals[first : first + len(terms)].add_(torch.where(skip > 0, 0.0, torch.stack([*terms.values()])))

    def _train(self) -> None:
        """Run one iteration, write its statistics, then update the normalizers, which are constant during it."""
        self.totals.zero_()
        self.prepare()
        if self.engine is not None:
            self.engine.prepare()
        self._take_ticks()
        self._write_stats()
        self.update_normalizers()

    def _take_ticks(self) -> None:
        """Take T ticks: act, step the world, store its transitions, then the updates that are due. If the environment
        raises, what was stored and learned so far is counted.
        """
        cycle, learner, stored = self.cycle, self.engine or self, 0
        cycle.begin()
        # Updates that change nothing are left out, except of a graph and of an engine, whose updates may store.
        learning = self.device.type != "cpu" or self.engine is not None or not bool(cycle.skip)

        def after(t: int) -> None:
            nonlocal stored
            learner.store(t)
            cycle.sampler.store(t)
            stored = t + 1
            for number in cycle.config.due(t) if learning else ():
                learner.update(t + 1, number)

        try:
            cycle.collector.collect(learner.act, after)
        except EnvironmentFailedError:
            updates = cycle.config.due(stored).start + learner.complete_update(stored + 1)
            cycle.break_off(stored, updates)
            raise
        cycle.complete()

    @torch.no_grad()
    def _write_stats(self) -> None:
        cycle = self.cycle
        means = self.exchange.gather(self.totals[None]).mean(0) / self._counts
        not_finite = torch.stack([(~torch.isfinite(vector)).sum() for vector in (*self.parameters(), means)]).sum()
        fill = cycle.replay.fill(0) / cycle.replay.capacity
        updates = (self.config.updates * (1.0 - cycle.skip))[None]
        self.stats.copy_(torch.cat([means, *self.iteration_stats(), fill, updates, not_finite[None].float()]))

    @torch.no_grad()
    def update_normalizers(self) -> None:
        """Update the running statistics of observations, and of returns for the reward scale, by those of the
        iteration. Does nothing if neither is used.
        """
        if self.accrued_returns is not None:
            self.reward_scale.update(self.accrued_returns(), self.exchange)
        if self.normalizer is not None:
            observations = self.rollout.observation[1:].transpose(0, 1)  # (O, T, N)
            self.normalizer.update(observations, self.cycle.replay.shards, self.exchange)

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint of a `tier` ("policy", "train" or "all"), by name; a load copies
        into them. With those of "all", which has the replay, a resume is exact.
        """
        named = policy_state(self.actor)
        if tier == "policy":
            return named
        named |= self.tensors() | {f"world/{name}": tensor for name, tensor in self.world.state().items()}
        if self.accrued_returns is not None:
            named |= {"algo/accrued": self.accrued_returns.carried}
            named |= {f"algo/reward_{name}": tensor for name, tensor in self.reward_scale.tensors().items()}
        return named | self.cycle.state(replay=tier == "all")
