"""Writer of a metrics file: records, events, pictures, status words. Standard library only.

`operant.runs.metrics.mapped` stores the bytes in the file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
import socket
import struct
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from operant.errors import ConfigError, MachineError, OperantError
from operant.runs.metrics import layout
from operant.runs.metrics import mapped as fixedfile
from operant.runs.metrics.layout import BOOTTIME, EVENT_TEXT, FLAG_NONE, FLAG_NONFINITE, STATUS_OFFSET, Metric

if TYPE_CHECKING:
    from typing import Self

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,63}")
_RECORD = struct.Struct(layout.RECORD.format.replace("<", "@"))
_WORDS = STATUS_OFFSET // 8  # index of the first status word
_EVENT_WAIT_S = 0.1


class Writer:
    """Writer of a metrics file, the only one. `publish`, `frame`, `tick`, `restore` and the `set_` methods without a
    note belong to the main loop, `heartbeat` to a separate thread; `event` may be called from any thread.

    The file appears complete, by rename, with mode 0600, in state "starting"; an existing one is replaced, and its
    readers see `replaced()`. `run_uuid` has 16 bytes; `session` is 1 and grows by one with each resume; `capacity` and
    `event_capacity` are powers of two; `frame_bytes` is the size of the largest frame (0: none); `iteration` counts the
    run's iterations so far; `backend` "auto" maps on ext4, xfs, btrfs, tmpfs and overlay and writes elsewhere (NFS,
    FUSE, Lustre).

    Raises ConfigError for invalid metrics, MachineError if the disk is full or the folder is not writable.
    """

    def __init__(
        self,
        path: Path,
        metrics: Sequence[Metric],
        *,
        run_uuid: bytes,
        session: int = 1,
        capacity: int = 1024,
        event_capacity: int = 1024,
        frame_bytes: int = 0,
        iteration: int = 0,
        version: str,
        host: str | None = None,
        backend: Literal["auto", "map", "pwrite"] = "auto",
    ) -> None:
        if sys.byteorder != "little":
            raise MachineError(
                "the metrics file is little-endian and this machine big-endian: operant does not support it"
            )
        _check(metrics, capacity, event_capacity, frame_bytes, run_uuid, session)
        self.path, self.metrics, self.session = Path(path), tuple(metrics), session
        self.capacity, self.event_capacity, self.frame_bytes = capacity, event_capacity, frame_bytes
        self._stride = 64 + 8 * len(metrics)
        self._layout = _plan_layout(len(metrics), capacity, event_capacity, frame_bytes)
        self.file_size = self._layout.file_size
        self._head = _initial_bytes(
            self._layout, self.metrics, run_uuid, session, version, socket.gethostname() if host is None else host
        )
        self._words: dict[int, int] = {}  # last values on the status page
        self._store: fixedfile.Store = fixedfile.create(self.path, self._head, self.file_size, backend)
        self._chosen = backend
        self._ring = self._layout.ring
        self._stage = bytearray(self._stride)
        self._staged = memoryview(self._stage)
        self._checked, self._crc, self._payload = (
            self._staged[12:],
            self._staged[8:12].cast("I"),
            self._staged[layout.RECORD.size :],
        )
        codes = itertools.groupby(layout.CODES[metric.dtype] for metric in metrics)
        self._pack = struct.Struct(
            "@" + "".join(f"{len(list(equal))}{code}" for code, equal in codes)
        ).pack  # native order: the same bytes, faster
        self._event_stage = bytearray(layout.EVENT.size)
        self._frame_stage = memoryview(bytearray(self._layout.frame_stride))
        self._count = self._heartbeats = self._states = self._events = self._dropped = self._frames = 0
        self._ticks = iteration
        self._store.word(_WORDS + layout.MAIN_COUNT, iteration)
        self._turn, self._event_turn = threading.Lock(), threading.Lock()
        _watch_forks()
        _WRITERS.add(self)

    @property
    def backend(self) -> str:
        """Method of writing the metrics file: "map" or "pwrite"; "none" after `close` and in a forked child."""
        return self._store.backend

    @property
    def write_errors(self) -> int:
        """Number of failed writes so far ("pwrite" only). They are not repeated; training continues."""
        return self._store.errors

    # records

    def publish(self, step: int, values: Sequence[float], *, flags: int = 0) -> int:
        """Store one record with the values of all metrics at `step`, in the order of `metrics`, and return its number.
        FLAG_NONFINITE and FLAG_NONE are added to `flags` where values require it.

        Raises ValueError for values that do not fit the metrics, OperantError in a forked child, after `close`, and if
        two threads publish at once.
        """
        if not self._turn.acquire(False):
            raise OperantError("two threads publish to the metrics file at once; it has one writer")
        try:
            n, nonfinite, store = self._count, 0, self._store
            try:
                if not math.isfinite(sum(values)):
                    flags, nonfinite = self._examine(values, flags)
                self._payload[:] = self._pack(*values)
                _RECORD.pack_into(
                    self._stage,
                    0,
                    2 * n + store.mark,
                    0,
                    self._stride - 16,
                    n,
                    step,
                    time.clock_gettime_ns(BOOTTIME),
                    time.time_ns(),
                    self.session,
                    flags,
                    nonfinite,
                )
            except (struct.error, TypeError, OverflowError) as error:
                raise ValueError(
                    f"a record needs a step >= 0 and {len(self.metrics)} values that fit their dtypes: {error}"
                ) from None
            self._crc[0] = zlib.crc32(self._checked)
            store.record(self._ring + (n & (self.capacity - 1)) * self._stride, self._staged, n)
            store.word(_WORDS + layout.HEAD, n + 1)
            self._count = n + 1
            return n
        finally:
            self._turn.release()

    def _examine(self, values: Sequence[float], flags: int) -> tuple[int, int]:
        """Add NONFINITE and NONE to `flags` where values require it. Returns the flags and the word {u32 first
        non-finite column, u32 number of them}.
        """
        odd = [
            column
            for column, finite in enumerate(map(math.isfinite, values))
            if not finite and column < len(self.metrics)
        ]
        bad = [column for column in odd if self.metrics[column].must_be_finite or not math.isnan(values[column])]
        if len(bad) < len(odd):
            flags |= FLAG_NONE
        return (flags | FLAG_NONFINITE, bad[0] | len(bad) << 32) if bad else (flags, 0)

    def event(self, text: str, *, level: str = "info", code: str = "note", step: int = 0) -> int:
        """Store an event of the run, one line of text, and return its number; -1 if it was dropped. From any thread.

        `level` is one of LEVELS, `code` one of EVENTS. Text beyond 208 bytes of UTF-8 is cut, with an ellipsis. If the
        lock is not released in time (a signal handler may have interrupted its holder), the event is dropped and
        counted, and -1 returned: no caller waits for long.

        Raises ValueError for an unknown level or code and a negative step, OperantError in a forked child and after
        `close`.
        """
        kind = (layout.LEVELS.index(level), layout.EVENTS.index(code))
        if not self._event_turn.acquire(timeout=_EVENT_WAIT_S):
            self._dropped += 1
            self._store.word(_WORDS + layout.EVENTS_DROPPED, self._dropped)
            return -1
        try:
            n, store, stage, data = self._events, self._store, self._event_stage, _shorten(text, EVENT_TEXT)
            try:
                layout.EVENT.pack_into(
                    stage,
                    0,
                    2 * n + store.mark,
                    0,
                    len(data),
                    *kind,
                    n,
                    time.clock_gettime_ns(BOOTTIME),
                    time.time_ns(),
                    step,
                    data,
                )
            except struct.error as error:
                raise ValueError(f"an event needs a step >= 0: {error}") from None
            struct.pack_into("<I", stage, 8, zlib.crc32(memoryview(stage)[12:]))
            store.record(self._layout.events + (n & (self.event_capacity - 1)) * len(stage), memoryview(stage), n)
            store.word(_WORDS + layout.EVENT_HEAD, n + 1)
            self._events = n + 1
            return n
        finally:
            self._event_turn.release()

    def frame(
        self, step: int, pixels: bytes | memoryview, *, lanes: int, height: int, width: int, mode: str = "greedy"
    ) -> None:
        """Store a frame of the agent: `pixels` are (lanes, height, width, channels) bytes with 1 to 4 channels; `mode`
        is one of MODES.

        Raises ValueError for pixels that do not fit, OperantError in a forked child and after `close`.
        """
        data, code = memoryview(pixels).cast("B"), layout.MODES.index(mode)
        channels, rest = divmod(len(data), max(1, lanes * height * width))
        if rest or min(lanes, height, width) < 1 or not 1 <= channels <= 4 or len(data) > self.frame_bytes:
            raise ValueError(
                f"{len(data)} bytes do not hold {lanes} pictures of {height} x {width} pixels in at most "
                f"{self.frame_bytes} bytes"
            )
        n, store, stage, size = self._frames, self._store, self._frame_stage, layout.FRAME.size + len(data)
        try:
            layout.FRAME.pack_into(
                stage,
                0,
                2 * n + store.mark,
                0,
                size - 16,
                n,
                step,
                lanes,
                height,
                width,
                channels,
                code,
                0,
                0,
                time.clock_gettime_ns(BOOTTIME),
                0,
            )
        except struct.error as error:
            raise ValueError(f"a frame needs a step >= 0 and at most 65535 lanes, rows and columns: {error}") from None
        stage[layout.FRAME.size : size] = data
        struct.pack_into("<I", stage, 8, zlib.crc32(stage[12:size]))
        store.record(self._layout.frames + n % layout.FRAME_SLOTS * self._layout.frame_stride, stage[:size], n)
        self._frames = n + 1

    # status

    def heartbeat(self) -> None:
        """Store a heartbeat of the trainer: about 4 times a second, from a separate thread, which must end before
        `close`.
        """
        self._heartbeats += 1
        self._set(layout.HEARTBEAT_TIME, time.clock_gettime_ns(BOOTTIME))
        self._set(layout.HEARTBEAT_COUNT, self._heartbeats)

    def tick(self) -> None:
        """Count one iteration of the main loop, which shows readers that training progresses."""
        self._ticks += 1
        self._store.word(_WORDS + layout.MAIN_COUNT, self._ticks)

    def set_phase(self, phase: str) -> None:
        """Set the phase of the main loop, one of PHASES."""
        self._set(layout.PHASE, layout.PHASES.index(phase))

    def set_state(self, state: str, *, reason: int = 0, exit_code: int = 0) -> None:
        """Set the state of the run, one of STATES. `reason` (0-255) is the number of a signal; `exit_code` belongs to a
        terminal state.
        """
        if not (0 <= reason < 256 and 0 <= exit_code < 65536):
            raise ValueError(f"reason {reason} must be in 0-255 and exit_code {exit_code} in 0-65535")
        code, self._states = layout.STATES.index(state), self._states + 1
        self._set(layout.STATE, code | reason << 8 | exit_code << 16 | (self._states & 0xFFFFFFFF) << 32)

    def set_checkpoint(self, step: int, boottime_ns: int | None = None) -> None:
        """Set the step of the last checkpoint on disk, and the boot time in ns at which its state was taken (None:
        now). From any thread.
        """
        self._set(layout.CHECKPOINT_STEP, step)
        self._set(layout.CHECKPOINT_TIME, boottime_ns or time.clock_gettime_ns(BOOTTIME))

    def set_checkpoint_failures(self, count: int) -> None:
        """Set the number of failed checkpoints in a row; 0 after a success."""
        self._set(layout.CHECKPOINT_FAILURES, count)

    def set_nonfinite(self, total: int) -> None:
        """Set the total number of non-finite values so far."""
        self._set(layout.NONFINITE, total)

    def acknowledge(self, sequence: int, result: int) -> None:
        """Set the result of request number `sequence`, counted from 1 in each session. From the thread that receives
        requests.
        """
        self._set(layout.CONTROL_RESULT, result)
        self._set(layout.CONTROL_SEQUENCE, sequence)

    def set_history(self, bytes_written: int, synced_n: int, errno: int = 0) -> None:
        """Set the status of the history: its bytes on disk, the number of the first record that is not synced, and the
        errno that stops it (0: none).

        From the thread that writes the history.
        """
        self._set(layout.HISTORY_BYTES, bytes_written)
        self._set(layout.HISTORY_SYNCED, synced_n)
        self._set(layout.HISTORY_ERRNO, errno)

    def _set(self, word: int, value: int) -> None:
        """Store a status word and remember it for `restore`."""
        self._words[word] = value
        self._store.word(_WORDS + word, value)

    # file

    def restore(self) -> bool:
        """Create the metrics file again, with its content, if it was deleted, replaced or truncated. Returns whether it
        was. The main loop calls this every few seconds.

        Raises MachineError on failure (the folder is gone, the disk is full); the writer then continues with a file
        that no reader can see.
        """
        with contextlib.suppress(OSError):
            stats = os.stat(self.path, follow_symlinks=False)
            if (stats.st_dev, stats.st_ino) == self._store.identity and stats.st_size >= self.file_size:
                return False
        with self._event_turn:  # no event may go into the old file
            # A truncated file has only what was written since: header and schema, which never change, are written
            # again.
            content, head = bytearray(self._store.content()), self._head
            content[: layout.HEADER_SIZE], content[layout.SCHEMA_OFFSET : len(head)] = (
                head[: layout.HEADER_SIZE],
                head[layout.SCHEMA_OFFSET :],
            )
            self._store = fixedfile.create(self.path, bytes(content), self.file_size, self._chosen)
        for word, value in dict(self._words).items():
            self._store.word(_WORDS + word, value)
        return True

    def close(self) -> None:
        """Close the metrics file and leave it in the folder. Set a terminal state first."""
        self._store = fixedfile.ClosedFile("it is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_WRITERS: Final[weakref.WeakSet[Writer]] = weakref.WeakSet()


@functools.cache
def _watch_forks() -> None:
    """Register the handler that disables all writers in forked children, once for the process."""
    os.register_at_fork(after_in_child=_disarm)


def _disarm() -> None:
    """Disable all writers in a forked child: only the trainer writes."""
    for writer in list(_WRITERS):
        writer._store.forget()
        writer._store = fixedfile.ClosedFile("this process was forked from the trainer, and only the trainer writes")
        writer._turn, writer._event_turn = threading.Lock(), threading.Lock()


def _shorten(text: str, size: int) -> bytes:
    """Encode text as at most `size` bytes of UTF-8, cut at a whole character, with an ellipsis if it was cut."""
    data = text[: size + 1].encode("utf-8", "replace")
    return data if len(data) <= size else data[: size - 3].decode("utf-8", "ignore").encode() + "…".encode()


def _check(
    metrics: Sequence[Metric], capacity: int, event_capacity: int, frame_bytes: int, run_uuid: bytes, session: int
) -> None:
    """Check the arguments of a Writer. Raises ConfigError that lists all problems."""
    problems = []
    if not 1 <= len(metrics) <= layout.MAXIMUM_METRICS:
        problems.append(f"{len(metrics)} metrics: a metrics file holds 1 to {layout.MAXIMUM_METRICS}")
    names: set[str] = set()
    for metric in metrics:
        if not _NAME.fullmatch(metric.name):
            problems.append(f"name {metric.name!r}: allowed are 1 to 63 of A-Z a-z 0-9 _ . / -")
        elif metric.name in names:
            problems.append(f"name {metric.name!r} is used twice")
        names.add(metric.name)
        for field, allowed in (("kind", layout.KINDS), ("dtype", layout.DTYPES), ("axis", layout.AXES)):
            if getattr(metric, field) not in allowed:
                problems.append(f"{metric.name}: {field} {getattr(metric, field)!r}: allowed are {', '.join(allowed)}")
    for name, slots in (("capacity", capacity), ("event_capacity", event_capacity)):
        if slots & (slots - 1) or not 2 <= slots <= layout.MAXIMUM_RECORDS:
            problems.append(f"{name} {slots}: must be a power of two from 2 to {layout.MAXIMUM_RECORDS}")
    if not 0 <= frame_bytes <= layout.MAXIMUM_FRAME:
        problems.append(f"frame_bytes {frame_bytes}: must be 0 to {layout.MAXIMUM_FRAME}")
    if len(run_uuid) != 16 or not 1 <= session < 1 << 32:
        problems.append(f"run_uuid has {len(run_uuid)} bytes and session is {session}: must be 16 bytes, and 1 or more")
    if (
        not problems
        and _plan_layout(len(metrics), capacity, event_capacity, frame_bytes).file_size > layout.MAXIMUM_SIZE
    ):
        problems.append(f"{len(metrics)} metrics x {capacity} records exceed {layout.MAXIMUM_SIZE} bytes")
    if problems:
        raise ConfigError("the list of metrics", problems)


class _Layout(NamedTuple):
    """Byte offsets of the sections of a new metrics file, and its table of sections without the schema's checksum."""

    ring: int
    events: int
    frames: int
    frame_stride: int  # 0 without frames
    file_size: int
    table: tuple[tuple[int, int, int, int, int], ...]  # kind, count, offset, length, stride


