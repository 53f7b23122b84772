"""Lookup of recipes: shipped configuration files `configs/<algorithm>/<environment>.toml`, by name or path. Standard
library only; the files are not opened.
"""

from __future__ import annotations

from pathlib import Path

from operant.errors import NotFoundError, UsageError
from operant.host import names
from operant.similar import did_you_mean, plain_name, suggestions

_PACKAGE = Path(__file__).resolve().parents[1]

ENVIRONMENT = "cartpole"
"""Default environment of `operant train`."""
_ALGORITHM = "ppo"
OUTSIDE = "gymnasium"
"""Fallback recipe for outside environments."""
_ALGORITHMS: dict[str, str] = {}  # environments whose default algorithm differs from _ALGORITHM
_ALIASES = {"ppo": "ppo/cartpole"}


def algorithm_of(environment: str) -> str:
    """Return the algorithm with which an environment (name or Gymnasium id) is trained by default."""
    plain = plain_name(environment)
    return next((algorithm for name, algorithm in _ALGORITHMS.items() if plain_name(name) == plain), _ALGORITHM)


def shipped() -> list[str]:
    """Return the names of the shipped recipes, `algorithm/environment`, sorted."""
    return sorted(_files())


def short_names() -> list[str]:
    """Return the short names of recipes that `find_source` accepts: each environment, for the recipe of its default
    algorithm, and `ppo`.
    """
    return sorted({name.partition("/")[2] for name in _files()} | set(_ALIASES))


def recipe(algorithm: str, environment: str) -> Path | None:
    """Return the path of the shipped recipe for an algorithm and an environment (name or Gymnasium id); None without
    one.

    An outside environment falls back to the recipe for its kind, then to the one for all outside environments.
    """
    by_name = {f"{path.parent.name}/{plain_name(path.stem)}": path for path in _files().values()}
    exact = by_name.get(f"{algorithm}/{plain_name(environment)}")
    if exact is not None or (kind := names.kind_of(environment)) is None:
        return exact
    return by_name.get(f"{algorithm}/{kind}") or by_name.get(f"{algorithm}/{OUTSIDE}")


def name_of(source: Path) -> str:
    """Return the name of a shipped recipe from its path, such as `ppo/cartpole`."""
    return f"{source.parent.name}/{source.stem}"


def find_source(text: str, algorithm: str | None = None) -> Path:
    """Return the absolute path of the configuration file that `text` names: a path, or the name of a shipped recipe,
    with or without `.toml`. A recipe for another algorithm than `algorithm` (None: any) is an error. Raises
    NotFoundError and UsageError.

    A recipe's name is `algorithm/environment`, or an environment alone, which selects the recipe of `algorithm`
    (default: the environment's default algorithm), else the only recipe of the environment. Raises NotFoundError with
    the closest or ambiguous names, and UsageError for an empty name and for a recipe of another algorithm.
    """
    if not text.strip():
        raise UsageError(
            "the name of a configuration is empty (an unset variable of the shell?): give a TOML file or a shipped "
            "recipe. Shipped recipes: operant config list"
        )
    files = _files()
    try:
        if Path(text).is_file():
            return _check_algorithm(Path(text).resolve(), algorithm)
    except (OSError, ValueError):  # name too long, NUL byte, unreadable folder
        pass
    name = text.removesuffix(".toml")
    name = _ALIASES.get(name, name)
    if algorithm is not None and f"{algorithm}/{name}" in files:
        return files[f"{algorithm}/{name}"]
    own = f"{algorithm_of(name)}/{name}"
    matches = [key for key in files if key in (name, own)] or [key for key in files if key.partition("/")[2] == name]
    if len(matches) > 1:
        raise NotFoundError(f"{text!r} is the name of several recipes: {', '.join(sorted(matches))}. Give one of these")
    if matches:
        return _check_algorithm(files[matches[0]], algorithm)
    raise NotFoundError(f"{_missing_message(text)} Shipped recipes: operant config list")


def _check_algorithm(source: Path, algorithm: str | None) -> Path:
    """Return `source`. Raises UsageError if it is a shipped recipe for another algorithm than `algorithm`
    (None: any).
    """
    if algorithm is None or source.parent.name == algorithm or source not in map(Path.resolve, _files().values()):
        return source
    other = recipe(algorithm, source.stem)
    advice = (
        f"use {name_of(other)}"
        if other is not None
        else f"for its defaults: operant train {source.stem} algo.name={algorithm}"
    )
    raise UsageError(
        f"{name_of(source)} is a recipe for {source.parent.name} and does not apply to algo.name={algorithm}: {advice}"
    )


def _missing_message(text: str) -> str:
    """Return the message about a configuration that does not exist, with the closest shipped names."""
    try:
        if Path(text).is_dir():
            return f"{text!r} is a folder, not a configuration file."
    except (OSError, ValueError):
        pass
    *folder, name = Path(text.removesuffix(".toml")).parts[-2:] or ("",)
    near = suggestions(f"{folder[0]}/{name}", shipped()) if folder else []
    near = near or suggestions(name, short_names()) or suggestions(name, shipped())
    return f"there is no configuration file {text!r}{did_you_mean(*near) or '.'}"


def _files() -> dict[str, Path]:
    """Return the paths of the shipped recipes by name. They lie next to the package in a checkout and inside it in a
    wheel.
    """
    beside, inside = _PACKAGE.parent / "configs", _PACKAGE / "configs"
    # Next to an installed package lie unrelated folders; only a checkout has the project file there.
    checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    folders = [inside, *([beside] if checkout else [])]  # later folders win
    return {f"{path.parent.name}/{path.stem}": path for folder in folders for path in folder.glob("*/*.toml")}
