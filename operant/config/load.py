"""The configuration: six sections, one TOML file, overrides, and all that can be wrong in them said at once, with file and line.

Knows the names of the sections. Their keys belong to others: those of `[algo]` to the algorithm, of `[net]` to `operant.nn.mlp`, of `[env.params]` to the
environment, the rest to `operant.config.sections`. Knows nothing of how training uses any of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from pydantic import BaseModel, StrictBool, TypeAdapter, ValidationError

from operant.config import messages, raw, recipes, trust
from operant.config.raw import Draft, Key, quoted
from operant.config.sections import AUTO_LANES, Checkpoint, Environment, Evaluation, Run
from operant.envs import ranges
from operant.errors import NotFoundError, OperantError
from operant.settings import Count, Real

__all__ = ["Checkpoint", "Config", "Environment", "Evaluation", "Origin", "Run", "load", "origins", "schema", "to_toml"]

SECTIONS = ("run", "env", "algo", "net", "checkpoint", "eval")
_NUMBER = r"^\s*[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?[kMG]?\s*$"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}  # what pydantic writes within a choice of types


@dataclass(frozen=True)
class Config:
    """A configuration in which everything is resolved and fits together.

    `env.name` is a shipped name or an absolute path, `net.kind` may hold one too, and `env.params` holds every parameter.
    `params` is the environment's own NamedTuple, in Python's ints and floats.
    """

    run: Run
    env: Environment
    algo_name: str
    algo: Any  # ALGO.Config
    net: Any  # operant.nn.mlp.Config
    checkpoint: Checkpoint
    eval: Evaluation
    params: Any
    environment: Any = field(compare=False)  # operant.envs.Env; a user's file makes a new one each time

    @property
    def lanes(self) -> int:
        """`env.lanes`, once it is a number: `operant.training.auto_lanes` makes one of "auto"."""
        if isinstance(self.env.lanes, str):
            raise ValueError(f"env.lanes is {self.env.lanes!r} still")
        return self.env.lanes

    @property
    def environment_file(self) -> Path | None:
        """The user's own environment file, absolute; None for a shipped environment."""
        return Path(self.env.name) if self.env.name.endswith(".py") else None

    @property
    def network_file(self) -> Path | None:
        """The user's own network file, absolute; None for a built-in network."""
        path, colon, _ = self.net.kind.rpartition(":")
        return Path(path) if colon else None


class Origin(NamedTuple):
    """Where a value comes from: `default`, `FILE:LINE` or `command line`."""

    key: str
    value: Any
    origin: str


def load(source: Path | None, overrides: Sequence[str] = (), *, folder: Path | None = None, trusted: bool = False) -> Config:
    """Read, override, complete and check a configuration; None reads no file.

    An override is `section.key=value`. Environment and network files named in the TOML file are relative to its folder, those of an override
    to `folder` (default: the working directory). `trusted` allows a run's configuration to name code that is not known to be this user's.
    Raises ConfigError with everything that is wrong; NotFoundError where `source` does not exist; UntrustedError.
    """
    return _check(raw.read(source, overrides), folder, trusted)


def origins(source: Path | None, overrides: Sequence[str] = (), *, folder: Path | None = None, trusted: bool = False) -> list[Origin]:
    """Every key of the resolved configuration, its value, and where it was written. Raises as `load`."""
    draft = raw.read(source, overrides)
    config = _check(draft, folder, trusted)
    return [Origin(".".join(key), value, draft.origin(key)) for key, value in raw.flat(_tables(config))]


def to_toml(config: Config, *, environment_file: str | None = None, network_file: str | None = None) -> str:
    """The complete file, which `load` reads back to an equal Config; keys without a value are comments.

    `environment_file` and `network_file` replace the paths of the user's own files, for a run folder that holds copies.
    """
    tables = _tables(config)
    if environment_file is not None and config.environment_file is not None:
        tables["env"]["name"] = environment_file
    if network_file is not None and config.network_file is not None:
        tables["net"]["kind"] = f"{network_file}:{config.net.kind.rpartition(':')[2]}"
    return "\n".join(_section_text(name, table) for name, table in tables.items())


