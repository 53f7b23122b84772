"""What a resume may not change: its overrides are compared with the run's own configuration, before anything in the run folder is written.

Knows the keys on which the tensors of a checkpoint depend; knows no run folder, no checkpoint and nothing of how a run is resumed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from operant.config.raw import COMMAND_LINE, quoted
from operant.config.request import Request
from operant.errors import ConfigError
from operant.text import safe

_ENVIRONMENT = "its checkpoints hold a policy for that environment and the state of its episodes"
_NORMALIZER = "its checkpoints hold a running mean and variance only where this is true"
_FIXED = {
    "env.name": _ENVIRONMENT,
    "env.pixels": _ENVIRONMENT,
    "env.lanes": "its checkpoints hold the state of so many lanes",
    "algo.name": "its checkpoints hold the state of that algorithm",
    "algo.normalize_observations": _NORMALIZER,
    "algo.normalize_rewards": _NORMALIZER,
}
_NETWORK = "its checkpoints hold the weights of that network"
_ADVICE = "a run with other values is a new one: operant train"


def check(request: Request, trusted: bool = False) -> None:
    """Raise ConfigError, naming each override as it was typed, where a request to resume changes what the run's checkpoints depend on.

    Also where the configuration is wrong in another way.
    """
    own, problems = _values(replace(request, overrides=()), trusted), []
    typed = {"".join(word.partition("=")[0].split()): word for word in request.overrides}  # the last one of a key wins
    for name, word in typed.items():
        try:
            asked = _values(replace(request, overrides=(word,)), trusted)
        except ConfigError:  # wrong, or wrong beside the other values: in either case not the value that the run has
            asked = {**own, name: None} if own.get(name) is not None else own
        for key, value in own.items():
            reason = _NETWORK if key.startswith("net.") else _FIXED.get(key)
            if reason is not None and asked.get(key) != value:
                problems.append(f"{key} cannot change on a resume: {reason}. The run has {_written(value)} (got {safe(word)})")
    if problems:
        raise ConfigError(COMMAND_LINE, problems, advice=_ADVICE)
    request.load(trusted)


def _values(request: Request, trusted: bool) -> dict[str, Any]:
    """The value of every key, by its dotted name."""
    return {origin.key: origin.value for origin in request.origins(trusted)}


def _written(value: object) -> str:
    return "no value" if value is None else quoted(list(value) if isinstance(value, tuple) else value)
