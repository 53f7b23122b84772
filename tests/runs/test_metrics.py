"""Metrics file: layout, both backends, damage of every kind, kill -9, concurrent reads, versions."""

from __future__ import annotations

import errno
import math
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from operant.errors import BadFileError, ConfigError, MachineError, OperantError
from operant.runs.metrics import (
    EVENTS,
    FLAG_CHECKPOINT,
    FLAG_NONE,
    FLAG_NONFINITE,
    LEVELS,
    MODES,
    PHASES,
    STATES,
    TERMINAL,
    Metric,
    Reader,
    Writer,
)
from operant.runs.metrics import writer as writing
from operant.text import safe

ROOT = Path(__file__).resolve().parents[2]
FIRST = Path(__file__).parents[1] / "golden" / "metrics-1.0.mm"
GOLDEN = Path(__file__).parents[1] / "golden" / "metrics-1.1.mm"
UUID = bytes(range(16))
PLAIN = [Metric(f"metric/{index}") for index in range(8)]
backends = pytest.mark.parametrize("backend", ["map", "pwrite"])


def writer_at(folder: Path, metrics=PLAIN, **options) -> Writer:
    options = {"event_capacity": 16, "run_uuid": UUID, "version": "0.1.0", "host": "here", "capacity": 16, **options}
    return Writer(folder / "metrics.mm", metrics, **options)


