"""Smoke test of an installation, about 10 seconds: `pytest -m smoke`. It trains CartPole by the command line, reads the
run back, plays its policy and draws it in the monitor.
"""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

import operant

pytestmark = pytest.mark.smoke

WORDS = ("cartpole", "run.steps=16k", "env.lanes=64", "run.target=none", "eval.every=4", "eval.episodes=16")


def command(*words, folder):
    """Output of `operant WORDS --runs FOLDER`, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "operant.cli", *words, "--runs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with one trained run, named cartpole."""
    folder = tmp_path_factory.mktemp("smoke") / "runs"
    command("train", *WORDS, "--device", "cpu", "--name", "cartpole", folder=folder)
    return folder


def test_trained_run_is_finished_and_evaluated(folder):
    described = json.loads(command("show", "cartpole", "--json", folder=folder))
    assert described["state"] == "finished" and described["step"] >= 16_000
    assert math.isfinite(described["eval_return"])


def test_library_reads_metrics_and_acts(folder):
    (run,) = operant.list_runs(root=str(folder))
    metrics = run.metrics()
    assert metrics["step"][-1] >= 16_000 and np.isfinite(metrics["loss/policy"][-1])
    actions = operant.load(run, device="cpu")(np.zeros((3, 4), dtype=np.float32))
    assert actions.shape == (3, 1) and set(actions.flat) <= {0, 1}


def test_monitor_draws_the_run(folder):
    picture = command("monitor", "cartpole", "--once", folder=folder)
    assert "cartpole" in picture and "finished" in picture
