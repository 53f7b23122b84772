"""Run folders, ids, the index, the lock, the table of states, and the text filter. Without torch."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from waiting import wait_until

from operant import runs, text
from operant.errors import BusyError, MachineError, NotFoundError, UsageError
from operant.runs import folder as runfolder
from operant.runs import groups, launch, states, sweeps
from operant.runs.metrics import Metric, Record, Status, Writer
from operant.runs.metrics.layout import BOOTTIME

PACKAGE_PARENT = str(Path(runs.__file__).parents[2])


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.delenv("OPERANT_RUNS", raising=False)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


def make(root, id_=None, prefix="cartpole-ppo"):
    return runs.create(root, id_, prefix, {"config": None, "overrides": []})


def python(code, *arguments):
    """Start an interpreter with pipes; the caller ends it."""
    environment = os.environ | {"PYTHONPATH": PACKAGE_PARENT}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


HOLD = (
    "import os, sys, pathlib; from operant import runs; lock = runs.acquire(pathlib.Path(sys.argv[1])); "
    "os.write(1, b'held\\n'); sys.stdin.read()"
)
PROBE = "import sys, pathlib; from operant import runs; print(runs.probe(pathlib.Path(sys.argv[1])))"


# ----------------------------------------------------------------------------------------------------------------------
# making


def test_root_is_an_argument_or_the_variable_or_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runs.root() == tmp_path / "runs"
    monkeypatch.setenv("OPERANT_RUNS", str(tmp_path / "other"))
    assert runs.root() == tmp_path / "other"
    assert runs.root("here") == tmp_path / "here"


def test_create_makes_a_private_folder_with_its_document(root):
    run = make(root)
    assert runs.ID.fullmatch(run.id) and run.id.startswith("cartpole-ppo-") and len(run.short) == 4
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert (run.path / "run.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((run.path / "run.json").read_text()) == run.document
    assert run.document["schema"] == 1 and len(run.uuid) == 16 and any(run.uuid)
    assert run.document["request"] == {"config": None, "overrides": []}
    assert [entry.name for entry in run.path.iterdir()] == ["run.json"]


def test_a_name_gets_a_suffix_only_on_collision(root):
    first, second = make(root, "tuned"), make(root, "tuned")
    assert first.id == "tuned" and first.short == "tuned"
    assert second.id.startswith("tuned-") and second.short == second.id[-4:]


def test_the_name_of_a_deleted_run_is_free(root, tmp_path):
    shutil.rmtree(make(root, "tuned").path)
    again = make(root, "tuned")
    assert again.id == "tuned"
    assert make(tmp_path / "elsewhere", "tuned").id != "tuned", "that run exists"
    shutil.rmtree(root)
    assert make(tmp_path / "third", "tuned").id == "tuned"


def test_many_runs_have_different_suffixes(root):
    ids = [make(root, prefix=f"env{k}-ppo").id for k in range(40)]
    assert len({id_[-4:] for id_ in ids}) == 40


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "a/b", "../x", "-x", "a b", "a\0b", "x" * 65, "é", "latest", "live", "a\n"]
)
def test_an_invalid_name_is_refused_before_a_folder_is_made(root, name):
    with pytest.raises(UsageError, match="cannot be the name of a run"):
        make(root, name)
    assert not root.exists()


def test_a_prefix_from_a_file_name_is_made_to_fit(root):
    run = make(root, prefix="../my env/é" + "x" * 100)
    assert runs.ID.fullmatch(run.id) and run.path.parent == root


def test_an_unusable_root_raises_with_a_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot make a run folder"):
        make(tmp_path / "file" / "runs")


def test_an_unwritable_home_costs_only_the_index(root, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = make(root)
    assert [found.id for found in runs.list_runs(root)] == [run.id]
    assert runs.list_runs(tmp_path / "elsewhere") == []


def test_update_document_replaces_the_file_as_a_whole(root):
    run = make(root)
    before = os.stat(run.path / "run.json").st_ino
    document = runs.update_document(run.path, pid=12, phase="importing torch")
    assert (
        runs.load(run.path).document == document
        and document["uuid"] == run.document["uuid"]
        and document["phase"] == "importing torch"
    )
    assert os.stat(run.path / "run.json").st_ino != before
    assert sorted(entry.name for entry in run.path.iterdir()) == ["run.json"]


def test_remove_deletes_the_folder_and_not_the_targets_of_links(root, tmp_path):
    run = make(root)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (run.path / "link").symlink_to(tmp_path / "precious")
    runs.remove(run)
    assert list(root.iterdir()) == [] and (tmp_path / "precious" / "file").exists() and runs.list_runs(root) == []


# ----------------------------------------------------------------------------------------------------------------------
# finding


def test_the_list_is_newest_first_and_skips_other_folders(root, tmp_path):
    made = [make(root) for _ in range(3)]
    (root / "empty").mkdir()
    (root / "file").write_text("")
    (root / "bad name").mkdir()
    (root / "bad name" / "run.json").write_text("{}")
    (root / "linked").symlink_to(made[0].path)
    (root / "junk").mkdir()
    (root / "junk" / "run.json").write_bytes(b"\xff\x00[[[")
    os.utime(root / "junk", (1, 1))
    assert [run.id for run in runs.list_runs(root)] == [run.id for run in reversed(made)] + ["junk"]
    assert runs.load(root / "junk").document == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[1]", b"[" * 200_000, b'{"a": ' + b"9" * 5000 + b"}", b"{" + b" " * (1 << 20) + b"}", b"\xff"],
)
def test_an_invalid_document_never_raises(root, content):
    run = make(root)
    (run.path / "run.json").write_bytes(content)
    found = runs.resolve(run.id, root)
    assert found.document == {} and runs.describe(found)["id"] == run.id


def test_a_fifo_in_place_of_a_file_does_not_hang(root):
    run = make(root)
    for name in ("exit.json", "metrics.mm", "run.lock"):
        os.mkfifo(run.path / name)
    assert runs.state(run).word == "unreadable"


def test_a_document_of_wrong_types_is_described(root):
    run = make(root)
    junk = {
        "pid": "x",
        "steps": -1,
        "target": [1],
        "created_realtime_ns": 1e300,
        "host": 5,
        "env": "a\x1b[2Jb",
        "seed": True,
        "lanes": 1.5,
        "boot_id": {},
    }
    runs.update_document(run.path, **junk)
    described = runs.describe(runs.load(run.path))
    assert described["env"] == "a[2Jb" and described["created"] is None
    assert [described[key] for key in ("pid", "steps", "target", "seed", "lanes")] == [None] * 5
    json.dumps(described, allow_nan=False)


def test_resolve_by_id_beginning_end_path_and_latest(root, monkeypatch):
    first, second = make(root, "walker-ppo-4f2a"), make(root, "cartpole-ppo-77b0")
    for name in ("walker-ppo-4f2a", "walk", "4f2a", "2a", str(first.path), f"{first.path}/"):
        assert runs.resolve(name, root).path == first.path, name
    assert runs.resolve("latest", root).id == second.id
    monkeypatch.chdir(root)
    assert runs.resolve("./walker-ppo-4f2a", root).id == first.id
    assert runs.resolve("walker-ppo-4f2a", root / "nowhere").id == first.id
    with pytest.raises(NotFoundError, match="no run is training now"):
        runs.resolve("live", root)


def test_a_full_id_wins_over_longer_ones(root):
    make(root, "run-10")
    run = make(root, "run-1")
    assert runs.resolve("run-1", root).path == run.path


def test_the_index_finds_runs_from_anywhere_and_drops_deleted_ones(root, tmp_path):
    run = make(root)
    other = tmp_path / "other"
    assert runs.resolve(run.id, other).path == run.path and runs.resolve("latest", other).path == run.path
    assert runs.list_runs(other, everywhere=False) == []
    with pytest.raises(NotFoundError):
        runs.resolve(run.id, other, everywhere=False)
    runs.remove(run)
    assert runs.list_runs(other) == []
    second = make(other)
    index = Path(os.environ["XDG_STATE_HOME"], "operant", "runs")
    assert [os.readlink(entry) for entry in index.iterdir()] == [str(second.path)]


def test_a_named_root_limits_the_search_to_its_runs(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine, newer = make(root, "mine"), make(tmp_path / "elsewhere", "newer")
    assert runs.scope() == (root, True)
    assert runs.scope(str(root)) == (root, False)
    monkeypatch.setenv("OPERANT_RUNS", str(root))
    assert runs.scope() == (root, False)
    assert runs.resolve("latest", *runs.scope(str(newer.path.parent))).path == newer.path, (
        "--runs comes before $OPERANT_RUNS"
    )
    assert runs.resolve("latest", root, False).path == mine.path and runs.list_ids(root, False) == ["mine"]
    assert [run.path for run in runs.list_runs(root, False)] == [mine.path]
    with pytest.raises(NotFoundError, match="no run named 'newer'"):
        runs.resolve("newer", root, False)
    lock = runs.acquire(newer.path)
    try:
        assert runs.resolve("live", root).path == newer.path
        with pytest.raises(NotFoundError, match="no run is training now"):
            runs.resolve("live", root, False)
    finally:
        lock.release()


def test_a_name_means_a_run_of_the_folder_in_use(root, tmp_path):
    """Another folder's run has its whole id or its random end; an environment's name is the beginning of many ids."""
    elsewhere, empty = tmp_path / "elsewhere", tmp_path / "empty"
    other = make(elsewhere, prefix="half_cheetah-ppo")
    for part in ("half_cheetah", "half_cheetah-ppo", other.id[:-1], other.id[-3:]):
        with pytest.raises(NotFoundError, match=f"no run named '{part}'. Closest: {other.id}"):
            runs.resolve(part, empty)
    for part in (other.id, other.id[-4:], "latest"):
        assert runs.resolve(part, empty).path == other.path

    mine = make(root, prefix="half_cheetah-ppo")
    named = make(elsewhere, "half_cheetah")
    assert runs.resolve("half_cheetah", root).path == mine.path
    assert runs.resolve("half_cheetah", empty).path == named.path
    assert runs.resolve("latest", root).path == mine.path and runs.resolve("latest", empty).path == named.path
    lock = runs.acquire(named.path)
    try:
        assert runs.resolve("live", root).path == named.path
        own = runs.acquire(mine.path)
        assert runs.resolve("live", root).path == mine.path
        own.release()
    finally:
        lock.release()


@pytest.mark.parametrize(("file", "find"), [("sweep.toml", sweeps.find), ("group.json", groups.find)])
def test_a_group_or_sweep_of_another_folder_yields_to_a_run_of_the_folder_in_use(root, tmp_path, file, find):
    elsewhere = tmp_path / "elsewhere"
    make(elsewhere, "some")
    (elsewhere / "walker").mkdir()
    (elsewhere / "walker" / file).write_text('{"schema": 1}')
    assert find("walker", root) is not None
    mine = make(root, "walker-ppo-4f2a")
    assert find("walker", root) is None and runs.resolve("walker", root).path == mine.path
    (root / "walker").mkdir()
    (root / "walker" / file).write_text('{"schema": 1}')
    found = find("walker", root)
    assert getattr(found, "path", found) == root / "walker"


def test_the_index_keeps_entries_of_a_missing_root(root, tmp_path):
    run = make(root)
    root.rename(tmp_path / "unmounted")
    make(tmp_path / "other")
    assert [found.path.parent.name for found in runs.list_runs(tmp_path / "third")] == ["other"]
    (tmp_path / "unmounted").rename(root)
    assert runs.resolve(run.id, tmp_path / "third").path == run.path


def test_invalid_entries_of_the_index_are_skipped(root, tmp_path):
    run = make(root)
    index = Path(os.environ["XDG_STATE_HOME"], "operant", "runs")
    (index / "notes.txt").write_text("x")
    (index / f"{5:020d}-relative").symlink_to("somewhere")
    (index / f"{6:020d}-passwd").symlink_to("/etc/passwd")
    (index / f"{7:020d}-other").symlink_to(run.path)
    (index / f"{8:020d}-loop").symlink_to(index / f"{8:020d}-loop")
    assert [found.id for found in runs.list_runs(tmp_path / "none")] == [run.id]


def test_an_ambiguous_name_names_the_runs_and_their_states(root):
    live, ended = make(root, "cartpole-ppo-4f2a"), make(root, "cartpole-ppo-77b0")
    write_metrics(ended, state="finished")
    runs.write_json(ended.exit_path, {"exit": 0, "ended_realtime_ns": time.time_ns() - 7300 * 10**9})
    lock = runs.acquire(live.path)
    try:
        with pytest.raises(NotFoundError) as caught:
            runs.resolve("cartp", root)
    finally:
        lock.release()
    assert (
        str(caught.value)
        == "'cartp' matches 2 runs: cartpole-ppo-77b0 (finished 2 h ago), cartpole-ppo-4f2a (live). Add a character."
    )


def test_the_same_id_in_two_roots_asks_for_the_path(root, tmp_path):
    make(root, "mine")
    other = make(tmp_path / "other", "mine")
    assert other.id.startswith("mine-"), "the index keeps ids apart"
    other.path.rename(tmp_path / "other" / "mine")
    index = Path(os.environ["XDG_STATE_HOME"], "operant", "runs")
    (index / f"{9:020d}-mine").symlink_to(tmp_path / "other" / "mine")
    assert runs.resolve("mine", root).path == root / "mine", "the root at hand comes first"
    with pytest.raises(NotFoundError, match=r"Give the path\."):
        runs.resolve("mine", tmp_path / "third")


def test_no_match_names_the_closest_three(root):
    for name in ("cartpole-ppo-4f2a", "cartpole-ppo-77b0", "pendulum-ppo-1234", "acrobot-ppo-ffff"):
        make(root, name)
    with pytest.raises(
        NotFoundError, match=r"no run named 'cartpole-ppo-4f2b'\. Closest: cartpole-ppo-4f2a, cartpole-ppo-77b0, "
    ) as caught:
        runs.resolve("cartpole-ppo-4f2b", root)
    assert str(caught.value).count("-ppo-") == 4


def test_closest_names_ignore_case(root):
    for name in ("fin", "other-ppo-77b0", "third-ppo-77b1", "again"):
        make(root, name)
    make(root, "AGAIN")
    with pytest.raises(NotFoundError, match=r"Closest: (?=.*\bagain\b).*\bAGAIN\b"):
        runs.resolve("Again", root)
    with pytest.raises(NotFoundError, match=r"no run named 'FINN'\. Closest: fin, "):
        runs.resolve("FINN", root)


@pytest.mark.parametrize(("file", "kind"), [("sweep.toml", "sweep"), ("group.json", "group")])
def test_an_ambiguous_name_of_a_group_or_sweep_names_it(root, file, kind):
    for name in ("many.1", "many.2"):
        make(root, name)
    (root / "many").mkdir()
    (root / "many" / file).touch()
    named = rf"^many is a {kind}: name one of its runs\. All of them: operant show many$"
    with pytest.raises(NotFoundError, match=named):
        runs.resolve("many", root)
    runs.remove(runs.load(root / "many.2"))
    with pytest.raises(NotFoundError, match=named):  # even if a single run begins like it
        runs.resolve("many", root)
    make(root, "many.2")
    with pytest.raises(NotFoundError, match=r"matches 2 runs: .*Add a character\."):
        runs.resolve("man", root)


@pytest.mark.parametrize(("file", "kind"), [("sweep.toml", "sweep"), ("group.json", "group")])
def test_a_name_of_groups_or_sweeps_in_two_other_roots_asks_for_the_path(root, tmp_path, file, kind):
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        make(place, f"many.{place.name}")
        (place / "many").mkdir()
        (place / "many" / file).touch()
    paths = ", ".join(str(place / "many") for place in places)
    with pytest.raises(NotFoundError, match=rf"^'many' is the name of 2 {kind}s: {paths}\. Give the path$"):
        runs.resolve("many", root)


def test_a_run_folder_with_an_invalid_name_is_found_by_its_path(root):
    make(root, "mine").path.rename(root / "my best rün")
    with pytest.raises(
        NotFoundError,
        match=r"^'my best rün' cannot be a run's id \(allowed: .*\): "
        r"rename the folder, or give its path, .*/my best rün$",
    ):
        runs.resolve("my best rün", root)
    assert runs.resolve(f"{root}/my best rün", root).path.name == "my best rün" and runs.misnamed(root) == [
        "my best rün"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_an_unreadable_run_of_another_user_raises_with_its_owner(fresh_root):
    made = runs.create(fresh_root, "theirs", "x", {})
    os.chown(made.path, 12345, 12345)
    os.seteuid(23456)
    try:
        for name in ("theirs", "the", str(made.path)):
            with pytest.raises(
                MachineError, match=r"theirs belongs to user 12345 and is not readable by you \(Permission denied\)"
            ):
                runs.resolve(name, fresh_root, False)
        with pytest.raises(NotFoundError, match="no run named 'other'"):
            runs.resolve("other", fresh_root, False)
    finally:
        os.seteuid(0)


@pytest.fixture
def fresh_root():
    """A folder of runs that every user may read."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_without_runs_the_message_tells_how_to_start_one(root):
    for name in ("latest", "anything"):
        with pytest.raises(NotFoundError, match="Start one: operant train"):
            runs.resolve(name, root)


