"""Configuration loading: read a TOML file and overrides, bind names to code, check every key, return a `Config`.

    read (raw.py) -> bind names (resolve.py) -> check (here) -> Config

All problems are collected and reported in one ConfigError, each with its file and line. The keys of `[algo]` are
declared by the algorithm, those of `[net]` by `operant.nn.mlp`, those of `[env.params]` by the environment, all others
by `operant.config.sections`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from pydantic import BaseModel

from operant import similar
from operant.config import formats, messages, resolve, schedules, sections, trust, validation
from operant.config.raw import Key, RawConfig, flat, quoted, read
from operant.host import names
from operant.nn import mlp


@dataclass(frozen=True)
class Config:
    """Resolved and checked configuration of a run: one validated model per section, and the code that its names refer
    to. Immutable.

    `env.name` is a shipped name or an absolute path, and so is `net.kind`. `env.params` holds every parameter of the
    environment; `params` holds the same values as the environment's NamedTuple of Python ints and floats.
    """

    run: sections.Run
    env: sections.Environment
    algo_name: str
    algo: Any  # ALGO.Config
    net: Any  # operant.nn.mlp.Config
    checkpoint: sections.Checkpoint
    eval: sections.Evaluation
    params: Any
    environment: Any = field(compare=False)  # operant.envs.Env; a user's file returns a new object at each load
    # schedules by key (see `schedules.PARAMS`); the sections above hold one value of each schedule
    scheduled: Mapping[str, schedules.Schedule] = field(default_factory=dict)

    @property
    def changing(self) -> dict[str, str]:
        """Parameters of the environment that have a schedule, each with its key in `scheduled`."""
        return {key.removeprefix(schedules.PARAMS): key for key in self.scheduled if key.startswith(schedules.PARAMS)}

    @property
    def lanes(self) -> int:
        """Value of `env.lanes` as a number. Raises ValueError for "auto", which `training.auto_lanes` must replace
        first.
        """
        if isinstance(self.env.lanes, str):
            raise ValueError(f"env.lanes is still {self.env.lanes!r}")
        return self.env.lanes

    def problems(self, lanes: int) -> list[tuple[str, str]]:
        """Return the values of `[algo]` that conflict with `lanes` environments in parallel, as (key, message)."""
        return _lane_problems(self.algo, self.net, lanes)

    @property
    def environment_file(self) -> Path | None:
        """Absolute path of the user's environment file; None for a shipped environment or one of another library."""
        file = names.file_of(self.env.name) or (self.env.name if self.env.name.endswith(".py") else None)
        return None if file is None else Path(file)

    @property
    def hosted(self) -> bool:
        """Whether the environment belongs to another library (Gymnasium, Atari, EnvPool or a user's vector) and is
        stepped on the host.
        """
        return names.kind_of(self.env.name) is not None

    @property
    def algorithm_file(self) -> Path | None:
        """Absolute path of the user's algorithm file; None for a shipped algorithm."""
        path, colon, _ = self.algo_name.rpartition(":")
        return Path(path) if colon else None

    @property
    def algo_label(self) -> str:
        """Display name of the run's algorithm: `ppo`, or `a2c` for a2c.py:A2C."""
        return self.algo_name if self.algorithm_file is None else self.algorithm_file.stem

    @property
    def network_file(self) -> Path | None:
        """Absolute path of the user's network file; None for a built-in network."""
        path, colon, _ = self.net.kind.rpartition(":")
        return Path(path) if colon else None


class Origin(NamedTuple):
    """One key of a configuration with its value, the source of the value (`default`, `FILE:LINE` or `command line`) and
    the key's description.
    """

    key: str
    value: Any
    origin: str
    description: str = ""


def load(
    source: Path | None, overrides: Sequence[str] = (), *, folder: Path | None = None, trusted: bool = False
) -> Config:
    """Load a configuration from a TOML file (None: defaults) and overrides `section.key=value`: read it, bind names to
    code, check all keys. `trusted` allows code that is not known to be this user's.

    User files (environment, algorithm, network) named in the TOML file are relative to its folder; those named in an
    override are relative to `folder` (default: the working directory). Raises ConfigError with every problem,
    NotFoundError if `source` does not exist, and UntrustedError.
    """
    return check(read(source, overrides), folder=folder, trusted=trusted)


def origins(
    source: Path | None, overrides: Sequence[str] = (), *, folder: Path | None = None, trusted: bool = False
) -> list[Origin]:
    """Return every key of the resolved configuration with its value and source. Parameters and errors are those of
    `load`.
    """
    return origins_of(read(source, overrides), folder=folder, trusted=trusted)


