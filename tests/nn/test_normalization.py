"""Running normalizer against numpy over all batches, its float32 copies, and `normalize`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from operant.nn.normalization import RunningNormalizer, statistics

CPU = torch.device("cpu")
FIRST_WEIGHT = 1e-4  # of the mean 0 and variance 1 they begin with


def test_mean_and_variance_by_hand():
    # Samples 1, 3 | 5 with an imagined 1e-4 samples of mean 0 and variance 1 before them: mean 9 / 3.0001, E[x^2] = (35
    # + 1e-4) / 3.0001.
    normalizer = RunningNormalizer(1, CPU)
    normalizer.update(torch.tensor([[1.0, 3.0]]))
    normalizer.update(torch.tensor([[5.0]]))
    mean = 9 / 3.0001
    assert normalizer.count.item() == pytest.approx(3.0001, abs=1e-12)
    assert normalizer.running_mean.item() == pytest.approx(mean, abs=1e-12)
    assert normalizer.running_variance.item() == pytest.approx(35.0001 / 3.0001 - mean**2, abs=1e-9)
    scaled = normalizer.normalize(torch.tensor([[5.0]])).item()
    assert scaled == pytest.approx((5 - mean) / (35.0001 / 3.0001 - mean**2) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("shapes", [[(7,)], [(3,), (1,), (50,)], [(4, 6), (2, 9)]])
def test_batches_add_up_to_their_concatenation(shapes):
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 100.0, 1e-3])
    batches = [
        torch.randn(3, *shape, generator=generator) * scale.view(3, *(1 for _ in shape)) + 5.0 for shape in shapes
    ]
    normalizer = RunningNormalizer(3, CPU)
    for batch in batches:
        normalizer.update(batch)
    seen = np.concatenate([batch.flatten(1).double().numpy() for batch in batches], axis=1)
    count = seen.shape[1]
    total = count + FIRST_WEIGHT
    mean = seen.mean(axis=1) * count / total
    variance = (seen.var(axis=1) * count + FIRST_WEIGHT + seen.mean(axis=1) ** 2 * count * FIRST_WEIGHT / total) / total
    np.testing.assert_allclose(normalizer.running_mean[:, 0].numpy(), mean, rtol=2e-6)
    np.testing.assert_allclose(normalizer.running_variance[:, 0].numpy(), variance, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(normalizer.count.item(), total, rtol=1e-12)


def test_many_batches_keep_float64_accuracy():
    # A thousand equal batches far from zero: the spread of one of them is the spread of all.
    normalizer = RunningNormalizer(1, CPU)
    batch = torch.tensor([[999.0, 1001.0]])
    for _ in range(1000):
        normalizer.update(batch)
    assert normalizer.running_mean.item() == pytest.approx(1000.0, abs=1e-3)
    assert normalizer.running_variance.item() == pytest.approx(1.0 + 1e6 * FIRST_WEIGHT / 2000, rel=1e-4)


def test_a_new_normalizer_is_the_identity():
    features = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(RunningNormalizer(2, CPU).normalize(features), features)


def test_normalize_shifts_scales_and_clips():
    normalizer = RunningNormalizer(2, CPU)
    batch = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[3.0], [0.5]]
    ) + torch.tensor([[10.0], [-2.0]])
    normalizer.update(batch)
    features = batch.clone()
    normal = normalizer.normalize(features)
    assert torch.equal(features, batch), "the features were changed in place"
    torch.testing.assert_close(normal.mean(dim=1), torch.zeros(2), rtol=0, atol=1e-3)
    torch.testing.assert_close(normal.std(dim=1), torch.ones(2), rtol=0, atol=1e-3)
    assert normalizer.normalize(torch.tensor([[1e6], [-1e6]])).flatten().tolist() == [10.0, -10.0]


def test_a_constant_feature_stays_finite():
    normalizer = RunningNormalizer(1, CPU)
    for _ in range(100):
        normalizer.update(torch.full((1, 100_000), 4.0))
    assert torch.isfinite(normalizer.normalize(torch.tensor([[4.0, 5.0]]))).all()


def test_checkpoints_contain_mean_and_inv_std():
    first, second = RunningNormalizer(2, CPU), RunningNormalizer(2, CPU)
    batch = torch.randn(2, 30, generator=torch.Generator().manual_seed(1))
    first.update(batch)
    for name, tensor in second.tensors().items():
        tensor.copy_(first.tensors()[name])
    assert torch.equal(first.normalize(batch), second.normalize(batch))
    first.update(batch)
    second.update(batch)
    assert all(torch.equal(first.tensors()[name], tensor) for name, tensor in second.tensors().items())


def test_bytes_equal_their_floats():
    normalizer = RunningNormalizer(1, CPU)
    normalizer.update(torch.tensor([[0, 255]], dtype=torch.uint8))
    assert normalizer.running_mean.item() == pytest.approx(127.5, rel=1e-4)
    assert normalizer.running_variance.item() == pytest.approx(127.5**2, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_shards_of_lanes_give_the_same_bits_on_any_rank(dtype):
    """Statistics of a shard do not depend on its neighbours: two ranks with half of the shards each give the bits of
    one rank.
    """
    batch = (torch.randn(3, 6, 64, generator=torch.Generator().manual_seed(0)) * 40 + 100).clamp(0, 255).to(dtype)
    whole, halves = statistics(batch, 8), [statistics(half.contiguous(), 4) for half in batch.chunk(2, dim=-1)]
    by_shard = [statistics(part.contiguous()) for part in batch.chunk(8, dim=-1)]
    between, mean = torch.var_mean(
        torch.cat([part.mean for part in by_shard], dim=1), dim=1, correction=0, keepdim=True
    )
    within = torch.cat([part.variance for part in by_shard], dim=1).mean(dim=1, keepdim=True)
    assert torch.equal(mean, whole.mean) and torch.equal(within + between, whole.variance)
    assert whole.count == 6 * 64 and sum(half.count for half in halves) == whole.count
    exact = batch.double().flatten(1)
    torch.testing.assert_close(whole.mean[:, 0], exact.mean(dim=1), rtol=1e-6, atol=0)
    torch.testing.assert_close(whole.variance[:, 0], exact.var(dim=1, correction=0), rtol=1e-5, atol=0)
    merged = halves[0].merged(halves[1])
    torch.testing.assert_close(merged.variance, whole.variance, rtol=1e-6, atol=0)
