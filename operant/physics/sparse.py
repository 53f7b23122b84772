"""Sparse symmetric matrices over the dofs: patterns, and their factorisation and solution as formulas for `trace`.

A = L' D L without pivoting, from the last dof to the first (Featherstone 2008, section 6.5): a kinematic tree causes no
fill-in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from operant.physics.model import Model
from operant.physics.smooth import ancestors
from operant.physics.trace import Number, greatest

Matrix = dict[tuple[int, int], Number]
"""Lower triangle of a symmetric matrix: entries (i, j <= i) that can differ from 0."""


@dataclass(frozen=True)
class Pattern:
    """Sparsity pattern: the index of each stored entry (row, column) of the lower triangle, in storage order. `mass` is
    that of the mass matrix M; `places` that of the constraint problem's Hessian M + J' D J with the fill-in of its
    factor.
    """

    mass: dict[tuple[int, int], int]
    places: dict[tuple[int, int], int]


def find_pattern(m: Model, cliques: Iterable[Iterable[int]]) -> Pattern:
    """Pattern for a model whose constraints couple the dofs of each clique."""
    mass = [(i, j) for i in range(m.nv) for j in sorted([i, *ancestors(m, i)])]
    found = set(mass)
    for clique in cliques:
        dofs = sorted(clique)
        found |= {(i, j) for i in dofs for j in dofs if j <= i}
    for k in range(m.nv - 1, -1, -1):
        before = [j for j in range(k) if (k, j) in found]
        found |= {(i, j) for i in before for j in before if j <= i}
    return Pattern({key: k for k, key in enumerate(mass)}, {key: k for k, key in enumerate(sorted(found))})


def factor(a: Matrix, n: int, least_pivot: float = 0.0) -> Matrix:
    """L (off the diagonal) and 1 / D (on it) of a matrix of n rows."""
    a = dict(a)
    for k in range(n - 1, -1, -1):
        pivot = greatest(a[k, k], least_pivot) if least_pivot else a[k, k]
        inverse = a[k, k] = 1.0 / pivot
        before = [j for j in range(k) if (k, j) in a]
        for i in reversed(before):
            ratio = a[k, i] * inverse
            for j in before:
                if j <= i:
                    a[i, j] = a[i, j] - ratio * a[k, j]
            a[k, i] = ratio
    return a


def solve(ld: Matrix, n: int, b: list[Number]) -> list[Number]:
    """Solution x of L' D L x = b."""
    x = solve_transposed(ld, n, b)
    for k in range(n):
        x[k] = x[k] * ld[k, k]
        for i in range(k):
            if (k, i) in ld:
                x[k] = x[k] - ld[k, i] * x[i]
    return x


def solve_transposed(ld: Matrix, n: int, b: list[Number]) -> list[Number]:
    """Solution x of L' x = b."""
    x = list(b)
    for k in range(n - 1, -1, -1):
        for i in range(k):
            if (k, i) in ld:
                x[i] = x[i] - ld[k, i] * x[k]
    return x


def times(a: Matrix, n: int, x: list[Number]) -> list[Number]:
    """Product of a symmetric matrix and a vector."""
    y: list[Number] = [0.0] * n
    for (i, j), entry in a.items():
        y[i] = y[i] + entry * x[j]
        if i != j:
            y[j] = y[j] + entry * x[i]
    return y
