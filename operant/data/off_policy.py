"""State of an off-policy iteration, rollout, replay and counters, and its configuration keys.

One iteration is T ticks, steps of all lanes: act, step the world, store, then the updates that are due. The loop over
them is `ReplayAlgorithm`'s (operant/algos/base.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from operant.compute import threads
from operant.data.priorities import Prioritised, Uniform
from operant.data.replay import SOLO, Exchange, Place, Replay, shard_count
from operant.data.rollout import Collector
from operant.settings import Count, Real, Section
from operant.worlds import World

if TYPE_CHECKING:
    from typing import Self


class OffPolicyConfig(Section):
    """Keys of `[algo]` shared by all algorithms with a replay buffer."""

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
        description="where the replay keeps its observations: device memory, or page-locked host memory that a GPU "
        "reads in place, with the same results; "
        "auto: host where they would take more than half of a GPU's free memory",
    )

    replay_sampling: Literal["uniform", "prioritised"] = Field(
        "uniform", description="transitions of a batch: uniform; prioritised: by their last TD error (or cross-entropy)"
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
        description="prioritised: beta, the exponent of the importance-sampling weights, at the start; it goes to 1 "
        "over priority_steps",
    )
    priority_steps: Count | None = Field(
        None,
        ge=1,
        description="prioritised: environment step at which beta is 1; not set: run.steps, as the run began with it",
    )

    def trial(self) -> Self:
        """Return a copy of this configuration for measuring memory on a CPU: torch kernels, a replay in device memory,
        and the fewest updates that allocate everything.
        """
        updates = min(self.updates_per_step, getattr(self, "actor_delay", 1) / self.horizon)
        return self.model_copy(update={"kernels": "torch", "replay_place": "device", "updates_per_step": updates})

    def completed(self, steps: int) -> Self:
        """Return a copy of this configuration in which `priority_steps`, if needed and not set, is the
        run's `steps`.
        """
        return self.model_copy(
            update={"priority_steps": self.priority_steps or steps} if self.replay_sampling == "prioritised" else {}
        )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Return what is wrong with these values for a run with `lanes` lanes, as (key, message)."""
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
                    f"{lanes:,} lanes and n_step = {self.n_step} need {least:,} transitions or more (got "
                    f"{self.replay_capacity:,})",
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
        """Return the number of shards (equal ranges) of the lanes; a batch takes equally many transitions from each."""
        return shard_count(lanes, self.batch_size)

    def unshared(self) -> str | None:
        """Return why several ranks cannot share the lanes, as a sentence about a key, or None if they can."""
        if self.replay_sampling == "prioritised":
            return 'algo.replay_sampling = "prioritised" has priorities of one rank only (use "uniform")'
        return (
            'algo.kernels = "fused" learns on one GPU only (use "auto")'
            if getattr(self, "kernels", None) == "fused"
            else None
        )

    def share(self, ranks: int) -> Self:
        """Return the configuration of one of `ranks` ranks, with its part of the replay and of each batch."""
        counted = {"batch_size": self.batch_size // ranks, "replay_capacity": self.replay_capacity // ranks}
        return (
            self
            if ranks == 1
            else self.model_copy(update=counted | {"learning_starts": -(-self.learning_starts // ranks)})
        )

    @property
    def updates(self) -> int:
        """Number of updates per iteration."""
        return round(self.horizon * self.updates_per_step)

    def due(self, t: int) -> range:
        """Return the numbers, within the iteration, of the updates that follow step t."""
        return range(t * self.updates // self.horizon, (t + 1) * self.updates // self.horizon)


class DelayedActorConfig(OffPolicyConfig):
    """Keys of `[algo]` for an algorithm whose actor may learn less often than its critics."""

    actor_delay: Count = Field(
        1,
        ge=1,
        le=1024,
        description="updates of the critics per update of the actor; targets and an automatic temperature "
        "learn in every update",
    )

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Return what is wrong with these values for a run with `lanes` lanes, as (key, message)."""
        found = super().problems(lanes)
        if not found and self.updates % self.actor_delay:
            found.append(
                (
                    "actor_delay",
                    f"it should divide the {self.updates} updates of an iteration (got {self.actor_delay}; or change "
                    "algo.horizon)",
                )
            )
        return found

    @property
    def actor_updates(self) -> int:
        """Number of updates per iteration in which the actor learns."""
        return self.updates // self.actor_delay

    def actor_learns(self, number: int) -> bool:
        """Whether the actor learns in update `number` of an iteration."""
        return number % self.actor_delay == self.actor_delay - 1


class Cycle:
    """Rollout and replay of a world, and the decisions and counters of an iteration.

    The decisions are made once an iteration and stay on the device: `warming`, act randomly, as too few steps were
    taken, and `skip`, change no parameter, as the replay has too few transitions.
    """

    def __init__(
        self,
        world: World,
        config: OffPolicyConfig,
        *,
        seed: int,
        steps: int,
        acting_noise: int,
        update_noise: int = 0,
        stored: torch.dtype | None = None,
        exchange: Exchange = SOLO,
    ) -> None:
        """Allocate rollout and replay.

        `acting_noise` and `update_noise` are rows of uniform numbers per lane and per sample. `stored` is the type of
        `action` if the replay stores other actions than the environment takes. `steps` is `run.steps`. With an exchange
        of several ranks, `world` and `config` are this rank's part.
        """
        T, device = config.horizon, world.device
        self.config, self.world, self.exchange = config, world, exchange
        self.collector = Collector(world, T, acting_noise)
        self.rollout = self.collector.rollout
        self.action: Tensor = (
            self.rollout.action
            if stored is None
            else torch.zeros(self.rollout.action.shape, dtype=stored, device=device)
        )  # (T, A, N)
        self.replay = Replay(
            world,
            self.rollout,
            capacity=config.replay_capacity,
            batch=config.batch_size,
            n_step=config.n_step,
            gamma=config.gamma,
            seed=seed,
            noise_rows=update_noise,
            action=self.action,
            place=config.replay_place,
            exchange=exchange,
        )
        self.sampler = Uniform(self.replay)
        if config.replay_sampling == "prioritised":
            self.sampler = Prioritised(self.replay, config.priority_exponent)
        else:  # samples do not depend on updates, so they can be gathered early
            self.replay.prefetch([t + 1 for t in range(T) for _ in config.due(t)])
        self._priority_iterations = max(1.0, (config.priority_steps or steps) / (T * world.count))
        self.iteration = torch.zeros(1, dtype=torch.int64, device=device)  # finished iterations
        # 1 while fewer than `learning_starts` steps were taken: actions are random
        self.warming = torch.ones((), device=device)
        self.skip = torch.ones(
            (), device=device
        )  # 1 while the replay holds too few transitions: updates change nothing

    def single_threaded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return `work`, on a CPU with small batches restricted to one thread.

        Torch's threads would synchronise in each of many small products, which takes longer than the products.
        """
        return threads.alone()(work) if self.world.device.type == "cpu" and self.config.batch_size <= 1024 else work

    def start(self) -> None:
        """Reset all lanes and start new episodes. Transitions in the replay stay."""
        self.replay.cut(self.rollout.observation[0])
        self.collector.start()

    def begin(self) -> None:
        """Begin an iteration: decide whether actions are random and whether updates change anything, and set the
        exponent of importance-sampling weights.
        """
        config, replay = self.config, self.replay
        if isinstance(self.sampler, Prioritised):
            # beta goes linearly from `priority_weight` to 1
            share = (self.iteration[0] / self._priority_iterations).clamp_max(1.0)
            self.sampler.importance.copy_(config.priority_weight + (1.0 - config.priority_weight) * share)
        taken, held = self.iteration * (config.horizon * self.world.count), replay.fill(0)
        self.warming.copy_((taken < config.learning_starts)[0])
        self.skip.copy_(((held < config.learning_starts) | (replay.ring.ticks <= config.n_step))[0])

    def complete(self) -> None:
        """Complete an iteration: count its ticks and updates, and begin the next rollout with its last observation."""
        self.collector.carry_on()
        self.replay.advance(self.config.horizon, self.config.updates)
        self.iteration.add_(1)

    def break_off(self, stored: int, updates: int) -> None:
        """Count the ticks and updates of an iteration that the environment broke off, so that a checkpoint can be
        saved. `stored` ticks are in the replay.
        """
        self.replay.advance(stored, updates)
        self.rollout.observation[0].copy_(self.rollout.observation[stored])

    def state(self, *, replay: bool) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name; with `replay` also the contents of the replay."""
        named = {"iteration": self.iteration, "updates": self.replay.ring.updates, **self.collector.tensors()}
        stored = {**self.replay.tensors(), **self.sampler.tensors()} if replay else {}
        held = {f"replay/{name}": tensor for name, tensor in stored.items()}
        return {f"algo/{name}": tensor for name, tensor in named.items()} | held
