"""Checkpoints: bit-exact round trips, pruning, damage of every kind, faults and kills at every system call."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from operant.errors import BadFileError, NotFoundError
from operant.runs import atomic, checkpoints
from operant.runs.checkpoints import Store, find_nonfinite, load_file

UUID = "0123456789abcdef0123456789abcdef"
FILES = (b"tensor bytes " * 50, b'{"a": 1}')


class Said(list):
    """A `report` that records its lines."""

    def __call__(self, line: str) -> None:
        self.append(line)


@pytest.fixture
def said():
    return Said()


@pytest.fixture
def store(tmp_path, said):
    return Store(tmp_path / "checkpoints", run_uuid=UUID, report=said)


def save_bytes(store, *steps, session=1, **more):
    for step in steps:
        store.save_files(step, FILES[0] + str(step).encode(), FILES[1], session=session, **more)


def some_tensors():
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(7, 5, generator=generator)
    return {
        "float32": wide,
        "float64": wide.double() / 3,
        "bfloat16": wide.bfloat16(),
        "int64": torch.tensor([-(2**63), 2**63 - 1, 0]),
        "int32": torch.arange(4, dtype=torch.int32),
        "uint8": torch.arange(256).to(torch.uint8),
        "bool": torch.tensor([True, False]),
        "zero_d": torch.tensor(2**53 + 1),
        "zero_d_float": torch.tensor(0.1, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "transposed": wide.t(),
        "view": wide[2:4],
    }


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# ------------------------------------------------------------------ round trip


def test_a_loaded_checkpoint_equals_the_saved_one_bit_for_bit(store, said, tmp_path):
    tensors = some_tensors()
    document = {
        "iteration": 2**60 + 1,
        "rate": 0.1 + 0.2,
        "name": "é",
        "nothing": None,
        "lists": [1, [2]],
        "worst": float("-inf"),
    }
    path = store.save(300, tensors, document, session=4)
    assert path == tmp_path / "checkpoints" / "step-000000000300"
    for back in (store.load(), store.load(300), store.load("300"), load_file(path), load_file(path / "state.json")):
        assert {name: bits(tensor) for name, tensor in back.tensors.items()} == {
            name: bits(tensor) for name, tensor in tensors.items()
        }
        assert (back.step, back.session, back.path) == (300, 4, path)
        assert back.document == document
    assert said == []
    back.tensors["float32"].add_(1)  # what is loaded can be written to


def test_files_are_private_and_listed_in_the_manifest(store, tmp_path):
    store.save(100, {"w": torch.ones(3)}, {}, session=1)
    path = store.save(200, {"w": torch.ones(3)}, {"best_value": 7.5}, session=1, best=True)
    assert oct((tmp_path / "checkpoints").stat().st_mode & 0o777) == oct(path.stat().st_mode & 0o777) == "0o700"
    assert {entry.name: oct(entry.stat().st_mode & 0o777) for entry in path.iterdir()} == dict.fromkeys(
        ("manifest.json", "state.json", "tensors.safetensors"), "0o600"
    )
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert manifest["parent_step"] == 100
    assert (manifest["run_uuid"], manifest["session"], manifest["step"]) == (UUID, 1, 200)
    assert (manifest["best"], manifest["best_value"]) == (True, 7.5)
    assert manifest["files"]["state.json"]["bytes"] == (path / "state.json").stat().st_size


def test_steps_above_twelve_digits_are_saved_and_loaded(store):
    save_bytes(store, 999_999_999_999, 1_000_000_000_000)
    assert store.steps() == [999_999_999_999, 1_000_000_000_000]
    assert store.load_files()[0].step == 1_000_000_000_000


def test_inputs_that_can_never_be_saved_raise_at_once(store):
    with pytest.raises(ValueError, match="meta"):
        store.save(1, {"w": torch.ones(3, device="meta")}, {}, session=1)
    with pytest.raises(TypeError):
        store.save_async(1, {}, {"a": torch.ones(1)}, session=1)
    with pytest.raises(ValueError, match="step=-1 must be"):
        store.save(-1, {}, {}, session=1)
    assert not store.folder.exists()


def test_listing_and_reading_files_needs_no_torch(tmp_path):
    code = "import sys; from pathlib import Path; from operant.runs.checkpoints import Store\n"
    code += (
        "s = Store(Path(sys.argv[1]), run_uuid='u', report=print); s.save_files(1, b'a', b'b', session=1); "
        "s.load_files(); print(s.steps())\n"
    )
    code += "assert not {'torch', 'numpy', 'safetensors', 'pickle'} & set(sys.modules), sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "c"], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert (done.stdout, done.stderr) == ("[1]\n", "")


def test_no_pickle_in_the_sources():
    for module in (checkpoints, atomic):
        assert not re.search(r"import pickle|torch\.load|torch\.save", Path(module.__file__).read_text())


# ------------------------------------------------------------------ which one


def test_loading_without_any_checkpoint_raises_not_found(store, said):
    assert store.steps() == []
    with pytest.raises(NotFoundError, match="No checkpoint has been saved yet"):
        store.load()
    save_bytes(store, 100, 200)
    with pytest.raises(NotFoundError, match=r"of step 150.*steps: 100, 200"):
        store.load(150)
    with pytest.raises(NotFoundError, match=r"marked as best.*steps: 100, 200"):
        store.load("best")
    with pytest.raises(NotFoundError, match="use last, best or a step"):
        store.load("first")
    with pytest.raises(NotFoundError):
        load_file(store.folder / "step-000000000999")
    assert said == []


def test_best_is_the_highest_value_then_the_newest(store):
    for step, value in ((100, 5.0), (200, 9.0), (300, 9.0), (400, 7.0), (500, None), (600, float("nan"))):
        save_bytes(store, step, best=True, best_value=value)
    assert store.load_files("best")[0].step == 300


def test_the_newest_session_wins_over_a_later_step_of_an_older_one(store):
    save_bytes(store, 100, 200, 300, session=1)
    save_bytes(store, 150, session=2)
    assert store.load_files("last")[0].step == 150


def test_another_runs_checkpoint_is_refused_but_never_deleted(store, said, tmp_path):
    save_bytes(store, 100)
    other = Store(store.folder, run_uuid="f" * 32, report=Said())
    save_bytes(other, 50)
    save_bytes(store, 200, 300, 400, 500)
    assert store.steps() == [50, 300, 400, 500]
    with pytest.raises(BadFileError, match="belongs to another run"):
        store.load(50)


# ------------------------------------------------------------------ what is kept


def test_the_last_few_and_the_best_checkpoint_are_not_deleted(store):
    save_bytes(store, 100)
    save_bytes(store, 200, best=True, best_value=3.0)
    save_bytes(store, 300, 400, 500, 600)
    assert store.steps() == [200, 400, 500, 600]
    save_bytes(store, 700, best=True, best_value=4.0)
    assert store.steps() == [500, 600, 700]
    assert store.load_files("best")[0].step == 700


def test_a_checkpoint_is_deleted_only_with_two_newer_valid_ones(tmp_path, said):
    store = Store(tmp_path / "c", run_uuid=UUID, keep=1, report=said)
    save_bytes(store, 100, 200)
    assert store.steps() == [100, 200]
    save_bytes(store, 300)
    assert store.steps() == [200, 300]
    for step in (200, 300):
        flip(store.folder / f"step-{step:012d}" / "state.json", 3)
    save_bytes(store, 400)
    assert store.steps() == [200, 300, 400]
    save_bytes(store, 500)
    assert store.steps() == [400, 500]


def test_damaged_checkpoints_do_not_count_among_the_last_few(tmp_path, said):
    store = Store(tmp_path / "c", run_uuid=UUID, keep=2, report=said)
    save_bytes(store, 100, 200)
    flip(store.folder / "step-000000000200" / "tensors.safetensors", 0)
    save_bytes(store, 300)
    assert store.steps() == [100, 200, 300]
    save_bytes(Store(store.folder, run_uuid=UUID, keep=2, report=said), 400)
    assert store.steps() == [300, 400]


def test_leftovers_of_dead_processes_are_deleted_and_of_living_ones_stay(store):
    save_bytes(store, 100)
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    for kind, pid in (("tmp", dead.pid), ("trash", dead.pid), ("tmp", os.getpid()), ("tmp", os.getppid())):
        left = store.folder / f".{kind}-step-000000000200-{pid}"
        left.mkdir()
        (left / "tensors.safetensors").write_bytes(b"half")
    (store.folder / "notes.txt").write_text("the user's own")
    store.collect()
    assert sorted(os.listdir(store.folder)) == [
        f".tmp-step-000000000200-{os.getppid()}",
        "notes.txt",
        "step-000000000100",
    ]


def test_a_symbolic_link_is_never_followed(store, tmp_path, said):
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "state.json").write_text("precious")
    save_bytes(store, 100)
    (store.folder / "step-000000000050").symlink_to(outside)
    (store.folder / ".trash-step-000000000040-999999999").symlink_to(outside)
    trash = store.folder / ".trash-step-000000000030-999999999"
    trash.mkdir()
    (trash / "state.json").symlink_to(outside / "state.json")
    (store.folder / f".tmp-step-000000000200-{os.getpid()}").symlink_to(outside)
    with pytest.raises(BadFileError, match="symbolic link"):
        store.load(50)
    (store.folder / "step-000000000300").symlink_to(outside)
    save_bytes(store, 200, 300, 400)
    assert (outside / "state.json").read_text() == "precious"
    assert os.listdir(outside) == ["state.json"]
    assert sorted(os.listdir(store.folder)) == ["step-000000000200", "step-000000000300", "step-000000000400"]
    assert not (store.folder / "step-000000000300").is_symlink()


def test_a_users_file_in_a_checkpoint_is_not_deleted_with_it(store):
    save_bytes(store, 100)
    (store.folder / "step-000000000100" / "My Notes").write_text("keep me")
    save_bytes(store, 200, 300, 400, 500)
    assert [path.read_text() for path in store.folder.rglob("My Notes")] == ["keep me"]
    assert store.steps() == [300, 400, 500]


# ------------------------------------------------------------------ the same step again


def test_saving_a_step_again_replaces_it_and_it_stays_best(store):
    save_bytes(store, 100, best=True, best_value=2.0)
    store.save_files(100, b"new", b"{}", session=1)
    manifest, files = store.load_files("best")
    assert (files["tensors.safetensors"], manifest.best_value) == (b"new", 2.0)
    assert os.listdir(store.folder) == ["step-000000000100"]
    store.save_files(100, b"newer", b"{}", session=2)
    with pytest.raises(NotFoundError):
        store.load_files("best")


def test_a_checkpoint_moved_aside_is_restored_if_its_successor_never_came(store, said):
    save_bytes(store, 100)
    path = store.folder / "step-000000000100"
    path.rename(store.folder / ".replaced-step-000000000100-999999999")
    assert store.steps() == [100]
    assert store.load_files()[0].step == 100
    store.collect()
    assert os.listdir(store.folder) == [path.name]
    assert said == []


@pytest.mark.parametrize("damaged", ["successor", "former", "both"])
def test_a_checkpoint_moved_aside_replaces_a_damaged_successor(store, damaged):
    save_bytes(store, 100)
    path, former = store.folder / "step-000000000100", store.folder / ".replaced-step-000000000100-999999999"
    path.rename(former)
    store.save_files(100, b"new", b"{}", session=1) if damaged == "former" else durable_copy(former, path)
    for folder in {"successor": [path], "former": [former], "both": [path, former]}[damaged]:
        if folder.exists():
            flip(folder / "tensors.safetensors", 1)
    store.collect()
    if damaged == "both":
        assert sorted(os.listdir(store.folder)) == [former.name, path.name]
    else:
        assert os.listdir(store.folder) == [path.name]
        assert store.load_files()[0].step == 100


def durable_copy(source, target):
    target.mkdir()
    for entry in source.iterdir():
        (target / entry.name).write_bytes(entry.read_bytes())


# ------------------------------------------------------------------ damage


def flip(path, position):
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x10
    path.write_bytes(raw)


def cut(path, size):
    os.truncate(path, size)


DAMAGE = {
    **{
        f"flip {name} {part}": (lambda p, n=name, k=part: flip(p / n, int(k * ((p / n).stat().st_size - 1))))
        for name in ("tensors.safetensors", "state.json", "manifest.json")
        for part in (0, 0.25, 0.5, 0.75, 1)
    },
    **{
        f"cut {name} to {size}": (lambda p, n=name, k=size: cut(p / n, k))
        for name in ("tensors.safetensors", "state.json", "manifest.json")
        for size in (0, 5)
    },
    **{
        f"delete {name}": (lambda p, n=name: (p / n).unlink())
        for name in ("tensors.safetensors", "state.json", "manifest.json")
    },
    "longer": lambda p: (p / "state.json").write_bytes((p / "state.json").read_bytes() + b" "),
    "no files": lambda p: [entry.unlink() for entry in p.iterdir()],
    "manifest of zeros": lambda p: (p / "manifest.json").write_bytes(bytes(500)),
    "manifest nested deeply": lambda p: (p / "manifest.json").write_bytes(b"[" * 200_000),
    "manifest too large": lambda p: cut(p / "manifest.json", 2 << 20),
    "manifest is a list": lambda p: (p / "manifest.json").write_bytes(b"[1, 2]"),
    "manifest is a fifo": lambda p: ((p / "manifest.json").unlink(), os.mkfifo(p / "manifest.json")),
    "state is a folder": lambda p: ((p / "state.json").unlink(), (p / "state.json").mkdir()),
    "state is a link": lambda p: (
        (p / "state.json").rename(p.parent / "elsewhere"),
        (p / "state.json").symlink_to(p.parent / "elsewhere"),
    ),
    "a file in its place": lambda p: ([entry.unlink() for entry in p.iterdir()], p.rmdir(), p.write_text("x")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_skipped_with_a_reason(store, said, kind):
    save_bytes(store, 100, 200)
    DAMAGE[kind](store.folder / "step-000000000200")
    assert store.load_files()[0].step == 100
    assert len(said) == 1
    assert re.match(r"checkpoint step-000000000200 skipped: .{8}", said[0])
    with pytest.raises(BadFileError, match="no valid checkpoint of step 200"):
        store.load_files(200)


def test_every_flipped_bit_of_a_manifest_is_detected(store):
    save_bytes(store, 100)
    raw = (store.folder / "step-000000000100" / "manifest.json").read_bytes()
    assert atomic.decode_manifest(raw)["step"] == 100
    for position in range(len(raw)):
        for bit in (1, 2, 4, 8, 16, 32, 64, 128):
            changed = raw[:position] + bytes([raw[position] ^ bit]) + raw[position + 1 :]
            with pytest.raises(BadFileError):
                atomic.decode_manifest(changed)


def forge(path, **changes):
    """Write a manifest with a valid checksum and other fields."""
    fields = json.loads((path / "manifest.json").read_text())
    del fields["checksum"]
    (path / "manifest.json").write_bytes(atomic.encode_manifest({**fields, **changes}))


RECORD = {"bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *[
            ({"files": {name: RECORD}}, "not allowed")
            for name in ("../x", "/etc/passwd", "..", ".", "", "a/b", "A", "x\0", "manifest.json")
        ],
        ({"files": {"tensors.safetensors": RECORD}}, "instead of 1"),
        ({"files": {}}, "names no files"),
        ({"files": [1]}, "names no files"),
        ({"files": {"state.json": {"bytes": -1, "sha256": "0" * 64}}}, "no size"),
        ({"files": {"state.json": {"bytes": 10**30, "sha256": "0" * 64}}}, "instead of"),
        ({"files": {"state.json": {"bytes": 1, "sha256": "zz"}}}, "no size"),
        ({"format": 2}, "format 2; this version reads format 1"),
        ({"step": 300}, "has step 300"),
        ({"step": "200"}, "wrong type"),
        ({"session": True}, "wrong type"),
        ({"best_value": "x\x1b[31m"}, "wrong type"),
        ({"run_uuid": "\x1b[31m"}, r"another run, '\\x1b\[31m'"),
    ],
)
def test_a_manifest_with_invalid_fields_is_refused(store, said, changes, reason):
    save_bytes(store, 100, 200)
    forge(store.folder / "step-000000000200", **changes)
    assert store.load_files()[0].step == 100
    assert re.search(reason, said[0])
    assert "\x1b" not in said[0]


def test_files_with_valid_hashes_and_invalid_content_are_refused(store, said):
    store.save(100, {"w": torch.ones(2)}, {}, session=1)
    for step, files in enumerate(
        [(b"no tensors", b"{}"), (b"", b"{}"), (_good_tensors(store), b"{"), (_good_tensors(store), b"[1]")], 200
    ):
        store.save_files(step, *files, session=1)
        with pytest.raises(BadFileError):
            store.load(step)
        with pytest.raises(BadFileError):
            load_file(store.folder / f"step-{step:012d}")
        said.clear()


def _good_tensors(store):
    return store.load_files("last")[1]["tensors.safetensors"]


def test_all_checkpoints_damaged_is_reported_unlike_none(store, said):
    save_bytes(store, 100, 200)
    for step in (100, 200):
        flip(store.folder / f"step-{step:012d}" / "state.json", 0)
    with pytest.raises(
        BadFileError, match=r"(?s)no valid checkpoint in .*200: state.json is damaged.*100: state.json is damaged"
    ):
        store.load_files()
    assert len(said) == 2


# ------------------------------------------------------------------ faults at every call


CALLS = [
    "open",
    "close",
    "read",
    "write",
    "fsync",
    "fstat",
    "stat",
    "mkdir",
    "rename",
    "unlink",
    "rmdir",
    "listdir",
    "fstatvfs",
]


class FaultyOs:
    """The os module with a fault at the k-th system call: it fails with an errno, or ends the process (`fault` "half":
    in the middle of a write).
    """

    def __init__(self, k, fault):
        self.k, self.fault, self.count = k, fault, 0

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args, **named):
            self.count += 1
            if self.count != self.k:
                return real(*args, **named)
            if self.fault == "half" and name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            if self.fault == "half":
                os.kill(os.getpid(), 9)
            if name == "close":
                real(*args, **named)
            raise OSError(self.fault, os.strerror(self.fault))

        return call


def prepared(folder, said=None):
    """A store with three checkpoints: the oldest is the best, and a save of another step deletes the second."""
    store = Store(folder, run_uuid=UUID, keep=2, report=said if said is not None else Said())
    save_bytes(store, 100)
    save_bytes(store, 200, best=True, best_value=1.0)
    save_bytes(store, 300, 400)
    assert store.steps() == [200, 300, 400]
    return store


def check_after_fault(folder, new_step):
    """Check that a valid checkpoint and the best one exist, and that the next save succeeds and leaves nothing over;
    returns whether the new one exists.
    """
    after = Store(folder, run_uuid=UUID, keep=2, report=Said())
    manifest, files = after.load_files()
    assert manifest.step in (400, new_step)
    assert files["tensors.safetensors"].startswith(FILES[0])
    assert after.load_files("best")[0].step == 200
    save_bytes(after, 900)
    assert after.load_files()[0].step == 900
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    return files["tensors.safetensors"].endswith(b"new")


@pytest.mark.slow
@pytest.mark.parametrize("new_step", [500, 400])
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_fault_at_any_call_leaves_a_resume_point(tmp_path, monkeypatch, fault, new_step):
    k, failures = 0, 0
    while True:
        k += 1
        folder, said = tmp_path / f"c{k}", Said()
        store = prepared(folder, said)
        store._parent_step = None
        descriptors = len(os.listdir("/proc/self/fd"))
        faulty = FaultyOs(k, fault)
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "os", faulty)
            path = store._guarded(new_step, lambda: store.save_files(new_step, FILES[0] + b"new", FILES[1], session=1))  # noqa: B023
        assert len(os.listdir("/proc/self/fd")) == descriptors
        new = check_after_fault(folder, new_step)
        if path is None:
            failures += 1
            assert re.search(f"no checkpoint at step {new_step}: .*training continues", said[-1])
        else:
            assert new
        if faulty.count < k:
            break
    assert k > 50
    assert failures > 15


# Run in a fresh process that has imported nothing but the standard library, so that forking it is safe (and quick).
KILLER = """
import os, shutil, sys
from pathlib import Path
root, source, template, uuid, step, content = sys.argv[1:]
sys.path[:0] = [root]
from operant.runs import atomic
from operant.runs.checkpoints import Store
exec(source)
k, status = 0, 9
while status == 9:
    k += 1
    folder = template + str(k)
    shutil.copytree(template, folder)
    child = os.fork()
    if not child:
        atomic.os = FaultyOs(k, "half")
        store = Store(Path(folder), run_uuid=uuid, keep=2, report=lambda line: None)
        store.save_files(int(step), content.encode(), b"{}", session=1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
print(k, status)
"""


@pytest.mark.parametrize("new_step", [500, pytest.param(400, marks=pytest.mark.slow)])
def test_a_kill_at_any_call_leaves_a_resume_point(tmp_path, new_step):
    prepared(tmp_path / "c")
    source = f"CALLS = {CALLS!r}\n" + inspect.getsource(FaultyOs)
    command = [
        sys.executable,
        "-S",
        "-c",
        KILLER,
        str(Path(__file__).parents[2]),
        source,
        str(tmp_path / "c"),
        UUID,
        str(new_step),
    ]
    done = subprocess.run([*command, (FILES[0] + b"new").decode()], capture_output=True, text=True)
    assert done.stderr == ""
    last, status = map(int, done.stdout.split())
    assert last > 50
    assert status == 0
    seen = []
    for k in range(1, last + 1):
        seen.append(check_after_fault(tmp_path / f"c{k}", new_step))
    assert seen == sorted(seen)  # once the new one is there it stays
    assert (seen[0], seen[-1]) == (False, True)


def test_everything_is_on_the_disk_before_the_name_appears(tmp_path, monkeypatch):
    store, seen = prepared(tmp_path / "c"), []

    class Recorder:
        def __getattr__(self, name):
            real = getattr(os, name)
            if name not in ("write", "fsync", "rename"):
                return real

            def call(*args, **named):
                where = os.readlink(f"/proc/self/fd/{args[0]}") if name != "rename" else args[1]
                result = real(*args, **named)
                seen.append(f"{name} {re.sub('[0-9]+', 'N', Path(where).name)}")
                return result

            return call

    monkeypatch.setattr(atomic, "os", Recorder())
    store.save_files(500, *FILES, session=1)
    files = [
        f"{call} {name}"
        for name in ("tensors.safetensors", "state.json", "manifest.json")
        for call in ("write", "fsync")
    ]
    assert seen == [*files, "fsync .tmp-step-N-N", "rename step-N", "fsync c", "rename .trash-step-N-N"]


def test_a_full_disk_is_detected_before_the_first_write(store, said, monkeypatch):
    store.save(100, {"w": torch.ones(4)}, {}, session=1)
    found = os.statvfs(store.folder)

    class Full:
        f_blocks, f_frsize, f_bavail = found.f_blocks, 4096, 16

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstatvfs", lambda descriptor: Full)
        patch.setattr(atomic, "write_file", lambda *_: pytest.fail("written all the same"))
        for failures in (1, 2, 3):
            assert store.save(200, {"w": torch.ones(4)}, {}, session=1) is None
            assert store.failing == (failures == 3)
    assert "not enough disk space: 0.1 MB needed, 0.1 MB free" in said[0]
    assert "(3 failures in a row)" in said[2]
    assert store.steps() == [100]
    assert store.save(200, {"w": torch.ones(4)}, {}, session=1) is not None
    assert not store.failing


def test_a_folder_that_cannot_be_made_is_reported(tmp_path, said):
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file" / "checkpoints", run_uuid=UUID, report=said)
    assert store.save(1, {}, {}, session=1) is None
    assert "Not a directory" in said[0]


@pytest.mark.parametrize("step", [100, 200])
def test_a_checkpoint_that_reads_back_differently_counts_as_lost(store, said, monkeypatch, step):
    save_bytes(store, 100)
    monkeypatch.setattr(atomic.os, "fsync", lambda descriptor: _spoil(store.folder))
    assert store.save(step, {"w": torch.ones(4)}, {}, session=1) is None
    assert "damaged" in said[0]
    monkeypatch.undo()
    assert os.listdir(store.folder) == ["step-000000000100"]
    assert store.load_files()[0].step == 100


def _spoil(folder):
    """Damage a file as a faulty disk does."""
    for path in folder.glob(".tmp-*/tensors.safetensors"):
        with path.open("r+b") as file:
            file.seek(20)
            file.write(b"?")


# ------------------------------------------------------------------ in the background


def test_a_background_save_commits_and_wait_returns_its_folder(store, said, monkeypatch):
    gate, real, order = threading.Event(), atomic.commit, []

    def slow(root, name, files, fields):
        gate.wait(30)
        order.append(name)
        real(root, name, files, fields)

    monkeypatch.setattr(atomic, "commit", slow)
    document = {"n": 1}
    store.save_async(100, {"w": torch.ones(4)}, document, session=1, best=True)
    document["n"] = 2  # the document was taken at the call
    assert store.wait(0.01) is None
    assert store.steps() == []
    gate.set()
    store.save_async(200, {"w": torch.zeros(4)}, document, session=1)  # waits for the first
    assert order[0] == "step-000000000100"
    assert store.load(100).document == {"n": 1}
    assert store.wait() == store.folder / "step-000000000200"
    assert store.wait() == store.folder / "step-000000000200"
    assert order == ["step-000000000100", "step-000000000200"]
    assert store.load("best").step == 100
    assert said == []


def test_errors_in_the_background_are_reported_and_never_raised(store, said, monkeypatch):
    for error in (OSError(errno.EIO, "Input/output error"), MemoryError(), RuntimeError("a bug")):
        monkeypatch.setattr(atomic, "commit", _raiser(error))
        store.save_async(100, {"w": torch.ones(4)}, {}, session=1)
        assert store.wait() is None
    assert [re.search("(Input/output error|MemoryError|a bug)", line).group() for line in said] == [
        "Input/output error",
        "MemoryError",
        "a bug",
    ]
    assert store.failing


def _raiser(error):
    def raise_it(*_):
        raise error

    return raise_it


# ------------------------------------------------------------------ not finite


def test_a_state_that_is_not_finite_goes_into_quarantine(store, said):
    good = {"parameters": torch.ones(4), "returns": torch.tensor([float("nan")])}
    bad = {**good, "parameters": torch.tensor([1.0, float("inf"), float("nan"), 2.0])}
    assert store.save(100, good, {}, session=1, best=True, must_be_finite=("parameters",)) is not None
    assert store.save(200, bad, {}, session=1, best=True, must_be_finite=("parameters",)) is None
    assert "2 of 4 numbers of parameters are not finite, the first at 1" in said[0]
    assert store.load("last").step == store.load("best").step == 100
    assert store.steps() == [100]
    assert not store.failing
    path = store.quarantine(300, bad, {"iteration": 7}, session=1)
    assert path == store.folder / "quarantine-step-000000000300"
    assert bits(load_file(path).tensors["parameters"]) == bits(bad["parameters"])
    assert store.load().step == 100
    with pytest.raises(ValueError, match="must_be_finite names weights"):
        store.save(400, good, {}, session=1, must_be_finite=("weights",))


def test_find_nonfinite_names_the_first_bad_tensor():
    assert (
        find_nonfinite({"a": torch.ones(2), "b": torch.tensor([1, 2]), "c": torch.empty(0), "d": torch.tensor(True)})
        is None
    )
    assert find_nonfinite({"a": torch.tensor(float("-inf"))}) == "1 of 1 numbers of a are not finite, the first at 0"


def test_only_the_last_few_quarantines_are_kept(store):
    for step in (100, 200, 300, 400):
        store.quarantine(step, {"w": torch.tensor(float("nan"))}, {}, session=1)
    store.collect()
    assert sorted(os.listdir(store.folder)) == [f"quarantine-step-{step:012d}" for step in (200, 300, 400)]
