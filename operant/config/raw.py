"""Raw configuration: unvalidated values, the source location of each, and the problems found so far.

`read` parses a TOML file and applies the overrides of the command line. The checks of `operant.config.load` add
problems. Sections and keys are not interpreted here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from operant import old_names
from operant.config import formats, toml_positions
from operant.errors import ConfigError, NotFoundError
from operant.similar import plain_name

Key = tuple[str, ...]
Location = tuple[int, int]
"""(0, line of the file) or (1, index of the override); DEFAULT for a value that was not written."""

DEFAULT: Location = (2, 0)
COMMAND_LINE = "command line"
_MOST_BYTES = 1 << 20
_ADVICE = "see all keys with their defaults: operant config show"
# Prefixes of messages that list the alternatives themselves: they need no _ADVICE.
_SELF_EXPLAINED = "env.name: ", "algo.name: ", "net.kind: "
_MEMORY_KEYS = (
    ("net", "memory_size"),
    ("net", "memory_layers"),
    ("net", "memory_init"),
    ("algo", "bptt"),
    ("algo", "carry_state"),
)
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_RECORDED = {
    "config.toml": ("run.json", "manifest.json"),
    "sweep.toml": ("journal.log",),
    "best.toml": ("journal.log",),
}
"""Names of files that Operant writes, each with files that identify its folder."""


@dataclass
class RawConfig:
    """Configuration before its checks: values by section, the source location of each written key, and the problems
    found so far.
    """

    source: Path | None
    data: dict[str, Any] = field(default_factory=dict)
    locations: dict[Key, Location] = field(default_factory=dict)
    texts: dict[Key, str] = field(default_factory=dict)  # text of overrides, before it is parsed as TOML
    problems: list[tuple[Location, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # notes for the user that are not problems

    @property
    def title(self) -> str:
        """Name of the configuration in messages: its file, or "command line"."""
        return COMMAND_LINE if self.source is None else shown(self.source)

    def location(self, *keys: Key) -> Location:
        """Return the source location of the first of `keys` that is written, else of the innermost table around the
        first key.
        """
        for key in keys:
            if key in self.locations:
                return self.locations[key]
        around = (keys[0][:end] for end in range(len(keys[0]) - 1, 0, -1))
        return next((self.locations[key] for key in around if key in self.locations), DEFAULT)

    def typed(self, key: Key) -> bool:
        """Whether the value of a key, or of a table around it, comes from an override on the command line."""
        return any(key[:end] in self.texts for end in range(1, len(key) + 1))

    def path(self, key: Key, name: str, folder: Path | None = None) -> Path:
        """Return the absolute path of the file `name`, which the value of `key` names.

        The name is relative to the configuration file or, in an override, to `folder` (default: the working directory).
        """
        base = folder or Path() if self.source is None or self.typed(key) else self.source.parent
        return Path(os.path.abspath(base / os.path.expanduser(name)))

    def origin(self, key: Key) -> str:
        """Return the source of a key's value as text: `FILE:LINE`, `command line` or `default`."""
        if not has(self.data, key):
            return "default"
        return self.location_text(self.location(key))

    def value(self, section: str, key: str, default: Any) -> Any:
        """Return the unvalidated value of a key in a section: numbers of overrides as their text; `default` if it is
        not written.
        """
        table = self.data.get(section)
        value = table.get(key, default) if isinstance(table, dict) else default
        return value if isinstance(value, str | dict) else self.texts.get((section, key), value)

    def location_text(self, location: Location) -> str:
        """Format a source location: `FILE:LINE`, `command line` or `default`."""
        if location[0] == 0:
            return f"{self.title}:{location[1]}"
        return COMMAND_LINE if location[0] == 1 else "default"

    def problem(self, location: Location, message: str) -> None:
        """Add a problem of the configuration with its source location, for `raise_problems`."""
        self.problems.append((location, message))

    def raise_problems(self) -> None:
        """Raise ConfigError if the configuration has problems, ordered by line of the file, then by override."""
        if not self.problems:
            return
        ordered = sorted(dict.fromkeys(self.problems), key=lambda problem: problem[0])
        source = self.title if any(location[0] != 1 for location, _ in ordered) else COMMAND_LINE
        keys_help = any(not message.startswith(_SELF_EXPLAINED) for _, message in ordered)
        raise ConfigError(
            source,
            [f"{self.location_text(location)}: {message}" for location, message in ordered],
            advice=_ADVICE if keys_help else None,
        )


def read(source: Path | None, overrides: Sequence[str] = ()) -> RawConfig:
    """Read a TOML file (None: no file) and apply overrides `section.key=value` in order. Nothing is validated.

    Raises NotFoundError if the file cannot be read. Anything else wrong is added as a problem.
    """
    raw = RawConfig(source)
    if source is not None:
        _read_file(raw, source)
    before = _environment(raw)
    for number, text in enumerate(overrides):
        _override(raw, (1, number), text)
    _drop_target(raw, before)
    _note_unused_network_keys(raw)
    return raw


