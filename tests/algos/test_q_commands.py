"""Q-learning through the commands: a run is trained, resumed to the bit, evaluated, rendered, profiled and shown in the
monitor.
"""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest
from processes import go_to, tensors, trained_here

from monitor.data.feed import LiveFeed
from operant import runs

SMALL = {
    "pqn": ("env.lanes=64", "algo.horizon=8", "algo.minibatches=2", "net.layer_norm=true", "algo.anneal=false"),
    "dqn": (
        "env.lanes=64",
        "algo.horizon=8",
        "algo.batch_size=64",
        "algo.learning_starts=2000",
        "algo.replay_capacity=16k",
    ),
}
pytestmark = pytest.mark.usefixtures("one_thread")

ITERATION = 64 * 8  # steps
COMMON = (
    "run.threads=1",
    "run.device=cpu",
    "eval.every=15",
    "eval.episodes=8",
    "checkpoint.every=20",
    "algo.epsilon_steps=4000",
)
STEPS = ITERATION * 40


@pytest.fixture(scope="module", params=["dqn", pytest.param("pqn", marks=pytest.mark.soak)])
def trained(request, tmp_path_factory) -> SimpleNamespace:
    """A run of CartPole by an algorithm."""
    place = tmp_path_factory.mktemp(request.param)
    words = ("cartpole", f"algo.name={request.param}", *SMALL[request.param], *COMMON)
    path = trained_here(place, *words, f"run.steps={STEPS}", name="whole")
    return SimpleNamespace(place=place, words=words, path=path, name=request.param)


@pytest.mark.slow
def test_it_resumes_to_the_bit(trained, here, monkeypatch):
    halves = trained_here(trained.place, *trained.words, f"run.steps={STEPS // 2}", name="halves")
    go_to(trained.place, monkeypatch)
    resumed = here("resume", "halves", f"run.steps={STEPS}")
    assert resumed.code == 0, resumed.err
    assert tensors(halves) == tensors(trained.path)


@pytest.mark.slow
def test_it_evaluates_and_renders_or_profiles(trained, here, monkeypatch):
    """A film of the one, a profile of the other: each is some seconds of compilation."""
    go_to(trained.place, monkeypatch)
    played = here("eval", "whole", "--episodes", 16, "--json", "--sampled")
    assert played.code == 0, played.err
    assert json.loads(played.out)["sampled"]["mean"] > 8.0
    if trained.name == "pqn":
        filmed = here("render", "whole", "--out", "film.png", "--episodes", 1)
        assert filmed.code == 0 and (trained.place / "film.png").read_bytes().startswith(b"\x89PNG"), filmed.err
        return
    profiled = here("profile", *trained.words, "--updates", 1, "--json")
    assert profiled.code == 0, profiled.err
    found = json.loads(profiled.out)
    assert found["algorithm"] == trained.name and {"environment", "network"} <= {
        phase["name"] for phase in found["phases"]
    }


def test_the_monitor_shows_q_values(trained):
    with contextlib.closing(LiveFeed(runs.load(trained.path))) as feed:
        snapshot = feed.snapshot()
    assert {"q_mean", "td_error", "loss/q", "epsilon"} <= snapshot.series.keys()
    assert {"q_mean", "td_error", "epsilon"} <= {figure.metric for figure in snapshot.figures}


def test_other_actions_are_refused_in_a_sentence(trained, here):
    done = here("train", "--inline", "pendulum", f"algo.name={trained.name}", "run.device=cpu")
    assert done.code == 2 and "Discrete" in done.out + done.err, done.err
