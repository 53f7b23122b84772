"""An actor-critic's acting and learning as a few Triton kernels, in place of torch's many: SAC's and TD3's. Knows no
algorithm's cycle of ticks and updates.

An algorithm's torch path is the specification that this is checked against: the same transitions, the same noise, no
sum of floats whose order could change. `shape` says what kernels are generated from; `learner` launches; `acting`,
`gradients` and `steps` are the kernels, over the functions of `networks`. What imports Triton is imported only where it
is used, so that a run without it does not wait for it.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from operant.errors import ConfigError
from operant.kernels.actor_critic import shape, wide_shape
from operant.kernels.actor_critic.task import Deterministic, Stochastic, Task

if TYPE_CHECKING:
    from operant.kernels.actor_critic.learner import Learner

__all__ = ["Deterministic", "Learner", "Stochastic", "Task", "build"]

log = logging.getLogger("operant.kernels.actor_critic")


def build(task: Task) -> Learner | None:
    """The fused kernels of a task, or None where torch is to do the work. Raises ConfigError where `algo.kernels` asks
    for what cannot be.
    """
    kernels, precision, on_gpu = task.config.kernels, task.config.precision, task.actor.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    reason, precision = shape.unsupported_reason(task), precision if on_gpu else "fp32"
    wide = reason is not None and wide_shape.applies(task)
    reason = (wide_shape.unsupported_reason(task) if wide else reason) or _unsupported_here(task)
    if kernels == "auto" and precision == "fp32":
        reason = reason or "in fp32 torch's products are faster"
    if kernels == "auto" and wide and precision != "bf16":
        reason = reason or "those of wide networks are taken in bf16"
    if reason is None:
        from operant.kernels.actor_critic.learner import Learner
        from operant.kernels.actor_critic.wide import WideLearner
        from operant.kernels.actor_critic.wide_atoms import AtomsLearner

        kind = AtomsLearner if task.config.critic == "c51" else WideLearner
        learner = (
            kind(wide_shape.describe(task, precision), task) if wide else Learner(shape.describe(task, precision), task)
        )
        if not on_gpu or (reason := learner.unsupported_reason(learner.shape.precision)) is None:
            log.info("kernels: fused, %s%s", learner.shape.precision, ", with the library's products" if wide else "")
            return learner
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" cannot be: {reason} (use "auto" or "torch")'])
    log.info("kernels: torch's, not fused ones: %s", reason)
    return None


def _unsupported_here(task: Task) -> str | None:
    """Why this machine has no fused kernels, in a sentence; None where it does."""
    device, precision = task.actor.device, task.config.precision
    if find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda":
        return "there is no GPU" if os.environ.get("TRITON_INTERPRET") != "1" else None
    if torch.cuda.get_device_capability(device) < (8, 0) and precision != "fp32":
        return f'a GPU older than Ampere has no {precision} products (algo.precision = "fp32" works)'
    return None
