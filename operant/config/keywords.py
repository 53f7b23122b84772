"""Keyword arguments of the library as overrides: `learning_rate=3e-4` is `algo.learning_rate=0.0003`.

A keyword is the last part of a key, or its section and key where sections share it: `eval_every=5`. Wrong ones are
answered as on the command line. Imports no algorithm: the keys are those of `operant.config.keys`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from operant.config import keys, messages
from operant.errors import ConfigError
from operant.similar import did_you_mean

OPTIONS: Final = {"algo": "algo.name", **{name: f"run.{name}" for name in ("seed", "device", "steps", "gpus")}}
"""Keywords with the meaning of the command line's options, whatever other sections have a key of that name."""
_ARGUMENTS = ("callbacks", "changes", "logs", "overrides")  # of `operant.train`, which other libraries call in singular
_GROUP = "seeds: a call trains one run: call it with seed=1, seed=2 and so on, or run `operant train --seeds N`"


def overrides(given: Mapping[str, Any], *, own_algorithm: bool = False) -> list[str]:
    """Overrides `section.key=value` for keyword arguments. `own_algorithm`: the algorithm is a user's file, whose keys
    are not known here: an unknown keyword is taken for one of them. Raises ConfigError with every problem.
    """
    problems: list[str] = []
    words = []
    for name, value in given.items():
        key = _key(name, own_algorithm, problems)
        if key is not None:
            words.append(f"{key}={text(value)}")
    if problems:
        raise ConfigError("the call", problems)
    return words


def text(value: Any, *, inside: bool = False) -> str:
    """Value in the syntax of an override, TOML; `inside` a list or table, where texts need quotes."""
    value = value.item() if hasattr(value, "item") and not isinstance(value, (str, bytes)) else value  # of NumPy
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(str(key))} = {text(item, inside=True)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(text(item, inside=True) for item in value)}]"
    return json.dumps(str(value)) if inside and isinstance(value, (str, Path)) else str(value)


def _key(name: str, own_algorithm: bool, problems: list[str]) -> str | None:
    """Dotted key that a keyword means; None after adding to `problems`."""
    known = keys.known()
    if name in OPTIONS:
        return OPTIONS[name]
    if name == "seeds":
        problems.append(_GROUP)
        return None
    sections = [section for section, names in known.items() if name in names]
    if len(sections) == 1:
        return f"{sections[0]}.{name}"
    if sections:
        choices = " or ".join(f"{section}_{name} ({section}.{name})" for section in sections)
        problems.append(f"{name!r} is a key of {len(sections)} sections: write {choices}")
        return None
    for section, names in known.items():
        rest = name.removeprefix(f"{section}_")
        if rest != name and (rest in names or (section == "algo" and own_algorithm)):
            return f"{section}.{rest}"
    if own_algorithm:
        return f"algo.{name}"
    if f"{name}s" in _ARGUMENTS:
        problems.append(f"unknown key {name!r}{did_you_mean(name + 's')}")
    else:
        problems.append(messages.unknown_key((name,), known, dict.fromkeys((*known, *OPTIONS))))
    return None
