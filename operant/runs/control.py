"""Requests to a run's trainer, by files: how they are sent, read and answered. Standard library only. Knows nothing of
what a trainer does about one.

    RUN/ctl/                            0700, made by the first process that needs it
      req-<boottime ns>-<uuid>.json     a request, at most 4 KiB; it appears complete, by rename watch-<sender>.json
      a request that its sender renews every second or two: one file a sender, replaced and never answered
      done/req-...json                  the request with {result, text}: accepted first, then done or failed; or
      refused. The newest hundred are kept

    {"v": 1, "verb": "pause", "args": {}, "by": "alice@gpu03", "run_uuid": hex, "worker": start ticks of the trainer
    that is meant, or null,
     "boot_id", "expires_boottime_ns", "expires_realtime_ns"}

Files work between pid and network namespaces, outlive either side, can be read afterwards, and there is nothing that
listens. A request ends with its time by CLOCK_BOOTTIME, which no change of the wall clock moves; it is for one worker,
so that what a dead one left undone never meets the next.

Only the owner of a run may ask: the folder and each file must be theirs. Whatever else lies in the folder (links,
FIFOs, folders, large or unreadable files, deep JSON) is left where it is, with one line in the log, and is not looked
at again.
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
from operant.text import safe, user_name

VERBS: Final = ("stop", "pause", "unpause", "checkpoint", "watch")
RESULTS: Final = ("none", "accepted", "done", "failed", "refused")
"""What becomes of a request; the index is the number in the metrics file. After `accepted` comes `done` or `failed`."""
MODES: Final = ("greedy", "sampled")
_VERSION, _LIMIT_BYTES, _ANSWER_BYTES, _MOST_BRACKETS = 1, 4096, 65536, 16
_KEPT, _MOST_NAMES = 100, 1000
_SETTLE_S = 2.0  # how long a folder is listed again after a change: the clocks of file times are coarse
_LOOK_S, _PATIENCE_S = 0.02, 1.0
_REQUEST = re.compile(r"req-[0-9]{20}-[0-9a-f]{32}\.json")
_WATCH = re.compile(r"watch-[0-9a-f]{32}\.json")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class UnwritableError(MachineError):
    """A request could not be written into the run's folder: a full or read-only disk. The run is the caller's own, and
    lives.
    """


class Ticket(NamedTuple):
    """A request that was sent: what to ask for its answer with."""

    name: str
    verb: str


class Answer(NamedTuple):
    """What the trainer says to a request: one of RESULTS, and a sentence (printable)."""

    result: str
    text: str

    @property
    def final(self) -> bool:
        """Nothing more will be said."""
        return self.result != "accepted"


class Request(NamedTuple):
    """A request as its trainer takes it: sound, addressed to it, in time."""

    name: str
    verb: str
    arguments: Mapping[str, Any]
    by: str  # "alice@gpu03", printable
    left_s: float  # until it expires
    document: Mapping[str, Any]


# ----------------------------------------------------------------------------------------------------------------------
# sending


def send(run: Run, verb: str, arguments: Mapping[str, Any] | None = None, *, expires_s: float = 60.0) -> Ticket:
    """Ask the trainer of a run for one of VERBS, within `expires_s`. `watch` takes {"mode": of MODES, "size": pixels},
    and is renewed by sending it again.

    Raises NotFoundError where nothing trains the run, MachineError where it cannot be asked from here (another machine,
    another user), UnwritableError where its folder cannot be written.
    """
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is none of {', '.join(VERBS)}")
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
        "expires_boottime_ns": time.clock_gettime_ns(_BOOTTIME) + int(expires_s * 1e9),
        "expires_realtime_ns": time.time_ns() + int(expires_s * 1e9),
    }
    raw = json.dumps(content).encode()
    if len(raw) > _LIMIT_BYTES:
        raise ValueError(f"a request has at most {_LIMIT_BYTES} bytes, this one {len(raw)}")
    name = (
        f"watch-{_sender()}.json"
        if verb == "watch"
        else f"req-{time.clock_gettime_ns(_BOOTTIME):020d}-{os.urandom(16).hex()}.json"
    )
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(run.path / "ctl", 0o700)
        with _opened(run.path / "ctl") as folder:
            _write(folder, name, raw)
    except OSError as error:
        way_out = (
            ""
            if verb == "stop"
            else f". Make room there or make it writable; only `operant stop {safe(run.short)}` works without, by "
            "a signal"
        )
        raise UnwritableError(
            f"{safe(run.id)} cannot be asked to {verb}: {safe(run.path / 'ctl', 400)} ({error.strerror}){way_out}"
        ) from None
    return Ticket(name, verb)


def answer(run: Run, ticket: Ticket, timeout_s: float, *, final: bool = False) -> Answer | None:
    """What the trainer has answered, waiting up to `timeout_s` for it; None where it has said nothing. With `final`,
    `accepted` is not yet an answer.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        document = runfolder.read_json(run.path / "ctl" / "done" / ticket.name, _ANSWER_BYTES)
        result = document.get("result")
        if result in RESULTS[1:]:
            found = Answer(result, text_of(document, "text") or "")
            if found.final or not final:
                return found
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        time.sleep(min(_LOOK_S, left_s))


