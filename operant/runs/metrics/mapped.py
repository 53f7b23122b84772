"""A file of fixed size that appears complete and then takes 8-byte words and numbered records in place: by a memory
map, or by `pwrite`.

The storage under operant.runs.metrics. Standard library only. Knows nothing of what the bytes mean, except the first
two words of a record: `seq`, which is 2n+1 while record n is being stored and 2n+2 after, and its checksum, which the
caller has already put in.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NoReturn, TypeAlias

from operant.errors import MachineError, OperantError

# ext4, xfs, btrfs, tmpfs, overlay
_MAPPABLE: Final = frozenset((0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630))


class Mapped:
    """The file through a shared map. Closed by its last reference, so that another thread's store never meets an
    unmapped page.
    """

    backend: Final = "map"
    mark: Final = 1  # what `staged` shall hold in `seq`, besides 2n
    errors: Final = 0

    def __init__(self, descriptor: int, size: int) -> None:
        self.identity = _identity(descriptor)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self._map = mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        os.close(descriptor)  # the map keeps one of its own
        self._words = memoryview(self._map).cast("Q")  # one store a word; struct.pack_into would show a zero first
        if hasattr(mmap, "MADV_DONTFORK"):
            self._map.madvise(mmap.MADV_DONTFORK)

    def word(self, index: int, value: int) -> None:
        """Store the 8 bytes from byte 8 * `index`, at once."""
        self._words[index] = value

    def record(self, offset: int, staged: memoryview, n: int) -> None:
        """Store record `n`: mark the slot, copy, mark it complete."""
        words, slot = self._words, offset >> 3
        words[slot] = 2 * n + 1
        self._map[offset : offset + len(staged)] = staged
        words[slot] = 2 * n + 2

    def content(self) -> bytes:
        """The whole file."""
        return self._map[:]

    def forget(self) -> None:
        """In a forked child: the pages are not there (MADV_DONTFORK), and unmapping their addresses could hit what the
        child mapped since.
        """
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))


class Written:
    """The file by `pwrite`. A write that fails is counted and forgotten: the next one is as good, and
    training goes on.
    """

    backend: Final = "pwrite"
    mark: Final = 2

    def __init__(self, descriptor: int, size: int) -> None:
        self.identity, self.errors = _identity(descriptor), 0
        self._descriptor, self._size = descriptor, size

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)

    def _write(self, data: bytes | memoryview, offset: int) -> None:
        try:
            if os.pwrite(self._descriptor, data, offset) != len(data):
                self.errors += 1
        except OSError:
            self.errors += 1

    def word(self, index: int, value: int) -> None:
        """Store the 8 bytes from byte 8 * `index`."""
        self._write(struct.pack("<Q", value), 8 * index)

    def record(self, offset: int, staged: memoryview, n: int) -> None:
        """Store record `n` in one call: the mark "being stored" would cost a second one, and the checksum decides
        anyway.
        """
        self._write(staged, offset)

    def content(self) -> bytes:
        """The whole file."""
        return os.pread(self._descriptor, self._size, 0).ljust(self._size, b"\0")

    def forget(self) -> None:
        """In a forked child: nothing to keep; the child's descriptor closes with this object."""


class Gone:
    """Stands where the file was, once this process may not write it any more."""

    backend: Final = "none"
    mark: Final = 2
    errors: Final = 0
    identity: Final = (-1, -1)

    def __init__(self, why: str) -> None:
        self._why = why

    def word(self, index: int, value: int) -> NoReturn:
        """Raises OperantError."""
        raise OperantError(f"nothing can be written to the metrics file: {self._why}")

    def record(self, offset: int, staged: memoryview, n: int) -> NoReturn:
        """Raises OperantError."""
        self.word(0, n)

    def content(self) -> NoReturn:
        """Raises OperantError."""
        self.word(0, 0)

    def forget(self) -> None:
        """Nothing to keep."""


Store: TypeAlias = "Mapped | Written | Gone"


def create(path: Path, content: bytes, size: int, backend: Literal["auto", "map", "pwrite"]) -> Mapped | Written:
    """Build a file of `size` bytes, beginning with `content`, under a temporary name, then rename it to `path`; mode
    0600.

    All its room is allocated first: a map of a sparse file dies of SIGBUS on a full disk. "auto" maps where map and
    read are known to agree. Raises MachineError when the disk is full or the folder cannot be written; nothing is left
    behind then.
    """
    temporary, descriptor = path.with_name(f".{path.name}.tmp"), -1
    try:
        temporary.unlink(missing_ok=True)  # of a trainer that was killed here; the run's lock keeps a living one away
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _allocate(descriptor, size)
        _write_all(descriptor, content)
        kind = Mapped if backend == "map" or (backend == "auto" and _mappable(descriptor)) else Written
        store, descriptor = kind(descriptor, size), -1  # the descriptor is the store's now
        os.rename(temporary, path)
    except (OSError, ValueError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)
        raise MachineError(_explain(path, size, error)) from error
    return store


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _mappable(descriptor: int) -> bool:
    """Whether the file lies on a local filesystem known to keep maps and reads coherent; no where that cannot
    be told.
    """
    import ctypes

    answer = ctypes.create_string_buffer(512)  # struct statfs has 120 bytes; f_type is its first word
    try:
        if sys.platform != "linux" or ctypes.CDLL(None, use_errno=True).fstatfs(descriptor, answer) != 0:
            return False
    except (OSError, AttributeError):
        return False
    return ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF in _MAPPABLE


def _allocate(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        _write_all(descriptor, bytes(size))


def _write_all(descriptor: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], written)


def _explain(path: Path, size: int, error: OSError | ValueError) -> str:
    where, number = path.parent, getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no room for the metrics file: it needs {size / 2**20:.1f} MiB in {where} ({os.strerror(number)}); "
            "free some, or choose another --runs"
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"the folder {where} cannot be written ({os.strerror(number)}); change its permissions, or choose "
            "another --runs"
        )
    reason = os.strerror(number) if number else error
    return f"the metrics file cannot be made in {where} ({reason}); check the folder, or choose another --runs"
