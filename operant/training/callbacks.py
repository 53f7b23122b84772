"""Callbacks: a user's function that the training loop calls between two iterations, and the controls that it is given:
stop the run, change a scheduled value, log a number.

A change becomes a point of the key's schedule, in the run's configuration too: a resume, or a new run with that
configuration, repeats it without the callback. operant/library.py offers callbacks to users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from operant.config import load, resolve, schedules
from operant.errors import ConfigError, UsageError
from operant.runs import MetricSpec
from operant.text import safe
from operant.training.requests import Stop

if TYPE_CHECKING:
    from operant.config.load import Config
    from operant.nn import Actor
    from operant.training.loop import Trainer

_BY = "a callback"
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,40}")
_MOST_REPORTED = 10  # changes of a key that are written to the log
ORDER = 110
"""Position of logged numbers among the metrics (`MetricSpec.order`)."""


class Hook(NamedTuple):
    """Function that the training loop calls after each new record of the metrics file, with the trainer's controls, the
    environment steps so far and the values of the record (NaN: none). `logs` are the names of the numbers that it may
    log: columns of the metrics file, which is made before the first call.
    """

    call: Callable[[Controls, int, dict[str, float]], None]
    logs: tuple[str, ...] = ()


def log_specs(hook: Hook, others: Collection[str]) -> list[MetricSpec]:
    """Metric specs of the numbers that a callback logs. `others` are the run's metrics. Raises ConfigError for a name
    that is taken or has other characters than theirs.
    """
    problems = [f"{name!r} is a metric of this run: choose another name" for name in hook.logs if name in others]
    problems += [
        f"{name!r}: a name is 1 to 40 of A-Z a-z 0-9 _ . / -" for name in hook.logs if not _NAME.fullmatch(name)
    ]
    if problems:
        raise ConfigError("logs", problems)
    return [MetricSpec(name, name, order=ORDER, absent="logged by a callback") for name in dict.fromkeys(hook.logs)]


def _number(name: str, value: object) -> float:
    """`value` as a number. Raises UsageError if it is none."""
    try:
        return float(value)  # type: ignore[arg-type]  # a number of any library
    except (TypeError, ValueError):
        raise UsageError(f"{name} is {safe(repr(value), 80)}; it must be a number") from None


class Controls:
    """Controls of a trainer for its callback. For the thread that trains, between two iterations."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._changes = trainer, dict[str, int]()

    @property
    def actor(self) -> Actor:
        """Policy as it is now."""
        return self._trainer.algo.actor

    def stop(self) -> None:
        """Stop the run after this call, with a checkpoint."""
        self._trainer.requests.ask_stop(Stop(0, _BY))

    def log(self, values: Mapping[str, float]) -> None:
        """Add numbers to the newest record and those after it, until they are replaced. Raises UsageError for a name
        that was not announced.
        """
        meters = self._trainer.meters
        if unknown := [name for name in values if name not in meters.logged]:
            raise UsageError(
                f"{unknown[0]!r} is not a column of this run's metrics, which are fixed when it begins: announce it "
                f"with logs={[*meters.logged, *unknown]}"
            )
        meters.log({name: _number(name, value) for name, value in values.items()})

    def set(self, values: Mapping[str, float]) -> None:
        """Change scheduled values from the next iteration on: keys of `[algo]` such as `learning_rate`, and
        `env.params.NAME`. Raises UsageError for a key without a schedule, ConfigError for a value out of range.
        """
        trainer, config = self._trainer, self._trainer.config
        scheduled = dict(config.scheduled)
        for name, value in values.items():
            key, value = _scheduled_key(config, name), _number(name, value)
            if value != scheduled[key].at(trainer.step, trainer.score):
                scheduled[key] = _changed(config, key, scheduled[key], trainer.step, value)
        changed = [key for key in scheduled if scheduled[key] is not config.scheduled[key]]
        if changed:
            trainer.reschedule(replace(config, scheduled=scheduled))
        for key in changed:
            self._report(key, scheduled[key])

    def _report(self, key: str, schedule: schedules.Schedule) -> None:
        count = self._changes[key] = self._changes.get(key, 0) + 1
        if count <= _MOST_REPORTED:
            rest = f"; further changes are only in the metric schedule/{key}" * (count == _MOST_REPORTED)
            step, value = schedule.points[-1]
            self._trainer.say(f"{key} = {value:g} from step {step:,.0f} on, by {_BY}{rest}")


def _scheduled_key(config: Config, name: str) -> str:
    """Key of a configuration's schedules that `name` means: `clip`, `algo.clip`, `gravity` or `env.params.gravity`."""
    plain = name.removeprefix("algo.")
    for key in (plain, f"{schedules.PARAMS}{plain}"):
        if key in config.scheduled:
            return key
    scheduled = ", ".join(config.scheduled) or "none"
    raise UsageError(
        f"{name!r} cannot change in this run: name it when the run begins, changes=[{plain!r}], since its value is "
        f"then read from memory (here: {scheduled})"
    )


def _changed(config: Config, key: str, schedule: schedules.Schedule, step: int, value: float) -> schedules.Schedule:
    """Schedule of configuration key `key` with `value` from environment step `step` on. Raises UsageError for a key
    that follows evaluations or was changed too often, ConfigError for a value that is not allowed.
    """
    if schedule.by:
        raise UsageError(f"{key!r} follows the evaluations by its schedule: a callback cannot set it as well")
    if len(schedule.points) >= schedules.MOST:
        raise UsageError(f"{key!r} was changed {schedules.MOST:,} times, the most that a configuration holds")
    changed = schedule.changed(step, value)
    parameters = resolve.changeable_parameters(config.environment)
    if (problem := schedules.value_problem(changed, type(config.algo), key, parameters)) is not None:
        raise ConfigError("a callback", [f"{key}: {problem}"])
    return changed


def as_schedules(config: Config, names: Sequence[str]) -> list[str]:
    """Overrides that make keys changeable: for each that is not a schedule yet, one that keeps its value, and for an
    annealed learning rate its linear decay. Raises ConfigError for a key that cannot be a schedule.
    """
    own = load.values(config)
    overrides, problems = [], []
    for name in names:
        key = name if name.startswith("algo.") or name.startswith(schedules.PARAMS) else f"algo.{name}"
        if f"algo.{key.removeprefix('algo.')}" not in own and f"{schedules.PARAMS}{name}" in own:
            key = f"{schedules.PARAMS}{name}"
        if key.removeprefix("algo.") in config.scheduled:
            continue
        value = own.get(key)
        allowed = [f"algo.{known}" for known in type(config.algo).schedulable]
        allowed += [f"{schedules.PARAMS}{known}" for known in resolve.changeable_parameters(config.environment)]
        if key not in allowed:
            problems.append(f"{key} cannot change during a run (those that can: {', '.join(allowed) or 'none'})")
        elif value is None:
            problems.append(f"{key} is not set: give it a value, which a callback can then change")
        elif key == "algo.learning_rate" and getattr(config.algo, "anneal", False):
            end = config.algo.anneal_steps or config.run.steps
            overrides.append(f"{key}={{linear=[{value!r},0.0],over={end}}}")
        else:
            overrides.append(f"{key}={{piecewise=[[0,{value!r}]]}}")
    if problems:
        raise ConfigError("changes", problems)
    return overrides


def unsupported_reason(config: Config) -> str | None:
    """Reason why a run with this configuration cannot have callbacks; None if it can."""
    if config.run.gpus not in (0, 1) or config.run.ranks > 1:
        return "callbacks run in the process that trains, and this run has several (run.gpus, run.ranks): use one"
    return None
