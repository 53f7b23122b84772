"""Compatibility of a resume: keys that must equal the checkpoint's configuration, and effects of other changes.

The comparison is made before anything in the run folder is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from operant.config import load
from operant.config.load import Config
from operant.config.raw import COMMAND_LINE, quoted, shown
from operant.config.request import Request
from operant.errors import ConfigError

_ENVIRONMENT = "its checkpoints hold a policy for that environment and the state of its episodes"
_NORMALIZER = "its checkpoints hold a running mean and variance only where this is true"
_FIXED = {
    "env.name": _ENVIRONMENT,
    "env.pixels": _ENVIRONMENT,
    "env.flicker": _ENVIRONMENT,
    "env.frame_stack": _ENVIRONMENT,
    "env.grayscale": _ENVIRONMENT,
    "env.resize": _ENVIRONMENT,
    "env.lanes": "its checkpoints hold the state of that number of lanes",
    "algo.name": "its checkpoints hold the state of that algorithm",
    "algo.normalize_observations": _NORMALIZER,
    "algo.normalize_rewards": _NORMALIZER,
}
_TASK = ("env.time_limit", "env.frame_skip", "env.sticky")
_NETWORK = "its checkpoints hold the weights of that network"
_ADVICE = "a run with other values is a new one: operant train"


def check(request: Request, checkpoint: Path | None, trusted: bool = False) -> Config:
    """Check the configuration of a resume and return it. Raises ConfigError if it is invalid, or if an override, which
    the message quotes, changes a key on which the checkpoint depends. `trusted` allows code that is not known to be
    this user's.

    `checkpoint` is the configuration file stored with the checkpoint; None for early checkpoints without one, for which
    the run's configuration is used.
    """
    before = of_checkpoint(request, checkpoint, trusted)
    own, reasons, problems = load.values(before), _reasons(before), []
    unchanged = own if checkpoint is None else load.values(replace(request, overrides=()).load(trusted))
    typed = {"".join(word.partition("=")[0].split()): word for word in request.overrides}  # the last one of a key wins
    for name, word in typed.items():
        try:
            asked = load.values(replace(request, overrides=(word,)).load(trusted))
        except ConfigError:  # invalid, alone or with the other values: in either case not the run's value
            asked = {**own, name: None} if own.get(name) is not None else own
        for key, reason in reasons.items():
            if asked.get(key) not in (own[key], unchanged.get(key)):
                problems.append(
                    f"{key} cannot change on a resume: {reason}. The run has {_written(own[key])} (got "
                    f"{quoted(word)[1:-1]})"
                )
    if problems:
        raise ConfigError(COMMAND_LINE, problems, advice=_ADVICE)
    after = request.load(trusted)
    check_fits(before, after, request.source)
    return after


def of_checkpoint(request: Request, checkpoint: Path | None, trusted: bool = False) -> Config:
    """Return the configuration of a checkpoint: from `checkpoint`, the file stored with it, else the run's
    configuration without overrides. `trusted` allows code that is not known to be this user's.
    """
    return replace(request, source=checkpoint or request.source, overrides=()).load(trusted)


def completed(config: Config, before: Config | None = None) -> Config:
    """Return the configuration in which every value derived from the planned steps is filled in, such as the end of
    annealing.

    A resume (`before`: the checkpoint's configuration) keeps those of the run's first start.
    """
    # True for an early run, whose configuration did not store them.
    derived = before is not None and before.algo.completed(before.run.steps) != before.algo
    return replace(
        config, algo=config.algo.completed(before.run.steps if before is not None and derived else config.run.steps)
    )


def check_fits(before: Config, after: Config, source: Path | None) -> None:
    """Raise ConfigError if configuration `after`, read from `source`, differs from a checkpoint's, `before`, in a key
    on which the checkpoint depends.
    """
    own, asked = load.values(before), load.values(after)
    problems = [
        f"{key} cannot change on a resume: {reason}. The checkpoint has {_written(own[key])} (got "
        f"{_written(asked.get(key))})"
        for key, reason in _reasons(before).items()
        if asked.get(key) != own[key]
    ]
    if problems:
        raise ConfigError(COMMAND_LINE if source is None else shown(source), problems, advice=_ADVICE)


_OLD_ORDER_UNTIL_NS = 1_795_403_893 * 10**9  # 2026-11-23 03:18:13 UTC
"""Time of the last checkpoints whose lanes hold the state of a network of places in another order."""


def check_order(config: Config, created_ns: int) -> None:
    """Raise ConfigError if a checkpoint made at `created_ns` (wall clock) holds the memory of its lanes in an order
    that this version would read wrongly.
    """
    if config.net.kind == "places" and config.net.is_recurrent and created_ns < _OLD_ORDER_UNTIL_NS:
        raise ConfigError(
            "the checkpoint",
            [
                "net.kind: a checkpoint from before 2026-11-23 03:18 UTC of a network of places with a memory holds "
                "the memory in another order: it can be evaluated, but not trained on"
            ],
            advice=_ADVICE,
        )


_OWN_KEYS = frozenset({"run.device", "run.gpus", "run.ranks", "run.threads", "run.name", "env.lanes"})
"""Keys that may differ between ranks, or that rank 0 determines for all."""


def comparable(config: Config) -> dict[str, Any]:
    """Return the values that must be equal on all ranks: configuration values by key, and a hash of each user's
    file.
    """
    shared = {key: value for key, value in load.values(config).items() if key not in _OWN_KEYS}
    for name in ("environment_file", "algorithm_file", "network_file"):
        if (path := getattr(config, name)) is not None:
            shared[f"the {name.replace('_', ' ')}"] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return dict(json.loads(json.dumps(shared, default=str)))


def task_changes(before: Config, after: Config, code: str | None) -> list[str]:
    """Return the changes of the environment, or of its file, that make returns before and after incomparable, as `key:
    old -> new`.

    `code` is the previous hash of the user's environment file.
    """
    own, asked = load.values(before), load.values(after)
    keys = [key for key in own if key.startswith(("env.params.", *_TASK)) and asked.get(key) != own[key]]
    edited = (
        [f"{after.environment_file.name} was edited"]
        if after.environment_file is not None and code not in (None, environment_code(after))
        else []
    )
    return [*(f"{key}: {_written(own[key])} -> {_written(asked.get(key))}" for key in keys), *edited]


def environment_code(config: Config) -> str | None:
    """Return the SHA-256 of the user's environment file; None for a shipped environment."""
    return None if config.environment_file is None else hashlib.sha256(config.environment_file.read_bytes()).hexdigest()


def schedule_note(config: Config) -> str | None:
    """Return a note that the learning rate reaches 0 before the run ends; None if it does not."""
    end = getattr(config.algo, "anneal_steps", None) if getattr(config.algo, "anneal", False) else None
    if end is None or end >= config.run.steps:
        return None
    return (
        f"the learning rate decays to 0 at step {end:,} of {config.run.steps:,}: "
        f"algo.anneal_steps={config.run.steps} changes that"
    )


def _reasons(config: Config) -> dict[str, str]:
    """Return the keys of a configuration that cannot change on a resume, each with the reason for the message."""
    own: Mapping[str, str] = config.algo.fixed_on_resume
    fixed = {**_FIXED, **{f"algo.{key}": reason for key, reason in own.items()}}
    return {
        key: _NETWORK if key.startswith("net.") else fixed[key]
        for key in load.values(config)
        if key.startswith("net.") or key in fixed
    }


def _written(value: object) -> str:
    """Format a value for messages; "no value" for None."""
    return "no value" if value is None else quoted(list(value) if isinstance(value, tuple) else value)
