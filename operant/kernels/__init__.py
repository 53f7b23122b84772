"""Triton kernels for dense networks. Knows no algorithm."""

from operant.kernels.spec import Spec, padded
from operant.kernels.tile_config import (
    PerLayer,
    Resident,
    TileConfig,
    Workload,
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
    "Workload",
    "candidates",
    "from_text",
    "multiple",
    "padded",
    "power_of_two",
    "suits",
]
