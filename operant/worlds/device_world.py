"""N lanes of one environment on a device: buffers, and the kernels that step and reset them.

Layout is field-major, state (F, N) and observations (O, N), so that neighbouring threads access neighbouring addresses.
Picture observations are an (O, N) view of memory in (N, O) order, as pixel kernels and networks need it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from operant.compute import rng
from operant.compute.kernel import Kernel, bind
from operant.envs import Env, ranges
from operant.worlds import pixels
from operant.worlds.base import Slot, make_slot, step_slot
from operant.worlds.lane import begin_body, end_body, has_int_state, reset_body, shards_body, step_body
from operant.worlds.noise import NoiseSource, seed_words


class Lanes(NamedTuple):
    """State of N lanes (parallel copies of one environment) between steps: everything but the buffers of `Slot`.
    Tensors in `DeviceWorld`, numba arrays inside kernels.
    """

    state: Any  # (F, N) float32
    int_state: Any  # (C, N) of the environment's type; None if unused: each buffer in a launch costs time
    workspace: Any  # (S, N) int32, undefined between calls; None if unused
    memory: Any  # (N, M) float32, undefined between calls; None if unused, and on a CPU, where it is on the stack
    age: Any  # (N) int32, steps since the last reset
    running: Any  # (1 + K, N) float32, sums over the current episode: return, tallies
    finished: Any  # (K, N) float32, tallies of the episodes that ended since `episode_sums`; None if K = 0
    tick: Any  # (1) int64, steps taken; on the device because captured graphs read it
    seed: Any  # (2) uint32 stored as int32
    lane0: int  # global index of the first lane
    changing: Any = None  # (K) float32, scheduled parameters; None if there are none


def _with_index(device: torch.device) -> torch.device:
    """Return `device` with an explicit index ("cuda" as "cuda:0"): otherwise the kernels of both would compile
    twice.
    """
    return (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )


MIN_SHARDS = 8
"""Least shards for which a GPU writes observations in a separate launch; below, the stepping thread is faster.

