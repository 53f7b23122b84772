"""`Stage` of host lanes: lanes of a gymnasium: environment, stepped one at a time, with pictures.

An ended lane shows its last state until the next step; its observation already belongs to the next episode.
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
    """Stage of lanes of an outside environment, which is stepped on the host. They begin in the initial states of
    evaluation `number` with the same seed.
    """

    def __init__(
        self, env: Any, params: Any, *, seed: int, lanes: int = 1, device: torch.device | None = None, number: int = 0
    ) -> None:
        self.env, self.lanes, self.device = env, lanes, device or torch.device("cpu")
        self._world = world = HostWorld(  # type: ignore[assignment]
            env, lanes, seed=seed, device=self.device, stream=evaluate.STREAM, draws=env.draws
        )
        self._drawn, self._slot = HostPainter(world), world.slot()
        self._bound = self._slot
        self.step_s = env.step_s
        self.reward, self.returns = np.zeros(lanes, np.float32), np.zeros(lanes, np.float64)
        self.ages = np.zeros(lanes, np.int64)
        self.ended, self.terminated = np.zeros(lanes, bool), np.zeros(lanes, bool)
        self._world.seek(number << 32)
        self.restart()

    @property
    def tallies(self) -> dict[str, float]:
        """Return {}: only environments of Operant declare tallies (sums over an episode)."""
        return {}

    def renew(self) -> None:
        """Reset the return and length of each ended lane, whose next episode has already begun."""
        which = self.ended
        self.returns[which], self.ages[which], self.terminated[which] = 0.0, 0, False
        self.ended = np.zeros(self.lanes, bool)

    def restart(self) -> None:
        """Start a new episode in every lane."""
        self._world.reset(self._slot)
        self.ended[:] = True
        self.renew()

    def picture(self, canvas: torch.Tensor) -> NDArray[np.uint8]:
        """Draw the lanes on `canvas` and return it as (N, H, W, 3) bytes, valid until the next call."""
        self._drawn(canvas)
        return canvas.cpu().numpy()
