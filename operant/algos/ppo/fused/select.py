"""Takes the shape of a policy's fused kernels: the one a run began with, the one remembered, or the fastest of those that this GPU has room for.

Knows no kernel and no clock: `forms` says what to try, `tuning` measures and remembers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from operant.algos.ppo.fused.learner import Learner
from operant.algos.ppo.fused.per_layer import Layered
from operant.algos.ppo.fused.resident import Whole
from operant.algos.ppo.fused.tuning import Memory, Seconds, copies, fastest, seconds
from operant.kernels.spec import Buffers, Loss, Spec
from operant.kernels.tiles import Shape, WholeShape, candidates, suits
from operant.nn.optimizer import Adam
from operant.nn.policy import Policy

FEW_MULTIPROCESSORS = 2
"""What a CPU, whose kernels are interpreted, counts as having."""

log = logging.getLogger("operant.algos.ppo.fused")


def form(shape: Shape) -> type[Learner]:
    """The class of learners that are cut so."""
    return Whole if isinstance(shape, WholeShape) else Layered


def cut(learner: Learner, shape: Shape, *, spec: Spec | None = None, buffers: Buffers | None = None) -> Learner:
    """The same work in another shape; by default by the same spec over the same buffers."""
    return form(shape)(spec or learner.spec, learner.policy, learner.optimizer, buffers or learner.buffers, learner.loss, shape, learner.block)


@dataclass
class Choice:
    """What is to be cut; `problem` says after a search without a result why there is none."""

    spec: Spec
    policy: Policy
    optimizer: Adam
    buffers: Buffers
    loss: Loss
    block: int
    minibatches: int
    problem: str = ""

    def __post_init__(self) -> None:
        self.problem = f"a network this wide takes more shared memory in {self.spec.precision} than this GPU has"
        device = self.policy.device
        self._on_gpu = device.type == "cuda"
        self._gpu = torch.cuda.get_device_name(device) if self._on_gpu else "CPU"
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if self._on_gpu else FEW_MULTIPROCESSORS

    def learner(self, given: Shape | None, measure: Seconds | None) -> Learner | None:
        """The kernels in the shape `given` where that can be, else in the fastest; None where none fits. Only a GPU is timed, unless there is a `measure`."""
        if given is not None:
            if suits(given, self.spec) and (learner := self._fitting(given, self.buffers)) is not None:
                return self._told(learner, "as this run began")
            log.warning("kernels: %s does not suit this network or this GPU: another shape is taken, and bits change with it", given)
        measure = measure or (seconds if self._on_gpu else None)
        if measure is None:
            return self.first()
        memory = Memory(self._gpu, self.spec, self.buffers, self.block, self.minibatches)
        recalled = memory.recall()
        if recalled is not None and suits(recalled, self.spec) and (learner := self._fitting(recalled, self.buffers)) is not None:
            return self._told(learner, "the fastest as measured at an earlier start")
        try:
            return self._fastest(measure, memory)
        except torch.OutOfMemoryError:  # of the copies that are measured with
            return self.first()

    def first(self) -> Learner | None:
        """The kernels in the first shape that fits."""
        for shape in (shape for group in self._candidates() for shape in group):
            if (learner := self._fitting(shape, self.buffers)) is not None:
                return self._told(learner, "the first that fits")
        return None

    def _candidates(self) -> list[list[Shape]]:
        return list(candidates(self.spec, self.buffers.order.shape[1] * self.block // self.minibatches, self._multiprocessors))

    def _fastest(self, measure: Seconds, memory: Memory) -> Learner | None:
        """The fastest of the first group that has any."""
        spare = copies(self.buffers)
        for group in self._candidates():
            fitting = (learner.spare() for shape in group if (learner := self._fitting(shape, spare)) is not None)
            shape, costs = fastest(fitting, lambda learner: measure(learner, self.minibatches))
            if shape is not None:
                memory.keep(shape)
                measured = ", ".join(f"{cost * 1e3:.2f}" for cost in costs.values())
                return self._told(self._made(shape, self.buffers), f"the fastest of {len(costs)}: ms an iteration {measured}")
        return None

    def _made(self, shape: Shape, buffers: Buffers) -> Learner:
        return form(shape)(self.spec, self.policy, self.optimizer, buffers, self.loss, shape, self.block)

    def _fitting(self, shape: Shape, buffers: Buffers) -> Learner | None:
        """A learner of this shape, or None where the GPU cannot run it."""
        learner = self._made(shape, buffers)
        try:
            return learner if not self._on_gpu or learner.fits() else None
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # no C compiler, or a GPU that Triton does not know
            self.problem = f"Triton cannot compile them here: {str(error).splitlines()[0]}"
            return None

    def _told(self, learner: Learner, how: str) -> Learner:
        log.info("kernels: fused, %s (%s)", learner.shape, how)
        return learner
