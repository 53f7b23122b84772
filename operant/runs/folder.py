"""A run folder: its files, its document run.json, and the lock that shows whether its trainer is alive. Standard
library only.

Ids, listing and search are in operant/runs/index.py, states in operant/runs/states.py.

    runs/cartpole-ppo-4f2a/
      run.json       document: identity, request, and fields of the worker; replaced as a whole
      run.lock       byte 0 is locked (fcntl record lock) by the worker while it lives. It creates a deleted file
                     again; until then its pid and start time in run.json keep a second trainer out
      metrics.mm     metrics file
      metrics.json   meaning of its metrics
      exit.json      end of the worker, written by the waiter
      log.txt        all output
      config.toml, checkpoints/, ctl/, eval/, history/, source/
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import math
import os
import re
import select
import signal
import stat
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from operant import text
from operant.errors import BusyError, MachineError, OperantError
from operant.runs.metrics import Reader

ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Pattern of run ids; a folder with another name is not a run."""
_LIMIT_BYTES = 1 << 20
_SUFFIX = re.compile(r"-([0-9a-f]{4,8})")
# struct flock with a 64-bit off_t: {type, whence, start, len, pid} on Linux, {start, len, pid, type, whence} on macOS.
_FLOCK = {"linux": struct.Struct("@hhqqi4x"), "darwin": struct.Struct("@qqihh")}.get(sys.platform)
_EXITING = 0x4  # Linux's PF_EXITING, set before an ending process releases files and locks
_HELD: dict[tuple[int, int, int], Path] = {}
"""Locks that this process holds: (device, inode, pid) to path. POSIX drops a lock when its process closes ANY
descriptor of the file, so this is checked before `run.lock` is opened anywhere. The pid invalidates the copy in a
forked child, which holds no lock.
"""


class Run(NamedTuple):
    """Run folder: its id (the folder's name), its path, and run.json as it was read (untrusted; {} if unreadable)."""

    id: str
    path: Path
    document: dict[str, Any]

    @property
    def metrics_path(self) -> Path:
        """Path of the metrics file."""
        return self.path / "metrics.mm"

    @property
    def log_path(self) -> Path:
        """Path of the log: output of the worker process and its parent."""
        return self.path / "log.txt"

    @property
    def lock_path(self) -> Path:
        """Path of the file that the worker locks. Do not open it: use `acquire` and `probe`."""
        return self.path / "run.lock"

    @property
    def exit_path(self) -> Path:
        """Path of exit.json, which records how the worker ended."""
        return self.path / "exit.json"

    @property
    def config_path(self) -> Path:
        """Path of the run's resolved configuration, config.toml."""
        return self.path / "config.toml"

    @property
    def checkpoints_path(self) -> Path:
        """Path of the folder with the run's checkpoints."""
        return self.path / "checkpoints"

    @property
    def source_path(self) -> Path:
        """Path of the folder with copies of the user's own code files."""
        return self.path / "source"

    @property
    def short(self) -> str:
        """Short name of the run for commands: the hexadecimal suffix of a generated id, else the id."""
        suffix = _SUFFIX.search(self.id)
        return self.id[suffix.start() + 1 :] if suffix and suffix.end() == len(self.id) else self.id

    @property
    def uuid(self) -> bytes:
        """Identity of the run that its metrics file and checkpoints hold, 16 bytes; zeros if run.json has none."""
        value = text_of(self.document, "uuid") or ""
        return bytes.fromhex(value) if re.fullmatch(r"[0-9a-f]{32}", value) else bytes(16)


# ----------------------------------------------------------------------------------------------------------------------
# documents


def read_json(path: Path | str, limit_bytes: int = _LIMIT_BYTES) -> dict[str, Any]:
    """Read the JSON object in a file of at most `limit_bytes`; {} if it is absent, not a regular file, too large, or
    not an object. Never raises.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return {}
    try:
        stats = os.fstat(descriptor)
        if not stat.S_ISREG(stats.st_mode) or stats.st_size > limit_bytes:
            return {}
        document = json.loads(os.read(descriptor, limit_bytes + 1))
    except (
        OSError,
        ValueError,
        RecursionError,
    ):  # ValueError covers bad JSON and bad UTF-8; the depth is bounded by the recursion limit
        return {}
    finally:
        os.close(descriptor)
    return document if isinstance(document, dict) else {}


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file (mode 0600) atomically: after a kill or a power cut at any moment it is the old or the new
    one. Raises MachineError.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise MachineError(f"cannot write {text.safe(path)} ({error.strerror})") from None


def write_file(path: Path, content: bytes) -> None:
    """Replace a file's content atomically. Raises MachineError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(content)
        os.replace(new, path)
    except OSError as error:
        raise MachineError(f"{text.safe(path)} cannot be written ({error.strerror})") from None
    finally:
        new.unlink(missing_ok=True)


def update_document(path: Path, **fields: Any) -> dict[str, Any]:
    """Set `fields` of run.json in the run folder `path` and return the new document. Only for the process that owns the
    run. Raises MachineError.
    """
    document = read_json(path / "run.json") | fields
    write_json(path / "run.json", document)
    return document


