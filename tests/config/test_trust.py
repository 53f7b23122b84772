"""Trust in code: a stranger's run folder opens without its code, a user's own files and runs are never
asked about.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toys import MY_ENV, MY_NET

from operant import cli, runs
from operant.config import trust
from operant.runs.checkpoints import Store

ITERATION = 64 * 16
SMALL = ("env.lanes=64", "algo.horizon=16", "run.threads=1", "run.device=cpu")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a user's own environment and network, the index of this user's runs, and one run, `mine`."""
    place = tmp_path_factory.mktemp("home")
    (place / "my_env.py").write_text(MY_ENV)
    (place / "my_net.py").write_text(MY_NET)
    with pytest.MonkeyPatch.context() as patch:
        said = operant(
            place,
            patch,
            "train",
            "--env",
            "my_env.py",
            "net.kind=my_net.py:MyNet",
            "--name",
            "mine",
            "--inline",
            *SMALL,
            f"run.steps={ITERATION}",
        )
    assert said == 0
    return place


def operant(place: Path, patch: pytest.MonkeyPatch, *words: object) -> int:
    """The exit code of `operant WORDS` in this process, in the folder `place`."""
    patch.setenv("XDG_STATE_HOME", str(place / "state"))
    patch.delenv("OPERANT_RUNS", raising=False)
    patch.chdir(place)
    patch.setattr(sys, "argv", ["operant", *map(str, words)])
    threads = torch.get_num_threads()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    torch.set_num_threads(threads)
    return ended.value.code or 0


@pytest.fixture
def here(home, monkeypatch, capsys):
    """`operant WORDS` as the user whose runs `home` holds: exit code, stdout, stderr."""

    def call(*words: object) -> SimpleNamespace:
        capsys.readouterr()
        code = operant(home, monkeypatch, *words)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return SimpleNamespace(code=code, out=out, err=err)

    return call


@pytest.fixture
def mine(home):
    """The user's own run; what a test changes in it is undone."""
    folder, kept = home / "runs" / "mine", home / "kept"
    shutil.copytree(folder, kept, symlinks=True)
    yield folder
    shutil.rmtree(folder)
    kept.rename(folder)


@pytest.fixture
def ran(tmp_path):
    """A file that is there once a stranger's code has run."""
    return tmp_path / "ran"


def telling(code: str, ran: Path) -> str:
    """Code that leaves a file when it is run."""
    return f"open({str(ran)!r}, 'w').close()\n{code}"


@pytest.fixture
def theirs(mine, tmp_path, ran):
    """A stranger's run as it comes, whole, out of an archive: its hashes are right."""
    folder = shutil.copytree(mine, tmp_path / "theirs")
    source = folder / "source" / "my_env.py"
    source.write_text(telling(MY_ENV, ran))
    document = runs.read_json(folder / "run.json")
    changed = {"source/my_env.py": hashlib.sha256(source.read_bytes()).hexdigest()}
    runs.update_document(folder, sources=document.get("sources", {}) | changed)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