def child(code: str, *arguments: object, **options) -> subprocess.Popen:
    """Start a process that imports only the standard library and operant.runs.metrics."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code, *map(str, arguments)], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, **options
    )


# ----------------------------------------------------------------------------------------------------------------------
# round trips


@backends
def test_every_written_field_is_read_back(tmp_path, backend):
    metrics = (
        Metric("return", "gauge", "", "f64", -5.0, 500.0, higher_better=True),
        Metric("loss/policy", must_be_finite=True, low=-1.5, axis="log"),
        Metric("episodes", "counter", "episodes", "u64", group=3),
        Metric("tally/score", "bucket", "µm", "i64", hidden=True),
    )
    with writer_at(tmp_path, metrics, session=3, backend=backend) as writer, Reader(writer.path) as reader:
        assert writer.backend == backend
        assert reader.metrics == metrics
        header = reader.header
        assert (header.abi, header.session, header.run_uuid, header.pid, header.uid) == (
            (1, 1),
            3,
            UUID,
            os.getpid(),
            os.getuid(),
        )
        assert (header.host, header.version, header.capacity) == ("here", "0.1.0", 16)
        assert header.pid_start_ticks == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        assert header.boot_id.hex() == Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        assert header.pid_namespace == os.stat("/proc/self/ns/pid").st_ino

        assert reader.latest() is None
        assert reader.since(0) == []
        status = reader.status()
        assert (status.state, status.phase, status.head, status.last_checkpoint_step) == ("starting", "idle", 0, None)

        before = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert writer.publish(2048, [12.5, 0.25, 7, -3], flags=FLAG_CHECKPOINT) == 0
        assert writer.publish(4096, [13.5, 0.5, 9, -4]) == 1
        record = reader.latest()
        assert record[:2] == (1, 4096)
        assert record.values == (13.5, 0.5, 9, -4)
        assert before[0] <= record.realtime_ns <= time.time_ns()
        assert before[1] <= record.boottime_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert [(r.n, r.step, r.session, r.flags) for r in reader.since(0)] == [
            (0, 2048, 3, FLAG_CHECKPOINT),
            (1, 4096, 3, 0),
        ]
        assert [r.n for r in reader.since(1)] == [1]
        assert reader.since(2) == []

        writer.heartbeat()
        writer.heartbeat()
        writer.tick()
        writer.set_checkpoint(4096)
        writer.set_nonfinite(5)
        status = reader.status()
        assert (
            status.heartbeat_count,
            status.main_count,
            status.head,
            status.last_checkpoint_step,
            status.nonfinite_total,
        ) == (2, 1, 2, 4096, 5)
        assert before[1] <= status.heartbeat_boottime_ns <= status.last_checkpoint_boottime_ns


@backends
def test_states_and_phases_are_read_back(tmp_path, backend):
    assert set(STATES) >= TERMINAL
    with writer_at(tmp_path, backend=backend) as writer, Reader(writer.path) as reader:
        for count, state in enumerate(STATES, 1):
            writer.set_state(state, reason=15, exit_code=130)
            status = reader.status()
            assert (status.state, status.reason, status.exit_code, status.state_count) == (state, 15, 130, count)
        for phase in PHASES:
            writer.set_phase(phase)
            assert reader.status().phase == phase
        with pytest.raises(ValueError, match="exit_code 70000"):
            writer.set_state("failed", exit_code=70000)


@backends
def test_status_words_of_control_checkpoints_and_history_are_read_back(tmp_path, backend):
    with writer_at(tmp_path, backend=backend) as writer, Reader(writer.path) as reader:
        words = (
            "control_sequence",
            "control_result",
            "checkpoint_failures",
            "history_bytes",
            "history_synced",
            "history_errno",
            "event_head",
            "events_dropped",
        )
        assert [getattr(reader.status(), word) for word in words] == [0] * 8
        writer.acknowledge(3, 2)
        writer.set_checkpoint_failures(4)
        writer.set_history(2**40, 99, errno.ENOSPC)
        writer.event("one")
        assert [getattr(reader.status(), word) for word in words] == [3, 2, 4, 2**40, 99, errno.ENOSPC, 1, 0]


@backends
def test_events_are_read_back(tmp_path, backend):
    with writer_at(tmp_path, backend=backend) as writer, Reader(writer.path) as reader:
        assert reader.events() == []
        before = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert writer.event("checkpoint saved", code="checkpoint", step=4096) == 0
        assert writer.event("loss is not finite", level="error", code="diverged", step=8192) == 1
        assert writer.event("plain") == 2
        found = reader.events()
        assert [(event.n, event.step, event.level, event.code, event.text) for event in found] == [
            (0, 4096, "info", "checkpoint", "checkpoint saved"),
            (1, 8192, "error", "diverged", "loss is not finite"),
            (2, 0, "info", "note", "plain"),
        ]
        assert before[0] <= found[0].realtime_ns <= found[2].realtime_ns <= time.time_ns()
        assert before[1] <= found[0].boottime_ns <= found[2].boottime_ns
        assert [event.n for event in reader.events(1)] == [1, 2]
        assert reader.events(3) == []
        for n in range(3, 40):
            writer.event(f"event {n}")
        assert [(event.n, event.text) for event in reader.events()] == [(n, f"event {n}") for n in range(24, 40)]
        assert [event.n for event in reader.events(-3, limit=2)] == [38, 39]
        assert reader.since(0) == []


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", ""),
        ("x" * 208, "x" * 208),
        ("x" * 209, "x" * 205 + "…"),
        ("é" * 104, "é" * 104),
        ("é" * 105, "é" * 102 + "…"),
        ("漢" * 70, "漢" * 68 + "…"),
        ("x" * 10_000_000, "x" * 205 + "…"),
        ("two\nlines\tand \x00 \x1b]0;title\x07 \x9b31m \u202e end", "two lines and  ]0;title 31m  end"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
        ("[/foo] [@click=app.quit]", "[/foo] [@click=app.quit]"),
    ],
)
def test_long_texts_of_events_are_cut_at_whole_characters(tmp_path, text, read):
    with writer_at(tmp_path) as writer, Reader(writer.path) as reader:
        writer.event(text)
        assert reader.events()[0].text == read


def test_invalid_events_raise(tmp_path):
    with writer_at(tmp_path) as writer, Reader(writer.path) as reader:
        for options in ({"level": "loud"}, {"code": "unheard"}, {"step": -1}, {"step": 2**64}):
            with pytest.raises(ValueError, match=r"tuple|step >= 0"):
                writer.event("no", **options)
        assert reader.status().event_head == 0
        assert writer.event("yes") == 0


def test_an_event_that_would_wait_is_dropped_and_counted(tmp_path, monkeypatch):
    """Write from a signal handler that interrupted an event."""
    monkeypatch.setattr(writing, "_EVENT_WAIT_S", 0.001)
    with writer_at(tmp_path) as writer, Reader(writer.path) as reader:
        with writer._event_turn:
            assert writer.event("lost") == writer.event("lost too") == -1
        assert writer.event("kept") == 0
        assert (reader.status().event_head, reader.status().events_dropped) == (1, 2)


@backends
def test_two_threads_store_events_during_publishes(tmp_path, backend):
    with writer_at(tmp_path, event_capacity=4096, backend=backend) as writer, Reader(writer.path) as reader:

        def tell(name):
            for index in range(1000):
                writer.event(f"{name} {index}", step=index)

        others = [threading.Thread(target=tell, args=(name,)) for name in ("a", "b")]
        for thread in others:
            thread.start()
        for n in range(1000):
            writer.publish(n, [float(n)] * 8)
        for thread in others:
            thread.join()
        events = reader.events()
        assert [event.n for event in events] == list(range(2000))
        for name in ("a", "b"):
            assert [event.text for event in events if event.text[0] == name] == [
                f"{name} {index}" for index in range(1000)
            ]
        assert reader.latest().n == 999


@backends
def test_frames_are_read_back(tmp_path, backend):
    pixels = [bytes((n + index) % 256 for index in range(2 * 8 * 6 * 3)) for n in range(5)]
    with writer_at(tmp_path, frame_bytes=len(pixels[0]), backend=backend) as writer, Reader(writer.path) as reader:
        assert reader.frame() is None
        for n in range(5):
            data = memoryview(pixels[n]) if n % 2 else pixels[n]
            writer.frame(100 * n, data, lanes=2, height=8, width=6, mode=MODES[n % 2])
            frame = reader.frame(n - 1)
            assert frame[:2] + frame[3:] == (n, 100 * n, 2, 8, 6, 3, MODES[n % 2], pixels[n])
            assert reader.frame(n) is None
        writer.frame(500, bytes(6), lanes=1, height=2, width=3)
        assert reader.frame()[3:] == (1, 2, 3, 1, "greedy", bytes(6))
        assert reader.frame().boottime_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert writer.restore() is False
        writer.path.unlink()
        assert writer.restore() is True
        with Reader(writer.path) as again:
            assert again.frame().n == 5


def test_frames_that_do_not_fit_raise(tmp_path):
    with writer_at(tmp_path, frame_bytes=300) as writer, Reader(writer.path) as reader:
        for pixels, lanes, height, width in (
            (bytes(301), 1, 301, 1),
            (bytes(10), 1, 3, 1),
            (bytes(0), 1, 1, 1),
            (bytes(5), 1, 1, 1),
            (bytes(4), 0, 1, 1),
        ):
            with pytest.raises(ValueError, match=r"do not hold \d pictures"):
                writer.frame(0, pixels, lanes=lanes, height=height, width=width)
            assert reader.frame() is None
        with pytest.raises(ValueError, match="step >= 0"):
            writer.frame(-1, bytes(3), lanes=1, height=1, width=1)
        with pytest.raises(ValueError, match="tuple"):
            writer.frame(0, bytes(3), lanes=1, height=1, width=1, mode="dreaming")
    with writer_at(tmp_path) as writer, pytest.raises(ValueError, match="at most 0 bytes"):
        writer.frame(0, bytes(3), lanes=1, height=1, width=1)


@backends
def test_values_are_stored_to_the_bit(tmp_path, backend):
    bits = [
        0x7FF8000000001234,
        0xFFF8000000000001,
        0x7FF0000000000000,
        0xFFF0000000000000,
        0x8000000000000000,
        1,
        0x7FEFFFFFFFFFFFFF,
    ]
    metrics = [
        *(Metric(f"f/{index}") for index in range(len(bits))),
        Metric("i", dtype="i64"),
        Metric("u", dtype="u64"),
    ]
    values = [*struct.unpack(f"<{len(bits)}d", struct.pack(f"<{len(bits)}Q", *bits)), -(2**63), 2**64 - 1]
    with writer_at(tmp_path, metrics, backend=backend) as writer, Reader(writer.path) as reader:
        writer.publish(0, values)
        read = reader.latest().values
        assert list(struct.unpack(f"<{len(bits)}Q", struct.pack(f"<{len(bits)}d", *read[:-2]))) == bits
        assert read[-2:] == (-(2**63), 2**64 - 1)


def test_non_finite_values_set_the_flags(tmp_path):
    metrics = [Metric("return"), Metric("loss", must_be_finite=True), Metric("other", must_be_finite=True)]
    with writer_at(tmp_path, metrics) as writer, Reader(writer.path) as reader:

        def flags(*values):
            n = writer.publish(0, values)
            offset = 12288 + n * 88
            return reader.latest().flags, struct.unpack_from("<II", writer.path.read_bytes(), offset + 56)

        assert flags(1.0, 2.0, 3.0) == (0, (0, 0))
        assert flags(1e308, 1e308, 1e308) == (0, (0, 0))
        assert flags(math.nan, 2.0, 3.0) == (FLAG_NONE, (0, 0))
        assert flags(math.nan, 2.0, math.nan) == (FLAG_NONE | FLAG_NONFINITE, (2, 1))
        assert flags(-math.inf, math.inf, 3.0) == (FLAG_NONFINITE, (0, 2))


@backends
def test_the_ring_wraps_and_counts_beyond_32_bits(tmp_path, backend):
    with writer_at(tmp_path, backend=backend) as writer, Reader(writer.path) as reader:
        for n in range(37):
            writer.publish(n, [float(n)] * 8)
            assert reader.latest().values == (float(n),) * 8
        assert [record.n for record in reader.since(0)] == list(range(21, 37))
        assert [record.n for record in reader.since(-5, limit=3)] == [34, 35, 36]
        writer._count = 2**32 - 2
        for _ in range(4):
            writer.publish(2**40, [0.5] * 8)
        assert [record.n for record in reader.since(2**32 - 5)] == [2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1]
        assert reader.latest().n == 2**32 + 1
        assert reader.latest().step == 2**40


def test_a_reader_never_returns_an_older_record(tmp_path):
    with writer_at(tmp_path) as writer, Reader(writer.path) as reader:
        for n in range(5):
            writer.publish(n, [float(n)] * 8)
        assert reader.latest().n == 4
        with open(writer.path, "r+b") as file:
            file.seek(4096 + 128)
            file.write(struct.pack("<Q", 2))
        assert reader.latest().n == 4
        with Reader(writer.path) as fresh:
            assert fresh.latest().n == 1


def test_many_metrics_are_read_in_the_largest_chunks(tmp_path):
    metrics = [Metric(f"m{index}") for index in range(4096)]
    with writer_at(tmp_path, metrics) as writer, Reader(writer.path) as reader:
        for n in range(20):
            writer.publish(n, [float(n)] * 4096)
        assert [(record.n, record.values[-1]) for record in reader.since(0)] == [(n, float(n)) for n in range(4, 20)]


# ----------------------------------------------------------------------------------------------------------------------
# the bytes


def fix_identity(monkeypatch):
    monkeypatch.setattr(
        writing,
        "_process",
        lambda: (bytes(range(100, 116)), 4026531836, 4242, 1000, 987654321, 1_700_000_000 * 10**9, 5 * 10**12),
    )
    clock = iter(range(10**12, 10**13, 10**9))
    fixed = SimpleNamespace(
        clock_gettime_ns=lambda _: next(clock), time_ns=lambda: 1_700_000_001 * 10**9, CLOCK_BOOTTIME=7
    )
    monkeypatch.setattr(writing, "time", fixed)


GOLDEN_METRICS = (
    Metric("return", higher_better=True, low=-10.0, high=500.0),
    Metric("episodes", "counter", "episodes", "u64"),
    Metric("loss/value", must_be_finite=True, axis="log"),
    Metric("tally/score", dtype="i64", group=2, hidden=True),
)


def build_golden(path: Path, backend: str) -> None:
    """Reproduce tests/golden/metrics-1.1.mm under `fix_identity`; 1.0 is the same without the fields of 1.1."""
    writer = Writer(
        path,
        GOLDEN_METRICS,
        run_uuid=UUID,
        session=2,
        capacity=16,
        event_capacity=8,
        frame_bytes=2 * 4 * 6 * 3,
        version="0.1.0",
        host="golden",
        backend=backend,
    )
    for n in range(19):
        writer.publish(1024 * (n + 1), [math.nan if n == 18 else n / 4, 3 * n, 1 / (n + 1), -n])
    writer.heartbeat()
    writer.tick()
    writer.set_phase("update")
    writer.set_checkpoint(16384)
    writer.set_nonfinite(1)
    writer.set_state("running")
    writer.set_state("stopped", reason=15, exit_code=130)
    for n in range(11):
        writer.event(f"event {n}: " + "é" * 20 * n, level=LEVELS[n % 3], code=EVENTS[n], step=100 * n)
    for n in range(3):
        writer.frame(50 * n, bytes(range(n, n + 2 * 4 * 3 * 3)), lanes=2, height=4, width=3, mode=MODES[n % 2])
    writer.set_checkpoint_failures(2)
    writer.acknowledge(7, 3)
    writer.set_history(123456, 17, errno.ENOSPC)
    writer.close()


@pytest.mark.parametrize("path", [FIRST, GOLDEN])
def test_the_golden_files_are_read(path):
    first = path == FIRST
    with Reader(path) as reader:
        assert reader.metrics == GOLDEN_METRICS
        assert reader.header == (
            (1, 0 if first else 1),
            2,
            UUID,
            bytes(range(100, 116)),
            4242,
            4026531836,
            987654321,
            1000,
            1_700_000_000 * 10**9,
            5 * 10**12,
            "golden",
            "0.1.0",
            16,
            65536,
            0 if first else 8,
            0 if first else 192,
        )
        status = reader.status()
        assert (status.state, status.reason, status.exit_code, status.phase, status.head) == (
            "stopped",
            15,
            130,
            "update",
            19,
        )
        assert (status.heartbeat_count, status.main_count, status.last_checkpoint_step, status.nonfinite_total) == (
            1,
            1,
            16384,
            1,
        )
        records = reader.since(0)
        assert [record.n for record in records] == list(range(3, 19))
        assert records[0].values == (0.75, 9, 0.25, -3)
        assert records[-1].flags == FLAG_NONE
        assert math.isnan(reader.latest().values[0])
        assert status[14:] == ((0,) * 8 if first else (11, 0, 7, 3, 2, 123456, 17, errno.ENOSPC))
        if first:
            assert reader.events() == []
            assert reader.frame() is None
            return
        assert [(e.n, e.step, e.level, e.code) for e in reader.events()] == [
            (n, 100 * n, LEVELS[n % 3], EVENTS[n]) for n in range(3, 11)
        ]
        assert (
            reader.events(8)[0].text == "event 8: " + "é" * 98 + "…"
        )  # 205 bytes leave room for 98 characters of 2 bytes, and the ellipsis takes 3
        assert reader.events(5, limit=2) == reader.events(9)
        frame = reader.frame()
        assert (frame.n, frame.step, frame.lanes, frame.height, frame.width, frame.channels, frame.mode) == (
            2,
            100,
            2,
            4,
            3,
            3,
            "greedy",
        )
        assert frame.pixels == bytes(range(2, 74))
        assert reader.frame(1) == frame
        assert reader.frame(2) is None


@backends
def test_the_writer_reproduces_the_golden_files(tmp_path, monkeypatch, backend):
    fix_identity(monkeypatch)
    build_golden(tmp_path / "metrics.mm", backend)
    assert (tmp_path / "metrics.mm").read_bytes() == GOLDEN.read_bytes()


def test_the_bytes_follow_the_specification():
    data = GOLDEN.read_bytes()

    def at(form, offset):
        return struct.unpack_from("<" + form, data, offset)

    assert data[:8] == bytes.fromhex("894f50524d0d0a1a")
    assert at("IHHIIIIQ", 8) == (0x01020304, 1, 1, 4096, 0, 0, 5, len(data))
    assert (data[40:56], data[56:72]) == (UUID, bytes(range(100, 116)))
    assert at("QQIIQQQQ", 72) == (2, 4026531836, 4242, 1000, 987654321, 1_700_000_000 * 10**9, 5 * 10**12, 0)
    assert data[128:192] == b"golden".ljust(64, b"\0")
    assert data[192:224] == b"0.1.0".ljust(32, b"\0")
    assert at("IIQQII", 256) == (1, 1, 4096, 4096, 4096, 0)
    assert at("IIQQII", 288) == (2, 4, 8192, 512, 128, zlib.crc32(data[8192:8704]))
    assert at("IIQQII", 320) == (3, 16, 12288, 16 * 96, 96, 0)
    assert at("IIQQII", 352) == (5, 8, 16384, 8 * 256, 256, 0)
    assert at("IIQQII", 384) == (6, 2, 20480, 2 * 256, 256, 0)
    assert at("I", 4092) == (zlib.crc32(data[:4092]),)
    assert at("QQQQ", 4096) == (20 * 10**9 + 10**12 - 10**9, 1, 1, PHASES.index("update"))
    assert at("BBHI", 4096 + 64) == (STATES.index("stopped"), 15, 130, 2)
    assert at("Q", 4096 + 128) == (19,)
    assert at("QQ", 4096 + 192) == (11, 0)
    assert at("QQ", 4096 + 256) == (7, 3)
    assert at("Q", 4096 + 288) == (2,)
    assert at("QQQ", 4096 + 384) == (123456, 17, errno.ENOSPC)
    assert at("QQ", 4096 + 272) == (16384, 20 * 10**9 + 10**12)
    assert at("Q", 4096 + 336) == (1,)
    assert at("IBBBBIIff", 8192) == (0, 0, 0, 0, 0, 2, 0, -10.0, 500.0)
    assert at("IBBBBIIff", 8192 + 128) == (1, 2, 1, 0, 0, 0, 0, -math.inf, math.inf)
    assert at("IBBBBII", 8192 + 256) == (2, 0, 0, 0, 1, 1, 0)
    assert at("IBBBBII", 8192 + 384) == (3, 1, 0, 0, 0, 4, 2)
    assert (data[8192 + 152 : 8192 + 192], data[8192 + 192 : 8192 + 256]) == (
        b"episodes".ljust(40, b"\0"),
        b"episodes".ljust(64, b"\0"),
    )
    slot = 12288 + 17 % 16 * 96
    assert at("QIIQQQQIIQdQdq", slot) == (
        36,
        zlib.crc32(data[slot + 12 : slot + 96]),
        80,
        17,
        18 * 1024,
        10**12 + 17 * 10**9,
        1_700_000_001 * 10**9,
        2,
        0,
        0,
        4.25,
        51,
        1 / 18,
        -17,
    )
    slot, text = 16384 + 10 % 8 * 256, b"event 10: " + "é".encode() * 97 + "…".encode()
    assert at("QIHBBQQQQ", slot) == (
        22,
        zlib.crc32(data[slot + 12 : slot + 256]),
        len(text),
        1,
        10,
        10,
        10**12 + 31 * 10**9,
        1_700_000_001 * 10**9,
        1000,
    )
    assert data[slot + 48 : slot + 256] == text.ljust(208, b"\0")
    slot = 20480 + 1 * 256
    assert at("QIIQQHHHHHHIQQ", slot) == (
        4,
        zlib.crc32(data[slot + 12 : slot + 136]),
        120,
        1,
        50,
        2,
        4,
        3,
        3,
        1,
        0,
        0,
        10**12 + 33 * 10**9,
        0,
    )
    assert data[slot + 64 : slot + 136] == bytes(range(1, 73))


def test_codes_of_states_and_events_never_change():
    assert STATES[:10] == (
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
    assert PHASES[:6] == ("idle", "rollout", "update", "eval", "checkpoint", "compile")


# ----------------------------------------------------------------------------------------------------------------------
# making the file


def test_the_file_is_private_complete_and_allocated(tmp_path):
    with writer_at(tmp_path, capacity=1024) as writer:
        found = os.stat(writer.path)
        assert found.st_mode & 0o777 == 0o600
        assert found.st_size == writer.file_size
        assert found.st_size % 65536 == 0
        assert found.st_blocks * 512 >= found.st_size
        assert os.listdir(tmp_path) == ["metrics.mm"]


def test_leftovers_of_a_killed_trainer_are_replaced(tmp_path):
    (tmp_path / ".metrics.mm.tmp").write_bytes(b"half")
    (tmp_path / "metrics.mm").write_bytes(b"old")
    with writer_at(tmp_path) as writer, Reader(writer.path) as reader:
        assert reader.status().head == 0
        assert os.listdir(tmp_path) == ["metrics.mm"]


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, r"no room .* needs 0\.1 MiB .* free some"),
        (errno.EDQUOT, "no room"),
        (errno.EIO, "cannot be made"),
    ],
)
def test_a_full_disk_at_the_start_raises_and_leaves_nothing(tmp_path, monkeypatch, number, sentence):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MachineError, match=sentence):
        writer_at(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_filesystem_without_fallocate_gets_zeros(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with writer_at(tmp_path) as writer, Reader(writer.path) as reader:
        writer.publish(1, [1.0] * 8)
        assert reader.latest().n == 0
        assert os.stat(writer.path).st_blocks * 512 >= writer.file_size


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MachineError, match=r"cannot be written .* choose another --runs"):
        writer_at(tmp_path)


def test_a_missing_folder_raises(tmp_path):
    with pytest.raises(MachineError, match="No such file"):
        writer_at(tmp_path / "nowhere")


def test_bad_metrics_are_all_named(tmp_path):
    metrics = [
        Metric("a b"),
        Metric("x" * 64),
        Metric(""),
        Metric("ok"),
        Metric("ok"),
        Metric("k", kind="dial"),
        Metric("d", dtype="f16"),
    ]
    with pytest.raises(ConfigError) as caught:
        writer_at(tmp_path, metrics, capacity=12)
    assert len(caught.value.problems) == 7
    for metrics in ([], [Metric(f"m{index}") for index in range(4097)]):
        with pytest.raises(ConfigError, match="holds 1 to 4096"):
            writer_at(tmp_path, metrics)
    with pytest.raises(ConfigError, match="16 bytes"):
        writer_at(tmp_path, run_uuid=b"short")
    with pytest.raises(ConfigError, match=r"event_capacity 12: must be a power of two[^$]*frame_bytes -1"):
        writer_at(tmp_path, event_capacity=12, frame_bytes=-1)
    with pytest.raises(ConfigError, match="exceed 1073741824 bytes"):
        writer_at(tmp_path, [Metric(f"m{index}") for index in range(4096)], capacity=1 << 15)
    assert os.listdir(tmp_path) == []


def test_values_that_do_not_fit_raise(tmp_path):
    with writer_at(tmp_path, [Metric("f"), Metric("u", dtype="u64")]) as writer, Reader(writer.path) as reader:
        for step, values in (
            (0, [1.0]),
            (0, [1.0, 2, 3]),
            (0, [1.0, -1]),
            (0, ["a", 1]),
            (-1, [1.0, 1]),
            (0, [math.nan, 1, 2]),
        ):
            with pytest.raises(ValueError, match="2 values that fit"):
                writer.publish(step, values)
        assert reader.status().head == 0
        assert writer.publish(0, [1.0, 1]) == 0


@pytest.mark.parametrize(
    ("magic", "backend"),
    [
        (0xEF53, "map"),
        (0x01021994, "map"),
        (0x9123683E, "map"),
        (0x6969, "pwrite"),
        (0x65735546, "pwrite"),
        (None, "pwrite"),
    ],
)
def test_auto_maps_local_filesystems_only(tmp_path, monkeypatch, magic, backend):
    import ctypes

    def fstatfs(_, answer):
        if magic is not None:
            struct.pack_into("@l", answer, 0, magic)
        return 0 if magic is not None else -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(fstatfs=fstatfs))
    with writer_at(tmp_path) as writer:
        assert writer.backend == backend


def test_auto_finds_the_backend_of_this_filesystem(tmp_path):
    with writer_at(tmp_path) as writer:
        assert writer.backend in ("map", "pwrite")


def test_failed_writes_are_counted_and_training_continues(tmp_path, monkeypatch):
    with writer_at(tmp_path, backend="pwrite") as writer, Reader(writer.path) as reader:
        writer.publish(1, [1.0] * 8)
        with monkeypatch.context() as patch:

            def refuse(*_):
                raise OSError(errno.EIO, "no")

            patch.setattr(os, "pwrite", refuse)
            writer.publish(2, [2.0] * 8)
        assert writer.write_errors == 2
        assert reader.latest().n == 0
        writer.publish(3, [3.0] * 8)
        assert reader.latest().n == 2
        assert [record.n for record in reader.since(0)] == [0, 2]


@backends
def test_a_deleted_or_replaced_file_is_restored(tmp_path, backend):
    with writer_at(tmp_path, backend=backend) as writer, Reader(writer.path) as reader:
        writer.publish(1, [1.0] * 8)
        assert not writer.restore()
        assert not reader.replaced()
        writer.path.unlink()
        assert reader.replaced()
        assert reader.latest().n == 0
        writer.event("while it was gone")
        assert writer.restore()
        writer.publish(2, [2.0] * 8)
        writer.event("after")
        writer.heartbeat()
        assert reader.replaced()
        with Reader(writer.path) as again:
            assert [record.step for record in again.since(0)] == [1, 2]
            assert [event.text for event in again.events()] == ["while it was gone", "after"]
            assert again.header == reader.header
        (tmp_path / "other").write_bytes(b"x")
        os.replace(tmp_path / "other", writer.path)
        assert writer.restore()
        with Reader(writer.path) as again:
            assert again.latest().step == 2


@backends
def test_publishing_after_close_or_from_two_threads_raises(tmp_path, backend):
    writer = writer_at(tmp_path, backend=backend, frame_bytes=64)
    writer._turn.acquire()
    with pytest.raises(OperantError, match="one writer"):
        writer.publish(0, [0.0] * 8)
    writer._turn.release()
    writer.publish(0, [0.0] * 8)
    writer.close()
    calls = (
        lambda: writer.publish(1, [0.0] * 8),
        writer.tick,
        writer.heartbeat,
        lambda: writer.set_state("finished"),
        lambda: writer.event("late"),
        lambda: writer.acknowledge(1, 0),
        lambda: writer.set_history(0, 0),
        lambda: writer.frame(0, bytes(3), lanes=1, height=1, width=1),
    )
    for call in calls:
        with pytest.raises(OperantError, match="it is closed"):
            call()
    writer.close()
    with Reader(writer.path) as reader:
        assert reader.latest().n == 0


def test_heartbeats_and_publishes_do_not_disturb_each_other(tmp_path):
    """Heartbeats have separate words."""
    with writer_at(tmp_path) as writer, Reader(writer.path) as reader:
        beats = threading.Thread(target=lambda: [writer.heartbeat() for _ in range(2000)])
        beats.start()
        for n in range(2000):
            writer.publish(n, [float(n)] * 8)
            writer.tick()
        beats.join()
        status = reader.status()
        assert (status.heartbeat_count, status.main_count, status.head) == (2000, 2000, 2000)


FORK = """
import gc, os, sys
from pathlib import Path
from operant.errors import OperantError
from operant.runs.metrics import Metric, Reader, Writer
path, backend = Path(sys.argv[1]), sys.argv[2]
writer = Writer(path, [Metric("a")], run_uuid=bytes(16), version="t", backend=backend, frame_bytes=64)
writer.publish(1, [1.0])
writer._event_turn.acquire()  # as if another thread told something while this one forked
pid = os.fork()
if pid == 0:
    refused = 0
    calls = [lambda: writer.publish(2, [2.0]), writer.tick, writer.heartbeat]
    calls += [lambda: writer.set_state("failed"), lambda: writer.event("child")]
    for call in (*calls, lambda: writer.frame(0, bytes(3), lanes=1, height=1, width=1), writer.restore):
        path.unlink(missing_ok=True) if call == writer.restore else None
        try:
            call()
        except OperantError as error:
            refused += "forked" in str(error)
    ballast = [bytearray(1 << 20) for _ in range(20)]  # what now lies where the map was must survive the writer's end
    writer.close()
    del writer
    gc.collect()
    for block in ballast:
        block[:] = bytes([7]) * len(block)
    sys.exit(0 if refused == 7 else 9)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
