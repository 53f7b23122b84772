"""Forces of the fluid around a robot, and their derivatives by velocity, as formulas for `trace`.

Source: MuJoCo's documentation, "Computation: passive forces", "Fluid forces", and `engine_passive.c`. Two models: each
body's equivalent inertia box, or an ellipsoid for each geom of a body that has one with `fluidshape="ellipsoid"`.
Velocities are those relative to the wind, in the frame of the box or of the ellipsoid. A wrench is (torque, force).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from operant.physics import constants as c
from operant.physics.model import Model
from operant.physics.smooth import (
    State,
    Vector,
    add,
    cross,
    dot,
    moving_dofs,
    normalized,
    placed,
    rotate,
    rotate_back,
    scale,
    subtract,
)
from operant.physics.trace import greatest, sqrt

Square = list[Vector]
"""Matrix as a list of rows."""


@dataclass
class Element:
    """Box of a body (`geom` is -1) or ellipsoid of a geom: offset from the centre of mass of the tree, rotation matrix
    (9), and its velocities along its own axes.
    """

    body: int
    geom: int
    offset: Vector
    turn: Vector
    spin: Vector
    slide: Vector


def elements(m: Model, state: State) -> Iterator[Element]:
    """Shapes on which the fluid acts; none where it has neither density nor viscosity."""
    passive = c.NO_SPRING | c.NO_DAMPER
    if m.opt_disableflags & passive == passive or not (m.opt_density or m.opt_viscosity):
        return
    for body in range(1, m.nbody):
        if m.body_mass[body] < c.MINVAL or not moving_dofs(m, body):
            continue
        geoms = range(m.body_geomadr[body], m.body_geomadr[body] + m.body_geomnum[body])
        ellipsoids = [geom for geom in geoms if m.geom_fluid[geom, 0] > 0]
        for geom in ellipsoids or [-1]:
            place, turn = state.xipos[body], state.ximat[body]
            if geom >= 0:
                place, turn = placed(m, state, body, m.geom_pos[geom], m.geom_quat[geom])
            # v + w x r - wind
            offset = subtract(place, state.subtree_com[m.body_rootid[body]])
            spin, slide = state.cvel[body][:3], add(state.cvel[body][3:], cross(state.cvel[body][:3], offset))
            slide = subtract(slide, [float(x) for x in m.opt_wind])
            yield Element(body, geom, offset, turn, rotate_back(turn, spin), rotate_back(turn, slide))


def add_fluid_forces(m: Model, state: State) -> None:
    """Add fluid forces to `state.qfrc_passive` (nv) (`mj_fluid`)."""
    for element in elements(m, state):
        model = _box if element.geom < 0 else _ellipsoid
        turn, push = model(m, element)
        turn, push = rotate(element.turn, turn), rotate(element.turn, push)
        wrench = add(turn, cross(element.offset, push)) + push
        for k in moving_dofs(m, element.body):
            state.qfrc_passive[k] = state.qfrc_passive[k] + dot(state.cdof[k], wrench)


def fluid_derivatives(m: Model, state: State) -> Iterator[tuple[Element, dict[int, Vector], Square]]:
    """For each shape: the columns (6) of its Jacobian by dof, along its own axes, and the derivative (6, 6) of the
    wrench by its velocities (`mjd_inertiaBoxFluid`, `mjd_ellipsoidFluid`).
    """
    for element in elements(m, state):
        columns = {}
        for k in moving_dofs(m, element.body):
            spin, slide = state.cdof[k][:3], add(state.cdof[k][3:], cross(state.cdof[k][:3], element.offset))
            columns[k] = rotate_back(element.turn, spin) + rotate_back(element.turn, slide)
        yield element, columns, (_box_derivative if element.geom < 0 else _ellipsoid_derivative)(m, element)


def box_sides(m: Model, body: int) -> list[float]:
    """Sides (3) of the box of the body's mass and inertia."""
    mass, i = float(m.body_mass[body]), [float(x) for x in m.body_inertia[body]]
    return [math.sqrt(max(c.MINVAL, i[(k + 1) % 3] + i[(k + 2) % 3] - i[k]) / mass * 6.0) for k in range(3)]


def _box(m: Model, element: Element) -> tuple[Vector, Vector]:
    """Torque and force on a body's inertia box (`mj_inertiaBoxFluidModel`)."""
    density, viscosity, w, u = float(m.opt_density), float(m.opt_viscosity), element.spin, element.slide
    x, y, z = box_sides(m, element.body)
    d = (x + y + z) / 3.0
    # torque -pi d^3 nu w - rho x (y^4 + z^4) |w| w / 64;  force -3 pi d nu u - rho y z |u| u / 2
    turn = [
        -math.pi * d**3 * viscosity * w[k] - density * side * (a**4 + b**4) / 64.0 * (abs(w[k]) * w[k])
        for k, (side, a, b) in enumerate(((x, y, z), (y, x, z), (z, x, y)))
    ]
    push = [
        -3.0 * math.pi * d * viscosity * u[k] - 0.5 * density * area * (abs(u[k]) * u[k])
        for k, area in enumerate((y * z, x * z, x * y))
    ]
    return turn, push


