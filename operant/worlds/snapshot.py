"""Snapshot of a world's lanes before a step or reset, to undo it in some of them. The Gymnasium adapter
(operant/worlds/gym.py) uses it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from operant.worlds.base import Slot
from operant.worlds.device_world import DeviceWorld


class Snapshot(NamedTuple):
    """Copy of the state of a world's lanes before a step or reset, so that it can be undone in some of them. The
    buffers of `slot`, which the last step or reset wrote, are referenced and must not change meanwhile.
    """

    columns: tuple[torch.Tensor, ...]  # (..., N) each
    slot: Slot  # unbound

    @classmethod
    def of(cls, world: DeviceWorld, slot: Slot) -> Snapshot:
        """Copy the state of a world's lanes before its next step or reset. `slot` is the unbound slot (buffers) of its
        last step or reset.
        """
        return cls(tuple(column.clone() for column in _lane_tensors(world)), slot)

    def restore(self, world: DeviceWorld, slot: Slot, lanes: torch.Tensor) -> None:
        """Undo, in the lanes of the mask `lanes` (N) bool, the step or reset that wrote `slot`. Their reward becomes 0,
        and no end of an episode is reported.
        """
        for column, before in zip(_lane_tensors(world), self.columns, strict=True):
            column.copy_(torch.where(lanes, before, column))
        for current, before in ((slot.observation, self.slot.observation), (slot.legal, self.slot.legal)):
            if current is not None:
                current.copy_(torch.where(lanes, before, current))
        for outcome in (slot.reward, slot.terminated, slot.truncated):
            outcome.masked_fill_(lanes, 0)


def _lane_tensors(world: DeviceWorld) -> list[torch.Tensor]:
    """Tensors of a world that each lane carries from step to step. The clock is excluded, so that random numbers are
    never drawn twice.
    """
    lanes = world.lanes
    return [
        column
        for column in (lanes.state, lanes.int_state, lanes.age, lanes.running, lanes.finished)
        if column is not None
    ]