def shown(path: Path) -> str:
    """Return the short form of a path: relative if it lies below the working directory."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone
        return str(path)
    return str(path) if relative.startswith("..") else relative


def has(data: Mapping[str, Any], key: Key) -> bool:
    """Whether nested tables contain a key, given by its path."""
    value: Any = data
    for part in key:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def flat(data: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield (key, value) for every value in nested tables, depth first; a key is a tuple of names, starting with
    `above`.
    """
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, (*above, name))
        else:
            yield (*above, name), value


def _read_file(raw: RawConfig, source: Path) -> None:
    """Read a TOML file into `raw`, with old keys renamed and earlier formats converted. Invalid content is added as a
    problem. Raises NotFoundError.
    """
    try:
        if not source.is_file():
            raise NotFoundError(f"there is no configuration file {str(source)!r}")
        content = source.read_bytes() if source.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotFoundError(f"the configuration file {str(source)!r} cannot be read: {reason}") from error
    if content is None:
        raw.problem((0, 1), "the file is larger than 1 MiB, the limit for a configuration")
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raw.problem(
            (0, content.count(b"\n", 0, error.start) + 1), f"the file is not UTF-8: byte {content[error.start]:#04x}"
        )
        return
    try:
        raw.data = tomli.loads(text)
        raw.locations = {key: (0, line) for key, line in toml_positions.lines(text).items()}
    except (ValueError, RecursionError) as error:
        line = _line(error, text)
        suffixed = _SUFFIXED.search(text.splitlines()[line - 1]) if 0 < line <= text.count("\n") + 1 else None
        hint = f' (a number with a suffix is written in quotes: "{suffixed[1]}")' if suffixed else ""
        raw.problem((0, line), f"not valid TOML: {_reason(error)}{hint or _yaml_hint(source, text, line)}")
    recorded = any((source.parent / name).is_file() for name in _RECORDED.get(source.name, ()))
    for old, new in {**old_names.ALIASES, **(old_names.KEYS if recorded else {})}.items():
        _rename(raw, old, new)
    if problem := formats.to_current_format(raw.data, recorded=recorded):
        raw.problem(raw.location((formats.KEY,)), problem)


def _yaml_hint(source: Path, text: str, line: int) -> str:
    """Return a hint for a file that is YAML instead of TOML; "" for any other. `line`: number of the line with the
    error.
    """
    written = text.splitlines()[line - 1 : line]
    if source.suffix not in (".yaml", ".yml") and not any(re.match(r"\s*[\w.-]+:(\s|$)", one) for one in written):
        return ""
    return '. A configuration is TOML, not YAML: [env] above name = "cartpole"'


def _rename(raw: RawConfig, old: str, new: str) -> None:
    """Move the value of the file's key `old` to its `new` name (`section.name`); add a problem if both are written."""
    (section, before), (_, after) = key, new_key = tuple(old.split(".")), tuple(new.split("."))
    table = raw.data.get(section)
    if not isinstance(table, dict) or before not in table:
        return
    if after in table:
        raw.problem(raw.location(key), f"{old} is another name of {new}, which is also given: remove one of them")
    value, location = table.pop(before), raw.location(key)
    table.setdefault(after, value)
    raw.locations.setdefault(new_key, location)


def _environment(raw: RawConfig) -> str:
    """Return the value of `env.name` in a comparable form (absolute path for a user's file); "" if it is not set."""
    table = raw.data.get("env")
    name = table.get("name") if isinstance(table, dict) else None
    if not isinstance(name, str) or "\0" in name:
        return ""
    return str(raw.path(("env", "name"), name)) if name.endswith(".py") else plain_name(name)


def _drop_target(raw: RawConfig, before: str) -> None:
    """Remove the file's run.target, with a note, if an override replaced the file's environment `before`: returns of
    different environments are not comparable.
    """
    after, run, key = _environment(raw), raw.data.get("run"), ("run", "target")
    if not before or after in ("", before) or raw.typed(key) or not isinstance(run, dict) or "target" not in run:
        return
    target = f"run.target = {quoted(run.pop('target'))} ({raw.location_text(raw.locations.pop(key, DEFAULT))})"
    raw.notes.append(
        f"{target} is a return of {Path(before).stem}, not of {Path(after).stem}, and is ignored; run.target=N "
        "sets another"
    )


def _note_unused_network_keys(raw: RawConfig) -> None:
    """Add a note for each override of a network key that has no effect, such as memory_size without a memory."""
    net = raw.data.get("net")
    net = net if isinstance(net, dict) else {}
    kind = str(net.get("kind", "mlp"))
    unused: dict[Key, str] = {}
    if net.get("memory", "none") == "none" and ":" not in kind:  # a user's own network may have one
        unused = dict.fromkeys(_MEMORY_KEYS, "without a memory: net.memory=gru, mingru or lstm")
        if kind == "places":  # memory_layers counts its blocks
            del unused["net", "memory_layers"]
    if kind != "cnn":
        unused |= dict.fromkeys((("net", "cnn"), ("net", "channels")), "without convolutions: net.kind=cnn")
    if kind in ("cnn", "places"):
        unused["net", "shared"] = f"with net.kind={kind}, which always has one trunk"
    raw.notes += [
        f"{'.'.join(key)} has no effect {reason}"
        for key, reason in unused.items()
        if raw.typed(key) and has(raw.data, key)
    ]


