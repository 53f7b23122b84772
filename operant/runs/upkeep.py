"""Maintenance of run folders: sizes, archives. Standard library only.

An archive is a gzipped tar of one folder. A restored run is not entered in this user's index: its code runs only after
--trust, as in any run of a stranger. Nothing is written before all headers of an archive have been checked.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from operant import runs
from operant.errors import BadFileError, BusyError, MachineError, UsageError
from operant.runs import ID, Run
from operant.text import size

ENDING: Final = ".tar.gz"
_LEFT_OUT = ("run.lock", "ctl")
_COMPILED = "__pycache__"  # compiled code, which could differ from its text
_CHUNK = 1 << 20
_MOST_BYTES, _MOST_FILES = 8 << 30, 100_000  # above, `restore` asks
_MOST_HEADER = 16 << 20  # bytes of one header
_LAST_TIME_S = 253_402_300_800  # the year 10000


def sizes(run: Run) -> dict[str, int]:
    """Return the disk usage of a run in bytes by "total", "checkpoints" and "history". Never raises; links are not
    followed.
    """
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
    """Pack a run into the archive file `path`, replacing one that exists. Raises BusyError while the run trains, and
    MachineError.
    """
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
    """Filter for `tarfile`: return the member without its owner; None for links, devices and files of a process, which
    are left out.
    """
    inside = PurePosixPath(member.name).parts[1:]
    if not (member.isfile() or member.isdir()) or _COMPILED in inside or (inside and inside[0] in _LEFT_OUT):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def restore(path: Path, root: Path, confirm: Callable[[str], None]) -> Run:
    """Unpack an archive into the folder `root`, under the run's id. Raises BadFileError for a file that is no archive
    of a run, UsageError if the id exists, and MachineError.

    `confirm` is called with a question if the archive is large; it raises to refuse.
    """
    temporary = root / f".restore-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with gzip.open(path) as packed, tarfile.open(fileobj=cast("Any", _Bounded(packed)), mode="r:") as archive:
            members = _checked(archive, path, root, confirm)
            id_ = members[0].name.partition("/")[0]
            if os.path.lexists(root / id_):
                raise UsageError(
                    f"the run {id_} exists already in {runs.display_path(root)}: choose another folder with --runs"
                )
            temporary.mkdir(parents=True, mode=0o700)
            for member in members:
                _unpack(archive, member, temporary)
        if runs.load(temporary / id_) is None:
            raise BadFileError(f"{runs.display_path(path)} is not an archive of a run: run.json is missing")
        runs.forget(root / id_)  # an entry may be left of a run that was there
        os.rename(temporary / id_, root / id_)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise _damaged(path, error) from None
        raise MachineError(
            f"cannot unpack {runs.display_path(path)} into {runs.display_path(root)} ({error.strerror or error})"
        ) from None
    # tarfile and zlib raise all of these for a damaged archive.
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise _damaged(path, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    run = runs.load(root / id_)
    assert run is not None
    return run


class _Bounded:
    """Wrapper of an unpacked archive that limits each read, so that no header can make `tarfile` fill the memory."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self.tell, self.seek = file.tell, file.seek

    def read(self, count: int) -> bytes:
        """Read `count` bytes of the archive. Raises tarfile.ReadError if `count` is above the limit of 16 MiB."""
        if not 0 <= count <= _MOST_HEADER:
            raise tarfile.ReadError("a header is too long")
        return self._file.read(count)


def _damaged(path: Path, error: Exception) -> BadFileError:
    """Return the BadFileError for an archive at `path` that could not be read because of `error`."""
    reason = "nested too deeply" if isinstance(error, RecursionError) else error
    return BadFileError(f"{runs.display_path(path)} is damaged or not an archive of a run ({reason})")


def _checked(archive: tarfile.TarFile, path: Path, root: Path, confirm: Callable[[str], None]) -> list[tarfile.TarInfo]:
    """Return the members of an archive, the files and folders of one run. `confirm` is called with a question if it is
    large. Raises BadFileError for any other member, and MachineError if the disk of `root` is too full.
    """
    members: list[tarfile.TarInfo] = []
    names: set[str] = set()
    total, asked = 0, False
    free, free_files = _room(root)
    for member in archive:
        id_ = members[0].name.partition("/")[0] if members else member.name.partition("/")[0]
        if (problem := _problem(member, id_)) is None and member.name in names:
            problem = f"it holds {ascii(member.name)[:80]} twice"
        if problem is not None:
            raise BadFileError(f"{runs.display_path(path)} is not an archive of a run: {problem}")
        names.add(member.name)
        total += member.size if member.isfile() else 0
        if _COMPILED not in PurePosixPath(member.name).parts:
            members.append(member)
        if total > free or len(names) > free_files:
            raise MachineError(
                f"cannot unpack {runs.display_path(path)}: it holds at least {size(total)} in {len(names):,} files, "
                f"and {runs.display_path(root)} has room for {size(free)}. Choose another folder with --runs"
            )
        if not asked and (total > _MOST_BYTES or len(names) > _MOST_FILES):
            asked = True
            confirm(
                f"{runs.display_path(path)} ({size(path.stat().st_size)}) holds at least {size(total)} in "
                f"{len(names):,} files: unpack it?"
            )
    if not members:
        raise BadFileError(f"{runs.display_path(path)} is not an archive of a run: run.json is missing")
    return members


def _problem(member: tarfile.TarInfo, id_: str) -> str | None:
    """Reason not to unpack a member of an archive into the folder of run `id_`; None if it is valid."""
    parts, name = member.name.split("/"), ascii(member.name)[:80]
    inside = parts[0] == id_ and ID.fullmatch(id_) and not {"", ".", ".."} & set(parts) and "\0" not in member.name
    if not inside or not (member.isfile() or member.isdir()) or member.issparse() or member.size < 0:
        return f"it holds {name}"
    if not 0 <= member.mtime < _LAST_TIME_S:  # false for NaN
        return f"the time of {name} is {member.mtime:g} s since 1970"
    return None


def _room(root: Path) -> tuple[int, float]:
    """Return the free bytes and free inodes of the filesystem of the folder `root`, which need not exist."""
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    free = os.statvfs(existing)
    return free.f_bavail * free.f_frsize, free.f_favail if free.f_files else math.inf


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Unpack a checked member of an archive into `folder`."""
    target = folder / member.name
    if member.isdir():
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None
    with (
        content,
        open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file,
    ):
        shutil.copyfileobj(content, file, _CHUNK)
    os.utime(target, (member.mtime, member.mtime))