def schema() -> dict[str, Any]:
    """A JSON Schema of the whole file, for editors."""
    from operant import algos
    from operant.nn import mlp

    models: dict[str, type[BaseModel]] = {"run": Run, "env": Environment, "net": mlp.Config, "checkpoint": Checkpoint, "eval": Evaluation}
    parts = {name: _section_schema(model) for name, model in models.items()}
    choices = [_algorithm_schema(name, algos.load(name).Config) for name in algos.names()]
    parts["algo"] = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Operant configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: parts[name] for name in SECTIONS},
    }


def _check(draft: Draft, folder: Path | None, trusted: bool) -> Config:
    """Check a draft whole. Raises ConfigError and UntrustedError."""
    from operant.nn import mlp

    trust.check(draft, trusted)  # before the first import of a user's file, which is the next step
    algorithm, algorithm_name = _algorithm(draft)
    environment, environment_name = _environment(draft, folder)
    models: dict[str, Any] = {
        "run": Run, "env": Environment, "algo": algorithm and algorithm.Config, "net": mlp.Config, "checkpoint": Checkpoint, "eval": Evaluation,
    }  # fmt: skip
    known = {name: list(model.model_fields) if model else [] for name, model in models.items()}
    known["algo"].insert(0, "name")
    known["env"] += [f"params.{name}" for name in getattr(environment and environment.Params, "_fields", ())]
    for name in draft.data:
        if name not in models:
            hint = messages.nearest_key((name,), known) or _choice(SECTIONS)
            draft.problem(draft.place((name,)), f"unknown key {_name((name,))}{hint}")
    sections = {name: _section(draft, name, model, known) for name, model in models.items() if model is not None}
    params = _params(draft, environment, known)
    environment = _observed(draft, environment, sections["env"])
    kind = _network_kind(draft, folder, mlp.KINDS)
    env = sections["env"]
    if sections.get("algo") is not None and env is not None:
        # Where the most do not fit together with the rest, no smaller power of two does.
        for key, sentence in sections["algo"].problems(AUTO_LANES if env.lanes == "auto" else env.lanes):
            draft.problem(draft.place(("algo", key), ("env", "lanes")), f"algo.{key}: {sentence}")
    draft.raise_problems()
    env = env.model_copy(update={"name": environment_name, "params": params._asdict()})
    net = sections["net"].model_copy(update={"kind": kind})
    return Config(
        run=sections["run"], env=env, algo_name=algorithm_name, algo=sections["algo"], net=net,
        checkpoint=sections["checkpoint"], eval=sections["eval"], params=params, environment=environment,
    )  # fmt: skip


def _section(draft: Draft, name: str, model: type[BaseModel], known: dict[str, list[str]]) -> Any:
    """The model of one section, or None and a problem for each thing that is wrong in it."""
    data = draft.data.get(name, {})
    if not isinstance(data, dict):
        draft.problem(draft.place((name,)), f"{name}: a section should be a table: [{name}] (got {quoted(data)})")
        return None
    if name == "algo":
        data = {key: value for key, value in data.items() if key != "name"}
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = list(messages.problems(error, data))
    # run.name=123 on the command line is a text, although TOML calls it a number.
    texts = {item.key[0]: draft.texts[(name, *item.key)] for item in found if item.kind == "string_type" and (name, *item.key) in draft.texts}
    texts = {key: text for key, text in texts.items() if data[key] != text and not isinstance(data[key], list | dict)}
    if texts:
        draft.data[name] |= texts
        return _section(draft, name, model, known)
    for item in found:
        path = (name, *item.key)
        if item.kind == "extra_forbidden":
            hint = messages.nearest_key(path, known) or _choice(known[name])
            draft.problem(draft.place(path), f"unknown key {_name(path)}{hint}")
        else:
            draft.problem(draft.place(path), f"{_dotted(path)}: {item.sentence}" + ("" if item.kind == "missing" else f" (got {quoted(item.value)})"))
    return None


def _written(draft: Draft, section: str, key: str, default: Any) -> Any:
    """The value of a key as it was written, whatever its type, before its section is checked."""
    table = draft.data.get(section)
    value = table.get(key, default) if isinstance(table, dict) else default
    return value if isinstance(value, str | dict) else draft.texts.get((section, key), value)


