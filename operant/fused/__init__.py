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
from operant.fused.forms import Shape, WholeShape, candidates
from operant.fused.spec import Buffers, Loss, Spec, describe, why_not
from operant.optimizer import Adam
from operant.policy import Policy

if TYPE_CHECKING:
    from operant.fused.launches import Learner

__all__ = ["Buffers", "Learner", "Loss", "build", "cut"]

log = logging.getLogger("operant.fused")


def build(
    policy: Policy, optimizer: Adam, buffers: Buffers, loss: Loss, *, block: int, minibatches: int, kernels: str, precision: str
) -> Learner | None:  # fmt: skip
    """A policy's fused kernels over an algorithm's buffers, or None where torch is to do the work: `kernels` is "auto", "torch" or "fused".

    Where "auto" finds a GPU but cannot, one line of the log says why. Raises ConfigError where "fused" cannot.
    """
    on_gpu = policy.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    built = _build(policy, optimizer, buffers, loss, block, minibatches, precision if on_gpu else "fp32")
    if not isinstance(built, str):
        return built
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" cannot be: {built}'])
    log.info("kernels: torch's, not fused ones: %s", built)
    return None


def _build(policy: Policy, optimizer: Adam, buffers: Buffers, loss: Loss, block: int, minibatches: int, precision: str) -> Learner | str:
    """The kernels, or the sentence that says why there are none."""
    on_gpu = policy.device.type == "cuda"
    samples = buffers.order.shape[1] * block
    reason = why_not(policy, samples)
    if reason is not None:
        return reason
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        return "there is no GPU"
    if on_gpu and torch.cuda.get_device_capability(policy.device) < (8, 0) and precision != "fp32":
        return f'a GPU older than Ampere has no {precision} products (algo.precision = "fp32" works)'

    spec = describe(policy, precision)
    multiprocessors = torch.cuda.get_device_properties(policy.device).multi_processor_count if on_gpu else 2
    for group in candidates(spec, samples // minibatches, multiprocessors):
        for shape in group:
            learner = _form(shape)(spec, policy, optimizer, buffers, loss, shape, block)
            try:
                if not on_gpu or learner.fits():
                    return learner
            except RuntimeError as error:  # no C compiler, or a GPU that Triton does not know
                return f"Triton cannot compile them here: {str(error).splitlines()[0]}"
    return f"a network this wide takes more shared memory in {precision} than this GPU has"


def cut(learner: Learner, shape: Shape, *, spec: Spec | None = None) -> Learner:
    """The same work over the same buffers in another shape, or by another spec."""
    return _form(shape)(spec or learner.spec, learner.policy, learner.optimizer, learner.buffers, learner.loss, shape, learner.block)


def _form(shape: Shape) -> type[Learner]:
    """The class of learners that are cut so."""
    from operant.fused.layered import Layered
    from operant.fused.whole import Whole

    return Whole if isinstance(shape, WholeShape) else Layered
