"""PPO: bootstrapping by hand, the gradient, whole and in parts, against a plain float64 version of the paper, the
optimiser's step by hand, normalisation, the KL stop, minibatches, repeatability to the bit, resuming, users' networks,
and that it learns.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import torch
from numpy import float32
from pydantic import ValidationError
from torch import distributions, nn
from toys import COUNT, FILL, GATE, PICK, PUSH, SEEN, NoParams, bytes_of, clones, iterate, ppo_on

from operant import algos
from operant.algos.base import metric_specs
from operant.algos.ppo import PPO, PPOConfig
from operant.algos.ppo import ppo as specification
from operant.algos.ppo.ppo import TERMS, Batch, Stats, ppo_loss
from operant.compute import kernel
from operant.envs import device, find
from operant.nn import mlp
from operant.nn.normalization import RunningNormalizer
from operant.training.evaluate import Evaluator
from operant.worlds.base import EPISODES, TALLIES
from operant.worlds.device_world import DeviceWorld

CARTPOLE = find("cartpole")
COLUMNS = (*(spec.name for spec in metric_specs(Stats)), "not_finite")
EVERYTHING = {
    "normalize_observations": True,
    "normalize_rewards": True,
    "value_clip": 0.2,
    "target_kl": 0.002,
    "learning_rate": 0.01,
    "noise_hold": 3,
}


pytestmark = pytest.mark.usefixtures("one_thread")


def stats_of(ppo):
    return dict(zip(COLUMNS, ppo.stats.tolist(), strict=True))


# COLLECT

SQUARE = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, observation, head):
        super().__init__()
        self.head, self.factor = nn.Linear(observation, head), nn.Parameter(torch.ones(1))
    def forward(self, observation):
        return self.head(observation), self.factor * observation[:, 0] ** 2
"""


