"""Turns pydantic's errors into plain messages with a suggestion. Knows no section, no file and no line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from operant import old_names
from operant.config.raw import Key, quoted
from operant.config.recipes import plain_name

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


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of some names that a mistyped one probably means."""
    plain = {plain_name(other): other for other in names}
    found = difflib.get_close_matches(plain_name(name[:100]), plain, n=1)
    return plain[found[0]] if found else None


def did_you_mean(name: str | None) -> str:
    """A suggestion, ready to follow what it corrects; nothing for None."""
    return f" - did you mean {name!r}?" if name else ""


def dotted(key: Key) -> str:
    """`net.hidden[1]`: the key as people write it."""
    return "".join(
        f"[{part}]" if at and part.isdigit() else f"{'.' if at else ''}{part}" for at, part in enumerate(key)
    )


def unknown_key(key: Key, known: Mapping[str, Sequence[str]], names: Iterable[str]) -> str:
    """The message about an unknown key: with the one that was probably meant, or else all `names` that could stand
    there.
    """
    return f"unknown key {quoted(dotted(key))}" + (_nearest_key(key, known) or f" (known here: {', '.join(names)})")


def called_otherwise(name: str) -> bool:
    """Whether other libraries have a name that means another one here."""
    return name in old_names.SYNONYMS or name in old_names.REPLAY_SYNONYMS


def _nearest_key(key: Key, known: Mapping[str, Sequence[str]]) -> str:
    """The suggestion for an unknown key: its new name, or its name here where other libraries call it so; else one
    spelt alike in its section, its last part in another place, a section or key spelt alike.
    """
    name, names = ".".join(key), [f"{section}.{other}" for section, keys in known.items() for other in keys]
    if (new := old_names.KEYS.get(name)) in names:
        return f" - it is called {new!r} now"
    beside = {other.rpartition(".")[2]: other for other in names if other.rpartition(".")[0] == ".".join(key[:-1])}
    inside = beside.get(nearest(key[-1], beside) or "")
    elsewhere = [other for other in names if other.split(".")[-1] == key[-1]]
    synonyms = (table.get(key[-1]) for table in (old_names.SYNONYMS, old_names.REPLAY_SYNONYMS))
    if not elsewhere and (synonym := next((meant for meant in synonyms if meant in names), None)):
        note = old_names.NOTES.get(key[-1])
        return did_you_mean(synonym) + (f" ({note})" if note else "")
    if inside or elsewhere:
        return did_you_mean(elsewhere[0] if elsewhere else inside)
    last = {other.split(".")[-1]: other for other in names}
    if len(key) == 1:
        last |= {section: section for section in known}
    found = nearest(key[-1], last)
    return did_you_mean(last[found]) if found else ""


class Problem(NamedTuple):
    """One thing that is wrong in a section."""

    key: Key  # within the section
    kind: str  # pydantic's word for it
    message: str
    value: object  # as it was written


def problems(error: ValidationError, data: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong in a section's data; the errors of one value that was tried as several types become one."""
    grouped: dict[tuple[int | str, ...], list[Any]] = {}
    for item in error.errors(include_url=False):
        grouped.setdefault(_location(item["loc"], data), []).append(item)
    for location, items in grouped.items():
        if any(other != location and other[: len(location)] == location for other in grouped):
            continue  # what is wrong inside says enough: a list of one bad item is not also too short
        written = list(dict.fromkeys(map(_message, items)))
        joined = " or ".join([written[0], *(text.removeprefix("input ") for text in written[1:])])
        # Not pydantic's input: that is what a validator has already made of "20M".
        value: Any = data
        for part in location if items[0]["type"] != "missing" else ():
            value = value[part]
        yield Problem(tuple(map(str, location)), items[0]["type"], joined, value)


def _location(loc: Sequence[int | str], data: Any) -> tuple[int | str, ...]:
    """The part of pydantic's location that is a key; what follows names the member of a union."""
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
