"""Collision functions against MuJoCo's own, from random, touching, parallel and degenerate poses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from operant.physics import collide

mujoco = pytest.importorskip("mujoco")

MARGIN = 0.05
SIZES = {
    "plane": "1 1 1",
    "sphere": "0.31",
    "capsule": "0.17 0.43",
    "ellipsoid": "0.21 0.34 0.47",
    "cylinder": "0.27 0.36",
    "box": "0.22 0.33 0.41",
}
SQUARE = [[1.0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [0.5**0.5, 0.5**0.5, 0, 0], [0.5**0.5, 0, 0.5**0.5, 0], [0, 1.0, 0, 0]]
POSES = 400
PLAIN = {("plane", "sphere"), ("plane", "capsule")}
"""Pairs with every run of the tests: each compiles for a second or two."""


class Pair:
    """MuJoCo's model of two free bodies with one geom each; a plane belongs to the world."""

    def __init__(self, pair: tuple[str, str]) -> None:
        geoms = [f'<geom type="{kind}" size="{SIZES[kind]}" margin="{MARGIN / 2}"/>' for kind in pair]
        bodies = [
            geom if kind == "plane" else f"<body><freejoint/>{geom}</body>"
            for kind, geom in zip(pair, geoms, strict=True)
        ]
        xml = f'<mujoco><option gravity="0 0 0"/><worldbody>{"".join(bodies)}</worldbody></mujoco>'
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(self.model)
        self.movable = self.model.nq // 7

    def contacts(self, qpos: np.ndarray) -> np.ndarray:
        """MuJoCo's contacts, (n, 10): distance, position, normal and first tangent."""
        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_collision(self.model, self.data)
        found = [[c.dist, *c.pos, *c.frame[:6]] for c in self.data.contact]
        return np.array(found).reshape(-1, 10)

    def poses(self) -> np.ndarray:
        """Poses of both geoms for the tested function, (24)."""
        return np.concatenate([np.concatenate([self.data.geom_xpos[k], self.data.geom_xmat[k]]) for k in range(2)])


def _quaternions(generator: np.random.Generator) -> Iterator[list[float]]:
    """Orientations: random ones, and those along the axes, for which geoms are parallel."""
    for k in itertools.count():
        if k % 4 > 1:
            q = generator.normal(size=4)
            yield list(q / np.linalg.norm(q))
        else:
            yield SQUARE[generator.integers(len(SQUARE))]


def _states(pair: Pair, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    quaternions = _quaternions(generator)
    for k in range(POSES):
        reach = (0.3, 0.6, 0.9)[k % 3]
        yield np.concatenate(
            [
                [*(generator.uniform(-reach, reach, 3) if k % 17 else np.zeros(3)), *next(quaternions)]
                for _ in range(pair.movable)
            ]
        )


def _ours(pair: tuple[str, str], poses: np.ndarray, sizes: np.ndarray, real: Any) -> np.ndarray:
    out = np.zeros(10 * collide.MOST[pair], real)
    arguments = poses.astype(real), 0, 12, sizes.astype(real).ravel(), 0, 1, real(MARGIN), out, 0
    count = collide.FUNCTIONS[pair](*arguments)
    return out.reshape(-1, 10)[:count]


def _framed(contacts: np.ndarray) -> np.ndarray:
    """Contacts with the tangent that MuJoCo derives from the preferred one (mju_makeFrame)."""
    framed = contacts.copy()
    for row in framed:
        normal, tangent = row[4:7], row[7:10]
        if np.linalg.norm(tangent) < 0.5:
            tangent = np.array([0.0, 1, 0]) if -0.5 < normal[1] < 0.5 else np.array([0.0, 0, 1])
        tangent = tangent - normal * (normal @ tangent)
        length = np.linalg.norm(tangent)
        row[7:10] = tangent / length if length >= 1e-15 else (1.0, 0.0, 0.0)
    return framed


@pytest.mark.parametrize(
    "pair",
    [pair if pair in PLAIN else pytest.param(pair, marks=pytest.mark.slow) for pair in collide.MOST],
    ids="-".join,
)
def test_contacts_equal_mujocos_in_float64(pair):
    reference, counts = Pair(pair), []
    for qpos in _states(reference, 1):
        expected = reference.contacts(qpos)
        ours = _framed(_ours(pair, reference.poses(), reference.model.geom_size, np.float64))
        assert len(ours) == len(expected), qpos
        assert np.abs(ours - expected).max(initial=0.0) <= 1e-12, (qpos, ours, expected)
        counts.append(len(ours))
    print(pair, np.bincount(counts))
    assert np.count_nonzero(counts) > 0.1 * POSES
    assert max(counts) == collide.MOST[pair]


@pytest.mark.slow
@pytest.mark.parametrize("pair", collide.MOST, ids="-".join)
def test_contacts_are_close_to_mujocos_in_float32(pair):
    """Random orientations: exactly parallel geoms are ties, which rounding decides."""
    reference, generator, errors = Pair(pair), np.random.default_rng(2), []
    for _ in range(POSES):
        qpos = np.concatenate(
            [[*generator.uniform(-0.6, 0.6, 3), *generator.normal(size=4)] for _ in range(reference.movable)]
        )
        expected = reference.contacts(qpos)
        ours = _ours(pair, reference.poses(), reference.model.geom_size, np.float32)
        assert ours.dtype == np.float32
        if len(ours) == len(expected):
            errors.append(np.abs(ours[:, :7] - expected[:, :7]).max(initial=0.0))
    assert len(errors) >= 0.99 * POSES
    assert np.quantile(errors, 0.99) <= 1e-5, np.sort(errors)[-10:]
