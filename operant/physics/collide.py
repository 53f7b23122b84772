"""Contacts between pairs of geoms by MuJoCo's formulas, as device functions in float32 or float64.

Source: MuJoCo's documentation, "Computation", section "Collision detection"; order and degenerate cases as in
`engine_collision_primitive.c` and `engine_collision_box.c` (version 4.0). `FUNCTIONS` holds a function for each pair of
types, in MuJoCo's order (plane, sphere, capsule, ellipsoid, cylinder, box):

    count = function(p, a, b, size, ga, gb, margin, out, first)

- `p`: flat array of poses; at p[a] position (3) and rotation matrix (9, row by row) of geom 1, at p[b] of geom 2.
- `size`: flat array of sizes as in MJCF, 3 per geom; ga and gb number the geoms.
- `margin`, m: a contact farther apart is left out.
- `count`: number of contacts written; missing ones are left out.
- `out`: contacts are written from out[first], 10 numbers each: distance (negative where the geoms overlap), position
  (3), normal (3, from geom 1 to geom 2), preferred first tangent (3; zeros without preference).

The function of poses behind each (`plane_sphere` and so on) takes position, rotation matrix and size of both geoms and
the margin. It returns a tuple of fixed length of contacts (distance, position, normal, tangent). A missing contact has
distance `FAR`.

The functions hold no constant in another precision than their arguments: float32 constants promote nothing.
"""

from __future__ import annotations

import math
from typing import Any

from numpy import float32

from operant.compute.device import device, device_call
from operant.physics.local import coincidence

FAR = float32(1e10)
"""Distance of a contact that does not exist, m."""

TINY = float32(1e-15)
"""Least length of a vector that is normalised (MuJoCo's mjMINVAL)."""

PARALLEL = float32(1e-8)
"""Squared sine of the angle below which capsules are parallel."""

ZERO, HALF, ONE, TWO, THREE = float32(0.0), float32(0.5), float32(1.0), float32(2.0), float32(3.0)


@device
def dot(a, b):
    """Inner product of two vectors."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@device
def add(a, b):
    """Sum of two vectors."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@device
def subtract(a, b):
    """Difference of two vectors."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


@device
def scale(a, x):
    """Vector a times x."""
    return a[0] * x, a[1] * x, a[2] * x


@device
def add_scaled(a, b, x):
    """Vector a + x b."""
    return a[0] + b[0] * x, a[1] + b[1] * x, a[2] + b[2] * x


@device
def cross(a, b):
    """Cross product of two vectors."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@device
def axis_z(mat):
    """Third axis of a frame, which is the normal of a plane and the axis of a capsule or cylinder."""
    return mat[2], mat[5], mat[8]


@device
def rotate(mat, a):
    """Matrix times vector: local to global."""
    return (
        mat[0] * a[0] + mat[1] * a[1] + mat[2] * a[2],
        mat[3] * a[0] + mat[4] * a[1] + mat[5] * a[2],
        mat[6] * a[0] + mat[7] * a[1] + mat[8] * a[2],
    )


@device
def rotate_back(mat, a):
    """Transposed matrix times vector: global to local."""
    return (
        mat[0] * a[0] + mat[3] * a[1] + mat[6] * a[2],
        mat[1] * a[0] + mat[4] * a[1] + mat[7] * a[2],
        mat[2] * a[0] + mat[5] * a[1] + mat[8] * a[2],
    )


@device
def clip(x, low, high):
    """Number x clipped to [low, high]."""
    return min(max(x, low), high)


@device
def normalized(a):
    """Unit vector along a and the length of a; the x axis for a vector shorter than `TINY`."""
    return normalized_beyond(a, TINY)


@device
def normalized_beyond(a, least):
    """Unit vector along a and the length of a; the x axis for a vector shorter than `least`."""
    length = math.sqrt(dot(a, a))
    short = length < least
    inverse = ONE / (ONE if short else length)
    unit = (ONE if short else a[0] * inverse), (ZERO if short else a[1] * inverse), (ZERO if short else a[2] * inverse)
    return unit, length


@device
def no_contact(x):
    """One missing contact: (FAR, zeros, zeros, zeros), in the precision of x."""
    zero = x * ZERO
    none = (zero, zero, zero)
    return zero + FAR, none, none, none


