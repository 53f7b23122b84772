"""History beyond the ring: equality with the published records; damage, full disks, kills, rewinds, thinning."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import struct
import subprocess
import sys
import time
import zlib
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from operant.runs.history import History, read, salvage, segment, thinning
from operant.runs.history import writer as writing
from operant.runs.metrics import FLAG_CHECKPOINT, FLAG_EVAL, Metric, Reader, Writer

ROOT = Path(__file__).resolve().parents[2]
UUID = bytes(range(16))
METRICS = (
    Metric("return"),
    Metric("episodes", "counter"),
    Metric("seen", "counter", dtype="u64"),
    Metric("score", dtype="i64"),
)


class Run:
    """Session of a trainer: the writer of the metrics file, and its history."""

    def __init__(
        self, folder: Path, *, session=1, rewind_to=None, capacity=1024, metrics=METRICS, start=True, **options
    ):
        self.folder, self.history_folder = folder, folder / "history"
        self.writer = Writer(
            folder / "metrics.mm", metrics, run_uuid=UUID, session=session, capacity=capacity, version="t", host="h"
        )
        where = (self.history_folder, self.writer.path)
        self.history = History(
            *where, writer=self.writer, run_uuid=UUID, session=session, rewind_to=rewind_to, **options
        )
        if start:
            self.history.start()

    def publish(self, steps, flags=0):
        for step in steps:
            self.writer.publish(step, values_of(step)[: len(self.writer.metrics)], flags=flags)

    def wait(self, what):
        """Wait until the status satisfies a predicate."""
        end = time.monotonic() + DEADLINE_S
        with Reader(self.writer.path) as reader:
            while not what(reader.status()):
                assert time.monotonic() < end, reader.status()
                time.sleep(0.002)

    def sync(self):
        self.history.sync()
        self.wait(lambda status: status.history_synced == status.head)

    def close(self):
        assert self.history.close()
        self.writer.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def values_of(step):
    return [math.nan if step % 7 == 0 else step / 4, float(step), step << 20, -step]


def rows_of(folder):
    """All records of a history as (session, n, step)."""
    return [(chunk.session, n, step) for chunk in read(folder) for n, step in zip(chunk.n, chunk.step, strict=True)]


def only_segment(run):
    (path,) = run.history_folder.iterdir()
    return path


def frames_of(data: bytes) -> list[tuple[int, int, int]]:
    """Beginning, end and kind of each frame, by the lengths in the specification; the file must be complete."""
    frames, place = [], 0
    while place < len(data):
        magic, length, _, kind = struct.unpack_from("<4sIII", data, place)
        assert magic == b"OPLF"
        frames.append((place, place + 16 + length, kind))
        place += 16 + length
    assert place == len(data)
    return frames


# ----------------------------------------------------------------------------------------------------------------------
# round trips


def test_records_read_back_equal_the_published_ones(tmp_path):
    bits = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000001234))[0]
    with Run(tmp_path, session=3) as run, Reader(run.writer.path) as reader:
        run.publish(range(10))
        run.sync()
        run.publish([2**40], flags=FLAG_CHECKPOINT | FLAG_EVAL)
        run.writer.publish(2**63, [bits, -math.inf, 2**64 - 1, -(2**63)])
        run.sync()
        (first,) = read(run.history_folder)
        assert (first.session, first.every, first.metrics, first.names) == (
            3,
            1,
            METRICS,
            ("return", "episodes", "seen", "score"),
        )
        records = reader.since(0)
        assert len(records) == 12
        for field in ("n", "step", "boottime_ns", "realtime_ns", "flags"):
            assert list(getattr(first, field)) == [getattr(record, field) for record in records]
        for index, metric in enumerate(METRICS):
            exact = array("d", [float(record.values[index]) for record in records])
            assert first.columns[metric.name].tobytes() == exact.tobytes()
        assert [column.typecode for column in first.columns.values()] == ["d"] * 4
        status = reader.status()
        assert (status.history_synced, status.history_errno) == (12, 0)
        assert status.history_bytes == only_segment(run).stat().st_size
    (again,) = read(run.history_folder)
    assert again.n == first.n and again.columns["return"].tobytes() == first.columns["return"].tobytes()
    assert os.stat(run.history_folder).st_mode & 0o777 == 0o700
    assert os.stat(only_segment(run)).st_mode & 0o777 == 0o600


def test_the_bytes_follow_the_specification(tmp_path):
    with Run(tmp_path, session=2, rewind_to=77) as run:
        run.publish(range(100, 164))
        run.sync()
        data = only_segment(run).read_bytes()
        with Reader(run.writer.path) as reader:
            records = reader.since(0)
    begin, end, kind = frames_of(data)[0]
    assert data[begin:end] == data[end : 2 * end]
    payload = data[16:end]
    assert struct.unpack_from("<I", data, 8)[0] == zlib.crc32(
        payload, zlib.crc32(struct.pack("<II", len(payload), kind))
    )
    assert (kind, struct.unpack_from("<HHIII16sQQ", payload)) == (1, (1, 0, 2, 1, 4, UUID, 77, 0))
    assert abs(struct.unpack_from("<Q", payload, 48)[0] - time.time_ns()) < 600 * 10**9
    schema = payload[56:]
    with open(tmp_path / "metrics.mm", "rb") as file:
        assert file.read()[8192 : 8192 + 512] == schema
    (begin, end, kind), *more = frames_of(data)[2:]
    assert (kind, more) == (3, [])
    assert struct.unpack_from("<IIII", data, begin + 16) == (zlib.crc32(schema), 64, 10, 0)
    split = zlib.decompress(data[begin + 32 : end])
    words = [int.from_bytes(split[index :: len(split) // 8], "little") for index in range(len(split) // 8)]
    columns = [words[64 * column : 64 * (column + 1)] for column in range(10)]
    assert columns[0] == list(range(64))
    assert columns[1] == list(range(100, 164))
    assert columns[2] == [record.boottime_ns for record in records]
    assert columns[3] == [record.realtime_ns for record in records]
    assert columns[4] == [2 | record.flags << 32 for record in records]
    assert columns[5] == [0] * 64
    assert struct.pack("<64Q", *columns[7]) == struct.pack("<64d", *range(100, 164))
    assert columns[8] == [step << 20 for step in range(100, 164)]
    assert columns[9] == [2**64 - step for step in range(100, 164)]


def test_records_reach_the_disk_without_a_call(tmp_path):
    """Written after 64 records or a second."""
    with Run(tmp_path) as run:
        run.publish(range(64))
        run.wait(lambda _: len(rows_of(run.history_folder)) == 64)
        run.publish([64])
        run.wait(lambda _: len(rows_of(run.history_folder)) == 65)


def test_closing_writes_the_last_record(tmp_path):
    run = Run(tmp_path)
    run.publish(range(5))
    run.close()
    assert rows_of(run.history_folder) == [(1, n, n) for n in range(5)]
    assert run.history.close()
    never = Run(tmp_path / "history", start=False)
    assert never.history.close()


def test_segments_follow_one_another(tmp_path):
    with Run(tmp_path, segment_bytes=4000) as run:
        for begin in range(0, 1000, 50):
            run.publish(range(begin, begin + 50))
            run.sync()
        names = sorted(os.listdir(run.history_folder))
        assert len(names) > 3
        assert names == [f"seg-{number:06d}.opl" for number in range(1, len(names) + 1)]
        assert rows_of(run.history_folder) == [(1, n, n) for n in range(1000)]
        for name in names:
            assert os.stat(run.history_folder / name).st_size < 8000
            assert segment.describe(run.history_folder / name).metrics == METRICS
        # Each segment can be read alone.
        (tmp_path / "alone").mkdir()
        (run.history_folder / names[2]).rename(tmp_path / "alone" / names[2])
        assert rows_of(tmp_path / "alone") == [(1, n, n) for n in range(*lost_of(rows_of(run.history_folder)))]


def lost_of(rows):
    """Beginning and end of the only gap."""
    ((before, after),) = ((a[1], b[1]) for a, b in pairwise(rows) if b[1] != a[1] + 1)
    return before + 1, after


def test_frames_of_many_metrics_stay_within_the_limit(tmp_path):
    metrics = [Metric(f"m/{index}") for index in range(4096)]
    with Run(tmp_path, metrics=metrics, start=False) as run:
        for n in range(70):
            run.writer.publish(n, [n + index / 8 for index in range(4096)])
        run.history.start()
        run.sync()
        assert max(end - begin for begin, end, _ in frames_of(only_segment(run).read_bytes())) <= 16 + 2**20
        seen = 0
        for chunk in read(run.history_folder):
            for name, column in chunk.columns.items():
                assert list(column) == [n + int(name[2:]) / 8 for n in chunk.n]
            seen += len(chunk.n)
        assert seen == 70


def test_a_reader_during_writes_sees_whole_records(tmp_path):
    with Run(tmp_path, capacity=4096) as run:
        seen = 0
        for begin in range(0, 6000, 100):
            run.publish(range(begin, begin + 100))
            rows = rows_of(run.history_folder)
            assert rows == [(1, n, n) for n in range(len(rows))]
            assert len(rows) >= seen
            seen = len(rows)
            run.history.sync()
            if begin - seen > 2000:  # the disk is slower than this loop: the ring must not go round
                run.sync()
        run.sync()
        assert len(rows_of(run.history_folder)) == 6000


def test_an_absent_or_empty_history_is_empty(tmp_path):
    assert list(read(tmp_path / "absent")) == []
    assert list(read(tmp_path)) == []
    (tmp_path / "file").write_bytes(b"x")
    assert list(read(tmp_path / "file")) == []
    assert list(read(Path(str(tmp_path) + "/a\0b"))) == []


# ----------------------------------------------------------------------------------------------------------------------
# resuming, rewinding


def test_records_that_a_later_session_trained_again_are_left_out(tmp_path):
    with Run(tmp_path) as run:
        run.publish(range(0, 1000, 10))
    with Run(tmp_path, session=2, rewind_to=500) as run:
        run.publish(range(510, 800, 10))
    with Run(tmp_path, session=3, rewind_to=700) as run:
        run.publish(range(701, 705))
    expected = (
        [(1, n, 10 * n) for n in range(51)]
        + [(2, n, 510 + 10 * n) for n in range(20)]
        + [(3, n, 701 + n) for n in range(4)]
    )
    assert rows_of(run.history_folder) == expected
    with Run(tmp_path, session=4, rewind_to=300) as run:
        assert rows_of(run.history_folder) == expected[:31] or run.wait(lambda status: status.history_bytes > 0) is None
    assert rows_of(run.history_folder) == expected[:31]
    with Run(tmp_path, session=5, rewind_to=0) as run:
        run.publish([1])
    assert rows_of(run.history_folder) == [(1, 0, 0), (5, 0, 1)]


def test_a_session_with_other_metrics_is_read(tmp_path):
    with Run(tmp_path) as run:
        run.publish(range(3))
    with Run(tmp_path, session=2, metrics=METRICS[:2]) as run:
        run.publish(range(3, 6))
    first, second = read(run.history_folder)
    assert (first.names, second.names) == (("return", "episodes", "seen", "score"), ("return", "episodes"))
    assert list(second.columns["episodes"]) == [3.0, 4.0, 5.0]


def test_a_resuming_writer_cuts_the_torn_tail_only(tmp_path):
    with Run(tmp_path) as run:
        for begin in (0, 5):
            run.publish(range(begin, begin + 5))
            run.sync()
        path = only_segment(run)
    whole = path.read_bytes()
    begin, end, _ = frames_of(whole)[-1]
    path.write_bytes(whole[: end - 1] + b"")
    (run.history_folder / ".seg-000001.opl.tmp").write_bytes(b"left by a kill")
    with Run(tmp_path, session=2) as run:
        run.publish([5])
        run.sync()
        assert sorted(os.listdir(run.history_folder)) == ["seg-000001.opl", "seg-000002.opl"]
    assert path.read_bytes() == whole[:begin]
    assert rows_of(run.history_folder) == [(1, n, n) for n in range(5)] + [(2, 0, 5)]
    # An unreadable segment is not cut.
    last = run.history_folder / "seg-000002.opl"
    last.write_bytes(b"something else")
    with Run(tmp_path, session=3) as run:
        run.wait(lambda status: status.history_bytes > 0)
        assert last.read_bytes() == b"something else"


# ----------------------------------------------------------------------------------------------------------------------
# what goes wrong


def test_overwritten_records_are_counted(tmp_path):
    run = Run(tmp_path, capacity=16, start=False)
    run.publish(range(100))
    run.history.start()
    run.sync()
    assert rows_of(run.history_folder) == [(1, n, n) for n in range(84, 100)]
    run.publish(range(100, 105))
    run.close()
    assert rows_of(run.history_folder) == [(1, n, n) for n in range(84, 105)]
    with Reader(run.writer.path) as reader:
        assert [(event.level, event.code, event.text) for event in reader.events()] == [
            ("warn", "history", "history: 84 records were overwritten before they could be saved")
        ]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("half", [False, True])
def test_a_full_disk_pauses_the_history(tmp_path, monkeypatch, number, half):
    monkeypatch.setattr(writing, "_RETRY_S", 0.01)
    write = os.pwrite

    def refuse(descriptor, data, offset):
        if offset and half:
            write(descriptor, data[: len(data) // 2], offset)
        raise OSError(number, os.strerror(number))

    with Run(tmp_path) as run:
        run.publish(range(10))
        run.sync()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            run.publish(range(10, 20))
            run.history.sync()
            run.wait(lambda status: status.history_errno == number)
            run.publish(range(20, 30))
        run.sync()
        run.wait(lambda status: status.history_errno == 0)
        reading = read(run.history_folder)
        assert [n for chunk in reading for n in chunk.n] == list(range(30))
        assert (reading.damaged, reading.torn) == (0, 0)


def test_a_disk_full_from_the_start_pauses_the_history(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_RETRY_S", 0.01)
    run = Run(tmp_path, start=False)
    run.publish(range(10))
    with monkeypatch.context() as patch:

        def refuse(*_):
            raise OSError(errno.ENOSPC, "full")

        patch.setattr(os, "pwrite", refuse)
        run.history.start()
        run.wait(lambda status: status.history_errno == errno.ENOSPC)
        assert os.listdir(run.history_folder) == []
    run.close()
    assert len(rows_of(run.history_folder)) == 10


def test_an_unusable_folder_pauses_the_history(tmp_path):
    (tmp_path / "history").write_bytes(b"a file")
    run = Run(tmp_path)
    run.publish(range(10))
    run.wait(lambda status: status.history_errno == errno.EEXIST)
    run.close()
    assert (tmp_path / "history").read_bytes() == b"a file"


def test_records_of_a_failed_sync_are_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_RETRY_S", 0.01)
    sync = os.fdatasync
    failures = [OSError(errno.EIO, "no")]

    def refuse_once(descriptor):
        if failures:
            raise failures.pop()
        sync(descriptor)

    with Run(tmp_path) as run:
        run.publish(range(10))
        run.sync()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", refuse_once)
            run.publish(range(10, 20))
            run.sync()
        assert not failures
        assert len(os.listdir(run.history_folder)) == 2
        assert rows_of(run.history_folder) == [(1, n, n) for n in range(20)]
        (run.history_folder / "seg-000001.opl").write_bytes(b"lost by the disk")
        assert [n for _, n, _ in rows_of(run.history_folder)] == list(range(10, 20))


def test_a_restored_metrics_file_is_copied_further(tmp_path, monkeypatch):
    with Run(tmp_path) as run:
        run.publish(range(10))
        run.sync()
        run.writer.path.unlink()
        run.publish(range(10, 20))
        run.writer.restore()
        run.publish(range(20, 30))
        run.sync()
        assert rows_of(run.history_folder) == [(1, n, n) for n in range(30)]


def test_another_runs_metrics_file_is_not_copied(tmp_path):
    run = Run(tmp_path, start=False)
    run.publish(range(10))
    with Writer(run.writer.path, METRICS, run_uuid=bytes(16), version="t") as stranger:
        stranger.publish(99, values_of(99))
        run.history.start()
        time.sleep(0.05)
        run.close()
    assert rows_of(run.history_folder) == []


def test_a_writer_closed_first_ends_the_thread(tmp_path):
    run = Run(tmp_path, capacity=16, start=False)
    run.publish(range(100))
    run.writer.close()
    run.history.start()
    run.close()
    assert len(rows_of(run.history_folder)) == 16


# ----------------------------------------------------------------------------------------------------------------------
# damage


def small_history(folder: Path, frames: int = 6) -> tuple[Path, bytes]:
    """Make a segment of `frames` frames with 4 records each; returns its path and bytes."""
    with Run(folder) as run:
        for begin in range(0, 4 * frames, 4):
            run.publish(range(begin, begin + 4))
            run.sync()
        path = only_segment(run)
    return path, path.read_bytes()


def test_truncated_at_every_byte_of_the_last_two_frames(tmp_path):
    path, data = small_history(tmp_path)
    *_, (before, begin, _), (_, end, _) = frames_of(data)
    assert end == len(data)
    for size in range(before, len(data)):
        os.truncate(path, size)
        reading = read(path.parent)
        assert [n for chunk in reading for n in chunk.n] == list(range(20 if size >= begin else 16))
        assert (reading.damaged, reading.torn) == (0, int(size not in (before, begin)))
        path.write_bytes(data)


@pytest.mark.slow
def test_every_flipped_byte_loses_its_own_frame_only(tmp_path):
    path, data = small_history(tmp_path, frames=4)
    frames = frames_of(data)
    rows = [frame for frame in frames if frame[2] != segment.SEGMENT_KIND]
    assert len(rows) == 4
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x20
        path.write_bytes(changed)
        hit = next((index for index, (begin, end, _) in enumerate(rows) if begin <= place < end), None)
        reading = read(path.parent)
        assert [n for chunk in reading for n in chunk.n] == [n for n in range(16) if n // 4 != hit]
        assert (reading.damaged, reading.torn) == ((0, 1) if hit == 3 else (1, 0))


def test_large_damage_loses_what_it_hit(tmp_path):
    path, data = small_history(tmp_path, frames=30)
    frames = frames_of(data)
    chance = random.Random(5)
    for _ in range(100):
        begin = chance.randrange(frames[2][0], len(data))
        size = chance.choice((10, 1000, 3000))
        for filling in (
            bytes(size),
            chance.randbytes(size),
            data[:size],
            b"",
        ):  # zeros, noise, another part of the file, a hole
            path.write_bytes(data[:begin] + filling + data[begin + size :])
            whole = [
                index - 2
                for index, (first, end, _) in enumerate(frames)
                if index >= 2 and (end <= begin or first >= begin + size)
            ]
            found = {n for _, n, _ in rows_of(path.parent)}
            assert found >= {n for index in whole for n in range(4 * index, 4 * index + 4)}


def test_a_segment_without_a_head_is_skipped(tmp_path):
    """Records carry their session and the checksum of their schema, so that the head of another segment suffices."""
    with Run(tmp_path, segment_bytes=1) as run:
        for n in range(3):
            run.publish([n])
            run.sync()
        path = run.history_folder / "seg-000002.opl"
        data = bytearray(path.read_bytes())
        (_, end, _) = frames_of(data)[1]
        data[:end] = bytes(end)
        path.write_bytes(data)
        assert rows_of(run.history_folder) == [(1, n, n) for n in range(3)]


def forged(folder: Path, *frames: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "seg-000001.opl"
    path.write_bytes(b"".join(frames))
    return path


HEAD = segment.Segment(1, UUID, None, 0, 1, 0, METRICS, 0)


def schema_crc() -> int:
    head = segment.unpack_head(segment.pack_head(HEAD)[16 : 16 + 56 + 512])
    return head.schema_crc


def rows_payload(rows, columns, body, crc=None):
    return struct.pack("<IIII", schema_crc() if crc is None else crc, rows, columns, 0) + body


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (
            3,
            lambda: rows_payload(100, 10, zlib.compress(bytes(2**25))),
        ),  # a bomb: 32 MiB instead of the claimed 8,000 bytes
        (3, lambda: rows_payload(2**32 - 1, 10, zlib.compress(bytes(80)))),
        (3, lambda: rows_payload(13108, 10, zlib.compress(bytes(13108 * 80)))),  # more than a frame may hold
        (3, lambda: rows_payload(1, 10, zlib.compress(bytes(79)))),
        (3, lambda: rows_payload(1, 10, zlib.compress(bytes(81)))),
        (3, lambda: rows_payload(1, 10, zlib.compress(bytes(80))[:-1])),
        (3, lambda: rows_payload(1, 10, b"no zlib at all")),
        (3, lambda: rows_payload(0, 10, zlib.compress(b""))),
        (3, lambda: rows_payload(1, 11, zlib.compress(bytes(88)))),
        (3, lambda: rows_payload(1, 10, zlib.compress(bytes(80)), crc=1)),
        (2, lambda: rows_payload(1, 10, bytes(79))),
        (2, lambda: rows_payload(1, 10, bytes(88))),
        (2, lambda: rows_payload(2, 10, bytes(160))),  # two records of the same number
        (2, lambda: b""),
        (3, lambda: b"short"),
    ],
)
def test_frames_with_invalid_fields_are_skipped(tmp_path, kind, payload):
    """The checksums are valid."""
    whole = segment.pack_rows(schema_crc(), [array("Q", [7])] * 10)
    forged(tmp_path, segment.pack_head(HEAD), segment.pack_frame(kind, payload()), whole)
    reading = read(tmp_path)
    assert [n for chunk in reading for n in chunk.n] == [7]
    assert reading.damaged == 1


def test_heads_with_invalid_fields_are_skipped(tmp_path):
    whole = segment.pack_rows(schema_crc(), [array("Q", [7])] * 10)
    fixed = struct.pack("<HHIII16sQQQ", 1, 0, 1, 1, 4, UUID, 2**64 - 1, 0, 0)
    schema = segment.pack_head(HEAD)[16 + 56 : 16 + 56 + 512]
    for head in (
        b"",
        fixed,
        fixed + schema[:-1],
        fixed + bytes(512),
        fixed[:12] + struct.pack("<I", 2**32 - 1) + fixed[16:] + schema,
    ):
        forged(tmp_path, segment.pack_frame(1, head), whole)
        assert rows_of(tmp_path) == []
    forged(tmp_path, segment.pack_frame(1, b"\x02" + (fixed + schema)[1:]), whole)  # another major version
    assert rows_of(tmp_path) == []
    newer = b"\x01\x00\x09" + (fixed + schema)[3:] + b"appended"  # a newer minor version with unknown kinds of frames
    forged(tmp_path, segment.pack_frame(1, newer), segment.pack_frame(99, b"?"), whole)
    assert rows_of(tmp_path) == [(7, 7, 7)]


def test_false_frame_beginnings_are_scanned_in_bounded_time(tmp_path, monkeypatch):
    """If every few bytes claim a frame of a megabyte, reading stops instead of checking them all."""
    checked = []
    checksum = segment._checksum
    monkeypatch.setattr(
        segment,
        "_checksum",
        lambda length, kind, payload: checked.append(len(payload)) or checksum(length, kind, payload),
    )
    forged(tmp_path, segment.pack_head(HEAD), struct.pack("<4sIII", b"OPLF", 2**20, 0, 2) * 2**18)
    reading = read(tmp_path)
    assert list(reading) == []
    assert reading.torn == 1
    assert sum(checked) < 2**28


def test_files_that_are_not_segments_are_skipped(tmp_path):
    path = forged(tmp_path, segment.pack_head(HEAD), segment.pack_rows(schema_crc(), [array("Q", [7])] * 10))
    os.mkfifo(tmp_path / "seg-000002.opl")
    (tmp_path / "seg-000003.opl").mkdir()
    (tmp_path / "seg-000004.opl").symlink_to(path)
    (tmp_path / "seg-000005.opl").write_bytes(b"")
    (tmp_path / "seg-1.opl").write_bytes(path.read_bytes())
    (tmp_path / "notes.txt").write_bytes(b"x")
    with open(tmp_path / "seg-000006.opl", "wb") as file:
        file.truncate(2**40)
    reading = read(tmp_path)
    assert [n for chunk in reading for n in chunk.n] == [7]
    assert (reading.damaged, reading.torn) == (3, 1)


def fuzz(folder: Path, mutants: int, seed: int) -> None:
    path, data = small_history(folder)
    chance, lost = random.Random(seed), 0
    frames = frames_of(data)
    for _ in range(mutants):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 5))):
            place, change = chance.randrange(len(data) - 8), chance.randrange(4)
            if change == 0:
                changed[place] = chance.randrange(256)
            elif change == 1:
                struct.pack_into("<I", changed, place, chance.choice((0, 1, 2**20, 2**31, 2**32 - 1)))
            elif change == 2:
                del changed[place : place + chance.randrange(1, 300)]
            else:
                source = chance.randrange(len(data))
                changed[place:place] = data[source : source + chance.randrange(1, 300)]
            changed.extend(bytes(max(0, len(data) - len(changed))))
        if chance.random() < 0.5:  # an invalid payload with a valid checksum
            begin, end, kind = chance.choice(frames)
            payload = bytes(changed[begin + 16 : end])
            changed[begin:end] = segment.pack_frame(chance.choice((1, 2, 3, kind, kind)), payload)
        path.write_bytes(changed)
        reading = read(path.parent)
        for chunk in reading:
            assert {
                len(column)
                for column in (
                    chunk.n,
                    chunk.step,
                    chunk.boottime_ns,
                    chunk.realtime_ns,
                    chunk.flags,
                    *chunk.columns.values(),
                )
            } == {len(chunk.n)}
            assert list(chunk.n) == sorted(set(chunk.n))
        lost += bool(reading.damaged or reading.torn)
    assert lost > mutants / 2


def test_mutated_segments_give_valid_data_or_nothing(tmp_path):
    fuzz(tmp_path, 1000, seed=1)


@pytest.mark.soak
def test_many_mutated_segments_give_valid_data_or_nothing(tmp_path):
    fuzz(tmp_path, 100_000, seed=2)


# ----------------------------------------------------------------------------------------------------------------------
# thinning


def words(values):
    return array("Q", struct.pack(f"<{len(values)}d", *values))


def test_four_records_become_one():
    fixed = [array("Q", [column * 100 + row for row in range(10)]) for column in range(4)]
    flags = array("Q", [5 | 1 << 32, 5, 5 | 8 << 32, 5, 5, 5, 5, 5, 5, 5 | 4 << 32])
    nonfinite = array("Q", [0, 0, 77, 88, 0, 0, 0, 0, 0, 99])
    nan, inf = math.nan, math.inf
    metrics = (
        Metric("mean"),
        Metric("gaps"),
        Metric("sum", "counter"),
        Metric("must", must_be_finite=True),
        Metric("i", "counter", dtype="i64"),
        Metric("u", dtype="u64"),
        Metric("full", "counter", dtype="u64"),
    )
    columns = [
        words([1, 2, 3, 6, 8, 8, 8, 8, 1, 2]),
        words([nan, 2, nan, 4, nan, nan, nan, nan, inf, 1]),
        words([1, 2, 3, 4, 5, nan, 7, 8, 9, 10]),
        words([1, nan, 3, 4, 1, 1, 1, 1, 1, -inf]),
        array("Q", struct.pack("<10q", *range(-5, 5))),
        array("Q", range(10)),
        array("Q", [2**63] * 10),
    ]
    merged = thinning.merge([*fixed, flags, nonfinite, *columns], metrics)
    assert [list(column) for column in merged[:4]] == [[100 * column + row for row in (3, 7, 9)] for column in range(4)]
    assert list(merged[4]) == [5 | 9 << 32, 5, 5 | 4 << 32]
    assert list(merged[5]) == [77, 0, 99]
    told = [struct.unpack("<3d", column.tobytes()) for column in merged[6:10]]
    assert told[0] == (3.0, 8.0, 1.5)
    assert told[1][0] == 3.0 and math.isnan(told[1][1]) and told[1][2] == inf
    assert told[2] == (10.0, 20.0, 19.0)
    assert math.isnan(told[3][0]) and told[3][1:] == (1.0, -inf)
    assert struct.unpack("<3q", merged[10].tobytes()) == (-14, 2, 7)
    assert list(merged[11]) == [3, 7, 9]
    assert list(merged[12]) == [2**64 - 1] * 3


def thin_now(path: Path) -> int:
    return sum(1 for _ in thinning.thin(path))


def test_a_thinned_segment_replaces_the_old_one(tmp_path):
    path, data = small_history(tmp_path, frames=100)
    assert thin_now(path) > 100
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert len(path.read_bytes()) < len(data) / 4
    assert os.stat(path).st_mode & 0o777 == 0o600
    (chunk,) = read(path.parent)
    assert (chunk.every, list(chunk.n)) == (4, list(range(3, 400, 4)))
    assert list(chunk.step) == list(chunk.n)
    assert sum(chunk.columns["episodes"]) == sum(range(400))
    assert chunk.columns["return"][1] == (4 + 5 + 6) / 3 / 4
    thin_now(path)
    (chunk,) = read(path.parent)
    assert (chunk.every, list(chunk.n), sum(chunk.columns["episodes"])) == (
        16,
        list(range(15, 400, 16)),
        sum(range(400)),
    )


def test_a_segment_is_thinned_again_under_the_quota(tmp_path):
    path, _ = small_history(tmp_path, frames=10)
    with open(path, "r+b") as file:
        file.write(segment.pack_head(segment.describe(path)._replace(every=1 << 31)))
    thin_now(path)
    (chunk,) = read(path.parent)
    assert chunk.every == 2**32 - 1 and len(chunk.n) == 10


def test_thinning_that_fails_leaves_the_segment(tmp_path, monkeypatch):
    path, data = small_history(tmp_path)

    def refuse(_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="full"):
        thin_now(path)
    half = thinning.thin(path)
    next(half)
    half.close()
    assert path.read_bytes() == data
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no readable head"):
        thin_now(path)


@pytest.mark.slow
def test_the_quota_is_kept_and_nothing_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_THIN_LOOK_S", 0.0005)
    quota = 400_000
    metrics = [Metric("noise"), Metric("episodes", "counter")]
    chance = random.Random(7)
    with Run(tmp_path, metrics=metrics, capacity=4096, quota_bytes=quota) as run:
        for begin in range(0, 60_000, 1000):
            for n in range(begin, begin + 1000):
                run.writer.publish(n, [chance.random(), 1.0])
            run.sync()
        run.wait(lambda status: status.history_bytes <= quota)
        assert sum(path.stat().st_size for path in run.history_folder.iterdir()) <= quota
        chunks = list(read(run.history_folder))
    assert {chunk.every for chunk in chunks} > {1}
    assert sum(sum(chunk.columns["episodes"]) for chunk in chunks) == 60_000
    numbers = [n for chunk in chunks for n in chunk.n]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 59_999
    assert max(b - a for a, b in pairwise(numbers)) <= 4 ** len({chunk.every for chunk in chunks})


# ----------------------------------------------------------------------------------------------------------------------
# kill -9

TRAINER = """
import mmap, sys, time
from pathlib import Path
from operant.runs.history import History, salvage
from operant.runs.metrics import Metric, Writer
folder, session = Path(sys.argv[1]), int(sys.argv[2])
path = folder / "metrics.mm"
salvage(folder / "history", path)
writer = Writer(path, [Metric("a"), Metric("b")], run_uuid=bytes(16), session=session, capacity=1 << 16, version="t")
history = History(folder / "history", path, writer=writer, run_uuid=bytes(16), session=session, segment_bytes=20_000)
history.start()
with open(folder / "acknowledged", "r+b") as file:
    acknowledged = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
