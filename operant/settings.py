"""The base of every configuration section, and the number types they share. Knows no section: each lives in the module
that uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

if TYPE_CHECKING:
    from typing import Self

_SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9}


def _number(value: object) -> object:
    """Turn "20M", "1e7" or "10_000_000" into a number; leave everything else, and everything that is no number, to
    pydantic.
    """
    if not isinstance(value, str):
        return value
    text, factor = value.strip(), 1
    if text[-1:] in _SUFFIXES:
        text, factor = text[:-1], _SUFFIXES[text[-1]]
    try:
        return int(text) * factor
    except ValueError:
        try:
            return float(text) * factor
        except ValueError:
            return value


def _count(value: object) -> object:
    """As `_number`, and a whole float such as 1e7 becomes an integer."""
    if isinstance(value, bool):
        raise ValueError("input should be a whole number, such as 20_000_000, 1e7 or '20M'")
    number = _number(value)
    if isinstance(number, float) and math.isfinite(number) and number.is_integer():
        return int(number)
    return number


def _real(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("input should be a number")
    return _number(value)


Count = Annotated[int, BeforeValidator(_count)]
"""A whole number that may be written 20_000_000, 1e7 or "20M"."""

Real = Annotated[float, BeforeValidator(_real)]
"""A finite number that may be written with k, M or G in a string."""


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys, infinities and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    fixed_on_resume: ClassVar[Mapping[str, str]] = {}
    """An algorithm's own keys that a resumed run cannot change (see `operant.config.resuming`), and why: what its
    checkpoints hold depends on them.
    """

    schedulable: ClassVar[tuple[str, ...]] = ()
    """An algorithm's own keys that may change while it trains (see `operant.config.schedules`): it reads them from
    scalars on the device.
    """

    def completed(self, steps: int) -> Self:
        """The same, with a value for each key that is left open and follows from the run's planned steps: a resume that
        plans others keeps it.
        """
        return self
