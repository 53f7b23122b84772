"""Plan of a sweep: the keys of `[sweep]`, the search space, the configuration of its trials; checked, and stored in the
folder of the sweep.

    runs/NAME/   sweep.toml    the resolved configuration and [sweep], for this machine and all that join
                 sweep.json    the identity of the sweep in its runs
                 journal.log   the trials, written by the search engine
                 sweep.lock    held while a trial is taken
                 best.toml, *.png, worker-*.log
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tomli
import tomli_w
from pydantic import Field, ValidationError

from operant import runs
from operant.config import messages, raw, sections, trust
from operant.config.request import Request
from operant.errors import ConfigError, MachineError, NotFoundError, UsageError
from operant.runs import sweeps
from operant.runs.index import names_in
from operant.settings import Count, Real, Section
from operant.sweep import space

if TYPE_CHECKING:
    from operant.config import load

_FREE = ("trials", "steps", "minutes", "workers")
"""Keys that may change after a sweep has begun."""
_DEFAULT_TRIALS = 64
FILE = runs.SWEEP_FILE
JOURNAL = "journal.log"


class Settings(Section, use_attribute_docstrings=True):
    """Keys of `[sweep]` apart from the search space: budget, objective, sampler and pruner."""

    trials: Count | None = Field(None, ge=1, le=1_000_000)
    """Number of trials."""
    steps: Count | None = Field(None, ge=1)
    """Environment steps of all trials together; no trial starts after them."""
    minutes: Real | None = Field(None, gt=0)
    """Minutes in which trials run; no trial starts after them."""
    seeds: Count = Field(1, ge=1, le=1024)
    """Runs of a trial, with seeds run.seed, run.seed + 1, ...; its value is their mean."""
    objective: Literal["score", "time_to_target", "area"] = "score"
    """score: mean return of the last evaluation; time_to_target: seconds until run.target, times 10 for a run that
    misses it; area: mean return of the evaluations over the steps.
    """
    pareto: bool = False
    """Search for trade-offs between the objective and the seconds of a trial; without pruning."""
    sampler: Literal["tpe", "gp", "cma_es", "random"] = "tpe"
    """tpe: multivariate tree-structured Parzen estimator; gp: Gaussian process; cma_es: covariance matrix adaptation.
    """
    pruner: Literal["hyperband", "wilcoxon", "none"] = "hyperband"
    """Rule that ends hopeless trials by their evaluations."""
    workers: Count = Field(0, ge=0, le=4096)
    """Runs at a time; 0: one per GPU, or CPU cores divided by run.threads."""
    seed: Count = Field(0, ge=0, lt=2**32)
    """Seed of the sampler."""


@dataclass(frozen=True)
class Outline:
    """Description of a sweep as its folder states it, enough to show it. No code that it names is imported."""

    name: str
    folder: Path
    uuid: str  # identity in the runs; "" for a sweep from before there was one
    settings: Settings
    space: tuple[space.Dimension, ...]

    @property
    def maximize(self) -> bool:
        """Whether a higher value of the sweep's objective is better."""
        return self.settings.objective != "time_to_target"

    @property
    def trials(self) -> int | None:
        """Maximum number of trials of the sweep; None if only steps or minutes limit it."""
        own = self.settings
        return (
            own.trials
            if own.trials is not None or own.steps is not None or own.minutes is not None
            else _DEFAULT_TRIALS
        )

    def decoded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the parameters of a stored trial (`params`), in which lists are text, to configuration values
        by key.
        """
        lists = {
            dimension.key: {space.stored(choice): choice for choice in dimension.choices} for dimension in self.space
        }
        return {key: lists[key].get(value, value) if lists.get(key) else value for key, value in params.items()}

    @property
    def place(self) -> str:
        """Path of the sweep's folder for messages, relative if it lies below the working directory."""
        return runs.display_path(self.folder)


@dataclass(frozen=True)
class Plan(Outline):
    """Sweep that this process can work on: its outline, and the request and configuration that all trials share."""

    request: Request
    config: load.Config

    def values(self, sampler: Any) -> dict[str, Any]:
        """Sample a value for each searched key whose conditions hold, by key. `sampler` is a trial of the search
        engine.
        """
        return space.values(self.space, sampler)

    def overrides(self, values: Mapping[str, Any]) -> list[str]:
        """Format configuration values as overrides `section.key=value`."""
        return [space.override(key, value) for key, value in values.items()]

    @property
    def own_values(self) -> dict[str, Any]:
        """Values that the sweep's shared configuration has for the searched keys, as the search engine stores them; {}
        if one lies outside the search space.
        """
        from operant.config import load  # torch

        written = raw.flat(tomli.loads(load.to_toml(self.config)))
        return space.own(self.space, {".".join(key): value for key, value in written})


