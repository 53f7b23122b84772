"""Selection of a tile config: the run's saved one, the one cached for this GPU, or the fastest that fits the GPU.

`operant.kernels.tile_config` lists candidates, `tuning` measures and caches them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Generic

import torch

from operant.kernels.dense.learner import Learner, ResidentLearner, Spec
from operant.kernels.dense.per_layer import PerLayerLearner
from operant.kernels.dense.task import B, C, Task
from operant.kernels.dense.tuning import Seconds, TuningCache, copies, fastest, seconds
from operant.kernels.tile_config import Resident, TileConfig, Workload, candidates, suits

FEW_MULTIPROCESSORS = 2
"""Number of multiprocessors assumed on a CPU, where kernels are interpreted."""

log = logging.getLogger("operant.kernels")


def make_learner(spec: Spec, task: Task[B, C], config: TileConfig) -> Learner[B, C]:
    """Return a learner of the engine to which a tile config belongs, for a spec and a task."""
    return ResidentLearner(spec, task, config) if isinstance(config, Resident) else PerLayerLearner(spec, task, config)


def with_config(
    learner: Learner[B, C], config: TileConfig, *, spec: Spec | None = None, buffers: B | None = None
) -> Learner[B, C]:
    """Return a learner of the same task in another tile config; `spec` and `buffers` replace the learner's own if
    given.
    """
    return make_learner(spec or learner.spec, learner.task.replace(buffers=buffers or learner.buffers), config)


@dataclass
class Selection(Generic[B, C]):
    """Search for a tile config for a spec and a task. If none is found, `problem` is the reason, a sentence."""

    spec: Spec
    task: Task[B, C]
    problem: str = ""

    def __post_init__(self) -> None:
        self.problem = f"a network this wide takes more shared memory in {self.spec.precision} than this GPU has"
        device = self.task.policy.device
        self._on_gpu = device.type == "cuda"
        self._gpu = torch.cuda.get_device_name(device) if self._on_gpu else "CPU"
        self._multiprocessors = (
            torch.cuda.get_device_properties(device).multi_processor_count if self._on_gpu else FEW_MULTIPROCESSORS
        )

    def learner(self, given: TileConfig | None, measure: Seconds | None) -> Learner[B, C] | None:
        """Return a learner in the tile config `given` if the GPU can run it, otherwise in the fastest by `measure`;
        None if none fits.

        Only a GPU is timed, unless `measure` is given.
        """
        if given is not None:
            if self._suits(given) and (learner := self._fitting(given)) is not None:
                return self._selected(learner, "as this run began")
            log.warning(
                "kernels: %s does not suit this network or this GPU; another tile config is used, and results "
                "differ in bits",
                given,
            )
        measure = measure or (seconds if self._on_gpu else None)
        if measure is None:
            return self.first()
        cache = TuningCache(self._gpu, self.spec, self.task)
        recalled = cache.recall()
        if recalled is not None and self._suits(recalled) and (learner := self._fitting(recalled)) is not None:
            return self._selected(learner, "the fastest as measured at an earlier start")
        try:
            return self._fastest(measure, cache)
        except torch.OutOfMemoryError:  # of the buffers' copies
            return self.first()

    def first(self) -> Learner[B, C] | None:
        """Return a learner in the first candidate tile config that fits, without measuring; None if none does."""
        for config in (config for group in self._candidates() for config in group):
            if (learner := self._fitting(config)) is not None:
                return self._selected(learner, "the first that fits")
        return None

    def _suits(self, config: TileConfig) -> bool:
        """Whether the task may run in a tile config: its engine supports the network, and its chunks are allowed."""
        return (
            suits(config, self.spec)
            and config.chunks % self.task.layout.shards == 0
            and config.chunks == (self.task.chunks or config.chunks)
        )

    def _candidates(self) -> list[list[TileConfig]]:
        """Return the groups of candidate tile configs for the task, best guess first."""
        return list(
            candidates(
                self.spec,
                Workload(self.task.layout.samples, self._multiprocessors, self.task.layout.shards, self.task.chunks),
            )
        )

    def _fastest(self, measure: Seconds, cache: TuningCache) -> Learner[B, C] | None:
        """Measure the first group of tile configs of which any fits; cache the fastest and return a learner in it, or
        None.
        """
        spare = self.task.alone().replace(buffers=copies(self.task))  # the other ranks do not measure
        for group in self._candidates():
            fitting = (learner.spare() for config in group if (learner := self._fitting(config, spare)) is not None)
            config, costs = fastest(fitting, measure)
            if config is not None:
                cache.save(config)
                measured = ", ".join(f"{cost * 1e3:.2f}" for cost in costs.values())
                learner = make_learner(self.spec, self.task, config)
                return self._selected(learner, f"the fastest of {len(costs)}: ms an iteration {measured}")
        return None

    def _fitting(self, config: TileConfig, spare: Task[B, C] | None = None) -> Learner[B, C] | None:
        """Return a learner in a tile config, or None if the GPU cannot run it. `spare`: a task to use instead of this
        one, with copies of its buffers.
        """
        learner = make_learner(self.spec, spare or self.task, config)
        reason = learner.unsupported_reason(self.spec.precision) if self._on_gpu else None
        self.problem = reason or self.problem
        return learner if reason is None else None

    def _selected(self, learner: Learner[B, C], how: str) -> Learner[B, C]:
        """Log a learner's tile config and `how` it was chosen; return the learner."""
        log.info("kernels: fused, %s (%s)", learner.config, how)
        return learner