HOSTILE = st.one_of(
    st.text(max_size=80),
    st.sampled_from(
        [
            "../x",
            "..",
            ".",
            "/",
            "//",
            "~nobody-here",
            "a\0b",
            "\0",
            "x" * 300,
            "/" + "x" * 5000,
            "\x1b]0;x\a",
            "\ud800",
            "",
            " ",
            "a/../../etc",
        ]
    ),
    st.text("ab./~-\0\x1b", max_size=12),
)


@settings(max_examples=200, deadline=None)
@given(HOSTILE)
def test_a_hostile_name_resolves_to_nothing_and_is_printed_harmlessly(name):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "inner", "runs")
        (root / "zz").mkdir(parents=True)
        (root / "zz" / "run.json").write_text("{}")
        (Path(folder) / "run.json").write_text("{}")
        for reach in (root, root / "absent"):
            try:
                found = runs.resolve(name, reach, everywhere=False)
            except NotFoundError as error:
                assert name.strip() and all(c.isprintable() for c in str(error))
            except UsageError:
                assert not name.strip()
            else:
                assert found.path == root / "zz" and name in ("latest", "z", "zz")


@settings(max_examples=200, deadline=None)
@given(HOSTILE)
def test_a_hostile_name_makes_a_folder_in_the_root_or_none(name):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "inner", "runs")
        try:
            run = make(root, name)
        except UsageError as error:
            assert not root.exists() and all(c.isprintable() for c in str(error))
        else:
            assert run.id == name and list(root.iterdir()) == [run.path]
        assert {entry.name for entry in Path(folder).iterdir()} <= {"inner"}


