"""Training health: findings from a run's recent metrics. Standard library only. Pure: nothing is stored.

The run's metrics declare their warning thresholds (`operant.runs.metrics.spec.Threshold`). This module applies them and
adds the checks that belong to no metric: non-finite values, evaluation, GPU, checkpoints. Rules look at the newest ten
seconds of records (at least twenty), so that a single outlier changes nothing. Level `bad` is used only after a
twentieth of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from monitor.data.curve import upper_median
from monitor.data.snapshot import POWER_LIMIT, Finding, Gpu, Level, System
from monitor.data.summary import RunData, evaluations_shown, values_shown
from operant.runs import MetricSpec, Threshold, integer_of, number_of
from operant.runs.metrics.spec import POSITIVE
from operant.text import count, number, safe

SETTLED_SHARE: Final = 0.05
"""Share of the run before which no finding is `bad`: early values are unusual in every run."""
_SETTLED_ITERATIONS = 50  # iterations before which no finding is `bad`, in a run of unknown length
_EARLY, _LATE = 0.2, 0.9
_IDLE_GPU = 0.6
_NEXT_TO_BEST, _LOST_HALF, _LOST_MOST = 0.02, 0.5, 0.8
_LEAST_GAIN: Final = 1e-3  # of the largest evaluation's absolute value
_RECENT, _MINUTE = (10.0, 20), (60.0, 20)  # (seconds, minimum number of records)
_ORDER: Final[dict[Level, int]] = {"bad": 0, "warn": 1, "ok": 2}


class HealthContext(NamedTuple):
    """Facts about a run, other than recent metric values, on which the health rules depend. None or empty: unknown."""

    share: float | None = None  # fraction of the steps done
    iterations: float = 0.0
    medians: Mapping[str, float] = MappingProxyType({})  # medians of the last minute
    highest: Mapping[str, float] = MappingProxyType({})  # the largest values so far
    newest: Mapping[str, float] = MappingProxyType({})  # newest values of metrics that other rules depend on
    evaluation: tuple[float, float, float] | None = None  # (first, best, newest), see Timeline.evaluations
    target: float | None = None
    gpu: Gpu | None = None
    checkpoint_failures: int = 0
    history_error: bool = False
    not_finite: tuple[str, ...] = ()  # metrics with non-finite values

    @property
    def settled(self) -> bool:
        """Whether enough of the run is done for a finding of level `bad`."""
        return self.share >= SETTLED_SHARE if self.share is not None else self.iterations >= _SETTLED_ITERATIONS

    @property
    def gain(self) -> float:
        """Increase of the evaluation return from the first to the best evaluation; 0 without evaluations, or if it is
        less than a thousandth of their largest absolute value.
        """
        if self.evaluation is None:
            return 0.0
        began, best, _newest = self.evaluation
        return best - began if best - began > _LEAST_GAIN * max(map(abs, self.evaluation)) else 0.0

    @property
    def lost_share(self) -> float:
        """Share of the increase `gain` that the newest evaluation has lost; 0 without a gain."""
        if self.evaluation is None or self.gain <= 0:
            return 0.0
        _began, best, newest = self.evaluation
        return (best - newest) / self.gain

    @property
    def at_target(self) -> bool:
        """Whether the newest evaluation has reached the target."""
        return self.evaluation is not None and self.target is not None and self.evaluation[2] >= self.target

    @property
    def at_its_best(self) -> bool:
        """Whether the newest evaluation has reached the target or lost less than 2 % of the gain so far."""
        return self.at_target or (self.gain > 0 and self.lost_share < _NEXT_TO_BEST)

    def has_reached(self, share: float) -> bool:
        """Whether at least `share` (0 to 1) of the planned steps is done. With an unknown number of steps only a
        `share` of 0 is reached.
        """
        return share <= 0 or (self.share is not None and self.share >= share)

    def reference_value(self, name: str, rule: Threshold) -> float:
        """Return the factor by which the bounds of `rule` are multiplied: 1, or for a relative rule the median of
        metric `name` over the last minute or its highest value; NaN if unknown.
        """
        if not rule.relative_to:
            return 1.0
        factor = (self.medians if rule.relative_to == "minute" else self.highest).get(name, math.nan)
        return factor if factor > 0 else math.nan

    def dependency_holds(self, rule: Threshold) -> bool:
        """Whether the metric on which `rule` depends (`while_metric`) is large enough for the rule to apply. True for a
        rule without one.
        """
        highest, newest = self.highest.get(rule.while_metric, 0.0), self.newest.get(rule.while_metric)
        return newest is None or highest <= 0 or newest > rule.while_share * highest

    def exemption(self, rule: Threshold) -> str:
        """Return the reason why `rule` does not apply at this point of training; "" if it applies."""
        if (rule.unless == "target" and self.at_target) or (rule.unless == "best" and self.at_its_best):
            return "at its best"
        return "" if self.has_reached(rule.after) else "too early to tell"


def health_context(data: RunData, system: System | None, step: float | None = None) -> HealthContext:
    """Collect the facts that the health rules need, at `step` (None: now). `system`: measurements of the machine, if
    any.
    """
    timeline, document = data.timeline, data.run.document
    if timeline is None:
        return HealthContext()
    curves, position = timeline.table.curves, timeline.table.last if step is None else timeline.table.position(step)
    done, steps = (0.0, 0.0, 0.0) if position is None else position, integer_of(document, "steps")
    rules = [(spec.name, rule) for spec in timeline.thresholded for rule in spec.thresholds]
    usual = {name for name, rule in rules if rule.relative_to == "minute"}
    others = {rule.while_metric for _, rule in rules if rule.while_metric in curves}
    minute = {
        name: _finite(some) for name, some in timeline.table.window(*_MINUTE, usual | others, step=step).values.items()
    }
    highest = {
        name: curves[name].maximum(step)
        for name in others | {name for name, rule in rules if rule.relative_to == "highest" or rule.ever}
    }
    status = data.look.status if step is None else None
    live = data.state.live and step is None
    return HealthContext(
        share=min(1.0, done[0] / steps) if steps else None,
        iterations=done[2],
        medians={name: upper_median(minute[name]) for name in usual if minute[name]},
        highest={name: value for name, value in highest.items() if value is not None},
        newest={name: minute[name][-1] for name in others if minute[name]},
        evaluation=evaluations_shown(timeline, step),
        target=number_of(document, "target"),
        gpu=system.gpu if system is not None and live else None,
        checkpoint_failures=0 if status is None else status.checkpoint_failures,
        history_error=bool(status is not None and live and status.history_errno),
        not_finite=tuple(name for name, curve in curves.items() if curve.not_finite) if step is None else (),
    )


def check(data: RunData, system: System | None, step: float | None = None) -> tuple[Finding, ...]:
    """Return the health findings at `step` (None: now), from the records of the ten seconds before it, at least twenty
    records. `system`: measurements of the machine, if any.
    """
    return findings_now(verdicts(data, system, step), data, step)


def verdicts(data: RunData, system: System | None, step: float | None = None) -> Verdicts:
    """Apply the health rules to the records of the last ten seconds before `step` (None: now). Costly, so that the feed
    calls it once a second; `findings_now` turns the outcome into findings with current values.
    """
    timeline = data.timeline
    if timeline is None:
        return Verdicts((), HealthContext())
    recent = timeline.table.window(*_RECENT, [spec.name for spec in timeline.thresholded], step=step).values
    context = health_context(data, system, step)
    return Verdicts(_verdicts(recent, timeline.specs, context), context)


def findings_now(verdicts: Verdicts, data: RunData, step: float | None = None) -> tuple[Finding, ...]:
    """Turn outcomes of the health rules into findings that quote the values shown by header and charts at the same
    moment. () without records.
    """
    timeline = data.timeline
    if timeline is None:
        return ()
    context = verdicts.context._replace(evaluation=evaluations_shown(timeline, step))
    return _findings(verdicts.metrics, timeline.specs, context, values_shown(timeline, timeline.thresholded, step))


def findings(
    recent: Mapping[str, Sequence[float]],
    specs: Mapping[str, MetricSpec],
    context: HealthContext,
    shown: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Finding, ...]:
    """Return health findings from the recent values of each metric, most severe first, then in the order of the
    metrics. `shown`: values that the header displays.
    """
    return _findings(_verdicts(recent, specs, context), specs, context, shown)


def _verdicts(
    recent: Mapping[str, Sequence[float]], specs: Mapping[str, MetricSpec], context: HealthContext
) -> tuple[_Verdict, ...]:
    """Apply the health rules of each metric to its recent finite values; metrics without any are left out."""
    values = {name: finite for name, some in recent.items() if (finite := _finite(some))}
    judged = [_apply_rules(specs[name], some, context) for name, some in values.items() if name in specs]
    return tuple(verdict for verdict in judged if verdict is not None)


def _findings(
    judged: Sequence[_Verdict], specs: Mapping[str, MetricSpec], context: HealthContext, shown: Mapping[str, float]
) -> tuple[Finding, ...]:
    """Turn the metrics' outcomes of the health rules (`judged`) and the run's other facts into findings, most severe
    first. `shown`: displayed values by metric.
    """
    metrics = [_finding(verdict, context, shown.get(verdict.spec.name)) for verdict in judged]
    result = [
        finding
        for finding in (
            _finiteness_finding(specs, context),
            _evaluation_finding(context),
            *metrics,
            _gpu_finding(context),
            _writing_finding(context),
        )
        if finding is not None
    ]
    if not context.settled:
        result = [finding._replace(level="warn") if finding.level == "bad" else finding for finding in result]
    return tuple(sorted(result, key=lambda finding: _ORDER[finding.level]))


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


# ----------------------------------------------------------------------------------------------------------------------
# rules of metrics


class _Rule(NamedTuple):
    """Threshold of a metric with its bounds in the metric's unit: it applies to values in [low, high)."""

    threshold: Threshold
    low: float
    high: float

    def holds(self, values: Sequence[float]) -> bool:
        """Whether the required share of the recent `values` (or the newest one) lies within the rule's bounds."""
        if self.threshold.records <= 0:
            return self.low <= values[-1] < self.high
        return sum(self.low <= value < self.high for value in values) >= self.threshold.records * len(values)


