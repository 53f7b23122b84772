"""Shapes and colours for `pixel_shader`. Independent of environments and pixels.

Shapes are float32 device functions that test whether the point (x, y) lies inside, in any coordinate system shared by
all arguments. Colours are light on a dark ground, distinguishable with colour blindness (Okabe & Ito 2008), and
readable on a light ground where a terminal draws only dots.
"""

from __future__ import annotations

from typing import Any

from numpy import float32

from operant.compute.device import device

__all__ = ["BLUE", "GREEN", "GREY", "GROUND", "ORANGE", "RED", "YELLOW", "in_box", "in_disc", "in_rod"]

# Red, green and blue, each in [0, 1].
GROUND = (float32(0.06), float32(0.07), float32(0.09))
GREY = (float32(0.6), float32(0.6), float32(0.6))
BLUE = (float32(0.34), float32(0.71), float32(0.91))
ORANGE = (float32(0.9), float32(0.62), float32(0.0))
GREEN = (float32(0.0), float32(0.62), float32(0.45))
RED = (float32(0.84), float32(0.37), float32(0.0))
YELLOW = (float32(0.94), float32(0.89), float32(0.26))


@device
def in_disc(x: Any, y: Any, centre_x: Any, centre_y: Any, radius: Any) -> bool:
    """Whether the point (x, y) lies inside the disc around (centre_x, centre_y) with this radius."""
    dx, dy = x - centre_x, y - centre_y
    return dx * dx + dy * dy < radius * radius


@device
def in_box(x: Any, y: Any, centre_x: Any, centre_y: Any, half_width: Any, half_height: Any) -> bool:
    """Whether the point (x, y) lies inside the axis-aligned rectangle around (centre_x, centre_y) with these half
    sides.
    """
    return abs(x - centre_x) < half_width and abs(y - centre_y) < half_height


@device
def in_rod(x: Any, y: Any, x0: Any, y0: Any, x1: Any, y1: Any, half_width: Any) -> bool:
    """Whether the point (x, y) lies inside a rod with round ends: closer than `half_width` to the segment (x0, y0)-(x1,
    y1).
    """
    along_x, along_y = x1 - x0, y1 - y0
    length_squared = along_x * along_x + along_y * along_y + float32(1e-12)  # a segment of length 0 is a disc
    share = min(max(((x - x0) * along_x + (y - y0) * along_y) / length_squared, float32(0.0)), float32(1.0))
    dx, dy = x - x0 - share * along_x, y - y0 - share * along_y
    return dx * dx + dy * dy < half_width * half_width
