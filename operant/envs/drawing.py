"""Plain shapes and colours for the pictures that environments draw in `pixel_shader`. Knows nothing of environments or
pixels.

Shapes: is the point (x, y) inside? Device functions, float32 throughout. Axes are whatever the caller uses for all the
arguments alike. Colours: light on a dark ground, told apart by colour-blind people (Okabe & Ito 2008), and readable on
a light ground too where a terminal draws dots alone.
"""

from __future__ import annotations

from typing import Any

from numpy import float32

from operant.compute.device import device

__all__ = ["BLUE", "GREEN", "GREY", "GROUND", "ORANGE", "RED", "YELLOW", "in_box", "in_disc", "in_rod"]

# Red, green and blue, each 0 to 1.
GROUND = (float32(0.06), float32(0.07), float32(0.09))
GREY = (float32(0.6), float32(0.6), float32(0.6))
BLUE = (float32(0.34), float32(0.71), float32(0.91))
ORANGE = (float32(0.9), float32(0.62), float32(0.0))
GREEN = (float32(0.0), float32(0.62), float32(0.45))
RED = (float32(0.84), float32(0.37), float32(0.0))
YELLOW = (float32(0.94), float32(0.89), float32(0.26))


@device
def in_disc(x: Any, y: Any, centre_x: Any, centre_y: Any, radius: Any) -> bool:
    """Inside a disc."""
    dx, dy = x - centre_x, y - centre_y
    return dx * dx + dy * dy < radius * radius


@device
def in_box(x: Any, y: Any, centre_x: Any, centre_y: Any, half_width: Any, half_height: Any) -> bool:
    """Inside an upright rectangle."""
    return abs(x - centre_x) < half_width and abs(y - centre_y) < half_height


@device
def in_rod(x: Any, y: Any, x0: Any, y0: Any, x1: Any, y1: Any, half_width: Any) -> bool:
    """Nearer than `half_width` to the line from (x0, y0) to (x1, y1): a rod with round ends."""
    along_x, along_y = x1 - x0, y1 - y0
    length_squared = along_x * along_x + along_y * along_y + float32(1e-12)  # a rod may be a point
    share = min(max(((x - x0) * along_x + (y - y0) * along_y) / length_squared, float32(0.0)), float32(1.0))
    dx, dy = x - x0 - share * along_x, y - y0 - share * along_y
    return dx * dx + dy * dy < half_width * half_width