def test_bootstrapping_by_hand(tmp_path):
    """A network with V(o) = o^2 plays COUNT: o counts the episode's steps, r is the count after a step. gamma = lambda
    = 1/2, four steps.

    Lane 0 is truncated at 3, where V of the true final observation is 9 and V of the next episode's first is 0. Lane 3
    is terminated there at once, which rules. Lane 2 terminates at 2 and plays two more steps, to the end of the
    rollout. All A_t = r + V'/2 - V + A_{t+1}/4, A_{t+1} only within an episode.

    t   o  r    lane 0                               lane 3
    0   0  1    1 + 1/2 - 0 = 1.5,  + 3.875/4        1.5,   + 2.75/4 = 2.1875
                = 2.46875
    1   1  2    2 + 4/2 - 1 = 3,    + 3.5/4 = 3.875  3,     - 1/4 = 2.75
    2   2  3    3 + 9/2 - 4 = 3.5                    3 + 0 - 4 = -1
    3   0  1    1 + 1/2 - 0 = 1.5                    1.5

    Lane 2: (0, 1), (1, 2) terminated, (0, 1), (1, 2) terminated: A = 1.5 + 1/4, 2 - 1, and again. Lane 1: r = 1
    terminates every step: A = 1.
    """
    (tmp_path / "net.py").write_text(SQUARE)
    ppo = ppo_on(
        COUNT,
        4,
        mlp.Config(kind=f"{tmp_path / 'net.py'}:Net"),
        horizon=4,
        gamma=0.5,
        gae_lambda=0.5,
        normalize_advantages=False,
    )
    ppo.collect()
    lane0, lane1, lane2, lane3 = range(4)
    rollout = ppo.rollout
    assert rollout.observation[:, 0, lane0].tolist() == [0, 1, 2, 0, 1]
    assert rollout.truncated[:, lane0].tolist() == [0, 0, 1, 0] and rollout.terminated[:, lane0].tolist() == [
        0,
        0,
        0,
        0,
    ]
    assert rollout.truncated[:, lane3].tolist() == [0, 0, 1, 0] and rollout.terminated[:, lane3].tolist() == [
        0,
        0,
        1,
        0,
    ]
    assert rollout.final_observation[2, 0, [lane0, lane3]].tolist() == [3, 0]  # lane 3 terminated: nobody asks
    ppo.backend.estimate_advantages()
    expected = torch.empty(4, 4)
    expected[:, lane0] = torch.tensor([2.46875, 3.875, 3.5, 1.5])
    expected[:, lane1] = 1.0
    expected[:, lane2] = torch.tensor([1.75, 1.0, 1.75, 1.0])
    expected[:, lane3] = torch.tensor([2.1875, 2.75, -1.0, 1.5])
    assert torch.equal(ppo.experience.advantage, expected)
    assert torch.equal(ppo.experience.returns, expected + rollout.observation[:4, 0].square())


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("env", [CARTPOLE, PUSH, PICK, GATE, FILL, SEEN])
def test_rollout_fields_belong_to_the_same_steps(env, kernels):
    ppo = ppo_on(env, 16, horizon=8, normalize_observations=True, kernels=kernels)
    iterate(ppo, 2)
    first = ppo.rollout.observation[-1].clone()
    ppo.collect()
    assert torch.equal(ppo.rollout.observation[0], first), "a rollout does not begin where the last one ended"
    distribution = ppo.policy.distribution
    for t in range(8):
        legal = None if ppo.rollout.legal is None else ppo.rollout.legal[t]
        parameters, value = ppo.backend.forward(ppo.rollout.observation[t], legal)
        torch.testing.assert_close((parameters, value), ppo.policy.forward(ppo.rollout.observation[t], legal))
        assert torch.equal(ppo.experience.raw[t], distribution.sample(parameters, ppo.collector.noise[t]))
        assert torch.equal(
            ppo.experience.log_probability[t],
            distribution.log_probability_and_entropy(parameters, ppo.experience.raw[t])[0],
        )
        assert torch.equal(ppo.experience.value[t], value)
        torch.testing.assert_close(ppo.rollout.action[t], distribution.to_env(ppo.experience.raw[t]))
    assert torch.equal(ppo.experience.value[8], ppo.backend.forward(ppo.rollout.observation[8])[1])
    truncated = ppo.rollout.truncated.nonzero()
    for t, i in truncated.tolist():
        if not ppo.rollout.terminated[t, i]:
            final = ppo.policy.forward(ppo.rollout.final_observation[t // ppo.world.final_window, :, i : i + 1])[1]
            torch.testing.assert_close(ppo.experience.final_value[t, i], final[0])
    assert len(truncated) > 0 or env in (CARTPOLE, PICK, GATE)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("env", [GATE, FILL])
def test_policy_takes_only_legal_actions(env, kernels):
    """In training, and in evaluations of both kinds: the environment itself counts. Where it says nothing of what is
    legal, the same policy does.
    """
    illegal = TALLIES
    net = mlp.Config(hidden=(8,))
    ppo = ppo_on(env, 32, net, horizon=8, kernels=kernels, learning_rate=0.02)
    for _ in range(8):
        iterate(ppo, 1)
        sums = ppo.world.episode_sums(ppo.rollout)
        assert sums[EPISODES] > 0 and sums[illegal] == 0
        assert torch.isfinite(ppo.stats).all() and stats_of(ppo)["not_finite"] == 0
    for greedy in (True, False):
        evaluation = Evaluator(ppo.policy, env, env.Params(), episodes=16, seed=1, greedy=greedy, max_steps=32)
        evaluation.run(0)
        assert evaluation.rollout.world.episode_sums(evaluation.rollout.slot)[illegal] == 0

    unmasked = dataclasses.replace(env, legal=None)
    blind = iterate(ppo_on(unmasked, 32, net, horizon=8, kernels=kernels), 2)
    assert blind.world.episode_sums(blind.rollout)[illegal] > 0


CNN = {"kind": "cnn", "cnn": "impala", "channels": (3,), "hidden": (8,)}


@pytest.mark.parametrize("horizon", [3, 4, 6, 8])
def test_final_values_of_pictures_are_the_same_captured_or_not(horizon):
    """A graph evaluates every buffer whole, a CPU only what was truncated: where the advantages look, both find the
    same.
    """
    ppo = iterate(ppo_on(SEEN, 16, mlp.Config(**CNN), horizon=horizon), 1)
    ppo.collect()
    plainly, read = ppo.experience.final_value.clone(), (ppo.rollout.truncated & ~ppo.rollout.terminated).bool()
    ppo.experience.final_value.fill_(math.nan)
    ppo.backend.device = SimpleNamespace(type="cuda")
    with torch.no_grad():
        ppo.backend.bootstrap()
    assert ppo.world.final_window == 4 and read.any()
    torch.testing.assert_close(ppo.experience.final_value[read], plainly[read])
    assert torch.isfinite(ppo.experience.final_value).all()


def test_pictures_are_shuffled_whole():
    """Each minibatch has the pictures of its samples, as they lie in memory: one after the other."""
    T, N = 4, 64
    ppo = ppo_on(SEEN, N, mlp.Config(**CNN), horizon=T, epochs=1, minibatches=4)
    ppo.collect()
    assert ppo.rollout.observation.transpose(1, 2).is_contiguous()
    seen, observation = [], ppo.rollout.observation[:-1].clone()
    ppo.experience.value[:-1] = torch.arange(T * N, dtype=torch.float32).view(T, N)
    ppo.backend.step = lambda batch: seen.append(batch) or torch.zeros(len(TERMS) + 1)
    ppo.update()
    assert sorted(torch.cat([batch.value for batch in seen]).tolist()) == list(range(T * N))
    for batch in seen:
        step, lane = batch.value.long() // N, batch.value.long() % N
        assert torch.equal(batch.observation, observation[step, :, lane].t())
        assert batch.observation.t().is_contiguous() and batch.observation.dtype is torch.uint8
        assert all(part.observation.t().is_contiguous() for part in batch.split([10, len(batch.value) - 10]))
    assert torch.equal(ppo.rollout.observation[0], ppo.rollout.observation[-1])


def test_microbatches_of_pictures_add_up_to_the_minibatch():
    whole, parts = (ppo_on(SEEN, 16, mlp.Config(**CNN), horizon=4, microbatch=microbatch) for microbatch in (None, 3))
    for ppo in (whole, parts):
        iterate(ppo, 1)
    torch.testing.assert_close(whole.policy.flat.values, parts.policy.flat.values, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(whole.stats, parts.stats, rtol=1e-3, atol=1e-4)


def test_legal_actions_are_shuffled_with_their_samples():
    T, N = 8, 64
    ppo = ppo_on(FILL, N, horizon=T, epochs=2, minibatches=4)
    ppo.collect()
    seen, legal = [], ppo.rollout.legal[:-1].clone()
    ppo.experience.value[:-1] = torch.arange(T * N, dtype=torch.float32).view(T, N)
    ppo.backend.step = lambda batch: seen.append(batch) or torch.zeros(len(TERMS) + 1)
    ppo.update()
    assert len(seen) == 8
    for batch in seen:
        step, lane = batch.value.long() // N, batch.value.long() % N
        assert torch.equal(batch.legal, legal[step, :, lane].t())
        assert batch.legal.gather(0, batch.action.long()).all(), "an action that was taken was illegal"


def test_noise_differs_between_iterations():
    ppo = ppo_on(CARTPOLE, 8, horizon=4)
    ppo.collect()
    first = ppo.collector.noise.clone()
    ppo.collect()
    assert not torch.isin(ppo.collector.noise, first).any()


# THE LOSS


def plain_loss(env, net, parameters, batch, config):
    """The loss of the paper in float64, sample by sample, written on its own. `parameters` by name."""
    activation = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu}[
        net.activation
    ]
    observation = batch.observation.double().t()
    if env in (PICK, GATE):  # bytes, read as shares of their bound
        observation = observation / 255

    def tower(g):
        width = net.hidden[0]
        rows = slice(g * width, (g + 1) * width)
        features = activation(observation @ parameters["first_weight"][rows].t() + parameters["first_bias"][rows, 0])
        for k in range(len(net.hidden) - 1):
            features = activation(features @ parameters[f"weights.{k}"][g].t() + parameters[f"biases.{k}"][g, :, 0])
        return features

    head = tower(0) @ parameters["head_weight"].t() + parameters["head_bias"][:, 0]
    value = (tower(0 if net.shared else 1) @ parameters["value_weight"].t() + parameters["value_bias"][:, 0])[:, 0]

    if env is PUSH:
        spread = distributions.Normal(head, parameters["log_std"][:, 0].exp())
        log_probability, entropy = spread.log_prob(batch.action.double().t()).sum(1), spread.entropy().sum(1)
    elif env is GATE:
        log_probability, entropy = legal_choices(head, batch.action, batch.legal)
    else:
        sizes = (2,) if env is CARTPOLE else (3, 2)
        choices = [distributions.Categorical(logits=block) for block in head.split(sizes, dim=1)]
        log_probability = sum(choice.log_prob(action) for choice, action in zip(choices, batch.action, strict=True))
        entropy = sum(choice.entropy() for choice in choices)

    old, advantage, target, before = (
        x.double() for x in (batch.log_probability, batch.advantage, batch.returns, batch.value)
    )
    surrogate, errors, clipped, kl = [], [], 0, []
    for j in range(len(old)):
        ratio = torch.exp(log_probability[j] - old[j])
        limited = torch.clamp(ratio, 1 - config.clip, 1 + config.clip)
        surrogate.append(torch.min(ratio * advantage[j], limited * advantage[j]))
        clipped += bool(abs(ratio - 1) > config.clip)
        kl.append((ratio - 1 - torch.log(ratio)).item())
        error = (value[j] - target[j]) ** 2
        if config.value_clip is not None:
            near = before[j] + torch.clamp(value[j] - before[j], -config.value_clip, config.value_clip)
            error = torch.max(error, (near - target[j]) ** 2)
        errors.append(error / 2)
    count = len(old)
    policy_loss, value_loss = -sum(surrogate) / count, sum(errors) / count
    loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy.mean()
    return loss, {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "entropy": entropy.mean().item(),
        "approx_kl": sum(kl) / count,
        "clip_fraction": clipped / count,
    }


def legal_choices(logits, action, legal):
    """Log-probabilities and entropies, (B) each, of a choice of three and one of two, by a softmax over the legal ones
    alone.
    """
    log_probability, entropy = [], []
    for j in range(len(logits)):
        chance, spread = 0.0, 0.0
        for k, rows in enumerate((range(3), range(3, 5))):
            allowed = [row for row in rows if legal[row, j]]
            p = torch.exp(logits[j, allowed]) / torch.exp(logits[j, allowed]).sum()
            chance = chance + torch.log(p[allowed.index(rows[int(action[k, j])])])
            spread = spread - (p * torch.log(p)).sum()
        log_probability.append(chance)
        entropy.append(spread)
    return torch.stack(log_probability), torch.stack(entropy)


def samples_for(ppo, B):
    """Samples that put every branch of the loss to the test, for a policy whose parameters are perturbed."""
    env, policy, generator = ppo.world.spec, ppo.policy, torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    policy.flat.values.data.add_(0.2 * normal(policy.flat.values.shape))
    legal = None
    if env is GATE:
        legal = torch.tensor([[0, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]], dtype=torch.uint8).t()[
            :, torch.arange(B) % 3
        ]
    if env in (PICK, GATE):
        observation = torch.randint(0, 4, (3, B), generator=generator, dtype=torch.uint8)
    else:
        observation = normal(env.observation.size, B)
    with torch.no_grad():
        parameters, value = policy.forward(observation, legal)
        action = policy.distribution.sample(
            parameters, torch.rand(policy.distribution.noise_rows, B, generator=generator)
        )
        log_probability = policy.distribution.log_probability_and_entropy(parameters, action)[0]
    return Batch(
        observation,
        action,
        log_probability + 0.25 * normal(B),
        value + 0.2 * normal(B),
        normal(B),
        value + normal(B),
        legal,
    )


NETS = [("tanh", False), ("tanh", True), ("relu", False), ("gelu", True), ("silu", False)]


@pytest.mark.parametrize("env", [CARTPOLE, PUSH, PICK, GATE], ids=["categorical", "gaussian", "multi", "masked"])
@pytest.mark.parametrize(("activation", "shared"), NETS)
@pytest.mark.parametrize("value_clip", [None, 0.1])
def test_the_gradient_is_that_of_the_paper(env, activation, shared, value_clip):
    net = mlp.Config(hidden=(7, 5), activation=activation, shared=shared)
    ppo = ppo_on(env, 8, net, horizon=8, start=False, value_clip=value_clip, entropy_coefficient=0.03, clip=0.15)
    flat, config, batch = ppo.policy.flat, ppo.config, samples_for(ppo, 60)

    loss, terms = ppo_loss(ppo.policy, batch, config)
    flat.backward(loss)
    doubles = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in zip(flat.names, flat.parameters, strict=True)
    }
    expected_loss, expected_terms = plain_loss(env, net, doubles, batch, config)
    expected = torch.autograd.grad(expected_loss, list(doubles.values()))

    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-5, abs=1e-6)
    assert {name: terms[name].item() for name in expected_terms} == pytest.approx(expected_terms, rel=1e-4, abs=1e-6)
    assert 0.1 < terms["clip_fraction"] < 0.9, "the clip is not put to the test"
    size = max(float(gradient.abs().max()) for gradient in expected)
    for name, gradient, wanted in zip(flat.names, flat._gradient_views, expected, strict=True):
        error = float((gradient.double() - wanted).abs().max())
        assert error <= 2e-6 * size + 1e-5 * float(wanted.abs().max()), f"the gradient of {name} is {error} off"


