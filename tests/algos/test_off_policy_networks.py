"""SAC and TD3 over convolutions and with a user's own network, and with priorities: gradients against float64, bits of
a resume, what does not fit.
"""

from __future__ import annotations

import copy

import pytest
import torch
from test_sac import bytes_of, iterate, sac_on
from test_td3 import td3_on
from toys import MY_NET, PUSH, SEEN

from operant.envs import find, with_pixels
from operant.errors import ConfigError
from operant.nn import MLPEnsemble, mlp

pytestmark = pytest.mark.usefixtures("one_thread")

PICTURES = with_pixels(find("pendulum"), 16)
BOARD = mlp.Config(kind="cnn", cnn="board", channels=(4, 4), hidden=(16,))
CASES = {
    "sac, pictures": (sac_on, PICTURES, BOARD),
    "sac, a choice, pictures": (sac_on, SEEN, BOARD),
    "sac, own": (sac_on, PUSH, None),
    "sac, a choice, own": (sac_on, SEEN, None),
    "td3, pictures": (td3_on, PICTURES, BOARD),
    "td3, own": (td3_on, PUSH, None),
}


@pytest.fixture
def made(tmp_path):
    """Factory of a case's algorithm; equal at every call."""
    (tmp_path / "net.py").write_text(MY_NET)
    own = mlp.Config(kind=f"{tmp_path / 'net.py'}:MyNet")

    def make(case, **keys):
        algorithm, env, net = CASES[case]
        return algorithm(
            env,
            net=net or own,
            **{"horizon": 4, "learning_starts": 32, "replay_capacity": 512, "batch_size": 16, **keys},
        )

    return make


