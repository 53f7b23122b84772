"""Algorithms by file name: `operant/algos/<name>.py` exports `ALGO`, an `operant.algos.base.Algorithm`.

The names in `__all__` are those that a user's own algorithm imports, `from operant.algos import OnPolicy, metric`; they
are imported on first use, with torch.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant.compute import user_file
from operant.errors import NotFoundError, OperantError

if TYPE_CHECKING:
    from pydantic import Field

    from operant.algos.base import Threshold, metric
    from operant.algos.simple import OffPolicy, OnPolicy
    from operant.settings import Count, Real

__all__ = ["Count", "Field", "OffPolicy", "OnPolicy", "Real", "Threshold", "load", "metric", "names"]

_PARTS = ("base", "simple")  # modules that are no algorithm
_OFFERED = {
    "Count": "operant.settings",
    "Field": "pydantic",
    "OffPolicy": "operant.algos.simple",
    "OnPolicy": "operant.algos.simple",
    "Real": "operant.settings",
    "Threshold": "operant.algos.base",
    "metric": "operant.algos.base",
}


def __getattr__(name: str) -> Any:
    if name in _OFFERED:
        return getattr(importlib.import_module(_OFFERED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def names() -> list[str]:
    """Return the names of the algorithms in this package, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _PARTS)


def load(name: str) -> Any:
    """Return the algorithm class: the `ALGO` of `operant/algos/<name>.py`, or the class of a user's file,
    `path/to/file.py:CLASS`.

    Raises KeyError for an unknown name, NotFoundError for a file that cannot be read, and OperantError for one that
    cannot be used.
    """
    path, colon, class_name = name.rpartition(":")
    if colon:
        return _load_file(Path(path), class_name)
    if name not in names():
        raise KeyError(name)
    return importlib.import_module(f"{__name__}.{name}").ALGO


def _load_file(path: Path, class_name: str) -> Any:
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"the algorithm file {str(path)!r} cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    return _class(path, class_name, hashlib.sha256(text).hexdigest())


@functools.cache  # one class per text, however often a configuration is read
def _class(path: Path, class_name: str, text_hash: str) -> Any:
    try:
        module = user_file.load(path, f"operant_user_algo_{path.stem}_{text_hash[:16]}")
    except (Exception, SystemExit) as error:
        raise OperantError(f"{path} could not be imported: {user_file.problem(error, path)}") from error
    algorithm: Any = getattr(module, class_name, None)
    if not isinstance(getattr(algorithm, "Config", None), type):
        raise OperantError(
            f"{path} has no algorithm {class_name!r}: a class with a `Config`, such as operant.algos.ppo.PPO"
        )
    from operant.algos import simple

    for base in (simple.OnPolicy, simple.OffPolicy):
        if issubclass(algorithm, base) and algorithm.learn is base.learn:
            raise OperantError(f"{path}: {class_name} has no method `learn`, which learns from the samples")
    if not isinstance(metrics := getattr(algorithm, "metrics", ()), tuple):
        raise OperantError(
            f"{path}: `metrics` of {class_name} is {metrics!r}; it must be a tuple, such as "
            '(metric("loss/actor", "actor loss"),)'
        )
    return algorithm