def origins_of(raw: RawConfig, *, folder: Path | None = None, trusted: bool = False) -> list[Origin]:
    """Resolve a raw configuration and return every key with its value and source. Adds defaults to `raw`; parameters
    and errors are those of `check`.
    """
    config = check(raw, folder=folder, trusted=trusted)

    def source(key: Key) -> str:
        """Return the source of a key's value; the parts of a schedule have the source of the whole schedule."""
        return raw.location_text(raw.location(key[:-1])) if _scheduled(config, key) else raw.origin(key)

    return [
        Origin(".".join(key), value, source(key), _description(config, key)) for key, value in flat(_tables(config))
    ]


def values(config: Config) -> dict[str, Any]:
    """Return the values of a configuration by dotted key, such as `net.hidden`; schedules as tables of points."""
    return {".".join(key): value for key, value in flat(_tables(config))}


def copies(config: Config, folder: str) -> dict[str, str]:
    """Return paths for copies of the user's code files, such as `source/my_env.py` for the folder "source", as keyword
    arguments of `to_toml`. Copies nothing.

    Different files with the same name get different names.
    """
    names_by_path: dict[Path, str] = {}
    copies: dict[str, str] = {}
    for attribute in ("environment_file", "algorithm_file", "network_file"):
        path = getattr(config, attribute)
        if path is not None:
            conflict = path.name in names_by_path.values() and path.resolve() not in names_by_path
            name = f"{path.stem}-{attribute.removesuffix('_file')}{path.suffix}" if conflict else path.name
            copies[attribute] = f"{folder}/{names_by_path.setdefault(path.resolve(), name)}"
    return copies


def to_toml(config: Config, **copies: str) -> str:
    """Format a configuration as TOML text from which `load` reads an equal one. Keys without a value become comments.

    `copies` replace the paths of the user's files by those of copies in a run folder: `environment_file`,
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


def check(raw: RawConfig, *, folder: Path | None = None, trusted: bool = False) -> Config:
    """Bind the names in a raw configuration to code, check all values and return the Config. User files named in
    overrides are relative to `folder` (default: the working directory). `trusted` allows code that is not known to be
    this user's.

    Defaults that depend on the environment are written into `raw`, so that `raw.origin` knows them. Raises ConfigError
    with every problem, and UntrustedError.
    """
    # Trust is checked before a user's file is imported, which binding does.
    trust.check(raw, trusted)
    bound = resolve.bind(raw, folder)
    algorithm, environment = bound.algorithm, bound.environment
    models: dict[str, Any] = sections.MODELS | {"algo": algorithm and algorithm.Config, "net": mlp.Config}
    known = {name: list(models[name].model_fields) if models[name] else [] for name in sections.SECTIONS}
    known["algo"].insert(0, "name")
    known["env"] += [f"params.{name}" for name in getattr(environment and environment.Params, "_fields", ())]
    if bound.hosted:
        resolve.outside_defaults(raw, bound.environment_name)
    else:
        resolve.refuse_outside_keys(raw, sections.OUTSIDE, sections.ONCE)
    _unknown_sections(raw, known)

    # Schedules leave one of their values in the raw configuration, which is then checked like any other.
    scheduled = {}
    if algorithm is not None:
        steps = raw.value("run", "steps", sections.Run.model_fields["steps"].default)
        evaluated = raw.value("eval", "every", 1) not in (0, "0")
        changeable = resolve.changeable(raw, environment)
        scheduled = schedules.extract(raw, algorithm.Config, changeable, steps, evaluated=evaluated)

    # [env] first: the observations of an outside environment decide the network's default kind.
    env = _section(raw, "env", models["env"], known)
    if bound.hosted and env is not None:
        environment = resolve.outside_environment(raw, bound.environment_name, env)
        params = environment and environment.Params()
    else:
        params = resolve.params(raw, environment, known)
        environment = resolve.observed(raw, resolve.configured(raw, environment, params), params, env)
    checked = {name: _section(raw, name, model, known) for name, model in models.items() if model and name != "env"}
    kind = resolve.network_kind(raw, folder, mlp.KINDS)
    _conflicts(raw, bound, env, checked)
    raw.raise_problems()

    return Config(
        run=checked["run"],
        env=env.model_copy(update={"name": bound.environment_name, "params": params._asdict()}),
        algo_name=bound.algorithm_name,
        algo=checked["algo"],
        net=checked["net"].model_copy(update={"kind": kind}),
        checkpoint=checked["checkpoint"],
        eval=checked["eval"],
        params=params,
        environment=environment,
        scheduled=scheduled,
    )


def _unknown_sections(raw: RawConfig, known: dict[str, list[str]]) -> None:
    """Add a problem for each unknown section of `raw`, and for each key in one that was meant for `[algo]`, with the
    right name. `known`: valid keys by section.
    """
    for name, table in raw.data.items():
        if name in known or name in sections.READ_ELSEWHERE:
            continue
        # replay.place is algo.replay_place
        meant = [key for key in table if f"{name}_{key}" in known["algo"]] if isinstance(table, dict) else []
        for key in meant:
            suggestion = similar.did_you_mean(f"algo.{name}_{key}")
            raw.problem(raw.location((name, key)), f"unknown key {quoted(f'{name}.{key}')}{suggestion}")
        if not meant:
            _unknown(raw, (name,), known, (*sections.SECTIONS, *sections.READ_ELSEWHERE))


def _conflicts(raw: RawConfig, bound: resolve.Bound, env: Any, checked: Mapping[str, Any]) -> None:
    """Add a problem for each value that conflicts with another section: a memory that the algorithm cannot train, or a
    number of lanes that it does not support. `env` is the model of `[env]`; `checked` holds the other models, None if
    invalid.
    """
    run, algo, net = checked["run"], checked.get("algo"), checked["net"]
    if net is not None and net.is_recurrent and not getattr(bound.algorithm, "sequences", False):
        message = (
            f'{bound.algorithm_name} learns from single steps, without a memory (use algo.name = "ppo", or net.memory '
            '= "none")'
        )
        raw.problem(raw.location(("net", "memory")), f"net.memory: {message} (got {quoted(net.memory)})")
    elif algo is not None and env is not None:
        # With lanes = "auto" one fitting number of lanes is enough.
        candidates = sections.LANES_TRIED if env.lanes == "auto" else (env.lanes,)
        problems = [_lane_problems(algo, net, lanes) for lanes in candidates]
        for key, message in problems[-1] if all(problems) else ():
            # A key of the command line that the message names is the cause, rather than one of the file.
            named = [("algo", name) for name in (key, *re.findall(r"algo\.(\w+)", message))]
            typed = [name for name in named if raw.typed(name)]
            raw.problem(raw.location(*typed, ("algo", key), ("env", "lanes")), f"algo.{key}: {message}")
    for key, message in run.problems() if run is not None else ():
        raw.problem(raw.location(("run", key)), f"run.{key}: {message}")


def _lane_problems(algo: Any, net: Any, lanes: int) -> list[tuple[str, str]]:
    """Return the values of `[algo]` that conflict with a number of lanes, or with the memory of the network, as (key,
    message).
    """
    remembers = net is not None and net.is_recurrent
    problems: list[tuple[str, str]] = algo.problems(lanes, memory=True) if remembers else algo.problems(lanes)
    return problems


def _section(raw: RawConfig, name: str, model: type[BaseModel], known: dict[str, list[str]]) -> Any:
    """Validate section `name` of a raw configuration and return its model, or None after adding one problem to `raw`
    for each invalid key. `known`: valid keys by section, for suggestions.
    """
    return validation.section(raw, name, model, known[name][0], lambda path: _unknown(raw, path, known, known[name]))


def _unknown(raw: RawConfig, key: tuple[str, ...], known: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    """Add the problem of an unknown key: with the probable correction, else with all valid `names` of its section.
    `known`: valid keys by section.
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
    """Return a configuration as nested tables, in the order of the file; None for a key without a value."""
    tables = {name: {} if name == "algo" else getattr(config, name).model_dump() for name in sections.SECTIONS}
    tables["algo"] = {"name": config.algo_name, **config.algo.model_dump()}
    for key, schedule in config.scheduled.items():
        table = tables["env"]["params"] if key.startswith(schedules.PARAMS) else tables["algo"]
        table[key.removeprefix(schedules.PARAMS)] = schedule.document()
    return tables


