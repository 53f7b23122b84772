"""TD3: gradients and targets against float64, the actor's delay, exploration noise, bits of a seed and of a resume, and
learning.
"""

from __future__ import annotations

import math

import pytest
import torch
from test_sac import SMALL, bytes_of, doubles, gradient_error, iterate, plain
from toys import COUNT, PUSH

from operant.algos.td3 import TD3
from operant.errors import ConfigError
from operant.nn import NetConfig
from operant.worlds import DeviceWorld

pytestmark = pytest.mark.usefixtures("one_thread")


def td3_on(env, lanes=8, *, seed=1, net=None, start=True, **algo):
    """TD3 on a fresh world, with its episodes started."""
    made = TD3(
        DeviceWorld(env, lanes, seed=seed),
        TD3.Config(**{**SMALL, **algo}),
        net or NetConfig(hidden=(16, 16), activation="relu"),
        seed=seed,
        steps=1,
    )
    if start:
        made.start()
    return made


def normal(noise):
    """Standard normal noise by Box & Muller, from the textbook's formula."""
    half = len(noise) // 2
    return torch.sqrt(-2.0 * torch.log(1.0 - noise[:half])) * torch.cos(2.0 * math.pi * noise[half:])


@pytest.mark.parametrize(("critics", "n_step"), [(1, 1), (2, 3)])
def test_gradients_and_targets_equal_float64(critics, n_step):
    algo = iterate(
        td3_on(PUSH, critics=critics, n_step=n_step, tau=0.01, batch_size=512, target_noise=0.4, target_noise_clip=0.5),
        12,
    )
    actor, target_actor, critic, target = map(
        doubles, (algo.actor.flat, algo.target_actor.flat, algo.critic_flat, algo.target_flat)
    )
    state = {name: tensor.clone() for name, tensor in algo.state("train").items()}
    algo.update(0, 5)  # the second of a pair: the actor learns too
    after, batch = algo.state("train"), algo.cycle.replay.batch
    observation, action, following, noise = (
        part.double() for part in (batch.observation, batch.action, batch.next_observation, batch.noise)
    )

    # The critics: (Q - y)^2 with y = r + discount min Q'(s', clip(mu'(s') + clip(noise))).
    error = (0.4 * normal(noise)).clamp(-0.5, 0.5)
    assert (error.abs() == 0.5).any()
    next_action = (torch.tanh(plain(target_actor, following, 0)) + error).clamp(-1.0, 1.0)
    values = torch.stack([plain(target, torch.cat([following, next_action]), k)[0] for k in range(critics)])
    y = (batch.reward.double() + batch.discount.double() * values.min(dim=0).values).detach()
    sum(((plain(critic, torch.cat([observation, action]), k)[0] - y) ** 2).mean() for k in range(critics)).backward()
    assert gradient_error(algo.critic_flat, algo.critic_flat.gradient, critic) < 1e-5

    # The actor climbs the first critic, after its step; then both targets follow.
    critic = doubles(algo.critic_flat)
    (-plain(critic, torch.cat([observation, torch.tanh(plain(actor, observation, 0))]), 0)).mean().backward()
    assert gradient_error(algo.actor.flat, algo.actor.flat.gradient, actor) < 1e-5
    for name, source in (("algo/target", "algo/critic"), ("algo/target_actor", "policy/parameters")):
        expected = state[name] + 0.01 * (after[source] - state[name])
        assert torch.allclose(after[name], expected, rtol=0, atol=1e-7) and not torch.equal(after[name], state[name])


def test_actor_and_targets_change_in_every_second_update():
    algo = iterate(td3_on(PUSH), 12)
    before = {name: tensor.clone() for name, tensor in algo.state("train").items()}
    algo.update(0, 0)
    changed = {name for name, tensor in algo.state("train").items() if not torch.equal(tensor, before[name])}
    assert "algo/critic" in changed and not changed & {"policy/parameters", "algo/target", "algo/target_actor"}
    algo.update(0, 1)
    changed = {name for name, tensor in algo.state("train").items() if not torch.equal(tensor, before[name])}
    assert {"algo/critic", "policy/parameters", "algo/target", "algo/target_actor"} <= changed
    assert TD3.Config(**{**SMALL, "horizon": 3}).problems(8)[0][0] == "actor_delay"


def test_exploration_noise_grows_over_the_lanes():
    algo = td3_on(
        PUSH,
        lanes=64,
        horizon=64,
        learning_starts=0,
        exploration_noise=0.0,
        exploration_noise_max=0.3,
        learning_rate=1e-9,
    )
    iterate(algo, 1)
    std = algo.cycle.action.std(dim=0).mean(dim=0)  # of each lane
    assert (
        std[0] < 0.02
        and abs(std[-1].item() - 0.3) < 0.06
        and std[:16].mean() < std[16:32].mean() < std[32:48].mean() < std[48:].mean()
    )


@pytest.mark.parametrize(
    ("env", "net", "sentence"), [(COUNT, {}, "has Discrete actions"), (PUSH, {"kind": "cnn"}, "cnn")]
)
def test_invalid_configurations_raise_with_the_reason(env, net, sentence):
    with pytest.raises(ConfigError, match=sentence):
        td3_on(env, net=NetConfig(**net))


def test_equal_seeds_give_equal_bytes_and_a_resume_continues_bit_for_bit():
    first = iterate(td3_on(PUSH, n_step=2, normalize_observations=True), 12)
    assert bytes_of(first) == bytes_of(iterate(td3_on(PUSH, n_step=2, normalize_observations=True), 12))
    other = td3_on(PUSH, n_step=2, normalize_observations=True, start=False)
    for name, tensor in other.state("all").items():
        tensor.copy_(first.state("all")[name])
    assert bytes_of(iterate(first, 6)) == bytes_of(iterate(other, 6))


@pytest.mark.slow
def test_reward_improves_on_push():
    rates = {"learning_rate": 3e-3, "critic_learning_rate": 3e-3, "tau": 0.02, "gamma": 0.9}
    algo = td3_on(PUSH, lanes=16, batch_size=64, exploration_noise=0.2, **rates)
    rewards = []
    for _ in range(60):
        iterate(algo, 1)
        rewards.append(algo.rollout.reward.mean().item())
    assert sum(rewards[-10:]) / 10 > 0.3 * sum(rewards[:8]) / 8, rewards


@pytest.mark.slow
def test_reward_improves_with_c51_and_a_resume_continues_bit_for_bit():
    rates = {"learning_rate": 3e-3, "critic_learning_rate": 3e-3, "tau": 0.05, "gamma": 0.9}
    algo = td3_on(PUSH, lanes=16, batch_size=64, exploration_noise=0.2, critic="c51", atoms=21, **rates)
    rewards = []
    for _ in range(60):
        iterate(algo, 1)
        rewards.append(algo.rollout.reward.mean().item())
    assert sum(rewards[-10:]) / 10 > 0.4 * sum(rewards[:8]) / 8, rewards
    other = td3_on(PUSH, lanes=16, batch_size=64, exploration_noise=0.2, critic="c51", atoms=21, start=False, **rates)
    for name, tensor in other.state("all").items():
        tensor.copy_(algo.state("all")[name])
    assert bytes_of(iterate(algo, 2)) == bytes_of(iterate(other, 2))
