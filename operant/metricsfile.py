"""The metrics file: what a trainer tells the world about its run, lock-free, in one small file of fixed size. Standard library only.

One writer (the trainer) stores through a memory map, or by `pwrite` where a map cannot be trusted; any number of readers use `pread`, hold no lock
and cannot disturb it. Knows nothing of run folders, of locks, of what a metric means, or of who is alive: readers of heartbeats decide that.

The bytes (ABI 1.0), little-endian, 8-byte aligned, the file a multiple of 64 KiB:

    0      header    magic, versions, run and process identity, table of at most 8 sections {kind, count, offset, length, stride, crc}, crc at 4092
    4096   status    words stored one by one: heartbeat, main count, phase | state | heads | checkpoint | faults   (kind 1)
    8192   schema    128 bytes a metric: id, dtype, kind, unit, flags, divergence bounds, name                     (kind 2, crc in the table)
    ...    ring      `capacity` records of 64 + 8N bytes; record n lies in slot n & (capacity - 1)                 (kind 3)
                     {seq u64 | crc u32, nbytes u32 | n u64 | step u64 | boottime u64 | realtime u64 | session u32, flags u32 | nonfinite u64 | N x 8}

Later sections (events: kind 5, frames: kind 6) are added to the table; a reader skips the kinds it does not know. A newer minor version and unknown
compat bits are read; another major version or an unknown incompat bit is refused.

Why a reader never sees half a record: `seq` is 2n+1 while record n is being stored and 2n+2 after, which filters nearly all; the CRC-32, which covers n
itself, decides. x86-64 keeps stores in order. Other processors (ARM) may not, and no fence is issued there: the CRC alone carries the promise.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import re
import socket
import stat
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

from operant import __version__, fixedfile
from operant.errors import BadFileError, ConfigError, MachineError, OperantError

if TYPE_CHECKING:
    from typing import Self

MAGIC: Final = b"\x89OPRM\r\n\x1a"
ABI: Final = (1, 0)
STATES: Final = ("starting", "running", "paused", "stopping", "finished", "stopped", "failed", "diverged", "gpu_fault", "oom")
"""The states a trainer stores; the index is the byte in the file, so words are only ever appended."""
TERMINAL: Final = frozenset(("finished", "stopped", "failed", "diverged", "gpu_fault", "oom"))
PHASES: Final = ("idle", "rollout", "update", "eval", "checkpoint", "compile")
KINDS: Final = ("gauge", "counter", "rate", "bucket")
DTYPES: Final = ("f64", "i64", "u64")
AXES: Final = ("linear", "log")
FLAG_NONFINITE, FLAG_CHECKPOINT, FLAG_EVAL, FLAG_NONE = 1, 2, 4, 8
"""Bits of `Record.flags`. NONFINITE: an infinity, or NaN in a column that must be finite. NONE: NaN elsewhere, which means "no value"."""

_MAXIMUM_METRICS, _MAXIMUM_RECORDS, _MAXIMUM_SECTIONS = 4096, 1 << 20, 8
_MINIMUM_SIZE, _MAXIMUM_SIZE = 8192, 1 << 30
_HEADER_SIZE, _STATUS_OFFSET, _STATUS_SIZE, _SCHEMA_OFFSET, _FILE_GRAIN = 4096, 4096, 4096, 8192, 65536
_BYTE_ORDER_MARK = 0x01020304
_STATUS_KIND, _SCHEMA_KIND, _RING_KIND = 1, 2, 3
_HEADER = struct.Struct("<8sIHHIIIIQ16s16sQQIIQQQQ64s32s")  # bytes 0-223
_SECTION = struct.Struct("<IIQQII")
_METRIC = struct.Struct("<IBBBBIIff40s64s")
_RECORD = struct.Struct("<QIIQQQQIIQ")
_CODES = {"f64": "d", "i64": "q", "u64": "Q"}
_MUST_BE_FINITE, _HIGHER_BETTER, _HIDDEN = 1, 2, 4
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# Status words: index from the start of the status section, 8 bytes each.
_HEARTBEAT_TIME, _HEARTBEAT_COUNT, _MAIN_COUNT, _PHASE, _STATE, _HEAD = 0, 1, 2, 3, 8, 16
_CHECKPOINT_STEP, _CHECKPOINT_TIME, _CUDA_ERROR, _NONFINITE, _DIVERGENCE = 34, 35, 40, 42, 43
_STATUS_WORDS = struct.Struct("<64Q")

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,63}")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]")


class Metric(NamedTuple):
    """One column of the records. NaN means "no value" unless `must_be_finite`. `low` and `high` are the divergence bounds (kept as float32)."""

    name: str  # [A-Za-z0-9_./-]{1,63}
    kind: str = "gauge"  # of KINDS
    unit: str = ""  # text of at most 40 bytes
    dtype: str = "f64"  # of DTYPES; the integers are stored bit for bit
    low: float = -math.inf
    high: float = math.inf
    higher_better: bool = False
    must_be_finite: bool = False
    hidden: bool = False
    axis: str = "linear"  # of AXES
    group: int = 0


class Header(NamedTuple):
    """Who writes the file, fixed for its life. Realtime is for display only; `host` and `version` are untrusted text, made printable."""

    abi: tuple[int, int]
    session: int
    run_uuid: bytes
    boot_id: bytes
    pid: int
    pid_namespace: int
    pid_start_ticks: int
    uid: int
    start_realtime_ns: int
    start_boottime_ns: int
    host: str
    version: str
    capacity: int
    file_size: int


class Status(NamedTuple):
    """The status words. `state` and `phase` are "unknown" where a newer trainer wrote a code without a word here."""

    heartbeat_count: int
    heartbeat_boottime_ns: int
    main_count: int
    phase: str
    state: str
    reason: int
    exit_code: int
    state_count: int
    head: int  # records ever published
    last_checkpoint_step: int | None  # None before the first checkpoint
    last_checkpoint_boottime_ns: int
    nonfinite_total: int
    divergence_bits: int
    cuda_error: int


class Record(NamedTuple):
    """One row: `n` counts records from 0 in each session, `values` follow `Reader.metrics`."""

    n: int
    step: int
    boottime_ns: int
    realtime_ns: int
    session: int
    flags: int
    values: tuple[float, ...]


def safe(text: str) -> str:
    """`text` without anything a terminal would obey or hide: control characters, bidirectional controls, zero widths, lone surrogates."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def _encode(text: str, size: int) -> bytes:
    """UTF-8, cut at a whole character so that `size` bytes hold it and a closing NUL."""
    return text.encode("utf-8", "replace")[: size - 1].decode("utf-8", "ignore").encode()


