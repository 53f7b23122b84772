"""Format of a history: segments of frames with a checksum each. Standard library only.

A segment is a sequence of frames, little-endian:

    frame      "OPLF" | length u32 | crc32 u32 | kind u32 | payload of `length` bytes, at most 1 MiB;
               the CRC covers length, kind and payload
    kind 1     head of a segment, stored twice at its beginning: {major u16, minor u16, session u32, every u32,
               metrics u32, run uuid 16, rewind u64, first n u64, realtime u64} and the schema as in a metrics file,
               128 bytes per metric
    kind 2     records: {crc of the schema u32, rows u32, columns u32, 0 u32} and the records' words from byte 16 on,
               column by column, 8 bytes each: n, step, boottime, realtime, session | flags << 32, nonfinite, then the
               metrics
    kind 3     like 2, but the words are split by byte (all first bytes, all second bytes, ...) and deflated with zlib

Every frame can be read alone once any head with its schema was seen. `every` is 1, or the number of records merged into
one by thinning. `rewind` is the step from which the session continued, 2^64 - 1 for none: records of older sessions
beyond it do not precede it. Nothing is changed in place: a reader drops an incomplete end, and continues after damage
at the next valid frame. Unknown kinds are skipped, and so is another major version.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from operant.runs.metrics.layout import MAXIMUM_METRICS, METRIC, Metric, pack_schema
from operant.runs.metrics.reader import unpack_schema

ABI: Final = (1, 0)
MAGIC: Final = b"OPLF"
SEGMENT_KIND, PLAIN_KIND, DEFLATED_KIND = 1, 2, 3
FRAME = struct.Struct("<4sIII")
SEGMENT = struct.Struct("<HHIII16sQQQ")
ROWS = struct.Struct("<IIII")
MAXIMUM_PAYLOAD: Final = 1 << 20
MAXIMUM_SEGMENT: Final = 1 << 28
N, STEP, BOOTTIME, REALTIME, FLAGS, NONFINITE, FIXED = range(7)
"""Columns before those of the metrics, and their number (FIXED)."""

_NEVER_REWOUND = (1 << 64) - 1
_BLOCK_BYTES, _HEAD_BYTES = 1 << 21, 1 << 22
# limit of checksums over invalid frames: a file of false beginnings must not take forever
_WASTE_BYTES = 1 << 26
_NAME = re.compile(r"seg-(\d{6})\.opl")


class Segment(NamedTuple):
    """Head of a history segment: the session that wrote it, the step from which the session was resumed (`rewind_to`),
    and the metrics of its columns.
    """

    session: int
    run_uuid: bytes
    rewind_to: int | None
    first_n: int
    every: int
    realtime_ns: int
    metrics: tuple[Metric, ...]
    schema_crc: int


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Return number and path of each segment in the folder of a history, oldest first; [] without a folder."""
    with contextlib.suppress(OSError, ValueError):
        return sorted((int(match[1]), folder / name) for name in os.listdir(folder) if (match := _NAME.fullmatch(name)))
    return []


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of segment `number` in the folder of a history."""
    return folder / f"seg-{number:06d}.opl"


# ----------------------------------------------------------------------------------------------------------------------
# packing


def pack_frame(kind: int, payload: bytes) -> bytes:
    """Encode a frame of a history segment: magic, length, checksum and kind, then the payload."""
    return FRAME.pack(MAGIC, len(payload), _checksum(len(payload), kind, payload), kind) + payload


def pack_head(segment: Segment) -> bytes:
    """Encode the beginning of a history segment: its head, as two equal frames."""
    rewind = _NEVER_REWOUND if segment.rewind_to is None else segment.rewind_to
    fixed = SEGMENT.pack(
        *ABI,
        segment.session,
        segment.every,
        len(segment.metrics),
        segment.run_uuid,
        rewind,
        segment.first_n,
        segment.realtime_ns,
    )
    return 2 * pack_frame(SEGMENT_KIND, fixed + pack_schema(segment.metrics))


def pack_rows(schema_crc: int, columns: Sequence[array[int]]) -> bytes:
    """Encode records, given as columns of 8-byte words, as a frame; deflated if that is shorter. At most
    `rows_per_frame` records. `schema_crc`: checksum of the schema of their metrics.
    """
    plain = b"".join([column.tobytes() for column in columns])
    head = ROWS.pack(schema_crc, len(columns[0]), len(columns), 0)
    deflated = zlib.compress(b"".join([plain[byte::8] for byte in range(8)]), 1)
    return (
        pack_frame(DEFLATED_KIND, head + deflated)
        if len(deflated) < len(plain)
        else pack_frame(PLAIN_KIND, head + plain)
    )


def rows_per_frame(columns: int) -> int:
    """Return the maximum number of records in a frame, for records of `columns` words."""
    return (MAXIMUM_PAYLOAD - ROWS.size) // (8 * columns)


def _checksum(length: int, kind: int, payload: bytes | memoryview) -> int:
    """Return the CRC-32 of a frame over length, kind and payload."""
    return zlib.crc32(payload, zlib.crc32(struct.pack("<II", length, kind)))


# ----------------------------------------------------------------------------------------------------------------------
# unpacking


def unpack_head(payload: bytes | memoryview) -> Segment | None:
    """Parse the head of a history segment from the payload of a frame of kind 1; None if this version does not
    understand it.
    """
    if len(payload) < SEGMENT.size:
        return None
    major, _, session, every, count, run_uuid, rewind, first_n, realtime = SEGMENT.unpack_from(payload)
    schema = bytes(payload[SEGMENT.size :])
    if major != ABI[0] or not 1 <= count <= MAXIMUM_METRICS or len(schema) < count * METRIC.size or not every:
        return None
    schema = schema[: count * METRIC.size]
    try:
        metrics = unpack_schema(schema)
    except ValueError:
        return None
    return Segment(
        session,
        run_uuid,
        None if rewind == _NEVER_REWOUND else rewind,
        first_n,
        every,
        realtime,
        metrics,
        zlib.crc32(schema),
    )


def schema_of(payload: bytes | memoryview) -> int:
    """Return the checksum of the schema that a record frame's payload names; -1 for a payload that is too short."""
    return int(ROWS.unpack_from(payload)[0]) if len(payload) >= ROWS.size else -1


