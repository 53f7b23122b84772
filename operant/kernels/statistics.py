"""Indices of an algorithm's statistics, for kernels that add to them by name. Knows no Triton."""

from __future__ import annotations

from collections import namedtuple
from typing import Any


def statistics_index(terms: tuple[str, ...]) -> Any:
    """Return a named tuple of indices 0, 1, ... named after an algorithm's `TERMS`, for use as in
    `SPEC.stat.entropy`.
    """
    return namedtuple("Statistics", terms)(*range(len(terms)))
