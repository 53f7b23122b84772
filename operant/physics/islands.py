"""Constraint islands: groups of kinematic trees that constraint rows couple, as device functions for one model.

The solvers treat every island as a separate problem, with a separate scale, step and end, as MuJoCo does from version
3.3.6 unless the flag `island` is disabled ("Computation: constraint islands", `mj_island`). The exact solution is the
same together or apart; the point within the tolerance at which an iteration stops is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import int32

from operant.compute.device import device, device_call
from operant.physics import constants as c
from operant.physics.layout import Layout
from operant.physics.model import Model
from operant.physics.rows import PLACES, Contacts
from operant.physics.sparse import Pattern
from operant.physics.tables import table


class Islands:
    """Device functions that find the constraint islands of a lane and their members.

    An island has the number of its first tree, so that a number from 0 to `most` - 1 names an island or nothing. A
    model of one tree has island 0 only, and so has one that disables islands. `loss_dof` is the table of the `losses`
    dofs with dry friction.
    """

    find: Any  # (w, limits, contacts) -> islands as bits; writes scales, and qacc of the trees without a row
    holds: Any  # (w, island, dof) -> whether the island holds a dof
    holds_contact: Any  # (w, island, pair) -> whether the island holds the rows of a contact of a pair
    scale: Any  # (w, island) -> 1 / sum of M's diagonal over the island: factor of costs and gradients

    def __init__(
        self, m: Model, lay: Layout, hessian: Pattern, contacts: Contacts, loss_dof: Any, losses: int, real: Any
    ) -> None:
        X, AS, M = (lay.at[name] for name in ("qacc", "qacc_smooth", "M"))
        LDOF, CPAIR, ISLAND, SCALE = (lay.at[name] for name in ("limit dof", "contact pair", "island", "island scale"))
        nv, chain, off = m.nv, lay.chain, bool(m.opt_disableflags & c.NO_ISLAND)
        trees = 1 if off else max(int(m.ntree), 1)
        self.most = trees
        whole = real(1.0 / (m.stat_meaninertia * max(nv, 1)))
        places, dofs = contacts.places, contacts.dofs
        diagonal = table(np.array([hessian.mass[i, i] for i in range(nv)], int32))
        tree = table(m.dof_treeid.astype(int32))
        zero, one = real(0.0), real(1.0)

        @device
        def holds(w, island, dof):
            return trees == 1 or int(w[ISLAND + tree(dof)]) == island

        @device
        def holds_contact(w, island, pair):
            return trees == 1 or int(w[ISLAND + tree(dofs(chain * pair))]) == island

        @device
        def scale(w, island):
            return w[SCALE + island]

        @device_call
        def join(w, a, b):
            """Merge the islands of two trees, which take the lesser number."""
            first = int(w[ISLAND + a]) if w[ISLAND + a] >= zero else a
            second = int(w[ISLAND + b]) if w[ISLAND + b] >= zero else b
            least, other = min(first, second), max(first, second)
            w[ISLAND + a], w[ISLAND + b] = real(least), real(least)
            if least != other:
                for k in range(trees):
                    if w[ISLAND + k] == real(other):
                        w[ISLAND + k] = real(least)

        @device
        def find(w, nl, nc):
            if trees > 1:
                for k in range(trees):
                    w[ISLAND + k] = -one
                for k in range(losses):
                    join(w, tree(loss_dof(k)), tree(loss_dof(k)))
                for k in range(nl):
                    only = tree(int(abs(w[LDOF + k])) - 1)
                    join(w, only, only)
                for k in range(nc):
                    pair = int(w[CPAIR + k])
                    for a in range(places(PLACES * pair + 6)):
                        join(w, tree(dofs(chain * pair)), tree(dofs(chain * pair + a)))
            found = 0
            for island in range(trees):
                total = zero
                for i in range(nv):
                    if holds(w, island, i):
                        total += w[M + diagonal(i)]
                if total > zero:
                    w[SCALE + island] = whole if off else one / total
                    found |= 1 << island
            for i in range(nv):
                if trees > 1 and w[ISLAND + tree(i)] < zero:
                    w[X + i] = w[AS + i]
            return found

        self.find, self.holds, self.holds_contact, self.scale = find, holds, holds_contact, scale
