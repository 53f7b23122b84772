"""A few lanes of an outside environment that a policy or a person plays one step at a time, with pictures: a `Stage` of
host lanes. Knows no film and no run.

A lane that has ended shows its end until the next step; its observation is that of its next episode already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from operant.play.stage import Stage
from operant.training import evaluate
from operant.worlds.host_world import HostPainter, HostWorld


class HostStage(Stage):
    """`lanes` lanes of an outside environment, at the beginning of their first episodes: those of evaluation `number`,
    under the same seed.
    """

    def __init__(
        self, env: Any, params: Any, *, seed: int, lanes: int = 1, device: torch.device | None = None, number: int = 0
    ) -> None:
        self.env, self.lanes, self.device = env, lanes, device or torch.device("cpu")
        self._world = world = HostWorld(  # type: ignore[assignment]
            env, lanes, seed=seed, device=self.device, stream=evaluate.STREAM, draws=env.draws
        )
        self._drawn, self._slot = HostPainter(world), world.slot()
        self.step_s = env.step_s
        self.reward, self.returns = np.zeros(lanes, np.float32), np.zeros(lanes, np.float64)
        self.ages = np.zeros(lanes, np.int64)
        self.ended, self.terminated = np.zeros(lanes, bool), np.zeros(lanes, bool)
        self._world.seek(number << 32)
        self.restart()

    @property
    def tallies(self) -> dict[str, float]:
        """None: an outside environment keeps no sums of its own."""
        return {}

    def renew(self) -> None:
        """Count the next episode in every lane that has ended."""
        which = self.ended
        self.returns[which], self.ages[which], self.terminated[which] = 0.0, 0, False
        self.ended = np.zeros(self.lanes, bool)

    def restart(self) -> None:
        """Begin another episode in every lane, whatever state it is in."""
        self._world.reset(self._slot)
        self.ended[:] = True
        self.renew()

    def step(self, action: torch.Tensor) -> None:
        """Take an action (A, N) in every lane."""
        self.renew()
        slot = self._slot
        slot.action.copy_(action)
        self._world.step(slot)
        self._world.advance(1)
        self.reward = slot.reward.cpu().numpy().copy()
        self.terminated = slot.terminated.cpu().numpy() != 0
        self.ended = self.terminated | (slot.truncated.cpu().numpy() != 0)
        self.returns += self.reward
        self.ages += 1

    def picture(self, canvas: torch.Tensor) -> NDArray[np.uint8]:
        """The lanes as they are, (N, H, W, 3) bytes, drawn on a canvas of that shape. Until the next call."""
        self._drawn(canvas)
        return canvas.cpu().numpy()
