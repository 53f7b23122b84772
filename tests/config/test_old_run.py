"""A run folder made before the modules and keys had their present names opens in every command that reads one, and is
not touched by them.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import go_on

import operant
from operant import cli, runs
from operant.config.load import load, to_toml
from operant.errors import ConfigError
from operant.runs.checkpoints import Store
from operant.runs.checkpoints.tensors import pack
from operant.training.build import make_actor

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
def test_old_run_opens_read_only(here, run, name):
    words, said = READERS[name]
    before = content(run)
    done = here(*(word.format(run=run) for word in words))
    assert done.code == 0 and said in done.out, done.err
    assert content(run) == before


@pytest.mark.slow
def test_old_run_resumes_or_is_refused_with_a_reason(here, run):
    before = content(run)
    done = here("resume", run, "run.steps=100k", "run.target=501", "eval.every=0", "env.num_envs=256")
    if done.code:
        assert len(done.err.strip().splitlines()) == 1 and content(run) == before
    else:
        assert json.loads(here("show", run, "--json").out)["step"] == 102_400


@pytest.mark.slow
@pytest.mark.parametrize("command", ["eval", "render"])
def test_environment_file_of_an_old_run_loads_with_renamed_symbols(here, run, command):
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


# FORMATS


FRAMES = "frame_skip = 1\nframe_stack = 1\n"
TINY = [
    "env.name=ale:pong",
    "env.lanes=2",
    "env.threads=0",
    "env.resize=36",
    "env.time_limit=3",
    "algo.horizon=2",
    "algo.minibatches=1",
    "algo.epochs=1",
    "net.kind=cnn",
    "net.cnn=minatar",
    "net.hidden=[4]",
    "run.device=cpu",
    "run.threads=1",
    "run.steps=4",
    "eval.every=0",
    "run.name=old",
]


def as_of_format_1(written: str) -> str:
    """A configuration as it was recorded before it had a number."""
    unset = "# frame_skip is not set\n# frame_stack is not set\n"
    assert written.startswith("format = 3\n") and unset in written
    return written.removeprefix("format = 3\n").replace(unset, FRAMES)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with runs of its own."""
    pytest.importorskip("ale_py")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_old_atari_run_opens_with_four_frames(here, place):
    """A run of the time when 1, the default, meant 4: its policy sees four frames."""
    config = load(None, TINY)
    tensors = {f"policy/{name}": tensor for name, tensor in make_actor(config, torch.device("cpu")).tensors().items()}
    text = as_of_format_1(to_toml(config))
    run = runs.create(place / "runs", "old", "x", {})
    run.config_path.write_text(text)
    Store(run.checkpoints_path, run_uuid=run.uuid.hex(), report=pytest.fail).save_files(
        4, pack(tensors), b'{"tier": "policy"}', text.encode(), session=1
    )
    assert here("eval", "old", "--episodes", "1", "--greedy").code == 0
    assert load(run.config_path).environment.observation.shape == (36, 36, 4)
    assert operant.list_runs("old")[0].config["env"].keys().isdisjoint({"frame_skip", "frame_stack"})

    sweep = place / "sweep.toml"
    shutil.copy(run.config_path, sweep)
    assert load(sweep).environment.observation.shape == (36, 36, 1), "a file of a person's own is read as it is"
    (place / "journal.log").touch()
    assert load(sweep).environment.observation.shape == (36, 36, 4), "that of a sweep is not"


@pytest.mark.soak
def test_old_atari_run_resumes_with_four_frames(here, place):
    assert here("train", "--inline", *TINY).code == 0
    run = runs.load(place / "runs" / "old")
    store = Store(run.checkpoints_path, run_uuid=run.uuid.hex(), report=pytest.fail)
    manifest, files = store.load_files()
    text = as_of_format_1(files["config.toml"].decode())
    run.config_path.write_text(text)
    store.save_files(
        manifest.step, files["tensors.safetensors"], files["state.json"], text.encode(), session=manifest.session
    )
    go_on(run, "run.steps=8")
    newest = max(run.checkpoints_path.glob("step-*"))
    assert newest.name == "step-000000000008" and (newest / "config.toml").read_text().startswith("format = 3\n")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("4", r"config.toml:1: a later version of Operant wrote this: its format is 4"),
        ("true", "a whole number of 1 to 3"),
    ],
)
def test_unknown_format_number_is_a_config_error(tmp_path, number, said):
    (tmp_path / "config.toml").write_text(f"format = {number}\n[run]\nseed = 3\n")
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / "config.toml")


def test_recorded_configuration_with_removed_keys_opens_and_warns(tmp_path, caplog):
    text = to_toml(load(None, ["algo.name=dqn"])).replace("format = 3\n", "format = 2\n")
    old = 'exploration = "ladder"\nladder_base = 0.4\nladder_exponent = 7.0\nage_power = 2\nreplay_sampling = "age"\n'
    text = text.replace('replay_sampling = "uniform"\n', old)
    (tmp_path / "config.toml").write_text(text)
    algo = load(tmp_path / "config.toml").algo
    assert algo.replay_sampling == "uniform" and not hasattr(algo, "exploration")
    assert 'algo.exploration = "ladder"' in caplog.text and 'algo.replay_sampling = "age"' in caplog.text
