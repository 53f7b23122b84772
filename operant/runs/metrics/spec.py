"""Declaration of a metric: label, position on a screen, thresholds of warnings. Stored with the run as `metrics.json`.
Standard library only.

A metric is declared once, next to the code that computes it; a viewer knows metrics only through these values and the
schema of the metrics file. Thresholds are data: a viewer applies them to the recent records (those of the last ten
seconds, at least twenty). `encode` and `decode` convert between declarations and the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from operant.errors import ConfigError
from operant.text import safe

FILE: Final = "metrics.json"
LIMIT_BYTES: Final = 1 << 18
"""Size limit of a document."""
MOST: Final = 4096
"""Most metrics in a document, as in a metrics file."""
LEVELS: Final = ("warn", "bad")
RELATIONS: Final = ("", "minute", "highest")
EXCEPTIONS: Final = ("", "best", "target")
RETURN, EVALUATION, ITERATIONS, SECONDS = "return", "eval/return", "iterations", "seconds/"
"""Names with the same meaning in every run: mean return of training, mean return of the evaluation, iterations per
record, prefix of the seconds of a phase.
"""
BOOKKEEPING: Final = 900
"""Orders from this one on are bookkeeping: displayed after metrics without an order."""
UNORDERED: Final = 500
_MOST_THRESHOLDS = 16
_FORM: Final = (
    "a name is 1 to 63 of A-Z a-z 0-9 _ . / -, texts are printable (label and unit up to 40 characters, figure 16, "
    f"advice 300), at most {_MOST_THRESHOLDS} "
    f"thresholds, each with a bound, a level of {LEVELS}, relative_to of {RELATIONS}, unless of {EXCEPTIONS}"
)
_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,63}")
_CELLS: Final = {"label": 40, "unit": 40, "figure": 16, "advice": 300, "explanation": 600, "kind": 8, "absent": 120}


POSITIVE: Final = 1e-30
"""Lower bound of a rule for every number above 0."""


class Threshold(NamedTuple):
    """Rule for a warning about a metric: it has `level` while its recent values lie in [at_least, below) and all other
    conditions hold. The first rule that applies counts.
    """

    level: str  # of LEVELS
    at_least: float | None = None  # None: no lower bound
    below: float | None = None  # None: no upper bound
    advice: str = ""  # advice in one sentence; "": that of the metric
    records: float = 0.5  # share of recent records in the range: 0.5 tests the median, 0 the newest record alone
    after: float = 0.0  # only after this share of the run
    until: float = 1.0  # only before this share of the run; 1: to the end
    # "": the value itself; "minute": divided by the median of the last minute; "highest": by the run's largest value
    relative_to: str = ""
    unless: str = ""  # "best": not while the evaluation is at its best; "target": not once it has reached the target
    while_metric: str = ""  # only while another metric ...
    while_share: float = 0.0  # ... is above this share of its largest value
    ever: bool = False  # applied to the largest value so far instead of the recent ones


class MetricSpec(NamedTuple):
    """Declaration of a metric: name in the metrics file, label, unit, place on the screen and warnings. Written next to
    the code that computes the metric.
    """

    name: str  # [A-Za-z0-9_./-]{1,63}
    label: str = ""  # of its chart; "": the name
    unit: str = ""
    higher_better: bool = False
    figure: str = ""  # label among the key figures; "": not one of them
    order: int = UNORDERED  # order of charts and figures, lowest first; from BOOKKEEPING on: last
    thresholds: tuple[Threshold, ...] = ()  # the first that applies counts; empty: no health line
    advice: str = ""  # advice if a threshold has none, and for a non-finite value
    explanation: str = ""  # explanation and usual values
    kind: str = "gauge"  # of the metrics file: gauge, counter (summed where records are merged), rate
    absent: str = ""  # text of an empty chart that has a reason: "not measured with NCCL"


def encode(specs: Sequence[MetricSpec]) -> dict[str, Any]:
    """Encode metric declarations as a JSON document, without default values. Raises ConfigError for a declaration that
    `decode` would reject.
    """
    metrics = [
        _fields(spec) | ({"thresholds": [*map(_fields, spec.thresholds)]} if spec.thresholds else {}) for spec in specs
    ]
    document = {"schema": 1, "metrics": metrics}
    decoded = decode(document)
    if problems := [f"{safe(spec.name)!r}: {_FORM}" for spec in specs if decoded.get(spec.name) != spec]:
        raise ConfigError("the list of metrics", problems)
    return document


def _fields(one: MetricSpec | Threshold) -> dict[str, Any]:
    """Return the fields of a declaration that differ from their defaults."""
    defaults = one._field_defaults
    return {key: value for key, value in one._asdict().items() if key not in defaults or value != defaults[key]}


def decode(document: Mapping[str, Any]) -> dict[str, MetricSpec]:
    """Return the metric declarations in an untrusted document by name, all text printable. Invalid parts are left out;
    never raises.
    """
    entries = document.get("metrics")
    if document.get("schema") != 1 or not isinstance(entries, list) or len(entries) > MOST:
        return {}
    specs = [spec for entry in entries if isinstance(entry, dict) and (spec := _spec(entry)) is not None]
    return {spec.name: spec for spec in specs}


def _spec(entry: dict[str, Any]) -> MetricSpec | None:
    """Return the metric declaration in an entry of the document; None if it is invalid."""
    thresholds = entry.get("thresholds", [])
    if not isinstance(thresholds, list) or len(thresholds) > _MOST_THRESHOLDS:
        return None
    fields = _typed(entry, MetricSpec, skipped="thresholds")
    rules = [rule for one in thresholds if isinstance(one, dict) and (rule := _threshold(one)) is not None]
    if fields is None or not _NAME.fullmatch(fields["name"]) or abs(fields.get("order", 0)) > 1 << 31:
        return None
    return MetricSpec(**fields, thresholds=tuple(rules))


def _threshold(entry: dict[str, Any]) -> Threshold | None:
    """Return the threshold in an entry of the document; None if it is invalid."""
    fields = _typed(entry, Threshold)
    if fields is None:
        return None
    rule = Threshold(**fields)
    allowed = rule.level in LEVELS and rule.relative_to in RELATIONS and rule.unless in EXCEPTIONS
    return rule if allowed and (rule.at_least is not None or rule.below is not None) else None


def _typed(entry: dict[str, Any], kind: type[MetricSpec] | type[Threshold], skipped: str = "") -> dict[str, Any] | None:
    """Return the fields of the NamedTuple `kind` from an untrusted entry, all but `skipped`, each of the type of its
    default. None if one has another type or a required text is missing.
    """
    defaults, fields = kind._field_defaults, dict[str, Any]()
    for key in kind._fields:
        if key == skipped or (key not in entry and key in defaults):
            continue
        value, expected = entry.get(key), type(defaults.get(key, ""))
        if expected is str and isinstance(value, str):
            fields[key] = safe(value, _CELLS.get(key, 80))
        elif expected in (bool, int) and type(value) is expected:
            fields[key] = value
        elif (
            expected in (float, type(None))
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) < 1e300
        ):
            fields[key] = float(value)
        else:
            return None
    return fields