def text_of(document: Mapping[str, Any], key: str) -> str | None:
    """Return the field `key` of an untrusted document as printable text; None if it is absent, empty or not a text."""
    value = document.get(key)
    return text.safe(value) or None if isinstance(value, str) else None


def integer_of(document: Mapping[str, Any], key: str) -> int | None:
    """Return the field `key` of an untrusted document if it is an integer, 0 to 2^63 - 1; otherwise None."""
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def number_of(document: Mapping[str, Any], key: str) -> float | None:
    """Return the field `key` of an untrusted document if it is a finite number; otherwise None."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    with contextlib.suppress(OverflowError):
        return float(value) if math.isfinite(float(value)) else None
    return None


# ----------------------------------------------------------------------------------------------------------------------
# processes


def host() -> str:
    """Return the host name of this machine."""
    return os.uname().nodename


@functools.cache
def boot_id() -> str:
    """Return the identifier of this boot of the kernel, equal in all containers of a machine; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int | None = None) -> int | None:
    """Return the start time of a process (None: this one) in clock ticks since the boot, which with the pid identifies
    it. None if there is no such process.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(process_fields(pid)[19])  # field 22
    return None


def process_fields(pid: int | None) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, of which the first is the state (None: of this process).
    Raises OSError without such a process.
    """
    # `self` is right even if /proc belongs to another pid namespace, where this pid names another process.
    raw = Path(f"/proc/{'self' if pid is None else format(pid, 'd')}/stat").read_bytes()
    return raw.rpartition(b")")[2].split()  # the name in brackets may hold any character


def identity() -> dict[str, Any]:
    """Return the identity of this process for run.json: host, pid, pid_start_ticks, boot_id."""
    return {"host": host(), "pid": os.getpid(), "pid_start_ticks": start_ticks(), "boot_id": boot_id()}


def worker(path: Path) -> int | None:
    """Return the pid of the worker that run.json of the folder `path` names, if that process is alive on this machine;
    else None.

    Any user can write a pid into a document: it prevents a second trainer, but is not proof enough to signal the
    process (see `holder` and `signal_worker`).
    """
    document = read_json(path / "run.json")
    pid, ticks = integer_of(document, "pid"), integer_of(document, "pid_start_ticks")
    if not pid or ticks is None or not boot_id() or text_of(document, "boot_id") != boot_id():
        return None
    if (pid, ticks) == (os.getpid(), start_ticks()):  # this process may have trained this run before
        return pid if any(place.parent == path and key[2] == pid for key, place in _HELD.items()) else None
    try:
        if integer_of(document, "folder_inode") not in (
            None,
            os.stat(path).st_ino,
        ):  # a copied folder names the worker of the original
            return None
        fields = process_fields(pid)
        lives = int(fields[19]) == ticks and fields[0] not in (b"Z", b"X") and not int(fields[6]) & _EXITING
    except (OSError, ValueError, IndexError):
        return None
    return pid if lives else None


def is_local(document: Mapping[str, Any]) -> bool:
    """Whether the worker named in a run's document ran on this machine, so that a free lock means that it has ended."""
    its_host, its_boot = text_of(document, "host"), text_of(document, "boot_id")
    return its_host is None or its_host == text.safe(host()) or (bool(its_boot) and its_boot == boot_id())


# ----------------------------------------------------------------------------------------------------------------------
# the lock