writer._event_turn.release()
writer.restore()
writer.publish(3, [3.0])
reader = Reader(path)
assert reader.events() == [] and reader.frame() is None
assert [record.step for record in reader.since(0)] == [1, 3] and reader.status().state == "starting"
sys.exit(code)
"""


@backends
def test_a_forked_child_cannot_publish(tmp_path, backend):
    process = child(FORK, tmp_path / "metrics.mm", backend, stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_descriptors_do_not_survive_exec_and_are_not_leaked(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    for backend in ("map", "pwrite"):
        writer = writer_at(tmp_path, backend=backend)
        reader = Reader(writer.path)
        for descriptor in set(os.listdir("/proc/self/fd")) - before:
            if os.path.exists(f"/proc/self/fd/{descriptor}"):
                assert not os.get_inheritable(int(descriptor))
        writer.close()
        reader.close()
        with pytest.raises(BadFileError, match="closed"):
            reader.status()
    for damage in (0, 41):
        data = bytearray((tmp_path / "metrics.mm").read_bytes())
        data[damage] ^= 1
        (tmp_path / "bad").write_bytes(data)
        with pytest.raises(BadFileError):
            Reader(tmp_path / "bad")
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_module_imports_nothing_heavy():
    code = (
        "import sys, operant.runs.metrics; print(sorted({'torch', 'numpy', 'numba', 'pydantic', 'ctypes'} & "
        "set(sys.modules)))"
    )
    process = child(code, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0] == "[]\n"


# ----------------------------------------------------------------------------------------------------------------------
# damage and versions


def finish(data: bytearray) -> bytes:
    """`data` with a recomputed checksum of the header."""
    struct.pack_into("<I", data, 4092, zlib.crc32(data[:4092]))
    return bytes(data)


def put(folder: Path, data: bytes) -> Path:
    path = folder / "case.mm"
    path.write_bytes(data)
    return path


def golden() -> bytearray:
    return bytearray(GOLDEN.read_bytes())


def refused(path: Path, sentence: str) -> None:
    with pytest.raises(BadFileError, match=sentence):
        Reader(path)


def test_a_newer_major_version_is_refused_with_both_named(tmp_path):
    data = golden()
    struct.pack_into("<HH", data, 12, 2, 3)
    refused(put(tmp_path, finish(data)), r"format 2\.3.*reads format 1\.x")


def test_unknown_incompatible_features_are_refused(tmp_path):
    data = golden()
    struct.pack_into("<H", data, 14, 4)
    struct.pack_into("<I", data, 20, 0x10)
    data[192:197] = b"9.9.9"
    refused(put(tmp_path, finish(data)), r"format 1\.4 .*format 1\.1.*0x10.*operant 9\.9\.9")


def test_a_newer_minor_version_is_read(tmp_path):
    """Longer header, schema and records, an unknown compatible bit, unknown sections, unknown codes: the known parts
    are read.
    """
    data = golden()
    struct.pack_into("<H", data, 14, 9)
    struct.pack_into("<I", data, 16, 8192 - 4096 + 64)
    struct.pack_into("<I", data, 24, 0xFFFFFFFF)
    struct.pack_into("<Q", data, 120, 77)
    struct.pack_into("<I", data, 28, 7)
    sections = bytes(data[256:416])
    struct.pack_into("<IIQQII", data, 256, 77, 1024, 2**60, 2**60, 256, 0)
    data[288:448] = sections
    struct.pack_into("<IIQQII", data, 448, 3, 3, 7, 9, 11, 0)
    wide = bytearray()
    for index in range(4):
        row = bytearray(data[8192 + 128 * index : 8192 + 128 * (index + 1)])
        row[5], row[7] = 200, 200
        wide += row + b"\xff" * 8
    data[32768 : 32768 + len(wide)] = wide
    struct.pack_into("<IIQQII", data, 320, 2, 4, 32768, len(wide), 136, zlib.crc32(wide))
    struct.pack_into("<Q", data, 4096 + 24, 250)
    data[4096 + 64] = 250
    with Reader(put(tmp_path, finish(data))) as reader:
        assert reader.header.abi == (1, 9)
        assert [(metric.name, metric.kind, metric.axis) for metric in reader.metrics] == [
            (m.name, "gauge", "linear") for m in GOLDEN_METRICS
        ]
        assert (reader.status().phase, reader.status().state) == ("unknown", "unknown")
        assert reader.latest().n == 18
        assert len(reader.since(0)) == 16
        assert len(reader.events()) == 8
        assert reader.frame().n == 2


def test_longer_records_of_a_newer_minor_version_are_read(tmp_path):
    data = golden()
    struct.pack_into("<IIQQII", data, 320, 3, 16, 32768, 16 * 104, 104, 0)
    record = bytearray(data[12288 + 2 * 96 : 12288 + 3 * 96] + b"appended")
    struct.pack_into("<I", record, 12, 104 - 16)
    struct.pack_into("<I", record, 8, zlib.crc32(record[12:]))
    data[32768 + 2 * 104 : 32768 + 3 * 104] = record
    with Reader(put(tmp_path, finish(data))) as reader:
        assert reader.latest().n == 18
        assert reader.latest().values[1:] == (54, 1 / 19, -18)


@pytest.mark.parametrize(
    ("form", "offset", "value", "sentence"),
    [
        ("I", 8, 0x04030201, "byte order"),
        ("I", 28, 9, "9 sections"),
        ("I", 16, 2**31, "impossible header"),
        ("I", 16, 64, "impossible header"),
        ("Q", 32, 2**40, "truncated: 65536 of 1099511627776"),
        ("I", 28, 2, "lacks"),
        ("Q", 320 + 8, 2**63, "outside the file"),
        ("Q", 320 + 8, 8, "outside the file"),
        ("Q", 320 + 8, 12289, "outside the file"),
        ("Q", 320 + 16, 2**64 - 1, "outside the file"),
        ("I", 320 + 4, 2**31, "outside the file"),
        ("I", 320 + 4, 12, "power of two"),
        ("I", 320 + 4, 0, "power of two"),
        ("I", 320 + 24, 0, "records of 0 bytes"),
        ("I", 320 + 24, 88, "records of 88 bytes for 4 metrics"),
        ("Q", 352 + 8, 2**63, "kind 5 outside the file"),
        ("I", 352 + 4, 6, "ring of 6 events: must be a power of two"),
        ("I", 352 + 4, 0, "ring of 0 events"),
        ("I", 352 + 24, 248, "events of 248 bytes"),
        ("Q", 384 + 16, 2**63, "kind 6 outside the file"),
        ("I", 384 + 4, 17, "impossible frame section|outside the file"),
        ("I", 384 + 4, 0, "impossible frame section"),
        ("I", 384 + 24, 56, "impossible frame section"),
        ("I", 288 + 4, 0, "0 metrics"),
        ("I", 288 + 24, 0, "impossible schema"),
        ("I", 288 + 28, 0, "damaged schema"),
        ("Q", 256 + 16, 4104, "does not lie|lacks|truncated|status"),
    ],
)
def test_impossible_counts_in_the_header_are_refused(tmp_path, form, offset, value, sentence):
    data = golden()
    struct.pack_into("<" + form, data, offset, value)
    if offset == 256 + 16:
        struct.pack_into("<IIQQII", data, 256, 1, 1, 4096, 256, 256, 0)
    refused(put(tmp_path, finish(data)), sentence)


def test_each_kind_of_damage_has_its_message(tmp_path):
    data = golden()
    data[500] ^= 1
    refused(put(tmp_path, data), "damaged header")
    refused(put(tmp_path, bytes(golden()).replace(b"\r\n", b"\n")), "text-mode")
    refused(put(tmp_path, b"#!/bin/sh\n" * 1000), "not a metrics file")
    for change in (b"same", b""):
        data = golden()
        for index in range(2):
            data[8192 + 128 * index + 64 : 8192 + 128 * (index + 1)] = change.ljust(64, b"\0")
        struct.pack_into("<I", data, 288 + 28, zlib.crc32(data[8192:8704]))
        refused(put(tmp_path, finish(data)), "unreadable schema")


def test_an_impossible_record_count_is_refused(tmp_path):
    data = golden()
    struct.pack_into("<Q", data, 4096 + 128, 2**63)
    with Reader(put(tmp_path, data)) as reader, pytest.raises(BadFileError, match="claims"):
        reader.latest()
    struct.pack_into("<QQ", data, 4096 + 128, 2**63 - 1, 0)
    with Reader(put(tmp_path, data)) as reader:
        assert reader.latest() is None
        assert reader.since(0) == []
    struct.pack_into("<Q", data, 4096 + 192, 2**63)
    with Reader(put(tmp_path, data)) as reader, pytest.raises(BadFileError, match=f"claims {2**63} events"):
        reader.events()
    struct.pack_into("<Q", data, 4096 + 192, 2**63 - 1)
    with Reader(put(tmp_path, data)) as reader:
        assert reader.events() == []


def test_every_damaged_record_is_left_out(tmp_path):
    for byte in range(96):
        data = golden()
        data[12288 + 2 * 96 + byte] ^= 0x10
        with Reader(put(tmp_path, data)) as reader:
            assert reader.latest().n == 17
            assert [record.n for record in reader.since(0)] == list(range(3, 18))


def test_every_damaged_event_is_left_out(tmp_path):
    for byte in range(256):
        data = golden()
        data[16384 + 2 * 256 + byte] ^= 0x10
        with Reader(put(tmp_path, data)) as reader:
            assert [event.n for event in reader.events()] == [3, 4, 5, 6, 7, 8, 9]


def test_a_damaged_frame_gives_the_previous_one(tmp_path):
    for byte in range(136):
        data = golden()
        data[20480 + byte] ^= 0x10
        with Reader(put(tmp_path, data)) as reader:
            assert reader.frame().n == 1
            assert reader.frame(1) is None
    data = golden()
    for slot in (0, 256):
        data[20480 + slot + 8] ^= 1
    with Reader(put(tmp_path, data)) as reader:
        assert reader.frame() is None


def test_frames_larger_than_their_slot_are_refused(tmp_path):
    for offset, form, value in (
        (12, "I", 2**32 - 1),
        (16, "Q", 2**64 - 1),
        (32, "HHHH", (65535,) * 4),
        (32, "H", 0),
        (38, "H", 60),
    ):
        data = golden()
        struct.pack_into("<" + form, data, 20480 + offset, *(value if isinstance(value, tuple) else (value,)))
        struct.pack_into("<I", data, 20480 + 8, zlib.crc32(data[20480 + 12 : 20480 + 136]))
        with Reader(put(tmp_path, data)) as reader:
            assert reader.frame().n == 1


def test_unknown_codes_of_a_newer_trainer_read_as_defaults(tmp_path):
    data = golden()
    slot = 16384 + 2 * 256
    data[slot + 14], data[slot + 15] = 200, 200
    struct.pack_into("<I", data, slot + 8, zlib.crc32(data[slot + 12 : slot + 256]))
    data[20480 + 40] = 200
    struct.pack_into("<I", data, 20480 + 8, zlib.crc32(data[20480 + 12 : 20480 + 136]))
    with Reader(put(tmp_path, data)) as reader:
        assert (reader.events()[-1].level, reader.events()[-1].code) == ("info", "note")
        assert (reader.frame().n, reader.frame().mode) == (2, "")


def test_the_map_stores_mark_data_mark_and_count_in_order(tmp_path):
    """The order is the protocol; `Recorder` replaces the map and its words."""

    class Recorder:
        def __init__(self):
            self.stores = []

        def __setitem__(self, key, value):
            self.stores.append((key.start, key.stop) if isinstance(key, slice) else (8 * key, value))

    with writer_at(tmp_path, backend="map", frame_bytes=64) as writer:
        recorder = Recorder()
        writer._store._map = writer._store._words = recorder
        for n in range(17):
            writer.publish(n, [0.0] * 8)
        slot = 12288 + 128
        assert recorder.stores[4:8] == [(slot, 3), (slot, slot + 128), (slot, 4), (4096 + 128, 2)]
        slot = 12288
        assert recorder.stores[-4:] == [(slot, 33), (slot, slot + 128), (slot, 34), (4096 + 128, 17)]
        writer.event("one")
        writer.event("two")
        slot = 16384 + 256
        assert recorder.stores[-4:] == [(slot, 3), (slot, slot + 256), (slot, 4), (4096 + 192, 2)]
        for n in range(2):
            writer.frame(n, bytes(12), lanes=1, height=2, width=2)
        slot = 20480 + 128
        assert recorder.stores[-3:] == [(slot, 3), (slot, slot + 64 + 12), (slot, 4)]


def test_the_map_is_not_inherited_by_a_fork(tmp_path):
    with writer_at(tmp_path, backend="map") as writer:
        _, _, after = Path("/proc/self/smaps").read_text().partition(str(writer.path))
        assert " dc" in re.search(r"^VmFlags:.*$", after, re.MULTILINE).group()


def test_a_half_stored_record_gives_the_previous_one(tmp_path):
    """The state after a trainer was stopped between its two marks."""
    with writer_at(tmp_path, frame_bytes=64) as writer, Reader(writer.path) as reader:
        for n in range(20):
            writer.publish(n, [float(n)] * 8)
        with open(writer.path, "r+b") as file:
            file.seek(12288 + 20 % 16 * 128)
            file.write(struct.pack("<Q", 2 * 20 + 1) + b"half")
            for n in range(20):
                writer.event(f"event {n}")
                writer.frame(n, bytes([n]) * 12, lanes=1, height=2, width=2)
            file.seek(16384 + 20 % 16 * 256)
            file.write(struct.pack("<Q", 2 * 20 + 1) + b"half")
            file.seek(20480 + 20 % 2 * 128)
            file.write(struct.pack("<Q", 2 * 20 + 1) + b"half")
        assert reader.latest().n == 19
        assert [record.n for record in reader.since(0)] == list(range(5, 20))
        assert [event.n for event in reader.events()] == list(range(5, 20))
        assert reader.frame().pixels == bytes([19]) * 12


def test_hostile_texts_are_made_printable(tmp_path):
    hostile = "\x1b]0;x\x07\x1b[2J\x9b31m\u202e\u200b\u2028\x00after"
    assert safe("plain ünï 漢字 →") == "plain ünï 漢字 →"
    assert re.search(r"[\x00-\x1f\x7f-\x9f\u202e\u200b\u2028]", safe(hostile)) is None
    with writer_at(tmp_path, [Metric("a", unit="é" * 40)], host=hostile + "h" * 200, version="v\x1b[0m") as writer:
        data = bytearray(writer.path.read_bytes())
    name = "[/foo]\x1b[2J\u202eé".encode()
    data[8192 + 64 : 8192 + 128] = name.ljust(64, b"\xff")
    struct.pack_into("<I", data, 288 + 28, zlib.crc32(data[8192 : 8192 + 128]))
    with Reader(put(tmp_path, finish(data))) as reader:
        assert re.fullmatch(r"[A-Za-z0-9_./-]{1,63}", reader.metrics[0].name)
        assert reader.metrics[0].unit == "é" * 19
        for text in (reader.header.host, reader.header.version):
            assert safe(text) == text
            assert "\x1b" not in text


def test_a_file_truncated_at_any_size_is_refused_or_valid(tmp_path):
    data = golden()
    for size in [0, 1, 7, 8, 100, 4091, 4095, 4096, 8191, 8192, 8193, 8704, 12288, 12289, 13824, 65535]:
        refused(put(tmp_path, data[:size]), "truncated")
    path = put(tmp_path, data)
    for size in (60000, 12288 + 100, 12288, 8192, 4096 + 500, 4096, 100, 0):
        path.write_bytes(data)
        with Reader(path) as reader:
            assert not reader.replaced()
            os.truncate(path, size)
            assert reader.replaced()
            for read in (reader.events, reader.frame):
                if size == 60000:
                    assert read()
                else:
                    with pytest.raises(BadFileError, match="was truncated"):
                        read()
            if size == 60000:  # only the padding is gone
                assert [record.n for record in reader.since(0)] == list(range(3, 19))
                assert reader.latest().n == 18
            else:
                for read in (reader.latest, lambda: reader.since(0)):
                    with pytest.raises(BadFileError, match="was truncated"):
                        read()


def test_paths_that_are_not_regular_files_are_refused(tmp_path):
    refused(tmp_path / "absent", "cannot be opened .*No such file")
    refused(tmp_path, "not a regular file")
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "not a regular file")
    (tmp_path / "link").symlink_to(GOLDEN)
    refused(tmp_path / "link", "symbolic link")
    refused(Path("/dev/zero"), "not a regular file")
    refused(Path(str(tmp_path) + "/a\0b"), "cannot be opened")
    refused(tmp_path / ("x" * 300), "cannot be opened")
    refused(tmp_path / "bad\x1b[2Jname", r"bad\[2Jname")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(2**30 + 1)
    refused(tmp_path / "huge", "1073741825 bytes")


def test_a_resumed_session_replaces_the_file(tmp_path):
    with writer_at(tmp_path) as first, Reader(first.path) as reader:
        first.publish(1, [1.0] * 8)
        with writer_at(tmp_path, session=2) as second:
            assert reader.replaced()
            assert reader.latest().session == 1
            second.publish(2, [2.0] * 8)
            with Reader(second.path) as again:
                assert (again.header.session, again.latest().session, again.latest().n) == (2, 2, 0)


# ----------------------------------------------------------------------------------------------------------------------
# fuzz

INTERESTING = (
    0,
    1,
    2,
    7,
    127,
    128,
    255,
    256,
    4095,
    4096,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


# Where the slots lie of a file of 8 metrics x 16 records, 16 events, and frames of at most 300 bytes: first slot,
# slots, stride, bytes the checksum covers.
SLOTS = ((12288, 16, 128, 128), (16384, 16, 256, 256), (20480, 2, 384, 64 + 300))
USED = 20480 + 2 * 384


def mutate(base: bytes, chance: random.Random) -> bytearray:
    """Change a few of the used bytes, and recompute the checksums half of the time, so that the checks after them are
    reached.
    """
    data = bytearray(base)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        first, count, stride, _ = chance.choice(SLOTS)
        places = (
            chance.randrange(512),
            chance.randrange(USED),
            4096 + chance.randrange(512),
            8192 + chance.randrange(1024),
            first + stride * chance.randrange(count) + chance.randrange(64),
        )
        place, change = chance.choice(places), chance.randrange(5)
        if change == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif change == 1:
            data[place] = chance.randrange(256)
        elif change == 2:
            struct.pack_into("<Q", data, place & ~7, chance.choice(INTERESTING))
        elif change == 3:
            struct.pack_into("<I", data, place & ~3, chance.choice(INTERESTING) & 0xFFFFFFFF)
        else:
            length, source = chance.randrange(1, 200), chance.randrange(USED)
            data[place : place + length] = base[source : source + length]
            del data[len(base) :]
            data.extend(bytes(len(base) - len(data)))
    if chance.random() < 0.7:
        struct.pack_into("<I", data, 288 + 28, zlib.crc32(data[8192 : 8192 + 1024]))
        finish(data)
    for first, count, stride, size in SLOTS:
        if chance.random() < 0.3:
            slot = first + stride * chance.randrange(count)
            struct.pack_into("<I", data, slot + 8, zlib.crc32(data[slot + 12 : slot + size]))
    if chance.random() < 0.05:
        del data[chance.randrange(len(data)) :]
    return data


def check_reader(path: Path) -> bool:
    """Read everything; True for valid data, False for BadFileError; nothing else may happen."""
    try:
        with Reader(path) as reader:
            assert 1 <= len(reader.metrics) <= 4096
            assert all(re.fullmatch(r"[A-Za-z0-9_./-]{1,63}", metric.name) for metric in reader.metrics)
            events = reader.events()
            texts = [
                reader.header.host,
                reader.header.version,
                *(metric.unit for metric in reader.metrics),
                *(event.text for event in events),
            ]
            assert all(safe(text, 208) == text for text in texts)
            status = reader.status()
            assert status.state in (*STATES, "unknown")
            newest, records = reader.latest(), reader.since(0)
            for record in records if newest is None else [newest, *records]:
                assert len(record.values) == len(reader.metrics)
                assert record.n < status.head
            for rows, head in ((records, status.head), (events, status.event_head)):
                numbers = [row.n for row in rows]
                assert numbers == sorted(set(numbers))
                assert not numbers or numbers[-1] < head
            assert all(event.level in LEVELS and event.code in EVENTS for event in events)
            frame = reader.frame()
            if frame is not None:
                assert (
                    len(frame.pixels)
                    == frame.lanes * frame.height * frame.width * frame.channels
                    <= reader.header.frame_bytes
                )
                assert frame.mode in (*MODES, "")
    except BadFileError as error:
        assert str(error).startswith(str(path))
        return False
    return True


def fuzz(folder: Path, monkeypatch, mutants: int, seed: int) -> float:
    """Mutate a file in place and read it, repeatedly; returns the most processor time of one reading in seconds."""
    fix_identity(monkeypatch)
    with writer_at(folder, frame_bytes=300) as writer:
        for n in range(20):
            writer.publish(n, [n + 0.5] * 8)
            writer.event(f"event {n} \x1b[2J", level=LEVELS[n % 3])
            writer.frame(n, bytes(300), lanes=4, height=5, width=5)
    base = writer.path.read_bytes()
    path, valid, longest = put(folder, base), 0, 0.0
    chance = random.Random(seed)
    assert check_reader(path)
    with open(path, "r+b", buffering=0) as file:
        for _ in range(mutants):
            data = mutate(base, chance)
            if len(data) < len(base):
                file.truncate(len(data))
                os.pwrite(file.fileno(), data[:USED], 0)
            else:
                file.truncate(len(base))
                os.pwrite(file.fileno(), data[: USED + 256], 0)
            began = time.thread_time()
            valid += check_reader(path)
            longest = max(longest, time.thread_time() - began)
    assert mutants * 0.1 < valid < mutants * 0.9
    return longest


@pytest.mark.slow
def test_mutated_files_give_valid_data_or_a_message(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        fuzz(tmp_path, patch, 10_000, seed=1)


@pytest.mark.soak
def test_many_mutated_files_give_valid_data_or_a_message(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        assert fuzz(tmp_path, patch, 1_000_000, seed=2) < 0.05


# ---------------------------------------------------------------------------------------------------------------------
# kill -9, torn reads

PUBLISH = """
import mmap, os, struct, sys
from pathlib import Path
from operant.runs.metrics import Metric, Writer
folder, backend, columns, capacity = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
metrics = [Metric(f"m{i}") for i in range(columns)]
options = {"run_uuid": bytes(16), "version": "t", "capacity": capacity, "event_capacity": capacity}
options |= {"frame_bytes": 4 * 32 * 32 * 3, "backend": backend}
writer = Writer(folder / "metrics.mm", metrics, **options)
with open(folder / "acknowledged", "r+b") as file:
    acknowledged = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