def ask(run: Run, verb: str, timeout_s: float, waiting: Callable[[Answer], None] | None = None) -> Answer:
    """Send a request and wait for what comes of it; where the run ends or `timeout_s` passes before that, the answer is
    `accepted`, or `none`.

    `waiting` is called once, with the answer so far, when it takes longer than a second. An interrupt withdraws the
    request. Raises what `send` raises.
    """
    ticket = send(run, verb)
    deadline_s = time.monotonic() + timeout_s
    try:
        while (found := answer(run, ticket, min(_PATIENCE_S, timeout_s), final=True)) is None:
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
    return found


def withdraw(run: Run, ticket: Ticket) -> None:
    """Take back a request that has not been taken yet."""
    with contextlib.suppress(OSError), _opened(run.path / "ctl") as folder:
        os.unlink(ticket.name, dir_fd=folder)


def _check_reach(run: Run, verb: str) -> None:
    name, held, local = safe(run.id), runfolder.probe(run.path), runfolder.is_local(run.document)
    if not held and (state := states.state(run)).ended:
        raise NotFoundError(f"{name} is not training: {state.word}")
    if not local:
        raise MachineError(f"{name} trains on {text_of(run.document, 'host')}: it can only be asked to {verb} there")
    try:
        owner = os.stat(run.path).st_uid
    except OSError as error:
        raise NotFoundError(f"{name} cannot be reached ({error.strerror})") from None
    if owner != os.geteuid():
        raise MachineError(f"{name} belongs to {user_name(owner)}: only its owner can ask it to {verb}")
    if held is None:
        raise MachineError(f"{name} cannot be asked to {verb}: whether its trainer lives cannot be told here")
    if not held:
        raise NotFoundError(f"{name} cannot be asked to {verb} yet: its trainer has not begun")


def own_name() -> str:
    """Who asks: user@host."""
    return f"{user_name(os.geteuid())}@{safe(runfolder.host(), 64)}"


def _sender() -> str:
    """A name for this process that no other has at the same time, in this pid namespace or another."""
    namespace = 0
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{namespace & 0xFFFFFFFF:08x}{os.getpid():08x}{(runfolder.start_ticks() or 0) & 0xFFFFFFFFFFFFFFFF:016x}"


# ----------------------------------------------------------------------------------------------------------------------
# the folder


