"""Random numbers: the published test vectors, exact floats, and independent draws."""

from __future__ import annotations

import numpy as np
import plain_philox
import pytest
from numba import njit
from numpy import uint32

from operant.compute import rng

# Random123's known answers (examples/kat_vectors), philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SEED = (uint32(11), uint32(7))


def key(
    lane: int = 0, tick: int = 0, purpose: int = rng.STEP, seed: tuple[uint32, uint32] = SEED
) -> tuple[uint32, ...]:
    return (*seed, uint32(lane), uint32(tick & 0xFFFFFFFF), uint32(tick >> 32), uint32(purpose))


@njit
def table(lanes, ticks, purpose, draw):
    """uniform of each (lane, tick)."""
    numbers = np.empty((lanes, ticks), np.float32)
    for lane in range(lanes):
        for tick in range(ticks):
            numbers[lane, tick] = rng.uniform(
                (uint32(11), uint32(7), uint32(lane), uint32(tick), uint32(0), uint32(purpose)), draw
            )
    return numbers


@pytest.fixture(scope="module")
def numbers():
    return table(400, 500, rng.STEP, 0)


@pytest.mark.parametrize(("counter", "words", "answer"), KNOWN_ANSWERS)
def test_philox_matches_the_published_test_vectors(counter, words, answer):
    given = rng.philox(*(uint32(word) for word in counter), *(uint32(word) for word in words))
    assert tuple(int(word) for word in given) == answer


def test_a_block_is_philox_of_lane_tick_purpose_and_draw():
    # The second known answer once more, through the key: draw and purpose share a word.
    low, high = (uint32(0xFFFFFFFF),) * 2
    words = rng.block((low, high, low, low, high, uint32(0xFFFF)), 0xFFFF)
    assert tuple(int(word) for word in words) == KNOWN_ANSWERS[1][2]
    expected = rng.philox(uint32(5), uint32(3), uint32(1), uint32(rng.RESET << 16 | 9), *SEED)
    assert rng.block(key(lane=5, tick=3 + 2**32, purpose=rng.RESET), 9) == expected


def test_floats_are_exact():
    for word in (0, 1, 255, 256, 0x12345678, 0xFFFFFFFF):
        number = rng.unit(uint32(word))

        assert float(number) == (word >> 8) / 2**24
    assert rng.unit(uint32(0xFFFFFFFF)) < 1.0
    four = rng.uniform4(key(3, 4), 2)
    words = rng.block(key(3, 4), 2)
    assert [float(number) for number in four] == [(int(word) >> 8) / 2**24 for word in words]
    assert rng.uniform(key(3, 4), 2) == four[0]


def test_uniforms_are_uniform(numbers):
    count = numbers.size
    assert numbers.dtype == np.float32 and numbers.min() >= 0.0 and numbers.max() < 1.0
    assert abs(numbers.mean(dtype=np.float64) - 1 / 2) < 5 / np.sqrt(12 * count)
    assert abs(numbers.var(dtype=np.float64) - 1 / 12) < 5 / np.sqrt(180 * count)
    in_each_tenth = np.histogram(numbers, bins=10, range=(0, 1))[0]
    assert (
        (in_each_tenth - count / 10) ** 2 / (count / 10)
    ).sum() < 28  # chi-squared, 9 degrees of freedom: one in a thousand


def test_lanes_ticks_purposes_and_draws_are_independent(numbers):
    def correlation(one, other):
        return abs(np.corrcoef(one.ravel(), other.ravel())[0, 1])

    bound = 5 / np.sqrt(numbers.size)
    assert correlation(numbers[:-1], numbers[1:]) < bound
    assert correlation(numbers[:, :-1], numbers[:, 1:]) < bound
    assert correlation(numbers, table(400, 500, rng.RESET, 0)) < bound
    assert correlation(numbers, table(400, 500, rng.STEP, 1)) < bound
    words = np.array([rng.uniform4(key(lane, 1), 0) for lane in range(5000)])
    assert np.abs(np.corrcoef(words.T) - np.eye(4)).max() < 5 / np.sqrt(5000)
    assert len(np.unique(numbers)) > 0.99 * numbers.size  # 200,000 of 2^24: some 1,200 meet by chance


def test_each_part_of_the_key_changes_the_number():
    base = rng.block(key(1, 2), 3)
    others = [
        key(2, 2),
        key(1, 3),
        key(1, 2 + 2**32),
        key(1, 2, rng.RESET),
        key(1, 2, seed=(uint32(12), SEED[1])),
        key(1, 2, seed=(SEED[0], uint32(8))),
    ]
    assert rng.block(key(1, 2), 3) == base
    assert len({rng.block(other, 3) for other in others} | {base, rng.block(key(1, 2), 4)}) == 8


def test_integers_stay_below_n_and_reach_every_value():
    drawn = np.array([rng.integer(key(lane), 0, 7) for lane in range(7000)])
    counts = np.bincount(drawn, minlength=7)
    assert len(counts) == 7
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
    assert all(rng.integer(key(lane), 0, 1) == 0 for lane in range(50))
    # (word * n) >> 32, worked in whole numbers.
    assert rng.integer(key(9, 9), 1, 1_000_003) == int(rng.block(key(9, 9), 1)[0]) * 1_000_003 >> 32


def test_seeds_are_split_low_word_first():
    assert rng.split(0x0123456789ABCDEF).tolist() == [0x89ABCDEF, 0x01234567]
    assert rng.split(2**64 - 1).dtype == np.uint32


def test_stream_seeds_are_independent_and_stream_0_is_the_run():
    assert rng.stream_seed(123, 0) == 123
    seeds = {rng.stream_seed(seed, stream) for seed in range(20) for stream in range(1, 20)}
    assert len(seeds) == 20 * 19
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert rng.stream_seed(1, 1) == rng.stream_seed(1, 1)
    # The stream is the counter, the seed the key.
    words = rng.philox(uint32(3), uint32(0), uint32(0), uint32(rng.STREAM << 16), uint32(5), uint32(1))
    assert rng.stream_seed(5 + 2**32, 3) == (int(words[1]) << 32 | int(words[0])) & (2**63 - 1)


def test_the_plain_python_version_draws_equal_numbers():
    """The plain Python references of games draw from it."""
    for lane, tick, purpose, draw in (
        (0, 0, 0, 0),
        (7, 3, plain_philox.STEP, 2),
        (2**31 + 5, 2**40 + 9, plain_philox.RESET, 65535),
    ):
        plain = plain_philox.Key(int(SEED[0]) | int(SEED[1]) << 32, lane, tick, purpose)
        device_key = key(lane, tick, purpose)
        assert plain.block(draw) == tuple(int(word) for word in rng.block(device_key, draw))
        assert plain.uniform(draw) == float(rng.uniform(device_key, draw))
        assert plain.uniform4(draw) == tuple(float(u) for u in rng.uniform4(device_key, draw))
        assert plain.integer(draw, 17) == rng.integer(device_key, draw, 17)
    for counter, words, answer in KNOWN_ANSWERS:
        assert plain_philox.philox(counter, words) == answer
