"""Collecting beside an update: what is learned from was collected by the policy of one iteration before; one seed has
one result, with graphs and without; a resume goes on to the bit.
"""

from __future__ import annotations

import pytest
import torch
from toys import GATE, PUSH, iterate, ppo_on

from operant.config import load
from operant.envs import find
from operant.errors import ConfigError
from operant.nn import mlp
from operant.training import distributed
from operant.training.build import build, set_scheduled

CARTPOLE = find("cartpole")

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = [
    "env.lanes=64",
    "algo.horizon=8",
    "algo.minibatches=2",
    "algo.epochs=2",
    "run.steps=100k",
    "net.hidden=[16]",
    "algo.learning_rate=0.01",
]
NORMALISED = ["algo.normalize_observations=true", "algo.normalize_rewards=true"]


def made(*more, device="cpu", eager=False, start=True):
    algo = build(load.load(None, [*WORDS, "algo.overlap=true", *more]), device, eager=eager)
    if start:
        algo.start()
    return algo


def state_of(algo):
    return distributed.whole_state(algo, "train", distributed.SOLO)


def bytes_of(algo):
    return {name: tensor.numpy().tobytes() for name, tensor in state_of(algo).items()}


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_acting_policy_lags_the_learner_by_one_iteration(kernels):
    """One minibatch and one epoch: the ratio of probabilities is 1 where a policy learns from its own steps, as the
    first does from the first rollout.

    The second rollout is the first policy's, too, so the second update finds r = pi_1 / pi_0, and reports the mean of
    (r - 1) - log r.
    """
    ahead = made("algo.epochs=1", "algo.minibatches=1", f"algo.kernels={kernels}")
    turns = made("algo.epochs=1", "algo.minibatches=1", f"algo.kernels={kernels}", "algo.overlap=false")
    policy, kl = ahead.policy, [spec.name for spec in ahead.metrics].index("approx_kl")
    first = policy.flat.values.detach().clone()
    for algo in (turns, ahead):
        iterate(algo, 1)
    assert torch.equal(turns.policy.flat.values, policy.flat.values) and not torch.equal(policy.flat.values, first)
    assert torch.equal(ahead.rollout.observation[0], turns.rollout.observation[-1])
    assert abs(float(ahead.stats[kl])) < 1e-7
    observation, action = (
        ahead.rollout.observation[:-1].transpose(0, 1).flatten(1),
        ahead.rollout.action.transpose(0, 1).flatten(1),
    )
    second = policy.flat.values.detach().clone()
    log_probability = []
    with torch.no_grad():
        for parameters in (first, second):
            policy.flat.values.data.copy_(parameters)
            log_probability.append(
                policy.distribution.log_probability_and_entropy(policy.forward(observation)[0], action)[0]
            )
    log_ratio = log_probability[1] - log_probability[0]
    for algo in (turns, ahead):
        iterate(algo, 1)
    assert (
        float(ahead.stats[kl]) == pytest.approx(float((log_ratio.exp() - 1 - log_ratio).mean()), rel=1e-3)
        and float(ahead.stats[kl]) > 1e-5
    )
    assert abs(float(turns.stats[kl])) < 1e-7


def counted(algo, first, times):
    """Iterations as a run makes them."""
    for k in range(first, first + times):
        if hasattr(algo, "scheduled"):
            set_scheduled(algo, k * algo.steps_per_iteration)
        iterate(algo, 1)
        algo.world.episode_sums(algo.rollout)
    return algo


def toy(env, net, algo):
    return lambda **more: ppo_on(
        env, 24, mlp.Config(**{"hidden": (8,), **net}), horizon=4, steps=24 * 4 * 8, overlap=True, **algo, **more
    )


EVERYTHING = {
    "normalize_observations": True,
    "normalize_rewards": True,
    "value_clip": 0.2,
    "target_kl": 0.002,
    "learning_rate": 0.01,
}
RESUMED = {
    "everything": toy(CARTPOLE, {}, EVERYTHING),
    "torch": toy(PUSH, {}, {"kernels": "torch", "normalize_observations": True}),
    "legal actions and muon": toy(GATE, {}, {**EVERYTHING, "optimizer": "muon"}),
    "a parameter that changes": lambda **more: made(
        "env.params.gravity={linear=[1,9.8],over=2000}", *NORMALISED, **more
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fresh", RESUMED.values(), ids=RESUMED)
def test_resume_is_exact_and_one_seed_has_one_result(fresh):
    whole, half, resumed = counted(fresh(), 0, 4), counted(fresh(), 0, 2), fresh(start=False)
    for name, tensor in state_of(half).items():
        resumed.state("train")[name].copy_(tensor)
    counted(resumed, 2, 2)
    assert bytes_of(resumed) == bytes_of(whole) == bytes_of(counted(half, 2, 2))


def test_checkpoint_adds_only_the_acting_policy():
    """What was collected ahead is collected again."""
    ahead, turns = iterate(made(), 2), iterate(made("algo.overlap=false"), 2)
    more = {name: tensor for name, tensor in ahead.state("train").items() if name not in turns.state("train")}
    assert sum(tensor.numel() for tensor in more.values()) == ahead.policy.flat.values.numel()


@pytest.mark.slow
def test_reward_improves_on_cartpole():
    algo = made("env.lanes=128", "algo.horizon=32", "algo.minibatches=4", "algo.epochs=4")
    sums = torch.stack([(iterate(algo, 1), algo.world.episode_sums(algo.rollout))[1] for _ in range(25)])
    assert sums[-3:, 2].sum() / sums[-3:, 0].sum() > 4 * sums[0, 2] / sums[0, 0]


def test_recurrent_policy_is_refused():
    with pytest.raises(ConfigError, match=r"algo\.overlap: a policy with a memory"):
        load.load(None, [*WORDS, "net.memory=gru", "algo.overlap=true"])


ON_A_GPU = {
    "fused": ["algo.precision=bf16", "algo.kernel_config=first", *NORMALISED],
    "torch": ["algo.kernels=torch", *NORMALISED],
    "legal actions": ["env.name=go", "algo.precision=bf16", "algo.kernel_config=first"],
    "lanes on the host": ["env.name=breakout", "env.device=cpu", "algo.kernel_config=first", "algo.precision=bf16"],
}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("more", ON_A_GPU.values(), ids=ON_A_GPU)
def test_graphs_change_no_bit_and_resume_is_exact_on_a_gpu(more):
    whole, eager, half = (made(*more, device="cuda", eager=eager) for eager in (False, True, False))
    resumed = made(*more, device="cuda", start=False)
    for algo, times in ((whole, 30), (eager, 30), (half, 12)):
        counted(algo, 0, times)
    for name, tensor in state_of(half).items():
        resumed.state("train")[name].copy_(tensor)
    resumed.world.restored()
    counted(resumed, 12, 18)
    assert bytes_of(whole) == bytes_of(eager) == bytes_of(resumed)
