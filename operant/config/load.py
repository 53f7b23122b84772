"""The configuration: six sections, one TOML file, overrides, and all that can be wrong in them said at once, with file
and line.

Knows the names of the sections. Their keys belong to others: those of `[algo]` to the algorithm, of `[net]` to
`operant.nn.mlp`, of `[env.params]` to the environment, the rest to `operant.config.sections`. Knows nothing of how
training uses any of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from pydantic import BaseModel, ValidationError

from operant.config import formats, messages, resolve, schedules, sections, trust
from operant.config.raw import RawConfig, flat, quoted, read
from operant.host import names
from operant.nn import mlp


@dataclass(frozen=True)
class Config:
    """A configuration in which everything is resolved and fits together.

    `env.name` is a shipped name or an absolute path, `net.kind` may hold one too, and `env.params` holds every
    parameter. `params` is the environment's own NamedTuple, in Python's ints and floats.
    """

    run: sections.Run
    env: sections.Environment
    algo_name: str
    algo: Any  # ALGO.Config
    net: Any  # operant.nn.mlp.Config
    checkpoint: sections.Checkpoint
    eval: sections.Evaluation
    params: Any
    environment: Any = field(compare=False)  # operant.envs.Env; a user's file makes a new one each time
    # keys that change (see `schedules.PARAMS`); there stands one of their values
    scheduled: Mapping[str, schedules.Schedule] = field(default_factory=dict)

    @property
    def changing(self) -> dict[str, str]:
        """The environment's parameters that change, each with its key in `scheduled`."""
        return {key.removeprefix(schedules.PARAMS): key for key in self.scheduled if key.startswith(schedules.PARAMS)}

    @property
    def lanes(self) -> int:
        """`env.lanes`, once it is a number: `operant.training.auto_lanes` makes one of "auto"."""
        if isinstance(self.env.lanes, str):
            raise ValueError(f"env.lanes is {self.env.lanes!r} still")
        return self.env.lanes

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """What of the algorithm's keys does not fit together with so many lanes, as (key, sentence)."""
        return _problems(self.algo, self.net, lanes)

    @property
    def environment_file(self) -> Path | None:
        """The user's own environment file, absolute; None for a shipped or an outside environment."""
        file = names.file_of(self.env.name) or (self.env.name if self.env.name.endswith(".py") else None)
        return None if file is None else Path(file)

    @property
    def hosted(self) -> bool:
        """Whether the environment is an outside one, whose lanes are stepped on the host."""
        return names.kind_of(self.env.name) is not None

    @property
    def algorithm_file(self) -> Path | None:
        """The user's own algorithm file, absolute; None for a shipped algorithm."""
        path, colon, _ = self.algo_name.rpartition(":")
        return Path(path) if colon else None

    @property
    def algo_label(self) -> str:
        """What the algorithm is called in words: `ppo`, and `a2c` for a2c.py:A2C."""
        return self.algo_name if self.algorithm_file is None else self.algorithm_file.stem

    @property
    def network_file(self) -> Path | None:
        """The user's own network file, absolute; None for a built-in network."""
        path, colon, _ = self.net.kind.rpartition(":")
        return Path(path) if colon else None


class Origin(NamedTuple):
    """Where a value comes from: `default`, `FILE:LINE` or `command line`; and what its key means, "" where nothing says
    so.
    """

    key: str
    value: Any
    origin: str
    description: str = ""


def load(
    source: Path | None, overrides: Sequence[str] = (), *, folder: Path | None = None, trusted: bool = False
) -> Config:
    """Read, override, complete and check a configuration; None reads no file.

    An override is `section.key=value`. The user's files (environment, algorithm, network) that the TOML file names are
    relative to its folder, those of an override to `folder` (default: the working directory). `trusted` allows a run's
    configuration to name code that is not known to be this user's. Raises ConfigError with everything that is wrong;
    NotFoundError where `source` does not exist; UntrustedError.
    """
    return _check(read(source, overrides), folder, trusted)


def origins(
    source: Path | None, overrides: Sequence[str] = (), *, folder: Path | None = None, trusted: bool = False
) -> list[Origin]:
    """Every key of the resolved configuration, its value, and where it was written. Raises as `load`."""
    raw = read(source, overrides)
    config = _check(raw, folder, trusted)
    places = {
        key: raw.words(raw.location(key[:-1])) if _scheduled(config, key) else raw.origin(key)
        for key, _ in flat(_tables(config))
    }
    return [
        Origin(".".join(key), value, places[key], _description(config, key)) for key, value in flat(_tables(config))
    ]


def values(config: Config) -> dict[str, Any]:
    """The value of every key, by its dotted name."""
    return {".".join(key): value for key, value in flat(_tables(config))}