class _Verdict(NamedTuple):
    """Outcome of the health rules for one metric: the rule that fired, if any, and the value to which the rules were
    applied.
    """

    spec: MetricSpec
    value: float  # median, or the newest if the rules look at that
    rules: tuple[_Rule, ...]  # rules that can apply now
    limits: tuple[_Rule, ...]  # rules that give the expected range: those, else all
    fired: _Rule | None  # first rule that holds and is not exempt
    exemption: str  # reason why a rule that holds is exempt


class Verdicts(NamedTuple):
    """Outcomes of the health rules for all metrics, and the context in which they were applied."""

    metrics: tuple[_Verdict, ...]
    context: HealthContext


def _apply_rules(spec: MetricSpec, values: Sequence[float], context: HealthContext) -> _Verdict | None:
    """Apply a metric's thresholds to its recent values; the first that holds and is not exempt decides. None if no
    threshold can be applied yet.
    """
    if any(threshold.ever for threshold in spec.thresholds):
        values = [context.highest.get(spec.name, values[-1])]
    rules = [
        _rule(threshold, reference)
        for threshold in spec.thresholds
        if (reference := context.reference_value(spec.name, threshold)) == reference
    ]
    if not rules:
        return None
    wanted = [
        rule
        for rule in rules
        if context.dependency_holds(rule.threshold)
        and (rule.threshold.until >= 1 or not context.has_reached(rule.threshold.until))
    ]
    holding = [rule for rule in wanted if rule.holds(values)]
    fired = next((rule for rule in holding if not context.exemption(rule.threshold)), None)
    value = values[-1] if all(rule.threshold.records <= 0 for rule in rules) else upper_median(values)
    exemption = next((context.exemption(rule.threshold) for rule in holding), "") if fired is None else ""
    return _Verdict(spec, value, tuple(wanted), tuple(wanted or rules), fired, exemption)


