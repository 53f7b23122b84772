"""Random MJCF models of what the physics engine covers, to compare its steps with MuJoCo's.

    text = random_model(np.random.default_rng(seed))

A model has one to five bodies in trees of joints of all kinds, geoms that touch a floor, each other, and fixed geoms;
springs, dampers, limits, friction, tendons, equality constraints, actuators; an integrator, a solver, a cone, a fluid,
and flags. All numbers are drawn, and each element is there with a probability. The engine covers every model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_BODIES = 5
DEEPEST = 3

FLAGS = {
    "eulerdamp": 0.1,
    "refsafe": 0.1,
    "filterparent": 0.15,
    "warmstart": 0.1,
    "clampctrl": 0.1,
    "island": 0.15,
    "midphase": 0.1,
    "multiccd": 0.1,
    "frictionloss": 0.05,
    "limit": 0.05,
    "equality": 0.05,
    "spring": 0.05,
    "damper": 0.05,
    "contact": 0.03,
    "actuation": 0.03,
}
"""Flags, and the probability that a model disables each."""

TOUCHES = {
    "plane": 'contype="3" conaffinity="1"',
    "sphere": 'contype="5" conaffinity="1"',
    "capsule": 'contype="1" conaffinity="1"',
    "box": 'contype="0" conaffinity="3"',
    "cylinder": 'contype="0" conaffinity="6"',
}
"""What shapes touch: planes all; spheres and capsules each other and boxes; spheres cylinders. A capsule and a cylinder
are left out, as MuJoCo finds their contact by iteration, to 1e-6 m.
"""

FLOOR_ONLY = 'contype="0" conaffinity="2"'


def random_model(rng: np.random.Generator) -> str:
    """MJCF text of a random model."""
    return _Writer(rng).model()


class _Writer:
    """Draws the elements of one model and remembers what others refer to."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.bodies: list[str] = []
        self.joints: dict[str, str] = {}  # name: kind
        self.geoms: dict[str, str] = {}  # name: kind
        self.sites: list[str] = []
        self.tendons: list[str] = []

    # DRAWS

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def one_of(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def number(self, low: float, high: float) -> str:
        return f"{self.rng.uniform(low, high):.4g}"

    def numbers(self, *ranges: tuple[float, float]) -> str:
        return " ".join(self.number(low, high) for low, high in ranges)

    def around_zero(self, low: float, high: float) -> str:
        """Range from below to above 0, each end between `low` and `high` away from it."""
        return f"-{self.number(low, high)} {self.number(low, high)}"

    def vector(self, size: float) -> str:
        return " ".join(f"{x:.3g}" for x in self.rng.normal(size=3) * size)

    def maybe(self, probability: float, attribute: str, *ranges: tuple[float, float]) -> str:
        """Attribute with drawn numbers, with a probability, else nothing."""
        return f' {attribute}="{self.numbers(*ranges)}"' if self.chance(probability) else ""

    def turn(self) -> str:
        return f' quat="{self.number(-1, 1)} {self.vector(1.0)}"'

    # ELEMENTS

    def model(self) -> str:
        world = self.floor() + "".join(self.fixed_geom() for _ in range(self.one_of(0, 0, 1, 2)))
        world += f'<site name="anchor" pos="{self.vector(0.3)}"/>'
        for _ in range(self.one_of(1, 1, 2, 3)):
            if len(self.bodies) < MOST_BODIES:
                world += self.body(0)
        tendons = self.fixed_tendon() + self.spatial_tendon()
        return (
            f"<mujoco>{self.option()}<worldbody>{world}</worldbody><contact>{self.contact()}</contact>"
            f"<tendon>{tendons}</tendon><equality>{self.equality()}</equality>"
            f"<actuator>{''.join(self.actuator() for _ in range(self.one_of(0, 1, 2, 3, 4)))}</actuator></mujoco>"
        )

    def option(self) -> str:
        text = (
            f'<option timestep="{self.one_of(0.001, 0.002, 0.005)}" '
            f'integrator="{self.one_of("Euler", "RK4", "implicitfast")}" '
            f'solver="{self.one_of("Newton", "Newton", "PGS")}" cone="{self.one_of("pyramidal", "elliptic")}"'
        )
        text += self.maybe(0.3, "impratio", (1, 5))
        if self.chance(0.3):
            text += f' density="{self.number(1, 1000)}" viscosity="{self.number(0, 0.5)}"'
            text += f' wind="{self.vector(2.0)}"' if self.chance(0.5) else ""
        text += f' gravity="{self.vector(8.0)}"' if self.chance(0.2) else ""
        flags = "".join(f' {flag}="disable"' for flag, probability in FLAGS.items() if self.chance(probability))
        return f"{text}><flag{flags}/></option>"

    def floor(self) -> str:
        return f'<geom type="plane" size="3 3 1" {TOUCHES["plane"]}{self.condim()}/>' if self.chance(0.75) else ""

    def fixed_geom(self) -> str:
        kind = self.one_of("sphere", "capsule", "box", "cylinder", "plane")
        return (
            f'<geom type="{kind}" size="{self.size(kind, 3.0)}" pos="{self.vector(0.3)}"{self.turn()} {TOUCHES[kind]}'
            f"{self.condim()}{self.maybe(0.2, 'margin', (0, 0.02))}/>"
        )

    def size(self, kind: str, scale: float = 1.0) -> str:
        """Size of a geom: its numbers are those of a small one times `scale`."""
        one, two = (0.03 * scale, 0.1 * scale), (0.03 * scale, 0.15 * scale)
        ranges = {"sphere": (one,), "capsule": (one, two), "cylinder": (one, one), "plane": ((1, 1),) * 3}
        return self.numbers(*ranges.get(kind, (one, one, one)))

    def condim(self) -> str:
        return f' condim="{self.one_of(1, 3, 4, 6)}"' if self.chance(0.4) else ""

    def solver_parameters(self, suffix: str = "") -> str:
        """Time constant and damping ratio, or stiffness and damping, and impedance."""
        text = self.maybe(0.2, f"solref{suffix}", (0.005, 0.05), (0.3, 1.5))
        if not text and self.chance(0.05):
            text = f' solref{suffix}="-{self.number(100, 2000)} -{self.number(1, 50)}"'
        return text + self.maybe(0.15, f"solimp{suffix}", (0.5, 0.9), (0.91, 0.99), (0.0005, 0.01), (0.2, 0.8), (1, 4))

    def geom(self) -> str:
        shapes = ("sphere", "sphere", "capsule", "capsule", "cylinder", "box", "ellipsoid")
        name, kind = f"g{len(self.geoms)}", self.one_of(*shapes)
        self.geoms[name] = kind
        touches = TOUCHES.get(kind, FLOOR_ONLY)
        if kind in ("sphere", "capsule") and self.chance(0.4):
            touches = FLOOR_ONLY
        text = f'<geom name="{name}" type="{kind}" size="{self.size(kind)}" pos="{self.vector(0.05)}"{self.turn()}'
        text += f" {touches}{self.condim()}{self.maybe(0.5, 'friction', (0.1, 2), (0.001, 0.1), (0.0001, 0.02))}"
        text += self.maybe(0.2, "margin", (0, 0.03)) + self.maybe(0.1, "gap", (0, 0.01)) + self.solver_parameters()
        text += self.maybe(0.1, "solmix", (0.1, 3)) + self.maybe(0.2, "density", (200, 3000))
        text += ' priority="1"' if self.chance(0.1) else ""
        text += ' fluidshape="ellipsoid"' if self.chance(0.2) else ""
        return f"{text}/>"

    def joint(self, kind: str) -> str:
        name, straight = f"j{len(self.joints)}", kind == "slide"
        self.joints[name] = kind
        text = f'<joint name="{name}" type="{kind}"'
        text += self.maybe(0.5, "damping", (0, 1)) + self.maybe(0.4, "armature", (0, 0.1))
        text += self.maybe(0.3, "frictionloss", (0, 0.5))
        if kind == "ball":
            return f"{text}/>"
        text += f' axis="{self.vector(1.0)}"' + self.maybe(0.3, "stiffness", (0, 20))
        text += f' pos="{self.vector(0.05)}"' if not straight and self.chance(0.4) else ""
        text += self.maybe(0.3, "springref", (-0.5, 0.5))
        if self.chance(0.5):
            text += f' range="{self.around_zero(*((0.1, 1) if straight else (10, 90)))}"'
            text += self.maybe(0.3, "margin", (0, 0.1)) + self.solver_parameters("limit")
        if self.chance(0.1):
            text += f' actuatorfrcrange="{self.around_zero(0.5, 3)}"'
        return f"{text}/>"

    def body(self, depth: int) -> str:
        name = f"b{len(self.bodies)}"
        self.bodies.append(name)
        place = self.vector(0.15) if depth else f"0 0 {self.number(0.1, 0.4)}"
        text = f'<body name="{name}" pos="{place}"{self.turn() if self.chance(0.3) else ""}>'
        if depth == 0 and self.chance(0.5):
            text += "<freejoint/>" if self.chance(0.7) else self.joint("ball")
        else:
            kinds = [self.one_of("hinge", "hinge", "slide") for _ in range(self.one_of(1, 1, 2))]
            text += "".join(self.joint(kind) for kind in kinds)
        text += self.geom() + (self.geom() if self.chance(0.3) else "")
        if self.chance(0.6):
            site = f"s{len(self.sites)}"
            self.sites.append(site)
            text += f'<site name="{site}" pos="{self.vector(0.08)}"{self.turn()}/>'
        while self.chance(0.5) and len(self.bodies) < MOST_BODIES and depth < DEEPEST:
            text += self.body(depth + 1)
        return f"{text}</body>"

    def hinges_and_slides(self) -> list[str]:
        return [name for name, kind in self.joints.items() if kind != "ball"]

    def fixed_tendon(self) -> str:
        if not (joints := self.hinges_and_slides()) or not self.chance(0.35):
            return ""
        self.tendons.append("fixed")
        chosen = self.rng.permutation(joints)[: self.one_of(1, 2, 3)]
        text = '<fixed name="fixed"' + self.maybe(0.5, "stiffness", (0, 10)) + self.maybe(0.5, "damping", (0, 1))
        text += f' range="{self.around_zero(0.1, 0.6)}"' if self.chance(0.5) else ""
        text += self.maybe(0.2, "springlength", (-0.2, 0.1), (0.1, 0.4))
        return (
            text + ">" + "".join(f'<joint joint="{name}" coef="{self.number(-2, 2)}"/>' for name in chosen) + "</fixed>"
        )

    def spatial_tendon(self) -> str:
        if not self.sites or not self.chance(0.35):
            return ""
        self.tendons.append("spatial")
        path = [self.one_of(*self.sites), "anchor", *([self.one_of(*self.sites)] if self.chance(0.4) else [])]
        text = '<spatial name="spatial"' + self.maybe(0.5, "stiffness", (0, 50)) + self.maybe(0.5, "damping", (0, 2))
        text += f' range="0 {self.number(0.1, 0.6)}"' if self.chance(0.5) else ""
        text += self.maybe(0.3, "springlength", (0, 0.2), (0.2, 0.5))
        return text + ">" + "".join(f'<site site="{name}"/>' for name in path) + "</spatial>"

    def equality(self) -> str:
        text, joints = "", self.hinges_and_slides()
        if len(joints) > 1 and self.chance(0.15):
            bent = self.numbers((-0.2, 0.2), (-1, 1), (-0.5, 0.5))
            text += (
                f'<joint joint1="{joints[0]}" joint2="{joints[1]}" polycoef="{bent} 0 0"{self.solver_parameters()}/>'
            )
        if self.chance(0.15):
            text += f'<connect body1="{self.one_of(*self.bodies)}" anchor="{self.vector(0.1)}"/>'
        if self.chance(0.1):
            text += f'<weld body1="{self.one_of(*self.bodies)}"{self.maybe(0.5, "torquescale", (0.1, 2))}/>'
        if self.tendons and self.chance(0.1):
            text += f'<tendon tendon1="{self.tendons[0]}" polycoef="{self.number(-0.2, 0.2)} 1 0 0 0"/>'
        return text

    def contact(self) -> str:
        text = ""
        if len(self.bodies) > 1 and self.chance(0.1):
            text += f'<exclude body1="{self.bodies[0]}" body2="{self.bodies[1]}"/>'
        round_ones = [name for name, kind in self.geoms.items() if kind in ("sphere", "capsule")]
        if len(round_ones) > 1 and self.chance(0.2):
            frictions = ((0.1, 2), (0.1, 2), (0.001, 0.1), (0.0001, 0.02), (0.0001, 0.02))
            text += f'<pair geom1="{round_ones[0]}" geom2="{round_ones[1]}"{self.condim()}'
            text += self.maybe(0.5, "friction", *frictions) + self.maybe(0.3, "margin", (0, 0.02)) + "/>"
        return text

    def actuator(self) -> str:
        joints = self.hinges_and_slides()
        if self.tendons and self.chance(0.25):
            target = f'tendon="{self.one_of(*self.tendons)}"'
        elif joints:
            target = f'joint="{self.one_of(*joints)}"'
        else:
            return ""
        target += self.maybe(0.5, "gear", (-3, 3))
        limits = f' ctrlrange="{self.around_zero(0.3, 1)}"' if self.chance(0.5) else ""
        limits += f' forcerange="{self.around_zero(0.3, 3)}"' if self.chance(0.4) else ""
        kind = self.one_of("motor", "position", "velocity", "damper", "intvelocity", "general", "general")
        if kind == "motor":
            return f"<motor {target}{limits}/>"
        if kind == "position":
            damped = self.maybe(0.5, "kv", (0, 3)) or self.maybe(0.3, "dampratio", (0.2, 1.5))
            slow = self.maybe(0.2, "timeconst", (0.01, 0.2))
            return f'<position {target}{limits} kp="{self.number(1, 50)}"{damped}{slow}/>'
        if kind == "velocity":
            return f'<velocity {target}{limits} kv="{self.number(0.1, 3)}"/>'
        if kind == "damper":
            return f'<damper {target} kv="{self.number(0.1, 2)}" ctrlrange="0 1"/>'
        if kind == "intvelocity":
            return f'<intvelocity {target} kp="{self.number(1, 20)}" actrange="-1 1"{self.maybe(0.5, "kv", (0, 2))}/>'
        dynamics = self.one_of("none", "integrator", "filter", "filterexact")
        text = f'<general {target}{limits} dyntype="{dynamics}" gaintype="{self.one_of("fixed", "affine")}"'
        text += f' gainprm="{self.numbers((-3, 3), (-1, 1), (-1, 1))}"'
        if self.chance(0.6):
            text += f' biastype="affine" biasprm="{self.numbers((-1, 1), (-5, 0), (-1, 0))}"'
        if dynamics != "none":
            text += f' dynprm="{self.number(0.01, 0.3)}"'
            text += f' actrange="{self.around_zero(0.2, 1)}" actlimited="true"' if self.chance(0.5) else ""
        return f"{text}/>"
