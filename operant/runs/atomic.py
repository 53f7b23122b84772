"""Atomic folders of files: complete or absent, whatever kills the process, fills the disk or flips a bit.

Standard library only, so that tests can kill it cheaply. Every call works relative to an open descriptor of the root
folder and never follows a symbolic link.

    NAME/                   committed: manifest.json has its checksum, every file its size and sha256
    .tmp-NAME-PID/          being written
    .replaced-NAME-PID/     the former NAME while it is replaced: valid; `sweep` restores it if the new one is missing
    .trash-NAME-PID/        being deleted

A root has one writer at a time (the lock of the run) and any number of readers. Order of calls: write, fsync, rename,
fsync the parent; a failed fsync is never repeated on the same file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from operant.errors import BadFileError

MANIFEST = "manifest.json"
MANIFEST_LIMIT_BYTES = 1 << 20
CHUNK_BYTES = 4 << 20
FILE_NAME = re.compile(r"[a-z0-9_.-]{1,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
HIDDEN_NAME = re.compile(r"\.(tmp|replaced|trash)-([a-z][a-z0-9-]{0,63})-([0-9]{1,10})")


class Hidden(NamedTuple):
    """Hidden entry of a root folder: unfinished work or a leftover of process `pid`. `kind` is tmp, replaced or trash;
    `target` is the name of the folder it belongs to.
    """

    name: str
    kind: str
    target: str
    pid: int


@contextmanager
def opened(path: str | Path, *, root: int | None = None) -> Iterator[int]:
    """Context manager that opens a folder by its path, or by its name in the open folder `root`, and yields the
    descriptor. Raises OSError if it is missing or a symbolic link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_root(path: Path) -> None:
    """Make the folder `path`, accessible to its owner alone, unless it exists. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    with opened(path.parent) as parent:
        os.fsync(parent)


def free_bytes(where: int | Path) -> int | None:
    """Return the free bytes of a folder's filesystem; None if unknown, as for some FUSE filesystems."""
    stats = os.fstatvfs(where) if isinstance(where, int) else os.statvfs(where)
    return stats.f_bavail * stats.f_frsize if stats.f_blocks else None


def check_room(root: int, need_bytes: int) -> None:
    """Raise OSError (ENOSPC) unless the filesystem of the open folder `root` has `need_bytes` and a tenth more free."""
    free = free_bytes(root)
    if free is not None and free < need_bytes * 1.1:
        need, free_mb = need_bytes * 1.1 / 1e6, free / 1e6
        raise OSError(errno.ENOSPC, f"not enough disk space: {need:.1f} MB needed, {free_mb:.1f} MB free")


# ------------------------------------------------------------------ writing


def write_file(folder: int, name: str, data: bytes | Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write and fsync a new file `name` in the open folder (a descriptor). Returns {bytes, sha256} of its content.

    Raises OSError if it exists, or if any call including close() fails (NFS and quotas report late).
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    digest, size_bytes = hashlib.sha256(), 0
    try:
        for piece in (data,) if isinstance(data, bytes) else data:
            view, start = memoryview(piece), 0
            while start < len(view):
                written = os.write(descriptor, view[start : start + CHUNK_BYTES])
                digest.update(view[start : start + written])
                start += written
            size_bytes += start
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        raise
    os.close(descriptor)
    return {"bytes": size_bytes, "sha256": digest.hexdigest()}


def commit(
    root: int,
    name: str,
    files: Mapping[str, bytes | Iterable[bytes | memoryview]],
    fields: Mapping[str, Any],
    *,
    read_back: bool = True,
) -> None:
    """Write a folder `name` with `files` (contents by name), and a manifest with `fields`, into the open folder `root`:
    complete, or not at all. `read_back`: verify the new folder before a former one of that name is deleted.

    A folder of the same name is replaced after the new one is committed and, with `read_back`, read back. Raises
    OSError or BadFileError (read back with other content); the former folder is then still there, under its name or as
    `.replaced-`.
    """
    temporary, former, in_place = f".tmp-{name}-{os.getpid()}", None, False
    try:
        os.mkdir(temporary, 0o700, dir_fd=root)
        with opened(temporary, root=root) as folder:
            records = {file_name: write_file(folder, file_name, data) for file_name, data in files.items()}
            write_file(folder, MANIFEST, encode_manifest({**fields, "files": records}))
            os.fsync(folder)
        former = _move_aside(root, name)
        os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=root)
        in_place = True
        os.fsync(root)
        if read_back:
            verify(root, name)
    except (OSError, BadFileError):
        # After a failed fsync the content of the disk is unknown, and a second fsync would succeed without it: the
        # new folder counts as lost. Repairs that fail here are left to the next sweep.
        with suppress(OSError):
            if in_place:
                discard(root, name)
            if former is not None:
                os.rename(former, name, src_dir_fd=root, dst_dir_fd=root)
        with suppress(OSError):
            _remove(root, temporary)
        raise
    if former is not None:
        with suppress(OSError):
            discard(root, former)