def make(request: Request, root: str | None, name: str | None, trusted: bool = False) -> Plan:
    """Make the plan of a sweep and its folder, or check that an existing sweep is equal. `root` is the value of --runs,
    `name` the sweep's name; `trusted` allows code that is not known to be this user's. Raises ConfigError, UsageError
    and MachineError.
    """
    written = raw.read(request.source, request.all_overrides())
    table = written.data.get("sweep", {})
    settings, dimensions = _parse_section(written, table)
    config = request.load(trusted)
    if config.run.threads == 0:  # parallel trials share the cores; the choice is part of the recipe
        request = replace(request, overrides=(*request.overrides, "run.threads=1"))
        config = request.load(trusted)
    _check_values(request, config, settings, dimensions, trusted)
    file = (
        re.sub(r"[^A-Za-z0-9._-]+", "-", request.source.stem).strip("-._")[:40]
        if request.source is not None
        else request.prefix
    )
    stem = name or "-".join(filter(None, (file, "sweep")))
    if not runs.ID.fullmatch(stem) or len(stem) > 48:
        raise UsageError(
            f"{raw.quoted(stem)} cannot be the name of a sweep: use --name with 1 to 48 letters, digits, '.', '_' or "
            "'-', a letter or digit first"
        )
    folder = runs.root(root) / stem
    text = _file_text(config, table)
    _check_links(folder)
    if (folder / FILE).is_file():
        _check_unchanged(folder, text, trusted)
    elif set(names_in(folder)) - {sweeps.IDENTITY}:
        kind = "a run" if runs.load(folder) is not None else "a folder with other files"
        raise UsageError(f"{runs.display_path(folder)} is {kind}: give the sweep another name with --name")
    _write_folder(folder, text, request.code_files())
    return join(folder, trusted)


def join(folder: Path, trusted: bool = False) -> Plan:
    """Load the plan of an existing sweep from its folder. `trusted` allows code that is not known to be this user's.
    Raises NotFoundError, ConfigError, UntrustedError, and UsageError if files have changed or the folder contains
    symbolic links.
    """
    sketch = outline(folder)
    _check_links(folder)
    request = Request(folder / FILE, (), None, folder)
    # The sampler cma_es stores its state in the journal by pickle, which executes code when it is loaded.
    pickled = [folder / JOURNAL] * (sketch.settings.sampler == "cma_es")
    samples = [space.override(one.key, value) for one in sketch.space for value in one.samples()]
    trust.check_sweep(request.raw, [raw.read(None, [word]) for word in samples], pickled, trusted)
    if changed := sweeps.changed_files(folder):
        raise UsageError(
            f"{changed} has changed since {runs.display_path(folder)} began: its trials are not comparable with new "
            "ones. Restore the file, or give a new sweep another name with --name"
        )
    own = (sketch.name, sketch.folder, sketch.uuid, sketch.settings, sketch.space)
    return Plan(*own, request, request.load(trusted))


def outline(folder: Path) -> Outline:
    """Read the outline of a sweep from its folder without importing code. Raises NotFoundError and ConfigError."""
    if not (folder / FILE).is_file():
        raise NotFoundError(
            f"{runs.display_path(folder)} is not a sweep: it has no {FILE}. Start a new one: operant sweep my.toml"
        )
    written = raw.read(folder / FILE)
    settings, dimensions = _parse_section(written, written.data.get("sweep", {}))
    return Outline(folder.name, folder, sweeps.uuid(folder), settings, tuple(dimensions))


def _check_links(folder: Path) -> None:
    """Check that a sweep's folder contains no symbolic link or special file where the sweep would write. Raises
    UsageError.
    """
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            regular = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
            if not regular and not entry.name.startswith(f"{JOURNAL}.lock"):  # the engine's lock is a link
                raise UsageError(
                    f"{runs.display_path(folder)} holds {raw.quoted(entry.name)}, a symbolic link or no regular file: "
                    "a sweep writes no such file. Remove it, or give the sweep another name with --name"
                )


