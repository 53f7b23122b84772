"""N lanes of an outside environment stepped by host processes: a `World`.

Lanes form buffers. Processes step the first as soon as its actions have arrived, while the second's are still being
copied, and its observations are copied while the second is stepped. Every step waits for all lanes in order, so a
deterministic environment gives reproducible runs. The blocks are fixed and shared with the processes; with a GPU they
are pinned.

When an episode ends, the true final observation is saved and the slot holds the first observation of the next episode.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.envs import Box
from operant.envs.outside import HostEnv
from operant.errors import EnvironmentFailedError
from operant.host.processes import BlockLayout, LaneProcesses
from operant.worlds.base import Slot
from operant.worlds.buffered import COPIED_FIELDS, BufferedWorld, Staging
from operant.worlds.frame_stack import FrameStack

log = logging.getLogger("operant")

MOST_SIDE = 480
"""Largest side of a lane's picture, pixels."""


def lane_seeds(seed: int, stream: int, tick: int, lanes: int, lane0: int = 0) -> np.ndarray:
    """Seeds for `env.reset(seed=...)` of the lanes `lane0` ... `lane0` + `lanes` - 1, (lanes) int64 below 2^31, derived
    from the run's seed, the stream and the tick (number of vectorised steps). Later episodes of a lane continue its
    generator.
    """
    return (np.random.SeedSequence([seed, stream, tick]).generate_state(lane0 + lanes)[lane0:] >> 1).astype(np.int64)


