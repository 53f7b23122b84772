"""Lanes of a checkpoint continue or are reset: reset if the environment's state has another size or type."""

from __future__ import annotations

import pytest
import torch
from toys import FILL, clones, iterate, ppo_on

from operant.runs.checkpoints.tensors import Checkpoint
from operant.training.state import restore

pytestmark = pytest.mark.usefixtures("one_thread")
OTHERS = {
    "as it was": lambda world: {},
    "more": lambda world: {"world/memory": torch.ones(2, 8)},
    "another type": lambda world: {"world/cells": world["world/cells"].to(torch.int32)},
    "another size": lambda world: {"world/cells": world["world/cells"][:-1]},
}


@pytest.mark.parametrize("other", OTHERS)
def test_lanes_are_restored_only_if_the_environments_state_matches(tmp_path, other):
    done, algo = iterate(ppo_on(FILL, 8, horizon=8), 1), ppo_on(FILL, 8, seed=2, horizon=8)
    saved, before = clones(done), clones(algo)
    path = tmp_path / "checkpoints" / "step-64"
    why = restore(
        algo, Checkpoint(path, done.steps_per_iteration, 1, {**saved, **OTHERS[other](saved)}, {"tier": "all"}, None)
    )
    assert why == (None if other == "as it was" else "the environment's state has changed")
    for name, tensor in algo.state("all").items():
        anew = why is not None and name.startswith("world/") and name != "world/tick"
        assert torch.equal(tensor, (before if anew else saved)[name]), name
