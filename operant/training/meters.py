"""Meters: sums of an algorithm's metrics on the device, published as records of the metrics file one iteration late.

At most `record_hz` times a second the sums are copied to pinned memory without waiting, and published once the copy has
arrived. The rate changes no trained bit. This module holds the training loop's only routine synchronisation: the host
runs at most one iteration ahead.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psutil
import torch

from operant.algos.base import Algorithm
from operant.compute.graphs import Graphed
from operant.runs import BOOKKEEPING, FLAG_CHECKPOINT, FLAG_EVAL, Metric, MetricSpec, Threshold, Writer
from operant.runs.metrics.spec import POSITIVE
from operant.training.distributed import SINGLE, SOLO, EpisodeSums, Exchange, RankGroup, RankMetrics
from operant.training.nonfinite import FirstNonFinite, NonFiniteCheck, advice
from operant.worlds import EPISODES, LENGTH, RETURN, TALLIES

_NEVER = -1
_BETWEEN = ("evaluate", "checkpoint")  # timed sections outside the algorithm's phases
_CALLBACK = "callback"


class NotFinite(NamedTuple):
    """Report of the first iteration with a NaN or infinite value: its index, the value's place in the rollout (None:
    not there), and the metrics that are not finite.
    """

    iteration: int
    first: FirstNonFinite | None  # non-finite action, reward or observation
    columns: tuple[str, ...]  # columns of the record that are not finite

    def advice(self, config: Any) -> str:
        """Sentence of advice for the user on the likely cause of the non-finite value. `config` is an
        `operant.config.load.Config`.
        """
        return advice(config, self.first)


def _timed_sections(algo: Algorithm, *, callback: bool = False) -> tuple[str, ...]:
    """Timed sections of an iteration: the algorithm's phases, the parts of a host world's step, evaluation, checkpoints
    and `callback`.
    """
    first, *others = (phase.name for phase in algo.phases)
    between = (*_BETWEEN, *([_CALLBACK] if callback else []))
    return ("act" if algo.world.seconds and others else first, *others, *algo.world.seconds, *between)


def _scheduled_keys(algo: Algorithm) -> list[str]:
    """Configuration keys with a schedule, except those that the algorithm itself reports as metrics."""
    return [key for key in getattr(algo, "scheduled", {}) if key not in {spec.name for spec in algo.metrics}]


def _schedule_metric(key: str) -> str:
    """Name of the metric that records a scheduled configuration key."""
    return f"schedule/{key.removeprefix('env.')}"


def specs_for(
    algo: Algorithm, exchange: Exchange = SOLO, *, first_evaluation: str = "", logs: Sequence[MetricSpec] | None = None
) -> tuple[MetricSpec, ...]:
    """Metric specs of a run in the order of its metrics file: episodes, evaluation, algorithm, time, memory, ranks,
    tallies, and `logs`, those of a callback (None: there is no callback).

    Counters are sums over a record's iterations; a history that merges records adds them up. `first_evaluation`: text
    of evaluations' charts before the first.
    """
    slower = "slower than the minute before: something else uses this machine, or its clock is held down"
    return (
        MetricSpec("return", "return", "reward", higher_better=True, figure="return", order=10),
        MetricSpec("length", "length", "steps", figure="length", order=100),
        MetricSpec("episodes", kind="counter", order=BOOKKEEPING),
        MetricSpec("iterations", kind="counter", order=BOOKKEEPING),
        MetricSpec(
            "sps",
            "SPS",
            "steps/s",
            higher_better=True,
            figure="SPS",
            order=20,
            thresholds=(Threshold("warn", below=0.75, relative_to="minute", advice=slower),),
            kind="rate",
            explanation="Environment steps a second of training, as the median of the newest records, against that of "
            "the last minute.",
        ),
        MetricSpec(
            "eval/return",
            "eval return",
            "reward",
            higher_better=True,
            figure="eval",
            order=15,
            absent=first_evaluation,
        ),
        MetricSpec(
            "eval/best_return", "best eval return", "reward", higher_better=True, order=130, absent=first_evaluation
        ),
        *algo.metrics,
        *(
            MetricSpec(_schedule_metric(key), key.rpartition(".")[2].replace("_", " "), order=125)
            for key in _scheduled_keys(algo)
        ),
        *(
            MetricSpec(f"seconds/{phase}", f"{phase} time", "s", kind="counter", order=BOOKKEEPING + 10)
            for phase in _timed_sections(algo, callback=logs is not None)
        ),
        MetricSpec("memory/allocated_bytes", "memory in use", "bytes", order=BOOKKEEPING + 20),
        MetricSpec("memory/reserved_bytes", "memory reserved", "bytes", order=BOOKKEEPING + 20),
        *(spec for rank in range(exchange.ranks) if exchange.ranks > 1 for spec in _rank_specs(rank, exchange)),
        *(_tally_spec(name, algo.world.spec.warnings) for name in algo.world.spec.tally),
        *(logs or ()),
    )


def _tally_spec(name: str, warnings: Mapping[str, str]) -> MetricSpec:
    """Describe a tally of the environment; one that ought to be 0 warns once it was not."""
    label = name.replace("_", " ")
    if name not in warnings:
        return MetricSpec(f"tally/{name}", label, order=200)
    rule = Threshold("warn", at_least=POSITIVE, advice=warnings[name], ever=True)
    return MetricSpec(f"tally/{name}", label, "per episode", order=200, thresholds=(rule,))


def _rank_specs(rank: int, exchange: Exchange) -> tuple[MetricSpec, MetricSpec]:
    """Describe the two metrics of a rank: its memory, and its share of time spent in the exchange with other ranks."""
    return (
        MetricSpec(f"gpu/{rank}/memory_bytes", f"rank {rank}: memory in use", "bytes", order=BOOKKEEPING + 30),
        MetricSpec(
            f"gpu/{rank}/exchange_share",
            f"rank {rank}: exchange's share",
            order=BOOKKEEPING + 30,
            absent=exchange.untimed,
        ),
    )


def metrics_for(algo: Algorithm, exchange: Exchange = SOLO, logs: Sequence[MetricSpec] | None = None) -> list[Metric]:
    """Columns of a run's metrics file, with `logs` as for `specs_for`. The algorithm's own metrics must be finite."""
    own = {spec.name for spec in algo.metrics}
    specs = specs_for(algo, exchange, logs=logs)
    return [
        Metric(spec.name, spec.kind, unit=spec.unit, higher_better=spec.higher_better, must_be_finite=spec.name in own)
        for spec in specs
    ]


class _Pending(NamedTuple):
    """Copy of the metric sums to the host that is under way, with the host's own values at its start."""

    step: int
    iterations: int
    training_s: float
    seconds: dict[str, float]
    event: torch.cuda.Event | None


