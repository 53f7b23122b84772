"""Rows of the fault matrix (tests/FAULTS.md) without another test: single steps, weak memory, truncation, stalls,
suspends, descriptors, Python versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import re
import resource
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from waiting import records, state, wait_until

from operant import runs
from operant.errors import BadFileError, MachineError
from operant.runs import control, states
from operant.runs.follow import Follower
from operant.runs.metrics import Metric, Reader, Writer

ROOT = Path(__file__).resolve().parents[2]
NEW = 6  # the record that is caught in the middle; it takes the place of record 2 in a ring of 4


def writer_at(path: Path, **options) -> Writer:
    return Writer(
        path,
        [Metric("a"), Metric("b")],
        run_uuid=bytes(16),
        version="0.1.0",
        host="here",
        capacity=4,
        event_capacity=16,
        **options,
    )


def child(code: str, *arguments: object, python: str = sys.executable, **options) -> subprocess.Popen:
    """Start a process that imports only the standard library and Operant's standard-library modules."""
    return subprocess.Popen(
        [python, "-S", "-c", code, *map(str, arguments)], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, **options
    )


def check(reader: Reader) -> int:
    """Check that everything a reader returns is whole and labelled correctly; returns the newest number."""
    latest = reader.latest()
    for record in (latest, *reader.since(0)):
        assert (record.step, record.values) == (record.n, (float(record.n),) * 2)
    assert latest.n in (NEW - 1, NEW)
    return latest.n


# ROW 2: A WRITER AT EVERY INSTRUCTION

STEPPED = """
import ctypes, os, signal, sys
from pathlib import Path
from operant.runs.metrics import Metric, Writer
options = {"run_uuid": bytes(16), "version": "0.1.0", "host": "here", "capacity": 4, "event_capacity": 16}
writer = Writer(Path(sys.argv[1]), [Metric("a"), Metric("b")], **options)
for n in range(6):
    writer.publish(n, [float(n)] * 2)
if ctypes.CDLL(None).ptrace(0, 0, 0, 0):  # PTRACE_TRACEME
    os._exit(3)
os.kill(os.getpid(), signal.SIGSTOP)
writer.publish(6, [6.0] * 2)
os._exit(0)
"""
SINGLESTEP = 9


@pytest.mark.skipif(sys.platform != "linux", reason="ptrace as Linux has it")
def test_row_2_a_writer_stopped_after_any_instruction_leaves_whole_records(tmp_path):
    """The file equals that of a writer killed at this instruction."""
    path, trace = tmp_path / "metrics.mm", ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    process = child(STEPPED, path)
    pid = process.pid
    try:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            pytest.skip("processes may not be traced here")
        descriptor, seen, before, steps = os.open(path, os.O_RDONLY), [], b"", 0
        with Reader(path) as reader:
            while not os.WIFEXITED(status):
                now = os.pread(descriptor, 1 << 16, 0)
                if now != before:
                    before = now
                    seen.append(check(reader))
                assert trace(SINGLESTEP, pid, None, None) == 0, os.strerror(ctypes.get_errno())
                _, status = os.waitpid(pid, 0)
                steps += 1
        os.close(descriptor)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        process.returncode = 0
    assert steps > 1000 and len(seen) > 5 and seen == sorted(seen) and (seen[0], seen[-1]) == (NEW - 1, NEW)


# ROW 6: WEAK MEMORY


def test_row_6_whatever_order_the_stores_of_a_record_become_visible_in_none_is_torn_or_mislabelled(tmp_path):
    """Model of every order that a processor may show: any mixture of old and new words, including the mark "being
    stored". The checksum decides.
    """
    path = tmp_path / "metrics.mm"
    with writer_at(path, backend="pwrite") as writer:
        for n in range(NEW):
            writer.publish(n, [float(n)] * 2)
        before = path.read_bytes()
        writer.publish(NEW, [float(NEW)] * 2)
        after = path.read_bytes()
    words = [at for at in range(0, len(before), 8) if before[at : at + 8] != after[at : at + 8]]
    choices = [[before[at : at + 8], after[at : at + 8]] for at in words]
    (mark,) = [k for k, (_, new) in enumerate(choices) if new == struct.pack("<Q", 2 * NEW + 2)]
    choices[mark].append(struct.pack("<Q", 2 * NEW + 1))
    seen = []
    with open(path, "r+b", buffering=0) as file:
        for mixture in itertools.product(*choices):
            for at, word in zip(words, mixture, strict=True):
                os.pwrite(file.fileno(), word, at)
            with Reader(path) as reader:
                seen.append(check(reader))
    assert len(words) > 5 and len(seen) >= 3 * 2 ** (len(words) - 1) and 1 <= seen.count(NEW) < len(seen) / 8


