"""N lanes of our own environments stepped by the CPU's threads, for a learner on another device: a `World` of `DeviceWorld`s. Knows no policy and no algorithm.

Lanes lie in buffers, each a world of its own with global lane numbers, so that every number is that of one world on either device. While the CPU steps one
buffer, what the one before showed is on its way. Beside a GPU all blocks are pinned.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from operant.compute import rng
from operant.envs import Env
from operant.worlds.base import TALLIES, Slot, make_slot, step_slot
from operant.worlds.device_world import DeviceWorld
from operant.worlds.noise import NoiseSource, seed_words


class _Buffer(NamedTuple):
    """Some of the lanes."""

    lanes: slice
    world: DeviceWorld
    slot: Slot  # on the host
    bound: Slot


class BridgedWorld:
    """N lanes of an environment on the CPU, whose slots lie on `device`. `stream`, `lane0` and `params` as `DeviceWorld` has them.

    `pinned`: whether the blocks are, beside a GPU.
    """

    capturable, resumes = False, True

    def __init__(
        self,
        env: Env,
        lanes: int,
        *,
        seed: int,
        device: torch.device | str,
        params: Any = None,
        lane0: int = 0,
        stream: int = 0,
        buffers: int = 2,
        pinned: bool = True,
    ) -> None:
        self.spec, self.count, self.device = env, lanes, torch.device(device)
        count = max(1, min(buffers, lanes))
        self._buffers = []
        for k in range(count):
            first, last = k * lanes // count, (k + 1) * lanes // count
            world = DeviceWorld(env, last - first, seed=seed, params=params, lane0=lane0 + first, stream=stream)
            slot = world.slot()
            if self.device.type == "cuda" and pinned:
                slot = Slot(*(None if block is None else _pinned(block) for block in slot))
            self._buffers.append(_Buffer(slice(first, last), world, slot, world.bind(slot)))
        self.seconds = {"environment": 0.0, "copy": 0.0}
        one = self._buffers[0].world
        self.final_window, self.can_truncate, self.truncation_gap = one.final_window, one.can_truncate, one.truncation_gap
        self._finals = one.slot().final_observation is not None
        self._tick = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._noise = NoiseSource(self._tick, seed_words(seed, stream, self.device), lane0)
        self._ended = torch.zeros(TALLIES + len(env.tally), dtype=torch.float64)
        self._sums = self._ended.to(self.device, copy=True)

    def slot(self, steps: int | None = None) -> Slot:
        """Fresh buffers for one step, or for a rollout: each with a leading T, observations and legal actions T + 1."""
        return make_slot(self.spec, self.count, self.device, steps, self.final_window, finals=self._finals)

    def bind(self, slot: Slot, step: int | None = None) -> Slot:
        """A slot as `reset` and `step` want it."""
        return slot if step is None else step_slot(slot, step, self.final_window)

    def reset(self, slot: Slot) -> None:
        """Begin every lane anew and write the first observations. Counts as one tick."""
        for part in self._buffers:
            part.world.reset(part.bound)
            self._show(part, slot, ("observation", "legal"))
        self._tick.add_(1)

    def step(self, slot: Slot, offset: int = 0) -> None:
        """One step of every lane, at tick + offset, from and to a bound slot."""
        began_s, stepped_s = time.perf_counter(), 0.0
        for part in self._buffers:
            part.slot.action.copy_(slot.action[:, part.lanes])  # sync: environments on the host need the actions
            called_s = time.perf_counter()
            part.world.step(part.bound, offset)
            stepped_s += time.perf_counter() - called_s
            slot.action[:, part.lanes].copy_(part.slot.action, non_blocking=True)  # as the environment clipped them
            self._show(part, slot, ("observation", "legal", "reward", "terminated", "truncated"))
            truncated = np.flatnonzero(part.slot.truncated) if self._finals and self.can_truncate else ()
            if len(truncated):
                lanes = torch.from_numpy(truncated)
                slot.final_observation[:, part.lanes][:, lanes.to(self.device)] = part.slot.final_observation[:, lanes].to(self.device)
            self._ended += part.world.episode_sums(part.slot)
        self.seconds["environment"] += stepped_s
        self.seconds["copy"] += time.perf_counter() - began_s - stepped_s

    def _show(self, part: _Buffer, slot: Slot, names: tuple[str, ...]) -> None:
        """What lanes of a buffer show, to the device."""
        for name in names:
            there, here = getattr(slot, name), getattr(part.slot, name)
            if there is not None:
                there[..., part.lanes].copy_(here, non_blocking=True)

    def advance(self, steps: int) -> None:
        """Move the clock on, once for as many steps as were taken with offsets 0 ... steps - 1."""
        self._tick.add_(steps)
        for part in self._buffers:
            part.world.advance(steps)
        self._sums.add_(self._ended.to(self.device))
        self._ended.zero_()

    def seek(self, tick: int) -> None:
        """Set the clock: from there on the same actions give the same steps."""
        self._tick.fill_(tick)
        for part in self._buffers:
            part.world.seek(tick)

    def noise(self, out: Tensor, purpose: int = rng.ACTION) -> None:
        """Fill `out` (T, U, N) with uniform numbers in [0, 1) for each lane and each of the next T steps: those of (seed, lane, tick, purpose)."""
        self._noise.fill(out, purpose)

    def episode_sums(self, slot: Slot) -> Tensor:
        """Sums over the episodes that ended until `advance`, since the last call: (3 + K) float64."""
        sums = self._sums.clone()
        self._sums.zero_()
        return sums

    @property
    def running_tallies(self) -> Tensor:
        """(K, N), the environment's own sums over each lane's episode under way."""
        return torch.cat([part.world.running_tallies for part in self._buffers], dim=1).to(self.device)

    @property
    def ended_tallies(self) -> Tensor | None:
        """None: `episode_sums` has taken them."""
        return None

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs to go on as if nothing had happened, by name."""
        lanes = {f"{k}/{name}": tensor for k, part in enumerate(self._buffers) for name, tensor in part.world.state().items()}
        return {"tick": self._tick, **lanes}


def _pinned(block: Tensor) -> Tensor:
    """A block of the same layout in pinned memory: its own, or that of pictures, whose samples lie one after the other."""
    return block.pin_memory() if block.is_contiguous() else block.t().pin_memory().t()
