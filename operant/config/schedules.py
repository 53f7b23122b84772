"""Values that change while training: how they are written, and what they are at a step. Knows no key, no tensor and no loop.

`{linear = [1e-3, 0], over = "10M"}`: straight from the first to the last over so many environment steps (of more than two, evenly apart), then it stays;
without `over`, over run.steps. `{points = [[0, 1e-3], ["2M", 3e-4]]}`: straight between these steps.
`{piecewise = [[0, 1e-3], ["2M", 3e-4]]}`: each value until the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from operant.config.raw import RawConfig
from operant.settings import Count, Real, Section

WORDS = ("linear", "points", "piecewise")
_FORMS = '{linear = [1e-3, 0], over = "10M"}, {points = [[0, 1e-3], ["2M", 3e-4]]} or {piecewise = [[0, 1e-3], ["2M", 3e-4]]}'
_MOST = 1000


class Schedule(NamedTuple):
    """A value by environment steps."""

    points: tuple[tuple[int, float], ...]  # steps ascend
    straight: bool  # between the points; else each value stays until the next

    def at(self, step: int) -> float:
        """The value at a step."""
        if step <= self.points[0][0]:
            return self.points[0][1]
        for (begin, first), (end, last) in itertools.pairwise(self.points):
            if step < end:
                return first + (last - first) * ((step - begin) / (end - begin)) if self.straight else first
        return self.points[-1][1]

    def document(self) -> dict[str, Any]:
        """As it is written in a configuration, with every step."""
        return {"points" if self.straight else "piecewise": [list(point) for point in self.points]}


def is_written(value: object) -> bool:
    """Whether a value of a raw configuration is a schedule, sound or not."""
    return isinstance(value, Mapping) and any(word in value for word in WORDS)


def parse(table: Mapping[str, Any], steps: Any) -> Schedule | str:
    """The schedule that a table describes, in a run of so many steps, as they are written; or what is wrong with it."""
    kinds = [word for word in WORDS if word in table]
    if len(kinds) != 1 or set(table) - {*kinds, *(("over",) if kinds == ["linear"] else ())}:
        return f"a schedule is one of {_FORMS}"
    given: Any = table[kinds[0]]
    if not isinstance(given, list) or not 1 <= len(given) <= _MOST:
        return f"a schedule has 1 to {_MOST:,} values: {_FORMS}"
    try:
        if kinds == ["linear"]:
            values = [_REAL.validate_python(value) for value in given]
            over = _COUNT.validate_python(table.get("over", steps))
            points = tuple((round(over * at / max(1, len(values) - 1)), value) for at, value in enumerate(values))
        else:
            points = tuple((_COUNT.validate_python(step), _REAL.validate_python(value)) for step, value in given)
    except (ValidationError, ValueError, TypeError):
        return f"its steps should be whole numbers and its values numbers: {_FORMS}"
    if points[0][0] < 0 or any(later <= earlier for (earlier, _), (later, _) in itertools.pairwise(points)):
        return "the steps of a schedule ascend, from 0 on"
    return Schedule(points, kinds != ["piecewise"])


_COUNT: TypeAdapter[int] = TypeAdapter(Count)
_REAL: TypeAdapter[float] = TypeAdapter(Real)


def take(raw: RawConfig, model: type[Section], steps: Any) -> dict[str, Schedule]:
    """The schedules of `[algo]`, whose places in the raw configuration get one of their values each; problems for all that is wrong.

    A schedule of the learning rate is in the place of its annealing.
    """
    for key in list(_written(raw.data)):
        if key[0] not in ("algo", "sweep"):
            raw.problem(raw.location(key), f"{'.'.join(key)} cannot be a schedule: it is fixed once training begins. {_which(model)}")
            _remove(raw.data, key)
    table = raw.data.get("algo")
    if not isinstance(table, dict):
        return {}
    taken: dict[str, Schedule] = {}
    placed = dict(table)
    for name, value in table.items():
        if not is_written(value) or name not in model.model_fields:
            continue
        schedule = parse(value, steps) if name in model.schedulable else f"it cannot be a schedule, as it is fixed once training begins. {_which(model)}"
        told = schedule if isinstance(schedule, str) else _out_of_range(schedule, model, name)
        if told is None and isinstance(schedule, Schedule):
            taken[name] = schedule
            placed[name] = next(value for _, value in schedule.points if not _errors(model, name, value))
        else:
            raw.problem(raw.location(("algo", name)), f"algo.{name}: {told}")
            del placed[name]
    if "learning_rate" in taken and "anneal" in model.model_fields:
        placed["anneal"] = False
    raw.data["algo"] = placed
    return taken


def _written(data: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where schedules stand."""
    for name, value in data.items():
        if is_written(value):
            yield (*above, name)
        elif isinstance(value, Mapping) and len(above) < 2:
            yield from _written(value, (*above, name))


def _remove(data: dict[str, Any], key: tuple[str, ...]) -> None:
    """Take a key out of nested tables, which are copied."""
    for part in key[:-1]:
        data[part] = dict(data[part])
        data = data[part]
    del data[key[-1]]


def _which(model: type[Section]) -> str:
    return f"What can: {', '.join(f'algo.{name}' for name in model.schedulable) or 'nothing of this algorithm'}"


def _out_of_range(schedule: Schedule, model: type[Section], name: str) -> str | None:
    """What is wrong with a schedule's values. It may reach a bound that the key itself only comes near, such as a learning rate of 0, but not stay there."""
    found = [error for _, value in schedule.points for error in _errors(model, name, value)]
    at_bound = [error for error in found if error["input"] in ((error.get("ctx") or {}).get("gt"), (error.get("ctx") or {}).get("lt"))]
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
