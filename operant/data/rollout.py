"""The collector: T steps of every lane, each written where learning reads it. Knows no network and no loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from operant.worlds import World


class Collector:
    """The buffers of T steps of a world's lanes. The world writes what comes of step t straight into its place; the next collection begins where it ended."""

    def __init__(self, world: World, steps: int, noise_rows: int) -> None:
        self.world, self.steps = world, steps
        self.rollout = world.slot(steps)
        self.noise = torch.zeros(steps, noise_rows, world.count, device=world.device)  # (T, U, N), uniform in [0, 1)
        self._slots = [world.bind(self.rollout, t) for t in range(steps)]
        self._first = world.bind(self.rollout, -1)

    def start(self) -> None:
        """Begin every lane anew."""
        self.world.reset(self._first)

    def collect(self, act: Callable[[int], None], after: Callable[[int], None] | None = None) -> None:
        """Take T steps of every lane: `act` chooses the actions of step t, which it writes into the rollout; `after` is told that step t is done."""
        self.world.noise(self.noise)
        for t in range(self.steps):
            act(t)
            self.world.step(self._slots[t], t)
            if after is not None:
                after(t)
        self.world.advance(self.steps)

    def carry_on(self) -> None:
        """What the last step showed is what the next collection begins with. Once all is learned from this one."""
        for seen in (self.rollout.observation, self.rollout.legal):
            if seen is not None:
                seen[0].copy_(seen[-1])

    def legal(self, t: int) -> Tensor | None:
        """The legal actions of step t, (H, N); None where all are."""
        return None if self.rollout.legal is None else self.rollout.legal[t]

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        first = {"observation": self.rollout.observation[0]}
        return first if self.rollout.legal is None else {**first, "legal": self.rollout.legal[0]}
