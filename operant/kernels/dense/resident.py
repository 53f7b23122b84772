"""The fused kernels of networks whose tower one program holds: one launch acts, one more is a minibatch's gradient.
Knows no other kind.
"""

from __future__ import annotations

from operant.kernels.act import act, bootstrap_values
from operant.kernels.backward import backward
from operant.kernels.dense.learner import Learner
from operant.kernels.tiles import Resident


class ResidentLearner(Learner):
    """A program a tile of lanes and a tower, and in an update a program a chunk and a tower."""

    config: Resident

    acts_on_some = True

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions, log-probabilities and values of step t, of all lanes or some."""
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
        """V of the observation after the last step, and with `finals` of the true final observations of truncated
        episodes.
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
        """The gradient of minibatch k's loss as rows of partial sums."""
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
            # No software pipeline: the next tile's loads are ahead of it by hand, and Triton 3.6 fails on this loop
            # with one.
            num_stages=0,
            maxnreg=config.max_registers or None,
        )
