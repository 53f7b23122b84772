"""Checks of a request without its code: names, keys, and the values of `[run]`, `[env]`, `[checkpoint]` and `[eval]`.
Imports no algorithm, no network and no environment, and so neither torch nor numba: a mistake on the command line is
answered at once.

`operant.config.load` repeats these checks and makes those that need the code: of the values of `[algo]` and `[net]`,
parameters of environments, users' files, and values that conflict with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from operant import algos, env_names
from operant.config import keys, recipes
from operant.config.raw import Key, RawConfig
from operant.host import names

_NAMES = (("env", "name"), ("algo", "name"))
"""Keys whose values are names of code, which are checked without pydantic."""


def check(raw: RawConfig) -> None:
    """Add a problem to a raw configuration for each unknown name, unknown key and invalid value. Values of a shipped
    recipe are not checked.
    """
    _unknown_keys(raw)
    _algorithm(raw)
    _environment(raw)
    written = {key[0] for key in raw.texts if key not in _NAMES} if _is_recipe(raw.source) else set(raw.data)
    if written:
        _values(raw, written)


def _is_recipe(source: Path | None) -> bool:
    """Whether a configuration file is a shipped recipe, or None, the defaults."""
    return source is None or source in map(Path.resolve, map(recipes.find_source, recipes.shipped()))


def _unknown_keys(raw: RawConfig) -> None:
    """Add a problem for each key that no shipped algorithm has."""
    unknown = list(keys.unknown(raw))
    if unknown:
        from operant.config import messages

        known = keys.known()
        for key in unknown:
            siblings = known.get(key[0]) if len(key) > 1 else None
            raw.problem(raw.location(key), messages.unknown_key(key, known, siblings or (*known, "sweep")))


def _algorithm(raw: RawConfig) -> None:
    """Add a problem to a raw configuration whose algo.name is neither a shipped algorithm nor a class in a user's
    file.
    """
    name = raw.value("algo", "name", recipes.algorithm_of(str(raw.value("env", "name", recipes.ENVIRONMENT))))
    if isinstance(name, str) and (name in algos.names() or ".py:" in name):
        return
    from operant.config import naming

    raw.problem(raw.location(("algo", "name")), naming.unknown_algorithm(name)[0])


def _environment(raw: RawConfig) -> None:
    """Add a problem to a raw configuration whose env.name is none of: a shipped environment, its Gymnasium id, a user's
    file, an environment of another library.
    """
    name = raw.value("env", "name", recipes.ENVIRONMENT)
    if not isinstance(name, str) or name.endswith(".py") or names.kind_of(name) is not None:
        return
    shipped = env_names.modules()
    if name not in shipped and not env_names.may_be_id(name):
        from operant.config import naming

        raw.problem(raw.location(("env", "name")), naming.unknown_environment(name, sorted(shipped))[0])


def _values(raw: RawConfig, written: set[str]) -> None:
    """Add a problem for each value of the sections `written` that has the wrong type or is out of range."""
    from operant.config import schedules, sections, validation

    known = keys.known()
    for name, table in raw.data.items():
        if name not in written or name not in sections.MODELS:
            continue
        if isinstance(table, Mapping):
            # Unknown keys have problems already. Schedules are checked with the algorithm.
            table = {
                key: value for key, value in table.items() if key in known[name] and not schedules.is_written(value)
            }
        # The view shares the list of problems.
        validation.section(replace(raw, data={name: table}), name, sections.MODELS[name], known[name][0], _never)


def _never(key: Key) -> None:
    raise AssertionError(f"{key} was removed before")