# ROW 8: TRUNCATION UNDER THE WRITER


def test_row_8_a_truncated_file_is_restored_by_a_writer_with_pwrite(tmp_path):
    path = tmp_path / "metrics.mm"
    with writer_at(path, backend="pwrite") as writer:
        writer.set_state("running")
        writer.publish(0, [0.0] * 2)
        assert not writer.restore()
        os.truncate(path, 0)
        for n in range(1, 20):
            writer.publish(n, [float(n)] * 2)
            writer.heartbeat()
            writer.event(f"event {n}")
        with pytest.raises(BadFileError):
            Reader(path)
        assert writer.restore() and not writer.restore()
        writer.publish(20, [20.0] * 2)
        with Reader(path) as reader:
            assert (reader.latest().step, reader.status().state, reader.events()[-1].text) == (
                20,
                "running",
                "event 19",
            )


def test_row_8_a_file_truncated_under_a_map_ends_the_trainer_with_a_message(started, here):
    """Only the owner of the file can do it, and a map dies of it: the cause is reported, all commands still work."""
    run = started("forever")
    wait_until(lambda: records(run) > 3)
    os.truncate(run.metrics_path, 0)
    wait_until(lambda: (run.path / "exit.json").exists())
    assert runs.read_json(run.exit_path)["signal"] == signal.SIGBUS
    shown = json.loads(here("show", run.id, "--json").out)
    assert shown["exit"] == 137 and shown["state"] in ("crashed", "unreadable") and shown["cause"]


# ROW 12: STALLS OF THE DISK


def test_row_12_publishing_costs_little_beside_writers_that_dirty_pages(tmp_path):
    """Measured by the clock of the thread, independent of other programs on a loaded machine: page faults and copies
    count.
    """
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() and os.access(memory, os.W_OK) else tmp_path))
    load = (
        "import os, sys\nfor n in range(10**6):\n    with open(sys.argv[1], 'wb') as file:\n        "
        "file.write(bytes(32 << 20))\n        os.fsync(file)"
    )
    dirty = child(load, tmp_path / "dirty")
    try:
        with Writer(
            folder / "metrics.mm",
            [Metric(f"m{k}") for k in range(64)],
            run_uuid=bytes(16),
            version="0.1.0",
            host="here",
        ) as writer:
            values, costs = [1.0] * 64, []
            for n in range(5000):
                began_ns = time.thread_time_ns()
                writer.publish(n, values)
                costs.append(time.thread_time_ns() - began_ns)
                if n % 100 == 0:
                    time.sleep(0.001)
    finally:
        dirty.kill()
        dirty.wait()
        shutil.rmtree(folder)
    costs.sort()
    assert (
        statistics.median(costs) < 100_000 and costs[int(0.999 * len(costs))] < 1_000_000
    )  # ns; 200 us are promised, of a machine that does nothing else


# ROW 18: THE MACHINE WAS SUSPENDED


