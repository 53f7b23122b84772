"""Commands that look after runs: notes and tags, filters and order of the list, rm, du, archive and restore."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from random import Random

import pytest
from made_runs import made

from operant import runs
from operant.errors import BadFileError, MachineError
from operant.runs import groups, history, membership, upkeep

NAN = float("nan")
ROWS = [(10 * k, (float(k), 1.0, NAN, 0.01)) for k in range(1, 9)]


@pytest.fixture
def three(here, tmp_path):
    root = tmp_path / "runs"
    return [
        made(root, "one", ROWS, env="cartpole", algo="ppo", config="[run]\nseed = 1\n"),
        made(root, "two", ROWS[:3], env="go", algo="ppo"),
        made(root, "six", ROWS, env="go", algo="sac", state=None),
    ]


def listed(here, *words):
    done = here("runs", "--json", *words)
    assert done.code == 0, done.err
    return [row["id"] for row in json.loads(done.out)]


def test_notes_and_tags_lie_beside_the_run(three, here):
    assert here("note", "one").out == "one  no tags  no note\n"
    assert here("note", "one", "learns\nslowly \x1b[31m", "--tag", "paper", "--tag", "a.1").code == 0
    assert json.loads(here("note", "one", "--json").out) == {
        "schema": 1,
        "id": "one",
        "note": "learns slowly [31m",
        "tags": ["a.1", "paper"],
    }
    shown = json.loads(here("show", "one", "--json").out)
    assert shown["tags"] == ["a.1", "paper"] and "\x1b" not in shown["note"]
    assert here("note", "one", "", "--untag", "a.1").out == "one  paper  no note\n"
    wrong = here("note", "one", "--tag", "no spaces")
    assert wrong.code == 2 and "'no spaces' cannot be a tag" in wrong.err
    (three[0].path / "notes.json").write_text('{"tags": ["good", 3, "\\u001b[31m"], "note": {"a": 1}}')
    assert json.loads(here("show", "one", "--json").out)["tags"] == ["good"]


def test_the_list_is_filtered_and_sorted(three, here):
    assert listed(here) == ["six", "two", "one"]
    here("note", "two", "--tag", "paper")
    assert (
        listed(here, "--tag", "paper") == ["two"]
        and listed(here, "--env", "go") == ["six", "two"]
        and listed(here, "--algo", "sac") == ["six"]
    )
    assert listed(here, "--sort", "-return") == ["six", "one", "two"]
    assert listed(here, "--sort", "-step", "--limit", "1") == ["six"] and listed(here, "--sort", "step")[0] == "two"
    assert listed(here, "--sort", "id") == ["one", "six", "two"]
    assert here("runs").out.splitlines()[0].endswith("age  tags") and "paper" in here("runs").out
    assert here("runs", "--tag", "none").err == "no such runs\n" and here("runs", "--sort", "luck").code == 2


def test_the_list_has_chosen_columns_and_filters_by_configuration(here, tmp_path):
    root = tmp_path / "runs"
    for name, rate, net, seed in (("low", 1e-4, "mlp", 1), ("mid", 1e-3, "cnn", 2), ("top", 1e-2, "mlp", 3)):
        text = f'[algo]\nlearning_rate = {rate!r}\n[net]\nkind = "{net}"\nhidden = [64, 64]\n'
        made(root, name, ROWS, seed=seed, config=text)
    made(root, "bare", ROWS)  # without a configuration

    shown = here("runs", "--columns", "id,state,score,algo.learning_rate,net.hidden", "--sort", "-algo.learning_rate")
    assert shown.out.splitlines() == [
        "id    state     score  algo.learning_rate  net.hidden",
        "top   finished      8  0.01                [64, 64]",
        "mid   finished      8  0.001               [64, 64]",
        "low   finished      8  0.0001              [64, 64]",
        "bare  finished      8  -                   -",
    ]
    assert listed(here, "--where", "algo.learning_rate>1e-4") == ["top", "mid"]
    assert listed(here, "--where", "algo.learning_rate<=1e-3", "--where", "net.kind=mlp") == ["low"]
    assert listed(here, "--where", "net.kind!=c*") == ["top", "low"] and listed(here, "--where", "id=?o*") == [
        "top",
        "low",
    ]
    assert listed(here, "--where", "seed=2") == ["mid"] and listed(
        here, "--where", "steps>=1k", "--where", "seed>2"
    ) == ["top"]
    assert len(listed(here, "--where", "date>=2020-01-01")) == 4 and listed(here, "--where", "date<2020") == []
    assert json.loads(here("runs", "--json", "--columns", "id,seed", "--where", "seed=3").out) == [
        {"id": "top", "seed": 3}
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--columns", "id,learning_rate"), "did you mean 'algo.learning_rate'?"),
        (("--columns", "stat"), "did you mean 'state'?"),
        (("--sort", "algo.learning_rte"), "did you mean 'algo.learning_rate'?"),
        (("--where", "algo.gama>1"), "no run has 'algo.gama'"),
        (("--where", "algo.learning_rate>fast"), "'fast' is not a number"),
        (("--where", "env>a"), "env is a text: compare it with = or !="),
        (("--where", "algo.learning_rate"), "such as 'algo.learning_rate>1e-4'"),
        (("--columns", ","), "--columns names no column"),
    ],
)
def test_a_wrong_column_or_filter_gets_one_sentence(here, tmp_path, words, sentence):
    made(tmp_path / "runs", "one", ROWS, config="[algo]\nlearning_rate = 0.001\n")
    done = here("runs", *words)
    assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1 and not done.out


def test_these_commands_import_nothing_heavy(three, here, tmp_path):
    program = (
        "import sys; from operant import cli\n"
        "for words in (['runs'], ['note', 'one', 'x'], ['du'], ['archive', 'one'], ['export', 'metrics', 'one'], "
        "['compare', '--help']):\n"
        "    sys.argv = ['operant', *words]\n"
        "    try: cli.main()\n"
        "    except SystemExit as ended: assert not ended.code, words\n"
        "heavy = {'torch', 'numba', 'matplotlib', 'scipy', 'onnx', 'pydantic', 'rich', 'textual', 'wandb', 'pyarrow'} "
        "& set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    place = os.environ | {"PYTHONPATH": str(Path(runs.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_rm_asks_and_never_deletes_a_live_run(three, here, started):
    asked = here("rm", "one")
    assert asked.code == 2 and "no terminal to ask on: give --yes" in asked.err and three[0].path.exists()
    live = started("forever")
    refused = here("rm", "two", live.id, "--yes")
    assert refused.code == 6 and "is still training" in refused.err and three[1].path.exists() and live.path.exists()
    done = here("rm", "one", "two", "-y")
    assert done.code == 0 and "one: deleted" in done.err and not three[0].path.exists() and not three[1].path.exists()
    assert here("rm", "one", "-y").code == 3 and here("rm").code == 2
    here("stop", live.id)


def test_rm_deletes_a_group_with_its_runs(three, here, tmp_path):
    group = groups.create(tmp_path / "runs", "many", "x", {}, [1, 2])
    member = made(tmp_path / "runs", group.members[1], ROWS, **membership.identity(group.uuid, 1))
    done = here("rm", "many", "--yes")
    assert done.code == 0 and not group.path.exists() and not member.path.exists(), done.err


def test_rm_of_a_group_deletes_no_run_that_merely_has_the_name_of_a_member(here, tmp_path):
    group = groups.create(tmp_path / "runs", "many", "x", {"overrides": []}, [1, 2, 3])
    made(tmp_path / "runs", "many.1", ROWS, **membership.identity(group.uuid, 1))
    own = made(tmp_path / "runs", "many.2", ROWS)
    shutil.copytree(tmp_path / "runs" / "many.1", tmp_path / "runs" / "many.3")
    shutil.copytree(group.path, tmp_path / "runs" / "copy")
    assert here("rm", "copy", "--yes").code == 0 and own.path.exists() and (tmp_path / "runs" / "many.1").exists()
    done = here("rm", "many", "--yes")
    assert done.code == 0 and "many.2: not a run of many, not deleted" in done.err
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["many.2", "many.3"]
    refused = here("rm", "many", "--yes")  # the beginning of two names
    assert refused.code == 3 and own.path.exists()


def test_rm_without_a_question_takes_no_run_that_merely_begins_with_the_name(three, here):
    done = here("rm", "on", "--yes")
    assert done.code == 2 and "give the whole name, one" in done.err and three[0].path.exists()


def test_du_shows_the_largest_first(three, here):
    (three[1].path / "checkpoints").mkdir()
    (three[1].path / "checkpoints" / "a").write_bytes(os.urandom(1 << 20))
    document = json.loads(here("du", "--json").out)
    assert document["runs"][0]["id"] == "two" and document["runs"][0]["checkpoints"] >= 1 << 20
    assert document["total"] == sum(row["total"] for row in document["runs"])
    lines = here("du").out.splitlines()
    assert (
        lines[0].split() == ["total", "checkpoints", "history", "id"]
        and lines[1].endswith("two")
        and lines[-1].endswith("3 runs")
    )


def test_an_archive_comes_back_as_it_was(three, here, tmp_path):
    here("note", "one", "keep me", "--tag", "paper")
    before = json.loads(here("show", "one", "--json").out)
    assert here("archive", "one").code == 0 and here("archive", "one").code == 2
    taken = here("restore", "one.tar.gz")
    assert taken.code == 2 and "the run one exists already in runs" in taken.err
    here("rm", "one", "--yes")
    done = here("restore", "one.tar.gz")
    assert done.out == "runs/one\n", done.err
    after = json.loads(here("show", "one", "--json").out)
    assert {key: value for key, value in after.items() if not key.endswith("age_s")} == {
        key: value for key, value in before.items() if not key.endswith("age_s")
    }
    run = runs.load(tmp_path / "runs" / "one")
    assert [list(chunk.step) for chunk in history.read(run.path / "history")] == [[row[0] for row in ROWS]]
    assert not (run.path / "run.lock").exists() and not [
        name for name in os.listdir(tmp_path / "runs") if name.startswith(".")
    ]
    elsewhere = here("restore", "one.tar.gz", "--runs", "other")
    assert elsewhere.out == "other/one\n" and not runs.is_indexed(runs.load(tmp_path / "other" / "one")), (
        "its code is not trusted"
    )


@pytest.mark.parametrize("by_command", [True, False], ids=["rm", "deleted by other means"])
def test_a_restored_run_is_not_trusted_in_the_folder_of_a_deleted_own_run(three, here, tmp_path, by_command):
    folder = tmp_path / "runs" / "one"
    here("archive", "one")
    assert runs.is_indexed(runs.load(folder))
    if by_command:
        here("rm", "one", "--yes")
    else:
        shutil.rmtree(folder)
    assert here("restore", "one.tar.gz").out == "runs/one\n" and not runs.is_indexed(runs.load(folder))


def test_a_live_run_is_not_archived(here, started):
    live = started("forever")
    assert here("archive", live.id).code == 6
    here("stop", live.id)


def packed(path, *members, **fields):
    """Write an archive of members (name, content); `fields` are set in the header of the last one."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            entry, data = tarfile.TarInfo(member[0]), member[1]
            entry.size = len(data)
            for key, value in (fields if member is members[-1] else {}).items():
                setattr(entry, key, value)
            archive.addfile(entry, io.BytesIO(data))
    return path


