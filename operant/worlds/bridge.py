"""Shipped environments stepped by CPU threads for a learner on a GPU: a `World` around a CPU `DeviceWorld`.

A buffer is a range of lanes of that one world, so every value equals the world's. Threads share a buffer's lanes in
compiled code while Python processes another buffer's outcome. With a GPU all blocks are pinned. Observations are stored
lane-major, which a CPU writes twice as fast as field-major.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from operant.compute.thread_pool import KernelThreadPool
from operant.envs import Box, Env
from operant.worlds.base import Slot
from operant.worlds.buffered import COPIED_FIELDS, BufferedWorld, Staging
from operant.worlds.device_world import DeviceWorld

MIN_LANES_PER_THREAD = 256
"""Least lanes per thread of a buffer: waking a thread takes some microseconds of a rollout."""


class BridgedWorld(BufferedWorld):
    """World whose N lanes are stepped by CPU threads, with slots on `device`. `pinned` pins the host blocks for a GPU;
    `least` is the least number of lanes per thread.

    `stream`, `lane0`, `params`, `changing`: see `DeviceWorld`. An environment observed by pictures has one buffer.
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
        least: int = MIN_LANES_PER_THREAD,
        changing: Sequence[str] = (),
    ) -> None:
        self._world = world = DeviceWorld(
            env, lanes, seed=seed, params=params, lane0=lane0, stream=stream, threads=1, changing=changing
        )
        super().__init__(
            env,
            lanes,
            seed=seed,
            device=device,
            lane0=lane0,
            stream=stream,
            buffers=buffers if world.whole_step is not None else 1,
        )
        self.pinned = pinned and self.device.type == "cuda"
        self._rows, slot = True, world.slot()
        self._slot = self._allocate_staging(
            Slot(*(None if block is None else self._lane_major(block) for block in slot))
        )
        self._bound = world.bind(self._slot)
        self._pool, self._orders = None, [0] * len(self.buffers)
        if world.whole_step is not None:
            threads = max(1, min(numba.get_num_threads(), lanes // (len(self.buffers) * least)))
            self._pool = KernelThreadPool(world.whole_step, threads, world.bound, self._bound)
            self.late = len(self.buffers) // 2
        self.changing = world.changing
        self.final_window, self.can_truncate, self.truncation_gap = (
            world.final_window,
            world.can_truncate,
            world.truncation_gap,
        )
        self._finals = slot.final_observation is not None
        self._bounds = (
            [torch.tensor(bound, device=self.device)[:, None] for bound in env.action.bounds()]
            if isinstance(env.action, Box)
            else None
        )
        # Sums over all lanes of age and running return at the last `advance`, and at the last `episode_sums`; tallies
        # of episodes ended since then.
        self._now, self._carried, self._tallies = (
            torch.zeros(n, dtype=torch.float64, device=self.device) for n in (2, 2, len(env.tally))
        )

    def _lane_major(self, block: Tensor) -> Tensor:
        """Copy a host tensor (k, n) to lane-major memory, pinned if the world is, and return the copy as a view
        (k, n).
        """
        rows = block.t().contiguous() if block.ndim == 2 else block
        rows = rows.pin_memory() if self.pinned else rows
        return rows.t() if block.ndim == 2 else rows

    def _allocate_staging(self, slot: Slot) -> Slot:
        """Allocate device copies of the host tensors in `slot` for each buffer (range of lanes), and append them to
        `_staging` and `_actions`; returns `slot` unchanged.
        """
        on_device = {name: block for name in COPIED_FIELDS if (block := getattr(slot, name)) is not None}
        device_blocks = (
            on_device
            if self.device.type == "cpu"
            else {name: torch.empty_like(block, device=self.device) for name, block in on_device.items()}
        )
        for part in self.buffers:
            pairs = (
                []
                if device_blocks is on_device
                else [(block.t()[part], device_blocks[name].t()[part]) for name, block in on_device.items()]
            )
            self._staging.append(Staging(pairs, {name: block[..., part] for name, block in device_blocks.items()}))
            self._actions.append(slot.action.t()[part])
        return slot

    # STEP

    def _reset(self) -> None:
        self._world.reset(self._bound)
        self._carried.zero_()

    @contextlib.contextmanager
    def stepping(self, steps: int) -> Iterator[None]:
        """Context in which the world's thread pool runs. Every buffer (range of lanes) must be stepped `steps` times
        within it.
        """
        with contextlib.nullcontext() if self._pool is None else self._pool.session(steps * len(self.buffers)):
            yield

    def _begin(self, k: int, offset: int) -> None:
        if self._pool is None:
            self._world.step(self._bound, offset)
        else:
            self._orders[k] = self._pool.submit(self.buffers[k].start, self.buffers[k].stop, offset)

    def _step_piece(self) -> bool:
        return self._pool is not None and self._pool.help()

    def _finish(self, k: int) -> None:
        if self._pool is not None:
            self._pool.wait(self._orders[k])

    def _copy_finals(self, k: int, slot: Slot) -> None:
        host, part = self._slot, self.buffers[k]
        truncated = np.flatnonzero(host.truncated[part]) if self.can_truncate else ()
        if len(truncated):
            lanes = torch.from_numpy(truncated) + part.start
            slot.final_observation[:, lanes.to(self.device)] = host.final_observation[:, lanes].to(self.device)

    def _clip_actions(self, action: Tensor) -> None:
        if self._bounds is not None:
            action.clamp_(*self._bounds)

    # CLOCK

    def advance(self, steps: int) -> None:
        """Advance the world's clock by the number of steps taken since the last call, and add up the results of ended
        episodes.
        """
        super().advance(steps)
        self._world.advance(steps)
        lanes = self._world.bound  # with NumPy: waking torch's threads takes longer than the sums
        self._now.copy_(torch.tensor([lanes.age.sum(dtype=np.float64), lanes.running[0].sum(dtype=np.float64)]))
        if self.spec.tally:
            self._tallies.add_(torch.from_numpy(lanes.finished.sum(axis=1, dtype=np.float64)).to(self.device))
            lanes.finished[:] = 0

    def seek(self, tick: int) -> None:
        """Set the world's clock, which keys the random numbers, to `tick`. The same actions from the same state then
        give the same steps.
        """
        super().seek(tick)
        self._world.seek(tick)

    def episode_sums(self, slot: Slot) -> Tensor:
        """Sums over the episodes that ended in the steps of an unbound slot, (3 + K) float64: number, length and
        return, then K tallies (the environment's own statistics). The slot must hold all steps since the last call.
        Call after `advance`.
        """
        gained = torch.stack([torch.full_like(self._now[0], slot.reward.numel()), slot.reward.sum(dtype=torch.float64)])
        episodes = (slot.terminated | slot.truncated).sum(dtype=torch.float64)
        sums = torch.cat([episodes[None], gained + self._carried - self._now, self._tallies])
        self._carried.copy_(self._now)
        self._tallies.zero_()
        return sums

    @property
    def running_tallies(self) -> Tensor:
        """Tallies (the environment's own episode statistics) of each lane's current episode, (K, N)."""
        return self._world.running_tallies.to(self.device)

    def state(self) -> dict[str, Tensor]:
        """Tensors of the world, by name, that a resumed run needs. They do not depend on the number of buffers."""
        return {**self._world.state(), "tick": self._tick, "carried": self._carried}

    def restored(self) -> None:
        """Apply new values of the tensors that `state` returned: set the clock of the inner world."""
        self._world.seek(int(self._tick))  # sync: once in a run