COMMANDS = {
    "eval": ("eval", "{run}", "--episodes", "2"),
    "eval a checkpoint": ("eval", "{run}/checkpoints/step-000000001024", "--episodes", "2"),
    "render": ("render", "{run}", "--out", "a.gif"),
    "resume": ("resume", "{run}", "run.steps=4096"),
    "profile": ("profile", "--config", "{run}/config.toml"),
    "config check": ("config", "check", "{run}/config.toml"),
    "config show": ("config", "show", "--config", "{run}/config.toml"),
    "train": ("train", "--config", "{run}/config.toml"),
    "train --inline": ("train", "--inline", "--config", "{run}/config.toml"),
    "train --dry-run": ("train", "--dry-run", "--config", "{run}/config.toml"),
    "train --resume": ("train", "--resume", "{run}", "run.steps=4096"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_opening_a_strangers_run_runs_none_of_its_code(here, home, theirs, ran, name):
    before = content(theirs)
    done = here(*(word.format(run=theirs) for word in COMMANDS[name]))
    assert (
        done.code == 2
        and "source/my_env.py: the run is not in your own index of runs" in done.err
        and "--trust" in done.err
    )
    assert not ran.exists() and content(theirs) == before and os.listdir(home / "runs") == ["mine"]


READING = {
    "show": ("show", "{run}"),
    "runs": ("runs", "--runs", "{run}/.."),
    "logs": ("logs", "{run}"),
    "wait": ("wait", "{run}"),
    "monitor": ("monitor", "{run}", "--once"),
    "du": ("du", "{run}"),
    "compare": ("compare", "{run}", "mine"),
    "archive": ("archive", "{run}", "--out", "{place}/a.tar.gz"),
    "plot": ("plot", "{run}", "--out", "{place}/a.svg", "--metric", "entropy"),
    "note": ("note", "{run}", "seen"),
    "stop": ("stop", "{run}"),
    "export metrics": ("export", "metrics", "{run}", "--to", "csv", "--out", "{place}/a.csv"),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name not in ("wait", "compare", "plot") else pytest.param(name, marks=pytest.mark.slow)
        for name in READING
    ],
)
def test_what_only_reads_a_strangers_run_asks_nothing_and_runs_none_of_its_code(here, theirs, tmp_path, ran, name):
    (theirs / "log.txt").touch()
    before = content(theirs)
    done = here(*(word.format(run=theirs, place=tmp_path) for word in READING[name]))
    # of so short a run there may be one record
    assert not ran.exists() and (done.code == 0 or "too few records" in done.err), done.err
    assert {path: data for path, data in content(theirs).items() if not path.endswith("notes.json")} == before


def test_a_strangers_algorithm_is_not_run_either(here, theirs, ran):
    (theirs / "source" / "algo.py").write_text(telling("", ran))
    path = theirs / "config.toml"
    path.write_text(
        path.read_text()
        .replace('name = "ppo"', 'name = "source/algo.py:Theirs"')
        .replace('"source/my_env.py"', '"cartpole"')
    )
    done = here("config", "check", path, "net.kind=mlp", "env.params={}")
    assert (
        done.code == 2 and "source/algo.py: the run is not in your own index of runs" in done.err and not ran.exists()
    )


def test_a_module_that_a_strangers_environment_id_imports_is_not_imported(
    here, home, theirs, tmp_path, ran, monkeypatch
):
    (tmp_path / "installed").mkdir()
    registers = (
        "import gymnasium\ngymnasium.register('Here-v0', "
        "entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    (tmp_path / "installed" / "installed_envs.py").write_text(telling(registers, ran))
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    path, own = theirs / "config.toml", home / "of_my_own.toml"
    changed = re.sub(r'name = "source/my_env.py"', 'name = "gymnasium:installed_envs:Here-v0"', path.read_text())
    path.write_text(re.sub(r"\n\[env.params\]\n[^\[]*", "\n", changed))
    own.write_text('[env]\nname = "gymnasium:installed_envs:Here-v0"\n')
    done = here("config", "check", path, "net.kind=mlp")
    assert done.code == 2 and not ran.exists()
    assert (
        "the module that 'gymnasium:installed_envs:Here-v0' imports: the run is not in your own index of runs"
        in done.err
    )
    assert here("config", "check", own).code == 0 and ran.exists(), "what a user writes is run"


def test_trust_option_runs_foreign_code(here, theirs, ran):
    assert here("config", "check", theirs / "config.toml", "--trust").code == 0 and ran.exists()
    played = here("eval", theirs, "--episodes", "2", "--trust", "--json")
    assert played.code == 0 and json.loads(played.out)["mean"] == 100.0


@pytest.mark.slow
def test_a_run_that_is_resumed_with_trust_is_trained_by_a_worker_that_was_told(here, theirs):
    done = here("resume", theirs, f"run.steps={2 * ITERATION}", "--trust")
    assert done.code == 0 and runs.describe(runs.load(theirs))["step"] == 2 * ITERATION
    assert here("eval", theirs).code == 2, "once is not for ever"


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 2), ("\n", 2), ("", 2)])
def test_on_a_terminal_the_question_is_asked_once(here, theirs, ran, monkeypatch, answer, code):
    reads = []
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: reads.append(answer) or answer)
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    done = here("config", "check", theirs / "config.toml")
    assert (done.code, len(reads), ran.exists()) == (code, 1, code == 0)
    assert done.err.count("[y/N]") == 1 and "index of runs" in done.err


