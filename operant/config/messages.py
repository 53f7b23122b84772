"""Plain messages, with suggestions, for the validation errors of pydantic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from operant import old_names
from operant.config.raw import Key, quoted
from operant.similar import did_you_mean, nearest

_COUNT = "input should be a whole number, such as 20_000_000, 1e7 or '20M'"
_PLAIN = {
    "int_type": _COUNT,
    "int_parsing": _COUNT,
    "int_from_float": _COUNT,
    "int_parsing_size": "input has too many digits",
    "float_type": "input should be a number, such as 0.5, 3e-4 or '2M'",
    "float_parsing": "input should be a number, such as 0.5, 3e-4 or '2M'",
    "finite_number": "input should be a finite number",
    "string_type": 'input should be a text in quotes, such as "name"',
    "bool_type": "input should be true or false",
    "bool_parsing": "input should be true or false",
    "list_type": "input should be a list, such as [64, 64]",
    "tuple_type": "input should be a list, such as [64, 64]",
    "dict_type": "input should be a table",
    "model_type": "input should be a table",
    "missing": "this key has no default and must be given",
}


_SECTIONS = {
    "agent": "algo",
    "algorithm": "algo",
    "environment": "env",
    "evaluation": "eval",
    "model": "net",
    "network": "net",
    "policy": "net",
    "train": "run",
    "trainer": "run",
    "training": "run",
}
"""Sections by names that other libraries give them."""


def dotted(key: Key) -> str:
    """Format a key as it is written in a file: `net.hidden[1]`."""
    return "".join(
        f"[{part}]" if index and part.isdigit() else f"{'.' if index else ''}{part}" for index, part in enumerate(key)
    )


def unknown_key(key: Key, known: Mapping[str, Sequence[str]], names: Iterable[str]) -> str:
    """Return the message about an unknown key: with the probable correction, else with all valid `names`. `known`:
    valid keys by section.
    """
    return f"unknown key {quoted(dotted(key))}" + (_nearest_key(key, known) or f" (known here: {', '.join(names)})")


def called_otherwise(name: str) -> bool:
    """Whether `name` is another library's name for a key of Operant."""
    return name in old_names.SYNONYMS or name in old_names.REPLAY_SYNONYMS


def _nearest_key(key: Key, known: Mapping[str, Sequence[str]]) -> str:
    """Return the end of a message that suggests a correction of an unknown key; "" without one. `known`: valid keys by
    section.

    In order of preference: the new name of a renamed key, Operant's name of another library's key, a key with the same
    last part in another section, both ends of a range, a similar or longer key of the same section, a similar section
    or key.
    """
    name, names = ".".join(key), [f"{section}.{other}" for section, keys in known.items() for other in keys]
    if (new := old_names.KEYS.get(name)) in names:
        return f" - it is called {new!r} now"
    siblings = {other.rpartition(".")[2]: other for other in names if other.rpartition(".")[0] == ".".join(key[:-1])}
    begun = [other for last, other in siblings.items() if len(key[-1]) >= 3 and last.startswith(key[-1])]
    sibling = siblings.get(nearest(key[-1], siblings) or "") or next(iter(begun), None)
    elsewhere = [other for other in names if other.split(".")[-1] == key[-1]]
    synonyms = (table.get(key[-1]) for table in (old_names.SYNONYMS, old_names.REPLAY_SYNONYMS))
    if not elsewhere and (synonym := next((meant for meant in synonyms if meant in names), None)):
        note = old_names.NOTES.get(key[-1])
        return did_you_mean(synonym) + (f" ({note})" if note else "")
    ends = [f"{key[-1].removesuffix('_range')}_{end}" for end in ("min", "max")]
    if key[-1].endswith("_range") and not elsewhere and all(end in siblings for end in ends):
        return f" - it is two keys here: {' and '.join(repr(siblings[end]) for end in ends)}"
    if sibling or elsewhere:
        return did_you_mean(elsewhere[0] if elsewhere else sibling)
    last = {other.split(".")[-1]: other for other in names}
    if len(key) == 1:
        last |= {section: section for section in known}
        if (section := _SECTIONS.get(key[0])) is not None:
            return did_you_mean(section)
    similar = nearest(key[-1], last)
    return did_you_mean(last[similar]) if similar else ""


class Problem(NamedTuple):
    """One invalid value of a section: its key, pydantic's error type, a plain message and the value."""

    key: Key  # within the section
    kind: str  # pydantic's error type
    message: str
    value: object  # as it was written


def problems(error: ValidationError, data: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the invalid values in `data`, a section's table, for a validation error of pydantic. The errors of one
    value for several types are merged into one problem.
    """
    grouped: dict[tuple[int | str, ...], list[Any]] = {}
    for item in error.errors(include_url=False):
        grouped.setdefault(_location(item["loc"], data), []).append(item)
    for location, items in grouped.items():
        if any(other != location and other[: len(location)] == location for other in grouped):
            continue  # the problem of an item is enough: the list around it is not reported as well
        written = list(dict.fromkeys(map(_message, items)))
        joined = " or ".join([written[0], *(text.removeprefix("input ") for text in written[1:])])
        # The value as written, not pydantic's input: a validator may have converted "20M" already.
        value: Any = data
        for part in location if items[0]["type"] != "missing" else ():
            value = value[part]
        yield Problem(tuple(map(str, location)), items[0]["type"], joined, value)


def _location(loc: Sequence[int | str], data: Any) -> tuple[int | str, ...]:
    """Return the path to the value of a pydantic error (`loc`) in `data`, a section's table, without the trailing names
    of union members.
    """
    path: list[int | str] = []
    for part in loc:
        inside = (
            part in data
            if isinstance(data, Mapping)
            else isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            data = data[part]
        elif path or not isinstance(data, Mapping):
            break
        path.append(part)
    return tuple(path)


def _message(item: Mapping[str, Any]) -> str:
    """Return the plain message for one of pydantic's errors."""
    context = item.get("ctx") or {}
    if item["type"] == "value_error":
        text = str(context.get("error", item["msg"].removeprefix("Value error, ")))
    elif item["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        text = item["msg"] + (did_you_mean(nearest(item["input"], allowed)) if isinstance(item["input"], str) else "")
    elif item["type"] in ("too_short", "too_long"):
        most, count = item["type"] == "too_long", context.get("max_length", context.get("min_length"))
        text = f"input should have {'at most' if most else 'at least'} {count} item{'' if count == 1 else 's'}"
    else:
        text = _PLAIN.get(item["type"], item["msg"])
    return text[:1].lower() + text[1:]
