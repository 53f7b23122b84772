"""What the names in a raw configuration stand for: an algorithm, an environment with its parameters, a network; shipped
ones and a user's own files.

What does not exist becomes a problem of the configuration, and the nearest thing that exists is returned, so that the
rest can still be checked. Knows nothing of the other keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import StrictBool, TypeAdapter, ValidationError

from operant import algos, envs
from operant.config import messages, recipes
from operant.config.raw import DEFAULT, Key, RawConfig, quoted
from operant.envs import outside, ranges
from operant.errors import MachineError, NotFoundError, OperantError
from operant.host import names
from operant.settings import Count, Real


def value_of(raw: RawConfig, section: str, key: str, default: Any) -> Any:
    """The value of a key as it was written, whatever its type, before its section is checked."""
    table = raw.data.get(section)
    value = table.get(key, default) if isinstance(table, dict) else default
    return value if isinstance(value, str | dict) else raw.texts.get((section, key), value)


def algorithm(raw: RawConfig, folder: Path | None) -> tuple[Any, str]:
    """The class of `algo.name`, and the name it is found by again: a shipped one's, or the absolute path of a user's
    file, a colon and the class.
    """
    key, default = ("algo", "name"), recipes.algorithm_of(str(value_of(raw, "env", "name", recipes.ENVIRONMENT)))
    name, location, shipped = value_of(raw, *key, default), raw.location(key), ", ".join(algos.names())
    if not isinstance(name, str):
        raw.problem(location, f"algo.name: input should be one of {shipped} (got {quoted(name)})")
        return None, ""
    if name in algos.names():
        return algos.load(name), name
    path, _, class_name = name.rpartition(":")
    if path.endswith(".py") and class_name.isidentifier():
        try:
            found = f"{user_file(path, raw, key, folder)}:{class_name}"
            return algos.load(found), found
        except OperantError as error:
            raw.problem(location, f"algo.name: {error}")
            return None, name
    nearest = messages.nearest(name, algos.names())
    available = f"Available: {shipped}, or one of your own as FILE.py:CLASS, such as my_algo.py:MyAlgo"
    raw.problem(
        location, f"algo.name: unknown algorithm {quoted(name)}{messages.did_you_mean(nearest) or '.'} {available}"
    )
    return nearest and algos.load(nearest), name


def algorithms_with(key: str) -> list[str]:
    """The shipped algorithms that have a key."""
    return [name for name in algos.names() if key in algos.load(name).Config.model_fields]


def environment(raw: RawConfig, folder: Path | None) -> tuple[Any, str]:
    """The environment of `env.name`, and the name it is found by again: a shipped one's, or the absolute path of a
    user's file.
    """
    name, location = value_of(raw, "env", "name", recipes.ENVIRONMENT), raw.location(("env", "name"))
    if not isinstance(name, str) or not name:
        return None, ""
    try:
        if names.kind_of(name) is not None:
            return None, _outside_name(name, raw, folder)
        if name.endswith(".py"):
            path = str(user_file(name, raw, ("env", "name"), folder))
            return envs.find(path), path
        found = envs.find(name)
        return found, found.name
    except KeyError:
        nearest = messages.nearest(name, envs.names())
        if name in algos.names():
            raw.problem(
                location,
                f"env.name: {name} is an algorithm, not an environment: operant train cartpole algo.name={name}",
            )
            return None, name
        own = "a file of your own (my_env.py), an outside one (gymnasium:ID, ale:NAME, envpool:ID, my_envs.py:make)"
        available = f"Available: {own}, {', '.join(envs.names())}"
        raw.problem(
            location, f"env.name: unknown environment {quoted(name)}{messages.did_you_mean(nearest) or '.'} {available}"
        )
        return nearest and envs.find(nearest), name
    except OperantError as error:
        raw.problem(location, f"env.name: {error}")
        return None, name


def _outside_name(name: str, raw: RawConfig, folder: Path | None) -> str:
    """The name by which an outside environment is found again: of a user's file with its absolute path. Raises
    NotFoundError.
    """
    file = names.file_of(name)
    return name if file is None else f"{user_file(file, raw, ('env', 'name'), folder)}:{name.rpartition(':')[2]}"


def outside_defaults(raw: RawConfig, name: str) -> None:
    """What an outside environment has other defaults for: each of its lanes is an environment of its own, with its own
    memory.
    """
    table = raw.data.setdefault("env", {})
    if isinstance(table, dict) and "lanes" not in table:
        table["lanes"], raw.locations["env", "lanes"] = "auto", DEFAULT


def outside_environment(raw: RawConfig, name: str, settings: Any) -> Any:
    """The outside environment of a name, with the values of `[env]`; None, and a problem, where it cannot be made.
    Raises MachineError.
    """
    location, kind, file = raw.location(("env", "name")), names.kind_of(name), names.file_of(name)
    assert kind is not None
    if settings.pixels is not None:
        raw.problem(
            raw.location(("env", "pixels")),
            "env.pixels: an outside environment shows what it shows: env.resize changes its size",
        )
    if settings.flicker:
        raw.problem(raw.location(("env", "flicker")), "env.flicker: an outside environment has none (use 0)")
    try:
        found = outside.declare(outside.source(kind, name if file is not None else name.partition(":")[2], settings))
    except MachineError:
        raise
    except (OperantError, OSError, TypeError, ValueError) as error:
        raw.problem(location, f"env.name: {error}")
        return None
    net = raw.data.setdefault("net", {})
    if found.pixels and isinstance(net, dict) and "kind" not in net:
        net["kind"], raw.locations["net", "kind"] = "cnn", DEFAULT
    return replace(found, hosting=outside.hosting(settings))


def refuse_outside_keys(raw: RawConfig, defaults: Mapping[str, Any], once: Sequence[str]) -> None:
    """A problem for each key of outside environments that was written for another one. (What a run writes down holds
    them all, with their defaults.)

    A 1 of the keys `once` changes nothing, and stands in what earlier versions wrote down.
    """
    table = raw.data.get("env")
    if not isinstance(table, dict):
        return
    for key, default in defaults.items():
        if table.get(key) not in (None, default) and not (key in once and table[key] == 1):
            raw.problem(
                raw.location(("env", key)),
                f"env.{key}: only outside environments have it, such as gymnasium:LunarLander-v3",
            )


def observed(raw: RawConfig, env: Any, section: Any) -> Any:
    """The environment, observed as pictures where `env.pixels` says so, and flickering as `env.flicker` does; a problem
    where it draws no pictures.
    """
    if env is None or section is None:
        return env
    try:
        return envs.with_flicker(
            env if section.pixels is None else envs.with_pixels(env, section.pixels), section.flicker
        )
    except OperantError as error:
        raw.problem(raw.location(("env", "pixels")), f"env.pixels: {error}")
        return env


def params(raw: RawConfig, env: Any, known: Mapping[str, Sequence[str]]) -> Any:
    """The environment's Params with the values that were written; None, and a problem for each thing that is wrong."""
    given = value_of(raw, "env", "params", {})
    if env is None or not isinstance(given, dict):
        return None
    fields, defaults = getattr(env.Params, "_fields", None), getattr(env.Params, "_field_defaults", {})
    name_location, problems = raw.location(("env", "name")), len(raw.problems)
    if fields is None or set(fields) != set(defaults):
        raw.problem(
            name_location, f"env.name: Params of {env.name} must be a NamedTuple whose fields all have a default"
        )
        return None
    for message in ranges.declaration_problems(env):
        raw.problem(name_location, f"env.name: {env.name}: {message}")
    if len(raw.problems) > problems:
        return None
    values = {}
    for name, value in given.items():
        key = ("env", "params", name)
        if name not in fields:
            raw.problem(raw.location(key), messages.unknown_key(key, known, fields))
            continue
        try:
            values[name] = _parameter_type(defaults[name]).validate_python(value)
        except ValidationError as error:
            for item in messages.problems(error, {}):
                raw.problem(raw.location(key), f"{messages.dotted(key)}: {item.message} (got {quoted(value)})")
            continue
        if problem := ranges.problem(env, name, values[name]):
            raw.problem(raw.location(key), f"{messages.dotted(key)}: {problem} (got {quoted(value)})")
    return env.Params(**values) if len(raw.problems) == problems else None