def test_the_clip_by_hand():
    """Two samples, a policy that gives both actions 1/2, epsilon = 0.2: at old probability 1/4 the ratio is 2, at 1 it
    is 1/2.

    A = +1: min(2, 1.2) = 1.2 and min(0.5, 0.8) = 0.5. A = -1: min(-2, -1.2) = -2 and min(-0.5, -0.8) = -0.8. The loss
    is minus the mean.
    """
    ppo = ppo_on(CARTPOLE, 8, horizon=4, start=False, entropy_coefficient=0.0, value_coefficient=0.0)
    ppo.policy.flat.values.data.zero_()
    zero = torch.zeros(2)
    old = torch.tensor([0.25, 1.0]).log()
    for advantage, expected in ((1.0, -(1.2 + 0.5) / 2), (-1.0, (2.0 + 0.8) / 2)):
        batch = Batch(
            torch.zeros(4, 2), torch.tensor([[0, 1]], dtype=torch.int32), old, zero, torch.full((2,), advantage), zero
        )
        loss, terms = ppo_loss(ppo.policy, batch, ppo.config)
        assert loss.item() == pytest.approx(expected, rel=1e-6)
        # (r - 1) - log r: (1 - ln 2 + -1/2 + ln 2) / 2 = 1/4.
        expected = {"entropy": math.log(2.0), "approx_kl": 0.25, "clip_fraction": 1.0}
        assert {name: terms[name].item() for name in expected} == pytest.approx(expected, rel=1e-6)


