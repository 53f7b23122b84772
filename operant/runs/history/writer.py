"""Writer of the history of a run: a thread that copies records from the ring of the metrics file to segments on the
disk. Standard library only.

It reads the ring like any other reader, so that `publish` never waits for it. A failure of the disk is shown in the
status words and retried later; the ring holds the records meanwhile. If that takes longer than the ring lasts, an event
reports how many were lost.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import threading
import time
import zlib
from array import array
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Final

from operant.errors import BadFileError, OperantError
from operant.runs.history import segment as segments
from operant.runs.history.reader import columns_of
from operant.runs.history.segment import DEFLATED_KIND, FIXED, PLAIN_KIND, Segment
from operant.runs.history.thinning import FACTOR, thin
from operant.runs.metrics import Metric, Reader, Writer
from operant.runs.metrics.layout import pack_schema

_LOOK_S, _WRITE_S, _SYNC_S, _RETRY_S, _TELL_S = 0.25, 1.0, 5.0, 5.0, 10.0
_ROWS: Final = 64  # written at once if more have come
_MOST_ROWS: Final = 512  # in one frame, to catch up
_THIN_LOOK_S = 0.02
_LOOK_BACK: Final = 8  # frames searched for the last record
_THINNEST: Final = FACTOR**8


class History:
    """Thread that copies a run's records from the metrics file to the history on disk, from `start` to `close`. No
    public method but `close` blocks, and none raises.

    `folder` is the run's `history/`; `writer` takes the status of the history; `rewind_to` is the step from which a
    resumed session continues (None for a new run): readers leave out records of older sessions beyond it. Over
    `quota_bytes` the oldest segments are thinned, 4 to 1, as often as needed.
    """

    def __init__(
        self,
        folder: Path,
        metrics_path: Path,
        *,
        writer: Writer,
        run_uuid: bytes,
        session: int,
        rewind_to: int | None = None,
        quota_bytes: int = 1 << 30,
        segment_bytes: int = 64 << 20,
    ) -> None:
        self._metrics_path, self._writer, self._uuid, self._session = Path(metrics_path), writer, run_uuid, session
        self._disk = _Disk(
            Path(folder),
            writer.metrics,
            run_uuid,
            session,
            rewind_to,
            min(segment_bytes, max(quota_bytes // 8, 1 << 16), segments.MAXIMUM_SEGMENT),
        )
        self._quota = quota_bytes
        self._reader: Reader | None = None
        self._next = self._synced = 0  # the first record not written, and not synced
        self._lost = 0
        self._written_s = self._synced_s = self._told_s = self._looked_s = time.monotonic()
        self._retry_s = self._thin_s = 0.0
        self._thinning: Generator[None, None, None] | None = None
        self._status: tuple[int, int, int] | None = None
        self._wake, self._closing, self._asked = threading.Event(), False, False
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Start the thread that copies records to the history."""
        self._thread.start()

    def sync(self) -> None:
        """Request that all records published so far be synced to disk. Returns at once; `Status.history_synced` shows
        when it is done.
        """
        self._asked = True
        self._wake.set()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write and sync the remaining records, then end the thread. Returns whether that was done within `timeout_s`
        seconds. Call it before the metrics file is closed.
        """
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # thread

    def _run(self) -> None:
        """Copy records until `close`, as the body of the thread."""
        try:
            while not self._closing:
                self._copy_once(flush=False)
                self._wake.wait(_LOOK_S if self._thinning is None else _THIN_LOOK_S)
                self._wake.clear()
            self._retry_s = 0.0
            self._copy_once(flush=True)
        finally:
            self._disk.close()
            if self._reader is not None:
                self._reader.close()
            if self._thinning is not None:
                self._thinning.close()

    def _copy_once(self, flush: bool) -> None:
        """Do one round of the thread: copy records and sync if either is due; with `flush` do both at once. A failure
        of the disk is shown in the status and retried later.
        """
        now = time.monotonic()
        if now < self._retry_s:
            return
        flush, self._asked = flush or self._asked, False
        try:
            self._disk.prepare()
            self._copy(now, flush)
            if flush or now - self._synced_s >= _SYNC_S:
                self._sync()
                self._synced_s = now
            self._keep_quota(now)
            self._publish_status(0)
        except BadFileError:  # the metrics file is being replaced: retried later
            self._detach()
            self._asked, self._retry_s = flush, now + 1.0
        except OSError as error:
            self._asked, self._retry_s = flush, now + _RETRY_S
            self._publish_status(error.errno or 1)
        except OperantError:  # the writer is closed, or this process was forked
            self._closing = True

    def _copy(self, now: float, flush: bool) -> None:
        """Append new records of the metrics file to the history if enough have come or a second has passed; with
        `flush` at once. `now`: monotonic clock.
        """
        reader = self._current_reader(now, look=flush)
        if reader is None:
            return
        head = reader.status().head
        if head <= self._next or not (flush or head - self._next >= _ROWS or now - self._written_s >= _WRITE_S):
            return
        slots, expected = reader.raw_since(self._next), self._next
        most = min(_MOST_ROWS, segments.rows_per_frame(FIXED + len(self._writer.metrics)))
        while batch := list(itertools.islice(slots, most)):
            self._disk.append(_columns([data for _, data in batch]))
            missing = batch[-1][0] + 1 - expected - len(batch)
            expected = self._next = batch[-1][0] + 1
            self._lost += missing
        if expected < head:  # an unreadable slot has been overwritten
            self._lost += head - expected
            self._next = head
        self._written_s = now
        if self._lost and (flush or now - self._told_s >= _TELL_S):
            self._writer.event(
                f"history: {self._lost} records were overwritten before they could be saved",
                level="warn",
                code="history",
            )
            self._lost, self._told_s = 0, now

    def _current_reader(self, now: float, *, look: bool) -> Reader | None:
        """Return the reader of this session's metrics file, opened again if the file was replaced; checked at once with
        `look`, else once a second. Raises BadFileError.
        """
        if self._reader is not None and (look or now - self._looked_s >= 1.0):
            self._looked_s = now
            if self._reader.replaced():
                self._detach()
        if self._reader is None:
            self._reader = Reader(self._metrics_path)
        header = self._reader.header
        if (header.run_uuid, header.session) != (self._uuid, self._session):
            self._detach()
        return self._reader

    def _detach(self) -> None:
        """Close the reader of the metrics file; the next round opens the file again."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def _sync(self) -> None:
        """Sync the history to disk. Raises OSError, after which the records since the last sync are written again."""
        try:
            self._disk.sync()
        except OSError:
            # The kernel may have dropped the pages of a failed sync: write them again, to a new segment, as far as
            # the ring still has them.
            self._disk.close_segment()
            self._next = self._synced
            raise
        self._synced = self._next

    def _keep_quota(self, now: float) -> None:
        """Do one step of thinning a segment while the history exceeds its quota. `now`: monotonic clock."""
        if self._thinning is None and self._disk.total > self._quota and now >= self._thin_s:
            self._thin_s = now + _RETRY_S
            victim = self._disk.least_thinned()
            self._thinning = None if victim is None else thin(victim)
        if self._thinning is not None:
            try:
                next(self._thinning)
                return
            except StopIteration:
                self._thin_s = 0.0
            except (OSError, ValueError):  # disk full, or no segment: retried later
                self._thin_s = now + 12 * _RETRY_S
            self._thinning = None
            self._disk.update_total()

    def _publish_status(self, errno: int) -> None:
        """Write size, synced records and `errno` (0: none) of the history to the metrics file, if one has changed."""
        status = (self._disk.total, self._synced, errno)
        if status != self._status:
            with contextlib.suppress(OperantError):
                self._writer.set_history(*status)
            self._status = status