H200, M steps/s at 8,192 lanes, sharded and by one thread: Breakout (5 shards) 930 and 1,116, Go (9) 41 and 37, Pacman
(13) 648 and 606, Snake (25) 537 and 445.
"""


class _Kernels(NamedTuple):
    """Kernels of a world, in the order of launch in a step after `reset`; None for parts that the environment does not
    need.
    """

    reset: Kernel
    step: Kernel
    show_final: Kernel | None  # pictures
    end: Kernel | None
    show: Kernel | None  # pictures, or an observation in shards
    arrange: Kernel | None = None  # shared by the pixels of a picture


@functools.cache
def _kernels(
    env: Env, params: Any, device: torch.device, every_final: bool, threads: int, changing: tuple[str, ...]
) -> _Kernels:
    """Make the kernels of an environment, or return those made before: all worlds of equal rules in this process share
    them (a run has two: training and evaluation). With `every_final` they write all final observations. `threads` is
    the number of threads that write a lane's observation.
    """
    if threads > 1:
        show = Kernel(shards_body(env, params, threads), device)
        return _Kernels(
            Kernel(reset_body(env, params, True), device),
            Kernel(step_body(env, params, every_final, True), device),
            None,
            None,
            show,
        )
    reset = Kernel(reset_body(env, params, changing=changing), device)
    if not env.pixels:
        return _Kernels(reset, Kernel(step_body(env, params, every_final, changing=changing), device), None, None, None)
    show = Kernel(pixels.observe_body(env, params), device)
    arrange = Kernel(pixels.arrange_body(env, params), device) if env.picture else None
    if not _has_finals(env, every_final):
        return _Kernels(reset, Kernel(step_body(env, params, every_final), device), None, None, show, arrange)
    show_final = Kernel(pixels.observe_final_body(env, params, every_final), device)
    return _Kernels(
        reset, Kernel(begin_body(env, params), device), show_final, Kernel(end_body(env, params), device), show, arrange
    )


def _has_finals(env: Env, every_final: bool) -> bool:
    """Whether final observations can be needed: with `every_final` those of all episodes, otherwise of
    truncated ones.
    """
    return every_final or env.time_limit is not None


class DeviceWorld:
    """N lanes (parallel copies) of an environment stepped by kernels on a device. Raises ValueError for an unsupported
    `threads`, UsageError for invalid `params`.

    `seed` and `stream` key the random numbers (stream 0 is the run's, others are independent); `lane0` is the global
    index of the first lane. `every_final` also writes the final observation of terminated episodes, not only of
    truncated ones. `threads` threads write a lane's observation: by default one per shard (on a GPU if there are enough
    shards), else the thread that steps the lane. `changing` names parameters that kernels read from memory at each
    step, initially with the values in `params`; the attribute `changing` holds their scalars by name. Worlds that are
    given the same `values`, (K) float32, share them. Not supported with pictures.
    """

    capturable = resumes = True
    seconds: ClassVar[dict[str, float]] = {}

    def __init__(
        self,
        env: Env,
        lanes: int,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        params: Any = None,
        lane0: int = 0,
        stream: int = 0,
        every_final: bool = False,
        threads: int | None = None,
        changing: Sequence[str] = (),
        values: torch.Tensor | None = None,
    ) -> None:
        # `checked` makes numbers floats: 10 and 10.0 compare equal and must not compile twice.
        self.params = ranges.checked(env, params)
        env = env.ready(self.params)
        self.spec, self.count, self.device = env, lanes, _with_index(torch.device(device))
        N, K = lanes, len(env.tally)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        own = (
            torch.tensor(
                [float(getattr(self.params, name)) for name in changing], dtype=torch.float32, device=self.device
            )
            if values is None
            else values
        )
        self.changing = {name: own[k] for k, name in enumerate(changing)}
        ints = env.int_state
        self.lanes = Lanes(
            state=zeros(max(env.fields, 1), N),
            int_state=zeros(ints.n if ints else 1, N, dtype=getattr(torch, ints.dtype if ints else "int8"))
            if has_int_state(env)
            else None,
            workspace=zeros(max(env.workspace, 1), N, dtype=torch.int32) if has_int_state(env) else None,
            memory=zeros(N, env.memory) if env.memory and self.device.type == "cuda" else None,
            age=zeros(N, dtype=torch.int32),
            running=zeros(1 + K, N),
            finished=zeros(K, N) if K else None,
            tick=zeros(1, dtype=torch.int64),
            seed=seed_words(seed, stream, self.device),
            lane0=lane0,
            changing=own if changing else None,
        )
        # 0, and the sums over all lanes of age and running return at the last `episode_sums`
        self._before = zeros(3, dtype=torch.float64)
        self._carried, self._parts = self._before[1:], zeros(2, 3, dtype=torch.float64)
        self._bound = bind(self.lanes)
        self._noise = NoiseSource(self.lanes.tick, self.lanes.seed, lane0)
        self._scene = bind(
            pixels.scene(env, self.lanes.state, self.lanes.int_state)
            if env.pixels
            else pixels.Scene(self.lanes.state, self.lanes.int_state)
        )
        most = 1 if env.pixels or changing else max(env.observation_shards, 1)
        if threads is None:
            threads = most if self.device.type == "cpu" or most >= MIN_SHARDS else 1
        if not 1 <= threads <= most:
            raise ValueError(f"{threads} threads a lane: its observation is written in {most}, at most")
        self._kernels = _kernels(env, self.params, self.device, every_final, threads, tuple(changing))
        self._write_threads = lanes * (env.pixels**2 if env.pixels else threads)  # threads of an observation launch
        self._has_finals = not env.pixels or _has_finals(env, every_final)
        # A lane is truncated at most once in this many steps, so one buffer holds their final pictures.
        self.final_window = env.time_limit if env.pixels and env.time_limit is not None and not every_final else 1

    def slot(self, steps: int | None = None) -> Slot:
        """Allocate buffers for one step, or, if `steps` is T, for a rollout: each with a leading T, observations and
        legal actions with T + 1 (see `bind`).

        Final observations have a leading T / W, rounded up, with W = `final_window`.
        """
        return make_slot(self.spec, self.count, self.device, steps, self.final_window, finals=self._has_finals)

    def bind(self, slot: Slot, step: int | None = None) -> Slot:
        """Convert a slot (tensors of steps) to kernel arguments, the form that `step` takes. With `step` = t it is one
        step of a rollout's slot, which writes observation and legal actions t + 1; without it a slot of one step.

        Step -1 of a rollout is for `reset`, which writes those of step 0.
        """
        slot = slot if step is None else step_slot(slot, step, self.final_window)
        return bind(
            slot._replace(
                observation=self._kernel_layout(slot.observation),
                final_observation=self._kernel_layout(slot.final_observation),
            )
        )

    def _kernel_layout(self, observation: torch.Tensor | None) -> torch.Tensor | None:
        """View observations in the layout of the pixel kernels: pictures (O, N) as (N, H, W, 3). Other observations,
        and None, are returned unchanged.
        """
        return (
            observation.t().unflatten(1, self.spec.observation.shape)
            if observation is not None and self.spec.pixels
            else observation
        )

    def reset(self, slot: Slot) -> None:
        """Reset every lane and write the first observations to `slot`, as returned by `bind`. Counts as one tick of the
        world's clock.
        """
        self._kernels.reset(self.count, self._bound, slot)
        self._launch_observer(self._kernels.show, slot)
        self.lanes.tick.add_(1)
        self._carried.zero_()

    def step(self, slot: Slot, offset: int = 0) -> None:
        """Step every lane: read the actions in `slot`, as returned by `bind`, and write observations, rewards and ends
        to it. `offset` is the number of steps since the last `advance`, which moves the world's clock.
        """
        kernels = self._kernels
        kernels.step(self.count, self._bound, slot, offset)
        if kernels.show is not None:
            self._launch_observer(kernels.show_final, slot)
            if kernels.end is not None:
                kernels.end(self.count, self._bound, slot, offset)
            self._launch_observer(kernels.show, slot)

    def _launch_observer(self, kernel: Kernel | None, slot: Slot) -> None:
        """Launch a kernel that writes observations or pictures of all lanes; do nothing if `kernel` is None."""
        if kernel is not None:
            if self._kernels.arrange is not None:
                self._kernels.arrange(self.count, self._scene, slot)
            kernel(self._write_threads, self._scene, slot)

    @property
    def whole_step(self) -> Kernel | None:
        """Kernel that performs an entire step of every lane; None if a step takes several kernels."""
        return self._kernels.step if self._kernels.show is None else None

    @property
    def bound(self) -> Lanes:
        """State of all lanes as kernel arguments, the first argument of the kernel `whole_step`."""
        return self._bound

    def advance(self, steps: int) -> None:
        """Advance the world's clock by the number of steps taken since the last call."""
        self.lanes.tick.add_(steps)

    def seek(self, tick: int) -> None:
        """Set the world's clock, which keys the random numbers, to `tick`. The same actions from the same state then
        give the same steps.
        """
        self.lanes.tick.fill_(tick)

    def noise(self, out: torch.Tensor, purpose: int = rng.ACTION, hold: int = 1) -> None:
        """Fill `out` (T, U, N) with uniform numbers in [0, 1) for each lane and each of the next T steps, keyed by
        (seed, lane, tick, purpose). A lane's numbers stay the same for `hold` steps.
        """
        self._noise.fill(out, purpose, hold)

    def episode_sums(self, slot: Slot) -> torch.Tensor:
        """Sums over the episodes that ended in the steps of `slot`, (3 + K) float64: number, length and return, then K
        tallies (the environment's own statistics). The slot must hold all steps since the last call.

        Sum over ended episodes = gain of all lanes + running sums before - running sums now. The order of additions is
        fixed.
        """
        # Few launches: each is half a percent of a short iteration, so sums are written in place.
        lanes, (gained, now) = self.lanes, self._parts
        gained[1].fill_(slot.reward.numel())
        for values, out in (
            (slot.terminated | slot.truncated, gained[0]),
            (slot.reward, gained[2]),
            (lanes.age, now[1]),
            (lanes.running[0], now[2]),
        ):
            torch.sum(values, tuple(range(values.ndim)), dtype=torch.float64, out=out)
        sums = gained + self._before - now
        self._before.copy_(now)
        if lanes.finished is None:
            return sums
        tallies = lanes.finished.sum(dim=1, dtype=torch.float64)
        lanes.finished.zero_()
        return torch.cat([sums, tallies])

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors of the world, by name, that a resumed run needs to continue bit for bit."""
        left_out = ("workspace", "memory", "seed", "changing")
        tensors = {
            name: value
            for name, value in self.lanes._asdict().items()
            if isinstance(value, torch.Tensor) and name not in left_out
        }
        named = {
            "cells" if name == "int_state" else name: value for name, value in tensors.items()
        }  # name in checkpoints
        return {**named, "carried": self._carried}

    def restored(self) -> None:
        """Do nothing: `state` returns the tensors in use, so new values in them apply at once."""

    @property
    def running_tallies(self) -> torch.Tensor:
        """Tallies (the environment's own episode statistics) of each lane's current episode, (K, N)."""
        return self.lanes.running[1:]

    @property
    def ended_tallies(self) -> torch.Tensor | None:
        """Tallies (the environment's own episode statistics) summed over the episodes that ended since the last
        `episode_sums`, per lane (K, N); None if the environment has none.
        """
        return self.lanes.finished

    @property
    def can_truncate(self) -> bool:
        """Whether a time limit can end an episode of this environment."""
        return self.spec.time_limit is not None and math.isfinite(self.spec.time_limit)

    @property
    def truncation_gap(self) -> int:
        """Least number of steps between two truncations of a lane."""
        return self.spec.time_limit or 1
