"""The fast path: a policy's acting and PPO's learning as a few Triton kernels, in place of torch's many.

`operant.algos.ppo` is the specification and this is checked against it: the same buffers, the same uniforms, the same order of minibatches, and no sum of
floats whose order could change. `spec` says what can run fused; `launches` launches; `parts`, `act`, `descend` and `step` are the kernels, generated from a
spec when they are compiled. Triton is imported only by those, so that whoever runs without it pays nothing.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from operant.errors import ConfigError
from operant.fused.spec import Buffers, Loss, Shape, Spec, default_shape, describe, why_not
from operant.optimizer import Adam
from operant.policy import Policy

if TYPE_CHECKING:
    from operant.fused.launches import Learner

__all__ = ["Buffers", "Learner", "Loss", "Shape", "Spec", "choose", "learner"]

log = logging.getLogger("operant.fused")


def choose(policy: Policy, samples: int, kernels: str, precision: str) -> Spec | None:
    """What to generate kernels from for iterations of `samples`, or None for torch's: `kernels` is "auto", "torch" or "fused".

    Where "auto" finds a GPU but cannot, one line of the log says why. Raises ConfigError where "fused" cannot.
    """
    on_gpu = policy.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    reason = why_not(policy, samples)
    if find_spec("triton") is None:
        reason = "Triton is not installed"
    elif not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        reason = "they need a GPU"
    elif on_gpu and torch.cuda.get_device_capability(policy.device) < (8, 0) and precision != "fp32":
        reason = f'a GPU older than Ampere has no {precision} products (precision = "fp32" works)'
    if reason is None:
        return describe(policy, precision if on_gpu else "fp32")
    if kernels == "fused":
        raise ConfigError("the network", [f'algo.kernels = "fused" cannot be: {reason}'])
    log.info("kernels: torch's, not fused ones: %s", reason)
    return None


def learner(spec: Spec, policy: Policy, optimizer: Adam, buffers: Buffers, loss: Loss, block: int, minibatches: int, shape: Shape | None = None) -> Learner:
    """The fused kernels of a policy over an algorithm's buffers, cut to `shape`, or to what suits the device."""
    from operant.fused.launches import Learner

    if shape is None:
        multiprocessors = torch.cuda.get_device_properties(policy.device).multi_processor_count if policy.device.type == "cuda" else 2
        shape = default_shape(spec, buffers.order.shape[1] * block // minibatches, multiprocessors)
    return Learner(spec, policy, optimizer, buffers, loss, shape, block)
