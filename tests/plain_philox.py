"""Random numbers as `operant.compute.rng` documents them, in plain Python integers: what the slow references of games
draw from.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

RESET, STEP = 0, 1  # purposes
_MASK = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10 (Salmon, Moraes, Dror & Shaw 2011): four words of 32 bits."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & _MASK, (left >> 32) ^ c3 ^ k1, left & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


class Key(NamedTuple):
    """Key of the random numbers of a lane at a tick."""

    seed: int
    lane: int
    tick: int
    purpose: int

    def block(self, draw: int) -> tuple[int, int, int, int]:
        """The four words of a draw."""
        counter = (self.lane, self.tick & _MASK, self.tick >> 32, self.purpose << 16 | draw)
        return philox(counter, (self.seed & _MASK, self.seed >> 32))

    def uniform(self, draw: int) -> float:
        """Uniform number in [0, 1), a multiple of 2^-24."""
        return unit(self.block(draw)[0])

    def uniform4(self, draw: int) -> tuple[float, ...]:
        """Four for one draw."""
        return tuple(unit(word) for word in self.block(draw))

    def integer(self, draw: int, n: int) -> int:
        """Uniform integer in [0, n)."""
        return (self.block(draw)[0] * n) >> 32


def unit(word: int) -> float:
    """A word as a number in [0, 1)."""
    return (word >> 8) / 2**24


def single(x: float) -> float:
    """Rounded to float32."""
    value: float = struct.unpack("<f", struct.pack("<f", x))[0]
    return value
