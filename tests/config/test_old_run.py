"""A run folder made before the modules and keys had their present names opens in every command that reads one, and is not touched by them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from operant import cli

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A copy of the old run, outside every index of runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OPERANT_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(FIXTURES / "run_before_house", tmp_path / "old")


@pytest.fixture
def here(monkeypatch, capsys):
    """`operant WORDS` in this process: exit code, stdout, stderr."""

    def call(*words: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["operant", *map(str, words)])
        threads = torch.get_num_threads()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        torch.set_num_threads(threads)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return SimpleNamespace(code=ended.value.code or 0, out=out, err=err)

    return call


def content(folder: Path) -> dict[str, bytes | None]:
    """All that lies in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


READERS = {
    "show": (("show", "{run}", "--json"), "cartpole"),
    "logs": (("logs", "{run}"), "eval 500.0"),
    "monitor": (("monitor", "--once", "{run}"), "target 475 reached"),
    "eval": (("eval", "{run}", "--episodes", "4", "--greedy", "--json"), '"mean": 500.0'),
    "render": (("render", "{run}", "--out", "agent.gif", "--steps", "8"), "agent.gif"),
    "config show": (("config", "show", "--config", "{run}/config.toml"), "config.toml:"),
}


@pytest.mark.parametrize("name", READERS)
def test_it_opens_and_is_not_touched(here, run, name):
    words, said = READERS[name]
    before = content(run)
    done = here(*(word.format(run=run) for word in words))
    assert done.code == 0 and said in done.out, done.err
    assert content(run) == before


def test_it_is_resumed_or_refused_in_one_sentence(here, run):
    before = content(run)
    done = here("resume", run, "run.steps=100k", "run.target=501", "eval.every=0", "env.num_envs=256")
    if done.code:
        assert len(done.err.strip().splitlines()) == 1 and content(run) == before
    else:
        assert json.loads(here("show", run, "--json").out)["step"] == 102_400


@pytest.mark.parametrize("command", ["eval", "render"])
def test_its_own_environment_is_read_with_the_names_of_its_time(here, run, command):
    """A run of a user's file: a shipped environment's, from before."""
    (run / "source").mkdir()
    shutil.copy(FIXTURES / "cartpole_before_house.py", run / "source" / "cart.py")
    path = run / "config.toml"
    path.write_text(path.read_text().replace('name = "cartpole"', 'name = "source/cart.py"'))
    before = content(run)
    assert here(*READERS[command][0][:1], run, "--episodes", "1").code == 2, "a stranger's code"
    done = here(*(word.format(run=run) for word in READERS[command][0]), "--trust")
    assert done.code == 0 and READERS[command][1] in done.out, done.err
    assert content(run) == before