def copies(config: Config, folder: str) -> dict[str, str]:
    """What `to_toml` is told where copies of the user's own files lie in a folder; two files of one name get two."""
    kept: dict[Path, str] = {}
    named: dict[str, str] = {}
    for name in ("environment_file", "algorithm_file", "network_file"):
        path = getattr(config, name)
        if path is not None:
            taken = path.name in kept.values() and path.resolve() not in kept
            file = kept.setdefault(
                path.resolve(), f"{path.stem}-{name.removesuffix('_file')}{path.suffix}" if taken else path.name
            )
            named[name] = f"{folder}/{file}"
    return named


def to_toml(config: Config, **copies: str) -> str:
    """The complete file, which `load` reads back to an equal Config; keys without a value are comments.

    `copies` replace the paths of the user's own files, for a run folder that holds copies: `environment_file`,
    `algorithm_file`, `network_file`.
    """
    tables = _tables(config)
    if config.environment_file is not None and "environment_file" in copies:
        function = f":{config.env.name.rpartition(':')[2]}" if names.file_of(config.env.name) else ""
        tables["env"]["name"] = f"{copies['environment_file']}{function}"
    for section, key, name in (("algo", "name", "algorithm_file"), ("net", "kind", "network_file")):
        if getattr(config, name) is not None and name in copies:
            tables[section][key] = f"{copies[name]}:{tables[section][key].rpartition(':')[2]}"
    return "\n".join(
        [f"{formats.KEY} = {formats.NUMBER}\n", *(_section_text(name, table) for name, table in tables.items())]
    )


def _check(raw: RawConfig, folder: Path | None, trusted: bool) -> Config:
    """Check a raw configuration whole. Raises ConfigError and UntrustedError."""
    trust.check(raw, trusted)  # before the first import of a user's file, which is the next step
    algorithm, algorithm_name = resolve.algorithm(raw, folder)
    environment, environment_name = resolve.environment(raw, folder)
    models: dict[str, Any] = sections.MODELS | {"algo": algorithm and algorithm.Config, "net": mlp.Config}
    known = {name: list(models[name].model_fields) if models[name] else [] for name in sections.SECTIONS}
    known["algo"].insert(0, "name")
    known["env"] += [f"params.{name}" for name in getattr(environment and environment.Params, "_fields", ())]
    hosted = names.kind_of(environment_name) is not None
    if hosted:
        resolve.outside_defaults(raw, environment_name)
    else:
        resolve.refuse_outside_keys(raw, sections.OUTSIDE, sections.ONCE)
    for name, table in raw.data.items():
        if name not in models and name not in sections.READ_ELSEWHERE:
            # replay.place is algo.replay_place
            meant = [key for key in table if f"{name}_{key}" in known["algo"]] if isinstance(table, dict) else []
            for key in meant:
                raw.problem(
                    raw.location((name, key)),
                    f"unknown key {quoted(f'{name}.{key}')}{messages.did_you_mean(f'algo.{name}_{key}')}",
                )
            if not meant:
                _unknown(raw, (name,), known, (*sections.SECTIONS, *sections.READ_ELSEWHERE))
    steps = resolve.value_of(raw, "run", "steps", sections.Run.model_fields["steps"].default)
    evaluated = resolve.value_of(raw, "eval", "every", 1) not in (0, "0")
    scheduled = (
        schedules.take(raw, algorithm.Config, resolve.changeable(raw, environment), steps, evaluated=evaluated)
        if algorithm is not None
        else {}
    )
    env = _section(raw, "env", models["env"], known)
    if hosted and env is not None:  # first: what it shows decides on defaults of the network
        environment = resolve.outside_environment(raw, environment_name, env)
        params = environment and environment.Params()
    else:
        params = resolve.params(raw, environment, known)
        environment = resolve.observed(raw, environment, env)
    checked = {
        name: env if name == "env" else _section(raw, name, model, known)
        for name, model in models.items()
        if model is not None
    }
    kind = resolve.network_kind(raw, folder, mlp.KINDS)
    net = checked["net"]
    if net is not None and net.remembers and not getattr(algorithm, "sequences", False):
        learns = (
            f'{algorithm_name} learns from single steps, without a memory (use algo.name = "ppo", or net.memory '
            '= "none")'
        )
        raw.problem(raw.location(("net", "memory")), f"net.memory: {learns} (got {quoted(net.memory)})")
    elif checked.get("algo") is not None and env is not None:
        # Of lanes that are left open, some have to fit together with the rest.
        found = [
            _problems(checked["algo"], net, lanes)
            for lanes in (sections.LANES_TRIED if env.lanes == "auto" else (env.lanes,))
        ]
        for key, message in found[-1] if all(found) else ():
            raw.problem(raw.location(("algo", key), ("env", "lanes")), f"algo.{key}: {message}")
    for key, message in checked["run"].problems() if checked.get("run") is not None else ():
        raw.problem(raw.location(("run", key)), f"run.{key}: {message}")
    raw.raise_problems()
    env = env.model_copy(update={"name": environment_name, "params": params._asdict()})
    net = net.model_copy(update={"kind": kind})
    return Config(
        run=checked["run"],
        env=env,
        algo_name=algorithm_name,
        algo=checked["algo"],
        net=net,
        checkpoint=checked["checkpoint"],
        eval=checked["eval"],
        params=params,
        environment=environment,
        scheduled=scheduled,
    )


