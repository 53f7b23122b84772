"""Pretrained policies: each loads and returns about what it says; none of their files is written to."""

import json

import numpy as np
import pytest

import operant
from operant import runs
from operant.config import load as config
from operant.config import recipes
from operant.errors import NotFoundError
from operant.play import load_policy
from operant.runs import zoo

MOST_BYTES = 3_000_000


def files():
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in zoo.FOLDER.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", zoo.names())
def test_a_policy_of_the_zoo_acts_and_says_how_it_was_trained(name):
    before, about = files(), zoo.about(name)
    policy = operant.load(f"zoo:{name}", device="cpu")
    assert (policy.env.name, policy.step) == (about["env"], about["step"]) and name == about["env"]
    observations = np.zeros((3, policy.env.observation.size), policy.env.observation.dtype)
    assert np.isfinite(np.asarray(policy(observations), np.float64)).all()
    assert about["recipe"] in recipes.shipped() and about["commit"] and about["command"].startswith("operant train")
    assert files() == before


@pytest.mark.slow
def test_a_policy_of_the_zoo_returns_in_other_episodes_what_its_document_says(tmp_path):
    scope, about = runs.scope(str(tmp_path)), zoo.about("cartpole")
    options = {"which": None, "device": "cpu", "seed": 5, "greedy": True, "sampled": False, "report": print}
    result = load_policy.evaluate_policy("zoo:cartpole", scope, episodes=200, **options)
    assert result.greedy.mean == pytest.approx(about["return"], abs=5)


def test_the_zoo_is_small_and_holds_weights_alone():
    assert sum(size for _, size in files().values()) < MOST_BYTES
    assert {path.suffix for path in files()} == {".json", ".toml", ".safetensors"}
    for name in zoo.names():
        config.load(zoo.FOLDER / name / "config.toml")  # names no code of a user: it would not be trusted


def test_a_mistyped_policy_is_answered_with_the_nearest_and_all_names(tmp_path):
    with pytest.raises(NotFoundError, match=r"no policy 'cartpol' - did you mean zoo:cartpole\? It has .*cartpole"):
        operant.load("zoo:cartpol")
    with pytest.raises(NotFoundError, match=r"no policy '\.\./zoo/cartpole'"):
        operant.load("zoo:../zoo/cartpole")
    with pytest.raises(NotFoundError, match=r"no run.*\nA trained policy ships with Operant: zoo:cartpole$"):
        operant.load("cartpole", root=tmp_path)


@pytest.mark.slow
def test_the_commands_list_evaluate_and_export_a_policy_of_the_zoo(here, tmp_path):
    listed = json.loads(here("zoo", "--json").out)["policies"]
    assert [one["name"] for one in listed] == [f"zoo:{name}" for name in zoo.names()]
    evaluated = here("eval", "zoo:cartpole", "--episodes", "20", "--greedy", "--json")
    assert json.loads(evaluated.out)["env"] == "cartpole"
    target = tmp_path / "pole.npz"
    exported = here("export", "policy", "zoo:cartpole", "--to", "numpy", "--out", target)
    assert exported.code == 0 and target.is_file(), exported.err


def test_no_command_that_changes_a_run_takes_one_of_the_zoo(here):
    for command in ("stop", "rm", "resume"):
        assert here(command, "zoo:cartpole").code != 0
    assert (zoo.FOLDER / "cartpole" / "run.json").is_file()
