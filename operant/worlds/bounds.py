"""Bounds-checked CPU compilation of an environment's functions, on buffers between guard rows, and actions to test them
with.

Gives no verdict: `operant.worlds.quick_check` and `operant.tools.check` do.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, types
from numba.core import ir
from numba.core.types.functions import NumberClass
from numpy import float32

from operant.compute.device import NO_REFERENCE_COUNTS, device, device_params
from operant.compute.jit_cache import cache_cpu
from operant.compute.kernel import bind, signature
from operant.compute.numba_errors import source_line
from operant.envs import Box, Discrete, Env
from operant.worlds import DeviceWorld, Lanes, Slot, colour_function, reset_body, step_body
from operant.worlds.pixels import arrange_body, scene

GUARD_ROWS, GUARD_BYTE = 16, 0x5A
PICTURES, PICTURE_SIDE = 4, 16
STEPS = 200
"""Steps of a rollout that tests indices."""


def source_of(env: Env) -> str:
    """Path of the source file that defines an environment's `step`."""
    step: Any = env.step
    return str(step.py_func.__code__.co_filename)


def rollout_actions(
    env: Env, generator: np.random.Generator, t: int, lanes: int, legal: torch.Tensor | None = None
) -> torch.Tensor:
    """Actions (A, N) of step `t` that test an environment, int32 or float32: random in even lanes, the lowest or
    highest in odd ones. If the mask `legal` (H, N) is given, every other even lane takes legal actions only.

    Odd lanes alternate between lowest and highest, each lane with its own period. An unbounded Box is tested within
    +-1,000.
    """
    low: np.ndarray
    high: np.ndarray
    if isinstance(env.action, Box):
        low, high = (np.clip(np.array(bound, np.float32), -1000, 1000)[:, None] for bound in env.action.bounds())
        chosen: np.ndarray = generator.uniform(low, high, (env.action_size, lanes)).astype(np.float32)
    else:
        sizes = (env.action.n,) if isinstance(env.action, Discrete) else env.action.n
        low, high = np.zeros((len(sizes), 1), np.int32), np.array(sizes, np.int32)[:, None] - 1
        chosen = generator.integers(low, high + 1, (env.action_size, lanes)).astype(np.int32)
        if legal is not None:
            draws = generator.random((env.mask_size, lanes)) * (legal.numpy() == 1)
            allowed = np.stack([block.argmax(axis=0) for block in np.split(draws, np.cumsum(sizes)[:-1])])
            chosen = np.where(np.arange(lanes) % 4 == 0, allowed, chosen).astype(np.int32)
    lane = np.arange(lanes)
    extreme = np.where((t // (1 + lane // 2 % 64)) % 2 == 0, low, high)
    return torch.from_numpy(np.ascontiguousarray(np.where(lane % 2 == 1, extreme, chosen)))


class Call(NamedTuple):
    """Arguments of a kernel launch: the kernel's body and the two named tuples of tensors that it takes."""

    body: Callable[..., Any]
    first: Any
    second: Any


class Colours(NamedTuple):
    """Output buffer of the bounds-checked pixel shader: float colours as returned, not yet clipped or converted to
    bytes.
    """

    colours: Any  # (N, H, W, 3) float32, written


class BoundsChecked:
    """Reset, step and pixel shader of an environment, compiled by `compile` for the CPU with every index checked. Its
    buffers lie between guard rows, which reveal stray writes.

    `cached` loads code compiled by an earlier process; `float64_places` is then unavailable.
    """

    def __init__(self, env: Env, lanes: int, params: Any = None, *, cached: bool = False) -> None:
        world = DeviceWorld(env, lanes, seed=1, params=params, every_final=True)
        self.env, self.count = world.spec, lanes
        env = self.env
        self.params, self.episodes = world.params, 0  # number of ended episodes
        self._whole: dict[str, torch.Tensor] = {}
        exact = {
            "state": env.fields,
            "int_state": env.int_state.n if env.int_state else 0,
            "workspace": env.workspace,
            "running": 1 + len(env.tally),
        }
        self.lanes: Lanes = self._between_guards(world.lanes, exact)
        O, A = env.observation.size, env.action_size
        self.slot: Slot = self._between_guards(
            world.slot(), {"observation": O, "final_observation": O, "action": A, "legal": env.mask_size}
        )
        self.calls = {
            "step": Call(step_body(env, world.params), self.lanes, self.slot),
            "reset": Call(reset_body(env, world.params), self.lanes, self.slot),
        }
        if env.pixel_shader is not None:
            self.colours = torch.zeros(min(lanes, PICTURES), PICTURE_SIDE, PICTURE_SIDE, 3)
            drawn = scene(env, self.lanes.state, self.lanes.int_state)
            if env.picture:
                self.calls["arrange"] = Call(arrange_body(env, world.params), drawn, Colours(self.colours))
            self.calls["pixel_shader"] = Call(_colour_body(env, world.params), drawn, Colours(self.colours))
        self._shells = {name: _checked_shell(call.body) for name, call in self.calls.items()}
        if cached:
            self._shells = {
                name: cache_cpu(shell, f"{name}, every index checked") for name, shell in self._shells.items()
            }

    def _between_guards(self, group: Any, rows: dict[str, int]) -> Any:
        """Replace buffers of the named tuple `group` by zeroed ones between guard rows, and return the new tuple.
        `rows` gives the number of rows of each by name; buffers that are None stay None.
        """
        for name, count in rows.items():
            if getattr(group, name) is None:
                continue
            whole = torch.zeros((count + 2 * GUARD_ROWS, self.count), dtype=getattr(group, name).dtype)
            whole.view(torch.uint8).fill_(GUARD_BYTE)
            self._whole[name] = whole
            inner = whole[GUARD_ROWS : GUARD_ROWS + count]
            inner.zero_()
            group = group._replace(**{name: inner})
        return group

    def calls_on_gpu(self) -> list[Call]:
        """Kernel calls as they are on a GPU: a robot's solver has its rows in memory, on a CPU on the stack."""
        if not self.env.memory:
            return [*self.calls.values()]
        lanes = self.lanes._replace(memory=torch.zeros(self.count, self.env.memory))
        return [call._replace(first=lanes) if call.first is self.lanes else call for call in self.calls.values()]

    def compile(self) -> None:
        """Compile the environment's reset, step and pixel shader with bounds checks. Raises numba's errors."""
        for name, call in self.calls.items():
            self._shells[name].compile(signature(call.first, call.second))

    def run(self, name: str) -> None:
        """Call the environment's compiled function `name` ("reset" or "step") once for every lane. Raises IndexError
        and whatever the author's code raises.
        """
        self._run(name, self.count)
        self.lanes.tick.add_(1)
        if name == "step":
            self.episodes += int((self.slot.terminated | self.slot.truncated).sum())

    def draw(self) -> torch.Tensor:
        """Shade small pictures of the first lanes: (N, H, W, 3) float32, as `pixel_shader` returned the colours. Raises
        IndexError and whatever the author's code raises.
        """
        if "arrange" in self.calls:
            self._run("arrange", self.count)
        self._run("pixel_shader", self.colours.numel() // 3)
        return self.colours

    def _run(self, name: str, count: int) -> None:
        """Run the compiled function `name` for indices 0 ... `count` - 1 on its buffers."""
        call = self.calls[name]
        self._shells[name](count, bind(call.first), bind(call.second), 0)

    def overwritten_buffer(self) -> str | None:
        """Name of a buffer whose guard rows were overwritten, such as "state"; None if all are intact."""
        for name, whole in self._whole.items():
            guards = torch.cat([whole[:GUARD_ROWS], whole[-GUARD_ROWS:]]).view(torch.uint8)
            if not bool((guards == GUARD_BYTE).all()):
                return name
        return None

    def _type_annotations(self, name: str) -> Any:
        """Numba's type annotations of the compiled function `name` ("reset", "step" or "pixel_shader")."""
        return next(iter(self._shells[name].overloads.values())).type_annotation

    def float64_places(self) -> list[str]:
        """Source lines of the author's file that compute in float64, as text with line numbers. Requires `compile` in
        this process.
        """
        lines = set()
        for name in self.calls:
            notes = self._type_annotations(name)
            for statement in (statement for block in notes.blocks.values() for statement in block.body):
                expression = getattr(statement, "value", None)
                if (
                    not isinstance(statement, ir.Assign)
                    or not isinstance(expression, ir.Expr)
                    or statement.loc.filename != source_of(self.env)
                ):
                    continue
                if expression.op == "call" and isinstance(notes.typemap[expression.func.name], NumberClass):
                    continue  # float32(0.5): a folded literal
                called = notes.calltypes.get(expression)
                if notes.typemap[statement.target.name] == types.float64 or (
                    called is not None and types.float64 in called.args
                ):
                    lines.add(statement.loc.line)
        return [source_line(source_of(self.env), line) for line in sorted(lines)]


def _checked_shell(body: Callable[..., Any]) -> Any:
    """Make a numba function `(count, lanes, slot, offset)`, not yet compiled, that calls the kernel body `body` for
    each index below `count` with bounds checks.
    """

    @njit(boundscheck=True, error_model="numpy", **NO_REFERENCE_COUNTS)
    def shell(count, lanes, slot, offset):  # noqa: ANN001, ANN202
        for i in range(count):
            body(i, lanes, slot, offset)

    return shell


def _colour_body(env: Env, params: Any) -> Callable[..., Any]:
    """Make the kernel body that computes the colour of pixel i, of all N * H * W, by an environment's pixel shader and
    writes it, unquantised, to `Colours`.
    """
    colour = colour_function(env, params)

    @device
    def body(i: Any, scene: Any, canvas: Any, offset: Any) -> None:
        height, width = canvas.colours.shape[1], canvas.colours.shape[2]
        column, above = i % width, i // width
        row, lane = above % height, above // height
        x = (float32(column) + float32(0.5)) / float32(width)
        y = (float32(row) + float32(0.5)) / float32(height)
        red, green, blue = colour(scene, lane, x, y)
        canvas.colours[lane, row, column, 0] = red
        canvas.colours[lane, row, column, 1] = green
        canvas.colours[lane, row, column, 2] = blue

    return body


def python_function(function: Any) -> Any:
    """Return the Python function that a device function was made from."""
    return function.py_func


def index_error(env: Env, params: Any) -> str | None:
    """Find an out-of-range index by running an environment's functions as plain Python. Returns the source line and the
    message of the IndexError; None if none is raised.
    """
    ints = [
        np.zeros(env.int_state.n if env.int_state else 0, env.int_state.dtype if env.int_state else "int8"),
        np.zeros(env.workspace, np.int32),
    ]
    grid = ints if env.int_state is not None or env.workspace else []
    s, obs, mask = (
        np.zeros(env.fields, np.float32),
        np.zeros(env.observation.size, env.observation.dtype),
        np.zeros(env.mask_size, np.uint8),
    )
    p, tally, generator = device_params(params), np.zeros(len(env.tally), np.float32), np.random.default_rng(1)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for t in range(STEPS):
                key = tuple(np.uint32(word) for word in (1, 0, 0, t, 0, 0))
                if t == 0:
                    python_function(env.reset)(s, *grid, p, key)
                column = rollout_actions(env, generator, t, 2)[:, t % 2].numpy()
                _, terminated = python_function(env.step)(
                    s, *grid, column[0] if isinstance(env.action, Discrete) else column, p, key, tally
                )
                for function, out in ((env.observe, obs), (env.legal, mask)):
                    if function is not None and env.observation_shards:
                        for shard in range(env.observation_shards):
                            python_function(function)(s, *ints[: env.int_state is not None], out, p, np.int32(shard))
                    elif function is not None:
                        python_function(function)(s, *grid, out, p)
                if terminated:
                    python_function(env.reset)(s, *grid, p, key)
    except IndexError as error:
        return place_of(env, error)
    except Exception:
        return None
    return None


def place_of(env: Env, error: IndexError) -> str | None:
    """Describe where in the environment author's file `error` was raised: the source line and the message; None if the
    traceback has no line of that file.
    """
    trace, line = error.__traceback__, 0
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == source_of(env) else line
        trace = trace.tb_next
    return f"{source_line(source_of(env), line)}: {error}" if line else None


def shade_index_error(checked: BoundsChecked) -> str:
    """Find an out-of-range index by running `pixel_shader` as plain Python. Returns the source line and the message of
    the IndexError, or a general sentence if none is raised.
    """
    unknown = "`pixel_shader`: an index is outside s or int_state"
    env, lanes, p = checked.env, checked.lanes, device_params(checked.params)
    points = [np.float32((k + 0.5) / PICTURE_SIDE) for k in range(PICTURE_SIDE)]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for lane in range(len(checked.colours)):
                ints = (lanes.int_state[:, lane].numpy(),) if lanes.int_state is not None else ()
                for x, y in itertools.product(points, points):
                    python_function(env.pixel_shader)(lanes.state[:, lane].numpy(), *ints, p, x, y)
    except IndexError as error:
        return place_of(env, error) or unknown
    except Exception:
        return unknown
    return unknown
