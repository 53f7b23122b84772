"""Shell completion of runs, environments and configurations from file names. Standard library only; never raises."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from operant import env_names, runs
from operant.config import recipes
from operant.runs import zoo

_RESERVED = ("latest", "live")
_MOST = 500


def run_ids(ctx: Any, incomplete: str) -> list[str]:
    """Complete a run's name: ids that begin with `incomplete`, newest first, `latest` and `live`; if none matches,
    suffixes of ids such as `4f2a`.

    `ctx` holds the options typed before.
    """
    with contextlib.suppress(OSError):
        ids = runs.list_ids(*runs.scope(ctx.params.get("root")))
        policies = [f"{zoo.PREFIX}{name}" for name in zoo.names()] if incomplete.startswith("z") else []
        matching = [id_ for id_ in (*ids, *_RESERVED, *policies) if id_.startswith(incomplete)]
        ends = (id_.rpartition("-")[2] for id_ in ids)
        return (matching or [end for end in ends if incomplete and end.startswith(incomplete)])[:_MOST]
    return []


def environments(incomplete: str) -> list[str]:
    """Complete an environment: shipped ones and Python files that begin with `incomplete`, then keys of the
    configuration.
    """
    names = env_names.modules()
    files_and_keys = [*python_files(incomplete), *(keys(incomplete) if incomplete else ())]
    return [*sorted(name for name in names if name.startswith(incomplete)), *files_and_keys]


def keys(incomplete: str) -> list[str]:
    """Complete an override: keys of the configuration that begin with `incomplete`, with an equals sign
    (`algo.learning_rate=`).
    """
    from operant.config import keys as all_keys

    with contextlib.suppress(OSError, SyntaxError):
        return [f"{key}=" for key in all_keys.dotted() if key.startswith(incomplete)]
    return []


def configurations(incomplete: str) -> list[str]:
    """Complete a configuration: shipped recipes and TOML files that begin with `incomplete`. Recipes' short names are
    offered only once a letter is typed.
    """
    names = [*recipes.shipped(), *(recipes.short_names() if incomplete else ())]
    return [*(name for name in names if name.startswith(incomplete)), *_files(incomplete, ".toml")]


def python_files(incomplete: str) -> list[str]:
    """Complete a path: Python files and folders that begin with `incomplete`."""
    return _files(incomplete, ".py")


def _files(incomplete: str, ending: str) -> list[str]:
    """Complete a path: folders, with a trailing slash, and files with the suffix `ending` that begin with
    `incomplete`.
    """
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