# ----------------------------------------------------------------------------------------------------------------------
# the lock


def test_a_second_trainer_is_refused_with_the_holder_named(root):
    run = make(root, "cartpole-ppo-4f2a")
    assert runs.probe(run.path) is False
    holder = python(HOLD, run.path)
    try:
        assert holder.stdout.readline() == "held\n"
        runs.update_document(run.path, pid=holder.pid)
        write_metrics(run, step=341_000_000)
        assert runs.probe(run.path) is True and runs.holder(run.path) == holder.pid
        with pytest.raises(BusyError) as caught:
            runs.acquire(run.path)
        assert str(caught.value) == (
            f"cartpole-ppo-4f2a is still training (pid {holder.pid}, step 341 M).  watch: operant monitor 4f2a   stop: "
            "operant stop 4f2a"
        )
        with pytest.raises(BusyError):
            runs.remove(run)
        assert runs.resolve("live", root).id == run.id
    finally:
        holder.kill()
        holder.communicate()
    assert runs.probe(run.path) is False
    runs.acquire(run.path).release()


def test_kill_9_frees_the_lock_even_of_a_zombie(root):
    run = make(root)
    holder = python(HOLD, run.path)
    holder.stdout.readline()
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: runs.probe(run.path) is False)  # nobody has reaped it: it is a zombie now
    holder.communicate()


