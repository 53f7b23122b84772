"""N lanes of one environment on a device: buffers, and the kernels that step and reset them. Knows no policy and no
algorithm, and of a step only its parts.

Layout is field-major: state (F, N), observations (O, N), so that neighbouring threads touch neighbouring addresses.
Observations that are pictures are an (O, N) view of memory that holds one after the other, (N, O), as the pixel kernels
and networks want it.
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
    """What a lane keeps from step to step. Tensors outside the kernel, arrays inside."""

    state: Any  # (F, N) float32
    int_state: (
        Any  # (C, N) of the environment's type; None where it has none: every buffer that a launch names costs it time
    )
    workspace: Any  # (S, N) int32, worth nothing between calls; None likewise
    age: Any  # (N) int32, steps since the last reset
    running: Any  # (1 + K, N) float32, sums over the episode under way: return, tallies
    finished: Any  # (K, N) float32, tallies of the episodes that ended since `episode_sums`; None where K is 0
    tick: Any  # (1) int64, steps this world has taken; a captured graph reads it, so it lives on the device
    seed: Any  # (2) uint32, as int32
    lane0: int  # global number of the first lane
    changing: Any = None  # (K) float32, the parameters that change between steps; None where none does


def _indexed(device: torch.device) -> torch.device:
    """The device with its number: "cuda" and "cuda:0" would otherwise be two, and compile twice."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )


FEWEST_SHARDS = 8
"""On a GPU an observation of fewer shards is written by the thread that steps its lane: a launch of its own would cost
more than it spares. On an H200, M steps a second at 8,192 lanes by the shards and by one thread: Breakout (5) 930 and
1,116, Go (9) 41 and 37, Pacman (13) 648 and 606, Snake (25) 537 and 445.
"""


class _Kernels(NamedTuple):
    """The launches of a reset and of a step, in the order of a step; None for what an environment does without."""

    reset: Kernel
    step: Kernel
    show_final: Kernel | None  # pictures
    end: Kernel | None
    show: Kernel | None  # pictures, or an observation in shards


@functools.cache
def _kernels(
    env: Env, params: Any, device: torch.device, every_final: bool, threads: int, changing: tuple[str, ...]
) -> _Kernels:
    """Compiled once for all worlds of the same rules in this process (a run has two: its own and its evaluation's)."""
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
    if not _shows_finals(env, every_final):
        return _Kernels(reset, Kernel(step_body(env, params, every_final), device), None, None, show)
    show_final = Kernel(pixels.observe_final_body(env, params, every_final), device)
    return _Kernels(
        reset, Kernel(begin_body(env, params), device), show_final, Kernel(end_body(env, params), device), show
    )


def _shows_finals(env: Env, every_final: bool) -> bool:
    """Whether a final observation can be asked for."""
    return every_final or env.time_limit is not None


