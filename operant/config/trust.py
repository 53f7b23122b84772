"""Trust in user code: decide from files alone, before any import, whether a configuration may import a Python file.

Code named on the command line or in a configuration file outside run folders is trusted, since the user wrote it. A run
folder may come from anywhere. Code named by its config.toml is trusted only if the file lies inside the run folder, the
run is in this user's index (see operant/runs/index.py), folder and files belong to this user, and run.json holds the
file's hash.
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
    """Return `trusted`. Raises UntrustedError if it is false and the configuration would import untrusted code."""
    if raw.source is None or trusted:
        return trusted
    doubts = [(runs.display_path(path), _doubt(raw.source, path)) for path in _code(raw)]
    doubts += [(f"the module that {quoted(name)} imports", _doubt(raw.source, None)) for name in _modules(raw)]
    if lines := [f"{name}: {doubt}" for name, doubt in doubts if doubt is not None]:
        advice = "to run it anyway, after reading it: add --trust"
        raise UntrustedError(
            "\n  ".join(
                [
                    f"{runs.display_path(raw.source)} names code that is not known to be yours, and was not run",
                    *lines,
                    advice,
                ]
            )
        )
    return trusted


def hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of code files in a run folder, by relative name such as `source/my_env.py`, for run.json."""
    return {name: _sha256(folder / name) for name in names}


def _code(raw: RawConfig) -> Iterator[Path]:
    """Absolute paths of existing code files that the configuration file, not the command line, names."""
    for key in (("env", "name"), ("algo", "name"), ("net", "kind")):
        table = raw.data.get(key[0])
        value = table.get(key[1]) if isinstance(table, dict) else None
        if not isinstance(value, str) or raw.typed(key):
            continue
        name = (names.file_of(value) or value) if key[0] == "env" else value.rpartition(":")[0]
        if name.endswith(".py") and os.path.isfile(path := raw.path(key, name)):
            yield path


def _modules(raw: RawConfig) -> Iterator[str]:
    """Environment names of the form gymnasium:MODULE:ID in the configuration file: Gymnasium imports the module."""
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
    """Reason not to trust the code in `path`, named by the configuration file `source`; None if it is this user's.

    Without a path: an installed module, which is trusted if the run is this user's.
    """
    folder = _run_folder(source)
    if folder is None:
        return None if _own(source) else "the configuration belongs to another user"
    run, real = runs.load(folder), folder / "config.toml" if path is None else Path(os.path.realpath(path))
    if folder not in real.parents:
        return "the file lies outside the run folder"
    name = real.relative_to(folder)
    if not all(map(_own, (folder / "run.json", real, *(folder / part for part in name.parents)))):
        return "the run belongs to another user"
    if run is None or not runs.is_indexed(run):
        return "the run is not in your own index of runs: it was made elsewhere, copied or moved"
    if path is None:
        return None
    hashes = run.document.get("sources")
    if not isinstance(hashes, dict) or str(name) not in hashes:
        return "run.json holds no hash of this file"
    return None if hashes[str(name)] == _sha256(real) else "the file was changed after its hash was recorded"


def _run_folder(source: Path) -> Path | None:
    """Run folder that contains a configuration file at any depth, by its given or real path; None if there is none."""
    parents = (*Path(os.path.abspath(source)).parents, *Path(os.path.realpath(source)).parents)
    run_folder = next((folder for folder in parents if os.path.lexists(folder / "run.json")), None)
    return run_folder and Path(os.path.realpath(run_folder))


def _own(path: Path) -> bool:
    try:
        return os.stat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _sha256(path: Path) -> str:
    """SHA-256 of a file; "" if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
