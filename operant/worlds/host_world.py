"""N lanes of an outside environment, stepped on the host: a `World` of processes. Knows no policy, no algorithm, and of an environment only its rows.

Lanes lie in buffers. Processes step the first as soon as its actions have come from the device, while those of the second still come, and its observations go
to the device while the second is stepped. Every step waits for all lanes, in their order: where the environment repeats itself, so do the bits of a run.
The blocks are fixed and shared with the processes; beside a GPU they are pinned.

A step of an ended lane is its last one: its true final observation is kept, and the slot shows the first observation of the next episode.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.compute import rng
from operant.envs import Box
from operant.envs.outside import HostEnv
from operant.errors import EnvironmentFailedError
from operant.host.processes import Shape, Steppers
from operant.worlds.base import Slot, make_slot, step_slot
from operant.worlds.noise import NoiseSource, seed_words

MOST_SIDE = 480
"""Pixels along a side of a picture of a lane, at most."""


def lane_seeds(seed: int, stream: int, tick: int, lanes: int, lane0: int = 0) -> np.ndarray:
    """The seeds with which lanes begin at a tick, (N) int64, each below 2^31: `env.reset(seed=...)`. Later episodes go on with the numbers they have."""
    return (np.random.SeedSequence([seed, stream, tick]).generate_state(lane0 + lanes)[lane0:] >> 1).astype(np.int64)


class HostWorld:
    """N lanes of an outside environment. `draws`: there are pictures, too (see `picture`). `raw`: rewards are not clipped, as evaluations want them.

    Its processes start at the first reset, and end with this object or `close`, or with this process.
    """

    capturable = resumes = False
    can_truncate = True
    final_window = truncation_gap = 1  # an environment may truncate an episode when it likes

    def __init__(
        self, env: HostEnv, lanes: int, *, seed: int, device: torch.device | str = "cpu", lane0: int = 0, stream: int = 0, draws: bool = False
    ) -> None:
        self.spec, self.count, self.device = env, lanes, torch.device(device)
        self._seed, self._stream, self._lane0, self._draws = seed, stream, lane0, draws
        hosting, N = env.hosting, lanes
        count = max(1, min(hosting.buffers, N))
        self._buffers = [range(k * N // count, (k + 1) * N // count) for k in range(count)]
        seen = env.observation
        boxed = isinstance(env.action, Box)
        side = MOST_SIDE if draws else 0
        self._shape = Shape(N, seen.size, seen.dtype, env.action_size, "float32" if boxed else "int32", env.mask_size, side)
        self._steppers: Steppers | None = None
        self.seconds = {"environment": 0.0, "copy": 0.0}
        self._blocks: dict[str, Tensor] = {}
        self._bounds = [torch.tensor(bound, device=self.device)[:, None] for bound in env.action.bounds()] if isinstance(env.action, Box) else None
        self._clip = None if stream else hosting.reward_clip

        # The clock, and sums of the episodes under way and of those that ended since `advance`.
        self._tick = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._noise = NoiseSource(self._tick, seed_words(seed, stream, self.device), lane0)
        self._age, self._total = np.zeros(N, np.int64), np.zeros(N, np.float64)
        self._ended, self._sums = np.zeros(3, np.float64), torch.zeros(3, dtype=torch.float64, device=self.device)
        self.running_tallies, self.ended_tallies = torch.zeros(0, N, device=self.device), None

    def slot(self, steps: int | None = None) -> Slot:
        """Fresh buffers for one step, or for a rollout: each with a leading T, observations and legal actions T + 1."""
        return make_slot(self.spec, self.count, self.device, steps, 1, finals=True)

    def bind(self, slot: Slot, step: int | None = None) -> Slot:
        """A slot as `reset` and `step` want it."""
        return slot if step is None else step_slot(slot, step, 1)

    # STEP

    def reset(self, slot: Slot) -> None:
        """Begin every lane anew with its seed, and write the first observations. Counts as one tick. Raises EnvironmentFailedError."""
        steppers = self._steppers or self._start()
        steppers.blocks.seed[:] = lane_seeds(self._seed, self._stream, int(self._tick), self.count, self._lane0)  # sync: a reset
        for k in range(len(self._buffers)):
            steppers.begin("reset", k)
        for k, lanes in enumerate(self._buffers):
            steppers.finish("reset", k)
            self._show(slot, lanes)
        self._check(steppers, "reset")
        self._age[:], self._total[:] = 0, 0.0
        self.advance(1)

    def step(self, slot: Slot, offset: int = 0) -> None:
        """One step of every lane, from and to a bound slot. Raises EnvironmentFailedError."""
        steppers, began_s = self._steppers, time.perf_counter()
        waited_s = 0.0
        assert steppers is not None, "reset comes first"
        if self._bounds is not None:
            slot.action.clamp_(*self._bounds)
        for k, lanes in enumerate(self._buffers):
            part = slice(lanes.start, lanes.stop)
            self._blocks["action"][part].copy_(slot.action[:, part].t())  # sync: environments on the host need the actions
            called_s = time.perf_counter()
            steppers.begin("step", k)  # without processes the lanes are stepped in here
            waited_s += time.perf_counter() - called_s
        for k, lanes in enumerate(self._buffers):
            called_s = time.perf_counter()
            steppers.finish("step", k)
            waited_s += time.perf_counter() - called_s
            self._show(slot, lanes)
            self._tell(slot, lanes)
        self._check(steppers, "step")
        self._count(steppers.blocks)
        self.seconds["environment"] += waited_s
        self.seconds["copy"] += time.perf_counter() - began_s - waited_s

    def _show(self, slot: Slot, lanes: range) -> None:
        """Observations and legal actions of a buffer, to the device."""
        part = slice(lanes.start, lanes.stop)
        slot.observation[:, part].copy_(self._blocks["observation"][part].t(), non_blocking=True)
        if slot.legal is not None:
            slot.legal[:, part].copy_(self._blocks["legal"][part].t(), non_blocking=True)

    def _tell(self, slot: Slot, lanes: range) -> None:
        """What a step came to in a buffer, to the device; final observations where an episode ended."""
        part, blocks = slice(lanes.start, lanes.stop), self._blocks
        for name in ("reward", "terminated", "truncated"):
            getattr(slot, name)[part].copy_(blocks[name][part], non_blocking=True)
        if self._clip is not None:
            slot.reward[part].clamp_(-self._clip, self._clip)
        ended = blocks["truncated"][part] | blocks["terminated"][part]
        if slot.final_observation is not None and bool(ended.any()):
            slot.final_observation[:, part].copy_(blocks["final_observation"][part].t(), non_blocking=True)

    def _count(self, blocks: Any) -> None:
        """Lengths and returns of episodes."""
        self._age += 1
        self._total += blocks.reward
        ended = np.flatnonzero(blocks.terminated | blocks.truncated)
        if len(ended):
            self._ended += (len(ended), self._age[ended].sum(), self._total[ended].sum())
            self._age[ended], self._total[ended] = 0, 0.0

    def _check(self, steppers: Steppers, call: str) -> None:
        """Raise EnvironmentFailedError where a number is not finite."""
        blocks = steppers.blocks
        ended = blocks.terminated | blocks.truncated
        for name, rows in (("observation", blocks.observation), ("final_observation", blocks.final_observation), ("reward", blocks.reward[:, None])):
            if rows.dtype != np.float32 or (call == "reset" and name != "observation") or (name == "final_observation" and not ended.any()):
                continue
            if not math.isfinite(float(rows.sum())) and len(found := np.argwhere(~np.isfinite(rows))):
                found = found[ended[found[:, 0]] != 0] if name == "final_observation" else found
                if len(found):
                    lane, column = map(int, found[0])
                    raise EnvironmentFailedError(self._sentence(name, lane, column, float(rows[lane, column]), list(map(float, blocks.action[lane])), call))

    def _sentence(self, name: str, lane: int, column: int, value: float, action: Any, call: str) -> str:
        if name == "reward":
            what = "the reward"
        else:
            field = next((field for field in self.spec.observed if field.start <= column < field.stop), None)
            what = f"{field.name}[{column - field.start}] of the {name.replace('_', ' ')}" if field is not None else f"number {column} of the observation"
        after = f" after action {action}, in step {int(self._age[lane]) + 1:,} of its episode" if call == "step" else " after reset"
        return f"{self.spec.name}: {what} of lane {lane} is {value}{after}"

    # CLOCK

    def advance(self, steps: int) -> None:
        """Move the clock on, once for as many steps as were taken."""
        self._tick.add_(steps)
        if self._ended[0]:
            self._sums.add_(torch.from_numpy(self._ended).to(self.device))
            self._ended[:] = 0

    def seek(self, tick: int) -> None:
        """Set the clock: a reset then begins the lanes with the seeds of that tick."""
        self._tick.fill_(tick)

    def noise(self, out: Tensor, purpose: int = rng.ACTION) -> None:
        """Fill `out` (T, U, N) with uniform numbers in [0, 1) for each lane and each of the next T steps: those of (seed, lane, tick, purpose)."""
        self._noise.fill(out, purpose)

    def episode_sums(self, slot: Slot) -> Tensor:
        """Sums over the episodes that ended until `advance`, since the last call: episodes, lengths, returns (unclipped), (3) float64."""
        sums = self._sums.clone()
        self._sums.zero_()
        return sums

    def state(self) -> dict[str, Tensor]:
        """The clock: the lanes themselves cannot be saved."""
        return {"tick": self._tick}

    # PICTURES AND PROCESSES

    def pictures(self, side: int) -> np.ndarray:
        """A picture of every lane as it is, (N, side, side, 3) bytes, which the next call overwrites. Raises EnvironmentFailedError."""
        assert self._steppers is not None, "reset comes first"
        side = min(side, MOST_SIDE)
        self._steppers.blocks.side[0] = side
        for k in range(len(self._buffers)):
            self._steppers.begin("draw", k)
        for k in range(len(self._buffers)):
            self._steppers.finish("draw", k)
        flat = self._steppers.blocks.picture.reshape(self.count, -1)
        return flat[:, : side * side * 3].reshape(self.count, side, side, 3)

    def close(self) -> None:
        """End the processes."""
        if self._steppers is not None:
            self._steppers.close()
            self._steppers = None

    def _start(self) -> Steppers:
        """Start the processes, and pin the blocks beside a GPU."""
        hosting = self.spec.hosting
        processes = min(hosting.processes, self.count)
        self._steppers = Steppers(
            self.spec.source, self._shape, self._buffers, processes=processes, timeout_s=hosting.timeout_s, draws=self._draws,
        )  # fmt: skip
        names = ("observation", "final_observation", "action", "reward", "terminated", "truncated", "legal")
        self._blocks = {name: torch.from_numpy(getattr(self._steppers.blocks, name)) for name in names}
        if self.device.type == "cuda":
            for block in self._blocks.values():
                if block.numel():
                    torch.cuda.cudart().cudaHostRegister(block.data_ptr(), block.nbytes, 0)
        return self._steppers


class HostPainter:
    """Draws the lanes of a host world as they are: a `Painter` of what `render` shows."""

    def __init__(self, world: HostWorld) -> None:
        self._world = world

    def bind(self, pixels: Tensor) -> Tensor:
        """A canvas (N, H, H, 3) of bytes, as a call wants it."""
        return pixels

    def __call__(self, canvas: Tensor) -> None:
        """Copy the picture of every lane."""
        canvas.copy_(torch.from_numpy(self._world.pictures(canvas.shape[1])))
