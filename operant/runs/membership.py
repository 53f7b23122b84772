"""Membership of runs in groups and sweeps. It is decided by the identity in run.json, never by a name. Standard library
only.

    group.json, sweep.json   "id": name of the folder, "uuid": identity of the group or sweep, "files": SHA-256 of the
                             user's files when it began
    run.json                 "member_of": {"uuid": that identity, "trial": number, "index": number within the trial}

A group or sweep from before 2026-11-24 has no uuid, nor have its runs. Each of its runs is recognised by its request.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from operant.runs.folder import Run, text_of
from operant.runs.index import display_path

KEY: Final = "member_of"
_LIMIT_BYTES: Final = 16 << 20
_FREE: Final = ("run.name=", "run.device=")  # overrides that do not change what is trained


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by path, "" for one that cannot be read. A group or sweep records them, since what it
    trains must not change.
    """
    return {str(path): _sha256(path) for path in paths}


def changed_files(document: Mapping[str, Any]) -> str | None:
    """Return the names of those files that have changed since their hashes were recorded in a document's "files",
    joined by commas; None if none has.
    """
    files = document.get("files")
    paths = (
        [Path(path) for path, sha256 in files.items() if _sha256(Path(path)) != sha256]
        if isinstance(files, dict)
        else []
    )
    return ", ".join(map(display_path, paths)) or None


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file; "" if it cannot be read or is larger than 16 MiB."""
    with contextlib.suppress(OSError, ValueError):
        if not path.is_file() or path.stat().st_size > _LIMIT_BYTES:
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def new_uuid() -> str:
    """Return a random identity for a new group or sweep."""
    return os.urandom(16).hex()


def uuid_in(document: Mapping[str, Any], path: Path) -> str:
    """Return the identity of a group or sweep from its document, read from `path`; "" for an early version, and for a
    copy of a folder that still exists.
    """
    id_, folder = text_of(document, "id") or path.parent.name, path.parent
    is_copy = id_ != folder.name and os.path.lexists(folder.parent / id_ / path.name)
    return "" if is_copy else text_of(document, "uuid") or ""


def identity(uuid: str, trial: int, index: int = 0) -> dict[str, Any]:
    """Return the field of run.json that makes a new run a member of a group or sweep, as run `index` of a trial; {} if
    `uuid` is "".
    """
    return {KEY: {"uuid": uuid, "trial": trial, "index": index}} if uuid else {}


def belongs_to(run: Run, uuid: str) -> bool:
    """Whether a run was made for the group or sweep with identity `uuid`. A copied or renamed run folder was not."""
    own = run.document.get(KEY)
    return bool(uuid) and isinstance(own, dict) and own.get("uuid") == uuid and run.document.get("id") == run.id


def is_member(run: Run, uuid: str, trial: int, index: int, request: Mapping[str, Any]) -> bool:
    """Whether a run was made for run `index` of a trial of the group or sweep `uuid`. With `uuid` "" (early versions)
    the run's request decides.
    """
    if uuid:
        return belongs_to(run, uuid) and {KEY: run.document[KEY]} == identity(uuid, trial, index)
    recorded = request_of(run)
    return (
        KEY not in run.document
        and recorded.get("config") == request.get("config")
        and _trained_values(recorded) == _trained_values(request)
    )


def is_unchanged(run: Run, request: Mapping[str, Any]) -> bool:
    """Whether a run has the values of `request` and was not resumed with others."""
    recorded = request_of(run)
    return not recorded.get("resume_overrides") and _trained_values(recorded) == _trained_values(request)


def request_of(run: Run) -> dict[str, Any]:
    """Return the request in a run's run.json; {} if it is damaged."""
    request = run.document.get("request")
    return request if isinstance(request, dict) else {}


def _trained_values(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of a request that decide what is trained. The configuration file does not count: the folder of
    a sweep may move.
    """
    words: Any = request.get("overrides")
    overrides = [word for word in words if not str(word).startswith(_FREE)] if isinstance(words, list) else words
    return request.get("environment_file"), overrides