def test_a_users_own_run_is_not_asked_about(here, mine):
    assert set(runs.read_json(mine / "run.json")["sources"]) == {"source/my_env.py", "source/my_net.py"}
    assert here("config", "check", mine / "config.toml").code == 0
    assert here("eval", "mine", "--episodes", "2").code == 0


def rewrite(folder, config, checkpoints):
    """Other configurations for the run and, signed anew, for its checkpoint."""
    (folder / "config.toml").write_text(config)
    store = Store(folder / "checkpoints", run_uuid=runs.read_json(folder / "run.json")["uuid"], report=print)
    manifest, files = store.load_files()
    store.save_files(
        manifest.step, files["tensors.safetensors"], files["state.json"], checkpoints.encode(), session=manifest.session
    )


def spoil_outside(folder, home, ran):
    (home / "evil.py").write_text(telling(MY_ENV, ran))
    config = (folder / "config.toml").read_text()
    rewrite(folder, *(config.replace("source/my_env.py", f"{up}evil.py") for up in ("../../", "../../../../")))


def spoil_link(folder, home, ran):
    (home / "evil.py").write_text(telling(MY_ENV, ran))
    (folder / "source" / "my_env.py").unlink()
    (folder / "source" / "my_env.py").symlink_to(home / "evil.py")


def spoil_environment(folder, home, ran):
    (folder / "source" / "my_env.py").write_text(telling(MY_ENV, ran))


def spoil_network(folder, home, ran):
    (folder / "source" / "my_net.py").write_text(telling(MY_NET, ran))


def spoil_hashes(folder, home, ran):
    spoil_environment(folder, home, ran)
    runs.update_document(folder, sources=None)


def spoil_another_file(folder, home, ran):
    (folder / "source" / "other.py").write_text(telling(MY_ENV, ran))
    rewrite(folder, *(f"env = {{name = '{up}source/other.py'}}\n[net]\nkind = 'mlp'\n" for up in ("", "../../")))


def spoil_age(folder, home, ran):
    """A stranger's run where one of the user's own was, under its name."""
    spoil_environment(folder, home, ran)
    runs.update_document(folder, created_realtime_ns=1)


@pytest.mark.parametrize(
    ("spoil", "doubt"),
    [
        (spoil_outside, "evil.py: the file lies outside the run folder"),
        (spoil_link, "source/my_env.py: the file lies outside the run folder"),
        (spoil_environment, "source/my_env.py: the file was changed after its hash was recorded"),
        (spoil_network, "source/my_net.py: the file was changed after its hash was recorded"),
        (spoil_hashes, "source/my_env.py: run.json holds no hash of this file"),
        (spoil_another_file, "source/other.py: run.json holds no hash of this file"),
        (spoil_age, "source/my_env.py: the run is not in your own index of runs"),
    ],
)
def test_of_a_users_own_run_only_what_was_recorded_is_run(here, home, mine, ran, spoil, doubt):
    spoil(mine, home, ran)
    for words in (
        ("config", "check", mine / "config.toml"),
        ("config", "check", mine / "config.toml", "env.lanes=32"),
        ("eval", "mine", "--episodes", "2"),
    ):
        done = here(*words)
        assert done.code == 2 and doubt in done.err and not ran.exists(), words


def test_another_users_files_are_not_run(here, home, mine, tmp_path, ran, monkeypatch):
    (home / "evil.py").write_text(telling(MY_ENV, ran))
    (home / "my.toml").write_text("env.name = 'evil.py'\n")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    done = here("eval", "mine", "--episodes", "2")
    assert done.code == 2 and "my_env.py: the run belongs to another user" in done.err
    done = here("config", "check", "my.toml")
    assert done.code == 2 and "evil.py: the configuration belongs to another user" in done.err and not ran.exists()


def test_what_a_user_types_or_writes_is_run(here, home, theirs, ran):
    (home / "my.toml").write_text("[env]\nname = 'my_env.py'\n[net]\nkind = 'my_net.py:MyNet'\n")
    assert here("config", "check", "my.toml").code == 0
    assert here("config", "show", "--env", "my_env.py", "net.kind=my_net.py:MyNet").code == 0
    assert (
        here("config", "check", theirs / "config.toml", "env.name=my_env.py", "net.kind=mlp").code == 0
        and not ran.exists()
    )
    assert here("config", "show", "--env", theirs / "source" / "my_env.py").code == 0 and ran.exists()