RUN_JSON = ("one/run.json", b"{}")
LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc"}


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        *((name, {}, "it holds '") for name in ("../evil", "/tmp/evil", "one/../../evil", "other/run.json")),
        *((name, {}, "it holds '") for name in ("one/./x", "one//x", "x", "one/run.json")),
        ("one/link", LINK, "it holds 'one/link'"),
        ("one/x", {"type": tarfile.LNKTYPE, "linkname": "one/run.json"}, "it holds 'one/x'"),
        ("one/x", {"type": tarfile.FIFOTYPE}, "it holds 'one/x'"),
        ("one/x", {"pax_headers": {"path": "one/a\0b"}}, r"it holds 'one/a\x00b'"),
        ("one/x", {"pax_headers": {"mtime": "inf"}}, "the time of 'one/x' is inf"),
        ("one/x", {"pax_headers": {"mtime": "nan"}}, "the time of 'one/x' is nan"),
        ("one/x", {"mtime": 2.0**70}, "the time of 'one/x' is 1.18059e+21 s"),
        ("one/x", {"mtime": -1.0}, "the time of 'one/x' is -1 s"),
        ("one/x", {"pax_headers": {"size": "-1024"}}, "it holds 'one/x'"),
    ],
)
def test_an_archive_reaches_nothing_outside(here, tmp_path, name, fields, problem):
    packed(tmp_path / "bad.tar.gz", RUN_JSON, (name, b""), **fields)
    done = here("restore", "bad.tar.gz")
    assert done.code == 3 and f"bad.tar.gz is not an archive of a run: {problem}" in done.err, done.err
    assert set(os.listdir(tmp_path)) <= {"bad.tar.gz", "state"}, "nothing was written"


