"""PQN's fast path: acting and learning in a few Triton kernels, by `operant.kernels.dense`.

`backends.TorchBackend` is the specification that this is checked against: the same buffers, the same noise, the same
order of minibatches. `loss` and `statistics` are PQN's own Triton functions, `work` launches them. What imports Triton
is imported only where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from operant.algos.pqn.fused.buffers import Buffers, Coefficients
from operant.kernels import dense
from operant.kernels.dense import build
from operant.nn import Adam, QPolicy

if TYPE_CHECKING:
    from operant.kernels.dense import Learner

__all__ = ["Buffers", "Coefficients", "Learner", "build", "task"]

WRITTEN = ("samples", "final_value", "iteration", "skip", "learning_rate", "stats")
"""Buffers that the kernels write."""


def task(policy: QPolicy, optimizer: Adam, buffers: Buffers, coefficients: Coefficients, layout: Any) -> dense.Task:
    """What is to run fused; `layout` is that of the minibatches."""
    return dense.Task("pqn", policy, optimizer, buffers, coefficients, layout, _work, WRITTEN, boards=True)


def _work(learner: Learner) -> dense.Work:
    from operant.algos.pqn.fused.work import PQNWork

    return PQNWork(learner)
