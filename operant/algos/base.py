"""What every algorithm offers: the protocol that the training loop, evaluation, play and the tools are written against. Knows no algorithm.

An algorithm is one file, or a package where it owns kernels: in `operant/algos/`, where it ends in `ALGO = ItsClass`, or a user's own, as
`algo.name = "a2c.py:A2C"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from operant.envs import Env
from operant.nn import Actor
from operant.runs.metrics import MetricSpec as MetricSpec
from operant.runs.metrics import Threshold as Threshold  # both for algorithms, too
from operant.settings import Section
from operant.worlds import Slot, World

Tier = Literal["policy", "train", "all"]
"""What a checkpoint holds: "policy", what an actor needs; "train", what a resumed run needs but a replay; "all", with the replay."""


class Phase(NamedTuple):
    """A part of an iteration. An iteration runs all phases in their order; each uses fixed buffers and reads nothing back to the host."""

    name: str  # of its column seconds/NAME in the metrics file
    run: Callable[[], None]


class Estimate(NamedTuple):
    """What an iteration takes: for `env.lanes = "auto"` and the roofline of a profile."""

    steps: int  # environment steps
    flops: float  # of the products of the networks, at least
    bytes: float  # that must move to and from memory, at least
    trial: Section  # the configuration whose memory is measured on a small copy on the CPU: it takes as much per lane, and no more time than it must


class AlgorithmConfig(Protocol):
    """The keys of `[algo]` but `name`, with their defaults: a `settings.Section` with one more function."""

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """What does not fit together with so many lanes, as (key, sentence)."""


class Algorithm(Protocol):
    """A learner on a world, made as `Class(world, config, net, seed=, steps=, eager=)`. Its phases in order are one iteration."""

    Config: ClassVar[type[Section]]
    parts: ClassVar[dict[str, str]]
    """What a profile calls the time of which function, by the function's path from the algorithm; may be left out."""
    sequences: ClassVar[bool]
    """Whether it trains policies with a memory (`net.memory`); may be left out, where it does not. Its `problems` then take `memory`, whether there is one."""

    world: World
    device: torch.device
    config: Any
    phases: tuple[Phase, ...]
    actor: Actor
    rollout: Slot  # the steps of the last iteration
    metrics: tuple[MetricSpec, ...]
    stats: Tensor  # (M + 1) float32: a mean over the iteration for each of the M metrics, then how many numbers are NaN or infinite
    steps_per_iteration: int
    scheduled: dict[
        str, tuple[Any, Tensor]
    ]  # set by the builder: keys that change, their schedule, and the scalar that stands for them in `config`
    chosen: dict[
        str, Any
    ]  # values for keys of its configuration that were left open, which a resumed run must be given again; JSON

    @classmethod
    def make_actor(cls, spec: Env, config: Any, net: Any, device: torch.device, *, seed: int = 0) -> Actor:
        """The actor alone, without what training needs."""

    @classmethod
    def estimate(cls, spec: Env, config: Any, net: Any, lanes: int) -> Estimate:
        """What an iteration of so many lanes takes."""

    def start(self) -> None:
        """Begin every lane anew. A resumed run copies into `state` instead."""

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """The tensors of a tier by name: copy into these to load. Those of "policy" are `policy/` and the actor's own names.

        Schedules are counted in environment steps, which are `algo/iteration` (1) int64 times `steps_per_iteration`: a resume with another horizon sets it so.
        """


def policy_state(actor: Actor) -> dict[str, Tensor]:
    """The tier "policy" of every algorithm."""
    return {f"policy/{name}": tensor for name, tensor in actor.tensors().items()}


def replay_metrics(updates: str) -> tuple[MetricSpec, MetricSpec]:
    """Of every algorithm with a replay: how full that is, and optimizer steps a second, `updates` saying of what."""
    emptiness = "most of the replay stays empty: a smaller algo.replay_capacity would take less memory"
    return (
        MetricSpec(
            "replay_fill", "replay fill", figure="replay fill", order=120, thresholds=(Threshold("warn", below=0.02, after=0.5, advice=emptiness),),
            explanation="The share of the replay's capacity that is filled: the oldest go once it is 1. What it takes is among the facts about the run.",
        ),
        MetricSpec(
            "updates_per_second", "updates/s", "1/s", higher_better=True, figure="updates/s", order=25, kind="rate",
            explanation=f"Optimizer steps a second{updates}; 0 until algo.learning_starts environment steps are taken.",
        ),
    )  # fmt: skip
