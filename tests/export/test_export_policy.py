"""Exported policies choose the policy's actions, in every format, for every network and kind of action. A wrong file is
never written.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open

from operant.config import load as configuration
from operant.config import recipes
from operant.errors import MachineError, OperantError
from operant.export import policy, program
from operant.training.build import make_actor

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread", "serial_worlds")


def exported(tmp_path, recipe, target, *words, steps=10, seed=1, scale=0.3):
    """Export an untrained policy of a recipe, with perturbed parameters, so that its actions differ."""
    source, words = (recipes.find_source(recipe), words) if "/" in recipe else (None, (f"env.name={recipe}", *words))
    config = configuration.load(source, [f"run.seed={seed}", *words])
    actor = make_actor(config, CPU)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        actor.tensors()["parameters"].add_(
            scale * torch.randn(actor.tensors()["parameters"].shape, generator=generator)
        )
    file, about = tmp_path / f"policy{policy.ENDINGS[target]}", {"run": "small", "step": "7"}
    made = policy.write(actor, config.params, file, target, steps=steps, about=about)
    return actor, made


def inputs(actor, batch):
    """Random observations (B, O), and legal actions."""
    generator = np.random.default_rng(3)
    seen = actor.env.observation
    most = [max(k, 2) for k in seen.category_counts()]
    if seen.dtype == "uint8":
        given = [generator.integers(0, most, size=(batch, seen.size)).astype(np.uint8)]
    else:
        given = [generator.normal(size=(batch, seen.size)).astype(np.float32)]
    if actor.env.mask_size:
        legal = generator.integers(0, 2, size=(batch, actor.env.mask_size)).astype(np.uint8)
        legal[:, 0] = 1
        given.append(legal)
    return given


def chosen(actor, given):
    observation, *legal = (torch.from_numpy(array).t() for array in given)
    return actor.act(observation, actor.initial_state(len(given[0])), None, *legal)[0].t().numpy()


KINDS = [
    ("ppo/cartpole", "numpy", ()),
    pytest.param(
        "cartpole",
        "safetensors",
        ("net.layer_norm=true", "net.activation=gelu", "algo.normalize_observations=true"),
        marks=pytest.mark.soak,
    ),
    pytest.param("ppo/swingup", "numpy", (), marks=pytest.mark.soak),  # several layers, a Box clipped to its bounds
    ("cartpole_continuous", "pt2", ("net.squash=true",)),
    ("td3/pendulum", "numpy", ()),
    ("dqn/snake", "numpy", ()),  # duelling, bytes one-hot
]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "target", "words"), KINDS)
def test_a_file_gives_the_policys_actions_for_any_batch_size(tmp_path, recipe, target, words):
    actor, made = exported(tmp_path, recipe, target, *words)
    assert (made.checked, made.difference <= 1e-5) == (50, True)
    for batch in (1, 7, 1000):
        given = inputs(actor, batch)
        if target == "pt2":
            found = torch.export.load(made.path).module()(*map(torch.from_numpy, given))[0].detach().numpy()
        else:
            found = program.load(made.path)(*given)
        expected = chosen(actor, given)
        assert found.shape == expected.shape == (batch, actor.env.action_size)
        assert np.abs(found - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())
    assert len(np.unique(expected)) > 1, "the test needs a policy with different actions"


@pytest.mark.parametrize("target", ["pt2", "safetensors", "numpy"])
def test_a_file_in_a_missing_folder_is_refused_in_a_sentence(tmp_path, target):
    with pytest.raises(MachineError, match=r"cannot be written \(No such file or directory\): choose another path"):
        exported(tmp_path / "missing", "ppo/cartpole", target)


def test_onnx_gives_the_policys_actions_holds_its_origin_and_is_readable_like_any_new_file(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    actor, made = exported(tmp_path, "sac/pendulum", "onnx")
    session = onnxruntime.InferenceSession(made.path)
    assert [entry.name for entry in session.get_inputs()] == ["observation"] and [
        entry.name for entry in session.get_outputs()
    ] == ["action"]
    for batch in (1, 1000):
        given = inputs(actor, batch)
        (found,) = session.run(None, {"observation": given[0]})
        assert np.abs(found - chosen(actor, given)).max() <= 1e-5
    metadata = session.get_modelmeta().custom_metadata_map
    assert (metadata["run"], metadata["step"]) == ("small", "7")
    (tmp_path / "new").touch()
    assert made.path.stat().st_mode == (tmp_path / "new").stat().st_mode


@pytest.mark.slow
def test_the_recurrent_state_is_carried_from_step_to_step(tmp_path):
    """Outputs and states equal the policy's over 200 steps, from the initial state on."""
    actor, made = exported(tmp_path, "cartpole", "numpy", "net.memory=gru", "net.hidden=[8]", steps=10)
    assert (made.inputs, made.outputs) == (("observation", "state_0"), ("action", "next_state_0"))
    exported_policy, generator = program.load(made.path), np.random.default_rng(1)
    own, state, seen = exported_policy.initial_state(3), actor.initial_state(3), set()
    assert all((mine == part.movedim(-1, 0).numpy()).all() for mine, part in zip(own, state, strict=True))
    for _ in range(200):
        observation = generator.normal(size=(3, 4)).astype(np.float32)
        action, *own = exported_policy(observation, *own)
        expected, state = actor.act(torch.from_numpy(observation).t(), state)
        assert (action == expected.t().numpy()).all()
        assert all(
            np.abs(mine - part.movedim(-1, 0).numpy()).max() <= 1e-5 for mine, part in zip(own, state, strict=True)
        )
        seen.update(action[:, 0].tolist())
    assert seen == {0, 1}


