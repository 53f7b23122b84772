"""How much device memory a configuration will take, measured on a small CPU copy of it and extrapolated, and whether
there is so much.

Knows no algorithm's parts.

By autograd over whole minibatches every buffer and every activation grows linearly with the number of lanes, so an
update at two small numbers of lanes tells what it takes at any. What works in parts (fused kernels, the manual backward
pass, `algo.microbatch`) takes less in an update: then it is a bound.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, NamedTuple

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from operant.config.load import Config
from operant.errors import MachineError
from operant.text import count, size
from operant.training import build as building
from operant.training.state import replay_tensors

_SMALL_LANES = 32
_SMALL_LANES_OF_PICTURES = 4  # whose networks take a CPU seconds
CONTEXT_BYTES = 600 << 20
"""About what CUDA's context, libraries and kernels take before the first tensor."""


_MOST_KEPT = 8
"""What a run keeps, as a multiple of what moves in an iteration: 0.2 with pictures to 7 with a horizon of 1."""

_KEPT_SHARE = 2 / 3
"""Of a CPU's free memory: the manual backward pass takes half as much again as what is kept, or more."""


class Footprint(NamedTuple):
    """Bytes that stay for the whole run, and the most that an update needs on top of them."""

    fixed_bytes: int
    update_bytes: int
    replay_bytes: int = 0  # of the first, what can be collected anew

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


def require_room(config: Config, device: torch.device, ranks: int = 1) -> None:
    """Raise MachineError where what a run keeps to its end does not fit into the memory that is free. Costs nothing
    where it is certain to fit.

    So many ranks share the lanes: each GPU holds its part.

    A GPU refuses what it lacks at once, so there only what moves in an iteration is looked at first. A CPU promises
    memory that it does not have.
    """
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] * ranks if on_gpu else psutil.virtual_memory().available * _KEPT_SHARE
    if building.estimate(config).bytes * (1 if on_gpu else _MOST_KEPT) <= free:
        return
    needed = estimate(config, updates=False).fixed_bytes
    if needed > free:
        most = count(config.lanes * free / needed).replace(" ", "")
        raise MachineError(
            f"env.lanes = {config.lanes:,} would keep {size(needed)} of memory, and {device} has {size(free)} free for "
            f"that: use {most} lanes at most, "
            "a shorter algo.horizon, or env.lanes=auto, which takes as many as fit"
        )


def estimate(config: Config, *, updates: bool = True) -> Footprint:
    """What a run of this configuration takes on its device, evaluation and CUDA's own context aside. Compiles kernels,
    so it takes seconds.

    Without `updates` only what it keeps, which takes about one.
    """
    first = _SMALL_LANES_OF_PICTURES if config.environment.pixels else _SMALL_LANES
    small = next((lanes for lanes in (first << k for k in range(10)) if not config.problems(lanes)), config.lanes)
    if 2 * small >= config.lanes:
        return _measure(config, config.lanes, updates)
    one, two = _measure(config, small, updates), _measure(config, 2 * small, updates)
    factor = config.lanes / small
    return Footprint(*(round(a + (factor - 1) * (b - a)) for a, b in zip(one, two, strict=True)))


def _measure(config: Config, lanes: int, updates: bool = True) -> Footprint:
    with _Storages() as storages:
        small = building.with_lanes(config, lanes)
        algo = building.build(replace(small, algo=building.estimate(small).trial), "cpu")
        algo.start()
        fixed_bytes = storages.living_bytes
        storages.most_bytes = fixed_bytes
        if updates:
            for phase in algo.phases:
                phase.run()
        replay = sum(tensor.nbytes for tensor in replay_tensors(algo).values())
        return Footprint(fixed_bytes, storages.most_bytes - fixed_bytes, replay)
