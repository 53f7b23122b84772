"""The cycle of off-policy algorithms: ticks of [act, step, store] with the updates that are due after each; and its configuration. Knows no network or loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from operant.compute import threads
from operant.data.priorities import Aged, Prioritised, Sampler, Uniform
from operant.data.replay import SOLO, Exchange, Place, Replay, shard_count
from operant.data.rollout import Collector
from operant.errors import EnvironmentFailedError
from operant.settings import Count, Real, Section
from operant.worlds import World

if TYPE_CHECKING:
    from typing import Self


class OffPolicyConfig(Section):
    """The keys of `[algo]` that every algorithm with a replay has."""

    horizon: Count = Field(
        32, ge=1, le=65536, description="steps of each lane per iteration, T: what one record of the metrics is about"
    )
    updates_per_step: Real = Field(
        1.0,
        gt=0,
        le=1024,
        description="optimizer steps per step of all lanes: 0.25 is one in 4 steps, 4 are four after each",
    )
    batch_size: Count = Field(256, ge=1, le=2**19, description="transitions per update")
    gamma: Real = Field(0.99, ge=0, le=1, description="discount factor")
    n_step: Count = Field(1, ge=1, le=256, description="steps of reward before the bootstrap value")
    learning_starts: Count = Field(
        1000, ge=0, lt=2**62, description="environment steps before the first update; rounded up to whole iterations"
    )
    replay_capacity: Count = Field(
        1_000_000, ge=1, lt=2**31, description="transitions in the replay; rounded down to whole steps of all lanes"
    )
    replay_place: Place = Field(
        "auto",
        description="where the replay keeps its observations: device memory, or page-locked host memory that a GPU reads in place, with the same results; "
        "auto: host where they would take more than half of a GPU's free memory",
    )

    replay_sampling: Literal["uniform", "prioritised", "age"] = Field(
        "uniform",
        description="transitions of a batch: uniform; prioritised: by their last TD error (or cross-entropy); age: newer ones more often",
    )
    priority_exponent: Real = Field(
        0.6,
        ge=0,
        le=1,
        description="prioritised: alpha, the exponent of priorities; 0: uniform; 1: in proportion to the error",
    )
    priority_weight: Real = Field(
        0.4,
        ge=0,
        le=1,
        description="prioritised: beta, the exponent of the importance-sampling weights, at the start; it goes to 1 over priority_steps",
    )
    priority_steps: Count | None = Field(
        None,
        ge=1,
        description="prioritised: environment step at which beta is 1; not set: run.steps, as the run began with it",
    )
    age_power: Annotated[Count, Field(ge=1, le=16)] = Field(
        2, description="age: a sample is u^power as old as the oldest transition, u uniform; 1: all alike"
    )

    def trial(self) -> Self:
        """The same where memory is measured on a CPU: by torch, with a replay that counts as the device's, and with no more updates than differ."""
        updates = min(self.updates_per_step, getattr(self, "actor_delay", 1) / self.horizon)
        return self.model_copy(update={"kernels": "torch", "replay_place": "device", "updates_per_step": updates})

    def completed(self, steps: int) -> Self:
        """With the end of its schedule, where that follows from the run's steps."""
        return self.model_copy(
            update={"priority_steps": self.priority_steps or steps} if self.replay_sampling == "prioritised" else {}
        )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Values that do not fit together, as (key, message)."""
        found = []
        updates = self.horizon * self.updates_per_step
        if abs(updates - round(updates)) > 1e-6 or updates < 0.5:
            product = f"algo.horizon ({self.horizon}) x {self.updates_per_step:g} = {updates:g} updates an iteration"
            found.append(
                ("updates_per_step", f"{product}: it should be a whole number, 1 or more (change one of the two)")
            )
        held = self.replay_capacity // lanes * lanes
        if held < (self.n_step + 1) * lanes:
            least = (self.n_step + 1) * lanes
            found.append(
                (
                    "replay_capacity",
                    f"{lanes:,} lanes and n_step = {self.n_step} need {least:,} transitions or more (got {self.replay_capacity:,})",
                )
            )
        elif held < self.learning_starts:
            found.append(
                (
                    "learning_starts",
                    f"the replay holds {held:,} at most: raise algo.replay_capacity (got {self.learning_starts:,})",
                )
            )
        return found

    def shards(self, lanes: int) -> int:
        """Shards of so many lanes, from which each batch takes as many transitions."""
        return shard_count(lanes, self.batch_size)

    def unshared(self) -> str | None:
        """Why several ranks cannot share the lanes, as a sentence about a key; None where they can."""
        if self.replay_sampling == "prioritised":
            return 'algo.replay_sampling = "prioritised" has priorities of one rank only (use "uniform" or "age")'
        return (
            'algo.kernels = "fused" learns on one GPU only (use "auto")'
            if getattr(self, "kernels", None) == "fused"
            else None
        )

    def share(self, ranks: int) -> Self:
        """What one of so many ranks does of it: its own part of the replay and of each batch."""
        counted = {"batch_size": self.batch_size // ranks, "replay_capacity": self.replay_capacity // ranks}
        return (
            self
            if ranks == 1
            else self.model_copy(update=counted | {"learning_starts": -(-self.learning_starts // ranks)})
        )

    @property
    def updates(self) -> int:
        """Updates of an iteration."""
        return round(self.horizon * self.updates_per_step)

    def due(self, t: int) -> range:
        """Numbers of the updates that follow tick t of an iteration."""
        return range(t * self.updates // self.horizon, (t + 1) * self.updates // self.horizon)


class DelayedActorConfig(OffPolicyConfig):
    """The same of an algorithm whose actor may learn less often than its critics."""

    actor_delay: Count = Field(
        1,
        ge=1,
        le=1024,
        description="the actor learns in every so many updates; critics, targets and an automatic temperature learn in each",
    )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Values that do not fit together, as (key, message)."""
        found = super().problems(lanes)
        if not found and self.updates % self.actor_delay:
            found.append(
                (
                    "actor_delay",
                    f"it should divide the {self.updates} updates of an iteration (got {self.actor_delay}; or change algo.horizon)",
                )
            )
        return found

    @property
    def actor_updates(self) -> int:
        """Updates of an iteration that the actor has a part in."""
        return self.updates // self.actor_delay

    def actor_learns(self, number: int) -> bool:
        """Whether update `number` of an iteration is one of those."""
        return number % self.actor_delay == self.actor_delay - 1


