"""Columns, filters and order of `operant runs`. A column is a property of a run or a key of its configuration.

A configuration is read only if a column needs it, so that the plain list stays fast.
"""

from __future__ import annotations

import fnmatch
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from operant import similar
from operant.errors import UsageError
from operant.text import age, count, duration, number, safe

Row = dict[str, Any]
DEFAULT: Final = ("state", "id", "env", "algo", "eval", "return", "sps", "progress", "eta", "age")
_CONFIG: Final = "config"
"""Entry of a row that holds the configuration by dotted key."""


class Column(NamedTuple):
    """Column of a property of a run: a function of a row that gives the value for filters and order, a function of the
    value that gives its text in the table, and whether it is right-aligned.
    """

    value: Callable[[Row], Any]
    text: Callable[[Any], str] = str
    right: bool = False


def _entry(key: str) -> Callable[[Row], Any]:
    """Return a function that returns entry `key` of a run's description."""
    return lambda row: row.get(key)


def _score(row: Row) -> Any:
    """Return a run's score: mean return of the last evaluation, without one the training return."""
    return row["return"] if row["eval_return"] is None else row["eval_return"]


def _date(row: Row) -> str | None:
    """Return the local date and time at which a run was created, such as "2026-11-24 14:03"; None if unknown."""
    created = row.get("created")
    if not isinstance(created, str):
        return None
    return datetime.fromisoformat(created.replace("Z", "+00:00")).astimezone().strftime("%Y-%m-%d %H:%M")


_COLUMNS: Final[dict[str, Column]] = {
    **{name: Column(_entry(name)) for name in ("state", "id", "env", "algo", "device", "host", "version", "cause")},
    "score": Column(_score, number, True),
    "eval": Column(_entry("eval_return"), number, True),
    "best": Column(_entry("best_return"), number, True),
    "return": Column(_entry("return"), number, True),
    "target": Column(_entry("target"), number, True),
    "sps": Column(_entry("sps"), count, True),
    "seed": Column(_entry("seed"), str, True),
    "step": Column(_entry("step"), count, True),
    "steps": Column(_entry("steps"), count, True),
    "progress": Column(_entry("progress"), lambda share: f"{100 * share:.0f} %", True),
    "took": Column(_entry("took_s"), duration, True),
    "eta": Column(_entry("eta_s"), duration, True),
    "age": Column(_entry("age_s"), age, True),
    "date": Column(_date),
    "tags": Column(lambda row: " ".join(row["tags"]) or None),
    "note": Column(lambda row: row.get("note") or None),
}


