"""What benches/configs.py judges by: marks of configurations that ship, each a return that its environment can give, no higher than the run's own target."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from operant.config import load as config
from operant.config import recipes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benches"))
from configs import MARKS

# By the rules: a reward of 1 for each of 500 steps; two walls of 432 points; 21 points a game; 97 cells to fill, of 100; up to 4 for each of 1,000 steps.
MOST = {"cartpole": 500, "cartpole_continuous": 500, "breakout": 864, "pong": 21, "snake": 97, "swingup": 4000}
MOST |= {"mountaincar": -1, "mountaincar_continuous": 100, "acrobot": 0, "pendulum": 0}


@pytest.mark.parametrize("name", MARKS)
def test_a_mark_is_of_a_configuration_that_ships_and_can_be_reached(name):
    target = config.load(recipes.find_source(name)).run.target
    assert target is None or target >= MARKS[name]
    assert MARKS[name] < MOST[name]


def test_marks_told_in_other_words():
    assert MARKS["snake"] == 30 - 3 - 1, "a mean length of 30: three cells at the start, one taken off for the death"
