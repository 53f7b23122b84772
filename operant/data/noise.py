"""Bodies that fill buffers with the random numbers an algorithm needs: noise for a rollout's actions, and the order of minibatches.

Both are pure functions of (seed, tick or iteration, index), so every device draws the same. Knows nothing of policies or losses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import int32, int64, uint32

from operant.compute import rng
from operant.compute.device import device

_ROUNDS = 12  # with 8, places of an order of 5 blocks are up to 12 % off uniform; with 12, no deviation is found in 27,000 orders
_LOW_32 = 0xFFFFFFFF


class Clock(NamedTuple):
    """Whose numbers, and when."""

    tick: Any  # (1) int64: the world's tick, or the iteration
    seed: Any  # (2) uint32, as int32
    lane0: int  # global number of the first lane


class Noise(NamedTuple):
    """The random buffer of a rollout."""

    noise: Any  # (T, U, N) float32, written


@device
def noise_body(i, clock, out, offset):
    """U uniform numbers in [0, 1) for each of the T steps of lane i: draw k // 4, word k % 4, at tick + t."""
    lane, seed_low, seed_high = uint32(uint32(clock.lane0) + i), uint32(clock.seed[0]), uint32(clock.seed[1])
    count = out.noise.shape[1]
    for t in range(out.noise.shape[0]):
        tick = clock.tick[0] + offset + t
        key = (seed_low, seed_high, lane, uint32(tick & _LOW_32), uint32(tick >> 32), uint32(rng.ACTION))
        for draw in range((count + 3) // 4):
            words = rng.uniform4(key, draw)
            for k in range(4):
                if 4 * draw + k < count:
                    out.noise[t, 4 * draw + k, i] = words[k]


class Order(NamedTuple):
    """Where the order of the blocks goes, an epoch a row."""

    order: Any  # (E, M) int32, written: each row a permutation of 0 ... M - 1


@device
def order_body(i, clock, out, offset):
    """Where index i of all epochs goes: a Feistel network over the next power of two, walked until it lands inside (Black & Rogaway 2002).

    A permutation without a sort and without one thread waiting for another.
    """
    size = out.order.shape[1]
    index = int64(i)
    epoch, value = index // size, index % size
    bits = 2
    while (1 << bits) < size:
        bits += 1
    low_bits = bits // 2
    low_mask, high_mask = uint32((1 << low_bits) - 1), uint32((1 << (bits - low_bits)) - 1)
    tick = clock.tick[0] + offset
    seed_low, seed_high = uint32(clock.seed[0]), uint32(clock.seed[1])
    tick_low, tick_high = uint32(tick & _LOW_32), uint32(tick >> 32)
    inside = False
    while not inside:
        low, high = uint32(value) & low_mask, uint32(value >> low_bits)
        for turn in range(_ROUNDS):
            half = low if turn % 2 == 0 else high
            key = (seed_low, seed_high, uint32(half), tick_low, tick_high, uint32(rng.SHUFFLE))
            mixed = rng.block(key, epoch * _ROUNDS + turn)[0]
            if turn % 2 == 0:
                high = uint32((high ^ mixed) & high_mask)
            else:
                low = uint32((low ^ mixed) & low_mask)
        value = int64((high << uint32(low_bits)) | low)
        inside = value < size
    out.order[epoch, index % size] = int32(value)