def error(network, flat, loss):
    """Difference of a flat vector's gradient from the float64 gradient of a loss, relative to its norm."""
    expected = torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True)
    found = [
        flat.gradient[begin : begin + part.numel()].double() for begin, part in zip(flat.offsets, expected, strict=True)
    ]
    expected, found = (torch.cat([part.flatten() for part in parts]) for parts in (expected, found))
    assert expected.norm() > 0
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("sampling", ["uniform", "prioritised"])
@pytest.mark.parametrize("case", CASES)
def test_critic_gradient_equals_float64(made, case, sampling):
    if sampling == "prioritised" and "own" in case:
        return
    algo = iterate(made(case, replay_sampling=sampling), 6)
    critic, target, actor = (copy.deepcopy(net).double() for net in (algo.critic, algo.target, algo.actor.net))
    following = copy.deepcopy(algo.target_actor.net).double() if case.startswith("td3") else actor
    alpha = 0.0 if case.startswith("td3") else algo.state("train")["algo/log_temperature"].double().exp()
    algo.update(0, 1)
    batch, features = algo.cycle.replay.batch, algo.actor.features
    weight = 1.0
    if sampling == "prioritised":
        weight = algo.cycle.sampler.probability.double().pow(-algo.cycle.sampler.importance.double())
        weight = weight / weight.max()

    def wide(numbers):
        """Observations in float64, but bytes as they are."""
        return numbers if numbers.dtype == torch.uint8 else numbers.double()

    seen, after, noise = wide(features(batch.observation)), wide(features(batch.next_observation)), batch.noise.double()
    reward, discount = batch.reward.double(), batch.discount.double()
    if "choice" in case:
        logits = torch.where(batch.next_legal != 0, following(after)[0], -1e9)
        value = (logits.softmax(0) * (target(after).min(0).values - alpha * logits.log_softmax(0))).sum(0)
        q = critic(seen).gather(1, batch.action.long()[None].expand(2, 1, -1))[:, 0]
    else:
        if case.startswith("sac"):
            rows = len(noise) // 2
            action, log_probability = algo.actor.distribution.sample_with_log_probability(
                following(after)[0], noise[:rows]
            )
        else:
            drawn = torch.sqrt(-2.0 * torch.log1p(-noise[: len(noise) // 2])) * torch.cos(
                2.0 * torch.pi * noise[len(noise) // 2 :]
            )
            action = (following(after)[0].tanh() + (0.2 * drawn).clamp(-0.5, 0.5)).clamp(-1.0, 1.0)
            log_probability = 0.0
        value = target(after, action).min(0).values[0] - alpha * log_probability
        q = critic(seen, batch.action.double())[:, 0]
    y = (reward + discount * value).detach()
    assert error(critic, algo.critic_flat, ((q - y).square() * weight).mean(dim=1).sum()) < 1e-4
    assert algo.actor.flat.gradient.abs().sum() > 0
    if sampling == "prioritised":
        priority = ((q - y).abs().mean(0).detach() + 1e-6).pow(0.6)
        places = algo.cycle.replay.index.tolist()
        once = torch.tensor([places.count(place) == 1 for place in places])
        written = algo.cycle.sampler.value.flatten()[places].double()
        torch.testing.assert_close(written[once], priority[once], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_a_resume_continues_bit_for_bit(made, case):
    first, other = iterate(made(case), 4), made(case, start=False)
    for name, tensor in other.state("all").items():
        tensor.copy_(first.state("all")[name])
    assert bytes_of(iterate(first, 2)) == bytes_of(iterate(other, 2))


def test_a_resume_restores_priorities():
    keys = {"replay_sampling": "prioritised", "priority_steps": 1000}
    first, other = iterate(sac_on(PUSH, **keys), 10), sac_on(PUSH, start=False, **keys)
    assert 0.4 < first.cycle.sampler.importance.item() < 1.0
    for name, tensor in other.state("all").items():
        tensor.copy_(first.state("all")[name])
    assert bytes_of(iterate(first, 4)) == bytes_of(iterate(other, 4))


def test_a_network_that_cannot_read_observations_raises_with_the_reason():
    with pytest.raises(ConfigError, match="reads images and boards"):
        sac_on(PUSH, net=BOARD)
    with pytest.raises(ConfigError, match=r'algo.kernels = "fused" is not possible: only dense networks are supported'):
        sac_on(PICTURES, net=BOARD, kernels="fused")


@pytest.mark.parametrize(("activation", "layer_norm"), [("relu", False), ("relu", True), ("silu", False)])
def test_bf16_gradients_are_close_to_float32(activation, layer_norm):
    net = mlp.Config(hidden=(64, 64), activation=activation, layer_norm=layer_norm)
    exact, short = (
        MLPEnsemble(8, 3, net, torch.Generator().manual_seed(1), towers=2, dtype=dtype)
        for dtype in (None, torch.bfloat16)
    )
    features = torch.randn(6, 256, generator=torch.Generator().manual_seed(2))
    action = torch.rand(2, 256, generator=torch.Generator().manual_seed(3)).requires_grad_()
    one, other = exact(features, action), short(features, action)
    assert other.dtype == torch.float32
    assert 0 < (one - other).norm() / one.norm() < 0.02
    ways = ((exact, False), (short, False), (short, True))
    expected, found, constant = (
        torch.autograd.grad(net(features, action, constant=flag).square().mean(), action)[0] for net, flag in ways
    )
    assert (expected - found).norm() <= 0.1 * expected.norm() and torch.equal(found, constant)
    one.square().mean().backward()
    other.square().mean().backward()
    for a, b in zip(exact.parameters(), short.parameters(), strict=True):
        assert b.grad.dtype == torch.float32 and (a.grad - b.grad).norm() <= 0.05 * a.grad.norm() + 1e-6


@pytest.mark.parametrize("made_on", [sac_on, td3_on])
def test_start_resets_the_accrued_returns(made_on):
    algo = iterate(made_on(PUSH, normalize_returns=True), 1)
    accrued = algo.state("train")["algo/accrued"]
    assert accrued.abs().max() > 0
    algo.cycle.replay.ring.ticks.zero_()  # lanes that begin again do so with an empty replay
    algo.start()
    assert accrued.abs().max() == 0
