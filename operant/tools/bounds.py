"""An environment's functions compiled for the CPU with every index checked, on buffers between guard rows. Gives no verdict: `operant.tools.check` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numba import njit, types
from numba.core import ir
from numba.core.types.functions import NumberClass
from numpy import float32

from operant.compute.device import device
from operant.compute.kernel import bind
from operant.compute.ptx import quoted, signature
from operant.envs import Env
from operant.worlds import DeviceWorld, Lanes, Scene, Slot, colour_function, reset_body, step_body

GUARD_ROWS, GUARD_BYTE = 16, 0x5A
PICTURES, PICTURE_SIDE = 4, 16


def source_of(env: Env) -> str:
    """The file an environment was written in."""
    step: Any = env.step
    return str(step.py_func.__code__.co_filename)


class Call(NamedTuple):
    """A body and the two groups of tensors it is given."""

    body: Callable[..., Any]
    first: Any
    second: Any


class Colours(NamedTuple):
    """Where the colours of small pictures go, as the environment returned them."""

    colours: Any  # (N, H, W, 3) float32, written


class BoundsChecked:
    """Step, reset and shade with every index checked, on buffers between guard rows. Compiles when asked to."""

    def __init__(self, env: Env, lanes: int) -> None:
        world, self.env, self.count = DeviceWorld(env, lanes, seed=1, every_final=True), env, lanes
        self._whole: dict[str, torch.Tensor] = {}
        exact = {"state": env.fields, "int_state": env.int_state.n if env.int_state else 0, "workspace": env.workspace, "running": 1 + len(env.tally)}
        self.lanes: Lanes = self._between_guards(world.lanes, exact)
        O, A = env.observation.size, env.action_size
        self.slot: Slot = self._between_guards(world.slot(), {"observation": O, "final_observation": O, "action": A, "legal": env.mask_size})
        self.calls = {
            "step": Call(step_body(env, world.params), self.lanes, self.slot),
            "reset": Call(reset_body(env, world.params), self.lanes, self.slot),
        }
        if env.pixel_shader is not None:
            self.colours = torch.zeros(min(lanes, PICTURES), PICTURE_SIDE, PICTURE_SIDE, 3)
            self.calls["pixel_shader"] = Call(_colour_body(env, world.params), Scene(self.lanes.state, self.lanes.int_state), Colours(self.colours))
        self._shells = {name: _checked_shell(call.body) for name, call in self.calls.items()}

    def _between_guards(self, group: Any, rows: dict[str, int]) -> Any:
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

    def compile(self) -> None:
        """Raises numba's errors."""
        for name, call in self.calls.items():
            self._shells[name].compile(signature(call.first, call.second))

    def run(self, name: str) -> None:
        """Reset or step every lane once. Raises IndexError, and whatever the author's code raises."""
        self._run(name, self.count)
        self.lanes.tick.add_(1)

    def draw(self) -> torch.Tensor:
        """Pictures of the first lanes as they are: (N, H, W, 3) float32, as `pixel_shader` returned them. Raises as `run` does."""
        self._run("pixel_shader", self.colours.numel() // 3)
        return self.colours

    def _run(self, name: str, count: int) -> None:
        call = self.calls[name]
        self._shells[name](count, bind(call.first), bind(call.second), 0)

    def trespass(self) -> str | None:
        """The buffer beside which something was written, if any."""
        for name, whole in self._whole.items():
            guards = torch.cat([whole[:GUARD_ROWS], whole[-GUARD_ROWS:]]).view(torch.uint8)
            if not bool((guards == GUARD_BYTE).all()):
                return name
        return None

    def _notes(self, name: str) -> Any:
        """What numba found out about the types of a compiled function."""
        return next(iter(self._shells[name].overloads.values())).type_annotation

    def prints(self) -> list[str]:
        """Lines that print."""
        notes = [self._notes(name) for name in self.calls]
        statements = [statement for note in notes for block in note.blocks.values() for statement in block.body]
        return sorted({quoted(statement.loc.filename, statement.loc.line) for statement in statements if isinstance(statement, ir.Print)})

    def float64_places(self) -> list[str]:
        """Lines of the author's file that compute in float64, as the compiled functions tell."""
        found = set()
        for name in self.calls:
            notes = self._notes(name)
            for statement in (statement for block in notes.blocks.values() for statement in block.body):
                expression = getattr(statement, "value", None)
                if not isinstance(statement, ir.Assign) or not isinstance(expression, ir.Expr) or statement.loc.filename != source_of(self.env):
                    continue
                if expression.op == "call" and isinstance(notes.typemap[expression.func.name], NumberClass):
                    continue  # float32(0.5): the literal is folded
                called = notes.calltypes.get(expression)
                if notes.typemap[statement.target.name] == types.float64 or (called is not None and types.float64 in called.args):
                    found.add(statement.loc.line)
        return [quoted(source_of(self.env), line) for line in sorted(found)]


def _checked_shell(body: Callable[..., Any]) -> Any:
    @njit(boundscheck=True, error_model="numpy")
    def shell(count, lanes, slot, offset):  # noqa: ANN001, ANN202
        for i in range(count):
            body(i, lanes, slot, offset)

    return shell


def _colour_body(env: Env, params: Any) -> Callable[..., Any]:
    """The body that takes the colour of pixel i of all N * H * W, unchanged."""
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
