"""Finds configuration files: a path, or the name of one that ships. Standard library only; knows nothing of what is in them."""

from __future__ import annotations

import difflib
from pathlib import Path

from operant.errors import NotFoundError

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped() -> list[str]:
    """The names of the configurations that ship, without `.toml`, sorted."""
    return sorted({path.stem for folder in _folders() for path in folder.glob("*.toml")})


def find_source(text: str) -> Path:
    """The file of a path, or else of the name of a shipped configuration, with or without `.toml`; absolute.

    Raises NotFoundError, with the shipped names, the nearest first.
    """
    try:
        if Path(text).is_file():
            return Path(text).resolve()
        if Path(text).is_dir():
            raise NotFoundError(f"{text!r} is a folder, not a configuration file")
    except (OSError, ValueError):  # a name too long, a NUL in it, a folder that may not be read: not there for us
        pass
    name = text.removesuffix(".toml")
    for folder in _folders():
        if name in {path.stem for path in folder.glob("*.toml")}:
            return folder / f"{name}.toml"
    near = difflib.get_close_matches(Path(name).name, shipped(), n=1)
    hint = f" - did you mean {near[0]!r}?" if near else "."
    raise NotFoundError(f"there is no configuration file {text!r}{hint} Shipped configurations: {', '.join(shipped()) or 'none'}")


def _folders() -> list[Path]:
    """Where shipped configurations lie: beside the package in a checkout, inside it in a wheel."""
    beside, inside = _PACKAGE.parent / "configs", _PACKAGE / "configs"
    # Beside an installed package lie other people's folders: only a checkout has the project file there.
    checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    return [folder for folder in (*([beside] if checkout else []), inside) if folder.is_dir()]