def test_the_value_clip_by_hand():
    # V = 0 now, R = 1. Old value 0.5, clip 0.2: near = 0.3, so (0 - 1)^2 = 1 counts. Old value -0.5: near = -0.3, so
    # (1.3)^2 = 1.69. Half the mean.
    ppo = ppo_on(CARTPOLE, 8, horizon=4, start=False, value_clip=0.2)
    ppo.policy.flat.values.data.zero_()
    zero, one = torch.zeros(2), torch.ones(2)
    batch = Batch(torch.zeros(4, 2), torch.zeros(1, 2, dtype=torch.int32), zero, torch.tensor([0.5, -0.5]), zero, one)
    _, terms = ppo_loss(ppo.policy, batch, ppo.config)
    assert terms["value_loss"].item() == pytest.approx((1.0 + 1.69) / 4, rel=1e-6)


# PARTS OF A MINIBATCH


@pytest.mark.parametrize("env", [CARTPOLE, PUSH, PICK, GATE], ids=["categorical", "gaussian", "multi", "masked"])
@pytest.mark.parametrize("microbatch", [1, 7, 16, 59, 60, 1000])
def test_microbatches_add_up_to_the_gradient_of_the_minibatch(env, microbatch, monkeypatch):
    """The gradient and the numbers are those of the whole minibatch in float64, to float32's rounding, whether or not
    the parts divide it.
    """
    net, B = mlp.Config(hidden=(7, 5)), 60
    ppo = ppo_on(
        env,
        8,
        net,
        horizon=8,
        start=False,
        kernels="torch",
        microbatch=microbatch,
        value_clip=0.1,
        entropy_coefficient=0.03,
        clip=0.15,
    )
    flat, batch = ppo.policy.flat, samples_for(ppo, B)
    doubles = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in zip(flat.names, flat.parameters, strict=True)
    }
    whole_loss, whole_terms = plain_loss(env, net, doubles, batch, ppo.config)
    expected = torch.autograd.grad(whole_loss, list(doubles.values()))
    sizes = []
    monkeypatch.setattr(
        specification,
        "ppo_loss",
        lambda policy, part, config: sizes.append(len(part.returns)) or ppo_loss(policy, part, config),
    )
    flat.gradient.fill_(7.0)  # whatever the last minibatch left there is replaced
    terms = ppo.backend.gradient(batch)
    named = dict(zip(TERMS, terms.tolist(), strict=True))
    assert {name: named[name] for name in whole_terms} == pytest.approx(whole_terms, rel=1e-4, abs=1e-6)
    for name, gradient, wanted in zip(flat.names, flat._gradient_views, expected, strict=True):
        error = float((gradient.double() - wanted).norm())
        assert error <= 1e-5 * float(wanted.norm()) + 1e-6, f"the gradient of {name} is {error} off"
    assert sum(sizes) == B and max(sizes) <= microbatch and len(sizes) == math.ceil(B / microbatch)
    bits = flat.gradient.clone()
    assert torch.equal(ppo.backend.gradient(batch), terms) and torch.equal(flat.gradient, bits)


def test_kl_stop_with_microbatches_is_that_of_whole_minibatches():
    """The KL stop looks at the whole minibatch: where it stops and what it leaves is what whole minibatches come to."""
    whole, parts = (
        ppo_on(CARTPOLE, 32, horizon=8, kernels="torch", microbatch=microbatch, **EVERYTHING)
        for microbatch in (None, 24)
    )
    for _ in range(3):
        iterate(whole, 1)
        iterate(parts, 1)
        torch.testing.assert_close(parts.stats, whole.stats, rtol=1e-3, atol=1e-4)
    steps = [int(each.state("all")["adam/step"]) for each in (whole, parts)]
    assert steps[0] == steps[1] < 3 * 16, "the stop is not put to the test"
    assert not torch.equal(parts.policy.flat.values, whole.policy.flat.values), "there were no parts"


def test_manual_backward_ignores_microbatch():
    whole, parts = (iterate(ppo_on(PUSH, 32, horizon=8, microbatch=microbatch), 2) for microbatch in (None, 5))
    assert bytes_of(whole) == bytes_of(parts)


# THE UPDATE


@pytest.mark.parametrize("max_norm", [1e-2, 1e6])
def test_clip_adam_and_annealing_by_hand(max_norm):
    """One minibatch of one epoch, so that each update is one step, which float64 repeats: Kingma & Ba 2015, algorithm
    1.
    """
    iterations = 5
    algo = {"epochs": 1, "minibatches": 1, "max_gradient_norm": max_norm, "learning_rate": 0.02, "adam_epsilon": 1e-3}
    ppo = ppo_on(PUSH, 8, horizon=4, steps=iterations * 32, **algo)
    flat = ppo.policy.flat
    values = flat.values.detach().double()
    first, second = torch.zeros_like(values), torch.zeros_like(values)
    for k in range(1, iterations + 1):
        ppo.collect()
        ppo.update()
        stats = stats_of(ppo)
        gradient = flat.gradient.double()
        norm = float(gradient.norm())
        assert norm == pytest.approx(min(stats["gradient_norm"], max_norm), rel=1e-4)
        rate = 0.02 * (1 - (k - 1) / iterations)
        assert stats["learning_rate"] == pytest.approx(rate, rel=1e-6)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        values = values - rate * (first / (1 - 0.9**k)) / ((second / (1 - 0.999**k)).sqrt() + 1e-3)
        torch.testing.assert_close(flat.values.detach().double(), values, rtol=1e-5, atol=1e-6)
    iterate(ppo, 1)
    assert stats_of(ppo)["learning_rate"] == 0.0
    torch.testing.assert_close(flat.values.detach().double(), values, rtol=1e-5, atol=1e-6)


