"""Distributions of continuous actions that tanh carries into [-1, 1]: a normal whose standard deviation depends on the
state, and a mean with noise.

Everything is feature-major, (rows, B). Noise is uniform in [0, 1). Knows no network and no environment.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""Range of the logarithm of the standard deviation, which tanh carries into it."""

_HALF_RANGE = 0.5 * (LOG_STD_MAX - LOG_STD_MIN)
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def normal(noise: Tensor) -> Tensor:
    """Normal numbers (A, B) from uniform ones (2 A, B), by Box & Muller 1958: sqrt(-2 ln(1 - u)) cos(2 pi v)."""
    radius, angle = noise.chunk(2)
    return torch.sqrt(-2.0 * torch.log1p(-radius)) * torch.cos((2.0 * math.pi) * angle)


class SquashedGaussian:
    """The tanh of a diagonal normal. Parameters are its means, and what log std is made of, (2 A, B): Haarnoja et al.
    2018, appendix C.
    """

    def __init__(self, rows: int) -> None:
        self.action_rows, self.parameter_rows, self.noise_rows = rows, 2 * rows, 2 * rows

    def mode(self, parameters: Tensor) -> Tensor:
        """The tanh of the mean, (A, B)."""
        return parameters[: self.action_rows].tanh()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Actions (A, B) from uniform noise (2 A, B)."""
        mean, raw = parameters.split(self.action_rows)
        return torch.addcmul(mean, self._log_std(raw).exp(), normal(noise)).tanh()

    def sample_with_log_probability(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (A, B) from uniform noise (2 A, B), and log pi of them, (B), both with gradients by the parameters.

        u = mean + std e; log pi = sum of -e^2 / 2 - log std - log(2 pi) / 2 - log(1 - tanh^2 u), the last as 2 (log 2 -
        u - softplus(-2 u)): it never rounds to log 0.
        """
        mean, raw = parameters.split(self.action_rows)
        e, log_std = normal(noise), self._log_std(raw)
        u = torch.addcmul(mean, log_std.exp(), e)
        correction = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
        log_probability = (-0.5 * e.square() - log_std - _HALF_LOG_2_PI - correction).sum(dim=0)
        return u.tanh(), log_probability

    @staticmethod
    def _log_std(raw: Tensor) -> Tensor:
        return LOG_STD_MIN + _HALF_RANGE * (raw.tanh() + 1.0)


class SquashedMean:
    """The tanh of a mean, and in acting a normal error of standard deviation `std` on top of it, clipped to [-1, 1].
    Parameters are the means, (A, B).
    """

    def __init__(self, rows: int, std: float) -> None:
        self.action_rows, self.parameter_rows, self.noise_rows, self.std = rows, rows, 2 * rows, std

    def mode(self, parameters: Tensor) -> Tensor:
        """The tanh of the mean, (A, B)."""
        return parameters.tanh()

    def sample(self, parameters: Tensor, noise: Tensor, std: Tensor | None = None) -> Tensor:
        """Actions (A, B) from uniform noise (2 A, B), each lane's with its own `std` (B) where that is given."""
        return (parameters.tanh() + (self.std if std is None else std) * normal(noise)).clamp(-1.0, 1.0)
