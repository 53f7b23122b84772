"""N lanes of one environment on a device: buffers, and the one body that steps a lane. Knows the environment contract; knows no policy and no algorithm.

What every environment would otherwise get wrong by itself lives here once: automatic resets, time limits, the true final observation, episode sums, random
numbers, layout. One step of a lane, at tick t:

    clip a Box action -> step -> age + 1 -> truncated when the age reaches the time limit
    when it ended: write the true final observation; add its tallies to `finished`; reset (with the numbers of tick t)
    observe, and judge which actions are legal now, where the environment says so

Layout is field-major: state (F, N), observations (O, N), so that neighbouring threads touch neighbouring addresses.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import float32, uint32

from operant import rng
from operant.device import device
from operant.envs import Box, Discrete, Env
from operant.kernel import Kernel, bind

EPISODES, LENGTH, RETURN, TALLIES = range(4)  # rows of what `take` returns; an environment's own tallies follow
_LOW_32 = 0xFFFFFFFF


class Lanes(NamedTuple):
    """What a lane keeps from step to step. Tensors outside the kernel, arrays inside."""

    state: Any  # (F, N) float32
    cells: Any  # (C, N) of the environment's type; None where it has none: every buffer that a launch names costs it time
    scratch: Any  # (S, N) int32, worth nothing between calls; None likewise
    age: Any  # (N) int32, steps since the last reset
    running: Any  # (1 + K, N) float32, sums over the episode under way: return, tallies
    finished: Any  # (K, N) float32, tallies of the episodes that ended since `take`; None where K is 0
    tick: Any  # (1) int64, steps this world has taken; a captured graph reads it, so it lives on the device
    seed: Any  # (2) uint32, as int32
    lane0: int  # global number of the first lane


class Slot(NamedTuple):
    """Where one step's action is read and its outcome written."""

    action: Any  # (A, N) int32 or float32; a Box action is clipped to its bounds in place
    observation: Any  # (O, N), of the state after the step (and after the reset where the episode ended)
    final_observation: Any  # (O, N), written only in lanes that were truncated (or ended at all: see `World`): what an observer would have seen
    reward: Any  # (N) float32
    terminated: Any  # (N) uint8
    truncated: Any  # (N) uint8
    legal: Any  # (H, N) uint8, 1 for each action that may be taken at `observation`; None where the environment judges none


class _Functions(NamedTuple):
    """An environment's functions in one shape: each takes all lanes and an index, so that the lane body need not know which buffers there are."""

    reset: Any  # (lanes, i, p, key)
    step: Any  # (lanes, i, action column, p, key) -> reward, terminated
    observe: Any  # (lanes, i, obs, p)
    judge: Any  # (lanes, i, slot, p): the legal actions, where there is somewhere to write them
    add_tallies: Any  # (lanes, i): an episode's tallies to those of the ended ones


def _functions(env: Env) -> _Functions:
    """Wrap an environment's functions: with cells and scratch where it declared them, with the tallies it has."""
    reset_, step_, observe_ = env.reset, env.step, env.observe
    if _has_cells(env):

        @device
        def reset(lanes, i, p, key):
            reset_(lanes.state[:, i], lanes.cells[:, i], lanes.scratch[:, i], p, key)

        @device
        def observe(lanes, i, obs, p):
            observe_(lanes.state[:, i], lanes.cells[:, i], lanes.scratch[:, i], obs, p)

        @device
        def act(lanes, i, action, p, key):
            return step_(lanes.state[:, i], lanes.cells[:, i], lanes.scratch[:, i], action, p, key, lanes.running[1:, i])

    else:

        @device
        def reset(lanes, i, p, key):
            reset_(lanes.state[:, i], p, key)

        @device
        def observe(lanes, i, obs, p):
            observe_(lanes.state[:, i], obs, p)

        @device
        def act(lanes, i, action, p, key):
            return step_(lanes.state[:, i], action, p, key, lanes.running[1:, i])

    return _Functions(reset, _taking_columns(env, act), observe, _judging(env), _tallying(len(env.tally)))


def _judging(env: Env) -> Any:
    """What writes the legal actions of a lane; without any there is no buffer to touch."""
    legal: Any = env.legal
    if not env.mask_size:

        @device
        def judge(lanes, i, slot, p):
            pass

    elif _has_cells(env):

        @device
        def judge(lanes, i, slot, p):
            legal(lanes.state[:, i], lanes.cells[:, i], lanes.scratch[:, i], slot.legal[:, i], p)

    else:

        @device
        def judge(lanes, i, slot, p):
            legal(lanes.state[:, i], slot.legal[:, i], p)

    return judge


def _has_cells(env: Env) -> bool:
    return env.cells is not None or env.scratch > 0