SMALL_PERTURBATION = ("ppo/repeat_previous_medium", "ppo/pacman_memory", "ppo/g2048_memory")
"""Recipes whose recurrence is chaotic, or whose rounding errors grow, with large weights."""


@pytest.mark.soak
@pytest.mark.parametrize("target", ["onnx", "numpy"])
@pytest.mark.parametrize(
    "recipe", [name for name in recipes.shipped() if "gymnasium" not in name and "ale" not in name.split("/")[1]]
)
def test_every_recipes_policy_is_exported(tmp_path, recipe, target):
    if target == "numpy" and configuration.load(recipes.find_source(recipe), []).net.kind == "cnn":
        pytest.skip("the NumPy export supports dense networks only")
    scale = 0.02 if recipe in SMALL_PERTURBATION else 0.3
    _, made = exported(tmp_path, recipe, target, steps=200 if "pixels" not in recipe else 20, scale=scale)
    assert made.difference <= 1e-5 or (made.difference < 1e-3 and made.file_rounding <= 2 * made.actor_rounding)


@pytest.mark.soak
@pytest.mark.parametrize("target", list(policy.ENDINGS))
@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("snake", ("net.kind=cnn", "net.cnn=board", "net.layer_norm=true")),
        ("snake", ("net.kind=cnn", "net.cnn=impala")),
        ("ppo/platformer_pixels", ("env.pixels=36",)),
        ("dqn/cartpole", ("algo.critic=c51",)),
        ("cartpole", ("net.memory=gru",)),
        ("cartpole", ("net.memory=lstm", "net.memory_layers=2")),
        ("cartpole", ("net.memory=mingru",)),
        ("ppo/g2048", ()),
        ("ppo/go", ()),
        ("ppo/pacman", ()),
    ],
)
def test_every_kind_of_network_in_every_format(tmp_path, recipe, words, target):
    if target in ("numpy", "safetensors") and ("net.kind=cnn" in words or recipe == "ppo/platformer_pixels"):
        pytest.skip("the NumPy export supports dense networks only")
    _, made = exported(tmp_path, recipe, target, *words)
    assert made.difference <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_convolutional_network_is_exported_to_pt2_for_any_batch_size(tmp_path, algorithm):
    words = ("net.kind=cnn", "net.cnn=board", "net.channels=[4, 4]", "net.hidden=[8]", f"algo.name={algorithm}")
    actor, made = exported(tmp_path, "snake", "pt2", *words, steps=2)
    given = inputs(actor, 300)  # more than a chunk of training's
    action = torch.export.load(made.path).module()(*map(torch.from_numpy, given))[0].detach().numpy()
    assert (action == chosen(actor, given)).all()


@pytest.mark.parametrize("target", ["numpy", pytest.param("safetensors", marks=pytest.mark.slow)])
def test_the_numpy_export_of_a_convolutional_network_is_refused_with_what_to_do(tmp_path, target):
    words = ("net.kind=cnn", "net.cnn=board", "net.channels=[4, 4]", "net.hidden=[8]")
    sentence = (
        r"the NumPy export supports dense networks and their memories; this policy has a convolution \(net.kind = "
        r"\"cnn\"\): export ONNX instead, with --to onnx"
    )
    with pytest.raises(OperantError, match=sentence):
        exported(tmp_path, "snake", target, *words, steps=2)
    assert not list(tmp_path.iterdir())


