"""Networks of dense layers that learn from a rollout in a few Triton kernels in place of torch's many: acting,
gradients, and steps of Adam.

An algorithm hands over a `Task`: its buffers, its loss and its other Triton functions. `select` takes the fastest tile
config; `learner`, `resident` and `per_layer` launch; the kernels are `operant.kernels`, generated from a spec when they
are compiled. What imports Triton is imported only where it is used, so that a run without it does not wait for it.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from operant.errors import ConfigError
from operant.kernels import spec as kernel_spec
from operant.kernels.dense.task import Task, Work
from operant.kernels.tiles import TileConfig, from_text

if TYPE_CHECKING:
    from operant.kernels.dense.learner import Learner
    from operant.kernels.dense.select import Seconds

__all__ = ["Learner", "Seconds", "Task", "Work", "build", "config_text", "machine_reason"]

FIRST = "first"
"""The tile config that is likely the best, without a measurement: to compare bits of runs that begin anew."""

log = logging.getLogger("operant.kernels")


def build(
    task: Task, *, kernels: str, precision: str, config: str = "", measure: Seconds | None = None
) -> Learner | None:
    """A policy's fused kernels over an algorithm's buffers, or None where torch is to do the work: `kernels` is "auto",
    "torch" or "fused".

    `config` is the line of a tile config that a run has begun with and so keeps; or "first", which is the same at every
    start; or "", the fastest as `measure` finds it (by default on a GPU, never on a CPU). One line of the log says
    which, or where "auto" finds a GPU but cannot, why not. Raises ConfigError where "fused" cannot, and for a line that
    is not a tile config, or any line where kernels for boards would run, which have none.
    """
    policy, (steps, lanes) = task.policy, task.buffers.rollout.reward.shape
    on_gpu = policy.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    board = task.boards and kernel_spec.is_convolutional(policy)
    reason = (None if board else kernel_spec.unsupported_reason(policy, (steps + 1) * lanes)) or machine_reason(
        policy.device, precision
    )
    learner: Learner | None
    if reason is None and board:
        from operant.kernels.dense.board import build as build_for_board

        learner, reason = build_for_board(task, precision if on_gpu else "fp32")
        if learner is not None and config not in ("", FIRST):
            raise ConfigError(
                "the trainer",
                [
                    f'algo.kernel_config = "{config}": fused kernels for boards have no tile config to choose; '
                    "leave it out"
                ],
            )
        if learner is not None:
            return learner
    elif reason is None:
        from operant.kernels.dense.select import Selection

        spec = kernel_spec.describe(policy, precision if on_gpu else "fp32")
        selection = Selection(spec, task)
        learner = (
            selection.first() if config == FIRST else selection.learner(_given(config, task.exchange.ranks), measure)
        )
        if learner is not None:
            return learner
        reason = selection.problem
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" cannot be: {reason} (use "auto" or "torch")'])
    log.info("kernels: torch's, not fused ones: %s", reason)
    return None


def _given(line: str, ranks: int) -> TileConfig | None:
    try:
        found = from_text(line) if line else None
    except ValueError as error:
        raise ConfigError("the trainer", [f"algo.kernel_config: {error}"]) from None
    return found and replace(found, chunks=found.chunks // ranks)


def config_text(learner: Learner) -> str:
    """The line of a learner's tile config as a run keeps it: with the chunks of all ranks."""
    return str(replace(learner.config, chunks=learner.config.chunks * learner.task.exchange.ranks))


def machine_reason(device: torch.device, precision: str) -> str | None:
    """The sentence that says why there are no fused kernels on this machine, or None where there are."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda":
        return "there is no GPU" if os.environ.get("TRITON_INTERPRET") != "1" else None
    if torch.cuda.get_device_capability(device) < (8, 0) and precision != "fp32":
        return f'a GPU older than Ampere has no {precision} products (algo.precision = "fp32" works)'
    return None
