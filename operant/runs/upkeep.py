"""Maintenance of run folders: sizes, archives. Standard library only; knows nothing of training.

An archive is a gzipped tar of one folder. A restored run is not entered in this user's index: its code runs only after
--trust, as in any run of a stranger.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Final

from operant import runs
from operant.errors import BadFileError, BusyError, MachineError, UsageError
from operant.runs import ID, Run

ENDING: Final = ".tar.gz"
_LEFT_OUT = ("run.lock", "ctl")
_CHUNK = 1 << 20


def sizes(run: Run) -> dict[str, int]:
    """Disk usage of a run in bytes: in total, and of the folders that grow. Never raises; links are not followed."""
    usage = {"total": 0, "checkpoints": 0, "history": 0}
    for folder, _, files in os.walk(run.path):
        part = os.path.relpath(folder, run.path).split(os.sep)[0]
        for name in files:
            with contextlib.suppress(OSError):
                blocks = 512 * os.lstat(os.path.join(folder, name)).st_blocks
                usage["total"] += blocks
                if part in usage:
                    usage[part] += blocks
    return usage


def archive(run: Run, path: Path) -> None:
    """Pack a run into one file. Raises BusyError while it trains, and MachineError."""
    if runs.has_trainer(run.path):
        raise BusyError(runs.busy_message(run.path))
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as packed:
            packed.add(run.path, arcname=run.path.name, filter=_packed)
        os.replace(temporary, path)
    except OSError as error:
        raise MachineError(
            f"cannot write {runs.display_path(path)} ({error.strerror or error}): choose another file with --out"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Filter of an archive: regular files and folders, without files of a process, without owners."""
    inside = PurePosixPath(member.name).parts[1:]
    if not (member.isfile() or member.isdir()) or (inside and inside[0] in _LEFT_OUT):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def restore(path: Path, root: Path) -> Run:
    """Unpack an archive into a root, under its own id. Raises BadFileError for any other file, UsageError if the id
    exists, and MachineError.
    """
    temporary = root / f".restore-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        temporary.mkdir(parents=True, mode=0o700)
        id_ = _unpack(path, temporary)
        if os.path.lexists(root / id_):
            raise UsageError(
                f"the run {id_} exists already in {runs.display_path(root)}: choose another folder with --runs"
            )
        os.rename(temporary / id_, root / id_)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError) as error:
        raise BadFileError(f"{runs.display_path(path)} is damaged or not an archive of a run ({error})") from None
    except OSError as error:
        raise MachineError(
            f"cannot unpack {runs.display_path(path)} into {runs.display_path(root)} ({error.strerror or error})"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    run = runs.load(root / id_)
    assert run is not None
    return run


def _unpack(path: Path, folder: Path) -> str:
    """Unpack the files and folders of one run, and nothing else that an archive names; returns the id."""
    id_ = ""
    with tarfile.open(path, "r:gz") as packed:
        for member in packed:
            parts = PurePosixPath(member.name).parts
            id_ = id_ or (parts[0] if parts else "")
            is_valid = (
                parts
                and parts[0] == id_
                and ID.fullmatch(id_)
                and ".." not in parts
                and not member.name.startswith("/")
            )
            if not is_valid or not (member.isfile() or member.isdir()):
                raise BadFileError(
                    f"{runs.display_path(path)} is not an archive of a run: it holds {ascii(member.name)[:80]}"
                )
            target = folder.joinpath(*parts)
            if member.isdir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
                continue
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = packed.extractfile(member)
            assert content is not None
            with (
                content,
                open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file,
            ):
                shutil.copyfileobj(content, file, _CHUNK)
            os.utime(target, (member.mtime, member.mtime))
    if not id_ or runs.load(folder / id_) is None:
        raise BadFileError(f"{runs.display_path(path)} is not an archive of a run: run.json is missing")
    return id_
