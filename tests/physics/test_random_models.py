"""Single steps of random models against MuJoCo's `mj_step`, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy import float64

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

import physics_parity as parity
from toys import soak


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *soak(*range(4, 24))])
def test_a_step_of_a_random_model_is_mujocos_to_rounding(seed):
    errors = parity.step_errors(f"random/{seed}", float64, 100).values
    assert len(errors) > 50, "states that MuJoCo leaves within bounds, and whose contacts have room"
    assert np.quantile(errors.max(axis=1), 0.98) < 1e-9
