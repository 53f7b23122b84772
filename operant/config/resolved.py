"""Resolved configuration of a recorded run as plain values under current key names, read without checks. Used to show
and compare runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operant.config import raw
from operant.errors import NotFoundError


def tables(config: Path) -> dict[str, Any]:
    """Return the sections of a run's config.toml; {} if it cannot be read."""
    try:
        return raw.read(config).data
    except NotFoundError:
        return {}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values in nested tables by dotted key, each with `prefix` in front."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return values
