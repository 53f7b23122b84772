"""Contacts of pairs of geoms that MuJoCo collides by its iterative convex solver, in closed form or by bisection.

MuJoCo's result is accurate to its tolerance (1e-6 m), and where a whole line is nearest it is an arbitrary point of it.
Here it is the nearest point to rounding, and the middle of such a line: distances and normals agree to the tolerance.
MuJoCo 4 adds a second contact where a capsule lies along a cap of a cylinder (flag `multiccd`, on by default); there is
one here, as in MuJoCo with the flag disabled.
"""

from __future__ import annotations

import math

from operant.compute.device import device, device_call
from operant.physics.collide import HALF, TINY, ZERO, add_scaled, axis_z, dot, flat, sphere_cylinder, sub

HALVINGS = 40
"""Bisections of a segment: its length times 1e-12."""


@device
def _slope(origin, direction, axis, radius, half, t):
    """Derivative along a line, at t, of half the squared distance to a cylinder; negative before the nearest point.

    Inside, the distance is 0 and so is the slope.
    """
    at = add_scaled(origin, direction, t)
    along = dot(at, axis)
    across = add_scaled(at, axis, -along)
    out = math.sqrt(dot(across, across))
    side, cap = max(out - radius, ZERO), max(abs(along) - half, ZERO)
    slope = side / max(out, TINY) * dot(across, direction)
    return slope + (cap if along > ZERO else -cap) * dot(axis, direction)


@device_call
def capsule_cylinder(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Tuple of one contact: of a cylinder with a sphere at the nearest point of a capsule's segment; FAR if missing."""
    direction, axis, radius, half, length = axis_z(mat1), axis_z(mat2), size2[0], size2[1], size1[1]
    origin = sub(pos1, pos2)
    # Both ends of the stretch where the slope is 0, by bisection: the distance is convex along the segment.
    first, last, low, high = -length, length, -length, length
    for _ in range(HALVINGS):
        middle = HALF * (first + last)
        if _slope(origin, direction, axis, radius, half, middle) < ZERO:
            first = middle
        else:
            last = middle
        middle = HALF * (low + high)
        if _slope(origin, direction, axis, radius, half, middle) > ZERO:
            high = middle
        else:
            low = middle
    nearest = HALF * (HALF * (first + last) + HALF * (low + high))
    return sphere_cylinder(add_scaled(pos1, direction, nearest), mat1, size1, pos2, mat2, size2, margin)


MOST = {("capsule", "cylinder"): 1}
"""Largest number of contacts of each pair of types."""

FUNCTIONS = {("capsule", "cylinder"): flat(capsule_cylinder)}
"""Collision function of each pair of types."""
