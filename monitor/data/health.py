"""Is training healthy? Findings from a run's recent numbers. Standard library only. Pure: nothing is stored; the caller
shows what is computed here.

What counts as a warning is declared by the run's metrics (`operant.runs.metrics.spec.Threshold`); this module applies
those rules and adds the few that belong to no metric: values that are not finite, the evaluation, the GPU, checkpoints.
Rules judge the newest ten seconds of records (twenty at least), so that a single odd record changes nothing. `bad` is
only said after a twentieth of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from monitor.data.model import Known, evaluations_shown, values_shown
from monitor.data.snapshot import POWER_LIMIT, Finding, Gpu, Level, System
from operant.runs import MetricSpec, Threshold, integer_of, number_of
from operant.text import count, number, safe

SETTLED_SHARE: Final = 0.05
"""Before this share of the run nothing is called bad: first numbers are odd in every run."""
_SETTLED_ITERATIONS = 50  # the same, for a run of unknown length
_EARLY, _LATE = 0.2, 0.9
_IDLE_GPU = 0.6
_NEXT_TO_BEST, _LOST_HALF, _LOST_MOST = 0.02, 0.5, 0.8
_RECENT, _MINUTE = (10.0, 20), (60.0, 20)  # seconds, and at least so many records
_ORDER: Final[dict[Level, int]] = {"bad": 0, "warn": 1, "ok": 2}


class Circumstances(NamedTuple):
    """What the rules need beside the recent numbers; None and empty for what is not known."""

    share: float | None = None  # of the steps that are done
    iterations: float = 0.0
    usual: Mapping[str, float] = MappingProxyType({})  # medians of the last minute
    highest: Mapping[str, float] = MappingProxyType({})  # the largest values so far
    newest: Mapping[str, float] = MappingProxyType({})  # newest values of metrics that other rules depend on
    evaluation: tuple[float, float, float] | None = (
        None  # where the run began (training or evaluation, the lower), the best evaluation and the newest
    )
    target: float | None = None
    gpu: Gpu | None = None
    checkpoint_failures: int = 0
    history_error: bool = False
    not_finite: tuple[str, ...] = ()  # metrics that had values which were not finite

    @property
    def settled(self) -> bool:
        """Far enough for something to be called bad."""
        return self.share >= SETTLED_SHARE if self.share is not None else self.iterations >= _SETTLED_ITERATIONS

    @property
    def lost(self) -> float:
        """The share of what was gained since the beginning that the newest evaluation lacks."""
        if self.evaluation is None:
            return 0.0
        began, best, newest = self.evaluation
        return (best - newest) / (best - began) if best > began else 0.0

    @property
    def at_target(self) -> bool:
        """The newest evaluation has reached the target."""
        return self.evaluation is not None and self.target is not None and self.evaluation[2] >= self.target

    @property
    def at_its_best(self) -> bool:
        """The target is reached, or the newest evaluation is next to the best one."""
        return self.at_target or (
            self.evaluation is not None and self.evaluation[1] > self.evaluation[0] and self.lost < _NEXT_TO_BEST
        )

    def past(self, share: float) -> bool:
        """Whether at least this share of the run is done, where that is known."""
        return share <= 0 or (self.share is not None and self.share >= share)

    def reference(self, name: str, rule: Threshold) -> float:
        """What a rule's bounds are multiplied by; NaN where that is not known."""
        if not rule.relative_to:
            return 1.0
        found = (self.usual if rule.relative_to == "minute" else self.highest).get(name, math.nan)
        return found if found > 0 else math.nan

    def scheduled(self, rule: Threshold) -> bool:
        """Whether the metric that a rule depends on, if any, is large enough for it."""
        highest, newest = self.highest.get(rule.while_metric, 0.0), self.newest.get(rule.while_metric)
        return newest is None or highest <= 0 or newest > rule.while_share * highest

    def excuse(self, rule: Threshold) -> str:
        """Why a rule does not count now; "" if it does."""
        if (rule.unless == "target" and self.at_target) or (rule.unless == "best" and self.at_its_best):
            return "at its best"
        return "" if self.past(rule.after) else "too early to tell"