def _plan_layout(metrics: int, capacity: int, event_capacity: int, frame_bytes: int) -> _Layout:
    """Compute the sections' positions in a new metrics file."""
    schema_size, stride = metrics * layout.METRIC.size, 64 + 8 * metrics
    ring = _round_up(layout.SCHEMA_OFFSET + schema_size, 4096)
    events = _round_up(ring + capacity * stride, 4096)
    frames = _round_up(events + event_capacity * layout.EVENT.size, 4096)
    frame_stride = _round_up(layout.FRAME.size + frame_bytes, 64) if frame_bytes else 0
    table = [
        (layout.STATUS_KIND, 1, STATUS_OFFSET, layout.STATUS_SIZE, layout.STATUS_SIZE),
        (layout.SCHEMA_KIND, metrics, layout.SCHEMA_OFFSET, schema_size, layout.METRIC.size),
        (layout.RING_KIND, capacity, ring, capacity * stride, stride),
        (layout.EVENTS_KIND, event_capacity, events, event_capacity * layout.EVENT.size, layout.EVENT.size),
    ]
    if frame_bytes:
        table.append((layout.FRAMES_KIND, layout.FRAME_SLOTS, frames, layout.FRAME_SLOTS * frame_stride, frame_stride))
    file_size = _round_up(frames + layout.FRAME_SLOTS * frame_stride, layout.FILE_GRAIN)
    return _Layout(ring, events, frames, frame_stride, file_size, tuple(table))


