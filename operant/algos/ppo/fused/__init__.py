"""PPO's fast path: acting and learning in a few Triton kernels, by `operant.kernels.dense`.

`backends.TorchBackend` is the specification that this is checked against: the same buffers, the same noise, the same order of minibatches, and no sum
of floats whose order could change. `loss` and `statistics` are PPO's own Triton functions, `work` launches them. What imports Triton is imported only where
it is used, so that a run without it does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from operant.algos.ppo.fused.buffers import Buffers, Coefficients
from operant.kernels import dense
from operant.kernels.dense import build

if TYPE_CHECKING:
    from operant.kernels.dense import Learner
from operant.nn import Adam, Policy

__all__ = ["Buffers", "Coefficients", "Learner", "build", "task"]

WRITTEN = ("raw", "samples", "final_value", "iteration", "skip", "learning_rate", "stats")
"""Buffers that the kernels write."""


def task(policy: Policy, optimizer: Adam, buffers: Buffers, coefficients: Coefficients, layout: Any, chunks: int | None = None) -> dense.Task:
    """What is to run fused; `layout` is that of the minibatches."""
    return dense.Task("ppo", policy, optimizer, buffers, coefficients, layout, _work, WRITTEN, chunks)


def _work(learner: Learner) -> dense.Work:
    from operant.algos.ppo.fused.work import PPOWork

    return PPOWork(learner)
