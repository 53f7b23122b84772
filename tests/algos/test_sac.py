"""SAC: gradients and Polyak averages against float64, warm-up, bits of a seed and of a resume, and learning."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from toys import FILL, PICK, PUSH

from operant.algos.sac import SAC
from operant.algos.sac.sac import Stats
from operant.errors import ConfigError
from operant.nn import mlp
from operant.worlds import DeviceWorld

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"horizon": 8, "batch_size": 32, "learning_starts": 64, "replay_capacity": 4096}


def sac_on(env, lanes=8, *, seed=1, net=None, start=True, **algo):
    """SAC on a fresh world, with its episodes started."""
    made = SAC(
        DeviceWorld(env, lanes, seed=seed),
        SAC.Config(**{**SMALL, **algo}),
        net or mlp.Config(hidden=(16, 16), activation="relu"),
        seed=seed,
        steps=1,
    )
    if start:
        made.start()
    return made


def iterate(algo, times):
    for _ in range(times):
        for phase in algo.phases:
            phase.run()
    return algo


def bytes_of(algo):
    return {name: tensor.numpy().tobytes() for name, tensor in algo.state("all").items()}


# AGAINST FLOAT64


def doubles(flat):
    """Parameters of a flat vector by name, as float64 leaves with gradients."""
    return {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in zip(flat.names, flat.parameters, strict=True)
    }


def plain(weights, features, tower):
    """Forward pass of one tower of the network, layer by layer."""
    last = sum(name.startswith("weights.") for name in weights) - 1
    hidden = features
    for k in range(last + 1):
        hidden = weights[f"weights.{k}"][tower] @ hidden + weights[f"biases.{k}"][tower]
        if k < last:
            if f"norm_gains.{k}" in weights:
                centred = hidden - hidden.mean(dim=0)
                hidden = (
                    centred / (centred.square().mean(dim=0) + 1e-5).sqrt() * weights[f"norm_gains.{k}"][tower]
                    + weights[f"norm_biases.{k}"][tower]
                )
            hidden = hidden.clamp_min(0.0)
    return hidden


def drawn(weights, observation, noise):
    """A sampled action and its log-probability, from the textbook's formulas."""
    A = len(noise) // 2
    out = plain(weights, observation, 0)
    std = torch.exp(-5.0 + 3.5 * (torch.tanh(out[A:]) + 1.0))
    e = torch.sqrt(-2.0 * torch.log(1.0 - noise[:A])) * torch.cos(2.0 * math.pi * noise[A:])
    u = out[:A] + std * e
    density = torch.distributions.Normal(out[:A], std).log_prob(u) - torch.log(1.0 - torch.tanh(u).square())
    return torch.tanh(u), density.sum(dim=0)


def gradient_error(flat, gradient, weights):
    """Largest difference of a flat gradient from the float64 gradient, relative to its norm."""
    worst = 0.0
    for name, parameter, start in zip(flat.names, flat.parameters, flat.offsets, strict=True):
        expected = weights[name].grad
        found = gradient[start : start + parameter.numel()].view(parameter.shape).double()
        worst = max(worst, float((found - expected).norm() / (expected.norm() + 1e-6)))
    return worst


