"""An algorithm with its metrics, and a network, are one file each: a scratch A2C trains, resumes, evaluates, renders,
exports, profiles and shows in the monitor with no other edit, as a file that `algo.name` names and as one in
`operant/algos/`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import go_to, operant_process, tensors, trained_here
from toys import MY_NET

import operant
from monitor.data.feed import LiveFeed
from operant import algos, runs
from operant.config import request
from operant.export import program
from operant.export.policy import ENDINGS
from operant.training import worker

A2C = Path(__file__).with_name("a2c.py")
TEXT = A2C.read_text().replace("at_least=1e9", "at_least=1e-9")  # a threshold that every critic reaches
Q_LEARNING = Path(__file__).with_name("q_learning.py")
SMALL_Q = (
    "env.lanes=16",
    "algo.updates_per_step=1",
    "algo.batch_size=64",
    "algo.learning_rate=2e-3",
    "algo.epsilon_steps=4k",
    "algo.target_every=100",
    "net.hidden=[64]",
    "run.threads=1",
    "run.device=cpu",
    "eval.every=10",
    "eval.episodes=8",
    "run.target=none",
)
SMALL = ("algo.horizon=8", "run.threads=1", "run.device=cpu", "eval.every=15", "eval.episodes=8", "checkpoint.every=20")
STEPS = 64 * 8 * 100

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A run of the scratch algorithm, in a folder that holds its file and nothing else."""
    place = tmp_path_factory.mktemp("scratch")
    (place / "a2c.py").write_text(TEXT)
    words = ("cartpole", "algo.name=a2c.py:A2C", *SMALL)
    done = operant_process(place, "train", *words, "env.lanes=auto", f"run.steps={STEPS}", "--name", "scratch")
    return SimpleNamespace(place=place, words=words, done=done, path=place / "runs" / "scratch")


@pytest.fixture
def there(trained, here, monkeypatch):
    """`operant WORDS` in this process, in that folder."""
    go_to(trained.place, monkeypatch)
    return here


# A FILE OF ONE'S OWN


def test_it_trains_with_as_many_lanes_as_fit(trained):
    assert trained.done.returncode == 0, trained.done.stderr
    document = json.loads((trained.path / "run.json").read_text())
    assert (document["algo"], document["lanes"]) == ("a2c", 64) and document["sources"].keys() == {"source/a2c.py"}
    assert "env.lanes = auto: 64 lanes" in (trained.path / "log.txt").read_text()
    assert (trained.path / "source" / "a2c.py").read_text() == TEXT
    evaluations = [
        json.loads(line)["mean"] for line in (trained.path / "eval" / "evaluations.jsonl").read_text().splitlines()
    ]
    assert max(evaluations) > 40.0, "it learned nothing"


def test_it_resumes_to_the_bit(trained, there):
    halves = trained_here(trained.place, *trained.words, "env.lanes=64", f"run.steps={STEPS // 2}", name="halves")
    resumed = there("resume", "halves", f"run.steps={STEPS}")
    assert resumed.code == 0, resumed.err
    assert tensors(halves) == tensors(trained.path)


def test_checkpoints_say_what_they_hold_and_how_large_it_is(trained):
    """The best one holds what a resume needs, and no more."""
    found = {}
    for path in (trained.path / "checkpoints").glob("step-*"):
        document, manifest = (json.loads((path / name).read_text()) for name in ("state.json", "manifest.json"))
        found[document["tier"]] = manifest["best"]
        assert (
            0
            < document["tensor_bytes"]
            < manifest["files"]["tensors.safetensors"]["bytes"]
            < document["tensor_bytes"] + 4096
        )
    assert found.keys() <= {"train", "all"} and "all" in found


def test_it_evaluates_and_renders(trained, there):
    played = there("eval", "scratch", "--episodes", 16, "--json")
    assert played.code == 0 and json.loads(played.out)["greedy"]["mean"] > 20.0
    filmed = there("render", "scratch", "--out", "film.png", "--episodes", 1)
    assert filmed.code == 0 and (trained.place / "film.png").read_bytes().startswith(b"\x89PNG"), filmed.err


@pytest.mark.parametrize("target", ["numpy", "onnx"])
def test_it_exports_a_policy_that_acts_as_its_own(trained, there, target):
    path = trained.place / f"a2c{ENDINGS[target]}"
    done = there("export", "policy", "scratch", "--to", target, "--out", path, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["checked"] == 1000 and json.loads(done.out)["difference"] < 1e-5
    observations = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)
    own = operant.load(trained.path, device="cpu", trust=True)(observations)
    if target == "numpy":
        actions = program.load(path)(observations)
    else:
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        (actions,) = session.run(None, {"observation": observations})
    assert (np.ravel(actions) == np.ravel(own)).all() and set(np.ravel(actions)) == {0, 1}


