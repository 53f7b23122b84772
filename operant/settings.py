"""Base class and number types of configuration sections. Each section is declared in the module that uses it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

if TYPE_CHECKING:
    from typing import Self

_SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9}


def _number(value: object) -> object:
    """Parse "20M", "1e7" or "10_000_000"; return other values unchanged for pydantic to check."""
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
    """Parse "20M", "1e7" or "10_000_000", and convert whole floats such as 1e7 to integers; other values are returned
    unchanged for pydantic to check. Raises ValueError for a boolean.
    """
    if isinstance(value, bool):
        raise ValueError("input should be a whole number, such as 20_000_000, 1e7 or '20M'")
    number = _number(value)
    if isinstance(number, float) and math.isfinite(number) and number.is_integer():
        return int(number)
    return number


def _real(value: object) -> object:
    """Parse "20M" or "1e7" to a number; other values are returned unchanged for pydantic to check. Raises ValueError
    for a boolean.
    """
    if isinstance(value, bool):
        raise ValueError("input should be a number")
    return _number(value)


Count = Annotated[int, BeforeValidator(_count)]
"""Whole number, which may be written 20_000_000, 1e7 or "20M"."""

Real = Annotated[float, BeforeValidator(_real)]
"""Finite number, which may be a string with the suffix k, M or G."""


class Section(BaseModel):
    """Base class of the configuration's sections: immutable; unknown keys, infinities and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    fixed_on_resume: ClassVar[Mapping[str, str]] = {}
    """Keys of an algorithm that a resume cannot change since its checkpoints depend on them, each with the reason (see
    `operant.config.resuming`).
    """

    schedulable: ClassVar[tuple[str, ...]] = ()
    """Keys of an algorithm that may be schedules (see `operant.config.schedules`): device scalars of the learner."""

    def completed(self, steps: int) -> Self:
        """Return a copy of the section in which unset keys that depend on the run's planned steps are filled in. A
        resume keeps their values.
        """
        return self