def claiming(path, size_bytes, count=1):
    """An archive of a few bytes whose headers say that it holds files of a size."""
    with gzip.open(path, "wb") as archive:
        for name, size in (("one/run.json", 0), *((f"one/{k}", size_bytes) for k in range(count))):
            entry = tarfile.TarInfo(name)
            entry.size = size
            archive.write(entry.tobuf(tarfile.GNU_FORMAT))
    return path


def test_an_archive_larger_than_the_disk_is_refused_before_a_byte_is_written(here, tmp_path):
    claiming(tmp_path / "a.tar.gz", 1 << 50)
    done = here("restore", "a.tar.gz", "--yes")
    assert done.code == 4 and "it holds at least 1.02e+03 TiB in 2 files, and runs has room for" in done.err, done.err
    assert not (tmp_path / "runs").exists()


def test_a_large_archive_is_unpacked_after_a_question(here, tmp_path, monkeypatch):
    monkeypatch.setattr(upkeep, "_MOST_BYTES", 1000)
    packed(tmp_path / "a.tar.gz", RUN_JSON, ("one/a", bytes(2000)), ("one/b", bytes(2000)))
    done = here("restore", "a.tar.gz")
    assert done.code == 2 and "holds at least 1.96 KiB in 2 files: unpack it?" in done.err and "--yes" in done.err
    assert not (tmp_path / "runs").exists()
    assert here("restore", "a.tar.gz", "--yes").out == "runs/one\n"
    monkeypatch.setattr(upkeep, "_MOST_BYTES", 1 << 30)
    monkeypatch.setattr(upkeep, "_MOST_FILES", 2)
    assert "in 3 files: unpack it?" in here("restore", "a.tar.gz", "--runs", "other").err


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_the_memory_is_refused(here, tmp_path, kind):
    entry = tarfile.TarInfo("one/run.json")
    entry.type, entry.size = kind, 1 << 40
    with gzip.open(tmp_path / "a.tar.gz", "wb") as archive:
        archive.write(entry.tobuf(tarfile.GNU_FORMAT))
    done = here("restore", "a.tar.gz")
    assert done.code == 3 and "a.tar.gz is damaged or not an archive of a run (a header is too long)" in done.err


