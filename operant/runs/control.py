"""Requests to the trainer of a run by files: sending, receiving, answers. Standard library only.

    RUN/ctl/                            0700, made by the first process that needs it
      req-<boottime ns>-<uuid>.json     a request, at most 4 KiB; appears complete, by rename
      watch-<sender>.json               a request that its sender renews every second or two: one file per sender,
                                        replaced and never answered
      done/req-...json                  the request with {result, text}: accepted, then done or failed; or refused. The
                                        newest hundred are kept

    {"v": 1, "verb": "pause", "args": {}, "by": "alice@gpu03", "run_uuid": hex,
     "worker": start ticks of the addressed trainer or null, "boot_id", "expires_boottime_ns", "expires_realtime_ns"}

Files work between pid and network namespaces, outlive both processes, can be read afterwards, and need no listening
port. A request expires by CLOCK_BOOTTIME, which no change of the wall clock moves. It is for one worker: requests that
a dead worker has left never reach the next one.

Only the owner of a run may send requests: the folder and each file must be theirs. Anything else in the folder (links,
FIFOs, folders, large or unreadable files, deep JSON) is left in place, reported once in the log, and ignored.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from operant.errors import MachineError, NotFoundError
from operant.runs import folder as runfolder
from operant.runs import states
from operant.runs.folder import Run, integer_of, text_of
from operant.runs.metrics.layout import BOOTTIME, MODES
from operant.text import safe, user_name

VERBS: Final = ("stop", "pause", "unpause", "checkpoint", "watch")
RESULTS: Final = ("none", "accepted", "done", "failed", "refused")
"""Results of a request; the index is the code in the metrics file. `accepted` is followed by `done` or `failed`."""
_VERSION, _LIMIT_BYTES, _ANSWER_BYTES, _MOST_BRACKETS = 1, 4096, 65536, 16
_KEPT, _AWAITED_S, _MOST_NAMES = 100, 600.0, 1000
_SETTLE_S = 2.0  # a folder is listed again for this time after a change: file times are coarse
_LOOK_S, _PATIENCE_S = 0.02, 1.0
_REQUEST = re.compile(r"req-[0-9]{20}-[0-9a-f]{32}\.json")
_WATCH = re.compile(r"watch-[0-9a-f]{32}\.json")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")


class UnwritableError(MachineError):
    """Raised if a request cannot be written into the run folder, since the disk is full or read-only. The run belongs
    to the caller and its trainer is alive.
    """


class Ticket(NamedTuple):
    """Handle of a request that was sent to a trainer, with which the sender finds the answer."""

    name: str
    verb: str


class Answer(NamedTuple):
    """Answer of a trainer to a request: a result, one of RESULTS, and a printable message."""

    result: str
    text: str

    @property
    def final(self) -> bool:
        """Whether no further answer to the request follows: the result is not "accepted"."""
        return self.result != "accepted"


class Request(NamedTuple):
    """Valid request to a run's trainer that has not expired. `name` is its file."""

    name: str
    verb: str
    arguments: Mapping[str, Any]
    by: str  # "alice@gpu03", printable
    left_s: float  # until it expires
    document: Mapping[str, Any]


# ----------------------------------------------------------------------------------------------------------------------
# sending


def send(run: Run, verb: str, arguments: Mapping[str, Any] | None = None, *, expires_s: float = 60.0) -> Ticket:
    """Send the trainer of a run the request `verb`, one of VERBS, valid for `expires_s` seconds. Returns the ticket for
    `answer`. Only `watch` takes `arguments`, {"mode": of MODES, "size": pixels}; it is renewed by sending it again.

    Raises NotFoundError if no trainer is alive, MachineError if it cannot be asked from here (another machine, another
    user), UnwritableError if its folder is not writable.
    """
    if verb not in VERBS:
        raise ValueError(f"{verb!r} must be one of {', '.join(VERBS)}")
    document = runfolder.read_json(run.path / "run.json") or run.document
    _check_reach(run._replace(document=document), verb)
    content = {
        "v": _VERSION,
        "verb": verb,
        "args": dict(arguments or {}),
        "by": own_name(),
        "run_uuid": document.get("uuid"),
        "worker": document.get("pid_start_ticks"),
        "boot_id": runfolder.boot_id(),
        "expires_boottime_ns": time.clock_gettime_ns(BOOTTIME) + int(expires_s * 1e9),
        "expires_realtime_ns": time.time_ns() + int(expires_s * 1e9),
    }
    raw = json.dumps(content).encode()
    if len(raw) > _LIMIT_BYTES:
        raise ValueError(f"a request of {len(raw)} bytes exceeds the limit of {_LIMIT_BYTES}")
    name = (
        f"watch-{_sender()}.json"
        if verb == "watch"
        else f"req-{time.clock_gettime_ns(BOOTTIME):020d}-{os.urandom(16).hex()}.json"
    )
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(run.path / "ctl", 0o700)
        with _opened(run.path / "ctl") as folder:
            _write(folder, name, raw)
    except OSError as error:
        advice = (
            ""
            if verb == "stop"
            else f". Free disk space or make the folder writable; without it only `operant stop {safe(run.short)}` "
            "works, by a signal"
        )
        raise UnwritableError(
            f"cannot ask {safe(run.id)} to {verb}: {safe(run.path / 'ctl', 400)} is not writable ({error.strerror})"
            f"{advice}"
        ) from None
    return Ticket(name, verb)