@contextlib.contextmanager
def _opened(path: Path | str, *, inside: int | None = None) -> Iterator[int]:
    """A descriptor of a folder that is only this user's to write. OSError otherwise."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(0, "others may write there" if found.st_mode & 0o022 else "it is another user's")
        yield descriptor
    finally:
        os.close(descriptor)


def _write(folder: int, name: str, raw: bytes) -> None:
    """Put a file into a folder, complete from its first moment. Without fsync: a request is not worth waiting for a
    disk, and none outlives a boot.
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
    """The requests to one run, for its trainer alone. `folder` is the run's; `report` takes a line for the log. Nothing
    in the folder makes it raise.

    Not for two threads at once.
    """

    def __init__(self, folder: Path, run_uuid: bytes, *, report: Callable[[str], None]) -> None:
        self._path, self._run_uuid, self._report = Path(folder) / "ctl", run_uuid.hex(), report
        self._worker = runfolder.start_ticks()
        self._signature: tuple[int, ...] = ()
        self._changed_s = float("-inf")
        self._ignored: dict[str, tuple[int, ...]] = {}  # what stays in the folder, by name: looked at once
        self._told: set[str] = set()
        with contextlib.suppress(OSError):
            os.mkdir(self._path, 0o700)
        with contextlib.suppress(OSError), _opened(self._path) as ctl:
            for name in self._names(ctl):
                if _TEMPORARY.fullmatch(name):
                    os.unlink(name, dir_fd=ctl)

    def poll(self) -> list[Request]:
        """What has been asked since the last time, oldest first. Costs one `stat` while there are no requests.

        Each request but `watch` is to be settled. What is not a sound request of this run is refused or left alone
        here.
        """
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return []
        signature, now_s = (found.st_dev, found.st_ino, found.st_mtime_ns), time.monotonic()
        if signature != self._signature:
            self._signature, self._changed_s = signature, now_s
        elif now_s - self._changed_s > _SETTLE_S:
            return []
        try:
            with _opened(self._path) as ctl:
                names = self._names(ctl)
                self._ignored = {name: known for name, known in self._ignored.items() if name in names}
                wanted = sorted(name for name in names if _REQUEST.fullmatch(name) or _WATCH.fullmatch(name))
                return [request for name in wanted if (request := self._take(ctl, name)) is not None]
        except OSError as error:
            self._tell("ctl", f"requests cannot be read: {safe(self._path, 400)} ({error.strerror})")
            return []

    def settle(self, request: Request, result: str, text: str = "") -> None:
        """Answer an request: `result` of RESULTS and a sentence. May be called again: the last answer stays."""
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
            self._tell("done", f"requests cannot be answered: {safe(self._path / 'done', 400)} ({error.strerror})")

    @staticmethod
    def _names(folder: int) -> set[str]:
        with os.scandir(folder) as entries:
            return {entry.name for entry in itertools.islice(entries, _MOST_NAMES)}

    def _take(self, ctl: int, name: str) -> Request | None:
        """The request in a file, or None for one that is taken already, is refused, or is none."""
        try:
            found = os.stat(name, dir_fd=ctl, follow_symlinks=False)
            signature = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)
            if self._ignored.get(name) == signature:
                return None
            self._ignored[name] = signature  # whatever comes of it, and even where it cannot be moved away
            request, problem = self._request(name, _read(ctl, name, found))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._tell(name, f"ignored {safe(name)} in {safe(self._path, 400)}: {reason}")
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

    def _request(self, name: str, document: Mapping[str, Any]) -> tuple[Request, str]:
        """The request a document makes, and why it cannot be taken, or ''. ValueError for what is not a
        request at all.
        """
        verb, arguments = document.get("verb"), document.get("args")
        if not isinstance(verb, str) or not isinstance(arguments, dict):
            raise ValueError("it is no request")
        left_s = _left_s(document)
        request = Request(name, verb, arguments, text_of(document, "by") or "somebody", left_s, document)
        if document.get("v") != _VERSION or verb not in VERBS or (verb == "watch") != bool(_WATCH.fullmatch(name)):
            return request, "this trainer does not know how"
        if document.get("run_uuid") != self._run_uuid:
            return request, "it was meant for another run"
        if document.get("worker") not in (None, self._worker):
            return request, "it was meant for an earlier trainer of this run"
        if left_s <= 0:
            return request, "it has expired"
        if verb == "watch" and not (arguments.get("mode") in MODES and integer_of(arguments, "size")):
            return request, "its arguments are wrong"
        # A name that has an answer was taken: the file has been put back.
        return request, "it has been answered" if os.path.lexists(self._path / "done" / name) else ""

    def _prune(self, done: int) -> None:
        names = sorted(name for name in os.listdir(done) if _REQUEST.fullmatch(name))
        for name in names[:-_KEPT]:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=done)

    def _tell(self, about: str, line: str) -> None:
        """One line a subject, however often it comes up."""
        if about not in self._told and len(self._told) < _MOST_NAMES:
            self._told.add(about)
            self._report(line)


def _read(folder: int, name: str, found: os.stat_result) -> dict[str, Any]:
    """The JSON object in a file of this user. ValueError with the reason, OSError where it cannot be read;
    never waits.
    """
    _check_file(found)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        _check_file(os.fstat(descriptor))  # what was looked at and what was opened need not be the same
        raw = os.read(descriptor, _LIMIT_BYTES)
    finally:
        os.close(descriptor)
    if raw.count(b"[") + raw.count(b"{") > _MOST_BRACKETS:
        raise ValueError("it is nested too deeply")
    try:
        document = json.loads(raw)
    except ValueError:
        raise ValueError("it is no JSON") from None
    if not isinstance(document, dict):
        raise ValueError("it is no request")
    return document


def _check_file(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_uid != os.geteuid():
        raise ValueError("it is another user's")
    if found.st_size > _LIMIT_BYTES:
        raise ValueError(f"it has {found.st_size} bytes, more than {_LIMIT_BYTES}")


def _left_s(document: Mapping[str, Any]) -> float:
    """Seconds until a request expires: by the clock of this boot where it was sent in it, or else by the wall's."""
    boottime_ns, realtime_ns = integer_of(document, "expires_boottime_ns"), integer_of(document, "expires_realtime_ns")
    if boottime_ns is not None and runfolder.boot_id() and document.get("boot_id") == runfolder.boot_id():
        return (boottime_ns - time.clock_gettime_ns(_BOOTTIME)) / 1e9
    return 0.0 if realtime_ns is None else (realtime_ns - time.time_ns()) / 1e9
