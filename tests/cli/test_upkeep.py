"""Commands that look after runs: notes and tags, filters and order of the list, rm, du, archive and restore."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from made_runs import made

from operant import runs
from operant.runs import groups, history, membership

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
    assert listed(here, "--sort", "return") == ["six", "one", "two"] and listed(
        here, "--sort", "step", "--limit", "1"
    ) == ["six"]
    assert listed(here, "--sort", "id") == ["one", "six", "two"]
    assert here("runs").out.splitlines()[0].endswith("age  tags") and "paper" in here("runs").out
    assert here("runs", "--tag", "none").err == "no such runs\n" and here("runs", "--sort", "luck").code == 2


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


def test_a_live_run_is_not_archived(here, started):
    live = started("forever")
    assert here("archive", live.id).code == 6
    here("stop", live.id)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "one/../../evil", "other/run.json", "link"])
def test_an_archive_reaches_nothing_outside(here, tmp_path, name):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as packed:
        for member, data in (("one/run.json", b"{}"), (name, b"evil")):
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            if member == "link":
                entry.name, entry.type, entry.linkname, entry.size, data = "one/link", tarfile.SYMTYPE, "/etc", 0, b""
            packed.addfile(entry, io.BytesIO(data))
    done = here("restore", "bad.tar.gz")
    assert done.code == 3 and "bad.tar.gz is not an archive of a run: it holds" in done.err
    assert sorted(os.listdir(tmp_path)) == ["bad.tar.gz", "runs", "state"] or sorted(os.listdir(tmp_path)) == [
        "bad.tar.gz",
        "runs",
    ]
    assert os.listdir(tmp_path / "runs") == []


def test_what_is_no_archive_is_one_sentence(here, tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(b"nonsense")
    assert here("restore", "a.tar.gz").code == 3 and here("restore", "none.tar.gz").code == 3