def _initial_bytes(
    places: _Layout, metrics: tuple[Metric, ...], run_uuid: bytes, session: int, version: str, host: str
) -> bytes:
    """Return the bytes of a new metrics file up to the end of its schema; the rest is zero."""
    schema = layout.pack_schema(metrics)
    boot_id, namespace, pid, uid, ticks, realtime, boottime = _process()
    head = bytearray(layout.SCHEMA_OFFSET)
    layout.HEADER.pack_into(
        head,
        0,
        layout.MAGIC,
        layout.BYTE_ORDER_MARK,
        *layout.ABI,
        layout.HEADER_SIZE,
        0,
        0,
        len(places.table),
        places.file_size,
        run_uuid,
        boot_id,
        session,
        namespace,
        pid,
        uid,
        ticks,
        realtime,
        boottime,
        0,
        layout.encode(host, 64),
        layout.encode(version, 32),
    )
    for index, section in enumerate(places.table):
        layout.SECTION.pack_into(
            head, 256 + 32 * index, *section, zlib.crc32(schema) if section[0] == layout.SCHEMA_KIND else 0
        )
    struct.pack_into("<I", head, 4092, zlib.crc32(head[:4092]))
    return bytes(head) + schema


def _process() -> tuple[bytes, int, int, int, int, int, int]:
    """Return boot id, pid namespace, pid, uid, start ticks, realtime and boot time (ns) of this process; zero if
    unknown.
    """
    boot_id, namespace, ticks = bytes(16), 0, 0
    with contextlib.suppress(OSError, ValueError):
        boot_id = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")).ljust(
            16, b"\0"
        )[:16]
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    with contextlib.suppress(OSError, ValueError, IndexError):
        # field 22; the name in brackets may hold anything
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return boot_id, namespace, os.getpid(), os.getuid(), ticks, time.time_ns(), time.clock_gettime_ns(BOOTTIME)


def _round_up(size: int, grain: int) -> int:
    """Round a size up to a multiple of `grain`."""
    return -(-size // grain) * grain
