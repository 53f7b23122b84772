"""Values that change while training: how they are written, and what they are at a step. Knows no key, no tensor and no
loop.

`{linear = [1e-3, 0], over = "10M"}`: straight from the first to the last over so many environment steps (of more than
two, evenly apart), then it stays; without `over`, over run.steps. `{points = [[0, 1e-3], ["2M", 3e-4]]}`: straight
between these steps. `{piecewise = [[0, 1e-3], ["2M", 3e-4]]}`: each value until the next. With `by = "eval/return"` the
last two go by the newest evaluation's mean return in place of steps, and before the first evaluation have their first
value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from operant.config.raw import RawConfig
from operant.settings import Count, Real, Section

WORDS = ("linear", "points", "piecewise")
_FORMS = (
    '{linear = [1e-3, 0], over = "10M"}, {points = [[0, 1e-3], ["2M", 3e-4]]} or {piecewise = [[0, 1e-3], '
    '["2M", 3e-4]]}'
)
_MOST = 1000
BY: Final = "eval/return"
PARAMS: Final = "env.params."
Parameters = Mapping[str, Callable[[float], "str | None"]]
"""How the keys of schedules of an environment's parameters begin; those of [algo] are the keys themselves."""


class Schedule(NamedTuple):
    """A value by environment steps, or by a metric's value."""

    points: tuple[tuple[float, float], ...]  # steps, or values of the metric, ascend
    straight: bool  # between the points; else each value stays until the next
    by: str = ""  # the metric

    def at(self, step: int, score: float = math.nan) -> float:
        """The value at a step, where the newest evaluation's mean return is `score`: NaN before the first one."""
        x = score if self.by else step
        if not x > self.points[0][0]:
            return self.points[0][1]
        for (begin, first), (end, last) in itertools.pairwise(self.points):
            if x < end:
                return first + (last - first) * ((x - begin) / (end - begin)) if self.straight else first
        return self.points[-1][1]

    def document(self) -> dict[str, Any]:
        """As it is written in a configuration, with every step."""
        return {"points" if self.straight else "piecewise": [list(point) for point in self.points]} | (
            {"by": self.by} if self.by else {}
        )


def is_written(value: object) -> bool:
    """Whether a value of a raw configuration is a schedule, sound or not."""
    return isinstance(value, Mapping) and any(word in value for word in WORDS)


def parse(table: Mapping[str, Any], steps: Any) -> Schedule | str:
    """The schedule that a table describes, in a run of so many steps, as they are written; or what is wrong with it."""
    kinds = [word for word in WORDS if word in table]
    if len(kinds) != 1 or set(table) - {*kinds, "over" if kinds == ["linear"] else "by"}:
        return f'a schedule is one of {_FORMS}, the last two also with by = "{BY}"'
    by = table.get("by", "")
    if by not in ("", BY):
        return (
            f'a schedule goes by steps, or with by = "{BY}" by what evaluations bring: other metrics depend on '
            f"when records are written (got {by!r})"
        )
    given: Any = table[kinds[0]]
    if not isinstance(given, list) or not 1 <= len(given) <= _MOST:
        return f"a schedule has 1 to {_MOST:,} values: {_FORMS}"
    try:
        if kinds == ["linear"]:
            values = [_REAL.validate_python(value) for value in given]
            over = _COUNT.validate_python(table.get("over", steps))
            points: tuple[tuple[float, float], ...] = tuple(
                (round(over * at / max(1, len(values) - 1)), value) for at, value in enumerate(values)
            )
        else:
            place: TypeAdapter[Any] = _REAL if by else _COUNT
            points = tuple((place.validate_python(x), _REAL.validate_python(value)) for x, value in given)
    except (ValidationError, ValueError, TypeError):
        return f"its steps should be whole numbers and its values numbers: {_FORMS}"
    if (points[0][0] < 0 and not by) or any(
        later <= earlier for (earlier, _), (later, _) in itertools.pairwise(points)
    ):
        return "the returns of a schedule ascend" if by else "the steps of a schedule ascend, from 0 on"
    return Schedule(points, kinds != ["piecewise"], by)


_COUNT: TypeAdapter[int] = TypeAdapter(Count)
_REAL: TypeAdapter[float] = TypeAdapter(Real)


