"""Follower of a run: the end of its log, and its metrics file through resumes, deletions and restores."""

import io
import os
import struct
import zlib

from operant import runs
from operant.cli import follow
from operant.runs.follow import Follower
from operant.runs.log import LEFT_OUT, SESSION_MARK, Tail
from operant.runs.metrics import Metric, Writer, layout

# THE LOG


def test_a_tail_returns_added_lines_of_a_log(tmp_path):
    path = tmp_path / "log.txt"
    tail = Tail(path)
    assert tail.poll() == [] and tail.last_words() == ()
    path.write_bytes(b"14:03:11 hello\nhalf")
    assert tail.poll() == ["14:03:11 hello"] and tail.poll() == []
    with open(path, "ab") as file:
        file.write(b" a line\n" + b"x" * 300_000 + b"\nerror: it broke\n")
    assert [line[:20] for line in tail.poll()][-1] == "error: it broke" and tail.rest == ""
    with open(path, "ab") as file:
        file.write(b"flood\n" * 500_000)
    flood = tail.poll()
    assert len(flood) < 20_000 and flood[0].startswith(LEFT_OUT) and len(tail.lines) == 1000
    path.write_bytes(b"new\n")
    assert tail.poll() == ["new"]
    path.unlink()
    os.mkfifo(path)
    assert tail.poll() == []


