"""Validation of environment parameters: type of the default, range, and representability on a device.

Shared by everything that takes parameters (configurations, `gym.make_vec`, worlds), so that all refuse the same values
with the same messages. Independent of files and the command line.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from operant.envs.base import Env
from operant.errors import UsageError

LARGEST_FLOAT32 = 3.4028234663852886e38
LEAST_INT32, LARGEST_INT32 = -(2**31), 2**31 - 1


def problem(env: Env, name: str, value: object) -> str | None:
    """Check a value for an environment's parameter `name`: returns the message "input should be ..." if it is invalid,
    None if it is valid. The declaration must be valid: see `declaration_problems`.
    """
    default, (low, high) = _defaults(env)[name], env.ranges.get(name, (None, None))
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "input should be true or false"
    if isinstance(default, int):
        if isinstance(value, bool) or not isinstance(value, int):
            return "input should be a whole number"
        low, high = LEAST_INT32 if low is None else low, LARGEST_INT32 if high is None else high
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        return "input should be a number"
    elif isinstance(value, float) and not math.isfinite(value):
        return "input should be a finite number"
    if (low is not None and value < low) or (high is not None and value > high):
        return f"input should be {_range_text(low, high)}"
    return None if abs(value) <= LARGEST_FLOAT32 else "input should fit into a float32 (at most 3.4e38)"


def crossed(env: Env, values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (least, greatest, message) for each pair of parameters `NAME_min` and `NAME_max` whose least value is above
    its greatest, unless their defaults are so. `values`: valid parameters that differ from the defaults.
    """
    defaults = _defaults(env)
    now = {**defaults, **values}
    pairs = [(name, f"{name.removesuffix('_min')}_max") for name in defaults if name.endswith("_min")]
    for least, greatest in pairs:
        if greatest in defaults and defaults[least] <= defaults[greatest] and now[least] > now[greatest]:
            got = f"{_value_text(now[least])} and {_value_text(now[greatest])}"
            yield least, greatest, f"input should be at most {greatest} (got {got})"


def declaration_problems(env: Env) -> Iterator[str]:
    """Check an environment's declared ranges and the defaults of its parameters; yields one message per problem."""
    defaults = _defaults(env)
    if not isinstance(env.ranges, Mapping):
        yield f'ranges is {env.ranges!r}: the least and the greatest value by parameter, such as {{"steps": (1, None)}}'
        return
    for name, bounds in env.ranges.items():
        if name not in defaults:
            yield f"ranges names {name!r}, which is not a parameter{_name_hint(name, defaults)}"
        elif isinstance(defaults[name], bool):
            yield f"ranges names {name!r}, a bool parameter, which cannot have a range"
        elif (
            not isinstance(bounds, (tuple, list))
            or len(bounds) != 2
            or not all(_is_bound(bound, defaults[name]) for bound in bounds)
        ):
            kind = "whole numbers" if isinstance(defaults[name], int) else "numbers"
            yield (
                f"the range of {name!r} is {bounds!r}: it must be the least and the greatest value, two {kind}, "
                "None for unbounded"
            )
        elif (low := bounds[0]) is not None and (high := bounds[1]) is not None and low > high:
            yield f"the range of {name!r} is {bounds!r}: its least value is above its greatest"
        elif message := problem(env, name, defaults[name]):
            yield f"the default of {name!r} is {_value_text(defaults[name])}: {message}, by its range"
    for name in defaults:
        if name not in env.ranges and (message := problem(env, name, defaults[name])):
            yield f"the default of {name!r} is {_value_text(defaults[name])}: {message}"


def checked(env: Env, given: Any = None) -> Any:
    """Make the `Params` of an environment from its defaults, updated by `given`, a mapping or another `Params`.
    Converts int to float. Raises UsageError with all problems.
    """
    what, defaults = env.name or "the environment", _defaults(env)
    wrong = [f"{what}: {problem}" for problem in declaration_problems(env)]
    values = (
        given._asdict() if isinstance(given, tuple) and hasattr(given, "_asdict") else {} if given is None else given
    )
    if not isinstance(values, Mapping):
        wrong.append(f"params is {given!r}: it must be a mapping of names to numbers, or a Params of the environment")
    elif not wrong:
        for name, value in values.items():
            if name not in defaults:
                wrong.append(f"{what} has no parameter {name!r}{_name_hint(name, defaults)}")
            elif message := problem(env, name, value):
                wrong.append(f"parameter {name!r} of {what}: {message} (got {_value_text(value)})")
        if not wrong:
            wrong += [f"parameter {least!r} of {what}: {message}" for least, _, message in crossed(env, values)]
    if wrong:
        raise UsageError("\n".join(wrong))
    return env.Params(
        **{
            name: float(values.get(name, own)) if isinstance(own, float) else values.get(name, own)
            for name, own in defaults.items()
        }
    )


def _defaults(env: Env) -> dict[str, Any]:
    """Default values of an environment's parameters by name. Raises UsageError if `Params` violates the contract."""
    try:
        return env.Params()._asdict()
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"Params of {env.name or 'the environment'} must be a NamedTuple whose fields all have a default ({error})"
        ) from None


def _is_bound(bound: object, default: object) -> bool:
    """Whether `bound` can limit a parameter with this default: None, or a number of the same type that fits into
    float32.
    """
    if bound is None:
        return True
    return (
        isinstance(bound, int if isinstance(default, int) else (int, float))
        and not isinstance(bound, bool)
        and abs(bound) <= LARGEST_FLOAT32
    )


def _range_text(low: float | None, high: float | None) -> str:
    """Phrase for a range, such as "from 1 to 10" or "at least 0"; one bound may be None."""
    if low is not None and high is not None:
        return f"from {_bound_text(low)} to {_bound_text(high)}"
    return f"at least {_bound_text(low)}" if low is not None else f"at most {_bound_text(high)}"


def _bound_text(number: float | None) -> str:
    """Format a bound in the notation of a configuration file, such as 10_000."""
    if number is None or number != int(number) or abs(number) >= 1e15:
        return repr(number)
    return f"{int(number):_}"


def _value_text(value: object) -> str:
    """Format a value for a message, truncated to 80 characters. (Python refuses to format integers of thousands of
    digits.)
    """
    try:
        text = repr(value)
    except ValueError:
        return "a number with too many digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _name_hint(name: object, names: Mapping[str, object]) -> str:
    """Hint for a message about an unknown parameter: the nearest known name, or all names."""
    matches = difflib.get_close_matches(str(name), names, n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else f" (known here: {', '.join(names)})"