def _parse_section(written: raw.RawConfig, table: Any) -> tuple[Settings, list[space.Dimension]]:
    """Read settings and search space from `table`, the section `[sweep]`. Raises ConfigError with all problems, which
    are added to `written`.
    """
    written.raise_problems()  # invalid TOML has no sections
    if not isinstance(table, dict) or not table:
        example = "algo.learning_rate = {log = [1e-4, 1e-2]}"
        raise ConfigError(written.title, [f"no [sweep] section with keys to search, such as {example}"])
    searched = {name: value for name, value in table.items() if name in sections.SECTIONS}
    values = {name: value for name, value in table.items() if name not in searched}

    def problem(key: tuple[str, ...], message: str) -> None:
        written.problem(written.location(("sweep", *key)), message)

    settings = Settings.model_validate({})
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        known = {"sweep": list(Settings.model_fields)}
        for item in messages.problems(error, values):
            unknown = item.kind == "extra_forbidden"
            if unknown and "." in item.key[0]:
                problem(item.key, f"sweep: {item.key[0]} is quoted, so TOML reads it as one name: remove the quotes")
                continue
            message = f"{messages.dotted(('sweep', *item.key))}: {item.message} (got {raw.quoted(item.value)})"
            problem(
                item.key,
                messages.unknown_key(("sweep", *item.key), known, [*known["sweep"], *sections.SECTIONS])
                if unknown
                else message,
            )
    dimensions = space.parse(searched, problem)
    if not searched and not any("." in key for key in values):
        problem((), "sweep: no key to search: add one such as algo.learning_rate = {log = [1e-4, 1e-2]}")
    if settings.pareto and settings.sampler == "cma_es":
        problem(("sampler",), "sweep.sampler: cma_es supports one objective only: use tpe or gp with pareto")
    written.raise_problems()
    return settings, dimensions


def _check_values(
    request: Request, config: load.Config, settings: Settings, dimensions: list[space.Dimension], trusted: bool
) -> None:
    """Check that the values of the search space are valid for their keys, and that the objective can be measured.
    `trusted` allows code that is not known to be this user's. Raises ConfigError.
    """
    problems = []
    for dimension in dimensions:
        for value in dimension.samples():
            word = space.override(dimension.key, value)
            needed = [space.override(key, allowed[0]) for key, allowed in dimension.when]
            try:
                replace(request, overrides=(*request.overrides, *needed, word)).load(trusted)
            except ConfigError as error:
                problems += [
                    f"sweep.{dimension.key}: {line.removeprefix('command line: ')}"
                    for line in error.problems
                    if dimension.key in line
                ]
    if config.eval.every == 0:
        problems.append("eval.every: must be above 0, because trials are measured by their evaluations")
    if settings.objective == "time_to_target" and config.run.target is None:
        problems.append('sweep.objective: "time_to_target" needs run.target')
    if problems:
        raise ConfigError(
            raw.COMMAND_LINE if request.source is None else raw.shown(request.source), list(dict.fromkeys(problems))
        )


def _check_unchanged(folder: Path, text: str, trusted: bool) -> None:
    """Check that the sweep in `folder` has the configuration `text`, a sweep.toml. Keys added by a later version have
    their defaults. `trusted` allows code that is not known to be this user's. Raises UsageError.
    """
    begun, table = join(folder, trusted), tomli.loads((folder / FILE).read_text(encoding="utf-8"))["sweep"]
    before, after = (dict(raw.flat(_fixed_keys(one))) for one in (_file_text(begun.config, table), text))
    changed = [".".join(key) for key in {**before, **after} if before.get(key) != after.get(key)]
    if changed:
        raise UsageError(
            f"{runs.display_path(folder)} has other values of {', '.join(changed[:4])}: its trials are not comparable "
            "with new ones. Give this sweep another name with --name, or remove that folder. Only "
            f"{', '.join(f'sweep.{key}' for key in _FREE)} may change"
        )


def _file_text(config: load.Config, table: Any) -> str:
    """Format sweep.toml: the configuration and `table`, the section `[sweep]`."""
    from operant.config import load  # torch

    return load.to_toml(config) + "\n" + tomli_w.dumps({"sweep": table})


def _fixed_keys(text: str) -> dict[str, Any]:
    """Parse a sweep.toml and drop the keys that may change once the sweep has begun."""
    data = tomli.loads(text)
    data["sweep"] = {key: value for key, value in data["sweep"].items() if key not in _FREE}
    return data


def _write_folder(folder: Path, text: str, code_files: list[Path]) -> None:
    """Write sweep.toml and the identity of a new sweep to its folder. Raises MachineError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / FILE).exists():
            sweeps.create_identity(folder, code_files)
        new = folder / f".{FILE}.tmp"
        new.write_text(text, encoding="utf-8")
        new.replace(folder / FILE)
        runs.add_to_index(folder, text.encode())
    except OSError as error:
        raise MachineError(
            f"cannot write to {runs.display_path(folder)} ({error.strerror}): choose another folder with --runs or "
            "$OPERANT_RUNS"
        ) from None
