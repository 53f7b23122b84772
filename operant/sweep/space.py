"""Search space: searched keys of the configuration, their ranges and conditions.

algo.learning_rate = {log = [1e-4, 1e-2]}          log-uniform; integers if both ends are
algo.gamma = {uniform = [0.9, 0.999]}              uniform, in steps with `step`
net.hidden = {choice = [[64, 64], [256, 256]]}     one of a list
... when = {"algo.kernels" = "torch"}              searched only if the other key has this value, or one of a list
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

_KINDS = ("log", "uniform", "choice")
_WORDS = (*_KINDS, "step", "when")
_FORMS = "{log = [1e-4, 1e-2]}, {uniform = [0.9, 0.999]} or {choice = [16, 32]}"
_FIXED = {
    "env.name": "trials of several environments have no common score",
    "algo.name": "algorithms have different keys: run one sweep for each",
    "run.seed": "all trials have the same seeds; use sweep.seeds=N",
    "run.seeds": "all trials have the same seeds; use sweep.seeds=N",
    "run.name": "the sweep names its trials",
    "run.device": "the sweep spreads its trials over the devices; use sweep.workers=N",
    "run.target": "trials are measured by it",
}


class Sampler(Protocol):
    """Interface of a source of sampled values: a trial of the search engine. `name` is the searched key."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Sample a float in [low, high]: log-uniformly with `log`, in multiples of `step` from `low` if given."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Sample an integer in [low, high]: log-uniformly with `log` (then `step` is 1), otherwise in multiples of
        `step` from `low`.
        """

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """Choose one of `choices`, uniformly or as the search engine prefers."""


class Dimension(NamedTuple):
    """Dimension of the search space: a searched key with its range or choices, and the conditions on other keys
    (`when`) under which it is sampled.
    """

    key: str
    kind: str  # of _KINDS
    low: float = 0
    high: float = 0
    whole: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # conditions: (key, allowed values)

    def sample(self, sampler: Sampler) -> Any:
        """Sample a value of this searched key from the search engine."""
        if self.kind == "choice":
            named = {stored(choice): choice for choice in self.choices}
            return named[sampler.suggest_categorical(self.key, list(named))]
        if self.whole:
            return sampler.suggest_int(
                self.key, int(self.low), int(self.high), step=int(self.step or 1), log=self.kind == "log"
            )
        return sampler.suggest_float(self.key, self.low, self.high, step=self.step, log=self.kind == "log")

    def samples(self) -> tuple[Any, ...]:
        """Values of this searched key that are checked in place of all: both ends of its range, or every choice."""
        ends = (int(self.low), int(self.high)) if self.whole else (self.low, self.high)
        return self.choices if self.kind == "choice" else ends

    def holds(self, value: Any) -> bool:
        """Whether the range or the choices of this searched key contain a value."""
        if self.kind == "choice":
            return value in self.choices
        number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return (
            number
            and self.low <= value <= self.high
            and (self.step is None or math.isclose(math.remainder(value - self.low, self.step), 0.0, abs_tol=1e-9))
        )

    def height(self, value: Any) -> float:
        """Position of a stored value within the range of this searched key, from 0 for the lowest to 1 for the highest,
        on a log axis for a log range; NaN for None.
        """
        if value is None:
            return math.nan
        if self.kind == "choice":
            return [stored(choice) for choice in self.choices].index(value) / max(1, len(self.choices) - 1)
        if self.kind == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def stored(choice: Any) -> Any:
    """Convert a choice to the form that the search engine stores: lists and tables become JSON text."""
    return json.dumps(choice) if isinstance(choice, list | dict) else choice


def values(space: Sequence[Dimension], sampler: Sampler) -> dict[str, Any]:
    """Sample a value for each key whose conditions hold. `space` has each key after those of its conditions."""
    chosen: dict[str, Any] = {}
    for dimension in space:
        if all(key in chosen and chosen[key] in allowed for key, allowed in dimension.when):
            chosen[dimension.key] = dimension.sample(sampler)
    return chosen


def own(space: Sequence[Dimension], configured: Mapping[str, Any]) -> dict[str, Any]:
    """Values that a configuration (`configured`, by dotted key) has for the searched keys, as the search engine stores
    them; {} if one lies outside the space.
    """
    chosen: dict[str, Any] = {}
    for dimension in space:
        if all(key in chosen and chosen[key] in allowed for key, allowed in dimension.when):
            chosen[dimension.key] = configured.get(dimension.key)
            if not dimension.holds(chosen[dimension.key]):
                return {}
    return {key: stored(value) for key, value in chosen.items()}


def override(key: str, value: Any) -> str:
    """Format an override `key=value` for the command line."""
    return f"{key}={value if isinstance(value, float) else json.dumps(value)}"


# ----------------------------------------------------------------------------------------------------------------------
# reading


def parse(tables: Mapping[str, Any], problem: Callable[[tuple[str, ...], str], None]) -> list[Dimension]:
    """Parse the search space from the nested tables of `[sweep]`, each key after those of its conditions. `problem` is
    called with each invalid key and a message.
    """
    dimensions: dict[str, Dimension] = {}
    for path, table in _dimension_tables(tables, problem):
        key = ".".join(path)
        reason = _FIXED.get(key) or (
            f"[{path[0]}] does not change the policy" if path[0] in ("checkpoint", "eval") else None
        )
        message = f"cannot be searched: {reason}" if reason else None
        dimension = None if message else _parse_dimension(key, table)
        if isinstance(dimension, Dimension):
            dimensions[key] = dimension
        else:
            problem(path, f"sweep.{key}: {message or dimension}")
    return _sort_by_conditions(dimensions, problem)


def _dimension_tables(
    tables: Mapping[str, Any], problem: Callable[[tuple[str, ...], str], None], above: tuple[str, ...] = ()
) -> Iterator[Any]:
    """Yield (path, table) for each searched key in nested tables; `problem` is called with anything else. `above` is
    the path of `tables`.
    """
    for name, table in tables.items():
        path = (*above, name)
        if not isinstance(table, Mapping):
            problem(path, f"sweep.{'.'.join(path)}: input should be {_FORMS} (got {table!r})")
        elif path[1:] and any(word in table for word in _WORDS):
            yield path, table
        elif not table or len(path) > 3:
            problem(path, f"sweep.{'.'.join(path)}: input should be {_FORMS}")
        else:
            yield from _dimension_tables(table, problem, path)


def _parse_dimension(key: str, table: Mapping[str, Any]) -> Dimension | str:
    """Parse the `table` of a searched key in `[sweep]`. Returns the dimension, or a message if the table is invalid."""
    kinds = [word for word in _KINDS if word in table]
    if unknown := [word for word in table if word not in _WORDS]:
        return f"unknown word {unknown[0]!r} (allowed: {', '.join(_WORDS)})"
    if len(kinds) != 1:
        return f"input should be one of {_FORMS}" + (f", not {' and '.join(kinds)} together" if kinds else "")
    when = _parse_conditions(table.get("when", {}))
    if isinstance(when, str):
        return when
    (kind,), given, step = kinds, table[kinds[0]], table.get("step")
    if kind == "choice":
        if (
            not isinstance(given, list)
            or not given
            or len({json.dumps(choice, default=str) for choice in given}) < len(given)
        ):
            return f"choice should be a list of different values (got {given!r})"
        return (
            Dimension(key, kind, choices=tuple(given), when=when)
            if step is None
            else "step is allowed with uniform only, not with choice"
        )
    numbers = (
        isinstance(given, list)
        and len(given) == 2
        and all(isinstance(end, int | float) and not isinstance(end, bool) for end in given)
    )
    if not numbers or not all(map(math.isfinite, given)) or given[0] >= given[1]:
        return f"{kind} should be two numbers, the smaller one first (got {given!r})"
    if kind == "log" and given[0] <= 0:
        return f"log should begin above 0 (got {given!r})"
    whole = all(isinstance(end, int) for end in given)
    if step is not None and (
        kind == "log" or isinstance(step, bool) or not isinstance(step, int if whole else int | float) or step <= 0
    ):
        return f"step should be a number above 0, an integer if both ends are, with uniform only (got {step!r})"
    return Dimension(key, kind, low=given[0], high=given[1], whole=whole, step=step, when=when)


def _parse_conditions(table: Any, above: str = "") -> tuple[tuple[str, tuple[Any, ...]], ...] | str:
    """Parse the conditions of a searched key: pairs of another key and its allowed values. Returns a message if `table`
    is invalid. `above` is the prefix of nested keys.
    """
    if not isinstance(table, Mapping):
        return f'when should be a table of keys and values, such as {{"net.kind" = "cnn"}} (got {table!r})'
    conditions: list[tuple[str, tuple[Any, ...]]] = []
    for name, value in table.items():
        if isinstance(value, Mapping):
            inner = _parse_conditions(value, f"{above}{name}.")
            if isinstance(inner, str):
                return inner
            conditions += inner
        else:
            conditions.append((f"{above}{name}", tuple(value) if isinstance(value, list) else (value,)))
    return tuple(conditions)


def _sort_by_conditions(
    dimensions: dict[str, Dimension], problem: Callable[[tuple[str, ...], str], None]
) -> list[Dimension]:
    """Sort dimensions so that each key follows those of its conditions. `problem` is called for conditions that are
    circular or not searched.
    """
    ordered: dict[str, Dimension] = {}
    left = dict(dimensions)
    while ready := [key for key, dimension in left.items() if all(other in ordered for other, _ in dimension.when)]:
        ordered |= {key: left.pop(key) for key in ready}
    for key, dimension in left.items():
        missing = [other for other, _ in dimension.when if other not in dimensions]
        reason = f"{missing[0]} is not searched" if missing else "the conditions are circular"
        problem(tuple(key.split(".")), f"sweep.{key}: when: {reason}")
    return list(ordered.values())
