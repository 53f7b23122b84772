"""Layout of a metrics file: offsets, codes, and the values read back. Standard library only.

Little-endian, 8-byte aligned fields, the file a multiple of 64 KiB. ABI 1.1:

    0      header    magic, versions, run and process identity, table of at most 8 sections {kind, count, offset,
                     length, stride, crc}, crc at 4092
    4096   status    words stored one by one: heartbeat, main count, phase | state | heads | events |
                     control, checkpoint | faults | history                                   (kind 1)
    8192   schema    128 bytes per metric: id, dtype, kind, unit, flags, divergence bounds, name
                                                                                              (kind 2, crc in the table)
    ...    ring      `capacity` records of 64 + 8N bytes; record n is in slot n & (capacity - 1)
                     {seq u64 | crc u32, nbytes u32 | n u64 | step u64 | boottime u64 | realtime u64 |
                     session u32, flags u32 | nonfinite u64 | N x 8}                          (kind 3)
    ...    events    256 bytes each, slots as in the ring
                     {seq u64 | crc u32, length u16, level u8, code u8 | n u64 | boottime u64 | realtime u64 |
                     step u64 | text 208}                                                     (kind 5, since 1.1)
    ...    frames    two slots of 64 bytes and the pixels; absent without frames
                     {seq u64 | crc u32, nbytes u32 | n u64 | step u64 | lanes, height, width, channels u16 |
                     mode u16, 0 | boottime u64 | 0}                                          (kind 6, since 1.1)

`seq` is 2n+1 while number n is being stored and 2n+2 after. The CRC-32 (zlib's) covers byte 12 to the end of what is
stored, n included. Readers skip unknown kinds of sections, compat bits and codes, and read a newer minor version; they
refuse another major version or an unknown incompat bit. Fields are only appended, never re-typed; reserved ones are
written as zero and ignored.
"""

from __future__ import annotations

import math
import struct
import time
from typing import Final, NamedTuple

MAGIC: Final = b"\x89OPRM\r\n\x1a"
ABI: Final = (1, 1)

STATES: Final = (
    "starting",
    "running",
    "paused",
    "stopping",
    "finished",
    "stopped",
    "failed",
    "diverged",
    "gpu_fault",
    "oom",
)
"""States that a trainer stores; the index is the byte in the file, so that words are only appended, here and in the
tuples below.
"""
TERMINAL: Final = frozenset(("finished", "stopped", "failed", "diverged", "gpu_fault", "oom"))
PHASES: Final = ("idle", "rollout", "update", "eval", "checkpoint", "compile")
KINDS: Final = ("gauge", "counter", "rate", "bucket")
DTYPES: Final = ("f64", "i64", "u64")
AXES: Final = ("linear", "log")
LEVELS: Final = ("info", "warn", "error")
EVENTS: Final = (
    "note",
    "eval",
    "checkpoint",
    "resume",
    "pause",
    "unpause",
    "stop",
    "control",
    "diverged",
    "fault",
    "file",
    "history",
)
"""Subjects of events."""
MODES: Final = ("greedy", "sampled")
"""Ways in which the agent of a frame chooses actions."""

FLAG_NONFINITE, FLAG_CHECKPOINT, FLAG_EVAL, FLAG_NONE = 1, 2, 4, 8
"""Bits of `Record.flags`. NONFINITE: an infinity, or NaN in a column that must be finite. NONE: NaN elsewhere, which
means "no value".
"""

MAXIMUM_METRICS, MAXIMUM_RECORDS, MAXIMUM_SECTIONS, MAXIMUM_FRAME = 4096, 1 << 20, 8, 1 << 24
MINIMUM_SIZE, MAXIMUM_SIZE = 8192, 1 << 30
HEADER_SIZE, STATUS_OFFSET, STATUS_SIZE, SCHEMA_OFFSET, FILE_GRAIN = 4096, 4096, 4096, 8192, 65536
BYTE_ORDER_MARK = 0x01020304
STATUS_KIND, SCHEMA_KIND, RING_KIND, EVENTS_KIND, FRAMES_KIND = 1, 2, 3, 5, 6
HEADER = struct.Struct("<8sIHHIIIIQ16s16sQQIIQQQQ64s32s")  # bytes 0-223
SECTION = struct.Struct("<IIQQII")
METRIC = struct.Struct("<IBBBBIIff40s64s")
RECORD = struct.Struct("<QIIQQQQIIQ")
EVENT = struct.Struct("<QIHBBQQQQ208s")
FRAME = struct.Struct("<QIIQQHHHHHHIQQ")
EVENT_TEXT, FRAME_SLOTS = 208, 2
CODES = {"f64": "d", "i64": "q", "u64": "Q"}
MUST_BE_FINITE, HIGHER_BETTER, HIDDEN = 1, 2, 4
BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# Status words: index from the start of the status section, 8 bytes each.
HEARTBEAT_TIME, HEARTBEAT_COUNT, MAIN_COUNT, PHASE, STATE, HEAD, EVENT_HEAD, EVENTS_DROPPED = 0, 1, 2, 3, 8, 16, 24, 25
CONTROL_SEQUENCE, CONTROL_RESULT, CHECKPOINT_STEP, CHECKPOINT_TIME, CHECKPOINT_FAILURES = 32, 33, 34, 35, 36
CUDA_ERROR, NONFINITE, DIVERGENCE, HISTORY_BYTES, HISTORY_SYNCED, HISTORY_ERRNO = 40, 42, 43, 48, 49, 50
STATUS_WORDS = struct.Struct("<64Q")


