"""The collector: T steps of every lane, written to where learning reads them.

Shape letters: T steps, N lanes, O rows of an observation, H action parameters, U rows of noise, B observations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from operant.data.buffered import BufferedCollection
from operant.worlds import BufferedWorld, Slot, World

Act = Callable[..., None]
"""`act(t)` for all lanes, or `act(t, lanes)` for a slice."""

FINAL_SAMPLES = 2**19
"""Samples whose final values a CUDA graph computes at a time: few launches, bounded memory."""


class Collector:
    """Rollout buffers for T steps of a world's lanes, and the loop that fills them. The world writes the outcome of
    each step in place. A collection begins with the observation with which the last one ended.
    """

    def __init__(self, world: World, steps: int, noise_rows: int, *, hold: int = 1, eager: bool = False) -> None:
        """Allocate the buffers of the rollout and of its action noise, `noise_rows` numbers per lane and step.

        `hold`: steps for which a lane's noise stays the same; `eager`: without CUDA graphs.
        """
        self.world, self.steps = world, steps
        self.noise = torch.zeros(steps, noise_rows, world.count, device=world.device)  # (T, U, N), uniform in [0, 1)
        self._hold, self._eager = hold, eager
        self._bind(world.slot(steps))

    def _bind(self, rollout: Slot) -> None:
        """Let the world write its outcomes into `rollout` from now on."""
        world, self.rollout = self.world, rollout
        self._slots = [world.bind(rollout, t) for t in range(self.steps)]
        self._first = world.bind(rollout, -1)
        self._buffered = None
        if isinstance(world, BufferedWorld) and world.device.type == "cuda":
            self._buffered = BufferedCollection(world, self._slots, eager=self._eager)

    def start(self) -> None:
        """Reset all lanes and start new episodes."""
        self.world.reset(self._first)

    def collect(self, act: Act, after: Callable[[int], None] | None = None, *, sliced: bool = False) -> None:
        """Take T steps of every lane: for each step t call `act(t)`, which writes its actions to the rollout, step the
        world, then call `after(t)`.

        `sliced`: `act` takes slices of the lanes, and `after` is not called. A GPU then acts on some lanes while the
        host steps others.
        """
        self.world.noise(self.noise, hold=self._hold)
        if self._buffered is not None and sliced:
            self._buffered.collect(act)
            self.world.advance(self.steps)
            return
        for t in range(self.steps):
            act(t)
            self.world.step(self._slots[t], t)
            if after is not None:
                after(t)
        self.world.advance(self.steps)

    def carry_on(self) -> None:
        """Copy the last observation to the beginning of the next rollout. Call it once the rollout has been learned
        from.
        """
        for buffer in (self.rollout.observation, self.rollout.legal):
            if buffer is not None:
                buffer[0].copy_(buffer[-1])

    def twin(self) -> Collector:
        """Return a second collector of the same world with its own observations, legal actions, rewards and ends of
        episodes.

        A rollout of one is then kept during a collection by the other. Actions, final observations and noise are
        shared.
        """
        other, names = copy.copy(self), ("observation", "legal", "reward", "terminated", "truncated")
        own = {name: buffer.clone() for name in names if (buffer := getattr(self.rollout, name)) is not None}
        other._bind(self.rollout._replace(**own))
        return other

    def legal(self, t: int) -> Tensor | None:
        """Return the legal actions of step t, (H, N) uint8, or None if the environment has no illegal ones."""
        return None if self.rollout.legal is None else self.rollout.legal[t]

    def final_values(self, value: Callable[[Tensor], Tensor], out: Tensor, *, shards: int, captured: bool) -> None:
        """Write V of the true final observation of every truncated episode to its element of `out` (T, N); other
        elements may be overwritten.

        `value` maps observations (O, B) to (B). Each of `shards` ranges of the lanes is evaluated separately, since the
        shape of a product decides its last bits. `captured`: in a CUDA graph, which cannot branch.
        """
        rollout, world, window = self.rollout, self.world, self.world.final_window
        lanes = world.count // shards
        if not world.can_truncate:
            return
        for shard in (slice(first, first + lanes) for first in range(0, world.count, lanes)):
            if captured and window > 1:  # pictures: a buffer holds those of `window` steps, at most one per lane
                for k, final_observation in enumerate(rollout.final_observation):
                    out[k * window : (k + 1) * window, shard] = value(final_observation[:, shard])
            elif captured:
                # All samples are evaluated; stale observations of lanes without a truncation have values
                # that are never read.
                together = max(1, FINAL_SAMPLES // lanes)
                for t in range(0, self.steps, together):
                    ticks = rollout.final_observation[t : t + together, :, shard]
                    out[t : t + together, shard] = value(ticks.transpose(0, 1).flatten(1)).view(len(ticks), -1)
            else:
                step, lane = torch.nonzero(rollout.truncated[:, shard], as_tuple=True)
                if len(step):
                    lane += shard.start
                    out[step, lane] = value(rollout.final_observation[step // window, :, lane].t())

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name: the observation with which the next rollout begins."""
        first = {"observation": self.rollout.observation[0]}
        return first if self.rollout.legal is None else {**first, "legal": self.rollout.legal[0]}
