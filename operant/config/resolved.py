"""A run's resolved configuration as plain values of today's keys, read and not checked: for what shows or compares
runs. Knows no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operant.config import raw
from operant.errors import NotFoundError


def tables(config: Path) -> dict[str, Any]:
    """The sections of a run's config.toml; {} where there is none that can be read."""
    try:
        return raw.read(config).data
    except NotFoundError:
        return {}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as `section.key`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
