"""Finds algorithms by file name: `operant/algos/<name>.py` exports `ALGO`. Knows nothing of any algorithm.

An `ALGO` is a class with

- `Config`: a `settings.Section` with every key of `[algo]` but `name`, and its default;
- `Config.problems(lanes) -> list[tuple[str, str]]`: (key, sentence) for what does not fit together;
- the members `operant.training.worker` calls: see `operant.algos.ppo.algorithm.PPO`.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def names() -> list[str]:
    """The algorithms there are, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Any:
    """The `ALGO` of `operant/algos/<name>.py`. Raises KeyError where there is none."""
    if name not in names():
        raise KeyError(name)
    return importlib.import_module(f"{__name__}.{name}").ALGO
