"""Finds recipes: configuration files, by a path or by the name of one that ships,
`configs/<algorithm>/<environment>.toml`.

Standard library only. Knows nothing of what is in the files, and of an algorithm and an environment nothing but their
names.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from operant.errors import NotFoundError, UsageError
from operant.host import names

_PACKAGE = Path(__file__).resolve().parents[1]

ENVIRONMENT = "cartpole"
"""The environment of `operant train`, when it is told nothing."""
_ALGORITHM = "ppo"
OUTSIDE = "gymnasium"
"""The recipe of outside environments that have none of their own."""
_ALGORITHMS: dict[str, str] = {}  # environments that are learnt by another algorithm unless one is named
_ALIASES = {"ppo": "ppo/cartpole"}


def algorithm_of(environment: str) -> str:
    """The algorithm that an environment is learnt by, unless a configuration names one. The environment's name may be a
    Gymnasium id.
    """
    plain = plain_name(environment)
    return next((algorithm for name, algorithm in _ALGORITHMS.items() if plain_name(name) == plain), _ALGORITHM)


def shipped() -> list[str]:
    """The names of the recipes that ship, `algorithm/environment`, sorted."""
    return sorted(_files())


def short_names() -> list[str]:
    """The other names that `find_source` knows: of an environment, for its algorithm's recipe, and `ppo` for the recipe
    that solves CartPole.
    """
    return sorted({name.partition("/")[2] for name in _files()} | set(_ALIASES))


def recipe(algorithm: str, environment: str) -> Path | None:
    """The recipe that ships for an algorithm and an environment, by its name or its Gymnasium id; None where there is
    none.

    An outside environment that has none takes that of its kind, or of all of them.
    """
    there = {f"{path.parent.name}/{plain_name(path.stem)}": path for path in _files().values()}
    found = there.get(f"{algorithm}/{plain_name(environment)}")
    if found is not None or (kind := names.kind_of(environment)) is None:
        return found
    return there.get(f"{algorithm}/{kind}") or there.get(f"{algorithm}/{OUTSIDE}")


def name_of(source: Path) -> str:
    """The name of a recipe that ships: `ppo/cartpole`."""
    return f"{source.parent.name}/{source.stem}"


def find_source(text: str, algorithm: str | None = None) -> Path:
    """The file of a path, or else of a recipe that ships, with or without `.toml`; absolute.

    A recipe is `algorithm/environment`, or an environment alone: then that of `algorithm`, by default the environment's
    own, else the only one there is. Raises NotFoundError with the names of recipes, and with all that match where a
    name fits several; UsageError for a recipe of another algorithm.
    """
    files = _files()
    try:
        if Path(text).is_file():
            return _of_algorithm(Path(text).resolve(), algorithm)
    except (OSError, ValueError):  # a name too long, a NUL in it, a folder that may not be read: not there for us
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
        return _of_algorithm(files[matches[0]], algorithm)
    raise NotFoundError(f"{_missing(text)} Recipes that ship: {', '.join(sorted(files)) or 'none'}")


def _of_algorithm(source: Path, algorithm: str | None) -> Path:
    """`source`. Raises UsageError where that is a recipe that ships and is for another algorithm than the one that is
    asked for.
    """
    if algorithm is None or source.parent.name == algorithm or source not in map(Path.resolve, _files().values()):
        return source
    own = recipe(algorithm, source.stem)
    way = (
        f"take {name_of(own)}"
        if own is not None
        else f"for its defaults: operant train {source.stem} algo.name={algorithm}"
    )
    raise UsageError(
        f"{name_of(source)} is a recipe for {source.parent.name}, whose values mean nothing to "
        f"algo.name={algorithm}: {way}"
    )


def plain_name(name: str) -> str:
    """A name without what people vary: `MountainCarContinuous-v0` and `mountaincar_continuous` are one."""
    return re.sub(r"[-_:/]", "", re.sub(r"-v\d+$", "", name).lower())


def _missing(text: str) -> str:
    """What is wrong with the name of a configuration that was not found, with the nearest one that ships."""
    try:
        if Path(text).is_dir():
            return f"{text!r} is a folder, not a configuration file."
    except (OSError, ValueError):
        pass
    names = [*shipped(), *short_names()]
    near = [
        match
        for part in (text.removesuffix(".toml"), Path(text).stem)
        for match in difflib.get_close_matches(part, names, n=1)
    ]
    return f"there is no configuration file {text!r}" + (f" - did you mean {near[0]!r}?" if near else ".")


def _files() -> dict[str, Path]:
    """The recipes that ship, by name: beside the package in a checkout, inside it in a wheel."""
    beside, inside = _PACKAGE.parent / "configs", _PACKAGE / "configs"
    # Beside an installed package lie other people's folders: only a checkout has the project file there.
    checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    folders = [inside, *([beside] if checkout else [])]  # a later one wins
    return {f"{path.parent.name}/{path.stem}": path for folder in folders for path in folder.glob("*/*.toml")}
