"""Name resolution: bind the names in a raw configuration to an algorithm, an environment and a network, each shipped or
from a user's file.

A name that cannot be resolved adds a problem to the raw configuration. The closest shipped name is bound in its place,
so that the remaining keys can still be checked.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import StrictBool, TypeAdapter, ValidationError

from operant import algos, envs, similar
from operant.config import messages, naming, recipes
from operant.config.raw import DEFAULT, Key, RawConfig, quoted
from operant.envs import outside, ranges
from operant.errors import MachineError, NotFoundError, OperantError
from operant.host import names
from operant.settings import Count, Real


@dataclass(frozen=True)
class Bound:
    """Code that the names in a raw configuration refer to, with the resolved names.

    `algorithm` is the algorithm's class and `environment` an `operant.envs.Env`; either is None if unresolved. An
    outside environment is made later, from the checked values of `[env]`.
    """

    algorithm: Any
    algorithm_name: str  # shipped name, or absolute path, a colon and the class
    environment: Any
    environment_name: str  # shipped name, outside name, or absolute path

    @property
    def hosted(self) -> bool:
        """Whether the environment is one of another library, stepped on the host."""
        return names.kind_of(self.environment_name) is not None


def bind(raw: RawConfig, folder: Path | None) -> Bound:
    """Bind `algo.name` and `env.name` to code, importing users' files, which are relative to `folder` if an override
    names them. Problems are added to `raw`.
    """
    return Bound(*algorithm(raw, folder), *environment(raw, folder))


def algorithm(raw: RawConfig, folder: Path | None) -> tuple[Any, str]:
    """Return the class of `algo.name` and its resolved name: a shipped name, or ABSOLUTE_PATH:CLASS. An unknown name
    adds a problem and gives the class of the closest shipped algorithm, None if none is close.
    """
    key, default = ("algo", "name"), recipes.algorithm_of(str(raw.value("env", "name", recipes.ENVIRONMENT)))
    name, location = raw.value(*key, default), raw.location(key)
    if isinstance(name, str) and name in algos.names():
        return algos.load(name), name
    path, _, class_name = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if path.endswith(".py") and class_name.isidentifier():
        try:
            resolved = f"{user_file(path, raw, key, folder)}:{class_name}"
            return algos.load(resolved), resolved
        except OperantError as error:
            raw.problem(location, f"algo.name: {error}")
            return None, name
    message, nearest = naming.unknown_algorithm(name)
    raw.problem(location, message)
    return nearest and algos.load(nearest), name if isinstance(name, str) else ""


def algorithms_with(key: str) -> list[str]:
    """Return the names of the shipped algorithms whose configuration has the key."""
    return [name for name in algos.names() if key in algos.load(name).Config.model_fields]


def environment(raw: RawConfig, folder: Path | None) -> tuple[Any, str]:
    """Return the environment of `env.name` and its resolved name: a shipped name, or an absolute path. The environment
    is None for one of another library. An unknown name adds a problem and gives the closest shipped environment, None
    if none is close.
    """
    name, location = raw.value("env", "name", recipes.ENVIRONMENT), raw.location(("env", "name"))
    if not isinstance(name, str):
        return None, ""
    try:
        if names.kind_of(name) is not None:
            return None, _outside_name(name, raw, folder)
        if name.endswith(".py"):
            path = str(user_file(name, raw, ("env", "name"), folder))
            return envs.find(path), path
        shipped = envs.find(name)
        return shipped, shipped.name
    except KeyError:
        message, nearest = naming.unknown_environment(name, envs.names())
        raw.problem(location, message)
        return nearest and envs.find(nearest), name
    except OperantError as error:
        raw.problem(location, f"env.name: {error}")
        return None, name


def _outside_name(name: str, raw: RawConfig, folder: Path | None) -> str:
    """Return the name of an outside environment (of another library), in which a user's file has its absolute path.
    Raises NotFoundError without the file.
    """
    file = names.file_of(name)
    return name if file is None else f"{user_file(file, raw, ('env', 'name'), folder)}:{name.rpartition(':')[2]}"


def outside_defaults(raw: RawConfig, name: str) -> None:
    """Write the default of `env.lanes` for the outside environment `name` (of another library) into `raw`: "auto",
    since each lane costs a process's memory.
    """
    table = raw.data.setdefault("env", {})
    if isinstance(table, dict) and "lanes" not in table:
        table["lanes"], raw.locations["env", "lanes"] = "auto", DEFAULT


def outside_environment(raw: RawConfig, name: str, settings: Any) -> Any:
    """Create the outside environment `name` (of another library) with `settings`, the checked values of `[env]`; None
    after adding a problem if it cannot be created. Raises MachineError.
    """
    location, kind, file = raw.location(("env", "name")), names.kind_of(name), names.file_of(name)
    assert kind is not None
    if file is not None and not os.path.isfile(file):  # `environment` has added the problem
        return None
    if settings.pixels is not None:
        raw.problem(
            raw.location(("env", "pixels")),
            "env.pixels is not supported for outside environments; remove it, or set env.resize",
        )
    if settings.flicker:
        raw.problem(
            raw.location(("env", "flicker")),
            "env.flicker is not supported for outside environments; remove it or set 0",
        )
    try:
        env = outside.declare(outside.source(kind, name if file is not None else name.partition(":")[2], settings))
    except MachineError:
        raise
    except (OperantError, OSError, TypeError, ValueError) as error:
        raw.problem(location, f"env.name: {error}")
        return None
    net = raw.data.setdefault("net", {})
    if env.pixels and isinstance(net, dict) and "kind" not in net:
        net["kind"], raw.locations["net", "kind"] = "cnn", DEFAULT
    return replace(env, hosting=outside.hosting(settings))


def refuse_outside_keys(raw: RawConfig, defaults: Mapping[str, Any], once: Sequence[str]) -> None:
    """Add a problem for each key of `[env]` that is set but only valid for outside environments (of another library).

    Values equal to `defaults` are accepted, since a run's config.toml holds all keys. So is 1 for the keys in `once`,
    which earlier versions wrote.
    """
    table = raw.data.get("env")
    if not isinstance(table, dict):
        return
    for key, default in defaults.items():
        if table.get(key) not in (None, default) and not (key in once and table[key] == 1):
            raw.problem(
                raw.location(("env", key)),
                f"env.{key} is supported only for outside environments, such as gymnasium:LunarLander-v3; remove it",
            )


def configured(raw: RawConfig, env: Any, params: Any) -> Any:
    """Return the environment configured for `params`. One that is built on first use looks for its model beside the
    configuration of a run, or of its checkpoint.
    """
    if env is None or params is None:
        return env
    places = [] if raw.source is None else [raw.source.parent, raw.source.parent.parent.parent]
    return env.configured(params, tuple(place / "source" for place in places))


def observed(raw: RawConfig, env: Any, params: Any, section: Any) -> Any:
    """Return the environment wrapped to observe images (`env.pixels`, `env.flicker`) if `section`, the model of
    `[env]`, asks for them. Adds a problem if it cannot draw images. `params` are the environment's.
    """
    if env is None or params is None or section is None:
        return env
    try:
        env = env if section.pixels is None else envs.with_pixels(env, section.pixels)
        return envs.with_flicker(env.ready(params), section.flicker) if section.flicker else env
    except OperantError as error:
        raw.problem(raw.location(("env", "pixels")), f"env.pixels: {error}")
        return env


def params(raw: RawConfig, env: Any, known: Mapping[str, Sequence[str]]) -> Any:
    """Return the environment's Params with the written values; None after adding one problem to `raw` for each invalid
    value. `known`: valid keys by section.
    """
    given = raw.value("env", "params", {})
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
    if len(raw.problems) == problems:
        for least, greatest, message in ranges.crossed(env, values):
            keys = sorted((("env", "params", least), ("env", "params", greatest)), key=lambda key: not raw.typed(key))
            raw.problem(raw.location(*keys), f"env.params.{least}: {message}")
    return env.Params(**values) if len(raw.problems) == problems else None


def changeable(raw: RawConfig, env: Any) -> dict[str, Callable[[float], str | None]]:
    """Parameters of the environment that a schedule may change, each with a function from value to error message (None:
    valid): none if the configuration asks for image observations.
    """
    return {} if raw.value("env", "pixels", "none") != "none" else changeable_parameters(env)


def changeable_parameters(env: Any) -> dict[str, Callable[[float], str | None]]:
    """Float parameters of a device environment without image observations, each with a function from value to error
    message (None: valid).
    """
    if env is None or isinstance(env, outside.HostEnv) or env.pixels:
        return {}
    defaults = getattr(env.Params, "_field_defaults", {})
    return {
        name: functools.partial(ranges.problem, env, name)
        for name, value in defaults.items()
        if isinstance(value, float)
    }


def _parameter_type(default: object) -> TypeAdapter[Any]:
    """Return the pydantic type of an environment parameter, by the type of its default; `operant.envs.ranges` checks
    the range.
    """
    if isinstance(default, bool):
        return TypeAdapter(StrictBool)
    if isinstance(default, int):
        return TypeAdapter(Count)
    return TypeAdapter(Real)


def network_kind(raw: RawConfig, folder: Path | None, built_in: Sequence[str]) -> str:
    """Return the resolved `net.kind`: one of `built_in` (the first is the default), or the absolute path of a user's
    file, a colon and the class. Anything else adds a problem. `folder`: base of paths in overrides.
    """
    default, key = built_in[0], ("net", "kind")
    kind = raw.value(*key, default)
    if not isinstance(kind, str):
        return default
    if kind in built_in:
        return kind
    path, _, name = kind.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        hint = similar.did_you_mean(similar.nearest(kind, built_in))
        allowed = (
            f"input should be {', '.join(map(repr, built_in))}, or your own network as FILE.py:CLASS, such "
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
    """Return the absolute path of a user's file that the value `name` of a key names. Raises NotFoundError."""
    try:
        path = raw.path(key, name, folder)
        if path.is_file():
            return path
    except (OSError, ValueError):  # a name too long, a NUL in it, a folder that may not be read
        pass
    raise NotFoundError(f"there is no file {quoted(name)} (looked in {raw.path(key, '', folder)})")
