"""What a `train` command line asks for: which configuration, which overrides, what the run is to be called. Knows no
key's meaning.

The full check needs the algorithm and the environment, that is torch and numba: they are imported by `load` and
`origins` alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant.config import recipes, trust
from operant.config.raw import RawConfig, quoted, read
from operant.errors import ConfigError, MachineError, NotFoundError, UsageError
from operant.host import names

if TYPE_CHECKING:
    from operant.config.load import Config, Origin

_MOST_SEEDS = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Request:
    """A run that is asked for. `source` is a configuration file (None: only defaults) and `environment_file` a user's
    own, both absolute and there.
    """

    source: Path | None
    overrides: tuple[str, ...]
    environment_file: Path | None
    directory: Path
    name: str | None = (
        # the run's id, if one was asked for; the worker refuses one of a file that cannot be one, and names the line
        None
    )
    prefix: str = ""  # `<env>-<algo>`: the beginning of a made-up id
    notes: tuple[str, ...] = ()  # what the person who asks should know

    def document(self) -> dict[str, Any]:
        """What run.json keeps of it, for the worker."""
        return {
            "config": str(self.source) if self.source is not None else None,
            "overrides": list(self.overrides),
            "environment_file": str(self.environment_file) if self.environment_file is not None else None,
            "directory": str(self.directory),
        }

    def resume_document(self) -> dict[str, Any]:
        """What run.json keeps of a request to resume, beside the run's own."""
        return {"resume_overrides": list(self.overrides), "resume_directory": str(self.directory)}

    def all_overrides(self) -> list[str]:
        """The overrides, the user's own environment file as the last."""
        return [*self.overrides, *([f"env.name={self.environment_file}"] if self.environment_file is not None else [])]

    def load(self, trusted: bool = False) -> Config:
        """The checked configuration. Raises as `operant.config.load.load`."""
        from operant.config import load

        return load.load(self.source, self.all_overrides(), folder=self.directory, trusted=trusted)

    def origins(self, trusted: bool = False) -> list[Origin]:
        """Every key, its value, and where it was written. Raises as `load`."""
        from operant.config import load

        return load.origins(self.source, self.all_overrides(), folder=self.directory, trusted=trusted)

    def check_trust(self, trusted: bool = False) -> bool:
        """`trusted`. Raises UntrustedError where it is needed and not given."""
        return trust.check(read(self.source, self.all_overrides()), trusted)

    def anneals(self) -> bool:
        """Whether the configuration, as it was written, lets the learning rate decay to 0."""
        table = read(self.source, self.overrides).data.get("algo")
        return isinstance(table, dict) and table.get("anneal") is True

    def seeds(self) -> range:
        """The seeds of the runs that are asked for, as far as they are whole numbers: the worker tells what is wrong
        with others.
        """
        table = read(self.source, self.overrides).data.get("run")
        seed, count = (str(table.get(key, 1)) if isinstance(table, dict) else "1" for key in ("seed", "seeds"))
        many = seed.isdecimal() and count.isdecimal() and 1 < int(count) <= _MOST_SEEDS
        return range(int(seed), int(seed) + int(count)) if many else range(1)

    def ranks(self) -> int:
        """How many ranks are asked for, as far as that can be told without looking for GPUs; 1 where it cannot."""
        table = read(self.source, self.overrides).data.get("run")
        gpus, ranks = (table.get("gpus"), table.get("ranks")) if isinstance(table, dict) else (None, None)
        asked = len(gpus) if isinstance(gpus, list) else gpus or ranks
        return asked if isinstance(asked, int) and asked in (2, 4, 8) else 1

    def device(self, local_rank: int = 0) -> str:
        """The device of one of a host's ranks as it was written, not checked yet: that of `run.gpus`, or
        `run.device`.
        """
        table = read(self.source, self.overrides).data.get("run")
        device, gpus = (table.get("device"), table.get("gpus")) if isinstance(table, dict) else (None, None)
        if isinstance(gpus, list):
            return f"cuda:{gpus[local_rank]}" if local_rank < len(gpus) else "none"
        device = device if isinstance(device, str) else "auto"
        return f"cuda:{local_rank}" if local_rank and device in ("auto", "cuda") else device


def to_resume(config: Path, overrides: Sequence[str]) -> Request:
    """The request to resume the run of a resolved configuration, with overrides. Raises MachineError where the working
    directory is gone.
    """
    return Request(config, tuple(overrides), None, working_directory())


def of_run(folder: Path, document: Any, *, resume: bool) -> Request:
    """The request that a run's document holds: of the new run, or of its resume, which begins from the run's own
    configuration.

    Raises ConfigError for one that is damaged.
    """
    fields: dict[str, Any] = document if isinstance(document, dict) else {}
    directory: Any = fields.get("directory")
    overrides: Any = fields.get("overrides")
    if resume:
        directory, overrides = fields.get("resume_directory", directory), fields.get("resume_overrides", [])
    source, file = (None, None) if resume else (fields.get("config"), fields.get("environment_file"))
    sound = (
        isinstance(directory, str) and isinstance(overrides, list) and all(isinstance(word, str) for word in overrides)
    )
    if not sound or not all(text is None or isinstance(text, str) for text in (source, file)):
        raise ConfigError(
            str(folder / "run.json"), ["request: what the run was asked for is damaged. operant resume writes it anew"]
        )
    if resume:
        return Request(folder / "config.toml", tuple(overrides), None, Path(directory))
    return Request(source and recipes.find_source(source), tuple(overrides), file and Path(file), Path(directory))


