"""First layers over bytes against plain float64 products and convolutions, in both memory layouts, in chunks or whole,
and without a float copy of the batch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from numpy import float32
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toys import PICK, bytes_of, clones, iterate, ppo_on

from operant.algos.ppo import cpu
from operant.algos.ppo.ppo import ppo_loss
from operant.compute.threads import ThreadPool
from operant.envs import Box, device, find
from operant.nn import first_layer, mlp, normalization
from operant.nn.normalization import RunningNormalizer
from operant.nn.policy import Policy

CPU = torch.device("cpu")
LAYOUTS = ("features side by side", "samples side by side")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 100 values, the last one smaller."""
    monkeypatch.setattr(first_layer, "MIN_CHUNK_SAMPLES", 4)
    monkeypatch.setattr(first_layer, "CPU_CHUNK_VALUES", 100)


@device
def _named(s, obs, p):
    obs[0] = int(s[0])
    obs[1] = (int(s[0]) + int(s[1])) % 4
    obs[2] = int(s[1] * float32(0.5))


# As PICK, but each byte names one of four categories.
NAMES = replace(PICK, observation=Box(3, low=0, high=3, dtype="uint8", categories=4), observe=_named)


# Only the second of them: the first and the last are numeric.
MIXED = replace(NAMES, observation=Box(3, low=0, high=(3, 3, 255), dtype="uint8", categories=(0, 4, 0)))


