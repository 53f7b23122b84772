"""Folders of sweeps and groups from somebody else: reading them runs and writes nothing, working on them asks first."""

import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
from toys import MY_ENV

from operant import runs
from operant.config import request
from operant.errors import MachineError
from operant.runs import groups, pool
from operant.sweep import plan as planning
from operant.sweep import report, study

pytest.importorskip("optuna")

SEARCH = """
[env]
name = "{name}"
lanes = 64
[run]
device = "cpu"
[sweep]
trials = 2
{more}
algo.learning_rate = {{log = [1e-4, 1e-2]}}
"""


@pytest.fixture
def ran(tmp_path):
    """A file that exists once a stranger's code has run."""
    return tmp_path / "ran"


@pytest.fixture
def evil(tmp_path, ran, monkeypatch):
    """A stranger's environment file, and an installed module of the same effect."""
    code = f"open({str(ran)!r}, 'w').close()\n{MY_ENV}"
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "evil_module.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    return code


def strangers_sweep(tmp_path, evil, name, more=""):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "evil.py").write_text(evil)
    (folder / "sweep.toml").write_text(SEARCH.format(name=name, more=more))
    return folder


def own_sweep(tmp_path, name="my-sweep"):
    """The plan of a sweep of a user's own over an environment of a user's own; nothing is trained."""
    (tmp_path / "my_env.py").write_text(MY_ENV)
    (tmp_path / "my.toml").write_text(SEARCH.format(name="my_env.py", more=""))
    asked = request.make((), config=str(tmp_path / "my.toml"), environment_file=None, settings={})
    return planning.make(asked, str(tmp_path / "runs"), name)


def content(folder):
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ["evil.py", "evil.py:make", "gymnasium:evil_module:Evil-v0"])
def test_a_strangers_sweep_is_shown_without_its_code_and_worked_on_only_with_trust(here, tmp_path, evil, ran, name):
    folder = strangers_sweep(tmp_path, evil, name)
    before = content(folder)
    for words in (("show", folder), ("show", folder, "--json"), ("stop", folder)):
        done = here(*words)
        assert done.code == 0 and not ran.exists() and content(folder) == before, (words, done.err)
    for words in (("sweep", "--join", folder), ("sweep", "--join", folder, "--detach")):
        done = here(*words)
        assert done.code == 2 and "the sweep is not in your own index" in done.err and "--trust" in done.err, done.err
        assert not ran.exists() and content(folder) == before, words
    (folder / "journal.log").write_text("")
    done = here("config", "check", folder / "sweep.toml")
    assert done.code == 2 and "the sweep is not in your own index" in done.err and not ran.exists()


@pytest.mark.parametrize(
    ("searched", "named"),
    [
        ('net.kind = {choice = ["mlp", "evil.py:Net"]}', "evil.py"),
        ('env."name " = {choice = ["evil.py"]}', "evil.py"),
        ("""env."name='evil.py' #" = {uniform = [0.0, 1.0]}""", "evil.py"),
    ],
)
def test_code_that_a_searched_value_names_needs_trust(here, tmp_path, evil, ran, searched, named):
    folder = strangers_sweep(tmp_path, evil, "cartpole", searched)
    done = here("sweep", "--join", folder)
    assert done.code == 2 and not ran.exists(), done.err
    assert f"theirs/{named}: the sweep is not in your own index" in done.err, done.err


def test_ids_of_runs_in_a_strangers_journal_lead_nowhere(tmp_path):
    plan = own_sweep(tmp_path)
    search = study.Study(plan)
    with search.turn():
        for ids in (["../elsewhere/mine"], "mine", [3], ["mine"]):
            search.ask(lambda number, ids=ids: ids)
    assert [study.claim(trial).get("runs") for trial in search.trials()] == [None, None, None, ["mine"]]


def test_pickled_objects_in_a_strangers_journal_are_not_loaded(here, tmp_path, ran):
    class Evil:
        def __reduce__(self):
            return open, (str(ran), "w")

    folder = strangers_sweep(tmp_path, "", "cartpole", 'sampler = "cma_es"')
    journal = [
        {"op_code": 0, "worker_id": "a", "study_name": "theirs", "directions": [2]},
        {"op_code": 4, "worker_id": "a", "study_id": 0, "datetime_start": "2026-01-01T00:00:00"},
        {
            "op_code": 9,
            "worker_id": "a",
            "trial_id": 0,
            "system_attr": {"cma:optimizer": pickle.dumps(Evil()).hex()},
        },
    ]
    (folder / "journal.log").write_text("".join(json.dumps(line) + "\n" for line in journal))
    done = here("sweep", "--join", folder)
    assert done.code == 2 and "journal.log, from which the search engine loads pickled objects" in done.err
    shown = here("show", folder, "--json")
    assert shown.code == 0 and len(json.loads(shown.out)["trials"]) == 1, shown.err
    assert not ran.exists()


def test_a_users_own_sweep_is_not_asked_about_until_it_is_changed_or_copied(tmp_path, here):
    plan = own_sweep(tmp_path)
    assert planning.join(plan.folder).space == plan.space
    search = study.Study(plan)
    with search.turn():
        trial, _ = search.ask(lambda number: [f"my-sweep.{number}"])
    search.tell(trial.number, [1.0], "complete")
    best = report.write_best(plan, search)
    assert here("config", "check", best).code == 0 and here("config", "check", plan.folder / "sweep.toml").code == 0
    copy = tmp_path / "copy"
    shutil.copytree(plan.folder, copy)
    for folder, file in ((copy, "best.toml"), (copy, "sweep.toml")):
        done = here("config", "check", folder / file)
        assert done.code == 2 and "made elsewhere, copied, moved or changed" in done.err, done.err
    assert json.loads(here("show", copy, "--json").out)["complete"] == 1, "a copy can be read"
    for file in (best, plan.folder / "sweep.toml"):
        file.write_text(file.read_text() + "\n# another line\n")
        assert here("config", "check", file).code == 2
    assert here("sweep", "--join", plan.folder).code == 2