def _scheduled(config: Config, key: tuple[str, ...]) -> bool:
    """Whether a key, given as its parts, lies inside a schedule, such as `algo.learning_rate.points`."""
    return ".".join(key[:-1]).removeprefix("algo.") in config.scheduled


def _description(config: Config, key: tuple[str, ...]) -> str:
    """Return the description of a key from its field in the section's model; "" for parameters of an environment."""
    if key == ("algo", "name"):
        return "Shipped algorithm, or FILE.py:CLASS of your own, such as my_algo.py:MyAlgo."
    field_ = type(getattr(config, key[0])).model_fields.get(key[1]) if len(key) == 2 else None
    return ("" if field_ is None else field_.description or "").replace("\n", " ")


def _section_text(name: str, table: dict[str, Any]) -> str:
    """Format a section as TOML; keys without a value become comments, nested tables sections of their own."""
    unset = "".join(f"# {key} is not set\n" for key, value in table.items() if value is None)
    given = {key: value for key, value in table.items() if value is not None}
    above = {key: value for key, value in given.items() if not isinstance(value, dict)}
    below = {key: value for key, value in given.items() if isinstance(value, dict) and value}
    # tomli_w writes one item per line; lists of numbers are joined into one line.
    text = re.sub(
        r"\[\n((?:    [-+.\w]+,\n)+)\]",
        lambda match: f"[{' '.join(match.group(1).split())[:-1]}]",
        tomli_w.dumps(above),
    )
    text = f"[{name}]\n{text}{unset}"
    return text + "".join(f"\n{_section_text(f'{name}.{key}', value)}" for key, value in below.items())
