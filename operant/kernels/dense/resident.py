"""Resident engine: one program holds a tower's weights, so that one launch acts and one computes a gradient."""

from __future__ import annotations

from operant.kernels.act import act, bootstrap_values
from operant.kernels.backward import backward
from operant.kernels.dense.learner import Learner
from operant.kernels.dense.task import B, C
from operant.kernels.tile_config import Resident


class ResidentLearner(Learner[B, C]):
    """Learner whose programs hold a tower's weights: one program per tile of lanes and tower, and in the backward pass
    per chunk and tower.
    """

    config: Resident

    acts_on_slices = True

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Act at step t on all lanes or a slice of `lanes`: actions, log-probabilities and values."""
        config, (first, last) = self.config, (0, self._lanes) if lanes is None else (lanes.start, lanes.stop)
        self.launch(
            act,
            (-(-(last - first) // config.act_block_m), self.spec.towers),
            self._inputs(),
            self.work.acting(),
            self._values,
            t,
            first,
            last,
            self._lanes,
            SPEC=self.spec,
            SAMPLE=self.work.sample,
            BLOCK_M=config.act_block_m,
            num_warps=config.act_warps,
            num_stages=0,
        )

    def bootstrap(self, finals: bool) -> None:
        """Write values of the observations after the last step, and with `finals` of the true final observations of
        truncated lanes.
        """
        config = self.config
        first = 0 if finals else self._steps
        self.launch(
            bootstrap_values,
            (-(-self._lanes // config.act_block_m), self._steps + 1 - first),
            self._bootstrap(),
            self._values,
            self._normalizer,
            first,
            self._steps,
            self._lanes,
            SPEC=self.spec,
            VALUE=self.work.value_of,
            BLOCK_M=config.act_block_m,
            num_warps=config.act_warps,
            num_stages=0,
        )

    def backward(self, k: int) -> None:
        """Compute the partial sums (chunks, width) of minibatch k, counted over all epochs."""
        config = self.config
        self.launch(
            backward,
            (config.chunks, self.spec.towers),
            self._minibatch(k),
            self._inputs(),
            self.work.samples(),
            self._values,
            self._partial,
            self._lanes,
            self._width,
            SPEC=self.spec,
            LOSS=self.work.loss,
            BLOCK_M=config.block_m,
            BLOCK=self.layout.block,
            num_warps=config.warps,
            # No software pipelining: the kernel prefetches explicitly, and Triton 3.6 fails to pipeline this loop.
            num_stages=0,
            maxnreg=config.max_registers or None,
        )
