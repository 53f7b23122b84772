"""A run's resolved configuration as plain values, read and not checked: for what shows or compares runs. Knows no key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli

from operant.runs import Run


def tables(run: Run) -> dict[str, Any]:
    """The sections of a run's config.toml; {} where there is none that can be read."""
    try:
        return tomli.loads(run.config_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as `section.key`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
