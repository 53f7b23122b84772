"""Counter-based random numbers, equal bits on every device: Philox 4x32-10.

Source: Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".

A number is a pure function of (seed, lane, tick, purpose, draw). There is no generator state.

    key     = (seed_lo, seed_hi)                                    two 32-bit words
    counter = (lane, tick_lo, tick_hi, purpose << 16 | draw)        four 32-bit words

`lane` is the lane's global index, so spreading lanes over devices changes no bit. Each draw is a block of four words;
`uniform` uses the first. A float is (word >> 8) * 2^-24, in [0, 1), exact in float32.

Device functions: numba widens `uint32` in almost every operation, so each result is cast back to 32 bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import float32, int32, uint32, uint64

from operant.compute.device import as_python, device

# Purposes of random numbers; append new ones.
RESET, STEP, ACTION, SHUFFLE, STREAM, REPLAY = range(6)

EVALUATIONS = 1
"""Random stream of evaluations: see `stream_seed`."""

_MULTIPLIER_0 = uint32(0xD2511F53)
_MULTIPLIER_1 = uint32(0xCD9E8D57)
_WEYL_0 = uint32(0x9E3779B9)
_WEYL_1 = uint32(0xBB67AE85)
_SHIFT_32 = uint64(32)
_TWO_TO_MINUS_24 = float32(2.0**-24)
_TWO_PI = float32(2.0 * math.pi)


@device
def _round(c0, c1, c2, c3, k0, k1):
    """Apply one Philox round to the counter c0 ... c3 with the key k0, k1; returns the new counter. Two 32 x 32 bit
    products are taken, and their halves mixed with the other words and the key.
    """
    product_0 = uint64(_MULTIPLIER_0) * uint64(c0)
    product_1 = uint64(_MULTIPLIER_1) * uint64(c2)
    low_0, high_0 = uint32(product_0), uint32(product_0 >> _SHIFT_32)
    low_1, high_1 = uint32(product_1), uint32(product_1 >> _SHIFT_32)
    return uint32(high_1 ^ c1 ^ k0), low_1, uint32(high_0 ^ c3 ^ k1), low_0


@device
def philox(c0, c1, c2, c3, k0, k1):
    """Apply ten rounds of Philox 4x32 to a counter (four uint32) with a key (two uint32); returns four uint32."""
    for _ in range(10):
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0 = uint32(k0 + _WEYL_0)
        k1 = uint32(k1 + _WEYL_1)
    return c0, c1, c2, c3


@device
def block(key, draw):
    """Return the four random 32-bit words of draw number `draw` (below 65,536) of a key, which is (seed_lo, seed_hi,
    lane, tick_lo, tick_hi, purpose), all uint32, where tick counts steps of all lanes.
    """
    return philox(key[2], key[3], key[4], uint32((key[5] << uint32(16)) | uint32(draw)), key[0], key[1])


@device
def unit(word):
    """Convert a 32-bit word to float32 in [0, 1)."""
    return float32(uint32(word) >> uint32(8)) * _TWO_TO_MINUS_24


@device
def uniform(key, draw):
    """Return a uniform float32 in [0, 1): number `draw` (below 65,536) of the key of a lane and step."""
    return unit(block(key, draw)[0])


@device
def uniform4(key, draw):
    """Return four uniform float32 in [0, 1): number `draw` (below 65,536) of the key of a lane and step."""
    words = block(key, draw)
    return unit(words[0]), unit(words[1]), unit(words[2]), unit(words[3])


@device
def integer(key, draw, n):
    """Return a uniform int32 in [0, n): number `draw` (below 65,536) of the key of a lane and step, as (word * n) >>
    32. The bias is below n * 2^-32.
    """
    return int32((uint64(block(key, draw)[0]) * uint64(n)) >> _SHIFT_32)


def split(value: int) -> np.ndarray:
    """Split an integer in [0, 2^64) into its two 32-bit words, low first: uint32 (2,)."""
    return np.array([value & 0xFFFFFFFF, value >> 32], dtype=np.uint32)


def stream_seed(seed: int, stream: int) -> int:
    """Derive the seed of random stream number `stream` from a run's seed. Stream 0 is the run's own seed; others serve
    an evaluation's world or the live view's.
    """
    if stream == 0:
        return seed
    low, high = (uint32(word) for word in split(seed))
    with np.errstate(over="ignore"):  # uint32 overflow is intended
        words = as_python(philox)(uint32(stream), uint32(0), uint32(0), uint32(STREAM << 16), low, high)
    return (int(words[1]) << 32 | int(words[0])) & (2**63 - 1)