class _Disk:
    """Segment files of a history, of which the newest is open for appending. After an OSError a method may be called
    again.
    """

    def __init__(
        self,
        folder: Path,
        metrics: tuple[Metric, ...],
        run_uuid: bytes,
        session: int,
        rewind_to: int | None,
        segment_bytes: int,
    ) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes
        self._schema_crc = zlib.crc32(pack_schema(metrics))
        self._head = Segment(session, run_uuid, rewind_to, 0, 1, time.time_ns(), metrics, self._schema_crc)
        self._descriptor, self._path, self._end, self._dirty = -1, folder, 0, False
        self._others = 0  # bytes of finished segments
        self._ready = False

    @property
    def total(self) -> int:
        """Total bytes of the history's segments."""
        return self._others + self._end

    def prepare(self) -> None:
        """Make the history's folder, cut an incomplete end that a kill left, and begin a segment. Does nothing once it
        has succeeded. Raises OSError.
        """
        if self._ready:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)  # no parents: a deleted run folder is not made again
        present = segments.segments(self._folder)
        if present:
            _cut_tail(present[-1][1])
        for left in self._folder.glob(".seg-*.opl.tmp"):  # left by a trainer killed while thinning
            left.unlink(missing_ok=True)
        self._begin(0)
        self._ready = True

    def append(self, columns: list[array[int]]) -> None:
        """Append records, given as columns of words, as one frame of the history; in a new segment if the open one is
        full. Raises OSError.
        """
        if self._descriptor < 0 or self._end >= self._segment_bytes:
            if self._descriptor >= 0:
                self.sync()
            self._begin(columns[segments.N][0])
        frame = segments.pack_rows(self._schema_crc, columns)
        try:
            _write(self._descriptor, frame, self._end)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end, self._dirty = self._end + len(frame), True

    def sync(self) -> None:
        """Wait until all appended frames are on the disk (fdatasync). Raises OSError."""
        if self._dirty:
            os.fdatasync(self._descriptor)
            self._dirty = False

    def close_segment(self) -> None:
        """Close the open segment, so that the next record begins a new one."""
        self.close()
        self.update_total()

    def update_total(self) -> None:
        """Read the sizes of the history's closed segments again, for `total`."""
        total = 0
        for _, path in segments.segments(self._folder):
            with contextlib.suppress(OSError):
                total += path.stat().st_size if path != self._path else 0
        self._others = total

    def least_thinned(self) -> Path | None:
        """Return the path of the closed segment that was thinned least, the oldest of those; None if all are thinned to
        the limit.
        """
        candidates: list[tuple[int, int, Path]] = []
        for number, path in segments.segments(self._folder):
            head = segments.describe(path) if path != self._path else None
            if head is not None and head.every < _THINNEST:
                candidates.append((head.every, number, path))
        return min(candidates)[2] if candidates else None

    def close(self) -> None:
        """Close the file of the history's open segment; errors are ignored."""
        descriptor, self._descriptor, self._path, self._end, self._dirty = self._descriptor, -1, self._folder, 0, False
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _begin(self, first_n: int) -> None:
        """Begin a new segment whose first record has number `first_n`. Raises OSError."""
        self.close_segment()
        present = segments.segments(self._folder)
        path = segments.segment_path(self._folder, present[-1][0] + 1 if present else 1)
        head = segments.pack_head(self._head._replace(first_n=first_n, realtime_ns=time.time_ns()))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _write(descriptor, head, 0)
            _sync_folder(self._folder)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._descriptor, self._path, self._end, self._dirty = descriptor, path, len(head), True