class Metric(NamedTuple):
    """One metric of a run, a column of its records. NaN means "no value" unless `must_be_finite`. A value outside `low`
    to `high` (stored as float32) means divergence.
    """

    name: str  # [A-Za-z0-9_./-]{1,63}
    kind: str = "gauge"  # of KINDS
    unit: str = ""  # text of at most 40 bytes
    dtype: str = "f64"  # of DTYPES; integers are stored bit for bit
    low: float = -math.inf
    high: float = math.inf
    higher_better: bool = False
    must_be_finite: bool = False
    hidden: bool = False
    axis: str = "linear"  # of AXES
    group: int = 0


class Header(NamedTuple):
    """Identity of the process that writes a metrics file, constant while the file exists. Realtime is for display only;
    `host` and `version` are untrusted text, made printable.
    """

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
    event_capacity: int = 0  # 0: an older format without events
    frame_bytes: int = 0  # most bytes of pixels in a frame; 0: no frames


class Status(NamedTuple):
    """Current status of the trainer and its counters. `state` and `phase` are "unknown" if a newer trainer stored a
    code without a name here.
    """

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
    event_head: int = 0  # events ever stored
    events_dropped: int = 0  # events that were not stored
    control_sequence: int = 0  # requests answered; 0 before the first
    control_result: int = 0  # result of the last one
    checkpoint_failures: int = 0  # failed checkpoints in a row
    history_bytes: int = 0  # size of the history on the disk
    history_synced: int = 0  # records of this session below this number are synced
    history_errno: int = 0  # error that stops the history; 0: none


class Record(NamedTuple):
    """Values of all metrics at one step, in the order of `Reader.metrics`. `n` counts records from 0 in each
    session.
    """

    n: int
    step: int
    boottime_ns: int
    realtime_ns: int
    session: int
    flags: int
    values: tuple[float, ...]


class Event(NamedTuple):
    """One line about a run for people, with time and step. `n` counts events from 0 in each session. `level` is "info"
    and `code` "note" if a newer trainer stored another.
    """

    n: int
    step: int
    boottime_ns: int
    realtime_ns: int
    level: str  # of LEVELS
    code: str  # of EVENTS
    text: str  # made printable, one line


class RawFrame(NamedTuple):
    """Pixels of one frame of the agent, of one or more lanes. `n` counts frames from 0 in each session. `mode` is "" if
    a newer trainer stored another.
    """

    n: int
    step: int
    boottime_ns: int
    lanes: int
    height: int
    width: int
    channels: int
    mode: str  # of MODES
    pixels: bytes  # lanes * height * width * channels, row by row, lane after lane


def encode(text: str, size: int) -> bytes:
    """Encode text as UTF-8, cut at a whole character so that it fits in `size` bytes with a NUL."""
    return text[:size].encode("utf-8", "replace")[: size - 1].decode("utf-8", "ignore").encode()


def pack_schema(metrics: tuple[Metric, ...]) -> bytes:
    """Encode the schema of a metrics file, the table of its metrics: 128 bytes for each."""
    return b"".join(
        METRIC.pack(
            index,
            DTYPES.index(metric.dtype),
            KINDS.index(metric.kind),
            0,
            AXES.index(metric.axis),
            MUST_BE_FINITE * metric.must_be_finite | HIGHER_BETTER * metric.higher_better | HIDDEN * metric.hidden,
            metric.group,
            _float32(metric.low),
            _float32(metric.high),
            encode(metric.unit, 40),
            metric.name.encode(),
        )
        for index, metric in enumerate(metrics)
    )


def _float32(bound: float) -> float:
    """Return a bound that float32 can store: infinite if it is beyond the range."""
    return math.copysign(math.inf, bound) if abs(bound) > 3.4e38 else bound
