"""Pictures of a robot: its geoms as rods in a parallel projection that follows it, over a floor with a grid.

`arrange` writes the projected segment of each geom; the shader tests a point against the rods around them. Capsules and
cylinders are rods along their axis, spheres discs, boxes and ellipsoids rods along their longest axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import float32, int32

from operant.compute.device import device
from operant.envs.drawing import BLUE, GREEN, GREY, GROUND, ORANGE, RED, YELLOW, in_rod

if TYPE_CHECKING:
    from operant.physics import Model

PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = 0, 2, 3, 4, 5, 6
FLOOR = (float32(0.10), float32(0.12), float32(0.15))
COLOURS = np.array([BLUE, ORANGE, GREEN, YELLOW, RED], np.float32)


class View(NamedTuple):
    """Camera of a robot's pictures: a parallel projection."""

    width: float = 4.0  # m across the picture
    azimuth: float = 90.0  # degrees from the x axis; 90: x to the right, looking along y
    elevation: float = 10.0  # degrees above the horizon
    height: float = 0.8  # m, height of the picture's centre above the floor
    follow: bool = True  # the centre follows the first body
    grid: float = 0.5  # m, side of the floor's squares
    marks: tuple[tuple[str, float], ...] = ()  # discs: name of a field of `d` with a position, and radius, m
    hidden: tuple[str, ...] = ()  # geoms that are not drawn


class Figure(NamedTuple):
    """Numbers of a picture and the functions that draw a robot."""

    picture: int  # numbers that `arrange` writes
    arrange: Any  # device function (picture, w, s): from the scratch with geom_xpos and geom_xmat, and the state
    shader: Any  # device function (s, picture, p, x, y) -> colour


READS = ("geom_xpos", "geom_xmat")


def figure(model: Model, view: View, at: Mapping[str, int], rows: Mapping[str, int]) -> Figure:
    """Figure of a model: all geoms except planes and hidden ones, and the view's marks. `at` holds the offsets of
    `READS` in the scratch, `rows` the rows of the fields of `d` in the state.

    The picture holds the projected centre, then the ends of each rod relative to it: (u, v) to the right and up, m.
    """
    hidden = [model.id("geom", name) for name in view.hidden]
    shown = (SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX)
    drawn = [k for k in range(model.ngeom) if model.geom_type[k] in shown and k not in hidden]
    count = len(drawn)
    axes, halves, radii = _rods(model, drawn)
    limbs = [_branch(model, k) for k in drawn]
    colours = np.array([COLOURS[k % len(COLOURS)] if k >= 0 else GREY for k in limbs], np.float32).reshape(-1, 3)
    geoms = np.array(drawn, np.int32)
    moving = [k for k in drawn if model.body_rootid[model.geom_bodyid[k]] != 0]
    floor = any(model.geom_type[k] == PLANE for k in range(model.ngeom))
    # Marks are rods without length, after those of the geoms.
    marks, places = len(view.marks), np.array([rows[name] for name, _ in view.marks], np.int32)
    radii = np.append(radii, np.array([radius for _, radius in view.marks], np.float32)).astype(np.float32)
    colours = np.concatenate([colours, np.tile(np.array(RED, np.float32), (marks, 1))]).astype(np.float32)
    xpos, xmat, follow = at["geom_xpos"], at["geom_xmat"], view.follow and bool(moving)
    root = xpos + 3 * (moving[0] if moving else 0)
    (rx, ry), (ux, uy, uz), height = *_projection(view), float32(view.height)
    width, square = float32(view.width), float32(view.grid)
    # Depth of a point of the floor behind the centre per height in the picture, and the horizon's height, m.
    steepness = float32(1.0 / math.sin(math.radians(view.elevation)))
    horizon = float32(1.5 * view.width * math.sin(math.radians(view.elevation))) - height * uz

    @device
    def arrange(picture, w, s):
        x, y = (w[root], w[root + 1]) if follow else (float32(0.0), float32(0.0))
        across, along = rx * x + ry * y, ux * x + uy * y + uz * height
        picture[0], picture[1] = across, along
        for k in range(count):
            p, m, half = xpos + 3 * geoms[k], xmat + 9 * geoms[k] + axes[k], halves[k]
            a, b, c = half * w[m], half * w[m + 3], half * w[m + 6]
            du, dv = rx * a + ry * b, ux * a + uy * b + uz * c
            u, v = rx * w[p] + ry * w[p + 1] - across, ux * w[p] + uy * w[p + 1] + uz * w[p + 2] - along
            i = 2 + 4 * k
            picture[i], picture[i + 1], picture[i + 2], picture[i + 3] = u - du, v - dv, u + du, v + dv
        for k in range(marks):
            x, y, z = s[places[k]], s[places[k] + 1], s[places[k] + 2]
            u, v = rx * x + ry * y - across, ux * x + uy * y + uz * z - along
            i = 2 + 4 * (count + k)
            picture[i], picture[i + 1], picture[i + 2], picture[i + 3] = u, v, u, v

    @device
    def pixel_shader(s, picture, p, x, y):
        u, v = (x - float32(0.5)) * width, (float32(0.5) - y) * width
        found = -1
        for k in range(count + marks):
            x0, y0, x1, y1 = picture[4 * k + 2], picture[4 * k + 3], picture[4 * k + 4], picture[4 * k + 5]
            if in_rod(u, v, x0, y0, x1, y1, radii[k]):
                found = k
        if found >= 0:
            return colours[found, 0], colours[found, 1], colours[found, 2]
        if not floor or v > horizon:
            return GROUND
        # Point of the floor: on the horizontal ray through the centre's projection, u to the right and `deep` behind.
        across, deep = u + picture[0], (v + picture[1]) * steepness
        column, row = (rx * across - ry * deep) / square, (ry * across + rx * deep) / square
        odd = (int32(math.floor(column)) + int32(math.floor(row))) & 1
        return GROUND if odd else FLOOR

    return Figure(2 + 4 * (count + marks), arrange, pixel_shader)