while True:
    n = acknowledged[0]
    writer.publish(n, [float(n), n / 3])
    acknowledged[0] = n + 1
    if n % 100 == 0:
        history.sync()
    if n % 20 == 0:
        time.sleep(0.0002)
"""


def kill_often(folder: Path, kills: int, chance: random.Random) -> None:
    """Kill and resume one run many times: every acknowledged record is in the history or in the ring, and after salvage
    in the history.
    """
    (folder / "acknowledged").write_bytes(bytes(8))
    expected: list[tuple[int, int, int]] = []
    total = 0
    for session in range(1, kills + 1):
        command = [sys.executable, "-S", "-c", TRAINER, str(folder), str(session)]
        process = subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
        while struct.unpack("<Q", (folder / "acknowledged").read_bytes())[0] == total:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
        before, total = total, struct.unpack("<Q", (folder / "acknowledged").read_bytes())[0]
        with Reader(folder / "metrics.mm") as reader:
            ring = [(session, record.n, record.step) for record in reader.since(0)]
        expected += [(session, n, before + n) for n in range(total - before)]
        found = rows_of(folder / "history")
        saved = max((n for number, n, _ in found if number == session), default=-1)
        merged = found + [row for row in ring if row[1] > saved]
        assert merged[: len(expected)] == expected
        assert len(merged) - len(expected) <= 1
        expected = merged
    salvage(folder / "history", folder / "metrics.mm")
    assert rows_of(folder / "history") == expected
    assert salvage(folder / "history", folder / "metrics.mm") == 0


def test_a_kill_loses_no_synced_record(tmp_path):
    kill_often(tmp_path, 3, random.Random(1))


@pytest.mark.soak
def test_many_kills_lose_no_synced_record(tmp_path):
    for attempt in range(20):
        (tmp_path / str(attempt)).mkdir()
        kill_often(tmp_path / str(attempt), 15, random.Random(attempt))


def test_salvage_of_unreadable_files_saves_nothing(tmp_path):
    assert salvage(tmp_path / "history", tmp_path / "absent") == 0
    (tmp_path / "metrics.mm").write_bytes(b"no metrics file" * 1000)
    assert salvage(tmp_path / "history", tmp_path / "metrics.mm") == 0
    with Run(tmp_path, start=False) as run:
        run.publish(range(5))
        (tmp_path / "history").write_bytes(b"a file")
        assert salvage(tmp_path / "history", run.writer.path) == 0
        (tmp_path / "history").unlink()
        assert salvage(tmp_path / "history", run.writer.path) == 5
        assert salvage(tmp_path / "history", run.writer.path) == 0
    assert rows_of(tmp_path / "history") == [(1, n, n) for n in range(5)]


@pytest.mark.parametrize("left", ["nothing", "an empty file", "half a head", "a broken head"])
def test_records_of_a_run_killed_before_its_history_began_are_salvaged(tmp_path, left):
    """The records of the ring are saved, whatever exists of the first segment; a history without any head is empty."""
    with Run(tmp_path, start=False) as run:
        run.publish(range(5))
        whole = segment.pack_head(segment.Segment(1, UUID, None, 0, 1, 0, METRICS, 0))
        content = {"an empty file": b"", "half a head": whole[: len(whole) // 4], "a broken head": b"\0" * len(whole)}
        if left in content:
            run.history_folder.mkdir()
            segment.segment_path(run.history_folder, 1).write_bytes(content[left])
        assert rows_of(run.history_folder) == []
        assert salvage(run.history_folder, run.writer.path) == 5
        assert salvage(run.history_folder, run.writer.path) == 0
    assert rows_of(tmp_path / "history") == [(1, n, n) for n in range(5)]


@pytest.mark.parametrize(("told", "kept"), [(True, [0, 10, 20, 40]), (False, [0, 10, 20, 40, 43])])
def test_a_resume_killed_before_its_history_began_still_drops_repeated_records(tmp_path, told, kept):
    """The resume step is that of its event; without an event, the step before its first record."""
    with Run(tmp_path) as run:
        run.publish([0, 10, 20, 40, 43, 50, 60])
    with Run(tmp_path, session=2, rewind_to=40, start=False) as run:
        if told:
            run.writer.event("resumed from step-40", code="resume", step=40)
        run.publish([45, 55])
        assert salvage(run.history_folder, run.writer.path) == 2
    assert [step for _, _, step in rows_of(tmp_path / "history")] == [*kept, 45, 55]
