"""Schedules: values that change during training, with their notation and evaluation.

- `{linear = [1e-3, 0], over = "10M"}`: linear interpolation of evenly spaced values over the given environment steps
  (default: run.steps), then constant.
- `{points = [[0, 1e-3], ["2M", 3e-4]]}`: linear interpolation between (step, value) points.
- `{piecewise = [[0, 1e-3], ["2M", 3e-4]]}`: each value is constant until the next step.

With `by = "eval/return"`, points and piecewise are functions of the newest evaluation's mean return instead of steps,
and have their first value before the first evaluation.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
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
MOST: Final = 10_000
"""Most points of a schedule."""
BY: Final = "eval/return"
PARAMS: Final = "env.params."
"""Prefix of schedule keys of environment parameters; schedule keys of [algo] are the key itself."""
Parameters = Mapping[str, Callable[[float], "str | None"]]
"""Changeable parameters of an environment, each with a function from value to error message (None: valid)."""


class Schedule(NamedTuple):
    """Value as a function of environment steps, or (`by`) of the newest evaluation's return: `points` (x, value),
    linearly interpolated, or constant from each point to the next.
    """

    points: tuple[tuple[float, float], ...]  # (step or metric, value), ascending
    interpolated: bool  # linear between the points; otherwise each value is constant until the next point
    by: str = ""  # metric; "" for steps

    def at(self, step: int, score: float = math.nan) -> float:
        """Return the scheduled value at an environment step. A schedule by evaluations uses `score`, the newest mean
        return, NaN before the first.
        """
        x = score if self.by else step
        if not x > self.points[0][0]:
            return self.points[0][1]
        following = bisect_right(self.points, x, key=lambda point: point[0])
        if following == len(self.points):
            return self.points[-1][1]
        (begin, first), (end, last) = self.points[following - 1 : following + 1]
        return first + (last - first) * ((x - begin) / (end - begin)) if self.interpolated else first

    def changed(self, step: int, value: float) -> Schedule:
        """Schedule with the constant `value` from `step` on, unchanged before it. For a schedule of steps."""
        earlier = tuple(point for point in self.points if point[0] < step)
        if self.interpolated and earlier and earlier[-1][0] < step - 1:
            earlier = (*earlier, (step - 1, self.at(step - 1)))
        return self._replace(points=(*earlier, (step, value)))

    def document(self) -> dict[str, Any]:
        """Return the schedule as a table of a configuration file, with every point."""
        return {"points" if self.interpolated else "piecewise": [list(point) for point in self.points]} | (
            {"by": self.by} if self.by else {}
        )


def is_written(value: object) -> bool:
    """Whether a raw value is the table of a schedule, valid or not."""
    return isinstance(value, Mapping) and any(word in value for word in WORDS)


def parse(table: Mapping[str, Any], steps: Any) -> Schedule | str:
    """Parse the table of a schedule. Returns an error message instead if it is invalid. `steps`: run.steps as written,
    the default of `over`.
    """
    kinds = [word for word in WORDS if word in table]
    if len(kinds) != 1 or set(table) - {*kinds, "over" if kinds == ["linear"] else "by"}:
        return f'a schedule is one of {_FORMS}, the last two also with by = "{BY}"'
    by = table.get("by", "")
    if by not in ("", BY):
        return (
            f'a schedule is a function of steps, or with by = "{BY}" of evaluations; other metrics depend on when '
            f"records are written (got {by!r})"
        )
    given: Any = table[kinds[0]]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST:
        return f"a schedule has 1 to {MOST:,} values: {_FORMS}"
    try:
        if kinds == ["linear"]:
            values = [_REAL.validate_python(value) for value in given]
            over = _COUNT.validate_python(table.get("over", steps))
            points: tuple[tuple[float, float], ...] = tuple(
                (round(over * k / max(1, len(values) - 1)), value) for k, value in enumerate(values)
            )
        else:
            position: TypeAdapter[Any] = _REAL if by else _COUNT
            points = tuple((position.validate_python(x), _REAL.validate_python(value)) for x, value in given)
    except (ValidationError, ValueError, TypeError):
        return f"steps should be whole numbers and values numbers: {_FORMS}"
    if (points[0][0] < 0 and not by) or any(
        later <= earlier for (earlier, _), (later, _) in itertools.pairwise(points)
    ):
        return "the returns of a schedule must ascend" if by else "the steps of a schedule must ascend from 0"
    return Schedule(points, kinds != ["piecewise"], by)


_COUNT: TypeAdapter[int] = TypeAdapter(Count)
_REAL: TypeAdapter[float] = TypeAdapter(Real)


def extract(
    raw: RawConfig, model: type[Section], parameters: Parameters, steps: Any, *, evaluated: bool
) -> dict[str, Schedule]:
    """Remove the schedules from `raw` and return them by key (`learning_rate`, `env.params.NAME`). `model`: the
    algorithm's section; `parameters`: those a schedule may change; `steps`: run.steps as written. Adds a problem for
    each invalid one, and for one by evaluations unless `evaluated` (the run makes evaluations).

    Each schedule in `raw` is replaced by one of its values. A schedule of the learning rate replaces annealing.
    """
    schedules: dict[str, Schedule] = {}
    for key in list(_written(raw.data)):
        name, parameter = key[-1], key[:2] == ("env", "params")
        if key[0] == "sweep" or (key[0] == "algo" and (len(key) > 2 or name not in model.model_fields)):
            continue  # reported by the check of its section
        known: Iterable[str] = (
            parameters if parameter and len(key) == 3 else model.schedulable if key[0] == "algo" else ()
        )
        parsed = parse(_get(raw.data, key), steps) if name in known else _not_schedulable(model, parameters)
        problem: str | None
        if isinstance(parsed, str):
            problem = parsed
        else:
            problem = value_problem(parsed, model, f"{PARAMS}{name}" if parameter else name, parameters)
        if problem is None and isinstance(parsed, Schedule) and parsed.by and not evaluated:
            problem = f'by = "{parsed.by}" needs evaluations, which eval.every = 0 disables'
        if problem is None and isinstance(parsed, Schedule):
            schedules[name if key[0] == "algo" else f"{PARAMS}{name}"] = parsed
            valid = [value for _, value in parsed.points if parameter or not _errors(model, name, value)]
            _put(raw.data, key, valid[-1] if parameter else valid[0])
        else:
            raw.problem(raw.location(key), f"{'.'.join(key)}: {problem}")
            _put(raw.data, key, None)
    if "learning_rate" in schedules and "anneal" in model.model_fields:
        _put(raw.data, ("algo", "anneal"), False)
    return schedules


def value_problem(schedule: Schedule, model: type[Section], key: str, parameters: Parameters) -> str | None:
    """Message about values of a schedule that its key does not allow: `model`'s or, after `PARAMS`, one of
    `parameters`; None if all are valid.
    """
    if key.startswith(PARAMS):
        return _invalid_parameter(schedule, parameters[key.removeprefix(PARAMS)])
    return _out_of_range(schedule, model, key)


def _written(data: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the key of each schedule in nested tables, as a tuple of names."""
    for name, value in data.items():
        # An environment may have a parameter called points: [env.params] itself is not a schedule.
        if is_written(value) and (*above, name) != ("env", "params"):
            yield (*above, name)
        elif isinstance(value, Mapping) and len(above) < 2:
            yield from _written(value, (*above, name))