class Cycle:
    """A world's collector and replay, and what an iteration of both is. Its decisions (`warming`, `skip`) lie on the device, once an iteration."""

    def __init__(
        self, world: World, config: OffPolicyConfig, *, seed: int, steps: int, acting_noise: int, update_noise: int = 0, stored: torch.dtype | None = None,
        exchange: Exchange = SOLO,
    ) -> None:  # fmt: skip
        """Rows of noise for acting and for each update; `stored` is the type of `action`, if the replay stores other actions than the environment takes.

        `steps` are those of the run. With an exchange, `world` and `config` are one rank's part.
        """
        T, where = config.horizon, world.device
        self.config, self.world, self.exchange = config, world, exchange
        self.collector = Collector(world, T, acting_noise)
        self.rollout = self.collector.rollout
        self.action: Tensor = (
            self.rollout.action
            if stored is None
            else torch.zeros(self.rollout.action.shape, dtype=stored, device=where)
        )  # (T, A, N)
        self.replay = Replay(
            world, self.rollout, capacity=config.replay_capacity, batch=config.batch_size, n_step=config.n_step, gamma=config.gamma, seed=seed,
            noise_rows=update_noise, action=self.action, place=config.replay_place, exchange=exchange,
        )  # fmt: skip
        self.sampler = _sampler(self.replay, config)
        if type(self.sampler) is Uniform:  # what it draws depends on no update
            self.replay.ahead([t + 1 for t in range(T) for _ in config.due(t)])
        self._priority_iterations = max(1.0, (config.priority_steps or steps) / (T * world.count))
        self.iteration = torch.zeros(1, dtype=torch.int64, device=where)  # how many are done
        self.warming = torch.ones(
            (), device=where
        )  # 1 while fewer than `learning_starts` steps are taken: actions are random
        self.skip = torch.ones((), device=where)  # 1 while the replay holds too few transitions: updates change nothing

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """On a CPU `work` on one thread, where batches are small: torch's threads would meet in each of many small products."""
        return threads.alone()(work) if self.world.device.type == "cpu" and self.config.batch_size <= 1024 else work

    def start(self) -> None:
        """Begin every lane anew. A replay that holds something keeps it."""
        self.replay.cut(self.rollout.observation[0])
        self.collector.start()

    def run(self, backend: Backend) -> None:
        """One iteration of a backend's work, but for its beginning and its statistics."""
        config, replay = self.config, self.replay
        if isinstance(self.sampler, Prioritised):
            share = (self.iteration[0] / self._priority_iterations).clamp_max(1.0)
            self.sampler.importance.copy_(config.priority_weight + (1.0 - config.priority_weight) * share)
        taken, held = self.iteration * (config.horizon * self.world.count), replay.fill(0)
        self.warming.copy_((taken < config.learning_starts)[0])
        self.skip.copy_(((held < config.learning_starts) | (replay.ring.ticks <= config.n_step))[0])

        stored = 0

        def after(t: int) -> None:
            nonlocal stored
            backend.store(t)
            self.sampler.store(t)
            stored = t + 1
            for number in config.due(t):
                backend.update(t + 1, number)

        try:
            self.collector.collect(backend.act, after)
        except EnvironmentFailedError:  # what is stored counts: it may be saved, and a run resumed from it
            replay.advance(stored, config.due(stored).start)
            self.rollout.observation[0].copy_(self.rollout.observation[stored])
            raise
        self.collector.carry_on()
        replay.advance(config.horizon, config.updates)
        self.iteration.add_(1)

    def state(self, *, replay: bool) -> dict[str, Tensor]:
        """What a checkpoint must hold, by the names it has there: with the replay, or without."""
        named = {"iteration": self.iteration, "updates": self.replay.ring.updates, **self.collector.tensors()}
        stored = {**self.replay.tensors(), **self.sampler.tensors()} if replay else {}
        held = {f"replay/{name}": tensor for name, tensor in stored.items()}
        return {f"algo/{name}": tensor for name, tensor in named.items()} | held