@pytest.mark.parametrize("name", ["my_env.py", "my_net.py"])
def test_compiled_code_that_lies_beside_a_recorded_file_is_not_run(here, mine, tmp_path, ran, name):
    source, evil = mine / "source" / name, tmp_path / "evil.py"
    evil.write_text(telling(source.read_text(), ran))
    compiled = importlib.util.cache_from_source(str(source))
    py_compile.compile(str(evil), compiled, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert here("eval", "mine", "--episodes", "2").code == 0 and not ran.exists()


OUTSIDE_ENV = """
import gymnasium

class Outside(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.low, {}

    def step(self, action):
        return self.observation_space.low, 1.0, True, False, {}
"""


@pytest.mark.slow
def test_compiled_code_that_lies_beside_an_outside_environment_is_not_run(here, home, tmp_path, ran):
    pytest.importorskip("gymnasium")
    source, evil = home / "my_envs.py", tmp_path / "evil.py"
    source.write_text(OUTSIDE_ENV)
    evil.write_text(telling(OUTSIDE_ENV, ran))
    compiled = importlib.util.cache_from_source(str(source))
    py_compile.compile(str(evil), compiled, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    for words in (("config", "show", "--env", "my_envs.py:Outside"), ("check", "my_envs.py:Outside")):
        done = here(*words)
        assert done.code == 0 and not ran.exists(), done.err


@pytest.mark.parametrize("part", ["", "source", "source/my_env.py", "run.json", ".."])
def test_a_run_that_others_can_write_to_is_not_trusted(here, home, mine, part):
    path = (mine / part).resolve()
    mode = path.stat().st_mode
    path.chmod(mode | 0o022)
    done = here("eval", "mine", "--episodes", "2")
    path.chmod(mode)
    assert done.code == 2 and "others can write to" in done.err and "(chmod go-w)" in done.err, done.err
    assert str(path.relative_to(home)) in done.err


def test_a_sticky_folder_above_and_a_group_without_other_members_are_no_reason_to_ask(here, home, mine, monkeypatch):
    user = SimpleNamespace(pw_name="me", pw_gid=mine.stat().st_gid)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: user)
    for members, code in ((["me"], 0), ([], 0), (["me", "another"], 2)):
        entry = SimpleNamespace(gr_name="me", gr_gid=user.pw_gid, gr_mem=members)
        monkeypatch.setattr("grp.getgrgid", lambda gid, entry=entry: entry)
        trust._is_private.cache_clear()
        home.chmod(0o775)
        assert here("eval", "mine", "--episodes", "2").code == code, members
    home.chmod(0o1777)
    assert here("eval", "mine", "--episodes", "2").code == 0
    home.chmod(0o700)
    trust._is_private.cache_clear()


# SECURITY.md


def test_security_names_each_command_that_may_run_a_runs_code_and_files_of_tests_that_are_there():
    from typer.main import get_command

    from operant.cli import program

    def commands(group, before=""):
        for name, one in group.commands.items():
            yield before + name, {option for parameter in one.params for option in parameter.opts}
            yield from commands(one, f"{name} ") if hasattr(one, "commands") else ()

    home = Path(__file__).parents[2]
    text = " ".join((home / "SECURITY.md").read_text().split())
    (sentence,) = re.findall(r"its environment, network or algorithm\. (.*?) execute such a file", text)
    assert set(re.findall("`([^`]+)`", sentence)) == {
        name for name, options in commands(get_command(program.app)) if "--trust" in options
    }
    for file in re.findall(r"`([\w/]+\.py)`", text):
        assert (home / "tests" / file).is_file(), file


@pytest.mark.slow
def test_a_resume_leaves_no_link_where_it_keeps_a_users_file(here, mine, tmp_path):
    elsewhere, kept = tmp_path / "elsewhere.py", mine / "source" / "my_env.py"
    elsewhere.write_text(MY_ENV)
    kept.unlink()
    kept.symlink_to(elsewhere)
    done = here("resume", "mine", "run.steps=2048", "--trust")
    assert done.code == 0 and kept.read_text() == elsewhere.read_text() == MY_ENV and not kept.is_symlink()