def test_muon_by_hand():
    """Hidden weights move along U V^T of their momentum U S V^T, 0.2 sqrt(16) times the learning rate; all else moves
    by Adam.
    """
    config = {
        "epochs": 1,
        "minibatches": 1,
        "max_gradient_norm": 1e6,
        "learning_rate": 0.02,
        "anneal": False,
        "adam_epsilon": 1e-12,
    }
    ppo = ppo_on(PUSH, 8, mlp.Config(hidden=(16, 8)), horizon=4, optimizer="muon", **config)
    flat, step, gradients = ppo.policy.flat, ppo.optimizer.step, []

    def recorded(skip=None):
        gradients.append(flat.gradient.clone())
        step(skip)

    ppo.optimizer.step = recorded
    places = dict(zip(flat.names, zip(flat.offsets, flat.parameters, strict=True), strict=True))
    (weight, shape), (bias, _), (head, _) = (
        (slice(place, place + parameter.numel()), parameter.shape)
        for place, parameter in (places[name] for name in ("weights.0", "biases.0", "head_weight"))
    )
    momentum = torch.zeros(shape, dtype=torch.float64)
    for k in range(3):
        before = flat.values.detach().double()
        iterate(ppo, 1)
        moved, gradient = before - flat.values.detach().double(), gradients[-1].double()
        momentum = 0.95 * momentum + gradient[weight].view(shape)
        left, size, right = torch.linalg.svd(gradient[weight].view(shape) + 0.95 * momentum, full_matrices=False)
        turned = left.mT @ (moved[weight].view(shape) / (0.02 * 0.2 * 16**0.5)) @ right.mT  # (2, 8, 8), diagonal
        values = turned.diagonal(dim1=1, dim2=2)
        large = size > 0.02 * size.norm(dim=1, keepdim=True)  # the smallest need more iterations than the five
        assert large.sum() >= 4 and values[large].min() > 0.6 and values.max() < 1.3, values
        assert (turned - torch.diag_embed(values)).abs().max() < 0.01
        if k == 0:
            for rest in (bias, head):
                torch.testing.assert_close(moved[rest], 0.02 * gradient[rest].sign(), rtol=1e-3, atol=1e-5)


def test_learning_rate_is_constant_without_anneal_and_follows_anneal_steps():
    still = iterate(ppo_on(COUNT, 4, horizon=2, minibatches=1, steps=16, anneal=False, learning_rate=0.01), 4)
    assert stats_of(still)["learning_rate"] == pytest.approx(0.01)
    # 17 steps are three iterations of 8: the rates are 1, 2/3 and 1/3 of the first.
    own = ppo_on(COUNT, 4, horizon=2, minibatches=1, steps=1_000_000, anneal_steps=17, learning_rate=0.01)
    rates = []
    for _ in range(4):
        iterate(own, 1)
        rates.append(stats_of(own)["learning_rate"])
    assert rates == pytest.approx([0.01, 0.02 / 3, 0.01 / 3, 0.0], abs=1e-9)


