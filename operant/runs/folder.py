"""One run folder: its files, its document run.json, and the lock that says whether its trainer lives. Standard library
only.

Knows one folder; ids, listing and search are operant/runs/index.py, what a run's state is called is
operant/runs/states.py.
    runs/cartpole-ppo-4f2a/
      run.json     the document: identity, request, and what the worker adds; replaced as a whole run.lock     byte 0
      locked (fcntl record lock) by the worker as long as it lives; nothing else opens this file for good. The worker
      puts a
                   file that was deleted back; meanwhile its pid and start time in run.json keep a second trainer out
      metrics.mm   the metrics file        metrics.json   what its metrics mean       exit.json   how the worker ended,
      written by the waiter log.txt      all output              config.toml, checkpoints/, ctl/, eval/, history/,
      source/
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
"""What a run's id may be; a folder of another name is not a run."""
_LIMIT_BYTES = 1 << 20
_SUFFIX = re.compile(r"-([0-9a-f]{4,8})")
# struct flock, off_t being 64 bits: {type, whence, start, len, pid} on Linux, {start, len, pid, type, whence} on macOS.
_FLOCK = {"linux": struct.Struct("@hhqqi4x"), "darwin": struct.Struct("@qqihh")}.get(sys.platform)
_EXITING = 0x4  # PF_EXITING of Linux, set before an ending process gives its files and locks back
_HELD: dict[tuple[int, int, int], Path] = {}
"""(device, inode, pid) of the locks this process holds, and where they lie. POSIX drops a lock when its process closes
ANY descriptor of the file, so before `run.lock` is opened anywhere this is asked. The pid makes the copy of a forked
child, which holds no lock, worthless.
"""


