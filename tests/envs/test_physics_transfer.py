"""A policy trained on a robot's model: it acts in Gymnasium's own environment, and its run opens without `mujoco`."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import operant
from operant import runs

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Finished run of inverted_pendulum: 320 k steps, after which a pole is balanced for whole episodes."""
    return operant.train(
        "inverted_pendulum",
        "run.steps=320k",
        "env.lanes=128",
        "algo.horizon=32",
        "algo.learning_rate=1e-3",
        "algo.normalize_observations=true",
        "eval.every=0",
        root=str(tmp_path_factory.mktemp("runs")),
    )


def _returns(policy, episodes):
    """Returns of greedy episodes in Gymnasium's own environment of a policy from (O,) to (A,)."""
    env, found = gymnasium.make("InvertedPendulum-v5"), []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            action = np.clip(policy(observation.astype(np.float32)), env.action_space.low, env.action_space.high)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        found.append(total)
    env.close()
    return found


def _exported(run, target, folder):
    """File of a run's last policy, as `operant export policy` writes it."""
    from operant.export import policy
    from operant.play import load_policy

    loaded = load_policy.load(str(run.path), runs.scope(), which="last", device="cpu", report=lambda line: None)
    path = folder / f"policy{policy.ENDINGS[target]}"
    policy.write(loaded.policy, loaded.config.params, path, target)
    return path


def _onnx(path):
    """Policy of an ONNX file, by onnxruntime."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    return lambda observation: session.run(None, {"observation": observation[None]})[0][0]


def _numpy(path):
    """Policy of a .npz file, by operant/export/program.py, which needs only numpy."""
    from operant.export import program

    policy = program.load(path)
    return lambda observation: policy(observation[None])[0]


def test_a_policy_acts_in_gymnasiums_environment_as_in_ours(run):
    policy = operant.load(run, "last", device="cpu")
    assert policy.env.gymnasium == "InvertedPendulum-v5"
    ours = run.evaluate(episodes=16, checkpoint="last", device="cpu").mean
    theirs = np.mean(_returns(policy, 8))
    assert ours >= 900 and theirs >= 900  # of 1,000; a random policy has 6


@pytest.mark.parametrize(("target", "opened"), [("onnx", _onnx), ("numpy", _numpy)])
def test_an_exported_policy_acts_in_gymnasiums_environment(run, target, opened, tmp_path):
    if target == "onnx":
        pytest.importorskip("onnxscript")
    exported = opened(_exported(run, target, tmp_path))
    assert _returns(exported, 4) == pytest.approx(_returns(operant.load(run, "last", device="cpu"), 4), rel=0.01)


def test_a_run_is_evaluated_where_mujoco_is_not_installed(run, monkeypatch):
    from operant.play import load_policy

    assert (run.path / "source" / "inverted_pendulum.model").is_file()
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in ("mujoco", "gymnasium") else real(name, *rest)
    )
    result = load_policy.evaluate_policy(
        str(run.path),
        runs.scope(),
        which="last",
        episodes=16,
        device="cpu",
        seed=5,
        greedy=True,
        sampled=False,
        report=lambda line: None,
    )
    assert result.greedy is not None and result.greedy.mean >= 900
