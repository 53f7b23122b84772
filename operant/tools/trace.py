"""Analysis of a trace exported by torch.profiler (Chrome's trace event format): launches, busy time, and the named
range of each kernel.

Standard library only. Kineto's format: times and durations in microseconds; a kernel and the call that launched it
share a `correlation`; host ranges have the category `user_annotation`.
"""

from __future__ import annotations

import bisect
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

KERNEL, COPY = "kernel", frozenset(("gpu_memcpy", "gpu_memset"))
_HOST = frozenset(("cuda_runtime", "cuda_driver"))
_LAUNCHES = (
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaGraphLaunch",
    "cuGraphLaunch",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cuMemcpy",
    "cuMemset",
)


class Range(NamedTuple):
    """Sum of the device work launched within the trace's ranges of one name: busy time, kernels and copies. Work in a
    nested range counts for that range only.
    """

    busy_s: float
    kernels: int
    copies: int


class Kernel(NamedTuple):
    """Total of all launches of one kernel in a trace: name, busy time and number."""

    name: str
    busy_s: float
    launches: int


def load(path: Path) -> list[Mapping[str, Any]]:
    """Read the complete events (with a duration) of a profiler's trace file, `.json` or `.json.gz`."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def device_events(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Select the kernels, copies and fills among a trace's events, sorted by start time."""
    return sorted(
        (event for event in events if event.get("cat") == KERNEL or event.get("cat") in COPY),
        key=lambda event: float(event["ts"]),
    )


def host_launches(events: Iterable[Mapping[str, Any]]) -> int:
    """Count the host calls among a trace's events that launch device work."""
    return sum(event.get("cat") in _HOST and str(event.get("name", "")).startswith(_LAUNCHES) for event in events)


def busy_s(events: Iterable[Mapping[str, Any]]) -> float:
    """Seconds in which at least one of the events was active; overlapping time counts once."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: float(event["ts"])):
        start, end = float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0.0))
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total / 1e6


def kernels(events: Iterable[Mapping[str, Any]]) -> list[Kernel]:
    """Sum the time and launches of each kernel among a trace's events, longest first."""
    spent: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == KERNEL:
            spent[event["name"]] += float(event.get("dur", 0.0)) / 1e6
            counts[event["name"]] += 1
    return sorted((Kernel(name, busy, counts[name]) for name, busy in spent.items()), key=lambda kernel: -kernel.busy_s)


def by_range(events: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Range]:
    """Attribute the device work of a trace to the ranges called `names`, by the time of each launching call. Returns
    the work by name; "" for launches outside all ranges.

    Launches of any thread belong to the range open at the time, since an autograd thread launches while the thread that
    opened the range waits.
    """
    wanted = frozenset(names)
    opened = sorted(
        (
            (float(event["ts"]), float(event["ts"]) + float(event["dur"]), event["name"])
            for event in events
            if event.get("cat") == "user_annotation" and event["name"] in wanted
        ),
        key=lambda item: (item[0], -item[1]),
    )
    starts = [item[0] for item in opened]
    calls = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in _HOST and "correlation" in event.get("args", {})
    }
    ranges: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0])
    for event in device_events(events):
        at = calls.get(event.get("args", {}).get("correlation"))
        sums = ranges["" if at is None else _innermost_range(opened, starts, at)]
        sums[0] += float(event.get("dur", 0.0)) / 1e6
        sums[1 if event["cat"] == KERNEL else 2] += 1
    return {name: Range(busy, int(kernels), int(copies)) for name, (busy, kernels, copies) in ranges.items()}


def _innermost_range(opened: Sequence[tuple[float, float, str]], starts: Sequence[float], at: float) -> str:
    """Name of the range opened last among those that are open at time `at`; "" if none is. `opened` are the ranges
    (start, end, name), sorted, and `starts` their starts.
    """
    for k in range(bisect.bisect_right(starts, at) - 1, -1, -1):
        if opened[k][1] >= at:
            return opened[k][2]
    return ""
