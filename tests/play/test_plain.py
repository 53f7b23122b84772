"""The stage without a compiler and without torch plays the compiled one's episodes and draws its pictures; its policies
are those of the checkpoints.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from walk import WALK

import operant
from operant import envs
from operant.config import load as config
from operant.envs import Box, Discrete
from operant.export import program
from operant.play import plain
from operant.play.load_policy import EVALUATION_NUMBER
from operant.play.stage import Stage
from operant.runs import zoo

pytestmark = pytest.mark.usefixtures("one_thread")

EXPORTED = [name for name in zoo.names() if zoo.exported(zoo.find(f"zoo:{name}")).is_file()]


def actions_of(env, steps):
    """Actions (A, 1) drawn from a space."""
    rng = np.random.default_rng(3)
    for _ in range(steps):
        if isinstance(env.action, Box):
            yield rng.uniform(-1.5, 1.5, (env.action.size, 1)).astype(np.float32)
        else:
            yield rng.integers(0, env.action.n if isinstance(env.action, Discrete) else 2, (1, 1)).astype(np.int32)


@pytest.mark.parametrize("env", [WALK, *map(envs.find, ("breakout", "snake", "pendulum"))], ids=lambda env: env.name)
def test_a_plain_stage_takes_the_steps_of_a_compiled_one_and_draws_its_pictures(env):
    params = env.Params()
    compiled = Stage(env, params, seed=5, number=EVALUATION_NUMBER)
    stage = plain.PlainStage(env, params, seed=5, number=EVALUATION_NUMBER)
    assert stage.step_s == compiled.step_s
    canvases = stage.canvas(30), compiled.canvas(30)
    for k, action in enumerate(actions_of(env, 100)):
        stage.step(action)
        compiled.step(torch.from_numpy(action))
        assert np.allclose(stage.observation, compiled.observation, atol=1e-3), k
        assert (stage.ended, stage.ages) == (compiled.ended, compiled.ages)
        assert np.allclose(stage.returns, compiled.returns, rtol=1e-4) and np.allclose(stage.action, compiled.action)
        if env.mask_size:
            assert (stage.legal == compiled.legal.numpy()).all()
        if k % 20 == 0:  # a pixel on an edge may fall on either side of it
            found, expected = stage.picture(canvases[0]), compiled.picture(canvases[1])
            assert found.std() > 10 and (np.abs(found.astype(int) - expected) > 1).mean() < 0.003


@pytest.mark.parametrize("name", EXPORTED)
def test_an_export_of_the_zoo_is_the_policy_of_its_checkpoint(name):
    shipped, loaded = zoo.find(f"zoo:{name}"), operant.load(f"zoo:{name}", device="cpu")
    stage, player = plain.staged(shipped, seed=None, number=EVALUATION_NUMBER)
    expected = config.load(shipped.config_path)
    assert stage.env == expected.environment and stage.env.name == expected.env.name
    observations = []
    for _ in range(100):
        observations.append(stage.observation.T.copy())
        player.step()
    batch = np.concatenate(observations)
    actions, exported = np.asarray(loaded(batch)), program.load(zoo.exported(shipped))(batch)
    assert np.allclose(exported.reshape(actions.shape), actions, atol=1e-5)
    assert stage.picture(stage.canvas(40)).std() > 5


@pytest.mark.slow
def test_the_first_picture_of_a_policy_imports_no_torch_and_compiles_nothing():
    code = """
import sys
from operant import envs
from operant.play import plain, screen, view, viewer
from operant.runs import zoo
stage, player = plain.staged(zoo.find("zoo:breakout"), seed=None, number=0)
player.step()
view.View(stage).rows(60, 30, screen.Style(True, True))
assert not {"torch", "pydantic"} & set(sys.modules), "slow imports"
assert not envs.find("breakout").step.signatures, "compiled"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
