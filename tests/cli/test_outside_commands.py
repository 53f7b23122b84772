"""Outside environments through the commands: one that fails ends its run with a checkpoint and its traceback in the
log; a resume is warm and says so.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import go_to, operant_process

from monitor.data.feed import LiveFeed
from operant import runs

pytest.importorskip("gymnasium")

TOYS = Path(__file__).parents[1] / "outside_toys.py"
SMALL = (
    "env.lanes=4",
    "env.threads=1",
    "algo.horizon=16",
    "algo.minibatches=2",
    "eval.every=2",
    "eval.episodes=2",
    "run.threads=1",
    "run.device=cpu",
)


@pytest.fixture(scope="module")
def failed(tmp_path_factory) -> SimpleNamespace:
    """A run that an environment of the user's own ended: it fails at its 40th step in each process, until there is a
    file `mended`.
    """
    place = tmp_path_factory.mktemp("outside")
    (place / "mine.py").write_text(TOYS.read_text())
    done = operant_process(place, "train", "--env", "mine.py:failing", *SMALL, "run.steps=320", "--name", "toy")
    return SimpleNamespace(place=place, done=done, run=place / "runs" / "toy")


@pytest.mark.slow
def test_a_failed_environment_ends_the_run_with_a_checkpoint(failed):
    log = (failed.run / "log.txt").read_text()
    assert failed.done.returncode == 1 and "mine.py:failing: `step` of lane 0, after action [" in failed.done.stderr, (
        failed.done.stderr
    )
    assert 'raise RuntimeError("out of order")' in log and "RuntimeError: out of order" in log
    (checkpoint,) = (failed.run / "checkpoints").glob("step-*")
    assert checkpoint.name.endswith("128")  # of the two iterations before
    assert (failed.run / "source" / "mine.py").is_file() and json.loads((failed.run / "run.json").read_text())[
        "resume"
    ].startswith("warm")


@pytest.mark.slow
def test_a_resume_is_warm_and_says_so(failed, here, monkeypatch):
    (failed.place / "mended").touch()
    go_to(failed.place, monkeypatch)
    resumed = here("resume", "toy")
    assert resumed.code == 0 and "warm resume: every lane begins a new episode" in resumed.out + resumed.err, (
        resumed.err
    )
    with contextlib.closing(LiveFeed(runs.load(failed.run))) as feed:
        assert {phase.name for phase in feed.snapshot().phases} >= {"act", "environment", "copy", "update"}
    shown = here("show", "toy", "--json")
    assert json.loads(shown.out)["resume"].startswith("warm") and json.loads(shown.out)["step"] == 320


@pytest.mark.soak
@pytest.mark.parametrize(
    ("algo", "name"), [("dqn", "CartPole-v1"), ("pqn", "FrozenLake-v1"), ("sac", "Pendulum-v1"), ("td3", "Pendulum-v1")]
)
def test_every_algorithm_trains_and_resumes(algo, name, tmp_path):
    words = ("env.lanes=8", "algo.horizon=16", "eval.every=4", "eval.episodes=2", "run.threads=1")
    words += (
        ("algo.minibatches=2",)
        if algo == "pqn"
        else ("algo.batch_size=32", "algo.learning_starts=256", "algo.replay_capacity=4k")
    )
    done = operant_process(
        tmp_path, "train", "--env", f"gymnasium:{name}", f"algo.name={algo}", *words, "run.steps=1024", "--name", "one"
    )
    assert done.returncode == 0, done.stderr
    resumed = operant_process(tmp_path, "resume", "one", "run.steps=2048")
    assert resumed.returncode == 0 and "warm resume" in resumed.stdout + resumed.stderr, resumed.stderr


@pytest.mark.soak
def test_two_ranks_train_to_the_bytes_of_one(tmp_path):
    words = (
        "env.lanes=64",
        "env.threads=1",
        "algo.horizon=32",
        "algo.minibatches=1",
        "algo.chunks=8",
        "eval.every=2",
        "eval.episodes=2",
        "run.threads=1",
    )
    found = []
    for name, ranks in (("one", 1), ("two", 2)):
        done = operant_process(
            tmp_path,
            "train",
            "--env",
            "gymnasium:CartPole-v1",
            *words,
            "run.steps=8192",
            "run.device=cpu",
            f"run.ranks={ranks}",
            "--name",
            name,
        )
        assert done.returncode == 0, done.stderr
        (tensors,) = (tmp_path / "runs" / name / "checkpoints").glob("*8192/tensors.safetensors")
        found.append(tensors.read_bytes())
    assert found[0] == found[1]


@pytest.mark.soak
def test_a_run_is_evaluated_and_filmed(tmp_path):
    pytest.importorskip("pygame")
    done = operant_process(
        tmp_path, "train", "--env", "gymnasium:CartPole-v1", *SMALL, "run.steps=256", "--name", "one"
    )
    assert done.returncode == 0, done.stderr
    evaluated = operant_process(tmp_path, "eval", "one", "--episodes", 4, "--json")
    again = operant_process(tmp_path, "eval", "one", "--episodes", 4, "--json")
    assert evaluated.stdout == again.stdout and json.loads(evaluated.stdout)["mean"] > 5
    filmed = operant_process(tmp_path, "render", "one", "--out", "film.png", "--episodes", 1)
    assert filmed.returncode == 0 and (tmp_path / "film.png").read_bytes().startswith(b"\x89PNG"), filmed.stderr


WITHOUT_SPACES = """
import gymnasium