class Lock:
    """Lock of a run folder, held by this process from `acquire` until `release` or its end. Forked children do not hold
    it.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path, self._descriptor, self._key = path, descriptor, _key(os.fstat(descriptor))
        _HELD[self._key] = path

    def restore(self) -> bool:
        """Create the run's lock file again, locked, if it was deleted or replaced. Returns whether it was. The main
        loop calls this every few seconds.

        Raises BusyError if another process has locked the file in its place, MachineError if no lock can be created.
        """
        with contextlib.suppress(OSError):
            if _key(os.stat(self.path, follow_symlinks=False)) == self._key:
                return False
        if not self.path.parent.is_dir():
            raise MachineError(
                f"the run folder was deleted or moved: {text.safe(self.path.parent)} does not exist. Training ends, "
                "because nothing can be saved"
            )
        # A deleted file cannot be linked again: a new one replaces it. It appears locked, so that the run never looks
        # free.
        replaced = os.path.lexists(self.path)
        path = self.path if replaced else self.path.with_name(f".run.lock-{os.getpid()}.tmp")
        try:
            new = Lock(_locked(path), self.path)
        except BusyError:
            raise BusyError(
                f"{text.safe(self.path)} was replaced, and another process holds the new one: two trainers cannot "
                "share a folder"
            ) from None
        try:
            if not replaced:
                os.rename(path, self.path)
        except OSError as error:
            new.release()
            raise MachineError(
                f"{text.safe(self.path)} was deleted and cannot be created again ({error.strerror})"
            ) from None
        self.release()
        self._descriptor, self._key = new._descriptor, new._key
        return True

    def release(self) -> None:
        """Release the lock of the run folder; a second call does nothing."""
        _HELD.pop(self._key, None)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def acquire(path: Path) -> Lock:
    """Lock the run folder `path` for this process, its worker: once, before any large import. Raises BusyError, naming
    the holder, if a trainer is alive; MachineError if the folder is not writable or does not support locks.
    """
    lock_path = path / "run.lock"
    if worker(path) is not None:
        raise BusyError(busy_message(path))
    while True:
        lock = Lock(_locked(lock_path), lock_path)
        with contextlib.suppress(OSError):
            if _key(os.stat(lock_path, follow_symlinks=False)) == lock._key:
                return lock
        lock.release()  # deleted since it was opened


def _locked(lock_path: Path) -> int:
    """Open and lock a lock file, creating it if needed. Returns the descriptor. Raises BusyError if another process
    holds it, and MachineError.
    """
    path = lock_path.parent
    with contextlib.suppress(OSError):
        if _key(os.stat(lock_path, follow_symlinks=False)) in _HELD:
            raise BusyError(busy_message(path))
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MachineError(
            f"cannot open {text.safe(lock_path)} for writing ({error.strerror}): a trainer needs a writable run folder"
        ) from None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise BusyError(busy_message(path)) from None
        raise MachineError(
            f"cannot lock {text.safe(lock_path)} ({error.strerror}): use a filesystem with locks for runs"
        ) from None
    return descriptor


def probe(path: Path) -> bool | None:
    """Whether a trainer holds the run in the folder `path`; None if that is unknown. Changes nothing.

    Decided by the lock; if its file was deleted, by the worker named in run.json, which will create it again. For a run
    of another machine only True is reliable (see `is_local`).
    """
    try:
        return holder(path) is not None or (not os.path.lexists(path / "run.lock") and worker(path) is not None)
    except OSError:
        return None


def has_trainer(path: Path) -> bool:
    """Whether a trainer of the run in the folder `path` may be alive, so that no other may start: the run's lock is
    held, or the worker named in run.json lives.
    """
    return bool(probe(path)) or worker(path) is not None


def holder(path: Path) -> int | None:
    """Return the pid of the process that holds the lock of the run in the folder `path`, 0 if it is of another pid
    namespace; None if the lock is free. Raises OSError if unknown.
    """
    lock_path = os.path.join(path, "run.lock")
    try:
        if _key(os.stat(lock_path, follow_symlinks=False)) in _HELD:
            return os.getpid()
        descriptor = os.open(lock_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _FLOCK is None:
            raise OSError(errno.ENOSYS, "the layout of struct flock is unknown on this system")
        question = (fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = _flock_fields(
            _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(*_flock_fields(question, back=True))))
        )
    finally:
        os.close(descriptor)
    return None if answer[0] == fcntl.F_UNLCK else max(0, answer[4])


def _flock_fields(fields: tuple[int, ...], *, back: bool = False) -> tuple[int, ...]:
    """Reorder the fields of struct flock from this system's order to Linux's (type, whence, start, length, pid); with
    `back` from Linux's to this system's.
    """
    if sys.platform != "darwin":
        return fields
    return fields[2:] + fields[:2] if back else fields[3:] + fields[:3]


def _key(stats: os.stat_result) -> tuple[int, int, int]:
    """Return the key of a lock file in `_HELD`: device, inode, and the pid of this process."""
    return stats.st_dev, stats.st_ino, os.getpid()


def busy_message(path: Path) -> str:
    """Return the message for a run whose trainer is alive: its process, how to watch it, and how to stop it."""
    run = Run(path.name, path, read_json(path / "run.json"))
    facts = [f"pid {pid}"] if (pid := integer_of(run.document, "pid")) else []
    with contextlib.suppress(OperantError), Reader(run.metrics_path) as reader:
        if (record := reader.latest()) is not None:
            facts.append(f"step {text.count(record.step)}")
    inside, short = f" ({', '.join(facts)})" if facts else "", text.safe(run.short)
    return (
        f"{text.safe(run.id)} is still training{inside}.  watch: operant monitor {short}   stop: operant stop {short}"
    )


def signal_worker(run: Run, number: int) -> bool:
    """Send signal `number` to the worker of a run on this machine. Returns whether it was sent.

    The process must hold the lock of this run and match run.json by pid, start ticks and boot. It is signalled through
    a pidfd, so that a reused pid is never hit. Not possible for another machine or pid namespace.
    """
    document = read_json(run.path / "run.json")
    pid, ticks = integer_of(document, "pid"), integer_of(document, "pid_start_ticks")
    if (
        not pid
        or ticks is None
        or not boot_id()
        or text_of(document, "boot_id") != boot_id()
        or not hasattr(os, "pidfd_open")
    ):
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return False
    try:
        if start_ticks(pid) != ticks or holder(run.path) != pid or select.select([descriptor], [], [], 0)[0]:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
