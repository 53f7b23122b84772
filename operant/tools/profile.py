"""Profile of an iteration (`operant profile`): phases, launches, utilization of the device, memory, and a trace.

Trains a new trainer of a configuration for a few iterations and writes no run. The phases are those of the algorithm
and those of the functions in its `parts`. The caller prints the profile.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import itertools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from operant.algos.base import Algorithm
from operant.compute.runtime import find_device, set_threads
from operant.config.load import Config
from operant.nn import Work
from operant.tools import trace as tracefile
from operant.tools.roofline import Peak, peak
from operant.training import auto_lanes
from operant.training import build as building

TRACED = 2
"""Iterations in a trace."""

WARM_UP = 3  # plain, captured, replayed
TOP = 12  # kernels listed by name
OTHER = "other"
PARTS: Mapping[str, str] = {"world.step": "environment", "actor.forward": "network"}
"""Default for algorithms without `parts`: function -> phase."""


class Phase(NamedTuple):
    """Time of one part of an iteration. On a GPU `seconds` is the time of its kernels and `launches` their number, None
    on a CPU.
    """

    name: str
    seconds: float
    share: float  # of all phases
    launches: int | None


class Moment(NamedTuple):
    """Memory use at one moment of a profile, in bytes. On a CPU all values are resident memory of the process."""

    when: str
    allocated: int
    reserved: int
    peak: int  # maximum allocated since the previous moment


class Profile(NamedTuple):
    """Result of a profile: median times of an iteration, launches, memory, and work per second."""

    environment: str
    algorithm: str
    device: str
    precision: str
    kernels: str  # "fused", "torch" or "manual_backward"
    lanes: int
    horizon: int
    iterations: int
    threads: int
    iteration_s: float
    phase_s: dict[str, float]  # per phase of the algorithm
    host_s: dict[str, float]  # host lanes: seconds per part of a step in one stepping thread; empty for device lanes
    sps: float
    phases: list[Phase]
    kernel_launches: int | None  # per iteration: nodes of graphs and single launches
    copies: int | None
    host_launches: int | None  # host calls that launch them
    busy_share: float | None  # fraction of the wall time in which a kernel or copy ran
    top_kernels: list[tracefile.Kernel]  # per iteration
    work: Work
    peak: Peak
    memory: list[Moment]
    trace: Path | None

    @property
    def flops(self) -> float:
        """Floating-point operations per second that the profiled iteration achieved."""
        return self.work.flops / self.iteration_s

    @property
    def bandwidth(self) -> float:
        """Bytes read and written per second that the profiled iteration achieved."""
        return self.work.bytes / self.iteration_s

    def document(self) -> dict[str, Any]:
        """Convert the profile to a JSON-serialisable dict."""
        return {
            "schema": 1,
            **{
                name: value
                for name, value in self._asdict().items()
                if name not in ("phases", "top_kernels", "work", "peak", "memory", "trace")
            },
            "phases": [phase._asdict() for phase in self.phases],
            "top_kernels": [kernel._asdict() for kernel in self.top_kernels],
            "work": {**self.work._asdict(), "flops_per_s": self.flops, "bytes_per_s": self.bandwidth},
            "peak": {"flops_per_s": self.peak.flops, "bytes_per_s": self.peak.bytes, "product": self.peak.product},
            "memory": [moment._asdict() for moment in self.memory],
            "trace": None if self.trace is None else str(self.trace),
        }


class _Memory:
    """Recorder of a device's memory use at chosen moments."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.moments = device, list[Moment]()

    def note(self, when: str) -> None:
        """Record the current memory use with the label `when`. Synchronizes the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            usage = (
                torch.cuda.memory_allocated(self._device),
                torch.cuda.memory_reserved(self._device),
                torch.cuda.max_memory_allocated(self._device),
            )
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            resident = psutil.Process().memory_info().rss
            before = self.moments[-1].allocated if self.moments else 0
            usage = (resident, resident, max(resident, before))
        self.moments.append(Moment(when, *usage))


class _Stopwatch:
    """Timer of repeated calls: by CUDA events, which are read at the end, or by the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[list[Any]] = []

    def lap(self, *works: Callable[[], object]) -> None:
        """Call each function in order, and record the time before, between and after them as one lap."""
        marks = [self._timestamp()]
        for work in works:
            work()
            marks.append(self._timestamp())
        self._marks.append(marks)

    def _timestamp(self) -> Any:
        """Record the current time: a CUDA event, or seconds of the host's clock."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def medians_s(self) -> list[float]:
        """Median seconds of each function over all laps, followed by the median of a whole lap."""
        if self._cuda:
            torch.cuda.synchronize()
        spans = [[*itertools.pairwise(marks), (marks[0], marks[-1])] for marks in self._marks]
        return [statistics.median(self._span_s(*lap[k]) for lap in spans) for k in range(len(spans[0]))]

    def _span_s(self, begin: Any, end: Any) -> float:
        """Seconds between two recorded times."""
        return begin.elapsed_time(end) / 1e3 if self._cuda else end - begin


class _HostPhases:
    """Timer that accumulates the host time of each phase in `seconds`, without the time of phases nested in it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[float] = []  # per open phase: time of nested phases

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Context whose duration is added to phase `name`."""
        self._open.append(0.0)
        start_s = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start_s
            self.seconds[name] += spent - self._open.pop()
            if self._open:
                self._open[-1] += spent


@contextlib.contextmanager
def phases_around(trainer: Any, around: Callable[[str], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """Context in which every function listed in the trainer's `parts` runs inside `around(phase)`, where `phase` is the
    phase that it belongs to.
    """
    restore: list[Callable[[], None]] = []
    try:
        for path, phase in getattr(trainer, "parts", PARTS).items():
            *owners, attribute = path.split(".")
            owner = functools.reduce(lambda current, part: getattr(current, part, None), owners, trainer)
            function = getattr(owner, attribute, None)
            if function is not None:
                restore.append(_set_attribute(owner, attribute, _wrap_in(function, phase, around)))
        yield
    finally:
        for undo in reversed(restore):
            undo()


def _wrap_in(
    function: Callable[..., Any], phase: str, around: Callable[[str], contextlib.AbstractContextManager[Any]]
) -> Callable[..., Any]:
    """Wrap a function so that each call runs inside `around(phase)`."""

    def called(*arguments: Any, **named: Any) -> Any:
        with around(phase):
            return function(*arguments, **named)

    return called


def _set_attribute(owner: Any, attribute: str, value: Any) -> Callable[[], None]:
    """Set an attribute of an object, and return a function that restores the old value."""
    own = vars(owner)
    if attribute in own:
        before = own[attribute]
        setattr(owner, attribute, value)
        return lambda: setattr(owner, attribute, before)
    setattr(owner, attribute, value)
    return lambda: delattr(owner, attribute)


@contextlib.contextmanager
def _recording(device: torch.device, path: Path) -> Iterator[None]:
    """Context that records a profiler trace of all threads and writes it to `path`. Raises OSError if the file cannot
    be written.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU] + (
        [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
    )
    threads = torch.profiler._ExperimentalConfig(profile_all_threads=True)
    recorder = torch.profiler.profile(activities=kinds, experimental_config=threads)
    with _without_stderr():
        recorder.start()
    try:
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    finally:
        with _without_stderr():
            recorder.stop()
    target = path.resolve()  # keep a symbolic link
    target.unlink(missing_ok=True)  # of an earlier profile
    with _without_stderr():
        recorder.export_chrome_trace(str(target))
    if not target.exists() or target.stat().st_size == 0:  # the profiler only logs a failure
        target.with_name(f"{target.name}.tmp").unlink(missing_ok=True)
        raise OSError(errno.EIO, "the trace could not be written", str(path))


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Context that discards the process's stderr, where torch's profiler reports its start and stop."""
    saved_fd = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved_fd, 2)
        os.close(saved_fd)


def profile(
    config: Config,
    iterations: int = 20,
    *,
    trace: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Profile:
    """Train a new trainer for `iterations` (at least 1) iterations after a warm-up, measure them and return the
    profile. `trace` is the path of a trace to write, `report` receives a line about each part that takes a while.

    Raises MachineError if the device is not available, OSError if the trace cannot be written.
    """
    device = find_device(config.run.device)
    threads = set_threads(config.run.threads)
    config = auto_lanes.resolve(config, device, report=report)
    if "learning_starts" in type(config.algo).model_fields:  # profile a run past its warm-up
        config = replace(config, algo=config.algo.model_copy(update={"learning_starts": 0}))
    memory = _Memory(device)
    memory.note("before")
    report("compiling and capturing")
    trainer = building.build(config, device)
    memory.note("trainer built")
    trainer.start()
    for k in range(WARM_UP):
        for phase in trainer.phases:
            phase.run()
            memory.note(f"{phase.name} {k + 1}")
    report(f"training {iterations} iterations")
    stopwatch, before = _Stopwatch(device), dict(trainer.world.seconds)
    for _ in range(iterations):
        stopwatch.lap(*(phase.run for phase in trainer.phases))
    host_s = {part: (seconds - before[part]) / iterations for part, seconds in trainer.world.seconds.items()}
    *phases_s, iteration_s = stopwatch.medians_s()
    memory.note("trained")
    with tempfile.TemporaryDirectory() as folder:
        report("tracing")
        summary = _trace(trainer, device, trace or Path(folder, "trace.json"))
        horizon = trainer.steps_per_iteration // config.lanes
        phase_s = {phase.name: seconds for phase, seconds in zip(trainer.phases, phases_s, strict=True)}
        precision = getattr(config.algo, "precision", "fp32") if device.type == "cuda" else "fp32"
        kernels, samples, estimate = kernels_of(trainer), trainer.steps_per_iteration, building.estimate(config)
        if device.type == "cuda":
            del trainer
            gc.collect()
            trainer = building.build(config, device, eager=True)
            trainer.start()
            phases = _device_phases(trainer, device, Path(folder, "phases.json"))
        else:
            phases = host_phases(trainer, iterations)
        del trainer
    report("measuring the device's peak")
    return Profile(
        environment=config.environment.name,
        algorithm=config.algo_label,
        device=_device_name(device),
        precision=precision,
        kernels=kernels,
        lanes=config.lanes,
        horizon=horizon,
        iterations=iterations,
        threads=threads,
        iteration_s=iteration_s,
        phase_s=phase_s,
        host_s=host_s,
        sps=samples / iteration_s,
        phases=phases,
        busy_share=None if summary.busy_s is None else min(1.0, summary.busy_s / iteration_s),
        kernel_launches=summary.kernels,
        copies=summary.copies,
        host_launches=summary.host_launches,
        top_kernels=summary.top,
        work=Work(estimate.flops, estimate.bytes),
        peak=peak(device, precision),
        memory=memory.moments,
        trace=trace,
    )


def kernels_of(trainer: Algorithm) -> str:
    """Name of the kernels that a trainer uses, as it reports them; "torch" if it reports none."""
    return str(getattr(trainer, "kernels", "torch"))


def _device_name(device: torch.device) -> str:
    """Name of the GPU, or the CPU's number of threads."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


class _TraceSummary(NamedTuple):
    """Counts and times per iteration from a trace; None without a GPU."""

    kernels: int | None
    copies: int | None
    host_launches: int | None
    busy_s: float | None
    top: list[tracefile.Kernel]


def _trace(trainer: Algorithm, device: torch.device, path: Path) -> _TraceSummary:
    """Record a trace of a few iterations to `path`, and summarise it."""
    with _recording(device, path):
        for _ in range(TRACED):
            for phase in trainer.phases:
                with torch.profiler.record_function(phase.name):
                    phase.run()
    if device.type != "cuda":
        return _TraceSummary(None, None, None, None, [])
    events = tracefile.load(path)
    on_device = tracefile.device_events(events)
    kernels = sum(event["cat"] == tracefile.KERNEL for event in on_device)
    top = [
        tracefile.Kernel(kernel.name, kernel.busy_s / TRACED, round(kernel.launches / TRACED))
        for kernel in tracefile.kernels(on_device)[:TOP]
    ]
    return _TraceSummary(
        round(kernels / TRACED),
        round((len(on_device) - kernels) / TRACED),
        round(tracefile.host_launches(events) / TRACED),
        tracefile.busy_s(on_device) / TRACED,
        top,
    )


def _device_phases(trainer: Algorithm, device: torch.device, path: Path) -> list[Phase]:
    """Measure the GPU time of each phase of an iteration. `trainer` must launch kernels one by one, because launches in
    a graph have no names. The trace is written to `path`.
    """
    for _ in range(WARM_UP):
        for phase in trainer.phases:
            phase.run()
    names = [*getattr(trainer, "parts", PARTS).values(), *(phase.name for phase in trainer.phases)]
    with phases_around(trainer, torch.profiler.record_function), _recording(device, path):
        for _ in range(TRACED):
            for phase in trainer.phases:
                with torch.profiler.record_function(phase.name):
                    phase.run()
                    torch.cuda.synchronize(device)
    ranges = tracefile.by_range(tracefile.load(path), names)
    rows: list[tuple[str, float, int | None]] = [
        (name or OTHER, item.busy_s / TRACED, round((item.kernels + item.copies) / TRACED))
        for name, item in ranges.items()
    ]
    return _phase_table(trainer, rows)


def host_phases(trainer: Algorithm, iterations: int) -> list[Phase]:
    """Measure the median host time of each phase over `iterations` iterations, on a CPU."""
    clock = _HostPhases()
    laps: list[dict[str, float]] = []
    with phases_around(trainer, clock):
        for _ in range(iterations):
            clock.seconds.clear()
            for phase in trainer.phases:
                with clock(phase.name):
                    phase.run()
            laps.append(dict(clock.seconds))
    names = dict.fromkeys(name for lap in laps for name in lap)
    return _phase_table(
        trainer, [(name, statistics.median(lap.get(name, 0.0) for lap in laps), None) for name in names]
    )


def _phase_table(trainer: Algorithm, rows: list[tuple[str, float, int | None]]) -> list[Phase]:
    """Make the table of a profile's phases from rows (name, seconds, launches), longest first. Time of an algorithm's
    phase outside its named parts is called its rest.
    """
    total = sum(seconds for _, seconds, _ in rows) or 1.0
    renamed = {phase.name: f"{phase.name}, the rest" for phase in trainer.phases}
    return sorted(
        (Phase(renamed.get(name, name), seconds, seconds / total, launches) for name, seconds, launches in rows),
        key=lambda phase: -phase.seconds,
    )
