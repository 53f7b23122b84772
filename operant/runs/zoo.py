"""Pretrained policies that ship with the package, `zoo:NAME`: a run folder each, with one checkpoint that holds the
policy alone. They are only read. Standard library only.

benches/zoo.py writes them; run.json's field `zoo` says how each was trained and what it returns.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Final

from operant.errors import NotFoundError
from operant.runs.folder import Run, read_json
from operant.text import safe

PREFIX: Final = "zoo:"
FOLDER: Final = Path(__file__).resolve().parents[1] / "zoo"


def names() -> list[str]:
    """Return the names of the policies, sorted."""
    return sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def find(what: str) -> Run | None:
    """Return the run folder of the policy `zoo:NAME`; None for any other text. Raises NotFoundError, with the names,
    for an unknown NAME.
    """
    if not what.startswith(PREFIX):
        return None
    name, known = what.removeprefix(PREFIX), names()
    if name in known:
        return Run(name, FOLDER / name, read_json(FOLDER / name / "run.json"))
    near = difflib.get_close_matches(name[:100], known, n=1)
    suggestion = f" - did you mean {PREFIX}{near[0]}?" if near else "."
    raise NotFoundError(f"the zoo has no policy {safe(name, 80)!r}{suggestion} It has {', '.join(known) or 'none'}")


def exported(shipped: Run) -> Path:
    """Path of a policy's export, which NumPy runs (`operant export policy --to safetensors`). Policies that need torch
    or a compiler have none.
    """
    return shipped.path / "policy.safetensors"


def about(name: str) -> dict[str, Any]:
    """Return how a policy was trained and what it returns: env, algo, recipe, command, seed, step, return, ci95,
    episodes, version and commit; `extra` if the environment needs one.
    """
    found = read_json(FOLDER / name / "run.json").get("zoo")
    return found if isinstance(found, dict) else {}
