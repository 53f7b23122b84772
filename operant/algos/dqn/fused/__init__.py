"""DQN's fast path: two launches an update beside the world's step, see `learner`.

`backends.TorchBackend` is the specification that this is checked against: the same noise, the same samples, the same order. What imports Triton is imported
only where it is used, so that a run without it does not wait for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from operant.errors import ConfigError
from operant.kernels import spec as kernel_spec
from operant.kernels.dense import machine_reason

if TYPE_CHECKING:
    from operant.algos.dqn.fused.learner import Learner
    from operant.algos.dqn.parts import Parts

MOST_WIDTH, MOST_BATCH, MOST_STEPS = 128, 8192, 16
"""The widest layer, the largest batch and the most steps of a return that the kernels take: a program holds the whole network and a tile of the batch."""

log = logging.getLogger("operant.dqn")


def build(parts: Parts) -> Learner | None:
    """The fused kernels of a run, or None where torch is to do the work. Raises ConfigError where `algo.kernels` is "fused" and they cannot be."""
    kernels, policy, on_gpu = parts.config.kernels, parts.policy, parts.policy.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    reason = unsupported_reason(parts)
    if reason is None:
        from operant.algos.dqn.fused.learner import Learner

        learner = Learner(kernel_spec.describe(policy, parts.config.precision if on_gpu else "fp32"), parts)
        reason = learner.unsupported_reason(parts.config.precision) if on_gpu else None
        if reason is None:
            log.info("kernels: fused")
            return learner
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" cannot be: {reason} (use "auto" or "torch")'])
    log.info("kernels: torch's, not fused ones: %s", reason)
    return None


def unsupported_reason(parts: Parts) -> str | None:
    """The sentence that says why a run cannot be fused, or None where it can."""
    config, policy, world = parts.config, parts.policy, parts.cycle.world
    reason = kernel_spec.unsupported_reason(policy, (config.horizon + 1) * world.count)
    if reason is not None:
        return reason
    widest = max(kernel_spec.describe(policy, config.precision).hidden)
    if widest > MOST_WIDTH:
        return f"fused kernels of DQN take hidden layers of up to {MOST_WIDTH}, and net.hidden has {widest}"
    if config.critic != "scalar":
        return f'fused kernels of DQN have no algo.critic = "{config.critic}"'
    if config.replay_sampling != "uniform":
        return f'fused kernels of DQN have no algo.replay_sampling = "{config.replay_sampling}"'
    if config.batch_size > MOST_BATCH or config.n_step > MOST_STEPS:
        return f"fused kernels of DQN take batches of up to {MOST_BATCH:,} and returns of up to {MOST_STEPS} steps"
    if not world.capturable:
        return "the environment does not run on the GPU"
    return machine_reason(policy.device, config.precision)
