"""Ranges of arguments that the command line and the library share, and the checks that name what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from operant.errors import UsageError
from operant.text import safe

EVALUATED = (1, 1 << 24)
"""Episodes of an evaluation."""
SECONDS = (0.01, 36_000)
"""Length of a film, s."""
EPISODES = (0, 1_000_000)
"""Episodes after which a film ends; 0: not by episodes."""
LANES = (1, 256)
"""Games side by side in a film."""
SIDES = (16, 2048)
"""Width of a picture, and of each game in it, in pixels."""
SMOOTH = (0.0, 0.5)
"""Window of a curve's moving mean, as a share of the x axis."""
RENDERERS = ("operant", "mujoco")
AXES = ("steps", "seconds")


def within(name: str, value: object, low: float, high: float) -> None:
    """Raise UsageError if the argument `name` is no number from `low` to `high`. None, an argument not given, is
    valid.
    """
    if value is None or (isinstance(value, (int, float)) and low <= value <= high):
        return
    given = f"{value:g}" if isinstance(value, (int, float)) else safe(repr(value), 80)
    raise UsageError(f"{name} is {given}; it must be between {low:g} and {high:,}")


def one_of(name: str, value: object, words: Sequence[str]) -> None:
    """Raise UsageError if the argument `name` is none of `words`."""
    if value not in words:
        raise UsageError(f"{name} is {safe(repr(value), 80)}; it must be {', '.join(words[:-1])} or {words[-1]}")