def _decode(raw: bytes) -> str:
    return safe(raw.split(b"\0", 1)[0].decode("utf-8", "replace"))


def _word(words: tuple[str, ...], code: int, otherwise: str) -> str:
    return words[code] if code < len(words) else otherwise


# ---------------------------------------------------------------------------------------------------------------------------------- writing


class Writer:
    """The one writer of a metrics file. `publish`, `tick` and the `set_` methods belong to the main loop, `heartbeat` to a thread of its own.

    The file appears complete, by rename, with mode 0600, in state "starting"; one that lay there before is replaced and its readers see `replaced()`.
    `run_uuid` has 16 bytes; `session` is 1 and grows by one with each resume; `capacity` is a power of two; `backend` "auto" maps on ext4, xfs, btrfs,
    tmpfs and overlay and writes everywhere else (NFS, FUSE, Lustre).

    Raises ConfigError for metrics that cannot be stored, MachineError when the disk is full or the folder cannot be written.
    """

    def __init__(
        self,
        path: Path,
        metrics: Sequence[Metric],
        *,
        run_uuid: bytes,
        session: int = 1,
        capacity: int = 1024,
        version: str,
        host: str | None = None,
        backend: Literal["auto", "map", "pwrite"] = "auto",
    ) -> None:
        if sys.byteorder != "little":
            raise MachineError("the metrics file is little-endian, and this machine is big-endian: operant does not train here")
        _check_metrics(metrics, capacity, run_uuid, session)
        self.path, self.metrics, self.capacity, self.session = Path(path), tuple(metrics), capacity, session
        self._stride = 64 + 8 * len(metrics)
        head, self._ring = _layout(self.metrics, capacity, run_uuid, session, version, socket.gethostname() if host is None else host)
        self.file_size = struct.unpack_from("<Q", head, 32)[0]
        self._store: fixedfile.Store = fixedfile.create(self.path, head, self.file_size, backend)
        self._chosen = backend
        self._stage = bytearray(self._stride)
        self._staged = memoryview(self._stage)
        self._checked, self._crc = self._staged[12:], self._staged[8:12].cast("I")
        self._format = struct.Struct("@QII4Q2IQ" + "".join(_CODES[metric.dtype] for metric in metrics))  # native packs faster, and is the same here
        self._count = self._heartbeats = self._ticks = self._states = 0
        self._turn = threading.Lock()
        os.register_at_fork(after_in_child=functools.partial(_disarm, weakref.ref(self)))

    @property
    def backend(self) -> str:
        """How the file is written: "map" or "pwrite"; "none" after `close` and in a forked child."""
        return self._store.backend

    @property
    def write_errors(self) -> int:
        """Writes that failed since the file was made (pwrite only). They are not repeated, and training goes on."""
        return self._store.errors

    def publish(self, step: int, values: Sequence[float], *, flags: int = 0) -> int:
        """Store one record and return its number. `values` follow `metrics`; FLAG_NONFINITE and FLAG_NONE are set here.

        Raises ValueError for values that do not fit the metrics, OperantError in a forked child, after `close`, and when two threads publish at once.
        """
        if not self._turn.acquire(False):
            raise OperantError("two threads publish to the metrics file at once; it has one writer")
        try:
            n, nonfinite, store = self._count, 0, self._store
            try:
                if not math.isfinite(sum(values)):
                    flags, nonfinite = self._examine(values, flags)
                self._format.pack_into(
                    self._stage, 0, 2 * n + store.mark, 0, self._stride - 16, n, step, time.clock_gettime_ns(_BOOTTIME), time.time_ns(),
                    self.session, flags, nonfinite, *values,
                )  # fmt: skip
            except (struct.error, TypeError, OverflowError) as error:
                raise ValueError(f"a record is a step >= 0 and {len(self.metrics)} values that fit their dtypes: {error}") from None
            self._crc[0] = zlib.crc32(self._checked)
            store.record(self._ring + (n & (self.capacity - 1)) * self._stride, self._staged, n)
            store.word(_STATUS_OFFSET // 8 + _HEAD, n + 1)
            self._count = n + 1
            return n
        finally:
            self._turn.release()

    def _examine(self, values: Sequence[float], flags: int) -> tuple[int, int]:
        """The flags with NONFINITE and NONE as they apply, and the word {u32 first column that is not finite, u32 how many}."""
        odd = [column for column, finite in enumerate(map(math.isfinite, values)) if not finite and column < len(self.metrics)]
        bad = [column for column in odd if self.metrics[column].must_be_finite or not math.isnan(values[column])]
        if len(bad) < len(odd):
            flags |= FLAG_NONE
        return (flags | FLAG_NONFINITE, bad[0] | len(bad) << 32) if bad else (flags, 0)

    def heartbeat(self) -> None:
        """Say that the process lives, about 4 times a second, from a thread of its own; stop that thread before `close`."""
        store, self._heartbeats = self._store, self._heartbeats + 1
        store.word(_STATUS_OFFSET // 8 + _HEARTBEAT_TIME, time.clock_gettime_ns(_BOOTTIME))
        store.word(_STATUS_OFFSET // 8 + _HEARTBEAT_COUNT, self._heartbeats)

    def tick(self) -> None:
        """Say that the main loop moves: once an iteration."""
        self._ticks += 1
        self._store.word(_STATUS_OFFSET // 8 + _MAIN_COUNT, self._ticks)

    def set_phase(self, phase: str) -> None:
        """What the main loop does: one of PHASES."""
        self._store.word(_STATUS_OFFSET // 8 + _PHASE, PHASES.index(phase))

    def set_state(self, state: str, *, reason: int = 0, exit_code: int = 0) -> None:
        """What the run is: one of STATES. `reason` (0-255) is the signal's number where one was the reason; `exit_code` goes with a terminal state."""
        if not (0 <= reason < 256 and 0 <= exit_code < 65536):
            raise ValueError(f"reason {reason} must lie in 0-255 and exit_code {exit_code} in 0-65535")
        code, self._states = STATES.index(state), self._states + 1
        self._store.word(_STATUS_OFFSET // 8 + _STATE, code | reason << 8 | exit_code << 16 | (self._states & 0xFFFFFFFF) << 32)

    def set_checkpoint(self, step: int) -> None:
        """A checkpoint of this step is safe on the disk."""
        self._store.word(_STATUS_OFFSET // 8 + _CHECKPOINT_STEP, step)
        self._store.word(_STATUS_OFFSET // 8 + _CHECKPOINT_TIME, time.clock_gettime_ns(_BOOTTIME))

    def set_nonfinite(self, total: int) -> None:
        """How many numbers of the training were not finite so far."""
        self._store.word(_STATUS_OFFSET // 8 + _NONFINITE, total)

    def restore(self) -> bool:
        """Put the file back, contents and all, if somebody deleted or replaced it; True if that was needed. From the main loop, every few seconds.

        Raises MachineError when that fails (the folder is gone, the disk is full); the writer then goes on with the file nobody can see.
        """
        with contextlib.suppress(OSError):
            found = os.stat(self.path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self._store.identity:
                return False
        self._store = fixedfile.create(self.path, self._store.content(), self.file_size, self._chosen)
        return True

    def close(self) -> None:
        """Let go of the file, which stays. Set a terminal state before."""
        self._store = fixedfile.Gone("it was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _disarm(reference: weakref.ref[Writer]) -> None:
    """In a forked child: take the file away from its copy of the writer."""
    writer = reference()
    if writer is not None:
        writer._store.forget()
        writer._store = fixedfile.Gone("this process was forked from the trainer, and only the trainer writes")
        writer._turn = threading.Lock()


def _check_metrics(metrics: Sequence[Metric], capacity: int, run_uuid: bytes, session: int) -> None:
    problems = []
    if not 1 <= len(metrics) <= _MAXIMUM_METRICS:
        problems.append(f"{len(metrics)} metrics: a metrics file holds 1 to {_MAXIMUM_METRICS}")
    seen: set[str] = set()
    for metric in metrics:
        if not _NAME.fullmatch(metric.name):
            problems.append(f"name {metric.name!r}: allowed are 1 to 63 of A-Z a-z 0-9 _ . / -")
        elif metric.name in seen:
            problems.append(f"name {metric.name!r} is there twice")
        seen.add(metric.name)
        for field, allowed in (("kind", KINDS), ("dtype", DTYPES), ("axis", AXES)):
            if getattr(metric, field) not in allowed:
                problems.append(f"{metric.name}: {field} {getattr(metric, field)!r}: allowed are {', '.join(allowed)}")
    if capacity & (capacity - 1) or not 2 <= capacity <= _MAXIMUM_RECORDS:
        problems.append(f"capacity {capacity}: must be a power of two from 2 to {_MAXIMUM_RECORDS}")
    if len(run_uuid) != 16 or not 1 <= session < 1 << 32:
        problems.append(f"run_uuid has {len(run_uuid)} bytes and session is {session}: must be 16 bytes, and 1 or more")
    if problems:
        raise ConfigError("the list of metrics", problems)


def _layout(metrics: tuple[Metric, ...], capacity: int, run_uuid: bytes, session: int, version: str, host: str) -> tuple[bytes, int]:
    """The first bytes of a new file, up to its ring, and the ring's offset. All that follows is zero."""
    schema = b"".join(
        _METRIC.pack(
            index, DTYPES.index(metric.dtype), KINDS.index(metric.kind), 0, AXES.index(metric.axis),
            _MUST_BE_FINITE * metric.must_be_finite | _HIGHER_BETTER * metric.higher_better | _HIDDEN * metric.hidden,
            metric.group, _float32(metric.low), _float32(metric.high), _encode(metric.unit, 40), metric.name.encode(),
        )
        for index, metric in enumerate(metrics)
    )  # fmt: skip
    ring, stride = _round_up(_SCHEMA_OFFSET + len(schema), 4096), 64 + 8 * len(metrics)
    sections = (
        (_STATUS_KIND, 1, _STATUS_OFFSET, _STATUS_SIZE, _STATUS_SIZE, 0),
        (_SCHEMA_KIND, len(metrics), _SCHEMA_OFFSET, len(schema), _METRIC.size, zlib.crc32(schema)),
        (_RING_KIND, capacity, ring, capacity * stride, stride, 0),
    )
    file_size = _round_up(ring + capacity * stride, _FILE_GRAIN)
    if file_size > _MAXIMUM_SIZE:
        raise ConfigError("the list of metrics", [f"{len(metrics)} metrics x {capacity} records need {file_size} bytes: at most {_MAXIMUM_SIZE}"])
    boot_id, namespace, pid, uid, ticks, realtime, boottime = _process()
    head = bytearray(_SCHEMA_OFFSET)
    _HEADER.pack_into(
        head, 0, MAGIC, _BYTE_ORDER_MARK, *ABI, _HEADER_SIZE, 0, 0, len(sections), file_size, run_uuid, boot_id, session, namespace,
        pid, uid, ticks, realtime, boottime, 0, _encode(host, 64), _encode(version, 32),
    )  # fmt: skip
    for index, section in enumerate(sections):
        _SECTION.pack_into(head, 256 + 32 * index, *section)
    struct.pack_into("<I", head, 4092, zlib.crc32(head[:4092]))
    return bytes(head) + schema, ring


def _process() -> tuple[bytes, int, int, int, int, int, int]:
    """Boot id, pid namespace, pid, uid, start ticks, realtime, boottime; zero where the system does not tell."""
    boot_id, namespace, ticks = bytes(16), 0, 0
    with contextlib.suppress(OSError, ValueError):
        boot_id = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")).ljust(16, b"\0")[:16]
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # field 22; the name in brackets may hold anything
    return boot_id, namespace, os.getpid(), os.getuid(), ticks, time.time_ns(), time.clock_gettime_ns(_BOOTTIME)


def _round_up(size: int, grain: int) -> int:
    return -(-size // grain) * grain


def _float32(bound: float) -> float:
    """A bound beyond float32 is none."""
    return math.copysign(math.inf, bound) if abs(bound) > 3.4e38 else bound


# ---------------------------------------------------------------------------------------------------------------------------------- reading


class Reader:
    """Reads a metrics file while it is being written, or after. Only `pread`, so that a file cut short is a sentence and no signal.

    Every method raises BadFileError with a sentence and nothing else: for a file that is absent, no regular file, damaged, cut short, or of an
    incompatible version. All counts and offsets of the file are checked before they are used.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._shown: Record | None = None
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) == errno.ELOOP:
                raise self._bad("is a symbolic link; name the file itself") from None
            raise self._bad(f"cannot be opened ({getattr(error, 'strerror', None) or error})") from None
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    header: Header
    metrics: tuple[Metric, ...]

    def _attach(self) -> None:
        try:
            found = os.fstat(self._descriptor)
        except OSError as error:
            raise self._bad(f"cannot be read ({error.strerror})") from None
        if not stat.S_ISREG(found.st_mode):
            raise self._bad("is no regular file")
        if not _MINIMUM_SIZE <= found.st_size <= _MAXIMUM_SIZE:
            raise self._bad(f"has {found.st_size} bytes: a metrics file has {_MINIMUM_SIZE} to {_MAXIMUM_SIZE}, so it was cut short or is something else")
        head = self._read(_HEADER_SIZE, 0)
        (magic, mark, major, minor, header_size, incompat, _, section_count, file_size, run_uuid, boot_id, session, namespace,
         pid, uid, ticks, realtime, boottime, _, host, version) = _HEADER.unpack_from(head)  # fmt: skip
        if magic != MAGIC:
            damaged = magic[:4] == MAGIC[:4] or MAGIC[1:4] in magic
            raise self._bad("was damaged, perhaps by a text-mode transfer" if damaged else "is no metrics file (its first bytes say so)")
        if mark != _BYTE_ORDER_MARK:
            raise self._bad("has the wrong byte order")
        if major != ABI[0]:
            raise self._bad(f"has format {major}.{minor}, and this operant {__version__} reads format {ABI[0]}.x: use the operant that wrote it")
        if zlib.crc32(head[:4092]) != struct.unpack_from("<I", head, 4092)[0]:
            raise self._bad("has a damaged header (its checksum differs)")
        if incompat:
            raise self._bad(
                f"has format {major}.{minor} with features this operant {__version__} (format {ABI[0]}.{ABI[1]}) does not know (bits {incompat:#x}), "
                f"written by operant {_decode(version)}: update operant"
            )
        if file_size > found.st_size:
            raise self._bad(f"was truncated: {found.st_size} of {file_size} bytes are left")
        if section_count > _MAXIMUM_SECTIONS or not _HEADER_SIZE <= header_size <= file_size:
            raise self._bad(f"has an impossible header ({section_count} sections, header of {header_size} bytes)")
        self._take_sections(head, section_count, file_size)
        self.header = Header(
            (major, minor), session, run_uuid, boot_id, pid, namespace, ticks, uid, realtime, boottime, _decode(host), _decode(version),
            self._capacity, file_size,
        )  # fmt: skip

    def _take_sections(self, head: bytes, section_count: int, file_size: int) -> None:
        """Find the status page, the schema and the first ring; kinds that are not known are skipped."""
        sections: dict[int, tuple[int, int, int, int, int]] = {}
        for index in range(section_count):
            kind, *section = _SECTION.unpack_from(head, 256 + 32 * index)
            count, offset, length, stride, _ = section
            if kind in (_STATUS_KIND, _SCHEMA_KIND, _RING_KIND) and kind not in sections:
                if offset % 8 or stride % 8 or offset < _HEADER_SIZE or offset + length > file_size or count * stride > length:
                    raise self._bad(f"has a section of kind {kind} that does not lie inside it")
                sections[kind] = (count, offset, length, stride, section[4])
        if len(sections) != 3:
            raise self._bad("lacks its status page, its schema or its ring")
        _, self._status, length, _, _ = sections[_STATUS_KIND]
        if length < _STATUS_WORDS.size:
            raise self._bad(f"has a status page of {length} bytes: at least {_STATUS_WORDS.size} are needed")
        count, offset, _, stride, crc = sections[_SCHEMA_KIND]
        if not (1 <= count <= _MAXIMUM_METRICS and _METRIC.size <= stride <= 1024):
            raise self._bad(f"has an impossible schema ({count} metrics of {stride} bytes)")
        self._take_schema(self._read(count * stride, offset), stride, crc)
        self._capacity, self._ring, _, self._stride, _ = sections[_RING_KIND]
        if not 2 <= self._capacity <= _MAXIMUM_RECORDS or self._capacity & (self._capacity - 1):
            raise self._bad(f"has a ring of {self._capacity} records: must be a power of two from 2 to {_MAXIMUM_RECORDS}")
        if not 64 + 8 * count <= self._stride <= 64 + 16 * _MAXIMUM_METRICS:
            raise self._bad(f"has records of {self._stride} bytes for {count} metrics: at least {64 + 8 * count} are needed")

    def _take_schema(self, schema: bytes, stride: int, crc: int) -> None:
        if zlib.crc32(schema) != crc:
            raise self._bad("has a damaged schema (its checksum differs)")
        metrics: list[Metric] = []
        codes, seen = "", set()
        for offset in range(0, len(schema), stride):
            _, dtype, kind, _, axis, flags, group, low, high, unit, raw = _METRIC.unpack_from(schema, offset)
            name = re.sub(r"[^A-Za-z0-9_./-]", "_", _decode(raw))[:63]
            if dtype >= len(DTYPES) or not name or name in seen:
                raise self._bad(f"has a schema that cannot be read (metric {len(metrics)}, name {name!r}, dtype {dtype})")
            seen.add(name)
            codes += _CODES[DTYPES[dtype]]
            low, high = -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high
            metrics.append(
                Metric(
                    name, _word(KINDS, kind, "gauge"), _decode(unit), DTYPES[dtype], low, high, bool(flags & _HIGHER_BETTER),
                    bool(flags & _MUST_BE_FINITE), bool(flags & _HIDDEN), _word(AXES, axis, "linear"), group,
                )
            )  # fmt: skip
        self.metrics, self._payload = tuple(metrics), struct.Struct("<" + codes)

    def status(self) -> Status:
        """The status words as they are now."""
        words = _STATUS_WORDS.unpack(self._read(_STATUS_WORDS.size, self._status))
        state = words[_STATE]
        if words[_HEAD] >= 1 << 63:
            raise self._bad(f"claims {words[_HEAD]} records")
        return Status(
            heartbeat_count=words[_HEARTBEAT_COUNT],
            heartbeat_boottime_ns=words[_HEARTBEAT_TIME],
            main_count=words[_MAIN_COUNT],
            phase=_word(PHASES, words[_PHASE], "unknown"),
            state=_word(STATES, state & 0xFF, "unknown"),
            reason=state >> 8 & 0xFF,
            exit_code=state >> 16 & 0xFFFF,
            state_count=state >> 32,
            head=words[_HEAD],
            last_checkpoint_step=words[_CHECKPOINT_STEP] if words[_CHECKPOINT_TIME] else None,
            last_checkpoint_boottime_ns=words[_CHECKPOINT_TIME],
            nonfinite_total=words[_NONFINITE],
            divergence_bits=words[_DIVERGENCE],
            cuda_error=words[_CUDA_ERROR],
        )

    def latest(self) -> Record | None:
        """The newest valid record, never an older one than was returned before; None while there is none. Tries a bounded number of times."""
        for _ in range(4):
            head = self.status().head
            for n in range(head - 1, max(head - 1 - min(8, self._capacity), -1), -1):
                if self._shown is not None and n <= self._shown.n:
                    return self._shown
                record = self._record(n, self._read(self._stride, self._ring + (n & (self._capacity - 1)) * self._stride))
                if record is not None:
                    self._shown = record
                    return record
        return self._shown

    def since(self, n: int, limit: int = _MAXIMUM_RECORDS) -> list[Record]:
        """All valid records numbered `n` or higher that are still in the ring, oldest first; of more than `limit`, the newest."""
        head, records = self.status().head, []
        first = max(n, head - self._capacity, head - limit, 0)
        while first < head:
            slot = first & (self._capacity - 1)
            count = min(head - first, self._capacity - slot, max(1, 262144 // self._stride))
            chunk = memoryview(self._read(count * self._stride, self._ring + slot * self._stride))
            for index in range(count):
                record = self._record(first + index, chunk[index * self._stride : (index + 1) * self._stride])
                if record is not None:
                    records.append(record)
            first += count
        return records

    def replaced(self) -> bool:
        """Whether the path no longer leads to the file being read (deleted, or another one by a resume), or the file was cut short."""
        try:
            found, own = os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino) or own.st_size < self.header.file_size

    def close(self) -> None:
        """Let go of the file; everything read so far stays valid."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _record(self, n: int, data: bytes | memoryview) -> Record | None:
        """Record `n` out of its slot, or None if the slot holds another, or half of one."""
        seq, crc, byte_count, number, step, boottime, realtime, session, flags, _ = _RECORD.unpack_from(data)
        if seq != 2 * n + 2 or number != n or byte_count != self._stride - 16 or zlib.crc32(memoryview(data)[12:]) != crc:
            return None
        return Record(n, step, boottime, realtime, session, flags, self._payload.unpack_from(data, 64))

    def _read(self, size: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise self._bad("was closed" if self._descriptor < 0 else f"cannot be read ({error.strerror})") from None
        if len(data) != size:
            raise self._bad(f"was truncated: {size} bytes were expected at byte {offset}, {len(data)} are there")
        return data

    def _bad(self, what: str) -> BadFileError:
        return BadFileError(f"{safe(str(self.path))} {what}")