RESTORE = (
    "import os, sys, pathlib; from operant import runs; path = pathlib.Path(sys.argv[1]); lock = runs.acquire(path)\n"
    "runs.update_document(path, **runs.identity(), folder_inode=path.stat().st_ino)\n"
    "while True:\n    print(lock.restore(), flush=True)\n    sys.stdin.readline()"
)


def test_a_deleted_lock_keeps_a_second_trainer_out_and_is_restored(root):
    run = make(root)
    lock_path, worker = run.path / "run.lock", python(RESTORE, run.path)

    def refused():
        for second in (lambda: runs.acquire(run.path), lambda: runs.remove(run)):
            with pytest.raises(BusyError, match=rf"is still training \(pid {worker.pid}\)"):
                second()
        return runs.has_trainer(run.path)

    def put_back():
        worker.stdin.write("\n")
        worker.stdin.flush()
        return worker.stdout.readline() == "True\n" and runs.holder(run.path) == worker.pid

    try:
        assert worker.stdout.readline() == "False\n" and refused()
        lock_path.unlink()
        assert refused() and runs.probe(run.path) is True, "its worker lives, and lives in this folder"
        assert runs.state(runs.load(run.path)).word == "starting"
        shutil.copytree(run.path, root / "copy")
        assert not runs.has_trainer(root / "copy"), "a copy has no trainer"
        runs.acquire(root / "copy").release()
        assert put_back() and refused() and {entry.name for entry in run.path.iterdir()} == {"run.json", "run.lock"}
        lock_path.unlink()
        lock_path.touch()
        assert refused() and put_back() and refused()
    finally:
        worker.kill()
        wait_until(lambda: not runs.has_trainer(run.path))  # nobody has reaped it: it is a zombie now
        worker.communicate()
    runs.acquire(run.path).release()


def test_a_lock_held_by_another_trainer_is_not_taken_back(root):
    run = make(root)
    lock = runs.acquire(run.path)
    lock.path.unlink()
    other = python(HOLD, run.path)  # it cannot know: no document names the first
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match="two trainers cannot share a folder"):
            lock.restore()
        assert runs.holder(run.path) == other.pid
    finally:
        other.kill()
        other.communicate()
        lock.release()
    shutil.rmtree(run.path)
    with pytest.raises(MachineError, match="folder was deleted"):
        lock.restore()


