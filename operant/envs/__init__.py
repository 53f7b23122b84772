"""Registry of environments: shipped ones by file name, user files by path. Re-exports the contract of
operant/envs/base.py.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from operant import env_names
from operant.compute import user_file
from operant.compute.device import device, device_call
from operant.compute.rng import integer, uniform, uniform4
from operant.envs.base import Box, Discrete, Env, IntState, MultiDiscrete, step_seconds, with_pixels
from operant.envs.drawing import BLUE, GREEN, GREY, GROUND, ORANGE, RED, YELLOW, in_box, in_disc, in_rod
from operant.envs.flicker import with_flicker
from operant.errors import NotFoundError, OperantError

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "GROUND",
    "ORANGE",
    "RED",
    "YELLOW",
    "Box",
    "Discrete",
    "Env",
    "IntState",
    "MultiDiscrete",
    "device",
    "device_call",
    "find",
    "in_box",
    "in_disc",
    "in_rod",
    "integer",
    "load_file",
    "module_of",
    "names",
    "step_seconds",
    "uniform",
    "uniform4",
    "with_flicker",
    "with_pixels",
]


def names() -> list[str]:
    """Sorted names of the shipped environments: one for each `ENV` that a module below this package exports, and one
    for each `ENV_TASK`, of a file with several tasks.
    """
    return sorted(env_names.modules(tuple(__path__)))


def find(name: str) -> Env:
    """Find an environment by its name, its Gymnasium id, or the path of a file ending in `.py`. Raises NotFoundError
    for a missing file, KeyError for an unknown name, OperantError for a file that does not export an environment.
    """
    if name.endswith(".py"):
        return load_file(Path(name))
    modules = env_names.modules(tuple(__path__))
    if name in modules:
        module, export = modules[name]
        return _named(importlib.import_module(module), name, export)
    for other, (module, export) in modules.items():
        env = _named(importlib.import_module(module), other, export)
        if env.gymnasium == name:
            return env
    raise KeyError(name)


def module_of(name: str) -> str:
    """Dotted name of the module that declares a shipped environment. Raises KeyError for an unknown name."""
    return env_names.modules(tuple(__path__))[name][0]


def load_file(path: Path) -> Env:
    """Import a user's file and return its `ENV`. Raises NotFoundError for a missing file and OperantError for one
    without a valid `ENV`.
    """
    if not os.path.isfile(path):  # Path.is_file raises for names that are too long
        raise NotFoundError(f"there is no environment file {str(path)!r}")
    # Module name from the file's content: an edit never meets a stale compilation, and numba's cache on disk finds the
    # same file under the same name in every process, wherever the file lies.
    try:
        module_name = f"operant_user_env_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        raise OperantError(f"{path} cannot be read ({error.strerror})") from None
    try:
        module = user_file.load(path, module_name)
    except (Exception, SystemExit) as error:
        raise OperantError(f"{path} could not be imported: {user_file.problem(error, path)}") from error
    return _named(module, path.stem)


def _named(module: ModuleType, name: str, export: str = "ENV") -> Env:
    """Return a module's `ENV` with this `name`. Raises OperantError if the module exports none."""
    env = getattr(module, export, None)
    if not isinstance(env, Env):
        if outside := _gymnasium_classes(module):
            raise OperantError(
                f"{module.__file__} exports no ENV, but a gymnasium.Env: give its class too: {' or '.join(outside)}"
            )
        raise OperantError(
            f"{module.__file__} exports no environment: it must end with `ENV = Env(...)` (see the docstring of "
            "operant/envs/base.py)"
        )
    return replace(env, name=name)


def _gymnasium_classes(module: ModuleType) -> list[str]:
    """Subclasses of gymnasium.Env that a user's file defines, as FILE.py:CLASS, for a message."""
    gymnasium, file = sys.modules.get("gymnasium"), os.path.basename(module.__file__ or "")
    if gymnasium is None:
        return []
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, gymnasium.Env)]
    return [f"{file}:{one.__name__}" for one in classes if one.__module__ == module.__name__]