def salvage(folder: Path, metrics_path: Path) -> int:
    """Append the records that only the metrics file has, after a kill, to the history in `folder`. Returns their
    number. Called before a resumed session replaces the metrics file.

    Never raises: if the file or the history is unreadable or unwritable, fewer records are saved.
    """
    try:
        with Reader(metrics_path) as reader:
            session, uuid, metrics = reader.header.session, reader.header.run_uuid, reader.metrics
            last = _last_record(folder, session)
            after, rewind = last if last is not None else (-1, _resumed_at(reader))
            disk = _Disk(Path(folder), metrics, uuid, session, rewind, segments.MAXIMUM_SEGMENT)
            slots = reader.raw_since(after + 1)
            saved, most = 0, min(_MOST_ROWS, segments.rows_per_frame(FIXED + len(metrics)))
            width = 64 + 8 * len(metrics)
            try:
                while batch := [bytes(data[:width]) for _, data in itertools.islice(slots, most)]:
                    disk.prepare()
                    disk.append(_columns(batch))
                    saved += len(batch)
                disk.sync()
            finally:
                disk.close()
            return saved
    except (OSError, BadFileError):
        return 0


def _last_record(folder: Path, session: int) -> tuple[int, int | None] | None:
    """Return what a history holds of a session: its highest record number (-1 for none), and the step from which the
    session was resumed (None for a first one). None if it holds nothing.
    """
    for _, path in reversed(segments.segments(folder)):
        head = segments.describe(path)
        if head is None or head.session > session:
            continue
        if head.session < session:
            break
        last = head.first_n - 1
        descriptor = segments.open_segment(path)
        try:
            newest = deque(
                (frame for frame in segments.Scan(descriptor) if frame[0] in (PLAIN_KIND, DEFLATED_KIND)),
                maxlen=_LOOK_BACK,
            )
        finally:
            os.close(descriptor)
        for kind, payload in newest:
            unpacked = segments.unpack_rows(kind, payload, FIXED + len(head.metrics))
            if unpacked is not None:
                last = max(last, columns_of(*unpacked)[segments.N][-1])
        return last, head.rewind_to
    return None


def _resumed_at(reader: Reader) -> int | None:
    """Return the step from which a session was resumed that was killed before its history began: from its event, else
    just before its first record; None for a first session.
    """
    if reader.header.session <= 1:
        return None
    event_step = next((event.step for event in reader.events(0) if event.code == "resume"), None)
    first = next(iter(reader.since(0)), None)
    return event_step if event_step is not None or first is None else max(0, first.step - 1)


def _columns(slots: list[bytes] | list[memoryview]) -> list[array[int]]:
    """Transpose records of the metrics file's ring buffer to columns of 8-byte words, from byte 16 on."""
    words = array("Q")
    words.frombytes(b"".join([data[16:] for data in slots]))
    width = len(words) // len(slots)
    return [words[column::width] for column in range(width)]


def _cut_tail(path: Path) -> None:
    """Truncate a history segment after its last valid frame. A segment without a valid frame does not change."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            stats = os.fstat(descriptor)
            if stat.S_ISREG(stats.st_mode) and stats.st_size <= segments.MAXIMUM_SEGMENT:
                scan = segments.Scan(descriptor)
                for _ in scan:
                    pass
                if 0 < scan.end < scan.size:
                    os.ftruncate(descriptor, scan.end)
        finally:
            os.close(descriptor)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """Write `data` at byte `offset` of a file, completely. Raises OSError."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)


def _sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