def _config_text(value: Any) -> str:
    """Format a configuration value: floats briefly, other values as JSON without quotes."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _column(name: str) -> Column:
    """Return the column `name`: a property, or a key of the configuration."""
    known = _COLUMNS.get(name)
    return known or Column(lambda row: row.get(_CONFIG, {}).get(name), _config_text, False)


def with_config(rows: Iterable[Row], names: Iterable[str]) -> list[Row]:
    """Return the rows, with the configuration if one of the columns `names` needs it. Raises UsageError for a name that
    is neither a property nor a key of any run.
    """
    rows, needed = list(rows), [name for name in dict.fromkeys(names) if name not in _COLUMNS]
    if not needed or not rows:
        return rows
    from operant.config import resolved

    full = [row | {_CONFIG: resolved.flat(resolved.tables(Path(row["path"], "config.toml")))} for row in rows]
    keys = dict.fromkeys(key for row in full for key in row[_CONFIG])
    for name in needed:
        if name not in keys:
            raise UsageError(_unknown(name, [*_COLUMNS, *keys]))
    return full


def _unknown(name: str, known: Sequence[str]) -> str:
    """Return the message about a column that does not exist, with the closest one."""
    ends = [key for key in known if key.rpartition(".")[2] == name]
    near = ends[0] if ends else similar.nearest(name, known)
    suggestion = similar.did_you_mean(near) or f": columns are {', '.join(_COLUMNS)}, and keys of the configuration"
    return f"no run has {safe(name, 80)!r}{suggestion}"


# FILTERS

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_FILTER: Final = re.compile(r"\s*([A-Za-z_][\w.\-/]*)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*", re.DOTALL)
_COUNT: Final = re.compile(r"([0-9._]+)([kMG])")
_SCALES: Final = {"k": 1e3, "M": 1e6, "G": 1e9}


class Filter(NamedTuple):
    """Condition on a column: its name, the operator, and the value as it was typed."""

    name: str
    operator: str
    text: str

    def matches(self, row: Row) -> bool:
        """Whether a run fulfils the condition. A run without the value never does. Raises UsageError if an order is
        asked of a text.
        """
        value = _column(self.name).value(row)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return False
        wanted = _number(self.text)
        compare = _OPERATORS[self.operator]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if wanted is None and self.operator not in ("=", "!="):
                raise UsageError(f"--where {self._shown}: {safe(self.text, 40)!r} is not a number, but {self.name} is")
            return self.operator == "!=" if wanted is None else compare(value, wanted)
        if self.name == "date":  # as precise as the typed date: date<=2026-11-24 includes that day
            return compare(value[: len(self.text)], self.text)
        own = _config_text(value).casefold()
        if self.operator in ("=", "!="):
            return fnmatch.fnmatchcase(own, self.text.casefold()) == (self.operator == "=")
        raise UsageError(
            f"--where {self._shown}: {self.name} is a text: compare it with = or !=, such as {self.name}=*"
        )

    @property
    def _shown(self) -> str:
        return safe(f"{self.name}{self.operator}{self.text}", 80)


def _number(text: str) -> float | None:
    """Return the number that a text means: 1e-4, 20_000, 20M; None for any other text."""
    match = _COUNT.fullmatch(text)
    try:
        return float(match[1]) * _SCALES[match[2]] if match else float(text)
    except ValueError:
        return None


def parse_filters(words: Iterable[str]) -> list[Filter]:
    """Parse filters such as `algo.learning_rate>1e-4`. Raises UsageError."""
    filters = []
    for word in words:
        match = _FILTER.fullmatch(word)
        if match is None or not match[3]:
            raise UsageError(
                f"--where is {safe(word, 80)!r}; it must be COLUMN and a value with =, !=, <, <=, > or >= between, "
                "such as 'algo.learning_rate>1e-4'"
            )
        filters.append(Filter(match[1], match[2].replace("==", "="), match[3]))
    return filters


# ORDER AND TEXT


def parse_columns(text: str | None) -> tuple[str, ...] | None:
    """Parse a list of columns, separated by commas; None if it was not given. Raises UsageError."""
    if text is None:
        return None
    names = tuple(name for word in text.split(",") if (name := word.strip()))
    if not names:
        raise UsageError("--columns names no column; it must be a list such as id,state,score,algo.learning_rate")
    return names


def ordered(rows: Iterable[Row], sort: str) -> list[Row]:
    """Return the rows in ascending order of the column `sort`, with `-` before it in descending order. Rows without a
    value come last.
    """
    column, descending = _column(sort.removeprefix("-")), sort.startswith("-")

    def key(row: Row) -> tuple[bool, float, str]:
        value = column.value(row)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return True, float(value), ""
        return False, 0.0, _config_text(value).casefold()

    def is_known(row: Row) -> bool:
        value = column.value(row)
        return value is not None and not (isinstance(value, float) and math.isnan(value))

    rows = list(rows)
    known = sorted((row for row in rows if is_known(row)), key=key, reverse=descending)
    return known + [row for row in rows if not is_known(row)]


def cells(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """Format a run as the cells of the columns `names`; "-" for an unknown value."""
    columns = [_column(name) for name in names]
    return tuple("-" if (value := one.value(row)) is None else one.text(value) for one in columns)


def right(names: Sequence[str]) -> list[int]:
    """Return the indices of the columns that are right-aligned."""
    return [index for index, name in enumerate(names) if _column(name).right]


def values(row: Mapping[str, Any], names: Sequence[str]) -> Row:
    """Return the values of the columns `names` of a run, for JSON."""
    return {name: _column(name).value(dict(row)) for name in names}
