"""What TAB offers: runs, environments, configurations, by the names of files alone, so that it stays quick. Standard
library only; never raises.

Knows nothing of what is in the files, nor of the shell.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from operant import runs
from operant.config import recipes

_RESERVED = ("latest", "live")
_MOST = 500


def run_ids(ctx: Any, incomplete: str) -> list[str]:
    """Ids that begin so, the newest first, and `latest` and `live`; or else the ends of ids (`4f2a`) that do. `ctx`
    holds the options given before.
    """
    with contextlib.suppress(OSError):
        ids = runs.list_ids(*runs.reach(ctx.params.get("root")))
        begun = [id_ for id_ in (*ids, *_RESERVED) if id_.startswith(incomplete)]
        ends = (id_.rpartition("-")[2] for id_ in ids)
        return (begun or [end for end in ends if incomplete and end.startswith(incomplete)])[:_MOST]
    return []


def environments(incomplete: str) -> list[str]:
    """Environments that ship, and the user's own files."""
    folder = Path(__file__).resolve().parents[1] / "envs"
    files = (
        path.relative_to(folder) for path in folder.glob("**/*.py") if "\nENV = " in path.read_text(encoding="utf-8")
    )
    # As `operant.envs.names`, which would import numba.
    found = ("_".join(file.parent.parts if file.stem == "__init__" else file.with_suffix("").parts) for file in files)
    return [*sorted(name for name in found if name.startswith(incomplete)), *python_files(incomplete)]


def configurations(incomplete: str) -> list[str]:
    """Recipes that ship, by their short names once something is typed, and the user's own files."""
    names = [*recipes.shipped(), *(recipes.short_names() if incomplete else ())]
    return [*(name for name in names if name.startswith(incomplete)), *_files(incomplete, ".toml")]


def python_files(incomplete: str) -> list[str]:
    """Files that end in .py, and folders that may hold some."""
    return _files(incomplete, ".py")


def _files(incomplete: str, ending: str) -> list[str]:
    """Paths that begin so: folders with a slash behind them, and files with the ending."""
    folder, slash, begin = incomplete.rpartition("/")
    found: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        for path in sorted(Path(folder + slash or ".").iterdir())[: 10 * _MOST]:
            if path.name.startswith(begin) and (begin.startswith(".") or not path.name.startswith(".")):
                if path.is_dir():
                    found.append(f"{folder}{slash}{path.name}/")
                elif path.suffix == ending:
                    found.append(f"{folder}{slash}{path.name}")
    return found[:_MOST]