def _algorithm(draft: Draft) -> tuple[Any, str]:
    """The class of `algo.name` and its name. Where there is none, a problem, and the one that was probably meant, to check the rest by."""
    from operant import algos

    name = _written(draft, "algo", "name", recipes.algorithm_of(str(_written(draft, "env", "name", recipes.ENVIRONMENT))))
    if isinstance(name, str) and name in algos.names():
        return algos.load(name), name
    place, listing = draft.place(("algo", "name")), ", ".join(algos.names())
    if not isinstance(name, str):
        draft.problem(place, f"algo.name: input should be one of {listing} (got {quoted(name)})")
        return None, ""
    nearest = messages.nearest(name, algos.names())
    draft.problem(place, f"algo.name: unknown algorithm {quoted(name)}{messages.asked(nearest) or '.'} Available: {listing}")
    return nearest and algos.load(nearest), name


def _environment(draft: Draft, folder: Path | None) -> tuple[Any, str]:
    """The environment of `env.name`, and the name it is found by again. Where there is none, a problem, and the one that was probably meant."""
    from operant import envs

    name, place = _written(draft, "env", "name", Environment.model_fields["name"].default), draft.place(("env", "name"))
    if not isinstance(name, str) or not name:
        return None, ""
    try:
        if name.endswith(".py"):
            path = str(_found(name, draft, ("env", "name"), folder))
            return envs.find(path), path
        environment = envs.find(name)
        return environment, environment.name
    except KeyError:
        nearest = messages.nearest(name, envs.names())
        listing = f"Available: {', '.join(envs.names())}, or a file of your own, such as my_env.py"
        draft.problem(place, f"env.name: unknown environment {quoted(name)}{messages.asked(nearest) or '.'} {listing}")
        return nearest and envs.find(nearest), name
    except OperantError as error:
        draft.problem(place, f"env.name: {error}")
        return None, name


def _observed(draft: Draft, environment: Any, env: Environment | None) -> Any:
    """The environment as `env.pixels` wants it observed; a problem where it draws no picture."""
    from operant import envs

    if environment is None or env is None or env.pixels is None:
        return environment
    try:
        return envs.with_pixels(environment, env.pixels)
    except OperantError as error:
        draft.problem(draft.place(("env", "pixels")), f"env.pixels: {error}")
        return environment


def _params(draft: Draft, environment: Any, known: dict[str, list[str]]) -> Any:
    """The environment's Params with what is given; None and a problem for each thing that is wrong."""
    given = _written(draft, "env", "params", {})
    if environment is None or not isinstance(given, dict):
        return None
    fields, defaults = getattr(environment.Params, "_fields", None), getattr(environment.Params, "_field_defaults", {})
    if fields is None or set(fields) != set(defaults):
        draft.problem(draft.place(("env", "name")), f"env.name: Params of {environment.name} must be a NamedTuple whose fields all have a default")
        return None
    problems, values = len(draft.problems), {}
    for sentence in ranges.declaration_problems(environment):
        draft.problem(draft.place(("env", "name")), f"env.name: {environment.name}: {sentence}")
    if len(draft.problems) > problems:
        return None
    for name, value in given.items():
        key = ("env", "params", name)
        if name not in fields:
            draft.problem(draft.place(key), f"unknown key {_name(key)}{messages.nearest_key(key, known) or _choice(fields)}")
            continue
        try:
            values[name] = _parameter_type(defaults[name]).validate_python(value)
        except ValidationError as error:
            for problem in messages.problems(error, {}):
                draft.problem(draft.place(key), f"{_dotted(key)}: {problem.sentence} (got {quoted(value)})")
            continue
        if refusal := ranges.refusal(environment, name, values[name]):
            draft.problem(draft.place(key), f"{_dotted(key)}: {refusal} (got {quoted(value)})")
    return environment.Params(**values) if len(draft.problems) == problems else None


def _parameter_type(default: object) -> TypeAdapter[Any]:
    """How a parameter of this default is written; `operant.envs.ranges` knows what it may be."""
    if isinstance(default, bool):
        return TypeAdapter(StrictBool)
    if isinstance(default, int):
        return TypeAdapter(Count)
    return TypeAdapter(Real)