def test_a_file_with_operations_that_are_no_longer_supported_is_refused_with_what_to_do(tmp_path):
    steps = {"inputs": ["observation"], "outputs": ["x"], "state": [], "nodes": [{"name": "x", "op": "max_pool2d"}]}
    np.savez(tmp_path / "old.npz", program=np.array(json.dumps(steps)))
    with pytest.raises(ValueError, match=r"computes max_pool2d, which program.py no longer supports: use the program"):
        program.load(tmp_path / "old.npz")


@pytest.mark.slow
def test_illegal_actions_are_never_chosen(tmp_path):
    actor, made = exported(tmp_path, "g2048", "safetensors", "net.hidden=[16]", steps=2)
    given = inputs(actor, 300)
    action = program.load(made.path)(*given)
    assert (action == chosen(actor, given)).all() and np.take_along_axis(given[1], action, axis=1).all()
    assert program.load(made.path).inputs == ["observation", "legal"]


@pytest.mark.slow
def test_a_file_with_other_actions_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setitem(program.OPERATIONS, "tanh.default", lambda x: np.tanh(x) * 0.99)
    (tmp_path / "policy.npz").write_text("before")
    with pytest.raises(OperantError, match=r"differs from the run's by 0\.\d+ .*no file was written"):
        exported(tmp_path, "td3/pendulum", "numpy")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("policy.npz", "before")]
    monkeypatch.delitem(program.OPERATIONS, "tanh.default")
    with pytest.raises(OperantError, match=r"this policy computes tanh\.default: export ONNX instead, with --to onnx"):
        exported(tmp_path, "td3/pendulum", "numpy")


@pytest.mark.slow
def test_the_command_writes_a_runs_policy_and_a_program_that_uses_it(here, tmp_path):
    trained = here(
        "train",
        "--inline",
        "--name",
        "small",
        "env.lanes=8",
        "run.steps=1024",
        "algo.horizon=16",
        "algo.minibatches=1",
        "net.hidden=[8]",
    )
    assert trained.code == 0, trained.err
    done = here("export", "policy", "small", "--to", "numpy")
    assert done.code == 0 and done.out.startswith("small.npz  "), done.err
    assert "checked on 1,000 observations: largest difference " in done.out
    snippet = done.out[done.out.index("import numpy") :]
    shown = subprocess.run(
        [sys.executable, "-c", snippet + "\nprint(action.shape)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout == "(1, 1)\n", shown.stderr
    again = here("export", "policy", "small", "--to", "numpy")
    assert again.code == 2 and "small.npz already exists: choose another --out, or give --force" in again.err
    told = here("export", "policy", "small", "--to", "safetensors", "--out", "a.safetensors", "--json")
    assert (
        json.loads(told.out)["inputs"] == ["observation"]
        and (tmp_path / "a.safetensors").stat().st_size == json.loads(told.out)["bytes"]
    )
    with safe_open(tmp_path / "a.safetensors", framework="np") as file:
        about = file.metadata()
    step = str(json.loads(told.out)["step"])
    assert (about["run"], about["step"], about["environment"]) == ("small", step, "cartpole") and about["operant"]
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "small.npz").stat().st_mode
    assert here("export", "policy", "small", "--to", "tflite").code == 2
    assert here("export", "policy", "small", "--to", "onnx", "--out", "a.npz").code == 2
    assert here("export", "policy", "none-such").code == 3


@pytest.mark.soak
@pytest.mark.parametrize("target", ["onnx", "numpy", "pt2"])
def test_a_wide_network_with_large_weights_is_compared_with_float64(tmp_path, target, monkeypatch):
    """Sums in different orders differ by more than the tolerance: the file is as close to float64 as the policy, or the
    export fails.
    """
    _, made = exported(tmp_path, "td3/swingup", target, steps=200)
    assert made.difference > 1e-5 and made.file_rounding <= 2 * made.actor_rounding < 1e-4
    monkeypatch.setattr(policy, "ROUNDING", 0.1)
    with pytest.raises(
        OperantError,
        match=r"by 1\.\d+e-05 \(more than 1e-05; it is within .* of the same in float64, the run's own within .*\)",
    ):
        exported(tmp_path, "td3/swingup", target, steps=200)
