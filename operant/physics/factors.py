"""Factors by which a lane scales parameters of its model, as device functions. A lane's factor is 1 after a reset. One
that a model does not scale costs nothing.

What MuJoCo derives from masses and armature at the model's initial pose (`mj_setConst`), inverse weights, follows the
factors: with M = L L', the eigenvalues p and vectors Q of L^-1 M_masses L^-T and u = Q' L^-1 J', the inertia for masses
times s and armature times a gives J M^-1 J' = sum_i u_i^2 / (1 + (s - 1) p_i + (a - 1) (1 - p_i)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from operant.compute.device import device
from operant.physics import constants as c
from operant.physics import smooth
from operant.physics.layout import Layout
from operant.physics.model import Model
from operant.physics.trace import Number


def factor(lay: Layout, name: str, real: Any) -> Any:
    """Make the device function (w) that returns a lane's factor of a parameter, 1 where it is not scaled."""
    at, one = lay.at.get(f"scale {name}"), real(1.0)
    if at is None:

        @device
        def none(w):
            return one

        return none

    @device
    def of_lane(w):
        return w[at]

    return of_lane


def entries(lay: Layout, name: str, real: Any) -> Any:
    """Make the device function (w, k) that returns entry k of the part `name` of the scratch, or -0 if the layout lacks
    that part.
    """
    at, nothing = lay.at.get(name), real(-0.0)  # a compiler removes x + -0.0 but not x + 0.0, which turns -0.0 into 0.0

    @device
    def none(w, k):
        return nothing

    if at is None:
        return none

    @device
    def change(w, k):
        return w[at + k]

    return change


@dataclass(frozen=True)
class InverseWeights:
    """Inverse weights at the initial pose, by their parts u^2 in the modes of the inertia."""

    share: np.ndarray  # (nv,) part of a mode's inertia that comes from masses; the rest is armature
    body: np.ndarray  # (nbody, nv) of each body's translations
    dof: np.ndarray  # (nv, nv)
    tendon: np.ndarray  # (ntendon, nv)

    def change(self, parts: np.ndarray, mass: Number, armature: Number) -> Number:
        """Difference of an inverse weight from the model's for factors of mass and armature, as a formula."""
        total: Number = 0.0
        for part, p in zip(parts, self.share, strict=True):
            # 1 / (1 + y) - 1 = -y / (1 + y)
            y = (mass - 1.0) * float(p) + (armature - 1.0) * float(1.0 - p)
            total = total + float(part) * (-y / (1.0 + y))
        return total


def inverse_weights(m: Model) -> InverseWeights:
    """Inverse weights of a model, as MuJoCo computes them (`mj_setConst`)."""
    state = smooth.kinematics(m, [float(x) for x in m.qpos0])
    smooth.centres(m, state)
    smooth.mass_matrix(m, state)
    inertia = np.zeros((m.nv, m.nv))
    for (i, j), entry in state.M.items():
        inertia[i, j] = inertia[j, i] = entry
    lower = np.linalg.cholesky(inertia)
    scaled = np.linalg.solve(lower, np.linalg.solve(lower, inertia - np.diag(m.dof_armature)).T)
    share, modes = np.linalg.eigh(scaled)

    def parts(jacobian: np.ndarray) -> np.ndarray:
        """Mean of u^2 over the rows of a Jacobian, (nv,)."""
        return np.asarray(np.mean((np.linalg.solve(lower, jacobian.T).T @ modes) ** 2, axis=0))

    axes = np.array(state.cdof, float).reshape(m.nv, 6)
    body = np.zeros((m.nbody, m.nv))
    for k in range(1, m.nbody):
        turns, moves = np.zeros((3, m.nv)), np.zeros((3, m.nv))
        offset = np.subtract(state.xipos[k], state.subtree_com[m.body_rootid[k]])
        for dof in smooth.moving_dofs(m, k):
            turns[:, dof] = axes[dof, :3]
            moves[:, dof] = axes[dof, 3:] + np.cross(axes[dof, :3], offset)
        body[k] = parts(moves)
        if body[k].sum() < c.MINVAL:  # one that only turns
            body[k] = parts(turns)
    dofs = np.stack([parts(row[None]) for row in np.eye(m.nv)]) if m.nv else np.zeros((0, 0))
    for joint in range(m.njnt):
        first = int(m.jnt_dofadr[joint])
        for k in {c.FREE: (0, 3), c.BALL: (0,)}.get(int(m.jnt_type[joint]), ()):
            dofs[first + k : first + k + 3] = dofs[first + k : first + k + 3].mean(axis=0)
    smooth.tendons(m, state, [float(x) for x in m.qpos0], [0.0] * m.nv)
    moments = np.zeros((m.ntendon, m.nv))
    for k, moment in enumerate(state.ten_moment):
        moments[k, list(moment)] = list(moment.values())
    tendon = np.stack([parts(row[None]) for row in moments]) if m.ntendon else moments
    return InverseWeights(np.clip(share, 0.0, 1.0), body, dofs, tendon)