class DeviceWorld:
    """N lanes of an environment on a device: a `World` of kernels.

    `seed` and `stream` name the random numbers (stream 0 is the run's own, others are independent of it); `lane0` is
    the global number of the first lane. `every_final` asks for the final observation of terminated episodes too, not
    only of truncated ones. `threads` is how many threads write a lane's observation: by default one for each of its
    shards (on a GPU where there are many), at least one, which then is the thread that steps the lane. Raises
    ValueError for others, and UsageError for `params` that are not the environment's or out of their ranges. `changing`
    names parameters that kernels read from memory in each step, at first as `params` has them: the scalars of that name
    in the attribute `changing`, which several worlds share that are given the same `values`, (K) float32. Not with
    pictures.
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
        self.spec, self.count, self.device = env, lanes, _indexed(torch.device(device))
        # Floats are floats there: 10 and 10.0 compare equal, and must not compile to different kernels.
        self.params = ranges.checked(env, params)
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
            age=zeros(N, dtype=torch.int32),
            running=zeros(1 + K, N),
            finished=zeros(K, N) if K else None,
            tick=zeros(1, dtype=torch.int64),
            seed=seed_words(seed, stream, self.device),
            lane0=lane0,
            changing=own if changing else None,
        )
        # 0, and sums over all lanes of age and running return when `episode_sums` was called last
        self._before = zeros(3, dtype=torch.float64)
        self._carried, self._parts = self._before[1:], zeros(2, 3, dtype=torch.float64)
        self._bound = bind(self.lanes)
        self._noise = NoiseSource(self.lanes.tick, self.lanes.seed, lane0)
        self._scene = bind(pixels.Scene(self.lanes.state, self.lanes.int_state))
        most = 1 if env.pixels or changing else max(env.observation_shards, 1)
        if threads is None:
            threads = most if self.device.type == "cpu" or most >= FEWEST_SHARDS else 1
        if not 1 <= threads <= most:
            raise ValueError(f"{threads} threads a lane: its observation is written in {most}, at most")
        self._kernels = _kernels(env, self.params, self.device, every_final, threads, tuple(changing))
        self._shown = lanes * (env.pixels**2 if env.pixels else threads)  # threads that write observations
        self._shows_finals = not env.pixels or _shows_finals(env, every_final)
        # A lane is truncated at most once within so many steps: their final pictures have room in one buffer, a small
        # part of a rollout's.
        self.final_window = env.time_limit if env.pixels and env.time_limit is not None and not every_final else 1

    def slot(self, steps: int | None = None) -> Slot:
        """Fresh buffers for one step, or with `steps` T for a rollout, each with a leading T (observations and legal
        actions T + 1: see `bind`).

        Final observations have a leading T / W, rounded up, where `final_window` is W.
        """
        return make_slot(self.spec, self.count, self.device, steps, self.final_window, finals=self._shows_finals)

    def bind(self, slot: Slot, step: int | None = None) -> Slot:
        """A slot as `step` wants it: of one step, or step t of a rollout, which writes the observation and the legal
        actions of t + 1.

        Step -1 of a rollout is what `reset` wants: it writes those of step 0.
        """
        slot = slot if step is None else step_slot(slot, step, self.final_window)
        return bind(
            slot._replace(
                observation=self._pictures(slot.observation), final_observation=self._pictures(slot.final_observation)
            )
        )

    def _pictures(self, seen: torch.Tensor | None) -> torch.Tensor | None:
        """Observations (O, N) as kernels want them: pictures as (N, H, W, 3)."""
        return seen.t().unflatten(1, self.spec.observation.shape) if seen is not None and self.spec.pixels else seen

    def reset(self, slot: Slot) -> None:
        """Begin every lane anew and write the first observations to the slot (a bound one). Counts as one tick."""
        self._kernels.reset(self.count, self._bound, slot)
        self._show(self._kernels.show, slot)
        self.lanes.tick.add_(1)
        self._carried.zero_()

    def step(self, slot: Slot, offset: int = 0) -> None:
        """One step of every lane, at tick + offset, from and to a bound slot. The caller moves the clock: see
        `advance`.
        """
        kernels = self._kernels
        kernels.step(self.count, self._bound, slot, offset)
        if kernels.show is not None:
            self._show(kernels.show_final, slot)
            if kernels.end is not None:
                kernels.end(self.count, self._bound, slot, offset)
            self._show(kernels.show, slot)

    def _show(self, kernel: Kernel | None, slot: Slot) -> None:
        """Draw the pictures of all lanes, or those that the kernel picks, or write their observations; nothing where
        there is no such kernel.
        """
        if kernel is not None:
            kernel(self._shown, self._scene, slot)

    @property
    def whole_step(self) -> Kernel | None:
        """The kernel that is all of a step; None where several are."""
        return self._kernels.step if self._kernels.show is None else None

    @property
    def bound(self) -> Lanes:
        """What that kernel takes first: `lanes` as arrays."""
        return self._bound

    def advance(self, steps: int) -> None:
        """Move the clock on, once for as many steps as were taken with offsets 0 ... steps - 1."""
        self.lanes.tick.add_(steps)

    def seek(self, tick: int) -> None:
        """Set the clock: from there on the same actions give the same steps."""
        self.lanes.tick.fill_(tick)

    def noise(self, out: torch.Tensor, purpose: int = rng.ACTION) -> None:
        """Fill `out` (T, U, N) with uniform numbers in [0, 1) for each lane and each of the next T steps: those of
        (seed, lane, tick, purpose).
        """
        self._noise.fill(out, purpose)

    def episode_sums(self, slot: Slot) -> torch.Tensor:
        """Sums over the episodes that ended in the steps of a slot (unbound), which are all steps since the last call:
        (3 + K) float64.

        Episodes, their lengths and returns, tallies. What all lanes gained is what ended episodes add up to, and what
        is under way now, less what was under way before. Summed in a fixed order.
        """
        # In few launches, of which each is half a percent of a short iteration: sums go where they are added up.
        lanes, (gained, now) = self.lanes, self._parts
        gained[1].fill_(slot.reward.numel())
        for numbers, place in (
            (slot.terminated | slot.truncated, gained[0]),
            (slot.reward, gained[2]),
            (lanes.age, now[1]),
            (lanes.running[0], now[2]),
        ):
            torch.sum(numbers, tuple(range(numbers.ndim)), dtype=torch.float64, out=place)
        sums = gained + self._before - now
        self._before.copy_(now)
        if lanes.finished is None:
            return sums
        tallies = lanes.finished.sum(dim=1, dtype=torch.float64)
        lanes.finished.zero_()
        return torch.cat([sums, tallies])

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a resumed run needs to go on as if nothing had happened, by name."""
        left_out = ("workspace", "seed", "changing")
        kept = {
            name: value
            for name, value in self.lanes._asdict().items()
            if isinstance(value, torch.Tensor) and name not in left_out
        }
        own = {
            "cells" if name == "int_state" else name: value for name, value in kept.items()
        }  # by its name in checkpoints
        return {**own, "carried": self._carried}

    def restored(self) -> None:
        """Nothing to do: `state` is what is used."""

    @property
    def running_tallies(self) -> torch.Tensor:
        """(K, N), the environment's own sums over each lane's episode under way."""
        return self.lanes.running[1:]

    @property
    def ended_tallies(self) -> torch.Tensor | None:
        """(K, N), the same over each lane's episodes that ended since `episode_sums`; None where the environment has
        none.
        """
        return self.lanes.finished

    @property
    def can_truncate(self) -> bool:
        """Whether a time limit can end an episode."""
        return self.spec.time_limit is not None and math.isfinite(self.spec.time_limit)

    @property
    def truncation_gap(self) -> int:
        """So many steps at least lie between two truncations of a lane."""
        return self.spec.time_limit or 1