def _move_aside(root: int, name: str) -> str | None:
    """Rename a folder in the open folder `root` to `.replaced-NAME-PID` and return that name; None if there is no
    folder.
    """
    former = f".replaced-{name}-{os.getpid()}"
    try:
        os.rename(name, former, src_dir_fd=root, dst_dir_fd=root)
    except FileNotFoundError:
        return None
    return former


# ------------------------------------------------------------------ reading


def encode_manifest(fields: Mapping[str, Any]) -> bytes:
    """Encode a manifest with `fields` as sorted JSON, in which `checksum` is the SHA-256 of the text without it."""
    body = json.dumps(dict(fields), sort_keys=True, indent=1, allow_nan=False)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return (json.dumps({**fields, "checksum": checksum}, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def decode_manifest(raw: bytes) -> dict[str, Any]:
    """Parse a manifest and return its fields. Raises BadFileError unless `raw` is byte for byte what `encode_manifest`
    writes, with valid file names.
    """
    try:
        fields = json.loads(raw)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        fields.pop("checksum", None)
        genuine = encode_manifest(fields) == raw
    except (ValueError, RecursionError):
        raise BadFileError(f"{MANIFEST} is not valid JSON") from None
    if not genuine:
        raise BadFileError(f"{MANIFEST} does not match its checksum")
    files = fields.get("files")
    if not isinstance(files, dict) or not files:
        raise BadFileError(f"{MANIFEST} names no files")
    for name, record in files.items():
        if not FILE_NAME.fullmatch(name) or name in (".", "..", MANIFEST):
            raise BadFileError(f"{MANIFEST} names a file {ascii(name)[:80]}: the name is not allowed")
        if (
            not isinstance(record, dict)
            or not _is_count(record.get("bytes"))
            or not SHA256.fullmatch(str(record.get("sha256")))
        ):
            raise BadFileError(f"{MANIFEST} has no size and sha256 for {name}")
    return fields


def _is_count(value: object) -> bool:
    """Whether a value from JSON is an integer that is not negative."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_manifest(root: int, name: str) -> dict[str, Any]:
    """Read the manifest of the committed folder `name` in the open folder `root`, without its files. Raises
    BadFileError with the reason.
    """
    with _reported(name), opened(name, root=root) as folder:
        return _manifest(folder)


def read(root: int | None, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read and check a committed folder: return the fields of its manifest and the contents of all files by name.
    `name` is a path if `root` is None. Raises BadFileError with the reason.
    """
    with _reported(name), opened(name, root=root) as folder:
        fields = _manifest(folder)
        return fields, {file: b"".join(_checked(folder, file, record)) for file, record in fields["files"].items()}


def verify(root: int, name: str) -> dict[str, Any]:
    """Read every file of the committed folder `name` in the open folder `root`, compare sizes and hashes, and return
    the manifest. Raises BadFileError with the reason.
    """
    with _reported(name), opened(name, root=root) as folder:
        fields = _manifest(folder)
        for file, record in fields["files"].items():
            for _ in _checked(folder, file, record):
                pass
        return fields


def signature(root: int, name: str) -> tuple[Any, ...] | None:
    """Return a value that stays equal as long as no entry of the folder `name` in the open folder `root` changes:
    inodes, sizes and change times. None if the folder is unreadable.
    """
    try:
        with opened(name, root=root) as folder:
            entries = [
                (entry, os.stat(entry, dir_fd=folder, follow_symlinks=False)) for entry in sorted(os.listdir(folder))
            ]
    except OSError:
        return None
    return tuple((entry, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for entry, at in entries)


@contextmanager
def _reported(name: str) -> Iterator[None]:
    """Context manager that turns an OSError into a BadFileError about a folder that cannot be read."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise BadFileError("expected a folder without symbolic links") from None
        raise BadFileError(f"cannot be read: {error.strerror or error}") from None


def _manifest(folder: int) -> dict[str, Any]:
    """Read and check the manifest of an open folder. Raises BadFileError and OSError."""
    descriptor, size_bytes = _open_regular(folder, MANIFEST)
    try:
        if size_bytes > MANIFEST_LIMIT_BYTES:
            raise BadFileError(f"{MANIFEST} has {size_bytes} bytes; the limit is {MANIFEST_LIMIT_BYTES}")
        raw = b"".join(_pieces(descriptor, size_bytes))
    finally:
        os.close(descriptor)
    return decode_manifest(raw)


def _checked(folder: int, name: str, record: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the content of a file in pieces. Raises BadFileError, at the latest after the last piece, if size or hash
    differ from `record`, the file's entry in the manifest.
    """
    descriptor, size_bytes = _open_regular(folder, name)
    try:
        if size_bytes != record["bytes"]:
            raise BadFileError(f"{name} has {size_bytes} bytes instead of {record['bytes']}")
        digest = hashlib.sha256()
        for piece in _pieces(descriptor, size_bytes):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != record["sha256"]:
            raise BadFileError(f"{name} is damaged: its sha256 differs from the manifest's")
    finally:
        os.close(descriptor)


def _open_regular(folder: int, name: str) -> tuple[int, int]:
    """Open a regular file of the open folder for reading, without blocking even on a FIFO. Returns descriptor and size
    in bytes; raises BadFileError.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise BadFileError(f"{name} is missing") from None
    try:
        stats = os.fstat(descriptor)
        if not stat.S_ISREG(stats.st_mode):
            raise BadFileError(f"{name} is not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, stats.st_size


def _pieces(descriptor: int, size_bytes: int) -> Iterator[bytes]:
    """Yield at most `size_bytes` bytes of a file in pieces: one that keeps growing must not fill the memory."""
    while size_bytes > 0 and (piece := os.read(descriptor, min(CHUNK_BYTES, size_bytes))):
        size_bytes -= len(piece)
        yield piece


# ------------------------------------------------------------------ deleting


def discard(root: int, name: str) -> None:
    """Delete a folder or file in the open folder `root`: rename it to `.trash-NAME-PID`, then delete its files. Raises
    OSError.
    """
    hidden = HIDDEN_NAME.fullmatch(name)
    trash = f".trash-{hidden.group(2) if hidden else name}-{os.getpid()}"
    os.rename(name, trash, src_dir_fd=root, dst_dir_fd=root)
    _remove(root, trash)


def _remove(root: int, name: str) -> None:
    """Delete the entry `name` of the open folder `root`: a folder with its files, or a file; of a symbolic link only
    the link. Raises OSError if the folder holds files that were not written here, which stay.
    """
    stats = os.stat(name, dir_fd=root, follow_symlinks=False)
    if not stat.S_ISDIR(stats.st_mode):
        os.unlink(name, dir_fd=root)
        return
    with opened(name, root=root) as folder:
        for entry in os.listdir(folder):
            if FILE_NAME.fullmatch(entry):
                os.unlink(entry, dir_fd=folder)
    os.rmdir(name, dir_fd=root)


def list_names(root: int) -> list[str]:
    """Return the names of all entries of the open folder `root`, sorted."""
    return sorted(os.listdir(root))


def list_hidden(root: int) -> list[Hidden]:
    """Return the hidden entries of the open folder `root` that this module made: unfinished work and leftovers."""
    matches = [(name, HIDDEN_NAME.fullmatch(name)) for name in list_names(root)]
    return [Hidden(name, match.group(1), match.group(2), int(match.group(3))) for name, match in matches if match]


def sweep(root: int) -> None:
    """Delete leftovers in the open folder `root`: temporary folders and trash of dead processes and of failed commits
    of this one. Each `.replaced-` folder is deleted, or restored if its successor is not valid.

    Only for the one writer of the root, between its commits. Leftovers of another living process stay. Raises OSError
    if the root cannot be listed; entries that cannot be deleted stay until the next call.
    """
    for hidden in list_hidden(root):
        if hidden.pid != os.getpid() and _is_alive(hidden.pid):
            continue
        with suppress(OSError, BadFileError):
            if hidden.kind == "replaced":
                _settle(root, hidden)
            else:
                _remove(root, hidden.name)


def _settle(root: int, former: Hidden) -> None:
    """Delete a replaced folder if its successor is valid; otherwise rename it back to its former name. `root` is the
    open folder that holds both.
    """
    try:
        verify(root, former.target)
    except BadFileError:
        verify(root, former.name)  # BadFileError: both are damaged, and neither is touched
        with suppress(FileNotFoundError):
            discard(root, former.target)
        os.rename(former.name, former.target, src_dir_fd=root, dst_dir_fd=root)
    else:
        # The successor's rename may not be on the disk: its writer may have died before this call.
        os.fsync(root)
        discard(root, former.name)


def _is_alive(pid: int) -> bool:
    """Whether a process exists on this machine; True if that is unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
