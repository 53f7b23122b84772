"""What a metric means: its label, its place on a screen, and when it is a warning. Travels with the run as
`metrics.json`. Standard library only.

The code that makes a metric declares it here once; a viewer knows metrics only through these values and the metrics
file's schema. Thresholds are data: a viewer applies them to the recent records (those of the last ten seconds, at least
twenty). Knows no file: `encode` and `decode` are for the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from operant.errors import ConfigError
from operant.text import safe

FILE: Final = "metrics.json"
LIMIT_BYTES: Final = 1 << 18
"""A larger document is not read."""
MOST: Final = 4096
"""Metrics in a document, as in a metrics file."""
LEVELS: Final = ("warn", "bad")
RELATIONS: Final = ("", "minute", "highest")
EXCEPTIONS: Final = ("", "best", "target")
RETURN, EVALUATION, ITERATIONS, SECONDS = "return", "eval/return", "iterations", "seconds/"
"""Names that mean the same in every run, whatever its algorithm: the training's and the evaluation's mean return,
iterations a record, time a phase.
"""
BOOKKEEPING: Final = 900
"""The order from which on a metric is bookkeeping: behind those that declare none."""
UNORDERED: Final = 500
_MOST_THRESHOLDS = 16
_FORM: Final = (
    "a name is 1 to 63 of A-Z a-z 0-9 _ . / -, texts are printable (label and unit up to 40 characters, figure 16, "
    f"advice 300), at most {_MOST_THRESHOLDS} "
    f"thresholds, each with a bound, a level of {LEVELS}, relative_to of {RELATIONS}, unless of {EXCEPTIONS}"
)
_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,63}")
_CELLS: Final = {"label": 40, "unit": 40, "figure": 16, "advice": 300, "explanation": 600, "kind": 8, "absent": 120}


class Threshold(NamedTuple):
    """One rule: the metric deserves a `level` while its recent values lie in [at_least, below) and all conditions hold.
    The first rule that applies counts.
    """

    level: str  # of LEVELS
    at_least: float | None = None  # None: no lower bound
    below: float | None = None  # None: no upper bound
    advice: str = ""  # what to try, in one sentence; "": the metric's own
    records: float = (
        0.5  # the share of the recent records in the range: 0.5 judges the median, 0 the newest record alone
    )
    after: float = 0.0  # only once this share of the run is done
    until: float = 1.0  # only before this share of the run is done; 1: to the end
    # "": the value itself; "minute": divided by the median of the last minute; "highest": by the run's largest value
    relative_to: str = ""
    unless: str = ""  # "best": not while the evaluation is at its best; "target": not once it has reached the target
    while_metric: str = ""  # only while another metric ...
    while_share: float = 0.0  # ... is above this share of its largest value


class MetricSpec(NamedTuple):
    """One metric, declared where it is made. `name` is that of the metrics file."""

    name: str  # [A-Za-z0-9_./-]{1,63}
    label: str = ""  # of its chart; "": the name
    unit: str = ""
    higher_better: bool = False
    figure: str = ""  # what it is called among the key figures; "": it is none of them
    order: int = UNORDERED  # among charts and figures, the lowest first; from BOOKKEEPING on: last
    thresholds: tuple[Threshold, ...] = ()  # the first that applies counts; with none the metric has no health line
    advice: str = ""  # what to try where a threshold says nothing of its own, and where a value is not finite
    explanation: str = ""  # what the number is, and what is usual
    kind: str = "gauge"  # of the metrics file: gauge, counter (summed where records are merged), rate
    absent: str = (
        ""  # what its chart says for as long as it has no value, where that has a reason: "not measured with NCCL"
    )


def encode(specs: Sequence[MetricSpec]) -> dict[str, Any]:
    """The document of some metrics; what equals the default is left out. Raises ConfigError for a metric that a reader
    would not take as it is.
    """
    metrics = [
        _fields(spec) | ({"thresholds": [*map(_fields, spec.thresholds)]} if spec.thresholds else {}) for spec in specs
    ]
    document = {"schema": 1, "metrics": metrics}
    taken = decode(document)
    if problems := [f"{safe(spec.name)!r}: {_FORM}" for spec in specs if taken.get(spec.name) != spec]:
        raise ConfigError("the list of metrics", problems)
    return document


def _fields(one: MetricSpec | Threshold) -> dict[str, Any]:
    defaults = one._field_defaults
    return {key: value for key, value in one._asdict().items() if key not in defaults or value != defaults[key]}


def decode(document: Mapping[str, Any]) -> dict[str, MetricSpec]:
    """The metrics of an untrusted document by name, all text printable. Of what does not fit its form there is nothing:
    never raises.
    """
    entries = document.get("metrics")
    if document.get("schema") != 1 or not isinstance(entries, list) or len(entries) > MOST:
        return {}
    found = [spec for entry in entries if isinstance(entry, dict) and (spec := _spec(entry)) is not None]
    return {spec.name: spec for spec in found}


def _spec(entry: dict[str, Any]) -> MetricSpec | None:
    thresholds = entry.get("thresholds", [])
    if not isinstance(thresholds, list) or len(thresholds) > _MOST_THRESHOLDS:
        return None
    fields = _typed(entry, MetricSpec, skipped="thresholds")
    rules = [rule for one in thresholds if isinstance(one, dict) and (rule := _threshold(one)) is not None]
    if fields is None or not _NAME.fullmatch(fields["name"]) or abs(fields.get("order", 0)) > 1 << 31:
        return None
    return MetricSpec(**fields, thresholds=tuple(rules))


def _threshold(entry: dict[str, Any]) -> Threshold | None:
    fields = _typed(entry, Threshold)
    if fields is None:
        return None
    rule = Threshold(**fields)
    allowed = rule.level in LEVELS and rule.relative_to in RELATIONS and rule.unless in EXCEPTIONS
    return rule if allowed and (rule.at_least is not None or rule.below is not None) else None


def _typed(entry: dict[str, Any], kind: type[MetricSpec] | type[Threshold], skipped: str = "") -> dict[str, Any] | None:
    """The fields of a NamedTuple that an entry has, each of its default's type; None where one is of another, or a
    required one (a text) is missing.
    """
    defaults, fields = kind._field_defaults, dict[str, Any]()
    for key in kind._fields:
        if key == skipped or (key not in entry and key in defaults):
            continue
        value, wanted = entry.get(key), type(defaults.get(key, ""))
        if wanted is str and isinstance(value, str):
            fields[key] = safe(value, _CELLS.get(key, 80))
        elif wanted in (bool, int) and type(value) is wanted:
            fields[key] = value
        elif (
            wanted in (float, type(None))
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) < 1e300
        ):
            fields[key] = float(value)
        else:
            return None
    return fields