def test_it_profiles(trained, there):
    done = there("profile", *trained.words, "env.lanes=64", "--updates", 1, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["algorithm"] == "a2c" and list(found["phase_s"]) == ["collect", "learn"] and found["horizon"] == 8
    assert {"environment", "network", "learn, the rest"} <= {phase["name"] for phase in found["phases"]} and found[
        "work"
    ]["flops"] > 0


def test_the_monitor_shows_its_own_losses(trained):
    with contextlib.closing(LiveFeed(runs.load(trained.path))) as feed:
        snapshot = feed.snapshot()
    assert {"loss/actor", "loss/critic", "entropy"} <= snapshot.series.keys()  # as charts
    assert ("loss/critic", "critic") in [(figure.metric, figure.label) for figure in snapshot.figures]
    assert any("lower algo.learning_rate" in f"{line.title} {line.advice}" for line in snapshot.health), snapshot.health
    assert {"collect", "learn"} <= {share.name for share in snapshot.phases}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("class A2C: pass", "has no algorithm 'A2C'"),
        ("import nothing_of_the_kind", "could not be imported"),
        (None, "there is no file"),
        ("from operant.algos.simple import OnPolicy\nclass A2C(OnPolicy): pass", "A2C has no method `learn`"),
        (
            "from operant.algos.simple import OnPolicy\nclass A2C(OnPolicy):\n    metrics, learn = 3, print",
            "`metrics` of A2C is 3; it must be a tuple",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text, sentence, there, trained):
    if text is not None:
        (trained.place / "odd.py").write_text(text)
    done = there("profile", "algo.name=odd.py:A2C" if text is not None else "algo.name=gone.py:A2C")
    assert done.code == 2 and sentence in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "self.step(torch.tensor(1.0))",
            "A2C.learn gives `step` a tensor of shape () without a gradient; it must be one",
        ),
        ("self.step(self.evaluate(self.batch())[0])", "A2C.learn gives `step` a tensor of shape (64,); it must be one"),
        ("self.record(1.0)", "A2C.learn gives `record` float; it must be a tensor for each of its 1 metrics"),
    ],
)
def test_a_loss_or_a_metric_that_is_none_is_refused(line, sentence, here, tmp_path):
    (tmp_path / "odd.py").write_text(
        "import torch\nfrom operant.algos import OnPolicy, metric\nclass A2C(OnPolicy):\n"
        f"    metrics = (metric('loss/actor', 'loss', order=5),)\n    def learn(self):\n        {line}\n"
    )
    done = here(
        "train", "--inline", "cartpole", "algo.name=odd.py:A2C", "env.lanes=16", "algo.horizon=4", "run.steps=64"
    )
    assert done.code == 2 and sentence in done.err


@pytest.mark.parametrize(
    ("base", "returned", "sentence"),
    [
        ("OnPolicy", "None", "Own.tensors returns NoneType; it must return a dictionary of tensors by name"),
        ("OnPolicy", "{'mean': 1.0}", "Own.tensors returns float as 'mean'; it must return tensors"),
        ("OffPolicy", "{}", "Own.tensors lacks the tensors of its base class: return `super().tensors() |"),
    ],
)
def test_unusable_state_of_its_own_is_refused_at_the_start(base, returned, sentence, here, tmp_path):
    (tmp_path / "own.py").write_text(
        f"from operant.algos import {base}\nclass Own({base}):\n"
        f"    def learn(self, *batch):\n        pass\n    def tensors(self):\n        return {returned}\n"
    )
    done = here("train", "--inline", "cartpole", "algo.name=own.py:Own", "env.lanes=16", "run.steps=1k")
    assert done.code == 2 and sentence in done.err and "Traceback" not in done.err


def test_an_algorithm_with_a_replay_is_one_file_too(tmp_path, here, monkeypatch):
    """It learns, and a resume ends in the bits of the whole run."""
    place = tmp_path
    go_to(place, monkeypatch)
    (place / "q_learning.py").write_text(Q_LEARNING.read_text())
    words = ("cartpole", "algo.name=q_learning.py:QLearning", *SMALL_Q)
    whole = trained_here(place, *words, "run.steps=24k", name="whole")
    trained_here(place, *words, "run.steps=12k", name="halves")
    resumed = here("resume", "halves", "run.steps=24k")
    assert resumed.code == 0, resumed.err
    assert tensors(place / "runs" / "halves") == tensors(whole)
    evaluations = [json.loads(line)["mean"] for line in (whole / "eval" / "evaluations.jsonl").read_text().splitlines()]
    assert max(evaluations) > 60.0, "it learned nothing"
    with contextlib.closing(LiveFeed(runs.load(whole))) as feed:
        assert {"loss/q", "q_mean", "epsilon", "replay_fill"} <= feed.snapshot().series.keys()
    done = here("profile", *words, "--updates", 1, "--json")
    assert done.code == 0 and "network" in {phase["name"] for phase in json.loads(done.out)["phases"]}, done.err
    wrong = here("profile", *words, "algo.replay_sampling=prioritised")
    assert wrong.code == 2 and "samples uniformly" in wrong.err


# IN THE PACKAGE, WITH A NETWORK OF ONE'S OWN


def test_a_file_in_the_folder_of_algorithms_is_one(tmp_path, monkeypatch):
    folder = tmp_path / "algos"
    folder.mkdir()
    (folder / "a2c.py").write_text(TEXT)
    (tmp_path / "net.py").write_text(MY_NET)
    monkeypatch.setattr(algos, "__path__", [*algos.__path__, str(folder)])
    assert "a2c" in algos.names()
    try:
        words = (
            "cartpole",
            "algo.name=a2c",
            "env.lanes=32",
            "run.steps=1024",
            f"net.kind={tmp_path / 'net.py'}:MyNet",
            *SMALL,
        )
        asked = request.make(words, config=None, environment_file=None, settings={})
        run = runs.create(tmp_path / "runs", "inside", asked.prefix, asked.document())
        worker.train(run.path, resume=None)
    finally:
        sys.modules.pop("operant.algos.a2c", None)
        vars(algos).pop("a2c", None)
    document = runs.read_json(run.path / "run.json")
    assert (document["algo"], asked.prefix) == ("a2c", "cartpole-a2c") and document["sources"].keys() == {
        "source/net.py"
    }
    assert torch.get_num_threads() == 1 and len(list((run.path / "checkpoints").glob("step-*"))) >= 1