def answer(run: Run, ticket: Ticket, timeout_s: float, *, final: bool = False) -> Answer | None:
    """Wait up to `timeout_s` seconds for the trainer's answer to the request of `ticket`; None without one. With
    `final`, the answer "accepted" is not enough.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        document = runfolder.read_json(run.path / "ctl" / "done" / ticket.name, _ANSWER_BYTES)
        result = document.get("result")
        if result in RESULTS[1:]:
            answered = Answer(result, text_of(document, "text") or "")
            if answered.final or not final:
                return answered
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        time.sleep(min(_LOOK_S, left_s))


def ask(run: Run, verb: str, timeout_s: float, waiting: Callable[[Answer], None] | None = None) -> Answer:
    """Send the trainer of a run the request `verb` and wait for its final answer. The result is "accepted" or "none" if
    the run ends or `timeout_s` passes first. `waiting` is called once with the answer so far if it takes longer than a
    second.

    An interrupt withdraws the request. Raises like `send`.
    """
    ticket = send(run, verb)
    deadline_s = time.monotonic() + timeout_s
    try:
        while (answered := answer(run, ticket, min(_PATIENCE_S, timeout_s), final=True)) is None:
            so_far = answer(run, ticket, 0.0) or Answer("none", "")
            document = runfolder.read_json(run.path / "run.json") or run.document
            if not states.state(run._replace(document=document)).live:
                return answer(run, ticket, 0.0) or so_far
            if waiting is not None:
                waiting(so_far)
                waiting = None
            if time.monotonic() >= deadline_s:
                return so_far
    except KeyboardInterrupt:
        withdraw(run, ticket)
        raise
    return answered


def withdraw(run: Run, ticket: Ticket) -> None:
    """Delete a request that the trainer has not read yet; nothing if it has."""
    with contextlib.suppress(OSError), _opened(run.path / "ctl") as folder:
        os.unlink(ticket.name, dir_fd=folder)


def _check_reach(run: Run, verb: str) -> None:
    """Check that the trainer of a run can be asked to `verb` from here. Raises NotFoundError and MachineError with the
    reason.
    """
    name, held, local = safe(run.id), runfolder.probe(run.path), runfolder.is_local(run.document)
    if not held and (state := states.state(run)).ended:
        raise NotFoundError(f"{name} is not training: {state.word}")
    if not local:
        raise MachineError(f"{name} trains on {text_of(run.document, 'host')}: ask it to {verb} on that machine")
    try:
        owner = os.stat(run.path).st_uid
    except OSError as error:
        raise NotFoundError(f"cannot read the folder of {name} ({error.strerror})") from None
    if owner != os.geteuid():
        raise MachineError(f"{name} belongs to {user_name(owner)}: only its owner can ask it to {verb}")
    if held is None:
        raise MachineError(f"cannot ask {name} to {verb}: the state of its trainer is unknown here")
    if not held:
        raise NotFoundError(f"cannot ask {name} to {verb} yet: its trainer has not started")


def own_name() -> str:
    """Return the sender that requests of this process name: user@host."""
    return f"{user_name(os.geteuid())}@{safe(runfolder.host(), 64)}"


def _sender() -> str:
    """Return an identifier of this process, unique among those alive in all pid namespaces."""
    namespace = 0
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{namespace & 0xFFFFFFFF:08x}{os.getpid():08x}{(runfolder.start_ticks() or 0) & 0xFFFFFFFFFFFFFFFF:016x}"


# ----------------------------------------------------------------------------------------------------------------------
# the folder


@contextlib.contextmanager
def _opened(path: Path | str, *, inside: int | None = None) -> Iterator[int]:
    """Context manager that opens a folder which only this user can write, by its path or its name in the open folder
    `inside`, and yields the descriptor. Raises OSError for any other folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
    try:
        stats = os.fstat(descriptor)
        if stats.st_uid != os.geteuid() or stats.st_mode & 0o022:
            raise PermissionError(0, "writable by others" if stats.st_mode & 0o022 else "owned by another user")
        yield descriptor
    finally:
        os.close(descriptor)


