"""PQN: Q(lambda) returns and bootstrapping by hand, the gradient against a plain float64 version, exploration and legal
actions, what it refuses, repeatability to the bit, and that it learns.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import COUNT, FILL, GATE, MY_NET, PUSH, SEEN, bytes_of, clones, iterate

from operant.algos.pqn import PQN
from operant.algos.pqn.pqn import TERMS, Batch, Stats
from operant.envs import find
from operant.errors import ConfigError
from operant.nn import epsilon_greedy, mlp
from operant.training.evaluate import Evaluator
from operant.worlds.device_world import DeviceWorld

CARTPOLE = find("cartpole")
NET = mlp.Config(hidden=(16, 16), activation="relu", layer_norm=True)

pytestmark = pytest.mark.usefixtures("one_thread")


def pqn_on(env, lanes, net=NET, *, seed=1, steps=100_000, start=True, **algo):
    """PQN on a fresh world, begun."""
    algo = {"minibatches": 2, **algo}
    pqn = PQN(DeviceWorld(env, lanes, seed=seed), PQN.Config(**algo), net, seed=seed, steps=steps)
    if start:
        pqn.start()
    return pqn


# RETURNS

SQUARE = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, observation, head):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))
    def forward(self, observation):
        square = self.factor * observation ** 2
        return torch.cat([-square - 1.0, square], dim=1), square[:, 0]
"""


def test_q_lambda_returns_by_hand(tmp_path):
    """A network with max Q(o) = o^2 plays COUNT: o counts the episode's steps, r is the count after a step. gamma =
    1/2, lambda = 1/4, four steps.

    G_t = r_t + 1/2 (3/4 V_{t+1} + 1/4 G_{t+1}), V = max Q. Lane 0 is truncated at 3, where V of the true final
    observation is 9 and V of the next episode's first is 0. Lane 3 is terminated there at once, which rules. Lane 1
    terminates every step, lane 2 every other.

    t   o  r    lane 0                                          lane 3
    3   0  1    1 + 1/2 V(1) = 1.5 (the rollout ends: G = V)     1.5
    2   2  3    3 + 1/2 9 = 7.5                                  3
    1   1  2    2 + 1/2 (3/4 4 + 1/4 7.5) = 4.4375               2 + 1/2 (3 + 3/4) = 3.875
    0   0  1    1 + 1/2 (3/4 1 + 1/4 4.4375) = 1.9296875         1 + 1/2 (3/4 + 1/4 3.875) = 1.859375
    """
    (tmp_path / "net.py").write_text(SQUARE)
    pqn = pqn_on(COUNT, 4, mlp.Config(kind=f"{tmp_path / 'net.py'}:Net"), horizon=4, gamma=0.5, q_lambda=0.25)
    pqn.collect()
    pqn.backend.estimate_advantages()
    expected = torch.empty(4, 4)
    expected[:, 0] = torch.tensor([1.9296875, 4.4375, 7.5, 1.5])
    expected[:, 1] = 1.0
    expected[:, 2] = torch.tensor([1.0 + 0.5 * (0.75 + 0.25 * 2.0), 2.0, 1.0 + 0.5 * (0.75 + 0.25 * 2.0), 2.0])
    expected[:, 3] = torch.tensor([1.859375, 3.875, 3.0, 1.5])
    assert torch.equal(pqn.experience.returns, expected)


def test_reward_scale_multiplies_rewards_of_returns():
    pqn = pqn_on(COUNT, 4, horizon=4, gamma=0.0, reward_scale=0.5)
    pqn.collect()
    pqn.backend.estimate_advantages()
    assert torch.equal(pqn.experience.returns, 0.5 * pqn.rollout.reward)
    assert pqn.rollout.reward.max() == 3.0


# THE LOSS


