"""Collecting beside an update: the first iteration is that of taking turns, later ones learn from a policy of one iteration before; a resume is to the bit."""

from __future__ import annotations

import pytest
import torch
from toys import iterate

from operant.config import load
from operant.errors import ConfigError
from operant.training import distributed
from operant.training.build import build

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["env.lanes=64", "algo.horizon=8", "algo.minibatches=2", "algo.epochs=2", "run.steps=100k", "net.hidden=[16]", "algo.learning_rate=0.01"]
NORMALISED = ["algo.normalize_observations=true", "algo.normalize_rewards=true"]


def made(*more):
    return build(load.load(None, [*WORDS, *more]), "cpu")


def bytes_of(algo):
    return {name: tensor.numpy().tobytes() for name, tensor in distributed.whole_state(algo, "train", distributed.SOLO).items()}


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_an_iteration_learns_from_what_the_one_before_collected(kernels):
    turns, ahead = made(f"algo.kernels={kernels}"), made(f"algo.kernels={kernels}", "algo.overlap=true")
    for algo in (turns, ahead):
        algo.start()
    first = ahead.rollout.observation.clone()
    for algo in (turns, ahead):
        iterate(algo, 1)
    assert torch.equal(first[1:], turns.rollout.observation[1:])
    assert torch.equal(turns.policy.flat.values, ahead.policy.flat.values)
    assert torch.equal(first[-1], ahead.rollout.observation[0])
    iterate(turns, 1)
    assert not torch.equal(turns.rollout.observation[1:], ahead.rollout.observation[1:])  # which the first policy has collected
    iterate(ahead, 1)
    assert not torch.equal(turns.policy.flat.values, ahead.policy.flat.values)


def test_a_resume_goes_on_to_the_bit_and_one_seed_has_one_result():
    more = ["algo.overlap=true", *NORMALISED]
    whole, half, resumed = made(*more), made(*more), made(*more)
    for algo in (whole, half):
        algo.start()
    iterate(whole, 4)
    iterate(half, 2)
    for name, tensor in half.state("train").items():
        resumed.state("train")[name].copy_(tensor)
    iterate(resumed, 2)
    iterate(half, 2)
    assert bytes_of(resumed) == bytes_of(whole) == bytes_of(half)


def test_it_learns():
    algo = build(load.load(None, [*WORDS, "env.lanes=128", "algo.horizon=32", "algo.minibatches=4", "algo.epochs=4", "algo.overlap=true"]), "cpu")
    algo.start()
    sums = torch.stack([(iterate(algo, 1), algo.world.episode_sums(algo.rollout))[1] for _ in range(25)])
    assert sums[-3:, 2].sum() / sums[-3:, 0].sum() > 4 * sums[0, 2] / sums[0, 0]


def test_a_policy_with_a_memory_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match=r"algo\.overlap: a policy with a memory"):
        load.load(None, [*WORDS, "net.memory=gru", "algo.overlap=true"])