def test_a_sweep_or_group_that_others_can_write_to_is_not_trusted(tmp_path, here):
    plan = own_sweep(tmp_path)
    for path in (plan.folder, plan.folder.parent, plan.folder / "sweep.toml"):
        mode = path.stat().st_mode
        path.chmod(0o777)
        done = here("sweep", "--join", plan.folder)
        assert done.code == 2 and f"others can write to {runs.display_path(path)} (chmod go-w)" in done.err, done.err
        path.chmod(mode)


@pytest.mark.parametrize("name", ["best.toml", ".sweep.toml.tmp", "sweep.lock", "journal.log", "worker-0.log"])
def test_a_sweep_writes_through_no_link_in_its_folder(here, tmp_path, name):
    folder, outside = strangers_sweep(tmp_path, "", "cartpole"), tmp_path / "outside"
    outside.write_text("mine")
    (folder / name).symlink_to(outside)
    done = here("sweep", "--join", folder)
    assert done.code == 2 and f"holds '{name}', a symbolic link" in done.err and outside.read_text() == "mine", done.err
    (tmp_path / "my.toml").write_text(SEARCH.format(name="cartpole", more=""))
    done = here("sweep", tmp_path / "my.toml", "--runs", tmp_path, "--name", "theirs")
    assert done.code == 2 and outside.read_text() == "mine", done.err


@pytest.mark.parametrize(
    "journal",
    ["x\n", "[]\n", "{}\n", '{"op_code": 0}\n', '{"op_code": 0, "worker_id": 1, "study_name": [], "directions": 3}\n'],
)
def test_a_damaged_journal_is_a_sentence(here, tmp_path, journal):
    folder = strangers_sweep(tmp_path, "", "cartpole")
    (folder / "journal.log").write_text(journal)
    done = here("show", folder)
    assert (done.code == 0 and "0 of 2 trials" in done.out) or "journal.log is damaged" in done.err, done.err
    text = (folder / "sweep.toml").read_text()
    (folder / "sweep.toml").write_text(text + "[sweep\n")
    assert "not valid TOML" in here("show", folder).err
    (folder / "sweep.toml").write_text(text)
    os.unlink(folder / "journal.log")
    os.mkfifo(folder / "journal.log")
    assert "no regular file" in here("show", folder).err


def group_of(root, *, overrides=(), trusted=False, **fields):
    asked = {"config": None, "overrides": list(overrides), "environment_file": None, "directory": str(root)} | fields
    return groups.create(root, "many", "x", asked, [1, 2], trusted=trusted)


@pytest.mark.parametrize(
    "fields",
    [
        {"overrides": ["env.name=../theirs/evil.py"]},
        {"overrides": ["env.name=gymnasium:evil_module:Evil-v0"]},
        {"environment_file": "evil.py"},
        {"config": "evil.toml"},
        {"trusted": True},
    ],
)
def test_a_strangers_group_is_resumed_only_with_trust(here, tmp_path, evil, ran, fields):
    made, theirs = tmp_path / "elsewhere", tmp_path / "theirs"
    made.mkdir()
    (made / "evil.py").write_text(evil)
    (made / "evil.toml").write_text("env.name = 'evil.py'\n")
    paths = {key: str(theirs / value) for key, value in fields.items() if key in ("environment_file", "config")}
    group_of(made, **fields | paths)
    made.rename(theirs)
    before = content(theirs)
    assert here("show", theirs / "many").code == 0
    done = here("resume", theirs / "many")
    assert done.code == 2 and "the group is not in your own index" in done.err and "--trust" in done.err, done.err
    assert not ran.exists() and content(theirs) == before


def test_a_users_own_group_is_not_asked_about(tmp_path, here, monkeypatch):
    (tmp_path / "my_env.py").write_text(MY_ENV)
    group = group_of(tmp_path / "runs", overrides=[f"env.name={tmp_path / 'my_env.py'}"])
    started = []
    monkeypatch.setattr("operant.cli.grouped.run", lambda group, detach: started.append(group.id) or 0)
    assert here("resume", "many").code == 0 and started == ["many"]
    group.path.chmod(0o777)
    assert here("resume", "many").code == 2 and started == ["many"]


@pytest.mark.parametrize("name", ["group.log", "worker-0.log"])
def test_a_group_writes_through_no_link_in_its_folder(tmp_path, name):
    group, outside = group_of(tmp_path / "runs"), tmp_path / "outside"
    outside.write_text("mine")
    (group.path / name).symlink_to(outside)
    with pytest.raises(MachineError, match="is not a regular file"):
        groups.start(group) if name == "group.log" else pool.Worker(group.path / name).warm()
    assert outside.read_text() == "mine"


def test_a_process_that_trains_no_group_is_not_signalled(tmp_path, here):
    victim = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        group = group_of(tmp_path / "runs")
        identity = runs.identity() | {"pid": victim.pid, "pid_start_ticks": runs.start_ticks(victim.pid)}
        runs.write_json(group.path / "group.json", group.document | {"supervisor": identity})
        assert runs.is_alive(identity) and not groups.load(group.path).live
        for words in (("stop", "many"), ("stop", "--all")):
            assert here(*words).code in (0, 2, 3) and victim.poll() is None, words
    finally:
        victim.communicate()
    assert victim.returncode == 0