def test_compiled_code_is_neither_archived_nor_restored(here, three, tmp_path):
    for folder in (three[0].path / "__pycache__", three[0].path / "source" / "__pycache__"):
        folder.mkdir(parents=True)
        (folder / "my_env.cpython-311.pyc").write_bytes(b"evil")
    assert here("archive", "one", "--out", "a.tar.gz").code == 0
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert not [name for name in archive.getnames() if "pycache" in name]
    packed(tmp_path / "b.tar.gz", RUN_JSON, ("one/source/my_env.py", b""), ("one/source/__pycache__/my_env.pyc", b"x"))
    assert here("restore", "b.tar.gz", "--runs", "other").code == 0
    assert sorted(path.name for path in (tmp_path / "other").rglob("*")) == ["my_env.py", "one", "run.json", "source"]


def test_a_damaged_archive_is_a_sentence(tmp_path):
    file, random, refused = tmp_path / "a.tar.gz", Random(3), 0
    content = gzip.decompress(packed(file, RUN_JSON, (f"one/{'x' * 120}", b"y" * 2000)).read_bytes())
    for number in range(200):
        damaged = bytearray(content)
        for _ in range(1 + number % 3):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        data = gzip.compress(bytes(damaged), 1)
        file.write_bytes(data if number % 3 else data[: random.randrange(len(data))])
        try:
            upkeep.restore(file, tmp_path / str(number), lambda question: None)
        except (BadFileError, MachineError):
            refused += 1
    assert refused > 50 and not list(tmp_path.glob("*/.restore*"))


def test_what_is_no_archive_is_one_sentence(here, tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(b"nonsense")
    assert here("restore", "a.tar.gz").code == 3 and here("restore", "none.tar.gz").code == 3
