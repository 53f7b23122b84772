"""Critic heads: projections by hand, targets and losses against float64, and the reward scale."""

from __future__ import annotations

import pytest
import torch

from operant.data import AccruedReturns
from operant.nn import ActorCriticConfig, CriticHead, RewardScale, project_onto_support

CPU = torch.device("cpu")


def test_c51_projection_by_hand():
    support = torch.tensor([-1.0, 0.0, 1.0])
    probability = torch.tensor([[0.2, 0.5], [0.3, 0.5], [0.5, 0.0]])
    # First: 0.25 + 0.5 z are -0.25, 0.25, 0.75. Second: terminated with a reward of 3, beyond the support.
    found = project_onto_support(probability, torch.tensor([0.25, 3.0]), torch.tensor([0.5, 0.0]), support)
    expected = torch.tensor([[0.05, 0.0], [0.15 + 0.225 + 0.125, 0.0], [0.075 + 0.375, 1.0]])
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_scalar_target_and_loss_by_hand():
    head = CriticHead(ActorCriticConfig(), CPU)
    outputs = torch.tensor([[[1.0, -2.0]], [[3.0, -4.0]]])  # two critics, two samples
    target = head.td_target(outputs, torch.tensor([0.5, 1.0]), torch.tensor([0.9, 0.0]))
    assert target.tolist() == [[pytest.approx(1.4), 1.0]]
    loss, mean, error, _ = head.loss(outputs, target)
    assert loss.item() == pytest.approx((0.4**2 + 9) / 2 + (1.6**2 + 25) / 2)
    assert mean.item() == pytest.approx(-0.5) and error.item() == pytest.approx((0.4 + 3 + 1.6 + 5) / 4)


def test_a_categorical_head_equals_float64():
    head = CriticHead(ActorCriticConfig(critic="c51", atoms=11, v_min=-2, v_max=3), CPU)
    outputs = torch.randn(2, 11, 64, generator=torch.Generator().manual_seed(1)) * 3
    reward, discount = torch.randn(64), torch.rand(64)
    support = torch.linspace(-2, 3, 11, dtype=torch.float64)
    probability = outputs.double().softmax(dim=1)
    values = (probability * support[:, None]).sum(dim=1)
    assert torch.allclose(head.values(outputs).double(), values, atol=1e-5)

    # Atom by atom, of the critic whose mean is the smaller.
    expected = torch.zeros(11, 64, dtype=torch.float64)
    for b in range(64):
        chosen = probability[int(values[1, b] < values[0, b]), :, b]
        for z, p in zip(support.tolist(), chosen.tolist(), strict=True):
            place = (min(max(reward[b].item() + discount[b].item() * z, -2.0), 3.0) + 2.0) / 0.5
            below = min(int(place), 9)
            expected[below, b] += p * (below + 1 - place)
            expected[below + 1, b] += p * (place - below)
    target = head.td_target(outputs, reward, discount)
    assert torch.allclose(target.double(), expected, atol=1e-5)
    loss, mean, error, _ = head.loss(outputs, target)
    assert loss.item() == pytest.approx(-(expected * probability.log()).sum(dim=1).mean(dim=1).sum().item(), rel=1e-5)
    assert mean.item() == pytest.approx(values.mean().item(), abs=1e-5)
    assert error.item() == pytest.approx(
        (values - (expected * support[:, None]).sum(dim=0)).abs().mean().item(), rel=1e-4
    )


def test_rewards_are_scaled_to_the_support():
    # Rewards of -8 for ever at a discount of 0.98: returns go to -400.
    reward, never = torch.full((32, 4), -8.0), torch.zeros(32, 4, dtype=torch.uint8)
    accrued, scale = (
        AccruedReturns(reward, never, never, 0.98),
        RewardScale(ActorCriticConfig().support_radius, CPU, active=True),
    )
    seen = []
    for _ in range(20):
        seen.append(accrued().clone())
        scale.update(seen[-1])
    returns = torch.cat(seen).double()
    assert returns[40, 0].item() == pytest.approx(-8 * (1 - 0.98**41) / 0.02, rel=1e-4)
    assert scale.factor.item() == pytest.approx(
        1 / max(returns.std(correction=0).item(), returns.abs().max().item() / 5), rel=1e-4
    )
    assert (returns * scale.factor).abs().max() <= 5.001


def test_accrued_returns_end_with_the_episode():
    reward, ended, never = (
        torch.ones(4, 1),
        torch.tensor([[0], [1], [0], [0]], dtype=torch.uint8),
        torch.zeros(4, 1, dtype=torch.uint8),
    )
    for flags in ((ended, never), (never, ended)):
        accrued = AccruedReturns(reward, *flags, 0.5)
        assert accrued()[:, 0].tolist() == [1.0, 1.5, 1.0, 1.5]
        assert accrued()[:, 0].tolist() == [1.75, 1.875, 1.0, 1.5]


def test_an_invalid_support_is_refused_with_the_reason():
    assert [key for key, _ in ActorCriticConfig(v_min=2, v_max=1).support_problems()] == ["v_min"]
    assert [key for key, _ in ActorCriticConfig(critic="c51", v_min=1, v_max=2).support_problems()] == ["v_min"]
    assert ActorCriticConfig(critic="c51", v_min=1, v_max=2, normalize_returns=False).support_problems() == []