def test_looking_at_the_own_run_does_not_drop_the_lock(root):
    """POSIX drops a lock when its process closes any descriptor of the file."""
    run = make(root)
    lock = runs.acquire(run.path)
    assert runs.probe(run.path) is True and runs.holder(run.path) == os.getpid()
    runs.describe(run), runs.state(run), runs.list_runs(root)
    with pytest.raises(BusyError):
        runs.acquire(run.path)
    assert python(PROBE, run.path).communicate()[0] == "True\n"
    lock.release()
    lock.release()
    assert python(PROBE, run.path).communicate()[0] == "False\n"
    runs.acquire(run.path).release()


def test_a_forked_child_does_not_hold_the_lock(root):
    run = make(root)
    child = (
        "\nif not os.fork():\n    os.write(1, b'%r\\n' % runs.probe(lock.path.parent))\n    sys.stdin.read(); "
        "os._exit(0)\nos.write("
    )
    code = HOLD.replace(" os.write(", child)
    parent = python(code, run.path)
    assert sorted(parent.stdout.readline() for _ in range(2)) == [
        "True\n",
        "held\n",
    ]  # the child sees its parent's lock as another's
    os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: runs.probe(run.path) is False)  # while the child lives: it reads stdin until the pipe ends
    parent.communicate()


def test_a_lock_that_cannot_be_taken_raises_with_a_message(root):
    run = make(root)
    (run.path / "run.lock").symlink_to("/dev/null")
    with pytest.raises(MachineError, match=r"cannot open .* for writing"):
        runs.acquire(run.path)
    assert runs.probe(run.path) is None
    with pytest.raises(MachineError):
        runs.acquire(root / "absent")


# ----------------------------------------------------------------------------------------------------------------------
# the states


def write_metrics(
    run, *, state="running", step=1000, values=(20.0, 200.0, 1e6), exit_code=0, records=1, checkpoint=None
):
    """Write a metrics file as this process's trainer would; `values` are return, eval/return and sps."""
    columns = [Metric("return"), Metric("eval/return"), Metric("sps")]
    with Writer(run.path / "metrics.mm", columns, run_uuid=run.uuid, version="0.1.0") as writer:
        writer.heartbeat()
        for k in range(records):
            writer.publish(step + k, values if k == 0 else (float("nan"), float("nan"), 2e6))
            writer.tick()
        if checkpoint is not None:
            writer.set_checkpoint(checkpoint)
        writer.set_state(state, exit_code=exit_code)


def status(**fields):
    plain = dict.fromkeys(Status._fields, 0) | {
        "phase": "rollout",
        "state": "running",
        "last_checkpoint_step": None,
        "main_count": 1,
        "heartbeat_count": 1,
    }
    return Status(**plain | fields)


RECORD = Record(0, 100, 0, 0, 1, 0, ())


def look(held=True, *, record=RECORD, exit=None, **fields):
    ages = {key: fields.pop(key) for key in states.Observation._fields[5:] if key in fields}
    return states.Observation(held, status=status(**fields), record=record, exit=exit, **ages)


@pytest.mark.parametrize(
    ("observation", "word", "cause"),
    [
        (states.Observation(True, phase_text="importing torch"), "starting", "importing torch"),
        (look(record=None, phase="compile"), "starting", "compile"),
        (look(record=RECORD._replace(step=0)), "starting", "rollout"),
        (look(), "running", None),
        (look(state="paused"), "paused", None),
        (look(state="paused", paused_by="alice@gpu03", paused_s=185.0), "paused", "by alice@gpu03, 3 min ago"),
        (look(state="paused", paused_by="alice@gpu03"), "paused", "by alice@gpu03"),
        (look(state="stopping"), "stopping", None),
        (look(state="stopping", reason=15), "stopping", "by SIGTERM"),
        (look(state="stopping", stopped_by="alice@gpu03"), "stopping", "by alice@gpu03"),
        (look(False, state="stopped", stopped_by="alice@gpu03"), "stopped", "by alice@gpu03"),
        (look(False, exit={"exit": 130}), "crashed", "exit code 130 without a final state"),
        (look(False, exit={"exit": 130}, earlier=True), "stopped", "before its first record"),
        (look(False, exit={"signal": 15}, earlier=True), "stopped", "before its first record"),
        (look(False, exit={"exit": 2}, earlier=True), "failed", "exit code 2 before its first record"),
        (look(False, exit={"signal": 9}, earlier=True), "crashed", "killed by SIGKILL"),
        (look(False, state="finished", exit={"exit": 2}, earlier=True), "finished", None),
        (
            look(False, state="finished", exit={"exit": 4}, earlier=True),
            "failed",
            "exit code 4 before its first record",
        ),
        (look(False, state="finished", exit={"signal": 9}, earlier=True), "crashed", "killed by SIGKILL"),
        (look(False, state="diverged", exit={"exit": 130}, earlier=True), "stopped", "before its first record"),
        (look(state="unknown"), "running", None),
        (look(heartbeat_age_s=1.9), "running", None),
        (look(heartbeat_age_s=2.5), "suspended", "no heartbeat for 2 s"),
        (look(record_age_s=2.9), "running", None),
        (look(record_age_s=12.5, usual_s=0.12), "stalled", "no iteration for 12 s (usual 0.12 s)"),
        (look(record_age_s=12.5, usual_s=4.0), "running", None),
        (look(record_age_s=900.0, phase="eval"), "running", None),
        (look(state="finished"), "finished", None),
        (look(False, state="finished"), "finished", None),
        (look(False, state="diverged"), "diverged", None),
        (look(None, state="oom"), "oom", None),
        (look(False, state="stopped", reason=15), "stopped", "by SIGTERM"),
        (look(False), "crashed", "unknown"),
        (look(False, exit={"exit": None, "signal": 9, "oom_kill": 0}), "crashed", "killed by SIGKILL"),
        (
            look(False, exit={"exit": None, "signal": 9, "oom_kill": 1}),
            "crashed",
            "killed by the machine's out-of-memory killer",
        ),
        (look(False, exit={"exit": None, "signal": 11}), "crashed", "killed by SIGSEGV"),
        (look(False, exit={"exit": None, "signal": 15}), "crashed", "killed by SIGTERM"),
        (look(False, exit={"exit": 3}), "crashed", "exit code 3 without a final state"),
        (look(False, exit={"exit": "\x1b[2J", "signal": "9"}), "crashed", "unknown"),
        (states.Observation(False), "crashed", "unknown"),
        (states.Observation(False, young=True), "starting", None),
        (states.Observation(False, exit={"exit": 2}), "failed", "exit code 2 before its first record"),
        (states.Observation(False, exit={"exit": 130}), "stopped", "before its first record"),
        (states.Observation(False, exit={"exit": 0}), "finished", "its metrics file is gone"),
        (look(False, exit={"exit": 0}), "crashed", "exit code 0 without a final state"),
        (look(False, exit={"exit": 0}, earlier=True), "crashed", "exit code 0 without a final state"),
        (states.Observation(False, exit={"signal": 15}), "stopped", "before its first record"),
        (look(None, record_age_s=2.0, host="gpu03"), "remote", "gpu03 · last record 2 s ago"),
        (states.Observation(True, broken="was truncated"), "unreadable", "was truncated"),
    ],
)
def test_the_table_of_states_at_one_look(observation, word, cause):
    assert states.assess(observation, None, 1000.0).state == (word, cause)