while True:
    n = acknowledged[0]
    writer.publish(n, [float(n)] * columns)
    if n % 4 == 0:
        writer.event(f"event {n // 4} " + "é" * (n // 4 % 90), step=n // 4)
    if n % 16 == 0:
        pixels = struct.pack("<Q", n // 16) * (32 * 32 * 3 // 8)
        writer.frame(n // 16, pixels * (n // 16 % 4 + 1), lanes=n // 16 % 4 + 1, height=32, width=32)
    acknowledged[0] = n + 1
"""


class Publisher:
    """Process that writes at full speed; record, event and frame n hold step n and the value n everywhere."""

    def __init__(self, folder: Path, backend: str, columns: int, capacity: int) -> None:
        self.folder, self.path = folder, folder / "metrics.mm"
        folder.mkdir()
        (folder / "acknowledged").write_bytes(bytes(8))
        self.process = child(PUBLISH, folder, backend, columns, capacity, stderr=subprocess.PIPE)

    def acknowledged(self) -> int:
        return struct.unpack("<Q", (self.folder / "acknowledged").read_bytes())[0]

    def wait(self) -> None:
        while self.acknowledged() == 0:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.002)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()


def check_record(record) -> None:
    assert record.step == record.n
    assert record.values == (float(record.n),) * 64


def check_event(event) -> None:
    assert event.step == event.n
    assert event.text == f"event {event.n} " + "é" * (event.n % 90)


def check_frame(frame) -> None:
    assert frame.step == frame.n
    assert (frame.lanes, frame.height, frame.width, frame.channels) == (frame.n % 4 + 1, 32, 32, 3)
    assert frame.pixels == struct.pack("<Q", frame.n) * (384 * frame.lanes)


def kill_once(folder: Path, backend: str, delay_s: float) -> None:
    publisher = Publisher(folder, backend, columns=64, capacity=16)
    publisher.wait()
    time.sleep(delay_s)
    publisher.kill()
    acknowledged = publisher.acknowledged()
    with Reader(publisher.path) as reader:
        head, newest, records = reader.status().head, reader.latest(), reader.since(0)
        event_head, events, frame = reader.status().event_head, reader.events(), reader.frame()
    assert acknowledged <= head <= acknowledged + 1
    assert newest.n == head - 1
    assert newest == records[-1]
    assert len(records) >= min(head, 16) - 1
    for record in records:
        check_record(record)
    assert -(-acknowledged // 4) <= event_head <= acknowledged // 4 + 1
    assert events[-1].n == event_head - 1
    assert len(events) >= min(event_head, 16) - 1
    for event in events:
        check_event(event)
    # One frame may have been half stored, and one stored but not acknowledged.
    assert (acknowledged - 1) // 16 <= frame.n <= acknowledged // 16
    check_frame(frame)


@backends
def test_a_kill_loses_no_published_record(tmp_path, backend):
    chance = random.Random(3)
    for attempt in range(5):
        kill_once(tmp_path / str(attempt), backend, chance.uniform(0, 0.02))


@pytest.mark.soak
@backends
def test_many_kills_lose_no_published_record(tmp_path, backend):
    chance = random.Random(4)
    for attempt in range(500):
        kill_once(tmp_path / str(attempt), backend, chance.uniform(0, 0.02))


def read_beside_a_writer(folder: Path, backend: str, reads: int) -> None:
    """Rings of 4 are overwritten all the time; every record that a reader accepts must be whole."""
    publisher = Publisher(folder, backend, columns=64, capacity=4)
    try:
        publisher.wait()
        seen, last, framed, told = 0, -1, -1, 0
        with Reader(publisher.path) as reader:
            for turn in range(reads):
                record = reader.latest()
                assert record.n >= last
                if record.n > last:
                    seen, last = seen + 1, record.n
                    check_record(record)
                if turn % 16 == 0:
                    for record in reader.since(0):
                        check_record(record)
                    for event in reader.events(told):
                        check_event(event)
                        told = event.n + 1
                    frame = reader.frame(framed)
                    if frame is not None:
                        assert frame.n > framed
                        framed = frame.n
                        check_frame(frame)
        assert seen > 10
        assert framed > 10
        assert told > 10
        assert publisher.process.poll() is None
    finally:
        publisher.kill()


@pytest.mark.parametrize("backend", ["map", pytest.param("pwrite", marks=pytest.mark.slow)])
def test_reads_during_full_speed_writes_are_never_torn(tmp_path, backend):
    read_beside_a_writer(tmp_path / "run", backend, 50_000)


@pytest.mark.soak
@backends
def test_many_reads_during_full_speed_writes_are_never_torn(tmp_path, backend):
    read_beside_a_writer(tmp_path / "run", backend, 5_000_000)


def test_a_reader_does_not_wait_for_a_stopped_writer(tmp_path):
    publisher = Publisher(tmp_path / "run", "map", columns=64, capacity=16)
    try:
        publisher.wait()
        for _ in range(20):
            publisher.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, publisher.process.pid, os.WSTOPPED)
            with Reader(publisher.path) as reader:
                record = reader.latest()
                assert record.values == (float(record.n),) * 64
                assert record.n >= publisher.acknowledged() - 1
            publisher.process.send_signal(signal.SIGCONT)
    finally:
        publisher.kill()