def changeable(raw: RawConfig, env: Any) -> dict[str, Callable[[float], str | None]]:
    """The parameters that can change while it trains, each with what says why it cannot have a value: floats of an
    environment of ours, without pictures.
    """
    if (
        env is None
        or isinstance(env, outside.HostEnv)
        or env.pixels
        or value_of(raw, "env", "pixels", "none") != "none"
    ):
        return {}
    found = getattr(env.Params, "_field_defaults", {})
    return {
        name: functools.partial(ranges.problem, env, name) for name, value in found.items() if isinstance(value, float)
    }


def _parameter_type(default: object) -> TypeAdapter[Any]:
    """How a parameter of this default is written; `operant.envs.ranges` knows what it may be."""
    if isinstance(default, bool):
        return TypeAdapter(StrictBool)
    if isinstance(default, int):
        return TypeAdapter(Count)
    return TypeAdapter(Real)


def network_kind(raw: RawConfig, folder: Path | None, built_in: Sequence[str]) -> str:
    """`net.kind`, of a user's own file with its absolute path; a problem where it is neither that nor one of
    `built_in`, whose first is the default.
    """
    default, key = built_in[0], ("net", "kind")
    kind = value_of(raw, *key, default)
    if not isinstance(kind, str):
        return default
    if kind in built_in:
        return kind
    path, _, name = kind.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        hint = messages.did_you_mean(messages.nearest(kind, built_in))
        allowed = (
            f"input should be {', '.join(map(repr, built_in))}, or a network of your own as FILE.py:CLASS, such "
            "as 'my_net.py:MyNet'"
        )
        raw.problem(raw.location(key), f"net.kind: {allowed}{hint} (got {quoted(kind)})")
        return default
    try:
        return f"{user_file(path, raw, key, folder)}:{name}"
    except NotFoundError as error:
        raw.problem(raw.location(key), f"net.kind: {error}")
        return default


def user_file(name: str, raw: RawConfig, key: Key, folder: Path | None) -> Path:
    """The absolute path of a user's file that is named under a key. Raises NotFoundError."""
    try:
        path = raw.path(key, name, folder)
        if path.is_file():
            return path
    except (OSError, ValueError):  # a name too long, a NUL in it, a folder that may not be read
        pass
    raise NotFoundError(f"there is no file {quoted(name)} (looked in {raw.path(key, '', folder)})")