class _Record(NamedTuple):
    """Record (row of the metrics file): environment steps so far, values by column, flags."""

    step: int
    values: Mapping[str, float]
    flags: int


class Meters:
    """Accumulator of an algorithm's metrics over iterations, published as records of the metrics file. Call `measure`
    around each phase and `after` once per iteration.
    """

    def __init__(
        self,
        algo: Algorithm,
        writer: Writer,
        group: RankGroup = SINGLE,
        *,
        record_hz: float,
        iteration: int = 0,
        step: int = 0,
        logs: Sequence[str] | None = None,
    ) -> None:
        """`group`: all ranks of the run; `iteration` and `step`: those of a resumed run; `logs`: names of the numbers
        that a callback logs, None without a callback.
        """
        self.logged = dict.fromkeys(logs or (), math.nan)
        """Numbers of a callback, by name: the newest of each."""
        self.records = 0
        """Number of records so far, with one that waits for its callback."""
        self._between = _BETWEEN if logs is None else (*_BETWEEN, _CALLBACK)
        self._held: _Record | None = None
        self._algo, self._writer, self._period_s = algo, writer, 1.0 / record_hz
        self._device = algo.device
        self._cuda = self._device.type == "cuda"
        stats, sums = len(algo.stats), TALLIES + len(algo.world.spec.tally)
        self._means_window, self._stats_window, self._sums_window = (
            slice(0, len(algo.metrics)),
            slice(0, stats),
            slice(stats, stats + sums),
        )
        # phase name to column
        self._phases = dict(zip((phase.name for phase in algo.phases), _timed_sections(algo), strict=False))
        self._totals = torch.zeros(stats + sums, dtype=torch.float64, device=self._device)
        self._iteration = torch.full((1,), iteration, dtype=torch.int64, device=self._device)
        self._first_bad = torch.full((1,), _NEVER, dtype=torch.int64, device=self._device)
        self._host = torch.zeros(stats + sums, dtype=torch.float64, pin_memory=self._cuda)
        self._host_bad = torch.full((1,), _NEVER, dtype=torch.int64, pin_memory=self._cuda)
        self._episode_sums, self._ranks = EpisodeSums(algo, group.exchange), RankMetrics(algo.device, group)
        self._nonfinite = NonFiniteCheck(algo.rollout, self._first_bad)
        self._accumulate = Graphed(self._accumulate_once, self._device)
        self._timed: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._seconds: dict[str, float] = dict.fromkeys(_timed_sections(algo, callback=logs is not None), 0.0)
        self._host_seconds = dict(algo.world.seconds)
        self._pending: _Pending | None = None
        self._iterations, self._done, self._published_step = 0, 0, step
        self._eval_return = self._best_return = math.nan
        self._unpublished_evaluation = self._unpublished_checkpoint = False
        self._last_values: Mapping[str, float] = {}
        self._since = self._last_copy = time.perf_counter()
        self._not_finite_total = 0
        self._process = psutil.Process()

    # MEASURE

    def measure(self, phase: str, work: Callable[[], Any]) -> Any:
        """Run `work`, add its duration to the section `phase`, and return its result. The algorithm's phases on a GPU
        are timed by CUDA events, everything else by the host's clock.
        """
        if self._cuda and phase in self._phases:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            result = work()
            end.record()
            self._timed.append((self._phases[phase], begin, end))
            return result
        began = time.perf_counter()
        result = work()
        self._seconds[self._phases.get(phase, phase)] += time.perf_counter() - began
        return result

    def set_evaluation(self, mean: float, best: float) -> None:
        """Set the newest evaluation's mean and the best mean return, which the following records repeat."""
        self._eval_return, self._best_return = mean, best

    def evaluated(self, step: int, mean: float, best: float) -> NotFinite | None:
        """Publish a record (row of the metrics file) marked as an evaluation, with its `mean` and the `best` mean
        return, at the evaluated policy's `step`. Returns a report of the first non-finite value, None if all are
        finite.
        """
        not_finite = self._publish_arrived(wait=True)  # of an earlier step
        self.set_evaluation(mean, best)
        self._unpublished_evaluation = True
        return self.flush(step) or not_finite

    def checkpointed(self) -> None:
        """Mark the next record (row) of the metrics file as one with a checkpoint. Thread-safe."""
        self._unpublished_checkpoint = True

    @property
    def values(self) -> Mapping[str, float]:
        """Values of the newest record by column, NaN for none; {} before the first."""
        return self._last_values

    def log(self, values: Mapping[str, float]) -> None:
        """Set numbers of a callback, known by name, for the newest record and those after it."""
        self.logged |= values

    def release(self) -> None:
        """Write the record that waits for the numbers of a callback, if there is one."""
        held, self._held = self._held, None
        if held is not None:
            self._write(held._replace(values={**held.values, **self.logged}))

    def paused(self, seconds: float) -> None:
        """Exclude `seconds` of waiting from the training rate (steps/s)."""
        self._since += seconds

    def _evaluation_values(self) -> dict[str, float]:
        """Values of the newest evaluation and of the best one, by metric."""
        return {"eval/return": self._eval_return, "eval/best_return": self._best_return}

    # RECORD

    def after(self, step: int, *, evaluation_follows: bool = False) -> NotFinite | None:
        """Add the metrics of a training iteration to the sums, and publish a record (row of the metrics file) if one is
        due. With `evaluation_follows` none is published, because the evaluation's record will have them. `step` is the
        environment steps so far. Returns a report of the first non-finite value as soon as the host knows it, else
        None.
        """
        self._accumulate()
        self._iterations += 1
        self._done += 1
        self._limit_lead()
        not_finite = self._publish_arrived()
        if evaluation_follows:  # its record has both
            diverged = not self._cuda and int(self._first_bad) != _NEVER
            return not_finite or (self.flush(step) if diverged else None)
        if self._pending is None and time.perf_counter() - self._last_copy >= self._period_s:
            self._begin_copy(step)
            if not self._cuda:
                not_finite = not_finite or self._publish_arrived()
        return not_finite

    def flush(self, step: int) -> NotFinite | None:
        """Publish the remaining sums of metrics as a record (row of the metrics file), and wait until they are on the
        host. Returns a report of the first non-finite value, None if all are finite.
        """
        not_finite = self._publish_arrived(wait=True)
        if self._iterations:
            self._read_timers(keep=0)
            self._begin_copy(step)
            not_finite = self._publish_arrived(wait=True) or not_finite
        return not_finite

    def _accumulate_once(self) -> None:
        """Add the statistics and episode sums of an iteration to the sums on the device, and note the first iteration
        with a non-finite value.
        """
        stats = self._algo.stats
        self._totals[self._stats_window].add_(stats)  # not +=, which copies the sum onto itself
        self._totals[self._sums_window].add_(self._episode_sums())
        self._iteration += 1
        self._nonfinite()
        bad = torch.logical_or(stats[-1:], self._nonfinite.any)
        torch.where(bad & (self._first_bad < 0), self._iteration, self._first_bad, out=self._first_bad)

    def _limit_lead(self) -> None:
        """Wait, on a GPU, until the host is at most one training iteration ahead."""
        if self._cuda:
            self._read_timers(keep=2)

    def _read_timers(self, keep: int) -> None:
        """Add the durations of timed phases to their sections, in seconds, waiting for their CUDA events; the newest
        `keep` stay queued.
        """
        while len(self._timed) > keep:
            phase, begin, end = self._timed.popleft()
            end.synchronize()  # sync: waits for the iteration before the one just launched
            self._seconds[phase] += begin.elapsed_time(end) / 1e3

    def _begin_copy(self, step: int) -> None:
        """Start copying the sums of metrics to the host as the next record (row of the metrics file), of environment
        step `step`, and zero them.
        """
        self._host.copy_(self._totals, non_blocking=True)
        self._host_bad.copy_(self._first_bad, non_blocking=True)
        event = None
        if self._cuda:
            event = torch.cuda.Event()
            event.record()
        self._totals.zero_()
        now = time.perf_counter()
        stepping = next(iter(self._phases.values()))
        for part, seconds in self._algo.world.seconds.items():  # parts of the phase that steps
            self._seconds[part], self._host_seconds[part] = seconds - self._host_seconds[part], seconds
            self._seconds[stepping] = max(0.0, self._seconds[stepping] - self._seconds[part])
        # Evaluations and checkpoints are timed separately; the rest is training.
        training_s = now - self._since - sum(self._seconds[name] for name in self._between)
        self._pending = _Pending(step, self._iterations, training_s, self._seconds, event)
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._iterations, self._since, self._last_copy = 0, now, now

    def _publish_arrived(self, *, wait: bool = False) -> NotFinite | None:
        """Publish the record (row of the metrics file) whose copy has arrived on the host, or with `wait` once it has.
        Returns a report of the first non-finite value, None if all are finite or nothing has arrived.
        """
        pending = self._pending
        if pending is None:
            return None
        if pending.event is not None and not pending.event.query():
            if not wait:
                return None
            pending.event.synchronize()  # sync: the last record of a run
        self._pending = None
        values = self._record_values(pending, self._host.tolist())
        self._publish(pending.step, values)
        first_bad = int(self._host_bad)
        if first_bad == _NEVER:
            return None
        columns = tuple(
            metric.name
            for metric in self._writer.metrics
            if metric.must_be_finite and not math.isfinite(values[metric.name])
        )
        self._not_finite_total += 1
        self._writer.set_nonfinite(self._not_finite_total)
        return NotFinite(first_bad, self._nonfinite.located(), columns)

    def _publish(self, step: int, values: Mapping[str, float]) -> None:
        """Write a record (row) to the metrics file, flagged if an evaluation or checkpoint belongs to it. Where a
        callback logs numbers, the record waits for them until `release`.
        """
        flags = (FLAG_EVAL if self._unpublished_evaluation else 0) | (
            FLAG_CHECKPOINT if self._unpublished_checkpoint else 0
        )
        self._unpublished_evaluation = self._unpublished_checkpoint = False
        self.release()
        self.records += 1
        self._published_step, self._last_values = step, values
        record = _Record(step, values, flags)
        if self.logged:
            self._held = record
        else:
            self._write(record)

    def _write(self, record: _Record) -> None:
        values = [record.values[metric.name] for metric in self._writer.metrics]
        self._writer.publish(record.step, values, flags=record.flags)

    def _record_values(self, pending: _Pending, totals: list[float]) -> Mapping[str, float]:
        """Compute the values of a record (row of the metrics file) by column from the sums `totals`: means over
        iterations, and sums and means over episodes.
        """
        algo = self._algo
        sums = totals[self._sums_window]
        episodes = sums[EPISODES]

        def mean(row: int) -> float:
            return sums[row] / episodes if episodes else math.nan

        steps = pending.step - self._published_step
        allocated, reserved = self._memory_bytes()
        values = {
            "return": mean(RETURN),
            "length": mean(LENGTH),
            "episodes": episodes,
            "iterations": float(pending.iterations),
            # The first record's time is mostly compilation.
            "sps": steps / pending.training_s if self._last_values and pending.training_s > 0 else math.nan,
            **self._evaluation_values(),
            **self.logged,
            "memory/allocated_bytes": allocated,
            "memory/reserved_bytes": reserved,
        }
        values |= self._ranks(self._done, pending.iterations, pending.training_s)
        # Metrics of kind "rate" are counts, divided by time here.
        times = {"rate": max(pending.training_s, 1e-9)}
        means = zip(algo.metrics, totals[self._means_window], strict=True)
        values |= {spec.name: total / times.get(spec.kind, pending.iterations) for spec, total in means}
        # A CPU computes no updates until learning starts: the rate until then, and of the record in which it starts, is
        # none.
        if not self._cuda and 0 in (some.get("updates_per_second") for some in (self._last_values, values)):
            values["sps"] = math.nan
        began = pending.step - algo.steps_per_iteration  # start of the newest iteration
        values |= {
            _schedule_metric(key): algo.scheduled[key][0].at(began, self._eval_return) for key in _scheduled_keys(algo)
        }
        values |= {f"seconds/{phase}": seconds for phase, seconds in pending.seconds.items()}
        return values | {f"tally/{name}": mean(TALLIES + k) for k, name in enumerate(algo.world.spec.tally)}

    def _memory_bytes(self) -> tuple[float, float]:
        """Memory of this process: allocated and reserved bytes on a GPU, resident bytes and NaN on a CPU."""
        if self._cuda:
            return float(torch.cuda.memory_allocated(self._device)), float(torch.cuda.memory_reserved(self._device))
        return float(self._process.memory_info().rss), math.nan
