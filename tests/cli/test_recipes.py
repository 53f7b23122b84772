"""Recipes on the command line: a target stays with its environment, values with their algorithm. Names of runs, lists
of keys and commands.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from processes import SMALL, environment, inline, the_run

from operant.config import recipes


def shown(here, *words):
    """The configuration that `config show` prints, by key, and what it says beside it."""
    done = here("config", "show", "--json", *words)
    assert done.code == 0, done.err
    return {key: told["value"] for key, told in json.loads(done.out)["values"].items()}, done.err


# TARGETS AND ENVIRONMENTS


def test_recipe_target_is_dropped_for_another_environment(here):
    values, said = shown(here, "pendulum", "--config", "ppo")
    assert (values["env.name"], values["run.target"], values["algo.horizon"]) == ("pendulum", None, 16)
    assert re.search(
        r"run.target = 475 \(.*cartpole.toml:\d+\) is a return of cartpole, not of pendulum, and is ignored; "
        r"run.target=N sets another",
        said,
    )
    for words in (
        ("CartPole-v1", "--config", "ppo"),
        ("--config", "ppo"),
        ("--config", "ppo", "env.name=cartpole"),
        (),
    ):
        values, said = shown(here, *words)
        assert values["run.target"] == 475 and not said
    values, said = shown(here, "pendulum", "--config", "ppo", "run.target=-300")
    assert values["run.target"] == -300 and not said


def test_unused_network_keys_are_noted(here):
    said = shown(here, "cartpole", "net.memory_size=64", "algo.bptt=8")[1]
    assert (
        "net.memory_size has no effect without a memory: net.memory=gru, mingru or lstm" in said
        and "algo.bptt has no effect" in said
    )
    said = shown(here, "concentration", "net.cnn=impala", "net.shared=false")[1]
    assert (
        "net.cnn has no effect without convolutions: net.kind=cnn" in said
        and "net.shared has no effect with net.kind=places, which always has one" in said
    )
    control = ("concentration", "net.memory=none", "net.memory_layers=2")  # blocks of places, with a memory or without
    for words in (
        ("cartpole", "net.memory=gru", "net.memory_size=64"),
        ("repeat_first", "net.memory=none"),
        control,
    ):  # a recipe's own keys stand
        assert "no effect" not in shown(here, *words)[1]


def test_a_file_of_the_users_own_keeps_its_target(here, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.toml").write_text('[run]\ntarget = 5\n[env]\nname = "my_env.py"\n')
    (tmp_path / "general.toml").write_text("[run]\ntarget = 7\n")
    for name in ("my_env.py", "a/my_env.py", "other.py"):
        (tmp_path / name).write_text("from operant.envs import find\nENV = find('cartpole')\n")
    assert shown(here, "--config", "a/mine.toml", "--env", "a/my_env.py")[0]["run.target"] == 5
    values, said = shown(here, "--config", "a/mine.toml", "other.py")
    assert values["run.target"] is None and "is a return of my_env, not of other" in said
    assert shown(here, "--config", "general.toml", "pendulum")[0]["run.target"] == 7, (
        "it names no environment that the target is of"
    )


def test_dropped_target_is_reported_by_train(here, tmp_path):
    done = inline(here, "pendulum", "--config", "ppo", "run.steps=1024", "--name", "mine")
    assert done.code == 0 and "run.target = 475" in done.err and "is ignored" in done.err
    assert "# target is not set" in (the_run(tmp_path).path / "config.toml").read_text()


@pytest.mark.parametrize(
    "words",
    [("pendulum", "env.name=cartpole"), ("my.py", "env.name=cartpole"), ("--env", "my.py", "env.name=cartpole")],
)
def test_two_environments_are_refused(here, tmp_path, words):
    (tmp_path / "my.py").touch()
    done = here("train", "--dry-run", *words)
    assert done.code == 2 and "two environments" in done.err and "env.name=cartpole: give one" in done.err


# ALGORITHMS


def test_a_recipe_of_another_algorithm_is_not_taken(here):
    values, _ = shown(here, "--config", "snake", "algo.name=pqn")
    assert values["algo.name"] == "pqn" and values == shown(here, "snake", "algo.name=pqn")[0]
    for words in (("--config", "ppo/snake"), ("--config", str(recipes.find_source("ppo/snake")))):
        done = here("config", "show", *words, "algo.name=pqn")
        assert (
            done.code == 2
            and "ppo/snake is a recipe for ppo and does not apply to algo.name=pqn: use pqn/snake" in done.err
        )
    done = here("config", "show", "--config", "swingup", "algo.name=mine.py:Mine")
    assert done.code == 2 and "for its defaults: operant train swingup algo.name=mine.py:Mine" in done.err


def test_a_recipe_is_found_by_its_environment(here):
    assert (
        shown(here, "--config", "cartpole") == shown(here, "--config", "ppo") == shown(here, "--config", "ppo/cartpole")
    )


# NAMES OF RUNS


def test_existing_run_name_is_reported(here, tmp_path):
    words = ("run.steps=1024", "--name", "twice")
    assert "already" not in inline(here, *words).err
    told = inline(here, *words).err
    (other,) = {path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()} - {"twice", "latest"}
    assert f"a run twice already exists: this one is {other}" in told


@pytest.mark.parametrize("words", [("--name", "a b"), ("run.name=-x",), ("--name", "live")])
def test_a_name_that_cannot_be_one_starts_nothing(here, tmp_path, monkeypatch, words):
    monkeypatch.setattr(subprocess, "run", None)  # what starts a worker
    done = here("train", *SMALL, *words)
    assert (
        done.code == 2 and "run.name: input should be 1 to 64 letters" in done.err and not (tmp_path / "runs").exists()
    )


# LISTS


def test_the_list_of_commands_is_not_cut(tmp_path):
    place = environment(tmp_path) | {"COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "operant.cli", "--help"], env=place, capture_output=True, text=True, check=True
    )
    groups = re.findall(r"^(\w+):\n((?:  .+\n)+)", done.stdout, re.MULTILINE)[1:]
    assert [title for title, _ in groups] == ["Train", "Watch", "Keep", "Compare", "Share", "Check"]
    commands = [line for _, lines in groups for line in lines.splitlines()]
    assert len(commands) >= 20 and all(
        re.fullmatch(r"  [a-z]+ +[A-Z].*\.", line) and not line.endswith("...") for line in commands
    )


def test_config_show_prints_descriptions(here):
    lines = here("config", "show").out.splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("seed = "))
    assert lines[at - 1] == "# Seed of all random numbers; the same seed gives the same bits."
    keys = json.loads(here("config", "show", "--json").out)["values"]
    assert not [key for key, told in keys.items() if not told["description"] and not key.startswith("env.params.")]


# PACKAGES


def test_another_package_named_monitor_is_reported(tmp_path):
    (tmp_path / "monitor.py").write_text("raise SystemExit('the wrong one')\n")
    place = environment(tmp_path)
    place["PYTHONPATH"] = os.pathsep.join((str(tmp_path), place["PYTHONPATH"]))
    for words in (("monitor", "--once"), ("train", "--monitor", "--name", "x")):
        done = subprocess.run(
            [sys.executable, "-m", "operant.cli", *words],
            cwd=tmp_path,
            env=place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (
            done.returncode == 4
            and "`import monitor` finds" in done.stderr
            and "monitor.py" in done.stderr
            and "Traceback" not in done.stderr
        )
    assert not (tmp_path / "runs" / "x").exists()