def test_the_last_words_are_those_of_the_last_worker(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(
        f"error: of the first\n{SESSION_MARK}2\n" + "".join(f"12:00:00 line {n}\n" for n in range(30)) + "Killed"
    )
    tail = Tail(path)
    tail.poll()
    assert tail.last_words() == (*(f"12:00:00 line {n}" for n in range(11, 30)), "Killed")
    with open(path, "a") as file:
        file.write(
            "\nTraceback (most recent call last):\n"
            + "".join(f"  frame {n}\n" for n in range(100))
            + "ValueError: no\n"
        )
    tail.poll()
    words = tail.last_words()
    assert words[0].startswith("Traceback") and words[-1] == "ValueError: no" and len(words) == 60


# THE METRICS FILE


class Trainer:
    """This process as the worker of a run."""

    def __init__(self, run, session=1):
        runs.update_document(run.path, **runs.identity(), phase=f"of session {session}")
        self.writer = Writer(run.metrics_path, [Metric("return")], run_uuid=run.uuid, session=session, version="test")
        self.writer.set_state("running")
        self.n = 0

    def record(self, count=1):
        for _ in range(count):
            self.n += 1
            self.writer.publish(10 * self.n, [float(self.n)])


def test_records_and_events_are_returned_once(tmp_path):
    run = runs.create(tmp_path, "run-0001", "x", {})
    follower = Follower(run)
    follower.poll(0.0)
    assert (follower.state.word, follower.new_records(), follower.new_events(), follower.restarted) == (
        "starting",
        [],
        [],
        False,
    )
    trainer = Trainer(run)
    trainer.record(3)
    trainer.writer.event("hello")
    follower.poll(1.0)
    assert (
        follower.restarted and follower.run.document["phase"] == "of session 1" and follower.document_time_s is not None
    )
    assert [record.step for record in follower.new_records()] == [10, 20, 30] and [
        event.text for event in follower.new_events()
    ] == ["hello"]
    trainer.record()
    follower.poll(2.0)
    assert not follower.restarted and follower.document_time_s is None
    assert [record.step for record in follower.new_records()] == [
        40
    ] and follower.new_records() == follower.new_events() == []
    follower.close()


def test_warnings_of_an_earlier_session_do_not_appear_in_a_new_one(tmp_path):
    run, stream = runs.create(tmp_path, "run-0001", "x", {}), io.StringIO()
    trainer = Trainer(run)
    trainer.record()
    trainer.writer.event("of before", level="warn")
    trainer.writer.set_state("stopped")
    lock = runs.acquire(run.path)
    runs.update_document(run.path, pid_start_ticks=1, phase="importing torch")
    assert follow.wait(run, 0.0, stream=stream) == follow.TIMEOUT_CODE
    lock.release()
    assert "has not ended within 0 s: starting" in stream.getvalue() and "of before" not in stream.getvalue()


def huge(run, monkeypatch, records=1 << 19, events=1 << 20):
    """Make a sparse metrics file with rings of the largest size, of which only the last records and events are valid;
    counts the bytes read of it.
    """
    monkeypatch.setattr(os, "posix_fallocate", lambda descriptor, offset, size: os.ftruncate(descriptor, size))
    sizes = {"capacity": records, "event_capacity": events}
    with Writer(
        run.metrics_path, [Metric("return")], run_uuid=run.uuid, version="test", backend="pwrite", **sizes
    ) as writer:
        writer.publish(10, [1.0])
        writer.event("hello")
        writer.set_state("finished")
    monkeypatch.undo()
    places = struct.Struct("<IIQQII")
    with open(run.metrics_path, "r+b") as file:
        raw = file.read(layout.HEADER_SIZE)
        rings = {
            kind: (offset, stride)
            for kind, _, offset, _, stride, _ in places.iter_unpack(raw[256 : 256 + 4 * places.size])
        }
        for kind, count, head in (
            (layout.RING_KIND, records, layout.HEAD),
            (layout.EVENTS_KIND, events, layout.EVENT_HEAD),
        ):
            offset, stride = rings[kind]
            file.seek(layout.STATUS_OFFSET + 8 * head)
            file.write(struct.pack("<Q", 3 * count))
            number = 3 * count - 1
            file.seek(offset)
            slot = bytearray(file.read(stride))
            struct.pack_into("<Q", slot, 0, 2 * number + 2)
            struct.pack_into("<Q", slot, 16, number)
            struct.pack_into("<I", slot, 8, zlib.crc32(slot[12:]))
            file.seek(offset + (number & (count - 1)) * stride)
            file.write(slot)
    taken = []
    read = os.pread
    monkeypatch.setattr(
        os, "pread", lambda descriptor, size, offset: taken.append(size) or read(descriptor, size, offset)
    )
    return taken


def test_only_the_newest_end_of_a_huge_metrics_file_is_read(tmp_path, monkeypatch):
    run = runs.create(tmp_path, "run-0001", "x", {})
    taken = huge(run, monkeypatch)
    follower = Follower(run)
    follower.poll(0.0)
    assert [record.n for record in follower.new_records()] == [3 * (1 << 19) - 1] and [
        event.text for event in follower.new_events()
    ] == ["hello"]
    assert follower.records_from(0) and runs.describe(run)["return"] == 1.0
    assert sum(taken) < 4 << 20
    follower.close()


def test_a_restored_file_is_continued_and_the_file_of_a_resume_starts_again(tmp_path):
    run = runs.create(tmp_path, "run-0001", "x", {})
    trainer, follower = Trainer(run), Follower(run)
    trainer.record(3)
    follower.poll(0.0)
    follower.new_records()
    run.metrics_path.unlink()
    trainer.record()
    follower.poll(1.0)
    assert [record.step for record in follower.new_records()] == [40] and "was deleted" in follower.notice
    trainer.writer.restore()
    trainer.record()
    follower.poll(2.0)
    assert (
        not follower.restarted and [record.step for record in follower.new_records()] == [50] and follower.notice == ""
    )
    Trainer(run, session=2).record(2)
    follower.poll(3.0)
    assert (
        follower.restarted
        and follower.header.session == 2
        and [record.step for record in follower.new_records()] == [10, 20]
    )
    run.metrics_path.unlink()
    run.metrics_path.write_bytes(b"no metrics file" * 1000)
    follower.poll(4.0)
    assert (
        follower.state.word == "unreadable"
        and follower.reader is None
        and follower.new_records() == []
        and follower.header.session == 2
    )
    follower.close()