def make(
    words: Sequence[str], *, config: str | None, environment_file: str | None, settings: Mapping[str, object | None]
) -> Request:
    """The request of a command line.

    `words` are its positional arguments: `key=value` overrides, and at most one environment: a name, a Gymnasium id or
    a file. `settings` are keys that options give (None: not given); they come after the overrides, so that they win.
    Raises UsageError for two environments, NotFoundError for a configuration or an environment file that is not there,
    MachineError where the working directory is gone.
    """
    directory = working_directory()
    overrides = [word for word in words if "=" in word]
    environments = [word for word in words if "=" not in word]
    if len(environments) > 1:
        raise UsageError(
            f"one environment at a time, not {len(environments)} ({', '.join(map(repr, environments))}); values are "
            "given as key=value"
        )
    environment = environments[0] if environments else None
    if environment_file is not None and environment is None and names.kind_of(environment_file) is not None:
        environment, environment_file = environment_file, None
    if environment is not None and environment.endswith(".toml"):
        raise UsageError(
            f"{environment!r} is a configuration, not an environment: operant train --config {environment}"
        )
    if environment is not None and environment.endswith(".py"):
        if environment_file is not None:
            raise UsageError(f"two environment files, {environment!r} and --env {environment_file!r}: give one")
        environment, environment_file = None, environment
    if environment is not None and environment_file is not None:
        raise UsageError(f"two environments, {environment!r} and --env {environment_file!r}: give one")

    typed = read(None, overrides)
    named, algorithm = _text(typed, "env", "name"), _text(typed, "algo", "name")
    if named is not None and (environment or environment_file) is not None:
        raise UsageError(f"two environments, {environment or environment_file!r} and env.name={named}: give one")
    if environment is not None:
        overrides.insert(0, f"env.name={environment}")
    overrides += [f"{key}={value}" for key, value in settings.items() if value is not None]
    file = _existing(environment_file, directory) if environment_file is not None else None
    source = recipes.find_source(config, algorithm) if config is not None else _recipe(read(None, overrides), file)
    raw = read(source, overrides)
    env_name = str(file) if file is not None else _text(raw, "env", "name") or recipes.ENVIRONMENT
    algorithm = _text(raw, "algo", "name") or recipes.algorithm_of(env_name)
    name = _text(raw, "run", "name")
    prefix = f"{_short_name(env_name)}-{_short_name(algorithm)}"
    wanted = name if name and (_NAME.fullmatch(name) or raw.typed(("run", "name"))) else None
    notes = read(source, [*overrides, *([f"env.name={file}"] if file is not None else [])]).notes
    return Request(source, tuple(overrides), file, directory, wanted, prefix, tuple(notes))


def working_directory() -> Path:
    """Where the files that a command line names are looked for. Raises MachineError where it is gone."""
    try:
        return Path.cwd()
    except OSError as error:
        raise MachineError(f"the working directory cannot be used ({error.strerror}): change to another one") from None


def _existing(file: str, directory: Path) -> Path:
    try:
        path = (directory / Path(file).expanduser()).absolute()
        if path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):  # a name too long, a NUL in it, no home
        pass
    shipped = (
        f"; one that ships is asked for by its name alone: operant train {file}"
        if recipes.recipe(recipes.algorithm_of(file), file) is not None
        else ""
    )
    raise NotFoundError(f"there is no environment file {quoted(file)}{shipped}")


def _recipe(raw: RawConfig, environment_file: Path | None) -> Path | None:
    """The recipe for the environment and the algorithm of some overrides; None for a file of the user's own, which no
    recipe is made for.
    """
    environment = _text(raw, "env", "name") or recipes.ENVIRONMENT
    algorithm = _text(raw, "algo", "name") or recipes.algorithm_of(environment)
    return recipes.recipe(algorithm, environment) if environment_file is None else None


def _short_name(name: str) -> str:
    """A name as it goes into an id: `cartpole` for cartpole, CartPole-v1 and path/to/cartpole.py, `a2c` for
    a2c.py:A2C.
    """
    path = name.rpartition(":")[0] if ".py:" in name else names.short(name)
    return re.sub(r"-v\d+$", "", Path(path).stem).lower()


def _text(raw: RawConfig, section: str, key: str) -> str | None:
    """A text of a raw configuration, as it was written; None where there is none."""
    table = raw.data.get(section)
    value = raw.texts.get((section, key)) or (table.get(key) if isinstance(table, dict) else None)
    return value.strip("\"'") if isinstance(value, str) else None
