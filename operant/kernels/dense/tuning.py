"""Autotuning of tile configs: measured once per GPU before a run, and cached on disk.

A measurement writes copies of all buffers, so that it does not affect the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch

from operant import __version__
from operant.compute.code_store import CodeStore, UntrustedError, folder
from operant.compute.graphs import Graphed
from operant.kernels.dense.learner import Learner, Spec, Task
from operant.kernels.tile_config import TileConfig, from_text

MARGIN = 0.03
"""Relative saving from which a later tile config replaces an earlier one; above the measurements' noise."""

REGIONS, REGION_S, MOST_REPLAYS = 3, 1e-3, 20
"""A measurement is the median of REGIONS regions of about REGION_S seconds, with at most MOST_REPLAYS graph replays."""

_LIMIT_BYTES = 1 << 20

log = logging.getLogger("operant.kernels")

Seconds = Callable[[Learner[Any, Any]], float]
"""Function that measures the seconds of a learner's iteration."""


# MEASURE


def seconds(learner: Learner[Any, Any]) -> float:
    """Measure, in seconds on a GPU, a learner's acting and gradients of an iteration; the other launches do not depend
    on the tile config.

    `learner`: one switched to copies by `Learner.spare`.
    """
    buffers = learner.buffers
    updates, acts = buffers.order.shape[0] * learner.layout.minibatches, len(buffers.rollout.reward)
    # One graph holds acting and updates in the ratio of an iteration.
    updates_at_once, acts_at_once = max(1, round(updates / acts)), max(1, round(acts / updates))

    def work() -> None:
        for _ in range(acts_at_once):
            learner.act(0)
        for _ in range(updates_at_once):
            learner.backward(0)
            learner.reduce()

    learner.prepare()
    learner.begin()
    graph = Graphed(work, learner.policy.device)
    graph()
    graph()
    replays = max(1, min(MOST_REPLAYS, int(REGION_S / max(_region_s(graph, 1), 1e-9))))
    seconds_a_replay: float = statistics.median(_region_s(graph, replays) for _ in range(REGIONS)) / replays
    iteration_s: float = seconds_a_replay * (updates / updates_at_once)
    return iteration_s


def _region_s(graph: Graphed, replays: int) -> float:
    """Measure, in seconds, `replays` replays of a CUDA graph."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(replays):
        graph()
    end.record()
    end.synchronize()  # sync: before a run begins, and only if nothing is cached
    elapsed_ms: float = begin.elapsed_time(end)
    return elapsed_ms / 1e3


def copies(task: Task[Any, Any]) -> Any:
    """Return buffers for a measurement: copies of those that kernels write, and a shuffled order of blocks."""
    buffers = task.buffers
    shuffled = (
        torch.randperm(buffers.order.numel(), generator=torch.Generator().manual_seed(1)).view_as(buffers.order)
        % buffers.order.shape[1]
    )
    return buffers._replace(
        rollout=buffers.rollout._replace(action=buffers.rollout.action.clone()),
        order=shuffled.to(buffers.order),
        **{name: getattr(buffers, name).clone() for name in task.written},
    )


def fastest(
    learners: Iterable[Learner[Any, Any]], cost: Callable[[Learner[Any, Any]], float]
) -> tuple[TileConfig | None, dict[TileConfig, float]]:
    """Return the tile config of the learner with the lowest `cost` (s), and all costs; None if none could be measured.
    A later one wins only if it is faster by at least 3 % (`MARGIN`).
    """
    best: TileConfig | None = None
    costs: dict[TileConfig, float] = {}
    for learner in learners:
        try:
            costs[learner.config] = cost(learner)
        except _resource_errors() as error:
            log.debug("%s: %s", learner.config, error)
            continue
        if best is None or costs[learner.config] < (1.0 - MARGIN) * costs[best]:
            best = learner.config
    return best, costs


def _resource_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors of a launch that needs more registers or memory than a multiprocessor has."""
    from triton.runtime.errors import OutOfResources

    return (OutOfResources,)


# CACHE


class TuningCache:
    """Disk cache of the fastest tile configs by GPU, Triton version, spec and sizes: one small file each, in the user's
    cache folder. Does nothing if there is no such folder.
    """

    def __init__(self, gpu: str, spec: Spec, task: Task[Any, Any]) -> None:
        import triton

        key = __version__, triton.__version__, gpu, task.name, spec, len(task.buffers.order), task.layout, task.chunks
        self._key = hashlib.sha256(repr(key).encode()).hexdigest()
        kernels = folder()
        self._store = (
            CodeStore(kernels.with_name("tile_configs"), limit_bytes=_LIMIT_BYTES) if kernels is not None else None
        )

    def recall(self) -> TileConfig | None:
        """Return the tile config cached for this GPU, spec and task, or None."""
        if self._store is not None:
            with contextlib.suppress(
                OSError, UntrustedError, ValueError
            ):  # ValueError: text of another version, or no text
                line = self._store.read(self._key)
                return from_text(line.decode()) if line is not None else None
        return None

    def save(self, config: TileConfig) -> None:
        """Cache a tile config; on a full or read-only disk the next start measures again."""
        if self._store is not None:
            with contextlib.suppress(OSError, UntrustedError):
                self._store.write(self._key, str(config).encode())
