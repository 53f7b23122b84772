"""N lanes of our own environments stepped by the CPU's threads, for a learner on another device: a `World` of `DeviceWorld`s. Knows no policy and no algorithm.

Lanes lie in buffers, each a world of its own with global lane numbers, so that every number is that of one world on either device. While a thread steps one
buffer, what the one before showed is on its way. Beside a GPU all blocks are pinned, and what a buffer shows lies in one piece: observations lane after lane,
which a CPU writes twice as fast as field after field.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from operant.envs import Box, Env
from operant.worlds.base import Slot
from operant.worlds.buffered import SHOWN, BufferedWorld, Staging
from operant.worlds.device_world import DeviceWorld

_ALIGNED = 256  # bytes

LEAST = 2048
"""Lanes of a buffer at least, where several threads have buffers of their own: Python's own work for a step is the same for fewer."""

MOST_DRIVERS = 4
"""Threads that have, at most; others share the work of a step. With 16 they wait for Python's lock: on the machine of an H200 they made 5.7 to 7.7 M steps a
second of Breakout, learning included, and two threads in all 6.5."""


class _Buffer(NamedTuple):
    """Some of the lanes."""

    world: DeviceWorld
    slot: Slot  # on the host
    bound: Slot


class BridgedWorld(BufferedWorld):
    """N lanes of an environment on the CPU, whose slots lie on `device`. `stream`, `lane0`, `params` and `changing` as `DeviceWorld` has them.

    `buffers` are those of a thread that steps by itself; `least` see LEAST. `pinned`: whether the blocks are, beside a GPU.
    """

    resumes = True

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
        least: int = LEAST,
        changing: Sequence[str] = (),
    ) -> None:
        threads = numba.get_num_threads()
        self.drivers = max(1, min(threads, MOST_DRIVERS, lanes // (buffers * least)))
        self._threads = threads // self.drivers  # of each, which share the work of a step
        super().__init__(env, lanes, seed=seed, device=device, lane0=lane0, stream=stream, buffers=buffers * self.drivers)
        self.pinned = pinned and self.device.type == "cuda"
        self._parts: list[_Buffer] = []
        values = torch.zeros(len(changing))
        for part in self.buffers:
            many, where = part.stop - part.start, lane0 + part.start
            world = DeviceWorld(env, many, seed=seed, params=params, lane0=where, stream=stream, threads=1, changing=changing, values=values)
            slot = world.slot()
            slot, staging = self._staged(slot._replace(observation=slot.observation.t().contiguous().t()))
            self._parts.append(_Buffer(world, slot, world.bind(slot)))
            self._staging.append(staging)
            self._actions.append(slot.action)
        one = self._parts[0].world
        self._whole = {name: tensor.new_zeros(*tensor.shape[:-1], lanes) for name, tensor in one.state().items() if name not in ("tick", "carried")}
        self.changing = one.changing
        self.final_window, self.can_truncate, self.truncation_gap = one.final_window, one.can_truncate, one.truncation_gap
        self._finals = one.slot().final_observation is not None
        self._bounds = [torch.tensor(bound, device=self.device)[:, None] for bound in env.action.bounds()] if isinstance(env.action, Box) else None
        # Of all lanes ages and running returns, as `advance` found them and as `episode_sums` did the last time; tallies of episodes that have ended since.
        self._now, self._carried, self._tallies = (torch.zeros(n, dtype=torch.float64, device=self.device) for n in (2, 2, len(env.tally)))

    def _staged(self, slot: Slot) -> tuple[Slot, Staging]:
        """A buffer's slot with blocks as the copies want them, and the copies."""
        shown = {name: block for name in SHOWN if (block := getattr(slot, name)) is not None}
        if self.device.type == "cpu":
            return slot, Staging((), shown)
        size = sum(-(-block.nbytes // _ALIGNED) * _ALIGNED for block in shown.values())
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=self.pinned)
        there = torch.zeros(size, dtype=torch.uint8, device=self.device)
        action = slot.action.pin_memory() if self.pinned else slot.action
        return slot._replace(action=action, **_carved(host, shown)), Staging([(host, there)], _carved(there, shown))

    # STEP

    def _reset(self) -> None:
        for part in self._parts:
            part.world.reset(part.bound)
        self._carried.zero_()

    def _begin(self, k: int, offset: int) -> None:
        """Once this returns the buffer is stepped."""
        self._parts[k].world.step(self._parts[k].bound, offset)

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """With the threads that one of several drivers has for a step."""
        before = numba.get_num_threads()
        numba.set_num_threads(self._threads if self.drivers > 1 else before)
        try:
            yield
        finally:
            numba.set_num_threads(before)

    def _show_finals(self, k: int, slot: Slot) -> None:
        here = self._parts[k].slot
        found = np.flatnonzero(here.truncated) if self.can_truncate else ()
        if len(found):
            lanes = torch.from_numpy(found)
            slot.final_observation[:, self.buffers[k]][:, lanes.to(self.device)] = here.final_observation[:, lanes].to(self.device)

    def _clip_actions(self, action: Tensor) -> None:
        if self._bounds is not None:
            action.clamp_(*self._bounds)

    # CLOCK

    def advance(self, steps: int) -> None:
        """Move the clock on, once for as many steps as were taken with offsets 0 ... steps - 1."""
        super().advance(steps)
        now, tallies = torch.zeros(2, dtype=torch.float64), torch.zeros(len(self.spec.tally), dtype=torch.float64)
        for part in self._parts:
            part.world.advance(steps)
            lanes = part.world.lanes
            now += torch.stack([lanes.age.sum(dtype=torch.float64), lanes.running[0].sum(dtype=torch.float64)])
            if lanes.finished is not None:
                tallies += lanes.finished.sum(dim=1, dtype=torch.float64)
                lanes.finished.zero_()
        self._now.copy_(now)
        self._tallies.add_(tallies.to(self.device))

    def seek(self, tick: int) -> None:
        """Set the clock: from there on the same actions give the same steps."""
        super().seek(tick)
        for part in self._parts:
            part.world.seek(tick)

    def episode_sums(self, slot: Slot) -> Tensor:
        """Sums over the episodes that ended in the steps of a slot (unbound), which are all steps since the last call: (3 + K) float64. After `advance`."""
        gained = torch.stack([torch.full_like(self._now[0], slot.reward.numel()), slot.reward.sum(dtype=torch.float64)])
        episodes = (slot.terminated | slot.truncated).sum(dtype=torch.float64)
        sums = torch.cat([episodes[None], gained + self._carried - self._now, self._tallies])
        self._carried.copy_(self._now)
        self._tallies.zero_()
        return sums

    @property
    def running_tallies(self) -> Tensor:
        """(K, N), the environment's own sums over each lane's episode under way."""
        return torch.cat([part.world.running_tallies for part in self._parts], dim=1).to(self.device)

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs to go on as if nothing had happened, by name: as one world has it, whatever the buffers. Lanes are copies."""
        parts = [part.world.state() for part in self._parts]
        for name, whole in self._whole.items():
            torch.cat([part[name] for part in parts], dim=-1, out=whole)
        return {"tick": self._tick, "carried": self._carried, **self._whole}

    def restored(self) -> None:
        """Take in what was written into `state`'s tensors."""
        for part, lanes in zip(self._parts, self.buffers, strict=True):
            own = part.world.state()
            own["tick"].copy_(self._tick)
            for name, whole in self._whole.items():
                own[name].copy_(whole[..., lanes])


def _carved(memory: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Blocks in a piece of memory (bytes), of the layout that others have: their own, or that of pictures, whose samples lie one after the other."""
    found, at = {}, 0
    for name, block in like.items():
        plain = block if block.is_contiguous() else block.t()
        piece = memory[at : at + block.nbytes].view(block.dtype).view(plain.shape)
        found[name] = piece if block.is_contiguous() else piece.t()
        at += -(-block.nbytes // _ALIGNED) * _ALIGNED
    return found