def circumstances(known: Known, system: System | None, step: float | None = None) -> Circumstances:
    """Those of a run now, or at a step."""
    timeline, document = known.timeline, known.run.document
    if timeline is None:
        return Circumstances()
    curves, place = timeline.table.curves, timeline.table.last if step is None else timeline.table.place(step)
    done, steps = (0.0, 0.0, 0.0) if place is None else place, integer_of(document, "steps")
    rules = [(spec.name, rule) for spec in timeline.judged for rule in spec.thresholds]
    usual = {name for name, rule in rules if rule.relative_to == "minute"}
    others = {rule.while_metric for _, rule in rules if rule.while_metric in curves}
    minute = {
        name: _finite(some) for name, some in timeline.table.window(*_MINUTE, usual | others, step=step).values.items()
    }
    highest = {
        name: curves[name].highest(step)
        for name in others | {name for name, rule in rules if rule.relative_to == "highest"}
    }
    status = known.look.status if step is None else None
    live = known.state.live and step is None
    return Circumstances(
        share=min(1.0, done[0] / steps) if steps else None,
        iterations=done[2],
        usual={name: _median(minute[name]) for name in usual if minute[name]},
        highest={name: value for name, value in highest.items() if value is not None},
        newest={name: minute[name][-1] for name in others if minute[name]},
        evaluation=evaluations_shown(timeline, step),
        target=number_of(document, "target"),
        gpu=system.gpu if system is not None and live else None,
        checkpoint_failures=0 if status is None else status.checkpoint_failures,
        history_error=bool(status is not None and live and status.history_errno),
        not_finite=tuple(name for name, curve in curves.items() if curve.not_finite) if step is None else (),
    )


def judge(known: Known, system: System | None, step: float | None = None) -> tuple[Finding, ...]:
    """The findings of a run now, or at a step: of the records of the last ten seconds up to it, twenty at least."""
    return told(verdicts(known, system, step), known, step)


def verdicts(known: Known, system: System | None, step: float | None = None) -> Verdicts:
    """What the recent records say, to be told beside the values that are shown then. The costly part: many records are
    looked at.
    """
    timeline = known.timeline
    if timeline is None:
        return Verdicts((), Circumstances())
    recent, now = (
        timeline.table.window(*_RECENT, [spec.name for spec in timeline.judged], step=step).values,
        circumstances(known, system, step),
    )
    return Verdicts(_verdicts(recent, timeline.specs, now), now)


def told(found: Verdicts, known: Known, step: float | None = None) -> tuple[Finding, ...]:
    """The findings, with the figures that header and charts show at the same moment."""
    timeline = known.timeline
    if timeline is None:
        return ()
    now = found.now._replace(evaluation=evaluations_shown(timeline, step))
    return _findings(found.of, timeline.specs, now, values_shown(timeline, timeline.judged, step))


def findings(
    recent: Mapping[str, Sequence[float]],
    specs: Mapping[str, MetricSpec],
    now: Circumstances,
    shown: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Finding, ...]:
    """Findings by the recent values of each metric, the gravest first, in the order of the metrics. `shown` is what the
    header says of them.
    """
    return _findings(_verdicts(recent, specs, now), specs, now, shown)


def _verdicts(
    recent: Mapping[str, Sequence[float]], specs: Mapping[str, MetricSpec], now: Circumstances
) -> tuple[_Verdict, ...]:
    values = {name: finite for name, some in recent.items() if (finite := _finite(some))}
    judged = [_judge(specs[name], some, now) for name, some in values.items() if name in specs]
    return tuple(verdict for verdict in judged if verdict is not None)