def _write(folder: int, name: str, raw: bytes) -> None:
    """Write a file in the open folder that appears complete, by rename. No fsync: no request is valid after a
    reboot.
    """
    temporary = f".{os.urandom(16).hex()}.tmp"
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        with open(descriptor, "wb") as file:
            file.write(raw)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


# ----------------------------------------------------------------------------------------------------------------------
# receiving


class Inbox:
    """Inbox of a run's trainer: receives and answers requests. `folder` is the run folder; `report` takes a line for
    the log. Never raises for the folder's content.

    For one thread at a time.
    """

    def __init__(self, folder: Path, run_uuid: bytes, *, report: Callable[[str], None]) -> None:
        self._path, self._run_uuid, self._report = Path(folder) / "ctl", run_uuid.hex(), report
        self._worker = runfolder.start_ticks()
        self._signature: tuple[int, ...] = ()
        self._changed_s = float("-inf")
        self._ignored: dict[str, tuple[int, ...]] = {}  # files that stay in the folder, by name: read once
        self._reported: set[str] = set()
        with contextlib.suppress(OSError):
            os.mkdir(self._path, 0o700)
        with contextlib.suppress(OSError), _opened(self._path) as ctl:
            for name in self._names(ctl):
                if _TEMPORARY.fullmatch(name):
                    os.unlink(name, dir_fd=ctl)

    def poll(self) -> list[Request]:
        """Return the new requests to the trainer, oldest first. Costs one `stat` if there are none. Invalid requests
        are refused or ignored here; each returned one but `watch` must be answered by `settle`.
        """
        try:
            stats = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return []
        signature, now_s = (stats.st_dev, stats.st_ino, stats.st_mtime_ns), time.monotonic()
        if signature != self._signature:
            self._signature, self._changed_s = signature, now_s
        elif now_s - self._changed_s > _SETTLE_S:
            return []
        try:
            with _opened(self._path) as ctl:
                names = self._names(ctl)
                self._ignored = {name: known for name, known in self._ignored.items() if name in names}
                requests = sorted(name for name in names if _REQUEST.fullmatch(name) or _WATCH.fullmatch(name))
                return [request for name in requests if (request := self._read_request(ctl, name)) is not None]
        except OSError as error:
            self._report_once("ctl", f"cannot read requests: {safe(self._path, 400)} ({error.strerror})")
            return []

    def settle(self, request: Request, result: str, text: str = "") -> None:
        """Answer a request to the trainer with `result`, one of RESULTS, and a message. A later call replaces the
        answer.
        """
        document = {
            **request.document,
            "result": result,
            "text": safe(text, 1000),
            "answered_realtime_ns": time.time_ns(),
        }
        try:
            with _opened(self._path) as ctl:
                with contextlib.suppress(FileExistsError):
                    os.mkdir("done", 0o700, dir_fd=ctl)
                with _opened("done", inside=ctl) as done:
                    _write(done, request.name, json.dumps(document).encode())
                    self._prune(done)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(request.name, dir_fd=ctl)
        except OSError as error:
            self._report_once("done", f"cannot answer requests: {safe(self._path / 'done', 400)} ({error.strerror})")

    @staticmethod
    def _names(folder: int) -> set[str]:
        """Return the names in an open folder, at most 1,000."""
        with os.scandir(folder) as entries:
            return {entry.name for entry in itertools.islice(entries, _MOST_NAMES)}

    def _read_request(self, ctl: int, name: str) -> Request | None:
        """Read the request in the file `name` of the open folder `ctl`; None if it was read before, is refused
        (answered here), or is not a request.
        """
        try:
            stats = os.stat(name, dir_fd=ctl, follow_symlinks=False)
            signature = (stats.st_ino, stats.st_size, stats.st_mtime_ns, stats.st_mode)
            if self._ignored.get(name) == signature:
                return None
            self._ignored[name] = signature  # also if it cannot be moved away
            request, problem = self._parse_request(name, _read(ctl, name, stats))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._report_once(name, f"ignored {safe(name)} in {safe(self._path, 400)}: {reason}")
            return None
        renewed = bool(_WATCH.fullmatch(name))
        if renewed:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=ctl)
        if not problem:
            return request
        if not renewed:
            self._report(f"refused to {safe(request.verb, 40)} for {request.by}: {problem}")
            self.settle(request, "refused", problem)
        return None

    def _parse_request(self, name: str, document: Mapping[str, Any]) -> tuple[Request, str]:
        """Parse the content of the request file `name`. Returns the request and the reason to refuse it, "" if it is
        valid. Raises ValueError for a document that is not a request.
        """
        verb, arguments = document.get("verb"), document.get("args")
        if not isinstance(verb, str) or not isinstance(arguments, dict):
            raise ValueError("not a request")
        left_s = _left_s(document)
        request = Request(name, verb, arguments, text_of(document, "by") or "somebody", left_s, document)
        if document.get("v") != _VERSION or verb not in VERBS or (verb == "watch") != bool(_WATCH.fullmatch(name)):
            return request, "unknown to this trainer"
        if document.get("run_uuid") != self._run_uuid:
            return request, "addressed to another run"
        if document.get("worker") not in (None, self._worker):
            return request, "addressed to an earlier trainer of this run"
        if left_s <= 0:
            return request, "expired"
        if verb == "watch" and not (arguments.get("mode") in MODES and integer_of(arguments, "size")):
            return request, "invalid arguments"
        # A name with an answer was taken before: the file has been restored.
        return request, "answered before" if os.path.lexists(self._path / "done" / name) else ""

    def _prune(self, done: int) -> None:
        """Delete old answers in the open folder `done`, except those whose sender may still wait."""
        names = sorted(name for name in os.listdir(done) if _REQUEST.fullmatch(name))
        now_ns = time.clock_gettime_ns(BOOTTIME)
        for name in names[:-_KEPT]:
            if not 0 <= now_ns - int(name[4:24]) < _AWAITED_S * 1e9:  # later than now: of an earlier boot
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=done)

    def _report_once(self, about: str, line: str) -> None:
        """Report a line for the log, unless one `about` the same subject was reported before."""
        if about not in self._reported and len(self._reported) < _MOST_NAMES:
            self._reported.add(about)
            self._report(line)