def plain_values(policy, observation):
    """Q (B, A) in float64, written on its own for two hidden layers with layer normalization and relu, from parameters
    by name.
    """
    parameters = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in zip(policy.flat.names, policy.flat.parameters, strict=True)
    }
    features = observation.double().t()
    weights = [
        (parameters["first_weight"], parameters["first_bias"][:, 0]),
        (parameters["weights.0"][0], parameters["biases.0"][0, :, 0]),
    ]
    for k, (weight, bias) in enumerate(weights):
        features = torch.nn.functional.layer_norm(
            features @ weight.t() + bias,
            (len(weight),),
            parameters[f"norm_gains.{k}"][0, :, 0],
            parameters[f"norm_biases.{k}"][0, :, 0],
        ).relu()
    return parameters, features @ parameters["head_weight"].t() + parameters["head_bias"][:, 0]


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_the_gradient_is_that_of_the_squared_error(kernels):
    pqn = iterate(pqn_on(CARTPOLE, 64, horizon=8, minibatches=1, kernels=kernels), 3)
    assert pqn.kernels == ("torch" if kernels == "torch" else "manual_backward")
    pqn.collect()
    pqn.backend.estimate_advantages()
    policy, rollout = pqn.policy, pqn.rollout
    batch = Batch(
        rollout.observation[:-1].transpose(0, 1).flatten(1),
        rollout.action.transpose(0, 1).flatten(1),
        pqn.experience.returns.flatten(),
    )
    parameters, values = plain_values(policy, batch.observation)
    taken = values[torch.arange(len(values)), batch.action[0].long()]
    expected_loss = ((taken - batch.returns.double()) ** 2).mean() / 2
    expected = torch.autograd.grad(expected_loss, list(parameters.values()), allow_unused=True)
    terms = dict(zip(TERMS, pqn.backend.gradient(batch).tolist(), strict=True))
    assert terms["q_loss"] == pytest.approx(expected_loss.item(), rel=1e-5)
    assert terms["q_mean"] == pytest.approx(taken.mean().item(), rel=1e-5)
    assert terms["td_error"] == pytest.approx((taken - batch.returns).abs().mean().item(), rel=1e-5)
    for parameter, offset, wanted in zip(policy.flat.parameters, policy.flat.offsets, expected, strict=True):
        found = policy.flat.gradient[offset : offset + parameter.numel()].view(parameter.shape)
        torch.testing.assert_close(
            found.double(), torch.zeros_like(found).double() if wanted is None else wanted, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("env", [CARTPOLE, FILL])
def test_manual_backward_learns_as_autograd(env):
    one, other = (
        iterate(pqn_on(env, 64, horizon=32, kernels=kernels, **EVERYTHING), 3) for kernels in ("torch", "auto")
    )
    torch.testing.assert_close(one.policy.flat.values.data, other.policy.flat.values.data, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.stats, other.stats, rtol=1e-3, atol=1e-4)


# ACTING


@pytest.mark.parametrize("env", [CARTPOLE, FILL, SEEN])
def test_rollout_fields_belong_to_the_same_steps(env):
    pqn = iterate(pqn_on(env, 16, horizon=8, epsilon_start=0.5, epsilon_end=0.5), 2)
    first = pqn.rollout.observation[-1].clone()
    pqn.collect()
    assert torch.equal(pqn.rollout.observation[0], first), "a rollout does not begin where the last one ended"
    explored = 0
    for t in range(8):
        legal = None if pqn.rollout.legal is None else pqn.rollout.legal[t]
        values, action = pqn.policy.values(pqn.rollout.observation[t], legal), pqn.rollout.action[t]
        assert torch.equal(action, epsilon_greedy(values, pqn.collector.noise[t], pqn.policy.epsilon, legal))
        torch.testing.assert_close(pqn.experience.value[t], values.max(dim=0).values, rtol=1e-4, atol=1e-6)
        greedy = pqn.collector.noise[t, 0] >= 0.5
        assert torch.equal(action[0, greedy], values.argmax(dim=0).int()[greedy])
        explored += int((action[0] != values.argmax(dim=0)).sum())
        assert legal is None or legal.gather(0, action.long()).all(), "an illegal action was taken"
    assert explored > 10


def test_exploration_is_uniform_over_legal_actions():
    legal = torch.tensor([[1, 0, 1, 0, 1, 0]], dtype=torch.uint8).t().repeat(1, 30_000)
    noise = torch.rand(2, 30_000, generator=torch.Generator().manual_seed(1))
    action = epsilon_greedy(torch.randn(6, 1).expand(6, 30_000), noise, torch.tensor(1.0), legal)
    shares = torch.bincount(action[0], minlength=6) / 30_000
    torch.testing.assert_close(shares, torch.tensor([1, 0, 1, 0, 1, 0]) / 3, atol=0.01, rtol=0)


def test_epsilon_decays_linearly_and_is_reported():
    pqn = pqn_on(CARTPOLE, 4, horizon=4, epsilon_start=1.0, epsilon_end=0.2, epsilon_steps=64)
    seen = []
    for _ in range(6):
        iterate(pqn, 1)
        seen.append(dict(zip(Stats._fields, pqn.stats.tolist(), strict=True))["epsilon"])
    np.testing.assert_allclose(seen, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)


@pytest.mark.parametrize(("env", "kind"), [(PUSH, "Box"), (GATE, "MultiDiscrete")])
def test_continuous_actions_are_refused_with_an_alternative(env, kind):
    with pytest.raises(ConfigError, match=rf"Discrete.*{kind}.*ppo"):
        pqn_on(env, 4)


# REPEATABILITY

EVERYTHING = {"normalize_observations": True, "epsilon_steps": 300, "learning_rate": 0.01}


@pytest.mark.parametrize("env", [CARTPOLE, FILL])
def test_same_seed_same_bits_and_resume_is_exact(env):
    whole, again, other = (iterate(pqn_on(env, 16, seed=seed, horizon=8, **EVERYTHING), 3) for seed in (1, 1, 2))
    assert bytes_of(whole) == bytes_of(again) != bytes_of(other)
    half = clones(whole)
    iterate(whole, 3)
    resumed = pqn_on(env, 16, seed=1, start=False, horizon=8, **EVERYTHING)
    for name, tensor in resumed.state("all").items():
        tensor.copy_(half[name])
    assert bytes_of(iterate(resumed, 3)) == bytes_of(whole)


def test_user_network_and_pictures_train(tmp_path):
    (tmp_path / "net.py").write_text(MY_NET)
    own = iterate(pqn_on(CARTPOLE, 16, mlp.Config(kind=f"{tmp_path / 'net.py'}:MyNet"), horizon=4), 2)
    board = iterate(
        pqn_on(SEEN, 16, mlp.Config(kind="cnn", cnn="board", channels=(4, 4, 4), hidden=(16,)), horizon=4), 2
    )
    for pqn in (own, board):
        assert torch.isfinite(pqn.stats).all() and pqn.stats[-1] == 0 and pqn.policy.flat.gradient.abs().sum() > 0


def test_non_finite_values_are_counted():
    pqn = iterate(pqn_on(CARTPOLE, 16, horizon=4), 1)
    pqn.policy.flat.values.data[0] = float("nan")
    iterate(pqn, 1)
    assert pqn.stats[-1] > 0


# LEARNING


def test_return_improves_on_cartpole():
    net = mlp.Config(hidden=(64, 64), activation="relu", layer_norm=True)
    algo = {"horizon": 32, "minibatches": 8, "q_lambda": 0.95, "normalize_observations": True}
    pqn = iterate(pqn_on(CARTPOLE, 128, net, steps=4_000_000, **algo), 30)
    assert Evaluator(pqn.policy, CARTPOLE, None, episodes=50, seed=1).run(0).mean > 150.0
