"""Looks after run folders: their sizes, an archive of one file and back. Standard library only; knows nothing of
training.

An archive is a gzipped tar of one folder. What comes out of one is not entered in this
user's index: code in it is run only when it is trusted, as with any run of a stranger.
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
    """Bytes on the disk of a run, in all and by the folders that grow. Never raises; links are not followed."""
    found = {"total": 0, "checkpoints": 0, "history": 0}
    for folder, _, files in os.walk(run.path):
        part = os.path.relpath(folder, run.path).split(os.sep)[0]
        for name in files:
            with contextlib.suppress(OSError):
                blocks = 512 * os.lstat(os.path.join(folder, name)).st_blocks
                found["total"] += blocks
                if part in found:
                    found[part] += blocks
    return found


def archive(run: Run, path: Path) -> None:
    """Pack a run into one file. Raises BusyError while it trains, MachineError where it cannot be written."""
    if runs.taken(run.path):
        raise BusyError(runs.busy(run.path))
    place = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with tarfile.open(place, "w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as packed:
            packed.add(run.path, arcname=run.path.name, filter=_packed)
        os.replace(place, path)
    except OSError as error:
        raise MachineError(
            f"{runs.shown(path)} cannot be written ({error.strerror or error}): choose another place with --out"
        ) from None
    finally:
        place.unlink(missing_ok=True)


def _packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What goes into an archive: regular files and folders, without what belongs to a process, and without who owned
    it.
    """
    inside = PurePosixPath(member.name).parts[1:]
    if not (member.isfile() or member.isdir()) or (inside and inside[0] in _LEFT_OUT):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def restore(path: Path, root: Path) -> Run:
    """Unpack an archive into a root, under its own id. Raises BadFileError for what is none, UsageError where the id is
    taken, MachineError.
    """
    place = root / f".restore-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        place.mkdir(parents=True, mode=0o700)
        id_ = _unpack(path, place)
        if os.path.lexists(root / id_):
            raise UsageError(f"there is a run {id_} in {runs.shown(root)} already: choose another folder with --runs")
        os.rename(place / id_, root / id_)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError) as error:
        raise BadFileError(f"{runs.shown(path)} is no archive of a run, or damaged ({error})") from None
    except OSError as error:
        raise MachineError(
            f"{runs.shown(path)} cannot be unpacked into {runs.shown(root)} ({error.strerror or error})"
        ) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    run = runs.load(root / id_)
    assert run is not None
    return run


def _unpack(path: Path, place: Path) -> str:
    """Unpack files and folders of one run, and nothing else, whatever an archive names; the run's id."""
    id_ = ""
    with tarfile.open(path, "r:gz") as packed:
        for member in packed:
            parts = PurePosixPath(member.name).parts
            id_ = id_ or (parts[0] if parts else "")
            sound = (
                parts
                and parts[0] == id_
                and ID.fullmatch(id_)
                and ".." not in parts
                and not member.name.startswith("/")
            )
            if not sound or not (member.isfile() or member.isdir()):
                raise BadFileError(f"{runs.shown(path)} is no archive of a run: it holds {ascii(member.name)[:80]}")
            target = place.joinpath(*parts)
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
    if not id_ or runs.load(place / id_) is None:
        raise BadFileError(f"{runs.shown(path)} is no archive of a run: it holds no run.json")
    return id_
