"""Names of the shipped environments, read from the text of their files. Standard library only: importing an environment
imports numba.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

FOLDERS = (str(Path(__file__).resolve().parent / "envs"),)
_EXPORT = re.compile(r"^(ENV(?:_([A-Z0-9_]+))?) = ", re.MULTILINE)
"""Line of a module that exports an environment: `ENV = ...`, or `ENV_TASK = ...` for one of several tasks."""


@functools.cache
def modules(folders: tuple[str, ...] = FOLDERS) -> dict[str, tuple[str, str]]:
    """Map the name of each environment in `folders`, the path of the package operant.envs, to its module and the name
    of the export in it: `minatar_breakout` to operant.envs.minatar.breakout and ENV, `dmc_walker_run` to
    operant.envs.dmc.walker and ENV_RUN.
    """
    found = {}
    for file, text in _texts(folders).items():
        parts = file.parent.parts if file.stem == "__init__" else file.with_suffix("").parts
        for export, task in _EXPORT.findall(text):
            words = (*parts, task.lower()) if task else parts
            found["_".join(words)] = ".".join(("operant.envs", *parts)), export
    return found


def may_be_id(name: str, folders: tuple[str, ...] = FOLDERS) -> bool:
    """Whether the file of an environment contains `name` in quotes, as it does its Gymnasium id."""
    return any(f'"{name}"' in text for text in _texts(folders).values())


@functools.cache
def _texts(folders: tuple[str, ...]) -> dict[Path, str]:
    """Text of each Python file in `folders`, by its path in the folder. The files are read once per process."""
    return {
        path.relative_to(folder): path.read_text(encoding="utf-8")
        for folder in folders
        for path in Path(folder).glob("**/*.py")
    }
