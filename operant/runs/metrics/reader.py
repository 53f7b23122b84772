"""Reader of a metrics file, while it is being written or after. Standard library only.

Uses only `pread`, so that a truncated file raises an error and no signal. Every field of the file is checked before
use: nothing in it is trusted.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from operant import __version__, text
from operant.errors import BadFileError
from operant.runs.metrics import layout
from operant.runs.metrics.layout import ABI, Event, Header, Metric, RawFrame, Record, Status

if TYPE_CHECKING:
    from typing import Self

_CHUNK_BYTES = 262144


class _Section(NamedTuple):
    """Position of one section in a metrics file, checked to lie inside the file."""

    slots: int
    offset: int
    length: int
    stride: int
    crc: int


_ABSENT = _Section(0, 0, 0, 0, 0)


class Reader:
    """Reader of a metrics file. Every method raises only BadFileError, with a message: for a file that is absent, not a
    regular file, damaged, truncated, or of an incompatible version.
    """

    header: Header
    metrics: tuple[Metric, ...]

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._shown: Record | None = None
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) == errno.ELOOP:
                raise self._bad_file_error("is a symbolic link; name the file itself") from None
            raise self._bad_file_error(f"cannot be opened ({getattr(error, 'strerror', None) or error})") from None
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    # opening

    def _attach(self) -> None:
        """Read and check the header of the open metrics file. Raises BadFileError."""
        try:
            found = os.fstat(self._descriptor)
        except OSError as error:
            raise self._bad_file_error(f"cannot be read ({error.strerror})") from None
        if not stat.S_ISREG(found.st_mode):
            raise self._bad_file_error("is not a regular file")
        if not layout.MINIMUM_SIZE <= found.st_size <= layout.MAXIMUM_SIZE:
            raise self._bad_file_error(
                f"has {found.st_size} bytes: a metrics file has {layout.MINIMUM_SIZE} to {layout.MAXIMUM_SIZE}, so it "
                "was truncated or is another file"
            )
        head = self._read(layout.HEADER_SIZE, 0)
        (
            magic,
            mark,
            major,
            minor,
            header_size,
            incompat,
            _,
            section_count,
            file_size,
            run_uuid,
            boot_id,
            session,
            namespace,
            pid,
            uid,
            ticks,
            realtime,
            boottime,
            _,
            host,
            version,
        ) = layout.HEADER.unpack_from(head)
        if magic != layout.MAGIC:
            damaged = magic[:4] == layout.MAGIC[:4] or layout.MAGIC[1:4] in magic
            raise self._bad_file_error(
                "was damaged, perhaps by a text-mode transfer"
                if damaged
                else "is not a metrics file (wrong first bytes)"
            )
        if mark != layout.BYTE_ORDER_MARK:
            raise self._bad_file_error("has the wrong byte order")
        if major != ABI[0]:
            raise self._bad_file_error(
                f"has format {major}.{minor}, and this operant {__version__} reads format {ABI[0]}.x: use the operant "
                "that wrote it"
            )
        if zlib.crc32(head[:4092]) != struct.unpack_from("<I", head, 4092)[0]:
            raise self._bad_file_error("has a damaged header (its checksum differs)")
        if incompat:
            raise self._bad_file_error(
                f"has format {major}.{minor} with features this operant {__version__} (format {ABI[0]}.{ABI[1]}) does "
                f"not know (bits {incompat:#x}), "
                f"written by operant {_decode(version)}: update operant"
            )
        if file_size > found.st_size:
            raise self._bad_file_error(f"was truncated: {found.st_size} of {file_size} bytes are left")
        if section_count > layout.MAXIMUM_SECTIONS or not layout.HEADER_SIZE <= header_size <= file_size:
            raise self._bad_file_error(
                f"has an impossible header ({section_count} sections, header of {header_size} bytes)"
            )
        self._read_sections(head, section_count, file_size)
        self.header = Header(
            (major, minor),
            session,
            run_uuid,
            boot_id,
            pid,
            namespace,
            ticks,
            uid,
            realtime,
            boottime,
            _decode(host),
            _decode(version),
            self._ring.slots,
            file_size,
            self._events.slots,
            max(0, self._frames.stride - layout.FRAME.size),
        )

    def _read_sections(self, head: bytes, section_count: int, file_size: int) -> None:
        """Find the first section of each known kind in the header `head`, and check that it lies inside the file.
        Raises BadFileError.
        """
        known = (layout.STATUS_KIND, layout.SCHEMA_KIND, layout.RING_KIND, layout.EVENTS_KIND, layout.FRAMES_KIND)
        sections: dict[int, _Section] = {}
        for index in range(section_count):
            kind, *numbers = layout.SECTION.unpack_from(head, 256 + 32 * index)
            if kind in known and kind not in sections:
                section = _Section(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4])
                outside = (
                    section.offset < layout.HEADER_SIZE
                    or section.offset + section.length > file_size
                    or section.slots * section.stride > section.length
                )
                if section.offset % 8 or section.stride % 8 or outside:
                    raise self._bad_file_error(f"has a section of kind {kind} outside the file")
                sections[kind] = section
        if not {layout.STATUS_KIND, layout.SCHEMA_KIND, layout.RING_KIND} <= sections.keys():
            raise self._bad_file_error("lacks its status page, its schema or its ring")
        if sections[layout.STATUS_KIND].length < layout.STATUS_WORDS.size:
            raise self._bad_file_error(
                f"has a status page of {sections[layout.STATUS_KIND].length} bytes: at least "
                f"{layout.STATUS_WORDS.size} are needed"
            )
        self._status, schema, self._ring = (
            sections[layout.STATUS_KIND].offset,
            sections[layout.SCHEMA_KIND],
            sections[layout.RING_KIND],
        )
        if not (1 <= schema.slots <= layout.MAXIMUM_METRICS and layout.METRIC.size <= schema.stride <= 1024):
            raise self._bad_file_error(f"has an impossible schema ({schema.slots} metrics of {schema.stride} bytes)")
        data = self._read(schema.slots * schema.stride, schema.offset)
        if zlib.crc32(data) != schema.crc:
            raise self._bad_file_error("has a damaged schema (its checksum differs)")
        try:
            self.metrics = unpack_schema(data, schema.stride)
        except ValueError as error:
            raise self._bad_file_error(f"has an unreadable schema ({error})") from None
        self._payload = struct.Struct("<" + "".join(layout.CODES[metric.dtype] for metric in self.metrics))
        self._check_ring("ring of {} records", self._ring)
        if not 64 + 8 * schema.slots <= self._ring.stride <= 64 + 16 * layout.MAXIMUM_METRICS:
            raise self._bad_file_error(
                f"has records of {self._ring.stride} bytes for {schema.slots} metrics: at least "
                f"{64 + 8 * schema.slots} are needed"
            )
        self._events = sections.get(layout.EVENTS_KIND, _ABSENT)
        if self._events is not _ABSENT:
            self._check_ring("ring of {} events", self._events)
            if not layout.EVENT.size <= self._events.stride <= 4096:
                raise self._bad_file_error(
                    f"has events of {self._events.stride} bytes: at least {layout.EVENT.size} are needed"
                )
        self._frames = sections.get(layout.FRAMES_KIND, _ABSENT)
        if self._frames is not _ABSENT and not (
            1 <= self._frames.slots <= 16
            and layout.FRAME.size <= self._frames.stride <= layout.FRAME.size + layout.MAXIMUM_FRAME
        ):
            raise self._bad_file_error(
                f"has an impossible frame section ({self._frames.slots} of {self._frames.stride} bytes)"
            )

    def _check_ring(self, what: str, ring: _Section) -> None:
        """Check the number of slots of a ring buffer; `what` names it in the message. Raises BadFileError."""
        if not 2 <= ring.slots <= layout.MAXIMUM_RECORDS or ring.slots & (ring.slots - 1):
            raise self._bad_file_error(
                f"has a {what.format(ring.slots)}: must be a power of two from 2 to {layout.MAXIMUM_RECORDS}"
            )

    # reading

    def status(self) -> Status:
        """Read the trainer's current status (heartbeat, state, counters) from the metrics file."""
        words = layout.STATUS_WORDS.unpack(self._read(layout.STATUS_WORDS.size, self._status))
        state = words[layout.STATE]
        for head, what in ((words[layout.HEAD], "records"), (words[layout.EVENT_HEAD], "events")):
            if head >= 1 << 63:
                raise self._bad_file_error(f"claims {head} {what}")
        return Status(
            heartbeat_count=words[layout.HEARTBEAT_COUNT],
            heartbeat_boottime_ns=words[layout.HEARTBEAT_TIME],
            main_count=words[layout.MAIN_COUNT],
            phase=_name_of_code(layout.PHASES, words[layout.PHASE], "unknown"),
            state=_name_of_code(layout.STATES, state & 0xFF, "unknown"),
            reason=state >> 8 & 0xFF,
            exit_code=state >> 16 & 0xFFFF,
            state_count=state >> 32,
            head=words[layout.HEAD],
            last_checkpoint_step=words[layout.CHECKPOINT_STEP] if words[layout.CHECKPOINT_TIME] else None,
            last_checkpoint_boottime_ns=words[layout.CHECKPOINT_TIME],
            nonfinite_total=words[layout.NONFINITE],
            divergence_bits=words[layout.DIVERGENCE],
            cuda_error=words[layout.CUDA_ERROR],
            event_head=words[layout.EVENT_HEAD],
            events_dropped=words[layout.EVENTS_DROPPED],
            control_sequence=words[layout.CONTROL_SEQUENCE],
            control_result=words[layout.CONTROL_RESULT],
            checkpoint_failures=words[layout.CHECKPOINT_FAILURES],
            history_bytes=words[layout.HISTORY_BYTES],
            history_synced=words[layout.HISTORY_SYNCED],
            history_errno=words[layout.HISTORY_ERRNO],
        )

    def latest(self) -> Record | None:
        """Return the newest valid record, never older than the last one returned; None without one. Makes a bounded
        number of attempts.
        """
        ring = self._ring
        for _ in range(4):
            head = self.status().head
            for n in range(head - 1, max(head - 1 - min(8, ring.slots), -1), -1):
                if self._shown is not None and n <= self._shown.n:
                    return self._shown
                data = self._read(ring.stride, ring.offset + (n & (ring.slots - 1)) * ring.stride)
                if self._is_valid(n, data):
                    self._shown = self._parse_record(n, data)
                    return self._shown
        return self._shown

    def since(self, n: int, limit: int = layout.MAXIMUM_RECORDS) -> list[Record]:
        """Return the valid records from number `n` on that the ring buffer still holds, oldest first. Of more than
        `limit` only the newest.
        """
        return [self._parse_record(number, data) for number, data in self.raw_since(n, limit)]

    def raw_since(self, n: int, limit: int = layout.MAXIMUM_RECORDS) -> Iterator[tuple[int, memoryview]]:
        """Yield (number, bytes) of the valid records from number `n` on, at most the newest `limit`. The bytes are
        `layout.RECORD` and the values.
        """
        for number, data in self._slots(self._ring, n, self.status().head, limit):
            if self._is_valid(number, data):
                yield number, data

    def events(self, since: int = 0, limit: int = layout.MAXIMUM_RECORDS) -> list[Event]:
        """Return the valid events from number `since` on that the metrics file still holds, oldest first. Of more than
        `limit` only the newest. [] for a file of format 1.0.
        """
        events = []
        for number, data in self._slots(self._events, since, self.status().event_head, limit):
            seq, crc, length, level, code, n, boottime, realtime, step, raw = layout.EVENT.unpack_from(data)
            if seq == 2 * number + 2 and n == number and length <= layout.EVENT_TEXT and zlib.crc32(data[12:]) == crc:
                line = text.safe(raw[:length], layout.EVENT_TEXT)
                events.append(
                    Event(
                        n,
                        step,
                        boottime,
                        realtime,
                        _name_of_code(layout.LEVELS, level, "info"),
                        _name_of_code(layout.EVENTS, code, "note"),
                        line,
                    )
                )
        return events

    def frame(self, after: int = -1) -> RawFrame | None:
        """Return the newest valid frame of the agent if its number is greater than `after`; else None. Makes a bounded
        number of attempts.
        """
        frames, head = self._frames, layout.FRAME.size
        for _ in range(4):
            numbers = [
                layout.FRAME.unpack(self._read(head, frames.offset + slot * frames.stride))[3]
                for slot in range(frames.slots)
            ]
            newer = sorted(((n, slot) for slot, n in enumerate(numbers) if n > after), reverse=True)
            for n, slot in newer:
                frame = self._read_frame(n, frames.offset + slot * frames.stride)
                if frame is not None:
                    return frame
            if not newer:
                break
        return None

    def replaced(self) -> bool:
        """Whether the open metrics file is out of use: its path is missing or names another file, or it was
        truncated.
        """
        try:
            found, own = os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino) or own.st_size < self.header.file_size

    def close(self) -> None:
        """Close the metrics file. Values that were read stay valid."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # slots

    def _slots(self, ring: _Section, first: int, head: int, limit: int) -> Iterator[tuple[int, memoryview]]:
        """Yield (number, bytes) of the slots of numbers `first` to `head` - 1 that the ring buffer still holds, at most
        the newest `limit`; not validated (see `_is_valid`).
        """
        n = max(first, head - ring.slots, head - limit, 0)
        while n < head and ring.slots:
            slot = n & (ring.slots - 1)
            count = min(head - n, ring.slots - slot, max(1, _CHUNK_BYTES // ring.stride))
            chunk = memoryview(self._read(count * ring.stride, ring.offset + slot * ring.stride))
            for index in range(count):
                yield n + index, chunk[index * ring.stride : (index + 1) * ring.stride]
            n += count

    def _is_valid(self, n: int, data: bytes | memoryview) -> bool:
        """Whether the bytes of a slot are record `n`, complete and undamaged."""
        seq, crc, byte_count, number, *_ = layout.RECORD.unpack_from(data)
        return bool(
            seq == 2 * n + 2
            and number == n
            and byte_count == self._ring.stride - 16
            and zlib.crc32(memoryview(data)[12:]) == crc
        )

    def _parse_record(self, n: int, data: bytes | memoryview) -> Record:
        """Parse the bytes of the slot that holds record number `n`."""
        _, _, _, _, step, boottime, realtime, session, flags, _ = layout.RECORD.unpack_from(data)
        return Record(n, step, boottime, realtime, session, flags, self._payload.unpack_from(data, layout.RECORD.size))

    def _read_frame(self, n: int, offset: int) -> RawFrame | None:
        """Read the frame in the slot at byte `offset`; None if it is not number `n` or incomplete."""
        size = layout.FRAME.size
        head = layout.FRAME.unpack(self._read(size, offset))
        seq, crc, nbytes, number, step, lanes, height, width, channels, mode, _, _, boottime, _ = head
        pixel_count = lanes * height * width * channels
        if (
            seq != 2 * n + 2
            or number != n
            or nbytes != size - 16 + pixel_count
            or not 0 < pixel_count <= self._frames.stride - size
        ):
            return None
        data = memoryview(self._read(size + pixel_count, offset))
        if layout.FRAME.unpack_from(data) != head or zlib.crc32(data[12:]) != crc:
            return None
        return RawFrame(
            n, step, boottime, lanes, height, width, channels, _name_of_code(layout.MODES, mode, ""), bytes(data[size:])
        )

    def _read(self, size: int, offset: int) -> bytes:
        """Read exactly `size` bytes at `offset`. Raises BadFileError."""
        try:
            data = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise self._bad_file_error(
                "was closed" if self._descriptor < 0 else f"cannot be read ({error.strerror})"
            ) from None
        if len(data) != size:
            raise self._bad_file_error(f"was truncated: expected {size} bytes at byte {offset}, got {len(data)}")
        return data

    def _bad_file_error(self, what: str) -> BadFileError:
        """Return a BadFileError that says `what` is wrong with the file."""
        return BadFileError(f"{text.safe(self.path, 4096)} {what}")


def unpack_schema(data: bytes, stride: int = layout.METRIC.size) -> tuple[Metric, ...]:
    """Parse the bytes of a schema, `stride` for each metric, and return its metrics. Raises ValueError for a schema
    that no writer produces.
    """
    metrics: list[Metric] = []
    names: set[str] = set()
    for offset in range(0, len(data), stride):
        _, dtype, kind, _, axis, flags, group, low, high, unit, raw = layout.METRIC.unpack_from(data, offset)
        name = re.sub(r"[^A-Za-z0-9_./-]", "_", _decode(raw))[:63]
        if dtype >= len(layout.DTYPES) or not name or name in names:
            raise ValueError(f"metric {len(metrics)}, name {name!r}, dtype {dtype}")
        names.add(name)
        low, high = -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high
        metrics.append(
            Metric(
                name,
                _name_of_code(layout.KINDS, kind, "gauge"),
                _decode(unit),
                layout.DTYPES[dtype],
                low,
                high,
                bool(flags & layout.HIGHER_BETTER),
                bool(flags & layout.MUST_BE_FINITE),
                bool(flags & layout.HIDDEN),
                _name_of_code(layout.AXES, axis, "linear"),
                group,
            )
        )
    return tuple(metrics)


def _decode(raw: bytes) -> str:
    """Decode a text that ends at the first NUL, made printable."""
    return text.safe(raw.split(b"\0", 1)[0])


def _name_of_code(words: tuple[str, ...], code: int, otherwise: str) -> str:
    """Return the name of a code; `otherwise` for a code without a name."""
    return words[code] if code < len(words) else otherwise
