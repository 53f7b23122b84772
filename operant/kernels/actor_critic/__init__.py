"""Fused Triton kernels of SAC and TD3: acting and learning in a few launches.

The algorithms' torch paths are the specification: same transitions, same noise, every sum of floats in a fixed order.
Two engines, `narrow` (up to 256 units) and `wide` (up to 1,024, and long observations), share `engine` (buffers,
replay), `gaussian` (actions) and `optimizer` (step counter, temperature, statistics). Triton is imported only where it
is used, so that a run without it does not wait for the import.
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
    obstacle = machine_reason(task.actor.device, precision)
    precision = precision if on_gpu else "fp32"
    if kernels == "auto" and precision == "fp32":
        obstacle = obstacle or "in fp32 torch's products are faster"
    reason = narrow_spec.unsupported_reason(task) or obstacle
    engine, reason = (None, reason) if reason else _engine(task, precision, wide=False)
    if engine is None and reason != obstacle and wide_spec.applies(task):
        if kernels == "auto" and precision != "bf16":
            obstacle = obstacle or "those for wide networks and long observations are used in bf16 only"
        reason = wide_spec.unsupported_reason(task) or obstacle
        engine, reason = (None, reason) if reason else _engine(task, precision, wide=True)
    if engine is not None:
        return engine
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" is not possible: {reason} (use "auto" or "torch")'])
    log.info("kernels: torch instead of fused: %s", reason)
    return None


def _engine(task: ActorCriticTask, precision: str, *, wide: bool) -> tuple[ActorCriticEngine | None, str | None]:
    """Create the fused kernels for narrow (up to 256 units) or, with `wide`, for wide networks. Returns them, or None
    and the reason why the GPU cannot run them.
    """
    from operant.kernels.actor_critic.narrow.engine import NarrowEngine
    from operant.kernels.actor_critic.wide.c51 import C51Engine
    from operant.kernels.actor_critic.wide.engine import WideEngine

    engine: ActorCriticEngine
    if wide:
        kind = C51Engine if task.config.critic == "c51" else WideEngine
        engine = kind(wide_spec.describe(task, precision), task)
    else:
        engine = NarrowEngine(narrow_spec.describe(task, precision), task)
    if task.actor.device.type == "cuda" and (reason := engine.unsupported_reason(engine.shape.precision)):
        return None, reason
    log.info("kernels: fused, %s%s", engine.shape.precision, ", with the library's products" if wide else "")
    return engine, None
