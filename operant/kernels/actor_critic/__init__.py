"""Fused Triton kernels of SAC and TD3: acting and learning in a few launches. Knows no algorithm's cycle of ticks and
updates.

The algorithms' torch paths are the specification: same transitions, same noise, every sum of floats in a fixed order.
Two engines, `narrow` (up to 256 units) and `wide` (up to 1,024), share `engine` (buffers, replay), `gaussian` (actions)
and `optimizer` (step counter, temperature, statistics). Triton is imported only where it is used, so that a run without
it does not wait for the import.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from operant.errors import ConfigError
from operant.kernels.actor_critic.narrow import spec as narrow_spec
from operant.kernels.actor_critic.task import ActorCriticTask, DeterministicActor, StochasticActor
from operant.kernels.actor_critic.wide import spec as wide_spec
from operant.kernels.dense import machine_reason

if TYPE_CHECKING:
    from operant.kernels.actor_critic.engine import ActorCriticEngine

__all__ = ["ActorCriticEngine", "ActorCriticTask", "DeterministicActor", "StochasticActor", "build"]

log = logging.getLogger("operant.kernels.actor_critic")


def build(task: ActorCriticTask) -> ActorCriticEngine | None:
    """Return the fused kernels of a task, or None if torch does the work. Raises ConfigError if `algo.kernels` is
    "fused" and they are not supported.
    """
    kernels, precision, on_gpu = task.config.kernels, task.config.precision, task.actor.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    reason, precision = narrow_spec.unsupported_reason(task), precision if on_gpu else "fp32"
    wide = reason is not None and wide_spec.applies(task)
    reason = (wide_spec.unsupported_reason(task) if wide else reason) or machine_reason(
        task.actor.device, task.config.precision
    )
    if kernels == "auto" and precision == "fp32":
        reason = reason or "in fp32 torch's products are faster"
    if kernels == "auto" and wide and precision != "bf16":
        reason = reason or "wide networks use them in bf16 only"
    if reason is None:
        engine = _engine(task, precision, wide=wide)
        if not on_gpu or (reason := engine.unsupported_reason(engine.shape.precision)) is None:
            products = ", with the library's products" if wide else ""
            log.info("kernels: fused, %s%s", engine.shape.precision, products)
            return engine
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" is not possible: {reason} (use "auto" or "torch")'])
    log.info("kernels: torch instead of fused: %s", reason)
    return None


def _engine(task: ActorCriticTask, precision: str, *, wide: bool) -> ActorCriticEngine:
    """Create the engine for narrow (up to 256 units) or, with `wide`, for wide networks."""
    from operant.kernels.actor_critic.narrow.engine import NarrowEngine
    from operant.kernels.actor_critic.wide.c51 import C51Engine
    from operant.kernels.actor_critic.wide.engine import WideEngine

    if not wide:
        return NarrowEngine(narrow_spec.describe(task, precision), task)
    kind = C51Engine if task.config.critic == "c51" else WideEngine
    return kind(wide_spec.describe(task, precision), task)