def _network_kind(draft: Draft, folder: Path | None, built_in: Sequence[str]) -> str:
    """`net.kind` with the absolute path of a user's own file; a problem where it is neither that nor one of those built in, whose first is the default."""
    default, key = built_in[0], ("net", "kind")
    kind = _written(draft, "net", "kind", default)
    if not isinstance(kind, str):
        return default
    if kind in built_in:
        return kind
    path, _, name = kind.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        hint = messages.asked(messages.nearest(kind, built_in))
        allowed = f"input should be {', '.join(map(repr, built_in))}, or a network of your own as FILE.py:CLASS, such as 'my_net.py:MyNet'"
        draft.problem(draft.place(key), f"net.kind: {allowed}{hint} (got {quoted(kind)})")
        return default
    try:
        return f"{_found(path, draft, key, folder)}:{name}"
    except NotFoundError as error:
        draft.problem(draft.place(key), f"net.kind: {error}")
        return default


def _found(name: str, draft: Draft, key: Key, folder: Path | None) -> Path:
    """The absolute path of a user's file. Raises NotFoundError."""
    try:
        path = draft.path(key, name, folder)
        if path.is_file():
            return path
    except (OSError, ValueError):  # a name too long, a NUL in it, a folder that may not be read
        pass
    raise NotFoundError(f"there is no file {quoted(name)} (looked in {draft.path(key, '', folder)})")


def _tables(config: Config) -> dict[str, dict[str, Any]]:
    """The configuration as nested tables, in the order of the file; None where a key has no value."""
    tables = {name: {} if name == "algo" else getattr(config, name).model_dump() for name in SECTIONS}
    tables["algo"] = {"name": config.algo_name, **config.algo.model_dump()}
    return tables


def _section_text(name: str, table: dict[str, Any]) -> str:
    unset = "".join(f"# {key} is not set\n" for key, value in table.items() if value is None)
    given = {key: value for key, value in table.items() if value is not None}
    above = {key: value for key, value in given.items() if not isinstance(value, dict)}
    below = {key: value for key, value in given.items() if isinstance(value, dict) and value}
    # tomli_w breaks every list over lines; one of numbers reads better in one.
    text = re.sub(r"\[\n((?:    [-+.\w]+,\n)+)\]", lambda match: f"[{' '.join(match.group(1).split())[:-1]}]", tomli_w.dumps(above))
    text = f"[{name}]\n{text}{unset}"
    return text + "".join(f"\n[{name}.{key}]\n{tomli_w.dumps(value)}" for key, value in below.items())


def _section_schema(model: type[BaseModel]) -> dict[str, Any]:
    return _with_suffixes(model.model_json_schema())


def _algorithm_schema(name: str, model: type[BaseModel]) -> dict[str, Any]:
    part, default = _section_schema(model), recipes.algorithm_of(recipes.ENVIRONMENT)
    description = {"description": "The algorithm; the other keys of this section are its own."}
    part["properties"] = {"name": {"const": name, "default": default, **description}, **part.get("properties", {})}
    if name != default:
        part["required"] = ["name", *part.get("required", ())]
    return part


def _with_suffixes(part: Any) -> Any:
    """A schema in which a number may also be a text such as "20M"."""
    if isinstance(part, list):
        return [_with_suffixes(item) for item in part]
    if not isinstance(part, dict):
        return part
    done = {_BOUNDS.get(key, key): _with_suffixes(value) for key, value in part.items()}
    if done.get("type") in ("integer", "number"):
        done |= {"type": [done["type"], "string"], "pattern": _NUMBER}
    return done


def _dotted(key: Key) -> str:
    """`net.hidden[1]`: the key as people write it."""
    return "".join(f"[{part}]" if at and part.isdigit() else f"{'.' if at else ''}{part}" for at, part in enumerate(key))


def _name(key: Key) -> str:
    return quoted(_dotted(key))


def _choice(names: Sequence[str]) -> str:
    """What to write instead, where nothing is near."""
    return f" (known here: {', '.join(names)})"