def test_the_heartbeat_is_timed_by_the_viewers_clock():
    """Ages in the observation (of another clock, or after a jump) count at the first look only."""
    judged = states.assess(look(heartbeat_count=5), None, 100.0)
    judged = states.assess(look(heartbeat_count=5, heartbeat_age_s=1e6, main_count=2), judged, 101.9)
    assert judged.state.word == "running"
    judged = states.assess(look(heartbeat_count=5, heartbeat_age_s=0.0, main_count=3), judged, 102.1)
    assert judged.state.word == "suspended"
    judged = states.assess(look(heartbeat_count=6, main_count=4), judged, 102.2)
    assert judged.state.word == "running"


def test_stalled_is_measured_against_the_usual_iteration():
    judged = None
    for k in range(20):  # an iteration takes 2 s
        judged = states.assess(look(heartbeat_count=k, main_count=k), judged, 2.0 * k)
    at = 2.0 * 19
    assert states.assess(look(heartbeat_count=21, main_count=19), judged, at + 9.9).state.word == "running"
    assert states.assess(look(heartbeat_count=21, main_count=19), judged, at + 10.1).state == (
        "stalled",
        "no iteration for 10 s (usual 2 s)",
    )
    judged = states.assess(look(heartbeat_count=22, main_count=19, phase="eval"), judged, at + 60)
    assert judged.state.word == "running"
    judged = states.assess(look(heartbeat_count=23, main_count=19), judged, at + 61)
    assert judged.state.word == "running", "the time of a long phase is no part of an iteration"


def test_a_run_whose_iterations_take_minutes_is_not_stalled(root, monkeypatch):
    run, clock, moved_s = make(root), time.clock_gettime_ns, 0
    monkeypatch.setattr(time, "clock_gettime_ns", lambda which: clock(which) + moved_s * 10**9)
    lock = runs.acquire(run.path)
    run = run._replace(document=runs.update_document(run.path, **runs.identity()))
    try:
        with Writer(run.path / "metrics.mm", [Metric("return")], run_uuid=run.uuid, version="0.1.0") as writer:
            writer.set_state("running")

            def state(previous=None):
                writer.heartbeat()
                return states.assess(states.observe(run), previous, float(moved_s))

            moved_s = 90
            watched = state()  # since the middle of the first iteration
            for minutes in (1, 2, 3):
                moved_s = 100 * minutes
                writer.publish(minutes, [1.0])
                writer.tick()
                watched, attached = state(watched), state()
                for moved_s in range(100 * minutes + 1, 100 * minutes + 99, 7):
                    watched, attached = state(watched), state(attached)
                    assert [one.state.word for one in (watched, attached, state())] == ["running"] * 3, moved_s
            moved_s = 900
            assert state(watched).state.word == state().state.word == "stalled"
    finally:
        lock.release()


def test_a_crash_is_seen_before_and_after_the_first_record(root):
    run = make(root)
    assert runs.state(run).word == "starting"
    old = runs.update_document(run.path, created_realtime_ns=1)
    run = run._replace(document=old)
    assert runs.state(run) == ("crashed", "unknown")
    write_metrics(run)
    runs.write_json(run.exit_path, {"exit": None, "signal": 9, "oom_kill": 0})
    assert runs.state(run) == ("crashed", "killed by SIGKILL")
    assert runs.describe(run)["exit"] == 137


def test_a_crash_loses_the_work_between_the_last_checkpoint_and_the_last_heartbeat(root, monkeypatch):
    run, clock = make(root), time.clock_gettime_ns

    def unsaved(step, state="running", later_s=0):
        with Writer(run.path / "metrics.mm", [Metric("return")], run_uuid=run.uuid, version="0.1.0") as writer:
            writer.publish(1000, [1.0])
            writer.set_checkpoint(step, clock(BOOTTIME) - 34 * 10**9)
            writer.set_state(state)
            writer.heartbeat()
        monkeypatch.setattr(time, "clock_gettime_ns", lambda which: clock(which) + later_s * 10**9)
        found = runs.describe(run)["unsaved_s"]
        monkeypatch.undo()
        return found

    assert unsaved(400) == pytest.approx(34, abs=2)
    assert unsaved(400, later_s=3600) == pytest.approx(34, abs=2), "the time since the crash is not lost work"
    assert unsaved(400, "failed") == pytest.approx(34, abs=2)
    assert unsaved(1000, "finished") is None


