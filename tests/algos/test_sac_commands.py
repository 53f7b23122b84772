"""SAC through the commands: a run trains, resumes to the bit with its replay, evaluates, renders and shows in the
monitor.
"""

from __future__ import annotations

import contextlib
import json

import pytest
from processes import go_to, tensors, trained_here

from monitor.data.feed import LiveFeed
from operant import runs

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = (
    "pendulum",
    "algo.name=sac",
    "env.lanes=8",
    "run.device=cpu",
    "run.threads=1",
    "algo.horizon=16",
    "algo.batch_size=32",
    "algo.learning_starts=256",
    "algo.replay_capacity=2000",
    "algo.n_step=2",
    "algo.normalize_observations=true",
    "eval.every=20",
    "eval.episodes=8",
    "checkpoint.every=30",
    "net.hidden=[16]",
)
STEPS = 60 * 8 * 16


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Directory of a finished run."""
    place = tmp_path_factory.mktemp("sac")
    trained_here(place, *SMALL, f"run.steps={STEPS}", name="whole")
    return place


@pytest.mark.slow
def test_train_resumes_bit_for_bit_with_the_replay(trained, here, monkeypatch):
    halves = trained_here(trained, *SMALL, f"run.steps={STEPS // 2}", name="halves")
    go_to(trained, monkeypatch)
    resumed = here("resume", "halves", f"run.steps={STEPS}")
    assert resumed.code == 0, resumed.err
    assert tensors(halves) == tensors(trained / "runs" / "whole")


@pytest.mark.slow
def test_commands_evaluate_render_and_show_the_run(trained, here, monkeypatch):
    go_to(trained, monkeypatch)
    played = here("eval", "whole", "--episodes", 8, "--json")
    assert played.code == 0 and -2000.0 < json.loads(played.out)["sampled"]["mean"] < 0.0, played.err
    filmed = here("render", "whole", "--out", "film.png", "--episodes", 1)
    assert filmed.code == 0 and (trained / "film.png").read_bytes().startswith(b"\x89PNG"), filmed.err
    with contextlib.closing(LiveFeed(runs.load(trained / "runs" / "whole"))) as feed:
        snapshot = feed.snapshot()
    assert {
        "q_mean",
        "td_error",
        "temperature",
        "entropy",
        "replay_fill",
        "updates_per_second",
    } <= snapshot.series.keys()
    assert {"Q", "temperature", "updates/s"} <= {figure.label for figure in snapshot.figures}
    assert any("temperature" in line.title for line in snapshot.health), snapshot.health


def test_unsupported_actions_name_the_algorithms_to_use(here):
    done = here("train", "--inline", "cartpole", "algo.name=td3", "run.device=cpu")
    assert done.code == 2 and 'use algo.name = "sac", "dqn", "pqn" or "ppo"' in done.err