def take(
    raw: RawConfig, model: type[Section], parameters: Parameters, steps: Any, *, evaluated: bool
) -> dict[str, Schedule]:
    """The schedules of `[algo]` and `[env.params]`, whose places in the raw configuration get one of their values each;
    problems for all that is wrong.

    `parameters` are those of the environment that can change, each with what says why it cannot have a value. A
    schedule of the learning rate is in the place of its annealing.
    """
    taken: dict[str, Schedule] = {}
    for key in list(_written(raw.data)):
        name, parameter = key[-1], key[:2] == ("env", "params")
        if key[0] == "sweep" or (key[0] == "algo" and (len(key) > 2 or name not in model.model_fields)):
            continue  # told elsewhere
        known: Iterable[str] = (
            parameters if parameter and len(key) == 3 else model.schedulable if key[0] == "algo" else ()
        )
        found = parse(_at(raw.data, key), steps) if name in known else _fixed(model, parameters)
        told = (
            found
            if isinstance(found, str)
            else _off(found, parameters[name])
            if parameter
            else _out_of_range(found, model, name)
        )
        if told is None and isinstance(found, Schedule) and found.by and not evaluated:
            told = f'by = "{found.by}" needs evaluations, which eval.every = 0 switches off'
        if told is None and isinstance(found, Schedule):
            taken[name if key[0] == "algo" else f"{PARAMS}{name}"] = found
            sound = [value for _, value in found.points if parameter or not _errors(model, name, value)]
            _put(raw.data, key, sound[-1] if parameter else sound[0])
        else:
            raw.problem(raw.location(key), f"{'.'.join(key)}: {told}")
            _put(raw.data, key, None)
    if "learning_rate" in taken and "anneal" in model.model_fields:
        _put(raw.data, ("algo", "anneal"), False)
    return taken


def _written(data: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where schedules stand."""
    for name, value in data.items():
        if is_written(value) and (*above, name) != (
            "env",
            "params",
        ):  # a parameter of an environment may be called points
            yield (*above, name)
        elif isinstance(value, Mapping) and len(above) < 2:
            yield from _written(value, (*above, name))


def _at(data: Mapping[str, Any], key: tuple[str, ...]) -> Any:
    for part in key:
        data = data[part]
    return data


def _put(data: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    """Give a key of nested tables, which are copied, another value; None takes it out."""
    for part in key[:-1]:
        data[part] = dict(data[part])
        data = data[part]
    data.pop(key[-1], None)
    if value is not None:
        data[key[-1]] = value


def _fixed(model: type[Section], parameters: Iterable[str]) -> str:
    """Why a key cannot be a schedule, and which can."""
    some = [*(f"algo.{name}" for name in model.schedulable), *(f"{PARAMS}{name}" for name in parameters)]
    return (
        "it cannot be a schedule, as it is fixed once training begins. What can: "
        f"{', '.join(some) or 'nothing of this algorithm'}"
    )


def _off(schedule: Schedule, problem: Callable[[float], str | None]) -> str | None:
    """What is wrong with the values of a parameter's schedule."""
    return next((f"{found} (got {value})" for _, value in schedule.points if (found := problem(value))), None)


def _out_of_range(schedule: Schedule, model: type[Section], name: str) -> str | None:
    """What is wrong with a schedule's values. It may reach a bound that the key itself only comes near, such as a
    learning rate of 0, but not stay there.
    """
    found = [error for _, value in schedule.points for error in _errors(model, name, value)]
    at_bound = [
        error
        for error in found
        if error["input"] in ((error.get("ctx") or {}).get("gt"), (error.get("ctx") or {}).get("lt"))
    ]
    beyond = [error for error in found if error not in at_bound]
    if beyond:
        return f"{beyond[0]['msg'][:1].lower()}{beyond[0]['msg'][1:]} (got {beyond[0]['input']})"
    return f"it never leaves {at_bound[0]['input']}" if len(at_bound) == len(schedule.points) else None


def _errors(model: type[Section], name: str, value: float) -> list[Any]:
    try:
        model.model_validate({name: value})
    except ValidationError as error:
        return [item for item in error.errors() if item["loc"][:1] == (name,)]
    return []
