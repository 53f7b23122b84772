"""The environments that ship, found by file name; a user's own, by its path; and the public names of the contract,
which stands in operant/envs/base.py.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType

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
    "names",
    "step_seconds",
    "uniform",
    "uniform4",
    "with_flicker",
    "with_pixels",
]


def names() -> list[str]:
    """The environments that ship, sorted: files and folders of this package that export `ENV`, a folder in its
    `__init__.py`, or in files as its games.
    """
    return sorted(_modules())


def find(name: str) -> Env:
    """The environment of a name, of a Gymnasium id, or of a path to a file ending in `.py`.

    Raises NotFoundError for a file that is not there, KeyError for an unknown name, OperantError for a file that does
    not export an environment.
    """
    if name.endswith(".py"):
        return load_file(Path(name))
    modules = _modules()
    if name in modules:
        return _named(importlib.import_module(modules[name]), name)
    for other, module in modules.items():
        env = _named(importlib.import_module(module), other)
        if env.gymnasium == name:
            return env
    raise KeyError(name)


def _modules() -> dict[str, str]:
    """The module of each environment that ships: `snake` is of operant.envs.snake, `minatar_breakout` of
    operant.envs.minatar.breakout.
    """
    files = (
        path.relative_to(folder)
        for folder in __path__
        for path in Path(folder).glob("**/*.py")
        if "\nENV = " in path.read_text(encoding="utf-8")
    )
    places = [file.parent.parts if file.stem == "__init__" else file.with_suffix("").parts for file in files]
    return {"_".join(place): ".".join((__name__, *place)) for place in places}


def load_file(path: Path) -> Env:
    """The environment that a user's own file exports as `ENV`. Raises NotFoundError and OperantError."""
    if not os.path.isfile(path):  # False, too, for a name too long, at which Path's own raises
        raise NotFoundError(f"there is no environment file {str(path)!r}")
    # A fresh module each time, under a name of its own: an edit in the file must never meet a stale compilation. The
    # same file has the same name in every process, wherever it lies: compiled code that is kept on disk names it.
    try:
        module_name = f"operant_user_env_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        raise OperantError(f"{path} cannot be read ({error.strerror})") from None
    try:
        module = user_file.load(path, module_name)
    except (Exception, SystemExit) as error:
        raise OperantError(f"{path} could not be imported: {type(error).__name__}: {error}") from error
    return _named(module, path.stem)


def _named(module: ModuleType, name: str) -> Env:
    env = getattr(module, "ENV", None)
    if not isinstance(env, Env):
        raise OperantError(
            f"{module.__file__} exports no environment: it must end with `ENV = Env(...)` (see the docstring of "
            "operant/envs/base.py)"
        )
    return replace(env, name=name)