def _line(error: Exception, text: str) -> int:
    """Return the line (from 1) of a TOML syntax error in `text`, clamped to its lines: tomli reports an unclosed string
    on a later one.
    """
    line = getattr(error, "lineno", None)
    if line is None:
        match = re.search(r"at line (\d+)", str(error))
        line = int(match.group(1)) if match else text.count("\n") + 1
    return max(1, min(int(line), len(text.splitlines())))


def _reason(error: Exception) -> str:
    """Return the plain message for a syntax error of tomli."""
    if isinstance(error, RecursionError):
        return "tables are nested too deeply"
    if not isinstance(error, tomli.TOMLDecodeError):
        return "a number has too many digits"
    reason = str(getattr(error, "msg", None) or re.sub(r" \(at .*\)$", "", str(error)))
    known = {
        "Illegal character '\\n'": "a string is not closed (missing quote at the end of the line)",
        "Cannot overwrite a value": "a key is given twice",
        "Invalid value": "a value is missing or is not a TOML value (text needs quotes)",
    }
    twice = re.fullmatch(r"Cannot (?:declare|mutate immutable namespace) \((.*?),?\)(?: twice)?", reason)
    if twice:
        return "the table [" + ".".join(re.findall(r"'([^']*)'", twice.group(1))) + "] is given twice"
    return known.get(reason, reason[:1].lower() + reason[1:])


def _override(raw: RawConfig, location: Location, text: str) -> None:
    """Apply an override `section.key=value` to `raw`; anything wrong in it is added as a problem."""
    left, equals, right = text.partition("=")
    key = tuple(part.strip() for part in left.split("."))
    key = tuple(old_names.ALIASES.get(".".join(key), ".".join(key)).split("."))
    if not equals or not all(_WORD.fullmatch(part) for part in key):
        raw.problem(
            location, f"{quoted(text)} is not an override: write section.key=value, such as algo.learning_rate=3e-4"
        )
        return
    value = _value(right.strip())
    if isinstance(value, str) and _is_torn(value):
        raw.problem(
            location,
            f"{quoted(text)} is part of a value: the shell splits braces at commas and brackets may be patterns. Quote "
            "the word, such as 'algo.learning_rate={linear=[1e-3,0]}'",
        )
        return
    _set(raw, location, key, value, right.strip())


def _is_torn(value: str) -> bool:
    """Whether a value has an opening bracket without its closing one, or the reverse."""
    plain = value[:1] not in ("'", '"')
    return plain and any(value.count(left) != value.count(right) for left, right in ("[]", "{}"))


def _set(raw: RawConfig, location: Location, key: Key, value: Any, text: str) -> None:
    """Write the value of a key, its location and its `text` into `raw`. A section given as a table sets each of its
    keys.
    """
    if len(key) == 1 and isinstance(value, dict):
        for name, one in value.items():
            _set(
                raw,
                location,
                tuple(old_names.ALIASES.get(f"{key[0]}.{name}", f"{key[0]}.{name}").split(".", 1)),
                one,
                str(one),
            )
        return
    table = raw.data
    for end, part in enumerate(key[:-1], 1):
        table = table.setdefault(part, {})
        raw.locations.setdefault(key[:end], location)
        if not isinstance(table, dict):
            raw.problem(location, f"{'.'.join(key)}: {'.'.join(key[:end])!r} is a value, not a table with keys")
            return
    table[key[-1]] = value
    for below in [other for other in raw.locations if other[: len(key)] == key]:
        del raw.locations[below]
    raw.locations[key], raw.texts[key] = location, text


_SUFFIXED = re.compile(r"(?<![\w.\"'])([+-]?\d[\d_]*(?:\.\d+)?[kMG])(?![\w\"'])")
"""A number with a suffix, which is no TOML outside quotes."""


def _value(text: str) -> Any:
    """Parse the value of an override: as TOML if possible (3e-4, true, [32, 32], "x"), else the text itself (pendulum,
    20M). In a list or a table 20M is a string.
    """
    for written in (text, _SUFFIXED.sub(r'"\1"', text)):
        try:
            read = tomli.loads(f"value = {written}")
        except (ValueError, RecursionError):
            continue
        if written == text or isinstance(read["value"], dict | list):
            return read["value"] if len(read) == 1 else text
    return text


def quoted(value: object) -> str:
    """Format a value for messages, at most 80 characters, with control characters escaped."""
    try:
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, list):
            text = f"[{', '.join(map(quoted, value[:8]))}{', ...' if len(value) > 8 else ''}]"
        else:
            text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, deeply nested tables
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= 80 else text[:76] + " ..."