def unpack_rows(
    kind: int, payload: bytes | memoryview, columns: int
) -> tuple[int, bytes | bytearray | memoryview] | None:
    """Unpack the payload of a record frame (kind 2 or 3) to (number of records, words column by column); None if it
    does not hold `columns` columns.

    The claimed size is checked before any allocation, and nothing is inflated beyond it.
    """
    if len(payload) < ROWS.size:
        return None
    _, rows, found, _ = ROWS.unpack_from(payload)
    size = rows * columns * 8
    if found != columns or not 0 < size <= MAXIMUM_PAYLOAD:
        return None
    body = payload[ROWS.size :]
    if kind == PLAIN_KIND:
        return (rows, body) if len(body) == size else None
    inflate = zlib.decompressobj()
    try:
        split = inflate.decompress(body, size + 1)
    except zlib.error:
        return None
    if len(split) != size or not inflate.eof:
        return None
    words, part = bytearray(size), size // 8
    for byte in range(8):
        words[byte::8] = split[byte * part : (byte + 1) * part]
    return rows, words


class Scan:
    """Iterator over the valid frames of one open history segment, as (kind, payload), for a single pass.

    `damaged` counts the byte ranges between valid frames, `torn` is true if the file ends in such a range, `end` is the
    end of the last valid frame. Reads at most `limit_bytes` of what was there at the beginning. A read that fails ends
    the scan like the end of the file.
    """

    def __init__(self, descriptor: int, block_bytes: int = _BLOCK_BYTES, limit_bytes: int = MAXIMUM_SEGMENT) -> None:
        self.damaged, self.end, self.torn = 0, 0, False
        self._descriptor, self._block_bytes = descriptor, block_bytes
        self.size = min(os.fstat(descriptor).st_size, limit_bytes)

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        place, base, data, wasted, astray = 0, 0, b"", 0, False
        while place + FRAME.size <= self.size and wasted < _WASTE_BYTES:
            if place - base + FRAME.size > len(data):
                data, base = self._read(place, FRAME.size), place
                if len(data) < FRAME.size:
                    break
            magic, length, crc, kind = FRAME.unpack_from(data, place - base)
            if magic == MAGIC and length <= MAXIMUM_PAYLOAD:
                if place - base + FRAME.size + length > len(data):
                    data, base = self._read(place, FRAME.size + length), place
                payload = memoryview(data)[place - base + FRAME.size : place - base + FRAME.size + length]
                if len(payload) == length and _checksum(length, kind, payload) == crc:
                    place += FRAME.size + length
                    self.damaged, self.end, astray = self.damaged + astray, place, False
                    yield kind, payload
                    continue
                wasted += length
            wasted, astray = wasted + 4 * FRAME.size, True
            found = data.find(MAGIC, place - base + 1)
            place = base + found if found >= 0 else max(place + 1, base + len(data) - len(MAGIC) + 1)
        self.torn = self.end < self.size

    def _read(self, offset: int, least: int) -> bytes:
        """Read at least `least` bytes at `offset` if the segment has them; b"" if the read fails."""
        with contextlib.suppress(OSError):
            return os.pread(self._descriptor, min(max(least, self._block_bytes), self.size - offset), offset)
        return b""


def open_segment(path: Path) -> int:
    """Open a history segment for reading and return the descriptor. Raises OSError if it is missing, a link, or not a
    regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def describe(path: Path) -> Segment | None:
    """Return the head of a history segment from its first valid copy; None without one, or for an unreadable file."""
    try:
        descriptor = open_segment(path)
    except (OSError, ValueError):
        return None
    try:
        for kind, payload in Scan(descriptor, 65536, _HEAD_BYTES):
            if kind == SEGMENT_KIND and (segment := unpack_head(payload)) is not None:
                return segment
        return None
    finally:
        os.close(descriptor)
