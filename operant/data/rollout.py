"""The collector: T steps of every lane, each written where learning reads it. Knows no network and no loss."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from operant.data.overlap import Overlap
from operant.worlds import BufferedWorld, World

Act = Callable[..., None]
"""`act(t)` of all lanes, or `act(t, lanes)` of some."""

FINAL_SAMPLES = 2**19
"""In a graph, values of final observations are computed for so many samples at a time: fewer launches, and memory that
stays small.
"""


class Collector:
    """The buffers of T steps of a world's lanes. The world writes what comes of step t straight into its place; the
    next collection begins where it ended.
    """

    def __init__(self, world: World, steps: int, noise_rows: int, *, eager: bool = False) -> None:
        """`eager`: without CUDA graphs."""
        self.world, self.steps = world, steps
        self.rollout = world.slot(steps)
        self.noise = torch.zeros(steps, noise_rows, world.count, device=world.device)  # (T, U, N), uniform in [0, 1)
        self._slots = [world.bind(self.rollout, t) for t in range(steps)]
        self._first = world.bind(self.rollout, -1)
        self._overlap = None
        if isinstance(world, BufferedWorld) and world.device.type == "cuda":
            self._overlap = Overlap(world, self._slots, eager=eager)

    def start(self) -> None:
        """Begin every lane anew."""
        self.world.reset(self._first)

    def collect(self, act: Act, after: Callable[[int], None] | None = None, *, apart: bool = False) -> None:
        """Take T steps of every lane: `act` chooses the actions of step t, which it writes into the rollout; `after` is
        told that step t is done.

        `apart`: `act` may be asked for some of the lanes, and `after` has nothing to do. Lanes on the host are then
        acted on beside a GPU while others step.
        """
        self.world.noise(self.noise)
        if self._overlap is not None and apart:
            self._overlap.collect(act)
            self.world.advance(self.steps)
            return
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

    def behind(self) -> Collector:
        """The same with memory of its own for what is learned from, which a later collection leaves alone."""
        other, fields = copy.copy(self), ("observation", "legal", "reward", "terminated", "truncated")
        kept = {name: buffer.clone() for name in fields if (buffer := getattr(self.rollout, name)) is not None}
        other.rollout = self.rollout._replace(**kept)
        return other

    def legal(self, t: int) -> Tensor | None:
        """The legal actions of step t, (H, N); None where all are."""
        return None if self.rollout.legal is None else self.rollout.legal[t]

    def final_values(self, value: Callable[[Tensor], Tensor], out: Tensor, *, shards: int, captured: bool) -> None:
        """Values of the true final observations of truncated episodes, into `out` (T, N), of which other places may be
        written, too.

        `value` takes observations (O, B) and gives (B). The lanes lie in so many shards, each of which is evaluated by
        itself: the shape of a product decides its last bits. `captured`: a graph may hold this, which cannot choose.
        """
        rollout, world, window = self.rollout, self.world, self.world.final_window
        lanes = world.count // shards
        if not world.can_truncate:
            return
        for shard in (slice(first, first + lanes) for first in range(0, world.count, lanes)):
            if captured and window > 1:  # pictures: one buffer holds those of as many steps, of each lane at most one
                for k, seen in enumerate(rollout.final_observation):
                    out[k * window : (k + 1) * window, shard] = value(seen[:, shard])
            elif captured:
                # All samples are evaluated, where nothing was truncated on stale observations that are not read.
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
        """What a checkpoint must hold, by name."""
        first = {"observation": self.rollout.observation[0]}
        return first if self.rollout.legal is None else {**first, "legal": self.rollout.legal[0]}
