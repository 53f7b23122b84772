"""The fused kernels of networks whose tower one program holds whole: one launch acts, one more is a minibatch's gradient. Knows no other form."""

from __future__ import annotations

from operant.algos.ppo.fused.learner import Learner
from operant.kernels.act import act, leftover_values
from operant.kernels.backward import gradient
from operant.kernels.tiles import WholeShape


class Whole(Learner):
    """A program a tile of samples and a tower."""

    shape: WholeShape

    def act(self, t: int) -> None:
        """Actions, log-probabilities and values of step t."""
        buffers, shape = self.buffers, self.shape
        self._launch(
            act, (-(-self._lanes // shape.act_rows), self.spec.towers),
            buffers.rollout.observation, self._legal, buffers.noise, buffers.raw, buffers.rollout.action, self._place("log_probability"),
            self._place("value"), self._values, self._moments, self._bounds, t, self._lanes,
            SPEC=self.spec, ROWS=shape.act_rows, num_warps=shape.act_warps, num_stages=0,
        )  # fmt: skip

    def leftovers(self, finals: bool) -> None:
        """V of the observation after the last step, and with `finals` of the true final observations of truncated episodes."""
        buffers, shape, rollout = self.buffers, self.shape, self.buffers.rollout
        first = 0 if finals else self._steps
        self._launch(
            leftover_values, (-(-self._lanes // shape.act_rows), self._steps + 1 - first),
            rollout.observation, rollout.final_observation, rollout.truncated, self._place("value"), buffers.final_value,
            self._values, self._moments, first, self._steps, self._lanes,
            SPEC=self.spec, ROWS=shape.act_rows, num_warps=shape.act_warps, num_stages=0,
        )  # fmt: skip

    def gradient(self, first: int, blocks: int) -> None:
        """The gradient of the loss over blocks order[first : first + blocks], in parts."""
        buffers, shape, loss = self.buffers, self.shape, self.loss
        self._launch(
            gradient, (shape.programs, self.spec.towers),
            buffers.order, buffers.rollout.observation, self._legal, buffers.raw, buffers.samples, self._values, self._moments, self._scalars,
            self._partial, first, blocks * self.block, self._lanes, self._stride, self._width,
            loss.clip, loss.value_clip or 0.0, loss.entropy_coefficient, loss.value_coefficient,
            SPEC=self.spec, VALUE_CLIPPED=loss.value_clip is not None, ROWS=shape.rows, BLOCK=self.block, num_warps=shape.warps,
            # No software pipeline: the next tile's loads are ahead of it by hand, and Triton 3.6 fails on this loop with one.
            num_stages=0, maxnreg=shape.most_registers or None,
        )  # fmt: skip