def _sampler(replay: Replay, config: OffPolicyConfig) -> Sampler:
    if config.replay_sampling == "prioritised":
        return Prioritised(replay, config.priority_exponent)
    return Aged(replay, config.age_power) if config.replay_sampling == "age" else Uniform(replay)


class Backend(Protocol):
    """One way to do an algorithm's work within a cycle: acting, and updates."""

    name: str
    chosen: dict[str, str]  # what was left to it by the configuration

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """A phase, with the threads that this backend wants torch to use."""

    def prepare(self) -> None:
        """Begin an iteration."""

    def act(self, t: int) -> None:
        """Actions of tick t into the cycle's `action`, and as the environment takes them into the rollout."""

    def store(self, t: int) -> None:
        """Store tick t in the replay, at the latest with the first update after it."""

    def update(self, ticks: int, number: int) -> None:
        """Sample a batch and take one step of all that is due to learn; none where `skip` is 1."""

    def finish(self) -> None:
        """Write the iteration's `stats`."""


class Learner(Protocol):
    """Fused kernels that act, store and learn."""

    def prepare(self) -> None:
        """Begin an iteration."""

    def act(self, t: int) -> None:
        """Actions of tick t, or random ones while `warming` is 1."""

    def store(self, t: int) -> None:
        """Store tick t in the replay, at the latest with the first update after it."""

    def update(self, ticks: int, number: int) -> None:
        """Sample, and learn."""


class Fused:
    """A `Backend` that does the work by a learner, and what that leaves undone by the torch backend to whose totals it adds."""

    name = "fused"

    def __init__(self, reference: Backend, learner: Learner) -> None:
        self.reference, self.learner = reference, learner
        self.chosen = dict[str, str]()
        self.alone, self.finish = reference.alone, reference.finish

    def prepare(self) -> None:
        """Begin an iteration."""
        self.reference.prepare()
        self.learner.prepare()

    def act(self, t: int) -> None:
        """Actions of tick t, or random ones while `warming` is 1."""
        self.learner.act(t)

    def store(self, t: int) -> None:
        """Store tick t in the replay, at the latest with the first update after it."""
        self.learner.store(t)

    def update(self, ticks: int, number: int) -> None:
        """Sample, and learn."""
        self.learner.update(ticks, number)