def test_every_sample_is_in_one_minibatch_of_an_epoch():
    T, N = 6, 64
    ppo = ppo_on(PUSH, N, horizon=T, epochs=3, minibatches=4, normalize_advantages=False)
    ppo.collect()
    # Each sample gets a number, in every buffer.
    number = torch.arange(T * N, dtype=torch.float32).view(T, N)
    ppo.rollout.observation[:-1] = number[:, None]
    ppo.experience.raw.copy_(number[:, None])
    ppo.experience.log_probability.copy_(number)
    ppo.experience.value[:-1] = number
    seen = []

    def look(batch):
        seen.append(batch)
        return torch.zeros(len(TERMS) + 1)

    ppo.backend.step = look
    ppo.update()
    assert len(seen) == 12
    orders = []
    for epoch in range(3):
        batches = seen[4 * epoch : 4 * epoch + 4]
        assert all(len(batch.value) == T * N // 4 for batch in batches)
        samples = torch.cat([batch.value for batch in batches]).long()
        assert torch.equal(samples.sort().values, torch.arange(T * N))
        blocks = samples.view(-1, 32)
        assert torch.equal(blocks, blocks[:, :1] + torch.arange(32)) and not (blocks[:, 0] % 32).any()
        orders.append(blocks[:, 0].tolist())
        for batch in batches:
            for field in (*batch.observation, *batch.action, batch.log_probability):
                assert torch.equal(field, batch.value)
            step, lane = batch.value.long() // N, batch.value.long() % N
            assert torch.equal(batch.advantage, ppo.experience.advantage[step, lane]) and torch.equal(
                batch.returns, ppo.experience.returns[step, lane]
            )
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("net", [{}, {"memory": "gru", "shared": True}], ids=["feed-forward", "recurrent"])
def test_the_replay_ratio_counts_samples_learned_from(net):
    def run(**algo):
        ppo = ppo_on(CARTPOLE, 32, mlp.Config(hidden=(8,), **net), horizon=4, minibatches=4, anneal=False, **algo)
        return iterate(ppo, 2)

    # In whole minibatches of a quarter of the samples: 1.42 is six of them, and a whole number as many epochs.
    assert (
        int(run(replay_ratio=1.42).state("all")["adam/step"]) == 2 * 6
        and int(run(replay_ratio=0.01).state("all")["adam/step"]) == 2
    )
    assert bytes_of(run(replay_ratio=2, epochs=7)) == bytes_of(run(epochs=2))


def test_advantages_are_normalised_over_the_iteration():
    ppo, plain = (ppo_on(PUSH, 16, horizon=8, normalize_advantages=normalize) for normalize in (True, False))
    for each in (ppo, plain):
        each.collect()
        each.backend.estimate_advantages()
    assert float(ppo.experience.advantage.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(ppo.experience.advantage.std()) == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(ppo.experience.returns, plain.experience.returns)
    torch.testing.assert_close(
        ppo.experience.advantage,
        (plain.experience.advantage - plain.experience.advantage.mean()) / plain.experience.advantage.std(),
    )


def recorded(ppo):
    """Let `ppo` descend as ever, and note after each step what a checkpoint would hold, and its numbers."""
    steps, descend = [], ppo.backend.step

    def noted(batch):
        numbers = descend(batch)
        steps.append((numbers, clones(ppo)))
        return numbers

    ppo.backend.step = noted
    return steps


def test_normalizers_are_constant_during_an_iteration():
    ppo = ppo_on(PUSH, 16, horizon=8, normalize_observations=True, normalize_rewards=True)
    samples, accrued, carried = [], [], torch.zeros(16)
    for _ in range(3):
        before = clones(ppo)
        steps = recorded(ppo)
        ppo.collect()
        rollout = ppo.rollout
        reward, ended = rollout.reward.clone(), (rollout.terminated | rollout.truncated).bool()
        samples.append(rollout.observation[:-1].transpose(0, 1).flatten(1).clone())
        for t in range(8):
            carried = 0.99 * carried + reward[t]
            accrued.append(carried)
            carried = carried.masked_fill(ended[t], 0.0)
        ppo.update()
        names = [name for name in before if name.startswith(("policy/observation", "return/"))]
        assert len(names) == 10
        for _, after in steps:
            assert all(torch.equal(before[name], after[name]) for name in names), (
                "a normalizer moved within an iteration"
            )
        torch.testing.assert_close(ppo.experience.reward, (reward * before["return/scale"]).clamp(-10, 10))
        # After it they are those of everything seen so far (the weight of their beginning is 1e-4).
        seen, spread = torch.cat(samples, dim=1).double(), torch.stack(accrued).double()
        torch.testing.assert_close(ppo.policy.normalizer.running_mean[:, 0], seen.mean(1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            ppo.policy.normalizer.running_variance[:, 0], seen.var(1, correction=0), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            ppo.return_normalizer.running_variance.flatten()[0], spread.var(correction=0), rtol=1e-4, atol=1e-5
        )
        del ppo.backend.step
    assert ppo.return_normalizer.inv_std.item() != 1.0


def test_start_resets_accrued_returns():
    ppo = ppo_on(PUSH, 4, horizon=4, normalize_rewards=True)
    iterate(ppo, 1)
    carried = ppo.state("train")["algo/carried"]
    assert carried.abs().max() > 0
    ppo.start()
    assert carried.abs().max() == 0


def test_scaled_rewards_are_clipped():
    ppo = ppo_on(COUNT, 4, horizon=3, normalize_rewards=True)
    ppo.collect()
    ppo.return_normalizer.inv_std.fill_(5.0)
    ppo.backend.estimate_advantages()
    assert RunningNormalizer.CLIP == 10.0
    assert ppo.experience.reward[:, 0].tolist() == [5.0, 10.0, 10.0]
    assert ppo.rollout.reward[:, 0].tolist() == [1.0, 2.0, 3.0]


@device
def _generous_step(s, action, p, key, tally):
    s[0] += float32(1.0)
    return float32(1e20) * s[0], s[0] >= s[1]


@pytest.mark.slow
def test_rewards_whose_squares_overflow_are_scaled():
    ppo = ppo_on(dataclasses.replace(COUNT, step=_generous_step), 16, horizon=8, normalize_rewards=True)
    iterate(ppo, 3)
    assert ppo.rollout.reward.max() == float32(3e20)
    scaled = ppo.experience.reward
    assert torch.isfinite(scaled).all() and scaled.min() > 0.1 and scaled.max() < 10.0


def test_kl_stop_skips_the_remaining_steps():
    ppo = ppo_on(CARTPOLE, 32, horizon=8, learning_rate=0.02, epochs=4, minibatches=4, target_kl=1e-3)
    stopped_in = 0
    for _ in range(4):
        before = {name: tensor for name, tensor in clones(ppo).items() if name.startswith(("policy/", "adam/"))}
        steps = recorded(ppo)
        iterate(ppo, 1)
        del ppo.backend.step
        assert len(steps) == 16
        stopped = False
        for numbers, after in steps:
            stopped = stopped or bool(numbers[TERMS.index("approx_kl")] > 1.5e-3)
            for name, tensor in before.items():
                assert torch.equal(tensor, after[name]) == stopped, (
                    f"{name} {'moved after' if stopped else 'stood still before'} the stop"
                )
            before = {name: after[name] for name in before}
        stopped_in += stopped
        assert torch.isfinite(ppo.stats).all()
    assert stopped_in == 4, "the stop is not put to the test"
    free = ppo_on(CARTPOLE, 32, horizon=8, learning_rate=0.02, epochs=4, minibatches=4)
    iterate(free, 4)
    assert int(free.state("all")["adam/step"]) == 64 > int(ppo.state("all")["adam/step"]) >= 4


def test_stats_are_means_over_minibatches():
    ppo = ppo_on(PUSH, 16, horizon=8, epochs=2, minibatches=2)
    ppo.collect()
    steps = recorded(ppo)
    ppo.update()
    assert len(COLUMNS) == len(Stats._fields) == len(set(COLUMNS)) == len(ppo.stats)
    assert ppo.cycle.advantages.discount.gamma.dtype == ppo.cycle.advantages.discount.decay.dtype == np.float32
    stats = stats_of(ppo)
    expected = torch.stack([numbers for numbers, _ in steps]).mean(0)
    assert [stats[name] for name in COLUMNS[: len(TERMS) + 1]] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-7)
    residual = ppo.experience.returns - ppo.experience.value[:-1]
    assert stats["explained_variance"] == pytest.approx(
        1 - float(residual.var() / ppo.experience.returns.var()), rel=1e-4
    )
    assert stats["not_finite"] == 0.0


def test_non_finite_values_are_counted():
    ppo = ppo_on(PUSH, 16, horizon=8)
    ppo.collect()
    ppo.rollout.reward[3, 2] = math.nan
    ppo.update()
    assert stats_of(ppo)["not_finite"] > 0
    assert ppo.policy.flat.not_finite()

    fine = ppo_on(PUSH, 16, horizon=8)
    fine.collect()
    fine.backend.step = lambda batch: torch.tensor([math.nan, math.inf, *[0.0] * (len(TERMS) - 1)])
    fine.update()
    assert stats_of(fine)["not_finite"] == 2 and not fine.policy.flat.not_finite()


# BITS


def digest(ppo):
    return hashlib.sha256(ppo.policy.flat.values.detach().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("env", "algo"),
    [
        (CARTPOLE, {}),
        (GATE, EVERYTHING),
        pytest.param(PUSH, EVERYTHING, marks=pytest.mark.slow),
        pytest.param(PUSH, {"kernels": "torch", "microbatch": 48, **EVERYTHING}, marks=pytest.mark.slow),
    ],
    ids=[
        "cartpole",
        "masked, everything on",
        "gaussian, everything on",
        "gaussian, everything on, by autograd in parts",
    ],
)
def test_same_seed_same_bits_other_seed_other_bits(env, algo):
    def after_15_iterations(seed):
        return digest(iterate(ppo_on(env, 64, horizon=8, epochs=2, seed=seed, **algo), 15))

    first = after_15_iterations(1)
    torch.manual_seed(99)
    assert after_15_iterations(1) == first
    assert after_15_iterations(2) != first


def test_same_seed_same_bits_from_pictures(one_thread):
    def after_2_iterations(seed):
        return digest(iterate(ppo_on(SEEN, 32, mlp.Config(**CNN), horizon=8, epochs=2, seed=seed), 2))

    first = after_2_iterations(1)
    torch.manual_seed(99)
    assert after_2_iterations(1) == first
    assert after_2_iterations(2) != first


RESUMED = [
    pytest.param(CARTPOLE, {}, EVERYTHING, id="categorical, everything on"),
    pytest.param(CARTPOLE, {"shared": True, "activation": "relu"}, {}, id="shared"),
    pytest.param(CARTPOLE, {}, {"kernels": "torch", **EVERYTHING}, id="by autograd, everything on"),
    pytest.param(PUSH, {}, {"kernels": "torch", "microbatch": 10}, id="by autograd in parts", marks=pytest.mark.slow),
    pytest.param(PUSH, {}, {**EVERYTHING, "optimizer": "muon"}, id="gaussian, everything on"),
    pytest.param(
        PUSH, {"squash": True, "initial_log_std": -0.5}, {"normalize_rewards": True, "anneal": False}, id="squashed"
    ),
    pytest.param(PICK, {}, EVERYTHING, id="bytes and several choices, everything on"),
    pytest.param(GATE, {}, EVERYTHING, id="masked, everything on"),
    pytest.param(SEEN, CNN, EVERYTHING, id="pictures, everything on"),
    *(
        pytest.param(env, net, algo, id=name, marks=pytest.mark.slow)
        for env, net, algo, name in (
            (SEEN, {}, {"normalize_observations": True}, "pictures by an MLP, manual backward"),
            (FILL, {}, {"kernels": "torch", "microbatch": 10}, "masked, by autograd in parts"),
        )
    ),
]


@pytest.mark.parametrize(("env", "net", "algo"), RESUMED)
def test_resume_from_state_is_exact(env, net, algo):
    def fresh(**more):
        return ppo_on(env, 24, mlp.Config(**{"hidden": (8,), **net}), horizon=4, steps=24 * 4 * 8, **algo, **more)

    whole = iterate(fresh(), 4)
    saved = {name: torch.from_numpy(tensor.numpy().copy()) for name, tensor in whole.state("all").items()}
    resumed = fresh(start=False)
    assert set(resumed.state("all")) == set(saved)
    for name, tensor in resumed.state("all").items():
        assert tensor.shape == saved[name].shape and tensor.dtype == saved[name].dtype
        tensor.copy_(saved[name])
    for _ in range(3):
        iterate(whole, 1)
        iterate(resumed, 1)
        assert bytes_of(whole) == bytes_of(resumed)
        assert whole.stats.numpy().tobytes() == resumed.stats.numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("env", [CARTPOLE, PUSH, PICK], ids=["categorical", "gaussian", "multi"])
def test_training_runs_under_torchs_deterministic_algorithms(env):
    net = mlp.Config(hidden=(8,), squash=env is PUSH)
    plain = iterate(ppo_on(env, 16, net, horizon=4, **EVERYTHING), 3)
    torch.use_deterministic_algorithms(True)
    try:
        strict = iterate(ppo_on(env, 16, net, horizon=4, **EVERYTHING), 3)
        Evaluator(strict.policy, env, env.Params(), episodes=4, seed=1, greedy=False).run(0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert bytes_of(plain) == bytes_of(strict)


def test_threads_make_no_difference(monkeypatch):
    # The kernels' threads: those of torch's matrix products are a choice that a run keeps.
    monkeypatch.setattr(kernel, "SERIAL_BELOW", 0)
    threads = numba.get_num_threads()
    several = bytes_of(iterate(ppo_on(CARTPOLE, 48, horizon=4, **EVERYTHING), 3))
    numba.set_num_threads(1)
    try:
        assert bytes_of(iterate(ppo_on(CARTPOLE, 48, horizon=4, **EVERYTHING), 3)) == several
    finally:
        numba.set_num_threads(threads)


def test_eager_makes_no_difference_on_a_cpu():
    first = iterate(ppo_on(PUSH, 8, horizon=4), 2)
    second = PPO(
        DeviceWorld(PUSH, 8, seed=1), first.config, mlp.Config(hidden=(16,)), seed=1, steps=100_000, eager=True
    )
    second.start()
    assert bytes_of(iterate(second, 2)) == bytes_of(first)


# NETWORKS OF ONE'S OWN

OWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, observation, head):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation, 12), nn.LayerNorm(12), nn.SiLU())
        self.head, self.value = nn.Linear(12, head), nn.Linear(12, 1)
        self.register_buffer("scale", torch.full((observation,), 0.5))
    def forward(self, observation):
        features = self.body(observation * self.scale)
        return self.head(features), self.value(features)
