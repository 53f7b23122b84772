"""DQN: the projection of C51 and the targets by hand, gradients against float64, time limits and true ends, target
networks, exploration and legal actions, repeatability to the bit, and that it learns.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_pqn import SQUARE
from toys import COUNT, FILL, GATE, MY_NET, PUSH, SEEN, bytes_of, clones

from operant.algos.dqn import DQN
from operant.algos.dqn.dqn import Stats, q_loss, q_target
from operant.data import Batch
from operant.envs import find
from operant.errors import ConfigError
from operant.nn import QHead, mlp, project_onto_support
from operant.training.evaluate import Evaluator
from operant.worlds.device_world import DeviceWorld

CARTPOLE = find("cartpole")
NET = mlp.Config(hidden=(16, 16), activation="relu")
SMALL = {
    "horizon": 8,
    "batch_size": 32,
    "learning_starts": 128,
    "replay_capacity": 1024,
    "epsilon_steps": 2000,
    "target_every": 4,
}

pytestmark = pytest.mark.usefixtures("one_thread")


def dqn_on(env, lanes, net=NET, *, seed=1, steps=100_000, start=True, **algo):
    """DQN on a fresh world, with its episodes started."""
    dqn = DQN(DeviceWorld(env, lanes, seed=seed), DQN.Config(**{**SMALL, **algo}), net, seed=seed, steps=steps)
    if start:
        dqn.start()
    return dqn


def iterate(dqn, times):
    for _ in range(times):
        dqn.train()
    return dqn


def stats_of(dqn):
    return dict(zip(Stats._fields, dqn.stats.tolist(), strict=True))


# C51


def test_projection_onto_a_support_of_three_atoms():
    """Support -1, 0, 1 (dz = 1), Z with 0.2, 0.3, 0.5.

    R = 0.25, discount 1/2: Z moves to -0.25, 0.25, 0.75. -0.25 gives a quarter of 0.2 to -1 and the rest to 0; 0.25 a
    quarter of 0.3 to 1 and the rest to 0;
    0.75 a quarter of 0.5 to 0 and the rest to 1: (0.05, 0.15 + 0.225 + 0.125, 0.075 + 0.375). R = 3, discount 1: all
    beyond the end, 1. R = 1, discount 0 (the episode terminated): all at 1. R = 0, discount 1: as it was.
    """
    support = torch.tensor([-1.0, 0.0, 1.0])
    probability = torch.tensor([[0.2], [0.3], [0.5]]).expand(3, 4)
    found = project_onto_support(
        probability, torch.tensor([0.25, 3.0, 1.0, 0.0]), torch.tensor([0.5, 1.0, 0.0, 1.0]), support
    )
    expected = torch.tensor([[0.05, 0.5, 0.45], [0, 0, 1], [0, 0, 1], [0.2, 0.3, 0.5]]).t()
    torch.testing.assert_close(found, expected)


def test_projection_equals_algorithm_1_of_the_paper():
    """Algorithm 1 of Bellemare et al. 2017, atom by atom in float64."""
    random = np.random.default_rng(1)
    K, B, low, high = 51, 64, -3.0, 7.0
    probability = random.dirichlet(np.ones(K), B).T
    reward, discount = random.normal(0, 4, B), random.choice([0.0, 0.9, 0.99], B)
    support, step = np.linspace(low, high, K), (high - low) / (K - 1)
    expected = np.zeros((K, B))
    for k in range(B):
        for i in range(K):
            place = (min(max(reward[k] + discount[k] * support[i], low), high) - low) / step
            below, above = math.floor(place), math.ceil(place)
            if below == above:
                expected[below, k] += probability[i, k]
            else:
                expected[below, k] += probability[i, k] * (above - place)
                expected[above, k] += probability[i, k] * (place - below)
    found = project_onto_support(
        *(torch.tensor(x, dtype=torch.float32) for x in (probability, reward, discount)), torch.linspace(low, high, K)
    )
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
    np.testing.assert_allclose(found.sum(dim=0).numpy(), 1.0, atol=1e-4)


# TARGETS


def batch_of(reward, discount, *, action=(0,), next_legal=None):
    B = len(reward)
    empty = torch.zeros(1, B)
    actions = torch.tensor([list(action) * B][:1], dtype=torch.int32)[:, :B]
    legal = None if next_legal is None else torch.tensor(next_legal, dtype=torch.uint8)
    return Batch(empty, actions, torch.tensor(reward), torch.tensor(discount), empty, None, legal, torch.zeros(0, B))


def head_of(actions, **how):
    how = {"atoms": 1, "duelling": False, "low": 0.0, "high": 0.0, "epsilon": 0.1, **how}
    return QHead(actions, **how)


def test_targets_of_three_transitions():
    """Target network: Q(s', .) = 1, 5, 3. y = R + discount max: 2 + 0.5 x 5; where terminated R alone; where action 1
    is illegal 2 + 0.5 x 3.
    """
    following = torch.tensor([[1.0, 5.0, 3.0]]).t().expand(3, 3)
    batch = batch_of([2.0, 2.0, 2.0], [0.5, 0.0, 0.5], next_legal=[[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    assert q_target(head_of(3), following, following, batch).tolist() == [4.5, 2.0, 3.5]


def test_double_q_learning_chooses_by_the_online_network():
    """The online network prefers action 2, whose value by the target network is 3."""
    following, own = torch.tensor([[1.0, 5.0, 3.0]]).t(), torch.tensor([[0.0, 1.0, 2.0]]).t()
    assert q_target(head_of(3), following, own, batch_of([2.0], [0.5])).tolist() == [3.5]
    legal = [[1], [1], [0]]
    assert q_target(head_of(3), following, own, batch_of([2.0], [0.5], next_legal=legal)).tolist() == [4.5]


def test_duelling_head_adds_value_and_centred_advantages():
    """Advantages 1, 5, 3 and value 10: Q = 10 + A - 3."""
    head = head_of(3, duelling=True)
    assert head.parameter_rows == 4
    assert head.values(torch.tensor([[1.0, 5.0, 3.0, 10.0]]).t())[:, 0].tolist() == [8.0, 12.0, 10.0]


def test_targets_bootstrap_at_time_limits_and_not_at_true_ends(tmp_path):
    """A network with max Q(o) = o^2 plays COUNT (see test_pqn): r is the count after the step, gamma 1/2, three steps
    of reward.

    Lane 0 is truncated at 3: from o = 1 it is 2 + 3/2 + 9/4, with Q of the true final observation; from o = 0 1 + 2/2 +
    3/4 + 9/8; from o = 2 3 + 9/2. Lane 3 terminates there: the same without the 9s. Lane 2 terminates at 2: 1 + 2/2
    from o = 0, 2 from o = 1. Lane 1 always at 1.
    """
    (tmp_path / "net.py").write_text(SQUARE)
    net = mlp.Config(kind=f"{tmp_path / 'net.py'}:Net")
    dqn = iterate(dqn_on(COUNT, 4, net, n_step=3, gamma=0.5, learning_starts=10_000, replay_capacity=20_000), 8)
    expected = {
        (0, 0.0): 1 + 2 / 2 + 3 / 4 + 9 / 8,
        (0, 1.0): 2 + 3 / 2 + 9 / 4,
        (0, 2.0): 3 + 9 / 2,
        (3, 0.0): 1 + 2 / 2 + 3 / 4,
        (3, 1.0): 2 + 3 / 2,
        (3, 2.0): 3.0,
        (2, 0.0): 1 + 2 / 2,
        (2, 1.0): 2.0,
        (1, 0.0): 1.0,
    }
    seen = set()
    for number in range(8):
        batch = dqn.cycle.replay.sample(0, number)
        found = q_target(dqn.policy.distribution, *dqn.next_outputs(batch), batch)
        lanes = dqn.cycle.replay.index % 4
        for lane, observation, value in zip(lanes.tolist(), batch.observation[0].tolist(), found.tolist(), strict=True):
            assert value == expected[lane, observation], (lane, observation)
            seen.add((lane, observation))
    assert seen == expected.keys()


# GRADIENTS

HEADS = [
    {},
    {"duelling": True},
    {"critic": "c51", "v_min": 0.0, "v_max": 20.0, "atoms": 11},
    {"critic": "c51", "v_max": 20.0, "atoms": 11, "duelling": True},
]


def plain_loss(policy, config, batch, target, weight):
    """Reference loss in float64 for two hidden relu layers, from parameters by name."""
    parameters = {
        name: value.detach().double().requires_grad_()
        for name, value in zip(policy.flat.names, policy.flat.parameters, strict=True)
    }
    features = (batch.observation.double().t() @ parameters["first_weight"].t() + parameters["first_bias"][:, 0]).relu()
    features = (features @ parameters["weights.0"][0].t() + parameters["biases.0"][0, :, 0]).relu()
    rows = features @ parameters["head_weight"].t() + parameters["head_bias"][:, 0]
    atoms = config.atoms if config.critic == "c51" else 1
    found = []
    for k in range(len(rows)):
        blocks = rows[k].view(-1, atoms)
        if config.duelling:
            blocks = blocks[-1] + blocks[:-1] - blocks[:-1].mean(0)
        numbers = blocks[batch.action[0, k].long()]
        if atoms == 1:
            found.append(0.5 * (numbers[0] - target[k].double()) ** 2)
        else:
            found.append(-(target[:, k].double() * numbers.log_softmax(0)).sum())
    each = torch.stack(found)
    loss = (each if weight is None else each * weight.double()).mean()
    return loss, torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)


@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("how", HEADS)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_equals_float64(kernels, how, weighted):
    dqn = iterate(dqn_on(CARTPOLE, 16, kernels=kernels, double=True, **how), 6)
    batch = dqn.cycle.replay.sample(0, 0)
    target = q_target(dqn.policy.distribution, *dqn.next_outputs(batch), batch)
    weight = torch.rand(32, generator=torch.Generator().manual_seed(1)) if weighted else None
    learned = dqn.gradient(batch, target, weight)
    loss, expected = plain_loss(dqn.policy, dqn.config, batch, target, weight)
    assert learned.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    flat = dqn.policy.flat
    for parameter, offset, wanted in zip(flat.parameters, flat.offsets, expected, strict=True):
        found = flat.gradient[offset : offset + parameter.numel()].view(parameter.shape).double()
        torch.testing.assert_close(found, torch.zeros_like(found) if wanted is None else wanted, rtol=1e-4, atol=1e-5)
    assert dqn.kernels == ("torch" if kernels == "torch" else "manual_backward")


def test_q_is_the_mean_of_the_distribution():
    head = head_of(2, atoms=3, low=-1.0, high=1.0)
    rows = torch.tensor([[0.2, 0.3, 0.5, 0.6, 0.4, 1e-30]]).log().t()
    torch.testing.assert_close(head.values(rows)[:, 0], torch.tensor([0.3, -0.6]))
    target = torch.tensor([[0.0], [1.0], [0.0]])
    learned = q_loss(head, rows, batch_of([0.0], [0.0]), target)
    assert learned.loss.item() == pytest.approx(-math.log(0.3)) and learned.q.item() == pytest.approx(0.3)
    assert learned.td_error.item() == pytest.approx(0.3)  # the target's mean is 0


# UPDATES


def test_nothing_is_learned_before_learning_starts():
    dqn = dqn_on(CARTPOLE, 16, learning_starts=300)
    before = dqn.policy.flat.values.data.clone()
    iterate(dqn, 3)  # 3 x 8 x 16 = 384 steps; the third iteration began with 256
    assert torch.equal(dqn.policy.flat.values.data, before) and stats_of(dqn)["updates"] == 0
    assert stats_of(dqn)["epsilon"] == 1.0
    iterate(dqn, 1)
    assert not torch.equal(dqn.policy.flat.values.data, before) and stats_of(dqn)["updates"] == 8
    assert stats_of(dqn)["epsilon"] < 1.0


@pytest.mark.parametrize(("tau", "every"), [(1.0, 4), (0.1, 1), (0.5, 3)])
def test_target_network_is_averaged_every_n_updates(tau, every):
    """One update a tick, one tick an iteration: after every update the target is where hand-worked averaging
    puts it.
    """
    dqn = dqn_on(CARTPOLE, 16, horizon=1, learning_starts=0, batch_size=16, target_every=every, tau=tau)
    expected = dqn.target.flat.values.data.clone().double()
    for update in range(1, 13):
        iterate(dqn, 1)
        if update > 1 and update % every == 0:  # the first has no complete transition yet
            expected += tau * (dqn.policy.flat.values.data.double() - expected)
        torch.testing.assert_close(dqn.target.flat.values.data.double(), expected, rtol=1e-5, atol=1e-6)


# ACTING


@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("how", HEADS[::3])
def test_illegal_actions_are_neither_chosen_nor_bootstrapped(kernels, how):
    dqn = dqn_on(FILL, 16, kernels=kernels, epsilon_end=0.5, **how)
    for _ in range(10):
        iterate(dqn, 1)
        rollout = dqn.rollout
        for t in range(1, 8):  # the first observation has moved on
            assert rollout.legal[t].gather(0, rollout.action[t].long()).all(), "an illegal action was taken"
    assert dqn.world.episode_sums(rollout)[-1] == 0


@pytest.mark.parametrize(("env", "kind"), [(PUSH, "Box"), (GATE, "MultiDiscrete")])
def test_unsupported_actions_name_the_algorithms_to_use(env, kind):
    with pytest.raises(ConfigError, match=rf"Discrete.*{kind}.*ppo") as caught:
        dqn_on(env, 4)
    assert ('"sac"' in str(caught.value)) == (kind == "Box")


def test_priorities_are_the_last_td_errors():
    """The first samples that are learned from get |Q - y|^alpha; the weights of the loss make up for that, the more the
    nearer the end.
    """
    dqn = dqn_on(
        CARTPOLE,
        16,
        replay_sampling="prioritised",
        priority_exponent=0.5,
        priority_weight=0.4,
        updates_per_step=0.125,
        steps=1280,
    )
    seen, learned = [], dqn.cycle.sampler.set_priorities
    dqn.cycle.sampler.set_priorities = lambda error, skip: (
        seen.append((error.clone(), dqn.cycle.replay.index.clone())) or learned(error, skip)
    )
    iterate(dqn, 3)
    assert len(seen) == 2  # the first iteration learns nothing
    error, index = seen[-1]
    last = {int(place): float(value) for place, value in zip(index, error, strict=True)}
    for place, value in last.items():
        assert dqn.cycle.sampler.value[place // 16, place % 16].item() == pytest.approx((value + 1e-6) ** 0.5, rel=1e-4)
    assert dqn.cycle.sampler.importance.item() == pytest.approx(0.4 + 0.6 * 2 * 128 / 1280)


def test_a_resume_keeps_the_schedules_of_the_first_start():
    """Schedules keep the ends of the first start, even if run.steps changes."""
    began = DQN.Config(replay_sampling="prioritised").completed(1000)
    assert (began.epsilon_steps, began.priority_steps) == (100, 1000) and began.completed(5000) == began
    assert DQN.Config().completed(1000).priority_steps is None


# REPEATABILITY

EVERYTHING = {
    "double": True,
    "duelling": True,
    "critic": "c51",
    "v_max": 50.0,
    "n_step": 3,
    "normalize_observations": True,
}


PRIORITISED = {"replay_sampling": "prioritised", "critic": "c51", "v_max": 50.0}


@pytest.mark.parametrize(
    ("env", "algo", "kernels"),
    [
        (CARTPOLE, {}, "auto"),
        pytest.param(CARTPOLE, EVERYTHING, "torch", marks=pytest.mark.slow),
        pytest.param(FILL, EVERYTHING, "auto", marks=pytest.mark.slow),
        (CARTPOLE, PRIORITISED, "auto"),
    ],
)
def test_equal_seeds_give_equal_bits_and_a_checkpoint_resumes_them(env, algo, kernels):
    whole, again, other = (iterate(dqn_on(env, 16, seed=seed, kernels=kernels, **algo), 6) for seed in (1, 1, 2))
    assert bytes_of(whole) == bytes_of(again) != bytes_of(other)
    half = clones(whole)
    iterate(whole, 5)
    resumed = dqn_on(env, 16, seed=1, start=False, kernels=kernels, **algo)
    for name, tensor in resumed.state("all").items():
        tensor.copy_(half[name])
    assert bytes_of(iterate(resumed, 5)) == bytes_of(whole)


@pytest.mark.parametrize("sampling", ["uniform", "prioritised"])
def test_a_resume_without_replay_refills_it_before_learning(sampling):
    dqn = iterate(dqn_on(CARTPOLE, 16, replay_sampling=sampling), 4)
    resumed = dqn_on(CARTPOLE, 16, start=False, replay_sampling=sampling)
    saved = {name: tensor.clone() for name, tensor in dqn.state("train").items()}
    for name, tensor in resumed.state("train").items():
        tensor.copy_(saved[name])
    updates, epsilons = [], []
    for _ in range(3):
        iterate(resumed, 1)
        updates.append(stats_of(resumed)["updates"])
        epsilons.append(stats_of(resumed)["epsilon"])
    assert updates == [0.0, 8.0, 8.0] and max(epsilons) < 0.8, "learning_starts are 128 steps, an iteration"
    assert not torch.equal(resumed.policy.flat.values.data, dqn.policy.flat.values.data)


@pytest.mark.parametrize("how", HEADS)
def test_manual_backward_equals_autograd(how):
    one, other = (iterate(dqn_on(CARTPOLE, 16, kernels=kernels, **how), 5) for kernels in ("torch", "auto"))
    torch.testing.assert_close(one.policy.flat.values.data, other.policy.flat.values.data, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.stats, other.stats, rtol=1e-3, atol=1e-4)


def test_custom_networks_and_images_train(tmp_path):
    (tmp_path / "net.py").write_text(MY_NET)
    own = iterate(dqn_on(CARTPOLE, 16, mlp.Config(kind=f"{tmp_path / 'net.py'}:MyNet")), 3)
    board = iterate(
        dqn_on(SEEN, 16, mlp.Config(kind="cnn", cnn="board", channels=(4, 4, 4), hidden=(16,)), critic="c51"), 3
    )
    for dqn in (own, board):
        assert torch.isfinite(dqn.stats).all() and dqn.stats[-1] == 0 and dqn.policy.flat.gradient.abs().sum() > 0


def test_not_finite_values_are_counted():
    dqn = iterate(dqn_on(CARTPOLE, 16), 3)
    dqn.policy.flat.values.data[0] = float("nan")
    iterate(dqn, 1)
    assert dqn.stats[-1] > 0


def test_an_empty_support_raises():
    assert dict(DQN.Config(critic="c51", v_min=1.0, v_max=1.0).problems(16))["v_min"]


# LEARNING


def test_cartpole_is_solved():
    recipe = {
        "horizon": 32,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "n_step": 5,
        "learning_starts": 2000,
        "target_every": 200,
        "replay_capacity": 200_000,
    }
    net = mlp.Config(hidden=(120, 84), activation="relu")
    dqn = iterate(dqn_on(CARTPOLE, 128, net, **recipe, normalize_observations=True, epsilon_steps=200_000), 18)
    assert Evaluator(dqn.policy, CARTPOLE, None, episodes=50, seed=1).run(0).mean > 150.0