def _finding(verdict: _Verdict, context: HealthContext, shown: float | None) -> Finding:
    """Turn the outcome of the health rules for a metric into a finding that quotes `shown`, the displayed value. If the
    rules would decide otherwise about that value, the title adds the median that they were applied to.
    """
    spec, value, fired = verdict.spec, verdict.value, verdict.fired
    format_value = count if spec.kind == "rate" else number
    ever = any(threshold.ever for threshold in spec.thresholds)
    median = ", at its highest" if ever and fired is not None else ""
    if shown is not None and math.isfinite(shown) and not ever:
        shown_fires = any(
            rule.low <= shown < rule.high
            for rule in (verdict.rules if fired is None else [fired])
            if not context.exemption(rule.threshold)
        )
        if shown_fires == (fired is None):
            median = f" (median {format_value(value)})"
        value = shown
    unit = f" {spec.unit}" if spec.unit and spec.kind != "rate" and spec.unit != "reward" else ""
    limits = verdict.exemption or _limits([fired] if fired is not None else verdict.limits, value, format_value)
    level: Level = "ok" if fired is None else "bad" if fired.threshold.level == "bad" else "warn"
    advice = "" if fired is None else fired.threshold.advice or spec.advice
    return Finding(level, f"{spec.label} {format_value(value)}{unit}{median}", limits, advice, spec.explanation)


def _rule(threshold: Threshold, reference: float) -> _Rule:
    """Return a threshold with its bounds multiplied by `reference`."""
    low, high = threshold.at_least, threshold.below
    return _Rule(
        threshold, -math.inf if low is None else low * reference, math.inf if high is None else high * reference
    )


