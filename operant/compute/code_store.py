"""Persistent store of compiled code in a folder: write under a key, read back byte for byte or not at all. Standard
library only.

Code is loaded from here, so nothing is read that another user could have written: the folder and each file must belong
to this user, must not be symbolic links, and must not be writable by others. A file carries its key and a hash of its
payload; a truncated, damaged or misnamed file counts as missing. Writes are atomic. Above the size limit the least
recently used files are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LIMIT_BYTES = 256 << 20
"""Size limit of all files together: some thousand kernels."""

_MAGIC = b"operant code 1\n\0"
_KEY = re.compile(r"[0-9a-f]{64}")
_LARGEST_BYTES = 64 << 20
_ABANDONED_S = 3600.0


class UntrustedError(Exception):
    """Error for a file or folder that another user could have written. The message gives the reason, for a log."""


def folder() -> Path | None:
    """Path of the cache folder for compiled code, `$XDG_CACHE_HOME/operant/kernels` (default `~/.cache`); None if the
    cache is disabled by OPERANT_CACHE=0 or there is no home.
    """
    if os.environ.get("OPERANT_CACHE", "").lower() in ("0", "off", "no", "false"):
        return None
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):  # XDG specification: relative paths are ignored
        base = os.path.expanduser("~/.cache")
    return Path(base, "operant", "kernels") if os.path.isabs(base) else None


class CodeStore:
    """Folder of compiled code with one file per key of 64 hexadecimal digits. `limit_bytes` bounds the files' total
    size.
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path, self._limit_bytes = path, limit_bytes

    def read(self, key: str) -> bytes | None:
        """Read the compiled code stored under a key; None if there is no valid file. Raises OSError if the file cannot
        be read, UntrustedError if another user could have written it.
        """
        try:
            with self._open_folder() as root, _open(key, os.O_RDONLY, root) as descriptor:
                self._check(os.fstat(descriptor), key, stat.S_ISREG)
                with open(descriptor, "rb", closefd=False) as file:
                    raw = file.read(_LARGEST_BYTES + 1)
                with contextlib.suppress(OSError):  # read-only disk
                    os.utime(descriptor)
        except FileNotFoundError:
            return None
        head, payload = raw[: len(_header(key, b""))], raw[len(_header(key, b"")) :]
        return payload if head == _header(key, payload) else None

    def write(self, key: str, payload: bytes) -> None:
        """Store compiled code under a key, replacing an earlier file. Raises OSError if it cannot be written,
        UntrustedError if another user could write to the folder.
        """
        assert _KEY.fullmatch(key)
        self._make()
        with self._open_folder() as root:
            temporary = f".{key}.{os.getpid()}.{secrets.token_hex(4)}"
            try:
                with (
                    _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, root) as descriptor,
                    open(descriptor, "wb", closefd=False) as file,
                ):
                    file.write(_header(key, payload) + payload)
                os.rename(temporary, key, src_dir_fd=root, dst_dir_fd=root)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=root)
                raise
            self._evict(root)

    def measure(self) -> tuple[int, int]:
        """Count the files in the cache folder and their total bytes; (0, 0) if it cannot be read. Raises UntrustedError
        if another user could write to it.
        """
        try:
            with self._open_folder() as root:
                sizes = [status.st_size for name, status in _entries(root) if _KEY.fullmatch(name)]
        except OSError:
            return 0, 0
        return len(sizes), sum(sizes)

    def _make(self) -> None:
        """Create the cache folder, accessible to this user only, if it does not exist."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)

    @contextlib.contextmanager
    def _open_folder(self) -> Iterator[int]:
        """Context with a descriptor of the cache folder. Raises UntrustedError if another user could write to it."""
        with _open(self.path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            self._check(os.fstat(descriptor), ".", stat.S_ISDIR)
            yield descriptor

    def _check(self, status: os.stat_result, name: str, is_kind: Callable[[int], bool]) -> None:
        """Check that the file `name` (or the folder, ".") with this `status` is of the expected kind, owned by this
        user and not writable by others. Raises UntrustedError.
        """
        problem = None
        if not is_kind(status.st_mode):
            problem = "is of the wrong kind"
        elif status.st_uid != os.geteuid():
            problem = "belongs to another user"
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem = "can be written by others"
        if problem is not None:
            raise UntrustedError(f"{self.path if name == '.' else self.path / name} {problem}")

    def _evict(self, root: int) -> None:
        """Delete temporary files of dead writers and, if the size limit is exceeded, the least recently used files
        until three quarters of it are used. `root` is the folder's descriptor.
        """
        entries = sorted(_entries(root), key=lambda entry: entry[1].st_mtime)
        total = sum(status.st_size for _, status in entries)
        target_bytes = self._limit_bytes if total <= self._limit_bytes else self._limit_bytes * 3 // 4
        for name, status in entries:
            abandoned = name.startswith(".") and time.time() - status.st_mtime > _ABANDONED_S
            if abandoned or (total > target_bytes and _KEY.fullmatch(name)):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=root)
                total -= status.st_size


@contextlib.contextmanager
def _open(path: str | Path, flags: int, root: int | None = None) -> Iterator[int]:
    """Context with a descriptor of a file or folder, given by path or by name in the folder `root`. Symbolic links are
    not followed, and a FIFO does not block.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=root)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _header(key: str, payload: bytes) -> bytes:
    """Make the header of a stored file: format, key, and SHA-256 of the payload."""
    return _MAGIC + bytes.fromhex(key) + hashlib.sha256(payload).digest()


def _entries(root: int) -> list[tuple[str, os.stat_result]]:
    """Names and stat results of the entries of the folder with descriptor `root`, without those deleted meanwhile."""
    entries = []
    for name in os.listdir(root):
        with contextlib.suppress(FileNotFoundError):  # deleted by another process
            entries.append((name, os.stat(name, dir_fd=root, follow_symlinks=False)))
    return entries
