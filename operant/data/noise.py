"""The order of minibatches: a pure function of (seed, iteration, index), so every device draws the same. Knows nothing of policies or losses."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import int32, int64, uint32

from operant.compute import rng
from operant.compute.device import device

_ROUNDS = 12  # with 8, places of an order of 5 blocks are up to 12 % off uniform; with 12, no deviation is found in 27,000 orders
_LOW_32 = 0xFFFFFFFF


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