def _read(folder: int, name: str, stats: os.stat_result) -> dict[str, Any]:
    """Read the JSON object in a request file, which must belong to this user, without blocking. Raises ValueError with
    the reason, and OSError.
    """
    _check_file(stats)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        _check_file(os.fstat(descriptor))  # the file may have been replaced since
        raw = os.read(descriptor, _LIMIT_BYTES)
    finally:
        os.close(descriptor)
    if raw.count(b"[") + raw.count(b"{") > _MOST_BRACKETS:
        raise ValueError("nested too deeply")
    try:
        document = json.loads(raw)
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("not a request")
    return document


def _check_file(stats: os.stat_result) -> None:
    """Raise ValueError unless a request file is regular, belongs to this user, and is at most 4 KiB long."""
    if not stat.S_ISREG(stats.st_mode):
        raise ValueError("not a regular file")
    if stats.st_uid != os.geteuid():
        raise ValueError("owned by another user")
    if stats.st_size > _LIMIT_BYTES:
        raise ValueError(f"{stats.st_size} bytes exceed the limit of {_LIMIT_BYTES}")


def _left_s(document: Mapping[str, Any]) -> float:
    """Return the seconds until a request expires: by the boot clock if it was sent since this boot, otherwise by the
    wall clock.
    """
    boottime_ns, realtime_ns = integer_of(document, "expires_boottime_ns"), integer_of(document, "expires_realtime_ns")
    if boottime_ns is not None and runfolder.boot_id() and document.get("boot_id") == runfolder.boot_id():
        return (boottime_ns - time.clock_gettime_ns(BOOTTIME)) / 1e9
    return 0.0 if realtime_ns is None else (realtime_ns - time.time_ns()) / 1e9
