"""Stage in plain Python and NumPy: an environment's own functions without a compiler, and an exported policy without
torch. Shows a policy of the zoo at once, where importing torch and compiling take seconds.

The functions are those that `operant.worlds` compiles, with the same random numbers: the episodes are those of `Stage`,
up to the last bit of float32 arithmetic, which a compiler may contract. One lane; an array of pixels is shaded by
calling the shader once for each set of pixels that take the same branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import tomli
from numpy.typing import NDArray

from operant import envs
from operant.compute import rng
from operant.compute.device import as_python, device
from operant.envs import Box, Env, ranges, step_seconds
from operant.export import program
from operant.runs import Run, zoo
from operant.worlds.lane import has_int_state, reset_body, step_body
from operant.worlds.pixels import colour_function

_LANE: Final = np.uint32(0)
_TICKS = 1 << 32  # evaluation N starts at tick N * 2^32


def without_reset(env: Env) -> Env:
    """Copy an environment and make its reset do nothing, so that an ended lane keeps its last state."""

    @device
    def nothing(s: Any, p: Any, key: Any) -> None:
        pass

    @device
    def nothing_with_ints(s: Any, ints: Any, workspace: Any, p: Any, key: Any) -> None:
        pass

    @device
    def nothing_with_memory(s: Any, memory: Any, p: Any, key: Any) -> None:
        pass

    return replace(
        env, reset=nothing_with_ints if has_int_state(env) else nothing_with_memory if env.memory else nothing
    )


class PlainStage:
    """Stage of one lane, like `Stage` with `lanes` 1: attributes and methods have the same meaning, arrays are NumPy's.
    Not for an environment that is observed by pictures, nor for one that arranges its picture.
    """

    lanes = 1

    def __init__(self, env: Env, params: Any, *, seed: int, number: int = 0) -> None:
        self.env = env
        O, K, ints = env.observation.size, len(env.tally), env.int_state
        self._lanes = SimpleNamespace(  # the fields of `worlds.Lanes`
            state=np.zeros((max(env.fields, 1), 1), np.float32),
            int_state=np.zeros((ints.n if ints else 1, 1), ints.dtype if ints else np.int8),
            workspace=np.zeros((max(env.workspace, 1), 1), np.int32),
            age=np.zeros(1, np.int32),
            running=np.zeros((1 + K, 1), np.float32),
            finished=np.zeros((K, 1), np.float32),
            tick=np.array([number * _TICKS + 1]),
            seed=rng.split(rng.stream_seed(seed, rng.EVALUATIONS)),
            lane0=0,
        )
        self._slot = SimpleNamespace(  # the fields of `worlds.Slot`
            action=np.zeros((env.action_size, 1), np.float32 if isinstance(env.action, Box) else np.int32),
            observation=np.zeros((O, 1), env.observation.dtype),
            final_observation=np.zeros((O, 1), env.observation.dtype),
            reward=np.zeros(1, np.float32),
            terminated=np.zeros(1, np.uint8),
            truncated=np.zeros(1, np.uint8),
            legal=np.zeros((env.mask_size, 1), np.uint8),
        )
        self._reset = as_python(reset_body(env, params))
        self._step = as_python(step_body(without_reset(env), params, every_final=False))
        self._colour = as_python(colour_function(env, params), _ON_ARRAYS) if env.pixel_shader is not None else None
        self.step_s = step_seconds(env, params)
        self.returns, self.ages, self.ended = np.zeros(1), np.zeros(1, np.int64), np.ones(1, bool)
        self.renew()

    @property
    def observation(self) -> NDArray[Any]:
        """Current observation of the lane, (O, 1); of an ended lane its last one."""
        return self._slot.observation

    @property
    def legal(self) -> NDArray[np.uint8]:
        """Mask of the legal actions, (H, 1), 0 or 1; H = 0 if all actions are legal."""
        return self._slot.legal

    @property
    def action(self) -> NDArray[Any]:
        """Last action, (A, 1)."""
        return self._slot.action

    def renew(self) -> None:
        """Start the next episode if the last one ended. `step` does so too."""
        if self.ended[0]:
            self._call(self._reset, -1)
            self._lanes.finished[:] = 0.0
            self.returns[:], self.ages[:], self.ended[:] = 0.0, 0, False

    def step(self, action: NDArray[Any]) -> None:
        """Take an action (A, 1). After an episode's end it is the first action of the next episode."""
        self.renew()
        self._slot.action[:] = action
        self._call(self._step, 0)
        self._lanes.tick += 1
        self.returns += self._slot.reward
        self.ages += 1
        self.ended[:] = self._slot.terminated | self._slot.truncated

    def canvas(self, side: int) -> NDArray[np.uint8]:
        """Allocate a zeroed buffer for `picture`, (1, side, side, 3) bytes."""
        return np.zeros((1, side, side, 3), np.uint8)

    def picture(self, canvas: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Draw the lane on `canvas`, (1, H, W, 3) bytes, and return it."""
        assert self._colour is not None, "this environment draws no picture"
        height, width = canvas.shape[1:3]
        row, column = (index.ravel().astype(np.float32) for index in np.indices((height, width)))
        x, y = (column + np.float32(0.5)) / np.float32(width), (row + np.float32(0.5)) / np.float32(height)
        scene = SimpleNamespace(state=self._lanes.state.view(_Pixels), int_state=self._lanes.int_state.view(_Pixels))
        colours = np.zeros((height * width, 3), np.float32)
        unfinished = [np.arange(height * width)]  # sets of pixels whose colours are not known yet
        with np.errstate(all="ignore"):
            while unfinished:
                pixels = unfinished.pop()
                try:
                    found = self._colour(scene, 0, x[pixels].view(_Pixels), y[pixels].view(_Pixels))
                except _DivergentError as branch:
                    unfinished += [pixels[branch.taken], pixels[~branch.taken]]
                else:
                    for channel, values in enumerate(found):
                        colours[pixels, channel] = values
        inside = np.clip(np.nan_to_num(colours, nan=0.0), 0.0, 1.0)
        canvas[0] = (inside * np.float32(255.0) + np.float32(0.5)).astype(np.uint8).reshape(height, width, 3)
        return canvas

    def _call(self, body: Callable[..., None], offset: int) -> None:
        """Run a kernel body for the lane. Integers wrap around and floats overflow, as in compiled code."""
        with np.errstate(all="ignore"):
            body(_LANE, self._lanes, self._slot, offset)


class PlainPlayer:
    """Player of a plain stage by an exported policy: the most likely actions."""

    def __init__(self, stage: PlainStage, policy: program.Policy) -> None:
        self._stage, self._policy = stage, policy
        self._state = policy.initial_state(1)

    def step(self) -> None:
        """Let the policy choose and take one action."""
        stage = self._stage
        if stage.ended[0]:
            self._state = self._policy.initial_state(1)
        stage.renew()
        legal = [stage.legal.T] if stage.env.mask_size else []
        chosen = self._policy(stage.observation.T, *legal, *self._state)
        action, *self._state = chosen if self._state else [chosen]
        stage.step(action.T)


def staged(shipped: Run, *, seed: int | None, number: int) -> tuple[PlainStage, PlainPlayer]:
    """Stage of the environment of a policy of the zoo, in the initial state of evaluation `number`, and the exported
    policy as its player. `seed` None means the run's.
    """
    config = tomli.loads(shipped.config_path.read_text(encoding="utf-8"))
    env = envs.find(config["env"]["name"])
    params = ranges.checked(env, config["env"]["params"])
    stage = PlainStage(env, params, seed=config["run"]["seed"] if seed is None else seed, number=number)
    return stage, PlainPlayer(stage, program.load(zoo.exported(shipped)))


# SHADERS ON ARRAYS OF PIXELS


class _DivergentError(Exception):
    """Error for a branch that only some pixels take: those in the mask `taken`."""

    def __init__(self, taken: NDArray[np.bool_]) -> None:
        super().__init__()
        self.taken = taken


class _Pixels(np.ndarray):
    """Numbers, one per pixel. Their truth value is that of all of them; raises _DivergentError where they differ."""

    def __bool__(self) -> bool:
        true = np.asarray(self, bool).ravel()
        if true.all() or not true.any():
            return bool(true[0])
        raise _DivergentError(true)


def _converter(dtype: Any) -> Callable[[Any], Any]:
    """Conversion to `dtype` of a number, as `numpy.float32`, or of an array of pixels."""
    return lambda value: value.astype(dtype) if isinstance(value, np.ndarray) else dtype(value)


_ON_ARRAYS: Final = {
    "float32": _converter(np.float32),
    "int32": _converter(np.int32),
    "uint32": _converter(np.uint32),
    "int": _converter(np.int64),
    "min": np.minimum,
    "max": np.maximum,
    "math": np,
}
"""Functions that a shader uses, by name, for arrays of pixels."""
