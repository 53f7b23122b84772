"""PPO's fast path: acting and learning in a few Triton kernels, by `operant.kernels.dense`.

`backends.TorchBackend` is the specification that this is checked against: the same buffers, the same noise, the same
order of minibatches, and no sum of floats whose order could change. `loss` and `statistics` are PPO's own Triton
functions, `work` launches them. What imports Triton is imported only where it is used, so that a run without it does
not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from operant.algos.ppo.fused.buffers import Buffers, Coefficients
from operant.kernels import dense
from operant.kernels.dense import build, config_text

if TYPE_CHECKING:
    from operant.kernels.dense import Learner
from operant.nn import SOLO, Adam, Exchange, Policy

__all__ = ["Buffers", "Coefficients", "Learner", "agreed", "build", "config_text", "task"]

WRITTEN = ("raw", "samples", "final_value", "iteration", "skip", "learning_rate", "stats")
"""Buffers that the kernels write."""


def task(
    policy: Policy,
    optimizer: Adam,
    buffers: Buffers,
    coefficients: Coefficients,
    layout: Any,
    chunks: int | None = None,
    exchange: Exchange = SOLO,
) -> dense.Task:
    """What is to run fused; `layout` is that of the minibatches, `chunks` those of all ranks."""
    return dense.Task(
        "ppo",
        policy,
        optimizer,
        buffers,
        coefficients,
        layout,
        _work,
        WRITTEN,
        chunks and chunks // exchange.ranks,
        exchange,
    )


def agreed(task: dense.Task, kernels: str, precision: str, config: str) -> Learner | None:
    """As `build`; of several ranks the first chooses the tile config for all, since sums depend on it."""
    exchange = task.exchange
    learner = build(task, kernels=kernels, precision=precision, config=config) if exchange.rank == 0 else None
    if exchange.ranks > 1:
        text = exchange.agree("" if learner is None else config_text(learner))
        if exchange.rank > 0 and text:
            learner = build(task, kernels=kernels, precision=precision, config=text)
    if learner is not None:
        learner.connect()
    return learner


def _work(learner: Learner) -> dense.Work:
    from operant.algos.ppo.fused.work import PPOWork

    return PPOWork(learner)