def test_the_duration_of_a_resumed_run_is_that_of_all_its_sessions(root):
    run = make(root)
    write_metrics(run)
    runs.write_json(run.exit_path, {"exit": None, "signal": 9, "wall_s": 231.0})
    assert runs.describe(run)["took_s"] == 231.0
    for _ in range(2):  # a second call, by the worker itself, adds nothing
        launch.forget_ending(runs.load(run.path))
        assert not run.exit_path.exists() and runs.describe(runs.load(run.path))["took_s"] == 231.0
    document = runs.update_document(run.path, **runs.identity())
    write_metrics(run)
    assert 231.0 <= runs.describe(run._replace(document=document))["took_s"] < 240.0
    runs.write_json(run.exit_path, {"exit": 0, "wall_s": 20.0})
    assert runs.describe(run._replace(document=document))["took_s"] == 251.0


def test_the_metrics_file_of_an_earlier_session_does_not_describe_a_resumed_worker(root):
    run = make(root)
    write_metrics(run, state="stopped", exit_code=130)
    assert runs.state(run).word == "stopped"
    lock = runs.acquire(run.path)
    try:
        resumed = run._replace(document=runs.update_document(run.path, pid=None, phase="importing torch"))
        assert runs.state(resumed) == ("starting", "importing torch")
        resumed = run._replace(document=runs.update_document(run.path, **(runs.identity() | {"pid_start_ticks": 1})))
        assert runs.state(resumed).word == "starting"
        resumed = run._replace(document=runs.update_document(run.path, **runs.identity()))
        assert runs.state(resumed).word == "stopped", "its own last word, just before it ends"
    finally:
        lock.release()


def test_a_resumed_run_stopped_before_its_first_record_is_stopped(root):
    run = make(root)
    write_metrics(run, step=500)
    runs.write_json(run.exit_path, {"exit": 130, "signal": None})
    # the resumed worker was another process
    document = runs.update_document(run.path, **(runs.identity() | {"pid_start_ticks": 1}))
    found = run._replace(document=document)
    assert runs.state(found) == ("stopped", "before its first record")
    described = runs.describe(found)
    assert (described["step"], described["exit"]) == (500, 130), "what the run has done stays"


@pytest.mark.parametrize("named", [True, False], ids=["after run.json names it", "before"])
@pytest.mark.parametrize(("ending", "word", "code"), [({"signal": 9}, "crashed", 137), ({"exit": 4}, "failed", 4)])
def test_a_resumed_run_that_dies_before_its_first_record_is_crashed(root, named, ending, word, code):
    run = make(root)
    runs.update_document(run.path, **runs.identity())
    write_metrics(run, state="finished")
    assert runs.state(runs.load(run.path)).word == "finished"
    runs.update_document(
        run.path, **(runs.identity() | {"pid_start_ticks": 1} if named else {"pid": None, "pid_start_ticks": None})
    )
    runs.write_json(run.exit_path, {"exit": None, "signal": None, "pid": 1 << 22} | ending)
    described = runs.describe(runs.load(run.path))
    assert (described["state"], described["exit"]) == (word, code)


def test_a_signal_after_the_terminal_state_changes_nothing(root):
    """A second SIGTERM may reach a stopped worker during its exit."""
    run = make(root)
    runs.update_document(run.path, **runs.identity())
    write_metrics(run, state="stopped", exit_code=130)
    runs.write_json(run.exit_path, {"exit": None, "signal": 15, "pid": 1 << 22})
    described = runs.describe(runs.load(run.path))
    assert (described["state"], described["exit"]) == ("stopped", 130)


def test_time_in_a_pause_does_not_count_as_an_iteration():
    judged = None
    for k in range(5):
        judged = states.assess(look(heartbeat_count=k, main_count=k), judged, 0.1 * k)
    judged = states.assess(look(heartbeat_count=6, main_count=4, state="paused"), judged, 600.0)
    assert judged.state.word == "paused"
    assert states.assess(look(heartbeat_count=7, main_count=4), judged, 601.0).state.word == "running"


def test_a_run_of_another_machine_is_remote_and_never_dead(root):
    run = make(root)
    document = runs.update_document(run.path, host="gpu03", boot_id="another", pid=5)
    write_metrics(run)
    found = run._replace(document=document)
    assert runs.state(found).word == "remote" and runs.state(found).cause.startswith("gpu03 · last record ")
    assert runs.describe(found)["exit"] is None
    renamed = run._replace(document=document | {"boot_id": runs.boot_id()})
    assert runs.state(renamed).word == "crashed", "a container of this machine, by another name"
    write_metrics(run, state="finished")
    assert runs.state(found).word == "finished"


def test_an_unreadable_metrics_file_is_a_state(root):
    run = make(root)
    (run.path / "metrics.mm").write_bytes(b"nonsense" * 2000)
    word, cause = runs.state(run)
    assert word == "unreadable" and "not a metrics file" in cause
    assert runs.describe(run)["state"] == "unreadable"