"""


@pytest.mark.parametrize("env", [CARTPOLE, PUSH])
def test_user_network_trains_and_resumes(tmp_path, env):
    (tmp_path / "own.py").write_text(OWN)
    net = mlp.Config(kind=f"{tmp_path / 'own.py'}:Net")
    first, second = (iterate(ppo_on(env, 16, net, horizon=4), 3) for _ in range(2))
    assert bytes_of(first) == bytes_of(second)
    untrained = ppo_on(env, 16, net, horizon=4, start=False)
    moved = {
        name
        for name, a, b in zip(
            first.policy.flat.names, first.policy.flat.parameters, untrained.policy.flat.parameters, strict=True
        )
        if not torch.equal(a, b)
    }
    assert moved == set(first.policy.flat.names)
    for name, tensor in untrained.state("all").items():
        tensor.copy_(first.state("all")[name])
    assert bytes_of(iterate(untrained, 2)) == bytes_of(iterate(first, 2))


# CONFIGURATION


def test_algorithm_is_found_by_its_file_name():
    assert "ppo" in algos.names() and algos.load("ppo") is PPO and PPO.Config is PPOConfig
    with pytest.raises(KeyError):
        algos.load("ppoo")


@pytest.mark.parametrize(
    ("lanes", "horizon", "minibatches", "fits"),
    [
        (1024, 16, 4, True),
        (32, 4, 4, True),
        (32, 4, 8, False),
        (32, 6, 4, False),
        (100, 3, 5, True),
        (100, 3, 7, False),
        (1, 4, 4, True),
        (1, 4, 8, False),
    ],
)
def test_sizes_that_do_not_divide_are_refused(lanes, horizon, minibatches, fits):
    config = PPOConfig(horizon=horizon, minibatches=minibatches)
    found = config.problems(lanes)
    if fits:
        assert found == []
        ppo = ppo_on(COUNT, lanes, horizon=horizon, minibatches=minibatches, epochs=1)
        iterate(ppo, 1)
        assert int(ppo.state("all")["adam/step"]) == minibatches and torch.isfinite(ppo.stats).all()
    else:
        [(key, sentence)] = found
        assert (
            key == "minibatches"
            and str(minibatches) in sentence
            and str(lanes) in sentence
            and str(horizon) in sentence
        )


def test_one_sample_per_iteration_is_refused():
    # The spread of one advantage is not a number.
    [(key, sentence)] = PPOConfig(horizon=1, minibatches=1).problems(1)
    assert key == "horizon" and "2" in sentence
    assert PPOConfig(horizon=2, minibatches=1).problems(1) == [] == PPOConfig(horizon=1, minibatches=1).problems(2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"horizon": 0},
        {"horizon": 1.5},
        {"epochs": 2000},
        {"minibatches": 0},
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"gamma": 1.01},
        {"gae_lambda": -0.1},
        {"clip": 0},
        {"value_clip": 0},
        {"target_kl": -1},
        {"max_gradient_norm": 0},
        {"microbatch": 0},
        {"microbatch": 2.5},
        {"precision": "fp16"},
        {"lerning_rate": 1},
    ],
)
def test_invalid_values_are_refused(wrong):
    with pytest.raises(ValidationError):
        PPOConfig(**wrong)


# LEARNING


def returns_of(ppo, iterations):
    """The mean return of the episodes that ended in so many iterations."""
    ppo.world.episode_sums(ppo.rollout)  # forget what was before
    sums = torch.zeros(3, dtype=torch.float64)
    for _ in range(iterations):
        iterate(ppo, 1)
        sums += ppo.world.episode_sums(ppo.rollout)
    return (sums[2] / sums[0]).item()


def test_return_improves_on_cartpole():
    ppo = ppo_on(CARTPOLE, 128, mlp.Config(hidden=(32, 32)), horizon=32, steps=300_000, learning_rate=5e-3)
    assert returns_of(ppo, 3) < 40
    iterate(ppo, 35)
    assert returns_of(ppo, 8) > 150


@pytest.mark.slow
def test_reward_improves_on_push_task():
    # Standing at zero costs nothing but the noise of the pushes.
    ppo = ppo_on(
        PUSH,
        128,
        horizon=16,
        steps=128 * 16 * 40,
        learning_rate=5e-3,
        normalize_observations=True,
        entropy_coefficient=0.0,
    )
    before = returns_of(ppo, 2)
    iterate(ppo, 30)
    assert returns_of(ppo, 3) > before / 3


@pytest.mark.slow
def test_reward_improves_from_pictures():
    """FILL's clock allows four stones: on the largest numbers that are empty, so all but the smallest of them."""
    ppo = ppo_on(SEEN, 64, horizon=8, learning_rate=1e-3, steps=64 * 8 * 40, gamma=0.9)
    evaluator = Evaluator(ppo.policy, SEEN, NoParams(), episodes=64, seed=1, max_steps=32)
    evaluator.rollout.reset()
    full = [board.index(1) for board in evaluator.rollout.world.lanes.int_state.T.tolist()]
    best = sum(15 - first - (1 if first == 0 else 0) for first in full) / 64
    assert evaluator.run(0).mean < best - 0.5
    iterate(ppo, 15)
    assert best - 0.2 < evaluator.run(0).mean <= best


def test_reward_improves_on_pick_task():
    # Two right answers a step are worth 2; guessing 1/3 + 1/2.
    ppo = ppo_on(
        PICK, 64, horizon=10, steps=64 * 10 * 40, learning_rate=5e-3, minibatches=4, normalize_observations=True
    )
    assert returns_of(ppo, 2) / 5 < 1.0
    iterate(ppo, 20)
    assert returns_of(ppo, 3) / 5 > 1.6
