"""Storage of a metrics file: a file of fixed size that appears complete, then takes 8-byte words and numbered records
in place, by a memory map or by `pwrite`. Standard library only.

The first word of a record is `seq`: 2n+1 while record n is being stored, 2n+2 after. The second word contains the
checksum, which the caller has filled in.
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


class MappedFile:
    """Metrics file written through a shared memory map. It is unmapped with its last reference, so that no other thread
    stores to an unmapped page.
    """

    backend: Final = "map"
    mark: Final = 1  # added to 2n in the staged `seq`
    errors: Final = 0

    def __init__(self, descriptor: int, size: int) -> None:
        self.identity = _identity(descriptor)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self._map = mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        os.close(descriptor)  # the map has a duplicate
        self._words = memoryview(self._map).cast("Q")  # one store per word; struct.pack_into would store zero first
        if hasattr(mmap, "MADV_DONTFORK"):
            self._map.madvise(mmap.MADV_DONTFORK)

    def word(self, index: int, value: int) -> None:
        """Store the 8-byte `value` at byte 8 * `index` of the metrics file, atomically."""
        self._words[index] = value

    def record(self, offset: int, staged: memoryview, n: int) -> None:
        """Store record `n` at byte `offset`: mark the slot as incomplete, copy the bytes `staged`, mark it as
        complete.
        """
        words, slot = self._words, offset >> 3
        words[slot] = 2 * n + 1
        self._map[offset : offset + len(staged)] = staged
        words[slot] = 2 * n + 2

    def content(self) -> bytes:
        """Return the bytes of the whole metrics file."""
        return self._map[:]

    def forget(self) -> None:
        """Abandon the map in a forked child without unmapping: its pages are absent there (MADV_DONTFORK), and their
        addresses may belong to other maps.
        """
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))


class PwriteFile:
    """Metrics file written by `pwrite`. A failed write is counted and not repeated: the next one replaces it, and
    training continues.
    """

    backend: Final = "pwrite"
    mark: Final = 2

    def __init__(self, descriptor: int, size: int) -> None:
        self.identity, self.errors = _identity(descriptor), 0
        self._descriptor, self._size = descriptor, size

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)

    def _write(self, data: bytes | memoryview, offset: int) -> None:
        """Write bytes at `offset`; count a failure instead of raising."""
        try:
            if os.pwrite(self._descriptor, data, offset) != len(data):
                self.errors += 1
        except OSError:
            self.errors += 1

    def word(self, index: int, value: int) -> None:
        """Store the 8-byte `value` at byte 8 * `index` of the metrics file."""
        self._write(struct.pack("<Q", value), 8 * index)

    def record(self, offset: int, staged: memoryview, n: int) -> None:
        """Store the bytes `staged` of record `n` at byte `offset` by one call. The checksum shows an incomplete one."""
        self._write(staged, offset)

    def content(self) -> bytes:
        """Return the bytes of the whole metrics file."""
        return os.pread(self._descriptor, self._size, 0).ljust(self._size, b"\0")

    def forget(self) -> None:
        """Do nothing: in a forked child the file's descriptor closes with this object."""


class ClosedFile:
    """Placeholder for the metrics file after `close` and in a forked child: every write raises OperantError with the
    reason `why`.
    """

    backend: Final = "none"
    mark: Final = 2
    errors: Final = 0
    identity: Final = (-1, -1)

    def __init__(self, why: str) -> None:
        self._why = why

    def word(self, index: int, value: int) -> NoReturn:
        """Raise OperantError: the metrics file is closed."""
        raise OperantError(f"cannot write to the metrics file: {self._why}")

    def record(self, offset: int, staged: memoryview, n: int) -> NoReturn:
        """Raise OperantError: the metrics file is closed."""
        self.word(0, n)

    def content(self) -> NoReturn:
        """Raise OperantError: the metrics file is closed."""
        self.word(0, 0)

    def forget(self) -> None:
        """Do nothing: a closed metrics file has no map to abandon."""


Store: TypeAlias = "MappedFile | PwriteFile | ClosedFile"


def create(path: Path, content: bytes, size: int, backend: Literal["auto", "map", "pwrite"]) -> MappedFile | PwriteFile:
    """Create a metrics file of `size` bytes that begins with `content` and is otherwise zero, under a temporary name,
    then rename it to `path`. Mode 0600. `backend`: how to write it.

    All blocks are allocated first: a map of a sparse file dies of SIGBUS on a full disk. "auto" maps if map and read
    are known to agree. Raises MachineError if the disk is full or the folder is not writable; nothing is left over
    then.
    """
    temporary, descriptor = path.with_name(f".{path.name}.tmp"), -1
    try:
        temporary.unlink(missing_ok=True)  # left by a trainer killed here; the lock excludes a living one
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _allocate(descriptor, size)
        _write_all(descriptor, content)
        kind = MappedFile if backend == "map" or (backend == "auto" and _mappable(descriptor)) else PwriteFile
        store, descriptor = kind(descriptor, size), -1  # the store owns the descriptor now
        os.rename(temporary, path)
    except (OSError, ValueError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)
        raise MachineError(_explain(path, size, error)) from error
    return store


def _identity(descriptor: int) -> tuple[int, int]:
    """Return (device, inode) of an open file."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _mappable(descriptor: int) -> bool:
    """Whether the file is on a local filesystem on which maps and reads show the same bytes; False if unknown."""
    import ctypes

    answer = ctypes.create_string_buffer(512)  # struct statfs has 120 bytes; f_type is its first word
    try:
        if sys.platform != "linux" or ctypes.CDLL(None, use_errno=True).fstatfs(descriptor, answer) != 0:
            return False
    except (OSError, AttributeError):
        return False
    return ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF in _MAPPABLE


def _allocate(descriptor: int, size: int) -> None:
    """Allocate all blocks of a file of `size` bytes. Raises OSError."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        _write_all(descriptor, bytes(size))


def _write_all(descriptor: int, data: bytes) -> None:
    """Write `data` at the beginning of a file, completely. Raises OSError."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], written)


def _explain(path: Path, size: int, error: OSError | ValueError) -> str:
    """Return the message for a metrics file that could not be created: the reason and the remedy."""
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
