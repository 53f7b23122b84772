"""Fused Triton kernels for recurrent policies: forward and backward passes of `operant.nn.cells` and of the dense
layers around them, over rollouts.

A recurrent policy is an encoder (dense layers), recurrent layers (the *cells*), and a head (output layer). Samples are
segments: some consecutive steps of a lane. Encoder, head, reduction and Adam are those of `operant.kernels.dense`.
Modules that import Triton are imported on use.
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

__all__ = ["RecurrentLearner", "States", "build", "describe", "use_lstm_kernels"]

log = logging.getLogger("operant.kernels")

NARROW = 64
"""Largest LSTM, in units, whose weights one program of `lstm` holds."""


def build(task: dense.Task[Any, Any], *, kernels: str, precision: str, states: States) -> RecurrentLearner | None:
    """Create the kernels of a recurrent policy, or return None if torch runs it, as `operant.kernels.dense.build`.
    Layout and order of the task are those of segments.

    The tile config, and with it the bits, follow from the shapes alone.
    """
    policy, (steps, lanes) = task.policy, task.buffers.rollout.reward.shape
    if kernels == "torch" or (kernels == "auto" and policy.device.type != "cuda"):
        return None
    reason = unsupported_reason(policy, (steps + 1) * lanes) or dense.machine_reason(policy.device, precision)
    if reason is None and kernels == "auto":
        reason = reason_for_torch(policy, precision)
    learner = reason or _learner(task, precision, states)
    if not isinstance(learner, str):
        log.info("kernels: fused, with a memory, %s", learner.config)
        learner.connect()
        return learner
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" is not possible: {learner} (use "auto" or "torch")'])
    log.info("kernels: torch instead of fused: %s", learner)
    return None


def use_lstm_kernels(net: nn.Module, device: torch.device) -> None:
    """Use the kernels of `lstm` for the LSTMs of a network, if the device is a GPU that supports them. Torch computes
    the other layers.
    """
    narrow: list[Any] = [
        module
        for module in net.modules()
        if getattr(module, "kind", "") == "lstm" and getattr(module, "units", NARROW + 1) <= NARROW
    ]
    if device.type != "cuda" or not narrow:
        return
    reason = dense.machine_reason(device, "fp32") or _enable_lstm(narrow, device)
    if reason is not None:
        log.info("kernels: torch for the steps of the LSTM: %s", reason)
        return
    log.info("kernels: fused for the steps of the LSTM")


def _enable_lstm(memories: list[Any], device: torch.device) -> str | None:
    """Enable the kernels of `lstm` and return None, or return the reason why they are not supported."""
    from operant.kernels.recurrent import lstm

    reason = lstm.Warmup(memories[0].units, device).unsupported_reason("fp32")
    if reason is None:
        for memory in memories:
            memory.lstm_function = lstm.Steps
    return reason


def _learner(task: dense.Task[Any, Any], precision: str, states: States) -> RecurrentLearner | str:
    """Create the kernels, or return the reason why they are not supported on this machine."""
    from operant.kernels.recurrent.learner import RecurrentLearner, tile_config

    policy, on_gpu = task.policy, task.policy.device.type == "cuda"
    if states.starts.numel() >= 1 << 31:
        return f"the states before an iteration's segments have {states.starts.numel():,} values, more than 2^31"
    layout: Any = task.layout  # operant.data.minibatches.Layout
    spec, shape = describe(policy, precision if on_gpu else "fp32", layout.length, layout.block)
    reason = ""
    for small in (False, True):
        config = tile_config(spec, shape, layout, task.chunks, small=small)
        if isinstance(config, str):
            return config
        learner = RecurrentLearner(spec, task, config, shape.lean() if small else shape, states)
        problem = learner.unsupported_reason(precision) if on_gpu else None
        if problem is None:
            return learner
        reason = problem
    return reason