def _box_derivative(m: Model, element: Element) -> Square:
    """Derivative (6, 6) of `_box` by (spin, slide): diagonal."""
    density, viscosity, w, u = float(m.opt_density), float(m.opt_viscosity), element.spin, element.slide
    x, y, z = box_sides(m, element.body)
    d = (x + y + z) / 3.0
    found: Square = [[0.0] * 6 for _ in range(6)]
    for k, (side, a, b) in enumerate(((x, y, z), (y, x, z), (z, x, y))):
        found[k][k] = -math.pi * d**3 * viscosity - density * side * (a**4 + b**4) / 32.0 * abs(w[k])
        found[3 + k][3 + k] = -3.0 * math.pi * d * viscosity - density * a * b * abs(u[k])
    return found


class _Shape:
    """Constants of a geom's ellipsoid: semi-axes, and coefficients of its fluid forces."""

    def __init__(self, m: Model, geom: int) -> None:
        size, kind = [float(x) for x in m.geom_size[geom]], m.geom_type[geom]
        if kind == c.SPHERE:
            size = [size[0]] * 3
        elif kind in (c.CAPSULE, c.CYLINDER):
            size = [size[0], size[0], size[1] + (size[0] if kind == c.CAPSULE else 0.0)]
        numbers = [float(x) for x in m.geom_fluid[geom]]
        _, self.blunt, self.slender, self.angular, self.kutta, self.magnus = numbers[:6]
        density, viscosity = float(m.opt_density), float(m.opt_viscosity)
        self.density = density
        # Added mass and inertia
        self.mass, self.inertia = (scale(numbers[k : k + 3], density) for k in (6, 9))
        self.magnus *= density * 4.0 / 3.0 * math.pi * size[0] * size[1] * size[2]
        _, middle, high = sorted(size)
        self.area = math.pi * high * middle
        # Squared areas S of the sections across the axes, as shares of the largest, whose area is pi `section`
        sections = [size[(k + 1) % 3] * size[(k + 2) % 3] for k in range(3)]
        self.section = max(sections)
        self.sections = [(x / self.section) ** 2 for x in sections]
        # Stokes' drag of the sphere of the mean diameter
        diameter = 2.0 / 3.0 * sum(size)
        self.stokes_force = viscosity * 3.0 * math.pi * diameter
        self.stokes_torque = viscosity * math.pi * diameter**3
        # Moments of quadratic drag about the axes
        moments = [8.0 / 15.0 * math.pi * size[k] * max(size[(k + 1) % 3], size[(k + 2) % 3]) ** 4 for k in range(3)]
        greatest_moment = 8.0 / 15.0 * math.pi * middle * high**4
        self.moments = [self.angular * x + self.slender * (greatest_moment - x) for x in moments]


def _ellipsoid(m: Model, element: Element) -> tuple[Vector, Vector]:
    """Torque and force on an ellipsoid: added mass, Magnus and Kutta lift, drag (`mj_ellipsoidFluidModel`)."""
    s, w, u = _Shape(m, element.geom), element.spin, element.slide
    momentum, angular = _times(s.mass, u), _times(s.inertia, w)
    e, speed = normalized(u)

    # Added mass: torque p x u + l x w, force p x w
    turn = add(cross(momentum, u), cross(angular, w))
    push = cross(momentum, w)

    # Along e = u / |u|, n = S e: projected area A = pi sqrt(n.n / n.e), lift k rho u.u A n.e / n.n (n x e) x e
    normal = _times(s.sections, e)
    square, along = dot(normal, normal), dot(normal, e)
    area = math.pi * s.section * sqrt(square / along)
    lift = s.kutta * s.density * math.pi * s.section * sqrt(along / square) * speed * speed
    push = add(push, scale(cross(w, u), s.magnus))
    push = add(push, cross(scale(cross(normal, e), lift), e))

    # Drag, linear and quadratic
    drag = s.stokes_force + s.density * speed * (s.blunt * area + s.slender * (s.area - area))
    moment = _times(s.moments, w)
    twist = s.stokes_torque + s.density * sqrt(dot(moment, moment))
    return subtract(turn, scale(w, twist)), subtract(push, scale(u, drag))