class HostWorld(BufferedWorld):
    """World of N lanes of an outside environment, stepped by host processes. Processes start at the first reset and end
    with this object, `close` or this process.

    `draws`: the lanes can be rendered by `pictures`. `raw`: frames are copied to the device unprocessed and
    preprocessed there; by default on a GPU.
    """

    def __init__(
        self,
        env: HostEnv,
        lanes: int,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        lane0: int = 0,
        stream: int = 0,
        draws: bool = False,
        raw: bool | None = None,
    ) -> None:
        hosting, N, seen, source = env.hosting, lanes, env.observation, env.source
        assert source is not None, "an outside environment is made by operant.envs.outside.declare"
        # With one buffer set per process, buffer indices are bytes. Evaluations use a single buffer.
        processes = min(hosting.processes, N)
        self.unordered = hosting.asynchronous and processes > 1 and not stream
        buffers = (
            1
            if stream
            else min(hosting.buffers * processes, 255 // processes * processes)
            if self.unordered
            else hosting.buffers
        )
        super().__init__(env, N, seed=seed, device=device, lane0=lane0, stream=stream, buffers=buffers)
        self._seed, self._stream, self._lane0, self._draws, self._rows = seed, stream, lane0, draws, True
        boxed = isinstance(env.action, Box)
        side = MOST_SIDE if draws else 0
        # On-device preprocessing, if the processes do not do it.
        self._frames, self._source, size = None, source, seen.size
        if (self.device.type == "cuda" if raw is None else raw) and env.frame_shape and seen.shape != env.frame_shape:
            self._frames = FrameStack(env.frame_shape, seen.shape, N, self.device, grey=source.grayscale)
            self._source = source._replace(grayscale=False, resize=None, frame_stack=1)
            size = math.prod(env.frame_shape)
        self._shape = BlockLayout(
            N, size, seen.dtype, env.action_size, "float32" if boxed else "int32", env.mask_size, side
        )
        self._running: LaneProcesses | None = None
        # a reset takes long; other processes continue meanwhile
        self.late = len(self.buffers) - 1 if hosting.processes else 0
        self._blocks: dict[str, Tensor] = {}
        self._unpin: Callable[[], Any] = lambda: None
        self._bounds = (
            [torch.tensor(bound, device=self.device)[:, None] for bound in env.action.bounds()]
            if isinstance(env.action, Box)
            else None
        )
        self._clip = None if stream else hosting.reward_clip

        # Sums of current episodes, and of episodes ended since `advance`.
        self._age, self._total = np.zeros(N, np.int64), np.zeros(N, np.float64)
        self._ended = np.zeros((len(self.buffers), 3), np.float64)

    # STEP

    @property
    def _steppers(self) -> LaneProcesses:
        """Worker processes; `reset` must have started them."""
        assert self._running is not None, "reset comes first"
        return self._running

    def _reset(self) -> None:
        """Reset every lane, each with its own seed. Raises EnvironmentFailedError."""
        steppers = self._running or self._start()
        steppers.blocks.seed[:] = lane_seeds(
            self._seed, self._stream, int(self._tick), self.count, self._lane0
        )  # sync: a reset
        for k in range(len(self.buffers)):
            steppers.begin("reset", k)
        for k in range(len(self.buffers)):
            steppers.finish("reset", k)
            self._check_finite(k, "reset")
        steppers.blocks.terminated[:] = 1  # this observation begins an episode
        self._age[:], self._total[:] = 0, 0.0

    def _begin(self, k: int, offset: int) -> None:
        """Start stepping buffer k (a range of lanes); without processes, step it here. Raises
        EnvironmentFailedError.
        """
        self._steppers.begin("step", k)

    def _finish(self, k: int) -> None:
        """Wait until buffer k (a range of lanes) is stepped. Raises EnvironmentFailedError."""
        self._steppers.finish("step", k)
        self._check_finite(k, "step")
        self._count_episodes(k)

    def ready(self, *, wait: bool) -> list[int]:
        """Indices of the buffers (ranges of lanes) whose step has finished, in any order. With `wait` block until there
        is at least one. Raises EnvironmentFailedError.
        """
        return self._steppers.ready(wait=wait)

    def _copy_finals(self, k: int, slot: Slot) -> None:
        """Copy the true final observations of buffer k (a range of lanes) to `slot` on the device, where an episode
        ended.
        """
        part, blocks = self.buffers[k], self._steppers.blocks
        ended = np.flatnonzero(blocks.truncated[part] | blocks.terminated[part])
        if self._frames is not None and len(ended):
            lanes = torch.from_numpy(ended + part.start)
            on_gpu = lanes.to(self.device)
            slot.final_observation.t()[on_gpu] = self._frames.final(
                self._blocks["final_observation"][lanes].to(self.device), on_gpu
            )
        elif len(ended):
            self._copy_observation(
                slot.final_observation[:, part],
                self._blocks["final_observation"][part].to(self.device, non_blocking=True).t(),
            )

    def _write_field(self, k: int, name: str, out: Tensor) -> None:
        """Write field `name` of the outcome of buffer k (a range of lanes) to `out`, that buffer's slice of a slot's
        tensor. Raw frames are preprocessed.
        """
        on_device = self._staging[k].on_device
        if name == "observation" and self._frames is not None:
            out.t().copy_(
                self._frames.push(
                    on_device[name].t(), self.buffers[k], on_device["terminated"] | on_device["truncated"]
                )
            )
        elif name == "observation":
            self._copy_observation(out, on_device[name])
        else:
            out.copy_(on_device[name])

    def _copy_observation(self, out: Tensor, on_device: Tensor) -> None:
        """Copy observations (O, n) to `out`, transposing pictures that the environment returns channels-first."""
        if self.spec.channels_first:
            height, width, channels = self.spec.observation.shape
            out.t().unflatten(1, (height, width, channels)).copy_(
                on_device.t().unflatten(1, (channels, height, width)).permute(0, 2, 3, 1)
            )
        else:
            out.copy_(on_device)

    def _clip_actions(self, action: Tensor) -> None:
        if self._bounds is not None:
            action.clamp_(*self._bounds)

    def _clip_rewards(self, reward: Tensor) -> None:
        if self._clip is not None:
            reward.clamp_(-self._clip, self._clip)

    def _count_episodes(self, k: int) -> None:
        """Update lengths and returns of the current episodes in buffer k (a range of lanes) after a step, and the sums
        over ended ones.
        """
        blocks, part = self._steppers.blocks, self.buffers[k]
        age, total = self._age[part], self._total[part]
        age += 1
        total += blocks.reward[part]
        ended = np.flatnonzero(blocks.terminated[part] | blocks.truncated[part])
        if len(ended):
            self._ended[k] += (len(ended), age[ended].sum(), total[ended].sum())
            age[ended], total[ended] = 0, 0.0

    def _check_finite(self, k: int, call: str) -> None:
        """Check that observations and rewards of buffer k (a range of lanes) are finite. Raises EnvironmentFailedError
        with the first that is not; `call` is "reset" or "step".
        """
        blocks, part = self._steppers.blocks, self.buffers[k]
        ended = blocks.terminated[part] | blocks.truncated[part]
        for name, rows in (
            ("observation", blocks.observation),
            ("final_observation", blocks.final_observation),
            ("reward", blocks.reward[:, None]),
        ):
            if (
                rows.dtype != np.float32
                or (call == "reset" and name != "observation")
                or (name == "final_observation" and not ended.any())
            ):
                continue
            buffer = rows[part]
            if not math.isfinite(float(buffer.sum())) and len(positions := np.argwhere(~np.isfinite(buffer))):
                positions = positions[ended[positions[:, 0]] != 0] if name == "final_observation" else positions
                if len(positions):
                    lane, column = int(positions[0][0]) + part.start, int(positions[0][1])
                    raise EnvironmentFailedError(
                        self._not_finite_message(
                            name, lane, column, float(rows[lane, column]), list(map(float, blocks.action[lane])), call
                        )
                    )

    def _not_finite_message(self, name: str, lane: int, column: int, value: float, action: Any, call: str) -> str:
        """Describe a value that is not finite: the field of the observation or the reward, the lane, the value, and the
        action before it. `name` is the shared array, `column` the index in its row, `call` "reset" or "step".
        """
        if name == "reward":
            what = "the reward"
        else:
            field = next((field for field in self.spec.observed if field.start <= column < field.stop), None)
            what = (
                f"{field.name}[{column - field.start}] of the {name.replace('_', ' ')}"
                if field is not None
                else f"number {column} of the observation"
            )
        after = (
            f" after action {action}, in step {int(self._age[lane]) + 1:,} of its episode"
            if call == "step"
            else " after reset"
        )
        return f"{self.spec.name}: {what} of lane {lane} is {value}{after}"

    # CLOCK

    def advance(self, steps: int) -> None:
        """Advance the world's clock by `steps`, and add the results of ended episodes to the sums for
        `episode_sums`.
        """
        super().advance(steps)
        if self._ended[:, 0].any():
            self._sums.add_(torch.from_numpy(self._ended.sum(axis=0)).to(self.device))
            self._ended[:] = 0

    # PICTURES AND PROCESSES

    def pictures(self, side: int) -> np.ndarray:
        """Render every lane's current state as (N, side, side, 3) uint8; `side` is reduced to MOST_SIDE. The next call
        overwrites the array. Raises EnvironmentFailedError.
        """
        side = min(side, MOST_SIDE)
        self._steppers.blocks.side[0] = side
        for k in range(len(self.buffers)):
            self._steppers.begin("draw", k)
        for k in range(len(self.buffers)):
            self._steppers.finish("draw", k)
        flat = self._steppers.blocks.picture.reshape(self.count, -1)
        return flat[:, : side * side * 3].reshape(self.count, side, side, 3)

    def close(self) -> None:
        """End the worker processes of this world."""
        if self._running is not None:
            self._unpin()
            self.pinned = False
            self._running.close()
            self._running = None

    def _start(self) -> LaneProcesses:
        """Start the worker processes, and allocate the host and device copies of their shared arrays, with a GPU in
        pinned memory; returns the processes.
        """
        hosting, lanes = self.spec.hosting, [range(part.start, part.stop) for part in self.buffers]
        self._running = steppers = LaneProcesses(
            self._source,
            self._shape,
            lanes,
            processes=min(hosting.processes, self.count),
            timeout_s=hosting.timeout_s,
            draws=self._draws,
            independent=self.unordered,
        )
        names = (
            "observation",
            "final_observation",
            "action",
            "reward",
            "terminated",
            "truncated",
            *(("legal",) if self._shape.mask else ()),
        )
        self._blocks = {name: torch.from_numpy(getattr(steppers.blocks, name)) for name in names}
        if self.device.type == "cuda":  # pins all blocks; the first begins at the start of the memory
            error_code = torch.cuda.cudart().cudaHostRegister(
                self._blocks["observation"].data_ptr(), self._shape.bytes(), 0
            )
            self.pinned = int(error_code) == 0
            # unpin before the memory is freed, with this object at the latest: `env.lanes = "auto"` makes several in
            # turn
            if self.pinned:
                self._unpin = weakref.finalize(self, _unpin_memory, self._blocks["observation"].data_ptr(), self.device)
                self._unpin.atexit = False
            else:
                log.warning(
                    "the shared memory of the environments could not be pinned (CUDA error %d): copies are slower",
                    int(error_code),
                )
        self._actions = [self._blocks["action"][part] for part in self.buffers]
        self._staging = [
            self._allocate_staging({name: block[part] for name, block in self._blocks.items() if name in COPIED_FIELDS})
            for part in self.buffers
        ]
        return steppers

    def _allocate_staging(self, blocks: dict[str, Tensor]) -> Staging:
        """Allocate device copies of the shared arrays of one buffer (range of lanes), given by name with rows (n, ...).
        On a CPU device the shared arrays serve as both.
        """
        device_blocks = (
            blocks
            if self.device.type == "cpu"
            else {name: torch.empty_like(block, device=self.device) for name, block in blocks.items()}
        )
        pairs = [] if device_blocks is blocks else [(block, device_blocks[name]) for name, block in blocks.items()]
        return Staging(pairs, {name: block.t() if block.ndim == 2 else block for name, block in device_blocks.items()})


def _unpin_memory(address: int, device: torch.device) -> None:
    """Unpin the shared memory at `address`, after waiting for the device."""
    torch.cuda.synchronize(device)  # sync: once in a run
    torch.cuda.cudart().cudaHostUnregister(address)


class HostPainter:
    """Renderer of an outside environment's lanes, by their own `render`. Has the interface of `Painter`."""

    def __init__(self, world: HostWorld) -> None:
        self._world = world

    def bind(self, pixels: Tensor) -> Tensor:
        """Return the canvas for a tensor of pixels (N, H, H, 3) uint8, which is the tensor."""
        return pixels

    def __call__(self, canvas: Tensor) -> None:
        """Render every lane and copy the pictures to a canvas made by `bind`."""
        canvas.copy_(torch.from_numpy(self._world.pictures(canvas.shape[1])))
