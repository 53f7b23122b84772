"""The fast path: SAC's acting and learning as a few Triton kernels, in place of torch's many.

`backends.TorchBackend` is the specification that this is checked against: the same transitions, the same noise, and no sum of floats whose order could change.
`shape` says what kernels are generated from; `learner` launches; `acting`, `gradients` and `steps` are the kernels, over the functions of `networks`. What
imports Triton is imported only where it is used, so that a run without it does not wait for it.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from operant.algos.sac.fused import shape
from operant.errors import ConfigError

if TYPE_CHECKING:
    from operant.algos.sac.fused.learner import Learner
    from operant.algos.sac.parts import Parts

__all__ = ["Learner", "build"]

log = logging.getLogger("operant.algos.sac.fused")


def build(parts: Parts, totals: torch.Tensor) -> Learner | None:
    """The fused kernels over an algorithm's parts, or None where torch is to do the work. Raises ConfigError where `algo.kernels` asks for what cannot be.

    `totals`: sums over an iteration's updates, in the order of `Terms`, to which the kernels add.
    """
    kernels, on_gpu = parts.config.kernels, parts.actor.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    reason = shape.unsupported_reason(parts) or _unsupported_here(parts)
    if kernels == "auto" and parts.config.precision == "fp32":
        reason = reason or "in fp32 torch's products are faster"
    if reason is None:
        from operant.algos.sac.fused.learner import Learner

        learner = Learner(shape.describe(parts, parts.config.precision if on_gpu else "fp32"), parts, totals)
        if not on_gpu or (reason := learner.unsupported_reason()) is None:
            log.info("kernels: fused, %s", learner.shape.precision)
            return learner
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" cannot be: {reason}'])
    log.info("kernels: torch's, not fused ones: %s", reason)
    return None


def _unsupported_here(parts: Parts) -> str | None:
    """Why this machine has no fused kernels, in a sentence; None where it does."""
    device, precision = parts.actor.device, parts.config.precision
    if find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda":
        return "there is no GPU" if os.environ.get("TRITON_INTERPRET") != "1" else None
    if torch.cuda.get_device_capability(device) < (8, 0) and precision != "fp32":
        return f'a GPU older than Ampere has no {precision} products (algo.precision = "fp32" works)'
    return None