def _limits(rules: Sequence[_Rule], value: float, format_value: Callable[[float], str]) -> str:
    """Return the expected range as text, such as "below 0.02": the values to which none of the rules objects. "" if the
    rules set no bound.
    """
    above = max((rule.high for rule in rules if rule.high < math.inf and value >= rule.low), default=None)
    below = min((rule.low for rule in rules if rule.high == math.inf), default=None)
    if below == POSITIVE:
        return "0"
    if above is not None and below is not None:
        return f"{format_value(above)} to {format_value(below)}"
    return (
        f"above {format_value(above)}"
        if above is not None
        else f"below {format_value(below)}"
        if below is not None
        else ""
    )


# ----------------------------------------------------------------------------------------------------------------------
# rules of the run


def _finiteness_finding(specs: Mapping[str, MetricSpec], context: HealthContext) -> Finding | None:
    """Return a finding that names metrics with NaN or infinite values; None if there are none."""
    if not context.not_finite:
        return None
    odd = [specs.get(name, MetricSpec(name, name)) for name in context.not_finite[:4]]
    return Finding(
        "bad",
        f"not finite: {', '.join(spec.label for spec in odd)}",
        "finite values",
        next((spec.advice for spec in odd if spec.advice), ""),
        "NaN or infinite values, which do not recover by themselves: resume from a checkpoint saved before them.",
    )


def _evaluation_finding(context: HealthContext) -> Finding | None:
    """Return the finding about the newest evaluation, compared with the best one and the target; None without
    evaluations.
    """
    if context.evaluation is None:
        return None
    _, best, newest = context.evaluation
    lost, target = context.lost_share, context.target
    level: Level = "ok"
    advice = ""
    if lost > _LOST_HALF and context.has_reached(_EARLY):
        level = "bad" if lost > _LOST_MOST else "warn"
        advice = (
            f"the best was {number(best)}: most of the gain is lost. The best policy is saved (operant eval RUN "
            "--checkpoint best)"
        )
    elif target is not None and not context.at_target and context.has_reached(_LATE):
        near = "all steps are done" if context.has_reached(1.0) else "the end is near"
        level, advice = "warn", f"{near} and the target is not reached: more run.steps, or another seed"
    pending = level == "ok" and target is not None and not context.at_target
    wanted = (
        f"target {number(target).removesuffix('.0')}{' not reached' if pending else ''}"
        if target is not None
        else f"near the best, {number(best)}"
    )
    return Finding(
        level,
        f"eval {number(newest)}",
        wanted,
        advice,
        "Mean return of complete greedy episodes in separate environments. A loss of half of the gain since the start "
        "of the run is a warning.",
        pending,
    )


def _gpu_finding(context: HealthContext) -> Finding | None:
    """Return the finding about a reduced GPU clock or the GPU's utilisation; None if neither is known."""
    gpu = context.gpu
    if gpu is None:
        return None
    if gpu.throttled is not None and gpu.throttled != POWER_LIMIT:  # normal for a fully used GPU
        return Finding(
            "warn",
            f"GPU clock reduced: {safe(gpu.throttled, 40)}",
            "full clock",
            "check cooling and power supply: nvidia-smi -q -d PERFORMANCE",
            "NVML's reason for a clock below its maximum. Training is slower; its results are the same.",
        )
    if gpu.utilisation is None:
        return None
    idle = gpu.utilisation < _IDLE_GPU
    return Finding(
        "warn" if idle else "ok",
        f"GPU {100 * gpu.utilisation:.0f} % busy",
        f"above {100 * _IDLE_GPU:.0f} %",
        "the GPU waits: raise env.lanes or algo.horizon" if idle else "",
        "Share of the last second in which a kernel ran (NVML). It does not measure how well the kernels fill the GPU.",
    )


def _writing_finding(context: HealthContext) -> Finding | None:
    """Return a finding about checkpoints or a history that could not be written; None if all is well."""
    failures = context.checkpoint_failures
    if failures:
        return Finding(
            "bad" if failures >= 3 else "warn",
            f"{failures} checkpoint{'s' if failures > 1 else ''} not saved",
            "0",
            "see the log: a full disk, a quota, or a folder that cannot be written",
            "Consecutive checkpoints that could not be written. Training continues; a resume would start from the last "
            "complete one.",
        )
    if context.history_error:
        return Finding(
            "warn",
            "history not written",
            "written",
            "free disk space: older records are lost when the ring buffer is full",
            "The run's history, which stores all records beyond the newest thousand, cannot be written. Training "
            "continues.",
        )
    return None