def test_row_18_after_an_hour_of_sleep_a_trainer_is_suspended_until_its_heart_beats_and_never_crashed(
    started, monkeypatch
):
    run = started("forever")
    wait_until(lambda: state(run).word == "running")
    os.kill(runs.holder(run.path), signal.SIGSTOP)  # as it stands when the machine wakes up, before it has had its turn
    wait_until(lambda: Path(f"/proc/{runs.holder(run.path)}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    real, hour_ns = time.clock_gettime_ns, 3600 * 10**9
    follower = Follower(run)
    follower.poll(0.0)
    assert follower.state.word == "running"
    # the boot's clock counts sleep; the monotonic one does not
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: real(clock) + hour_ns)
    assert state(run).word == "suspended" and "no heartbeat for 1" in state(run).cause
    follower.poll(0.1)
    assert follower.state.word == "running", "a viewer that slept along has seen nothing stand still"
    os.kill(runs.holder(run.path), signal.SIGCONT)
    beats = follower.look.status.heartbeat_count
    wait_until(lambda: follower.poll(0.2) or follower.look.status.heartbeat_count > beats)
    assert follower.state.word == "running"
    with monkeypatch.context() as patched:
        patched.setattr(states, "_SUSPENDED_S", 7200.0)
        assert state(run).word in ("running", "stalled")


# ROW 39: NO DESCRIPTOR LEFT, INTERRUPTED AND SHORT WRITES


@contextlib.contextmanager
def no_descriptor_left():
    """Make every `open` of this process fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("backend", ["map", "pwrite"])
def test_row_39_without_descriptors_a_trainer_continues_and_a_viewer_reports_it(fresh, backend):
    run, said = fresh("full"), []
    lock = runs.acquire(run.path)
    run = run._replace(document=runs.update_document(run.path, **runs.identity()))
    inbox = control.Inbox(run.path, run.uuid, report=said.append)
    with writer_at(run.metrics_path, backend=backend) as writer, Reader(run.metrics_path) as reader:
        writer.set_state("running")
        ticket = control.send(run, "checkpoint")
        with no_descriptor_left():
            writer.publish(0, [0.0] * 2)
            writer.heartbeat()
            writer.event("still here")
            assert reader.latest().n == 0 and reader.events()[-1].text == "still here"
            assert inbox.poll() == [] and not lock.restore()
            assert not writer.restore()
            with pytest.raises(BadFileError):
                Reader(run.metrics_path)
            with pytest.raises(MachineError):
                runs.update_document(run.path, phase="x")
            assert runs.state(run).word in ("unreadable", "running")
        assert [request.verb for request in inbox.poll()] == ["checkpoint"], "what was asked meanwhile is not lost"
        assert control.answer(run, ticket, 0.0) is None and all("Too many open files" in line for line in said)
    lock.release()


def test_row_39_a_short_write_is_counted_and_the_next_one_repairs_it(tmp_path, monkeypatch):
    with writer_at(tmp_path / "metrics.mm", backend="pwrite") as writer, Reader(writer.path) as reader:
        writer.publish(0, [0.0] * 2)
        real = os.pwrite
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", lambda descriptor, data, offset: real(descriptor, bytes(data)[:7], offset))
            writer.publish(1, [1.0] * 2)
        assert writer.write_errors > 0 and reader.latest().n == 0
        writer.publish(2, [2.0] * 2)
        assert reader.latest().n == 2


def test_row_39_signals_that_interrupt_calls_change_nothing(tmp_path):
    """A timer fires a thousand times a second, like a profiler: every call is repeated after EINTR."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with writer_at(tmp_path / "metrics.mm", backend="pwrite") as writer, Reader(writer.path) as reader:
            for n in range(2000):
                writer.publish(n, [float(n)] * 2)
                assert reader.latest().n == n
            assert writer.write_errors == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


# ROW 40: SEVERAL PYTHONS

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")
OTHER = """
import sys
from pathlib import Path
from operant import runs
from operant.cli import follow
from operant.runs import checkpoints, control, history, launch
from operant.runs.metrics import Metric, Reader, Writer
made, given = map(Path, sys.argv[1:])
options = {"run_uuid": bytes(16), "version": "0.1.0", "host": "here", "capacity": 4, "event_capacity": 16}
with Writer(made, [Metric("a"), Metric("b")], **options) as writer:
    for n in range(10):
        writer.publish(n, [n / 3, float("nan")])
    writer.event("an event")
    writer.set_state("finished")
with Reader(given) as reader:
    records = [(record.n, record.step, record.values) for record in reader.since(0)]
    print(records, [event.text for event in reader.events()], reader.status().state)
"""


def python_of(version: str) -> str | None:
    """Path of a working Python of a version, on PATH or installed by pyenv."""
    kept = sorted(
        Path("~/.pyenv/versions")
        .expanduser()
        .glob(f"{version.rstrip('t')}*{'t' if version.endswith('t') else '[0-9]'}/bin/python")
    )
    for place in (shutil.which(f"python{version}"), *map(str, reversed(kept))):
        if place and subprocess.run([place, "-S", "-c", ""], capture_output=True, check=False).returncode == 0:
            return place
    return None


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_row_40_files_of_one_python_version_are_read_by_another(tmp_path, version):
    other = python_of(version)
    if other is None:
        pytest.skip(f"there is no Python {version} here")
    outputs = []
    for name, python in (("first", other), ("second", sys.executable)):
        code = [tmp_path / f"{name}.mm", tmp_path / "first.mm"]
        process = child(OTHER, *code, python=python, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        outputs.append(out)
    assert (
        outputs[0] == outputs[1]
        and "(9, 9, (3.0, nan))" in outputs[0]
        and outputs[0].endswith("['an event'] finished\n")
    )


# THE MATRIX ITSELF


def test_every_row_of_the_matrix_names_existing_tests():
    tests = ROOT / "tests"
    rows = [
        line.split("|")[1:-1] for line in (tests / "FAULTS.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)
    ]
    assert [int(row[0]) for row in rows] == [*range(1, 14), *range(15, 41)]
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[3])
        assert named, f"row {row[0]} has no test"
        for file, name in named:
            assert f"\ndef {name}(" in (tests / file).read_text(), f"{file} has no {name}"