def _problems(algo: Any, net: Any, lanes: int) -> list[tuple[str, str]]:
    """What of an algorithm's configuration does not fit together with so many lanes, of a network with a memory or
    without one, as (key, sentence).
    """
    found: list[tuple[str, str]] = (
        algo.problems(lanes, memory=True) if net is not None and net.remembers else algo.problems(lanes)
    )
    return found


def _section(raw: RawConfig, name: str, model: type[BaseModel], known: dict[str, list[str]]) -> Any:
    """The model of one section, or None and a problem for each thing that is wrong in it."""
    data = raw.data.get(name, {})
    if not isinstance(data, dict):
        raw.problem(
            raw.location((name,)),
            f"{name} is a section of keys, such as {name}.{known[name][0]}, not a value (got {quoted(data)})",
        )
        return None
    if name == "algo":
        data = {key: value for key, value in data.items() if key != "name"}
    # "none" leaves a key out that need not be set: TOML has no word for it.
    data = {key: value for key, value in data.items() if not (value == "none" and _may_be_unset(model, key))}
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = list(messages.problems(error, data))
    # run.name=123 on the command line is a text, although TOML calls it a number.
    texts = {
        item.key[0]: raw.texts[(name, *item.key)]
        for item in problems
        if item.kind == "string_type" and (name, *item.key) in raw.texts
    }
    texts = {key: text for key, text in texts.items() if data[key] != text and not isinstance(data[key], list | dict)}
    if texts:
        raw.data[name] |= texts
        return _section(raw, name, model, known)
    for item in problems:
        path = (name, *item.key)
        if item.kind == "extra_forbidden":
            _unknown(raw, path, known, known[name])
        else:
            got = "" if item.kind == "missing" else f" (got {quoted(item.value)})"
            raw.problem(raw.location(path), f"{messages.dotted(path)}: {item.message}{got}")
    return None


def _may_be_unset(model: type[BaseModel], key: str) -> bool:
    """True for keys such as run.target, which have a value or none."""
    return (
        key in model.model_fields
        and not model.model_fields[key].is_required()
        and model.model_fields[key].default is None
    )


def _unknown(raw: RawConfig, key: tuple[str, ...], known: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    """Add the problem of an unknown key, with the one that was probably meant, or else all `names` that it could have
    been.
    """
    if (
        len(key) == 2
        and key[0] == "algo"
        and not messages.called_otherwise(key[1])
        and (others := resolve.algorithms_with(key[1]))
    ):
        raw.problem(
            raw.location(key),
            f"unknown key {quoted('.'.join(key))} of this algorithm; it is a key of {', '.join(others)}, by algo.name",
        )
        return
    raw.problem(raw.location(key), messages.unknown_key(key, known, names))


def _tables(config: Config) -> dict[str, dict[str, Any]]:
    """The configuration as nested tables, in the order of the file; None where a key has no value."""
    tables = {name: {} if name == "algo" else getattr(config, name).model_dump() for name in sections.SECTIONS}
    tables["algo"] = {"name": config.algo_name, **config.algo.model_dump()}
    for key, schedule in config.scheduled.items():
        table = tables["env"]["params"] if key.startswith(schedules.PARAMS) else tables["algo"]
        table[key.removeprefix(schedules.PARAMS)] = schedule.document()
    return tables


def _scheduled(config: Config, key: tuple[str, ...]) -> bool:
    """Whether a key of the tables is part of a schedule."""
    return ".".join(key[:-1]).removeprefix("algo.") in config.scheduled


def _description(config: Config, key: tuple[str, ...]) -> str:
    """What a key means, as its field says; nothing for the parameters of an environment."""
    if key == ("algo", "name"):
        return "A shipped algorithm, or your own file and its class: my_algo.py:MyAlgo."
    field_ = type(getattr(config, key[0])).model_fields.get(key[1]) if len(key) == 2 else None
    return ("" if field_ is None else field_.description or "").replace("\n", " ")


def _section_text(name: str, table: dict[str, Any]) -> str:
    unset = "".join(f"# {key} is not set\n" for key, value in table.items() if value is None)
    given = {key: value for key, value in table.items() if value is not None}
    above = {key: value for key, value in given.items() if not isinstance(value, dict)}
    below = {key: value for key, value in given.items() if isinstance(value, dict) and value}
    # tomli_w breaks every list over lines; one of numbers reads better in one.
    text = re.sub(
        r"\[\n((?:    [-+.\w]+,\n)+)\]",
        lambda match: f"[{' '.join(match.group(1).split())[:-1]}]",
        tomli_w.dumps(above),
    )
    text = f"[{name}]\n{text}{unset}"
    return text + "".join(f"\n{_section_text(f'{name}.{key}', value)}" for key, value in below.items())
