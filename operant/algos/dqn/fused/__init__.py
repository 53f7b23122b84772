"""Fused Triton kernels of DQN. An iteration is these launches, in this order:

| launch                   | grid                   | computes                                                 |
|--------------------------|------------------------|----------------------------------------------------------|
| `choose`                 | (cdiv(B, 256), U)      | samples of all U updates (U, B)                          |
| per tick `act_and_learn` | (tiles + cdiv(N, 64),) | actions (N); gradient of the first batch (tiles, P + 32) |
| ... the world's step     |                        | rewards, next observations; not Triton                   |
| ... `reduce_and_step`    | (programs + stores,)   | Adam, target network; the tick into the replay           |
| ... `store_tick`         | (stores,)              | the tick into the replay, if no update is due            |

A tick is one step of all N lanes; B samples of a batch, P parameters. The newest tick is never sampled, so the gradient
of a tick's first batch may be computed while its actions are taken; further batches follow the world's step.

`kernels.py` has the kernels, `engine.py` launches them. They are built from `operant.kernels.single_tile` (forward and
backward pass of a tile of samples), `q_values` (greedy and random actions) and `ops.replay` (which transitions).
`dqn.DQN` is the specification that this is tested against: equal noise, equal samples, equal order. Triton is imported
only where it is used, so that a run without it does not wait for the import.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from operant.errors import ConfigError
from operant.kernels import spec as kernel_spec
from operant.kernels.dense import machine_reason

if TYPE_CHECKING:
    from operant.algos.dqn.dqn import DQN
    from operant.algos.dqn.fused.engine import FusedDQN

MAX_WIDTH, MAX_BATCH, MAX_STEPS = 128, 8192, 16
"""Limits: units of a layer, samples of a batch, steps of a return. A program holds the whole network and a tile of the
batch.
"""

log = logging.getLogger("operant.dqn")


def build(dqn: DQN) -> FusedDQN | None:
    """Return the fused kernels of a run, or None if torch does the work. Raises ConfigError if `algo.kernels` is
    "fused" and they are not supported.
    """
    kernels, policy, on_gpu = dqn.config.kernels, dqn.policy, dqn.policy.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    reason = unsupported_reason(dqn)
    if reason is None:
        from operant.algos.dqn.fused.engine import FusedDQN

        engine = FusedDQN(kernel_spec.describe(policy, dqn.config.precision if on_gpu else "fp32"), dqn)
        reason = engine.unsupported_reason(dqn.config.precision) if on_gpu else None
        if reason is None:
            log.info("kernels: fused")
            return engine
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" is not possible: {reason} (use "auto" or "torch")'])
    log.info("kernels: torch instead of fused: %s", reason)
    return None


def unsupported_reason(dqn: DQN) -> str | None:
    """Return the reason why the fused kernels cannot run this configuration, as a clause for a message, or None if they
    can.
    """
    config, policy, world = dqn.config, dqn.policy, dqn.cycle.world
    reason = kernel_spec.unsupported_reason(policy, (config.horizon + 1) * world.count)
    if reason is not None:
        return reason
    widest = max(kernel_spec.describe(policy, config.precision).hidden)
    if widest > MAX_WIDTH:
        return f"DQN's fused kernels support hidden layers of up to {MAX_WIDTH}, and net.hidden has {widest}"
    if config.critic != "scalar":
        return f'algo.critic = "{config.critic}" is not supported'
    if config.replay_sampling != "uniform":
        return f'algo.replay_sampling = "{config.replay_sampling}" is not supported (only "uniform")'
    if config.batch_size > MAX_BATCH or config.n_step > MAX_STEPS:
        return f"DQN's fused kernels support batches of up to {MAX_BATCH:,} and returns of up to {MAX_STEPS} steps"
    if not world.capturable:
        return "the environment does not run on the GPU"
    return machine_reason(policy.device, config.precision)
