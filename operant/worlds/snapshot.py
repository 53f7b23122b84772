"""Lanes of a world as they were before a step or a reset, to be put back in some of them. Knows no Gymnasium
(operant/worlds/gym.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from operant.worlds.base import Slot
from operant.worlds.device_world import DeviceWorld


class Snapshot(NamedTuple):
    """What a step or a reset changes in a lane: a copy of what the world keeps, and the slot that was written last,
    which must stay as it is.
    """

    columns: tuple[torch.Tensor, ...]  # (..., N) each
    slot: Slot  # unbound

    @classmethod
    def of(cls, world: DeviceWorld, slot: Slot) -> Snapshot:
        """The world as it is now; `slot` is that of its last step or reset."""
        return cls(tuple(column.clone() for column in _columns(world)), slot)

    def restore(self, world: DeviceWorld, slot: Slot, lanes: torch.Tensor) -> None:
        """Undo in some lanes, (N) bool, the step or reset that wrote `slot`: there it then says that nothing was gained
        and nothing ended.
        """
        for column, before in zip(_columns(world), self.columns, strict=True):
            column.copy_(torch.where(lanes, before, column))
        for seen, before in ((slot.observation, self.slot.observation), (slot.legal, self.slot.legal)):
            if seen is not None:
                seen.copy_(torch.where(lanes, before, seen))
        for outcome in (slot.reward, slot.terminated, slot.truncated):
            outcome.masked_fill_(lanes, 0)


def _columns(world: DeviceWorld) -> list[torch.Tensor]:
    """What a lane carries from one step to the next. The clock is no lane's: random numbers are never drawn twice."""
    lanes = world.lanes
    return [
        column
        for column in (lanes.state, lanes.int_state, lanes.age, lanes.running, lanes.finished)
        if column is not None
    ]
