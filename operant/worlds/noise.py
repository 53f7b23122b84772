"""Uniform random buffers for each lane and step of a world: a pure function of (seed, lane, tick, purpose, index),
equal on every device.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import int64, uint32

from operant.compute import rng
from operant.compute.device import device
from operant.compute.kernel import bind, kernel

_LOW_32 = 0xFFFFFFFF


class Clock(NamedTuple):
    """Key of a world's random numbers: time, seed, first lane and purpose."""

    tick: Any  # (1) int64, the world's tick, or the iteration
    seed: Any  # (2) uint32 stored as int32
    lane0: int  # global index of the first lane
    purpose: int = rng.ACTION
    hold: int = 1  # ticks for which a number stays the same


class Noise(NamedTuple):
    """Output of the noise kernel: the buffer of uniform random numbers of a rollout."""

    noise: Any  # (T, U, N) float32, written


def seed_words(seed: int, stream: int, device: torch.device) -> torch.Tensor:
    """Derive the two key words of a seed's random stream number `stream`: (2) uint32 stored as int32."""
    return torch.from_numpy(rng.split(rng.stream_seed(seed, stream)).view(np.int32).copy()).to(device)


@device
def noise_body(i, clock, out, offset):
    """Kernel body: write U uniform numbers in [0, 1) for each of T steps of lane i to `out.noise`. Number k of step t
    is word k % 4 of draw k // 4 at the tick `clock.tick` + `offset` + t, or, with `clock.hold` H, at
    floor((tick + lane mod H) / H): it stays the same for H steps, and changes at another tick in the next lane.
    """
    lane, seed_low, seed_high = uint32(uint32(clock.lane0) + i), uint32(clock.seed[0]), uint32(clock.seed[1])
    count = out.noise.shape[1]
    first = clock.tick[0] + offset + int64(lane) % clock.hold
    tick, left = first // clock.hold, clock.hold - first % clock.hold
    for t in range(out.noise.shape[0]):
        key = (seed_low, seed_high, lane, uint32(tick & _LOW_32), uint32(tick >> 32), uint32(clock.purpose))
        for draw in range((count + 3) // 4):
            words = rng.uniform4(key, draw)
            for k in range(4):
                if 4 * draw + k < count:
                    out.noise[t, 4 * draw + k, i] = words[k]
        left -= 1
        if left == 0:
            tick, left = tick + 1, clock.hold


class NoiseSource:
    """Source of uniform random numbers for a world's lanes, keyed by its seed and clock."""

    def __init__(self, tick: torch.Tensor, seed: torch.Tensor, lane0: int) -> None:
        """Take the clock `tick` (1) int64 and the key `seed` (2) of a world, both on its device; `lane0` is the global
        index of its first lane.
        """
        self._clock = Clock(tick, seed, lane0)
        self._fill, self._bound = kernel(noise_body, tick.device), functools.cache(self._bind)

    def fill(self, out: torch.Tensor, purpose: int = rng.ACTION, hold: int = 1) -> None:
        """Fill `out` (T, U, N) with uniform numbers in [0, 1) for each lane of a world and each of its next T steps,
        keyed by (seed, lane, tick, purpose). A lane's numbers stay the same for `hold` steps.

        `out` must be a long-lived buffer: its binding is cached.
        """
        self._fill(out.shape[2], *self._bound(out, purpose, hold))

    def _bind(self, out: torch.Tensor, purpose: int, hold: int) -> tuple[Clock, Noise]:
        """Convert `out` (T, U, N) and the world's clock, with `purpose` and `hold`, to kernel arguments."""
        return bind(self._clock._replace(purpose=purpose, hold=hold)), bind(Noise(out))