def random_bytes(rows, samples, *, most=256, layout=LAYOUTS[0], seed=0):
    """Random bytes (O, B), feature-major, or a view of contiguous samples."""
    drawn = torch.randint(0, most, (rows, samples), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return drawn if layout == LAYOUTS[0] else drawn.t().contiguous().t()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Watch(TorchDispatchMode):
    """Record of the operations that run, and the elements of the largest float tensor that they create."""

    def __init__(self):
        super().__init__()
        self.largest, self.operations = 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.operations.add(function.overloadpacket.__name__)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


READ_BACK = {"_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal", "lift_fresh", "lift_fresh_copy"}


# CHUNKS


@pytest.mark.parametrize(
    ("samples", "width", "size"),
    [(100, 10, 100), (65536, 300, 512), (65536, 12288, 128), (100_000, 300, 782), (1, 10**6, 1)],
)
def test_chunk_size(samples, width, size):
    # 2^18 numbers at most, of 300 each: 873 samples, so 512 where 65,536 are halved and halved again; of 12,288 each:
    # the fewest, 128.
    assert first_layer.chunk_size(samples, width, cuda=False) == size
    assert size <= max(128, 2**18 // width)


# THE FIRST LAYER OF AN MLP


def run_first_layer(weight, bias, observation, read):
    """Output and gradients of weight and bias for a random weighting of the outputs as the loss."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    out = first_layer.linear(weight, bias, observation, read)
    slope = normal(*out.shape, seed=3).to(out.dtype)
    return out.detach(), *torch.autograd.grad(out, (weight, bias), slope)


def plain_layer(weight, bias, features):
    """Output and gradients in float64, sample by sample, of features (K, B)."""
    out = torch.stack([weight.double() @ sample + bias.double()[:, 0] for sample in features.double().t()], dim=1)
    slope = normal(*out.shape, seed=3).double()
    return out, slope @ features.double().t(), slope.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("normalized", [False, True])
def test_numeric_bytes_equal_a_float_layer(normalized, layout, small_chunks):
    weight, bias, observation = normal(6, 9), normal(6, 1, seed=1), random_bytes(9, 101, layout=layout)
    seen = None
    features = observation.double()
    if normalized:
        seen = RunningNormalizer(9, CPU)
        seen.update(random_bytes(9, 50, most=20, seed=5))
        features = ((features - seen.running_mean) / (seen.running_variance + 1e-8).sqrt()).clamp(-10.0, 10.0)
        assert (features == 10.0).any() and (features.abs() < 10.0).any()
    assert first_layer.chunk_size(101, 9, cuda=False) == 7
    for found, expected in zip(
        run_first_layer(weight, bias, observation, lambda chunk: first_layer.numeric(chunk, seen)),
        plain_layer(weight, bias, features),
        strict=True,
    ):
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_categorical_bytes_equal_a_layer_on_their_one_hots(layout, small_chunks):
    # Bytes of 5 and more name none of five categories.
    weight, bias, observation = normal(6, 3 * 5), normal(6, 1, seed=1), random_bytes(3, 101, most=8, layout=layout)
    observation[1, 7] = 255
    features = torch.zeros(15, 101, dtype=torch.float64)
    for sample in range(101):
        for place in range(3):
            if observation[place, sample] < 5:
                features[5 * place + int(observation[place, sample]), sample] = 1.0
    torch.testing.assert_close(first_layer.one_hot(observation, 5).double(), features, rtol=0, atol=0)
    for found, expected in zip(
        run_first_layer(weight, bias, observation, lambda chunk: first_layer.one_hot(chunk, 5)),
        plain_layer(weight, bias, features),
        strict=True,
    ):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_one_hot_of_256_categories():
    every = torch.arange(256, dtype=torch.uint8)[None]
    assert torch.equal(first_layer.one_hot(every, 256), torch.eye(256))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("normalized", [False, True])
def test_mixed_features_equal_a_layer_on_their_encoding(normalized, layout, small_chunks):
    categories, observation = (3, 0, 5, 0, 0, 2), random_bytes(6, 101, most=7, layout=layout)
    observation[4, 9] = observation[0, 9] = 255
    seen = RunningNormalizer(6, CPU)
    seen.update(random_bytes(6, 50, most=20, seed=5))
    rows = []
    for place, count in enumerate(categories):
        for kind in range(count):
            rows.append([1.0 if byte == kind else 0.0 for byte in observation[place].tolist()])
        if count == 0:
            mean, deviation = float(seen.running_mean[place]), (float(seen.running_variance[place]) + 1e-8) ** 0.5
            rows.append(
                [
                    min(max((byte - mean) / deviation, -10.0), 10.0) if normalized else byte
                    for byte in observation[place].tolist()
                ]
            )
    features = torch.tensor(rows, dtype=torch.float64)
    assert features.shape == (13, 101) and (not normalized or (features == 10.0).any())
    mixed = functools.partial(first_layer.PartialOneHot(categories), normalizer=seen if normalized else None)
    torch.testing.assert_close(mixed(observation).double(), features, rtol=2e-5, atol=1e-5)
    weight, bias = normal(6, 13), normal(6, 1, seed=1)
    for found, expected in zip(
        run_first_layer(weight, bias, observation, mixed), plain_layer(weight, bias, features), strict=True
    ):
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("categories", [0, 4, (0, 4) * 25])
def test_no_float_copy_of_a_batch_and_no_host_sync(categories, small_chunks):
    observation = random_bytes(50, 400, most=4)
    net = mlp.MLP(50, 2, mlp.Config(hidden=(8,)), torch.Generator().manual_seed(0), categories=categories)
    with Watch() as watch:
        head, value = net(observation, RunningNormalizer(50, CPU))
        torch.autograd.grad(head.sum() + value.sum(), list(net.parameters()))
    assert {"addmm", "mm"} <= watch.operations and not watch.operations & READ_BACK
    assert watch.largest == 2 * 8 * 400, "something larger than the first layer's output was made"


@pytest.mark.parametrize("categories", [0, 4])
def test_results_are_reproducible(categories):
    observation, weight, bias = random_bytes(60, 3000, most=4), normal(16, 60 * max(categories, 1)), normal(16, 1)
    read = (lambda chunk: first_layer.one_hot(chunk, categories)) if categories else first_layer.numeric
    first, second = (run_first_layer(weight, bias, observation, read) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_an_mlp_of_categories_is_initialised_as_one_of_their_one_hots():
    config = mlp.Config(hidden=(8, 6))
    net = mlp.MLP(5, 3, config, torch.Generator().manual_seed(2), categories=4)
    wide = mlp.MLP(20, 3, config, torch.Generator().manual_seed(2))
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), wide.parameters(), strict=True))
    observation = random_bytes(5, 33, most=6)
    for one, other in zip(net(observation), wide(first_layer.one_hot(observation, 4)), strict=True):
        torch.testing.assert_close(one, other)


# POLICIES


def test_categories_are_not_normalised():
    built = Policy(NAMES, mlp.Config(hidden=(8,)), seed=1, device=CPU, normalize=True)
    assert built.normalizer is None and built.net.categories == 4 and built.net.first_weight.shape == (16, 12)
    assert set(built.tensors()) == {"parameters"}


def test_only_numeric_bytes_are_normalised():
    for normalize in (False, True):
        built = Policy(MIXED, mlp.Config(hidden=(8,)), seed=1, device=CPU, normalize=normalize)
        assert built.normalizer is not None and built.net.first_weight.shape == (16, 6)
        observation = torch.tensor([[1, 3], [2, 2], [255, 0]], dtype=torch.uint8)
        if normalize:
            built.normalizer.update(observation)
        read = built.net.reader(built.normalizer)(observation)
        expected = (
            [[-1, 1], [0, 0], [0, 0], [1, 1], [0, 0], [1, -1]]
            if normalize
            else [[1 / 3, 1], [0, 0], [0, 0], [1, 1], [0, 0], [1, 0]]
        )
        torch.testing.assert_close(read, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-3)


@pytest.mark.parametrize("env", [NAMES, PICK, MIXED], ids=["categories", "numeric", "some of each"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_manual_backward_pass_equals_autograd(env, normalize):
    by_hand, plain = (
        iterate(
            ppo_on(
                env,
                32,
                mlp.Config(hidden=(8, 6)),
                horizon=8,
                minibatches=2,
                kernels=kernels,
                normalize_observations=normalize,
            ),
            2,
        )
        for kernels in ("auto", "torch")
    )
    assert by_hand.kernels == "manual_backward" and plain.kernels != "manual_backward"
    torch.testing.assert_close(by_hand.policy.flat.values, plain.policy.flat.values, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(by_hand.stats, plain.stats, rtol=1e-3, atol=1e-4)


def test_manual_backward_of_categories_against_autograd_once():
    ppo = ppo_on(NAMES, 16, mlp.Config(hidden=(7,)), horizon=8, minibatches=1, kernels="auto")
    ppo.collect()
    ppo.backend.estimate_advantages()
    batch = ppo.backend.gather(ppo.minibatches.order[0].long())
    batch.observation[1, 3] = 200  # names no kind
    numbers = cpu.Gradient(ppo.policy, ppo.config, [128], ThreadPool(1))(batch)
    found = ppo.policy.flat.gradient.clone()
    loss, expected = ppo_loss(ppo.policy, batch, ppo.config)
    ppo.policy.flat.backward(loss)
    assert float(found.norm()) > 1e-3
    torch.testing.assert_close(found, ppo.policy.flat.gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(numbers, ppo.backend.stacked(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
def test_ppo_learns_from_categories(normalize):
    # What is named first is the number that pays.
    ppo = iterate(
        ppo_on(NAMES, 128, mlp.Config(hidden=(16,)), horizon=16, learning_rate=1e-2, normalize_observations=normalize),
        20,
    )
    with torch.no_grad():
        observation = torch.tensor([[0, 1, 2], [0, 1, 2], [0, 0, 0]], dtype=torch.uint8)
        assert ppo.policy.act(observation, ())[0][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("env", [NAMES, MIXED], ids=["categories", "some of each"])
def test_a_resumed_run_with_categories_ends_in_the_same_bits(env):
    config = {"horizon": 8, "minibatches": 2, "normalize_observations": True}
    first = iterate(ppo_on(env, 32, **config), 2)
    second = ppo_on(env, 32, **config, start=False)
    saved = clones(first)
    for name, tensor in second.state("all").items():
        tensor.copy_(saved[name])
    assert bytes_of(iterate(first, 2)) == bytes_of(iterate(second, 2))


def test_snake_has_its_manual_backward_pass():
    ppo = ppo_on(find("snake"), 8, mlp.Config(hidden=(16,)), horizon=4, normalize_observations=True)
    assert ppo.kernels == "manual_backward" and ppo.policy.normalizer is not None


def test_numeric_bytes_that_are_not_normalized_are_divided_by_their_bound():
    env = replace(find("snake"), observation=Box(2, low=0, high=(4.0, math.inf), dtype="uint8"))
    built = Policy(env, mlp.Config(hidden=(8,)), seed=1, device=CPU, normalize=False)
    seen = torch.tensor([[0, 2, 4], [0, 51, 255]], dtype=torch.uint8)
    shares = torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.2, 1.0]])
    torch.testing.assert_close(built.forward(seen), built.net(shares))
    before = {name: tensor.clone() for name, tensor in built.tensors().items()}
    built.normalizer.update(seen)
    torch.testing.assert_close(built.forward(seen), built.net(shares))
    assert set(built.tensors()) == set(before) == {"parameters"}


# MOMENTS


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("most", [1, 40, 10**6])
def test_mean_and_variance_of_bytes_equal_those_of_the_whole_batch(layout, most, monkeypatch):
    """Batches (D, T, N) split along either axis."""
    monkeypatch.setattr(normalization, "CPU_CHUNK_VALUES", most)
    # (T, D, N)
    rollout = torch.randint(0, 256, (6, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rollout[:, 2] = 9
    if layout == LAYOUTS[1]:
        rollout = rollout.transpose(1, 2).contiguous().transpose(1, 2)
    seen = RunningNormalizer(5, CPU)
    seen.update(rollout.transpose(0, 1))
    numbers = rollout.double().transpose(0, 1).flatten(1)
    total = 42 + 1e-4
    mean = numbers.sum(dim=1) / total
    variance = ((numbers.square().sum(dim=1) + 1e-4) / total) - mean.square()
    torch.testing.assert_close(seen.running_mean[:, 0], mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(seen.running_variance[:, 0], variance, rtol=1e-5, atol=1e-6)
    assert float(seen.count) == pytest.approx(total)
    assert torch.equal(seen.inv_std, (seen.running_variance + 1e-8).rsqrt().float())


def test_the_normalizer_converts_bytes_in_parts(monkeypatch):
    monkeypatch.setattr(normalization, "CPU_CHUNK_VALUES", 200)
    seen = RunningNormalizer(10, CPU)
    with Watch() as watch:
        seen.update(random_bytes(10, 4000).view(10, 40, 100))
    assert watch.largest == 200 and not watch.operations & READ_BACK
    assert float(seen.count) == 4000 + 1e-4


# PICTURES


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_read_without_a_copy(layout):
    observation = random_bytes(24, 5, layout=layout)
    picture = first_layer.as_images(observation, (2, 4, 3))
    assert (picture.data_ptr() == observation.data_ptr()) == (layout == LAYOUTS[1])
    for b in range(5):
        for place in range(24):
            assert picture[b, place // 12, place // 3 % 4, place % 3] == observation[place, b]


def plain_convolution(weight, bias, picture, padding=0, stride=1):
    """Convolution in float64, value by value: weights (M, k, k, C), images (B, H, W, C) to (B, M, h, w)."""
    weight, bias = weight.double(), bias.double()
    wide = torch.nn.functional.pad(picture.double(), (0, 0, padding, padding, padding, padding))
    side = weight.shape[1]
    rows, columns = ((length - side) // stride + 1 for length in wide.shape[1:3])

    def at(i, j):
        window = wide[:, stride * i : stride * i + side, stride * j : stride * j + side]
        return torch.tensordot(window, weight, ([1, 2, 3], [1, 2, 3]))

    out = torch.stack([torch.stack([at(i, j) for j in range(columns)]) for i in range(rows)])
    return out.permute(2, 3, 0, 1) + bias[:, None, None]


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("categories", [0, 3])
@pytest.mark.parametrize("whole", [False, True])
def test_a_convolution_of_bytes_equals_conv2d(padding, categories, whole, monkeypatch):
    monkeypatch.setattr(first_layer, "MIN_CHUNK_SAMPLES", 4)
    monkeypatch.setattr(first_layer, "CPU_CHUNK_VALUES", 10**6 if whole else 100)
    picture = first_layer.as_images(random_bytes(40, 19, most=4 if categories else 256, layout=LAYOUTS[1]), (5, 4, 2))
    features = (
        torch.stack([picture == k for k in range(categories)], dim=-1).flatten(3).double()
        if categories
        else picture.double() / 255.0
    )
    weight, bias = normal(4, 3, 3, features.shape[3]).requires_grad_(), normal(4, seed=1).requires_grad_()
    found = first_layer.convolve(
        weight, bias, picture, categories=categories, scale=1.0 if categories else 1 / 255, padding=padding
    )
    expected = plain_convolution(weight, bias, features, padding)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    slope = normal(*found.shape, seed=2)
    gradients = torch.autograd.grad(found, (weight, bias), slope)
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected, (weight, bias), slope.double()), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)


def test_space_to_depth_turns_a_stride_into_channels():
    picture = random_bytes(11 * 14 * 3, 2, layout=LAYOUTS[1]).t().view(2, 11, 14, 3)
    folded = first_layer.space_to_depth(picture, 4, 2, 3)
    assert folded.shape == (2, 2, 3, 4, 4, 3) and folded.data_ptr() == picture.data_ptr()
    for i, j, y, x in ((0, 0, 0, 0), (1, 2, 3, 1), (1, 0, 2, 3)):
        assert torch.equal(folded[:, i, j, y, x], picture[:, 4 * i + y, 4 * j + x])


def test_no_float_copy_of_a_batch_of_images(small_chunks):
    env = replace(PICK, observation=Box(50, low=0, high=255, dtype="uint8", shape=(5, 5, 2)))
    built = Policy(
        env, mlp.Config(kind="cnn", cnn="board", channels=(1,), hidden=(4,)), seed=0, device=CPU, normalize=True
    )
    with Watch() as watch:
        head, value = built.forward(random_bytes(50, 400, layout=LAYOUTS[1]))
        torch.autograd.grad(head.sum() + value.sum(), built.flat.parameters[:4], allow_unused=True)
    assert built.normalizer is None and not watch.operations & READ_BACK
    assert watch.largest == math.prod((400, 1, 5, 5)), "something larger than the first convolution's output was made"
