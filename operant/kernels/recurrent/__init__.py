"""Networks with a memory that learn from a rollout in a few Triton kernels: what `operant.nn.cells` and the dense
layers around it compute, forward and back.

Encoder, heads, reduction and Adam are those of `operant.kernels.dense`. What imports Triton is imported only where it
is used. Knows no algorithm.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from operant.errors import ConfigError
from operant.kernels import dense
from operant.kernels.recurrent.shape import States, describe, reason_for_torch, unsupported_reason

if TYPE_CHECKING:
    from operant.kernels.recurrent.learner import RecurrentLearner

__all__ = ["RecurrentLearner", "States", "build", "describe", "quicken"]

log = logging.getLogger("operant.kernels")

NARROW = 64
"""Units of an LSTM whose weights a program of `quicken`'s kernels holds."""


def build(task: dense.Task, *, kernels: str, precision: str, states: States) -> RecurrentLearner | None:
    """As `operant.kernels.dense.build`, of a policy with a memory: the task's layout and order are those of segments.

    The tile config follows from the shapes alone, and with it the bits.
    """
    policy, (steps, lanes) = task.policy, task.buffers.rollout.reward.shape
    if kernels == "torch" or (kernels == "auto" and policy.device.type != "cuda"):
        return None
    found: RecurrentLearner | str | None = unsupported_reason(policy, (steps + 1) * lanes) or dense.machine_reason(
        policy.device, precision
    )
    found = (
        found
        or (reason_for_torch(policy, precision) if kernels == "auto" else None)
        or _learner(task, precision, states)
    )
    if not isinstance(found, str):
        log.info("kernels: fused, with a memory, %s", found.config)
        found.connect()
        return found
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" is not possible: {found} (use "auto" or "torch")'])
    log.info("kernels: torch instead of fused: %s", found)
    return None


def quicken(net: nn.Module, device: torch.device) -> None:
    """Let a network's LSTMs go through their steps in two launches on a GPU, where they can, while torch does
    the rest.
    """
    narrow: list[Any] = [
        part
        for part in net.modules()
        if getattr(part, "kind", "") == "lstm" and getattr(part, "units", NARROW + 1) <= NARROW
    ]
    if device.type != "cuda" or not narrow:
        return
    reason = dense.machine_reason(device, "fp32") or _quickened(narrow, device)
    if reason is not None:
        log.info("kernels: torch's for the steps of an LSTM, too: %s", reason)
        return
    log.info("kernels: our own for the steps of an LSTM")


def _quickened(memories: list[Any], device: torch.device) -> str | None:
    """Why they cannot be."""
    from operant.kernels.recurrent import lstm

    reason = lstm.Rehearsal(memories[0].units, device).unsupported_reason("fp32")
    if reason is None:
        for memory in memories:
            memory.lstm_function = lstm.Steps
    return reason


def _learner(task: dense.Task, precision: str, states: States) -> RecurrentLearner | str:
    """The kernels, or why they cannot be on this machine."""
    from operant.kernels.recurrent.learner import RecurrentLearner, tile_config

    policy, on_gpu = task.policy, task.policy.device.type == "cuda"
    if states.starts.numel() >= 1 << 31:
        return f"the states before the segments of an iteration are {states.starts.numel():,} numbers, more than 2^31"
    spec, shape = describe(policy, precision if on_gpu else "fp32", task.layout.length, task.layout.block)
    problem = ""
    for small in (False, True):
        config = tile_config(spec, shape, task.layout, task.chunks, small=small)
        if isinstance(config, str):
            return config
        learner = RecurrentLearner(spec, task, config, shape.lean() if small else shape, states)
        reason = learner.unsupported_reason(precision) if on_gpu else None
        if reason is None:
            return learner
        problem = reason
    return problem
