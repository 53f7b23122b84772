"""Memory estimate of a configuration: measured on a small CPU copy and extrapolated in the number of lanes.

With autograd over whole minibatches every buffer and activation grows linearly in the lanes, so updates at two small
lane counts give the footprint at any. Chunked updates (fused kernels, the manual backward pass, `algo.microbatch`) need
less; the estimate is then an upper bound.
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
_SMALL_LANES_OF_PICTURES = 4  # whose networks are slow on a CPU
CONTEXT_BYTES = 600 << 20
"""Approximate memory of CUDA's context, libraries and kernels before the first tensor."""


_MAX_PERMANENT = 8
"""Upper bound of a run's permanent memory as a multiple of an iteration's traffic: measured 0.2 (pictures) to 7
(horizon of 1).
"""

_FREE_SHARE = 2 / 3
"""Share of a CPU's free memory for permanent buffers: the manual backward pass needs half as much again or more."""


class Footprint(NamedTuple):
    """Memory of a run in bytes: buffers that it holds from start to end, the peak that an update adds, and the replay's
    part.
    """

    fixed_bytes: int
    update_bytes: int
    replay_bytes: int = 0  # part of fixed_bytes that can be collected again

    @property
    def total_bytes(self) -> int:
        """Total memory of a run in bytes: its permanent buffers plus the peak that an update adds."""
        return self.fixed_bytes + self.update_bytes


class _StorageCounter(TorchDispatchMode):
    """Torch dispatch mode that counts the bytes of live storages created while it is active."""

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
        """Add a storage's bytes to the count of live memory, once, until it is freed."""
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.living_bytes += size
        self.most_bytes = max(self.most_bytes, self.living_bytes)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        """Subtract the bytes of a freed storage from the count of live memory."""
        self._known.discard(key)
        self.living_bytes -= size


def require_memory(config: Config, device: torch.device, ranks: int = 1) -> None:
    """Check that a run's permanent buffers fit into the free memory of its device. Raises MachineError if they do not.
    Costs nothing when the run certainly fits.

    With several ranks each GPU holds its share of the lanes. A GPU fails at allocation, so only an iteration's traffic
    is checked first there; a CPU allocator promises memory it does not have.
    """
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] * ranks if on_gpu else psutil.virtual_memory().available * _FREE_SHARE
    if building.estimate(config).bytes * (1 if on_gpu else _MAX_PERMANENT) <= free:
        return
    needed = estimate(config, device, updates=False).fixed_bytes
    if needed > free:
        most = count(config.lanes * free / needed).replace(" ", "")
        raise MachineError(
            f"env.lanes = {config.lanes:,} needs {size(needed)} of memory and {device} has {size(free)} free: use "
            f"at most {most} lanes, "
            "a shorter algo.horizon, or env.lanes=auto, which selects the most that fit"
        )


def estimate(config: Config, device: torch.device, *, updates: bool = True) -> Footprint:
    """Estimate the memory of a run on `device`, without evaluation and CUDA context. Compiles kernels, which takes
    seconds.

    Without `updates` only the permanent memory is measured, in about one second.
    """
    first = _SMALL_LANES_OF_PICTURES if config.environment.pixels else _SMALL_LANES
    small = next((lanes for lanes in (first << k for k in range(10)) if not config.problems(lanes)), config.lanes)
    if 2 * small >= config.lanes:
        whole = _measure(config, config.lanes, updates)
        return whole._replace(fixed_bytes=whole.fixed_bytes + _scratch_bytes(config, device))
    one, two = _measure(config, small, updates), _measure(config, 2 * small, updates)
    factor = config.lanes / small
    whole = Footprint(*(round(a + (factor - 1) * (b - a)) for a, b in zip(one, two, strict=True)))
    return whole._replace(fixed_bytes=whole.fixed_bytes + _scratch_bytes(config, device))


def _scratch_bytes(config: Config, device: torch.device) -> int:
    """Estimate the GPU memory that the environment's kernels need beside its buffers, in bytes: local arrays of all
    threads that the GPU can run, and the solver's matrix of each lane. 0 for a CPU.
    """
    if device.type != "cuda":
        return 0
    card = torch.cuda.get_device_properties(device)
    threads = card.multi_processor_count * card.max_threads_per_multi_processor
    env = config.environment.ready(config.params)
    return int(env.stack_bytes * threads + 4 * env.memory * config.lanes)


def _measure(config: Config, lanes: int, updates: bool = True) -> Footprint:
    """Measure the memory of a run with `lanes` lanes on the CPU: its buffers, and with `updates` the peak of one
    iteration.
    """
    with _StorageCounter() as storages:
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
