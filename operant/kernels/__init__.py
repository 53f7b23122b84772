"""Triton kernels for dense networks. Knows no algorithm."""

from operant.kernels.spec import Spec, padded
from operant.kernels.tiles import (
    PerLayer,
    Resident,
    TileConfig,
    Work,
    candidates,
    from_text,
    multiple,
    power_of_two,
    suits,
)

__all__ = [
    "PerLayer",
    "Resident",
    "Spec",
    "TileConfig",
    "Work",
    "candidates",
    "from_text",
    "multiple",
    "padded",
    "power_of_two",
    "suits",
]
