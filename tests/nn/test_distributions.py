"""Action distributions: by hand, against torch.distributions in float64, sampling frequencies, `to_env`, and edge
cases.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions

from operant.envs import Box, Discrete, Env, MultiDiscrete
from operant.nn.distributions import Categorical, Gaussian, distribution_for, masked

LARGEST = 1.0 - 2.0**-24  # of a uniform in [0, 1)


def env_with(action):
    return Env(tuple, 1, observation=Box(1), action=action, time_limit=None, reset=None, step=None, observe=None)


def random(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(rows=1, *, low=-1.0, high=1.0, squash=False, log_std=0.0):
    return Gaussian(((low,) * rows, (high,) * rows), squash=squash, initial_log_std=log_std)


# CATEGORICAL


def test_categorical_by_hand():
    # p = (1/2, 1/4, 1/4): log p = -(1, 2, 2) ln 2, H = (1/2 + 2/4 + 2/4) ln 2 = 1.5 ln 2. Logits may carry any
    # constant.
    logits = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)[:, None] * math.log(2.0) + 7.0
    for action, bits in ((0, 1), (1, 2), (2, 2)):
        log_probability, entropy = Categorical((3,)).log_probability_and_entropy(
            logits, torch.tensor([[action]], dtype=torch.int32)
        )
        assert log_probability.item() == pytest.approx(-bits * math.log(2.0), abs=1e-14)
        assert entropy.item() == pytest.approx(1.5 * math.log(2.0), abs=1e-14)


def test_multi_discrete_by_hand():
    # Independent choices: log-probabilities and entropies add. (1/2, 1/2) x (1/4, 3/4), action (1, 0): ln 1/8.
    logits = torch.tensor([0.5, 0.5, 0.25, 0.75], dtype=torch.float64).log()[:, None]
    log_probability, entropy = Categorical((2, 2)).log_probability_and_entropy(
        logits, torch.tensor([[1], [0]], dtype=torch.int32)
    )
    assert log_probability.item() == pytest.approx(math.log(1 / 8), abs=1e-14)
    assert entropy.item() == pytest.approx(math.log(2.0) + 0.25 * math.log(4.0) + 0.75 * math.log(4 / 3), abs=1e-14)


@pytest.mark.parametrize("sizes", [(1,), (2,), (7,), (2, 3), (1, 4, 2), (5, 5, 5)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_categorical_equals_torch_distributions(sizes, scale):
    distribution, B = Categorical(sizes), 64
    logits = random(sum(sizes), B, scale=scale).requires_grad_()
    generator = torch.Generator().manual_seed(1)
    action = torch.stack([torch.randint(size, (B,), generator=generator, dtype=torch.int32) for size in sizes])
    log_probability, entropy = distribution.log_probability_and_entropy(logits, action)

    other = [distributions.Categorical(logits=block.t()) for block in logits.split(sizes)]
    expected = sum(each.log_prob(row) for each, row in zip(other, action, strict=True))
    expected_entropy = sum(each.entropy() for each in other)
    torch.testing.assert_close(log_probability, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-12, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad((a.sum() + 0.3 * b.sum()), logits)[0]
        for a, b in ((log_probability, entropy), (expected, expected_entropy))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_huge_logits_stay_finite():
    logits = torch.tensor([[1e30, 80.0, -1e9], [-1e30, -80.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    log_probability, entropy = Categorical((3,)).log_probability_and_entropy(
        logits, torch.zeros(1, 3, dtype=torch.int32)
    )
    assert log_probability.tolist() == [0.0, 0.0, pytest.approx(-1e9)]
    assert entropy.tolist() == [0.0, pytest.approx(0.0, abs=1e-30), pytest.approx(math.log(2.0))]
    (gradient,) = torch.autograd.grad(log_probability.sum() + entropy.sum(), logits)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("sizes", [(4,), (3, 2)])
def test_categorical_frequencies(sizes):
    # A regular grid of uniforms for one choice, against every value of the others: the frequency is the probability up
    # to the grid's width.
    count = 10_000
    logits = random(sum(sizes), 1, seed=3).expand(-1, count).float()
    for k, size in enumerate(sizes):
        uniform = torch.full((len(sizes), count), 0.37)
        uniform[k] = (torch.arange(count) + 0.5) / count
        action = Categorical(sizes).sample(logits, uniform)
        assert action.dtype == torch.int32 and action.shape == (len(sizes), count)
        frequency = torch.bincount(action[k], minlength=size) / count
        probability = logits.split(sizes)[k][:, 0].softmax(0)
        torch.testing.assert_close(frequency, probability, rtol=0, atol=1.5 / count)
        assert (action[1 - k] == action[1 - k, 0]).all() if len(sizes) > 1 else True


def test_categorical_sampling_intervals_are_closed_below():
    logits = torch.tensor([0.25, 0.25, 0.5]).log()[:, None].expand(-1, 6)
    uniform = torch.tensor([[0.0, 0.2499, 0.25, 0.4999, 0.5, LARGEST]])
    assert Categorical((3,)).sample(logits, uniform).tolist() == [[0, 0, 1, 1, 2, 2]]


def test_actions_of_probability_zero_are_never_sampled():
    # A choice a network rules out by a logit of -1e9 has probability 0 exactly, first or last, whatever rounding does
    # to the sum of the others.
    generator = torch.Generator().manual_seed(0)
    B = 20_000
    logits = torch.randn(8, B, generator=generator)
    logits[0] = logits[-1] = -1e9
    for value in (0.0, LARGEST):
        action = Categorical((8,)).sample(logits, torch.full((1, B), value))
        assert int(action.min()) > 0 and int(action.max()) < 7


def test_categorical_mode_is_the_argmax():
    logits = torch.tensor([[0.0, 5.0], [1.0, -5.0], [9.0, 1.0], [8.0, 2.0], [7.0, 3.0]])
    mode = Categorical((2, 3)).mode(logits)
    assert mode.tolist() == [[1, 0], [0, 2]] and mode.dtype == torch.int32
    assert Categorical((2, 3)).to_env(mode) is mode


@pytest.mark.parametrize("sizes", [(4,), (3, 2), (1, 5, 2)])
def test_masked_logits_equal_a_distribution_without_the_illegal_actions(sizes):
    """Softmax over the legal actions alone, in float64: equal probabilities, entropies and gradients, exactly 0 for the
    others.
    """
    B, distribution, generator = 200, Categorical(sizes), torch.Generator().manual_seed(5)
    logits = random(sum(sizes), B, scale=3.0).float().requires_grad_()
    legal = torch.randint(0, 2, (sum(sizes), B), generator=generator, dtype=torch.uint8)
    for rows in legal.split(sizes):
        rows[torch.randint(0, len(rows), (B,), generator=generator), torch.arange(B)] = 1
    parameters = masked(logits, legal)
    action = distribution.sample(parameters, torch.rand(len(sizes), B, generator=generator))
    log_probability, entropy = distribution.log_probability_and_entropy(parameters, action)
    (gradient,) = torch.autograd.grad(log_probability.sum() + 0.3 * entropy.sum(), logits)

    double = logits.detach().double().requires_grad_()
    expected, expected_entropy = [], []
    for j in range(B):
        sums = [torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
        for block, allowed, taken in zip(
            double[:, j].split(sizes), legal[:, j].split(sizes), action[:, j].tolist(), strict=True
        ):
            assert allowed[taken] == 1
            assert allowed.sum() > 0
            places = allowed.nonzero()[:, 0]
            log_p = torch.log_softmax(block[places], 0)
            sums[0] = sums[0] + log_p[places.tolist().index(taken)]
            sums[1] = sums[1] - (log_p.exp() * log_p).sum()
        expected.append(sums[0])
        expected_entropy.append(sums[1])
    wanted_log_probability, wanted_entropy = torch.stack(expected), torch.stack(expected_entropy)
    (wanted,) = torch.autograd.grad(wanted_log_probability.sum() + 0.3 * wanted_entropy.sum(), double)
    torch.testing.assert_close(log_probability.double(), wanted_log_probability, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy.double(), wanted_entropy, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-6)
    assert not gradient[legal == 0].any()
    assert torch.cat(
        [
            rows.gather(0, row[None].long())
            for rows, row in zip(legal.split(sizes), distribution.mode(parameters), strict=True)
        ]
    ).all()


@pytest.mark.parametrize("legal", [(1, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1), (1, 0, 0, 1), (0, 1, 1, 0)])
def test_illegal_actions_are_never_sampled(legal):
    """Neither noise 0 nor the largest noise selects them, even where legal logits are far below theirs."""
    uniform = torch.cat([torch.arange(4096) / 4096, torch.tensor([LARGEST, 2.0**-24])])[None]
    logits = torch.tensor([[30.0], [-30.0], [80.0], [-80.0]]).expand(4, uniform.shape[1])
    drawn = Categorical((4,)).sample(masked(logits, torch.tensor(legal)[:, None].expand_as(logits)), uniform)
    assert set(drawn[0].tolist()) <= {k for k in range(4) if legal[k]}


# GAUSSIAN


def test_gaussian_by_hand():
    # The standard normal at 0 and at 1: -ln(2 pi)/2 and that less 1/2; H = ln(2 pi e)/2. With std 2: less ln 2, H more
    # by ln 2.
    half = 0.9189385332046727
    for log_std, mean, action, expected in (
        (0.0, 0.0, 0.0, -half),
        (0.0, 0.0, 1.0, -half - 0.5),
        (math.log(2.0), 1.0, 5.0, -half - math.log(2.0) - 2.0),
    ):
        distribution = gaussian(log_std=log_std).double()
        log_probability, entropy = distribution.log_probability_and_entropy(
            *(torch.full((1, 1), x, dtype=torch.float64) for x in (mean, action))
        )
        assert log_probability.item() == pytest.approx(expected, abs=1e-7)
        assert entropy.item() == pytest.approx(half + 0.5 + log_std, abs=1e-7)


def test_squashed_by_hand():
    # At 0 tanh has slope 1 and changes nothing. Elsewhere the density is divided by 1 - tanh^2 = 1 / cosh^2.
    distribution = gaussian(squash=True).double()
    action = torch.tensor([[0.0, 1.0, -2.0]], dtype=torch.float64)
    log_probability, _ = distribution.log_probability_and_entropy(torch.zeros_like(action), action)
    half = 0.9189385332046727
    expected = [-half, -half - 0.5 + 2 * math.log(math.cosh(1.0)), -half - 2.0 + 2 * math.log(math.cosh(2.0))]
    assert log_probability.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_gaussian_equals_torch_distributions(rows, squash):
    B = 128
    distribution = gaussian(rows, squash=squash).double()
    with torch.no_grad():
        distribution.log_std.copy_(random(rows, 1, seed=5, scale=0.5))
    mean, action = random(rows, B, seed=6).requires_grad_(), random(rows, B, seed=7)
    log_probability, entropy = distribution.log_probability_and_entropy(mean, action)
    assert log_probability.shape == entropy.shape == (B,)

    normal = distributions.Normal(mean.t(), distribution.log_std.exp().t())
    if squash:
        transformed = distributions.TransformedDistribution(normal, distributions.transforms.TanhTransform())
        expected = transformed.log_prob(action.t().tanh()).sum(1)
    else:
        expected = normal.log_prob(action.t()).sum(1)
    torch.testing.assert_close(log_probability, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(entropy, normal.entropy().sum(1), rtol=1e-9, atol=1e-9)
    wanted = [mean, distribution.log_std]
    ours, theirs = (
        torch.autograd.grad(a.sum() + 0.3 * b.sum(), wanted)
        for a, b in ((log_probability, entropy), (expected, normal.entropy().sum(1)))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_squashed_log_probability_is_finite_at_the_bounds():
    # 1 - tanh^2 x rounds to 0 in float32 from |x| = 9.02 on; its logarithm tends to ln 4 - 2 |x|.
    distribution = gaussian(squash=True)
    action = torch.tensor([[12.0, -12.0, 300.0, -300.0]])
    mean = action.clone().requires_grad_()
    log_probability, _ = distribution.log_probability_and_entropy(mean, action)
    expected = [-0.9189385 - (math.log(4.0) - 2.0 * x) for x in (12.0, 12.0, 300.0, 300.0)]
    assert log_probability.tolist() == pytest.approx(expected, rel=1e-6)
    assert torch.isfinite(torch.autograd.grad(log_probability.sum(), mean)[0]).all()


def test_box_muller_by_hand():
    # sqrt(-2 ln(1 - u)) = 1 at u = 1 - e^(-1/2); cos 0 = 1, cos pi = -1, cos(pi / 2) = 0. Then mean + std * e.
    distribution = gaussian(log_std=math.log(3.0))
    radius = 1.0 - math.exp(-0.5)
    action = distribution.sample(torch.full((1, 3), 10.0), torch.tensor([[radius] * 3, [0.0, 0.5, 0.25]]))
    assert action[0].tolist() == pytest.approx([13.0, 7.0, 10.0], abs=1e-5)


def test_box_muller_is_finite_at_the_ends_of_the_uniforms():
    ends = torch.tensor([0.0, LARGEST])
    uniform = torch.cartesian_prod(ends, ends).t()
    action = gaussian().sample(torch.zeros(1, 4), uniform)[0]
    assert action.abs().tolist() == pytest.approx(
        [0.0, 0.0, math.sqrt(48 * math.log(2.0)), math.sqrt(48 * math.log(2.0))], rel=1e-6
    )


def test_gaussian_frequencies():
    # Over a regular grid of radii and angles the normals have the moments and the quantiles of N(0, 1).
    side = 400
    grid = (torch.arange(side) + 0.5) / side
    uniform = torch.cartesian_prod(grid, grid).t().contiguous()
    normal = gaussian().sample(torch.zeros(1, side * side), uniform)[0].detach().double()
    assert float(normal.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(normal.square().mean()) == pytest.approx(1.0, abs=5e-3)
    assert float(normal.pow(4).mean()) == pytest.approx(3.0, abs=0.06)
    for bound in (-2.0, -1.0, 0.0, 0.5, 1.5):
        expected = 0.5 * (1.0 + math.erf(bound / math.sqrt(2.0)))
        assert float((normal < bound).double().mean()) == pytest.approx(expected, abs=3e-3)


def test_each_row_of_a_gaussian_uses_its_own_noise():
    distribution = gaussian(2)
    assert distribution.noise_rows == 4
    uniform = torch.full((4, 1), 0.3)
    base = distribution.sample(torch.zeros(2, 1), uniform)
    for k in range(4):
        changed = uniform.clone()
        changed[k] = 0.8
        moved = distribution.sample(torch.zeros(2, 1), changed) != base
        assert moved[:, 0].tolist() == [k % 2 == 0, k % 2 == 1]


def test_to_env_scales_and_clips():
    distribution = Gaussian(((-2.0, 0.0, -math.inf, 0.0), (2.0, 10.0, math.inf, math.inf)))
    raw = torch.tensor([[0.0, 0.5, -1.0, 7.0, -7.0]]).expand(4, -1)
    expected = [
        [0.0, 1.0, -2.0, 2.0, -2.0],
        [5.0, 7.5, 0.0, 10.0, 0.0],
        [0.0, 0.5, -1.0, 7.0, -7.0],
        [0.0, 0.5, -1.0, 7.0, -7.0],  # half-bounded: as it is; the world clips it
    ]
    assert distribution.to_env(raw).tolist() == expected


def test_squash_maps_into_the_bounds():
    distribution = gaussian(low=-3.0, high=1.0, squash=True)
    action = distribution.to_env(torch.tensor([[-50.0, 0.0, math.atanh(0.5), 50.0]]))
    assert action[0].tolist() == pytest.approx([-3.0, -1.0, 0.0, 1.0], abs=1e-6)


def test_bounds_as_wide_as_float32_give_finite_actions():
    largest = torch.finfo(torch.float32).max
    action = gaussian(low=-largest, high=largest).to_env(torch.tensor([[0.0, 0.5]]))
    assert torch.isfinite(action).all()


# CHOICE


@pytest.mark.parametrize(
    ("action", "kind", "parameter_rows", "action_rows", "noise_rows"),
    [
        (Discrete(5), Categorical, 5, 1, 1),
        (MultiDiscrete((3, 2)), Categorical, 5, 2, 2),
        (Box(3, low=-1.0, high=1.0), Gaussian, 3, 3, 6),
    ],
)
def test_distribution_for_matches_the_action_space(action, kind, parameter_rows, action_rows, noise_rows):
    distribution = distribution_for(env_with(action), squash=False, initial_log_std=-0.5)
    assert isinstance(distribution, kind)
    assert (distribution.parameter_rows, distribution.action_rows, distribution.noise_rows) == (
        parameter_rows,
        action_rows,
        noise_rows,
    )
    if kind is Gaussian:
        assert distribution.log_std.flatten().tolist() == [-0.5] * 3
