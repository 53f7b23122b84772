"""Timing of one part of an iteration, and the trainer's buffers by name (`operant profile --part` and `--memory`), for
every kind of world. Prints nothing.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from operant.compute.runtime import find_device, set_threads
from operant.errors import UsageError
from operant.training import auto_lanes
from operant.training import build as building

PARTS = ("env", "rollout", "update")
_STEPS = 16  # environment steps per timed call
_WARM_UP = 3
_DEEPEST = 8  # maximum nesting of attributes


class Part(NamedTuple):
    """Measured time of one part of an iteration ("env", "rollout" or "update")."""

    part: str
    environment: str
    algorithm: str
    device: str
    lanes: int
    iterations: int
    seconds: float  # median of one call
    steps: int  # environment steps of one call
    sps: float


class Buffer(NamedTuple):
    """Memory allocation of a trainer, with its shortest name."""

    name: str
    bytes: int
    shape: list[int]
    dtype: str
    device: str


def build_trainer(config: Any, report: Callable[[str], None]) -> Any:
    """Build the algorithm of a configuration and start its lanes. `report` receives a line per number of lanes tried.
    Raises MachineError if the device is not available.
    """
    device = find_device(config.run.device)
    set_threads(config.run.threads)
    algo = building.build(auto_lanes.resolve(config, device, report=report), device)
    algo.start()
    return algo


def time_part(config: Any, part: str, iterations: int, report: Callable[[str], None] = lambda line: None) -> Part:
    """Time one part of an iteration `iterations` times: "env" steps the lanes with random actions, "rollout" collects,
    "update" learns from the collected data.

    Raises UsageError if the algorithm has a single phase for the last two.
    """
    algo = build_trainer(config, report)
    names = [phase.name for phase in algo.phases]
    if part != "env" and len(names) == 1:
        raise UsageError(
            f"--part {part}: {config.algo_label} collects and learns in one phase, {names[0]!r}: use --part env, or "
            "omit --part"
        )
    for _ in range(_WARM_UP):
        for phase in algo.phases:
            phase.run()
    work, steps = (
        (_random_steps(algo.world), _STEPS * algo.world.count)
        if part == "env"
        else (algo.phases[0].run, algo.steps_per_iteration)
    )
    if part == "update":
        work = _in_order([phase.run for phase in algo.phases[1:]])
    if part == "env":
        work()
    report(f"timing {part}, {iterations} times")
    seconds = []
    for _ in range(iterations):
        start_s = _now(algo.device)
        work()
        seconds.append(_now(algo.device) - start_s)
    median = statistics.median(seconds)
    return Part(
        part,
        config.environment.name,
        config.algo_label,
        str(algo.device),
        algo.world.count,
        iterations,
        median,
        steps,
        steps / median,
    )


def _now(device: torch.device) -> float:
    """Current time of the host's clock in seconds, after waiting for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _in_order(works: list[Callable[[], None]]) -> Callable[[], None]:
    """Combine functions into one that calls them in order."""

    def run() -> None:
        for work in works:
            work()

    return run


def _random_steps(world: Any) -> Callable[[], None]:
    """Make a function that takes _STEPS steps in every lane of a world with precomputed random actions, only legal ones
    if there is a mask.
    """
    slot, space = world.slot(), world.spec.action
    bound, generator = world.bind(slot), torch.Generator().manual_seed(1)
    world.reset(bound)
    if hasattr(space, "bounds"):
        low, high = (torch.tensor(bound).clamp(-1000, 1000)[:, None] for bound in space.bounds())
        slot.action.copy_(low + torch.rand(space.size, world.count, generator=generator) * (high - low))
        sizes = []
    else:
        sizes = [space.n] if isinstance(space.n, int) else list(space.n)
    draws = [torch.rand(n, world.count, generator=generator).to(world.device) for n in sizes]

    def work() -> None:
        for t in range(_STEPS):
            allowed = [1.0] * len(sizes) if slot.legal is None else slot.legal.split(sizes)
            for k, draw in enumerate(draws):
                slot.action[k] = (draw.roll(t, dims=1) * allowed[k]).argmax(dim=0)
            world.step(bound, t)
        world.advance(_STEPS)

    return work


def buffers(algo: Any) -> list[Buffer]:
    """List the memory of an algorithm and its world: every tensor and array reachable from them, each allocation once,
    largest first.
    """
    tensors: dict[int, Buffer] = {}  # by start address
    arrays: dict[int, Buffer] = {}
    known: set[int] = set()
    waiting: deque[tuple[str, Any, int]] = deque([("", algo, 0)])
    while waiting:
        name, value, depth = waiting.popleft()
        if id(value) in known:
            continue
        known.add(id(value))
        if isinstance(value, torch.Tensor):
            storage, kind = value.untyped_storage(), str(value.dtype).removeprefix("torch.")
            tensors.setdefault(
                storage.data_ptr(), Buffer(name, storage.nbytes(), list(value.shape), kind, str(value.device))
            )
        elif isinstance(value, np.ndarray):
            arrays.setdefault(
                value.ctypes.data, Buffer(name, value.nbytes, list(value.shape), str(value.dtype), "host")
            )
        elif depth < _DEEPEST:
            waiting += [
                (f"{name}.{key}".strip("._").replace("._", "."), inner, depth + 1) for key, inner in _contents(value)
            ]
    # CPU kernels take NumPy views of tensors.
    apart = [
        array
        for at, array in arrays.items()
        if not any(start <= at < start + buffer.bytes for start, buffer in tensors.items())
    ]
    return sorted((buffer for buffer in (*tensors.values(), *apart) if buffer.bytes), key=lambda buffer: -buffer.bytes)


def _contents(value: Any) -> list[tuple[str, Any]]:
    """Named contents of a dict, tuple, list or object of this package; [] for any other value."""
    if isinstance(value, dict):
        return [(str(key), inner) for key, inner in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return [(str(k), inner) for k, inner in enumerate(value)]
    own = type(value).__module__.startswith(("operant", "torch.nn"))
    return list(vars(value).items()) if own and hasattr(value, "__dict__") else []