def _findings(
    judged: Sequence[_Verdict], specs: Mapping[str, MetricSpec], now: Circumstances, shown: Mapping[str, float]
) -> tuple[Finding, ...]:
    metrics = [_told(verdict, now, shown.get(verdict.spec.name)) for verdict in judged]
    found = [
        finding
        for finding in (_finiteness(specs, now), _evaluation(now), *metrics, _gpu(now), _safety(now))
        if finding is not None
    ]
    if not now.settled:
        found = [finding._replace(level="warn") if finding.level == "bad" else finding for finding in found]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.level]))


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


# ----------------------------------------------------------------------------------------------------------------------
# rules of the metrics


class _Rule(NamedTuple):
    """A threshold with its bounds in the metric's own unit."""

    threshold: Threshold
    low: float
    high: float

    def holds(self, values: Sequence[float]) -> bool:
        """Whether enough of the recent values lie between the bounds."""
        if self.threshold.records <= 0:
            return self.low <= values[-1] < self.high
        return sum(self.low <= value < self.high for value in values) >= self.threshold.records * len(values)


class _Verdict(NamedTuple):
    """What the recent values of a metric say."""

    spec: MetricSpec
    value: float  # the usual one, or the newest where the rules judge that
    rules: tuple[_Rule, ...]  # that could hold now
    limits: tuple[_Rule, ...]  # that say where a value should lie: these, or else all
    fired: _Rule | None  # the first that holds and counts
    excuse: str  # why one that holds does not count


class Verdicts(NamedTuple):
    """Of all metrics, and the circumstances."""

    of: tuple[_Verdict, ...]
    now: Circumstances


def _judge(spec: MetricSpec, values: Sequence[float], now: Circumstances) -> _Verdict | None:
    """A metric by its thresholds: the first that holds counts. None where none of them can be judged yet."""
    rules = [
        _rule(threshold, reference)
        for threshold in spec.thresholds
        if (reference := now.reference(spec.name, threshold)) == reference
    ]
    if not rules:
        return None
    wanted = [
        rule
        for rule in rules
        if now.scheduled(rule.threshold) and (rule.threshold.until >= 1 or not now.past(rule.threshold.until))
    ]
    holding = [rule for rule in wanted if rule.holds(values)]
    fired = next((rule for rule in holding if not now.excuse(rule.threshold)), None)
    value = values[-1] if all(rule.threshold.records <= 0 for rule in rules) else _median(values)
    excuse = next((now.excuse(rule.threshold) for rule in holding), "") if fired is None else ""
    return _Verdict(spec, value, tuple(wanted), tuple(wanted or rules), fired, excuse)


def _told(found: _Verdict, now: Circumstances, shown: float | None) -> Finding:
    """Names the value `shown` elsewhere; where that alone would be judged otherwise, also the usual one of the values
    that are judged.
    """
    spec, value, fired = found.spec, found.value, found.fired
    said = count if spec.kind == "rate" else number
    usual = ""
    if shown is not None and math.isfinite(shown):
        alone = any(
            rule.low <= shown < rule.high
            for rule in (found.rules if fired is None else [fired])
            if not now.excuse(rule.threshold)
        )
        if alone == (fired is None):
            usual = f" (mostly {said(value)})"
        value = shown
    unit = f" {spec.unit}" if spec.unit and spec.kind != "rate" and spec.unit != "reward" else ""
    limits = found.excuse or _limits([fired] if fired is not None else found.limits, value, said)
    level: Level = "ok" if fired is None else "bad" if fired.threshold.level == "bad" else "warn"
    advice = "" if fired is None else fired.threshold.advice or spec.advice
    return Finding(level, f"{spec.label} {said(value)}{unit}{usual}", limits, advice, spec.explanation)


def _rule(threshold: Threshold, reference: float) -> _Rule:
    low, high = threshold.at_least, threshold.below
    return _Rule(
        threshold, -math.inf if low is None else low * reference, math.inf if high is None else high * reference
    )