def test_describe_has_stable_keys_and_searches_earlier_records_for_rare_values(root):
    run = make(root, "cartpole-ppo-4f2a")
    write_metrics(run, state="finished", step=500, values=(487.5, 500.0, 1e6), records=5, checkpoint=504)
    runs.write_json(run.exit_path, {"exit": 0, "signal": None})
    document = runs.update_document(
        run.path, env="cartpole", algo="ppo", steps=1008, target=475, device="cpu", seed=1, lanes=8, pid=77
    )
    described = runs.describe(run._replace(document=document))
    assert set(described) == {
        "schema",
        "id",
        "path",
        "state",
        "cause",
        "env",
        "algo",
        "device",
        "step",
        "steps",
        "progress",
        "return",
        "length",
        "episodes",
        "sps",
        "eval_return",
        "best_return",
        "target",
        "target_reached",
        "created",
        "age_s",
        "eta_s",
        "last_checkpoint_step",
        "unsaved_s",
        "took_s",
        "exit",
        "pid",
        "host",
        "version",
        "seed",
        "lanes",
        "resume",
        "last_record_age_s",
        "paused_by",
        "paused_s",
        "note",
        "tags",
    }
    expected = {
        "schema": 1,
        "id": "cartpole-ppo-4f2a",
        "path": str(run.path),
        "state": "finished",
        "cause": None,
        "env": "cartpole",
        "step": 504,
        "steps": 1008,
        "progress": 1.0,  # of a run that is finished, whatever its steps
        "return": 487.5,
        "length": None,
        "sps": 2e6,
        "eval_return": 500.0,
        "best_return": None,
        "target": 475.0,
        "eta_s": None,
        "last_checkpoint_step": 504,
        "exit": 0,
        "pid": 77,
        "seed": 1,
        "lanes": 8,
    }
    assert {key: described[key] for key in expected} == expected
    assert (
        described["created"].endswith("Z")
        and 0 <= described["age_s"] < 3600
        and 0 <= described["last_record_age_s"] < 3600
    )
    json.dumps(described, allow_nan=False)


def test_a_living_run_has_an_eta(root):
    run = make(root)
    write_metrics(run, step=1000, values=(1.0, 1.0, 100.0))
    lock = runs.acquire(run.path)
    try:
        described = runs.describe(run._replace(document=runs.update_document(run.path, steps=3000, **runs.identity())))
    finally:
        lock.release()
    assert described["state"] == "running" and described["eta_s"] == 20.0 and described["exit"] is None


def test_light_programs_stay_light():
    code = (
        "import sys; import operant.runs.launch; print(sorted({'torch', 'numba', 'numpy', 'pydantic', 'typer', "
        "'textual'} & set(sys.modules)))"
    )
    assert python(code).communicate() == ("[]\n", "")


# ----------------------------------------------------------------------------------------------------------------------
# text


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300), st.integers(2, 60))
@example("\u2e80" + "0", 2)  # the first character leaves no room for the ellipsis
def test_safe_removes_everything_a_terminal_would_obey_or_hide(raw, limit):
    clean = text.safe(raw, limit)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in clean)
    assert sum(text.cells(c) for c in clean) <= limit
    clean.encode("utf-8")
    assert text.safe(clean, limit) == clean


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b]52;c;aGk=\a", "]52;c;aGk="),
        ("a\x9b2Jb", "a2Jb"),
        ("a\u202eb\u2066c", "abc"),
        ("a\u200bb\ufeffc\u2060d", "abcd"),
        ("a\tb\r\nc", "a b  c"),
        (b"a\xff\x1bb", "a\N{REPLACEMENT CHARACTER}b"),
        ("[/foo]", "[/foo]"),
        ("\ud800x", "x"),
        ("日本", "日本"),
        ("a\u2028b", "ab"),
        (None, "None"),
    ],
)
def test_safe_escapes_known_terminal_attacks(raw, clean):
    assert text.safe(raw) == clean


def test_safe_cuts_by_cells_and_keeps_lines_on_request():
    assert text.safe("日本語日本語", 7) == "日本語…"
    assert text.safe("x" * 10**6, 5) == "xxxx…" and text.safe("xxxxx", 5) == "xxxxx"
    assert text.safe("a\x1b[0m\nb\r\n", lines=True) == "a[0m\nb \n"


@pytest.mark.parametrize(
    ("value", "worded"),
    [
        (0, "0"),
        (950, "950"),
        (999.4, "999"),
        (999.6, "1 k"),
        (16_800, "16.8 k"),
        (999_600, "1 M"),
        (4_710_000, "4.71 M"),
        (20_000_000, "20 M"),
        (341_000_000, "341 M"),
        (2.5e9, "2.5 G"),
        (3e18, "3000000 T"),
        (-1500, "-1.5 k"),
        (float("nan"), "-"),
    ],
)
def test_counts_are_printed_with_a_suffix(value, worded):
    assert text.count(value) == worded


def test_numbers_durations_and_ages_are_printed_short():
    assert [text.number(v) for v in (487.26, -170.0, 0.00831, 9.9999, 1.5e6, float("nan"), None, float("inf"))] == [
        "487.3",
        "-170.0",
        "0.00831",
        "10.0",
        "1.5 M",
        "-",
        "-",
        "inf",
    ]
    assert [text.duration(v) for v in (161.9, 0, 90_061, None, float("nan"), -1, 1e300)] == [
        "0:02:41",
        "0:00:00",
        "25:01:01",
        "-",
        "-",
        "-",
        "-",
    ]
    assert [text.age(v) for v in (14.9, 200, 7300, 500_000)] == ["14 s", "3 min", "2 h", "5 d"]


def test_identity_is_this_process():
    identity = runs.identity()
    assert identity["pid"] == os.getpid() and identity["pid_start_ticks"] == runs.start_ticks(os.getpid()) is not None
    assert runs.start_ticks(2**22 + 5) is None and runfolder.is_local(identity)