@pytest.mark.parametrize("critics", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(("layer_norm", "n_step"), [(False, 1), (True, 3)])
def test_gradients_and_targets_equal_float64(critics, layer_norm, n_step):
    net = mlp.Config(hidden=(16, 24), activation="relu", layer_norm=layer_norm)
    algo = iterate(
        sac_on(PUSH, net=net, critics=critics, n_step=n_step, initial_temperature=0.3, tau=0.01, batch_size=512), 12
    )
    actor, critic, target = doubles(algo.actor.flat), doubles(algo.critic_flat), doubles(algo.target_flat)
    state = {name: tensor.clone() for name, tensor in algo.state("train").items()}
    alpha = state["algo/log_temperature"].double().exp()
    algo.update(0, 5)
    after = algo.state("train")
    batch = algo.cycle.replay.batch  # the batch that the update sampled
    observation, action, following, noise = (
        part.double() for part in (batch.observation, batch.action, batch.next_observation, batch.noise)
    )
    assert (batch.discount == 0).any() and (batch.discount > 0).any()

    # The critics: (Q - y)^2 with y = r + discount (min Q' - alpha log pi).
    next_action, log_probability = drawn(actor, following, noise[:4])
    values = torch.stack([plain(target, torch.cat([following, next_action]), k)[0] for k in range(critics)])
    y = (
        batch.reward.double() + batch.discount.double() * (values.min(dim=0).values - alpha * log_probability)
    ).detach()
    sum(((plain(critic, torch.cat([observation, action]), k)[0] - y) ** 2).mean() for k in range(critics)).backward()
    assert gradient_error(algo.critic_flat, algo.critic_flat.gradient, critic) < 1e-5

    # Polyak: target + tau (critic - target), of the critics after their step.
    expected = state["algo/target"] + 0.01 * (after["algo/critic"] - state["algo/target"])
    assert torch.allclose(after["algo/target"], expected, rtol=0, atol=1e-7)
    assert not torch.equal(after["algo/target"], state["algo/target"])

    # The actor: alpha log pi - min Q, by the critics after their step.
    critic = doubles(algo.critic_flat)
    for weights in actor.values():
        weights.grad = None
    own, log_probability = drawn(actor, observation, noise[4:])
    values = torch.stack([plain(critic, torch.cat([observation, own]), k)[0] for k in range(critics)])
    (alpha * log_probability - values.min(dim=0).values).mean().backward()
    assert gradient_error(algo.actor.flat, algo.actor.flat.gradient, actor) < 1e-5

    # The temperature falls where the entropy is above its target of -2, here by Adam's step of about the learning rate.
    rising = (
        log_probability.mean() + algo.config.target_entropy
        if algo.config.target_entropy
        else log_probability.mean() - 2.0
    )
    moved = after["algo/log_temperature"] - state["algo/log_temperature"]
    assert moved.item() * rising.item() >= 0 or abs(moved.item()) < 3e-4


@pytest.mark.parametrize("env", [PUSH, FILL])
def test_delayed_actor_learns_in_every_fourth_update_and_all_else_in_each(env):
    algo = iterate(
        sac_on(env, actor_delay=4, net=mlp.Config(hidden=(16,), critic_hidden=(24, 16), activation="relu")), 12
    )
    for number in range(4, 8):
        before = {name: tensor.clone() for name, tensor in algo.state("train").items()}
        algo.update(0, number)
        after = algo.state("train")
        changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
        own = {"policy/parameters", "adam/actor/step", "adam/actor/exp_avg"}
        assert {"algo/critic", "algo/target", "algo/log_temperature", "adam/temperature/step"} <= changed
        assert own <= changed if number == 7 else not own & changed
        if number == 6 and env is PUSH:  # what the temperature learns from where the actor does not
            batch = algo.cycle.replay.batch
            _, log_probability = drawn(
                doubles(algo.actor.flat), batch.next_observation.double(), batch.noise.double()[:4]
            )
            gradient = (after["adam/temperature/exp_avg"] - 0.9 * before["adam/temperature/exp_avg"]) / 0.1
            assert gradient.item() == pytest.approx(-(log_probability.mean().item() - 2.0), rel=1e-3)
    assert [key for key, _ in SAC.Config(**SMALL, actor_delay=3).problems(8)] == ["actor_delay"]


def test_actor_loss_is_the_mean_over_updates_of_the_actor():
    still = {"learning_rate": 1e-9, "critic_learning_rate": 1e-9, "tau": 1e-9, "batch_size": 512}
    losses = [
        dict(zip(Stats._fields, iterate(sac_on(PUSH, actor_delay=delay, **still), 10).stats.tolist(), strict=True))
        for delay in (1, 8)
    ]
    assert losses[1]["actor_loss"] == pytest.approx(losses[0]["actor_loss"], rel=0.2)
    assert losses[1]["entropy"] == pytest.approx(losses[0]["entropy"], rel=0.2)


def test_gradients_are_clipped_to_max_gradient_norm():
    algo = iterate(sac_on(PUSH, max_gradient_norm=0.01), 10)
    assert algo.critic_flat.gradient.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert algo.actor.flat.gradient.norm().item() <= 0.0101


# WHAT IS LEFT OUT


def test_nothing_is_learned_before_learning_starts_and_actions_are_uniform():
    algo = sac_on(PUSH, lanes=64, learning_starts=3 * 8 * 64)
    before = {name: tensor.clone() for name, tensor in algo.state("train").items() if "world" not in name}
    seen = []
    for _ in range(3):
        iterate(algo, 1)
        seen.append(algo.cycle.action.clone())
    for name, tensor in algo.state("train").items():
        if name.startswith(("policy", "adam", "algo/critic", "algo/target", "algo/log")):
            assert torch.equal(tensor, before[name]), name
    actions = torch.stack(seen).flatten()
    assert abs(actions.mean().item()) < 0.05 and abs(actions.square().mean().item() - 1 / 3) < 0.02
    iterate(algo, 1)
    assert not torch.equal(algo.state("train")["policy/parameters"], before["policy/parameters"])


def test_a_cpu_computes_no_updates_before_learning_starts():
    algo, numbers = sac_on(PUSH, learning_starts=3 * 8 * 8), []
    algo.update = lambda ticks, number: numbers.append(number)
    iterate(algo, 2)
    assert numbers == [] and float(algo.stats[-2]) == 0
    iterate(algo, 2)
    assert numbers == [*range(8)] and float(algo.stats[-2]) == 8


def test_actions_are_scaled_to_the_environments_bounds():
    algo = iterate(sac_on(PUSH), 3)
    raw, taken = algo.cycle.action, algo.rollout.action
    assert torch.allclose(taken[:, 0], raw[:, 0]) and torch.allclose(taken[:, 1], 0.5 + 0.5 * raw[:, 1])


def test_a_fixed_temperature_is_constant():
    algo = iterate(sac_on(PUSH, temperature=0.2), 12)
    assert dict(zip([spec.name for spec in algo.metrics], algo.stats.tolist(), strict=False))[
        "temperature"
    ] == pytest.approx(0.2)
    assert not any("temperature" in name for name in algo.state("train") if name.startswith("adam"))


@pytest.mark.parametrize(
    ("env", "net", "sentence"),
    [
        (PICK, {}, "has MultiDiscrete actions: this algorithm needs continuous ones"),
        (PUSH, {"kind": "cnn"}, "cnn"),
    ],
)
def test_invalid_configurations_raise_with_the_reason(env, net, sentence):
    with pytest.raises(ConfigError, match=sentence):
        sac_on(env, net=mlp.Config(**net))


# BITS


def test_equal_seeds_give_equal_bytes():
    assert bytes_of(iterate(sac_on(PUSH, normalize_observations=True), 12)) == bytes_of(
        iterate(sac_on(PUSH, normalize_observations=True), 12)
    )
    assert bytes_of(iterate(sac_on(PUSH), 12)) != bytes_of(iterate(sac_on(PUSH, seed=2), 12))


@pytest.mark.slow
@pytest.mark.parametrize("delay", [1, 4])
def test_a_resumed_run_continues_bit_for_bit(delay):
    first = iterate(sac_on(PUSH, n_step=2, normalize_observations=True, actor_delay=delay), 12)
    other = sac_on(PUSH, n_step=2, normalize_observations=True, actor_delay=delay, start=False)
    for name, tensor in other.state("all").items():
        tensor.copy_(first.state("all")[name])
    assert bytes_of(iterate(first, 6)) == bytes_of(iterate(other, 6))


@pytest.mark.slow
def test_a_resume_without_replay_refills_it_with_the_actors_actions():
    first = iterate(sac_on(PUSH, learning_starts=256), 12)
    other = sac_on(PUSH, learning_starts=256, start=False)
    for name, tensor in other.state("train").items():
        tensor.copy_(first.state("train")[name])
    kept = other.state("train")["algo/critic"].clone()
    iterate(other, 1)
    assert torch.equal(other.state("train")["algo/critic"], kept) and other.cycle.warming.item() == 0
    iterate(other, 5)
    assert not torch.equal(other.state("train")["algo/critic"], kept)
    assert torch.isfinite(other.stats).all()


# LEARNING


@pytest.mark.slow
def test_reward_improves_on_push():
    rates = {"learning_rate": 3e-3, "critic_learning_rate": 3e-3, "tau": 0.02, "gamma": 0.9}
    algo = sac_on(PUSH, lanes=16, batch_size=64, initial_temperature=0.1, target_entropy=-4.0, **rates)
    rewards = []
    for _ in range(60):
        iterate(algo, 1)
        rewards.append(algo.rollout.reward.mean().item())
    assert sum(rewards[-10:]) / 10 > 0.3 * sum(rewards[:8]) / 8, SimpleNamespace(first=rewards[:8], last=rewards[-10:])


@pytest.mark.slow
def test_reward_improves_with_c51_and_a_resume_continues_bit_for_bit():
    keys = {
        "learning_rate": 3e-3,
        "critic_learning_rate": 3e-3,
        "tau": 0.05,
        "gamma": 0.9,
        "critic": "c51",
        "atoms": 21,
        "target_entropy": -4.0,
    }
    algo = sac_on(PUSH, lanes=16, batch_size=64, initial_temperature=0.02, **keys)
    rewards = []
    for _ in range(60):
        iterate(algo, 1)
        rewards.append(algo.rollout.reward.mean().item())
    assert sum(rewards[-10:]) / 10 > 0.4 * sum(rewards[:8]) / 8, rewards
    other = sac_on(PUSH, lanes=16, batch_size=64, initial_temperature=0.02, start=False, **keys)
    for name, tensor in other.state("all").items():
        tensor.copy_(algo.state("all")[name])
    assert bytes_of(iterate(algo, 2)) == bytes_of(iterate(other, 2))
