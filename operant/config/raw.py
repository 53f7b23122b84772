"""A configuration as it was written: its values, the place of each, and what is wrong so far. Knows no section and no key.

A draft grows in three steps: a TOML file, then the overrides of the command line, then whoever validates adds problems.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from operant.config import toml_positions
from operant.errors import ConfigError, NotFoundError

Key = tuple[str, ...]
Place = tuple[int, int]  # (0, line of the file), (1, number of the override); NOWHERE for a value nobody wrote

NOWHERE: Place = (2, 0)
COMMAND_LINE = "command line"
_MOST_BYTES = 1 << 20
_ADVICE = "see all keys with their defaults: operant config show"
_SELF_EXPLAINED = ("env.name: ", "algo.name: ", "net.kind: ")  # these say what there is, or what is wrong with a file of the user's own
_WORD = re.compile(r"[A-Za-z0-9_-]+")


@dataclass
class Draft:
    """Values by section, the place of every key that was written, and the problems found."""

    source: Path | None
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, Place] = field(default_factory=dict)
    texts: dict[Key, str] = field(default_factory=dict)  # of overrides, before they were read as TOML values
    problems: list[tuple[Place, str]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What the whole configuration is called in a message."""
        return COMMAND_LINE if self.source is None else shown(self.source)

    def place(self, *keys: Key) -> Place:
        """The place of the first of these keys that was written, else of the nearest table around the first."""
        for key in keys:
            if key in self.places:
                return self.places[key]
        around = (keys[0][:end] for end in range(len(keys[0]) - 1, 0, -1))
        return next((self.places[key] for key in around if key in self.places), NOWHERE)

    def typed(self, key: Key) -> bool:
        """Whether an override gives the value of a key, or of a table around it, and not the file."""
        return any(key[:end] in self.texts for end in range(1, len(key) + 1))

    def path(self, key: Key, name: str, folder: Path | None = None) -> Path:
        """The absolute path of a file that a key names: relative to the configuration file, or of an override to `folder` (default: the working directory)."""
        base = folder or Path() if self.source is None or self.typed(key) else self.source.parent
        return Path(os.path.abspath(base / os.path.expanduser(name)))

    def origin(self, key: Key) -> str:
        """`FILE:LINE`, `command line` or `default`: where the value of a key comes from."""
        if not has(self.data, key):
            return "default"
        return self.words(self.place(key))

    def words(self, place: Place) -> str:
        """A place in words."""
        if place[0] == 0:
            return f"{self.title}:{place[1]}"
        return COMMAND_LINE if place[0] == 1 else "default"

    def problem(self, place: Place, sentence: str) -> None:
        """Note one thing that is wrong."""
        self.problems.append((place, sentence))

    def raise_problems(self) -> None:
        """Raise a ConfigError with all problems, in the order of the file and then of the command line; none, and nothing happens."""
        if not self.problems:
            return
        ordered = sorted(dict.fromkeys(self.problems), key=lambda problem: problem[0])
        source = self.title if any(place[0] != 1 for place, _ in ordered) else COMMAND_LINE
        keys_help = any(not sentence.startswith(_SELF_EXPLAINED) for _, sentence in ordered)
        raise ConfigError(source, [f"{self.words(place)}: {sentence}" for place, sentence in ordered], advice=_ADVICE if keys_help else None)


def read(source: Path | None, overrides: Sequence[str] = ()) -> Draft:
    """The draft of a file (or of nothing) and of overrides `section.key=value`, of which a later one wins.

    Raises NotFoundError for a file that is not there; anything else wrong becomes a problem of the draft.
    """
    draft = Draft(source)
    if source is not None:
        _read_file(draft, source)
    for number, text in enumerate(overrides):
        _override(draft, (1, number), text)
    return draft


def shown(path: Path) -> str:
    """A path as short as it can be said: relative where it lies below the working directory."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone
        return str(path)
    return str(path) if relative.startswith("..") else relative


def has(data: Mapping[str, Any], key: Key) -> bool:
    """Whether nested tables hold a value at a key."""
    value: Any = data
    for part in key:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def flat(data: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """The keys and values of nested tables, in order."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, (*above, name))
        else:
            yield (*above, name), value


def _read_file(draft: Draft, source: Path) -> None:
    try:
        if not source.is_file():
            raise NotFoundError(f"there is no configuration file {str(source)!r}")
        content = source.read_bytes() if source.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotFoundError(f"the configuration file {str(source)!r} cannot be read: {reason}") from error
    if content is None:
        draft.problem((0, 1), "the file is larger than 1 MiB: this is no configuration")
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        draft.problem((0, content.count(b"\n", 0, error.start) + 1), f"the file is not UTF-8: byte {content[error.start]:#04x}")
        return
    try:
        draft.data = tomli.loads(text)
        draft.places = {key: (0, line) for key, line in toml_positions.lines(text).items()}
    except (ValueError, RecursionError) as error:
        draft.problem((0, _line(error, text)), f"not valid TOML: {_reason(error)}")


def _line(error: Exception, text: str) -> int:
    """The line of a syntax error. tomli places an unclosed string on the line after, or at the end of the document."""
    line = getattr(error, "lineno", None)
    if line is None:
        match = re.search(r"at line (\d+)", str(error))
        line = int(match.group(1)) if match else text.count("\n") + 1
    return max(1, min(int(line), len(text.splitlines())))


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    if not isinstance(error, tomli.TOMLDecodeError):
        return "a number has too many digits"
    reason = str(getattr(error, "msg", None) or re.sub(r" \(at .*\)$", "", str(error)))
    known = {
        "Illegal character '\\n'": "a string is not closed (missing quote at the end of the line)",
        "Cannot overwrite a value": "a key is given twice",
        "Invalid value": "a value is missing or is no TOML value (text needs quotes)",
    }
    twice = re.fullmatch(r"Cannot (?:declare|mutate immutable namespace) \((.*?),?\)(?: twice)?", reason)
    if twice:
        return "the table [" + ".".join(re.findall(r"'([^']*)'", twice.group(1))) + "] is given twice"
    return known.get(reason, reason[:1].lower() + reason[1:])


def _override(draft: Draft, place: Place, text: str) -> None:
    left, equals, right = text.partition("=")
    key = tuple(part.strip() for part in left.split("."))
    if not equals or not all(_WORD.fullmatch(part) for part in key):
        draft.problem(place, f"{quoted(text)} is no override: write section.key=value, such as algo.learning_rate=3e-4")
        return
    table = draft.data
    for end, part in enumerate(key[:-1], 1):
        table = table.setdefault(part, {})
        draft.places.setdefault(key[:end], place)
        if not isinstance(table, dict):
            draft.problem(place, f"{'.'.join(key)}: {'.'.join(key[:end])!r} is a value, not a table, and has no keys")
            return
    table[key[-1]] = _value(right.strip())
    for below in [other for other in draft.places if other[: len(key)] == key]:
        del draft.places[below]
    draft.places[key], draft.texts[key] = place, right.strip()


def _value(text: str) -> Any:
    """A TOML value, or else the text itself: 3e-4, true, [32, 32] and "x" are values; pendulum and 20M are texts."""
    try:
        read = tomli.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text


def quoted(value: object) -> str:
    """A value as it goes into a message: short, and with nothing in it that a terminal would obey."""
    try:
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, list):
            text = f"[{', '.join(map(quoted, value[:8]))}{', ...' if len(value) > 8 else ''}]"
        else:
            text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, tables nested beyond measure
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= 80 else text[:76] + " ..."
