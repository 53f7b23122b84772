"""Q-learning through the commands: a run is trained, resumed to the bit, evaluated, rendered, profiled and shown in the monitor."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import operant
from monitor.data.feed import LiveFeed
from operant import runs

SMALL = {
    "pqn": ("env.lanes=64", "algo.horizon=8", "algo.minibatches=2", "net.layer_norm=true", "algo.anneal=false"),
    "dqn": ("env.lanes=64", "algo.horizon=8", "algo.batch_size=64", "algo.learning_starts=2000", "algo.replay_capacity=16k"),
}
ITERATION = 64 * 8  # steps
COMMON = ("run.threads=1", "run.device=cpu", "eval.every=15", "eval.episodes=8", "checkpoint.every=20", "algo.epsilon_steps=4000")
STEPS = ITERATION * 40


def operant_process(place: Path, *words: object) -> subprocess.CompletedProcess:
    """`operant WORDS` in a process of its own, in the folder `place`."""
    variables = {name: value for name, value in os.environ.items() if name not in ("OPERANT_RUNS", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")}
    variables |= {"XDG_STATE_HOME": str(place / "state"), "PYTHONPATH": str(Path(operant.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "operant.cli", *map(str, words)]
    done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=180, check=False)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


@pytest.fixture(scope="module", params=["dqn", pytest.param("pqn", marks=pytest.mark.soak)])
def trained(request, tmp_path_factory) -> SimpleNamespace:
    """A run of CartPole by an algorithm."""
    place = tmp_path_factory.mktemp(request.param)
    words = ("cartpole", f"algo.name={request.param}", *SMALL[request.param], *COMMON)
    done = operant_process(place, "train", *words, f"run.steps={STEPS}", "--name", "whole")
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(place=place, words=words, path=place / "runs" / "whole", name=request.param)


def tensors(run: Path) -> bytes:
    """Of the last checkpoint."""
    return (sorted((run / "checkpoints").glob("step-*"))[-1] / "tensors.safetensors").read_bytes()


def test_it_resumes_to_the_bit(trained):
    done = operant_process(trained.place, "train", *trained.words, f"run.steps={STEPS // 2}", "--name", "halves")
    assert done.returncode == 0, done.stderr
    resumed = operant_process(trained.place, "resume", "halves", f"run.steps={STEPS}")
    assert resumed.returncode == 0, resumed.stderr
    assert tensors(trained.place / "runs" / "halves") == tensors(trained.path)


def test_it_evaluates_and_renders_or_profiles(trained):
    """A film of the one, a profile of the other: each is some seconds of compilation."""
    played = operant_process(trained.place, "eval", "whole", "--episodes", 16, "--json", "--sampled")
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["sampled"]["mean"] > 8.0
    if trained.name == "pqn":
        filmed = operant_process(trained.place, "render", "whole", "--out", "film.png", "--episodes", 1)
        assert filmed.returncode == 0 and (trained.place / "film.png").read_bytes().startswith(b"\x89PNG"), filmed.stderr
        return
    profiled = operant_process(trained.place, "profile", *trained.words, "--updates", 1, "--json")
    assert profiled.returncode == 0, profiled.stderr
    found = json.loads(profiled.stdout)
    assert found["algorithm"] == trained.name and {"environment", "network"} <= {phase["name"] for phase in found["phases"]}


def test_the_monitor_shows_q_values(trained):
    with contextlib.closing(LiveFeed(runs.load(trained.path))) as feed:
        snapshot = feed.snapshot()
    assert {"q_mean", "td_error", "loss/q", "epsilon"} <= snapshot.series.keys()
    assert {"q_mean", "td_error", "epsilon"} <= {figure.metric for figure in snapshot.figures}


def test_other_actions_are_refused_in_a_sentence(trained):
    done = operant_process(trained.place, "train", "pendulum", f"algo.name={trained.name}", "run.device=cpu")
    assert done.returncode == 2 and "Discrete" in done.stdout + done.stderr, done.stderr
