"""Benches: marks of benches/configs.py are attainable returns, at most the run's target; JAX runs in a separate
process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from operant.config import load as config
from operant.config import recipes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benches"))
import recipes as recipes_bench
from compare_jax import PROGRAM, jax_training

from configs import MARKS

# Maxima by the rules: 1 for each of 500 steps; two walls of 432 points; 21 points per game; 97 of 100 cells to fill;
# up to 4 for each of 1,000 steps.
MOST = {"cartpole": 500, "cartpole_continuous": 500, "breakout": 864, "pong": 21, "snake": 97, "swingup": 4000}
MOST |= {"mountaincar": -1, "mountaincar_continuous": 100, "acrobot": 0, "pendulum": 0}


@pytest.mark.parametrize("name", MARKS)
def test_marks_are_attainable_and_at_most_the_target(name):
    target = config.load(recipes.find_source(name)).run.target
    assert target is None or target >= MARKS[name]
    assert MARKS[name] < MOST[name]


def test_mark_of_snake_is_a_mean_length_of_30():
    assert MARKS["snake"] == 30 - 3 - 1, "a mean length of 30: three cells at the start, one taken off for the death"


@pytest.mark.parametrize(
    ("answer", "figures", "said"),
    [
        ("echo '{\"sps\": 100.0}'", {"sps": 100.0}, ""),
        ("echo oh >&2; echo no >&2; exit 3", {}, "no"),
        ("exit 1", {}, "it ended without a message"),
        ("echo nothing", {}, "JSONDecodeError at 8 x 4"),
    ],
)
def test_jax_runs_in_a_separate_process(tmp_path, answer, figures, said):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{answer}\n')
    python.chmod(0o755)
    assert jax_training(8, 4, "cpu", python=str(python), repeats=3) == (figures, said)
    assert (tmp_path / "calls").read_text().endswith("jax_ppo.py --json --lanes 8 --horizon 4 --repeats 3\n")


def test_jax_program_imports_only_jax_and_the_standard_library():
    words = [
        line.split()[1].split(".")[0]
        for line in PROGRAM.read_text().splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert set(words) - sys.stdlib_module_names == {"jax"}


def test_the_bench_of_recipes_trains_and_plays_fresh_episodes(tmp_path):
    wanted = [
        "run.steps=2048",
        "env.lanes=64",
        "algo.horizon=16",
        "eval.every=1",
        "eval.episodes=8",
        "run.device=cpu",
        "run.threads=1",
    ]
    row = recipes_bench.row("ppo/cartpole", 3, wanted, 8, tmp_path)
    assert (
        (row["steps"], row["target"], row["holds"]) == (2048, 475.0, False)
        and row["fresh"] >= 8.0
        and len(row["last"]) == row["evaluations"] == 2
    )