class MyEnv(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)

class NoAction(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--env", "gymnasium:NoSuchThing-v0"), "env.name: Gymnasium has no environment 'NoSuchThing-v0'"),
        (("--env", "mine.py:nothing"), "there is no file 'mine.py'"),
        (
            ("cartpole", "env.frame_stack=2"),
            "env.frame_stack is supported only for outside environments, such as gymnasium:LunarLander-v3",
        ),
        (
            ("--env", "gymnasium:CartPole-v1", "env.resize=16"),
            "env.resize needs picture observations (got 4 values of float32)",
        ),
        (("LunarLander-v3",), "unknown environment 'LunarLander-v3' - did you mean 'gymnasium:LunarLander-v3'?"),
        (("LunarLander",), "unknown environment 'LunarLander' - did you mean 'gymnasium:LunarLander-v3'?"),
        (("Cartpole-v9",), "unknown environment 'Cartpole-v9' - did you mean 'cartpole'?"),
        (("BipedalWalker-v3",), "did you mean 'gymnasium:BipedalWalker-v3'?"),
        (("Unknown-v4",), "unknown environment 'Unknown-v4' - did you mean 'gymnasium:Unknown-v4'?"),
        (("ALE/Pong-v5",), "unknown environment 'ALE/Pong-v5' - did you mean 'ale:Pong'?"),
        (("--env", "e1.py"), "exports no ENV, but a gymnasium.Env: give its class too: e1.py:MyEnv or e1.py:NoAction"),
        (("e1.py",), "exports no ENV, but a gymnasium.Env: give its class too: e1.py:MyEnv or e1.py:NoAction"),
        (("--env", "e1.py:MyEnv"), "its observation_space is missing: set self.observation_space = gymnasium.spaces"),
        (("--env", "e1.py:NoAction"), "its action_space is missing: set self.action_space = gymnasium.spaces"),
        (
            ("--env", "gymnasium:mygym:Point-v0"),
            "gymnasium:mygym:Point-v0 imports the module 'mygym', which is not installed. mygym.py lies in this "
            "folder, from which nothing is imported: set PYTHONPATH=$PWD, or name a function of it that makes the "
            "environment, mygym.py:FUNCTION\n",
        ),
        (("--env", "gymnasium:absent:X-v0"), "imports the module 'absent', which is not installed\n"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    from operant import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "e1.py").write_text(WITHOUT_SPACES)
    (tmp_path / "mygym.py").write_text("raise AssertionError('imported from the current folder')\n")
    monkeypatch.setattr(sys, "argv", ["operant", "config", "show", *words])
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(sys.stderr):
        cli.main()
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


def test_without_gymnasium_the_command_that_installs_it_is_said(monkeypatch, capsys):
    from operant import cli

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setattr(sys, "argv", ["operant", "config", "show", "--env", "gymnasium:Missing-v1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 4 and 'which is not installed: pip install "operant[gym]"' in capsys.readouterr().err
