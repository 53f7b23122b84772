"""Trains by a shipped recipe for a few iterations, for tests that ask whether it begins to learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operant.config import load as config
from operant.config import recipes
from operant.training.build import build
from operant.worlds.base import TALLIES


def learnt(name: str, overrides: Sequence[str], iterations: int, parts: int = 4) -> list[np.ndarray]:
    """Sums over the episodes that ended in each of so many parts of a training, seed 1: those of `World.episode_sums`,
    (3 + K).
    """
    recipe = config.load(recipes.find_source(name), overrides)
    algo = build(recipe, "cpu")
    world = algo.world
    algo.start()
    sums = np.zeros((parts, TALLIES + len(world.spec.tally)))
    for part in sums:
        for _ in range(iterations // parts):
            for phase in algo.phases:
                phase.run()
            part += world.episode_sums(algo.rollout).numpy()
    return list(sums)
