"""Convolutional networks against plain float64 versions: initialisation, unsupported inputs, bf16, PPO with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import conv2d, layer_norm, linear, max_pool2d, one_hot
from toys import PICK, bytes_of, iterate, ppo_on

from operant.config import load as config
from operant.envs import Box, device, find, with_pixels
from operant.errors import ConfigError
from operant.kernels.spec import unsupported_reason
from operant.nn import cnn as convolution
from operant.nn import manual, mlp
from operant.nn.policy import Policy

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


def showing(*shape, categories=0):
    """PICK with another observation space, of which it writes the first bytes; the others stay 0."""
    size = 1
    for length in shape:
        size *= length
    return replace(
        PICK,
        observation=Box(
            size, low=0, high=categories - 1 if categories else 255, dtype="uint8", shape=shape, categories=categories
        ),
    )


def policy(env, cnn, *, seed=1, normalize=False, precision="fp32", **more):
    built = Policy(
        env, mlp.Config(kind="cnn", cnn=cnn, **more), seed=seed, device=CPU, normalize=normalize, precision=precision
    )
    # Biases are zero at the beginning, and the head nearly so.
    generator = torch.Generator().manual_seed(9)
    for name, parameter in zip(built.flat.names, built.flat.parameters, strict=True):
        if "bias" in name or "head" in name:
            parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return built


def drawn(env, samples, *, most=None, seed=0):
    """Random observations (O, B), samples contiguous in memory."""
    box = env.observation
    most = most or (box.categories + 1 if box.categories else 256)  # a byte more than there are categories
    return torch.randint(
        0, most, (samples, box.size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    ).t()


# THE NETWORKS, WRITTEN PLAINLY


def plain(built, observation):
    """Head parameters (B, H) and values (B) in float64 by torch's operations on images (B, C, H, W), and the leaves by
    name.
    """
    leaf = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in zip(built.flat.names, built.flat.parameters, strict=True)
    }
    box, name = built.env.observation, built.net.config.cnn
    height, width, planes = (*box.shape, 1)[:3]
    picture = observation.t().reshape(-1, height, width, planes)
    if box.categories:
        named = one_hot(picture.long().clamp(max=box.categories), box.categories + 1)[..., : box.categories]
        features = named.flatten(3).double().permute(0, 3, 1, 2)
    else:
        features = picture.double().permute(0, 3, 1, 2) / 255.0

    def filtered(k, features, stride=1, padding=0):
        weight, bias = leaf[f"body.filters.{k}.weight"], leaf[f"body.filters.{k}.bias"]
        return conv2d(features, weight.permute(0, 3, 1, 2), bias, stride=stride, padding=padding)

    if name == "nature":
        for k, stride in enumerate((4, 2, 1)):
            features = filtered(k, features, stride).relu()
    elif name == "board":
        for k in range(len(built.net.config.channels or (64, 64, 64))):
            features = filtered(k, features, padding=1).relu()
    elif name == "minatar":
        features = filtered(0, features)
        if built.net.config.layer_norm:
            gain, shift = leaf["body.norm_gains.0"], leaf["body.norm_biases.0"]
            features = layer_norm(features.permute(0, 2, 3, 1), gain.shape, gain, shift, eps=1e-5).permute(0, 3, 1, 2)
        features = features.relu()
    else:
        for k in range(0, 5 * len(built.net.config.channels or (16, 32, 32)), 5):
            features = max_pool2d(filtered(k, features, padding=1), kernel_size=3, stride=2, padding=1)
            for j in (k + 1, k + 3):
                features = features + filtered(j + 1, filtered(j, features.relu(), padding=1).relu(), padding=1)
        features = features.relu()
    features = features.permute(0, 2, 3, 1).flatten(1)
    for k in range(len(built.net.config.hidden)):
        features = linear(features, leaf[f"weights.{k}"], leaf[f"biases.{k}"])
        if built.net.config.layer_norm:
            gain = leaf[f"norm_gains.{k}"]
            features = layer_norm(features, gain.shape, gain, leaf[f"norm_biases.{k}"], eps=1e-5)
        features = features.relu()
    head = linear(features, leaf["head_weight"], leaf["head_bias"][:, 0])
    return head, linear(features, leaf["value_weight"], leaf["value_bias"][:, 0])[:, 0], leaf


CASES = {
    "nature, 64 x 64": ("nature", showing(64, 64, 3), {"hidden": (64,)}),
    "nature, 84 x 84, one channel": ("nature", showing(84, 84), {"hidden": (32,), "channels": (8, 8, 8)}),
    "nature, the smallest": ("nature", showing(36, 45, 2), {"hidden": (16, 8), "channels": (4, 6, 5)}),
    "nature, categories": ("nature", showing(40, 36, 1, categories=3), {"hidden": (16,), "channels": (4, 6, 5)}),
    "impala, 24 x 20": ("impala", showing(24, 20, 3), {}),
    "impala, 10 x 9": ("impala", showing(10, 9, 3), {"hidden": (16,), "channels": (4, 6)}),
    "impala, categories": ("impala", showing(5, 5, categories=4), {"hidden": (16,), "channels": (4,)}),
    "board, Snake": ("board", find("snake"), {"hidden": (32,)}),
    "board, categories": ("board", showing(4, 4, categories=16), {"hidden": (16, 12), "channels": (8, 4)}),
    "board, layer normalization": (
        "board",
        showing(4, 4, categories=16),
        {"hidden": (16, 12), "channels": (8, 4), "layer_norm": True},
    ),
    "minatar, Snake": ("minatar", find("snake"), {"hidden": (32,)}),
    "minatar, layer normalization": ("minatar", showing(10, 9, 6), {"layer_norm": True}),
    "board, planes of categories": ("board", showing(9, 9, 2, categories=3), {"hidden": (16,), "channels": (8,)}),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_torch_layers(case):
    cnn, env, more = CASES[case]
    built = policy(env, cnn, **more)
    observation = drawn(env, 7)
    head, value = built.forward(observation)
    expected_head, expected_value, leaf = plain(built, observation)
    assert (
        head.shape == (built.distribution.parameter_rows, 7)
        and value.shape == (7,)
        and head.dtype == value.dtype == torch.float32
    )
    torch.testing.assert_close(head.t().double(), expected_head, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value.double(), expected_value, rtol=1e-4, atol=1e-5)
    assert float(expected_head.detach().std(dim=0).min()) > 1e-3, "every sample looks alike"

    slope, value_slope = (
        torch.randn(shape, generator=torch.Generator().manual_seed(4)) for shape in (head.shape, value.shape)
    )
    built.flat.backward((head * slope).sum() + (value * value_slope).sum())
    wanted = torch.autograd.grad(
        (expected_head.t() * slope).sum() + (expected_value * value_slope).sum(), list(leaf.values())
    )
    for name, gradient, view in zip(leaf, wanted, built.flat._gradient_views, strict=True):
        error = (view.double() - gradient).norm()
        assert gradient.norm() > 0 and error <= 1e-4 * gradient.norm(), f"{name}: {error / gradient.norm():.1e}"


@pytest.mark.parametrize("case", ["nature, the smallest", "impala, 10 x 9", "board, Snake", "board, categories"])
def test_both_memory_layouts_give_the_same_bits(case):
    cnn, env, more = CASES[case]
    built, observation = policy(env, cnn, **more), drawn(env, 12)
    found = []
    for seen in (observation, observation, observation.contiguous()):
        head, value = built.forward(seen)
        built.flat.backward(head.square().sum() + value.sum())
        found.append((head.detach(), value.detach(), built.flat.gradient.clone()))
    for other in found[1:]:
        assert all(torch.equal(one, again) for one, again in zip(found[0], other, strict=True))


def test_parameter_counts():
    # Mnih et al. 2015 on 84 x 84 x 4: 1,684,128 parameters before the heads.
    def trunk(cnn, env):
        return sum(
            parameter.numel()
            for name, parameter in policy(env, cnn).net.named_parameters()
            if "head" not in name and "value" not in name
        )

    assert (
        trunk("nature", showing(84, 84, 4))
        == 8 * 8 * 4 * 32 + 32 + 4 * 4 * 32 * 64 + 64 + 3 * 3 * 64 * 64 + 64 + 7 * 7 * 64 * 512 + 512
        == 1_684_128
    )
    # Fifteen convolutions, and 8 x 8 x 32 numbers into 256.
    convolutions = (27 * 16 + 16) + 4 * (144 * 16 + 16) + (144 * 32 + 32) + 4 * (288 * 32 + 32) + 5 * (288 * 32 + 32)
    assert trunk("impala", showing(64, 64, 3)) == convolutions + 2048 * 256 + 256
    assert trunk("board", showing(9, 9, categories=3)) == 27 * 64 + 64 + 2 * (576 * 64 + 64) + 81 * 64 * 256 + 256


def test_initial_weights_are_orthogonal_with_their_gains():
    env = showing(44, 44, 3)
    for cnn in ("nature", "impala"):
        built = Policy(env, mlp.Config(kind="cnn", cnn=cnn, hidden=(64,)), seed=4, device=CPU, normalize=False)
        for layer in built.net.body.filters:
            rows = layer.weight.detach().flatten(1)
            length = rows[0].norm().square()
            torch.testing.assert_close(rows @ rows.t(), length * torch.eye(len(rows)), rtol=1e-4, atol=1e-4)
            assert cnn == "impala" or float(length) == pytest.approx(2.0, rel=1e-4)
            assert not layer.bias.any()
        with torch.no_grad():
            head, value = built.forward(drawn(env, 20))
        assert float(head.abs().max()) < 0.1 and 0.01 < float(value.abs().max()) < 10, (
            "the first policy is near uniform, the first values are about 1"
        )
    assert torch.equal(
        built.flat.values,
        Policy(env, mlp.Config(kind="cnn", cnn=cnn, hidden=(64,)), seed=4, device=CPU, normalize=False).flat.values,
    )


# HALF PRECISION: what a GPU does with bf16, done on a CPU.


@pytest.mark.parametrize("case", ["nature, the smallest", "impala, 10 x 9", "board, planes of categories"])
def test_bf16_computes_in_bf16_and_keeps_float32_parameters(case):
    cnn, env, more = CASES[case]
    built, observation = policy(env, cnn, **more), drawn(env, 30)
    results = []
    for dtype in (None, torch.bfloat16):
        built.net.dtype = dtype
        head, value = built.forward(observation)
        assert head.dtype == value.dtype == torch.float32
        built.flat.backward(head.square().sum() + value.square().sum())
        results.append((head.detach(), value.detach(), built.flat.gradient.clone()))
    for exact, half in zip(*results, strict=True):
        error = float((exact - half).norm() / exact.norm())
        assert 1e-5 < error < 0.03, "bf16 keeps eight bits: an error of 0.4 % in each number"


def test_a_cpu_computes_in_float32_whatever_is_asked():
    for precision in ("fp32", "tf32", "bf16"):
        assert policy(showing(10, 9, 3), "board", channels=(2,), hidden=(4,), precision=precision).net.dtype is None


# WHAT IT REFUSES


@pytest.mark.parametrize(
    ("env", "cnn", "sentence"),
    [
        (find("cartpole"), "nature", r"reads images and boards.*4 values of float32"),
        (PICK, "board", r"reads images and boards.*3 values of uint8 \(use"),
        (
            find("snake"),
            "nature",
            r'net.cnn = "nature" needs images of at least 36 x 36, and these are 10 x 10 \(use "board" or "impala"\)',
        ),
        (showing(35, 64, 3), "nature", "35 x 64"),
        (showing(2, 10, 3), "minatar", "more than 2 cells a side, and these boards are 2 x 10"),
        (showing(2, 2, 2, 2), "board", r"\(2, 2, 2, 2\)"),
        (
            replace(PICK, observation=Box(4, high=3, dtype="uint8", shape=(2, 2), categories=(4, 4, 4, 0))),
            "board",
            "bytes that are all numeric",
        ),
        (replace(PICK, observation=Box(12, dtype="uint8", shape=(2, 2, 2))), "board", "12 values"),
    ],
)
def test_an_observation_that_it_cannot_read_is_refused_with_the_reason(env, cnn, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Policy(env, mlp.Config(kind="cnn", cnn=cnn), seed=1, device=CPU, normalize=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cnn": "natur"},
        {"channels": ()},
        {"channels": (0, 1, 2)},
        {"channels": (8, 8)},
        {"hidden": (5000,)},
        {"cnn": ["nature"]},
    ],
)
def test_configurations_that_are_refused(wrong):
    with pytest.raises(ValidationError):
        mlp.Config(kind="cnn", **wrong)


def test_hidden_defaults_to_the_papers_dense_layers():
    assert mlp.Config(kind="cnn").hidden == (512,)
    assert mlp.Config(kind="cnn", cnn="board").hidden == mlp.Config(kind="cnn", cnn="impala").hidden == (256,)
    assert mlp.Config(kind="cnn", hidden=(9,)).hidden == (9,) and mlp.Config(cnn="impala").hidden == (64, 64)


def test_a_configuration_of_a_cnn_survives_its_own_file(tmp_path):
    first = config.load(None, ["env.name=snake", "net.kind=cnn", "net.cnn=board", "net.channels=[8, 16]"])
    assert (first.net.kind, first.net.hidden, first.net.channels) == ("cnn", (256,), (8, 16))
    (tmp_path / "config.toml").write_text(config.to_toml(first))
    assert config.load(tmp_path / "config.toml") == first
    with pytest.raises(ConfigError, match="nature has three convolutions"):
        config.load(None, ["net.kind=cnn", "net.channels=[8, 16]"])


def test_neither_fused_kernels_nor_the_manual_backward_pass_take_it():
    built = policy(find("snake"), "board", channels=(4,), hidden=(8,))
    assert unsupported_reason(built, 100) is not None and manual.unsupported_reason(built) is not None


# PPO


@device
def _board_observe(s, obs, p):
    for k in range(6):
        obs[k] = 255 if int(s[0]) == k % 3 else 0


BOARD = replace(PICK, observation=Box(6, low=0, high=255, dtype="uint8", shape=(2, 3)), observe=_board_observe)
SMALL = mlp.Config(kind="cnn", cnn="board", channels=(8,), hidden=(16,))


@pytest.mark.slow
def test_ppo_learns_with_a_convolutional_network():
    ppo = iterate(ppo_on(BOARD, 64, SMALL, horizon=16, learning_rate=2e-2, normalize_observations=True), 10)
    assert ppo.policy.normalizer is None and ppo.kernels != "manual_backward"
    observation = torch.zeros(6, 3, dtype=torch.uint8)
    for number in range(3):
        observation[[number, number + 3], number] = 255
    assert ppo.policy.act(observation, ())[0].tolist() == [[0, 1, 2], [0, 1, 0]]


def test_minibatches_in_parts_give_the_same_to_rounding_and_the_same_bits_again():
    whole, again, parts = (
        iterate(ppo_on(BOARD, 32, SMALL, horizon=8, minibatches=2, microbatch=microbatch), 2)
        for microbatch in (None, None, 50)
    )
    assert bytes_of(whole) == bytes_of(again)
    torch.testing.assert_close(whole.policy.flat.values, parts.policy.flat.values, rtol=1e-3, atol=1e-4)


def test_ppo_trains_on_rendered_images():
    net = mlp.Config(kind="cnn", channels=(4, 4, 4), hidden=(8,))
    first, again = (
        iterate(ppo_on(with_pixels(find("cartpole"), 36), 8, net, horizon=4, minibatches=2), 2) for _ in range(2)
    )
    assert bytes_of(first) == bytes_of(again)
    seen = first.rollout.observation[0]
    assert seen.stride() == (1, 36 * 36 * 3) and seen.float().std() > 1
    head, value = first.policy.forward(seen)
    expected_head, expected_value, _ = plain(first.policy, seen)
    torch.testing.assert_close(head.t().double(), expected_head, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value.double(), expected_value, rtol=1e-4, atol=1e-5)


def test_settle_makes_cudnn_deterministic():
    before = [getattr(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "allow_tf32")]
    try:
        for precision in ("fp32", "tf32", "bf16"):
            convolution.settle(precision)
            assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (False, True)
            assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = before


def test_large_batches_without_gradients_are_split(monkeypatch):
    env = showing(10, 9, 3)
    whole = policy(env, "impala", channels=(4, 6), hidden=(8,))
    # The widest layer is the first before it is pooled: 10 x 9 x 4 numbers a sample, so three samples of it in 1,100.
    monkeypatch.setattr(convolution, "MAX_LAYER_VALUES", 1100)
    parts = policy(env, "impala", channels=(4, 6), hidden=(8,))
    for seen in (drawn(env, 11), drawn(env, 11).contiguous()):
        with torch.no_grad():
            calls = []
            monkeypatch.setattr(
                parts.net,
                "heads",
                lambda part, calls=calls: (
                    calls.append(part.shape[2]) or convolution.Convolutional.heads(parts.net, part)
                ),
            )
            for one, other in zip(parts.forward(seen), whole.forward(seen), strict=True):
                torch.testing.assert_close(one, other)
        assert calls == [3, 3, 3, 2]
    assert parts.forward(drawn(env, 11))[0].requires_grad and calls[-1] == 11