def _get(data: Mapping[str, Any], key: tuple[str, ...]) -> Any:
    """Return the value of a key in nested tables."""
    for part in key:
        data = data[part]
    return data


def _put(data: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    """Set the value of a key in nested tables, copying the tables on its path. The value None removes the key."""
    for part in key[:-1]:
        data[part] = dict(data[part])
        data = data[part]
    data.pop(key[-1], None)
    if value is not None:
        data[key[-1]] = value


def _not_schedulable(model: type[Section], parameters: Iterable[str]) -> str:
    """Return the message that a key cannot be a schedule, with the keys that can."""
    allowed = [*(f"algo.{name}" for name in model.schedulable), *(f"{PARAMS}{name}" for name in parameters)]
    return (
        "this key cannot be a schedule: it is fixed when training begins. Keys that can be schedules: "
        f"{', '.join(allowed) or 'none of this algorithm'}"
    )


def _invalid_parameter(schedule: Schedule, problem: Callable[[float], str | None]) -> str | None:
    """Return a message about the first value of a parameter's schedule that `problem` rejects; None if all are
    valid.
    """
    return next((f"{message} (got {value})" for _, value in schedule.points if (message := problem(value))), None)


def _out_of_range(schedule: Schedule, model: type[Section], name: str) -> str | None:
    """Return a message about values of a schedule that the key `name` of the model does not allow; None if all are
    valid.

    A schedule may reach an exclusive bound of its key, such as a learning rate of 0, but must not stay there.
    """
    errors = [error for _, value in schedule.points for error in _errors(model, name, value)]
    at_bound = [
        error
        for error in errors
        if error["input"] in ((error.get("ctx") or {}).get("gt"), (error.get("ctx") or {}).get("lt"))
    ]
    beyond = [error for error in errors if error not in at_bound]
    if beyond:
        return f"{beyond[0]['msg'][:1].lower()}{beyond[0]['msg'][1:]} (got {beyond[0]['input']})"
    return f"the schedule never leaves {at_bound[0]['input']}" if len(at_bound) == len(schedule.points) else None


def _errors(model: type[Section], name: str, value: float) -> list[Any]:
    """Return pydantic's errors for a value of the key `name` of the model; [] if it is valid."""
    try:
        model.model_validate({name: value})
    except ValidationError as error:
        return [item for item in error.errors() if item["loc"][:1] == (name,)]
    return []