class Run(NamedTuple):
    """A run folder as it was found: its id (the folder's name), where it lies, and its document (untrusted; {} where it
    could not be read).
    """

    id: str
    path: Path
    document: dict[str, Any]

    @property
    def metrics_path(self) -> Path:
        """The metrics file."""
        return self.path / "metrics.mm"

    @property
    def log_path(self) -> Path:
        """Everything the waiter and the worker printed."""
        return self.path / "log.txt"

    @property
    def lock_path(self) -> Path:
        """The file the worker locks. Do not open it: `acquire` and `probe` do."""
        return self.path / "run.lock"

    @property
    def exit_path(self) -> Path:
        """How the worker ended: exit.json."""
        return self.path / "exit.json"

    @property
    def config_path(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.toml"

    @property
    def checkpoints_path(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def source_path(self) -> Path:
        """Copies of the user's own environment and network files."""
        return self.path / "source"

    @property
    def short(self) -> str:
        """What a person types: the hexadecimal end of a made-up id, or else the whole."""
        found = _SUFFIX.search(self.id)
        return self.id[found.start() + 1 :] if found and found.end() == len(self.id) else self.id

    @property
    def uuid(self) -> bytes:
        """The 16 bytes that tie metrics file and checkpoints to this run; zeros where the document has none."""
        value = text_of(self.document, "uuid") or ""
        return bytes.fromhex(value) if re.fullmatch(r"[0-9a-f]{32}", value) else bytes(16)


# ----------------------------------------------------------------------------------------------------------------------
# documents


def read_json(path: Path | str, limit_bytes: int = _LIMIT_BYTES) -> dict[str, Any]:
    """The JSON object in a file, or {} for a file that is absent, no regular file, too large, or no JSON object. Never
    raises.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return {}
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit_bytes:
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


def write_json(path: Path, document: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace a JSON file as a whole, mode 0600: a kill at any moment, if `durable` a power cut too, leaves the old or
    the new one. MachineError if not.
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
        raise MachineError(f"{text.safe(path)} cannot be written ({error.strerror})") from None


def update_document(path: Path, *, durable: bool = True, **fields: Any) -> dict[str, Any]:
    """Set fields of a run's run.json (`path` is the run folder) and return the new document. For the one process that
    owns the run at the time.
    """
    document = read_json(path / "run.json") | fields
    write_json(path / "run.json", document, durable=durable)
    return document


def text_of(document: Mapping[str, Any], key: str) -> str | None:
    """A text out of an untrusted document, made printable; None where it is absent, empty, or something else."""
    value = document.get(key)
    return text.safe(value) or None if isinstance(value, str) else None


def integer_of(document: Mapping[str, Any], key: str) -> int | None:
    """A whole number of 0 to 2^63 out of an untrusted document, or None."""
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def number_of(document: Mapping[str, Any], key: str) -> float | None:
    """A finite number out of an untrusted document, or None."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    with contextlib.suppress(OverflowError):
        return float(value) if math.isfinite(float(value)) else None
    return None


# ----------------------------------------------------------------------------------------------------------------------
# who is running


def host() -> str:
    """The name of this machine."""
    return os.uname().nodename


@functools.cache
def boot_id() -> str:
    """What the kernel calls this boot; empty where it does not tell. The same in every container of a machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int | None = None) -> int | None:
    """When a process (None: this one) started, in ticks since the boot: with the pid it names the process for good.
    None where there is no such process.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_process(pid)[19])  # field 22
    return None


def _process(pid: int | None) -> list[bytes]:
    """The fields of /proc/PID/stat from the third on."""
    # `self` is right even where /proc is that of another pid namespace, in which this process's own pid is another
    # process's.
    raw = Path(f"/proc/{'self' if pid is None else format(pid, 'd')}/stat").read_bytes()
    return raw.rpartition(b")")[2].split()  # the name in the brackets may hold anything


def identity() -> dict[str, Any]:
    """The fields by which a worker says in run.json who it is: host, pid, pid_start_ticks, boot_id."""
    return {"host": host(), "pid": os.getpid(), "pid_start_ticks": start_ticks(), "boot_id": boot_id()}


def worker(path: Path) -> int | None:
    """The pid of the worker that the run.json of folder `path` names, where that process lives on this machine; None
    where it does not, or cannot be seen.

    Any user can write a pid into a document: reason enough to start no second trainer, not to signal the process
    (`holder` is).
    """
    document = read_json(path / "run.json")
    pid, ticks = integer_of(document, "pid"), integer_of(document, "pid_start_ticks")
    if not pid or ticks is None or not boot_id() or text_of(document, "boot_id") != boot_id():
        return None
    if (pid, ticks) == (os.getpid(), start_ticks()):  # which may have trained here and go on with something else
        return pid if any(place.parent == path and key[2] == pid for key, place in _HELD.items()) else None
    try:
        if integer_of(document, "folder_inode") not in (
            None,
            os.stat(path).st_ino,
        ):  # a copy of the folder: it names the worker of the original
            return None
        fields = _process(pid)
        lives = int(fields[19]) == ticks and fields[0] not in (b"Z", b"X") and not int(fields[6]) & _EXITING
    except (OSError, ValueError, IndexError):
        return None
    return pid if lives else None


def is_local(document: Mapping[str, Any]) -> bool:
    """Whether a run's worker ran on this machine, so that a free lock means that it is gone."""
    its_host, its_boot = text_of(document, "host"), text_of(document, "boot_id")
    return its_host is None or its_host == text.safe(host()) or (bool(its_boot) and its_boot == boot_id())


# ----------------------------------------------------------------------------------------------------------------------
# the lock


class Lock:
    """A run's lock, held by this process until `release` or its end, however it ends. Forked children do not
    hold it.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path, self._descriptor, self._key = path, descriptor, _key(os.fstat(descriptor))
        _HELD[self._key] = path

    def restore(self) -> bool:
        """Put `run.lock` back, locked, if it was deleted or replaced; True if that was needed. From the main loop,
        every few seconds.

        Raises BusyError where another process has locked what lies there now, MachineError where no lock can be put
        there.
        """
        with contextlib.suppress(OSError):
            if _key(os.stat(self.path, follow_symlinks=False)) == self._key:
                return False
        if not self.path.parent.is_dir():
            raise MachineError(
                f"the run's folder was deleted or moved: {text.safe(self.path.parent)} is not there. Training ends, as "
                "nothing can be saved"
            )
        # A deleted file cannot be linked again, so a new one takes its place. It appears already locked: there is no
        # moment at which the run looks free.
        replaced = os.path.lexists(self.path)
        place = self.path if replaced else self.path.with_name(f".run.lock-{os.getpid()}.tmp")
        try:
            new = Lock(_locked(place), self.path)
        except BusyError:
            raise BusyError(
                f"{text.safe(self.path)} was replaced, and another process holds the new one: two trainers cannot "
                "share a folder"
            ) from None
        try:
            if not replaced:
                os.rename(place, self.path)
        except OSError as error:
            new.release()
            raise MachineError(
                f"{text.safe(self.path)} was deleted and cannot be put back ({error.strerror})"
            ) from None
        self.release()
        self._descriptor, self._key = new._descriptor, new._key
        return True

    def release(self) -> None:
        """Let the run go; nothing happens the second time."""
        _HELD.pop(self._key, None)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def acquire(path: Path) -> Lock:
    """Take the lock of the run in folder `path`, as its worker: once, before anything large is imported.

    Raises BusyError, naming the holder, when a trainer lives; MachineError when the folder cannot be written or knows
    no locks.
    """
    lock_path = path / "run.lock"
    if worker(path) is not None:
        raise BusyError(busy(path))
    while True:
        lock = Lock(_locked(lock_path), lock_path)
        with contextlib.suppress(OSError):
            if _key(os.stat(lock_path, follow_symlinks=False)) == lock._key:
                return lock
        lock.release()  # deleted since it was opened


def _locked(lock_path: Path) -> int:
    """A descriptor of a lock file, made if need be, with the lock taken. Raises BusyError and MachineError."""
    path = lock_path.parent
    with contextlib.suppress(OSError):
        if _key(os.stat(lock_path, follow_symlinks=False)) in _HELD:
            raise BusyError(busy(path))
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MachineError(
            f"{text.safe(lock_path)} cannot be opened for writing ({error.strerror}): a trainer needs a folder "
            "of its own"
        ) from None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise BusyError(busy(path)) from None
        raise MachineError(
            f"{text.safe(lock_path)} cannot be locked ({error.strerror}): keep runs on a filesystem with locks"
        ) from None
    return descriptor


def probe(path: Path) -> bool | None:
    """Whether a trainer holds the run in folder `path`: True, False, or None where this cannot be told. Costs it
    nothing and writes nothing.

    The lock says it; where its file was deleted, the worker that run.json names, which will put it back.
    A run of another machine: False is worth nothing there (see `is_local`), True is.
    """
    try:
        return holder(path) is not None or (not os.path.lexists(path / "run.lock") and worker(path) is not None)
    except OSError:
        return None


def taken(path: Path) -> bool:
    """Whether a second trainer in folder `path` must not be: its lock is held, or the worker that its run.json names
    lives, whatever became of the lock.
    """
    return bool(probe(path)) or worker(path) is not None


def holder(path: Path) -> int | None:
    """The pid of the process that holds the lock of the run in folder `path`, 0 where it lies in another pid namespace;
    None where the lock is free.

    Raises OSError where that cannot be told.
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
            raise OSError(errno.ENOSYS, "the layout of struct flock is not known here")
        question = (fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = _turned(
            _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(*_turned(question, back=True))))
        )
    finally:
        os.close(descriptor)
    return None if answer[0] == fcntl.F_UNLCK else max(0, answer[4])


def _turned(fields: tuple[int, ...], *, back: bool = False) -> tuple[int, ...]:
    """The fields of struct flock in Linux's order: type, whence, start, length, pid."""
    if sys.platform != "darwin":
        return fields
    return fields[2:] + fields[:2] if back else fields[3:] + fields[:3]


def _key(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, os.getpid()


def busy(path: Path) -> str:
    """The sentence for a run whose trainer lives: who it is, and the two things to do about it."""
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
    """Send a signal to the worker of a run; whether it was sent.

    Only to a process that holds this run's lock and is, by pid, start ticks and boot, the one its run.json names;
    through a pidfd, so that a pid that is used again is never hit. Not to one of another machine or pid namespace.
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
