"""Whose code a configuration would have imported: told from files alone, before anything is imported. Knows nothing of
what code does.

What a person types is theirs to run: a file of code on the command line, or one that is named in a configuration file
of their own. A run folder may come from anywhere, and so may what its config.toml names. Such code is imported without
a question only from a file inside the run folder, of a run that this user's index holds (see operant/runs/index.py),
where folder and files are this user's and run.json holds the file's hash.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from operant import runs
from operant.config.raw import RawConfig, quoted
from operant.errors import UntrustedError
from operant.host import names


def check(raw: RawConfig, trusted: bool = False) -> bool:
    """Raise UntrustedError where a configuration file would have code imported that is not known to be this user's,
    unless it is `trusted` all the same.

    Returns `trusted`.
    """
    if raw.source is None or trusted:
        return trusted
    found = [(runs.shown(path), _doubt(raw.source, path)) for path in _code(raw)]
    found += [(f"the module that {quoted(name)} imports", _doubt(raw.source, None)) for name in _modules(raw)]
    if lines := [f"{what}: {doubt}" for what, doubt in found if doubt is not None]:
        advice = "to run it all the same, once you have read it: add --trust"
        raise UntrustedError(
            "\n  ".join(
                [f"{runs.shown(raw.source)} names code that is not known to be yours, and was not run", *lines, advice]
            )
        )
    return trusted


def hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """What run.json keeps of the code in a run folder: SHA-256 by name, such as `source/my_env.py`."""
    return {name: _sha256(folder / name) for name in names}


def _code(raw: RawConfig) -> Iterator[Path]:
    """The files of code that the configuration file names, absolute; not those of the command line, nor any that is not
    there.
    """
    for key in (("env", "name"), ("algo", "name"), ("net", "kind")):
        table = raw.data.get(key[0])
        value = table.get(key[1]) if isinstance(table, dict) else None
        if not isinstance(value, str) or raw.typed(key):
            continue
        name = (names.file_of(value) or value) if key[0] == "env" else value.rpartition(":")[0]
        if name.endswith(".py") and os.path.isfile(path := raw.path(key, name)):
            yield path


def _modules(raw: RawConfig) -> Iterator[str]:
    """The environment's name, where the configuration file's is of the form gymnasium:MODULE:ID, whose module Gymnasium
    imports.
    """
    table = raw.data.get("env")
    value = table.get("name") if isinstance(table, dict) else None
    if (
        isinstance(value, str)
        and names.kind_of(value) not in (None, "file")
        and value.count(":") > 1
        and not raw.typed(("env", "name"))
    ):
        yield value


def _doubt(source: Path, path: Path | None) -> str | None:
    """Why the code in `path`, which the configuration file `source` names, may be a stranger's; None where it is this
    user's. Without a path: code elsewhere on this machine, which a stranger has chosen unless the run is this user's.
    """
    folder = _run_folder(source)
    if folder is None:
        return None if _own(source) else "the configuration belongs to another user"
    run, real = runs.load(folder), folder / "config.toml" if path is None else Path(os.path.realpath(path))
    if folder not in real.parents:
        return "it lies outside the run folder"
    name = real.relative_to(folder)
    if not all(map(_own, (folder / "run.json", real, *(folder / part for part in name.parents)))):
        return "the run belongs to another user"
    if run is None or not runs.recorded(run):
        return "the run is not in your own index of runs: it was made elsewhere, copied or moved"
    if path is None:
        return None
    kept = run.document.get("sources")
    if not isinstance(kept, dict) or str(name) not in kept:
        return "run.json holds no hash of it"
    return None if kept[str(name)] == _sha256(real) else "it was changed after its hash went into run.json"


def _run_folder(source: Path) -> Path | None:
    """The run folder that a configuration file lies in, as it is named or as it really lies, at any depth; None where
    it lies in none.
    """
    around = (*Path(os.path.abspath(source)).parents, *Path(os.path.realpath(source)).parents)
    found = next((folder for folder in around if os.path.lexists(folder / "run.json")), None)
    return found and Path(os.path.realpath(found))


def _own(path: Path) -> bool:
    try:
        return os.stat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _sha256(path: Path) -> str:
    """The hash of a file; empty where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