def _ellipsoid_derivative(m: Model, element: Element) -> Square:
    """Derivative (6, 6) of `_ellipsoid` by (spin, slide), with the least denominators of `engine_derivative.c`."""
    s, w, u = _Shape(m, element.geom), element.spin, element.slide
    momentum, angular = _times(s.mass, u), _times(s.inertia, w)

    # d(p x u) = [p] du - [u] M du, and so the others; [a] b = a x b
    turn_by_spin = _sum(_skew(angular), _columns(_skew(w), s.inertia, -1.0))
    turn_by_slide = _sum(_skew(momentum), _columns(_skew(u), s.mass, -1.0))
    push_by_spin = _sum(_skew(momentum), [scale(row, -s.magnus) for row in _skew(u)])
    push_by_slide = _sum(_columns(_skew(w), s.mass, -1.0), [scale(row, s.magnus) for row in _skew(w)])
    push_by_slide = _sum(_sum(push_by_slide, _lift_derivative(s, u)), _drag_derivative(s, u))

    # Torque -(c + rho |N w|) w
    moment = _times(s.moments, w)
    factor = s.density / greatest(sqrt(dot(moment, moment)), c.MINVAL)
    slope = [-factor * w[k] * s.moments[k] ** 2 for k in range(3)]
    twist = dot(w, slope) - s.stokes_torque
    drag = [[w[i] * slope[j] + (twist if i == j else 0.0) for j in range(3)] for i in range(3)]
    turn_by_spin = _sum(turn_by_spin, drag)
    return [a + b for a, b in zip(turn_by_spin + push_by_spin, turn_by_slide + push_by_slide, strict=True)]


def _lift_derivative(s: _Shape, u: Vector) -> Square:
    """Derivative (3, 3) of the Kutta lift by the velocity `u` (`mjd_kutta_lift`)."""
    e, speed = normalized(u)
    n, squares = s.sections, [x * x for x in e]
    square, along = dot(squares, [x * x for x in n]), dot(squares, n)
    # Force -f g_i e_i u.u with f = pi k rho n.e / sqrt(n.n n.e), g_i = sum of e_j^2 (S_i - S_j)
    factor = math.pi * s.section * s.kutta * s.density * speed / sqrt(square * along)
    g = [sum((squares[j] * (n[i] - n[j]) for j in range(3)), 0.0) for i in range(3)]
    bend = [n[j] * n[j] * along / square - n[j] + along for j in range(3)]
    return [
        [
            factor
            * ((2.0 * along * (n[j] - n[i]) + g[i] * bend[j]) * (e[i] * e[j]) - (g[i] * along if i == j else 0.0))
            for j in range(3)
        ]
        for i in range(3)
    ]


def _drag_derivative(s: _Shape, u: Vector) -> Square:
    """Derivative (3, 3) of the drag by the velocity `u` (`mjd_viscous_drag`)."""
    e, speed = normalized(u)
    n, squares = s.sections, [x * x for x in e]
    square, along = dot(squares, [x * x for x in n]), dot(squares, n)
    area = math.pi * s.section * sqrt(square / along)
    quadratic = s.density * (s.blunt * area + s.slender * (s.area - area)) * speed
    # Gradient of the projected area, times rho u.u (blunt - slender)
    factor = s.density * speed * (s.blunt - s.slender) * (math.pi * s.section / (along * sqrt(along * square)))
    slope = [factor * n[i] * e[i] * sum((n[j] * squares[j] * (n[i] - n[j]) for j in range(3)), 0.0) for i in range(3)]
    # -(c + |u| q) I - |u| q e e' - |u| e (d area)'
    return [
        [
            -(quadratic * (e[i] * e[j] + (1.0 if i == j else 0.0)))
            - e[i] * slope[j]
            - (s.stokes_force if i == j else 0.0)
            for j in range(3)
        ]
        for i in range(3)
    ]


def _times(a: Vector, b: Vector) -> Vector:
    """Product of vectors, entry by entry."""
    return [x * y for x, y in zip(a, b, strict=True)]


def _skew(a: Vector) -> Square:
    """Matrix [a] with [a] b = a x b."""
    return [[0.0, -a[2], a[1]], [a[2], 0.0, -a[0]], [-a[1], a[0], 0.0]]


def _columns(a: Square, factors: Vector, sign: float) -> Square:
    """Matrix with each column multiplied by its factor and `sign`."""
    return [[sign * (x * factor) for x, factor in zip(row, factors, strict=True)] for row in a]


def _sum(a: Square, b: Square) -> Square:
    return [add(x, y) for x, y in zip(a, b, strict=True)]


def symmetrised(a: Square) -> Square:
    """Symmetric part (a + a') / 2."""
    return [[0.5 * (a[i][j] + a[j][i]) for j in range(len(a))] for i in range(len(a))]
