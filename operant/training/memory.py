"""How much device memory a configuration will take, measured on a small CPU copy of it and extrapolated. Knows no algorithm's parts.

By autograd over whole minibatches every buffer and every activation grows linearly with the number of lanes, so an update at two small numbers of lanes
tells what it takes at any. What works in parts (fused kernels, the manual backward pass, `algo.microbatch`) takes less in an update: then it is a bound.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from operant.config.load import Config
from operant.training import build as building

_SMALL_LANES = 32
_SMALL_LANES_OF_PICTURES = 4  # whose networks take a CPU seconds
CONTEXT_BYTES = 600 << 20
"""About what CUDA's context, libraries and kernels take before the first tensor."""


class Footprint(NamedTuple):
    """Bytes that stay for the whole run, and the most that an update needs on top of them."""

    fixed_bytes: int
    update_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.fixed_bytes + self.update_bytes


class _Storages(TorchDispatchMode):
    """Counts the bytes of living storages that are made while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.living_bytes, self.most_bytes = 0, 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.living_bytes += size
        self.most_bytes = max(self.most_bytes, self.living_bytes)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.living_bytes -= size


def estimate(config: Config) -> Footprint:
    """What a run of this configuration takes on its device, evaluation and CUDA's own context aside. Compiles kernels, so it takes seconds."""
    first = _SMALL_LANES_OF_PICTURES if config.environment.pixels else _SMALL_LANES
    small = next((lanes for lanes in (first << k for k in range(10)) if not config.algo.problems(lanes)), config.lanes)
    if 2 * small >= config.lanes:
        return _measure(config, config.lanes)
    one, two = _measure(config, small), _measure(config, 2 * small)
    factor = config.lanes / small
    fixed, update = (round(a + (factor - 1) * (b - a)) for a, b in zip(one, two, strict=True))
    return Footprint(fixed, update)


def _measure(config: Config, lanes: int) -> Footprint:
    with _Storages() as storages:
        small = building.with_lanes(config, lanes)
        algo = building.build(replace(small, algo=building.estimate(small).trial), "cpu")
        algo.start()
        fixed_bytes = storages.living_bytes
        storages.most_bytes = fixed_bytes
        for phase in algo.phases:
            phase.run()
        return Footprint(fixed_bytes, storages.most_bytes - fixed_bytes)
