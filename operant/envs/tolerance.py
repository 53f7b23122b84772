"""`tolerance`: soft indicator of an interval, the building block of dm_control's rewards.

Source: Tassa et al. 2018, "DeepMind Control Suite" (arXiv:1801.00690), section 2.3, and `dm_control/utils/rewards.py`.
"""

from __future__ import annotations

import math
from typing import Any

from numpy import float32

from operant.compute.device import device
from operant.errors import OperantError

__all__ = ["SIGMOIDS", "tolerance"]


def tolerance(
    low: float = 0.0,
    high: float = 0.0,
    margin: float = 0.0,
    sigmoid: str = "gaussian",
    value_at_margin: float = 0.1,
) -> Any:
    """Make the device function (x) that returns 1 for x in [low, high], infinite bounds included, and decreases to
    `value_at_margin` at the distance `margin` from the interval, along one of `SIGMOIDS`; 0 outside it where the margin
    is 0. Raises OperantError for arguments that define no such function.
    """
    if not low <= high or not 0.0 <= margin < math.inf:
        raise OperantError(f"tolerance has bounds [{low}, {high}] and margin {margin}: low <= high, margin 0 or more")
    if sigmoid not in SIGMOIDS:
        raise OperantError(f"tolerance has no sigmoid {sigmoid!r}; it has {', '.join(SIGMOIDS)}")
    falls_to_zero = sigmoid in ("cosine", "linear", "quadratic")
    if not 0.0 <= value_at_margin < 1.0 or (value_at_margin == 0.0 and not falls_to_zero):
        raise OperantError(
            f"tolerance has value_at_margin {value_at_margin}: {'at least' if falls_to_zero else 'above'} 0 and below 1"
        )
    falling = SIGMOIDS[sigmoid](value_at_margin) if margin > 0.0 else _step
    distance = _beyond(float32(low), float32(high))
    per_margin = float32(1.0 / margin if margin > 0.0 else 1.0)

    @device
    def soft(x):
        d = distance(x)
        return float32(1.0) if d <= float32(0.0) else falling(d * per_margin)

    return soft


def _beyond(low: Any, high: Any) -> Any:
    """Make the device function (x) that returns the distance of x from [low, high], negative inside. Infinite bounds
    take no part: fast arithmetic assumes finite numbers.
    """

    @device
    def both(x):
        return max(low - x, x - high)

    @device
    def above(x):
        return low - x

    @device
    def below(x):
        return x - high

    @device
    def never(x):
        return float32(-1.0)

    if math.isinf(low):
        return never if math.isinf(high) else below
    return above if math.isinf(high) else both


@device
def _step(x):
    return float32(0.0)


def _gaussian(value: float) -> Any:
    scale = float32(-math.log(value))  # (sqrt(-2 log v))^2 / 2

    @device
    def gaussian(x):
        return math.exp(-(x * x * scale))

    return gaussian


def _hyperbolic(value: float) -> Any:
    scale = float32(math.acosh(1.0 / value))

    @device
    def hyperbolic(x):
        return float32(1.0) / math.cosh(x * scale)

    return hyperbolic


def _long_tail(value: float) -> Any:
    scale = float32(1.0 / value - 1.0)

    @device
    def long_tail(x):
        return float32(1.0) / (x * x * scale + float32(1.0))

    return long_tail


def _reciprocal(value: float) -> Any:
    scale = float32(1.0 / value - 1.0)

    @device
    def reciprocal(x):
        return float32(1.0) / (x * scale + float32(1.0))

    return reciprocal


def _cosine(value: float) -> Any:
    scale, pi = float32(math.acos(2.0 * value - 1.0)), float32(math.pi)

    @device
    def cosine(x):
        angle = x * scale
        return (float32(1.0) + math.cos(angle)) * float32(0.5) if angle < pi else float32(0.0)

    return cosine


def _linear(value: float) -> Any:
    scale = float32(1.0 - value)

    @device
    def linear(x):
        return max(float32(1.0) - x * scale, float32(0.0))

    return linear


def _quadratic(value: float) -> Any:
    scale = float32(1.0 - value)

    @device
    def quadratic(x):
        return max(float32(1.0) - x * x * scale, float32(0.0))

    return quadratic


def _tanh_squared(value: float) -> Any:
    scale = float32(math.atanh(math.sqrt(1.0 - value)))

    @device
    def tanh_squared(x):
        t = math.tanh(x * scale)
        return float32(1.0) - t * t

    return tanh_squared


SIGMOIDS = {
    "gaussian": _gaussian,
    "hyperbolic": _hyperbolic,
    "long_tail": _long_tail,
    "reciprocal": _reciprocal,
    "cosine": _cosine,
    "linear": _linear,
    "quadratic": _quadratic,
    "tanh_squared": _tanh_squared,
}
"""Makers of the decreasing functions of distance / margin, by name: value at the margin to device function."""