# PLANES


@device
def _plane_point(origin, normal, point, radius, margin, tangent):
    """One contact (distance, position, normal, tangent) of a plane with a sphere around a point; distance FAR if
    missing.
    """
    height = dot(subtract(point, origin), normal)
    distance = height - radius
    near = height <= margin + radius
    return (
        (distance if near else distance * ZERO + FAR),
        add_scaled(point, normal, -distance / TWO - radius),
        normal,
        tangent,
    )


@device
def plane_sphere(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Tuple of one contact of a plane and a sphere; its distance is FAR if it is missing."""
    zero = margin * ZERO * mat2[0]
    return (_plane_point(pos1, axis_z(mat1), pos2, size2[0], margin, (zero, zero, zero)),)


@device
def plane_capsule(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Two contacts of a plane and a capsule: at its upper and lower end, along its axis; distance FAR for a missing
    one.
    """
    axis, normal = axis_z(mat2), axis_z(mat1)
    segment = scale(axis, size2[1])
    return (
        _plane_point(pos1, normal, add(pos2, segment), size2[0], margin, axis),
        _plane_point(pos1, normal, subtract(pos2, segment), size2[0], margin, axis),
    )


@device
def _plane_vertex(normal, vertex, distance, near):
    """One contact of a plane with a vertex at `distance`, halfway between both; its distance is FAR unless `near`."""
    zero = distance * ZERO
    return (
        (distance if near else zero + FAR),
        add_scaled(vertex, normal, -distance * HALF),
        normal,
        (zero, zero, zero),
    )


@device
def plane_ellipsoid(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Tuple of one contact of a plane and an ellipsoid, at the ellipsoid's lowest point; distance FAR if missing."""
    normal = axis_z(mat1)
    down = rotate_back(mat2, scale(normal, -ONE))
    # Lowest point of the unit sphere in scaled coordinates, brought back to the ellipsoid.
    unit, _ = normalized((down[0] * size2[0], down[1] * size2[1], down[2] * size2[2]))
    vertex = add(pos2, rotate(mat2, (unit[0] * size2[0], unit[1] * size2[1], unit[2] * size2[2])))
    distance = dot(normal, subtract(vertex, pos1))
    return (_plane_vertex(normal, vertex, distance, distance <= margin),)


@device
def plane_cylinder(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Four contacts of a plane and a cylinder: lowest points of its lower and upper disc, two more of the lower disc. A
    missing one has distance FAR.
    """
    normal, axis, radius = axis_z(mat1), axis_z(mat2), size2[0]
    # The axis points towards the plane.
    along = dot(normal, axis)
    axis, along = scale(axis, -ONE if along > ZERO else ONE), -abs(along)
    height = dot(subtract(pos2, pos1), normal)
    # Radius that points at the plane: part of the normal across the axis; if the discs are parallel to it, the x axis.
    across = subtract(scale(axis, along), normal)
    length = math.sqrt(dot(across, across))
    upright = length < TINY
    factor = radius / (ONE if upright else length)
    across = (
        (mat2[0] * radius if upright else across[0] * factor),
        (mat2[3] * radius if upright else across[1] * factor),
        (mat2[6] * radius if upright else across[2] * factor),
    )
    lower = dot(across, normal)
    axis, along = scale(axis, size2[1]), along * size2[1]
    first = height + along + lower
    touches = first <= margin
    second = height - along + lower
    side = height + along - lower * HALF
    vec1, _ = normalized(cross(across, axis))
    vec1 = scale(vec1, math.sqrt(THREE * radius * radius) * HALF)
    middle = add_scaled(add(pos2, axis), across, -HALF)
    contacts = (
        _plane_vertex(normal, add(add(pos2, across), axis), first, touches),
        _plane_vertex(normal, subtract(add(pos2, across), axis), second, touches and second <= margin),
        _plane_vertex(normal, add(middle, vec1), side, touches and side <= margin),
        _plane_vertex(normal, subtract(middle, vec1), side, touches and side <= margin),
    )
    return contacts


@device_call
def plane_box(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Four contacts of a plane and a box: the first four corners within the margin that lie below the box's centre.
    With fewer such corners the rest are missing, at distance FAR.
    """
    normal = axis_z(mat1)
    height = dot(subtract(pos2, pos1), normal)
    none = no_contact(height)
    found, a, b, c, d = 0, none, none, none, none
    for corner in range(8):
        vertex = rotate(
            mat2,
            (
                (size2[0] if corner & 1 else -size2[0]),
                (size2[1] if corner & 2 else -size2[1]),
                (size2[2] if corner & 4 else -size2[2]),
            ),
        )
        lower = dot(normal, vertex)
        if height + lower <= margin and lower <= ZERO:
            contact = _plane_vertex(normal, add(vertex, pos2), height + lower, True)
            if found == 0:
                a = contact
            elif found == 1:
                b = contact
            elif found == 2:
                c = contact
            elif found == 3:
                d = contact
            found += 1
    return a, b, c, d


# SPHERES


@device
def _spheres(pos1, axis1, radius1, pos2, axis2, radius2, margin):
    """One contact of two spheres, at distance FAR if missing. The normal of concentric spheres is the cross product of
    both geoms' axes. So is it of spheres that are concentric up to the rounding of their positions, as in capsules of a
    planar robot whose axes cross: the normal is that of MuJoCo in float32, too.
    """
    apart = subtract(pos2, pos1)
    squared, reach = dot(apart, apart), margin + radius1 + radius2
    least = coincidence(squared)
    normal, length = normalized_beyond(apart, least)
    if length < least:
        normal, _ = normalized(cross(axis1, axis2))
    distance = math.sqrt(squared) - radius1 - radius2
    zero = distance * ZERO
    return (
        (zero + FAR if squared > reach * reach else distance),
        add_scaled(pos1, normal, radius1 + distance / TWO),
        normal,
        (zero, zero, zero),
    )


@device
def sphere_sphere(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Tuple of one contact of two spheres; its distance is FAR if it is missing."""
    return (_spheres(pos1, axis_z(mat1), size1[0], pos2, axis_z(mat2), size2[0], margin),)


@device
def sphere_capsule(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Tuple of one contact: of a sphere with the nearest point of a capsule's segment; distance FAR if missing."""
    axis = axis_z(mat2)
    along = clip(dot(axis, subtract(pos1, pos2)), -size2[1], size2[1])
    return (_spheres(pos1, axis_z(mat1), size1[0], add_scaled(pos2, axis, along), axis, size2[0], margin),)


@device_call
def sphere_cylinder(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Tuple of one contact of a sphere and a cylinder: with its side, a cap, or the edge between; FAR if missing."""
    axis1, axis, radius, half = axis_z(mat1), axis_z(mat2), size2[0], size2[1]
    apart = subtract(pos1, pos2)
    along = dot(axis, apart)
    on_axis = scale(axis, along)
    across = subtract(apart, on_axis)
    squared = dot(across, across)
    side, cap = abs(along) < half, squared < radius * radius
    if side and cap:  # the centre lies inside: leave through the nearer surface
        cap = half - abs(along) < radius - math.sqrt(squared)
        side = not cap
    if side:
        return (_spheres(pos1, axis1, size1[0], add(pos2, on_axis), axis, radius, margin),)
    up = ONE if along > ZERO else -ONE
    if cap:
        zero = margin * ZERO * along
        distance, position, normal, tangent = _plane_point(
            add_scaled(pos2, axis, half * up), scale(axis, up), pos1, size1[0], margin, (zero, zero, zero)
        )
        return ((distance, position, scale(normal, -ONE), tangent),)
    edge = add_scaled(add_scaled(pos2, axis, half * up), across, radius / math.sqrt(squared))
    return (_spheres(pos1, axis1, size1[0], edge, axis, radius * ZERO, margin),)


@device
def _signed(flag, x):
    """Number x, or -x without the flag."""
    return x if flag else -x


@device_call
def _sphere_box(pos1, radius, pos2, mat2, size2, margin):
    """One contact of a sphere and a box; from inside, through the nearest face. Its distance is FAR if missing."""
    centre = rotate_back(mat2, subtract(pos1, pos2))
    inside = (
        clip(centre[0], -size2[0], size2[0]),
        clip(centre[1], -size2[1], size2[1]),
        clip(centre[2], -size2[2], size2[2]),
    )
    normal, distance = normalized(subtract(inside, centre))
    missing = distance - radius > margin
    if distance <= TINY:
        # Nearest face in the order -x, x, -y, y, -z, z.
        closest, face = TWO * (size2[0] + size2[1] + size2[2]) + distance * ZERO, 0
        for k in range(6):
            gap = abs(_signed(k % 2 == 1, size2[k // 2]) - centre[k // 2])
            if gap < closest:
                closest, face = gap, k
        out = -ONE if face % 2 == 1 else ONE  # the normal points into the box
        zero = distance * ZERO
        normal = (
            zero + (out if face // 2 == 0 else ZERO),
            zero + (out if face // 2 == 1 else ZERO),
            zero + (out if face // 2 == 2 else ZERO),
        )
        local = add_scaled(centre, normal, (radius - closest) / TWO)
        distance = -closest
    else:
        deepest = add_scaled(centre, normal, radius)
        local = scale(add(inside, deepest), HALF)
    zero = distance * ZERO
    return (
        (zero + FAR if missing else distance - radius),
        add(rotate(mat2, local), pos2),
        rotate(mat2, normal),
        (zero, zero, zero),
    )


@device
def sphere_box(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Tuple of one contact of a sphere and a box; its distance is FAR if it is missing."""
    return (_sphere_box(pos1, size1[0], pos2, mat2, size2, margin),)


# CAPSULES


@device_call
def capsule_capsule(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Two contacts of two capsules: at the nearest points of their segments, then always a missing one. Those of
    parallel capsules are at both ends of the stretch where they overlap. A missing one has distance FAR.
    """
    z1, z2, radius1, radius2 = axis_z(mat1), axis_z(mat2), size1[0], size2[0]
    axis1, axis2, apart = scale(z1, size1[1]), scale(z2, size2[1]), subtract(pos1, pos2)
    # Normal equations of min |pos1 + x1 axis1 - pos2 - x2 axis2|^2.
    ma, mb, mc = dot(axis1, axis1), -dot(axis1, axis2), dot(axis2, axis2)
    u, v = -dot(axis1, apart), dot(axis2, apart)
    # ma mc - mb^2 without cancellation.
    normal = cross(axis1, axis2)
    determinant = dot(normal, normal)
    none = no_contact(determinant)
    if determinant >= PARALLEL * ma * mc:
        x1, x2 = (mc * u - mb * v) / determinant, (ma * v - mb * u) / determinant
        if x1 > ONE:
            x1, x2 = ONE, (v - mb) / mc
        elif x1 < -ONE:
            x1, x2 = -ONE, (v + mb) / mc
        if x2 > ONE:
            x1, x2 = clip((u - mb) / ma, -ONE, ONE), ONE
        elif x2 < -ONE:
            x1, x2 = clip((u + mb) / ma, -ONE, ONE), -ONE
        contact = _spheres(add_scaled(pos1, axis1, x1), z1, radius1, add_scaled(pos2, axis2, x2), z2, radius2, margin)
        return contact, none
    # Parallel segments: both ends of the stretch along which they overlap.
    first, second = none, none
    for end in range(2):
        x1 = ONE if end == 1 else -ONE
        x2 = (v - mb * x1) / mc
        if abs(x2) > ONE:
            x2 = clip(x2, -ONE, ONE)
            x1 = clip((u - mb * x2) / ma, -ONE, ONE)
        contact = _spheres(add_scaled(pos1, axis1, x1), z1, radius1, add_scaled(pos2, axis2, x2), z2, radius2, margin)
        if end == 0:
            first = contact
        else:
            second = contact
    return first, second


@device
def _component(a, k):
    """Component k of a vector."""
    return a[0] if k == 0 else (a[1] if k == 1 else a[2])


@device
def _with_component(a, k, x):
    """Vector a with component k replaced by x."""
    return (x if k == 0 else a[0]), (x if k == 1 else a[1]), (x if k == 2 else a[2])


@device
def _corner(size, bits):
    """Corner of a box in its own frame: bits 1, 2 and 4 choose the upper end of x, y and z."""
    return _signed(bits & 1, size[0]), _signed(bits & 2, size[1]), _signed(bits & 4, size[2])


@device_call
def _nearest_on_edges(pos, axis, half, size, best):
    """Point of the segment pos + x axis nearest to the edges of a box, if nearer than `best` (squared).

    Returns (squared distance, x on the segment, x on the edge, kind, corner, edge). The kind is 3 e + s: e = 0, 1, 2
    for the edge's lower end, inside and upper end, s likewise for the segment; -1 if no edge is nearer.
    """
    on_segment, on_edge, kind, corner, edge = best * ZERO, best * ZERO, -1, 0, 0
    for j in range(3):
        length = _component(size, j)
        ma, mb, mc = length * length, -length * _component(axis, j), half * half
        for bits in range(8):
            if bits & (1 << j):
                continue
            # Nearest points of the line through the edge's middle and of the segment, clipped to both.
            start = subtract(_with_component(_corner(size, bits), j, best * ZERO), pos)
            u, v = -length * _component(start, j), dot(axis, start)
            determinant = ma * mc - mb * mb
            if abs(determinant) < TINY:
                continue
            x1, x2, e, s = (mc * u - mb * v) / determinant, (ma * v - mb * u) / determinant, 1, 1
            if x1 > ONE:
                x1, x2, e = ONE, (v - mb) / mc, 2
            elif x1 < -ONE:
                x1, x2, e = -ONE, (v + mb) / mc, 0
            if abs(x2) > ONE:
                up = x2 > ONE
                x2, s = _signed(up, ONE), (2 if up else 0)
                x1 = (u - mb * x2) / ma
                if x1 > ONE:
                    x1, e = ONE, 2
                elif x1 < -ONE:
                    x1, e = -ONE, 0
            gap = add_scaled(start, axis, -x2)
            gap = _with_component(gap, j, _component(gap, j) + length * x1)
            squared = dot(gap, gap)
            if squared < best - TINY:
                best, on_segment, on_edge, kind = squared, x2, x1, 3 * e + s
                corner, edge = bits + (1 << j) * (kind // 6), j
    return best, on_segment, on_edge, kind, corner, edge


@device
def _reach(size, axis, k):
    """Share of a half axis that crosses a box along component k."""
    return TWO * _component(size, k) / abs(_component(axis, k))


@device_call
def _second_point(axis, direction, size, at, on_edge, kind, corner, edge):
    """Whether the segment has a second contact with the edges of a box, and its distance along the segment from the
    nearest point `at`, in half axes.
    """
    towards = direction ^ corner
    if kind // 3 != 1:  # nearest to a corner
        if towards == 0 or towards == 7:
            return False, at * ZERO
        single = towards == 1 or towards == 2 or towards == 4
        forward = ONE if single else -ONE
        towards = towards if single else 7 - towards
        ahead, behind = ONE - forward * at, ONE + forward * at
        k = 0 if towards == 1 else (1 if towards == 2 else 2)
        if _component(axis, k) * _component(axis, k) > HALF * dot(axis, axis):  # along the edge of the box
            return True, forward * min(ahead, _reach(size, axis, k))
        return True, -forward * min(min(behind, _reach(size, axis, (k + 1) % 3)), _reach(size, axis, (k + 2) % 3))
    # Inside an edge: a second contact only where edge and segment cross.
    towards &= 7 - (1 << edge)
    if towards != 1 and towards != 2 and towards != 4:
        return False, at * ZERO
    k1, k2 = (edge + 1) % 3, (edge + 2) % 3
    if abs(_component(axis, k1)) > abs(_component(axis, k2)):
        k1 = k2
    k2 = 3 - edge - k1
    forward = ONE if towards & (1 << k2) else -ONE
    along = min(ONE - forward * at, _reach(size, axis, k2))
    same = ((direction & (1 << edge)) != 0) == ((towards & (1 << k2)) != 0)
    left = ONE - on_edge if same else ONE + on_edge
    return True, forward * min(along, _component(size, edge) * left / abs(_component(axis, edge)))


@device_call
def capsule_box(pos1, mat1, size1, pos2, mat2, size2, margin):
    """Two contacts of a capsule and a box: at the point of the segment nearest to the box, and at a second point where
    the segment runs along a face or an edge. A missing one has distance FAR; a contact precedes a missing one.
    """
    radius, half = size1[0], size1[1]
    pos, axis = rotate_back(mat2, subtract(pos1, pos2)), scale(rotate_back(mat2, axis_z(mat1)), half)
    direction = (1 if axis[0] > ZERO else 0) + (2 if axis[1] > ZERO else 0) + (4 if axis[2] > ZERO else 0)

    # Ends of the segment over a face, or inside the box.
    best = margin + TWO * (radius + half + size2[0] + size2[1] + size2[2])
    at, face, over_face = best * ZERO, -1, False
    for end in range(2):
        side = ONE if end == 1 else -ONE
        point = add_scaled(pos, axis, side)
        outside, last, squared = 0, -1, best * ZERO
        for j in range(3):
            beyond = abs(_component(point, j)) - _component(size2, j)
            if beyond > ZERO:
                outside, last, squared = outside + 1, j, squared + beyond * beyond
        if outside <= 1 and squared < best:
            best, at, face, over_face = squared, side, last, True
    best, on_segment, on_edge, kind, corner, edge = _nearest_on_edges(pos, axis, half, size2, best)

    # Distance along the segment to the second contact, in half axes.
    twice, further = False, best * ZERO
    if kind >= 0:
        at = on_segment
        twice, further = _second_point(axis, direction, size2, at, on_edge, kind, corner, edge)
    elif over_face and face >= 0:
        # From the end over the face to where the segment leaves the face.
        forward = -at
        point = add_scaled(pos, axis, at)
        twice, further = True, TWO + best * ZERO
        for j in range(3):
            if j != face:
                for end in range(2):
                    wall = _signed(end == 0, _component(size2, j))
                    share = (wall - _component(point, j)) / _component(axis, j) * forward
                    if share > ZERO and share < further:
                        further = share
        further *= forward

    first_at = add(rotate(mat2, add_scaled(pos, axis, at)), pos2)
    second_at = add(rotate(mat2, add_scaled(pos, axis, at + further)), pos2)
    first, second = no_contact(best), no_contact(best)
    if kind >= 0 or over_face:
        first = _sphere_box(first_at, radius, pos2, mat2, size2, margin)
        if twice:
            second = _sphere_box(second_at, radius, pos2, mat2, size2, margin)
            if first[0] == FAR:
                first, second = second, first
    return first, second


# BY FLAT ARRAYS


def flat(contacts: Any) -> Any:
    """Make the function of flat arrays (p, a, b, ...) that writes the contacts of a function of poses and sizes that
    are not missing, and returns their number.
    """

    @device_call
    def collide(p, a, b, size, ga, gb, margin, out, first):
        count = 0
        for distance, position, normal, tangent in contacts(
            (p[a], p[a + 1], p[a + 2]),
            (p[a + 3], p[a + 4], p[a + 5], p[a + 6], p[a + 7], p[a + 8], p[a + 9], p[a + 10], p[a + 11]),
            (size[3 * ga], size[3 * ga + 1], size[3 * ga + 2]),
            (p[b], p[b + 1], p[b + 2]),
            (p[b + 3], p[b + 4], p[b + 5], p[b + 6], p[b + 7], p[b + 8], p[b + 9], p[b + 10], p[b + 11]),
            (size[3 * gb], size[3 * gb + 1], size[3 * gb + 2]),
            margin,
        ):
            if distance != FAR:
                at = first + 10 * count
                out[at] = distance
                for k in range(3):
                    out[at + 1 + k], out[at + 4 + k], out[at + 7 + k] = position[k], normal[k], tangent[k]
                count += 1
        return count

    return collide


MOST = {
    ("plane", "sphere"): 1,
    ("plane", "capsule"): 2,
    ("plane", "ellipsoid"): 1,
    ("plane", "cylinder"): 4,
    ("plane", "box"): 4,
    ("sphere", "sphere"): 1,
    ("sphere", "capsule"): 1,
    ("sphere", "cylinder"): 1,
    ("sphere", "box"): 1,
    ("capsule", "capsule"): 2,
    ("capsule", "box"): 2,
}
"""Largest number of contacts of each pair of types."""

FUNCTIONS = {pair: flat(globals()["_".join(pair)]) for pair in MOST}
"""Collision function of each pair of types."""