def _limits(rules: Sequence[_Rule], value: float, said: Callable[[float], str]) -> str:
    """Where a value should lie, by the widest of the ranges where it should not."""
    above = max((rule.high for rule in rules if rule.high < math.inf and value >= rule.low), default=None)
    below = min((rule.low for rule in rules if rule.high == math.inf), default=None)
    if above is not None and below is not None:
        return f"{said(above)} to {said(below)}"
    return f"above {said(above)}" if above is not None else f"below {said(below)}" if below is not None else ""


# ----------------------------------------------------------------------------------------------------------------------
# rules of the run


def _finiteness(specs: Mapping[str, MetricSpec], now: Circumstances) -> Finding | None:
    if not now.not_finite:
        return None
    odd = [specs.get(name, MetricSpec(name, name)) for name in now.not_finite[:4]]
    return Finding(
        "bad",
        f"not finite: {', '.join(spec.label for spec in odd)}",
        "only numbers",
        next((spec.advice for spec in odd if spec.advice), ""),
        "NaN or infinite values, which do not go away by themselves: resume from a checkpoint saved before them.",
    )


def _evaluation(now: Circumstances) -> Finding | None:
    if now.evaluation is None:
        return None
    _, best, newest = now.evaluation
    lost = now.lost
    level: Level = "ok"
    advice = ""
    if lost > _LOST_HALF and now.past(_EARLY):
        level = "bad" if lost > _LOST_MOST else "warn"
        advice = (
            f"it was {number(best)}: most of the gain is lost. The best policy is kept (operant eval RUN "
            "--checkpoint best)"
        )
    elif now.target is not None and newest < now.target and now.past(_LATE):
        near = "all steps are done" if now.past(1.0) else "the end is near"
        level, advice = "warn", f"{near} and the target is not reached: more run.steps, or another seed"
    wanted = (
        f"target {number(now.target).removesuffix('.0')}"
        if now.target is not None
        else f"near the best, {number(best)}"
    )
    return Finding(
        level,
        f"eval {number(newest)}",
        wanted,
        advice,
        "The mean return of complete greedy episodes in a separate world. To lose half of the gain since the start of "
        "the run is a warning.",
    )


def _gpu(now: Circumstances) -> Finding | None:
    gpu = now.gpu
    if gpu is None:
        return None
    if gpu.throttled is not None and gpu.throttled != POWER_LIMIT:  # which a GPU that is well used meets
        return Finding(
            "warn",
            f"GPU clock held down: {safe(gpu.throttled, 40)}",
            "full clock",
            "cooling, or the power supply: nvidia-smi -q -d PERFORMANCE says more",
            "NVML's reason for a clock below its maximum. Training is slower than this GPU could be; its results are "
            "the same.",
        )
    if gpu.utilisation is None:
        return None
    idle = gpu.utilisation < _IDLE_GPU
    return Finding(
        "warn" if idle else "ok",
        f"GPU {100 * gpu.utilisation:.0f} % busy",
        f"above {100 * _IDLE_GPU:.0f} %",
        "the GPU waits: raise env.lanes or algo.horizon" if idle else "",
        "The share of the last second in which a kernel ran (NVML). It says nothing about how well the kernels fill "
        "the GPU.",
    )


def _safety(now: Circumstances) -> Finding | None:
    failures = now.checkpoint_failures
    if failures:
        return Finding(
            "bad" if failures >= 3 else "warn",
            f"{failures} checkpoint{'s' if failures > 1 else ''} not saved",
            "0",
            "see the log: a full disk, a quota, or a folder that cannot be written",
            "Checkpoints in a row that could not be written. Training goes on; a resume would begin at the last one "
            "that is safe.",
        )
    if now.history_error:
        return Finding(
            "warn",
            "history not written",
            "written",
            "free some disk: older records are lost when the ring is full",
            "Records beyond the newest thousand belong in the run's history, which cannot be written. Training "
            "goes on.",
        )
    return None
