"""Request for a run: configuration file, overrides and run name of a `train` command line.

The file is parsed once, in `Request.raw`. Only `load` and `origins` import the algorithm and the environment, and with
them torch and numba.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant import similar
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
    """Requested run, as parsed from a command line or from run.json. `source` (configuration file; None: defaults only)
    and `environment_file` (a user's own) are absolute paths of existing files; paths in overrides are relative to
    `directory`.
    """

    source: Path | None
    overrides: tuple[str, ...]
    environment_file: Path | None
    directory: Path

    def document(self) -> dict[str, Any]:
        """Return the entries of run.json from which `of_run` restores this request."""
        return {
            "config": str(self.source) if self.source is not None else None,
            "overrides": list(self.overrides),
            "environment_file": str(self.environment_file) if self.environment_file is not None else None,
            "directory": str(self.directory),
        }

    def resume_document(self) -> dict[str, Any]:
        """Return the entries that a resume adds to run.json: its overrides and working directory."""
        return {"resume_overrides": list(self.overrides), "resume_directory": str(self.directory)}

    def all_overrides(self) -> list[str]:
        """Return the request's overrides, followed by `env.name=FILE` for the user's environment file."""
        return [*self.overrides, *([f"env.name={self.environment_file}"] if self.environment_file is not None else [])]

    @functools.cached_property
    def raw(self) -> RawConfig:
        """Unvalidated configuration of the request: the file with all overrides applied. Read once. Raises
        NotFoundError.
        """
        return read(self.source, self.all_overrides())

    @property
    def name(self) -> str | None:
        """Requested run id (run.name); None if it is not set, or if the configuration file has an invalid one, which
        the worker reports with its line.
        """
        name = _text(self.raw, "run", "name")
        return name if name and (_NAME.fullmatch(name) or self.raw.typed(("run", "name"))) else None

    @property
    def prefix(self) -> str:
        """Prefix of the run id that is generated without run.name: `<env>-<algo>`."""
        environment = _text(self.raw, "env", "name") or recipes.ENVIRONMENT
        algorithm = _text(self.raw, "algo", "name") or recipes.algorithm_of(environment)
        return f"{_short_name(environment)}-{_short_name(algorithm)}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user that are not problems, such as an override without effect."""
        return tuple(self.raw.notes)

    def load(self, trusted: bool = False) -> Config:
        """Check the requested configuration and return it. `trusted` allows code that is not known to be this user's.
        Raises ConfigError and UntrustedError.
        """
        from operant.config import load

        return load.check(copy.deepcopy(self.raw), folder=self.directory, trusted=trusted)

    def origins(self, trusted: bool = False) -> list[Origin]:
        """Return every key of the requested configuration with its value and source. `trusted` and errors as for
        `load`.
        """
        from operant.config import load

        return load.origins_of(copy.deepcopy(self.raw), folder=self.directory, trusted=trusted)

    def check_trust(self, trusted: bool = False) -> bool:
        """Return `trusted`, which allows code that is not known to be this user's. Raises UntrustedError if it is false
        and the requested configuration names such code.
        """
        return trust.check(self.raw, trusted)

    def code_files(self) -> list[Path]:
        """Return the existing environment, algorithm and network files of the user that the request names."""
        return trust.code_files(self.raw, self.directory)

    def check_early(self) -> None:
        """Check what can be checked without importing torch, which takes seconds: TOML, names, keys, and the values of
        `[run]`, `[env]`, `[checkpoint]` and `[eval]`. Raises ConfigError with every problem found.
        """
        from operant.config import early

        early.check(self.raw)
        self.raw.raise_problems()

    def anneals(self) -> bool:
        """Whether algo.anneal is true as written, so that the learning rate decays to 0."""
        return self._value("algo", "anneal") is True

    def seeds(self) -> range:
        """Return the seeds of the requested runs, run.seeds of them from run.seed on; range(1) if a key is invalid,
        which the worker reports.
        """
        seed, count = (str(self._value("run", key, 1)) for key in ("seed", "seeds"))
        several = seed.isdecimal() and count.isdecimal() and 1 < int(count) <= _MOST_SEEDS
        return range(int(seed), int(seed) + int(count)) if several else range(1)

    def ranks(self) -> int:
        """Return the number of processes that run.gpus or run.ranks asks for: 2, 4 or 8, else 1. Does not look for
        GPUs, so that "all" counts as 1.
        """
        gpus = self._value("run", "gpus")
        count = len(gpus) if isinstance(gpus, list) else gpus or self._value("run", "ranks")
        return count if isinstance(count, int) and count in (2, 4, 8) else 1

    def device(self, local_rank: int = 0) -> str:
        """Return the device of rank number `local_rank` on this host, unchecked: from run.gpus ("none" beyond its list)
        or run.device.
        """
        gpus, device = self._value("run", "gpus"), self._value("run", "device")
        if isinstance(gpus, list):
            return f"cuda:{gpus[local_rank]}" if local_rank < len(gpus) else "none"
        device = device if isinstance(device, str) else "auto"
        return f"cuda:{local_rank}" if local_rank and device in ("auto", "cuda") else device

    def _value(self, section: str, key: str, default: Any = None) -> Any:
        """Return the unvalidated value of a key in a section; `default` if it is not written."""
        table = self.raw.data.get(section)
        return table.get(key, default) if isinstance(table, dict) else default


def to_resume(config: Path, overrides: Sequence[str]) -> Request:
    """Return the request to resume a run from `config`, its resolved configuration. Raises MachineError if the working
    directory is gone.
    """
    return Request(config, tuple(overrides), None, working_directory())


def of_run(folder: Path, document: Any, *, resume: bool) -> Request:
    """Restore a request from `document`, the content of a run.json. With `resume` restore the request of the resume,
    which starts from the config.toml in `folder`. Raises ConfigError if the document is damaged.
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
            str(folder / "run.json"), ["request: the recorded request is damaged. operant resume writes it again"]
        )
    if resume:
        return Request(folder / "config.toml", tuple(overrides), None, Path(directory))
    source_path = recipes.find_source(source) if source else None
    return Request(source_path, tuple(overrides), Path(file) if file else None, Path(directory))


def make(
    words: Sequence[str], *, config: str | None, environment_file: str | None, settings: Mapping[str, object | None]
) -> Request:
    """Build the request of a command line: `words` are its positional arguments, `settings` the keys that options set
    (None: not given).

    `words` are overrides `key=value`, and at most one environment (name, Gymnasium id or file). `settings` win over
    overrides. Raises UsageError for an empty or a second environment, NotFoundError for a missing configuration or
    environment file, MachineError if the working directory is gone.
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
    if any(one is not None and not one.strip() for one in (environment, environment_file)):
        raise UsageError(
            "the name of the environment is empty (an unset variable of the shell?): give a name, a Gymnasium id or a "
            "file, such as my_env.py. All names: operant envs"
        )
    if environment in recipes.shipped() and config is None and environment_file is None:
        config, environment = environment, None
    if environment_file is not None and environment is None and names.kind_of(environment_file) is not None:
        environment, environment_file = environment_file, None
    if environment is not None and environment.endswith(".toml"):
        raise UsageError(similar.configuration_given(environment))
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
    return Request(source, tuple(overrides), file, directory)


def working_directory() -> Path:
    """Return the working directory, to which paths on the command line are relative. Raises MachineError if it
    is gone.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise MachineError(f"the working directory cannot be used ({error.strerror}): change to another one") from None


def _existing(file: str, directory: Path) -> Path:
    """Return the absolute path of the user's environment file `file`, relative to `directory`. Raises NotFoundError if
    it does not exist.
    """
    try:
        path = (directory / Path(file).expanduser()).absolute()
        if path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):  # name too long, NUL byte, no home directory
        pass
    shipped = (
        f"; for the shipped environment give its name alone: operant train {file}"
        if recipes.recipe(recipes.algorithm_of(file), file) is not None
        else ""
    )
    if file.startswith("gym:"):
        shipped = similar.did_you_mean(f"gymnasium:{file.removeprefix('gym:')}")
    raise NotFoundError(f"there is no environment file {quoted(file)}{shipped}")


def _recipe(raw: RawConfig, environment_file: Path | None) -> Path | None:
    """Return the path of the recipe for the environment and algorithm of `raw`; None without one, or with a user's
    environment file.
    """
    environment = _text(raw, "env", "name") or recipes.ENVIRONMENT
    algorithm = _text(raw, "algo", "name") or recipes.algorithm_of(environment)
    return recipes.recipe(algorithm, environment) if environment_file is None else None


def _short_name(name: str) -> str:
    """Return an environment's or algorithm's part of a run id: `cartpole` for CartPole-v1 and path/to/cartpole.py,
    `a2c` for a2c.py:A2C.
    """
    path = name.rpartition(":")[0] if ".py:" in name else names.short(name)
    return re.sub(r"-v\d+$", "", Path(path).stem).lower()


def _text(raw: RawConfig, section: str, key: str) -> str | None:
    """Return the raw value of a key in a section as text without quotes; None if the key is missing or not text."""
    table = raw.data.get(section)
    value = raw.texts.get((section, key)) or (table.get(key) if isinstance(table, dict) else None)
    return value.strip("\"'") if isinstance(value, str) else None
