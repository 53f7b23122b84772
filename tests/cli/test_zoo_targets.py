"""Recipes that a CPU trains in seconds reach their target, by the commands that a user types."""

import json
import math
from pathlib import Path

import pytest
import tomli
from processes import operant_process

ZOO = Path(__file__).parents[2] / "benches" / "zoo.toml"
MOST_CPU_S = 10


def quick():
    """Recipes with a target that benches/zoo.py trained with at most so many CPU seconds."""
    rows = tomli.loads(ZOO.read_text(encoding="utf-8")) if ZOO.is_file() else {}
    on_cpu = {recipe: row["cpu"] for recipe, row in rows.items() if "target" in row.get("cpu", {})}
    # Overrides follow a recipe in the command of a row that was measured with them.
    return [
        recipe
        for recipe, row in on_cpu.items()
        if row.get("cpu_s", math.inf) < MOST_CPU_S
        and row["command"].startswith(f"operant train --config {recipe} --seeds")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", quick())
def test_a_quick_recipe_reaches_its_target_in_fresh_episodes(recipe, tmp_path):
    trained = operant_process(tmp_path, "train", "--config", recipe, "--seed", 1, "--device", "cpu", "--name", "one")
    assert trained.returncode == 0, trained.stderr
    evaluated = operant_process(
        tmp_path, "eval", "one", "--episodes", 1024, "--seed", 1_000_003, "--greedy", "--device", "cpu", "--json"
    )
    target = tomli.loads((tmp_path / "runs" / "one" / "config.toml").read_text(encoding="utf-8"))["run"]["target"]
    assert json.loads(evaluated.stdout)["greedy"]["mean"] >= target