def _rods(model: Model, drawn: list[int]) -> tuple[Any, Any, Any]:
    """Axis (0, 1, 2), half length and radius of each drawn geom's rod, m."""
    axes, halves, radii = [], [], []
    for k in drawn:
        kind, size = int(model.geom_type[k]), np.asarray(model.geom_size[k], float)
        if kind == SPHERE:
            axis, half, radius = 2, 0.0, size[0]
        elif kind in (CAPSULE, CYLINDER):
            axis, half, radius = 2, size[1], size[0]
        else:
            axis = int(np.argmax(size))
            radius = float(np.median(size))
            half = max(float(size[axis]) - radius, 0.0)
        axes.append(axis)
        halves.append(half)
        radii.append(radius)
    return np.array(axes, np.int32), np.array(halves, np.float32), np.array(radii, np.float32)


def _projection(view: View) -> tuple[tuple[Any, Any], tuple[Any, Any, Any]]:
    """Unit vectors of the picture in the world: to the right (x, y), and up (x, y, z)."""
    turn, lift = math.radians(view.azimuth - 90.0), math.radians(view.elevation)
    right = float32(math.cos(turn)), float32(math.sin(turn))
    forward = -math.sin(turn), math.cos(turn)  # into the picture
    up = float32(forward[0] * math.sin(lift)), float32(forward[1] * math.sin(lift)), float32(math.cos(lift))
    return right, up


def _branch(model: Model, geom: int) -> int:
    """Number of the limb to which a geom belongs, over all trees: one for each root and each child of a root; -1 for
    the world.
    """
    body, parents = int(model.geom_bodyid[geom]), [int(parent) for parent in model.body_parentid]
    root = int(model.body_rootid[body])
    if body == 0:
        return -1
    while body != root and parents[body] != root:
        body = parents[body]
    limbs = [k for k in range(1, model.nbody) if parents[k] in (0, int(model.body_rootid[k]))]
    return limbs.index(body)