def _taking_columns(env: Env, act: Any) -> Any:
    """`act` for a column of actions: the only one of it for Discrete, clipped for a Box."""
    if isinstance(env.action, Discrete):

        @device
        def step(lanes, i, column, p, key):
            return act(lanes, i, column[0], p, key)

    elif isinstance(env.action, Box):
        lows, highs = (tuple(float32(bound) for bound in bounds) for bounds in env.action.bounds())

        @device
        def step(lanes, i, column, p, key):
            for k in range(len(lows)):
                column[k] = min(max(column[k], lows[k]), highs[k])
            return act(lanes, i, column, p, key)

    else:
        step = act
    return step


def _tallying(tallies: int) -> Any:
    """What an episode's end does with `tallies` tallies; without any there is no buffer to touch."""

    @device
    def add_tallies(lanes, i):
        for k in range(tallies):
            lanes.finished[k, i] += lanes.running[1 + k, i]
            lanes.running[1 + k, i] = float32(0.0)

    @device
    def nothing(lanes, i):
        pass

    return add_tallies if tallies else nothing


def device_params(params: Any) -> Any:
    """Parameters as device functions see them: floats as float32, whole numbers as int32, truth values as they are."""

    def narrow(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        return np.int32(value) if isinstance(value, int) else float32(value)

    return type(params)(*(narrow(value) for value in params))


def step_body(env: Env, params: Any, every_final: bool = True) -> Any:
    """The lane body: one step of lane i, as the module's docstring tells it.

    Stores of a lane here and there cost a GPU far more than those of neighbouring lanes together. So what an episode's end adds up to is worked out
    by `take` from what is stored anyway, and without `every_final` a terminated lane's final observation, which nobody bootstraps from, is not written.
    """
    reset, step, observe, judge, add_tallies = _functions(env)
    p = device_params(params)
    limit = env.time_limit if env.time_limit is not None else 2**31 - 1

    @device
    def body(i, lanes, slot, offset):
        tick = lanes.tick[0] + offset
        tick_low, tick_high = uint32(tick & _LOW_32), uint32(tick >> 32)
        lane = uint32(uint32(lanes.lane0) + i)
        seed_low, seed_high = uint32(lanes.seed[0]), uint32(lanes.seed[1])

        # Everything that the end of a step needs is asked for at its beginning: one wait for memory instead of several.
        age, episode_return = lanes.age[i] + 1, lanes.running[0, i]
        key = (seed_low, seed_high, lane, tick_low, tick_high, uint32(rng.STEP))
        reward, terminated = step(lanes, i, slot.action[:, i], p, key)
        truncated = age >= limit
        episode_return += float32(reward)
        slot.reward[i] = float32(reward)
        slot.terminated[i] = 1 if terminated else 0
        slot.truncated[i] = 1 if truncated else 0

        if terminated or truncated:
            if every_final or not terminated:
                observe(lanes, i, slot.final_observation[:, i], p)
            reset(lanes, i, p, (seed_low, seed_high, lane, tick_low, tick_high, uint32(rng.RESET)))
            add_tallies(lanes, i)
            age, episode_return = 0, float32(0.0)
        lanes.age[i] = age
        lanes.running[0, i] = episode_return
        observe(lanes, i, slot.observation[:, i], p)
        judge(lanes, i, slot, p)

    return body


def reset_body(env: Env, params: Any) -> Any:
    """The body that begins lane i anew, with the numbers of the tick before the next."""
    reset, _, observe, judge, _ = _functions(env)
    p = device_params(params)
    rows = 1 + len(env.tally)

    @device
    def body(i, lanes, slot, offset):
        tick = lanes.tick[0] + offset
        lane = uint32(uint32(lanes.lane0) + i)
        key = (uint32(lanes.seed[0]), uint32(lanes.seed[1]), lane, uint32(tick & _LOW_32), uint32(tick >> 32), uint32(rng.RESET))
        reset(lanes, i, p, key)
        lanes.age[i] = 0
        for k in range(rows):
            lanes.running[k, i] = float32(0.0)
        observe(lanes, i, slot.observation[:, i], p)
        judge(lanes, i, slot, p)

    return body


def _indexed(device: torch.device) -> torch.device:
    """The device with its number: "cuda" and "cuda:0" would otherwise be two, and compile twice."""
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device


def _typed(params: Any, defaults: Any) -> Any:
    """Parameters whose floats are floats: 10 and 10.0 compare equal, and must not compile to different kernels."""
    given = defaults if params is None else params
    return type(defaults)(*(float(value) if isinstance(default, float) else value for value, default in zip(given, defaults, strict=True)))


@functools.cache
def _kernels(env: Env, params: Any, device: torch.device, every_final: bool) -> tuple[Kernel, Kernel]:
    """Step and reset, compiled once for all worlds of the same rules in this process (a run has two: its own and its evaluation's)."""
    return Kernel(step_body(env, params, every_final), device), Kernel(reset_body(env, params), device)


class World:
    """N lanes of an environment on a device.

    `seed` and `stream` name the random numbers (stream 0 is the run's own, others are independent of it); `lane0` is the global number of the first lane.
    `every_final` asks for the final observation of terminated episodes too, not only of truncated ones.
    """

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
    ) -> None:
        self.env, self.count, self.device = env, lanes, _indexed(torch.device(device))
        self.params = _typed(params, env.Params())
        N, K = lanes, len(env.tally)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        words = rng.split(rng.stream_seed(seed, stream)).view(np.int32)
        cells = env.cells
        self.lanes = Lanes(
            state=zeros(max(env.fields, 1), N),
            cells=zeros(cells.n if cells else 1, N, dtype=getattr(torch, cells.dtype if cells else "int8")) if _has_cells(env) else None,
            scratch=zeros(max(env.scratch, 1), N, dtype=torch.int32) if _has_cells(env) else None,
            age=zeros(N, dtype=torch.int32),
            running=zeros(1 + K, N),
            finished=zeros(K, N) if K else None,
            tick=zeros(1, dtype=torch.int64),
            seed=torch.from_numpy(words.copy()).to(self.device),
            lane0=lane0,
        )
        self._carried = zeros(2, dtype=torch.float64)  # sums over all lanes of age and running return when `take` was called last
        self._bound = bind(self.lanes)
        self._step, self._reset = _kernels(env, self.params, self.device, every_final)

    def slot(self, steps: int | None = None) -> Slot:
        """Fresh buffers for one step, or with `steps` T for a rollout, each with a leading T (observations and legal actions T + 1: see `bind`)."""
        env, N = self.env, self.count
        T = () if steps is None else (steps,)
        after = () if steps is None else (steps + 1,)
        pixels = getattr(torch, env.observation.dtype)
        actions = torch.float32 if isinstance(env.action, Box) else torch.int32

        def zeros(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        O = env.observation.size
        return Slot(
            action=zeros((*T, env.action_size, N), actions),
            observation=zeros((*after, O, N), pixels),
            final_observation=zeros((*T, O, N), pixels),
            reward=zeros((*T, N)),
            terminated=zeros((*T, N), torch.uint8),
            truncated=zeros((*T, N), torch.uint8),
            legal=zeros((*after, env.mask_size, N), torch.uint8) if env.mask_size else None,
        )

    def bind(self, slot: Slot, step: int | None = None) -> Slot:
        """A slot as `step` wants it: of one step, or step t of a rollout, which writes the observation and the legal actions of t + 1.

        Step -1 of a rollout is what `reset` wants: it writes those of step 0.
        """
        if step is None:
            return bind(slot)
        after = {"observation": slot.observation, "legal": slot.legal}
        views = {name: buffer[step] for name, buffer in slot._asdict().items() if name not in after}
        return bind(Slot(**views, **{name: None if buffer is None else buffer[step + 1] for name, buffer in after.items()}))

    def reset(self, slot: Slot) -> None:
        """Begin every lane anew and write the first observations to the slot (a bound one). Counts as one tick."""
        self._reset(self.count, self._bound, slot)
        self.lanes.tick.add_(1)
        self._carried.zero_()

    def step(self, slot: Slot, offset: int = 0) -> None:
        """One step of every lane, at tick + offset, from and to a bound slot. The caller moves the clock: see `advance`."""
        self._step(self.count, self._bound, slot, offset)

    def advance(self, steps: int) -> None:
        """Move the clock on, once for as many steps as were taken with offsets 0 ... steps - 1."""
        self.lanes.tick.add_(steps)

    def take(self, slot: Slot) -> torch.Tensor:
        """Sums over the episodes that ended in the steps of a slot (unbound), which are all steps since the last call: (3 + K) float64.

        Episodes, their lengths and returns, tallies. What all lanes gained is what ended episodes add up to, and what is under way now, less what was
        under way before. Summed in a fixed order.
        """
        lanes = self.lanes
        now = torch.stack([lanes.age.sum(dtype=torch.float64), lanes.running[0].sum(dtype=torch.float64)])
        gained = torch.stack([torch.full_like(now[0], slot.reward.numel()), slot.reward.sum(dtype=torch.float64)])
        episodes = (slot.terminated | slot.truncated).sum(dtype=torch.float64)
        sums = [episodes[None], gained + self._carried - now]
        self._carried.copy_(now)
        if lanes.finished is not None:
            sums.append(lanes.finished.sum(dim=1, dtype=torch.float64))
            lanes.finished.zero_()
        return torch.cat(sums)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that a resumed run needs to go on as if nothing had happened, by name."""
        own = {name: value for name, value in self.lanes._asdict().items() if isinstance(value, torch.Tensor) and name not in ("scratch", "seed")}
        return {**own, "carried": self._carried}

    @property
    def can_truncate(self) -> bool:
        """Whether a time limit can end an episode."""
        return self.env.time_limit is not None and math.isfinite(self.env.time_limit)
