"""Uniforms against Philox in plain Python, and the order of minibatches: permutations, and of which kind."""

from __future__ import annotations

import functools
import math
from collections import Counter

import pytest
import torch

from operant.compute import kernel, rng
from operant.compute.kernel import Kernel, bind
from operant.data import minibatches
from operant.worlds import noise as world_noise

CPU = torch.device("cpu")
MASK = 0xFFFFFFFF


@functools.cache
def compiled(body):
    return Kernel(body, CPU)


def philox(counter, key):
    """Salmon et al. 2011 in whole numbers: ten rounds on four words."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def test_the_plain_philox_is_the_published_one():
    # Random123's known answers (kat_vectors).
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)) == (
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    )


def clock(seed, tick, lane0=0):
    words = torch.from_numpy(rng.split(seed).view("int32").copy())
    return bind(world_noise.Clock(torch.tensor([tick]), words, lane0))


def uniforms(T, U, N, *, seed=1, tick=0, lane0=0, offset=0):
    out = torch.full((T, U, N), -1.0)
    compiled(world_noise.noise_body)(N, clock(seed, tick, lane0), bind(world_noise.Noise(out)), offset)
    return out


def order(size, *, epochs=1, seed=1, iteration=0):
    """Orders of `size` blocks that are one shard, one step and one minibatch, (epochs, size)."""
    out = torch.full((epochs, size), -1, dtype=torch.int32)
    compiled(minibatches.order_body)(out.numel(), clock(seed, iteration), bind(minibatches.Order(out, size, 1, 1)))
    return out


# UNIFORMS


@pytest.mark.parametrize("U", [1, 3, 4, 6])
def test_uniforms_are_philox(U):
    seed, tick, lane0, offset = 0xFEDCBA9876543210, (5 << 32) - 1, 40, 1  # the tick crosses 32 bits
    found = uniforms(2, U, 3, seed=seed, tick=tick, lane0=lane0, offset=offset)
    for t in range(2):
        for u in range(U):
            for i in range(3):
                now = tick + offset + t
                words = philox((lane0 + i, now & MASK, now >> 32, rng.ACTION << 16 | u // 4), (seed & MASK, seed >> 32))
                assert found[t, u, i].item() == (words[u % 4] >> 8) * 2.0**-24


def test_uniforms_by_lane_and_tick():
    whole = uniforms(8, 2, 16)
    assert torch.equal(whole[3:], uniforms(5, 2, 16, tick=3)), "numbers depend on how many steps a rollout has"
    assert torch.equal(whole[:, :, 4:], uniforms(8, 2, 12, lane0=4)), "numbers depend on where a lane runs"
    assert not torch.equal(whole, uniforms(8, 2, 16, seed=2))
    assert whole.unique().numel() > 0.99 * whole.numel()


def test_uniforms_are_uniform():
    sample = uniforms(64, 2, 1024).flatten()
    assert float(sample.min()) >= 0.0 and float(sample.max()) < 1.0
    counts = torch.histc(sample, bins=64, min=0, max=1).double()
    expected = sample.numel() / 64
    assert (
        float(((counts - expected) ** 2 / expected).sum()) < 63 + 5 * (2 * 63) ** 0.5
    )  # chi-square, 63 degrees: mean + 5 deviations


# ORDER


@pytest.mark.parametrize(
    "size", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 1000, 1024, 3000]
)
def test_every_epoch_is_a_permutation(size):
    found = order(size, epochs=5)
    assert torch.equal(found.sort(dim=1).values, torch.arange(size, dtype=torch.int32).expand(5, -1))


def plain_ranks(size, epoch, seed, iteration):
    """Ranks of random 64-bit keys, in plain Python."""
    keys = []
    for pair in range((size + 1) // 2):
        words = philox(
            (pair, iteration & MASK, iteration >> 32, rng.SHUFFLE << 16 | epoch * 12), (seed & MASK, seed >> 32)
        )
        keys += [words[0] << 32 | words[1], words[2] << 32 | words[3]]
    return [sum(other < keys[value] for other in keys[:size]) for value in range(size)]


def plain_walk(size, epoch, seed, iteration):
    """The Feistel network in plain Python."""
    bits = max(2, (size - 1).bit_length())
    low_bits = bits // 2
    result = []
    for value in range(size):
        while True:
            low, high = value & ((1 << low_bits) - 1), value >> low_bits
            for turn in range(12):
                half, width = (low, bits - low_bits) if turn % 2 == 0 else (high, low_bits)
                counter = (half, iteration & MASK, iteration >> 32, rng.SHUFFLE << 16 | (epoch * 12 + turn))
                word = philox(counter, (seed & MASK, seed >> 32))[0] & ((1 << width) - 1)
                if turn % 2 == 0:
                    high ^= word
                else:
                    low ^= word
            value = high << low_bits | low
            if value < size:
                break
        result.append(value)
    return result


@pytest.mark.parametrize(
    ("size", "plain"),
    [(1, plain_ranks), (5, plain_ranks), (32, plain_ranks), (64, plain_ranks), (65, plain_walk), (130, plain_walk)],
)
def test_order_is_the_documented_permutation(size, plain):
    found = order(size, epochs=3, seed=0xFEDCBA9876543210, iteration=7)
    assert found.tolist() == [plain(size, epoch, 0xFEDCBA9876543210, 7) for epoch in range(3)]


@pytest.mark.parametrize("size", [20, 64, 100])
def test_orders_differ_and_repeat(size):
    first = order(size, epochs=4)
    assert torch.equal(first, order(size, epochs=4))
    assert torch.equal(first[:2], order(size, epochs=2)), "an epoch's order depends on how many epochs there are"
    orders = {
        tuple(row)
        for row in [
            *first.tolist(),
            *order(size, epochs=4, iteration=1).tolist(),
            *order(size, epochs=4, seed=2).tolist(),
        ]
    }
    assert len(orders) == 12
    assert tuple(range(size)) not in orders


@pytest.mark.parametrize("size", [4, 5])
def test_permutations_of_few_blocks_are_equally_likely(size):
    epochs, permutations = 20_000, math.factorial(size)
    counts = Counter(tuple(row) for row in order(size, epochs=epochs, seed=3).tolist())
    expected, degrees = epochs / permutations, permutations - 1
    chi_square = (
        sum((count - expected) ** 2 / expected for count in counts.values()) + (permutations - len(counts)) * expected
    )
    assert len(counts) == permutations
    assert abs(chi_square - degrees) < 5 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("size", [8, 16, 64])
def test_odd_and_even_permutations_are_equally_likely(size):
    epochs = 4000
    found = order(size, epochs=epochs, seed=5).long()
    inversions = sum((found[:, i, None] > found[:, i + 1 :]).sum(dim=1) for i in range(size - 1))
    assert abs(float((inversions % 2).double().mean()) - 0.5) < 5 * 0.5 / epochs**0.5


@pytest.mark.parametrize("size", [16, 24, 100])
def test_every_position_is_equally_likely(size):
    # How often block j comes at place i, over many orders; each row of the table is a chi-square of size - 1 degrees.
    epochs = 4000
    found = order(size, epochs=epochs, seed=3).long()
    counts = torch.zeros(size, size, dtype=torch.float64)
    for place in range(size):
        counts[place] = torch.bincount(found[:, place], minlength=size)
    expected = epochs / size
    chi_square = ((counts - expected) ** 2 / expected).sum(dim=1)
    degrees = size - 1
    assert float(chi_square.max()) < degrees + 6 * (2 * degrees) ** 0.5 + 6
    assert float(chi_square.mean()) == pytest.approx(degrees, rel=0.7)


def test_the_draws_of_the_longest_update_fit():
    # A draw has 16 bits, and an update may have 1,024 epochs.
    assert 1024 * minibatches._ROUNDS < 1 << 16


@pytest.mark.parametrize("size", [32, 100])
def test_neighbouring_blocks_are_separated(size):
    # Two blocks that begin as neighbours end next to each other about as often as any two: 2 (n - 1) / (n (n - 1)) = 2
    # / n.
    found = order(size, epochs=1000, seed=4).long()
    apart = (found[:, 1:] - found[:, :-1]).abs()
    assert float((apart == 1).double().mean()) == pytest.approx(2 / size, rel=0.1)


def test_serial_and_parallel_agree_to_the_bit(monkeypatch):
    serial = order(1000, epochs=3), uniforms(4, 3, 101)
    monkeypatch.setattr(kernel, "SERIAL_BELOW", 0)
    parallel = order(1000, epochs=3), uniforms(4, 3, 101)
    assert all(torch.equal(a, b) for a, b in zip(serial, parallel, strict=True))
