"""Kinematic trees that constraint rows touch: the solvers scale costs and gradients by their inertia."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import int32

from operant.compute.device import device
from operant.physics.layout import Layout
from operant.physics.model import Model
from operant.physics.rows import PLACES, Contacts
from operant.physics.sparse import Pattern
from operant.physics.tables import table


def scale_of_trees(
    m: Model, lay: Layout, hessian: Pattern, contacts: Contacts, loss_dof: Any, losses: int, real: Any
) -> Any:
    """Make the device function (w, limits, contacts) that returns 1 / sum of M's diagonal over the trees that a row
    touches, and writes the unconstrained acceleration of the others. `loss_dof` is the table of the `losses` dofs with
    dry friction.
    """
    X, AS, M = (lay.at[name] for name in ("qacc", "qacc_smooth", "M"))
    LDOF, CPAIR = lay.at["limit dof"], lay.at["contact pair"]
    nv, chain, trees = m.nv, lay.chain, int(m.ntree)
    places, dofs = contacts.places, contacts.dofs
    diagonal = table(np.array([hessian.mass[i, i] for i in range(nv)], int32))
    tree = table(m.dof_treeid.astype(int32))
    zero, one = real(0.0), real(1.0)

    @device
    def scale_of(w, nl, nc):
        if trees == 1:
            total = zero
            for i in range(nv):
                total += w[M + diagonal(i)]
            return one / total
        touched = 0
        for k in range(losses):
            touched |= 1 << tree(loss_dof(k))
        for k in range(nl):
            touched |= 1 << tree(int(abs(w[LDOF + k])) - 1)
        for k in range(nc):
            pair = int(w[CPAIR + k])
            for a in range(places(PLACES * pair + 6)):
                touched |= 1 << tree(dofs(chain * pair + a))
        total = zero
        for i in range(nv):
            if (touched >> tree(i)) & 1:
                total += w[M + diagonal(i)]
            else:
                w[X + i] = w[AS + i]
        return one / total

    return scale_of
