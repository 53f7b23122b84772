"""Which tile config of fused kernels is the fastest on this GPU: measured once, before a run begins, and remembered on
disk for the next.

A measurement works on copies of all that it would write, so that a run begins as if there had been none. Knows learners
by what they do, not by how.
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
from operant.kernels.tiles import TileConfig, from_text

MARGIN = 0.03
"""A tile config is taken instead of an earlier one only where it saves so much: measurements differ by less from one
start to the next.
"""

REGIONS, REGION_S, MOST_REPLAYS = 3, 1e-3, 20
"""Medians of so many regions, each of about so many seconds of replays."""

_LIMIT_BYTES = 1 << 20

log = logging.getLogger("operant.kernels")

Seconds = Callable[[Learner], float]
"""Of an iteration by a learner."""


# MEASURE


def seconds(learner: Learner) -> float:
    """Seconds that an iteration takes on a GPU, of what differs between tile configs: acting, and gradients. Of a
    learner made to `spare` its buffers.
    """
    buffers = learner.buffers
    updates, acts = buffers.order.shape[0] * learner.layout.minibatches, len(buffers.rollout.reward)
    # both together in the proportion that they have
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
    return statistics.median(_region_s(graph, replays) for _ in range(REGIONS)) / replays * (updates / updates_at_once)


def _region_s(graph: Graphed, replays: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(replays):
        graph()
    end.record()
    end.synchronize()  # sync: before a run begins, and only where nothing is remembered
    return begin.elapsed_time(end) / 1e3


def copies(task: Task) -> Any:
    """Buffers to measure with: what is written is a copy, what is only read is shared, and the order is a shuffled one,
    as it is later.
    """
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
    learners: Iterable[Learner], cost: Callable[[Learner], float]
) -> tuple[TileConfig | None, dict[TileConfig, float]]:
    """The tile config to take, an earlier one unless a later one costs clearly less, and what each has cost; None where
    none could be measured.
    """
    found: TileConfig | None = None
    costs: dict[TileConfig, float] = {}
    for learner in learners:
        try:
            costs[learner.config] = cost(learner)
        except _resource_errors() as error:
            log.debug("%s: %s", learner.config, error)
            continue
        if found is None or costs[learner.config] < (1.0 - MARGIN) * costs[found]:
            found = learner.config
    return found, costs


def _resource_errors() -> tuple[type[Exception], ...]:
    """What a launch raises that asks for more registers or memory than a multiprocessor has."""
    from triton.runtime.errors import OutOfResources

    return (OutOfResources,)


# REMEMBER


class Memory:
    """What was the fastest, by GPU, Triton, spec and sizes, in the user's cache: one small file each. Without a place
    to keep it, it forgets.
    """

    def __init__(self, gpu: str, spec: Spec, task: Task) -> None:
        import triton

        asked = __version__, triton.__version__, gpu, task.name, spec, len(task.buffers.order), task.layout, task.chunks
        self._key = hashlib.sha256(repr(asked).encode()).hexdigest()
        kernels = folder()
        self._store = (
            CodeStore(kernels.with_name("tile_configs"), limit_bytes=_LIMIT_BYTES) if kernels is not None else None
        )

    def recall(self) -> TileConfig | None:
        """The tile config, where one is remembered."""
        if self._store is not None:
            with contextlib.suppress(
                OSError, UntrustedError, ValueError
            ):  # ValueError: of another version's, or no text
                line = self._store.read(self._key)
                return from_text(line.decode()) if line is not None else None
        return None

    def keep(self, config: TileConfig) -> None:
        """Remember a tile config; a disk that is full or read-only costs the measurement at the next start."""
        if self._store is not None:
            with contextlib.suppress(OSError, UntrustedError):
                self._store.write(self._key, str(config).encode())
